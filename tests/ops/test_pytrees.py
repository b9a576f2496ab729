"""Any pytree as a tree, and back to the last type."""

from __future__ import annotations

import copy
import pickle
from collections import Counter, OrderedDict, UserDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import OperandError, StructureError
from tests.cases import Case, cases, fingerprint, ramp


class Point(NamedTuple):
    x: Any
    y: Any


class Tagged(dict[Any, Any]):
    """A dict with an attribute, whose own methods must not be needed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mirror = dict.fromkeys(self)

    def clear(self) -> None:
        self.mirror.clear()
        super().clear()


class Rows(list[Any]):
    pass


class Pair(tuple[Any, ...]):  # noqa: SLOT001 - for its attributes
    pass


X = ramp(3, 2)

PYTREES: dict[str, Any] = {
    "list": [X, X + 1],
    "list of twelve": [X + i for i in range(12)],
    "tuple": (X, (X + 1, ())),
    "named tuple": Point(X, Point(None, "s")),
    "return type": torch.max(X, 0),
    "dict": {"b": X, "a": [X, {}]},
    "keys that are no strings": {1: X, "1": X + 1, None: X + 2, (2, 3): [X], "": X},
    "mixed keys": {1: X, "a": X + 1, 1.5: {True: X}},
    "ordered dict": OrderedDict([("b", X), ("a", X)]),
    "default dict": defaultdict(list, {"a": X, "b": [X]}),
    "counter": Counter({"a": 3, "b": 1}),
    "dict subclass": Tagged(a=X, b=[X]),
    "list subclass": Rows([X, Rows()]),
    "tuple subclass": Pair([X, 1]),
    "not tensors": [None, "s", 1, 2.5, True, np.float32(1), 10**30, {1, 2}, b"x"],
    "empty": [{}, [], (), None],
}


def same_tree(a: Any, b: Any) -> bool:
    """Return whether two pytrees are the same: types, order, the very leaves."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        same = list(map(repr, a)) == list(map(repr, b)) and list(a) == list(b)
        return same and all(same_tree(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_tree, a, b))
    return a is b


@pytest.mark.parametrize("name", PYTREES)
def test_to_pytree_undoes_from_pytree(name: str) -> None:
    pytree = PYTREES[name]
    before = copy.copy(pytree)
    td, treedef = tdfunc.from_pytree(pytree)
    out = tdfunc.to_pytree(td, treedef)
    assert same_tree(out, pytree)
    assert same_tree(pytree, before)
    assert out is not pytree or pytree == ()
    again = td.to_pytree(pickle.loads(pickle.dumps(treedef)))
    assert type(again) is type(pytree)
    assert tdfunc.from_pytree(pytree)[1] == treedef
    assert hash(tdfunc.from_pytree(pytree)[1]) == hash(treedef)


def test_attributes_of_subclasses_are_kept_and_the_original_is_not_touched() -> None:
    tagged = Tagged(a="x")
    out = tdfunc.to_pytree(*tdfunc.from_pytree(tagged))
    assert out.mirror == tagged.mirror == {"a": None}
    default = tdfunc.to_pytree(*tdfunc.from_pytree(defaultdict(list)))
    assert default["new"] == []
    pair = Pair([1])
    pair.tag = "t"  # pyright: ignore[reportAttributeAccessIssue]
    out = tdfunc.to_pytree(*tdfunc.from_pytree(pair))
    assert out.tag == "t"
    moved = OrderedDict(a=1, b=2)
    moved.move_to_end("a")
    out = tdfunc.to_pytree(*tdfunc.from_pytree(moved))
    assert list(out) == ["b", "a"]
    out["c"] = 3
    assert list(moved) == ["b", "a"]


def test_lists_of_twelve_keep_numeric_order() -> None:
    td, treedef = tdfunc.from_pytree([X + i for i in range(12)], batch_size=3)
    assert td.keys() == tuple(map(str, range(12)))
    out = tdfunc.to_pytree(td[0] * 2, treedef)
    assert [x[0].item() for x in out] == [2.0 * i for i in range(12)]


def test_keys_that_are_no_strings_are_told_apart() -> None:
    td, _ = tdfunc.from_pytree({1: X, "1": X + 1, "1_": X + 2, "": X + 3})
    assert td.keys() == ("1__", "1", "1_", "_")
    assert td["1"] is not X
    assert td["1__"] is X


