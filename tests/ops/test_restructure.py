"""Moving, flattening, splitting, merging and filtering entries: leaves are shared."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import (
    BatchSizeError,
    InvalidKeyError,
    InvalidLeafError,
    MissingKeyError,
    OperandError,
    OptionError,
    ShapeError,
    StructureError,
)
from tests.cases import (
    Case,
    cases,
    check,
    fingerprint,
    leaves_of,
    ramp,
    same,
    statics_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Size = torch.Size
T = torch.tensor


def tree() -> TensorDict:
    return TensorDict(
        {
            "b": ramp(3, 2),
            "n": {"x": ramp(3), "s": "text", "m": {"y": ramp(3, 4)}},
            "a": ramp(3) - 1,
        },
        3,
        names=["row"],
    )


def is_same(td: TensorDict, leaves: dict[Any, torch.Tensor]) -> None:
    """Assert that the leaves of a tree are these very tensors."""
    found = leaves_of(td)
    assert found.keys() == leaves.keys()
    for path, leaf in leaves.items():
        assert found[path] is leaf, path


# rename_keys


@cases()
def test_renaming_any_leaf_moves_it_and_shares_everything(case: Case) -> None:
    before = fingerprint(case.leaves.values())
    td = case.tree
    for path, leaf in case.leaves.items():
        rest = {p: x for p, x in case.leaves.items() if p != path}
        for new in (("zz new",), ("zz new", "deep")):
            out = td.rename_key(path, new)
            check(out, case.batch, {**rest, new: leaf}, case.statics)
            is_same(out, {**rest, new: leaf})
            assert out.names == case.names
    assert fingerprint(case.leaves.values()) == before
    check(td, case.batch, case.leaves, case.statics)


@cases()
def test_renaming_every_root_entry_keeps_order_and_batch_dims(case: Case) -> None:
    td = case.tree
    out = td.rename_keys({key: f"new {key}" for key in td.keys()})  # noqa: SIM118
    assert out.keys() == tuple(f"new {key}" for key in td.keys())  # noqa: SIM118
    for key in td.keys():  # noqa: SIM118
        value = td[key]
        if isinstance(value, TensorDict):
            assert out[f"new {key}"].batch_size == value.batch_size
    back = out.rename_keys({f"new {k}": k for k in td.keys()})  # noqa: SIM118
    check(back, case.batch, case.leaves, case.statics)


def test_swaps_chains_and_cycles_read_all_sources_first() -> None:
    td = TensorDict({"a": 1, "b": 2, "c": 3})
    assert td.rename_keys({"a": "b", "b": "a"}).to_dict() == {"b": 1, "a": 2, "c": 3}
    assert td.rename_keys({"a": "b", "b": "c", "c": "d"}).to_dict() == {
        "b": 1,
        "c": 2,
        "d": 3,
    }
    cycle = td.rename_keys({"a": "b", "b": "c", "c": "a"})
    assert cycle.to_dict() == {"b": 1, "c": 2, "a": 3}
    assert td.rename_keys({"a": "a"}).equal(td)
    assert td.rename_keys({}).equal(td)


def test_entries_keep_their_places_and_join_where_they_are_met() -> None:
    td = tree()
    assert td.rename_key("n", "z").keys() == ("b", "z", "a")
    assert td.rename_key("b", ("n", "b")).keys(True) == (
        *("n", ("n", "b"), ("n", "x"), ("n", "s"), ("n", "m"), ("n", "m", "y"), "a"),
    )
    assert td.rename_key("a", ("n", "a")).keys(True)[-1] == ("n", "a")
    assert td.rename_key(("n", "s"), "s")["s"] == "text"


def test_a_node_emptied_by_renaming_goes_and_an_empty_one_stays() -> None:
    td = TensorDict({"n": {"m": {"y": 1}}, "e": {}})
    out = td.rename_key(("n", "m", "y"), "y")
    assert out.keys(True) == ("y", "e")
    assert td.rename_key("e", ("n", "e")).keys(True) == (
        *("n", ("n", "m"), ("n", "m", "y"), ("n", "e")),
    )
    # A name that only an emptied node had is free.
    assert td.rename_key(("n", "m", "y"), "n").to_dict() == {"n": 1, "e": {}}
    assert td.rename_key("n", ("n", "n")).keys(True)[:2] == ("n", ("n", "n"))


def test_renaming_into_and_out_of_a_node_with_more_batch_dims() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4), "r": ramp(2, 3)}, (2, 3))
    td = TensorDict({"ag": inner, "x": ramp(2, 3, 5), "n": {"z": ramp(2)}}, 2)
    out = td.rename_key(("ag", "o"), "o")
    assert out["ag"].batch_size == Size((2, 3))
    assert out[0]["o"].shape == (3, 4)
    out = td.rename_key("x", ("ag", "x"))
    assert out["ag"].batch_size == Size((2, 3))
    assert out["ag"][0, 1]["x"].shape == (5,)
    moved = td.rename_key("ag", ("n", "ag"))
    assert moved["n", "ag"].batch_size == Size((2, 3))
    assert moved["n"].batch_size == Size((2,))
    same_dims = td.set(("ag", "sub"), {"y": ramp(2, 3)}).rename_key(
        ("ag", "sub"), "sub"
    )
    assert same_dims["sub"].batch_size == Size((2, 3))
    for old in (("n", "z"), "n"):
        with pytest.raises(BatchSizeError, match=r"starts with \[2, 3\]") as caught:
            td.rename_key(old, ("ag", "new"))
        assert "td['ag', 'new'" in str(caught.value)
    with pytest.raises(BatchSizeError, match=re.escape("td['ag', 'new', 'z']")):
        td.rename_key("n", ("ag", "new"))
    # Its last leaf takes the batch dims along: what comes in has those of the root.
    alone = TensorDict({"ag": inner.select("r"), "x": ramp(2)}, 2)
    out = alone.rename_keys({("ag", "r"): "r", "x": ("ag", "x")})
    assert out["ag"].batch_size == Size((2,))


@pytest.mark.parametrize(
    ("mapping", "kind", "parts"),
    [
        ({"zzz": "a"}, MissingKeyError, ["td['zzz']", "strict=False"]),
        ({"a": "b"}, StructureError, ["same path", "td['b']", "drop"]),
        ({"a": "n"}, StructureError, ["td['n']"]),
        ({"n": "a"}, StructureError, ["td['a']"]),
        ({"a": ("n", "x"), "b": ("n", "s")}, StructureError, ["'x'", "'s'"]),
        ({"a": ("b", "c")}, StructureError, ["td['b', 'c']"]),
        ({"a": ("b", "c", "d")}, StructureError, ["td['b', 'c', 'd']"]),
        ({"a": "z", "b": "z"}, StructureError, ["new paths", "td['z']"]),
        ({"a": "z", "b": ("z", "y")}, StructureError, ["new paths", "td['z', 'y']"]),
        ({"n": "z", ("n", "x"): "x"}, StructureError, ["apart", "td['n', 'x']"]),
        ({"a": "z", ("a",): "y"}, StructureError, ["to rename", "td['a']"]),
        ({"a": ""}, InvalidKeyError, ["empty string"]),
        ({"a": 3}, InvalidKeyError, ["3"]),
        ([("a", "z")], OperandError, ["mapping", "list"]),
    ],
)
def test_renaming_that_can_not_be_done_raises(
    mapping: Any, kind: type[Exception], parts: list[str]
) -> None:
    td = tree()
    with pytest.raises(kind) as caught:
        td.rename_keys(mapping)
    for part in parts:
        assert part in str(caught.value)


def test_not_strict_ignores_what_is_missing() -> None:
    td = tree()
    out = td.rename_keys({"zzz": "b", "a": "c"}, strict=False)
    assert out.keys() == ("b", "n", "c")


# flatten_keys and unflatten_keys


@cases(lambda case: case.name != "dotted keys")
def test_flattening_joins_every_path_and_unflattening_takes_it_apart(
    case: Case,
) -> None:
    td = case.tree
    flat = td.flatten_keys()
    expected = {(".".join(path),): x for path, x in case.leaves.items()}
    statics = {(".".join(path),): v for path, v in case.statics.items()}
    check(flat, case.batch, expected, statics)
    is_same(flat, expected)
    assert flat.names == case.names
    back = flat.unflatten_keys()
    check(back, case.batch, case.leaves, case.statics)
    assert back.keys(True) == td.keys(True)
    is_same(back, case.leaves)


def test_flattening_keeps_the_order_and_takes_any_separator() -> None:
    td = tree()
    assert td.flatten_keys().keys() == ("b", "n.x", "n.s", "n.m.y", "a")
    assert td.flatten_keys("__").keys() == ("b", "n__x", "n__s", "n__m__y", "a")
    assert td.flatten_keys("__").unflatten_keys("__").equal(td)
    assert td.unflatten_keys().equal(td)


def test_flattening_stops_at_leaves_of_the_users_choice() -> None:
    td = tree()
    seen: list[Any] = []

    def is_leaf(node: Any) -> bool:
        seen.append(node.keys())
        return "y" in node

    flat = td.flatten_keys(is_leaf=is_leaf)
    assert flat.keys(True) == ("b", "n.x", "n.s", "n.m", ("n.m", "y"), "a")
    assert seen == [("x", "s", "m"), ("y",)]
    assert flat["n.m"].equal(td["n", "m"])
    assert td.flatten_keys(is_leaf=lambda _: True).equal(td)


def test_an_empty_node_stays_a_node() -> None:
    td = TensorDict({"n": {"m": {}}, "e": {}, "x": 1})
    assert td.flatten_keys().to_dict() == {"n.m": {}, "e": {}, "x": 1}
    assert td.flatten_keys().unflatten_keys().equal(td)


def test_unflattening_merges_into_nodes_that_are_there() -> None:
    td = TensorDict({"n.a": 1, "n": {"b": 2, "d.e": 3}, "n.c.d": 4})
    assert td.unflatten_keys().to_dict() == {
        "n": {"a": 1, "b": 2, "d.e": 3, "c": {"d": 4}}
    }


def test_collisions_are_all_named() -> None:
    td = TensorDict({"a.b": 1, "a": {"b": 2, "c": {"d": 3}}, "a.c.d": 4})
    with pytest.raises(StructureError, match="same path") as caught:
        td.flatten_keys()
    assert "td['a.b']" in str(caught.value)
    assert "td['a.c.d']" in str(caught.value)
    with pytest.raises(StructureError) as caught:
        td.unflatten_keys()
    assert "td['a', 'b']" in str(caught.value)
    assert "td['a', 'c', 'd']" in str(caught.value)
    for entries in ({"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}, {"a.b.c.d": 2, "a": 1}):
        with pytest.raises(StructureError):
            TensorDict(entries).unflatten_keys()
    with pytest.raises(StructureError):
        TensorDict({"a.b": {"x": 1}, "a": {"b": {"y": 2}}}).unflatten_keys()


def test_keys_that_give_empty_keys_are_all_named() -> None:
    td = TensorDict({".a": 1, "b.": 2, "c..d": 3, "e.f": 4})
    with pytest.raises(InvalidKeyError) as caught:
        td.unflatten_keys()
    assert "'.a', 'b.', 'c..d'" in str(caught.value)
    assert "rename_key" in str(caught.value)


@pytest.mark.parametrize("separator", ["", None, 3, b"."])
def test_a_separator_is_a_string(separator: Any) -> None:
    for name in ("flatten_keys", "unflatten_keys"):
        with pytest.raises(OptionError, match="separate keys"):
            getattr(tree(), name)(separator)


# split_keys


@cases()
def test_splitting_covers_the_tree_and_merging_undoes_it(case: Case) -> None:
    td = case.tree
    paths = list(case.leaves)
    first, second, rest = td.split_keys(paths[::3], {*paths[1::3]})
    is_same(first, {p: case.leaves[p] for p in paths[::3]})
    is_same(second, {p: case.leaves[p] for p in paths[1::3]})
    is_same(rest, {p: case.leaves[p] for p in paths[2::3]})
    assert statics_of(rest).keys() == case.statics.keys()
    for part in (first, second, rest):
        assert part.batch_size == Size(case.batch)
        assert part.names == case.names
    back = tdfunc.merge(rest, first, second)
    check(back, case.batch, case.leaves, case.statics)


def test_splitting_takes_nodes_and_leaves_no_emptied_ones_behind() -> None:
    td = tree().set("e", {})
    node, rest = td.split_keys(["n"])
    assert node.keys(True) == ("n", ("n", "x"), ("n", "s"), ("n", "m"), ("n", "m", "y"))
    assert rest.keys(True) == ("b", "a", "e")
    part, rest = td.split_keys([("n", "m", "y")])
    assert part.keys(True) == ("n", ("n", "m"), ("n", "m", "y"))
    assert rest.keys(True) == ("b", "n", ("n", "x"), ("n", "s"), "a", "e")
    assert [t.keys() for t in td.split_keys()] == [td.keys()]
    assert [t.keys() for t in td.split_keys([])] == [(), td.keys()]


def test_missing_keys_of_a_split_raise_are_filled_or_left_out() -> None:
    td = tree()
    with pytest.raises(MissingKeyError, match="'zzz'"):
        td.split_keys(["a", "zzz"])
    part, _ = td.split_keys(["a", "zzz"], strict=False)
    assert part.keys() == ("a",)
    part, _ = td.split_keys(["a", ("z", "z")], default=torch.zeros(3))
    assert part.keys(True) == ("a", "z", ("z", "z"))
    part, _ = td.split_keys(["zzz"], default=None)
    assert part.to_dict() == {"zzz": None}


@pytest.mark.parametrize(
    ("sets", "kind", "parts"),
    [
        ((["a"], ["b", "a"]), StructureError, ["not apart", "td['a']"]),
        ((["n"], [("n", "x")]), StructureError, ["td['n', 'x']"]),
        (("a",), OptionError, ["key set 0", "'a'", "['a']"]),
        (([3],), InvalidKeyError, ["3"]),
        ((["a"], 3), OptionError, ["key set 1", "int"]),
    ],
)
def test_splitting_that_can_not_be_done_raises(
    sets: Any, kind: type[Exception], parts: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        tree().split_keys(*sets)
    for part in parts:
        assert part in str(caught.value)


def test_a_split_can_rename_and_be_chosen_by_a_function() -> None:
    td = tree()
    part, rest = td.split_keys({"a": "z", ("n", "x"): ("k", "x")})
    assert part["z"] is td["a"]
    assert part["k", "x"] is td["n", "x"]
    assert "a" not in rest
    part, _ = td.split_keys({"a": "b", "b": "a"})
    assert part["a"] is td["b"]
    part, _ = td.split_keys({"a": "z", "zzz": "y"}, strict=False)
    assert part.keys() == ("z",)
    part, _ = td.split_keys({"zzz": "y"}, default="none")
    assert part.to_dict() == {"y": "none"}
    with pytest.raises(MissingKeyError, match="'zzz'"):
        td.split_keys({"zzz": "y"})
    with pytest.raises(StructureError, match="not apart"):
        td.split_keys({"a": "z", "b": "z"})

    seen: list[Any] = []

    def deep(path: Any, leaf: Any) -> bool:
        seen.append((path, leaf))
        return len(path) > 1

    listed, chosen, rest = td.split_keys([("n", "x")], deep)
    assert [path for path, _ in seen] == [("a",), ("b",), ("n", "m", "y")]
    assert all(leaf is td[path] for path, leaf in seen)
    assert chosen.keys(True, True) == (("n", "m", "y"),)
    assert rest.keys(True) == ("b", "n", ("n", "s"), "a")
    check(tdfunc.merge(rest, listed, chosen), td.batch_size, leaves_of(td))
    every, rest = td.split_keys(lambda _path, _leaf: True)
    assert leaves_of(every).keys() == leaves_of(td).keys()
    assert not leaves_of(rest)
    with pytest.raises(StructureError, match="not apart"):
        td.split_keys(lambda path, _: path == ("a",), ["a"])
    with pytest.raises(ZeroDivisionError) as caught:
        td.split_keys(lambda *_: 1 // 0)
    assert caught.value.__notes__ == ["tdfunc: at td['a']"]


# merge


def test_a_function_decides_what_two_trees_share() -> None:
    a = TensorDict({"x": ramp(2), "n": {"y": ramp(2)}, "s": "a"}, 2)
    b = TensorDict({"n": {"y": ramp(2) + 1, "z": ramp(2)}, "s": "b"}, 2)
    out = tdfunc.merge(a, b, on_conflict=lambda x, y: x + y)
    expected = {("x",): ramp(2), ("n", "y"): ramp(2) * 2 + 1, ("n", "z"): ramp(2)}
    check(out, (2,), expected, {("s",): out["s"]})
    assert out["s"] == "ab"
    assert out["x"] is a["x"]
    assert out["n", "z"] is b["n", "z"]
    numbers = [t.drop("s") for t in (a, b, a)]
    total = tdfunc.merge(*numbers, on_conflict=torch.add)
    assert total["x"].tolist() == [0, 2]
    assert total["n", "y"].tolist() == [1, 4]
    assert a.merge(b, on_conflict=lambda x, _: x)["n", "y"] is a["n", "y"]
    with pytest.raises(StructureError, match=r"two nodes at a path.*td\['n'\]"):
        numbers[0].merge(TensorDict({"n": ramp(2)}, 2), on_conflict=torch.add)
    with pytest.raises(StructureError, match=r"td\['x', 'q'\]|td\['x'\]"):
        numbers[0].merge(TensorDict({"x": {"q": ramp(2)}}, 2), on_conflict=torch.add)
    with pytest.raises(TypeError) as caught:
        numbers[1].merge(numbers[0], on_conflict=lambda x: x)  # pyright: ignore[reportArgumentType]
    assert any("td['n', 'y']" in note for note in caught.value.__notes__)


def test_merging_shares_leaves_and_lists_all_common_entries() -> None:
    a = TensorDict({"x": ramp(2), "n": {"y": ramp(2)}}, 2)
    b = TensorDict({"n": {"z": ramp(2)}, "w": ramp(2)}, 2)
    out = a.merge(b)
    is_same(out, {**leaves_of(a), **leaves_of(b)})
    assert out.keys(True) == ("x", "n", ("n", "y"), ("n", "z"), "w")
    assert a.merge().equal(a)
    with pytest.raises(StructureError, match=r"td\['n', 'y'\], td\['x'\]"):
        a.merge(TensorDict({"n": {"y": ramp(2)}, "x": ramp(2)}, 2))
    with pytest.raises(ShapeError, match="batch sizes"):
        a.merge(TensorDict({"q": ramp(3)}, 3))
    with pytest.raises(OperandError, match="dict"):
        a.merge({"q": ramp(2)})  # pyright: ignore[reportArgumentType]
    assert tdfunc.combine is tdfunc.merge


# filters


@cases()
def test_filters_leave_the_leaves_alone(case: Case) -> None:
    td = case.tree
    full = td.filter_empty()
    check(full, case.batch, case.leaves, case.statics)
    is_same(full, case.leaves)
    for path, value in full.items(True):
        assert not isinstance(value, TensorDict) or value.keys(), path
    tensors = td.filter_non_tensor()
    check(tensors, case.batch, case.leaves, {})
    is_same(tensors, case.leaves)
    for out in (full, tensors):
        assert out.names == case.names
        for path, batch in case.batches.items():
            if path and path in out and path in td and _has_leaf(out[path]):
                assert out[path].batch_size == Size(batch)


def _has_leaf(td: TensorDict) -> bool:
    return bool(td.keys(True, True))


@cases()
def test_an_emptied_tree_keeps_what_surrounds_the_leaves(case: Case) -> None:
    td = case.tree
    out = td.empty()
    check(out, case.batch, {}, {})
    assert out.names == case.names
    assert out.keys() == ()
    shell = td.empty(recurse=True)
    check(shell, case.batch, {}, case.statics)
    paths = {p[0] if len(p) == 1 else p for p in case.batches if p}
    assert paths <= {*shell.keys(True)}


def test_filters_on_a_tree_by_hand() -> None:
    td = TensorDict({"n": {"m": {}}, "s": {"t": "x"}, "a": 1, "e": {}})
    assert td.filter_empty().keys(True) == ("s", ("s", "t"), "a")
    assert td.filter_non_tensor().keys(True) == ("n", ("n", "m"), "s", "a", "e")
    assert TensorDict({"n": {}}, 3).filter_empty().batch_size == Size((3,))


# auto_batch_size


@cases(lambda case: bool(case.leaves))
def test_the_batch_size_is_the_longest_shared_prefix(case: Case) -> None:
    out = case.tree.auto_batch_size()
    is_same(out, case.leaves)
    shapes = [x.shape for x in case.leaves.values()]
    dims = 0
    while all(len(s) > dims and s[: dims + 1] == shapes[0][: dims + 1] for s in shapes):
        dims += 1
    check(out, shapes[0][:dims], case.leaves, case.statics)
    for most in range(dims):
        assert case.tree.auto_batch_size(most).batch_size == shapes[0][:most]


def test_auto_batch_size_by_hand() -> None:
    td = TensorDict({"a": ramp(3, 4), "n": {"b": ramp(3, 4, 5)}})
    assert td.auto_batch_size().batch_size == Size((3, 4))
    assert td.auto_batch_size()["n"].batch_size == Size((3, 4, 5))
    assert td.auto_batch_size(1)["n"].batch_size == Size((3,))
    assert td.auto_batch_size(0).equal(td)
    named = TensorDict({"a": ramp(3, 4)}, 3, names=["row"])
    assert named.auto_batch_size().names == ("row", None)
    assert named.auto_batch_size(0).names is None
    assert TensorDict({"s": "x"}, 3).auto_batch_size().batch_size == Size(())
    assert TensorDict({"a": 1, "b": ramp(3)}).auto_batch_size().batch_size == Size(())


@pytest.mark.parametrize("dims", [-1, 1.5, True, "1"])
def test_batch_dims_are_a_number(dims: Any) -> None:
    with pytest.raises(OptionError, match="batch_dims"):
        tree().auto_batch_size(dims)


def test_only_tensors_say_what_they_share() -> None:
    td = pytree.tree_map(lambda _: 1, tree())
    with pytest.raises(InvalidLeafError, match=re.escape("td['a']")):
        td.auto_batch_size()


# update_with


@cases(lambda case: bool(case.leaves))
def test_functions_change_the_entries_at_their_paths(case: Case) -> None:
    chosen = list(case.leaves)[::2]
    out = case.tree.update_with(dict.fromkeys(chosen, torch.zeros_like))
    expected = {
        p: torch.zeros_like(x) if p in chosen else x for p, x in case.leaves.items()
    }
    check(out, case.batch, expected, case.statics)
    assert all(out[p] is x for p, x in case.leaves.items() if p not in chosen)
    assert out.keys(True) == case.tree.keys(True)


def test_functions_get_nodes_and_statics_too() -> None:
    out = tree().update_with(
        {"n": lambda n: n.drop("m"), "b": lambda x: x.sum(-1), "a": lambda _: "none"}
    )
    assert out.keys(True) == ("b", "n", ("n", "x"), ("n", "s"), "a")
    assert out["b"].shape == (3,)
    assert out["a"] == "none"
    assert tree().update_with({("n", "s"): str.upper})["n", "s"] == "TEXT"
    assert tree().update_with({}).equal(tree())


@pytest.mark.parametrize(
    ("functions", "kind", "parts"),
    [
        ({"zzz": torch.abs}, MissingKeyError, ["td['zzz']"]),
        ({"n": abs, ("n", "x"): abs}, StructureError, ["td['n', 'x']"]),
        ({"a": abs, ("a",): abs}, StructureError, ["td['a']"]),
        ({"a": 3}, OperandError, ["functions", "int"]),
        ([abs], OperandError, ["functions", "list"]),
        ({"a": torch.sum}, BatchSizeError, ["td['a']", "[3]"]),
    ],
)
def test_changes_that_can_not_be_done_raise(
    functions: Any, kind: type[Exception], parts: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        tree().update_with(functions)
    for part in parts:
        assert part in str(caught.value)


def test_an_error_of_a_function_names_its_entry() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        tree().update_with({("n", "x"): lambda _: 1 / 0})
    assert any("td['n', 'x']" in note for note in caught.value.__notes__)


# Everything at once


def everything(td: TensorDict) -> list[TensorDict]:
    return [
        td.rename_keys({"a": "b", "b": ("n", "b"), ("n", "s"): "s"}),
        td.flatten_keys(),
        td.flatten_keys(is_leaf=lambda node: "y" in node),
        td.flatten_keys().unflatten_keys(),
        *td.split_keys(["a"], [("n", "x")]),
        tdfunc.merge(*td.split_keys(["a"], [("n", "x")])),
        *td.split_keys({"a": "z"}, lambda path, _: len(path) > 1),
        tdfunc.merge(td, td.select("a"), on_conflict=torch.add),
        td.filter_empty(),
        td.filter_non_tensor(),
        td.empty(recurse=True),
        td.auto_batch_size(1),
        td.update_with({"a": torch.exp, ("n", "x"): torch.neg}),
        td.update({"a": td["a"], "n": {"x": td["a"]}}, only=[("n", "x")]),
    ]


def test_compiled_code_gives_the_same_trees() -> None:
    td = tree()
    compiled = torch.compile(everything, fullgraph=True, backend="eager")
    for a, b in zip(compiled(td), everything(td), strict=True):
        assert a.equal(b)
        assert a.keys(True) == b.keys(True)


def test_vmap_and_grad_go_through() -> None:
    td = tree()
    outs = torch.vmap(lambda t: everything(t.with_batch_size(())))(td)
    for i in range(3):
        row = everything(td[i])
        for out, one in zip(outs, row, strict=True):
            found = out[i] if out.batch_dims else out
            for path, x in leaves_of(one).items():
                assert same(found[path], x)

    def loss(td: TensorDict) -> torch.Tensor:
        return (
            td.flatten_keys().rename_key("n.m.y", ("k", "y"))["k", "y"].square().sum()
        )

    grads = torch.func.grad(loss)(td)
    assert same(grads["n", "m", "y"], ramp(3, 4) * 2)


def test_a_tree_from_a_pytree_function_is_settled_first() -> None:
    wide = pytree.tree_map(lambda x: x[..., None], tree())
    for out in (
        wide.flatten_keys(),
        wide.rename_key("a", "c"),
        wide.split_keys(["a"])[1],
        wide.filter_non_tensor(),
        pytree.tree_map(lambda x: x[..., None], tree()).select("b", "n"),
        pytree.tree_map(lambda x: x[..., None], tree()).drop("a"),
        pytree.tree_map(lambda x: x[..., None], tree()).exclude("a"),
    ):
        assert out.batch_size == Size((3,))
        for path, rank in zip(out._schema.paths(), out._schema.ranks(), strict=True):
            assert out[path].dim() == rank + 1


def test_deep_trees_move_without_recursion() -> None:
    td = TensorDict({"leaf": ramp(2)}, 2)
    for i in range(2000):
        td = TensorDict({f"k{i}": td}, 2)
    flat = td.flatten_keys()
    assert len(flat.keys()) == 1
    assert flat.unflatten_keys().keys() == td.keys()
    assert td.rename_key("k1999", ("a", "b")).filter_empty().keys(True)[1] == ("a", "b")


def test_the_peer_flattens_and_renames_the_same() -> None:
    peer = pytest.importorskip("tensordict")
    entries = {"b": ramp(3, 2), "n": {"x": ramp(3), "m": {"y": ramp(3)}}, "a": ramp(3)}
    ours, theirs = TensorDict(entries, 3), peer.TensorDict(entries, 3)

    def agree(a: TensorDict, b: Any) -> None:
        found = {
            k if isinstance(k, tuple) else (k,): v
            for k, v in b.items(include_nested=True, leaves_only=True)
        }
        is_same(a, dict(sorted(found.items())))

    agree(ours.flatten_keys(), theirs.flatten_keys())
    agree(ours.flatten_keys("_"), theirs.flatten_keys("_"))
    agree(ours.flatten_keys().unflatten_keys(), theirs.flatten_keys().unflatten_keys())
    swap = {"a": "b", "b": ("n", "b"), ("n", "x"): "x"}
    agree(ours.rename_keys(swap), theirs.rename_keys(swap))
    for a, b in zip(
        ours.split_keys(["a"], ["n"]), theirs.split_keys(["a"], ["n"]), strict=True
    ):
        agree(a, b)


def calls_of(fn: Callable[[], Any]) -> int:
    """Return how often Python functions are entered: a time without noise."""
    count = 0

    def on_event(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(on_event)
    try:
        fn()
    finally:
        sys.setprofile(None)
    return count


def test_merging_and_splitting_cost_what_the_trees_hold() -> None:
    def merged(n: int) -> Any:
        trees = [TensorDict({f"m{i}": {"x": T(i)}, f"k{i}": i}) for i in range(n)]
        assert tdfunc.merge(*trees).keys()[-2:] == (f"m{n - 1}", f"k{n - 1}")
        return trees

    def split(n: int) -> Any:
        td = TensorDict({"n": {f"k{i}": i for i in range(n)}, "z": 1})
        sets = [[("n", f"k{i}"), ("n", f"k{i + 1}")] for i in range(0, n, 2)]
        *parts, rest = td.split_keys(*sets)
        assert [list(p["n"].keys()) for p in parts] == [[b for _, b in s] for s in sets]
        assert rest.keys(True) == ("z",)

    for work in (merged, split):
        few, many = [calls_of(partial(work, n)) for n in (60, 960)]
        assert many < 40 * few  # sixteen times as much, and a bit for the halving
