"""Running totals, softmax and sorting along one batch dim.

`dim` counts batch dims, or is a dim name. Batch size, names, statics and feature dims
stay; only `topk` shortens the dim. What torch refuses for the dtype of a leaf raises
torch's own error, with a note that names the leaf. Running totals and softmax leave
one value per row (text) as it is.

Raises, for all of them:
    ShapeError: `dim` is no batch dim.
    OperandError: of `sort`, `argsort` and `topk`: an entry has one value per row.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tdfunc._core.node import Node, NodeT, make
from tdfunc._core.tree import (
    along_lazy,
    map_leaves,
    pointwise,
    put_rows,
    refuse_rows,
    without_rows,
)
from tdfunc._ops.reduce import ValuesIndices
from tdfunc._ops.shape import as_dim
from tdfunc.errors import ShapeError

__all__ = [
    "argsort",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "log_softmax",
    "logcumsumexp",
    "softmax",
    "sort",
    "topk",
]


def cumsum(td: NodeT, dim: int | str, *, dtype: torch.dtype | None = None) -> NodeT:
    """Return the sums of all rows up to each row.

    Args:
        td: the tree.
        dim: the batch dim to go along.
        dtype: dtype to sum in, None for torch's choice.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1, 2, 3])}, 3).cumsum(0)["x"].tolist()
        [1, 3, 6]
    """
    return _along(td, dim, partial(torch.cumsum, dtype=dtype))


def cumprod(td: NodeT, dim: int | str, *, dtype: torch.dtype | None = None) -> NodeT:
    """Return the products of all rows up to each row.

    Args:
        td: the tree.
        dim: the batch dim to go along.
        dtype: dtype to multiply in, None for torch's choice.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1, 2, 3])}, 3).cumprod(0)["x"].tolist()
        [1, 2, 6]
    """
    return _along(td, dim, partial(torch.cumprod, dtype=dtype))


def logcumsumexp(td: NodeT, dim: int | str) -> NodeT:
    """Return the logarithms of the sums of ``exp`` of all rows up to each row.

    Args:
        td: the tree.
        dim: the batch dim to go along.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}, 2).logcumsumexp(0)["x"]
        tensor([0.0000, 0.6931])
    """
    return _along(td, dim, partial(torch.logcumsumexp))


def cummax(td: Node, dim: int | str) -> ValuesIndices:
    """Return the greatest elements of all rows up to each row, and their rows.

    Args:
        td: the tree.
        dim: the batch dim to go along.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> found = TensorDict({"x": torch.tensor([1, 3, 2])}, 3).cummax(0)
        >>> found.values["x"].tolist(), found.indices["x"].tolist()
        ([1, 3, 3], [0, 1, 1])
    """
    return _pair(td, dim, partial(torch.cummax))


def cummin(td: Node, dim: int | str) -> ValuesIndices:
    """Return the least elements of all rows up to each row, and their rows.

    Args:
        td: the tree.
        dim: the batch dim to go along.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> found = TensorDict({"x": torch.tensor([2, 1, 3])}, 3).cummin(0)
        >>> found.values["x"].tolist(), found.indices["x"].tolist()
        ([2, 1, 1], [0, 1, 1])
    """
    return _pair(td, dim, partial(torch.cummin))


def softmax(td: NodeT, dim: int | str, *, dtype: torch.dtype | None = None) -> NodeT:
    """Return ``exp(td)``, divided by its sum over the dim.

    Args:
        td: the tree.
        dim: the batch dim whose elements shall sum to 1; for a feature dim,
            ``td.apply(lambda x: x.softmax(-1))``.
        dtype: dtype to compute in, None for that of the leaf.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(4)}, 4).softmax(0)["x"].tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    return _along(td, dim, partial(torch.softmax, dtype=dtype))


def log_softmax(
    td: NodeT, dim: int | str, *, dtype: torch.dtype | None = None
) -> NodeT:
    """Return the logarithm of `softmax`, computed in one step.

    Args:
        td: the tree.
        dim: the batch dim whose elements shall sum to 1 under ``exp``.
        dtype: dtype to compute in, None for that of the leaf.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}, 2).log_softmax(0)["x"]
        tensor([-0.6931, -0.6931])
    """
    return _along(td, dim, partial(torch.log_softmax, dtype=dtype))


