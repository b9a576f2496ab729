"""The same modules in the peer, where it is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

from tdfunc import TensorDict
from tdfunc import nn as nn_ours
from tdfunc.nn import (
    CompositeDistribution,
    EnsembleModule,
    TensorDictModule,
    TensorDictSequential,
    set_skip_existing,
)
from tests.cases import ramp

tensordict = pytest.importorskip("tensordict")
theirs: Any = pytest.importorskip("tensordict.nn")

X = ramp(4, 3) / 7


def layers(kind: Any) -> list[Any]:
    torch.manual_seed(0)
    return [
        kind(nn.Linear(3, 3), in_keys=["x"], out_keys=["y"]),
        kind(lambda y, mask: (y + mask, y), in_keys=["y", "mask"], out_keys=["z", "_"]),
        kind(lambda z, mask: (z * mask, z), in_keys=["z", "mask"], out_keys=["h", "y"]),
        kind(torch.add, in_keys=["y", ("n", "a")], out_keys=[("m", "b")]),
    ]


ENTRIES = {"x": X, "mask": torch.ones(4, 3) * 2, "n": {"a": X}}


@pytest.mark.parametrize("outs", [None, ["y"], ["z"], ["h"], [("m", "b")]])
def test_sequences(outs: Any) -> None:
    ours = TensorDictSequential(*layers(TensorDictModule))
    other = theirs.TensorDictSequential(*layers(theirs.TensorDictModule))
    params = ours.params()
    if outs is not None:
        ours = ours.select_subsequence(out_keys=outs)
        other = other.select_subsequence(out_keys=outs)
    got = ours(ours.project(params), TensorDict(ENTRIES, 4))
    expected = other(tensordict.TensorDict(ENTRIES, [4]))

    assert list(ours.in_keys) == list(other.in_keys)
    assert list(ours.out_keys) == [key for key in other.out_keys if key != "_"]
    assert set(got.keys(True, True)) == set(expected.keys(True, True))
    for path in got.keys(True, True):
        torch.testing.assert_close(expected[path], got[path], check_stride=False)


def test_calls_with_tensors() -> None:
    ours = TensorDictModule(torch.add, ["a", ("n", "b")], ["y"])
    other = theirs.TensorDictModule(torch.add, ["a", ("n", "b")], ["y"])

    assert torch.equal(other(a=X, n_b=X), ours(None, a=X, n_b=X))
    assert torch.equal(other(X, n_b=X), ours(None, X, n_b=X))


def test_parameters() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    held = theirs.TensorDictParams(tensordict.from_module(net))
    from tdfunc import from_module
    from tdfunc.nn import TensorDictParams

    ours = TensorDictParams(from_module(net))
    assert dict(held.named_parameters()).keys() == dict(ours.named_parameters()).keys()
    assert dict(held.named_buffers()).keys() == dict(ours.named_buffers()).keys()


def test_an_ensemble_of_the_same_members() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    other = theirs.EnsembleModule(
        theirs.TensorDictModule(net, in_keys=["x"], out_keys=["y"]), 3
    )
    ours = EnsembleModule(TensorDictModule(net, ["x"], ["y"]), 3)
    flat = other.params_td.flatten_keys(".")
    names = {key: key.removeprefix("module.") for key in flat.keys()}  # noqa: SIM118
    params = TensorDict(
        {name: flat[key].detach() for key, name in names.items()}, 3
    ).unflatten_keys(".")
    got = ours(params, TensorDict({"x": X}, 4))
    expected = other(tensordict.TensorDict({"x": X}, [4]))

    assert expected.batch_size == got.batch_size
    torch.testing.assert_close(expected["y"].detach(), got["y"])


@pytest.mark.parametrize("mode", [True, ["y"], ["z", "h"], ["h", "y"]])
def test_skipping(mode: Any) -> None:
    seen: list[str] = []

    def named(name: str) -> Any:
        return lambda x: seen.append(name) or x + 1

    def of(lib: Any) -> Any:
        return [
            lib.TensorDictModule(named(key), in_keys=[read], out_keys=[key])
            for read, key in zip("xyz", "yzh", strict=True)
        ]

    ours = TensorDictSequential(*of(nn_ours))
    other = theirs.TensorDictSequential(*of(theirs))
    entries = {"x": X, "y": X, "h": X}
    with theirs.set_skip_existing(mode):
        expected = other(tensordict.TensorDict(entries, [4]))
    by_them, seen = seen, []
    with set_skip_existing(mode):
        got = ours(None, TensorDict(entries, 4))

    assert by_them == seen
    for key in "yzh":
        assert torch.equal(expected[key], got[key])


def test_distributions_of_several_parts() -> None:
    entries = {
        "a": {"loc": X[:, 0], "scale": X[:, 1] + 1},
        "n": {"b": {"logits": X}},
    }
    parts = {"a": Normal, ("n", "b"): Categorical}
    other = theirs.CompositeDistribution(tensordict.TensorDict(entries, [4]), parts)
    ours = CompositeDistribution(TensorDict(entries, 4), parts)
    value = {"a": X[:, 2], "n": {"b": torch.tensor([0, 2, 1, 0])}}
    with theirs.set_composite_lp_aggregate(False):
        expected = other.log_prob(tensordict.TensorDict(value, [4]))
        entropy = other.entropy()
    got = ours.log_prob(TensorDict(value, 4), aggregate=False)

    for found, wanted in ((got, expected), (ours.entropy(), entropy)):
        assert set(wanted.keys(True, True)) == set(found.keys(True, True))
        for path in found.keys(True, True):
            torch.testing.assert_close(wanted[path], found[path])
    with theirs.set_composite_lp_aggregate(True):
        total = other.log_prob(tensordict.TensorDict(value, [4]))
    torch.testing.assert_close(
        total, ours.log_prob(TensorDict(value, 4), aggregate=True)
    )


def chain_of(lib: Any) -> Any:
    def unit(read: str, write: str) -> Any:
        return lib.ProbabilisticTensorDictModule(
            in_keys={"loc": read},
            out_keys=[write],
            distribution_class=Normal,
            distribution_kwargs={"scale": 2.0},
            return_log_prob=True,
        )

    double = lib.TensorDictModule(lambda y: 2 * y, in_keys=["y"], out_keys=["mu"])
    return lib.ProbabilisticTensorDictSequential(
        unit("x", "y"), double, unit("mu", "z")
    )


def test_chains_of_distributions() -> None:
    ours, other = chain_of(nn_ours), chain_of(theirs)
    # The peer is right where `y` is what it takes by itself: it does not read it.
    value = {"x": X, "y": X, "mu": 2 * X, "z": X + 1}
    with theirs.set_composite_lp_aggregate(False):
        expected = other.log_prob(tensordict.TensorDict(value, [4]))
    got = ours.log_prob(None, TensorDict(value, 4))

    assert other.return_composite == ours.return_composite
    for key in ("y_log_prob", "z_log_prob"):
        torch.testing.assert_close(expected[key], got[key])
    for cut in (slice(1), slice(2), slice(1, 2), slice(1, 3), slice(2, 3)):
        mine, their = ours[cut], other[cut]
        assert list(their.in_keys) == list(mine.in_keys)
        assert list(their.out_keys) == list(mine.out_keys)
