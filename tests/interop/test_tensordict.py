"""Trees to and from the package tensordict: the same tensors, nothing lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tdfunc import NonTensorData, NonTensorStack, TensorDict, interop, unbatched
from tdfunc.errors import OperandError
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


def lazy() -> Any:
    parts = [peer.TensorDict({"x": ramp(2 + i)}, []) for i in range(2)]
    return peer.lazy_stack(parts)


def texts() -> Any:
    return torch.stack([peer.TensorDict({"s": text}, []) for text in "ab"])


@pytest.mark.parametrize(
    ("source", "path", "what"),
    [
        (lazy(), "td -", "LazyStackedTensorDict"),
        (peer.TensorDict({"n": {"l": lazy()}}, [2]), "td['n', 'l']", "LazyStacked"),
        (peer.TensorDict({"s": texts().get("s")}, []), "td['s']", "NonTensorStack"),
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


def test_instances_of_a_tensorclass_are_refused() -> None:
    @peer.tensorclass
    class Step:
        x: torch.Tensor

    source = peer.TensorDict({"n": Step(x=ramp(2), batch_size=[2])}, [2])
    with pytest.raises(OperandError, match=r"at td\['n'\] - .* got Step"):
        interop.from_tensordict(source)
    assert interop.from_tensordict(source.to_tensordict())["n", "x"].shape == (2,)


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
