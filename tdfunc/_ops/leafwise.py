"""Apply a function to every leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core._torch import PLAIN_TYPES
from tdfunc._core.batch import as_size, misfit, refit
from tdfunc._core.keys import short
from tdfunc._core.mismatch import check_same_entries
from tdfunc._core.node import Node, NodeT, make
from tdfunc._core.tree import (
    around_lazy,
    around_rows,
    map_leaves,
    refuse_lazy,
    refuse_rows,
    without_rows,
    zip_leaves,
)
from tdfunc.errors import BatchSizeError, InvalidLeafError, OperandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc._core.schema import Schema
    from tdfunc.typing import Size

__all__ = ["apply", "named_apply"]


def apply(
    td: NodeT,
    fn: Callable[..., torch.Tensor],
    *others: Node,
    batch_size: Size | None = None,
) -> NodeT:
    """Return the tree of ``fn(leaf, *leaves of others)``, paired by path.

    Statics and rows of text are kept and not given to `fn`. The batch size is kept; a
    function that changes it needs `batch_size`.

    Args:
        td: the tree.
        fn: a function of tensors that returns one tensor; it must not write into
            what it is given.
        others: trees with the same entries.
        batch_size: the batch size of the result, None to keep that of `td`.

    Raises:
        BatchSizeError: a result does not start with the batch size.
        InvalidLeafError: `fn` returned something else than a tensor.
        StructureError: the trees do not have the same entries.
        Exception: what `fn` raises, with a note that names the leaf.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": torch.ones(3, 2)}, batch_size=3)
        >>> td.apply(lambda x: x.sum(-1))["a"].tolist()
        [2.0, 2.0, 2.0]
        >>> td.apply(lambda x: x.sum(0), batch_size=[]).batch_size
        torch.Size([])
    """
    size = td.batch_size
    schema = td._schema
    if others:
        _check_others(td, others)
    if schema.lazy:
        _check_kept(td, batch_size)
        return around_lazy(td, lambda t, *more: apply(t, fn, *more), *others)
    if schema.rows:
        bare = [without_rows(other) for other in others]
        return _beside_rows(
            td, batch_size, lambda t: apply(t, fn, *bare, batch_size=batch_size)
        )
    if others:
        columns = (td._leaves, *[other._leaves for other in others])
        leaves = zip_leaves(schema, columns, fn)
    else:
        leaves = map_leaves(schema, td._leaves, fn)
    return _rewrapped(td, leaves, size, batch_size)


def named_apply(
    td: NodeT,
    fn: Callable[..., torch.Tensor],
    *others: Node,
    nested_keys: bool = False,
    batch_size: Size | None = None,
) -> NodeT:
    """Return the tree of ``fn(name, leaf, *leaves of others)``.

    Args:
        td: the tree.
        fn: as in `apply`, with the name of the leaf first.
        others: trees with the same entries.
        nested_keys: give the whole path (a key, or a tuple if nested) instead of the
            last key.
        batch_size: as in `apply`.

    Raises:
        BatchSizeError: a result does not start with the batch size.
        InvalidLeafError: `fn` returned something else than a tensor.
        StructureError: the trees do not have the same entries.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2)}})
        >>> td.named_apply(lambda name, x: x * len(name), nested_keys=True)["n", "b"]
        tensor([2., 2.])
    """
    size = td.batch_size
    schema = td._schema
    if others:
        _check_others(td, others)
    if schema.lazy:
        _check_kept(td, batch_size)
        return around_lazy(
            td,
            lambda t, *more: named_apply(t, fn, *more, nested_keys=nested_keys),
            *others,
        )
    if schema.rows:
        bare = [without_rows(other) for other in others]
        return _beside_rows(
            td,
            batch_size,
            lambda t: named_apply(
                t, fn, *bare, nested_keys=nested_keys, batch_size=batch_size
            ),
        )
    names = [short(p) if nested_keys else p[-1] for p in schema.paths()]
    columns = (names, td._leaves, *[other._leaves for other in others])
    return _rewrapped(td, zip_leaves(schema, columns, fn), size, batch_size)


def _check_others(td: Node, others: tuple[Node, ...]) -> None:
    for other in others:
        if not isinstance(other, Node):
            raise OperandError(
                "only trees can be applied over together",
                expected="a tree",
                got=type(other).__name__,
            )
    check_same_entries((td, *others))


def _check_kept(td: Node, batch_size: Size | None) -> None:
    if batch_size is not None and as_size(batch_size) != td.batch_size:
        refuse_lazy(td, "apply with another batch size")


def _beside_rows(
    td: NodeT, batch_size: Size | None, fn: Callable[[NodeT], NodeT]
) -> NodeT:
    if batch_size is not None and as_size(batch_size) != td.batch_size:
        refuse_rows(td, "apply")
    return around_rows(td, fn)


def _rewrapped(
    td: NodeT,
    leaves: tuple[Any, ...],
    old: torch.Size,
    batch_size: Size | None,
) -> NodeT:
    """Return the node of new leaves of any shape, with its batch size checked."""
    size = old if batch_size is None else as_size(batch_size)
    schema, dims = td._schema, len(size)
    if _keeps(schema, leaves, size) and not schema.extra:
        names = td._names if dims == len(old) else None
        return make(schema, leaves, td._statics, size, names)
    return _with_ranks(td, leaves, old, size, given=batch_size is not None)


def _keeps(schema: Schema, leaves: tuple[Any, ...], size: torch.Size) -> bool:
    """Return whether the leaves have the ranks of the schema and the batch size."""
    plain = PLAIN_TYPES.issuperset(map(type, leaves))
    if not plain and not all([isinstance(leaf, torch.Tensor) for leaf in leaves]):
        return False
    dims = len(size)
    shapes = [leaf.shape for leaf in leaves]
    if [len(shape) - dims for shape in shapes] != list(schema.ranks()):
        return False
    # Slicing a torch.Size costs more than all else here.
    if dims == 1:
        rows = size[0]
        return all([shape[0] == rows for shape in shapes])
    return dims == 0 or all([shape[:dims] == size for shape in shapes])


def _with_ranks(
    td: NodeT,
    leaves: tuple[Any, ...],
    old: torch.Size,
    size: torch.Size,
    *,
    given: bool,
) -> NodeT:
    schema, dims = td._schema, len(size)
    for path, leaf in zip(schema.paths(), leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            raise _no_tensor(td, leaves)
        if leaf.shape[:dims] != size:
            error = misfit(path, leaf.shape, size)
            if given:
                raise error
            raise BatchSizeError(
                "the function changed the batch size",
                path=path,
                expected=error.expected,
                got=error.got,
                fix="pass batch_size= the batch size of the result",
            )
    schema = refit(schema.rebased(len(old), dims), leaves, dims)
    names = td._names if dims == len(old) else None
    return make(schema, leaves, td._statics, size, names)


def _no_tensor(td: Node, leaves: tuple[Any, ...]) -> InvalidLeafError:
    rows = zip(td._schema.paths(), leaves, strict=True)
    path, leaf = next((p, x) for p, x in rows if not isinstance(x, torch.Tensor))
    return InvalidLeafError(
        "the function returned no tensor",
        path=path,
        expected="a tensor",
        got=type(leaf).__name__,
        fix="td.select(...) or td.drop(...) leave entries out; "
        "torch.utils._pytree.tree_map takes any object",
    )
