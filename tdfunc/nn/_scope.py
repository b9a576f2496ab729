"""What modules of a sequence have written so far, on top of the tree they began with.

A sequence builds one tree in the end, not one for each module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.keys import short
from tdfunc._core.node import Node, entry_at, make
from tdfunc._core.schema import Schema
from tdfunc._core.statics import NO_STATICS, gather_statics
from tdfunc._lazystack import LazyStackedTensorDict
from tdfunc.typing import MISSING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tdfunc.typing import Path

__all__ = ["Scope", "bare", "has_entry", "put", "read_entry", "read_ragged"]

# For `get`, to which MISSING says that no default is given.
_ABSENT = object()

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class Scope:
    """A tree, and entries that are to go into it."""

    __slots__ = ("nested", "td", "written")

    def __init__(self, td: Node) -> None:
        self.td = td
        self.written: dict[Path, Any] = {}
        self.nested = False  # whether an entry was written inside a nested node

    def read(self, path: Path) -> Any:
        """Return the entry at `path`, MISSING if there is none."""
        written = self.written
        if written:
            if (self.nested or len(path) > 1) and self._touches(path):
                return read_entry(self.tree(), path)
            if path in written:
                return written[path]
        return read_entry(self.td, path)

    def has(self, path: Path) -> bool:
        """Return whether there is an entry at `path`."""
        if path in self.written:
            return True
        if self.written and (self.nested or len(path) > 1) and self._touches(path):
            return has_entry(self.tree(), path)
        return has_entry(self.td, path)

    def write(self, path: Path, value: Any) -> None:
        """Put an entry at `path`."""
        if len(path) > 1:
            self.nested = True
        if self.nested:
            # Behind all others, for an entry may lie inside another one.
            self.written.pop(path, None)
        self.written[path] = value
        if not isinstance(value, torch.Tensor):
            self.tree()  # what is read again is the entry that it becomes

    def tree(self) -> Node:
        """Return the tree with all entries in it."""
        if self.written:
            self.become(put(self.td, self.written))
        return self.td

    def become(self, td: Node) -> None:
        """Go on from another tree."""
        self.td = td
        self.written = {}
        self.nested = False

    def _touches(self, path: Path) -> bool:
        """Return whether something was written above or inside the entry at `path`."""
        for other in self.written:
            most = min(len(other), len(path))
            if other[:most] == path[:most] and other != path:
                return True
        return False


def read_entry(td: Node, path: Path) -> Any:
    """Return the entry at `path`, MISSING if there is none."""
    if td._schema.lazy:
        return _found(td.get(short(path), _ABSENT))  # read from the members
    slot = td._schema.slot(path)
    if slot is not None:
        return td._leaves[slot]
    if td._schema.find(path) is None:
        # A field of a record that is None reads as None, although it is no entry.
        return None if td._schema.records and path in td._schema.absent() else MISSING
    return entry_at(td, path)


def _found(value: Any) -> Any:
    return MISSING if value is _ABSENT else value


def read_ragged(td: Any, path: Path, options: Mapping[str, Any]) -> Any:
    """Return the entry at `path` as options of a lazy stack on the way to it say."""
    at = 0
    while not isinstance(td, LazyStackedTensorDict) and at < len(path) - 1:
        td = read_entry(td, path[at : at + 1])
        if not isinstance(td, Node):
            return MISSING
        at += 1
    if isinstance(td, LazyStackedTensorDict):
        return _found(td.get(path[at:], _ABSENT, **options))
    return read_entry(td, path[at:])


def has_entry(td: Node, path: Path) -> bool:
    """Return whether there is an entry at `path`; a field that is None is none."""
    if td._schema.find(path) is not None:
        return True
    return bool(td._schema.lazy) and short(path) in td


def put(td: Node, entries: Mapping[Path, Any]) -> Any:
    """Return the tree with some entries set, in one step if all are plain tensors.

    Raises:
        TdfuncError: what `tdfunc.set` raises.
    """
    size = td.batch_size
    schema = td._schema
    dims = len(size)
    rows = size[0] if dims == 1 else 0
    ranks: list[int] = []
    try:
        for value in entries.values():
            shape = value.shape
            rank = len(shape) - dims
            # Slicing a torch.Size costs more than the rest of the loop.
            if (
                type(value) not in _PLAIN
                or rank < 0
                or (dims and (shape[0] != rows if dims == 1 else shape[:dims] != size))
            ):
                return _put_each(td, entries)
            ranks.append(rank)
    except (AttributeError, RuntimeError):  # no tensor, or one that has no shape
        return _put_each(td, entries)
    plan = schema.written(tuple(entries), tuple(ranks), Node._plain)
    if plan is None:
        return _put_each(td, entries)
    new, slots, sslots = plan
    old, values = td._leaves, list(entries.values())
    leaves = tuple([old[i] if i >= 0 else values[~i] for i in slots])
    statics = td._statics
    if len(sslots) != schema.m:
        statics = gather_statics([(statics, at) for at in sslots])
    return make(new, leaves, statics, size, td._names)


def _put_each(td: Node, entries: Mapping[Path, Any]) -> Node:
    out: Any = td
    for path, value in entries.items():
        out = out.set(path, value)  # the method: a lazy stack has its own
    return out


def bare(size: torch.Size) -> Any:
    """Return the tree without entries."""
    return make(Schema(Node._plain, (), ()), (), NO_STATICS, size, None)
