"""Trees to and from the package tensordict: the same tensors, nothing lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    interop,
    unbatched,
)
from tdfunc.errors import InvalidLeafError, OperandError
from tdfunc.testing import assert_equal
from tests.cases import Case, cases, check, fingerprint, ramp

peer: Any = pytest.importorskip("tensordict")


@cases()
def test_trees_go_there_and_back(case: Case) -> None:
    td = case.tree
    before = fingerprint(case.leaves.values())
    there = interop.to_tensordict(td)
    assert type(there) is peer.TensorDict
    assert there.batch_size == case.batch
    for path, x in case.leaves.items():
        assert there.get(path) is x
    for path, size in case.batches.items():
        node = there.get(path) if path else there
        assert node.batch_size == size
    for path, value in case.statics.items():
        assert there.get(path).data is value
    back = interop.from_tensordict(there)
    check(back, case.batch, case.leaves, case.statics)
    assert back.equal(td, equal_nan=True)
    assert back.names == case.names
    assert back.keys(True) == td.keys(True)
    for path, x in case.leaves.items():
        assert back[path] is x
    assert fingerprint(case.leaves.values()) == before


def test_from_tensordict_by_hand() -> None:
    inner = peer.TensorDict({"y": ramp(3, 2), "t": peer.NonTensorData([1])}, [3, 2])
    source = peer.TensorDict(
        {"x": ramp(3), "n": inner, "s": "text"}, [3], names=["row"]
    )
    td = interop.from_tensordict(source)
    assert td.keys(True) == ("x", "n", ("n", "y"), ("n", "t"), "s")
    assert td["n"].batch_size == (3, 2)
    assert (td["n", "t"], td["s"], td.names) == ([1], "text", ("row",))


def test_writing_into_the_result_adds_nothing_to_the_tree() -> None:
    td = TensorDict({"n": {"x": ramp(3)}, "l": NonTensorData([1])}, 3)
    there = interop.to_tensordict(td)
    there["n", "new"] = ramp(3)
    del there["n", "x"]
    assert td.keys(True) == ("n", ("n", "x"), "l")


def lazy(dim: int = 0) -> Any:
    parts = [
        peer.TensorDict({"x": ramp(3, 2 + i), f"own{i}": ramp(3)}, [3])
        for i in range(2)
    ]
    return peer.lazy_stack(parts, dim)


@pytest.mark.parametrize("dim", [0, 1])
def test_lazy_stacks_go_there_and_back(dim: int) -> None:
    source = lazy(dim)
    whole = peer.TensorDict({"n": {"l": source}}, source.batch_size)
    for given in (source, whole):
        td = interop.from_tensordict(given)
        stack = td if given is source else td["n", "l"]
        assert isinstance(stack, LazyStackedTensorDict)
        assert stack.stack_dim == dim
        assert stack.batch_size == source.batch_size
        assert stack.tensordicts[1]["x"] is source.tensordicts[1]["x"]
        assert set(stack.keys()) == set(source.keys())
        back = interop.to_tensordict(td)
        again = back if given is source else back["n", "l"]
        assert type(again) is peer.LazyStackedTensorDict
        assert again.stack_dim == dim
        assert again.tensordicts[1]["own1"] is source.tensordicts[1]["own1"]
        assert_equal(interop.from_tensordict(back), td)


# Stacks of stacks are not: the peer stacks the members, which must be alike for that.
LIKE_THE_PEER: list[Any] = [
    lambda t: t + 1,
    lambda t: t * t,
    lambda t: t[1:],
    lambda t: t[:, 1:],
    lambda t: t[..., 0],
    lambda t: t.unsqueeze(1),
    lambda t: t.permute(1, 0),
    lambda t: t.select("x"),
    lambda t: t.exclude("own0"),
    lambda t: t.apply(lambda x: x - 2),
    lambda t: t.expand(4, *t.batch_size),
    lambda t: t.unbind(0)[1],
    lambda t: t.unbind(1)[1],
]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("place", range(len(LIKE_THE_PEER)))
def test_operations_on_lazy_stacks_are_the_peers(place: int, dim: int) -> None:
    call = LIKE_THE_PEER[place]
    source = lazy(dim)
    theirs = interop.from_tensordict(call(source))
    assert_equal(call(interop.from_tensordict(source)), theirs)


def texts() -> Any:
    return torch.stack([peer.TensorDict({"s": text}, []) for text in "ab"])


@pytest.mark.parametrize(
    ("source", "path", "what"),
    [
        ({"x": ramp(2)}, "td -", "dict"),
        (ramp(2), "td -", "Tensor"),
        (TensorDict({"x": ramp(2)}), "td -", "TensorDict"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_tree_can_hold_is_refused(source: Any, path: str, what: str) -> None:
    with pytest.raises(OperandError) as caught:
        interop.from_tensordict(source)
    text = str(caught.value)
    assert f"at {path}" in text
    assert f"got {what}" in text


class Step(TensorClass):
    x: torch.Tensor
    name: str
    extra: torch.Tensor | None = None


@pytest.mark.parametrize("convert", [interop.from_tensordict, tdfunc.from_any])
def test_instances_of_a_tensorclass_become_nodes_or_records(convert: Any) -> None:
    @peer.tensorclass
    class PeerStep:
        x: torch.Tensor
        name: str
        extra: torch.Tensor | None = None

    step = PeerStep(x=ramp(2), name="a", batch_size=[2])
    td = convert(peer.TensorDict({"n": step}, [2]))
    assert td["n"].keys() == ("x", "name")
    assert td["n", "x"] is step.x
    assert td["n", "name"] == "a"
    assert convert(step).batch_size == (2,)
    record = interop.from_tensordict(step, cls=Step)
    assert type(record) is Step
    assert record.x is step.x
    assert (record.name, record.extra) == ("a", None)


@pytest.mark.parametrize("convert", [interop.from_tensordict, tdfunc.from_any])
def test_stacks_of_a_tensorclass_keep_the_value_of_each_row(convert: Any) -> None:
    @peer.tensorclass
    class PeerRow:
        x: torch.Tensor
        name: str
        extra: torch.Tensor | None = None

    def row(count: int, name: str) -> Any:
        return PeerRow(x=ramp(count), name=name, batch_size=[count])

    for other in (row(3, "q"), row(3, "z"), row(4, "z")):
        source = peer.LazyStackedTensorDict.lazy_stack([row(3, "q"), other])
        whole = peer.TensorDict({"n": source}, [2])
        for stack in (convert(source), convert(whole)["n"]):
            assert isinstance(stack, LazyStackedTensorDict)
            assert [t["name"] for t in stack.tensordicts] == ["q", other.name]
            assert stack[0, 0]["name"] == "q"
            assert stack[1, 2]["name"] == other.name
            assert stack[1]["x"] is source._tensordict.tensordicts[1]["x"]
            assert "extra" not in stack
    dense = convert(torch.stack([row(2, "q"), row(2, "z")]))
    assert dense["name"] == [["q", "q"], ["z", "z"]]


def test_from_any_reads_the_peer_wherever_it_is() -> None:
    source = peer.TensorDict({"x": ramp(2)}, [2])
    assert tdfunc.from_any({"a": {"b": source}})["a", "b", "x"] is source["x"]
    stacked = tdfunc.from_any([source, source])
    assert stacked.batch_size == (2, 2)
    assert tdfunc.from_any(source, batch_size=[]).batch_size == ()
    assert tdfunc.from_any(source, names=["t"]).names == ("t",)
    sized = tdfunc.from_any(peer.TensorDict({"x": ramp(2)}, []), auto_batch_size=True)
    assert sized.batch_size == (2,)


FOREIGN: list[Any] = [
    peer.TensorDict({"x": ramp(3)}, [3]),
    peer.LazyStackedTensorDict.lazy_stack([peer.TensorDict({"x": ramp(3)}, [3])]),
    peer.NonTensorStack("a", "b", "c"),
    peer.NonTensorData("a"),
    peer.MetaData("a"),
    peer.UnbatchedTensor(ramp(7)),
]


@pytest.mark.parametrize("value", FOREIGN)
def test_entries_of_the_peer_are_refused_and_read_by_from_any(value: Any) -> None:
    td = TensorDict({"x": ramp(3), "n": {"y": ramp(3)}}, 3)
    routes: list[Any] = [
        lambda v: TensorDict({"q": v}, 3),
        lambda v: TensorDict({"n": {"q": v}, "x": 1}, 3),
        lambda v: tdfunc.from_dict({"q": v}, auto_batch_size=True),
        lambda v: td.set("q", v),
        lambda v: td.set(("n", "q"), v),
        lambda v: td.update({"q": v}),
        lambda v: td.update(n={"q": v}),
        lambda v: td.replace(n=v),
        lambda v: td.at[0].set({"n": v}),
    ]
    for route in routes:
        with pytest.raises(InvalidLeafError, match=r"tdfunc\.from_any\(value\)"):
            route(value)
    if isinstance(value, peer.LazyStackedTensorDict) and len(value) != 3:
        return
    assert td.set("q", tdfunc.from_any(value)).keys() == ("x", "n", "q")
    read = tdfunc.from_any({"k": value}, batch_size=3)
    whole = interop.from_tensordict(peer.TensorDict({"k": value}, [3]))
    assert read.equal(whole)
    for make in (TensorDict, tdfunc.from_dict, td.update):
        if not isinstance(value, torch.Tensor):
            with pytest.raises(InvalidLeafError, match=r"tdfunc\.from_any\(value\)"):
                make(value)


def test_to_tensordict_of_no_tree_is_refused() -> None:
    with pytest.raises(OperandError, match="only a tree can be converted"):
        interop.to_tensordict({"x": ramp(2)})  # pyright: ignore[reportArgumentType]


def test_statics_that_are_tensors_are_refused() -> None:
    td = TensorDict({"n": {"table": NonTensorData(ramp(2))}}, 3)
    with pytest.raises(
        OperandError, match=r"for a leaf - at td\['n', 'table'\]"
    ) as caught:
        interop.to_tensordict(td)
    assert "td.drop(('n', 'table'))" in str(caught.value)


@pytest.mark.parametrize(
    "value", [1, 2.5, [1, 2], {"a": 1}, ("x",), int, b"x"], ids=repr
)
def test_statics_of_every_kind_go_there_and_back(value: Any) -> None:
    td = TensorDict({"n": {"s": NonTensorData(value)}, "x": ramp(3)}, 3)
    back = interop.from_tensordict(interop.to_tensordict(td))
    assert back["n", "s"] is value


def test_rows_and_unbatched_tensors_go_there_and_back() -> None:
    table = ramp(5)
    inner = TensorDict({"r": [["a", "b"], ["c", "a"]], "y": ramp(2, 2)}, [2, 2])
    td = TensorDict(
        {
            "s": ["p", None],
            "n": inner,
            "l": NonTensorStack([1], {"k": 2}),
            "g": unbatched(table),
        },
        2,
    )
    there = interop.to_tensordict(td)
    assert there.get("s").tolist() == ["p", None]
    assert there["n"].get("r").tolist() == [["a", "b"], ["c", "a"]]
    assert there["n"].get("r").batch_size == (2, 2)
    assert type(there.get("g")) is peer.UnbatchedTensor
    back = interop.from_tensordict(there)
    assert_equal(back, td)
    assert back["g"].data_ptr() == table.data_ptr()
    assert type(back["g"]) is torch.Tensor
    assert back["l"] == [[1], {"k": 2}]
    assert interop.from_tensordict(texts())["s"] == ["a", "b"]
    # The rows of the peer are those of ours, also after it indexed them.
    assert interop.from_tensordict(there[1:])["s"] == [None]
    assert interop.from_tensordict(there[1])["s"] is None


def test_rows_of_no_rows() -> None:
    td = TensorDict({"s": NonTensorStack(), "x": ramp(0)}, 0)
    assert_equal(interop.from_tensordict(interop.to_tensordict(td)), td)
    wide = TensorDict({"s": np.empty((0, 3), dtype=object), "x": ramp(0, 3)}, [0, 3])
    with pytest.raises(OperandError, match=r"at td\['s'\] - expected rows"):
        interop.to_tensordict(wide)


def test_metadata_is_one_value_for_the_node() -> None:
    value = {"lr": 1}
    source = peer.TensorDict({"m": peer.MetaData(value), "x": ramp(2)}, [2])
    assert interop.from_tensordict(source)["m"] is value


def test_a_record_of_a_peer_is_refused_by_name() -> None:
    class Step(TensorClass):
        x: torch.Tensor

    source: Any = peer.TensorDict({"x": ramp(2)}, [2])
    with pytest.raises(InvalidLeafError, match=r"tdfunc\.from_any\(value\)"):
        Step.from_tensordict(source)
    with pytest.raises(InvalidLeafError, match=r"tdfunc\.from_any\(value\)"):
        Step.from_dict(source)
    assert Step.from_tensordict(tdfunc.from_any(source)).x is source["x"]
    wrong: Any = {"x": ramp(2)}
    with pytest.raises(InvalidLeafError, match=r"Step\.from_dict\(mapping"):
        Step.from_tensordict(wrong)
