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
from tdfunc._ops.convert import clone as clone
from tdfunc._ops.convert import contiguous as contiguous
from tdfunc._ops.convert import detach as detach
from tdfunc._ops.convert import from_dict as from_dict
from tdfunc._ops.convert import to as to
from tdfunc._ops.convert import to_dict as to_dict
from tdfunc._ops.convert import with_statics as with_statics
from tdfunc._ops.entries import drop as drop
from tdfunc._ops.entries import exclude as exclude
from tdfunc._ops.entries import replace as replace
from tdfunc._ops.entries import select as select
from tdfunc._ops.entries import set as set
from tdfunc._ops.entries import update as update
from tdfunc._ops.entries import with_batch_size as with_batch_size
from tdfunc._ops.entries import with_names as with_names
from tdfunc._ops.join import cat as cat
from tdfunc._ops.join import stack as stack
from tdfunc._ops.leafwise import apply as apply
from tdfunc._ops.leafwise import named_apply as named_apply
from tdfunc._ops.pieces import chunk as chunk
from tdfunc._ops.pieces import flip as flip
from tdfunc._ops.pieces import fliplr as fliplr
from tdfunc._ops.pieces import flipud as flipud
from tdfunc._ops.pieces import gather as gather
from tdfunc._ops.pieces import index_select as index_select
from tdfunc._ops.pieces import masked_fill as masked_fill
from tdfunc._ops.pieces import masked_select as masked_select
from tdfunc._ops.pieces import pad as pad
from tdfunc._ops.pieces import repeat as repeat
from tdfunc._ops.pieces import repeat_interleave as repeat_interleave
from tdfunc._ops.pieces import roll as roll
from tdfunc._ops.pieces import rot90 as rot90
from tdfunc._ops.pieces import split as split
from tdfunc._ops.pieces import take as take
from tdfunc._ops.pieces import tensor_split as tensor_split
from tdfunc._ops.pieces import tile as tile
from tdfunc._ops.pieces import where as where
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
from tdfunc._ops.reduce import all as all
from tdfunc._ops.reduce import any as any
from tdfunc._ops.reduce import mean as mean
from tdfunc._ops.reduce import sum as sum
from tdfunc._ops.shape import atleast_1d as atleast_1d
from tdfunc._ops.shape import atleast_2d as atleast_2d
from tdfunc._ops.shape import atleast_3d as atleast_3d
from tdfunc._ops.shape import broadcast_to as broadcast_to
from tdfunc._ops.shape import expand as expand
from tdfunc._ops.shape import expand_as as expand_as
from tdfunc._ops.shape import flatten as flatten
from tdfunc._ops.shape import moveaxis as moveaxis
from tdfunc._ops.shape import movedim as movedim
from tdfunc._ops.shape import narrow as narrow
from tdfunc._ops.shape import permute as permute
from tdfunc._ops.shape import reshape as reshape
from tdfunc._ops.shape import squeeze as squeeze
from tdfunc._ops.shape import swapaxes as swapaxes
from tdfunc._ops.shape import swapdims as swapdims
from tdfunc._ops.shape import transpose as transpose
from tdfunc._ops.shape import unbind as unbind
from tdfunc._ops.shape import unflatten as unflatten
from tdfunc._ops.shape import unsqueeze as unsqueeze
from tdfunc._ops.shape import view as view
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
    "chunk",
    "flip",
    "fliplr",
    "flipud",
    "gather",
    "index_select",
    "masked_fill",
    "masked_select",
    "pad",
    "repeat",
    "repeat_interleave",
    "roll",
    "rot90",
    "split",
    "take",
    "tensor_split",
    "tile",
    "where",
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
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_to",
    "expand",
    "expand_as",
    "flatten",
    "moveaxis",
    "movedim",
    "narrow",
    "permute",
    "reshape",
    "squeeze",
    "swapaxes",
    "swapdims",
    "transpose",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
    "TensorDict",
    "combine",
    "dynamic_shapes",
    "from_module",
    "from_modules",
    "in_dims",
    "partition",
]
