"""Leaves as picklable parts, with their bytes as out-of-band buffers.

Protocol 5 lets a receiver map a buffer instead of copying it; torch's own pickling
of tensors does not offer its bytes that way. Each plain leaf becomes
`(buffer, dtype, shape)`; what is not a plain CPU tensor goes through torch.

A view sends its own elements, never the storage behind it: a row of a mapped file of
64 GiB is a row.
"""

from __future__ import annotations

from copy import deepcopy
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, Literal, final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "PackedLeaves",
    "as_bytes",
    "copied",
    "distinct",
    "is_plain",
    "own_elements",
    "rebuild_jagged",
    "rebuild_leaf",
    "unpack_leaves",
    "wrapped",
]

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


# What numpy has as well, so that a dense tensor is a buffer in one step.
_NATIVE = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.float32, torch.float64}
)


@final
class PackedLeaves:
    """Stands for the leaves of a tree while it is pickled; unpickles as their tuple.

    One object for all of them, so that between processes they can take another way
    (`tdfunc.io`): that of the pickler is chosen by type.

    Attributes:
        leaves: the leaves.
        protocol: of the pickle.
    """

    __slots__ = ("leaves", "protocol")

    def __init__(self, leaves: tuple[Any, ...], protocol: int) -> None:
        self.leaves = leaves
        self.protocol = protocol

    def __reduce__(self) -> tuple[Any, ...]:
        wrap = _Buffered if self.protocol >= _BUFFER_PROTOCOL else _without_buffers
        found, order = distinct(self.leaves)
        return unpack_leaves, (tuple(wrapped(found, wrap)), order)


def wrapped(found: Iterable[Any], wrap: Callable[[torch.Tensor], Any]) -> list[Any]:
    """Return what is pickled for leaves: ``wrap(tensor)`` for those that are plain.

    A jagged one becomes its parts, each once: leaves of the same rows stay so.
    """
    # With the tensors themselves: one that is gone leaves its id to another.
    parts: dict[int, tuple[Any, Any]] = {}

    def part(tensor: Any) -> Any:
        known = parts.get(id(tensor))
        if known is None:
            made = wrap(tensor) if is_plain(tensor) else tensor
            known = parts[id(tensor)] = tensor, made
        return known[1]

    def whole(leaf: Any) -> Any:
        if not is_jagged(leaf):
            return part(leaf)
        parts = (leaf.values(), leaf.offsets(), leaf.lengths())
        return _Jagged((*map(part, parts), leaf._ragged_idx))

    return [whole(leaf) for leaf in found]


def is_jagged(leaf: Any) -> bool:
    """Return whether a leaf is a jagged tensor that has no graph."""
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.layout is torch.jagged
        and leaf.is_leaf
        and not leaf.requires_grad
    )


@final
class _Jagged:
    """Stands for a jagged tensor while it is pickled; unpickles as the tensor."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild_jagged, self.parts


def rebuild_jagged(
    values: torch.Tensor, offsets: torch.Tensor, lengths: Any, dim: int
) -> torch.Tensor:
    """Return the jagged tensor of these parts."""
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, lengths, jagged_dim=dim
    )


def distinct(leaves: tuple[Any, ...]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the objects among the leaves, each once, and which one is where."""
    places: dict[int, int] = {}
    found: list[Any] = []
    order: list[int] = []
    for leaf in leaves:
        place = places.setdefault(id(leaf), len(found))
        if place == len(found):
            found.append(leaf)
        order.append(place)
    return found, tuple(order)


def unpack_leaves(packed: tuple[Any, ...], order: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the leaves that were packed; one that was there twice is one tensor."""
    return tuple([packed[place] for place in order])


def is_plain(leaf: Any) -> bool:
    """Return whether a leaf is nothing but elements on the CPU."""
    return (
        type(leaf) is torch.Tensor
        and leaf.layout is torch.strided
        and leaf.device.type == "cpu"
        and not leaf.is_quantized
        and leaf.is_leaf
    )


def own_elements(value: Any) -> Any:
    """Return a view as a tensor of its own; anything else, and what is whole, as is."""
    if not is_plain(value) or value.untyped_storage().nbytes() == value.nbytes:
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def copied(leaves: tuple[Any, ...], memo: dict[int, Any]) -> tuple[Any, ...]:
    """Return deep copies of leaves.

    Leaves that share a storage share the copy of it, as torch has it, unless most of
    the storage is not theirs.
    """
    used: dict[int, int] = {}
    plain = [leaf for leaf in distinct(leaves)[0] if is_plain(leaf)]
    for leaf in plain:
        storage = leaf.untyped_storage()
        used[storage.data_ptr()] = used.get(storage.data_ptr(), 0) + leaf.nbytes
    for leaf in plain:
        storage = leaf.untyped_storage()
        if 2 * used[storage.data_ptr()] < storage.nbytes() and id(leaf) not in memo:
            memo[id(leaf)] = own_elements(leaf)
    return deepcopy(leaves, memo)


def as_bytes(leaf: torch.Tensor, protocol: int) -> Any:
    """Return an object that pickles a plain leaf as its bytes, and unpickles as it."""
    return _Buffered(leaf) if protocol >= _BUFFER_PROTOCOL else _Bytes(leaf)


def _without_buffers(leaf: torch.Tensor) -> Any:
    # torch pickles the whole storage behind a view.
    return own_elements(leaf) if leaf.dtype in _OLD_DTYPES else _Bytes(leaf)


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
        many = leaf.numel() > 1
        if many and leaf.dtype in _NATIVE and leaf.is_contiguous():
            plain: Any = leaf.detach()
            if not plain.is_neg():
                return PickleBuffer(plain.numpy())
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
