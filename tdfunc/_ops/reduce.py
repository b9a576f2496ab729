"""Reductions: over whole leaves, over batch dims, or over feature dims.

- ``dim=None`` reduces every leaf to a scalar; the batch size becomes ``[]``;
- ``dim`` an int, a dim name or a sequence of them reduces batch dims;
- ``dim="feature"`` reduces the feature dims; the batch size stays;
- ``reduce=True`` folds all leaves into one tensor, of shape ``[]`` with ``dim=None``
  and of shape ``[*batch]`` with ``dim="feature"``.

Dims that are not reduced keep their names. Dtypes are those that torch gives; what
torch refuses (the `mean` of integers, the maximum of no element) raises torch's own
error, with a note that names the leaf. Indices of several dims, as `argmax` gives them,
count the elements of these dims in row-major order.

One value per row (text) has no sum: with ``dim="feature"`` it stays as it is, and
``reduce=True`` leaves it out.

Raises, for all of them:
    OperandError: `reduce` with batch dims, with `keepdim`, or for a tree without
        leaves; or an entry has one value per row, and batch dims are reduced.
    ShapeError: `dim` is no batch dim, or comes twice.
"""

from __future__ import annotations

import builtins
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from tdfunc._core._torch import foreach_norm, foreach_works
from tdfunc._core.batch import as_names
from tdfunc._core.node import Node, NodeT, make
from tdfunc._core.schema import Schema
from tdfunc._core.statics import NO_STATICS
from tdfunc._core.tree import (
    along_lazy,
    around_rows,
    map_leaves,
    put_rows,
    refuse_lazy,
    refuse_rows,
    without_rows,
    zip_leaves,
)
from tdfunc._ops.shape import as_dim
from tdfunc.errors import OperandError, OptionError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Dims: TypeAlias = int | str | Sequence[int | str] | None
    # Takes dims (None for all) and keepdim, returns what reduces one leaf.
    Reduction: TypeAlias = Callable[[list[int] | None, bool], Callable[..., Any]]

__all__ = [
    "MinMax",
    "ValuesIndices",
    "all",
    "amax",
    "amin",
    "aminmax",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "kthvalue",
    "logsumexp",
    "max",
    "mean",
    "median",
    "min",
    "mode",
    "nanmean",
    "nanmedian",
    "nanquantile",
    "nansum",
    "norm",
    "prod",
    "quantile",
    "std",
    "std_mean",
    "sum",
    "var",
    "var_mean",
]


class ValuesIndices(NamedTuple):
    """What `max`, `sort` and the like return: two trees of the same entries.

    Attributes:
        values: the elements that were found.
        indices: where they were, as int64.
    """

    values: Any
    indices: Any


class MinMax(NamedTuple):
    """What `aminmax` returns.

    Attributes:
        min: the least elements.
        max: the greatest elements.
    """

    min: Any
    max: Any


def sum(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    dtype: torch.dtype | None = None,
    reduce: bool = False,
) -> Any:
    """Return the sums of the elements of every leaf.

    Args:
        td: the tree.
        dim: what to sum over; see the module docstring.
        keepdim: keep the reduced dims with size 1.
        dtype: dtype to sum in, None for torch's choice.
        reduce: fold the results of all leaves into one tensor, of shape ``[*batch]``
            with ``dim="feature"`` and of shape ``[]`` with ``dim=None``.

    Returns:
        A tree, or one tensor with `reduce`.

    Raises:
        OperandError: `reduce` with batch dims, with `keepdim`, or for a tree without
            leaves.
        ShapeError: `dim` is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3), "y": torch.ones(2)}, 2)
        >>> td.sum()["x"], td.sum(0)["x"].shape, td.sum(reduce=True)
        (tensor(6.), torch.Size([3]), tensor(8.))
    """
    total = _over_dims(torch.sum, dtype=dtype)
    if reduce:
        return _stacked(td, "sum", total, dim, keepdim=keepdim).sum(0)
    return _reduced(td, "sum", total, dim, keepdim=keepdim)


