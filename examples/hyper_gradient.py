"""Learn the learning rates: gradients of the loss after training, by each rate.

A model whose parameters live on very different scales is trained for some steps with a
rate for every leaf. These rates are themselves the parameters of an outer optimizer:
the whole training is differentiated. No single rate does as well.

Reference: Maclaurin, Duvenaud and Adams, "Gradient-based hyperparameter optimization
through reversible learning", 2015.
"""

import argparse

import torch

from tdfunc import TensorDict, grad, grad_and_value, optim, vmap

STEPS, MOMENTUM, ROWS = 20, 0.5, 64
SCALES = {"large": 10.0, "middle": 1.0, "small": 0.1}
GOAL = 0.1  # of the loss that the best single rate reaches


def load_rows(generator: torch.Generator) -> TensorDict:
    """Return features f64[4] of three scales, and a linear function of them."""
    shape, kind = (ROWS, 4), torch.float64
    rows = {
        name: scale * torch.randn(shape, generator=generator, dtype=kind)
        for name, scale in SCALES.items()
    }
    target = sum(
        (rows[name] / scale).sum(-1) * (i + 1)
        for i, (name, scale) in enumerate(SCALES.items())
    )
    return TensorDict({"features": rows, "target": target}, batch_size=ROWS)


def loss(params: TensorDict, rows: TensorDict) -> torch.Tensor:
    """Return the mean squared error."""
    features = rows["features"]
    guess = sum(features[name] @ params[name] for name in SCALES)
    return (guess - rows["target"]).square().mean()


def trained(log_rates: TensorDict, rows: TensorDict) -> TensorDict:
    """Return the parameters after training from zero with a rate for every leaf."""
    tx = optim.multi_transform(
        {name: optim.sgd(log_rates[name].exp(), MOMENTUM) for name in SCALES},
        lambda path, _: path[0],
    )
    params = TensorDict({name: torch.zeros(4, dtype=torch.float64) for name in SCALES})
    state = tx.init(params)
    for _ in range(STEPS):
        grads = grad(loss)(params, rows)
        updates, state = tx.update(grads, state, params)
        params = optim.apply_updates(params, updates)
    return params


def outer_loss(log_rates: TensorDict, rows: TensorDict) -> torch.Tensor:
    """Return the logarithm of the loss after training."""
    return loss(trained(log_rates, rows), rows).log()


def uniform(log_rate: torch.Tensor) -> TensorDict:
    """Return the same rate for every leaf."""
    return TensorDict(dict.fromkeys(SCALES, log_rate))


def best_single(rows: TensorDict) -> float:
    """Return the least loss that one rate for all reaches, out of 400 at once."""
    grid = torch.linspace(-12, 3, 400, dtype=torch.float64)
    found = vmap(lambda rate: outer_loss(uniform(rate), rows))(grid)
    return found.nan_to_num(torch.inf).min().exp().item()


def check(log_rates: TensorDict, rows: TensorDict) -> None:
    """Compare the gradient by every rate with a difference."""
    grads, _ = grad_and_value(outer_loss)(log_rates, rows)
    step = 1e-5
    for name in SCALES:
        ahead, behind = [
            outer_loss(log_rates.set(name, log_rates[name] + way), rows)
            for way in (step, -step)
        ]
        assert torch.allclose(grads[name], (ahead - behind) / 2 / step, rtol=1e-4)


def main(argv: list[str] | None = None) -> None:
    """Learn rates, print them, assert that they beat any single one by far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # each step is so small that more would only cost
    rows = load_rows(torch.Generator().manual_seed(args.seed))
    log_rates = uniform(torch.tensor(-8.0, dtype=torch.float64))
    check(log_rates, rows)
    tx = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.2))
    state = tx.init(log_rates)
    reached = torch.inf
    for _ in range(args.steps):
        grads, value = grad_and_value(outer_loss)(log_rates, rows)
        reached = min(reached, value.exp().item())
        updates, state = tx.update(grads, state, log_rates)
        log_rates = optim.apply_updates(log_rates, updates).check_finite()
    for name, rate in log_rates.items():
        print(f"rate of the {name} features: {rate.exp():.2g}")
    single = best_single(rows)
    said = f"loss {reached:.2g}, with the best single rate {single:.2g}"
    assert reached <= GOAL * single, f"{said}: misses the goal of {GOAL} times that"
    print(f"{said}: reaches the goal of {GOAL} times that")


if __name__ == "__main__":
    main()
