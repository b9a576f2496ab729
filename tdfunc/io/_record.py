"""What formats of one file share: the record of a tree, and reading it back.

A record is all of a tree but its tensors, as JSON: a list of levels, parents before
what is in them. Each says its batch size, dim names, record class and stack dim where
it has one, its keys, and for each key

* ``n``: array number n,
* ``{"unbatched": n}``: array number n, which the batch does not index,
* ``{"level": n}``: level number n,
* ``{"jagged": [values, offsets, lengths or null, ragged dim]}``, arrays by number,
* ``{"rows": [shape, table, codes or null]}``: values, and which of them each row has,
* ``{"static": value}``.

Where the arrays are is for each format to say. Being flat, it reads fast and has no
depth.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tdfunc.errors import FileFormatError, MissingFileError
from tdfunc.io._layout import (
    Array,
    Jagged,
    Level,
    Rows,
    Source,
    Static,
    iter_levels,
)
from tdfunc.io._map import tensors_in
from tdfunc.io._system import FILE
from tdfunc.io._values import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path as FilePath

    from tdfunc.io._layout import Entry
    from tdfunc.io._options import ReadOptions
    from tdfunc.typing import Path

__all__ = [
    "MOST_DEPTH",
    "VERSION",
    "Member",
    "OneFile",
    "as_count",
    "as_names",
    "as_shape",
    "bad",
    "check_version",
    "class_note",
    "outline_of",
    "record_of",
]

# Of all that is ours in a file. A higher one is refused.
VERSION = 1

# The peer reads nodes in nodes by recursion: what lies deeper is hidden from it.
MOST_DEPTH = 100

# torch counts elements and bytes in int64.
_MOST = (1 << 63) - 1


def bad(name: str, what: str, path: Path | None = None, **more: Any) -> FileFormatError:
    """Return the error that a file is broken."""
    got = more.pop("got", None)
    shown = None if got is None else ascii(got)[:80]
    return FileFormatError(f"{name}: {what}", path=path, got=shown, **more)


def as_count(value: Any, name: str, path: Path | None = None) -> int:
    """Return a number from a file that counts something.

    Raises:
        FileFormatError: it is no integer, negative, or larger than torch can count.
    """
    if type(value) is int and 0 <= value <= _MOST:
        return value
    raise bad(name, "a number is not one that counts", path, got=value)


def as_shape(
    value: Any, name: str, path: Path | None = None, itemsize: int = 1
) -> tuple[int, ...]:
    """Return a shape from a file.

    Raises:
        FileFormatError: it is no list of sizes, or is larger than torch can count.
    """
    if type(value) is not list:
        raise bad(name, "a shape is no list of sizes", path, got=value)
    sizes = tuple([as_count(size, name, path) for size in value])
    # Strides of a tensor without elements are as if its empty dims had one.
    if prod([max(size, 1) for size in sizes]) * itemsize > _MOST:
        raise bad(name, "a shape is larger than torch can count", path, got=value)
    return sizes


def as_names(
    value: Any, dims: int, name: str, path: Path | None = None
) -> tuple[str | None, ...] | None:
    """Return dim names from a file; None where no dim has one.

    Raises:
        FileFormatError: they are no names, not as many as dims, or not all different.
    """
    if value is None:
        return None
    if type(value) is not list or not all([n is None or type(n) is str for n in value]):
        raise bad(name, "dim names are no list of texts and nulls", path, got=value)
    given = [n for n in value if n is not None]
    if not given:
        return None
    if len(value) != dims or len(set(given)) < len(given):
        raise bad(
            name,
            "dim names do not fit the batch size",
            path,
            expected=f"{dims} different names",
            got=value,
        )
    return tuple(value)


def check_version(version: Any, name: str) -> None:
    """Check the version of what is ours in a file.

    Raises:
        FileFormatError: it is none that can be read.
    """
    if as_count(version, name) != VERSION:
        raise bad(
            name,
            f"it has version {version} of the format",
            expected=f"version {VERSION}",
            fix="a newer tdfunc",
        )


def class_note(name: Any) -> str | None:
    """Return the note of a record class that the peer names, None if it is none.

    Where its module ends is not said: the last part is taken for its name.
    """
    if type(name) is not str or not name.startswith("<class '"):
        return None
    module, _, qualname = (
        name.removeprefix("<class '").removesuffix("'>").rpartition(".")
    )
    return f"{module}:{qualname}"


def record_of(
    level: Level, *, allow_pickle: bool
) -> tuple[list[Any], list[Array], list[Path]]:
    """Return a tree as a record, its arrays by number, and a path of each.

    Raises:
        PickleRefusedError: a value can be written as a pickle only.
        FormatLimitError: a value can not be written.
    """
    found = list(iter_levels(level))
    recorder = _Recorder({id(here): at for at, (_, here) in enumerate(found)})
    recorder.allow_pickle = allow_pickle
    levels = [recorder.level(here, path) for path, here in found]
    return levels, recorder.arrays, recorder.paths


class _Recorder:
    """Numbers arrays, and says what entries are.

    Attributes:
        levels: the number of each level.
        arrays: the arrays by number,
        paths: and a path of each.
    """

    def __init__(self, levels: dict[int, int]) -> None:
        self.levels = levels
        self.allow_pickle = False
        self.numbers: dict[int, int] = {}
        self.arrays: list[Array] = []
        self.paths: list[Path] = []

    def level(self, level: Level, path: Path) -> dict[str, Any]:
        made: dict[str, Any] = {"batch_size": list(level.batch_size)}
        if level.names is not None:
            made["names"] = [_text(name) for name in level.names]
        if level.record is not None:
            made["record"] = _text(level.record)
        if level.stack_dim is not None:
            made["stack_dim"] = level.stack_dim
        made["keys"] = [_text(key) for key in level.entries]
        made["entries"] = [
            self.entry(entry, (*path, key)) for key, entry in level.entries.items()
        ]
        return made

    def entry(self, entry: Entry, path: Path) -> Any:
        if isinstance(entry, Array):
            at = self.number(entry, path)
            return {"unbatched": at} if entry.unbatched else at
        if isinstance(entry, Level):
            return {"level": self.levels[id(entry)]}
        if isinstance(entry, Static):
            return {"static": self.value(entry.value, path)}
        if isinstance(entry, Rows):
            return {"rows": self.rows(entry, path)}
        parts = (entry.values, entry.offsets, entry.lengths)
        numbers = [None if part is None else self.number(part, path) for part in parts]
        return {"jagged": [*numbers, entry.ragged_dim]}

    def number(self, array: Array, path: Path) -> int:
        arrays = self.arrays
        at = self.numbers.setdefault(id(array), len(arrays))
        if at == len(arrays):
            arrays.append(array)
            self.paths.append(path)
        return at

    def value(self, value: Any, path: Path) -> Any:
        return to_json(value, path, allow_pickle=self.allow_pickle)

    def rows(self, rows: Rows, path: Path) -> list[Any]:
        # The same object in many rows is written once, and is one object again.
        places: dict[int, int] = {}
        codes = [places.setdefault(id(value), len(places)) for value in rows.values]
        table: list[Any] = [None] * len(places)
        for code, value in zip(codes, rows.values, strict=True):
            table[code] = value
        parts = [self.value(value, path) for value in table]
        return [list(rows.shape), parts, None if len(table) == len(codes) else codes]


def _text(value: str | None) -> Any:
    """Return text in JSON, where halves of characters would be joined."""
    if value is None or value.isascii():
        return value
    return to_json(value, (), allow_pickle=False)


def outline_of(
    record: Any, arrays: Sequence[Array], name: str, *, allow_pickle: bool | None
) -> Level:
    """Return the tree of a record whose arrays are found, to be checked as one.

    Raises:
        FileFormatError: the record is none.
        PickleRefusedError: a value was pickled, and that is not allowed.
    """
    if type(record) is not list or not record:
        raise bad(name, "the record of the tree is no list of levels")
    reader = _Reader(arrays, name, allow_pickle)
    levels = [reader.level(data) for data in record]
    for at, (data, level) in enumerate(zip(record, levels, strict=True)):
        reader.fill(at, data, level, levels)
    if reader.missing:
        raise bad(name, "a level of the tree is in no other")
    used = reader.used
    if len(used) != len(arrays):
        raise bad(name, f"{len(arrays) - len(used)} arrays are nowhere in the tree")
    return levels[0]


class _Reader:
    """Levels of a record."""

    def __init__(
        self,
        arrays: Sequence[Array],
        name: str,
        allow_pickle: bool | None,  # noqa: FBT001 - private
    ) -> None:
        self.arrays = arrays
        self.name = name
        self.allow_pickle = allow_pickle
        self.used: set[int] = set()
        self.missing: set[int] = set()
        self.unbatched: dict[int, Array] = {}

    def level(self, data: Any) -> Level:
        """Return a level without its entries."""
        name = self.name
        if type(data) is not dict:
            raise bad(name, "a level of the tree is no object", got=data)
        size = as_shape(data.get("batch_size"), name)
        names = data.get("names")
        if type(names) is list:
            names = [None if n is None else self.text(n) for n in names]
        record = data.get("record")
        record = None if record is None else self.text(record)
        dim = data.get("stack_dim")
        dim = None if dim is None else as_count(dim, name)
        return Level(size, as_names(names, len(size), name), {}, record, dim)

    def text(self, data: Any) -> str:
        if type(data) is dict:
            data = self.value(data)
        if type(data) is not str:
            raise bad(self.name, "what should be text is not", got=data)
        return data

    def value(self, data: Any) -> Any:
        return from_json(data, allow_pickle=self.allow_pickle, name=self.name)

    def fill(self, at: int, data: Any, level: Level, levels: list[Level]) -> None:
        """Put the entries of a level in."""
        name = self.name
        keys, entries = data.get("keys"), data.get("entries")
        if type(keys) is not list or type(entries) is not list:
            raise bad(name, "a level of the tree has no keys or entries")
        if len(keys) != len(entries):
            raise bad(name, "a level of the tree has not as many entries as keys")
        if at == 0:
            self.missing = set(range(1, len(levels)))
        arrays, used, into = self.arrays, self.used, level.entries
        count = len(arrays)
        for key, entry in zip(keys, entries, strict=True):
            if type(key) is not str:
                key = self.text(key)  # noqa: PLW2901 - the rare form of it
            if type(entry) is int and 0 <= entry < count:
                used.add(entry)
                into[key] = arrays[entry]
            else:
                into[key] = self.entry(entry, at, levels)
        if len(into) != len(keys):
            raise bad(name, "a level of the tree has a key twice")

    def entry(self, data: Any, at: int, levels: list[Level]) -> Entry:
        """Return an entry that is no plain array."""
        name = self.name
        kind, parts = None, None
        if type(data) is dict and len(data) == 1:
            [(kind, parts)] = data.items()
        if kind == "level":
            number = as_count(parts, name)
            # Only what comes later, and that once: a tree, never a ring.
            if number <= at or number not in self.missing:
                raise bad(name, "the levels are no tree", got=data)
            self.missing.remove(number)
            return levels[number]
        if kind == "static":
            return Static(self.value(parts))
        if kind == "unbatched":
            array = self.array(parts)
            made = replace(array, unbatched=True)
            return self.unbatched.setdefault(id(array), made)
        if kind == "jagged" and type(parts) is list and len(parts) == 4:  # noqa: PLR2004
            values, offsets, lengths, dim = parts
            held = None if lengths is None else self.array(lengths)
            dim = as_count(dim, name)
            return Jagged(self.array(values), self.array(offsets), held, dim)
        if kind == "rows" and type(parts) is list and len(parts) == 3:  # noqa: PLR2004
            return self.rows(*parts)
        raise bad(name, "an entry is of no kind that is known", got=data)

    def array(self, data: Any) -> Array:
        number = as_count(data, self.name)
        if number >= len(self.arrays):
            raise bad(self.name, "an entry is an array that is not there", got=data)
        self.used.add(number)
        return self.arrays[number]

    def rows(self, shape: Any, table: Any, codes: Any) -> Rows:
        name = self.name
        sizes = as_shape(shape, name)
        if type(table) is not list:
            raise bad(name, "the values of rows are no list", got=table)
        values = [self.value(part) for part in table]
        if codes is not None:
            if type(codes) is not list:
                raise bad(name, "the codes of rows are no list", got=codes)
            if not all([type(c) is int and 0 <= c < len(values) for c in codes]):
                raise bad(name, "a row has a value that is not there")
            values = [values[code] for code in codes]
        if prod(sizes) != len(values):
            raise bad(name, "there are not as many values as rows", got=shape)
        return Rows(sizes, values)


def _check_level(level: Level, name: str) -> list[Jagged]:
    """Check that a tree from a file is one: every batch size is that of what it has.

    Returns:
        The jagged tensors in it.

    Raises:
        FileFormatError: it is not.
    """
    found: list[Jagged] = []
    for path, here in iter_levels(level):
        size = here.batch_size
        if here.stack_dim is not None:
            _check_stack(here, path, name)
            continue
        dims = len(size)
        for key, entry in here.entries.items():
            if isinstance(entry, Array):
                shape: Any = size if entry.unbatched else entry.shape
            elif isinstance(entry, Level):
                shape = entry.batch_size
            elif isinstance(entry, Rows):
                shape = entry.shape
            elif isinstance(entry, Jagged):
                shape = _jagged_shape(entry, (*path, key), name)
                found.append(entry)
            else:
                shape = size
            if not key:
                raise bad(name, "an entry has no name", (*path, key))
            if shape[:dims] != size:
                raise bad(
                    name,
                    "an entry does not start with the batch size of its node",
                    (*path, key),
                    expected=f"[{', '.join(map(str, size))}, ...]",
                    got=list(shape),
                )
    return found


def _check_stack(level: Level, path: Path, name: str) -> None:
    size, dim = level.batch_size, level.stack_dim
    assert dim is not None  # noqa: S101 - for type checkers
    members = level.entries
    if dim >= len(size) or size[dim] != len(members):
        raise bad(name, "a lazy stack has not as many members as it says", path)
    rest = (*size[:dim], *size[dim + 1 :])
    for at, (key, member) in enumerate(members.items()):
        here = (*path, key)
        if key != str(at) or not isinstance(member, Level):
            raise bad(name, "a lazy stack has an entry that is no member", here)
        if member.batch_size != rest:
            raise bad(
                name,
                "the members of a lazy stack have different batch sizes",
                here,
                expected=list(rest),
                got=list(member.batch_size),
            )


def _jagged_shape(jagged: Jagged, path: Path, name: str) -> tuple[int, ...]:
    """Return the shape of a jagged tensor, -1 where it is ragged."""
    values, offsets, lengths = jagged.values.shape, jagged.offsets, jagged.lengths
    parts = [offsets] if lengths is None else [offsets, lengths]
    plain = {torch.int64, torch.int32}
    if not all([p.dtype in plain and len(p.shape) == 1 for p in parts]):
        raise bad(name, "the offsets of a jagged tensor are no integers in a row", path)
    rows = offsets.shape[0] - 1
    dim = jagged.ragged_dim
    if rows < 0 or not 1 <= dim <= len(values):
        raise bad(name, "a jagged tensor has no rows, or no ragged dim", path)
    if lengths is not None and lengths.shape != (rows,):
        raise bad(name, "a jagged tensor has not as many lengths as rows", path)
    return (rows, *values[: dim - 1], -1, *values[dim:])


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """The place of an array that is a slice of another one.

    Attributes:
        whole: the other one.
        dim: the dim that is taken out.
        at: the place along it.
    """

    whole: Array
    dim: int
    at: int


class OneFile(Source):
    """An open file whose arrays lie at byte offsets, or are slices of such."""

    def __init__(self, path: FilePath, options: ReadOptions) -> None:
        self.name = str(path)
        self.options = options
        self.descriptor, self.size = _opened(path)
        self._jagged: list[Jagged] = []

    def content(self, start: int, count: int) -> bytes:
        """Return some bytes of the file, which was long enough.

        Raises:
            FileFormatError: it is not any more.
        """
        parts: list[bytes] = []
        while count:
            # At most 2 GiB come at once.
            part = os.pread(self.descriptor, count, start)
            if not part:
                raise bad(self.name, "it ends too early")
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return b"".join(parts)

    def checked(self, level: Level) -> Level:
        """Return the tree of this file if it is one.

        Raises:
            FileFormatError: it is not.
        """
        self._jagged = _check_level(level, self.name)
        return level

    def read(self, arrays: Sequence[Array]) -> None:
        """See `Source.read`."""
        members = [array for array in arrays if isinstance(array.place, Member)]
        plain = [array for array in arrays if not isinstance(array.place, Member)]
        wholes = list({id(a.place.whole): a.place.whole for a in members}.values())
        plain += wholes
        places = [(array.place, array.dtype, array.shape) for array in plain]
        tensors = tensors_in(self.descriptor, places)
        for array, tensor in zip(plain, tensors, strict=True):
            array.tensor = tensor
        for array in members:
            whole = array.place.whole.tensor
            array.tensor = whole.select(array.place.dim, array.place.at)
        for whole in wholes:
            whole.tensor = None
        self._jagged = [j for j in self._jagged if not _are_checked(j, self.name)]
        self.options.progress(sum([array.nbytes for array in plain]))

    def close(self) -> None:
        """See `Source.close`."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _are_checked(jagged: Jagged, name: str) -> bool:
    """Check that rows lie within the values, once all that says so is read.

    Kernels take offsets as they come.
    """
    values, offsets = jagged.values, jagged.offsets.tensor
    held = None if jagged.lengths is None else jagged.lengths.tensor
    missing = jagged.lengths is not None and held is None
    if values.tensor is None or offsets is None or missing:
        return False
    lengths = offsets.diff()
    fine = bool((lengths >= 0).all()) and int(offsets[0]) >= 0
    fine = fine and int(offsets[-1]) <= values.shape[jagged.ragged_dim - 1]
    if held is not None:
        fine = fine and bool(((held >= 0) & (held <= lengths)).all())
    if not fine:
        raise bad(name, "the offsets of a jagged tensor are no places of its values")
    return True


def _opened(path: FilePath) -> tuple[int, int]:
    """Return a descriptor of a file and its size.

    Raises:
        MissingFileError: there is no such file.
        FileFormatError: it is no file.
        OSError: the system refuses.
    """
    try:
        descriptor = os.open(path, FILE)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: there is no such file") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise bad(str(path), "this is no file")
    return descriptor, found.st_size
