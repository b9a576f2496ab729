"""Split a tree by leaf and put it back, so that integers never meet `grad`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from tdfunc._core.node import Node, NodeT, make, missing
from tdfunc._core.picking import named
from tdfunc._core.statics import NO_STATICS
from tdfunc._core.tree import refuse_lazy
from tdfunc._ops.restructure import merge
from tdfunc.errors import OptionError, StructureError, show_path

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

# The way back, by the name under which JAX users look for it.
combine = merge

Predicate: TypeAlias = (
    Callable[[Any, torch.Tensor], bool] | torch.dtype | str | Mapping[Any, Any] | Node
)


def partition(td: NodeT, predicate: Predicate) -> tuple[NodeT, NodeT]:
    """Return the tree of the leaves that the predicate takes, and that of the rest.

    ``combine(*partition(td, p))`` has all entries of `td`. Statics, rows of values, and
    nodes that are empty, go with the rest.

    Args:
        td: the tree.
        predicate: one of

            - a function of path (a tuple of keys) and leaf;
            - a dtype;
            - a kind of dtype: ``"floating"``, ``"complex"``, ``"inexact"`` (both),
              ``"integer"`` or ``"bool"``;
            - a mapping of keys or paths (of leaves or whole nodes), or of patterns
              such as ``"enc/**"`` and ``"**/bias"``, to bools, or a nested mapping;
              later entries win, and what it does not name goes to the rest;
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
    refuse_lazy(td, "partition")
    size = td.batch_size
    schema = td._schema
    chosen = decided(td, predicate)
    for slot in schema.rows:
        chosen[slot] = False
    chosen = tuple(chosen)
    (left, lslots), (right, rslots) = schema.parted(chosen)
    first = tuple([td._leaves[i] for i in lslots])
    second = tuple([td._leaves[i] for i in rslots])
    return (
        make(left, first, NO_STATICS, size, td._names),
        make(right, second, td._statics, size, td._names),
    )


def decided(td: Node, predicate: Any) -> list[bool]:
    """Return for every leaf whether the predicate of `partition` takes it."""
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
        skipped = frozenset(td._schema.rows)
        return [
            at not in skipped and bool(predicate(path, leaf))
            for at, (path, leaf) in enumerate(rows)
        ]
    raise OptionError(
        "a tree can not be split by this",
        expected="a function, a dtype, a kind of dtype, a mapping or a tree of bools",
        got=type(predicate).__name__,
    )


def _by_mapping(td: Node, mapping: Mapping[Any, Any]) -> list[bool]:
    flags = named(mapping)
    names, schema = tuple(flags), td._schema
    found, unused = schema.picked(names)
    for at in unused:
        # What names a static, or a node without tensors, is there.
        if schema.find(names[at]) is None:
            raise missing(
                td, names[at], "td.keys(leaves_only=True) has all that can be named"
            )
    values = (*flags.values(), False)
    return [bool(values[at]) for at in found]
