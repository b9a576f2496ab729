"""The files of a tree that is to be written."""

from __future__ import annotations

import json
import pickle
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tdfunc.errors import FormatLimitError, PickleRefusedError, show_path
from tdfunc.io._folder import (
    META,
    MOST_META,
    OURS,
    PARTS,
    SUFFIX,
    VERSION,
    encoded,
    hidden_name,
    is_name,
)
from tdfunc.io._layout import Array, Jagged, Level, Rows, Static, iter_levels
from tdfunc.io._values import PEER_DTYPES, dtype_name, dumps, is_plain, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tdfunc.io._folder import Where
    from tdfunc.io._layout import Entry
    from tdfunc.typing import Path

__all__ = ["files_of"]

# Keys under which the peer has something else. An entry called `_class` is the peer's
# as well, which then goes by `_type`.
_TAKEN = frozenset({"shape", "device", "_type", OURS})

_File: TypeAlias = "tuple[Where, bytes | Array]"


def files_of(level: Level, *, allow_pickle: bool) -> list[_File]:
    """Return the files of a tree; nothing that can not be written is among them.

    The files below a directory come before its ``meta.json``, which is its last.
    Tensors without elements have no file. An array that is at two places is there
    twice, the same object.

    Raises:
        FormatLimitError: some entries can not be in files; all of them are named.
        PickleRefusedError: some values need pickle, which is not allowed.
    """
    writer = _Writer(level, allow_pickle=allow_pickle)
    nodes: list[_Node] = []
    pending: list[tuple[Where, Path, Level]] = [((), (), level)]
    while pending:
        node = _Node(*pending.pop())
        nodes.append(node)
        if node.level.stack_dim is None:
            writer.plain(node)
        else:
            writer.stack(node)
        pending += reversed(node.below)
    writer.check()
    return [file for node in reversed(nodes) for file in node.files]


class _Node:
    """A node that is being written: its files, and the nodes below it."""

    __slots__ = (
        "below",
        "exact",
        "files",
        "hidden",
        "level",
        "meta",
        "path",
        "single",
        "ties",
        "used",
        "where",
    )

    def __init__(self, where: Where, path: Path, level: Level) -> None:
        self.where = where
        self.path = path
        self.level = level
        self.files: list[_File] = []
        self.below: list[tuple[Where, Path, Level]] = []
        # Records by key, and the rest of what `_folder` tells of.
        self.meta: dict[str, Any] = {}
        self.hidden: dict[str, Any] = {}
        self.exact: dict[str, Any] = {}
        self.ties: dict[str, int] = {}
        self.single: list[str] = []
        self.used = {META}  # names of files

    def put(self, name: str, array: Array) -> None:
        """Add the file of an array."""
        if array.nbytes:
            self.files.append(((*self.where, name), array))

    def nest(self, name: str, path: Path, level: Level) -> None:
        """Add a node below."""
        self.below.append(((*self.where, name), path, level))

    def ours(self) -> dict[str, Any]:
        """Return what only we know of a node."""
        level, meta, hidden = self.level, self.meta, self.hidden
        order = list(level.entries)
        members = {
            "order": order if [*meta, *hidden] != order else None,
            "hidden": hidden,
            "exact": self.exact,
            "ties": self.ties,
            "single": self.single,
            "record": level.record,
        }
        return {name: value for name, value in members.items() if value}


