"""Keys and draws in plain Python integers, written from the publications."""

from __future__ import annotations

import math

WORD = 1 << 64


def threefry2x64(counter: tuple[int, int], key: tuple[int, int]) -> tuple[int, int]:
    """Return the block of Threefry-2x64-20 (Salmon et al., 2011)."""
    schedule = (*key, key[0] ^ key[1] ^ 0x1BD11BDAA9FC1A22)
    rotations = (16, 42, 12, 31, 16, 32, 24, 21)
    x, y = (counter[0] + key[0]) % WORD, (counter[1] + key[1]) % WORD
    for turn in range(20):
        x = (x + y) % WORD
        bits = f"{y:064b}"
        left = rotations[turn % 8]
        y = int(bits[left:] + bits[:left], 2) ^ x
        if turn % 4 == 3:
            count = turn // 4 + 1
            x = (x + schedule[count % 3]) % WORD
            y = (y + schedule[(count + 1) % 3] + count) % WORD
    return x, y


def splitmix64(state: int, gamma: int, count: int) -> list[int]:
    """Return the first words of SplitMix64 (Steele, Lea and Flood, 2014)."""
    words: list[int] = []
    for _ in range(count):
        state = (state + gamma) % WORD
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        words.append(z ^ (z >> 31))
    return words


def words(key: list[int], count: int) -> list[int]:
    """Return the words of a key as tdfunc writes one: signed, the step made odd."""
    return splitmix64(key[0] % WORD, key[1] % WORD | 1, count)


def child(key: list[int], data: int, tag: int) -> list[int]:
    """Return a key that is made of a key."""
    block = threefry2x64((data % WORD, tag), (key[0] % WORD, key[1] % WORD))
    return [half - WORD if half >= WORD // 2 else half for half in block]


def uniform(key: list[int], count: int, digits: int) -> list[float]:
    return [(word >> 64 - digits) * 2.0**-digits for word in words(key, count)]


def exponential(key: list[int], count: int) -> list[float]:
    return [-math.log1p(-((word >> 11) + 0.5) * 2.0**-53) for word in words(key, count)]


def normal(key: list[int], count: int) -> list[float]:
    """Return the normals of float32: half a word for the radius, half for the angle."""
    out: list[float] = []
    for word in words(key, count):
        u, v = word % 2**32, word >> 32
        radius = math.sqrt(-2 * math.log((u + 0.5) * 2.0**-32))
        out.append(radius * math.cos(2 * math.pi * v * 2.0**-32))
    return out


def normal_of_float64(key: list[int], count: int) -> list[float]:
    both = [word >> 11 for word in words(key, 2 * count)]
    return [
        math.sqrt(-2 * math.log((u + 0.5) * 2.0**-53))
        * math.cos(2 * math.pi * v * 2.0**-53)
        for u, v in zip(both[:count], both[count:], strict=True)
    ]
