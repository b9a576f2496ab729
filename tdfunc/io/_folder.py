"""A tree as named files, as the directory and the archive have them.

Every node is a directory with a ``meta.json``, every tensor a file of raw bytes, as
the peer has them. ``meta.json`` is one object: what is an object in it describes an
entry, the rest is about the node. What only we know about a node stands under
``_tdfunc``, a list ``[1, {...}]``, which the peer takes for nothing. Its members, all
optional:

=========  ===================================================================
order      the keys in order, where it is not that of the records
hidden     records of the entries that the peer must not see, by key
exact      values of statics that plain JSON does not give back, by key
ties       the number of the tensor that an entry shares with others, by key
record     the name of the record class of this node
names      the dim names of a lazy stack
count      how many members a lazy stack has
shape      the batch size of an empty lazy stack; the shape of rows
values     the values of rows that plain JSON does not give back
=========  ===================================================================

Sizes and dtypes are never there for what the peer sees as well: it may have written
over the file. Files of hidden entries are called ``%tdfunc-0.memmap`` and so on, by
their places; no key gives such a name, since ``%`` becomes ``%25``.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from abc import ABC, abstractmethod
from collections import OrderedDict
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch

from tdfunc.errors import FileFormatError, FormatLimitError, PickleRefusedError
from tdfunc.io._layout import Array, Jagged, Level, Rows, Static, iter_levels
from tdfunc.io._values import (
    dtype_name,
    dtype_of,
    dumps,
    from_json,
    is_plain,
    loads,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tdfunc.io._layout import Entry
    from tdfunc.io._options import ReadOptions
    from tdfunc.typing import Path

__all__ = ["META", "Folder", "Where", "files_of", "outline_of"]

Where: TypeAlias = "tuple[str, ...]"
"""Names of directories, and of a file, from the root."""

META = "meta.json"

_OURS = "_tdfunc"
_VERSION = 1
_SUFFIX = ".memmap"
_MOST_NAME = 255  # bytes of a name, on nearly all file systems
_MOST_META = 1 << 29  # bytes of meta.json and of a pickle
_MOST_DIMS = 64  # of a tensor, and of lazy stacks in each other
_MOST_SIZE = 1 << 63

_UNSAFE = (*'/<>:"|?*\\ %', *map(chr, range(32)), chr(127))
_ENCODED = str.maketrans({char: f"%{ord(char):02X}" for char in _UNSAFE})

_PEER_DTYPES = frozenset(
    "torch." + name
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64"),
        *("int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "bfloat16"),
        *("complex32", "complex64", "complex128"),
    )
)

# Keys under which the peer has something else.
_TAKEN = frozenset({"shape", "device", "_type", _OURS})

_VIEWS = frozenset(
    {
        "_SubTensorDict",
        "_CustomOpTensorDict",
        "_TransposedTensorDict",
        "_PermutedTensorDict",
        "_ViewedTensorDict",
        "_SqueezedTensorDict",
        "_UnsqueezedTensorDict",
    }
)

# What the peer's `from_pytree` notes, by the names in its json_types.json.
_CONTAINERS = {"dict": dict, "OrderedDict": OrderedDict, "list": list, "tuple": tuple}


class Folder(ABC):
    """Named files below a root, to be read.

    Attributes:
        name: the root, for error messages.
    """

    name: str

    @abstractmethod
    def content(self, where: Where, limit: int) -> bytes | None:
        """Return a small file whole, None if there is none.

        Raises:
            FileFormatError: it has more than `limit` bytes, or is no file.
        """

    @abstractmethod
    def locate(self, where: Where, nbytes: int) -> object | None:
        """Return the place of a file of at least so many bytes, None if there is none.

        Raises:
            FileFormatError: it is shorter, or is no file.
        """

    def same(self, places: Sequence[object]) -> bool:
        """Return whether all bytes at some places are the same.

        Asked only of arrays that were one tensor when they were saved; the peer may
        have written over one of them since.
        """
        return all([place == places[0] for place in places])

    def at(self, where: Where) -> str:
        """Return the name of a file, for error messages."""
        return "/".join((self.name, *where))


# Writing


def files_of(level: Level, *, allow_pickle: bool) -> list[tuple[Where, bytes | Array]]:
    """Return the files of a tree; nothing that can not be written is among them.

    The files below a directory come before its ``meta.json``, which is its last.
    Tensors without elements have no file. An array that is at two places is there
    twice, the same object.

    Raises:
        FormatLimitError: some entries can not be in files; all of them are named.
        PickleRefusedError: some values need pickle, which is not allowed.
    """
    writer = _Writer(level, allow_pickle=allow_pickle)
    chunks: list[_Chunk] = []
    pending: list[tuple[Where, Path, Level]] = [((), (), level)]
    while pending:
        where, path, here = pending.pop()
        chunk = _Chunk(where, path)
        chunks.append(chunk)
        if here.stack_dim is None:
            writer.node(here, chunk)
        else:
            writer.stack(here, chunk)
        pending += reversed(chunk.below)
    writer.check()
    return [file for chunk in reversed(chunks) for file in chunk.files]


class _Chunk:
    """The files of one node, and the nodes below it."""

    __slots__ = ("below", "files", "path", "where")

    def __init__(self, where: Where, path: Path) -> None:
        self.where = where
        self.path = path
        self.files: list[tuple[Where, bytes | Array]] = []
        self.below: list[tuple[Where, Path, Level]] = []


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
            shown = "; ".join([f"{path}: {why}" for path, why in self._limits])
            raise FormatLimitError(
                f"{len(self._limits)} entries can not be written in this format",
                path=self._limits[0][0],
                got=shown,
                fix="td.drop(path)",
            )
        if self._refused:
            first = self._refused[0]
            if len(self._refused) > 1:
                paths = ", ".join([repr(error.path) for error in self._refused[1:]])
                first.what += f", nor have those at {paths}"
            raise first

    def node(self, level: Level, chunk: _Chunk) -> None:
        """Write a node that is no lazy stack."""
        ours: dict[str, Any] = {}
        hidden: dict[str, Any] = {}
        exact: dict[str, Any] = {}
        ties: dict[str, int] = {}
        meta: dict[str, Any] = {}
        taken = _TAKEN | {"_names"} if level.names else _TAKEN
        used = {META}
        for key, entry in level.entries.items():
            name = None if key in taken else self._name(key, entry, used)
            path = (*chunk.path, key)
            if name is None:
                hidden[key] = self._hide(entry, path, len(hidden), chunk)
            elif isinstance(entry, Level):
                meta[key] = {"type": "TensorDict"}
                chunk.below.append(((*chunk.where, name), path, entry))
            elif isinstance(entry, Array):
                meta[key] = {"device": "cpu", **_record(entry), "is_nested": False}
                self._put(chunk, name + _SUFFIX, entry)
                tie = self._ties.get(id(entry))
                if tie is not None:
                    ties[key] = tie
            else:
                record = self._value(entry, path, name, chunk, exact)
                if record is None:
                    hidden[key] = self._hide(entry, path, len(hidden), chunk)
                else:
                    meta[key] = record
        if [*meta, *hidden] != list(level.entries):
            ours["order"] = list(level.entries)
        for member, values in (("hidden", hidden), ("exact", exact), ("ties", ties)):
            if values:
                ours[member] = values
        if level.record is not None:
            ours["record"] = level.record
        fields: dict[str, Any] = {
            "shape": list(level.batch_size),
            "device": "cpu",
            "_type": "<class 'tensordict._td.TensorDict'>",
            "_format_version": 1,
            "_class": "tensordict:TensorDict",
        }
        if level.names:
            fields["_names"] = list(level.names)
        # An entry called `_class` is the peer's as well, which then goes by `_type`.
        meta = {**fields, **meta, _OURS: [_VERSION, ours]}
        self._close(chunk, (), meta)

    def stack(self, level: Level, chunk: _Chunk) -> None:
        """Write a lazy stack."""
        ours: dict[str, Any] = {"count": len(level.entries)}
        if level.record is not None:
            ours["record"] = level.record
        if not level.entries:
            ours["shape"] = list(level.batch_size)
        name = None
        if level.names:
            ours["names"] = list(level.names)
            name = level.names[cast("int", level.stack_dim)]
        meta = {
            "_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>",
            "_format_version": 1,
            "_class": "tensordict:LazyStackedTensorDict",
            "stack_dim": level.stack_dim,
            "stack_dim_name": name,
            _OURS: [_VERSION, ours],
        }
        for at, entry in enumerate(level.entries.values()):
            member = cast("Level", entry)
            chunk.below.append(
                ((*chunk.where, str(at)), (*chunk.path, str(at)), member)
            )
        self._close(chunk, (), meta)

    def _name(self, key: str, entry: Entry, used: set[str]) -> str | None:
        """Return the name of an entry's files, None if the peer must not see it."""
        if isinstance(entry, Jagged) or id(entry) in self._secret:
            return None
        if isinstance(entry, Rows) and (not entry.shape or 0 in entry.shape[:-1]):
            return None  # lists without elements have no sizes
        name = whole = _encoded(key)
        if isinstance(entry, Array):
            if entry.unbatched or dtype_name(entry.dtype) not in _PEER_DTYPES:
                return None
            whole = name + _SUFFIX
        if whole in used or not _is_name(whole):
            return None
        used.add(whole)
        return name

    def _hide(self, entry: Entry, path: Path, at: int, chunk: _Chunk) -> dict[str, Any]:
        """Write an entry so that the peer does not see it; return its record."""
        name = _hidden_name(at)
        if isinstance(entry, Level):
            chunk.below.append(((*chunk.where, name), path, entry))
            return {"type": "TensorDict"}
        if isinstance(entry, Array):
            return self._hidden_array(entry, name, chunk)
        if isinstance(entry, Jagged):
            record: dict[str, Any] = {"jagged": entry.ragged_dim}
            parts = (entry.values, entry.offsets, entry.lengths)
            for part, array in zip(_PARTS, parts, strict=True):
                record[part] = (
                    None
                    if array is None
                    else self._hidden_array(array, f"{name}-{part}", chunk)
                )
            return record
        if isinstance(entry, Rows):
            exact = self._exact(entry.values, path)
            return {"rows": list(entry.shape), "values": exact}
        return {"static": self._exact(entry.value, path)}

    def _hidden_array(self, array: Array, name: str, chunk: _Chunk) -> dict[str, Any]:
        record = _record(array)
        if array.unbatched:
            record["unbatched"] = True
        tie = self._ties.get(id(array))
        if tie is not None:
            record["tie"] = tie
        self._put(chunk, name + _SUFFIX, array)
        return record

    def _put(self, chunk: _Chunk, name: str, array: Array) -> None:
        if array.nbytes:
            chunk.files.append(((*chunk.where, name), array))

    def _value(
        self,
        entry: Rows | Static,
        path: Path,
        name: str,
        chunk: _Chunk,
        exact: dict[str, Any],
    ) -> dict[str, Any] | None:
        """Write a value as the peer does; return its record, None if it can not.

        Of a static the exact value is noted with the node, since the peer takes no
        strange member beside it.
        """
        rows = isinstance(entry, Rows)
        value = entry.values if rows else entry.value
        ours: dict[str, Any] = {"shape": list(entry.shape)} if rows else {}
        pickled = None
        if not is_plain(value):
            if _is_json(value):
                form = self._exact(value, path)
                if rows:
                    ours["values"] = form
                else:
                    exact[path[-1]] = form
            elif self._needs_pickle(value, path):
                whole = _nested(entry.values, entry.shape) if rows else {"data": value}
                pickled = self._pickled(whole, path)
            else:
                return None
        if rows:
            data: Any = "pickle.pkl"
            if pickled is None:
                data = _nested(entry.values, entry.shape)
            meta = {
                "_type": "<class 'tensordict.tensorclass.NonTensorStack'>",
                "_format_version": 1,
                "_class": "tensordict:NonTensorStack",
                "stack_dim": 0,
                "device": None,
                "data": data,
                _OURS: [_VERSION, ours],
            }
        else:
            meta = {"_type": "<class 'tensordict.tensorclass.NonTensorData'>"}
            if pickled is None:
                meta["data"] = value
            meta |= {"_metadata": None, "_is_non_tensor": True}
        if pickled is not None:
            file = "pickle.pkl" if rows else "other.pickle"
            chunk.files.append(((*chunk.where, name, file), pickled))
        self._close(chunk, (name,), meta)
        return {"type": "NonTensorStack" if rows else "NonTensorData"}

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

    def _close(self, chunk: _Chunk, below: Where, meta: dict[str, Any]) -> None:
        raw = dumps(meta)
        if len(raw) > _MOST_META:
            why = f"what describes it is {len(raw)} bytes of JSON, over {_MOST_META}"
            self._limits.append(((*chunk.path, *below), why))
        chunk.files.append(((*chunk.where, *below, META), raw))


