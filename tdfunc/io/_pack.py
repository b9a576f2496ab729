"""Archives made of directories, and directories made of archives, byte for byte.

Both go through a tree of directories with one descriptor, however deep it is, and
follow no link.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tdfunc.errors import FileFormatError, MissingFileError, PickleRefusedError
from tdfunc.io._archive import Members, member_names, method_of, opened, place_of
from tdfunc.io._atomic import TEMPORARY, named_after, new_directory, new_file
from tdfunc.io._directory import Files, Place
from tdfunc.io._files import as_file
from tdfunc.io._folder import BUILDING, META, MOST_NAME, SUFFIX
from tdfunc.io._folder_read import outline_of
from tdfunc.io._map import write_all
from tdfunc.io._options import ReadOptions
from tdfunc.io._system import DIRECTORY, NEW, READ
from tdfunc.io._walk import Walk
from tdfunc.io._zip import STORED, Writer, is_plain, pieces

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from tdfunc.io._folder import Where
    from tdfunc.io._options import Compression
    from tdfunc.io._zip import Member
    from tdfunc.typing import FileName

__all__ = ["pack_memmap", "unpack_memmap"]


_PIECE = 1 << 20
# Holes and runs of zeros shorter than this are written.
_HOLE = 64 << 10
_ZEROS = bytes(_PIECE)
# What a file of unknown size may inflate to, for each byte.
_RATIO = 1032


def pack_memmap(
    directory: FileName,
    archive: FileName,
    *,
    compression: Compression | None = None,
    overwrite: bool = False,
    durable: bool = False,
) -> None:
    """Pack the directory of a saved tree into one archive, byte for byte.

    No tensor is built: files are copied piece by piece, whatever they hold, and holes
    of sparse files stay holes. `unpack_memmap` gives the same files back. Only what
    lies behind the end of a tensor, of an append that was killed or of a larger tensor
    that the peer wrote over, is left out: in an archive it would be an error.

    Args:
        directory: a directory that holds a saved tree.
        archive: the file to make, by custom ``.tdz``.
        compression: ``"deflate"``, ``"bzip2"`` or ``"lzma"`` compresses the files of
            arrays, which are then inflated on loading instead of mapped. None stores
            them as they are.
        overwrite: replace a file that is there.
        durable: have it on the disk (fsync) before returning.

    Raises:
        MissingFileError: there is no such directory.
        FileFormatError: it holds no saved tree, or a symbolic link or another special
            file, or it changes while it is read.
        FormatLimitError: the names of its files can not be in an archive.
        TargetExistsError: something is at `archive`.
        OptionError: there is no such compression, or a path is none.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import tdfunc
        >>> with tempfile.TemporaryDirectory() as where:
        ...     tree = Path(where, "tree")
        ...     tree.mkdir()
        ...     written = (tree / "meta.json").write_text("{}")
        ...     tdfunc.pack_memmap(tree, tree.with_suffix(".tdz"))
        ...     sorted(path.name for path in Path(where).iterdir())
        ['tree', 'tree.tdz']
    """
    method = method_of(compression)
    source, target = as_file(directory), as_file(archive)
    with named_after(source), _opened_directory(source) as walk:
        files = _files_below(walk, source)
        names = member_names(files)
        told = _Told.of(walk, source)
        with (
            new_file(target, overwrite=overwrite, durable=durable) as to,
            Writer(to) as out,
        ):
            for name, where in zip(names, files, strict=True):
                _pack_file(
                    out, name, walk, source, where, method, told.sizes.get(where)
                )


def unpack_memmap(
    archive: FileName,
    directory: FileName,
    *,
    overwrite: bool = False,
    durable: bool = False,
) -> None:
    """Unpack an archive into the directory of a saved tree, byte for byte.

    The directory appears when all of it is there and every checksum was right. Long
    runs of zeros become holes. Nothing is unpickled.

    Args:
        archive: a file that `pack_memmap`, a saving or the peer made, or any program
            that packs such a directory as a zip file.
        directory: the directory to make.
        overwrite: replace a directory that holds a saved tree.
        durable: have all of it on the disk (fsync) before returning.

    Raises:
        MissingFileError: there is no such file.
        FileFormatError: it is broken or damaged, holds no saved tree, names that lead
            out of the directory or are no names of files, or compressed arrays that
            are not as large as its description says.
        TargetExistsError: something is at `directory`.
        OptionError: a path is none.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from zipfile import ZipFile
        >>> import tdfunc
        >>> with tempfile.TemporaryDirectory() as where:
        ...     tree = Path(where, "tree")
        ...     with ZipFile(tree.with_suffix(".tdz"), "w") as file:
        ...         file.writestr("meta.json", "{}")
        ...     tdfunc.unpack_memmap(tree.with_suffix(".tdz"), tree)
        ...     (tree / "meta.json").read_text()
        '{}'
    """
    source, target = as_file(archive), as_file(directory)
    descriptor = opened(source)
    try:
        with named_after(source):
            members = Members(descriptor, str(source))
            _check_unpacked(members)
        with (
            new_directory(target, overwrite=overwrite, durable=durable) as to,
            Walk(to, str(target)) as walk,
        ):
            for where, member in _in_order(members):
                here = walk.enter(where[:-1], make=True)
                new = os.open(where[-1], NEW, 0o666, dir_fd=here)
                try:
                    _unpack_file(members, member, new)
                finally:
                    os.close(new)
    finally:
        os.close(descriptor)


@contextmanager
def _opened_directory(directory: Path) -> Generator[Walk]:
    try:
        root = os.open(directory, DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFileError(f"there is no directory {str(directory)!r}") from error
    try:
        with Walk(root, str(directory)) as walk:
            yield walk
    finally:
        os.close(root)


def _files_below(walk: Walk, root: Path) -> list[Where]:
    """Return all files of a tree of directories, in the order of an archive."""
    found: list[Where] = []
    pending: list[Where] = [()]
    while pending:
        above = pending.pop()
        with os.scandir(walk.enter(above)) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(TEMPORARY):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append((*above, name))
                elif entry.is_file(follow_symlinks=False) and is_plain(name):
                    found.append((*above, name))
                else:
                    raise FileFormatError(
                        f"{root.joinpath(*above, name)}: this can not be in an archive",
                        expected="a regular file, with a name that any system takes",
                    )
    if (META,) not in found:
        if any([where[0] == BUILDING for where in found]):
            raise FileFormatError(f"{root}: this tree is still being built")
        raise FileFormatError(f"{root / META}: is not there: no saved tree")
    return sorted(found, key=place_of)


class _Told(Files):
    """What a directory says of the files of its tensors.

    Attributes:
        sizes: how many bytes of each belong to a tensor, by where it is.
    """

    def __init__(self, walk: Walk, name: str) -> None:
        super().__init__(walk, name)
        self.sizes: dict[Where, int] = {}

    @classmethod
    def of(cls, walk: Walk, root: Path) -> _Told:
        """Look at all; of what is no tree nothing is told."""
        told = cls(walk, str(root))
        try:
            outline_of(told, ReadOptions(allow_pickle=None))
        except FileFormatError:
            told.sizes.clear()
        return told

    def locate(self, where: Where, nbytes: int) -> Place | None:
        place = super().locate(where, nbytes)
        # Descriptions are looked for, too, and are as long as they are.
        if place is not None and where[-1].endswith(SUFFIX):
            self.sizes[where] = max(nbytes, self.sizes.get(where, 0))
        return place


def _pack_file(  # noqa: PLR0917 - both sides of a copy
    out: Writer,
    name: bytes,
    walk: Walk,
    root: Path,
    where: Where,
    method: int,
    told: int | None,
) -> None:
    array, file = where[-1].endswith(SUFFIX), root.joinpath(*where)
    try:
        with named_after(file):
            descriptor = os.open(where[-1], READ, dir_fd=walk.enter(where[:-1]))
    except FileNotFoundError as error:
        raise _changes(file) from error
    try:
        size = os.fstat(descriptor).st_size
        size = size if told is None else min(size, told)
        if size > _PIECE or (array and method != STORED):
            found = _pieces_of(descriptor, size, file)
            out.stream(name, found, size, method if array else STORED)
            return
        with named_after(file):
            data = os.pread(descriptor, size, 0)
        if len(data) < size:
            raise _changes(file)
        out.store(name, data, align=array)
    finally:
        os.close(descriptor)


def _changes(file: Path) -> FileFormatError:
    return FileFormatError(f"{file}: changes while it is read")


def _pieces_of(descriptor: int, size: int, file: Path) -> Iterator[bytes | int]:
    """Yield the bytes of a file, and the lengths of its holes."""
    at = 0
    with named_after(file):
        while at < size:
            data, end = _next_data(descriptor, at, size)
            if data - at >= _HOLE:
                yield data - at
                at = data
            while at < end:
                piece = os.pread(descriptor, min(_PIECE, end - at), at)
                if not piece:
                    return
                yield piece
                at += len(piece)


def _next_data(descriptor: int, at: int, size: int) -> tuple[int, int]:
    """Return from where to where a file holds bytes, at a place or behind it."""
    try:
        data = os.lseek(descriptor, at, os.SEEK_DATA)
        return min(data, size), min(os.lseek(descriptor, data, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size
        if error.errno == errno.EINVAL:  # a file system that knows nothing of holes
            return at, size
        raise


def _check_unpacked(members: Members) -> None:
    """Refuse what can not be a directory, before anything is made."""
    name, files = members.name, members.members
    if META not in files:
        raise FileFormatError(f"{name}: there is no {META!r} in it: no saved tree")
    passed: set[str] = set()
    for member in files:
        if max(map(len, member.encode().split(b"/"))) > MOST_NAME:
            raise FileFormatError(f"{name}: {member!r}: longer than a name may be")
        above = member.rpartition("/")[0]
        while above and above not in passed:
            passed.add(above)
            above = above.rpartition("/")[0]
    both = passed & files.keys()
    if both:
        raise FileFormatError(f"{name}: {min(both)!r}: both a file and a directory")
    _check_sizes(members)


def _check_sizes(members: Members) -> None:
    """Refuse compressed arrays that are not what the description says."""
    inflated = {
        name: member
        for name, member in members.members.items()
        if member.method != STORED and name.endswith(SUFFIX)
    }
    if not inflated:
        return
    try:
        outline_of(members, ReadOptions())
    except PickleRefusedError:
        # Not all of the description can be read: what deflate can do must do.
        odd = [n for n, found in inflated.items() if found.size > _RATIO * found.packed]
    else:
        odd = list(inflated.keys() - members.told)
    if odd:
        raise FileFormatError(
            f"{members.name}: {min(odd)!r}: nothing tells what it inflates to"
        )


def _in_order(members: Members) -> list[tuple[Where, Member]]:
    found = [(tuple(name.split("/")), one) for name, one in members.members.items()]
    return sorted(found, key=lambda file: place_of(file[0]))


def _pieces_in(members: Members, member: Member) -> Iterator[bytes]:
    with named_after(members.name):
        yield from pieces(members.descriptor, member, members.name)


def _unpack_file(members: Members, member: Member, to: int) -> None:
    hole = False
    for piece in _pieces_in(members, member):
        hole = len(piece) >= _HOLE and piece == _ZEROS[: len(piece)]
        if hole:
            os.lseek(to, len(piece), os.SEEK_CUR)
        else:
            write_all(to, [piece])
    if hole:
        os.ftruncate(to, member.size)
