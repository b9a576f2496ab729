"""The reward-model loss: its parts, its safety, and the callable around it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorClass, TensorDict
from tdfunc.errors import (
    FieldError,
    MissingKeyError,
    OperandError,
    OptionError,
    ShapeError,
)
from tdfunc.objectives import (
    RewardModelLoss,
    RewardModelLossOutput,
    reward_model_loss,
)

CHOSEN = torch.tensor([1.0, 0.0, -2.0, 3.0])
REJECTED = torch.tensor([0.0, 0.0, 1.0, -1.0])
# -log(sigmoid(d)) = log(1 + exp(-d)), by hand
LOSSES = [math.log1p(math.exp(-d)) for d in (1.0, 0.0, -3.0, 4.0)]
CENTERS = [1.0, 0.0, 1.0, 4.0]


class TestOutput:
    def test_fields_and_constructor(self) -> None:
        one = torch.tensor(1.0)
        out = RewardModelLossOutput(one, None, one * 0.5)

        assert isinstance(out, TensorClass)
        assert ("loss_reward_model", "accuracy") == out.keys()
        assert out.loss_center is None
        assert out.batch_size == ()
        rows = RewardModelLossOutput(
            torch.ones(3), batch_size=[3], device="cpu", names=["pairs"]
        )
        assert rows.names == ("pairs",)
        with pytest.raises(TypeError, match="loss_reward_model"):
            RewardModelLossOutput()  # pyright: ignore[reportCallIssue]
        with pytest.raises(AttributeError, match="no field 'grad_norm'"):
            RewardModelLossOutput(one, grad_norm=one)  # pyright: ignore[reportCallIssue]
        with pytest.raises(
            FieldError, match="loss_reward_model, loss_center, accuracy"
        ):
            out.set("grad_norm", one)

    def test_total_is_the_sum_of_present_losses(self) -> None:
        """And not of the accuracy, which ``sum(reduce=True)`` adds too."""
        one = torch.tensor(1.0)

        assert RewardModelLossOutput(one, accuracy=one).total_loss() == 1
        assert RewardModelLossOutput(one, one * 2, one).total_loss() == 3
        rows = RewardModelLossOutput(torch.ones(3), torch.ones(3), batch_size=3)
        assert rows.total_loss().tolist() == [2, 2, 2]

    def test_a_subclass_adds_losses(self) -> None:
        class More(RewardModelLossOutput):
            loss_margin: torch.Tensor | None = None

        one = torch.tensor(1.0)
        assert More(one, loss_margin=one).total_loss() == 2

    def test_what_is_no_tensor_is_no_loss(self) -> None:
        class Named(RewardModelLossOutput):
            loss_name: str = "margin"

        one = torch.tensor(1.0)
        assert Named(one, one).total_loss() == 2
        assert (
            torch.compile(Named.total_loss, fullgraph=True, backend="eager")(
                Named(one, one)
            )
            == 2
        )

    def test_a_part_without_losses_says_so(self) -> None:
        out = RewardModelLossOutput(torch.tensor(1.0), accuracy=torch.tensor(1.0))
        diff, rest = tdfunc.partition(out, "floating")

        assert diff.total_loss() == 1
        with pytest.raises(FieldError, match=r"loss_reward_model.*combine"):
            rest.total_loss()


class TestLoss:
    def test_mean_by_hand(self) -> None:
        out = reward_model_loss(CHOSEN, REJECTED, center_coeff=0.1)

        assert type(out) is RewardModelLossOutput
        assert math.isclose(out.loss_reward_model.item(), sum(LOSSES) / 4, rel_tol=1e-6)
        assert out.loss_center is not None
        assert out.accuracy is not None
        assert math.isclose(
            out.loss_center.item(), 0.1 * sum(CENTERS) / 4, rel_tol=1e-6
        )
        assert out.accuracy == 0.5  # the tie is wrong
        assert out.batch_size == ()

    def test_sum_and_none(self) -> None:
        total = reward_model_loss(CHOSEN, REJECTED, center_coeff=1, reduction="sum")
        rows = reward_model_loss(CHOSEN, REJECTED, center_coeff=1, reduction="none")

        torch.testing.assert_close(total.loss_reward_model, torch.tensor(sum(LOSSES)))
        assert total.loss_center == 6
        assert total.accuracy == 0.5
        torch.testing.assert_close(rows.loss_reward_model, torch.tensor(LOSSES))
        assert rows.batch_size == (4,)
        assert rows["loss_center"].tolist() == CENTERS
        assert rows["accuracy"].tolist() == [1, 0, 0, 1]
        assert rows[0].loss_reward_model == rows.loss_reward_model[0]

    def test_without_centering(self) -> None:
        out = reward_model_loss(CHOSEN, REJECTED)

        assert out.loss_center is None
        assert "loss_center" not in out
        assert out.total_loss() is out.loss_reward_model

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_far_scores_and_halves(self, dtype: torch.dtype) -> None:
        chosen = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
        rejected = torch.tensor([-1e4, 1e4], dtype=dtype)

        out = reward_model_loss(chosen, rejected, reduction="none")

        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert out.loss_reward_model.dtype == wide
        expected = 2 * chosen.detach()[0].to(wide)
        assert out.loss_reward_model.tolist() == [0, expected]
        (grad,) = torch.autograd.grad(out.loss_reward_model.sum(), chosen)
        assert grad.dtype == dtype
        assert grad.tolist() == [0, -1]

    def test_the_greatest_halves_do_not_overflow(self) -> None:
        most = torch.finfo(torch.float16).max
        scores = torch.full((5000,), most, dtype=torch.float16)
        out = reward_model_loss(-scores, scores, reduction="sum")

        assert out.loss_reward_model == 5000 * 2 * most

    def test_differences_of_ten_thousand_in_float32(self) -> None:
        x = torch.tensor([1e4], requires_grad=True)
        for sign, loss in ((1, 0.0), (-1, 1e4)):
            out = reward_model_loss(sign * x, torch.zeros(1))
            (grad,) = torch.autograd.grad(out.loss_reward_model, x)
            assert out.loss_reward_model == loss
            assert grad.isfinite().all()

    def test_the_mask_takes_pairs_out(self) -> None:
        mask = torch.tensor([True, False, True, False])
        chosen = torch.tensor([1.0, math.nan, -2.0, math.inf], requires_grad=True)

        out = reward_model_loss(chosen, REJECTED, center_coeff=1.0, mask=mask)
        rows = reward_model_loss(
            chosen, REJECTED, center_coeff=1.0, mask=mask, reduction="none"
        )

        expected = torch.tensor((LOSSES[0] + LOSSES[2]) / 2)
        torch.testing.assert_close(out.loss_reward_model.detach(), expected)
        assert out.loss_center == 1
        assert out.accuracy == 0.5
        assert rows.loss_reward_model[1] == rows.loss_reward_model[3] == 0
        assert rows["accuracy"].tolist() == [1, 0, 0, 0]
        (grad,) = torch.autograd.grad(out.total_loss(), chosen)
        assert grad.isfinite().all()
        assert grad[1] == grad[3] == 0

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_no_pairs_give_zero(self, reduction: Any) -> None:
        none = torch.zeros(4, dtype=torch.bool)
        for out in (
            reward_model_loss(CHOSEN, REJECTED, mask=none, reduction=reduction),
            reward_model_loss(torch.ones(0), torch.ones(0), reduction=reduction),
        ):
            assert out.loss_reward_model == 0
            assert out.accuracy == 0

    def test_only_the_accuracy_has_no_gradient(self) -> None:
        x = CHOSEN.clone().requires_grad_()
        out = reward_model_loss(x, REJECTED, center_coeff=1.0)

        assert out.loss_reward_model.requires_grad
        assert not out["accuracy"].requires_grad
        expected = (torch.sigmoid(x - REJECTED) - 1 + 2 * (x + REJECTED)) / 4
        (grad,) = torch.autograd.grad(out.total_loss(), x)
        torch.testing.assert_close(grad, expected.detach())

    def test_grad_vmap_and_compile(self) -> None:
        def total(c: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
            return reward_model_loss(c, r, center_coeff=0.5).total_loss()

        many = torch.stack([CHOSEN, CHOSEN + 1, CHOSEN * 2])
        grads = torch.vmap(torch.func.grad(total), in_dims=(0, None))(many, REJECTED)
        for row, grad in zip(many, grads, strict=True):
            torch.testing.assert_close(grad, torch.func.grad(total)(row, REJECTED))
        outs = torch.vmap(reward_model_loss, in_dims=(0, None))(many, REJECTED)
        assert type(outs) is RewardModelLossOutput
        assert outs.batch_size == (3,)

        mask = torch.tensor([True, True, False, True])
        compiled = torch.compile(reward_model_loss, fullgraph=True, backend="eager")
        every: tuple[dict[str, Any], ...] = (
            {},
            {"mask": mask},
            {"reduction": "none", "center_coeff": 1.0},
        )
        for options in every:
            got = compiled(CHOSEN, REJECTED, **options)
            assert type(got) is RewardModelLossOutput
            assert got.equal(reward_model_loss(CHOSEN, REJECTED, **options))

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ({"reduction": "avg"}, OptionError, "'mean', 'sum', 'none'.*'avg'"),
            ({"chosen": torch.arange(4)}, OperandError, "chosen are no scores.*int64"),
            (
                {"chosen": CHOSEN.to(torch.float8_e5m2)},
                OperandError,
                "16, 32 or 64.*e5",
            ),
            ({"center_coeff": "x"}, OptionError, "center_coeff is no number.*'x'"),
            ({"center_coeff": torch.ones(4, 1)}, OptionError, r"shape \[\].*\[4, 1\]"),
            ({"rejected": 1.0}, OperandError, "rejected are no scores.*float"),
            ({"chosen": CHOSEN.double()}, OperandError, "float64 and torch.float32"),
            ({"mask": torch.ones(4)}, OperandError, "bools.*mask=weights > 0"),
            ({"rejected": torch.ones(3)}, ShapeError, r"rejected.*\[4\].*\[3\]"),
            ({"mask": torch.ones(4, 1) > 0}, ShapeError, r"mask and chosen.*\[4, 1\]"),
        ],
        ids=lambda value: str(value)[:24],
    )
    def test_wrong_arguments(self, arguments: Any, error: Any, text: str) -> None:
        with pytest.raises(error, match=text):
            reward_model_loss(**{"chosen": CHOSEN, "rejected": REJECTED} | arguments)


class TestCallable:
    def pairs(self) -> TensorDict:
        x = torch.arange(24.0).reshape(4, 2, 3) / 10
        mask = torch.tensor([True, True, False, True])
        return TensorDict({"chosen": x[:, 0], "rejected": x[:, 1], "mask": mask}, 4)

    def test_scores_both_sides_in_one_call(self) -> None:
        seen: list[torch.Size] = []

        def score(params: TensorDict, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.shape)
            return x @ params["w"]

        td, params = self.pairs(), TensorDict(w=torch.tensor([1.0, -2.0, 0.5]))
        loss = RewardModelLoss(score, center_coeff=0.1, mask_key="mask")
        out = loss(params, td)

        expected = reward_model_loss(
            td["chosen"] @ params["w"],
            td["rejected"] @ params["w"],
            center_coeff=0.1,
            mask=td["mask"],
        )
        assert out.allclose(expected)
        assert [torch.Size([8, 3])] == seen
        assert ("chosen", "rejected", "mask") == loss.in_keys
        assert ("chosen", "rejected") == RewardModelLoss(score).in_keys

    def test_is_a_frozen_value(self) -> None:
        loss = RewardModelLoss(lambda _, x: x.sum(-1))

        with pytest.raises(dataclasses.FrozenInstanceError):
            loss.reduction = "sum"  # pyright: ignore[reportAttributeAccessIssue]
        assert dataclasses.replace(loss, reduction="sum").reduction == "sum"

    def test_trees_paths_and_a_last_dim(self) -> None:
        td = self.pairs()
        nested = TensorDict(
            {"a": {"x": td["chosen"]}, "b": {"side": {"x": td["rejected"]}}}, 4
        )
        linear = torch.nn.Linear(3, 1)
        params = tdfunc.from_module(linear, params_only=True)
        loss = RewardModelLoss(
            lambda p, side: tdfunc.func.functional_call(linear, p, (side["x"],)),
            chosen_key="a",
            rejected_key=("b", "side"),
            reduction="none",
        )
        out = loss(params, nested)

        assert out.batch_size == (4,)
        one = loss(params, nested[0])
        assert one.batch_size == ()
        torch.testing.assert_close(one.loss_reward_model, out.loss_reward_model[0])

    def test_grad_vmap_and_compile(self) -> None:
        td = self.pairs()
        loss = RewardModelLoss(lambda p, x: x @ p["w"], center_coeff=0.1)
        params = TensorDict(w=torch.tensor([1.0, -2.0, 0.5]))

        def total(p: TensorDict, rows: TensorDict) -> torch.Tensor:
            return loss(p, rows).total_loss()

        whole = torch.func.grad(total)(params, td)
        single = torch.vmap(torch.func.grad(total), in_dims=(None, 0))(params, td)
        torch.testing.assert_close(single["w"].mean(0), whole["w"])
        members = tdfunc.stack([params, params * 2])
        outs = torch.vmap(loss, in_dims=(0, None))(members, td)
        assert type(outs) is RewardModelLossOutput
        assert outs.batch_size == (2,)
        compiled = torch.compile(loss, fullgraph=True, backend="eager")
        assert compiled(params, td).allclose(loss(params, td))

    def test_wrong_calls(self) -> None:
        td, params = self.pairs(), TensorDict()

        with pytest.raises(MissingKeyError, match="other"):
            RewardModelLoss(lambda _, x: x.sum(-1), rejected_key="other")(params, td)
        with pytest.raises(ShapeError, match=r"\[8\] or \[8, 1\] - got \[8, 3\]"):
            RewardModelLoss(lambda _, x: x)(params, td)

    def test_options_are_checked_when_it_is_made(self) -> None:
        wrong: tuple[dict[str, Any], ...] = (
            {"reduction": "foo"},
            {"center_coeff": "x"},
            {"center_coeff": True},
            {"center_coeff": torch.ones(3, 1)},
        )
        for option in wrong:
            with pytest.raises(OptionError, match=next(iter(option)).split("_")[0]):
                RewardModelLoss(lambda _, x: x.sum(-1), **option)
        assert RewardModelLoss(lambda _, x: x, center_coeff=torch.tensor(0.1))

    @pytest.mark.parametrize(
        ("td", "error", "text"),
        [
            ({"chosen": CHOSEN}, OperandError, r"no tree.*got dict.*batch_size=n"),
            (3, OperandError, "no tree.*got int"),
            (
                TensorDict({"chosen": ["a", "b"], "rejected": ["c", "d"]}, 2),
                OperandError,
                r"no answers.*td\['chosen'\].*got list",
            ),
            (
                TensorDict({"chosen": torch.ones(2), "rejected": "c"}, 2),
                OperandError,
                r"no answers.*td\['rejected'\].*got str",
            ),
            (
                TensorDict(chosen=torch.ones(8, 5, 3), rejected=torch.ones(8, 4, 3)),
                ShapeError,
                r"td\['rejected'\].*\[8, 5, 3\], as 'chosen'.*\[8, 4, 3\].*pad",
            ),
            (
                TensorDict(chosen={"x": torch.ones(2)}, rejected=torch.ones(2)),
                OperandError,
                r"td\['rejected'\].*TensorDict, as 'chosen' is.*got Tensor",
            ),
            (
                TensorDict(chosen=torch.ones(8, 3), rejected=torch.ones(8, 3)),
                ShapeError,
                r"batch_size is \[\].*got \[2, 8\].*with_batch_size\(n\)",
            ),
        ],
    )
    def test_wrong_trees(self, td: Any, error: Any, text: str) -> None:
        with pytest.raises(error, match=text):
            RewardModelLoss(lambda _, x: x.sum(-1))(TensorDict(), td)

    def test_scores_are_a_tensor(self) -> None:
        with pytest.raises(OperandError, match=r"\[8\] or \[8, 1\] - got float"):
            RewardModelLoss(lambda _, x: x.sum().item())(TensorDict(), self.pairs())


def test_pairs_with_a_score_that_is_nan_are_wrong() -> None:
    chosen = torch.tensor([1.0, math.nan, 1.0, 1.0])
    rejected = torch.tensor([0.0, 0.0, math.nan, 0.0])

    out = reward_model_loss(chosen, rejected, reduction="none")
    assert out.accuracy is not None
    assert out.accuracy.tolist() == [1, 0, 0, 1]
