"""tdfunc: an immutable, functional, pytree-native TensorDict for PyTorch.

Trees of tensors that share batch dims, as values: every operation returns a new
tree, and every tree goes through `torch.func`, `torch.compile` and the pytree
functions with the right batch size.

`tdfunc.testing` is a module of its own, ``import tdfunc.testing``: it needs hypothesis,
which the extra ``testing`` installs.
"""

from tdfunc import _pytree as _pytree
from tdfunc import errors as errors
from tdfunc import func as func
from tdfunc import interop as interop
from tdfunc import io as io
from tdfunc import nn as nn
from tdfunc import objectives as objectives
from tdfunc import optim as optim
from tdfunc import random as random
from tdfunc import typing as typing

# Trees
from tdfunc._core.leaf import unbatched as unbatched
from tdfunc._core.rows import NonTensorStack as NonTensorStack
from tdfunc._core.schema import Schema as Schema
from tdfunc._core.statics import NonTensorData as NonTensorData
from tdfunc._lazystack import LazyStackedTensorDict as LazyStackedTensorDict
from tdfunc._ops.arrays import from_dlpack as from_dlpack
from tdfunc._ops.arrays import from_numpy as from_numpy
from tdfunc._ops.arrays import from_struct_array as from_struct_array
from tdfunc._ops.arrays import to_dlpack as to_dlpack
from tdfunc._ops.arrays import to_numpy as to_numpy
from tdfunc._ops.arrays import to_struct_array as to_struct_array

