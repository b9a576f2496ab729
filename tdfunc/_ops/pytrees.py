"""Any pytree of tensors as a tree, and exactly back."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tdfunc._core.node import Node, entry_at
from tdfunc._core.schema import Schema
from tdfunc._core.statics import NonTensorData
from tdfunc._ops.convert import from_dict
from tdfunc._ops.from_python import fields_of
from tdfunc.errors import OperandError, StructureError, show_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tdfunc.typing import Path, Size

__all__ = ["PyTreeDef", "from_pytree", "to_pytree"]


class Level(NamedTuple):
    """One container of a pytree: where it is in the tree, and what it was."""

    path: Path
    keys: tuple[str, ...]  # of its children in the tree
    own: tuple[Any, ...] | None  # the keys of a mapping as they were
    kind: type[Any]
    template: Any  # an empty one of its kind, where the class alone does not do


class PyTreeDef:
    """What a pytree was before `from_pytree` made a tree of it. Immutable.

    Equal for pytrees of the same containers and keys; `to_pytree` takes it.
    """

    __slots__ = ("_levels",)

    _levels: tuple[Level, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PyTreeDef):
            return NotImplemented
        return self._shown() == other._shown()

    def __hash__(self) -> int:
        return hash(self._shown())

    def _shown(self) -> tuple[Any, ...]:
        """Return what is compared: not the templates, whose `==` is the user's."""
        return tuple([level[:-1] for level in self._levels])

    def __repr__(self) -> str:
        rows = [f"{show_path(row.path)}: {row.kind.__name__}" for row in self._levels]
        return f"PyTreeDef({', '.join(rows)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _treedef, (self._levels,)


def _treedef(levels: tuple[Level, ...]) -> PyTreeDef:
    treedef = object.__new__(PyTreeDef)
    treedef._levels = levels
    return treedef


def from_pytree(
    pytree: Any,
    *,
    batch_size: Size | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
) -> tuple[Any, PyTreeDef]:
    """Return the tree of a pytree, and what `to_pytree` needs to make it again.

    ``to_pytree(*from_pytree(x))`` is `x` to the last type: lists, tuples, named tuples,
    `torch.return_types`, dicts and subclasses of them become nodes with the keys
    ``"0"``, ``"1"``, ... or their own, as text where they are no strings. Tensors are
    leaves, trees nodes. All else (None, strings, numbers, arrays, objects) is kept
    as it is, as a static: a transform does not see it. What a subclass has as
    attributes is shared, not copied.

    Args:
        pytree: a container of those kinds, nested as deep as you like, or a tree.
        batch_size: as in `from_dict`, like the rest.
        auto_batch_size: infer the batch size.
        batch_dims: infer it, with at most this many dims in every node.

    Raises:
        OperandError: `pytree` itself is no container.
        StructureError: a container contains itself.
        TdfuncError: what `from_dict` raises.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> td, treedef = tdfunc.from_pytree([torch.ones(2), {3: torch.zeros(2)}])
        >>> td.keys(True, True)
        ('0', ('1', '3'))
        >>> tdfunc.to_pytree(td * 2, treedef)
        [tensor([2., 2.]), {3: tensor([0., 0.])}]
    """
    if isinstance(pytree, Node):
        td = pytree
        if batch_size is not None or auto_batch_size or batch_dims is not None:
            td = from_dict(
                pytree,
                batch_size=batch_size,
                auto_batch_size=auto_batch_size,
                batch_dims=batch_dims,
            )
        return td, _treedef(())
    first = _opened(pytree)
    if first is None:
        raise OperandError(
            "this is no container",
            expected="a list, a tuple, a dict or a tree",
            got=type(pytree).__name__,
            fix="tdfunc.from_pytree([value])",
        )
    levels: list[Level] = []
    root: dict[str, Any] = {}

    def enter(path: Path, value: Any, opened: _Opened) -> Iterator[tuple[str, Any]]:
        own, values, template = opened
        keys = tuple(map(str, range(len(values)))) if own is None else _texts(own)
        if fields_of(value) is not None:
            own = None
        levels.append(Level(path, keys, own, type(value), template))
        return iter(zip(keys, values, strict=True))

    stack: list[tuple[Path, dict[str, Any], Iterator[tuple[str, Any]], int]] = [
        ((), root, enter((), pytree, first), id(pytree))
    ]
    inside = {id(pytree)}
    while stack:
        above, entries, rest, own_id = stack[-1]
        for key, item in rest:
            path = (*above, key)
            opened = _opened(item)
            if opened is None:
                kept = isinstance(item, (torch.Tensor, Node))
                entries[key] = item if kept else NonTensorData(item)
                continue
            if id(item) in inside:
                raise StructureError("a container contains itself", path=path)
            inside.add(id(item))
            entries[key] = node = {}
            stack.append((path, node, enter(path, item, opened), id(item)))
            break
        else:
            stack.pop()
            inside.discard(own_id)
    td = from_dict(
        root,
        batch_size=batch_size,
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
    )
    return td, _treedef(tuple(levels))


