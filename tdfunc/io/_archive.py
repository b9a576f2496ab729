"""Archives: the files of a directory in one zip file, arrays where they can be mapped.

A file of an array is stored as it is, at a multiple of 64 bytes, or compressed; what
describes the tree is always stored. Nothing else is in an archive of ours, and equal
trees make equal archives. An archive that another program made is read if it holds
the same files: what lies where no element may is copied.
"""

from __future__ import annotations

import os
from operator import eq
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import torch

from tdfunc.errors import (
    FileFormatError,
    FormatLimitError,
    MissingFileError,
    OptionError,
)
from tdfunc.io._atomic import new_file
from tdfunc.io._folder import META, SUFFIX, Folder
from tdfunc.io._folder_read import outline_of
from tdfunc.io._folder_write import files_of
from tdfunc.io._layout import Source
from tdfunc.io._map import as_buffer, tensors_in
from tdfunc.io._system import FILE
from tdfunc.io._zip import METHODS, STORED, Writer, has_member, index, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tdfunc.io._folder import Where
    from tdfunc.io._layout import Array, Level
    from tdfunc.io._options import Compression, ReadOptions, WriteOptions
    from tdfunc.io._zip import Member

__all__ = [
    "Members",
    "member_names",
    "method_of",
    "open_source",
    "opened",
    "place_of",
    "recognises",
    "write",
]


# What describes a tree may inflate to this much, and this many times the archive.
_PLAIN, _RATIO = 16 << 20, 32

_PIECE = 1 << 20
_LONGEST_NAME = 0xFFFF  # bytes of a name in a zip file


def write(level: Level, path: Path, options: WriteOptions) -> None:
    """Write a tree as an archive, in one pass.

    Raises:
        FormatLimitError: the format can not hold an entry.
        PickleRefusedError: a value would have to be pickled.
        TargetExistsError: something is at `path`.
    """
    method = method_of(options.compression)
    files = sorted(
        files_of(level, allow_pickle=options.allow_pickle),
        key=lambda file: place_of(file[0]),
    )
    names = member_names([where for where, _ in files])
    with (
        new_file(path, overwrite=options.overwrite, durable=options.durable) as to,
        Writer(to) as out,
    ):
        options.ready()
        counted: set[int] = set()
        for name, (_, content) in zip(names, files, strict=True):
            if isinstance(content, bytes):
                out.store(name, content, align=False)
                continue
            data = _bytes_of(content)
            if method == STORED:
                out.store(name, data, align=True)
            else:
                out.stream(name, _cut(data), len(data), method)
            if id(content) not in counted:  # at two places, it is one tensor
                counted.add(id(content))
                options.progress(len(data))


def method_of(compression: Compression | None) -> int:
    """Return the number that zip files have for a compression.

    Raises:
        OptionError: there is no such compression.
    """
    if compression is None:
        return STORED
    if not isinstance(compression, str) or compression not in METHODS:
        raise OptionError(
            "there is no such compression",
            expected=f"one of {', '.join(map(repr, METHODS))}, or None",
            got=repr(compression),
        )
    return METHODS[compression]


def place_of(where: Where) -> tuple[Where, bool, str]:
    """Return a key that sorts as the peer does.

    In every directory ``meta.json``, then the other files, then the directories.
    """
    name = where[-1]
    return where[:-1], name != META, name


def member_names(files: Sequence[Where]) -> list[bytes]:
    names: list[bytes] = []
    odd: list[str] = []
    for where in files:
        text = "/".join(where)
        try:
            name = text.encode()
        except UnicodeEncodeError:
            odd.append(f"{text!r} is no Unicode")
            continue
        if len(name) > _LONGEST_NAME:
            odd.append(f"'{text[:30]}...' is longer than {_LONGEST_NAME} bytes")
        names.append(name)
    if odd:
        raise FormatLimitError(f"an archive can not name these files: {'; '.join(odd)}")
    return names


def _bytes_of(array: Array) -> memoryview:
    tensor = array.tensor
    assert tensor is not None  # noqa: S101  # what is written has its tensors
    return as_buffer(tensor)


def _cut(data: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(data), _PIECE):
        yield data[at : at + _PIECE]


