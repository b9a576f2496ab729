"""Operations on the structure: other paths for the same leaves.

Nothing is copied: each returns trees that share the leaves of `td`. A tree keeps its
entries in the order in which a walk over the old one meets them, parents before
children. A node that is emptied by moving its entries away goes; one that was empty
before is an entry like any other and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tdfunc._core.batch import as_constants, as_names, misfit
from tdfunc._core.keys import as_path, short
from tdfunc._core.leaf import LeafLike, unbatched
from tdfunc._core.node import Node, NodeT, entry_at, make, missing, size_at
from tdfunc._core.schema import STATIC, UNBATCHED, Schema, is_lazy
from tdfunc._core.statics import NonTensorData
from tdfunc._core.tree import each_member, noting, refuse_lazy
from tdfunc._ops.entries import (
    apart,
    as_paths,
    check_held,
    exclude,
    rearranged,
    select,
    set,
    update,
)
from tdfunc.errors import (
    InvalidKeyError,
    InvalidLeafError,
    OperandError,
    OptionError,
    ShapeError,
    StructureError,
    show_path,
)
from tdfunc.typing import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tdfunc._core.schema import Moved
    from tdfunc.typing import Path

    KeySet: TypeAlias = (
        Iterable[str | Path]
        | Mapping[Any, str | Path]
        | Callable[[Path, torch.Tensor], Any]
    )

_FEW_SETS = 3

__all__ = [
    "auto_batch_size",
    "empty",
    "filter_empty",
    "filter_non_tensor",
    "flatten_keys",
    "merge",
    "rename_key",
    "rename_keys",
    "split_keys",
    "unflatten_keys",
    "update_with",
]


def rename_key(td: NodeT, old: str | Path, new: str | Path) -> NodeT:
    """Return the tree with one entry under another key or path.

    ``td.rename_keys({old: new})``, with its rules.

    Args:
        td: the tree.
        old: a key or path; a node goes with everything in it.
        new: a key or path that is free.

    Raises:
        MissingKeyError: there is no entry `old`.
        StructureError: there is an entry `new`.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"a": 1, "b": 2}).rename_key("a", ("n", "a")).keys(True)
        ('n', ('n', 'a'), 'b')
    """
    return rename_keys(td, {old: new})


def rename_keys(
    td: NodeT, mapping: Mapping[Any, str | Path], *, strict: bool = True
) -> NodeT:
    """Return the tree with several entries under other keys or paths.

    All sources are read before anything is placed, so that entries can be swapped and
    names handed on in a chain. Missing nodes on the way of a new path are made.

    Args:
        td: the tree.
        mapping: new key or path by old key or path.
        strict: raise for an entry that is not there; False ignores it.

    Returns:
        A new tree that shares every leaf. A renamed node keeps its batch dims, unless
        it comes into a node with more.

    Raises:
        BatchSizeError: an entry comes into a nested node with more batch dims, and
            does not start with them.
        InvalidKeyError: a key is no key or path.
        MissingKeyError: `strict` and an entry is not in the tree.
        OperandError: `mapping` is no mapping.
        StructureError: an entry is named twice, or with a node that it is in; two get
            the same path or one inside the other; or a new path is taken.

    Examples:
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": 1, "b": 2, "c": 3})
        >>> new = td.rename_keys({"a": "b", "b": "a", "c": ("n", "c")})
        >>> new["a"], new["n", "c"]
        (tensor(2), tensor(3))
    """
    size = td.batch_size
    if not isinstance(mapping, Mapping):
        raise OperandError(
            "entries are renamed by a mapping",
            expected="a mapping of old to new keys",
            got=type(mapping).__name__,
            fix="td.rename_key(old, new) renames one entry",
        )
    moves = [(as_path(old), as_path(new)) for old, new in mapping.items()]
    _check_apart([old for old, _ in moves], "the entries to rename are not apart")
    if td._schema.lazy:
        if type(td).is_lazy:
            return _renamed_in_members(td, mapping, strict=strict)
        td, moves = _renamed_inside(td, moves, strict=strict)
    present = [move for move in moves if td._schema.find(move[0]) is not None]
    if strict and len(present) < len(moves):
        old = next(move[0] for move in moves if move not in present)
        raise missing(td, old, "strict=False ignores what is not there")
    _check_apart([new for _, new in present], "the new paths are not apart")
    return _moved(td, size, td._schema.moved(tuple(present), td._plain))


def _renamed_in_members(
    td: NodeT, mapping: Mapping[Any, str | Path], *, strict: bool
) -> NodeT:
    if strict:
        check_held(td, [as_path(old) for old in mapping])
    return each_member(td, lambda t: rename_keys(t, mapping, strict=False))


def _renamed_inside(
    td: NodeT, moves: list[tuple[Path, Path]], *, strict: bool
) -> tuple[NodeT, list[tuple[Path, Path]]]:
    """Return the tree with entries of lazy stacks renamed, and the moves that remain.

    Raises:
        OperandError: an entry would come into a lazy stack, or out of one.
    """
    rest: list[tuple[Path, Path]] = []
    groups: dict[Path, dict[Any, Path]] = {}
    for old, new in moves:
        start, end = td._schema.lazy_on(old), td._schema.lazy_on(new)
        if start < 0 and end < 0:
            rest.append((old, new))
        elif start == end and old[:start] == new[:start]:
            groups.setdefault(old[:start], {})[old[start:]] = new[start:]
        else:
            raise OperandError(
                "an entry can not be moved into a lazy stack, or out of one",
                path=old,
                expected="a new path in the same stack",
                got=show_path(new),
                fix="td.set(new, td[old]).drop(old)",
            )
    for stack, mapping in groups.items():
        renamed = rename_keys(entry_at(td, stack), mapping, strict=strict)
        td = set(td, stack, renamed)
    return td, rest


def _check_apart(paths: list[Path], what: str) -> None:
    """Raise if a path comes twice or leads to something inside another."""
    if len({*paths}) == len(paths) and all([len(path) == 1 for path in paths]):
        return
    count = Counter(paths)
    bad = [path for path, times in count.items() if times > 1]
    bad += [
        path for path in count if any([path[:n] in count for n in range(1, len(path))])
    ]
    if bad:
        raise StructureError(
            what,
            expected="paths of which none is another or inside another",
            got=", ".join(map(show_path, bad)),
        )


def _moved(td: NodeT, size: torch.Size, plan: Moved) -> NodeT:
    if plan.clashes:
        raise StructureError(
            "several entries would have the same path",
            got=", ".join(map(show_path, plan.clashes)),
            fix="td.drop(*keys) leaves out what is in the way",
        )
    paths = td._schema.paths()
    for lo, hi, old, new, home in plan.entered:
        room = size_at(td, home)
        for path, leaf in zip(paths[lo:hi], td._leaves[lo:hi], strict=True):
            if leaf.shape[: len(room)] != room:
                raise misfit((*new, *path[len(old) :]), leaf.shape, room)
    return rearranged(td, size, plan)


def flatten_keys(
    td: NodeT,
    separator: str = ".",
    is_leaf: Callable[[Any], bool] | None = None,
) -> NodeT:
    """Return the tree of one level: every path is one key, joined by `separator`.

    ``td.flatten_keys().unflatten_keys()`` has the entries of `td` if no key holds the
    separator. Statics are flattened as tensors are, and so are empty nodes, which
    stay nodes. What a nested node had besides its entries is lost: its class, and
    batch dims that its parent has not.

    Args:
        td: the tree.
        separator: what to put between keys.
        is_leaf: a function of a nested node; where it returns True the node stays
            whole, under its joined path. None opens every node.

    Raises:
        OptionError: `separator` is not a non-empty string.
        StructureError: two paths give the same key; all such are listed.

    Examples:
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"n": {"a": 1, "m": {"b": 2}}, "c": 3})
        >>> td.flatten_keys().keys()
        ('n.a', 'n.m.b', 'c')
    """
    _check_separator(separator)
    if type(td).is_lazy:
        return each_member(td, lambda t: flatten_keys(t, separator, is_leaf))
    size = td.batch_size
    whole = [path for _, path, _ in td._schema.lazies()]
    if is_leaf is not None:
        closed: dict[Path, bool] = {(): False}
        for step in td._schema.listed(True, False, False):  # noqa: FBT003
            if isinstance(step.kid, Schema):
                path = step.path
                inside = closed[path[:-1]] or path in whole
                closed[path] = inside or bool(is_leaf(entry_at(td, path)))
                if closed[path] and not inside:
                    whole.append(path)
    return _moved(td, size, td._schema.joined(separator, tuple(whole), td._plain))


def unflatten_keys(td: NodeT, separator: str = ".") -> NodeT:
    """Return the tree in which a key that holds `separator` is a path.

    Acts on the keys of the root; those of nested nodes are left alone. A node that is
    on the way of several keys, or there already, gets the entries of all of them.

    Args:
        td: the tree.
        separator: what stands between keys.

    Raises:
        BatchSizeError: an entry comes into a nested node with more batch dims, and
            does not start with them.
        InvalidKeyError: a key has nothing before, after or between separators; all
            such are listed.
        OptionError: `separator` is not a non-empty string.
        StructureError: two keys give the same path, or one that goes on below a leaf;
            all such are listed.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"n.a": 1, "c": 3, "n.m.b": 2}).unflatten_keys().keys(True)
        ('n', ('n', 'a'), ('n', 'm'), ('n', 'm', 'b'), 'c')
    """
    _check_separator(separator)
    if type(td).is_lazy:
        return each_member(td, lambda t: unflatten_keys(t, separator))
    size = td.batch_size
    keys = [key for key in td._schema.keys if separator in key]
    moves = tuple([((key,), tuple(key.split(separator))) for key in keys])
    bad = [key for (key,), path in moves if not all(path)]
    if bad:
        raise InvalidKeyError(
            "keys give a path with an empty key",
            expected=f"something between, before and after {separator!r}",
            got=", ".join(map(repr, bad)),
            fix="td.rename_key(old, new) gives them other names",
        )
    return _moved(td, size, td._schema.moved(moves, td._plain))


def _check_separator(separator: Any) -> None:
    if not isinstance(separator, str) or not separator:
        raise OptionError(
            "this can not separate keys",
            expected="a non-empty string",
            got=repr(separator),
        )


def split_keys(
    td: NodeT,
    *key_sets: KeySet,
    default: Any = MISSING,
    strict: bool = True,
) -> tuple[NodeT, ...]:
    """Return a tree for every set of keys, and the tree of what no set has.

    ``merge(*td.split_keys(*key_sets))`` has the entries of `td`.

    Args:
        td: the tree.
        key_sets: each a list, tuple or set of keys and paths, which may be empty; a
            node comes with everything in it. Or a mapping of them to the keys or
            paths that they get. Or a function of a path and a leaf that is true for
            the leaves to take; it sees those that no set before it took, and should
            look at dtypes and shapes, not at values.
        default: the value of an entry that is not there, anything that `set` takes.
        strict: without `default`, raise for an entry that is not there; False leaves
            it out.

    Returns:
        As many trees as sets, and one more. That last one has no node that was
        emptied by this; nodes that were empty before are entries.

    Raises:
        InvalidKeyError: a key is no key or path.
        MissingKeyError: `strict`, no `default`, and an entry is not in the tree.
        OptionError: a set is a single key, or no collection.
        StructureError: an entry is in two sets, or in one together with the node that
            it is in; all such are listed. Or new keys of a mapping are taken.
        Exception: what a function raises, with a note that names the leaf.

    Examples:
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": 1, "n": {"b": 2, "c": 3}})
        >>> [t.keys(True) for t in td.split_keys(["a"], [("n", "b")])]
        [('a',), ('n', ('n', 'b')), ('n', ('n', 'c'))]
        >>> deep, rest = td.split_keys(lambda path, leaf: len(path) > 1)
        >>> deep.keys(), rest.keys(), td.split_keys({"a": "z"})[0].keys()
        (('n',), ('a',), ('z',))
    """
    size = td.batch_size
    sets: list[tuple[Path, ...]] = []
    every: list[Path] = []
    for i, keys in enumerate(key_sets):
        if callable(keys):
            sets.append(_chosen(td, keys, every))
        else:
            sets.append(as_paths(keys, f"key set {i}"))
        every += sets[-1]
    _check_apart(every, "the key sets are not apart")
    if type(td).is_lazy:
        split = partial(split_keys, default=default, strict=strict)
        parts = td._leaves[0].along("split_keys", lambda t, _: split(t, *sets), [])
        size = td.batch_size
        return tuple(
            [make(td._schema, (p,), td._statics, size, td._names) for p in parts]
        )
    parts: list[NodeT] = []
    selected = _selections(td, sets, strict=strict and default is MISSING)
    for keys, paths, one in zip(key_sets, sets, selected, strict=True):
        part = one
        if default is not MISSING:
            for path in paths:
                if path not in part:
                    part = set(part, path, default)
        if isinstance(keys, Mapping):
            part = rename_keys(part, keys, strict=False)
        parts.append(part)
    inside = apart(td, every)
    within = {path for group in inside.values() for path in group}
    rest = td._schema.outside(tuple([path for path in every if path not in within]))
    last = rearranged(td, size, td._schema.narrowed(rest, keep=True))
    for stack, group in inside.items():
        own = [path[len(stack) :] for path in group]
        last = set(last, stack, exclude(entry_at(td, stack), *own))
    return (*parts, last)


def _selections(
    td: NodeT, sets: list[tuple[Path, ...]], *, strict: bool
) -> list[NodeT]:
    """Return the tree of each set of paths, of which none is in two.

    Selecting costs what the tree holds, so that of many sets each half is selected
    first, and each half of it from that.
    """
    out: list[Any] = [None] * len(sets)
    pending: list[tuple[Any, int, int]] = [(td, 0, len(sets))]
    while pending:
        tree, start, stop = pending.pop()
        if stop - start <= _FEW_SETS:
            for at in range(start, stop):
                out[at] = select(tree, *sets[at], strict=strict)
            continue
        middle = (start + stop) // 2
        for lo, hi in ((start, middle), (middle, stop)):
            paths = [path for own in sets[lo:hi] for path in own]
            pending.append((select(tree, *paths, strict=strict), lo, hi))
    return out


def _chosen(
    td: Node, choose: Callable[[Path, Any], Any], taken: list[Path]
) -> tuple[Path, ...]:
    """Return the paths of the leaves that a function takes, of those not taken."""
    gone = {*taken}
    out: list[Path] = []
    for path, leaf in zip(td._schema.paths(), td._leaves, strict=True):
        if any([path[:end] in gone for end in range(1, len(path) + 1)]):
            continue
        try:
            if choose(path, leaf):
                out.append(path)
        except Exception as error:
            noting(error, path)
            raise
    return tuple(out)


def filter_empty(td: NodeT) -> NodeT:
    """Return the tree without nodes that hold nothing but such nodes.

    A static is something. The root stays, empty or not.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"a": 1, "n": {"m": {}}, "s": {"t": "x"}}).filter_empty().keys()
        ('a', 's')
    """
    size = td.batch_size
    schema = td._schema
    held = (*schema.paths(), *schema.static_paths())
    done = rearranged(td, size, schema.narrowed(held, keep=True))
    return each_member(done, filter_empty) if schema.lazy else done


def filter_non_tensor(td: NodeT) -> NodeT:
    """Return the tree without statics and rows: only tensors, and all nodes, stay.

    Tensors that are `unbatched` are tensors.

    Examples:
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": 1, "s": "x", "n": {"t": None}})
        >>> td.filter_non_tensor().keys(True)
        ('a', 'n')
    """
    size = td.batch_size
    schema = td._schema
    kept = frozenset(schema.unbatched())
    gone = [p for at, p in enumerate(schema.static_paths()) if at not in kept]
    done = rearranged(td, size, schema.narrowed(tuple(gone), keep=False))
    return each_member(done, filter_non_tensor) if schema.lazy else done


def empty(td: NodeT, recurse: bool = False) -> NodeT:  # noqa: FBT001, FBT002 - the peer's signature
    """Return the tree without entries: its class, batch size and dim names.

    Args:
        td: the tree.
        recurse: keep nested nodes and statics, so that only tensors are missing.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}}, 3)
        >>> td.empty(), td.empty(recurse=True).keys()
        (TensorDict(batch_size=[3], fields={}), ('n',))
    """
    if type(td).is_lazy:
        return each_member(td, lambda member: empty(member, recurse))
    size = td.batch_size
    schema = td._schema
    if recurse:
        return rearranged(td, size, schema.narrowed(schema.paths(), keep=False))
    return rearranged(td, size, schema.narrowed((), keep=True))


def auto_batch_size(td: NodeT, batch_dims: int | None = None) -> NodeT:
    """Return the same leaves read with the longest batch size that they share.

    So does each nested node, which can get more dims than its parent. A leaf without
    dims makes the batch size of all nodes above it ``[]``; statics do not count, and
    a tree without leaves has ``[]``. Names of dims that stay are kept.

    Args:
        td: the tree.
        batch_dims: at most this many dims in every node, None for all.

    Raises:
        InvalidLeafError: a leaf is no tensor.
        OptionError: `batch_dims` is not an int >= 0.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": torch.zeros(3, 4), "n": {"b": torch.zeros(3, 5)}})
        >>> td.auto_batch_size().batch_size, td.auto_batch_size()["n"].batch_size
        (torch.Size([3]), torch.Size([3, 5]))
    """
    is_int = isinstance(batch_dims, int) and not isinstance(batch_dims, bool)
    if batch_dims is not None and (not is_int or batch_dims < 0):
        raise OptionError(
            "batch_dims is no number of dims", expected="an int >= 0", got=batch_dims
        )
    if type(td).is_lazy:
        refuse_lazy(td, "auto_batch_size")
    names = td.names
    schema, leaves = td._schema, td._leaves
    for path, leaf in zip(schema.paths(), leaves, strict=True):
        if not isinstance(leaf, (torch.Tensor, LeafLike)):
            raise InvalidLeafError(
                "only tensors say what they share",
                path=path,
                expected="a tensor",
                got=type(leaf).__name__,
            )
    shapes: list[Any] = [leaf.shape for leaf in leaves]
    most = max([len(s) for s in shapes], default=0)
    if batch_dims is not None:
        most = batch_dims
    found: Any = as_constants(shapes)
    schema, dims = schema.inferred(found, most)
    size = shapes[0][:dims] if shapes else torch.Size()
    if names is not None:
        names = as_names((*names[:dims], *(None,) * (dims - len(names))), dims)
    return make(schema, leaves, td._statics, size, names)


def merge(
    first: NodeT,
    *others: NodeT,
    on_conflict: Callable[[Any, Any], Any] | None = None,
) -> NodeT:
    """Return the tree with the entries of several trees.

    Args:
        first: a tree.
        others: trees; nested nodes that several have are merged.
        on_conflict: what to do with a leaf or static that two trees have: a function
            of the value so far and the value in the next tree that returns what `set`
            takes; of two statics, the new static, of two unbatched tensors one. None
            lets no two trees share an entry.

    Returns:
        A tree of the class of the first. Its batch size is that of the trees with
        leaves: inside `vmap`, a tree of statics knows nothing of the mapped dim.

    Raises:
        OperandError: one of them is no tree.
        ShapeError: the batch sizes differ.
        StructureError: two trees have the same entry, and there is no `on_conflict`; or
            one has a node where the other has a leaf. All such are listed.
        Exception: what `on_conflict` raises, with a note that names the entry.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> a, b = tdfunc.TensorDict({"x": 1}), tdfunc.TensorDict({"y": 2})
        >>> tdfunc.merge(a, b).keys()
        ('x', 'y')
        >>> tdfunc.merge(a, b, a, on_conflict=torch.add)["x"]
        tensor(2)
    """
    trees = (first, *others)
    for tree in others:
        if not isinstance(tree, Node):
            raise OperandError(
                "only trees can be merged",
                expected="a tree",
                got=type(tree).__name__,
                fix="td.update(other) takes a mapping",
            )
    if type(first).is_lazy:
        return each_member(first, merge, *others)
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
    rest: list[Any] = [
        make(tree._schema, tree._leaves, tree._statics, size, None) for tree in others
    ]
    if on_conflict is None and not any([tree._schema.records for tree in trees]):
        # Neighbours first, again and again: one after the other, every tree would
        # cost what all before it hold. Records take only fields, so theirs matters.
        level = [whole, *rest]
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            alone = level[-1:] if len(level) % 2 else []
            level = [_merged(one, other, None) for one, other in pairs] + alone
        return level[0]
    for tree in rest:
        whole = _merged(whole, tree, on_conflict)
    return whole


def _merged(
    whole: Any, tree: Any, on_conflict: Callable[[Any, Any], Any] | None
) -> Any:
    both: list[Path] = []
    clashes = _clashes(whole._schema, tree._schema)
    if on_conflict is not None:
        both = [path for path in clashes if _is_end(whole, path, tree)]
        ends = {*both}
        clashes = [path for path in clashes if path not in ends]
    if clashes:
        raise StructureError(
            "the trees share entries",
            expected="trees without common entries"
            if on_conflict is None
            else "two nodes at a path, or none",
            got=", ".join(map(show_path, clashes)),
            fix="a.update(b) lets the second win",
        )
    if on_conflict is not None:
        tree = _decided(whole, tree, both, on_conflict)
    _check_sizes(whole, tree)
    return update(whole, tree)


def _is_end(whole: Node, path: Path, tree: Node) -> bool:
    """Return whether both trees have a leaf or static at a path."""
    found = [node._schema.find(path) for node in (whole, tree)]
    return all(
        [step is not None and not isinstance(step.kid, Schema) for step in found]
    )


def _decided(
    whole: Node, tree: Any, both: list[Path], choose: Callable[[Any, Any], Any]
) -> Any:
    """Return `tree` with what a function makes of the ends that both trees have."""
    for path in both:
        static = _is_kind(whole, path, STATIC) and _is_kind(tree, path, STATIC)
        mark = _is_kind(whole, path, UNBATCHED) and _is_kind(tree, path, UNBATCHED)
        try:
            value = choose(entry_at(whole, path), entry_at(tree, path))
        except Exception as error:
            noting(error, path)
            raise
        if static and not isinstance(value, NonTensorData):
            value = NonTensorData(value)
        if mark and isinstance(value, torch.Tensor):
            value = unbatched(value)
        tree = set(tree, short(path), value)
    return tree


def _is_kind(node: Node, path: Path, kind: int) -> bool:
    found = node._schema.find(path)
    return found is not None and found.kid == kind


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
            nodes = isinstance(kid, Schema) and isinstance(found.kid, Schema)
            if not nodes or is_lazy(kid) or is_lazy(found.kid):
                out.append(path)
        elif left.blocked(path) == path[:-1]:
            out.append(path)
    return out


def update_with(td: NodeT, functions: Mapping[Any, Callable[[Any], Any]]) -> NodeT:
    """Return the tree with several entries replaced by functions of them.

    All entries are read from `td` before any is set.

    Args:
        td: the tree.
        functions: by key or path, a function of the entry there (a tensor, a static
            value or a nested tree) that returns what `set` takes. A tensor in place of
            an `unbatched` one is unbatched too.

    Returns:
        A new tree; all other leaves are shared.

    Raises:
        BatchSizeError: a result does not start with the batch size of its node.
        MissingKeyError: an entry is not in the tree.
        OperandError: `functions` is no mapping of functions.
        StructureError: a path comes twice, or leads to something inside another.
        Exception: what a function raises, with a note that names the entry.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"step": 1, "n": {"loss": torch.ones(2)}})
        >>> new = td.update_with({"step": lambda x: x + 1, ("n", "loss"): torch.sum})
        >>> new["step"], new["n", "loss"]
        (tensor(2), tensor(2.))
    """
    if not isinstance(functions, Mapping) or not all(map(callable, functions.values())):
        raise OperandError(
            "entries are changed by a mapping of functions",
            expected="a mapping of keys or paths to functions of one argument",
            got=type(functions).__name__
            if not isinstance(functions, Mapping)
            else ", ".join([type(fn).__name__ for fn in functions.values()]),
            fix="td.update(other) sets values",
        )
    paths = [as_path(key) for key in functions]
    _check_apart(paths, "the entries to change are not apart")
    news: list[Any] = []
    for path, fn in zip(paths, functions.values(), strict=True):
        entry = entry_at(td, path)
        try:
            news.append(fn(entry))
        except Exception as error:
            noting(error, path)
            raise
    marked = [_is_kind(td, path, UNBATCHED) for path in paths]
    for path, new, mark in zip(paths, news, marked, strict=True):
        kept = mark and isinstance(new, torch.Tensor)
        td = set(td, short(path), unbatched(new) if kept else new)
    return td
