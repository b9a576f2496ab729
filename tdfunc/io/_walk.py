"""Going through the directories below one, by descriptors, without following links."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from tdfunc.errors import FileFormatError
from tdfunc.io._system import BELOW, identity_of

if TYPE_CHECKING:
    from tdfunc.io._folder import Where

__all__ = ["Walk", "linked"]


def linked(source: int, name: str, target: int, new: str) -> bool:
    """Give a file a second name in a directory; return whether the system does that.

    Raises:
        FileExistsError: there is a file of that name.
    """
    try:
        os.link(name, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # too many names, or none at all
        return False
    return True


class Walk:
    """Directories below an open one, each opened from where the last one was.

    Args:
        root: a descriptor, which stays open.
        name: the root, for error messages.
    """

    def __init__(self, root: int, name: str) -> None:
        self._root = root
        self._name = name
        self._here = root
        self._where: Where = ()
        self._ids: list[tuple[int, int]] = []  # of the directories down to here

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._go(self._root)
        self._where, self._ids = (), []

    def _go(self, descriptor: int) -> None:
        if self._here != self._root:
            os.close(self._here)
        self._here = descriptor

    def enter(self, where: Where, *, make: bool = False) -> int:
        """Return a descriptor of a directory; the next call may close it.

        Args:
            where: the directory.
            make: make directories that are not there.

        Raises:
            FileNotFoundError: there is none.
            FileFormatError: a part of it is no directory, or a symbolic link.
        """
        if where == self._where:
            return self._here
        common = min(len(where), len(self._where))
        while where[:common] != self._where[:common]:
            common -= 1
        self._climb(common)
        for name in where[common:]:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self._here)
            self._descend(name)
        return self._here

    def _climb(self, depth: int) -> None:
        """Go up to one of the directories above."""
        up = len(self._where) - depth
        if up <= depth:
            for _ in range(up):
                self._go(os.open("..", BELOW, dir_fd=self._here))
                self._where, self._ids = self._where[:-1], self._ids[:-1]
            if depth and up and identity_of(os.fstat(self._here)) != self._ids[-1]:
                raise FileFormatError(f"{self._name}: a directory in it was moved")
            return
        where = self._where[:depth]
        self._go(self._root)
        self._where, self._ids = (), []
        for name in where:
            self._descend(name)

    def _descend(self, name: str) -> None:
        try:
            below = os.open(name, BELOW, dir_fd=self._here)
        except OSError as error:
            if error.errno in {errno.ENOTDIR, errno.ELOOP}:
                shown = "/".join((self._name, *self._where, name))
                raise FileFormatError(
                    f"{shown}: this is no directory",
                    expected="a directory; symbolic links are not followed",
                ) from error
            raise
        self._go(below)
        self._where = (*self._where, name)
        self._ids.append(identity_of(os.fstat(below)))
