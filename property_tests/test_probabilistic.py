"""Laws of draws, composite distributions and probabilistic modules."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import distributions as D

from tdfunc import TensorDict, random
from tdfunc.nn import (
    CompositeDistribution,
    InteractionType,
    MaskedCategorical,
    OneHotCategorical,
    ProbabilisticTensorDictModule,
    TanhNormal,
    TruncatedNormal,
    draw,
)
from tdfunc.nn._draw import draw_and_log_prob
from tdfunc.testing import assert_equal, assert_pure, assert_valid

keys = st.integers(0, 2**64 - 1).map(random.key)
reals = st.floats(-3, 3)
positive = st.floats(0.1, 4)
batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@st.composite
def parameters(draw: st.DrawFn, kinds: Any = None) -> tuple[Any, dict[str, Any]]:
    """Draw a class of distributions and its parameters, of one batch shape."""
    batch = draw(batches)

    def full(values: st.SearchStrategy[float], *more: int) -> torch.Tensor:
        shape = (*batch, *more)
        count = torch.Size(shape).numel()
        listed = draw(st.lists(values, min_size=count, max_size=count))
        return torch.tensor(listed, dtype=torch.float64).reshape(shape)

    makers: dict[Any, Any] = {
        D.Normal: lambda: {"loc": full(reals), "scale": full(positive)},
        D.Laplace: lambda: {"loc": full(reals), "scale": full(positive)},
        D.Gumbel: lambda: {"loc": full(reals), "scale": full(positive)},
        D.Gamma: lambda: {"concentration": full(positive), "rate": full(positive)},
        D.Beta: lambda: {
            "concentration1": full(positive),
            "concentration0": full(positive),
        },
        D.Poisson: lambda: {"rate": full(positive)},
        D.Bernoulli: lambda: {"logits": full(reals)},
        D.Categorical: lambda: {"logits": full(reals, 3)},
        D.Dirichlet: lambda: {"concentration": full(positive, 3)},
        OneHotCategorical: lambda: {"logits": full(reals, 3)},
        TanhNormal: lambda: {"loc": full(reals), "scale": full(positive)},
        TruncatedNormal: lambda: {
            "loc": full(reals),
            "scale": full(positive),
            "a": torch.tensor(-1.0),
            "b": torch.tensor(2.0),
        },
    }
    cls = draw(st.sampled_from(kinds or list(makers)))
    return cls, makers[cls]()


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@given(parameters(), keys, batches)
def test_the_same_key_gives_the_same_values(
    given_parameters: Any, key: torch.Tensor, shape: tuple[int, ...]
) -> None:
    cls, params = given_parameters
    dist = cls(**params)
    x = draw(dist, key, shape)

    assert x.shape == shape + dist.batch_shape + dist.event_shape
    assert torch.equal(x, draw(cls(**params), key, shape))
    assert dist.support.check(x).all()
    value, log_prob = draw_and_log_prob(dist, key, torch.Size(shape))
    assert torch.equal(value, x)
    torch.testing.assert_close(log_prob, dist.log_prob(x), rtol=1e-4, atol=1e-4)


@given(parameters(), keys, st.integers(1, 4))
def test_vmap_over_keys_is_the_loop(
    given_parameters: Any, key: torch.Tensor, count: int
) -> None:
    cls, params = given_parameters
    dist = cls(**params)
    split = random.split(key, count)

    loop = torch.stack([draw(dist, own) for own in split])
    close(torch.vmap(lambda own: draw(dist, own))(split), loop)


SMOOTH = [D.Normal, D.Laplace, D.Gumbel, TanhNormal, TruncatedNormal]


@given(parameters(SMOOTH), keys)
def test_gradient_of_a_draw_is_the_finite_difference(
    given_parameters: Any, key: torch.Tensor
) -> None:
    cls, params = given_parameters

    def total(step: torch.Tensor) -> torch.Tensor:
        moved = {**params, "loc": params["loc"] + step}
        return draw(cls(**moved, validate_args=False), key).sum()

    zero = torch.zeros((), dtype=torch.float64)
    step = 1e-5
    difference = (total(zero + step) - total(zero - step)) / (2 * step)
    torch.testing.assert_close(
        torch.func.grad(total)(zero), difference, rtol=1e-4, atol=1e-4
    )


@given(
    st.lists(parameters([D.Normal, D.Gamma, D.Poisson]), min_size=1, max_size=4), keys
)
def test_log_prob_of_parts_is_their_sum(parts: Any, key: torch.Tensor) -> None:
    names = ["a", ("n", "b"), ("n", "c"), ("m", "n", "d")]
    tree = TensorDict({})
    classes: dict[Any, Any] = {}
    for name, (cls, params) in zip(names, parts, strict=False):
        tree = tree.set(name, params)
        classes[name] = cls
    dist = CompositeDistribution(tree, classes)
    sample = draw(dist, key)
    entries = dist.log_prob(sample, aggregate=False)

    assert_valid(sample)
    assert_valid(entries)
    total = dist.log_prob(sample, aggregate=True)
    each = [
        cls(**params).log_prob(sample[name]).sum()
        for name, (cls, params) in zip(names, parts, strict=False)
    ]
    close(total, torch.stack(each).sum())
    close(entries.sum(reduce=True), total)


@given(parameters(), keys, st.sampled_from(["random", "deterministic"]))
def test_module_is_the_distribution(
    given_parameters: Any, key: torch.Tensor, how: str
) -> None:
    cls, params = given_parameters
    module = ProbabilisticTensorDictModule(
        {name: ("p", name) for name in params},
        ["x"],
        distribution_class=cls,
        return_log_prob=True,
    )
    td = TensorDict({"p": params})
    out = assert_pure(lambda t: module(None, t, key=key, interaction_type=how), td)

    assert_equal(out["p"], td["p"])
    assert_equal(out, module(None, td, key=key, interaction_type=InteractionType(how)))
    # A mean of counts is no count: it can be written, and not be scored.
    if cls(**params).support.check(out["x"]).all():
        torch.testing.assert_close(
            module.log_prob(None, out), out["x_log_prob"], rtol=1e-4, atol=1e-4
        )


@given(st.lists(reals, min_size=2, max_size=6), keys, st.data())
def test_masked_choices_are_never_drawn(
    logits: list[float], key: torch.Tensor, data: st.DataObject
) -> None:
    allowed = data.draw(st.sets(st.integers(0, len(logits) - 1), min_size=1))
    mask = torch.tensor([i in allowed for i in range(len(logits))])
    dist = MaskedCategorical(torch.tensor(logits), mask=mask)

    assert set(draw(dist, key, 50).tolist()) <= allowed
    assert not dist.probs[~mask].any()
    expected = torch.softmax(torch.tensor(logits)[mask], -1)
    torch.testing.assert_close(dist.probs[mask], expected)
