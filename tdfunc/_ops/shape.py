"""Operations on the shape of the batch: feature dims are never touched.

`dim` and `dims` count batch dims, negative ones from the last batch dim, and may be
dim names. Nested nodes with more batch dims than their parent keep the extra ones.
Results are views of the leaves wherever torch gives views. Dim names stay with
their dims; new and merged dims have none.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import is_tracing
from tdfunc._core.batch import as_names
from tdfunc._core.node import Node, NodeT, make
from tdfunc.errors import OperandError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tdfunc.typing import Size

__all__ = [
    "as_dim",
    "expand",
    "iterate",
    "permute",
    "reshape",
    "squeeze",
    "transpose",
    "unbind",
    "unsqueeze",
]


def as_dim(td: Node, dim: int | str, extra: int = 0) -> int:
    """Return a batch dim, negative or by name, as a number from 0.

    Args:
        td: the tree.
        dim: a number or a dim name.
        extra: how many dims more than the batch has may be named (1 for a new dim).

    Raises:
        ShapeError: there is no such batch dim.
    """
    dims = td.batch_dims + extra
    if isinstance(dim, str):
        names = td.names or ()
        if dim in names:
            return names.index(dim)
        raise ShapeError(
            f"no batch dim is named {dim!r}",
            expected=f"one of {names}" if names else "a number: the dims have no names",
            fix="td.with_names(names) names them",
        )
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise ShapeError(
            "a dim is a number or a name", expected="an int", got=type(dim).__name__
        )
    if not -dims <= dim < dims:
        raise ShapeError(
            f"dim {dim} is no batch dim",
            expected=f"{-dims} to {dims - 1} for batch_size={list(td.batch_size)}"
            if dims
            else "a tree with batch dims, not batch_size=[]",
            got=dim,
            fix="td.apply(fn, batch_size=...) reaches feature dims",
        )
    return dim + dims if dim < 0 else dim


def _ints(args: tuple[Any, ...]) -> list[Any]:
    """Return ``f(2, 3)`` and ``f([2, 3])`` as the same list."""
    if len(args) == 1 and not isinstance(args[0], (int, str, torch.SymInt)):
        return list(args[0])
    return list(args)


def _shaped(
    td: NodeT, leaves: tuple[Any, ...], size: torch.Size, names: Any = None
) -> NodeT:
    return make(td._schema, leaves, td._statics, size, names)


def reshape(td: NodeT, *shape: int | Size) -> NodeT:
    """Return the tree with its rows in another batch shape.

    Args:
        td: the tree.
        shape: the new batch size, as ints or one sequence; one may be -1.

    Returns:
        Views where torch can give them, copies elsewhere; names are dropped. The
        tree itself if the shape is the one that it has.

    Raises:
        ShapeError: the shape has another number of rows.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(6, 4)}, 6).reshape(2, -1).batch_size
        torch.Size([2, 3])
    """
    size = td.batch_size
    new = _known_shape(td, _ints(shape))
    if new == size:
        return td
    dims = len(size)
    if len(new) == 1 and dims > 1:
        leaves = tuple([x.flatten(0, dims - 1) for x in td._leaves])
    else:
        leaves = _reshaped(td._leaves, new, dims)
    return _shaped(td, leaves, new)


def _reshaped(
    leaves: tuple[Any, ...], new: torch.Size, dims: int
) -> tuple[torch.Tensor, ...]:
    """Reshape the batch dims of every leaf.

    The function takes a tuple at two thirds of what the method costs.
    """
    if is_tracing():
        return tuple([torch.reshape(x, (*new, *x.shape[dims:])) for x in leaves])
    # Leaves often share a shape, and hashing one is cheaper than joining two.
    known: dict[Any, tuple[int, ...]] = {}
    out: list[torch.Tensor] = []
    for leaf in leaves:
        shape = leaf.shape
        try:
            target = known.get(shape)
        except TypeError:  # symbolic sizes have no hash
            out.append(torch.reshape(leaf, (*new, *shape[dims:])))
            continue
        if target is None:
            target = known[shape] = (*new, *shape[dims:])
        out.append(torch.reshape(leaf, target))
    return tuple(out)


def _known_shape(td: Node, shape: list[Any]) -> torch.Size:
    size = td.batch_size
    rows = prod(size)
    holes = [i for i, n in enumerate(shape) if n == -1]
    known = prod([n for n in shape if n != -1])
    if len(holes) == 1 and known > 0 and rows % known == 0:
        shape = [*shape]
        shape[holes[0]] = rows // known
    elif holes or known != rows or any([n < 0 for n in shape]):
        raise ShapeError(
            f"batch_size={list(size)} can not be reshaped",
            expected=f"a shape of {rows} rows, with at most one -1",
            got=list(shape),
        )
    return torch.Size(shape)


def unsqueeze(td: NodeT, dim: int) -> NodeT:
    """Return the tree with a new batch dim of size 1 at `dim`.

    Args:
        td: the tree.
        dim: where the new dim will be, from -(n+1) to n for n batch dims.

    Raises:
        ShapeError: there is no such place.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(3, 4)}, 3).unsqueeze(-1)["x"].shape
        torch.Size([3, 1, 4])
    """
    size = td.batch_size
    at = as_dim(td, dim, extra=1)
    leaves = tuple([x.unsqueeze(at) for x in td._leaves])
    names = td.names
    if names is not None:
        names = (*names[:at], None, *names[at:])
    return _shaped(td, leaves, torch.Size((*size[:at], 1, *size[at:])), names)


def squeeze(td: NodeT, dim: int | str | None = None) -> NodeT:
    """Return the tree without batch dims of size 1.

    Args:
        td: the tree.
        dim: the dim to drop; it stays if its size is not 1. None drops all.

    Raises:
        ShapeError: `dim` is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(1, 3, 1)}, [1, 3]).squeeze()["x"].shape
        torch.Size([3, 1])
    """
    size = td.batch_size
    given = range(len(size)) if dim is None else [as_dim(td, dim)]
    gone = [i for i in given if size[i] == 1]
    if not gone:
        return td
    kept = [i for i in range(len(size)) if i not in gone]
    leaves = td._leaves
    for i in reversed(gone):
        leaves = tuple([x.squeeze(i) for x in leaves])
    names = td.names
    if names is not None:
        names = as_names([names[i] for i in kept], len(kept))
    return _shaped(td, leaves, torch.Size([size[i] for i in kept]), names)


def permute(td: NodeT, *dims: int | str | Sequence[int | str]) -> NodeT:
    """Return the tree with its batch dims in another order.

    Args:
        td: the tree.
        dims: every batch dim once, as arguments or one sequence.

    Raises:
        ShapeError: a dim is no batch dim, is missing, or comes twice.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 3, 5)}, [2, 3])
        >>> td.permute(1, 0)["x"].shape
        torch.Size([3, 2, 5])
    """
    size = td.batch_size
    order = [as_dim(td, dim) for dim in _ints(dims)]
    count = len(size)
    if sorted(order) != list(range(count)):
        raise ShapeError(
            "permute takes every batch dim once",
            expected=f"an order of {list(range(count))}",
            got=_ints(dims),
        )
    if order == list(range(count)):
        return td
    moved = [i for i, dim in enumerate(order) if dim != i]
    if len(moved) == 2:  # noqa: PLR2004 - two dims exchanged
        return transpose(td, *moved)
    ranks = td._schema.ranks()
    orders = {r: (*order, *range(count, count + r)) for r in set(ranks)}
    leaves = tuple(map(torch.permute, td._leaves, [orders[r] for r in ranks]))
    names = td.names
    if names is not None:
        names = tuple([names[i] for i in order])
    return _shaped(td, leaves, torch.Size([size[i] for i in order]), names)


def transpose(td: NodeT, dim0: int | str, dim1: int | str) -> NodeT:
    """Return the tree with two batch dims exchanged.

    Raises:
        ShapeError: a dim is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 3, 5)}, [2, 3])
        >>> td.transpose(0, -1).batch_size
        torch.Size([3, 2])
    """
    size = td.batch_size
    i, j = as_dim(td, dim0), as_dim(td, dim1)
    if i == j:
        return td
    leaves = tuple([x.transpose(i, j) for x in td._leaves])
    order = list(range(len(size)))
    order[i], order[j] = j, i
    names = td.names
    if names is not None:
        names = tuple([names[k] for k in order])
    return _shaped(td, leaves, torch.Size([size[k] for k in order]), names)


def expand(td: NodeT, *shape: int | Size) -> NodeT:
    """Return the tree with batch dims of size 1, and new dims in front, repeated.

    Args:
        td: the tree.
        shape: the new batch size, as ints or one sequence; -1 keeps a dim.

    Returns:
        Views: rows share memory.

    Raises:
        ShapeError: the batch size does not expand to `shape`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(3, 4)}, 3).expand(2, 3)["x"].shape
        torch.Size([2, 3, 4])
    """
    size = td.batch_size
    wanted = _ints(shape)
    new = len(wanted) - len(size)
    fits = new >= 0
    target: list[Any] = []
    if fits:
        full = [1] * new + list(size)
        pairs = zip(wanted, full, range(len(wanted)), strict=True)
        target = [n if w == -1 and i >= new else w for w, n, i in pairs]
        pairs = zip(target, full, strict=True)
        fits = all([w >= 0 and (n in (1, w)) for w, n in pairs])
    if not fits:
        raise ShapeError(
            f"batch_size={list(size)} does not expand to this",
            expected="at least as many dims, equal where the size is not 1",
            got=wanted,
        )
    if torch.Size(target) == size:
        return td
    ranks = td._schema.ranks()
    wide = {rank: (*target, *(-1,) * rank) for rank in set(ranks)}
    rows = zip(td._leaves, ranks, strict=True)
    leaves = tuple([x.expand(*wide[rank]) for x, rank in rows])
    names = td.names
    if names is not None:
        names = ((None,) * new) + names
    return _shaped(td, leaves, torch.Size(target), names)


def unbind(td: NodeT, dim: int | str = 0) -> tuple[NodeT, ...]:
    """Return the trees along one batch dim, as views.

    Args:
        td: the tree.
        dim: the batch dim.

    Raises:
        ShapeError: `dim` is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> a, b = TensorDict({"x": torch.arange(2)}, 2).unbind()
        >>> b["x"]
        tensor(1)
    """
    size = td.batch_size
    at = as_dim(td, dim)
    rest = torch.Size((*size[:at], *size[at + 1 :]))
    names = td.names
    if names is not None:
        names = as_names((*names[:at], *names[at + 1 :]), len(rest))
    if not td._schema.n:
        return tuple([_shaped(td, (), rest, names) for _ in range(size[at])])
    rows = zip(*[x.unbind(at) for x in td._leaves], strict=True)
    return tuple([_shaped(td, row, rest, names) for row in rows])


def iterate(td: NodeT) -> Iterator[NodeT]:
    """Iterate over the first batch dim, as ``for row in td``.

    Raises:
        OperandError: there is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> [row["x"].item() for row in TensorDict({"x": torch.arange(2)}, 2)]
        [0, 1]
    """
    if not td.batch_size:
        raise OperandError(
            "a tree without batch dims can not be iterated over",
            expected="at least one batch dim",
            got="batch_size=[]",
            fix="td.keys(), td.values() or td.items() iterate over its entries",
        )
    return iter(unbind(td, 0))
