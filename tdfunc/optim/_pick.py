"""Other transformations for other leaves: by path, by shape, by a tree of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from tdfunc._core._torch import is_tracing
from tdfunc._core.keys import short
from tdfunc._core.node import Node, make
from tdfunc._core.picking import named, picked
from tdfunc._core.statics import NO_STATICS
from tdfunc.errors import (
    MissingKeyError,
    OperandError,
    OptionError,
    StructureError,
    nearest,
    show_path,
)
from tdfunc.optim._base import GradientTransformation, check_state, init_flat
from tdfunc.optim._flat import flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc.optim._flat import Flat
    from tdfunc.typing import Path

__all__ = ["MaskedNode", "MultiState", "masked", "multi_transform"]

Rule: TypeAlias = Callable[[Any, Any], Any] | Mapping[Any, Any] | Any
"""What belongs to which leaf: see `masked`."""


class MaskedNode(NamedTuple):
    """Stands where a leaf is left out; a pytree without leaves."""


class MultiState(NamedTuple):
    """The states by label."""

    inner: dict[str, Any]


def masked(tx: GradientTransformation, mask: Rule) -> GradientTransformation:
    """Return the transformation that is `tx` on some leaves, and nothing on the rest.

    The gradients of the rest are passed on as they are. `tx` does not see them, and
    its state has nothing for them.

    Args:
        tx: the transformation.
        mask: which leaves: one of

            - a function of path (a tuple of keys) and leaf, called with whatever is at
              hand, parameters or gradients: look at the path and the shape only;
            - a mapping of keys or paths (of leaves or of whole nodes), or of patterns
              such as ``"enc/**"`` and ``"**/bias"``, to bools, or a nested mapping;
              later entries win, and what it does not name is left out;
            - a tree, or any pytree, of bools, with the structure of the parameters.

    Raises:
        MissingKeyError: a mapping names an entry that is not there.
        OptionError: `mask` is something else.
        StructureError: a tree of bools has another structure.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> from tdfunc import optim
        >>> params = tdfunc.TensorDict({"w": torch.ones(2, 2), "b": torch.ones(2)})
        >>> tx = optim.masked(optim.add_decayed_weights(0.1), lambda _, x: x.dim() > 1)
        >>> updates, _ = tx.update(params * 0, tx.init(params), params)
        >>> updates["w"][0].tolist(), updates["b"].tolist()
        ([0.10000000149011612, 0.10000000149011612], [0.0, 0.0])
    """
    mask = _settled(mask)

    def flags(flat: Flat) -> list[bool]:
        return [bool(x) for x in assigned(flat, mask, default=False)]

    def init(params: Any, /) -> Any:
        flat = init_flat(params, "masked.init")
        return tx.init(_picked(params, flags(flat)))

    def update(grads: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        flat = flatten(grads)
        chosen = flags(flat)
        given = None if params is None else _picked(params, chosen)
        updates, new = tx.update(_picked(grads, chosen), state, given)
        tensors = list(flat.tensors)
        _place(tensors, chosen, updates)
        return flat.closed(tensors), new

    return GradientTransformation(init, update)


def multi_transform(
    transformations: Mapping[str, GradientTransformation], labels: Rule
) -> GradientTransformation:
    """Return the transformation that treats every leaf by its label.

    Args:
        transformations: labels to transformations.
        labels: what label a leaf has, in one of the forms of `masked` with labels
            instead of bools. In a mapping later entries win, nested or not; every leaf
            needs a label.

    Raises:
        MissingKeyError: a mapping names an entry that is not there.
        OptionError: a leaf has no label, or one without a transformation.
        StructureError: a pytree of labels has another structure.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> from tdfunc import optim
        >>> params = tdfunc.TensorDict(body={"w": torch.ones(2)}, head=torch.ones(2))
        >>> tx = optim.multi_transform(
        ...     {"slow": optim.sgd(0.1), "frozen": optim.set_to_zero()},
        ...     {"body": "frozen", "head": "slow"},
        ... )
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> updates["body", "w"].tolist(), updates["head"]
        ([0.0, 0.0], tensor([-0.1000, -0.1000]))
    """
    known = dict(transformations)
    labels = _settled(labels)

    def groups(flat: Flat) -> dict[str, list[bool]]:
        found = assigned(flat, labels, default=None)
        if any([label not in known for label in found]):
            at = next(i for i, label in enumerate(found) if label not in known)
            path = flat.paths()[at]
            raise OptionError(
                "a leaf has no label"
                if found[at] is None
                else "there is no transformation for a label",
                path=path,
                expected=f"one of {', '.join(map(repr, known))}",
                got=repr(found[at]),
                fix=f"labels={{{short(path)!r}: {next(iter(known), '')!r}, ...}}",
            )
        return {label: [x == label for x in found] for label in known}

    def init(params: Any, /) -> MultiState:
        chosen = groups(init_flat(params, "multi_transform.init"))
        return MultiState(
            {
                label: known[label].init(_picked(params, flags))
                for label, flags in chosen.items()
            }
        )

    def update(
        grads: Any, state: MultiState, params: Any = None, /
    ) -> tuple[Any, MultiState]:
        check_state(state, MultiState, "multi_transform")
        if state.inner.keys() != known.keys():
            raise OperandError(
                "the state is not that of this multi_transform",
                expected=f"states of {', '.join(map(repr, known))}",
                got=", ".join(map(repr, state.inner)),
                fix="state = tx.init(params)",
            )
        flat = flatten(grads)
        tensors = list(flat.tensors)
        inner: dict[str, Any] = {}
        for label, flags in groups(flat).items():
            given = None if params is None else _picked(params, flags)
            part = _picked(grads, flags)
            updates, inner[label] = known[label].update(part, state.inner[label], given)
            _place(tensors, flags, updates)
        return flat.closed(tensors), MultiState(inner)

    return GradientTransformation(init, update)


def assigned(flat: Flat, rule: Rule, default: Any) -> list[Any]:
    """Return what a rule says about every tensor of a pytree, in order."""
    if isinstance(rule, Node):
        return _by_path(flat, flatten(rule))
    if isinstance(rule, _Names):
        return rule.of(flat, default)
    if callable(rule):
        rows = zip(flat.paths(), flat.tensors, strict=True)
        return [rule(path, leaf) for path, leaf in rows]
    if isinstance(rule, (str, bool)) or rule is None:
        raise OptionError(
            "this does not say which leaves",
            expected="a function, a mapping, or a tree",
            got=repr(rule),
            fix=f"lambda path, leaf: {rule!r} is the same for all",
        )
    return _by_path(flat, flatten(rule))


def _settled(rule: Rule) -> Rule:
    """Return a rule as it is now, whatever becomes of a mapping."""
    if isinstance(rule, Node) or not isinstance(rule, Mapping):
        return rule
    return _Names(rule)


def _by_path(flat: Flat, other: Flat) -> list[Any]:
    """Return the leaves of one pytree in the order of those of another."""
    paths = flat.paths()
    found = dict(zip(other.paths(), other.tensors, strict=True))
    if found.keys() != set(paths):
        differ = ", ".join([show_path(p) for p in sorted(found.keys() ^ set(paths))])
        raise StructureError(
            "the tree of masks or labels has other entries",
            got=f"only one of them has {differ}",
        )
    return [found[path] for path in paths]


class _Names:
    """What a mapping says about leaves, looked up once for each structure."""

    __slots__ = ("_last", "_named")

    def __init__(self, rule: Mapping[Any, Any]) -> None:
        self._named = named(rule)
        self._last: tuple[Any, list[Any]] | None = None

    def of(self, flat: Flat, default: Any) -> list[Any]:
        """Return what the last entry for a leaf, or a node above it, says."""
        if is_tracing():
            return self._found(flat.paths(), default)
        last, structure = self._last, flat.structure()
        if last is not None and (last[0] is structure or last[0] == structure):
            return last[1]
        found = self._found(flat.paths(), default)
        self._last = (structure, found)
        return found

    def _found(self, paths: Sequence[Path], default: Any) -> list[Any]:
        names, values = list(self._named), (*self._named.values(), default)
        found, unused = picked(paths, names)
        if unused:
            raise MissingKeyError(
                "a mask or label is for an entry that is not there",
                path=names[unused[0]],
                expected=nearest(
                    ".".join(names[unused[0]]), [".".join(each) for each in paths]
                ),
            )
        return [values[at] for at in found]


def _picked(tree: Any, flags: Sequence[bool]) -> Any:
    """Return the pytree with only some of its tensors."""
    if isinstance(tree, Node) and not tree._schema.lazy:
        size = tree.batch_size
        schema = tree._schema
        of_leaf = iter(flags)
        # Rows of values are no parameters: flatten leaves them out.
        chosen = tuple(
            [i not in schema.rows and next(of_leaf) for i in range(schema.n)]
        )
        (part, slots), _ = schema.parted(chosen)
        leaves = tuple([tree._leaves[i] for i in slots])
        return make(part, leaves, NO_STATICS, size, tree._names)
    flat = flatten(tree)
    kept = zip(flat.tensors, flags, strict=True)
    return flat.closed([x if flag else MaskedNode() for x, flag in kept])


def _place(tensors: list[Any], flags: Sequence[bool], updates: Any) -> None:
    """Write the tensors of a picked pytree back to where they were picked."""
    news = iter(flatten(updates).tensors)
    for at, flag in enumerate(flags):
        if flag:
            tensors[at] = next(news)


torch.serialization.add_safe_globals([MaskedNode, MultiState])
