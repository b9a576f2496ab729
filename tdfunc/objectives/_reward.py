"""Losses of reward models: scores learnt from which of two answers was preferred.

A reward model gives every answer a score. Of a pair, the model of Bradley and Terry
says that the chosen answer is preferred with probability
``sigmoid(chosen - rejected)``; its negative log-likelihood is the loss. Only
differences matter to it, so that scores may drift together: the centering term keeps
their sum near 0.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch.nn.functional import logsigmoid

from tdfunc._core.node import Node
from tdfunc._ops import join
from tdfunc._tensorclass import TensorClass
from tdfunc.errors import OperandError, OptionError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc.typing import Path

__all__ = ["RewardModelLoss", "RewardModelLossOutput", "reward_model_loss"]

Reduction: TypeAlias = Literal["mean", "sum", "none"]

_REDUCTIONS = ("mean", "sum", "none")
_HALF = (torch.float16, torch.bfloat16)


class RewardModelLossOutput(TensorClass):
    """The parts of the loss of a reward model.

    Attributes:
        loss_reward_model: the pairwise loss; ``[]``, or ``[*pairs]`` if not reduced.
        loss_center: the centering term, times its coefficient; None without one.
        accuracy: the share of pairs in which the chosen answer has the higher score,
            without gradient; None if it was not computed.

    Examples:
        >>> import torch
        >>> from tdfunc.objectives import RewardModelLossOutput
        >>> out = RewardModelLossOutput(torch.tensor(1.0), accuracy=torch.tensor(0.5))
        >>> out.total_loss(), out.loss_center, out.keys()
        (tensor(1.), None, ('loss_reward_model', 'accuracy'))
    """

    loss_reward_model: torch.Tensor
    loss_center: torch.Tensor | None = None
    accuracy: torch.Tensor | None = None

    def total_loss(self) -> torch.Tensor:
        """Return the sum of the fields that start with ``loss_`` and are not None."""
        terms = [self[key] for key in self.keys() if key.startswith("loss_")]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


def reward_model_loss(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    *,
    center_coeff: float | None = None,
    mask: torch.Tensor | None = None,
    reduction: Reduction = "mean",
) -> RewardModelLossOutput:
    """Return the Bradley-Terry loss of pairs of scores, and the share told apart.

    ``loss_reward_model = -log sigmoid(chosen - rejected)`` and
    ``loss_center = center_coeff * (chosen + rejected) ** 2``, each reduced over pairs.
    Float16 and bfloat16 scores are computed with, and give losses, in float32.

    Args:
        chosen: the scores of the preferred answers, ``[*pairs]``.
        rejected: the scores of the others, ``[*pairs]``.
        center_coeff: how much the centering term counts, None to leave it out; 0.01 is
            what its authors use.
        mask: which pairs count, bool ``[*pairs]``; None for all. Scores of the others
            may be anything, not finite ones included, and get gradient 0.
        reduction: ``"mean"`` or ``"sum"`` over the pairs that count, 0 if there are
            none; ``"none"`` for a loss and an accuracy (0 or 1) of every pair, 0 where
            it does not count.

    Returns:
        A record with batch size ``[*pairs]`` if not reduced, else ``[]``. The accuracy
        is a share of pairs whatever the reduction; ties are wrong.

    Raises:
        OperandError: scores are no tensors of one floating-point dtype, or the mask is
            not one of bools.
        OptionError: the reduction is something else.
        ShapeError: the shapes of scores and mask differ.

    Examples:
        >>> import torch
        >>> from tdfunc.objectives import reward_model_loss
        >>> chosen, rejected = torch.tensor([2.0, 0.0]), torch.tensor([2.0, -1e4])
        >>> out = reward_model_loss(chosen, rejected)
        >>> out.accuracy
        tensor(0.5000)
        >>> bool(out.loss_reward_model.isclose(torch.tensor(2.0).log() / 2))
        True

    References:
        R. A. Bradley and M. E. Terry, Rank Analysis of Incomplete Block Designs: I. The
        Method of Paired Comparisons, Biometrika 39, 1952.
        L. Ouyang et al., Training language models to follow instructions with human
        feedback, 2022, https://arxiv.org/abs/2203.02155, equation 1.
        J. Eisenstein et al., Helping or Herding? Reward Model Ensembles Mitigate but do
        not Eliminate Reward Hacking, 2023, https://arxiv.org/abs/2312.09244, the
        centering term.
    """
    _check(chosen, rejected, mask, reduction)
    if mask is not None:
        # Before anything is computed: 0 times a gradient that is NaN would be NaN.
        chosen = torch.where(mask, chosen, torch.zeros_like(chosen))
        rejected = torch.where(mask, rejected, torch.zeros_like(rejected))
    if chosen.dtype in _HALF:
        # The difference of two finite halves may overflow, and a sum of many loses.
        chosen, rejected = chosen.float(), rejected.float()
    # The logarithm of the sigmoid as one function: sigmoid alone is 0 below -100.
    loss = -logsigmoid(chosen - rejected)
    right = (chosen > rejected).to(loss.dtype)
    center = None
    if center_coeff is not None:
        center = _reduced(center_coeff * (chosen + rejected) ** 2, mask, reduction)
    share: Reduction = "none" if reduction == "none" else "mean"
    return RewardModelLossOutput(
        _reduced(loss, mask, reduction),
        center,
        _reduced(right.detach(), mask, share),
        batch_size=loss.shape if reduction == "none" else (),
    )


def _check(chosen: Any, rejected: Any, mask: Any, reduction: Any) -> None:
    if reduction not in _REDUCTIONS:
        raise OptionError(
            "this is no reduction",
            expected=f"one of {', '.join(map(repr, _REDUCTIONS))}",
            got=repr(reduction),
        )
    for name, scores in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(scores, torch.Tensor) or not scores.is_floating_point():
            raise OperandError(
                f"{name} are no scores",
                expected="a tensor of floating-point numbers",
                got=getattr(scores, "dtype", type(scores).__name__),
            )
    if chosen.dtype != rejected.dtype:
        raise OperandError(
            "the scores have two dtypes", got=f"{chosen.dtype} and {rejected.dtype}"
        )
    if mask is not None and getattr(mask, "dtype", None) != torch.bool:
        raise OperandError(
            "the mask does not say which pairs count",
            expected="a tensor of bools",
            got=getattr(mask, "dtype", type(mask).__name__),
            fix="mask=weights > 0",
        )
    for name, other in (("rejected", rejected), ("mask", mask)):
        if other is not None and other.shape != chosen.shape:
            raise ShapeError(
                f"{name} and chosen do not pair up",
                expected=list(chosen.shape),
                got=list(other.shape),
            )


def _reduced(
    values: torch.Tensor, mask: torch.Tensor | None, reduction: Reduction
) -> torch.Tensor:
    if mask is not None:
        values = torch.where(mask, values, torch.zeros_like(values))
    if reduction == "none":
        return values
    total = values.sum()
    if reduction == "sum":
        return total
    count = values.numel() if mask is None else mask.sum()
    if isinstance(count, torch.Tensor):
        return total / count.clamp(min=1)
    return total / max(count, 1)


@dataclasses.dataclass(frozen=True)
class RewardModelLoss:
    """The loss of a reward model as a pure function of parameters and pairs.

    ``RewardModelLoss(score_fn)(params, td)`` scores both sides of every pair in one
    call of `score_fn`, and returns `reward_model_loss` of the scores.

    Attributes:
        score_fn: a function of parameters and answers that returns a score for each:
            ``[rows]`` or ``[rows, 1]``. It gets the answers of both sides, the chosen
            first, joined along their first batch dim: twice the rows. Of a single pair
            (no batch dim) it gets two rows.
        chosen_key: key or path of the preferred answers in `td`: tensors
            ``[*pairs, ...]``, or a tree of them.
        rejected_key: key or path of the others.
        mask_key: key or path of the mask of pairs, bool ``[*pairs]``; None for none.
        center_coeff: as of `reward_model_loss`.
        reduction: as of `reward_model_loss`.

    Raises:
        MissingKeyError: when called, an entry is not in the tree.
        ShapeError: when called, `score_fn` returns another shape.
        TdfuncError: what `reward_model_loss` raises.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from tdfunc.objectives import RewardModelLoss
        >>> pairs = TensorDict(chosen=torch.ones(8, 3), rejected=torch.zeros(8, 3))
        >>> loss = RewardModelLoss(lambda params, x: x @ params["w"])
        >>> params = TensorDict(w=torch.ones(3))
        >>> loss(params, pairs.with_batch_size(8)).accuracy
        tensor(1.)
    """

    score_fn: Callable[[Any, Any], torch.Tensor]
    chosen_key: str | Path = "chosen"
    rejected_key: str | Path = "rejected"
    mask_key: str | Path | None = None
    center_coeff: float | None = None
    reduction: Reduction = "mean"

    @property
    def in_keys(self) -> tuple[str | Path, ...]:
        """The entries that are read from the tree of pairs."""
        keys = (self.chosen_key, self.rejected_key)
        return keys if self.mask_key is None else (*keys, self.mask_key)

    def __call__(self, params: Any, td: Node) -> RewardModelLossOutput:
        """Return the loss of the pairs in `td`."""
        pairs = td.batch_size
        sides = [td[self.chosen_key], td[self.rejected_key]]
        joined = _cat(sides) if pairs else _stack(sides)
        rows = (2 * pairs[0], *pairs[1:]) if pairs else (2,)
        scores = self.score_fn(params, joined)
        if scores.shape == (*rows, 1):
            scores = scores.squeeze(-1)
        if scores.shape != rows:
            raise ShapeError(
                "score_fn does not return one score for every answer",
                expected=f"{list(rows)} or {[*rows, 1]}",
                got=list(scores.shape),
            )
        scores = scores.reshape(2, *pairs)
        return reward_model_loss(
            scores[0],
            scores[1],
            center_coeff=self.center_coeff,
            mask=None if self.mask_key is None else td[self.mask_key],
            reduction=self.reduction,
        )


def _cat(sides: list[Any]) -> Any:
    return join.cat(sides) if isinstance(sides[0], Node) else torch.cat(sides)


def _stack(sides: list[Any]) -> Any:
    return join.stack(sides) if isinstance(sides[0], Node) else torch.stack(sides)
