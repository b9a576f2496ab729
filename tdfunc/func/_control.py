"""Loops, branches and recomputation over trees.

In eager code a loop is a loop of Python. While compiling it is one operation of torch
(`torch.cond`, `while_loop`, `scan`, `associative_scan`), whose body is compiled once;
those take tensors, so trees are taken apart around them.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import get_device_states, set_device_states

from tdfunc._core._torch import (
    has_tangent,
    inside_transform,
    is_mapped,
    is_tracing,
    is_variable,
    is_wrapped,
    pytree,
    seen_at,
    traced_associative_scan,
    traced_scan,
    traced_while_loop,
    transform_level,
    wraps,
)
from tdfunc._core.node import Node
from tdfunc._ops.convert import detach
from tdfunc._ops.join import stack
from tdfunc.errors import OperandError, OptionError, ShapeError, StructureError
from tdfunc.func._dims import as_batch_dim, with_dim, without_dim
from tdfunc.func._flat import Layout, flatten, is_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import AbstractContextManager

__all__ = [
    "associative_scan",
    "checkpoint",
    "cond",
    "scan",
    "stop_gradient",
    "while_loop",
]


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Return the last carry of ``carry, y = f(carry, x)`` over rows, and all `y`.

    As `jax.lax.scan`.

    Args:
        f: a function of the carry and one row that returns both; the carry keeps its
            structure, shapes and dtypes.
        init: the first carry, a pytree of tensors and trees.
        xs: a pytree whose tensors and trees are cut along their first (batch) dim;
            None to give `f` None, `length` times.
        length: how many rows there are; needed without `xs`.
        reverse: begin with the last row; the `y` stay at the place of their rows.

    Returns:
        The last carry, and the pytree of all `y`, stacked along a new first (batch)
        dim, numbers as a tensor. None where `f` returns None. Of no rows the carry is
        `init`, and `f` is called with a row of zeros to know what `y` looks like.

    Raises:
        OperandError: there is nothing with rows, or the numbers of rows differ; `y` has
            what is no tensor, tree, number or None.
        OptionError: `length` is no number of rows.
        StructureError: `f` returned another kind of carry, or of `y` than before.

    Examples:
        >>> import torch, tdfunc
        >>> rows = tdfunc.TensorDict({"r": torch.tensor([1.0, 2.0, 3.0])}, 3)
        >>> def add(total, row):
        ...     total = total + row["r"]
        ...     return total, {"sum": total}
        >>> total, sums = tdfunc.scan(add, torch.zeros(()), rows)
        >>> total.item(), sums["sum"].tolist()
        (6.0, [1.0, 3.0, 6.0])
    """
    if length is not None and (
        not isinstance(length, (int, torch.SymInt)) or length < 0
    ):
        raise OptionError(
            "length is no number of rows", expected="an int >= 0, or None", got=length
        )
    leaves, layout = flatten(xs)
    if xs is None:
        leaves, layout = [], Layout((), ())
    count = _count(leaves, layout, length)
    if not count:
        return init, _no_rows(f, init, None if xs is None else (leaves, layout))
    # torch has no derivative and no rule of vmap for this loop that work in every case;
    # under a transform the compiler gets the steps one by one.
    if is_tracing() and not inside_transform():
        return _traced_scan(
            f, init, (leaves, layout, xs is None), count, reverse=reverse
        )
    columns = [leaf.unbind(0) for leaf in leaves]
    order = range(count - 1, -1, -1) if reverse else range(count)
    carry = init
    ys: list[Any] = [None] * count
    for i in order:
        row = None if xs is None else _row(layout, [column[i] for column in columns])
        new, ys[i] = _pair(f(carry, row))
        _check_carry(carry, new)
        carry = new
    return carry, _stacked(ys)


def _no_rows(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    rows: tuple[list[Any], Layout] | None,
) -> Any:
    """Return the `y` of no rows."""
    row = None
    if rows is not None:
        leaves, layout = rows
        row = _row(layout, [leaf.new_zeros(leaf.shape[1:]) for leaf in leaves])
    leaves, layout = flatten(_pair(f(init, row))[1])
    return layout.rebuilt(
        [
            leaf.new_zeros((0, *leaf.shape))
            if isinstance(leaf, torch.Tensor)
            else _joined([leaf])[:0]
            if leaf is not None
            else None
            for leaf in leaves
        ],
        lambda tree: with_dim(tree, 0, 0, None),
    )


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:  # noqa: PLR2004
        raise StructureError(
            "the function of a scan returns the carry and a result",
            expected="a pair (carry, y); y may be None",
            got=type(result).__name__,
        )
    return result


