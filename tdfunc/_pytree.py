"""Registration of trees as pytrees: in torch (Python and C++) and in optree.

One tree is one pytree node, however deep: its children are the flat leaves, and its
context is the schema, the box of statics and the names. Flattening never looks at
the leaves and unflattening never checks them: they may be ints, None, shardings,
or whole trees, and the rank rule finds the batch size when it is asked for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import optree
import optree.registry
import torch

from tdfunc._core._torch import PLAIN_TYPES, forget_loaded_specs, is_tracing, pytree
from tdfunc._core.build import nested
from tdfunc._core.context import BareContext, Context, context_of
from tdfunc._core.node import Node, make, restore, settled_size
from tdfunc._core.pickling import rebuild_jagged, rebuild_leaf, unpack_leaves
from tdfunc._core.rows import Table
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
        settled_size(td)
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

    A table of rows is the list of its values.

    Raises:
        OptionError: a static is not a JSON value, or a node has a class that data can
            not name: one local to a function, or since defined again.
    """
    _serialized_name(context.schema.cls)
    paths = context.schema.static_paths()
    tables = frozenset([at for _, at in context.schema.coded()])
    statics: list[Any] = []
    for at, path in enumerate(paths):
        value = context.statics.values[at]
        if at in tables:
            value = list(value.values)
        statics.append(value)
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
        # True stands for the common class, so that most contexts are short.
        node: Any = cls is not None if cls is TensorDict or cls is None else None
        rows.append([depth, key, kind, _serialized_name(cls) if node is None else node])
    size = context.batch_size
    return {
        "entries": rows,
        "statics": statics,
        "names": None if context.names is None else list(context.names),
        "batch_size": None if size is None else list(size),
    }


# What a program has registered: data can name a class only if the program made it.
_CLASSES: dict[str, type[Node]] = {}
_NAMES: dict[type[Node], str] = {}


def _serialized_name(cls: Any) -> str:
    name = _NAMES.get(cls)
    if name is None:
        raise OptionError(
            f"the class {cls.__qualname__} is local to a function, so data can not "
            "name it",
            fix="define the class at the top level of a module",
        )
    if _CLASSES[name] is not cls:
        raise OptionError(
            f"the class {cls.__qualname__} was defined again, and data that names it "
            "means the new one",
            got=f"a tree of the older {name}",
            fix=f"{cls.__qualname__}.from_dict(td.to_dict()), of the new class",
        )
    return name


def _class_named(name: str | bool | None) -> type[Node] | None:  # noqa: FBT001 - JSON
    if not isinstance(name, str):
        return TensorDict if name else None
    if name not in _CLASSES:
        raise OptionError(
            "the structure has nodes of a class that this program has not made",
            got=name,
            fix="import the module that defines it",
        )
    return _CLASSES[name]


def from_dumpable(data: dict[str, Any], cls: type[Node] = TensorDict) -> Context:
    """Return the context that `to_dumpable` wrote of a tree of class `cls`."""
    rows = [
        (depth, key, kind, _class_named(node))
        for depth, key, kind, node in data["entries"]
    ]
    names, size = data["names"], data["batch_size"]
    schema = schema_from_entries(cls, rows)
    statics: list[Any] = list(data["statics"])
    for _, at in schema.coded():
        statics[at] = Table(tuple(statics[at]))
    return context_of(
        schema,
        rebuild_statics(tuple(statics)),
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


def register(cls: type[Node], serialized_name: str | None) -> None:
    """Register a class of trees in torch's and optree's pytrees.

    Args:
        cls: the class.
        serialized_name: what stands for it in a dumped structure; a class that is
            registered later under the same name takes it over. None for a class that
            can not be dumped.
    """
    in_torch: Any = pytree.register_pytree_node
    in_optree: Any = optree.register_pytree_node
    dumping: dict[str, Any] = {}
    if serialized_name is not None:
        if serialized_name in _CLASSES:
            forget_loaded_specs()
        _NAMES[cls] = serialized_name
        _CLASSES[serialized_name] = cls
        dumping = {
            "serialized_type_name": serialized_name,
            "to_dumpable_context": to_dumpable,
            "from_dumpable_context": partial(from_dumpable, cls=cls),
        }
    # torch.export reads dynamic shapes as the kind of sequence that flatten returns.
    in_torch(cls, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys, **dumping)
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

    With the sizes of the other dims and the level of
    transforms. Like feature ranks it rides along uncompared.
    """

    __slots__ = ("dim", "level", "rest")

    def __init__(self, dim: int, rest: tuple[int, ...], level: int = 0) -> None:
        self.dim = dim
        self.rest = rest
        self.level = level

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StackContext)

    def __hash__(self) -> int:
        return hash(StackContext)

    def __repr__(self) -> str:
        return f"StackContext({self.dim}, {self.rest})"


def flatten_members(members: Members) -> tuple[tuple[Any, ...], StackContext]:
    """Return the members with the stack dim at size 1, and where it is."""
    context = StackContext(*members.where, members.level)
    return members.flat(), context


def unflatten_members(children: Iterable[Any], context: StackContext) -> Members:
    """Return members of whatever a pytree function made of them."""
    return Members.unflattened(
        tuple(children), context.dim, context.rest, context.level
    )


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
        to_dumpable_context=lambda c: [c.dim, list(c.rest)],
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
    [
        *(schema_from_entries, Statics, rebuild_statics, restore, rebuild_leaf),
        *(rebuild_jagged, unpack_leaves, Members, Table),
    ]
)