class _Writer:
    def __init__(self, level: Level, *, allow_pickle: bool) -> None:
        self._allow_pickle = allow_pickle
        self._refused: list[PickleRefusedError] = []
        self._limits: list[tuple[Path, str]] = []
        self._ties = _ties(level)
        self._secret = _not_for_the_peer(level)

    def check(self) -> None:
        """Raise if something can not be written."""
        if self._limits:
            shown = [f"{show_path(path)}: {why}" for path, why in self._limits]
            raise FormatLimitError(
                f"{len(self._limits)} entries can not be written in this format",
                path=self._limits[0][0],
                got="; ".join(shown),
                fix="td.drop(path)",
            )
        if self._refused:
            first = self._refused[0]
            if len(self._refused) > 1:
                paths = [show_path(error.path or ()) for error in self._refused[1:]]
                first.what += f", nor have those at {', '.join(paths)}"
            raise first

    def plain(self, node: _Node) -> None:
        """Write a node that is no lazy stack."""
        level = node.level
        taken = _TAKEN | {"_names"} if level.names else _TAKEN
        for key, entry in level.entries.items():
            name = None if key in taken else self._name(key, entry, node.used)
            path = (*node.path, key)
            record = None
            if name is not None:
                record = self._shown(entry, path, name, node)
            if record is None:
                node.hidden[key] = self._hide(entry, path, node)
            else:
                node.meta[key] = record
        fields: dict[str, Any] = {
            "shape": list(level.batch_size),
            "device": "cpu",
            "_type": "<class 'tensordict._td.TensorDict'>",
            "_format_version": 1,
            "_class": "tensordict:TensorDict",
        }
        if level.names:
            fields["_names"] = list(level.names)
        meta = dict(node.meta)
        for field, value in fields.items():
            meta.setdefault(field, value)
        self._close(node, (), meta, node.ours())

    def stack(self, node: _Node) -> None:
        """Write a lazy stack."""
        level, dim = node.level, cast("int", node.level.stack_dim)
        ours = {**node.ours(), "count": len(level.entries)}
        ours.pop("order", None)
        if not level.entries:
            ours["shape"] = list(level.batch_size)
        if level.names:
            ours["names"] = list(level.names)
        meta = {
            "_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>",
            "_format_version": 1,
            "_class": "tensordict:LazyStackedTensorDict",
            "stack_dim": dim,
            "stack_dim_name": level.names[dim] if level.names else None,
        }
        for key, entry in level.entries.items():
            node.nest(key, (*node.path, key), cast("Level", entry))
        self._close(node, (), meta, ours)

    def _name(self, key: str, entry: Entry, used: set[str]) -> str | None:
        """Return the name of an entry's files, None if the peer must not see it."""
        name = whole = encoded(key)
        if isinstance(entry, Array):
            if entry.unbatched or entry.dtype not in PEER_DTYPES:
                return None
            whole = name + SUFFIX
        elif isinstance(entry, Jagged) or id(entry) in self._secret:
            return None
        if whole in used or not is_name(whole):
            return None
        used.add(whole)
        return name

    def _shown(
        self, entry: Entry, path: Path, name: str, node: _Node
    ) -> dict[str, Any] | None:
        """Write an entry for the peer; return its record, None if it can not be."""
        if isinstance(entry, Level):
            node.nest(name, path, entry)
            return {"type": "TensorDict"}
        if isinstance(entry, Array):
            node.put(name + SUFFIX, entry)
            tie = self._ties.get(id(entry))
            if tie is not None:
                node.ties[path[-1]] = tie
            return {"device": "cpu", **_record(entry), "is_nested": False}
        if isinstance(entry, Static):
            return self._static(entry.value, path, name, node)
        rows = cast("Rows", entry)
        if rows.shape:
            return self._rows(rows, path, name, node)
        # The one row of a member of a lazy stack.
        record = self._static(rows.values[0], path, name, node)
        if record is not None:
            node.single.append(path[-1])
        return record

    def _hide(self, entry: Entry, path: Path, node: _Node) -> dict[str, Any]:
        """Write an entry so that the peer does not see it; return its record."""
        name = hidden_name(len(node.hidden))
        if isinstance(entry, Level):
            node.nest(name, path, entry)
            return {"type": "TensorDict"}
        if isinstance(entry, Array):
            return self._hidden_array(entry, name, node)
        if isinstance(entry, Jagged):
            parts = (entry.values, entry.offsets, entry.lengths)
            records = {
                part: array and self._hidden_array(array, f"{name}-{part}", node)
                for part, array in zip(PARTS, parts, strict=True)
            }
            return {"jagged": entry.ragged_dim, **records}
        if isinstance(entry, Rows):
            exact = self._exact(entry.values, path)
            return {"rows": list(entry.shape), "values": exact}
        return {"static": self._exact(entry.value, path)}

    def _hidden_array(self, array: Array, name: str, node: _Node) -> dict[str, Any]:
        record = _record(array)
        if array.unbatched:
            record["unbatched"] = True
        tie = self._ties.get(id(array))
        if tie is not None:
            record["tie"] = tie
        node.put(name + SUFFIX, array)
        return record

    def _static(
        self, value: Any, path: Path, name: str, node: _Node
    ) -> dict[str, Any] | None:
        """Write a value as the peer does, None if it can not.

        The exact value is noted with the node: the peer takes no strange member
        beside the plain one.
        """
        meta: dict[str, Any] = {
            "_type": "<class 'tensordict.tensorclass.NonTensorData'>",
            "data": value,
            "_metadata": None,
            "_is_non_tensor": True,
        }
        if not is_plain(value):
            if _is_json(value):
                node.exact[path[-1]] = self._exact(value, path)
            elif self._needs_pickle(value, path):
                del meta["data"]
                raw = self._pickled({"data": value}, path)
                node.files.append(((*node.where, name, "other.pickle"), raw))
            else:
                return None
        self._close(node, (name,), meta)
        return {"type": "NonTensorData"}

    def _rows(
        self, rows: Rows, path: Path, name: str, node: _Node
    ) -> dict[str, Any] | None:
        """Write the values of rows as the peer does, None if it can not."""
        ours: dict[str, Any] = {"shape": list(rows.shape)}
        data: Any = _nested(rows.values, rows.shape)
        if not _is_shaped(data, rows.shape):
            return None
        if not is_plain(rows.values):
            if _is_json(data):
                ours["values"] = self._exact(rows.values, path)
            elif self._needs_pickle(rows.values, path):
                raw = self._pickled(data, path)
                data = "pickle.pkl"
                node.files.append(((*node.where, name, data), raw))
            else:
                return None
        meta = {
            "_type": "<class 'tensordict.tensorclass.NonTensorStack'>",
            "_format_version": 1,
            "_class": "tensordict:NonTensorStack",
            "stack_dim": 0,
            "device": None,
            "data": data,
        }
        self._close(node, (name,), meta, ours)
        return {"type": "NonTensorStack"}

    def _needs_pickle(self, value: Any, path: Path) -> bool:
        if not self._allow_pickle:
            return False
        try:
            to_json(value, path, allow_pickle=False)
        except PickleRefusedError:
            return True
        except FormatLimitError:
            pass
        return False

    def _pickled(self, value: Any, path: Path) -> bytes:
        try:
            return pickle.dumps(value, protocol=4)
        except Exception as error:  # noqa: BLE001 - a value's own code may raise any
            self._limits.append((path, f"it can not be pickled: {error}"))
            return b""

    def _exact(self, value: Any, path: Path) -> Any:
        try:
            return to_json(value, path, allow_pickle=self._allow_pickle)
        except PickleRefusedError as error:
            self._refused.append(error)
        except FormatLimitError as error:
            self._limits.append((path, error.what))
        return None

    def _close(
        self,
        node: _Node,
        below: Where,
        meta: dict[str, Any],
        ours: dict[str, Any] | None = None,
    ) -> None:
        """Write the meta.json of a directory, its last file."""
        if ours is not None:
            meta[OURS] = [VERSION, ours]
        raw = dumps(meta)
        if len(raw) > MOST_META:
            why = f"what describes it is {len(raw)} bytes of JSON, over {MOST_META}"
            self._limits.append(((*node.path, *below), why))
        node.files.append(((*node.where, *below, META), raw))


