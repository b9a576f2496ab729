"""New files and directories that appear whole, or not at all.

What is new is made beside its target under a name of its own and takes its name at the
end, in one step of the file system: who looks at the name sees all of the old or all
of the new, at every moment and after a crash.

A process that is killed leaves its ``.tdtmp-`` behind, which nothing ever reads. The
name comes from the target's, and is locked while somebody works on it, so the next
save of the same target finds what was left, sees that it is free and a minute old,
and removes it. Where the file system has no locks, it stays.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG
from typing import TYPE_CHECKING, Any

from tdfunc.errors import MissingFileError, TargetExistsError
from tdfunc.io._folder import BUILDING, META
from tdfunc.io._system import BELOW, DIRECTORY, NEW, READ, identity_of, lock, unlock

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["named_after", "new_directory", "new_file", "remove_tree"]

# How names of unfinished files and directories begin, as the peer's do.
TEMPORARY = ".tdtmp-"

# What `renameat2` takes.
_NOREPLACE, _EXCHANGE = 1, 2
# What `rename` says where something is at the new name.
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
# What `renameat2` says where the system or the file system does not know it.
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
# Seconds after which what nobody has locked was left behind.
_MOMENT = 60.0
# Seconds to wait for other writers of a directory.
_PATIENCE = 10.0


@contextmanager
def named_after(path: Path | str) -> Generator[None]:
    """Have the system's errors of a block name a file, as the calls by path do.

    What is done to a descriptor, or below one, does not tell whose it is, and an
    unfinished file has a name that nobody knows.
    """
    try:
        yield
    except OSError as error:
        # Errors of ours have no number, and name their file.
        if error.errno is not None and not _says(error.filename, path):
            error.filename = os.path.abspath(path)  # noqa: PTH100 - no links resolved
            if error.filename2 is not None:
                del error.filename2
        raise


def _says(name: object, path: Path | str) -> bool:
    """Return whether a name in an error is a path that leads there from here."""
    if not isinstance(name, (str, bytes)):
        return False
    plain = os.fsdecode(name)
    return os.path.isabs(plain) or plain.startswith(str(path))  # noqa: PTH117


@contextmanager
def new_file(path: Path, *, overwrite: bool, durable: bool) -> Generator[int]:
    """Yield a descriptor to write to; the file takes its name when the block ends.

    It is made in the same directory under a temporary name and renamed; when the
    block raises it goes away and what was at `path` stays as it was. What is mapped
    from the old file keeps its bytes. A new file replaces the old one as it is in the
    directory, with its permissions; a symbolic link at `path` stays, and what it
    points to is replaced.

    Args:
        path: where it is to be.
        overwrite: replace a file that is there. A directory is never replaced. If
            not, a file that comes while the block runs is not replaced either.
        durable: on return, bytes and name are on the disk (fsync).

    Raises:
        TargetExistsError: something is at `path`, and `overwrite` is false, or it is
            a directory.
        MissingFileError: there is no such directory.
        OSError: the system refuses.
    """
    target = _target(path)
    with named_after(target), _parent_of(target) as parent:
        mode = _may_be_file(parent, target, overwrite=overwrite)
        name, descriptor = _made(parent, target.name, directory=False)
        try:
            yield descriptor
            if mode is not None:
                os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
            _check_is(parent, name, descriptor)
            _rename_file(parent, name, target, overwrite=overwrite)
        except BaseException:
            _discard(parent, name, descriptor)
            raise
        finally:
            _close(descriptor)
        if durable:
            os.fsync(parent)


@contextmanager
def new_directory(
    path: Path,
    *,
    overwrite: bool,
    durable: bool,
    atomic: bool = True,
    held: int | None = None,
) -> Generator[int]:
    """Yield a descriptor of a new directory, which takes its name when the block ends.

    With `atomic` it is made beside `path` under a temporary name and exchanged with
    the old one in one step (``renameat2`` on Linux), so that whoever looks sees all of
    the old or all of the new. Where the file system has no exchange, the old one is
    moved away first: for a moment nothing is at `path`, and a crash there leaves
    both, whole, the old one as ``.tdtmp-old-...``. Without `atomic`, files are
    written into `path` itself, where the caller finds old ones. A symbolic link at
    `path` stays, and the directory that it points to is replaced.

    Args:
        path: where it is to be.
        overwrite: replace a directory that holds a saved tree (a ``meta.json``) or
            nothing. A directory with other content is never replaced. An empty
            directory is filled without `overwrite`, too.
        durable: on return, all files, and the names, are on the disk (fsync).
        atomic: see above.
        held: a descriptor of the old directory if the caller has locked it, so that
            nobody else replaces it: no other directory is replaced.

    Raises:
        TargetExistsError: something is at `path` that may not be replaced.
        MissingFileError: there is no directory to make it in.
        OSError: the system refuses; ESTALE if `held` is not at `path` any more.
    """
    target = _target(path)
    with named_after(target), _parent_of(target) as parent:
        old = _may_be_directory(parent, target, overwrite=overwrite)
        if atomic:
            name, descriptor = _made(parent, target.name, directory=True)
        else:
            name = target.name
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
            descriptor = os.open(name, BELOW, dir_fd=parent)
        try:
            yield descriptor
            if durable:
                sync_tree(descriptor)
            if atomic:
                if old is not None:
                    os.fchmod(descriptor, old)
                _check_is(parent, name, descriptor)
                may = {"overwrite": overwrite, "durable": durable}
                _put(parent, name, target, held, **may)
            elif durable:
                os.fsync(parent)
        except BaseException:
            if atomic:
                _discard(parent, name, descriptor)
            raise
        finally:
            _close(descriptor)


def remove_tree(parent: int, name: str) -> None:
    """Remove a file or directory with all that is in it; links are not followed.

    What is gone already is no error, whoever removed it.
    """
    with suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=parent)
        except (IsADirectoryError, PermissionError):  # both are said of directories
            if not S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                raise
            _remove_directory(parent, name)


def _remove_directory(parent: int, name: str) -> None:
    with _opened(parent, name) as top:
        for here, files, below in _upwards(top):
            for file in files:
                with suppress(FileNotFoundError):
                    os.unlink(file, dir_fd=here)
            for directory in below:
                with suppress(FileNotFoundError):
                    os.rmdir(directory, dir_fd=here)
    os.rmdir(name, dir_fd=parent)


def _upwards(top: int) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield every directory after those in it: a descriptor, its files, directories.

    Trees may be deeper than there are descriptors: two are open at any time.
    """
    here = os.dup(top)
    pending = [_Level(here)]
    try:
        while True:
            level = pending[-1]
            if level.left:
                with suppress(FileNotFoundError, NotADirectoryError):
                    below = os.open(level.left.pop(), BELOW, dir_fd=here)
                    os.close(here)
                    here = below
                    pending.append(_Level(here))
                continue
            yield here, level.files, level.below
            pending.pop()
            if not pending:
                return
            above = os.open("..", BELOW, dir_fd=here)
            os.close(here)
            here = above
            if identity_of(os.fstat(here)) != pending[-1].identity:
                raise OSError(errno.ESTALE, "a directory was moved by somebody else")
    finally:
        os.close(here)


