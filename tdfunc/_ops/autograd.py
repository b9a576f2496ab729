"""``torch.autograd.grad`` of trees and with respect to trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.node import Node
from tdfunc._core.tree import with_leaves
from tdfunc.errors import OperandError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["grad"]


def grad(
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    grad_outputs: Any = None,
    *,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
    **options: Any,
) -> tuple[Any, ...]:
    """Return the gradients of a sum of outputs, one for each input.

    Args:
        outputs: tensors and trees; a tree stands for all its leaves.
        inputs: tensors and trees whose leaves all take part in autograd.
        grad_outputs: tensors and trees with the entries of `outputs`, or None.
        allow_unused: as torch has it; of a tree, zeros are asked for as well.
        materialize_grads: zeros for inputs that were not used.
        options: what else torch takes.

    Returns:
        For every tensor a tensor, for every tree a tree with its entries.

    Raises:
        OperandError: a gradient of a tree could be None, or does not fit its output.
    """
    if allow_unused and not materialize_grads:
        raise OperandError(
            "the gradient of a tree has no place for None",
            expected="allow_unused=True with materialize_grads=True",
            got="allow_unused=True alone",
            fix="torch.autograd.grad(outputs, inputs, materialize_grads=True)",
        )
    given = [grad_outputs] if isinstance(grad_outputs, Node) else grad_outputs
    seeds: list[Any] | None = None
    if given is not None:
        seeds = []
        for output, seed in zip(outputs, given, strict=True):
            seeds += _seeds(output, seed)
    found = torch.autograd.grad(
        _flat(outputs),
        _flat(inputs),
        seeds,
        materialize_grads=materialize_grads,
        **options,
    )
    rest = iter(found)
    return tuple(
        [
            with_leaves(x, tuple([next(rest) for _ in x._leaves]))
            if isinstance(x, Node)
            else next(rest)
            for x in inputs
        ]
    )


def _flat(values: Sequence[Any]) -> list[Any]:
    out: list[Any] = []
    for value in values:
        out += value._leaves if isinstance(value, Node) else (value,)
    return out


def _seeds(output: Any, seed: Any) -> list[Any]:
    if not isinstance(output, Node):
        return [seed]
    if seed is None:
        return [None] * output._schema.n
    if not isinstance(seed, Node) or not output._schema.matches(seed._schema):
        raise OperandError(
            "the gradient of an output does not have its entries",
            expected="a tree with the entries of the output",
            got=f"a tree of {list(seed.keys(True, True))}"  # noqa: FBT003
            if isinstance(seed, Node)
            else type(seed).__name__,
        )
    return list(seed._leaves)
