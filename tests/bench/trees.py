"""The trees that every case is measured on, in the three forms that are compared.

Leaves are float32 of shape ``[3, 4]`` in a batch of 3: so small that what is measured
is overhead. Keys are written in sorted order, so that the flat tuple of the floor and
the leaves of the trees come in the same order.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import torch

from tdfunc import TensorDict


class Data(NamedTuple):
    """One set of tensors as plain Python, as our tree and as the peer's."""

    flat: tuple[torch.Tensor, ...]
    nested: dict[str, Any]
    td: TensorDict
    peer: Any  # tensordict.TensorDict, or None without the peer
    batch: torch.Size


class Layout(NamedTuple):
    """Batch size and leaf shapes of a tree."""

    batch: torch.Size
    shapes: dict[tuple[str, ...], tuple[int, ...]]


def flat_paths(count: int) -> list[tuple[str, ...]]:
    return [(f"k{i:03}",) for i in range(count)]


def nested_paths(*widths: int) -> list[tuple[str, ...]]:
    names = zip("abcd", widths, strict=True)
    return list(product(*[[f"{key}{i}" for i in range(n)] for key, n in names]))


def uniform(paths: list[tuple[str, ...]], *shape: int) -> Layout:
    """Return a layout whose leaves all have this shape; its last dim is a feature."""
    return Layout(torch.Size(shape[:-1]), dict.fromkeys(paths, shape))


LAYOUTS = {
    "flat4": uniform(flat_paths(4), 3, 4),
    "flat32": uniform(flat_paths(32), 3, 4),
    "plain tensors": uniform(flat_paths(1), 3, 4),
    "nest100": uniform(nested_paths(5, 2, 2, 5), 3, 4),
    "nest100 of 3 batch dims": uniform(nested_paths(5, 2, 2, 5), 3, 1, 2, 4),
    "3 layers": Layout(
        torch.Size(),
        {
            ("0", "bias"): (16,),
            ("0", "weight"): (16, 8),
            ("1", "bias"): (16,),
            ("1", "weight"): (16, 16),
            ("2", "bias"): (2,),
            ("2", "weight"): (2, 16),
        },
    ),
}


def data(tree: str, *, peer: bool) -> Data:
    """Return the three forms of the tree with one of `LAYOUTS`."""
    batch, shapes = LAYOUTS[tree]
    generator = torch.Generator().manual_seed(0)
    flat = tuple([torch.rand(shape, generator=generator) for shape in shapes.values()])
    nested = nest(dict(zip(shapes, flat, strict=True)))
    theirs = peer_class()(nested, batch_size=batch) if peer else None
    return Data(flat, nested, TensorDict(nested, batch), theirs, batch)


def nest(leaves: dict[tuple[str, ...], torch.Tensor]) -> dict[str, Any]:
    """Return the dict of dicts with these leaves at these paths."""
    root: dict[str, Any] = {}
    for path, leaf in leaves.items():
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return root


def peer_installed() -> bool:
    return find_spec("tensordict") is not None


def peer_class() -> Any:
    return import_module("tensordict").TensorDict