def _record(array: Array) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": dtype_name(array.dtype)}


def _ties(level: Level) -> dict[int, int]:
    """Return the number of every array that is at more than one place."""
    seen: set[int] = set()
    ties: dict[int, int] = {}
    for _, here in iter_levels(level):
        for entry in here.entries.values():
            for array in _arrays_in(entry):
                if id(array) in seen:
                    ties.setdefault(id(array), len(ties))
                seen.add(id(array))
    return ties


def _arrays_in(entry: Entry) -> Iterable[Array]:
    if isinstance(entry, Array):
        return (entry,)
    if isinstance(entry, Jagged):
        parts = (entry.values, entry.offsets, entry.lengths)
        return [array for array in parts if array is not None]
    return ()


def _not_for_the_peer(level: Level) -> set[int]:
    """Return the nodes that the peer can not load: empty lazy stacks, and over them."""
    found: set[int] = set()
    for _, here in reversed(list(iter_levels(level))):
        if here.stack_dim is not None:
            members = here.entries.values()
            if not members or any([id(member) in found for member in members]):
                found.add(id(here))
    return found


def _is_json(value: Any) -> bool:
    """Return whether the peer has a value as JSON; maybe as another type."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    # JSON takes numbers for keys, and makes text of them.
    pending = [value]
    while pending:
        here = pending.pop()
        if isinstance(here, dict):
            mapping = cast("dict[Any, Any]", here)
            if not all([isinstance(key, str) for key in mapping]):
                return False
            pending += mapping.values()
        elif isinstance(here, (list, tuple)):
            pending += cast("Sequence[Any]", here)
    return True


def _nested(values: list[Any], shape: Sequence[int]) -> list[Any]:
    """Return flat values as lists in lists."""
    level = values
    for at in range(len(shape) - 1, 0, -1):
        size, count = shape[at], prod(shape[:at])
        level = [level[i * size : (i + 1) * size] for i in range(count)]
    return level


def _is_shaped(data: list[Any], shape: Sequence[int]) -> bool:
    """Return whether the peer loads nested lists as rows that start with this shape.

    It takes lists of one length for rows at every depth, values or not, and fails
    where these do not make a shape.
    """
    level: list[Any] = [data]
    depth = 0
    while True:
        sizes = {len(part) for part in level}
        if len(sizes) != 1 or (depth >= len(shape) and 0 in sizes):
            return False
        depth += 1
        goes_on = {_are_rows(part) for part in level}
        if goes_on != {True}:
            return len(goes_on) == 1 and depth >= len(shape)
        level = [item for part in level for item in part]


def _are_rows(part: Sequence[Any]) -> bool:
    if not part or not all([isinstance(item, (list, tuple)) for item in part]):
        return False
    return len({len(item) for item in part}) == 1
