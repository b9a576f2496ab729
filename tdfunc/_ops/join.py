"""Join trees along a new or an existing batch dim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from tdfunc._core.build import Part
from tdfunc._core.mismatch import check_same_entries
from tdfunc._core.node import Node, make, size_at
from tdfunc._core.rows import encode, merged, recoded, trimmed
from tdfunc._core.schema import ROWS, UNBATCHED, is_kept
from tdfunc._core.statics import Statics, same_value
from tdfunc._core.tree import map_leaves
from tdfunc._ops.entries import graft
from tdfunc._ops.shape import as_dim
from tdfunc.errors import OperandError, ShapeError, StructureError, show_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tdfunc.typing import Path

__all__ = ["cat", "stack"]

T = TypeVar("T", bound=Node)


def stack(tds: Iterable[T], dim: int = 0) -> T:
    """Return trees of equal structure stacked along a new batch dim.

    A static that is the same in all trees stays one value, one that differs becomes
    one value per row.

    Args:
        tds: trees with the same entries, batch size and feature shapes.
        dim: where the new batch dim will be, from -(n+1) to n for n batch dims.

    Returns:
        A tree of the class of the first, with copies. Its dims have the names on
        which all agree; dtypes promote as in `torch.stack`.

    Raises:
        OperandError: `tds` is empty or holds something else than trees.
        ShapeError: batch sizes or leaf shapes differ, or there is no such `dim`.
        StructureError: entries or unbatched tensors differ; all differences are
            listed.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> rows = [tdfunc.TensorDict({"x": torch.ones(3)}) for _ in range(4)]
        >>> tdfunc.stack(rows)["x"].shape
        torch.Size([4, 3])
    """
    nodes = as_nodes(tds)
    first = nodes[0]
    size = first.batch_size
    for i, node in enumerate(nodes):
        if node.batch_size != size:
            raise ShapeError(
                f"tree {i} has another batch size",
                expected=list(size),
                got=list(node.batch_size),
                fix="tdfunc.cat joins along a dim that is there",
            )
    at = as_dim(first, dim, extra=1)
    nodes = aligned(nodes)
    first = nodes[0]
    leaves = _joined(nodes, torch.stack, at, None)
    names = shared_names(nodes)
    if names is not None:
        names = (*names[:at], None, *names[at:])
    new = torch.Size((*size[:at], len(nodes), *size[at:]))
    return make(first._schema, leaves, first._statics, new, names)


def cat(tds: Iterable[T], dim: int | str = 0) -> T:
    """Return trees of equal structure joined along a batch dim that they have.

    A static that is the same in all trees stays one value, one that differs becomes
    one value per row.

    Args:
        tds: trees with the same entries and feature shapes, whose batch sizes differ
            at `dim` only.
        dim: the batch dim.

    Returns:
        A tree of the class of the first, with copies.

    Raises:
        OperandError: `tds` is empty or holds something else than trees.
        ShapeError: batch sizes differ elsewhere, leaf shapes differ, or there is no
            such `dim`.
        StructureError: entries or unbatched tensors differ; all differences are
            listed.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> a = tdfunc.TensorDict({"x": torch.ones(2)}, 2)
        >>> tdfunc.cat([a, a, a]).batch_size
        torch.Size([6])
    """
    nodes = as_nodes(tds)
    first = nodes[0]
    at = as_dim(first, dim)
    size = first.batch_size
    total = 0
    for i, node in enumerate(nodes):
        own = node.batch_size
        if own != size and (
            len(own) != len(size)
            or own[:at] != size[:at]
            or own[at + 1 :] != size[at + 1 :]
        ):
            raise ShapeError(
                f"tree {i} has another batch size",
                expected=f"{list(size)}, except at dim {at}",
                got=list(own),
            )
        total += own[at]
    nodes = aligned(nodes)
    first = nodes[0]
    leaves = _joined(nodes, torch.cat, at, at)
    new = torch.Size((*size[:at], total, *size[at + 1 :]))
    return make(first._schema, leaves, first._statics, new, shared_names(nodes))


def as_nodes(tds: Any) -> list[Any]:
    """Return the trees to join as a list.

    Raises:
        OperandError: there are none, or something else than trees.
    """
    if isinstance(tds, Node):
        raise OperandError(
            "several trees are wanted",
            expected="a list or tuple of trees",
            got=f"one {type(tds).__name__}",
            fix="pass [td, ...]",
        )
    nodes = list(tds)
    if not nodes:
        raise OperandError("there is nothing to join", expected="at least one tree")
    for i, node in enumerate(nodes):
        if not isinstance(node, Node):
            raise OperandError(
                f"argument {i} is no tree", expected="a tree", got=type(node).__name__
            )
    return nodes


def aligned(nodes: list[Any]) -> list[Any]:
    """Return trees as they can be joined: statics that differ have become rows.

    Entries with one value per row get one table for all trees; a static that is not
    the same in all of them becomes the value of every row of its tree.
    """
    first = nodes[0]
    if all(
        [n._schema is first._schema and n._statics is first._statics for n in nodes]
    ):
        return nodes
    paths: dict[Path, None] = {}
    for node in nodes:
        paths |= dict.fromkeys(node._schema.static_paths())
    for path in paths:
        found = [node._schema.find(path) for node in nodes]
        if any([where is None or not is_kept(where.kid) for where in found]):
            continue  # not in all: told with all differences of the entries
        values = [n._statics.values[f.slo] for n, f in zip(nodes, found, strict=True)]
        kinds = {where.kid for where in found}
        alike = _same_object if found[0].kid <= ROWS else same_value
        if len(kinds) == 1 and all([alike(values[0], v) for v in values[1:]]):
            continue
        if UNBATCHED not in kinds:
            nodes = _as_rows(nodes, path, found, values)
    return nodes


def check_unbatched(first: Any, other: Any, above: Path = ()) -> None:
    """Raise if two trees, of which one result is made, have other unbatched tensors.

    They are what is at the path `above`.

    Raises:
        StructureError: naming the first that differs.
    """
    if first._statics is other._statics:
        return
    paths = first._schema.static_paths()
    for at in first._schema.unbatched():
        found = other._schema.find(paths[at])
        if found is None or found.kid != UNBATCHED:
            continue  # told with all differences of the entries
        mine, theirs = first._statics.values[at], other._statics.values[found.slo]
        if not same_value(mine, theirs):
            raise StructureError(
                "the trees have other unbatched tensors",
                path=(*above, *paths[at]),
                expected="equal unbatched tensors",
                got=f"{theirs!r} instead of {mine!r}",
                fix="other.with_statics(td) aligns them",
            )


def _same_object(one: object, two: object) -> bool:
    return one is two


def _as_rows(
    nodes: list[Any], path: Path, found: list[Any], values: list[Any]
) -> list[Any]:
    """Return the trees with rows of one table at `path`."""
    pairs: list[tuple[Any, Any]] = [
        trimmed(node._leaves[where.lo], value)
        if where.kid <= ROWS
        else encode([value], ())
        for node, where, value in zip(nodes, found, values, strict=True)
    ]
    table = merged([own for _, own in pairs])
    out: list[Any] = []
    for node, where, (codes, own), value in zip(
        nodes, found, pairs, values, strict=True
    ):
        kid = where.kid
        if kid <= ROWS:
            codes = recoded(codes, own, table)  # noqa: PLW2901
        else:
            kid = ROWS
            code = table.code_of(value)
            device = node.device
            codes = torch.full(size_at(node, path[:-1]), code, device=device)  # noqa: PLW2901
        part = Part(kid, 0, (codes,), Statics((table,)))
        out.append(graft(node, path, part))
    return out


def _joined(
    nodes: list[Any], join: Callable[..., Any], at: int, dim: int | None
) -> tuple[Any, ...]:
    """Return the leaves of all trees joined; `dim` may differ in size.

    Shapes are looked at only when torch refuses them: it checks them anyway.
    """
    schema, statics = nodes[0]._schema, nodes[0]._statics
    for node in nodes:
        if node._schema is not schema or node._statics is not statics:
            _check_like(nodes, dim)
            break
    rows = list(zip(*[node._leaves for node in nodes], strict=True))
    try:
        return map_leaves(schema, rows, join, at)
    except RuntimeError:
        for i, node in enumerate(nodes):
            if not _fits(nodes[0], node, dim):
                raise _shape_error(nodes, i, dim) from None
        raise


def _check_like(nodes: list[Any], dim: int | None) -> None:
    """Raise unless all trees have the same entries, feature ranks and statics."""
    schema, statics = nodes[0]._schema, nodes[0]._statics
    if any([not schema.matches(node._schema) for node in nodes]):
        check_same_entries(
            nodes,
            "the trees do not have the same entries",
            fix="select the entries that they share",
        )
    for i, node in enumerate(nodes):
        if node._statics is not statics and node._statics != statics:
            raise StructureError(
                f"tree {i} has other unbatched tensors",
                expected="equal unbatched tensors",
                got=_static_differences(nodes[0], node),
                fix="td.with_statics(other) aligns them",
            )
    kinds = schema.leaf_kids()
    for i, node in enumerate(nodes):
        if node._schema is not schema and node._schema.leaf_kids() != kinds:
            raise _shape_error(nodes, i, dim)


def _fits(first: Any, node: Any, dim: int | None) -> bool:
    pairs = zip(first._leaves, node._leaves, strict=True)
    return all([_but(x.shape, dim) == _but(y.shape, dim) for x, y in pairs])


def _but(shape: torch.Size, dim: int | None) -> tuple[int, ...]:
    return tuple([n for i, n in enumerate(shape) if i != dim])


def _shape_error(nodes: list[Any], i: int, dim: int | None) -> ShapeError:
    first, node = nodes[0], nodes[i]
    rows = zip(first._schema.paths(), first._leaves, node._leaves, strict=True)
    lines = [
        f"{show_path(path)} {list(y.shape)} instead of {list(x.shape)}"
        for path, x, y in rows
        if _but(x.shape, dim) != _but(y.shape, dim)
    ]
    return ShapeError(
        f"tree {i} has leaves of other shapes",
        expected="equal shapes" + ("" if dim is None else f", except at dim {dim}"),
        got=", ".join(lines) or "nested nodes with other batch sizes",
    )


def _static_differences(first: Any, node: Any) -> str:
    paths = first._schema.static_paths()
    rows = zip(paths, first._statics.values, node._statics.values, strict=True)
    return ", ".join(
        f"{show_path(path)} {y!r} instead of {x!r}"
        for path, x, y in rows
        if Statics((x,)) != Statics((y,))
    )


def shared_names(nodes: list[Any]) -> tuple[str | None, ...] | None:
    """Return the dim names on which all trees agree."""
    if all([node._names is None for node in nodes]):
        return None
    columns = [node.names or (None,) * node.batch_dims for node in nodes]
    rows = zip(*columns, strict=True)
    shared = tuple([row[0] if len(set(row)) == 1 else None for row in rows])
    return shared if any([n is not None for n in shared]) else None
