"""Distributions over trees: parts, sums, batch sizes, values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import distributions as D

from tdfunc import TensorDict, random
from tdfunc.errors import MissingKeyError, OperandError, OptionError, ShapeError
from tdfunc.nn import (
    CompositeDistribution,
    InteractionType,
    draw,
    set_composite_lp_aggregate,
)
from tdfunc.nn._values import value_of
from tdfunc.testing import assert_equal, assert_pure

KEY = random.key(7)
LOC = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])
LOGITS = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])


def params() -> TensorDict:
    return TensorDict(
        {
            "cont": {"loc": LOC, "scale": torch.ones(3, 2)},
            "nested": {"disc": {"logits": LOGITS}},
        },
        batch_size=3,
    )


PARTS: dict[Any, Any] = {"cont": D.Normal, ("nested", "disc"): D.Categorical}
CONT, DISC = ("cont",), ("nested", "disc")


def made(**options: Any) -> CompositeDistribution:
    return CompositeDistribution(params(), PARTS, **options)


def by_hand(sample: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    cont = D.Normal(LOC, 1.0).log_prob(sample["cont"])
    logs = torch.log_softmax(LOGITS, -1).expand(*sample[DISC].shape, 2)
    disc = logs.gather(-1, sample[DISC][..., None])[..., 0]
    return cont, disc


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class TestParts:
    def test_mapping(self) -> None:
        dist = made()

        assert dist.batch_shape == (3,)
        assert dist.event_shape == ()
        assert (CONT, DISC) == dist.keys() == tuple(dist)
        assert len(dist) == 2
        assert isinstance(dist["cont"], D.Normal)
        assert dist[DISC] is dist.dists[DISC]
        assert not dist.has_rsample
        assert "Categorical" in repr(dist)
        with pytest.raises(MissingKeyError, match=r"no such part.*'cont'"):
            dist["con"]

    def test_draws_have_streams_of_their_own(self) -> None:
        both = draw(made(), KEY)
        alone = draw(CompositeDistribution(params(), {"cont": D.Normal}), KEY)

        assert torch.equal(both["cont"], alone["cont"])
        assert both.batch_size == (3,)
        assert both[DISC].shape == (3,)
        assert draw(made(), KEY, [4]).batch_size == (4, 3)
        assert_equal(both, made().draw(KEY))

    def test_name_map(self) -> None:
        dist = made(name_map={"cont": ("a", "b")})

        assert (("a", "b"), DISC) == dist.keys()
        assert draw(dist, KEY)["a", "b"].shape == (3, 2)

    def test_extra_arguments_and_functions(self) -> None:
        def unit(loc: torch.Tensor, scale: Any = 1.0, power: int = 1) -> D.Distribution:
            return D.Independent(D.Normal(loc, scale * power), 1)

        dist = CompositeDistribution(
            params(), {"cont": unit}, extra_kwargs={"cont": {"power": 3}}
        )
        assert dist.log_prob(draw(dist, KEY), aggregate=False)[
            "cont_log_prob"
        ].shape == (3,)
        assert (dist["cont"].stddev == 3).all()

    def test_from_distributions(self) -> None:
        tree = TensorDict({}, batch_size=3)
        dist = CompositeDistribution.from_distributions(
            tree, {"x": D.Normal(LOC, 1.0)}, name_map={"x": "y"}
        )

        assert draw(dist, KEY).keys() == ("y",)
        assert dist.has_rsample

    def test_draws_without_a_key(self) -> None:
        for method in (made().sample, made().rsample):
            with pytest.raises(OptionError, match=r"CompositeDistribution.*nn\.draw\("):
                method([2])

    def test_errors(self) -> None:
        with pytest.raises(MissingKeyError, match=r"no parameters.*td\['cond'\]"):
            CompositeDistribution(params(), {"cond": D.Normal})
        with pytest.raises(OptionError, match="there are no parts"):
            CompositeDistribution(params(), {})
        no_tree: Any = LOC
        with pytest.raises(OperandError, match=r"come as a tree.*got Tensor"):
            CompositeDistribution(no_tree, PARTS)
        with pytest.raises(OperandError, match=r"come as a tree.*got Tensor"):
            CompositeDistribution.from_distributions(no_tree, {"a": D.Normal(0.0, 1.0)})
        with pytest.raises(OptionError, match="extra_kwargs names no part"):
            made(extra_kwargs={"no": {}})
        with pytest.raises(
            OptionError, match=r"one place.*td\['nested', 'disc', 'x'\]"
        ):
            made(name_map={"cont": (*DISC, "x")})
        with pytest.raises(OptionError, match=r"one place.*td\['nested', 'disc'\]"):
            made(name_map={"cont": "nested"})
        with pytest.raises(OptionError, match="two parts go to one place"):
            made(name_map={"cont": DISC})
        with pytest.raises(OptionError, match="name_map names no part"):
            made(name_map={"x": "y"})
        bad = params().set(("cont", "scale"), -torch.ones(3, 2))
        with pytest.raises(
            OperandError, match=r"scale of Normal.*td\['cont', 'scale'\].*6 of 6"
        ):
            CompositeDistribution(bad, PARTS)
        with pytest.raises(OperandError, match="not those of the distribution"):
            CompositeDistribution(params(), {"cont": D.Categorical})
        with pytest.raises(ValueError, match="scale"):
            CompositeDistribution(bad, {"cont": D.Normal}, validate_args=True)


class TestLogProb:
    def test_entries(self) -> None:
        sample = draw(made(), KEY)
        cont, disc = by_hand(sample)
        found = made().log_prob(sample)

        assert {"cont_log_prob", ("nested", "disc_log_prob")} == set(
            found.keys(True, True)
        )
        close(found["cont_log_prob"], cont)
        close(found["nested", "disc_log_prob"], disc)
        assert found.batch_size == (3,)

    def test_sum_has_the_batch_size_of_the_rows(self) -> None:
        for shape in ((), (4,)):
            sample = draw(made(), KEY, shape)
            cont, disc = by_hand(sample)
            close(made().log_prob(sample, aggregate=True), cont.sum(-1) + disc)

    def test_who_says_whether_it_is_a_sum(self) -> None:
        sample = draw(made(), KEY)
        total = made().log_prob(sample, aggregate=True)

        assert isinstance(made().log_prob(sample), TensorDict)
        close(made(aggregate=True).log_prob(sample), total)
        with set_composite_lp_aggregate(True):
            close(made().log_prob(sample), total)
            assert isinstance(made(aggregate=False).log_prob(sample), TensorDict)
            assert isinstance(made().log_prob(sample, aggregate=False), TensorDict)
        assert isinstance(made().log_prob(sample), TensorDict)

    def test_include_sum(self) -> None:
        sample = draw(made(), KEY)
        tree = made(log_prob_key="total").log_prob(sample, include_sum=True)

        close(tree["total"], made().log_prob(sample, aggregate=True))
        assert "sample_log_prob" in made().log_prob(sample, include_sum=True)

    def test_case_b46(self) -> None:
        """A group with rows of its own keeps them in the sum."""
        head = TensorDict(
            {"loc": torch.zeros(2, 3), "scale": torch.ones(2, 3)}, batch_size=2
        )
        agents = TensorDict({"a": head, "b": head}, batch_size=2)
        tree = TensorDict({"agents": agents, "done": torch.zeros(1)})
        one = CompositeDistribution(tree, {("agents", "a"): D.Normal})
        two = CompositeDistribution(
            tree, {("agents", "a"): D.Normal, ("agents", "b"): D.Normal}
        )
        zero = TensorDict(
            {"a": torch.zeros(2, 3), "b": torch.zeros(2, 3)}, batch_size=2
        )
        sample = TensorDict({"agents": zero, "done": torch.zeros(1)})

        close(one.log_prob(sample, aggregate=True), torch.tensor([-2.756816] * 2))
        close(two.log_prob(sample, aggregate=True), torch.tensor([-5.513631] * 2))
        assert draw(two, KEY)["agents"].batch_size == (2,)
        assert draw(two, KEY, 5)["agents"].batch_size == (5, 2)
        found = two.log_prob(sample, include_sum=True)
        close(found["sample_log_prob"], torch.tensor(-5.513631 * 2))
        assert found["agents"].batch_size == (2,)

    def test_values_that_can_not_be(self) -> None:
        sample = draw(made(), KEY).set(DISC, torch.tensor([0, 1, 2]))
        with pytest.raises(OperandError, match=r"the value of Categorical.*'disc'"):
            made().log_prob(sample)
        with pytest.raises(MissingKeyError, match="'cont'"):
            made().log_prob(sample.drop("cont"))

    def test_a_part_with_too_few_dims(self) -> None:
        tree = TensorDict({}, batch_size=3)
        dist = CompositeDistribution.from_distributions(
            tree, {"x": D.Independent(D.Normal(torch.zeros(3), 1.0), 1)}
        )
        with pytest.raises(ShapeError, match="fewer batch dims than the node"):
            dist.log_prob(draw(dist, KEY), aggregate=True)

    def test_draw_and_log_prob(self) -> None:
        sample, logs = made().draw_and_log_prob(KEY, 2, aggregate=True)

        assert_equal(sample, draw(made(), KEY, 2))
        close(logs, made().log_prob(sample, aggregate=True))


class TestOtherFunctions:
    def test_values(self) -> None:
        dist = made()

        assert torch.equal(dist.mode["cont"], LOC)
        assert [1, 0] == dist.mode[DISC].tolist()[:2]
        assert_equal(dist.deterministic_sample, dist.mode)
        with pytest.raises(OptionError, match="Categorical has no mean"):
            _ = dist.mean
        with pytest.raises(OptionError, match=r"Categorical has no median.*'disc'"):
            _ = dist.median
        cont = CompositeDistribution(params(), {"cont": D.Normal})
        assert torch.equal(cont.mean["cont"], LOC)
        close(cont.median["cont"], LOC)
        assert_equal(value_of(dist, InteractionType.RANDOM, KEY), draw(dist, KEY))

    def test_entropy(self) -> None:
        cont = torch.full((3, 2), 0.5 + 0.5 * math.log(2 * math.pi))
        disc = D.Categorical(logits=LOGITS).entropy()
        found = made().entropy(include_sum=True)

        close(found["cont_entropy"], cont)
        close(found["nested", "disc_entropy"], disc)
        close(found["entropy"], cont.sum(-1) + disc)
        close(made().entropy(aggregate=True), cont.sum(-1) + disc)

    def test_entropy_by_draws(self) -> None:
        mixture = D.MixtureSameFamily(
            D.Categorical(logits=torch.zeros(1)), D.Normal(torch.zeros(1), 1.0)
        )
        dist = CompositeDistribution.from_distributions(TensorDict({}), {"x": mixture})
        with pytest.raises(OptionError, match="no formula, and draws need a key"):
            dist.entropy()
        found = dist.entropy(key=KEY, draws=5000)["x_entropy"]
        assert abs(found - (0.5 + 0.5 * math.log(2 * math.pi))) < 0.05

    def test_cdf_and_icdf(self) -> None:
        dist = CompositeDistribution(params(), {"cont": D.Normal})
        sample = draw(dist, KEY, 4)
        below = dist.cdf(sample)

        assert below.keys() == ("cont_cdf",)
        close(below["cont_cdf"], D.Normal(LOC, 1.0).cdf(sample["cont"]))
        close(dist.icdf(below)["cont"], sample["cont"])
        with pytest.raises(OptionError, match=r"has no cdf.*'disc'.*Categorical"):
            made().cdf(draw(made(), KEY))


class TestTransforms:
    def test_vmap_is_the_loop(self) -> None:
        keys = random.split(KEY, 4)

        def fn(tree: TensorDict, key: torch.Tensor) -> Any:
            dist = CompositeDistribution(tree, PARTS)
            sample = draw(dist, key)
            return sample, dist.log_prob(sample, aggregate=True)

        mapped, logs = torch.vmap(fn, (None, 0))(params(), keys)
        for i, key in enumerate(keys):
            sample, log = fn(params(), key)
            close(mapped[i]["cont"], sample["cont"])
            assert torch.equal(mapped[i][DISC], sample[DISC])
            close(logs[i], log)

    def test_grad(self) -> None:
        sample = draw(made(), KEY)
        grad = torch.func.grad(
            lambda tree: (
                CompositeDistribution(tree, PARTS)
                .log_prob(sample, aggregate=True)
                .sum()
            )
        )(params())

        close(grad["cont", "loc"], sample["cont"] - LOC)

    def test_compiled(self) -> None:
        def fn(tree: TensorDict, key: torch.Tensor) -> Any:
            dist = CompositeDistribution(tree, PARTS)
            sample = dist.draw(key)
            return sample["cont"], dist.log_prob(sample, aggregate=True)

        torch._dynamo.reset()
        compiled = torch.compile(fn, fullgraph=True, backend="eager")
        close(compiled(params(), KEY), fn(params(), KEY))

    def test_pure(self) -> None:
        def fn(tree: TensorDict) -> Any:
            dist = CompositeDistribution(tree, PARTS)
            sample = draw(dist, KEY)
            return dist.log_prob(sample), dist.entropy(), dist.mode

        assert_pure(fn, params())
