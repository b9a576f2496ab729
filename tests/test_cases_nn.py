"""CASES.md, area nn: what users of other libraries tripped over, one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tdfunc
from tdfunc import TensorDict, random
from tdfunc.errors import (
    InvalidLeafError,
    MissingKeyError,
    OptionError,
    StructureError,
)
from tdfunc.nn import EnsembleModule, TensorDictModule, TensorDictSequential
from tests.cases import ramp


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False)
        self.b = nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


TIED = TensorDictModule(Tied(), ["x"], ["y"])
ONES = torch.ones(1, 2)


def test_b25_calls_with_keys_repeat_and_leave_the_generator_alone() -> None:
    net = nn.Sequential(nn.Linear(2, 50), nn.Dropout())
    module = TensorDictModule(net, ["x"], ["y"])
    params, before = module.params(), torch.get_rng_state()
    seven, again, eight = (module(params, x=ONES, key=random.key(i)) for i in (7, 7, 8))

    assert torch.equal(seven, again)
    assert not torch.equal(seven, eight)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(OptionError, match="no key"):
        module(params, x=ONES)


def test_b35_a_tied_weight_is_one_leaf_and_a_misspelt_name_raises() -> None:
    params = TensorDict({"a": {"weight": 2 * torch.eye(2)}})

    assert 1 == len(tdfunc.from_module(Tied())._leaves)
    assert [[4.0, 4.0]] == TIED(params, x=ONES).tolist()
    assert 1 == len(tdfunc.grad(lambda p: TIED(p, x=ONES).sum())(params)._leaves)
    with pytest.raises(MissingKeyError, match="wieght"):
        TIED({"a": {"wieght": torch.eye(2)}}, x=ONES)


def test_b37_ties_hold_through_a_step_and_in_an_ensemble() -> None:
    params = TIED.params()
    grads = tdfunc.grad(lambda p: TIED(p, x=ONES).sum())(params)
    net = Tied()
    net.load_state_dict({f"{n}.weight": params["a", "weight"] for n in "ab"})
    net(ONES).sum().backward()
    assert net.a.weight.grad is not None
    torch.testing.assert_close(net.a.weight.grad, grads["a", "weight"])

    step = params - 0.1 * grads
    with torch.no_grad():
        net.a.weight -= 0.1 * net.a.weight.grad
    torch.testing.assert_close(net(ONES), TIED(step, x=ONES))
    ensemble = EnsembleModule(TIED, 3)
    members = ensemble.init(random.key(0))
    assert 1 == len(members._leaves)
    target = params.polyak(step, {"**": 0.5})
    assert 1 == len(target._leaves)  # a target has the tie too
    torch.testing.assert_close(
        (params + step)["a", "weight"] / 2, target["a", "weight"]
    )
    w = members["a", "weight"]
    twice = torch.stack([ONES @ w[i].T @ w[i].T for i in range(3)])
    torch.testing.assert_close(twice, ensemble(members, x=ONES))


def test_b38_members_differ_and_each_is_its_own_initialisation() -> None:
    module = TensorDictModule(nn.Linear(2, 2), ["x"], ["y"])
    key = random.key(0)
    members = EnsembleModule(module, 3).init(key)

    for i, own in enumerate(random.split(key, 3)):
        assert members[i].equal(module.init(own))
        assert not members[i].equal(members[i - 1])
    assert members.equal(EnsembleModule(module, 3).init(key))
    assert members[:1].equal(EnsembleModule(module, 1).init(key))


def test_b40_one_tree_serves_actor_critic_and_ensemble() -> None:
    torso = TensorDictModule(nn.Linear(2, 3), ["x"], ["h"])
    actor = TensorDictSequential(
        {"enc": torso, "head": TensorDictModule(nn.Linear(3, 1), ["h"], ["action"])}
    )
    critic = TensorDictSequential(
        {"enc": torso, "value": TensorDictModule(nn.Linear(3, 1), ["h"], ["value"])}
    )
    key = random.key(0)
    params = actor.init(key).update(critic.init(key))
    before = [(id(x), x.clone()) for x in params._leaves]
    td = TensorDict({"x": ramp(4, 2)}, 4)
    actor(actor.project(params), td)
    tdfunc.grad(lambda p: critic(critic.project(p), td)["value"].sum())(params)
    members = tdfunc.stack([params] * 3)
    EnsembleModule(actor, 3)(actor.project(members), td)

    for (old, value), leaf in zip(before, params._leaves, strict=True):
        assert id(leaf) == old
        assert torch.equal(value, leaf)

    target = actor.project(params) * 0
    online = target + 1
    moved = tdfunc.polyak(target, online, {"enc/**": 0.01, "head/**": 0.1})
    for part, tau in (("enc", 0.01), ("head", 0.1)):
        for x in moved[part]._leaves:
            torch.testing.assert_close(x, torch.full_like(x, tau))
    with pytest.raises(OptionError, match=r"td\['value', 'bias'\]"):
        tdfunc.polyak(params, params, {"enc/**": 0.01, "head/**": 0.1})
    with pytest.raises(MissingKeyError, match="value/"):
        tdfunc.polyak(target, online, {"**": 0.01, "value/**": 0.1})


def test_b41_targets_are_values() -> None:
    module = TensorDictModule(nn.Linear(2, 2), ["x"], ["y"])
    target = params = module.params()
    kept = target.clone()
    grads = tdfunc.grad(lambda p: module(p, x=ONES).sum())(params)
    params = params - 0.1 * grads

    assert kept.equal(target)
    assert not kept.equal(params)
    old, followed = TensorDict({"w": [1.0]}), TensorDict({"w": [3.0]})
    for tau in (0.005, {"w": 0.005}, 0, 1, {"w": 0}, {"w": 1}):
        new = tdfunc.polyak(old, followed, tau)
        rate = tau["w"] if isinstance(tau, dict) else tau
        torch.testing.assert_close(torch.tensor([1 + 2.0 * rate]), new["w"])
        assert new["w"].data_ptr() not in (
            old["w"].data_ptr(),
            followed["w"].data_ptr(),
        )

    lazy = TensorDictModule(nn.LazyLinear(4), ["x"], ["y"])
    for read in (lazy.params, lambda: lazy.init(random.key(0))):
        with pytest.raises(InvalidLeafError, match="run the module once on an input"):
            read()
    lazy.module(ONES)
    online = tdfunc.from_module(lazy.module, params_only=True, copy=True)
    assert online.equal(lazy.params())
    shared = {x.data_ptr() for x in online._leaves}
    assert not shared & {x.data_ptr() for x in lazy.params()._leaves}


def test_b43_output_keys_are_kept_once() -> None:
    net = TensorDictModule(lambda x: (x, x.mean(1)), ["x"], ["out", "mean"])
    other = net.replace(out_keys=("o1", "o2"))
    td = TensorDict({"x": torch.ones(3, 4)})
    new = other(None, td)

    assert ("x", "o1", "o2") == new.keys()
    assert ((3, 4), (3,)) == (new["o1"].shape, new["o2"].shape)
    assert ("x", "out", "mean") == net(None, td).keys()
    one = TensorDictModule(lambda x: x, ["x"], ["a", "b"])
    with pytest.raises(StructureError, match=r"2 outputs: 'a', 'b' - got 1"):
        one(None, td)


def test_b44_tensors_are_packed_by_name_and_nothing_is_guessed() -> None:
    sizes: list[Any] = []

    def look(params: Any, td: TensorDict) -> TensorDict:
        assert params is None
        sizes.append(td.batch_size)
        return td

    add = TensorDictModule(lambda a, b: (a.sum(), b.sum()), ["a", "b"], ["s", "t"])
    seq = TensorDictSequential(look, add)
    entries = {"a": torch.zeros(3, 5), "b": torch.ones(3, 2)}
    tree = add(None, TensorDict(entries))
    module = add(None, **entries)

    assert [tree["s"].item(), tree["t"].item()] == [x.item() for x in module]
    seq(None, TensorDict(entries))
    assert [()] == sizes
    renamed = add.replace(in_keys=["p", "q"])
    assert 6.0 == renamed(None, p=entries["a"], q=entries["b"])[1]
    with pytest.raises(OptionError, match="expected p, q - got a, b"):
        renamed(None, **entries)
    with pytest.raises(MissingKeyError, match="no 'b'"):
        add(None, a=entries["a"])


def test_b47_a_chain_does_not_touch_unrelated_ragged_entries() -> None:
    records = [
        TensorDict({"in": ramp(10, 3) + n, "other": ramp(10, n)}, 10) for n in (2, 5)
    ]
    stacked = tdfunc.lazy_stack(records)
    chain = TensorDictSequential(
        TensorDictModule(nn.Linear(3, 5), ["in"], ["hidden"]),
        TensorDictModule(nn.Linear(5, 1), ["hidden"], ["out"]),
    )
    out = chain(chain.params(), stacked)

    assert (2, 10, 1) == out["out"].shape
    torch.testing.assert_close(chain(chain.params(), records[1])["out"], out["out"][1])
    assert torch.equal(records[1]["other"], out[1]["other"])
    with pytest.raises(ValueError, match="other"):
        out["other"]
