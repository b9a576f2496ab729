"""All leaves in one tensor, and back: a matrix of features, or one flat vector."""

from __future__ import annotations

from functools import partial, reduce
from itertools import accumulate
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from tdfunc._core.mismatch import differences
from tdfunc._core.node import make
from tdfunc._core.statics import NO_STATICS
from tdfunc._core.tree import put_rows, refuse_lazy, without_rows
from tdfunc._ops.shape import as_dim, by_shape
from tdfunc.errors import OperandError, ShapeError, StructureError, show_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc._core.node import Node, NodeT
    from tdfunc._core.schema import Schema
    from tdfunc._core.statics import Statics

__all__ = ["PackLayout", "pack", "ravel"]


class PackLayout:
    """Which columns of a packed tensor are which leaf; made by `pack`.

    Holds the entries and their feature shapes, not the batch size: trees that differ
    in that only, or in the order of their keys, have equal layouts. Immutable and
    hashable.

    Attributes:
        keys: what reads each leaf, in the order of the columns: a key, or a path.
        shapes: the shape of each leaf behind the batch dims of the tree.
        offsets: the first column of each leaf.
        numel: the number of columns.
        dim: the packed dim, a negative int.
        cls: the class of the tree.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"p": torch.zeros(5), "v": torch.ones(5, 3)}, 5)
        >>> flat, layout = td.pack()
        >>> layout
        PackLayout(p: [0:1] of [], v: [1:4] of [3], dim=-1)
        >>> layout.unpack(flat[:2])["v"].shape
        torch.Size([2, 3])
    """

    __slots__ = ("_dim", "_schema", "_shapes")

    _schema: Schema
    _shapes: tuple[tuple[int, ...], ...]
    _dim: int

    @property
    def keys(self) -> tuple[Any, ...]:
        """What reads each leaf, in the order of the columns: a key, or a path."""
        return self._schema.leaf_names()

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shape of each leaf behind the batch dims of the tree."""
        return tuple([torch.Size(shape) for shape in self._shapes])

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of columns of each leaf."""
        return tuple([prod(shape) for shape in self._shapes])

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first column of each leaf."""
        return tuple(accumulate(self.widths, initial=0))[:-1]

    @property
    def numel(self) -> int:
        """The number of columns."""
        return sum(self.widths)

    @property
    def dim(self) -> int:
        """The packed dim, counted from the end, so that batch dims may be added."""
        return self._dim

    @property
    def cls(self) -> type[Any]:
        """The class of the tree."""
        return self._schema.cls

    def unpack(self, flat: torch.Tensor) -> Any:
        """Return the tree whose packed tensor is `flat`.

        Args:
            flat: a tensor with `numel` columns at `dim`. Its other dims are the batch
                dims of the result, whatever those of the packed tree were.

        Returns:
            A tree of class `cls` without dim names; its leaves are views of `flat`.

        Raises:
            OperandError: `flat` is no tensor.
            ShapeError: `flat` does not have `numel` columns at `dim`.

        Examples:
            >>> import torch
            >>> from tdfunc import TensorDict
            >>> td = TensorDict({"a": torch.zeros(4, 2), "b": torch.zeros(4)}, 4)
            >>> flat, layout = td.pack()
            >>> layout.unpack(flat[None]).batch_size
            torch.Size([1, 4])
        """
        if not isinstance(flat, torch.Tensor):
            raise OperandError(
                "only a tensor can be unpacked",
                expected="a tensor",
                got=type(flat).__name__,
            )
        widths, dim = self.widths, self._dim
        if flat.dim() < -dim or flat.shape[dim] != sum(widths):
            raise ShapeError(
                "the tensor does not have the columns of the layout",
                expected=f"size {sum(widths)} at dim {dim}",
                got=f"shape {list(flat.shape)}",
                fix="flat, layout = td.pack(); layout.unpack(flat)",
            )
        columns = flat.movedim(dim, -1)
        size = columns.shape[:-1]
        leaves = _cut(columns, widths, self._shapes)
        return make(self._schema, leaves, NO_STATICS, size, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackLayout):
            return NotImplemented
        return (
            self._dim == other._dim
            and self._shapes == other._shapes
            and self._schema.matches(other._schema)
        )

    def __hash__(self) -> int:
        return hash((self._dim, self._shapes, self._schema.canon()))

    def __repr__(self) -> str:
        rows = zip(self.keys, self.offsets, self.widths, self._shapes, strict=True)
        columns = "".join(
            [
                f"{key if isinstance(key, str) else '.'.join(key)}: "
                f"[{offset}:{offset + width}] of {list(shape)}, "
                for key, offset, width, shape in rows
            ]
        )
        return f"PackLayout({columns}dim={self._dim})"

    def __copy__(self) -> PackLayout:
        return self

    def __deepcopy__(self, memo: object) -> PackLayout:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _layout, (self._schema, self._shapes, self._dim)


def _layout(
    schema: Schema, shapes: tuple[tuple[int, ...], ...], dim: int
) -> PackLayout:
    layout = object.__new__(PackLayout)
    layout._schema = schema
    layout._shapes = shapes
    layout._dim = dim
    return layout


def pack(
    td: Node, dim: int = -1, *, layout: PackLayout | None = None
) -> tuple[torch.Tensor, PackLayout]:
    """Return all leaves as the columns of one tensor, and which column is which.

    Every leaf is flattened behind the batch dims; the leaves follow each other in the
    order of their sorted paths. ``layout.unpack(flat)`` is the tree again.

    Args:
        td: the tree; all leaves have one dtype and one device, and there are no
            statics.
        dim: where the packed dim will be, from -(n+1) to n for n batch dims.
        layout: the layout to follow; the tree must have its entries, and `dim` must
            be its dim. None makes a new one.

    Returns:
        A contiguous tensor of shape ``[*batch, columns]`` (a copy), and the layout.

    Raises:
        OperandError: the leaves have several dtypes or devices, or there are statics.
        ShapeError: there is no such `dim`, it is not that of `layout`, or a leaf has
            another shape than in `layout`.
        StructureError: the tree does not have the entries of `layout`.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"p": torch.zeros(5), "v": torch.ones(5, 3, 3)}, 5)
        >>> flat, layout = td.pack()
        >>> flat.shape, layout.keys, layout.offsets
        (torch.Size([5, 10]), ('p', 'v'), (0, 1))
    """
    refuse_lazy(td, "pack")
    size = td.batch_size
    schema = td._schema
    at = as_dim(td, dim, extra=1)
    _check_one_kind(td)
    nb = len(size)
    shapes = tuple(by_shape(td._leaves, lambda shape: tuple(shape[nb:])))
    if layout is None:
        layout = _layout(schema, shapes, at - nb - 1)
    else:
        _check_layout(td, shapes, at - nb - 1, layout)
    if not schema.n:
        return torch.zeros((*size[:at], 0, *size[at:])), layout

    columns = [
        x if len(s) == 1 else x.flatten(nb) if s else x.unsqueeze(-1)
        for x, s in zip(td._leaves, shapes, strict=True)
    ]
    if at != nb:
        columns = [x.movedim(-1, at) for x in columns]
    flat = torch.cat(columns, at)
    # Of four and five dims that were moved, `cat` makes a channels-last tensor.
    return flat.contiguous(), layout


def _check_one_kind(td: Node) -> None:
    schema = td._schema
    if schema.m:
        paths = schema.static_paths()
        raise OperandError(
            "values that are not tensors can not be packed",
            path=paths[0],
            expected="tensors only",
            got=f"such values at {', '.join([show_path(path) for path in paths])}",
            fix=f"td.exclude({', '.join([repr(path) for path in paths])}).pack()",
        )
    _check_same(td, "dtype", "td.to(torch.float32) gives all leaves one dtype")
    _check_same(td, "device", "td.to('cpu') moves all leaves to one device")


def _check_same(td: Node, name: str, fix: str) -> None:
    """Raise unless all leaves have the same dtype, or device."""
    values = [*map(attrgetter(name), td._leaves)]
    first = values[0] if values else None
    if values.count(first) == len(values):
        return
    for at, value in enumerate(values):
        if value != first:
            paths = td._schema.paths()
            raise OperandError(
                f"leaves of several {name}s can not be one tensor",
                path=paths[at],
                expected=f"{first}, the {name} of {show_path(paths[0])}",
                got=value,
                fix=fix,
            )


def _check_layout(
    td: Node, shapes: tuple[tuple[int, ...], ...], dim: int, layout: PackLayout
) -> None:
    if not td._schema.matches(layout._schema):
        lines = differences(layout._schema, td._schema)
        raise StructureError(
            "the tree does not have the entries of the layout",
            expected=f"the entries {list(layout.keys)}",
            got=", ".join(lines),
            fix="td.pack() makes a layout for this tree",
        )
    if dim != layout.dim:
        raise ShapeError(
            "the layout packs another dim",
            expected=f"dim={layout.dim}",
            got=f"dim={dim}",
            fix=f"td.pack({layout.dim}, layout=layout)",
        )
    for at, (shape, known) in enumerate(zip(shapes, layout._shapes, strict=True)):
        if shape != known:
            raise ShapeError(
                "the leaf has another shape than in the layout",
                path=td._schema.paths()[at],
                expected=f"{list(known)} behind the batch dims",
                got=list(shape),
                fix="td.pack() makes a layout for this tree",
            )


def _cut(
    columns: torch.Tensor,
    widths: tuple[int, ...],
    shapes: tuple[tuple[int, ...], ...],
) -> tuple[torch.Tensor, ...]:
    """Return the columns of each leaf in its shape, as views."""
    size = columns.shape[:-1]
    parts = columns.split(list(widths), -1) if widths else ()
    return tuple(
        [part.reshape((*size, *s)) for part, s in zip(parts, shapes, strict=True)]
    )


def ravel(td: NodeT) -> tuple[torch.Tensor, Callable[[torch.Tensor], NodeT]]:
    """Return all elements as one vector, and the function that makes the tree of it.

    ``unravel(flat)`` is the tree again, with statics, rows of values, names and the
    dtype of each leaf;
    both are differentiable. Optimizers, solvers and hessians that want a vector are
    called with ``lambda flat: loss(unravel(flat))``.

    Args:
        td: the tree; its leaves may have different ranks and dtypes.

    Returns:
        A vector (a copy) of the dtype to which the leaves promote: an integer is
        rounded where that is a floating dtype without room for it. And `unravel`, whose
        leaves are views of its vector where no cast is needed.

    Raises:
        OperandError: the leaves are on several devices; or, in `unravel`, its argument
            is no tensor.
        ShapeError: in `unravel`: its argument is no vector of that length.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> td = tdfunc.TensorDict({"w": torch.zeros(2, 3), "n": torch.tensor(7)})
        >>> flat, unravel = tdfunc.ravel(td)
        >>> flat.tolist(), unravel(flat)["n"]
        ([7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], tensor(7))
    """
    refuse_lazy(td, "ravel")
    size = td.batch_size
    schema = td._schema
    _check_same(td, "device", "td.to('cpu') moves all leaves to one device")
    if schema.rows:
        flat, bare = ravel(without_rows(td))
        return flat, partial(_unravel_around, td, bare)
    dtypes = [leaf.dtype for leaf in td._leaves]
    kinds = tuple(zip(by_shape(td._leaves, tuple), dtypes, strict=True))
    unravel: Any = partial(_unravel, schema, kinds, td._statics, tuple(size), td._names)
    if not schema.n:
        return torch.zeros(0), unravel
    unique = list(dict.fromkeys(dtypes))
    common = reduce(torch.promote_types, unique)
    leaves = td._leaves
    if len(unique) > 1:
        leaves = tuple([leaf.to(common) for leaf in leaves])
    return torch.cat([leaf.reshape(-1) for leaf in leaves]), unravel


def _unravel_around(td: Any, bare: Callable[[torch.Tensor], Any], flat: Any) -> Any:
    return put_rows(td, bare(flat))


def _unravel(
    schema: Schema,
    kinds: tuple[tuple[tuple[int, ...], torch.dtype], ...],
    statics: Statics,
    size: tuple[int, ...],
    names: tuple[str | None, ...] | None,
    flat: torch.Tensor,
) -> Any:
    if not isinstance(flat, torch.Tensor):
        raise OperandError(
            "only a tensor can be unraveled",
            expected="a tensor",
            got=type(flat).__name__,
        )
    shapes = tuple([shape for shape, _ in kinds])
    widths = tuple([prod(shape) for shape in shapes])
    if flat.dim() != 1 or flat.shape[0] != sum(widths):
        raise ShapeError(
            "the tensor is not the vector of such a tree",
            expected=f"shape [{sum(widths)}]",
            got=f"shape {list(flat.shape)}",
            fix="torch.vmap(unravel)(rows) makes a tree of every row of a matrix",
        )
    parts = _cut(flat, widths, shapes)
    leaves = tuple([_cast(x, d) for x, (_, d) in zip(parts, kinds, strict=True)])
    return make(schema, leaves, statics, torch.Size(size), names)


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if x.is_complex() and not dtype.is_complex:
        x = x.real  # a cast warns that it drops what was 0 here
    return x.to(dtype)
