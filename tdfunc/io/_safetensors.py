"""Safetensors: an ordinary file of this format, with what a tree is in its metadata.

::

    int64 length of the header | header, JSON | tensors, without gaps

The header has a member for every tensor, under its keys joined with ``.`` where that is
a name that no other has, and the texts of ``"__metadata__"``:

* ``"tensordict"`` is what the peer reads of a tree. It refuses a file with tensors that
  are nowhere in its tree, so those of entries that it can not hold are in a node of
  their own, as tensors that the batch does not index.
* ``"tdfunc"`` is the record of the tree, and which tensor each array is: its name, or
  name, dim and place for a member of a stack; ``"tdfunc_crc32"`` is its checksum.
* ``"format"`` is what some readers ask for.

Tensors are in the order of their size of element, so that each is aligned. Lazy stacks
whose members are alike are one tensor for each entry, as the peer has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch

from tdfunc.errors import FormatLimitError, show_path
from tdfunc.io._atomic import new_file
from tdfunc.io._layout import Array, Level, Static, iter_levels
from tdfunc.io._map import as_buffer, write_all
from tdfunc.io._record import (
    MOST_DEPTH,
    VERSION,
    Member,
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
from tdfunc.io._values import dumps, is_plain, is_text, loads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path as FilePath

    from tdfunc.io._layout import Entry, Source
    from tdfunc.io._options import ReadOptions, WriteOptions
    from tdfunc.typing import Path

__all__ = ["open_source", "recognises", "write"]

_LENGTH = 8  # bytes of the length of the header

# What safetensors itself takes for a header.
_MOST_HEADER = 100_000_000

_ALIGNMENT = 64

_METADATA = "__metadata__"
_OURS, _CHECKSUM, _PEER = "tdfunc", "tdfunc_crc32", "tensordict"
_PEER_VERSION = 1

_MOST_SHOWN = 20  # entries in an error

# A stack of tensors without elements has as many members as somebody wrote there:
# that many entries of members are made at most.
_MOST_MEMBERS = 4_000_000

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(slots=True, eq=False)
class _Tensor:
    """A tensor of the file that is written.

    Attributes:
        name: its name there.
        dtype: its dtype.
        shape: its shape.
        sources: the array, or the arrays of which it is a stack.
        dim: the dim of the stack; None for one array.
        shown: whether the peer has it in its tree.
        nbytes: how long it is.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    sources: list[Array]
    dim: int | None = None
    shown: bool = False
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = prod(self.shape) * self.dtype.itemsize


def write(level: Level, path: FilePath, options: WriteOptions) -> None:
    """Write a tree to a safetensors file.

    Raises:
        PickleRefusedError: a value can be written as a pickle only.
        FormatLimitError: safetensors has not the dtype of an entry, or the header
            would be longer than its readers take.
        TargetExistsError: something is at `path` already.
        OSError: the system refuses.
    """
    record, arrays, paths = record_of(level, allow_pickle=options.allow_pickle)
    _check_dtypes(arrays, paths)
    plan = _Plan()
    root = plan.peer(level)
    for array, where in zip(arrays, paths, strict=True):
        plan.place(array, where)
    plan.show_rest(root, level)
    tensors = sorted(plan.tensors, key=lambda tensor: -tensor.dtype.itemsize)
    places = [plan.places[id(array)] for array in arrays]
    used = {place if type(place) is str else place[0] for place in places}
    ours = {
        "version": VERSION,
        "tensors": places,
        "spare": [tensor.name for tensor in tensors if tensor.name not in used],
        "levels": record,
    }
    text = dumps(ours)
    header: dict[str, Any] = {
        _METADATA: {
            "format": "pt",
            _PEER: dumps({"version": _PEER_VERSION, "root": root}).decode(),
            _OURS: text.decode(),
            _CHECKSUM: _checksum(text),
        }
    }
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
    raw = dumps(header)
    raw += b" " * (-(len(raw) + _LENGTH) % _ALIGNMENT)
    if len(raw) > _MOST_HEADER:
        raise FormatLimitError(
            "the header of this safetensors file would be too long",
            expected=f"at most {_MOST_HEADER} bytes of names, shapes and values",
            got=len(raw),
            fix="another format, or fewer and shorter values that are no tensors",
        )
    with new_file(
        path, overwrite=options.overwrite, durable=options.durable
    ) as descriptor:
        options.ready()
        start = [len(raw).to_bytes(_LENGTH, "little"), raw]
        write_all(descriptor, _buffers(start, tensors, options.progress))


