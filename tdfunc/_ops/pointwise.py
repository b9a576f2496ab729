"""Arithmetic and comparisons, leaf by leaf, with one rule for each kind of operand.

- a number: acts on every leaf;
- a tensor: its dims align with the *batch* dims, as if the tree were one tensor of
  that shape, so that ``td * weights`` scales rows;
- a tree: leaves are paired by path, batch dims broadcast with batch dims and feature
  dims with feature dims; all entries must match. Statics and names come from the
  left operand.

The functions follow torch's of the same name in dtype promotion and rounding.
"""

from __future__ import annotations

import operator
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdfunc._core._torch import (
    foreach_abs,
    foreach_add,
    foreach_div,
    foreach_mul,
    foreach_neg,
    foreach_pow,
    foreach_sub,
    foreach_works,
)
from tdfunc._core.leaf import LeafLike, as_leaf
from tdfunc._core.mismatch import check_same_entries
from tdfunc._core.node import Node, NodeT, entry_at, make
from tdfunc._core.statics import same_value
from tdfunc._core.tree import (
    around_lazy,
    around_rows,
    feature_views,
    one_table,
    pointwise,
    uncoded,
    widened,
    without_rows,
    zip_leaves,
)
from tdfunc._ops import entries
from tdfunc.errors import OperandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tdfunc._core.schema import Schema

__all__ = [
    "abs",
    "add",
    "div",
    "eq",
    "equal",
    "floor_divide",
    "ge",
    "gt",
    "le",
    "lt",
    "mul",
    "ne",
    "neg",
    "pow",
    "remainder",
    "rsub",
    "sub",
]

