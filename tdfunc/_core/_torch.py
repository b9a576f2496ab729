"""Every private name of torch that tdfunc uses, each with what to do without it.

`is_tracing` is whether Dynamo reads the code instead of Python running it;
`is_compiling` is wider: also when Python runs under `torch.export`. The narrow one
costs half as much.
"""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops import associative_scan as traced_associative_scan
from torch._higher_order_ops import scan as traced_scan
from torch._higher_order_ops import while_loop as traced_while_loop
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.compiler import is_dynamo_compiling as is_tracing
from torch.nn.utils import parametrize

try:
    from torch._functorch import pyfunctorch
except ImportError:
    pyfunctorch = None

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = [
    "PLAIN_TYPES",
    "GradLevel",
    "VmapLevel",
    "add_batch_dim",
    "as_one_vector",
    "at_level",
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
    "foreach_clone",
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
    "foreach_zero",
    "forget_loaded_specs",
    "fused_adam",
    "fused_adamw",
    "gamma_grad",
    "has_global_module_hooks",
    "has_tangent",
    "inside_transform",
    "is_batched_at",
    "is_compiling",
    "is_followed",
    "is_higher_order",
    "is_mapped",
    "is_returned_mapped",
    "is_tracing",
    "is_variable",
    "is_wrapped",
    "load_decompositions",
    "mapped_dim",
    "mark_differentiable",
    "parametrize_caches",
    "pytree",
    "register_trace_constant",
    "remove_batch_dim",
    "seen_at",
    "shared_storage",
    "traced_associative_scan",
    "traced_inline",
    "traced_scan",
    "traced_while_loop",
    "transform_level",
    "transforms_apart",
    "unwrap_for_grad",
    "vector_as",
    "without_compiled_autograd",
    "wrap_for_grad",
    "wraps",
]

_TargetT = TypeVar("_TargetT")

_functorch: Any = getattr(torch._C, "_functorch", None)
_stack_depth: Any = getattr(_functorch, "get_dynamic_layer_stack_depth", None)
_current_level: Any = getattr(_functorch, "maybe_current_level", None)
_without_last: Any = getattr(pyfunctorch, "temporarily_pop_interpreter_stack", None)
_is_mapped: Any = getattr(_functorch, "is_batchedtensor", None)
_mapped_dim: Any = getattr(_functorch, "maybe_get_bdim", None)
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_function_modes: Any = getattr(torch._C, "_len_torch_function_stack", None)
_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)
_global_hooks: Any = getattr(torch.nn.modules.module, "_has_any_global_hook", None)

# The levels of torch.func's transforms; without them its public functions do.
add_batch_dim: Any = getattr(_functorch, "_add_batch_dim", None)
remove_batch_dim: Any = getattr(_functorch, "_remove_batch_dim", None)
_enter_vmap: Any = getattr(_functorch, "_vmap_increment_nesting", None)
_leave_vmap: Any = getattr(_functorch, "_vmap_decrement_nesting", None)
_enter_grad: Any = getattr(_functorch, "_grad_increment_nesting", None)
_leave_grad: Any = getattr(_functorch, "_grad_decrement_nesting", None)
wrap_for_grad: Any = getattr(_functorch, "_wrap_for_grad", None)
unwrap_for_grad: Any = getattr(_functorch, "_unwrap_for_grad", None)
_is_batched: Any = getattr(_functorch, "is_batchedtensor", None)
_level_of: Any = getattr(_functorch, "maybe_get_level", None)
_grad_in_place: Any = getattr(_functorch, "set_inplace_requires_grad_allowed", None)
_grad_in_place_allowed: Any = getattr(
    _functorch, "get_inplace_requires_grad_allowed", None
)
_interpreters: Any = getattr(_functorch, "get_interpreter_stack", None)
_is_wrapped: Any = getattr(_functorch, "is_functorch_wrapped_tensor", None)
_inner: Any = getattr(_functorch, "get_unwrapped", None)
_current_level: Any = getattr(_functorch, "maybe_current_level", None)
_VMAP: Any = getattr(getattr(_functorch, "TransformType", None), "Vmap", None)
_autograd: Any = getattr(torch._C, "_autograd", None)
_refuse_hooks: Any = getattr(_autograd, "_saved_tensors_hooks_disable", None)
_allow_hooks: Any = getattr(_autograd, "_saved_tensors_hooks_enable", None)
_hooks_refused: Any = getattr(
    _autograd, "_saved_tensors_hooks_get_disabled_error_message", None
)
_HigherOrder: Any = getattr(getattr(torch, "_ops", None), "HigherOrderOperator", None)
_set_grad: Any = getattr(torch._C, "_set_grad_enabled", None)
_LEVELS = (
    *(add_batch_dim, remove_batch_dim, _enter_vmap, _leave_vmap, _is_batched),
    *(_enter_grad, _leave_grad, wrap_for_grad, unwrap_for_grad, _grad_in_place),
    *(_grad_in_place_allowed, _interpreters, _is_wrapped, _inner, _VMAP, _level_of),
    *(_refuse_hooks, _allow_hooks, _hooks_refused, _set_grad, _current_level),
)
_HOOKS = (
    "torch.func.{grad, vjp, jacrev, hessian} don't yet support saved tensor hooks. "
    "Please open an issue with your use case."
)
# What torch.compile leaves on a function says nothing of a function made from it.
_COMPILED_MARKS = (
    *("_torchdynamo_inline", "_torchdynamo_orig_callable", "_torchdynamo_wrapper_id"),
    *("_isolate_recompiles_id", "get_compiler_config", "aot_compile"),
    "_is_torch_compile",
)

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
foreach_clone: Any = getattr(torch, "_foreach_clone", None)
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

