"""Rows of modules: a linear layer, a chain of them, an ensemble."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

import tdfunc
from tdfunc import TensorDict
from tdfunc.nn import EnsembleModule, TensorDictModule, TensorDictSequential
from tests.bench.row import Sides, on
from tests.bench.trees import peer_installed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.row import Case
    from tests.bench.trees import Data

BATCH, WIDTH = 2, 4
MEMBERS = 8


def chain(count: int) -> Callable[[Data], Sides]:
    """Return the row of so many linear layers, called in turn on one tree."""

    def build(d: Data) -> Sides:
        x = torch.ones(BATCH, WIDTH)
        layers = [nn.Linear(WIDTH, WIDTH).requires_grad_(False) for _ in range(count)]
        keys = [f"h{i}" for i in range(count + 1)]
        modules = [
            TensorDictModule(layer, [i], [o])
            for layer, i, o in zip(layers, keys, keys[1:], strict=False)
        ]
        ours: Any = modules[0] if count == 1 else TensorDictSequential(*modules)
        params, td = ours.params(), TensorDict({"h0": x}, BATCH)
        weights = [(layer.weight.detach(), layer.bias.detach()) for layer in layers]

        def floor() -> list[torch.Tensor]:
            outs = [x]
            for weight, bias in weights:
                outs.append(F.linear(outs[-1], weight, bias))
            return outs

        peer = None
        if d.peer is not None and peer_installed():
            peer = _peer_chain(type(d.peer), layers, keys, x)
        return Sides(floor, lambda: ours(params, td), peer)

    return build


def _peer_chain(
    cls: Any, layers: list[nn.Linear], keys: list[str], x: torch.Tensor
) -> Callable[[], Any]:
    from tensordict import nn as theirs

    parts = [
        theirs.TensorDictModule(layer, [i], [o])
        for layer, i, o in zip(layers, keys, keys[1:], strict=False)
    ]
    module: Any = parts[0] if len(parts) == 1 else theirs.TensorDictSequential(*parts)
    td = cls({"h0": x}, [BATCH])
    return lambda: module(td.copy())


def ensemble(_: Data) -> Sides:
    x = torch.ones(64, 16)
    nets = [
        nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).eval()
        for _ in range(MEMBERS)
    ]
    stacked, buffers = torch.func.stack_module_state(nets)
    state = {name: tensor.detach() for name, tensor in stacked.items()}

    def call(params: Any, x: torch.Tensor) -> Any:
        return torch.func.functional_call(nets[0], (params, buffers), (x,))

    ours = EnsembleModule(
        TensorDictModule(nets[0], ["x"], ["y"], output="only"), MEMBERS
    )
    params, td = tdfunc.from_modules(*nets), TensorDict({"x": x}, 64)
    return Sides(
        lambda: {"y": torch.vmap(call, (0, None))(state, x)},
        lambda: ours(params, td),
        None,
    )


MODULES: list[Case] = [
    *on(("plain tensors",), "module call, 1 linear", chain(1), 2),
    *on(("plain tensors",), "module call, sequence of 5", chain(5), 1.6),
    *on(("plain tensors",), f"ensemble of {MEMBERS}", ensemble, 1),
]
