"""Types that appear in tdfunc's signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import EllipsisType

__all__ = [
    "MISSING",
    "Device",
    "DimNames",
    "Entries",
    "FileFormat",
    "FileName",
    "FromOptions",
    "Index",
    "Key",
    "Leaf",
    "LoadOptions",
    "Path",
    "RecordClasses",
    "SaveOptions",
    "Size",
]

Key: TypeAlias = str
"""One segment: a non-empty string. ``"a.b"`` is one key."""

Path: TypeAlias = tuple[str, ...]
"""Keys from a node down to an entry."""

Leaf: TypeAlias = torch.Tensor
"""What a tree holds at its ends. Pytree functions may put other objects there."""

Device: TypeAlias = torch.device | str | int
"""Anything that `torch.device` takes."""

Size: TypeAlias = int | Sequence[int]
"""A batch size: a sequence of ints, or one int for a single dim."""

DimNames: TypeAlias = Sequence[str | None]
"""One name (or None) for every batch dim."""

Entries: TypeAlias = Mapping[str, Any]
"""What a tree can be built from: names to values, nested mappings and trees."""


class FromOptions(TypedDict, total=False):
    """What every function that makes a tree of other data takes by keyword.

    Attributes:
        batch_size: the batch size, ``[]`` by default.
        auto_batch_size: infer it: the longest leading shape that all tensors share.
        batch_dims: infer it, with at most this many dims in every node.
        device: where to move the leaves, None to leave them.
        names: a name (or None) for every batch dim.
    """

    batch_size: Size | None
    auto_batch_size: bool
    batch_dims: int | None
    device: Device | None
    names: DimNames | None


FileName: TypeAlias = str | PathLike[str]
"""A file or directory."""

RecordClasses: TypeAlias = type[Any] | Mapping[Any, type[Any]]
"""The record class of a tree; or a mapping of keys and paths to those of nodes."""

FileFormat: TypeAlias = Literal["memmap", "archive", "consolidated", "safetensors"]
"""In what files a tree is saved; see `tdfunc.save`."""


class SaveOptions(TypedDict, total=False):
    """How to write files.

    Attributes:
        overwrite: replace a tree that was saved there.
        durable: have it on the disk before returning, so that it survives a loss of
            power.
        atomic: let the tree appear at its place whole, or not at all. False is for
            directories, where it saves the second copy while one is replaced.
        allow_pickle: pickle statics that have no other form.
        compression: of the tensors of an archive: ``"deflate"``, ``"bzip2"`` or
            ``"lzma"``. Compressed tensors are not mapped but read.
        progress: show a bar (needs the extra ``progress``).
    """

    overwrite: bool
    durable: bool
    atomic: bool
    allow_pickle: bool
    compression: Literal["deflate", "bzip2", "lzma"] | None
    progress: bool


class LoadOptions(TypedDict, total=False):
    """What to read of files, and how.

    Attributes:
        device: where to move the tensors. ``"meta"`` reads no data at all: the tree
            has tensors of the right shapes without elements.
        subpath: the key or path of the node to load, instead of the whole tree.
        keys: the keys and paths to load; all that is in a node is loaded with it.
        allow_pickle: read statics that were pickled. Only for files that you trust:
            pickle runs what it is told to.
        verify: compare the bytes with the checksums of the file.
        mode: only ``"r"``: nothing that was loaded writes to a file.
        progress: show a bar (needs the extra ``progress``).
    """

    device: Device | None
    subpath: Key | Path
    keys: Iterable[Key | Path] | None
    allow_pickle: bool
    verify: bool
    mode: str
    progress: bool


if TYPE_CHECKING:
    Index: TypeAlias = (
        int
        | slice
        | EllipsisType
        | torch.Tensor
        | Sequence["Index"]
        | tuple["Index", ...]
        | None
    )
else:
    Index = Any


class Missing(Enum):
    """The type of `MISSING`, which stands for an argument that was not given.

    An enum, because type checkers narrow its member and Dynamo traces it.
    """

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return self.name


MISSING: Final = Missing.MISSING
"""Default of arguments for which None is a value."""
