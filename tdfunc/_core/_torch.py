"""Every private name of torch that tdfunc uses, each with what to do without it.

`is_tracing` is whether Dynamo reads the code instead of Python running it;
`is_compiling` is wider: also when Python runs under `torch.export`. The narrow one
costs half as much.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.utils._pytree as pytree
from torch.compiler import is_compiling
from torch.compiler import is_dynamo_compiling as is_tracing
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "PLAIN_TYPES",
    "foreach_abs",
    "foreach_acos",
    "foreach_add",
    "foreach_addcdiv",
    "foreach_addcmul",
    "foreach_asin",
    "foreach_atan",
    "foreach_ceil",
    "foreach_clamp_max",
    "foreach_clamp_min",
    "foreach_cos",
    "foreach_cosh",
    "foreach_div",
    "foreach_erf",
    "foreach_erfc",
    "foreach_exp",
    "foreach_expm1",
    "foreach_floor",
    "foreach_frac",
    "foreach_lerp",
    "foreach_lgamma",
    "foreach_log",
    "foreach_log1p",
    "foreach_log2",
    "foreach_log10",
    "foreach_maximum",
    "foreach_minimum",
    "foreach_mul",
    "foreach_neg",
    "foreach_norm",
    "foreach_pow",
    "foreach_reciprocal",
    "foreach_round",
    "foreach_rsqrt",
    "foreach_sigmoid",
    "foreach_sign",
    "foreach_sin",
    "foreach_sinh",
    "foreach_sqrt",
    "foreach_sub",
    "foreach_tan",
    "foreach_tanh",
    "foreach_trunc",
    "foreach_works",
    "gamma_grad",
    "inside_transform",
    "is_compiling",
    "is_tracing",
    "parametrize_caches",
    "pytree",
    "register_trace_constant",
    "traced_inline",
]

_TargetT = TypeVar("_TargetT")

_functorch: Any = getattr(torch._C, "_functorch", None)
_stack_depth: Any = getattr(_functorch, "get_dynamic_layer_stack_depth", None)
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_function_modes: Any = getattr(torch._C, "_len_torch_function_stack", None)
_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)

# Multi-tensor kernels; a loop takes their place where they are missing.
foreach_abs: Any = getattr(torch, "_foreach_abs", None)
foreach_acos: Any = getattr(torch, "_foreach_acos", None)
foreach_add: Any = getattr(torch, "_foreach_add", None)
foreach_addcdiv: Any = getattr(torch, "_foreach_addcdiv", None)
foreach_addcmul: Any = getattr(torch, "_foreach_addcmul", None)
foreach_asin: Any = getattr(torch, "_foreach_asin", None)
foreach_atan: Any = getattr(torch, "_foreach_atan", None)
foreach_ceil: Any = getattr(torch, "_foreach_ceil", None)
foreach_clamp_max: Any = getattr(torch, "_foreach_clamp_max", None)
foreach_clamp_min: Any = getattr(torch, "_foreach_clamp_min", None)
foreach_cos: Any = getattr(torch, "_foreach_cos", None)
foreach_cosh: Any = getattr(torch, "_foreach_cosh", None)
foreach_div: Any = getattr(torch, "_foreach_div", None)
foreach_erf: Any = getattr(torch, "_foreach_erf", None)
foreach_erfc: Any = getattr(torch, "_foreach_erfc", None)
foreach_exp: Any = getattr(torch, "_foreach_exp", None)
foreach_expm1: Any = getattr(torch, "_foreach_expm1", None)
foreach_floor: Any = getattr(torch, "_foreach_floor", None)
foreach_frac: Any = getattr(torch, "_foreach_frac", None)
foreach_lerp: Any = getattr(torch, "_foreach_lerp", None)
foreach_lgamma: Any = getattr(torch, "_foreach_lgamma", None)
foreach_log: Any = getattr(torch, "_foreach_log", None)
foreach_log10: Any = getattr(torch, "_foreach_log10", None)
foreach_log1p: Any = getattr(torch, "_foreach_log1p", None)
foreach_log2: Any = getattr(torch, "_foreach_log2", None)
foreach_maximum: Any = getattr(torch, "_foreach_maximum", None)
foreach_minimum: Any = getattr(torch, "_foreach_minimum", None)
foreach_mul: Any = getattr(torch, "_foreach_mul", None)
foreach_neg: Any = getattr(torch, "_foreach_neg", None)
foreach_norm: Any = getattr(torch, "_foreach_norm", None)
foreach_pow: Any = getattr(torch, "_foreach_pow", None)
foreach_reciprocal: Any = getattr(torch, "_foreach_reciprocal", None)
foreach_round: Any = getattr(torch, "_foreach_round", None)
foreach_rsqrt: Any = getattr(torch, "_foreach_rsqrt", None)
foreach_sigmoid: Any = getattr(torch, "_foreach_sigmoid", None)
foreach_sign: Any = getattr(torch, "_foreach_sign", None)
foreach_sin: Any = getattr(torch, "_foreach_sin", None)
foreach_sinh: Any = getattr(torch, "_foreach_sinh", None)
foreach_sqrt: Any = getattr(torch, "_foreach_sqrt", None)
foreach_sub: Any = getattr(torch, "_foreach_sub", None)
foreach_tan: Any = getattr(torch, "_foreach_tan", None)
foreach_tanh: Any = getattr(torch, "_foreach_tanh", None)
foreach_trunc: Any = getattr(torch, "_foreach_trunc", None)

# How a gamma variate moves with its concentration, by implicit differentiation.
gamma_grad: Any = getattr(torch, "_standard_gamma_grad", None)

# What torch._foreach_* surely handles: subclasses may redefine the operation.
PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def inside_transform() -> bool:
    """Return whether a transform of torch.func runs, in compiled code too.

    Dynamo can ask how many there are, but not on which level.
    """
    return _stack_depth is None or _stack_depth() > 0


def foreach_works(
    leaves: Sequence[object], others: Sequence[object] | None = None
) -> bool:
    """Return whether ``torch._foreach_*`` gives what a loop over `leaves` gives.

    It has no batching rule, refuses empty lists, and is seen by modes as another
    function than the one that the user wrote. `others` are the second operands.
    """
    return bool(
        leaves
        and not is_tracing()
        and not inside_transform()
        and _function_modes is not None
        and not _function_modes()
        and _dispatch_modes is not None
        and not _dispatch_modes()
        and PLAIN_TYPES.issuperset(map(type, leaves))
        and (others is None or PLAIN_TYPES.issuperset(map(type, others)))
    )


def register_trace_constant(cls: type, methods: Sequence[str]) -> None:
    """Let Dynamo treat instances of `cls` as constants, guarded by equality.

    `methods` then run for real at trace time, on constant arguments. Without the
    registration Dynamo traces into them, which is slower but right.
    """
    try:
        from torch._library.opaque_object import MemberType, register_opaque_type
    except ImportError:
        return
    members = dict.fromkeys(methods, MemberType.USE_REAL)
    register_opaque_type(cls, typ="value", members=members)


def traced_inline(target: _TargetT) -> _TargetT:
    """Let Dynamo trace `target` within its caller only, never as a frame of its own.

    What it can not trace to the end it runs in Python, and then it compiles the
    frames that are called from there one by one. Where these share dicts that are the
    attributes of objects too, which Dynamo does not see, results would be wrong.
    """
    if not hasattr(_frames, "set_code_exec_strategy"):
        return target
    skip, default = _frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT
    functions = vars(target).values() if isinstance(target, type) else (target,)
    codes = [f.__code__ for f in functions if isinstance(f, FunctionType)]
    while codes:
        code = codes.pop()
        strategy = _frames._FrameExecStrategy(skip, default)
        _frames.set_code_exec_strategy(code, strategy)
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
    return target


def parametrize_caches() -> bool:
    """Return whether a block of `torch.nn.utils.parametrize.cached` is open."""
    return bool(getattr(parametrize, "_cache_enabled", 0))
