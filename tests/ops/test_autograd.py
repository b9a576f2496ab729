"""torch.autograd.grad of trees, against torch on the leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tdfunc import TensorDict
from tdfunc.errors import OperandError
from tests.cases import check, ramp, same

grad: Any = torch.autograd.grad


def weights() -> TensorDict:
    return TensorDict(
        {"w": ramp(3).requires_grad_(), "n": {"b": ramp(2, 2).requires_grad_()}}
    )


def test_of_a_loss_with_respect_to_a_tree() -> None:
    td = weights()
    loss = td["w"].square().sum() + td["n", "b"].exp().sum()
    (found,) = grad(loss, td)
    check(found, (), {("w",): td["w"] * 2, ("n", "b"): td["n", "b"].exp()})


def test_of_a_tree_with_a_tree_of_seeds() -> None:
    td = weights()
    seeds = td.ones_like() * 3
    for given in (seeds, (seeds,)):
        (found,) = grad(td * td, td, given)
        check(found, (), {("w",): td["w"] * 6, ("n", "b"): td["n", "b"] * 6})


def test_trees_and_tensors_together() -> None:
    td = weights()
    x = ramp(3).requires_grad_()
    outputs = [(td["w"] * x).sum(), td.square().sum()]
    of_tree, of_x = grad(outputs, [td, x], create_graph=True)
    assert same(of_tree["w"], x + 2 * td["w"])
    assert same(of_x, td["w"])
    (second,) = grad(of_tree["w"].square().sum(), x)
    assert same(second, 2 * (x + 2 * td["w"]))


def test_what_is_not_used_is_zero_if_asked_and_never_none() -> None:
    td = weights()
    loss = td["w"].sum()
    (found,) = grad(loss, td, retain_graph=True, materialize_grads=True)
    check(found, (), {("w",): torch.ones(3), ("n", "b"): torch.zeros(2, 2)})
    options = {"allow_unused": True, "materialize_grads": True}
    (found,) = grad(loss, td, retain_graph=True, **options)
    assert found["n", "b"].sum() == 0
    with pytest.raises(OperandError, match=r"no place for None.*materialize"):
        grad(loss, td, allow_unused=True)
    with pytest.raises(RuntimeError, match="not have been used"):
        grad(loss, td)


def test_seeds_need_the_entries_of_their_output() -> None:
    td = weights()
    for seed in (td.drop("w"), torch.ones(3)):
        with pytest.raises(OperandError, match="does not have its entries"):
            grad([td * 2], td, [seed])
    (found,) = grad([td.sum(), td["w"].sum()], td, [None, None])
    check(found, (), {("w",): torch.full((3,), 2.0), ("n", "b"): torch.ones(2, 2)})
