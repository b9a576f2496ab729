"""A tree as files hold it: levels of entries, between nodes and the formats.

Writers get a `Level` from `levels_of` and put down its arrays and what describes them;
a `Source` gives a `Level` back whose arrays say where their bytes are, so that a tree
can be looked at, narrowed and checked before anything of its data is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch

from tdfunc._core.batch import misfit
from tdfunc._core.build import Draft, Part, as_part
from tdfunc._core.node import Node, entry_at, make
from tdfunc._core.rows import decode, encode
from tdfunc._core.schema import ROWS, STATIC, UNBATCHED
from tdfunc._core.statics import Statics
from tdfunc._ops.members import Members, lazy_node
from tdfunc.errors import (
    FileFormatError,
    InvalidLeafError,
    MissingKeyError,
    PathThroughLeafError,
    nearest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from tdfunc.typing import Path

__all__ = [
    "Array",
    "Entry",
    "Jagged",
    "Level",
    "Rows",
    "Source",
    "Static",
    "iter_arrays",
    "iter_entries",
    "iter_levels",
    "level_at",
    "levels_of",
    "narrowed",
    "tree_of",
]


@dataclass(slots=True, eq=False)
class Array:
    """A tensor: to be written, or to be found in a file.

    An array that is at two places of a tree is one tensor there: it is written once
    where the format can, and loaded as one.

    Attributes:
        dtype: its dtype.
        shape: its shape.
        tensor: the tensor; None as long as it was not read.
        place: where its bytes are, as its `Source` knows it.
        unbatched: whether the batch does not index it.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    tensor: torch.Tensor | None = None
    place: Any = None
    unbatched: bool = False

    @property
    def nbytes(self) -> int:
        """How many bytes its elements are."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True, eq=False)
class Jagged:
    """A jagged nested tensor: the values of all rows, and where each row begins.

    Attributes:
        values: the values, rows joined along their ragged dim.
        offsets: int64 or int32 ``[rows + 1]``.
        lengths: the length of each row, None if rows leave no holes.
        ragged_dim: the dim of the nested tensor along which lengths differ.
    """

    values: Array
    offsets: Array
    lengths: Array | None = None
    ragged_dim: int = 1


@dataclass(slots=True, eq=False)
class Rows:
    """One value of any kind for every row.

    Attributes:
        shape: the shape of the rows; it starts with the batch size.
        values: the values, flat, the last dim fastest.
    """

    shape: tuple[int, ...]
    values: list[Any]


@dataclass(slots=True, eq=False)
class Static:
    """One value for the whole node."""

    value: Any


@dataclass(slots=True, eq=False)
class Level:
    """One node.

    Attributes:
        batch_size: its batch size.
        names: the names of its dims, one for each; None if it has none.
        entries: its entries in people's order; of a lazy stack the members, under
            their places as text.
        record: the name of the record class that it was, ``module:QualName``; None
            for plain nodes. Only a note: no class is ever found by it.
        stack_dim: the dim along which the members of a lazy stack lie; None for other
            nodes.
    """

    batch_size: tuple[int, ...]
    names: tuple[str | None, ...] | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    record: str | None = None
    stack_dim: int | None = None


Entry: TypeAlias = "Level | Array | Jagged | Rows | Static"


class Source(ABC):
    """An open file or directory that holds a tree; a context manager.

    Attributes:
        name: the file, for error messages.
    """

    name: str

    @abstractmethod
    def outline(self) -> Level:
        """Return the tree with arrays that are not read yet.

        Everything that can be wrong with the file, but for the bytes of the tensors,
        is found here.

        Raises:
            FileFormatError: the file is broken, or holds what can not be read.
        """

    @abstractmethod
    def read(self, arrays: Sequence[Array]) -> None:
        """Give every array its tensor: memory of this process alone, writable.

        Raises:
            FileFormatError: the bytes are not there.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is open; tensors that were read stay valid."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# By the id of a tensor that was met: it, which has to live for that, and its array.
