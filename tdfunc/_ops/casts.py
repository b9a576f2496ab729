"""Casts and moves by name: short forms of `to`, as tensors have them.

`float`, `double`, `half` and `bfloat16` leave integers and booleans alone, as
`torch.nn.Module` does; `int`, `long` and `bool` cast every leaf. Leaves that need no
change are shared, and a tree of such leaves comes back itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tdfunc._core.batch import as_device
from tdfunc._ops.convert import to
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from tdfunc._core.node import NodeT
    from tdfunc.typing import Device

__all__ = [
    "bfloat16",
    "bool",
    "cpu",
    "cuda",
    "double",
    "float",
    "half",
    "int",
    "long",
]


def float(td: NodeT) -> NodeT:
    """Return the tree with its floating-point leaves as float32.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2, dtype=torch.float64), "n": 1}).float()
        >>> td["x"].dtype, td["n"].dtype
        (torch.float32, torch.int64)
    """
    return to(td, torch.float32, floating_only=True)


def double(td: NodeT) -> NodeT:
    """Return the tree with its floating-point leaves as float64.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}).double()["x"].dtype
        torch.float64
    """
    return to(td, torch.float64, floating_only=True)


def half(td: NodeT) -> NodeT:
    """Return the tree with its floating-point leaves as float16.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}).half()["x"].dtype
        torch.float16
    """
    return to(td, torch.float16, floating_only=True)


def bfloat16(td: NodeT) -> NodeT:
    """Return the tree with its floating-point leaves as bfloat16.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}).bfloat16()["x"].dtype
        torch.bfloat16
    """
    return to(td, torch.bfloat16, floating_only=True)


def int(td: NodeT) -> NodeT:
    """Return the tree with every leaf as int32.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.5, -1.5])}).int()["x"]
        tensor([ 1, -1], dtype=torch.int32)
    """
    return to(td, torch.int32)


def long(td: NodeT) -> NodeT:
    """Return the tree with every leaf as int64.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.5, -1.5])}).long()["x"]
        tensor([ 1, -1])
    """
    return to(td, torch.int64)


def bool(td: NodeT) -> NodeT:
    """Return the tree with every leaf as booleans: whether elements are not zero.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.tensor([1.5, 0.0])}).bool()["x"]
        tensor([ True, False])
    """
    return to(td, torch.bool)


def cpu(td: NodeT) -> NodeT:
    """Return the tree with every leaf in the memory of the CPU.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> TensorDict({"x": torch.zeros(2)}).cpu().device
        device(type='cpu')
    """
    return to(td, device="cpu")


def cuda(td: NodeT, device: Device | None = None) -> NodeT:
    """Return the tree with every leaf on a CUDA device.

    Args:
        td: the tree.
        device: which one, None for the current one.

    Raises:
        OptionError: `device` is no device, or none of CUDA's.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(2)})
        >>> not torch.cuda.is_available() or td.cuda().is_cuda
        True
    """
    target = as_device("cuda" if device is None else device)
    if target is None or target.type != "cuda":
        raise OptionError(
            "this is no device of CUDA",
            expected="'cuda', 'cuda:0', 0",
            got=repr(device),
            fix=f"td.to({device!r})",
        )
    return to(td, device=target)
