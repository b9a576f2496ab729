"""Regression that knows what it does not know: an ensemble as samples of a posterior.

Every member is one network plus a fixed random one, its prior, and weighs the rows by a
Bayesian bootstrap. Where there are data the members agree; where there are none they
follow their priors.

References: Osband, Aslanides and Cassirer, "Randomized prior functions for deep
reinforcement learning", 2018. Rubin, "The Bayesian bootstrap", 1981.
"""

import argparse

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.func import grad_and_value

from tdfunc import TensorDict, optim, random
from tdfunc.nn import EnsembleModule, TensorDictModule, TensorDictSequential

NOISE, HIDDEN = 0.1, 32
COVERAGE, DOUBT = (0.88, 1.0), 4.0  # goals: of 95 % bands; outside against inside


def build(members: int) -> EnsembleModule:
    """Return the ensemble: x f32[rows, 1] -> mean and scale f32[members, rows]."""

    def mlp(outputs: int) -> nn.Module:
        hidden = nn.Linear(HIDDEN, HIDDEN)
        first, last = nn.Linear(1, HIDDEN), nn.Linear(HIDDEN, outputs)
        return nn.Sequential(first, nn.Tanh(), hidden, nn.Tanh(), last)

    def combine(raw: torch.Tensor, prior: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = nn.functional.softplus(raw[..., 1]) + 1e-2
        return raw[..., 0] + 3 * prior[..., 0], scale

    with torch.random.fork_rng():  # the values that layers begin with are not used
        modules = {
            "net": TensorDictModule(mlp(2), ["x"], ["raw"]),
            "prior": TensorDictModule(mlp(1), ["x"], ["prior"]),
            "combine": TensorDictModule(combine, ["raw", "prior"], ["mean", "scale"]),
        }
    member = TensorDictSequential(modules, selected_out_keys=["mean", "scale"])
    return EnsembleModule(member, members)


def draw_rows(key: torch.Tensor, rows: int) -> TensorDict:
    """Return noisy points of a sine, with a gap in the middle."""
    for_x, for_side, for_y = random.split(key, 3)
    side = random.bernoulli(for_side, 0.5, [rows]).float() * 2 - 1
    x = side * random.uniform(for_x, [rows], minval=0.6, maxval=1.6)
    y = torch.sin(3 * x) + NOISE * random.normal(for_y, [rows])
    return TensorDict({"x": x[:, None], "y": y}, batch_size=rows)


def train(
    ensemble: EnsembleModule, rows: TensorDict, key: torch.Tensor, steps: int
) -> TensorDict:
    """Return the parameters of all members, trained at once."""
    for_init, for_weights = random.split(key)
    params = ensemble.init(for_init)
    weights = random.exponential(for_weights, [ensemble.num_copies, len(rows)])

    def loss(net: TensorDict) -> torch.Tensor:
        out = ensemble(params.set("net", net), rows)
        z = (rows["y"] - out["mean"]) / out["scale"]
        nll = z.square() / 2 + out["scale"].log()
        return (weights * nll).mean(1).sum()  # members do not meet in a sum

    net, tx = params["net"], optim.adam(5e-3)
    state = tx.init(net)
    for _ in range(steps):
        grads, _ = grad_and_value(loss)(net)
        net, state = optim.step(tx, grads, state, net)
    return params.set("net", net)


def predict(
    ensemble: EnsembleModule, params: TensorDict, rows: TensorDict
) -> TensorDict:
    """Return the rows with mean, doubt (of the members) and spread (with the noise)."""
    out = ensemble(params, rows)
    doubt = out["mean"].std(0)
    spread = (doubt**2 + (out["scale"] ** 2).mean(0)).sqrt()
    return rows.update(mean=out["mean"].mean(0), doubt=doubt, spread=spread)


def plot(rows: TensorDict, line: TensorDict, path: str) -> None:
    """Draw the data, the mean, and bands of twice the doubt and twice the spread."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    x, mean = line["x"][:, 0].numpy(), line["mean"]
    for name, alpha in (("spread", 0.2), ("doubt", 0.4)):
        low, high = mean - 2 * line[name], mean + 2 * line[name]
        axes.fill_between(x, low.numpy(), high.numpy(), alpha=alpha, label=name)
    axes.plot(x, mean.numpy(), "C3", label="mean of the members")
    axes.scatter(rows["x"][:, 0].numpy(), rows["y"].numpy(), 8, "k", label="data")
    axes.set(xlabel="x", ylabel="y", ylim=(-3, 3))
    axes.legend()
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> int:
    """Train, print coverage and doubt, return 0 if both reach their goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {"--members": 20, "--steps": 400, "--seed": 0}.items():
        parser.add_argument(name, type=int, default=value, help=f"default {value}")
    parser.add_argument("--plot", metavar="PATH", help="draw the bands into a PNG")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # each step is so small that more would only cost
    for_rows, for_tests, for_training = random.split(random.key(args.seed), 3)
    rows, tests = draw_rows(for_rows, 250), draw_rows(for_tests, 400)
    ensemble = build(args.members)
    params = train(ensemble, rows, for_training, args.steps)

    tests = predict(ensemble, params, tests)
    inside = (tests["y"] - tests["mean"]).abs() < 1.96 * tests["spread"]
    coverage = inside.float().mean().item()
    grid = torch.linspace(-3, 3, 301)
    line = predict(ensemble, params, TensorDict({"x": grid[:, None]}, len(grid)))
    far = line[(grid.abs() < 0.3) | (grid.abs() > 2.2)]  # noqa: PLR2004 - no data there
    ratio = (far["doubt"].mean() / tests["doubt"].mean()).item()
    print(f"95 % bands hold {coverage:.3f} of new points")
    print(f"doubt without data is {ratio:.1f} times that with data")
    if args.plot:
        plot(rows, line, args.plot)
    good = COVERAGE[0] <= coverage <= COVERAGE[1] and ratio >= DOUBT
    print("reaches the goals" if good else "misses the goals")
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
