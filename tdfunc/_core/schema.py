"""The static part of a tree: keys, kinds, offsets, node classes, feature ranks.

A `Schema` describes one node with everything below it. It is interned: the same
structure is the same object, so that "do these trees match?" is ``a is b``. It
knows nothing of sizes: ``td``, ``td[0]``, ``stack([td, td])`` and ``td`` inside
``vmap`` share one schema, because each leaf is described by its *feature rank*,
the number of its dims behind the batch dims of its node.

Leaves and statics of a tree are stored flat, depth first, **keys sorted**; a
nested node is therefore one contiguous slice, and two trees with the same keys
in another order have their leaves in the same places. The order in which people
wrote the keys is kept beside, in `Schema.keys`.

All methods take and return constants (ints, strings, tuples, schemas), so Dynamo
runs them for real while it traces and bakes the result: a compiled function pays
one comparison for the whole structure. No method recurses: trees may be thousands
deep.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import blake2b
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypeGuard,
    cast,
    final,
)

from tdfunc._core._torch import register_trace_constant
from tdfunc._core.interning import InternTable
from tdfunc._core.keys import check_key, short
from tdfunc._core.picking import picked
from tdfunc.errors import ImmutableError, InvalidKeyError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from tdfunc.typing import Path

__all__ = [
    "ROWS",
    "STATIC",
    "UNBATCHED",
    "Aligned",
    "Found",
    "Kid",
    "Moved",
    "Narrowed",
    "Schema",
    "Spliced",
    "Step",
    "is_lazy",
    "is_leaf",
    "is_tensor",
]

STATIC: Final = -1
"""The kind of an entry whose value lies in the box of statics."""

UNBATCHED: Final = -2
"""The kind of a tensor that lies among the statics: the batch does not index it."""

ROWS: Final = -3
"""The kind of an entry with one value per row: `ROWS` minus the rank of its codes.

