"""What torch's losses do with trees: ``torch.nn.functional.mse_loss(td, target)``.

The target is an operand by the rule of `tdfunc._ops.pointwise`. ``reduction="none"``
gives a tree of the losses of all elements; ``"mean"`` and ``"sum"`` reduce each leaf to
a scalar, as ``td.mean()`` and ``td.sum()`` do.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from tdfunc._ops import pointwise, reduce, unary
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from tdfunc._core.node import Node

__all__ = ["l1_loss", "mse_loss", "smooth_l1_loss"]


def l1_loss(td: Node, target: Any, *, reduction: str = "mean") -> Any:
    """Return ``|td - target|``, reduced.

    Raises:
        OptionError: `reduction` is none that torch has.
    """
    return _reduced(pointwise.abs(pointwise.sub(td, target)), reduction)


def mse_loss(td: Node, target: Any, *, reduction: str = "mean") -> Any:
    """Return ``(td - target) ** 2``, reduced.

    Raises:
        OptionError: `reduction` is none that torch has.
    """
    return _reduced(unary.square(pointwise.sub(td, target)), reduction)


def smooth_l1_loss(
    td: Node, target: Any, *, reduction: str = "mean", beta: float = 1.0
) -> Any:
    """Return the l1 loss, made quadratic where it is below `beta`, reduced.

    Raises:
        OptionError: `reduction` is none that torch has.
    """
    each = partial(_smooth_l1, beta=beta)
    return _reduced(pointwise.binary(td, target, each), reduction)


def _smooth_l1(x: torch.Tensor, y: Any, *, beta: float) -> torch.Tensor:
    # torch warns where the shapes differ, which is what was asked for here.
    y = torch.as_tensor(y, dtype=x.dtype, device=x.device)
    x, y = torch.broadcast_tensors(x, y)
    return F.smooth_l1_loss(x, y, reduction="none", beta=beta)


def _reduced(td: Node, reduction: str) -> Any:
    if reduction == "none":
        return td
    if reduction == "mean":
        return reduce.mean(td)
    if reduction == "sum":
        return reduce.sum(td)
    raise OptionError(
        "this is no reduction", expected="'none', 'mean' or 'sum'", got=repr(reduction)
    )
