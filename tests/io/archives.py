"""Saving and loading archives as the public functions do, and zip files by hand."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from tdfunc.io import _archive
from tests.io import one_file

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "<class 'tensordict._td.TensorDict'>"


save = partial(one_file.save, _archive)
outline = partial(one_file.outline, _archive)
load = partial(one_file.load, _archive)


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
