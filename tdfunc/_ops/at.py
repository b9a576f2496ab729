"""Writing rows: ``td.at[index].set(value)`` and its kin return a new tree.

`index` is what ``td[index]`` takes, and `value` one of

- a number, or a tensor without dims: for every element of the rows;
- a tensor (or array) of the batch shape of ``td[index]``: its dims align with the
  *batch* dims, so it is one number for each row;
- a tree with the entries and the batch size of ``td[index]``;
- a mapping of keys or paths to such values, for some of the entries only. The value of
  a leaf is then a tensor of the shape that ``td[index]`` has there.

Leaves that are written are new tensors, of the dtype that they had; the others are
shared. Statics have one value for all rows, and are neither written nor compared.
Everything is differentiable in the tree and in the values, and goes through
`torch.vmap`, where the index may differ from row to row if it is no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
import torch
from torch.nn.functional import pad

from tdfunc._core._torch import inside_transform
from tdfunc._core.keys import as_path, is_key
from tdfunc._core.leaf import as_leaf
from tdfunc._core.mismatch import check_same_entries
from tdfunc._core.node import Node, NodeT, make, missing
from tdfunc._core.schema import STATIC, Schema
from tdfunc._core.statics import NO_STATICS
from tdfunc._core.tree import (
    feature_views,
    refuse_lazy,
    restored,
    with_leaves,
    without,
    zip_leaves,
)
from tdfunc._ops.entries import set
from tdfunc._ops.index import (
    as_plan,
    at_index,
    bad_index,
    names_at_plan,
    size_at_plan,
)
from tdfunc._ops.pointwise import Numbers
from tdfunc.errors import OperandError, StructureError, TreeIndexError
from tdfunc.typing import MISSING

if TYPE_CHECKING:
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
    - `StructureError`: a tree as value has other entries, or a mapping gives values
      for the same leaf twice.
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
                out of range. Without it they raise.

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
    values = _columns(td, shape, value)
    dims = len(size)
    single = plan[0] if len(plan) == 1 else plan
    # By kinds, since Dynamo does not trace torch.can_cast. Assignment casts all numbers
    # but complex ones.
    most = _KINDS.index(float)

    def write(x: torch.Tensor, new: Any, path: Path) -> torch.Tensor:
        if new is MISSING:
            return x
        if fn is not None and not adds:
            new = fn(x[single], new)
        plain = isinstance(new, torch.Tensor) and new.dtype == x.dtype
        if not plain and _kind(new) > (max(_kind(x), most) if fn is None else _kind(x)):
            raise OperandError(
                "the result does not have the dtype of the leaf",
                path=path,
                expected=f"what can be cast to {x.dtype}",
                got=_KINDS[_kind(new)].__name__,
                fix="td.at[index].set({key: value, ...}) leaves out other entries, "
                "td.to(dtype) casts",
            )
        if places is not None:
            return _scattered(x, dims, shape, places, new, accumulate=adds)
        out = x.clone()
        out[single] = new
        return out

    schema = td._schema
    return with_leaves(
        td, zip_leaves(schema, (td._leaves, values, schema.paths()), write)
    )


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


def _kind(value: Any) -> int:
    """Return the place in `_KINDS` of the elements of a tensor, or of a number."""
    if not isinstance(value, torch.Tensor):
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


def _scattered(
    x: torch.Tensor,
    dims: int,
    shape: torch.Size,
    places: torch.Tensor,
    value: Any,
    *,
    accumulate: bool,
) -> torch.Tensor:
    """Return a leaf with values at numbered rows, which are `shape` in the index.

    Out-of-place from the start: inside transforms a clone of what is not mapped has no
    room for values that are.
    """
    if isinstance(value, torch.Tensor):
        value = value.to(x.dtype)
    else:
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    features = x.shape[dims:]
    wanted = (*shape, *features)
    if value.shape != wanted:
        value = value.expand(wanted)
    flat = x
    if dims != 1 or len(shape) != 1:
        value = value.reshape((places.shape[0], *features))
        flat = x.reshape((prod(x.shape[:dims]), *features))
    if accumulate:
        # Five times as fast as index_put.
        out = torch.index_add(flat, 0, places, value)
    else:
        out = torch.index_put(flat, (places,), value)
    return out if flat is x else out.reshape(x.shape)


def _columns(td: Node, shape: torch.Size, value: Any) -> tuple[Any, ...]:
    """Return for every leaf what is written into its rows, MISSING for nothing.

    `shape` is the batch size of the rows.
    """
    columns: list[Any] = [MISSING] * td._schema.n
    pending: list[tuple[Path, Any]] = [((), value)]
    while pending:
        path, given = pending.pop()
        if isinstance(given, Mapping):
            inner = [((*path, *as_path(key)), v) for key, v in given.items()]
            _check_known(td, path, inner)
            pending += inner
            continue
        lo, hi, parts = _parts(td, path, shape, given)
        for slot, part in zip(range(lo, hi), parts, strict=True):
            if columns[slot] is not MISSING:
                raise StructureError(
                    "a mapping gives two values for the same rows",
                    path=td._schema.paths()[slot],
                    fix="name a node, or entries in it",
                )
            columns[slot] = part
    return tuple(columns)


def _check_known(td: Node, above: Path, inner: list[tuple[Path, Any]]) -> None:
    found = td._schema.find(above) if above else None
    if found is not None and not isinstance(found.kid, Schema):
        raise OperandError(
            "a mapping is no value for the rows of a tensor",
            path=above,
            expected="a number or a tensor",
            got="a mapping",
        )
    for path, _ in inner:
        known = td._schema.find(path)
        if known is None:
            raise missing(td, path, "td.update(...) adds entries")
        if known.kid == STATIC:
            raise OperandError(
                "a static has one value for all rows",
                path=path,
                fix=f"td.set({path!r}, value) changes it for all",
            )


def _parts(td: Node, path: Path, shape: torch.Size, value: Any) -> tuple[int, int, Any]:
    """Return the places of the leaves of an entry, and a value for each."""
    schema = td._schema
    found = schema.find(path) if path else None
    lo, hi = (0, schema.n) if found is None else (found.lo, found.hi)
    is_node = found is None or isinstance(found.kid, Schema)
    if isinstance(value, (np.ndarray, np.generic)):
        value = as_leaf(value, path)
    if isinstance(value, Numbers) or (
        isinstance(value, torch.Tensor) and value.dim() == 0
    ):
        return lo, hi, [value] * (hi - lo)
    if isinstance(value, torch.Tensor):
        wanted = shape
        if not is_node:
            wanted = torch.Size((*shape, *td._leaves[lo].shape[td.batch_dims :]))
        if value.shape != wanted:
            raise _misfit(path, wanted, value.shape)
        if not is_node:
            return lo, hi, [value]
        return lo, hi, feature_views(value, schema.ranks()[lo:hi])
    if isinstance(value, Node) and is_node:
        _check_rows(td, path, shape, value)
        return lo, hi, value._leaves
    raise OperandError(
        "rows can not be written from this",
        path=path,
        expected="a number, a tensor, or (for a node) a mapping or a tree",
        got=f"a {type(value).__name__}",
    )


def _check_rows(td: Node, path: Path, shape: torch.Size, value: Node) -> None:
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
    node: Any = td[path] if path else td
    if not node._schema.matches(value._schema):
        check_same_entries(
            (node, value),
            "the rows do not have the entries of the tree",
            fix="td.at[index].set(value.to_dict()) writes some entries only",
        )
    dims = td.batch_dims
    for place, x, new in zip(
        node._schema.paths(), node._leaves, value._leaves, strict=True
    ):
        # Its batch size is that of the rows.
        if new.shape[len(shape) :] != x.shape[dims:]:
            raise _misfit((*path, *place), (*shape, *x.shape[dims:]), new.shape)


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

    def read(x: torch.Tensor) -> torch.Tensor:
        features = x.shape[dims:]
        if count == 0:
            return x.new_full((*picked.shape, *features), fill)
        out = x.reshape((count, *features)).index_select(0, rows)
        out = out.reshape((*absent.shape, *features))
        return out.masked_fill(
            absent.reshape((*absent.shape, *(1,) * len(features))), fill
        )

    leaves = zip_leaves(schema, (td._leaves,), read)
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
