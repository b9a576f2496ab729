"""Distributions that torch does not have, each drawn from with a key.

They are used as torch's own; what a key draws is their method ``draw``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import distributions as D
from torch.distributions import constraints

from tdfunc import random
from tdfunc.errors import OptionError
from tdfunc.nn._draw import keyless, transformed_jointly
from tdfunc.random._samples import has_values

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Delta",
    "MaskedCategorical",
    "OneHotCategorical",
    "TanhNormal",
    "TruncatedNormal",
]

_NO_SHAPE = torch.Size()
_ROOT_HALF = 0.5**0.5
# As a bound of a standard normal number: nothing is beyond, and its square is finite.
_FAR = 1e10


class Delta(D.Distribution):
    """All mass on one value.

    Its log-probability is infinite at the value and minus infinity elsewhere.

    Args:
        param: the value.
        atol: how far from it is still the value.
        rtol: the same, as a part of its absolute value.
        batch_shape: the first dims of `param`; by default all but the last.
        event_shape: the last dims of `param`; by default the last one. Of
            the two at most one is needed.

    Raises:
        OptionError: `param` is not of the shape ``[*batch_shape, *event_shape]``.

    Examples:
        >>> import torch
        >>> from tdfunc.nn import Delta
        >>> dist = Delta(torch.tensor([[1.0, 2.0]]))
        >>> dist.batch_shape, dist.log_prob(torch.tensor([[1.0, 2.5]]))
        (torch.Size([1]), tensor([-inf]))
    """

    arg_constraints: Any = {}  # noqa: RUF012 - torch's form
    has_rsample = True

    def __init__(
        self,
        param: torch.Tensor,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        *,
        batch_shape: Sequence[int] | None = None,
        event_shape: Sequence[int] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        shape = param.shape
        if batch_shape is not None:
            dims = len(batch_shape)
        elif event_shape is not None:
            dims = len(shape) - len(event_shape)
        else:
            dims = max(len(shape) - 1, 0)
        batch = shape[:dims] if batch_shape is None else torch.Size(batch_shape)
        event = shape[dims:] if event_shape is None else torch.Size(event_shape)
        if batch + event != shape:
            raise OptionError(
                "the value is not of the shape of batch and event",
                expected=f"shape {list(batch + event)}",
                got=f"shape {list(shape)}",
            )
        self.param = param
        self.atol = atol
        self.rtol = rtol
        super().__init__(batch, event, validate_args=validate_args)

    @property
    def support(self) -> Any:
        """Everything: a value elsewhere has no probability, and is no error."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Delta:
        """Return the distribution with a larger batch."""
        del _instance
        shape = torch.Size(batch_shape)
        return Delta(
            self.param.expand(shape + self.event_shape),
            self.atol,
            self.rtol,
            batch_shape=shape,
            event_shape=self.event_shape,
        )

    def draw(
        self, key: torch.Tensor, sample_shape: torch.Size = _NO_SHAPE
    ) -> torch.Tensor:
        """Return the value, whatever the key."""
        del key
        return self.param.expand(sample_shape + self.param.shape)

    def rsample(self, sample_shape: Any = _NO_SHAPE) -> torch.Tensor:
        """Return the value, as often as is asked for."""
        return self.param.expand(torch.Size(sample_shape) + self.param.shape)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """Return infinity where the value is `param`, minus infinity elsewhere."""
        near = (value - self.param).abs() <= self.atol + self.rtol * self.param.abs()
        if self.event_shape:
            near = near.flatten(near.dim() - len(self.event_shape)).all(-1)
        kind = self.param.dtype
        dtype = kind if kind.is_floating_point else torch.get_default_dtype()
        out = torch.full_like(near, -math.inf, dtype=dtype)
        return out.masked_fill(near, math.inf)

    @property
    def mean(self) -> torch.Tensor:
        """The value."""
        return self.param

    @property
    def variance(self) -> torch.Tensor:
        """Zero."""
        return torch.zeros_like(self.param)

    @property
    def mode(self) -> torch.Tensor:
        """The value."""
        return self.param

    @property
    def median(self) -> torch.Tensor:
        """The value."""
        return self.param

    @property
    def deterministic_sample(self) -> torch.Tensor:
        """The value."""
        return self.param