# Operations, each also a method of the same name
from tdfunc._ops.at import At as At
from tdfunc._ops.at import at as at
from tdfunc._ops.casts import bfloat16 as bfloat16
from tdfunc._ops.casts import bool as bool
from tdfunc._ops.casts import cpu as cpu
from tdfunc._ops.casts import cuda as cuda
from tdfunc._ops.casts import double as double
from tdfunc._ops.casts import float as float
from tdfunc._ops.casts import half as half
from tdfunc._ops.casts import int as int
from tdfunc._ops.casts import long as long
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
from tdfunc._ops.create import new_empty as new_empty
from tdfunc._ops.create import new_full as new_full
from tdfunc._ops.create import new_ones as new_ones
from tdfunc._ops.create import new_zeros as new_zeros
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
from tdfunc._ops.facts import bytes as bytes
from tdfunc._ops.facts import depth as depth
from tdfunc._ops.facts import is_contiguous as is_contiguous
from tdfunc._ops.facts import is_cpu as is_cpu
from tdfunc._ops.facts import is_cuda as is_cuda
from tdfunc._ops.facts import is_floating_point as is_floating_point
from tdfunc._ops.facts import is_meta as is_meta
from tdfunc._ops.facts import param_count as param_count
from tdfunc._ops.from_python import from_any as from_any
from tdfunc._ops.from_python import from_dataclass as from_dataclass
from tdfunc._ops.from_python import from_list as from_list
from tdfunc._ops.from_python import from_namedtuple as from_namedtuple
from tdfunc._ops.from_python import from_tuple as from_tuple
from tdfunc._ops.from_python import to_namedtuple as to_namedtuple
from tdfunc._ops.from_python import to_tensordict as to_tensordict
from tdfunc._ops.fuse import cat_tensors as cat_tensors
from tdfunc._ops.fuse import stack_tensors as stack_tensors
from tdfunc._ops.join import cat as cat
from tdfunc._ops.join import stack as stack
from tdfunc._ops.lazy import densify as densify
from tdfunc._ops.lazy import lazy_stack as lazy_stack
from tdfunc._ops.lazy import maybe_dense_stack as maybe_dense_stack
from tdfunc._ops.lazy import to_lazystack as to_lazystack
from tdfunc._ops.leafwise import apply as apply
from tdfunc._ops.leafwise import named_apply as named_apply
from tdfunc._ops.logic import addcdiv as addcdiv
from tdfunc._ops.logic import addcmul as addcmul
from tdfunc._ops.logic import allclose as allclose
from tdfunc._ops.logic import atan2 as atan2
from tdfunc._ops.logic import bitwise_and as bitwise_and
from tdfunc._ops.logic import bitwise_left_shift as bitwise_left_shift
from tdfunc._ops.logic import bitwise_or as bitwise_or
from tdfunc._ops.logic import bitwise_right_shift as bitwise_right_shift
from tdfunc._ops.logic import bitwise_xor as bitwise_xor
from tdfunc._ops.logic import clamp as clamp
from tdfunc._ops.logic import clamp_max as clamp_max
from tdfunc._ops.logic import clamp_min as clamp_min
from tdfunc._ops.logic import fmod as fmod
from tdfunc._ops.logic import isclose as isclose
from tdfunc._ops.logic import lerp as lerp
from tdfunc._ops.logic import logical_and as logical_and
from tdfunc._ops.logic import logical_or as logical_or
from tdfunc._ops.logic import logical_xor as logical_xor
from tdfunc._ops.logic import maximum as maximum
from tdfunc._ops.logic import minimum as minimum
from tdfunc._ops.naming import refine_names as refine_names
from tdfunc._ops.naming import rename as rename
from tdfunc._ops.order import argsort as argsort
from tdfunc._ops.order import cummax as cummax
from tdfunc._ops.order import cummin as cummin
from tdfunc._ops.order import cumprod as cumprod
from tdfunc._ops.order import cumsum as cumsum
from tdfunc._ops.order import log_softmax as log_softmax
from tdfunc._ops.order import logcumsumexp as logcumsumexp
from tdfunc._ops.order import softmax as softmax
from tdfunc._ops.order import sort as sort
from tdfunc._ops.order import topk as topk
from tdfunc._ops.pack import PackLayout as PackLayout
from tdfunc._ops.pack import pack as pack
from tdfunc._ops.pack import ravel as ravel
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
from tdfunc._ops.pointwise import rsub as rsub
from tdfunc._ops.pointwise import sub as sub
from tdfunc._ops.pytrees import PyTreeDef as PyTreeDef
from tdfunc._ops.pytrees import from_pytree as from_pytree
from tdfunc._ops.pytrees import to_pytree as to_pytree
from tdfunc._ops.reduce import MinMax as MinMax
from tdfunc._ops.reduce import ValuesIndices as ValuesIndices
from tdfunc._ops.reduce import all as all
from tdfunc._ops.reduce import amax as amax
from tdfunc._ops.reduce import amin as amin
from tdfunc._ops.reduce import aminmax as aminmax
from tdfunc._ops.reduce import any as any
from tdfunc._ops.reduce import argmax as argmax
from tdfunc._ops.reduce import argmin as argmin
from tdfunc._ops.reduce import count_nonzero as count_nonzero
from tdfunc._ops.reduce import kthvalue as kthvalue
from tdfunc._ops.reduce import logsumexp as logsumexp
from tdfunc._ops.reduce import max as max
from tdfunc._ops.reduce import mean as mean
from tdfunc._ops.reduce import median as median
from tdfunc._ops.reduce import min as min
from tdfunc._ops.reduce import mode as mode
from tdfunc._ops.reduce import nanmean as nanmean
from tdfunc._ops.reduce import nanmedian as nanmedian
from tdfunc._ops.reduce import nanquantile as nanquantile
from tdfunc._ops.reduce import nansum as nansum
from tdfunc._ops.reduce import norm as norm
from tdfunc._ops.reduce import prod as prod
from tdfunc._ops.reduce import quantile as quantile
from tdfunc._ops.reduce import std as std
from tdfunc._ops.reduce import std_mean as std_mean
from tdfunc._ops.reduce import sum as sum
from tdfunc._ops.reduce import var as var
from tdfunc._ops.reduce import var_mean as var_mean
from tdfunc._ops.restructure import auto_batch_size as auto_batch_size
from tdfunc._ops.restructure import empty as empty
from tdfunc._ops.restructure import filter_empty as filter_empty
from tdfunc._ops.restructure import filter_non_tensor as filter_non_tensor
from tdfunc._ops.restructure import flatten_keys as flatten_keys
from tdfunc._ops.restructure import merge as merge
from tdfunc._ops.restructure import rename_key as rename_key
from tdfunc._ops.restructure import rename_keys as rename_keys
from tdfunc._ops.restructure import split_keys as split_keys
from tdfunc._ops.restructure import unflatten_keys as unflatten_keys
from tdfunc._ops.restructure import update_with as update_with
from tdfunc._ops.sequences import pad_sequence as pad_sequence
from tdfunc._ops.sequences import unpad_sequence as unpad_sequence
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
from tdfunc._ops.special import copysign as copysign
from tdfunc._ops.special import float_power as float_power
from tdfunc._ops.special import fmax as fmax
from tdfunc._ops.special import fmin as fmin
from tdfunc._ops.special import gcd as gcd
from tdfunc._ops.special import heaviside as heaviside
from tdfunc._ops.special import hypot as hypot
from tdfunc._ops.special import igamma as igamma
from tdfunc._ops.special import igammac as igammac
from tdfunc._ops.special import isin as isin
from tdfunc._ops.special import lcm as lcm
from tdfunc._ops.special import ldexp as ldexp
from tdfunc._ops.special import logaddexp as logaddexp
from tdfunc._ops.special import logaddexp2 as logaddexp2
from tdfunc._ops.special import mvlgamma as mvlgamma
from tdfunc._ops.special import nextafter as nextafter
from tdfunc._ops.special import polygamma as polygamma
from tdfunc._ops.special import xlogy as xlogy
from tdfunc._ops.state import load_state_dict as load_state_dict
from tdfunc._ops.state import state_dict as state_dict
from tdfunc._ops.storage import consolidate as consolidate
from tdfunc._ops.storage import share as share
from tdfunc._ops.training import check_finite as check_finite
from tdfunc._ops.training import cosine_similarity as cosine_similarity
from tdfunc._ops.training import global_norm as global_norm
from tdfunc._ops.training import polyak as polyak
from tdfunc._ops.training import tree_dot as tree_dot
from tdfunc._ops.training import tree_where as tree_where
from tdfunc._ops.unary import acos as acos
from tdfunc._ops.unary import acosh as acosh
from tdfunc._ops.unary import angle as angle
from tdfunc._ops.unary import asin as asin
from tdfunc._ops.unary import asinh as asinh
from tdfunc._ops.unary import atan as atan
from tdfunc._ops.unary import atanh as atanh
from tdfunc._ops.unary import bitwise_not as bitwise_not
from tdfunc._ops.unary import ceil as ceil
from tdfunc._ops.unary import conj as conj
from tdfunc._ops.unary import cos as cos
from tdfunc._ops.unary import cosh as cosh
from tdfunc._ops.unary import deg2rad as deg2rad
from tdfunc._ops.unary import digamma as digamma
from tdfunc._ops.unary import erf as erf
from tdfunc._ops.unary import erfc as erfc
from tdfunc._ops.unary import erfinv as erfinv
from tdfunc._ops.unary import exp as exp
from tdfunc._ops.unary import exp2 as exp2
from tdfunc._ops.unary import expm1 as expm1
from tdfunc._ops.unary import floor as floor
from tdfunc._ops.unary import frac as frac
from tdfunc._ops.unary import i0 as i0
from tdfunc._ops.unary import imag as imag
from tdfunc._ops.unary import isfinite as isfinite
from tdfunc._ops.unary import isinf as isinf
from tdfunc._ops.unary import isnan as isnan
from tdfunc._ops.unary import isneginf as isneginf
from tdfunc._ops.unary import isposinf as isposinf
from tdfunc._ops.unary import isreal as isreal
from tdfunc._ops.unary import lgamma as lgamma
from tdfunc._ops.unary import log as log
from tdfunc._ops.unary import log1p as log1p
from tdfunc._ops.unary import log2 as log2
from tdfunc._ops.unary import log10 as log10
from tdfunc._ops.unary import logical_not as logical_not
from tdfunc._ops.unary import logit as logit
from tdfunc._ops.unary import nan_to_num as nan_to_num
from tdfunc._ops.unary import positive as positive
from tdfunc._ops.unary import rad2deg as rad2deg
from tdfunc._ops.unary import real as real
from tdfunc._ops.unary import reciprocal as reciprocal
from tdfunc._ops.unary import relu as relu
from tdfunc._ops.unary import round as round
from tdfunc._ops.unary import rsqrt as rsqrt
from tdfunc._ops.unary import sgn as sgn
from tdfunc._ops.unary import sigmoid as sigmoid
from tdfunc._ops.unary import sign as sign
from tdfunc._ops.unary import signbit as signbit
from tdfunc._ops.unary import sin as sin
from tdfunc._ops.unary import sinc as sinc
from tdfunc._ops.unary import sinh as sinh
from tdfunc._ops.unary import softplus as softplus
from tdfunc._ops.unary import sqrt as sqrt
from tdfunc._ops.unary import square as square
from tdfunc._ops.unary import tan as tan
from tdfunc._ops.unary import tanh as tanh
from tdfunc._ops.unary import trunc as trunc
from tdfunc._tensorclass import TensorClass as TensorClass
from tdfunc._tensorclass import tensorclass as tensorclass
from tdfunc._tensordict import TensorDict as TensorDict
from tdfunc.func import associative_scan as associative_scan
from tdfunc.func import checkpoint as checkpoint

