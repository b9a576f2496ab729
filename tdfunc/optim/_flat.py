"""The tensors of any pytree as one list, and the pytree of other tensors again.

A tree of tdfunc is read directly, anything else through torch's pytree. What is no
parameter stays where it is: None, and rows of values, whose codes are no numbers.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tdfunc._core._torch import pytree
from tdfunc._core.mismatch import check_same_entries
from tdfunc._core.node import Node
from tdfunc._core.tree import with_leaves
from tdfunc.errors import OperandError, ShapeError, StructureError, show_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tdfunc.typing import Path

__all__ = [
    "Flat",
    "Kinds",
    "check_alike",
    "check_numbers",
    "flatten",
    "is_real",
    "kinds",
    "shapes",
    "shapes_and_dtypes",
]

# What every leaf is asked on every step, in loops in C. Only what may differ between
# tensors on the CPU: which other device a tensor is on is asked where there is one.
_SHAPE = attrgetter("shape")
_DTYPE = attrgetter("dtype")
_IS_CPU = attrgetter("is_cpu")
_NEEDS = attrgetter("requires_grad")
_SHAPE_AND_DTYPE = attrgetter("shape", "dtype")
_REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def shapes(tensors: Sequence[Any]) -> list[Any]:
    """Return the shape of every tensor."""
    return list(map(_SHAPE, tensors))


class Kinds(NamedTuple):
    """All that occurs among the tensors of several lists."""

    dtypes: set[torch.dtype]
    on_cpu: set[bool]
    needs: set[bool]  # requires_grad


def kinds(columns: Sequence[Sequence[Any]]) -> Kinds:
    """Return what kinds of tensors there are."""
    # A set for each attribute: tuples of them cost twice as much to hash as to read.
    found = Kinds(set(), set(), set())
    for tensors in columns:
        found.dtypes.update(map(_DTYPE, tensors))
        found.on_cpu.update(map(_IS_CPU, tensors))
        found.needs.update(map(_NEEDS, tensors))
    return found


def shapes_and_dtypes(tensors: Sequence[Any]) -> list[Any]:
    """Return shape and dtype of every tensor."""
    return list(map(_SHAPE_AND_DTYPE, tensors))


def is_real(rows: Iterable[Any]) -> bool:
    """Return whether all shapes and dtypes are of tensors of real numbers."""
    return _REAL.issuperset([row[1] for row in rows])


class Flat:
    """The tensors of a pytree, and what makes the pytree again."""

    __slots__ = ("_all", "_places", "_spec", "_tree", "tensors")

    def __init__(
        self,
        tensors: list[Any],
        tree: Any,
        spec: Any,
        everything: Sequence[Any],
        places: tuple[int, ...] | None,
    ) -> None:
        self.tensors = tensors
        self._tree = tree
        self._spec = spec  # None for a tree of tdfunc that is read directly
        self._all = everything
        self._places = places  # of the tensors among all leaves; None: everywhere

    def closed(self, tensors: Sequence[Any]) -> Any:
        """Return the pytree with other tensors."""
        if self._places is not None:
            leaves = list(self._all)
            for at, new in zip(self._places, tensors, strict=True):
                leaves[at] = new
        else:
            leaves = list(tensors)
        if self._spec is None:
            return with_leaves(self._tree, tuple(leaves))
        return pytree.tree_unflatten(leaves, self._spec)

    def structure(self) -> Any:
        """Return what decides the paths: equal for pytrees with equal paths."""
        spec = self._tree._schema if self._spec is None else self._spec
        return spec if self._places is None else (spec, self._places)

    def paths(self) -> list[Path]:
        """Return the path of every tensor, as keys."""
        if self._spec is None:
            paths = list(self._tree._schema.paths())
        else:
            rows, _ = pytree.tree_flatten_with_path(self._tree)
            paths = [_as_path(keys) for keys, _ in rows]
        return paths if self._places is None else [paths[at] for at in self._places]


def flatten(tree: Any) -> Flat:
    """Return the tensors of a pytree in order."""
    if isinstance(tree, Node):
        schema, leaves = tree._schema, tree._leaves
        if schema.plain:
            return Flat(list(leaves), tree, None, leaves, None)
        if not schema.lazy:
            rows = schema.rows
            places = tuple([i for i in range(schema.n) if i not in rows])
            return Flat([leaves[i] for i in places], tree, None, leaves, places)
    leaves, spec = pytree.tree_flatten(tree)
    if any([leaf is None for leaf in leaves]):
        places = tuple([i for i, leaf in enumerate(leaves) if leaf is not None])
        return Flat([leaves[i] for i in places], tree, spec, leaves, places)
    return Flat(leaves, tree, spec, leaves, None)


def _as_path(keys: tuple[Any, ...]) -> Path:
    """Return a key path of torch's pytree as keys."""
    path: list[str] = []
    for entry in keys:
        key = next(
            getattr(entry, name)
            for name in ("key", "idx", "name")
            if hasattr(entry, name)
        )
        path += map(str, key) if isinstance(key, tuple) else [str(key)]
    return tuple(path)