_ROWS = (torch.Tensor, Node)


def _count(
    leaves: Sequence[Any], layout: Layout, length: int | None, dim: int = 0
) -> int:
    sizes: list[int] = [] if length is None else [length]
    for item in layout.items:
        if not isinstance(item, _ROWS) or not item.dim():
            raise OperandError(
                "there are no rows in this",
                expected="tensors and trees with at least one (batch) dim",
                got=f"shape {list(item.shape)}"
                if hasattr(item, "shape")
                else repr(item),
            )
        sizes.append(item.shape[dim])
    if not sizes:
        raise OperandError(
            "there is nothing to scan over",
            expected="xs, or length",
            got="xs=None, length=None" if not leaves else "no tensors",
        )
    if any([size != sizes[0] for size in sizes]):
        own = sizes if length is None else sizes[1:]
        wrong = [i for i, size in enumerate(own) if size != sizes[0]]
        where = _place(layout.around(layout.items), wrong[0])
        raise OperandError(
            f"the numbers of rows differ{where}",
            expected=f"{sizes[0]} rows",
            got=sizes,
        )
    return sizes[0]


def _row(layout: Layout, leaves: Sequence[Any], dim: int = 0) -> Any:
    """Return a pytree of rows, of leaves that have lost a dim."""
    return layout.rebuilt(leaves, lambda tree: without_dim(tree, dim))


def _place(value: Any, i: int, *, leaves: bool = False) -> str:
    """Return where in a pytree an item is (or a leaf), for the text of an error."""
    if is_tracing():
        return ""
    found, _ = pytree.tree_flatten_with_path(value, None if leaves else is_tree)
    where = pytree.keystr(found[i][0])
    return f" at {where}" if where else ""


def _shown(value: Any) -> str:
    # The compiler knows no text of a tensor.
    return str(pytree.tree_structure(value)) if is_tracing() else repr(value)


def _check_carry(old: Any, new: Any, what: str = "the carry") -> None:
    before, layout = flatten(old)
    after, other = flatten(new)
    if not layout.matches(other):
        raise StructureError(
            f"{what} changed its structure", expected=_shown(old), got=_shown(new)
        )
    for i, (x, y) in enumerate(zip(before, after, strict=True)):
        same = not isinstance(x, torch.Tensor) or (
            isinstance(y, torch.Tensor) and x.shape == y.shape and x.dtype == y.dtype
        )
        if not same:
            raise StructureError(
                f"{what} changed a shape or dtype{_place(old, i, leaves=True)}",
                expected=f"{list(x.shape)} of {x.dtype}",
                got=f"{list(y.shape)} of {y.dtype}"
                if isinstance(y, torch.Tensor)
                else type(y).__name__,
            )


def _check_constants(old: Any, new: Any) -> None:
    """Raise if what is no tensor changes in the carry of a compiled loop."""
    for x, y in zip(flatten(old)[0], flatten(new)[0], strict=True):
        if not isinstance(x, torch.Tensor) and (type(x) is not type(y) or x != y):
            raise OperandError(
                "a compiled loop can not change what is no tensor in its carry",
                expected=repr(x),
                got=repr(y),
                fix="torch.tensor(...) in the first carry",
            )


