"""Trees of Python's containers: tuples, named tuples, dataclasses, lists, anything."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import (
    BatchSizeError,
    InvalidKeyError,
    InvalidLeafError,
    OperandError,
    OptionError,
    ShapeError,
    StructureError,
)
from tests.cases import Case, cases, check, ramp

Size = torch.Size


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Step:
    obs: torch.Tensor
    tag: str = "a"
    inner: Any = field(default_factory=dict)


def test_from_tuple_numbers_its_entries() -> None:
    x = ramp(3, 2)
    td = tdfunc.from_tuple((x, 1.5, ({"k": x}, "s"), Point(x, None)))
    check(
        td,
        (),
        {
            ("0",): x,
            ("1",): torch.tensor(1.5),
            ("2", "0", "k"): x,
            ("3", "x"): x,
        },
        {("2", "1"): "s", ("3", "y"): None},
    )
    assert td["0"] is x
    many = tdfunc.from_tuple(tuple(range(12)))
    assert many.keys() == tuple(map(str, range(12)))
    assert tdfunc.from_tuple(()).is_empty()


def test_from_namedtuple_takes_fields() -> None:
    x = ramp(3, 2)
    td = tdfunc.from_namedtuple(Point(x, Point(x * 2, "s")), batch_size=3)
    check(td, (3,), {("x",): x, ("y", "x"): x * 2}, {("y", "y"): "s"})
    found = torch.max(ramp(3, 4), 1)
    td = tdfunc.from_namedtuple(found, batch_size=[3], names=["row"])
    check(td, (3,), {("values",): found.values, ("indices",): found.indices})
    assert td.names == ("row",)
    assert tdfunc.from_namedtuple(torch.linalg.qr(torch.eye(2))).keys() == ("Q", "R")


def test_from_dataclass_takes_fields() -> None:
    x = ramp(3, 2)
    td = tdfunc.from_dataclass(Step(x, "t", Step(x * 2)), batch_size=3)
    assert td.keys(True) == (
        *("obs", "tag", "inner"),
        *(("inner", "obs"), ("inner", "tag"), ("inner", "inner")),
    )
    assert td["obs"] is x
    assert td["inner"].batch_size == (3,)
    assert td["inner", "tag"] == "a"


OPTIONS: list[dict[str, Any]] = [
    {"batch_size": 3, "names": ["row"]},
    {"auto_batch_size": True},
    {"batch_dims": 1},
    {"device": "meta"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_are_those_of_from_dict(options: dict[str, Any]) -> None:
    x, y = ramp(3, 2), ramp(3, 2, 4)

    def same(a: TensorDict, b: TensorDict) -> bool:
        if a.device == torch.device("meta"):
            return b.device == a.device
        return a.equal(b) and a.names == b.names

    expected = tdfunc.from_dict({"x": x, "y": {"x": y, "y": y}}, **options)
    value = Point(x, Point(y, y))
    assert same(tdfunc.from_namedtuple(value, **options), expected)
    assert same(tdfunc.from_any(value, **options), expected)
    pair = tdfunc.from_dict({"0": x, "1": {"0": y}}, **options)
    assert same(tdfunc.from_tuple((x, (y,)), **options), pair)
    step = tdfunc.from_dict({"obs": x, "tag": "t", "inner": {"0": y}}, **options)
    assert same(tdfunc.from_dataclass(Step(x, "t", (y,)), **options), step)


@pytest.mark.parametrize(
    ("fn", "value", "what"),
    [
        (tdfunc.from_tuple, [1], "no plain tuple"),
        (tdfunc.from_tuple, Point(1, 2), "no plain tuple"),
        (tdfunc.from_namedtuple, (1, 2), "no named tuple"),
        (tdfunc.from_namedtuple, {"a": 1}, "no named tuple"),
        (tdfunc.from_dataclass, Step, "no instance of a dataclass"),
        (tdfunc.from_dataclass, {"a": 1}, "no instance of a dataclass"),
        (tdfunc.from_list, [], "nothing to stack"),
        (tdfunc.from_list, {"a": 1}, "nothing to stack"),
        (tdfunc.from_list, [{"a": 1}, 2], "row 1 can not become a tree"),
    ],
)
def test_other_kinds_are_refused(fn: Any, value: Any, what: str) -> None:
    with pytest.raises(OperandError, match=what) as caught:
        fn(value)
    assert "expected" in str(caught.value)


def test_options_that_exclude_each_other_are_refused() -> None:
    calls: list[tuple[Any, Any]] = [
        (tdfunc.from_tuple, (1,)),
        (tdfunc.from_namedtuple, Point(1, 2)),
        (tdfunc.from_dataclass, Step(ramp(1))),
        (tdfunc.from_any, (1,)),
    ]
    for fn, value in calls:
        with pytest.raises(OptionError, match="given and to be inferred"):
            fn(value, batch_size=[], auto_batch_size=True)
    with pytest.raises(OptionError, match="given and to be inferred"):
        tdfunc.from_list([{"a": 1}], batch_size=[1], auto_batch_size=True)


def test_containers_that_contain_themselves_are_refused() -> None:
    step = Step(ramp(1))
    step.inner = {"again": (step,)}
    with pytest.raises(StructureError) as caught:
        tdfunc.from_dataclass(step)
    assert "at td['inner', 'again', '0']" in str(caught.value)


def test_deep_containers_convert() -> None:
    value: Any = (ramp(2),)
    for _ in range(2000):
        value = Point(value, 1)
    assert tdfunc.from_any(value)[("x",) * 2000 + ("0",)].shape == (2,)


@cases(lambda case: not case.statics)
def test_from_list_is_the_stack_of_its_rows(case: Case) -> None:
    td = case.tree
    out = tdfunc.from_list([td, td, td])
    assert out.equal(tdfunc.stack([td, td, td]), equal_nan=True)
    assert out.names == tdfunc.stack([td, td, td]).names
    check(out, (3, *case.batch), case.mapped(lambda x: torch.stack([x] * 3)))


def test_from_list_of_mappings() -> None:
    rows = [{"x": ramp(3) + i, "n": {"y": i}} for i in range(4)]
    expected = {
        ("x",): torch.stack([ramp(3) + i for i in range(4)]),
        ("n", "y"): torch.arange(4),
    }
    check(tdfunc.from_list(rows), (4,), expected)
    del rows[0]["n"], rows[1]["n"], rows[2]["n"], rows[3]["n"]
    del expected["n", "y"]
    check(tdfunc.from_list(rows, batch_size=[4, 3]), (4, 3), expected)
    check(tdfunc.from_list(rows, auto_batch_size=True), (4, 3), expected)
    check(tdfunc.from_list(rows, batch_dims=1), (4,), expected)
    named = tdfunc.from_list(rows, batch_size=[4, 3], names=["t", "env"])
    assert named.names == ("t", "env")
    assert tdfunc.from_list(rows, device="meta").device == torch.device("meta")
    mixed = tdfunc.from_list([rows[0], TensorDict(rows[1], 3)], batch_size=[2, 3])
    assert mixed.batch_size == (2, 3)
    points = tdfunc.from_list([Point(1, 2), Point(3, 4)])
    assert points["y"].tolist() == [2, 4]


def test_from_list_of_rows_that_differ_is_refused() -> None:
    with pytest.raises(BatchSizeError) as caught:
        tdfunc.from_list([{"x": 1.0}] * 3, batch_size=[2, 5])
    text = str(caught.value)
    assert "does not start with the number of rows - expected [3, ...]" in text
    assert "batch_size=[3, 5]" in text
    with pytest.raises(StructureError, match=r"td\['x'\] is missing"):
        tdfunc.from_list([{"x": 1.0}, {"y": 1.0}])
    with pytest.raises(ShapeError):
        tdfunc.from_list([{"x": ramp(1)}, {"x": ramp(2)}])


def test_from_any_dispatches_by_type() -> None:
    x = ramp(3)
    assert tdfunc.from_any({"x": x, "t": (1, {"s": "s"})}).keys(True) == (
        *("x", "t", ("t", "0"), ("t", "1"), ("t", "1", "s")),
    )
    assert tdfunc.from_any(OrderedDict(x=x))["x"] is x
    assert tdfunc.from_any((x, x)).keys() == ("0", "1")
    assert tdfunc.from_any(Point(x, x)).keys() == ("x", "y")
    assert tdfunc.from_any(Step(x)).keys() == ("obs", "tag", "inner")
    assert tdfunc.from_any(torch.sort(x)).keys() == ("values", "indices")
    assert tdfunc.from_any([{"x": 1}, {"x": 2}])["x"].tolist() == [1, 2]
    array = np.zeros((2, 3), dtype=[("a", "f4"), ("b", "i8", 2)])
    assert tdfunc.from_any(array).batch_size == (2, 3)
    nested = tdfunc.from_any({"records": array})
    assert nested["records", "b"].shape == (2, 3, 2)


@pytest.mark.parametrize(
    "value",
    [
        *("text", 1, 2.5, None, [], [1, 2], ["a"], {1}, object(), Step, b"x"),
        *(np.zeros(2), torch.zeros(2), TensorDict({"x": 1}), NonTensorData([1])),
    ],
    ids=lambda value: type(value).__name__ + str(value)[:5],
)
def test_from_any_returns_what_it_can_not_convert_unchanged(value: Any) -> None:
    assert tdfunc.from_any(value, batch_size=7) is value


def test_from_any_does_not_hide_what_it_can_not_nest() -> None:
    with pytest.raises(InvalidLeafError, match=r"at td\['a', '0'\]"):
        tdfunc.from_any({"a": ([ramp(2)],)})
    with pytest.raises(InvalidKeyError, match="key 1 is not a string"):
        tdfunc.from_any({1: ramp(2), "a": ramp(2)})


def test_inputs_stay_as_they_are() -> None:
    value = {"t": (1, [1, 2]), "d": {"x": 1}}
    before = copy.deepcopy(value)
    tdfunc.from_any(value)
    assert value == before


def test_to_namedtuple_nests() -> None:
    td = TensorDict({"b": ramp(2), "a": {"s": "x", "e": {}}}, 2)
    out = td.to_namedtuple()
    assert out._fields == ("b", "a")
    assert out.b is td["b"]
    assert out.a.s == "x"
    assert out.a.e == ()
    assert type(out) is type((td * 2).to_namedtuple())
    back = tdfunc.from_namedtuple(out, batch_size=2)
    assert back.equal(td)
    point = TensorDict({"y": 1, "x": 2}).to_namedtuple(Point)
    assert isinstance(point, Point)
    assert (point.x, point.y) == (2, 1)
    assert TensorDict({"obs": ramp(1)}).to_namedtuple(Step).tag == "a"
    deep: Any = {"x": ramp(2)}
    for _ in range(2000):
        deep = {"n": deep}
    assert TensorDict(deep).to_namedtuple()._fields == ("n",)


@pytest.mark.parametrize("key", ["a.b", "_a", "class", "1"])
def test_keys_that_are_no_fields_are_refused(key: str) -> None:
    with pytest.raises(InvalidKeyError) as caught:
        TensorDict({"n": {key: 1}}).to_namedtuple()
    text = str(caught.value)
    assert "at td['n'] - expected identifiers" in text
    assert "td.to_dict()" in text


def test_a_class_with_other_fields_is_refused() -> None:
    with pytest.raises(StructureError, match="does not take these entries") as caught:
        TensorDict({"x": 1, "z": 2}).to_namedtuple(Point)
    assert "expected what Point takes - got ['x', 'z']" in str(caught.value)


@cases()
def test_to_tensordict_of_plain_trees_is_the_tree(case: Case) -> None:
    td = case.tree
    assert td.to_tensordict() is td


def test_conversions_map_and_compile() -> None:
    x = ramp(3, 2)

    def fn(x: torch.Tensor) -> TensorDict:
        td = tdfunc.from_tuple((x, {"y": (x * 2,)}))
        named = tdfunc.from_namedtuple(Point(x, td["1"]))
        return tdfunc.from_list([named, named * 2])

    expected = fn(x[0])
    assert torch.vmap(fn)(x)[0].equal(expected)
    compiled = torch.compile(fn, fullgraph=True, backend="eager")
    assert compiled(x[0]).equal(expected)
    grad = torch.func.grad(lambda x: fn(x)["y", "y", "0"].sum())(x[0])
    assert grad.tolist() == [6, 6]


def test_from_any_agrees_with_the_peer() -> None:
    peer = pytest.importorskip("tensordict").TensorDict
    value = {"a": (ramp(2, 3), {"b": ramp(2)}), "p": Point(ramp(2, 1), 3.0)}
    theirs = peer.from_any(value)
    mine = tdfunc.from_any(value)
    for key in theirs.keys(True, True):
        assert torch.equal(mine[key], theirs[key])
    assert set(mine.keys(True, True)) == set(theirs.keys(True, True))
