"""Trees of arrays: NumPy, structured arrays, and DLPack for every other library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import dlpack

from tdfunc._core.build import map_unbatched
from tdfunc._core.node import make
from tdfunc._core.rows import decode
from tdfunc._core.schema import ROWS, Schema
from tdfunc._core.tree import (
    map_leaves,
    put_rows,
    refuse_lazy,
    with_leaves,
    without_rows,
)
from tdfunc._ops.convert import from_dict, to_dict
from tdfunc._ops.from_python import children, unfolded, with_size
from tdfunc.errors import InvalidLeafError, OperandError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from tdfunc._core.node import Node
    from tdfunc.typing import FromOptions, Path

__all__ = [
    "from_dlpack",
    "from_numpy",
    "from_struct_array",
    "to_dlpack",
    "to_numpy",
    "to_struct_array",
]


_KINDS = (np.ndarray, np.datetime64, np.timedelta64, np.void)


def from_struct_array(
    array: np.ndarray[Any, Any],
    **options: Unpack[FromOptions],
) -> Any:
    """Return the tree of a structured array: fields are entries, its shape the batch.

    Tensors share memory with the array where torch can map the field; where it can not
    (a field off its alignment, a read-only array) they are copies. Fields of text,
    bytes, dates or objects become one value for every row, an array where there are
    several in a row.

    Args:
        array: an array whose dtype has fields, which may have fields themselves.
        options: batch size (the shape of the array by default), device and names; see
            `tdfunc.typing.FromOptions`.

    Raises:
        OperandError: `array` is no array with fields.
        TdfuncError: what `from_dict` raises.

    Examples:
        >>> import numpy as np
        >>> import tdfunc
        >>> array = np.zeros(5, dtype=[("pos", "f4", 3), ("id", "i8")])
        >>> td = tdfunc.from_struct_array(array)
        >>> td.batch_size, td["pos"].shape
        (torch.Size([5]), torch.Size([5, 3]))
    """
    if not isinstance(array, np.ndarray) or array.dtype.names is None:
        raise OperandError(
            "this is no structured array",
            expected="an array whose dtype has fields",
            got=array.dtype if isinstance(array, np.ndarray) else type(array).__name__,
            fix="tdfunc.from_numpy({'x': array})",
        )
    return from_dict(unfolded(array, children), **with_size(options, array.shape))


def to_struct_array(td: Node) -> np.ndarray[Any, Any]:
    """Return a structured array of the shape of the batch: entries are its fields.

    Nested nodes become fields with fields; surplus batch dims of theirs and feature
    dims become dims of the field. One value per row (text) becomes a field of objects,
    of dates or arrays of one dtype a field of theirs.
    Statics that are arrays of the batch shape, as `from_struct_array` makes them,
    become fields again.

    Args:
        td: the tree; leaves are on the CPU and take no part in autograd.

    Returns:
        An array with a copy of every leaf.

    Raises:
        OperandError: a leaf can not be an array, or a static is no such array.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(3, 2), "n": {"y": torch.ones(3)}}, 3)
        >>> td.to_struct_array().dtype
        dtype([('x', '<f4', (2,)), ('n', [('y', '<f4')])])
    """
    refuse_lazy(td, "to_struct_array")
    size = tuple(td.batch_size)
    columns: dict[Path, np.ndarray[Any, Any]] = {}
    dtypes: dict[Path, list[Any]] = {(): []}
    steps = list(td._schema.walk())
    for path, kid, lo, slo, _ in steps:
        if isinstance(kid, Schema):
            dtypes[path] = []
            continue
        if kid <= ROWS:
            columns[path] = _rows_column(td, path, lo, slo)
        elif kid < 0:
            columns[path] = _static_column(td._statics.values[slo], path, size)
        else:
            columns[path] = _as_array(td._leaves[lo], path)
    # Parents come before children: from the end, every node is complete when it
    # becomes a field of the one above it.
    for path, kid, *_ in reversed(steps):
        field: Any = (path[-1],)
        if isinstance(kid, Schema):
            field += (dtypes[path][::-1],)
        else:
            column = columns[path]
            field += (column.dtype, column.shape[len(size) :])
        dtypes[path[:-1]].append(field)
    out = np.zeros(size, dtype=dtypes[()][::-1])
    for path, column in columns.items():
        place = out
        for key in path:
            place = place[key]
        place[...] = column
    return out


def _rows_column(td: Node, path: Path, lo: int, slo: int) -> np.ndarray[Any, Any]:
    """Return the values of rows as an array of objects; of dates, or arrays, theirs."""
    codes = td._leaves[lo]
    values = decode(codes.reshape(-1), td._statics.values[slo], path)
    if values and all([isinstance(v, _KINDS) for v in values]):
        alike = {(type(v), v.dtype, v.shape) for v in values}
        if len(alike) == 1:
            joined = np.stack(values)
            return joined.reshape((*codes.shape, *joined.shape[1:]))
    column = np.empty(len(values), dtype=object)
    # One by one: NumPy would open values that are lists.
    for at, value in enumerate(values):
        column[at] = value
    return column.reshape(tuple(codes.shape))


def _static_column(
    value: Any, path: Path, size: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray) and value.shape[: len(size)] == size:
        return value
    raise OperandError(
        "one value for the whole node is no field of a structured array",
        path=path,
        expected=f"a tensor, or a static array of shape {list(size)}",
        got=type(value).__name__,
        fix=f"td.drop({path!r}).to_struct_array()",
    )


def _as_array(leaf: torch.Tensor, path: Path) -> np.ndarray[Any, Any]:
    if leaf.requires_grad:
        raise OperandError(
            "a leaf that takes part in autograd can not become an array",
            path=path,
            fix="td.detach() cuts the tree from autograd",
        )
    try:
        return leaf.numpy()
    except (RuntimeError, TypeError) as error:
        raise OperandError(
            "the leaf can not become an array",
            path=path,
            expected="a dense CPU tensor of a dtype that NumPy has",
            got=f"{leaf.dtype} on {leaf.device} ({error})",
            fix=_fix_for(leaf),
        ) from error


def _fix_for(leaf: torch.Tensor) -> str:
    """Return the call after which a leaf can become an array."""
    if leaf.is_conj():
        return "td.apply(torch.resolve_conj)"
    if leaf.is_neg():
        return "td.apply(torch.resolve_neg)"
    if leaf.is_meta:
        return "td.zeros_like(device='cpu')"
    if leaf.device.type != "cpu":
        return "td.to('cpu')"
    if leaf.layout != torch.strided:
        return "td.apply(torch.Tensor.to_dense)"
    return "td.to(torch.float32)"


def to_numpy(td: Node) -> dict[str, Any]:
    """Return nested dicts of arrays that share memory with the leaves.

    Statics are in their places as they are; one value per row (text) becomes an array
    of objects. Who writes into an array changes what the tree shows:
    ``td.clone().to_numpy()`` is safe to write into.

    Args:
        td: the tree; leaves are on the CPU and take no part in autograd.

    Raises:
        OperandError: a leaf can not be an array.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"n": {"x": torch.ones(2)}}).to_numpy()
        {'n': {'x': array([1., 1.], dtype=float32)}}
    """
    refuse_lazy(td, "to_numpy")
    schema = td._schema
    coded = dict(schema.coded())
    rows = zip(schema.paths(), td._leaves, strict=True)
    arrays = tuple(
        [
            _rows_column(td, path, at, coded[at])
            if at in coded
            else _as_array(leaf, path)
            for at, (path, leaf) in enumerate(rows)
        ]
    )
    to_array: Any = _as_array
    statics = map_unbatched(schema, td._statics, lambda x: to_array(x, ()))
    size = td.batch_size
    return to_dict(make(schema, arrays, statics, size, None))


def from_numpy(
    arrays: Mapping[str, Any] | np.ndarray[Any, Any],
    **options: Unpack[FromOptions],
) -> Any:
    """Return the tree of nested mappings of arrays, or of a structured array.

    Tensors share memory with the arrays where torch can map them; read-only arrays
    are copied.

    Args:
        arrays: what `to_numpy` or `to_struct_array` gives.
        options: batch size (for a structured array its shape by default), device and
            names; see `tdfunc.typing.FromOptions`.

    Raises:
        TdfuncError: what `from_dict` and `from_struct_array` raise.

    Examples:
        >>> import numpy as np
        >>> import tdfunc
        >>> tdfunc.from_numpy({"x": np.zeros((4, 2))}, batch_size=4)["x"].dtype
        torch.float64
    """
    convert: Callable[..., Any] = from_dict
    if isinstance(arrays, np.ndarray):
        convert = from_struct_array
    return convert(arrays, **options)


def to_dlpack(
    td: Node, convert: Callable[[torch.Tensor], Any] = dlpack.to_dlpack
) -> dict[str, Any]:
    """Return nested dicts of what another library makes of the leaves, without copies.

    Statics are in their places as they are.

    Args:
        td: the tree; its leaves take no part in autograd.
        convert: the ``from_dlpack`` of the other library (``jax.dlpack.from_dlpack``,
            ``numpy.from_dlpack``), called with each leaf. By default, capsules are
            made, each of which can be taken once.

    Raises:
        OperandError: a leaf takes part in autograd.
        Exception: what `convert` raises, with a note that names the leaf.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"n": {"x": torch.ones(2)}}).to_dlpack(np.from_dlpack)
        {'n': {'x': array([1., 1.], dtype=float32)}}
    """
    refuse_lazy(td, "to_dlpack")
    for path, leaf in zip(td._schema.paths(), td._leaves, strict=True):
        if leaf.requires_grad:
            raise OperandError(
                "a leaf that takes part in autograd can not be given away",
                path=path,
                fix="td.detach() cuts the tree from autograd",
            )
    bare = without_rows(td)
    given = with_leaves(bare, map_leaves(bare._schema, bare._leaves, convert))
    return to_dict(put_rows(td, given))


def from_dlpack(
    entries: Mapping[str, Any],
    **options: Unpack[FromOptions],
) -> Any:
    """Return the tree of nested mappings of another library's arrays, without copies.

    Args:
        entries: names to objects with ``__dlpack__`` or DLPack capsules; anything else
            is what it is in the constructor.
        options: batch size, device and names; see `tdfunc.typing.FromOptions`.

    Raises:
        InvalidLeafError: an array can not be taken, or `entries` is no mapping.
        TdfuncError: what `from_dict` raises.

    Examples:
        >>> import numpy as np
        >>> import tdfunc
        >>> tdfunc.from_dlpack({"n": {"x": np.ones(2)}})["n", "x"]
        tensor([1., 1.], dtype=torch.float64)
    """
    taken: Any = entries
    if isinstance(entries, Mapping):
        taken = unfolded(entries, _mapping, _taken)
    return from_dict(taken, **options)


def _mapping(value: Any) -> dict[Any, Any] | None:
    return dict(value) if isinstance(value, Mapping) else None


def _taken(value: Any, path: Path) -> Any:
    is_capsule = type(value).__name__ == "PyCapsule"
    if isinstance(value, torch.Tensor) or not (
        is_capsule or hasattr(value, "__dlpack__")
    ):
        return value
    try:
        return torch.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidLeafError(
            "the array can not be taken",
            path=path,
            expected="an array that DLPack can hand over, once",
            got=f"{type(value).__name__} ({error})",
            fix="pass a copy of the array",
        ) from error
