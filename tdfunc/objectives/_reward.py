"""Losses of reward models: scores learnt from which of two answers was preferred.

A reward model gives every answer a score. Of a pair, the model of Bradley and Terry
says that the chosen answer is preferred with probability
``sigmoid(chosen - rejected)``; its negative log-likelihood is the loss. Only
differences matter to it, so that scores may drift together: the centering term keeps
their sum near 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from tdfunc._core.keys import as_path
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
_DTYPES = (*_HALF, torch.float32, torch.float64)


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
        """Return the sum of the tensors in fields that start with ``loss_``.

        Raises:
            FieldError: this is a part of a record, without ``loss_reward_model``.
        """
        total = self.loss_reward_model
        for key in self.keys():
            if key.startswith("loss_") and key != "loss_reward_model":
                term = self[key]
                if isinstance(term, torch.Tensor):
                    total = total + term
        return total


def reward_model_loss(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    *,
    center_coeff: float | torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    reduction: Reduction = "mean",
) -> RewardModelLossOutput:
    """Return the Bradley-Terry loss of pairs of scores, and the share told apart.

    ``loss_reward_model = -log sigmoid(chosen - rejected)`` and
    ``loss_center = center_coeff * (chosen + rejected) ** 2``, each reduced over pairs.
    Float16 and bfloat16 scores are computed with, and give losses, in float32.

    Args:
        chosen: the scores of the preferred answers, ``[*pairs]``, of float16, bfloat16,
            float32 or float64.
        rejected: the scores of the others, ``[*pairs]``.
        center_coeff: how much the centering term counts, a number or a tensor ``[]``,
            None to leave it out; 0.01 is what its authors use.
        mask: which pairs count, bool ``[*pairs]``; None for all. Scores of the others
            may be anything, not finite ones included, and get gradient 0.
        reduction: ``"mean"`` or ``"sum"`` over the pairs that count, 0 if there are
            none; ``"none"`` for a loss and an accuracy (0 or 1) of every pair, 0 where
            it does not count.

    Returns:
        A record with batch size ``[*pairs]`` if not reduced, else ``[]``. The accuracy
        is a share of pairs whatever the reduction; ties are wrong, and so are pairs
        with a score that is NaN.

    Raises:
        OperandError: scores are no tensors of one such dtype, or the mask is not one
            of bools.
        OptionError: the reduction or the coefficient is something else.
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
    _check(chosen, rejected, mask)
    _check_options(reduction, center_coeff)
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


def _check_options(reduction: Any, center_coeff: Any) -> None:
    if reduction not in _REDUCTIONS:
        raise OptionError(
            "this is no reduction",
            expected=f"one of {', '.join(map(repr, _REDUCTIONS))}",
            got=repr(reduction),
        )
    is_tensor = isinstance(center_coeff, torch.Tensor)
    if is_tensor and center_coeff.shape != ():
        raise OptionError(
            "center_coeff is one coefficient for all pairs",
            expected="a number, or a tensor of shape []",
            got=f"shape {list(center_coeff.shape)}",
        )
    if center_coeff is not None and not is_tensor and not _is_number(center_coeff):
        raise OptionError(
            "center_coeff is no number",
            expected="a number, a tensor of shape [], or None",
            got=repr(center_coeff),
        )


def _is_number(value: Any) -> bool:
    numbers = (int, float, np.number, torch.SymInt, torch.SymFloat)
    return isinstance(value, numbers) and not isinstance(value, bool)


def _check(chosen: Any, rejected: Any, mask: Any) -> None:
    for name, scores in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(scores, torch.Tensor) or scores.dtype not in _DTYPES:
            raise OperandError(
                f"{name} are no scores",
                expected="a tensor of floating-point numbers of 16, 32 or 64 bits",
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
        OptionError: the reduction or the coefficient is something else.
        MissingKeyError: when called, an entry is not in the tree.
        OperandError: when called, `td` is no tree, its answers are neither tensors nor
            trees or one of each, or `score_fn` returns no tensor.
        ShapeError: when called, the answers of both sides have other shapes (texts of
            other lengths want padding), or `score_fn` returns another shape.
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
    center_coeff: float | torch.Tensor | None = None
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        _check_options(self.reduction, self.center_coeff)

    @property
    def in_keys(self) -> tuple[str | Path, ...]:
        """The entries that are read from the tree of pairs."""
        keys = (self.chosen_key, self.rejected_key)
        return keys if self.mask_key is None else (*keys, self.mask_key)

    def __call__(self, params: Any, td: Node) -> RewardModelLossOutput:
        """Return the loss of the pairs in `td`."""
        pairs = _pairs_of(td)
        sides = self._sides(td)
        joined = _cat(sides) if pairs else _stack(sides)
        rows = (2 * pairs[0], *pairs[1:]) if pairs else (2,)
        scores: Any = self.score_fn(params, joined)
        if not isinstance(scores, torch.Tensor):
            raise OperandError(
                "score_fn does not return scores",
                expected=f"a tensor of shape {list(rows)} or {[*rows, 1]}",
                got=type(scores).__name__,
            )
        if scores.shape == (*rows, 1):
            scores = scores.squeeze(-1)
        if scores.shape != rows:
            raise ShapeError(
                "score_fn does not return one score for every answer"
                if pairs
                else "td.batch_size is [], which is one pair, and score_fn does not "
                "return one score for each of its two answers",
                expected=f"{list(rows)} or {[*rows, 1]}",
                got=list(scores.shape),
                fix=None if pairs else "td.with_batch_size(n) for a tree of n pairs",
            )
        scores = scores.reshape(2, *pairs)
        return reward_model_loss(
            scores[0],
            scores[1],
            center_coeff=self.center_coeff,
            mask=None if self.mask_key is None else td[self.mask_key],
            reduction=self.reduction,
        )

    def _sides(self, td: Node) -> list[Any]:
        """Return the answers of both sides, which can be joined."""
        keys = (self.chosen_key, self.rejected_key)
        sides: list[Any] = [td[key] for key in keys]
        for key, side in zip(keys, sides, strict=True):
            if not isinstance(side, (torch.Tensor, Node)):
                raise OperandError(
                    "there are no answers to be scored",
                    path=as_path(key),
                    expected="a tensor, or a tree of tensors",
                    got=type(side).__name__,
                )
        chosen, rejected = sides
        path = as_path(self.rejected_key)
        if isinstance(chosen, Node) != isinstance(rejected, Node):
            raise OperandError(
                "the answers of one side are a tree, those of the other are not",
                path=path,
                expected=f"a {type(chosen).__name__}, as {self.chosen_key!r} is",
                got=type(rejected).__name__,
            )
        if isinstance(chosen, torch.Tensor) and chosen.shape != rejected.shape:
            raise ShapeError(
                "the answers of both sides have other shapes, so one call can not "
                "score them",
                path=path,
                expected=f"{list(chosen.shape)}, as {self.chosen_key!r} has",
                got=list(rejected.shape),
                fix="pad both to one length",
            )
        return sides


def _pairs_of(td: Any) -> torch.Size:
    if not isinstance(td, Node):
        raise OperandError(
            "td is no tree of pairs",
            expected="a TensorDict or a record with one row for every pair",
            got=type(td).__name__,
            fix="TensorDict(td, batch_size=n)" if isinstance(td, Mapping) else None,
        )
    return td.batch_size


def _cat(sides: list[Any]) -> Any:
    return join.cat(sides) if isinstance(sides[0], Node) else torch.cat(sides)


def _stack(sides: list[Any]) -> Any:
    return join.stack(sides) if isinstance(sides[0], Node) else torch.stack(sides)
