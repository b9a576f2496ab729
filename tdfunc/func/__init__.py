"""Transforms and pure calls: functions of trees for `torch.func`."""

from tdfunc.func._dims import dynamic_shapes as dynamic_shapes
from tdfunc.func._dims import in_dims as in_dims
from tdfunc.func._modules import from_module as from_module
from tdfunc.func._modules import from_modules as from_modules
from tdfunc.func._modules import functional_call as functional_call
from tdfunc.func._partition import combine as combine
from tdfunc.func._partition import partition as partition

__all__ = [
    "combine",
    "dynamic_shapes",
    "from_module",
    "from_modules",
    "functional_call",
    "in_dims",
    "partition",
]
