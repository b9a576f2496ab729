"""Logic, bits, closeness and bounds: functions of a tree and one or two operands.

An operand is a number, a tensor or a tree, by the rule of `tdfunc._ops.pointwise`: a
number meets every element, the dims of a tensor align with the batch dims, and a tree
pairs by path. Dtype promotion is torch's.

Raises, for all of them:
    OperandError: an operand is of another kind, or does not broadcast.
    StructureError: an operand is a tree with other entries.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import (
    foreach_addcdiv,
    foreach_addcmul,
    foreach_clamp_max,
    foreach_clamp_min,
    foreach_lerp,
    foreach_maximum,
    foreach_minimum,
)
from tdfunc._core.tree import pointwise
from tdfunc._ops import reduce
from tdfunc._ops.pointwise import Numbers, binary, comparison, ternary
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc._core.node import Node, NodeT

__all__ = [
    "addcdiv",
    "addcmul",
    "allclose",
    "atan2",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "clamp",
    "clamp_max",
    "clamp_min",
    "fmod",
    "isclose",
    "lerp",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
]


def _as_tensor(value: Any, like: torch.Tensor) -> Any:
    """Return a number as the 0-d tensor that promotes with `like` as it would."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.full((), value, dtype=_dtype_with(value, like), device=like.device)


def _dtype_with(value: Any, like: torch.Tensor) -> torch.dtype:
    """Return the dtype of `like` and a number, which Dynamo can not ask torch for."""
    dtype = like.dtype
    if isinstance(value, complex):
        real = dtype if like.is_floating_point() else torch.get_default_dtype()
        return dtype if like.is_complex() else real.to_complex()
    if like.is_floating_point() or like.is_complex():
        return dtype
    if isinstance(value, (float, torch.SymFloat)):
        return torch.get_default_dtype()
    if dtype == torch.bool and not isinstance(value, (bool, torch.SymBool)):
        return torch.int64
    return dtype


def of_tensors(
    fn: Callable[..., torch.Tensor], x: torch.Tensor, *others: Any
) -> torch.Tensor:
    """Return ``fn(x, *others)`` for a function that takes no numbers."""
    return fn(x, *[_as_tensor(other, x) for other in others])


def logical_and(td: NodeT, other: Any) -> NodeT:
    """Return a tree of booleans: whether both elements are true.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([0, 1, 2])}, 3)
        >>> td.logical_and(td < 2)["x"].tolist()
        [False, True, False]
    """
    return binary(td, other, partial(of_tensors, torch.logical_and))


def logical_or(td: NodeT, other: Any) -> NodeT:
    """Return a tree of booleans: whether at least one of both elements is true.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([0, 1, 2])}, 3)
        >>> td.logical_or(td == 0)["x"].tolist()
        [True, True, True]
    """
    return binary(td, other, partial(of_tensors, torch.logical_or))


def logical_xor(td: NodeT, other: Any) -> NodeT:
    """Return a tree of booleans: whether exactly one of both elements is true.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([0, 1, 2])}, 3)
        >>> td.logical_xor(1)["x"].tolist()
        [True, False, False]
    """
    return binary(td, other, partial(of_tensors, torch.logical_xor))


def bitwise_and(td: NodeT, other: Any) -> NodeT:
    """Return ``td & other``: the bits that both integers have; of bools, logical and.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([5, 6])}, 2)
        >>> (td & 3)["x"].tolist(), ((td > 5) & (td < 9))["x"].tolist()
        ([1, 2], [False, True])
    """
    return binary(td, other, torch.bitwise_and)


def bitwise_or(td: NodeT, other: Any) -> NodeT:
    """Return ``td | other``: the bits that either integer has; of bools, logical or.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([5, 6])}, 2)
        >>> (td | 3)["x"].tolist(), ((td < 6) | (td > 8))["x"].tolist()
        ([7, 7], [True, False])
    """
    return binary(td, other, torch.bitwise_or)


def bitwise_xor(td: NodeT, other: Any) -> NodeT:
    """Return ``td ^ other``: the bits that one integer has; of bools, logical xor.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([5, 6])}, 2)
        >>> (td ^ 3)["x"].tolist()
        [6, 5]
    """
    return binary(td, other, torch.bitwise_xor)


def bitwise_left_shift(td: NodeT, other: Any) -> NodeT:
    """Return ``td << other``: the bits of integers moved up by `other` places.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([5, 6])}, 2)
        >>> (td << 1)["x"].tolist(), (1 << td)["x"].tolist()
        ([10, 12], [32, 64])
    """
    return binary(td, other, torch.bitwise_left_shift)


