"""Several tensors of a tree made one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import BatchSizeError, MissingKeyError, OperandError, OptionError
from tests.cases import Case, cases, check, fingerprint, ramp


def tree() -> TensorDict:
    return TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2, 3) + 9}, "s": "t"}, 2)


@cases(lambda case: bool(case.leaves))
def test_every_leaf_with_itself(case: Case) -> None:
    before = fingerprint(case.leaves.values())
    td = case.tree
    for path, x in case.leaves.items():
        stacked = td.stack_tensors(path, path, out_key="new", dim=-1, keep_entries=True)
        expected = {**case.leaves, ("new",): torch.stack([x, x], -1)}
        check(stacked, case.batch, expected, case.statics)
        if x.dim() > len(case.batches[path[:-1]]):
            out = td.cat_tensors(path, path, out_key=path, dim=-1)
            expected = {**case.leaves, path: torch.cat([x, x], -1)}
            check(out, case.batch, expected, case.statics)
    assert fingerprint(case.leaves.values()) == before


def test_entries_go_unless_they_are_kept() -> None:
    td = tree()
    both = torch.cat([td["x"], td["n", "y"]], 1)
    out = td.cat_tensors("x", ("n", "y"), out_key="xy", dim=1)
    check(out, (2,), {("xy",): both}, {("s",): "t"})
    kept = td.cat_tensors("x", ("n", "y"), out_key="x", dim=1, keep_entries=True)
    check(kept, (2,), {("x",): both, ("n", "y"): td["n", "y"]})
    deep = tdfunc.stack_tensors(td, "x", ("n", "y"), out_key=("a", "b"), dim=1)
    check(deep, (2,), {("a", "b"): torch.stack([td["x"], td["n", "y"]], 1)})


@pytest.mark.parametrize(
    ("keys", "options", "kind", "parts"),
    [
        ((), {}, OptionError, ["nothing to join", "td.cat_tensors("]),
        (("zzz",), {}, MissingKeyError, ["zzz"]),
        (("n",), {}, OperandError, ["td['n']", "a tensor", "TensorDict"]),
        (("s",), {}, OperandError, ["td['s']", "str"]),
        (("x", "x"), {"dim": 5}, OperandError, ["dim 5", "td['x'] [2, 3]"]),
        (("x", "x"), {"dim": 0}, BatchSizeError, ["td['out']"]),
    ],
)
def test_what_can_not_be_joined(
    keys: Any, options: Any, kind: type[Exception], parts: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        tree().cat_tensors(*keys, out_key="out", **options)
    if kind is not BatchSizeError:
        for part in parts:
            assert part in str(caught.value)
    else:
        assert "out" in str(caught.value)


def test_joining_goes_through_transforms() -> None:
    td = tree().drop("s")

    def use(t: TensorDict) -> TensorDict:
        joined = t.cat_tensors("x", ("n", "y"), out_key="z", dim=-1, keep_entries=True)
        return joined.stack_tensors("x", ("n", "y"), out_key="w", dim=-1)

    check(torch.vmap(use)(td), (2,), {("z",): use(td)["z"], ("w",): use(td)["w"]})
    assert torch.compile(use, fullgraph=True, backend="eager")(td).equal(use(td))
    grads = torch.func.grad(lambda t: use(t)["z"].square().sum())(td)
    check(grads, (2,), {("x",): td["x"] * 2, ("n", "y"): td["n", "y"] * 2})


def test_the_peer_joins_the_same() -> None:
    peer = pytest.importorskip("tensordict")
    entries = {"x": ramp(2, 3), "y": ramp(2, 3) + 1}
    for name in ("cat_tensors", "stack_tensors"):
        theirs = peer.TensorDict(dict(entries), 2)
        got = getattr(theirs, name)("x", "y", out_key="z", dim=-1)
        ours = getattr(TensorDict(entries, 2), name)("x", "y", out_key="z", dim=-1)
        check(ours, (2,), {("z",): got["z"]})
