"""What callers may ask of a write or a read, as the formats get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Compression", "ReadOptions", "WriteOptions"]

Compression: TypeAlias = Literal["deflate", "bzip2", "lzma"]


def _unheard(count: int) -> None:
    """Take a count of bytes that nobody asked for."""


def _unawaited() -> None:
    """Be told that all is checked, for which nobody waits."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write.

    Attributes:
        overwrite: replace what is there.
        durable: have it on the disk before returning.
        atomic: write beside the target and rename; False is for directories only.
        allow_pickle: pickle statics that have no other form.
        compression: of the arrays in an archive.
        progress: called with every count of bytes of arrays that were written.
        ready: called once when all is checked and the first byte is to be written,
            inside the block of `new_file` or `new_directory`.
    """

    overwrite: bool = False
    durable: bool = False
    atomic: bool = True
    allow_pickle: bool = False
    compression: Compression | None = None
    progress: Callable[[int], None] = _unheard
    ready: Callable[[], None] = _unawaited


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read.

    Attributes:
        allow_pickle: unpickle statics that were pickled. Only for files that you
            trust: pickle runs what it is told to. None puts `_values.PICKLED` in their
            place, for who only looks.
        verify: compare checksums where the format has them.
        separator: of safetensors that tdfunc did not write: what splits names into
            nested keys; None leaves them whole.
        progress: called with every count of bytes of arrays that were read.
    """

    allow_pickle: bool | None = False
    verify: bool = False
    separator: str | None = None
    progress: Callable[[int], None] = _unheard