def _checksum(text: bytes) -> str:
    return f"{crc32(text):08x}"


def _check_dtypes(arrays: list[Array], paths: list[Path]) -> None:
    wrong = [
        f"{show_path(path)}: {array.dtype}"
        for array, path in zip(arrays, paths, strict=True)
        if array.dtype not in _NAMES
    ]
    if wrong:
        more = len(wrong) - _MOST_SHOWN
        shown = wrong[:_MOST_SHOWN] + ([f"{more} more"] if more > 0 else [])
        raise FormatLimitError(
            "safetensors has not the dtype of some entries",
            expected=", ".join([str(dtype) for dtype in _NAMES]),
            got="; ".join(shown),
            fix="another format, or another dtype: torch.view_as_real of a complex one",
        )


def _buffers(
    start: list[bytes], tensors: list[_Tensor], progress: Callable[[int], None]
) -> Iterator[memoryview | bytes]:
    yield from start
    for tensor in tensors:
        if tensor.dim:
            parts: list[Any] = [array.tensor for array in tensor.sources]
            yield as_buffer(torch.stack(parts, tensor.dim))
        else:
            # Along the first dim, members one after the other are the stack.
            for array in tensor.sources:
                one: Any = array.tensor
                yield as_buffer(one)
        progress(tensor.nbytes)


