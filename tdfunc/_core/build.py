"""From mappings and trees to flat storage: the door where everything is checked.

`assemble` walks a mapping with an explicit stack (a chain of mappings may be
thousands deep) and returns a `Part`: schema, leaves and statics of one node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from tdfunc._core.batch import misfit
from tdfunc._core.keys import check_key
from tdfunc._core.leaf import LeafLike, Unbatched, as_leaf, as_rows, check_own
from tdfunc._core.node import Node
from tdfunc._core.rows import encode
from tdfunc._core.schema import ROWS, STATIC, UNBATCHED, Kid, Schema
from tdfunc._core.statics import (
    NO_STATICS,
    NonTensorData,
    Statics,
    gather_statics,
)
from tdfunc.errors import (
    BatchSizeError,
    InvalidKeyError,
    InvalidLeafError,
    StructureError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tdfunc.typing import Device, Path

__all__ = [
    "Draft",
    "Part",
    "as_part",
    "assemble",
    "assemble_flat",
    "map_unbatched",
    "nested",
    "whole_node",
]


class Part(NamedTuple):
    """One entry in flat form: its kind, its leaves and its statics."""

    kid: Kid
    surplus: int
    leaves: tuple[Any, ...]
    statics: Statics


class Draft:
    """A node under construction: its entries in flat form, in people's order."""

    __slots__ = ("chunks", "extra", "keys", "kids", "path", "rest", "source", "statics")

    def __init__(
        self, path: Path = (), source: Mapping[Any, Any] | None = None
    ) -> None:
        self.path = path
        self.source = id(source)
        items = () if source is None else source.items()
        self.rest: Iterator[tuple[Any, Any]] = iter(items)
        self.keys: list[str] = []
        self.kids: list[Kid] = []
        self.extra: list[int] = []  # surplus of each entry
        self.chunks: list[tuple[Any, ...]] = []  # leaves of each entry
        self.statics: dict[str, Statics] = {}  # statics of those that have some

    def add(self, key: str, part: Part) -> None:
        """Add an entry at the end."""
        kid, surplus, leaves, statics = part
        self.keys.append(key)
        self.kids.append(kid)
        self.extra.append(surplus)
        self.chunks.append(leaves)
        if statics is not NO_STATICS:
            self.statics[key] = statics

    def take(
        self, key: str, value: Any, batch_size: torch.Size, cls: type[Node]
    ) -> bool:
        """Add a plain tensor, or a mapping of them, the short way if it fits."""
        if type(value) is torch.Tensor and not value.is_nested:
            shape, nb = value.shape, len(batch_size)
            if shape[:nb] == batch_size:
                self.keys.append(key)
                self.kids.append(len(shape) - nb)
                self.extra.append(0)
                self.chunks.append((value,))
                return True
        elif isinstance(value, Mapping):
            check_own(value, (*self.path, key))
            flat = assemble_flat(value, batch_size, cls)
            if flat is not None:
                self.add(key, Part(flat[0], 0, flat[1], NO_STATICS))
                return True
        return False

    def close(self, cls: type[Node]) -> Part:
        """Return the node."""
        try:
            schema = Schema(cls, tuple(self.keys), tuple(self.kids), tuple(self.extra))
        except InvalidKeyError:
            for key in self.keys:
                check_key(key, self.path)  # the same error, with the path
            raise
        chunks = self.chunks
        if schema.order is not schema.keys:
            by_key = dict(zip(self.keys, chunks, strict=True))
            chunks = [by_key[key] for key in schema.order]
        leaves: list[Any] = []
        for chunk in chunks:
            leaves += chunk
        box = NO_STATICS
        if self.statics:
            boxes = [self.statics[key] for key in schema.order if key in self.statics]
            box = gather_statics([(b, at) for b in boxes for at in range(b.count)])
        return Part(schema, 0, tuple(leaves), box)


