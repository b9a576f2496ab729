"""Regression that knows what it does not know: an ensemble as samples of a posterior.

Every member is a network plus a fixed random one, its prior, which it follows where
there are no data, and weighs the rows by a Bayesian bootstrap (Rubin, 1981; Osband et
al., "Randomized prior functions for deep reinforcement learning", 2018).
"""

import argparse

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.func import grad

from tdfunc import TensorDict, optim, random
from tdfunc.nn import EnsembleModule as Model
from tdfunc.nn import TensorDictModule, TensorDictSequential

COVERAGE, DOUBT = 0.88, 4.0  # goals: of 95 % bands; without against with data


def build(members: int) -> Model:
    """Return the ensemble: x f32[rows, 1] -> mean and scale f32[members, rows]."""

    def mlp(outs: int) -> nn.Module:
        a, b, c = nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, outs)
        return nn.Sequential(a, nn.Tanh(), b, nn.Tanh(), c)

    def combine(raw: torch.Tensor, prior: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, scale = raw.unbind(-1)
        return mean + 3 * prior[..., 0], nn.functional.softplus(scale) + 1e-2

    with torch.device("meta"):  # structure without memory: the weights are in trees
        net = TensorDictModule(mlp(2), ["x"], ["raw"])
        prior = TensorDictModule(mlp(1), ["x"], ["prior"])
    both = TensorDictModule(combine, ["raw", "prior"], ["mean", "scale"])
    member = TensorDictSequential({"net": net, "prior": prior, "combine": both})
    return Model(member.select_out_keys("mean", "scale"), members)


def draw_rows(key: torch.Tensor, rows: int) -> TensorDict:
    """Return noisy points of a sine, with a gap in the middle."""
    for_x, for_side, for_y = random.split(key, 3)
    side = random.bernoulli(for_side, 0.5, [rows]).float() * 2 - 1
    x = side * random.uniform(for_x, [rows], minval=0.6, maxval=1.6)
    y = torch.sin(3 * x) + 0.1 * random.normal(for_y, [rows])
    return TensorDict({"x": x[:, None], "y": y}, rows)


def train(model: Model, rows: TensorDict, key: torch.Tensor, steps: int) -> TensorDict:
    """Return the parameters of all members, trained at once."""
    for_init, for_weights = random.split(key)
    params = model.init(for_init)
    weights = random.exponential(for_weights, [model.num_copies, len(rows)])

    def loss(net: TensorDict) -> torch.Tensor:
        out = model(params.set("net", net), rows)
        z = (rows["y"] - out["mean"]) / out["scale"]
        nll = z.square() / 2 + out["scale"].log()
        return (weights * nll).mean(1).sum()  # members do not meet in a sum

    net, tx = params["net"], optim.adam(5e-3)
    state = tx.init(net)
    for _ in range(steps):
        net, state = optim.step(tx, grad(loss)(net), state, net)
    return params.set("net", net)


def predict(model: Model, params: TensorDict, rows: TensorDict) -> TensorDict:
    """Return the rows with mean, doubt (of the members) and spread (with the noise)."""
    out = model(params, rows)
    mean, doubt = out["mean"].mean(0), out["mean"].std(0)
    spread = (doubt**2 + (out["scale"] ** 2).mean(0)).sqrt()
    return rows.update(mean=mean, doubt=doubt, spread=spread)


def plot(rows: TensorDict, line: TensorDict, path: str) -> None:
    """Draw the data, the mean, and bands of twice the doubt and twice the spread."""
    axes = (figure := Figure(figsize=(9, 4.5), layout="constrained")).subplots()
    x, mean = line["x"][:, 0].numpy(), line["mean"]
    for name, alpha in (("spread", 0.2), ("doubt", 0.4)):
        band = torch.stack([mean - 2 * line[name], mean + 2 * line[name]]).numpy()
        axes.fill_between(x, *band, alpha=alpha, label=name)
    axes.plot(x, mean.numpy(), "C3", label="mean of the members")
    axes.scatter(rows["x"][:, 0].numpy(), rows["y"].numpy(), 8, "k", label="data")
    axes.set(xlabel="x", ylabel="y", ylim=(-3, 3))
    axes.legend()
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> int:
    """Train, print coverage and doubt, return 0 if both reach their goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"--members": 20, "--steps": 400, "--seed": 0}.items():
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--plot", metavar="PATH", help="draw the bands into a PNG")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for_rows, for_tests, for_training = random.split(random.key(args.seed), 3)
    rows, tests = draw_rows(for_rows, 250), draw_rows(for_tests, 400)
    params = train(model := build(args.members), rows, for_training, args.steps)
    tests = predict(model, params, tests)
    z = (tests["y"] - tests["mean"]) / tests["spread"]
    coverage = (z.abs() < 1.96).float().mean()  # noqa: PLR2004 - of a normal law
    grid = torch.linspace(-3, 3, 301)
    line = predict(model, params, TensorDict({"x": grid[:, None]}, len(grid)))
    far = line[(grid.abs() < 0.3) | (grid.abs() > 2.2)]  # noqa: PLR2004 - no data there
    ratio = far["doubt"].mean() / tests["doubt"].mean()
    print(f"95 % bands hold {coverage:.3f} of new points")
    print(f"doubt without data is {ratio:.1f} times that with data")
    if args.plot:
        plot(rows, line, args.plot)
    bad = bool(coverage < COVERAGE or ratio < DOUBT)
    print("misses" if bad else "reaches", "the goals")
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
