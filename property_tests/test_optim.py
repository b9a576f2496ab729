"""Laws of gradient transformations: loops, formulas by hand, composition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch.utils._pytree import tree_leaves, tree_map

import tdfunc
from tdfunc import TensorDict, optim
from tdfunc.testing import (
    assert_equal,
    assert_pure,
    assert_valid,
    batch_sizes,
    tensordicts,
    tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[[], optim.GradientTransformation]

MAKERS: dict[str, Make] = {
    "sgd": lambda: optim.sgd(0.1, weight_decay=0.1),
    "momentum": lambda: optim.sgd(0.1, 0.9, 0.5),
    "nesterov": lambda: optim.sgd(0.1, 0.9, nesterov=True),
    "adam": lambda: optim.adam(0.1, amsgrad=True),
    "adamw": lambda: optim.adamw(0.1),
    "rmsprop": lambda: optim.rmsprop(0.1, momentum=0.5),
    "adagrad": lambda: optim.adagrad(0.1, lr_decay=0.1),
    "lion": lambda: optim.lion(0.1, weight_decay=0.1),
    "clip": lambda: optim.clip(0.5),
    "ema": lambda: optim.ema(0.9),
}
makers = st.sampled_from(sorted(MAKERS)).map(MAKERS.__getitem__)


def bounded(size: torch.Size) -> st.SearchStrategy[torch.Tensor]:
    """Draw numbers of a size at which every optimizer computes exactly enough."""
    drawn = tensors(size, dtypes=[torch.int64])
    return drawn.map(lambda x: (x % 17).to(torch.float64) / 4 - 2)


def parameters(min_dims: int = 0) -> st.SearchStrategy[TensorDict]:
    sizes = batch_sizes(min_dims=min_dims).filter(lambda size: 0 not in size)
    return tensordicts(sizes, leaves=bounded, max_leaves=3)


def run(tx: optim.GradientTransformation, params: Any, steps: int) -> Any:
    state = tx.init(params)
    for _ in range(steps):
        updates, state = tx.update(params, state, params)
        params = optim.apply_updates(params, updates)
    return params


def near(got: Any, expected: Any) -> None:
    for x, y in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@given(td=parameters(), make=makers, steps=st.integers(1, 3))
def test_updates_are_trees_like_the_gradients(
    td: TensorDict, make: Make, steps: int
) -> None:
    tx = make()
    state = tx.init(td)
    for _ in range(steps):
        updates, state = assert_pure(tx.update, td, state, td)
        assert_valid(updates)
        assert updates.batch_size == td.batch_size
        assert updates.names == td.names
        near(tree_map(torch.zeros_like, updates), tree_map(torch.zeros_like, td))


@given(td=parameters(), make=makers, steps=st.integers(1, 3))
def test_kernels_compute_what_arithmetic_does(
    td: TensorDict, make: Make, steps: int
) -> None:
    """A leaf that requires a gradient takes the other way."""
    marked = td.apply(lambda x: x.detach().requires_grad_())

    near(run(make(), td, steps), run(make(), marked, steps).detach())


@given(td=parameters(min_dims=1), make=makers, steps=st.integers(1, 3))
def test_vmap_is_the_loop(td: TensorDict, make: Make, steps: int) -> None:
    if not tree_leaves(td):
        return  # there is nothing to carry the mapped dim

    got = torch.vmap(lambda member: run(make(), member, steps))(td)

    assert got.batch_size == td.batch_size
    near(got, tdfunc.stack([run(make(), td[i], steps) for i in range(len(td))]))


@given(td=parameters(), make=makers, steps=st.integers(1, 3))
def test_elementwise_optimizers_do_not_see_the_layout(
    td: TensorDict, make: Make, steps: int
) -> None:
    expected = run(make(), td, steps)

    near(run(optim.flat(make()), td, steps), expected)
    vector, unravel = td.ravel()
    if tree_leaves(td):
        near(unravel(run(make(), vector.double(), steps)), expected)


@given(td=parameters(), make=makers, data=st.data())
def test_labels_split_the_tree(td: TensorDict, make: Make, data: st.DataObject) -> None:
    flags = {
        path if isinstance(path, tuple) else (path,): data.draw(st.booleans())
        for path in td.keys(True, True)
    }
    tx = optim.multi_transform(
        {"a": make(), "b": optim.sgd(0.5)},
        lambda path, _: "a" if flags[path] else "b",
    )

    got = run(tx, td, 2)

    ours, theirs = tdfunc.partition(td, lambda path, _: flags[path])
    expected = tdfunc.combine(run(make(), ours, 2), run(optim.sgd(0.5), theirs, 2))
    for path in td.keys(True, True):
        torch.testing.assert_close(got[path], expected[path])
    near(run(optim.masked(make(), dict(flags)), td, 1), run_masked(make(), td, flags))


def run_masked(tx: Any, td: TensorDict, flags: dict[Any, bool]) -> TensorDict:
    """Return a step where the rest gets its gradient, the parameters, as update."""
    alone = run(tx, tdfunc.partition(td, lambda path, _: flags[path])[0], 1)
    return (td + td).update_with(
        {path: lambda _, path=path: alone[path] for path, flag in flags.items() if flag}
    )


@given(td=parameters(), make=makers)
def test_chain_is_one_after_the_other(td: TensorDict, make: Make) -> None:
    first, second = make(), optim.scale(0.5)
    both = optim.chain(first, second, optim.identity())

    updates, _ = both.update(td, both.init(td), td)

    alone, _ = first.update(td, first.init(td), td)
    assert_equal(updates, alone * 0.5)
    assert () == optim.chain().init(td)


@given(td=parameters(), make=makers, steps=st.integers(1, 3), count=st.integers(1, 7))
def test_accumulated_gradients_are_their_mean(
    td: TensorDict, make: Make, steps: int, count: int
) -> None:
    tx = optim.accumulate(make(), steps)
    inner = make()
    state, own = tx.init(td), inner.init(td)

    for step in range(count):
        updates, state = tx.update(td * (step + 1.0), state, td)
        if (step + 1) % steps:
            assert not any(x.any() for x in tree_leaves(updates))
            continue
        factors = range(step + 2 - steps, step + 2)
        mean = td * (sum(factors) / steps)
        expected, own = inner.update(mean, own, td)
        near(updates, expected)


@given(td=parameters(), most=st.floats(0.125, 8))
def test_clipping_by_norm_bounds_it_and_keeps_the_direction(
    td: TensorDict, most: float
) -> None:
    tx = optim.clip_by_global_norm(most)

    updates, _ = tx.update(td, tx.init(td))

    norm = td.global_norm().item()
    assert updates.global_norm().item() <= most * (1 + 1e-9)
    near(updates, td * min(1.0, most / norm if norm else 1.0))


@given(td=parameters(), data=st.data())
def test_an_average_by_path_is_that_of_each_leaf(
    td: TensorDict, data: st.DataObject
) -> None:
    paths = td.keys(True, True)
    taus = {
        path: data.draw(st.floats(0, 1)) for path in paths if data.draw(st.booleans())
    }
    rest = data.draw(st.floats(0, 1))
    online = td * 3 - 1

    got = assert_pure(
        tdfunc.polyak, td, online, {**({"**": rest} if paths else {}), **taus}
    )

    assert_valid(got)
    for path in paths:
        tau = taus.get(path, rest)
        near(got[path], td[path] + tau * (online[path] - td[path]))
