"""Gradients of trees are finite differences, alone and mapped over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import torch
from hypothesis import assume, given

import tdfunc
from property_tests import model as m
from tdfunc import TensorDict
from tdfunc.testing import assert_equal, assert_pure, assert_valid, tensordicts, tensors

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = st.lists(st.integers(1, 2), max_size=2).map(torch.Size)
STEP = 1e-5


def floats(size: torch.Size) -> st.SearchStrategy[torch.Tensor]:
    """Return a strategy for float64 tensors with values between -2 and 2."""
    counted = tensors(size, dtypes=[torch.float64], feature_dims=(0, 1), special=False)
    return st.tuples(counted, st.integers(0, 7)).map(
        lambda both: torch.sin(both[0] + both[1]) * 2
    )


def params(size: Any = SMALL, **flags: Any) -> st.SearchStrategy[TensorDict]:
    return tensordicts(size, leaves=floats, min_leaves=1, max_leaves=3, **flags)


def coupled(td: TensorDict) -> torch.Tensor:
    """Return a scalar in which every leaf is multiplied with every other."""
    total = torch.ones((), dtype=torch.float64)
    for path in td.keys(True, True):
        total = total * (2 + torch.sin(td[path]).sum())
    return total


# Smooth scalar functions of a tree, each through other operations of the library.
LOSSES: dict[str, Callable[[TensorDict], torch.Tensor]] = {
    "squares": lambda t: (t * t).sum(reduce=True),
    "mean": lambda t: (t**3).mean(reduce=True),
    "sines": lambda t: t.apply(torch.sin).sum(reduce=True),
    "coupled": coupled,
    "arithmetic": lambda t: ((t + 1) * (2 - t) / (t * t + 1)).sum(reduce=True),
    "stacked": lambda t: (tdfunc.stack([t, t * t]) * 3).sum(reduce=True),
    "joined": lambda t: tdfunc.cat([t[None], t[None] ** 2]).sum(reduce=True),
    "reshaped": lambda t: (t.reshape(-1) ** 2).sum(reduce=True),
    "indexed": lambda t: (t[None, ..., None] ** 2).sum(reduce=True),
    "set": lambda t: coupled(t.set("again", t[t.keys(True, True)[0]] ** 2)),
    "features": lambda t: (t * t).sum("feature").sum(reduce=True),
}
losses = st.sampled_from(m.named(LOSSES))


def differences(loss: Any, td: TensorDict) -> dict[m.Path, torch.Tensor]:
    """Return the gradient at every leaf by central differences."""
    model = m.read(td)
    out: dict[m.Path, torch.Tensor] = {}
    for path, x, _ in m.leaves(model):
        slopes = torch.zeros(x.numel(), dtype=torch.float64)
        for i in range(x.numel()):
            values = []
            for step in (STEP, -STEP):
                moved = x.clone(memory_format=torch.contiguous_format).reshape(-1)
                moved[i] += step
                values.append(loss(td.set(path, moved.reshape(x.shape))))
            slopes[i] = (values[0] - values[1]) / (2 * STEP)
        out[path] = slopes.reshape(x.shape)
    return out


def assert_gradient(expected: dict[m.Path, torch.Tensor], found: TensorDict) -> None:
    assert expected.keys() == {path for path, *_ in m.leaves(m.read(found))}
    for path, slopes in expected.items():
        assert slopes.shape == found[path].shape
        close = torch.isclose(slopes, found[path], rtol=1e-5, atol=1e-6)
        assert close.all(), (path, slopes, found[path])


@given(params(), losses)
def test_grad_is_finite_differences(td: TensorDict, loss: Any) -> None:
    """Nested nodes, statics, shared leaves and batch dims are no obstacle."""
    found = assert_pure(torch.func.grad(loss), td)

    assert_valid(found)
    assert td.batch_size == found.batch_size
    assert td.keys(True) == found.keys(True)
    assert_gradient(differences(loss, td), found)


@given(params(), losses)
def test_grad_and_value_agree_with_both(td: TensorDict, loss: Any) -> None:
    grads, (value, aux) = assert_pure(
        torch.func.grad_and_value(lambda t: (loss(t), t * 2), has_aux=True), td
    )

    assert m.same_tensor(loss(td), value)
    assert_equal(torch.func.grad(loss)(td), grads, key_order=True)
    assert_equal(td * 2, aux)


@given(
    params(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(torch.Size)), losses
)
def test_vmap_of_grad_is_a_loop(td: TensorDict, loss: Any) -> None:
    """The gradient of each row alone."""
    found = assert_pure(torch.vmap(torch.func.grad(loss)), td)

    rows = [torch.func.grad(loss)(row) for row in td.unbind(0)]
    assert_valid(found)
    assert_equal(tdfunc.stack(rows), found, key_order=True, rtol=1e-9, atol=1e-12)
    for i, row in enumerate(td.unbind(0)):
        assert_gradient(differences(loss, row), found[i])


@given(params(), st.integers(1, 3), losses)
def test_grad_of_vmap_is_the_sum_over_rows(
    td: TensorDict, count: int, loss: Any
) -> None:
    """Parameters that are not mapped get the gradients of all rows."""
    scales = torch.arange(1, count + 1, dtype=torch.float64)

    def total(t: TensorDict) -> torch.Tensor:
        return torch.vmap(lambda s: loss(t * s))(scales).sum()

    found = torch.func.grad(total)(td)

    assert_valid(found)
    assert_gradient(differences(total, td), found)


@given(params(), losses)
def test_vjp_and_jvp_are_directional(td: TensorDict, loss: Any) -> None:
    """Both are inner products with the gradient."""
    assume(any(x.numel() for _, x, _ in m.leaves(m.read(td))))
    grads = torch.func.grad(loss)(td)
    direction = td.apply(lambda x: torch.cos(3 * x))
    slope = (grads * direction).sum(reduce=True)

    value, pushed, *_ = torch.func.jvp(loss, (td,), (direction,))
    again, pull, *_ = torch.func.vjp(loss, td)

    assert torch.isclose(slope, pushed, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert m.same_tensor(value, again)
    (pulled,) = pull(torch.tensor(2.0, dtype=torch.float64))
    assert_valid(pulled)
    assert_equal(grads * 2, pulled, rtol=1e-9, atol=1e-12)


@given(params(st.just(torch.Size())), losses)
def test_jacobian_of_a_scalar_is_its_gradient(td: TensorDict, loss: Any) -> None:
    # Where there is nothing to differentiate torch's own jacfwd fails.
    assume(any(x.numel() for _, x, _ in m.leaves(m.read(td))))
    grads = torch.func.grad(loss)(td)

    for transform in (torch.func.jacrev, torch.func.jacfwd):
        found = transform(loss)(td)

        assert_valid(found)
        assert_equal(grads, found.with_batch_size([]), rtol=1e-9, atol=1e-12)


@given(params(), losses)
def test_autograd_writes_no_tree(td: TensorDict, loss: Any) -> None:
    """`torch.autograd.grad` on marked leaves gives the same, and marks nothing else."""
    marked = td.apply(lambda x: x.detach().clone().requires_grad_())
    leaves = [marked[path] for path in marked.keys(True, True)]

    slopes = assert_pure(lambda t: torch.autograd.grad(loss(t), leaves), marked)

    grads = torch.func.grad(loss)(td)
    for path, slope in zip(marked.keys(True, True), slopes, strict=True):
        assert torch.allclose(grads[path], slope, rtol=1e-9, atol=1e-12)
