"""Trees of dims: what `torch.vmap` and `torch.export` take beside a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.batch import as_names
from tdfunc._core.keys import as_path
from tdfunc._core.node import Node, make, missing
from tdfunc._core.tree import refuse_lazy
from tdfunc.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["dynamic_shapes", "in_dims"]


def in_dims(
    td: Node,
    dim: int | str | None = 0,
    overrides: Mapping[Any, int | str | None] | None = None,
) -> Any:
    """Return the tree of dims that `torch.vmap` takes as ``in_dims`` for a tree.

    Dims count batch dims (negative ones from the last batch dim) or are dim names,
    unlike plain ints in ``torch.vmap(..., in_dims=)``, whose negative values count
    each leaf's own dims.

    Args:
        td: the tree that will be mapped over.
        dim: the batch dim to map, None to map nothing.
        overrides: other dims for some entries, by key or path; a node stands for all
            of its leaves.

    Raises:
        MissingKeyError: `overrides` names an entry that is not there.
        ShapeError: a dim is no batch dim.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.ones(3, 2), "w": torch.ones(3, 2)}, 3)
        >>> dims = tdfunc.in_dims(td, 0, {"w": None})
        >>> torch.vmap(lambda t: t["x"] + t["w"].sum(), (dims,))(td).shape
        torch.Size([3, 2])
    """
    size = td.batch_size
    dims: list[Any] = [as_batch_dim(td, dim)] * td._schema.n
    for key, value in (overrides or {}).items():
        path = as_path(key)
        found = td._schema.find(path)
        if found is None:
            raise missing(
                td, path, "td.keys(leaves_only=True) has all that can be named"
            )
        own = as_batch_dim(td, value, found.surplus)
        dims[found.lo : found.hi] = [own] * (found.hi - found.lo)
    return make(td._schema, tuple(dims), td._statics, size, td._names)


def as_batch_dim(td: Node, dim: Any, surplus: int = 0) -> int | None:
    """Return a batch dim, given as an int or by name, as an int >= 0; None stays.

    Raises:
        ShapeError: it is no batch dim.
    """
    if dim is None:
        return None
    count = td.batch_dims + surplus
    if isinstance(dim, str):
        names = td.names or ()
        if dim in names:
            return names.index(dim)
    elif isinstance(dim, int) and not isinstance(dim, bool) and -count <= dim < count:
        return dim + count if dim < 0 else dim
    raise ShapeError(
        f"{dim!r} is no batch dim",
        expected=f"{-count} to {count - 1}, or a dim name, or None"
        if count
        else "None, as the tree has no batch dims",
        got=repr(dim),
    )


def without_dim(tree: Node, dim: int) -> tuple[torch.Size, Any]:
    """Return the batch size and names of a tree without one dim."""
    size, names = tree.batch_size, tree.names
    rest = torch.Size((*size[:dim], *size[dim + 1 :]))
    if names is not None:
        names = as_names((*names[:dim], *names[dim + 1 :]), len(rest))
    return rest, names


def with_dim(
    tree: Node, dim: int, size: int, name: str | None
) -> tuple[torch.Size, tuple[str | None, ...] | None]:
    """Return the batch size and names of a tree with one dim more."""
    old, names = tree.batch_size, tree.names
    new = torch.Size((*old[:dim], size, *old[dim:]))
    if names is None and name is None:
        return new, None
    names = names or (None,) * len(old)
    if name in names:
        name = None
    return new, as_names((*names[:dim], name, *names[dim:]), len(new))


def dynamic_shapes(td: Node, dims: Mapping[int, Any]) -> tuple[dict[int, Any], ...]:
    """Return what `torch.export` takes as dynamic shapes for a tree.

    Args:
        td: the tree that is exported with.
        dims: for a batch dim its `torch.export.Dim` (or ``Dim.AUTO``).

    Returns:
        One dict for every leaf, in the order of the leaves.

    Raises:
        ShapeError: a dim is no batch dim.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.ones(3, 2)}, 3)
        >>> tdfunc.dynamic_shapes(td, {0: "B"})
        ({0: 'B'},)
    """
    refuse_lazy(td, "dynamic_shapes")
    own: dict[int, Any] = {}
    for dim, value in dims.items():
        at = as_batch_dim(td, dim)
        if at is not None:
            own[at] = value
    return tuple([dict(own) for _ in range(td._schema.n)])
