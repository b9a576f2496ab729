"""A tree as named files, as the directory and the archive have them.

Every node is a directory with a ``meta.json``, every tensor a file of raw bytes, as
the peer has them. ``meta.json`` is one object: what is an object in it describes an
entry, the rest is about the node. What only we know about a node stands under
``_tdfunc``, a list ``[1, {...}]``, which the peer takes for nothing. Its members, all
optional:

=========  ===================================================================
order      the keys in order, where it is not that of the records
hidden     records of the entries that the peer must not see, by key
exact      values of statics that plain JSON does not give back, by key
ties       the number of the tensor that an entry shares with others, by key
single     the keys of values that are those of one row without a dim
record     the name of the record class of this node
names      the dim names of a lazy stack
count      how many members a lazy stack has
shape      the batch size of an empty lazy stack; the shape of rows
values     the values of rows that plain JSON does not give back
=========  ===================================================================

Sizes and dtypes are never there for what the peer sees as well: it may have written
over the file. Files of hidden entries are called ``%tdfunc-0.memmap`` and so on, by
their places; no key gives such a name, since ``%`` becomes ``%25``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BUILDING",
    "META",
    "MOST_DIMS",
    "MOST_META",
    "MOST_NAME",
    "OURS",
    "PARTS",
    "SUFFIX",
    "VERSION",
    "Folder",
    "Where",
    "encoded",
    "hidden_name",
    "is_name",
]

Where: TypeAlias = "tuple[str, ...]"
"""Names of directories, and of a file, from the root."""

META: Final = "meta.json"
SUFFIX: Final = ".memmap"

BUILDING: Final = "%tdfunc-builder"
"""The directory of a `Builder` in a tree that is not finished."""

OURS: Final = "_tdfunc"
VERSION: Final = 1
PARTS: Final = ("values", "offsets", "lengths")  # of a jagged tensor

MOST_META: Final = 1 << 29  # bytes of meta.json, and of a pickle
MOST_DIMS: Final = 64  # of a tensor, and of lazy stacks in each other
MOST_NAME: Final = 255  # bytes of a name, on nearly all file systems

_UNSAFE = (*'/<>:"|?*\\ %', *map(chr, range(32)), chr(127))
_ENCODED = str.maketrans({char: f"%{ord(char):02X}" for char in _UNSAFE})


def encoded(key: str) -> str:
    """Return a key as the peer names a file after it."""
    return "%2E" * len(key) if key in {".", ".."} else key.translate(_ENCODED)


def hidden_name(at: int) -> str:
    """Return the name of the files of an entry that the peer must not see."""
    return f"%tdfunc-{at}"


def is_name(name: str) -> bool:
    """Return whether a file may be called so."""
    if name.isascii():
        return len(name) <= MOST_NAME
    try:
        return len(name.encode("utf-8")) <= MOST_NAME
    except UnicodeEncodeError:  # half of a character
        return False


class Folder(ABC):
    """Named files below a root, to be read.

    Attributes:
        name: the root, for error messages.
    """

    name: str

    @abstractmethod
    def content(self, where: Where, limit: int) -> bytes | None:
        """Return a small file whole, None if there is none.

        Raises:
            FileFormatError: it has more than `limit` bytes, or is no file.
        """

    @abstractmethod
    def locate(self, where: Where, nbytes: int) -> object | None:
        """Return the place of a file of at least so many bytes, None if there is none.

        Raises:
            FileFormatError: it is shorter, or is no file.
        """

    def same(self, places: Sequence[object]) -> bool:
        """Return whether all bytes at some places are the same.

        Asked only of arrays that were one tensor when they were saved; the peer may
        have written over one of them since.
        """
        return all([place == places[0] for place in places])

    def at(self, where: Where) -> str:
        """Return the name of a file, for error messages."""
        return "/".join((self.name, *where))
