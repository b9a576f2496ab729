"""A directory that grows at its end.

The bytes of the new rows are written behind the old ones, where nobody looks. Then a
directory is made beside the old one that has the same files under second names, and
new descriptions, and takes the old one's place with one rename. Who mapped the old
files has them still: they only became longer.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tdfunc._core.leaf import check_own
from tdfunc._core.node import Node
from tdfunc.errors import (
    FileFormatError,
    FormatLimitError,
    InvalidLeafError,
    MissingFileError,
    OptionError,
    StructureError,
    show_path,
)
from tdfunc.io._atomic import named_after, new_directory
from tdfunc.io._directory import open_source
from tdfunc.io._files import as_file
from tdfunc.io._fitting import fitted
from tdfunc.io._folder_write import files_of
from tdfunc.io._layout import (
    Array,
    Jagged,
    Level,
    Rows,
    iter_arrays,
    iter_levels,
    levels_of,
)
from tdfunc.io._map import as_buffer, write_all
from tdfunc.io._options import ReadOptions
from tdfunc.io._system import DIRECTORY, NEW, NO_LINK, lock
from tdfunc.io._walk import Walk, linked

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path as FilePath

    import torch

    from tdfunc.io._fitting import Fit
    from tdfunc.io._folder import Where
    from tdfunc.io._layout import Entry
    from tdfunc.typing import FileName, Path

__all__ = ["append_memmap"]

_COPIED = 8 * 1024 * 1024  # bytes at once


def append_memmap(
    path: FileName, td: Node, *, durable: bool = False, allow_pickle: bool = False
) -> None:
    """Append rows to a tree that is saved in a directory, along the first batch dim.

    The directory has then what ``cat([load(path), td])`` would be saved as, but only
    the new rows are written; values of rows, such as text, are written all. Killed at
    any moment, it leaves the old tree or the new one, for tensordict as well. What was
    loaded before keeps its length and its values. Appends of several processes wait for
    each other.

    On a file system without hard links, and where files have other names outside of
    the directory and were appended to there, the old rows are copied.

    Args:
        path: the directory, of tdfunc or of tensordict. Files in it that are no part of
            the tree are not kept.
        td: the rows. Keys, dtypes, and shapes behind the first batch dim are those of
            the directory, static values and unbatched tensors are equal.
        durable: have it on the disk before returning.
        allow_pickle: read and write static values that were pickled. Only for
            directories that you trust.

    Raises:
        MissingFileError: there is no such directory.
        FileFormatError: it holds no tree, is broken, still being built, or was
            replaced by somebody meanwhile.
        BatchSizeError: the batch sizes differ behind the first dim.
        StructureError: entries are missing, extra, or of other dtypes, shapes, dim
            names or values; all of them are listed.
        FormatLimitError: there are lazy stacks or jagged tensors, which do not grow;
            nothing was written.
        PickleRefusedError: a value needs pickle, which is not allowed.
        InvalidLeafError: `td` is no tree, or a leaf has no elements.
        OptionError: the saved tree has no batch dims.
        OSError: the system refuses; the tree is the old one.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> from tempfile import TemporaryDirectory
        >>> td = tdfunc.TensorDict({"x": torch.arange(3)}, 3)
        >>> with TemporaryDirectory() as folder:
        ...     old = td.memmap(f"{folder}/td")
        ...     tdfunc.append_memmap(f"{folder}/td", td[:2])
        ...     tdfunc.load(f"{folder}/td")["x"], old["x"]
        (tensor([0, 1, 2, 0, 1]), tensor([0, 1, 2]))
    """
    file = as_file(path)
    check_own(td, ())
    if not isinstance(td, Node):
        raise InvalidLeafError(
            "only trees are appended", expected="a tree", got=type(td).__name__
        )
    part = levels_of(td)
    with (
        named_after(file),
        _held(file) as root,
        _in_place(file, root),
        open_source(file, ReadOptions(allow_pickle)) as source,
        Walk(root, str(file)) as walk,
    ):
        old = source.outline()
        _check_grows(old, part, str(file))
        source.read([array for _, array in iter_arrays(old) if array.unbatched])
        size = (part.batch_size[:1] or (1,)) + old.batch_size[1:]
        fit = fitted(old, part, size, fix="td[None] of one row")
        _check_names(old, part)
        growth = _Growth(walk, old, fit)
        files = files_of(growth.level, allow_pickle=allow_pickle)
        growth.write()
        with (
            new_directory(file, overwrite=True, durable=durable, held=root) as new,
            Walk(new, str(file)) as there,
        ):
            for where, data in files:
                growth.put(there, where, data)


def _check_grows(old: Level, part: Level, name: str) -> None:
    """Raise if a saved tree can not grow by some rows."""
    refused: list[str] = []
    for level, whose in ((old, name), (part, "the rows")):
        for path, here in iter_levels(level):
            if here.stack_dim is not None:
                refused.append(f"{show_path(path)} of {whose} is a lazy stack")
                break  # what is in it is no news
            refused += [
                f"{show_path((*path, key))} of {whose} is a jagged tensor"
                for key, entry in here.entries.items()
                if isinstance(entry, Jagged)
            ]
    if refused:
        raise FormatLimitError(
            "lazy stacks and jagged tensors do not grow in files",
            got="; ".join(refused),
            fix="save(tdfunc.cat([load(path), td]), path, overwrite=True)",
        )
    if not old.batch_size:
        raise OptionError(
            f"the tree at {name!r} has no batch dims along which it could grow",
            fix="td[None].save(path, overwrite=True) makes it the first of rows",
        )


def _check_names(old: Level, part: Level) -> None:
    """Raise if some rows have dim names, and others than a saved tree."""
    lines = [
        f"{show_path(path)} has the dim names {list(theirs)}, not {list(mine or ())}"
        for path, mine, theirs in _names_of_both(old, part)
        if theirs is not None and theirs != mine
    ]
    if lines:
        raise StructureError("the rows have other dim names", got="; ".join(lines))


def _names_of_both(old: Level, part: Level) -> Iterator[tuple[Path, Any, Any]]:
    known = dict(iter_levels(old))
    for path, level in iter_levels(part):
        if path in known:
            yield path, known[path].names, level.names


class _Growth:
    """The longer tree, and how its files come about.

    Attributes:
        level: the longer tree.
    """

    def __init__(self, walk: Walk, old: Level, fit: Fit) -> None:
        self._walk = walk
        # What a longer tensor is made of, by its identity.
        self._parts: dict[int, tuple[Array, Array]] = {}
        self._in_place: set[int] = set()
        self.level = self._longer(old, fit)

    def _longer(self, old: Level, fit: Fit) -> Level:
        arrays = {path: (mine, theirs) for path, mine, theirs in fit.arrays}
        rows = {path: (mine, theirs) for path, mine, theirs in fit.rows}
        # One tensor at two places is one of the longer tree if it is one in the rows.
        known: dict[tuple[int, int], Array] = {}
        made: dict[int, Level] = {}
        for path, here in reversed(list(iter_levels(old))):
            entries: dict[str, Entry] = {}
            for key, entry in here.entries.items():
                at = (*path, key)
                if isinstance(entry, Level):
                    entries[key] = made.pop(id(entry))
                elif at in arrays:
                    pair = arrays[at]
                    ids = (id(pair[0]), id(pair[1]))
                    if ids not in known:
                        known[ids] = _joined(*pair)
                        self._parts[id(known[ids])] = pair
                    entries[key] = known[ids]
                elif at in rows:
                    mine, theirs = rows[at]
                    shape = _longer_shape(mine.shape, theirs.shape)
                    entries[key] = Rows(shape, mine.values + theirs.values)
                else:
                    entries[key] = entry
            size = (old.batch_size[0] + fit.size[0], *here.batch_size[1:])
            made[id(here)] = replace(here, batch_size=size, entries=entries)
        return made[id(old)]

    def write(self) -> None:
        """Write the new rows behind the old ones, where that harms nobody."""
        grown: dict[tuple[int, int], Array] = {}
        try:
            for made, (old, rows) in self._parts.items():
                # A second tensor in one file is copied.
                if old.place is not None and old.place.id not in grown:
                    with self._opened(old, os.O_WRONLY) as file:
                        status = os.fstat(file)
                        # What is behind the old rows was left by an append that was
                        # killed, or belongs to another tree that has the same file.
                        if status.st_size > old.nbytes and status.st_nlink > 1:
                            continue
                        grown[old.place.id] = old
                        os.ftruncate(file, old.nbytes)
                        os.lseek(file, old.nbytes, os.SEEK_SET)
                        write_all(file, [as_buffer(_tensor_of(rows))])
                    self._in_place.add(made)
        except BaseException:
            with suppress(OSError):  # the next append does it
                for old in grown.values():
                    with self._opened(old, os.O_WRONLY) as file:
                        os.ftruncate(file, old.nbytes)
            raise

    def put(self, there: Walk, where: Where, data: bytes | Array) -> None:
        """Make a file of the longer tree in its new directory."""
        above, name = there.enter(where[:-1], make=True), where[-1]
        if isinstance(data, bytes):
            file = os.open(name, NEW, 0o666, dir_fd=above)
            try:
                write_all(file, [data])
            finally:
                os.close(file)
            return
        old, rows = self._parts.get(id(data), (data, None))
        stays = rows is None or id(data) in self._in_place
        if stays and self._link(old, above, name):
            return
        file = os.open(name, NEW, 0o666, dir_fd=above)
        try:
            write_all(file, self._chunks(old))
            if rows is not None:
                write_all(file, [as_buffer(_tensor_of(rows))])
        finally:
            os.close(file)

    def _link(self, old: Array, above: int, name: str) -> bool:
        """Give a file a second name; return whether the file system has that."""
        place = old.place
        return linked(self._walk.enter(place.where), place.name, above, name)

    def _chunks(self, old: Array) -> Iterator[bytes]:
        """Yield the bytes of a tensor in its file."""
        if old.place is None:  # there are no elements
            return
        with self._opened(old, os.O_RDONLY) as file:
            for at in range(0, old.nbytes, _COPIED):
                yield os.pread(file, min(_COPIED, old.nbytes - at), at)

    @contextmanager
    def _opened(self, array: Array, flags: int) -> Generator[int]:
        place = array.place
        above = self._walk.enter(place.where)
        file = os.open(place.name, flags | NO_LINK, dir_fd=above)
        try:
            status = os.fstat(file)
            if (status.st_dev, status.st_ino) != place.id:
                raise FileFormatError(
                    f"the file {place.name!r} was replaced by somebody else meanwhile",
                    fix="append again",
                )
            yield file
        finally:
            os.close(file)


def _tensor_of(array: Array) -> torch.Tensor:
    return cast("torch.Tensor", array.tensor)


def _joined(old: Array, rows: Array) -> Array:
    return Array(old.dtype, _longer_shape(old.shape, rows.shape))


def _longer_shape(old: tuple[int, ...], rows: tuple[int, ...]) -> tuple[int, ...]:
    return (old[0] + rows[0], *old[1:])


@contextmanager
def _held(file: FilePath) -> Generator[int]:
    """Open a directory that nobody else appends to, where the file system has locks."""
    while True:
        try:
            root = os.open(file, DIRECTORY)
        except FileNotFoundError as error:
            raise MissingFileError(f"{file}: there is no such directory") from error
        except NotADirectoryError as error:
            raise FileFormatError(
                f"{file}: this is no directory, and only directories grow",
                fix="unpack_memmap(path, directory) of an archive",
            ) from error
        try:
            with suppress(OSError):
                lock(root, wait=True)
            # An append that was waited for has put another one in its place.
            if _is_at(file, root):
                yield root
                return
        finally:
            os.close(root)


@contextmanager
def _in_place(file: FilePath, root: int) -> Generator[None]:
    """Say so if a directory was replaced in the block, whatever failed for it."""
    try:
        yield
    except OSError as error:
        if _is_at(file, root):
            raise
        raise FileFormatError(
            f"{file}: this tree was replaced by somebody else meanwhile",
            fix="append again",
        ) from error


def _is_at(file: FilePath, root: int) -> bool:
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    status = os.fstat(root)
    return (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino)