Numbers = (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


def binary(
    td: NodeT,
    other: Any,
    fn: Callable[[Any, Any], Any],
    each: Callable[..., Any] | None = None,
) -> NodeT:
    """Return ``fn(leaf, other)`` for every leaf, by the rule for `other`'s kind.

    Args:
        td: the tree.
        other: a number, a tensor, an array, or a tree.
        fn: the function of two tensors, or of a tensor and a number.
        each: its ``torch._foreach_*`` form, None if there is none.

    Raises:
        OperandError: `other` is of another kind, or does not broadcast.
        StructureError: `other` is a tree with other entries.
    """
    if not td._schema.plain:
        return _binary_apart(td, other, fn, each)
    if isinstance(other, Node):
        return _with_tree(td, other, fn, each)
    if isinstance(other, Numbers):
        return pointwise(td, fn, each, other)
    return _with_tensor(td, as_operand(other), fn, each)


def _with_tensor(
    td: NodeT,
    other: torch.Tensor,
    fn: Callable[[Any, Any], Any],
    each: Callable[..., Any] | None,
) -> NodeT:
    if other.dim() == 0:
        # The kernels promote dtypes in another way, and lose the tensor's gradient.
        return pointwise(td, fn, None, other)
    size = td.batch_size
    joint = _joint_of_tensor(size, other)
    views = feature_views(other, td._schema.ranks())
    leaves = _paired(td._schema, td._leaves, views, fn, each)
    names = td._names if joint == size else None
    return make(td._schema, leaves, td._statics, joint, names)


def _with_tree(
    td: NodeT,
    other: Node,
    fn: Callable[[Any, Any], Any],
    each: Callable[..., Any] | None,
) -> NodeT:
    size, osize = td.batch_size, other.batch_size
    schema, oschema = td._schema, other._schema
    if schema is oschema and size == osize:
        leaves = _paired(schema, td._leaves, other._leaves, fn, each)
        return make(schema, leaves, td._statics, size, td._names)
    if oschema.lazy:
        lazy: Any = other
        return _with_tree(td, lazy.densify(), fn, each)
    _check_entries(td, other)
    joint = _joint_of_trees(size, osize)
    plan = schema.aligned(oschema, len(size), len(osize))
    left = padded(td._leaves, plan.mine, plan.joint)
    right = padded(other._leaves, plan.theirs, plan.joint)
    leaves = _paired(schema, left, right, fn, each)
    names = td._names if joint == size else None
    return make(plan.schema, leaves, td._statics, joint, names)


def ternary(
    td: NodeT,
    one: Any,
    two: Any,
    fn: Callable[[Any, Any, Any], Any],
    each: Callable[..., Any] | None = None,
) -> NodeT:
    """Return ``fn(leaf, one, two)`` for every leaf, by the rule of each operand.

    Args:
        td: the tree.
        one: a number, a tensor, an array, or a tree.
        two: another, of any of these kinds.
        fn: the function of a tensor and two tensors or numbers.
        each: its ``torch._foreach_*`` form, None if there is none.

    Raises:
        OperandError: an operand is of another kind, or does not broadcast.
        StructureError: an operand is a tree with other entries.
    """
    operands = [as_operand(one), as_operand(two)]
    if not td._schema.plain:
        return _ternary_apart(td, operands, fn, each)
    sizes = [x.batch_size if isinstance(x, Node) else None for x in (td, *operands)]
    size = joint = td.batch_size
    whole = td._schema
    for operand, osize in zip(operands, sizes[1:], strict=True):
        if isinstance(operand, Node) and osize is not None:
            oschema = operand._schema
            if oschema is whole and osize == joint:
                continue
            _check_entries(td, operand)
            wider = _joint_of_trees(joint, osize)
            whole = whole.aligned(oschema, len(joint), len(osize)).schema
            joint = wider
        elif isinstance(operand, torch.Tensor) and operand.dim():
            joint = _joint_of_tensor(joint, operand)
    columns: list[Any] = []
    for operand, osize in zip((td, *operands), sizes, strict=True):
        if isinstance(operand, Node) and osize is not None:
            plan = whole.aligned(operand._schema, len(joint), len(osize))
            columns.append(padded(operand._leaves, plan.theirs, plan.joint))
        elif isinstance(operand, torch.Tensor) and operand.dim():
            columns.append(feature_views(operand, whole.ranks()))
        else:
            columns.append(operand)
    leaves = _each_triple(columns, each)
    if leaves is None:
        rows = [c if isinstance(c, (list, tuple)) else repeat(c) for c in columns]
        leaves = _zipped(whole, rows, fn)
    names = td._names if joint == size else None
    return make(whole, leaves, td._statics, joint, names)


def _each_triple(
    columns: list[Any], each: Callable[..., Any] | None
) -> tuple[Any, ...] | None:
    leaves, one, two = columns
    # A tensor without dims, here not in a list, must not go to the kernels; a number
    # they take as a weight, and refuse elsewhere.
    if each is None or not isinstance(one, (list, tuple)):
        return None
    others = [*one, *two] if isinstance(two, (list, tuple)) else one
    if isinstance(two, torch.Tensor) or not foreach_works(leaves, others):
        return None
    try:
        return tuple(each(leaves, one, two))
    except (RuntimeError, TypeError):
        return None  # the loop says which leaf is wrong


def as_operand(other: Any) -> Any:
    """Return a number, a tensor or a tree as it is, and an array as a tensor."""
    if isinstance(other, (np.ndarray, np.generic)):
        return as_leaf(other, ())
    if isinstance(other, (Node, torch.Tensor, *Numbers)):
        return other
    raise OperandError(
        "a tree can not be combined with this",
        expected="a number, a tensor, or a tree",
        got=type(other).__name__,
        fix="TensorDict(other, batch_size) makes a tree of a mapping",
    )


def _binary_apart(
    td: NodeT,
    other: Any,
    fn: Callable[[Any, Any], Any],
    each: Callable[..., Any] | None,
) -> NodeT:
    """Apply a function of two to a tree with rows or lazy stacks."""
    if td._schema.rows:
        right = _bare_operand(td, other)
        return around_rows(td, lambda left: binary(left, right, fn, each))
    other = as_operand(other)
    if isinstance(other, Node):
        other = as_lazy(td, other)
        _check_entries(td, other)
    return around_lazy(td, lambda x, y: binary(x, y, fn, each), other)


def _ternary_apart(
    td: NodeT,
    operands: list[Any],
    fn: Callable[[Any, Any, Any], Any],
    each: Callable[..., Any] | None,
) -> NodeT:
    """Apply a function of three to a tree with rows or lazy stacks."""
    if td._schema.rows:
        one, two = [_bare_operand(td, operand) for operand in operands]
        return around_rows(td, lambda left: ternary(left, one, two, fn, each))
    for i, operand in enumerate(operands):
        if isinstance(operand, Node):
            operands[i] = as_lazy(td, operand)
            _check_entries(td, operands[i])
    return around_lazy(td, lambda x, y, z: ternary(x, y, z, fn, each), *operands)


def as_lazy(td: Node, other: Node) -> Node:
    """Return a dense operand of lazy stacks with stacks of the same kind."""
    for slot, path, _ in td._schema.lazies():
        node: Any = (
            (entry_at(other, path) if path in other else None) if path else other
        )
        if isinstance(node, Node) and not type(node).is_lazy:
            own = td._leaves[slot].like(node)
            other = entries.set(other, path, own) if path else own
    return other


def comparison(
    td: NodeT, other: Any, fn: Callable[[Any, Any], Any], *, exact: bool = True
) -> NodeT:
    """Return a comparison, in which rows of values of two trees are equal or not.

    Args:
        td: the tree.
        other: a number, a tensor, an array, or a tree.
        fn: gives booleans.
        exact: whether `fn` can compare codes; False compares these by `torch.eq`.

    Raises:
        OperandError: `other` is of another kind, or does not broadcast.
        StructureError: `other` is a tree with other entries.
    """
    if not isinstance(other, Node):
        return binary(td, other, fn)
    lazy = td._schema.lazy
    if lazy or other._schema.lazy:
        tree: Any = other
        other = as_lazy(td, tree) if lazy else tree.densify()
    if td._schema.rows:
        return _compared(td, other, fn, exact=exact)
    if lazy:
        # The text of members is seen in each of them only.
        _check_entries(td, other)
        return around_lazy(td, lambda x, y: comparison(x, y, fn, exact=exact), other)
    return binary(td, other, fn)


def _compared(
    td: NodeT, other: Node, fn: Callable[[Any, Any], Any], *, exact: bool
) -> NodeT:
    _check_entries(td, other)
    pair: list[Any] = one_table([td, other])
    left, right = pair
    codes_by = fn if exact else torch.eq
    whole = comparison(uncoded(left), uncoded(right), codes_by, exact=exact)
    if exact:
        return whole
    bare = comparison(without_rows(left), without_rows(right), fn, exact=exact)
    done = iter(bare._leaves)
    codes = frozenset(td._schema.rows)
    leaves = tuple(
        [x if at in codes else next(done) for at, x in enumerate(whole._leaves)]
    )
    return make(whole._schema, leaves, whole._statics, whole.batch_size, whole._names)


def _bare_operand(td: Node, other: Any) -> Any:
    """Return the operand without rows, which must be where those of `td` are."""
    if not isinstance(other, Node):
        return other
    _check_entries(td, other)
    return without_rows(other)


def _check_entries(td: Node, other: Node) -> None:
    if td._schema is not other._schema:
        fix = "td.select(*keys) keeps the entries that both have"
        check_same_entries((td, other), fix=fix)


def _joint_of_tensor(size: torch.Size, other: torch.Tensor) -> torch.Size:
    try:
        return torch.broadcast_shapes(size, other.shape)
    except RuntimeError:
        raise OperandError(
            "the tensor does not fit the batch size",
            expected=f"a shape that broadcasts with {list(size)}",
            got=f"shape {list(other.shape)}",
            fix="td.apply(fn) reaches feature dims",
        ) from None


def _joint_of_trees(size: torch.Size, other: torch.Size) -> torch.Size:
    try:
        return torch.broadcast_shapes(size, other)
    except RuntimeError:
        raise OperandError(
            "the batch sizes do not broadcast",
            expected=f"a batch size that broadcasts with {list(size)}",
            got=list(other),
            fix="td.unsqueeze(dim) adds a batch dim that broadcasts",
        ) from None


def padded(
    leaves: tuple[Any, ...],
    segments: tuple[tuple[int, ...], ...],
    wanted: tuple[tuple[int, ...], ...],
) -> tuple[Any, ...]:
    """Insert dims of size 1 in front of each segment that is shorter than wanted."""
    if segments == wanted:
        return leaves
    rows = zip(leaves, segments, wanted, strict=True)
    return tuple([widened(leaf, own, want) for leaf, own, want in rows])


def _paired(
    schema: Schema,
    left: Any,
    right: Any,
    fn: Callable[[Any, Any], Any],
    each: Callable[..., Any] | None,
) -> tuple[Any, ...]:
    from_each = _each_pair(left, right, each)
    if from_each is not None:
        return from_each
    return _zipped(schema, (left, right), fn)


def _zipped(
    schema: Schema, columns: Sequence[Any], fn: Callable[..., Any]
) -> tuple[Any, ...]:
    try:
        return zip_leaves(schema, columns, fn)
    except RuntimeError as error:
        for path, x, *others in zip(schema.paths(), *columns, strict=False):
            shapes = [x.shape for x in (x, *others) if isinstance(x, torch.Tensor)]
            try:
                torch.broadcast_shapes(*shapes)
            except RuntimeError:
                raise OperandError(
                    "the leaves do not broadcast",
                    path=path,
                    expected=f"a shape that broadcasts with {list(x.shape)}",
                    got=f"shape {', '.join([str(list(s)) for s in shapes[1:]])}",
                    fix="td.apply(fn, other) combines leaves in another way",
                ) from error
        raise


def _each_pair(
    left: Any, right: Any, each: Callable[..., Any] | None
) -> tuple[Any, ...] | None:
    if each is None or not foreach_works(left, right):
        return None
    try:
        return tuple(each(left, right))
    except (RuntimeError, TypeError):
        return None  # the loop says which leaf is wrong


def add(td: NodeT, other: Any, *, alpha: float = 1) -> NodeT:
    """Return ``td + alpha * other``, leaf by leaf.

    The module docstring has the rule for each kind of `other`, and the errors.

    Args:
        td: the tree.
        other: the other operand.
        alpha: a number that scales `other`; an integer for integers, as in torch.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 2)}, batch_size=2)
        >>> td.add(torch.tensor([1.0, 2.0]))["x"].tolist()
        [[1.0, 1.0], [2.0, 2.0]]
    """
    if type(alpha) is int and alpha == 1:
        return binary(td, other, torch.add, foreach_add)
    scaled = partial(torch.add, alpha=alpha)
    return binary(td, other, scaled, _each_scaled(foreach_add, other, alpha))


def sub(td: NodeT, other: Any, *, alpha: float = 1) -> NodeT:
    """Return ``td - alpha * other``, leaf by leaf.

    The module docstring has the rule for each kind of `other`, and the errors.

    Args:
        td: the tree.
        other: the other operand.
        alpha: a number that scales `other`; an integer for integers, as in torch.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 2)}, batch_size=2)
        >>> td.sub(1)["x"].tolist()
        [[-1.0, -1.0], [-1.0, -1.0]]
    """
    if type(alpha) is int and alpha == 1:
        return binary(td, other, torch.sub, foreach_sub)
    scaled = partial(torch.sub, alpha=alpha)
    return binary(td, other, scaled, _each_scaled(foreach_sub, other, alpha))


def _each_scaled(kernel: Any, other: Any, alpha: float) -> Any:
    """Return the kernel with a factor of the other operand, which can be no number."""
    if kernel is None or isinstance(other, Numbers):
        return None
    return partial(kernel, alpha=alpha)


def mul(td: NodeT, other: Any) -> NodeT:
    """Return ``td * other``, leaf by leaf.

    The module docstring has the rule for each kind of `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 2)}, batch_size=2)
        >>> (td + 2).mul(td + 3)["x"].tolist()
        [[6.0, 6.0], [6.0, 6.0]]
    """
    return binary(td, other, torch.mul, foreach_mul)


def div(td: NodeT, other: Any) -> NodeT:
    """Return ``td / other``, true division, leaf by leaf.

    The module docstring has the rule for each kind of `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 2)}, batch_size=2)
        >>> (td + 1).div(2)["x"].tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    return binary(td, other, torch.div, foreach_div)


def floor_divide(td: NodeT, other: Any) -> NodeT:
    """Return ``td // other``, rounded down, leaf by leaf.

    The module docstring has the rule for each kind of `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 2)}, batch_size=2)
        >>> (td - 1).floor_divide(2)["x"].tolist()
        [[-1.0, -1.0], [-1.0, -1.0]]
    """
    return binary(td, other, torch.floor_divide)


def remainder(td: NodeT, other: Any) -> NodeT:
    """Return ``td % other``, with the sign of the divisor, leaf by leaf.

    The module docstring has the rule for each kind of `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 2)}, batch_size=2)
        >>> (td - 1).remainder(3)["x"].tolist()
        [[2.0, 2.0], [2.0, 2.0]]
    """
    return binary(td, other, torch.remainder)


def pow(td: NodeT, other: Any) -> NodeT:
    """Return ``td ** other``, leaf by leaf.

    The module docstring has the rule for each kind of `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 2)}, batch_size=2)
        >>> (td + 3).pow(2)["x"].tolist()
        [[9.0, 9.0], [9.0, 9.0]]
    """
    return binary(td, other, torch.pow, foreach_pow)


def radd(td: NodeT, other: Any, *, alpha: float = 1) -> NodeT:
    """Return ``other + alpha * td``."""
    if type(alpha) is not int or alpha != 1:
        return binary(td, other, lambda x, y: torch.add(y, x, alpha=alpha))
    # Numbers commute to the bit; tensors of other dtypes do not.
    each = foreach_add if isinstance(other, Numbers) else None
    return binary(td, other, lambda x, y: operator.add(y, x), each)


def rsub(td: NodeT, other: Any, *, alpha: float = 1) -> NodeT:
    """Return ``other - alpha * td``, leaf by leaf.

    The module docstring has the rule for each kind of `other`, and the errors.

    Args:
        td: the tree.
        other: what to subtract from.
        alpha: a number that scales `td`; an integer for integers, as in torch.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2)}, batch_size=2)
        >>> td.rsub(10, alpha=2)["x"].tolist()
        [8.0, 8.0]
    """
    if type(alpha) is not int or alpha != 1:
        return binary(td, other, lambda x, y: torch.rsub(x, y, alpha=alpha))
    return binary(td, other, lambda x, y: operator.sub(y, x))


def rmul(td: NodeT, other: Any) -> NodeT:
    """Return ``other * td``."""
    each = foreach_mul if isinstance(other, Numbers) else None
    return binary(td, other, lambda x, y: operator.mul(y, x), each)


def rtruediv(td: NodeT, other: Any) -> NodeT:
    """Return ``other / td``."""
    return binary(td, other, lambda x, y: operator.truediv(y, x))


def rfloordiv(td: NodeT, other: Any) -> NodeT:
    """Return ``other // td``."""
    return binary(td, other, lambda x, y: operator.floordiv(y, x))


def rmod(td: NodeT, other: Any) -> NodeT:
    """Return ``other % td``."""
    return binary(td, other, lambda x, y: operator.mod(y, x))


def rpow(td: NodeT, other: Any) -> NodeT:
    """Return ``other ** td``."""
    return binary(td, other, lambda x, y: operator.pow(y, x))


def eq(td: NodeT, other: Any) -> NodeT:
    """Return a tree of booleans: ``td == other``, element by element.

    Where two trees have one value for every row, the result has a tensor of booleans;
    statics and `unbatched` tensors are not compared, and stay as they are: `equal`
    compares them. The module docstring has the rule for each kind of
    `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(2)}, 2).eq(0)["x"].tolist()
        [True, False]
    """
    return comparison(td, other, torch.eq)


def ne(td: NodeT, other: Any) -> NodeT:
    """Return a tree of booleans: ``td != other``, element by element.

    Where two trees have one value for every row, the result has a tensor of booleans;
    statics and `unbatched` tensors are not compared, and stay as they are: `equal`
    compares them. The module docstring has the rule for each kind of
    `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(2)}, 2).ne(0)["x"].tolist()
        [False, True]
    """
    return comparison(td, other, torch.ne)


def lt(td: NodeT, other: Any) -> NodeT:
    """Return a tree of booleans: ``td < other``, element by element.

    The module docstring has the rule for each kind of `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(2)}, 2).lt(0)["x"].tolist()
        [False, False]
    """
    return binary(td, other, torch.lt)


def le(td: NodeT, other: Any) -> NodeT:
    """Return a tree of booleans: ``td <= other``, element by element.

    The module docstring has the rule for each kind of `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(2)}, 2).le(0)["x"].tolist()
        [True, False]
    """
    return binary(td, other, torch.le)


def gt(td: NodeT, other: Any) -> NodeT:
    """Return a tree of booleans: ``td > other``, element by element.

    The module docstring has the rule for each kind of `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(2)}, 2).gt(0)["x"].tolist()
        [False, True]
    """
    return binary(td, other, torch.gt)


def ge(td: NodeT, other: Any) -> NodeT:
    """Return a tree of booleans: ``td >= other``, element by element.

    The module docstring has the rule for each kind of `other`, and the errors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.arange(2)}, 2).ge(0)["x"].tolist()
        [True, True]
    """
    return binary(td, other, torch.ge)


def eq_operator(td: Node, other: Any) -> Any:
    """Return ``td == other``; NotImplemented for what is neither number nor tree."""
    return eq(td, other) if _comparable(other) else NotImplemented


def ne_operator(td: Node, other: Any) -> Any:
    """Return ``td != other``; NotImplemented for what is neither number nor tree."""
    return ne(td, other) if _comparable(other) else NotImplemented


def _comparable(other: Any) -> bool:
    kinds = (Node, torch.Tensor, np.ndarray, np.generic, *Numbers)
    return isinstance(other, kinds)


def neg(td: NodeT) -> NodeT:
    """Return ``-td``, leaf by leaf."""
    return pointwise(td, torch.neg, foreach_neg)


def abs(td: NodeT) -> NodeT:
    """Return the absolute value of every element.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([-1.0, 2.0])}).abs()["x"].tolist()
        [1.0, 2.0]
    """
    return pointwise(td, torch.abs, foreach_abs)


def equal(td: Node, other: object, *, equal_nan: bool = False) -> bool:
    """Return whether two trees are the same in everything but key order.

    Compares entries and node classes, statics, batch sizes (of nested nodes too),
    and for every leaf device, dtype, shape and values. Dim names are not compared.

    Args:
        td: the tree.
        other: what to compare with; anything but a tree is not equal.
        equal_nan: NaN equals NaN.

    Returns:
        A Python bool, so it can not be traced; ``(a == b).all()`` can.

    Examples:
        >>> from tdfunc import TensorDict
        >>> a = TensorDict({"x": 1, "s": "text"})
        >>> a.equal(a.set("x", 1)), a.equal(a.set("s", "other"))
        (True, False)
    """
    if not isinstance(other, Node) or type(td) is not type(other):
        return False
    if td.batch_size != other.batch_size:
        return False
    schema, oschema = td._schema, other._schema
    if not schema.matches(oschema) or schema.leaf_kids() != oschema.leaf_kids():
        return False
    if schema.rows:
        td, other = one_table([td, other])
    if td._statics != other._statics:
        return False
    return all(
        [
            _same_leaf(x, y, equal_nan)
            for x, y in zip(td._leaves, other._leaves, strict=True)
        ]
    )


def _same_leaf(x: Any, y: Any, equal_nan: bool) -> bool:  # noqa: FBT001
    if isinstance(x, LeafLike):
        return x.same(y, equal_nan=equal_nan)
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return same_value(x, y)
    if x.dtype != y.dtype or x.shape != y.shape or x.device != y.device:
        return False
    if not equal_nan or not (x.is_floating_point() or x.is_complex()):
        return torch.equal(x, y)
    return bool(((x == y) | (x.isnan() & y.isnan())).all())
