"""torch's losses of trees, against torch leaf by leaf."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tdfunc import TensorDict
from tdfunc.errors import OptionError, StructureError
from tests.cases import Case, cases, check, leaves_of, ramp

LOSSES: dict[str, Any] = {
    "l1_loss": F.l1_loss,
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
}
each_loss = pytest.mark.parametrize("name", LOSSES)


def floating(case: Case) -> bool:
    return all(x.is_floating_point() for x in case.leaves.values())


@each_loss
@cases(floating)
def test_losses_are_torchs_leaf_by_leaf(case: Case, name: str) -> None:
    loss = LOSSES[name]
    td = case.tree
    target = td * 0.5 + 1
    for reduction in ("none", "mean", "sum"):

        def one(x: torch.Tensor, how: str = reduction) -> torch.Tensor:
            return loss(x, x * 0.5 + 1, reduction=how)

        out = loss(td, target, reduction=reduction)
        batch = case.batch if reduction == "none" else ()
        check(out, batch, case.mapped(one), case.statics, exact=False)
    whole = loss(td, target)
    check(whole, (), case.mapped(lambda x: loss(x, x * 0.5 + 1)), exact=False)


def test_targets_of_all_kinds_and_options() -> None:
    td = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}}, 2)
    weights = torch.tensor([1.0, 2.0])
    call: Any = F.smooth_l1_loss
    got = call(td, weights, reduction="none", beta=0.5)
    wide = weights[:, None].expand(2, 3)
    expected = call(td["x"], wide, reduction="none", beta=0.5)
    check(got.select("x"), (2,), {("x",): expected})
    call = F.mse_loss
    check(call(td, td[0]), (), {p: x.sub(x[0]).square().mean() for p, x in leaves(td)})
    with pytest.raises(OptionError, match="'none', 'mean' or 'sum'"):
        call(td, td, reduction="median")
    with pytest.raises(StructureError, match="td"):
        call(td, td.drop("x"))


def leaves(td: TensorDict) -> Any:
    return leaves_of(td).items()


@each_loss
def test_losses_go_through_transforms(name: str) -> None:
    loss = LOSSES[name]
    td = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}}, 2)

    def use(t: TensorDict) -> torch.Tensor:
        return loss(t, t.detach() * 0.5 + 1, reduction="sum").sum(reduce=True)

    total = sum(loss(x, x * 0.5 + 1, reduction="sum") for _, x in leaves(td))
    assert torch.is_tensor(total)
    torch.testing.assert_close(use(td), total)
    torch.testing.assert_close(torch.vmap(use)(td).sum(), total)
    compiled = torch.compile(use, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(td), total)
    grads = torch.func.grad(use)(td)
    plain = torch.func.grad(lambda x: loss(x, x.detach() * 0.5 + 1, reduction="sum"))
    check(grads, (2,), {p: plain(x) for p, x in leaves(td)}, exact=False)


@each_loss
def test_the_peer_loses_the_same(name: str) -> None:
    peer = pytest.importorskip("tensordict")
    entries = {"x": ramp(2, 3), "y": ramp(2)}
    ours, theirs = TensorDict(entries, 2), peer.TensorDict(entries, 2)
    got = LOSSES[name](theirs, theirs * 0.5 + 1)
    out = LOSSES[name](ours, ours * 0.5 + 1)
    check(out, (), {("x",): got["x"], ("y",): got["y"]}, exact=False)