class _Level:
    """A directory on the way down: what is in it, and what was not visited yet."""

    __slots__ = ("below", "files", "identity", "left")

    def __init__(self, descriptor: int) -> None:
        self.files: list[str] = []
        self.below: list[str] = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                is_directory = entry.is_dir(follow_symlinks=False)
                (self.below if is_directory else self.files).append(entry.name)
        self.left = list(self.below)
        self.identity = identity_of(os.fstat(descriptor))


def _made(parent: int, target: str, *, directory: bool) -> tuple[str, int]:
    """Make what is to become the target, empty; return its name, and it, locked."""
    name = first = TEMPORARY + _mark(target)
    for _ in range(100):
        try:
            if directory:
                os.mkdir(name, dir_fd=parent)
                descriptor = os.open(name, BELOW, dir_fd=parent)
            else:
                descriptor = os.open(name, NEW, 0o666, dir_fd=parent)
        except FileExistsError:
            if not _cleared(parent, name):
                name = f"{first}-{token_hex(8)}"
            continue
        with suppress(OSError):
            lock(descriptor)
        return name, descriptor
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def _mark(target: str) -> str:
    return blake2b(os.fsencode(target), digest_size=8).hexdigest()


def _cleared(parent: int, name: str) -> bool:
    """Remove what a killed process left at a name; false if it may be in use."""
    try:
        descriptor = os.open(name, READ, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        # Its maker locks it a moment after it is there.
        if time.time() - os.fstat(descriptor).st_mtime < _MOMENT:
            return False
        lock(descriptor)
        _check_is(parent, name, descriptor)
        remove_tree(parent, name)
    except OSError:
        return False
    finally:
        _close(descriptor)
    return True


def _lock(descriptor: int, patience: float = 0.0) -> None:
    """Lock an open file until it is unlocked, or closed by whatever end of the process.

    Waits for so many seconds, and not for ever: a process that was forked in the midst
    of a save keeps its locks.
    """
    end = time.monotonic() + patience
    while True:
        try:
            lock(descriptor)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.001)
        else:
            return


