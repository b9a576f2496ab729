"""Trees of parameters where classic code wants an `nn.Module`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdfunc._core.node import Node, make
from tdfunc.errors import InvalidKeyError, OperandError

if TYPE_CHECKING:
    from tdfunc._core.schema import Schema
    from tdfunc._core.statics import Statics
    from tdfunc.typing import Path

__all__ = ["TensorDictParams"]


class TensorDictParams(nn.Module):
    """An `nn.Module` that holds a tree: parameters for optimizers and checkpoints.

    Every tensor of the tree becomes a parameter or a buffer, named by its path joined
    with dots. What an optimizer writes, `load_state_dict` loads or `to` moves shows in
    `tree`, which is immutable and made anew each time that it is read.

    Args:
        tree: the tree; its tensors are copied, one that is at two places once.
        no_convert: True registers only what is an `nn.Parameter` already as one;
            otherwise every tensor of a floating dtype becomes one. All others are
            buffers.

    Raises:
        OperandError: `tree` is none.
        InvalidKeyError: a key has a dot in it.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from tdfunc.nn import TensorDictParams
        >>> held = TensorDictParams(TensorDict({"layer": {"w": torch.zeros(2)}}))
        >>> [name for name, _ in held.named_parameters()]
        ['layer.w']
        >>> held.tree["layer", "w"].requires_grad
        True
    """

    def __init__(self, tree: Any, *, no_convert: bool = False) -> None:
        super().__init__()
        if not isinstance(tree, Node) or not tree._schema.plain:
            raise OperandError(
                "a tree of tensors is held",
                got=type(tree).__name__,
                fix="TensorDictParams(tdfunc.from_module(net))",
            )
        self._size = tree.batch_size
        self._schema: Schema = tree._schema
        self._statics: Statics = tree._statics
        self._dim_names = tree.names
        held: dict[int, torch.Tensor] = {}
        for path, leaf in zip(self._schema.paths(), tree._leaves, strict=True):
            dotted_keys = [key for key in path if "." in key]
            if dotted_keys:
                raise InvalidKeyError(
                    "torch takes no dots in the names of parameters",
                    path=path,
                    fix=f"td.rename_key({path!r}, ...)",
                )
            if id(leaf) not in held:
                held[id(leaf)] = _held(leaf, no_convert=no_convert)
            own = held[id(leaf)]
            node = self._node(path[:-1])
            # Straight into the tables: an attribute may have the name of a key.
            if isinstance(own, nn.Parameter):
                node._parameters[path[-1]] = own
            else:
                node._buffers[path[-1]] = own

    def _node(self, path: Path) -> nn.Module:
        """Return the module that holds what is at `path`, made if there is none."""
        node: Any = self
        for key in path:
            if key not in node._modules:
                node._modules[key] = nn.Module()
            node = node._modules[key]
        return node

    @property
    def tree(self) -> Any:
        """The tree of the current values; parameters in it take gradients."""
        leaves: list[Any] = []
        for path in self._schema.paths():
            node, key = self._node(path[:-1]), path[-1]
            own = node._parameters.get(key)
            leaves.append(node._buffers[key] if own is None else own)
        size, names = self._size, self._dim_names
        return make(self._schema, tuple(leaves), self._statics, size, names)


def _held(leaf: torch.Tensor, *, no_convert: bool) -> torch.Tensor:
    """Return a copy of a tensor, as a parameter if it becomes one."""
    data = leaf.detach().clone()
    is_parameter = isinstance(leaf, nn.Parameter)
    if not is_parameter and (no_convert or not data.is_floating_point()):
        return data
    return nn.Parameter(data, leaf.requires_grad if is_parameter else True)