def _tensors(leaves: Sequence[Any]) -> list[torch.Tensor]:
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def _among(leaves: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """Return leaves with other tensors in the place of theirs."""
    others = iter(tensors)
    return [next(others) if isinstance(x, torch.Tensor) else x for x in leaves]


def _stacked(ys: Sequence[Any]) -> Any:
    """Return pytrees of equal structure stacked along a new (batch) dim."""
    parts = [flatten(y) for y in ys]
    layout = parts[0][1]
    for _, other in parts[1:]:
        if not layout.matches(other):
            raise StructureError(
                "the function returned another structure than before",
                expected=repr(ys[0]),
                got=repr(other.items),
            )
    columns = zip(*[own.items for _, own in parts], strict=True)
    return layout.around([_joined(list(column)) for column in columns])


def _joined(column: list[Any]) -> Any:
    """Return what all rows have at one place, as one."""
    first = column[0]
    if is_tree(first):
        return stack(column, 0)
    if isinstance(first, torch.Tensor):
        return torch.stack(column)
    if any([(x is None) is not (first is None) for x in column]):
        raise StructureError(
            "the function returned another structure than before",
            expected="None for all rows, or for none",
            got=repr(column),
        )
    if first is None:
        return None
    if not all([isinstance(x, (int, float, complex)) for x in column]):
        raise OperandError(
            "the function of a scan returns what can not be stacked",
            expected="tensors, trees, numbers and None",
            got=repr(first),
        )
    return torch.tensor(column)


def _traced_scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    rows: tuple[list[Any], Layout, bool],
    count: int,
    *,
    reverse: bool,
) -> tuple[Any, Any]:
    leaves, layout, bare = rows
    start, carried = flatten(init)
    given = leaves or [torch.arange(count)]

    def row(parts: Sequence[Any]) -> Any:
        return None if bare else _row(layout, parts if leaves else ())

    # What `y` looks like has to be known outside of the loop. Nothing uses what is
    # computed here, so the compiler drops it.
    first, y = _pair(f(init, row([leaf[0] for leaf in given])))
    _check_carry(init, first)
    _check_constants(init, first)
    made, results = flatten(y)
    # torch's compiler fails on loops with one result only.
    spare = max(0, 2 - len(_tensors(start)) - len(_tensors(made)))

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        own = carry[spare:]
        new, y = f(carried.rebuilt(_among(start, own)), row(x))
        # torch refuses results that are inputs, or each other.
        ys = [leaf.clone() for leaf in _tensors(flatten(y)[0])]
        out = [*carry[:spare], *_tensors(flatten(new)[0])]
        return [leaf.clone() for leaf in out], ys

    begin = [*[torch.zeros(()) for _ in range(spare)], *_tensors(start)]
    last, ys = traced_scan(step, begin, given, reverse=reverse)
    found = iter(ys)
    out = results.rebuilt(
        [
            next(found) if isinstance(x, torch.Tensor) else _joined([x] * count)
            for x in made
        ],
        lambda tree: with_dim(tree, 0, count, None),
    )
    return carried.rebuilt(_among(start, last[spare:])), out


def while_loop(
    cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], init: Any
) -> Any:
    """Return the carry after ``while cond_fn(carry): carry = body_fn(carry)``.

    As `jax.lax.while_loop`.

    Args:
        cond_fn: a function of the carry that returns a bool, or a bool tensor without
            dims.
        body_fn: a function of the carry that returns one of the same structure, shapes
            and dtypes.
        init: the first carry, a pytree of tensors and trees.

    Raises:
        OperandError: `cond_fn` depends on what `vmap` maps: the rows would need
            different numbers of steps.
        StructureError: `body_fn` returned another kind of carry.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.tensor(1.0), "n": torch.tensor(0)})
        >>> double = {"x": lambda x: x * 2, "n": lambda n: n + 1}
        >>> td = tdfunc.while_loop(
        ...     lambda t: t["n"] < 3, lambda t: t.update_with(double), td
        ... )
        >>> td["x"].item()
        8.0
    """
    if is_tracing():
        start, layout = flatten(init)
        # Only for the structure; the compiler drops what is computed here.
        first = body_fn(init)
        _check_carry(init, first)
        _check_constants(init, first)

        def test(*carry: Any) -> Any:
            return cond_fn(layout.rebuilt(_among(start, carry)))

        def body(*carry: Any) -> tuple[Any, ...]:
            new, _ = flatten(body_fn(layout.rebuilt(_among(start, carry))))
            return tuple([x.clone() for x in _tensors(new)])

        last = traced_while_loop(test, body, tuple(_tensors(start)))
        return layout.rebuilt(_among(start, last))
    carry = init
    while _is_true(cond_fn(carry)):
        new = body_fn(carry)
        _check_carry(carry, new)
        carry = new
    return carry


def _is_true(flag: Any) -> bool:
    if isinstance(flag, torch.Tensor) and is_mapped(flag):
        raise OperandError(
            "the condition of a loop is not the same for all mapped rows",
            expected="a condition that does not depend on what vmap maps",
            got="a mapped tensor",
            fix="tdfunc.scan with a fixed number of steps and torch.where",
        )
    return bool(flag)


