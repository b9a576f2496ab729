"""Keys are non-empty strings, paths tuples of keys; anything else says what it is."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from tdfunc import TensorDict
from tdfunc.errors import InvalidKeyError, MissingKeyError, PathThroughLeafError
from tests.cases import cases, ramp, shown

NO_KEYS = [1, 1.5, None, True, b"a", ("a",), object()]


@pytest.mark.parametrize("key", NO_KEYS, ids=shown)
@pytest.mark.parametrize("beside", [{}, {"a": torch.zeros(2)}, {"s": "static"}])
def test_a_key_that_is_no_string_is_named_with_its_type(key: Any, beside: Any) -> None:
    with pytest.raises(InvalidKeyError) as caught:
        TensorDict({**beside, key: torch.zeros(2)}, 2)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    text = str(caught.value)
    assert f"key {key!r} is not a string" in text
    assert "expected a non-empty string" in text
    assert f"got {type(key).__name__}" in text
    fix = "td.set(('a',), value)" if key == ("a",) else f"use {str(key)!r}"
    assert f"to fix: {fix}" in text


def test_the_empty_string_is_no_key() -> None:
    for build in (
        lambda: TensorDict({"": torch.zeros(2)}),
        lambda: TensorDict({"s": "static", "": torch.zeros(2)}),
        lambda: TensorDict({"a": 1}).set("", 1),
        lambda: TensorDict({"a": 1}).update({"": 1}),
        lambda: TensorDict({"a": 1})[""],
        lambda: TensorDict({"a": 1}).get(""),
        lambda: TensorDict({"a": 1}).drop(""),
        lambda: TensorDict({"a": 1}).set(("a", ""), 1),
    ):
        with pytest.raises(InvalidKeyError, match="the empty string is no key"):
            build()


def test_a_bad_key_in_a_nested_mapping_says_in_which_node() -> None:
    source: Any = {"n": {"m": {1: torch.zeros(2)}}}
    for build in (
        lambda: TensorDict(source),
        lambda: TensorDict({}).update(source),
        lambda: TensorDict({"n": {}}).update(source),
        lambda: TensorDict({"n": {"m": {"a": 1}}}).replace(source),
        lambda: TensorDict({}).set("n", source["n"]),
    ):
        with pytest.raises(InvalidKeyError, match=r"key 1 .*at td\['n', 'm'\]"):
            build()


def test_keys_that_mix_ints_and_strings_name_the_int() -> None:
    source: Any = {"a": torch.zeros(1), 1: torch.zeros(1)}
    with pytest.raises(InvalidKeyError, match=r"key 1 is not a string.*got int"):
        TensorDict.from_dict(source)


@pytest.mark.parametrize("key", [1, None, [], ["a"], (), 1.5, {"a"}], ids=repr)
def test_what_is_neither_key_nor_path_names_no_entry(key: Any) -> None:
    td = TensorDict({"a": torch.zeros(2)})
    for use in (
        lambda: td.get(key),
        lambda: td.set(key, torch.ones(2)),
        lambda: td.set(key, "static"),
        lambda: td.drop(key),
        lambda: td.select(key),
        lambda: td.exclude(key),
    ):
        with pytest.raises(InvalidKeyError, match="names no entry") as caught:
            use()
        text = str(caught.value)
        assert "expected a non-empty string or a non-empty tuple of them" in text
        got = "an empty tuple" if key == () else type(key).__name__
        assert f"got {got}" in text


@pytest.mark.parametrize("path", [("a", 1), ("a", None), ("a", ["b"])], ids=repr)
def test_a_part_of_a_path_that_is_no_string_is_named(path: Any) -> None:
    td = TensorDict({"a": {"b": torch.zeros(2)}})
    for use in (lambda: td.get(path), lambda: td.set(path, torch.ones(2))):
        with pytest.raises(InvalidKeyError, match="is not a string"):
            use()


def test_nested_tuples_are_one_path() -> None:
    x = ramp(2)
    td = TensorDict({"a": {"b": {"c": x}}})
    paths: list[Any] = [
        ("a", "b", "c"),
        (("a", "b"), "c"),
        ("a", ("b", ("c",))),
        (("a",), "b", "c"),
    ]
    for path in paths:
        assert td[path] is x
        assert td.get(path) is x
        assert path in td
        assert td.set(path, x + 1)["a", "b", "c"].tolist() == [1, 2]


def test_a_tuple_of_one_key_is_that_key() -> None:
    td = TensorDict({"a": ramp(2)})
    assert td[("a",)] is td["a"]
    assert td.set(("b",), ramp(2)).keys() == ("a", "b")


def test_a_dotted_key_is_one_key() -> None:
    td = TensorDict({"a.b": torch.tensor(1), "a": {"b": torch.tensor(2)}})
    assert td["a.b"].item() == 1
    assert td["a", "b"].item() == 2
    assert ("a.b" in td, ("a", "b") in td) == (True, True)
    assert td.drop("a.b").keys(True) == ("a", ("a", "b"))


def test_keys_equal_to_names_of_methods_are_entries_like_others() -> None:
    names = [
        "keys",
        "items",
        "set",
        "batch_size",
        "shape",
        "_schema",
        "__class__",
        "sum",
    ]
    td = TensorDict({name: torch.tensor(i) for i, name in enumerate(names)})
    assert [td[name].item() for name in names] == list(range(len(names)))
    assert td.keys() == tuple(names)
    assert td.batch_size == torch.Size([])


def test_unicode_keys_are_told_apart_by_code_points() -> None:
    composed, decomposed = "é", "e\u0301"
    td = TensorDict({composed: 1, decomposed: 2})
    assert (td[composed].item(), td[decomposed].item()) == (1, 2)


def test_a_missing_key_names_the_nearest() -> None:
    td = TensorDict({"obs": 1, "reward": 2, "n": {"action": 3, "deep": {"er": 4}}})
    for read, path, near in (
        (lambda: td["obz"], "td['obz']", "one of 'obs'"),
        (lambda: td["n", "actoin"], "td['n', 'actoin']", "one of 'action'"),
        (lambda: td["n"]["actoin"], "td['actoin']", "one of 'action'"),
        (lambda: td["n", "deep", "err"], "td['n', 'deep', 'err']", "one of 'er'"),
        (lambda: td["x", "y"], "td['x', 'y']", "one of 'obs'"),
        (lambda: td.drop("rewrad"), "td['rewrad']", "one of 'reward'"),
        (lambda: td.select(("n", "acton")), "td['n', 'acton']", "one of 'action'"),
        (lambda: td.replace(obz=1), "td['obz']", "one of 'obs'"),
    ):
        with pytest.raises(MissingKeyError) as caught:
            read()
        assert isinstance(caught.value, KeyError)
        text = str(caught.value)
        # A KeyError prints the repr of its message; ours prints the message.
        assert text.startswith("there is no such entry")
        assert f"at {path}" in text
        assert f"expected {near}" in text


def test_a_missing_key_of_an_empty_node_says_that_it_is_empty() -> None:
    with pytest.raises(MissingKeyError, match="the node is empty"):
        TensorDict({})["a"]


def test_a_path_through_a_leaf_names_the_leaf() -> None:
    td = TensorDict({"n": {"x": torch.zeros(2), "s": "text"}})
    for use in (
        lambda path: td[path],
        td.get,
        lambda path: td.set(path, 1),
        td.drop,
    ):
        for key, kind in (("x", "a tensor"), ("s", "a static value")):
            with pytest.raises(PathThroughLeafError) as caught:
                use(("n", key, "deeper"))
            assert isinstance(caught.value, KeyError)
            assert isinstance(caught.value, ValueError)
            text = str(caught.value)
            assert f"goes on below td['n', '{key}'], which is {kind}" in text
            assert f"at td['n', '{key}', 'deeper']" in text
            assert "expected a node" in text
            assert f"got {kind}" in text
    assert td.get(("n", "x", "deeper"), 5) == 5
    assert ("n", "x", "deeper") not in td


def test_errors_pickle_with_their_parts() -> None:
    td = TensorDict({"obs": 1})
    with pytest.raises(MissingKeyError) as caught:
        td["n", "obz"]
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is MissingKeyError
    assert str(again) == str(caught.value)
    assert again.path == ("n", "obz")


@cases()
def test_keys_come_in_the_order_in_which_they_were_written(case: Any) -> None:
    td = case.tree
    assert td.keys() == tuple(case.entries)
    assert td.keys(sort=True) == tuple(sorted(case.entries))


def test_keys_list_nested_paths_parents_first_and_leaves_only_without_statics() -> None:
    td = TensorDict({"b": {"z": 1, "a": {}, "s": "x"}, "a": 2, "none": None})
    nested = ("b", ("b", "z"), ("b", "a"), ("b", "s"), "a", "none")
    assert td.keys() == ("b", "a", "none")
    assert td.keys(include_nested=True) == nested
    assert td.keys(leaves_only=True) == ("a",)
    assert td.keys(True, True) == (("b", "z"), "a")
    assert td.keys(True, sort=True) == (
        *("a", "b", ("b", "a"), ("b", "s"), ("b", "z"), "none"),
    )
    assert [type(v).__name__ for v in td.values(True)] == [
        *("TensorDict", "Tensor", "TensorDict", "str", "Tensor", "NoneType"),
    ]
    assert tuple(k for k, _ in td.items(True)) == nested
    assert [v for k, v in td.items() if k == "none"] == [None]


def test_keys_values_and_items_can_not_be_used_to_change_the_tree() -> None:
    td = TensorDict({"a": 1})
    for view in (td.keys(), td.values(), td.items(), td.keys(True, True, sort=True)):
        assert isinstance(view, tuple)


def test_membership_takes_keys_and_paths_only() -> None:
    td = TensorDict({"a": {"b": 1}})
    assert "a" in td
    assert "b" not in td
    assert ("a", "b") in td
    assert ("a", "b", "c") not in td
    for other in (torch.tensor(1), 1, None, ["a"]):
        with pytest.raises(TypeError, match="only keys and paths") as caught:
            other in td  # noqa: B015 - must raise
        assert f"got {type(other).__name__}" in str(caught.value)


def test_get_returns_the_default_only_where_there_is_no_entry() -> None:
    td = TensorDict({"a": torch.tensor(1), "none": None, "n": {}})
    assert td.get("zzz") is None
    assert td.get("zzz", 0.0) == 0.0
    assert td.get(("n", "missing")) is None
    assert td.get(("n", "missing"), "d") == "d"
    assert td.get(("zzz", "missing"), "d") == "d"
    assert td.get("none", "d") is None
    assert td.get("a", "d") is td["a"]
