"""Writing rows: ``td.at[index].set(value)`` and its kin return a new tree.

`index` is what ``td[index]`` takes, and `value` one of

- a number, or a tensor without dims: for every element of the rows;
- a tensor (or array) of the batch shape of ``td[index]``: its dims align with the
  *batch* dims, so it is one number for each row;
- a tree with the entries and the batch size of ``td[index]``;
- a mapping of keys or paths to such values, for some of the entries only. The value of
  a leaf is then a tensor of the shape that ``td[index]`` has there.

Leaves that are written are new tensors, of the dtype that they had; the others are
shared. One value per row (text) is written by `set` only, from a tree, or in a mapping
as one value or a list of them: a static that gets another value for some rows becomes
one value per row. Everything else leaves values that are not tensors as they are, and
`unbatched` tensors have no rows to write.
Everything is differentiable in the tree and in the values, and goes through
`torch.vmap`, where the index may differ from row to row if it is no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
import torch
from torch.nn.functional import pad

from tdfunc._core._torch import inside_transform
from tdfunc._core.build import Part
from tdfunc._core.keys import as_path, is_key
from tdfunc._core.leaf import as_leaf, as_rows, check_own
from tdfunc._core.mismatch import check_same_entries
from tdfunc._core.node import Node, NodeT, make, missing, size_at
from tdfunc._core.rows import NonTensorStack, encode, merged, recoded, trimmed
from tdfunc._core.schema import (
    ROWS,
    STATIC,
    UNBATCHED,
    Schema,
    is_kept,
    is_tensor,
    kind_name,
)
from tdfunc._core.statics import NO_STATICS, NonTensorData, Statics
from tdfunc._core.tree import (
    feature_views,
    refuse_lazy,
    restored,
    with_absent,
    with_leaves,
    without,
    without_rows,
    zip_leaves,
)
from tdfunc._ops.entries import graft, set
from tdfunc._ops.index import (
    as_plan,
    at_index,
    bad_index,
    names_at_plan,
    size_at_plan,
)
from tdfunc._ops.join import aligned, check_unbatched
from tdfunc._ops.pointwise import Numbers
from tdfunc._ops.shape import by_shape
from tdfunc.errors import OperandError, StructureError, TreeIndexError
from tdfunc.typing import MISSING

if TYPE_CHECKING:
    from tdfunc._core.schema import Found
    from tdfunc.typing import Index, Path

__all__ = ["At", "at"]


def at(td: NodeT) -> Indexer[NodeT]:
    """Return what takes an index of the rows to write or read; ``td.at[index]``.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(3), "y": torch.zeros(3, 2)}, 3)
        >>> new = td.at[1:].set({"x": torch.tensor([1.0, 2.0])})
        >>> new["x"], new["y"] is td["y"]
        (tensor([0., 1., 2.]), True)
    """
    return Indexer(td)


class Indexer(Generic[NodeT]):
    """What ``td.at`` is: it waits for an index."""

    __slots__ = ("_td",)

    def __init__(self, td: NodeT) -> None:
        self._td = td

    def __getitem__(self, index: Index) -> At[NodeT]:
        return At(self._td, index)


class At(Generic[NodeT]):
    """Some rows of a tree, and what can be done to them: ``td.at[index]``.

    Args:
        td: the tree.
        index: anything that ``td[index]`` takes, but no keys.

    Every method raises:

    - `TreeIndexError`: the index does not fit the batch size;
    - `OperandError`: a value is of a kind or shape that does not fit the rows;
    - `MissingKeyError`: a mapping names an entry that is not in the tree;
    - `StructureError`: a tree as value has other entries or, for `set`, other unbatched
      tensors, or a mapping gives values for the same leaf twice.
    """

    __slots__ = ("_index", "_td")

    def __init__(self, td: NodeT, index: Index) -> None:
        if is_key(index):
            raise TreeIndexError(
                "rows are written at an index of the batch, not at keys",
                got=repr(index),
                fix="td.at[index].set({key: value}) writes rows of some entries, "
                "td.set(key, value) whole entries",
            )
        self._td = td
        self._index = index

    def set(self, value: Any) -> NodeT:
        """Return the tree with the rows replaced by `value`.

        Values are cast to the dtype of the leaf, as by ``x[index] = value`` in torch.
        If a row is indexed several times, one of its values is taken, and which one is
        not specified, as in torch.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> td = TensorDict({"x": torch.zeros(3)}, 3)
            >>> td.at[[0, 2]].set(TensorDict({"x": torch.ones(2)}, 2))["x"]
            tensor([1., 0., 1.])
        """
        return _written(self._td, self._index, value, None, "set")

    def add(self, value: Any) -> NodeT:
        """Return the tree with `value` added to the rows.

        If a row is indexed several times, all of its values are added.

        Raises:
            OperandError: the sum does not have the dtype of the leaf.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> td = TensorDict({"x": torch.zeros(3)}, 3)
            >>> td.at[[0, 0, 2]].add(1)["x"]
            tensor([2., 0., 1.])
        """
        return _written(self._td, self._index, value, torch.add, "add")

    def mul(self, value: Any) -> NodeT:
        """Return the tree with the rows multiplied by `value`.

        If a row is indexed several times, one of its values is taken, as in `set`.

        Raises:
            OperandError: the product does not have the dtype of the leaf.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> td = TensorDict({"x": torch.ones(3)}, 3)
            >>> td.at[1:].mul(torch.tensor([2.0, 3.0]))["x"]
            tensor([1., 2., 3.])
        """
        return _written(self._td, self._index, value, torch.mul, "mul")

    def div(self, value: Any) -> NodeT:
        """Return the tree with the rows divided by `value`.

        If a row is indexed several times, one of its values is taken, as in `set`.

        Raises:
            OperandError: the quotient does not have the dtype of the leaf.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, 2).at[0].div(4)["x"]
            tensor([0.2500, 1.0000])
        """
        return _written(self._td, self._index, value, torch.div, "div")

    def pow(self, value: Any) -> NodeT:
        """Return the tree with the rows raised to the power `value`.

        If a row is indexed several times, one of its values is taken, as in `set`.

        Raises:
            OperandError: the power does not have the dtype of the leaf.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> TensorDict({"x": torch.full((2,), 3.0)}, 2).at[0].pow(2)["x"]
            tensor([9., 3.])
        """
        return _written(self._td, self._index, value, torch.pow, "pow")

    def min(self, value: Any) -> NodeT:
        """Return the tree with the rows where they are less, else `value`.

        As in `torch.minimum`, NaN wins. If a row is indexed several times, one of its
        values is taken, as in `set`.

        Raises:
            OperandError: the minimum does not have the dtype of the leaf.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> TensorDict({"x": torch.arange(3.0)}, 3).at[:].min(1)["x"]
            tensor([0., 1., 1.])
        """
        return _written(self._td, self._index, value, _minimum, "min")

    def max(self, value: Any) -> NodeT:
        """Return the tree with the rows where they are greater, else `value`.

        As in `torch.maximum`, NaN wins. If a row is indexed several times, one of its
        values is taken, as in `set`.

        Raises:
            OperandError: the maximum does not have the dtype of the leaf.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> TensorDict({"x": torch.arange(3.0)}, 3).at[:].max(1)["x"]
            tensor([1., 1., 2.])
        """
        return _written(self._td, self._index, value, _maximum, "max")

    def apply(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> NodeT:
        """Return the tree with the rows of every leaf replaced by a function of them.

        Args:
            fn: a function of a tensor that returns one of the same shape; it must not
                write into what it is given.

        Raises:
            OperandError: `fn` returned something else, or of another dtype.
            Exception: what `fn` raises, with a note that names the leaf.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> TensorDict({"x": torch.zeros(3)}, 3).at[0].apply(torch.exp)["x"]
            tensor([1., 0., 0.])
        """

        def fitting(old: torch.Tensor, _: Any) -> torch.Tensor:
            new = fn(old)
            if not isinstance(new, torch.Tensor) or new.shape != old.shape:
                raise OperandError(
                    "the function did not return the rows that it was given",
                    expected=f"a tensor of shape {list(old.shape)}",
                    got=f"shape {list(new.shape)}"
                    if isinstance(new, torch.Tensor)
                    else type(new).__name__,
                )
            return new

        if self._td._schema.lazy:
            return _written(self._td, self._index, fn, None, "apply")
        return _written(self._td, self._index, 0, fitting, "apply")

    def get(self, *, fill_value: Any = MISSING) -> NodeT:
        """Return the rows: ``td[index]``, if need be with rows that are not there.

        Args:
            fill_value: a number for rows at ints (in lists and tensors too) that are
                out of range. Without it they raise. An entry with one value per row
                has None there.

        Returns:
            Without `fill_value` what ``td[index]`` is, else a tree of new tensors.

        Raises:
            OperandError: `fill_value` is no number.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, 2).at[[1, 2]].get(fill_value=0)["x"]
            tensor([1., 0.])
        """
        if fill_value is MISSING:
            return at_index(self._td, self._index)
        refuse_lazy(self._td, "reading rows that are not there")
        return _filled(self._td, self._index, fill_value)


def _minimum(old: torch.Tensor, value: Any) -> torch.Tensor:
    return torch.minimum(old, _as_tensor(old, value))


def _maximum(old: torch.Tensor, value: Any) -> torch.Tensor:
    return torch.maximum(old, _as_tensor(old, value))


def _as_tensor(old: torch.Tensor, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    dtype = old.dtype if _kind(value) <= _kind(old) else None
    return torch.full((), value, dtype=dtype, device=old.device)


def _written(
    td: NodeT,
    index: Any,
    value: Any,
    fn: Callable[[Any, Any], Any] | None,
    name: str,
) -> NodeT:
    """Return the tree with ``fn(rows, value)``, or `value`, at an index.

    `name` is that of the method.
    """
    if td._schema.lazy:
        return _written_apart(td, index, value, name)
    size = td.batch_size
    plan = as_plan(td, index)
    repeats = any([isinstance(item, torch.Tensor) for item in plan])
    adds = fn is torch.add and repeats
    places: torch.Tensor | None = None
    try:
        if adds or inside_transform():
            rows = _numbered(size, plan)[plan]
            shape, places = rows.shape, rows.reshape(rows.numel())
        else:
            shape = size_at_plan(size, plan)
    except IndexError as error:
        raise bad_index(td, index, error) from error
    td, values = _columns(td, shape, value, sets=fn is None)
    dims = len(size)
    single = plan[0] if len(plan) == 1 else plan
    # By kinds, since Dynamo does not trace torch.can_cast. Assignment casts all numbers
    # but complex ones.
    most = _KINDS.index(float) if fn is None else _KINDS.index(bool)
    one_dim = dims == 1 and len(shape) == 1
    columns: list[Any] = [td._leaves, values, td._schema.paths()]
    if places is not None:
        columns.append(by_shape(td._leaves, lambda s: (*shape, *s[dims:])))

    def write(x: torch.Tensor, new: Any, path: Path, wanted: Any = None) -> Any:
        if new is MISSING:
            return x
        if fn is not None and not adds:
            new = fn(x[single], new)
        plain = isinstance(new, torch.Tensor) and new.dtype == x.dtype
        if not plain and (kind := _kind(new)) > most and kind > _kind(x):
            raise OperandError(
                "the result does not have the dtype of the leaf",
                path=path,
                expected=f"what can be cast to {x.dtype}",
                got=_KINDS[_kind(new)].__name__,
                fix="td.at[index].set({key: value, ...}) leaves out other entries, "
                "td.to(dtype) casts",
            )
        if places is not None:
            return _scattered(x, wanted, dims, places, new, one_dim, adds)
        out = x.clone()
        out[single] = new
        return out

    one = _adding(write, places) if adds and one_dim else write
    return with_leaves(td, zip_leaves(td._schema, columns, one))


def _adding(write: Callable[..., Any], places: Any) -> Callable[..., Any]:
    """Return `write`, with no test too many for what is added most."""
    plain = torch.Tensor

    def add(x: torch.Tensor, new: Any, path: Path, wanted: tuple[int, ...]) -> Any:
        if type(new) is plain and new.dtype is x.dtype and new.shape == wanted:
            return torch.index_add(x, 0, places, new)
        return write(x, new, path, wanted)

    return add


def _written_apart(td: NodeT, index: Any, value: Any, name: str) -> NodeT:
    """Write rows of a tree with lazy stacks, and of their members."""
    plan = as_plan(td, index)
    lazies = td._schema.lazies()
    slots = tuple([slot for slot, _, _ in lazies])
    done = without(td, slots)
    given: dict[Path, Any] = {(): value}
    if not type(td).is_lazy:
        value, given = _values_apart(td, value)
        done = getattr(At(done, index), name)(value)
    stacks: list[Any] = []
    for slot, path, surplus in lazies:
        members = td._leaves[slot]
        if path in given:
            own = given[path]
            if surplus and isinstance(own, torch.Tensor) and own.dim():
                own = own.reshape((*own.shape, *(1,) * surplus))
                own = own.expand(members[plan].shape)
            members = members.written(plan, own, name)
        stacks.append(members)
    return restored(td, slots, stacks, done)


def _values_apart(td: Node, value: Any) -> tuple[Any, dict[Path, Any]]:
    """Return the value for the rows of a tree without its lazy stacks, and of these."""
    stacks = [path for _, path, _ in td._schema.lazies()]
    given: dict[Path, Any] = {}
    rest: dict[Path, Any] = {}
    pending: list[tuple[Path, Any]] = [((), value)]
    while pending:
        path, own = pending.pop()
        check_own(own, path)
        inside = td._schema.lazy_on(path)
        if path in stacks:
            given[path] = own
        elif inside > 0:
            part = given.setdefault(path[:inside], {})
            part[path[inside:]] = own
        elif isinstance(own, Mapping):
            pending += [((*path, *as_path(key)), v) for key, v in own.items()]
        else:
            below = [p for p in stacks if p[: len(path)] == path]
            for stack in below:
                at = stack[len(path) :]
                given[stack] = own[at] if isinstance(own, Node) else own
                if isinstance(own, Node):
                    empty: Any = make(
                        Schema(Node._lazy, (), ()), (), NO_STATICS, own.batch_size, None
                    )
                    own = set(own, at, empty)
            rest[path] = own
    return rest.get((), rest), given


# Kinds of numbers; each can be cast to itself and to those after it.
_KINDS = (bool, int, float, complex)
_KIND_OF_TYPE = {kind: i for i, kind in enumerate(_KINDS)}


def _kind(value: Any) -> int:
    """Return the place in `_KINDS` of the elements of a tensor, or of a number."""
    if not isinstance(value, torch.Tensor):
        known = _KIND_OF_TYPE.get(type(value))
        if known is not None:
            return known
        kinds = (
            (bool, torch.SymBool),
            (int, torch.SymInt),
            (float, torch.SymFloat),
            (complex,),
        )
        return next(i for i, kind in enumerate(kinds) if isinstance(value, kind))
    if value.dtype == torch.bool:
        return 0
    return 3 if value.is_complex() else 2 if value.is_floating_point() else 1


def _numbered(size: torch.Size, plan: tuple[Any, ...]) -> torch.Tensor:
    """Return the numbers of the rows, in the shape of the batch."""
    device = next((i.device for i in plan if isinstance(i, torch.Tensor)), None)
    return torch.arange(prod(size), device=device).reshape(size)


def _scattered(  # noqa: PLR0917 - once for every leaf
    x: torch.Tensor,
    wanted: tuple[int, ...],
    dims: int,
    places: torch.Tensor,
    value: Any,
    one_dim: bool,  # noqa: FBT001
    accumulate: bool,  # noqa: FBT001
) -> torch.Tensor:
    """Return a leaf with values at numbered rows, `wanted` the shape of these rows.

    `one_dim` is whether the batch and the index have one dim. Out-of-place from the
    start: inside transforms a clone of what is not mapped has no room for values that
    are.
    """
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    elif value.dtype != x.dtype:  # a cast to the same dtype costs as much as the rest
        value = value.to(x.dtype)
    if value.shape != wanted:
        value = value.expand(wanted)
    flat = x
    if not one_dim:
        features = x.shape[dims:]
        value = value.reshape((places.shape[0], *features))
        flat = x.reshape((prod(x.shape[:dims]), *features))
    if accumulate:
        # Five times as fast as index_put.
        out = torch.index_add(flat, 0, places, value)
    else:
        out = torch.index_put(flat, (places,), value)
    return out if flat is x else out.reshape(x.shape)


def _columns(
    td: NodeT, shape: torch.Size, value: Any, *, sets: bool
) -> tuple[NodeT, tuple[Any, ...]]:
    """Return the tree, and for every leaf what is written into its rows.

    That is MISSING for nothing. The tree has rows of values wherever these are
    written, and their tables hold what is.

    Args:
        td: the tree.
        shape: the batch size of the rows.
        value: what the user gave.
        sets: whether it replaces the rows, so that it may be text.
    """
    given: list[tuple[Path, Any]] = []
    pending: list[tuple[Path, Any]] = [((), value)]
    while pending:
        path, part = pending.pop()
        check_own(part, path)
        if isinstance(part, Mapping):
            inner = [((*path, *as_path(key)), v) for key, v in part.items()]
            _check_known(td, path, inner, sets=sets)
            pending += inner
            continue
        found = td._schema.find(path) if path else None
        if sets and found is not None and is_kept(found.kid):
            td, part = _with_texts(td, path, found, shape, part)
        elif sets and isinstance(part, Node) and td._schema.m:
            td, part = _with_rows_of(td, path, found, part)
        given.append((path, part))
    columns: list[Any] = [MISSING] * td._schema.n
    for path, part in given:
        lo, hi, parts = _parts(td, path, shape, part, sets=sets)
        for slot, one in zip(range(lo, hi), parts, strict=True):
            if columns[slot] is not MISSING:
                raise StructureError(
                    "a mapping gives two values for the same rows",
                    path=td._schema.paths()[slot],
                    fix="name a node, or entries in it",
                )
            columns[slot] = one
    return td, tuple(columns)


def _check_known(
    td: Node, above: Path, inner: list[tuple[Path, Any]], *, sets: bool
) -> None:
    found = td._schema.find(above) if above else None
    if found is not None and not isinstance(found.kid, Schema):
        raise OperandError(
            "a mapping is no value for the rows of a tensor"
            if is_tensor(found.kid)
            else "a mapping is no value for rows of values",
            path=above,
            expected="a number or a tensor" if is_tensor(found.kid) else "a text",
            got="a mapping",
            fix="NonTensorData(value) is one value, whatever it is"
            if found.kid < 0
            else None,
        )
    for path, _ in inner:
        known = td._schema.find(path)
        if known is None:
            raise missing(td, path, "td.update(...) adds entries")
        if not is_kept(known.kid):
            continue
        if known.kid == UNBATCHED:
            raise OperandError(
                "an unbatched tensor has no rows",
                path=path,
                fix=f"td.set({path!r}, unbatched(tensor)) changes it",
            )
        if not sets:
            raise OperandError(
                "values that are not tensors can not be computed with",
                path=path,
                expected="a tensor",
                got=kind_name(known.kid),
                fix="td.at[index].set({key: value}) replaces them",
            )


def _with_texts(
    td: NodeT, path: Path, found: Found, shape: torch.Size, value: Any
) -> tuple[NodeT, torch.Tensor]:
    """Return the tree with rows at `path`, and the codes to write into some of them.

    A static becomes the value of every row.
    """
    if isinstance(value, (torch.Tensor, Node)):
        raise OperandError(
            "rows of values can not be written from this",
            path=path,
            expected="one value, or a list of them",
            got=f"a {type(value).__name__}",
            fix="NonTensorData(value) is one value, whatever it is",
        )
    kid = found.kid
    if kid == STATIC:
        kid, room = ROWS, size_at(td, path[:-1])
        codes, table = encode([td._statics.values[found.slo]], ())
        codes = codes.to(td.device).expand(room)
    else:
        table = td._statics.values[found.slo]
        codes, table = trimmed(td._leaves[found.lo], table)
    wanted = torch.Size((*shape, *codes.shape[td.batch_dims :]))
    # To `set`, a list of numbers is a list of values too.
    listed = NonTensorStack(*value) if _is_list_of_numbers(value) else value
    rows = as_rows(listed, path, len(wanted))
    if rows is None:
        rows = [value.data if isinstance(value, NonTensorData) else value], ()
    if wanted[: len(rows[1])] != rows[1]:
        raise _misfit(path, wanted, rows[1])
    new, own = encode(*rows)
    whole = merged([table, own])
    new = recoded(new, own, whole).to(codes.device)
    if rows[1]:
        new = new.reshape((*rows[1], *(1,) * (len(wanted) - len(rows[1]))))
        new = new.expand(wanted)
    part = Part(cast("int", kid), 0, (codes,), Statics((whole,)))
    return graft(td, path, part), new


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and not any(
        [isinstance(item, (list, str, NonTensorStack)) for item in value]
    )


def _with_rows_of(
    td: NodeT, path: Path, found: Found | None, value: Node
) -> tuple[NodeT, Node]:
    """Return the tree and one to write into it, with common tables for their rows.

    Statics that are not the same have become rows in both.
    """
    node: Any = td[path] if path else td
    if found is not None and not isinstance(found.kid, Schema):
        return td, value
    check_unbatched(node, value, path)
    mine, theirs = aligned([node, value])
    if mine is node:
        return td, theirs
    if not path:
        return mine, theirs
    surplus = mine.batch_dims - len(size_at(td, path[:-1]))
    part = Part(mine._schema, surplus, mine._leaves, mine._statics)
    return graft(td, path, part), theirs


def _parts(
    td: Node, path: Path, shape: torch.Size, value: Any, *, sets: bool
) -> tuple[int, int, Any]:
    """Return the places of the leaves of an entry, and a value for each.

    Rows of values get one from such rows only, and only if `sets`.
    """
    schema = td._schema
    found = schema.find(path) if path else None
    lo, hi = (0, schema.n) if found is None else (found.lo, found.hi)
    is_node = found is None or isinstance(found.kid, Schema)
    codes = frozenset(schema.rows if is_node else ())
    if isinstance(value, (np.ndarray, np.generic)):
        value = as_leaf(value, path)
    if isinstance(value, Numbers) or (
        isinstance(value, torch.Tensor) and value.dim() == 0
    ):
        return lo, hi, [MISSING if at in codes else value for at in range(lo, hi)]
    if isinstance(value, torch.Tensor):
        wanted = shape
        if not is_node:
            wanted = torch.Size((*shape, *td._leaves[lo].shape[td.batch_dims :]))
        if value.shape != wanted:
            raise _misfit(path, wanted, value.shape)
        if not is_node:
            return lo, hi, [value]
        views = feature_views(value, schema.ranks()[lo:hi])
        if codes:
            views = [MISSING if lo + i in codes else x for i, x in enumerate(views)]
        return lo, hi, views
    if isinstance(value, Node) and is_node:
        node: Any = td[path] if path else td
        if sets or not codes:
            _check_rows(td, node, path, shape, value)
            return lo, hi, value._leaves
        bare = without_rows(value)
        _check_rows(td, without_rows(node), path, shape, bare)
        rest = iter(bare._leaves)
        return lo, hi, [MISSING if at in codes else next(rest) for at in range(lo, hi)]
    raise OperandError(
        "rows can not be written from this",
        path=path,
        expected="a number, a tensor, or (for a node) a mapping or a tree",
        got=f"a {type(value).__name__}",
    )


def _check_rows(
    td: Node, node: Node, path: Path, shape: torch.Size, value: Node
) -> None:
    """Raise unless a tree has the entries of a node, and the rows of an index."""
    if value.batch_size[: len(shape)] != shape or not (
        path or value.batch_dims == len(shape)
    ):
        raise OperandError(
            "the tree does not have the batch size of the rows",
            path=path,
            expected=f"batch size {list(shape)}",
            got=list(value.batch_size),
            fix="td.at[index].set(value.expand(td[index].batch_size))",
        )
    if not node._schema.matches(value._schema):
        check_same_entries(
            (node, value),
            "the rows do not have the entries of the tree",
            fix="td.at[index].set(value.to_dict()) writes some entries only",
        )
    dims = td.batch_dims
    every = by_shape(node._leaves, lambda s: (*shape, *s[dims:]))
    for place, wanted, new in zip(
        node._schema.paths(), every, value._leaves, strict=True
    ):
        if new.shape != wanted:
            raise _misfit((*path, *place), wanted, new.shape)


def _misfit(path: Path, wanted: Any, got: Any) -> OperandError:
    return OperandError(
        "the value does not have the shape of the rows",
        path=path,
        expected=f"a number or shape {list(wanted)}",
        got=f"shape {list(got)}",
        fix="value.expand(shape) repeats a value for all rows",
    )


def _filled(td: NodeT, index: Any, fill_value: Any) -> NodeT:
    """Return the rows at an index, a number in place of those out of range."""
    if not isinstance(fill_value, Numbers):
        raise OperandError(
            "rows that are not there can not be filled with this",
            expected="a number",
            got=f"a {type(fill_value).__name__}",
        )
    fill: Any = fill_value
    size = td.batch_size
    fills: dict[int, int] = {}
    if td._schema.rows:
        td, fills = with_absent(td)
    schema = td._schema
    plan = as_plan(td, index, in_range=False)
    safe, room = _clipped(size, plan)
    try:
        # One table of row numbers with -1 at the end of the dims that ints index:
        # what it gives says for all leaves which row goes where.
        picked = (
            pad(_numbered(size, plan), room, value=-1)[safe]
            if room
            else (_numbered(size, plan)[safe])
        )
    except IndexError as error:
        raise bad_index(td, index, error) from error
    dims, count = len(size), prod(size)
    absent, rows = picked < 0, picked.clamp(min=0).reshape(picked.numel())

    def read(x: torch.Tensor, fill: Any) -> torch.Tensor:
        features = x.shape[dims:]
        if count == 0:
            return x.new_full((*picked.shape, *features), fill)
        out = x.reshape((count, *features)).index_select(0, rows)
        out = out.reshape((*absent.shape, *features))
        return out.masked_fill(
            absent.reshape((*absent.shape, *(1,) * len(features))), fill
        )

    values = [fills.get(slot, fill) for slot in range(schema.n)]
    leaves = zip_leaves(schema, (td._leaves, values), read)
    names = names_at_plan(td, plan, picked.dim())
    return make(schema, leaves, td._statics, picked.shape, names)


def _clipped(
    size: torch.Size, plan: tuple[Any, ...]
) -> tuple[tuple[Any, ...], list[int]]:
    """Return the index with ints out of range at the end of a dim that is one longer.

    And how many rows each dim gets, as `torch.nn.functional.pad` takes it.
    """
    out: list[Any] = []
    longer: list[int] = []
    for item in plan:
        if item is None or isinstance(item, bool):
            out.append(item)
        elif isinstance(item, slice):
            out.append(item)
            longer.append(0)
        elif isinstance(item, torch.Tensor) and item.dtype == torch.bool:
            out.append(item)
            longer += [0] * item.dim()
        else:
            rows = size[len(longer)]
            longer.append(1)
            if isinstance(item, torch.Tensor):
                wrapped = torch.where(item < 0, item + rows, item)
                outside = (wrapped < 0) | (wrapped >= rows)
                out.append(torch.where(outside, rows, wrapped))
            else:
                wrapped = item + rows if item < 0 else item
                out.append(wrapped if 0 <= wrapped < rows else rows)
    longer += [0] * (len(size) - len(longer))
    return tuple(out), [side for more in reversed(longer) for side in (0, more)]
