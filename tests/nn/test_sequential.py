"""Sequences: keys, subsequences, selected outputs, skipping, one tree in the end."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn

import tdfunc
from tdfunc import TensorDict, random
from tdfunc.errors import (
    InvalidKeyError,
    MissingKeyError,
    OperandError,
    OptionError,
)
from tdfunc.nn import (
    EnsembleModule,
    TensorDictModule,
    TensorDictSequential,
    WrapModule,
    _scope,
    set_skip_existing,
    skip_existing,
)
from tdfunc.testing import assert_pure
from tests.cases import ramp
from tests.nn.nets import X, chain, mlp, state_of, tree

TD = TensorDict({"x": X, "mask": torch.ones(4, 3)}, batch_size=4)


def step(fn: Any, ins: Any, outs: Any, **options: Any) -> TensorDictModule:
    return TensorDictModule(fn, ins, outs, **options)


class TestKeys:
    def test_of_the_guide(self):
        seq = chain()

        assert ("x", "mask") == seq.in_keys
        assert ("y", "z", "h") == seq.out_keys

    def test_a_key_counts_where_it_is_written_last(self):
        seq = TensorDictSequential(
            step(lambda x: (x, x), ["x"], ["a", "b"]), step(abs, ["a"], ["a"])
        )

        assert ("b", "a") == seq.out_keys
        assert ("x",) == seq.in_keys

    def test_what_is_inside_a_node_that_was_written_is_no_input(self):
        seq = TensorDictSequential(
            step(lambda x: ({"a": x},), ["x"], ["n"]),
            step(lambda a: a + 1, [("n", "a")], ["y"]),
        )

        assert ("x",) == seq.in_keys
        assert torch.equal(X + 1, seq(None, TD)["y"])

    def test_names_and_parts(self):
        seq = chain()

        assert ("0", "1", "2") == seq.names
        assert 3 == len(seq) == len(list(seq))
        assert seq[0] is seq["0"] is seq.modules[0]
        assert ("1", "2") == seq[1:].names
        named = TensorDictSequential({"enc": seq[0], "dec": seq[1]})
        assert ("enc", "dec") == named.names
        assert ("enc", "dec") == named.params().keys()
        with pytest.raises(MissingKeyError, match="no module of this name"):
            seq["zzz"]


def test_one_tree_is_built_for_a_call(monkeypatch):
    made: list[Any] = []
    make = _scope.make
    monkeypatch.setattr(_scope, "make", lambda *args: made.append(args) or make(*args))
    layers = [step(nn.Linear(3, 3), ["x"], ["x"]), step(torch.tanh, ["x"], ["x"])]
    seq = TensorDictSequential(*layers * 3, TensorDictSequential(*layers))
    params = seq.params()
    made.clear()
    seq(params, TD)

    assert 1 == len(made)


class TestEdits:
    def test_they_return_other_sequences(self):
        seq = chain()
        params = seq.init(random.key(0))
        double = step(lambda y: 2 * y, ["y"], ["y"])
        more = seq.insert(1, double)
        assert ("0", "3", "1", "2") == more.names
        assert ("0", "1", "2") == seq.names
        y = seq(params, TD)["y"]
        assert torch.equal(2 * y + TD["mask"], more(params, TD)["z"])
        other = seq.replace("1", step(torch.add, ["y", "y"], ["z"]))
        assert torch.equal(2 * y, other(params, TD)["z"])
        assert seq.names == other.names
        few = seq.drop(-1)
        assert ("0", "1") == few.names
        assert ("y", "z") == few.out_keys
        last = seq.insert(3, lambda _, td: td.set("end", td["h"]), "end")
        assert torch.equal(seq(params, TD)["h"], last(params, TD)["end"])
        assert ("a", *seq.names) == seq.insert("0", double, "a").names
        nested = TensorDictSequential({"in": seq}, output="only").replace(0, few)
        assert ("y", "z") == nested({"in": params.select("0")}, TD).keys()

    @pytest.mark.parametrize(
        ("edit", "error", "text"),
        [
            (lambda s: s.drop(3), IndexError, "out of range"),
            (lambda s: s.replace("x", s[0]), MissingKeyError, "no module of this name"),
            (lambda s: s.insert(0, s[0], "1"), OptionError, "another name - got '1'"),
            (lambda s: s.insert(0, nn.ReLU()), OperandError, "no module of trees"),
            (lambda s: s.insert(0, s[0], ("1",)), OptionError, "another name"),
            (lambda s: s.insert(0, s[0], ("a", "b")), InvalidKeyError, "a path is no"),
        ],
        ids=["place", "name", "taken", "kind", "taken as a path", "path"],
    )
    def test_what_is_refused(self, edit, error, text):
        with pytest.raises(error, match=text):
            edit(chain())


class TestCall:
    def test_it_is_the_composition(self):
        seq = chain()
        params = seq.params()
        td: Any = TD
        for name, module in zip(seq.names, seq, strict=True):
            td = module(params.get(name), td)

        assert td.equal(seq(params, TD))
        assert ("x", "mask", "y", "z", "h") == seq(params, TD).keys()
        assert ("x", "mask") == TD.keys()

    def test_any_function_of_params_and_trees_can_sit_in_it(self):
        seq = TensorDictSequential(
            step(nn.Linear(3, 3), ["x"], ["y"]),
            lambda _params, td: td.set("n", td["y"] + 1),
            step(abs, ["n"], ["m"]),
            step(lambda m: m * 2, ["m"], [("deep", "m")]),
            step(lambda node: node["m"] + 1, ["deep"], ["last"]),
        )
        params = seq.params()
        y = seq[0](params["0"], TD)["y"]
        out = seq(params, TD)

        assert torch.equal((y + 1).abs() * 2, out["deep", "m"])
        assert torch.equal((y + 1).abs() * 2 + 1, out["last"])

    def test_entries_are_written_in_the_order_of_the_modules(self):
        seq = TensorDictSequential(
            step(lambda x: ({"a": x, "b": x},), ["x"], ["n"]),
            step(lambda x: x + 1, ["x"], [("n", "a")]),
            step(lambda n: (n,), ["n"], ["copy"]),
            step(lambda x: ({"c": x},), ["x"], ["n"]),
        )
        out = seq(None, TD)

        assert ("c",) == out["n"].keys()
        assert torch.equal(X + 1, out["copy", "a"])
        assert torch.equal(X, out["copy", "b"])

    def test_linear_layers_in_a_row(self):
        layers = [nn.Linear(3, 3) for _ in range(4)]
        names = ["x", "a", "b", "c", "d"]
        seq = TensorDictSequential(
            *[
                step(layer, [i], [o])
                for layer, i, o in zip(layers, names, names[1:], strict=False)
            ]
        )
        expected = X
        for layer in layers:
            expected = layer(expected)

        assert torch.equal(expected, seq(seq.params(), TD)["d"])
        add: Any = lambda _net, _args, out: out + 1  # noqa: E731
        layers[2].register_forward_hook(add)
        hooked = layers[3](layers[2](layers[1](layers[0](X))))
        assert torch.equal(hooked, seq(seq.params(), TD)["d"])
        with pytest.raises(MissingKeyError, match="lacks inputs"):
            seq(seq.params(), TD.drop("x"))

    def test_an_output_that_does_not_fit_names_its_module(self):
        seq = TensorDictSequential(
            step(lambda x: x[:2], ["x"], ["y"]), step(abs, ["y"], ["z"])
        )
        with pytest.raises(ValueError, match="batch size") as caught:
            seq(None, TD)

        assert "module '0' writes it" in caught.value.__notes__[0]

    def test_nested_sequences(self):
        inner = TensorDictSequential(step(nn.Linear(3, 2), ["x"], ["y"]))
        seq = TensorDictSequential({"in": inner, "out": step(abs, ["y"], ["z"])})
        params = seq.init(random.key(0))

        assert (
            "in",
            ("in", "0"),
            ("in", "0", "weight"),
            ("in", "0", "bias"),
            "out",
        ) == (params.keys(True))
        assert torch.equal(inner(params["in"], TD)["y"].abs(), seq(params, TD)["z"])

    @pytest.mark.parametrize(
        ("output", "keys", "size"),
        [
            ("merge", ("x", "mask", "y", "z", "h"), (4,)),
            ("only", ("y", "z", "h"), ()),
            ("empty", ("y", "z", "h"), (4,)),
        ],
    )
    def test_where_outputs_go(self, output, keys, size):
        seq = TensorDictSequential(*chain(), output=output)
        out = seq(seq.params(), TD)

        assert keys == out.keys()
        assert size == out.batch_size

    @pytest.mark.parametrize("rows", [4, 3], ids=["rows", "square"])
    def test_dims_that_modules_put_in_front_are_in_the_result(self, rows):
        layers = [TensorDictModule(nn.Linear(2, 2), [i], [o]) for i, o in ("xh", "hy")]
        each = [EnsembleModule(m, 3, expand_input=m is layers[0]) for m in layers]
        seq = TensorDictSequential(*each)
        params = seq.init(random.key(0))
        td = TensorDict({"x": ramp(rows, 2), "h": ramp(rows)}, rows)
        whole = seq(params, td)
        few = seq.select_out_keys("y")(params, td)
        empty = TensorDictSequential(*each, output="empty")(params, td)

        assert (3, rows) == whole.batch_size == few.batch_size == empty.batch_size
        assert torch.equal(whole["y"], few["y"])
        assert torch.equal(td["h"].expand(3, rows), few["h"])
        assert torch.equal(whole["h"], empty["h"])
        assert ("h", "y") == empty.keys()

    def test_outputs_of_other_rows_stand_alone(self):
        first = WrapModule(lambda _, td: td[:2].set("y", td["x"][:2]), ["x"], ["y"])
        both = TensorDictModule(lambda y: (y, y + 1), ["y"], ["z", "w"])
        seq = TensorDictSequential(first, both, selected_out_keys=["w"])
        out = seq(None, TensorDict({"x": ramp(4), "z": ramp(4)}, 4))

        assert (2,) == out.batch_size
        assert {"x", "w"} == set(out.keys())
        assert torch.equal(ramp(4)[:2] + 1, out["w"])

    def test_partial_sequences_leave_out_what_lacks_inputs(self):
        seq = TensorDictSequential(*chain(), partial_tolerant=True)

        assert ("x", "y") == seq(seq.params(), TD.drop("mask")).keys()

    def test_it_is_pure(self):
        net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
        seq = TensorDictSequential(step(net, ["x"], ["y"]), *chain()[1:])
        before = state_of(net)
        assert_pure(lambda p, td: seq(p, td, key=random.key(0)), seq.params(), TD)

        assert before == state_of(net)

    def test_compiled_mapped_and_differentiated(self):
        seq = chain()
        params = seq.params()
        compiled = torch.compile(
            lambda p, td: (seq(p, td),), fullgraph=True, backend="eager"
        )
        assert seq(params, TD).equal(compiled(params, TD)[0])
        stacked = tdfunc.stack([seq.init(random.key(i)) for i in range(3)])
        out = torch.vmap(lambda p: seq(p, TD))(stacked)
        assert (3, 4) == out.batch_size
        assert torch.allclose(seq(stacked[1], TD)["h"], out["h"][1])
        grads = torch.func.grad(lambda p: seq(p, TD)["h"].sum())(params)
        assert torch.allclose(torch.full((3,), 4.0), grads["0", "bias"])


class TestParams:
    def test_every_module_draws_by_its_name(self):
        linear = step(nn.Linear(3, 3), ["x"], ["x"])
        two = TensorDictSequential({"a": linear, "b": linear})
        one = TensorDictSequential({"b": linear})
        params = two.init(random.key(0))

        assert params["b"].equal(one.init(random.key(0))["b"])
        assert not params["a"].equal(params["b"])

    def test_sequences_are_made_in_compiled_code(self):
        drop = step(nn.Dropout(), ["x"], ["a"])
        seq = TensorDictSequential({"\u00e9": drop, "b": step(abs, ["a"], ["b"])})
        key = random.key(1)

        def call(td: Any, key: torch.Tensor) -> Any:
            new = TensorDictSequential({"\u00e9": drop})
            return seq[:1](None, td, key=key), new(None, td, key=key)

        for part in torch.compile(call, fullgraph=True, backend="eager")(TD, key):
            assert torch.equal(seq(None, TD, key=key)["a"], part["a"])
            assert ("x", "mask", "a") == part.keys()

    def test_keys_of_calls_are_those_of_names(self):
        drop = nn.Dropout()
        seq = TensorDictSequential(step(drop, ["x"], ["a"]), step(drop, ["x"], ["b"]))
        key = random.key(1)
        out = seq(None, TD, key=key)

        assert not torch.equal(out["a"], out["b"])
        assert torch.equal(out["b"], seq[1:](None, TD, key=key)["b"])
        compiled = torch.compile(
            lambda td, key: seq(None, td, key=key)["b"],
            fullgraph=True,
            backend="eager",
        )
        assert torch.equal(out["b"], compiled(TD, key))
        keys = random.split(key, 3)
        mapped = torch.vmap(lambda k: seq(None, TD, key=k)["b"])(keys)
        assert torch.equal(seq(None, TD, key=keys[1])["b"], mapped[1])
        with pytest.raises(OptionError, match="no key"):
            seq(None, TD)

    def test_buffers_of_all_modules(self):
        norm = nn.BatchNorm1d(3)
        seq = TensorDictSequential(
            step(norm, ["x"], ["y"]), step(abs, ["y"], ["z"]), step(norm, ["y"], ["w"])
        )
        buffers = seq.buffers().clone()
        td, after = seq.call_with_buffers(seq.params(), buffers, TD)

        torch.testing.assert_close(0.1 * X.mean(0), after["0", "running_mean"])
        torch.testing.assert_close(norm(norm(X)), td["w"])
        assert [0.0] * 3 == buffers["0", "running_mean"].tolist()
        assert buffers._schema.matches(after._schema)

    def test_other_options_go_to_those_that_take_them(self):
        def shift(params: Any, td: Any, *, by: float = 0.0) -> Any:
            assert params is None
            return td.set("s", td["x"] + by)

        seq = TensorDictSequential(step(abs, ["x"], ["y"]), WrapModule(shift))

        assert torch.equal(X + 2, seq(None, TD, by=2.0)["s"])
        with pytest.raises(OptionError, match="got bye"):
            seq(None, TD, bye=2.0)

    def test_parameters_of_no_module_raise(self):
        seq = chain()

        with pytest.raises(MissingKeyError, match="module that there is not"):
            seq(seq.params().rename_key("0", "00"), TD)
        with pytest.raises(MissingKeyError, match="buffers are given for a module"):
            seq(seq.params(), TD, buffers=TensorDict({"4": {}}))

    def test_parameters_of_no_module_raise_where_all_layers_are_linear(self):
        linear = step(nn.Linear(3, 3), ["x"], ["x"])
        seq = TensorDictSequential(linear, linear)
        params = seq.params()

        with pytest.raises(MissingKeyError, match="module that there is not"):
            seq(params.set("2", params["1"]), TD)
        with pytest.raises(MissingKeyError, match="module that there is not"):
            seq[:1](params, TD)

    def test_parameters_come_as_a_tree(self):
        seq = chain()

        for bad in (torch.ones(3), [1, 2], "0"):
            with pytest.raises(OperandError, match="parameters of a sequence come as"):
                seq(bad, TD)
            with pytest.raises(OperandError, match="buffers of a sequence come as"):
                seq(seq.params(), TD, buffers=bad)

    def test_every_module_has_one_name(self):
        linear = step(nn.Linear(3, 3), ["x"], ["x"])

        assert ("a", "b") == TensorDictSequential({("a",): linear, "b": linear}).names
        with pytest.raises(InvalidKeyError, match="a path is no name"):
            TensorDictSequential({("a", "b"): linear, ("a", "c"): linear})
        with pytest.raises(OptionError, match="two modules have one name"):
            TensorDictSequential({("a",): linear, "a": linear})


class TestSelect:
    def test_subsequences_of_the_guide(self):
        seq = chain()
        params = seq.params()
        full = seq(params, TD)
        for out, names in {"y": "0", "z": "01", "h": "012"}.items():
            part = seq.select_subsequence(out_keys=[out])
            assert tuple(names) == part.names
            assert part[0] is seq[0]
            assert torch.equal(full[out], part(part.project(params), TD)[out])
        assert ("x",) == seq.select_subsequence(out_keys=["y"]).in_keys
        assert ("0",) == seq.select_subsequence(in_keys=["x"]).names

    def test_nested_sequences_are_narrowed(self):
        seq = TensorDictSequential(chain(), step(abs, ["y"], ["w"]))
        part = seq.select_subsequence(out_keys=["w"])

        assert ("0", "1") == part.names
        assert ("0",) == part["0"].names  # pyright: ignore[reportAttributeAccessIssue]
        params = seq.params()
        assert torch.equal(seq(params, TD)["w"], part(part.project(params), TD)["w"])

    def test_selections_that_can_not_be(self):
        seq = chain()
        with pytest.raises(OptionError, match="no modules are left"):
            seq.select_subsequence(in_keys=["q"])
        with pytest.raises(OptionError, match="no modules are left"):
            seq.select_subsequence(out_keys=["q"])
        opaque = TensorDictSequential(lambda _p, td: td, *seq)
        with pytest.raises(OptionError, match="not known"):
            opaque.select_subsequence(out_keys=["h"])

    def test_selected_outputs(self):
        seq = chain()
        params = seq.params()
        td = TD.set("y", torch.zeros(4, 1))
        chosen = seq.select_out_keys("z")
        out = chosen(params, td)

        assert ("z",) == chosen.out_keys
        assert ("y", "z", "h") == chosen.out_keys_source == seq.out_keys
        assert ("x", "mask", "y", "z") == out.keys()
        assert out["y"] is td["y"]
        assert torch.equal(seq(params, TD)["z"], out["z"])
        assert ("y", "z", "h") == chosen.reset_out_keys().out_keys
        again = TensorDictSequential(*seq, selected_out_keys=["z"])
        assert out.equal(again(params, td))
        with pytest.raises(OptionError, match="some of 'y', 'z', 'h'"):
            seq.select_out_keys("q")
        inside = TensorDictSequential(chosen, step(abs, ["z"], ["w"]))
        assert ("x", "mask", "y", "z", "w") == inside({"0": params}, td).keys()

    def test_bad_members(self):
        with pytest.raises(OperandError, match="TensorDictModule\\(net"):
            TensorDictSequential(mlp())
        with pytest.raises(OperandError, match="got int"):
            TensorDictSequential(3)


class TestSkipping:
    def counted(self) -> tuple[TensorDictSequential, list[str]]:
        calls: list[str] = []

        def part(name: str) -> Any:
            return lambda x: calls.append(name) or x + 1

        return TensorDictSequential(
            step(part("a"), ["x"], ["a"]),
            step(part("b"), ["a"], ["b"]),
            step(part("x"), ["x"], ["x"]),
        ), calls

    def test_modules_whose_outputs_exist_do_not_run(self):
        seq, calls = self.counted()
        td = TD.set("a", X)

        out = seq(None, td, skip_existing=True)
        assert ["b", "x"] == calls
        assert out["a"] is td["a"]
        with set_skip_existing():
            assert skip_existing() is True
            assert seq(None, td).equal(out)
        assert skip_existing() is False
        assert ["b", "x"] * 2 == calls

    def test_a_list_says_which(self):
        seq, calls = self.counted()
        td = TD.update({"a": X, "b": X})
        with set_skip_existing(["b"]):
            seq(None, td)

        assert ["a", "x"] == calls

    def test_the_sequence_is_asked_first(self):
        seq, calls = self.counted()
        td = TD.update({"a": X, "b": X})

        assert seq[:2](None, td, skip_existing=True) is td
        assert [] == calls

    def test_an_argument_beats_the_block(self):
        seq, calls = self.counted()
        td = TD.set("a", X)
        with set_skip_existing():
            seq(None, td, skip_existing=False)

        assert ["a", "b", "x"] == calls

    def test_decorated_and_nested(self):
        @set_skip_existing(["a"])
        def mode() -> Any:
            with set_skip_existing(False):
                inner = skip_existing()
            return inner, skip_existing()

        assert (False, (("a",),)) == mode()

    def test_a_compiled_block_leaves_other_compilations_alone(self):
        seq, _ = self.counted()
        few = seq[:1]
        errors: list[Exception] = []

        def block(td: Any) -> Any:
            with set_skip_existing():
                return few(None, td.set("a", td["x"]))["a"]

        def work() -> None:  # in a thread in which nobody has set anything
            try:
                compiled = torch.compile(block, fullgraph=True, backend="eager")
                assert torch.equal(X, compiled(TD))
                other = torch.compile(
                    lambda td: few(None, td), fullgraph=True, backend="eager"
                )
                assert torch.equal(X + 1, other(TD)["a"])
            except Exception as error:  # noqa: BLE001 - raised again below
                errors.append(error)

        torch._dynamo.reset()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def test_threads_start_without(self):
        seen: list[Any] = []
        with set_skip_existing():
            thread = threading.Thread(target=lambda: seen.append(skip_existing()))
            thread.start()
            thread.join()

        assert [False] == seen

    def test_compiled(self):
        seq = TensorDictSequential(
            step(lambda x: x + 1, ["x"], ["a"]), step(lambda a: 2 * a, ["a"], ["b"])
        )

        def call(td: Any) -> Any:
            with set_skip_existing():
                return seq(None, td)

        compiled = torch.compile(call, fullgraph=True, backend="eager")

        assert torch.equal(2 * X, compiled(TD.set("a", X))["b"])
        outside = torch.compile(
            lambda td: seq(None, td), fullgraph=True, backend="eager"
        )
        assert torch.equal(2 * (X + 1), outside(TD.set("a", X))["b"])
        with set_skip_existing():
            assert torch.equal(2 * X, outside(TD.set("a", X))["b"])

    @pytest.mark.parametrize("mode", ["a", None, 3])
    def test_bad_modes(self, mode):
        with pytest.raises(OptionError, match="what may be skipped"):
            set_skip_existing(mode)


def test_a_subclass_takes_what_its_modules_take():
    def shift(params: Any, td: Any, *, by: float = 0.0) -> Any:
        assert params is None
        return td.set("s", td["x"] + by)

    class Own(TensorDictSequential):
        def forward(self, params: Any, td: Any, *, twice: bool = False, **rest: Any):
            td = super().forward(params, td, **rest)
            return td.set("s", 2 * td["s"]) if twice else td

    seq = Own(WrapModule(shift, ["x"], ["s"]), step(abs, ["x"], ["y"]))

    assert torch.equal(2 * (X + 1), seq(None, TD, by=1.0, twice=True)["s"])
    assert type(seq.select_out_keys("s")) is Own
    with pytest.raises(OptionError, match="got thrice"):
        seq(None, TD, thrice=True)
    outer = TensorDictSequential(seq)
    assert torch.equal(2 * (X + 1), outer(None, TD, by=1.0, twice=True)["s"])


def test_the_forward_of_a_subclass_runs_with_buffers_too():
    class Doubled(TensorDictSequential):
        def forward(self, params: Any, td: Any, **options: Any) -> Any:
            return super().forward(params, td, **options).set("twice", 2 * td["x"])

    norm = step(nn.BatchNorm1d(3).eval(), ["x"], ["y"])
    seq = Doubled(norm)
    buffers = seq.buffers().set(("0", "running_mean"), torch.ones(3))
    out, after = seq.call_with_buffers(seq.params(), buffers, TD)

    assert after is buffers
    assert torch.equal(2 * X, out["twice"])
    assert torch.equal(norm(norm.params(), TD, buffers=buffers["0"])["y"], out["y"])
    both, _ = TensorDictSequential({"in": seq}).call_with_buffers(
        {"in": seq.params()}, {"in": buffers}, TD
    )
    assert out.equal(both)


def test_it_is_copied_and_pickled():
    seq = TensorDictSequential(step(mlp(), ["x"], ["y"]), step(abs, ["y"], ["z"]))
    for other in (copy.deepcopy(seq), pickle.loads(pickle.dumps(seq))):
        assert other is not seq
        assert seq(seq.params(), tree()).equal(other(seq.params(), tree()))
        assert 2 == len({seq, other})