# Functional training
from tdfunc.func import combine as combine
from tdfunc.func import cond as cond
from tdfunc.func import dynamic_shapes as dynamic_shapes
from tdfunc.func import from_module as from_module
from tdfunc.func import from_modules as from_modules
from tdfunc.func import grad as grad
from tdfunc.func import grad_and_value as grad_and_value
from tdfunc.func import hessian as hessian
from tdfunc.func import in_dims as in_dims
from tdfunc.func import jacfwd as jacfwd
from tdfunc.func import jacrev as jacrev
from tdfunc.func import jvp as jvp
from tdfunc.func import linearize as linearize
from tdfunc.func import partition as partition
from tdfunc.func import scan as scan
from tdfunc.func import stop_gradient as stop_gradient
from tdfunc.func import to_module as to_module
from tdfunc.func import vjp as vjp
from tdfunc.func import vmap as vmap
from tdfunc.func import while_loop as while_loop

# Files, and trees on their way to other processes
from tdfunc.io import append_memmap as append_memmap
from tdfunc.io import from_consolidated as from_consolidated
from tdfunc.io import load as load
from tdfunc.io import load_memmap as load_memmap
from tdfunc.io import load_safetensors as load_safetensors
from tdfunc.io import memmap as memmap
from tdfunc.io import memmap_like as memmap_like
from tdfunc.io import pack_memmap as pack_memmap
from tdfunc.io import save as save
from tdfunc.io import save_async as save_async
from tdfunc.io import save_safetensors as save_safetensors
from tdfunc.io import unpack_memmap as unpack_memmap
from tdfunc.io._processes import ByReference as ByReference
from tdfunc.io._processes import by_reference as by_reference

