"""Ensembles: the loop over members, in one vmap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tdfunc
from tdfunc import TensorDict, random
from tdfunc.errors import OperandError, OptionError, ShapeError
from tdfunc.nn import (
    EnsembleModule,
    TensorDictModule,
    TensorDictSequential,
    functional_vmap,
)
from tdfunc.testing import assert_pure
from tests.cases import ramp
from tests.nn.nets import X, mlp, tree

BAD: Any = 3
NETS = [mlp() for _ in range(4)]
for _seed, _net in enumerate(NETS):
    torch.manual_seed(_seed)
    for _part in (_net[0], _net[2]):
        _part.reset_parameters()  # pyright: ignore[reportCallIssue]
PARAMS = tdfunc.from_modules(*NETS)
LOOP = torch.stack([net(X) for net in NETS]).detach()


class TestFunctionalVmap:
    @pytest.mark.parametrize("loop", [False, True])
    def test_shared_inputs(self, loop):
        out = functional_vmap(NETS[0], PARAMS, X, loop=loop)

        torch.testing.assert_close(LOOP, out)

    @pytest.mark.parametrize("loop", [False, True])
    def test_inputs_of_each_set(self, loop):
        own = torch.stack([X + i for i in range(4)], 1)  # [rows, sets, features]
        expected = torch.stack([net(X + i) for i, net in enumerate(NETS)])

        for dims in ((1,), (-2,), {0: 1}):
            out = functional_vmap(NETS[0], PARAMS, (own,), in_dims=dims, loop=loop)
            torch.testing.assert_close(expected, out)
        named = functional_vmap(
            NETS[0], PARAMS, kwargs={"input": own}, in_dims={"input": 1}, loop=loop
        )
        torch.testing.assert_close(expected, named)

    @pytest.mark.parametrize("loop", [False, True])
    def test_several_batch_dims(self, loop):
        params = PARAMS.reshape(2, 2)
        out = functional_vmap(NETS[0], params, X, loop=loop)
        torch.testing.assert_close(LOOP.reshape(2, 2, 4, 2), out)

        own = torch.stack([X + i for i in range(4)]).reshape(2, 2, 4, 3)
        expected = torch.stack([net(X + i) for i, net in enumerate(NETS)])
        mine = functional_vmap(
            NETS[0], params, own.movedim(2, 0), in_dims=(1,), loop=loop
        )
        torch.testing.assert_close(expected.reshape(2, 2, 4, 2), mine)

    def test_an_empty_batch_is_one_call(self):
        one = tdfunc.from_module(NETS[0])

        assert torch.equal(NETS[0](X), functional_vmap(NETS[0], one, X))

    @pytest.mark.parametrize("loop", [False, True])
    def test_modules_of_trees_and_their_keys(self, loop):
        module = TensorDictModule(
            nn.Sequential(nn.Linear(3, 2), nn.Dropout()), ["x"], ["y"]
        )
        params = tdfunc.stack([module.init(random.key(i)) for i in range(4)])
        key = random.key(5)
        out = functional_vmap(module, params.reshape(2, 2), tree(), key=key, loop=loop)
        keys = random.split(key, 4)

        assert (2, 2, 4) == out.batch_size
        for i in range(4):
            expected = module(params[i], tree(), key=keys[i])
            torch.testing.assert_close(expected["y"], out["y"].flatten(0, 1)[i])
        rows = functional_vmap(module, params, tree(), in_dims=(0,), key=key, loop=loop)
        assert (4,) == rows.batch_size

    def test_methods_and_chunks(self):
        class Net(nn.Linear):
            def twice(self, x: torch.Tensor) -> torch.Tensor:
                return 2 * self(x)

        nets = [Net(3, 2) for _ in range(4)]
        params = tdfunc.from_modules(*nets)
        out = functional_vmap(nets[0], params, X, method="twice", chunk_size=3)

        torch.testing.assert_close(torch.stack([2 * net(X) for net in nets]), out)

    def test_the_loop_does_what_vmap_can_not(self):
        nets = [nn.GRU(3, 2) for _ in range(3)]
        params = tdfunc.from_modules(*nets)
        out, state = functional_vmap(nets[0], params, X, loop=True)

        torch.testing.assert_close(torch.stack([net(X)[0] for net in nets]), out)
        assert (3, 1, 2) == state.shape

    def test_it_is_pure_and_compiles(self):
        assert_pure(lambda p, x: functional_vmap(NETS[0], p, x), PARAMS, X)
        compiled = torch.compile(
            lambda p, x: functional_vmap(NETS[0], p, x), fullgraph=True, backend="eager"
        )
        torch.testing.assert_close(LOOP, compiled(PARAMS, X))

    @pytest.mark.parametrize(
        ("call", "error", "text"),
        [
            (lambda: functional_vmap(NETS[0], {}, X), OperandError, "from_modules"),
            (
                lambda: functional_vmap(NETS[0], PARAMS, X, key=random.key(0)),
                OptionError,
                "takes no key",
            ),
            (
                lambda: functional_vmap(NETS[0], PARAMS, X, in_dims={"z": 0}),
                OptionError,
                "got 'z'",
            ),
            (
                lambda: functional_vmap(NETS[0], PARAMS, X, in_dims=(0, 0)),
                OptionError,
                "1 entries",
            ),
            (
                lambda: functional_vmap(NETS[0], PARAMS, X, in_dims=0),
                OptionError,
                "a dict, a tuple or None",
            ),
            (
                lambda: functional_vmap(NETS[0], PARAMS, X, in_dims=(1,)),
                ShapeError,
                "expected [4] at dim 1 - got shape [4, 3]",
            ),
            (
                lambda: functional_vmap(NETS[0], PARAMS, tree(), in_dims=(1,)),
                ShapeError,
                "[4] at dim 1",
            ),
            (lambda: functional_vmap(BAD, PARAMS, X), OptionError, "got int"),
            (
                lambda: functional_vmap(NETS[0], PARAMS, 3.0, in_dims=(0,)),
                OperandError,
                "all sets share it",
            ),
            (
                lambda: functional_vmap(NETS[0], PARAMS[:0], X, loop=True),
                ShapeError,
                "no parameter sets",
            ),
            (
                lambda: functional_vmap(lambda _: 3.0, PARAMS, loop=True),
                OperandError,
                "expected tensors, or trees of them - got float",
            ),
            (
                lambda: functional_vmap(NETS[0], PARAMS, X, in_dims=("x",)),
                OptionError,
                "ints and None - got 'x'",
            ),
            (
                lambda: functional_vmap(NETS[0], PARAMS, X, method="nope"),
                OptionError,
                "got 'nope'",
            ),
            (
                lambda: functional_vmap(
                    lambda _, key: key, PARAMS, (), {"key": X}, key=random.key(0)
                ),
                OptionError,
                "given twice",
            ),
        ],
        ids=[
            *("params", "key", "name", "count", "kind", "dim", "tree dim", "module"),
            *("number", "empty loop", "output", "word", "method", "two keys"),
        ],
    )
    def test_bad_calls(self, call, error, text):
        with pytest.raises(error) as caught:
            call()

        assert text in str(caught.value)


class TestEnsembleModule:
    module = TensorDictModule(mlp(), ["x"], ["y"])

    def test_members_are_those_of_their_own_keys(self):
        key = random.key(0)
        params = EnsembleModule(self.module, 3).init(key)
        keys = random.split(key, 3)

        for i in range(3):
            assert params[i].equal(self.module.init(keys[i]))
        assert params.equal(EnsembleModule(self.module, 3).init(key))
        assert params[:1].equal(EnsembleModule(self.module, 1).init(key))
        weights = params["0", "weight"]
        assert not any(torch.equal(weights[i], weights[i - 1]) for i in range(3))

    def test_it_is_the_loop(self):
        ensemble = EnsembleModule(self.module, 3)
        params = ensemble.init(random.key(0))
        out = ensemble(params, tree())

        assert (3, 4) == out.batch_size
        for i in range(3):
            expected = self.module(params[i], tree())
            for key in ("x", "other", "y"):
                torch.testing.assert_close(expected[key], out[key][i])
        torch.testing.assert_close(out["y"], ensemble(params, x=X))

    def test_ensembles_chain(self):
        first = EnsembleModule(self.module, 3)
        second = EnsembleModule(
            TensorDictModule(nn.Linear(2, 1), ["y"], ["z"]), 3, expand_input=False
        )
        seq = TensorDictSequential(first, second)
        params = seq.init(random.key(0))
        out = seq(params, tree())

        assert (3, 4) == out.batch_size
        expected = second.module(params["1"][2], self.module(params["0"][2], tree()))
        torch.testing.assert_close(expected["z"], out["z"][2])

    def test_keys_and_buffers_of_members(self):
        net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout())
        module = TensorDictModule(net, ["x"], ["y"])
        ensemble = EnsembleModule(module, 3)
        params, buffers = ensemble.init(random.key(0)), ensemble.buffers()
        key = random.key(1)
        out, after = ensemble.call_with_buffers(params, buffers, tree(), key=key)
        keys = random.split(key, 3)

        assert (3,) == after.batch_size
        for i in range(3):
            one, held = module.call_with_buffers(
                params[i], buffers[i], tree(), key=keys[i]
            )
            torch.testing.assert_close(one["y"], out["y"][i])
            torch.testing.assert_close(
                held["1", "running_mean"], after["1", "running_mean"][i]
            )
        given = ensemble(params, tree(), key=key, buffers=buffers)
        torch.testing.assert_close(out["y"], given["y"])
        own, none = ensemble.call_with_buffers(params, None, tree(), key=key)
        torch.testing.assert_close(out["y"], own["y"])
        assert none is None
        with pytest.raises(ShapeError, match="the buffers of an ensemble have a row"):
            ensemble.call_with_buffers(params, module.buffers(), tree(), key=key)
        with pytest.raises(ShapeError, match="the buffers of an ensemble have a row"):
            ensemble(params, tree(), key=key, buffers=module.buffers())
        with pytest.raises(OptionError, match="got kye"):
            ensemble.call_with_buffers(params, buffers, tree(), kye=key)

    def test_tied_weights_stay_tied_in_every_member(self):
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        net[1].weight = net[0].weight
        module = TensorDictModule(net, ["x"], ["y"])
        ensemble = EnsembleModule(module, 3)
        params = ensemble.init(random.key(0))
        x = ramp(1, 2) + 1

        assert 1 == len(params._leaves)
        w = params["0", "weight"]
        torch.testing.assert_close(
            torch.stack([x @ w[i].T @ w[i].T for i in range(3)]), ensemble(params, x=x)
        )

    def test_compiled_and_differentiated(self):
        ensemble = EnsembleModule(self.module, 3)
        params = ensemble.init(random.key(0))
        compiled = torch.compile(
            lambda p, td: ensemble(p, td)["y"], fullgraph=True, backend="eager"
        )
        torch.testing.assert_close(
            ensemble(params, tree())["y"], compiled(params, tree())
        )
        grads = torch.func.grad(lambda p: ensemble(p, tree())["y"].sum())(params)
        one = torch.func.grad(lambda p: self.module(p, tree())["y"].sum())(params[1])
        for path in one.keys(True, True):
            torch.testing.assert_close(one[path], grads[path][1])

    @pytest.mark.parametrize("expand", [True, False])
    def test_modules_without_parameters_take_none(self, expand):
        double = TensorDictModule(lambda x: 2 * x, ["x"], ["y"])
        ensemble = EnsembleModule(double, 3, expand_input=expand)
        td = TensorDict({"x": ramp(3, 4)}, 3)
        out = ensemble(None, td)
        assert out.equal(ensemble(ensemble.init(random.key(0)), td))
        assert torch.equal(
            2 * (td["x"].expand(3, 3, 4) if expand else td["x"]), out["y"]
        )
        linear = EnsembleModule(TensorDictModule(nn.Linear(4, 2), ["x"], ["y"]), 3)
        with pytest.raises(OperandError, match="none are given"):
            linear(None, td)

    def test_bad_calls(self):
        class Fixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(3))

            def forward(self, x: torch.Tensor) -> Any:
                return x * self.w

        ensemble = EnsembleModule(self.module, 3)
        with pytest.raises(OperandError, match="no module of trees"):
            EnsembleModule(mlp(), 3)  # pyright: ignore[reportArgumentType]
        with pytest.raises(OptionError, match="num_copies=True"):
            EnsembleModule(self.module, True)
        with pytest.raises(OptionError, match="num_copies=0"):
            EnsembleModule(self.module, 0)
        with pytest.raises(OptionError, match="never differ"):
            ensemble.params()
        with pytest.raises(OperandError, match="the same parameters"):
            EnsembleModule(TensorDictModule(Fixed(), ["x"], ["y"]), 3).init(
                random.key(0)
            )
        with pytest.raises(ShapeError, match=r"batch size \[3\]"):
            ensemble(self.module.params(), tree())
        split = EnsembleModule(self.module, 3, expand_input=False)
        with pytest.raises(ShapeError, match="a row for each member"):
            split(split.init(random.key(0)), TensorDict({"x": X}, 4))
