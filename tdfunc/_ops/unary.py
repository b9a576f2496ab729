"""Functions of one tree, element by element: torch's of the same name on every leaf.

Batch size, names, statics and shapes stay. Dtypes are those that torch gives: most
functions turn integers into floats. What torch refuses for the dtype of a leaf raises
torch's own error, with a note that names the leaf.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from tdfunc._core._torch import (
    foreach_acos,
    foreach_asin,
    foreach_atan,
    foreach_ceil,
    foreach_cos,
    foreach_cosh,
    foreach_erf,
    foreach_erfc,
    foreach_exp,
    foreach_expm1,
    foreach_floor,
    foreach_frac,
    foreach_lgamma,
    foreach_log,
    foreach_log1p,
    foreach_log2,
    foreach_log10,
    foreach_reciprocal,
    foreach_round,
    foreach_rsqrt,
    foreach_sigmoid,
    foreach_sign,
    foreach_sin,
    foreach_sinh,
    foreach_sqrt,
    foreach_tan,
    foreach_tanh,
    foreach_trunc,
)
from tdfunc._core.tree import pointwise

if TYPE_CHECKING:
    from tdfunc._core.node import NodeT

__all__ = [
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_not",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "i0",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_not",
    "logit",
    "nan_to_num",
    "positive",
    "rad2deg",
    "real",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "softplus",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]


def acos(td: NodeT) -> NodeT:
    """Return the arc cosine of every element, in radians.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).acos()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.acos, foreach_acos)


def acosh(td: NodeT) -> NodeT:
    """Return the inverse hyperbolic cosine of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).acosh()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.acosh, None)


def angle(td: NodeT) -> NodeT:
    """Return the angle of every element in the complex plane, in radians.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": -1.0}).angle()["x"]
        tensor(3.1416)
    """
    return pointwise(td, torch.angle, None)


def asin(td: NodeT) -> NodeT:
    """Return the arc sine of every element, in radians.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).asin()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.asin, foreach_asin)


def asinh(td: NodeT) -> NodeT:
    """Return the inverse hyperbolic sine of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).asinh()["x"]
        tensor(0.8814)
    """
    return pointwise(td, torch.asinh, None)


def atan(td: NodeT) -> NodeT:
    """Return the arc tangent of every element, in radians.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).atan()["x"]
        tensor(0.7854)
    """
    return pointwise(td, torch.atan, foreach_atan)


def atanh(td: NodeT) -> NodeT:
    """Return the inverse hyperbolic tangent of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.5}).atanh()["x"]
        tensor(0.5493)
    """
    return pointwise(td, torch.atanh, None)


def bitwise_not(td: NodeT) -> NodeT:
    """Return the bits of every integer inverted, and the logical not of every bool.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 5}).bitwise_not()["x"]
        tensor(-6)
    """
    return pointwise(td, torch.bitwise_not, None)


def ceil(td: NodeT) -> NodeT:
    """Return the least integer not below every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.2}).ceil()["x"]
        tensor(2.)
    """
    return pointwise(td, torch.ceil, foreach_ceil)


def conj(td: NodeT) -> NodeT:
    """Return the complex conjugate of every element, as a view.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1 + 2j}).conj()["x"]
        tensor(1.-2.j)
    """
    return pointwise(td, torch.conj, None)


def cos(td: NodeT) -> NodeT:
    """Return the cosine of every element, which is in radians.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).cos()["x"]
        tensor(1.)
    """
    return pointwise(td, torch.cos, foreach_cos)


def cosh(td: NodeT) -> NodeT:
    """Return the hyperbolic cosine of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).cosh()["x"]
        tensor(1.)
    """
    return pointwise(td, torch.cosh, foreach_cosh)


def deg2rad(td: NodeT) -> NodeT:
    """Return every element turned from degrees to radians.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 180.0}).deg2rad()["x"]
        tensor(3.1416)
    """
    return pointwise(td, torch.deg2rad, None)


def digamma(td: NodeT) -> NodeT:
    """Return the logarithmic derivative of the gamma function at every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).digamma()["x"]
        tensor(-0.5772)
    """
    return pointwise(td, torch.digamma, None)


def erf(td: NodeT) -> NodeT:
    """Return the error function of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).erf()["x"]
        tensor(0.8427)
    """
    return pointwise(td, torch.erf, foreach_erf)


def erfc(td: NodeT) -> NodeT:
    """Return one minus the error function of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).erfc()["x"]
        tensor(0.1573)
    """
    return pointwise(td, torch.erfc, foreach_erfc)


def erfinv(td: NodeT) -> NodeT:
    """Return the inverse of the error function at every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.5}).erfinv()["x"]
        tensor(0.4769)
    """
    return pointwise(td, torch.erfinv, None)