Known: TypeAlias = dict[int, tuple[Any, Array]]


def levels_of(td: Node) -> Level:
    """Return a tree as levels, sharing its tensors.

    Raises:
        InvalidLeafError: a leaf is no tensor with elements that can be written: a
            placeholder, a tensor of a transform that runs, sparse, quantized or on
            the device "meta".
    """
    arrays: Known = {}
    top = _level(td)
    pending: list[tuple[Path, Any, Level]] = [((), td, top)]
    while pending:
        path, node, level = pending.pop()
        for key, entry in _entries(node, path, arrays):
            if isinstance(entry, Node):
                below = _level(entry)
                pending.append(((*path, key), entry, below))
                level.entries[key] = below
            else:
                level.entries[key] = entry
    return top


def _level(node: Any) -> Level:
    cls = type(node)
    size = tuple(node.batch_size)
    record = cls._record
    note = None if record is None else f"{cls.__module__}:{cls.__qualname__}"
    return Level(
        size,
        node.names,
        record=note,
        stack_dim=node.stack_dim if cls.is_lazy else None,
    )


def _entries(
    node: Any, path: Path, arrays: Known
) -> Iterator[tuple[str, Entry | Node]]:
    """Yield the entries of a node in people's order; nested nodes as they are."""
    if type(node).is_lazy:
        for at, tree in enumerate(node.tensordicts):
            yield str(at), tree
        return
    schema, leaves = node._schema, node._leaves
    values = node._statics.values
    for key in schema.keys:
        kid, lo, slo, _ = schema.index[key]
        here = (*path, key)
        if not isinstance(kid, int):
            yield key, entry_at(node, (key,))
        elif kid >= 0:
            yield key, _array(leaves[lo], here, arrays)
        elif kid <= ROWS:
            codes = leaves[lo]
            flat = decode(codes.reshape(-1), values[slo], here)
            yield key, Rows(tuple(codes.shape), flat)
        elif kid == UNBATCHED:
            yield key, _array(values[slo], here, arrays, unbatched=True)
        else:
            yield key, Static(values[slo])


def _array(
    leaf: Any, path: Path, arrays: Known, *, unbatched: bool = False
) -> Array | Jagged:
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        return _jagged(leaf, path, arrays)
    _, known = arrays.get(id(leaf), (None, None))
    if known is not None and known.unbatched == unbatched:
        return known
    if not (type(leaf) is torch.Tensor and leaf.is_cpu and _is_dense(leaf)):
        _check_written(leaf, path)
    tensor = leaf.detach() if leaf.requires_grad else leaf
    made = Array(leaf.dtype, tuple(leaf.shape), tensor, unbatched=unbatched)
    # With the leaf: the parts of a jagged one would leave their ids to others.
    arrays[id(leaf)] = leaf, made
    return made


def _jagged(leaf: Any, path: Path, arrays: Known) -> Jagged:
    def part(tensor: Any) -> Any:
        return None if tensor is None else _array(tensor, path, arrays)

    values, offsets = part(leaf.values()), part(leaf.offsets())
    return Jagged(values, offsets, part(leaf.lengths()), leaf._ragged_idx)


def _check_written(leaf: Any, path: Path) -> None:
    kind = type(leaf).__name__
    if isinstance(leaf, torch.Tensor):
        if leaf.device.type == "meta":
            kind = "a tensor without data, on the device 'meta'"
        elif _is_dense(leaf):
            return
        elif leaf.layout is not torch.strided or leaf.is_quantized:
            kind = f"a tensor of {leaf.dtype} and layout {leaf.layout}"
        else:
            kind = f"{kind} without memory: a tensor inside a transform"
    raise InvalidLeafError(
        "this leaf has no elements that can be written",
        path=path,
        expected="a dense tensor",
        got=kind,
        fix="td.apply(lambda x: x.to_dense()), or save outside the transform",
    )


def _is_dense(leaf: torch.Tensor) -> bool:
    try:
        leaf.data_ptr()
    except RuntimeError:  # sparse, wrapped by a transform, or fake
        return False
    return leaf.layout is torch.strided and not leaf.is_quantized


