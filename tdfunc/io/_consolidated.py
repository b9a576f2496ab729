"""The consolidated file: tensors, what they are as JSON, the length of the JSON.

::

    tensors, each at a multiple of 64 | block of ours | JSON of the peer | int64 length

The JSON of the peer has one node for every level. Its member ``"size"``, which the peer
takes and does not look at, says where our block is, and its checksum. The block is the
record of the tree, and the dtype and shape of every array by number; where they begin
follows from that, so that in our own files nothing can overlap. The peer finds no leaf
in the block. A file without it is the peer's.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tdfunc.io._atomic import new_file
from tdfunc.io._layout import Array, Jagged, Level, Rows, Static
from tdfunc.io._map import as_buffer, write_all
from tdfunc.io._record import (
    MOST_DEPTH,
    VERSION,
    OneFile,
    as_count,
    as_names,
    as_shape,
    bad,
    check_version,
    class_note,
    outline_of,
    record_of,
)
from tdfunc.io._values import (
    PEER_DTYPES,
    dtype_name,
    dtype_of,
    dumps,
    is_plain,
    is_text,
    loads,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path as FilePath

    import torch

    from tdfunc.io._layout import Source
    from tdfunc.io._options import ReadOptions, WriteOptions
    from tdfunc.typing import Path

__all__ = ["open_source", "recognises", "write"]

# Elements of any dtype may begin at such a place, and what vectors are read from.
_ALIGNMENT = 64

_LENGTH = 8  # bytes of the length at the end

# Members of a node that are not entries. A node by one of these names is no entry.
_FIELDS = ("cls", "non_tensors", "leaves", "cls_metadata")
_RESERVED = frozenset({*_FIELDS, "size"})

# How the parts of a jagged tensor are named, in this order.
_JAGGED = "<NJT"
_VALUES, _LENGTHS, _OFFSETS = "<NJT_VALUES>", "<NJT_LENGTHS>", "<NJT_OFFSETS>"
_PART = re.compile(r"<NJT[^>]*>")

_OURS = "tdfunc"
_START = re.compile(rb'\{"size":\{"tdfunc":\[(\d+),(\d+),(\d+),(\d+)\]\}')
_MOST_START = 128  # bytes that hold all that this matches

# A length that is wrong shall not fill the memory. A leaf takes about 60 bytes.
_MOST_JSON = 1 << 30

# A value for all of some rows stands in a file once, however many there are.
_MOST_ROWS = 10_000_000


def write(level: Level, path: FilePath, options: WriteOptions) -> None:
    """Write a tree to a consolidated file.

    Raises:
        PickleRefusedError: a value can be written as a pickle only.
        FormatLimitError: a value can not be written.
        TargetExistsError: something is at `path` already.
        OSError: the system refuses.
    """
    record, arrays, _ = record_of(level, allow_pickle=options.allow_pickle)
    kinds: dict[tuple[torch.dtype, tuple[int, ...]], int] = {}
    which = [kinds.setdefault((a.dtype, a.shape), len(kinds)) for a in arrays]
    known = [[dtype_name(dtype), list(shape)] for dtype, shape in kinds]
    sizes = [prod(shape) * dtype.itemsize for dtype, shape in kinds]
    # What the peer says of each array, and what is written of it.
    leaves: dict[int, list[Any]] = {}
    counts: list[int] = []
    end = 0
    for array, at in zip(arrays, which, strict=True):
        count = sizes[at]
        leaves[id(array)] = [*known[at], end, end + count, 0]
        counts.append(count)
        end += count + -count % _ALIGNMENT
    block = dumps({"kinds": known, "arrays": which, "levels": record})
    ours = {_OURS: [VERSION, end, len(block), crc32(block)]}
    trailer = dumps({"size": ours, **_peer_node(level, leaves)})
    length = len(trailer).to_bytes(_LENGTH, "little")
    with new_file(
        path, overwrite=options.overwrite, durable=options.durable
    ) as descriptor:
        options.ready()
        write_all(descriptor, _buffers(arrays, counts, options.progress))
        write_all(descriptor, [block, trailer, length])


def _buffers(
    arrays: list[Array], counts: list[int], progress: Callable[[int], None]
) -> Iterator[memoryview | bytes]:
    """Yield the bytes of all arrays, with what lies between them."""
    for array, count in zip(arrays, counts, strict=True):
        if count:
            tensor: Any = array.tensor
            yield as_buffer(tensor)
            if count % _ALIGNMENT:
                yield bytes(-count % _ALIGNMENT)
            progress(count)


def _peer_node(level: Level, leaves: dict[int, list[Any]]) -> dict[str, Any]:
    """Return what the peer can hold of a tree, as it writes it."""
    top = _bare("TensorDict", {})
    pending: list[tuple[Level, dict[str, Any], list[str | None], int]]
    pending = [(level, top, _names_of(level), 0)]
    while pending:
        here, node, names, depth = pending.pop()
        dim = here.stack_dim
        if dim is not None:
            names = list(names)
            node["cls"] = "LazyStackedTensorDict"
            node["cls_metadata"] = _stack(dim, names.pop(dim))
        else:
            node["cls_metadata"] = {
                "device": None,
                "names": names,
                "batch_size": list(here.batch_size),
                "is_locked": False,
            }
        for key, entry in here.entries.items():
            if isinstance(entry, Array):
                shown = entry.dtype in PEER_DTYPES and not entry.unbatched
                if shown and key[:4] != _JAGGED and is_text(key):
                    node["leaves"][key] = leaves[id(entry)]
            elif isinstance(entry, Level):
                if _is_hidden(key, entry, depth):
                    continue
                below = node[key] = _bare("TensorDict", {})
                # The members of a stack have the names of the stack.
                theirs = _names_of(entry) if dim is None else names
                pending.append((entry, below, theirs, depth + 1))
            elif is_text(key):
                _add_peer_entry(node, key, entry, here.batch_size, leaves)
    return top


def _bare(cls: str, metadata: dict[str, Any]) -> dict[str, Any]:
    return {"cls": cls, "non_tensors": {}, "leaves": {}, "cls_metadata": metadata}


def _stack(dim: int, name: str | None) -> dict[str, Any]:
    return {"stack_dim": dim, "stack_dim_name": name, "is_locked": False}


def _names_of(level: Level) -> list[str | None]:
    return [None] * len(level.batch_size) if level.names is None else [*level.names]


def _is_hidden(key: str, level: Level, depth: int) -> bool:
    """Return whether the peer could not load a node, or what is around it."""
    if depth == MOST_DEPTH or key in _RESERVED or not is_text(key):
        return True
    # A stack without members is read with this batch size, whatever it was.
    empty = level.stack_dim is not None and not level.entries
    return empty and (level.stack_dim, level.batch_size) != (0, (0,))


def _add_peer_entry(
    node: dict[str, Any],
    key: str,
    entry: Static | Rows | Jagged,
    size: tuple[int, ...],
    leaves: dict[int, list[Any]],
) -> None:
    if isinstance(entry, Static):
        if is_plain(entry.value):
            node["non_tensors"][key] = [entry.value, list(size), None]
    elif isinstance(entry, Rows):
        shape, values = entry.shape, entry.values
        fine = values and len(shape) <= MOST_DEPTH and all(map(is_plain, values))
        if fine and not shape:  # of the members of a stack
            node["non_tensors"][key] = [values[0], list(size), None]
        elif fine and key not in _RESERVED:
            node[key] = _peer_rows(shape, values)
    elif _JAGGED not in key:
        held = [(_VALUES, entry.values)]
        held += [(_LENGTHS, entry.lengths)] if entry.lengths is not None else []
        if all([part.dtype in PEER_DTYPES for _, part in held]):
            into = node["leaves"]
            for name, part in held:
                into[name + key] = leaves[id(part)]
            into[_OFFSETS + key] = [*leaves[id(entry.offsets)], entry.ragged_dim]


def _peer_rows(shape: tuple[int, ...], values: list[Any]) -> dict[str, Any]:
    """Return values of rows in stacks of stacks, the first dim outermost."""
    node = _bare("NonTensorStack", _stack(0, None))
    step = len(values) // shape[0]
    for at in range(shape[0]):
        part = values[at * step : (at + 1) * step]
        if len(shape) == 1:
            node["non_tensors"][str(at)] = [part[0], [], None]
        else:
            node[str(at)] = _peer_rows(shape[1:], part)
    return node


def open_source(path: FilePath, options: ReadOptions) -> Source:
    """Open a consolidated file, ours or the peer's.

    Raises:
        MissingFileError: there is no such file.
        FileFormatError: it is no file.
        OSError: the system refuses.
    """
    return _Consolidated(path, options)


def recognises(path: FilePath) -> bool:
    """Return whether this is a consolidated file, by its last bytes."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size <= _LENGTH:
                return False
            file.seek(size - _LENGTH)
            length = int.from_bytes(file.read(_LENGTH), "little")
            if not 0 < length <= size - _LENGTH:
                return False
            file.seek(size - _LENGTH - length)
            start = file.read(min(length, _MOST_START))
            return start.startswith((b'{"cls"', b'{"size":{"tdfunc"'))
    except OSError:
        return False


