"""Draws with a key from every distribution of torch: moments, keys, gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import distributions as D
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical

from tdfunc import random
from tdfunc.errors import OperandError, OptionError
from tdfunc.nn import draw
from tdfunc.nn._draw import draw_and_log_prob
from tdfunc.testing import assert_pure

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = random.key(11)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


LOC, SCALE = t(-1.0, 0.5), t(0.5, 2.0)
PROBS = t(0.2, 0.7)
LOGITS = torch.tensor([[0.1, 1.0, -1.0], [0.0, 0.3, 2.0]], dtype=torch.float64)
TRIL = torch.tensor([[1.0, 0.0], [0.5, 0.7]], dtype=torch.float64)

DISTRIBUTIONS: dict[str, Callable[[], D.Distribution]] = {
    "Bernoulli": lambda: D.Bernoulli(PROBS),
    "Beta": lambda: D.Beta(t(0.5, 3.0), t(2.0, 0.3)),
    "Binomial": lambda: D.Binomial(torch.tensor([3, 40]), PROBS),
    "Categorical": lambda: D.Categorical(logits=LOGITS),
    "Cauchy": lambda: D.Cauchy(LOC, SCALE),
    "Chi2": lambda: D.Chi2(t(1.0, 5.0)),
    "ContinuousBernoulli": lambda: D.ContinuousBernoulli(PROBS),
    "Dirichlet": lambda: D.Dirichlet(t(0.3, 1.0, 4.0)),
    "ExpRelaxedCategorical": lambda: ExpRelaxedCategorical(t(0.7), logits=LOGITS),
    "Exponential": lambda: D.Exponential(SCALE),
    "FisherSnedecor": lambda: D.FisherSnedecor(t(3.0, 8.0), t(12.0, 20.0)),
    "Gamma": lambda: D.Gamma(t(0.3, 4.0), SCALE),
    "GeneralizedPareto": lambda: D.GeneralizedPareto(
        LOC.float(), SCALE.float(), torch.tensor([0.0, 0.1])
    ),
    "Geometric": lambda: D.Geometric(PROBS),
    "Gumbel": lambda: D.Gumbel(LOC, SCALE),
    "HalfCauchy": lambda: D.HalfCauchy(SCALE),
    "HalfNormal": lambda: D.HalfNormal(SCALE),
    "Independent": lambda: D.Independent(D.Normal(LOC, SCALE), 1),
    "InverseGamma": lambda: D.InverseGamma(t(6.0, 7.0), SCALE),
    "Kumaraswamy": lambda: D.Kumaraswamy(t(0.7, 2.0), t(1.5, 3.0)),
    "LKJCholesky": lambda: D.LKJCholesky(3, t(0.8, 2.0)),
    "Laplace": lambda: D.Laplace(LOC, SCALE),
    "LogNormal": lambda: D.LogNormal(LOC, t(0.3, 0.5)),
    "LogisticNormal": lambda: D.LogisticNormal(LOC, SCALE),
    "LogitRelaxedBernoulli": lambda: LogitRelaxedBernoulli(t(0.7), PROBS),
    "LowRankMultivariateNormal": lambda: D.LowRankMultivariateNormal(
        LOC, TRIL[:, :1], t(0.3, 0.9)
    ),
    "MixtureSameFamily": lambda: D.MixtureSameFamily(
        D.Categorical(logits=LOGITS[0]), D.Normal(t(-3, 0, 2), t(0.5, 1, 2))
    ),
    "MixtureOfVectors": lambda: D.MixtureSameFamily(
        D.Categorical(logits=LOGITS),
        D.Independent(D.Normal(torch.arange(12.0).reshape(2, 3, 2).double(), 1), 1),
    ),
    "Multinomial": lambda: D.Multinomial(7, logits=LOGITS),
    "MultivariateNormal": lambda: D.MultivariateNormal(LOC, scale_tril=TRIL),
    "NegativeBinomial": lambda: D.NegativeBinomial(t(3.0, 0.7), PROBS),
    "Normal": lambda: D.Normal(LOC, SCALE),
    "OneHotCategorical": lambda: D.OneHotCategorical(logits=LOGITS),
    "OneHotCategoricalStraightThrough": lambda: D.OneHotCategoricalStraightThrough(
        logits=LOGITS
    ),
    "Pareto": lambda: D.Pareto(SCALE, t(5.0, 6.0)),
    "Poisson": lambda: D.Poisson(t(0.3, 60.0)),
    "RelaxedBernoulli": lambda: D.RelaxedBernoulli(t(0.7), PROBS),
    "RelaxedOneHotCategorical": lambda: D.RelaxedOneHotCategorical(
        t(0.7), logits=LOGITS
    ),
    "StudentT": lambda: D.StudentT(t(7.0, 5.0), LOC, SCALE),
    "TransformedDistribution": lambda: D.TransformedDistribution(
        D.Normal(LOC, SCALE), [D.SigmoidTransform(), D.AffineTransform(1.0, -3.0)]
    ),
    "Uniform": lambda: D.Uniform(LOC, LOC + SCALE),
    "VonMises": lambda: D.VonMises(LOC, t(0.5, 4.0)),
    "Weibull": lambda: D.Weibull(SCALE, t(0.8, 2.0)),
    "Wishart": lambda: D.Wishart(t(4.0, 6.5), scale_tril=TRIL),
}
ABSTRACT = {"Distribution", "ExponentialFamily"}
PARAMETRIZED = pytest.mark.parametrize("name", DISTRIBUTIONS)


def test_the_table_holds_every_distribution_of_torch() -> None:
    of_torch = {
        name
        for name in D.__all__
        if isinstance(getattr(D, name), type)
        and issubclass(getattr(D, name), D.Distribution)
    }

    assert set() == of_torch - ABSTRACT - DISTRIBUTIONS.keys()


def within(values: torch.Tensor, expected: torch.Tensor, extra: Any = 0.0) -> bool:
    """Return whether means over rows are those expected, up to 5 standard errors."""
    error = 5 * (values.var(0) / len(values) + extra).sqrt() + 1e-9
    return bool(((values.mean(0) - expected).abs() <= error).all())


@PARAMETRIZED
@pytest.mark.parametrize("how", ["one key", "keys"])
def test_moments(name: str, how: str) -> None:
    dist = DISTRIBUTIONS[name]()
    if how == "one key":
        x = draw(dist, KEY, 20_000).double()
    else:
        keys = random.split(KEY, 4_000)
        x = torch.vmap(lambda key: draw(dist, key, 2))(keys).flatten(0, 1).double()

    assert x.shape[1:] == dist.batch_shape + dist.event_shape
    # torch draws Wishart matrices again when they are not singular and says that they
    # are, and takes another distribution for the third row of LKJ's factors.
    if name not in {"Wishart", "LKJCholesky"}:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            theirs = dist.sample([20_000]).double()
        # Bounded functions of the values: they have moments whatever the tails are.
        for fn in (torch.tanh, lambda v: torch.sin(2 * v), lambda v: 1 / (1 + v * v)):
            spread = fn(theirs).var(0) / len(theirs)
            assert within(fn(x), fn(theirs).mean(0), spread)
    try:
        mean, variance = dist.mean, dist.variance
    except NotImplementedError:
        return
    if bool(mean.isfinite().all() and variance.isfinite().all()) and name != "VonMises":
        assert within(x, mean)
        assert within((x - mean).square(), variance)


@pytest.mark.parametrize("name", ["Cauchy", "HalfCauchy", "Gamma", "Gumbel", "Laplace"])
def test_distribution_function(name: str) -> None:
    """``cdf`` of the draws is uniform: Kolmogorov's statistic, at one in 10,000."""
    dist = DISTRIBUTIONS[name]()
    u = dist.cdf(draw(dist, KEY, 5_000)).sort(0).values
    grid = (torch.arange(5_000) + 0.5).unsqueeze(-1) / 5_000

    assert (u - grid).abs().max() < 2.3 / math.sqrt(5_000)