def tree_of(level: Level, made: Callable[[Level, Any], Any] | None = None) -> Any:
    """Return the tree of levels whose arrays have their tensors, sharing them.

    Args:
        level: the levels.
        made: what becomes of each node that is no lazy stack, called with its level
            and the plain node, children before their parents; None to keep it.

    Raises:
        BatchSizeError: an entry does not start with the batch size of its node.
        TdfuncError: the levels are no tree in another way.
    """
    nodes: dict[int, Any] = {}
    # Children come after their parents: from the end, every child is there.
    for path, below in reversed(list(iter_levels(level))):
        size = torch.Size(below.batch_size)
        dim = below.stack_dim
        if dim is not None:
            trees = [nodes.pop(id(entry)) for entry in below.entries.values()]
            rest = (*size[:dim], *size[dim + 1 :])
            nodes[id(below)] = lazy_node(Members(trees, dim, rest), below.names)
            continue
        draft = Draft(path)
        for key, entry in below.entries.items():
            if (
                isinstance(entry, Array)
                and not entry.unbatched
                and draft.take(key, entry.tensor, size, Node._plain)
            ):
                continue  # a plain tensor, the short way
            here = (*path, key)
            if isinstance(entry, Level):
                node = nodes.pop(id(entry))
                draft.add(key, as_part(node, here, size, Node._plain))
            else:
                draft.add(key, _part_of(entry, here, size))
        part = draft.close(Node._plain)
        schema: Any = part.kid
        node = make(schema, part.leaves, part.statics, size, below.names)
        nodes[id(below)] = node if made is None else made(below, node)
    return nodes[id(level)]


def _part_of(
    entry: Array | Jagged | Rows | Static, path: Path, size: torch.Size
) -> Part:
    if isinstance(entry, Static):
        return Part(STATIC, 0, (), Statics((entry.value,)))
    if isinstance(entry, Rows):
        codes, table = encode(entry.values, entry.shape)
        if codes.shape[: len(size)] != size:
            raise misfit(path, codes.shape, size)
        kind = ROWS - (codes.dim() - len(size))
        return Part(kind, 0, (codes,), Statics((table,)))
    tensor = _joined(entry, path) if isinstance(entry, Jagged) else entry.tensor
    if isinstance(entry, Array) and entry.unbatched:
        return Part(UNBATCHED, 0, (), Statics((tensor,)))
    return as_part(tensor, path, size, Node._plain)


def _joined(entry: Jagged, path: Path) -> torch.Tensor:
    values: Any = entry.values.tensor
    offsets: Any = entry.offsets.tensor
    lengths = None if entry.lengths is None else entry.lengths.tensor
    fits = 0 < entry.ragged_dim <= values.dim() and _are_rows(
        offsets, lengths, values.shape[entry.ragged_dim - 1]
    )
    if not fits:
        # torch does not look, and reads what lies behind the values.
        raise FileFormatError(
            "the rows of this jagged tensor do not lie in its values",
            path=path,
            expected=f"offsets that grow from 0 on, in values {list(values.shape)}",
            got=f"{list(offsets.shape)} offsets, ragged dim {entry.ragged_dim}",
        )
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, lengths, jagged_dim=entry.ragged_dim
    )


def _are_rows(offsets: torch.Tensor, lengths: torch.Tensor | None, count: int) -> bool:
    kinds = {torch.int32, torch.int64}
    if offsets.dim() != 1 or not offsets.numel() or offsets.dtype not in kinds:
        return False
    rows = offsets[1:] - offsets[:-1]
    least = rows if lengths is None else lengths
    if least.shape != rows.shape or least.dtype not in kinds:
        return False
    if offsets.device.type == "meta":
        return True
    inside = int(offsets[0]) >= 0 and int(offsets[-1]) <= count
    return inside and bool(((least >= 0) & (least <= rows)).all())


