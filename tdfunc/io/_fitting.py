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
        size: the batch size of the rows.
        arrays: tensors that the batch indexes, with their paths.
        rows: values for every row, with their paths.
    """

    size: tuple[int, ...]
    arrays: list[tuple[Path, Array, Array]] = field(default_factory=list)
    rows: list[tuple[Path, Rows, Rows]] = field(default_factory=list)


def fitted(whole: Level, part: Level, size: tuple[int, ...], *, fix: str) -> Fit:
    """Return what goes together of a whole tree and of some of its rows.

    There are no lazy stacks in the whole.

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
    check = _Check(len(whole.batch_size), size)
    if part.stack_dim is not None:
        raise StructureError(
            "a lazy stack is not written to a tree whose rows are alike",
            fix="td.densify()",
        )
    pending: list[tuple[Path, Level, Level]] = [((), whole, part)]
    while pending:
        pending += check.levels(*pending.pop())
    if check.lines:
        raise StructureError(
            "the tree does not have the entries of the one that it is written to",
            expected="the same keys, dtypes, shapes behind the batch, and values that "
            "rows share",
            got="; ".join(check.lines),
        )
    return check.fit


class _Check:
    """What goes together, and what does not, as far as it was looked at."""

    def __init__(self, dims: int, size: tuple[int, ...]) -> None:
        self.dims = dims
        self.size = size
        self.fit = Fit(size)
        self.lines: list[str] = []

    def levels(
        self, path: Path, mine: Level, theirs: Level
    ) -> list[tuple[Path, Level, Level]]:
        """Look at two nodes; return the nodes in both."""
        dims, size = self.dims, self.size
        if mine.batch_size[dims:] != theirs.batch_size[len(size) :]:
            want, got = [*size, *mine.batch_size[dims:]], list(theirs.batch_size)
            self.lines.append(f"{show_path(path)} has batch_size={got}, not {want}")
        below: list[tuple[Path, Level, Level]] = []
        known, entries = mine.entries, theirs.entries
        for key, entry in known.items():
            here = (*path, key)
            other = entries.get(key)
            if other is None:
                self.lines.append(f"{show_path(here)} is missing")
            elif (
                isinstance(entry, Level)
                and isinstance(other, Level)
                and other.stack_dim is None
            ):
                below.append((here, entry, other))
            else:
                self.entries(here, entry, other)
        extra = [(*path, key) for key in entries if key not in known]
        self.lines += [f"{show_path(here)} is extra" for here in extra]
        return below

    def entries(self, path: Path, mine: Entry, theirs: Entry) -> None:
        """Look at two entries that are not both nodes."""
        dims, size = self.dims, self.size
        if isinstance(mine, Array) and isinstance(theirs, Array):
            if _same_array(mine, theirs, dims, size):
                if not mine.unbatched:
                    self.fit.arrays.append((path, mine, theirs))
                return
        elif isinstance(mine, Rows) and isinstance(theirs, Rows):
            if theirs.shape == (*size, *mine.shape[dims:]):
                self.fit.rows.append((path, mine, theirs))
                return
        elif isinstance(mine, Static) and isinstance(theirs, Static):
            if not same_value(mine.value, theirs.value):
                got, known = _clipped(theirs.value), _clipped(mine.value)
                self.lines.append(f"{show_path(path)} is {got}, not {known}")
            return
        self.lines.append(_difference(path, mine, theirs, dims, size))


def _same_array(mine: Array, theirs: Array, dims: int, size: tuple[int, ...]) -> bool:
    if mine.dtype != theirs.dtype or mine.unbatched != theirs.unbatched:
        return False
    if mine.unbatched:
        return same_value(mine.tensor, theirs.tensor)
    return theirs.shape == (*size, *mine.shape[dims:])


def _difference(
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
        kind = "unbatched " if entry.unbatched else ""
        return f"{kind}{name} {list(entry.shape)}"
    if isinstance(entry, Rows):
        return f"values of rows {list(entry.shape)}"
    return "a jagged tensor" if isinstance(entry, Jagged) else "one static value"


def _clipped(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 40
