"""Trees of different lengths as one padded batch, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.node import Node
from tdfunc._ops.index import at_index
from tdfunc._ops.join import stack
from tdfunc._ops.pieces import pad
from tdfunc._ops.shape import as_dim, narrow
from tdfunc.errors import OperandError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc._core.node import NodeT

__all__ = ["pad_sequence", "unpad_sequence"]


def pad_sequence(
    trees: Sequence[NodeT], pad_dim: int | str = 0, padding_value: float = 0
) -> tuple[NodeT, torch.Tensor]:
    """Return trees of different lengths, padded to the longest and stacked.

    ``unpad_sequence(*pad_sequence(trees))`` has what `trees` have.

    Args:
        trees: trees with the same entries, and batch sizes that differ in one dim only.
        pad_dim: that dim, of each tree.
        padding_value: what rows hold that are not there.

    Returns:
        The tree, with a new first batch dim, one row for each of `trees`; and a mask
        of its batch shape that is true where there is data.

    Raises:
        OperandError: `trees` is empty, or one is no tree.
        ShapeError: `pad_dim` is no batch dim, or the trees differ in other dims.
        StructureError: the trees do not have the same entries.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> runs = [tdfunc.TensorDict({"x": torch.ones(n, 2)}, n) for n in (1, 3)]
        >>> td, mask = tdfunc.pad_sequence(runs)
        >>> td["x"].shape, mask.tolist()
        (torch.Size([2, 3, 2]), [[True, False, False], [True, True, True]])
    """
    rows: list[Any] = list(trees)
    if not rows or not all([isinstance(row, Node) for row in rows]):
        raise OperandError(
            "only trees can be padded to one length",
            expected="a list of at least one tree",
            got=f"a list of {sorted({type(row).__name__ for row in rows})}"
            if rows
            else "an empty list",
        )
    at = as_dim(rows[0], pad_dim)
    sizes = [row.batch_size for row in rows]
    others = [(*size[:at], *size[at + 1 :]) for size in sizes]
    for i, (size, other) in enumerate(zip(sizes, others, strict=True)):
        if len(size) != len(sizes[0]) or other != others[0]:
            raise ShapeError(
                f"tree {i} differs from the first in other dims than the padded one",
                expected=f"batch size {list(sizes[0])}, but for dim {at}",
                got=list(size),
                fix="tdfunc.pad_sequence(trees, pad_dim=...)",
            )
    lengths = [size[at] for size in sizes]
    longest = max(lengths)
    front = [0, 0] * at
    padded = [
        row if n == longest else pad(row, [*front, 0, longest - n], padding_value)
        for row, n in zip(rows, lengths, strict=True)
    ]
    td: Any = stack(padded)
    device = td.device
    ends = torch.tensor(lengths, device=device)
    mask = torch.arange(longest, device=device) < ends.unsqueeze(-1)
    mask = mask.reshape((len(rows), *(1,) * at, longest, *(1,) * (len(others[0]) - at)))
    return td, mask.expand(td.batch_size).contiguous()


def unpad_sequence(
    td: NodeT, mask: torch.Tensor, pad_dim: int | str = 0
) -> list[NodeT]:
    """Return the trees that `pad_sequence` padded.

    Args:
        td: the tree; its first batch dim counts the trees.
        mask: of the batch shape, true where there is data: in each row one run of
            places along `pad_dim`. Its values are read, so this can not be traced.
        pad_dim: the padded dim of each tree, that is without the first one of `td`.

    Returns:
        Views of the rows of `td`.

    Raises:
        OperandError: the mask has another shape or dtype, or is no run.
        ShapeError: `pad_dim` is no batch dim of the rows.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> td = tdfunc.TensorDict({"x": torch.arange(6).view(2, 3)}, [2, 3])
        >>> mask = torch.tensor([[True, False, False], [True, True, False]])
        >>> [row["x"].tolist() for row in tdfunc.unpad_sequence(td, mask)]
        [[0], [3, 4]]
    """
    size = td.batch_size
    if (
        not isinstance(mask, torch.Tensor)
        or mask.dtype != torch.bool
        or mask.shape != size
        or not size
    ):
        raise OperandError(
            "this is no mask of the tree",
            expected=f"a bool tensor of shape {list(size)}, of at least one dim",
            got=f"{mask.dtype} of shape {list(mask.shape)}"
            if isinstance(mask, torch.Tensor)
            else type(mask).__name__,
        )
    out: list[NodeT] = []
    for i in range(size[0]):
        row = at_index(td, i)
        at = as_dim(row, pad_dim)
        columns = mask[i].movedim(at, 0).flatten(1) if len(size) > 2 else mask[i]  # noqa: PLR2004
        seen = columns if columns.dim() == 1 else columns.all(1)
        places = seen.nonzero().flatten()
        count = len(places)
        start = int(places[0]) if count else 0
        run = columns[start : start + count]
        if not bool(run.all()) or int(columns.sum()) != run.numel():
            raise OperandError(
                f"the mask of row {i} is no run of places along the padded dim",
                expected="places that follow each other, the same in all other dims",
                got=f"{int(columns.sum())} places",
                fix="td[i][mask[i]] takes any places",
            )
        out.append(narrow(row, at, start, count))
    return out
