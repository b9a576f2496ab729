"""The examples do what they say: the results that they print, and their exit status."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._pytree import tree_map

from tdfunc import TensorDict, random
from tdfunc.nn import EnsembleModule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

for needed in ("matplotlib", "sklearn", "tqdm"):
    pytest.importorskip(needed, reason="the examples need the extra `examples`")

# After the check: the imports of an example come with the extra
from examples import (  # noqa: E402
    bayesian_ensemble,
    functional_ppo_or_dqn,
    hyper_gradient,
    maml_sinusoid,
    per_sample_grads,
    reward_model,
    train_ensemble,
)

SHORT = ["--members", "2", "--steps", "10"]


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    """Give the threads back that an example takes for its own process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class TestTrainEnsemble:
    def test_defaults_reach_the_goal_and_plot(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "disagreement.png"

        status = train_ensemble.main(["--plot", str(path)])

        lines = capsys.readouterr().out.splitlines()
        scores = [float(s) for s in re.findall(r": ([01]\.\d{4})", "\n".join(lines))]
        assert 0 == status
        assert 9 == len(scores)
        assert min(scores[:8]) >= 0.94
        assert scores[8] >= 0.985
        assert f"ensemble: {scores[8]:.4f}, reaches the goal of 0.97" == lines[-1]
        assert b"\x89PNG\r\n\x1a\n" == path.read_bytes()[:8]

    def test_too_few_steps_fail_and_say_why(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status = train_ensemble.main(["--steps", "1"])

        said = capsys.readouterr().out
        assert 1 == status
        assert re.search(r"ensemble: 0\.\d{4}, misses the goal of 0\.97\n", said)

    def test_one_member_that_fails_can_be_plotted(self, tmp_path: Path) -> None:
        path = tmp_path / "disagreement.png"

        status = train_ensemble.main(
            ["--members", "1", "--steps", "1", "--plot", str(path)]
        )

        assert 1 == status
        assert path.exists()

    def test_a_seed_decides_everything(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said: list[str] = []
        for seed in ("5", "5", "6"):
            # Whatever the global generator would add differs in each run.
            torch.randn(3)
            train_ensemble.main([*SHORT, "--seed", seed])
            said.append(capsys.readouterr().out)

        assert said[0] == said[1]
        assert said[0] != said[2]

    def test_global_generator_is_left_alone(self) -> None:
        before = torch.get_rng_state()

        train_ensemble.main(SHORT)

        assert torch.equal(before, torch.get_rng_state())

    def test_member_learns_the_same_alone_and_in_an_ensemble(self) -> None:
        rows, _ = train_ensemble.load_rows(0)
        key = random.key(0)

        alone = train_ensemble.train(rows, key, members=1, steps=10)
        together = train_ensemble.train(rows, key, members=3, steps=10)

        for path in alone.keys(include_nested=True, leaves_only=True):
            torch.testing.assert_close(together[path][:1], alone[path])
        assert not together[1].equal(together[0])

    def test_disagreement_is_mutual_information(self) -> None:
        # Two members and one row: sure of digit 0 and of digit 1. Each has entropy 0
        # (almost), and their mean that of a coin.
        params = EnsembleModule(train_ensemble.NET, 2).init(random.key(0)) * 0
        bias = torch.zeros(2, 10)
        bias[0, 0] = bias[1, 1] = 50.0
        rows = TensorDict({"image": torch.ones(1, 64)}, batch_size=1)

        judged = train_ensemble.judge(params.set(("2", "bias"), bias), rows)

        torch.testing.assert_close(judged["doubt"], torch.tensor([2.0]).log())
        assert [[0, 1]] == judged["votes"].tolist()


class TestRewardModel:
    def test_defaults_reach_the_goal(self, capsys: pytest.CaptureFixture[str]) -> None:
        status = reward_model.main([])

        said = capsys.readouterr().out
        rows = re.findall(r"loss ([\d.]+), accuracy ([\d.]+)", said)
        losses, accuracies = zip(*[map(float, row) for row in rows], strict=True)
        means = [float(x) for x in re.findall(r"-?\d+\.\d", said.splitlines()[-2])]
        score = float(re.findall(r"held-out accuracy: ([\d.]+), reaches", said)[0])
        assert 0 == status
        assert score >= 0.93
        assert max(losses[4:]) < losses[0] / 2
        assert accuracies[0] < 0.75
        assert min(accuracies[4:]) > 0.9
        # From comparisons alone, the digits are in order.
        assert sorted(means) == means

    def test_too_few_steps_fail_and_say_why(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status = reward_model.main(["--steps", "1"])

        assert 1 == status
        assert "misses the goal of 0.9" in capsys.readouterr().out

    def test_pairs_have_the_greater_digit_first(self) -> None:
        rows, held_out = reward_model.load_images(0)
        digit = rows["digit"].double()[:, None].expand(-1, 64)
        rows = rows.set("image", digit)  # an image that tells its digit

        pairs = reward_model.compare(rows, 500, torch.Generator().manual_seed(0))

        assert 500 == len(pairs)
        assert (pairs.chosen > pairs.rejected).all()
        assert 400 == len(held_out)


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (per_sample_grads, r"accuracy with noise 0\.8: (0\.9[5-9]|1\.0)\d*, reaches"),
        (maml_sinusoid, r"one step leaves 0\.[0-4]\d of it, which reaches 0\.5"),
        (hyper_gradient, r"loss \S+, with the best single rate \S+: reaches"),
    ],
    ids=["per_sample_grads", "maml_sinusoid", "hyper_gradient"],
)
def test_functional_training_reaches_its_goal(
    example: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_rng_state()

    example.main([])

    assert re.search(said, capsys.readouterr().out)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(AssertionError, match="misses"):
        example.main(["--steps", "0"])
    assert "reaches" not in capsys.readouterr().out


class TestPerSampleGrads:
    def test_a_row_moves_the_sum_by_at_most_its_clipped_norm(self) -> None:
        """What differential privacy rests on: no row has more influence than CLIP."""
        generator = torch.Generator().manual_seed(0)
        rows, params = (
            per_sample_grads.load_rows(16, generator),
            per_sample_grads.init(generator),
        )
        far = rows.set("point", rows["point"] * 1e4)
        for row in (rows[3], far[3]):
            grads = per_sample_grads.clipped_grad(params, row)
            assert grads.global_norm() <= per_sample_grads.CLIP * (1 + 1e-5)

    def test_noise_is_that_of_the_generator(self) -> None:
        rows = per_sample_grads.load_rows(16, torch.Generator().manual_seed(0))
        params = per_sample_grads.init(torch.Generator().manual_seed(0))
        first, again, other = [
            per_sample_grads.private_grad(
                params, rows, torch.Generator().manual_seed(seed)
            )
            for seed in (1, 1, 2)
        ]
        assert (first == again).all()
        assert not (first == other).all()


class TestMaml:
    def test_outer_gradient_sees_the_inner_step(self) -> None:
        """It differs from that of a first-order method, which holds the step fixed."""
        generator = torch.Generator().manual_seed(0)
        params = maml_sinusoid.init(generator).to(torch.float64)
        tasks = maml_sinusoid.draw_tasks(3, generator).to(torch.float64)

        maml_sinusoid.check(params, tasks)

        whole = torch.func.grad(maml_sinusoid.meta_loss)(params, tasks)
        fixed = [
            torch.func.grad(maml_sinusoid.error)(
                maml_sinusoid.adapted(params, tasks[i], 1).detach(), tasks[i]["judge"]
            )
            for i in range(3)
        ]
        first_order = (fixed[0] + fixed[1] + fixed[2]) / 3
        assert whole.cosine_similarity(first_order) < 1 - 1e-6


class TestHyperGradient:
    def test_a_rate_that_is_too_small_should_grow(self) -> None:
        rows = hyper_gradient.load_rows(torch.Generator().manual_seed(0))
        rates = hyper_gradient.uniform(torch.tensor(-12.0, dtype=torch.float64))

        grads = torch.func.grad(hyper_gradient.outer_loss)(rates, rows)

        assert all(grads[name] < 0 for name in hyper_gradient.SCALES)


class TestBayesianEnsemble:
    def test_defaults_reach_the_goals_and_plot(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "bands.png"
        before = torch.get_rng_state()

        status = bayesian_ensemble.main(["--plot", str(path)])

        said = capsys.readouterr().out
        (coverage,) = re.findall(r"bands hold (0\.\d{3}) of", said)
        (ratio,) = re.findall(r"is (\d+\.\d) times", said)
        assert 0 == status
        assert 0.88 <= float(coverage) <= 1
        assert float(ratio) >= 4
        assert said.endswith("reaches the goals\n")
        assert b"\x89PNG\r\n\x1a\n" == path.read_bytes()[:8]
        assert torch.equal(before, torch.get_rng_state())

    def test_too_few_steps_fail_and_a_seed_decides_everything(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        short = ["--members", "3", "--steps", "2"]

        assert 1 == bayesian_ensemble.main(short)
        once = capsys.readouterr().out
        assert 1 == bayesian_ensemble.main(short)
        assert once == capsys.readouterr().out
        assert "misses the goals" in once

    def test_the_prior_is_not_trained(self) -> None:
        ensemble = bayesian_ensemble.build(2)
        key = random.key(0)
        rows = bayesian_ensemble.draw_rows(key, 20)
        params = bayesian_ensemble.train(ensemble, rows, key, 3)
        begun = ensemble.init(random.split(key)[0])

        assert params["prior"].equal(begun["prior"])
        assert not params["net"].equal(begun["net"])


class TestCartPole:
    """That the agents reach their goal is for the example itself, which CI runs."""

    PPO = functional_ppo_or_dqn

    def test_a_push_is_that_of_the_formulas(self) -> None:
        cart = TensorDict({"obs": torch.zeros(4), "age": 0, "fell": False})

        right = self.PPO.push(cart, torch.tensor(1))

        # 10 N on 1.1 kg, and the same with the pole that turns back, for 0.02 s.
        turn = -(10 / 1.1) / (0.5 * (4 / 3 - 0.1 / 1.1))
        gain = 10 / 1.1 - 0.05 * turn / 1.1
        expected = torch.tensor([0.0, 0.02 * gain, 0.0, 0.02 * turn])
        torch.testing.assert_close(right["obs"], expected)
        assert (1, False) == (right["age"].item(), right["fell"].item())
        left = self.PPO.push(cart, torch.tensor(0))
        torch.testing.assert_close(left["obs"], -expected)

    @pytest.mark.parametrize("obs", [(2.41, 0, 0, 0), (0, 0, -0.21, 0)])
    def test_carts_fall_at_the_ends_of_track_and_angle(self, obs: Any) -> None:
        obs = torch.tensor([obs, (2.39, 0, 0.2, 0)])
        carts = TensorDict({"obs": obs, "age": torch.zeros(2).long()}, 2)

        after = torch.vmap(self.PPO.push)(carts, torch.tensor([0, 1]))

        assert [True, False] == after["fell"].tolist()

    def test_energy_of_a_pole_that_nobody_pushes_is_kept(self) -> None:
        """Both formulas of the paper at once; its friction is 0 in the numbers here."""
        obs = torch.tensor([0.0, 0.3, 0.5, -0.7], dtype=torch.float64)
        cart = TensorDict({"obs": obs, "age": 0, "fell": False})

        def energy(obs: torch.Tensor) -> torch.Tensor:
            _, speed, angle, spin = obs
            turning = 0.5 * 0.1 * (4 / 3) * (0.5 * spin) ** 2
            both = 0.1 * 0.5 * speed * spin * angle.cos()
            return 0.55 * speed**2 + turning + both + 0.1 * 9.8 * 0.5 * angle.cos()

        rate = (self.PPO.push(cart, torch.tensor(0.5))["obs"] - obs) / 0.02
        change = torch.func.grad(energy)(obs) @ rate
        torch.testing.assert_close(change, torch.zeros_like(change), atol=1e-9, rtol=0)

    def test_advantages_are_sums_of_surprises(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(self.PPO, "CARTS", 2)
        values = torch.arange(10.0).view(5, 2) / 10
        monkeypatch.setattr(self.PPO, "value", lambda _, rows: rows["v"])
        fell = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]], dtype=torch.bool)
        over = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 0]], dtype=torch.bool)
        rows = TensorDict(
            {"v": values[:4], "after": {"v": values[1:], "fell": fell}, "over": over},
            [4, 2],
        )

        got = self.PPO.with_advantages(TensorDict(), rows)

        gains = torch.zeros(4, 2)
        for cart in range(2):
            for start in range(4):
                weight = 1.0
                for t in range(start, 4):
                    later = 0 if fell[t, cart] else 0.99 * values[t + 1, cart]
                    gains[start, cart] += weight * (0.01 + later - values[t, cart])
                    weight *= 0.99 * 0.95
                    if over[t, cart]:
                        break
        torch.testing.assert_close(got["goal"], gains + values[:4])
        torch.testing.assert_close(got["gain"], (gains - gains.mean()) / gains.std())

    def test_agents_learn_together_what_they_learn_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, small in {"CARTS": 4, "HORIZON": 5, "EPOCHS": 1, "PARTS": 2}.items():
            monkeypatch.setattr(self.PPO, name, small)
        key, rate = random.key(0), torch.tensor(1e-2)
        params = EnsembleModule(self.PPO.BOTH, 2).init(key)
        carts = torch.vmap(torch.vmap(self.PPO.reset))(
            random.split(key, 8).view(2, 4, 2)
        )
        state = torch.vmap(self.PPO.optimizer(rate).init)(params)
        agents = self.PPO.Agent(params, params.select("critic"), state, carts)
        keys = random.split(key, 2)

        together, _ = torch.vmap(self.PPO.learn, (0, 0, None))(agents, keys, rate)

        for i in range(2):
            own = tree_map(lambda x, i=i: x[i], agents)
            alone, _ = self.PPO.learn(own, keys[i], rate)
            for one, many in (
                (alone.params, together.params[i]),
                (alone.target, together.target[i]),
                (alone.carts, together.carts[i]),
            ):
                for path in one.keys(True, True):
                    torch.testing.assert_close(many[path], one[path])
            assert not alone.params.equal(own.params)
            moved = (alone.target - own.target).global_norm()
            assert 0 < moved < (alone.params - own.params)["critic"].global_norm()

    def test_few_updates_miss_the_goal_and_a_seed_decides_everything(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(self.PPO, "CARTS", 8)
        monkeypatch.setattr(self.PPO, "HORIZON", 16)
        monkeypatch.setattr(self.PPO, "LIMIT", 60)
        before = torch.get_rng_state()
        said: list[str] = []

        for seed in ("0", "0", "1"):
            with pytest.raises(AssertionError, match=r"misses the goal") as missed:
                self.PPO.main(["--agents", "2", "--updates", "2", "--seed", seed])
            said.append(capsys.readouterr().out + str(missed.value))

        assert said[0] == said[1]
        assert said[0] != said[2]
        assert "reaches" not in "".join(said)
        assert torch.equal(before, torch.get_rng_state())
