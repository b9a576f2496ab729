"""How files are opened and locked, and what a system without it does instead.

Flags that a system has not are left out, and locks are refused as by a file system
that has none: the library can be imported everywhere.
"""

from __future__ import annotations

import errno
import os
from typing import Final

try:
    import fcntl
except ImportError:
    fcntl = None

__all__ = [
    "BELOW",
    "DIRECTORY",
    "FILE",
    "NEW",
    "NO_LINK",
    "READ",
    "identity_of",
    "lock",
    "unlock",
]


def _flags(*names: str) -> int:
    """Return these flags of `os.open`, as far as the system has them."""
    flags = 0
    for name in names:
        flags |= getattr(os, name, 0)
    return flags


NO_LINK: Final = _flags("O_CLOEXEC", "O_NOFOLLOW")

# What a caller names may be a link. A pipe would be waited for, unless told not to.
FILE: Final = _flags("O_RDONLY", "O_CLOEXEC", "O_NONBLOCK")
DIRECTORY: Final = _flags("O_RDONLY", "O_CLOEXEC", "O_DIRECTORY")

# What lies in a directory of ours is never one.
READ: Final = FILE | NO_LINK
BELOW: Final = DIRECTORY | NO_LINK
NEW: Final = _flags("O_WRONLY", "O_CREAT", "O_EXCL") | NO_LINK


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Return what tells a file or directory from all others that are there."""
    return status.st_dev, status.st_ino


def lock(descriptor: int, *, wait: bool = False) -> None:
    """Lock an open file until it is closed, by whatever end of the process.

    Raises:
        BlockingIOError: somebody else has locked it, and `wait` is false.
        OSError: the file system has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(descriptor: int) -> None:
    """Give back the lock of an open file."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
