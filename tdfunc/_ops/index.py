"""Indexing of batch dims, with everything that torch takes.

The batch size of the result is what torch gives for a tensor of the batch shape:
leaves are indexed with an index that can not reach their feature dims, and the
batch size is read off the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdfunc._core._torch import inside_transform
from tdfunc._core.batch import as_names
from tdfunc._core.node import Node, NodeT, make
from tdfunc._ops.members import renested
from tdfunc.errors import TreeIndexError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc.typing import Index

__all__ = ["at_index", "getitems"]

_BASIC = (int, slice, type(None), torch.SymInt)


def at_index(td: NodeT, index: Index) -> NodeT:
    """Return the tree at an index of its batch dims; ``td[index]``.

    Takes ints, slices, None, Ellipsis (the remaining *batch* dims), lists, ranges,
    arrays, tensors, masks, and tuples of them. A list is an index of rows, a tuple
    one index for each dim, as in torch. Ints, slices and None give views of the
    leaves, anything else copies.

    Raises:
        TreeIndexError: the index has more dims than the batch, is out of range, or a
            mask does not have the shape of the dims that it indexes.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.arange(12).view(3, 4)}, batch_size=[3, 4])
        >>> td[1, ..., None].batch_size, td[[0, 2]].batch_size
        (torch.Size([4, 1]), torch.Size([2, 4]))
    """
    size = td.batch_size
    schema = td._schema
    # Where the members of a lazy stack differ (-1) each of them is asked.
    known = size and (not schema.lazy or size[0] >= 0)
    if isinstance(index, int) and not isinstance(index, bool) and known:
        # The hot path: one row.
        if not -size[0] <= index < size[0]:
            raise _out_of_range(td, index, 0)
        leaves = tuple([leaf[index] for leaf in td._leaves])
        names = td.names
        if names is not None:
            names = as_names(names[1:], len(size) - 1)
        out = make(schema, leaves, td._statics, size[1:], names)
        return renested(out) if schema.lazy else out
    if isinstance(index, slice) and size:
        plan: Any = (index,)
    else:
        plan = as_plan(td, index)
    if schema.n:
        single = plan[0] if len(plan) == 1 else plan
        try:
            if td._leaves[0].numel() == 0:
                # torch does not look at what indexes an empty tensor.
                size_at_plan(size, plan)
            leaves = tuple([leaf[single] for leaf in td._leaves])
        except IndexError as error:
            raise bad_index(td, index, error) from error
        new = leaves[0].shape[: len(leaves[0].shape) - schema.ranks()[0]]
    else:
        leaves = ()
        try:
            new = size_at_plan(size, plan)
        except IndexError as error:
            raise bad_index(td, index, error) from error
    names = names_at_plan(td, plan, len(new)) if td._names is not None else None
    out = make(schema, leaves, td._statics, new, names)
    return renested(out) if schema.lazy else out


def getitems(td: NodeT, indices: Sequence[int]) -> NodeT:
    """Return the rows at several ints; ``td[list(indices)]``, in one step.

    A `torch.utils.data.DataLoader` looks for this under the name ``__getitems__``, and
    then hands its ``collate_fn`` a batch in place of a list of rows.

    Raises:
        TreeIndexError: an int is out of range, or there are no batch dims.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.arange(5)}, 5)
        >>> loader = torch.utils.data.DataLoader(td, 2, collate_fn=lambda batch: batch)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1], [2, 3], [4]]
    """
    return at_index(td, list(indices))


def size_at_plan(size: torch.Size, plan: tuple[Any, ...]) -> torch.Size:
    """Return the batch size after indexing, as torch finds it.

    Raises:
        IndexError: torch refuses the index.
    """
    device = next((i.device for i in plan if isinstance(i, torch.Tensor)), None)
    return torch.empty((), device=device).expand(size)[plan].shape


def as_plan(td: Node, index: Any, *, in_range: bool = True) -> tuple[Any, ...]:
    """Return `index` as a tuple without Ellipsis that reaches batch dims only.

    Sequences and masks become index tensors once, not once for every leaf.

    Args:
        td: the tree.
        index: what a user wrote.
        in_range: raise for ints that are out of range.

    Raises:
        TreeIndexError: the index does not fit the batch size.
    """
    size = td.batch_size
    items: list[Any] = list(index) if isinstance(index, tuple) else [index]
    used = 0
    ellipsis = -1
    converted: list[Any] = []
    for item in items:
        if item is Ellipsis:
            if ellipsis >= 0:
                raise TreeIndexError(
                    "an index can have one Ellipsis only", got=_show(index)
                )
            ellipsis = len(converted)
            converted.append(item)
            continue
        item = item if isinstance(item, (bool, *_BASIC)) else _tensor(item, index)  # noqa: PLW2901
        converted.append(item)
        used += _dims_of(item)
    dims = len(size)
    if used > dims:
        raise TreeIndexError(
            "the index has more dims than the batch",
            expected=f"at most {dims} for batch_size={list(size)}",
            got=f"{used} in {_show(index)}",
            fix="td[key][index] reaches the feature dims of one entry"
            if dims
            else "td.with_batch_size([...]) declares batch dims",
        )
    if ellipsis >= 0:
        converted[ellipsis : ellipsis + 1] = [slice(None)] * (dims - used)
    return _without_masks(td, converted, index, in_range=in_range)


def _without_masks(
    td: Node, items: list[Any], index: Any, *, in_range: bool
) -> tuple[Any, ...]:
    size = td.batch_size
    out: list[Any] = []
    at = 0
    for item in items:
        if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
            dims = item.dim()
            if dims and item.shape != size[at : at + dims]:
                raise TreeIndexError(
                    "the mask does not have the shape of the dims that it indexes",
                    expected=f"{list(size[at : at + dims])}, dims {at} to "
                    f"{at + dims - 1} of batch_size={list(size)}",
                    got=f"{list(item.shape)} in {_show(index)}",
                )
            at += dims
            mask = item.to(torch.bool)
            if dims and len(td._leaves) > 1 and not inside_transform():
                # One search for the whole tree instead of one for every leaf; vmap has
                # no rule for it, and says more about a mask than about the search.
                out.extend(mask.nonzero(as_tuple=True))
            else:
                out.append(mask)
            continue
        is_row = in_range and isinstance(item, int) and not isinstance(item, bool)
        if is_row and size[at] >= 0 and not -size[at] <= item < size[at]:
            raise _out_of_range(td, item, at)
        at += _dims_of(item)
        out.append(item)
    return tuple(out)


def _tensor(item: Any, index: Any) -> torch.Tensor:
    """Return a list, range, tuple or array in an index as an index tensor."""
    if isinstance(item, torch.Tensor):
        kind = item.dtype
        if kind.is_floating_point or kind.is_complex:
            raise _bad_item(item, index)
        return item
    if isinstance(item, (np.ndarray, np.generic)):
        if item.dtype.kind not in "biu":
            raise _bad_item(item, index)
        return torch.from_numpy(np.ascontiguousarray(item)).reshape(item.shape)
    if isinstance(item, (list, tuple, range)):
        rows: Any = list(item)
        try:
            found = torch.as_tensor(rows)
        except (ValueError, TypeError, RuntimeError) as error:
            raise _bad_item(item, index) from error
        if not rows:
            found = found.to(torch.long)
        if found.dtype.is_floating_point or found.dtype.is_complex:
            raise _bad_item(item, index)
        return found
    if hasattr(item, "__index__"):
        return torch.tensor(item.__index__())
    raise _bad_item(item, index)


def _dims_of(item: Any) -> int:
    """Return how many dims of the batch an item of an index uses up."""
    if item is None or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return item.dim()
    return 1


def names_at_plan(td: Node, plan: tuple[Any, ...], dims: int) -> Any:
    """Return the dim names after indexing with `dims` dims left.

    Ints (and index tensors without dims) take their dim away first. A slice keeps the
    name of its dim, None makes an unnamed one. What the remaining index tensors make
    stands where they stood, or in front if they did not stand together; it keeps the
    name only if it is one dim from one tensor of one dim.
    """
    names = td.names
    if names is None:
        return None
    kept: list[list[str | None]] = []  # for every item that is no int
    arrays: list[int] = []
    at = 0
    for item in plan:
        used = names[at : at + _dims_of(item)]
        at += _dims_of(item)
        if item is None:
            kept.append([None])
        elif isinstance(item, slice):
            kept.append(list(used))
        elif isinstance(item, bool) or (
            isinstance(item, torch.Tensor) and _stays(item)
        ):
            arrays.append(len(kept))
            one = isinstance(item, torch.Tensor) and item.dim() == 1
            kept.append(list(used) if one else [])
    made: list[str | None] = []
    first = 0
    if arrays:
        others = [i for i in range(len(kept)) if i not in arrays]
        count = dims - sum([len(kept[i]) for i in others]) - len(names[at:])
        alone = kept[arrays[0]]
        made = alone if len(arrays) == 1 and len(alone) == count else [None] * count
        together = arrays == list(range(arrays[0], arrays[-1] + 1))
        first = arrays[0] if together else 0
        kept = [kept[i] for i in others]
    out = [name for group in kept[:first] for name in group]
    out += made
    out += [name for group in kept[first:] for name in group]
    return as_names([*out, *names[at:]], dims)


def _stays(item: torch.Tensor) -> bool:
    """Return whether an index tensor makes dims; one int as a tensor does not."""
    return item.dim() > 0 or item.dtype == torch.bool


def _show(index: Any) -> str:
    text = repr(index)
    return text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004


def _out_of_range(td: Node, index: Any, dim: int) -> TreeIndexError:
    size = td.batch_size
    return TreeIndexError(
        f"index {index} is out of range for batch dim {dim}",
        expected=f"{-size[dim]} to {size[dim] - 1} for batch_size={list(size)}"
        if size[dim]
        else f"no index: the dim is empty, batch_size={list(size)}",
        got=index,
    )


def bad_index(td: Node, index: Any, error: Exception) -> TreeIndexError:
    """Return the error for an index that torch refuses."""
    return TreeIndexError(
        f"the index does not fit the batch: {error}",
        expected=f"an index of batch_size={list(td.batch_size)}",
        got=_show(index),
    )


def _bad_item(item: Any, index: Any) -> TreeIndexError:
    fix = None
    if isinstance(item, (list, tuple)) and any(isinstance(k, str) for k in item):
        fix = "td.select(*keys) takes several entries"
    return TreeIndexError(
        "this can not index batch dims",
        expected="ints, slices, None, Ellipsis, or tensors, arrays and lists of ints "
        "or booleans",
        got=f"{type(item).__name__} in {_show(index)}",
        fix=fix,
    )
