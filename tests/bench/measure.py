"""Interleaved timing: ratios of calls that ran in the same two milliseconds.

All sides of a case run in one process, round by round, in an order that rotates, with
the garbage collector off inside a round and run between rounds. A ratio is the median
over rounds of one side's time over another's *in the same round*, so that a machine
whose speed changes changes both. Time is CPU time of this thread, on which everything
runs if torch uses one: what others do on the machine is not counted.
"""

from __future__ import annotations

import gc
from itertools import repeat
from statistics import median, quantiles
from time import thread_time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Ratio(NamedTuple):
    """Median and quartiles over the rounds."""

    median: float
    low: float
    high: float


def interleaved(
    sides: Mapping[str, Callable[[], Any]], rounds: int, seconds: float = 0.002
) -> dict[str, list[float]]:
    """Return for every side the seconds that one call took, in every round.

    Args:
        sides: the calls to compare.
        rounds: how many rounds; three more come first and are not counted.
        seconds: how long each side runs in each round.
    """
    names = list(sides)
    loops = {name: _loops_in(call, seconds) for name, call in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in names}
    warm_up = 3
    # What is there now stays: collecting between rounds then looks only at what the
    # rounds made.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for turn in range(warm_up + rounds):
            at = turn % len(names)
            for name in names[at:] + names[:at]:
                took = _time(sides[name], loops[name]) / loops[name]
                if turn >= warm_up:
                    times[name].append(took)
            gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return times


def ratio(times: Sequence[float], base: Sequence[float]) -> Ratio:
    """Return how many times longer than `base` the calls took, round by round."""
    each = [a / b for a, b in zip(times, base, strict=True)]
    if len(each) == 1:
        return Ratio(each[0], each[0], each[0])
    low, _, high = quantiles(each, n=4, method="inclusive")
    return Ratio(median(each), low, high)


def _loops_in(call: Callable[[], Any], seconds: float) -> int:
    """Return how many calls take about `seconds`, at least one."""
    loops = 1
    while True:
        took = _time(call, loops)
        if took >= seconds / 4:
            return max(1, round(loops * seconds / took))
        loops *= 4


def _time(call: Callable[[], Any], loops: int) -> float:
    start = thread_time()
    for _ in repeat(None, loops):
        call()
    return thread_time() - start
