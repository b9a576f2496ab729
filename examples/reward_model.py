"""Learn a score for handwritten digits from comparisons alone, as reward models do.

Of two images the one that shows the greater digit is preferred. The model is told
which, never the digits; its scores still put the digits in order.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import tdfunc
from tdfunc import TensorClass, TensorDict, from_module, grad_and_value, optim
from tdfunc.func import functional_call
from tdfunc.objectives import RewardModelLoss, RewardModelLossOutput

BATCH, RATE, GOAL = 256, 1e-2, 0.9
NET = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))


class Pairs(TensorClass):
    """Pairs of images ``[*pairs, 64]``, the preferred one first."""

    chosen: torch.Tensor
    rejected: torch.Tensor


def load_images(seed: int) -> tuple[TensorDict, TensorDict]:
    """Return images f32[64] with their digits, shuffled: to train on, and held out."""
    images, digits = load_digits(return_X_y=True)
    image = torch.from_numpy(images).float() / 16
    rows = TensorDict({"image": image, "digit": digits}, batch_size=len(digits))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order[400:]], rows[order[:400]]


def compare(rows: TensorDict, count: int, generator: torch.Generator) -> Pairs:
    """Return `count` random pairs of images of different digits."""
    at = torch.randint(len(rows), (2, 2 * count), generator=generator)
    left, right = rows[at]  # two trees of twice as many rows as are asked for
    differ = (left["digit"] != right["digit"]).nonzero().squeeze(-1)[:count]
    left, right = left[differ], right[differ]
    left_wins = left["digit"] > right["digit"]
    better, worse = [tdfunc.where(w, left, right) for w in (left_wins, ~left_wins)]
    return Pairs(better["image"], worse["image"], batch_size=[len(differ)])


def score(params: TensorDict, images: torch.Tensor) -> torch.Tensor:
    """Return the score of every image."""
    return functional_call(NET, params, images)


LOSS = RewardModelLoss(score, center_coeff=0.01)


def objective(
    params: TensorDict, pairs: Pairs
) -> tuple[torch.Tensor, RewardModelLossOutput]:
    """Return the total loss, and its parts beside it."""
    parts = LOSS(params, pairs)
    return parts.total_loss(), parts


def main(argv: list[str] | None = None) -> int:
    """Train, print losses and accuracies, return 0 if held-out pairs reach the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {"--steps": 800, "--seed": 0}.items():
        parser.add_argument(name, type=int, default=value, help=f"default {value}")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # each step is so small that more would only cost
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    train, held_out = load_images(args.seed)
    test = compare(held_out, 4000, generator)
    params = from_module(NET, params_only=True).apply(
        lambda x: torch.randn(x.shape, generator=generator) / x.shape[-1] ** 0.5
    )
    adam = optim.adam(optim.linear(RATE, 0.0, max(1, args.steps)), betas=(0.9, 0.99))
    state = adam.init(params)
    for step in range(args.steps):
        pairs = compare(train, BATCH, generator)
        grads, (_, parts) = grad_and_value(objective, has_aux=True)(params, pairs)
        params, state = optim.step(adam, grads, state, params)
        if step % 100 == 0:
            rows = (step, parts.total_loss(), parts.accuracy)
            print("step {}: loss {:.4f}, accuracy {:.4f}".format(*rows))
    result = LOSS(params, test)
    scores = score(params, held_out["image"]).squeeze(-1)
    means = [scores[held_out["digit"] == digit].mean().item() for digit in range(10)]
    print("mean score of 0 to 9:", " ".join([f"{mean:.1f}" for mean in means]))
    accuracy = float(result["accuracy"])
    verdict = "reaches" if accuracy >= GOAL else "misses"
    print(f"held-out accuracy: {accuracy:.4f}, {verdict} the goal of {GOAL}")
    return int(accuracy < GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