class _Plan:
    """Which tensors a tree becomes, and what the peer is told of them.

    Attributes:
        tensors: the tensors.
        places: where each array is: a name, or name, dim and place of a member.
    """

    def __init__(self) -> None:
        self.tensors: list[_Tensor] = []
        self.places: dict[int, Any] = {}
        self.plain: dict[int, _Tensor] = {}
        self.used = {_METADATA}

    def name(self, path: Path) -> str:
        """Return a name for a tensor that no other has."""
        joined = ".".join(path)
        if not joined.isascii():
            # Half a character is none in a header.
            joined = joined.encode("utf-8", "backslashreplace").decode()
        name, count = joined, 1
        while name in self.used:
            count += 1
            name = f"{joined}~{count}"
        self.used.add(name)
        return name

    def place(self, array: Array, path: Path) -> None:
        """Give an array that is in no stack a tensor of its own."""
        if id(array) not in self.places:
            self.show(array, path)

    def show(self, array: Array, path: Path) -> _Tensor:
        """Return the tensor of an array by itself."""
        found = self.plain.get(id(array))
        if found is None:
            name = self.name(path)
            found = _Tensor(name, array.dtype, array.shape, [array])
            self.tensors.append(found)
            self.plain[id(array)] = found
            # An array that is a member of a stack too is read from here.
            self.places[id(array)] = name
        return found

    def peer(self, level: Level) -> dict[str, Any]:
        """Return what the peer can hold of a tree, and plan its tensors."""
        root: dict[str, Any] = {}
        pending: list[tuple[Path, Level, dict[str, Any], int]] = [((), level, root, 0)]
        while pending:
            path, here, made, depth = pending.pop()
            names = None if here.names is None else list(here.names)
            keys: dict[str, Any] = {}
            made.update(batch_size=list(here.batch_size), names=names, keys=keys)
            if here.stack_dim is not None:
                if _are_alike(here, depth):
                    made["stack_dim"] = here.stack_dim
                    self._stack(here, path, keys)
                # Else only the root comes here: an empty node to the peer.
                continue
            for key, entry in here.entries.items():
                if not is_text(key):
                    continue
                if not isinstance(entry, Level):
                    self._entry(entry, key, path, keys)
                elif depth < MOST_DEPTH and _is_shown(entry, depth + 1):
                    below: dict[str, Any] = {}
                    keys[key] = {"td": below}
                    pending.append(((*path, key), entry, below, depth + 1))
        return root

    def _entry(self, entry: Entry, key: str, path: Path, keys: dict[str, Any]) -> None:
        if isinstance(entry, Array):
            tensor = self.show(entry, (*path, key))
            tensor.shown = True
            said: dict[str, Any] = {"tensor": tensor.name}
            if entry.unbatched:
                said["unbatched"] = True
            keys[key] = said
        elif isinstance(entry, Static) and is_plain(entry.value):
            keys[key] = {"non_tensor": entry.value}

    def _stack(self, level: Level, path: Path, keys: dict[str, Any]) -> None:
        """Plan a lazy stack whose members are alike: one tensor for each entry."""
        dim = level.stack_dim
        assert dim is not None  # noqa: S101 - for type checkers
        members: Any = list(level.entries.values())
        pending = [(path, members, keys)]
        while pending:
            upto, nodes, into = pending.pop()
            for key, first in nodes[0].entries.items():
                here = (*upto, key)
                parts: Any = [node.entries[key] for node in nodes]
                if isinstance(first, Level):
                    below: dict[str, Any] = {}
                    shape = first.batch_size
                    whole = (*shape[:dim], len(nodes), *shape[dim:])
                    into[key] = {
                        "td": {"batch_size": whole, "names": None, "keys": below}
                    }
                    pending.append((here, parts, below))
                elif isinstance(first, Array):
                    shape = first.shape
                    whole = (*shape[:dim], len(nodes), *shape[dim:])
                    name = self.name(here)
                    made = _Tensor(name, first.dtype, whole, parts, dim, shown=True)
                    self.tensors.append(made)
                    into[key] = {"tensor": name}
                    for at, part in enumerate(parts):
                        self.places.setdefault(id(part), [name, dim, at])
                elif isinstance(first, Static):
                    into[key] = {"non_tensor": first.value}

    def show_rest(self, root: dict[str, Any], level: Level) -> None:
        """Give the peer a node with the tensors that are nowhere in its tree."""
        rest = [tensor.name for tensor in self.tensors if not tensor.shown]
        if rest:
            keys = root["keys"]
            name = _OURS
            while name in keys:
                name += "~"
            held = {text: {"tensor": text, "unbatched": True} for text in rest}
            size = list(level.batch_size)
            keys[name] = {"td": {"batch_size": size, "names": None, "keys": held}}


def _is_shown(level: Level, depth: int) -> bool:
    return level.stack_dim is None or _are_alike(level, depth)


def _are_alike(level: Level, depth: int) -> bool:
    """Return whether the members of a lazy stack are as one node, for the peer too."""
    dim = level.stack_dim
    members: Any = list(level.entries.values())
    if not members:
        return False
    first = members[0]
    pending = [(first, member, depth) for member in members]
    while pending:
        one, other, at = pending.pop()
        kinds = (one.stack_dim, other.stack_dim) == (None, None)
        if not kinds or at == MOST_DEPTH or one.batch_size != other.batch_size:
            return False
        if one.entries.keys() != other.entries.keys():
            return False
        for key, entry in one.entries.items():
            theirs = other.entries[key]
            if type(entry) is not type(theirs):
                return False
            if isinstance(entry, Level):
                pending.append((entry, theirs, at + 1))
            elif not ((key.isascii() or is_plain(key)) and _is_same(entry, theirs)):
                return False
    assert dim is not None  # noqa: S101 - for type checkers
    return True


def _is_same(entry: Entry, other: Entry) -> bool:
    """Return whether two entries of members can be one of the stack."""
    if isinstance(entry, Array) and isinstance(other, Array):
        alike = entry.dtype == other.dtype and entry.shape == other.shape
        return alike and not (entry.unbatched or other.unbatched)
    if isinstance(entry, Static) and isinstance(other, Static):
        values = (entry.value, other.value)
        return all(map(is_plain, values)) and dumps(values[0]) == dumps(values[1])
    return False


