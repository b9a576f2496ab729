"""Splitting a tree by leaf and putting it back."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.utils._pytree import tree_map

import tdfunc
from property_tests import model as m
from tdfunc import TensorDict
from tdfunc.errors import TdfuncError
from tdfunc.testing import assert_equal, assert_pure, assert_valid, tensordicts

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS: dict[str, Callable[[torch.dtype], bool]] = {
    "floating": lambda d: (
        d in {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    ),
    "complex": lambda d: d == torch.complex64,
    "inexact": lambda d: KINDS["floating"](d) or KINDS["complex"](d),
    "integer": lambda d: d in {torch.int64, torch.int32, torch.uint8},
    "bool": lambda d: d == torch.bool,
}


@st.composite
def splits(draw: st.DrawFn) -> tuple[TensorDict, Any, set[m.Path]]:
    """Draw a tree, a predicate of any kind, and the paths that it takes."""
    td = draw(tensordicts())
    rows = {path: x for path, x, _ in m.leaves(m.read(td))}
    kind = draw(st.sampled_from(["function", "dtype", "kind", "mapping", "tree"]))
    if kind == "dtype":
        dtype = draw(st.sampled_from([torch.float32, torch.int64, torch.bool]))
        return td, dtype, {path for path, x in rows.items() if x.dtype == dtype}
    if kind == "kind":
        name = draw(st.sampled_from(sorted(KINDS)))
        return td, name, {path for path, x in rows.items() if KINDS[name](x.dtype)}
    flags = {path: draw(st.booleans()) for path in rows}
    taken = {path for path, flag in flags.items() if flag}
    if kind == "function":
        return td, lambda path, x: flags[path] and x is rows[path], taken
    if kind == "tree":
        order = iter(sorted(flags))
        tree = tree_map(lambda _: flags[next(order)], td)
        return td, tree, taken
    named = {
        path: flag
        for path, flag in flags.items()
        if flag or draw(st.booleans(), label="named")
    }
    return td, {m.short(p): flag for p, flag in named.items()}, taken


@given(splits())
def test_each_leaf_goes_to_one_side(case: tuple[TensorDict, Any, set[m.Path]]) -> None:
    td, predicate, taken = case

    left, right = assert_pure(tdfunc.partition, td, predicate)

    for side in (left, right):
        assert_valid(side)
        assert td.batch_size == side.batch_size
        assert td.names == side.names
    assert taken == {path for path, *_ in m.leaves(m.read(left))}
    for path, x, _ in m.leaves(m.read(td)):
        assert (left if path in taken else right)[path] is x
    assert all(path in right for path in _statics(td))
    assert not _statics(left)


@given(splits())
def test_combine_undoes_partition(case: tuple[TensorDict, Any, set[m.Path]]) -> None:
    """But for the order of keys."""
    td, predicate, _ = case
    left, right = tdfunc.partition(td, predicate)

    for again in (
        assert_pure(tdfunc.combine, left, right),
        assert_pure(tdfunc.combine, right, left),
    ):
        assert_valid(again)
        assert_equal(td, again, names=True)
    assert all(tdfunc.combine(left, right)[p] is x for p, x, _ in m.leaves(m.read(td)))


def _statics(td: TensorDict) -> set[m.Path]:
    rows = m.walk(m.read(td))
    return {path for path, value, _ in rows if isinstance(value, tdfunc.NonTensorData)}


@given(
    st.lists(
        tensordicts([2], key=st.sampled_from("abc"), names=False, max_leaves=2),
        min_size=1,
        max_size=3,
    )
)
def test_combine_takes_trees_without_common_entries_only(
    tds: list[TensorDict],
) -> None:
    """Nodes may be in several; anything else in two trees raises."""
    models = list(map(m.read, tds))

    try:
        expected = reduce(_combined, models)
    except m.Refused as refused:
        with pytest.raises(refused.kind) as caught:
            assert_pure(tdfunc.combine, *tds)
        assert isinstance(caught.value, TdfuncError)
    else:
        found = assert_pure(tdfunc.combine, *tds)
        assert_valid(found)
        m.assert_is(expected, found)


def _combined(one: m.Model, two: m.Model) -> m.Model:
    """Return both models in one.

    Raises:
        m.Refused: both have an entry that is no node, or nodes with other batch sizes.
    """
    entries = dict(one.entries)
    for key, value in two.entries.items():
        old = entries.get(key)
        if old is None:
            entries[key] = m.fitted(value, one.size)
        elif isinstance(old, m.Model) and isinstance(value, m.Model):
            # A node without leaves has no batch size of its own to insist on.
            sizes = {node.size for node in (old, value) if node.has_leaves()}
            if len(sizes) > 1:
                raise m.Refused(ValueError)
            size = next(iter(sizes), one.size)
            sides = [m.Model(size, node.entries) for node in (old, value)]
            entries[key] = _combined(*sides)
        else:
            raise m.Refused(ValueError)
    return m.settled(m.Model(one.size, entries))