_PARTS = ("values", "offsets", "lengths")


def _hidden_name(at: int) -> str:
    return f"%tdfunc-{at}"


def _record(array: Array) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": dtype_name(array.dtype)}


def _encoded(key: str) -> str:
    """Return a key as the peer names a file after it."""
    return "%2E" * len(key) if key in {".", ".."} else key.translate(_ENCODED)


def _is_name(name: str) -> bool:
    if name.isascii():
        return len(name) <= _MOST_NAME
    try:
        return len(name.encode("utf-8")) <= _MOST_NAME
    except UnicodeEncodeError:  # half of a character
        return False


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
        text = json.dumps(value)
        keys = _keys_are_text(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return keys and len(text) <= _MOST_META


def _keys_are_text(value: Any) -> bool:
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


# Reading


def outline_of(folder: Folder, options: ReadOptions) -> Level:
    """Return the tree in a folder, with arrays that are not read yet.

    Their places are those of the folder. Arrays that no file has as they are, those
    of the peer's nested tensors, have their tensors already.

    Raises:
        FileFormatError: a file is missing, too short, or not what it should be.
        PickleRefusedError: a value was pickled, and that is not allowed.
    """
    return _Reader(folder, options).tree()


class _Task(NamedTuple):
    """A directory that is still to be read."""

    parent: Level  # where the entry goes
    key: str
    path: Path
    above: Where
    names: tuple[str, ...]  # what the directory may be called


class _Reader:
    def __init__(self, folder: Folder, options: ReadOptions) -> None:
        self._folder = folder
        self._options = options
        self._pending: list[_Task] = []
        self._tied: dict[tuple[Any, ...], list[Array]] = {}
        self._replaced: dict[int, Array] = {}

    def tree(self) -> Level:
        """Return the whole tree."""
        top = Level(())
        self._pending.append(_Task(top, "", (), (), ()))
        while self._pending:
            self._read(self._pending.pop())
        level = top.entries[""]
        if not isinstance(level, Level):
            raise self._wrong((), "this is one value, not a tree")
        self._settle(level)
        self._tie(level)
        return level

    def _wrong(
        self, where: Where, what: str, path: Path | None = None, **more: Any
    ) -> FileFormatError:
        name = self._folder.at(where)
        return FileFormatError(f"{name}: {what}", path=path, **more)

    def _meta(self, where: Where) -> dict[str, Any] | None:
        file = (*where, META)
        raw = self._folder.content(file, _MOST_META)
        if raw is None:
            return None
        meta = loads(raw, self._folder.at(file))
        if not isinstance(meta, dict):
            raise self._wrong(file, "this is no JSON object", got=type(meta).__name__)
        found = cast("dict[str, Any]", meta)
        if not isinstance(found.get("_type"), str):
            raise self._wrong(file, "there is no '_type' in it: this is no saved tree")
        version = found.get("_format_version")
        if type(version) is int and version > 1:
            raise self._newer(file, version)
        return found

    def _newer(self, file: Where, version: int) -> FileFormatError:
        return self._wrong(
            file,
            "the file has a later format than this version of tdfunc knows",
            expected="version 1",
            got=f"version {version}",
        )

    def _ours(self, where: Where, meta: dict[str, Any]) -> dict[str, Any] | None:
        """Return what only we know of a node, None if the peer wrote it."""
        ours = meta.get(_OURS)
        if ours is None or isinstance(ours, dict):  # an entry of the peer's
            return None
        file = (*where, META)
        match ours:
            case [int() as version, dict() as known] if version is not True:
                if version > _VERSION:
                    raise self._newer(file, version)
                return cast("dict[str, Any]", known)
            case _:
                raise self._wrong(
                    file,
                    f"{_OURS!r} in it is no list [1, {{...}}]",
                    got=repr(ours)[:80],
                )

    def _read(self, task: _Task) -> None:
        """Read a directory: a node, one value, or the values of rows."""
        where, meta = task.above, None
        for name in task.names or ("",):
            where = (*task.above, name) if name else task.above
            meta = self._meta(where)
            if meta is not None:
                break
        if meta is None:
            first = (*task.above, *task.names[:1], META)
            raise self._missing(first, task.path)
        names = _class_names(meta)
        if meta.get("_is_non_tensor") is True or names & {"NonTensorData", "MetaData"}:
            entry: Entry = self._static(where, meta, task)
        elif "NonTensorStack" in names:
            entry = self._rows(where, meta, task)
        elif "LazyStackedTensorDict" in names:
            entry = self._stack(where, meta, task)
        else:
            entry = self._node_or_record(where, meta, names, task)
        task.parent.entries[task.key] = entry

    def _missing(self, file: Where, path: Path) -> FileFormatError:
        return self._wrong(
            file,
            "there is no such file",
            path,
            fix="save again, or copy the whole directory; it may be being written",
        )

    def _node_or_record(
        self, where: Where, meta: dict[str, Any], names: set[str], task: _Task
    ) -> Level:
        record: str | None = None
        held: dict[str, Any] = {}
        # The peer has the entries of a record one directory below.
        while "TensorDict" not in names:
            below = (*where, "_tensordict")
            inner = self._meta(below)
            if inner is None:
                self._check_plain(where, meta, names, task.path)
                break
            record = record or _record_name(meta)
            held = {**self._fields_of(where, meta), **held}
            where, meta = below, inner
            names = _class_names(meta)
            if "LazyStackedTensorDict" in names:
                if held:
                    file = (*where, META)
                    raise self._wrong(file, "a stack with fields beside", task.path)
                stack = self._stack(where, meta, task)
                stack.record = record
                return stack
        level = self._node(where, meta, task.path)
        level.record = level.record or record
        for key, value in held.items():
            level.entries.setdefault(key, Static(value))
        return level

    def _check_plain(
        self, where: Where, meta: dict[str, Any], names: set[str], path: Path
    ) -> None:
        file = (*where, META)
        shown = meta["_type"][:80]
        if names & _VIEWS or isinstance(meta.get("custom_op"), str):
            raise self._wrong(
                file,
                "this is a view of another tree, which is not read",
                path,
                got=shown,
                fix="load it with tensordict and save td.contiguous()",
            )
        if not isinstance(meta.get("shape"), list):
            raise self._wrong(file, "a node of an unknown class", path, got=shown)

    def _fields_of(self, where: Where, meta: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that a record of the peer keeps beside its entries."""
        known = {key: value for key, value in meta.items() if not key.startswith("_")}
        pickled = self._pickled_fields(where)
        return {**known, **pickled}

    def _pickled_fields(self, where: Where) -> dict[str, Any]:
        """Return what the peer pickled in a directory: fields and their values."""
        file = (*where, "other.pickle")
        raw = self._folder.content(file, _MOST_META)
        if raw is None:
            return {}
        found = self._containers(where, raw)
        if found is None:
            found = self._unpickled(file, raw)
            if not isinstance(found, dict):
                raise self._wrong(file, "this is no pickled dict of fields")
        return cast("dict[str, Any]", found)

    def _containers(self, where: Where, pickled: bytes) -> dict[str, Any] | None:
        """Return the classes in a pickle, if the peer says which ones they are."""
        file = (*where, "json_types.json")
        raw = self._folder.content(file, _MOST_META)
        if raw is None:
            return None
        match loads(raw, self._folder.at(file)):
            case {"types": dict() as types, "pickle_sha256": str() as digest}:
                pass
            case _:
                raise self._wrong(file, "this names no types")
        if hashlib.sha256(pickled).hexdigest() != digest:
            return None
        named = cast("dict[str, Any]", types)
        unknown = [name for name in named.values() if name not in _CONTAINERS]
        if unknown:
            raise self._wrong(file, "an unknown type", got=repr(unknown[0])[:80])
        return {key: _CONTAINERS[name] for key, name in named.items()}

    def _unpickled(self, file: Where, raw: bytes) -> Any:
        name = self._folder.at(file)
        if not self._options.allow_pickle:
            raise PickleRefusedError(
                f"{name}: this value was pickled",
                expected="no pickle, which runs what it is told to",
                fix="load(path, allow_pickle=True), if you trust the file",
            )
        try:
            return pickle.loads(raw)  # noqa: S301 - asked for by the caller
        except Exception as error:
            # What a pickle runs raises what it likes.
            raise FileFormatError(
                f"{name}: this pickle can not be read", got=repr(error)
            ) from error

    # One value, and values of rows

    def _static(self, where: Where, meta: dict[str, Any], task: _Task) -> Static:
        if "data" in meta:
            value = meta["data"]
        else:
            fields = self._pickled_fields(where)
            if "data" not in fields:
                raise self._wrong((*where, META), "it has no value", task.path)
            return Static(fields["data"])
        known = task.parent.entries.get(task.key)
        # The exact value that the node noted, unless the peer has changed it.
        if isinstance(known, Static) and _says(known.value, value):
            return known
        return Static(value)

    def _rows(self, where: Where, meta: dict[str, Any], task: _Task) -> Entry:
        file = (*where, META)
        ours = self._ours(where, meta)
        data = meta.get("data")
        if data == "pickle.pkl":
            name = (*where, "pickle.pkl")
            raw = self._folder.content(name, _MOST_META)
            if raw is None:
                raise self._missing(name, task.path)
            data = self._unpickled(name, raw)
        elif data is None:
            data = self._elements(where, meta, task)
        if not isinstance(data, list):
            raise self._wrong(file, "its 'data' is no list", task.path)
        values = cast("list[Any]", data)
        if ours is None:
            # The peer does not say what are rows and what are values that are lists.
            size = task.parent.batch_size
            if not size:
                return Static(values)
            rows = _flat(values, size)
        elif "values" in ours:
            return self._exact_rows(file, ours.get("shape"), ours["values"], task.path)
        else:
            size = self._shape(file, ours.get("shape"), task.path)
            rows = _flat(values, size)
        if rows is None:
            raise self._wrong(
                file,
                "there is not one value for every row",
                task.path,
                expected=f"lists of the sizes {list(size)}",
            )
        return Rows(size, rows)

    def _exact_rows(self, file: Where, shape: Any, values: Any, path: Path) -> Rows:
        size = self._shape(file, shape, path)
        found = self._value(file, values)
        if not isinstance(found, list) or len(found) != prod(size):
            raise self._wrong(file, "there is not one value for every row", path)
        return Rows(size, found)

    def _elements(self, where: Where, meta: dict[str, Any], task: _Task) -> list[Any]:
        """Return rows that an old version of the peer wrote one by one."""
        del meta
        values: list[Any] = []
        while True:
            below = (*where, str(len(values)))
            inner = self._meta(below)
            if inner is None:
                return values
            if inner.get("_is_non_tensor") is not True:
                raise self._wrong((*below, META), "this is no value", task.path)
            here = Level(())
            values.append(
                self._static(below, inner, _Task(here, "", task.path, below, ())).value
            )

    def _value(self, file: Where, data: Any) -> Any:
        allow, name = self._options.allow_pickle, self._folder.at(file)
        return from_json(data, allow_pickle=allow, name=name)

    # Nodes

    def _stack(self, where: Where, meta: dict[str, Any], task: _Task) -> Level:
        file = (*where, META)
        path = task.path
        dim = meta.get("stack_dim")
        if type(dim) is not int or not 0 <= dim < _MOST_DIMS:
            raise self._wrong(
                file, "its 'stack_dim' is no dim", path, got=repr(dim)[:80]
            )
        ours = self._ours(where, meta)
        level = Level((), stack_dim=dim)
        if ours is None:
            name = meta.get("stack_dim_name")
            # Put together with those of the members when they are there.
            level.names = (name,) if isinstance(name, str) else None
            count = 0
            while self._folder.locate((*where, str(count), META), 0) is not None:
                count += 1
        else:
            count = ours.get("count")
            if type(count) is not int or count < 0:
                raise self._wrong(file, "its 'count' is no number", path)
            level.record = _text_or_none(ours.get("record"))
            if "names" in ours:
                level.names = self._names(file, ours["names"], path)
        if not count:
            if ours is None:
                raise self._wrong(file, "a lazy stack without members", path)
            shape = self._shape(file, ours.get("shape"), path, least=-1)
            if dim >= len(shape) or shape[dim]:
                raise self._wrong(file, "its 'shape' is that of no empty stack", path)
            level.batch_size = shape
        tasks: list[_Task] = []
        for at in range(count):
            # One that is said to have a billion members ends at the first that is not
            # there.
            key = str(at)
            if self._folder.locate((*where, key, META), 0) is None:
                raise self._missing((*where, key, META), (*path, key))
            level.entries[key] = Static(None)
            tasks.append(_Task(level, key, (*path, key), where, (key,)))
        self._pending += reversed(tasks)
        return level

    def _node(self, where: Where, meta: dict[str, Any], path: Path) -> Level:
        file = (*where, META)
        ours = self._ours(where, meta)
        level = Level(self._shape(file, meta.get("shape", []), path))
        names = meta.get("_names")
        if names is not None and not isinstance(names, dict):
            level.names = self._names(file, names, path)
            if level.names and len(level.names) != len(level.batch_size):
                raise self._wrong(file, "not one name for every batch dim", path)
        foreign = ours is None
        known = ours or {}
        hidden = self._member(file, known, "hidden")
        exact = self._member(file, known, "exact")
        ties = self._member(file, known, "ties")
        level.record = _text_or_none(known.get("record"))
        tasks: list[_Task] = []
        for key, record in meta.items():
            if not isinstance(record, dict):
                continue
            here = (*path, key)
            if not key or key in hidden:
                why = "an entry is there twice" if key else "an entry without a key"
                raise self._wrong(file, why, here)
            fields = cast("dict[str, Any]", record)
            if fields.get("type") is not None:
                value = None
                if key in exact:
                    value = self._value(file, exact[key])
                level.entries[key] = Static(value)
                names_of = _candidates(key, foreign=foreign, suffix="")
                tasks.append(_Task(level, key, here, where, names_of))
            elif fields.get("is_nested"):
                level.entries[key] = self._nested_tensor(where, key, fields, here)
            else:
                array = self._array(file, fields, here)
                files = _candidates(key, foreign=foreign, suffix=_SUFFIX)
                self._locate(where, files, array, here)
                level.entries[key] = array
                if key in ties:
                    self._note_tie(ties[key], array)
        for at, (key, record) in enumerate(hidden.items()):
            here = (*path, key)
            if not key or not isinstance(record, dict):
                raise self._wrong(file, "a record of an entry is no object", here)
            name = _hidden_name(at)
            entry = self._hidden(where, name, cast("dict[str, Any]", record), here)
            if entry is None:
                entry = Static(None)
                tasks.append(_Task(level, key, here, where, (name,)))
            level.entries[key] = entry
        order = known.get("order")
        if isinstance(order, list):
            level.entries = _in_order(level.entries, cast("list[Any]", order))
        self._pending += reversed(tasks)
        return level

    def _member(self, file: Where, ours: dict[str, Any], name: str) -> dict[str, Any]:
        found = ours.get(name, {})
        if not isinstance(found, dict):
            raise self._wrong(file, f"{name!r} in {_OURS!r} is no object")
        return cast("dict[str, Any]", found)

    def _hidden(
        self, where: Where, name: str, record: dict[str, Any], path: Path
    ) -> Entry | None:
        """Return an entry that the peer does not see, None for a node."""
        file = (*where, META)
        if "type" in record:
            return None
        if "static" in record:
            return Static(self._value(file, record["static"]))
        if "rows" in record:
            return self._exact_rows(file, record["rows"], record.get("values"), path)
        if "jagged" not in record:
            return self._hidden_array(where, name, record, path)
        dim = record["jagged"]
        parts: list[Array | None] = []
        for part in _PARTS:
            below = record.get(part)
            if isinstance(below, dict):
                known = cast("dict[str, Any]", below)
                parts.append(self._hidden_array(where, f"{name}-{part}", known, path))
            else:
                parts.append(None)
        values, offsets, lengths = parts
        if values is None or offsets is None or type(dim) is not int:
            raise self._wrong(file, "a jagged tensor without values or offsets", path)
        return Jagged(values, offsets, lengths, dim)

    def _hidden_array(
        self, where: Where, name: str, record: dict[str, Any], path: Path
    ) -> Array:
        array = self._array((*where, META), record, path)
        array.unbatched = record.get("unbatched") is True
        self._locate(where, (name + _SUFFIX,), array, path)
        if "tie" in record:
            self._note_tie(record["tie"], array)
        return array

    def _array(self, file: Where, record: dict[str, Any], path: Path) -> Array:
        name, shape = record.get("dtype"), record.get("shape")
        if name is None or shape is None:
            raise self._wrong(
                file,
                "an entry is neither a tensor nor a node",
                path,
                got=str(record)[:80],
            )
        dtype = dtype_of(name, self._folder.at(file))
        size = self._shape(file, shape, path, dtype.itemsize)
        return Array(dtype, size)

    def _locate(
        self, where: Where, names: Sequence[str], array: Array, path: Path
    ) -> None:
        nbytes = array.nbytes
        if not nbytes:
            return
        for name in names:
            if _is_name(name):
                array.place = self._folder.locate((*where, name), nbytes)
                if array.place is not None:
                    return
        raise self._missing((*where, names[0]), path)

    def _shape(
        self, file: Where, shape: Any, path: Path, itemsize: int = 1, least: int = 0
    ) -> tuple[int, ...]:
        if isinstance(shape, list):
            sizes = cast("list[Any]", shape)
            whole = itemsize
            for size in sizes:
                if type(size) is not int or size < least:
                    break
                whole *= size or 1
            else:
                if len(sizes) <= _MOST_DIMS and -_MOST_SIZE < whole < _MOST_SIZE:
                    return tuple(sizes)
        raise self._wrong(
            file,
            "a shape is no list of sizes of which a tensor can be",
            path,
            got=repr(shape)[:80],
        )

    def _names(
        self, file: Where, names: Any, path: Path
    ) -> tuple[str | None, ...] | None:
        if isinstance(names, list):
            found = cast("list[Any]", names)
            given = [name for name in found if name is not None]
            text = all([isinstance(name, str) and name for name in given])
            if text and len(set(given)) == len(given):
                return tuple(found) if given else None
        raise self._wrong(
            file, "these are no names of dims", path, got=repr(names)[:80]
        )

    def _nested_tensor(
        self, where: Where, key: str, record: dict[str, Any], path: Path
    ) -> Jagged:
        """Return a nested tensor of the peer as a jagged one.

        The peer has the rows one after the other, and a table of their shapes.
        """
        file = (*where, META)
        array = self._array(file, record, path)
        if len(array.shape) != 2:  # noqa: PLR2004 - a row for every tensor
            raise self._wrong(file, "the shapes of a nested tensor are no table", path)
        count, dims = array.shape
        name = _encoded(key)
        table = (*where, f"{name}.shape{_SUFFIX}")
        nbytes = count * dims * 8
        raw = self._folder.content(table, max(nbytes, 1 << 20)) or b""
        if len(raw) < nbytes:
            raise self._missing(table, path)
        flat = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)[:nbytes]
        shapes: list[list[int]] = flat.view(torch.int64).reshape(count, dims).tolist()
        rest = {tuple(shape[1:]) for shape in shapes}
        if len(rest) > 1 or not dims or not count:
            raise self._wrong(
                file,
                "a nested tensor whose rows differ in more than their first dim",
                path,
                expected="rows of which a jagged tensor can be",
                fix="td.exclude(key) in tensordict, and save again",
            )
        if min([min(shape) for shape in shapes]) < 0:
            raise self._wrong(table, "a size is negative", path)
        lengths = [shape[0] for shape in shapes]
        size = [sum(lengths), *shapes[0][1:]]
        whole = self._shape(file, size, path, array.dtype.itemsize)
        values = Array(array.dtype, whole)
        self._locate(where, (name + _SUFFIX,), values, path)
        ends = torch.tensor([0, *lengths]).cumsum(0)
        offsets = Array(torch.int64, (count + 1,), tensor=ends)
        return Jagged(values, offsets)

    # What is known only when all is read

    def _settle(self, top: Level) -> None:
        """Give lazy stacks their batch sizes and names, from the members up."""
        depth: dict[int, int] = {}
        for path, level in reversed(list(iter_levels(top))):
            below = [e for e in level.entries.values() if isinstance(e, Level)]
            most = max([depth[id(inner)] for inner in below], default=0)
            depth[id(level)] = most + (level.stack_dim is not None)
            if level.stack_dim is None:
                continue
            self._settle_stack(path, level, below)
            if depth[id(level)] > _MOST_DIMS:
                raise self._wrong((), "lazy stacks are nested too deeply", path)

    def _settle_stack(self, path: Path, level: Level, members: list[Level]) -> None:
        dim = cast("int", level.stack_dim)
        if len(members) < len(level.entries):
            raise self._wrong((), "a member of a lazy stack is no node", path)
        if members:
            dims = {len(member.batch_size) for member in members}
            if len(dims) > 1 or dim > max(dims):
                raise self._wrong((), "members of a lazy stack do not fit", path)
            sizes = zip(*[member.batch_size for member in members], strict=True)
            rest = [one.pop() if len(one) == 1 else -1 for one in map(set, sizes)]
            level.batch_size = (*rest[:dim], len(members), *rest[dim:])
        names = level.names
        if names is not None and len(names) != len(level.batch_size):
            if len(names) > 1:
                raise self._wrong((), "not one name for every batch dim", path)
            shared = {member.names for member in members}
            inner = shared.pop() if len(shared) == 1 else None
            inner = inner or (None,) * (len(level.batch_size) - 1)
            level.names = (*inner[:dim], names[0], *inner[dim:])

    def _note_tie(self, number: Any, array: Array) -> None:
        if type(number) is int:
            # What differs in these is not one tensor, whatever the file says.
            what = (number, array.dtype, array.shape, array.unbatched)
            self._tied.setdefault(what, []).append(array)

    def _tie(self, top: Level) -> None:
        """Make one array of those that are one tensor."""
        one: dict[int, Array] = {}
        for arrays in self._tied.values():
            places = [array.place for array in arrays]
            # All are of one shape: there is no place where there are no elements.
            same = places[0] is None or self._folder.same(places)
            if len(arrays) > 1 and same:
                one.update({id(array): arrays[0] for array in arrays})
        if not one:
            return
        for _, level in iter_levels(top):
            for key, entry in level.entries.items():
                if isinstance(entry, Array):
                    level.entries[key] = one.get(id(entry), entry)
                elif isinstance(entry, Jagged):
                    entry.values = one.get(id(entry.values), entry.values)
                    entry.offsets = one.get(id(entry.offsets), entry.offsets)
                    lengths = entry.lengths
                    entry.lengths = lengths and one.get(id(lengths), lengths)


def _class_names(meta: dict[str, Any]) -> set[str]:
    """Return the names of the class of a directory, without their modules."""
    names: set[str] = set()
    for field in ("_type", "_class"):
        name = meta.get(field)
        if isinstance(name, str):
            bare = name.removeprefix("<class '").removesuffix("'>")
            names.add(bare.replace(":", ".").rpartition(".")[2])
    return names


def _record_name(meta: dict[str, Any]) -> str:
    name = meta["_type"].removeprefix("<class '").removesuffix("'>")
    module, _, cls = name.rpartition(".")
    return f"{module}:{cls}"


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _candidates(key: str, *, foreign: bool, suffix: str) -> tuple[str, ...]:
    """Return what the file of a key may be called, the likeliest first."""
    name = _encoded(key)
    if name == key or not foreign:
        return (name + suffix,)
    # Old versions of the peer took keys as they are.
    unsafe = {"/", "\\", "\0"} & set(key) or key[1:2] == ":"
    if unsafe or (not suffix and key in {".", ".."}):
        return (name + suffix,)
    return (name + suffix, key + suffix)


def _in_order(entries: dict[str, Entry], order: list[Any]) -> dict[str, Entry]:
    known = {
        key: entries[key] for key in order if isinstance(key, str) and key in entries
    }
    return {**known, **entries}


def _says(value: Any, plain: Any) -> bool:
    """Return whether plain JSON is what a value is written as."""
    try:
        return dumps(value) == dumps(plain)
    except (TypeError, ValueError, RecursionError):
        return False


def _flat(data: list[Any], size: Sequence[int]) -> list[Any] | None:
    """Return the values in nested lists, None if these do not have a shape."""
    level: list[Any] = [data]
    for length in size:
        joined: list[Any] = []
        for part in level:
            if not isinstance(part, list) or len(cast("list[Any]", part)) != length:
                return None
            joined += cast("list[Any]", part)
        level = joined
    return level
