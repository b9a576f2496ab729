"""Transformations of gradients alone: scale, clip, decay, accumulate momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tdfunc._ops.training import norm_of
from tdfunc.errors import OptionError
from tdfunc.optim._base import (
    GradientTransformation,
    check_absent,
    check_params,
    check_rate,
    check_state,
    init_empty,
    init_flat,
)
from tdfunc.optim._pick import masked
from tdfunc.optim._vector import (
    Leaves,
    as_number,
    check_betas,
    check_number,
    correction,
    count_from,
    opened,
    precise,
)

if TYPE_CHECKING:
    from tdfunc.optim._base import Rate, Schedule
    from tdfunc.optim._vector import Scalar

__all__ = [
    "EmaState",
    "LionState",
    "RmsState",
    "RssState",
    "ScheduleState",
    "TraceState",
    "add_decayed_weights",
    "clip",
    "clip_by_global_norm",
    "ema",
    "scale",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_schedule",
    "scale_by_trust_ratio",
    "trace",
]


class ScheduleState(NamedTuple):
    """How many steps were done: an integer tensor without dims."""

    step: torch.Tensor


class TraceState(NamedTuple):
    """The number of steps, and the running sum of gradients."""

    step: torch.Tensor
    trace: Any


class EmaState(NamedTuple):
    """The number of steps, and the running mean of gradients."""

    step: torch.Tensor
    mean: Any


class RmsState(NamedTuple):
    """The running mean of squares, and that of gradients (``()`` unless centered)."""

    square: Any
    mean: Any


class RssState(NamedTuple):
    """The sum of squares."""

    total: Any


class LionState(NamedTuple):
    """The running mean of gradients."""

    mean: Any


def scale(factor: Scalar) -> GradientTransformation:
    """Return the transformation to ``factor * grads``.

    Args:
        factor: a number, or a tensor without dims.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> optim.scale(-0.5).update(torch.ones(2), optim.EmptyState())[0]
        tensor([-0.5000, -0.5000])
    """
    check_number("factor", factor, float("-inf"))

    def update(grads: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        del params
        work = opened("scale", [grads], [factor])
        (g,) = work.vectors
        return work.closed(g.mul(as_number(factor, work.each))), state

    return GradientTransformation(init_empty, update)


def scale_by_schedule(schedule: Schedule) -> GradientTransformation:
    """Return the transformation to ``schedule(count) * grads``.

    Args:
        schedule: a function of the number of steps done, a tensor without dims.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.scale_by_schedule(lambda count: 1.0 / (count + 1))
        >>> _, state = tx.update(torch.ones(2), tx.init(torch.ones(2)))
        >>> tx.update(torch.ones(2), state)[0]
        tensor([0.5000, 0.5000])
    """
    if not callable(schedule):
        raise OptionError(
            "a schedule is a function",
            expected="a function of the number of steps",
            got=type(schedule).__name__,
            fix="optim.scale(factor) scales by a number",
        )

    def init(params: Any, /) -> ScheduleState:
        return ScheduleState(count_from(init_flat(params, "init").tensors))

    def update(
        grads: Any, state: ScheduleState, params: Any = None, /
    ) -> tuple[Any, ScheduleState]:
        del params
        check_state(state, ScheduleState, "scale_by_schedule")
        factor = schedule(state.step)
        work = opened("scale_by_schedule", [grads], [factor])
        (g,) = work.vectors
        updates = work.closed(g.mul(as_number(factor, work.each)))
        return updates, ScheduleState(state.step + 1)

    return GradientTransformation(init, update)


def scale_by_learning_rate(lr: Rate, *, flip_sign: bool = True) -> Any:
    """Return the transformation to ``-lr * grads``, the last one of most chains.

    Args:
        lr: a number, a tensor without dims, or a schedule.
        flip_sign: False for ``lr * grads``, which climbs.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> optim.scale_by_learning_rate(0.5).update(torch.ones(2), ())[0]
        tensor([-0.5000, -0.5000])
    """
    check_rate("lr", lr)
    if isinstance(lr, (int, float, torch.Tensor)):
        return scale(-lr if flip_sign else lr)
    return scale_by_schedule((lambda count: -lr(count)) if flip_sign else lr)


def clip(max_delta: Scalar) -> GradientTransformation:
    """Return the transformation that bounds every element by -max_delta and max_delta.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> optim.clip(1.0).update(torch.tensor([-3.0, 0.5]), ())[0]
        tensor([-1.0000,  0.5000])
    """
    check_number("max_delta", max_delta, 0.0)

    def update(grads: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        del params
        work = opened("clip", [grads], [max_delta])
        (g,) = work.vectors
        return work.closed(g.clamp(as_number(max_delta, work.each))), state

    return GradientTransformation(init_empty, update)


def clip_by_global_norm(max_norm: Scalar) -> GradientTransformation:
    """Return the transformation that shortens gradients to at most `max_norm`.

    ``grads * min(1, max_norm / norm)``, with the norm of all elements of all leaves.

    Args:
        max_norm: the greatest norm, more than 0; infinity bounds nothing.

    References:
        Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
        networks", 2013.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> optim.clip_by_global_norm(1.0).update(torch.tensor([3.0, 4.0]), ())[0]
        tensor([0.6000, 0.8000])
    """
    check_number("max_norm", max_norm, 0.0)

    def update(grads: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        del params
        work = opened("clip_by_global_norm", [grads], [max_norm])
        (g,) = work.vectors
        # Norm and bound may be more than half precision holds.
        norm = norm_of([x if x.dtype in _WIDE else x.float() for x in g.tensors])
        bound = _like(max_norm, norm)
        free = bound.isinf()
        bound = bound.where(~free, 1)
        # Not `max_norm / norm`: at norm 0 its gradient is NaN. At max_norm 0 it is 0.
        factor = (bound / norm.clamp_min(1e-38).maximum(bound)).where(~free, 1)
        return work.closed(g.mul(as_number(factor, work.each))), state

    return GradientTransformation(init_empty, update)


_WIDE = frozenset({torch.float32, torch.float64})


def _like(value: Scalar, other: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(other.dtype)
    return torch.full_like(other, value)


def add_decayed_weights(weight_decay: Scalar, mask: Any = None) -> Any:
    """Return the transformation to ``grads + weight_decay * params``.

    Args:
        weight_decay: the strength.
        mask: which leaves decay, as in `masked`; None for all.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.add_decayed_weights(0.1)
        >>> tx.update(torch.ones(2), tx.init(torch.ones(2)), torch.full((2,), 5.0))[0]
        tensor([1.5000, 1.5000])
    """
    check_number("weight_decay", weight_decay, 0.0)

    def update(grads: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        check_params(params, "add_decayed_weights")
        work = opened("add_decayed_weights", [grads, params], [weight_decay])
        g, p = work.vectors
        return work.closed(g.add(p, as_number(weight_decay, work.each))), state

    tx = GradientTransformation(init_empty, update)
    return tx if mask is None else masked(tx, mask)


def trace(
    decay: Scalar, *, nesterov: bool = False, dampening: Scalar = 0.0
) -> GradientTransformation:
    """Return the transformation to a running sum of gradients: momentum.

    ``trace = decay * trace + (1 - dampening) * grads``, where the first gradient is not
    damped, as in torch; the update is `trace`, or ``grads + decay * trace``.

    Args:
        decay: the momentum.
        nesterov: look one step ahead.
        dampening: how much of a gradient is left out.

    References:
        Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and
        momentum in deep learning", 2013.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.trace(0.5)
        >>> _, state = tx.update(torch.ones(2), tx.init(torch.ones(2)))
        >>> tx.update(torch.ones(2), state)[0]
        tensor([1.5000, 1.5000])
    """
    check_number("decay", decay, 0.0)
    check_number("dampening", dampening, 0.0)
    damped = isinstance(dampening, torch.Tensor) or dampening != 0

    def init(params: Any, /) -> TraceState:
        flat = init_flat(params, "init")
        zeros = [_zeros(x) for x in flat.tensors]
        return TraceState(count_from(flat.tensors), flat.closed(zeros))

    def update(
        grads: Any, state: TraceState, params: Any = None, /
    ) -> tuple[Any, TraceState]:
        del params
        check_state(state, TraceState, "trace")
        work = opened("trace", [grads, state.trace], [decay, dampening])
        g, total = work.vectors
        beta = as_number(decay, work.each)
        share = g
        if damped:
            later = as_number(state.step, work.each)
            if isinstance(later, torch.Tensor):
                share = g.mul(1 - precise(later > 0) * dampening)
            elif later:
                share = g.mul(1 - as_number(dampening, work.each))
        total = total.mul(beta).add(share)
        updates = g.add(total, beta) if nesterov else total
        new = TraceState(state.step + 1, work.closed(total, 1))
        return work.closed(updates), new

    return GradientTransformation(init, update)


def ema(decay: Scalar, *, debias: bool = True) -> GradientTransformation:
    """Return the transformation to an exponential moving average of the gradients.

    ``mean = decay * mean + (1 - decay) * grads``, divided by ``1 - decay ** count``
    where it is debiased. (`polyak` averages parameters.)

    Args:
        decay: how much of the mean is kept.
        debias: correct for the 0 that the mean begins with.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.ema(0.9)
        >>> tx.update(torch.ones(2), tx.init(torch.ones(2)))[0]
        tensor([1., 1.])
    """
    check_number("decay", decay, 0.0, 1.0)

    def init(params: Any, /) -> EmaState:
        flat = init_flat(params, "init")
        zeros = [_zeros(x) for x in flat.tensors]
        return EmaState(count_from(flat.tensors), flat.closed(zeros))

    def update(
        grads: Any, state: EmaState, params: Any = None, /
    ) -> tuple[Any, EmaState]:
        del params
        check_state(state, EmaState, "ema")
        work = opened("ema", [grads, state.mean], [decay])
        g, mean = work.vectors
        beta = as_number(decay, work.each)
        count = state.step + 1
        mean = mean.mul(beta).add(g, 1 - beta)
        updates = mean.div(correction(beta, count, work.each)) if debias else mean
        return work.closed(updates), EmaState(count, work.closed(mean, 1))

    return GradientTransformation(init, update)


def scale_by_rms(
    alpha: Scalar = 0.99, eps: Scalar = 1e-8, *, centered: bool = False
) -> GradientTransformation:
    """Return the transformation to ``grads / (sqrt(square) + eps)``.

    ``square = alpha * square + (1 - alpha) * grads ** 2``; centered, the square of the
    mean gradient is taken off it, which leaves the variance.

    Args:
        alpha: how much of the means is kept.
        eps: what keeps the quotient finite.
        centered: divide by the standard deviation.

    References:
        Tieleman and Hinton, "Lecture 6.5 - RMSProp", COURSERA: Neural Networks for
        Machine Learning, 2012. Centered: Graves, "Generating sequences with recurrent
        neural networks", 2013.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.scale_by_rms(0.75)
        >>> tx.update(torch.ones(2), tx.init(torch.ones(2)))[0]
        tensor([2., 2.])
    """
    check_number("alpha", alpha, 0.0)
    check_number("eps", eps, 0.0)

    def init(params: Any, /) -> RmsState:
        flat = init_flat(params, "init")
        square = flat.closed([_zeros(x) for x in flat.tensors])
        mean = flat.closed([_zeros(x) for x in flat.tensors]) if centered else ()
        return RmsState(square, mean)

    def update(
        grads: Any, state: RmsState, params: Any = None, /
    ) -> tuple[Any, RmsState]:
        del params
        check_state(state, RmsState, "scale_by_rms")
        if not centered:
            check_absent(state.mean, "mean", "scale_by_rms")
        trees = [grads, state.square, *([state.mean] if centered else [])]
        work = opened("scale_by_rms", trees, [alpha, eps])
        g, square, *rest = work.vectors
        beta, tiny = as_number(alpha, work.each), as_number(eps, work.each)
        square = square.mul(beta).add(g.mul(g), 1 - beta)
        spread: Leaves = square
        mean: Any = ()
        if rest:
            average = rest[0].mul(beta).add(g, 1 - beta)
            spread = square.sub(average.mul(average))
            mean = work.closed(average, 2)
        new = RmsState(work.closed(square, 1), mean)
        return work.closed(g.div(spread.sqrt().add(tiny))), new

    return GradientTransformation(init, update)


def scale_by_rss(
    initial_accumulator_value: float = 0.0, eps: Scalar = 1e-10
) -> GradientTransformation:
    """Return the transformation to ``grads / (sqrt(total) + eps)``.

    `total` is the sum of the squares of all gradients so far.

    Args:
        initial_accumulator_value: what the sum begins with.
        eps: what keeps the quotient finite.

    References:
        Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and
        stochastic optimization", 2011.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.scale_by_rss(3.0)
        >>> tx.update(torch.ones(2), tx.init(torch.ones(2)))[0]
        tensor([0.5000, 0.5000])
    """
    check_number("initial_accumulator_value", initial_accumulator_value, 0.0)
    check_number("eps", eps, 0.0)

    def init(params: Any, /) -> RssState:
        flat = init_flat(params, "init")
        value = initial_accumulator_value
        both = complex(value, value)  # of each of the two real numbers
        return RssState(
            flat.closed(
                [
                    torch.full_like(x.detach(), both if x.is_complex() else value)
                    for x in flat.tensors
                ]
            )
        )

    def update(
        grads: Any, state: RssState, params: Any = None, /
    ) -> tuple[Any, RssState]:
        del params
        check_state(state, RssState, "scale_by_rss")
        work = opened("scale_by_rss", [grads, state.total], [eps])
        g, total = work.vectors
        total = total.add(g.mul(g))
        updates = g.div(total.sqrt().add(as_number(eps, work.each)))
        return work.closed(updates), RssState(work.closed(total, 1))

    return GradientTransformation(init, update)


def scale_by_lion(betas: tuple[Scalar, Scalar] = (0.9, 0.99)) -> GradientTransformation:
    """Return the transformation to ``sign(b1 * mean + (1 - b1) * grads)``.

    Then ``mean = b2 * mean + (1 - b2) * grads``.

    Args:
        betas: b1 and b2.

    References:
        Chen et al., "Symbolic discovery of optimization algorithms", 2023.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.scale_by_lion()
        >>> tx.update(torch.tensor([5.0, -0.1]), tx.init(torch.ones(2)))[0]
        tensor([ 1., -1.])
    """
    check_betas(betas)
    b1, b2 = betas

    def init(params: Any, /) -> LionState:
        flat = init_flat(params, "init")
        return LionState(flat.closed([_zeros(x) for x in flat.tensors]))

    def update(
        grads: Any, state: LionState, params: Any = None, /
    ) -> tuple[Any, LionState]:
        del params
        check_state(state, LionState, "scale_by_lion")
        work = opened("scale_by_lion", [grads, state.mean], betas)
        g, mean = work.vectors
        fast, slow = as_number(b1, work.each), as_number(b2, work.each)
        updates = mean.mul(fast).add(g, 1 - fast).sign()
        mean = mean.mul(slow).add(g, 1 - slow)
        return work.closed(updates), LionState(work.closed(mean, 1))

    return GradientTransformation(init, update)


def scale_by_trust_ratio(
    *, trust_coefficient: Scalar = 1.0, eps: Scalar = 0.0
) -> GradientTransformation:
    """Return the transformation to ``grads * |param| / |grad|``, leaf by leaf.

    Where one of the norms is 0 the gradient stays as it is. The norms are those of
    whole leaves: `torch.vmap` the update over the members of an ensemble.

    Args:
        trust_coefficient: scales the ratio.
        eps: is added to the norm of the gradient.

    References:
        You et al., "Large batch optimization for deep learning: training BERT in 76
        minutes", 2020.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.scale_by_trust_ratio()
        >>> params = torch.tensor([3.0, 4.0])
        >>> tx.update(torch.tensor([0.0, 2.0]), tx.init(params), params)[0]
        tensor([0., 5.])
    """
    check_number("trust_coefficient", trust_coefficient, 0.0)
    check_number("eps", eps, 0.0)

    def update(grads: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        check_params(params, "scale_by_trust_ratio")
        trees = [grads, params]
        work = opened("scale_by_trust_ratio", trees, [trust_coefficient, eps])
        g, p = work.vectors
        out: list[torch.Tensor] = []
        for x, y in zip(g.tensors, p.tensors, strict=True):
            ours, theirs = torch.linalg.vector_norm(x), torch.linalg.vector_norm(y)
            zero = (ours == 0) | (theirs == 0)
            ratio = trust_coefficient * theirs / (ours.where(~zero, 1) + eps)
            out.append((x * ratio.where(~zero, 1)).to(x.dtype))
        return work.closed(Leaves(out, work.each)), state

    return GradientTransformation(init_empty, update)


def _zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x.detach())


torch.serialization.add_safe_globals(
    [ScheduleState, TraceState, EmaState, RmsState, RssState, LionState]
)
