"""Draws from any distribution of torch, as functions of a key.

``dist.sample()`` reads torch's global generator. Here the numbers come from a key: for
every class there is a formula that makes its variates of uniform, normal, exponential
or Gumbel numbers, or of the variates of `tdfunc.nn._variates`. A class of its own says
so itself, by a method ``draw(key, sample_shape)``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import torch
from torch import distributions as D
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical

from tdfunc import random
from tdfunc._core.batch import as_size
from tdfunc.errors import OperandError, OptionError
from tdfunc.nn._variates import binomial, poisson, standard_gamma, von_mises
from tdfunc.random._draws import draw as noise
from tdfunc.random._keys import lone_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc.typing import Size

__all__ = [
    "SupportsDraw",
    "draw",
    "draw_and_log_prob",
    "has_rsample",
    "keyless",
    "normal_jointly",
    "transformed_jointly",
]


@runtime_checkable
class SupportsDraw(Protocol):
    """What a distribution of your own declares, to be drawn from with a key."""

    def draw(self, key: torch.Tensor, sample_shape: torch.Size = ...) -> Any:
        """Return values of shape ``[*sample_shape, *batch_shape, *event_shape]``.

        They are a function of the key and of the parameters alone, differentiable in
        the parameters where `has_rsample` says so.
        """
        ...


def draw(
    dist: D.Distribution,
    key: torch.Tensor,
    sample_shape: Size = (),
    *,
    reparameterized: bool | None = None,
) -> Any:
    """Return values drawn from a distribution, a function of the key alone.

    The same key gives the same values; under `vmap` over keys it is the loop over them.
    The global generator is neither read nor changed.

    Args:
        dist: a distribution of torch or of `tdfunc.nn`, or one with a method ``draw``.
        key: [2], of `tdfunc.random`.
        sample_shape: dims in front, of independent draws.
        reparameterized: True for values that are differentiable in the parameters,
            False for constants; None for what the distribution can. Gamma variates,
            and what is made of them, are differentiable once.

    Returns:
        [*sample_shape, *batch_shape, *event_shape]; a tree for a
        `CompositeDistribution`.

    Raises:
        OperandError: no key, or several; no distribution, or one that is neither known
            nor has a method ``draw``.
        OptionError: no shape, or ``reparameterized=True`` and the distribution has no
            such form.

    Examples:
        >>> import torch
        >>> from torch.distributions import Gamma
        >>> from tdfunc import random
        >>> from tdfunc.nn import draw
        >>> dist = Gamma(torch.ones(3), torch.ones(3))
        >>> x = draw(dist, random.key(0), [2])
        >>> x.shape, torch.equal(x, draw(dist, random.key(0), [2]))
        (torch.Size([2, 3]), True)
    """
    key = lone_key(key, "draw")
    size = as_size(sample_shape, "sample_shape")
    fn = _function_of(dist)
    if reparameterized and not has_rsample(dist):
        raise OptionError(
            f"the values of {type(dist).__name__} can not be differentiated",
            expected="a distribution with has_rsample",
            fix="reparameterized=None",
        )
    out = fn(dist, key, size)
    keeps = has_rsample(dist) if reparameterized is None else reparameterized
    return out if keeps else out.detach()


def draw_and_log_prob(
    dist: Any, key: torch.Tensor, sample_shape: torch.Size
) -> tuple[Any, Any]:
    """Return what `draw` does, and the log-probability of these values.

    Of a transformed distribution it is computed from the value before the transforms:
    where these saturate, their inverse knows less. Of a normal one it is computed from
    the noise, which costs a third. Derivatives are those of ``log_prob(value)``, in
    which the value depends on the parameters too.

    Args:
        dist: as of `draw`.
        key: [2].
        sample_shape: dims in front.
    """
    kind = type(dist)
    if kind is D.Normal:
        return normal_jointly(dist.loc, dist.scale, key, sample_shape)
    own = getattr(dist, "draw_and_log_prob", None)
    if own is not None:
        return own(key, sample_shape)
    if kind is D.Independent:
        value, log_prob = draw_and_log_prob(dist.base_dist, key, sample_shape)
        return value, _sum_last(log_prob, dist.reinterpreted_batch_ndims)
    plain = D.TransformedDistribution
    if (
        isinstance(dist, plain)
        and kind.log_prob is plain.log_prob
        and _inherited(kind) is _draw_transformed
    ):
        return transformed_jointly(dist, key, sample_shape)
    value = draw(dist, key, sample_shape)
    return value, dist.log_prob(value)


def keyless(dist: Any) -> OptionError:
    """Return the error of a distribution that is asked for draws without a key."""
    return OptionError(
        f"draws of {type(dist).__name__} come from a key",
        fix="tdfunc.nn.draw(dist, key, sample_shape)",
    )


def has_rsample(dist: Any) -> bool:
    """Return whether draws are differentiable in the parameters."""
    return bool(dist.has_rsample)


def normal_jointly(
    loc: torch.Tensor, scale: torch.Tensor, key: torch.Tensor, sample_shape: torch.Size
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normal draws and their log-probability, from location and scale.

    Args:
        loc: [*batch].
        scale: [*batch], of the same dtype.
        key: [2].
        sample_shape: dims in front.
    """
    eps = _normal(lone_key(key, "draw"), sample_shape + loc.shape, loc)
    spread = torch.addcmul(scale.log(), eps, eps, value=0.5)
    constant = _LOG_NORMALISER.get(loc.dtype, _DOUBLE)
    return torch.addcmul(loc, scale, eps), constant - spread