def _close(descriptor: int) -> None:
    """Unlock and close; a process that was forked meanwhile has it open, too."""
    with suppress(OSError):
        unlock(descriptor)
    os.close(descriptor)


def _is_at(parent: int, name: str, descriptor: int) -> bool:
    """Return whether an open file or directory is what has this name."""
    status = _status(parent, name)
    return status is not None and identity_of(status) == identity_of(
        os.fstat(descriptor)
    )


def _check_is(parent: int, name: str, descriptor: int) -> None:
    """Check that an open file still has its name: nobody else renames it."""
    if not _is_at(parent, name, descriptor):
        raise OSError(errno.ESTALE, "this was moved or replaced by somebody else", name)


def _discard(parent: int, name: str, descriptor: int) -> None:
    """Remove an open file or directory, if it is what has this name.

    What hinders this is neither to hide why a save failed, nor a failure to save.
    """
    with suppress(OSError):
        _check_is(parent, name, descriptor)
        remove_tree(parent, name)


def _target(path: Path) -> Path:
    """Return the path to be replaced: where a link leads, however long the chain."""
    # Unlike `resolve`, this leaves a circle of links to be replaced.
    target = Path(os.path.realpath(path))
    if not target.name:
        raise TargetExistsError(
            f"{str(target)!r} is the root of all files, which nothing replaces",
            fix="a path below it",
        )
    return target


