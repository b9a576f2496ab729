"""What a value becomes when it enters a tree: a tensor, or a static."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdfunc._core.statics import NonTensorData
from tdfunc.errors import InvalidLeafError

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["as_leaf"]

# Exact types: an IntEnum or another subclass means more than its number.
_NUMBERS = (bool, int, float, complex)
_ARRAY_KINDS = frozenset("biufc")


def as_leaf(value: Any, path: Path) -> torch.Tensor | NonTensorData:
    """Return the tensor that `value` becomes, or its static wrapped.

    Tensors stay as they are. Numbers, numeric NumPy arrays and scalars, and
    sequences of numbers become tensors (arrays share memory where they are
    writable). Anything else is a static.

    Raises:
        InvalidLeafError: a list or tuple of numbers is ragged or does not fit a
            dtype, a list holds something else than numbers, or an array is not
            numeric.
    """
    if isinstance(value, (torch.Tensor, NonTensorData)):
        return value
    if type(value) in _NUMBERS or isinstance(value, torch.SymInt):
        return _tensor(value, path)
    is_number = isinstance(value, np.generic) and value.dtype.kind in _ARRAY_KINDS
    if is_number or isinstance(value, np.ndarray):
        return _from_array(np.asanyarray(value), path)
    if isinstance(value, list):
        if _only_numbers(value):
            return _tensor(value, path)
        raise InvalidLeafError(
            "a list of other things than numbers is ambiguous",
            path=path,
            expected="a tensor, a number, a nested mapping, or a static value",
            got=f"a list of {_kinds(value)}",
            fix="NonTensorData(value) keeps the list as one static value; "
            "torch.stack(value) makes one tensor of a list of tensors",
        )
    if type(value) is tuple and value and _only_numbers(value):
        return _tensor(value, path)
    return NonTensorData(value)


def _tensor(value: Any, path: Path) -> torch.Tensor:
    try:
        return torch.tensor(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise InvalidLeafError(
            "the numbers can not become a tensor",
            path=path,
            got=error,
            fix="NonTensorData(value) keeps them as one static value",
        ) from error


def _from_array(array: np.ndarray[Any, Any], path: Path) -> torch.Tensor:
    if array.dtype.kind not in _ARRAY_KINDS or isinstance(array, np.ma.MaskedArray):
        raise InvalidLeafError(
            "an array that is not numeric can not become a tensor",
            path=path,
            expected="an array of numbers or booleans without a mask",
            got=f"{type(array).__name__} of dtype {array.dtype}",
            fix="NonTensorData(value) keeps it as one static value",
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # torch can not map odd strides, and would write through read-only arrays.
    if not array.flags.writeable or any(
        stride < 0 or stride % array.itemsize for stride in array.strides
    ):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise InvalidLeafError(
            "torch has no such dtype",
            path=path,
            got=array.dtype,
            fix="NonTensorData(value) keeps it as one static value",
        ) from error


def _only_numbers(value: Any) -> bool:
    pending = [value]
    seen: set[int] = set()  # a list may contain itself
    while pending:
        item = pending.pop()
        if isinstance(item, (list, tuple)):
            if id(item) not in seen:
                seen.add(id(item))
                pending.extend(item)
        elif type(item) not in _NUMBERS and not isinstance(item, np.generic):
            return False
    return True


def _kinds(value: list[Any]) -> str:
    return ", ".join(sorted({type(item).__name__ for item in value}))
