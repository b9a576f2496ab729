"""Draws have their distributions, and streams are unrelated.

Keys are fixed, so every statistic is one number that never changes; bounds are those
that a right generator passes in all but one of a million tries, unless said.
"""

from __future__ import annotations

import math

import pytest
import torch

from tdfunc import TensorDict, random

KEY = random.key(2026)
F64 = torch.float64
# One draw of torch's generator, and many keys' draws of a few numbers each.
LARGE = 200_000
LAYOUTS = {
    "one large draw": (KEY, [LARGE]),
    "small draws of many keys": (random.split(KEY, LARGE // 20), [20]),
    "one draw of one number for every key": (random.split(KEY, LARGE), []),
}


def normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return torch.erfc(-x / math.sqrt(2)) / 2


def truncated_cdf(low: float, high: float):
    start, end = (0.5 * math.erfc(-x / math.sqrt(2)) for x in (low, high))
    return lambda x: (normal_cdf(x) - start) / (end - start)


DISTRIBUTIONS = {
    "uniform": (random.uniform, lambda x: x, 0.5, 1 / 12),
    "uniform of an interval": (
        lambda key, shape, dtype: random.uniform(key, shape, dtype, -3, 5),
        lambda x: (x + 3) / 8,
        1.0,
        64 / 12,
    ),
    "normal": (random.normal, normal_cdf, 0.0, 1.0),
    "exponential": (random.exponential, lambda x: -torch.expm1(-x), 1.0, 1.0),
    "gumbel": (
        random.gumbel,
        lambda x: torch.exp(-torch.exp(-x)),
        0.5772156649015329,
        math.pi**2 / 6,
    ),
    "truncated_normal": (
        lambda key, shape, dtype: random.truncated_normal(key, -1, 2, shape, dtype),
        truncated_cdf(-1, 2),
        0.2296372,
        0.5161084,
    ),
    "truncated_normal, far below": (
        lambda key, shape, dtype: random.truncated_normal(key, -9, -8, shape, dtype),
        truncated_cdf(-9, -8),
        None,
        None,
    ),
}


def kolmogorov_smirnov(x: torch.Tensor, cdf) -> float:
    """Return the largest distance from the distribution function, times sqrt(n)."""
    n = x.numel()
    found = cdf(x.reshape(-1).double().sort().values)
    steps = torch.arange(n + 1, dtype=F64) / n
    distance = torch.maximum((steps[1:] - found).max(), (found - steps[:-1]).max())
    return float(distance) * math.sqrt(n)


# P(K > 2.69) = 2 exp(-2 * 2.69**2) = 1e-6 (Kolmogorov's limit distribution).
KOLMOGOROV = 2.69


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name: str, layout: str, dtype: torch.dtype) -> None:
    draw, cdf, mean, variance = DISTRIBUTIONS[name]
    key, shape = LAYOUTS[layout]

    x = draw(key, shape, dtype).double().reshape(-1)

    assert x.numel() == LARGE
    assert kolmogorov_smirnov(x, cdf) < KOLMOGOROV
    if mean is not None and variance is not None:
        assert abs(float(x.mean()) - mean) < 5 * math.sqrt(variance / LARGE)
        fourth = float(((x - mean) ** 4).mean())
        spread = math.sqrt((fourth - variance**2) / LARGE)
        assert abs(float(((x - mean) ** 2).mean()) - variance) < 5 * spread


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_moments_of_narrow_dtypes(dtype: torch.dtype) -> None:
    for key, shape in LAYOUTS.values():
        x = random.normal(key, shape, dtype).double()
        assert abs(float(x.mean())) < 5 / math.sqrt(LARGE)
        assert abs(float(x.var()) - 1) < 0.01
        # Multiples of 2**-8 below one have the mean 1/2 - 2**-9.
        u = random.uniform(key, shape, dtype).double()
        assert abs(float(u.mean()) - 0.5) < 5 / math.sqrt(12 * LARGE) + 2**-8


def test_normals_have_tails() -> None:
    x = random.normal(random.split(KEY, 1000), [4000])

    for bound in (3.0, 4.0, 4.5):
        expected = 4e6 * math.erfc(bound / math.sqrt(2))
        found = int((x.abs() > bound).sum())
        assert abs(found - expected) < 5 * math.sqrt(expected)


def test_complex_normals_have_independent_parts() -> None:
    z = random.normal(KEY, LARGE, torch.complex128)

    for part in (z.real, z.imag):
        assert kolmogorov_smirnov(part * math.sqrt(2), normal_cdf) < KOLMOGOROV
    assert abs(float((z.real * z.imag).mean())) < 2.5 / math.sqrt(LARGE)


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how many standard deviations the statistic lies above its mean."""
    keep = expected > 0
    assert not bool(counts[~keep].any())
    counts, expected = counts[keep].double(), expected[keep].double()
    freedom = counts.numel() - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_discrete_draws_have_their_frequencies(layout: str) -> None:
    key, shape = LAYOUTS[layout]
    p = torch.tensor([0.1, 0.0, 0.2, 0.3, 0.4])

    def found(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.bincount(x.reshape(-1).long(), minlength=n)

    dice = random.randint(key, shape, 0, 6)
    wide = random.randint(key, shape, -(2**62), 2**62) // 2**57 + 32
    coins = random.bernoulli(key, 0.3, shape)
    drawn = random.categorical(key, p.log(), shape=shape)
    chosen = random.choice(key, 5, shape, p=p * 7)
    even = random.choice(key, 5, shape)
    assert chi_square(found(dice, 6), torch.full((6,), LARGE / 6)) < 6
    assert chi_square(found(wide, 64), torch.full((64,), LARGE / 64)) < 6
    assert chi_square(found(coins, 2), torch.tensor([0.7, 0.3]) * LARGE) < 6
    assert chi_square(found(drawn, 5), p * LARGE) < 6
    assert chi_square(found(chosen, 5), p * LARGE) < 6
    assert chi_square(found(even, 5), torch.full((5,), LARGE / 5)) < 6


def test_bits_are_even_and_unrelated() -> None:
    for key, shape in LAYOUTS.values():
        bits = random.randint(key, shape, -(2**63), 2**63).reshape(-1, 1)
        ones = (bits >> torch.arange(64) & 1).double() * 2 - 1

        relations = ones.T @ ones / LARGE - torch.eye(64, dtype=F64)
        assert (ones.mean(0).abs() * math.sqrt(LARGE)).max() < 5.5
        assert (relations.abs() * math.sqrt(LARGE)).max() < 5.5


def test_wide_integers_are_even_where_a_remainder_is_not() -> None:
    """Of 3 * 2**62 numbers, those below 2**62 would come twice as often."""
    x = random.randint(KEY, LARGE, -(2**63), 2**62)

    below = int((x < -(2**62)).sum())

    assert abs(below - LARGE / 3) < 5 * math.sqrt(LARGE * 2 / 9)


def test_permutations_are_even() -> None:
    keys = random.split(KEY, 48_000)
    code = torch.tensor([64, 16, 4, 1])

    orders = (random.permutation(keys, 4) * code).sum(-1)
    picked = (random.choice(keys, 4, 2, False) * code[:2]).sum(-1)

    _, counts = orders.unique(return_counts=True)
    assert 24 == len(counts)
    assert chi_square(counts, torch.full((24,), 2000.0)) < 6
    _, counts = picked.unique(return_counts=True)
    assert 12 == len(counts)
    assert chi_square(counts, torch.full((12,), 4000.0)) < 6


def test_weighted_choice_without_replacement_is_one_after_the_other() -> None:
    keys = random.split(KEY, 60_000)
    p = torch.tensor([0.5, 0.3, 0.2])

    picked = random.choice(keys, 3, 2, False, p)

    found = torch.zeros(3, 3)
    for i in range(3):
        for j in range(3):
            found[i, j] = ((picked[:, 0] == i) & (picked[:, 1] == j)).sum()
    expected = p[:, None] * p / (1 - p[:, None]) * 60_000
    expected.fill_diagonal_(0)
    assert chi_square(found.reshape(-1), expected.reshape(-1)) < 6


def relation(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the correlation of two streams, times the square root of their length."""
    x, y = x.double(), y.double()
    x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    return float((x * y).mean()) * math.sqrt(x.numel())


def test_streams_of_split_and_folded_keys_are_unrelated() -> None:
    keys = {
        "parent": KEY,
        **{f"split {i}": k for i, k in enumerate(random.split(KEY, 4))},
        **{f"fold {i}": random.fold_in(KEY, i) for i in range(4)},
        "seed": random.key(2027),
    }
    for n in (4000, 50_000):
        streams = {name: random.normal(key, n) for name, key in keys.items()}
        names = list(streams)
        for i, one in enumerate(names):
            for other in names[:i]:
                for shift in (0, 1, 7):
                    x, y = streams[one][: n - shift], streams[other][shift:]
                    assert abs(relation(x, y)) < 5, (n, one, other, shift)


def test_numbers_of_neighbouring_keys_and_places_are_unrelated() -> None:
    x = random.normal(random.split(KEY, 20_000), 12)

    relations = torch.corrcoef(x.T) - torch.eye(12)
    assert (relations.abs() * math.sqrt(20_000)).max() < 5
    for shift in (1, 2, 3, 64):
        assert abs(relation(x[:-shift].reshape(-1), x[shift:].reshape(-1))) < 5


def test_squares_of_normals_of_one_word_are_unrelated() -> None:
    """Radius and angle are two halves of one word."""
    x = random.normal(random.split(KEY, 20_000), 12) ** 2

    assert abs(relation(x[:, :-1].reshape(-1), x[:, 1:].reshape(-1))) < 5


def test_entries_of_a_tree_are_unrelated() -> None:
    td = TensorDict({str(i): torch.zeros(LARGE // 10) for i in range(6)})
    entries = torch.stack(list(random.normal_like(KEY, td).values()))

    relations = torch.corrcoef(entries) - torch.eye(6)
    assert (relations.abs() * math.sqrt(LARGE // 10)).max() < 5


def test_the_statistics_see_faults() -> None:
    u = random.uniform(KEY, LARGE, F64)
    counts = torch.full((6,), LARGE / 6)
    biased = counts * torch.tensor([1.02, 1, 1, 1, 1, 0.98])

    assert kolmogorov_smirnov(u, lambda x: x) < KOLMOGOROV
    assert kolmogorov_smirnov(u**1.02, lambda x: x) > KOLMOGOROV
    assert chi_square(biased, counts) > 6
    assert abs(relation(u, u + 60 * random.uniform(random.key(1), LARGE, F64))) > 5
