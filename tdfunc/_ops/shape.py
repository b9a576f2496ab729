"""Operations on the shape of the batch: feature dims are never touched.

`dim` and `dims` count batch dims, negative ones from the last batch dim, and may be
dim names. Nested nodes with more batch dims than their parent keep the extra ones.
Results are views of the leaves wherever torch gives views. Dim names stay with
their dims; new and merged dims have none. The inverse of merging gives the name to the
last of its dims, along which rows follow each other as they did.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import is_tracing
from tdfunc._core.batch import as_names
from tdfunc._core.node import Node, NodeT, make
from tdfunc._core.tree import zip_leaves
from tdfunc._ops.members import renested
from tdfunc.errors import OperandError, ShapeError, TreeIndexError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tdfunc.typing import Path, Size

__all__ = [
    "as_dim",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_to",
    "expand",
    "expand_as",
    "flatten",
    "iterate",
    "moveaxis",
    "movedim",
    "narrow",
    "permute",
    "reshape",
    "squeeze",
    "swapaxes",
    "swapdims",
    "transpose",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
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


def as_dims(td: Node, dims: Any, what: str) -> list[int]:
    """Return one batch dim, or a sequence of different ones, as numbers from 0.

    Raises:
        ShapeError: there is no such batch dim, or one comes twice.
    """
    given = [dims] if isinstance(dims, (int, str)) else list(dims)
    out = [as_dim(td, dim) for dim in given]
    if len(set(out)) < len(out):
        raise ShapeError(
            f"{what} takes a dim once", expected="different dims", got=given
        )
    return out


def as_list(args: tuple[Any, ...]) -> list[Any]:
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
    new = _known_shape(td, as_list(shape))
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
    targets = by_shape(leaves, lambda shape: (*new, *shape[dims:]))
    if is_tracing():
        pairs = zip(leaves, targets, strict=True)
        return tuple([torch.reshape(x, target) for x, target in pairs])
    return tuple(map(torch.reshape, leaves, targets))


def by_shape(leaves: tuple[Any, ...], find: Callable[[torch.Size], Any]) -> list[Any]:
    """Return ``find(leaf.shape)`` for every leaf, found once for equal shapes.

    Leaves often share a shape, and hashing one is cheaper than joining two.
    """
    if is_tracing():
        return [find(x.shape) for x in leaves]
    known: dict[Any, Any] = {}
    out: list[Any] = []
    for leaf in leaves:
        shape = leaf.shape
        try:
            found = known.get(shape)
        except TypeError:  # symbolic sizes have no hash
            out.append(find(shape))
            continue
        if found is None:
            found = known[shape] = find(shape)
        out.append(found)
    return out


def by_rank(ranks: tuple[int, ...], front: Sequence[Any], rest: Any) -> list[Any]:
    """Return for every leaf `front`, and `rest` as often as it has dims behind."""
    wide = {rank: (*front, *(rest,) * rank) for rank in set(ranks)}
    return [wide[rank] for rank in ranks]


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


def view(td: NodeT, *shape: int | Size | torch.dtype) -> NodeT:
    """Return the tree with its rows in another batch shape, as views.

    Or with the bytes of its elements read as another dtype: the last feature dim of
    a leaf becomes longer or shorter if elements become smaller or larger.

    Args:
        td: the tree.
        shape: the new batch size, as ints or one sequence; one may be -1. Or a dtype.

    Returns:
        Views of the leaves; names are dropped. The tree itself if the shape is the
        one that it has. With a dtype batch size and names stay.

    Raises:
        ShapeError: the shape has another number of rows, or torch can not view a
            leaf in it without copying; or a leaf without feature dims has elements
            of another size than the dtype.
        RuntimeError: torch's own, naming the leaf: its bytes are no such elements.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(6, 4)}, 6)
        >>> td.view(2, -1).batch_size, td.view(torch.int16)["x"].shape
        (torch.Size([2, 3]), torch.Size([6, 8]))
    """
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        return _reread(td, shape[0])
    size = td.batch_size
    new = _known_shape(td, as_list(shape))
    if new == size:
        return td
    targets = by_shape(td._leaves, lambda shape: (*new, *shape[len(size) :]))
    try:
        pairs = zip(td._leaves, targets, strict=True)
        leaves = tuple([x.view(*target) for x, target in pairs])
    except RuntimeError as error:
        for path, x in zip(td._schema.paths(), td._leaves, strict=True):
            if not _has_view(x, new, len(size)):
                raise ShapeError(
                    "the leaf has no view of this shape: its rows do not lie in order",
                    path=path,
                    expected=f"strides that fit batch_size={list(new)}",
                    got=f"strides {list(x.stride())} for shape {list(x.shape)}",
                    fix=f"td.reshape({', '.join(map(str, new))})",
                ) from error
        raise
    return _shaped(td, leaves, new)


def _reread(td: NodeT, dtype: torch.dtype) -> NodeT:
    size = td.batch_size
    schema = td._schema

    def one(leaf: torch.Tensor, own: int, path: Path) -> torch.Tensor:
        if not own and leaf.element_size() != dtype.itemsize:
            raise ShapeError(
                "elements of another size would change the batch",
                path=path,
                expected=f"a dtype of {leaf.element_size()} bytes, or a feature dim",
                got=f"{dtype}, of {dtype.itemsize}",
                fix="td.apply(lambda x: x.unsqueeze(-1)).view(dtype)",
            )
        return leaf.view(dtype)

    columns = (td._leaves, schema.leaf_kids(), schema.paths())
    return _shaped(td, zip_leaves(schema, columns, one), size, td._names)


def _has_view(leaf: torch.Tensor, new: torch.Size, dims: int) -> bool:
    try:
        leaf.view((*new, *leaf.shape[dims:]))
    except RuntimeError:
        return False
    return True


def flatten(td: NodeT, start_dim: int | str = 0, end_dim: int | str = -1) -> NodeT:
    """Return the tree with the batch dims from one to another merged into one.

    Args:
        td: the tree.
        start_dim: the first of them.
        end_dim: the last of them.

    Returns:
        Views where torch can give them, copies elsewhere. A tree without batch dims
        becomes one of one row; the tree itself if there is one dim to merge.

    Raises:
        ShapeError: a dim is no batch dim, or the last comes before the first.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2, 3, 4)}, [2, 3]).flatten().batch_size
        torch.Size([6])
    """
    size = td.batch_size
    # No dims flatten to one, so that is what may be named.
    extra = 0 if size else 1
    first, last = as_dim(td, start_dim, extra), as_dim(td, end_dim, extra)
    if first == last:
        return td if size else unsqueeze(td, 0)
    if first > last:
        raise ShapeError(
            "the last dim to flatten comes before the first",
            expected=f"an end_dim of at least {first}",
            got=end_dim,
            fix=f"td.flatten({last}, {first})",
        )
    leaves = tuple([x.flatten(first, last) for x in td._leaves])
    names = td.names
    if names is not None:
        kept = (*names[:first], None, *names[last + 1 :])
        names = as_names(kept, len(kept))
    merged = prod(size[first : last + 1])
    new = torch.Size((*size[:first], merged, *size[last + 1 :]))
    return _shaped(td, leaves, new, names)


def unflatten(td: NodeT, dim: int | str, sizes: Sequence[int]) -> NodeT:
    """Return the tree with one batch dim parted into several.

    Undoes `flatten`.

    Args:
        td: the tree.
        dim: the batch dim.
        sizes: the sizes of the new dims; one may be -1.

    Returns:
        Views. The last of the new dims keeps the name.

    Raises:
        ShapeError: `dim` is no batch dim, or the sizes do not multiply to its size.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(6, 4)}, 6).unflatten(0, (2, -1)).batch_size
        torch.Size([2, 3])
    """
    size = td.batch_size
    at = as_dim(td, dim)
    given = list(sizes)
    holes = [i for i, n in enumerate(given) if n == -1]
    known = prod([n for n in given if n != -1])
    if len(holes) == 1 and known > 0 and size[at] % known == 0:
        given[holes[0]] = size[at] // known
    elif not given or holes or known != size[at] or any([n < 0 for n in given]):
        raise ShapeError(
            f"batch dim {at} can not be parted like this",
            expected=f"sizes with the product {size[at]}, with at most one -1",
            got=list(sizes),
        )
    leaves = tuple([x.unflatten(at, given) for x in td._leaves])
    names = td.names
    if names is not None:
        names = (*names[:at], *(None,) * (len(given) - 1), *names[at:])
    new = torch.Size((*size[:at], *given, *size[at + 1 :]))
    return _shaped(td, leaves, new, names)


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
    out = _shaped(td, leaves, torch.Size([size[i] for i in kept]), names)
    return renested(out) if td._schema.lazy else out


def atleast_1d(td: NodeT) -> NodeT:
    """Return the tree with a batch dim: of size 1 if it has none.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(3)}).atleast_1d().batch_size
        torch.Size([1])
    """
    return _grown(td, max(1 - td.batch_dims, 0), 0)


def atleast_2d(td: NodeT) -> NodeT:
    """Return the tree with two batch dims: new ones of size 1 stand in front.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(3)}, 3).atleast_2d().batch_size
        torch.Size([1, 3])
    """
    return _grown(td, max(2 - td.batch_dims, 0), 0)


def atleast_3d(td: NodeT) -> NodeT:
    """Return the tree with three batch dims, new ones of size 1.

    Where they stand is torch's choice: the first in front, the last behind the
    others.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(3)}, 3).atleast_3d().batch_size
        torch.Size([1, 3, 1])
    """
    dims = td.batch_dims
    return _grown(td, max(2 - dims, 0), int(dims < 3))  # noqa: PLR2004


def _grown(td: NodeT, front: int, back: int) -> NodeT:
    """Return the tree with that many dims of size 1 before and behind the others."""
    size = td.batch_size
    if not front and not back:
        return td
    new = torch.Size((*(1,) * front, *size, *(1,) * back))
    names = td.names
    if names is not None:
        names = (*(None,) * front, *names, *(None,) * back)
    # Dims of size 1 fit any strides: these are views.
    return _shaped(td, _reshaped(td._leaves, new, len(size)), new, names)


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
    order = [as_dim(td, dim) for dim in as_list(dims)]
    count = len(size)
    if sorted(order) != list(range(count)):
        raise ShapeError(
            "permute takes every batch dim once",
            expected=f"an order of {list(range(count))}",
            got=as_list(dims),
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


swapaxes = transpose
swapdims = transpose


def movedim(
    td: NodeT,
    source: int | str | Sequence[int | str],
    destination: int | Sequence[int],
) -> NodeT:
    """Return the tree with some batch dims at other places, the rest in order.

    Args:
        td: the tree.
        source: the dim to move, or several.
        destination: the place of each among the batch dims of the result.

    Raises:
        ShapeError: a dim is no batch dim or comes twice, or there are not as many
            places as dims.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 3, 4)}, [2, 3, 4])
        >>> td.movedim(0, -1).batch_size
        torch.Size([3, 4, 2])
    """
    moved = as_dims(td, source, "movedim")
    places = as_dims(td, destination, "movedim")
    if len(moved) != len(places):
        raise ShapeError(
            "movedim wants a place for every dim",
            expected=f"{len(moved)} places",
            got=destination,
        )
    target = dict(zip(places, moved, strict=True))
    rest = iter([dim for dim in range(td.batch_dims) if dim not in moved])
    order = [
        target[place] if place in target else next(rest)
        for place in range(td.batch_dims)
    ]
    return permute(td, order)


moveaxis = movedim


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
    wanted = as_list(shape)
    new = len(wanted) - len(size)
    fits = new >= 0
    target: list[Any] = []
    if fits:
        full = [1] * new + list(size)
        pairs = zip(wanted, full, range(len(wanted)), strict=True)
        target = [n if w == -1 and i >= new else w for w, n, i in pairs]
        pairs = zip(target, full, strict=True)
        # Not `in`: Dynamo looks for the same symbol, not for an equal size.
        fits = all([w >= 0 and (n == 1 or n == w) for w, n in pairs])  # noqa: PLR1714
    if not fits:
        raise ShapeError(
            f"batch_size={list(size)} does not expand to this",
            expected="at least as many dims, equal where the size is not 1",
            got=wanted,
        )
    if torch.Size(target) == size:
        return td
    shapes = by_rank(td._schema.ranks(), target, -1)
    rows = zip(td._leaves, shapes, strict=True)
    leaves = tuple([x.expand(*wide) for x, wide in rows])
    names = td.names
    if names is not None:
        names = ((None,) * new) + names
    return _shaped(td, leaves, torch.Size(target), names)


broadcast_to = expand


def expand_as(td: NodeT, other: Node | torch.Tensor) -> NodeT:
    """Return the tree expanded to the batch size of another tree.

    Args:
        td: the tree.
        other: a tree, or a tensor of the wanted batch shape.

    Returns:
        Views: rows share memory.

    Raises:
        OperandError: `other` is neither.
        ShapeError: the batch size does not expand to that of `other`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(3, 4)}, 3)
        >>> td.expand_as(torch.zeros(2, 3)).batch_size
        torch.Size([2, 3])
    """
    if not isinstance(other, (Node, torch.Tensor)):
        raise OperandError(
            "there is no shape to expand to",
            expected="a tree or a tensor",
            got=type(other).__name__,
            fix="td.expand(shape) takes a shape",
        )
    return expand(td, other.shape)


def narrow(td: NodeT, dim: int | str, start: int, length: int) -> NodeT:
    """Return `length` rows of the tree along one batch dim, from `start` on.

    Args:
        td: the tree.
        dim: the batch dim.
        start: the first row; a negative one counts from the end.
        length: how many rows.

    Returns:
        Views.

    Raises:
        ShapeError: `dim` is no batch dim.
        TreeIndexError: there are no such rows.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(5)}, 5).narrow(0, 1, 3)["x"]
        tensor([1, 2, 3])
    """
    size = td.batch_size
    at = as_dim(td, dim)
    rows = size[at]
    first = start + rows if start < 0 else start
    if length < 0 or first < 0 or first + length > rows:
        raise TreeIndexError(
            f"batch dim {at} has no such rows",
            expected=f"rows of the {rows} for batch_size={list(size)}",
            got=f"{length} rows from {start} on",
        )
    leaves = tuple([x.narrow(at, first, length) for x in td._leaves])
    new = torch.Size((*size[:at], length, *size[at + 1 :]))
    return _shaped(td, leaves, new, td.names)


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
    trees = tuple([_shaped(td, row, rest, names) for row in rows])
    return tuple(map(renested, trees)) if td._schema.lazy else trees


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
