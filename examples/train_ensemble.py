"""Train an ensemble of digit classifiers at once, as one tree of parameters.

What is learned is written for one member, and mapped over all; seeds decide all draws.
"""

import argparse

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn
from tqdm import trange

from tdfunc import TensorDict, grad_and_value, optim, random, vmap
from tdfunc.nn import EnsembleModule, TensorDictModule

BATCH, RATE, GOAL = 64, 1e-2, 0.97
with torch.device("meta"):  # structure without memory: the weights are in trees
    MLP = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
NET = TensorDictModule(MLP, in_keys=["image"], out_keys=["logits"])


def load_rows(seed: int) -> tuple[TensorDict, TensorDict]:
    """Return shuffled train and test rows, each an image f32[64] and its label."""
    images, labels = load_digits(return_X_y=True)
    image = torch.from_numpy(images).float() / 16
    rows = TensorDict({"image": image, "label": labels}, batch_size=len(labels))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order[360:]], rows[order[:360]]


def loss(params: TensorDict, rows: TensorDict) -> torch.Tensor:
    """Return the loss of one member on a batch of rows."""
    logits = NET(params, rows)["logits"]
    return nn.functional.cross_entropy(logits, rows["label"], label_smoothing=0.1)


def train(rows: TensorDict, key: torch.Tensor, members: int, steps: int) -> TensorDict:
    """Return the parameters of trained members, stacked: batch size [members]."""
    for_params, for_batches = random.split(key)
    params = EnsembleModule(NET, members).init(for_params)
    keys = random.split(for_batches, members)
    tx = optim.adam(optim.linear(RATE, 0.0, steps))
    state = tx.init(params)
    for step in (progress := trange(steps, desc="train")):
        orders = random.permutation(random.fold_in(keys, step), len(rows))
        batch = rows[orders[:, :BATCH]]  # batch size [members, BATCH]
        grads, losses = vmap(grad_and_value(loss))(params, batch)
        params, state = optim.step(tx, grads, state, params)
        progress.set_postfix(loss=f"{losses.mean():.3f}", refresh=False)
    return params


def judge(params: TensorDict, rows: TensorDict) -> TensorDict:
    """Return the rows with votes [members], guess and doubt of the ensemble."""
    logits = EnsembleModule(NET, len(params))(params, rows)["logits"]
    probs, entropy = logits.softmax(-1), torch.special.entr  # [members, rows, 10]
    mean = probs.mean(0)
    # Mutual information of label and member, in nats: 0 where all members agree.
    doubt = entropy(mean).sum(-1) - entropy(probs).sum(-1).mean(0)
    return rows.update(votes=probs.argmax(-1).T, guess=mean.argmax(-1), doubt=doubt)


def plot(rows: TensorDict, path: str) -> None:
    """Draw the disagreement on right and wrong rows, and the most disputed images."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplot_mosaic("#####abcd;#####efgh;#####ijkl")
    axes["#"].set(xscale="log", xlabel="disagreement of the members [nats]")
    wrong = rows["guess"] != rows["label"]
    axes["#"].set_yticks([0, 1], [f"{(~wrong).sum()} right", f"{wrong.sum()} wrong"])
    for i, part in enumerate([rows[~wrong], rows[wrong]]):
        height = i + torch.arange(len(part)) * 0.618 % 1 * 0.6 - 0.3
        axes["#"].scatter(part["doubt"].clamp(1e-6), height, 20, f"C{3 * i}", alpha=0.5)
    disputed = rows["doubt"].topk(12).indices
    for row, at in zip(rows[disputed], "abcdefghijkl", strict=True):
        axes[at].imshow(row["image"].view(8, 8).numpy(), cmap="gray_r")
        axes[at].set(title=f"{row['label']}, read {row['guess']}", xticks=[], yticks=[])
        axes[at].title.set_color("C0" if row["guess"] == row["label"] else "C3")
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> int:
    """Train, print accuracies, return 0 if that of the ensemble reaches the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {"--members": 8, "--steps": 1000, "--seed": 0}.items():
        parser.add_argument(name, type=int, default=value, help=f"default {value}")
    parser.add_argument("--plot", metavar="PATH", help="draw disagreement into a PNG")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # each step is so small that more would only cost
    train_rows, test_rows = load_rows(args.seed)
    params = train(train_rows, random.key(args.seed), args.members, args.steps)
    rows = judge(params, test_rows)
    for member, votes in enumerate(rows["votes"].unbind(-1)):
        print(f"member {member}: {(votes == rows['label']).float().mean():.4f}")
    score = (rows["guess"] == rows["label"]).float().mean().item()
    verdict = "reaches" if score >= GOAL else "misses"
    print(f"ensemble: {score:.4f}, {verdict} the goal of {GOAL}")
    if args.plot:
        plot(rows, args.plot)
    return int(score < GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
