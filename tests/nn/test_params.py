"""Trees held by an `nn.Module`, and modules that hold a tree for a block."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import InvalidKeyError, MissingKeyError, OperandError, ShapeError
from tdfunc.nn import TensorDictModule, TensorDictParams, to_module
from tests.cases import ramp
from tests.nn.nets import X, mlp, state_of, tree

TREE = TensorDict(
    {
        "layer": {"w": ramp(2, 3), "steps": torch.tensor(3)},
        "half": torch.zeros(2, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "name": NonTensorData("net"),
    }
)


class TestTensorDictParams:
    def test_floating_dtypes_are_parameters_and_others_buffers(self):
        held = TensorDictParams(TREE)

        assert {"layer.w", "half"} == dict(held.named_parameters()).keys()
        assert {"layer.steps", "mask"} == dict(held.named_buffers()).keys()
        assert TREE.equal(held.tree.detach())
        assert held.tree["layer", "w"].requires_grad

    def test_tensors_are_copied(self):
        tree = TREE.clone()
        held = TensorDictParams(tree)
        with torch.no_grad():
            held.tree["layer", "w"].add_(1)

        assert torch.equal(TREE["layer", "w"], tree["layer", "w"])
        assert torch.equal(TREE["layer", "w"] + 1, held.tree["layer", "w"])

    def test_a_tensor_at_two_places_is_one_parameter(self):
        w, count = torch.ones(2), torch.tensor(3)
        held = TensorDictParams(
            TensorDict({"a": {"w": w, "n": count}, "b": w, "m": count})
        )
        (only,) = held.parameters()
        loss = held.tree["a", "w"].sum() + 2 * held.tree["b"].sum()
        loss.backward()

        assert torch.equal(torch.full((2,), 3.0), only.grad)  # pyright: ignore[reportArgumentType]
        assert held.tree["a", "w"] is held.tree["b"]
        assert held.tree["a", "n"] is held.tree["m"]
        (only,) = copy.deepcopy(held).to(torch.float64).parameters()
        assert only.dtype == torch.float64
        held.load_state_dict(held.state_dict())

    def test_without_conversion_only_parameters_are_parameters(self):
        tree = TensorDict(
            {"a": torch.zeros(2), "b": nn.Parameter(torch.ones(2), requires_grad=False)}
        )
        held = TensorDictParams(tree, no_convert=True)

        assert ["b"] == [name for name, _ in held.named_parameters()]
        assert not held.tree["b"].requires_grad
        assert ["a"] == [name for name, _ in held.named_buffers()]

    def test_optimizers_train_functional_parameters(self):
        module = TensorDictModule(mlp(), ["x"], ["y"])
        held = TensorDictParams(module.params())
        optimizer = torch.optim.SGD(held.parameters(), lr=0.1)
        module(held.tree, tree())["y"].square().sum().backward()
        grads = torch.func.grad(lambda p: module(p, tree())["y"].square().sum())(
            module.params()
        )
        expected = module.params() - 0.1 * grads
        optimizer.step()

        for path in expected.keys(True, True):
            torch.testing.assert_close(expected[path], held.tree[path].detach())

    def test_checkpoints_casts_and_copies(self):
        held, other = (
            TensorDictParams(TREE),
            TensorDictParams(TREE.apply(torch.zeros_like)),
        )
        file = io.BytesIO()
        torch.save(held.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file))

        assert TREE.equal(other.tree.detach())
        assert TREE.equal(copy.deepcopy(held).tree.detach())
        assert torch.float64 == held.double().tree["layer", "w"].dtype
        assert torch.int64 == held.tree["layer", "steps"].dtype

    def test_batch_size_and_names_are_kept(self):
        held = TensorDictParams(TensorDict({"a": ramp(2, 3)}, 2, names=["member"]))

        assert (2,) == held.tree.batch_size
        assert ("member",) == held.tree.names

    def test_what_is_refused(self):
        with pytest.raises(OperandError, match="got dict"):
            TensorDictParams({"a": torch.zeros(2)})
        clash = TensorDict({"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}})
        with pytest.raises(InvalidKeyError, match="no dots"):
            TensorDictParams(clash)


class TestToModule:
    def test_the_block_has_them_and_the_module_gets_its_own_back(self):
        net = mlp()
        params = tdfunc.from_module(net) * 0
        before, out = state_of(net), net(X)
        with to_module(params, net) as same:
            assert same is net
            assert torch.equal(torch.zeros(4, 2), net(X))

        assert before == state_of(net)
        assert torch.equal(out, net(X))

    def test_after_an_error_too(self):
        net = mlp()
        own = list(net.parameters())
        with pytest.raises(ZeroDivisionError), to_module(tdfunc.from_module(net), net):
            raise ZeroDivisionError

        assert all(a is b for a, b in zip(own, net.parameters(), strict=True))

    def test_it_is_a_method_of_trees(self):
        assert TensorDict.to_module is tdfunc.to_module is to_module
        net = mlp()
        own = tdfunc.from_module(net)
        with (own * 0).to_module(net) as outer:
            with own.to_module(outer):
                assert own.equal(tdfunc.from_module(net))
            assert not net(X).any()
            with pytest.raises(ZeroDivisionError), own.to_module(net):
                raise ZeroDivisionError
            assert not net(X).any()

        assert own.equal(tdfunc.from_module(net))

    def test_the_block_may_change_the_module(self):
        net = nn.Linear(3, 1)
        before = state_of(net)
        with tdfunc.from_module(net).to_module(net):
            net.weight = nn.Parameter(torch.ones(1, 3))
            del net.bias

        assert before == state_of(net)

    def test_layers_that_keep_lists_of_their_weights(self):
        net = nn.LSTM(3, 2)
        params, out = tdfunc.from_module(net), net(X)[0]
        with (params * 0).to_module(net):
            assert not net(X)[0].any()

        assert torch.equal(out, net(X)[0])

    def test_in_transforms_and_compiled(self):
        net = nn.Linear(3, 1)
        params = tdfunc.from_module(net)
        before = state_of(net)

        def call(params: TensorDict) -> torch.Tensor:
            with params.to_module(net):
                return net(X).sum()

        both = torch.vmap(call)(tdfunc.stack([params, params * 0]))
        assert [net(X).sum().item(), 0.0] == both.tolist()
        assert 4 == torch.func.grad(call)(params)["bias"]
        compiled = torch.compile(call, fullgraph=True, backend="eager")
        assert 0 == compiled(params * 0)
        assert before == state_of(net)

    def test_a_part_of_them_and_gradients(self):
        net = nn.Linear(3, 1)
        weight = torch.ones(1, 3, requires_grad=True)
        with to_module({"weight": weight}, net):
            net(X).sum().backward()

        assert net.weight.grad is None
        assert torch.equal(X.sum(0, keepdim=True), weight.grad)  # pyright: ignore[reportArgumentType]

    def test_tied_weights_go_together(self):
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        net[1].weight = net[0].weight
        with to_module({"0": {"weight": 2 * torch.eye(2)}}, net):
            assert [[4.0, 4.0]] == net(torch.ones(1, 2)).tolist()

    def test_buffers(self):
        net = nn.BatchNorm1d(2)
        buffers = tdfunc.from_module(net, buffers_only=True, copy=True)
        with to_module(buffers, net):
            net(torch.arange(8.0).view(4, 2))

        assert [0, 0] == net.running_mean.tolist()  # pyright: ignore[reportOptionalMemberAccess]
        torch.testing.assert_close(torch.tensor([0.3, 0.4]), buffers["running_mean"])

    @pytest.mark.parametrize(
        ("params", "error", "text"),
        [
            ({"wieght": X}, MissingKeyError, "expected one of 'weight'"),
            ({"a": {"b": X}, "c": X}, MissingKeyError, "got a.b, c"),
            ({"weight": X}, ShapeError, "'weight' of shape [1, 3] - got [4, 3]"),
            (3, OperandError, "got int"),
        ],
        ids=["name", "names", "shape", "kind"],
    )
    def test_what_is_refused(self, params, error, text):
        net = nn.Linear(3, 1)
        before = state_of(net)
        with pytest.raises(error) as caught, to_module(params, net):
            pass

        assert text in str(caught.value)
        assert before == state_of(net)

    def test_what_is_no_module(self):
        with pytest.raises(OperandError, match="no module"), TREE.to_module(3):  # pyright: ignore[reportArgumentType]
            pass

    def test_no_tensors_are_no_change(self):
        net = nn.Linear(3, 1)
        before = state_of(net)
        with TensorDict({}).to_module(net):
            assert before == state_of(net)