def recognises(path: Path) -> bool:
    """Return whether a file is a zip archive with a description of a tree."""
    try:
        descriptor = os.open(path, FILE)
    except OSError:
        return False
    try:
        regular = S_ISREG(os.fstat(descriptor).st_mode)
        return regular and has_member(descriptor, META)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def open_source(path: Path, options: ReadOptions) -> Source:
    """Open an archive, and check its list of members.

    Raises:
        MissingFileError: there is no such file.
        FileFormatError: it is no archive, or one that is not taken: see `_zip`.
    """
    descriptor = opened(path)
    try:
        members = Members(descriptor, str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return _Archive(members, options)


def opened(path: Path) -> int:
    try:
        descriptor = os.open(path, FILE)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFileError(f"there is no file {str(path)!r}") from error
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileFormatError(f"{path}: this is no regular file, so no archive")
    return descriptor


class Members(Folder):
    """The files in an archive.

    Attributes:
        descriptor: the open archive.
        members: its files by name.
        told: names of the arrays that were asked for, which have the sizes that the
            description of the tree tells.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor = descriptor
        self.name = name
        self.members = index(descriptor, name)
        self.told: set[str] = set()
        self._check_bombs()

    def _check_bombs(self) -> None:
        """Refuse, before anything is inflated, what would become too much text.

        The bytes of arrays are bounded by the sizes that the text declares.
        """
        inflated = sum(
            [
                member.size
                for member in self.members.values()
                if member.method != STORED and not member.name.endswith(SUFFIX)
            ]
        )
        limit = _PLAIN + _RATIO * os.fstat(self.descriptor).st_size
        if inflated > limit:
            raise FileFormatError(
                f"{self.name}: what describes the tree inflates to too much",
                expected=f"at most {limit} bytes",
                got=f"{inflated} bytes",
            )

    def content(self, where: Where, limit: int) -> bytes | None:
        member = self.members.get("/".join(where))
        if member is None:
            return None
        if member.size > limit:
            raise FileFormatError(
                f"{self.name}: {member.name!r}: this file is too large",
                expected=f"at most {limit} bytes",
                got=f"{member.size} bytes",
            )
        return b"".join(pieces(self.descriptor, member, self.name))

    def locate(self, where: Where, nbytes: int) -> Member | None:
        member = self.members.get("/".join(where))
        # Of what has no size of its own, only whether it is there is asked.
        if member is None or not nbytes:
            return member
        if member.size != nbytes:
            raise FileFormatError(
                f"{self.name}: {member.name!r}: not the size of its array",
                expected=f"{nbytes} bytes",
                got=f"{member.size} bytes",
            )
        self.told.add(member.name)
        return member

    def same(self, places: Sequence[Any]) -> bool:
        first = places[0]
        # Arrays without elements have no file.
        return first is None or all([self._alike(first, one) for one in places[1:]])

    def _alike(self, one: Member, other: Member) -> bool:
        if (one.crc, one.size) != (other.crc, other.size):
            return False
        # The peer writes into stored arrays and leaves the checksums for later.
        left, right = [
            pieces(self.descriptor, member, self.name, check=False)
            for member in (one, other)
        ]
        return all(map(eq, left, right))


class _Archive(Source):
    """An open archive that holds a tree."""

    def __init__(self, members: Members, options: ReadOptions) -> None:
        self.name = members.name
        self._members = members
        self._options = options

    def outline(self) -> Level:
        return outline_of(self._members, self._options)

    def read(self, arrays: Sequence[Array]) -> None:
        descriptor = self._members.descriptor
        stored: list[Array] = []
        for array in arrays:
            if array.tensor is not None:
                continue
            if array.place is None or array.place.method == STORED:
                stored.append(array)
            else:
                array.tensor = self._inflated(array)
                self._options.progress(array.nbytes)
        places = [
            # Arrays without elements have no file.
            (0 if array.place is None else array.place.start, array.dtype, array.shape)
            for array in stored
        ]
        found = tensors_in(descriptor, places)
        done = 0
        for array, tensor in zip(stored, found, strict=True):
            array.tensor = tensor
            if array.place is not None:
                done += array.place.size
                if self._options.verify:
                    for _ in pieces(descriptor, array.place, self.name):
                        pass
        self._options.progress(done)

    def _inflated(self, array: Array) -> torch.Tensor:
        try:
            raw = torch.empty(array.nbytes, dtype=torch.uint8)
        except RuntimeError as error:
            name = array.place.name
            raise MemoryError(f"{self.name}: {name!r}: {error}") from error
        plain: Any = raw.numpy()
        memory, at = memoryview(plain), 0
        for piece in pieces(self._members.descriptor, array.place, self.name):
            memory[at : at + len(piece)] = piece
            at += len(piece)
        return raw.view(array.dtype).view(array.shape)

    def close(self) -> None:
        if self._members.descriptor >= 0:
            os.close(self._members.descriptor)
            self._members.descriptor = -1
