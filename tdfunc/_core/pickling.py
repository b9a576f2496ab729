"""Leaves as picklable parts, with their bytes as out-of-band buffers.

Protocol 5 lets a receiver map a buffer instead of copying it; torch's own pickling
of tensors does not offer its bytes that way. Each plain leaf becomes
`(buffer, dtype, shape)`; what is not a plain CPU tensor goes through torch.
"""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any, Literal, TypeAlias

import torch

__all__ = ["pack_leaves", "unpack_leaves"]

_BUFFER_PROTOCOL = 5

Packed: TypeAlias = tuple[tuple[Any, ...], tuple[int, ...]]


def pack_leaves(leaves: tuple[Any, ...], protocol: int) -> Packed:
    """Return the distinct leaves in the form to be pickled, and which is where.

    A view sends its own elements, never the storage behind it. A leaf that occurs
    twice is sent once and stays one tensor.
    """
    buffered = protocol >= _BUFFER_PROTOCOL
    places: dict[int, int] = {}
    packed: list[Any] = []
    order: list[int] = []
    for leaf in leaves:
        place = places.setdefault(id(leaf), len(packed))
        if place == len(packed):
            packed.append(_Buffered(leaf) if buffered and _is_plain(leaf) else leaf)
        order.append(place)
    return tuple(packed), tuple(order)


def unpack_leaves(packed: Packed) -> tuple[Any, ...]:
    """Return the leaves that `pack_leaves` packed."""
    leaves, order = packed
    return tuple([leaves[place] for place in order])


def _is_plain(leaf: Any) -> bool:
    return (
        type(leaf) is torch.Tensor
        and leaf.layout is torch.strided
        and leaf.device.type == "cpu"
        and not leaf.is_quantized
        and leaf.is_leaf
    )


class _Buffered:
    """Stands for a plain tensor while it is pickled; unpickles as the tensor."""

    __slots__ = ("leaf",)

    def __init__(self, leaf: torch.Tensor) -> None:
        self.leaf = leaf

    def __reduce__(self) -> tuple[Any, ...]:
        leaf = self.leaf
        flat = leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        raw: Any = flat.view(torch.uint8).numpy()
        data = PickleBuffer(raw)
        return rebuild_leaf, (
            data,
            leaf.dtype,
            tuple(leaf.shape),
            int(leaf.requires_grad),
        )


def rebuild_leaf(
    data: Any, dtype: torch.dtype, shape: tuple[int, ...], grad: Literal[0, 1]
) -> torch.Tensor:
    """Return the tensor whose bytes are `data`, without copying a writable buffer."""
    view = memoryview(data)
    if view.nbytes == 0:
        leaf = torch.empty(shape, dtype=dtype)
    else:
        # A read-only buffer would give a tensor whose writes are undefined.
        buffer = bytearray(view) if view.readonly else data
        leaf = torch.frombuffer(buffer, dtype=dtype).reshape(shape)
    return leaf.requires_grad_() if grad else leaf