def bitwise_right_shift(td: NodeT, other: Any) -> NodeT:
    """Return ``td >> other``: the bits of integers moved down by `other` places.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([5, 6])}, 2)
        >>> (td >> 1)["x"].tolist(), (td >> torch.tensor([0, 2]))["x"].tolist()
        ([2, 3], [5, 1])
    """
    return binary(td, other, torch.bitwise_right_shift)


def rlshift(td: NodeT, other: Any) -> NodeT:
    """Return ``other << td``."""
    return binary(td, other, _swapped(torch.bitwise_left_shift))


def rrshift(td: NodeT, other: Any) -> NodeT:
    """Return ``other >> td``."""
    return binary(td, other, _swapped(torch.bitwise_right_shift))


def isclose(
    td: NodeT,
    other: Any,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> NodeT:
    """Return a tree of booleans: ``|td - other| <= atol + rtol * |other|``.

    Two elements must have one dtype, as in torch; a number has that of the element.
    One value per row of two trees is close if it is equal.

    Args:
        td: the tree.
        other: what to compare with.
        rtol: relative tolerance, of `other`.
        atol: absolute tolerance.
        equal_nan: NaN is close to NaN.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, 1.1])}, 2)
        >>> td.isclose(1.0)["x"].tolist(), td.isclose(1.0, atol=0.2)["x"].tolist()
        ([True, False], [True, True])
    """
    close = _closeness(rtol, atol, equal_nan=equal_nan)
    return comparison(td, other, close, exact=False)


def _closeness(
    rtol: float, atol: float, *, equal_nan: bool
) -> Callable[[Any, Any], torch.Tensor]:
    def close(x: Any, y: Any) -> torch.Tensor:
        # One of them may be a number, which both meet at the dtype of.
        if not isinstance(y, torch.Tensor):
            y = _as_tensor(y, x)
            x = x.to(y.dtype)
        return torch.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)

    return close