def mean(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    dtype: torch.dtype | None = None,
    reduce: bool = False,
) -> Any:
    """Return the means of the elements of every leaf.

    Args:
        td: the tree.
        dim: what to average over; see the module docstring.
        keepdim: keep the reduced dims with size 1.
        dtype: dtype to average in, None for that of the leaf; integers need one.
        reduce: fold all leaves into one tensor: the mean over all their elements.

    Returns:
        A tree, or one tensor with `reduce`.

    Raises:
        OperandError: `reduce` with batch dims, with `keepdim`, for a tree without
            leaves, or for integers without `dtype`.
        ShapeError: `dim` is no batch dim.
        RuntimeError: a leaf is integer and there is no `dtype`; torch's error, with
            a note that names the leaf.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, 3.0])}, 2)
        >>> td.mean(0)["x"]
        tensor(2.)
    """
    if not reduce:
        return _reduced(
            td, "mean", _over_dims(torch.mean, dtype=dtype), dim, keepdim=keepdim
        )
    td = without_rows(_spread(td, dim))
    _check_floating(td, dtype)
    total = _over_dims(torch.sum, dtype=dtype)
    parts = _stacked(td, "mean", total, dim, keepdim=keepdim)
    count = builtins.sum([leaf.numel() for leaf in td._leaves])
    rows = builtins.max(td.numel(), 1) if dim == "feature" else 1
    return parts.sum(0) / (count // rows)


def _check_floating(td: Node, dtype: torch.dtype | None) -> None:
    for path, leaf in zip(td._schema.paths(), td._leaves, strict=True):
        if dtype is None and not (leaf.is_floating_point() or leaf.is_complex()):
            raise OperandError(
                "integers have no mean of their own dtype",
                path=path,
                got=leaf.dtype,
                fix="pass dtype=torch.float32",
            )


def all(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return whether all elements are true.

    Args:
        td: the tree.
        dim: None for all elements of all leaves; else what to reduce, see the module
            docstring.
        keepdim: keep the reduced dims with size 1.
        reduce: fold all leaves into one tensor, which is done without `dim` anyhow.

    Returns:
        One bool tensor of shape ``[]`` without `dim` (true for a tree without leaves),
        so that it can be traced; one of shape ``[*batch]`` with
        ``dim="feature"`` and `reduce`; else a tree of booleans (of uint8 for uint8,
        as torch has it).

    Raises:
        OperandError: `reduce` with batch dims or with `keepdim`.
        ShapeError: `dim` is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3)}, 2)
        >>> (td == td).all()
        tensor(True)
    """
    return _truth(td, "all", torch.all, dim, keepdim=keepdim, fold=reduce)


def any(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return whether any element is true.

    Args:
        td: the tree.
        dim: None for all elements of all leaves; else what to reduce, see the module
            docstring.
        keepdim: keep the reduced dims with size 1.
        reduce: fold all leaves into one tensor, which is done without `dim` anyhow.

    Returns:
        One bool tensor of shape ``[]`` without `dim` (false for a tree without
        leaves), so that it can be traced; one of shape ``[*batch]`` with
        ``dim="feature"`` and `reduce`; else a tree of booleans (of uint8 for uint8,
        as torch has it).

    Raises:
        OperandError: `reduce` with batch dims or with `keepdim`.
        ShapeError: `dim` is no batch dim.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> (TensorDict({"x": torch.arange(2)}, 2) > 0).any()
        tensor(True)
    """
    return _truth(td, "any", torch.any, dim, keepdim=keepdim, fold=reduce)


def _truth(
    td: Node,
    name: str,
    fn: Callable[..., torch.Tensor],
    dim: Any,
    *,
    keepdim: bool,
    fold: bool,
) -> Any:
    def as_bool(leaf: torch.Tensor, **dims: Any) -> torch.Tensor:
        # torch keeps uint8 here, for history's sake; leaves of several dtypes do not.
        return fn(leaf, **dims).to(torch.bool)

    if fold and (dim is not None or keepdim):
        return fn(_stacked(td, name, _over_dims(as_bool), dim, keepdim=keepdim), 0)
    if dim is not None or keepdim:
        return _reduced(td, name, _over_dims(fn), dim, keepdim=keepdim)
    td = without_rows(_spread(td, None))
    parts = map_leaves(td._schema, td._leaves, as_bool)
    if not parts:
        return fn(torch.empty(0, dtype=torch.bool))
    return fn(torch.stack(parts))


def prod(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    dtype: torch.dtype | None = None,
    reduce: bool = False,
) -> Any:
    """Return the products of the elements of every leaf.

    Args:
        td: the tree.
        dim: what to multiply over; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        dtype: dtype to multiply in, None for torch's choice.
        reduce: fold all leaves into one tensor.

    Returns:
        A tree, or one tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([2.0, 3.0]), "y": torch.ones(2)}, 2)
        >>> td.prod(0)["x"], td.prod(reduce=True)
        (tensor(6.), tensor(6.))
    """

    def over(dims: list[int] | None, keepdim: bool) -> Callable[..., torch.Tensor]:  # noqa: FBT001
        if dims is None:
            return partial(torch.prod, dtype=dtype)

        def one(leaf: torch.Tensor) -> torch.Tensor:
            # torch's takes one dim at a time; from the last, so that numbers stay.
            for at in reversed(dims):
                leaf = torch.prod(leaf, at, keepdim=keepdim, dtype=dtype)
            return leaf

        return one

    if reduce:
        return _stacked(td, "prod", over, dim, keepdim=keepdim).prod(0)
    return _reduced(td, "prod", over, dim, keepdim=keepdim)


def var(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as all reductions
    *,
    correction: float = 1,
    reduce: bool = False,
) -> Any:
    """Return the variances of the elements of every leaf.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        correction: what the number of elements is reduced by in the denominator.
        reduce: the variance of the elements of all leaves together, as one tensor.

    Returns:
        A tree, or one tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, 3.0])}, 2).var(0)["x"]
        tensor(2.)
    """
    if reduce:
        return torch.var(
            _row(td, "var", dim, keepdim=keepdim), -1, correction=correction
        )
    over = _over_dims(torch.var, correction=correction)
    return _reduced(td, "var", over, dim, keepdim=keepdim)


