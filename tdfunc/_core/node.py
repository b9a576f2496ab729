"""The abstract node: five slots, a trusted constructor, reading, no writing.

A node is `(schema, leaves, statics, batch_size, names)`. Everything that acts on
nodes is a function elsewhere; what is here is what storage itself can answer.
"""

from __future__ import annotations

# At run time, as all that annotations of classes name: get_type_hints reads them.
from collections.abc import Callable  # noqa: TC003
from inspect import getattr_static
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, cast

import torch

from tdfunc._core._torch import has_escaped, is_tracing
from tdfunc._core.batch import settle
from tdfunc._core.keys import as_path, check_key, is_key, short
from tdfunc._core.leaf import LeafLike
from tdfunc._core.pickling import PackedLeaves, copied
from tdfunc._core.rows import decode, pruned
from tdfunc._core.schema import ROWS, UNBATCHED, Schema, is_lazy, is_tensor, kind_name
from tdfunc._core.statics import NO_STATICS, Statics, rebuild_statics
from tdfunc.errors import (
    ImmutableError,
    MissingKeyError,
    OperandError,
    PathThroughLeafError,
    PureNameError,
    nearest,
    show_path,
)
from tdfunc.typing import MISSING

if TYPE_CHECKING:
    from tdfunc._core.schema import Found
    from tdfunc.typing import Index, Path

__all__ = ["HOMES", "Node", "NodeT", "class_of", "entry_at", "make", "missing"]

NodeT = TypeVar("NodeT", bound="Node")

_LEAVES = (torch.Tensor, LeafLike)
_WRITE_ROWS = "td = td.at[index].set(value)"

# Names of the mutable API that people know, and what to write instead.
PURE_SPELLINGS = {
    "append": "td = tdfunc.cat([td, other])",
    "apply_": "td = td.apply(fn)",
    "clear": "td = TensorDict({}, batch_size=td.batch_size)",
    "clear_device_": "nothing to do: the device is that of the leaves",
    "copy_": "td = td.update(other)",
    "copy_at_": _WRITE_ROWS,
    "create_nested": "td = td.set(key, {})",
    "del_": "td = td.drop(key)",
    "dumps": "td.save(path)",
    "fill_": "td = td.set(key, torch.full_like(td[key], value))",
    "extend": "td = tdfunc.cat([td, other])",
    "insert": "td = td.set(key, value)",
    "load_": "td = tdfunc.load(path)",
    "load_memmap_": "td = tdfunc.load_memmap(path)",
    "lock_": "nothing to do: a tree never changes",
    "make_memmap": "td = td.set(key, torch.zeros(shape)).memmap(path)",
    "masked_fill_": "td = td.masked_fill(mask, value)",
    "memmap_": "td = td.memmap(path)",
    "memmap_refresh_": "td = tdfunc.load(path)",
    "pop": "value, td = td[key], td.drop(key)",
    "popitem": "value, td = td[key], td.drop(key)",
    "rename_key_": "td = td.rename_key(old, new)",
    "requires_grad_": "torch.func.grad differentiates without marking leaves",
    "set_": "td = td.set(key, value)",
    "set_at_": "td = td.at[index].set({key: value})",
    "setdefault": "td = td if key in td else td.set(key, value)",
    "share_memory_": "td = tdfunc.share(td)",
    "unlock_": "nothing to do: every operation returns a new tree",
    "update_": "td = td.update(other)",
    "update_at_": _WRITE_ROWS,
    "zero_": "td = td.apply(torch.zeros_like)",
    "zero_grad": "nothing to do: gradients are results, not state",
}


class _Refusal:
    """Stands for a name of the mutable API: reading it raises with the pure spelling.

    One object a name, rather than a `__getattr__` on the class: with that, CPython can
    not specialise attribute reads, and every read of a slot costs 20 ns more.
    """

    __slots__ = ("name", "pure")

    def __init__(self, name: str, pure: str) -> None:
        self.name = name
        self.pure = pure

    def __get__(self, node: object, owner: type | None = None) -> NoReturn:
        what = f"a tree never changes, so there is no {self.name!r}"
        raise PureNameError(what, fix=self.pure)


