"""Threads share trees without locks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from torch.utils._pytree import tree_map

from tdfunc import TensorDict
from tdfunc._core import node, tree
from tdfunc._ops import convert, entries
from tdfunc.testing import assert_valid

if TYPE_CHECKING:
    from collections.abc import Callable

READS: dict[str, Callable[[TensorDict], object]] = {
    "size": lambda td: td.batch_size,
    "arithmetic": lambda td: td * 2,
    "node": lambda td: td["n"],
    "set": lambda td: td.set("x", td["x"] + 1),
    "update": lambda td: td.update({"x": td["x"] + 1}),
    "statics": lambda td: td.with_statics(td),
    "map": lambda td: tree_map(lambda x: x + 1, td),
}


@pytest.mark.parametrize("name", READS)
def test_another_thread_may_settle_a_tree_at_the_worst_moment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settling exchanges the schema; a result must not mix the old and the new.

    Threads meet there once in thousands of rounds, so the other one is played: it
    settles the tree right when the operation reads the slot.
    """
    carried_size = node.carried_size

    def settled_meanwhile(td: TensorDict) -> torch.Size | None:
        td.batch_size
        return carried_size(td)

    for module in (node, tree, convert, entries):
        monkeypatch.setattr(module, "carried_size", settled_meanwhile)
    leaves = {"x": torch.ones(2, 3, 4), "n": {"y": torch.ones(2, 3)}}
    source = TensorDict(leaves, (2, 3))
    # One leaf loses a dim and one gains one, so that the ranks change.
    td = tree_map(lambda x: x.sum(-1) if x.dim() > 2 else x.unsqueeze(-1), source)
    result = READS[name](td)
    if isinstance(result, TensorDict):
        assert_valid(result)


def test_threads_that_make_one_structure_get_one_schema() -> None:
    keys = [f"key {i}" for i in range(50)]
    start = threading.Barrier(8)

    def build(_: int) -> int:
        start.wait()
        return id(TensorDict({key: torch.zeros(2) for key in keys}, 2)._schema)

    with ThreadPoolExecutor(8) as pool:
        kept = TensorDict({key: torch.zeros(2) for key in keys}, 2)
        assert set(pool.map(build, range(8))) == {id(kept._schema)}
