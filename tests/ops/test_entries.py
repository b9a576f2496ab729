"""Setting, merging and leaving out entries: a new tree that shares the rest."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import (
    BatchSizeError,
    InvalidKeyError,
    MissingKeyError,
    OperandError,
    OptionError,
    PathThroughLeafError,
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

Size = torch.Size


def new_leaf(case: Case) -> torch.Tensor:
    return ramp(*case.batch, 2) - 1


# set


@cases()
def test_set_adds_a_key_at_the_end_and_shares_the_rest(case: Case) -> None:
    td, x = case.tree, new_leaf(case)
    out = td.set("zz new", x)
    check(out, case.batch, {**case.leaves, ("zz new",): x}, case.statics)
    assert out.keys() == (*td.keys(), "zz new")
    assert out.names == case.names
    found = leaves_of(out)
    assert all(found[path] is leaf for path, leaf in case.leaves.items())
    assert found["zz new",] is x
    check(td, case.batch, case.leaves, case.statics)


@cases(lambda case: bool(case.leaves))
def test_set_replaces_any_leaf_in_its_place(case: Case) -> None:
    td = case.tree
    for path, leaf in case.leaves.items():
        x = torch.zeros_like(leaf)
        out = td.set(path, x)
        check(out, case.batch, {**case.leaves, path: x}, case.statics)
        assert out.keys(True) == td.keys(True)
        assert out[path] is x


@cases(lambda case: bool(case.leaves))
def test_set_takes_a_leaf_of_another_rank(case: Case) -> None:
    td = case.tree
    for path, leaf in case.leaves.items():
        x = leaf[..., None].expand(*leaf.shape, 3)
        out = td.set(path, x)
        check(out, case.batch, {**case.leaves, path: x}, case.statics)
        inner = case.batches[path[:-1]]
        assert (out[path[:-1]] if path[1:] else out).batch_size == Size(inner)


@cases()
def test_set_makes_the_nodes_that_are_missing_on_the_way(case: Case) -> None:
    x = new_leaf(case)
    out = case.tree.set(("m1", "m2", "deep"), x)
    check(out, case.batch, {**case.leaves, ("m1", "m2", "deep"): x}, case.statics)
    assert out["m1", "m2"].batch_size == Size(case.batch)
    # A nested node that is there is entered, not replaced.
    twice = out.set(("m1", "other"), x)
    assert twice["m1"].keys() == ("m2", "other")


def test_set_puts_statics_and_trees_where_tensors_were_and_back() -> None:
    td = TensorDict({"a": None, "b": {"c": ramp(2)}, "d": ramp(2), "e": ramp(2)}, 2)
    x = ramp(2) + 5
    assert same(td.set("a", x)["a"], x)
    assert td.set("d", "text")["d"] == "text"
    assert td.set("b", TensorDict({"z": x}, 2)).keys(True)[2] == ("b", "z")
    assert td.set("b", x)["b"] is x
    assert td.set("d", {"n": {"m": x}})["d", "n", "m"] is x
    assert td.set("b", {}).keys(True) == ("a", "b", "d", "e")
    mixed = td.set("d", {"s": "text", "t": x})
    assert (mixed["d", "s"], mixed["a"]) == ("text", None)
    assert mixed["d", "t"] is x


def test_set_of_one_place_leaves_the_same_tensor_in_another() -> None:
    x = ramp(2)
    td = TensorDict({"d": x, "e": x})
    out = td.set("d", x + 1)
    assert out["e"] is x
    assert td["d"] is x


def test_set_keeps_statics_in_order_around_new_ones() -> None:
    td = TensorDict({"a": "1", "c": {"x": "2", "z": "3"}, "d": "4"})
    out = td.set("b", "new").set(("c", "y"), "other").set("a", "first")
    assert statics_of(out) == {
        ("a",): "first",
        ("c", "x"): "2",
        ("c", "z"): "3",
        ("c", "y"): "other",
        ("d",): "4",
        ("b",): "new",
    }


def test_set_broadcasts_nothing() -> None:
    td = TensorDict({"x": ramp(3, 2)}, 3)
    for value in (1.0, torch.tensor(1.0), ramp(1, 2), ramp(2, 3), [1, 2]):
        for key in ("x", "y", ("n", "y")):
            with pytest.raises(BatchSizeError, match=re.escape("starts with [3]")):
                td.set(key, value)


def test_set_into_a_wider_node_wants_its_batch() -> None:
    td = TensorDict({"a": TensorDict({"o": ramp(2, 3, 4)}, (2, 3)), "r": ramp(2)}, 2)
    x = ramp(2, 3)
    out = td.set(("a", "new"), x)
    assert out["a"].batch_size == Size((2, 3))
    assert out["a", "new"] is x
    assert out.set(("a", "m", "deep"), x)["a", "m"].batch_size == Size((2, 3))
    for path in (("a", "new"), ("a", "o"), ("a", "m", "deep")):
        with pytest.raises(BatchSizeError, match=re.escape("starts with [2, 3]")):
            td.set(path, ramp(2, 4))


def test_set_of_a_tree_read_from_another_keeps_its_batch() -> None:
    row = TensorDict({"ag": TensorDict({"o": ramp(8, 3, 4)}, (8, 3))}, 8)
    td = TensorDict({"x": ramp(8)}, 8)
    out = td.set("in", row)
    assert out["in", "ag"].batch_size == Size((8, 3))
    assert row["ag"].batch_size == Size((8, 3))


def test_set_inside_vmap_and_grad_works_on_what_is_there() -> None:
    td = TensorDict({"x": ramp(3, 2)}, 3)
    out = torch.vmap(lambda t: t.set(("n", "y"), t["x"].sum()))(td)
    check(out, (3,), {("x",): ramp(3, 2), ("n", "y"): ramp(3, 2).sum(1)})
    gradient = torch.func.grad(lambda t: (t.set("y", t["x"] ** 2)["y"]).sum())(td)
    check(gradient, (3,), {("x",): 2 * ramp(3, 2)})


# update


@cases()
def test_update_with_itself_changes_nothing(case: Case) -> None:
    td = case.tree
    for out in (td.update(td), td.update(td.to_dict() if not case.statics else td)):
        check(out, case.batch, case.leaves, case.statics)
        assert out.keys(True) == td.keys(True)
    check(td.update(), case.batch, case.leaves, case.statics)
    check(td.update({}), case.batch, case.leaves, case.statics)


@cases()
def test_update_adds_what_another_tree_has(case: Case) -> None:
    x = new_leaf(case)
    out = case.tree.update({"zz": x, "zn": {"y": x}}, zk=x)
    more = {("zz",): x, ("zn", "y"): x, ("zk",): x}
    check(out, case.batch, {**case.leaves, **more}, case.statics)


def test_update_merges_nested_mappings_and_replaces_the_rest() -> None:
    a, b, c, d = (ramp(2) + i for i in range(4))
    td = TensorDict({"n": {"a": a, "m": {"b": b, "s": "keep"}}, "x": a}, 2)
    out = td.update({"n": {"m": {"b": c, "new": d}, "a": {"now": d}}, "x": "text"})
    assert out["n", "m", "b"] is c
    assert out["n", "m", "new"] is d
    assert out["n", "m", "s"] == "keep"
    assert out["n", "a", "now"] is d
    assert out["x"] == "text"
    assert td["n", "a"] is a
    # A node replaced by a leaf.
    assert td.update({"n": a})["n"] is a


def test_update_with_a_tree_merges_too_and_keywords_win() -> None:
    a, b, c = (ramp(2) + i for i in range(3))
    td = TensorDict({"n": {"a": a}, "x": a}, 2)
    other = TensorDict({"n": {"b": b}, "x": b}, 2)
    out = td.update(other, x=c)
    assert out.keys(True) == ("n", ("n", "a"), ("n", "b"), "x")
    assert (out["x"] is c, out["n", "b"] is b) == (True, True)


def test_update_inside_a_wider_node_wants_its_batch() -> None:
    td = TensorDict({"a": TensorDict({"o": ramp(2, 3, 4)}, (2, 3)), "r": ramp(2)}, 2)
    out = td.update({"a": {"o": ramp(2, 3), "new": ramp(2, 3, 1)}})
    assert out["a"].batch_size == Size((2, 3))
    with pytest.raises(BatchSizeError, match=re.escape("td['a', 'o'] - expected")):
        td.update({"a": {"o": ramp(2, 4)}})


def test_statics_of_a_tree_are_taken_as_they_are_and_not_read_anew() -> None:
    values = {"number": 2, "list": ["a"], "dict": {"k": 1}, "tensor": ramp(2)}
    td = TensorDict({key: NonTensorData(value) for key, value in values.items()})
    for out in (
        td.update(td),
        td.replace(td),
        TensorDict({"x": 1}).update(td),
        TensorDict({"n": {}}).update({"n": td})["n"],
        TensorDict({"n": {"number": "old"}}).update({"n": td})["n"],
        TensorDict(td),
        TensorDict({"n": td})["n"],
        TensorDict({}).set("n", td)["n"],
    ):
        for key, value in values.items():
            assert out[key] is value
        assert not [key for key in out.keys(True) if isinstance(key, tuple)]


def test_update_marks_dicts_as_one_value_only_when_told() -> None:
    td = TensorDict({"d": NonTensorData({"k": 1})})
    assert td.update({"d": NonTensorData({})})["d"] == {}
    assert td.update({"d": {"k": 2}}).keys(True) == ("d", ("d", "k"))


@pytest.mark.parametrize("other", [1, "text", [("a", 1)], ramp(2)], ids=repr)
def test_update_from_something_else_is_refused(other: Any) -> None:
    with pytest.raises(OperandError) as caught:
        TensorDict({"a": 1}).update(other)
    text = str(caught.value)
    assert "can not be updated from this" in text
    assert "expected a mapping or a tree" in text
    assert f"got {type(other).__name__}" in text


def test_update_checks_all_before_it_builds() -> None:
    td = TensorDict({"a": ramp(2)}, 2)
    with pytest.raises(BatchSizeError):
        td.update({"a": ramp(2) + 1, "b": ramp(3)})
    assert td.keys() == ("a",)
    assert same(td["a"], ramp(2))


# replace


@cases()
def test_replace_of_every_entry_by_itself_changes_nothing(case: Case) -> None:
    td = case.tree
    check(td.replace(td), case.batch, case.leaves, case.statics)
    assert td.replace(td).keys(True) == td.keys(True)


def test_replace_changes_what_is_there() -> None:
    td = TensorDict({"n": {"a": ramp(2), "b": ramp(2)}, "x": ramp(2), "s": "t"}, 2)
    out = td.replace({"n": {"a": ramp(2) + 1}}, s="other")
    assert same(out["n", "a"], ramp(2) + 1)
    assert out["n", "b"] is td["n", "b"]
    assert out["s"] == "other"
    assert td.replace({"x": {"new": ramp(2)}}).keys(True)[-2] == ("x", "new")


@pytest.mark.parametrize(
    ("other", "path"),
    [({"z": 1}, "td['z']"), ({"n": {"z": 1}}, "td['n', 'z']")],
    ids=str,
)
def test_replace_adds_nothing(other: Any, path: str) -> None:
    td = TensorDict({"n": {"a": 1}, "x": 1})
    with pytest.raises(MissingKeyError, match=re.escape(path)):
        td.replace(other)
    with pytest.raises(OperandError):
        td.replace([1])  # pyright: ignore[reportArgumentType]


# drop, exclude, select


@cases()
def test_dropping_any_entry_leaves_the_others(case: Case) -> None:
    td = case.tree
    for key in td.keys(True):
        path = key if isinstance(key, tuple) else (key,)
        for out in (td.drop(key), td.exclude(key), td.exclude(key, "zzz", ("z", "z"))):
            kept = {p: x for p, x in case.leaves.items() if p[: len(path)] != path}
            rest = {p: v for p, v in case.statics.items() if p[: len(path)] != path}
            check(out, case.batch, kept, rest)
            assert path not in out
            assert out.names == case.names


@cases()
def test_selecting_any_entry_leaves_it_only_with_its_parents(case: Case) -> None:
    td = case.tree
    for key in td.keys(True):
        path = key if isinstance(key, tuple) else (key,)
        out = td.select(key)
        kept = {p: x for p, x in case.leaves.items() if p[: len(path)] == path}
        rest = {p: v for p, v in case.statics.items() if p[: len(path)] == path}
        check(out, case.batch, kept, rest)
        assert path in out
        assert len(out.keys()) == 1


@cases()
def test_selecting_all_or_nothing(case: Case) -> None:
    td = case.tree
    check(td.select(*td.keys()), case.batch, case.leaves, case.statics)
    check(td.exclude(), case.batch, case.leaves, case.statics)
    check(td.drop(), case.batch, case.leaves, case.statics)
    check(td.select(), case.batch, {}, {})
    check(td.exclude(*td.keys()), case.batch, {}, {})


def test_select_keeps_the_order_of_the_tree_and_exclude_empty_nodes() -> None:
    td = TensorDict({"b": 1, "n": {"y": 2, "x": 3}, "a": 4})
    assert td.select("a", ("n", "x"), "b").keys(True) == ("b", "n", ("n", "x"), "a")
    assert td.exclude(("n", "x"), ("n", "y")).keys(True) == ("b", "n", "a")
    assert td.drop(("n", "x"), ("n", "y")).keys(True) == ("b", "n", "a")
    assert td.select("n", ("n", "x")).keys(True) == ("n", ("n", "y"), ("n", "x"))


def test_a_node_emptied_by_drop_keeps_its_parents_batch() -> None:
    td = TensorDict({"a": TensorDict({"o": ramp(2, 3)}, (2, 3)), "r": ramp(2)}, 2)
    out = td.drop(("a", "o"))
    assert out["a"].batch_size == Size((2,))
    assert out.set(("a", "o"), ramp(2)).batch_size == Size((2,))


def test_missing_entries_raise_or_are_ignored_as_said() -> None:
    td = TensorDict({"obs": 1, "n": {"a": 2}})
    for use in (td.drop, td.select):
        for key in ("obz", ("n", "zzz"), ("zzz", "a")):
            with pytest.raises(MissingKeyError, match="no such entry"):
                use("obs", key)
    with pytest.raises(PathThroughLeafError):
        td.drop(("obs", "x"))
    assert td.select("obs", "obz", ("zzz", "a"), strict=False).keys() == ("obs",)
    assert td.exclude("obz", ("obs", "x")).keys() == ("obs", "n")
    for use in (td.drop, td.select, td.exclude):
        with pytest.raises(InvalidKeyError):
            use(1)  # pyright: ignore[reportArgumentType]


# with_batch_size, with_names


@cases()
def test_any_shared_leading_shape_can_be_the_batch_size(case: Case) -> None:
    td = case.tree
    for dims in range(len(case.batch) + 1):
        size = case.batch[:dims]
        out = td.with_batch_size(size)
        check(out, size, case.leaves, case.statics)
        names = case.names[:dims] if case.names else None
        assert out.names == (names if names and any(names) else None)
        # And back: the leaves have not moved.
        check(out.with_batch_size(case.batch), case.batch, case.leaves, case.statics)


def test_a_longer_batch_size_is_read_into_the_features() -> None:
    td = TensorDict({"a": ramp(3, 4, 5), "n": {"b": ramp(3, 4)}}, 3, names=["t"])
    out = td.with_batch_size([3, 4])
    assert out.batch_size == out["n"].batch_size == Size((3, 4))
    assert out.names == ("t", None)
    assert out[:, 0]["a"].shape == (3, 5)
    with pytest.raises(BatchSizeError, match=re.escape("td['n', 'b']")):
        td.with_batch_size([3, 4, 5])


def test_a_wider_node_keeps_its_own_dims_when_its_parent_changes() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4)}, (2, 3))
    td = TensorDict({"a": inner, "x": ramp(2, 3, 4, 5)}, 2)
    for size, expected in (
        ([], (2, 3)),
        ([2], (2, 3)),
        ([2, 3], (2, 3)),
        ([2, 3, 4], (2, 3, 4)),
    ):
        out = td.with_batch_size(size)
        assert out.batch_size == Size(size)
        assert out["a"].batch_size == Size(expected)


def test_with_batch_size_of_a_tree_without_leaves_takes_any_size() -> None:
    assert TensorDict({"s": "t", "n": {}}).with_batch_size(7).batch_size == Size((7,))


def test_with_names_names_removes_and_refuses() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3))
    named = td.with_names(["t", None])
    assert named.names == ("t", None)
    assert td.names is None
    assert named.with_names(None).names is None
    with pytest.raises(OptionError, match="expected 2 names"):
        td.with_names(["t"])


@cases()
def test_no_operation_on_entries_changes_its_tree(case: Case) -> None:
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td, x = case.tree, new_leaf(case)
    keys = td.keys(True)
    td.set("zz", x).update({"zn": {"y": x}}).replace(zz=x + 1).drop("zz").select()
    td.exclude(*td.keys()), td.with_batch_size([]), td.update(td), td.replace(td)
    assert fingerprint(tensors) == before
    assert td.keys(True) == keys
    assert td.batch_size == Size(case.batch)


@pytest.mark.parametrize("name", ["select", "drop", "exclude"])
def test_narrowing_a_tree_that_a_map_made_keeps_its_ranks(name: str) -> None:
    td = TensorDict({"x": torch.ones(2, 3), "y": torch.ones(2, 3)}, 2)
    mapped = tree_map(lambda x: x.sum(-1), td.with_batch_size([2, 3]))
    key = "x" if name == "select" else "y"
    narrowed = getattr(mapped, name)(key)
    assert narrowed.batch_size == (2,)
    assert (narrowed * torch.ones(2))["x"].shape == (2,)
