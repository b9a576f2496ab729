"""Train several cart-pole agents at once by PPO: everything is a function of values.

What one agent does is written for one agent, and mapped over seeds: networks, targets,
the moments of Adam and carts are trees with a batch dim for the agents. All randomness
is from one key.

The cart-pole is that of Barto, Sutton and Anderson, "Neuronlike adaptive elements that
can solve difficult learning control problems", 1983, with the numbers of CartPole-v1 of
OpenAI Gym (`gym/envs/classic_control/cartpole.py`). PPO is from Schulman et al.,
"Proximal policy optimization algorithms", 2017, its advantages from Schulman et al.,
"High-dimensional continuous control using generalized advantage estimation", 2016; the
values in them are those of a target network, a moving average of the critic.
"""

import argparse
import math
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributions import Categorical

import tdfunc
from tdfunc import TensorDict, optim, random, scan, vmap
from tdfunc.nn import (
    EnsembleModule,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)

GRAVITY, CART, POLE, HALF, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02  # SI units
MAX_X, MAX_ANGLE, LIMIT = 2.4, math.radians(12), 500  # where an episode ends
CARTS, HORIZON, EPOCHS, PARTS = 64, 64, 4, 8  # an update: 64 x 64 rows, 4 x 8 steps
DISCOUNT, LAMBDA, CLIP, ENTROPY, RATE = 0.99, 0.95, 0.2, 0.01, 5e-3
FOLLOW = {"critic/**": 0.1}  # how far the target moves in each step
GOAL = 450.0  # mean return of the most likely actions, of at most 500


def mlp(outs: int) -> nn.Module:
    """Return a network of an observation f32[4]."""
    a, b, c = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, outs)
    return nn.Sequential(a, nn.Tanh(), b, nn.Tanh(), c)


with torch.device("meta"):  # structure without memory: the weights are in trees
    NET = TensorDictModule(mlp(2), ["obs"], ["logits"])
    CRITIC = TensorDictModule(mlp(1), ["obs"], ["value"])
ACTION = ProbabilisticTensorDictModule(
    ["logits"], ["action"], distribution_class=Categorical, return_log_prob=True
)
POLICY = ProbabilisticTensorDictSequential({"net": NET, "action": ACTION})
BOTH = TensorDictSequential({"policy": POLICY, "critic": CRITIC})


def reset(key: torch.Tensor) -> TensorDict:
    """Return a cart that nearly rests: position, speed, angle and spin in `obs`."""
    obs = random.uniform(key, [4], minval=-0.05, maxval=0.05)
    return TensorDict({"obs": obs, "age": 0, "fell": False})


def push(cart: TensorDict, action: torch.Tensor) -> TensorDict:
    """Return the cart after a push to the left (0) or right (1), by a step of Euler."""
    speed, angle, spin = cart["obs"][1:].unbind()
    sin, cos, mass = angle.sin(), angle.cos(), CART + POLE
    pushed = (FORCE * (2 * action - 1) + POLE * HALF * spin**2 * sin) / mass
    turn = (GRAVITY * sin - cos * pushed) / (HALF * (4 / 3 - POLE * cos**2 / mass))
    gain = pushed - POLE * HALF * turn * cos / mass
    obs = cart["obs"] + TAU * torch.stack([speed, gain, spin, turn])
    fell = (obs[0].abs() > MAX_X) | (obs[2].abs() > MAX_ANGLE)
    return TensorDict({"obs": obs, "age": cart["age"] + 1, "fell": fell})


def rollout(params: TensorDict, carts: TensorDict, key: torch.Tensor) -> Any:
    """Return the carts HORIZON steps later, and all steps as rows [HORIZON, CARTS]."""

    def act(carts: TensorDict, key: torch.Tensor) -> tuple[TensorDict, TensorDict]:
        for_action, for_reset = random.split(key)
        row = POLICY(params, carts, key=for_action, interaction_type="random")
        after = vmap(push)(carts, row["action"])
        over = after["fell"] | (after["age"] >= LIMIT)
        fresh = vmap(reset)(random.split(for_reset, CARTS))
        row = row.update(after=after, over=over)
        return tdfunc.where(over, fresh, after), row

    return scan(act, carts, random.split(key, HORIZON))


def value(params: TensorDict, rows: TensorDict) -> torch.Tensor:
    """Return what the critic expects of the rows; 1 is never to fall."""
    return CRITIC(params["critic"], rows)["value"].squeeze(-1)


