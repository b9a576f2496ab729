"""Batch sizes: what a user may write, and the rank rule on a node.

`settle` is where a node that a pytree function rebuilt learns its batch size.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdfunc._core._torch import is_tracing
from tdfunc._core.leaf import LeafLike
from tdfunc.errors import BatchSizeError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc._core.schema import Schema
    from tdfunc.typing import DimNames, Path

__all__ = [
    "as_constants",
    "as_device",
    "as_names",
    "as_size",
    "misfit",
    "refit",
    "settle",
]


_SEQUENCES = (list, tuple, torch.Size)


def as_size(value: Any, name: str = "batch_size") -> torch.Size:
    """Return an int or a sequence of ints as a `torch.Size`.

    Raises:
        OptionError: it is something else, or a size is negative.
    """
    kind = type(value)
    if kind not in _SEQUENCES and isinstance(value, (int, torch.SymInt, np.integer)):
        value = (value,) if kind is not bool else value
    try:
        size = value if kind is torch.Size else torch.Size(value)
    except TypeError:
        raise OptionError(
            f"{name} is not a size",
            expected="an int or a sequence of ints",
            got=repr(value),
        ) from None
    for dim in size:
        if type(dim) is not int and not isinstance(dim, torch.SymInt):
            # Numbers of NumPy pass through torch.Size as they are.
            return as_size([index(n) for n in size], name)
        if dim < 0:
            raise OptionError(
                f"{name} has a negative dim", expected=">= 0", got=list(size)
            )
    return size


def as_device(value: Any) -> torch.device | None:
    """Return a device, or None for None.

    Raises:
        OptionError: torch knows no such device.
    """
    if value is None or isinstance(value, torch.device):
        return value
    try:
        return torch.device(value)
    except (TypeError, RuntimeError) as error:
        raise OptionError(
            "device is no device",
            expected="a torch.device, or what torch.device takes",
            got=repr(value),
        ) from error


def as_names(names: DimNames | None, dims: int) -> tuple[str | None, ...] | None:
    """Return dim names as a tuple, or None when no dim has one.

    Raises:
        OptionError: the number of names is not `dims`, a name is neither a string
            nor None, or two dims have the same name.
    """
    if names is None:
        return None
    given = (names,) if isinstance(names, str) else tuple(names)
    if len(given) != dims:
        raise OptionError(
            "the names do not fit the batch dims",
            expected=f"{dims} names, one (or None) for every batch dim",
            got=list(given),
            fix=f"names={[None] * dims} leaves all dims unnamed",
        )
    if any([n is not None and not (isinstance(n, str) and n) for n in given]):
        raise OptionError(
            "a dim name is no name", expected="non-empty strings or None", got=given
        )
    used = [n for n in given if n is not None]
    if len(set(used)) < len(used):
        raise OptionError("two dims have the same name", got=list(given))
    return given if used else None


def misfit(path: Path, shape: Sequence[int], batch_size: torch.Size) -> BatchSizeError:
    """Return the error for a leaf that does not start with the batch size."""
    shape = tuple(shape)
    nb = 0
    while nb < len(shape) and nb < len(batch_size) and shape[nb] == batch_size[nb]:
        nb += 1
    if shape:
        fix = f"batch_size={list(shape[:nb])} fits this leaf"
    else:
        fix = "expand the value to the batch size: torch.full(batch_size, value)"
    return BatchSizeError(
        "the leaf does not start with the batch size of its node",
        path=path,
        expected=f"a shape that starts with {list(batch_size)}",
        got=f"shape {list(shape)}",
        fix=fix,
    )


def settle(schema: Schema, leaves: tuple[Any, ...]) -> tuple[Schema, torch.Size]:
    """Return the true schema and batch size of leaves that a transform made.

    The fast path, taken when every leaf changed by the same number of dims, returns
    `schema` itself.
    """
    size = None if schema.extra else _even_size(schema.ranks(), leaves)
    if size is not None:
        return schema, size
    shapes = [_shape_of(leaf) for leaf in leaves]
    for shape in shapes:
        if shape is not None:
            true, batch = schema.settled(as_constants(shapes))
            return true, shape[:batch]
    return schema, torch.Size()  # ints or Nones: what vmap makes of in_dims


def _shape_of(leaf: Any) -> torch.Size | None:
    if isinstance(leaf, LeafLike):
        return leaf.known_shape
    return leaf.shape if isinstance(leaf, torch.Tensor) else None


def _even_size(ranks: tuple[int, ...], leaves: tuple[Any, ...]) -> torch.Size | None:
    """Return the batch size if every leaf is a tensor with as many dims before it."""
    size: torch.Size | None = None
    dims = 0
    for leaf, rank in zip(leaves, ranks, strict=True):
        if not isinstance(leaf, torch.Tensor):
            return None
        shape = leaf.shape
        if size is None:
            dims = len(shape) - rank
            if dims < 0:
                return None
            size = shape[:dims]
        elif len(shape) - rank != dims or (
            # Slicing a torch.Size costs more than all else here.
            dims and (shape[0] != size[0] or (dims > 1 and shape[:dims] != size))
        ):
            return None
    return size


def refit(schema: Schema, leaves: tuple[torch.Tensor, ...], dims: int) -> Schema:
    """Return the schema of leaves of other ranks with `dims` batch dims in front."""
    return schema.settled(as_constants([leaf.shape for leaf in leaves]), dims)[0]


def as_constants(shapes: list[Any]) -> tuple[tuple[int, ...] | None, ...]:
    """Return shapes that `Schema.settled` can take.

    While compiling, sizes are symbolic and the schema takes constants only. All it
    needs to know is which sizes are equal at the same position, so each size is
    replaced by a number that says so.
    """
    if not is_tracing():
        return tuple([None if shape is None else tuple(shape) for shape in shapes])
    seen: list[list[Any]] = []
    return tuple(
        [None if shape is None else _numbered(shape, seen) for shape in shapes]
    )


def _numbered(shape: Any, seen: list[list[Any]]) -> tuple[int, ...]:
    row: list[int] = []
    for at, size in enumerate(shape):
        if at == len(seen):
            seen.append([])
        number = next((i for i, old in enumerate(seen[at]) if size == old), -1)
        if number < 0:
            number = len(seen[at])
            seen[at].append(size)
        row.append(number)
    return tuple(row)
