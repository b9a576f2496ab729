"""Rows of a tree as spans of their positions, the last batch dim fastest."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from tdfunc.errors import TreeIndexError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Spans",
    "as_ranges",
    "joined",
    "minus",
    "overlap",
    "rising",
    "span",
    "spans_at",
]

Spans: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Starts and stops ``[n, 2]`` of rows."""


def span(start: int, stop: int) -> Spans:
    """Return one span, none if it is empty."""
    rows = [[start, stop]] if start < stop else []
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def joined(spans: list[Spans]) -> Spans:
    """Return spans that neither overlap nor touch, in order, with the same rows."""
    if not spans:
        return span(0, 0)
    every = np.concatenate(spans)
    if not len(every):
        return every
    every = every[np.argsort(every[:, 0], kind="stable")]
    reach = np.maximum.accumulate(every[:, 1])
    first = np.ones(len(every), dtype=bool)
    first[1:] = every[1:, 0] > reach[:-1]
    last = np.append(first[1:], True)
    return np.stack([every[first, 0], reach[last]], axis=1)


def minus(spans: Spans, others: Spans) -> Spans:
    """Return the rows of spans that are not in others."""
    if not len(spans) or not len(others):
        return spans
    low, high = int(spans[:, 0].min()), int(spans[:, 1].max())
    return _outside(joined([_outside(joined([spans]), low, high), others]), low, high)


def _outside(spans: Spans, low: int, high: int) -> Spans:
    """Return what lies between two bounds and in none of some joined spans."""
    starts = np.concatenate([[low], spans[:, 1]])
    stops = np.concatenate([spans[:, 0], [high]])
    starts, stops = np.clip(starts, low, high), np.clip(stops, low, high)
    return np.stack([starts, stops], axis=1)[starts < stops]


def overlap(joined: Spans, spans: Spans) -> bool:
    """Return whether some rows are in joined spans and in others."""
    if not len(joined):
        return False
    # The first span that ends behind the start of each.
    at = np.searchsorted(joined[:, 1], spans[:, 0], side="right")
    inside = at < len(joined)
    return bool((joined[at[inside], 0] < spans[inside, 1]).any())


def as_ranges(spans: Spans) -> list[range]:
    return [range(start, stop) for start, stop in spans.tolist()]


def _runs(starts: np.ndarray[Any, np.dtype[np.int64]], length: int) -> Spans:
    """Return the spans of runs of one length, in order; neighbours are one."""
    first = np.ones(len(starts), dtype=bool)
    first[1:] = starts[1:] != starts[:-1] + length
    last = np.append(first[1:], True)
    return np.stack([starts[first], starts[last] + length], axis=1)


def spans_at(
    plan: Sequence[Any], size: Sequence[int], index: Any
) -> tuple[tuple[int, ...], Spans]:
    """Return the batch size at an index, and the rows there, one after the other.

    Args:
        plan: ints, slices and index tensors for the first dims.
        size: the batch size.
        index: what a user wrote, for errors.

    Raises:
        TreeIndexError: rows can not be addressed so.
    """
    items = [_as_int(item) for item in plan]
    items += [slice(None)] * (len(size) - len(items))
    wide = [item for item in items if _is_wide(item)]
    mixed = wide and any([isinstance(item, int) for item in items])
    if len(wide) > 1 or mixed or len(items) > len(size):
        raise _bad_index(index)
    shape: list[int] = []
    starts = np.zeros(1, dtype=np.int64)
    length, together = 1, True
    for dim in reversed(range(len(size))):
        places: Any = _places(items[dim], size[dim], index)
        if not isinstance(items[dim], int):
            shape.insert(0, len(places))
        step = prod(size[dim + 1 :])
        if together and isinstance(places, range) and places.step == 1:
            starts = np.array([places.start * step], dtype=np.int64)
            length = len(places) * step
            together = len(places) == size[dim]
            continue
        together = False
        each = np.asarray(places, dtype=np.int64)
        starts = (each[:, None] * step + starts).reshape(-1)
    if not prod(shape) or not length:
        return tuple(shape), span(0, 0)
    return tuple(shape), _runs(starts, length)


def _is_wide(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dim() > 0


def rising(index: range, size: int) -> slice | list[int]:
    rising = index.step > 0 and len(index) and index[0] >= 0 and index[-1] < size
    return slice(index[0], index[-1] + 1, index.step) if rising else list(index)


def _places(item: Any, size: int, index: Any) -> Any:
    """Return the places along a dim that an item of an index names."""
    if isinstance(item, torch.Tensor) and item.dtype is torch.bool and item.dim() == 1:
        return item.nonzero()[:, 0].cpu().numpy()
    if isinstance(item, torch.Tensor) and item.dtype is not torch.bool:
        rows: Any = item.reshape(-1).to("cpu", torch.int64).numpy()
        outside = rows[(rows < -size) | (rows >= size)]
        if item.dim() > 1:
            raise _bad_index(index)
        if len(outside):
            raise _out_of_range(int(outside[0]), size)
        return np.where(rows < 0, rows + size, rows)
    if isinstance(item, slice):
        places = range(*item.indices(size))
        if places.step > 0:
            return places
    elif type(item) is int:
        if not -size <= item < size:
            raise _out_of_range(item, size)
        at = item % size
        return range(at, at + 1)
    raise _bad_index(index)


def _as_int(item: Any) -> Any:
    is_one = isinstance(item, torch.Tensor) and not item.dim()
    return int(item) if is_one and item.dtype is not torch.bool else item


def _out_of_range(row: int, size: int) -> TreeIndexError:
    return TreeIndexError(
        "the index is out of range",
        expected=f"{-size} to {size - 1}",
        got=str(row),
    )


def _bad_index(index: Any) -> TreeIndexError:
    shown = repr(index)
    return TreeIndexError(
        "rows are not addressed so",
        expected="ints, slices with positive steps, and one list, mask or tensor "
        "of one dim, that one without ints",
        got=shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}...",
    )


_LONGEST = 60