def cond(
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: tuple[Any, ...] = (),
) -> Any:
    """Return ``true_fn(*operands)`` or ``false_fn(*operands)``, as `torch.cond`.

    Where `vmap` maps the condition, both are computed and chosen from row by row.

    Args:
        pred: a bool, or a tensor of one element; all but zero counts as true.
        true_fn: a function of pytrees that returns a pytree of tensors and trees.
        false_fn: another, with results of the same structure, shapes and dtypes.
        operands: their arguments.

    Raises:
        OperandError: `pred` has more than one element, or none.
        StructureError: the results have different structures, shapes or dtypes, where
            both are computed.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.tensor([1.0, -2.0])}, 2)
        >>> tdfunc.vmap(
        ...     lambda t: tdfunc.cond(t["x"] > 0, lambda t: t * 10, lambda t: t, (t,))
        ... )(td)["x"].tolist()
        [10.0, -2.0]
    """
    if isinstance(pred, torch.Tensor) and pred.numel() != 1:
        raise OperandError(
            "the condition has no single value",
            expected="a tensor of one element",
            got=f"shape {list(pred.shape)}",
            fix="tdfunc.where or torch.where to choose element by element",
        )
    if not isinstance(pred, torch.Tensor) or not (is_tracing() or is_mapped(pred)):
        return true_fn(*operands) if pred else false_fn(*operands)
    pred = (pred if pred.dtype is torch.bool else pred != 0).reshape(())
    if not is_tracing():
        left, right, results = _branches(true_fn(*operands), false_fn(*operands))
        return results.rebuilt(
            [_either(pred, x, y) for x, y in zip(left, right, strict=True)]
        )
    leaves, layout = flatten(operands)
    # Only for the structure; the compiler drops what is computed here.
    left, right, results = _branches(true_fn(*operands), false_fn(*operands))

    def branch(fn: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        def call(*given: Any) -> tuple[Any, ...]:
            out, _ = flatten(fn(*layout.rebuilt(_among(leaves, given))))
            return tuple([leaf.clone() for leaf in _tensors(out)])

        return call

    found: Any = ()
    if _tensors(left):
        one, two = branch(true_fn), branch(false_fn)
        found = torch.cond(pred, one, two, _tensors(leaves))
    pairs = zip(_among(left, found), right, strict=True)
    return results.rebuilt(
        [x if isinstance(x, torch.Tensor) else _either(pred, x, y) for x, y in pairs]
    )


def _branches(one: Any, two: Any) -> tuple[list[Any], list[Any], Layout]:
    """Return the leaves of the results of both branches, and their common layout."""
    left, layout = flatten(one)
    right, other = flatten(two)
    _same(layout, other, "the branches return different structures")
    for i, (x, y) in enumerate(zip(left, right, strict=True)):
        if isinstance(x, torch.Tensor) and (x.shape != y.shape or x.dtype != y.dtype):
            where = _place(one, i, leaves=True)
            raise StructureError(
                f"the branches return different shapes or dtypes{where}",
                expected=f"{list(x.shape)} of {x.dtype}",
                got=f"{list(y.shape)} of {y.dtype}",
            )
    return left, right, layout


def _either(pred: torch.Tensor, x: Any, y: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.where(pred, x, y)
    if type(x) is type(y) and x == y:
        return x
    if type(x) is type(y) and isinstance(x, (int, float, complex)):
        return torch.where(pred, torch.tensor(x), torch.tensor(y))
    raise StructureError(
        "the branches return different values that are no tensors",
        expected=repr(x),
        got=repr(y),
    )


def _same(one: Layout, two: Layout, problem: str) -> None:
    if not one.matches(two):
        raise StructureError(
            problem,
            expected=_shown(one.items),
            got=_shown(two.items),
        )


def associative_scan(
    fn: Callable[[Any, Any], Any],
    xs: Any,
    dim: int | str = 0,
    *,
    reverse: bool = False,
) -> Any:
    """Return all running results of an associative function of two rows.

    Row ``i`` of the result is ``fn(... fn(fn(x0, x1), x2) ..., xi)``. While compiling,
    torch may combine rows in another order.

    Args:
        fn: an associative function of two rows that returns one of the same structure,
            shapes and dtypes.
        xs: a pytree of tensors and trees.
        dim: the dim along which they are cut: for a tree a batch dim; of trees also
            its name.
        reverse: begin with the last row.

    Raises:
        OperandError: there is nothing with rows, or the numbers of rows differ.
        OptionError: a negative `dim`, or a name, is another dim in some arguments.
        ShapeError: an argument has no such dim.
        StructureError: `fn` returned another structure, shape or dtype.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.tensor([1.0, 2.0, 3.0])}, 3)
        >>> tdfunc.associative_scan(lambda a, b: a + b, td)["x"].tolist()
        [1.0, 3.0, 6.0]
    """
    leaves, layout = flatten(xs)
    dim = _row_dim(layout, dim)
    count = _count(leaves, layout, None, dim)
    if not count or not leaves:
        return xs
    moved = [leaf.movedim(dim, 0) for leaf in leaves]
    if is_tracing():
        one = _row(layout, [leaf[0] for leaf in moved], dim)
        # Only for the structure; the compiler drops what is computed here.
        _check_carry(one, fn(one, one), _ROW)

        def combine(a: list[Any], b: list[Any]) -> list[Any]:
            return flatten(fn(_row(layout, a, dim), _row(layout, b, dim)))[0]

        flat: Any = traced_associative_scan(
            combine, moved, 0, reverse=reverse, combine_mode="generic"
        )
        return layout.rebuilt([leaf.movedim(0, dim) for leaf in flat])
    rows = [_row(layout, row, dim) for row in zip(*moved, strict=True)]
    if reverse:
        rows.reverse()
    for i in range(1, count):
        rows[i] = fn(rows[i - 1], rows[i])
        _check_carry(rows[0], rows[i], _ROW)
    if reverse:
        rows.reverse()
    columns = zip(*[flatten(row)[0] for row in rows], strict=True)
    return layout.rebuilt([torch.stack(column, dim) for column in columns])


_ROW = "the row"


def _row_dim(layout: Layout, dim: int | str) -> int:
    """Return the dim that rows are cut along as an int >= 0."""
    if isinstance(dim, str):
        places = {_named_dim(item, dim) for item in layout.items}
        if len(places) != 1:
            raise OptionError(
                f"{dim!r} is not the same dim in all arguments",
                expected="trees that have it at the same place",
                got=sorted(places),
            )
        return places.pop()
    counts = {item.dim() for item in layout.items if isinstance(item, _ROWS)} - {0}
    if dim < 0 and len(counts) > 1:
        raise OptionError(
            "a negative dim is not the same dim in all arguments",
            expected="dim >= 0, or equally many dims",
            got=f"dim={dim}, with {sorted(counts)} dims",
        )
    for count in counts:
        if not -count <= dim < count:
            raise ShapeError(
                f"{dim} is no dim of all arguments",
                expected=f"{-count} to {count - 1}",
                got=dim,
            )
    return dim + min(counts) if dim < 0 and counts else dim


def _named_dim(item: Any, dim: str) -> int:
    if isinstance(item, Node):
        return as_batch_dim(item, dim) or 0
    raise ShapeError(
        f"{dim!r} is no dim of all arguments",
        expected="an int, or trees only",
        got=type(item).__name__,
    )


def checkpoint(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` computed again in the backward pass, instead of kept in memory.

    Works under `grad` and the other transforms, where torch's own checkpoint does not.
    Tensors that `fn` holds, such as the parameters of a module, are differentiated as
    its arguments are. It is computed again with the same random state (of the CPU and
    the devices of the arguments) and the same autocast. A compiled transform is left to
    the compiler, which decides itself what to keep.

    Args:
        fn: a function of pytrees that returns a pytree of tensors and trees.

    Raises:
        OperandError: under a transform, `fn` gives a tensor that it holds, and that is
            differentiated, to a transform inside it; or it has lost one before it is
            computed again, as `torch.func.functional_call` takes them away.
        Exception: what `fn` raises.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.tensor(2.0)})
        >>> layer = tdfunc.checkpoint(lambda t: (t * t).sin())
        >>> grads = tdfunc.grad(lambda t: layer(t)["x"])(td)
        >>> torch.equal(grads["x"], 4 * torch.tensor(4.0).cos())
        True
    """

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            if inside_transform():
                return fn(*args, **kwargs)
            return _traced_checkpoint(fn, args, kwargs)
        if not inside_transform():
            return torch_checkpoint(fn, *args, use_reentrant=False, **kwargs)
        return _checkpoint(fn, args, kwargs)

    return recomputed if is_tracing() else wraps(fn)(recomputed)


def _checkpoint(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function under a transform; its derivatives call it again."""
    leaves, layout = flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    restored = _state(leaves)
    # The values are computed here, on the level of the caller, where tensors that `fn`
    # holds mean what they mean to it, and of constants, so that no graph is kept.
    given = list(leaves)
    for i in places:
        given[i] = leaves[i].detach()
    own_args, own_kwargs = layout.rebuilt(given)
    with _Held(given) as held:
        out, results = flatten(fn(*own_args, **own_kwargs))
    out = held.replaced(out)
    values = [x for x in out if _has_gradient(x)]
    tensors = [leaves[i] for i in places] + list(held.found.values())

    def call(*inputs: torch.Tensor) -> tuple[Any, ...]:
        again = list(leaves)
        for i, x in zip(places, inputs[: len(places)], strict=True):
            again[i] = x
        own_args, own_kwargs = layout.rebuilt(again)
        now = dict(zip(held.found, inputs[len(places) :], strict=True))
        with restored(), _Replaced(now) if now else nullcontext() as replace:
            found, _ = flatten(fn(*own_args, **own_kwargs))
        if replace is not None:
            found = replace.replaced(found)
            held.check(replace.met)
        return tuple([x for x in found if _has_gradient(x)])

    if values:
        flat: Any = iter(_Recomputed.apply(call, len(values), *values, *tensors))
        out = [next(flat) if _has_gradient(x) else x for x in out]
    return results.rebuilt(out)


class _Replaced(TorchFunctionMode):
    """Gives functions other tensors in the place of those that a function holds.

    Attributes:
        met: the ids of those that it has met.
    """

    def __init__(self, others: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._others = others
        self.met: set[int] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = self.replaced((args, kwargs or {}))
        return func(*given[0], **given[1])

    def replaced(self, values: Any) -> Any:
        found = {id(x) for x in pytree.tree_leaves(values)}.intersection(self._others)
        if not found:
            return values
        self.met |= found
        return pytree.tree_map(lambda x: self._others.get(id(x), x), values)


class _Held(_Replaced):
    """Finds what a function holds and is no constant, and makes constants of it.

    Attributes:
        found: what its derivatives depend on, by the ids of the tensors that it holds.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        super().__init__({})
        # What the function got or made. One of these that dies may leave its id to
        # another that the function makes, but not to one that it holds.
        self._known = set(map(id, given))
        self._level = transform_level()
        # Kept alive, so that no other tensor has one of the ids.
        self._held: list[torch.Tensor] = []
        self.found: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        for x in pytree.tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self._known.add(id(x))
                self._known.add(id(seen_at(x, self._level)))
        return out

    def replaced(self, values: Any) -> Any:
        for x in pytree.tree_leaves(values):
            if not isinstance(x, torch.Tensor) or id(x) in self._others:
                continue
            own = seen_at(x, self._level)
            if not self._known.isdisjoint((id(x), id(own))):
                continue
            if own is not x:
                if is_variable(own) or has_tangent(own, self._level):
                    raise OperandError(
                        "a checkpointed function gives a tensor that it holds, and "
                        "that is differentiated, to a transform inside it",
                        expected="such a tensor among the arguments",
                        got=f"a tensor of shape {list(own.shape)}",
                        fix="checkpoint(fn)(x, params) with the tensor as an argument",
                    )
            elif is_wrapped(x) or x.requires_grad:
                self._held.append(x)
                # Another checkpoint around may put something else in its place.
                self.found[id(x)] = x.view_as(x)
                self._others[id(x)] = x.detach()
        return super().replaced(values)

    def check(self, met: set[int]) -> None:
        """Raise if what was met now is not all that is differentiated.

        Where `torch.func.functional_call` has put back the parameters of a module.
        """
        for x in self._held:
            if id(x) not in met and is_variable(x):
                raise OperandError(
                    "a checkpointed function no longer holds a tensor that it held "
                    "when it was called, and that is differentiated",
                    expected="the same tensors when it is computed again",
                    got=f"none of shape {list(x.shape)} that it held",
                    fix="tdfunc.func.functional_call, which leaves modules as they "
                    "are, or checkpoint(fn)(x, params)",
                )


def _state(leaves: Sequence[Any]) -> Callable[[], AbstractContextManager[None]]:
    """Return contexts with the random state and autocast of now, as torch keeps them.

    Of the CPU and the devices of the arguments.
    """
    drawn = torch.get_rng_state()
    devices, states = get_device_states(*leaves)
    kinds = {"cpu"} | {x.device.type for x in leaves if isinstance(x, torch.Tensor)}
    casts = [
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        for kind in sorted(kinds)
        if torch.amp.is_autocast_available(kind)
    ]

    @contextmanager
    def restored() -> Generator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices))
            torch.set_rng_state(drawn)
            set_device_states(devices, states)
            for kind, dtype, enabled in casts:
                stack.enter_context(torch.autocast(kind, dtype, enabled=enabled))
            yield

    return restored


def _traced_checkpoint(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    leaves, layout = flatten((args, kwargs))
    # Only for the structure; the compiler drops what is computed here.
    _, results = flatten(fn(*args, **kwargs))

    def call(*given: Any) -> tuple[Any, ...]:
        own_args, own_kwargs = layout.rebuilt(given)
        return tuple(flatten(fn(*own_args, **own_kwargs))[0])

    return results.rebuilt(torch_checkpoint(call, *leaves, use_reentrant=False))


class _Recomputed(torch.autograd.Function):
    """The values of a function, whose derivatives call it again.

    Given the function, the number of values, these, and what they depend on.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        _: Callable[..., Any], count: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        # Copies: torch lets nobody write into results that are views of inputs.
        return tuple([x.clone() for x in tensors[:count]])

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Any, ...],
        output: Any,  # noqa: ARG004 - torch's signature
    ) -> None:
        call, count, *tensors = inputs
        ctx.call = call
        ctx.count = count
        ctx.save_for_backward(*tensors[count:])
        ctx.save_for_forward(*tensors[count:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        call, inputs, places = _again(ctx)

        # As a gradient, not by vjp: that goes back when its level has been left, where
        # a checkpoint inside the function can not.
        def product(*own: torch.Tensor) -> Any:
            pairs = zip(call(*own), cotangents, strict=True)
            return sum([(x * g.conj()).sum().real for x, g in pairs])

        own: Any = torch.func.grad(product, tuple(range(len(places))))(
            *[inputs[i] for i in places]
        )
        grads: list[Any] = [None] * len(inputs)
        for i, grad in zip(places, own, strict=True):
            grads[i] = grad
        return (None, None, *[None] * ctx.count, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        call, inputs, places = _again(ctx)
        own = tangents[2 + ctx.count :]
        primals = [inputs[i] for i in places]
        pairs = zip([own[i] for i in places], primals, strict=True)
        given = [torch.zeros_like(x) if t is None else t for t, x in pairs]
        both: Any = torch.func.jvp(call, tuple(primals), tuple(given))
        return both[1]


def _again(ctx: Any) -> tuple[Callable[..., Any], list[torch.Tensor], list[int]]:
    """Return a function of what has a gradient, all inputs, and the places of it."""
    inputs = list(ctx.saved_tensors)
    places = [i for i, x in enumerate(inputs) if _has_gradient(x)]

    def call(*own: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = list(inputs)
        for i, x in zip(places, own, strict=True):
            given[i] = x
        return ctx.call(*given)

    return call, inputs, places


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (
        value.is_floating_point() or value.is_complex()
    )


def stop_gradient(value: Any) -> Any:
    """Return a pytree of the same values that count as constants, at every level.

    Args:
        value: a tree, a tensor, or a pytree of them. Tensors share memory with the old
            ones.

    Examples:
        >>> import torch, tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.tensor(3.0)})
        >>> loss = lambda t: t["x"] * tdfunc.stop_gradient(t)["x"]
        >>> tdfunc.grad(loss)(td)["x"].item()
        3.0
    """
    if isinstance(value, Node):
        return detach(value)
    leaves, layout = flatten(value)
    return layout.rebuilt(
        [x.detach() if isinstance(x, torch.Tensor) else x for x in leaves]
    )
