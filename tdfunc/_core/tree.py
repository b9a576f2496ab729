"""One loop over the flat leaves: the hot path of every leafwise operation.

`map_leaves` is the plain loop, with the path of the failing leaf noted on any
error; `pointwise` takes torch's multi-tensor kernels where they do the same.
"""

from __future__ import annotations

from itertools import repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import foreach_works, is_tracing
from tdfunc._core.node import Node, carried_size, make, size_at
from tdfunc._core.rows import Table, encode, merged, recoded, trimmed, united
from tdfunc._core.statics import Statics, gather_statics
from tdfunc.errors import OperandError, show_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tdfunc._core.leaf import LeafLike
    from tdfunc._core.node import NodeT
    from tdfunc._core.schema import Schema
    from tdfunc.typing import Path

__all__ = [
    "along_lazy",
    "around_lazy",
    "around_rows",
    "each_member",
    "feature_views",
    "how_to_densify",
    "map_leaves",
    "noting",
    "one_table",
    "pointwise",
    "put_rows",
    "refuse_lazy",
    "refuse_rows",
    "restored",
    "uncoded",
    "widened",
    "with_absent",
    "with_leaves",
    "with_tables",
    "without",
    "without_rows",
    "zip_leaves",
]


def map_leaves(
    schema: Schema, leaves: Iterable[Any], fn: Callable[..., Any], *args: Any
) -> tuple[Any, ...]:
    """Return ``fn(leaf, *args)`` for every leaf; an error gets a note with the path."""
    if args:
        return zip_leaves(schema, (leaves, *[repeat(arg) for arg in args]), fn)
    return zip_leaves(schema, (leaves,), fn)


def noting(error: Exception, path: Path) -> None:
    """Note on an error of a user's function which entry it was given."""
    error.add_note(f"tdfunc: at {show_path(path)}")


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
        noting(error, schema.paths()[slot])
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
    if not node._schema.plain:
        return _pointwise_apart(node, fn, each, *args)
    leaves = node._leaves
    if each is not None and foreach_works(leaves):
        try:
            return with_leaves(node, tuple(each(leaves, *args)))
        except (RuntimeError, TypeError):
            # The kernel refuses what the function may take, and does not say which
            # leaf is wrong: the loop does.
            pass
    return with_leaves(node, map_leaves(node._schema, leaves, fn, *args))


def _pointwise_apart(
    node: NodeT, fn: Callable[..., Any], each: Callable[..., Any] | None, *args: Any
) -> NodeT:
    def call(td: Any) -> Any:
        return pointwise(td, fn, each, *args)

    return around_rows(node, call) if node._schema.rows else around_lazy(node, call)


def with_leaves(node: NodeT, leaves: tuple[Any, ...]) -> NodeT:
    """Return the node with other leaves of the same shapes."""
    # Size before schema: another thread may settle the node in between, and then the
    # size that it stored goes with the schema that it stored.
    size = carried_size(node)
    return make(node._schema, leaves, node._statics, size, node._names)


def around_rows(td: NodeT, fn: Callable[[NodeT], NodeT]) -> NodeT:
    """Return ``fn(td)`` for a function that computes, which rows of values sit out.

    `fn` gets the tree without them and returns one with the same entries and a batch
    size to which that of `td` broadcasts; they are put back, as often as rows were
    repeated.
    """
    return put_rows(td, fn(without_rows(td)))


def put_rows(td: NodeT, done: NodeT) -> NodeT:
    """Return what became of the tree without rows, with the rows of the tree."""
    size, old = done.batch_size, td.batch_size
    schema = td._schema
    whole = schema.restored(schema.rows, done._schema)
    values = iter(done._leaves)
    rows = frozenset(schema.rows)
    leaves = [
        leaf if slot in rows else next(values) for slot, leaf in enumerate(td._leaves)
    ]
    if whole is not schema or size != old:
        plan = schema.aligned(whole, len(old), len(size))
        for slot in schema.rows:
            # Sizes at the levels of the nodes above: those of a tensor there, if any.
            above = schema.paths()[slot][:-1]
            room = size_at(done, above)
            codes = widened(leaves[slot], plan.mine[slot], plan.joint[slot])
            leaves[slot] = codes.expand((*room, *codes.shape[len(room) :]))
    return make(whole, tuple(leaves), td._statics, size, done._names)