def std(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as all reductions
    *,
    correction: float = 1,
    reduce: bool = False,
) -> Any:
    """Return the standard deviations of the elements of every leaf.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        correction: what the number of elements is reduced by in the denominator.
        reduce: the deviation of the elements of all leaves together, as one tensor.

    Returns:
        A tree, or one tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, 3.0])}, 2).std(0, correction=0)["x"]
        tensor(1.)
    """
    if reduce:
        return torch.std(
            _row(td, "std", dim, keepdim=keepdim), -1, correction=correction
        )
    over = _over_dims(torch.std, correction=correction)
    return _reduced(td, "std", over, dim, keepdim=keepdim)


def amax(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return the greatest elements of every leaf; the gradient is shared among equals.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: fold all leaves into one tensor.

    Returns:
        A tree, or one tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[1, 5], [3, 2]])}, [2, 2])
        >>> td.amax(0)["x"].tolist(), td.amax((0, 1))["x"].item()
        ([3, 5], 5)
    """
    over = _over_dims(torch.amax)
    if reduce:
        return _stacked(td, "amax", over, dim, keepdim=keepdim).amax(0)
    return _reduced(td, "amax", over, dim, keepdim=keepdim)


def amin(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return the least elements of every leaf; the gradient is shared among equals.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: fold all leaves into one tensor.

    Returns:
        A tree, or one tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[1, 5], [3, 2]])}, [2, 2])
        >>> td.amin(0)["x"].tolist(), td.amin((0, 1))["x"].item()
        ([1, 2], 1)
    """
    over = _over_dims(torch.amin)
    if reduce:
        return _stacked(td, "amin", over, dim, keepdim=keepdim).amin(0)
    return _reduced(td, "amin", over, dim, keepdim=keepdim)


def max(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return the greatest elements of every leaf, with `dim` also where they are.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: fold all leaves into one tensor.

    Returns:
        `ValuesIndices` of two trees with `dim`; a tree of maxima without; one tensor
        with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[1, 5], [3, 2]])}, [2, 2])
        >>> found = td.max(0)
        >>> found.values["x"].tolist(), found.indices["x"].tolist()
        ([3, 5], [1, 0])
    """
    if dim is None or reduce:
        return amax(td, dim, keepdim, reduce=reduce)
    return _pair(td, "max", _along(torch.max), dim, keepdim=keepdim)


def min(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return the least elements of every leaf, with `dim` also where they are.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: fold all leaves into one tensor.

    Returns:
        `ValuesIndices` of two trees with `dim`; a tree of minima without; one tensor
        with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[1, 5], [3, 2]])}, [2, 2])
        >>> found = td.min(0)
        >>> found.values["x"].tolist(), found.indices["x"].tolist()
        ([1, 2], [0, 1])
    """
    if dim is None or reduce:
        return amin(td, dim, keepdim, reduce=reduce)
    return _pair(td, "min", _along(torch.min), dim, keepdim=keepdim)


def median(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return the medians (the lower of two) of every leaf, with `dim` also where.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: the median of the elements of all leaves together, as one tensor.

    Returns:
        `ValuesIndices` of two trees with `dim`; a tree of medians without; one
        tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([3, 1, 2])}, 3)
        >>> td.median()["x"], td.median(0).indices["x"]
        (tensor(2), tensor(2))
    """
    if reduce:
        row = _row(td, "median", dim, keepdim=keepdim)
        return torch.median(row, -1).values
    found = _pair(td, "median", _along(torch.median), dim, keepdim=keepdim)
    return found.values if dim is None else found


def nanmedian(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return the medians of the elements that are not NaN, with `dim` also where.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: the median of the elements of all leaves together, as one tensor.

    Returns:
        `ValuesIndices` of two trees with `dim`; a tree of medians without; one
        tensor with `reduce`. The median
        of nothing but NaN is NaN.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([3.0, float("nan"), 1.0, 2.0])}, 4)
        >>> td.nanmedian()["x"], td.nanmedian(0).indices["x"]
        (tensor(2.), tensor(3))
    """
    if reduce:
        row = _row(td, "nanmedian", dim, keepdim=keepdim)
        return torch.nanmedian(row, -1).values
    found = _pair(td, "nanmedian", _along(torch.nanmedian), dim, keepdim=keepdim)
    return found.values if dim is None else found


def argmax(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return where the greatest elements of every leaf are, as int64.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: refused: a position in several leaves is no number.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[1, 5], [3, 2]])}, [2, 2])
        >>> td.argmax(0)["x"].tolist(), td.argmax()["x"].item()
        ([1, 0], 1)
    """
    if reduce:
        _refuse_position("argmax", dim)
    return _reduced(td, "argmax", _along(torch.argmax), dim, keepdim=keepdim)


def argmin(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return where the least elements of every leaf are, as int64.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: refused: a position in several leaves is no number.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[1, 5], [3, 2]])}, [2, 2])
        >>> td.argmin(0)["x"].tolist(), td.argmin()["x"].item()
        ([0, 1], 0)
    """
    if reduce:
        _refuse_position("argmin", dim)
    return _reduced(td, "argmin", _along(torch.argmin), dim, keepdim=keepdim)


