"""Keys: what stands in for the state of a generator."""

from __future__ import annotations

from operator import index
from typing import Any, Final

import torch

from tdfunc._core._torch import is_tracing
from tdfunc._core.batch import as_size
from tdfunc.errors import OperandError, OptionError
from tdfunc.random._draws import block, derive, derive_one, derive_range
from tdfunc.random._generators import as_signed

__all__ = ["as_key", "fold_in", "key", "lone_key", "of_paths", "split"]

# What new keys are for: keys of one kind never meet those of another.
_SEED: Final = 0
_SPLIT: Final = 1
_FOLD: Final = 2
_PATH: Final = 3


def key(seed: int | torch.Tensor) -> torch.Tensor:
    """Return the key of a seed: equal seeds give equal keys, others unrelated ones.

    A key is an int64 tensor [2]. It stacks, is indexed, saved and mapped over like any
    tensor; what is drawn from it is a function of it and of nothing else.

    Args:
        seed: an int in [-2**63, 2**64) (negative ones are those above 2**63), or an
            integer tensor [*seeds].

    Returns:
        int64 [2], or [*seeds, 2] on the tensor's device.

    Raises:
        OperandError: the seed is no integer.
        OptionError: it has more than 64 bits.

    Examples:
        >>> import torch
        >>> from tdfunc import random
        >>> key = random.key(0)
        >>> torch.equal(random.normal(key, 3), random.normal(key, 3))
        True
    """
    data = _as_words(seed, "a seed", "random.key(0)")
    if isinstance(data, torch.Tensor):
        root = torch.zeros(2, dtype=torch.int64, device=data.device)
        return derive(root, data, _SEED)
    if is_tracing():
        # Of a number that may be any other in the next call.
        return derive_one(torch.zeros(2, dtype=torch.int64), data, _SEED)
    return torch.tensor(block(0, 0, data, _SEED))


def split(key: torch.Tensor, n: int = 2) -> torch.Tensor:
    """Return new keys, unrelated to each other and to the old one.

    Use each key once: to draw with it, or to split it. ``split(key, n)[i]`` is the same
    for every n.

    Args:
        key: [*keys, 2].
        n: how many.

    Returns:
        int64 [*keys, n, 2].

    Raises:
        OperandError: no key.
        OptionError: `n` is no int, or negative.

    Examples:
        >>> from tdfunc import random
        >>> key, one, two = random.split(random.key(0), 3)
        >>> random.split(key, 4).shape
        torch.Size([4, 2])
    """
    key = as_key(key)
    (count,) = as_size((n,), "n")
    return derive_range(key, count, _SPLIT)


def fold_in(key: torch.Tensor, data: int | torch.Tensor) -> torch.Tensor:
    """Return a new key made of a key and a number, such as the step of a loop.

    Args:
        key: [*keys, 2].
        data: an int in [-2**63, 2**64), or an integer tensor that broadcasts with
            ``[*keys]``.

    Returns:
        int64 [*broadcast, 2].

    Raises:
        OperandError: no key, or the data is no integer.
        OptionError: it has more than 64 bits.

    Examples:
        >>> import torch
        >>> from tdfunc import random
        >>> key = random.key(0)
        >>> steps = [random.fold_in(key, step) for step in range(3)]
        >>> torch.equal(torch.stack(steps), random.fold_in(key, torch.arange(3)))
        True
    """
    key = as_key(key)
    words = _as_words(data, "what is folded in", "random.fold_in(key, 0)")
    if isinstance(words, torch.Tensor):
        return derive(key, words, _FOLD)
    return derive_one(key, words, _FOLD)


def of_paths(key: torch.Tensor, ids: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Return the keys of the entries of a tree.

    Args:
        key: [2].
        ids: one int64 for each path.
    """
    data = torch.tensor(ids, dtype=torch.int64, device=key.device)
    return derive(key, data, _PATH).unbind(0)


def as_key(value: Any) -> torch.Tensor:
    """Return a key, checked.

    Raises:
        OperandError: it is something else.
    """
    if (
        isinstance(value, torch.Tensor)
        and value.dtype is torch.int64
        and value.dim()
        and value.shape[-1] == 2  # noqa: PLR2004
    ):
        return value
    got = repr(value)
    if isinstance(value, torch.Tensor):
        got = f"{value.dtype} of shape {list(value.shape)}"
    elif isinstance(value, torch.Generator):
        got = "a torch.Generator"
    raise OperandError(
        "this is no key",
        expected="an int64 tensor [..., 2]",
        got=got,
        fix="random.key(0) makes one of a seed",
    )


def lone_key(value: Any, what: str) -> torch.Tensor:
    """Return a key, checked to be a single one.

    Raises:
        OperandError: it is something else.
    """
    key = as_key(value)
    if key.dim() != 1:
        raise OperandError(
            f"{what} takes one key",
            expected="shape [2]",
            got=f"shape {list(key.shape)}",
            fix="keys[0] is one; torch.vmap(lambda key: ...)(keys) maps over all",
        )
    return key


def _as_words(value: Any, what: str, fix: str) -> torch.Tensor | int:
    """Return integers as int64 words; one int as one that int64 holds.

    Raises:
        OperandError: they are no integers.
        OptionError: they have more than 64 bits.
    """
    # First and with nothing else: it is what keeps a number symbolic in compiled code.
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if isinstance(value, torch.Tensor):
        kind = value.dtype
        if kind is torch.int64:
            return value
        if not (kind.is_floating_point or kind.is_complex or kind is torch.bool):
            return value.to(torch.int64)
        raise OperandError(
            f"{what} is an integer", expected="an integer tensor", got=kind, fix=fix
        )
    if isinstance(value, torch.SymInt):
        symbol: Any = value
        return torch.full((), symbol, dtype=torch.int64)
    try:
        number = index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise OperandError(
            f"{what} is an integer",
            expected="an int or an integer tensor",
            got=repr(value),
            fix=fix,
        )
    if not -(1 << 63) <= number < 1 << 64:
        raise OptionError(
            f"{what} has at most 64 bits",
            expected="-2**63 to 2**64 - 1",
            got=number,
            fix="random.fold_in(random.key(low), high) takes more",
        )
    return as_signed(number) if number > 0 else number
