"""Casts, moves, copies and plain dicts: torch's on every leaf, shared where equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import OptionError
from tests.cases import (
    Case,
    Wider,
    cases,
    check,
    fingerprint,
    leaves_of,
    ramp,
    statics_of,
)

Size = torch.Size


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int32, torch.complex64], ids=str
)
@cases()
@pytest.mark.filterwarnings("ignore:Casting complex:UserWarning")
def test_to_a_dtype_casts_every_leaf(case: Case, dtype: torch.dtype) -> None:
    for out in (case.tree.to(dtype), case.tree.to(dtype=dtype)):
        check(out, case.batch, case.mapped(lambda x: x.to(dtype)), case.statics)
        assert out.names == case.names


@cases()
def test_to_floating_only_leaves_the_other_leaves_alone(case: Case) -> None:
    out = case.tree.to(torch.float64, floating_only=True)

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.double() if x.is_floating_point() else x

    check(out, case.batch, case.mapped(cast), case.statics)
    found = leaves_of(out)
    for path, x in case.leaves.items():
        if not x.is_floating_point():
            assert found[path] is x


@cases(lambda case: bool(case.leaves))
def test_to_a_device_moves_every_leaf(case: Case) -> None:
    for out in (
        *(case.tree.to("meta"), case.tree.to(torch.device("meta"))),
        *(
            case.tree.to(device="meta"),
            case.tree.to(torch.empty(0, device="meta").device),
        ),
    ):
        assert out.device == torch.device("meta")
        assert out.batch_size == Size(case.batch)
        assert statics_of(out) == case.statics


@cases()
def test_to_what_it_is_returns_the_tree_itself(case: Case) -> None:
    td = case.tree
    assert td.to("cpu") is td
    assert td.to(None) is td
    assert td.to() is td
    if td.dtype is not None:
        assert td.to(td.dtype) is td


def test_to_takes_device_and_dtype_in_any_form_and_shares_what_stays() -> None:
    x, y = ramp(2), ramp(2).double()
    td = TensorDict({"x": x, "y": y}, 2)
    out = td.to(torch.float64)
    assert out["y"] is y
    assert out["x"].dtype == torch.float64
    for moved in (
        td.to("meta", torch.int64),
        td.to(torch.int64, "meta"),
        td.to("meta", dtype=torch.int64),
        td.to(device="meta", dtype=torch.int64, non_blocking=True),
        td.to(torch.empty(0, dtype=torch.int64, device="meta")),
        td.to(TensorDict({"a": torch.empty(0, dtype=torch.int64, device="meta")})),
    ):
        assert (moved.device, moved.dtype) == (torch.device("meta"), torch.int64)


@pytest.mark.parametrize("arg", [1.5, [torch.float32], True, {}], ids=repr)
def test_to_something_else_is_refused(arg: Any) -> None:
    with pytest.raises(OptionError) as caught:
        TensorDict({"x": ramp(2)}).to(arg)
    text = str(caught.value)
    assert "can not be moved or cast to this" in text
    assert "expected a device, a dtype, a tensor or a tree" in text
    assert f"got {arg!r}" in text


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((torch.float32, torch.float64), {}, "dtype"),
        ((torch.float32,), {"dtype": torch.float64}, "dtype"),
        (("cpu", "meta"), {}, "device"),
        (("cpu",), {"device": "meta"}, "device"),
    ],
    ids=str,
)
def test_to_with_an_option_given_twice_is_refused(
    args: Any, kwargs: Any, name: str
) -> None:
    with pytest.raises(OptionError, match=f"{name} is given twice - got .* and "):
        TensorDict({"x": ramp(2)}).to(*args, **kwargs)


@cases()
def test_clone_copies_every_leaf_and_shares_the_rest(case: Case) -> None:
    td = case.tree
    out = td.clone()
    check(out, case.batch, case.leaves, case.statics)
    assert out._schema is td._schema
    for path, x in leaves_of(out).items():
        assert x is not case.leaves[path]
        if x.numel():
            assert x.data_ptr() != case.leaves[path].data_ptr()


@cases()
def test_detach_cuts_from_autograd_and_shares_memory(case: Case) -> None:
    out = case.tree.detach()
    check(out, case.batch, case.leaves, case.statics)
    assert not out.requires_grad
    for path, x in leaves_of(out).items():
        assert x.data_ptr() == case.leaves[path].data_ptr()


@cases()
def test_contiguous_copies_only_what_is_not(case: Case) -> None:
    td = case.tree
    out = td.contiguous()
    check(out, case.batch, case.leaves, case.statics)
    found = leaves_of(out)
    for path, x in case.leaves.items():
        assert found[path].is_contiguous()
        assert (found[path] is x) is x.is_contiguous()
    assert (out is td) is all(x.is_contiguous() for x in case.leaves.values())


def plain(entries: Any) -> Any:
    """Return what `to_dict` gives: dicts of tensors and static values."""
    if isinstance(entries, Wider):
        return plain(entries.entries)
    if isinstance(entries, dict):
        return {key: plain(value) for key, value in entries.items()}
    return entries.data if isinstance(entries, NonTensorData) else entries


def same_dicts(got: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return list(got) == list(expected) and all(
            same_dicts(got[key], value) for key, value in expected.items()
        )
    return got is expected


@cases()
def test_to_dict_gives_the_very_tensors_and_values_in_order(case: Case) -> None:
    out = case.tree.to_dict()
    assert type(out) is dict
    assert same_dicts(out, plain(dict(case.entries)))


@cases(lambda case: "statics" not in case.name)
def test_from_dict_of_to_dict_is_the_tree(case: Case) -> None:
    td = tdfunc.from_dict(case.tree.to_dict(), batch_size=case.batch, names=case.names)
    check(td, case.batch, case.leaves, case.statics)
    assert td.names == case.names


@cases()
def test_conversions_change_nothing_in_their_tree(case: Case) -> None:
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td = case.tree
    td.to(torch.float64, floating_only=True), td.to("meta"), td.clone(), td.detach()
    td.contiguous(), td.to_dict()
    assert fingerprint(tensors) == before


def test_conversions_differentiate_and_map() -> None:
    td = TensorDict({"x": ramp(3, 2)}, 3)
    gradient = torch.func.grad(
        lambda t: (t.clone().contiguous().to(torch.float64)["x"] ** 2).sum()
    )(td)
    check(gradient, (3,), {("x",): 2 * ramp(3, 2)})
    out = torch.vmap(lambda t: t.clone().detach().to(torch.float64))(td)
    check(out, (3,), {("x",): ramp(3, 2).double()})
