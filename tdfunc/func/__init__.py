"""Transforms and pure calls: functions of trees for `torch.func`."""

from tdfunc.func._control import associative_scan as associative_scan
from tdfunc.func._control import checkpoint as checkpoint
from tdfunc.func._control import cond as cond
from tdfunc.func._control import scan as scan
from tdfunc.func._control import stop_gradient as stop_gradient
from tdfunc.func._control import while_loop as while_loop
from tdfunc.func._derivatives import hessian as hessian
from tdfunc.func._derivatives import jacfwd as jacfwd
from tdfunc.func._derivatives import jacrev as jacrev
from tdfunc.func._derivatives import jvp as jvp
from tdfunc.func._derivatives import linearize as linearize
from tdfunc.func._derivatives import vjp as vjp
from tdfunc.func._dims import dynamic_shapes as dynamic_shapes
from tdfunc.func._dims import in_dims as in_dims
from tdfunc.func._grad import grad as grad
from tdfunc.func._grad import grad_and_value as grad_and_value
from tdfunc.func._modules import from_module as from_module
from tdfunc.func._modules import from_modules as from_modules
from tdfunc.func._modules import functional_call as functional_call
from tdfunc.func._partition import combine as combine
from tdfunc.func._partition import partition as partition
from tdfunc.func._swap import to_module as to_module
from tdfunc.func._vmap import vmap as vmap

__all__ = [
    "associative_scan",
    "checkpoint",
    "combine",
    "cond",
    "dynamic_shapes",
    "from_module",
    "from_modules",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "in_dims",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "partition",
    "scan",
    "stop_gradient",
    "to_module",
    "vjp",
    "vmap",
    "while_loop",
]