class TruncatedNormal(D.Distribution):
    """A normal distribution, given that the value lies between two bounds.

    Probabilities are differences of tails, computed in their logarithms: bounds far
    from the location are as exact as near ones.

    Args:
        loc: the location of the normal distribution, [*batch].
        scale: its scale, positive, [*batch].
        a: the lower bound, a number or [*batch]; may be ``-inf``.
        b: the upper bound, larger than `a`; may be ``inf``.
        validate_args: as of torch's distributions.

    Raises:
        OptionError: a bound `a` is not less than its `b`, where values can be read.

    Examples:
        >>> import torch
        >>> from tdfunc import random
        >>> from tdfunc.nn import TruncatedNormal, draw
        >>> dist = TruncatedNormal(torch.zeros(3), torch.ones(3), 0.0, 1.0)
        >>> x = draw(dist, random.key(0))
        >>> bool(((x >= 0) & (x <= 1)).all()), dist.log_prob(torch.tensor(2.0))[0]
        (True, tensor(-inf))
    """

    arg_constraints: Any = {  # noqa: RUF012 - torch's form
        "loc": constraints.real,
        "scale": constraints.positive,
        "a": constraints.real,
        "b": constraints.real,
    }
    has_rsample = True

    def __init__(
        self,
        loc: torch.Tensor,
        scale: torch.Tensor | float,
        a: torch.Tensor | float,
        b: torch.Tensor | float,
        validate_args: bool | None = None,  # noqa: FBT001 - torch's signature
    ) -> None:
        parts = [
            torch.as_tensor(part, dtype=loc.dtype, device=loc.device)
            for part in (scale, a, b)
        ]
        self.loc, self.scale, self.a, self.b = torch.broadcast_tensors(loc, *parts)
        if (
            has_values(parts[1])
            and has_values(parts[2])
            and not (self.a < self.b).all()
        ):
            raise OptionError(
                "there is nothing between the bounds",
                expected="a < b",
                got=f"a={a!r}, b={b!r}",
            )
        super().__init__(self.loc.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The closed interval."""
        return constraints.interval(self.a, self.b)

    def expand(
        self, batch_shape: Sequence[int], _instance: object = None
    ) -> TruncatedNormal:
        """Return the distribution with a larger batch."""
        del _instance
        parts = [x.expand(batch_shape) for x in (self.loc, self.scale, self.a, self.b)]
        return TruncatedNormal(*parts, validate_args=False)

    def _standard(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.loc) / self.scale

    def _bound(self, x: torch.Tensor) -> torch.Tensor:
        """Return a bound, standardised; for infinity a number that is as good.

        Infinity has no gradient: 0 times it is NaN.
        """
        finite = x.isfinite()
        z = self._standard(torch.where(finite, x, self.loc))
        return torch.where(finite, z, x.sign() * _FAR)

    def _log_mass(self) -> torch.Tensor:
        return _log_between(self._bound(self.a), self._bound(self.b))

    def draw(
        self, key: torch.Tensor, sample_shape: torch.Size = _NO_SHAPE
    ) -> torch.Tensor:
        """Return draws, differentiable in all parameters."""
        noise = random.truncated_normal(
            key,
            self._bound(self.a),
            self._bound(self.b),
            sample_shape + self.batch_shape,
            self.loc.dtype,
            device=self.loc.device,
        )
        return _between(self.loc + noise * self.scale, self.a, self.b)

    def rsample(self, sample_shape: Any = _NO_SHAPE) -> torch.Tensor:
        """Raise: as `sample`, it has no key.

        Raises:
            OptionError: always; `tdfunc.nn.draw` draws.
        """
        del sample_shape
        raise keyless(self)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of the density, minus infinity outside the bounds."""
        inside = (value >= self.a) & (value <= self.b)
        z = self._standard(torch.where(inside, value, self.loc))
        density = _log_density(z) - self.scale.log() - self._log_mass()
        return torch.where(inside, density, torch.full_like(density, -math.inf))

    def cdf(self, value: torch.Tensor) -> torch.Tensor:
        """Return the probability of a smaller value."""
        low, z = self._bound(self.a), self._standard(value)
        high = self._bound(self.b)
        z = _between(z, low, high)
        # On either side of the middle, from the bound that is nearer.
        below = torch.exp(_log_between(low, z) - self._log_mass())
        return torch.where(value <= self.a, torch.zeros_like(below), below).clamp(max=1)

    def icdf(self, value: torch.Tensor) -> torch.Tensor:
        """Return the value that has this probability below it."""
        low, high = self._bound(self.a), self._bound(self.b)
        flip = low > 0
        low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
        u = torch.where(flip, 1 - value, value).double()
        # Far below zero `torch.special.ndtr` gives 0.
        start, end = [torch.erfc(x.double() * -_ROOT_HALF) / 2 for x in (low, high)]
        z = torch.special.ndtri(start + u * (end - start)).to(self.loc.dtype)
        z = torch.where(flip, -z, z)
        return _between(self.loc + z * self.scale, self.a, self.b)

    def _moments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return first moment, second moment less 1 and log mass, standardised.

        In double precision: far from the location they are small differences.
        """
        low = self._bound(self.a).double()
        high = self._bound(self.b).double()
        mass = _log_between(low, high)
        left, right = [torch.exp(_log_density(x) - mass) for x in (low, high)]
        first = left - right
        second = _product(low, left) - _product(high, right)
        return first, second, mass

    @property
    def mean(self) -> torch.Tensor:
        """The mean."""
        first, _, _ = self._moments()
        return self.loc + self.scale * first.to(self.loc.dtype)

    @property
    def variance(self) -> torch.Tensor:
        """The variance."""
        first, second, _ = self._moments()
        spread = (1 + second - first.square()).clamp(min=0)
        return self.scale.square() * spread.to(self.loc.dtype)

    @property
    def mode(self) -> torch.Tensor:
        """The value between the bounds that is nearest to the location."""
        return _between(self.loc, self.a, self.b)

    @property
    def median(self) -> torch.Tensor:
        """The value with as much above as below."""
        return self.icdf(torch.full_like(self.loc, 0.5))

    def entropy(self) -> torch.Tensor:
        """Return the entropy."""
        _, second, mass = self._moments()
        out = mass + second / 2 + 0.5 * math.log(2 * math.pi * math.e)
        return out.to(self.loc.dtype) + self.scale.log()


def _between(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return torch.maximum(torch.minimum(x, high), low)


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return ``x * y``, 0 where x stands for infinity: there the density y is 0."""
    return torch.where(x.abs() == _FAR, torch.zeros_like(y), x * y)


def _log_density(z: torch.Tensor) -> torch.Tensor:
    return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)