def exp(td: NodeT) -> NodeT:
    """Return e to the power of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).exp()["x"]
        tensor(2.7183)
    """
    return pointwise(td, torch.exp, foreach_exp)


def exp2(td: NodeT) -> NodeT:
    """Return 2 to the power of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 3.0}).exp2()["x"]
        tensor(8.)
    """
    return pointwise(td, torch.exp2, None)


def expm1(td: NodeT) -> NodeT:
    """Return ``exp(td) - 1``, exact near 0 too.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).expm1()["x"]
        tensor(1.7183)
    """
    return pointwise(td, torch.expm1, foreach_expm1)


def floor(td: NodeT) -> NodeT:
    """Return the greatest integer not above every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.8}).floor()["x"]
        tensor(1.)
    """
    return pointwise(td, torch.floor, foreach_floor)


def frac(td: NodeT) -> NodeT:
    """Return the part of every element behind the point, with its sign.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": -1.25}).frac()["x"]
        tensor(-0.2500)
    """
    return pointwise(td, torch.frac, foreach_frac)


def i0(td: NodeT) -> NodeT:
    """Return the modified Bessel function of order 0 at every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).i0()["x"]
        tensor(1.0000)
    """
    return pointwise(td, torch.i0, None)


def imag(td: NodeT) -> NodeT:
    """Return the imaginary parts of complex leaves, as views.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1 + 2j}).imag()["x"]
        tensor(2.)
    """
    return pointwise(td, torch.imag, None)


def isfinite(td: NodeT) -> NodeT:
    """Return whether every element is neither infinite nor NaN.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).isfinite()["x"]
        tensor(True)
    """
    return pointwise(td, torch.isfinite, None)


def isinf(td: NodeT) -> NodeT:
    """Return whether every element is infinite.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).isinf()["x"]
        tensor(False)
    """
    return pointwise(td, torch.isinf, None)


def isnan(td: NodeT) -> NodeT:
    """Return whether every element is NaN.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).isnan()["x"]
        tensor(False)
    """
    return pointwise(td, torch.isnan, None)


def isneginf(td: NodeT) -> NodeT:
    """Return whether every element is minus infinity.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).isneginf()["x"]
        tensor(False)
    """
    return pointwise(td, torch.isneginf, None)


def isposinf(td: NodeT) -> NodeT:
    """Return whether every element is plus infinity.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).isposinf()["x"]
        tensor(False)
    """
    return pointwise(td, torch.isposinf, None)


def isreal(td: NodeT) -> NodeT:
    """Return whether every element has no imaginary part.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).isreal()["x"]
        tensor(True)
    """
    return pointwise(td, torch.isreal, None)


def lgamma(td: NodeT) -> NodeT:
    """Return the logarithm of the gamma function at every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 4.0}).lgamma()["x"]
        tensor(1.7918)
    """
    return pointwise(td, torch.lgamma, foreach_lgamma)


def log(td: NodeT) -> NodeT:
    """Return the natural logarithm of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).log()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.log, foreach_log)


def log10(td: NodeT) -> NodeT:
    """Return the logarithm to base 10 of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 100.0}).log10()["x"]
        tensor(2.)
    """
    return pointwise(td, torch.log10, foreach_log10)


def log1p(td: NodeT) -> NodeT:
    """Return ``log(1 + td)``, exact near 0 too.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).log1p()["x"]
        tensor(0.6931)
    """
    return pointwise(td, torch.log1p, foreach_log1p)


def log2(td: NodeT) -> NodeT:
    """Return the logarithm to base 2 of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 8.0}).log2()["x"]
        tensor(3.)
    """
    return pointwise(td, torch.log2, foreach_log2)


def logical_not(td: NodeT) -> NodeT:
    """Return whether every element is 0 or False.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).logical_not()["x"]
        tensor(False)
    """
    return pointwise(td, torch.logical_not, None)


def logit(td: NodeT, eps: float | None = None) -> NodeT:
    """Return ``log(td / (1 - td))``, the inverse of `sigmoid`, of every element.

    Args:
        td: the tree.
        eps: clamp elements to ``[eps, 1 - eps]`` first, None to take them as they are.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.5}).logit()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.logit, None, eps)


