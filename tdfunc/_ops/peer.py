"""The containers of the package tensordict, read without importing it.

Whoever holds one has imported the package, so it is found among the loaded modules.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdfunc._core.keys import short
from tdfunc._core.leaf import unbatched
from tdfunc._core.statics import NonTensorData
from tdfunc._ops.convert import from_dict
from tdfunc._ops.entries import with_names
from tdfunc._ops.lazy import lazy_stack
from tdfunc.errors import OperandError

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["is_entry", "is_peer", "read_entry", "read_peer"]


def is_peer(value: Any) -> bool:
    """Return whether a value is a container of tensordict that can become a tree."""
    peer = sys.modules.get("tensordict")
    if peer is None:
        return False
    kinds = (peer.TensorDict, peer.LazyStackedTensorDict)
    return type(value) in kinds or _is_record(peer, value)


def is_entry(value: Any) -> bool:
    """Return whether a value is a container or another entry of tensordict."""
    peer = sys.modules.get("tensordict")
    if peer is None:
        return False
    kinds = (peer.NonTensorStack, peer.NonTensorData, peer.MetaData)
    return isinstance(value, (*kinds, peer.UnbatchedTensor)) or is_peer(value)


def read_peer(source: Any) -> Any:
    """Return the tree of a container of tensordict, sharing its tensors.

    Raises:
        OperandError: it is none, or holds what no tree can hold.
    """
    peer: Any = sys.modules.get("tensordict")
    if peer is None:
        raise _no_node(source, ())
    nodes: list[tuple[Path, Any, dict[str, Any]]] = []
    pending: list[tuple[Path, Any]] = [((), source)]
    # All is looked at before anything is built.
    while pending:
        path, node = pending.pop()
        node = _stack_in(peer, node)
        entries: dict[str, Any] = {}
        nodes.append((path, node, entries))
        for key, value in _items_of(peer, path, node):
            entry = _entry_of(peer, value, (*path, key), node.batch_size)
            if entry is None:
                entry = {}  # keeps the place of the node
                pending.append(((*path, key), value))
            entries[key] = entry
    built: dict[Path, Any] = {}
    # Children come after their parents: from the end, every child is there.
    for path, node, entries in reversed(nodes):
        for key in entries:
            if (*path, key) in built:
                entries[key] = built.pop((*path, key))
        names = node.names if not path and any(node.names) else None
        if type(node) is peer.LazyStackedTensorDict:
            stack = lazy_stack(list(entries.values()), node.stack_dim)
            built[path] = stack if names is None else with_names(stack, names)
            continue
        built[path] = from_dict(entries, batch_size=node.batch_size, names=names)
    return built[()]


def read_entry(value: Any, path: Path) -> Any:
    """Return a value with what tensordict has for a tree or an entry in our form."""
    peer: Any = sys.modules.get("tensordict")
    if peer is None:
        return value
    if isinstance(value, peer.NonTensorStack):
        return _rows_of(value, path, value.batch_size)
    if isinstance(value, (peer.NonTensorData, peer.MetaData)):
        return NonTensorData(value.data)
    if isinstance(value, peer.UnbatchedTensor):
        return unbatched(value.as_subclass(torch.Tensor))
    return read_peer(value) if is_peer(value) else value


def _is_record(peer: Any, value: Any) -> bool:
    kinds = (peer.NonTensorData, peer.NonTensorStack, peer.MetaData)
    return peer.is_tensorclass(value) and not isinstance(value, (*kinds, type))


def _stack_in(peer: Any, node: Any) -> Any:
    """Return the lazy stack that an instance of a tensorclass is made of, or `node`."""
    held = node._tensordict if _is_record(peer, node) else None
    return held if type(held) is peer.LazyStackedTensorDict else node


def _items_of(peer: Any, path: Path, node: Any) -> list[tuple[str, Any]]:
    """Return what a container holds; members of a stack by their places."""
    if type(node) is peer.LazyStackedTensorDict:
        return [(str(i), tree) for i, tree in enumerate(node.tensordicts)]
    if type(node) is peer.TensorDict:
        return list(node.items())
    if _is_record(peer, node):
        # As entries: read as a field, a value of each row is a list of all.
        held = dict(node.items())
        names = [f.name for f in dataclasses.fields(node)]
        fields = [
            (name, held[name] if name in held else getattr(node, name))
            for name in names
        ]
        # Fields that are None are no entries.
        return [(name, value) for name, value in fields if value is not None]
    raise _no_node(node, path)


def _no_node(node: Any, path: Path) -> OperandError:
    return OperandError(
        "this can not become a node of a tree",
        path=path,
        expected="a TensorDict, a lazy stack, or an instance of a tensorclass",
        got=type(node).__name__,
        fix="source.to_tensordict() makes a plain one of other kinds",
    )


def _entry_of(peer: Any, value: Any, path: Path, size: torch.Size) -> Any:
    """Return what the constructor takes for an entry of the peer, None for a node."""
    if isinstance(value, peer.NonTensorStack):
        return _rows_of(value, path, size)
    if isinstance(value, (peer.NonTensorData, peer.MetaData)):
        return NonTensorData(value.data)
    if isinstance(value, peer.UnbatchedTensor):
        return unbatched(value.as_subclass(torch.Tensor))
    if isinstance(value, torch.Tensor):
        return value
    return (
        None
        if isinstance(value, peer.TensorDictBase) or is_peer(value)
        else (NonTensorData(value))
    )


def _rows_of(stack: Any, path: Path, size: torch.Size) -> np.ndarray[Any, Any]:
    """Return the values of the peer's stack as an array of objects."""
    shape = tuple(stack.batch_size)
    if len(shape) > len(size):
        raise OperandError(
            "a stack of values has more dims than its node",
            path=path,
            expected=f"at most {len(size)} dims",
            got=f"{type(stack).__name__} with batch size {list(shape)}",
            fix=f"source.exclude({short(path)!r})",
        )
    rows = np.empty(shape, dtype=object)
    values = stack.tolist()
    for place in np.ndindex(shape):
        value = values
        for at in place:
            value = value[at]
        rows[place] = value
    return rows
