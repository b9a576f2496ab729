"""Registration of trees as pytrees: in torch (Python and C++) and in optree.

One tree is one pytree node, however deep: its children are the flat leaves, and its
context is the schema, the box of statics and the names. Flattening never looks at
the leaves and unflattening never checks them: they may be ints, None, shardings,
or whole trees, and the rank rule finds the batch size when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import optree
import optree.registry
import torch

from tdfunc._core._torch import PLAIN_TYPES, is_tracing, pytree
from tdfunc._core.build import nested
from tdfunc._core.context import BareContext, Context, context_of
from tdfunc._core.node import Node, make, restore, settled_size
from tdfunc._core.pickling import rebuild_leaf
from tdfunc._core.schema import schema_from_entries
from tdfunc._core.statics import (
    NO_STATICS,
    Statics,
    rebuild_statics,
)
from tdfunc._lazystack import LazyStackedTensorDict
from tdfunc._ops.members import Members
from tdfunc._tensordict import TensorDict
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tdfunc._core.schema import Schema

__all__ = ["PathEntry", "register"]


class PathEntry(optree.PyTreeEntry):
    """The path of a leaf in optree's accessors: ``td['a', 'b']``."""

    def codify(self, /, node: str = "") -> str:
        """Return the expression that reads the leaf of `node`."""
        return f"{node}[{self.entry!r}]"


def flatten(td: Node) -> tuple[tuple[Any, ...], Context]:
    """Return the leaves and the context of a tree."""
    # Settled first, or reading a batch size could change what a later map returns.
    size = settled_size(td)
    schema = td._schema
    kept = None if schema.n else size
    return td._leaves, context_of(schema, td._statics, td._names, kept)


def unflatten(children: Iterable[Any], context: Context) -> Any:
    """Return the tree of any objects as leaves; trees among them become nodes."""
    leaves = tuple(children)
    if isinstance(context, BareContext):
        schema, statics, names, size = context.own_schema(), NO_STATICS, None, None
    else:
        schema, statics = context.schema, context.statics
        names, size = context.names, context.batch_size
    traced = is_tracing()
    # Tensors only is what most calls are about, and the test for it one C loop.
    if traced or not PLAIN_TYPES.issuperset(map(type, leaves)):
        for leaf in leaves:
            if isinstance(leaf, Node):
                schema, leaves, statics = _with_nodes(schema, leaves, statics)
                break
    td = make(schema, leaves, statics, size, names)
    if size is None and traced:
        # Settled at once: a schema exchanged later would be a side effect.
        td.batch_size  # noqa: B018
    return td


def _with_nodes(
    schema: Schema, leaves: tuple[Any, ...], statics: Statics
) -> tuple[Schema, tuple[Any, ...], Statics]:
    """Make nested nodes of the trees among the leaves, as jacobians have them."""
    counts = [
        leaf.dim() - rank
        for leaf, rank in zip(leaves, schema.ranks(), strict=True)
        if isinstance(leaf, (torch.Tensor, Node))
    ]
    return nested(schema, leaves, statics, max(0, min(counts)))


def flatten_with_keys(td: Node) -> tuple[list[tuple[Any, Any]], Context]:
    """Return pairs of key-path entry and leaf, and the context."""
    leaves, context = flatten(td)
    keys = [pytree.MappingKey(key) for key in td._schema.leaf_names()]
    return list(zip(keys, leaves, strict=True)), context


def flatten_for_optree(td: Node) -> tuple[tuple[Any, ...], Context, tuple[Any, ...]]:
    """Return leaves, context and entries in optree's form."""
    leaves, context = flatten(td)
    return leaves, context, td._schema.leaf_names()


def unflatten_from_optree(context: Context, children: Iterable[Any]) -> Any:
    """Return the tree; optree passes the context first."""
    return unflatten(children, context)


def to_dumpable(context: Context) -> dict[str, Any]:
    """Return the context as JSON values: one flat list of (depth, key, kind).

    Raises:
        OptionError: a static is not a JSON value, or a nested node has a class that
            data can not name.
    """
    paths = context.schema.static_paths()
    for path, value in zip(paths, context.statics.values, strict=True):
        if not _is_json(value):
            raise OptionError(
                "a static is no JSON value, so the structure can not be written",
                path=path,
                expected="None, a bool, a number, a string, or lists and dicts of them",
                got=type(value).__name__,
                fix=f"td.drop({path!r}) before exporting",
            )
    rows: list[list[Any]] = []
    for depth, key, kind, cls in context.schema.entries():
        if cls is not None and cls is not TensorDict:
            raise OptionError(
                f"nodes of class {cls.__name__} can not be written as JSON", got=key
            )
        rows.append([depth, key, kind, cls is not None])
    size = context.batch_size
    return {
        "entries": rows,
        "statics": list(context.statics.values),
        "names": None if context.names is None else list(context.names),
        "batch_size": None if size is None else list(size),
    }