def test_correlations_of_lkj() -> None:
    """An entry ``r``, off the diagonal of n rows, is ``2 b - 1``, b of Beta(a, a).

    With ``a = concentration + n / 2 - 1``: its variance is ``1 / (2 a + 1)``.
    """
    lower = draw(DISTRIBUTIONS["LKJCholesky"](), KEY, 20_000)
    matrix = lower @ lower.mT

    torch.testing.assert_close(
        matrix.diagonal(dim1=-2, dim2=-1), torch.ones(20_000, 2, 3).double()
    )
    expected = 1 / (2 * (t(0.8, 2.0) + 0.5) + 1)
    for i, j in ((1, 0), (2, 0), (2, 1)):
        assert within(matrix[..., i, j], torch.zeros(2))
        assert within(matrix[..., i, j].square(), expected)


def test_covariance_of_vectors() -> None:
    for name in ("MultivariateNormal", "LowRankMultivariateNormal"):
        dist: Any = DISTRIBUTIONS[name]()
        x = draw(dist, KEY, 20_000) - dist.mean
        assert within(x[:, 0] * x[:, 1], dist.covariance_matrix[0, 1])


def test_extreme_parameters() -> None:
    """Where rounding would make 0, 1 or infinity of a value that has a density."""
    small = torch.full((1000,), 1e-3)
    beta = draw(D.Beta(small, small), KEY)
    dirichlet = draw(D.Dirichlet(torch.full((1000, 3), 1e-3)), KEY)
    gamma = draw(D.Gamma(small, 1.0), KEY)

    for x in (beta, dirichlet):
        assert ((x > 0) & (x < 1)).all()
    assert (gamma > 0).all()
    half = (beta > 0.5).double().mean()
    assert 0.4 < half < 0.6
    assert draw(D.Binomial(0, torch.tensor(0.5)), KEY) == 0
    assert draw(D.Poisson(torch.tensor(0.0)), KEY) == 0
    assert draw(D.Geometric(torch.tensor(1.0)), KEY) == 0
    assert draw(D.Gumbel(torch.zeros(9000), 1.0), KEY).isfinite().all()


