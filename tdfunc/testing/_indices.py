"""A strategy for everything that torch takes in brackets.

An index is drawn item by item along the dims that it indexes. What is advanced must
broadcast, so one shape is drawn first, from which all index tensors take theirs, and
one number of rows, which all masks choose.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdfunc._core.batch import as_size
from tdfunc.testing._strategies import composite, load_strategies, sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import DrawFn, SearchStrategy

    from tdfunc.typing import Index, Size

__all__ = ["indices"]


def indices(
    batch_size: Size,
    *,
    advanced: bool = True,
    masks: bool = True,
    new_dims: bool = True,
    ellipsis: bool = True,
    arrays: bool = True,
) -> SearchStrategy[Index]:
    """Return a strategy for everything that torch takes in brackets.

    Ints, slices, None, Ellipsis and bools; lists, tuples, ranges, NumPy arrays and
    tensors of ints and bools; tuples of them in which what is advanced broadcasts.
    Left out is what torch warns about: uint8 masks, and a nested list outside a tuple.

    Args:
        batch_size: the shape to index.
        advanced: draw more than ints, slices, None and Ellipsis.
        masks: draw masks and bools.
        new_dims: draw None.
        ellipsis: draw Ellipsis.
        arrays: draw NumPy arrays and scalars.

    Raises:
        ImportError: hypothesis is not installed.
        OptionError: `batch_size` is no size.

    Examples:
        >>> from hypothesis import find
        >>> find(indices([3]), lambda index: torch.empty(3)[index].dim() == 0)
        0
    """
    return composite(_draw_index)(
        as_size(batch_size),
        advanced=advanced,
        masks=advanced and masks,
        new_dims=new_dims,
        ellipsis=ellipsis,
        arrays=arrays,
    )


class _Plan:
    """What the items of one index may be, and how those that are advanced broadcast.

    Index tensors broadcast to `shape`; masks choose `length` rows (the last dim of
    `shape`) or one. `spread` says that there is an Ellipsis.
    """

    __slots__ = ("advanced", "arrays", "length", "masks", "new_dims", "shape", "spread")

    def __init__(
        self,
        draw: DrawFn,
        *,
        advanced: bool,
        masks: bool,
        new_dims: bool,
        arrays: bool,
        spread: bool,
    ) -> None:
        st = load_strategies()
        self.advanced = advanced and not _is_rare(draw, 4)
        self.masks = self.advanced and masks
        self.arrays = self.advanced and arrays
        self.new_dims = new_dims
        self.spread = spread
        shape = draw(st.lists(sizes(0, 3), max_size=2)) if self.advanced else []
        self.shape: tuple[int, ...] = tuple(shape)
        self.length: int = self.shape[-1] if self.shape else draw(sizes(0, 3))


def _is_rare(draw: DrawFn, times: int) -> bool:
    """Draw whether something is so that is so one time in `times`."""
    return draw(load_strategies().integers(0, times - 1)) == times - 1


def _draw_index(
    draw: DrawFn, size: torch.Size, *, ellipsis: bool, **flags: bool
) -> Any:
    st = load_strategies()
    # How many dims are indexed, and how many of them in front of an Ellipsis.
    used = draw(st.sampled_from([*range(len(size) + 1), len(size)]))
    nowhere = [None] * (used + 1)
    places = [*nowhere, *range(used + 1)] if ellipsis else nowhere
    front = draw(st.sampled_from(places))
    plan = _Plan(draw, spread=front is not None, **flags)
    if front is None:
        items = _draw_items(draw, size[:used], plan)
    else:
        items = _draw_items(draw, size[:front], plan)
        items.append(Ellipsis)
        items += _draw_items(draw, size[len(size) - used + front :], plan)
    if len(items) == 1 and not (_is_tuple_to_torch(items[0]) or draw(st.booleans())):
        return items[0]
    return tuple(items)


def _is_tuple_to_torch(item: Any) -> bool:
    """Return whether torch reads an item that stands alone as several items."""
    return isinstance(item, tuple) or (
        isinstance(item, list) and bool(item) and isinstance(item[0], list)
    )


def _draw_items(draw: DrawFn, size: torch.Size, plan: _Plan) -> list[Any]:
    """Draw items that index every dim of `size`, with new dims between them."""
    st = load_strategies()
    items: list[Any] = []
    dim = 0
    while True:
        if plan.new_dims and _is_rare(draw, 10):
            items.append(None)
        if plan.masks and _is_rare(draw, 10):
            items.append(draw(_flags(plan)))
        if dim == len(size):
            return items
        kinds = [_draw_slice, _draw_int] if size[dim] else [_draw_slice]
        if plan.advanced:
            # More often: an index in which nothing is advanced is drawn anyway.
            kinds += [_draw_rows, _draw_rows, _draw_rows, _draw_range]
            kinds += [_draw_mask, _draw_mask] if plan.masks else []
        item, used = draw(st.sampled_from(kinds))(draw, size[dim:], plan)
        items.append(item)
        dim += used


def _flags(plan: _Plan) -> SearchStrategy[Any]:
    """Return a strategy for masks without dims."""
    # False chooses no row, which broadcasts with 0 rows and with 1 only.
    values = [True] if plan.length else [True, False]
    st = load_strategies()
    return st.sampled_from([*values, *map(torch.tensor, values)])


def _draw_slice(draw: DrawFn, size: torch.Size, plan: _Plan) -> tuple[Any, int]:
    del plan
    st = load_strategies()
    n = size[0]
    edges = st.one_of(st.none(), st.integers(-n - 1, n + 1))
    steps = st.one_of(st.none(), st.integers(1, 3))
    return slice(draw(edges), draw(edges), draw(steps)), 1


def _draw_int(draw: DrawFn, size: torch.Size, plan: _Plan) -> tuple[Any, int]:
    st = load_strategies()
    number = draw(st.integers(-size[0], size[0] - 1))
    kinds: list[Callable[[int], Any]] = [int]
    if plan.advanced:
        kinds += [torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32)]
    if plan.arrays:
        kinds.append(np.int64)
    return draw(st.sampled_from(kinds))(number), 1


def _draw_rows(draw: DrawFn, size: torch.Size, plan: _Plan) -> tuple[Any, int]:
    """Draw an index of rows whose shape broadcasts with that of the others."""
    st = load_strategies()
    start = draw(st.sampled_from([0, *range(len(plan.shape) + 1)]))
    shape = list(plan.shape[start:]) or [1]
    if _is_rare(draw, 3):
        shape[draw(st.integers(0, len(shape) - 1))] = 1
    if not size[0]:
        # There is no row to take, so none may be taken.
        if plan.length:
            return slice(None), 1
        shape[-1] = 0
    count = prod(shape)
    numbers = st.integers(-size[0], size[0] - 1) if count else st.nothing()
    rows = draw(st.lists(numbers, min_size=count, max_size=count))
    found = torch.tensor(rows, dtype=torch.int64).reshape(shape)
    kinds: list[Callable[[torch.Tensor], Any]] = []
    if count or len(shape) == 1:
        # A list without rows has no second dim.
        kinds.append(torch.Tensor.tolist)
    kinds += [lambda x: x, lambda x: x.to(torch.int32)]
    if plan.arrays:
        kinds += [lambda x: x.numpy(), lambda x: x.to(torch.int32).numpy()]
    if count:
        kinds.append(lambda x: tuple(x.tolist()))
    return draw(st.sampled_from(kinds))(found), 1


def _draw_range(draw: DrawFn, size: torch.Size, plan: _Plan) -> tuple[Any, int]:
    st = load_strategies()
    count = draw(st.sampled_from([plan.length, 1]))
    if count > size[0]:
        return slice(None), 1
    start = draw(st.integers(0, size[0] - count))
    return range(start, start + count), 1


def _draw_mask(draw: DrawFn, size: torch.Size, plan: _Plan) -> tuple[Any, int]:
    """Draw a mask of one or more dims that chooses as many rows as broadcast."""
    st = load_strategies()
    dims = draw(st.integers(1, len(size)))
    count = prod(size[:dims])
    chosen = draw(st.sampled_from([plan.length, 1]))
    if chosen > count:
        return slice(None), 1
    places = draw(st.permutations(range(count)))[:chosen]
    mask = torch.zeros(count, dtype=torch.bool)
    mask[list(places)] = True
    kinds: list[Callable[[torch.Tensor], Any]] = [lambda x: x]
    # Where there is an Ellipsis torch counts any sequence as one dim.
    if dims == 1 or not plan.spread:
        kinds += [torch.Tensor.numpy] if plan.arrays else []
        kinds += [torch.Tensor.tolist] if count else []
    return draw(st.sampled_from(kinds))(mask.reshape(size[:dims])), dims
