"""Statics: one box passed on by reference, compared safely, never looked into."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import NonTensorData, TensorDict, unbatched
from tdfunc._core.statics import NO_STATICS, Statics, same_value
from tdfunc.errors import StructureError
from tests.cases import ramp

NAN = float("nan")


class Loud:
    """Raises whenever it is looked at."""

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __hash__(self) -> int:
        raise ValueError

    def __bool__(self) -> bool:
        raise ValueError

    def __repr__(self) -> str:
        raise ValueError


class Ambiguous:
    def __eq__(self, other: object) -> Any:
        return np.array([True, False])

    __hash__ = None  # pyright: ignore[reportAssignmentType]


EQUAL: list[tuple[Any, Any]] = [
    ("a", "a"),
    (None, None),
    (NAN, float("nan")),
    ([1, (2, {"k": NAN})], [1, (2, {"k": float("nan")})]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (np.arange(3), np.arange(3)),
    (np.array([1.0, NAN]), np.array([1.0, NAN])),
    (np.array(["a"]), np.array(["a"])),
    (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN])),
    (torch.tensor([1, 2]), torch.tensor([1, 2])),
    ({1, 2}, {2, 1}),
]
DIFFERENT: list[tuple[Any, Any]] = [
    ("a", "b"),
    (1, True),
    (1, 1.0),
    (1.0, True),
    (0, False),
    ([1], (1,)),
    ([1], [1.0]),
    ([1, 2], [1]),
    ({"a": 1}, {"b": 1}),
    ({"a": 1}, {"a": 2}),
    (np.arange(3), np.arange(3) + 1),
    (np.arange(3), np.arange(3.0)),
    (np.arange(4), np.arange(4).reshape(2, 2)),
    (np.arange(3), torch.arange(3)),
    (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
    (torch.zeros(2), torch.zeros(1, 2)),
    (object(), object()),
    (Loud(), Loud()),
    (Ambiguous(), Ambiguous()),
    (None, "None"),
]


def numbered(pairs: list[tuple[Any, Any]]) -> list[str]:
    # By type: some of them can not be printed.
    return [
        f"{i}: {type(a).__name__}, {type(b).__name__}" for i, (a, b) in enumerate(pairs)
    ]


@pytest.mark.parametrize(("a", "b"), EQUAL, ids=numbered(EQUAL))
def test_equal_values_are_the_same(a: Any, b: Any) -> None:
    assert same_value(a, b)
    assert same_value(b, a)
    assert Statics((a,)) == Statics((b,))
    assert hash(Statics((a,))) == hash(Statics((b,)))
    assert NonTensorData(a) == NonTensorData(b)
    assert hash(NonTensorData(a)) == hash(NonTensorData(b))


@pytest.mark.parametrize(("a", "b"), DIFFERENT, ids=numbered(DIFFERENT))
def test_other_values_and_types_are_not_and_nothing_raises(a: Any, b: Any) -> None:
    assert not same_value(a, b)
    assert not same_value(b, a)
    assert same_value(a, a)
    assert Statics((a,)) != Statics((b,))
    assert NonTensorData(a) != NonTensorData(b)


def test_values_that_contain_themselves_compare_without_end() -> None:
    one: list[Any] = [1]
    one.append(one)
    two: list[Any] = [1]
    two.append(two)
    assert same_value(one, two)
    two.append(3)
    assert not same_value(one, two)


def test_boxes_of_other_lengths_and_other_things_differ() -> None:
    assert Statics(("a",)) != Statics(("a", "b"))
    assert Statics(("a",)) != ("a",)
    assert Statics(()) == NO_STATICS
    assert "a" in repr(Statics(("a",)))


def test_the_empty_box_is_one_object_through_pickle_and_copy() -> None:
    td = TensorDict({"x": ramp(2)})
    assert td._statics is NO_STATICS
    assert pickle.loads(pickle.dumps(td))._statics is NO_STATICS
    assert copy.deepcopy(td)._statics is NO_STATICS


def test_operations_pass_the_box_on_without_looking_inside() -> None:
    loud = Loud()
    td = TensorDict({"x": ramp(2, 3), "n": {"loud": loud, "y": ramp(2, 3)}}, (2, 3))
    for out in (
        *(td * 2, td + td, -td, td[0], td[[1, 0]], td.reshape(6), td.permute(1, 0)),
        *(td.sum(), td.mean(0), td.apply(torch.sin), td.to(torch.float64)),
        *(tdfunc.stack([td, td]), tdfunc.cat([td, td]), td.clone(), td.detach()),
        *(pytree.tree_map(torch.sin, td), torch.vmap(lambda t: t * 2)(td)),
        *(td.set("z", ramp(2, 3)), td.drop("x"), td.with_names(["a", "b"])),
        *(td.eq(td), td.unbind()[0], td.expand(4, 2, 3)),
    ):
        assert out["n", "loud"] is loud
        assert out["n"]["loud"] is loud


def test_statics_of_the_left_operand_win() -> None:
    a = TensorDict({"x": ramp(2), "s": "left"}, 2)
    b = TensorDict({"x": ramp(2), "s": "right"}, 2)
    assert (a + b)["s"] == "left"
    assert (b + a)["s"] == "right"
    assert a.apply(torch.add, b)["s"] == "left"


def test_joining_other_statics_makes_rows_and_with_statics_aligns_them() -> None:
    a = TensorDict({"x": ramp(2), "s": "one", "n": {"t": "t", "u": None}}, 2)
    b = a.set("s", "two")
    joins: list[Any] = [tdfunc.stack, tdfunc.cat, torch.stack, torch.cat]
    for join in joins:
        out = join([a, b])
        rows = [["one"] * 2, ["two"] * 2]
        assert out["s"] == (rows if out.batch_dims == 2 else [*rows[0], *rows[1]])
        assert (out["n", "t"], out["n", "u"]) == ("t", None)
        assert join([a, b.with_statics(a)])["s"] == "one"


def test_joining_other_unbatched_tensors_names_each() -> None:
    a = TensorDict({"x": ramp(2), "n": {"g": unbatched(ramp(3))}}, 2)
    for join in (tdfunc.stack, tdfunc.cat):
        with pytest.raises(StructureError) as caught:
            join([a, a.set(("n", "g"), unbatched(ramp(3) + 1))])
        text = str(caught.value)
        assert "tree 1 has other unbatched tensors" in text
        assert "td['n', 'g'] tensor([1., 2., 3.])" in text
        assert "td.with_statics(other) aligns them" in text
        assert join([a, a.clone()])["n", "g"] is a["n", "g"]


def test_with_statics_wants_the_same_entries() -> None:
    a = TensorDict({"x": ramp(2), "s": "one"}, 2)
    with pytest.raises(StructureError, match=r"td\['s'\] is missing"):
        a.with_statics(a.drop("s"))


def test_with_statics_pairs_by_path_whatever_the_order_of_keys() -> None:
    a = TensorDict({"s": "a1", "t": "a2", "x": 1})
    b = TensorDict({"x": 1, "t": "b2", "s": "b1"})
    out = a.with_statics(b)
    assert (out["s"], out["t"], out.keys()) == ("b1", "b2", ("s", "t", "x"))


def test_equal_sees_statics() -> None:
    td = TensorDict({"x": ramp(2), "s": "a"})
    assert not td.equal(td.set("s", "b"))
    assert td.equal(td.set("s", "a"))
    for one, two in ((1, True), (1, 1.0), (True, 1.0)):
        left = td.set("s", NonTensorData(one))
        assert not left.equal(td.set("s", NonTensorData(two)))
    assert td.set("s", NonTensorData(NAN)).equal(td.set("s", NonTensorData(NAN)))
    # A tensor and an equal static number are two kinds.
    assert not td.set("s", 1).equal(td.set("s", NonTensorData(1)))


def test_a_dict_marked_as_one_value_is_never_read_as_keys() -> None:
    empty: dict[str, Any] = {}
    td = TensorDict({"d": NonTensorData(empty)}, 1)
    for out in (td, td[0], tdfunc.stack([td, td]), tdfunc.cat([td, td]), td.clone()):
        assert out["d"] is empty
        assert out.keys(True) == ("d",)


def test_non_tensor_data_shows_what_it_holds() -> None:
    assert repr(NonTensorData([1])) == "NonTensorData([1])"
    assert NonTensorData([1]).data == [1]
    assert NonTensorData([1]) != [1]
