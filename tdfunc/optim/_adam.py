"""Adam and its kin: one step, in one formula and by torch's fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tdfunc.optim._base import (
    GradientTransformation,
    apply_updates,
    check_absent,
    check_params,
    check_rate,
    check_state,
    init_flat,
    rate_at,
    with_whole_step,
)
from tdfunc.optim._vector import (
    as_number,
    can_fuse,
    check_betas,
    check_number,
    correction,
    count_from,
    fused,
    opened,
)

if TYPE_CHECKING:
    from tdfunc.optim._base import Rate
    from tdfunc.optim._vector import Leaves, Opened, Scalar

__all__ = ["AdamState", "adam", "adamw", "scale_by_adam"]


class AdamState(NamedTuple):
    """The number of steps, the running means of gradients and of their squares.

    `max_square` is the greatest mean of squares so far, ``()`` without `amsgrad`.
    """

    step: torch.Tensor
    mean: Any
    square: Any
    max_square: Any


class _Options(NamedTuple):
    lr: Rate
    betas: tuple[Scalar, Scalar]
    eps: Scalar
    eps_root: Scalar
    weight_decay: Scalar
    decoupled: bool
    amsgrad: bool
    maximize: bool

    @property
    def decays(self) -> bool:
        """Whether weights decay at all."""
        return isinstance(self.weight_decay, torch.Tensor) or self.weight_decay != 0

    def check(self) -> None:
        """Raise unless every option is in its range."""
        check_betas(self.betas)
        check_number("eps", self.eps, 0.0)
        check_number("eps_root", self.eps_root, 0.0)
        check_number("weight_decay", self.weight_decay, 0.0)


def scale_by_adam(
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    *,
    eps_root: Scalar = 0.0,
    amsgrad: bool = False,
) -> GradientTransformation:
    """Return the transformation to ``mean / (sqrt(square + eps_root) + eps)``.

    ``mean = b1 * mean + (1 - b1) * grads`` and ``square = b2 * square + (1 - b2) *
    grads ** 2``, each divided by ``1 - b ** count``, because they begin at 0.

    Args:
        betas: b1 and b2.
        eps: what keeps the quotient finite.
        eps_root: the same inside the root, where its derivative is to be bounded.
        amsgrad: divide by the greatest `square` so far, as torch does.

    References:
        Kingma and Ba, "Adam: a method for stochastic optimization", 2015. Amsgrad:
        Reddi, Kale and Kumar, "On the convergence of Adam and beyond", 2018.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.scale_by_adam()
        >>> tx.update(torch.tensor([3.0, -0.5]), tx.init(torch.ones(2)))[0]
        tensor([ 1.0000, -1.0000])
    """
    # A rate of -1 leaves the direction as it is.
    options = _Options(-1.0, betas, eps, eps_root, 0.0, False, amsgrad, False)  # noqa: FBT003
    return _adam("scale_by_adam", options)


def adam(
    lr: Rate = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    *,
    eps_root: Scalar = 0.0,
    amsgrad: bool = False,
    maximize: bool = False,
) -> GradientTransformation:
    """Return Adam, step for step that of `torch.optim.Adam`.

    See `scale_by_adam` for the formula.

    Args:
        lr: a number, a tensor without dims, or a schedule.
        betas: as in `scale_by_adam`, like eps and eps_root.
        eps: what keeps the quotient finite.
        weight_decay: is multiplied with the parameters and added to the gradients (L2);
            `adamw` decays the parameters themselves.
        eps_root: eps inside the root.
        amsgrad: divide by the greatest mean of squares so far.
        maximize: climb.

    References:
        Kingma and Ba, "Adam: a method for stochastic optimization", 2015.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx = optim.adam(0.1)
        >>> params = torch.tensor([1.0, 2.0, 3.0])
        >>> updates, state = tx.update(2 * params, tx.init(params))
        >>> optim.apply_updates(params, updates)
        tensor([0.9000, 1.9000, 2.9000])
    """
    check_rate("lr", lr)
    options = _Options(
        lr,
        betas,
        eps,
        eps_root,
        weight_decay,
        False,  # noqa: FBT003
        amsgrad,
        maximize,
    )
    return _adam("adam", options)


def adamw(
    lr: Rate = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    *,
    eps_root: Scalar = 0.0,
    amsgrad: bool = False,
    maximize: bool = False,
) -> GradientTransformation:
    """Return Adam with decoupled weight decay, that of `torch.optim.AdamW`.

    The update is that of `adam`, less ``lr * weight_decay * params``.

    Args:
        lr: a number, a tensor without dims, or a schedule.
        betas: as in `adam`, like the rest.
        eps: what keeps the quotient finite.
        weight_decay: how fast parameters decay. To decay some of them only, chain
            `scale_by_adam`, `add_decayed_weights` with a mask, and
            `scale_by_learning_rate`.
        eps_root: eps inside the root.
        amsgrad: divide by the greatest mean of squares so far.
        maximize: climb.

    References:
        Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.

    Examples:
        >>> import torch
        >>> from tdfunc import optim
        >>> tx, params = optim.adamw(0.1, weight_decay=1.0), torch.ones(1)
        >>> tx.update(torch.zeros(1), tx.init(params), params)[0]
        tensor([-0.1000])
    """
    check_rate("lr", lr)
    options = _Options(
        lr,
        betas,
        eps,
        eps_root,
        weight_decay,
        True,  # noqa: FBT003
        amsgrad,
        maximize,
    )
    return _adam("adamw", options)


def _adam(call: str, options: _Options) -> GradientTransformation:
    options.check()

    def init(params: Any, /) -> AdamState:
        flat = init_flat(params, f"{call}.init")

        def zeros() -> Any:
            return flat.closed([torch.zeros_like(x.detach()) for x in flat.tensors])

        greatest = zeros() if options.amsgrad else ()
        return AdamState(count_from(flat.tensors), zeros(), zeros(), greatest)

    def update(
        grads: Any, state: AdamState, params: Any = None, /
    ) -> tuple[Any, AdamState]:
        if options.decays:
            check_params(params, f"{call} with weight_decay")
        else:
            params = None
        step = _begun(call, options, grads, state, params)
        updates, moments = _updates(step, options)
        return step.work.closed(updates), _ended(step, moments)

    def whole_step(
        grads: Any, state: AdamState, params: Any, /
    ) -> tuple[Any, AdamState] | None:
        """Return parameters and state after a step, None without parameters."""
        if params is None:
            return None
        step = _begun(call, options, grads, state, params)
        if not _is_fused(step, options):
            # Not by `update`, which would begin again and ask the schedule twice.
            mine = step if options.decays else step._replace(p=None)
            updates, moments = _updates(mine, options)
            made = apply_updates(params, step.work.closed(updates))
            return made, _ended(step, moments)
        news, moments = fused(
            step.g,
            step.moments,
            step.number,
            step.p,
            decoupled=options.decoupled,
            weight_decay=step.decay,
            maximize=options.maximize,
            **step.numbers(),
        )
        at = len(step.work.vectors) - 1
        return step.work.closed(news, at), _ended(step, moments)

    return GradientTransformation(init, with_whole_step(update, whole_step))


class _Step(NamedTuple):
    """What a step is made of: vectors, the number of the step, numbers."""

    work: Opened
    g: Leaves
    moments: list[Leaves]
    p: Leaves | None
    number: torch.Tensor
    lr: Any
    b1: Any
    b2: Any
    eps: Any
    decay: Any

    def numbers(self) -> dict[str, Any]:
        """Return the numbers under the names that the kernel has for them."""
        return {"lr": self.lr, "beta1": self.b1, "beta2": self.b2, "eps": self.eps}


def _begun(
    call: str, options: _Options, grads: Any, state: AdamState, params: Any
) -> _Step:
    check_state(state, AdamState, call)
    trees = [grads, state.mean, state.square]
    if options.amsgrad:
        trees.append(state.max_square)
    else:
        check_absent(state.max_square, "max_square", call)
    if params is not None:
        trees.append(params)
    lr = rate_at(options.lr, state.step)
    numbers = (lr, *options.betas, options.eps, options.weight_decay)
    work = opened(f"{call}.update", trees, (*numbers, options.eps_root))
    vectors = list(work.vectors)
    p = vectors.pop() if params is not None else None
    g, *moments = vectors
    numbers = [as_number(x, work.each) for x in numbers]
    return _Step(work, g, moments, p, state.step + 1, *numbers)


def _ended(step: _Step, moments: list[Leaves]) -> AdamState:
    mean, square, *rest = [
        step.work.closed(m, at) for at, m in enumerate(moments, start=1)
    ]
    return AdamState(step.number, mean, square, rest[0] if rest else ())


def _is_fused(step: _Step, options: _Options) -> bool:
    """Return whether torch's kernel makes this step."""
    numbers = (*step[5:], options.eps_root)
    if any([isinstance(x, torch.Tensor) for x in numbers]) or options.eps_root:
        return False
    return can_fuse(step.work)


