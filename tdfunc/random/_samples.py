"""Draws from distributions, in JAX's argument order.

What they have in common:

- ``key`` is an int64 tensor [*keys, 2]; the result is [*keys, *shape], and row by row
  what each key alone gives. Inside `vmap` the mapped keys do not show in the shape.
- ``shape`` is an int or a sequence of ints, () by default: one number.
- ``dtype`` is torch's default one by default, and floating ones have 16 to 64 bits;
  ``device`` is the key's. The numbers do not depend on the device.
- A result never requires a gradient by itself; parameters that are tensors get theirs.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch

from tdfunc._core._torch import foreach_works, is_readable
from tdfunc._core.batch import as_device, as_size
from tdfunc.errors import OperandError, OptionError, ShapeError
from tdfunc.random._draws import draw
from tdfunc.random._integers import in_range
from tdfunc.random._keys import as_key

if TYPE_CHECKING:
    from tdfunc.typing import Device, Size

__all__ = [
    "bernoulli",
    "categorical",
    "exponential",
    "gumbel",
    "normal",
    "randint",
    "truncated_normal",
    "uniform",
]

_Number = int | float

FLOATING: Final = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)
# With the dtypes of their parts.
COMPLEX: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def uniform(
    key: torch.Tensor,
    shape: Size = (),
    dtype: torch.dtype | None = None,
    minval: float | torch.Tensor = 0.0,
    maxval: float | torch.Tensor = 1.0,
    *,
    device: Device | None = None,
) -> torch.Tensor:
    """Return numbers drawn evenly from ``[minval, maxval)``.

    Args:
        key: [*keys, 2].
        shape: of what one key draws.
        dtype: a floating one, torch's default one by default.
        minval: a number, or a tensor that broadcasts to `shape`.
        maxval: a number, or a tensor that broadcasts to `shape`; not checked to be the
            larger one if either is a tensor.
        device: where the result lies, by default where the key does.

    Returns:
        [*keys, *shape], differentiable in `minval` and `maxval`.

    Raises:
        OperandError: no key.
        OptionError: no shape, no floating dtype, or ``minval >= maxval``.
        ShapeError: a bound does not broadcast to `shape`.

    Examples:
        >>> import torch
        >>> from tdfunc import random
        >>> x = random.uniform(random.key(0), [2, 3], minval=-1, maxval=1)
        >>> x.shape, bool((x >= -1).all() and (x < 1).all())
        (torch.Size([2, 3]), True)
    """
    out, size = _drawn(key, "uniform", shape, dtype, device)
    if isinstance(minval, _Number) and isinstance(maxval, _Number):
        if minval == 0 and maxval == 1:
            return out
        _check_order(minval, maxval)
        if foreach_works((out,)):
            start, width, most = _interval_of_numbers(minval, maxval, out.dtype)
            return torch.minimum(out * width + start, most)
    low = _bound(minval, "minval", size, out)
    high = _bound(maxval, "maxval", size, out)
    start, width, most = _interval(low, high)
    return torch.minimum(out * width + start, most)


def _interval(
    low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return start, width and largest number of a half-open interval.

    Rounding may reach its end, which is not in it.
    """
    return low, high - low, torch.nextafter(high, low)