def _refuse_position(name: str, dim: Any) -> None:
    """Raise: elements of several leaves have no common numbers.

    Raises:
        OperandError: always.
    """
    whole = "td.pack()[0]" if dim == "feature" else "tdfunc.ravel(td)[0]"
    extreme = "amax" if name == "argmax" else "amin"
    first = "" if dim is None else f"{dim!r}, "
    raise OperandError(
        f"{name} of all leaves together would not say which leaf",
        got="reduce=True",
        fix=f"{whole}.{name}(-1) counts the elements of all leaves behind each other; "
        f"td.{extreme}({first}reduce=True) is the element",
    )


def norm(
    td: Node,
    p: float = 2,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    dtype: torch.dtype | None = None,
    reduce: bool = False,
) -> Any:
    """Return the vector norms of every leaf: ``sum(|x| ** p) ** (1 / p)``.

    Args:
        td: the tree.
        p: the order; infinities give the greatest and least ``|x|``, 0 counts.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        dtype: dtype to compute in, None for that of the leaf.
        reduce: the norm of all elements of all leaves, as one tensor: the global norm.

    Returns:
        A tree, or one tensor with `reduce`.

    Raises:
        OptionError: `p` is no number.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([3.0, 4.0]), "y": torch.tensor(12.0)})
        >>> td.norm()["x"], td.norm(reduce=True)
        (tensor(5.), tensor(13.))
    """
    if not isinstance(p, (float, int)):
        raise OptionError(
            "the order of a norm is a number",
            expected="p before dim",
            got=repr(p),
            fix=f"td.norm(dim={p!r})",
        )
    over = _over_dims(partial(torch.linalg.vector_norm, ord=p), dtype=dtype)
    if not reduce:
        return _reduced(td, "norm", over, dim, keepdim=keepdim)
    each = partial(foreach_norm, ord=p, dtype=dtype) if foreach_norm else None
    parts = _stacked(td, "norm", over, dim, keepdim=keepdim, each=each)
    if p == 0:
        return parts.sum(0)
    return torch.linalg.vector_norm(parts, p, 0)


