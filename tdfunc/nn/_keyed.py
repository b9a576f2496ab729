"""Randomness of modules from a key: in their calls, and of their initial values.

Both work by a function mode: what torch code draws while it runs is drawn from the key
instead. The generator of torch is neither read nor changed: threads do not meet.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tdfunc._core._torch import (
    dropout_functions,
    inside_transform,
    is_tracing,
    sample_functions,
)
from tdfunc._core.schema import path_id
from tdfunc.errors import OperandError, OptionError
from tdfunc.random import bernoulli, fold_in, normal, uniform
from tdfunc.random._generators import twister
from tdfunc.random._keys import lone_key

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Keyed", "draws_numbers", "has_reset", "reset_copy", "stochastic_parts"]

# Of alpha dropout: minus the product of scale and alpha of SELU, as torch has it.
_ALPHA = -1.7580993408473766

_RANDOM_LAYERS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)


def stochastic_parts(module: nn.Module) -> tuple[tuple[str, nn.Module], ...]:
    """Return the layers of a module that may draw random numbers, with their names."""
    return tuple(
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, _RANDOM_LAYERS)
    )


def draws_numbers(part: nn.Module) -> bool:
    """Return whether a layer draws random numbers when it is called now."""
    if isinstance(part, (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)):
        return True
    if not part.training:
        return False
    if isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
        return part.dropout > 0
    return isinstance(part, nn.RReLU) or getattr(part, "p", 1.0) > 0


class Keyed(TorchFunctionMode):
    """Draw from a key what torch code draws inside the block.

    The i-th draw has the key ``fold_in(key, i)``.

    Raises:
        OptionError: the code draws something that can not come from a key.
    """

    def __init__(self, key: torch.Tensor) -> None:
        super().__init__()
        self.key = lone_key(key, "a module")
        self.drawn = 0

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        draw = _DRAWS.get(func)
        if draw is not None and not _has_generator(args, options):
            self.drawn += 1
            return draw(fold_in(self.key, self.drawn), *args, **options)
        if func in _DRAWING and not _has_generator(args, options):
            raise _refused(func.__name__)
        if func in _ATTENTION and _attention_dropout(func, args, options):
            raise _refused(f"{func.__name__} with dropout")
        return func(*args, **options)


_OTHER_WAYS = (
    "draw with tdfunc.random or tdfunc.nn.draw in a function (params, td, *, key) or a "
    "module of your own; or call net.eval() before"
)


def _refused(name: str, fix: str = _OTHER_WAYS) -> OptionError:
    return OptionError(f"torch's {name} can not draw from a key", fix=fix)


def _has_generator(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether a call brings a generator of its own."""
    given = (*args, *options.values())
    return any([isinstance(value, torch.Generator) for value in given])


def _dropped(key: torch.Tensor, x: torch.Tensor, p: float, shape: Any) -> torch.Tensor:
    return bernoulli(key, 1.0 - p, shape).to(x.device)


