"""Casts, moves, copies, and conversion to and from plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.batch import as_device, as_names, as_size
from tdfunc._core.build import assemble, map_unbatched
from tdfunc._core.leaf import check_own
from tdfunc._core.mismatch import check_same_entries
from tdfunc._core.node import Node, NodeT, carried_size, make, value_at
from tdfunc._core.schema import Schema
from tdfunc._core.tree import around_lazy, map_leaves, refuse_lazy, zip_leaves
from tdfunc._ops import entries as entries_of
from tdfunc._ops import restructure
from tdfunc.errors import BatchSizeError, InvalidLeafError, OptionError, show_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc.typing import Device, DimNames, Entries, Size

__all__ = [
    "clone",
    "contiguous",
    "detach",
    "from_dict",
    "to",
    "to_dict",
    "with_statics",
]


def _check_rows(td: Node) -> None:
    """Raise if a list of texts is longer than what the batch size became."""
    schema = td._schema
    ranks, paths = schema.leaf_kids(), schema.paths()
    for slot in schema.rows:
        if ranks[slot]:
            shape = td._leaves[slot].shape
            other = next(
                (p for p, x in zip(paths, td._leaves, strict=True) if x.shape != shape),
                paths[slot],
            )
            found = td._leaves[paths.index(other)].shape
            raise BatchSizeError(
                "one value for every row, and not as many rows elsewhere",
                path=paths[slot],
                expected=f"a batch size that starts with {list(shape)}",
                got=f"shape {list(found)} at {show_path(other)}",
                fix="NonTensorData(value) keeps the list as one static value",
            )


_MOST_DIMS = 64  # of a tensor, in torch


def to(
    td: NodeT,
    *args: Any,
    device: Device | None = None,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    floating_only: bool = False,
) -> NodeT:
    """Return the tree with its leaves moved and cast.

    Args:
        td: the tree.
        args: a device, a dtype, or both, in any order; or a tensor or tree whose
            device and dtype to take.
        device: the device, None to stay.
        dtype: the dtype, None to keep each leaf's own. Casts every leaf.
        non_blocking: copy asynchronously where the devices can.
        floating_only: cast only floating-point leaves, as `torch.nn.Module.to` does.

    Returns:
        The tree itself when no leaf changes; otherwise leaves that need no change
        are shared.

    Raises:
        OptionError: an argument is neither a device nor a dtype, or one is given
            twice.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2), "n": torch.tensor(1)})
        >>> td.to(torch.float64, floating_only=True)["n"].dtype
        torch.int64
    """
    for arg in args:
        if isinstance(arg, torch.dtype):
            dtype = _once("dtype", dtype, arg)
        elif isinstance(arg, (Node, torch.Tensor)):
            device = _once("device", device, arg.device)
            dtype = _once("dtype", dtype, arg.dtype)
        elif isinstance(arg, (torch.device, str, int)) and not isinstance(arg, bool):
            device = _once("device", device, arg)
        elif arg is not None:
            raise OptionError(
                "a tree can not be moved or cast to this",
                expected="a device, a dtype, a tensor or a tree",
                got=repr(arg),
            )
    device = as_device(device)
    if device is None and dtype is None:
        return td

    def move(leaf: torch.Tensor) -> torch.Tensor:
        cast = dtype if not floating_only or leaf.is_floating_point() else None
        return leaf.to(device=device, dtype=cast, non_blocking=non_blocking)

    def go(codes: torch.Tensor) -> torch.Tensor:
        return codes.to(device=device, non_blocking=non_blocking)

    return replaced(td, move, go)


def replaced(
    td: NodeT,
    fn: Callable[[torch.Tensor], torch.Tensor],
    on_codes: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> NodeT:
    """Return the tree with ``fn(tensor)`` for all tensors, unbatched ones included.

    The tree itself, when `fn` returned what it was given.
    """
    if td._schema.lazy:
        return around_lazy(td, lambda t: replaced(t, fn, on_codes))
    size = carried_size(td)
    schema, statics = td._schema, td._statics
    if schema.rows and on_codes is not None:
        rows = set(schema.rows)
        fns = [on_codes if slot in rows else fn for slot in range(schema.n)]
        pairs = (fns, td._leaves)
        leaves = zip_leaves(schema, pairs, lambda each, leaf: each(leaf))
    else:
        leaves = map_leaves(schema, td._leaves, fn)
    same = all([x is y for x, y in zip(leaves, td._leaves, strict=True)])
    box = map_unbatched(schema, statics, fn)
    kept = schema.unbatched()
    if same and all([box.values[at] is statics.values[at] for at in kept]):
        return td
    return make(schema, leaves, box, size, td._names)


def _once(name: str, old: Any, new: Any) -> Any:
    if old is not None and new is not None:
        raise OptionError(f"{name} is given twice", got=f"{old} and {new}")
    return old if new is None else new


def detach(td: NodeT) -> NodeT:
    """Return the tree cut from autograd; leaves share memory with the old ones.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"w": torch.ones(2, requires_grad=True)})
        >>> td.detach().requires_grad
        False
    """
    return replaced(td, lambda leaf: leaf.detach())


def clone(td: NodeT) -> NodeT:
    """Return the tree with a copy of every leaf: it shares no memory with `td`.

    Statics that are no tensors, and the schema, are shared.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2)})
        >>> td.clone()["x"].data_ptr() == td["x"].data_ptr()
        False
    """
    return replaced(td, lambda leaf: leaf.clone())


def contiguous(td: NodeT) -> NodeT:
    """Return the tree with contiguous leaves; those that are are shared.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, 3).t()})
        >>> td.contiguous()["x"].is_contiguous()
        True
    """
    return replaced(td, lambda leaf: leaf.contiguous())


def with_statics(td: NodeT, other: Node) -> NodeT:
    """Return the tree with the statics of `other`, which has the same entries.

    Aligns trees whose texts or objects differ, so that they stack, compare as
    pytrees, or add up.

    Raises:
        StructureError: the trees do not have the same entries.

    Examples:
        >>> from tdfunc import TensorDict
        >>> a, b = TensorDict({"s": "x"}), TensorDict({"s": "y"})
        >>> a.with_statics(b)["s"]
        'y'
    """
    check_same_entries((td, other))
    if td._schema.lazy:
        return around_lazy(td, with_statics, other)
    size = carried_size(td)
    box = other._statics
    # Codes belong to their table, and both stay.
    for _, at in td._schema.coded():
        box = box.spliced(at, at + 1, td._statics.part(at, at + 1))
    return make(td._schema, td._leaves, box, size, td._names)


def to_dict(td: Node, *, retain_none: bool = True) -> dict[str, Any]:
    """Return a plain dict of dicts; tensors and static values as they are.

    One value per row becomes a list, nested as deep as the batch size, and an
    `unbatched` tensor the tensor. A static that is a number, a list or a dict comes
    back from `TensorDict` as something else unless it is wrapped in `NonTensorData`
    again, and so do rows of numbers or lists without `NonTensorStack`, and unbatched
    tensors.

    Args:
        td: the tree.
        retain_none: put None where a record has a field that is None, as
            `dataclasses.asdict` does; False leaves these out.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"n": {"a": 1}, "s": "x"}).to_dict()
        {'n': {'a': tensor(1)}, 's': 'x'}
    """
    if td._schema.lazy:
        dense: Any = td
        td = dense.densify()
    root: dict[str, Any] = {}
    nodes: dict[tuple[str, ...], dict[str, Any]] = {(): root}
    for path, kid, lo, slo, _ in td._schema.walk():
        if isinstance(kid, Schema):
            value: Any = {}
            nodes[path] = value
        else:
            value = value_at(td, path, kid, lo, slo)
        nodes[path[:-1]][path[-1]] = value
    if retain_none and td._schema.records:
        for path in td._schema.absent():
            nodes[path[:-1]][path[-1]] = None
    return root


def from_dict(
    entries: Entries | Node,
    *,
    batch_size: Size | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: Device | None = None,
    names: DimNames | None = None,
) -> Any:
    """Return the `TensorDict` of a mapping, with a given or an inferred batch size.

    Inferring takes the longest leading shape that all tensors of a node share;
    nested nodes may get a longer one than their parent. Lists of texts count, one value
    for every row; statics and `unbatched` tensors do not; a scalar makes it ``[]``.

    Args:
        entries: names to values, nested as deep as you like.
        batch_size: the batch size, ``[]`` by default.
        auto_batch_size: infer it instead.
        batch_dims: infer it, with at most this many dims in every node.
        device: where to move the leaves, None to leave them.
        names: a name (or None) for every batch dim.

    Raises:
        BatchSizeError: a leaf does not start with `batch_size`.
        InvalidKeyError: a key is not a non-empty string.
        InvalidLeafError: `entries` is no mapping, or a value can not be an entry.
        OptionError: `batch_size` together with `auto_batch_size` or `batch_dims`.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> data = {"a": torch.zeros(3, 4), "n": {"b": torch.zeros(3, 5, 2)}}
        >>> td = tdfunc.from_dict(data, auto_batch_size=True)
        >>> td.batch_size, td["n"].batch_size
        (torch.Size([3]), torch.Size([3, 5, 2]))
    """
    infer = auto_batch_size or batch_dims is not None
    if infer and batch_size is not None:
        raise OptionError(
            "the batch size is given and to be inferred",
            expected="batch_size, or auto_batch_size / batch_dims",
            got=f"batch_size={batch_size!r} with "
            f"auto_batch_size={auto_batch_size!r}, batch_dims={batch_dims!r}",
            fix="leave batch_size out to have it inferred",
        )
    if not isinstance(entries, (Mapping, Node)):
        check_own(entries, ())
        raise InvalidLeafError(
            "a tree is made of a mapping",
            expected="a mapping",
            got=type(entries).__name__,
        )
    if isinstance(entries, Node) and type(entries).is_lazy:
        return _of_stack(entries, batch_size, device, names, infer=infer)
    size = as_size(() if batch_size is None else batch_size)
    if infer and isinstance(entries, Node):
        size = entries.batch_size
    # A list of texts may tell the batch size, as a tensor does.
    row_dims = None if not infer else _MOST_DIMS if batch_dims is None else batch_dims
    part = assemble(
        entries, size, Node._plain, device=as_device(device), row_dims=row_dims
    )
    td: Any = make(part.kid, part.leaves, part.statics, size, None)  # pyright: ignore[reportArgumentType]
    if infer:
        td = restructure.auto_batch_size(td, batch_dims)
        _check_rows(td)
    if names is not None:
        size = td.batch_size
        given = as_names(names, len(size))
        td = make(td._schema, td._leaves, td._statics, size, given)
    return td


def _of_stack(
    td: Node,
    batch_size: Size | None,
    device: Device | None,
    names: DimNames | None,
    *,
    infer: bool,
) -> Any:
    """Return a lazy stack, read with another batch size."""
    if infer:
        refuse_lazy(td, "inferring a batch size")
    if batch_size is not None:
        td = entries_of.with_batch_size(td, batch_size)
    if device is not None:
        td = to(td, device)
    return td if names is None else entries_of.with_names(td, names)
