"""Modules of tensors on trees: keys, outputs, buffers, purity, errors."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

import tdfunc
from tdfunc import TensorClass, TensorDict, random
from tdfunc.errors import (
    FieldError,
    InvalidKeyError,
    MissingKeyError,
    OperandError,
    OptionError,
    PathThroughLeafError,
    StructureError,
)
from tdfunc.nn import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    WrapModule,
    as_tensordict_module,
)
from tdfunc.testing import assert_pure
from tests.cases import cases, leaves_of, ramp, same
from tests.nn.nets import X, mlp, state_of, tree

BAD: Any = 3


class Record(TensorClass):
    x: torch.Tensor
    y: torch.Tensor | None = None


class TestCall:
    def test_it_reads_writes_and_returns_a_new_tree(self):
        net, td = mlp(), tree()
        module = TensorDictModule(net, ["x"], ["y"])
        out = module(module.params(), td)

        assert torch.equal(net(X), out["y"])
        assert ("x", "other", "y") == out.keys()
        assert out["x"] is td["x"]
        assert ("x", "other") == td.keys()
        assert torch.Size([4]) == out.batch_size

    def test_parameters_are_those_that_are_given(self):
        module = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])
        params = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}

        for given in (params, TensorDict(params)):
            assert torch.equal(
                X.sum(1, keepdim=True).expand(4, 2), module(given, tree())["y"]
            )

    @pytest.mark.parametrize("bias", [True, False])
    def test_hooks_and_other_forwards_of_linear_layers_run(self, bias):
        net = nn.Linear(3, 2, bias=bias)
        module = TensorDictModule(net, ["x"], ["y"])
        params = module.params()
        plain = module(params, tree())["y"]
        assert torch.equal(net(X), plain)
        add: Any = lambda _net, _args, out: out + 1  # noqa: E731
        handle = net.register_forward_hook(add)
        assert torch.equal(plain + 1, module(params, tree())["y"])
        handle.remove()
        own: Any = lambda x: x[:, :1]  # noqa: E731
        net.forward = own

        assert torch.equal(X[:, :1], module(params, tree())["y"])

    def test_names_are_nested_and_nodes_are_made(self):
        module = TensorDictModule(torch.add, [("n", "a"), "b"], [("m", "deep", "c")])
        td = TensorDict({"n": {"a": ramp(2, 3)}, "b": ramp(2, 3)}, batch_size=2)

        assert torch.equal(2 * ramp(2, 3), module(None, td)["m", "deep", "c"])

    def test_one_entry_may_feed_several_arguments(self):
        square = TensorDictModule(torch.mul, ["x", "x"], ["y"])

        assert torch.equal(X * X, square(None, tree())["y"])
        assert ("x",) == square.in_keys

    def test_a_dict_names_the_arguments(self):
        def fn(*, minuend: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return minuend - other

        td = TensorDict({"p": ramp(2), "q": torch.ones(2)})
        for keys, turned in (
            ({"minuend": "p", "other": "q"}, True),
            ({"p": "minuend", "q": "other"}, False),
        ):
            module = TensorDictModule(fn, keys, "r", out_to_in_map=turned)
            assert ("p", "q") == module.in_keys
            assert torch.equal(ramp(2) - 1, module(None, td)["r"])

    @pytest.mark.parametrize(
        "out",
        [
            lambda x: (x + 1, x - 1),
            lambda x: [x + 1, x - 1],
            lambda x: {"b": x - 1, "a": x + 1},
            lambda x: TensorDict({"b": x - 1, "a": x + 1}),
        ],
        ids=["tuple", "list", "dict", "tree"],
    )
    def test_outputs_come_in_any_form(self, out):
        td = TensorDictModule(out, ["x"], ["a", "b"])(None, tree())

        assert torch.equal(X + 1, td["a"])
        assert torch.equal(X - 1, td["b"])

    def test_an_output_may_be_dropped_and_may_be_a_tree(self):
        module = TensorDictModule(lambda x: (x, {"in": x}, x), ["x"], ["_", "n", "_"])

        assert ("n",) == module.out_keys
        assert torch.equal(X, module(None, tree())["n", "in"])

    @pytest.mark.parametrize(
        ("output", "keys", "size"),
        [
            ("merge", ("x", "other", "y"), (4,)),
            ("only", ("y",), ()),
            ("empty", ("y",), (4,)),
        ],
    )
    def test_where_outputs_go(self, output, keys, size):
        module = TensorDictModule(lambda x: x + 1, ["x"], ["y"], output=output)
        out = module(None, tree())

        assert keys == out.keys()
        assert size == out.batch_size

    def test_another_method_of_the_module_is_called(self):
        class Net(nn.Linear):
            def twice(self, x: torch.Tensor, *, shift: float) -> torch.Tensor:
                return 2 * self(x) + shift

        net = Net(3, 2)
        module = TensorDictModule(
            net, ["x"], ["y"], method="twice", kwargs={"shift": 1.0}
        )

        assert {"weight", "bias"} == set(module.params().keys())
        assert torch.equal(2 * net(X) + 1, module(module.params(), tree())["y"])

    def test_a_function_of_params_and_tensors(self):
        module = TensorDictModule(
            lambda params, x: x @ params["w"],
            ["x"],
            ["y"],
            init=lambda key: TensorDict({"w": random.normal(key, [3, 2])}),
        )
        params = module.init(random.key(0))

        assert torch.equal(X @ params["w"], module(params, tree())["y"])

    def test_records_are_read_and_written(self):
        module = TensorDictModule(lambda x: 2 * x, ["x"], ["y"])
        record = Record(x=X, batch_size=4)
        out = module(None, record)

        assert type(out) is Record
        assert torch.equal(2 * X, out["y"])
        assert record.y is None
        with pytest.raises(FieldError, match="zzz"):
            module.replace(out_keys=["zzz"])(None, record)

    def test_a_field_that_is_none_is_no_output_that_exists(self):
        module = TensorDictModule(lambda x: 2 * x, ["x"], ["y"])
        record = Record(x=X, batch_size=4)
        seq = TensorDictSequential(module, TensorDictModule(abs, ["y"], ["y"]))

        for own in (module, seq):
            out = own(None, record, skip_existing=True)
            assert torch.equal(own(None, X), out["y"])
            full = record.replace(y=X)
            assert module(None, full, skip_existing=True) is full
        is_none = TensorDictModule(lambda y: X if y is None else y, ["y"], ["x"])
        assert torch.equal(X, is_none(None, record)["x"])
        partial = TensorDictSequential(is_none, partial_tolerant=True)
        assert partial(None, record) is record

    def test_a_ragged_stack_keeps_what_is_not_read(self):
        stacked = tdfunc.lazy_stack(
            [TensorDict({"in": ramp(10, 3), "other": ramp(10, n)}, 10) for n in (2, 5)]
        )
        net = nn.Linear(3, 1)
        module = TensorDictModule(net, ["in"], ["out"])
        out = module(module.params(), stacked)

        assert torch.equal(net(ramp(2, 10, 3)[:, :, :] * 0 + ramp(10, 3)), out["out"])
        assert (10, 5) == out[1]["other"].shape

    def test_ragged_entries_are_read_as_options_say(self):
        rows = [TensorDict({"x": ramp(n), "n": {"x": ramp(n)}}) for n in (2, 3)]
        ragged = tdfunc.lazy_stack(rows)
        given = {"as_padded_tensor": True, "padding_value": -1}
        options: dict[str, Any] = {"get_kwargs": given}
        inside = TensorDict({"r": ragged}, 2)
        padded = torch.tensor([[0.0, 1.0, -1.0], [0.0, 1.0, 2.0]])
        for td, path in (
            (ragged, "x"),
            (ragged, ("n", "x")),
            (inside, ("r", "x")),
            (inside, ("r", "n", "x")),
        ):
            sums = TensorDictModule(lambda x: x.sum(-1), [path], ["s"], **options)
            assert torch.equal(padded.sum(-1), sums(None, td)["s"])
            seq = TensorDictSequential(sums, sums.replace(out_keys=["t"]))
            assert torch.equal(padded.sum(-1), seq(None, td)["t"])
        lost = TensorDictModule(torch.neg, [("r", "y")], ["s"], **options)
        with pytest.raises(MissingKeyError, match=r"no \('r', 'y'\)"):
            lost(None, inside)
        with pytest.raises(MissingKeyError, match="no 'q'"):
            lost.replace(in_keys=["q"])(None, inside)
        with pytest.raises(MissingKeyError):
            lost.replace(in_keys=[("q", "r")])(None, inside)
        for module in (lost, lost.replace(get_kwargs=None)):
            for td, key in ((ragged, "q"), (inside, ("r", "q")), (ragged, ("n", "q"))):
                with pytest.raises(MissingKeyError, match="lacks inputs"):
                    module.replace(in_keys=[key])(None, td)
        dense = TensorDict({"x": padded}, 2)
        plain = TensorDictModule(lambda x: x.sum(-1), ["x"], ["s"], **options)
        assert torch.equal(padded.sum(-1), plain(None, dense)["s"])

    @cases()
    def test_any_tree_takes_an_output(self, case):
        td = case.tree
        value = torch.ones(*case.batch, 2)
        out = TensorDictModule(lambda: value, [], [("new", "y")])(None, td)

        assert out["new", "y"] is value
        assert out.drop("new").equal(td, equal_nan=True)
        assert case.batch == out.batch_size

    @cases()
    def test_any_entry_can_be_read_and_written_again(self, case):
        td = case.tree
        for path, leaf in case.leaves.items():
            module = TensorDictModule(lambda x: x.clone(), [path], [path])
            out = module(None, td)
            assert list(leaves_of(td)) == list(leaves_of(out))
            assert same(out[path], leaf)
            assert td.batch_size == out.batch_size

    def test_keys_are_one_list(self):
        module = TensorDictModule(lambda x: (x, x.mean(1)), ["x"], ["a", "b"])
        other = module.replace(out_keys=("o1", "o2"))

        assert ("o1", "o2") == other(None, tree()).keys()[2:]
        assert ("a", "b") == module(None, tree()).keys()[2:]
        with pytest.raises(AttributeError):
            module.out_keys = ["c"]  # pyright: ignore[reportAttributeAccessIssue]

    def test_selected_outputs_are_written_and_others_left_alone(self):
        module = TensorDictModule(lambda x: (x, x + 1), ["x"], ["a", "other"])
        chosen = module.select_out_keys("a")
        td = tree()

        assert ("a",) == chosen.out_keys
        assert chosen(None, td)["other"] is td["other"]
        assert ("a", "other") == chosen.out_keys_source == module.out_keys
        assert ("a", "other") == chosen.reset_out_keys().out_keys


class TestPurity:
    @pytest.mark.parametrize(
        "net",
        [
            mlp(),
            nn.BatchNorm1d(3),
            nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.AlphaDropout()),
            spectral_norm(nn.Linear(3, 3)),
            nn.ReLU(inplace=True),
            nn.Sequential(nn.Linear(3, 3), nn.ELU(inplace=True)),
        ],
        ids=["mlp", "batch norm", "dropout", "spectral norm", "in place", "in place 2"],
    )
    def test_nothing_changes(self, net):
        td = tree()
        module = TensorDictModule(net, ["x"], ["y"])
        params, before = module.params(), state_of(net)
        rng = torch.get_rng_state()

        assert_pure(lambda p, t: module(p, t, key=random.key(0)), params, td)
        assert before == state_of(net)
        assert torch.equal(rng, torch.get_rng_state())

    def test_caches_that_forward_assigns_vanish(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.last: Any = None

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.last = x
                return x + 1

        net = Net()
        TensorDictModule(net, ["x"], ["y"])(None, tree())

        assert net.last is None

    def test_one_module_runs_in_several_threads(self):
        net = mlp()
        module = TensorDictModule(net, ["x"], ["y"])
        sets = [module.init(random.key(i)) for i in range(4)]
        expected = [torch.func.functional_call(net, _dotted(p), X) for p in sets]
        wrong: list[int] = []

        def work(i: int) -> None:
            for _ in range(50):
                got = module(sets[i], tree())["y"]
                wrong.extend([i] * (not torch.equal(expected[i], got)))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [] == wrong


def _dotted(params: Any) -> dict[str, torch.Tensor]:
    return {".".join(path): x for path, x in leaves_of(params).items()}


class TestBuffers:
    x = torch.arange(8.0).view(4, 2)

    def test_updated_statistics_are_returned(self):
        module = TensorDictModule(nn.BatchNorm1d(2), ["x"], ["y"])
        params, buffers = module.params(), module.buffers()
        td = TensorDict({"x": self.x}, 4)
        _, after = module.call_with_buffers(params, buffers, td)

        torch.testing.assert_close(torch.tensor([0.3, 0.4]), after["running_mean"])
        torch.testing.assert_close(
            torch.tensor([1.56667] * 2), after["running_var"], atol=1e-5, rtol=0
        )
        assert 1 == after["num_batches_tracked"]
        assert [0, 0] == buffers["running_mean"].tolist()
        assert buffers._schema is after._schema

    def test_statistics_under_vmap_and_grad(self):
        module = TensorDictModule(nn.BatchNorm1d(2), ["x"], ["y"])
        params, buffers = module.params(), module.buffers()
        rows = torch.stack([self.x * (i + 1) for i in range(3)])
        _, after = torch.vmap(lambda td: module.call_with_buffers(params, buffers, td))(
            TensorDict({"x": rows}, (3, 4))
        )

        expected = torch.tensor([[0.3, 0.4], [0.6, 0.8], [0.9, 1.2]])
        torch.testing.assert_close(expected, after["running_mean"])

        def loss(params: Any, td: Any) -> Any:
            td, after = module.call_with_buffers(params, buffers, td)
            return td["y"].square().sum(), after

        grads, after = torch.func.grad(loss, has_aux=True)(
            params, TensorDict({"x": self.x}, 4)
        )
        torch.testing.assert_close(expected[0], after["running_mean"])
        assert ("weight", "bias") == grads.keys()

    def test_buffers_can_be_given_to_a_call(self):
        norm = nn.BatchNorm1d(2).eval()
        module = TensorDictModule(norm, ["x"], ["y"])
        buffers = module.buffers().set("running_mean", torch.ones(2))
        out = module(module.params(), TensorDict({"x": self.x}, 4), buffers=buffers)

        torch.testing.assert_close((self.x - 1) / (1 + 1e-5) ** 0.5, out["y"])


class TestTies:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2, bias=False)
            self.b = nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    def test_tied_weights_are_one_leaf_with_one_gradient(self):
        module = TensorDictModule(self.Tied(), ["x"], ["y"])
        td = TensorDict({"x": torch.ones(1, 2)})
        params = TensorDict({"a": {"weight": 2 * torch.eye(2)}})

        assert (
            1 == len(module.params()._leaves) == len(module.init(random.key(0))._leaves)
        )
        assert [[4.0, 4.0]] == module(params, td)["y"].tolist()
        # The sum of x B A, derived by the one matrix that both are.
        grads = torch.func.grad(lambda p: module(p, td)["y"].sum())(params)
        w = (2 * torch.eye(2)).requires_grad_()
        (td["x"] @ w.T @ w.T).sum().backward()
        assert torch.equal(w.grad, grads["a", "weight"])  # pyright: ignore[reportArgumentType]

    def test_a_misspelt_name_raises(self):
        module = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])

        with pytest.raises(MissingKeyError, match="wieght"):
            module(module.params().rename_key("weight", "wieght"), tree())

    def test_one_tree_serves_many_and_never_changes(self):
        module = TensorDictModule(mlp(), ["x"], ["y"])
        params = module.params()
        before = [(id(x), x.clone()) for x in params._leaves]
        module(params, tree())
        torch.func.grad(lambda p: module(p, tree())["y"].sum())(params)
        stacked = tdfunc.stack([params, params])
        torch.vmap(lambda p: module(p, tree()))(stacked)

        for (old, value), leaf in zip(before, params._leaves, strict=True):
            assert old == id(leaf)
            assert torch.equal(value, leaf)


class TestTransforms:
    def test_compiled(self):
        module = TensorDictModule(mlp(), ["x"], [("n", "y")])
        compiled = torch.compile(
            lambda p, td: (module(p, td),), fullgraph=True, backend="eager"
        )

        assert module(module.params(), tree()).equal(
            compiled(module.params(), tree())[0]
        )

    def test_compiled_with_dropout_and_a_mapped_key(self):
        net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
        module = TensorDictModule(net, ["x"], ["y"])
        keys = random.split(random.key(0), 3)

        def call(params: Any, td: Any, keys: Any) -> Any:
            return torch.vmap(lambda k: module(params, td, key=k)["y"])(keys)

        compiled = torch.compile(call, fullgraph=True, backend="eager")
        expected = torch.stack(
            [module(module.params(), tree(), key=k)["y"] for k in keys]
        )

        assert torch.equal(expected, call(module.params(), tree(), keys))
        assert torch.equal(expected, compiled(module.params(), tree(), keys))

    def test_gradients_are_those_of_torch(self):
        net = mlp()
        module = TensorDictModule(net, ["x"], ["y"])
        grads = torch.func.grad(lambda p: module(p, tree())["y"].square().sum())(
            module.params()
        )
        net(X).square().sum().backward()

        for name, parameter in net.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, grads[tuple(name.split("."))])

    def test_exported(self):
        module = TensorDictModule(mlp(), ["x"], ["y"])
        params = module.params()

        class Holder(nn.Module):
            def forward(self, td: Any) -> Any:
                return module(params, td)

        program = torch.export.export(Holder(), (tree(),))

        assert module(params, tree()).equal(program.module()(tree()))

    def test_nested_vmap_keeps_batch_sizes(self):
        module = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])
        params = tdfunc.stack([module.init(random.key(i)) for i in range(3)])
        out = torch.vmap(lambda p: torch.vmap(lambda td: module(p, td))(tree()))(params)

        assert (3, 4) == out.batch_size
        assert torch.equal(
            F.linear(X, params["weight"][1], params["bias"][1]), out["y"][1]
        )


class TestErrors:
    def test_in_compiled_code_missing_inputs_are_named(self):
        module = TensorDictModule(abs, ["p"], ["y"])
        compiled = torch.compile(
            lambda td: module(None, td), fullgraph=True, backend="eager"
        )

        with pytest.raises(Exception, match=r"MissingKeyError.*lacks inputs"):
            compiled(tree())

    def test_missing_inputs_are_all_listed(self):
        module = TensorDictModule(torch.add, ["x", "p", ("n", "q")], ["y"])

        with pytest.raises(MissingKeyError, match="lacks inputs") as caught:
            module(None, tree())
        assert "'p', ('n', 'q')" in str(caught.value)

    def test_missing_inputs_can_be_none(self):
        module = TensorDictModule(
            lambda x, p: x if p is None else p, ["x", "p"], ["y"], strict=False
        )

        assert module(None, tree())["y"] is tree()["x"] or torch.equal(
            X, module(None, tree())["y"]
        )

    def test_an_error_of_the_function_is_kept_and_noted(self):
        module = TensorDictModule(mlp(), ["other"], ["y"])

        with pytest.raises(RuntimeError, match="shapes cannot") as caught:
            module(module.params(), tree())
        (note,) = caught.value.__notes__
        assert "in_keys ['other'], out_keys ['y']" in note
        linear = TensorDictModule(nn.Linear(3, 3), ["other"], ["y"])
        with pytest.raises(RuntimeError, match="shapes cannot") as caught:
            linear(linear.params(), tree())
        assert "of Linear" in caught.value.__notes__[0]

    @pytest.mark.parametrize(
        ("out_keys", "out", "text"),
        [
            (["a", "b"], lambda x: x, "expected 2 outputs: 'a', 'b' - got 1"),
            (["a"], lambda x: (x, x), "expected 1 outputs: 'a' - got 2"),
            (["a", "b"], lambda x: {"a": x}, "expected 'a', 'b' - got 'a'"),
        ],
        ids=["fewer", "more", "not there"],
    )
    def test_the_number_of_outputs(self, out_keys, out, text):
        with pytest.raises(StructureError) as caught:
            TensorDictModule(out, ["x"], out_keys)(None, tree())

        assert text in str(caught.value)

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda m: m(m.params(), {"x": X}), "a mapping is no tree"),
            (
                lambda m: m.call_with_buffers(m.params(), m.buffers(), X),
                "TensorDictModule takes a tree",
            ),
            (
                lambda m: TensorDictSequential(m).call_with_buffers(None, None, X),
                "TensorDictSequential takes a tree",
            ),
        ],
        ids=["mapping", "module", "sequence"],
    )
    def test_what_is_no_tree(self, call, text):
        module = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])
        with pytest.raises(OperandError, match=text):
            call(module)

    def test_an_output_of_the_wrong_rows(self):
        module = TensorDictModule(lambda x: x[:2], ["x"], ["y"])

        with pytest.raises(ValueError, match="batch size") as caught:
            module(None, tree())
        assert "out_keys ['y']" in caught.value.__notes__[0]

    def test_a_path_through_a_leaf(self):
        with pytest.raises(PathThroughLeafError):
            TensorDictModule(lambda x: x, ["x"], [("other", "y")])(None, tree())

    @pytest.mark.parametrize(
        ("call", "error", "text"),
        [
            (lambda: TensorDictModule(BAD, ["x"], ["y"]), OperandError, "got int"),
            (
                lambda: TensorDictModule(WrapModule(print), ["x"], ["y"]),
                OperandError,
                "TensorDictSequential",
            ),
            (lambda: TensorDictModule(abs, ["x"], ["y", "y"]), OptionError, "twice"),
            (
                lambda: TensorDictModule(abs, ["x"], ["y"], output=BAD),
                OptionError,
                "'merge', 'only', 'empty'",
            ),
            (
                lambda: TensorDictModule(abs, ["x"], ["y"], method="abs"),
                OptionError,
                "method=",
            ),
            (
                lambda: TensorDictModule(mlp(), ["x"], ["y"], init=print),
                OptionError,
                "init=",
            ),
            (
                lambda: TensorDictModule(abs, ["x"], ["y"], out_to_in_map=False),
                OptionError,
                "out_to_in_map",
            ),
            (
                lambda: TensorDictModule(abs, {1: "x"}, ["y"]),
                OptionError,
                "argument name",
            ),
            (
                lambda: TensorDictModule(abs, ["x"], ["y"]).replace(keys=1),
                OptionError,
                "got keys",
            ),
            (
                lambda: TensorDictModule(abs, ["x"], ["y"]).select_out_keys("z"),
                OptionError,
                "some of 'y'",
            ),
            (
                lambda: TensorDictModule(mlp(), ["x"], ["y"])(None, tree()),
                OperandError,
                "module.params()",
            ),
            (
                lambda: TensorDictModule(abs, ["x"], ["y"])(None, tree(), tree()),
                OptionError,
                "one tree",
            ),
            (
                lambda: TensorDictModule(abs, ["x"], ["y"])(None, tree(), rng=3),
                OptionError,
                "got rng",
            ),
            (
                lambda: TensorDictModuleBase()(None, tree()),
                OptionError,
                "no forward",
            ),
            (lambda: WrapModule(BAD), OperandError, "got int"),
            (
                lambda: WrapModule(lambda _p, td: td["x"])(None, tree()),
                OperandError,
                "returned no tree",
            ),
            (lambda: TensorDictModule(abs, BAD, ["y"]), OperandError, "no keys"),
            (lambda: TensorDictModule(abs, ["x"], BAD), OperandError, "no keys"),
            (lambda: TensorDictModule(abs, {"x"}, ["y"]), OperandError, "no order"),
            (lambda: TensorDictModule(abs, ["x"], {"y"}), OperandError, "no order"),
            (
                lambda: TensorDictModule(abs, {"a": "x"}, ["y"]).select_out_keys(BAD),
                InvalidKeyError,
                "3 names no entry",
            ),
            (lambda: WrapModule(print, BAD, ["y"]), OperandError, "no keys"),
            (
                lambda: TensorDictModule(abs, ["x"], ["y"]).call_with_buffers(
                    None, None, tree(), kye=3
                ),
                OptionError,
                "got kye",
            ),
        ],
        ids=map(str, range(23)),
    )
    def test_bad_calls(self, call, error, text):
        with pytest.raises(error) as caught:
            call()

        assert text in str(caught.value)


class TestOwn:
    def test_a_subclass_takes_what_its_forward_takes(self):
        class Noise(TensorDictModuleBase):
            in_keys, out_keys = ("x",), ("y",)

            def forward(
                self, params: Any, td: Any, *, key: Any, scale: float = 1.0
            ) -> Any:
                assert params is None
                noise = random.normal(key, td["x"].shape)
                return td.set("y", td["x"] + scale * noise)

        key = random.key(3)
        expected = X + 2 * random.normal(key, X.shape)

        assert torch.equal(expected, Noise()(None, tree(), key=key, scale=2.0)["y"])
        with pytest.raises(OptionError, match="got rng"):
            Noise()(None, tree(), key=key, rng=0)

    def test_what_it_takes_by_stars_is_what_its_base_takes(self):
        class Twice(TensorDictModule):
            def forward(self, params: Any, td: Any, *, by: float = 1.0, **kw: Any):
                out = super().forward(params, td, **kw)
                return out.set("twice", 2 * by * out["y"])

        class Open(TensorDictModuleBase):
            in_keys, out_keys = ("x",), ("y",)

            def forward(self, params: Any, td: Any, **_: Any) -> Any:
                del params
                return td

        key, drop = random.key(3), nn.Dropout()
        expected = TensorDictModule(drop, ["x"], ["y"])(None, tree(), key=key)["y"]
        out = Twice(drop, ["x"], ["y"])(None, tree(), key=key, by=2.0)

        assert torch.equal(4 * expected, out["twice"])
        with pytest.raises(OptionError, match="expected skip_existing - got by"):
            Open()(None, tree(), by=2.0)

    def test_replaced_it_is_of_the_same_class(self):
        class Scaled(TensorDictModule):
            def __init__(self, factor: float) -> None:
                super().__init__(abs, ["x"], ["y"])
                self.factor = factor

            def forward(self, params: Any, td: Any, **options: Any) -> Any:
                out = super().forward(params, td, **options)
                return out.set("scaled", self.factor * out[self.out_keys[0]])

        scaled = Scaled(2.0)
        other = scaled.replace(out_keys=["z"])

        assert type(other) is Scaled
        assert torch.equal(2 * X.abs(), other(None, tree())["scaled"])
        assert ("z",) == other.out_keys
        assert ("y",) == scaled.out_keys

    def test_one_key_needs_no_list(self):
        class Copied(TensorDictModuleBase):
            in_keys, out_keys = "other", "copy"

            def forward(self, params: Any, td: Any) -> Any:
                del params
                return td.set("copy", td["other"])

        seq = TensorDictSequential(Copied())

        assert ("other",) == Copied().in_keys == seq.in_keys
        assert ("copy",) == Copied().out_keys == seq.out_keys
        assert torch.equal(X, Copied()(None, other=X))

    def test_in_a_sequence_a_key_that_is_not_given_has_its_own_default(self):
        class Noise(TensorDictModuleBase):
            in_keys, out_keys = ("x",), ("y",)

            def forward(self, params: Any, td: Any, *, key: Any = "own") -> Any:
                del params
                return td.set("y", key)

        class Needs(Noise):
            def forward(self, params: Any, td: Any, *, key: Any) -> Any:
                return super().forward(params, td, key=key)

        assert "own" == TensorDictSequential(Noise())(None, tree())["y"]
        with pytest.raises(TypeError, match="required keyword-only argument: 'key'"):
            TensorDictSequential(Needs())(None, tree())

    def test_a_decorated_method(self):
        class Scale:
            def __init__(self, factor: float) -> None:
                self.factor = factor

            @as_tensordict_module(in_keys=["x"], out_keys=["y"])
            def scaled(self, x: torch.Tensor) -> torch.Tensor:
                return self.factor * x

        two, three = Scale(2.0), Scale(3.0)
        assert torch.equal(2 * X, two.scaled(None, tree())["y"])
        assert torch.equal(3 * X, three.scaled(None, x=X))
        assert ("y",) == Scale.scaled.out_keys == two.scaled.out_keys
        assert ("z",) == two.scaled.replace(out_keys=["z"]).out_keys

    def test_a_decorated_function(self):
        @as_tensordict_module(in_keys=["x"], out_keys=["y"])
        def double(x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        assert torch.equal(2 * X, double(None, tree())["y"])
        assert "double" not in repr(double)
        assert "TensorDictModule(in_keys=['x'], out_keys=['y'])" == repr(double)