def nan_to_num(
    td: NodeT,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> NodeT:
    """Return every element, with NaN and the infinities replaced by numbers.

    Args:
        td: the tree.
        nan: what replaces NaN, None for 0.
        posinf: what replaces infinity, None for the greatest number of the dtype.
        neginf: what replaces minus infinity, None for the least number of the dtype.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([float("nan"), float("inf")])})
        >>> td.nan_to_num(posinf=9.0)["x"]
        tensor([0., 9.])
    """
    return pointwise(td, torch.nan_to_num, None, nan, posinf, neginf)


def positive(td: NodeT) -> NodeT:
    """Return ``+td``: the tree itself, unless a leaf is bool, which torch refuses.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).positive()["x"]
        tensor(1.)
    """
    return pointwise(td, torch.positive, None)


def rad2deg(td: NodeT) -> NodeT:
    """Return every element turned from radians to degrees.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1.0}).rad2deg()["x"]
        tensor(57.2958)
    """
    return pointwise(td, torch.rad2deg, None)


def real(td: NodeT) -> NodeT:
    """Return the real parts of complex leaves, as views, and other leaves as they are.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 1 + 2j}).real()["x"]
        tensor(1.)
    """
    return pointwise(td, torch.real, None)


def reciprocal(td: NodeT) -> NodeT:
    """Return 1 divided by every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 4.0}).reciprocal()["x"]
        tensor(0.2500)
    """
    return pointwise(td, torch.reciprocal, foreach_reciprocal)


def relu(td: NodeT) -> NodeT:
    """Return every element, or 0 where it is negative.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": -1.0}).relu()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.relu, None)


def round(td: NodeT, decimals: int = 0) -> NodeT:
    """Return every element rounded to the nearest number, half to even.

    Args:
        td: the tree.
        decimals: how many digits behind the point stay; negative ones round in front.

    Examples:
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": 2.5})
        >>> td.round()["x"], (td / 3).round(decimals=1)["x"]
        (tensor(2.), tensor(0.8000))
    """
    if decimals == 0:
        return pointwise(td, torch.round, foreach_round)
    return pointwise(td, partial(torch.round, decimals=decimals), None)


def rsqrt(td: NodeT) -> NodeT:
    """Return 1 divided by the square root of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 4.0}).rsqrt()["x"]
        tensor(0.5000)
    """
    return pointwise(td, torch.rsqrt, foreach_rsqrt)


def sgn(td: NodeT) -> NodeT:
    """Return the sign of every element; of a complex one, its direction.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 3 + 4j}).sgn()["x"]
        tensor(0.6000+0.8000j)
    """
    return pointwise(td, torch.sgn, None)


def sigmoid(td: NodeT) -> NodeT:
    """Return the logistic function ``1 / (1 + exp(-td))`` of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).sigmoid()["x"]
        tensor(0.5000)
    """
    return pointwise(td, torch.sigmoid, foreach_sigmoid)


def sign(td: NodeT) -> NodeT:
    """Return -1, 0 or 1: the sign of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": -2.0}).sign()["x"]
        tensor(-1.)
    """
    return pointwise(td, torch.sign, foreach_sign)


def signbit(td: NodeT) -> NodeT:
    """Return whether the sign of every element is minus, that of -0.0 too.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": -2.0}).signbit()["x"]
        tensor(True)
    """
    return pointwise(td, torch.signbit, None)


def sin(td: NodeT) -> NodeT:
    """Return the sine of every element, which is in radians.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).sin()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.sin, foreach_sin)


def sinc(td: NodeT) -> NodeT:
    """Return ``sin(pi * td) / (pi * td)`` of every element, 1 at 0.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).sinc()["x"]
        tensor(1.)
    """
    return pointwise(td, torch.sinc, None)


def sinh(td: NodeT) -> NodeT:
    """Return the hyperbolic sine of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).sinh()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.sinh, foreach_sinh)


def softplus(td: NodeT, beta: float = 1.0, threshold: float = 20.0) -> NodeT:
    """Return ``log(1 + exp(beta * td)) / beta``, a smooth `relu`, of every element.

    Args:
        td: the tree.
        beta: how sharp the bend at 0 is.
        threshold: where ``beta * td`` is above it, the element is returned as it is.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).softplus()["x"]
        tensor(0.6931)
    """
    return pointwise(td, torch.nn.functional.softplus, None, beta, threshold)


def sqrt(td: NodeT) -> NodeT:
    """Return the square root of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 9.0}).sqrt()["x"]
        tensor(3.)
    """
    return pointwise(td, torch.sqrt, foreach_sqrt)


def square(td: NodeT) -> NodeT:
    """Return every element times itself.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 3.0}).square()["x"]
        tensor(9.)
    """
    return pointwise(td, torch.square, None)


def tan(td: NodeT) -> NodeT:
    """Return the tangent of every element, which is in radians.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).tan()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.tan, foreach_tan)


def tanh(td: NodeT) -> NodeT:
    """Return the hyperbolic tangent of every element.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": 0.0}).tanh()["x"]
        tensor(0.)
    """
    return pointwise(td, torch.tanh, foreach_tanh)


def trunc(td: NodeT) -> NodeT:
    """Return every element without the part behind the point.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": -1.8}).trunc()["x"]
        tensor(-1.)
    """
    return pointwise(td, torch.trunc, foreach_trunc)
