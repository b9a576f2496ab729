"""What is in a file, as text: the tree without the data of its tensors."""

from __future__ import annotations

from reprlib import Repr
from typing import TYPE_CHECKING, Any

from tdfunc.errors import OptionError, show_path
from tdfunc.io._files import FORMATS, as_file, detect, steady
from tdfunc.io._layout import Array, Jagged, Level, Rows, Static, iter_arrays
from tdfunc.io._options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path as FilePath

    from tdfunc.typing import FileName, Path

__all__ = ["printable", "show"]

_MOST_CHARS = 40
_MOST_VALUES = 3
_INDENT = "  "
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024

# Values come from a file, which may be anyone's: deep, long, or both.
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _MOST_CHARS
_SHORT.maxlevel = 3


def show(path: FileName, *, depth: int | None = None) -> str:
    """Return the tree in a file or directory as text, reading no data of tensors.

    One line for every entry: key, dtype or kind, shape, bytes; batch sizes and names
    of nodes, the classes of which records were made, values shortened. Nothing is
    unpickled, and characters that are not printable are escaped. ``python -m tdfunc
    show PATH`` prints this.

    Args:
        path: the file or directory.
        depth: how many levels to show, the tree itself being the first; None for all.

    Raises:
        MissingFileError: there is no such file.
        FileFormatError: it is of no format that is known, or broken.
        OptionError: `depth` is less than 1.
        OSError: the system refuses.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from tdfunc.io import show
        >>> from tempfile import TemporaryDirectory
        >>> td = TensorDict({"x": torch.ones(3, 2), "n": {"name": "a"}}, 3)
        >>> with TemporaryDirectory() as folder:
        ...     td.save(f"{folder}/td.tdz")
        ...     print(show(f"{folder}/td.tdz"))
        td.tdz  archive, 1 tensor of 24 B
        tree      node                   batch_size=[3]
          x       float32  [3, 2]  24 B
          n       node                   batch_size=[3]
            name  static                 'a'
    """
    if depth is not None and (not isinstance(depth, int) or depth < 1):
        raise OptionError("depth counts levels", expected="at least 1", got=repr(depth))
    file = as_file(path)

    def read() -> tuple[str, Level]:
        format = detect(file)
        module, options = FORMATS[format].module, ReadOptions(allow_pickle=None)
        with module.open_source(file, options) as source:
            return format, source.outline()

    format, level = steady(file, read)
    rows = _rows(level, depth)
    widths = [min(_MOST_CHARS, max([len(row[at]) for row in rows])) for at in range(4)]
    arrays = [array for _, array in iter_arrays(level)]
    count = f"{len(arrays)} tensor{'s' * (len(arrays) != 1)}"
    lines = [f"{printable(_name(file))}  {format}, {count} of {_total(arrays)}"]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(_INDENT.join([*cells, *row[4:]]).rstrip())
    return "\n".join(lines)


def printable(text: str) -> str:
    """Return a text in one line, with escapes for what is not printable.

    What a terminal would take for a command is not printable.
    """
    if text.isprintable():
        return text
    return "".join(
        [c if c.isprintable() else c.encode("unicode_escape").decode() for c in text]
    )


def _name(file: FilePath) -> str:
    return file.name or str(file)


_Row = tuple[str, str, str, str, str]


def _rows(level: Level, depth: int | None) -> list[_Row]:
    """Return a line for every entry: key, kind, shape, bytes, note."""
    rows: list[_Row] = []
    first: dict[int, Path] = {}
    pending: list[tuple[Path, str, Any]] = [((), "tree", level)]
    while pending:
        path, name, entry = pending.pop()
        label = _INDENT * len(path) + name
        if not isinstance(entry, Level):
            rows.append((label, *_cells(entry, path, first)))
            continue
        is_lazy = entry.stack_dim is not None
        note = _about(entry)
        if depth is not None and len(path) >= depth - 1 and entry.entries:
            inside = [array for _, array in iter_arrays(entry)]
            count = len(entry.entries)
            what = ("member", "members") if is_lazy else ("entry", "entries")
            note += f" ... {count} {what[count > 1]}, {_total(inside)}"
        else:
            for key, below in reversed(entry.entries.items()):
                shown = f"[{key}]" if is_lazy else _key(key)
                pending.append(((*path, key), shown, below))
        rows.append((label, "lazy stack" if is_lazy else "node", "", "", note))
    return rows


def _about(level: Level) -> str:
    parts = [f"batch_size={list(level.batch_size)}"]
    if level.names is not None:
        parts.append(f"names={list(level.names)}")
    if level.stack_dim is not None:
        parts.append(f"stack_dim={level.stack_dim}")
    if level.record is not None:
        parts.append(f"record={level.record}")
    return printable(" ".join(parts))


def _cells(entry: Any, path: Path, first: dict[int, Path]) -> tuple[str, str, str, str]:
    """Return kind, shape, bytes and note of a value."""
    if isinstance(entry, Static):
        return "static", "", "", _value(entry.value)
    if isinstance(entry, Rows):
        return "rows", _shape(entry.shape), "", _some(entry.values)
    if isinstance(entry, Jagged):
        inner: list[Any] = list(entry.values.shape)
        if inner:
            inner[entry.ragged_dim - 1] = "*"
        shape = (*[size - 1 for size in entry.offsets.shape], *inner)
        parts = [entry.values, entry.offsets]
        parts += [] if entry.lengths is None else [entry.lengths]
        return _dtype(entry.values), _shape(shape), _total(parts), "jagged"
    array: Array = entry
    known = first.setdefault(id(array), path)
    notes = ["unbatched"] * array.unbatched
    if known != path:
        notes.append(f"the same as {show_path(known)}")
    note = printable(", ".join(notes))
    return _dtype(array), _shape(array.shape), _total([array]), note


def _key(key: str) -> str:
    """Return a key as it is if that can be told from the rest of the line."""
    plain = key.isprintable() and key.strip() == key and key[:1] not in "'\"["
    return _cut(key if plain and key else repr(key))


def _dtype(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def _shape(shape: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _value(value: Any) -> str:
    return _cut(printable(_SHORT.repr(value)))


def _some(values: list[Any]) -> str:
    shown = [_value(value) for value in values[:_MOST_VALUES]]
    return ", ".join([*shown, *["..."] * (len(values) > _MOST_VALUES)])


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 3]}..."


def _total(arrays: Sequence[Array]) -> str:
    size: float = sum([array.nbytes for array in arrays])
    for unit in _UNITS[:-1]:
        if size < _STEP:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= _STEP
    return f"{size:.3g} {_UNITS[-1]}"
