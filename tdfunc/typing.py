"""Types that appear in tdfunc's signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

import torch

if TYPE_CHECKING:
    from types import EllipsisType

__all__ = [
    "MISSING",
    "Device",
    "DimNames",
    "Entries",
    "FromOptions",
    "Index",
    "Key",
    "Leaf",
    "Path",
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
