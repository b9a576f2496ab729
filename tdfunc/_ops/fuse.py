"""Several entries made one: their tensors joined under a new key.

The only operations whose `dim` counts the dims of the *leaf*, since features are what
is joined as a rule: ``dim=-1`` is the last feature dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.keys import as_path
from tdfunc._core.node import entry_at
from tdfunc._ops.entries import drop, set
from tdfunc.errors import OperandError, OptionError, show_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc._core.node import NodeT
    from tdfunc.typing import Path

__all__ = ["cat_tensors", "stack_tensors"]


def cat_tensors(
    td: NodeT,
    *keys: str | Path,
    out_key: str | Path,
    dim: int = 0,
    keep_entries: bool = False,
) -> NodeT:
    """Return the tree with several tensors concatenated under one key.

    Args:
        td: the tree.
        keys: keys or paths of tensors, in the order in which they are joined.
        out_key: where the result goes; may be one of `keys`.
        dim: the dim of the tensors, batch dims counted: -1 is their last one.
        keep_entries: keep the tensors that were joined.

    Returns:
        A tree with one new tensor; all others are shared.

    Raises:
        BatchSizeError: the result does not start with the batch size.
        MissingKeyError: a key is not in the tree.
        OperandError: an entry is no tensor, or torch can not join them.
        OptionError: there are no keys.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"pos": torch.zeros(5, 3), "vel": torch.ones(5, 2)}, 5)
        >>> td.cat_tensors("pos", "vel", out_key="obs", dim=-1)
        TensorDict(batch_size=[5], fields={obs: f32[5]})
    """
    return _joined(td, keys, out_key, torch.cat, dim, keep_entries=keep_entries)


def stack_tensors(
    td: NodeT,
    *keys: str | Path,
    out_key: str | Path,
    dim: int = 0,
    keep_entries: bool = False,
) -> NodeT:
    """Return the tree with several tensors stacked under one key.

    Args:
        td: the tree.
        keys: keys or paths of tensors of one shape.
        out_key: where the result goes; may be one of `keys`.
        dim: the new dim, batch dims counted: -1 comes last.
        keep_entries: keep the tensors that were stacked.

    Returns:
        A tree with one new tensor; all others are shared.

    Raises:
        BatchSizeError: the result does not start with the batch size.
        MissingKeyError: a key is not in the tree.
        OperandError: an entry is no tensor, or torch can not stack them.
        OptionError: there are no keys.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(5), "y": torch.ones(5)}, 5)
        >>> td.stack_tensors("x", "y", out_key=("n", "point"), dim=-1)["n", "point"][0]
        tensor([0., 1.])
    """
    return _joined(td, keys, out_key, torch.stack, dim, keep_entries=keep_entries)


def _joined(
    td: NodeT,
    keys: tuple[str | Path, ...],
    out_key: str | Path,
    join: Callable[[list[torch.Tensor], int], torch.Tensor],
    dim: int,
    *,
    keep_entries: bool,
) -> NodeT:
    if not keys:
        raise OptionError(
            "there is nothing to join",
            expected="keys or paths of tensors",
            fix="td.cat_tensors(*td.keys(True, True), out_key=...)",
        )
    paths = [as_path(key) for key in keys]
    tensors: list[Any] = []
    for path in paths:
        entry = entry_at(td, path)
        if not isinstance(entry, torch.Tensor):
            raise OperandError(
                "only tensors are joined",
                path=path,
                expected="a tensor",
                got=type(entry).__name__,
            )
        tensors.append(entry)
    try:
        whole = join(tensors, dim)
    except (IndexError, RuntimeError, TypeError) as error:
        shown = [f"{show_path(p)} {list(x.shape)}" for p, x in zip(paths, tensors)]  # noqa: B905
        raise OperandError(
            f"torch can not join these tensors: {error}",
            expected=f"tensors that fit along dim {dim} of theirs",
            got=", ".join(shown),
        ) from error
    if not keep_entries:
        td = drop(td, *dict.fromkeys(keys))
    return set(td, out_key, whole)
