"""The same modules in the peer, where it is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tdfunc import TensorDict
from tdfunc.nn import TensorDictModule, TensorDictSequential
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
