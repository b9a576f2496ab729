"""stack and unbind, cat and slices: each undoes the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import tdfunc
from property_tests import model as m
from tdfunc import TensorDict
from tdfunc.errors import ShapeError, StructureError
from tdfunc.testing import assert_equal, assert_pure, assert_valid, tensordicts

SIZES = st.lists(st.integers(0, 3), max_size=2).map(torch.Size)


@st.composite
def alike(
    draw: st.DrawFn, *, least: int = 1, most: int = 3, **flags: Any
) -> list[TensorDict]:
    """Draw trees of one structure, in different orders of keys, with other values."""
    td = draw(tensordicts(**flags))
    count = draw(st.integers(least, most))
    out = [td]
    for i in range(1, count):
        model = m.mapped(
            m.read(td), lambda x, i=i: (x.roll(i) if x.numel() else x).clone()
        )
        flip = draw(st.booleans())
        entries = dict(reversed(model.entries.items())) if flip else model.entries
        other = m.build(m.Model(model.size, entries))
        out.append(other.with_names(td.names))
    return out


def positions(dims: int) -> st.SearchStrategy[int]:
    return st.integers(-dims, dims - 1)


def joined(models: list[m.Model], fn: Any, resize: Any) -> m.Model:
    """Return the model of `fn` over the tensors at each path of several models."""

    def at(path: m.Path) -> Any:
        return fn([m.get(model, path) for model in models])

    def below(model: m.Model, prefix: m.Path) -> m.Model:
        entries: dict[str, Any] = {}
        for key, value in model.entries.items():
            path = (*prefix, key)
            if isinstance(value, m.Model):
                entries[key] = below(value, path)
            else:
                entries[key] = at(path) if isinstance(value, torch.Tensor) else value
        return m.Model(torch.Size(resize(model.size)), entries)

    return m.settled(below(models[0], ()))


@given(alike(), st.data())
def test_stack_stacks_each_leaf(tds: list[TensorDict], data: st.DataObject) -> None:
    dims = tds[0].batch_dims
    dim = data.draw(positions(dims + 1))
    at = dim % (dims + 1)
    expected = joined(
        list(map(m.read, tds)),
        lambda leaves: torch.stack(leaves, at),
        lambda size: (*size[:at], len(tds), *size[at:]),
    )

    found = assert_pure(tdfunc.stack, tds, dim)

    assert_valid(found)
    m.assert_is(expected, found)
    by_torch: Any = torch.stack(tds, dim)  # pyright: ignore[reportArgumentType]
    assert_equal(found, by_torch, key_order=True, names=True)
    names = list(tds[0].names or [None] * dims)
    names.insert(at, None)
    assert names == list(found.names or [None] * (dims + 1))


@given(alike(), st.data())
def test_unbind_undoes_stack(tds: list[TensorDict], data: st.DataObject) -> None:
    dim = data.draw(positions(tds[0].batch_dims + 1))

    found = tdfunc.stack(tds, dim).unbind(dim)

    assert len(tds) == len(found)
    for td, row in zip(tds, found, strict=True):
        assert_valid(row)
        assert_equal(td, row, names=True)


@given(tensordicts(SIZES.filter(lambda size: 0 not in size)), st.data())
def test_stack_undoes_unbind(td: TensorDict, data: st.DataObject) -> None:
    if not td.batch_dims:
        return
    dim = data.draw(positions(td.batch_dims))

    again = tdfunc.stack(td.unbind(dim), dim)

    assert_equal(td, again, key_order=True)


@given(tensordicts(), st.data())
def test_unbind_gives_the_rows_of_each_leaf(
    td: TensorDict, data: st.DataObject
) -> None:
    if not td.batch_dims:
        return
    dim = data.draw(positions(td.batch_dims))
    at = dim % td.batch_dims

    rows = assert_pure(td.unbind, dim)

    assert td.batch_size[at] == len(rows)
    for i, row in enumerate(rows):
        expected = m.mapped(
            m.read(td),
            lambda x, i=i: x.select(at, i),
            lambda size: (*size[:at], *size[at + 1 :]),
        )
        m.assert_is(expected, row)
        assert_valid(row)


@given(tensordicts(), st.data())
def test_cat_undoes_slicing(td: TensorDict, data: st.DataObject) -> None:
    """Pieces of any sizes, empty ones included."""
    if not td.batch_dims:
        return
    dim = data.draw(positions(td.batch_dims))
    at = dim % td.batch_dims
    n = td.batch_size[at]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3), label="cuts"))
    edges = [0, *cuts, n]
    before = (slice(None),) * at
    pieces = [td[(*before, slice(i, j))] for i, j in pairwise(edges)]

    again = assert_pure(tdfunc.cat, pieces, dim)

    assert_valid(again)
    assert_equal(td, again, key_order=True, names=True)
    by_torch: Any = torch.cat(pieces, dim)
    assert_equal(again, by_torch, key_order=True, names=True)


@given(alike(least=2), st.data())
def test_slices_undo_cat(tds: list[TensorDict], data: st.DataObject) -> None:
    if not tds[0].batch_dims:
        return
    dim = data.draw(positions(tds[0].batch_dims))
    at = dim % tds[0].batch_dims
    n = tds[0].batch_size[at]

    whole = tdfunc.cat(tds, dim)

    assert_valid(whole)
    assert n * len(tds) == whole.batch_size[at]
    for i, td in enumerate(tds):
        assert_equal(td, whole[(slice(None),) * at + (slice(n * i, n * i + n),)])


@given(tensordicts(key=st.sampled_from("ab"), max_leaves=2, names=False), st.data())
def test_only_trees_alike_can_be_joined(td: TensorDict, data: st.DataObject) -> None:
    """What differs in entries, statics or shapes raises; nothing is dropped."""
    other = data.draw(
        tensordicts(td.batch_size, key=st.sampled_from("ab"), max_leaves=2)
    )
    one, two = m.read(td), m.read(other)
    paths = {path: value for path, value, _ in m.walk(one)}
    others = {path: value for path, value, _ in m.walk(two)}
    same = paths.keys() == others.keys() and all(
        _joins(paths[path], others[path]) for path in paths
    )

    if same:
        tdfunc.stack([td, other])
    else:
        with pytest.raises((StructureError, ShapeError)):
            tdfunc.stack([td, other])


def _joins(x: Any, y: Any) -> bool:
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return x.shape == y.shape
    if isinstance(x, m.Model) and isinstance(y, m.Model):
        return x.size == y.size
    return x == y