def as_part(
    value: Any,
    path: Path,
    batch_size: torch.Size,
    cls: type[Node],
    device: Device | None = None,
    row_dims: int | None = None,
) -> Part:
    """Return any value that may be an entry of a node with this batch size.

    Args:
        value: the value.
        path: where it is to go.
        batch_size: the batch size of the node.
        cls: the class of nodes that are made of mappings.
        device: where to move tensors, None to leave them.
        row_dims: how deep lists of rows may be nested while the batch size is not
            known yet, and `batch_size` is empty; None if it is known.

    Raises:
        BatchSizeError: a leaf does not start with `batch_size`, or a list has not
            its length.
        InvalidKeyError: a key of a nested mapping is not a non-empty string.
        InvalidLeafError: a value can not be an entry.
        StructureError: a mapping contains itself.
    """
    check_own(value, path)
    if isinstance(value, torch.Tensor):
        nb = len(batch_size)
        if value.is_nested and value.layout is torch.strided:
            raise InvalidLeafError(
                "a nested tensor of strided layout has no shape",
                path=path,
                fix="torch.nested.nested_tensor(..., layout=torch.jagged) has one",
            )
        if value.shape[:nb] != batch_size:
            raise misfit(path, value.shape, batch_size)
        if device is not None:
            value = value.to(device)
        return Part(value.dim() - nb, 0, (value,), NO_STATICS)
    if isinstance(value, Node):
        return _node_part(value, path, batch_size, device)
    if isinstance(value, Mapping):
        return assemble(value, batch_size, cls, device=device, path=path)
    dims = len(batch_size) if row_dims is None else row_dims
    rows = as_rows(value, path, dims)
    if rows is not None:
        return _rows_part(
            *rows, path, batch_size, device, inferred=row_dims is not None
        )
    leaf = as_leaf(value, path)
    if isinstance(leaf, torch.Tensor):
        return as_part(leaf, path, batch_size, cls, device)
    kept = leaf.data if isinstance(leaf, NonTensorData) else leaf.tensor
    if isinstance(leaf, Unbatched) and device is not None:
        kept = leaf.tensor.to(device)
    kind = UNBATCHED if isinstance(leaf, Unbatched) else STATIC
    return Part(kind, 0, (), Statics((kept,)))


def _rows_part(
    values: list[Any],
    shape: tuple[int, ...],
    path: Path,
    batch_size: torch.Size,
    device: Device | None,
    *,
    inferred: bool,
) -> Part:
    """Return one value for every row as codes and their table."""
    codes, table = encode(values, shape)
    if not inferred:
        if batch_size[: len(shape)] != shape:
            raise BatchSizeError(
                "a list is one value for every row, and there are other rows",
                path=path,
                expected=f"a length that the batch size {list(batch_size)} starts with",
                got=f"shape {list(shape)}",
                fix="NonTensorData(value) keeps it as one static value; "
                f"batch_size={list(shape)} makes rows of it",
            )
        more = len(batch_size) - len(shape)
        # A value for each row of the first dims is one for all rows behind it.
        codes = codes.reshape((*shape, *(1,) * more)).expand(batch_size).contiguous()
    kind = ROWS - len(shape) if inferred else ROWS
    return Part(
        kind, 0, (codes if device is None else codes.to(device),), Statics((table,))
    )


def assemble(
    source: Mapping[str, Any] | Node,
    batch_size: torch.Size,
    cls: type[Node],
    *,
    device: Device | None = None,
    path: Path = (),
    row_dims: int | None = None,
) -> Part:
    """Return a mapping of mappings (or a tree) in flat form, with this batch size.

    `row_dims` is that of `as_part`.
    """
    if isinstance(source, Node):
        return whole_node(source, batch_size, cls, device)
    check_own(source, path)
    flat = assemble_flat(source, batch_size, cls) if device is None else None
    if flat is not None:
        return Part(flat[0], 0, flat[1], NO_STATICS)
    stack = [Draft(path, source)]
    inside = {id(source)}
    while True:
        draft = stack[-1]
        for name, value in draft.rest:
            key = name if type(name) is str else check_key(name, draft.path)
            if device is None and draft.take(key, value, batch_size, cls):
                continue
            here = (*draft.path, check_key(key, draft.path))
            check_own(value, here)
            if not isinstance(value, Mapping):
                draft.add(key, as_part(value, here, batch_size, cls, device, row_dims))
                continue
            if id(value) in inside:
                raise StructureError("a mapping contains itself", path=here)
            inside.add(id(value))
            stack.append(Draft(here, value))
            break
        else:
            stack.pop()
            inside.discard(draft.source)
            part = draft.close(cls)
            if not stack:
                return part
            stack[-1].add(draft.path[-1], part)


