"""Take rows apart, repeat, move, pick and exchange them, along batch dims.

`dim` and `dims` count batch dims, negative ones from the last batch dim, and may be
dim names. Feature dims are never touched, and nested nodes with more batch dims than
their parent keep the extra ones. Dims keep their names; what is new has none.

A condition or mask aligns with the *batch* dims, as if the tree were one tensor of
that shape, or is a tree of booleans with the same entries.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdfunc._core._torch import inside_transform, is_compiling
from tdfunc._core.leaf import as_leaf
from tdfunc._core.mismatch import check_same_entries
from tdfunc._core.node import Node, NodeT, make
from tdfunc._core.schema import STATIC
from tdfunc._core.tree import (
    around_lazy,
    around_rows,
    feature_views,
    map_leaves,
    put_rows,
    uncoded,
    with_absent,
    without_rows,
    zip_leaves,
)
from tdfunc._ops.entries import exclude
from tdfunc._ops.index import at_index
from tdfunc._ops.join import aligned, check_unbatched
from tdfunc._ops.pointwise import Numbers, as_lazy, padded
from tdfunc._ops.shape import (
    as_dim,
    as_dims,
    as_list,
    by_rank,
    by_shape,
    flatten,
    reshape,
    transpose,
)
from tdfunc.errors import OperandError, ShapeError, TreeIndexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tdfunc._core.schema import Schema

__all__ = [
    "chunk",
    "flip",
    "fliplr",
    "flipud",
    "gather",
    "index_select",
    "masked_fill",
    "masked_select",
    "pad",
    "repeat",
    "repeat_interleave",
    "roll",
    "rot90",
    "split",
    "take",
    "tensor_split",
    "tile",
    "where",
]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _resized(size: torch.Size, at: int, rows: Any) -> torch.Size:
    return torch.Size((*size[:at], rows, *size[at + 1 :]))


# Apart


def split(
    td: NodeT, split_size_or_sections: int | Sequence[int], dim: int | str = 0
) -> tuple[NodeT, ...]:
    """Return the tree cut into pieces along one batch dim.

    ``tdfunc.cat(td.split(n, dim), dim)`` is `td`.

    Args:
        td: the tree.
        split_size_or_sections: the rows of every piece, the last may have fewer; or
            the rows of each, with the size of the dim as their sum.
        dim: the batch dim.

    Returns:
        Views.

    Raises:
        ShapeError: `dim` is no batch dim, or the sizes do not make up its size.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(5, 3)}, 5)
        >>> [len(piece) for piece in td.split(2)], len(td.split([1, 4])[1])
        ([2, 2, 1], 4)
    """
    size = td.batch_size
    at = as_dim(td, dim)
    rows = size[at]
    if isinstance(split_size_or_sections, (int, torch.SymInt)):
        return _cut(td, at, _even(rows, split_size_or_sections))
    lengths = list(split_size_or_sections)
    if sum(lengths) != rows or any([n < 0 for n in lengths]):
        raise ShapeError(
            f"the sections do not make up batch dim {at}",
            expected=f"sizes with the sum {rows}",
            got=f"{lengths}, with the sum {sum(lengths)}",
            fix=f"td.tensor_split(indices, {at}) cuts at indices",
        )
    return _cut(td, at, lengths)


def _even(rows: Any, step: Any) -> list[Any]:
    """Return the lengths of pieces of `step` rows; no rows make one piece."""
    if step <= 0 and (step or rows):
        raise ShapeError(
            "pieces have at least one row", expected="a size of 1 or more", got=step
        )
    if not rows:
        return [0]
    count = -(-rows // step)
    return [step] * (count - 1) + [rows - step * (count - 1)]


def chunk(td: NodeT, chunks: int, dim: int | str = 0) -> tuple[NodeT, ...]:
    """Return the tree cut into at most `chunks` pieces of one size, the last smaller.

    ``tdfunc.cat(td.chunk(n, dim), dim)`` is `td`.

    Args:
        td: the tree.
        chunks: how many pieces; torch's rule makes fewer of some sizes.
        dim: the batch dim.

    Returns:
        Views.

    Raises:
        ShapeError: `dim` is no batch dim, or `chunks` is not positive.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(5, 3)}, 5)
        >>> [len(piece) for piece in td.chunk(4)]
        [2, 2, 1]
    """
    size = td.batch_size
    at = as_dim(td, dim)
    rows = size[at]
    _check_count(chunks)
    lengths = _even(rows, -(-rows // chunks)) if rows else [0] * chunks
    return _cut(td, at, lengths)


def tensor_split(
    td: NodeT,
    indices_or_sections: int | Sequence[int] | torch.Tensor,
    dim: int | str = 0,
) -> tuple[NodeT, ...]:
    """Return the tree cut at indices, or into pieces as equal as possible.

    Args:
        td: the tree.
        indices_or_sections: where to cut, as ``td[i:j]`` would; or how many pieces,
            the first of them one row longer where they can not be equal.
        dim: the batch dim.

    Returns:
        Views.

    Raises:
        ShapeError: `dim` is no batch dim, or the number of pieces is not positive.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.arange(5)}, 5)
        >>> [len(piece) for piece in td.tensor_split(2)], td.tensor_split([1])[0]["x"]
        ([3, 2], tensor([0]))
    """
    size = td.batch_size
    at = as_dim(td, dim)
    rows = size[at]
    given = indices_or_sections
    if isinstance(given, torch.Tensor):
        given = given.tolist()
    if isinstance(given, (int, torch.SymInt)):
        _check_count(given)
        more = rows % given
        lengths = [rows // given + 1] * more + [rows // given] * (given - more)
        return _cut(td, at, lengths)
    indices = list(given)
    # Indices that do not rise make pieces that overlap.
    ends = [min(max(i + rows if i < 0 else i, 0), rows) for i in indices]
    lengths = [max(end - start, 0) for start, end in pairwise([0, *ends, rows])]
    if all([start <= end for start, end in pairwise(ends)]):
        return _cut(td, at, lengths)
    return _assembled(td, at, lengths, torch.tensor_split, indices)


def _check_count(count: int) -> None:
    if count <= 0:
        raise ShapeError(
            "a tree is cut into at least one piece",
            expected="a number of 1 or more",
            got=count,
        )


def _cut(td: NodeT, at: int, lengths: list[Any]) -> tuple[NodeT, ...]:
    return _assembled(td, at, lengths, torch.split_with_sizes, lengths)


def _assembled(
    td: NodeT, at: int, lengths: list[Any], fn: Callable[..., Any], how: list[Any]
) -> tuple[NodeT, ...]:
    """Return the trees of the pieces that ``fn(leaf, how, at)`` makes."""
    size = td.batch_size
    schema, statics, names = td._schema, td._statics, td.names
    sizes = [_resized(size, at, rows) for rows in lengths]
    if not schema.n:
        return tuple([make(schema, (), statics, own, names) for own in sizes])
    rows = zip(*map_leaves(schema, td._leaves, fn, how, at), strict=True)
    return tuple(
        [
            make(schema, row, statics, own, names)
            for row, own in zip(rows, sizes, strict=True)
        ]
    )


# Repeated and moved


def repeat(td: NodeT, *repeats: int | Sequence[int]) -> NodeT:
    """Return the rows of the tree several times, one number for every batch dim.

    Args:
        td: the tree.
        repeats: how often, as ints or one sequence.

    Returns:
        Copies. `expand` gives views of dims of size 1.

    Raises:
        ShapeError: there is not one number for every batch dim, or one is negative.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(2)}, 2).repeat(2)["x"]
        tensor([0, 1, 0, 1])
    """
    counts = as_list(repeats)
    dims = td.batch_dims
    if len(counts) != dims:
        raise ShapeError(
            "repeat takes a number for every batch dim",
            expected=f"{dims} numbers for batch_size={list(td.batch_size)}",
            got=counts,
            fix="td.tile(counts) takes fewer or more",
        )
    return tile(td, counts)


def tile(td: NodeT, *dims: int | Sequence[int]) -> NodeT:
    """Return the rows of the tree several times, the last number for the last dim.

    Args:
        td: the tree.
        dims: how often, as ints or one sequence. Batch dims without a number stay;
            more numbers than batch dims make new dims in front.

    Returns:
        Copies.

    Raises:
        ShapeError: a number is negative.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 3, 4)}, [2, 3])
        >>> td.tile(2).batch_size, td.tile(5, 1, 2).batch_size
        (torch.Size([2, 6]), torch.Size([5, 2, 6]))
    """
    size = td.batch_size
    counts = as_list(dims)
    if any([n < 0 for n in counts]):
        raise ShapeError(
            "rows are repeated a number of times", expected=">= 0", got=counts
        )
    counts = [1] * (len(size) - len(counts)) + counts
    new = len(counts) - len(size)
    schema = td._schema
    wide = by_rank(schema.ranks(), counts, 1)
    leaves = zip_leaves(schema, (td._leaves, wide), _repeated)
    names = td.names
    if names is not None:
        names = ((None,) * new) + names
    full = [1] * new + list(size)
    sizes = torch.Size([n * count for n, count in zip(full, counts, strict=True)])
    return make(schema, leaves, td._statics, sizes, names)


def _repeated(leaf: torch.Tensor, counts: Any) -> torch.Tensor:
    return leaf.repeat(counts)


def repeat_interleave(
    td: NodeT,
    repeats: int | torch.Tensor,
    dim: int | str | None = None,
    *,
    output_size: int | None = None,
) -> NodeT:
    """Return every row of the tree several times in a row.

    Args:
        td: the tree.
        repeats: how often; or a tensor of ints, one for all rows or one for each.
        dim: the batch dim; None flattens the batch first.
        output_size: the sum of a tensor of repeats where it is known: needed to
            compile, and saves waiting for a GPU.

    Returns:
        Copies.

    Raises:
        OperandError: `repeats` is neither an int nor a tensor of ints.
        ShapeError: `dim` is no batch dim, `repeats` has another number of rows or is
            negative, or `output_size` is not what they make.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.arange(2)}, 2)
        >>> td.repeat_interleave(2)["x"].tolist()
        [0, 0, 1, 1]
        >>> td.repeat_interleave(torch.tensor([3, 1]), 0)["x"].tolist()
        [0, 0, 0, 1]
    """
    if dim is None:
        td, dim = flatten(td), 0
    size = td.batch_size
    at = as_dim(td, dim)
    rows = size[at]
    if isinstance(repeats, (int, torch.SymInt)):
        if repeats < 0 or (output_size is not None and output_size != rows * repeats):
            raise _bad_repeats(repeats, rows, output_size)
        schema = td._schema
        leaves = map_leaves(schema, td._leaves, torch.repeat_interleave, repeats, at)
        new = _resized(size, at, rows * repeats)
        return make(schema, leaves, td._statics, new, td.names)
    repeats = _integers(repeats, "repeats")
    wanted = torch.Size((rows,))
    if _broadcast(wanted, repeats.shape) != wanted:
        raise _bad_repeats(list(repeats.shape), rows, output_size)
    try:
        # The search for rows once for the whole tree instead of for every leaf.
        index = torch.repeat_interleave(repeats.expand(rows), output_size=output_size)
    except RuntimeError as error:
        if is_compiling() or inside_transform():
            raise
        raise _bad_repeats(repeats.tolist(), rows, output_size) from error
    return index_select(td, at, index)


def _bad_repeats(got: Any, rows: Any, output_size: Any) -> ShapeError:
    total = "" if output_size is None else f", {output_size} rows in all"
    return ShapeError(
        "the rows can not be repeated like this",
        expected=f"one number, or {rows} numbers, that are not negative{total}",
        got=got,
    )


def roll(
    td: NodeT,
    shifts: int | Sequence[int],
    dims: int | str | Sequence[int | str] | None = None,
) -> NodeT:
    """Return the tree with its rows moved along batch dims, the last becoming first.

    Args:
        td: the tree.
        shifts: by how many places, for each of `dims`.
        dims: the batch dims; None moves along the flattened batch.

    Returns:
        Copies.

    Raises:
        ShapeError: a dim is no batch dim, or there are not as many shifts as dims.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(3)}, 3).roll(1, 0)["x"]
        tensor([2, 0, 1])
    """
    size, names = td.batch_size, td.names
    steps = [shifts] if isinstance(shifts, (int, torch.SymInt)) else list(shifts)
    if dims is None:
        places, td = [0], flatten(td)
    else:
        several = [dims] if isinstance(dims, (int, str)) else list(dims)
        places = [as_dim(td, dim) for dim in several]
    if len(steps) != len(places) or not steps:
        raise ShapeError(
            "roll takes a shift for every dim",
            expected=f"{len(places)} shifts" if places else "at least one dim",
            got=steps,
        )
    schema = td._schema
    leaves = map_leaves(schema, td._leaves, torch.roll, steps, places)
    rolled = make(schema, leaves, td._statics, td.batch_size, None)
    rolled = reshape(rolled, size)
    return make(rolled._schema, rolled._leaves, rolled._statics, size, names)


def flip(td: NodeT, *dims: int | str | Sequence[int | str]) -> NodeT:
    """Return the tree with its rows in reverse order along batch dims.

    Args:
        td: the tree.
        dims: the batch dims, as arguments or one sequence.

    Returns:
        Copies.

    Raises:
        ShapeError: a dim is no batch dim, or comes twice.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(3)}, 3).flip(0)["x"]
        tensor([2, 1, 0])
    """
    size = td.batch_size
    places = as_dims(td, as_list(dims), "flip")
    schema = td._schema
    leaves = map_leaves(schema, td._leaves, torch.flip, places)
    return make(schema, leaves, td._statics, size, td.names)


def flipud(td: NodeT) -> NodeT:
    """Return the tree with its rows in reverse order along the first batch dim.

    Raises:
        ShapeError: there is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(3)}, 3).flipud()["x"]
        tensor([2, 1, 0])
    """
    return flip(td, 0)


def fliplr(td: NodeT) -> NodeT:
    """Return the tree with its rows in reverse order along the second batch dim.

    Raises:
        ShapeError: there are fewer than two batch dims.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([[0, 1]])}, [1, 2]).fliplr()["x"]
        tensor([[1, 0]])
    """
    return flip(td, 1)


def rot90(td: NodeT, k: int = 1, dims: Sequence[int | str] = (0, 1)) -> NodeT:
    """Return the tree with its rows turned by quarters in a plane of batch dims.

    One quarter turns the first of `dims` towards the second.

    Args:
        td: the tree.
        k: how many quarters.
        dims: the two batch dims of the plane.

    Returns:
        Copies, or the tree itself for no turn. Names turn with their dims.

    Raises:
        ShapeError: `dims` are not two different batch dims.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[0, 1], [2, 3]])}, [2, 2])
        >>> td.rot90()["x"].tolist()
        [[1, 3], [0, 2]]
    """
    places = as_dims(td, dims, "rot90")
    if len(places) != 2:  # noqa: PLR2004 - a plane
        raise ShapeError("rot90 turns a plane", expected="two dims", got=dims)
    first, second = places
    quarters = k % 4
    if quarters == 1:
        return transpose(flip(td, second), first, second)
    if quarters == 2:  # noqa: PLR2004
        return flip(td, first, second)
    return flip(transpose(td, first, second), second) if quarters else td


def pad(td: NodeT, pad: Sequence[int], value: float = 0) -> NodeT:
    """Return the tree with rows of one value added at the ends of batch dims.

    Args:
        td: the tree.
        pad: rows before and after, for the first batch dim, then for the next;
            dims without a pair stay. Negative numbers take rows away. The order is
            that of the dims: `torch.nn.functional.pad` begins with the last one.
        value: what the new rows hold; of an entry with one value per row, None.

    Returns:
        Copies. Statics stay as they are: they have no rows.

    Raises:
        ShapeError: the numbers are no pairs, there are more pairs than batch dims,
            or more rows are taken away than there are.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3)}, 2)
        >>> td.pad((1, 2), value=7)["x"][:, 0]
        tensor([7., 1., 1., 7., 7.])
    """
    size = td.batch_size
    widths = list(pad)
    dims = len(size)
    before, after = widths[::2], widths[1::2]
    fits = len(before) == len(after) and len(before) <= dims
    new: list[Any] = []
    if fits:
        rest = dims - len(before)
        before, after = before + [0] * rest, after + [0] * rest
        new = [n + b + a for n, b, a in zip(size, before, after, strict=True)]
        # Both ends are cut one after the other.
        cuts = zip(size, before, after, strict=True)
        fits = all([n + b >= 0 and n + a >= 0 and n + b + a >= 0 for n, b, a in cuts])
    if not fits:
        raise ShapeError(
            "the batch can not be padded like this",
            expected=f"pairs of numbers, before and after, for at most {dims} dims "
            f"of batch_size={list(size)}",
            got=widths,
        )
    pairs = list(zip(before, after, strict=True))
    ends = [n for pair in reversed(pairs) for n in pair]
    fills: dict[int, int] = {}
    if td._schema.rows and any([n > 0 for n in ends]):
        td, fills = with_absent(td)
    schema = td._schema
    ranks = schema.ranks()
    wide = {rank: [0] * (2 * rank) + ends for rank in set(ranks)}
    values: list[Any] = [fills.get(slot, value) for slot in range(schema.n)]
    columns = (td._leaves, [wide[rank] for rank in ranks], values)
    leaves = zip_leaves(schema, columns, torch.constant_pad_nd)
    return make(schema, leaves, td._statics, torch.Size(new), td.names)


# Picked


def gather(td: NodeT, dim: int | str, index: torch.Tensor) -> NodeT:
    """Return for every place of `index` the row that it names along one batch dim.

    The tree is taken for one tensor of the batch shape, as in `torch.gather`:
    ``out[i, j] = td[index[i, j], j]`` for ``dim=0``. Whole rows are gathered.

    Args:
        td: the tree.
        dim: the batch dim.
        index: ints, with as many dims as the batch, and no more places than the
            batch except along `dim`.

    Returns:
        Copies, with the shape of `index` as batch size.

    Raises:
        OperandError: `index` is no tensor of ints.
        ShapeError: `dim` is no batch dim, or `index` has another number of dims or
            too many places.
        TreeIndexError: `index` names a row that is not there.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[0, 1, 2], [3, 4, 5]])}, [2, 3])
        >>> td.gather(1, torch.tensor([[2], [0]]))["x"].tolist()
        [[2], [3]]
    """
    size = td.batch_size
    at = as_dim(td, dim)
    index = _integers(index, "an index")
    new, dims = index.shape, len(size)
    if len(new) != dims or any([new[i] > size[i] for i in range(dims) if i != at]):
        raise ShapeError(
            "the index does not fit the batch",
            expected=f"{dims} dims, not larger than {list(size)} except at dim {at}",
            got=f"shape {list(new)}",
        )

    def widened(shape: torch.Size) -> torch.Tensor:
        ones = (1,) * (len(shape) - dims)
        return index.reshape((*new, *ones)).expand((*new, *shape[dims:]))

    wide = by_shape(td._leaves, widened)
    leaves = _picked(td, at, index, torch.gather, wide)
    return make(td._schema, leaves, td._statics, new, td.names)


def index_select(td: NodeT, dim: int | str, index: torch.Tensor) -> NodeT:
    """Return the rows at some places along one batch dim.

    Args:
        td: the tree.
        dim: the batch dim.
        index: the places, ints of shape ``[n]`` or ``[]``; none is negative.

    Returns:
        Copies, with the size n at `dim`.

    Raises:
        OperandError: `index` is no tensor of ints.
        ShapeError: `dim` is no batch dim, or `index` has more than one dim.
        TreeIndexError: `index` names a row that is not there.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.arange(3)}, 3)
        >>> td.index_select(0, torch.tensor([2, 0]))["x"]
        tensor([2, 0])
    """
    size = td.batch_size
    at = as_dim(td, dim)
    index = _integers(index, "an index")
    if index.dim() > 1:
        raise ShapeError(
            "index_select takes a list of rows",
            expected="at most one dim",
            got=f"shape {list(index.shape)}",
            fix="td.take(index) takes any shape",
        )
    columns = [index] * len(td._leaves)
    leaves = _picked(td, at, index, torch.index_select, columns)
    new = _resized(size, at, index.numel())
    return make(td._schema, leaves, td._statics, new, td.names)


def take(td: NodeT, index: torch.Tensor) -> NodeT:
    """Return the rows of the flattened batch at some places.

    Args:
        td: the tree.
        index: the places, ints of any shape; negative ones count from the end.

    Returns:
        Copies, with the shape of `index` as batch size.

    Raises:
        OperandError: `index` is no tensor of ints.
        TreeIndexError: `index` names a row that is not there.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[0, 1], [2, 3]])}, [2, 2])
        >>> td.take(torch.tensor([3, -4]))["x"]
        tensor([3, 0])
    """
    return at_index(flatten(td), _integers(index, "an index"))


def _integers(index: Any, what: str) -> torch.Tensor:
    if not isinstance(index, torch.Tensor) or index.dtype not in _INTEGERS:
        kind = getattr(index, "dtype", type(index).__name__)
        raise OperandError(
            f"{what} of rows is a tensor of ints",
            expected="a tensor of dtype torch.int64",
            got=kind,
            fix="torch.as_tensor(rows) makes one of a list of ints",
        )
    return index.to(torch.int64)


def _picked(
    td: Node,
    at: int,
    index: torch.Tensor,
    fn: Callable[..., Any],
    columns: list[torch.Tensor],
) -> tuple[Any, ...]:
    """Return ``fn(leaf, at, index of the leaf)``; rows that are not there are named."""
    leaves = td._leaves
    if not leaves or leaves[0].numel() == 0:
        # torch does not look at what indexes an empty tensor.
        _check_rows(td, at, index)
    places = [at] * len(columns)
    try:
        return zip_leaves(td._schema, (leaves, places, columns), fn)
    except (IndexError, RuntimeError) as error:
        _check_rows(td, at, index, error)
        raise


def _check_rows(
    td: Node, at: int, index: torch.Tensor, error: Exception | None = None
) -> None:
    if is_compiling() or inside_transform() or not index.numel():
        return
    rows = td.batch_size[at]
    low, high = [int(n) for n in index.aminmax()]
    if low < 0 or high >= rows:
        raise TreeIndexError(
            f"the index names rows that batch dim {at} does not have",
            expected=f"0 to {rows - 1} for batch_size={list(td.batch_size)}"
            if rows
            else f"no index: the dim is empty, batch_size={list(td.batch_size)}",
            got=low if low < 0 else high,
        ) from error


# Under conditions

_SELECT = "td.select(*keys) keeps the entries that both have"


def masked_select(td: NodeT, mask: torch.Tensor) -> NodeT:
    """Return the rows where a mask holds, in one batch dim.

    Args:
        td: the tree.
        mask: booleans of the batch shape, or of one that broadcasts to it.

    Returns:
        Copies.

    Raises:
        OperandError: `mask` is no tensor of booleans, or does not broadcast to the
            batch size.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[0, 1], [2, 3]])}, [2, 2])
        >>> td.masked_select(td["x"] > 1)["x"]
        tensor([2, 3])
    """
    size = td.batch_size
    mask = _booleans(mask)
    if _broadcast(size, mask.shape) != size:
        raise _bad_shape(mask, size)
    return at_index(td, mask.expand(size))


def masked_fill(td: NodeT, mask: Node | torch.Tensor, value: Any) -> NodeT:
    """Return the tree with one value where a mask holds.

    One value per row (text) stays as it is.

    Args:
        td: the tree.
        mask: booleans that broadcast with the batch size, or a tree of booleans.
        value: a number or a tensor of shape ``[]``.

    Returns:
        Copies of the same dtypes.

    Raises:
        OperandError: `mask` holds no booleans or does not broadcast, or `value` is
            no number.
        StructureError: `mask` is a tree with other entries.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 2)}, 2)
        >>> td.masked_fill(torch.tensor([True, False]), 7)["x"].tolist()
        [[7.0, 7.0], [1.0, 1.0]]
    """
    number = isinstance(value, torch.Tensor) and not value.dim()
    if not number and not isinstance(value, Numbers):
        raise OperandError(
            "masked rows are filled with one number",
            expected="a number or a tensor of shape []",
            got=f"shape {list(value.shape)}"
            if isinstance(value, torch.Tensor)
            else type(value).__name__,
            fix="tdfunc.where(mask, values, td) takes a value for every row",
        )
    mask = _booleans(mask)
    if td._schema.lazy or (isinstance(mask, Node) and mask._schema.lazy):
        return _apart(td, lambda t, m: masked_fill(t, m, value), (td, mask))
    if not td._schema.rows:
        return _chosen(td, torch.masked_fill, td, mask, value, mask=1)
    mask = _for_tensors(td, mask)
    return around_rows(
        td, lambda bare: _chosen(bare, torch.masked_fill, bare, mask, value, mask=1)
    )


def where(condition: Node | torch.Tensor, input: Any, other: Any) -> Any:
    """Return one value where a condition holds and another elsewhere.

    As a method, ``td.where(condition, other)``, the tree is `input`.

    Args:
        condition: booleans that broadcast with the batch size, or a tree of booleans.
        input: a tree, a number, or a tensor that broadcasts with the batch size.
        other: the same kinds. At least one of the three is a tree.

    Returns:
        A tree, with names from the first tree among `input`, `other` and `condition`.
        One value per row (text) is chosen row by row, and a static that is not the
        same in `input` and `other` becomes one value per row, unless `condition` is a
        tree, which says nothing about it: then it is that of `input`. Batch dims
        broadcast with batch dims and feature dims with feature dims; dtypes promote as
        in `torch.where`.

    Raises:
        OperandError: `condition` holds no booleans, an operand is of another kind or
            does not broadcast, or none is a tree.
        StructureError: two trees have other entries, or `input` and `other` other
            unbatched tensors.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.ones(2, 2)}, 2)
        >>> tdfunc.where(torch.tensor([True, False]), td, -td)["x"].tolist()
        [[1.0, 1.0], [-1.0, -1.0]]
        >>> td.where(td < 0, 5)["x"].tolist()
        [[5.0, 5.0], [5.0, 5.0]]
    """
    condition = _booleans(condition)
    nodes = [x for x in (input, other, condition) if isinstance(x, Node)]
    if any([node._schema.lazy for node in nodes]):
        return _apart(nodes[0], where, (condition, input, other))
    trees = [x for x in (input, other) if isinstance(x, Node)]
    if any([tree._schema.m for tree in trees]):
        if len(trees) > 1:
            input, other = _with_rows_alike(condition, input, other)
            check_unbatched(input, other)
        if (input if isinstance(input, Node) else other)._schema.rows:
            return _chosen_rows(condition, input, other)
    if nodes:
        return _chosen(nodes[0], torch.where, condition, input, other, mask=0)
    raise OperandError(
        "none of the operands is a tree",
        expected="a tree as condition or as one of the values",
        got=f"{type(input).__name__} and {type(other).__name__}",
        fix="torch.where(condition, input, other) takes tensors",
    )


def _with_rows_alike(condition: Any, input: Any, other: Any) -> list[Any]:
    """Return two trees whose rows share tables, and whose statics are alike."""
    if not isinstance(condition, Node):
        return aligned([input, other])
    known = condition._schema
    paths = other._schema.static_paths()
    for at, path in enumerate(paths):
        found, here = input._schema.find(path), known.find(path)
        if found is None or here is None or not found.kid == here.kid == STATIC:
            continue
        mine = input._statics.part(found.slo, found.slo + 1)
        box = other._statics.spliced(at, at + 1, mine)
        other = make(other._schema, other._leaves, box, other.batch_size, other._names)
    return aligned([input, other])


def _chosen_rows(condition: Any, input: Any, other: Any) -> Any:
    """Return `where` of trees with one value for every row."""
    trees = [x for x in (input, other) if isinstance(x, Node)]
    if len(trees) == 1:
        # Numbers are no such values: these stay.
        mask = _for_tensors(trees[0], condition)
        bare = [without_rows(x) if isinstance(x, Node) else x for x in (input, other)]
        done = _chosen(without_rows(trees[0]), torch.where, mask, *bare, mask=0)
        return put_rows(trees[0], done)
    check_same_entries(trees, fix=_SELECT)
    if isinstance(condition, Node):
        condition = _of_codes(condition)
    left, right = uncoded(input), uncoded(other)
    done = _chosen(left, torch.where, condition, left, right, mask=0)
    schema = input._schema.recoded(done._schema)
    return make(schema, done._leaves, input._statics, done.batch_size, done._names)


def _for_tensors(td: Node, mask: Any) -> Any:
    """Return a mask without what a tree of booleans has for the rows of `td`."""
    if not isinstance(mask, Node):
        return mask
    paths = td._schema.paths()
    return exclude(mask, *[paths[slot] for slot in td._schema.rows])


def _of_codes(mask: Any) -> Any:
    """Return a tree of booleans in place of rows of values.

    A comparison with a number has such rows still: they are taken for true.
    """
    codes = frozenset(mask._schema.rows)
    leaves = [
        torch.ones_like(x, dtype=torch.bool) if at in codes else x
        for at, x in enumerate(mask._leaves)
    ]
    plain = uncoded(mask)
    names = plain._names
    return make(plain._schema, tuple(leaves), plain._statics, plain.batch_size, names)


def where_of(td: NodeT, condition: Node | torch.Tensor, other: Any) -> NodeT:
    """Return ``tdfunc.where(condition, td, other)``."""
    return where(condition, td, other)


def _booleans(mask: Any) -> Any:
    """Return a mask that is a tree, or a tensor of booleans."""
    if isinstance(mask, Node):
        return mask
    if isinstance(mask, (np.ndarray, np.generic)):
        mask = as_leaf(mask, ())
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        raise OperandError(
            "a condition holds booleans",
            expected="a tensor or a tree of dtype torch.bool",
            got=getattr(mask, "dtype", type(mask).__name__),
            fix="compare to get one: x > 0",
        )
    return mask


def _chosen(td: NodeT, fn: Callable[..., Any], *operands: Any, mask: int) -> NodeT:
    """Return `fn` of the operands for every leaf.

    Args:
        td: the operand whose statics and names the result has.
        fn: the function of tensors and numbers.
        operands: trees, tensors and numbers.
        mask: which of them holds booleans.
    """
    nodes = [td, *[x for x in operands if isinstance(x, Node) and x is not td]]
    schema, size, aligned = _aligned(nodes)
    columns: list[Any] = []
    joint = size
    for operand in operands:
        x = operand
        if isinstance(x, (np.ndarray, np.generic)):
            x = as_leaf(x, ())
        if isinstance(x, Node):
            place = next(i for i, node in enumerate(nodes) if node is x)
            columns.append(aligned[place])
        elif isinstance(x, torch.Tensor) and x.dim():
            new = _broadcast(joint, x.shape)
            if new is None:
                raise _bad_shape(x, size)
            joint = new
            columns.append(feature_views(x, schema.ranks()))
        elif isinstance(x, (torch.Tensor, *Numbers)):
            columns.append([x] * schema.n)
        else:
            raise OperandError(
                "a tree can not be combined with this",
                expected="a number, a tensor, or a tree",
                got=type(x).__name__,
                fix="TensorDict(other, batch_size) makes a tree of a mapping",
            )
    try:
        leaves = zip_leaves(schema, columns, fn)
    except RuntimeError as error:
        _explain(schema, columns, mask, error)
        raise
    names = td._names if joint == td.batch_size else None
    return make(schema, leaves, td._statics, joint, names)


def _apart(td: Any, fn: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """Return `fn` of operands of which some are, or hold, lazy stacks.

    Args:
        td: the operand whose statics the result has.
        fn: `where` or `masked_fill`, which each member goes through anew: its text
            and its statics are seen there only.
        operands: trees, among them `td`, tensors and numbers; in `where` the
            condition, `input` and `other`.
    """
    lazy = td._schema.lazy
    own: list[Any] = []
    for x in operands:
        if isinstance(x, Node) and x is not td:
            tree: Any = x
            x = as_lazy(td, tree) if lazy else tree.densify()  # noqa: PLW2901
        own.append(x)
    if not lazy:
        return fn(*own)
    if fn is where and isinstance(own[1], Node) and isinstance(own[2], Node):
        own[1:] = _with_rows_alike(*own)
        td = own[1]
        check_same_entries(own[1:], fix=_SELECT)
    paths = [path for _, path, _ in td._schema.lazies()]
    for x in own:
        if isinstance(x, Node) and [p for _, p, _ in x._schema.lazies()] != paths:
            check_same_entries([td, x], fix=_SELECT)
    return around_lazy(td, lambda _, *ops: fn(*ops), *own)


def _aligned(
    nodes: list[Any],
) -> tuple[Schema, torch.Size, list[tuple[Any, ...]]]:
    """Return schema, batch size and leaves of trees brought to the same dims."""
    sizes = [node.batch_size for node in nodes]
    schema, size = nodes[0]._schema, sizes[0]
    rest = list(zip(nodes[1:], sizes[1:], strict=True))
    if all([node._schema is schema and own == size for node, own in rest]):
        return schema, size, [node._leaves for node in nodes]
    check_same_entries(
        nodes,
        "the trees do not have the same entries",
        fix=_SELECT,
    )
    dims = len(size)
    for node, own in rest:
        new = _broadcast(size, own)
        if new is None:
            raise OperandError(
                "the batch sizes do not broadcast",
                expected=f"a batch size that broadcasts with {list(size)}",
                got=list(own),
                fix="td.unsqueeze(dim) adds a batch dim that broadcasts",
            )
        size = new
        schema = schema.aligned(node._schema, dims, len(own)).schema
        dims = len(size)
    columns: list[tuple[Any, ...]] = []
    for node, own in zip(nodes, sizes, strict=True):
        # This schema has the most dims everywhere, so each is brought to it.
        plan = node._schema.aligned(schema, len(own), dims)
        columns.append(padded(node._leaves, plan.mine, plan.joint))
    return schema, size, columns


def _broadcast(size: torch.Size, other: torch.Size) -> torch.Size | None:
    try:
        return torch.broadcast_shapes(size, other)
    except RuntimeError:
        return None


def _bad_shape(operand: torch.Tensor, size: torch.Size) -> OperandError:
    return OperandError(
        "the tensor does not fit the batch size",
        expected=f"a shape that broadcasts with {list(size)}",
        got=f"shape {list(operand.shape)}",
        fix="give it a dim of size 1 for every batch dim behind: x[..., None]",
    )


def _explain(
    schema: Schema, columns: list[Any], mask: int, error: RuntimeError
) -> None:
    """Raise what says which leaf does not go with which, if that is what is wrong."""
    rows = zip(*columns, strict=True)
    for path, row in zip(schema.paths(), rows, strict=True):
        if row[mask].dtype != torch.bool:
            raise OperandError(
                "a condition holds booleans",
                path=path,
                expected="torch.bool",
                got=row[mask].dtype,
                fix="compare to get one: td > 0",
            ) from error
        shapes = [x.shape for x in row if isinstance(x, torch.Tensor)]
        try:
            torch.broadcast_shapes(*shapes)
        except RuntimeError:
            raise OperandError(
                "the leaves do not broadcast",
                path=path,
                expected="shapes that broadcast with each other",
                got=", ".join([str(list(shape)) for shape in shapes]),
                fix="td.apply(fn, other) combines leaves in another way",
            ) from error
