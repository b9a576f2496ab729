"""Random words from keys: two published generators, on integers and on arrays.

Keys come from keys through Threefry-2x64 with 20 rounds: every bit of a new key depends
on every bit of the old one and of what was mixed in, and two new keys of one old key
are never equal. Words come from a key through SplitMix64, whose seed and odd increment
are the two halves of the key: one pass of ten operations however many keys there are.

References:
    J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random Numbers: As
    Easy as 1, 2, 3", 2011 (Threefry).
    G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable Pseudorandom Number
    Generators", 2014 (SplitMix64).
    M. Matsumoto, T. Nishimura, "Mersenne Twister", 1998 (torch's own generator).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = [
    "LARGE",
    "Streams",
    "Words",
    "as_signed",
    "splitmix",
    "stream_of",
    "streams_of",
    "threefry",
    "twister",
]

Words = NDArray[np.uint64]

LARGE: Final = 4096
"""From how many elements of one draw on torch's generator draws them.

Filling its state costs as much as this many words.
"""

_FULL: Final = 0xFFFF_FFFF_FFFF_FFFF
_PARITY: Final = 0x1BD1_1BDA_A9FC_1A22
_ROTATIONS: Final = ((16, 42, 12, 31), (16, 32, 24, 21))


def threefry(k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Return the block of the counter ``(x0, x1)`` under the key ``(k0, k1)``.

    Args:
        k0: the key's first half: an int in [0, 2**64), or an array of uint64.
        k1: its second half.
        x0: the counter's first half.
        x1: its second half.
    """
    # The masks do nothing to arrays, which wrap by themselves, and are what lets the
    # same lines serve ints, which are faster for a few keys.
    schedule = (k0, k1, _PARITY ^ k0 ^ k1)
    x0 = (x0 + k0) & _FULL
    x1 = (x1 + k1) & _FULL
    for turn in range(1, 6):
        for left in _ROTATIONS[(turn - 1) & 1]:
            x0 = (x0 + x1) & _FULL
            x1 = (((x1 << left) & _FULL) | (x1 >> (64 - left))) ^ x0
        x0 = (x0 + schedule[turn % 3]) & _FULL
        x1 = (x1 + schedule[(turn + 1) % 3] + turn) & _FULL
    return x0, x1


def as_signed(word: int) -> int:
    """Return the int64 that has the bits of an int in [0, 2**64)."""
    return word - (1 << 64) if word >> 63 else word


def _constant(value: int) -> Words:
    # An array without dims is what NumPy takes fastest.
    return np.array(value, np.uint64)


_ONE: Final = _constant(1)
_30: Final = _constant(30)
_27: Final = _constant(27)
_31: Final = _constant(31)
_FIRST: Final = _constant(0xBF58_476D_1CE4_E5B9)
_SECOND: Final = _constant(0x94D0_49BB_1331_11EB)
# Two words for each element of the largest draw that is made here.
_COUNT: Final = np.arange(1, 2 * LARGE + 1, dtype=np.uint64)
_COUNT.setflags(write=False)


class Streams(NamedTuple):
    """Start and step of SplitMix64: [] of one key, [keys, 1] of several."""

    start: Words
    step: Words


def stream_of(k0: int, k1: int) -> Streams:
    """Return the stream of one key."""
    # Arrays without dims: broadcasting [1] costs four times as much.
    return Streams(np.array(k0 & _FULL, np.uint64), np.array(k1 & _FULL | 1, np.uint64))


def streams_of(keys: Words) -> Streams:
    """Return the streams of keys [keys, 2]."""
    return Streams(keys[:, :1], keys[:, 1:] | _ONE)


def splitmix(streams: Streams, count: int) -> Words:
    """Return the first words of every stream.

    Args:
        streams: of one key or of several.
        count: how many words, at most ``2 * LARGE``.

    Returns:
        [count] or [keys, count], new memory.
    """
    words = streams.step * _COUNT[:count]
    words += streams.start
    spare = words >> _30
    words ^= spare
    words *= _FIRST
    words ^= np.right_shift(words, _27, spare)
    words *= _SECOND
    words ^= np.right_shift(words, _31, spare)
    return words


# The state of torch's CPU generator: the seed, two flags (one word is left, so that
# the next draw renews all of them; it was seeded), how many were used, 624 words of
# 32 bits in 64 each, and what a pair of normals left over, here nothing.
_TWISTER: Final = np.zeros(632, np.uint64)
_TWISTER[1] = (1 << 32) + 1
_TWISTER.setflags(write=False)
_WORDS: Final = slice(3, 627)


def twister(k0: int, k1: int) -> torch.Generator:
    """Return torch's generator with all of its state made from a key.

    A seed would not do: torch keeps 32 bits of it.
    """
    state = _TWISTER.copy()
    state[_WORDS] = splitmix(stream_of(k0, k1), 312).view(np.uint32)
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(state.view(np.uint8)))
    return generator
