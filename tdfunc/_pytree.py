"""Registration of trees as pytrees: in torch (Python and C++) and in optree.

One tree is one pytree node, however deep: its children are the flat leaves, and its
context is the schema, the box of statics and the names. Flattening never looks at
the leaves and unflattening never checks them: they may be ints, None, shardings,
or whole trees, and the rank rule finds the batch size when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import optree
import torch
import torch.utils._pytree as torch_pytree

from tdfunc._core._torch import is_compiling
from tdfunc._core.node import Node, make, restore
from tdfunc._core.pickling import rebuild_leaf
from tdfunc._core.schema import STATIC, Schema, schema_from_entries
from tdfunc._core.statics import NO_STATICS, Statics, rebuild_statics
from tdfunc._tensordict import TensorDict
from tdfunc.errors import OptionError, show_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tdfunc.typing import Path

__all__ = ["Context", "PathEntry", "PathKey", "register"]


@final
class Context:
    """What is left of a tree without its leaves.

    Two contexts are equal when keys, kinds, node classes and statics are, in
    whatever order the keys were written. Feature ranks, surplus dims and names ride
    along uncompared, so that a tree of norms, masks or in_dims matches the tree that
    it was mapped from.
    """

    __slots__ = ("batch_size", "names", "schema", "statics")

    schema: Schema
    statics: Statics
    names: tuple[str | None, ...] | None
    batch_size: torch.Size | None  # only of a tree without leaves

    def __init__(
        self,
        schema: Schema,
        statics: Statics,
        names: tuple[str | None, ...] | None,
        batch_size: torch.Size | None,
    ) -> None:
        self.schema = schema
        self.statics = statics
        self.names = names
        self.batch_size = batch_size

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Context):
            return NotImplemented
        return self.schema.matches(other.schema) and (
            self.statics is other.statics or self.statics == other.statics
        )

    def __hash__(self) -> int:
        return hash(self.schema.canon())

    def __repr__(self) -> str:
        return f"Context({self.schema!r}, {self.statics!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        size = None if self.batch_size is None else tuple(self.batch_size)
        return rebuild_context, (self.schema, self.statics, self.names, size)


def rebuild_context(
    schema: Schema,
    statics: Statics,
    names: tuple[str | None, ...] | None,
    batch_size: tuple[int, ...] | None,
) -> Context:
    """Return an unpickled context."""
    size = None if batch_size is None else torch.Size(batch_size)
    return Context(schema, statics, names, size)


@dataclass(frozen=True)
class PathKey(torch_pytree.MappingKey[Any, Any]):
    """The path of a nested leaf, as one entry of a key path: ``['a']['b']``."""

    key: Path

    def __str__(self) -> str:
        return "".join(f"[{key!r}]" for key in self.key)

    def get(self, mapping: Any) -> Any:
        """Return the leaf of a tree at this path."""
        return mapping[self.key]


class PathEntry(optree.PyTreeEntry):
    """The path of a leaf in optree's accessors: ``td['a', 'b']``."""

    def codify(self, /, node: str = "") -> str:
        """Return the expression that reads the leaf of `node`."""
        return f"{node}[{self.entry!r}]"


def flatten(td: Node) -> tuple[list[Any], Context]:
    """Return the leaves and the context of a tree."""
    schema = td._schema
    size = None if schema.n else td._batch_size
    return list(td._leaves), Context(schema, td._statics, td._names, size)


def unflatten(children: Iterable[Any], context: Context) -> Any:
    """Return the tree of any objects as leaves; trees among them become nodes."""
    leaves = tuple(children)
    schema = context.schema
    statics = context.statics
    for leaf in leaves:
        if isinstance(leaf, Node):
            schema, leaves, statics = _with_nodes(schema, leaves, statics)
            break
    size = None if leaves else context.batch_size
    if size is None and not leaves:
        size = torch.Size()
    td = make(schema, leaves, statics, size, context.names)
    if size is None and is_compiling():
        # Settled at once: a slot filled later would be a side effect to guard.
        td.batch_size  # noqa: B018
    return td


def _with_nodes(
    schema: Schema, leaves: tuple[Any, ...], statics: Statics
) -> tuple[Schema, tuple[Any, ...], Statics]:
    """Make nested nodes of the trees among the leaves, as jacobians have them."""
    ranks = schema.ranks()
    counts = [
        leaf.dim() - rank
        for leaf, rank in zip(leaves, ranks, strict=True)
        if isinstance(leaf, (torch.Tensor, Node))
    ]
    batch = max(0, min(counts))
    nodes: list[tuple[int, Schema, int]] = []
    flat: list[Any] = []
    for slot, leaf in enumerate(leaves):
        if isinstance(leaf, Node):
            surplus = max(0, leaf.batch_dims - batch)
            nodes.append((slot, leaf._schema, surplus))
            flat.extend(leaf._leaves)
        else:
            flat.append(leaf)
    new = schema.replaced(tuple(nodes))
    values: dict[Path, Any] = dict(
        zip(schema.static_paths(), statics.values, strict=True)
    )
    paths = schema.paths()
    for slot, leaf in enumerate(leaves):
        if isinstance(leaf, Node):
            places = leaf._schema.static_paths()
            for path, value in zip(places, leaf._statics.values, strict=True):
                values[(*paths[slot], *path)] = value
    box = tuple([values[path] for path in new.static_paths()])
    return new, tuple(flat), Statics(box) if box else NO_STATICS


def flatten_with_keys(td: Node) -> tuple[list[tuple[Any, Any]], Context]:
    """Return pairs of key-path entry and leaf, and the context."""
    leaves, context = flatten(td)
    keys = [_torch_key(path) for path in td._schema.paths()]
    return list(zip(keys, leaves, strict=True)), context


def _torch_key(path: Path) -> Any:
    return torch_pytree.MappingKey(path[0]) if len(path) == 1 else PathKey(path)


def flatten_for_optree(td: Node) -> tuple[tuple[Any, ...], Context, tuple[Any, ...]]:
    """Return leaves, context and entries in optree's form."""
    leaves, context = flatten(td)
    paths = tuple([p if len(p) > 1 else p[0] for p in td._schema.paths()])
    return tuple(leaves), context, paths


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
    return Context(
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
            pending.extend(item)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):  # pyright: ignore[reportUnknownVariableType]
                return False
            pending.extend(item.values())  # pyright: ignore[reportUnknownArgumentType]
        elif item is not None and type(item) not in (bool, int, float, str):
            return False
    return True


def register(cls: type[Node], serialized_name: str) -> None:
    """Register a class of trees in torch's and optree's pytrees."""
    torch_pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=serialized_name,
        to_dumpable_context=to_dumpable,
        from_dumpable_context=from_dumpable,
        flatten_with_keys_fn=flatten_with_keys,
    )
    optree.register_pytree_node(
        cls,
        flatten_for_optree,
        unflatten_from_optree,
        path_entry_type=PathEntry,
        namespace=optree.registry.__GLOBAL_NAMESPACE,
    )
    torch.serialization.add_safe_globals([cls])


register(TensorDict, "tdfunc.TensorDict")
torch.serialization.add_safe_globals(
    [Schema, schema_from_entries, Statics, rebuild_statics, restore, rebuild_leaf]
)