def logsumexp(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return the logarithm of the sum of ``exp`` of the elements of every leaf.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: fold all leaves into one tensor.

    Returns:
        A tree, or one tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(4)}, 4).logsumexp(0)["x"]
        tensor(1.3863)
    """

    def over(dims: list[int] | None, keepdim: bool) -> Callable[..., torch.Tensor]:  # noqa: FBT001
        if dims is None:
            return lambda leaf: torch.logsumexp(leaf.reshape(-1), 0)
        return partial(torch.logsumexp, dim=dims, keepdim=keepdim)

    if reduce:
        return _stacked(td, "logsumexp", over, dim, keepdim=keepdim).logsumexp(0)
    return _reduced(td, "logsumexp", over, dim, keepdim=keepdim)


def count_nonzero(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as all reductions
    *,
    reduce: bool = False,
) -> Any:
    """Return how many elements of every leaf are not zero, as int64; NaN is not zero.

    Args:
        td: the tree.
        dim: what to count over; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: fold the counts of all leaves into one tensor.

    Returns:
        A tree, or one tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([[1, 0], [3, 2]])}, [2, 2])
        >>> td.count_nonzero(0)["x"].tolist(), td.count_nonzero(reduce=True).item()
        ([2, 1], 3)
    """
    over = _over_dims(_nonzeros)
    if reduce:
        return _stacked(td, "count_nonzero", over, dim, keepdim=keepdim).sum(0)
    return _reduced(td, "count_nonzero", over, dim, keepdim=keepdim)


def _nonzeros(leaf: torch.Tensor, **dims: Any) -> torch.Tensor:
    return torch.sum(leaf != 0, **dims)


def nansum(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    dtype: torch.dtype | None = None,
    reduce: bool = False,
) -> Any:
    """Return the sums of the elements of every leaf, NaN counted as 0.

    Args:
        td: the tree.
        dim: what to sum over; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        dtype: dtype to sum in, None for torch's choice.
        reduce: fold all leaves into one tensor.

    Returns:
        A tree, or one tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, float("nan")])}, 2).nansum(0)["x"]
        tensor(1.)
    """
    over = _over_dims(torch.nansum, dtype=dtype)
    if reduce:
        return _stacked(td, "nansum", over, dim, keepdim=keepdim).sum(0)
    return _reduced(td, "nansum", over, dim, keepdim=keepdim)


def nanmean(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    dtype: torch.dtype | None = None,
    reduce: bool = False,
) -> Any:
    """Return the means of the elements of every leaf that are not NaN.

    Args:
        td: the tree.
        dim: what to average over; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        dtype: dtype to average in, None for that of the leaf; integers have none.
        reduce: the mean over the elements of all leaves together, as one tensor.

    Returns:
        A tree, or one tensor with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.0, float("nan")])}, 2).nanmean(0)["x"]
        tensor(1.)
    """
    if not reduce:
        over = _over_dims(torch.nanmean, dtype=dtype)
        return _reduced(td, "nanmean", over, dim, keepdim=keepdim)
    td = without_rows(_spread(td, dim))
    _check_floating(td, dtype)
    total = _over_dims(torch.nansum, dtype=dtype)
    sums = _stacked(td, "nanmean", total, dim, keepdim=keepdim).sum(0)
    count = _stacked(td, "nanmean", _over_dims(_seen), dim, keepdim=keepdim).sum(0)
    return sums / count


def _seen(leaf: torch.Tensor, **dims: Any) -> torch.Tensor:
    return torch.sum(~leaf.isnan(), **dims)


def quantile(
    td: Node,
    q: float | Sequence[float] | torch.Tensor,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    interpolation: str = "linear",
    reduce: bool = False,
) -> Any:
    """Return the quantiles of every leaf.

    Args:
        td: the tree.
        q: one number from 0 to 1, or several, which make a new first batch dim.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        interpolation: what lies between two elements, by torch's words: "linear",
            "lower", "higher", "midpoint" or "nearest".
        reduce: the quantiles of the elements of all leaves together, as one tensor.

    Returns:
        A tree of batch size ``[*reduced]``, or ``[len(q), *reduced]``; one tensor of
        such a shape with `reduce`.

    Raises:
        OptionError: `q` has more than one dim, or is a number outside of 0 to 1.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.arange(5.0)}, 5)
        >>> td.quantile(0.5, 0)["x"], td.quantile([0.25, 0.75], 0)["x"]
        (tensor(2.), tensor([1., 3.]))
    """
    options: Any = {"interpolation": interpolation, "fold": reduce}
    return _quantile(td, "quantile", q, dim, keepdim=keepdim, **options)


def nanquantile(
    td: Node,
    q: float | Sequence[float] | torch.Tensor,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    interpolation: str = "linear",
    reduce: bool = False,
) -> Any:
    """Return the quantiles of the elements that are not NaN, of every leaf.

    Args:
        td: the tree.
        q: one number from 0 to 1, or several, which make a new first batch dim.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        interpolation: what lies between two elements, by torch's words: "linear",
            "lower", "higher", "midpoint" or "nearest".
        reduce: the quantiles of the elements of all leaves together, as one tensor.

    Returns:
        A tree of batch size ``[*reduced]``, or ``[len(q), *reduced]``; one tensor of
        such a shape with `reduce`.

    Raises:
        OptionError: `q` has more than one dim, or is a number outside of 0 to 1.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, float("nan"), 3.0])}, 3)
        >>> td.nanquantile(0.5, 0)["x"], td.quantile(0.5, 0)["x"]
        (tensor(2.), tensor(nan))
    """
    options: Any = {"interpolation": interpolation, "fold": reduce}
    return _quantile(td, "nanquantile", q, dim, keepdim=keepdim, **options)


def _quantile(
    td: Node,
    name: str,
    q: Any,
    dim: Any,
    *,
    keepdim: bool,
    interpolation: str,
    fold: bool,
) -> Any:
    fn: Any = getattr(torch, name)
    options: Any = {"interpolation": interpolation, "fold": fold}
    levels = q if isinstance(q, (int, float, torch.Tensor)) else torch.tensor(q)
    rank = levels.dim() if isinstance(levels, torch.Tensor) else 0
    if rank > 1:
        raise OptionError(
            "q is a number or a row of numbers", expected="at most 1 dim", got=rank
        )

    # Of tensors torch says so, since their values may not be known while it traces.
    known: Any = () if isinstance(q, torch.Tensor) else q
    known = (known,) if isinstance(known, (int, float)) else known
    numbers = [level for level in known if isinstance(level, (int, float))]
    if not builtins.all([0 <= level <= 1 for level in numbers]):
        raise OptionError(
            "a quantile is a part of the elements",
            expected="q from 0 to 1",
            got=q,
            fix=f"td.{name}(0.95) for 95 percent",
        )

    def one(leaf: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:  # noqa: FBT001
        own = levels
        if isinstance(own, torch.Tensor):
            own = own.to(dtype=leaf.dtype, device=leaf.device)
        return fn(leaf, own, dim, keepdim, interpolation=interpolation)

    if fold:
        row = _row(td, name, dim, keepdim=keepdim)
        return one(row, -1, False)  # noqa: FBT003
    if td._schema.lazy:
        if rank:
            refuse_lazy(td, f"{name} with several levels")
        return _reduced(td, name, _along(one), dim, keepdim=keepdim)
    if _passes_rows(td, name, dim):
        return around_rows(
            td, lambda t: _quantile(t, name, q, dim, keepdim=keepdim, **options)
        )
    schema, leaves, size, names = _laid(td, _along(one, rank), dim, keepdim=keepdim)
    if isinstance(levels, torch.Tensor) and rank:
        size = torch.Size([levels.shape[0], *size])
        names = None if names is None else (None, *names)
    return make(schema, leaves, td._statics, size, names)


def mode(
    td: Node,
    dim: int | str | Sequence[int | str] | None = -1,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return the most frequent elements of every leaf, the least of several, and where.

    Args:
        td: the tree.
        dim: what to reduce, the last batch dim if left out, as in torch; see the module
            docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: the most frequent of the elements of all leaves together, as one tensor;
            `dim` is None or "feature".

    Returns:
        `ValuesIndices` of two trees; a tree of values with ``dim=None``; one tensor
        with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([3, 1, 3])}, 3)
        >>> td.mode().values["x"], td.mode(None, reduce=True)
        (tensor(3), tensor(3))
    """
    if reduce:
        return torch.mode(_row(td, "mode", dim, keepdim=keepdim), -1).values
    found = _pair(td, "mode", _along(torch.mode), dim, keepdim=keepdim)
    return found.values if dim is None else found


