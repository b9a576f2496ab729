"""The two operations that everything random is made of, known to the dispatcher.

`draw` gives numbers of a kind, `derive` new keys. Both are functions of the key alone:
no state, no global generator. They run on the CPU whatever device is asked for, so that
a key means the same numbers everywhere. To transforms and compilers they are opaque:
what they compute under `vmap` or in compiled code is what they compute outside, bit for
bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tdfunc._core._torch import foreach_works
from tdfunc.random._generators import (
    LARGE,
    as_signed,
    splitmix,
    threefry,
    twister,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tdfunc.random._generators import Words

__all__ = ["derive", "draw"]

# As many words are made at a time as stay in the cache.
_BLOCK: Final = 1 << 15
# Up to so many keys Python's ints are faster than arrays.
_FEW: Final = 8
_FULL: Final = 0xFFFF_FFFF_FFFF_FFFF
_ELEVEN: Final = np.array(11, np.uint64)
_HALF_WORD: Final = np.array(32, np.uint64)
# A word is 64 bits, of which float64 takes 53: multiples of this below one.
_STEP: Final = 2.0**-53
_SMALL_STEP: Final = 2.0**-32


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


def _words_of(tensor: torch.Tensor) -> Words:
    return tensor.cpu().numpy().view(np.uint64)


def _derive(key: torch.Tensor, data: torch.Tensor, tag: int) -> torch.Tensor:
    if key.dim() == 1 and data.numel() <= _FEW:
        k0, k1 = [word & _FULL for word in key.tolist()]
        words = [word & _FULL for word in data.reshape(-1).tolist()]
        blocks = [threefry(k0, k1, word, tag) for word in words]
        signed = [as_signed(half) for block in blocks for half in block]
        new = torch.tensor(signed, dtype=torch.int64).reshape(*data.shape, 2)
    else:
        keys, counters = _words_of(key), _words_of(data)
        shape = np.broadcast_shapes(keys.shape[:-1], counters.shape)
        # At least one dim: NumPy warns when numbers wrap, and not when arrays do.
        k0 = np.broadcast_to(keys[..., 0], shape).reshape(-1)
        k1 = np.broadcast_to(keys[..., 1], shape).reshape(-1)
        x0 = np.broadcast_to(counters, shape).reshape(-1)
        block = threefry(k0, k1, x0, np.full_like(x0, tag))
        new = torch.from_numpy(np.stack(block, -1).view(np.int64)).reshape(*shape, 2)
    return new if key.is_cpu else new.to(key.device)


def _draw(
    key: torch.Tensor,
    kind: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    full = (*key.shape[:-1], *shape)
    keys = _words_of(key).reshape(-1, 2)
    count = math.prod(shape)
    if not count or not len(keys):
        return torch.empty(full, dtype=dtype, device=device)
    # Decided by the shape of one draw and never by how many keys there are: a mapped
    # draw is the loop over its keys.
    if count >= LARGE:
        large = _LARGE[kind]
        rows = [large(twister(row[None]), count, dtype) for row in keys]
        out = rows[0] if len(rows) == 1 else torch.cat(rows)
    else:
        out = _draw_small(keys, kind, count, dtype)
    out = out.reshape(full)
    return out if device.type == "cpu" else out.to(device)


def _draw_small(
    keys: Words, kind: str, count: int, dtype: torch.dtype
) -> torch.Tensor:
    small = _SMALL[kind]
    at_once = max(1, _BLOCK // count)
    if len(keys) <= at_once:
        return torch.from_numpy(small(keys, count, dtype)).to(dtype)
    blocks = [
        small(keys[start : start + at_once], count, dtype)
        for start in range(0, len(keys), at_once)
    ]
    return torch.from_numpy(np.concatenate(blocks)).to(dtype)


# Small draws: [keys, 2] to [keys, count]. NumPy, because its calls on small arrays cost
# a quarter of torch's. Each element is computed from its own words alone, wherever it
# stands in the array.


def _float_type(dtype: torch.dtype) -> type[np.floating[Any]]:
    # Narrower dtypes are computed in float32 and rounded.
    return np.float64 if dtype is torch.float64 else np.float32


def _small_bits(keys: Words, count: int, dtype: torch.dtype) -> Any:
    del dtype  # int64
    return splitmix(keys, count).view(np.int64)


def _small_uniform(keys: Words, count: int, dtype: torch.dtype) -> Any:
    words = splitmix(keys, count)
    # As many digits as the dtype has below one, so that nothing is rounded up to one.
    digits = _digits(dtype)
    words >>= np.uint64(64 - digits)
    out = words.view(np.int64).astype(_float_type(dtype))
    out *= 2.0**-digits
    return out


def _digits(dtype: torch.dtype) -> int:
    return 1 - round(math.log2(torch.finfo(dtype).eps))


def _small_normal(keys: Words, count: int, dtype: torch.dtype) -> Any:
    """Return normals by Box and Muller's formula: ``sqrt(-2 log u) cos(2 pi v)``."""
    if dtype is torch.float64:
        words = splitmix(keys, 2 * count)
        words >>= _ELEVEN
        both = words.view(np.int64).astype(np.float64)
        # Contiguous, so that all functions take the same loops in every shape.
        radius, angle = both[:, :count].copy(), both[:, count:].copy()
        radius += 0.5
        radius *= _STEP
        angle *= 2 * math.pi * _STEP
    else:
        # Half a word each: the radius reaches 6.7.
        words = splitmix(keys, count)
        low = words.astype(np.uint32)
        words >>= _HALF_WORD
        radius = words.view(np.int64).astype(np.float32)
        angle = low.astype(np.float32)
        radius += 0.5
        radius *= _SMALL_STEP
        angle *= 2 * math.pi * _SMALL_STEP
    np.log(radius, radius)
    radius *= -2.0
    np.sqrt(radius, radius)
    radius *= np.cos(angle, angle)
    return radius


