"""Saving and loading archives as the public functions do, and zip files by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from tdfunc.io._archive import open_source, write
from tdfunc.io._layout import iter_arrays, levels_of, tree_of
from tdfunc.io._options import ReadOptions, WriteOptions

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "<class 'tensordict._td.TensorDict'>"


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


def meta_of(**entries: Any) -> bytes:
    """Return the description of a foreign node; tensors are uint8 of any shape."""
    records = {
        key: {"dtype": "torch.uint8", "shape": shape} for key, shape in entries.items()
    }
    return json.dumps({"_type": PLAIN, "shape": [], **records}).encode()


def zipped(
    path: Path, files: dict[str, bytes], method: int = ZIP_STORED, mode: int = 0
) -> Path:
    """Write a zip file with Python's own writer, names as they are given."""
    with ZipFile(path, "w", method) as out:
        for name, data in files.items():
            info = ZipInfo("x")
            info.filename = name
            info.compress_type = method
            info.external_attr = mode << 16
            out.writestr(info, data)
    return path
