"""What a value becomes when it enters a tree: a tensor, a static, or rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from tdfunc._core.rows import NonTensorStack
from tdfunc._core.statics import NonTensorData
from tdfunc.errors import InvalidLeafError

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["LeafLike", "Unbatched", "as_leaf", "as_rows", "check_own", "unbatched"]

# Exact types: an IntEnum or another subclass means more than its number.
_NUMBERS = (bool, int, float, complex)
_ARRAY_KINDS = frozenset("biufc")


class LeafLike:
    """Base of what stands among the leaves of a tree as a tensor does.

    It has `shape`, `dim`, `device`, `dtype` and `requires_grad`, and answers torch's
    functions and the methods of tensors that it supports.
    """

    __slots__ = ()

    @property
    def shape(self) -> torch.Size:
        """The shape that a tensor in its place has."""
        raise NotImplementedError

    @property
    def requires_grad(self) -> bool:
        """Whether it takes part in autograd."""
        raise NotImplementedError

    def same(self, other: object, *, equal_nan: bool) -> bool:
        """Return whether another stands for equal values."""
        raise NotImplementedError

    @property
    def trees(self) -> tuple[Any, ...]:
        """The trees that it holds."""
        raise NotImplementedError

    @property
    def known_shape(self) -> torch.Size | None:
        """The shape, None while it can not be told."""
        raise NotImplementedError


@final
class Unbatched:
    """A tensor that the batch does not index; made by `unbatched`."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def unbatched(tensor: torch.Tensor) -> Unbatched:
    """Mark a tensor as one that the batch does not index, such as a lookup table.

    As an entry it is kept like a static: indexing, reshaping, stacking and `vmap` pass
    it on whole, arithmetic and gradients leave it out. `to` moves and casts it.
    Reading the entry gives the tensor. What `vmap` maps or `grad` differentiates can
    not leave the transform as one.

    Args:
        tensor: of any shape; kept by reference.

    Raises:
        InvalidLeafError: it is no tensor.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict, unbatched
        >>> td = TensorDict({"x": torch.zeros(3), "grid": unbatched(torch.ones(7))}, 3)
        >>> td[0]["grid"].shape
        torch.Size([7])
    """
    if not isinstance(tensor, torch.Tensor):
        raise InvalidLeafError(
            "only tensors can be unbatched",
            expected="a tensor",
            got=type(tensor).__name__,
            fix="anything else is one value for the whole node as it is",
        )
    return Unbatched(tensor)


def check_own(value: Any, path: Path) -> None:
    """Raise if a value is a container of the package tensordict.

    As a mapping it would lose what its keys do not show, and as a value of any kind it
    would be one static.

    Raises:
        InvalidLeafError: it is one.
    """
    kind = type(value)
    if isinstance(value, (dict, NonTensorData, NonTensorStack, Unbatched)) or kind in (
        torch.Tensor,
        str,
    ):
        return
    is_kind = isinstance(value, (Mapping, torch.Tensor)) and any(
        [base.__module__.partition(".")[0] == "tensordict" for base in kind.__mro__]
    )
    if is_kind or hasattr(kind, "_is_tensorclass"):
        raise InvalidLeafError(
            "a container of tensordict is read by a function of its own",
            path=path or None,
            expected="a mapping, a tree, or another value",
            got=f"{kind.__module__}.{kind.__qualname__}",
            fix="tdfunc.from_any(value)",
        )


def as_leaf(value: Any, path: Path) -> torch.Tensor | NonTensorData | Unbatched:
    """Return the tensor that `value` becomes, or its static wrapped.

    Tensors stay as they are. Numbers, numeric NumPy arrays and scalars, and
    sequences of numbers become tensors (arrays share memory where they are
    writable). Anything else but a list is a static.

    Raises:
        InvalidLeafError: a list or tuple of numbers is ragged or does not fit a
            dtype, a list holds something else than numbers, or an array is not
            numeric.
    """
    if isinstance(value, (torch.Tensor, NonTensorData, Unbatched)):
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
            "a list can not be used here",
            path=path,
            expected="a tensor, a number, or a static value",
            got=f"a list of {_kinds(value)}",
            fix="NonTensorData(value) keeps the list as one static value",
        )
    if type(value) is tuple and value and _only_numbers(value):
        return _tensor(value, path)
    return NonTensorData(value)


def as_rows(
    value: Any, path: Path, dims: int
) -> tuple[list[Any], tuple[int, ...]] | None:
    """Return values row by row and the shape in which they were nested.

    None if `value` means something else than one value for every row.

    Args:
        value: a `NonTensorStack`, a list of other things than numbers, nested or not,
            or an array of texts or objects.
        path: where it is to go.
        dims: how many batch dims there are, the most that the nesting may have.

    Raises:
        InvalidLeafError: there are no batch dims, lists are nested deeper than them
            or of different lengths, or hold tensors, trees or mappings.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU" and value.ndim:
        flat, shape = list(value.reshape(-1).tolist()), value.shape
        got = f"an array of dtype {value.dtype} of shape {list(shape)}"
    elif isinstance(value, NonTensorStack):
        flat, shape = value.flat(), value.shape
        got = f"a NonTensorStack of shape {list(shape)}"
    elif isinstance(value, list) and not _only_numbers(value):
        flat, shape = _unnested(value, dims)
        got = f"a list of {_kinds(value)}"
        _check_rows(value, flat, path)
    else:
        return None
    if len(shape) > dims or not dims:
        raise InvalidLeafError(
            "a list is one value for every row, and there are not enough batch dims",
            path=path,
            expected=f"at most {dims} dims",
            got=got,
            fix="NonTensorData(value) keeps it as one static value; "
            f"batch_size={list(shape) or [len(value)]} makes rows of it",
        )
    return flat, shape


def _unnested(value: list[Any], dims: int) -> tuple[list[Any], tuple[int, ...]]:
    """Return the items of nested lists, opened as long as all are lists alike."""
    level, shape = value, (len(value),)
    while len(shape) < dims and level:
        if not all([type(item) is list for item in level]):
            break
        sizes = {len(item) for item in level}
        if len(sizes) > 1:
            break
        shape = (*shape, sizes.pop())
        level = [inner for item in level for inner in item]
    return list(level), shape


def _check_rows(value: list[Any], flat: list[Any], path: Path) -> None:
    kinds = (list, torch.Tensor, np.ndarray, Mapping, NonTensorData, NonTensorStack)
    for item in flat:
        if isinstance(item, kinds) or hasattr(item, "_schema"):
            raise InvalidLeafError(
                "a list of these is ambiguous",
                path=path,
                expected="texts or other values, one for every row",
                got=f"a list of {_kinds(value)}, with {type(item).__name__} as a row",
                fix="NonTensorData(value) keeps the list as one static value, "
                "NonTensorStack(*value) makes one value per row; "
                "torch.stack(value) makes one tensor of a list of tensors",
            )


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
