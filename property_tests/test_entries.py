"""Entries against the model: any sequence of operations, every version kept."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from property_tests import model as m
from tdfunc import TensorDict
from tdfunc._core.node import Node
from tdfunc.errors import TdfuncError
from tdfunc.testing import (
    assert_pure,
    assert_valid,
    batch_sizes,
    keys,
    tensordicts,
    tensors,
)

NARROW = st.sampled_from("abc")


def plain(value: Any) -> Any:
    """Return what is given to the library for a value of the model."""
    return m.build(value) if isinstance(value, m.Model) else value


@given(batch_sizes(), st.data())
def test_what_goes_in_comes_out(size: torch.Size, data: st.DataObject) -> None:
    """Building a tree and reading it gives the entries, in their order."""
    drawn = data.draw(st.dictionaries(keys(), tensors(size), max_size=4))
    nested = data.draw(st.dictionaries(keys(), tensors(size), max_size=3))
    entries = {**drawn, "nested": nested, "text": "value"}

    td = TensorDict(entries, size)

    assert tuple(entries) == td.keys()
    assert tuple(nested) == td["nested"].keys()
    assert all(
        td[key] is entries[key] for key in drawn if key not in {"nested", "text"}
    )
    assert all(td["nested", key] is x for key, x in nested.items())
    assert size == td.batch_size == td["nested"].batch_size
    assert "value" == td["text"]


@given(tensordicts())
def test_tree_of_the_model_of_a_tree_is_the_tree(td: TensorDict) -> None:
    m.assert_is(m.read(td), m.build(m.read(td)))


@given(tensordicts())
def test_tree_of_its_own_dict_has_its_entries(td: TensorDict) -> None:
    """to_dict gives plain dicts with the very tensors of the tree."""
    plain_dict = td.to_dict()

    def check(td: Any, entries: dict[str, Any]) -> None:
        assert td.keys() == tuple(entries)
        for key, value in entries.items():
            if isinstance(td[key], Node):
                check(td[key], value)
            else:
                assert td[key] is value

    check(td, plain_dict)


@given(
    td=tensordicts(),
    nested=st.booleans(),
    leaves_only=st.booleans(),
    sort=st.booleans(),
)
def test_keys_values_and_items_agree_with_reading(
    td: TensorDict, *, nested: bool, leaves_only: bool, sort: bool
) -> None:
    """All three list what a walk over the model lists."""
    rows = list(m.walk(m.read(td)))
    if not nested:
        rows = [row for row in rows if len(row[0]) == 1]
    if leaves_only:
        rows = [row for row in rows if isinstance(row[1], torch.Tensor)]
    if sort:
        rows.sort(key=lambda row: row[0])
    expected = [m.short(path) for path, *_ in rows]

    found = td.keys(nested, leaves_only, sort=sort)

    assert expected == list(found)
    items = td.items(nested, leaves_only, sort=sort)
    assert expected == [key for key, _ in items]
    values = td.values(nested, leaves_only, sort=sort)
    for key, (_, item), value in zip(expected, items, values, strict=True):
        assert key in td
        if not isinstance(item, Node):
            assert td[key] is item is value is td.get(key)


@given(tensordicts(), st.data())
def test_missing_paths_raise_key_errors(td: TensorDict, data: st.DataObject) -> None:
    path = tuple(data.draw(st.lists(keys(), min_size=1, max_size=3)))
    known = m.has(m.read(td), path)

    assert known == (path in td)
    if not known:
        with pytest.raises(KeyError) as caught:
            td[path]
        assert isinstance(caught.value, TdfuncError)


class Entries(RuleBasedStateMachine):
    """One tree and its model go through the same operations.

    Every version that was ever made must stay what it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.versions: list[tuple[m.Model, TensorDict]] = []

    @property
    def model(self) -> m.Model:
        return self.versions[-1][0]

    @property
    def td(self) -> TensorDict:
        return self.versions[-1][1]

    @initialize(td=tensordicts(key=NARROW, max_leaves=3))
    def start(self, td: TensorDict) -> None:
        self.versions.append((m.read(td), td))

    def step(self, name: str, expected: Any, *args: Any, **kwargs: Any) -> None:
        """Do the same to both: the results, or the kinds of error, must be the same."""
        try:
            model = expected()
        except m.Refused as refused:
            self.refuse(refused.kind, name, *args, **kwargs)
            return
        td = assert_pure(getattr(self.td, name), *args, **kwargs)
        self.versions.append((model, td))

    def refuse(
        self, kind: type[Exception], name: str, *args: Any, **kwargs: Any
    ) -> None:
        with pytest.raises(kind) as caught:
            assert_pure(getattr(self.td, name), *args, **kwargs)

        assert isinstance(caught.value, TdfuncError)

    # What is drawn depends on the tree so far.

    def paths(self) -> list[m.Path]:
        return [path for path, *_ in m.walk(self.model)]

    def draw_path(self, data: st.DataObject) -> m.Path:
        """Draw a path that is there, one below or beside it, or any."""
        known = [(), *self.paths()]
        prefix = data.draw(st.sampled_from(known), label="prefix")
        least = 0 if prefix else 1
        more = data.draw(st.lists(NARROW, min_size=least, max_size=2), label="more")
        return (*prefix, *more)

    def draw_known(self, data: st.DataObject) -> list[m.Path]:
        known = self.paths()
        if not known:
            return []
        return data.draw(st.lists(st.sampled_from(known), max_size=3), label="paths")

    def draw_value(self, data: st.DataObject, size: torch.Size) -> Any:
        """Draw what may become an entry of a node with a batch size, or may not."""
        nodes = tensordicts(size, key=NARROW, max_leaves=2).map(m.read)
        other = batch_sizes(max_dims=2).flatmap(
            lambda size: tensordicts(size, key=NARROW, max_leaves=1).map(m.read)
        )
        mappings = st.dictionaries(NARROW, tensors(size), max_size=2)
        return data.draw(
            st.one_of(
                tensors(size), mappings, st.text(max_size=2), nodes, other, tensors()
            )
            if data.draw(st.booleans(), label="any kind")
            else tensors(size),
            label="value",
        )

    def draw_entries(self, data: st.DataObject) -> dict[str, Any]:
        """Draw a mapping that goes one or two levels deep along the tree."""
        entries: dict[str, Any] = {}
        for key in data.draw(st.lists(NARROW, unique=True, max_size=2), label="keys"):
            old = self.model.entries.get(key)
            if isinstance(old, m.Model) and data.draw(st.booleans(), label="merge"):
                inner = data.draw(NARROW, label="key")
                entries[key] = {inner: self.draw_value(data, old.size)}
            else:
                entries[key] = self.draw_value(data, self.model.size)
        return entries

    def home(self, path: m.Path) -> torch.Size:
        """Return the batch size of the deepest node on the way to a path."""
        for i in range(len(path) - 1, 0, -1):
            if m.has(self.model, path[:i]):
                node = m.get(self.model, path[:i])
                if isinstance(node, m.Model):
                    return node.size
        return self.model.size

    # Operations

    @rule(data=st.data())
    def set(self, data: st.DataObject) -> None:
        path = self.draw_path(data)
        value = self.draw_value(data, self.home(path))
        key = path[0] if len(path) == 1 and data.draw(st.booleans()) else path
        self.step(
            "set", lambda: m.set_entry(self.model, path, value), key, plain(value)
        )

    @rule(data=st.data(), as_tree=st.booleans())
    def update(self, data: st.DataObject, *, as_tree: bool) -> None:
        entries = self.draw_entries(data)
        other: Any = {key: plain_deep(value) for key, value in entries.items()}
        if as_tree:
            try:
                other = TensorDict(other, self.model.size)
            except ValueError:
                return
            entries = m.read(other)
        self.step("update", lambda: m.update(self.model, entries), other)

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        entries = self.draw_entries(data)

        def expected() -> m.Model:
            if not m.known(self.model, entries):
                raise m.Refused(KeyError)
            return m.update(self.model, entries)

        other = {key: plain_deep(value) for key, value in entries.items()}
        self.step("replace", expected, other)

    @precondition(lambda self: self.paths())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        paths = self.draw_known(data)
        self.step("drop", lambda: m.exclude(self.model, {*paths}), *paths)

    @rule(data=st.data())
    def drop_missing(self, data: st.DataObject) -> None:
        path = self.draw_path(data)
        if not m.has(self.model, path):
            self.refuse(KeyError, "drop", path)

    @rule(data=st.data())
    def exclude(self, data: st.DataObject) -> None:
        paths = [*self.draw_known(data), self.draw_path(data)]
        self.step("exclude", lambda: m.exclude(self.model, {*paths}), *paths)

    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        paths = self.draw_known(data)
        if paths or data.draw(st.booleans(), label="nothing"):
            self.step("select", lambda: m.select(self.model, {*paths}), *paths)

    @rule(data=st.data(), strict=st.booleans())
    def select_missing(self, data: st.DataObject, *, strict: bool) -> None:
        path = self.draw_path(data)
        if m.has(self.model, path):
            return
        if strict:
            self.refuse(KeyError, "select", path)
        else:
            self.step("select", lambda: m.select(self.model, set()), path, strict=False)

    @rule(data=st.data())
    def step_into(self, data: st.DataObject) -> None:
        """Go on with a nested node: it must be a tree as good as any."""
        nodes = [p for p, value, _ in m.walk(self.model) if isinstance(value, m.Model)]
        if nodes:
            path = data.draw(st.sampled_from(nodes), label="node")
            self.versions.append((m.get(self.model, path), self.td[path]))

    # What holds after each

    @invariant()
    def the_newest_version_is_what_the_model_says(self) -> None:
        if self.versions:
            assert_valid(self.td)
            m.assert_is(self.model, self.td)

    @invariant()
    def membership_is_that_of_the_model(self) -> None:
        for path in itertools.islice(self.paths() if self.versions else (), 3):
            assert path in self.td
            assert (*path, "zzz") not in self.td

    def teardown(self) -> None:
        for model, td in self.versions[:-1]:
            m.assert_is(model, td)


def plain_deep(value: Any) -> Any:
    """Return what is given to the library, inside plain mappings too."""
    if isinstance(value, dict):
        return {key: plain_deep(part) for key, part in value.items()}
    return plain(value)


TestEntries = Entries.TestCase
