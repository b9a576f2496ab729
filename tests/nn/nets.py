"""Networks and trees that several tests of modules use."""

from __future__ import annotations

import torch
from torch import nn

from tdfunc import TensorDict
from tdfunc.nn import TensorDictModule, TensorDictSequential
from tests.cases import fingerprint, ramp

X = ramp(4, 3) / 10 - 0.5


def tree() -> TensorDict:
    return TensorDict({"x": X, "other": ramp(4)}, batch_size=4)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def state_of(net: nn.Module) -> object:
    """Return bytes and versions of all tensors of a module, and its attributes."""
    tensors = [*net.parameters(), *net.buffers()]
    names = [sorted(vars(part)) for part in net.modules()]
    return fingerprint(tensors), names, [part.training for part in net.modules()]


def chain() -> TensorDictSequential:
    """Return the sequence of the guide: x -> y, (y, mask) -> z, (z, mask) -> h."""
    torch.manual_seed(0)
    return TensorDictSequential(
        TensorDictModule(nn.Linear(3, 3), ["x"], ["y"]),
        TensorDictModule(lambda y, mask: y + mask, ["y", "mask"], ["z"]),
        TensorDictModule(lambda z, mask: z * mask, ["z", "mask"], ["h"]),
    )
