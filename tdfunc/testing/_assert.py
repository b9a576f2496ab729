"""Assertions about trees: equal, valid. A failure lists all that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tdfunc._core.leaf import LeafLike
from tdfunc._core.node import Node
from tdfunc._core.rows import Table, decode
from tdfunc._core.schema import (
    STATIC,
    UNBATCHED,
    Schema,
    is_kept,
    is_lazy,
    is_leaf,
    is_tensor,
    kind_name,
    rank_of,
)
from tdfunc._core.statics import same_value
from tdfunc._ops.members import Members
from tdfunc.errors import OperandError, show_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tdfunc.typing import Path

__all__ = ["assert_equal", "assert_valid", "fail_if"]


def assert_equal(
    a: Node,
    b: Node,
    *,
    equal_nan: bool = True,
    key_order: bool = False,
    names: bool = False,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Assert that two trees are the same.

    Compares node classes, entries, batch sizes (of nested nodes too), statics, one
    value per row by value, and for every tensor device, dtype, shape and values.

    Args:
        a: a tree.
        b: what to compare it with.
        equal_nan: NaN equals NaN.
        key_order: compare the order of keys, too.
        names: compare dim names, too.
        rtol: relative tolerance of values, as in `torch.isclose`.
        atol: absolute tolerance of values.

    Raises:
        AssertionError: they differ; all differences are listed.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(3), "s": "text"}, 3)
        >>> assert_equal(td, td.clone())
        >>> assert_equal(td, TensorDict({"x": torch.tensor([0, 0, 1]), "y": 2}))
        Traceback (most recent call last):
        AssertionError: the trees differ:
        - td: batch size [3] and []
        - td['s']: only in the first
        - td['y']: only in the second
        - td['x']: dtype torch.float32 and torch.int64
    """
    found: list[str] = []
    pending: list[tuple[Path, Any, Any]] = [((), a, b)]
    while pending:
        path, x, y = pending.pop()
        where = show_path(path)
        if isinstance(x, Node) and isinstance(y, Node):
            found += [f"{where}: {line}" for line in _node_differences(x, y, names)]
            if type(x).is_lazy and type(y).is_lazy:
                lines, pairs = _member_pairs(path, x._leaves[0], y._leaves[0])
            else:
                lines, pairs = _entry_pairs(path, x, y, key_order=key_order)
            found += lines
            pending += pairs
        elif isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            lines = _tensor_differences(x, y, equal_nan, rtol, atol)
            found += [f"{where}: {line}" for line in lines]
        elif isinstance(x, Node) or isinstance(y, Node) or type(x) is not type(y):
            found.append(f"{where}: a {_kind(x)} and a {_kind(y)}")
        elif not same_value(x, y):
            found.append(f"{where}: {x!r} and {y!r}")
    fail_if("the trees differ", found)


def _member_pairs(
    path: Path, one: Members, two: Members
) -> tuple[list[str], list[tuple[Path, Any, Any]]]:
    """Return how two lazy stacks differ, and the members to compare."""
    if one.stack_dim != two.stack_dim or len(one.trees) != len(two.trees):
        return [f"{show_path(path)}: {one} and {two}"], []
    pairs = enumerate(zip(one.trees, two.trees, strict=True))
    return [], [((*path, str(i)), *pair) for i, pair in pairs]


def _entry_pairs(
    path: Path, x: Node, y: Node, *, key_order: bool
) -> tuple[list[str], list[tuple[Path, Any, Any]]]:
    """Return how the keys of two nodes differ, and the entries to compare."""
    mine, theirs = x.keys(), y.keys()
    found = [
        f"{show_path((*path, key))}: only in the {ordinal}"
        for ordinal, keys, other in (("first", mine, y), ("second", theirs, x))
        for key in keys
        if key not in other
    ]
    if key_order and mine != theirs and set(mine) == set(theirs):
        found.append(f"{show_path(path)}: keys in the order {mine} and {theirs}")
    pairs: list[tuple[Path, Any, Any]] = []
    for key in reversed([key for key in mine if key in y]):
        here = (*path, key)
        if _marked(x, key) == _marked(y, key):
            pairs.append((here, x[key], y[key]))
        else:
            kinds = [kind_name(node._schema.index[key][0]) for node in (x, y)]
            found.append(f"{show_path(here)}: {kinds[0]} and {kinds[1]}")
    return found, pairs