def open_source(path: FilePath, options: ReadOptions) -> Source:
    """Open a safetensors file, whoever wrote it.

    Raises:
        MissingFileError: there is no such file.
        FileFormatError: it is no file.
        OSError: the system refuses.
    """
    return _Safetensors(path, options)


def recognises(path: FilePath) -> bool:
    """Return whether this is a safetensors file, by its first bytes."""
    try:
        with path.open("rb") as file:
            start = file.read(_LENGTH + 2)
            size = file.seek(0, 2)
    except OSError:
        return False
    length = int.from_bytes(start[:_LENGTH], "little")
    fits = 2 <= length <= min(_MOST_HEADER, size - _LENGTH)  # noqa: PLR2004
    return fits and start[_LENGTH:] in {b'{"', b"{}", b"{ "}


class _Safetensors(OneFile):
    """An open safetensors file."""

    def outline(self) -> Level:
        """See `Source.outline`."""
        name = self.name
        metadata, tensors = self._header()
        if _CHECKSUM not in metadata:
            # A stranger may note there which version of us it used.
            notes = [k for k in (_OURS, _PEER) if _is_note(metadata.get(k, ""))]
            metadata = {k: text for k, text in metadata.items() if k not in notes}
        if not metadata.keys().isdisjoint({_OURS, _CHECKSUM}):
            text = metadata.get(_OURS, "")
            if metadata.get(_CHECKSUM) != _checksum(
                text.encode("utf-8", "surrogatepass")
            ):
                raise bad(name, "the record of the tree is damaged: wrong checksum")
            level = self._ours(loads(text, name), tensors)
        elif _PEER in metadata:
            level = _peer_tree(loads(metadata[_PEER], name), tensors, name)
        else:
            level = _split(tensors, self.options.separator, name)
        return self.checked(level)

    def _header(self) -> tuple[dict[str, str], dict[str, Array]]:
        """Return the metadata and the tensors of the file."""
        name, size = self.name, self.size
        if size < _LENGTH:
            raise bad(name, "it is too short for safetensors", got=size)
        length = int.from_bytes(self.content(0, _LENGTH), "little")
        most = min(_MOST_HEADER, size - _LENGTH)
        if length > most:
            raise bad(
                name,
                "its first 8 bytes are no length of a header",
                expected=f"at most {most}",
                got=length,
            )
        header = loads(self.content(_LENGTH, length), name)
        if type(header) is not dict:
            raise bad(name, "its header is no object", got=header)
        metadata = header.pop(_METADATA, None) or {}
        if type(metadata) is not dict or not all(
            [type(text) is str for text in metadata.values()]
        ):
            raise bad(name, "its metadata is no object of texts", got=metadata)
        return metadata, self._tensors(header, _LENGTH + length)

    def _tensors(self, header: dict[str, Any], base: int) -> dict[str, Array]:
        """Return the tensors of a header, if they fill the file without a gap."""
        name = self.name
        tensors: dict[str, Array] = {}
        kinds: dict[str, tuple[torch.dtype, tuple[int, ...], int]] = {}
        spans: list[tuple[int, int, str]] = []
        for key, said in header.items():
            try:
                kind = f"{said['dtype']}{said['shape']!r}"
                start, stop = said["data_offsets"]
            except (TypeError, ValueError, KeyError) as error:
                raise bad(
                    name, "a tensor has no dtype, shape and place", (key,), got=said
                ) from error
            found = kinds.get(kind)
            if found is None:
                found = kinds[kind] = self._kind(key, said)
            dtype, shape, count = found
            if type(start) is not int or type(stop) is not int or stop - start != count:
                raise bad(
                    name,
                    "a tensor is not as long as its shape",
                    (key,),
                    expected=f"{count} bytes",
                    got=said["data_offsets"],
                )
            spans.append((start, stop, key))
            tensors[key] = Array(dtype, shape, None, base + start)
        spans.sort()
        end = 0
        for start, stop, key in spans:
            if start != end:
                raise bad(
                    name,
                    "a tensor does not begin where another ends",
                    (key,),
                    expected=f"{end}",
                    got=start,
                )
            end = stop
        if base + end != self.size:
            raise bad(
                name,
                "it does not end where its tensors end",
                expected=f"{base + end} bytes",
                got=self.size,
            )
        return tensors

    def _kind(
        self, key: str, said: dict[str, Any]
    ) -> tuple[torch.dtype, tuple[int, ...], int]:
        """Return dtype, shape and bytes of a tensor."""
        text = said["dtype"]
        dtype = _DTYPES.get(text) if type(text) is str else None
        if dtype is None:
            raise bad(
                self.name,
                "a tensor has a dtype that is not read",
                (key,),
                expected=f"one of {', '.join(_DTYPES)}",
                got=text,
            )
        shape = as_shape(said["shape"], self.name, (key,), dtype.itemsize)
        return dtype, shape, prod(shape) * dtype.itemsize

    def _ours(self, data: Any, tensors: dict[str, Array]) -> Level:
        name = self.name
        if type(data) is not dict:
            raise bad(name, "the record of the tree is no object")
        check_version(data.get("version"), name)
        places, spare = data.get("tensors"), data.get("spare")
        if type(places) is not list or type(spare) is not list:
            raise bad(name, "the record of the tree does not say what its arrays are")
        used: set[str] = set()
        arrays: list[Array] = []
        for place in [*places, *spare]:
            text, member = place, None
            if type(place) is list and len(place) == 3:  # noqa: PLR2004
                text, *member = place
            found = tensors.get(text) if type(text) is str else None
            if found is None:
                raise bad(name, "the record of the tree has another tensor", got=place)
            used.add(text)
            arrays.append(found if member is None else _member(found, member, name))
        _check_used(tensors, used, name)
        del arrays[len(places) :]
        allow = self.options.allow_pickle
        return outline_of(data.get("levels"), arrays, name, allow_pickle=allow)


