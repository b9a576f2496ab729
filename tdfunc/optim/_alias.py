"""The other optimizers, chains of their parts, with the arguments of torch.optim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc.errors import OptionError
from tdfunc.optim._adam import scale_by_adam
from tdfunc.optim._base import check_rate
from tdfunc.optim._combine import chain
from tdfunc.optim._scale import (
    add_decayed_weights,
    scale,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_rms,
    scale_by_rss,
    scale_by_schedule,
    scale_by_trust_ratio,
    trace,
)
from tdfunc.optim._vector import check_number, precise

if TYPE_CHECKING:
    from tdfunc.optim._base import GradientTransformation, Rate
    from tdfunc.optim._vector import Scalar

__all__ = ["adagrad", "lamb", "lion", "rmsprop", "sgd"]


def sgd(
    lr: Rate = 1e-3,
    momentum: Scalar = 0.0,
    dampening: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    *,
    nesterov: bool = False,
    maximize: bool = False,
) -> GradientTransformation:
    """Return gradient descent, step for step that of `torch.optim.SGD`.

    ``-lr * grads``, or with momentum ``-lr * trace``: see `trace`.

    Args:
        lr: a number, a tensor without dims, or a schedule.
        momentum: how much of the running sum is kept.
        dampening: how much of each gradient but the first is left out of it.
        weight_decay: is multiplied with the parameters and added to the gradients.
        nesterov: look one step ahead.
        maximize: climb.

    Raises:
        OptionError: nesterov without momentum or with dampening; an option is out of
            its range.

    References:
        Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and
        momentum in deep learning", 2013.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx, params = optim.sgd(0.1), torch.tensor([1.0, 2.0])
        >>> updates, state = tx.update(2 * params, tx.init(params))
        >>> optim.apply_updates(params, updates)
        tensor([0.8000, 1.6000])
    """
    check_rate("lr", lr)
    if nesterov and (not _is_on(momentum) or _is_on(dampening)):
        raise OptionError(
            "nesterov looks ahead along the momentum",
            expected="momentum more than 0, and dampening=0",
            got=f"momentum={momentum}, dampening={dampening}",
        )
    check_number("momentum", momentum, 0.0)
    parts = _signed(maximize, weight_decay)
    if _is_on(momentum):
        parts.append(trace(momentum, nesterov=nesterov, dampening=dampening))
    return chain(*parts, scale_by_learning_rate(lr))


def rmsprop(
    lr: Rate = 1e-2,
    alpha: Scalar = 0.99,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    momentum: Scalar = 0.0,
    *,
    centered: bool = False,
    maximize: bool = False,
) -> GradientTransformation:
    """Return RMSprop, step for step that of `torch.optim.RMSprop`.

    See `scale_by_rms` for the formula.

    Args:
        lr: a number, a tensor without dims, or a schedule.
        alpha: how much of the means is kept.
        eps: what keeps the quotient finite.
        weight_decay: is multiplied with the parameters and added to the gradients.
        momentum: of the scaled gradients.
        centered: divide by the standard deviation.
        maximize: climb.

    References:
        Tieleman and Hinton, "Lecture 6.5 - RMSProp", COURSERA: Neural Networks for
        Machine Learning, 2012.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.rmsprop(0.1, alpha=0.75)
        >>> tx.update(torch.ones(2), tx.init(torch.ones(2)))[0]
        tensor([-0.2000, -0.2000])
    """
    check_rate("lr", lr)
    check_number("momentum", momentum, 0.0)
    parts = _signed(maximize, weight_decay)
    parts.append(scale_by_rms(alpha, eps, centered=centered))
    if _is_on(momentum):
        parts.append(trace(momentum))
    return chain(*parts, scale_by_learning_rate(lr))


def adagrad(
    lr: Rate = 1e-2,
    lr_decay: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: Scalar = 1e-10,
    *,
    maximize: bool = False,
) -> GradientTransformation:
    """Return Adagrad, step for step that of `torch.optim.Adagrad`.

    See `scale_by_rss` for the formula. The learning rate is divided by ``1 + count *
    lr_decay``.

    Args:
        lr: a number, a tensor without dims, or a schedule.
        lr_decay: how fast the learning rate falls.
        weight_decay: is multiplied with the parameters and added to the gradients.
        initial_accumulator_value: what the sum of squares begins with.
        eps: what keeps the quotient finite.
        maximize: climb.

    References:
        Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and
        stochastic optimization", 2011.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.adagrad(0.1)
        >>> tx.update(torch.full((2,), 5.0), tx.init(torch.ones(2)))[0]
        tensor([-0.1000, -0.1000])
    """
    check_rate("lr", lr)
    check_number("lr_decay", lr_decay, 0.0)
    parts = _signed(maximize, weight_decay)
    parts.append(scale_by_rss(initial_accumulator_value, eps))
    if _is_on(lr_decay):

        def fall(count: torch.Tensor) -> Scalar:
            return 1 / (1 + precise(count) * lr_decay)

        parts.append(scale_by_schedule(fall))
    return chain(*parts, scale_by_learning_rate(lr))


def lion(
    lr: Rate = 1e-4,
    betas: tuple[Scalar, Scalar] = (0.9, 0.99),
    weight_decay: Scalar = 0.0,
    *,
    mask: Any = None,
) -> GradientTransformation:
    """Return Lion: steps of one size, with the signs of a running mean of gradients.

    See `scale_by_lion` for the formula. The decay is decoupled, as in `adamw`.

    Args:
        lr: a number, a tensor without dims, or a schedule; less than for Adam.
        betas: of the update, and of the mean.
        weight_decay: how fast parameters decay.
        mask: which of them, as in `masked`; None for all.

    References:
        Chen et al., "Symbolic discovery of optimization algorithms", 2023.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.lion(0.5)
        >>> tx.update(torch.tensor([5.0, -0.1]), tx.init(torch.ones(2)))[0]
        tensor([-0.5000,  0.5000])
    """
    check_rate("lr", lr)
    parts: list[GradientTransformation] = [scale_by_lion(betas)]
    if _is_on(weight_decay):
        parts.append(add_decayed_weights(weight_decay, mask))
    return chain(*parts, scale_by_learning_rate(lr))


def lamb(
    lr: Rate = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-6,
    weight_decay: Scalar = 0.0,
    *,
    eps_root: Scalar = 0.0,
    mask: Any = None,
) -> GradientTransformation:
    """Return LAMB: Adam with steps as long as the weights, leaf by leaf.

    `scale_by_adam`, decay, `scale_by_trust_ratio`, learning rate.

    Args:
        lr: a number, a tensor without dims, or a schedule.
        betas: as in `scale_by_adam`.
        eps: what keeps the quotient finite.
        weight_decay: how fast parameters decay.
        eps_root: eps inside the root.
        mask: which leaves decay, as in `masked`; None for all.

    References:
        You et al., "Large batch optimization for deep learning: training BERT in 76
        minutes", 2020.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx, params = optim.lamb(0.1), torch.tensor([3.0, 4.0])
        >>> tx.update(torch.ones(2), tx.init(params), params)[0].norm()
        tensor(0.5000)
    """
    check_rate("lr", lr)
    parts = [scale_by_adam(betas, eps, eps_root=eps_root)]
    if _is_on(weight_decay):
        parts.append(add_decayed_weights(weight_decay, mask))
    return chain(*parts, scale_by_trust_ratio(), scale_by_learning_rate(lr))


def _signed(maximize: bool, weight_decay: Scalar) -> list[GradientTransformation]:  # noqa: FBT001
    """Return what torch does to gradients first: the sign, then L2 decay."""
    parts = [scale(-1.0)] if maximize else []
    check_number("weight_decay", weight_decay, 0.0)
    if _is_on(weight_decay):
        parts.append(add_decayed_weights(weight_decay))
    return parts


def _is_on(value: Scalar) -> bool:
    return isinstance(value, torch.Tensor) or value != 0
