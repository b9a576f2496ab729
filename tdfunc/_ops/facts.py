"""Facts about all leaves of a tree: what they have in common, what they add up to."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from tdfunc._core.leaf import LeafLike
from tdfunc._core.schema import Schema
from tdfunc._core.tree import without_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from tdfunc._core.node import Node

__all__ = [
    "bytes",
    "depth",
    "is_contiguous",
    "is_cpu",
    "is_cuda",
    "is_floating_point",
    "is_meta",
    "param_count",
]


def depth(td: Node) -> int:
    """Return how many levels of nodes are below the root; a property, ``td.depth``.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"a": 1}).depth, TensorDict({"n": {"m": {"a": 1}}}).depth
        (0, 2)
    """
    listed = td._schema.listed(True, False, False)  # noqa: FBT003
    nodes = [len(step.path) for step in listed if isinstance(step.kid, Schema)]
    for slot, path, _ in td._schema.lazies():
        nodes += [len(path) + depth(member) for member in td._leaves[slot].trees]
    return max(nodes, default=0)


def bytes(td: Node, *, count_duplicates: bool = True) -> int:
    """Return how many bytes the elements of all leaves take.

    Args:
        td: the tree.
        count_duplicates: count a tensor as often as it is a leaf; False counts it
            once. Views of one memory are different tensors.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> x = torch.zeros(3, 4)
        >>> td = TensorDict({"a": x, "b": x})
        >>> td.bytes(), td.bytes(count_duplicates=False)
        (96, 48)
    """
    leaves = _counted(_leaves(td), count_duplicates=count_duplicates)
    return builtins.sum([leaf.numel() * leaf.element_size() for leaf in leaves])


def param_count(td: Node, *, count_duplicates: bool = True) -> int:
    """Return how many elements all leaves have: of a tree of weights, its parameters.

    Args:
        td: the tree.
        count_duplicates: count a tensor as often as it is a leaf; False counts it
            once.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> tdfunc.from_module(torch.nn.Linear(3, 4)).param_count()
        16
    """
    leaves = _counted(_leaves(without_rows(td)), count_duplicates=count_duplicates)
    return builtins.sum([leaf.numel() for leaf in leaves])


def _leaves(td: Node) -> tuple[torch.Tensor, ...]:
    """Return all leaves, those of the members of lazy stacks too."""
    if not td._schema.lazy:
        return td._leaves
    found: list[torch.Tensor] = []
    pending: list[Any] = [td]
    while pending:
        for leaf in pending.pop()._leaves:
            if isinstance(leaf, LeafLike):
                pending += leaf.trees
            else:
                found.append(leaf)
    return tuple(found)


def _counted(
    leaves: tuple[torch.Tensor, ...], *, count_duplicates: bool
) -> Iterable[torch.Tensor]:
    return leaves if count_duplicates else {id(leaf): leaf for leaf in leaves}.values()


def is_contiguous(td: Node) -> bool:
    """Return whether the elements of every leaf lie in memory in their order.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2, 3).t()}).is_contiguous()
        False
    """
    return builtins.all([leaf.is_contiguous() for leaf in _leaves(td)])


def is_floating_point(td: Node) -> bool:
    """Return whether every tensor is of a floating-point dtype.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2), "n": 1}).is_floating_point()
        False
    """
    leaves = _leaves(without_rows(td))
    return builtins.all([leaf.is_floating_point() for leaf in leaves])


def is_cpu(td: Node) -> bool:
    """Return whether there are leaves, all on the CPU; a property, ``td.is_cpu``.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}).is_cpu, TensorDict({}).is_cpu
        (True, False)
    """
    return _is_on(td, "cpu")


def is_cuda(td: Node) -> bool:
    """Return whether there are leaves, all on one CUDA device; ``td.is_cuda``.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}).is_cuda
        False
    """
    return _is_on(td, "cuda")


def is_meta(td: Node) -> bool:
    """Return whether there are leaves, none with data; a property, ``td.is_meta``.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2, device="meta")}).is_meta
        True
    """
    return _is_on(td, "meta")


def _is_on(td: Node, kind: str) -> bool:
    device = td.device
    return device is not None and device.type == kind