def from_dumpable(data: dict[str, Any]) -> Context:
    """Return the context that `to_dumpable` wrote."""
    rows = [
        (depth, key, kind, TensorDict if is_node else None)
        for depth, key, kind, is_node in data["entries"]
    ]
    names, size = data["names"], data["batch_size"]
    return context_of(
        schema_from_entries(TensorDict, rows),
        rebuild_statics(tuple(data["statics"])),
        None if names is None else tuple(names),
        None if size is None else torch.Size(size),
    )


def _is_json(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                return False
            pending.extend(item.values())
        elif item is not None and type(item) not in (bool, int, float, str):
            return False
    return True


def register(cls: type[Node], serialized_name: str) -> None:
    """Register a class of trees in torch's and optree's pytrees."""
    in_torch: Any = pytree.register_pytree_node
    in_optree: Any = optree.register_pytree_node
    # torch.export reads dynamic shapes as the kind of sequence that flatten returns.
    in_torch(
        cls,
        flatten,
        unflatten,
        serialized_type_name=serialized_name,
        to_dumpable_context=to_dumpable,
        from_dumpable_context=from_dumpable,
        flatten_with_keys_fn=flatten_with_keys,
    )
    in_optree(
        cls,
        flatten_for_optree,
        unflatten_from_optree,
        path_entry_type=PathEntry,
        namespace=optree.registry.__GLOBAL_NAMESPACE,
    )
    torch.serialization.add_safe_globals([cls])


class StackContext:
    """What is left of the members of a lazy stack: where the stack dim is.

    Counted from the last batch dim. Like feature ranks it rides along uncompared.
    """

    __slots__ = ("behind", "rest")

    def __init__(self, behind: int, rest: tuple[int, ...]) -> None:
        self.behind = behind
        self.rest = rest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StackContext)

    def __hash__(self) -> int:
        return hash(StackContext)

    def __repr__(self) -> str:
        return f"StackContext({self.behind}, {self.rest})"


def flatten_members(members: Members) -> tuple[tuple[Any, ...], StackContext]:
    """Return the members with the stack dim at size 1, and where it is."""
    return members.flat(), StackContext(members.behind, members.rest)


def unflatten_members(children: Iterable[Any], context: StackContext) -> Members:
    """Return members of whatever a pytree function made of them."""
    return Members.unflattened(tuple(children), context.behind, context.rest)


def flatten_members_with_keys(
    members: Members,
) -> tuple[list[tuple[Any, Any]], StackContext]:
    """Return pairs of key-path entry and member, and the context."""
    children, context = flatten_members(members)
    return [(pytree.SequenceKey(i), x) for i, x in enumerate(children)], context


def flatten_members_for_optree(
    members: Members,
) -> tuple[tuple[Any, ...], StackContext, tuple[Any, ...]]:
    """Return members, context and entries in optree's form."""
    children, context = flatten_members(members)
    return children, context, tuple(range(len(children)))


def unflatten_members_from_optree(
    context: StackContext, children: Iterable[Any]
) -> Members:
    """Return members; optree passes the context first."""
    return unflatten_members(children, context)


def _register_members() -> None:
    in_torch: Any = pytree.register_pytree_node
    in_optree: Any = optree.register_pytree_node
    in_torch(
        Members,
        flatten_members,
        unflatten_members,
        serialized_type_name="tdfunc.Members",
        to_dumpable_context=lambda c: [c.behind, list(c.rest)],
        from_dumpable_context=lambda data: StackContext(data[0], tuple(data[1])),
        flatten_with_keys_fn=flatten_members_with_keys,
    )
    in_optree(
        Members,
        flatten_members_for_optree,
        unflatten_members_from_optree,
        namespace=optree.registry.__GLOBAL_NAMESPACE,
    )


register(TensorDict, "tdfunc.TensorDict")
register(LazyStackedTensorDict, "tdfunc.LazyStackedTensorDict")
_register_members()
torch.serialization.add_safe_globals(
    [schema_from_entries, Statics, rebuild_statics, restore, rebuild_leaf, Members]
)