def _is_note(text: str) -> bool:
    """Return whether a text can not be what is said of a tree, even if damaged."""
    return not text.startswith("{") and '":' not in text


def _member(whole: Array, member: list[Any], name: str) -> Array:
    """Return an array that is one of a stack."""
    dim, at = [as_count(part, name) for part in member]
    if dim >= len(whole.shape) or at >= whole.shape[dim]:
        raise bad(name, "a member of a stack is not there", got=member)
    shape = (*whole.shape[:dim], *whole.shape[dim + 1 :])
    return Array(whole.dtype, shape, None, Member(whole, dim, at))


def _check_used(tensors: dict[str, Array], used: set[str], name: str) -> None:
    if len(used) != len(tensors):
        rest = [key for key in tensors if key not in used]
        raise bad(
            name,
            f"what it says of its tree has not {len(rest)} of its tensors",
            got=rest[0],
        )


def _split(tensors: dict[str, Array], separator: str | None, name: str) -> Level:
    """Return the tree of a file that says nothing of one."""
    root = Level(())
    for text, array in sorted(tensors.items(), key=lambda item: item[1].place):
        keys = [text] if not separator else text.split(separator)
        if not all(keys):
            keys = [text]  # a key is not empty
        here = root
        for key in keys[:-1]:
            entry = here.entries.setdefault(key, Level(()))
            if not isinstance(entry, Level):
                raise _torn(name, text)
            here = entry
        if keys[-1] in here.entries:
            raise _torn(name, text)
        here.entries[keys[-1]] = array
    return root


def _torn(name: str, text: str) -> Exception:
    return bad(
        name,
        "split at the separator, a name is both a tensor and a node",
        got=text,
        fix="separator=None leaves names whole",
    )


