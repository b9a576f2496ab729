"""Lazy stacks: trees that are not alike, seen as one tree with one more batch dim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self, final

import torch

from tdfunc._core.keys import as_path, is_key
from tdfunc._core.node import Node, missing
from tdfunc._core.statics import NO_STATICS
from tdfunc._ops import entries, lazy, restructure
from tdfunc._ops.members import Members, lazy_node
from tdfunc._tensordict import TensorDict, Tree
from tdfunc.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
        # Without members while an operation looks at the rest of a tree.
        return self._members.shape if self._leaves else super().batch_size

    shape = batch_size  # pyright: ignore[reportAssignmentType]

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
        lacking = [i for i, tree in enumerate(self.tensordicts) if path not in tree]
        error = missing(self.tensordicts[lacking[0]], path)
        error.add_note(f"tdfunc: the members {lacking} of the lazy stack have no such")
        return error

    def __contains__(self, key: object) -> bool:
        """Return whether all members have an entry at a key or path."""
        return all([key in tree for tree in self.tensordicts])

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
        at = self.stack_dim
        return torch.Size((*joint[:at], len(shapes), *joint[at:]))

    def is_empty(self) -> bool:
        """Return whether no member holds anything."""
        return all([tree.is_empty() for tree in self.tensordicts])

    def equal(self, other: object, *, equal_nan: bool = False) -> bool:
        """Return whether `other` is a lazy stack of equal members along one dim."""
        if not isinstance(other, LazyStackedTensorDict):
            return False
        mine, theirs = self.tensordicts, other.tensordicts
        if len(mine) != len(theirs) or self.stack_dim != other.stack_dim:
            return False
        pairs = zip(mine, theirs, strict=True)
        return self.names == other.names and all(
            [a.equal(b, equal_nan=equal_nan) for a, b in pairs]
        )

    # Entries of the members

    def _each(self, fn: Callable[..., Any], *operands: Any) -> Self:
        return lazy_node(self._members.each(fn, *operands), self._names)

    def set(self, key: str | Path, value: Any) -> Self:
        """Return the stack with `value`, of the whole batch size, in its members.

        Args:
            key: a key or a path.
            value: what `TensorDict.set` takes, with the batch size of the stack; a
                lazy stack of the same length gives each member its own.

        Raises:
            BatchSizeError: it does not start with the batch size.
            ShapeError: the members have other batch sizes, which one value can not.
        """
        return self.update(TensorDict({}, self._whole_size()).set(key, value))

    def update(self, other: Any = None, **options: Any) -> Self:
        """Return the stack with the entries of `other` in its members.

        Args:
            other: a mapping or tree with the batch size of the stack, or a lazy stack
                of the same length.
            options: those of `TensorDict.update`.
        """
        only = {"only": options.pop("only")} if "only" in options else {}
        for source in (other, options or None):
            if source is not None:
                is_tree = isinstance(source, Node)
                tree = source if is_tree else TensorDict(source, self._whole_size())
                if type(tree).is_lazy:
                    tree = tree._leaves[0]
                self = self._each(lambda t, o: t.update(o, **only), tree)  # noqa: PLW0642
        return self

    def _whole_size(self) -> torch.Size:
        size = self.batch_size
        if -1 in size:
            raise ShapeError(
                "the members have other batch sizes, which one value can not have",
                got=list(size),
                fix="tdfunc.lazy_stack([t.set(key, value) for t in td.tensordicts])",
            )
        return size

    def drop(self, *keys: str | Path) -> Self:
        """Return the stack with entries dropped from every member that has them.

        Raises:
            MissingKeyError: no member has one of them.
        """
        for key in keys:
            if not any([key in tree for tree in self.tensordicts]):
                raise self._missing(as_path(key))
        return self._each(lambda t: entries.exclude(t, *keys))

    def select(self, *keys: str | Path, strict: bool = True) -> Self:
        """Return the stack with only these entries in every member."""
        return self._each(lambda t: entries.select(t, *keys, strict=strict))

    def exclude(self, *keys: str | Path) -> Self:
        """Return the stack without these entries in any member."""
        return self._each(lambda t: entries.exclude(t, *keys))

    def rename_key(self, old: str | Path, new: str | Path) -> Self:
        """Return the stack with an entry of every member under another key."""
        return self._each(lambda t: restructure.rename_key(t, old, new))

    def rename_keys(self, names: Any, **options: Any) -> Self:
        """Return the stack with entries of every member under other keys."""
        return self._each(lambda t: restructure.rename_keys(t, names, **options))

    def flatten_keys(self, separator: str = ".", **options: Any) -> Self:
        """Return the stack of members whose nested keys are joined."""
        return self._each(lambda t: restructure.flatten_keys(t, separator, **options))

    def unflatten_keys(self, separator: str = ".") -> Self:
        """Return the stack of members whose joined keys are nested."""
        return self._each(lambda t: restructure.unflatten_keys(t, separator))

    def filter_empty(self) -> Self:
        """Return the stack of members without empty nodes."""
        return self._each(restructure.filter_empty)

    def filter_non_tensor(self) -> Self:
        """Return the stack of members with only what is a tensor."""
        return self._each(restructure.filter_non_tensor)

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
        names = self.names
        name = None if names is None else names[self.stack_dim]
        return lazy.lazy_stack(trees, self.stack_dim, name=name)

    def to_tensordict(self, **options: Any) -> Any:
        """Return the dense tree, with copies; see `densify` and its errors."""
        return lazy.densify(self).to_tensordict(**options)

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict of the entries that all members have, each stacked.

        Raises:
            ShapeError: the members have other shapes.
        """
        return lazy.densify(self.select(*self.keys())).to_dict()

    def __repr__(self) -> str:
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
