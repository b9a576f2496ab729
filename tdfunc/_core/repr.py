"""Printing: one compact line, a full tree, and HTML for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, cast

import torch

from tdfunc._core.leaf import LeafLike
from tdfunc._core.schema import (
    ROWS,
    STATIC,
    UNBATCHED,
    Schema,
    Step,
    is_lazy,
    is_tensor,
    kind_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tdfunc._core.node import Node

__all__ = ["compact", "full", "html"]

_MOST_FIELDS = 40
_MOST_DEPTH = 8
_MOST_CHARS = 40
_MOST_ROWS = 8
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_SHORT_DTYPES = {
    torch.bool: "bool",
    torch.bfloat16: "bf16",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype in short form: ``f32``, ``i64``, ``u8``, ``bf16``, ``bool``."""
    short = _SHORT_DTYPES.get(dtype)
    if short is not None:
        return short
    name = str(dtype).removeprefix("torch.")
    for word, letter in (("uint", "u"), ("int", "i"), ("float", "f")):
        rest = name.removeprefix(word)
        if rest != name:
            return letter + rest
    return name


def compact(node: Node) -> str:
    """Return the tree on one line: batch size, and fields in sorted order.

    The shape shown is that of one row: without the batch dims.
    """
    size = list(node.batch_size)
    fields = _fields(node)
    return f"{type(node).__name__}(batch_size={size}, fields={fields})"


def full(node: Node) -> str:
    """Return the tree with one line for every entry: dtype, shape, bytes, device.

    Shapes are those of the leaves, batch dims included.
    """
    rows = list(_rows(node))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines = [_title(node)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, *row[4:]]).rstrip())
    return "\n".join(lines)


def html(node: Node) -> str:
    """Return the full form as an HTML table; all text is escaped."""
    head = "".join(
        f"<th style='text-align:left'>{name}</th>"
        for name in ("entry", "dtype", "shape", "bytes", "device")
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td style='text-align:left;white-space:pre'>{escape(cell)}</td>"
            for cell in row
        )
        + "</tr>"
        for row in _rows(node)
    )
    return (
        f"<details open><summary><code>{escape(_title(node))}</code></summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></details>"
    )


def _title(node: Node) -> str:
    leaves = _all_leaves(node._leaves)
    parts = [f"batch_size={list(node.batch_size)}"]
    if node.names is not None:
        parts.append(f"names={list(node.names)}")
    parts.append(f"leaves={len(leaves)}")
    parts.append(f"bytes={_bytes(_total(leaves))}")
    if node.device is not None:
        parts.append(f"device={node.device}")
    return f"{type(node).__name__}({', '.join(parts)})"


def _all_leaves(leaves: Iterable[Any]) -> list[Any]:
    """Return leaves, with those of members in place of lazy stacks."""
    found: list[Any] = []
    pending = [*leaves][::-1]
    while pending:
        leaf = pending.pop()
        if not isinstance(leaf, LeafLike):
            found.append(leaf)
        elif leaf.known_shape is not None:
            pending += [x for tree in leaf.trees for x in tree._leaves][::-1]
    return found


def _total(leaves: Iterable[Any]) -> int:
    return sum([_nbytes(x) for x in leaves if isinstance(x, torch.Tensor)])


def _nbytes(leaf: torch.Tensor) -> int:
    """Return the bytes of the elements; those of sparse leaves are not counted."""
    return leaf.nbytes if leaf.layout is torch.strided else 0


def _bytes(count: int) -> str:
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:  # noqa: PLR2004
            return f"{size:.4g} {unit}"
        size /= 1024
    raise AssertionError


def _cut(text: str) -> str:
    flat = text.replace("\n", " ")
    return flat if len(flat) <= _MOST_CHARS else flat[: _MOST_CHARS - 3] + "..."


def _static(value: Any) -> str:
    try:
        return _cut(repr(value))
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}>"


def _leaf(leaf: Any, batch: int) -> str:
    if not isinstance(leaf, torch.Tensor):
        return _static(leaf)
    return f"{dtype_name(leaf.dtype)}{list(leaf.shape[batch:])}"


def _value(node: Node, step: Step, batch: int) -> str:
    """Return an entry that is no node, with the shape behind `batch` dims."""
    kid = cast("int", step.kid)
    if kid == UNBATCHED:
        return f"unbatched {_leaf(node._statics.values[step.slo], 0)}"
    if kid == STATIC:
        return _static(node._statics.values[step.slo])
    leaf = node._leaves[step.lo]
    if kid > ROWS:
        return _leaf(leaf, batch)
    # The distinct values, since the codes can not be read everywhere.
    table = node._statics.values[step.slo]
    values = ", ".join([_static(value) for value in table.values[: _MOST_ROWS + 1]])
    shape = list(leaf.shape[batch:]) if isinstance(leaf, torch.Tensor) else ""
    return _cut(f"rows{shape or ''} of {{{values}}}")