Its codes are a leaf, and the table of its values is among the statics.
"""

# More than any program uses on one structure; a program that makes up paths at
# run time starts over instead of growing for ever.
_MEMO_LIMIT: Final = 64
_KEPT_KEYS: Final = 1024

Shape: TypeAlias = tuple[int, ...]

_put = object.__setattr__


class Found(NamedTuple):
    """Where an entry lies in the flat leaves and statics of a tree."""

    kid: Kid  # feature rank of a tensor, another kind, or the schema of a node
    lo: int  # its leaves are leaves[lo:hi]
    hi: int
    slo: int  # its statics are values[slo:shi]
    shi: int
    surplus: int  # batch dims of its node (of itself, if a node) beyond the root's


class Spliced(NamedTuple):
    """A schema with one entry exchanged, and the slices that it replaces."""

    schema: Schema
    lo: int
    hi: int
    slo: int
    shi: int


class Aligned(NamedTuple):
    """How two trees with the same entries broadcast; see `Schema.aligned`."""

    schema: Schema  # of the result
    mine: tuple[tuple[int, ...], ...]  # for every leaf its dims, level by level
    theirs: tuple[tuple[int, ...], ...]
    joint: tuple[tuple[int, ...], ...]  # what both are padded to


class Narrowed(NamedTuple):
    """A schema with entries left out, and the places of what stays."""

    schema: Schema
    slots: tuple[int, ...]  # of leaves
    sslots: tuple[int, ...]  # of statics


class Moved(NamedTuple):
    """A schema with entries at other paths, and where its contents come from."""

    schema: Schema
    slots: tuple[int, ...]  # for every leaf, the old one that it is
    sslots: tuple[int, ...]  # for every static
    clashes: tuple[Path, ...]  # paths of several entries; if any, the rest is void
    # Old leaves [lo:hi] of an entry, its old and new path, and the old path of a node
    # with batch dims that the root has not, into which it came.
    entered: tuple[tuple[int, int, Path, Path, Path], ...]


class Step(NamedTuple):
    """One entry met by `Schema.walk`."""

    path: Path
    kid: Kid
    lo: int  # first leaf of the entry
    slo: int  # first static of the entry
    surplus: int  # batch dims of its node (of itself, if a node) beyond the root's


@final
class Schema:
    """The interned structure of one node and everything below it.

    Equal arguments give the same object. Compares and hashes by structure, pickles as
    one flat list, copies as itself.

    Four look-ups, from the cheapest: `slots` is a dict of the tensors of this very
    node, for reading a key; `child` is any entry of it, for code that goes down level
    by level; `slot` is the place of a tensor at a path, None for all else, for reading
    and writing one; `find` tells everything of the entry at a path. Who wants all
    entries takes `listed` or `paths`, which are remembered, not `walk`.

    Attributes:
        cls: the class of the node.
        keys: the keys in the order in which people wrote them.
        kids: for every key its feature rank (an int >= 0), `STATIC`, `UNBATCHED`,
            `ROWS` minus the rank of the codes, or the schema of the nested node.
        surplus: for every key the batch dims that a nested node has beyond this one.
        order: the keys sorted, the order of leaves and statics.
        n: number of leaves.
        m: number of statics.
        slots: place of every tensor of this very node by key.
        rows: places of all leaves that are codes.
        index: for every key `(kid, first leaf, first static, surplus)`.
        extra: whether a nested node has surplus batch dims.
        records: whether a node is of a class that declares its fields.
        lazy: whether it is, or a nested node is, a stack whose members are kept apart.
        plain: whether all leaves are tensors: no rows, no lazy stack.
    """

    __slots__ = (
        "__weakref__",
        "_canon",
        "_found",
        "_hash",
        "_memo",
        "_paths",
        "_ranks",
        "cls",
        "extra",
        "index",
        "keys",
        "kids",
        "lazy",
        "m",
        "n",
        "order",
        "plain",
        "records",
        "rows",
        "slots",
        "surplus",
    )

    cls: type[Any]
    keys: tuple[str, ...]
    kids: tuple[Kid, ...]
    surplus: tuple[int, ...]
    order: tuple[str, ...]
    n: int
    m: int
    slots: dict[str, int]
    rows: tuple[int, ...]
    index: dict[str, tuple[Kid, int, int, int]]
    extra: bool
    records: bool
    lazy: bool
    plain: bool
    _hash: int
    _ranks: tuple[int, ...] | None
    _paths: tuple[Path, ...] | None
    _canon: Schema | None
    _found: dict[Path, Found]
    _memo: dict[Hashable, Any]

    # Dynamo calls the class of a constant for real, so interning happens there too.
    def __new__(
        cls,
        node_cls: type[Any],
        keys: tuple[str, ...],
        kids: tuple[Kid, ...],
        surplus: tuple[int, ...] | None = None,
    ) -> Schema:
        """Return the one schema with these keys and kinds, both in people's order.

        Args:
            node_cls: the class of the node.
            keys: its keys.
            kids: for every key its kind, as in `kids`.
            surplus: for every key the surplus of a node, None for all 0.
        """
        if surplus is not None:
            # Without leaves there is nothing that could have more dims.
            rows = zip(kids, surplus, strict=True)
            surplus = tuple([s if _leaves_of(kid) else 0 for kid, s in rows])
            if not any(surplus):
                surplus = None
        token = (node_cls, keys, kids, surplus)
        reference = _INTERNED.references.get(token)
        schema = None if reference is None else reference()
        return _INTERNED.get(token) if schema is None else schema

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ImmutableError(f"a schema never changes, so {name!r} can not be set")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Schema):
            return NotImplemented
        return (
            self._hash == other._hash
            and self.cls is other.cls
            and self.entries() == other.entries()
        )

    def __hash__(self) -> int:
        return self._hash

    def __copy__(self) -> Schema:
        return self

    def __deepcopy__(self, memo: object) -> Schema:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return schema_from_entries, (self.cls, self.entries())

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        """Return source that rebuilds this schema, and the names that it uses."""
        names: dict[str, Any] = {"schema_from_entries": schema_from_entries}
        parts: list[str] = []
        for depth, key, kind, cls in self.entries():
            name = "None" if cls is None else f"cls{id(cls)}"
            if cls is not None:
                names[name] = cls
            parts.append(f"({depth}, {key!r}, {kind}, {name})")
        root = f"cls{id(self.cls)}"
        names[root] = self.cls
        body = ", ".join(parts)
        comma = "," if parts else ""
        return f"schema_from_entries({root}, ({body}{comma}))", names

    def __repr__(self) -> str:
        shown: list[str] = []
        for path, kid, *_ in self.walk():
            kind = kid if is_tensor(kid) else kind_name(kid).split()[1]
            shown.append(f"{'.'.join(path)}: {kind}")
        return f"Schema({', '.join(shown)})"

    # Reading

    def walk(self) -> Iterator[Step]:
        """Yield every entry, parents before children, in people's order."""
        here: Path = ()
        stack: list[tuple[Path, Schema, Iterator[str], int, int, int]] = [
            (here, self, iter(self.keys), 0, 0, 0)
        ]
        while stack:
            prefix, schema, keys, lo, slo, surplus = stack[-1]
            for key in keys:
                kid, offset, soffset, more = schema.index[key]
                path = (*prefix, key)
                first, sfirst, total = lo + offset, slo + soffset, surplus + more
                yield Step(path, kid, first, sfirst, total)
                if isinstance(kid, Schema):
                    frame = (path, kid, iter(kid.keys), first, sfirst, total)
                    stack.append(frame)
                    break
            else:
                stack.pop()

    def entries(self) -> tuple[tuple[int, str, int, type[Any] | None], ...]:
        """Return the structure as one flat list of `(depth, key, kind, class)`.

        Kind is what `kids` has, or the surplus batch dims of a node; class is None
        except for nodes.
        """
        flat: list[tuple[int, str, int, type[Any] | None]] = []
        stack: list[tuple[Schema, Iterator[str]]] = [(self, iter(self.keys))]
        while stack:
            schema, keys = stack[-1]
            for key in keys:
                kid, _, _, surplus = schema.index[key]
                if isinstance(kid, Schema):
                    flat.append((len(stack), key, surplus, kid.cls))
                    stack.append((kid, iter(kid.keys)))
                    break
                flat.append((len(stack), key, kid, None))
            else:
                stack.pop()
        return tuple(flat)

    def ranks(self) -> tuple[int, ...]:
        """Return for every leaf its dims behind the batch dims of *this* node."""
        known = self._ranks
        if known is None:
            ranks = [0] * self.n
            for _, kid, lo, _, surplus in self.walk():
                if is_leaf(kid):
                    ranks[lo] = rank_of(kid) + surplus
            known = tuple(ranks)
            _put(self, "_ranks", known)
        return known

    def paths(self) -> tuple[Path, ...]:
        """Return the path of every leaf, in the order of the leaves."""
        known = self._paths
        if known is None:
            paths: list[Path] = [()] * self.n
            for path, kid, lo, _, _ in self.walk():
                if is_leaf(kid):
                    paths[lo] = path
            known = tuple(paths)
            _put(self, "_paths", known)
        return known

    def leaf_names(self) -> tuple[Any, ...]:
        """Return for every leaf what reads it: a key, or a path of several."""
        known = self._memo.get("leaf_names")
        if known is None:
            names = tuple([short(path) for path in self.paths()])
            known = self._remember("leaf_names", names)
        return known

    def dotted(self) -> tuple[str, ...]:
        """Return the path of every leaf joined with dots, as modules name tensors."""
        known = self._memo.get("dotted")
        if known is None:
            names = tuple([".".join(path) for path in self.paths()])
            known = self._remember("dotted", names)
        return known

    def path_ids(self) -> tuple[int, ...]:
        """Return an int64 for every leaf that follows from its path alone.

        Two of n paths have the same one with a probability of n**2 / 2**65.
        """
        known = self._memo.get("path_ids")
        if known is None:
            known = tuple([path_id(path) for path in self.paths()])
            self._remember("path_ids", known)
        return known

    def static_paths(self) -> tuple[Path, ...]:
        """Return the path of every static, in the order of the statics."""
        paths: list[Path] = [()] * self.m
        for path, kid, _, slo, _ in self.walk():
            if is_kept(kid):
                paths[slo] = path
        return tuple(paths)

    def unbatched(self) -> tuple[int, ...]:
        """Return the places among the statics of tensors without the batch."""
        known = self._memo.get("unbatched")
        if known is None:
            places = [step.slo for step in self.walk() if step.kid == UNBATCHED]
            known = self._remember("unbatched", tuple(sorted(places)))
        return known

    def coded(self) -> tuple[tuple[int, int], ...]:
        """Return the places of codes: `(leaf, its table among the statics)`."""
        if not self.rows:
            return ()
        known = self._memo.get("coded")
        if known is None:
            places = [
                (step.lo, step.slo)
                for step in self.walk()
                if not isinstance(step.kid, Schema) and step.kid <= ROWS
            ]
            known = self._remember("coded", tuple(sorted(places)))
        return known

    def without(
        self, places: tuple[int, ...]
    ) -> tuple[Schema, tuple[int, ...], tuple[int, ...]]:
        """Return the schema without some leaves, and the places of what stays.

        Nodes stay, even when nothing is left in them; tables go with their codes.
        """
        token = ("without", places)
        known = self._memo.get(token)
        if known is None:
            gone = set(places)
            tables = {slo for slot, slo in self.coded() if slot in gone}
            kids = enumerate(self.leaf_kids())
            leaf = [None if i in gone else rank for i, rank in kids]
            schema = self._rebuilt(leaf)
            slots = tuple([i for i in range(self.n) if i not in gone])
            sslots = tuple([i for i in range(self.m) if i not in tables])
            known = self._remember(token, (schema, slots, sslots))
        return known

    def restored(self, places: tuple[int, ...], done: Schema) -> Schema:
        """Return `done`, computed from ``without(places)``, with these leaves again.

        They keep their feature ranks.
        """
        bare, slots, _ = self.without(places)
        if done is bare:
            return self
        ranks = list(self.leaf_kids())
        for slot, rank in zip(slots, done.leaf_kids(), strict=True):
            ranks[slot] = rank
        # A node of nothing but codes has no surplus in `bare`, nor in `done`.
        mine, theirs = self.own_surpluses(), done.own_surpluses()
        nodes = [step.kid for step in done.walk() if isinstance(step.kid, Schema)]
        pairs = zip(nodes, mine, theirs, strict=True)
        surpluses = [new if node.n else old for node, old, new in pairs]
        return self._rebuilt(ranks, surpluses=surpluses)

    def uncoded(self) -> tuple[Schema, tuple[int, ...]]:
        """Return the schema with tensors in place of codes, and the statics that stay.

        Leaves keep their places.
        """
        known = self._memo.get("uncoded")
        if known is None:
            tables = {slo for _, slo in self.coded()}
            rows = [
                (
                    depth,
                    key,
                    rank_of(kind) if cls is None and kind <= ROWS else kind,
                    cls,
                )
                for depth, key, kind, cls in self.entries()
            ]
            schema = schema_from_entries(self.cls, rows)
            sslots = tuple([i for i in range(self.m) if i not in tables])
            known = self._remember("uncoded", (schema, sslots))
        return known

    def recoded(self, done: Schema) -> Schema:
        """Return `done`, computed from `uncoded`, with codes where this has them."""
        if done is self.uncoded()[0]:
            return self
        return self._rebuilt(done.leaf_kids(), surpluses=done.own_surpluses())

    def own_surpluses(self) -> list[int]:
        """Return the surplus of every nested node, in the order of `walk`."""
        total: dict[Path, int] = {(): 0}
        surpluses: list[int] = []
        for path, kid, _, _, surplus in self.walk():
            if isinstance(kid, Schema):
                total[path] = surplus
                surpluses.append(surplus - total[path[:-1]])
        return surpluses

    def find(self, path: Path) -> Found | None:
        """Return where the entry at `path` lies, None if there is none."""
        found = self._found.get(path)
        if found is not None:
            return found
        schema, lo, slo, surplus = self, 0, 0, 0
        kid: Kid = self
        for i, key in enumerate(path):
            entry = schema.index.get(key)
            if entry is None or is_lazy(schema):
                return None
            kid, offset, soffset, more = entry
            lo, slo, surplus = lo + offset, slo + soffset, surplus + more
            if isinstance(kid, Schema):
                schema = kid
            elif i + 1 < len(path):
                return None
        hi, shi = lo + 1, slo
        if isinstance(kid, Schema):
            hi, shi = lo + kid.n, slo + kid.m
        else:
            hi, shi = lo + _leaves_of(kid), slo + _statics_of(kid)
        found = Found(kid, lo, hi, slo, shi, surplus)
        self._found[path] = found
        return found

    def child(self, key: str) -> tuple[Kid, int, int, int] | None:
        """Return `(kid, first leaf, first static, surplus)` of an entry, or None."""
        return self.index.get(key)

    def slot(self, path: Any) -> int | None:
        """Return the place of the tensor at `path`, None if there is none."""
        try:
            found = self._found.get(path)
        except TypeError:  # an index, not a path
            return None
        if found is None:
            found = self.find(path)
        return found.lo if found is not None and is_tensor(found.kid) else None

    def blocked(self, path: Path) -> Path | None:
        """Return the part of `path` that is a leaf although `path` goes on, or None."""
        schema = self
        for i, key in enumerate(path[:-1]):
            entry = schema.index.get(key)
            if entry is None or is_lazy(schema):
                return None
            kid = entry[0]
            if not isinstance(kid, Schema):
                return path[: i + 1]
            schema = kid
        return None

    def lazy_on(self, path: Path) -> int:
        """Return how many keys of `path` lead to a lazy stack on the way, or -1."""
        schema = self
        if not schema.lazy:
            return -1
        for i, key in enumerate(path):
            if is_lazy(schema):
                return i
            entry = schema.index.get(key)
            kid = None if entry is None else entry[0]
            if not isinstance(kid, Schema):
                return -1
            schema = kid
        return -1

    def lazies(self) -> tuple[tuple[int, Path, int], ...]:
        """Return for every lazy stack its leaf, and path and surplus of its node."""
        if not self.lazy:
            return ()
        known = self._memo.get("lazies")
        if known is None:
            found: list[tuple[int, Path, int]] = [(0, (), 0)] if is_lazy(self) else []
            found += [
                (step.lo, step.path, step.surplus)
                for step in self.walk()
                if isinstance(step.kid, Schema) and is_lazy(step.kid)
            ]
            known = self._remember("lazies", tuple(found))
        return known

    def home(self, path: Path) -> Path:
        """Return the path of the deepest node on the way to the entry at `path`."""
        for end in range(len(path) - 1, 0, -1):
            found = self.find(path[:end])
            if found is not None and isinstance(found.kid, Schema):
                return path[:end]
        return ()

    def sized(self, path: Path) -> tuple[int, int, int]:
        """Return `(first leaf, end, surplus)` of the deepest node here with leaves.

        Any leaf in that range starts with the batch size of the node at `path`.
        """
        schema, lo, surplus = self, 0, 0
        best = (0, self.n, 0)
        for key in path:
            kid, offset, _, more = schema.index[key]
            if not isinstance(kid, Schema):
                break
            schema, lo, surplus = kid, lo + offset, surplus + more
            if kid.n:
                best = (lo, lo + kid.n, surplus)
        return best

    def node_keys(self, path: Path) -> tuple[str, ...]:
        """Return the keys of the deepest node on the way to `path`."""
        schema = self
        for key in path:
            entry = schema.index.get(key)
            if entry is None or not isinstance(entry[0], Schema):
                break
            schema = entry[0]
        return () if is_lazy(schema) else schema.keys

    def listed(self, nested: bool, leaves_only: bool, sort: bool) -> tuple[Step, ...]:  # noqa: FBT001
        """Return the entries that `keys`, `values` and `items` iterate over."""
        token = ("listed", nested, leaves_only, sort)
        known = self._memo.get(token)
        if known is None:
            if nested:
                steps = list(self.walk())
            else:
                steps = [Step((key,), *self.index[key]) for key in self.keys]
            if leaves_only:
                steps = [step for step in steps if is_tensor(step.kid)]
            if sort:
                steps.sort(key=lambda step: step.path)
            known = self._remember(token, tuple(steps))
        return known

    def names(self, nested: bool, leaves_only: bool, sort: bool) -> tuple[Any, ...]:  # noqa: FBT001
        """Return the entries as people read them: a key, or a path of several."""
        steps = self.listed(nested, leaves_only, sort)
        return tuple([short(step.path) for step in steps])

    def home_name(self) -> str:
        """Return the name under which compiled code finds the class of the node."""
        return self.cls._home

    def owner(self, path: Path) -> Schema:
        """Return the schema of the node at `path`, which is there."""
        found = self.find(path) if path else None
        return self if found is None else cast("Schema", found.kid)

    def field_names(self, path: Path) -> tuple[str, ...]:
        """Return the declared fields of the record at `path`."""
        return self.owner(path).cls._record.names

    def absent(self) -> tuple[Path, ...]:
        """Return the paths of declared fields, in all records, without an entry."""
        known = self._memo.get("absent")
        if known is None:
            known = self._remember("absent", self._amiss()[0])
        return known

    def amiss(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Return the paths of fields that are gone, and of entries that are no field.

        Fields that may be None are not gone. Asks every node of a class that declares
        its fields.
        """
        known = self._memo.get("amiss")
        if known is None:
            absent, extra = self._amiss()
            lost = tuple(
                [
                    path
                    for path in absent
                    if path[-1] in self.owner(path[:-1]).cls._record.ready().required
                ]
            )
            known = self._remember("amiss", (lost, extra))
        return known

    def _amiss(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        absent: list[Path] = []
        extra: list[Path] = []
        nodes: list[tuple[Path, Schema]] = [((), self)]
        nodes += [(s.path, s.kid) for s in self.walk() if isinstance(s.kid, Schema)]
        for path, node in nodes:
            record = node.cls._record
            if record is not None:
                absent += [(*path, n) for n in record.names if n not in node.index]
                known = frozenset(record.names)
                extra += [(*path, key) for key in node.keys if key not in known]
        return tuple(absent), tuple(extra)

    # Comparing

    def canon(self) -> Schema:
        """Return the structure without order, ranks and surplus.

        This is what pytree contexts compare: a tree of norms, masks or in_dims has
        the canonical schema of the tree that it was mapped from.
        """
        known = self._canon
        if known is None:
            known = self._rebuilt([0] * self.n, sort=True, bare=True)
            _put(self, "_canon", known)
        return known

    def matches(self, other: Schema) -> bool:
        """Return whether two trees have the same entries, whatever their order."""
        return self is other or self.canon() == other.canon()

    def aligned(self, other: Schema, dims: int, odims: int) -> Aligned:
        """Return how leaves with other numbers of dims pair up, node level by level.

        The batch dims broadcast with the batch dims, the surplus of each nested node
        with the surplus of that node, and feature dims with feature dims.

        Args:
            other: the schema of a tree with the same entries.
            dims: batch dims of the tree of this schema.
            odims: batch dims of the other tree.
        """
        token = ("aligned", other, dims, odims)
        known = self._memo.get(token)
        if known is not None:
            return known
        mine, theirs = self._segments(dims), other._segments(odims)
        joint = {
            path: tuple(map(max, segments, theirs[path]))
            for path, segments in mine.items()
        }
        leaf = [0] * self.n
        surpluses: list[int] = []
        for path, kid, lo, _, _ in self.walk():
            if isinstance(kid, Schema):
                surpluses.append(joint[path][-1])
            elif is_leaf(kid):
                leaf[lo] = joint[path][-1]
        paths = self.paths()
        schema = self._rebuilt(leaf, surpluses=surpluses)
        columns = [tuple([side[p] for p in paths]) for side in (mine, theirs, joint)]
        return self._remember(token, Aligned(schema, *columns))

    def _segments(self, dims: int) -> dict[Path, tuple[int, ...]]:
        """Return for every entry the dims that each level above it and it adds."""
        segments: dict[Path, tuple[int, ...]] = {(): (dims,)}
        total: dict[Path, int] = {(): 0}
        for path, kid, _, _, surplus in self.walk():
            above = path[:-1]
            if isinstance(kid, Schema):
                segments[path] = (*segments[above], surplus - total[above])
                total[path] = surplus
            elif is_leaf(kid):
                segments[path] = (*segments[above], rank_of(kid))
        return segments

    # Making others

    def grafted(self, path: Path, kid: Kid, surplus: int, cls: type[Any]) -> Spliced:
        """Return the schema with `kid` at `path`, replacing what is there.

        Missing nodes on the way are made, of class `cls`. The path must not go
        through a leaf (ask `blocked` first).
        """
        token = ("grafted", path, kid, surplus, cls)
        known = self._memo.get(token)
        if known is not None:
            return known
        spine: list[tuple[Schema, str, int]] = []
        node, own, lo, slo = self, 0, 0, 0
        hi = shi = 0
        for i, key in enumerate(path):
            spine.append((node, key, own))
            entry = node.index.get(key)
            if entry is None:
                offset, soffset = node._place(key)
                lo, slo = lo + offset, slo + soffset
                hi, shi = lo, slo
                for rest in reversed(path[i + 1 :]):
                    kid = Schema(cls, (rest,), (kid,), (surplus,))
                    surplus = 0
                break
            old, offset, soffset, own = entry
            lo, slo = lo + offset, slo + soffset
            hi, shi = lo + _leaves_of(old), slo + _statics_of(old)
            if isinstance(old, Schema):
                node = old
        for parent, key, own in reversed(spine):
            kid = parent._with_kid(key, kid, surplus)
            surplus = own
        new = cast("Schema", kid)
        return self._remember(token, Spliced(new, lo, hi, slo, shi))

    def written(
        self, paths: tuple[Path, ...], ranks: tuple[int, ...], cls: type[Any]
    ) -> Narrowed | None:
        """Return the schema with tensors put at `paths`, one after the other.

        The slots of the result that are not negative are those of old leaves; ``~i``
        stands for the i-th tensor. None where a node has rules of its own: a record, a
        lazy stack, one with more batch dims; or where a path goes through a leaf.

        Args:
            paths: where the tensors go.
            ranks: for each its dims behind the batch dims of this node.
            cls: the class of new nodes.
        """
        token = ("written", paths, ranks, cls)
        known = self._memo.get(token)
        if known is not None:
            return known
        if self.records or self.lazy:
            return None
        schema = self
        slots, sslots = list(range(self.n)), list(range(self.m))
        for i, (path, rank) in enumerate(zip(paths, ranks, strict=True)):
            if schema.blocked(path) is not None or schema.sized(schema.home(path))[2]:
                return None
            where = schema.grafted(path, rank, 0, cls)
            slots[where.lo : where.hi] = [~i]
            sslots[where.slo : where.shi] = []
            schema = where.schema
        done = Narrowed(schema, tuple(slots), tuple(sslots))
        return self._remember(token, done)

    def narrowed_before(self, keys: tuple[Any, ...], *, keep: bool) -> Narrowed | None:
        """Return what `narrowed` gave when it was last asked for these `keys`."""
        try:
            return self._memo.get(("narrowed", keys, keep))
        except TypeError:  # an unhashable key is none
            return None

    def narrowed(
        self, paths: tuple[Path, ...], *, keep: bool, keys: tuple[Any, ...] = ()
    ) -> Narrowed:
        """Return the schema with only (or without) `paths`, and what stays.

        A node emptied by leaving entries out stays; a node that holds nothing
        selected goes. `keys` are the paths as the caller spelled them, for
        `narrowed_before`.
        """
        token = ("narrowed", paths, keep)
        known = self._memo.get(token)
        if known is not None:
            return self._remember(("narrowed", keys, keep), known) if keys else known
        chosen = set(paths)
        leaf: list[int | None] = [None] * self.n
        static = [False] * self.m
        nodes: list[bool] = []
        for path, kid, lo, slo, _ in self.walk():
            if path in chosen or path[:-1] in chosen:
                chosen.add(path)
            stays = (path in chosen) is keep
            if isinstance(kid, Schema):
                nodes.append(stays)
                continue
            if is_kept(kid):
                static[slo] = stays
            if is_leaf(kid):
                leaf[lo] = rank_of(kid) if stays else None
        schema = self._rebuilt(leaf, static=static, nodes=nodes)
        slots = tuple([i for i, kid in enumerate(leaf) if kid is not None])
        sslots = tuple([i for i, stays in enumerate(static) if stays])
        known = self._remember(token, Narrowed(schema, slots, sslots))
        return self._remember(("narrowed", keys, keep), known) if keys else known

    def moved(self, moves: tuple[tuple[Path, Path], ...], cls: type[Any]) -> Moved:
        """Return the schema in which some entries are at other paths.

        Entries keep the order in which a walk meets them. A node that is emptied by
        this goes, one that was empty stays, and nodes that are missing on the way to
        a path are made, of class `cls`. A node keeps its batch dims unless it comes
        into a node with more.

        Args:
            moves: old and new path of entries, none of them inside another.
            cls: the class of new nodes.
        """
        token = ("moved", moves, cls)
        known = self._memo.get(token)
        if known is None:
            known = self._remember(token, _Move(self, dict(moves), cls).done())
        return known

    def joined(self, separator: str, whole: tuple[Path, ...], cls: type[Any]) -> Moved:
        """Return the schema in which every path is one key, joined by `separator`.

        What is in the nodes `whole` stays in them; an empty node stays a node.
        """
        token = ("joined", separator, whole, cls)
        known = self._memo.get(token)
        if known is None:
            moves: list[tuple[Path, Path]] = []
            closed = set(whole)
            for path, kid, *_ in self.walk():
                if path[:-1] in closed:
                    closed.add(path)
                elif not isinstance(kid, Schema) or not kid.keys or path in closed:
                    moves.append((path, (separator.join(path),)))
            known = self._remember(token, self.moved(tuple(moves), cls))
        return known

    def outside(self, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return the paths of the ends and empty nodes that are not inside `paths`."""
        token = ("outside", paths)
        known = self._memo.get(token)
        if known is None:
            taken = set(paths)
            left: list[Path] = []
            for path, kid, *_ in self.walk():
                if path in taken or path[:-1] in taken:
                    taken.add(path)
                elif not isinstance(kid, Schema) or not kid.keys:
                    left.append(path)
            known = self._remember(token, tuple(left))
        return known

    def parted(
        self, chosen: tuple[bool, ...]
    ) -> tuple[tuple[Schema, tuple[int, ...]], tuple[Schema, tuple[int, ...]]]:
        """Return the schema of the leaves `chosen` and that of all the rest.

        Statics and nodes that were empty before go with the rest, and codes must,
        whose tables are statics.
        """
        token = ("parted", chosen)
        known = self._memo.get(token)
        if known is not None:
            return known
        ranks = self.leaf_kids()
        parts: list[tuple[Schema, tuple[int, ...]]] = []
        for side in (True, False):
            leaf = [
                k if c is side else None for k, c in zip(ranks, chosen, strict=True)
            ]
            nodes = [
                not side and not kid.keys
                for _, kid, *_ in self.walk()
                if isinstance(kid, Schema)
            ]
            static = [not side] * self.m
            schema = self._rebuilt(leaf, static=static, nodes=nodes)
            parts.append(
                (schema, tuple([i for i, c in enumerate(chosen) if c is side]))
            )
        return self._remember(token, (parts[0], parts[1]))

    def picked(
        self, names: tuple[Path, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return which of the paths and patterns is for which leaf: see `picked`."""
        token = ("picked", names)
        known = self._memo.get(token)
        if known is None:
            found, unused = picked(self.paths(), names)
            known = self._remember(token, (tuple(found), tuple(unused)))
        return known

    def leaf_kids(self) -> tuple[int, ...]:
        """Return for every leaf its dims behind the batch dims of its *own* node."""
        known = self._memo.get("leaf_kids")
        if known is None:
            kids = [0] * self.n
            for _, kid, lo, _, _ in self.walk():
                if is_leaf(kid):
                    kids[lo] = rank_of(kid)
            known = self._remember("leaf_kids", tuple(kids))
        return known

    def replaced(self, nodes: tuple[tuple[int, Schema, int], ...]) -> Schema:
        """Return the schema in which some leaves have become nodes.

        Args:
            nodes: `(place of the leaf, schema of the node, its surplus)`.
        """
        schema = self
        paths = self.paths()
        for slot, kid, surplus in nodes:
            path = paths[slot]
            above = self._own_total(path[:-1])
            schema = schema.grafted(path, kid, surplus - above, kid.cls).schema
        return schema

    def rebased(self, old: int, new: int) -> Schema:
        """Return the schema of the same leaves read with `new` batch dims, not `old`.

        Nested nodes that had the batch size of their parent follow it; those with
        surplus keep their own dims where the parent leaves them. A leaf that has
        fewer dims than it would need has feature rank 0.
        """
        if old == new:
            return self
        leaf = [0] * self.n
        surpluses: list[int] = []
        dims: dict[Path, int] = {(): new}
        total: dict[Path, int] = {(): old}
        for path, kid, lo, _, surplus in self.walk():
            above = path[:-1]
            if isinstance(kid, Schema):
                was = old + surplus
                own = surplus + old - total[above]
                follows = own == 0 and not is_lazy(kid)
                dims[path] = dims[above] if follows else max(dims[above], was)
                total[path] = was
                surpluses.append(dims[path] - dims[above])
            elif is_leaf(kid):
                leaf[lo] = max(0, old + surplus + rank_of(kid) - dims[above])
        return self._rebuilt(leaf, surpluses=surpluses)

    def with_ranks(
        self, kids: tuple[int, ...], surpluses: tuple[int, ...] | None = None
    ) -> Schema:
        """Return the schema with other feature ranks, one for every leaf.

        Args:
            kids: the dims of every leaf behind the batch dims of its own node.
            surpluses: the surplus of every nested node, in the order of `walk`; None
                keeps them.
        """
        token = ("with_ranks", kids, surpluses)
        known = self._memo.get(token)
        if known is None:
            known = self._remember(token, self._rebuilt(kids, surpluses=surpluses))
        return known

    def of_class(self, cls: type[Any]) -> Schema:
        """Return the structure in which every node is of one class, but lazy stacks."""

        def other(old: type[Any] | None) -> type[Any] | None:
            return old if old is None or getattr(old, "is_lazy", False) else cls

        rows = [(*row[:3], other(row[3])) for row in self.entries()]
        return schema_from_entries(other(self.cls) or cls, rows)

    def flattened(self) -> Schema:
        """Return the schema of scalars: every feature rank and surplus is 0."""
        known = self._memo.get("flattened")
        if known is None:
            known = self._remember("flattened", self._rebuilt([0] * self.n, bare=True))
        return known

    def inferred(self, shapes: tuple[Shape, ...], most: int) -> tuple[Schema, int]:
        """Return the schema in which every node has the longest batch it can have.

        Args:
            shapes: the shape of every leaf.
            most: how many batch dims a node has at most.
        """
        every = range(self.n)
        batch = _shared_prefix(shapes, every, most, 0) if self.n else 0
        leaf = [0] * self.n
        surpluses: list[int] = []
        dims: dict[Path, int] = {(): batch}
        for path, kid, lo, _, _ in self.walk():
            above = dims[path[:-1]]
            if isinstance(kid, Schema):
                inside = range(lo, lo + kid.n)
                own = len(shapes[lo]) if is_lazy(kid) else most
                dims[path] = (
                    _shared_prefix(shapes, inside, own, above) if kid.n else above
                )
                surpluses.append(dims[path] - above)
            elif is_leaf(kid):
                leaf[lo] = len(shapes[lo]) - above
        return self._rebuilt(leaf, surpluses=surpluses), batch

    def settled(
        self, shapes: tuple[Shape | None, ...], fixed: int = -1
    ) -> tuple[Schema, int]:
        """Apply the rank rule: return the true schema and the number of batch dims.

        For every leaf with a shape, ``ndim - feature rank`` is counted; the minimum
        (never below 0), shortened to the longest prefix whose sizes all leaves
        share, are the batch dims, and what is left of each leaf is its new feature
        rank. A nested node does the same inside itself for its surplus.

        Args:
            shapes: the shape of every leaf, None where a leaf is no tensor.
            fixed: the number of batch dims when it is known; then a nested node has
                at most the surplus that it had.
        """
        known = [i for i, shape in enumerate(shapes) if shape is not None]
        if not known:
            return self, max(fixed, 0)
        batch = fixed
        if fixed < 0:
            most = _counted(shapes, self.ranks(), known, 0)
            batch = _shared_prefix(shapes, known, most, 0)
        leaf = list(self.leaf_kids())
        surpluses: list[int] = []
        dims: dict[Path, int] = {(): batch}
        for path, kid, lo, _, _ in self.walk():
            above = dims[path[:-1]]
            if isinstance(kid, Schema):
                most = above + self._own_surplus(path)
                inside = [i for i in known if lo <= i < lo + kid.n]
                if inside and fixed < 0:
                    most = _counted(shapes, kid.ranks(), inside, lo)
                dims[path] = _shared_prefix(shapes, inside, most, above)
                surpluses.append(dims[path] - above)
            elif is_leaf(kid):
                shape = shapes[lo]
                if shape is not None:
                    leaf[lo] = len(shape) - above
        return self._rebuilt(leaf, surpluses=surpluses), batch

    # Inside

    def _place(self, key: str) -> tuple[int, int]:
        """Return the first leaf and static that a new entry `key` would have."""
        at = bisect_left(self.order, key)
        if at == len(self.order):
            return self.n, self.m
        _, lo, slo, _ = self.index[self.order[at]]
        return lo, slo

    def _own_total(self, path: Path) -> int:
        found = self.find(path) if path else None
        return found.surplus if found is not None else 0

    def _own_surplus(self, path: Path) -> int:
        return self._own_total(path) - self._own_total(path[:-1])

    def _with_kid(self, key: str, kid: Kid, surplus: int) -> Schema:
        if key not in self.index:
            return Schema(
                self.cls,
                (*self.keys, key),
                (*self.kids, kid),
                (*self.surplus, surplus),
            )
        at = self.keys.index(key)
        return Schema(
            self.cls,
            self.keys,
            (*self.kids[:at], kid, *self.kids[at + 1 :]),
            (*self.surplus[:at], surplus, *self.surplus[at + 1 :]),
        )

    def _rebuilt(
        self,
        leaf: Sequence[int | None],
        *,
        static: Sequence[bool] | None = None,
        nodes: Sequence[bool] | None = None,
        surpluses: Sequence[int] | None = None,
        sort: bool = False,
        bare: bool = False,
    ) -> Schema:
        """Return this structure with other ranks, or with entries left out.

        Args:
            leaf: new feature rank of every leaf, None to leave it out.
            static: which statics stay; None keeps all. The table of codes goes with
                its leaf.
            nodes: which nested nodes (in the order of `walk`) stay even if nothing
                in them does; None keeps all.
            surpluses: new surplus of every nested node, in the order of `walk`.
            sort: put the keys in sorted order.
            bare: make every surplus 0.
        """
        count = 0
        stack = [_Rebuild(self, 0, 0, "", 0, keep=True, sort=sort)]
        while True:
            draft = stack[-1]
            for key in draft.rest:
                kid, lo, slo, surplus = draft.schema.index[key]
                lo, slo = draft.lo + lo, draft.slo + slo
                if isinstance(kid, Schema):
                    if surpluses is not None:
                        surplus = surpluses[count]
                    keep = nodes is None or nodes[count]
                    count += 1
                    surplus = 0 if bare else surplus
                    stack.append(
                        _Rebuild(kid, lo, slo, key, surplus, keep=keep, sort=sort)
                    )
                    break
                if is_leaf(kid):
                    rank = leaf[lo]
                    if rank is not None:
                        draft.add(key, _with_rank(kid, rank), 0)
                elif static is None or static[slo]:
                    draft.add(key, kid, 0)
            else:
                stack.pop()
                built = Schema(
                    draft.schema.cls,
                    tuple(draft.keys),
                    tuple(draft.kids),
                    tuple(draft.surplus),
                )
                if not stack:
                    return built
                if draft.keep or draft.keys:
                    stack[-1].add(draft.key, built, draft.own)

    def _remember(self, token: Hashable, value: Any) -> Any:
        if len(self._memo) >= _MEMO_LIMIT:
            self._memo.clear()
        self._memo[token] = value
        return value


Kid: TypeAlias = int | Schema


class _Rebuild:
    """A node under construction in `Schema._rebuilt`."""

    __slots__ = (
        "keep", "key", "keys", "kids", "lo", "own", "rest", "schema", "slo", "surplus",
    )  # fmt: skip

    def __init__(
        self,
        schema: Schema,
        lo: int,
        slo: int,
        key: str,
        own: int,
        *,
        keep: bool,
        sort: bool,
    ) -> None:
        self.schema = schema
        self.lo = lo
        self.slo = slo
        self.key = key
        self.own = own
        self.keep = keep
        self.rest = iter(schema.order if sort else schema.keys)
        self.keys: list[str] = []
        self.kids: list[Kid] = []
        self.surplus: list[int] = []

    def add(self, key: str, kid: Kid, surplus: int) -> None:
        self.keys.append(key)
        self.kids.append(kid)
        self.surplus.append(surplus)


class _Move:
    """The work of `Schema.moved`."""

    def __init__(
        self, schema: Schema, targets: dict[Path, Path], cls: type[Any]
    ) -> None:
        self.schema = schema
        self.targets = targets
        self.cls = cls
        self.steps = tuple(schema.walk())
        self.kept: dict[Path, Step] = {}  # old nodes that stay, by new path
        # The new tree: the keys and batch dims of every node, the old node that tells
        # its batch size, and what the ends are.
        self.below: dict[Path, list[str]] = {(): []}
        self.total: dict[Path, int] = {(): 0}
        self.home: dict[Path, Path] = {(): ()}
        self.ends: dict[Path, Step] = {}
        self.clashes: dict[Path, None] = {}
        self.entered: list[tuple[int, int, Path, Path, Path]] = []

    def done(self) -> Moved:
        alive = self._alive()
        news: dict[Path, Path] = {(): ()}
        rows: list[tuple[Step, Path]] = []
        for step in self.steps:
            path = step.path
            new = self.targets.get(path) or (*news[path[:-1]], path[-1])
            news[path] = new
            if path in alive:
                rows.append((step, new))
                if isinstance(step.kid, Schema):
                    if new in self.kept:
                        self.clashes[new] = None
                    self.kept[new] = step
        for step, new in rows:
            self._place(step, new)
        if self.clashes:
            return Moved(self.schema, (), (), tuple(self.clashes), ())
        return self._built()

    def _alive(self) -> set[Path]:
        """Return the ends, and the nodes in which something stays or nothing was."""
        alive: set[Path] = set()
        for path, kid, *_ in reversed(self.steps):
            if not isinstance(kid, Schema) or not kid.keys:
                alive.add(path)
            if path in alive and path not in self.targets:
                alive.add(path[:-1])
        return alive

    def _place(self, step: Step, new: Path) -> None:
        way: list[Path] = []
        base = above = new[:-1]
        while base not in self.below and base not in self.ends:
            way.append(base)
            base = base[:-1]
        is_node = isinstance(step.kid, Schema)
        if base in self.ends or new in self.ends or (not is_node and new in self.below):
            self.clashes[new] = None
            return
        for path in reversed(way):
            self._open(path)
        if is_node:
            self._open(new)
        else:
            self.below[above].append(new[-1])
            self.ends[new] = step
        home = self.home[above]
        if step.path in self.targets and self.total[above] and home != step.path[:-1]:
            hi = step.lo + _leaves_of(step.kid)
            self.entered.append((step.lo, hi, step.path, new, home))

    def _open(self, path: Path) -> None:
        if path in self.below:
            return
        above = path[:-1]
        self.below[above].append(path[-1])
        self.below[path] = []
        old = self.kept.get(path)
        self.total[path] = max(self.total[above], old.surplus if old else 0)
        self.home[path] = old.path if old else self.home[above]

    def _built(self) -> Moved:
        flat: list[tuple[int, str, int, type[Any] | None]] = []
        stack: list[tuple[Path, Iterator[str]]] = [((), iter(self.below[()]))]
        while stack:
            above, keys = stack[-1]
            for key in keys:
                path = (*above, key)
                end = self.ends.get(path)
                if end is None:
                    own = self.total[path] - self.total[above]
                    old = self.kept.get(path)
                    cls = cast("Schema", old.kid).cls if old else self.cls
                    flat.append((len(stack), key, own, cls))
                    stack.append((path, iter(self.below[path])))
                    break
                kind = cast("int", end.kid)
                if is_leaf(kind):
                    rank = rank_of(kind) + end.surplus - self.total[above]
                    kind = _with_rank(kind, max(0, rank))
                flat.append((len(stack), key, kind, None))
            else:
                stack.pop()
        schema = schema_from_entries(self.schema.cls, flat)
        slots, sslots = [0] * schema.n, [0] * schema.m
        for path, kid, lo, slo, _ in schema.walk():
            if is_kept(kid):
                sslots[slo] = self.ends[path].slo
            if is_leaf(kid):
                slots[lo] = self.ends[path].lo
        return Moved(schema, tuple(slots), tuple(sslots), (), tuple(self.entered))


def schema_from_entries(
    cls: type[Any], entries: Sequence[tuple[int, str, int, type[Any] | None]]
) -> Schema:
    """Return the schema whose `Schema.entries` are `entries`."""
    stack: list[tuple[str, int, type[Any], list[tuple[str, Kid, int]]]] = [
        ("", 0, cls, [])
    ]

    def close() -> Schema:
        key, surplus, node, rows = stack.pop()
        schema = Schema(
            node,
            tuple([row[0] for row in rows]),
            tuple([row[1] for row in rows]),
            tuple([row[2] for row in rows]),
        )
        if stack:
            stack[-1][3].append((key, schema, surplus))
        return schema

    for depth, key, kind, node in entries:
        while len(stack) > depth:
            close()
        if node is None:
            stack[-1][3].append((key, kind, 0))
        else:
            stack.append((key, kind, node, []))
    while len(stack) > 1:
        close()
    return close()


def path_id(path: Path) -> int:
    """Return 64 bits of a hash of a path, the same in every process."""
    digest = blake2b(digest_size=8)
    for key in path:
        # With its length in front: ("a", "b") is not ("ab",).
        text = key.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest(), "little", signed=True)


def is_leaf(kid: Kid) -> TypeGuard[int]:
    """Return whether an entry of this kind is a leaf: a tensor, or codes."""
    return not isinstance(kid, Schema) and (kid >= 0 or kid <= ROWS)


def is_tensor(kid: Kid) -> bool:
    """Return whether an entry of this kind is a tensor with the batch in front."""
    return not isinstance(kid, Schema) and kid >= 0


def is_kept(kid: Kid) -> TypeGuard[int]:
    """Return whether an entry of this kind has a value among the statics."""
    return not isinstance(kid, Schema) and kid < 0


def rank_of(kid: int) -> int:
    """Return the feature rank of a leaf."""
    return kid if kid >= 0 else ROWS - kid


def kind_name(kid: Kid) -> str:
    """Return what people call the kind of an entry."""
    if isinstance(kid, Schema):
        return "a node"
    if kid >= 0:
        return "a tensor"
    names = {STATIC: "a static value", UNBATCHED: "an unbatched tensor"}
    return names.get(kid, "the rows of a list")


def is_lazy(schema: Kid) -> bool:
    """Return whether an entry of this kind is a lazy stack."""
    if not isinstance(schema, Schema):
        return False
    return schema.n > 0 and getattr(schema.cls, "is_lazy", False)


def _with_rank(kid: int, rank: int) -> int:
    return rank if kid >= 0 else ROWS - rank


def _leaves_of(kid: Kid) -> int:
    if isinstance(kid, Schema):
        return kid.n
    return int(is_leaf(kid))


def _statics_of(kid: Kid) -> int:
    if isinstance(kid, Schema):
        return kid.m
    return int(is_kept(kid))


def _counted(
    shapes: Sequence[Shape | None], ranks: Sequence[int], slots: Sequence[int], lo: int
) -> int:
    """Return the least ``ndim - rank`` over the leaves in `slots`."""
    known = [(shape, ranks[i - lo]) for i in slots if (shape := shapes[i]) is not None]
    return min(len(shape) - rank for shape, rank in known)


def _shared_prefix(
    shapes: Sequence[Shape | None], slots: Sequence[int], most: int, least: int
) -> int:
    """Return how many leading dims, at most `most`, the leaves in `slots` share."""
    known = [shape for i in slots if (shape := shapes[i]) is not None]
    most = max(least, most)
    for shape in known:
        most = min(most, len(shape))
        while shape[:most] != known[0][:most]:
            most -= 1
    return most


def _declares_fields(node_cls: type[Any]) -> bool:
    return getattr(node_cls, "_record", None) is not None


def _make(
    node_cls: type[Any],
    keys: tuple[str, ...],
    kids: tuple[Kid, ...],
    surplus: tuple[int, ...] | None,
) -> Schema:
    for key in keys:
        if check_key(key) is not key:
            raise InvalidKeyError("keys are plain strings", got=type(key).__name__)
    if len(frozenset(keys)) != len(keys):
        raise InvalidKeyError("a key comes twice", got=keys)
    own_hash = hash((node_cls, keys, kids, surplus))
    surplus = surplus or (0,) * len(keys)
    schema = object.__new__(Schema)
    entries = dict(zip(keys, zip(kids, surplus, strict=True), strict=True))
    order = tuple(sorted(keys))
    n = m = 0
    index: dict[str, tuple[Kid, int, int, int]] = {}
    slots: dict[str, int] = {}
    rows: list[int] = []
    extra = False
    lazy = False
    for key in order:
        kid, more = entries[key]
        index[key] = (kid, n, m, more)
        if isinstance(kid, Schema):
            rows += [n + slot for slot in kid.rows]
            n, m = n + kid.n, m + kid.m
            extra = extra or kid.extra or more > 0
            lazy = lazy or kid.lazy
            continue
        if kid >= 0:
            slots[key] = n
        elif kid <= ROWS:
            rows.append(n)
        n, m = n + is_leaf(kid), m + is_kept(kid)
    _put(schema, "cls", node_cls)
    _put(schema, "keys", keys)
    _put(schema, "kids", kids)
    _put(schema, "surplus", surplus)
    _put(schema, "order", keys if order == keys else order)
    _put(schema, "n", n)
    _put(schema, "m", m)
    own = n > 0 and getattr(node_cls, "is_lazy", False)
    # What a lazy stack holds its members under is no key that anybody can read.
    _put(schema, "slots", {} if own else slots)
    _put(schema, "rows", tuple(rows))
    _put(schema, "index", index)
    _put(schema, "extra", extra)
    inside = [kid.records for kid in kids if isinstance(kid, Schema)]
    _put(schema, "records", _declares_fields(node_cls) or any(inside))
    _put(schema, "lazy", lazy or own)
    _put(schema, "plain", not rows and not lazy and not own)
    _put(schema, "_hash", own_hash)
    _put(schema, "_ranks", None)
    _put(schema, "_paths", None)
    _put(schema, "_canon", None)
    _put(schema, "_found", {})
    _put(schema, "_memo", {})
    return schema


# The schemas of huge trees are not worth keeping without a tree.
_INTERNED: InternTable[Schema] = InternTable(_make, lambda s: s.n + s.m <= _KEPT_KEYS)

register_trace_constant(
    Schema,
    (
        "__eq__",
        "__hash__",
        "absent",
        "aligned",
        "amiss",
        "blocked",
        "canon",
        "child",
        "coded",
        "dotted",
        "entries",
        "field_names",
        "find",
        "flattened",
        "grafted",
        "home",
        "home_name",
        "inferred",
        "joined",
        "lazies",
        "lazy_on",
        "leaf_kids",
        "leaf_names",
        "listed",
        "matches",
        "moved",
        "names",
        "narrowed",
        "narrowed_before",
        "node_keys",
        "outside",
        "of_class",
        "owner",
        "parted",
        "path_ids",
        "paths",
        "picked",
        "ranks",
        "rebased",
        "recoded",
        "replaced",
        "restored",
        "settled",
        "sized",
        "slot",
        "static_paths",
        "unbatched",
        "uncoded",
        "with_ranks",
        "without",
        "written",
    ),
)