__version__ = "0.1.0"

__all__ = [
    "errors",
    "func",
    "interop",
    "io",
    "nn",
    "objectives",
    "optim",
    "typing",
    "Schema",
    "LazyStackedTensorDict",
    "NonTensorData",
    "densify",
    "lazy_stack",
    "maybe_dense_stack",
    "to_lazystack",
    "NonTensorStack",
    "unbatched",
    "ByReference",
    "by_reference",
    "At",
    "at",
    "clone",
    "consolidate",
    "contiguous",
    "detach",
    "from_dict",
    "to",
    "share",
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
    "append_memmap",
    "apply",
    "named_apply",
    "addcdiv",
    "addcmul",
    "allclose",
    "atan2",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "clamp",
    "clamp_max",
    "clamp_min",
    "fmod",
    "isclose",
    "lerp",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "copysign",
    "float_power",
    "fmax",
    "fmin",
    "gcd",
    "heaviside",
    "hypot",
    "igamma",
    "igammac",
    "isin",
    "lcm",
    "ldexp",
    "logaddexp",
    "logaddexp2",
    "mvlgamma",
    "nextafter",
    "polygamma",
    "xlogy",
    "PackLayout",
    "pack",
    "ravel",
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
    "rsub",
    "sub",
    "all",
    "any",
    "mean",
    "sum",
    "ValuesIndices",
    "MinMax",
    "aminmax",
    "kthvalue",
    "mode",
    "nanquantile",
    "std_mean",
    "var_mean",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "logsumexp",
    "max",
    "median",
    "min",
    "nanmean",
    "nansum",
    "norm",
    "prod",
    "quantile",
    "std",
    "var",
    "argsort",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "log_softmax",
    "logcumsumexp",
    "softmax",
    "sort",
    "topk",
    "auto_batch_size",
    "empty",
    "filter_empty",
    "filter_non_tensor",
    "flatten_keys",
    "merge",
    "rename_key",
    "rename_keys",
    "split_keys",
    "unflatten_keys",
    "update_with",
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
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_not",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "i0",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "logit",
    "nan_to_num",
    "positive",
    "rad2deg",
    "real",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "softplus",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "load_state_dict",
    "state_dict",
    "tensorclass",
    "check_finite",
    "cosine_similarity",
    "global_norm",
    "polyak",
    "tree_dot",
    "tree_where",
    "view",
    "TensorClass",
    "TensorDict",
    "combine",
    "dynamic_shapes",
    "from_module",
    "from_modules",
    "in_dims",
    "partition",
    "to_module",
    "bfloat16",
    "bool",
    "cpu",
    "cuda",
    "double",
    "float",
    "half",
    "int",
    "long",
    "bytes",
    "depth",
    "is_contiguous",
    "is_cpu",
    "is_cuda",
    "is_floating_point",
    "is_meta",
    "param_count",
    "cat_tensors",
    "stack_tensors",
    "refine_names",
    "rename",
    "pad_sequence",
    "unpad_sequence",
    "new_empty",
    "new_full",
    "new_ones",
    "new_zeros",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "count_nonzero",
    "nanmedian",
    "associative_scan",
    "checkpoint",
    "cond",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "scan",
    "stop_gradient",
    "vjp",
    "vmap",
    "while_loop",
    "from_consolidated",
    "load",
    "load_memmap",
    "load_safetensors",
    "memmap",
    "memmap_like",
    "pack_memmap",
    "unpack_memmap",
    "save",
    "save_async",
    "save_safetensors",
]
