"""What torch's own functions do with trees: ``torch.stack([td, td])``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.node import Node
from tdfunc._ops import convert, join, pointwise, reduce, shape
from tdfunc.errors import OperandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["torch_function"]

_T = torch.Tensor

# Written as data so that adding one is adding a line. Reflected operators of
# tensors (`tensor - td`) arrive as methods of Tensor with the tensor first.
_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.stack: join.stack,
    torch.cat: join.cat,
    torch.concat: join.cat,
    torch.concatenate: join.cat,
    torch.reshape: shape.reshape,
    torch.unsqueeze: shape.unsqueeze,
    torch.squeeze: shape.squeeze,
    torch.permute: shape.permute,
    torch.transpose: shape.transpose,
    torch.unbind: shape.unbind,
    torch.sum: reduce.sum,
    torch.mean: reduce.mean,
    torch.clone: convert.clone,
    torch.detach: convert.detach,
    torch.abs: pointwise.abs,
    torch.neg: pointwise.neg,
}

_BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (pointwise.add, pointwise.radd),
    "sub": (pointwise.sub, pointwise.rsub),
    "mul": (pointwise.mul, pointwise.rmul),
    "div": (pointwise.div, pointwise.rtruediv),
    "true_divide": (pointwise.div, pointwise.rtruediv),
    "floor_divide": (pointwise.floor_divide, pointwise.rfloordiv),
    "remainder": (pointwise.remainder, pointwise.rmod),
    "pow": (pointwise.pow, pointwise.rpow),
    "eq": (pointwise.eq, pointwise.eq),
    "ne": (pointwise.ne, pointwise.ne),
    "lt": (pointwise.lt, pointwise.gt),
    "le": (pointwise.le, pointwise.ge),
    "gt": (pointwise.gt, pointwise.lt),
    "ge": (pointwise.ge, pointwise.le),
}

_OPERATORS = {
    "__add__": "add",
    "__sub__": "sub",
    "__mul__": "mul",
    "__truediv__": "div",
    "__floordiv__": "floor_divide",
    "__mod__": "remainder",
    "__pow__": "pow",
    "__eq__": "eq",
    "__ne__": "ne",
    "__lt__": "lt",
    "__le__": "le",
    "__gt__": "gt",
    "__ge__": "ge",
}


# Torch's names of arguments that are the first ones here, in order.
_POSITIONAL = ("tensors", "input", "other", "shape", "dims", "dim0", "dim1")
_TAKEN = frozenset({"dim", "keepdim", "dtype"})


def _either(
    forward: Callable[..., Any], reflected: Callable[..., Any]
) -> Callable[..., Any]:
    def call(input: Any, other: Any) -> Any:
        if isinstance(input, _T):
            return reflected(other, input)
        return forward(input, other)

    return call


def _add_binary() -> None:
    for name, pair in _BINARY.items():
        call = _either(*pair)
        _FUNCTIONS[getattr(torch, name)] = call
        _FUNCTIONS[getattr(_T, name)] = call
    for name, torch_name in _OPERATORS.items():
        _FUNCTIONS[getattr(_T, name)] = _either(*_BINARY[torch_name])


_add_binary()


def torch_function(
    func: Callable[..., Any],
    types: Sequence[type],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Answer a call of a torch function that was given a tree.

    Raises:
        OperandError: the function, or an argument of it, does not act on trees.
    """
    own = _FUNCTIONS.get(func)
    if own is None:
        if all([issubclass(kind, (Node, _T)) for kind in types]):
            name = getattr(func, "__name__", str(func))
            raise OperandError(
                f"torch's {name!r} does not act on trees",
                fix=f"td.apply(torch.{name}) acts on every leaf",
            )
        return NotImplemented
    given = list(args)
    named = dict(kwargs or {})
    given += [named.pop(name) for name in _POSITIONAL if name in named]
    if "axis" in named:
        named["dim"] = named.pop("axis")
    unknown = named.keys() - _TAKEN
    if unknown:
        raise OperandError(
            f"torch's {func.__name__!r} of trees does not take all options",
            expected=f"at most {', '.join(sorted(_TAKEN))}",
            got=", ".join(sorted(unknown)),
        )
    return own(*given, **named)
