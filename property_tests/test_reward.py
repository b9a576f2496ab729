"""Laws of the reward-model loss."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import given

from tdfunc.objectives import RewardModelLossOutput, reward_model_loss
from tdfunc.testing import assert_equal, assert_pure

Scores = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@st.composite
def scores(draw: st.DrawFn) -> Scores:
    """Draw chosen and rejected scores, of any size up to 1e4, and a mask."""
    count = draw(st.integers(1, 6))
    values = st.lists(
        st.floats(-1e4, 1e4, width=32), min_size=count, max_size=count
    ).map(torch.tensor)
    mask = st.lists(st.booleans(), min_size=count, max_size=count).map(torch.tensor)
    return draw(values), draw(values), draw(mask)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@given(scores(), st.sampled_from([None, 0.01]))
def test_reductions_are_those_of_the_rows(
    given_scores: Scores, coeff: float | None
) -> None:
    chosen, rejected, _ = given_scores
    rows, mean, total = [
        reward_model_loss(chosen, rejected, center_coeff=coeff, reduction=how)
        for how in ("none", "mean", "sum")
    ]

    assert rows.keys() == mean.keys() == total.keys()
    close(rows.total_loss().mean(), mean.total_loss())
    close(rows.total_loss().sum(), total.total_loss())
    close(rows["accuracy"].mean(), mean["accuracy"])
    close(total["accuracy"], mean["accuracy"])


@given(scores())
def test_a_mask_is_leaving_pairs_out(given_scores: Scores) -> None:
    chosen, rejected, mask = given_scores
    masked = reward_model_loss(chosen, rejected, center_coeff=0.01, mask=mask)
    picked = reward_model_loss(chosen[mask], rejected[mask], center_coeff=0.01)

    for name in masked.keys():  # noqa: SIM118 - a tree iterates over rows
        close(masked[name], picked[name])


@given(scores())
def test_losses_and_gradients_are_finite(given_scores: Scores) -> None:
    chosen, rejected, _ = given_scores

    def total(pair: torch.Tensor) -> torch.Tensor:
        return reward_model_loss(pair[0], pair[1], center_coeff=0.01).total_loss()

    pair = torch.stack([chosen, rejected])
    assert total(pair).isfinite()
    assert total(pair) >= 0
    assert torch.func.grad(total)(pair).isfinite().all()


@given(scores(), st.floats(-100, 100, width=32))
def test_only_differences_matter_without_centering(
    given_scores: Scores, shift: float
) -> None:
    chosen, rejected, _ = [x.double() for x in given_scores]
    moved = reward_model_loss(chosen + shift, rejected + shift)

    close(
        moved.loss_reward_model, reward_model_loss(chosen, rejected).loss_reward_model
    )


@given(scores())
def test_swapping_sides_changes_the_loss_by_the_difference(
    given_scores: Scores,
) -> None:
    """``-log sigmoid(-d) = d - log sigmoid(d)``; and no pair is right both ways."""
    chosen, rejected, _ = [x.double() for x in given_scores]
    one = reward_model_loss(chosen, rejected, reduction="none")
    other = reward_model_loss(rejected, chosen, reduction="none")

    difference = other.loss_reward_model - one.loss_reward_model
    close(difference, chosen - rejected)
    assert (one["accuracy"] + other["accuracy"] <= 1).all()


@given(scores())
def test_rows_are_single_pairs(given_scores: Scores) -> None:
    """By a loop, by vmap and in one call."""
    chosen, rejected, mask = given_scores
    rows = reward_model_loss(chosen, rejected, mask=mask, reduction="none")
    mapped = torch.vmap(lambda c, r, m: reward_model_loss(c, r, mask=m))(
        chosen, rejected, mask
    )

    assert type(mapped) is RewardModelLossOutput
    assert_equal(mapped, rows)
    assert_pure(reward_model_loss, chosen, rejected, mask=mask)
