"""Losses as pure functions that return typed records of their parts."""

from tdfunc.objectives._reward import RewardModelLoss as RewardModelLoss
from tdfunc.objectives._reward import RewardModelLossOutput as RewardModelLossOutput
from tdfunc.objectives._reward import reward_model_loss as reward_model_loss

__all__ = ["RewardModelLoss", "RewardModelLossOutput", "reward_model_loss"]