def test_parameters_that_are_none_give_nan() -> None:
    rate = torch.tensor([1.0, float("nan"), -1.0])
    x = draw(D.Poisson(rate, validate_args=False), KEY)

    assert [False, True, True] == x.isnan().tolist()


class TestKeys:
    @PARAMETRIZED
    def test_the_same_key_gives_the_same_values(self, name: str) -> None:
        dist = DISTRIBUTIONS[name]()
        state = torch.get_rng_state()
        before: Any = np.random.get_state()  # noqa: NPY002 - it is not to be moved
        one, two = draw(dist, KEY, [2, 3]), draw(dist, KEY, [2, 3])
        other = draw(dist, random.key(5), [2, 3])

        assert torch.equal(one, two)
        assert not torch.equal(one, other)
        assert torch.equal(state, torch.get_rng_state())
        after: Any = np.random.get_state()  # noqa: NPY002
        assert np.array_equal(before[1], after[1])

    @PARAMETRIZED
    def test_vmap_over_keys_is_the_loop(self, name: str) -> None:
        dist = DISTRIBUTIONS[name]()
        keys = random.split(KEY, 6).reshape(2, 3, 2)
        loop = [[draw(dist, key, 2) for key in row] for row in keys]
        mapped = torch.vmap(torch.vmap(lambda key: draw(dist, key, 2)))(keys)

        expected = torch.stack([torch.stack(row) for row in loop])
        torch.testing.assert_close(mapped, expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(
        ("cls", "args"),
        [
            (D.Normal, (LOC, SCALE)),
            (D.Gamma, (SCALE, SCALE)),
            (D.Beta, (SCALE, SCALE)),
            (D.Poisson, (SCALE,)),
            (D.Binomial, (t(5.0, 6.0), PROBS)),
            (D.VonMises, (LOC, SCALE)),
            (D.Bernoulli, (PROBS,)),
            (D.StudentT, (SCALE, LOC, SCALE)),
        ],
        ids=lambda value: getattr(value, "__name__", ""),
    )
    def test_vmap_over_parameters_is_the_loop(self, cls: Any, args: Any) -> None:
        def one(key: torch.Tensor, *own: Any) -> torch.Tensor:
            return draw(cls(*own, validate_args=False), key, 4)

        keys = random.split(KEY, 2)
        shared = torch.vmap(lambda *own: one(KEY, *own))(*args)
        paired = torch.vmap(one)(keys, *args)

        for i in range(2):
            own = [x[i] for x in args]
            torch.testing.assert_close(shared[i], one(KEY, *own))
            torch.testing.assert_close(paired[i], one(keys[i], *own))

    @PARAMETRIZED
    def test_compiled_draws_are_the_same(self, name: str) -> None:
        dist = DISTRIBUTIONS[name]()
        # torch's constructor of Wishart reads values.
        make = (lambda: dist) if name == "Wishart" else DISTRIBUTIONS[name]
        fn = torch.compile(
            lambda key: draw(make(), key, 3),
            fullgraph=True,
            backend="eager",
        )
        torch._dynamo.reset()

        torch.testing.assert_close(fn(KEY), draw(DISTRIBUTIONS[name](), KEY, 3))

    def test_streams_are_frozen(self) -> None:
        """They change with a line in the changelog only."""
        key = random.key(0)
        drawn = {
            "gamma": draw(D.Gamma(t(2.0), t(1.0)), key),
            "poisson": draw(D.Poisson(t(20.0)), key),
            "binomial": draw(D.Binomial(100, t(0.3)), key),
            "von_mises": draw(D.VonMises(t(0.0), t(2.0)), key),
        }

        assert FROZEN == {k: round(v.item(), 6) for k, v in drawn.items()}


FROZEN = {
    "binomial": 31.0,
    "gamma": 4.122963,
    "poisson": 21.0,
    "von_mises": -0.918924,
}


# A parameter, and the distribution that it makes: differentiable by formula, so that
# the same key gives the same path.
PATHS: dict[str, Callable[[torch.Tensor], D.Distribution]] = {
    "Normal, loc": lambda p: D.Normal(p, SCALE),
    "Normal, scale": lambda p: D.Normal(LOC, p),
    "Uniform": lambda p: D.Uniform(LOC, LOC + p),
    "Exponential": D.Exponential,
    "Laplace": lambda p: D.Laplace(LOC, p),
    "Cauchy": lambda p: D.Cauchy(LOC, p),
    "Gumbel": lambda p: D.Gumbel(LOC, p),
    "GeneralizedPareto": lambda p: D.GeneralizedPareto(LOC, SCALE, p),
    "Gamma, rate": lambda p: D.Gamma(SCALE, p),
    "HalfNormal": D.HalfNormal,
    "LogNormal": lambda p: D.LogNormal(LOC, p),
    "LogisticNormal": lambda p: D.LogisticNormal(LOC, p),
    "Kumaraswamy": lambda p: D.Kumaraswamy(p, SCALE),
    "Weibull": lambda p: D.Weibull(SCALE, p),
    "Pareto": lambda p: D.Pareto(SCALE, p),
    "ContinuousBernoulli": lambda p: D.ContinuousBernoulli(p / 3),
    "RelaxedBernoulli": lambda p: D.RelaxedBernoulli(t(0.7), logits=p),
    "RelaxedOneHot": lambda p: D.RelaxedOneHotCategorical(t(0.7), logits=p),
    "MultivariateNormal": lambda p: D.MultivariateNormal(LOC, torch.diag(p)),
    "LowRank": lambda p: D.LowRankMultivariateNormal(LOC, TRIL[:, :1], p),
    "StudentT, scale": lambda p: D.StudentT(t(7.0, 5.0), LOC, p),
    "Wishart": lambda p: D.Wishart(t(4.0), scale_tril=torch.diag(p)),
}


class TestGradients:
    @pytest.mark.parametrize("name", PATHS)
    def test_gradient_is_the_finite_difference(self, name: str) -> None:
        p = t(0.6, 1.3)
        weights = random.normal(random.key(1), 64, torch.float64)

        def loss(value: torch.Tensor) -> torch.Tensor:
            x = draw(PATHS[name](value), KEY, 3).flatten()
            return (x * weights[: len(x)]).sum()

        step = 1e-6
        basis = torch.eye(2, dtype=torch.float64) * step
        expected = torch.stack(
            [(loss(p + e) - loss(p - e)) / (2 * step) for e in basis]
        )
        # torch validates arguments by reading values, which grad allows and vmap not.
        torch.testing.assert_close(
            torch.func.grad(loss)(p), expected, rtol=1e-5, atol=1e-6
        )

    def test_gamma_moves_with_its_quantile(self) -> None:
        """``dx/da = -dF/da / f``, F the incomplete gamma function."""
        a = t(0.4, 1.0, 3.0, 50.0).repeat(20)
        one = torch.ones_like(a)
        x = draw(D.Gamma(a, one), KEY)
        slope = torch.func.grad(lambda c: draw(D.Gamma(c, one), KEY).sum())(a)
        step = 1e-5
        above, below = [torch.special.gammainc(a + e, x) for e in (step, -step)]
        density = D.Gamma(a, one).log_prob(x).exp()

        torch.testing.assert_close(
            slope, -(above - below) / (2 * step) / density, rtol=1e-3, atol=1e-5
        )

    @pytest.mark.parametrize(
        ("cls", "args", "mean"),
        [
            (D.Beta, (t(0.5), t(2.0)), lambda a, b: a / (a + b)),
            (D.Gamma, (t(0.7), t(2.0)), lambda a, b: a / b),
            (D.FisherSnedecor, (t(3.0), t(30.0)), lambda a, b: b / (b - 2) + 0 * a),
            (D.InverseGamma, (t(9.0), t(2.0)), lambda a, b: b / (a - 1)),
        ],
        ids=lambda value: getattr(value, "__name__", ""),
    )
    def test_gradient_of_a_mean(self, cls: Any, args: Any, mean: Any) -> None:
        """The mean of the gradients is the gradient of the mean."""
        keys = random.split(KEY, 20_000)

        def one(key: torch.Tensor, *own: torch.Tensor) -> torch.Tensor:
            return draw(cls(*own, validate_args=False), key).sum()

        n = tuple(range(1, len(args) + 1))
        grads = torch.vmap(torch.func.grad(one, n), (0, *(None,) * len(args)))(
            keys, *args
        )
        for i, grad in enumerate(grads):
            expected = torch.func.grad(lambda *own: mean(*own).sum(), i)(*args)
            assert within(grad, expected)

    def test_dirichlet_gradient_of_a_mean(self) -> None:
        a = t(0.5, 1.0, 3.0)
        keys = random.split(KEY, 20_000)
        jac = torch.vmap(
            torch.func.jacrev(
                lambda c, key: draw(D.Dirichlet(c, validate_args=False), key)
            ),
            (None, 0),
        )(a, keys)

        assert within(jac, torch.func.jacrev(lambda c: c / c.sum())(a))

    def test_a_second_derivative_of_gamma_raises(self) -> None:
        a = t(2.0).requires_grad_()
        x = draw(D.Gamma(a, t(1.0)), KEY).sum()
        (slope,) = torch.autograd.grad(x, a, create_graph=True)

        with (
            pytest.warns(UserWarning, match="gamma_grad"),
            pytest.raises(NotImplementedError, match="is not implemented"),
        ):
            torch.autograd.grad(slope.sum(), a)

    def test_compiled_gradient_of_gamma(self) -> None:
        a = t(0.5, 2.0)

        def grad(value: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return torch.func.grad(
                lambda c: draw(D.Gamma(c, 1.0, validate_args=False), key).sum()
            )(value)

        torch._dynamo.reset()
        fn = torch.compile(grad, fullgraph=True, backend="eager")
        torch.testing.assert_close(fn(a, KEY), grad(a, KEY))

    @pytest.mark.parametrize(
        "make",
        [
            lambda p: D.Normal(LOC, p),
            lambda p: D.Gamma(p, SCALE),
            D.Bernoulli,
            D.Poisson,
            D.Geometric,
            lambda p: D.Categorical(probs=p),
            lambda p: D.OneHotCategoricalStraightThrough(probs=p),
        ],
        ids=[
            "normal",
            "gamma",
            "bernoulli",
            "poisson",
            "geometric",
            "categorical",
            "one hot",
        ],
    )
    def test_only_reparameterized_draws_are_differentiable(self, make: Any) -> None:
        dist = make(PROBS.clone().requires_grad_())

        assert dist.has_rsample == draw(dist, KEY).requires_grad
        assert not draw(dist, KEY, reparameterized=False).requires_grad

    def test_a_mixture_is_not_differentiable(self) -> None:
        loc = t(0.0, 1.0).requires_grad_()
        mixture = D.MixtureSameFamily(
            D.Categorical(logits=torch.zeros(2)), D.Normal(loc, 1.0)
        )

        assert not draw(mixture, KEY).requires_grad


class TestJointLogProb:
    @PARAMETRIZED
    def test_it_is_that_of_the_value(self, name: str) -> None:
        dist = DISTRIBUTIONS[name]()
        value, log_prob = draw_and_log_prob(dist, KEY, torch.Size([4]))

        assert torch.equal(value, draw(dist, KEY, 4))
        torch.testing.assert_close(log_prob, dist.log_prob(value), rtol=1e-6, atol=1e-6)

    def test_saturated_transforms_keep_it(self) -> None:
        dist = D.TransformedDistribution(
            D.Normal(torch.tensor(20.0), 1.0), [D.TanhTransform()]
        )
        value, log_prob = draw_and_log_prob(dist, KEY, torch.Size())

        assert value == 1
        assert log_prob.isfinite()


class TestErrors:
    def test_no_key(self) -> None:
        dist = D.Normal(LOC, SCALE)
        with pytest.raises(OperandError, match="this is no key"):
            draw(dist, 0)  # pyright: ignore[reportArgumentType]
        with pytest.raises(OperandError, match="draw takes one key"):
            draw(dist, random.split(KEY))

    def test_no_distribution(self) -> None:
        with pytest.raises(OperandError, match="this is no distribution"):
            draw(LOC, KEY)  # pyright: ignore[reportArgumentType]

    def test_a_class_with_its_own_sample(self) -> None:
        class Shifted(D.Normal):
            def rsample(self, sample_shape: Any = ()) -> torch.Tensor:
                return super().rsample(sample_shape) + 1

        with pytest.raises(OperandError, match="give Shifted a method draw"):
            draw(Shifted(LOC, SCALE), KEY)

        class Drawn(Shifted):
            def draw(self, key: torch.Tensor, sample_shape: Any = ()) -> torch.Tensor:
                return draw(D.Normal(self.loc, self.scale), key, sample_shape) + 1

        expected = draw(D.Normal(LOC, SCALE), KEY, 2) + 1
        assert torch.equal(expected, draw(Drawn(LOC, SCALE), KEY, 2))

    def test_a_subclass_that_samples_as_its_parent(self) -> None:
        class Unit(D.Normal):
            def __init__(self, loc: torch.Tensor) -> None:
                super().__init__(loc, torch.ones_like(loc))

        assert torch.equal(
            draw(Unit(LOC), KEY), draw(D.Normal(LOC, torch.ones_like(LOC)), KEY)
        )

    def test_reparameterized_where_it_can_not_be(self) -> None:
        with pytest.raises(OptionError, match="Bernoulli can not be differentiated"):
            draw(D.Bernoulli(PROBS), KEY, reparameterized=True)

    def test_shape(self) -> None:
        with pytest.raises(OptionError, match="sample_shape"):
            draw(D.Normal(LOC, SCALE), KEY, (-1,))


def test_draws_are_pure() -> None:
    for make in (DISTRIBUTIONS["Gamma"], DISTRIBUTIONS["Wishart"]):
        dist = make()
        assert_pure(lambda key, dist=dist: draw(dist, key, 2), KEY)