def _peer_tree(data: Any, tensors: dict[str, Array], name: str) -> Level:
    """Return the tree that the peer wrote."""
    if type(data) is not dict or data.get("version") != _PEER_VERSION:
        raise bad(
            name,
            "what it says of its tree is of another version of tensordict",
            expected=f"version {_PEER_VERSION}",
            got=data.get("version") if type(data) is dict else data,
        )
    root = Level(())
    used: set[str] = set()
    nodes: list[tuple[Path, Any, Level]] = [((), data.get("root"), root)]
    for path, said, level in nodes:  # grows
        if type(said) is not dict or type(said.get("keys")) is not dict:
            raise bad(name, "a node has no keys", path, got=said)
        level.batch_size = as_shape(said.get("batch_size"), name, path)
        level.names = as_names(said.get("names"), len(level.batch_size), name, path)
        level.record = class_note(said.get("class"))
        dim = said.get("stack_dim")
        level.stack_dim = None if dim is None else as_count(dim, name, path)
        for key, entry in said["keys"].items():
            here = (*path, key)
            if type(entry) is dict and "td" in entry:
                below = level.entries[key] = Level(())
                nodes.append((here, entry["td"], below))
            else:
                level.entries[key] = _peer_entry(entry, tensors, used, here, name)
    _check_used(tensors, used, name)
    # Nodes in a stack are stacks along the same dim: they are taken apart with it.
    done: set[int] = set()
    for path, _, level in nodes:
        if level.stack_dim is not None and id(level) not in done:
            done.update([id(below) for _, below in iter_levels(level)])
            _take_apart(level, level.stack_dim, path, name)
    return root


def _peer_entry(
    entry: Any, tensors: dict[str, Array], used: set[str], path: Path, name: str
) -> Entry:
    if type(entry) is not dict:
        raise bad(name, "an entry is no object", path, got=entry)
    if "non_tensor" in entry:
        return Static(entry["non_tensor"])
    text: Any = entry.get("tensor")
    found = tensors.get(text) if type(text) is str else None
    if found is None:
        raise bad(name, "an entry is a tensor that is not there", path, got=entry)
    used.add(text)
    loose = entry.get("unbatched") is True
    return replace(found, unbatched=True) if loose else found


def _take_apart(level: Level, dim: int, path: Path, name: str) -> None:
    """Make a node the lazy stack of its slices along a dim."""
    size = level.batch_size
    count = sum([len(below.entries) + 1 for _, below in iter_levels(level)])
    if dim >= len(size) or size[dim] * count > _MOST_MEMBERS:
        raise bad(name, "a lazy stack has no such dim, or too many members", path)
    members = [_slice(level, dim, at, path, name) for at in range(size[dim])]
    level.entries = {str(at): member for at, member in enumerate(members)}


def _slice(level: Level, dim: int, at: int, path: Path, name: str) -> Level:
    """Return one member of a node that is to be a lazy stack."""
    top = Level(())
    pending = [(level, top, path)]
    while pending:
        here, made, where = pending.pop()
        size = here.batch_size
        if dim >= len(size) or size[dim] != level.batch_size[dim]:
            raise bad(name, "a node in a lazy stack has another size", where)
        if here.stack_dim not in {None, dim}:
            raise bad(name, "a lazy stack is in another, along another dim", where)
        made.batch_size = (*size[:dim], *size[dim + 1 :])
        if here.names is not None:
            names = (*here.names[:dim], *here.names[dim + 1 :])
            made.names = names if any(n is not None for n in names) else None
        for key, entry in here.entries.items():
            if isinstance(entry, Level):
                below = made.entries[key] = Level(())
                pending.append((entry, below, (*where, key)))
            elif isinstance(entry, Array) and not entry.unbatched:
                if dim >= len(entry.shape) or entry.shape[dim] != size[dim]:
                    raise bad(
                        name, "an entry of a lazy stack has another size", (*where, key)
                    )
                made.entries[key] = _member(entry, [dim, at], name)
            else:
                made.entries[key] = entry
    return top
