"""Casts by name, against torch leaf by leaf."""

from __future__ import annotations

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import OptionError
from tests.cases import Case, cases, check, fingerprint, ramp

FLOATING = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
EVERY = {"int": torch.int32, "long": torch.int64, "bool": torch.bool}

# torch's own, of complex numbers cast to real ones.
pytestmark = pytest.mark.filterwarnings("ignore:Casting complex")


@pytest.mark.parametrize("name", FLOATING)
@cases()
def test_floating_casts_leave_other_leaves_alone(case: Case, name: str) -> None:
    dtype = FLOATING[name]
    before = fingerprint(case.leaves.values())
    td = case.tree
    out = getattr(td, name)()
    expected = case.mapped(lambda x: x.to(dtype) if x.is_floating_point() else x)
    check(out, case.batch, expected, case.statics)
    assert out.names == case.names
    for path, x in case.leaves.items():
        if not x.is_floating_point() or x.dtype == dtype:
            assert out[path] is x
    assert getattr(tdfunc, name)(out) is out
    assert fingerprint(case.leaves.values()) == before


@pytest.mark.parametrize("name", EVERY)
@cases(lambda case: case.name != "not finite")
def test_other_casts_are_of_every_leaf(case: Case, name: str) -> None:
    out = getattr(case.tree, name)()
    check(out, case.batch, case.mapped(lambda x: x.to(EVERY[name])), case.statics)
    assert getattr(tdfunc, name)(out) is out


def test_moves_by_name() -> None:
    td = TensorDict({"x": ramp(2), "n": {"y": ramp(2, 3)}}, 2)
    assert td.cpu() is td
    for wrong in ("cpu", torch.device("meta")):
        with pytest.raises(OptionError, match=r"no device of CUDA.*td\.to\("):
            td.cuda(wrong)
    if torch.cuda.is_available():
        assert td.cuda().is_cuda
        assert td.cuda(0)["n", "y"].device == torch.device("cuda", 0)
        assert td.cuda().cpu().equal(td)


def test_casts_go_through_transforms() -> None:
    td = TensorDict({"x": ramp(2, 3), "n": {"i": torch.tensor([1, 2])}}, 2)

    def use(t: TensorDict) -> TensorDict:
        return t.double().long().float().bool()

    expected = {("x",): ramp(2, 3) != 0, ("n", "i"): torch.tensor([True, True])}
    check(torch.vmap(use)(td), (2,), expected)
    check(torch.compile(use, fullgraph=True, backend="eager")(td), (2,), expected)
    grads = torch.func.grad(lambda t: t.double()["x"].square().sum())(td.select("x"))
    check(grads, (2,), {("x",): ramp(2, 3) * 2})


def test_the_peer_casts_the_same() -> None:
    peer = pytest.importorskip("tensordict")
    entries = {"x": ramp(2, 3), "y": ramp(2)}
    for name in (*FLOATING, "int", "bool"):
        ours = getattr(TensorDict(entries, 2), name)()
        theirs = getattr(peer.TensorDict(entries, 2), name)()
        check(ours, (2,), {("x",): theirs["x"], ("y",): theirs["y"]})