# Tensors without dims: torch computes with them faster than with numbers, and they take
# on the dtype of the other operand.
_DOUBLE: Final = torch.tensor(
    -0.5 * math.log(2 * math.pi), dtype=torch.float64, device="cpu"
)
_LOG_NORMALISER: Final = {torch.float32: _DOUBLE.float()}


def transformed_jointly(
    dist: Any, key: torch.Tensor, sample_shape: torch.Size
) -> tuple[torch.Tensor, torch.Tensor]:
    base = dist.base_dist
    dims = len(base.event_shape)
    x, log_prob = draw_and_log_prob(base, key, sample_shape)
    for transform in dist.transforms:
        y = transform(x)
        # Dims that are an event from here on, and were none before.
        more = max(transform.domain.event_dim - dims, 0)
        log_prob, dims = _sum_last(log_prob, more), dims + more
        change = transform.log_abs_det_jacobian(x, y)
        log_prob = log_prob - _sum_last(change, dims - transform.domain.event_dim)
        dims += transform.codomain.event_dim - transform.domain.event_dim
        x = y
    log_prob = _sum_last(log_prob, len(dist.event_shape) - dims)
    return (x, log_prob) if has_rsample(dist) else (x.detach(), log_prob)


def _sum_last(x: torch.Tensor, dims: int) -> torch.Tensor:
    return x.sum(tuple(range(-dims, 0))) if dims > 0 else x


def _function_of(dist: Any) -> Callable[[Any, torch.Tensor, torch.Size], Any]:
    cls = type(dist)
    fn = _FORMULAS.get(cls) or _inherited(cls)
    if fn is not None:
        return fn
    if not isinstance(dist, D.Distribution):
        raise OperandError(
            "this is no distribution",
            expected="a torch.distributions.Distribution",
            got=cls.__name__,
        )
    raise OperandError(
        f"nobody says how {cls.__name__} is drawn from with a key",
        expected="a distribution of torch or tdfunc.nn, or a method draw",
        got=f"a class with its own {'rsample' if has_rsample(dist) else 'sample'}",
        fix=f"give {cls.__name__} a method draw(self, key, sample_shape)",
    )


def _inherited(
    cls: type[Any],
) -> Callable[[Any, torch.Tensor, torch.Size], Any] | None:
    if hasattr(cls, "draw"):
        return _own_draw
    for parent in cls.__mro__:
        found = _FORMULAS.get(parent)
        if found is not None:
            return found
        # A class that says how it samples means another distribution than its parent.
        if "sample" in vars(parent) or "rsample" in vars(parent):
            return None
    return None


def _own_draw(dist: Any, key: torch.Tensor, size: torch.Size) -> Any:
    return dist.draw(key, size)


# Noise of the shape of the result, where and of what dtype a parameter is.


