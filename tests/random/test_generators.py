"""Published generators: their known answers, and keys and words made of them.

The known answers of Threefry are those of the tests of Random123, which its authors
published with the article; those of SplitMix64 are of the reference implementation.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tdfunc.random import _generators as generators
from tests.random import oracle

# Counter, key, block.
THREEFRY = [
    ((0, 0), (0, 0), (0xC2B6E3A8C2C69865, 0x6F81ED42F350084D)),
    (
        (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF),
        (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF),
        (0xE02CB7C4D95D277A, 0xD06633D0893B8B68),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344),
        (0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x263C7D30BB0F0AF1, 0x56BE8361D3311526),
    ),
]
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
SPLITMIX = [
    (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]),
    (
        1234567,
        [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
            4593380528125082431,
            16408922859458223821,
        ],
    ),
]


@pytest.mark.parametrize(("counter", "key", "block"), THREEFRY)
def test_threefry_gives_its_known_answers(counter, key, block) -> None:
    assert block == generators.threefry(*key, *counter)
    assert block == oracle.threefry2x64(counter, key)


def test_threefry_of_arrays_is_that_of_ints() -> None:
    columns = np.array([[*key, *counter] for counter, key, _ in THREEFRY], np.uint64).T

    found = np.stack(generators.threefry(*columns), -1)

    assert [list(block) for _, _, block in THREEFRY] == found.tolist()


@pytest.mark.parametrize(("seed", "words"), SPLITMIX)
def test_splitmix_gives_its_known_answers(seed: int, words: list[int]) -> None:
    one = generators.stream_of(seed, GOLDEN_GAMMA)
    keys = np.array([[seed, GOLDEN_GAMMA], [1, 1], [seed, GOLDEN_GAMMA]], np.uint64)
    many = generators.splitmix(generators.streams_of(keys), len(words))

    assert words == generators.splitmix(one, len(words)).tolist()
    assert words == many[0].tolist() == many[2].tolist()
    assert words == oracle.splitmix64(seed, GOLDEN_GAMMA, len(words))


def test_twister_has_all_of_its_state_from_the_key() -> None:
    key = [-5, 1 << 62]

    state = generators.twister(*key).get_state().numpy().view(np.uint64)

    halves = [half for word in oracle.words(key, 312) for half in divmod(word, 2**32)]
    swapped = [half for pair in zip(halves[1::2], halves[::2]) for half in pair]  # noqa: B905
    assert swapped == state[3:627].tolist()
    # The layout is torch's: a seeded generator differs in nothing but the words.
    seeded = torch.Generator().manual_seed(0).get_state().numpy().view(np.uint64)
    assert state[1:3].tolist() == seeded[1:3].tolist()
    assert state[627:].tolist() == seeded[627:].tolist()


def test_twister_draws_what_its_words_say() -> None:
    """The tempering of MT19937, on the first word after one twist of the state."""
    key = [123, 456]
    words = [half for w in oracle.words(key, 312) for half in (w % 2**32, w >> 32)]
    mixed = (words[0] & 0x80000000) | (words[1] & 0x7FFFFFFF)
    y = words[397] ^ (mixed >> 1) ^ (0x9908B0DF if words[1] & 1 else 0)
    y ^= y >> 11
    y ^= (y << 7) & 0x9D2C5680
    y ^= (y << 15) & 0xEFC60000
    y ^= y >> 18

    generator = generators.twister(*key)
    drawn = torch.empty(1, dtype=torch.int64).random_(0, 2**20, generator=generator)

    assert y % 2**20 == drawn.item()
