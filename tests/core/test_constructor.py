"""What a tree is built from, what is checked at the door, and what is refused."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import (
    BatchSizeError,
    InvalidLeafError,
    OperandError,
    OptionError,
    StructureError,
    TdfuncError,
)
from tests.cases import Case, cases, check, fingerprint, leaves_of, ramp, same, shown

Size = torch.Size


@cases()
def test_every_case_is_built_as_written(case: Case) -> None:
    td = case.tree
    check(td, case.batch, case.leaves, case.statics)
    assert td.names == case.names
    for path, batch in case.batches.items():
        assert (td[path] if path else td).batch_size == Size(batch)


@cases()
def test_tensors_are_taken_by_reference_and_left_alone(case: Case) -> None:
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    found = leaves_of(case.tree)
    assert all(x is y for x, y in zip(found.values(), tensors, strict=True))
    assert fingerprint(tensors) == before


@cases()
def test_a_tree_is_a_source_and_keeps_batch_size_and_names(case: Case) -> None:
    td = TensorDict(case.tree)
    check(td, case.batch, case.leaves, case.statics)
    assert td.names == case.names
    assert td.keys(True) == case.tree.keys(True)


@cases()
def test_a_tree_in_a_mapping_is_the_same_as_nested_mappings(case: Case) -> None:
    td = TensorDict({"in": case.tree}, case.batch)
    check(td["in"], case.batch, case.leaves, case.statics)
    for path, batch in case.batches.items():
        assert td["in", *path].batch_size == Size(batch)


@cases()
def test_a_nested_tree_may_have_more_batch_dims_than_its_parent(case: Case) -> None:
    for dims in range(len(case.batch) + 1):
        outer = case.batch[:dims]
        td = TensorDict({"in": case.tree}, outer)
        assert td.batch_size == Size(outer)
        if case.leaves:
            check(td["in"], case.batch, case.leaves, case.statics)


def test_a_nested_tree_with_a_shorter_batch_is_read_with_its_parents() -> None:
    inner = TensorDict({"x": ramp(2, 3, 4), "m": {"y": ramp(2, 3)}})
    td = TensorDict({"n": inner}, (2, 3))
    assert td["n"].batch_size == td["n", "m"].batch_size == Size((2, 3))
    assert inner.batch_size == Size(())


def test_a_nested_tree_without_leaves_has_its_parents_batch() -> None:
    td = TensorDict({"n": TensorDict({"s": "text"}, (7, 8))}, (2,))
    assert td["n"].batch_size == Size((2,))


def test_entries_by_keyword() -> None:
    td = TensorDict(a=ramp(2), n={"b": ramp(2)})
    assert td.keys(True) == ("a", "n", ("n", "b"))
    assert td.batch_size == Size(())
    assert TensorDict(batch_size=[2], a=ramp(2)).batch_size == Size((2,))
    assert TensorDict().is_empty()


def test_any_mapping_is_a_source() -> None:
    for source in (
        collections.OrderedDict(a=ramp(2)),
        types.MappingProxyType({"a": ramp(2)}),
        collections.ChainMap({"a": ramp(2)}),
        collections.defaultdict(list, a=ramp(2)),
    ):
        assert TensorDict(source, 2).keys() == ("a",)
        assert TensorDict({"n": source}, 2).keys(True) == ("n", ("n", "a"))


def test_changing_the_source_later_does_not_change_the_tree() -> None:
    source: dict[str, Any] = {"a": ramp(2), "n": {"b": ramp(2)}}
    td = TensorDict(source, 2)
    source["c"] = ramp(2)
    source["n"]["d"] = ramp(2)
    del source["a"]
    assert td.keys(True) == ("a", "n", ("n", "b"))


# Batch sizes


@pytest.mark.parametrize(
    "size",
    [(2, 3), [2, 3], Size((2, 3)), (np.int64(2), np.int64(3)), range(2, 4)],
    ids=["tuple", "list", "Size", "NumPy ints", "range"],
)
def test_a_batch_size_is_any_sequence_of_ints(size: Any) -> None:
    td = TensorDict({"x": ramp(2, 3)}, size)
    assert td.batch_size == Size((2, 3))
    assert type(td.batch_size) is Size


def test_a_batch_size_of_one_dim_is_an_int_too() -> None:
    assert TensorDict({"x": ramp(3)}, 3).batch_size == Size((3,))
    assert TensorDict({"x": ramp(3)}, batch_size=3).batch_size == Size((3,))


def test_the_batch_size_is_not_inferred_by_the_constructor() -> None:
    td = TensorDict({"a": ramp(4, 3), "b": ramp(4, 5)})
    assert td.batch_size == Size(())


@pytest.mark.parametrize(
    "size", ["no", 1.5, [1.5], True, {"a": 1}, object()], ids=shown
)
def test_what_is_no_batch_size_is_said(size: Any) -> None:
    with pytest.raises(OptionError, match="batch_size is not a size") as caught:
        TensorDict({"x": ramp(2)}, size)
    assert "expected an int or a sequence of ints" in str(caught.value)
    assert f"got {size!r}" in str(caught.value)


@pytest.mark.parametrize("size", [-1, [2, -1], Size((-3,))], ids=repr)
def test_a_negative_batch_size_is_said(size: Any) -> None:
    for leaves in ({}, {"s": "text"}):
        with pytest.raises(OptionError, match="batch_size has a negative dim"):
            TensorDict(leaves, size)


def test_a_leaf_that_does_not_start_with_the_batch_says_where_and_what() -> None:
    for build in (
        lambda x: TensorDict({"n": {"x": x}}, (3, 4)),
        lambda x: TensorDict({"s": "text", "n": {"x": x}}, (3, 4)),
        lambda x: TensorDict({"n": TensorDict({"x": x})}, (3, 4)),
        lambda x: TensorDict({"n": {}}, (3, 4)).set(("n", "x"), x),
        lambda x: TensorDict({"n": {"x": ramp(3, 4)}}, (3, 4)).set(("n", "x"), x),
        lambda x: TensorDict({}, (3, 4)).update({"n": {"x": x}}),
        lambda x: TensorDict({"n": {"x": ramp(3, 4)}}, (3, 4)).update({"n": {"x": x}}),
        lambda x: TensorDict({"n": {"x": ramp(3, 4)}}, (3, 4)).replace({"n": {"x": x}}),
        lambda x: TensorDict({"n": {"x": x}}).with_batch_size((3, 4)),
        lambda x: tdfunc.from_dict({"n": {"x": x}}, batch_size=(3, 4)),
    ):
        with pytest.raises(BatchSizeError) as caught:
            build(ramp(3, 5))
        assert isinstance(caught.value, ValueError)
        assert caught.value.path == ("n", "x")
        text = str(caught.value)
        assert "the leaf does not start with the batch size of its node" in text
        assert "at td['n', 'x']" in text
        assert "expected a shape that starts with [3, 4]" in text
        assert "got shape [3, 5]" in text
        assert "batch_size=[3] fits this leaf" in text


@pytest.mark.parametrize(
    ("shape", "fit"), [((2, 4), []), ((4, 3), []), ((3,), [3]), ((3, 1), [3])], ids=str
)
def test_a_leaf_is_never_broadcast_to_the_batch(shape: Any, fit: list[int]) -> None:
    with pytest.raises(BatchSizeError, match="does not start with") as caught:
        TensorDict({"x": ramp(*shape)}, (3, 4))
    assert f"batch_size={fit} fits this leaf" in str(caught.value)


@pytest.mark.parametrize(
    "value", [torch.tensor(1.0), 1.0, True, np.float32(1)], ids=repr
)
def test_a_scalar_in_a_batched_tree_is_told_to_expand(value: Any) -> None:
    with pytest.raises(BatchSizeError, match=r"got shape \[\]") as caught:
        TensorDict({"x": value}, 3)
    assert "torch.full(batch_size, value)" in str(caught.value)


def test_a_nested_tree_of_another_batch_names_its_leaf() -> None:
    inner = TensorDict({"m": {"x": ramp(2, 4)}}, 2)
    with pytest.raises(BatchSizeError, match=r"td\['n', 'm', 'x'\]"):
        TensorDict({"n": inner}, 3)


# Names


def test_names_are_one_for_every_batch_dim() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3), names=["time", None])
    assert td.names == ("time", None)
    assert TensorDict({"x": ramp(2)}, 2, names="t").names == ("t",)
    assert TensorDict({"x": ramp(2)}, 2, names=[None]).names is None
    nested = TensorDict({"n": {"x": ramp(2, 3)}}, (2, 3), names=("a", "b"))
    assert nested["n"].names == ("a", "b")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a"], r"do not fit the batch dims - expected 2 names.* - got \['a'\]"),
        (["a", "b", "c"], "do not fit the batch dims"),
        ("a", "do not fit the batch dims"),
        ([1, "b"], "a dim name is no name - expected non-empty strings or None"),
        (["", "b"], "a dim name is no name"),
        (["a", "a"], "two dims have the same name"),
    ],
    ids=repr,
)
def test_names_that_do_not_fit_are_refused(names: Any, text: str) -> None:
    for source in ({"x": ramp(2, 3)}, {"x": ramp(2, 3), "s": "text"}):
        with pytest.raises(OptionError, match=text):
            TensorDict(source, (2, 3), names=names)
    with pytest.raises(OptionError, match=text):
        TensorDict({"x": ramp(2, 3)}, (2, 3)).with_names(names)


# Values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, torch.tensor(1)),
        (True, torch.tensor(True)),
        (1.5, torch.tensor(1.5)),
        (1 + 2j, torch.tensor(1 + 2j)),
        ([1, 2], torch.tensor([1, 2])),
        ([[1.0], [2.0]], torch.tensor([[1.0], [2.0]])),
        ((1, 2), torch.tensor([1, 2])),
        ([(1, 2), [3, 4]], torch.tensor([[1, 2], [3, 4]])),
        ([True, False], torch.tensor([True, False])),
        ([np.float32(1.5), np.float32(2)], torch.tensor([1.5, 2.0])),
        (np.float64(1.5), torch.tensor(1.5, dtype=torch.float64)),
        (np.int8(3), torch.tensor(3, dtype=torch.int8)),
        (np.bool_(True), torch.tensor(True)),
        (np.arange(3), torch.arange(3)),
        (np.array(2.5), torch.tensor(2.5, dtype=torch.float64)),
        (np.arange(6).reshape(2, 3)[:, ::-1], torch.tensor([[2, 1, 0], [5, 4, 3]])),
        (np.arange(3, dtype=">i4"), torch.arange(3, dtype=torch.int32)),
        (np.zeros((0, 3), np.float16), torch.zeros(0, 3, dtype=torch.float16)),
        (np.array([1 + 1j], np.complex64), torch.tensor([1 + 1j])),
    ],
    ids=repr,
)
def test_numbers_arrays_and_sequences_of_numbers_become_tensors(
    value: Any, expected: torch.Tensor
) -> None:
    for td in (
        TensorDict({"v": value}),
        TensorDict({"n": {"v": value}})["n"],
        TensorDict({}).set("v", value),
    ):
        assert same(td["v"], expected)


def test_a_writable_array_shares_memory_and_a_read_only_one_does_not() -> None:
    array = np.zeros(3)
    td = TensorDict({"x": array}, 3)
    array[1] = 5
    assert td["x"].tolist() == [0, 5, 0]

    frozen = np.zeros(3)
    frozen.flags.writeable = False
    td = TensorDict({"x": frozen}, 3)
    td["x"].add_(1)
    assert frozen.tolist() == [0, 0, 0]


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: float
    y: float


STATIC_VALUES = [
    *("text", "", b"bytes", None, Color.RED, Level.LOW, Point(1.0, 2.0), ()),
    *(("a", 1), {1, 2}, object(), len, int, dt.date(2020, 1, 2), ...),
    *(np.str_("a"), np.datetime64("2020-01-01")),
    slice(1, 2),
]


@pytest.mark.parametrize("value", STATIC_VALUES, ids=shown)
def test_other_values_are_statics_and_read_as_the_very_object(value: Any) -> None:
    for batch in ((), (3,), (0, 2)):
        td = TensorDict({"v": value, "n": {"v": value}}, batch)
        assert td["v"] is value
        assert td["n", "v"] is value
        assert td["n"]["v"] is value
        assert not td.keys(True, True)
        assert TensorDict({}, batch).set("v", value)["v"] is value


@pytest.mark.parametrize(
    "value", [[1, "a"], {}, {"a": 1}, 1, 1.5, [], ramp(2)], ids=repr
)
def test_non_tensor_data_keeps_any_value_as_one_static(value: Any) -> None:
    td = TensorDict({"v": NonTensorData(value), "n": {"v": NonTensorData(value)}}, 7)
    assert td["v"] is value
    assert td["n"]["v"] is value
    assert td[0]["v"] is value
    # Never read as nested keys.
    assert td.keys(True) == ("v", "n", ("n", "v"))


@pytest.mark.parametrize(
    "value",
    [
        [ramp(2), ramp(2)],
        [[{}], [{}]],
        [{"a": 1}, "b"],
        [TensorDict(), TensorDict()],
        ["a", NonTensorData("b")],
        ["a", ["b"]],
        [["a"], ["b", "c"]],
    ],
    ids=repr,
)
def test_a_list_of_what_may_mean_something_else_is_ambiguous(value: Any) -> None:
    for build in (
        lambda: TensorDict({"n": {"q": value}}, 2),
        lambda: TensorDict({"n": {}}, 2).set(("n", "q"), value),
    ):
        with pytest.raises(InvalidLeafError) as caught:
            build()
        assert isinstance(caught.value, TypeError)
        text = str(caught.value)
        assert "a list of these is ambiguous" in text
        assert "at td['n', 'q']" in text
        assert "got a list of " in text
        assert "NonTensorStack(*value)" in text
        assert "NonTensorData(value)" in text
        assert "torch.stack(value)" in text


@pytest.mark.parametrize("value", [[[1], [1, 2]], [2**70], [1, [2]]], ids=repr)
def test_numbers_that_make_no_tensor_say_where(value: Any) -> None:
    with pytest.raises(InvalidLeafError) as caught:
        TensorDict({"n": {"q": value}})
    text = str(caught.value)
    assert "the numbers can not become a tensor" in text
    assert "at td['n', 'q']" in text
    assert "NonTensorData(value)" in text


@pytest.mark.parametrize(
    "source", [1, "text", ["a"], [("a", 1)], ramp(2), object], ids=repr
)
def test_a_source_that_is_no_mapping_is_refused(source: Any) -> None:
    for build in (TensorDict, TensorDict.from_dict, tdfunc.from_dict):
        with pytest.raises(InvalidLeafError) as caught:
            build(source)
        text = str(caught.value)
        assert "a tree is made of a mapping" in text
        assert f"got {type(source).__name__}" in text


def test_a_mapping_and_keywords_together_are_refused() -> None:
    with pytest.raises(OptionError) as caught:
        TensorDict({"a": 1}, b=2, c=3)
    text = str(caught.value)
    assert "entries are given twice" in text
    assert "['b', 'c']" in text
    assert "TensorDict({**mapping, **keywords}, batch_size)" in text


def test_a_mapping_that_contains_itself_says_where() -> None:
    loop: dict[str, Any] = {"x": ramp(1)}
    loop["me"] = loop
    far: dict[str, Any] = {"x": ramp(1), "n": {"m": {}}}
    far["n"]["m"]["back"] = far
    for build in (TensorDict, tdfunc.from_dict, TensorDict({"a": 1}).update):
        with pytest.raises(StructureError, match=r"contains itself - at td\['me'"):
            build(loop)
        with pytest.raises(
            ValueError, match=r"contains itself - at td\['n', 'm', 'back'"
        ):
            build(far)


def test_one_mapping_in_two_places_is_fine() -> None:
    part = {"x": ramp(2)}
    td = TensorDict({"a": part, "b": part, "c": {"d": part}}, 2)
    assert td["a", "x"] is td["b", "x"] is td["c", "d", "x"] is part["x"]


def test_a_tree_of_other_things_than_tensors_can_not_be_nested() -> None:
    names = pytree.tree_map(str, TensorDict({"x": ramp(2)}, 2))
    with pytest.raises(
        InvalidLeafError, match=r"td\['n'\].*expected tensors - got str"
    ):
        TensorDict({"n": names})


# Device


def test_device_moves_every_leaf() -> None:
    td = TensorDict(
        {
            "x": ramp(2),
            "n": {"y": [1, 2]},
            "t": TensorDict({"z": ramp(2)}, 2),
            "s": "a",
        },
        2,
        device="meta",
    )
    assert td.device == torch.device("meta")
    assert all(x.is_meta for x in leaves_of(td).values())
    assert td["s"] == "a"
    # `set` never moves.
    mixed = td.set("x", ramp(2))
    assert mixed["x"].device == torch.device("cpu")
    assert mixed.device is None


def test_the_device_and_dtype_are_those_that_all_leaves_share() -> None:
    assert TensorDict({}).device is None
    assert TensorDict({"s": "text"}).dtype is None
    td = TensorDict({"x": ramp(2), "n": {"y": ramp(2)}}, 2)
    assert td.device == torch.device("cpu")
    assert td.dtype == torch.float32
    assert td.set("i", torch.ones(2, dtype=torch.int64)).dtype is None
    assert not td.requires_grad
    assert td.set("w", ramp(2).requires_grad_()).requires_grad


# Sizes of the node


@cases()
def test_sizes_are_those_of_a_tensor_of_the_batch_shape(case: Case) -> None:
    td, dummy = case.tree, torch.empty(case.batch)
    assert td.batch_size == td.shape == td.size() == dummy.shape
    assert td.ndim == td.batch_dims == td.dim() == dummy.dim()
    assert td.numel() == dummy.numel()
    for dim in range(-len(case.batch), len(case.batch)):
        assert td.size(dim) == dummy.size(dim)
    if case.batch:
        assert len(td) == len(dummy)
    assert td.is_empty() is (not case.leaves and not case.statics)


def test_the_size_of_a_dim_that_is_not_there_is_an_index_error() -> None:
    td = TensorDict({"x": ramp(2, 3)}, 2)
    for dim in (1, -2):
        with pytest.raises(IndexError):
            td.size(dim)


def test_a_tree_without_batch_dims_has_no_length() -> None:
    td = TensorDict({"x": ramp(3)})
    with pytest.raises(OperandError, match=r"to fix: len\(td.keys\(\)\)") as caught:
        len(td)
    assert isinstance(caught.value, TypeError)


def test_a_tree_does_not_pass_for_an_empty_sequence() -> None:
    # torch would make an empty tensor of it, and find any two such trees close.
    td = TensorDict({"x": ramp(3)}, 3)
    with pytest.raises((TypeError, AssertionError)):
        torch.testing.assert_close(td, td + 1)


def test_tensor_dict_can_not_be_subclassed() -> None:
    with pytest.raises(TypeError, match="final"):
        type("Mine", (TensorDict,), {})


# from_dict


def test_from_dict_infers_what_all_leaves_of_a_node_share() -> None:
    data = {"k": {"s1": ramp(5, 4, 3), "s2": ramp(5, 4, 6)}, "y": ramp(5)}
    td = tdfunc.from_dict(data, auto_batch_size=True)
    assert td.batch_size == Size((5,))
    assert td["k"].batch_size == Size((5, 4))
    assert TensorDict.from_dict(data, auto_batch_size=True).batch_size == Size((5,))


@pytest.mark.parametrize(
    ("shapes", "dims", "expected"),
    [
        ([(4, 3), (4, 5)], None, (4,)),
        ([(4, 3), (4, 3)], None, (4, 3)),
        ([(4, 3), (4, 3)], 1, (4,)),
        ([(4, 3), (4, 3)], 0, ()),
        ([(4, 3), (4, 3)], 9, (4, 3)),
        ([(4, 3), ()], None, ()),
        ([(4, 3), (3, 4)], None, ()),
        ([(0, 3), (0,)], None, (0,)),
        ([], None, ()),
    ],
    ids=str,
)
def test_from_dict_infers_the_longest_shared_leading_shape(
    shapes: Any, dims: int | None, expected: tuple[int, ...]
) -> None:
    data = {f"k{i}": ramp(*shape) for i, shape in enumerate(shapes)}
    data["s"] = "statics do not count"  # pyright: ignore[reportArgumentType]
    td = tdfunc.from_dict(data, auto_batch_size=dims is None, batch_dims=dims)
    assert td.batch_size == Size(expected)


def test_from_dict_takes_a_batch_size_a_device_and_names() -> None:
    td = tdfunc.from_dict(
        {"x": ramp(2, 3)}, batch_size=[2], device="meta", names=["time"]
    )
    assert td.batch_size == Size((2,))
    assert td.names == ("time",)
    assert td.device == torch.device("meta")
    named = tdfunc.from_dict({"x": ramp(2, 3)}, auto_batch_size=True, names=["a", "b"])
    assert named.names == ("a", "b")
    assert tdfunc.from_dict({"x": ramp(2, 3)}).batch_size == Size(())


@pytest.mark.parametrize(
    "options", [{"auto_batch_size": True}, {"batch_dims": 1}], ids=str
)
@pytest.mark.parametrize("size", [[2], [], 0])
def test_from_dict_refuses_a_batch_size_that_is_also_to_be_inferred(
    size: Any, options: Any
) -> None:
    with pytest.raises(OptionError) as caught:
        tdfunc.from_dict({"x": ramp(2)}, batch_size=size, **options)
    assert isinstance(caught.value, ValueError)
    text = str(caught.value)
    assert "the batch size is given and to be inferred" in text
    assert "expected batch_size, or auto_batch_size / batch_dims" in text
    assert f"batch_size={size!r}" in text


@pytest.mark.parametrize("dims", [-1, True, 1.5, "1"], ids=repr)
def test_from_dict_refuses_batch_dims_that_are_no_number_of_dims(dims: Any) -> None:
    with pytest.raises(OptionError, match="batch_dims is no number of dims") as caught:
        tdfunc.from_dict({"x": ramp(2)}, batch_dims=dims)
    assert "expected an int >= 0" in str(caught.value)
    assert f"got {dims}" in str(caught.value)


def test_from_dict_of_a_tree_infers_anew() -> None:
    td: Any = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2, 3, 4)}})
    out = tdfunc.from_dict(td, auto_batch_size=True)
    assert out.batch_size == Size((2, 3))
    assert out["n"].batch_size == Size((2, 3, 4))


def test_all_errors_of_the_library_have_one_base() -> None:
    with pytest.raises(TdfuncError):
        TensorDict({"x": ramp(2)}, 3)
    with pytest.raises(TdfuncError):
        TensorDict({"x": ramp(2)})["y"]


@pytest.mark.parametrize("device", ["no device", 1.5, [0]], ids=repr)
def test_a_device_that_is_none_is_said(device: Any) -> None:
    for build in (
        lambda: TensorDict({"x": ramp(2)}, device=device),
        lambda: TensorDict({}, device=device),
        lambda: tdfunc.from_dict({"x": ramp(2)}, device=device),
    ):
        with pytest.raises(OptionError, match="is no device"):
            build()


NOT_NUMERIC = [
    np.array(["a", "b"]),
    np.array([None, 1]),
    np.array(["2020-01-01"], dtype="datetime64[D]"),
    np.zeros(2, dtype=[("a", float)]),
    np.ma.masked_array([1, 2], mask=[False, True]),
    np.zeros(2, dtype=np.longdouble),
]


@pytest.mark.parametrize("array", NOT_NUMERIC, ids=repr)
def test_an_array_that_torch_can_not_hold_is_refused(array: Any) -> None:
    with pytest.raises(InvalidLeafError, match="NonTensorData") as caught:
        TensorDict({"n": {"x": array}})
    assert caught.value.path == ("n", "x")
    assert TensorDict({"x": NonTensorData(array)})["x"] is array


def test_a_field_of_a_packed_array_becomes_a_tensor() -> None:
    packed = np.zeros(3, dtype=[("a", "i1"), ("b", "f4")])
    packed["b"] = [1, 2, 3]
    assert TensorDict({"x": packed["b"]}, 3)["x"].tolist() == [1.0, 2.0, 3.0]


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidLeafError):
        TensorDict({"x": endless})


def test_keys_of_a_subclass_of_str_become_plain_strings() -> None:
    class Name(str):
        __slots__ = ()

        def __repr__(self) -> str:
            return "odd"

    key = Name("a key that nobody else uses")
    assert type(TensorDict({key: ramp(2)}).keys()[0]) is str
    nested = TensorDict({"n": {key: ramp(2)}, "s": "x"})
    assert type(nested["n"].keys()[0]) is str
    assert type(nested.set(key, ramp(2)).keys()[-1]) is str
    assert type(TensorDict({str(key): ramp(2)}).keys()[0]) is str


def test_a_wider_node_has_the_names_of_its_parent_and_none_for_its_surplus() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4)}, (2, 3), names=("own", "other"))
    td = TensorDict({"a": inner, "r": ramp(2)}, 2, names=["t"])
    assert td["a"].names == ("t", None)
    assert td.with_names(None)["a"].names is None