def assert_valid(td: Node) -> None:
    """Assert that a tree agrees with itself.

    The batch size of every node is a true common prefix of its leaves, starts with
    that of its parent, and what the schema says of kinds, places and feature ranks is
    so. Holds for whatever the operations of this library and of `torch.func` return;
    a tree of other things than tensors, as pytree functions make them, is not valid.

    Args:
        td: the tree.

    Raises:
        AssertionError: it does not; all that is wrong is listed.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from torch.utils._pytree import tree_map
        >>> td = TensorDict({"x": torch.zeros(3)}, 3)
        >>> assert_valid(td)
        >>> assert_valid(tree_map(lambda x: None, td))
        Traceback (most recent call last):
        AssertionError: the tree is not valid:
        - td['x']: a NoneType, not a tensor
    """
    # It may be what a user's function returned.
    if not isinstance(td, Node):
        fail_if("the tree is not valid", [f"it is a {type(td).__name__}, not a tree"])
    fail_if("the tree is not valid", [*_faults(td)])


def fail_if(what: str, lines: list[str]) -> None:
    """Raise with all of `lines`, if there are any."""
    if lines:
        raise AssertionError("\n- ".join([f"{what}:", *lines]))


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    return type(value).__name__ if isinstance(value, Node) else f"static {value!r}"


# Equal


def _marked(node: Node, key: str) -> str | None:
    """Return the kind of an entry that does not show in what it reads."""
    kid = node._schema.index[key][0]
    return kind_name(kid) if is_kept(kid) and kid != STATIC else None


def _node_differences(x: Node, y: Node, names: bool) -> Iterator[str]:  # noqa: FBT001
    if type(x) is not type(y):
        yield f"a {type(x).__name__} and a {type(y).__name__}"
    if x.batch_size != y.batch_size:
        yield f"batch size {list(x.batch_size)} and {list(y.batch_size)}"
    if names and x.names != y.names:
        yield f"names {x.names} and {y.names}"


def _tensor_differences(
    x: torch.Tensor,
    y: torch.Tensor,
    equal_nan: bool,  # noqa: FBT001 - private
    rtol: float,
    atol: float,
) -> Iterator[str]:
    for name in ("device", "dtype"):
        if getattr(x, name) != getattr(y, name):
            yield f"{name} {getattr(x, name)} and {getattr(y, name)}"
    if x.shape != y.shape:
        yield f"shape {list(x.shape)} and {list(y.shape)}"
    elif x.device == y.device and x.dtype == y.dtype and x.device.type != "meta":
        x, y = x.detach(), y.detach()
        differs = ~_same_values(x, y, equal_nan, rtol, atol)
        count = int(differs.sum())
        if count:
            place = differs.nonzero()[0].tolist()
            one, two = x[tuple(place)].item(), y[tuple(place)].item()
            yield (
                f"{count} of {x.numel()} values differ,"
                f" first {one!r} and {two!r} at {place}"
            )


def _same_values(
    x: torch.Tensor,
    y: torch.Tensor,
    equal_nan: bool,  # noqa: FBT001 - private
    rtol: float,
    atol: float,
) -> torch.Tensor:
    if rtol or atol:
        return torch.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)
    same = x == y
    if equal_nan and (x.is_floating_point() or x.is_complex()):
        same = same | ((x != x) & (y != y))  # noqa: PLR0124 - isnan lacks float8
    return same


# Valid


class _At(NamedTuple):
    """A node on the way: what its tree says of it, and where its entries lie."""

    path: Path
    schema: Schema
    lo: int
    slo: int
    size: torch.Size


def _faults(td: Node) -> Iterator[str]:
    """Yield all that is wrong, from a walk of our own over the schema."""
    # Asked first: it exchanges the schema of a tree that a pytree function made.
    size = td.batch_size
    schema, leaves, statics = td._schema, td._leaves, td._statics.values
    if type(td) is not schema.cls:
        yield f"a {type(td).__name__} with the schema of a {schema.cls.__name__}"
    if (len(leaves), len(statics)) != (schema.n, schema.m):
        yield (
            f"{len(leaves)} leaves and {len(statics)} statics"
            f" with a schema of {schema.n} and {schema.m}"
        )
        return
    names = td.names
    if names is not None and len(names) != len(size):
        yield f"names {names} for batch size {list(size)}"
    pending = [_At((), schema, 0, 0, size)]
    while pending:
        node = pending.pop()
        yield from _schema_faults(node)
        if is_lazy(node.schema):
            yield from _stack_faults(node.path, leaves[node.lo], node.size)
            continue
        for key in node.schema.keys:
            kid, lo, slo, surplus = node.schema.index[key]
            path = (*node.path, key)
            lo, slo = node.lo + lo, node.slo + slo
            if isinstance(kid, Schema):
                below = _At(
                    path, kid, lo, slo, _size_below(node, kid, leaves[lo:], surplus)
                )
                pending.append(below)
                yield from _read_faults(td, below)
                continue
            held = leaves[lo] if is_leaf(kid) else None
            kept = statics[slo] if is_kept(kid) else None
            yield from _entry_faults(td, path, kid, held, kept, node.size)