def _updates(step: _Step, options: _Options) -> tuple[Leaves, list[Leaves]]:
    """Return the updates and the moments after a step."""
    g, p = step.g, step.p
    if options.maximize:
        g = g.neg()
    if p is not None and not options.decoupled:
        g = g.add(p, step.decay)
    if _is_fused(step, options):
        numbers = step.numbers()
        moments = step.moments
        updates, moments = fused(
            g, moments, step.number, weight_decay=0.0, maximize=False, **numbers
        )
    else:
        updates, moments = _stepped(step._replace(g=g), options)
    if p is not None and options.decoupled:
        updates = updates.add(p, -step.lr * step.decay)
    return updates, moments


def _stepped(step: _Step, options: _Options) -> tuple[Leaves, list[Leaves]]:
    """Return the updates without decay, and the moments, by the formula."""
    work, g, moments, _, count, lr, b1, b2, eps, _ = step
    inner = options.eps_root
    mean, square, *rest = moments
    mean = mean.mul(b1).add(g, 1 - b1)
    square = square.mul(b2).add(g.mul(g), 1 - b2)
    greatest = [old.maximum(square) for old in rest]
    spread = greatest[0] if greatest else square
    spread = spread.div(correction(b2, count, work.each))
    if isinstance(inner, torch.Tensor) or inner:
        spread = spread.add(as_number(inner, work.each))
    updates = mean.div(correction(b1, count, work.each)).div(spread.sqrt().add(eps))
    if isinstance(lr, torch.Tensor) or lr != -1:
        updates = updates.mul(-lr)
    return updates, [mean, square, *greatest]


torch.serialization.add_safe_globals([AdamState])
