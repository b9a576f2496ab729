"""Split a tree by leaf and put it back, so that integers never meet `grad`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tdfunc._core.keys import as_path
from tdfunc._core.node import Node, NodeT, make, missing, size_at
from tdfunc._core.schema import STATIC, Schema
from tdfunc._core.statics import NO_STATICS
from tdfunc._ops.entries import update
from tdfunc.errors import OptionError, ShapeError, StructureError, show_path

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["combine", "partition"]

_KINDS: dict[str, Callable[[torch.dtype], bool]] = {
    "floating": lambda dtype: dtype.is_floating_point,
    "complex": lambda dtype: dtype.is_complex,
    "inexact": lambda dtype: dtype.is_floating_point or dtype.is_complex,
    "integer": lambda dtype: (
        not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    ),
    "bool": lambda dtype: dtype == torch.bool,
}

Predicate: TypeAlias = (
    Callable[[Any, torch.Tensor], bool] | torch.dtype | str | Mapping[Any, Any] | Node
)


def partition(td: NodeT, predicate: Predicate) -> tuple[NodeT, NodeT]:
    """Return the tree of the leaves that the predicate takes, and that of the rest.

    ``combine(*partition(td, p))`` has all entries of `td`. Statics, and nodes that
    are empty, go with the rest.

    Args:
        td: the tree.
        predicate: one of

            - a function of path (a tuple of keys) and leaf;
            - a dtype;
            - a kind of dtype: ``"floating"``, ``"complex"``, ``"inexact"`` (both),
              ``"integer"`` or ``"bool"``;
            - a mapping of keys or paths (of leaves or whole nodes) to bools, or a
              nested mapping; what it does not name goes to the rest;
            - a tree with the entries of `td` and bools as leaves.

    Raises:
        MissingKeyError: a mapping names an entry that is not there.
        OptionError: the predicate is something else.
        StructureError: a tree has other entries.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> td = tdfunc.TensorDict({"w": torch.ones(2), "step": torch.tensor(3)})
        >>> diff, rest = tdfunc.partition(td, "inexact")
        >>> diff.keys(), rest.keys()
        (('w',), ('step',))
    """
    size = td.batch_size
    schema = td._schema
    chosen = tuple(_decided(td, predicate))
    (left, lslots), (right, rslots) = schema.parted(chosen)
    first = tuple([td._leaves[i] for i in lslots])
    second = tuple([td._leaves[i] for i in rslots])
    return (
        make(left, first, NO_STATICS, size, td._names),
        make(right, second, td._statics, size, td._names),
    )


def combine(first: NodeT, *others: NodeT) -> NodeT:
    """Return the tree with the entries of several trees that share none.

    Args:
        first: a tree.
        others: trees; nested nodes that several have are merged.

    Returns:
        A tree of the class of the first. Its batch size is that of the trees with
        leaves: inside `vmap`, a tree of statics knows nothing of the mapped dim.

    Raises:
        ShapeError: the batch sizes differ.
        StructureError: two trees have the same entry; all such are listed.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> a, b = tdfunc.TensorDict({"x": 1}), tdfunc.TensorDict({"y": 2})
        >>> tdfunc.combine(a, b).keys()
        ('x', 'y')
    """
    trees = (first, *others)
    sized = [tree for tree in trees if tree._schema.n] or [first]
    size = sized[0].batch_size
    for tree in sized[1:]:
        if tree.batch_size != size:
            raise ShapeError(
                "the trees have other batch sizes",
                expected=list(size),
                got=list(tree.batch_size),
            )
    names = next((tree._names for tree in sized if tree._names is not None), None)
    whole: Any = make(first._schema, first._leaves, first._statics, size, names)
    for tree in others:
        clashes = _clashes(whole._schema, tree._schema)
        if clashes:
            raise StructureError(
                "the trees share entries",
                expected="trees without common entries",
                got=", ".join(map(show_path, clashes)),
                fix="a.update(b) lets the second win",
            )
        same: Any = make(tree._schema, tree._leaves, tree._statics, size, None)
        _check_sizes(whole, same)
        whole = update(whole, same)
    return whole


def _check_sizes(whole: Node, tree: Node) -> None:
    """Raise if a node that both have, with leaves in both, has two batch sizes."""
    for path, kid, *_ in tree._schema.walk():
        found = whole._schema.find(path)
        if not isinstance(kid, Schema) or found is None:
            continue
        if kid.n and isinstance(found.kid, Schema) and found.kid.n:
            size, other = size_at(whole, path), size_at(tree, path)
            if size != other:
                raise ShapeError(
                    "the trees have other batch sizes",
                    path=path,
                    expected=list(size),
                    got=list(other),
                    fix="td.with_batch_size(size) reads one of them anew",
                )


def _clashes(left: Schema, right: Schema) -> list[Path]:
    out: list[Path] = []
    for path, kid, *_ in right.walk():
        found = left.find(path)
        if found is not None:
            if not (isinstance(kid, Schema) and isinstance(found.kid, Schema)):
                out.append(path)
        elif left.blocked(path) == path[:-1]:
            out.append(path)
    return out


def _decided(td: Node, predicate: Any) -> list[bool]:
    paths, leaves = td._schema.paths(), td._leaves
    if isinstance(predicate, torch.dtype):
        return [leaf.dtype == predicate for leaf in leaves]
    if isinstance(predicate, str):
        kind = _KINDS.get(predicate)
        if kind is None:
            raise OptionError(
                "this is no kind of dtype",
                expected=f"one of {', '.join(map(repr, _KINDS))}",
                got=repr(predicate),
            )
        return [kind(leaf.dtype) for leaf in leaves]
    if isinstance(predicate, Node):
        if not td._schema.matches(predicate._schema):
            from_tree = set(predicate._schema.paths()) ^ set(paths)
            raise StructureError(
                "the tree of bools has other entries",
                got=", ".join(map(show_path, sorted(from_tree))),
            )
        return [bool(flag) for flag in predicate._leaves]
    if isinstance(predicate, Mapping):
        return _by_mapping(td, predicate)
    if callable(predicate):
        rows = zip(paths, leaves, strict=True)
        return [bool(predicate(path, leaf)) for path, leaf in rows]
    raise OptionError(
        "a tree can not be split by this",
        expected="a function, a dtype, a kind of dtype, a mapping or a tree of bools",
        got=type(predicate).__name__,
    )


def _by_mapping(td: Node, mapping: Mapping[Any, Any]) -> list[bool]:
    flags: list[bool] = [False] * td._schema.n
    pending: list[tuple[Path, Mapping[Any, Any]]] = [((), mapping)]
    while pending:
        prefix, level = pending.pop()
        for key, value in level.items():
            path = (*prefix, *as_path(key))
            found = td._schema.find(path)
            if found is None:
                raise missing(td, path)
            if isinstance(value, Mapping):
                pending.append((path, value))
            elif found.kid != STATIC:
                for slot in range(found.lo, found.hi):
                    flags[slot] = bool(value)
    return flags
