"""Arguments and results of transforms as flat lists of tensors.

A transform acts on tensors. `flatten` takes any pytree apart into them and a `Layout`
that puts others in their place, with the batch size of every tree given instead of
found: a transform knows which dims it added or took away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from tdfunc._core._torch import pytree
from tdfunc._core.node import Node, make
from tdfunc._core.statics import gather_statics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Layout", "as_places", "flatten", "inexact", "is_tree"]

_Tensor = torch.Tensor
_ONE = object()


def is_tree(value: object) -> bool:
    """Return whether a value is a tree whose leaves are all tensors.

    Others, which hold lazy stacks, go through the pytree functions as any container.
    """
    return isinstance(value, Node) and not value._schema.lazy


def as_places(argnums: Any, count: int) -> list[int]:
    """Return which of `count` positional arguments `argnums` names.

    Raises:
        RuntimeError: what torch.func raises: it names none, or one twice.
    """
    if not isinstance(argnums, (int, tuple)):
        raise RuntimeError(  # noqa: TRY004 - torch's, as all of these
            f"argnums must be int or Tuple[int, ...], got: {type(argnums)}"
        )
    given: Any = argnums if isinstance(argnums, tuple) else (argnums,)
    places: list[int] = []
    for at in given:
        if not isinstance(at, int):
            raise RuntimeError(f"argnum must be int, got: {type(at)}")  # noqa: TRY004
        if not -count <= at < count:
            raise RuntimeError(f"Got argnum={at}, but only {count} positional inputs")
        places.append(at % count)
    if not places:
        raise RuntimeError("argnums must be non-empty")
    if len(set(places)) != len(places):
        raise RuntimeError(f"argnums elements must be unique, got {tuple(places)}")
    return places


def inexact(tree: Node) -> list[bool]:
    """Return for every leaf of a tree whether it can have a gradient."""
    return [
        isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
        for x in tree._leaves
    ]


@final
class Layout:
    """What is left of a pytree without its tensors.

    Attributes:
        spec: the structure around `items`; None if that is a tuple.
        items: the trees, tensors and other objects in it.
        counts: how many tensors each of them has.
        flat: whether none is a tree.
    """

    __slots__ = ("counts", "flat", "items", "spec")

    def __init__(self, spec: Any, items: Sequence[Any]) -> None:
        self.spec = spec
        self.items = tuple(items)
        self.flat = not any([isinstance(item, Node) for item in self.items])
        self.counts = (
            (1,) * len(self.items)
            if self.flat
            else tuple([item._schema.n if is_tree(item) else 1 for item in self.items])
        )

    def rebuilt(
        self,
        leaves: Sequence[Any],
        resized: Callable[[Any], tuple[torch.Size | None, Any]] | None = None,
    ) -> Any:
        """Return the pytree with other tensors.

        Args:
            leaves: as many as there were.
            resized: gives for a tree the batch size (None: it is to be found by the
                rank rule) and the names that it has with its new leaves; None if they
                do not change.
        """
        if self.flat:
            out: Any = tuple(leaves)
        else:
            out = []
            at = 0
            for item, count in zip(self.items, self.counts, strict=True):
                if not is_tree(item):
                    out.append(leaves[at])
                else:
                    size, names = (
                        (item.batch_size, item._names)
                        if resized is None
                        else resized(item)
                    )
                    own = tuple(leaves[at : at + count])
                    out.append(make(item._schema, own, item._statics, size, names))
                at += count
        return self.around(out)

    def around(self, out: Sequence[Any]) -> Any:
        """Return the pytree with other items."""
        if self.spec is None:
            return tuple(out)
        return out[0] if self.spec is _ONE else pytree.tree_unflatten(out, self.spec)

    def reduced(
        self, values: Sequence[Any], chosen: Sequence[bool], front: Sequence[int] = ()
    ) -> Any:
        """Return the pytree with other tensors for the chosen ones, without the rest.

        Args:
            values: one for each that is chosen.
            chosen: which are; all of those that are no leaves of a tree.
            front: a shape that the values have in front of that of the old ones.
        """
        if self.flat:
            return self.around(values)
        items: list[Any] = []
        at = start = 0
        for item, count in zip(self.items, self.counts, strict=True):
            own = chosen[at : at + count]
            at += count
            if not is_tree(item):
                items.append(values[start])
                start += 1
                continue
            size = item.batch_size
            if front:
                size = torch.Size((*front, *size))
            schema, statics = item._schema, item._statics
            if not all(own):
                gone = tuple([i for i, c in enumerate(own) if not c])
                schema, _, sslots = schema.without(gone)
                statics = gather_statics([(statics, slot) for slot in sslots])
            leaves = tuple(values[start : start + schema.n])
            start += schema.n
            items.append(make(schema, leaves, statics, size, item._names))
        return self.around(items)

    def like(self, other: Layout) -> bool:
        """Return whether two pytrees have the same structure around their trees."""
        return len(self.items) == len(other.items) and (
            self.spec is other.spec or self.spec == other.spec
        )

    def matches(self, other: Layout) -> bool:
        """Return whether two pytrees and the trees in them are structured alike."""
        return self.like(other) and all(
            [
                isinstance(x, _Tensor) is isinstance(y, _Tensor)
                and is_tree(x) is is_tree(y)
                and (not is_tree(x) or x._schema.matches(y._schema))
                for x, y in zip(self.items, other.items, strict=True)
            ]
        )


def flatten(values: Any) -> tuple[list[Any], Layout]:
    """Return the tensors in a pytree, and its layout.

    Objects that are no tensors are among them, as pytree functions have it.
    """
    spec: Any = None
    items: Any = values
    if isinstance(values, _Tensor) or is_tree(values):
        items, spec = (values,), _ONE
    elif type(values) is not tuple or not all(
        [isinstance(x, _Tensor) or is_tree(x) for x in values]
    ):
        items, spec = pytree.tree_flatten(values, is_leaf=is_tree)
        if len(items) == 1 and items[0] is values:
            spec = _ONE
    layout = Layout(spec, items)
    if layout.flat:
        return list(items), layout
    leaves: list[Any] = []
    for item in items:
        if is_tree(item):
            item.batch_size  # noqa: B018 - settles, so that the schema is the true one
            leaves += item._leaves
        else:
            leaves.append(item)
    return leaves, layout
