"""Field cases, area ux: what newcomers expect, and what they read when it fails.

B136 (typed records) is a matter of `TensorClass`.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import PathThroughLeafError, StructureError
from tests.cases import ramp


def test_b131_the_batch_size_is_inferred_when_asked_for_only() -> None:
    entries = {"a": torch.randn(4, 3), "b": torch.randn(4, 5)}

    assert TensorDict(entries).batch_size == ()
    assert TensorDict(entries).auto_batch_size().batch_size == (4,)
    assert tdfunc.from_dict(entries, auto_batch_size=True).batch_size == (4,)
    assert tdfunc.from_dict(entries, batch_dims=1).batch_size == (4,)


def test_b131_nested_nodes_may_have_more_and_a_scalar_leaves_none() -> None:
    entries: dict[str, Any] = {
        "k": {"s1": torch.zeros(5, 4, 3), "s2": torch.zeros(5, 4, 6)},
        "y": torch.zeros(5),
    }

    td = tdfunc.from_dict(entries, auto_batch_size=True)
    assert td.batch_size == (5,)
    assert td["k"].batch_size == (5, 4)
    td = tdfunc.from_dict(entries, batch_dims=1)
    assert td["k"].batch_size == (5,)
    scalar = tdfunc.from_dict({**entries, "one": 1.0}, auto_batch_size=True)
    assert scalar.batch_size == ()


def _assign(td: Any) -> None:
    td["x"] = 1


def _delete(td: Any) -> None:
    del td["x"]


def _row(td: Any) -> None:
    td[0] = 1


CHANGES: dict[str, tuple[Any, type[Exception], str]] = {
    "td['x'] = 1": (_assign, TypeError, r"td = td\.set\('x', value\)"),
    "del td['x']": (_delete, TypeError, r"td = td\.drop\('x'\)"),
    "td[0] = 1": (_row, TypeError, r"td = td\.at\[index\]\.set\(value\)"),
    "td.pop": (lambda td: td.pop("x"), AttributeError, r"td\[key\], td\.drop\(key\)"),
    "td.set_": (lambda td: td.set_("x", 1), AttributeError, r"td = td\.set\("),
    "td.update_": (lambda td: td.update_({}), AttributeError, r"td = td\.update\("),
    "td.exp_": (lambda td: td.exp_(), AttributeError, r"td = td\.exp\("),
    "td.batch_size = ": (
        lambda td: setattr(td, "batch_size", ()),
        AttributeError,
        r"td\.with_batch_size\(",
    ),
    "td.names = ": (
        lambda td: setattr(td, "names", None),
        AttributeError,
        "with_names",
    ),
    "td.device = ": (
        lambda td: setattr(td, "device", "cpu"),
        AttributeError,
        r"td\.to\(",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_b133_every_change_in_place_says_what_to_write_instead(name: str) -> None:
    change, kind, spelling = CHANGES[name]
    td = TensorDict({"x": torch.zeros(3)}, 3)

    with pytest.raises(kind, match=spelling):
        change(td)

    assert td["x"].tolist() == [0, 0, 0]


def test_b133_an_attribute_can_not_be_added_and_operators_bind_a_new_tree() -> None:
    td: Any = TensorDict({"x": torch.zeros(3)}, 3)
    old = td

    with pytest.raises(AttributeError):
        td.x = 1
    td += 1

    assert td["x"].tolist() == [1, 1, 1]
    assert old["x"].tolist() == [0, 0, 0]


def test_b134_updates_by_path_reach_every_kind_of_entry() -> None:
    x, y = torch.zeros(1), torch.ones(1)
    td = TensorDict({"a": None, "b": {"c": torch.zeros(2)}, "d": x, "e": x})

    assert td.set("a", y)["a"] is y
    assert td.set("b", TensorDict({"z": y}))["b"].keys() == ("z",)
    deep = td.set(("b", "new", "deep"), y)
    assert deep["b", "new", "deep"] is y
    assert deep["b", "c"] is td["b", "c"]
    assert td.set("d", y)["e"] is x
    with pytest.raises(PathThroughLeafError, match=r"td\['d'\]"):
        td.set(("d", "k"), y)


def test_b134_several_paths_at_once_may_not_meet() -> None:
    td = TensorDict({"b": {"c": torch.zeros(2)}, "d": torch.zeros(1)})

    new = td.update_with({("b", "c"): torch.exp, "d": torch.neg})
    assert new["b", "c"].tolist() == [1, 1]
    with pytest.raises(StructureError, match=r"not apart.*td\['b', 'c'\]"):
        td.update_with({"b": lambda node: node, ("b", "c"): torch.exp})
    with pytest.raises(StructureError, match=r"td\['b', 'c'\]"):
        td.rename_keys({"b": "z", ("b", "c"): "y"})


# One line of the tree: key, dtype, shape.
ROW = re.compile(r"^ +(?P<key>\S+) {2,}(?P<dtype>\w+) +\[(?P<shape>[\d, ]*)\]")


def test_b137_what_is_printed_are_the_real_shapes() -> None:
    td = TensorDict({"k": {"a": torch.arange(300).view(150, 2)}}, 150)[0]

    assert repr(td) == "TensorDict(batch_size=[], fields={k: {a: i64[2]}})"
    td = TensorDict({"k": {"a": ramp(5, 2), "b": ramp(5).long()}, "c": ramp(5, 1)}, 5)
    rows = [ROW.match(line) for line in td.to_tree_string().splitlines()]
    printed = {
        row["key"]: (row["dtype"], [int(n) for n in row["shape"].split(", ") if n])
        for row in rows
        if row is not None
    }
    assert printed == {"a": ("f32", [5, 2]), "b": ("i64", [5]), "c": ("f32", [5, 1])}


def test_b137_long_trees_and_texts_are_cut_and_nothing_is_noise() -> None:
    entries = {f"k{i}": {"a": torch.zeros(2), "b": torch.zeros(2)} for i in range(60)}
    text = repr(TensorDict({**entries, "note": "short"}, 2))

    assert len(text) < 2000
    assert "more" in text
    assert "cpu" not in text
    static = repr(TensorDict({"s": "text", "long": "y" * 500}))
    assert "'text'" in static
    assert len(static) < 200