def _check_rate(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise OptionError(
            "this is no probability", expected="0 <= p <= 1", got=f"p={p}"
        )


def _channels(x: torch.Tensor, unbatched: int) -> tuple[int, ...]:
    """Return the shape of one value for every channel of every sample."""
    kept = 1 if x.dim() == unbatched else 2
    return (*x.shape[:kept], *(1,) * (x.dim() - kept))


def _per_element(x: torch.Tensor) -> torch.Size:
    return x.shape


def _per_channel(unbatched: int) -> Callable[[torch.Tensor], tuple[int, ...]]:
    return lambda x: _channels(x, unbatched)


def _dropout_of(
    dropped: Callable[[torch.Tensor, torch.Tensor, float, Any], torch.Tensor],
    shape_of: Callable[[torch.Tensor], Any],
    *,
    trains: bool,
) -> Callable[..., torch.Tensor]:
    """Return the keyed form of one of torch's functions of dropout.

    Args:
        dropped: what it makes of key, tensor, rate, and the shape of what is drawn.
        shape_of: the shape of what is drawn for a tensor.
        trains: whether it drops where nothing is said of training.
    """

    def dropout(
        key: torch.Tensor,
        input: torch.Tensor,
        p: float = 0.5,
        training: bool = trains,  # noqa: FBT001 - torch's signature
        inplace: bool = False,  # noqa: FBT001, FBT002
    ) -> torch.Tensor:
        _check_rate(p)
        if not training or p == 0.0:
            return input
        out = dropped(key, input, p, shape_of(input))
        return input.copy_(out) if inplace else out

    return dropout


def _scaled(key: torch.Tensor, x: torch.Tensor, p: float, shape: Any) -> torch.Tensor:
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return x * _dropped(key, x, p, shape).to(x.dtype) * scale


def _alpha(key: torch.Tensor, x: torch.Tensor, p: float, shape: Any) -> torch.Tensor:
    """Dropout that keeps mean 0 and variance 1: dropped values become `_ALPHA`."""
    if p == 1.0:
        return x * 0
    kept = _dropped(key, x, p, shape).to(x.dtype)
    scale = ((1 - p) * (1 + p * _ALPHA**2)) ** -0.5
    return (x * kept + _ALPHA * (1 - kept)) * scale - scale * _ALPHA * p


_dropout = _dropout_of(_scaled, _per_element, trains=True)


def _rrelu(
    key: torch.Tensor,
    input: torch.Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    inplace: bool = False,  # noqa: FBT001, FBT002
) -> torch.Tensor:
    slope: Any = (lower + upper) / 2
    if training:
        drawn = uniform(key, input.shape, torch.float32, lower, upper)
        slope = drawn.to(input.device, input.dtype)
    out = torch.where(input >= 0, input, input * slope)
    return input.copy_(out) if inplace else out


def _shaped(
    draw: Callable[..., torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """Return the keyed form of `torch.rand` or `torch.randn`."""

    def drawn(
        key: torch.Tensor,
        *sizes: Any,
        size: Any = None,
        dtype: torch.dtype | None = None,
        device: Any = None,
        requires_grad: bool = False,
        generator: None = None,  # noqa: ARG001 - torch's signature
        **others: Any,
    ) -> torch.Tensor:
        _check_storage(others)
        shape: Any = sizes if size is None else size
        if len(sizes) == 1 and not isinstance(sizes[0], int):
            shape = sizes[0]
        out = draw(key, tuple(shape), dtype or torch.get_default_dtype())
        out = out if device is None else out.to(device)
        return out.requires_grad_() if requires_grad else out

    return drawn


def _shaped_like(
    draw: Callable[..., torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """Return the keyed form of `torch.rand_like` or `torch.randn_like`."""

    def drawn(
        key: torch.Tensor,
        input: torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        device: Any = None,
        requires_grad: bool = False,
        generator: None = None,  # noqa: ARG001 - torch's signature
        **others: Any,
    ) -> torch.Tensor:
        _check_storage(others)
        out = draw(key, input.shape, dtype or input.dtype)
        out = out.to(input.device if device is None else device)
        return out.requires_grad_() if requires_grad else out

    return drawn


def _check_storage(options: dict[str, Any]) -> None:
    """Check that options of a call ask for nothing but an ordinary new tensor.

    Raises:
        OptionError: one asks for more.
    """
    for name, value in options.items():
        usual = _USUAL.get(name, ())
        if value is not None and value not in usual:
            raise OptionError(
                f"a draw from a key takes no {name}=",
                expected=", ".join(map(str, usual)) or "none",
                got=repr(value),
            )


_USUAL: dict[str, tuple[Any, ...]] = {
    "layout": (torch.strided,),
    "pin_memory": (False,),
    "memory_format": (torch.preserve_format, torch.contiguous_format),
}


def _bernoulli(
    key: torch.Tensor,
    input: torch.Tensor,
    p: float | None = None,
    *,
    generator: None = None,  # noqa: ARG001 - torch's signature
    **others: Any,
) -> torch.Tensor:
    _check_storage(others)
    rate = input if p is None else p
    return bernoulli(key, rate, input.shape).to(input.device, input.dtype)


_DRAWS: dict[Any, Callable[..., torch.Tensor]] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    F.dropout1d: _dropout_of(_scaled, _per_channel(2), trains=True),
    F.dropout2d: _dropout_of(_scaled, _per_channel(0), trains=True),
    F.dropout3d: _dropout_of(_scaled, _per_channel(4), trains=True),
    F.alpha_dropout: _dropout_of(_alpha, _per_element, trains=False),
    F.feature_alpha_dropout: _dropout_of(_alpha, _per_channel(0), trains=False),
    F.rrelu: _rrelu,
    torch.rand: _shaped(uniform),
    torch.randn: _shaped(normal),
    torch.rand_like: _shaped_like(uniform),
    torch.randn_like: _shaped_like(normal),
    torch.bernoulli: _bernoulli,
    torch.Tensor.bernoulli: _bernoulli,
}

_IN_PLACE = tuple(
    getattr(torch.Tensor, f"{name}_")
    for name in (
        *("uniform", "normal", "bernoulli", "exponential", "random"),
        *("geometric", "cauchy", "log_normal"),
    )
)

# All that draws random numbers. A function of Python that torch hands to the mode as a
# whole runs without it, so that what it calls is not seen: these are here too.
_TAKE_GENERATORS = frozenset(
    {
        *_IN_PLACE,
        *(torch.rand, torch.randn, torch.rand_like, torch.randn_like, torch.normal),
        *(torch.randint, torch.randint_like, torch.randperm),
        *(torch.bernoulli, torch.Tensor.bernoulli),
        *(torch.multinomial, torch.Tensor.multinomial, torch.poisson, torch.binomial),
        *(torch.rrelu, torch.rrelu_, *sample_functions),
        *(nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_),
    }
)

_TAKE_NONE = frozenset(
    {
        *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
        *(F.alpha_dropout, F.feature_alpha_dropout, F.rrelu, F.gumbel_softmax),
        *(F.fractional_max_pool2d, F.fractional_max_pool3d),
        *(F.fractional_max_pool2d_with_indices, F.fractional_max_pool3d_with_indices),
        *(torch.dropout, torch.dropout_, torch.native_dropout, *dropout_functions),
        *(torch.feature_dropout, torch.feature_dropout_),
        *(torch.alpha_dropout, torch.alpha_dropout_),
        *(torch.feature_alpha_dropout, torch.feature_alpha_dropout_),
    }
)

_DRAWING = _TAKE_GENERATORS | _TAKE_NONE

_ATTENTION = frozenset(
    {F.multi_head_attention_forward, F.scaled_dot_product_attention}
    | {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
)


def _attention_dropout(
    func: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> bool:
    """Return whether a call of an attention or recurrent function drops something."""
    if func is F.multi_head_attention_forward:
        rate = options.get("dropout_p", args[10] if len(args) > 10 else 0.0)  # noqa: PLR2004
        return rate > 0 and options.get("training", True)
    if func is F.scaled_dot_product_attention:
        return options.get("dropout_p", args[4] if len(args) > 4 else 0.0) > 0  # noqa: PLR2004
    # (input, hx, weights, bias, layers, dropout, train, ...), or packed with one more.
    numbers = [x for x in args if isinstance(x, float)]
    flags = [x for x in args if isinstance(x, bool)]
    return bool(numbers and numbers[0] > 0 and len(flags) > 1 and flags[1])


# Initial values


class _Seeded(TorchFunctionMode):
    """Give a generator to all that fills tensors with random numbers.

    Raises:
        OptionError: the code draws by a function that takes no generator.
    """

    def __init__(self, key: torch.Tensor) -> None:
        super().__init__()
        self.words: list[int] = key.tolist()
        self.generators: dict[torch.device, torch.Generator] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in _TAKE_NONE:
            raise _refused(func.__name__, "draw with torch.rand in reset_parameters")
        if func in _TAKE_GENERATORS and not _has_generator(args, options):
            first = next(
                (x for x in (*args, *options.values()) if isinstance(x, torch.Tensor)),
                None,
            )
            device = options.get("device")
            if device is None and first is not None:
                device = first.device
            options["generator"] = self._generator(torch.device(device or "cpu"))
        return func(*args, **options)

    def _generator(self, device: torch.device) -> torch.Generator:
        known = self.generators.get(device)
        if known is None:
            if device.type == "cpu":
                known = twister(*self.words)
            else:
                known = torch.Generator(device)
                known.manual_seed(self.words[0] ^ self.words[1])
            self.generators[device] = known
        return known


def _reset_of(part: nn.Module) -> Any:
    """Return the method that gives a layer its initial values, None if it has none."""
    for name in ("reset_parameters", "_reset_parameters"):
        method = getattr(part, name, None)
        if callable(method):
            return method
    return None


def has_reset(module: nn.Module) -> bool:
    """Return whether a part of a module can give itself initial values."""
    return any(_reset_of(part) is not None for part in module.modules())


def reset_copy(module: nn.Module, key: torch.Tensor) -> nn.Module:
    """Return a copy of a module with initial values drawn from a key.

    Raises:
        OptionError: the values of the key can not be read: it is mapped over, or the
            code is being compiled; or a part draws its values by what takes no
            generator (dropout).
        OperandError: no key; or nothing gives a parameter on the meta device a value.
    """
    key = lone_key(key, "init")
    if is_tracing() or inside_transform():
        raise OptionError(
            "initial values can not be drawn inside a transform or a compiled function",
            fix="params = module.init(key) outside; EnsembleModule(module, n).init(key)"
            " gives n members",
        )
    if not isinstance(module, nn.Module):
        raise OperandError("this is no module", got=type(module).__name__)
    fresh = copy.deepcopy(module)
    parts = list(fresh.named_modules())
    made = _with_memory(fresh, key.device)
    # Parts before the whole, which may have values of its own for what is in them.
    for name, part in reversed(parts):
        reset = _reset_of(part)
        if reset is not None:
            with torch.no_grad(), _Seeded(fold_in(key, path_id((name,)))):
                reset()
    for path, param in made:
        if param.isnan().any():
            raise OperandError(
                "no reset_parameters gives a parameter on the meta device its values",
                path=path,
                expected="a reset_parameters of its layer that sets it",
                fix="make the module outside of torch.device('meta'): what has no "
                "reset_parameters keeps its values",
            )
    return fresh


def _with_memory(
    module: nn.Module, device: torch.device
) -> list[tuple[tuple[str, ...], nn.Parameter]]:
    """Give parameters on the meta device memory, full of NaN, and return them."""
    new: dict[int, nn.Parameter] = {}
    made: list[tuple[tuple[str, ...], nn.Parameter]] = []
    for path, part in module.named_modules():
        for name, param in part.named_parameters(recurse=False):
            if not param.is_meta:
                continue
            if id(param) not in new:  # tied ones stay tied
                values = torch.full_like(param, torch.nan, device=device)
                new[id(param)] = nn.Parameter(values, param.requires_grad)
                keys = (*path.split("."), name) if path else (name,)
                made.append((keys, new[id(param)]))
            setattr(part, name, new[id(param)])
    return made
