"""Keys: deterministic, unrelated, tensors like any other."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from tdfunc import TensorDict, random
from tdfunc.errors import OperandError, OptionError
from tests.random import oracle

KEY = random.key(0)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1])
def test_key_is_threefry_of_the_seed(seed: int) -> None:
    assert oracle.child([0, 0], seed, 0) == random.key(seed).tolist()


def test_key_of_a_tensor_is_the_key_of_each_number() -> None:
    seeds = torch.tensor([[0, 1, -1], [2, 3, 2**62]])

    keys = random.key(seeds)

    assert (2, 3, 2) == keys.shape
    for seed, key in zip(seeds.reshape(-1), keys.reshape(-1, 2), strict=True):
        assert torch.equal(random.key(int(seed)), key)
        assert torch.equal(random.key(seed), key)
    assert torch.equal(torch.vmap(random.key)(seeds), keys)
    small = torch.tensor([0, 1], dtype=torch.uint8)
    assert torch.equal(random.key(small), keys[0, :2])
    assert torch.equal(random.key(np.int64(1)), keys[0, 1])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("n", [0, 1, 2, 24, 25, 100])
def test_split_is_threefry_of_the_place(n: int) -> None:
    expected = [oracle.child(KEY.tolist(), i, 1) for i in range(n)]

    keys = random.split(KEY, n)

    assert (n, 2) == keys.shape
    assert keys.dtype is torch.int64
    assert expected == keys.tolist()


def test_fold_in_is_threefry_of_the_number() -> None:
    for data in (0, 1, -1, 2**63, -(2**63)):
        expected = oracle.child(KEY.tolist(), data, 2)

        assert expected == random.fold_in(KEY, data).tolist()
    many = random.fold_in(KEY, torch.arange(30))
    assert [oracle.child(KEY.tolist(), i, 2) for i in range(30)] == many.tolist()


def test_seeds_splits_and_folds_are_unrelated() -> None:
    keys = [random.fold_in(KEY, 1), random.split(KEY)[1], random.key(1), KEY]

    assert 4 == len({tuple(key.tolist()) for key in keys})


def test_keys_have_batches() -> None:
    keys = random.split(KEY, 6).reshape(2, 3, 2)
    data = torch.arange(3)

    split = random.split(keys, 4)
    folded = random.fold_in(keys, data)

    assert (2, 3, 4, 2) == split.shape
    assert (2, 3, 2) == folded.shape
    for i in range(2):
        for j in range(3):
            assert torch.equal(random.split(keys[i, j], 4), split[i, j])
            assert torch.equal(random.fold_in(keys[i, j], j), folded[i, j])


def test_keys_are_mapped_over() -> None:
    keys = random.split(KEY, 3)
    data = torch.arange(3)
    mapped: Any = torch.vmap

    split = mapped(random.split)(keys)
    both = mapped(random.fold_in)(keys, data)
    key_only = mapped(random.fold_in, (0, None))(keys, 5)
    data_only = mapped(random.fold_in, (None, 0))(KEY, data)
    outer = mapped(mapped(random.fold_in, (None, 0)), (0, None))(keys, data)
    last = mapped(random.fold_in, (1, 0))(keys.t().contiguous(), data)
    uneven = mapped(random.fold_in)(keys, data[:, None].expand(3, 2))

    assert torch.equal(random.split(keys), split)
    assert torch.equal(
        torch.stack([random.fold_in(keys[i], i) for i in range(3)]), both
    )
    assert torch.equal(random.fold_in(keys, 5), key_only)
    assert torch.equal(random.fold_in(KEY, data), data_only)
    assert torch.equal(torch.stack([random.fold_in(k, data) for k in keys]), outer)
    assert torch.equal(both, last)
    assert torch.equal(both[:, None].expand(3, 2, 2), uneven)


def test_keys_stack_index_and_are_saved() -> None:
    keys = torch.stack([random.key(0), random.key(1)])
    td = TensorDict({"key": keys, "x": torch.zeros(2, 3)}, 2)
    file = io.BytesIO()
    torch.save(keys, file)
    file.seek(0)

    assert torch.equal(torch.load(file, weights_only=True), keys)
    assert torch.equal(pickle.loads(pickle.dumps(keys)), keys)
    assert torch.equal(td[1]["key"], random.key(1))
    assert torch.equal(
        torch.vmap(lambda t: random.normal(t["key"], 2))(td), random.normal(keys, 2)
    )


def test_views_of_keys_are_keys() -> None:
    keys = random.split(KEY, 4)
    expected = torch.stack([random.normal(key, 3) for key in keys])

    assert torch.equal(expected[::2], random.normal(keys[::2], 3))
    assert torch.equal(expected, random.normal(keys.t().contiguous().t(), 3))
    assert torch.equal(
        expected[:1].expand(5, 3), random.normal(keys[:1].expand(5, 2), 3)
    )


def test_no_two_of_many_keys_or_streams_are_equal() -> None:
    keys = random.split(KEY, 100_000)
    folded = random.fold_in(random.key(1), torch.arange(100_000))
    seeds = random.key(torch.arange(100_000))
    words = random.randint(keys, [4], -(2**63), 2**63)

    for half in torch.cat([keys, folded, seeds]).T:
        assert 300_000 == len(half.unique())
    # 64 bits each: an overlap of two streams would show as equal words.
    assert 400_000 == len(words.unique())


BITS = torch.ones((), dtype=torch.int64) << torch.arange(64)
NO_BITS = torch.zeros_like(BITS)
# Every bit of a key, in its first half and in its second one.
KEY_BITS = torch.stack([torch.cat([BITS, NO_BITS]), torch.cat([NO_BITS, BITS])], -1)

AVALANCHES = {
    "key": (random.key, BITS[:, None]),
    "fold_in": (lambda data: random.fold_in(KEY, data), BITS[:, None]),
    "fold_in, the key": (lambda keys: random.fold_in(keys, 3), KEY_BITS[:, None]),
    "split, the key": (
        lambda keys: random.split(keys, 1)[..., 0, :],
        KEY_BITS[:, None],
    ),
    "a word, the key": (
        # The lowest bit of the second half is always taken for one.
        lambda keys: random.randint(keys, 1, -(2**63), 2**63),
        torch.cat([KEY_BITS[:64], KEY_BITS[65:]])[:, None],
    ),
}


@pytest.mark.parametrize("name", AVALANCHES)
def test_every_bit_changes_half_of_the_bits(name: str) -> None:
    """One bit in, 64 or 128 out: each flips with a probability of 1/2 (avalanche)."""
    function, bits = AVALANCHES[name]
    trials = 400
    shape = [trials, 2] if bits.dim() == 3 else [trials]
    data = random.randint(KEY, shape, -(2**63), 2**63)

    changed = function(data) ^ function(data ^ bits)

    flips = (changed[..., None] >> torch.arange(64) & 1).double().mean(1)
    # A deviation of 1/40 is one standard deviation of 400 trials: six of them are not
    # seen in 16,384 frequencies.
    assert (len(bits), 64) == (flips.shape[0], flips.shape[2])
    assert (flips - 0.5).abs().max() < 6 / 40
    assert abs(float(flips.mean()) - 0.5) < 0.001


NUMBER_CALLS = [random.key, lambda data: random.fold_in(KEY, data)]
BAD_KEYS = {
    "float": torch.zeros(2),
    "int32": torch.zeros(2, dtype=torch.int32),
    "uint64": torch.zeros(2, dtype=torch.uint64),
    "three": torch.zeros(3, dtype=torch.int64),
    "0-d": torch.tensor(0),
    "a seed": 0,
    "none": None,
    "a generator": torch.Generator(),
}
CALLS = {
    "split": random.split,
    "fold_in": lambda key: random.fold_in(key, 1),
    "uniform": random.uniform,
    "normal": random.normal,
    "complex normal": lambda key: random.normal(key, 1, torch.complex64),
    "exponential": random.exponential,
    "gumbel": random.gumbel,
    "truncated_normal": lambda key: random.truncated_normal(key, -1, 1),
    "randint": lambda key: random.randint(key, (), 0, 2),
    "bernoulli": random.bernoulli,
    "categorical": lambda key: random.categorical(key, torch.zeros(2)),
    "permutation": lambda key: random.permutation(key, 3),
    "permutation of rows": lambda key: random.permutation(key, torch.zeros(3)),
    "choice": lambda key: random.choice(key, 3),
    "choice of rows": lambda key: random.choice(key, torch.zeros(3)),
    "normal_like": lambda key: random.normal_like(key, TensorDict({})),
    "uniform_like": lambda key: random.uniform_like(key, TensorDict({})),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bad", BAD_KEYS)
def test_bad_key_is_refused(call: str, bad: str) -> None:
    with pytest.raises(OperandError) as caught:
        CALLS[call](BAD_KEYS[bad])

    text = str(caught.value)
    assert "no key" in text
    assert "an int64 tensor [..., 2]" in text
    assert "random.key(0)" in text


@pytest.mark.parametrize(
    "call", ["permutation of rows", "normal_like", "uniform_like", "choice of rows"]
)
def test_several_keys_are_refused_where_one_is_meant(call: str) -> None:
    with pytest.raises(OperandError, match=r"takes one key.*\[2, 2\].*torch\.vmap"):
        CALLS[call](random.split(KEY))


@pytest.mark.parametrize("call", NUMBER_CALLS, ids=["key", "fold_in"])
@pytest.mark.parametrize(
    "bad",
    [1.0, True, "1", None, torch.tensor(1.0), torch.tensor(True), torch.tensor(1j)],
    ids=repr,
)
def test_bad_numbers_are_refused(call, bad) -> None:
    with pytest.raises(OperandError, match=r"is an integer.*to fix: random\."):
        call(bad)


@pytest.mark.parametrize("call", NUMBER_CALLS, ids=["key", "fold_in"])
@pytest.mark.parametrize("bad", [2**64, -(2**63) - 1])
def test_numbers_of_more_than_64_bits_are_refused(call, bad) -> None:
    with pytest.raises(OptionError, match=r"64 bits.*random\.fold_in\("):
        call(bad)


@pytest.mark.parametrize("bad", [-1, 1.5, "2"])
def test_bad_counts_are_refused(bad) -> None:
    with pytest.raises(OptionError, match="n "):
        random.split(KEY, bad)
