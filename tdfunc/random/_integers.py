"""Integers of a range from random bits, exactly: no floating point on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc.random._draws import draw

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["in_range"]

_LOW = 0xFFFF_FFFF
_MOST = (1 << 63) - 1
_LEAST = -(1 << 63)
# Spans up to this come from 64 bits, others from 128.
_NARROW = 1 << 31


def in_range(
    key: torch.Tensor, shape: Sequence[int], low: Any, high: Any, device: torch.device
) -> torch.Tensor:
    """Return integers from `low` to ``high - 1`` as int64.

    Args:
        key: [*keys, 2], checked.
        shape: of what one key draws.
        low: an int, or an integer tensor that broadcasts to `shape`.
        high: the same, larger.
        device: where the result lies.
    """
    if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor):
        low, high = _as_words(low, device), _as_words(high, device)
    elif high - low <= _NARROW:
        # The remainder has the sign of the divisor, also of negative numbers.
        rest = draw(key, "bits", shape, torch.int64, device) % (high - low)
        return rest + _wrapped(low) if low else rest
    elif high - low >= 1 << 64:
        return draw(key, "bits", shape, torch.int64, device)
    span = high - low
    bits = draw(key, "bits", (*shape, 2), torch.int64, device)
    first, second = bits[..., 0], bits[..., 1]
    # The whole part of ``bits * span / 2**128``, all of it unsigned.
    upper = _high_product(first, span)
    lower = first * _wrapped(span)
    total = lower + _high_product(second, span)
    carry = (total ^ _LEAST) < (lower ^ _LEAST)
    return upper + carry + _wrapped(low)


def _as_words(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, torch.int64)
    return _wrapped(value)


def _wrapped(value: Any) -> Any:
    """Return the int64 of the bits of an int below 2**64; tensors are ones already."""
    if isinstance(value, int) and value > _MOST:
        return value - (1 << 64)
    return value


def _high_product(a: torch.Tensor, b: Any) -> torch.Tensor:
    """Return the upper 64 of the 128 bits of an unsigned product.

    By halves, as in H. S. Warren, "Hacker's Delight", 2nd edition, 2012, section 8-2.
    """
    a1, a0 = (a >> 32) & _LOW, a & _LOW
    b1, b0 = (b >> 32) & _LOW, b & _LOW
    carried = (a0 * b0 >> 32) & _LOW
    middle = a1 * b0 + carried
    outer = a0 * b1 + (middle & _LOW)
    return a1 * b1 + ((middle >> 32) & _LOW) + ((outer >> 32) & _LOW)