def _normal(key: torch.Tensor, shape: Any, like: torch.Tensor) -> torch.Tensor:
    return noise(key, "normal", shape, like.dtype, like.device)


def _uniform(key: torch.Tensor, shape: Any, like: torch.Tensor) -> torch.Tensor:
    return noise(key, "uniform", shape, like.dtype, like.device)


def _exponential(key: torch.Tensor, shape: Any, like: torch.Tensor) -> torch.Tensor:
    return noise(key, "exponential", shape, like.dtype, like.device)


def _gumbel(key: torch.Tensor, shape: Any, like: torch.Tensor) -> torch.Tensor:
    return noise(key, "gumbel", shape, like.dtype, like.device)


def _shape(dist: Any, size: torch.Size) -> torch.Size:
    return size + dist.batch_shape + dist.event_shape


def _positive(x: torch.Tensor) -> torch.Tensor:
    """Return numbers that are not so small that they became 0."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)


# Continuous, by location and scale or by the quantile function.


def _draw_normal(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    eps = _normal(key, size + dist.batch_shape, dist.loc)
    return torch.addcmul(dist.loc, dist.scale, eps)


def _draw_uniform(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    u = _uniform(key, size + dist.batch_shape, dist.low)
    return dist.low + u * (dist.high - dist.low)


def _draw_exponential(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    return _exponential(key, size + dist.batch_shape, dist.rate) / dist.rate


def _draw_laplace(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    # The difference of two exponential numbers: no logarithm of 0.
    both = _exponential(key, (*size, *dist.batch_shape, 2), dist.loc)
    return torch.addcmul(dist.loc, dist.scale, both[..., 0] - both[..., 1])


def _draw_cauchy(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    u = _uniform(key, size + dist.batch_shape, dist.loc)
    return torch.addcmul(dist.loc, dist.scale, torch.tan(math.pi * (u - 0.5)))


def _draw_gumbel(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    return torch.addcmul(
        dist.loc, dist.scale, _gumbel(key, size + dist.batch_shape, dist.loc)
    )


def _draw_pareto_of_tails(
    dist: Any, key: torch.Tensor, size: torch.Size
) -> torch.Tensor:
    """Draw from the generalised Pareto distribution: ``expm1(c e) / c``."""
    eps = _exponential(key, size + dist.batch_shape, dist.loc)
    shape = dist.concentration
    flat = shape.abs() < torch.finfo(eps.dtype).eps
    safe = torch.where(flat, torch.ones_like(shape), shape)
    grown = torch.where(flat, eps, torch.expm1(safe * eps) / safe)
    return torch.addcmul(dist.loc, dist.scale, grown)


def _draw_by_quantile(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    return dist.icdf(_uniform(key, size + dist.batch_shape, dist.probs))


def _draw_logistic(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Draw the logit of a relaxed Bernoulli variate."""
    eps = _gumbel(key, (*size, *dist.batch_shape, 2), dist.logits)
    return (dist.logits + eps[..., 0] - eps[..., 1]) / dist.temperature