def check_numbers(flat: Flat, call: str) -> None:
    """Raise unless all leaves are tensors of a floating or complex dtype.

    Raises:
        OperandError: naming the first that is not.
    """
    for at, leaf in enumerate(flat.tensors):
        if not isinstance(leaf, torch.Tensor):
            got, what = type(leaf).__name__, "only tensors can be optimized"
        elif not (leaf.is_floating_point() or leaf.is_complex()):
            got, what = leaf.dtype, "integers and booleans have no gradient"
        else:
            continue
        raise OperandError(
            f"{call}: {what}",
            path=flat.paths()[at],
            expected="a tensor of a floating or complex dtype",
            got=got,
            fix='params, rest = tdfunc.partition(params, "inexact") splits them off, '
            "tdfunc.combine(params, rest) puts them back",
        )


_INIT = "state = tx.init(params) makes the state for params"
# A message is read by a person.
_SHOWN = 10


def check_alike(
    first: Flat,
    other: Flat,
    call: str,
    names: str,
    *,
    shapes: bool = True,
    fix: str | None = _INIT,
) -> None:
    """Raise unless two pytrees have the same structure, and shapes if they are asked.

    Raises:
        ShapeError: a leaf has another shape.
        StructureError: they have other entries, or are of other kinds.
    """
    a, b = first._tree, other._tree
    if first._spec is None and other._spec is None:
        if not a._schema.matches(b._schema):
            check_same_entries([a, b], f"{call}: {names} have other entries")
    elif first._spec != other._spec:
        raise _other_structure(first, other, f"{call}: {names}", fix)
    if not shapes:
        return
    pairs = zip(first.tensors, other.tensors, strict=True)
    for at, (x, y) in enumerate(pairs):
        if x.shape != y.shape:
            raise ShapeError(
                f"{call}: {names} have other shapes",
                path=first.paths()[at],
                expected=list(x.shape),
                got=list(y.shape),
                fix=fix,
            )


def _other_structure(
    first: Flat, other: Flat, what: str, fix: str | None
) -> StructureError:
    """Return the error that says by path how two pytrees differ."""
    ours, theirs = first.paths(), other.paths()
    left, right = set(ours), set(theirs)
    lines = [f"{show_path(path)} is missing" for path in ours if path not in right]
    lines += [f"{show_path(path)} is extra" for path in theirs if path not in left]
    if lines:
        more = len(lines) - _SHOWN
        shown = lines[:_SHOWN] + ([f"and {more} more"] if more > 0 else [])
        return StructureError(
            f"{what} have other entries",
            expected="the entries of the first",
            got=", ".join(shown),
            fix=fix,
        )
    pairs = zip(ours, theirs, strict=True)
    path = next((one for one, two in pairs if one != two), None)
    if path is not None and type(first._tree) is type(other._tree):
        return StructureError(
            f"{what} have the same entries in another order",
            path=path,
            expected=f"the order {_listed(ours)}",
            got=_listed(theirs),
            fix="{key: other[key] for key in params} has the order of params; "
            "tdfunc.TensorDict(params) has none",
        )
    return StructureError(
        f"{what} are pytrees of other structure",
        expected=first._spec or type(first._tree).__name__,
        got=other._spec or type(other._tree).__name__,
        fix=fix,
    )


def _listed(paths: Sequence[Path]) -> str:
    shown = ", ".join([".".join(path) for path in paths[:_SHOWN]])
    return shown + (", ..." if len(paths) > _SHOWN else "")