def around_lazy(td: NodeT, fn: Callable[..., Any], *operands: Any) -> NodeT:
    """Return ``fn(td, *operands)`` with the members of lazy stacks in turn.

    `fn` gets the tree without its lazy stacks, and then every member of every stack,
    each with its part of the operands: trees, tensors whose dims align with the batch
    dims, or anything else as it is. Batch dims may only come in front.
    """
    lazies = td._schema.lazies()
    slots = tuple([slot for slot, _, _ in lazies])
    # An operand may lack other entries of `td` (a mask those of text).
    places = [_lazy_slots(x) for x in operands]
    bare = [
        without(x, at) if isinstance(x, Node) else x
        for x, at in zip(operands, places, strict=True)
    ]
    rest = without(td, slots)
    done = fn(rest, *bare)
    stacks: list[Any] = []
    for i, (slot, _, surplus) in enumerate(lazies):
        own: list[Any] = []
        for x, at in zip(operands, places, strict=True):
            if isinstance(x, Node):
                own.append(x._leaves[at[i]])
            elif isinstance(x, torch.Tensor) and x.dim() and surplus:
                own.append(x.reshape((*x.shape, *(1,) * surplus)))
            else:
                own.append(x)
        stacks.append(td._leaves[slot].each(fn, *own))
    if done is rest and all([x is td._leaves[i] for x, i in zip(stacks, slots)]):  # noqa: B905
        return td
    return restored(td, slots, stacks, done)


def _lazy_slots(x: Any) -> tuple[int, ...]:
    if not isinstance(x, Node):
        return ()
    return tuple([slot for slot, _, _ in x._schema.lazies()])


def each_member(td: NodeT, fn: Callable[..., Any], *operands: Any) -> NodeT:
    """Return the tree with ``fn(member, ...)`` for the members of its lazy stacks.

    The rest of the tree stays. `operands` are for a lazy stack as root: trees and
    tensors of its batch size, of which each member gets its part.
    """
    size = td.batch_size
    leaves = list(td._leaves)
    for slot, _, _ in td._schema.lazies():
        leaves[slot] = leaves[slot].each(fn, *operands)
    return make(td._schema, tuple(leaves), td._statics, size, td._names)


def along_lazy(
    td: Node,
    what: str,
    fn: Callable[[Any, list[int]], Any],
    dims: Sequence[int],
    *,
    gone: bool = False,
) -> Any:
    """Return ``fn(td, dims)`` with the members of lazy stacks in turn.

    Args:
        td: the tree.
        what: the name of the operation, for the error.
        fn: gets a tree and the batch dims of it that `dims` are, and returns a tree
            or a named tuple of trees.
        dims: batch dims, counted from the front.
        gone: whether they are missing in the result.

    Raises:
        OperandError: one of them is the stack dim of a lazy stack.
    """
    lazies = td._schema.lazies()
    slots = tuple([slot for slot, _, _ in lazies])
    stacks = [td._leaves[slot].along(what, fn, dims, gone=gone) for slot in slots]
    done = fn(without(td, slots), list(dims))
    if isinstance(done, tuple):
        kind: Any = type(done)
        parts: Any = enumerate(done)
        return kind(*[restored(td, slots, [s[i] for s in stacks], t) for i, t in parts])
    return restored(td, slots, stacks, done)


def refuse_lazy(td: Node, what: str) -> None:
    """Raise if a tree is, or holds, a lazy stack, which `what` can not take.

    Raises:
        OperandError: naming the first of them.
    """
    for slot, path, _ in td._schema.lazies():
        raise OperandError(
            f"{what} is not defined for a lazy stack",
            path=path or None,
            expected="a dense tree",
            got="trees that are kept apart",
            fix=how_to_densify(td._leaves[slot]),
        )


def how_to_densify(members: LeafLike) -> str:
    """Return which call makes a lazy stack of these members dense."""
    trees: tuple[Any, ...] = () if members.known_shape is None else members.trees
    if any([not trees[0]._schema.matches(tree._schema) for tree in trees[1:]]):
        return (
            "td.select(*td.keys(True, True)).densify() first, which keeps the tensors "
            "that all members have; densify(padding_value=0) where shapes differ"
        )
    return (
        "td.densify() first where the members are alike, "
        "td.densify(padding_value=0) where shapes differ"
    )


def widened(
    leaf: torch.Tensor, own: tuple[int, ...], wanted: tuple[int, ...]
) -> torch.Tensor:
    """Insert dims of size 1 in front of each segment that is shorter than wanted."""
    # A leaf without dims broadcasts as it is; padded, torch would give its dtype more
    # say in the promotion.
    if own == wanted or leaf.dim() == 0:
        return leaf
    shape: list[int] = []
    at = 0
    for dims, most in zip(own, wanted, strict=True):
        shape += [1] * (most - dims)
        shape += leaf.shape[at : at + dims]
        at += dims
    return leaf.reshape(shape)


