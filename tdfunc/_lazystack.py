"""Lazy stacks: trees that are not alike, seen as one tree with one more batch dim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self, final

import torch

from tdfunc._core.keys import as_path, is_key, short
from tdfunc._core.node import Node, missing, settled_size
from tdfunc._core.statics import NO_STATICS
from tdfunc._ops import lazy
from tdfunc._ops.members import Members
from tdfunc._tensordict import Tree
from tdfunc.errors import MissingKeyError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tdfunc.typing import Path

__all__ = ["LazyStackedTensorDict"]


@final
class LazyStackedTensorDict(Tree, lazy=True):
    """Trees along one batch dim, kept apart: keys and shapes may differ.

    `tdfunc.lazy_stack` makes one, and takes the same arguments by name. Only the
    entries that all members have are visible; reading one stacks it. Operations that
    act on leaves act on every member, so entries that some members lack are there
    afterwards too; ``stack[i]`` along the stack dim is the member itself.

    Args:
        tds: the members, trees with equally many batch dims.
        stack_dim: the batch dim along which they lie.
        stack_dim_name: its name.

    Raises:
        OperandError: there are no members, or something else than trees.
        ShapeError: the members have not equally many batch dims, or there is no such
            `stack_dim`.

    Examples:
        >>> import torch
        >>> from tdfunc import LazyStackedTensorDict, TensorDict
        >>> a, b = TensorDict(x=torch.ones(2)), TensorDict(x=torch.ones(3), y=1)
        >>> stack = LazyStackedTensorDict(a, b)
        >>> stack.batch_size, stack.keys(), (stack * 2)[1]["y"]
        (torch.Size([2]), ('x',), tensor(2))
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> NoReturn:
        del kwargs
        raise TypeError("LazyStackedTensorDict is final")

    def __init__(
        self, *tds: Node, stack_dim: int = 0, stack_dim_name: str | None = None
    ) -> None:
        made = lazy.lazy_stack(tds, stack_dim, name=stack_dim_name)
        self._schema = made._schema
        self._leaves = made._leaves
        self._statics = NO_STATICS
        self._batch_size = made._batch_size
        self._names = made._names

    @property
    def _members(self) -> Members:
        return self._leaves[0]

    @property
    def tensordicts(self) -> tuple[Any, ...]:
        """The members, as they were given."""
        return self._members.trees

    @property
    def stack_dim(self) -> int:
        """The batch dim along which the members lie."""
        return self._members.stack_dim

    @property
    def batch_size(self) -> torch.Size:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The batch size of the members with the stack dim; -1 where they differ."""
        # Without members while an operation looks at the rest of a tree, and with
        # something else in trees of dims.
        held = self._leaves[0] if self._leaves else None
        return held.shape if isinstance(held, Members) else settled_size(self)

    # Reading

    def __getitem__(self, key: Any) -> Any:
        """Return an entry that all members have, stacked, or the stack at an index."""
        if not is_key(key):
            return self._at_index(key)
        path = as_path(key)
        found = self.get(path, _ABSENT)
        if found is _ABSENT:
            raise self._missing(path)
        return found

    get = lazy.get  # pyright: ignore[reportAssignmentType]

    def _missing(self, path: Path) -> Exception:
        trees = self.tensordicts
        lacking = [i for i, tree in enumerate(trees) if path not in tree]
        if lacking:
            error = missing(trees[lacking[0]], path)
            if not isinstance(error, MissingKeyError):
                return error
        shared = self.keys(len(path) > 1)
        key = short(path)
        return MissingKeyError(
            "not all members of the lazy stack have such an entry"
            if len(lacking) < len(trees)
            else "no member of the lazy stack has such an entry",
            path=path,
            expected=f"one of {shared}, which all members have"
            if shared
            else "no key: the members share none",
            got=f"members {lacking} of {len(trees)} lack it",
            fix=f"td.get({key!r}, default), or "
            f"[t.get({key!r}) for t in td.tensordicts]",
        )

    def __contains__(self, key: object) -> bool:
        """Return whether all members have an entry at a key or path."""
        trees = self.tensordicts
        return bool(trees) and all([key in tree for tree in trees])

    def keys(
        self,
        include_nested: bool = False,  # noqa: FBT001, FBT002 - the peer's signature
        leaves_only: bool = False,  # noqa: FBT001, FBT002
        *,
        sort: bool = False,
    ) -> tuple[Any, ...]:
        """Return the keys that all members have, in the order of the first."""
        trees = self.tensordicts
        if not trees:
            return ()
        listed = [t.keys(include_nested, leaves_only, sort=sort) for t in trees]
        others = [frozenset(keys) for keys in listed[1:]]
        return tuple([k for k in listed[0] if all([k in keys for keys in others])])

    def values(
        self,
        include_nested: bool = False,  # noqa: FBT001, FBT002 - the peer's signature
        leaves_only: bool = False,  # noqa: FBT001, FBT002
        *,
        sort: bool = False,
    ) -> tuple[Any, ...]:
        """Return the entries that all members have, each stacked."""
        keys = self.keys(include_nested, leaves_only, sort=sort)
        return tuple([self[key] for key in keys])

    def items(
        self,
        include_nested: bool = False,  # noqa: FBT001, FBT002 - the peer's signature
        leaves_only: bool = False,  # noqa: FBT001, FBT002
        *,
        sort: bool = False,
    ) -> tuple[tuple[Any, Any], ...]:
        """Return pairs of key and entry, in the order of `keys`."""
        keys = self.keys(include_nested, leaves_only, sort=sort)
        return tuple([(key, self[key]) for key in keys])

    def get_item_shape(self, key: str | Path) -> torch.Size:
        """Return the shape of an entry, -1 where the members differ.

        Raises:
            MissingKeyError: not all members have it.
            ShapeError: the members have other numbers of dims.
        """
        path = as_path(key)
        if path not in self:
            raise self._missing(path)
        shapes = [tree[path].shape for tree in self.tensordicts]
        if len({len(shape) for shape in shapes}) > 1:
            raise ShapeError(
                "the members have other numbers of dims here",
                path=path,
                got=[list(shape) for shape in shapes],
            )
        joint = [r[0] if len(set(r)) == 1 else -1 for r in zip(*shapes, strict=True)]
        if lazy.is_unbatched(self.tensordicts[0], path):
            return torch.Size(joint)
        at = self.stack_dim
        return torch.Size((*joint[:at], len(shapes), *joint[at:]))

    def is_empty(self) -> bool:
        """Return whether no member holds anything."""
        return all([tree.is_empty() for tree in self.tensordicts])

    # Members

    def append(self, td: Node) -> Self:
        """Return the stack with one member more at the end.

        Raises:
            OperandError: it is no tree.
            ShapeError: it has another number of batch dims.
        """
        return self._of((*self.tensordicts, td))

    def extend(self, tds: Iterable[Node]) -> Self:
        """Return the stack with more members at the end."""
        return self._of((*self.tensordicts, *tds))

    def insert(self, index: int, td: Node) -> Self:
        """Return the stack with one member more before `index`, as in `list.insert`."""
        trees = list(self.tensordicts)
        trees.insert(index, td)
        return self._of(trees)

    def _of(self, trees: Sequence[Node]) -> Any:
        made = lazy.lazy_stack(trees, self.stack_dim)
        names = self.names
        return made if names is None else made.with_names(names)

    def __repr__(self) -> str:
        if self._members.known_shape is None:
            return f"LazyStackedTensorDict({self._members!r})"
        fields: list[str] = []
        for key in self.keys(sort=True):
            try:
                shape = list(self.get_item_shape(key))
            except (AttributeError, ShapeError):
                fields.append(f"{key}: ...")
            else:
                fields.append(f"{key}: {shape}")
        return (
            f"LazyStackedTensorDict(batch_size={list(self.batch_size)}, "
            f"stack_dim={self.stack_dim}, shared={{{', '.join(fields)}}})"
        )


_ABSENT = object()