def sort(
    td: Node,
    dim: int | str = -1,
    descending: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    stable: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> ValuesIndices:
    """Return the elements sorted along a dim, each leaf and feature on its own.

    Args:
        td: the tree.
        dim: the batch dim to sort along.
        descending: the greatest first.
        stable: equal elements keep their order.

    Returns:
        The sorted tree, and the tree of the rows that its elements came from.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> found = TensorDict({"x": torch.tensor([2, 3, 1])}, 3).sort(0)
        >>> found.values["x"].tolist(), found.indices["x"].tolist()
        ([1, 2, 3], [2, 0, 1])
    """
    refuse_rows(td, "sort")
    return _pair(td, dim, partial(torch.sort, descending=descending, stable=stable))


def argsort(
    td: NodeT,
    dim: int | str = -1,
    descending: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    stable: bool = False,  # noqa: FBT001, FBT002 - torch's signature
) -> NodeT:
    """Return the rows that the elements of the sorted tree come from, as int64.

    Args:
        td: the tree.
        dim: the batch dim to sort along.
        descending: the greatest first.
        stable: equal elements keep their order.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([2, 3, 1])}, 3).argsort(0)["x"].tolist()
        [2, 0, 1]
    """
    refuse_rows(td, "argsort")
    fn = partial(torch.argsort, descending=descending, stable=stable)
    return _along(td, dim, fn)


def topk(
    td: Node,
    k: int,
    dim: int | str = -1,
    largest: bool = True,  # noqa: FBT001, FBT002 - torch's signature
    sorted: bool = True,  # noqa: FBT001, FBT002 - torch's signature
) -> ValuesIndices:
    """Return the `k` greatest elements along a dim, each leaf and feature on its own.

    Args:
        td: the tree.
        k: how many.
        dim: the batch dim to search; it has size `k` in the result.
        largest: the greatest; False for the least.
        sorted: in order, the first that was asked for in front.

    Returns:
        The tree of the elements, and that of the rows they came from.

    Raises:
        ShapeError: the dim has less than `k` rows.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> found = TensorDict({"x": torch.tensor([2, 3, 1])}, 3).topk(2, 0)
        >>> found.values["x"].tolist(), found.indices["x"].tolist()
        ([3, 2], [1, 0])
    """
    refuse_rows(td, "topk")
    at = as_dim(td, dim)
    size = td.batch_size
    if not 0 <= k <= size[at]:
        raise ShapeError(
            f"there are no {k} elements along dim {dim!r}",
            expected=f"0 to {size[at]} for batch_size={list(size)}",
            got=k,
            fix=f"td.topk(min(k, td.batch_size[{at}]), dim={dim!r})",
        )
    return _pair(td, at, partial(torch.topk, k=k, largest=largest, sorted=sorted), k)


def _along(td: NodeT, dim: int | str, fn: partial[torch.Tensor]) -> NodeT:
    """Return the tree of ``fn(leaf, dim=dim)``, which keeps shapes."""
    at = as_dim(td, dim)
    if td._schema.lazy:
        name = fn.func.__name__
        return along_lazy(td, name, lambda t, own: _along(t, own[0], fn), [at])
    return pointwise(td, partial(fn, dim=at), None)


def _pair(
    td: Node, dim: int | str, fn: partial[Any], rows: int | None = None
) -> ValuesIndices:
    """Return the two trees of a function that returns two tensors for a leaf.

    `rows` is the size of the dim in the result, None for that which it has.
    """
    at = as_dim(td, dim)
    if td._schema.lazy:
        name = fn.func.__name__
        return along_lazy(td, name, lambda t, own: _pair(t, own[0], fn, rows), [at])
    if td._schema.rows:
        found = _pair(without_rows(td), at, fn, rows)
        return ValuesIndices(*[put_rows(td, done) for done in found])
    size = td.batch_size
    schema = td._schema
    if rows is not None:
        size = torch.Size([*size[:at], rows, *size[at + 1 :]])
    pairs = map_leaves(schema, td._leaves, partial(fn, dim=at))
    values = tuple([pair[0] for pair in pairs])
    indices = tuple([pair[1] for pair in pairs])
    return ValuesIndices(
        make(schema, values, td._statics, size, td._names),
        make(schema, indices, td._statics, size, td._names),
    )
