"""Operations on entries: set, update, replace, drop, select, exclude.

Each returns a new tree that shares every leaf it did not change. `key` is one key
or a path (a tuple of keys); `value` is a tensor, a number, a mapping, a tree, or
any other object, which becomes a static.

A record (see `TensorClass`) takes what the annotations of its fields allow: another
value raises `InvalidLeafError`, another key `FieldError`, and leaving out a field that
can not be None `StructureError`. Setting a field to None that can be leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from tdfunc._core.batch import as_names, as_size, misfit
from tdfunc._core.build import Draft, Part, as_part
from tdfunc._core.keys import as_path, check_key, short
from tdfunc._core.leaf import LeafLike, check_own
from tdfunc._core.node import (
    Node,
    NodeT,
    carried_size,
    class_of,
    entry_at,
    make,
    missing,
    size_at,
)
from tdfunc._core.record import check_fields
from tdfunc._core.schema import ROWS, UNBATCHED, Schema, is_kept, is_lazy, is_leaf
from tdfunc._core.statics import NO_STATICS, gather_statics
from tdfunc._core.tree import each_member, refuse_lazy, with_leaves
from tdfunc.errors import (
    BatchSizeError,
    MissingKeyError,
    OperandError,
    OptionError,
    ShapeError,
    StructureError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tdfunc._core.schema import Moved, Narrowed
    from tdfunc.typing import DimNames, Entries, Path, Size

__all__ = [
    "drop",
    "exclude",
    "replace",
    "select",
    "set",
    "update",
    "with_batch_size",
    "with_names",
]


# Options of the peer's `update`, which would become entries in silence.
_PEER_OPTIONS = frozenset({"clone", "inplace", "keys_to_update", "non_blocking"})


def set(td: NodeT, key: str | Path, value: Any) -> NodeT:
    """Return the tree with `value` at `key`, which may be new.

    Nodes that are missing on the way of a path are made. Nothing is moved to
    another device and nothing is broadcast.

    Args:
        td: the tree.
        key: a key or a path.
        value: a tensor whose shape starts with the batch size of the node that gets
            it, or anything else that the constructor takes.

    Returns:
        A new tree; all other leaves are shared.

    Raises:
        BatchSizeError: `value` does not start with the batch size.
        InvalidKeyError: `key` is not a key or path.
        PathThroughLeafError: the path goes on below a leaf.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=3)
        >>> td.set(("n", "b"), torch.ones(3, 2)).keys(True)
        ('a', 'n', ('n', 'b'))
    """
    if isinstance(key, str):
        slot = td._schema.slots.get(key)
    else:
        key = as_path(key)
        slot = td._schema.slot(key)
    if slot is not None and type(value) is torch.Tensor:
        old = td._leaves[slot]
        # The hot path: a tensor of the old one's shape fits wherever that did.
        if type(old) is torch.Tensor and value.shape == old.shape:
            leaves = list(td._leaves)
            leaves[slot] = value
            size = carried_size(td)
            return make(td._schema, tuple(leaves), td._statics, size, td._names)
    return _set_path(td, as_path(key), value)


def _set_path(td: NodeT, path: Path, value: Any) -> NodeT:
    if td._schema.lazy:
        inside = td._schema.lazy_on(path)
        if inside == 0:
            return _set_in_members(td, path, value)
        if inside > 0:
            stack = set(entry_at(td, path[:inside]), path[inside:], value)
            return _set_path(td, path[:inside], stack)
    blocked = td._schema.blocked(path)
    if blocked is not None:
        raise missing(td, path)
    home = td._schema.home(path)
    room = size_at(td, home)
    if td._schema.records:
        record = class_of(td._schema.owner(home))._record
        if record is not None:
            return _set_field(td, home, path, value, record)
    found = td._schema.find(path)
    if found is not None and found.kid == UNBATCHED:
        _check_room(value, path, room)
    part = as_part(value, path, room, td._plain)
    return graft(td, path, part)


def _check_room(value: Any, path: Path, room: torch.Size) -> None:
    """Raise if a tensor does not fit in place of one that is not batched."""
    if isinstance(value, torch.Tensor) and value.shape[: len(room)] != room:
        raise BatchSizeError(
            "the batch does not index this entry, and would index the tensor",
            path=path,
            expected=f"unbatched(value), or a shape that starts with {list(room)}",
            got=f"shape {list(value.shape)}",
            fix=f"td.set({short(path)!r}, unbatched(value))",
        )


def _set_field(td: NodeT, home: Path, path: Path, value: Any, record: Any) -> NodeT:
    """Set a field of the record at `home`, of which `path` may name an entry."""
    end = len(home) + 1
    for key in reversed(path[end:]):
        value = {key: value}
    field = path[:end]
    part = record.part(value, field, size_at(td, home))
    if part is not None:
        return graft(td, field, part)
    if td._schema.find(field) is None:
        return td
    size = td.batch_size
    return rearranged(td, size, td._schema.narrowed((field,), keep=False))


def _set_in_members(td: NodeT, path: Path, value: Any) -> NodeT:
    """Return a lazy stack with a value of its batch size in its members."""
    if isinstance(value, Node) and type(value).is_lazy:
        return each_member(td, lambda t, own: set(t, path, own), value)
    whole = set(_empty_like(td), path, value)
    return each_member(td, lambda t, own: _set_from(t, path, own), whole)


def _empty_like(td: Node) -> Node:
    """Return a tree without entries that has the batch size of a lazy stack."""
    size = td.batch_size
    if any([n < 0 for n in size]):
        raise ShapeError(
            "the members have other batch sizes, which one value can not have",
            got=list(size),
            fix="tdfunc.lazy_stack([t.set(key, value) for t in td.tensordicts])",
        )
    return make(Schema(td._plain, (), ()), (), NO_STATICS, size, None)


def _set_from(td: NodeT, path: Path, source: Node) -> NodeT:
    """Return the tree with what another tree of its batch size has at a path."""
    schema = td._schema
    if schema.lazy or schema.sized(schema.home(path))[2] or schema.blocked(path):
        return set(td, path, entry_at(source, path))
    found = source._schema.find(path)
    if found is None:  # the value was a lazy stack
        return set(td, path, entry_at(source, path))
    leaves = source._leaves[found.lo : found.hi]
    statics = source._statics.part(found.slo, found.shi)
    return graft(td, path, Part(found.kid, found.surplus, leaves, statics))


def graft(td: NodeT, path: Path, part: Part) -> NodeT:
    """Return the tree with a part, already checked, at `path`."""
    where = td._schema.grafted(path, part.kid, part.surplus, td._plain)
    if where.schema.records:
        check_fields(td._schema, where.schema)
    leaves = td._leaves[: where.lo] + part.leaves + td._leaves[where.hi :]
    statics = td._statics.spliced(where.slo, where.shi, part.statics)
    return make(where.schema, leaves, statics, td.batch_size, td._names)


def update(
    td: NodeT,
    other: Entries | Node | None = None,
    *,
    only: Iterable[str | Path] | None = None,
    **entries: Any,
) -> NodeT:
    """Return the tree with the entries of `other` set; nested nodes are merged.

    A mapping or tree in `other` is merged into the node at its key; anything else
    replaces what is there, and a mapping at the key of a leaf replaces the leaf by a
    node. A record is one value: given for a record, it replaces it, with its fields
    that are None (a part of a `partition` is merged). All is checked before anything
    is built.

    Args:
        td: the tree.
        other: a mapping (nested as deep as you like) or a tree.
        only: keys and paths of the entries to take, None to take all.
        entries: more entries; they win over those of `other`. An entry of the name
            `only` has to come in a mapping.

    Raises:
        BatchSizeError: a value does not start with the batch size.
        FieldError: the class of a record does not declare an entry.
        InvalidKeyError: a key is not a non-empty string.
        InvalidLeafError: the annotation of a field does not allow its value.
        MissingKeyError: an entry of `only` is neither in `other` nor in `entries`.
        OperandError: `other` is neither a mapping nor a tree.
        OptionError: an entry is given by keyword under the name of an option that
            the peer's `update` has, or `only` is no collection of keys.

    Examples:
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"n": {"a": 1}})
        >>> td.update({"n": {"b": 2}}, c=3).keys(True)
        ('n', ('n', 'a'), ('n', 'b'), 'c')
        >>> td.update({"n": {"b": 2}, "c": 3}, only=["c"]).keys(True)
        ('n', ('n', 'a'), 'c')
    """
    if only is not None:
        sources = _picked((other, entries), as_paths(only, "only"))
        return _updated(td, sources[0], sources[1])
    return _updated(td, other, entries)


def _updated(td: NodeT, other: Entries | Node | None, entries: dict[str, Any]) -> NodeT:
    options = entries.keys() & _PEER_OPTIONS if entries else None
    if options:
        raise OptionError(
            "update takes no options, and these names are more likely options than "
            "entries",
            got=", ".join(sorted(options)),
            fix="td.update({name: value}) for entries of these names",
        )
    for source in (other, entries):
        if source is None or (source is entries and not entries):
            continue
        check_own(source, ())
        if not isinstance(source, (Mapping, Node)):
            raise OperandError(
                "a tree can not be updated from this",
                expected="a mapping or a tree",
                got=type(source).__name__,
            )
        if type(td).is_lazy:
            td = _updated_members(td, source)
        else:
            td = _merged(td, _dense(source))
    return td


def _updated_members(td: NodeT, source: Entries | Node) -> NodeT:
    """Return a lazy stack whose members are updated with their parts of `source`."""
    if not isinstance(source, Node):
        source = _merged(_empty_like(td), source)
    rows: Any = source._leaves[0] if type(source).is_lazy else source
    return each_member(td, update, rows)


def _dense(source: Any) -> Any:
    """Return what a dense node can be updated with."""
    is_stack = isinstance(source, Node) and type(source).is_lazy
    tree: Any = source
    return tree.densify() if is_stack else source


def as_paths(keys: Any, name: str) -> tuple[Path, ...]:
    """Return a collection of keys and paths as paths, each once.

    Raises:
        InvalidKeyError: one of them is not a key or path.
        OptionError: it is one key, or no collection.
    """
    if isinstance(keys, (str, Node)) or not isinstance(keys, Iterable):
        raise OptionError(
            f"{name} is no collection of keys",
            expected="a list, tuple or set of keys and paths",
            got=repr(keys) if isinstance(keys, str) else type(keys).__name__,
            fix=f"[{keys!r}]" if isinstance(keys, str) else None,
        )
    return tuple(dict.fromkeys([as_path(key) for key in keys]))


def _picked(sources: tuple[Any, ...], paths: tuple[Path, ...]) -> list[Any]:
    """Return what the sources of an update hold at some paths.

    Raises:
        MissingKeyError: no source has an entry at one of the paths.
    """
    missed = [_missed(source, paths) for source in sources if source is not None]
    for path in paths:
        if all([path in left for left in missed]):
            raise MissingKeyError(
                "an entry to update is in none of the sources",
                path=path,
                fix="leave it out of only=, or give its value",
            )
    return [_picked_from(source, paths) for source in sources]


def _missed(source: Any, paths: tuple[Path, ...]) -> list[Path]:
    missed: list[Path] = []
    for path in paths:
        level = source
        for key in path:
            is_level = isinstance(level, (Mapping, Node))
            if not is_level or key not in level:
                missed.append(path)
                break
            level = level[key]
    return missed


def _picked_from(source: Any, paths: tuple[Path, ...]) -> Any:
    """Return the part of a mapping or tree at some paths, ignoring missing ones."""
    if isinstance(source, Node):
        return select(source, *paths, strict=False)
    if not isinstance(source, Mapping):
        return source  # None, or something that `update` refuses
    root: dict[str, Any] = {}
    pending: list[tuple[Any, dict[str, Any], tuple[Path, ...]]] = [
        (source, root, paths)
    ]
    while pending:
        level, out, wanted = pending.pop()
        groups: dict[str, list[Path]] = {}
        for path in wanted:
            groups.setdefault(path[0], []).append(path[1:])
        for key, rests in groups.items():
            if key not in level:
                continue
            value = level[key]
            if () in rests:
                out[key] = value
            elif isinstance(value, Node):
                out[key] = select(value, *rests, strict=False)
            elif isinstance(value, Mapping):
                out[key] = {}
                pending.append((value, out[key], tuple(rests)))
    return root


def _merged(td: NodeT, other: Entries | Node) -> NodeT:
    """Merge `other` into `td`, opening only the nodes that it touches."""
    same = _overwritten(td, other)
    if same is not None:
        return same
    stack = [_Merge((), td, other)]
    inside = {id(other)}
    while True:
        frame = stack[-1]
        node = frame.node
        for key in frame.rest:
            here = (*frame.path, check_key(key, frame.path))
            if frame.record is None and frame.gives_static(key):
                # As it is: the value may be a number or a dict that is not to be read.
                frame.parts[key] = _fitting(_part_of(frame.other, key), here, frame)
                continue
            value = frame.other[key]
            check_own(value, here)
            if _is_whole_record(node._schema, key, value):
                frame.put(key, value, here)
            elif isinstance(value, (Mapping, Node)) and _holds_lazy(node, key):
                frame.put(key, update(entry_at(node, (key,)), value), here)
            elif isinstance(value, (Mapping, Node)) and _holds_node(node, key):
                value = _dense(value)
                if id(value) in inside:
                    raise StructureError("a mapping contains itself", path=here)
                inside.add(id(value))
                below = _Merge(here, entry_at(node, (key,)), value)
                below.widen(frame.size)
                stack.append(below)
                break
            else:
                frame.put(key, value, here)
        else:
            stack.pop()
            inside.discard(id(frame.other))
            whole = frame.close()
            if not stack:
                return _rebuilt(td, whole)
            key = frame.path[-1]
            surplus = len(frame.size) - len(stack[-1].size)
            stack[-1].parts[key] = whole._replace(surplus=surplus)


def _rebuilt(td: NodeT, whole: Any) -> NodeT:
    """Return the tree with all its entries from a part."""
    size, names = td.batch_size, td._names
    if td._schema.records:
        check_fields(td._schema, whole.kid)
    return make(whole.kid, whole.leaves, whole.statics, size, names)


def _overwritten(td: NodeT, other: Any) -> NodeT | None:
    """Return the tree with other tensors of the same shapes, None if it takes more."""
    if isinstance(other, Node) and other._schema.m:
        return None
    slots = td._schema.slots
    leaves = list(td._leaves)
    for key, value in other.items():
        slot = slots.get(key)
        if slot is None or not isinstance(value, torch.Tensor):
            return None
        old = leaves[slot]
        if not isinstance(old, torch.Tensor) or value.shape != old.shape:
            return None
        leaves[slot] = value
    return with_leaves(td, tuple(leaves))


def _holds_node(node: Node, key: str) -> bool:
    entry = node._schema.index.get(key)
    return entry is not None and isinstance(entry[0], Schema)


def _holds_lazy(node: Node, key: str) -> bool:
    return (
        node._schema.lazy
        and _holds_node(node, key)
        and is_lazy(node._schema.index[key][0])
    )


def _is_whole_record(schema: Schema, key: str, value: Any) -> bool:
    """Return whether a record with all its fields is given for a record.

    It is one value then: what its fields that are None leave out would come back if it
    was merged. A part of a record is merged.
    """
    if not isinstance(value, Node) or type(value)._record is None:
        return False
    entry = schema.index.get(key)
    kid = None if entry is None else entry[0]
    is_record = isinstance(kid, Schema) and class_of(kid)._record is not None
    return is_record and not value._schema.amiss()[0]


class _Merge:
    """One node being merged with one mapping or tree."""

    __slots__ = ("node", "other", "parts", "path", "record", "rest", "size")

    def __init__(self, path: Path, node: Node, other: Any) -> None:
        self.size = node.batch_size
        self.record = type(node)._record
        self.path = path
        self.node = node
        self.other = other
        self.rest: Iterator[Any] = iter(other.keys())
        self.parts = {key: _part_of(node, key) for key in node._schema.keys}

    def widen(self, above: torch.Size) -> None:
        """Take the batch size of the other node if this one has no leaf to say its."""
        if isinstance(self.other, Node) and self.other._schema.n:
            size = self.other.batch_size
            if not self.node._schema.n and size[: len(above)] == above:
                self.size = size

    def put(self, key: str, value: Any, path: Path) -> None:
        """Set an entry, by the rules of its field if the node is a record."""
        if self.record is None:
            if key in self.parts and self.parts[key].kid == UNBATCHED:
                _check_room(value, path, self.size)
            self.parts[key] = as_part(value, path, self.size, Node._plain)
            return
        part = self.record.part(value, path, self.size)
        if part is not None:
            self.parts[key] = part
        else:
            self.parts.pop(key, None)

    def close(self) -> Part:
        """Return the node with its new entries."""
        draft = Draft()
        for key, part in self.parts.items():
            draft.add(key, part)
        return draft.close(type(self.node))

    def gives_static(self, key: str) -> bool:
        """Return whether the new entry is one of a tree, and no tensor with rows."""
        if not isinstance(self.other, Node):
            return False
        return is_kept(self.other._schema.index[key][0])


def _fitting(part: Part, path: Path, frame: _Merge) -> Part:
    """Return an entry of another tree that is no tensor, checked if it has rows."""
    for codes in part.leaves:
        dims = len(frame.size)
        if codes.shape[:dims] != frame.size:
            raise misfit(path, codes.shape, frame.size)
        part = part._replace(kid=ROWS - (codes.dim() - dims))
    return part


def _part_of(node: Node, key: str) -> Part:
    """Return the entry of a node at one key in flat form."""
    kid, lo, slo, surplus = node._schema.index[key]
    if isinstance(kid, Schema):
        leaves = node._leaves[lo : lo + kid.n]
        return Part(kid, surplus, leaves, node._statics.part(slo, slo + kid.m))
    leaves = (node._leaves[lo],) if is_leaf(kid) else ()
    statics = node._statics.part(slo, slo + 1) if kid < 0 else NO_STATICS
    return Part(kid, 0, leaves, statics)


def replace(td: NodeT, other: Entries | Node | None = None, **entries: Any) -> NodeT:
    """Return the tree with other values for entries that it already has.

    As `dataclasses.replace`: an entry that is not there raises. `update` adds.

    Args:
        td: the tree.
        other: a mapping or tree; a nested mapping names the entries to replace, and a
            record replaces one whole.
        entries: more entries; they win over those of `other`.

    Raises:
        FieldError: the class of a record does not declare an entry.
        InvalidLeafError: the annotation of a field does not allow its value.
        MissingKeyError: an entry is not in the tree.
        BatchSizeError: a value does not start with the batch size.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"a": 1, "b": 2}).replace(a=5)["a"]
        tensor(5)
    """
    if other is None:
        same = _overwritten(td, entries)
        if same is not None:
            return same
    for source in (other, entries):
        if isinstance(source, (Mapping, Node)):
            _check_known(td, source)
    return _updated(td, other, entries)


def _check_known(td: Node, source: Entries | Node) -> None:
    pending: list[tuple[Path, Any]] = [((), source)]
    while pending:
        prefix, level = pending.pop()
        check_own(level, prefix)
        for key in level.keys():  # noqa: SIM118 - iterating over a tree gives rows
            path = (*prefix, check_key(key, prefix))
            found = td._schema.find(path)
            if found is None and path in td._schema.absent():
                continue  # a field that is None can get a value
            if found is None:
                if td._schema.lazy and path in td:
                    continue
                record = class_of(td._schema.owner(prefix))._record
                if record is not None:
                    raise record.undeclared(key, path)
                raise missing(td, path, "td.update(...) adds entries")
            if isinstance(found.kid, Schema) and _is_nested(level, key):
                node, value = td._schema.owner(prefix), level[key]
                if not _is_whole_record(node, key, value):
                    pending.append((path, value))


def _is_nested(level: Any, key: str) -> bool:
    if isinstance(level, Node):
        return _holds_node(level, key)
    return isinstance(level[key], (Mapping, Node))


def drop(td: NodeT, *keys: str | Path) -> NodeT:
    """Return the tree without some entries.

    Args:
        td: the tree.
        keys: keys or paths; a node goes with everything in it.

    Raises:
        MissingKeyError: an entry is not in the tree (`exclude` ignores that).

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"a": 1, "b": 2}).drop("a").keys()
        ('b',)
    """
    size = td.batch_size
    paths = tuple([as_path(key) for key in keys])
    if td._schema.lazy:
        check_held(td, paths, "td.exclude(...) ignores what is not there")
        return exclude(td, *paths)
    for path in paths:
        if td._schema.find(path) is None:
            raise missing(td, path, "td.exclude(...) ignores what is not there")
    return rearranged(td, size, td._schema.narrowed(paths, keep=False))


@overload
def select(
    td: NodeT,
    *keys: str | Path,
    strict: bool = True,
    as_tensordict: Literal[False] = False,
) -> NodeT: ...
@overload
def select(
    td: Node, *keys: str | Path, strict: bool = True, as_tensordict: bool
) -> Any: ...
def select(
    td: NodeT, *keys: str | Path, strict: bool = True, as_tensordict: bool = False
) -> NodeT:
    """Return the tree with only some entries, in the order in which it has them.

    Args:
        td: the tree.
        keys: keys or paths; a node comes with everything in it.
        strict: raise for an entry that is not there; False ignores it. A field of a
            record that is None counts as there.
        as_tensordict: return a `TensorDict`, nested nodes included, and not a record
            of the class of `td`.

    Raises:
        MissingKeyError: `strict` and an entry is not in the tree.
        StructureError: the fields that are left out of a record can not be None.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"n": {"a": 1, "b": 2}, "c": 3}).select(("n", "b")).keys(True)
        ('n', ('n', 'b'))
    """
    if as_tensordict:
        size = td.batch_size
        plain = td._schema.of_class(td._plain)
        td = make(plain, td._leaves, td._statics, size, td._names)
    if td._schema.lazy:
        return _selected_apart(td, keys, strict=strict)
    return _selected(td, keys, strict=strict)


def _selected(td: NodeT, keys: tuple[Any, ...], *, strict: bool) -> NodeT:
    size = td.batch_size
    plan = td._schema.narrowed_before(keys, keep=True)
    if plan is None:
        paths: list[Path] = []
        for key in keys:
            path = as_path(key)
            if td._schema.find(path) is not None:
                paths.append(path)
            elif strict and path not in td._schema.absent():
                raise missing(td, path)
        found = keys if len(paths) == len(keys) else ()
        plan = td._schema.narrowed(tuple(paths), keep=True, keys=found)
    return rearranged(td, size, plan)


def exclude(td: NodeT, *keys: str | Path, strict: bool = False) -> NodeT:
    """Return the tree without some entries; those that are not there are ignored.

    A node stays, empty, when all of its entries are excluded.

    Args:
        td: the tree.
        keys: keys or paths.
        strict: raise for an entry that is not there, as `drop` does.

    Raises:
        MissingKeyError: `strict` and an entry is not in the tree.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"n": {"a": 1}, "c": 3}).exclude(("n", "a"), "zzz").keys(True)
        ('n', 'c')
    """
    if td._schema.lazy:
        return _excluded_apart(td, keys, strict=strict)
    return _excluded(td, keys, strict=strict)


def _excluded(td: NodeT, keys: tuple[Any, ...], *, strict: bool) -> NodeT:
    size = td.batch_size
    schema = td._schema
    plan = schema.narrowed_before(keys, keep=False)
    if plan is None:
        paths = [as_path(key) for key in keys]
        here = tuple([path for path in paths if schema.find(path) is not None])
        if strict and len(here) != len(keys):
            raise missing(td, next(path for path in paths if path not in here))
        found = keys if len(here) == len(keys) else ()
        plan = schema.narrowed(here, keep=False, keys=found)
    return rearranged(td, size, plan)


def _selected_apart(td: NodeT, keys: tuple[Any, ...], *, strict: bool) -> NodeT:
    """Select entries of a tree with lazy stacks, and of their members."""
    if type(td).is_lazy:
        if strict:
            check_held(td, [as_path(key) for key in keys])
        return each_member(td, lambda t: select(t, *keys, strict=False))
    paths = [as_path(key) for key in keys]
    inside = apart(td, paths)
    within = {path for group in inside.values() for path in group}
    outer = [path for path in paths if path not in within]
    stacks: dict[Path, list[Path]] = {}
    for stack, group in inside.items():
        if strict:
            check_held(td, group)
        if any([_held(td, path) for path in group]):
            stacks[stack] = [path[len(stack) :] for path in group]
    out = _selected(td, (*outer, *stacks), strict=strict)
    for stack, group in stacks.items():
        if not any([stack[: len(path)] == path for path in outer]):
            members = select(entry_at(td, stack), *group, strict=False)
            out = set(out, stack, members)
    return out


def _excluded_apart(td: NodeT, keys: tuple[Any, ...], *, strict: bool) -> NodeT:
    """Exclude entries of a tree with lazy stacks, and of their members."""
    paths = [as_path(key) for key in keys]
    if strict:
        check_held(td, paths)
    if type(td).is_lazy:
        return each_member(td, lambda t: exclude(t, *paths))
    inside = apart(td, paths)
    within = {path for group in inside.values() for path in group}
    out = _excluded(td, tuple([p for p in paths if p not in within]), strict=False)
    for stack, group in inside.items():
        if stack in out:
            own = [path[len(stack) :] for path in group]
            out = set(out, stack, exclude(entry_at(td, stack), *own))
    return out


def apart(td: Node, paths: Iterable[Path]) -> dict[Path, list[Path]]:
    """Return the paths that lead into lazy stacks below the root, by their stack."""
    groups: dict[Path, list[Path]] = {}
    for path in paths:
        inside = td._schema.lazy_on(path)
        if inside > 0:
            groups.setdefault(path[:inside], []).append(path)
    return groups


def check_held(td: Node, paths: Iterable[Path], fix: str | None = None) -> None:
    """Raise if an entry is not there, and in no member if it is in a lazy stack."""
    for path in paths:
        if not _held(td, path):
            raise missing(td, path, fix)


def _held(td: Node, path: Path) -> bool:
    pending: list[tuple[Any, Path]] = [(td, path)]
    while pending:
        node, rest = pending.pop()
        inside = node._schema.lazy_on(rest)
        if inside < 0:
            if node._schema.find(rest) is not None:
                return True
            continue
        stack = entry_at(node, rest[:inside]) if inside else node
        pending += [(tree, rest[inside:]) for tree in stack._leaves[0].trees]
    return False


def rearranged(td: NodeT, size: torch.Size, plan: Narrowed | Moved) -> NodeT:
    """Return the tree of the entries that a plan of its schema takes.

    `size` is the batch size, read before the schema that made the plan.
    """
    schema, slots, sslots = plan[:3]
    if schema.records:
        check_fields(td._schema, schema)
    leaves = tuple([td._leaves[slot] for slot in slots])
    statics = td._statics
    if sslots != tuple(range(statics.count)):
        statics = gather_statics([(statics, slot) for slot in sslots])
    return make(schema, leaves, statics, size, td._names)


def with_batch_size(td: NodeT, batch_size: Size) -> NodeT:
    """Return the same leaves read with another batch size.

    Nested nodes with the batch size of their parent follow it; those with more
    batch dims keep theirs. Names of dims that stay are kept.

    Args:
        td: the tree.
        batch_size: a size with which every leaf starts.

    Raises:
        BatchSizeError: a leaf does not start with it.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": torch.zeros(3, 4)})
        >>> td.with_batch_size([3, 4]).batch_size
        torch.Size([3, 4])
    """
    size = as_size(batch_size)
    old = td.batch_size
    dims = len(size)
    if type(td).is_lazy:
        return _members_with_batch_size(td, size)
    for path, leaf in zip(td._schema.paths(), td._leaves, strict=True):
        if isinstance(leaf, (torch.Tensor, LeafLike)) and leaf.shape[:dims] != size:
            raise misfit(path, leaf.shape, size)
    schema = td._schema.rebased(len(old), dims)
    names = td.names
    if names is not None:
        names = (*names[:dims], *(None,) * (dims - len(names)))
    return make(schema, td._leaves, td._statics, size, as_names(names, dims))


def _members_with_batch_size(td: NodeT, size: torch.Size) -> NodeT:
    members = td._leaves[0]
    at, count = members.stack_dim, len(members.trees)
    if len(size) <= at or size[at] != count:
        refuse_lazy(td, "with_batch_size without the stack dim")
    own = (*size[:at], *size[at + 1 :])
    new = members.along("with_batch_size", lambda t, _: with_batch_size(t, own), [])
    dims = len(size)
    names = td.names
    if names is not None:
        names = as_names((*names[:dims], *(None,) * (dims - len(names))), dims)
    return make(td._schema, (new,), td._statics, size, names)


def with_names(td: NodeT, names: DimNames | None) -> NodeT:
    """Return the tree with other names for its batch dims.

    Args:
        td: the tree.
        names: one name (or None) for every batch dim; None removes all names.

    Raises:
        OptionError: the number of names is not that of the batch dims, a name is not
            a non-empty string, or two are equal.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"a": torch.zeros(3)}, 3).with_names(["time"]).names
        ('time',)
    """
    size = td.batch_size
    given = as_names(names, len(size))
    return make(td._schema, td._leaves, td._statics, size, given)
