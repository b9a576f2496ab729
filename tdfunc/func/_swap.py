"""Trees in a module for as long as a block runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from tdfunc.errors import MissingKeyError, OperandError, ShapeError, nearest
from tdfunc.func._modules import dotted

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from tdfunc._core.node import Node

__all__ = ["to_module"]


@contextmanager
def to_module(
    params: Node | Mapping[str, Any], module: nn.Module
) -> Generator[nn.Module]:
    """Put parameters and buffers into a module while a block runs.

    The block gets the module. When it ends, after an error too, the module has its own
    back; blocks may stand in each other. A tensor under one name of a tied weight
    stands for all of them. What the block writes into buffers is written into the
    tensors of `params`. Other threads that use the module meanwhile see the exchange:
    `tdfunc.func.functional_call` is pure.

    Args:
        params: a tree with parameters and buffers of the module, any part of them.
        module: the module.

    Raises:
        OperandError: `params` is no tree, or `module` is no module.
        MissingKeyError: a path names no parameter or buffer of the module; all such
            are listed.
        ShapeError: a tensor has another shape.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> net = torch.nn.Linear(3, 1)
        >>> params = tdfunc.from_module(net)
        >>> with (params * 0).to_module(net):
        ...     net(torch.ones(3)).item()
        0.0
        >>> params.equal(tdfunc.from_module(net))
        True
    """
    if not isinstance(module, nn.Module):
        raise OperandError(
            "this is no module", expected="a torch.nn.Module", got=type(module).__name__
        )
    tensors = dotted(params)
    places = _places(module)
    unknown = [name for name in tensors if name not in places]
    if unknown:
        raise MissingKeyError(
            f"{type(module).__name__} has no such parameters or buffers",
            path=tuple(unknown[0].split(".")),
            expected=nearest(unknown[0], places),
            got=", ".join(unknown),
        )
    before = {name: holder[key] for name, (holder, key) in places.items()}
    for name, tensor in tensors.items():
        if before[name].shape != tensor.shape:
            raise ShapeError(
                "a tensor has not the shape of what it stands for",
                expected=f"{name!r} of shape {list(before[name].shape)}",
                got=f"{list(tensor.shape)}",
            )
    # What is tied to a tensor that is given under another name goes with it.
    given = {id(before[name]): tensor for name, tensor in tensors.items()}
    changed: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, (holder, key) in places.items():
            new = tensors.get(name, given.get(id(before[name])))
            if new is not None:
                changed.append((holder, key, before[name]))
                holder[key] = new
        yield module
    finally:
        for holder, key, value in changed:
            holder[key] = value


def _places(module: nn.Module) -> dict[str, tuple[dict[str, Any], str]]:
    """Return where every parameter and buffer is held, by all of its dotted names."""
    places: dict[str, tuple[dict[str, Any], str]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for table in (part._parameters, part._buffers):
            holder: dict[str, Any] = table
            for key, value in holder.items():
                if value is not None:
                    places[prefix + key] = (holder, key)
    return places