def _small_exponential(keys: Words, count: int, dtype: torch.dtype) -> Any:
    return _double_exponential(keys, count).astype(_float_type(dtype))


def _small_gumbel(keys: Words, count: int, dtype: torch.dtype) -> Any:
    out = _double_exponential(keys, count)
    np.log(out, out)
    np.negative(out, out)
    return out.astype(_float_type(dtype))


def _double_exponential(keys: Words, count: int) -> Any:
    """Return ``-log(1 - u)``, u never 0 and never 1, in double precision.

    In float32 the numbers just below one are coarse, and so would be the tail.
    """
    words = splitmix(keys, count)
    words >>= _ELEVEN
    out = words.view(np.int64).astype(np.float64)
    out *= -_STEP
    out -= _STEP / 2
    np.log1p(out, out)
    np.negative(out, out)
    return out


# Large draws: by torch's generator, one key at a time.


def _large_bits(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    out = torch.empty(count, dtype=dtype)
    return out.random_(-(1 << 63), None, generator=generator)


def _large_uniform(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(count, dtype=dtype).uniform_(generator=generator)


def _large_normal(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(count, dtype=dtype).normal_(generator=generator)


def _large_exponential(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    # Not `exponential_`, which hands 31 bits of a seed to another generator.
    out = torch.empty(count, dtype=torch.float64).uniform_(generator=generator)
    return out.neg_().sub_(_STEP / 2).log1p_().neg_().to(dtype)


def _large_gumbel(
    generator: torch.Generator, count: int, dtype: torch.dtype
) -> torch.Tensor:
    return _large_exponential(generator, count, torch.float64).log_().neg_().to(dtype)


_SMALL: Final[dict[str, Callable[[Words, int, torch.dtype], Any]]] = {
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


@torch.library.register_fake("tdfunc::random_draw", lib=_library)
def _fake_draw(
    key: torch.Tensor,
    kind: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    del kind
    return key.new_empty((*key.shape[:-1], *shape), dtype=dtype, device=device)


@torch.library.register_fake("tdfunc::random_derive", lib=_library)
def _fake_derive(key: torch.Tensor, data: torch.Tensor, tag: int) -> torch.Tensor:
    del tag
    shape = torch.broadcast_shapes(key.shape[:-1], data.shape)
    return key.new_empty((*shape, 2))


@torch.library.register_vmap("tdfunc::random_draw", lib=_library)
def _mapped_draw(
    info: Any,
    in_dims: tuple[Any, ...],
    key: torch.Tensor,
    kind: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[torch.Tensor, int]:
    del info
    return draw(key.movedim(in_dims[0], 0), kind, shape, dtype, device), 0


@torch.library.register_vmap("tdfunc::random_derive", lib=_library)
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