def iter_levels(level: Level) -> Iterator[tuple[Path, Level]]:
    """Yield all levels with their paths, every one before those below it."""
    pending: list[tuple[Path, Level]] = [((), level)]
    while pending:
        path, here = pending.pop()
        yield path, here
        below = [(k, e) for k, e in here.entries.items() if isinstance(e, Level)]
        pending += [((*path, key), entry) for key, entry in reversed(below)]


def iter_entries(level: Level) -> Iterator[tuple[Path, Entry]]:
    """Yield the entries of all levels that are no levels themselves."""
    for path, here in iter_levels(level):
        for key, entry in here.entries.items():
            if not isinstance(entry, Level):
                yield (*path, key), entry


def iter_arrays(level: Level) -> Iterator[tuple[Path, Array]]:
    """Yield every array once, with the first path at which it is.

    The parts of a jagged tensor go by the path of the tensor.
    """
    seen: set[int] = set()
    for path, here in iter_levels(level):
        for key, entry in here.entries.items():
            if isinstance(entry, Array):
                if id(entry) not in seen:
                    seen.add(id(entry))
                    yield (*path, key), entry
            elif isinstance(entry, Jagged):
                for array in (entry.values, entry.offsets, entry.lengths):
                    if array is not None and id(array) not in seen:
                        seen.add(id(array))
                        yield (*path, key), array


def level_at(level: Level, path: Path) -> Level:
    """Return the node at a path.

    Raises:
        MissingKeyError: there is no such entry.
        PathThroughLeafError: it is a value, or the path leads into a lazy stack.
    """
    here = level
    for at, key in enumerate(path):
        upto = path[: at + 1]
        if here.stack_dim is not None:
            raise PathThroughLeafError(
                "a lazy stack has no entries of its own",
                path=path[:at],
                fix="load(path, keys=[...]), or load all of it and index",
            )
        entry = here.entries.get(key)
        if entry is None:
            known = nearest(key, here.entries)
            raise MissingKeyError("there is no such entry", path=upto, expected=known)
        if not isinstance(entry, Level):
            raise PathThroughLeafError(
                "this entry is a value, not a node",
                path=upto,
                fix="keys=[path] loads one entry",
            )
        here = entry
    return here


def narrowed(level: Level, paths: Iterable[Path]) -> Level:
    """Return a level with nothing but some entries, nodes with all that is in them.

    A path leads through a lazy stack into every member that has it.

    Raises:
        MissingKeyError: there is no such entry.
        PathThroughLeafError: a path goes on below a value.
    """
    wanted = list(dict.fromkeys(paths))
    found: set[Path] = set()
    out = replace(level, entries={})
    pending = [(level, out, [(path, path) for path in wanted])]
    while pending:
        here, new, wants = pending.pop()
        by_key: dict[str, list[tuple[Path, Path]]] = {}
        for rest, whole in wants:
            by_key.setdefault(rest[0], []).append((rest[1:], whole))
        for key, entry in here.entries.items():
            # A path has no place for the members of a lazy stack.
            mine = by_key.get(key, []) if here.stack_dim is None else wants
            if not mine and here.stack_dim is None:
                continue  # a stack keeps its members, if empty
            found.update([whole for rest, whole in mine if not rest])
            below = [want for want in mine if want[0]]
            if isinstance(entry, Level):
                part = entry
                if len(below) == len(mine):
                    part = replace(entry, entries={})
                new.entries[key] = part
                # Where all of the node is wanted, only to see that the rest is there.
                spare = part if part is not entry else replace(entry, entries={})
                pending.append((entry, spare, below))
            elif below:
                raise PathThroughLeafError("this entry is a value", path=below[0][1])
            else:
                new.entries[key] = entry
    missing = [path for path in wanted if path not in found]
    if missing:
        raise MissingKeyError(
            f"there is no such entry, nor {len(missing) - 1} more"
            if len(missing) > 1
            else "there is no such entry",
            path=missing[0],
            expected=nearest(missing[0][0], level.entries),
        )
    return out
