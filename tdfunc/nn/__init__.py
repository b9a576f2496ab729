"""Modules as pure functions of (params, tree).

A module says what it reads and writes; ``module(params, td)`` returns a new tree with
the outputs in it. Parameters are trees too, so that they go through `vmap`, `grad` and
optimizers like any other.
"""

from tdfunc.nn._dispatch import dispatch as dispatch
from tdfunc.nn._ensemble import EnsembleModule as EnsembleModule
from tdfunc.nn._ensemble import functional_vmap as functional_vmap
from tdfunc.nn._module import TensorDictModule as TensorDictModule
from tdfunc.nn._module import TensorDictModuleBase as TensorDictModuleBase
from tdfunc.nn._module import WrapModule as WrapModule
from tdfunc.nn._module import as_tensordict_module as as_tensordict_module
from tdfunc.nn._params import TensorDictParams as TensorDictParams
from tdfunc.nn._params import to_module as to_module
from tdfunc.nn._sequential import TensorDictSequential as TensorDictSequential
from tdfunc.nn._skip import set_skip_existing as set_skip_existing
from tdfunc.nn._skip import skip_existing as skip_existing
from tdfunc.nn._typed import TensorClassModuleBase as TensorClassModuleBase

__all__ = [
    "EnsembleModule",
    "TensorClassModuleBase",
    "TensorDictModule",
    "TensorDictModuleBase",
    "TensorDictParams",
    "TensorDictSequential",
    "WrapModule",
    "as_tensordict_module",
    "dispatch",
    "functional_vmap",
    "set_skip_existing",
    "skip_existing",
    "to_module",
]
