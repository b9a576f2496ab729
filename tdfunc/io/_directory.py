"""Trees as directories of memory-mapped files, the peer's own format.

Everything below the root is opened by one name at a time, relative to the directory
above, and no symbolic link is followed: nothing outside is read or written, paths may
be longer than the system takes, and a directory that is replaced meanwhile is still
the one that was opened. Two directories are open at any time.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tdfunc.errors import FileFormatError, FormatLimitError, MissingFileError
from tdfunc.io import _map
from tdfunc.io._atomic import new_directory, remove_tree
from tdfunc.io._folder import BUILDING, META, Folder, Where
from tdfunc.io._folder_read import outline_of
from tdfunc.io._folder_write import files_of
from tdfunc.io._layout import Array, Level, Source
from tdfunc.io._system import DIRECTORY, NEW, READ, identity_of
from tdfunc.io._walk import Walk, linked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import torch

    from tdfunc.io._options import ReadOptions, WriteOptions

__all__ = ["Files", "Place", "open_source", "recognises", "write"]

_COMPARED = 1 << 20  # bytes at once


def write(level: Level, path: Path, options: WriteOptions) -> None:
    """Write a tree as a directory; in every node the ``meta.json`` is last.

    Raises:
        FormatLimitError: some entries can not be in files; nothing was written.
        PickleRefusedError: some values need pickle; nothing was written.
        TargetExistsError: something is at `path` that may not be replaced.
        OSError: the system refuses.
    """
    files = files_of(level, allow_pickle=options.allow_pickle)
    with (
        new_directory(
            path,
            overwrite=options.overwrite,
            durable=options.durable,
            atomic=options.atomic,
        ) as root,
        Walk(root, str(path)) as walk,
    ):
        options.ready()
        if not options.atomic:
            _clear(root)
        linked: dict[int, Where] = {}
        for where, data in files:
            here = walk.enter(where[:-1], make=True)
            try:
                if isinstance(data, bytes):
                    _write(here, where[-1], [data])
                    continue
                known = linked.get(id(data))
                if known is None or not _link(walk, known, where):
                    buffer = _map.as_buffer(cast("torch.Tensor", data.tensor))
                    _write(walk.enter(where[:-1]), where[-1], [buffer])
                    if known is None:
                        options.progress(data.nbytes)
                    linked[id(data)] = where
            except FileExistsError as error:
                raise _clash(path, where) from error


def open_source(path: Path, options: ReadOptions) -> Source:
    """Open a directory.

    Raises:
        MissingFileError: there is none.
        FileFormatError: it is no directory with a ``meta.json``.
    """
    return _Directory(path, options)


def recognises(path: Path) -> bool:
    """Return whether this is a directory with a ``meta.json``."""
    try:
        return stat.S_ISREG(os.lstat(path / META).st_mode)
    except (OSError, ValueError):
        return False


def _clear(root: int) -> None:
    """Remove what an older tree left: first what makes it one."""
    for name in sorted(os.listdir(root), key=lambda name: name != META):
        remove_tree(root, name)


def _write(directory: int, name: str, buffers: list[memoryview | bytes]) -> None:
    file = os.open(name, NEW, 0o666, dir_fd=directory)
    try:
        _map.write_all(file, buffers)
    finally:
        os.close(file)


def _link(walk: Walk, known: Where, where: Where) -> bool:
    """Give a file a second name; return whether the file system has that."""
    source = os.dup(walk.enter(known[:-1]))
    try:
        return linked(source, known[-1], walk.enter(where[:-1]), where[-1])
    finally:
        os.close(source)


def _clash(path: Path, where: Where) -> FormatLimitError:
    return FormatLimitError(
        f"{path}: there is a file of this name already",
        expected="keys that this file system tells apart; some take 'A' for 'a'",
        got="/".join(where),
        fix="td.rename_key(old, new), or the format 'archive'",
    )


def _is_unfinished(root: int) -> bool:
    names = os.listdir(root)
    return BUILDING in names and META not in names


class Place(NamedTuple):
    """A file: its directory, its name, and which one it was when it was found."""

    where: Where
    name: str
    id: tuple[int, int]


class Files(Folder):
    """The files of a directory."""

    def __init__(self, walk: Walk, name: str) -> None:
        self.name = name
        self._walk = walk

    def content(self, where: Where, limit: int) -> bytes | None:
        file = self.opened(where[:-1], where[-1])
        if file is None:
            return None
        try:
            size = os.fstat(file).st_size
            if size > limit:
                raise FileFormatError(
                    f"{self.at(where)}: this file is too large",
                    expected=f"at most {limit} bytes",
                    got=f"{size} bytes",
                )
            raw = os.read(file, size + 1)
            while 0 < len(raw) <= limit and (more := os.read(file, 1 << 20)):
                raw += more
        finally:
            os.close(file)
        if len(raw) > limit:
            raise FileFormatError(f"{self.at(where)}: this file grows while it is read")
        return raw

    def locate(self, where: Where, nbytes: int) -> Place | None:
        above, name = where[:-1], where[-1]
        try:
            directory = self._walk.enter(above)
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise self.named(error, where) from error
        if not stat.S_ISREG(found.st_mode):
            raise self.no_file(where)
        self.check_size(where, found.st_size, nbytes)
        return Place(above, name, identity_of(found))

    def same(self, places: Sequence[Any]) -> bool:
        if len({place and place.id for place in places}) == 1:
            return True
        first = places[0]
        return all([self._alike(first, place) for place in places[1:]])

    def _alike(self, one: Place, other: Place) -> bool:
        """Return whether two files have the same bytes; copies are not hard links."""
        with ExitStack() as stack:
            a = self.found(one)
            stack.callback(os.close, a)
            b = self.found(other)
            stack.callback(os.close, b)
            while True:
                left, right = os.read(a, _COMPARED), os.read(b, _COMPARED)
                if left != right or not left:
                    return left == right

    def opened(self, above: Where, name: str) -> int | None:
        """Open a file for reading; None if there is none."""
        try:
            file = os.open(name, READ, dir_fd=self._walk.enter(above))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            if error.errno == errno.ELOOP:
                raise self.no_file((*above, name)) from error
            raise self.named(error, (*above, name)) from error
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise self.no_file((*above, name))
        return file

    def found(self, place: Place) -> int:
        """Open a file that was there before.

        Raises:
            FileFormatError: it is not there any more.
        """
        file = self.opened(place.where, place.name)
        if file is None:
            raise self.gone(place)
        return file

    def above(self, place: Place) -> int:
        """Return the directory of a file that was there before, as `found`."""
        try:
            return self._walk.enter(place.where)
        except FileNotFoundError as error:
            raise self.gone(place) from error

    def gone(self, place: Place) -> FileFormatError:
        """Return the error for a file that was there before."""
        return FileFormatError(
            f"{self.at((*place.where, place.name))}: this file is gone",
            expected="a directory that nobody writes to",
            fix="load again",
        )

    def check_size(self, where: Where, size: int, nbytes: int) -> None:
        """Raise if a file is too short."""
        if size < nbytes:
            raise FileFormatError(
                f"{self.at(where)}: this file is too short",
                expected=f"{nbytes} bytes",
                got=f"{size} bytes",
            )

    def no_file(self, where: Where) -> FileFormatError:
        return FileFormatError(
            f"{self.at(where)}: this is no regular file",
            expected="a file; symbolic links are not followed",
        )

    def named(self, error: OSError, where: Where) -> OSError:
        return type(error)(error.errno, error.strerror, self.at(where))


_ABSENT = frozenset({errno.ENOENT, errno.ENAMETOOLONG})


class _Directory(Source):
    """A directory that was opened."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.name = str(path)
        self._options = options
        try:
            self._root = os.open(path, DIRECTORY)
        except FileNotFoundError as error:
            raise MissingFileError(f"{path}: there is no such directory") from error
        except NotADirectoryError as error:
            raise FileFormatError(f"{path}: this is no directory") from error
        self._walk = Walk(self._root, self.name)
        self._files = Files(self._walk, self.name)

    def outline(self) -> Level:
        try:
            return outline_of(self._files, self._options)
        except FileFormatError as error:
            if not _is_unfinished(self._root):
                raise
            raise FileFormatError(
                f"{self.name}: this tree is still being built",
                fix="memmap_like(like, path, resume=True).finish(), when all is there",
            ) from error

    def read(self, arrays: Sequence[Array]) -> None:
        wanted = [array for array in arrays if array.tensor is None]
        tensors = _map.tensors_of(self._found(wanted))
        for array, tensor in zip(wanted, tensors, strict=True):
            array.tensor = tensor

    def _found(self, arrays: list[Array]) -> Iterator[tuple[int, str, Any, Any]]:
        """Yield where each file is; the descriptor is good until the next one."""
        above, progress = self._files.above, self._options.progress
        for array in arrays:
            place = array.place
            if place is None:  # there are no elements
                yield -1, "", array.dtype, array.shape
            else:
                yield above(place), place.name, array.dtype, array.shape
                progress(array.nbytes)

    def close(self) -> None:
        if self._root >= 0:
            self._walk.__exit__()
            os.close(self._root)
            self._root = -1