def with_advantages(target: TensorDict, rows: TensorDict) -> TensorDict:
    """Return the rows with generalized advantages, and goals for the critic."""
    now, later = value(target, rows), value(target, rows["after"])
    reward = 1 - DISCOUNT  # of every step
    rows = rows.update(
        surprise=reward + DISCOUNT * later * ~rows["after", "fell"] - now,
        keep=DISCOUNT * LAMBDA * ~rows["over"],
    )

    def back(gain: torch.Tensor, row: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
        gain = row["surprise"] + row["keep"] * gain
        return gain, gain

    _, gains = scan(back, torch.zeros(CARTS), rows, reverse=True)
    return rows.update(gain=(gains - gains.mean()) / gains.std(), goal=gains + now)


def loss(params: TensorDict, rows: TensorDict) -> torch.Tensor:
    """Return the clipped loss of the policy, that of the critic, less an entropy."""
    dist = POLICY.dist(params["policy"], rows)
    ratio = (dist.log_prob(rows["action"]) - rows["action_log_prob"]).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.minimum(ratio * rows["gain"], clipped * rows["gain"]).mean()
    wrong = nn.functional.mse_loss(value(params, rows), rows["goal"])
    return wrong - gain - ENTROPY * dist.entropy().mean()


class Agent(NamedTuple):
    """What changes while an agent learns."""

    params: TensorDict
    target: TensorDict
    state: Any  # of the optimizer
    carts: TensorDict


def optimizer(rate: Any) -> optim.GradientTransformation:
    """Return Adam on gradients of bounded norm."""
    return optim.chain(optim.clip_by_global_norm(0.5), optim.adam(rate))


def learn(agent: Agent, key: torch.Tensor, rate: torch.Tensor) -> Any:
    """Return one agent after it has acted and learned, and how many carts fell."""
    params, target, state, carts = agent
    for_rollout, *for_epochs = random.split(key, 1 + EPOCHS)
    carts, rows = rollout(params["policy"], carts, for_rollout)
    falls = rows["after", "fell"].sum()
    rows, tx = with_advantages(target, rows).flatten(), optimizer(rate)
    for for_order in for_epochs:
        for part in random.permutation(for_order, len(rows)).chunk(PARTS):
            grads = tdfunc.grad(loss)(params, rows[part])
            params, state = optim.step(tx, grads, state, params)
            target = target.polyak(params.select("critic"), FOLLOW)
    return Agent(params, target, state, carts), falls


def judge(params: TensorDict, key: torch.Tensor) -> torch.Tensor:
    """Return the returns of new episodes in which one agent does not experiment."""

    def act(carts: TensorDict, _: None) -> tuple[TensorDict, torch.Tensor]:
        action = POLICY(params["policy"], carts, interaction_type="mode")["action"]
        after = vmap(push)(carts, action)
        after = after.set("fell", after["fell"] | carts["fell"])
        return after, ~after["fell"]

    carts = vmap(reset)(random.split(key, CARTS))
    return scan(act, carts, length=LIMIT)[1].sum(0).float()


def main(argv: list[str] | None = None) -> None:
    """Train agents, print their returns, assert that the mean reaches the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"--agents": 4, "--updates": 25, "--seed": 0}.items():
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # each step is so small that more would only cost
    n, updates = args.agents, args.updates
    for_params, for_carts, for_training, for_test = random.split(
        random.key(args.seed), 4
    )
    params = EnsembleModule(BOTH, n).init(for_params)
    carts = vmap(vmap(reset))(random.split(for_carts, n * CARTS).view(n, CARTS, 2))
    state = vmap(optimizer(RATE).init)(params)
    agents = Agent(params, params.select("critic"), state, carts)
    for i in range(updates):
        keys = random.split(random.fold_in(for_training, i), n)
        rate = torch.tensor(RATE * (1 - i / updates))
        agents, falls = vmap(learn, in_dims=(0, 0, None))(agents, keys, rate)
        if i % 5 == 0:
            said = " ".join(f"{x:4}" for x in falls.tolist())
            print(f"update {i:2}: {said} falls in {CARTS * HORIZON} steps")
    returns = vmap(judge)(agents.params, random.split(for_test, n)).mean(1)
    said = ", ".join(f"{x:.1f}" for x in returns.tolist())
    said = f"returns {said}: mean {(mean := returns.mean()):.1f}"
    assert mean >= GOAL, f"{said}, misses the goal of {GOAL}"
    print(f"{said}, reaches the goal of {GOAL}")


if __name__ == "__main__":
    main()