@functools.lru_cache(64)
def _interval_of_numbers(
    low: float, high: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # Tensors without dims, which torch computes with faster than with numbers.
    bounds = torch.tensor([low, high], dtype=dtype, device="cpu")
    return _interval(bounds[0], bounds[1])


def normal(
    key: torch.Tensor,
    shape: Size = (),
    dtype: torch.dtype | None = None,
    *,
    device: Device | None = None,
) -> torch.Tensor:
    """Return numbers from the normal distribution of mean 0 and variance 1.

    Args:
        key: [*keys, 2].
        shape: of what one key draws.
        dtype: a floating one, complex64 or complex128, torch's default one by default;
            complex numbers have independent parts of variance 1/2.
        device: where the result lies, by default where the key does.

    Returns:
        [*keys, *shape].

    Raises:
        OperandError: no key.
        OptionError: no shape, or no floating or complex dtype.

    Examples:
        >>> from tdfunc import random
        >>> keys = random.split(random.key(0), 4)
        >>> random.normal(keys, [2]).shape
        torch.Size([4, 2])
    """
    if dtype not in COMPLEX:
        return _drawn(key, "normal", shape, dtype, device)[0]
    parts = (*as_size(shape, "shape"), 2)
    out, _ = _drawn(key, "normal", parts, COMPLEX[dtype], device)
    return torch.view_as_complex(out * 0.5**0.5)


def exponential(
    key: torch.Tensor,
    shape: Size = (),
    dtype: torch.dtype | None = None,
    *,
    device: Device | None = None,
) -> torch.Tensor:
    """Return numbers from the exponential distribution of mean 1.

    Args:
        key: [*keys, 2].
        shape: of what one key draws.
        dtype: a floating one, torch's default one by default.
        device: where the result lies, by default where the key does.

    Returns:
        [*keys, *shape].

    Raises:
        OperandError: no key.
        OptionError: no shape, or no floating dtype.

    Examples:
        >>> from tdfunc import random
        >>> bool((random.exponential(random.key(0), [100]) > 0).all())
        True
    """
    return _drawn(key, "exponential", shape, dtype, device)[0]


def gumbel(
    key: torch.Tensor,
    shape: Size = (),
    dtype: torch.dtype | None = None,
    *,
    device: Device | None = None,
) -> torch.Tensor:
    """Return numbers from the standard Gumbel distribution, ``-log(-log(u))``.

    The place of the largest of ``logits + gumbel`` is a draw from the categorical
    distribution of these logits.

    Args:
        key: [*keys, 2].
        shape: of what one key draws.
        dtype: a floating one, torch's default one by default.
        device: where the result lies, by default where the key does.

    Returns:
        [*keys, *shape].

    Raises:
        OperandError: no key.
        OptionError: no shape, or no floating dtype.

    Examples:
        >>> from tdfunc import random
        >>> random.gumbel(random.key(0), [3]).shape
        torch.Size([3])
    """
    return _drawn(key, "gumbel", shape, dtype, device)[0]


def truncated_normal(
    key: torch.Tensor,
    lower: float | torch.Tensor,
    upper: float | torch.Tensor,
    shape: Size | None = None,
    dtype: torch.dtype | None = None,
    *,
    device: Device | None = None,
) -> torch.Tensor:
    """Return normal numbers, given that they lie between two bounds.

    Computed in float64 from the tail that is nearer, so that far bounds (8 to 9) are as
    exact as near ones.

    Args:
        key: [*keys, 2].
        lower: a number, or a tensor that broadcasts to `shape`; may be ``-inf``.
        upper: a number, or a tensor that broadcasts to `shape`; may be ``inf``. Not
            checked to be the larger one if either is a tensor.
        shape: of what one key draws; the shape to which the bounds broadcast by
            default.
        dtype: a floating one, torch's default one by default.
        device: where the result lies, by default where the key does.

    Returns:
        [*keys, *shape], differentiable in `lower` and `upper`.

    Raises:
        OperandError: no key.
        OptionError: no shape, no floating dtype, or ``lower >= upper``.
        ShapeError: a bound does not broadcast to `shape`.

    Examples:
        >>> from tdfunc import random
        >>> x = random.truncated_normal(random.key(0), -2, 2, [100])
        >>> bool((x.abs() <= 2).all())
        True
    """
    if isinstance(lower, _Number) and isinstance(upper, _Number):
        _check_order(lower, upper, "lower", "upper")
    if shape is None:
        shape = _common_shape(lower, upper)
    # Checked here: the draw is made in another dtype.
    kind = _floating(dtype)
    u, size = _drawn(key, "uniform", shape, torch.float64, device)
    if (
        isinstance(lower, _Number)
        and isinstance(upper, _Number)
        and foreach_works((u,))
    ):
        low, high, flip, start, width = _tail_of_numbers(lower, upper)
        out = torch.special.ndtri(u * width + start)
        out = -out if flip else out
    else:
        low = _bound(lower, "lower", size, u)
        high = _bound(upper, "upper", size, u)
        flip, start, width = _tail(low, high)
        out = torch.special.ndtri(u * width + start)
        out = torch.where(flip, -out, out)
    return torch.maximum(torch.minimum(out, high), low).to(kind)


def _tail(
    low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return whether the upper tail is meant, and start and width of probabilities.

    Above zero the distribution function is near one, where numbers are coarse: there
    the same is done below zero.
    """
    flip = low > 0
    start = _below(torch.where(flip, -high, low))
    width = _below(torch.where(flip, -low, high)) - start
    # The middle of a step of float64: never 0, where the inverse is infinite.
    return flip, start + 2.0**-54 * width, width


@functools.lru_cache(64)
def _tail_of_numbers(
    lower: float, upper: float
) -> tuple[torch.Tensor, torch.Tensor, bool, torch.Tensor, torch.Tensor]:
    low, high = torch.tensor([lower, upper], dtype=torch.float64, device="cpu")
    flip, start, width = _tail(low, high)
    return low, high, bool(flip), start, width


def _below(x: torch.Tensor) -> torch.Tensor:
    """Return the probability that a normal number is less than `x`.

    Far below zero `torch.special.ndtr` gives 0.
    """
    return torch.erfc(x * -(0.5**0.5)) / 2


def randint(
    key: torch.Tensor,
    shape: Size,
    minval: int | torch.Tensor,
    maxval: int | torch.Tensor,
    dtype: torch.dtype = torch.int64,
    *,
    device: Device | None = None,
) -> torch.Tensor:
    """Return integers drawn evenly from ``minval`` to ``maxval - 1``.

    The probability of each is even to one part in 2**31.

    Args:
        key: [*keys, 2].
        shape: of what one key draws.
        minval: the smallest, an int or an integer tensor that broadcasts to `shape`.
        maxval: one more than the largest, an int or an integer tensor that broadcasts
            to `shape`; not checked to be the larger one if either is a tensor.
        dtype: an integer one.
        device: where the result lies, by default where the key does.

    Returns:
        [*keys, *shape].

    Raises:
        OperandError: no key, or a bound is no integer.
        OptionError: no shape, no integer dtype, ``minval >= maxval``, or numbers that
            the dtype does not hold.
        ShapeError: a bound does not broadcast to `shape`.

    Examples:
        >>> from tdfunc import random
        >>> dice = random.randint(random.key(0), [100], 1, 7)
        >>> dice.min().item(), dice.max().item()
        (1, 6)
    """
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        raise OptionError(
            "integers are drawn in an integer dtype",
            expected="an integer dtype",
            got=dtype,
            fix="random.uniform and random.bernoulli draw the others",
        )
    size = as_size(shape, "shape")
    for name, bound in (("minval", minval), ("maxval", maxval)):
        _check_integer(bound, name)
        _check_bound(bound, name, size)
    where = _device_of(as_key(key), device)
    if not isinstance(minval, torch.Tensor) and not isinstance(maxval, torch.Tensor):
        _check_order(minval, maxval)
        held = torch.iinfo(dtype)
        if minval < held.min or maxval - 1 > held.max:
            raise OptionError(
                f"{dtype} does not hold all numbers from minval to maxval - 1",
                expected=f"bounds from {held.min} to {held.max + 1}",
                got=f"{minval} and {maxval}",
                fix="dtype=torch.int64",
            )
    out = in_range(key, size, minval, maxval, where)
    return out if dtype is torch.int64 else out.to(dtype)


def bernoulli(
    key: torch.Tensor,
    p: float | torch.Tensor = 0.5,
    shape: Size | None = None,
    *,
    device: Device | None = None,
) -> torch.Tensor:
    """Return booleans that are True with probability `p`.

    Args:
        key: [*keys, 2].
        p: a number, or a floating tensor that broadcasts to `shape`; in compiled code
            and inside transforms the values of a tensor are not checked.
        shape: of what one key draws; that of `p` by default.
        device: where the result lies, by default where the key does.

    Returns:
        bool [*keys, *shape].

    Raises:
        OperandError: no key.
        OptionError: no shape, or `p` is not between 0 and 1.
        ShapeError: `p` does not broadcast to `shape`.

    Examples:
        >>> from tdfunc import random
        >>> random.bernoulli(random.key(0), 0.1, [1000]).float().mean() < 0.2
        tensor(True)
    """
    check_probabilities(p, "p", most=1.0)
    size = _shape_of(p) if shape is None else shape
    # All digits: in float32 the smallest step is 2**-24.
    u, size = _drawn(key, "uniform", size, torch.float64, device)
    _check_bound(p, "p", size)
    return u < (p.to(u.device) if isinstance(p, torch.Tensor) else p)


def categorical(
    key: torch.Tensor,
    logits: torch.Tensor,
    dim: int = -1,
    shape: Size | None = None,
    *,
    device: Device | None = None,
) -> torch.Tensor:
    """Return indices, drawn with probabilities ``softmax(logits, dim)``.

    Args:
        key: [*keys, 2].
        logits: unnormalised log probabilities [*batch, choices], the choices at `dim`;
            ``-inf`` is never drawn.
        dim: where the choices lie.
        shape: of what one key draws, to which ``[*batch]`` broadcasts; ``[*batch]`` by
            default.
        device: where the result lies, by default where the key does.

    Returns:
        int64 [*keys, *shape].

    Raises:
        OperandError: no key, or the logits are no tensor.
        OptionError: no shape.
        ShapeError: there are no choices, `dim` is none of the logits, or they do not
            broadcast to `shape`.

    Examples:
        >>> import torch
        >>> from tdfunc import random
        >>> logits = torch.tensor([0.1, 0.9]).log()
        >>> random.categorical(random.key(0), logits, shape=[5]).shape
        torch.Size([5])
    """
    if not isinstance(logits, torch.Tensor):
        raise OperandError(
            "logits are a tensor",
            expected="a tensor [*batch, choices]",
            got=type(logits).__name__,
            fix="random.categorical(key, torch.tensor(logits))",
        )
    if not -logits.dim() <= dim < logits.dim() or not logits.shape[dim]:
        raise ShapeError(
            "there are no choices to draw from",
            expected="logits [*batch, choices], with choices at dim",
            got=f"shape {list(logits.shape)}, dim={dim}",
            fix="random.categorical(key, torch.zeros(3)) draws from three",
        )
    kind = logits.dtype if logits.dtype is torch.float64 else torch.float32
    last = logits.movedim(dim, -1).to(kind)
    size = last.shape[:-1] if shape is None else as_size(shape, "shape")
    _check_broadcast(last.shape[:-1], size, "the batch of the logits")
    noise, _ = _drawn(key, "gumbel", (*size, last.shape[-1]), kind, device)
    return (noise + last.to(noise.device)).argmax(-1)


def check_probabilities(p: Any, name: str, most: float) -> None:
    """Check what can be known about probabilities: tensors only where they can be read.

    Raises:
        OptionError: one is negative, above `most`, or no number.
    """
    if isinstance(p, torch.Tensor):
        if not (has_values(p) and p.numel()):
            return
        least, largest = [bound.item() for bound in p.detach().aminmax()]
    else:
        least = largest = p
    if not (least >= 0 and largest <= most):
        raise OptionError(
            f"{name} is no probability",
            expected="0 to 1" if most == 1 else "numbers that are not negative",
            got=f"{least} to {largest}" if isinstance(p, torch.Tensor) else repr(p),
            fix=f"{name}=torch.sigmoid(logits)",
        )


def has_values(x: torch.Tensor) -> bool:
    """Return whether the values of a tensor can be read, at no cost."""
    return is_readable(x)


def _drawn(
    key: Any, kind: str, shape: Any, dtype: torch.dtype | None, device: Any
) -> tuple[torch.Tensor, torch.Size]:
    key = as_key(key)
    size = as_size(shape, "shape")
    where = _device_of(key, device)
    return draw(key, kind, size, _floating(dtype), where), size


def _device_of(key: torch.Tensor, device: Any) -> torch.device:
    return key.device if device is None else as_device(device) or key.device


def _floating(dtype: Any) -> torch.dtype:
    """Return a floating dtype, torch's default one for None.

    Raises:
        OptionError: it is something else.
    """
    if dtype is None:
        return torch.get_default_dtype()
    if dtype in FLOATING:
        return dtype
    raise OptionError(
        "this dtype can not be drawn",
        expected="a floating dtype of 16 to 64 bits",
        got=repr(dtype),
        fix="dtype=torch.float32; random.randint draws integers",
    )


def _check_order(
    low: float, high: float, lower: str = "minval", upper: str = "maxval"
) -> None:
    if not low < high:
        raise OptionError(
            "there is nothing between the bounds",
            expected=f"{lower} < {upper}",
            got=f"{lower}={low!r}, {upper}={high!r}",
            fix=f"{lower}=0, {upper}=1",
        )


def _check_integer(bound: Any, name: str) -> None:
    if isinstance(bound, torch.Tensor):
        kind = bound.dtype
        wrong = kind.is_floating_point or kind.is_complex or kind is torch.bool
    else:
        wrong = isinstance(bound, bool) or not isinstance(bound, (int, torch.SymInt))
    if wrong:
        raise OperandError(
            f"{name} is an integer",
            expected="an int or an integer tensor",
            got=bound.dtype if isinstance(bound, torch.Tensor) else repr(bound),
            fix="random.uniform draws between other bounds",
        )


def _shape_of(value: Any) -> torch.Size:
    return value.shape if isinstance(value, torch.Tensor) else torch.Size()


def _common_shape(lower: Any, upper: Any) -> torch.Size:
    """Return the shape to which two bounds broadcast.

    Raises:
        ShapeError: there is none.
    """
    shapes = _shape_of(lower), _shape_of(upper)
    if not shapes[0] or not shapes[1]:
        return shapes[0] or shapes[1]
    try:
        # Not `torch.broadcast_shapes`, which imports sympy.
        return torch.broadcast_tensors(lower, upper)[0].shape
    except RuntimeError:
        raise ShapeError(
            "the bounds do not broadcast with each other",
            expected=f"a shape that broadcasts with {list(shapes[0])}",
            got=f"shape {list(shapes[1])}",
            fix="lower[:, None], upper[None] draw for every pair",
        ) from None


def _bound(value: Any, name: str, size: torch.Size, like: torch.Tensor) -> torch.Tensor:
    """Return a bound as a tensor like the draw, checked to broadcast to its shape."""
    if isinstance(value, torch.Tensor):
        _check_bound(value, name, size)
        return value.to(like)
    if not isinstance(value, _Number):
        raise OperandError(
            f"{name} is a number or a tensor",
            expected="a number or a tensor",
            got=repr(value),
        )
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _check_bound(value: Any, name: str, size: torch.Size) -> None:
    if isinstance(value, torch.Tensor):
        _check_broadcast(value.shape, size, name)


def _check_broadcast(shape: torch.Size, size: torch.Size, what: str) -> None:
    """Check that a shape broadcasts to another one and does not enlarge it."""
    offset = len(size) - len(shape)
    fits = offset >= 0 and all(
        [own in (1, size[offset + i]) for i, own in enumerate(shape)]
    )
    if not fits:
        raise ShapeError(
            f"{what} does not broadcast to the shape that is drawn",
            expected=f"a shape that broadcasts to {list(size)}",
            got=f"shape {list(shape)}",
            fix=f"shape={list(shape)}",
        )
