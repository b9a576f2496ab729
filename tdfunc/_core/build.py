"""From mappings and trees to flat storage: the door where everything is checked.

`assemble` walks a mapping with an explicit stack (a chain of mappings may be
thousands deep) and returns `Parts`: schema, leaves and statics of one node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tdfunc._core._torch import PLAIN_TYPES
from tdfunc._core.batch import misfit
from tdfunc._core.keys import check_key
from tdfunc._core.leaf import as_leaf
from tdfunc._core.node import Node
from tdfunc._core.schema import STATIC, Kid, Schema
from tdfunc._core.statics import NO_STATICS, NonTensorData, Statics
from tdfunc.errors import InvalidKeyError, InvalidLeafError, StructureError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tdfunc.typing import Device, Path

__all__ = ["Part", "as_part", "assemble"]


class Part(NamedTuple):
    """One entry in flat form: its kind, its leaves and its statics."""

    kid: Kid
    surplus: int
    leaves: tuple[torch.Tensor, ...]
    statics: Statics


def as_part(
    value: Any,
    path: Path,
    batch_size: torch.Size,
    cls: type[Node],
    device: Device | None = None,
) -> Part:
    """Return any value that may be an entry of a node with this batch size.

    Raises:
        BatchSizeError: a leaf does not start with `batch_size`.
        InvalidKeyError: a key of a nested mapping is not a non-empty string.
        InvalidLeafError: a value can not be an entry.
        StructureError: a mapping contains itself.
    """
    if isinstance(value, torch.Tensor):
        nb = len(batch_size)
        if value.shape[:nb] != batch_size:
            raise misfit(path, value.shape, batch_size)
        if device is not None:
            value = value.to(device)
        return Part(value.dim() - nb, 0, (value,), NO_STATICS)
    if isinstance(value, Node):
        return _node_part(value, path, batch_size, device)
    if isinstance(value, Mapping):
        return assemble(value, batch_size, cls, device=device, path=path)  # pyright: ignore[reportUnknownArgumentType]
    leaf = as_leaf(value, path)
    if isinstance(leaf, NonTensorData):
        return Part(STATIC, 0, (), Statics((leaf.data,)))
    return as_part(leaf, path, batch_size, cls, device)


def assemble(
    source: Mapping[str, Any],
    batch_size: torch.Size,
    cls: type[Node],
    *,
    device: Device | None = None,
    path: Path = (),
) -> Part:
    """Return a mapping of mappings in flat form; every node has `batch_size`."""
    flat = _assemble_flat(source, batch_size, cls) if device is None else None
    if flat is not None:
        return flat
    frame = _Frame(source, path)
    stack = [frame]
    inside = {id(source)}
    while True:
        frame = stack[-1]
        for key, value in frame.rest:
            here = (*frame.path, check_key(key, frame.path))
            if isinstance(value, Mapping):
                if id(value) in inside:  # pyright: ignore[reportUnknownArgumentType]
                    raise StructureError("a mapping contains itself", path=here)
                inside.add(id(value))  # pyright: ignore[reportUnknownArgumentType]
                stack.append(_Frame(value, here))  # pyright: ignore[reportUnknownArgumentType]
                break
            frame.add(key, as_part(value, here, batch_size, cls, device))
        else:
            stack.pop()
            inside.discard(frame.source)
            part = frame.close(cls)
            if not stack:
                return part
            stack[-1].add(frame.path[-1], part)


def _assemble_flat(
    source: Mapping[str, Any], batch_size: torch.Size, cls: type[Node]
) -> Part | None:
    """Build a mapping of plain tensors without a frame; None if it is not one.

    This is the constructor's hot path. The schema checks its keys when it is new:
    a structure that is known has good keys.
    """
    values = tuple(source.values())
    if not values:
        return None
    nb = len(batch_size)
    rows = batch_size[0] if nb == 1 else -1
    ranks: list[int] = []
    if not PLAIN_TYPES.issuperset(map(type, values)):
        return None
    for value in values:
        shape = value.shape
        rank = len(shape) - nb
        # Slicing a torch.Size costs more than the whole rest of the loop. On a
        # mismatch the slow path takes over: it knows the path for the error.
        if nb == 1:
            if rank < 0 or shape[0] != rows:
                return None
        elif nb and shape[:nb] != batch_size:
            return None
        ranks.append(rank)
    try:
        schema = Schema(cls, tuple(source), tuple(ranks))
    except InvalidKeyError:
        return None
    if schema.order is not schema.keys:
        values = tuple([source[key] for key in schema.order])
    return Part(schema, 0, values, NO_STATICS)


class _Frame:
    """One mapping on the way."""

    __slots__ = ("parts", "path", "rest", "source")

    def __init__(self, source: Mapping[str, Any], path: Path) -> None:
        self.source = id(source)
        self.path = path
        self.rest: Iterator[tuple[str, Any]] = iter(source.items())
        self.parts: dict[str, Part] = {}

    def add(self, key: str, part: Part) -> None:
        self.parts[key] = part

    def close(self, cls: type[Node]) -> Part:
        return join_parts(self.parts, cls)


def join_parts(parts: Mapping[str, Part], cls: type[Node]) -> Part:
    """Return the node whose entries are `parts`, in their order."""
    schema = Schema(
        cls,
        tuple(parts),
        tuple([part.kid for part in parts.values()]),
        tuple([part.surplus for part in parts.values()]),
    )
    leaves: list[torch.Tensor] = []
    statics: list[Any] = []
    for key in schema.order:
        part = parts[key]
        leaves.extend(part.leaves)
        if part.statics is not NO_STATICS:
            statics.extend(part.statics.values)
    box = Statics(tuple(statics)) if statics else NO_STATICS
    return Part(schema, 0, tuple(leaves), box)


def _node_part(
    node: Node, path: Path, batch_size: torch.Size, device: Device | None
) -> Part:
    own = node.batch_size
    schema, leaves = node._schema, node._leaves
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise InvalidLeafError(
                "a tree of other things than tensors can not be nested",
                path=path,
                expected="tensors",
                got=type(leaf).__name__,
            )
    nb = len(batch_size)
    surplus = len(own) - nb
    if not schema.n:
        surplus = 0
    elif surplus < 0 or own[:nb] != batch_size:
        for place, leaf in zip(schema.paths(), leaves, strict=True):
            if leaf.shape[:nb] != batch_size:
                raise misfit((*path, *place), leaf.shape, batch_size)
        schema = schema.rebased(len(own), nb)
        surplus = 0
    if device is not None:
        leaves = tuple([leaf.to(device) for leaf in leaves])
    return Part(schema, surplus, leaves, node._statics)
