"""Draws from what is there: permutations and choices of rows."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.batch import as_size
from tdfunc._core.node import Node
from tdfunc._ops.shape import as_dim
from tdfunc.errors import OperandError, OptionError, ShapeError
from tdfunc.random._draws import draw
from tdfunc.random._integers import in_range
from tdfunc.random._keys import as_key, lone_key
from tdfunc.random._samples import check_probabilities, has_values

if TYPE_CHECKING:
    from tdfunc.typing import Size

__all__ = ["choice", "permutation"]


def permutation(
    key: torch.Tensor, x: int | torch.Tensor | Node, dim: int | str = 0
) -> Any:
    """Return the rows of a tensor or of a tree in random order.

    Args:
        key: [*keys, 2]; [2] if `x` is no int.
        x: a tensor, a tree, or an int that stands for ``torch.arange(x)``.
        dim: the dim of the rows; of a tree a batch dim, by number or name.

    Returns:
        What `x` is, in new memory; int64 [*keys, x] for an int.

    Raises:
        OperandError: no key, or `x` is something else.
        OptionError: `x` is negative.
        ShapeError: `x` has no such dim.

    Examples:
        >>> from tdfunc import random
        >>> random.permutation(random.key(0), 5).sort().values
        tensor([0, 1, 2, 3, 4])
    """
    if not isinstance(x, (torch.Tensor, Node)):
        return _orders(as_key(key), _count(x, "permutation"))
    key = lone_key(key, "permutation")
    at, count = _rows(x, dim)
    return _taken(x, _orders(key, count, x.device), at)


def choice(
    key: torch.Tensor,
    a: int | torch.Tensor | Node,
    shape: Size = (),
    replace: bool = True,  # noqa: FBT001, FBT002 (the place that JAX and NumPy give it)
    p: torch.Tensor | None = None,
    dim: int | str = 0,
) -> Any:
    """Return rows of a tensor or of a tree, drawn with or without replacement.

    Args:
        key: [*keys, 2]; [2] if `a` is no int.
        a: a tensor, a tree, or an int that stands for ``torch.arange(a)``.
        shape: how many rows; their dims take the place of `dim`.
        replace: whether a row may be drawn twice.
        p: how probable each row is [rows], not negative; need not add up to one. None
            for all the same. In compiled code and inside transforms its values are not
            checked.
        dim: the dim of the rows; of a tree a batch dim, by number or name.

    Returns:
        What `a` is, in new memory; int64 [*keys, *shape] for an int.

    Raises:
        OperandError: no key, or `a` or `p` is something else.
        OptionError: no shape, a negative `a` or probability, or too few that are not
            zero.
        ShapeError: there are no rows, too few of them without replacement, no such dim,
            or `p` has another shape than [rows].

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict, random
        >>> td = TensorDict({"x": torch.arange(10)}, 10)
        >>> random.choice(random.key(0), td, [3]).batch_size
        torch.Size([3])
    """
    size = as_size(shape, "shape")
    total = size.numel()
    if isinstance(a, (torch.Tensor, Node)):
        key = lone_key(key, "choice")
        at, count = _rows(a, dim)
        device = a.device
    else:
        key, at, count, device = as_key(key), 0, _count(a, "choice"), None
    if total and not count:
        raise ShapeError(
            "there are no rows to choose from",
            expected="at least one row",
            got=0,
            fix="shape=[0] chooses none",
        )
    if not replace and total > count:
        raise ShapeError(
            "there are too few rows to choose from without replacement",
            expected=f"at most {count}",
            got=f"shape {list(size)}, which is {total}",
            fix="replace=True",
        )
    device = device or key.device
    if p is not None:
        least = min(total, 1) if replace else total
        weights = _weights(p, count, device, least=least)
        picked = _weighted(key, weights, size, replace=replace)
    elif replace:
        picked = in_range(key, size, 0, max(count, 1), device)
    else:
        picked = _orders(key, count, device)[..., :total]
        picked = picked.reshape((*key.shape[:-1], *size))
    return _taken(a, picked, at) if isinstance(a, (torch.Tensor, Node)) else picked


def _orders(
    key: torch.Tensor, count: int, device: torch.device | None = None
) -> torch.Tensor:
    # Two of n words are equal with a probability of n**2 / 2**65, and keep their order.
    bits = draw(key, "bits", (count,), torch.int64, device or key.device)
    return bits.argsort(dim=-1, stable=True)


def _weights(p: Any, count: int, device: torch.device, *, least: int) -> torch.Tensor:
    """Return probabilities as float64, checked; `least` of them must not be zero."""
    if not isinstance(p, torch.Tensor):
        raise OperandError(
            "p is a tensor",
            expected=f"a floating tensor [{count}]",
            got=type(p).__name__,
            fix="p=torch.tensor(p)",
        )
    if p.shape != (count,):
        raise ShapeError(
            "p has one probability for each row",
            expected=f"shape [{count}]",
            got=f"shape {list(p.shape)}",
        )
    check_probabilities(p, "p", most=float("inf"))
    if has_values(p) and int(p.count_nonzero()) < least:
        raise OptionError(
            "there are too few rows whose probability is not zero",
            expected=f"at least {least}",
            got=int(p.count_nonzero()),
            fix=f"p=torch.ones({count}) makes all rows as probable",
        )
    return p.detach().to(device, torch.float64)


def _weighted(
    key: torch.Tensor, p: torch.Tensor, size: torch.Size, *, replace: bool
) -> torch.Tensor:
    count = p.shape[0]
    if replace:
        edges = p.cumsum(0)
        u = draw(key, "uniform", size, torch.float64, p.device)
        # From (0, total], so that rows of probability 0 are never found: the first
        # edge that is not below.
        target = (1 - u) * edges[-1:].reshape(())
        return torch.searchsorted(edges, target).clamp(max=count - 1)
    # The largest of log p + Gumbel noise are what drawing one after the other gives.
    noise = draw(key, "gumbel", (count,), torch.float64, p.device)
    found = (noise + p.log()).topk(size.numel(), dim=-1).indices
    return found.reshape((*key.shape[:-1], *size))


def _count(x: Any, what: str) -> int:
    """Return how many rows an int stands for.

    Raises:
        OperandError: it is no int.
        OptionError: it is negative.
    """
    if isinstance(x, torch.SymInt):
        return x  # pyright: ignore[reportReturnType]
    try:
        count = index(x) if not isinstance(x, bool) else None
    except TypeError:
        count = None
    if count is None:
        raise OperandError(
            f"{what} takes rows",
            expected="an int, a tensor or a tree",
            got=type(x).__name__,
            fix=f"random.{what}(key, torch.tensor(x))",
        )
    if count < 0:
        raise OptionError(
            "there is no negative number of rows", expected=">= 0", got=count
        )
    return count


def _rows(x: torch.Tensor | Node, dim: int | str) -> tuple[int, int]:
    """Return the dim of the rows, counted from the front, and how many there are."""
    if isinstance(x, Node):
        shape = x.batch_size
        if isinstance(dim, str):
            dim = as_dim(x, dim)
        fix = "td.apply(lambda x: random.permutation(key, x)) moves the rows of leaves"
    else:
        shape = x.shape
        fix = "random.permutation(key, x.reshape(-1))"
    count = len(shape)
    if not isinstance(dim, int) or not -count <= dim < count:
        raise ShapeError(
            "there is no such dim of rows",
            expected=f"{-count} to {count - 1}" if count else "at least a dim",
            got=repr(dim),
            fix=None if count else fix,
        )
    return dim % count, shape[dim]


def _taken(x: torch.Tensor | Node, picked: torch.Tensor, dim: int) -> Any:
    return x[(*[slice(None)] * dim, picked)]