def allclose(
    td: Node,
    other: Any,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> torch.Tensor:
    """Return whether all elements are close: ``td.isclose(other, ...).all()``.

    Args:
        td: the tree.
        other: what to compare with.
        rtol: relative tolerance, of `other`.
        atol: absolute tolerance.
        equal_nan: NaN is close to NaN.

    Returns:
        One bool tensor of shape ``[]``, so that it can be traced (torch's is a bool).

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2)}, 2)
        >>> td.allclose(td + 1e-9)
        tensor(True)
    """
    return reduce.all(isclose(td, other, rtol, atol, equal_nan))


def maximum(td: NodeT, other: Any) -> NodeT:
    """Return the greater of both elements, NaN if one of them is.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, 3.0])}, 2).maximum(2)["x"].tolist()
        [2.0, 3.0]
    """
    return binary(
        td, other, partial(of_tensors, torch.maximum), _each(foreach_maximum, other)
    )


def minimum(td: NodeT, other: Any) -> NodeT:
    """Return the lesser of both elements, NaN if one of them is.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, 3.0])}, 2).minimum(2)["x"].tolist()
        [1.0, 2.0]
    """
    return binary(
        td, other, partial(of_tensors, torch.minimum), _each(foreach_minimum, other)
    )


def _each(kernel: Any, other: Any) -> Any:
    """Return the kernel unless `other` is a number.

    With one it is a clamp, which gives ties another gradient.
    """
    return None if isinstance(other, Numbers) else kernel


def fmod(td: NodeT, other: Any) -> NodeT:
    """Return the remainder of the division, with the sign of `td`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([-5.0, 5.0])}, 2)
        >>> td.fmod(3)["x"].tolist(), td.remainder(3)["x"].tolist()
        ([-2.0, 2.0], [1.0, 2.0])
    """
    return binary(td, other, torch.fmod)


def atan2(td: NodeT, other: Any) -> NodeT:
    """Return the angle of the point (`other`, `td`), in radians from -pi to pi.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([0.0, 1.0])}, 2).atan2(1)["x"]
        tensor([0.0000, 0.7854])
    """
    return binary(td, other, partial(of_tensors, torch.atan2))


def rfmod(td: NodeT, other: Any) -> NodeT:
    """Return ``fmod(other, td)``."""
    return binary(td, other, _swapped(torch.fmod))


def ratan2(td: NodeT, other: Any) -> NodeT:
    """Return ``atan2(other, td)``."""
    return binary(td, other, _swapped(torch.atan2))


def risclose(
    td: NodeT,
    other: Any,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> NodeT:
    """Return ``isclose(other, td)``, whose relative tolerance is of `td`."""
    close = _swapped(_closeness(rtol, atol, equal_nan=equal_nan))
    return comparison(td, other, close, exact=False)


def rallclose(
    td: Node,
    other: Any,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> torch.Tensor:
    """Return ``allclose(other, td)``."""
    return reduce.all(risclose(td, other, rtol, atol, equal_nan))


def _swapped(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: fn(y, x)


def clamp_min(td: NodeT, min: Any) -> NodeT:
    """Return every element, or the bound where the element is below it.

    Args:
        td: the tree.
        min: the least value: a number, a tensor or a tree.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, 3.0])}, 2).clamp_min(2)["x"].tolist()
        [2.0, 3.0]
    """
    return binary(td, min, torch.clamp_min, foreach_clamp_min)


def clamp_max(td: NodeT, max: Any) -> NodeT:
    """Return every element, or the bound where the element is above it.

    Args:
        td: the tree.
        max: the greatest value: a number, a tensor or a tree.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, 3.0])}, 2).clamp_max(2)["x"].tolist()
        [1.0, 2.0]
    """
    return binary(td, max, torch.clamp_max, foreach_clamp_max)


def clamp(td: NodeT, min: Any = None, max: Any = None) -> NodeT:
    """Return every element, limited to the range from `min` to `max`.

    Where `min` is above `max` the result is `max`, as in torch.

    Args:
        td: the tree.
        min: the least value: a number, a tensor or a tree; None for no limit.
        max: the greatest value, likewise, and of another kind if you like.

    Raises:
        OptionError: both bounds are None.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([-3.0, 0.5, 3.0])}, 3)
        >>> td.clamp(-1, torch.tensor([1.0, 1.0, 2.0]))["x"].tolist()
        [-1.0, 0.5, 2.0]
    """
    if min is None and max is None:
        raise OptionError(
            "there is nothing to clamp to",
            expected="min, max, or both",
            got="None twice",
            fix="td.clamp(min=0)",
        )
    if isinstance(min, Numbers) and isinstance(max, Numbers):
        return pointwise(td, torch.clamp, None, min, max)
    if min is not None:
        td = clamp_min(td, min)
    return td if max is None else clamp_max(td, max)


def lerp(td: NodeT, end: Any, weight: Any) -> NodeT:
    """Return ``td + weight * (end - td)``, linear interpolation.

    Args:
        td: the tree of starts.
        end: the ends, of the dtypes of `td`.
        weight: 0 for the start, 1 for the end: a number, or of the dtypes of `td`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([0.0, 10.0])}, 2)
        >>> td.lerp(td + 4, 0.5)["x"].tolist(), td.lerp(td + 4, td / 10)["x"].tolist()
        ([2.0, 12.0], [0.0, 14.0])
    """
    return ternary(td, end, weight, _lerp, foreach_lerp)


def _lerp(x: torch.Tensor, end: Any, weight: Any) -> torch.Tensor:
    return torch.lerp(x, _as_tensor(end, x), weight)


def addcmul(td: NodeT, tensor1: Any, tensor2: Any, *, value: float = 1) -> NodeT:
    """Return ``td + value * tensor1 * tensor2``.

    Args:
        td: the tree.
        tensor1: the first factor.
        tensor2: the second factor.
        value: a number that scales the product.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, 2.0])}, 2)
        >>> td.addcmul(td, torch.tensor([10.0, 100.0]), value=2)["x"].tolist()
        [21.0, 402.0]
    """
    fn = partial(of_tensors, partial(torch.addcmul, value=value))
    return ternary(td, tensor1, tensor2, fn, _scaled(foreach_addcmul, value))


def addcdiv(td: NodeT, tensor1: Any, tensor2: Any, *, value: float = 1) -> NodeT:
    """Return ``td + value * tensor1 / tensor2``.

    Args:
        td: the tree.
        tensor1: the numerator.
        tensor2: the denominator.
        value: a number that scales the quotient.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, 2.0])}, 2)
        >>> td.addcdiv(td, td, value=2)["x"].tolist()
        [3.0, 4.0]
    """
    fn = partial(of_tensors, partial(torch.addcdiv, value=value))
    return ternary(td, tensor1, tensor2, fn, _scaled(foreach_addcdiv, value))


def _scaled(kernel: Any, value: float) -> Any:
    return None if kernel is None else partial(kernel, value=value)
