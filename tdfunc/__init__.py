"""tdfunc: an immutable, functional, pytree-native TensorDict for PyTorch.

Trees of tensors that share batch dims, as values: every operation returns a new
tree, and every tree goes through `torch.func`, `torch.compile` and the pytree
functions with the right batch size.
"""

from tdfunc import _pytree as _pytree
from tdfunc import errors as errors
from tdfunc import func as func
from tdfunc import typing as typing

# Trees
from tdfunc._core.schema import Schema as Schema
from tdfunc._core.statics import NonTensorData as NonTensorData

# Operations, each also a method of the same name
from tdfunc._ops.arrays import from_dlpack as from_dlpack
from tdfunc._ops.arrays import from_numpy as from_numpy
from tdfunc._ops.arrays import from_struct_array as from_struct_array
from tdfunc._ops.arrays import to_dlpack as to_dlpack
from tdfunc._ops.arrays import to_numpy as to_numpy
from tdfunc._ops.arrays import to_struct_array as to_struct_array
from tdfunc._ops.convert import clone as clone
from tdfunc._ops.convert import contiguous as contiguous
from tdfunc._ops.convert import detach as detach
from tdfunc._ops.convert import from_dict as from_dict
from tdfunc._ops.convert import to as to
from tdfunc._ops.convert import to_dict as to_dict
from tdfunc._ops.convert import with_statics as with_statics
from tdfunc._ops.create import empty_like as empty_like
from tdfunc._ops.create import from_schema as from_schema
from tdfunc._ops.create import fromkeys as fromkeys
from tdfunc._ops.create import full_like as full_like
from tdfunc._ops.create import ones_like as ones_like
from tdfunc._ops.create import rand_like as rand_like
from tdfunc._ops.create import randn_like as randn_like
from tdfunc._ops.create import zeros_like as zeros_like
from tdfunc._ops.entries import drop as drop
from tdfunc._ops.entries import exclude as exclude
from tdfunc._ops.entries import replace as replace
from tdfunc._ops.entries import select as select
from tdfunc._ops.entries import set as set
from tdfunc._ops.entries import update as update
from tdfunc._ops.entries import with_batch_size as with_batch_size
from tdfunc._ops.entries import with_names as with_names
from tdfunc._ops.from_python import from_any as from_any
from tdfunc._ops.from_python import from_dataclass as from_dataclass
from tdfunc._ops.from_python import from_list as from_list
from tdfunc._ops.from_python import from_namedtuple as from_namedtuple
from tdfunc._ops.from_python import from_tuple as from_tuple
from tdfunc._ops.from_python import to_namedtuple as to_namedtuple
from tdfunc._ops.from_python import to_tensordict as to_tensordict
from tdfunc._ops.join import cat as cat
from tdfunc._ops.join import stack as stack
from tdfunc._ops.leafwise import apply as apply
from tdfunc._ops.leafwise import named_apply as named_apply
from tdfunc._ops.pack import PackLayout as PackLayout
from tdfunc._ops.pack import pack as pack
from tdfunc._ops.pack import ravel as ravel
from tdfunc._ops.pointwise import abs as abs
from tdfunc._ops.pointwise import add as add
from tdfunc._ops.pointwise import div as div
from tdfunc._ops.pointwise import eq as eq
from tdfunc._ops.pointwise import equal as equal
from tdfunc._ops.pointwise import floor_divide as floor_divide
from tdfunc._ops.pointwise import ge as ge
from tdfunc._ops.pointwise import gt as gt
from tdfunc._ops.pointwise import le as le
from tdfunc._ops.pointwise import lt as lt
from tdfunc._ops.pointwise import mul as mul
from tdfunc._ops.pointwise import ne as ne
from tdfunc._ops.pointwise import neg as neg
from tdfunc._ops.pointwise import pow as pow
from tdfunc._ops.pointwise import remainder as remainder
from tdfunc._ops.pointwise import sub as sub
from tdfunc._ops.pytrees import PyTreeDef as PyTreeDef
from tdfunc._ops.pytrees import from_pytree as from_pytree
from tdfunc._ops.pytrees import to_pytree as to_pytree
from tdfunc._ops.reduce import all as all
from tdfunc._ops.reduce import any as any
from tdfunc._ops.reduce import mean as mean
from tdfunc._ops.reduce import sum as sum
from tdfunc._ops.shape import expand as expand
from tdfunc._ops.shape import permute as permute
from tdfunc._ops.shape import reshape as reshape
from tdfunc._ops.shape import squeeze as squeeze
from tdfunc._ops.shape import transpose as transpose
from tdfunc._ops.shape import unbind as unbind
from tdfunc._ops.shape import unsqueeze as unsqueeze
from tdfunc._ops.state import load_state_dict as load_state_dict
from tdfunc._ops.state import state_dict as state_dict
from tdfunc._tensordict import TensorDict as TensorDict

# Functional training
from tdfunc.func import combine as combine
from tdfunc.func import dynamic_shapes as dynamic_shapes
from tdfunc.func import from_module as from_module
from tdfunc.func import from_modules as from_modules
from tdfunc.func import in_dims as in_dims
from tdfunc.func import partition as partition

__version__ = "0.1.0"

__all__ = [
    "errors",
    "func",
    "typing",
    "Schema",
    "NonTensorData",
    "clone",
    "contiguous",
    "detach",
    "from_dict",
    "to",
    "to_dict",
    "with_statics",
    "from_dlpack",
    "from_numpy",
    "from_struct_array",
    "to_dlpack",
    "to_numpy",
    "to_struct_array",
    "empty_like",
    "from_schema",
    "fromkeys",
    "full_like",
    "ones_like",
    "rand_like",
    "randn_like",
    "zeros_like",
    "from_any",
    "from_dataclass",
    "from_list",
    "from_namedtuple",
    "from_tuple",
    "to_namedtuple",
    "to_tensordict",
    "PyTreeDef",
    "from_pytree",
    "to_pytree",
    "drop",
    "exclude",
    "replace",
    "select",
    "set",
    "update",
    "with_batch_size",
    "with_names",
    "cat",
    "stack",
    "apply",
    "named_apply",
    "PackLayout",
    "pack",
    "ravel",
    "abs",
    "add",
    "div",
    "eq",
    "equal",
    "floor_divide",
    "ge",
    "gt",
    "le",
    "lt",
    "mul",
    "ne",
    "neg",
    "pow",
    "remainder",
    "sub",
    "all",
    "any",
    "mean",
    "sum",
    "expand",
    "permute",
    "reshape",
    "squeeze",
    "transpose",
    "unbind",
    "unsqueeze",
    "load_state_dict",
    "state_dict",
    "TensorDict",
    "combine",
    "dynamic_shapes",
    "from_module",
    "from_modules",
    "in_dims",
    "partition",
]
