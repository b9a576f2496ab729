"""What torch's own functions do with trees: ``torch.stack([td, td])``."""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import is_higher_order
from tdfunc._core.node import Node
from tdfunc._core.tree import pointwise as pointwise_of
from tdfunc._ops import (
    autograd,
    convert,
    create,
    facts,
    join,
    logic,
    losses,
    order,
    pieces,
    pointwise,
    reduce,
    shape,
    special,
    unary,
)
from tdfunc.errors import OperandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["torch_function"]

_T = torch.Tensor


def _extreme(
    reduced: Callable[..., Any], paired: Callable[..., Any]
) -> Callable[..., Any]:
    """Return torch.max or torch.min: of dims, or of two operands."""

    def call(input: Any, dim: Any = None, *args: Any, **options: Any) -> Any:
        if isinstance(input, _T):
            return paired(dim, input)
        if isinstance(dim, (Node, _T)):
            return paired(input, dim)
        return reduced(input, dim, *args, **options)

    return call


def _spread(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.var or torch.std, which know `correction` by an older name too."""

    def call(
        input: Any, dim: Any = None, unbiased: Any = None, *args: Any, **options: Any
    ) -> Any:
        if unbiased is not None:
            options["correction"] = int(unbiased)
        return own(input, dim, *args, **options)

    return call


def _norm(input: Any, p: Any = "fro", *args: Any, **options: Any) -> Any:
    return reduce.norm(input, 2 if p == "fro" else p, *args, **options)


def _vector_norm(input: Any, ord: Any = 2, *args: Any, **options: Any) -> Any:
    return reduce.norm(input, ord, *args, **options)


def _polygamma(n: int, td: Any) -> Any:
    return special.polygamma(td, n)


def _activation(fn: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def call(td: Any, *args: Any, **options: Any) -> Any:
        return pointwise_of(td, partial(fn, **options) if options else fn, None, *args)

    return call


def _pad(td: Any, pad: Sequence[int], *_: Any, value: float = 0, **__: Any) -> Any:
    """Refuse: the first pair of torch's is for the last dim.

    Raises:
        OperandError: always.
    """
    pairs = list(zip(pad[::2], pad[1::2], strict=False))
    missing = max(len(td.batch_size) - len(pairs), 0)
    own = [0, 0] * missing + [n for pair in reversed(pairs) for n in pair]
    given = f", value={value}" if value else ""
    raise OperandError(
        "torch's 'pad' counts its pairs from the last dim, which of a tree would be "
        "the last batch dim to some and a feature dim to others",
        fix=f"td.pad({own}{given}), whose pairs begin with the first batch dim; "
        "td.apply pads features",
    )


# Functions of every element that networks use; trees have no methods for them. Those
# that draw numbers are left out, and hardsigmoid and hardswish, for which Dynamo does
# not ask the tree.
_F = torch.nn.functional
_ACTIVATIONS: tuple[Callable[..., torch.Tensor], ...] = (
    *(
        _F.celu,
        _F.elu,
        _F.gelu,
        _F.hardshrink,
    ),
    *(_F.hardtanh, _F.leaky_relu, _F.logsigmoid, _F.mish, _F.relu6, _F.selu, _F.silu),
    *(_F.softshrink, _F.softsign, _F.tanhshrink, torch.celu, torch.selu),
)


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
    torch.flatten: shape.flatten,
    torch.unflatten: shape.unflatten,
    torch.movedim: shape.movedim,
    torch.moveaxis: shape.moveaxis,
    torch.swapaxes: shape.swapaxes,
    torch.swapdims: shape.swapdims,
    torch.broadcast_to: shape.broadcast_to,
    torch.narrow: shape.narrow,
    torch.atleast_1d: shape.atleast_1d,
    torch.atleast_2d: shape.atleast_2d,
    torch.atleast_3d: shape.atleast_3d,
    torch.split: pieces.split,
    torch.chunk: pieces.chunk,
    torch.tensor_split: pieces.tensor_split,
    torch.tile: pieces.tile,
    torch.repeat_interleave: pieces.repeat_interleave,
    torch.roll: pieces.roll,
    torch.flip: pieces.flip,
    torch.fliplr: pieces.fliplr,
    torch.flipud: pieces.flipud,
    torch.rot90: pieces.rot90,
    torch.gather: pieces.gather,
    torch.index_select: pieces.index_select,
    torch.take: pieces.take,
    torch.masked_select: pieces.masked_select,
    torch.masked_fill: pieces.masked_fill,
    torch.where: pieces.where,
    torch.sum: reduce.sum,
    torch.mean: reduce.mean,
    torch.all: reduce.all,
    torch.any: reduce.any,
    torch.max: _extreme(reduce.max, logic.maximum),
    torch.min: _extreme(reduce.min, logic.minimum),
    torch.var: _spread(reduce.var),
    torch.std: _spread(reduce.std),
    torch.var_mean: _spread(reduce.var_mean),
    torch.std_mean: _spread(reduce.std_mean),
    torch.norm: _norm,
    torch.linalg.vector_norm: _vector_norm,
    **{
        getattr(torch, name): getattr(reduce, name)
        for name in (
            *("amax", "amin", "argmax", "argmin", "logsumexp", "median"),
            *("count_nonzero", "nanmean", "nanmedian", "nansum", "prod", "quantile"),
            *("aminmax", "kthvalue", "mode", "nanquantile"),
        )
    },
    **{getattr(torch, name): getattr(order, name) for name in order.__all__},
    torch.nn.functional.softmax: order.softmax,
    torch.nn.functional.log_softmax: order.log_softmax,
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
    torch.clamp: logic.clamp,
    torch.clip: logic.clamp,
    torch.clamp_min: logic.clamp_min,
    torch.clamp_max: logic.clamp_max,
    torch.lerp: logic.lerp,
    torch.addcmul: logic.addcmul,
    torch.addcdiv: logic.addcdiv,
    torch.rsub: pointwise.rsub,
    torch.nn.functional.relu: unary.relu,
    torch.nn.functional.softplus: unary.softplus,
    torch.special.expit: unary.sigmoid,
    torch.isin: special.isin,
    torch.mvlgamma: special.mvlgamma,
    torch.special.multigammaln: special.mvlgamma,
    torch.polygamma: _polygamma,
    torch.special.polygamma: _polygamma,
    torch.special.softmax: order.softmax,
    torch.special.log_softmax: order.log_softmax,
    torch.special.logsumexp: reduce.logsumexp,
    torch.special.psi: unary.digamma,
    torch.special.gammaln: unary.lgamma,
    **{
        getattr(torch.special, name): getattr(unary, name)
        for name in (
            *("digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "i0", "log1p"),
            *("logit", "round", "sinc"),
        )
    },
    **{fn: _activation(fn) for fn in _ACTIVATIONS},
    torch.nn.functional.pad: _pad,
    torch.nn.functional.l1_loss: losses.l1_loss,
    torch.nn.functional.mse_loss: losses.mse_loss,
    torch.nn.functional.smooth_l1_loss: losses.smooth_l1_loss,
    torch.autograd.grad: autograd.grad,
    torch.equal: pointwise.equal,
    torch.is_floating_point: facts.is_floating_point,
    **{
        getattr(torch, name): getattr(unary, name)
        for name in unary.__all__
        if name != "softplus"  # which torch has among the functions of networks
    },
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
    "logical_and": (logic.logical_and, logic.logical_and),
    "logical_or": (logic.logical_or, logic.logical_or),
    "logical_xor": (logic.logical_xor, logic.logical_xor),
    "bitwise_and": (logic.bitwise_and, logic.bitwise_and),
    "bitwise_or": (logic.bitwise_or, logic.bitwise_or),
    "bitwise_xor": (logic.bitwise_xor, logic.bitwise_xor),
    "bitwise_left_shift": (logic.bitwise_left_shift, logic.rlshift),
    "bitwise_right_shift": (logic.bitwise_right_shift, logic.rrshift),
    "maximum": (logic.maximum, logic.maximum),
    "minimum": (logic.minimum, logic.minimum),
    "fmod": (logic.fmod, logic.rfmod),
    "atan2": (logic.atan2, logic.ratan2),
    **{
        name: (getattr(special, name), special.reflected(name))
        for name in special.__all__
        if name not in {"isin", "mvlgamma", "polygamma"}
    },
    "isclose": (logic.isclose, logic.risclose),
    "allclose": (logic.allclose, logic.rallclose),
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
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
}

# Torch's names of arguments that are the first ones here, in order.
_POSITIONAL = (
    *("tensors", "tensor", "condition", "input", "other", "shape", "size"),
    *("elements", "test_elements", "shifts", "dims", "dim0", "dim1", "axis0", "axis1"),
)
_TAKEN = frozenset(
    {
        *("device", "generator", "fill_value"),
        *("dim", "keepdim", "dtype", "start_dim", "end_dim", "sizes", "source"),
        *("destination", "start", "length", "split_size_or_sections", "chunks"),
        *("indices_or_sections", "repeats", "output_size", "k", "index", "mask"),
        *("alpha", "value", "end", "weight", "tensor1", "tensor2", "min", "max"),
        *("p", "ord", "q", "interpolation", "correction", "unbiased"),
        *("largest", "sorted", "descending", "stable"),
        *("rtol", "atol", "equal_nan"),
        *("reduction", "grad_outputs", "retain_graph", "create_graph"),
        *("only_inputs", "allow_unused", "is_grads_batched", "materialize_grads"),
        *("assume_unique", "invert", "approximate", "negative_slope", "lambd"),
        *("min_val", "max_val", "pad", "mode"),
        *("decimals", "eps", "nan", "posinf", "neginf", "beta", "threshold"),
    }
)
# What torch's functions written in Python pass on when nobody asked for it.
_UNASKED: dict[str, Any] = {"inplace": False, "_stacklevel": 3}

# Other names that torch has for the same functions.
_ALIASES = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "divide": "div",
    "fix": "trunc",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "subtract": "sub",
}


def _either(
    forward: Callable[..., Any], reflected: Callable[..., Any]
) -> Callable[..., Any]:
    def call(input: Any, other: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(input, Node):  # a tensor, or a number: torch.pow(2, td)
            return reflected(other, input, *args, **options)
        return forward(input, other, *args, **options)

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
        _FUNCTIONS[getattr(operator, f"__{name}__")] = call
        _METHODS[f"__{name}__"] = call
        augmented = getattr(operator, f"__i{name}__", None)
        if augmented is not None:
            # `td += x` binds a new tree: trees define no augmented operator.
            _FUNCTIONS[augmented] = call
            _METHODS[f"__r{name}__"] = _mirrored(call)
    _FUNCTIONS[torch.special.gammainc] = _FUNCTIONS[torch.igamma]
    _FUNCTIONS[torch.special.gammaincc] = _FUNCTIONS[torch.igammac]
    _FUNCTIONS[torch.special.xlogy] = _FUNCTIONS[torch.xlogy]
    _METHODS["__rdiv__"] = _METHODS["__rtruediv__"]
    _METHODS["pow"] = _METHODS["__pow__"]
    for alias, name in _ALIASES.items():
        _FUNCTIONS[getattr(torch, alias)] = _FUNCTIONS[getattr(torch, name)]


_add_binary()


def _per_leaf(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> str:
    """Return the words for the call that gives a function one leaf after the other."""
    name = torch.overrides.resolve_name(func) or str(func)
    alone = len(args) == 1 and isinstance(args[0], Node) and not kwargs
    called = name if alone else f"lambda leaf: {name}(leaf, ...)"
    return f"td.apply({called}) acts on every leaf"


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
                fix="pass the leaves of torch.utils._pytree.tree_flatten(td), and "
                "unflatten them inside"
                if is_higher_order(func)
                else _per_leaf(func, args, kwargs),
            )
        return NotImplemented
    given = list(args)
    named = dict(kwargs or {})
    given += [named.pop(name) for name in _POSITIONAL if name in named]
    if "axis" in named:
        named["dim"] = named.pop("axis")
    named = {k: v for k, v in named.items() if v is not None}
    named = {k: v for k, v in named.items() if k not in _UNASKED or v != _UNASKED[k]}
    unknown = named.keys() - _TAKEN
    if unknown:
        raise OperandError(
            f"torch's {func.__name__!r} of trees does not take all options",
            expected=f"at most {', '.join(sorted(_TAKEN))}",
            got=", ".join(sorted(unknown)),
        )
    return own(*given, **named)
