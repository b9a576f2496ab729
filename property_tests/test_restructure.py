"""Restructuring moves leaves and loses none: the model is a dict of paths."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

import tdfunc
from property_tests import model as m
from tdfunc import TensorDict
from tdfunc.errors import StructureError
from tdfunc.testing import assert_equal, assert_pure, assert_valid, keys, tensordicts


def paths_of(td: TensorDict) -> dict[m.Path, Any]:
    """Return every tensor by path."""
    return {path: x for path, x, _ in m.leaves(m.read(td))}


def assert_same_leaves(td: TensorDict, leaves: dict[m.Path, Any]) -> None:
    found = paths_of(td)
    assert found.keys() == leaves.keys()
    assert all(found[path] is x for path, x in leaves.items())
    assert_valid(td)


@st.composite
def disjoint(draw: st.DrawFn, td: TensorDict) -> list[m.Path]:
    """Draw paths of which none is inside another."""
    chosen: list[m.Path] = []
    known = [path for path, *_ in m.walk(m.read(td))]
    for path in draw(st.lists(st.sampled_from(known), max_size=3)) if known else []:
        if all(path[: len(p)] != p and p[: len(path)] != path for p in chosen):
            chosen.append(path)
    return chosen


@given(tensordicts(max_leaves=5), st.data())
def test_permuting_names_permutes_entries(td: TensorDict, data: st.DataObject) -> None:
    """Renaming entries among each other and back is the identity."""
    paths = data.draw(disjoint(td))
    news = data.draw(st.permutations(paths))
    there = dict(zip(paths, news, strict=True))
    try:
        out = assert_pure(tdfunc.rename_keys, td, there)
    except ValueError:
        # Some nodes have batch dims that what comes into them has not.
        assume(False)
    expected = {}
    for path, x in paths_of(td).items():
        inside = next((p for p in paths if path[: len(p)] == p), ())
        expected[(*there.get(inside, ()), *path[len(inside) :])] = x

    assert_same_leaves(out, expected)
    assert out.batch_size == td.batch_size
    back = out.rename_keys({new: old for old, new in there.items()})
    assert_same_leaves(back, paths_of(td))


@given(tensordicts(max_leaves=5), st.data())
def test_moving_one_entry_away_and_back_keeps_all_leaves(
    td: TensorDict, data: st.DataObject
) -> None:
    known = [path for path, *_ in m.walk(m.read(td))]
    assume(known)
    old = data.draw(st.sampled_from(known))
    new = tuple(data.draw(st.lists(keys(), min_size=1, max_size=3)))
    # A place of its own, so that it is free whatever the tree holds.
    new = ("somewhere else", *new)
    assume(old[0] != "somewhere else")

    out = assert_pure(tdfunc.rename_key, td, old, new)

    expected = {
        (*new, *path[len(old) :]) if path[: len(old)] == old else path: x
        for path, x in paths_of(td).items()
    }
    assert_same_leaves(out, expected)


@given(td=tensordicts(max_leaves=5))
def test_unflattening_undoes_flattening(td: TensorDict) -> None:
    separator = "\x00/"
    flat = assert_pure(tdfunc.flatten_keys, td, separator)

    assert_same_leaves(flat, {(separator.join(p),): x for p, x in paths_of(td).items()})
    back = assert_pure(tdfunc.unflatten_keys, flat, separator)
    assert_same_leaves(back, paths_of(td))
    assert back.keys(True) == td.keys(True)
    assert back.batch_size == td.batch_size


@given(tensordicts(max_leaves=3, key=st.sampled_from(["a", "b", "a.b", "b.a", "c"])))
def test_flattening_raises_exactly_if_two_paths_join_alike(td: TensorDict) -> None:
    rows = m.walk(m.read(td))
    ends = [
        ".".join(path)
        for path, value, _ in rows
        if not isinstance(value, m.Model) or not value.entries
    ]
    if len(set(ends)) == len(ends):
        assert td.flatten_keys().keys() == tuple(ends)
    else:
        with pytest.raises(StructureError) as caught:
            td.flatten_keys()
        for name in ends:
            assert (ends.count(name) > 1) is (f"td[{name!r}]" in str(caught.value))


@given(tensordicts(max_leaves=5), st.data())
def test_parts_of_a_split_are_disjoint_and_merge_to_the_tree(
    td: TensorDict, data: st.DataObject
) -> None:
    paths = data.draw(disjoint(td))
    cut = data.draw(st.integers(0, len(paths)))

    parts = assert_pure(tdfunc.split_keys, td, paths[:cut], paths[cut:])

    assert len(parts) == 3
    for part in parts:
        assert_valid(part)
    together: list[m.Path] = [path for part in parts for path in paths_of(part)]
    assert len(together) == len(set(together))
    assert_same_leaves(tdfunc.merge(*parts), paths_of(td))


@given(td=tensordicts(max_leaves=5))
def test_filters_are_idempotent_and_keep_every_tensor(td: TensorDict) -> None:
    for do in (tdfunc.filter_empty, tdfunc.filter_non_tensor):
        out = assert_pure(do, td)
        assert_same_leaves(out, paths_of(td))
        assert_equal(do(out), out)


@given(td=tensordicts(max_leaves=5))
def test_inferred_batch_size_can_not_be_longer(td: TensorDict) -> None:
    assume(paths_of(td))
    out = assert_pure(tdfunc.auto_batch_size, td)

    assert_same_leaves(out, paths_of(td))
    assert out.batch_size[: td.batch_dims] == td.batch_size
    longer = {x.shape[: out.batch_dims + 1] for x in paths_of(td).values()}
    assert len(longer) > 1 or len(*longer) == out.batch_dims


@given(tensordicts(max_leaves=5), st.data())
def test_a_function_splits_as_the_list_of_its_paths(
    td: TensorDict, data: st.DataObject
) -> None:
    paths = [*paths_of(td)]
    taken = data.draw(st.sets(st.sampled_from(paths))) if paths else set()
    by_function = td.split_keys(lambda path, _: path in taken)
    by_list = td.split_keys([path for path in td._schema.paths() if path in taken])

    for one, other in zip(by_function, by_list, strict=True):
        assert_equal(one, other)


@given(tensordicts(max_leaves=5))
def test_merging_a_tree_with_itself_meets_every_leaf(td: TensorDict) -> None:
    seen: list[Any] = []

    def second(x: Any, y: Any) -> Any:
        seen.append(x)
        assert x is y
        return y

    assert_equal(tdfunc.merge(td, td, on_conflict=second), td)
    assert len(seen) == td._schema.n + td._schema.m


@given(tensordicts(max_leaves=4), st.data())
def test_unpadding_undoes_padding(td: TensorDict, data: st.DataObject) -> None:
    assume(td.batch_dims and all(td.batch_size) and td._schema.n)
    dim = data.draw(st.integers(-td.batch_dims, td.batch_dims - 1))
    count = data.draw(st.integers(1, td.batch_size[dim]))
    rows = [td, td.narrow(dim, 0, count), td]

    whole, mask = assert_pure(tdfunc.pad_sequence, rows, dim)
    assert_valid(whole)
    assert int(mask.sum()) == sum(row.numel() for row in rows)
    for row, back in zip(rows, tdfunc.unpad_sequence(whole, mask, dim), strict=True):
        assert_equal(back, row)