def _fields(node: Node) -> str:
    """Return ``{a: f32[3], n: {b: i64[]}}``, cut after `_MOST_FIELDS` entries."""
    dims = len(node.batch_size)
    steps = _steps(node, sort=True)
    shown = [s for s in steps if len(s.path) <= _MOST_DEPTH][:_MOST_FIELDS]
    out: list[str] = []
    depth = 0
    opened = True  # the last thing written was an opening brace
    for step in shown:
        level = len(step.path) - 1
        if depth > level:
            out.append("}" * (depth - level))
            depth, opened = level, False
        out.append(("" if opened else ", ") + _key(step.path[-1]) + ": ")
        opened = isinstance(step.kid, Schema)
        if opened and level + 1 == _MOST_DEPTH and step.kid.keys:  # pyright: ignore[reportAttributeAccessIssue]
            out.append(_node(node, step, dims) + "{...}")
            opened = False
        elif isinstance(step.kid, Schema) and is_lazy(step.kid):
            out.append(_stack(node, step))
            opened = False
        elif opened:
            out.append(_node(node, step, dims) + "{")
            depth += 1
        else:
            out.append(_value(node, step, dims + step.surplus))
    out.append("}" * depth)
    rest = len(steps) - len(shown)
    more = f", ... {rest} more" if rest else ""
    return "{" + "".join(out) + more + "}"


def _node(node: Node, step: Step, dims: int) -> str:
    kid = cast("Schema", step.kid)
    name = "" if kid.cls is node._plain else kid.cls.__name__
    if step.surplus and kid.n:
        leaf = node._leaves[step.lo]
        name += str(list(leaf.shape[: dims + step.surplus]))
    return name


def _steps(node: Node, *, sort: bool) -> list[Step]:
    """Return the entries to print: none of what is in a lazy stack."""
    steps = node._schema.listed(True, False, sort)  # noqa: FBT003
    stacks = {path for _, path, _ in node._schema.lazies()}
    return [step for step in steps if step.path[:-1] not in stacks]


def _stack(node: Node, step: Step) -> str:
    """Return a lazy stack: its size, and how many trees lie along which dim."""
    kid = cast("Schema", step.kid)
    leaf = node._leaves[step.lo]
    shape = "" if leaf.known_shape is None else str(list(leaf.shape))
    return f"{kid.cls.__name__}{shape}({leaf!r})"


def _stack_cells(node: Node, slot: int) -> tuple[str, str, str]:
    leaf = node._leaves[slot]
    shape = leaf.known_shape
    if shape is None:
        return ("", "", repr(leaf))
    return (str(list(shape)), _bytes(_total(_all_leaves([leaf]))), repr(leaf))


def _member_rows(node: Node) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a line for every member of a lazy stack, for the first of many."""
    leaf = node._leaves[0]
    if leaf.known_shape is None:
        yield ("  ", *_stack_cells(node, 0), "")
        return
    trees = leaf.trees
    for i, tree in enumerate(trees[:_MOST_ROWS]):
        size = _bytes(_total(_all_leaves(tree._leaves)))
        shape = str(list(tree.batch_size))
        yield (f"  [{i}]", type(tree).__name__, shape, size, _fields_of(tree))
    if len(trees) > _MOST_ROWS:
        yield (f"  ... {len(trees) - _MOST_ROWS} more", "", "", "", "")


def _fields_of(tree: Any) -> str:
    return ", ".join([_key(key) for key in tree.keys(sort=True)])


def _key(key: str) -> str:
    return key if key.isidentifier() else repr(key)


def _rows(node: Node) -> Iterator[tuple[str, str, str, str, str]]:
    if is_lazy(node._schema):
        yield from _member_rows(node)
        return
    for path, kid, lo, slo, surplus in _steps(node, sort=False):
        label = "  " * len(path) + _key(path[-1])
        if isinstance(kid, Schema) and is_lazy(kid):
            yield (label, kid.cls.__name__, *_stack_cells(node, lo))
        elif isinstance(kid, Schema):
            name = "" if kid.cls is node._plain else kid.cls.__name__
            yield (label, name, "", "", "")
        elif not is_tensor(kid):
            step = Step(path, kid, lo, slo, surplus)
            kind = kind_name(kid).split()[1]
            yield (label, kind, _value(node, step, node.batch_dims + surplus), "", "")
        else:
            leaf = node._leaves[lo]
            if isinstance(leaf, torch.Tensor):
                dtype = dtype_name(leaf.dtype)
                shape = str(list(leaf.shape))
                size = str(leaf.layout).removeprefix("torch.")
                if leaf.layout is torch.strided:
                    size = _bytes(leaf.nbytes)
                yield (label, dtype, shape, size, str(leaf.device))
            else:
                yield (label, type(leaf).__name__, _static(leaf), "", "")
