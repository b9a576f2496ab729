"""Trees of arrays: NumPy, structured arrays, DLPack; shared where it can be."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import InvalidLeafError, OperandError, OptionError
from tests.cases import Case, cases, check, fingerprint, ramp

ARRAYS = cases(
    lambda case: (
        not any(
            x.requires_grad or x.dtype == torch.bfloat16 for x in case.leaves.values()
        )
    )
)


@ARRAYS
def test_from_numpy_undoes_to_numpy_without_copies(case: Case) -> None:
    td = case.tree
    before = fingerprint(case.leaves.values())
    arrays = td.to_numpy()
    for path, x in case.leaves.items():
        array: Any = arrays
        for key in path:
            array = array[key]
        assert isinstance(array, np.ndarray)
        assert np.array_equal(array, x.numpy(), equal_nan=array.dtype.kind in "fc")
        assert np.shares_memory(array, x.numpy()) or not x.numel()
    if not case.statics:
        back = tdfunc.from_numpy(arrays, batch_size=case.batch, names=case.names)
        check(back, case.batch, case.leaves)
        assert back.names == case.names
    assert fingerprint(case.leaves.values()) == before


def test_to_numpy_keeps_statics_in_place() -> None:
    td = TensorDict({"n": {"s": "text", "x": ramp(2)}, "e": {}}, 2)
    arrays = td.to_numpy()
    assert list(arrays) == ["n", "e"]
    assert list(arrays["n"]) == ["s", "x"]
    assert arrays["n"]["s"] == "text"
    assert arrays["e"] == {}


@pytest.mark.parametrize("name", ["to_numpy", "to_struct_array"])
def test_leaves_that_can_be_no_array_are_named(name: str) -> None:
    td = TensorDict({"n": {"x": ramp(2).requires_grad_()}})
    with pytest.raises(OperandError) as caught:
        getattr(td, name)()
    text = str(caught.value)
    assert "takes part in autograd can not become an array - at td['n', 'x']" in text
    assert "td.detach()" in text
    for leaf, got in (
        (ramp(2, dtype=torch.bfloat16), "torch.bfloat16 on cpu"),
        (ramp(2).to("meta"), "torch.float32 on meta"),
        (torch.eye(2).to_sparse(), "torch.float32 on cpu"),
    ):
        with pytest.raises(OperandError) as caught:
            getattr(TensorDict({"n": {"x": leaf}}), name)()
        text = str(caught.value)
        assert "the leaf can not become an array - at td['n', 'x']" in text
        assert f"got {got}" in text


@ARRAYS
def test_structured_arrays_hold_the_leaves_as_fields(case: Case) -> None:
    if case.statics:
        pytest.skip("refused, see below")
    td = case.tree
    array = td.to_struct_array()
    assert array.shape == case.batch
    for path, x in case.leaves.items():
        column: Any = array
        for key in path:
            column = column[key]
        assert column.dtype == x.numpy().dtype
        assert np.array_equal(column, x.numpy(), equal_nan=column.dtype.kind in "fc")
        assert not np.shares_memory(column, x.numpy())
    if case.name == "empty":
        return
    back = tdfunc.from_struct_array(array)
    check(back, case.batch, case.leaves, {})
    assert back.keys(True) == td.keys(True)


def test_from_struct_array_shares_memory_where_torch_can() -> None:
    array = np.zeros(4, dtype=[("x", "f4", 3), ("n", [("i", "i4"), ("s", "U3")])])
    td = tdfunc.from_struct_array(array)
    assert td.batch_size == (4,)
    assert td["x"].shape == (4, 3)
    assert td["n", "s"] == ["", "", "", ""]
    array["x"][1] = 7
    assert td["x"][1].tolist() == [7, 7, 7]
    packed = np.zeros(4, dtype=[("b", "u1"), ("x", "f4")])
    packed["x"] = [0, 1, 2, 3]
    assert tdfunc.from_struct_array(packed)["x"].tolist() == [0, 1, 2, 3]
    again = td.to_struct_array()
    # Objects, since no width of text is right for what may be written later.
    assert again.dtype == [("x", "f4", 3), ("n", [("i", "i4"), ("s", "O")])]
    assert np.array_equal(again["x"], array["x"])
    assert again["n"].tolist() == array["n"].tolist()
    assert tdfunc.from_numpy(array).equal(td)
    assert tdfunc.from_struct_array(again).equal(td)


def test_from_struct_array_takes_options() -> None:
    array = np.zeros((4, 2), dtype=[("x", "f4", 3)])
    assert tdfunc.from_struct_array(array, batch_size=4).batch_size == (4,)
    assert tdfunc.from_struct_array(array, batch_dims=1).batch_size == (4,)
    auto = tdfunc.from_struct_array(array, auto_batch_size=True)
    assert auto.batch_size == (4, 2, 3)
    named = tdfunc.from_struct_array(array, names=["a", "b"], device="meta")
    assert (named.names, named.device) == (("a", "b"), torch.device("meta"))
    with pytest.raises(OptionError, match="given and to be inferred"):
        tdfunc.from_struct_array(array, batch_size=4, batch_dims=1)


@pytest.mark.parametrize("value", [np.zeros(2), [1], {"x": np.zeros(2)}], ids=str)
def test_what_is_no_structured_array_is_refused(value: Any) -> None:
    with pytest.raises(OperandError, match="this is no structured array") as caught:
        tdfunc.from_struct_array(value)
    assert "expected an array whose dtype has fields" in str(caught.value)


def test_statics_are_no_fields() -> None:
    td = TensorDict({"x": ramp(2), "n": {"s": "text"}}, 2)
    with pytest.raises(OperandError) as caught:
        td.to_struct_array()
    text = str(caught.value)
    assert "is no field of a structured array - at td['n', 's']" in text
    assert "expected a tensor, or a static array of shape [2] - got str" in text


@cases(lambda case: not any(x.requires_grad for x in case.leaves.values()))
def test_dlpack_gives_and_takes_every_leaf_without_copies(case: Case) -> None:
    td = case.tree
    capsules = td.to_dlpack()
    if case.statics:
        return
    back = tdfunc.from_dlpack(capsules, batch_size=case.batch)
    check(back, case.batch, case.leaves)
    for path, x in case.leaves.items():
        assert back[path].data_ptr() == x.data_ptr()


def test_dlpack_with_another_library() -> None:
    td = TensorDict({"n": {"x": ramp(2, 3), "s": "text"}, "i": ramp(2).long()}, 2)
    arrays = td.to_dlpack(np.from_dlpack)
    assert isinstance(arrays["n"]["x"], np.ndarray)
    assert arrays["n"]["s"] == "text"
    assert np.shares_memory(arrays["i"], td["i"].numpy())
    own = {"n": {"x": np.ones((2, 3)), "s": "text"}, "t": ramp(2)}
    out = tdfunc.from_dlpack(own, batch_size=2, names=["t"])
    assert out["n", "x"].data_ptr() == own["n"]["x"].ctypes.data
    assert out["t"] is own["t"]
    assert out["n", "s"] == "text"
    assert tdfunc.from_dlpack(own, auto_batch_size=True)["n"].batch_size == (2, 3)


def test_dlpack_refuses_what_it_can_not_hand_over() -> None:
    td = TensorDict({"n": {"x": ramp(2).requires_grad_()}})
    with pytest.raises(OperandError, match=r"given away - at td\['n', 'x'\]") as caught:
        td.to_dlpack()
    assert "td.detach()" in str(caught.value)
    capsules = td.detach().to_dlpack()
    tdfunc.from_dlpack(capsules)
    with pytest.raises(InvalidLeafError) as twice:
        tdfunc.from_dlpack(capsules)
    assert "the array can not be taken - at td['n', 'x']" in str(twice.value)
    with pytest.raises(InvalidLeafError, match="a tree is made of a mapping"):
        tdfunc.from_dlpack(np.zeros(2))  # pyright: ignore[reportArgumentType]

    def fail(_: Any) -> Any:
        raise LookupError

    with pytest.raises(LookupError) as noted:
        td.detach().to_dlpack(fail)
    assert noted.value.__notes__ == ["tdfunc: at td['n', 'x']"]


def test_struct_arrays_agree_with_the_peer() -> None:
    peer = pytest.importorskip("tensordict").TensorDict
    array = np.zeros((2, 3), dtype=[("x", "f4", 2), ("i", "i8")])
    array["i"] = np.arange(6).reshape(2, 3)
    theirs = peer.from_struct_array(array)
    mine = tdfunc.from_struct_array(array)
    assert mine.batch_size == theirs.batch_size
    for key in ("x", "i"):
        assert torch.equal(mine[key], theirs[key])
    assert np.array_equal(mine.to_struct_array(), theirs.to_struct_array())


def test_the_advice_for_what_is_no_array_works() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    cases: list[tuple[torch.Tensor, str, torch.Tensor]] = [
        (z.conj(), "td.apply(torch.resolve_conj)", z.conj().resolve_conj()),
        (z.conj().imag, "td.apply(torch.resolve_neg)", torch.tensor([-2.0, 1.0])),
        (torch.eye(2).to_sparse(), "td.apply(torch.Tensor.to_dense)", torch.eye(2)),
        (torch.ones(2, dtype=torch.bfloat16), "td.to(torch.float32)", torch.ones(2)),
        (torch.ones(2, device="meta"), "td.zeros_like(device='cpu')", torch.zeros(2)),
    ]
    for leaf, fix, expected in cases:
        td = TensorDict({"x": leaf}, 2)
        with pytest.raises(OperandError, match=re.escape(fix)):
            td.to_numpy()
        mended = eval(fix, {"td": td, "torch": torch})  # noqa: S307
        assert mended.to_numpy()["x"].tolist() == expected.tolist()


def test_dates_and_several_texts_of_structured_arrays_are_rows() -> None:
    fields = [
        ("d", "M8[D]"),
        ("t", "m8[ms]"),
        ("two", "U4", 2),
        ("raw", "V3"),
        ("v", "f4"),
        ("n", [("when", "M8[s]")]),
    ]
    rows = [
        ("2020-01-01", 5, ("a", "b"), b"xyz", 1.0, ("2020-01-01T01:02:03",)),
        ("2021-01-01", 6, ("c", "d"), b"uvw", 2.0, ("NaT",)),
        ("2020-01-01", 7, ("a", "b"), b"xyz", 3.0, ("2021-01-01T01:02:03",)),
    ]
    array = np.array(rows, dtype=fields)
    td = tdfunc.from_struct_array(array)
    assert td[0]["d"] == np.datetime64("2020-01-01")
    assert type(td["d"][0]) is np.datetime64
    assert td[1]["two"].tolist() == ["c", "d"]
    for order in ([2, 1, 0], [1], [0, 0, 2]):
        back = td[torch.tensor(order)].to_struct_array()
        assert back.dtype == array.dtype
        assert back.tobytes() == array[order].tobytes()
    wide = tdfunc.from_struct_array(array.reshape(3, 1)).to_struct_array()
    assert wide.tobytes() == array.tobytes()
    assert wide.shape == (3, 1)
    assert td.to_numpy()["d"].dtype == np.dtype("M8[D]")
    assert td.equal(tdfunc.from_struct_array(array.copy()))
    assert (td == tdfunc.from_struct_array(array.copy()))["two"].all()
    assert (td == td[1])["d"].tolist() == [False, True, False]
