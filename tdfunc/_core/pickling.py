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

# What `pickle` can take as torch's own storages; it fails on the newer dtypes.
_OLD_DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    }
)

Packed: TypeAlias = tuple[tuple[Any, ...], tuple[int, ...]]


def pack_leaves(leaves: tuple[Any, ...], protocol: int) -> Packed:
    """Return the distinct leaves in the form to be pickled, and which is where.

    A view sends its own elements, never the storage behind it. A leaf that occurs
    twice is sent once and stays one tensor.
    """
    wrap = _Buffered if protocol >= _BUFFER_PROTOCOL else _without_buffers
    places: dict[int, int] = {}
    packed: list[Any] = []
    order: list[int] = []
    for leaf in leaves:
        place = places.setdefault(id(leaf), len(packed))
        if place == len(packed):
            packed.append(wrap(leaf) if _is_plain(leaf) else leaf)
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


def _without_buffers(leaf: torch.Tensor) -> Any:
    if leaf.dtype not in _OLD_DTYPES:
        return _Bytes(leaf)
    # torch pickles the whole storage behind a view.
    whole = leaf.untyped_storage().nbytes() == leaf.nbytes
    return leaf if whole else leaf.detach().clone().requires_grad_(leaf.requires_grad)


class _Buffered:
    """Stands for a plain tensor while it is pickled; unpickles as the tensor."""

    __slots__ = ("leaf",)

    def __init__(self, leaf: torch.Tensor) -> None:
        self.leaf = leaf

    def __reduce__(self) -> tuple[Any, ...]:
        leaf = self.leaf
        shape, grad = tuple(leaf.shape), int(leaf.requires_grad)
        return rebuild_leaf, (self.data(), leaf.dtype, shape, grad)

    def data(self) -> Any:
        """Return the bytes, without a copy where the tensor is contiguous."""
        leaf = self.leaf
        if leaf.numel() == 0:
            return b""
        flat = leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        if flat.numel() == 1:
            # One element counts as contiguous whatever its stride.
            flat = flat.as_strided((1,), (1,))
        raw: Any = flat.view(torch.uint8).numpy()
        return PickleBuffer(raw)


class _Bytes(_Buffered):
    """The same for protocols that know no buffers."""

    __slots__ = ()

    def data(self) -> bytes:
        """Return a copy of the bytes."""
        return bytes(super().data())


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