def assemble_flat(
    source: Mapping[str, Any], batch_size: torch.Size, cls: type[Node]
) -> tuple[Schema, tuple[torch.Tensor, ...]] | None:
    """Return schema and leaves of a mapping of plain tensors, None if it is not one.

    This is the constructor's hot path. The schema checks its keys when it is new:
    a structure that is known has good keys.
    """
    values = tuple(source.values())
    if not values:
        return None
    nb = len(batch_size)
    rows = batch_size[0] if nb == 1 else 0
    ranks: list[int] = []
    try:
        # One loop: for few entries, a comprehension costs as much as what it does.
        for value in values:
            kind = type(value)
            if kind is not Tensor and kind is not Parameter:
                return None
            shape = value.shape
            rank = len(shape) - nb
            # Slicing a torch.Size costs more than the whole rest of the loop. On a
            # mismatch the slow path takes over: it knows the path for the error.
            if nb and (
                rank < 0 or (shape[0] != rows if nb == 1 else shape[:nb] != batch_size)
            ):
                return None
            ranks.append(rank)
    except RuntimeError:  # a nested tensor of strided layout
        return None
    try:
        schema = Schema(cls, tuple(source.keys()), tuple(ranks))
    except InvalidKeyError:
        return None
    if schema.order is not schema.keys:
        values = tuple([source[key] for key in schema.order])
    return schema, values


def whole_node(
    node: Node, batch_size: torch.Size, cls: type[Node], device: Device | None
) -> Part:
    """Return all entries of a node, read with a batch size, as a node of class `cls`.

    Raises:
        BatchSizeError: a leaf does not start with `batch_size`.
        InvalidLeafError: a leaf is no tensor.
    """
    if type(node).is_lazy:
        stack: Any = node
        node = stack.densify()
    part = _node_part(node, (), batch_size, device)
    schema = node._schema.rebased(node.batch_dims, len(batch_size))
    schema = Schema(cls, schema.keys, schema.kids, schema.surplus)
    return part._replace(kid=schema, surplus=0)


def _node_part(
    node: Node, path: Path, batch_size: torch.Size, device: Device | None
) -> Part:
    own = node.batch_size
    schema, leaves, statics = node._schema, node._leaves, node._statics
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, LeafLike)):
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
        statics = map_unbatched(schema, statics, lambda x: x.to(device))
    return Part(schema, surplus, leaves, statics)


def nested(
    schema: Schema, leaves: tuple[Any, ...], statics: Statics, dims: int
) -> tuple[Schema, tuple[Any, ...], Statics]:
    """Return schema, leaves and statics in which the trees among `leaves` are nodes.

    Args:
        schema: the structure of the leaves.
        leaves: tensors and trees.
        statics: those of the schema.
        dims: how many batch dims the whole has.
    """
    nodes: list[tuple[int, Schema, int]] = []
    flat: list[Any] = []
    for slot, leaf in enumerate(leaves):
        if isinstance(leaf, Node):
            nodes.append((slot, leaf._schema, max(0, leaf.batch_dims - dims)))
            flat.extend(leaf._leaves)
        else:
            flat.append(leaf)
    new = schema.replaced(tuple(nodes))
    places = {path: (statics, at) for at, path in enumerate(schema.static_paths())}
    paths = schema.paths()
    for slot, leaf in enumerate(leaves):
        if isinstance(leaf, Node):
            for at, path in enumerate(leaf._schema.static_paths()):
                places[(*paths[slot], *path)] = (leaf._statics, at)
    box = gather_statics([places[path] for path in new.static_paths()])
    return new, tuple(flat), box


def map_unbatched(
    schema: Schema, statics: Statics, fn: Callable[[torch.Tensor], torch.Tensor]
) -> Statics:
    """Return the statics with ``fn(tensor)`` for every unbatched tensor."""
    places = schema.unbatched()
    if not places:
        return statics
    values = list(statics.values)
    for at in places:
        values[at] = fn(values[at])
    return Statics(tuple(values))
