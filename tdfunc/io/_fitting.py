"""Whether some rows fit a tree in files that they are to be part of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tdfunc._core.statics import same_value
from tdfunc.errors import BatchSizeError, StructureError, show_path
from tdfunc.io._layout import Array, Jagged, Level, Rows, Static
from tdfunc.io._values import dtype_name

if TYPE_CHECKING:
    from tdfunc.io._layout import Entry
    from tdfunc.typing import Path

__all__ = ["Fit", "fitted", "kind_of"]


@dataclass(slots=True)
class Fit:
    """What goes together: an entry of the whole tree, and the same one of some rows.

    Attributes:
        arrays: tensors that the batch indexes.
        rows: values for every row, with their paths.
    """

    arrays: list[tuple[Array, Array]] = field(default_factory=list)
    rows: list[tuple[Path, Rows, Rows]] = field(default_factory=list)


def fitted(whole: Level, part: Level, size: tuple[int, ...], *, fix: str) -> Fit:
    """Return what goes together of a whole tree and of some of its rows.

    Args:
        whole: the tree; the tensors that the batch does not index are read.
        part: the rows.
        size: the batch size that the rows should have, for that of the whole.
        fix: what to do about a wrong batch size.

    Raises:
        BatchSizeError: the rows have another batch size.
        StructureError: entries are missing, extra or different; all are listed.
    """
    if part.batch_size != size:
        raise BatchSizeError(
            "the tree does not have the batch size of the rows that it is written to",
            expected=f"batch_size={list(size)}",
            got=f"batch_size={list(part.batch_size)}",
            fix=fix,
        )
    dims = len(whole.batch_size)
    fit = Fit()
    lines: list[str] = []
    pending: list[tuple[Path, Level, Level]] = [((), whole, part)]
    while pending:
        path, mine, theirs = pending.pop()
        if mine.batch_size[dims:] != theirs.batch_size[len(size) :]:
            size_of = [*size, *mine.batch_size[dims:]]
            got = list(theirs.batch_size)
            lines.append(f"{show_path(path)} has batch_size={got}, not {size_of}")
        entries = theirs.entries
        for key, entry in mine.entries.items():
            here = (*path, key)
            other = entries.get(key)
            if other is None:
                lines.append(f"{show_path(here)} is missing")
            elif isinstance(entry, Level) and isinstance(other, Level):
                if entry.stack_dim == other.stack_dim:
                    pending.append((here, entry, other))
                else:
                    lines.append(_differs(here, entry, other, dims, size))
            elif isinstance(entry, Array) and isinstance(other, Array):
                if not _same_array(entry, other, dims, size):
                    lines.append(_differs(here, entry, other, dims, size))
                elif not entry.unbatched:
                    fit.arrays.append((entry, other))
            elif isinstance(entry, Rows) and isinstance(other, Rows):
                if other.shape != (*size, *entry.shape[dims:]):
                    lines.append(_differs(here, entry, other, dims, size))
                fit.rows.append((here, entry, other))
            elif not (isinstance(entry, Static) and isinstance(other, Static)):
                lines.append(_differs(here, entry, other, dims, size))
            elif not same_value(entry.value, other.value):
                got, known = _clipped(other.value), _clipped(entry.value)
                lines.append(f"{show_path(here)} is {got}, not {known}")
        lines += [
            f"{show_path((*path, key))} is extra"
            for key in entries
            if key not in mine.entries
        ]
    if lines:
        raise StructureError(
            "the tree does not have the entries of the one that it is written to",
            expected="the same keys, dtypes, shapes behind the batch, and values that "
            "rows share",
            got="; ".join(lines),
        )
    return fit


def _same_array(
    mine: Array, theirs: Array, dims: int, size: tuple[int, ...]
) -> bool:
    if mine.dtype != theirs.dtype or mine.unbatched != theirs.unbatched:
        return False
    if mine.unbatched:
        return same_value(mine.tensor, theirs.tensor)
    return theirs.shape == (*size, *mine.shape[dims:])


def _differs(
    path: Path, mine: Entry, theirs: Entry, dims: int, size: tuple[int, ...]
) -> str:
    if isinstance(mine, (Array, Rows)) and not getattr(mine, "unbatched", False):
        mine = replace(mine, shape=(*size, *mine.shape[dims:]))
    same = kind_of(mine) == kind_of(theirs)
    got = f"{kind_of(theirs)} of other values" if same else kind_of(theirs)
    return f"{show_path(path)} is {got}, not {kind_of(mine)}"


def kind_of(entry: Entry) -> str:
    """Return what an entry is, for people."""
    if isinstance(entry, Level):
        return "a node" if entry.stack_dim is None else "a lazy stack"
    if isinstance(entry, Array):
        name = dtype_name(entry.dtype).removeprefix("torch.")
        kind = "an unbatched " if entry.unbatched else ""
        return f"{kind}{name} {list(entry.shape)}"
    if isinstance(entry, Rows):
        return f"values of rows {list(entry.shape)}"
    return "a jagged tensor" if isinstance(entry, Jagged) else "one static value"


def _clipped(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 40
