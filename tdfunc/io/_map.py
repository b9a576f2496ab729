"""Bytes of files as tensors: mapped privately, or read where they are few."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

__all__ = ["as_buffer", "tensors_in", "write_all"]


def tensors_in(
    descriptor: int, places: Sequence[tuple[int, torch.dtype, tuple[int, ...]]]
) -> list[torch.Tensor]:
    """Return the tensors at byte offsets of an open file, as private memory.

    The caller has checked that the file is long enough. A tensor of 64 KiB or more is
    mapped copy-on-write (one map for each file), smaller ones are read; those that lie
    near each other share a storage of at most 1 MiB. The descriptor can be closed
    afterwards. Offsets need not be aligned.
    """
    raise NotImplementedError


def as_buffer(tensor: torch.Tensor) -> memoryview:
    """Return the elements of a dense tensor as bytes in C order.

    Without a copy where it lies like that on the CPU.
    """
    raise NotImplementedError


def write_all(descriptor: int, buffers: Iterable[memoryview | bytes]) -> None:
    """Write buffers one after the other, with as few calls as it takes.

    Raises:
        OSError: the system refuses; what was written then is not defined.
    """
    raise NotImplementedError
