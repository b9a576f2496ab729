"""One loop over the flat leaves: the hot path of every leafwise operation.

`map_leaves` is the plain loop, with the path of the failing leaf noted on any
error; `pointwise` takes torch's multi-tensor kernels where they do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import foreach_works, is_compiling
from tdfunc._core.node import make
from tdfunc.errors import show_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tdfunc._core.node import Node, NodeT
    from tdfunc._core.schema import Schema

__all__ = ["map_leaves", "pointwise", "with_leaves", "zip_leaves"]


def map_leaves(
    schema: Schema, leaves: Iterable[Any], fn: Callable[..., Any], *args: Any
) -> tuple[Any, ...]:
    """Return ``fn(leaf, *args)`` for every leaf; an error gets a note with the path."""
    if is_compiling():
        return tuple([fn(leaf, *args) for leaf in leaves])
    out: list[Any] = []
    add = out.append
    try:
        for leaf in leaves:
            add(fn(leaf, *args))
    except Exception as error:
        error.add_note(f"tdfunc: at {show_path(schema.paths()[len(out)])}")
        raise
    return tuple(out)


def zip_leaves(
    schema: Schema, columns: Iterable[Iterable[Any]], fn: Callable[..., Any]
) -> tuple[Any, ...]:
    """Return ``fn(*row)`` for every leaf across `columns`, noting the path on errors."""
    rows = zip(*columns, strict=True)
    return map_leaves(schema, rows, lambda row: fn(*row))


def pointwise(
    node: NodeT,
    fn: Callable[..., Any],
    each: Callable[..., Any] | None,
    *args: Any,
) -> NodeT:
    """Return the node with ``fn(leaf, *args)`` in place of each leaf.

    Args:
        node: the tree.
        fn: a function that keeps shapes.
        each: the ``torch._foreach_*`` form of `fn`, None if there is none.
        args: passed on.
    """
    leaves = node._leaves
    if each is not None and foreach_works(leaves):
        try:
            return with_leaves(node, tuple(each(leaves, *args)))
        except (RuntimeError, TypeError):
            # The kernel refuses what the function may take, and does not say which
            # leaf is wrong: the loop does.
            pass
    return with_leaves(node, map_leaves(node._schema, leaves, fn, *args))


def with_leaves(node: NodeT, leaves: tuple[Any, ...]) -> NodeT:
    """Return the node with other leaves of the same shapes."""
    return make(
        node._schema, leaves, node._statics, node._batch_size, node._names
    )


def feature_views(
    value: torch.Tensor, ranks: tuple[int, ...]
) -> list[torch.Tensor]:
    """Return `value` with as many trailing dims of size 1 as each rank says.

    Aligns a tensor of batch shape with leaves that have feature dims.
    """
    views: dict[int, torch.Tensor] = {}
    for rank in ranks:
        if rank not in views:
            views[rank] = value.reshape((*value.shape, *(1,) * rank))
    return [views[rank] for rank in ranks]


def all_tensors(node: Node) -> bool:
    """Return whether every leaf is a tensor (a pytree function may put others)."""
    return all([isinstance(leaf, torch.Tensor) for leaf in node._leaves])
