"""Random draws: functions of the key; maps over keys are loops, bit for bit."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import assume, given
from torch.utils._pytree import tree_map

from tdfunc import TensorDict, random
from tdfunc.testing import assert_equal, assert_valid, tensordicts

seeds = st.integers(-(2**63), 2**64 - 1)
keys = seeds.map(random.key)
# Both sides of the size from which on torch's generator draws.
shapes = st.one_of(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([[4095], [4096], [2, 2049]]),
)
batches = st.lists(st.integers(0, 3), min_size=1, max_size=3)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])
FLOATING = [torch.float32, torch.float64, torch.bfloat16]


@st.composite
def draws(draw: st.DrawFn) -> Any:
    """Draw a function of a key."""
    shape, dtype = draw(shapes), draw(dtypes)
    low = draw(st.integers(-(2**63), 2**63 - 2))
    high = draw(st.integers(low + 1, 2**63 - 1))
    p = draw(st.floats(0, 1))
    size = draw(st.integers(1, 5))
    logits = torch.tensor(draw(st.lists(st.floats(-9, 9), min_size=1, max_size=4)))
    return draw(
        st.sampled_from(
            [
                lambda key: random.uniform(key, shape, dtype),
                lambda key: random.uniform(key, shape, dtype, -1.5, p),
                lambda key: random.normal(key, shape, dtype),
                lambda key: random.exponential(key, shape, dtype),
                lambda key: random.gumbel(key, shape, dtype),
                lambda key: random.truncated_normal(key, -p - 0.1, p, shape, dtype),
                lambda key: random.randint(key, shape, low, high),
                lambda key: random.randint(key, shape, 0, size),
                lambda key: random.bernoulli(key, p, shape),
                lambda key: random.categorical(key, logits, shape=shape),
                lambda key: random.choice(key, size, shape),
                lambda key: random.choice(key, len(logits), shape, p=logits.exp()),
                lambda key: random.choice(key, size, [size], replace=False),
                lambda key: random.permutation(key, size),
                lambda key: random.split(key, size),
                lambda key: random.fold_in(key, low),
            ]
        )
    )


@given(keys, batches, draws())
def test_maps_over_keys_are_loops(key: torch.Tensor, batch: Any, draw: Any) -> None:
    """Batches of keys, `vmap` at every nesting, and the loop: the same bits."""
    count = torch.Size(batch).numel()
    many = random.split(key, count)
    one = draw(key)
    expected = torch.stack([draw(k) for k in many]) if count else one[None][:0]
    expected = expected.reshape(*batch, *one.shape)
    mapped: Any = draw
    for _ in batch:
        mapped = torch.vmap(mapped)

    assert torch.equal(expected, draw(many.reshape(*batch, 2)))
    if count:
        assert torch.equal(expected, mapped(many.reshape(*batch, 2)))


@given(keys, draws())
def test_draws_depend_on_the_key_alone(key: torch.Tensor, draw: Any) -> None:
    state = torch.get_rng_state()

    first = draw(key)
    draw(random.fold_in(key, 1))
    torch.rand(2, generator=torch.Generator().manual_seed(1))

    assert torch.equal(first, draw(key.clone()))
    assert torch.equal(state, torch.get_rng_state())


@given(keys, st.integers(0, 40), st.integers(0, 40))
def test_splits_are_prefixes_of_each_other(key: torch.Tensor, n: int, m: int) -> None:
    few, many = sorted((n, m))

    assert torch.equal(random.split(key, few), random.split(key, many)[:few])


@given(keys, st.lists(seeds, min_size=1, max_size=5))
def test_folding_in_many_numbers_is_the_loop(
    key: torch.Tensor, data: list[int]
) -> None:
    signed = [x - 2**64 if x >= 2**63 else x for x in data]

    folded = random.fold_in(key, torch.tensor(signed))

    assert torch.equal(torch.stack([random.fold_in(key, x) for x in data]), folded)


@given(st.lists(seeds, min_size=2, max_size=8, unique=True))
def test_other_numbers_give_other_keys(numbers: list[int]) -> None:
    values = {x % 2**64 for x in numbers}
    made = [random.key(x) for x in numbers]
    made += [random.fold_in(random.key(0), x) for x in numbers]

    assert 2 * len(values) == len({tuple(key.tolist()) for key in made})


@given(keys, st.lists(st.integers(0, 99), min_size=1, max_size=30))
def test_permutations_have_the_same_rows(key: torch.Tensor, rows: list[int]) -> None:
    out = random.permutation(key, torch.tensor(rows)).tolist()

    assert sorted(rows) == sorted(out)


@given(
    keys,
    st.integers(-(2**63), 2**63 - 2),
    st.data(),
    st.sampled_from([[], [9], [4096]]),
)
def test_integers_lie_in_their_range(key: Any, low: int, data: Any, shape: Any) -> None:
    high = data.draw(st.integers(low + 1, 2**63 - 1))

    out = random.randint(key, shape, low, high).reshape(-1).tolist()

    assert all(low <= x < high for x in out)


@given(keys, tensordicts(dtypes=FLOATING), st.data())
def test_entries_of_a_tree_do_not_depend_on_others(
    key: torch.Tensor, td: TensorDict, data: st.DataObject
) -> None:
    drawn = random.normal_like(key, td)
    kept = (
        data.draw(st.lists(st.sampled_from(td.keys()), unique=True))
        if td.keys()
        else []
    )

    part = random.normal_like(key, td.select(*kept))

    assert_valid(drawn)
    assert_equal(part, drawn.select(*kept))
    assert drawn.batch_size == td.batch_size


@given(keys, tensordicts(dtypes=FLOATING, max_leaves=3), st.integers(1, 3))
def test_trees_of_mapped_keys_are_the_loop(
    key: torch.Tensor, td: TensorDict, n: int
) -> None:
    assume(td.keys(include_nested=True, leaves_only=True))
    many = random.split(key, n)

    mapped = torch.vmap(lambda k: random.normal_like(k, td))(many)

    loop = [random.normal_like(k, td) for k in many]
    assert_equal(mapped, tree_map(lambda *x: torch.stack(x), *loop))
