"""Saving and loading directories as the public functions do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdfunc.io._directory import open_source, write
from tdfunc.io._layout import iter_arrays, levels_of, tree_of
from tdfunc.io._options import ReadOptions, WriteOptions

if TYPE_CHECKING:
    from pathlib import Path


def save(td: Any, path: Path, **options: Any) -> None:
    write(levels_of(td), path, WriteOptions(**options))


def outline(path: Path, **options: Any) -> Any:
    with open_source(path, ReadOptions(**options)) as source:
        return source.outline()


def load(path: Path, **options: Any) -> Any:
    with open_source(path, ReadOptions(**options)) as source:
        level = source.outline()
        source.read([array for _, array in iter_arrays(level)])
    return tree_of(level)
