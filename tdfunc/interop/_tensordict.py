"""Trees to and from the package tensordict, without copying a tensor."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdfunc import NonTensorData, TensorClass, TensorDict, unbatched
from tdfunc._core.keys import as_path, short
from tdfunc.errors import OperandError

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["from_tensordict", "to_tensordict"]


def _peer() -> Any:
    """Import the package; the extra ``interop`` installs it."""
    import tensordict

    return tensordict


def from_tensordict(source: Any) -> TensorDict:
    """Return the tree of a `tensordict.TensorDict`, sharing its tensors.

    Nested ones become nodes with their own batch sizes, `NonTensorData` and `MetaData`
    statics, a `NonTensorStack` one value for every row, an `UnbatchedTensor` an
    `unbatched` one. Names of the batch dims are those of the root. Who writes into the
    source changes what the tree shows: pass ``source.clone()`` if that can happen.

    Args:
        source: a `tensordict.TensorDict` with any nesting of them.

    Raises:
        ImportError: tensordict is not installed.
        OperandError: it is none, or holds what no tree can hold: a lazy stack, a
            stack of values with more dims than its node, an instance of a tensorclass.

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
        if type(node) is not peer.TensorDict:
            raise OperandError(
                "this can not become a node of a tree",
                path=path,
                expected="a tensordict.TensorDict",
                got=type(node).__name__,
                fix="source.contiguous() makes a lazy stack dense; "
                "source.to_tensordict() makes a plain one of an instance",
            )
        entries: dict[str, Any] = {}
        nodes.append((path, node, entries))
        for key, value in node.items():
            here = (*path, key)
            entry = _entry_of(peer, value, here, node.batch_size)
            if entry is None:
                entry = {}  # keeps the place of the node
                pending.append((here, value))
            entries[key] = entry
    built: dict[Path, TensorDict] = {}
    # Children come after their parents: from the end, every child is there.
    for path, node, entries in reversed(nodes):
        for key in entries:
            if (*path, key) in built:
                entries[key] = built.pop((*path, key))
        names = node.names if not path and any(node.names) else None
        built[path] = TensorDict(entries, node.batch_size, names=names)
    return built[()]


def _entry_of(peer: Any, value: Any, path: Path, size: torch.Size) -> Any:
    """Return what the constructor takes for an entry of the peer, None for a node."""
    if isinstance(value, peer.NonTensorStack):
        return _rows_of(value, path, size)
    if isinstance(value, (peer.NonTensorData, peer.MetaData)):
        return NonTensorData(value.data)
    if isinstance(value, peer.UnbatchedTensor):
        return unbatched(value.as_subclass(torch.Tensor))
    return value if isinstance(value, torch.Tensor) else None


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


def to_tensordict(td: TensorDict | TensorClass) -> Any:
    """Return a `tensordict.TensorDict` that shares the leaves of a tree.

    Records become plain, without the fields that are None. Nested nodes keep their
    batch sizes, statics become `NonTensorData`, one value for every row a
    `NonTensorStack`, `unbatched` tensors `UnbatchedTensor`. The result can be written
    into, and what is written into a tensor of it shows in the tree:
    ``to_tensordict(td.clone())`` is on its own.

    Args:
        td: the tree.

    Raises:
        ImportError: tensordict is not installed.
        OperandError: `td` is no tree, a static of it is a tensor, or there is one
            value for every row of a batch that is empty in another dim than the last.

    Examples:
        >>> import pytest
        >>> import torch
        >>> from tdfunc import TensorDict, interop
        >>> _ = pytest.importorskip("tensordict")
        >>> td = TensorDict({"n": {"x": torch.ones(3)}}, 3)
        >>> interop.to_tensordict(td)["n"].batch_size
        torch.Size([3])
    """
    if not isinstance(td, (TensorDict, TensorClass)):
        raise OperandError(
            "only a tree can be converted",
            expected="a tdfunc.TensorDict",
            got=type(td).__name__,
            fix="interop.from_tensordict(source) is the other direction",
        )
    if td._schema.records:
        return to_tensordict(td.to_tensordict())
    peer = _peer()
    nodes: list[tuple[Path, TensorDict | TensorClass]] = [((), td)]
    nodes += [
        (as_path(key), value)
        for key, value in td.items(include_nested=True)
        if isinstance(value, TensorDict)
    ]
    schema = td._schema
    paths = schema.static_paths()
    lookups = frozenset(schema.unbatched())
    stacks = {
        paths[at]: _stacked(peer, td._leaves[slot], td[paths[at]], paths[at])
        for slot, at in schema.coded()
    }
    _check_statics(td, paths, lookups)
    built: dict[Path, Any] = {}
    for path, node in reversed(nodes):
        entries: dict[str, Any] = {}
        tensors = frozenset(node.keys(leaves_only=True))
        for key in node.keys():  # noqa: SIM118 - iterating over a tree gives rows
            here = (*path, key)
            if here in built:
                entries[key] = built.pop(here)
            elif here in stacks:
                entries[key] = stacks[here]
            elif key in tensors:
                entries[key] = node[key]
            elif isinstance(node[key], torch.Tensor):
                entries[key] = peer.UnbatchedTensor(node[key])
            else:
                entries[key] = peer.NonTensorData(node[key], batch_size=node.batch_size)
        names = None if path or td.names is None else list(td.names)
        built[path] = peer.TensorDict(entries, batch_size=node.batch_size, names=names)
    return built[()]


def _check_statics(
    td: TensorDict | TensorClass, paths: tuple[Path, ...], lookups: frozenset[int]
) -> None:
    for at, (path, value) in enumerate(zip(paths, td._statics.values, strict=True)):
        if isinstance(value, torch.Tensor) and at not in lookups:
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
