"""Functions of every element: torch's own on every leaf, by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc._ops import unary
from tests.cases import Case, cases, check, fingerprint, ramp, same

Size = torch.Size

NAMES = unary.__all__
# Of numbers that are not floats, torch knows no gradient, or it is 0 everywhere.
FLAT = {
    *("bitwise_not", "ceil", "floor", "isfinite", "isinf", "isnan", "isneginf"),
    *("isposinf", "isreal", "logical_not", "round", "sgn", "sign", "signbit", "trunc"),
    *("imag", "angle"),
}
each_name = pytest.mark.parametrize("name", NAMES)


def torchs(name: str) -> Any:
    return torch.nn.functional.softplus if name == "softplus" else getattr(torch, name)


def takes(fn: Any, x: torch.Tensor) -> bool:
    try:
        fn(x)
    except (RuntimeError, TypeError):
        return False
    return True


@each_name
@cases()
def test_every_leaf_is_torchs_and_all_else_stays(case: Case, name: str) -> None:
    fn = torchs(name)
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td = case.tree
    refused = [x for x in tensors if not takes(fn, x)]
    if refused:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            getattr(td, name)()
        first = next(p for p, x in case.leaves.items() if not takes(fn, x))
        assert any(f"{first[-1]!r}" in note for note in caught.value.__notes__)
        kept = [p for p, x in case.leaves.items() if takes(fn, x)]
        if case.name != "mixed dtypes":
            return
        td = td.select(*kept)
        expected = {p: fn(case.leaves[p]) for p in kept}
    else:
        expected = case.mapped(fn)
    out = getattr(td, name)()
    check(out, case.batch, expected)
    assert out.names == case.names
    assert getattr(tdfunc, name)(td).batch_size == Size(case.batch)
    for path, batch in case.batches.items():
        assert (out[path] if path else out).batch_size == Size(batch)
    if not refused:
        check(out, case.batch, expected, case.statics)
    assert fingerprint(tensors) == before


@each_name
def test_torchs_function_takes_a_tree(name: str) -> None:
    x = torch.tensor([3, 4]) if name == "bitwise_not" else torch.tensor([0.25, 0.5])
    x = x + 1j if name == "imag" else x
    td = TensorDict({"x": x, "n": {"y": x[:, None]}}, 2)
    fn = torchs(name)
    check(fn(td), (2,), {("x",): fn(x), ("n", "y"): fn(x)[:, None]})


@each_name
def test_functions_map_and_compile(name: str) -> None:
    x = torch.tensor([3, 4]) if name == "bitwise_not" else torch.tensor([0.25, 0.5])
    x = x + 1j if name == "imag" else x
    td = TensorDict({"x": x, "n": {"y": x[:, None]}}, 2)
    fn = getattr(tdfunc, name)
    expected = {("x",): torchs(name)(x), ("n", "y"): torchs(name)(x)[:, None]}
    check(torch.vmap(fn)(td), (2,), expected)
    torch._dynamo.reset()
    compiled = torch.compile(fn, fullgraph=True, backend="eager")
    check(compiled(td), (2,), expected, exact=False)


@pytest.mark.parametrize("name", sorted({*NAMES} - FLAT))
def test_functions_differentiate(name: str) -> None:
    x = torch.tensor([1.25, 1.5] if name == "acosh" else [0.25, 0.5])
    td = TensorDict({"x": x}, 2)
    fn = torchs(name)
    grad = torch.func.grad(lambda t: getattr(t, name)().sum(reduce=True))(td)
    check(grad, (2,), {("x",): torch.func.grad(lambda x: fn(x).sum())(x)})
    leaf: Any = x.clone().requires_grad_()
    getattr(TensorDict({"x": leaf}, 2), name)()["x"].sum().backward()
    assert same(leaf.grad, grad["x"])


@each_name
def test_functions_are_documented_methods(name: str) -> None:
    fn = getattr(tdfunc, name)
    assert fn.__name__ == name
    assert fn.__doc__.startswith("Return ")
    assert getattr(TensorDict, name) is fn


def test_options_are_torchs() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.126])
    td = TensorDict({"x": x}, 4)
    assert same(td.nan_to_num()["x"], x.nan_to_num())
    assert same(td.nan_to_num(1.0, 2.0, 3.0)["x"], x.nan_to_num(1.0, 2.0, 3.0))
    through_torch: Any = torch.nan_to_num
    assert same(through_torch(td, nan=1.0)["x"], x.nan_to_num(nan=1.0))
    y = torch.tensor([0.126, 0.25, 12.5])
    td = TensorDict({"x": y}, 3)
    assert same(td.round(decimals=2)["x"], y.round(decimals=2))
    assert same(td.round(decimals=-1)["x"], y.round(decimals=-1))
    assert same(td.logit(1e-6)["x"], y.logit(1e-6))
    softplus = torch.nn.functional.softplus
    assert same(td.softplus(2.0, 0.4)["x"], softplus(y, 2.0, 0.4))
    ours: Any = softplus
    assert same(ours(td, beta=2.0)["x"], softplus(y, beta=2.0))
    relu: Any = torch.nn.functional.relu
    assert same(relu(td)["x"], y)


def test_operators_of_one_tree() -> None:
    td = TensorDict({"x": torch.tensor([True, False])}, 2)
    assert (~td)["x"].tolist() == [False, True]
    assert (+TensorDict({"x": ramp(2)}, 2))["x"].tolist() == [0, 1]
    with pytest.raises((RuntimeError, TypeError)) as caught:
        ~TensorDict({"n": {"x": ramp(2)}}, 2)
    assert any("td['n', 'x']" in note for note in caught.value.__notes__)


def test_the_peer_agrees() -> None:
    peer = pytest.importorskip("tensordict")
    x, y = torch.rand(3, 2) / 2 + 0.25, torch.rand(3) / 2 + 0.25
    ours = TensorDict({"x": x, "n": {"y": y}}, 3)
    theirs = peer.TensorDict({"x": x, "n": {"y": y}}, 3)
    compared = 0
    for name in NAMES:
        if name in {"conj", "bitwise_not", "imag"} or not hasattr(theirs, name):
            continue
        value = getattr(theirs, name)
        if not callable(value):
            continue
        out: Any = value()
        compared += 1
        check(
            getattr(ours, name)(), (3,), {("x",): out["x"], ("n", "y"): out["n", "y"]}
        )
    assert compared > 25
