"""New trees by shape: of a schema, of keys, or like another tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.batch import as_device, as_size
from tdfunc._core.keys import as_path
from tdfunc._core.leaf import as_leaf
from tdfunc._core.node import Node, make
from tdfunc._core.rows import NonTensorStack
from tdfunc._core.tree import (
    around_lazy,
    map_leaves,
    put_rows,
    refuse_lazy,
    refuse_rows,
    with_leaves,
    without_rows,
)
from tdfunc._ops import convert
from tdfunc._ops.convert import from_dict
from tdfunc._ops.shape import as_list
from tdfunc.errors import InvalidKeyError, InvalidLeafError, show_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc._core.node import NodeT
    from tdfunc.typing import Device, DimNames, Path, Size

__all__ = [
    "empty_like",
    "from_schema",
    "fromkeys",
    "full_like",
    "new_empty",
    "new_full",
    "new_ones",
    "new_zeros",
    "ones_like",
    "rand_like",
    "randn_like",
    "zeros_like",
]


def from_schema(
    schema: Mapping[Any, Any],
    *,
    batch_size: Size | None = None,
    device: Device | None = None,
    names: DimNames | None = None,
) -> Any:
    """Return a tree of zeros of given shapes and dtypes.

    Args:
        schema: keys or paths to pairs of shape (behind the batch dims) and dtype;
            mappings may be nested.
        batch_size: the batch size, ``[]`` by default.
        device: where to make the tensors, None for torch's default.
        names: a name (or None) for every batch dim.

    Raises:
        InvalidKeyError: a key is none, comes twice, or goes on below a tensor.
        InvalidLeafError: `schema` is no mapping, or a value is no such pair.
        OptionError: a shape, the batch size or the names are none.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> shapes = {"obs": ([4], torch.float32), ("info", "step"): ([], torch.int64)}
        >>> tdfunc.from_schema(shapes, batch_size=[2])["info", "step"]
        tensor([0, 0])
    """
    size = as_size(() if batch_size is None else batch_size)
    target = as_device(device)

    def zeros(path: Path, value: Any) -> torch.Tensor:
        pair = value if isinstance(value, tuple) else (value, None)
        shape, dtype = pair if len(pair) == 2 else (pair, None)  # noqa: PLR2004
        if not isinstance(dtype, torch.dtype):
            raise InvalidLeafError(
                "a schema says what shape and dtype each tensor has",
                path=path,
                expected="a pair of a shape and a dtype",
                got=repr(value),
                fix="{'x': ([3], torch.float32)}",
            )
        shape = as_size(shape, show_path(path))
        return torch.zeros((*size, *shape), dtype=dtype, device=target)

    if not isinstance(schema, Mapping):
        raise InvalidLeafError(
            "a tree is made of a mapping",
            expected="a mapping of keys to pairs of shape and dtype",
            got=type(schema).__name__,
        )
    return from_dict(_nested(schema.items(), zeros), batch_size=size, names=names)


def fromkeys(
    keys: Iterable[str | Path],
    value: Any = 0,
    *,
    batch_size: Size | None = None,
    device: Device | None = None,
    names: DimNames | None = None,
) -> Any:
    """Return a tree with the same value at every key or path.

    Args:
        keys: keys and paths.
        value: what may be an entry; a tensor is shared by all.
        batch_size: the batch size, ``[]`` by default.
        device: where to move the tensors, None to leave them.
        names: a name (or None) for every batch dim.

    Raises:
        BatchSizeError: `value` does not start with `batch_size`.
        InvalidKeyError: a key is none, comes twice, or goes on below another.
        InvalidLeafError: `value` can not be an entry.

    Examples:
        >>> import tdfunc
        >>> tdfunc.fromkeys(["a", ("n", "b")], 1.5)["n", "b"]
        tensor(1.5000)
    """
    whole = (Mapping, Node, list, NonTensorStack)
    shared = value if isinstance(value, whole) else as_leaf(value, ())
    entries = _nested([(key, None) for key in keys], lambda *_: shared)
    return from_dict(entries, batch_size=batch_size, device=device, names=names)


def _nested(
    items: Iterable[tuple[Any, Any]], leaf: Callable[[Path, Any], Any]
) -> dict[str, Any]:
    """Return ``leaf(path, value)`` in nested dicts, for items that may have paths."""
    root: dict[str, Any] = {}
    nodes: dict[Path, dict[str, Any]] = {(): root}
    pending: list[tuple[Path, list[tuple[Any, Any]]]] = [((), list(items))]
    while pending:
        above, rows = pending.pop()
        for key, value in rows:
            path = (*above, *as_path(key))
            home = _node(nodes, path[:-1], path)
            if isinstance(value, Mapping):
                _node(nodes, path, path)
                pending.append((path, list(value.items())))
            elif path[-1] in home:
                raise InvalidKeyError("a key comes twice", path=path)
            else:
                home[path[-1]] = leaf(path, value)
    return root


def _node(nodes: dict[Path, dict[str, Any]], path: Path, whole: Path) -> dict[str, Any]:
    """Return the dict at `path`, made with those above it if it is not there."""
    start = len(path)
    while path[:start] not in nodes:
        start -= 1
    for end in range(start, len(path)):
        here = nodes[path[:end]]
        if path[end] in here:
            raise InvalidKeyError(
                "a key comes twice, as a tensor and as a node",
                path=path[: end + 1],
                got=f"the path {whole}",
            )
        here[path[end]] = nodes[path[: end + 1]] = {}
    return nodes[path]


def _like(td: Node, fn: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """Return the tree of ``fn(leaf, *args, **kwargs)``, which keeps shapes."""
    if td._schema.lazy:
        return around_lazy(td, lambda t: _like(t, fn, *args, **kwargs))
    if td._schema.rows:
        done = put_rows(td, _like(without_rows(td), fn, *args, **kwargs))
        device = kwargs.get("device")
        return done if device is None else convert.to(done, device=device)
    given = {name: value for name, value in kwargs.items() if value is not None}

    def make_one(leaf: torch.Tensor) -> torch.Tensor:
        return fn(leaf, *args, **given)

    return with_leaves(td, map_leaves(td._schema, td._leaves, make_one))


def zeros_like(
    td: NodeT, *, dtype: torch.dtype | None = None, device: Device | None = None
) -> NodeT:
    """Return the tree with zeros in place of every element; statics are kept.

    Args:
        td: the tree.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.ones(2)}).zeros_like()["x"]
        tensor([0., 0.])
    """
    return _like(td, torch.zeros_like, dtype=dtype, device=device)


def ones_like(
    td: NodeT, *, dtype: torch.dtype | None = None, device: Device | None = None
) -> NodeT:
    """Return the tree with ones in place of every element; statics are kept.

    Args:
        td: the tree.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}).ones_like(dtype=torch.int64)["x"]
        tensor([1, 1])
    """
    return _like(td, torch.ones_like, dtype=dtype, device=device)


def empty_like(
    td: NodeT, *, dtype: torch.dtype | None = None, device: Device | None = None
) -> NodeT:
    """Return the tree with new leaves that hold anything; statics are kept.

    Args:
        td: the tree.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}).empty_like()["x"].shape
        torch.Size([2])
    """
    return _like(td, torch.empty_like, dtype=dtype, device=device)


def full_like(
    td: NodeT,
    fill_value: complex,
    *,
    dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> NodeT:
    """Return the tree with one number in place of every element; statics are kept.

    Args:
        td: the tree.
        fill_value: the number.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}).full_like(7)["x"]
        tensor([7., 7.])
    """
    return _like(td, torch.full_like, fill_value, dtype=dtype, device=device)


def rand_like(
    td: NodeT,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> NodeT:
    """Return the tree with uniform draws from [0, 1) in place of every element.

    Leaves are drawn in the order of their sorted paths; statics are kept. Inside
    `vmap`, torch wants to know its ``randomness``.

    Args:
        td: the tree; every leaf is of a floating or complex dtype, or `dtype` is.
        generator: where the draws come from, None for torch's global one.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Raises:
        RuntimeError: torch's own, naming the leaf: it draws no integers this way.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2)})
        >>> a, b = [torch.Generator().manual_seed(0) for _ in range(2)]
        >>> td.rand_like(generator=a).equal(td.rand_like(generator=b))
        True
    """
    return _like(td, torch.rand_like, generator=generator, dtype=dtype, device=device)


def randn_like(
    td: NodeT,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> NodeT:
    """Return the tree with standard normal draws in place of every element.

    Leaves are drawn in the order of their sorted paths; statics are kept. Inside
    `vmap`, torch wants to know its ``randomness``.

    Args:
        td: the tree; every leaf is of a floating or complex dtype, or `dtype` is.
        generator: where the draws come from, None for torch's global one.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Raises:
        RuntimeError: torch's own, naming the leaf: it draws no integers this way.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2)})
        >>> a, b = [torch.Generator().manual_seed(0) for _ in range(2)]
        >>> td.randn_like(generator=a).equal(td.randn_like(generator=b))
        True
    """
    return _like(td, torch.randn_like, generator=generator, dtype=dtype, device=device)


def _new(
    td: NodeT,
    size: tuple[Any, ...],
    fn: Callable[..., torch.Tensor],
    *args: Any,
    dtype: torch.dtype | None,
    device: Device | None,
) -> NodeT:
    """Return the tree of ``fn(leaf, shape, *args)`` for a new batch size.

    Raises:
        OperandError: there are rows of text or lazy stacks, which have no such form.
    """
    refuse_lazy(td, fn.__name__)
    refuse_rows(td, fn.__name__)
    new = as_size(as_list(size))
    dims = td.batch_dims
    target = as_device(device)

    def one(leaf: torch.Tensor) -> torch.Tensor:
        shape = (*new, *leaf.shape[dims:])
        return fn(leaf, shape, *args, dtype=dtype, device=target)

    leaves = map_leaves(td._schema, td._leaves, one)
    return make(td._schema, leaves, td._statics, new, None)


def new_zeros(
    td: NodeT,
    *size: int | Size,
    dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> NodeT:
    """Return a tree of zeros with the entries of `td` and another batch size.

    Statics are kept, and so are feature dims, and the batch dims that nested nodes have
    more than the root. The new batch dims have no names.

    Args:
        td: the tree.
        size: the new batch size, as ints or one sequence.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Raises:
        OptionError: `size` is none.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3)}, 2)
        >>> td.new_zeros(4)["x"].shape
        torch.Size([4, 3])
    """
    return _new(td, size, torch.Tensor.new_zeros, dtype=dtype, device=device)


def new_ones(
    td: NodeT,
    *size: int | Size,
    dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> NodeT:
    """Return a tree of ones with the entries of `td` and another batch size.

    Statics are kept, and so are feature dims, and the batch dims that nested nodes have
    more than the root. The new batch dims have no names.

    Args:
        td: the tree.
        size: the new batch size, as ints or one sequence.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Raises:
        OptionError: `size` is none.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3)}, 2)
        >>> td.new_ones([])["x"]
        tensor([1., 1., 1.])
    """
    return _new(td, size, torch.Tensor.new_ones, dtype=dtype, device=device)


def new_empty(
    td: NodeT,
    *size: int | Size,
    dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> NodeT:
    """Return a tree of leaves that hold anything, with another batch size.

    Statics are kept, and so are feature dims, and the batch dims that nested nodes have
    more than the root. The new batch dims have no names.

    Args:
        td: the tree.
        size: the new batch size, as ints or one sequence.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Raises:
        OptionError: `size` is none.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3)}, 2)
        >>> td.new_empty(4, 2)["x"].shape
        torch.Size([4, 2, 3])
    """
    return _new(td, size, torch.Tensor.new_empty, dtype=dtype, device=device)


def new_full(
    td: NodeT,
    size: Size,
    fill_value: complex,
    *,
    dtype: torch.dtype | None = None,
    device: Device | None = None,
) -> NodeT:
    """Return a tree of one number with the entries of `td` and another batch size.

    Statics are kept, and so are feature dims, and the batch dims that nested nodes have
    more than the root. The new batch dims have no names.

    Args:
        td: the tree.
        size: the new batch size, an int or a sequence.
        fill_value: the number.
        dtype: the dtype of all leaves, None for that of each.
        device: the device of all leaves, None for that of each.

    Raises:
        OptionError: `size` is none.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(2, 3)}, 2)
        >>> td.new_full([1], 7.0)["x"]
        tensor([[7., 7., 7.]])
    """
    return _new(
        td, (size,), torch.Tensor.new_full, fill_value, dtype=dtype, device=device
    )
