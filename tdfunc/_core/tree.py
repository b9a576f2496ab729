"""One loop over the flat leaves: the hot path of every leafwise operation.

`map_leaves` is the plain loop, with the path of the failing leaf noted on any
error; `pointwise` takes torch's multi-tensor kernels where they do the same.
"""

from __future__ import annotations

from itertools import repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any

from tdfunc._core._torch import foreach_works, is_tracing
from tdfunc._core.node import carried_size, make
from tdfunc.errors import show_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from tdfunc._core.node import NodeT
    from tdfunc._core.schema import Schema

__all__ = ["map_leaves", "pointwise", "with_leaves", "zip_leaves"]


def map_leaves(
    schema: Schema, leaves: Iterable[Any], fn: Callable[..., Any], *args: Any
) -> tuple[Any, ...]:
    """Return ``fn(leaf, *args)`` for every leaf; an error gets a note with the path."""
    if args:
        return zip_leaves(schema, (leaves, *[repeat(arg) for arg in args]), fn)
    return zip_leaves(schema, (leaves,), fn)


def zip_leaves(
    schema: Schema, columns: Sequence[Iterable[Any]], fn: Callable[..., Any]
) -> tuple[Any, ...]:
    """Return ``fn(*row)`` for every leaf across `columns`, noting the path on errors.

    The first column decides how many rows there are.
    """
    if is_tracing():
        return tuple([fn(*row) for row in zip(*columns, strict=False)])
    # What is left in the iterator tells which row failed, at no cost to the loop.
    first = iter(columns[0])
    try:
        out = tuple(map(fn, first, *columns[1:]))
    except Exception as error:
        slot = schema.n - length_hint(first) - 1
        error.add_note(f"tdfunc: at {show_path(schema.paths()[slot])}")
        raise
    if len(out) != schema.n:
        # `map` took it for the end of its input.
        message = "the function raised StopIteration"
        raise RuntimeError(f"{message} at {show_path(schema.paths()[len(out)])}")
    return out


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
    # Size before schema: another thread may settle the node in between, and then the
    # size that it stored goes with the schema that it stored.
    size = carried_size(node)
    return make(node._schema, leaves, node._statics, size, node._names)


def feature_views(value: torch.Tensor, ranks: tuple[int, ...]) -> list[torch.Tensor]:
    """Return `value` with as many trailing dims of size 1 as each rank says.

    Aligns a tensor of batch shape with leaves that have feature dims.
    """
    views: dict[int, torch.Tensor] = {}
    for rank in ranks:
        if rank not in views:
            views[rank] = value.reshape((*value.shape, *(1,) * rank))
    return [views[rank] for rank in ranks]
