"""Schedules: functions of the number of steps done, to a number.

A count is an int or an integer tensor without dims; the result is a tensor without dims
in double precision, which takes the dtype of what it is multiplied with. All of them
trace and map. `steps` and boundaries count steps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from tdfunc.errors import OptionError
from tdfunc.optim._vector import precise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tdfunc.optim._base import Schedule
    from tdfunc.optim._vector import Scalar

__all__ = [
    "constant",
    "cosine_decay",
    "exponential_decay",
    "join_schedules",
    "linear",
    "warmup_cosine",
]


def constant(value: Scalar) -> Callable[[Any], torch.Tensor]:
    """Return the schedule that is `value` at every step.

    Examples:
        >>> from tdfunc import optim
        >>> optim.constant(0.5)(7).item()
        0.5
    """

    def schedule(count: Any) -> torch.Tensor:
        return torch.zeros_like(_number(count)) + value

    return schedule


def linear(
    init: Scalar, end: Scalar, steps: int, begin: int = 0
) -> Callable[[Any], torch.Tensor]:
    """Return the schedule that goes from `init` to `end` in equal steps.

    Args:
        init: the value until step `begin`.
        end: the value from step ``begin + steps`` on.
        steps: how many steps it takes, at least 1.
        begin: the first of them.

    Raises:
        OptionError: `steps` is less than 1.

    Examples:
        >>> from tdfunc import optim
        >>> [optim.linear(0.0, 1.0, 4)(step).item() for step in (0, 1, 9)]
        [0.0, 0.25, 1.0]
    """
    _check_steps("steps", steps)

    def schedule(count: Any) -> torch.Tensor:
        part = ((_number(count) - begin) / steps).clamp(0, 1)
        return init + (end - init) * part

    return schedule


def exponential_decay(
    init: Scalar,
    rate: Scalar,
    steps: int,
    begin: int = 0,
    *,
    staircase: bool = False,
    end: float | None = None,
) -> Callable[[Any], torch.Tensor]:
    """Return the schedule ``init * rate ** ((count - begin) / steps)``.

    Args:
        init: the value until step `begin`.
        rate: what `steps` steps multiply it with.
        steps: how many, at least 1.
        begin: the first of them.
        staircase: only whole multiples of `steps` count.
        end: the value at which it stays: a lower bound for a rate below 1, an upper
            one above.

    Raises:
        OptionError: `steps` is less than 1.

    Examples:
        >>> from tdfunc import optim
        >>> [optim.exponential_decay(8.0, 0.5, 2)(step).item() for step in (0, 2, 4)]
        [8.0, 4.0, 2.0]
    """
    _check_steps("steps", steps)

    def schedule(count: Any) -> torch.Tensor:
        part = ((_number(count) - begin) / steps).clamp_min(0)
        if staircase:
            part = part.floor()
        value = init * rate**part
        if end is None:
            return value
        return torch.where(
            torch.as_tensor(rate) < 1, value.clamp_min(end), value.clamp_max(end)
        )

    return schedule


def cosine_decay(
    init: Scalar, steps: int, alpha: float = 0.0, exponent: float = 1.0
) -> Callable[[Any], torch.Tensor]:
    """Return the schedule that falls from `init` to ``alpha * init`` along a cosine.

    ``init * ((1 - alpha) * (0.5 * (1 + cos(pi * count / steps))) ** exponent + alpha)``

    Args:
        init: the first value.
        steps: how many steps it takes, at least 1.
        alpha: what is left in the end.
        exponent: of the cosine.

    Raises:
        OptionError: `steps` is less than 1.

    References:
        Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts",
        2017.

    Examples:
        >>> from tdfunc import optim
        >>> schedule = optim.cosine_decay(1.0, 10)
        >>> [round(schedule(step).item(), 6) for step in (0, 5, 10, 99)]
        [1.0, 0.5, 0.0, 0.0]
    """
    _check_steps("steps", steps)

    def schedule(count: Any) -> torch.Tensor:
        part = (_number(count) / steps).clamp(0, 1)
        wave = 0.5 * (1 + torch.cos(math.pi * part))
        return init * ((1 - alpha) * wave**exponent + alpha)

    return schedule


def warmup_cosine(
    init: Scalar,
    peak: Scalar,
    warmup: int,
    steps: int,
    end: Scalar = 0.0,
    exponent: float = 1.0,
) -> Callable[[Any], torch.Tensor]:
    """Return the schedule that rises in a line, and then falls along a cosine.

    Args:
        init: the first value.
        peak: the value after `warmup` steps.
        warmup: how many steps it rises, at least 1.
        steps: how many steps it takes in all, more than `warmup`.
        end: the last value.
        exponent: of the cosine.

    Raises:
        OptionError: `warmup` is less than 1, or `steps` not more than `warmup`.

    Examples:
        >>> from tdfunc import optim
        >>> schedule = optim.warmup_cosine(0.0, 1.0, 10, 30)
        >>> [round(schedule(step).item(), 6) for step in (0, 5, 10, 20, 30)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if steps <= warmup:
        raise OptionError(
            "steps counts those of the warmup too",
            expected=f"more than warmup={warmup}",
            got=f"steps={steps}",
        )
    wave = cosine_decay(1.0, steps - warmup, 0.0, exponent)

    def fall(count: Any) -> torch.Tensor:
        return end + (peak - end) * wave(count)

    return join_schedules([linear(init, peak, warmup), fall], [warmup])


def join_schedules(
    schedules: Sequence[Schedule], boundaries: Sequence[int]
) -> Callable[[Any], torch.Tensor]:
    """Return the schedule that is one after the other.

    Args:
        schedules: at least one; each counts from 0 where it begins.
        boundaries: where the second begins, and those after it, in rising order.

    Raises:
        OptionError: there is no schedule, there are not one fewer boundaries than
            schedules, or they fall.

    Examples:
        >>> from tdfunc import optim
        >>> both = optim.join_schedules([optim.constant(1.0), optim.constant(2.0)], [3])
        >>> [both(step).item() for step in (0, 2, 3)]
        [1.0, 1.0, 2.0]
    """
    if not schedules:
        raise OptionError(
            "there is no schedule to join",
            expected="at least one",
            got=[],
            fix="optim.join_schedules([schedule], [])",
        )
    if len(schedules) != len(boundaries) + 1 or list(boundaries) != sorted(boundaries):
        raise OptionError(
            "boundaries stand between schedules",
            expected=f"{len(schedules) - 1} rising boundaries for "
            f"{len(schedules)} schedules",
            got=list(boundaries),
        )
    first, *later = schedules
    ends = [*boundaries, None]

    def schedule(count: Any) -> torch.Tensor:
        # All are called, those whose turn it is not with the nearest count of theirs:
        # elsewhere they may have no value, and a gradient of NaN.
        value = torch.as_tensor(first(_within(count, 0, ends[0])))
        for next_one, begin, end in zip(later, boundaries, ends[1:], strict=True):
            inside = torch.as_tensor(count) >= begin
            value = torch.where(inside, next_one(_within(count, begin, end)), value)
        return value

    return schedule


def _within(count: Any, begin: int, end: int | None) -> Any:
    """Return the count from `begin`, at least 0 and at most the last before `end`."""
    last = None if end is None else max(end - 1 - begin, 0)
    if isinstance(count, torch.Tensor):
        return (count - begin).clamp(0, last)
    count = max(count - begin, 0)
    return count if last is None else min(count, last)


def _number(count: Any) -> torch.Tensor:
    if isinstance(count, torch.Tensor):
        return precise(count)
    return torch.tensor(count, dtype=torch.float64)


def _check_steps(name: str, steps: int) -> None:
    if not steps >= 1:
        raise OptionError(
            f"{name} is a number of steps", expected="at least 1", got=steps
        )
