"""Indexing a tree is indexing each of its leaves, features kept out of reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from property_tests import model as m
from tdfunc.errors import TreeIndexError
from tdfunc.testing import (
    assert_equal,
    assert_pure,
    assert_valid,
    batch_sizes,
    indices,
    tensordicts,
)

if TYPE_CHECKING:
    from tdfunc import TensorDict


@st.composite
def indexed(draw: st.DrawFn, **flags: Any) -> tuple[TensorDict, Any]:
    td = draw(tensordicts(**flags))
    return td, draw(indices(td.batch_size))


def at(leaf: torch.Tensor, dims: int, index: Any) -> torch.Tensor:
    """Return a leaf at an index of its first dims.

    Each place behind the batch dims is a tensor of the batch shape, which the index
    can not reach out of: no Ellipsis and no rule of the library is needed.
    """
    rest = leaf.shape[dims:]
    columns = leaf.reshape((*leaf.shape[:dims], rest.numel())).unbind(-1)
    if not columns:
        shape = torch.empty(leaf.shape[:dims])[index].shape
        return leaf.new_empty((*shape, *rest))
    found = torch.stack([column[index] for column in columns], -1)
    return found.reshape((*found.shape[:-1], *rest))


def names_at(names: tuple[str | None, ...], index: Any) -> list[str | None]:
    """Return the dim names after indexing, by doing to names what torch does to dims.

    First ints take dims away, slices keep theirs and None adds one. Of what is left,
    everything advanced becomes one block of dims: where it stood if it stood together,
    else in front. The block has a name if one tensor of one dim made it.
    """
    items = [_as_tensor(i) for i in (index if isinstance(index, tuple) else (index,))]
    used = sum(map(_uses, items))
    if any(item is Ellipsis for item in items):
        place = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[place : place + 1] = [slice(None)] * (len(names) - used)
    left = list(names)
    out: list[Any] = []  # names, or the advanced item that stands there
    for item in items:
        if item is None:
            out.append(None)
        elif isinstance(item, slice):
            out.append(left.pop(0))
        elif isinstance(item, int) and not isinstance(item, bool):
            left.pop(0)
        else:
            out.append((item, [left.pop(0) for _ in range(_uses(item))]))
    out += left
    blocks = [i for i, part in enumerate(out) if isinstance(part, tuple)]
    if not blocks:
        return out
    made = _block([out[i] for i in blocks])
    first = blocks[0] if blocks == list(range(blocks[0], blocks[-1] + 1)) else 0
    kept = [part for part in out if not isinstance(part, tuple)]
    return [*kept[:first], *made, *kept[first:]]


def _as_tensor(item: Any) -> Any:
    """Return lists, arrays and masks as tensors, and 0-d index tensors as ints."""
    if isinstance(item, np.integer):
        return int(item)
    if isinstance(item, (list, tuple, range, np.ndarray)):
        item = torch.as_tensor(np.asarray(item))
        item = item.long() if not item.numel() and item.dtype != torch.bool else item
    if isinstance(item, torch.Tensor) and not item.dim() and item.dtype != torch.bool:
        return int(item)
    return item


def _uses(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor) and item.dtype == torch.bool:
        return item.dim()
    return 1


def _block(parts: list[tuple[Any, list[str | None]]]) -> list[str | None]:
    tensors = [torch.as_tensor(item) for item, _ in parts]
    shapes = [(int(x.sum()),) if x.dtype == torch.bool else x.shape for x in tensors]
    dims = len(torch.broadcast_shapes(*shapes))
    if len(parts) == 1 and dims == 1 and len(parts[0][1]) == 1:
        return parts[0][1]
    return [None] * dims


@given(indexed())
def test_batch_size_is_torchs_for_any_index(case: tuple[TensorDict, Any]) -> None:
    td, index = case
    expected = torch.empty(td.batch_size)[index].shape

    found = td[index]

    assert expected == found.batch_size
    assert_valid(found)


@given(indexed())
def test_leaves_are_indexed_one_by_one(case: tuple[TensorDict, Any]) -> None:
    td, index = case
    dims = td.batch_dims

    def resized(size: torch.Size) -> tuple[int, ...]:
        return (*torch.empty(td.batch_size)[index].shape, *size[dims:])

    expected = m.mapped(m.read(td), lambda leaf: at(leaf, dims, index), resized)

    m.assert_is(expected, td[index])


@given(indexed(names=True))
def test_names_stay_with_their_dims(case: tuple[TensorDict, Any]) -> None:
    td, index = case
    expected = names_at(td.names or (None,) * td.batch_dims, index)

    found = td[index].names

    assert expected == list(found or [None] * len(expected))


@given(indexed(statics=False))
def test_index_is_pure(case: tuple[TensorDict, Any]) -> None:
    td, index = case

    assert_pure(lambda td, index: td[index], td, index)


@given(batch_sizes(min_dims=1, min_size=1), st.data())
def test_nested_list_is_an_index_tensor(size: torch.Size, data: st.DataObject) -> None:
    """Where torch 2.13 still warns, a list is one index of rows."""
    td = data.draw(tensordicts(size))
    row = st.lists(st.integers(-size[0], size[0] - 1), min_size=2, max_size=2)
    rows = data.draw(st.lists(row, min_size=1, max_size=3))

    assert_equal(td[torch.tensor(rows)], td[rows])


@given(tensordicts(batch_sizes(min_dims=1)))
def test_row_by_row_is_the_first_dim(td: TensorDict) -> None:
    """Iterating, unbinding and ints give the same rows."""
    rows = list(td)

    assert len(td) == len(rows) == len(td.unbind(0)) == td.batch_size[0]
    for i, (row, other) in enumerate(zip(rows, td.unbind(0), strict=True)):
        assert_equal(td[i], row, names=True)
        assert_equal(td[i - len(rows)], other, names=True)


@given(tensordicts(), st.data())
def test_index_beyond_the_batch_raises(td: TensorDict, data: st.DataObject) -> None:
    """Features are out of reach, and so are rows that are not there."""
    dims = td.batch_dims
    good = [st.integers(0, n - 1) if n else st.just(slice(None)) for n in td.batch_size]
    index: list[Any] = [data.draw(item) for item in good]
    if dims and data.draw(st.booleans(), label="out of range"):
        place = data.draw(st.integers(0, dims - 1))
        index[place] = td.batch_size[place]
    else:
        index.append(data.draw(st.sampled_from([0, slice(None), [0], torch.tensor(0)])))

    with pytest.raises(TreeIndexError):
        td[tuple(index)]
