"""The table of docs/from-tensordict.md holds: both columns do the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tdfunc
from tests.meta.source import ROOT

PAGE = (ROOT / "docs" / "from-tensordict.md").read_text()
SECTION = PAGE.partition("## Calls")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `(.+)` \| `(.+)` \|$", SECTION, re.MULTILINE)
# The same call, which there writes and here returns.
SILENT = {'td.update({"x": td["a"]})'}


def entries() -> dict[str, Any]:
    return {"a": torch.arange(3.0), "n": {"b": torch.ones(3, 2)}}


def test_there_are_rows() -> None:
    assert len(ROWS) >= 25


@pytest.mark.parametrize(("theirs", "ours"), ROWS)
def test_both_columns_do_the_same(theirs: str, ours: str) -> None:
    peer = pytest.importorskip("tensordict")
    tree = tdfunc.TensorDict(entries(), 3)
    one: dict[str, Any] = {"td": peer.TensorDict(entries(), [3]), "torch": torch}
    two: dict[str, Any] = {"td": tree, "torch": torch}
    exec(theirs, one)  # noqa: S102
    exec(ours, two)  # noqa: S102
    got, expected = two["td"], tdfunc.interop.from_tensordict(one["td"])
    assert got.equal(expected)
    assert got.names == expected.names
    assert tree.equal(tdfunc.TensorDict(entries(), 3))


@pytest.mark.parametrize("theirs", [row[0] for row in ROWS if row[0] not in SILENT])
def test_what_would_change_a_tree_raises(theirs: str) -> None:
    tree = tdfunc.TensorDict(entries(), 3)
    with pytest.raises((AttributeError, TypeError)):
        exec(theirs, {"td": tree, "torch": torch})  # noqa: S102
    assert tree.equal(tdfunc.TensorDict(entries(), 3))