def _log_between(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return the log-probability that a standard normal number lies in between."""
    # Above zero both tails are near one: there the same is done below zero.
    flip = low > 0
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    above = _log_below(high)
    return above + torch.log(-torch.expm1(_log_below(low) - above))


def _log_below(z: torch.Tensor) -> torch.Tensor:
    """Return the log-probability that a standard normal number is less.

    `torch.special.log_ndtr` has no batching rule.
    """
    left, right = z.clamp(max=0), z.clamp(min=0)
    tail = torch.log(torch.special.erfcx(left * -_ROOT_HALF) / 2) - left.square() / 2
    return torch.where(z < 0, tail, torch.log1p(torch.erfc(right * _ROOT_HALF) / -2))


class TanhNormal(D.TransformedDistribution):
    """A normal number, squashed by tanh to lie between two bounds.

    The log-probability that comes with a draw is computed from the number before tanh,
    exact also where it saturates.

    Args:
        loc: the location before tanh, [*batch].
        scale: the scale before tanh, positive, [*batch].
        low: the lower bound, a number or [*batch].
        high: the upper bound, a number or [*batch], larger than `low`.
        validate_args: as of torch's distributions.

    Raises:
        OptionError: a bound is not less than the other, where values can be read.

    Examples:
        >>> import torch
        >>> from tdfunc.nn import TanhNormal
        >>> dist = TanhNormal(torch.zeros(2), torch.ones(2), high=3.0)
        >>> dist.deterministic_sample
        tensor([1., 1.])
    """

    arg_constraints: Any = {  # noqa: RUF012 - torch's form
        "loc": constraints.real,
        "scale": constraints.positive,
    }

    def __init__(
        self,
        loc: torch.Tensor,
        scale: torch.Tensor,
        low: torch.Tensor | float = -1.0,
        high: torch.Tensor | float = 1.0,
        validate_args: bool | None = None,  # noqa: FBT001 - torch's signature
    ) -> None:
        ends = [
            torch.as_tensor(end, dtype=loc.dtype, device=loc.device)
            for end in (low, high)
        ]
        if (
            has_values(ends[0])
            and has_values(ends[1])
            and not (ends[0] < ends[1]).all()
        ):
            raise OptionError(
                "there is nothing between the bounds",
                expected="low < high",
                got=f"low={low!r}, high={high!r}",
            )
        self.low, self.high = ends
        self.middle = (ends[0] + ends[1]) / 2
        self.half = (ends[1] - ends[0]) / 2
        super().__init__(
            D.Normal(loc, scale, validate_args=validate_args),
            [D.TanhTransform(), D.AffineTransform(self.middle, self.half)],
            validate_args=validate_args,
        )

    @property
    def loc(self) -> torch.Tensor:
        """The location before tanh."""
        base: Any = self.base_dist
        return base.loc

    @property
    def scale(self) -> torch.Tensor:
        """The scale before tanh."""
        base: Any = self.base_dist
        return base.scale

    @property
    def support(self) -> Any:
        """The closed interval: rounding reaches its ends."""
        return constraints.interval(self.low, self.high)

    def expand(
        self, batch_shape: Sequence[int], _instance: object = None
    ) -> TanhNormal:
        """Return the distribution with a larger batch."""
        del _instance
        loc, scale = [x.expand(batch_shape) for x in (self.loc, self.scale)]
        return TanhNormal(loc, scale, self.low, self.high, validate_args=False)

    def draw_and_log_prob(
        self, key: torch.Tensor, sample_shape: torch.Size = _NO_SHAPE
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return draws and their log-probability, from the numbers before tanh."""
        return transformed_jointly(self, key, sample_shape)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """Return the log-density; at the bounds that of the nearest number inside."""
        most = 1 - torch.finfo(self.loc.dtype).eps
        y = ((value - self.middle) / self.half).clamp(-most, most)
        x = torch.atanh(y)
        change = 2 * (math.log(2) - x - torch.nn.functional.softplus(-2 * x))
        return self.base_dist.log_prob(x) - change - self.half.log()

    @property
    def median(self) -> torch.Tensor:
        """The value with as much above as below."""
        return self.middle + self.half * torch.tanh(self.loc)

    @property
    def deterministic_sample(self) -> torch.Tensor:
        """The location, squashed: the median."""
        return self.median


class MaskedCategorical(D.Categorical):
    """A categorical distribution over the choices that a mask allows.

    Choices that are not allowed have probability 0, are never drawn, and get gradient
    0; the others share the mass as their logits say.

    Args:
        logits: unnormalised log-probabilities [*batch, choices].
        probs: unnormalised probabilities [*batch, choices], instead of `logits`.
        mask: bool, which choices are allowed; broadcasts with them.
        validate_args: as of torch's distributions.

    Raises:
        OptionError: not one of `logits` and `probs` is given, the mask is not of bools,
            or a row of it allows nothing, where values can be read.

    Examples:
        >>> import torch
        >>> from tdfunc.nn import MaskedCategorical
        >>> mask = torch.tensor([True, False, True])
        >>> MaskedCategorical(torch.zeros(3), mask=mask).probs
        tensor([0.5000, 0.0000, 0.5000])
    """

    def __init__(
        self,
        logits: torch.Tensor | None = None,
        *,
        probs: torch.Tensor | None = None,
        mask: torch.Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self.mask = mask
        masked = _masked_logits(logits, probs, mask)
        super().__init__(logits=masked, validate_args=validate_args)

    def expand(
        self, batch_shape: Sequence[int], _instance: object = None
    ) -> MaskedCategorical:
        """Return the distribution with a larger batch."""
        del _instance
        logits = self.logits.expand(*batch_shape, self.logits.shape[-1])
        return MaskedCategorical(logits, mask=self.mask, validate_args=False)


class OneHotCategorical(D.OneHotCategorical):
    """A categorical distribution whose values are one-hot, with a gradient.

    A draw is exactly one-hot, in the dtype of the logits; its gradient is that of the
    relaxed draw of temperature 1 from the same noise (straight through).

    Args:
        logits: unnormalised log-probabilities [*batch, choices].
        probs: unnormalised probabilities [*batch, choices], instead of `logits`.
        mask: bool, which choices are allowed; None for all.
        validate_args: as of torch's distributions.

    Raises:
        OptionError: not one of `logits` and `probs` is given, the mask is not of bools,
            or a row of it allows nothing, where values can be read.

    Examples:
        >>> import torch
        >>> from tdfunc.nn import OneHotCategorical
        >>> OneHotCategorical(torch.tensor([0.0, 2.0, 1.0])).mode
        tensor([0., 1., 0.])

    References:
        E. Jang, S. Gu, B. Poole, "Categorical Reparameterization with Gumbel-Softmax",
        2016, https://arxiv.org/abs/1611.01144, section 2.2.
    """

    has_rsample = True

    def __init__(
        self,
        logits: torch.Tensor | None = None,
        *,
        probs: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        logits = _masked_logits(logits, probs, mask)
        super().__init__(logits=logits, validate_args=validate_args)

    def expand(
        self, batch_shape: Sequence[int], _instance: object = None
    ) -> OneHotCategorical:
        """Return the distribution with a larger batch."""
        del _instance
        logits = self.logits.expand(*batch_shape, self.logits.shape[-1])
        return OneHotCategorical(logits, validate_args=False)

    def draw(
        self, key: torch.Tensor, sample_shape: torch.Size = _NO_SHAPE
    ) -> torch.Tensor:
        """Return one-hot draws."""
        logits = self.logits
        noise = random.gumbel(
            key, sample_shape + logits.shape, logits.dtype, device=logits.device
        )
        noisy = logits + noise
        choices = torch.arange(logits.shape[-1], device=logits.device)
        index = noisy.argmax(-1, keepdim=True)
        soft = torch.softmax(noisy, -1)
        # The difference first: it is exactly 0, so that the values stay one-hot.
        return (index == choices).to(logits.dtype) + (soft - soft.detach())


def _masked_logits(
    logits: torch.Tensor | None, probs: torch.Tensor | None, mask: Any
) -> torch.Tensor:
    if (logits is None) == (probs is None):
        raise OptionError(
            "a categorical distribution has logits or probabilities",
            expected="one of logits and probs",
            got="none" if logits is None else "both",
        )
    if logits is None:
        logits = torch.log(torch.as_tensor(probs))
    if mask is None:
        return logits
    if getattr(mask, "dtype", None) is not torch.bool:
        raise OptionError(
            "the mask does not say which choices are allowed",
            expected="a tensor of bools",
            got=getattr(mask, "dtype", type(mask).__name__),
        )
    if has_values(mask) and not mask.any(-1).all():
        raise OptionError(
            "the mask allows no choice",
            expected="a True in every row",
            got=f"{int((~mask.any(-1)).sum())} rows without one",
        )
    return logits.masked_fill(~mask, -math.inf)
