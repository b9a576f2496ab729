"""Trees to and from the package tensordict, without copying a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack
from tdfunc._core.keys import short
from tdfunc._core.node import Node
from tdfunc._core.schema import STATIC
from tdfunc.errors import OperandError

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["from_tensordict", "to_tensordict"]


def _peer() -> Any:
    """Import the package; the extra ``interop`` installs it."""
    import tensordict

    return tensordict


def from_tensordict(source: Any) -> Any:
    """Return the tree of a `tensordict.TensorDict`, sharing its tensors.

    Nested ones become nodes with their own batch sizes, lazy stacks become lazy stacks
    of their members (`densify` makes one dense), `NonTensorData` statics. Names
    of the batch dims are those of the root. Who writes into the source changes what the
    tree shows: pass ``source.clone()`` if that can happen.

    Args:
        source: a `tensordict.TensorDict` or `LazyStackedTensorDict`, with any nesting
            of them.

    Raises:
        ImportError: tensordict is not installed.
        OperandError: it is none, or holds what no tree can hold: a stack of values
            that are not tensors, an instance of a tensorclass.

    Examples:
        >>> import pytest
        >>> import torch
        >>> from tdfunc import interop
        >>> tensordict = pytest.importorskip("tensordict")
        >>> source = tensordict.TensorDict(x=torch.ones(3), s="text", batch_size=[3])
        >>> td = interop.from_tensordict(source)
        >>> td["x"] is source["x"], td["s"]
        (True, 'text')
    """
    peer = _peer()
    nodes: list[tuple[Path, Any, dict[str, Any]]] = []
    pending: list[tuple[Path, Any]] = [((), source)]
    # All is looked at before anything is built.
    while pending:
        path, node = pending.pop()
        entries: dict[str, Any] = {}
        nodes.append((path, node, entries))
        for key, value in _items_of(peer, path, node):
            if isinstance(value, (torch.Tensor, NonTensorData)):
                entries[key] = value
            else:
                entries[key] = {}  # keeps the place of the node
                pending.append(((*path, key), value))
    built: dict[Path, Any] = {}
    # Children come after their parents: from the end, every child is there.
    for path, node, entries in reversed(nodes):
        for key in entries:
            if (*path, key) in built:
                entries[key] = built.pop((*path, key))
        names = node.names if not path and any(node.names) else None
        if type(node) is peer.LazyStackedTensorDict:
            stack = lazy_stack(list(entries.values()), node.stack_dim)
            built[path] = stack.with_names(names)
            continue
        built[path] = TensorDict(entries, node.batch_size, names=names)
    return built[()]


def _items_of(peer: Any, path: Path, node: Any) -> list[tuple[str, Any]]:
    """Return what a container of the peer holds; members of a stack by their places."""
    if type(node) is peer.LazyStackedTensorDict:
        return [(str(i), tree) for i, tree in enumerate(node.tensordicts)]
    if type(node) is not peer.TensorDict:
        raise OperandError(
            "this can not become a node of a tree",
            path=path,
            expected="a tensordict.TensorDict",
            got=type(node).__name__,
            fix="source.to_tensordict() makes a plain one of an instance",
        )
    items: list[tuple[str, Any]] = []
    for key, value in node.items():
        here = (*path, key)
        if isinstance(value, peer.NonTensorStack):
            raise OperandError(
                "one value a row can not be held by a tree",
                path=here,
                expected="a tensor, a node or one value for the whole node",
                got=type(value).__name__,
                fix=f"source.exclude({short(here)!r})",
            )
        is_static = isinstance(value, peer.NonTensorData)
        items.append((key, NonTensorData(value.data) if is_static else value))
    return items


def to_tensordict(td: TensorDict | LazyStackedTensorDict) -> Any:
    """Return a `tensordict.TensorDict` that shares the leaves of a tree.

    Nested nodes keep their batch sizes, lazy stacks become lazy stacks of their
    members, statics `NonTensorData`. The result can
    be written into, and what is written into a tensor of it shows in the tree:
    ``to_tensordict(td.clone())`` is on its own.

    Args:
        td: the tree.

    Raises:
        ImportError: tensordict is not installed.
        OperandError: `td` is no tree, or a static of it is a tensor.

    Examples:
        >>> import pytest
        >>> import torch
        >>> from tdfunc import TensorDict, interop
        >>> _ = pytest.importorskip("tensordict")
        >>> td = TensorDict({"n": {"x": torch.ones(3)}}, 3)
        >>> interop.to_tensordict(td)["n"].batch_size
        torch.Size([3])
    """
    if not isinstance(td, (TensorDict, LazyStackedTensorDict)):
        raise OperandError(
            "only a tree can be converted",
            expected="a tdfunc.TensorDict",
            got=type(td).__name__,
            fix="interop.from_tensordict(source) is the other direction",
        )
    peer = _peer()
    nodes: list[tuple[Path, Any, dict[str, Any]]] = []
    pending: list[tuple[Path, Any]] = [((), td)]
    while pending:
        path, node = pending.pop()
        entries = _entries_of(path, node)
        nodes.append((path, node, entries))
        below = [(k, v) for k, v in entries.items() if isinstance(v, Node)]
        pending += [((*path, key), value) for key, value in below]
    built: dict[Path, Any] = {}
    # Children come after their parents: from the end, every child is there.
    for path, node, own in reversed(nodes):
        entries = {}
        for key, value in own.items():
            if isinstance(value, Node):
                entries[key] = built.pop((*path, key))
            elif isinstance(value, torch.Tensor):
                entries[key] = value
            else:
                entries[key] = peer.NonTensorData(value, batch_size=node.batch_size)
        names = None if path or td.names is None else list(td.names)
        if type(node) is LazyStackedTensorDict:
            built[path] = peer.lazy_stack(list(entries.values()), node.stack_dim)
            if names is not None:
                built[path].names = names
            continue
        built[path] = peer.TensorDict(entries, batch_size=node.batch_size, names=names)
    return built[()]


def _entries_of(path: Path, node: Any) -> dict[str, Any]:
    """Return the entries of a node; the members of a lazy stack by their places."""
    if type(node) is LazyStackedTensorDict:
        return {str(i): tree for i, tree in enumerate(node.tensordicts)}
    for key, value in node.items():
        if isinstance(value, torch.Tensor) and node._schema.index[key][0] == STATIC:
            here = (*path, key)
            raise OperandError(
                "tensordict takes a tensor that is a static for a leaf",
                path=here,
                expected="a static that is no tensor",
                got=type(value).__name__,
                fix=f"interop.to_tensordict(td.drop({short(here)!r}))",
            )
    return dict(node.items())
