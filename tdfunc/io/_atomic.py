"""New files and directories that appear whole, or not at all."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["new_directory", "new_file"]


@contextmanager
def new_file(path: Path, *, overwrite: bool, durable: bool) -> Iterator[int]:
    """Yield a descriptor to write to; the file takes its name when the block ends.

    It is made in the same directory under a temporary name and renamed; when the
    block raises it goes away and what was at `path` stays as it was. What is mapped
    from the old file keeps its bytes.

    Args:
        path: where it is to be.
        overwrite: replace a file that is there. A directory is never replaced.
        durable: on return, bytes and name are on the disk (fsync).

    Raises:
        TargetExistsError: something is at `path`, and `overwrite` is false, or it is
            a directory.
        MissingFileError: there is no such directory.
        OSError: the system refuses.
    """
    raise NotImplementedError
    yield 0


@contextmanager
def new_directory(
    path: Path, *, overwrite: bool, durable: bool, atomic: bool = True
) -> Iterator[int]:
    """Yield a descriptor of a new directory, which takes its name when the block ends.

    With `atomic` it is made beside `path` under a temporary name and exchanged with
    the old one in one step (``renameat2`` on Linux), so that whoever looks sees all of
    the old or all of the new. Without, files are written into `path` itself.

    Args:
        path: where it is to be.
        overwrite: replace a directory that holds a saved tree (a ``meta.json``) or
            nothing. A directory with other content is never replaced.
        durable: on return, all files, and the names, are on the disk (fsync).
        atomic: see above.

    Raises:
        TargetExistsError: something is at `path` that may not be replaced.
        MissingFileError: there is no directory to make it in.
        OSError: the system refuses.
    """
    raise NotImplementedError
    yield 0
