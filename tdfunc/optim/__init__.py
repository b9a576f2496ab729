"""Optimizers as pairs of pure functions: gradient transformations in Optax's shape.

``tx.init(params)`` makes a state, ``tx.update(grads, state, params)`` gives updates and
the next state, and `apply_updates` adds the updates to the parameters. Parameters are
any pytree of floating or complex tensors, trees of tdfunc first. Arguments have torch's
names, and where torch has the optimizer the steps are torch's.

Nothing is written into. Where no gradient goes through the update torch's multi-tensor
and fused kernels do the work; inside transforms and compiled code, and where a leaf
requires a gradient, it is plain arithmetic that can be mapped and differentiated.
"""

from tdfunc.optim._adam import AdamState as AdamState
from tdfunc.optim._adam import adam as adam
from tdfunc.optim._adam import adamw as adamw
from tdfunc.optim._adam import scale_by_adam as scale_by_adam
from tdfunc.optim._alias import adagrad as adagrad
from tdfunc.optim._alias import lamb as lamb
from tdfunc.optim._alias import lion as lion
from tdfunc.optim._alias import rmsprop as rmsprop
from tdfunc.optim._alias import sgd as sgd
from tdfunc.optim._base import EmptyState as EmptyState
from tdfunc.optim._base import GradientTransformation as GradientTransformation
from tdfunc.optim._base import Schedule as Schedule
from tdfunc.optim._base import apply_updates as apply_updates
from tdfunc.optim._base import identity as identity
from tdfunc.optim._base import set_to_zero as set_to_zero
from tdfunc.optim._base import step as step
from tdfunc.optim._combine import AccumulateState as AccumulateState
from tdfunc.optim._combine import accumulate as accumulate
from tdfunc.optim._combine import chain as chain
from tdfunc.optim._combine import flat as flat
from tdfunc.optim._pick import MaskedNode as MaskedNode
from tdfunc.optim._pick import MultiState as MultiState
from tdfunc.optim._pick import masked as masked
from tdfunc.optim._pick import multi_transform as multi_transform
from tdfunc.optim._scale import EmaState as EmaState
from tdfunc.optim._scale import LionState as LionState
from tdfunc.optim._scale import RmsState as RmsState
from tdfunc.optim._scale import RssState as RssState
from tdfunc.optim._scale import ScheduleState as ScheduleState
from tdfunc.optim._scale import TraceState as TraceState
from tdfunc.optim._scale import add_decayed_weights as add_decayed_weights
from tdfunc.optim._scale import clip as clip
from tdfunc.optim._scale import clip_by_global_norm as clip_by_global_norm
from tdfunc.optim._scale import ema as ema
from tdfunc.optim._scale import scale as scale
from tdfunc.optim._scale import scale_by_learning_rate as scale_by_learning_rate
from tdfunc.optim._scale import scale_by_lion as scale_by_lion
from tdfunc.optim._scale import scale_by_rms as scale_by_rms
from tdfunc.optim._scale import scale_by_rss as scale_by_rss
from tdfunc.optim._scale import scale_by_schedule as scale_by_schedule
from tdfunc.optim._scale import scale_by_trust_ratio as scale_by_trust_ratio
from tdfunc.optim._scale import trace as trace
from tdfunc.optim._schedules import constant as constant
from tdfunc.optim._schedules import cosine_decay as cosine_decay
from tdfunc.optim._schedules import exponential_decay as exponential_decay
from tdfunc.optim._schedules import join_schedules as join_schedules
from tdfunc.optim._schedules import linear as linear
from tdfunc.optim._schedules import warmup_cosine as warmup_cosine

__all__ = [
    "AdamState",
    "adam",
    "adamw",
    "scale_by_adam",
    "adagrad",
    "lamb",
    "lion",
    "rmsprop",
    "sgd",
    "EmptyState",
    "GradientTransformation",
    "Schedule",
    "apply_updates",
    "identity",
    "set_to_zero",
    "step",
    "AccumulateState",
    "accumulate",
    "chain",
    "flat",
    "MaskedNode",
    "MultiState",
    "masked",
    "multi_transform",
    "EmaState",
    "LionState",
    "RmsState",
    "RssState",
    "ScheduleState",
    "TraceState",
    "add_decayed_weights",
    "clip",
    "clip_by_global_norm",
    "ema",
    "scale",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_schedule",
    "scale_by_trust_ratio",
    "trace",
    "constant",
    "cosine_decay",
    "exponential_decay",
    "join_schedules",
    "linear",
    "warmup_cosine",
]