# These three write: only into tensors that were made for them.
foreach_zero: Any = getattr(torch, "_foreach_zero_", None)
fused_adam: Any = getattr(torch, "_fused_adam_", None)
fused_adamw: Any = getattr(torch, "_fused_adamw_", None)

# The elements of tensors as one vector, and views of a vector in shapes of tensors.
_nn: Any = getattr(torch._C, "_nn", None)
as_one_vector: Any = getattr(_nn, "flatten_dense_tensors", None)
vector_as: Any = getattr(_nn, "unflatten_dense_tensors", None)
# How a gamma variate moves with its concentration, by implicit differentiation.
gamma_grad: Any = getattr(torch, "_standard_gamma_grad", None)

# What draws random numbers under a private name: some take a generator, some do not.
sample_functions: tuple[Any, ...] = tuple(
    getattr(torch, name)
    for name in ("_standard_gamma", "_sample_dirichlet")
    if hasattr(torch, name)
)
dropout_functions: tuple[Any, ...] = tuple(
    getattr(torch, name) for name in ("_fused_dropout",) if hasattr(torch, name)
)

# What torch._foreach_* surely handles: subclasses may redefine the operation.
PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def transform_level() -> int:
    """Return on which level of transforms of torch.func this runs, 0 outside of them.

    In compiled code it is 0, where Dynamo can not ask.
    """
    if _current_level is None or is_tracing():
        return 0
    return _current_level() or 0


@contextmanager
def at_level(level: int) -> Generator[None]:
    """Run as if no more transforms of torch.func than `level` were active.

    What a transform that differentiates sees made, it takes for its own.
    """
    with ExitStack() as stack:
        while _without_last is not None and transform_level() > level:
            stack.enter_context(_without_last())
        yield


def mapped_dim(tensor: torch.Tensor) -> int:
    """Return the dim of a tensor that the innermost `vmap` maps, -1 if there is none.

    Right after entering: the first operation may put it elsewhere.
    """
    if _is_mapped is None or _mapped_dim is None or not _is_mapped(tensor):
        return -1
    return _mapped_dim(tensor)


def inside_transform() -> bool:
    """Return whether a transform of torch.func runs, in compiled code too.

    Dynamo can ask how many there are, but not on which level.
    """
    return _stack_depth is None or _stack_depth() > 0


def has_escaped(tensor: object) -> bool:
    """Return whether a tensor is one of a transform that is over."""
    if is_tracing() or _level_of is None or not isinstance(tensor, torch.Tensor):
        return False
    return _level_of(tensor) > _stack_depth()


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


def is_readable(x: torch.Tensor) -> bool:
    """Return whether the values of a tensor can be read, at no cost.

    Neither a transform nor a tracer has it; a default device, or another mode that sees
    functions, is in nobody's way.
    """
    return (
        x.is_cpu
        and type(x) in PLAIN_TYPES
        and not is_tracing()
        and not inside_transform()
        and _dispatch_modes is not None
        and not _dispatch_modes()
    )


def transforms_apart() -> bool:
    """Return whether levels of transforms may be entered without torch's wrappers.

    Those also serve function modes, one of which records for `torch.export`.
    """
    return None not in _LEVELS and _function_modes is not None and not _function_modes()


class VmapLevel:
    """A level of `vmap`, as a context that gives its number."""

    __slots__ = ("_randomness", "_size")

    def __init__(self, size: int, randomness: str) -> None:
        self._size = size
        self._randomness = randomness

    def __enter__(self) -> int:
        return _enter_vmap(self._size, self._randomness)

    def __exit__(self, *error: object) -> None:
        _leave_vmap()


