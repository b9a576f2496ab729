"""Draws in the form of a tree: one stream for each path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdfunc._core.node import Node
from tdfunc._core.tree import around_lazy, around_rows, with_leaves
from tdfunc.errors import OperandError, OptionError
from tdfunc.random._keys import fold_in, lone_key, of_paths
from tdfunc.random._samples import COMPLEX, FLOATING, normal, uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tdfunc._core.node import NodeT
    from tdfunc.typing import Device

__all__ = ["normal_like", "uniform_like"]


def normal_like(
    key: torch.Tensor,
    td: NodeT,
    *,
    dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> NodeT:
    """Return the tree with standard normal numbers in place of every element.

    Every path has a stream of its own: what an entry gets depends on the key, its path
    and its shape, and not on which other entries there are or in what order. Statics
    and rows of values are kept.

    Args:
        key: [2].
        td: the tree; every leaf is of a floating or complex dtype, or `dtype` is.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Returns:
        A tree of the same structure and batch size; statics are shared.

    Raises:
        OperandError: no key, or several; `td` is no tree.
        OptionError: a leaf is of a dtype that is not drawn, naming it.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict, random
        >>> key = random.key(0)
        >>> td = TensorDict({"w": torch.zeros(2, 3), "b": torch.zeros(3)})
        >>> both, one = [random.normal_like(key, t) for t in (td, td.drop("b"))]
        >>> torch.equal(both["w"], one["w"])
        True
    """
    return _like(lone_key(key, "normal_like"), td, normal, dtype, device)


def uniform_like(
    key: torch.Tensor,
    td: NodeT,
    *,
    dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> NodeT:
    """Return the tree with uniform numbers from [0, 1) in place of every element.

    Every path has a stream of its own: what an entry gets depends on the key, its path
    and its shape, and not on which other entries there are or in what order. Statics
    and rows of values are kept.

    Args:
        key: [2].
        td: the tree; every leaf is of a floating dtype, or `dtype` is.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Returns:
        A tree of the same structure and batch size; statics are shared.

    Raises:
        OperandError: no key, or several; `td` is no tree.
        OptionError: a leaf is of a dtype that is not drawn, naming it.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict, random
        >>> td = TensorDict({"x": torch.zeros(2, 3)}, 2)
        >>> random.uniform_like(random.key(0), td).batch_size
        torch.Size([2])
    """
    return _like(lone_key(key, "uniform_like"), td, uniform, dtype, device)


def _like(
    key: torch.Tensor,
    td: NodeT,
    fn: Callable[..., torch.Tensor],
    dtype: torch.dtype | None,
    device: Device | None,
) -> NodeT:
    if not isinstance(td, Node):
        raise OperandError(
            f"{fn.__name__}_like takes a tree",
            expected="a tree",
            got=type(td).__name__,
            fix=f"random.{fn.__name__}(key, x.shape) for a tensor, "
            "TensorDict(value) makes a tree of a mapping",
        )
    if td._schema.rows:
        return around_rows(td, lambda bare: _like(key, bare, fn, dtype, device))
    if td._schema.lazy:
        keys = _keys_of_parts(key, td)
        return around_lazy(td, lambda part: _like(next(keys), part, fn, dtype, device))
    leaves = td._leaves
    if not leaves:
        return td
    keys = of_paths(key, td._schema.path_ids())
    out: list[torch.Tensor] = []
    for i, (own, leaf) in enumerate(zip(keys, leaves, strict=True)):
        kind = dtype or leaf.dtype
        if not (kind in FLOATING or (fn is normal and kind in COMPLEX)):
            raise OptionError(
                "an entry is of a dtype that can not be drawn",
                path=td._schema.paths()[i],
                expected="a floating dtype of 16 to 64 bits",
                got=kind,
                fix="dtype=torch.float32 for all, or td.select(...) leaves it out",
            )
        out.append(fn(own, leaf.shape, kind, device=device or leaf.device))
    return with_leaves(td, tuple(out))


def _keys_of_parts(key: torch.Tensor, td: Any) -> Iterator[torch.Tensor]:
    """Yield the keys of a tree without its lazy stacks, and of each of their members.

    In the order in which `around_lazy` comes to them.
    """
    yield key
    ids = td._schema.path_ids()
    for slot, _, _ in td._schema.lazies():
        (stack_key,) = of_paths(key, (ids[slot],))
        for member in range(len(td._leaves[slot].trees)):
            yield fold_in(stack_key, member)