def kthvalue(
    td: Node,
    k: int,
    dim: int | str | Sequence[int | str] | None = -1,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    reduce: bool = False,
) -> Any:
    """Return the `k`-th least elements of every leaf, and where they are.

    Args:
        td: the tree.
        k: which one, from 1.
        dim: what to reduce, the last batch dim if left out, as in torch; see the module
            docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: the `k`-th of the elements of all leaves together, as one tensor; `dim`
            is None or "feature".

    Returns:
        `ValuesIndices` of two trees; a tree of values with ``dim=None``; one tensor
        with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([3, 1, 2])}, 3)
        >>> td.kthvalue(2).values["x"], td.kthvalue(2).indices["x"]
        (tensor(2), tensor(2))
    """

    def one(leaf: torch.Tensor, dim: int, keepdim: bool) -> Any:  # noqa: FBT001
        return torch.kthvalue(leaf, k, dim, keepdim)

    if reduce:
        row = _row(td, "kthvalue", dim, keepdim=keepdim)
        return torch.kthvalue(row, k, -1).values
    found = _pair(td, "kthvalue", _along(one), dim, keepdim=keepdim)
    return found.values if dim is None else found


def aminmax(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as all reductions
    *,
    reduce: bool = False,
) -> MinMax:
    """Return the least and the greatest elements: ``(td.amin(...), td.amax(...))``.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        reduce: fold all leaves into one tensor.

    Returns:
        Two trees, or two tensors with `reduce`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([3, 1, 2])}, 3).aminmax(reduce=True)
        MinMax(min=tensor(1), max=tensor(3))
    """
    least = amin(td, dim, keepdim, reduce=reduce)
    return MinMax(least, amax(td, dim, keepdim, reduce=reduce))


def var_mean(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as all reductions
    *,
    correction: float = 1,
    reduce: bool = False,
) -> tuple[Any, Any]:
    """Return variances and means: ``(td.var(...), td.mean(...))``.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        correction: what the number of elements is reduced by in the denominator.
        reduce: those of the elements of all leaves together, as two tensors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, 3.0])}, 2)
        >>> td.var_mean(reduce=True)
        (tensor(2.), tensor(2.))
    """
    spread = var(td, dim, keepdim, correction=correction, reduce=reduce)
    return spread, mean(td, dim, keepdim, reduce=reduce)


def std_mean(
    td: Node,
    dim: int | str | Sequence[int | str] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as all reductions
    *,
    correction: float = 1,
    reduce: bool = False,
) -> tuple[Any, Any]:
    """Return standard deviations and means: ``(td.std(...), td.mean(...))``.

    Args:
        td: the tree.
        dim: what to reduce; see the module docstring, as for the errors.
        keepdim: keep the reduced dims with size 1.
        correction: what the number of elements is reduced by in the denominator.
        reduce: those of the elements of all leaves together, as two tensors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.tensor([1.0, 3.0])}, 2)
        >>> td.std_mean(correction=0, reduce=True)
        (tensor(1.), tensor(2.))
    """
    spread = std(td, dim, keepdim, correction=correction, reduce=reduce)
    return spread, mean(td, dim, keepdim, reduce=reduce)


# What a reduction of one leaf is


def _over_dims(fn: Callable[..., Any], **options: Any) -> Reduction:
    """Return the reduction of a function that takes a list of dims, as most do."""

    def over(dims: list[int] | None, keepdim: bool) -> Callable[..., Any]:  # noqa: FBT001
        if dims is None:
            return partial(fn, **options) if options else fn
        return partial(fn, dim=dims, keepdim=keepdim, **options)

    return over