def _draw_relaxed(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Draw the logarithm of a relaxed one-hot variate."""
    eps = _gumbel(key, _shape(dist, size), dist.logits)
    return torch.log_softmax((dist.logits + eps) / dist.temperature, -1)


def _draw_von_mises(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    angle = von_mises(key, dist.concentration.expand(size + dist.batch_shape))
    return (angle + math.pi + dist.loc) % (2 * math.pi) - math.pi


# Of gamma variates.


def _draw_gamma(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    shape = dist.concentration.expand(size + dist.batch_shape)
    return _positive(standard_gamma(key, shape) / dist.rate)


def _log_gamma_variate(key: torch.Tensor, concentration: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of gamma variates, which may be too small for their dtype.

    A variate of concentration ``a`` is one of ``a + 1`` times ``u ** (1 / a)``
    (G. Marsaglia, W. W. Tsang, "A Simple Method for Generating Gamma Variables", 2000,
    section 6).
    """
    first, second = random.split(key).unbind(-2)
    eps = _exponential(second, concentration.shape, concentration)
    return standard_gamma(first, concentration + 1).log() - eps / concentration


def _draw_dirichlet(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    shape = dist.concentration.expand(_shape(dist, size))
    return _open(torch.softmax(_log_gamma_variate(key, shape), -1))


def _draw_beta(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    pair = torch.stack((dist.concentration1, dist.concentration0), -1)
    logs = _log_gamma_variate(key, pair.expand(*size, *dist.batch_shape, 2))
    return _open(torch.sigmoid(logs[..., 0] - logs[..., 1]))


def _open(x: torch.Tensor) -> torch.Tensor:
    """Return numbers between 0 and 1, and neither of them."""
    info = torch.finfo(x.dtype)
    return x.clamp(info.tiny, 1 - info.eps / 2)


def _draw_student(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    first, second = random.split(key).unbind(-2)
    shape = size + dist.batch_shape
    half = dist.df.expand(shape) / 2
    eps = _normal(first, shape, half)
    chi = _positive(standard_gamma(second, half) / half)
    return torch.addcmul(dist.loc, dist.scale, eps * chi.rsqrt())


def _draw_fisher(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    first, second = random.split(key).unbind(-2)
    one = dist.df1.expand(size + dist.batch_shape) / 2
    two = dist.df2.expand(size + dist.batch_shape) / 2
    above = standard_gamma(first, one) / one
    return _positive(above / _positive(standard_gamma(second, two) / two))


# Matrices and vectors.


def _draw_gaussian(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    eps = _normal(key, _shape(dist, size), dist.loc)
    return dist.loc + (dist.scale_tril @ eps.unsqueeze(-1)).squeeze(-1)


def _draw_low_rank(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    first, second = random.split(key).unbind(-2)
    factor = dist.cov_factor
    few = _normal(first, (*size, *dist.batch_shape, factor.shape[-1]), dist.loc)
    own = _normal(second, _shape(dist, size), dist.loc)
    shared = (factor @ few.unsqueeze(-1)).squeeze(-1)
    return dist.loc + shared + dist.cov_diag.sqrt() * own


def _draw_wishart(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Draw by Bartlett's decomposition."""
    first, second = random.split(key).unbind(-2)
    n = dist.event_shape[-1]
    less = torch.arange(n, dtype=dist.df.dtype, device=dist.df.device)
    half = (dist.df.unsqueeze(-1) - less) / 2
    chi = _positive(2 * standard_gamma(first, half.expand(_shape(dist, size)[:-1])))
    below = _normal(second, _shape(dist, size), dist.df).tril(-1)
    root = dist.scale_tril @ (below + torch.diag_embed(chi.sqrt()))
    return root @ root.mT


def _draw_lkj(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Draw by the onion method.

    D. Lewandowski, D. Kurowicka, H. Joe, "Generating random correlation matrices based
    on vines and extended onion method", 2009, section 3.2.
    """
    first, second = random.split(key).unbind(-2)
    conc, n = dist.concentration, dist.dim
    row = torch.arange(n - 1, dtype=conc.dtype, device=conc.device)
    row = torch.cat([row.new_zeros(1), row])
    beta = D.Beta(
        0.5 * row + 0.5,
        (conc + 0.5 * (n - 2)).unsqueeze(-1) - 0.5 * row,
        validate_args=False,
    )
    length = _draw_beta(beta, first, size).unsqueeze(-1).sqrt()
    eps = _normal(second, _shape(dist, size), conc).tril(-1)
    norm = eps.norm(dim=-1, keepdim=True)
    lower = length * eps / torch.where(norm > 0, norm, torch.ones_like(norm))
    diagonal = _positive(1 - lower.square().sum(-1)).sqrt()
    return lower + torch.diag_embed(diagonal)


# Counts and choices.


def _draw_bernoulli(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    probs = dist.probs.detach()
    return (_uniform(key, size + dist.batch_shape, probs) < probs).to(probs.dtype)


def _draw_geometric(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    probs = dist.probs.detach()
    eps = _exponential(key, size + dist.batch_shape, probs)
    return torch.floor(eps / -torch.log1p(-probs))


def _draw_poisson(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    return poisson(key, dist.rate.expand(size + dist.batch_shape))


def _draw_binomial(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    shape = size + dist.batch_shape
    return binomial(key, dist.total_count.expand(shape), dist.probs.expand(shape))


def _draw_negative_binomial(
    dist: Any, key: torch.Tensor, size: torch.Size
) -> torch.Tensor:
    first, second = random.split(key).unbind(-2)
    count = dist.total_count.detach().to(dist.logits.dtype)
    rate = standard_gamma(first, count.expand(size + dist.batch_shape))
    return poisson(second, rate * dist.logits.detach().exp())


def _draw_categorical(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    logits = dist.logits.detach()
    shape = size + dist.batch_shape
    return random.categorical(key, logits, shape=shape, device=logits.device)


def _draw_one_hot(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    index = _draw_categorical(dist, key, size)
    return _one_hot(index, dist.logits)


def _one_hot(index: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    choices = torch.arange(logits.shape[-1], device=logits.device)
    return (index.unsqueeze(-1) == choices).to(logits.dtype)


def _draw_straight_through(
    dist: Any, key: torch.Tensor, size: torch.Size
) -> torch.Tensor:
    probs = dist.probs
    return _draw_one_hot(dist, key, size) + (probs - probs.detach())


def _draw_multinomial(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    logits = dist.logits.detach()
    shape = size + dist.batch_shape
    index = random.categorical(
        key, logits, shape=(dist.total_count, *shape), device=logits.device
    )
    counts = torch.zeros(_shape(dist, size), dtype=logits.dtype, device=logits.device)
    ones = torch.ones_like(index, dtype=logits.dtype)
    return counts.scatter_add(-1, index.movedim(0, -1), ones.movedim(0, -1))


# Of other distributions.


def _draw_independent(dist: Any, key: torch.Tensor, size: torch.Size) -> Any:
    return _function_of(dist.base_dist)(dist.base_dist, key, size)


def _draw_transformed(dist: Any, key: torch.Tensor, size: torch.Size) -> Any:
    out = _function_of(dist.base_dist)(dist.base_dist, key, size)
    for transform in dist.transforms:
        out = transform(out)
    return out


def _draw_mixture(dist: Any, key: torch.Tensor, size: torch.Size) -> torch.Tensor:
    first, second = random.split(key).unbind(-2)
    which = _draw_categorical(dist.mixture_distribution, first, size)
    parts = dist.component_distribution
    values = _function_of(parts)(parts, second, size)
    place = len(size) + len(dist.batch_shape)
    index = which.reshape(*which.shape, *(1,) * (values.dim() - which.dim()))
    index = index.expand(*which.shape, 1, *dist.event_shape)
    return values.gather(place, index).squeeze(place)


_FORMULAS: Final[dict[type[Any], Callable[[Any, torch.Tensor, torch.Size], Any]]] = {
    D.Bernoulli: _draw_bernoulli,
    D.Beta: _draw_beta,
    D.Binomial: _draw_binomial,
    D.Categorical: _draw_categorical,
    D.Cauchy: _draw_cauchy,
    D.ContinuousBernoulli: _draw_by_quantile,
    D.Dirichlet: _draw_dirichlet,
    D.Exponential: _draw_exponential,
    D.FisherSnedecor: _draw_fisher,
    D.Gamma: _draw_gamma,
    D.GeneralizedPareto: _draw_pareto_of_tails,
    D.Geometric: _draw_geometric,
    D.Gumbel: _draw_gumbel,
    D.Independent: _draw_independent,
    D.LKJCholesky: _draw_lkj,
    D.Laplace: _draw_laplace,
    D.LowRankMultivariateNormal: _draw_low_rank,
    D.MixtureSameFamily: _draw_mixture,
    D.Multinomial: _draw_multinomial,
    D.MultivariateNormal: _draw_gaussian,
    D.NegativeBinomial: _draw_negative_binomial,
    D.Normal: _draw_normal,
    D.OneHotCategorical: _draw_one_hot,
    D.OneHotCategoricalStraightThrough: _draw_straight_through,
    D.Poisson: _draw_poisson,
    D.StudentT: _draw_student,
    D.TransformedDistribution: _draw_transformed,
    D.Uniform: _draw_uniform,
    D.VonMises: _draw_von_mises,
    D.Wishart: _draw_wishart,
    ExpRelaxedCategorical: _draw_relaxed,
    LogitRelaxedBernoulli: _draw_logistic,
}
