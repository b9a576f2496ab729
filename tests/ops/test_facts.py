"""What leaves have in common and add up to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tests.cases import Case, cases, fingerprint, ramp


@cases()
def test_facts_are_those_of_the_leaves(case: Case) -> None:
    leaves = list(case.leaves.values())
    before = fingerprint(leaves)
    td = case.tree
    once = {id(x): x for x in leaves}.values()
    assert td.bytes() == sum(x.numel() * x.element_size() for x in leaves)
    assert td.param_count() == sum(x.numel() for x in leaves)
    assert td.param_count(count_duplicates=False) == sum(x.numel() for x in once)
    assert td.bytes(count_duplicates=False) == sum(x.nbytes for x in once)
    assert td.is_contiguous() is all(x.is_contiguous() for x in leaves)
    assert td.is_floating_point() is all(x.is_floating_point() for x in leaves)
    assert td.depth == max(len(path) for path in case.batches)
    assert td.is_cpu is bool(leaves)
    assert not td.is_cuda
    assert not td.is_meta
    assert fingerprint(leaves) == before


def test_a_shared_leaf_counts_once_if_asked() -> None:
    x = ramp(3, 4)
    td = TensorDict({"a": x, "n": {"b": x, "view": x[:]}}, 3)
    assert td.param_count() == 36
    assert td.param_count(count_duplicates=False) == 24
    assert tdfunc.bytes(td, count_duplicates=False) == 96


def test_devices_that_differ_are_none() -> None:
    td = TensorDict({"a": ramp(2), "b": torch.zeros(2, device="meta")}, 2)
    assert not td.is_cpu
    assert not td.is_meta
    assert td.select("b").is_meta
    assert not TensorDict({}).is_cpu


def test_facts_are_constants_of_compiled_code() -> None:
    td = TensorDict({"a": ramp(2, 3), "n": {"b": ramp(2)}}, 2)

    def use(t: TensorDict) -> Any:
        scale = t.depth + t.param_count() + t.bytes() + t.is_contiguous() + t.is_cpu
        return t * scale if t.is_floating_point() else t

    compiled = torch.compile(use, fullgraph=True, backend="eager")
    assert compiled(td).equal(use(td))
    # Inside vmap a row is what counts.
    assert torch.vmap(lambda t: t * t.param_count())(td).equal(td * 4)


def test_the_peer_counts_the_same() -> None:
    peer = pytest.importorskip("tensordict")
    entries = {"x": ramp(2, 3), "n": {"y": ramp(2), "m": {"z": ramp(2)}}}
    ours, theirs = TensorDict(entries, 2), peer.TensorDict(entries, 2)
    assert ours.depth == theirs.depth
    assert ours.bytes() == theirs.bytes()
    assert ours.param_count() == theirs.param_count()
    assert ours.is_contiguous() is theirs.is_contiguous()
