"""Locations and scales of normal distributions from the output of a network."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from tdfunc._core.batch import as_size
from tdfunc.errors import OptionError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc.typing import Size

__all__ = ["AddStateIndependentNormalScale", "NormalParamExtractor"]


def _as_mapping(
    value: str | Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function, or that of a name.

    Raises:
        OptionError: there is none of this name, or it can not be called.
    """
    if not isinstance(value, str):
        if not callable(value):
            raise _no_mapping(value)
        return value
    found = _MAPPINGS.get(value)
    if found is not None:
        return found
    name = "biased_softplus"
    try:
        numbers = [float(word) for word in value[len(name) :].split("_")[1:]]
    except ValueError:
        numbers = []
    least = numbers[1] if len(numbers) > 1 else _LEAST
    valid = len(numbers) in (1, 2) and numbers[0] > least
    if not value.startswith(name) or not valid:
        raise _no_mapping(value)
    return _BiasedSoftplus(numbers[0], least)


def _no_mapping(value: Any) -> OptionError:
    return OptionError(
        "this is no mapping to scales",
        expected=f"one of {', '.join(map(repr, _MAPPINGS))}, "
        "'biased_softplus_{bias}', 'biased_softplus_{bias}_{least}' with "
        "bias > least, or a function",
        got=repr(value),
    )


_LEAST = 0.01


class _BiasedSoftplus:
    """Softplus, moved so that 0 gives the bias and nothing is below the least."""

    def __init__(self, bias: float, least: float = _LEAST) -> None:
        # The inverse of softplus, log(exp(y) - 1), where exp does not overflow.
        y = bias - least
        self.shift = y + math.log(-math.expm1(-y))
        self.least = least

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.softplus(x + self.shift) + self.least


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x


def _expln(x: torch.Tensor) -> torch.Tensor:
    """Return ``exp(x)`` below 0 and ``log1p(x) + 1`` above.

    T. Rückstieß, M. Felder, J. Schmidhuber, "State-Dependent Exploration for Policy
    Gradient Methods", 2008, equation 15.
    """
    # Each branch sees what it is for: the other's gradient would be NaN.
    below, above = x.clamp(max=0), x.clamp(min=0)
    return torch.where(x <= 0, below.exp(), above.log1p() + 1)


_MAPPINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softplus": F.softplus,
    "exp": torch.exp,
    "relu": torch.relu,
    "expln": _expln,
    "biased_softplus": _BiasedSoftplus(1.0),
    "none": _identity,
}


class NormalParamExtractor(torch.nn.Module):
    """Split the last dim of a tensor into a location and a scale.

    The first half is the location; the second half is mapped to positive numbers, and
    is at least `scale_lb`. Of an odd size the location has one element more. It has no
    parameters, and stands at the end of a `torch.nn.Sequential` as well.

    Args:
        scale_mapping: ``"softplus"``, ``"exp"``, ``"relu"``, ``"expln"``, ``"none"``,
            ``"biased_softplus_{bias}"`` (0 gives the bias; by default 1),
            ``"biased_softplus_{bias}_{least}"``, or a function of tensors.
        scale_lb: the least scale.

    Raises:
        OptionError: there is no mapping of this name.
        ShapeError: when called, the last dim has fewer than two elements.

    Examples:
        >>> import torch
        >>> from tdfunc.nn import NormalParamExtractor
        >>> loc, scale = NormalParamExtractor()(torch.zeros(3, 4))
        >>> loc.shape, scale[0]
        (torch.Size([3, 2]), tensor([1., 1.]))
    """

    def __init__(
        self,
        scale_mapping: str
        | Callable[[torch.Tensor], torch.Tensor] = "biased_softplus_1.0",
        scale_lb: float = 1e-4,
    ) -> None:
        super().__init__()
        self.scale_mapping = _as_mapping(scale_mapping)
        self.scale_lb = scale_lb

    def forward(self, x: torch.Tensor, *others: Any) -> tuple[Any, ...]:
        """Return ``(loc, scale, *others)`` of a tensor [..., 2 n]."""
        if not x.dim() or x.shape[-1] < 2:  # noqa: PLR2004
            raise ShapeError(
                "there is no location and scale in this tensor",
                expected="shape [..., 2 * n]",
                got=f"shape {list(x.shape)}",
            )
        loc, scale = x.chunk(2, -1)
        return (loc, self.scale_mapping(scale).clamp(min=self.scale_lb), *others)


class AddStateIndependentNormalScale(torch.nn.Module):
    """Add a learnt scale, the same for every input, to a location.

    Args:
        scale_shape: of the parameter ``state_independent_scale``, which the last dims
            of a location have; () for one scale.
        scale_mapping: from the parameter to positive numbers, as of
            `NormalParamExtractor`.
        scale_lb: the least scale.
        init_value: what the parameter is at first, and after `reset_parameters`.
        make_param: False for a buffer, which is not learnt.

    Raises:
        OptionError: there is no mapping of this name, or no such shape.
        ShapeError: when called, a location does not end with `scale_shape`.

    Examples:
        >>> import torch
        >>> from tdfunc.nn import AddStateIndependentNormalScale
        >>> loc, scale = AddStateIndependentNormalScale(2)(torch.zeros(3, 2))
        >>> scale[0].tolist()
        [1.0, 1.0]
    """

    state_independent_scale: torch.Tensor

    def __init__(
        self,
        scale_shape: Size = (),
        *,
        scale_mapping: str | Callable[[torch.Tensor], torch.Tensor] = "exp",
        scale_lb: float = 1e-4,
        init_value: float = 0.0,
        make_param: bool = True,
    ) -> None:
        super().__init__()
        self.scale_shape = as_size(scale_shape, "scale_shape")
        self.scale_mapping = _as_mapping(scale_mapping)
        self.scale_lb = scale_lb
        self.init_value = init_value
        start = torch.full(self.scale_shape, init_value)
        if make_param:
            self.state_independent_scale = torch.nn.Parameter(start)
        else:
            self.register_buffer("state_independent_scale", start)

    def reset_parameters(self) -> None:
        """Fill the parameter with its first value, as `torch.nn` modules do."""
        torch.nn.init.constant_(self.state_independent_scale, self.init_value)

    def forward(self, loc: torch.Tensor, *others: Any) -> tuple[Any, ...]:
        """Return ``(loc, scale, *others)`` of a location [..., *scale_shape]."""
        shape = self.scale_shape
        if loc.shape[max(loc.dim() - len(shape), 0) :] != shape:
            raise ShapeError(
                "the location does not end with the shape of the scale",
                expected=f"shape [..., {', '.join(map(str, shape))}]",
                got=f"shape {list(loc.shape)}",
                fix=f"scale_shape={list(loc.shape[-1:])}",
            )
        scale = self.state_independent_scale.expand_as(loc)
        return (loc, self.scale_mapping(scale).clamp(min=self.scale_lb), *others)
