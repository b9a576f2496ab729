"""The guide's own examples (INVENTORY 1.4), written purely, with the values it prints.

Where the guide mutates, the input is looked at instead: it must be as it was.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

import tdfunc
from tdfunc import TensorClass, TensorDict, random
from tdfunc.errors import MissingKeyError, OptionError, StructureError
from tdfunc.nn import (
    CompositeDistribution,
    EnsembleModule,
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    TensorClassModuleBase,
    TensorDictModule,
    TensorDictParams,
    TensorDictSequential,
    functional_vmap,
)
from tests.cases import ramp

X = ramp(4, 3) / 7


class TestModule:
    def test_parameters_have_the_paths_of_the_net(self) -> None:
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        module = TensorDictModule(net, "x", "y")

        assert {("0", "weight"), ("0", "bias"), ("1", "weight"), ("1", "bias")} == set(
            module.params().keys(True, True)
        )
        assert (("x",), ("y",)) == (module.in_keys, module.out_keys)

    def test_one_key_may_feed_several_arguments(self) -> None:
        module = TensorDictModule(
            lambda a, b, c: a + b * c, {"a": "p", "b": "q", "c": "p"}, ["y"]
        )
        assert ["p", "q"] == list(module.in_keys)
        assert 8 == module(None, TensorDict({"p": 2.0, "q": 3.0}))["y"]
        turned = TensorDictModule(
            lambda a, b: a - b, {"p": "a", "q": "b"}, ["y"], out_to_in_map=False
        )
        assert ["p", "q"] == list(turned.in_keys)
        assert -1 == turned(None, TensorDict({"p": 2.0, "q": 3.0}))["y"]

    @pytest.mark.parametrize(
        ("fn", "keys", "text"),
        [
            (lambda x: (x, x), ["y"], "expected 1 outputs: 'y' - got 2"),
            (lambda x: x, ["y", "z"], "expected 2 outputs: 'y', 'z' - got 1"),
            (lambda x: {"y": x}, ["y", "z"], "expected 'y', 'z' - got 'y'"),
        ],
        ids=["more tensors", "more keys", "a key less"],
    )
    def test_counts_that_differ(self, fn: Any, keys: Any, text: str) -> None:
        with pytest.raises(StructureError) as caught:
            TensorDictModule(fn, ["x"], keys)(None, TensorDict({"x": X}))

        assert text in str(caught.value)

    def test_missing_inputs(self) -> None:
        module = TensorDictModule(torch.add, ["a", ("n", "b"), "c"], ["y"])
        with pytest.raises(KeyError, match=r"no \('n', 'b'\), 'c'"):
            module(None, TensorDict({"a": 1.0}))
        either = TensorDictModule(
            lambda a, b: a if b is None else a + b, ["a", "b"], ["y"], strict=False
        )
        assert 1 == either(None, TensorDict({"a": 1.0}))["y"]

    def test_the_error_of_a_call_is_the_original_one(self) -> None:
        module = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])
        with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
            module(module.params(), TensorDict({"x": torch.ones(4, 5)}))

        note = "in TensorDictModule of Linear, in_keys ['x'], out_keys ['y']"
        assert any(note in text for text in caught.value.__notes__)

    def test_calls_with_tensors(self) -> None:
        module = TensorDictModule(
            lambda a, b: (a + b, a, b), ["a", ("robot", "joints")], ["s", "_", "b"]
        )
        s, b = module(None, a=X, robot_joints=X)
        assert torch.equal(2 * X, s)
        assert torch.equal(X, b)
        with pytest.raises(OptionError, match="by position and by name"):
            module(None, X, a=X)
        with pytest.raises(OptionError, match="expected a, robot_joints - got joints"):
            module(None, a=X, joints=X)


class TestSequence:
    seq = TensorDictSequential(
        TensorDictModule(lambda x: x + 1, ["x"], ["y"]),
        TensorDictModule(lambda y, mask: y * mask, ["y", "mask"], ["z"]),
        TensorDictModule(lambda x: (x, -x), ["x"], ["y", "h"]),
    )

    def test_keys(self) -> None:
        seq = TensorDictSequential(
            TensorDictModule(nn.Linear(3, 4), ["x"], ["y"]),
            TensorDictModule(lambda y, mask: y * mask, ["y", "mask"], ["z"]),
            TensorDictModule(nn.Linear(4, 1), ["z"], ["h"]),
        )
        assert ["x", "mask"] == list(seq.in_keys)
        assert ["y", "z", "h"] == list(seq.out_keys)
        # Where a key is written last is where it stands.
        assert ["z", "y", "h"] == list(self.seq.out_keys)

    @pytest.mark.parametrize(
        ("out", "names", "reads"),
        [
            ("y", ("0", "2"), ("x",)),
            ("z", ("0", "1"), ("x", "mask")),
            ("h", ("2",), ("x",)),
        ],
    )
    def test_subsequences(self, out: str, names: Any, reads: Any) -> None:
        part = self.seq.select_subsequence(out_keys=[out])

        assert (names, reads) == (part.names, part.in_keys)
        assert all(part[name] is self.seq[name] for name in names)
        with pytest.raises(ValueError, match="no modules are left"):
            self.seq.select_subsequence(in_keys=["mask"])

    def test_an_input_named_like_an_unselected_output_keeps_its_value(self) -> None:
        td = TensorDict({"x": X, "mask": X, "z": -X, "h": X}, 4)
        for module in (self.seq.select_out_keys("y"), self.seq[2].select_out_keys("y")):  # pyright: ignore[reportAttributeAccessIssue]
            out = module(None, td)
            assert out["z"] is td["z"]
            assert out["h"] is td["h"]
            assert torch.equal(X, out["y"])


class Point(TensorClass):
    x: torch.Tensor


class Length(TensorClass):
    length: torch.Tensor


class Norm(TensorClassModuleBase[Point, Length]):
    def forward(self, params: Any, x: Point) -> Length:  # noqa: ARG002
        return Length(length=x.x.norm(dim=-1), batch_size=x.batch_size)


def test_records() -> None:
    point = Point(x=torch.tensor([[3.0, 4.0]]), batch_size=[1])
    assert [5.0] == Norm()(None, point).length.tolist()
    assert (Point, Length) == (Norm.input_type, Norm.output_type)
    module = Norm().as_td_module()
    td = TensorDict({"x": point.x, "other": torch.ones(1)}, 1)
    assert ("x", "other", "length") == module(None, td).keys()
    with pytest.raises(ValueError, match="does not say what goes in and out"):

        class Bare(TensorClassModuleBase):
            pass

    doubled = TensorDictModule(lambda x: 2 * x, ["x"], ["x"])(None, point)
    assert type(doubled) is Point
    assert [[6.0, 8.0]] == doubled.x.tolist()
    with pytest.raises(AttributeError, match="y"):
        TensorDictModule(lambda x: x, ["x"], ["y"])(None, point)


class TestProbabilistic:
    td = TensorDict({"loc": torch.zeros(3), "scale": torch.ones(3)}, 3)

    def module(self, **options: Any) -> ProbabilisticTensorDictModule:
        options = {"distribution_class": Normal, **options}
        return ProbabilisticTensorDictModule(["loc", "scale"], ["a"], **options)

    def test_interaction_types(self) -> None:
        assert InteractionType.MEAN is InteractionType("mean")
        for how in ("mode", "mean", "median", "DeterministiC"):
            assert [0.0] * 3 == self.module()(None, self.td, interaction_type=how)[
                "a"
            ].tolist()

    def test_a_mean_without_a_formula_is_that_of_draws(self) -> None:
        class Own(Normal):
            @property
            def mean(self) -> torch.Tensor:
                raise NotImplementedError

        module = self.module(distribution_class=Own, n_empirical_estimate=1000)
        mean = module(None, self.td, key=random.key(0), interaction_type="mean")["a"]
        assert (mean.abs() < 5 / 1000**0.5).all()
        assert mean.any()

    def test_the_mean_of_indices_is_no_value(self) -> None:
        module = ProbabilisticTensorDictModule(
            ["logits"], ["a"], distribution_class=Categorical
        )
        td = TensorDict({"logits": torch.tensor([0.0, 2.0, 1.0])})
        assert 1 == module(None, td)["a"]  # deterministic: the mode
        with pytest.raises(OptionError):  # the guide prints NaN
            module(None, td, interaction_type="mean")

    def test_samples_in_front(self) -> None:
        many = self.module(num_samples=5)(
            None, self.td, key=random.key(0), interaction_type="random"
        )
        assert (5, 3) == many.batch_size
        assert 15 == many["a"].unique().numel()
        assert torch.equal(self.td["loc"].expand(5, 3), many["loc"])

    def test_keys_of_composites(self) -> None:
        params = TensorDict(
            {
                "cont": {"loc": torch.zeros(3, 4), "scale": torch.ones(3, 4)},
                "nested": {"disc": {"logits": torch.zeros(3, 10)}},
            },
            3,
        )
        dist = CompositeDistribution(
            params, {"cont": Normal, ("nested", "disc"): Categorical}
        )
        sample = tdfunc.nn.draw(dist, random.key(0))
        assert ((3,), ()) == (dist.batch_shape, dist.event_shape)
        assert [(3, 4), (3,)] == [sample[k].shape for k in ("cont", ("nested", "disc"))]
        assert {"cont_log_prob", ("nested", "disc_log_prob")} == set(
            dist.log_prob(sample, aggregate=False).keys(True, True)
        )
        assert (3,) == dist.log_prob(sample, aggregate=True).shape

    def test_extractor(self) -> None:
        loc, scale = NormalParamExtractor()(torch.zeros(4, 6))
        assert [(4, 3), (4, 3)] == [loc.shape, scale.shape]
        torch.testing.assert_close(torch.ones(4, 3), scale)
        odd = NormalParamExtractor()(torch.zeros(5))
        assert [3, 2] == [x.numel() for x in odd]


class TestEnsembles:
    def test_sets_of_several_dims(self) -> None:
        nets = [nn.Linear(3, 4) for _ in range(4)]
        params = tdfunc.from_modules(*nets)
        out = functional_vmap(nets[0], params.reshape(2, 2), X)
        torch.testing.assert_close(
            torch.stack([net(X) for net in nets]).view(2, 2, 4, 4), out
        )

    def test_chained(self) -> None:
        first = EnsembleModule(TensorDictModule(nn.Linear(3, 4), ["x"], ["h"]), 3)
        then = EnsembleModule(
            TensorDictModule(nn.Linear(4, 1), ["h"], ["y"]), 3, expand_input=False
        )
        seq = TensorDictSequential(first, then)
        params = seq.init(random.key(0))
        out = seq(params, TensorDict({"x": X}, 4))
        assert [(3, 4, 4), (3, 4, 1)] == [out["h"].shape, out["y"].shape]
        one = TensorDictSequential(first.module, then.module)
        torch.testing.assert_close(
            one(params.with_batch_size(3)[1], TensorDict({"x": X}, 4))["y"], out["y"][1]
        )

    def test_parameters_for_optimizers(self) -> None:
        held = TensorDictParams(tdfunc.from_module(nn.BatchNorm1d(3)))
        assert {"weight", "bias", "running_mean", "running_var"} == {
            name for name, _ in held.named_parameters()
        }
        assert ["num_batches_tracked"] == [name for name, _ in held.named_buffers()]

    def test_a_key_that_the_net_does_not_have(self) -> None:
        net = nn.Linear(3, 2)
        with pytest.raises(MissingKeyError, match="wieght"):
            TensorDictModule(net, ["x"], ["y"])({"wieght": torch.ones(2, 3)}, x=X)
