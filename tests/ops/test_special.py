"""Further functions of two operands, and of the gamma family, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import tdfunc
from tdfunc import TensorDict
from tdfunc._ops import special
from tdfunc.errors import OperandError
from tests.cases import Case, cases, check, fingerprint, ramp, same

# torch's own, of vmap over isin.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

Size = torch.Size

INTEGERS = ("gcd", "lcm")
# Which torch refuses, or gives no derivative, for tensors of two kinds or at all.
FLAT = {"heaviside", "nextafter", *INTEGERS}
NAMES = [n for n in special.__all__ if n not in {"isin", "mvlgamma", "polygamma"}]

each = pytest.mark.parametrize("name", NAMES)


def floating(case: Case) -> bool:
    return all(x.is_floating_point() for x in case.leaves.values())


def aligned(tensor: torch.Tensor, x: torch.Tensor, dims: int) -> torch.Tensor:
    return tensor.reshape((*tensor.shape, *(1,) * (x.dim() - dims)))


def tree() -> TensorDict:
    return TensorDict({"x": ramp(3, 2) + 1, "n": {"y": ramp(3) + 2}}, 3)


def fit(name: str, x: torch.Tensor) -> torch.Tensor:
    return (x * 4).to(torch.int64) if name in INTEGERS else x


@each
@cases(floating)
def test_each_kind_of_operand_is_torchs(case: Case, name: str) -> None:
    fn: Any = getattr(torch, name)
    dims = len(case.batch)
    td = case.tree.apply(lambda x: fit(name, x))
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    mine = {path: fit(name, x) for path, x in case.leaves.items()}
    pairs = {path: x * 2 - 1 for path, x in mine.items()}
    expected = {path: fn(x, pairs[path]) for path, x in mine.items()}
    got = getattr(td, name)(td.apply(lambda x: x * 2 - 1))
    check(got, case.batch, expected, case.statics)
    assert got.names == case.names
    two = {path: torch.full((), 2, dtype=x.dtype) for path, x in mine.items()}
    expected = {path: fn(x, two[path]) for path, x in mine.items()}
    check(getattr(tdfunc, name)(td, 2), case.batch, expected, case.statics)
    weights = fit(name, ramp(*case.batch) + 2)
    if len({x.dtype for x in [weights, *mine.values()]}) > 1 and name == "heaviside":
        assert fingerprint(tensors) == before
        return  # of one dtype only
    expected = {path: fn(x, aligned(weights, x, dims)) for path, x in mine.items()}
    check(getattr(td, name)(weights), case.batch, expected, case.statics)
    assert fingerprint(tensors) == before


@each
def test_torchs_function_takes_trees_on_both_sides(name: str) -> None:
    td = tree().apply(lambda x: fit(name, x))
    fn: Any = getattr(torch, name)
    tensor = fit(name, torch.tensor([1.0, 3.0, 2.0]))
    x, y = td["x"], td["n", "y"]
    wide = tensor[:, None]
    check(fn(td, td), (3,), {("x",): fn(x, x), ("n", "y"): fn(y, y)})
    check(fn(td, tensor), (3,), {("x",): fn(x, wide), ("n", "y"): fn(y, tensor)})
    check(fn(tensor, td), (3,), {("x",): fn(wide, x), ("n", "y"): fn(tensor, y)})
    if name not in {"float_power", "xlogy"}:
        return  # torch's take no number in front
    two = torch.full((), 2, dtype=x.dtype)
    check(fn(2, td), (3,), {("x",): fn(two, x), ("n", "y"): fn(two, y)})


@each
def test_transforms(name: str) -> None:
    td = tree().apply(lambda x: fit(name, x))
    fn: Any = getattr(torch, name)
    expected = fn(td["x"], td["x"])
    mapped = torch.vmap(lambda t: getattr(t, name)(t))(td)
    assert mapped.batch_size == Size((3,))
    torch.testing.assert_close(mapped["x"], expected)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda t: getattr(t, name)(t), fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(compiled(td)["x"], expected)
    if name in FLAT or name.startswith("igamma"):
        return
    grads = torch.func.grad(lambda t: getattr(t, name)(1.5).sum(reduce=True))(td)
    two = torch.tensor(1.5)
    plain = torch.func.grad(lambda x: fn(x, two).sum())(td["x"])
    torch.testing.assert_close(grads["x"], plain)


def test_numbers_promote_as_numbers_do() -> None:
    td = TensorDict({"x": torch.tensor([3, 4], dtype=torch.float16)}, 2)
    assert td.hypot(4.0)["x"].dtype == torch.float16
    assert td.to(torch.int32).copysign(-1)["x"].dtype == torch.float32
    assert td.to(torch.int32).gcd(2)["x"].dtype == torch.int32
    assert td.float_power(2)["x"].dtype == torch.float64
    with pytest.raises(RuntimeError) as caught:
        td.gcd(2)
    assert any("td['x']" in note for note in caught.value.__notes__)


def test_other_entries_and_shapes_are_refused() -> None:
    with pytest.raises(tdfunc.errors.StructureError):
        tree().hypot(tree().drop("x"))
    with pytest.raises(OperandError):
        tree().hypot(torch.ones(4))
    with pytest.raises(OperandError):
        tree().hypot("a")


def test_lazy_stacks_and_text() -> None:
    td = TensorDict({"x": ramp(3) + 1, "t": ["a", "b", "c"]}, 3)
    out = td.hypot(td)
    assert list(out["t"]) == ["a", "b", "c"]
    lazy = tdfunc.lazy_stack([td, td])
    assert same(lazy.logaddexp(1)["x"][0], torch.logaddexp(td["x"], torch.tensor(1.0)))


def test_membership() -> None:
    td = TensorDict({"x": torch.tensor([[1, 2], [3, 4]]), "y": torch.tensor([4, 5])}, 2)
    values = torch.tensor([[1, 4]])
    call: Any = torch.isin
    for out in (td.isin(values), call(td, values), td.isin(np.array([1, 4]))):
        assert out["x"].tolist() == [[True, False], [False, True]]
        assert out["y"].tolist() == [True, False]
    assert td.isin(5)["y"].tolist() == [False, True]
    assert td.isin(values, invert=True)["y"].tolist() == [False, True]
    assert call(elements=td, test_elements=values)["y"].tolist() == [True, False]
    with pytest.raises(OperandError, match=r"same for every leaf.*torch\.isin"):
        td.isin(td)
    assert td.apply(torch.isin, td)["y"].all()
    with pytest.raises(OperandError, match="same for every leaf"):
        call(values, td)
    with pytest.raises(OperandError, match="expected"):
        td.isin("a")
    mapped = torch.vmap(lambda t: t.isin(values))(td)
    assert mapped["y"].tolist() == [True, False]


def test_gamma_family() -> None:
    td = tree() + 1
    call: Any = torch.polygamma
    for out in (td.polygamma(2), call(2, td), tdfunc.polygamma(td, n=2)):
        assert same(out["x"], torch.polygamma(2, td["x"]))
    call = torch.mvlgamma
    for out in (td.mvlgamma(2), call(td, 2), call(td, p=2)):
        assert same(out["n", "y"], torch.mvlgamma(td["n", "y"], 2))
    call = torch.special.gammainc
    assert same(call(td, td)["x"], torch.igamma(td["x"], td["x"]))
    call = torch.special.psi
    assert same(call(td)["x"], torch.digamma(td["x"]))


ACTIVATIONS = (
    *("celu", "elu", "gelu", "hardshrink", "hardtanh"),
    *("leaky_relu", "logsigmoid", "mish", "relu6", "selu", "silu", "softshrink"),
    *("softsign", "tanhshrink"),
)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_take_trees(name: str) -> None:
    fn: Any = getattr(F, name)
    td = tree() - 3
    check(fn(td), (3,), {("x",): fn(td["x"]), ("n", "y"): fn(td["n", "y"])})
    torch._dynamo.reset()
    compiled = torch.compile(fn, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(td)["x"], fn(td["x"]))


def test_activations_take_options() -> None:
    td, call = tree() - 3, F.gelu
    through: Any = call
    expected = F.gelu(td["x"], approximate="tanh")
    assert same(through(td, approximate="tanh")["x"], expected)
    through = F.leaky_relu
    assert same(through(td, 0.3)["x"], F.leaky_relu(td["x"], 0.3))
    assert same(through(td, negative_slope=0.3)["x"], F.leaky_relu(td["x"], 0.3))
    through = F.hardtanh
    assert same(through(td, -2, 1.0)["x"], F.hardtanh(td["x"], -2, 1.0))
    with pytest.raises(OperandError, match="inplace"):
        through(td, inplace=True)
