"""A gradient transformation is two pure functions, as in Optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch

from tdfunc._core._torch import foreach_add, foreach_works, is_tracing
from tdfunc.errors import OperandError
from tdfunc.optim._flat import (
    check_alike,
    check_numbers,
    flatten,
    is_real,
    shapes_and_dtypes,
)
from tdfunc.optim._vector import Scalar, check_number

if TYPE_CHECKING:
    from tdfunc.optim._flat import Flat

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "Init",
    "Rate",
    "Schedule",
    "Update",
    "apply_updates",
    "check_absent",
    "check_params",
    "check_rate",
    "check_state",
    "identity",
    "init_flat",
    "rate_at",
    "set_to_zero",
    "step",
    "with_whole_step",
]

Schedule: TypeAlias = Callable[[Any], Scalar]
"""A function of the number of steps done, a tensor without dims or an int."""

Rate: TypeAlias = Scalar | Schedule
"""A learning rate: a number, a tensor without dims, or a schedule."""


class Init(Protocol):
    """Make the state for parameters."""

    def __call__(self, params: Any, /) -> Any:
        """Return the state: a pytree of tensors, on the devices of `params`."""
        ...


class Update(Protocol):
    """Turn gradients into updates."""

    def __call__(
        self, grads: Any, state: Any, params: Any = None, /
    ) -> tuple[Any, Any]:
        """Return the updates, of the structure of `grads`, and the next state."""
        ...


class GradientTransformation(NamedTuple):
    """An optimizer, or a part of one: ``init(params)`` and ``update(grads, state)``.

    Both are pure: what they are given is never written into, and the state is a pytree
    of tensors that stacks, maps, saves and compiles like the parameters.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> from tdfunc import optim
        >>> params = tdfunc.TensorDict({"w": torch.tensor([1.0, 2.0])})
        >>> tx = optim.sgd(0.5)
        >>> state = tx.init(params)
        >>> updates, state = tx.update(params * 2, state)
        >>> optim.apply_updates(params, updates)["w"]
        tensor([0., 0.])
    """

    init: Init
    update: Update


class EmptyState(NamedTuple):
    """The state of a transformation that keeps none."""


def apply_updates(params: Any, updates: Any) -> Any:
    """Return ``params + updates``, each leaf in the dtype that the parameter has.

    Args:
        params: a pytree of tensors.
        updates: one of the same structure and shapes.

    Raises:
        OperandError: a leaf of `params` is no tensor of a floating or complex dtype, or
            is real where the update is complex.
        ShapeError: leaves have other shapes.
        StructureError: the pytrees have other entries.

    Examples:
        >>> import torch
        >>> from tdfunc.optim import apply_updates
        >>> apply_updates([torch.ones(2)], [torch.tensor([1.0, 2.0])])
        [tensor([2., 3.])]
    """
    old, new = flatten(params), flatten(updates)
    ours, theirs = old.tensors, new.tensors
    if foreach_add is not None and foreach_works(ours, theirs):
        rows = shapes_and_dtypes(ours)
        if rows == shapes_and_dtypes(theirs) and is_real(rows):
            check_alike(old, new, "apply_updates", _WHAT, shapes=False, fix=None)
            return old.closed(foreach_add(ours, theirs))
    check_numbers(old, "apply_updates")
    check_alike(old, new, "apply_updates", _WHAT, fix=None)
    for at, (x, y) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(y, torch.Tensor) and y.is_complex() and not x.is_complex():
            raise OperandError(
                "apply_updates: a real parameter has no place for an imaginary part",
                path=old.paths()[at],
                expected="a real update",
                got=y.dtype,
                fix="updates.apply(torch.real) drops it",
            )
    return old.closed([(x + y).to(x.dtype) for x, y in zip(ours, theirs, strict=True)])


_WHAT = "parameters and updates"


def step(
    tx: GradientTransformation, grads: Any, state: Any, params: Any
) -> tuple[Any, Any]:
    """Return parameters and state after a step: update and `apply_updates` in one call.

    The same up to rounding, and cheaper for `adam` and `adamw` outside transforms:
    torch's fused kernel makes the new parameters without updates in between.

    Args:
        tx: the transformation.
        grads: the gradients.
        state: the state.
        params: the parameters.

    Raises:
        TdfuncError: what the update and `apply_updates` raise.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx, params = optim.adam(0.1), torch.tensor([1.0, 2.0])
        >>> params, state = optim.step(tx, 2 * params, tx.init(params), params)
        >>> params
        tensor([0.9000, 1.9000])
    """
    if not is_tracing():
        whole = getattr(tx.update, _WHOLE, None)
        done = None if whole is None else whole(grads, state, params)
        if done is not None:
            return done
    updates, state = tx.update(grads, state, params)
    return apply_updates(params, updates), state


_WHOLE = "_whole_step"


def with_whole_step(update: Any, whole: Callable[..., Any]) -> Update:
    """Return an update that tells `step` how to do both halves at once."""
    setattr(update, _WHOLE, whole)
    return update


def identity() -> GradientTransformation:
    """Return the transformation that gives the gradients as they are.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.identity()
        >>> tx.update(torch.ones(2), tx.init(torch.ones(2)))
        (tensor([1., 1.]), EmptyState())
    """

    def update(grads: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        del params
        return grads, state

    return GradientTransformation(init_empty, update)


def set_to_zero() -> GradientTransformation:
    """Return the transformation that gives zeros: what it gets stays as it is.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.set_to_zero()
        >>> tx.update(torch.ones(2), tx.init(torch.ones(2)))
        (tensor([0., 0.]), EmptyState())
    """

    def update(grads: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        del params
        flat = flatten(grads)
        check_numbers(flat, "set_to_zero")
        return flat.closed([torch.zeros_like(x) for x in flat.tensors]), state

    return GradientTransformation(init_empty, update)


def init_empty(params: Any, /) -> EmptyState:
    """Return the empty state, after a look at the parameters."""
    check_numbers(flatten(params), "init")
    return EmptyState()


def init_flat(params: Any, call: str) -> Flat:
    """Return the tensors of parameters that can be optimized."""
    flat = flatten(params)
    check_numbers(flat, call)
    return flat


def check_params(params: Any, call: str) -> None:
    """Raise if a transformation that needs the parameters did not get them."""
    if params is None:
        raise OperandError(
            f"{call} needs the parameters",
            expected="params",
            got="None",
            fix="tx.update(grads, state, params)",
        )


def check_absent(part: Any, name: str, call: str) -> None:
    """Raise if a state has a part that is there with another option only.

    Raises:
        OperandError: it has.
    """
    if not isinstance(part, tuple) or part:
        raise OperandError(
            f"the state is not that of {call}, which has other options",
            expected=f"no {name}",
            got=type(part).__name__,
            fix="state = tx.init(params)",
        )


def check_state(state: Any, kind: type[Any], call: str) -> None:
    """Raise unless a state is of the kind that a transformation makes.

    Raises:
        OperandError: it is not, as after a change of the optimizer.
    """
    if not isinstance(state, kind):
        raise OperandError(
            f"the state is not that of {call}",
            expected=f"an {kind.__name__}"
            if kind.__name__[0] in "AEIOU"
            else f"a {kind.__name__}",
            got=type(state).__name__,
            fix="state = tx.init(params)",
        )


def check_rate(name: str, rate: Any) -> None:
    """Raise unless a learning rate is a number, a tensor without dims, or a schedule.

    Raises:
        OptionError: it is not.
    """
    if not callable(rate):
        check_number(name, rate, 0.0)


def rate_at(rate: Rate, count: torch.Tensor) -> Scalar:
    """Return the learning rate after `count` steps."""
    if isinstance(rate, (int, float, torch.Tensor)):
        return rate
    return rate(count)


torch.serialization.add_safe_globals([EmptyState])