def without_rows(td: NodeT) -> NodeT:
    """Return the tree without the entries that have one value for every row."""
    return without(td, td._schema.rows)


def without(td: NodeT, places: tuple[int, ...]) -> NodeT:
    """Return the tree without some of its leaves."""
    if not places:
        return td
    size = td.batch_size
    bare, slots, sslots = td._schema.without(places)
    leaves = tuple([td._leaves[slot] for slot in slots])
    statics = gather_statics([(td._statics, slot) for slot in sslots])
    return make(bare, leaves, statics, size, td._names)


def restored(
    td: NodeT, places: tuple[int, ...], back: Sequence[Any], done: NodeT
) -> NodeT:
    """Return `done`, computed from `td` without some leaves, with these put back."""
    size = done.batch_size
    values = iter(done._leaves)
    given = dict(zip(places, back, strict=True))
    leaves = tuple(
        [given[i] if i in given else next(values) for i in range(td._schema.n)]
    )
    schema = td._schema.restored(places, done._schema)
    return make(schema, leaves, td._statics, size, done._names)


def uncoded(td: NodeT) -> NodeT:
    """Return the tree with the codes of rows as tensors, without their tables."""
    size = td.batch_size
    schema, sslots = td._schema.uncoded()
    statics = gather_statics([(td._statics, slot) for slot in sslots])
    return make(schema, td._leaves, statics, size, td._names)


def with_tables(td: NodeT, changes: dict[int, Table], leaves: tuple[Any, ...]) -> NodeT:
    """Return the tree with other tables, by place among the statics, and leaves."""
    size = td.batch_size
    values = list(td._statics.values)
    for at, table in changes.items():
        values[at] = table
    return make(td._schema, leaves, Statics(tuple(values)), size, td._names)


def one_table(nodes: Sequence[NodeT]) -> list[NodeT]:
    """Return trees to be compared, whose rows share their tables.

    They have the same entries. Values that are the same have one code, so that these
    rows are no longer the very objects.
    """
    for node in nodes:
        node.batch_size  # noqa: B018 - settles before the schema is read
    first = nodes[0]
    # Keys are sorted, so the places are those of all that match.
    places = first._schema.coded()
    if not places:
        return list(nodes)
    changes: dict[int, Table] = {}
    columns = [list(node._leaves) for node in nodes]
    for slot, at in places:
        pairs = [
            trimmed(leaves[slot], node._statics.values[at])
            for node, leaves in zip(nodes, columns, strict=True)
        ]
        changes[at] = table = merged([own for _, own in pairs])
        for leaves, (codes, old) in zip(columns, pairs, strict=True):
            leaves[slot] = united(recoded(codes, old, table), table)
    return [
        with_tables(node, changes, tuple(leaves))
        for node, leaves in zip(nodes, columns, strict=True)
    ]


def with_absent(td: NodeT) -> tuple[NodeT, dict[int, int]]:
    """Return the tree whose rows may be None, and the code of that for their leaves."""
    none = encode([None], ())[1]
    changes: dict[int, Table] = {}
    codes: dict[int, int] = {}
    for slot, at in td._schema.coded():
        changes[at] = table = merged([td._statics.values[at], none])
        codes[slot] = table.code_of(None)
    return (with_tables(td, changes, td._leaves) if changes else td), codes


def refuse_rows(td: Node, what: str) -> None:
    """Raise if an entry has one value for every row, which `what` can not take.

    Raises:
        OperandError: naming the first of them.
    """
    rows = td._schema.rows
    if rows:
        raise OperandError(
            f"{what} is not defined for one value per row",
            path=td._schema.paths()[rows[0]],
            expected="tensors",
            got="rows of values that are no tensors",
            fix=f"td.filter_non_tensor().{what}(...) leaves them out",
        )


def feature_views(value: torch.Tensor, ranks: tuple[int, ...]) -> list[torch.Tensor]:
    """Return `value` with as many trailing dims of size 1 as each rank says.

    Aligns a tensor of batch shape with leaves that have feature dims.
    """
    views: dict[int, torch.Tensor] = {}
    for rank in ranks:
        if rank not in views:
            views[rank] = value.reshape((*value.shape, *(1,) * rank))
    return [views[rank] for rank in ranks]