class _Homes:
    """Holds classes of nodes as attributes, by name."""


# Where compiled code finds the class of a node that it makes: Dynamo can rebuild an
# object only if it knows where its class came from, and what a schema says is a
# constant to it.
HOMES: Any = _Homes()


class Node:
    """An immutable tree of tensors that share leading batch dims.

    Abstract: the classes that users make are bound in `tdfunc._tensordict`.
    """

    __slots__ = (
        "__weakref__",
        "_batch_size",
        "_leaves",
        "_names",
        "_schema",
        "_statics",
    )

    # NumPy hands `array + tree` over instead of looping over the array.
    __array_ufunc__ = None

    _plain: ClassVar[type[Node]]
    # What a class declares of its entries, a `Record`; None if they are free.
    _record: ClassVar[Any] = None
    _home: ClassVar[str]  # the name of the class in `HOMES`
    # Makes the record class of a dataclass; bound with the records.
    _record_class: ClassVar[Callable[[type[Any]], Any]]
    _lazy: ClassVar[type[Node]]

    is_lazy: ClassVar[bool] = False

    _schema: Schema
    _leaves: tuple[Any, ...]
    _statics: Statics
    _batch_size: torch.Size | None  # None until something asks, after unflatten
    _names: tuple[str | None, ...] | None  # aligned with the last batch dims

    def __init_subclass__(
        cls, *, plain: bool = False, lazy: bool = False, **kwargs: Any
    ) -> None:
        """Register the class.

        `plain` makes it the class of nested mappings, `lazy` that of stacks whose
        members are kept apart.
        """
        super().__init_subclass__(**kwargs)
        if plain:
            Node._plain = cls
        if lazy:
            Node._lazy = cls
            cls.is_lazy = True
            cls._home = cls.__name__
            setattr(HOMES, cls._home, cls)
        for name, value in list(vars(cls).items()):
            if callable(value) and not name.startswith("_"):
                refused = f"{name}_"
                if refused not in PURE_SPELLINGS:
                    pure = f"td = td.{name}(...)"
                    setattr(cls, refused, _Refusal(refused, pure))

    # Size

    @property
    def batch_size(self) -> torch.Size:
        """The leading dims that all leaves share, a `torch.Size`."""
        if is_tracing():
            return _traced_size(self)
        size = self._batch_size
        return _settle(self) if size is None else size

    @batch_size.setter
    def batch_size(self, value: Any) -> NoReturn:
        raise _unsettable("batch_size", f"td = td.with_batch_size({value!r})")

    @property
    def shape(self) -> torch.Size:
        """The batch size, under torch's name."""
        return self.batch_size

    @shape.setter
    def shape(self, value: Any) -> NoReturn:
        raise _unsettable("shape", f"td = td.reshape({value!r})")

    @property
    def batch_dims(self) -> int:
        """Number of batch dims."""
        return len(self.batch_size)

    @property
    def ndim(self) -> int:
        """Number of batch dims, under torch's name."""
        return len(self.batch_size)

    def dim(self) -> int:
        """Return the number of batch dims, under torch's name."""
        return len(self.batch_size)

    def size(self, dim: int | None = None) -> Any:
        """Return the batch size, or the size of one batch dim.

        Raises:
            IndexError: `dim` is not a batch dim.
        """
        return self.batch_size if dim is None else self.batch_size[dim]

    def numel(self) -> int:
        """Return the number of rows: the product of the batch size (1 if empty)."""
        return prod(self.batch_size)

    def __len__(self) -> int:
        """Return the size of the first batch dim.

        Raises:
            OperandError: there is no batch dim. A length of 0 would make torch take
                the tree for an empty sequence, equal to any other.
        """
        size = self.batch_size
        if not size:
            raise OperandError(
                "a tree without batch dims has no length",
                expected="at least one batch dim",
                got="batch_size=[]",
                fix="len(td.keys()) counts its entries",
            )
        return size[0]

    @property
    def names(self) -> tuple[str | None, ...] | None:
        """The names of the batch dims, None if no dim has one."""
        names = self._names
        if names is None:
            return None
        dims = len(self.batch_size)
        if len(names) > dims:
            names = names[len(names) - dims :]
        elif len(names) < dims:
            names = (None,) * (dims - len(names)) + names
        return names if any([n is not None for n in names]) else None

    @names.setter
    def names(self, value: Any) -> NoReturn:
        raise _unsettable("names", f"td = td.with_names({value!r})")

    @property
    def device(self) -> torch.device | None:
        """The device that all leaves share, None if they differ or there are none."""
        return _shared_attribute(self._leaves, "device")

    @device.setter
    def device(self, value: Any) -> NoReturn:
        raise _unsettable("device", f"td = td.to({value!r})")

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that all tensors share, None if they differ or there are none."""
        rows = self._schema.rows
        leaves = self._leaves
        if rows:
            leaves = tuple([x for i, x in enumerate(leaves) if i not in rows])
        return _shared_attribute(leaves, "dtype")

    @dtype.setter
    def dtype(self, value: Any) -> NoReturn:
        raise _unsettable("dtype", f"td = td.to({value!r})")

    @property
    def requires_grad(self) -> bool:
        """Whether any leaf takes part in autograd."""
        return any([isinstance(x, _LEAVES) and x.requires_grad for x in self._leaves])

    # Reading

    def __getitem__(self, key: Index | str | Path) -> Any:
        """Return an entry (by key or path) or the tree at an index of batch dims."""
        schema = self._schema
        if isinstance(key, str):
            slot = schema.slots.get(key)
            if slot is not None:
                return self._leaves[slot]
            return _child(self, key)
        if isinstance(key, tuple) and key and isinstance(key[0], (str, tuple)):
            slot = schema.slot(key)
            if slot is not None:
                return self._leaves[slot]
            if is_key(key):
                return entry_at(self, as_path(key))
        return self._at_index(key)

    def _at_index(self, index: Any) -> Any:
        """Return the tree at `index`; bound with the operations."""
        raise NotImplementedError

    def get(self, key: str | Path, default: Any = MISSING) -> Any:
        """Return the entry at a key or path, `default` (None) if there is none.

        Raises:
            InvalidKeyError: `key` is not a key or path.
            PathThroughLeafError: the path goes on below a leaf and no default was
                given.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> TensorDict(a=torch.ones(2)).get("b", 0)
            0
        """
        path = as_path(key)
        if self._schema.find(path) is not None:
            return entry_at(self, path)
        inside = self._schema.lazy_on(path)
        if inside > 0:
            return entry_at(self, path[:inside]).get(path[inside:], default)
        if default is not MISSING:
            return default
        if self._schema.blocked(path) is not None:
            raise missing(self, path)
        return None

    def __contains__(self, key: object) -> bool:
        """Return whether there is an entry at a key or path."""
        if not is_key(key):
            raise OperandError(
                "only keys and paths can be looked for in a tree",
                expected="a string or a tuple of strings",
                got=type(key).__name__,
                fix="(td == value).any() looks for values",
            )
        path = as_path(key)
        inside = self._schema.lazy_on(path)
        if inside > 0:
            return path[inside:] in entry_at(self, path[:inside])
        return self._schema.find(path) is not None

    def keys(
        self,
        include_nested: bool = False,  # noqa: FBT001, FBT002 - the peer's signature
        leaves_only: bool = False,  # noqa: FBT001, FBT002
        *,
        sort: bool = False,
    ) -> tuple[Any, ...]:
        """Return the keys in the order in which they were written.

        Args:
            include_nested: also the paths inside nested nodes, as tuples, parents
                before children.
            leaves_only: only the entries that are tensors.
            sort: in sorted order.

        Examples:
            >>> from tdfunc import TensorDict
            >>> TensorDict({"b": {"c": 1}, "a": 2, "s": "x"}).keys(True)
            ('b', ('b', 'c'), 'a', 's')
        """
        if include_nested and self._schema.lazy:
            steps = listed_apart(self, leaves_only=bool(leaves_only), sort=bool(sort))
            return tuple([short(path) for path in steps])
        return self._schema.names(bool(include_nested), bool(leaves_only), bool(sort))

    def values(
        self,
        include_nested: bool = False,  # noqa: FBT001, FBT002 - the peer's signature
        leaves_only: bool = False,  # noqa: FBT001, FBT002
        *,
        sort: bool = False,
    ) -> tuple[Any, ...]:
        """Return the entries, in the order of `keys` with the same arguments."""
        if include_nested and self._schema.lazy:
            paths = listed_apart(self, leaves_only=bool(leaves_only), sort=bool(sort))
            return tuple([entry_at(self, path) for path in paths])
        steps = self._schema.listed(bool(include_nested), bool(leaves_only), bool(sort))
        return tuple([entry_at(self, step.path) for step in steps])

    def items(
        self,
        include_nested: bool = False,  # noqa: FBT001, FBT002 - the peer's signature
        leaves_only: bool = False,  # noqa: FBT001, FBT002
        *,
        sort: bool = False,
    ) -> tuple[tuple[Any, Any], ...]:
        """Return pairs of key and entry, in the order of `keys`."""
        if include_nested and self._schema.lazy:
            paths = listed_apart(self, leaves_only=bool(leaves_only), sort=bool(sort))
            return tuple([(short(path), entry_at(self, path)) for path in paths])
        steps = self._schema.listed(bool(include_nested), bool(leaves_only), bool(sort))
        return tuple([(short(s.path), entry_at(self, s.path)) for s in steps])

    def is_empty(self) -> bool:
        """Return whether the tree holds neither a tensor nor a static."""
        return not self._schema.n and not self._schema.m

    def __bool__(self) -> NoReturn:
        raise OperandError(
            "a tree has no truth value",
            fix="(a == b).all() for values, td.is_empty() for entries, "
            "a.equal(b) for whole trees",
        )

    # No writing

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        if is_key(key):
            raise ImmutableError(
                "a tree can not be changed",
                path=as_path(key),
                fix=f"td = td.set({key!r}, value); rows of it are written by "
                f"td = td.at[index].set({{{short(as_path(key))!r}: value}})",
            )
        raise ImmutableError(
            "a tree can not be changed",
            fix=_WRITE_ROWS,
        )

    def __delitem__(self, key: Any) -> NoReturn:
        raise ImmutableError("a tree can not be changed", fix=f"td = td.drop({key!r})")

    def __dir__(self) -> list[str]:
        names = super().__dir__()
        return [n for n in names if not isinstance(getattr_static(self, n), _Refusal)]

    # Copies and pickles

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        size = self.batch_size
        leaves, statics = _without_unused(self)
        values = copied(statics.values, memo)
        leaves = copied(leaves, memo)
        statics = rebuild_statics(values)
        return make(self._schema, leaves, statics, size, self._names)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        self.batch_size  # noqa: B018 - settles, so that the pickle holds the truth
        leaves, statics = _without_unused(self)
        parts = (self._schema, PackedLeaves(leaves, int(protocol)), statics)
        return restore, (*parts, tuple(self.batch_size), self._names)


def _without_unused(node: Node) -> tuple[tuple[Any, ...], Statics]:
    """Return leaves and statics whose tables have the values of the rows only.

    A row of a large tree would take the values of all rows along.
    """
    places = node._schema.coded()
    if not places:
        return node._leaves, node._statics
    leaves, values = list(node._leaves), list(node._statics.values)
    for slot, at in places:
        leaves[slot], values[at] = pruned(leaves[slot], values[at])
    if all([x is y for x, y in zip(values, node._statics.values, strict=True)]):
        return node._leaves, node._statics
    return tuple(leaves), Statics(tuple(values))


def _shared_attribute(leaves: tuple[Any, ...], name: str) -> Any:
    """Return what all tensors have as `name`, None if they differ or there is none."""
    values = [getattr(x, name) for x in leaves if isinstance(x, _LEAVES)]
    if not values or any([value != values[0] for value in values]):
        return None
    return values[0]


def _unsettable(name: str, pure: str) -> PureNameError:
    return PureNameError(f"setting {name!r} would change the tree", fix=pure)


for _name, _pure in PURE_SPELLINGS.items():
    setattr(Node, _name, _Refusal(_name, _pure))


def make(
    schema: Schema,
    leaves: tuple[Any, ...],
    statics: Statics,
    batch_size: torch.Size | None,
    names: tuple[str | None, ...] | None,
) -> Any:
    """Return a node of `schema.cls` without checking anything.

    `batch_size` None leaves it to be settled by the rank rule when it is read.
    """
    # The name `Node` tells Dynamo where the class came from; see `HOMES`.
    plain = Node._plain
    cls = schema.cls
    if cls is plain:
        cls = plain
    elif is_tracing():
        cls = class_of(schema)
    node: Any = object.__new__(cls)
    node._schema = schema
    node._leaves = leaves
    node._statics = statics
    node._batch_size = batch_size
    node._names = names
    return node


def class_of(schema: Schema) -> type[Any]:
    """Return the class of a node, from where compiled code finds it."""
    if is_tracing() and schema.cls is not Node._plain:
        return getattr(HOMES, schema.home_name())
    return schema.cls


def restore(
    schema: Schema,
    leaves: Any,
    statics: Statics,
    batch_size: tuple[int, ...],
    names: tuple[str | None, ...] | None,
) -> Node:
    """Return an unpickled node."""
    return make(schema, leaves, statics, torch.Size(batch_size), names)


def entry_at(node: Node, path: Path) -> Any:
    """Return the entry at `path`: a tensor, a static value, or a node.

    Raises:
        MissingKeyError: there is no such entry.
        PathThroughLeafError: the path goes on below a leaf.
    """
    schema = node._schema
    found = schema.find(path)
    if found is None:
        inside = schema.lazy_on(path)
        if inside == 0:
            return node[path]
        if inside > 0:
            return entry_at(node, path[:inside])[path[inside:]]
        raise missing(node, path)
    kid = found.kid
    if isinstance(kid, Schema):
        if len(path) == 1:
            return _child(node, path[0])
        return _node_at(node, path)
    return value_at(node, path, kid, found.lo, found.slo)


def value_at(node: Node, path: Path, kid: int, lo: int, slo: int) -> Any:
    """Return the value of an entry that is no node."""
    if kid >= 0:
        return node._leaves[lo]
    value = node._statics.values[slo]
    if kid > ROWS:
        if kid == UNBATCHED and has_escaped(value):
            raise OperandError(
                "the unbatched tensor was computed inside a transform that is over",
                path=path,
                expected="a tensor that does not depend on what is mapped or "
                "differentiated",
                got="one of the transform, which does not go through its output",
                fix="td.set(key, tensor) inside the transform makes it a leaf, which "
                "gets the mapped dim",
            )
        return value
    codes = node._leaves[lo]
    # A pytree function may have put anything there.
    return decode(codes, value, path) if isinstance(codes, torch.Tensor) else codes


def listed_apart(node: Node, *, leaves_only: bool, sort: bool) -> list[Path]:
    """Return the paths of all entries of a tree in which lazy stacks are.

    Inside a stack these are the entries that its members share.
    """
    paths: list[Path] = []
    stacks: set[Path] = set()
    for path, kid, *_ in node._schema.walk():
        if path[:-1] in stacks:
            continue
        if is_tensor(kid) or not leaves_only:
            paths.append(path)
        if isinstance(kid, Schema) and is_lazy(kid):
            stacks.add(path)
            inside = entry_at(node, path).keys(True, leaves_only)  # noqa: FBT003
            paths += [(*path, *as_path(key)) for key in inside]
    return sorted(paths) if sort else paths


def missing(
    node: Node, path: Path, fix: str | None = None
) -> MissingKeyError | PathThroughLeafError:
    """Return the error for a path at which there is no entry."""
    schema = node._schema
    leaf = schema.blocked(path)
    if leaf is not None:
        found = schema.find(leaf)
        kind = kind_name(cast("Found", found).kid)
        return PathThroughLeafError(
            f"the path goes on below {show_path(leaf)}, which is {kind}",
            path=path,
            expected="a node",
            got=kind,
            fix=f"{show_path(leaf)} reads it; td.set(path, {{}}) makes it a node",
        )
    return MissingKeyError(
        "there is no such entry",
        path=path,
        expected=nearest(path[-1], schema.node_keys(path)),
        fix=fix or f"td.get({short(path)!r}, default) if it may be missing",
    )


def _child(node: Node, key: str) -> Any:
    """Return the entry of a node at one key."""
    # Size before schema, as in `with_leaves`.
    size = carried_size(node)
    entry = node._schema.child(key)
    if entry is None:
        raise missing(node, (check_key(key),))
    kid, lo, slo, surplus = entry
    if not isinstance(kid, Schema):
        return value_at(node, (key,), kid, lo, slo)
    if size is None or surplus or kid.m:
        return _node_at(node, (key,))
    return make(kid, node._leaves[lo : lo + kid.n], NO_STATICS, size, node._names)


def carried_size(node: Node) -> torch.Size | None:
    """Return the batch size to pass on to a node with leaves of the same shapes.

    It need not be settled, except while compiling.
    """
    return node.batch_size if is_tracing() else node._batch_size


def size_at(node: Node, path: Path) -> torch.Size:
    """Return the batch size of the nested node at `path`.

    A node without leaves has that of the node above it.
    """
    size = node.batch_size
    lo, hi, surplus = node._schema.sized(path)
    if surplus:
        for leaf in node._leaves[lo:hi]:
            if isinstance(leaf, _LEAVES):
                return torch.Size(leaf.shape[: len(size) + surplus])
    return size


def settled_size(node: Node) -> torch.Size:
    """Return the batch size of any node, () where a lazy stack has lost its dim."""
    if is_tracing():
        return _traced_size(node)
    size = node._batch_size
    return _settle(node) if size is None else size


def _node_at(node: Node, path: Path) -> Any:
    # Settling may exchange the schema, so it comes before the place is looked up.
    size = size_at(node, path)
    found = cast("Found", node._schema.find(path))
    names = node._names
    if names is not None and len(size) > node.batch_dims:
        names = (*(node.names or ()), *(None,) * (len(size) - node.batch_dims))
    statics = NO_STATICS
    if found.slo != found.shi:
        statics = node._statics.part(found.slo, found.shi)
    leaves = node._leaves[found.lo : found.hi]
    return make(cast("Schema", found.kid), leaves, statics, size, names)


def _traced_size(node: Node) -> torch.Size:
    """Find the batch size without reading the slot.

    A guard on the slot would tell trees that a transform made from others, and
    compile for each.
    """
    if not node._schema.n:
        return node._batch_size or torch.Size()
    schema, size = settle(node._schema, node._leaves)
    if schema is not node._schema:
        node._schema = schema
        node._batch_size = size
    return size


def _settle(node: Node) -> torch.Size:
    """Find and keep the batch size of a node that a pytree function made.

    Every thread that comes here at once finds the same, and the schema is stored
    before the size: who sees the size sees the schema that belongs to it.
    """
    schema, size = settle(node._schema, node._leaves)
    node._schema = schema
    node._batch_size = size
    return size
