"""Every private name of torch that tdfunc uses, each with what to do without it.

`is_tracing` is whether Dynamo reads the code instead of Python running it;
`is_compiling` is wider: also when Python runs under `torch.export` with symbolic sizes.
The narrow one costs half as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch.compiler import is_compiling
from torch.compiler import is_dynamo_compiling as is_tracing

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "PLAIN_TYPES",
    "foreach_abs",
    "foreach_add",
    "foreach_div",
    "foreach_mul",
    "foreach_neg",
    "foreach_pow",
    "foreach_sub",
    "foreach_works",
    "inside_functorch",
    "is_compiling",
    "is_tracing",
    "pytree",
    "register_trace_constant",
]

_functorch: Any = getattr(torch._C, "_functorch", None)
_current_level: Any = getattr(_functorch, "maybe_current_level", None)
_function_modes: Any = getattr(torch._C, "_len_torch_function_stack", None)
_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)

# Multi-tensor kernels; a loop takes their place where they are missing.
foreach_abs: Any = getattr(torch, "_foreach_abs", None)
foreach_add: Any = getattr(torch, "_foreach_add", None)
foreach_div: Any = getattr(torch, "_foreach_div", None)
foreach_mul: Any = getattr(torch, "_foreach_mul", None)
foreach_neg: Any = getattr(torch, "_foreach_neg", None)
foreach_pow: Any = getattr(torch, "_foreach_pow", None)
foreach_sub: Any = getattr(torch, "_foreach_sub", None)

# What torch._foreach_* surely handles: subclasses may redefine the operation.
PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def inside_functorch() -> bool:
    """Return whether a transform of torch.func runs, False while compiling.

    Dynamo turns the level into an int that it can not trace further, so it must
    not be asked there.
    """
    if is_tracing():
        return False
    return _current_level is None or _current_level() is not None


def foreach_works(leaves: Sequence[object]) -> bool:
    """Return whether ``torch._foreach_*`` gives what a loop over `leaves` gives.

    It has no batching rule, refuses empty lists, and is seen by modes as another
    function than the one that the user wrote.
    """
    return bool(
        leaves
        and not is_tracing()
        and _current_level is not None
        and _current_level() is None
        and _function_modes is not None
        and not _function_modes()
        and _dispatch_modes is not None
        and not _dispatch_modes()
        and PLAIN_TYPES.issuperset(map(type, leaves))
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