def _entry_faults(
    td: Node, path: Path, kid: int, leaf: Any, kept: Any, size: torch.Size
) -> Iterator[str]:
    """Yield what is wrong with an entry that is no node."""
    if is_tensor(kid):
        yield from _leaf_faults(path, leaf, kid, size)
        if td[path] is not leaf:
            yield f"{show_path(path)}: reads another leaf than it has"
    elif is_leaf(kid):
        yield from _rows_faults(path, leaf, kept, kid, size)
    else:
        yield from _static_faults(td, path, kept, kid)


def _size_below(
    node: _At, kid: Schema, leaves: tuple[Any, ...], surplus: int
) -> torch.Size:
    """Return the batch size that a nested node has by its first leaf."""
    if not kid.n or not isinstance(leaves[0], (torch.Tensor, LeafLike)):
        return node.size
    return leaves[0].shape[: len(node.size) + surplus]


def _read_faults(td: Node, node: _At) -> Iterator[str]:
    """Yield where reading a nested node gives something else than its tree has."""
    where = show_path(node.path)
    read = td[node.path]
    if not isinstance(read, Node):
        yield f"{where}: reads a {type(read).__name__}, not a node"
    elif read.batch_size != node.size:
        yield (
            f"{where}: reads batch size {list(read.batch_size)},"
            f" its leaves have {list(node.size)}"
        )


def _schema_faults(node: _At) -> Iterator[str]:
    """Yield where a schema contradicts itself."""
    schema, where = node.schema, show_path(node.path)
    lo = slo = 0
    for key in sorted(schema.keys):
        kid, *place = schema.index[key][:3]
        if place != [lo, slo]:
            yield f"{where}: the schema places {key!r} at {place}, not at {[lo, slo]}"
        lo += kid.n if isinstance(kid, Schema) else int(is_leaf(kid))
        slo += kid.m if isinstance(kid, Schema) else int(is_kept(kid))
    if (lo, slo) != (schema.n, schema.m):
        yield f"{where}: the schema counts {schema.n}, {schema.m}, not {lo}, {slo}"
    rows = zip(schema.keys, schema.kids, schema.surplus, strict=True)
    for key, kid, surplus in rows:
        if schema.index[key][::3] != (kid, surplus):
            yield f"{where}: the schema contradicts itself at {key!r}"
        if surplus < 0 or (surplus and not (isinstance(kid, Schema) and kid.n)):
            yield f"{where}: surplus {surplus} at {key!r}"
    nested = [kid for kid in schema.kids if isinstance(kid, Schema)]
    if schema.extra != any([*schema.surplus, *[kid.extra for kid in nested]]):
        yield f"{where}: the schema says extra={schema.extra}"


def _static_faults(td: Node, path: Path, value: Any, kid: int) -> Iterator[str]:
    if td[path] is not value:
        yield f"{show_path(path)}: reads another value than it has"
    if kid == UNBATCHED and not isinstance(value, torch.Tensor):
        yield f"{show_path(path)}: unbatched, and no tensor"


def _rows_faults(
    path: Path, codes: Any, table: Any, kid: int, size: torch.Size
) -> Iterator[str]:
    yield from _leaf_faults(path, codes, rank_of(kid), size)
    if not isinstance(table, Table):
        yield f"{show_path(path)}: rows without a table, but a {type(table).__name__}"
    elif isinstance(codes, torch.Tensor):
        try:
            decode(codes, table, path)
        except OperandError as error:
            yield f"{show_path(path)}: {error}"


def _stack_faults(path: Path, held: Any, size: torch.Size) -> Iterator[str]:
    """Yield what is wrong with the members of a lazy stack."""
    where = show_path(path)
    if not isinstance(held, Members):
        yield f"{where}: a {type(held).__name__}, not the members of a lazy stack"
        return
    if held.shape != size:
        yield f"{where}: {held} with shape {list(held.shape)}, not {list(size)}"
    at = held.stack_dim
    rest = (*size[:at], *size[at + 1 :])
    for i, tree in enumerate(held.trees):
        own = tree.batch_size
        pairs = zip(own, rest, strict=False)
        if len(own) != len(rest) or any([n not in (m, -1) for m, n in pairs]):
            yield f"{where}: member {i} has batch size {list(own)}"
        yield from [f"{where}: member {i}: {line}" for line in _faults(tree)]


def _leaf_faults(path: Path, leaf: Any, rank: int, size: torch.Size) -> Iterator[str]:
    where = show_path(path)
    if not isinstance(leaf, torch.Tensor):
        yield f"{where}: a {type(leaf).__name__}, not a tensor"
    elif leaf.shape[: len(size)] != size:
        yield (
            f"{where}: shape {list(leaf.shape)} does not start with"
            f" the batch size {list(size)}"
        )
    elif leaf.dim() != len(size) + rank:
        yield (
            f"{where}: {leaf.dim()} dims, but {len(size)} batch dims"
            f" and feature rank {rank}"
        )
