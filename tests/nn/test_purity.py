"""Every way to call a module leaves nets, trees, keys and torch's generator alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn.utils.parametrizations import spectral_norm

import tdfunc
from tdfunc import TensorDict, random
from tdfunc.nn import (
    EnsembleModule,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    functional_vmap,
)
from tdfunc.testing import assert_pure
from tests.nn.nets import X, state_of, tree

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = random.key(0)


class Caching(nn.Module):
    """Keeps what it saw: as an attribute, as a new buffer, and inside a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.last: Any = None
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = x
        self.seen = self.seen + 1
        self.part.cache = x
        return self.part(x)


NETS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.RReLU()),
    "spectral norm": lambda: spectral_norm(nn.Linear(3, 3)),
    "old spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(3, 3)),
    "caches": Caching,
    "in place": lambda: nn.Sequential(nn.Linear(3, 3), nn.SELU(inplace=True)),
}
MAPPED = [name for name in NETS if "spectral" not in name]  # torch has no rule for it


def module_of(name: str) -> tuple[nn.Module, TensorDictModule]:
    torch.manual_seed(0)
    net = NETS[name]()
    return net, TensorDictModule(net, ["x"], ["y"])


def unchanged(net: nn.Module, call: Callable[..., Any], *args: Any) -> Any:
    before, rng = state_of(net), torch.get_rng_state()
    out = assert_pure(call, *args)

    assert before == state_of(net)
    assert torch.equal(rng, torch.get_rng_state())
    return out


@pytest.mark.parametrize("name", NETS)
def test_modules_and_sequences(name: str) -> None:
    net, module = module_of(name)
    params, buffers = module.params(), module.buffers()
    twice = TensorDictSequential(module, module.replace(in_keys=["y"], out_keys=["z"]))
    pair, both = twice.params(), twice.buffers()
    with_grad = torch.func.grad(lambda p, td: module(p, td, key=KEY)["y"].sum())

    unchanged(net, lambda p, td: module(p, td, key=KEY), params, tree())
    unchanged(net, lambda p, x: module(p, x=x, key=KEY), params, X)
    unchanged(net, lambda p, td: twice(p, td, key=KEY), pair, tree())
    unchanged(net, with_grad, params, tree())
    unchanged(
        net,
        lambda p, b, td: module.call_with_buffers(p, b, td, key=KEY),
        params,
        buffers,
        tree(),
    )
    unchanged(
        net,
        lambda p, b, td: twice.call_with_buffers(p, b, td, key=KEY),
        pair,
        both,
        tree(),
    )
    unchanged(net, module.init, KEY)


@pytest.mark.parametrize("name", NETS)
def test_distributions(name: str) -> None:
    net, module = module_of(name)
    seq = ProbabilisticTensorDictSequential(
        module.replace(out_keys=["loc"]),
        ProbabilisticTensorDictModule(
            ["loc"],
            ["a"],
            distribution_class=Normal,
            distribution_kwargs={"scale": 1.0},
            return_log_prob=True,
            default_interaction_type="random",
        ),
    )
    params = seq.params()
    out = unchanged(net, lambda p, td: seq(p, td, key=KEY), params, tree())

    unchanged(net, lambda p, td: seq.dist(p, td, key=KEY).mean, params, tree())
    unchanged(net, lambda p, td: seq.log_prob(p, td, key=KEY), params, out)
    unchanged(net, lambda p, td: seq.score(p, td, key=KEY), params, out)
    unchanged(net, lambda p, td: seq.get_dist_params(p, td, key=KEY), params, tree())


@pytest.mark.parametrize("name", MAPPED)
def test_ensembles(name: str) -> None:
    net, module = module_of(name)
    ensemble = EnsembleModule(module, 2)
    params = tdfunc.stack([module.params()] * 2)
    buffers = ensemble.buffers()

    unchanged(net, lambda p, td: ensemble(p, td, key=KEY), params, tree())
    unchanged(
        net,
        lambda p, b, td: ensemble.call_with_buffers(p, b, td, key=KEY),
        params,
        buffers,
        tree(),
    )
    unchanged(
        net, lambda p, td: functional_vmap(module, p, td, key=KEY), params, tree()
    )
    unchanged(net, ensemble.init, KEY)


@pytest.mark.parametrize("name", NETS)
def test_loops_over_sets(name: str) -> None:
    net, module = module_of(name)
    params = tdfunc.stack([module.params()] * 2)

    unchanged(
        net,
        lambda p, td: functional_vmap(module, p, td, key=KEY, loop=True),
        params,
        tree(),
    )


def test_buffers_that_a_forward_replaces_come_back() -> None:
    net, module = module_of("caches")
    buffers = module.buffers()
    for count in (1.0, 2.0):
        _, buffers = module.call_with_buffers(module.params(), buffers, tree())
        assert TensorDict({"seen": count}).equal(buffers)

    assert 0 == net.get_buffer("seen")
