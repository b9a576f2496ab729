"""Trees to and from the package tensordict, without copying a tensor."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.keys import short
from tdfunc._core.node import Node
from tdfunc._lazystack import LazyStackedTensorDict
from tdfunc._ops.peer import read_peer
from tdfunc._tensorclass import TensorClass
from tdfunc._tensordict import TensorDict
from tdfunc.errors import OperandError

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["from_tensordict", "to_tensordict"]


def _peer() -> Any:
    """Import the package; the extra ``interop`` installs it."""
    import tensordict

    return tensordict


def from_tensordict(source: Any, *, cls: type[TensorClass] | None = None) -> Any:
    """Return the tree of a `tensordict.TensorDict`, sharing its tensors.

    Nested ones become nodes with their own batch sizes, lazy stacks become lazy stacks
    of their members (`densify` makes one dense), instances of a tensorclass plain
    nodes, `NonTensorData` and `MetaData` statics, a `NonTensorStack` one value for
    every row, an `UnbatchedTensor` an `unbatched` one. Names of the batch dims are
    those of the root. Who writes into the source changes what the tree shows: pass
    ``source.clone()`` if that can happen.

    Args:
        source: a `tensordict.TensorDict`, a `LazyStackedTensorDict` or an instance of
            a tensorclass, with any nesting of them.
        cls: the `TensorClass` to make a record of; None for a plain tree.

    Raises:
        ImportError: tensordict is not installed.
        OperandError: it is none, or holds what no tree can hold: a stack of values
            with more dims than its node, a mapped or stored container.
        TdfuncError: what ``cls.from_tensordict`` raises.

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
    _peer()
    tree = read_peer(source)
    return tree if cls is None else cls.from_tensordict(tree)


def to_tensordict(td: TensorDict | TensorClass | LazyStackedTensorDict) -> Any:
    """Return a `tensordict.TensorDict` that shares the leaves of a tree.

    Records become plain, without the fields that are None. Nested nodes keep their
    batch sizes, lazy stacks become lazy stacks of their members, statics
    `NonTensorData`, one value for every row a `NonTensorStack`, `unbatched` tensors
    `UnbatchedTensor`. The result can be written into, and what is written into a
    tensor of it shows in the tree: ``to_tensordict(td.clone())`` is on its own.

    Args:
        td: the tree.

    Raises:
        ImportError: tensordict is not installed.
        OperandError: `td` is no tree, a static of it is a tensor, or it has one value
            for every row and no rows.

    Examples:
        >>> import pytest
        >>> import torch
        >>> from tdfunc import TensorDict, interop
        >>> tensordict = pytest.importorskip("tensordict")
        >>> td = TensorDict({"n": {"x": torch.ones(3)}}, batch_size=3)
        >>> interop.to_tensordict(td)["n"].batch_size
        torch.Size([3])
    """
    if not isinstance(td, (TensorDict, TensorClass, LazyStackedTensorDict)):
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
        entries = _entries_of(peer, path, node)
        nodes.append((path, node, entries))
        below = [(k, v) for k, v in entries.items() if isinstance(v, Node)]
        pending += [((*path, key), value) for key, value in below]
    built: dict[Path, Any] = {}
    # Children come after their parents: from the end, every child is there.
    for path, node, entries in reversed(nodes):
        own = {
            key: built.pop((*path, key)) if isinstance(value, Node) else value
            for key, value in entries.items()
        }
        names = None if path or td.names is None else list(td.names)
        if type(node) is LazyStackedTensorDict:
            built[path] = peer.lazy_stack(list(own.values()), node.stack_dim)
            if names is not None:
                built[path].names = names
            continue
        built[path] = peer.TensorDict(own, batch_size=node.batch_size, names=names)
    return built[()]


def _entries_of(peer: Any, path: Path, node: Any) -> dict[str, Any]:
    """Return the entries of a node, those that are no nodes in the peer's form.

    Members of a lazy stack go by their places.
    """
    if type(node) is LazyStackedTensorDict:
        return {str(i): tree for i, tree in enumerate(node.tensordicts)}
    schema = node._schema
    lookups = frozenset(schema.unbatched())
    tables = {at: slot for slot, at in schema.coded()}
    out: dict[str, Any] = {}
    for key in schema.keys:
        kid, lo, slo, _ = schema.index[key]
        here = (*path, key)
        if not isinstance(kid, int):
            out[key] = node[key]
        elif kid >= 0:
            out[key] = node._leaves[lo]
        elif slo in lookups:
            out[key] = peer.UnbatchedTensor(node[key])
        elif slo in tables:
            out[key] = _stacked(peer, node._leaves[lo], node[key], here)
        else:
            value = node[key]
            _check_static(value, here)
            out[key] = peer.NonTensorData(value, batch_size=node.batch_size)
    return out


def _check_static(value: Any, path: Path) -> None:
    if isinstance(value, torch.Tensor):
        raise OperandError(
            "tensordict takes a tensor that is a static for a leaf",
            path=path,
            expected="a static that is no tensor",
            got=type(value).__name__,
            fix=f"interop.to_tensordict(td.drop({short(path)!r}))",
        )


def _stacked(peer: Any, codes: torch.Tensor, values: Any, path: Path) -> Any:
    """Return values in nested lists as the peer's stack; those of no row raise."""
    shape = codes.shape
    if 0 in shape[:-1]:
        raise OperandError(
            "tensordict has no stack of values of this batch size",
            path=path,
            expected="rows",
            got=f"shape {list(shape)}",
            fix=f"interop.to_tensordict(td.drop({short(path)!r}))",
        )
    if not shape:
        return peer.NonTensorData(values)
    level = values
    for _ in shape[1:]:
        level = [value for row in level for value in row]
    level = [peer.NonTensorData(value) for value in level]
    for size in reversed(shape):
        rows = len(level) // size if size else prod(shape[:-1])
        level = [
            peer.NonTensorStack(*level[i * size : (i + 1) * size]) for i in range(rows)
        ]
    return level[0]
