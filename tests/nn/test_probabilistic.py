"""Probabilistic modules and sequences: keys, interaction rules, log-probabilities."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import distributions as D

from tdfunc import TensorDict, lazy_stack, random
from tdfunc.errors import (
    MissingKeyError,
    OperandError,
    OptionError,
    StructureError,
)
from tdfunc.nn import (
    CompositeDistribution,
    Delta,
    EnsembleModule,
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TanhNormal,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    composite_lp_aggregate,
    draw,
    interaction_type,
    set_composite_lp_aggregate,
    set_interaction_type,
)
from tdfunc.nn._values import value_of
from tdfunc.testing import assert_equal, assert_pure

Module = ProbabilisticTensorDictModule
Sequential = ProbabilisticTensorDictSequential
KEY = random.key(2)
LOC = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def tree() -> TensorDict:
    return TensorDict({"loc": LOC, "scale": torch.full((3, 2), 2.0)}, batch_size=3)


def normal(**options: Any) -> Module:
    options = {
        "in_keys": ["loc", "scale"],
        "out_keys": ["x"],
        "distribution_class": D.Normal,
        **options,
    }
    return Module(**options)


def parts(**options: Any) -> Module:
    kwargs = {"distribution_map": {"a": D.Normal, ("n", "b"): D.Categorical}}
    return Module(
        ["params"],
        distribution_class=CompositeDistribution,
        distribution_kwargs={**kwargs, **options.pop("kwargs", {})},
        **options,
    )


def tree_of_parts() -> TensorDict:
    params = {
        "a": {"loc": LOC, "scale": torch.ones(3, 2)},
        "n": {"b": {"logits": torch.zeros(3, 4)}},
    }
    return TensorDict({"params": params}, batch_size=3)


class TestInteraction:
    def test_names(self) -> None:
        assert InteractionType("RANDOM") is InteractionType.RANDOM
        with pytest.raises(ValueError, match="'sure' is not a valid"):
            InteractionType("sure")
        with pytest.raises(OptionError, match=r"no interaction type.*'sure'"):
            set_interaction_type("sure")
        with pytest.raises(OptionError, match="no interaction type"):
            normal(default_interaction_type=3)

    def test_block_decorator_and_default(self) -> None:
        assert interaction_type() is None
        block = set_interaction_type("mode")
        with block:
            with block, set_interaction_type(None):
                assert interaction_type() is None
            assert interaction_type() is InteractionType.MODE
        with set_interaction_type():
            assert interaction_type() is InteractionType.DETERMINISTIC
        assert set_interaction_type("mean")(interaction_type)() == "mean"
        with pytest.raises(KeyError), set_interaction_type("mean"):
            raise KeyError
        assert interaction_type() is None

    def test_other_threads_start_with_the_default(self) -> None:
        found: list[Any] = []
        with set_interaction_type("mode"), set_composite_lp_aggregate():
            thread = threading.Thread(
                target=lambda: found.extend(
                    [interaction_type(), composite_lp_aggregate()]
                )
            )
            thread.start()
            thread.join()

        assert [None, False] == found

    def test_argument_beats_block_beats_module(self) -> None:
        module, td = normal(default_interaction_type="random"), tree()
        drawn = draw(D.Normal(LOC, 2.0), KEY)

        close(module(None, td, key=KEY)["x"], drawn)
        with set_interaction_type("mean"):
            assert torch.equal(module(None, td, key=KEY)["x"], LOC)
            close(module(None, td, key=KEY, interaction_type="random")["x"], drawn)

    def test_compiled_block(self) -> None:
        module = normal()

        def fn(td: TensorDict, key: torch.Tensor) -> TensorDict:
            with set_interaction_type("random"):
                return module(None, td, key=key)

        torch._dynamo.reset()
        compiled = torch.compile(fn, fullgraph=True, backend="eager")
        assert_equal(compiled(tree(), KEY), fn(tree(), KEY))
        outside = torch.compile(
            lambda td, key: module(None, td, key=key), fullgraph=True, backend="eager"
        )
        assert torch.equal(outside(tree(), KEY)["x"], LOC)
        with set_interaction_type("random"):
            assert_equal(outside(tree(), KEY), fn(tree(), KEY))

    def test_a_compiled_block_leaves_other_compilations_alone(self) -> None:
        module = normal()
        found: list[Any] = []

        def block(td: TensorDict) -> Any:
            with set_interaction_type("mean"), set_composite_lp_aggregate():
                return module(None, td)["x"]

        def work() -> None:  # in a thread in which nobody has set anything
            found.append(torch.compile(block, fullgraph=True, backend="eager")(tree()))
            other = torch.compile(
                lambda td: module(None, td)["x"] + composite_lp_aggregate(),
                fullgraph=True,
                backend="eager",
            )
            found.append(other(tree()))

        torch._dynamo.reset()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert [torch.equal(LOC, value) for value in found] == [True, True]


class Own(D.Distribution):
    """A distribution that torch does not know and that declares nothing."""

    def __init__(self, loc: torch.Tensor) -> None:
        self.loc = loc
        super().__init__(loc.shape, validate_args=False)

    @property
    def mean(self) -> torch.Tensor:
        return self.loc


class Declared(Own):
    @property
    def deterministic_sample(self) -> torch.Tensor:
        return self.loc + 1


ONE = torch.ones(2)
HOW = InteractionType


class TestValues:
    @pytest.mark.parametrize(
        ("how", "dist", "expected"),
        [
            (HOW.MODE, D.Normal(ONE, 1.0), ONE),
            (HOW.MEAN, D.Normal(ONE, 1.0), ONE),
            (HOW.MEDIAN, D.Normal(ONE, 1.0), ONE),
            (HOW.MEDIAN, D.Independent(D.Normal(ONE, 1.0), 1), ONE),
            (HOW.MEDIAN, D.Exponential(ONE), ONE * 0.6931472),
            (HOW.MEDIAN, Delta(ONE), ONE),
            (HOW.DETERMINISTIC, D.Normal(ONE, 1.0), ONE),
            (HOW.DETERMINISTIC, D.Exponential(ONE * 2), ONE / 2),
            (HOW.DETERMINISTIC, D.Bernoulli(ONE * 0.7), ONE),
            (HOW.DETERMINISTIC, D.Categorical(logits=ONE.cumsum(0)), torch.tensor(1)),
            (
                HOW.DETERMINISTIC,
                D.OneHotCategorical(ONE.cumsum(0) / 3),
                ONE.cumsum(0) - 1,
            ),
            (HOW.DETERMINISTIC, D.Cauchy(ONE, 1.0), ONE),
            (HOW.DETERMINISTIC, D.HalfCauchy(ONE), ONE * 0),
            (HOW.DETERMINISTIC, TanhNormal(ONE, ONE), ONE.tanh()),
            (HOW.DETERMINISTIC, D.Independent(TanhNormal(ONE, ONE), 1), ONE.tanh()),
            (HOW.DETERMINISTIC, Declared(ONE), ONE + 1),
            (HOW.MEAN, Own(ONE), ONE),
            (
                HOW.DETERMINISTIC,
                D.LogisticNormal(torch.zeros(1), ONE[:1]),
                torch.tensor([0.5, 0.5]),
            ),
        ],
        ids=lambda v: v if isinstance(v, str) else type(v).__name__,
    )
    @pytest.mark.filterwarnings("ignore")
    def test_rules(self, how: Any, dist: Any, expected: torch.Tensor) -> None:
        close(value_of(dist, how, None), expected)
        assert value_of(dist, how, None, torch.Size([4])).shape == (4, *expected.shape)

    @pytest.mark.parametrize(
        ("how", "dist", "text"),
        [
            (HOW.MEAN, D.Categorical(logits=ONE), "Categorical has no mean"),
            (HOW.MEDIAN, D.Categorical(logits=ONE), "Categorical has no median"),
            (HOW.MODE, D.LogisticNormal(ONE, ONE), "LogisticNormal has no mode"),
            (HOW.MEAN, TanhNormal(ONE, ONE), "mean of TanhNormal.*needs a key"),
            (HOW.RANDOM, D.Normal(ONE, 1.0), "a draw needs a key"),
            (HOW.DETERMINISTIC, Own(ONE), "nobody says.*deterministic value of Own"),
            (HOW.DETERMINISTIC, D.LKJCholesky(3), "nobody says.*LKJCholesky"),
        ],
        ids=lambda v: v if isinstance(v, str) else type(v).__name__,
    )
    def test_errors(self, how: Any, dist: Any, text: str) -> None:
        with pytest.raises(OptionError, match=text):
            value_of(dist, how, None)

    def test_empirical_mean(self) -> None:
        dist = TanhNormal(torch.tensor(0.5), torch.tensor(1.0))
        found = value_of(dist, HOW.MEAN, KEY, draws=5000)

        assert torch.equal(found, draw(dist, KEY, 5000).mean(0))
        module = Module(
            ["loc", "scale"],
            ["x"],
            distribution_class=TanhNormal,
            default_interaction_type="mean",
            n_empirical_estimate=7,
        )
        out = module(None, tree(), key=KEY)["x"]
        close(out, draw(TanhNormal(LOC, torch.tensor(2.0)), KEY, 7).mean(0))


class TestModule:
    def test_reads_and_writes(self) -> None:
        module, td = normal(return_log_prob=True), tree()
        out = module(None, td, key=KEY, interaction_type="random")

        assert (("loc", "scale"), ("x", "x_log_prob")) == (
            module.in_keys,
            module.out_keys,
        )
        assert td.keys() == ("loc", "scale")
        assert out.batch_size == (3,)
        expected = draw(D.Normal(LOC, 2.0), KEY)
        close(out["x"], expected)
        close(out["x_log_prob"], D.Normal(LOC, 2.0).log_prob(expected))
        close(module.log_prob(None, out), out["x_log_prob"])
        close(
            module.log_prob(None, out, dist=D.Normal(LOC, 1.0))[0, 0],
            D.Normal(LOC, 1.0).log_prob(expected)[0, 0],
        )
        assert isinstance(module.dist(None, td), D.Normal)
        assert module.dist(None, td).scale.eq(2).all()
        assert "Normal" in repr(module)
        assert module.return_log_prob
        assert module.num_samples is None
        assert module.default_interaction_type == "deterministic"

    def test_nested_keys_and_names(self) -> None:
        td = TensorDict({"net": {"mu": LOC}, "s": torch.ones(3, 2)}, batch_size=3)
        module = normal(
            in_keys={"loc": ("net", "mu"), "scale": "s"},
            out_keys=[("net", "x")],
            return_log_prob=True,
        )
        out = module(None, td)

        assert (("net", "mu"), "s") == module.in_keys
        assert (("net", "x"), ("net", "x_log_prob")) == module.out_keys
        assert torch.equal(out["net", "x"], LOC)
        assert ("net", "x_log_prob") in out
        last = normal(in_keys=[("net", "loc"), "scale"])
        assert last.dist_params_keys == (("net", "loc"), "scale")

    def test_delta_is_the_default(self) -> None:
        module = Module({"param": "loc"}, ["y"])

        assert torch.equal(module(None, tree())["y"], LOC)

    def test_event_dims(self) -> None:
        module = normal(event_dims=1, return_log_prob=True)
        out = module(None, tree(), key=KEY, interaction_type="random")

        assert out["x_log_prob"].shape == (3,)
        close(out["x_log_prob"], D.Normal(LOC, 2.0).log_prob(out["x"]).sum(-1))

    def test_several_draws(self) -> None:
        module = normal(num_samples=4, return_log_prob=True)
        td = tree()
        out = module(None, td, key=KEY, interaction_type="random")
        same = module(None, td)

        assert out.batch_size == same.batch_size == (4, 3)
        assert not torch.equal(out["x"][0], out["x"][1])
        assert (same["x"] == LOC).all()
        assert out["x_log_prob"].shape == same["x_log_prob"].shape == (4, 3, 2)
        assert td.batch_size == (3,)
        assert module(None, td, num_samples=[2, 5])["x"].shape == (2, 5, 3, 2)
        assert module.num_samples == (4,)

    @pytest.mark.parametrize(
        "scale", [torch.full((3, 1), 2.0), torch.full((3, 2), 2.0)]
    )
    def test_parameters_are_broadcast(self, scale: torch.Tensor) -> None:
        td = tree().set("scale", scale)
        for wide in (False, True):
            own = td.to(torch.float64).set("scale", scale) if wide else td
            out = normal(return_log_prob=True)(
                None, own, key=KEY, interaction_type="random"
            )
            dist = D.Normal(own["loc"], own["scale"])

            close(out["x"], draw(dist, KEY))
            close(out["x_log_prob"], dist.log_prob(out["x"]))

    def test_gradient_goes_through_the_draw(self) -> None:
        def loss(td: TensorDict) -> torch.Tensor:
            return normal()(None, td, key=KEY, interaction_type="random")["x"].sum()

        grad = torch.func.grad(loss)(tree())
        assert grad["loc"].eq(1).all()
        close(grad["scale"], (draw(D.Normal(LOC, 1.0), KEY) - LOC))

    def test_gradient_of_the_log_probability_of_a_draw(self) -> None:
        """As of torch: in ``log_prob(rsample())`` the value depends on parameters."""

        def ours(td: TensorDict) -> torch.Tensor:
            out = normal(return_log_prob=True)(
                None, td, key=KEY, interaction_type="random"
            )
            return out["x_log_prob"].sum() + out["x"].square().sum()

        def theirs(td: TensorDict) -> torch.Tensor:
            dist = D.Normal(td["loc"], td["scale"])
            x = draw(dist, KEY)
            return dist.log_prob(x).sum() + x.square().sum()

        one, two = torch.func.grad(ours)(tree()), torch.func.grad(theirs)(tree())
        for key in ("loc", "scale"):
            close(one[key], two[key])

    def test_vmap_over_keys_is_the_loop(self) -> None:
        module = normal(return_log_prob=True, default_interaction_type="random")
        keys = random.split(KEY, 4)
        mapped = torch.vmap(lambda key: module(None, tree(), key=key))(keys)

        assert mapped.batch_size == (4, 3)
        for i, key in enumerate(keys):
            one = module(None, tree(), key=key)
            close(mapped["x"][i], one["x"])
            close(mapped["x_log_prob"][i], one["x_log_prob"])

    def test_errors_of_calls(self) -> None:
        td = tree()
        with pytest.raises(MissingKeyError, match="'scale'"):
            normal()(None, td.drop("scale"))
        with pytest.raises(OptionError, match=r"a draw needs a key.*td\['x'\]"):
            normal()(None, td, interaction_type="random")
        with pytest.raises(OptionError, match="a draw needs a key"):
            normal(return_log_prob=True)(None, td, interaction_type="random")
        bad = td.at[0].set({"scale": torch.tensor([float("nan"), 1.0])})
        with pytest.raises(
            OperandError, match=r"scale of Normal has values.*td\['scale'\].*1 of 6"
        ):
            normal()(None, bad)
        with pytest.raises(OperandError, match=r"arguments of Normal.*unexpected"):
            normal(in_keys={"loc": "loc", "stdev": "scale"})(None, td)
        with pytest.raises(OperandError, match=r"arguments of Normal.*required"):
            normal(in_keys=["loc"])(None, td)
        with pytest.raises(StructureError, match=r"one value for each key.*got 1"):
            normal(out_keys=["x", "y"])(None, td)
        with pytest.raises(OperandError, match="the value of Exponential"):
            Module(["rate"], ["x"], distribution_class=D.Exponential).log_prob(
                None, TensorDict({"rate": 1.0, "x": -1.0})
            )

    def test_parameters_are_checked_with_a_default_device_too(self) -> None:
        bad = tree().set("scale", -torch.ones(3, 2))
        with torch.device("cpu"), pytest.raises(OperandError, match="6 of 6"):
            normal()(None, bad)

    def test_all_that_is_missing_is_listed(self) -> None:
        with pytest.raises(MissingKeyError, match="no 'loc', 'scale'"):
            normal()(None, tree().exclude("loc", "scale"))

    def test_methods_take_trees_and_options_of_calls(self) -> None:
        seq, td = Sequential(normal(return_log_prob=True)), tree()
        ready = seq(None, td)
        for method in (seq.dist, seq.log_prob, seq.get_dist_params, seq.score):
            with pytest.raises(OperandError, match="takes a tree"):
                method(None, LOC)
            with pytest.raises(OptionError, match=r"not take these options.*got rng"):
                method(None, ready, rng=KEY)
        alone: Any
        for alone in (
            normal().dist,
            normal().log_prob,
            normal(return_log_prob=True).score,
        ):
            with pytest.raises(OperandError, match="takes a tree"):
                alone(None, LOC)
            with pytest.raises(OptionError, match=r"not take these options.*got rng"):
                alone(None, ready, rng=KEY)
            alone(None, ready, key=KEY, buffers=None, interaction_type="random")

    def test_event_dims_are_batch_dims(self) -> None:
        with pytest.raises(
            OptionError, match=r"at most 2, its batch shape is \[3, 2\]"
        ):
            normal(event_dims=3)(None, tree())
        with pytest.raises(OptionError, match="got -1"):
            normal(event_dims=-1)
        with pytest.raises(OptionError, match="return_composite is True"):
            Sequential(normal(), return_composite="no")  # pyright: ignore[reportArgumentType]

    def test_lazy_stacks(self) -> None:
        many = lazy_stack([tree(), tree().set("more", torch.zeros(3))])
        out = normal(return_log_prob=True)(
            None, many, key=KEY, interaction_type="random"
        )

        assert (2, 3) == out.batch_size
        assert "more" in out[1]
        close(out["x_log_prob"], D.Normal(out["loc"], out["scale"]).log_prob(out["x"]))

    def test_an_error_of_the_class_is_not_hidden(self) -> None:
        def broken(loc: torch.Tensor, scale: torch.Tensor) -> Any:
            raise TypeError("mine", loc, scale)

        with pytest.raises(TypeError, match="mine"):
            normal(distribution_class=broken)(None, tree())

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"distribution_class": 3}, OperandError, "makes no distribution.*got 3"),
            ({"event_dims": "1"}, OptionError, "number of dims - got '1'"),
            ({"n_empirical_estimate": 0}, OptionError, "at least one draw"),
            ({"n_empirical_estimate": 1.5}, OptionError, "at least one draw"),
            ({"out_keys": ["x", "x"]}, OptionError, "two values go to one place"),
            ({"out_keys": ["x", ("x", "y")]}, OptionError, r"td\['x', 'y'\]"),
            ({"out_keys": 3}, OperandError, "no keys"),
            ({"out_keys": {"x"}}, OperandError, "no order"),
            ({"in_keys": {"loc", "scale"}}, OperandError, "no order"),
        ],
        ids=map(str, range(9)),
    )
    def test_options_that_do_not_fit(self, options: Any, error: Any, text: str) -> None:
        with pytest.raises(error, match=text):
            normal(**options)

    def test_options_that_do_not_fit_parts(self) -> None:
        with pytest.raises(OptionError, match="events of their own"):
            parts(event_dims=1)
        with pytest.raises(OptionError, match="two values go to one place"):
            parts(kwargs={"name_map": {("n", "b"): ("a", "b")}})

    def test_a_log_probability_overwrites_no_sample(self) -> None:
        def around(*outs: str, **options: Any) -> Module:
            return normal(out_keys=outs, aggregate_log_prob=False, **options)

        with pytest.raises(OptionError, match=r"overwrite a sample.*'x_log_prob'"):
            around("x", "x_log_prob", return_log_prob=True)
        assert ("x", "x_log_prob") == around("x", "x_log_prob").out_keys

    def test_a_value_in_the_place_of_its_parameter(self) -> None:
        module = normal(out_keys=["loc"], return_log_prob=True)
        out = module(None, tree(), key=KEY, interaction_type="random")

        close(out["loc_log_prob"], D.Normal(LOC, 2.0).log_prob(out["loc"]))
        given = module.log_prob(None, out, dist=D.Normal(LOC, 2.0))
        close(out["loc_log_prob"], given)
        with pytest.raises(OptionError, match=r"taken the place of the parameters"):
            module.log_prob(None, out)
        with pytest.raises(OptionError, match=r"taken the place of the parameters"):
            module.score(None, out)
        nested = normal(in_keys={"loc": ("n", "loc"), "scale": "scale"}, out_keys=["n"])
        with pytest.raises(OptionError, match=r"taken the place of the parameters"):
            nested.log_prob(None, tree())

    def test_errors_of_options(self) -> None:
        with pytest.raises(OptionError, match="does not know where its value goes"):
            normal(out_keys=None)
        with pytest.raises(OptionError, match="two entries are the same argument"):
            normal(in_keys=[("a", "loc"), ("b", "loc")])
        with pytest.raises(OptionError, match="out_keys are not where the parts"):
            parts(out_keys=["a", "c"])

    def test_pure(self) -> None:
        module = normal(return_log_prob=True)
        assert_pure(
            lambda td: module(None, td, key=KEY, interaction_type="random"), tree()
        )


class TestLogProbKeys:
    @pytest.mark.parametrize(
        ("options", "aggregate", "expected"),
        [
            ({}, False, ("x_log_prob",)),
            ({"log_prob_key": "lp"}, False, ("lp",)),
            ({"log_prob_keys": ["lp"]}, False, ("lp",)),
            ({}, True, ("sample_log_prob",)),
            ({"log_prob_key": "lp"}, True, ("lp",)),
        ],
    )
    def test_of_one_key(self, options: Any, aggregate: bool, expected: Any) -> None:  # noqa: FBT001
        with set_composite_lp_aggregate(aggregate):
            module = normal(return_log_prob=True, **options)
        out = module(None, tree())

        assert expected == module.log_prob_keys
        assert expected[0] == module.log_prob_key
        assert ("x", *expected) == module.out_keys
        assert expected[0] in out

    @pytest.mark.parametrize(
        ("options", "aggregate", "expected"),
        [
            ({}, False, ("a_log_prob", ("n", "b_log_prob"))),
            ({"log_prob_keys": ["p", "q"]}, False, ("p", "q")),
            ({"log_prob_keys": [("n", "p"), "q"]}, False, (("n", "p"), "q")),
            ({}, True, ("sample_log_prob",)),
            ({"log_prob_key": "lp"}, True, ("lp",)),
        ],
    )
    def test_of_parts(self, options: Any, aggregate: bool, expected: Any) -> None:  # noqa: FBT001
        module = parts(return_log_prob=True, aggregate_log_prob=aggregate, **options)
        td = tree_of_parts()
        for how in ("random", "mode"):
            out = module(None, td, key=KEY, interaction_type=how)
            found = module.log_prob(None, out)

            assert expected == module.log_prob_keys
            assert ("a", ("n", "b"), *expected) == module.out_keys
            assert set(out.keys(True, True)) == {
                *td.keys(True, True),
                *module.out_keys,
            }
            a = D.Normal(LOC, 1.0).log_prob(out["a"])
            b = torch.full((3,), 0.25).log()
            if aggregate:
                close(out[expected[0]], a.sum(-1) + b)
                close(found, out[expected[0]])
            else:
                close(out[expected[0]], a)
                close(out[expected[1]], b)
                close(found[expected[0]], a)

    def test_name_map(self) -> None:
        module = parts(kwargs={"name_map": {"a": ("n", "c")}}, return_log_prob=True)

        assert (("n", "c"), ("n", "b")) == module.dist_sample_keys
        out = module(None, tree_of_parts(), key=KEY, interaction_type="random")
        assert ("n", "c_log_prob") in out

    def test_errors(self) -> None:
        with pytest.raises(OptionError, match="one key or to several"):
            normal(log_prob_keys=["a"], aggregate_log_prob=True)
        with pytest.raises(OptionError, match="one key or to several"):
            normal(log_prob_keys=["a"], log_prob_key="b")
        with pytest.raises(OptionError, match="several parts do not go to one key"):
            parts(log_prob_key="lp")
        with pytest.raises(OptionError, match="not one key for each"):
            parts(log_prob_keys=["lp"])
        with pytest.raises(OptionError, match="not one key for each"):
            parts(log_prob_keys=["lp", "lp"])
        for key in ("x", ("x", "y")):
            with pytest.raises(OptionError, match="would overwrite a sample"):
                normal(log_prob_key=key)
        with pytest.raises(OptionError, match="not one log-probability"):
            _ = parts().log_prob_key


class Linear(TensorDictModuleBase):
    """``y = w x``, with a parameter."""

    def __init__(self, read: str, write: str) -> None:
        self.in_keys, self.out_keys = (read,), (write,)

    def init(self, key: torch.Tensor) -> TensorDict:
        return TensorDict({"w": random.normal(key)})

    def forward(self, params: Any, td: Any) -> Any:
        return td.set(self.out_keys[0], params["w"] * td[self.in_keys[0]])


def unit(read: str, write: str, **options: Any) -> Module:
    return Module(
        {"loc": read},
        [write],
        distribution_class=D.Normal,
        distribution_kwargs={"scale": 1.0},
        **options,
    )


OBS = TensorDict({"obs": torch.arange(6.0).reshape(3, 2)}, batch_size=3)


class TestSequential:
    def policy(self, **options: Any) -> Sequential:
        return Sequential(Linear("obs", "mu"), unit("mu", "act", **options))

    def chain(self, **options: Any) -> Sequential:
        return Sequential(
            Linear("obs", "mu"),
            unit("mu", "y"),
            Linear("y", "nu"),
            unit("nu", "z"),
            **options,
        )

    def test_one_distribution(self) -> None:
        seq = self.policy(return_log_prob=True)
        params = seq.init(random.key(1))
        w = params["0", "w"]
        with set_interaction_type("random"):
            out = seq(params, OBS, key=KEY)

        assert not seq.return_composite
        assert (("obs",), ("mu", "act", "act_log_prob")) == (seq.in_keys, seq.out_keys)
        close(out["mu"], w * OBS["obs"])
        dist = seq.dist(params, OBS)
        close(dist.loc, w * OBS["obs"])
        close(seq.get_dist_params(params, OBS)["mu"], dist.loc)
        close(
            seq.build_dist_from_params(seq.get_dist_params(params, OBS)).loc, dist.loc
        )
        close(seq.log_prob(params, out), dist.log_prob(out["act"]))
        close(seq.log_prob(params, out, dist=dist), dist.log_prob(out["act"]))
        close(out["act_log_prob"], dist.log_prob(out["act"]))
        assert seq.log_prob_key == "act_log_prob"
        assert (("mu",), ("act",)) == (seq.dist_params_keys, seq.dist_sample_keys)
        assert seq.default_interaction_type == "deterministic"
        assert OBS.keys() == ("obs",)

    def test_a_chain_is_conditional(self) -> None:
        seq = self.chain()
        params = seq.init(random.key(1))
        out = seq(params, OBS, key=KEY, interaction_type="random")
        found = seq.log_prob(params, out)

        assert seq.return_composite
        assert ("y_log_prob", "z_log_prob") == seq.log_prob_keys == found.keys()
        close(found["y_log_prob"], D.Normal(out["mu"], 1.0).log_prob(out["y"]))
        nu = params["2", "w"] * out["y"]
        close(found["z_log_prob"], D.Normal(nu, 1.0).log_prob(out["z"]))
        dist = seq.dist(params, OBS, key=KEY, interaction_type="random")
        assert isinstance(dist, CompositeDistribution)
        close(dist["z"].mean, nu)
        with pytest.raises(OptionError, match="not one log-probability"):
            _ = seq.log_prob_key
        with pytest.raises(OptionError, match="needs a key"):
            seq.dist(params, OBS, interaction_type="random")

    def test_sum_of_a_chain(self) -> None:
        seq = Sequential(
            unit("obs", "y", aggregate_log_prob=True),
            unit("y", "z", aggregate_log_prob=True),
        )
        out = seq(None, OBS, key=KEY, interaction_type="random")
        y = D.Normal(OBS["obs"], 1.0).log_prob(out["y"])
        z = D.Normal(out["y"], 1.0).log_prob(out["z"])

        close(seq.log_prob(None, out), (y + z).sum(-1))

    def test_composite_or_the_last(self) -> None:
        last = self.chain(return_composite=False)
        params = last.init(random.key(1))
        out = last(params, OBS, key=KEY, interaction_type="random")

        assert isinstance(last.dist(params, OBS), D.Normal)
        close(
            last.log_prob(params, out, key=KEY, interaction_type="random"),
            D.Normal(out["nu"], 1.0).log_prob(out["z"]),
        )
        ends = Sequential(unit("obs", "y"), Linear("y", "nu"))
        assert ends.return_composite
        with pytest.raises(OptionError, match="last module has no distribution"):
            ends.build_dist_from_params(OBS)
        with pytest.raises(OptionError, match="no distribution to return"):
            Sequential(unit("obs", "y"), Linear("y", "nu"), return_composite=False)
        with pytest.raises(OptionError, match="no probabilistic module"):
            Sequential(Linear("obs", "mu"))
        with pytest.raises(OperandError, match="no module of trees"):
            Sequential(unit("obs", "y"), 3)

    def test_sequences_in_sequences(self) -> None:
        inner = Sequential(Linear("obs", "mu"), unit("mu", "y", return_log_prob=True))
        seq = Sequential({"one": inner, "two": unit("y", "z")})
        params = seq.init(random.key(1))
        out = seq(params, OBS, key=KEY, interaction_type="random")
        found = seq.log_prob(params, out)

        assert params.keys(True, True) == (("one", "0", "w"),)
        close(found["y_log_prob"], out["y_log_prob"])
        close(found["z_log_prob"], D.Normal(out["y"], 1.0).log_prob(out["z"]))
        assert set(seq.dist(params, OBS).keys()) == {("y",), ("z",)}

    def test_a_value_that_is_taken_twice_has_no_joint_distribution(self) -> None:
        def around(loc: str, out: str) -> Module:
            return normal(
                in_keys={"loc": loc},
                out_keys=[out],
                distribution_kwargs={"scale": 1.0},
                default_interaction_type="random",
            )

        seq = Sequential(around("loc", "x"), around("loc", "x"), around("x", "y"))
        out = seq(None, tree(), key=KEY)

        for method in (seq.log_prob, seq.dist):
            with pytest.raises(OptionError, match=r"module '1' writes its own"):
                method(None, out, key=KEY)
        walk = Sequential(around("loc", "loc"), around("loc", "y"))
        out = walk(None, tree(), key=KEY)
        with pytest.raises(OptionError, match=r"taken the place of the parameters"):
            walk.log_prob(None, out)
        last = Sequential(*walk, return_composite=False)
        assert last.dist(None, tree(), key=KEY).has_rsample
        scored = Sequential(around("loc", "x"), around("scale", "x"))
        own = D.Normal(2.0, 1.0).log_prob(out["loc"])
        value = tree().set("x", out["loc"])
        close(scored.log_prob(None, value)["x_log_prob"], own)

    def test_the_last_does_not_draw_again(self) -> None:
        seq = Sequential(unit("obs", "act"), unit("obs", "act", return_log_prob=True))
        out = seq(None, OBS, key=KEY, interaction_type="random")
        first = seq.modules[0](
            None, OBS, key=seq._keys(KEY)[0], interaction_type="random"
        )

        assert torch.equal(out["act"], first["act"])
        close(out["act_log_prob"], D.Normal(OBS["obs"], 1.0).log_prob(out["act"]))

    def test_scores_go_where_outputs_go(self) -> None:
        pair = (unit("obs", "act"), unit("obs", "act", return_log_prob=True))
        chosen = Sequential(*pair, selected_out_keys=["act_log_prob"])
        alone = Sequential(*pair, output="empty")

        assert ("obs", "act_log_prob") == chosen(None, OBS).keys()
        assert ("act", "act_log_prob") == alone(None, OBS).keys()
        assert (3,) == alone(None, OBS).batch_size
        options = {"key": KEY, "interaction_type": "random"}
        out = Sequential(*pair)(None, OBS, **options)
        assert out.equal(
            Sequential(*pair).call_with_buffers(None, None, OBS, **options)[0]
        )
        ready = out.set("act_log_prob", torch.zeros(3, 2))
        assert Sequential(*pair)(None, ready, skip_existing=True) is ready

    def test_scores_in_other_sequences_and_compiled(self) -> None:
        pair = Sequential(unit("obs", "act"), unit("obs", "act", return_log_prob=True))
        seq = TensorDictSequential(pair, Linear("act", "mu"))
        params = seq.init(random.key(1))

        def call(key: torch.Tensor) -> Any:
            return seq(params, OBS, key=key, interaction_type="random")

        out = call(KEY)
        log_prob = D.Normal(OBS["obs"], 1.0).log_prob(out["act"])
        close(out["act_log_prob"], log_prob)
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="eager")
        assert out.equal(compiled(KEY))
        many = EnsembleModule(pair, 2)(None, OBS, key=KEY, interaction_type="random")
        close(many["act_log_prob"], D.Normal(many["obs"], 1.0).log_prob(many["act"]))

    @pytest.mark.parametrize("composite", [True, False])
    def test_keys_reach_nested_sequences_as_in_a_call(self, composite: bool) -> None:  # noqa: FBT001
        inner = Sequential(unit("obs", "y"), unit("y", "z"), return_composite=composite)
        seq = Sequential(
            {"first": unit("obs", "w"), "in": inner}, return_composite=composite
        )
        options: dict[str, Any] = {"key": KEY, "interaction_type": "random"}
        out = seq(None, OBS, **options)
        dist = seq.dist(None, OBS, **options)
        found = seq.log_prob(None, out, **options)

        assert torch.equal(out["y"], (dist["z"] if composite else dist).mean)
        wanted = D.Normal(out["y"], 1.0).log_prob(out["z"])
        close(wanted, found["z_log_prob"] if composite else found)

    def test_parts_stay_probabilistic(self) -> None:
        seq = self.chain()
        params = seq.init(random.key(1))
        first = seq[:2]
        assert isinstance(first, Sequential)
        assert ("0", "1") == first.names
        assert not first.return_composite  # of one module, the last
        out = seq(params, OBS, key=KEY, interaction_type="random")
        close(
            first.log_prob(first.project(params), out),
            seq.log_prob(params, out)["y_log_prob"],
        )
        found = first(first.project(params), OBS, key=KEY, interaction_type="random")
        assert torch.equal(out["y"], found["y"])
        to_y = seq.select_subsequence(out_keys=["y"])
        assert isinstance(to_y, Sequential)
        assert first.names == to_y.names
        assert type(seq[::2]) is type(seq[4:]) is TensorDictSequential
        to_mu = seq.select_subsequence(out_keys=["mu"])
        assert type(to_mu) is TensorDictSequential
        few = seq.select_out_keys("z")
        assert isinstance(few, Sequential)
        assert ("obs", "z") == few(params, OBS).keys()
        assert seq.out_keys == few.reset_out_keys().out_keys
        close(
            seq.log_prob(params, out)["z_log_prob"],
            few.log_prob(params, out)["z_log_prob"],
        )

    def test_parts_in_nested_sequences(self) -> None:
        seq = Sequential({"in": self.chain(), "out": unit("mu", "w")})
        part = seq.select_subsequence(out_keys=["w"])

        assert isinstance(part, Sequential)
        assert type(part["in"]) is TensorDictSequential
        inner: Any = part["in"]
        assert [("0",), ("in", "out")] == [inner.names, part.names]

    def test_parts_keep_what_their_distribution_is_about(self) -> None:
        assert self.chain(return_composite=True)[:2].return_composite  # pyright: ignore[reportAttributeAccessIssue]
        last = self.chain(return_composite=False)
        assert not last[1:].return_composite  # pyright: ignore[reportAttributeAccessIssue]
        assert last[:3].return_composite  # pyright: ignore[reportAttributeAccessIssue]
        whole = self.chain(output="empty", partial_tolerant=True)
        part = whole[:2]
        assert ("mu", "y") == part(whole.init(KEY).select("0"), OBS).keys()
        assert OBS.exclude("obs").equal(part(None, OBS.exclude("obs")))

    def test_options_reach_modules_on_the_way(self) -> None:
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5))
        norm = TensorDictModule(net, ["obs"], ["mu"])
        seq = Sequential(norm, unit("mu", "y"), unit("y", "z"))
        params, buffers = seq.params(), seq.buffers()
        net.get_submodule("0").eval()
        shifted = buffers.set(("0", "0", "running_mean"), torch.ones(2))
        options: dict[str, Any] = {"key": KEY, "buffers": shifted}
        out = seq(params, OBS, **options, interaction_type="random")
        mu = norm(params["0"], OBS, buffers=shifted["0"], key=seq._keys(KEY)[0])["mu"]

        close(mu, out["mu"])
        close(mu, seq.get_dist_params(params, OBS, **options)["mu"])
        close(mu, seq.dist(params, OBS, **options)["y"].mean)
        found = seq.log_prob(params, out, **options)
        close(D.Normal(mu, 1.0).log_prob(out["y"]), found["y_log_prob"])
        scored = seq.score(params, out, **options)
        assert torch.equal(mu, scored["mu"])
        assert torch.equal(out["z"], scored["z"])
        with pytest.raises(OptionError, match="no key"):
            seq.log_prob(params, out)

    def test_tolerant_sequences_leave_out_distributions(self) -> None:
        seq = Sequential(
            unit("obs", "y", return_log_prob=True),
            unit("lost", "z", return_log_prob=True),
            partial_tolerant=True,
        )
        out = seq(None, OBS)

        assert ("obs", "y", "y_log_prob") == out.keys()
        assert (("y",),) == tuple(seq.dist(None, OBS).keys())
        assert ("y_log_prob",) == seq.log_prob(None, out).keys()
        assert out.equal(seq.score(None, out))

    def test_several_draws(self) -> None:
        seq = Sequential(
            unit("obs", "y", num_samples=2), unit("y", "z", num_samples=[5])
        )
        out = seq(None, OBS, key=KEY, interaction_type="random")

        assert out.batch_size == (5, 2, 3) == (*seq.num_samples, 3)

    def test_vmap_grad_and_compile(self) -> None:
        seq = self.policy(return_log_prob=True)
        params = seq.init(random.key(1))

        def loss(params: Any, key: torch.Tensor) -> torch.Tensor:
            out = seq(params, OBS, key=key, interaction_type="random")
            return (out["act_log_prob"] + out["act"].square()).sum()

        keys = random.split(KEY, 3)
        mapped = torch.vmap(torch.func.grad(loss), (None, 0))(params, keys)
        for i, key in enumerate(keys):
            one = torch.func.grad(loss)(params, key)
            close(mapped[i]["0", "w"], one["0", "w"])
        torch._dynamo.reset()
        compiled = torch.compile(loss, fullgraph=True, backend="eager")
        close(compiled(params, KEY), loss(params, KEY))

    def test_pure(self) -> None:
        seq = self.chain()
        params = seq.init(random.key(1))
        out = seq(params, OBS, key=KEY, interaction_type="random")
        assert_pure(
            lambda p, td: (
                seq(p, td, key=KEY),
                seq.log_prob(p, td),
                seq.dist(p, td)["z"].mean,
            ),
            params,
            out,
        )


def test_peer_computes_the_same() -> None:
    theirs = pytest.importorskip("tensordict.nn")
    tensordict = pytest.importorskip("tensordict")
    options: dict[str, Any] = {
        "in_keys": ["loc", "scale"],
        "out_keys": ["x"],
        "distribution_class": D.Normal,
        "return_log_prob": True,
    }
    other = theirs.ProbabilisticTensorDictModule(**options)
    module = Module(**options)
    entries = {"loc": LOC, "scale": torch.full((3, 2), 2.0)}
    expected = other(tensordict.TensorDict(entries, [3]))
    out = module(None, TensorDict(entries, batch_size=3))

    assert list(other.out_keys) == list(module.out_keys)
    for key in module.out_keys:
        close(out[key], expected[key])