def _along(fn: Callable[..., Any], lead: int = 0) -> Reduction:
    """Return the reduction of a function that takes one dim only.

    Args:
        fn: called with a leaf, a dim and keepdim; may return a pair.
        lead: how many dims it puts in front of the result.
    """

    def over(dims: list[int] | None, keepdim: bool) -> Callable[..., Any]:  # noqa: FBT001
        if dims is None:
            return lambda leaf: fn(leaf.reshape(-1), 0, False)  # noqa: FBT003
        if len(dims) == 1:
            return lambda leaf: fn(leaf, dims[0], keepdim)
        count = len(dims)
        shifted = [dim + lead for dim in dims] if keepdim else []

        def flat(leaf: torch.Tensor) -> Any:
            last = leaf.movedim(dims, list(range(-count, 0))).flatten(-count)
            out = fn(last, -1, False)  # noqa: FBT003
            if isinstance(out, torch.Tensor):
                return _unsqueezed(out, shifted)
            return tuple([_unsqueezed(part, shifted) for part in out])

        return flat

    return over


def _unsqueezed(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    for dim in dims:
        x = x.unsqueeze(dim)
    return x


# What a reduction of a tree is


def _as_dims(dim: Any) -> list[int | str]:
    """Return the dims that a call names.

    Raises:
        ShapeError: it names none.
    """
    if isinstance(dim, (int, str)):
        return [dim]
    try:
        return list(dim)
    except TypeError:
        raise ShapeError(
            "this is no dim",
            expected="a batch dim, a dim name, several of them, 'feature' or None",
            got=f"{dim!r} of type {type(dim).__name__}",
        ) from None


def _passes_rows(td: Node, name: str, dim: Any) -> bool:
    """Return whether there are rows of values, which reducing features leaves alone.

    Raises:
        OperandError: there are, and batch dims are to be reduced.
    """
    if not td._schema.rows:
        return False
    if dim != "feature" and (dim is None or _as_dims(dim)):
        refuse_rows(td, name)
    return True


def _reduced(
    td: NodeT, name: str, over: Reduction, dim: Any, *, keepdim: bool
) -> NodeT:
    if td._schema.lazy:
        fn = partial(_reduced, name=name, over=over, keepdim=keepdim)
        return _apart(td, lambda t, d: fn(t, dim=d), dim, keepdim=keepdim)
    if _passes_rows(td, name, dim):
        return around_rows(td, lambda t: _reduced(t, name, over, dim, keepdim=keepdim))
    schema, leaves, size, names = _laid(td, over, dim, keepdim=keepdim)
    return make(schema, leaves, td._statics, size, names)


def _apart(td: Any, fn: Callable[..., Any], dim: Any, *, keepdim: bool) -> Any:
    """Return the reduction ``fn(td, dim)`` of a tree with lazy stacks.

    Raises:
        OperandError: it is over a stack dim.
    """
    if dim is None:
        refuse_lazy(td, "a reduction over all dims")
        return td
    if dim == "feature":
        return along_lazy(td, "a reduction", lambda t, _: fn(t, "feature"), [])
    given = _as_dims(dim)
    dims = [as_dim(td, d) for d in given]
    return along_lazy(td, "a reduction", fn, dims, gone=not keepdim)


def _spread(td: Any, dim: Any) -> Any:
    """Return a tree whose leaves are all those of the members of lazy stacks too.

    Folding all leaves completely makes no difference between them. Rows of text are
    left out.
    """
    if not td._schema.lazy:
        return td
    if dim is not None:
        refuse_lazy(td, "folding leaves into one tensor")
    leaves: dict[str, torch.Tensor] = {}
    pending: list[tuple[str, Any]] = [("", without_rows(td))]
    while pending:
        prefix, tree = pending.pop()
        for name, leaf in zip(tree._schema.dotted(), tree._leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                leaves[prefix + name] = leaf
            else:
                members = enumerate(map(without_rows, leaf.trees))
                pending += [(f"{prefix}{name}.{i}.", member) for i, member in members]
    keys = tuple(sorted(leaves))
    ranks = tuple([leaves[key].dim() for key in keys])
    flat = tuple([leaves[key] for key in keys])
    return make(Schema(Node._plain, keys, ranks), flat, NO_STATICS, torch.Size(), None)


def _pair(
    td: Node, name: str, over: Reduction, dim: Any, *, keepdim: bool
) -> ValuesIndices:
    if td._schema.lazy:
        fn = partial(_pair, name=name, over=over, keepdim=keepdim)
        return _apart(td, lambda t, d: fn(t, dim=d), dim, keepdim=keepdim)
    if _passes_rows(td, name, dim):
        found = _pair(without_rows(td), name, over, dim, keepdim=keepdim)
        return ValuesIndices(*[put_rows(td, done) for done in found])
    schema, pairs, size, names = _laid(td, over, dim, keepdim=keepdim)
    values = tuple([pair[0] for pair in pairs])
    indices = tuple([pair[1] for pair in pairs])
    return ValuesIndices(
        make(schema, values, td._statics, size, names),
        make(schema, indices, td._statics, size, names),
    )


def _laid(
    td: Node, over: Reduction, dim: Any, *, keepdim: bool
) -> tuple[Schema, tuple[Any, ...], torch.Size, tuple[str | None, ...] | None]:
    """Return schema, leaves, batch size and names of the reduced tree."""
    size = td.batch_size
    schema = td._schema
    if dim is None:
        if keepdim:
            every = [range(leaf.dim()) for leaf in td._leaves]
            ones = torch.Size([1] * len(size))
            return schema, _each_over(td, over, every, keepdim=True), ones, td._names
        leaves = map_leaves(schema, td._leaves, over(None, False))  # noqa: FBT003
        return schema.flattened(), leaves, torch.Size(), None
    if dim == "feature":
        kept = schema.leaf_kids()
        rows = zip(td._leaves, kept, strict=True)
        dims = [range(leaf.dim() - rank, leaf.dim()) for leaf, rank in rows]
        leaves = _each_over(td, over, dims, keepdim=keepdim)
        kids = kept if keepdim else (0,) * len(kept)
        return schema.with_ranks(kids), leaves, size, td._names
    given = _as_dims(dim)
    gone = sorted({as_dim(td, d) for d in given})
    if len(gone) != len(given):
        raise ShapeError("a dim comes twice", got=given)
    if not gone:
        # To torch, no dims are all dims.
        none = [range(0)] * len(td._leaves)
        return schema, _each_over(td, over, none, keepdim=False), size, td._names
    leaves = map_leaves(schema, td._leaves, over(gone, keepdim))
    names = td.names
    if keepdim:
        new = torch.Size([1 if i in gone else n for i, n in enumerate(size)])
    else:
        kept_dims = [i for i in range(len(size)) if i not in gone]
        new = torch.Size([size[i] for i in kept_dims])
        if names is not None:
            names = as_names([names[i] for i in kept_dims], len(kept_dims))
    return schema, leaves, new, names


def _each_over(
    td: Node, over: Reduction, dims: list[range], *, keepdim: bool
) -> tuple[Any, ...]:
    """Return each leaf reduced over its own dims."""
    reducers = {own: over(list(own), keepdim) for own in dict.fromkeys(dims) if own}

    def one(leaf: torch.Tensor, own: range) -> Any:
        if own:
            return reducers[own](leaf)
        # torch reads an empty list of dims as "all"; a dim of size 1 reduces nothing.
        return over([-1], False)(leaf.unsqueeze(-1))  # noqa: FBT003

    return zip_leaves(td._schema, (td._leaves, dims), one)


def _stacked(
    td: Node,
    name: str,
    over: Reduction,
    dim: Any,
    *,
    keepdim: bool,
    each: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Return the reductions of all leaves as one tensor, ``[leaves]`` in front.

    Args:
        td: the tree.
        name: the operation, for the error.
        over: the reduction of one leaf.
        dim: None or "feature".
        keepdim: refused.
        each: the ``torch._foreach_*`` form of the reduction over all dims.
    """
    td = without_rows(td)
    _check_foldable(td, name, dim, keepdim=keepdim)
    td = _spread(td, dim)
    if dim is None:
        if each is not None and foreach_works(td._leaves):
            try:
                return torch.stack(each(td._leaves))
            except (RuntimeError, TypeError):
                pass  # the loop says which leaf is wrong
        reduce = over(None, False)  # noqa: FBT003
        return torch.stack(map_leaves(td._schema, td._leaves, reduce))
    return torch.stack(_each_over(td, over, _behind(td), keepdim=False))


def _row(td: Node, name: str, dim: Any, *, keepdim: bool) -> torch.Tensor:
    """Return the elements of all leaves behind each other, ``[*batch]`` in front."""
    td = without_rows(td)
    _check_foldable(td, name, dim, keepdim=keepdim)
    td = _spread(td, dim)
    size = td.batch_size if dim == "feature" else ()
    dims = len(size)
    rows = [
        leaf.unsqueeze(-1) if leaf.dim() == dims else leaf.flatten(dims)
        for leaf in td._leaves
    ]
    return torch.cat(rows, -1)


def _behind(td: Node) -> list[range]:
    """Return all dims behind the batch of the root: surplus of nested nodes too."""
    dims = len(td.batch_size)
    return [range(dims, leaf.dim()) for leaf in td._leaves]


# The variance of variances is none, nor the median of medians.
_NOT_IN_STEPS = frozenset(
    {
        *("kthvalue", "median", "mode", "nanmean", "nanmedian", "nanquantile"),
        *("quantile", "std", "var"),
    }
)


def _check_foldable(td: Node, name: str, dim: Any, *, keepdim: bool) -> None:
    if keepdim or dim not in (None, "feature"):
        if dim in (None, "feature"):
            fix = "leave keepdim out"
        elif name in _NOT_IN_STEPS:
            fix = f"td.{name}(dim={dim!r}) returns a tree"
        else:
            fix = f'td.{name}(dim="feature", reduce=True).{name}(dim={dim!r})'
        raise OperandError(
            "single batch dims of all leaves can not be folded into one tensor",
            expected='dim=None or dim="feature" with reduce=True, without keepdim',
            got=f"dim={dim!r}, keepdim={keepdim}",
            fix=fix,
        )
    if not td._leaves:
        raise OperandError("there is no leaf to reduce", expected="at least one leaf")