class GradLevel:
    """A level of `grad`, as a context that gives its number.

    With gradients on and hooks of saved tensors refused, as torch's own has it. A
    context made of generators takes three times as long.
    """

    __slots__ = ("_enabled", "_refused")

    def __enter__(self) -> int:
        self._refused = _hooks_refused()
        try:
            _refuse_hooks(_HOOKS)
        except BaseException:
            # There are hooks already; torch says so, and refuses new ones from now on.
            self._restore_hooks()
            raise
        self._enabled = torch.is_grad_enabled()
        level = _enter_grad()
        _set_grad(True)  # noqa: FBT003 - torch's signature
        return level

    def __exit__(self, *error: object) -> None:
        _set_grad(self._enabled)
        _leave_grad()
        self._restore_hooks()

    def _restore_hooks(self) -> None:
        if self._refused is None:
            _allow_hooks()
        else:
            _refuse_hooks(self._refused)


def without_compiled_autograd() -> Any:
    """Return a context in which the backward pass is not compiled by itself."""
    # The module is imported by whoever switches it on.
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    if module is None or not module.compiled_autograd_enabled:
        return nullcontext()
    return module._disable()


def wraps(func: Callable[..., Any]) -> Callable[[_TargetT], _TargetT]:
    """Return a decorator that gives a transformed function the name of `func`."""

    def named(target: _TargetT) -> _TargetT:
        functools.update_wrapper(cast("Any", target), func)
        for mark in _COMPILED_MARKS:
            vars(target).pop(mark, None)
        return target

    return named


def is_returned_mapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is mapped at the level of the `vmap` that runs.

    Dynamo can not ask for the level; there, at any level is enough, as for torch.
    """
    return _is_batched is None or (
        _is_batched(tensor) and (is_tracing() or _level_of(tensor) == _current_level())
    )


def is_batched_at(tensor: torch.Tensor, level: int) -> bool:
    """Return whether a tensor is mapped at this level of `vmap`."""
    return _is_batched(tensor) and _level_of(tensor) == level


def shared_storage(size: int) -> torch.UntypedStorage:
    """Return a storage in shared memory, with whatever is in it."""
    make = getattr(torch.UntypedStorage, "_new_shared", None)
    # The public way copies what was in private memory before.
    return make(size) if make else torch.UntypedStorage(size).share_memory_()


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor belongs to a transform of torch.func."""
    return _is_wrapped is not None and _is_wrapped(tensor)


def is_variable(tensor: torch.Tensor) -> bool:
    """Return whether a transform or autograd differentiates by a tensor, in reverse."""
    while not tensor.requires_grad:
        if not is_wrapped(tensor):
            return False
        tensor = _inner(tensor)
    return True


def has_tangent(tensor: torch.Tensor, level: int) -> bool:
    """Return whether `jvp` differentiates by a tensor of this level of transforms."""
    if forward_ad._current_level < 0:
        return False
    with at_level(level):
        return forward_ad.unpack_dual(tensor).tangent is not None


def seen_at(tensor: torch.Tensor, level: int) -> torch.Tensor:
    """Return a tensor without what transforms inside those of `level` put around it."""
    while is_wrapped(tensor) and _level_of(tensor) > level:
        tensor = _inner(tensor)
    return tensor


def forget_loaded_specs() -> None:
    """Have torch read structures again that it keeps by their text.

    A class that is defined again takes over the name in it.
    """
    forget: Any = getattr(pytree.treespec_loads, "cache_clear", None)
    if forget is not None:
        forget()


def is_mapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is mapped at any level of `vmap`."""
    while _is_wrapped is not None and _is_wrapped(tensor):
        if _is_batched(tensor):
            return True
        tensor = _inner(tensor)
    return False


@functools.cache
def load_decompositions() -> None:
    """Load the rules of `vmap` that torch defines in Python, as its own vmap does."""
    from torch._functorch.vmap import lazy_load_decompositions

    lazy_load_decompositions()


def mark_differentiable(tensors: Sequence[torch.Tensor]) -> None:
    """Let tensors wrapped by `wrap_for_grad` take part in autograd at its level."""
    allowed = _grad_in_place_allowed()
    _grad_in_place(True)  # noqa: FBT003 - torch's signature
    try:
        for tensor in tensors:
            tensor.requires_grad_()
    finally:
        _grad_in_place(allowed)


def is_followed(tensor: torch.Tensor) -> bool:
    """Return whether anyone outside differentiates what a level of grad returns.

    Called on that level, with a result unwrapped from it.
    """
    for interpreter in _interpreters()[:-1]:
        if interpreter.key() != _VMAP:
            return True
    while _is_wrapped(tensor):
        if tensor.requires_grad:
            return True
        tensor = _inner(tensor)
    return tensor.requires_grad or forward_ad._current_level >= 0


def is_higher_order(func: object) -> bool:
    """Return whether a function of torch takes a function, and inputs for that."""
    return _HigherOrder is not None and isinstance(func, _HigherOrder)


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


def has_global_module_hooks() -> bool:
    """Return whether hooks are registered that run in the call of every module."""
    return _global_hooks is None or bool(_global_hooks())


def parametrize_caches() -> bool:
    """Return whether a block of `torch.nn.utils.parametrize.cached` is open."""
    return bool(getattr(parametrize, "_cache_enabled", 0))
