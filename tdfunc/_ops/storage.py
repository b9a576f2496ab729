"""Trees whose tensors lie in one piece of memory, or in memory of many processes."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import (
    inside_transform,
    is_tracing,
    is_wrapped,
    shared_storage,
)
from tdfunc._core.pickling import rebuild_jagged
from tdfunc._ops.convert import clone, replaced
from tdfunc.errors import InvalidLeafError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc._core.node import NodeT

__all__ = ["consolidate", "share"]

# Where memory for vector instructions starts.
_ALIGNMENT = 64


def consolidate(td: NodeT) -> NodeT:
    """Return the tree with its tensors copied into one piece of memory.

    ``td.consolidate()`` is ``td.clone()`` whose tensors, contiguous and aligned to 64
    bytes, are views of one storage (one for each device): one allocation, and memory
    that is read in order. Unbatched tensors, the parts of jagged ones and the codes of
    rows are in it, too. Gradients flow through, as through `clone`.

    A tensor that occurs twice stays one tensor. Sparse, quantized and fake tensors have
    no memory that could be part of another and are cloned; inside a transform or
    compiled code this is `clone`.

    Args:
        td: the tree.

    Returns:
        The tree. It shares no memory with `td`; its leaves keep the whole of its
        storage alive, so `clone` what is to be kept of a large tree.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.ones(2, 3)}})
        >>> one = td.consolidate()
        >>> one["n", "b"].data_ptr() - one["a"].data_ptr()
        64
        >>> one["a"].untyped_storage().nbytes()
        128
    """
    # There, memory is not ours to lay out.
    if is_tracing() or inside_transform():
        return clone(td)
    return _moved(td, _into_one)


def share(td: NodeT) -> NodeT:
    """Return the tree with its tensors copied into shared memory.

    Processes that get the tree, by ``fork``, as an argument or through a queue of
    ``torch.multiprocessing``, get these very tensors: nothing is copied again, and what
    one of them writes into a leaf in place, all of them see. All tensors of the tree
    lie in one piece of shared memory, so it takes one descriptor as long as a leaf
    lives.

    Args:
        td: the tree. Tensors on other devices than the CPU are shared as they are.

    Returns:
        The tree, cut from autograd; `requires_grad` is kept. `td` itself if all its
        tensors are in shared memory.

    Raises:
        InvalidLeafError: a leaf has no memory to be shared: it is sparse, quantized or
            belongs to a transform or to compiled code.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> shared = TensorDict({"x": torch.zeros(3)}).share()
        >>> shared["x"].is_shared()
        True
        >>> shared.share() is shared
        True
    """
    if is_tracing():
        raise _no_memory("a tensor of compiled code")
    tensors: list[torch.Tensor] = []

    def note(found: list[torch.Tensor]) -> list[torch.Tensor]:
        tensors.extend(found)
        return found

    _moved(td, note)
    for x in tensors:
        if not _is_dense(x):
            raise _no_memory(f"{type(x).__name__}, {x.layout}, device '{x.device}'")
    if all([x.is_shared() or not x.numel() for x in tensors]):
        return td
    return _moved(td, _into_shared)


def _moved(
    td: NodeT, move: Callable[[list[torch.Tensor]], list[torch.Tensor]]
) -> NodeT:
    """Return the tree with ``move(tensors)``, all of them at once, each once."""
    leaves: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}
    found: dict[int, torch.Tensor] = {}

    def note(leaf: torch.Tensor) -> torch.Tensor:
        parts = _parts(leaf)
        leaves[id(leaf)] = leaf, parts
        found.update({id(part): part for part in parts})
        return leaf

    replaced(td, note)
    moved = dict(zip(found, move(list(found.values())), strict=True))
    made = {
        key: _joined(leaf, [moved[id(part)] for part in parts])
        for key, (leaf, parts) in leaves.items()
    }
    return replaced(td, lambda leaf: made[id(leaf)])


def _parts(leaf: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that a leaf consists of."""
    if not (leaf.is_nested and leaf.layout is torch.jagged):
        return [leaf]
    jagged: Any = leaf
    parts = [jagged.values(), jagged.offsets(), jagged.lengths()]
    return [part for part in parts if part is not None]


def _joined(leaf: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    """Return a leaf like `leaf` of other parts."""
    if not (leaf.is_nested and leaf.layout is torch.jagged):
        return parts[0]
    jagged: Any = leaf
    values, offsets, *lengths = parts
    holes = lengths[0] if lengths else None
    return rebuild_jagged(values, offsets, holes, jagged._ragged_idx)


def _is_dense(x: torch.Tensor) -> bool:
    """Return whether a tensor is elements in memory, in some order."""
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.layout is torch.strided
        and x.device.type != "meta"
        and not (x.is_quantized or is_wrapped(x))
    )


def _into_one(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    def storage(size: int, device: torch.device) -> torch.UntypedStorage:
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    places = _places(tensors, storage)
    for x, place in zip(tensors, places, strict=True):
        if place is not None:
            place.copy_(x)
    return [
        x.clone() if place is None else place
        for x, place in zip(tensors, places, strict=True)
    ]


def _into_shared(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    def storage(size: int, _: torch.device) -> torch.UntypedStorage:
        return shared_storage(size)

    mine = [x.detach() for x in tensors]
    places = _places([x for x in mine if x.device.type == "cpu"], storage)
    left = iter(places)
    out: list[torch.Tensor] = []
    for old, x in zip(tensors, mine, strict=True):
        new = x
        if x.device.type == "cpu":
            place = next(left)
            new = x.clone() if place is None else place.copy_(x)
        out.append(new.requires_grad_(old.requires_grad))
    return out


def _places(
    tensors: list[torch.Tensor],
    storage: Callable[[int, torch.device], torch.UntypedStorage],
) -> list[torch.Tensor | None]:
    """Return room for every dense tensor, in one storage for each device."""
    sizes: dict[torch.device, int] = {}
    starts: list[int] = []
    for x in tensors:
        start = -1
        if _is_dense(x):
            start = sizes.get(x.device, 0)
            sizes[x.device] = start + -(-x.nbytes // _ALIGNMENT) * _ALIGNMENT
        starts.append(start)
    made = {device: storage(size, device) for device, size in sizes.items()}
    places: list[torch.Tensor | None] = []
    for x, start in zip(tensors, starts, strict=True):
        place = None
        if start >= 0:
            # A tensor of its own, no view: with its own version, free to have a graph.
            place = torch.empty(0, dtype=x.dtype, device=x.device)
            where = start // x.itemsize, x.shape, _strides(x.shape)
            place.set_(made[x.device], *where)
        places.append(place)
    return places


def _strides(shape: torch.Size) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    steps = accumulate([max(n, 1) for n in shape[:0:-1]], mul, initial=1)
    return tuple(steps)[::-1] if shape else ()


def _no_memory(got: str) -> InvalidLeafError:
    return InvalidLeafError(
        "this tensor has no memory that could be shared",
        expected="a dense tensor, outside transforms and compiled code",
        got=got,
        fix="td.apply(lambda x: x.to_dense()).share(), outside the transform",
    )
