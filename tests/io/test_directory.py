"""Directories: what is written is what is read, and nothing else happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdfunc.io._directory import open_source, write
from tdfunc.io._layout import iter_arrays, levels_of, tree_of
from tdfunc.io._options import ReadOptions, WriteOptions
from tdfunc.testing import assert_equal
from tests.cases import CASES, OBJECT, ROW_CASES, Case, cases

if TYPE_CHECKING:
    from pathlib import Path


def save(td: Any, path: Path, **options: Any) -> None:
    write(levels_of(td), path, WriteOptions(**options))


def load(path: Path, **options: Any) -> Any:
    with open_source(path, ReadOptions(**options)) as source:
        level = source.outline()
        source.read([array for _, array in iter_arrays(level)])
    return tree_of(level)


def is_plain(case: Case) -> bool:
    return OBJECT not in case.statics.values() and case.name != "rows of any values"


@cases(is_plain, CASES + ROW_CASES)
def test_round_trip(tmp_path: Path, case: Case) -> None:
    td = case.tree

    save(td, tmp_path / "d")

    assert_equal(td, load(tmp_path / "d"))
