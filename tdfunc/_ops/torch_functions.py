"""What torch's own functions do with trees: ``torch.stack([td, td])``."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.node import Node
from tdfunc._ops import convert, create, join, pointwise, reduce, shape
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
    torch.all: reduce.all,
    torch.any: reduce.any,
    torch.clone: convert.clone,
    torch.detach: convert.detach,
    torch.zeros_like: create.zeros_like,
    torch.ones_like: create.ones_like,
    torch.empty_like: create.empty_like,
    torch.full_like: create.full_like,
    torch.rand_like: create.rand_like,
    torch.randn_like: create.randn_like,
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

# Python's operators: what Dynamo asks for, and the names of the methods of Tensor.
_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
}

# Torch's names of arguments that are the first ones here, in order.
_POSITIONAL = ("tensors", "input", "other", "shape", "dims", "dim0", "dim1")
_TAKEN = frozenset({"dim", "keepdim", "dtype", "device", "generator", "fill_value"})


def _either(
    forward: Callable[..., Any], reflected: Callable[..., Any]
) -> Callable[..., Any]:
    def call(input: Any, other: Any) -> Any:
        if isinstance(input, _T):
            return reflected(other, input)
        return forward(input, other)

    return call


def _mirrored(call: Callable[..., Any]) -> Callable[..., Any]:
    def mirrored(input: Any, other: Any) -> Any:
        return call(other, input)

    return mirrored


# Operators by the name of the method of Tensor. Dynamo finds some of these methods,
# which torch wraps in Python, in no dict.
_METHODS: dict[str, Callable[..., Any]] = {}


def _add_binary() -> None:
    for name, pair in _BINARY.items():
        call = _either(*pair)
        _FUNCTIONS[getattr(torch, name)] = call
        _FUNCTIONS[getattr(_T, name)] = call
    for name, torch_name in _OPERATORS.items():
        call = _either(*_BINARY[torch_name])
        _FUNCTIONS[getattr(operator, name)] = call
        _METHODS[f"__{name}__"] = call
        augmented = getattr(operator, f"i{name}", None)
        if augmented is not None:
            # `td += x` binds a new tree: trees define no augmented operator.
            _FUNCTIONS[augmented] = call
            _METHODS[f"__r{name}__"] = _mirrored(call)
    _METHODS["__rdiv__"] = _METHODS["__rtruediv__"]
    _METHODS["pow"] = _METHODS["__pow__"]


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
    own = _FUNCTIONS.get(func) or _METHODS.get(getattr(func, "__name__", ""))
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
