"""The examples do what they say: the results that they print, and their exit status."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

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