def test_tensors_are_leaves_and_all_else_is_static() -> None:
    inner = TensorDict({"z": X}, (3, 2))
    array = np.ones(3)
    pytree = {"t": X, "n": 3, "a": array, "td": inner, "u": UserDict(x=X)}
    td, treedef = tdfunc.from_pytree(pytree, batch_size=3)
    assert td.keys(True, True) == ("t", ("td", "z"))
    assert (td["n"], td["a"]) == (3, array)
    assert td["td"].batch_size == (3, 2)
    out = tdfunc.to_pytree(td * 2, treedef)
    assert out["a"] is array
    assert torch.equal(out["t"], X * 2)
    assert out["td"].equal(inner * 2)
    assert out["td"].batch_size == (3, 2)
    inferred, _ = tdfunc.from_pytree([X, {"a": ramp(3)}], auto_batch_size=True)
    assert inferred.batch_size == (3,)
    capped, _ = tdfunc.from_pytree([X], batch_dims=1)
    assert capped.batch_size == (3,)


@cases()
def test_a_tree_is_its_own_tree(case: Case) -> None:
    td = case.tree
    before = fingerprint(case.leaves.values())
    same, treedef = tdfunc.from_pytree(td)
    assert same is td
    assert td.to_pytree(treedef) is td
    if case.leaves:  # a nested node without tensors has the batch size above it
        out = tdfunc.to_pytree(*tdfunc.from_pytree({"a": [td]}, batch_size=()))
        assert out["a"][0].equal(td, equal_nan=True)
    assert fingerprint(case.leaves.values()) == before
    if td.batch_dims:
        assert tdfunc.from_pytree(td, batch_size=())[0].batch_size == ()


def test_treedefs_compare_and_print() -> None:
    make: Any = lambda tree: tdfunc.from_pytree(tree)[1]  # noqa: E731
    assert make([X]) == make([X * 2])
    assert make([X]) != make((X,))
    assert make({1: X}) != make({"1": X})
    assert make([X]) != make([X, X])
    assert make([X]) != "treedef"
    assert repr(make({"a": [X]})) == "PyTreeDef(td: dict, td['a']: list)"


def test_what_is_no_pytree_is_refused() -> None:
    with pytest.raises(OperandError) as caught:
        tdfunc.from_pytree(X)
    text = str(caught.value)
    assert "this is no container - expected a list, a tuple, a dict or a tree" in text
    assert "tdfunc.from_pytree([value])" in text
    loop: list[Any] = [X]
    loop.append({"again": loop})
    with pytest.raises(StructureError, match=r"at td\['1', 'again'\]"):
        tdfunc.from_pytree(loop)


def test_trees_with_other_entries_are_refused() -> None:
    td, treedef = tdfunc.from_pytree([X, {"a": X}])
    for other in (td.drop(("1", "a")), td.set(("1", "b"), X), td.set("1", X)):
        with pytest.raises(StructureError) as caught:
            other.to_pytree(treedef)
        text = str(caught.value)
        assert "does not have the entries of the pytree - at td['1']" in text
        assert "expected the keys ['a']" in text
    with pytest.raises(StructureError, match=r"expected the keys \['0', '1'\]"):
        td.drop("0").to_pytree(treedef)
    with pytest.raises(OperandError, match="only a tree definition"):
        td.to_pytree("list")


def test_deep_pytrees_convert() -> None:
    value: Any = X
    for _ in range(2000):
        value = [value]
    td, treedef = tdfunc.from_pytree(value)
    out = td.to_pytree(treedef)
    for _ in range(2000):
        (out,) = out
    assert out is X


def test_pytrees_map_differentiate_and_compile() -> None:
    def fn(x: torch.Tensor) -> Any:
        td, treedef = tdfunc.from_pytree({"a": [x, (x * 2,)], 3: x})
        return tdfunc.to_pytree(td * 3, treedef)

    out = torch.compile(fn, fullgraph=True, backend="eager")(X[0])
    assert torch.equal(out["a"][1][0], fn(X[0])["a"][1][0])
    assert torch.equal(out[3], X[0] * 3)
    mapped = torch.vmap(fn)(X)
    assert torch.equal(mapped["a"][1][0], X * 6)
    grad = torch.func.grad(lambda x: fn(x)["a"][1][0].sum())(X)
    assert torch.equal(grad, torch.full_like(X, 6))
