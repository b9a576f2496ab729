"""Laws of builders and appends: they make what a save makes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

import tdfunc
from tdfunc.testing import assert_equal, assert_pure, batch_sizes, tensordicts

SIZES = batch_sizes(min_dims=1)
TREES = tensordicts(batch_size=SIZES, rows=True, unbatched=True)


@given(td=TREES, data=st.data())
def test_rows_in_any_order_make_the_tree(td: Any, data: st.DataObject) -> None:
    count = len(td)
    order = data.draw(st.permutations(range(count)))
    cut = data.draw(st.integers(0, count))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "d")
        with tdfunc.memmap_like(td, path) as builder:
            for row in order[:cut]:
                builder.write(row, td[row])
        builder = tdfunc.memmap_like(td, path, resume=True)
        missing = [row for rows in builder.missing() for row in rows]
        if 0 not in td.batch_size:
            assert missing == sorted(order[cut:])
        builder.write(missing, td[missing])
        assert_equal(builder.finish(), td)


@given(td=TREES, data=st.data())
def test_append_is_cat(td: Any, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(td)))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "d")
        td[:cut].save(path)
        assert_pure(lambda rows: tdfunc.append_memmap(path, rows), td[cut:])
        assert_equal(tdfunc.load(path), td)
