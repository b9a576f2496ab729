"""The distributions that torch does not have, and the extractors of parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as D

from tdfunc import random
from tdfunc.errors import OptionError, ShapeError
from tdfunc.nn import (
    AddStateIndependentNormalScale,
    Delta,
    MaskedCategorical,
    NormalParamExtractor,
    OneHotCategorical,
    TanhNormal,
    TruncatedNormal,
    draw,
)
from tdfunc.nn._draw import draw_and_log_prob

KEY = random.key(3)
INF = math.inf


def close(a: Any, b: Any, tol: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def mean_is(x: torch.Tensor, expected: Any) -> None:
    error = 5 * x.double().std(0) / len(x) ** 0.5 + 1e-6
    assert ((x.double().mean(0) - expected).abs() <= error).all()


class TestDelta:
    def test_shapes(self) -> None:
        x = torch.ones(2, 3)

        assert ((2,), (3,)) == (Delta(x).batch_shape, Delta(x).event_shape)
        assert Delta(x, batch_shape=[2, 3]).event_shape == ()
        assert Delta(x, event_shape=[]).batch_shape == (2, 3)
        assert Delta(torch.tensor(1.0)).batch_shape == ()
        with pytest.raises(OptionError, match="not of the shape of batch and event"):
            Delta(x, batch_shape=[3])

    def test_log_prob(self) -> None:
        dist = Delta(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))

        found = dist.log_prob(torch.tensor([[1.0, 2.0 + 1e-7], [3.0, 4.1]]))
        assert [INF, -INF] == found.tolist()
        near = Delta(torch.tensor([1.0]), atol=0.5).log_prob(torch.tensor([1.4]))
        assert near == INF
        assert Delta(torch.tensor([1, 2])).log_prob(torch.tensor([1, 2])) == INF

    def test_every_value_is_the_value(self) -> None:
        x = torch.ones(2, 3, requires_grad=True)
        dist = Delta(x)

        for value in (dist.mean, dist.mode, dist.median, dist.deterministic_sample):
            assert value is x
        assert draw(dist, KEY, 4).shape == (4, 2, 3)
        assert draw(dist, KEY).requires_grad
        assert dist.rsample([4]).shape == (4, 2, 3)
        assert not dist.variance.any()
        assert dist.expand([5, 2]).param.shape == (5, 2, 3)


# loc, scale, a, b, and what scipy.stats.truncnorm 1.17 gives: mean, variance, entropy,
# cdf at a quarter of the way from a (or loc - scale) on, and log density there.
CASES = [
    (0.0, 1.0, -1.0, 2.0),
    (1.0, 2.0, 1.5, 1.75),
    (0.0, 1.0, 5.0, 6.0),
    (0.0, 1.0, -9.0, -8.0),
    (0.0, 0.5, -INF, 1.0),
    (-2.0, 1.0, 0.0, INF),
    (0.0, 1.0, -INF, INF),
]


class TestTruncatedNormal:
    def test_draws_without_a_key(self) -> None:
        dist = TruncatedNormal(torch.zeros(2), 1.0, -1.0, 1.0)
        for method in (dist.sample, dist.rsample, D.Independent(dist, 1).sample):
            with pytest.raises(OptionError, match=r"TruncatedNormal.*nn\.draw\("):
                method()

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_against_scipy(self, case: tuple[float, ...]) -> None:
        stats = pytest.importorskip("scipy.stats")
        loc, scale, a, b = case
        theirs = stats.truncnorm((a - loc) / scale, (b - loc) / scale, loc, scale)
        ours = TruncatedNormal(torch.tensor(loc).double(), scale, a, b)
        at = torch.tensor(theirs.ppf([0.01, 0.3, 0.9]))

        assert math.isclose(ours.mean.item(), theirs.mean(), rel_tol=1e-9, abs_tol=1e-9)
        assert math.isclose(ours.variance.item(), theirs.var(), rel_tol=1e-6)
        # SciPy's formula multiplies infinite bounds by 0.
        at_all = theirs.ppf(np.linspace(1e-6, 1 - 1e-6, 200_001))
        entropy = -theirs.logpdf(at_all).mean()
        assert math.isclose(ours.entropy().item(), entropy, abs_tol=1e-4)
        assert math.isclose(ours.median.item(), theirs.median(), abs_tol=1e-9)
        close(ours.log_prob(at), torch.tensor(theirs.logpdf(at)), 1e-9)
        close(ours.cdf(at), torch.tensor([0.01, 0.3, 0.9], dtype=at.dtype), 1e-9)
        close(ours.icdf(ours.cdf(at)), at, 1e-9)

    def test_outside_the_bounds(self) -> None:
        dist = TruncatedNormal(torch.zeros(()), 1.0, -1.0, 2.0)
        outside = torch.tensor([-1.5, 2.5])

        assert [-INF, -INF] == dist.log_prob(outside).tolist()
        assert [0, 1] == dist.cdf(outside).tolist()
        assert dist.mode == 0
        assert TruncatedNormal(torch.tensor(5.0), 1.0, -1.0, 2.0).mode == 2

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_draws(self, case: tuple[float, ...]) -> None:
        loc, scale, a, b = case
        dist = TruncatedNormal(torch.tensor(loc), scale, a, b)
        x = draw(dist, KEY, 20_000)

        assert ((x >= a) & (x <= b)).all()
        mean_is(x, dist.mean)
        mean_is((x - dist.mean).square(), dist.variance)

    def test_gradient_is_the_finite_difference(self) -> None:
        parts = [torch.tensor(v).double() for v in (0.3, 0.7, -1.0, 2.0)]

        def path(*own: Any) -> torch.Tensor:
            return draw(TruncatedNormal(*own), KEY, 5).sum()

        grads = torch.func.grad(path, (0, 1, 2, 3))(*parts)
        for i, grad in enumerate(grads):
            step = [x + 1e-6 * (i == j) for j, x in enumerate(parts)]
            back = [x - 1e-6 * (i == j) for j, x in enumerate(parts)]
            close(grad, (path(*step) - path(*back)) / 2e-6, 1e-5)
        assert torch.autograd.gradcheck(
            lambda *own: TruncatedNormal(*own).log_prob(torch.tensor(0.5).double()),
            [x.requires_grad_() for x in parts],
        )

    def test_infinite_bounds_have_gradients(self) -> None:
        def loss(loc: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            dist = TruncatedNormal(loc, scale, 0.0, INF)
            value = draw(dist, KEY)
            return dist.log_prob(value) + value + dist.mean + dist.entropy()

        grads = torch.func.grad(loss, (0, 1))(torch.tensor(0.5), torch.tensor(2.0))
        assert all(grad.isfinite() for grad in grads)

    def test_bounds_in_the_wrong_order(self) -> None:
        with pytest.raises(OptionError, match="nothing between the bounds"):
            TruncatedNormal(torch.zeros(2), 1.0, 1.0, torch.tensor([2.0, 0.5]))

    def test_under_vmap_and_compile(self) -> None:
        loc = torch.tensor([0.0, 3.0])

        def fn(own: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            dist = TruncatedNormal(own, 1.0, -1.0, 2.0)
            return dist.log_prob(draw(dist, key))

        keys = random.split(KEY, 2)
        loop = torch.stack([fn(x, k) for x, k in zip(loc, keys, strict=True)])
        close(torch.vmap(fn)(loc, keys), loop)
        compiled = torch.compile(fn, fullgraph=True, backend="eager")
        close(compiled(loc[0], keys[0]), loop[0])

    def test_expand(self) -> None:
        dist = TruncatedNormal(torch.zeros(()), 1.0, -1.0, 2.0).expand([3])

        assert dist.batch_shape == (3,)
        assert draw(D.Independent(dist, 1), KEY).shape == (3,)


class TestTanhNormal:
    def test_log_prob_is_that_of_torch(self) -> None:
        loc, scale = (
            torch.tensor([0.1, -1.0]).double(),
            torch.tensor([0.5, 1.0]).double(),
        )
        ours = TanhNormal(loc, scale, -2.0, 3.0)
        theirs = D.TransformedDistribution(
            D.Normal(loc, scale), [D.TanhTransform(), D.AffineTransform(0.5, 2.5)]
        )
        x = torch.tensor([1.0, -1.9]).double()

        close(ours.log_prob(x), theirs.log_prob(x), 1e-9)

    def test_draws(self) -> None:
        dist = TanhNormal(torch.tensor([0.0, 30.0]), torch.ones(2))
        x, log_prob = draw_and_log_prob(dist, KEY, torch.Size([1000]))

        assert torch.equal(x, draw(dist, KEY, 1000))
        assert (x[:, 1] == 1).all()
        assert log_prob.isfinite().all()
        close(log_prob[:, 0], dist.log_prob(x)[:, 0], 1e-3)
        assert dist.log_prob(x)[:, 1].isfinite().all()

    def test_values(self) -> None:
        dist = TanhNormal(torch.tensor([0.0, 1.0]), torch.ones(2), high=3.0)

        close(dist.deterministic_sample, 1 + 2 * torch.tanh(torch.tensor([0.0, 1.0])))
        assert torch.equal(dist.median, dist.deterministic_sample)
        assert dist.expand([3, 2]).batch_shape == (3, 2)
        assert bool(dist.support.check(torch.tensor(3.0)).all())

    def test_bounds_in_the_wrong_order(self) -> None:
        with pytest.raises(OptionError, match="nothing between the bounds"):
            TanhNormal(torch.zeros(1), torch.ones(1), 1.0, -1.0)


class TestMaskedCategorical:
    MASK = torch.tensor([[True, False, True], [False, True, False]])

    def test_by_hand(self) -> None:
        probs = torch.tensor([0.2, 0.5, 0.3])
        dist = MaskedCategorical(probs=probs, mask=self.MASK)

        close(dist.probs, torch.tensor([[0.4, 0, 0.6], [0, 1, 0]]))
        close(dist.log_prob(torch.tensor([2, 1])), torch.tensor([0.6, 1]).log())
        assert dist.log_prob(torch.tensor([1, 1]))[0] == -INF
        expected = -(0.4 * math.log(0.4) + 0.6 * math.log(0.6))
        close(dist.entropy(), torch.tensor([expected, 0.0]))
        assert [2, 1] == dist.mode.tolist()
        assert dist.expand([4, 2]).batch_shape == (4, 2)

    def test_only_allowed_choices_are_drawn(self) -> None:
        dist = MaskedCategorical(torch.zeros(2, 3), mask=self.MASK)
        x = draw(dist, KEY, 5000)

        assert {0, 2} == set(x[:, 0].tolist())
        assert {1} == set(x[:, 1].tolist())
        mean_is((x[:, 0] == 2).float(), 0.5)

    def test_gradient_of_masked_choices_is_zero(self) -> None:
        def loss(logits: torch.Tensor) -> torch.Tensor:
            dist = MaskedCategorical(logits, mask=self.MASK)
            return dist.log_prob(torch.tensor([0, 1])).sum() + dist.entropy().sum()

        grad = torch.func.grad(loss)(torch.tensor([[0.1, 5.0, 0.4], [1.0, 2.0, 3.0]]))
        assert grad.isfinite().all()
        assert not grad[~self.MASK].any()

    def test_errors(self) -> None:
        zeros = torch.zeros(2, 3)
        with pytest.raises(OptionError, match="one of logits and probs"):
            MaskedCategorical(mask=self.MASK)
        with pytest.raises(OptionError, match="got both"):
            MaskedCategorical(zeros, probs=zeros, mask=self.MASK)
        with pytest.raises(OptionError, match="which choices are allowed"):
            MaskedCategorical(zeros, mask=zeros)
        with pytest.raises(OptionError, match=r"allows no choice.*got 2 rows"):
            MaskedCategorical(zeros, mask=self.MASK & False)


class TestOneHotCategorical:
    def test_draws_are_one_hot_with_the_gradient_of_the_relaxed_draw(self) -> None:
        logits = torch.tensor([0.3, -1.0, 1.2])
        x = draw(OneHotCategorical(logits), KEY, 5000)

        assert ((x == 0) | (x == 1)).all()
        assert (x.sum(-1) == 1).all()
        mean_is(x, torch.softmax(logits, -1))
        weights = torch.tensor([1.0, 2.0, 4.0])
        grad = torch.func.grad(
            lambda v: (draw(OneHotCategorical(v), KEY, 7) * weights).sum()
        )(logits)
        noise = random.gumbel(KEY, [7, 3])
        expected = torch.func.grad(
            lambda v: (torch.softmax(v + noise, -1) * weights).sum()
        )(logits)
        close(grad, expected)

    def test_mask_and_probabilities(self) -> None:
        mask = torch.tensor([True, False, True])
        dist = OneHotCategorical(probs=torch.tensor([0.2, 0.5, 0.3]), mask=mask)

        assert not draw(dist, KEY, 1000)[:, 1].any()
        close(dist.log_prob(torch.tensor([0.0, 0, 1])), torch.tensor(0.6).log())
        assert [0, 0, 1] == dist.mode.tolist()
        assert dist.expand([2]).batch_shape == (2,)


class TestNormalParamExtractor:
    def test_halves(self) -> None:
        x = torch.arange(10.0).reshape(2, 5)
        other = torch.ones(1)
        loc, scale, same = NormalParamExtractor("exp")(x, other)

        assert torch.equal(loc, x[:, :3])
        close(scale, x[:, 3:].exp())
        assert same is other

    @pytest.mark.parametrize(
        ("name", "at_zero"),
        [
            ("biased_softplus_1.0", 1.0),
            ("biased_softplus", 1.0),
            ("biased_softplus_2.0_0.5", 2.0),
            ("softplus", math.log(2)),
            ("exp", 1.0),
            ("expln", 1.0),
            ("relu", 1e-4),
            ("none", 1e-4),
            (lambda x: x + 3, 3.0),
        ],
    )
    def test_mappings(self, name: Any, at_zero: float) -> None:
        _, scale = NormalParamExtractor(name)(torch.zeros(2))

        close(scale, torch.tensor([at_zero]))

    def test_least_scale_and_expln(self) -> None:
        far = torch.tensor([0.0, -100.0])

        assert NormalParamExtractor(scale_lb=0.3)(far)[1] == 0.3
        close(NormalParamExtractor()(far)[1], torch.tensor([0.01]))
        x = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
        _, scale = NormalParamExtractor("expln")(torch.cat([torch.zeros(3), x]))
        close(scale, torch.tensor([math.exp(-1), 1.0, 1 + math.log(2)]))
        (grad,) = torch.autograd.grad(scale.sum(), x)
        close(grad, torch.tensor([math.exp(-1), 1.0, 0.5]))

    @pytest.mark.parametrize(
        "name", ["tanh", "biased_softplus_x", "biased_softplus_1_2_3", "softplus_1"]
    )
    def test_unknown_mapping(self, name: str) -> None:
        with pytest.raises(OptionError, match="no mapping to scales"):
            NormalParamExtractor(name)

    def test_a_mapping_that_can_not_be_called(self) -> None:
        number: Any = 3
        for cls in (NormalParamExtractor, AddStateIndependentNormalScale):
            with pytest.raises(OptionError, match="or a function - got 3"):
                cls(scale_mapping=number)

    def test_too_small(self) -> None:
        with pytest.raises(ShapeError, match="no location and scale"):
            NormalParamExtractor()(torch.zeros(3, 1))


class TestAddStateIndependentNormalScale:
    def test_scale(self) -> None:
        module = AddStateIndependentNormalScale([3], init_value=1.0)
        loc = torch.zeros(2, 3)
        same, scale, other = module(loc, "x")

        assert same is loc
        close(scale, torch.full((2, 3), math.e))
        assert other == "x"
        assert ["state_independent_scale"] == [n for n, _ in module.named_parameters()]
        params = {"state_independent_scale": torch.zeros(3)}
        _, scale = torch.func.functional_call(module, params, (loc,))
        assert (scale == 1).all()

    def test_buffer_scalar_and_reset(self) -> None:
        module = AddStateIndependentNormalScale(make_param=False)
        assert not list(module.parameters())
        assert module(torch.zeros(2, 3))[1].shape == (2, 3)
        module.state_independent_scale.fill_(5)
        module.reset_parameters()
        assert module.state_independent_scale == 0

    def test_shape(self) -> None:
        with pytest.raises(ShapeError, match="does not end with the shape"):
            AddStateIndependentNormalScale(3)(torch.zeros(2, 2))


def test_peer_extracts_the_same() -> None:
    theirs = pytest.importorskip("tensordict.nn")
    x = torch.from_numpy(np.linspace(-3, 3, 12, dtype=np.float32)).reshape(2, 6)

    for name in ("biased_softplus_1.0", "softplus", "exp", "expln"):
        pairs = zip(
            NormalParamExtractor(name)(x),
            theirs.NormalParamExtractor(name)(x),
            strict=True,
        )
        for ours, other in pairs:
            close(ours, other)