@contextmanager
def _parent_of(target: Path) -> Generator[int]:
    parent = target.parent
    try:
        descriptor = os.open(parent, DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFileError(
            f"there is no directory {str(parent)!r} to save in",
            fix=f"pathlib.Path({str(parent)!r}).mkdir(parents=True)",
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened(parent: int, name: str) -> Generator[int]:
    descriptor = os.open(name, BELOW, dir_fd=parent)
    try:
        yield descriptor
    finally:
        _close(descriptor)


def _status(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _may_be_file(parent: int, target: Path, *, overwrite: bool) -> int | None:
    """Return the permissions of the file that is replaced, None if there is none."""
    status = _status(parent, target.name)
    if status is None:
        return None
    if S_ISDIR(status.st_mode):
        raise TargetExistsError(
            f"{str(target)!r} is a directory, which a file does not replace",
            fix="another path, or format='memmap'",
        )
    if not overwrite:
        raise _exists(target)
    if S_ISLNK(status.st_mode):
        return None
    if not S_ISREG(status.st_mode):
        raise TargetExistsError(
            f"{str(target)!r} is a pipe, a socket or a device, which no file replaces",
            fix="another path",
        )
    return S_IMODE(status.st_mode)


def _may_be_directory(parent: int, target: Path, *, overwrite: bool) -> int | None:
    """Return the permissions of the directory that is replaced, None if none is."""
    while True:
        status = _status(parent, target.name)
        if status is None:
            return None
        if not S_ISDIR(status.st_mode):
            raise TargetExistsError(
                f"{str(target)!r} is a file, which a directory does not replace",
                fix="another path, or remove the file first",
            )
        with suppress(FileNotFoundError), _opened(parent, target.name) as descriptor:
            if _is_empty(descriptor):
                return S_IMODE(status.st_mode)
            if not overwrite:
                raise _exists(target)
            if _status(descriptor, META) is not None:
                return S_IMODE(status.st_mode)
            # One that was just replaced loses its files in any order.
            if _is_at(parent, target.name, descriptor):
                raise _no_tree(target, descriptor)


def _no_tree(target: Path, descriptor: int) -> TargetExistsError:
    if _status(descriptor, BUILDING) is not None:
        return TargetExistsError(
            f"a tree is being built at {str(target)!r}",
            fix="finish() it, begin anew with memmap_like(..., overwrite=True), or "
            "remove the directory",
        )
    return TargetExistsError(
        f"the directory {str(target)!r} holds other files, and no saved tree",
        expected=f"a {META!r} in it, or an empty directory",
        fix="another path, or remove the files first",
    )


def _is_empty(directory: int) -> bool:
    with os.scandir(directory) as entries:
        return next(entries, None) is None


def _exists(target: Path) -> TargetExistsError:
    return TargetExistsError(
        f"something is at {str(target)!r} already", fix="overwrite=True replaces it"
    )


def _rename_file(parent: int, name: str, target: Path, *, overwrite: bool) -> None:
    new = target.name
    try:
        if overwrite:
            os.replace(name, new, src_dir_fd=parent, dst_dir_fd=parent)
        elif not _renamed(parent, name, new, _NOREPLACE):
            _linked(parent, name, new)
    except FileExistsError as error:
        raise _exists(target) from error


def _linked(parent: int, old: str, new: str) -> None:
    """Rename a file to a name that nobody has, where the system has no call for it."""
    try:
        os.link(old, new, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError as error:
        if error.errno not in (*_UNKNOWN, errno.EPERM):
            raise
        # No hard links either: a file that comes right now is replaced.
        if _status(parent, new) is not None:
            raise FileExistsError(errno.EEXIST, "it exists", new) from error
        os.replace(old, new, src_dir_fd=parent, dst_dir_fd=parent)
    else:
        os.unlink(old, dir_fd=parent)


def _put(
    parent: int,
    name: str,
    target: Path,
    held: int | None,
    *,
    overwrite: bool,
    durable: bool,
) -> None:
    """Give a directory its name, and remove what had it before.

    Writers of one target take turns at this: who holds the lock of the old directory
    replaces it. So what has its name afterwards is what is removed.
    """
    if held is not None:
        _check_is(parent, target.name, held)
    while not _moved_in(parent, name, target.name, durable=durable):
        # What is there now may not be what was there before the block.
        _may_be_directory(parent, target, overwrite=overwrite)
        if _exchanged(parent, name, target.name, held, durable=durable):
            return


def _moved_in(parent: int, name: str, new: str, *, durable: bool) -> bool:
    """Rename a directory where there is none, or an empty one; return whether so."""
    try:
        os.rename(name, new, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    if durable:
        os.fsync(parent)
    return True


def _exchanged(
    parent: int, name: str, new: str, held: int | None, *, durable: bool
) -> bool:
    """Put a directory in the place of another, and remove that; false if it is gone."""
    with suppress(FileNotFoundError), _opened(parent, new) as old:
        if held is not None:
            _check_is(parent, new, held)
        elif not _is_next(parent, new, old):
            return False  # it was another one's turn
        aside: str | None = name
        if not _renamed(parent, name, new, _EXCHANGE):
            aside = _moved_aside(parent, name, new, old)
        if aside is not None:
            if durable:
                os.fsync(parent)
            _discard(parent, aside, old)
            return True
    return False


def _is_next(parent: int, name: str, old: int) -> bool:
    """Wait for other writers; return whether a directory still has its name then."""
    with suppress(OSError):
        _lock(old, _PATIENCE)
    return _is_at(parent, name, old)


def _moved_aside(parent: int, name: str, new: str, old: int) -> str | None:
    """Replace a directory in two steps; return the name of the old one.

    None if another writer took the place between the steps.
    """
    aside = f"{TEMPORARY}old-{_mark(new)}"
    # What is left of a save that was killed between the steps is free to go: there is
    # a directory at the target again.
    if not _cleared(parent, aside):
        aside = f"{aside}-{token_hex(8)}"
    os.rename(new, aside, src_dir_fd=parent, dst_dir_fd=parent)
    try:
        os.rename(name, new, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError as error:
        if error.errno in _TAKEN:
            _discard(parent, aside, old)
            return None
        os.rename(aside, new, src_dir_fd=parent, dst_dir_fd=parent)
        raise
    return aside


def _libc_rename() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    found = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if found is not None:
        text, number = ctypes.c_char_p, ctypes.c_int
        found.argtypes = (number, text, number, text, ctypes.c_uint)
    return found


_RENAME = _libc_rename()


def _renamed(parent: int, old: str, new: str, how: int) -> bool:
    """Rename in one directory; false where the file system can not do it so."""
    if _RENAME is None:
        return False
    names = os.fsencode(old), os.fsencode(new)
    if _RENAME(parent, names[0], parent, names[1], how) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    raise OSError(number, os.strerror(number), old, None, new)


def sync_tree(directory: int) -> None:
    """Have all files and directories below on the disk, and the directory itself."""
    for here, files, _ in _upwards(directory):
        for file in files:
            descriptor = os.open(file, READ, dir_fd=here)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        os.fsync(here)
