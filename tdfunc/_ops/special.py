"""Further functions of two operands: numbers, their logarithms, special functions.

Operands and errors are those of `tdfunc._ops.logic`. A number meets every element at
the dtype that torch promotes both to; the functions themselves take tensors only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.node import Node
from tdfunc._core.tree import pointwise
from tdfunc._ops.logic import of_tensors
from tdfunc._ops.pointwise import Numbers, as_operand, binary
from tdfunc.errors import OperandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc._core.node import NodeT

__all__ = [
    "copysign",
    "float_power",
    "fmax",
    "fmin",
    "gcd",
    "heaviside",
    "hypot",
    "igamma",
    "igammac",
    "isin",
    "lcm",
    "ldexp",
    "logaddexp",
    "logaddexp2",
    "mvlgamma",
    "nextafter",
    "polygamma",
    "xlogy",
]


def reflected(name: str) -> Callable[[Any, Any], Any]:
    """Return ``fn(other, td)`` of the function of that name, as a function of both.

    It is what torch's function is asked for with a tensor or a number in front.
    """
    fn: Callable[..., torch.Tensor] = getattr(torch, name)

    def call(td: NodeT, other: Any) -> NodeT:
        return binary(td, other, partial(of_tensors, lambda x, y: fn(y, x)))

    return call


def copysign(td: NodeT, other: Any) -> NodeT:
    """Return the size of the element with the sign of `other`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, -2.0])}, 2).copysign(-1)["x"].tolist()
        [-1.0, -2.0]
    """
    return binary(td, other, partial(of_tensors, torch.copysign))


def fmax(td: NodeT, other: Any) -> NodeT:
    """Return the greater of both elements; NaN only if both are.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, float("nan")])}, 2)
        >>> td.fmax(2)["x"].tolist()
        [2.0, 2.0]
    """
    return binary(td, other, partial(of_tensors, torch.fmax))


def fmin(td: NodeT, other: Any) -> NodeT:
    """Return the lesser of both elements; NaN only if both are.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, float("nan")])}, 2)
        >>> td.fmin(2)["x"].tolist()
        [1.0, 2.0]
    """
    return binary(td, other, partial(of_tensors, torch.fmin))


def float_power(td: NodeT, other: Any) -> NodeT:
    """Return ``td ** other``, computed in double precision.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([2, 3])}, 2).float_power(2)["x"]
        tensor([4., 9.], dtype=torch.float64)
    """
    return binary(td, other, partial(of_tensors, torch.float_power))


def gcd(td: NodeT, other: Any) -> NodeT:
    """Return the greatest common divisor of both integers.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([12, 18])}, 2).gcd(8)["x"].tolist()
        [4, 2]
    """
    return binary(td, other, partial(of_tensors, torch.gcd))


def heaviside(td: NodeT, other: Any) -> NodeT:
    """Return 0 below 0, 1 above, and `other` where the element is 0.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([-2.0, 0.0, 3.0])}, 3)
        >>> td.heaviside(0.5)["x"].tolist()
        [0.0, 0.5, 1.0]
    """
    return binary(td, other, partial(of_tensors, torch.heaviside))


def hypot(td: NodeT, other: Any) -> NodeT:
    """Return ``sqrt(td ** 2 + other ** 2)`` without overflow on the way.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([3.0, 5.0])}, 2)
        >>> td.hypot(torch.tensor([4.0, 12.0]))["x"].tolist()
        [5.0, 13.0]
    """
    return binary(td, other, partial(of_tensors, torch.hypot))


def igamma(td: NodeT, other: Any) -> NodeT:
    """Return the regularized lower incomplete gamma function, of `td` up to `other`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0])}, 1).igamma(0)["x"].tolist()
        [0.0]
    """
    return binary(td, other, partial(of_tensors, torch.igamma))


def igammac(td: NodeT, other: Any) -> NodeT:
    """Return the regularized upper incomplete gamma function: ``1 - igamma``.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0])}, 1).igammac(0)["x"].tolist()
        [1.0]
    """
    return binary(td, other, partial(of_tensors, torch.igammac))


def lcm(td: NodeT, other: Any) -> NodeT:
    """Return the least common multiple of both integers.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([4, 6])}, 2).lcm(6)["x"].tolist()
        [12, 6]
    """
    return binary(td, other, partial(of_tensors, torch.lcm))


def ldexp(td: NodeT, other: Any) -> NodeT:
    """Return ``td * 2 ** other``.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, 3.0])}, 2).ldexp(2)["x"].tolist()
        [4.0, 12.0]
    """
    return binary(td, other, partial(of_tensors, torch.ldexp))


def logaddexp(td: NodeT, other: Any) -> NodeT:
    """Return ``log(exp(td) + exp(other))`` without overflow on the way.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1000.0])}, 1).logaddexp(-1000)["x"].tolist()
        [1000.0]
    """
    return binary(td, other, partial(of_tensors, torch.logaddexp))


def logaddexp2(td: NodeT, other: Any) -> NodeT:
    """Return ``log2(2 ** td + 2 ** other)`` without overflow on the way.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1000.0])}, 1).logaddexp2(1000)["x"].tolist()
        [1001.0]
    """
    return binary(td, other, partial(of_tensors, torch.logaddexp2))


def nextafter(td: NodeT, other: Any) -> NodeT:
    """Return the next number of that dtype after the element, towards `other`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([0.0, 1.0])}, 2).nextafter(1)["x"] > 0
        tensor([True, True])
    """
    return binary(td, other, partial(of_tensors, torch.nextafter))


def xlogy(td: NodeT, other: Any) -> NodeT:
    """Return ``td * log(other)``, which is 0 where `td` is 0.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([0.0, 2.0])}, 2).xlogy(1)["x"].tolist()
        [0.0, 0.0]
    """
    return binary(td, other, partial(of_tensors, torch.xlogy))


def isin(
    td: NodeT, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> NodeT:
    """Return a tree of booleans: whether each element is one of some values.

    Args:
        td: the tree.
        test_elements: the values, the same for every leaf: a number or a tensor of any
            shape, whose dims do not align with anything.
        assume_unique: neither a leaf nor the values hold an element twice.
        invert: whether it is none of them.

    Raises:
        OperandError: `test_elements` is a tree or no tensor.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1, 2, 3])}, 3)
        >>> td.isin(torch.tensor([3, 1]))["x"].tolist()
        [True, False, True]
    """
    if not isinstance(td, Node) or isinstance(test_elements, Node):
        raise OperandError(
            "the values to look for are the same for every leaf",
            expected="a tree, and a tensor or a number",
            got=f"{type(td).__name__} and {type(test_elements).__name__}",
            fix="td.apply(torch.isin, values) looks for each leaf in its own tensor",
        )
    values = test_elements
    if not isinstance(values, Numbers):
        values = as_operand(values)
    fn = partial(torch.isin, assume_unique=assume_unique, invert=invert)
    return pointwise(td, fn, None, values)


def polygamma(td: NodeT, n: int) -> NodeT:
    """Return the derivative of `digamma` of the order `n`, of every element.

    torch's function takes the order first: ``torch.polygamma(n, td)``.

    Args:
        td: the tree.
        n: the order, not negative; 0 is `digamma` itself.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0])}, 1).polygamma(1)["x"]
        tensor([1.6449])
    """
    return pointwise(td, partial(torch.polygamma, n), None)


def mvlgamma(td: NodeT, p: int) -> NodeT:
    """Return the logarithm of the multivariate gamma function of every element.

    Args:
        td: the tree.
        p: the number of dims, above 0; of 1 it is `lgamma`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([2.0])}, 1).mvlgamma(2)["x"]
        tensor([0.4516])
    """
    return pointwise(td, torch.mvlgamma, None, p)
