"""Trees of different lengths, padded and unpadded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import OperandError, ShapeError, StructureError
from tests.cases import Case, cases, check, fingerprint, ramp, same


def run(n: int, start: int = 0) -> TensorDict:
    return TensorDict({"x": ramp(n, 2) + start, "n": {"y": ramp(n)}, "s": "t"}, n)


@cases(lambda case: bool(case.batch))
def test_padding_any_tree_with_a_shorter_one(case: Case) -> None:
    before = fingerprint(case.leaves.values())
    td, dims = case.tree, len(case.batch)
    for dim in range(dims):
        short = td.narrow(dim, 0, case.batch[dim] // 2)
        out, mask = tdfunc.pad_sequence([td, short], dim - dims, 0)
        n = case.batch[dim] // 2
        expected = {}
        for path, x in case.leaves.items():
            other = torch.zeros_like(x)
            other.narrow(dim, 0, n).copy_(x.narrow(dim, 0, n))
            expected[path] = torch.stack([x, other])
        check(out, (2, *case.batch), expected, case.statics)
        truth = torch.zeros((2, *case.batch), dtype=torch.bool)
        truth[0] = True
        truth[1].narrow(dim, 0, n).fill_(True)
        assert same(mask, truth)
        if all(case.batch):
            whole, part = tdfunc.unpad_sequence(out, mask, dim)
            check(whole, case.batch, case.leaves, case.statics)
            check(part, short.batch_size, {p: short[p] for p in case.leaves})
    assert fingerprint(case.leaves.values()) == before


def test_by_hand() -> None:
    td, mask = tdfunc.pad_sequence([run(1, 5), run(3)], padding_value=-1)
    assert td["x"][0].tolist() == [[5, 6], [-1, -1], [-1, -1]]
    assert td["n", "y"].tolist() == [[0, -1, -1], [0, 1, 2]]
    assert mask.tolist() == [[True, False, False], [True, True, True]]
    assert td["s"] == "t"
    named = [run(n).with_names(["time"]) for n in (2, 1)]
    assert tdfunc.pad_sequence(named, "time")[0].names == (None, "time")
    same_length, mask = tdfunc.pad_sequence([run(2), run(2)])
    assert same_length.equal(tdfunc.stack([run(2), run(2)]))
    assert mask.all()


def test_what_can_not_be_padded() -> None:
    with pytest.raises(OperandError, match="an empty list"):
        tdfunc.pad_sequence([])
    with pytest.raises(OperandError, match=r"\['dict'\]"):
        tdfunc.pad_sequence([{"x": 1}])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match="no batch dim"):
        tdfunc.pad_sequence([run(2)], 1)
    wide = TensorDict({"x": ramp(2, 3)}, [2, 3])
    other = TensorDict({"x": ramp(1, 4)}, [1, 4])
    with pytest.raises(ShapeError, match=r"tree 1 differs.*got \[1, 4\]"):
        tdfunc.pad_sequence([wide, other])
    with pytest.raises(StructureError):
        tdfunc.pad_sequence([run(2), run(1).drop("x")])


def test_a_run_may_be_anywhere_and_gaps_are_refused() -> None:
    td = TensorDict({"x": ramp(2, 3)}, [2, 3])
    mask = torch.tensor([[False, True, True], [False, False, False]])
    rows = tdfunc.unpad_sequence(td, mask)
    assert [row["x"].tolist() for row in rows] == [[1, 2], []]
    assert rows[0]["x"].data_ptr() == td["x"][0, 1:].data_ptr()
    gap = torch.tensor([[True, False, True], [True, True, True]])
    with pytest.raises(OperandError, match=r"row 0 is no run"):
        tdfunc.unpad_sequence(td, gap)
    ragged = torch.tensor([[[True, False], [True, True]]])
    with pytest.raises(OperandError, match=r"row 0 is no run"):
        tdfunc.unpad_sequence(TensorDict({"x": ramp(1, 2, 2)}, [1, 2, 2]), ragged)
    wrong: Any
    for wrong in (mask.int(), mask[0], [[True]]):
        with pytest.raises(OperandError, match="no mask of the tree"):
            tdfunc.unpad_sequence(td, wrong)


def test_padding_goes_through_transforms() -> None:
    a, b = run(2).drop("s"), run(3).drop("s")

    def use(a: TensorDict, b: TensorDict) -> Any:
        return tdfunc.pad_sequence([a, b])

    plain, mask = use(a, b)
    td, found = torch.compile(use, fullgraph=True, backend="eager")(a, b)
    assert td.equal(plain)
    assert same(found, mask)
    wide = [t.unsqueeze(0).expand(4, *t.batch_size) for t in (a, b)]
    rows, masks = torch.vmap(use)(*wide)
    assert rows[3].equal(plain)
    assert same(masks[3], mask)
    grads = torch.func.grad(lambda t: use(t, b)[0]["x"].square().sum())(a)
    check(grads.select("x"), (2,), {("x",): a["x"] * 2})


def test_the_peer_pads_the_same() -> None:
    peer = pytest.importorskip("tensordict")
    rows = [run(1).drop("s"), run(3).drop("s")]
    theirs = peer.pad_sequence(
        [peer.TensorDict(r.to_dict(), r.batch_size) for r in rows], return_mask=True
    )
    td, mask = tdfunc.pad_sequence(rows)
    check(td, (2, 3), {("x",): theirs["x"], ("n", "y"): theirs["n", "y"]})
    assert same(mask, theirs["masks", "x"])