class _Opened(NamedTuple):
    own: tuple[Any, ...] | None
    values: tuple[Any, ...]
    template: Any


def _opened(value: Any) -> _Opened | None:
    """Return keys, children and an empty copy of a container, None if it is none."""
    kind = type(value)
    names = fields_of(value)
    if names is not None:
        attributes = dict(getattr(value, "__dict__", {}))
        return _Opened(names, tuple(value), attributes)
    if isinstance(value, tuple):
        return _Opened(None, tuple(value), dict(getattr(value, "__dict__", {})))
    if not isinstance(value, (list, dict)):
        return None
    own, values = None, tuple(value)
    if isinstance(value, dict):
        base = _base(kind)
        own, values = tuple(base.keys(value)), tuple(base.values(value))
    if kind in {list, dict}:
        return _Opened(own, values, None)
    # A copy keeps what a subclass adds: a default factory, attributes. Its own `clear`
    # could reach through these into the original.
    template = copy.copy(value)
    _base(kind).clear(template)
    return _Opened(own, values, template)


def _base(kind: type[Any]) -> Any:
    """Return the builtin class that stores what a subclass holds."""
    return next(base for base in (OrderedDict, dict, list) if issubclass(kind, base))


def _texts(own: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the keys of a mapping as distinct non-empty strings."""
    taken = {key for key in own if type(key) is str and key}
    keys: list[str] = []
    for key in own:
        if type(key) is str and key:
            keys.append(key)
            continue
        text = str(key) or "_"
        while text in taken:
            text += "_"
        taken.add(text)
        keys.append(text)
    return tuple(keys)


def to_pytree(td: Node, treedef: PyTreeDef) -> Any:
    """Return the pytree that `treedef` describes, with the tensors and statics of `td`.

    Args:
        td: the tree that `from_pytree` made, or what became of it: the same entries.
        treedef: what `from_pytree` gave with it.

    Raises:
        OperandError: `treedef` is something else.
        StructureError: the tree does not have the entries of `treedef`.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> td, treedef = tdfunc.from_pytree((torch.ones(2), None))
        >>> tdfunc.to_pytree(td, treedef)
        (tensor([1., 1.]), None)
    """
    if not isinstance(treedef, PyTreeDef):
        raise OperandError(
            "only a tree definition says what the pytree was",
            expected="what from_pytree returned with the tree",
            got=type(treedef).__name__,
            fix="td, treedef = tdfunc.from_pytree(pytree)",
        )
    if not treedef._levels:
        return td
    built: dict[Path, Any] = {}
    # Children come after their parents: from the end, every child is there.
    for level in reversed(treedef._levels):
        _check_level(td, level)
        values: list[Any] = []
        for key in level.keys:
            path = (*level.path, key)
            values.append(built.pop(path) if path in built else entry_at(td, path))
        built[level.path] = _closed(level, values)
    return built[()]


def _check_level(td: Node, level: Level) -> None:
    keys = td._schema.keys
    if level.path:
        found = td._schema.find(level.path)
        keys = found.kid.keys if found and isinstance(found.kid, Schema) else ()
    if len(keys) != len(level.keys) or set(keys) != set(level.keys):
        raise StructureError(
            "the tree does not have the entries of the pytree",
            path=level.path,
            expected=f"the keys {list(level.keys)}",
            got=f"the keys {list(keys)}",
            fix="td, treedef = tdfunc.from_pytree(pytree) makes them together",
        )


def _closed(level: Level, values: list[Any]) -> Any:
    """Return the container with these children."""
    kind, template = level.kind, level.template
    if kind is list:
        return values
    if kind is dict:
        return dict(zip(level.own or (), values, strict=True))
    if issubclass(kind, tuple):
        return _closed_tuple(kind, template, values)
    new = copy.copy(template)
    base = _base(kind)
    if level.own is None:
        base.extend(new, values)
    else:
        for key, value in zip(level.own, values, strict=True):
            base.__setitem__(new, key, value)
    return new


def _closed_tuple(kind: Any, template: Any, values: list[Any]) -> Any:
    if kind is tuple:
        return tuple(values)
    if hasattr(kind, "n_sequence_fields"):
        return kind(values)
    new: Any = tuple.__new__(kind, values)
    if template:
        vars(new).update(template)
    return new