class _Consolidated(OneFile):
    """An open consolidated file."""

    def outline(self) -> Level:
        """See `Source.outline`."""
        name, size = self.name, self.size
        if size < _LENGTH:
            raise bad(name, "it is too short for a consolidated file", got=size)
        raw = self.content(size - _LENGTH, _LENGTH)
        length = int.from_bytes(raw, "little", signed=True)
        end = size - _LENGTH - length
        if length <= 0 or end < 0:
            raise bad(
                name,
                "its last 8 bytes are no length of what it says of itself",
                expected=f"1 to {size - _LENGTH}",
                got=length,
            )
        start = self.content(end, min(length, _MOST_START))
        if length > _MOST_JSON or not start.startswith(b"{"):
            raise bad(name, "what should say what it holds is no JSON", got=start[:8])
        found = _START.match(start)
        if found is not None:
            return self.checked(self._ours([int(n) for n in found.groups()], end))
        node = loads(self.content(end, length), name)
        ours = node.get("size") if type(node) is dict else None
        if type(ours) is dict:
            # As ours, but not as we write it: whatever wrote it keeps what we said.
            return self.checked(self._ours(ours.get(_OURS), end))
        return self.checked(_Peer(name, end).tree(node))

    def _ours(self, where: Any, end: int) -> Level:
        name = self.name
        if type(where) is not list or len(where) != 4:  # noqa: PLR2004
            raise bad(name, "it does not say where its record is", got=where)
        version, start, length, checksum = [as_count(part, name) for part in where]
        check_version(version, name)
        if start + length > end or length > _MOST_JSON:
            raise bad(name, "its record is not where it says", got=where)
        raw = self.content(start, length)
        if crc32(raw) != checksum:
            raise bad(name, "the record of the tree is damaged: wrong checksum")
        data = loads(raw, name)
        if type(data) is not dict:
            raise bad(name, "the record of the tree is no object")
        arrays = self._arrays(data.get("kinds"), data.get("arrays"), start)
        allow = self.options.allow_pickle
        return outline_of(data.get("levels"), arrays, name, allow_pickle=allow)

    def _arrays(self, kinds: Any, which: Any, end: int) -> list[Array]:
        name = self.name
        if type(kinds) is not list or type(which) is not list:
            raise bad(name, "it does not say what its arrays are")
        known: list[tuple[torch.dtype, tuple[int, ...], int]] = []
        for kind in kinds:
            if type(kind) is not list or len(kind) != 2:  # noqa: PLR2004
                raise bad(name, "an array has no dtype and shape", got=kind)
            dtype = dtype_of(kind[0], name)
            shape = as_shape(kind[1], name, itemsize=dtype.itemsize)
            count = prod(shape) * dtype.itemsize
            known.append((dtype, shape, count + -count % _ALIGNMENT))
        if not all([type(at) is int and 0 <= at < len(known) for at in which]):
            raise bad(name, "an array has a dtype and shape that are not there")
        arrays: list[Array] = []
        start = 0
        for at in which:
            dtype, shape, step = known[at]
            arrays.append(Array(dtype, shape, None, start))
            start += step
        if start > end:
            raise bad(name, "its arrays are longer than it is", expected=end, got=start)
        return arrays


