"""Reductions: over whole leaves, over batch dims, or over feature dims.

- ``dim=None`` reduces every leaf to a scalar; the batch size becomes ``[]``;
- ``dim`` an int, a dim name or a sequence of them reduces batch dims;
- ``dim="feature"`` reduces the feature dims; the batch size stays;
- ``reduce=True`` folds all leaves into one tensor.

Dims that are not reduced keep their names.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.batch import as_names
from tdfunc._core.node import Node, NodeT, make
from tdfunc._core.tree import map_leaves, zip_leaves
from tdfunc._ops.shape import as_dim
from tdfunc.errors import OperandError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["all", "any", "mean", "sum"]


def sum(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    dtype: torch.dtype | None = None,
    reduce: bool = False,
) -> Any:
    """Return the sums of the elements of every leaf.

    Args:
        td: the tree.
        dim: what to sum over; see the module docstring.
        keepdim: keep the reduced dims with size 1.
        dtype: dtype to sum in, None for torch's choice.
        reduce: fold the results of all leaves into one tensor, of shape ``[*batch]``
            with ``dim="feature"`` and of shape ``[]`` with ``dim=None``.

    Returns:
        A tree, or one tensor with `reduce`.

    Raises:
        OperandError: `reduce` with batch dims, with `keepdim`, or for a tree without
            leaves.
        ShapeError: `dim` is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3), "y": torch.ones(2)}, 2)
        >>> td.sum()["x"], td.sum(0)["x"].shape, td.sum(reduce=True)
        (tensor(6.), torch.Size([3]), tensor(8.))
    """
    if reduce:
        return _folded(td, dim, keepdim=keepdim, dtype=dtype)
    return _reduced(td, torch.sum, dim, keepdim=keepdim, dtype=dtype)


def mean(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    dtype: torch.dtype | None = None,
    reduce: bool = False,
) -> Any:
    """Return the means of the elements of every leaf.

    Args:
        td: the tree.
        dim: what to average over; see the module docstring.
        keepdim: keep the reduced dims with size 1.
        dtype: dtype to average in, None for that of the leaf; integers need one.
        reduce: fold all leaves into one tensor: the mean over all their elements.

    Returns:
        A tree, or one tensor with `reduce`.

    Raises:
        OperandError: `reduce` with batch dims, with `keepdim`, for a tree without
            leaves, or for integers without `dtype`.
        ShapeError: `dim` is no batch dim.
        RuntimeError: a leaf is integer and there is no `dtype`; torch's error, with
            a note that names the leaf.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, 3.0])}, 2)
        >>> td.mean(0)["x"]
        tensor(2.)
    """
    if not reduce:
        return _reduced(td, torch.mean, dim, keepdim=keepdim, dtype=dtype)
    for path, leaf in zip(td._schema.paths(), td._leaves, strict=True):
        if dtype is None and not (leaf.is_floating_point() or leaf.is_complex()):
            raise OperandError(
                "integers have no mean of their own dtype",
                path=path,
                got=leaf.dtype,
                fix="pass dtype=torch.float32",
            )
    total = _folded(td, dim, keepdim=keepdim, dtype=dtype)
    count = builtins.sum([leaf.numel() for leaf in td._leaves])
    rows = max(td.numel(), 1) if dim == "feature" else 1
    return total / (count // rows)


def all(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> Any:
    """Return whether all elements are true.

    Args:
        td: the tree.
        dim: None for all elements of all leaves; else what to reduce, see the module
            docstring.
        keepdim: keep the reduced dims with size 1.

    Returns:
        One bool tensor of shape ``[]`` without `dim` (true for a tree without leaves),
        so that it can be traced; a tree of booleans with `dim`.

    Raises:
        ShapeError: `dim` is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3)}, 2)
        >>> (td == td).all()
        tensor(True)
    """
    return _truth(td, torch.all, dim, keepdim=keepdim)


def any(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> Any:
    """Return whether any element is true.

    Args:
        td: the tree.
        dim: None for all elements of all leaves; else what to reduce, see the module
            docstring.
        keepdim: keep the reduced dims with size 1.

    Returns:
        One bool tensor of shape ``[]`` without `dim` (false for a tree without
        leaves), so that it can be traced; a tree of booleans with `dim`.

    Raises:
        ShapeError: `dim` is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> (TensorDict({"x": torch.arange(2)}, 2) > 0).any()
        tensor(True)
    """
    return _truth(td, torch.any, dim, keepdim=keepdim)


def _truth(
    td: Node, fn: Callable[..., torch.Tensor], dim: Any, *, keepdim: bool
) -> Any:
    def reduce(leaf: torch.Tensor, *, dtype: None = None, **dims: Any) -> torch.Tensor:
        del dtype
        found = fn(leaf, **dims)
        # torch keeps uint8 here, for history's sake.
        return found.to(torch.bool)

    if dim is not None or keepdim:
        return _reduced(td, reduce, dim, keepdim=keepdim, dtype=None)
    parts = map_leaves(td._schema, td._leaves, reduce)
    if not parts:
        return fn(torch.empty(0, dtype=torch.bool))
    return fn(torch.stack(parts))


def _reduced(
    td: NodeT,
    fn: Callable[..., torch.Tensor],
    dim: Any,
    *,
    keepdim: bool,
    dtype: torch.dtype | None,
) -> NodeT:
    size = td.batch_size
    schema = td._schema
    if dim is None:
        if keepdim:
            every = [range(leaf.dim()) for leaf in td._leaves]
            ones = torch.Size([1] * len(size))
            leaves = _over(td, fn, every, dtype, keepdim=True)
            return make(schema, leaves, td._statics, ones, td._names)
        leaves = map_leaves(schema, td._leaves, lambda x: fn(x, dtype=dtype))
        bare = schema.flattened()
        return make(bare, leaves, td._statics, torch.Size(), None)
    if dim == "feature":
        kept = schema.leaf_kids()
        rows = zip(td._leaves, kept, strict=True)
        dims = [range(leaf.dim() - rank, leaf.dim()) for leaf, rank in rows]
        leaves = _over(td, fn, dims, dtype, keepdim=keepdim)
        kids = kept if keepdim else (0,) * len(kept)
        return make(schema.with_ranks(kids), leaves, td._statics, size, td._names)
    given = [dim] if isinstance(dim, (int, str)) else list(dim)
    gone = sorted({as_dim(td, d) for d in given})
    if len(gone) != len(given):
        raise ShapeError("a dim comes twice", got=given)
    if not gone:
        # To torch, no dims are all dims.
        leaves = _over(td, fn, [range(0)] * len(td._leaves), dtype, keepdim=False)
        return make(schema, leaves, td._statics, size, td._names)
    leaves = map_leaves(
        schema, td._leaves, lambda x: fn(x, dim=gone, keepdim=keepdim, dtype=dtype)
    )
    names = td.names
    if keepdim:
        new = torch.Size([1 if i in gone else n for i, n in enumerate(size)])
    else:
        kept_dims = [i for i in range(len(size)) if i not in gone]
        new = torch.Size([size[i] for i in kept_dims])
        if names is not None:
            names = as_names([names[i] for i in kept_dims], len(kept_dims))
    return make(schema, leaves, td._statics, new, names)


def _over(
    td: Node,
    fn: Callable[..., torch.Tensor],
    dims: list[range],
    dtype: torch.dtype | None,
    *,
    keepdim: bool,
) -> tuple[torch.Tensor, ...]:
    """Return each leaf reduced over its own dims."""

    def one(leaf: torch.Tensor, over: range) -> torch.Tensor:
        if over:
            return fn(leaf, dim=list(over), keepdim=keepdim, dtype=dtype)
        # torch reads an empty list of dims as "all"; a dim of size 1 reduces nothing.
        return fn(leaf.unsqueeze(-1), dim=-1, dtype=dtype)

    return zip_leaves(td._schema, (td._leaves, dims), one)


def _folded(
    td: Node, dim: Any, *, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    """Return the sum over all leaves, and over dims as `sum` says."""
    if keepdim or (dim is not None and dim != "feature"):
        raise OperandError(
            "leaves of different shapes can not be folded into one tensor",
            expected='dim=None or dim="feature" with reduce=True, without keepdim',
            got=f"dim={dim!r}, keepdim={keepdim}",
            fix=f'td.sum("feature", reduce=True).sum({dim!r})',
        )
    if not td._leaves:
        raise OperandError("there is no leaf to reduce", expected="at least one leaf")
    if dim is None:
        parts = map_leaves(td._schema, td._leaves, lambda x: x.sum(dtype=dtype))
        return torch.stack(parts).sum(0)
    # All that is behind the batch of the root, surplus dims of nested nodes included.
    dims = len(td.batch_size)
    behind = [range(dims, leaf.dim()) for leaf in td._leaves]
    parts = _over(td, torch.sum, behind, dtype, keepdim=False)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
