"""The two operations that everything random is made of, known to the dispatcher.

`draw` gives numbers of a kind, `derive` new keys. Both are functions of the key alone:
no state, no global generator. They run on the CPU whatever device is asked for, so that
a key means the same numbers everywhere. To transforms and compilers they are opaque:
what they compute under `vmap` or in compiled code is what they compute outside, bit for
bit.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from tdfunc._core._torch import foreach_works
from tdfunc.random._generators import (
    LARGE,
    as_signed,
    splitmix,
    stream_of,
    streams_of,
    threefry,
    twister,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tdfunc.random._generators import Streams, Words

__all__ = ["block", "derive", "derive_one", "derive_range", "draw"]

# As many words are made at a time as stay in the cache.
_BLOCK: Final = 1 << 15
# Up to so many keys Python's ints are faster than arrays.
_FEW: Final = 24
_FULL: Final = 0xFFFF_FFFF_FFFF_FFFF


def draw(
    key: torch.Tensor,
    kind: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Return random numbers of a kind.

    Args:
        key: [*keys, 2], checked.
        kind: "bits" (all of int64), "uniform" in [0, 1), "normal", "exponential" or
            "gumbel".
        shape: of what one key draws.
        dtype: a floating one; int64 for bits.
        device: where the result lies.

    Returns:
        [*keys, *shape], new memory.
    """
    # What works for torch._foreach_*, works without the dispatcher: plain tensors
    # outside transforms and modes.
    if key.is_cpu and foreach_works((key,)):
        return _draw(key, kind, shape, dtype, device)
    return torch.ops.tdfunc.random_draw(key, kind, shape, dtype, device)


def derive(key: torch.Tensor, data: torch.Tensor, tag: int) -> torch.Tensor:
    """Return the keys that `data` leads to from `key`.

    Args:
        key: [*keys, 2], checked.
        data: int64, of a shape that broadcasts with ``[*keys]``.
        tag: what the new keys are for; other tags give unrelated keys.

    Returns:
        [*broadcast, 2], new memory.
    """
    if key.is_cpu and data.is_cpu and foreach_works((key, data)):
        return _derive(key, data, tag)
    return torch.ops.tdfunc.random_derive(key, data, tag)


def derive_one(key: torch.Tensor, data: int, tag: int) -> torch.Tensor:
    """Return what `derive` does for one int, without a tensor where that is faster."""
    if key.is_cpu and key.dim() == 1 and foreach_works((key,)):
        k0, k1 = key.tolist()
        return torch.tensor(block(k0, k1, data, tag), device="cpu")
    words = torch.full((), data, dtype=torch.int64, device=key.device)
    return derive(key, words, tag)


def derive_range(key: torch.Tensor, count: int, tag: int) -> torch.Tensor:
    """Return what `derive` does for 0 to ``count - 1``, as a dim behind the keys."""
    few = key.dim() == 1 and key.is_cpu and foreach_works((key,)) and 0 < count <= _FEW
    if few:
        k0, k1 = key.tolist()
        blocks = [block(k0, k1, data, tag) for data in range(count)]
        return torch.tensor(blocks, device="cpu")
    data = torch.arange(count, dtype=torch.int64, device=key.device)
    return derive(key if key.dim() == 1 else key.unsqueeze(-2), data, tag)


def block(k0: int, k1: int, data: int, tag: int) -> list[int]:
    """Return the halves of one key, all words being signed or unsigned ints."""
    halves = threefry(k0 & _FULL, k1 & _FULL, data & _FULL, tag)
    return [as_signed(half) for half in halves]


def _words_of(tensor: torch.Tensor) -> Words:
    return tensor.cpu().numpy().view(np.uint64)


def _derive(key: torch.Tensor, data: torch.Tensor, tag: int) -> torch.Tensor:
    if key.dim() == 1 and data.numel() <= _FEW:
        k0, k1 = key.tolist()
        blocks = [block(k0, k1, word, tag) for word in data.reshape(-1).tolist()]
        new = torch.tensor(blocks, dtype=torch.int64, device="cpu")
        new = new.reshape(*data.shape, 2)
    else:
        keys, counters = _words_of(key), _words_of(data)
        shape = np.broadcast_shapes(keys.shape[:-1], counters.shape)
        # At least one dim: NumPy warns when numbers wrap, and not when arrays do.
        k0 = np.broadcast_to(keys[..., 0], shape).reshape(-1)
        k1 = np.broadcast_to(keys[..., 1], shape).reshape(-1)
        x0 = np.broadcast_to(counters, shape).reshape(-1)
        halves = threefry(k0, k1, x0, np.full_like(x0, tag))
        new = torch.from_numpy(np.stack(halves, -1).view(np.int64)).reshape(*shape, 2)
    return new if key.is_cpu else new.to(key.device)


