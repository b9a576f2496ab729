"""Meta-learning: parameters from which one step of gradient descent fits a new sine.

The inner step is a transformation like any other, mapped over tasks and differentiated:
the outer gradient goes through the inner gradient and its update.

Reference: Finn, Abbeel and Levine, "Model-agnostic meta-learning for fast adaptation of
deep networks", 2017.
"""

import argparse
from itertools import pairwise

import torch

from tdfunc import TensorDict, grad, optim, vmap

HIDDEN, TASKS, POINTS, RATE = 40, 25, 10, 0.01
INNER = optim.sgd(RATE)
GOAL = 0.5  # of the error before adaptation


def init(generator: torch.Generator) -> TensorDict:
    """Return random parameters of a network with two hidden layers."""
    sizes = [1, HIDDEN, HIDDEN, 1]
    layers = {
        f"layer {i}": {
            "weight": torch.randn(rows, columns, generator=generator) / columns**0.5,
            "bias": torch.zeros(rows),
        }
        for i, (columns, rows) in enumerate(pairwise(sizes))
    }
    return TensorDict(layers)


def predict(params: TensorDict, x: torch.Tensor) -> torch.Tensor:
    """Return y f32[points] for x f32[points]."""
    hidden = x[:, None]
    for name in params.keys():  # noqa: SIM118 - a tree iterates over its rows
        weight, bias = params[name, "weight"], params[name, "bias"]
        hidden = (hidden if name == "layer 0" else hidden.relu()) @ weight.T + bias
    return hidden[:, 0]


def draw_tasks(number: int, generator: torch.Generator) -> TensorDict:
    """Return sines of their own amplitude and phase: points to fit and to judge by."""
    shape = (number, 2 * POINTS)
    amplitude = 0.1 + 4.9 * torch.rand(number, 1, generator=generator)
    phase = torch.pi * torch.rand(number, 1, generator=generator)
    x = 10 * torch.rand(shape, generator=generator) - 5
    y = amplitude * torch.sin(x - phase)
    fit = {"x": x[:, :POINTS], "y": y[:, :POINTS]}
    judge = {"x": x[:, POINTS:], "y": y[:, POINTS:]}
    return TensorDict({"fit": fit, "judge": judge}, batch_size=number)


def error(params: TensorDict, points: TensorDict) -> torch.Tensor:
    """Return the mean squared error on the points of one task."""
    return (predict(params, points["x"]) - points["y"]).square().mean()


def adapted(params: TensorDict, task: TensorDict, steps: int) -> TensorDict:
    """Return the parameters after steps on the points of one task."""
    state = INNER.init(params)
    for _ in range(steps):
        grads = grad(error)(params, task["fit"])
        updates, state = INNER.update(grads, state, params)
        params = optim.apply_updates(params, updates)
    return params


def errors(params: TensorDict, tasks: TensorDict, steps: int) -> torch.Tensor:
    """Return the error f32[tasks] on new points after steps on each task."""
    return vmap(lambda task: error(adapted(params, task, steps), task["judge"]))(tasks)


def meta_loss(params: TensorDict, tasks: TensorDict) -> torch.Tensor:
    """Return the mean error after one step."""
    return errors(params, tasks, 1).mean()


def check(params: TensorDict, tasks: TensorDict) -> None:
    """Compare a directional derivative through the inner step with a difference."""
    params, tasks = params.to(torch.float64), tasks.to(torch.float64)
    grads = grad(meta_loss)(params, tasks)
    way, step = grads / grads.global_norm(), 1e-5
    ahead, behind = [
        meta_loss(params + sign * step * way, tasks) for sign in (1.0, -1.0)
    ]
    assert torch.allclose(grads.tree_dot(way), (ahead - behind) / 2 / step, rtol=1e-3)


def main(argv: list[str] | None = None) -> None:
    """Train, print errors after 0, 1 and 5 steps, assert that one step helps enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # each step is so small that more would only cost
    generator = torch.Generator().manual_seed(args.seed)
    params = init(generator)
    check(params, draw_tasks(4, generator))
    tx = optim.adam(optim.cosine_decay(3e-3, max(args.steps, 1), alpha=0.1))
    state = tx.init(params)
    for _ in range(args.steps):
        grads = grad(meta_loss)(params, draw_tasks(TASKS, generator))
        updates, state = tx.update(grads, state, params)
        params = optim.apply_updates(params, updates).check_finite()
    tasks = draw_tasks(200, generator)
    before, once, often = [errors(params, tasks, n).mean().item() for n in (0, 1, 5)]
    print(f"error after 0, 1, 5 steps: {before:.2f}, {once:.2f}, {often:.2f}")
    said = f"one step leaves {once / before:.2f} of it"
    assert once <= GOAL * before, f"{said}, which misses {GOAL}"
    print(f"{said}, which reaches {GOAL}")


if __name__ == "__main__":
    main()
