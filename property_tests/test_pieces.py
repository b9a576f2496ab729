"""Rows taken apart, repeated, moved, picked and exchanged: what undoes what."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import torch
from hypothesis import given

import tdfunc
from tdfunc.testing import (
    assert_equal,
    assert_pure,
    assert_valid,
    batch_sizes,
    tensordicts,
    tensors,
)

if TYPE_CHECKING:
    from tdfunc import TensorDict

batched = tensordicts(batch_sizes(min_dims=1))


def dim_of(data: st.DataObject, td: TensorDict) -> int:
    return data.draw(st.integers(-td.batch_dims, td.batch_dims - 1), label="dim")


def mask_for(td: TensorDict) -> Any:
    return tensors(td.batch_size, feature_dims=0, dtypes=[torch.bool])


def assert_cat_is(td: TensorDict, pieces: tuple[TensorDict, ...], dim: int) -> None:
    for piece in pieces:
        assert_valid(piece)
    assert_equal(td, tdfunc.cat(pieces, dim), key_order=True, names=True)


@given(batched, st.data())
def test_cat_undoes_split(td: TensorDict, data: st.DataObject) -> None:
    dim = dim_of(data, td)
    step = data.draw(st.integers(1, 4))

    pieces = assert_pure(td.split, step, dim)

    assert_cat_is(td, pieces, dim)
    again = td.split([piece.size(dim) for piece in pieces], dim)
    for one, other in zip(pieces, again, strict=True):
        assert_equal(one, other, names=True)


@given(batched, st.data())
def test_cat_undoes_chunk_and_tensor_split(td: TensorDict, data: st.DataObject) -> None:
    dim = dim_of(data, td)
    n = data.draw(st.integers(1, 5))
    cuts = sorted(data.draw(st.lists(st.integers(0, 6), max_size=3)))

    assert_cat_is(td, assert_pure(td.chunk, n, dim), dim)
    assert_cat_is(td, assert_pure(td.tensor_split, n, dim), dim)
    assert_cat_is(td, assert_pure(td.tensor_split, cuts, dim), dim)


@given(batched, st.data())
def test_split_cuts_where_narrow_does(td: TensorDict, data: st.DataObject) -> None:
    dim = dim_of(data, td)
    start = 0
    for piece in td.split(data.draw(st.integers(1, 3)), dim):
        found = td.narrow(dim, start, piece.size(dim))
        assert_equal(piece, found, key_order=True, names=True)
        start += piece.size(dim)
    assert start == td.size(dim)


@given(batched, st.data())
def test_rolling_back_and_flipping_twice_are_identity(
    td: TensorDict, data: st.DataObject
) -> None:
    dim = dim_of(data, td)
    shift = data.draw(st.integers(-5, 5))

    rolled = assert_pure(td.roll, shift, dim)
    flipped = assert_pure(td.flip, dim)

    assert_valid(rolled)
    assert_valid(flipped)
    assert_equal(td, rolled.roll(-shift, dim), key_order=True, names=True)
    assert_equal(td, flipped.flip(dim), key_order=True, names=True)
    assert_equal(td, td.roll(shift).roll(-shift), key_order=True, names=True)


@given(tensordicts(batch_sizes(min_dims=2)), st.integers(-5, 5))
def test_four_quarters_are_a_turn(td: TensorDict, k: int) -> None:
    found = assert_pure(td.rot90, k)

    assert_valid(found)
    assert_equal(td, found.rot90(4 - k), key_order=True, names=True)


@given(tensordicts(), st.data())
def test_tile_gives_the_tree_in_every_tile(td: TensorDict, data: st.DataObject) -> None:
    size = td.batch_size
    counts = [data.draw(st.integers(1, 3)) for _ in size]

    found = assert_pure(td.repeat, counts)

    assert_valid(found)
    assert_equal(found, td.tile(counts), names=True)
    place = [data.draw(st.integers(0, count - 1)) for count in counts]
    for dim, (i, n) in enumerate(zip(place, size, strict=True)):
        found = found.narrow(dim, i * n, n)
    assert_equal(td, found, key_order=True, names=True)


@given(batched, st.data())
def test_every_nth_row_undoes_repeat_interleave(
    td: TensorDict, data: st.DataObject
) -> None:
    dim = dim_of(data, td) % td.batch_dims
    n = data.draw(st.integers(1, 3))

    found = assert_pure(td.repeat_interleave, n, dim)

    assert_valid(found)
    again = found[(slice(None),) * dim + (slice(None, None, n),)]
    assert_equal(td, again, key_order=True, names=True)


@given(tensordicts(), st.data())
def test_taking_the_padding_away_is_identity(
    td: TensorDict, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, td.batch_dims))
    widths = [data.draw(st.integers(0, 2)) for _ in range(2 * count)]

    found = assert_pure(td.pad, widths)

    assert_valid(found)
    again = found.pad([-n for n in widths])
    assert_equal(td, again, key_order=True, names=True)


@given(batched, st.data())
def test_gather_of_places_in_order_is_identity(
    td: TensorDict, data: st.DataObject
) -> None:
    dim = dim_of(data, td) % td.batch_dims
    size = td.batch_size
    behind = (1,) * (len(size) - dim - 1)
    index = torch.arange(size[dim]).reshape(-1, *behind)

    assert_equal(td, td.gather(dim, index.expand(size)), key_order=True, names=True)
    rows = torch.arange(size[dim])
    assert_equal(td, td.index_select(dim, rows), key_order=True, names=True)
    every = torch.arange(prod(size)).reshape(size)
    assert_equal(td, td.take(every), key_order=True)


@given(tensordicts(), st.data())
def test_where_chooses_between_two_trees(td: TensorDict, data: st.DataObject) -> None:
    mask = data.draw(mask_for(td))
    other = td.apply(torch.zeros_like)

    found = assert_pure(tdfunc.where, mask, td, other)

    assert_valid(found)
    assert_equal(found, tdfunc.where(~mask, other, td), names=True)
    assert_equal(found, td.masked_fill(~mask, 0), key_order=True, names=True)
    for kept, tree in ((mask, td), (~mask, other)):
        if td.batch_dims:
            assert_equal(tree.masked_select(kept), found.masked_select(kept))
    assert_equal(td, tdfunc.where(mask, td, td), key_order=True, names=True)