@dataclass(slots=True)
class _Peer:
    """Reads what the peer wrote.

    Attributes:
        name: the file.
        end: where its tensors end.
        leaves: the arrays by place, and the path of each.
    """

    name: str
    end: int
    leaves: dict[tuple[Any, ...], tuple[Array, Path]] = field(default_factory=dict)

    def tree(self, top: Any) -> Level:
        """Return the tree of a node."""
        root = self._level(top, ())
        if not isinstance(root, Level):
            raise bad(self.name, "it holds values of rows, and no tree")
        self._check_places()
        return root

    def _level(self, top: Any, at: Path) -> Level | Rows:
        if self._fields(top, at)[0] == "NonTensorStack":
            return self._rows(top, at, 0)
        root = Level(())
        nodes = [(at, top, root)]
        for path, data, level in nodes:  # grows
            self._fill(path, data, level)
            for key, value in data.items():
                if key in _RESERVED:
                    continue
                here = (*path, key)
                self._add_new(level, key, None, here)
                if self._fields(value, here)[0] == "NonTensorStack":
                    level.entries[key] = self._rows(value, here, 0)
                else:
                    below = level.entries[key] = Level(())
                    nodes.append((here, value, below))
        # Of stacks, the members are known first.
        for path, _, level in reversed(nodes):
            if level.stack_dim is not None:
                self._close_stack(level, path)
        return root

    def _fields(self, data: Any, path: Path) -> tuple[str, dict[str, Any]]:
        """Return the class of a node and what is said of it."""
        if type(data) is not dict:
            raise bad(self.name, "a node is no object", path, got=data)
        missing = [name for name in _FIELDS if name not in data]
        if missing:
            raise bad(self.name, f"a node has no {missing[0]!r}", path)
        kinds = [type(data[name]) for name in _FIELDS]
        if kinds != [str, dict, dict, dict]:
            raise bad(self.name, "the fields of a node are of the wrong kinds", path)
        return data["cls"], data["cls_metadata"]

    def _fill(self, path: Path, data: dict[str, Any], level: Level) -> None:
        name = self.name
        cls, said = self._fields(data, path)
        if "stack_dim" in said:
            level.stack_dim = as_count(said["stack_dim"], name, path)
            level.names = self._stack_name(said, path)
        else:
            level.batch_size = as_shape(said.get("batch_size"), name, path)
            level.names = as_names(said.get("names"), len(level.batch_size), name, path)
        level.record = class_note(cls)
        if level.record is None and cls not in {"TensorDict", "LazyStackedTensorDict"}:
            raise bad(name, "a node is of no class that is known", path, got=cls)
        for key, value in data["non_tensors"].items():
            plain, _ = self._value(value, (*path, key))
            self._add_new(level, key, Static(plain), (*path, key))
        self._add_leaves(path, data["leaves"], level)

    def _stack_name(self, said: dict[str, Any], path: Path) -> tuple[str | None]:
        """Return the name of the stacked dim; the others come from the members."""
        found = said.get("stack_dim_name")
        if found is not None and type(found) is not str:
            raise bad(self.name, "a dim name is no text", path, got=found)
        return (found,)

    def _add_new(self, level: Level, key: str, entry: Any, path: Path) -> None:
        if key in level.entries:
            raise bad(self.name, "there are two entries of one name", path)
        level.entries[key] = entry

    def _value(self, data: Any, path: Path) -> tuple[Any, tuple[int, ...]]:
        """Return a value that is no tensor, and of how many rows it is."""
        if type(data) is not list or len(data) not in {2, 3}:
            raise bad(self.name, "a value has no batch size", path, got=data)
        return data[0], as_shape(data[1], self.name, path)

    def _add_leaves(self, path: Path, leaves: dict[str, Any], level: Level) -> None:
        jagged: dict[str, tuple[Array, int]] = {}
        for key, data in leaves.items():
            here = (*path, key)
            array, ragged = self._leaf(data, here)
            found = _PART.match(key)
            if found is None:
                self._add_new(level, key, array, here)
                continue
            part, rest = found[0], key[found.end() :]
            fine = part in {_VALUES, _LENGTHS, _OFFSETS}
            # Values come first, offsets last.
            if not fine or (part == _VALUES) != (not jagged):
                raise bad(self.name, "a jagged tensor has not its parts", here)
            jagged[part] = array, ragged
            if part == _OFFSETS:
                values, lengths = jagged[_VALUES][0], jagged.get(_LENGTHS)
                held = None if lengths is None else lengths[0]
                self._add_new(level, rest, Jagged(values, array, held, ragged), here)
                jagged = {}
        if jagged:
            raise bad(self.name, "a jagged tensor has no offsets", path)

    def _leaf(self, data: Any, path: Path) -> tuple[Array, int]:
        name = self.name
        if type(data) is not list or len(data) not in {5, 6}:
            raise bad(name, "a leaf has no dtype, shape and place", path, got=data)
        dtype = dtype_of(data[0], name)
        shape = as_shape(data[1], name, path, dtype.itemsize)
        start, stop, pad, *more = [as_count(n, name, path) for n in data[2:]]
        count = prod(shape) * dtype.itemsize
        if not (stop <= self.end and start + count + pad == stop):
            raise bad(
                name,
                "a leaf is not where it is said to be",
                path,
                expected=f"{count} bytes within {self.end}",
                got=data[2:],
            )
        if start % dtype.itemsize:
            raise bad(name, "a leaf begins within an element", path, got=start)
        place = (start, dtype, shape) if count else (start, dtype, shape, path)
        array, _ = self.leaves.setdefault(
            place, (Array(dtype, shape, None, start), path)
        )
        return array, (more[0] if more else 1)

    def _check_places(self) -> None:
        """Check that no two leaves share bytes; one that is at two places is one."""
        found = [(a.place, a.nbytes, p) for a, p in self.leaves.values() if a.nbytes]
        found.sort(key=lambda place: place[0])
        end = 0
        for start, count, path in found:
            if start < end:
                raise bad(self.name, "two leaves share bytes of the file", path)
            end = start + count

    def _rows(self, data: Any, path: Path, depth: int) -> Rows:
        """Return the values of a stack of values that are no tensors."""
        name = self.name
        _, said = self._fields(data, path)
        dim = as_count(said.get("stack_dim"), name, path)
        parts: dict[str, Rows] = {}
        for key, value in data["non_tensors"].items():
            plain, size = self._value(value, (*path, key))
            self._limit(size, path)
            parts[key] = Rows(size, [plain] * prod(size))
        for key, value in data.items():
            if key not in _RESERVED:
                here = (*path, key)
                if depth == MOST_DEPTH or key in parts:
                    raise bad(name, "the values of rows are no stack", here)
                if self._fields(value, here)[0] != "NonTensorStack":
                    raise bad(name, "a stack of values has something else", here)
                parts[key] = self._rows(value, here, depth + 1)
        shapes = {part.shape for part in parts.values()}
        numbered = parts.keys() == {str(at) for at in range(len(parts))}
        if not numbered or data["leaves"] or len(shapes) > 1:
            raise bad(name, "the values of rows are no stack", path)
        shape = shapes.pop() if shapes else ()
        if dim > len(shape):
            raise bad(name, "the values of rows are no stack", path, got=dim)
        members = [parts[str(at)].values for at in range(len(parts))]
        whole = (*shape[:dim], len(members), *shape[dim:])
        self._limit(whole, path)
        inner = prod(shape[dim:])
        values: list[Any] = []
        for at in range(0, prod(shape), inner or 1):
            for member in members:
                values += member[at : at + inner]
        return Rows(whole, values)

    def _limit(self, shape: tuple[int, ...], path: Path) -> None:
        if prod(shape) > _MOST_ROWS:
            raise bad(self.name, "there are more rows than can be", path, got=shape)

    def _close_stack(self, level: Level, path: Path) -> None:
        """Give a lazy stack the batch size and names that its members say."""
        name, dim, held = self.name, level.stack_dim, level.entries
        assert dim is not None  # noqa: S101 - for type checkers
        if held.keys() != {str(at) for at in range(len(held))}:
            raise bad(name, "a lazy stack has an entry that is no member", path)
        level.entries = {str(at): held[str(at)] for at in range(len(held))}
        first = level.entries.get("0", Level((0,) * dim))
        if not isinstance(first, Level) or dim > len(first.batch_size):
            raise bad(name, "a lazy stack has no such dim", path, got=dim)
        size = first.batch_size
        level.batch_size = (*size[:dim], len(held), *size[dim:])
        assert level.names is not None  # noqa: S101 - for type checkers
        names = first.names or (None,) * len(size)
        names = [*names[:dim], *level.names, *names[dim:]]
        level.names = as_names(names, len(names), name, path)