def _draw(
    key: torch.Tensor,
    kind: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    count = math.prod(shape)
    full = shape if key.dim() == 1 else (*key.shape[:-1], *shape)
    if not count or not key.numel():
        return torch.empty(full, dtype=dtype, device=device)
    # Decided by the shape of one draw and never by how many keys there are: a mapped
    # draw is the loop over its keys.
    if count >= LARGE:
        out = _draw_large(key, kind, count, dtype).reshape(full)
    else:
        form = _format_of(dtype)
        out = torch.from_numpy(_draw_small(key, kind, count, form).reshape(full))
        if form.rounds:
            out = out.to(dtype)
    return out if device.type == "cpu" else out.to(device)


def _draw_small(key: torch.Tensor, kind: str, count: int, form: Format) -> Any:
    small = _SMALL[kind]
    if key.dim() == 1:
        k0, k1 = key.tolist()
        return small(stream_of(k0, k1), count, form)
    keys = _words_of(key).reshape(-1, 2)
    at_once = max(1, _BLOCK // count)
    blocks = [
        small(streams_of(keys[start : start + at_once]), count, form)
        for start in range(0, len(keys), at_once)
    ]
    return np.concatenate(blocks)


def _draw_large(
    key: torch.Tensor, kind: str, count: int, dtype: torch.dtype
) -> torch.Tensor:
    large = _LARGE[kind]
    rows = [
        large(twister(k0, k1), count, dtype) for k0, k1 in key.reshape(-1, 2).tolist()
    ]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


# Small draws: [count] of one stream, [keys, count] of several. NumPy, because its calls
# on small arrays cost a quarter of torch's, least with constants that are arrays. An
# element is computed from its own words alone, by loops over contiguous arrays, so that
# it is the same wherever it stands in them.


class Format(NamedTuple):
    """How numbers of a dtype are made of a word."""

    floats: type[np.floating[Any]]  # what is computed with
    rounds: bool  # whether that is wider than the dtype
    shift: Any  # leaves as many digits as the dtype has below one
    step: Any  # the value of the last digit


@functools.cache
def _format_of(dtype: torch.dtype) -> Format:
    """Return the format of a dtype; that of float64 for integers, which have none."""
    double = dtype is torch.float64 or not dtype.is_floating_point
    floats = np.float64 if double else np.float32
    digits = 53 if double else 1 - round(math.log2(torch.finfo(dtype).eps))
    rounds = not double and dtype is not torch.float32
    return Format(
        floats, rounds, np.array(64 - digits, np.uint64), np.array(2.0**-digits, floats)
    )


def _small_bits(streams: Streams, count: int, form: Format) -> Any:
    del form
    return splitmix(streams, count).view(np.int64)


def _small_uniform(streams: Streams, count: int, form: Format) -> Any:
    words = splitmix(streams, count)
    words >>= form.shift
    # Signed numbers are converted faster, and no digit is lost: nothing becomes one.
    out = words.view(np.int64).astype(form.floats)
    out *= form.step
    return out


def _small_normal(streams: Streams, count: int, form: Format) -> Any:
    """Return normals by Box and Muller's formula: ``sqrt(-2 log u) cos(2 pi v)``."""
    if form.floats is np.float64:
        words = splitmix(streams, 2 * count)
        words >>= form.shift
        both = words.view(np.int64).astype(np.float64)
        radius = both[..., :count] + _HALF
        radius *= form.step
        angle = both[..., count:] * _TURN_64
    else:
        # Half a word each: the radius reaches 6.7.
        both = splitmix(streams, count).view(np.uint32).astype(np.float32)
        radius = both[..., ::2] + _HALF
        radius *= _STEP_32
        angle = both[..., 1::2] * _TURN_32
    np.log(radius, radius)
    radius *= _MINUS_TWO
    np.sqrt(radius, radius)
    radius *= np.cos(angle, angle)
    return radius


# Powers of two are the same numbers in float64.
_HALF: Final = np.array(0.5, np.float32)
_MINUS_TWO: Final = np.array(-2, np.float32)
_STEP_32: Final = np.array(2.0**-32, np.float32)
_TURN_32: Final = np.array(2 * math.pi * 2.0**-32, np.float32)
_TURN_64: Final = np.array(2 * math.pi * 2.0**-53)


def _small_exponential(streams: Streams, count: int, form: Format) -> Any:
    return _double_exponential(streams, count).astype(form.floats)


def _small_gumbel(streams: Streams, count: int, form: Format) -> Any:
    out = _double_exponential(streams, count)
    np.log(out, out)
    np.negative(out, out)
    return out.astype(form.floats)


def _double_exponential(streams: Streams, count: int) -> Any:
    """Return ``-log(1 - u)``, u never 0 and never 1, in double precision.

    In float32 the numbers just below one are coarse, and so would be the tail.
    """
    words = splitmix(streams, count)
    words >>= _ELEVEN
    out = words.view(np.int64).astype(np.float64)
    out += _HALF
    out *= _MINUS_STEP
    np.log1p(out, out)
    np.negative(out, out)
    return out


_ELEVEN: Final = np.array(11, np.uint64)
_MINUS_STEP: Final = np.array(-(2.0**-53))


# Large draws: by torch's generator, one key at a time.


def _large_bits(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    out = torch.empty(count, dtype=dtype, device="cpu")
    return out.random_(-(1 << 63), None, generator=generator)


def _large_uniform(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device="cpu").uniform_(generator=generator)


def _large_normal(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device="cpu").normal_(generator=generator)


def _large_exponential(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    # Not `exponential_`, which hands 31 bits of a seed to another generator.
    out = torch.empty(count, dtype=torch.float64, device="cpu").uniform_(
        generator=generator
    )
    return out.neg_().sub_(2.0**-54).log1p_().neg_().to(dtype)


def _large_gumbel(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    return _large_exponential(generator, count, torch.float64).log_().neg_().to(dtype)


_SMALL: Final[dict[str, Callable[[Streams, int, Format], Any]]] = {
    "bits": _small_bits,
    "uniform": _small_uniform,
    "normal": _small_normal,
    "exponential": _small_exponential,
    "gumbel": _small_gumbel,
}
_LARGE: Final[
    dict[str, Callable[[torch.Generator, int, torch.dtype], torch.Tensor]]
] = {
    "bits": _large_bits,
    "uniform": _large_uniform,
    "normal": _large_normal,
    "exponential": _large_exponential,
    "gumbel": _large_gumbel,
}


# What transforms and compilers see. `Library`, because `custom_op` imports Dynamo at
# its first call.

_library = torch.library.Library("tdfunc", "FRAGMENT")
_library.define(
    "random_draw(Tensor key, str kind, SymInt[] shape, ScalarType dtype, "
    "Device device) -> Tensor"
)
_library.define("random_derive(Tensor key, Tensor data, int tag) -> Tensor")
_library.impl("random_draw", _draw, "CompositeExplicitAutograd")
_library.impl("random_derive", _derive, "CompositeExplicitAutograd")


def _fake_draw(
    key: torch.Tensor,
    kind: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    del kind
    return key.new_empty((*key.shape[:-1], *shape), dtype=dtype, device=device)


def _fake_derive(key: torch.Tensor, data: torch.Tensor, tag: int) -> torch.Tensor:
    del tag
    shape = torch.broadcast_shapes(key.shape[:-1], data.shape)
    return key.new_empty((*shape, 2))


def _mapped_draw(
    info: Any, in_dims: tuple[Any, ...], key: torch.Tensor, *options: Any
) -> tuple[torch.Tensor, int]:
    del info
    return draw(key.movedim(in_dims[0], 0), *options), 0


def _mapped_derive(
    info: Any,
    in_dims: tuple[Any, ...],
    key: torch.Tensor,
    data: torch.Tensor,
    tag: int,
) -> tuple[torch.Tensor, int]:
    del info
    key_dim, data_dim = in_dims[:2]
    # Dims of one example, without the mapped one: both get as many, behind it.
    own = key.dim() - 1 - (key_dim is not None)
    other = data.dim() - (data_dim is not None)
    if key_dim is not None:
        key = key.movedim(key_dim, 0)
        pad = (1,) * max(0, other - own)
        key = key.reshape(key.shape[0], *pad, *key.shape[1:])
    if data_dim is not None:
        data = data.movedim(data_dim, 0)
        pad = (1,) * max(0, own - other)
        data = data.reshape(data.shape[0], *pad, *data.shape[1:])
    return derive(key, data, tag), 0


torch.library.register_fake("tdfunc::random_draw", _fake_draw, lib=_library)
torch.library.register_fake("tdfunc::random_derive", _fake_derive, lib=_library)
_register_vmap: Any = torch.library.register_vmap
_register_vmap("tdfunc::random_draw", _mapped_draw, lib=_library)
_register_vmap("tdfunc::random_derive", _mapped_derive, lib=_library)
