"""Modules as pure functions of (params, tree).

A module says what it reads and writes; ``module(params, td)`` returns a new tree with
the outputs in it. Parameters are trees too, so that they go through `vmap`, `grad` and
optimizers like any other.
"""

from tdfunc.func import to_module as to_module
from tdfunc.nn._composite import CompositeDistribution as CompositeDistribution
from tdfunc.nn._dispatch import dispatch as dispatch
from tdfunc.nn._distributions import Delta as Delta
from tdfunc.nn._distributions import MaskedCategorical as MaskedCategorical
from tdfunc.nn._distributions import OneHotCategorical as OneHotCategorical
from tdfunc.nn._distributions import TanhNormal as TanhNormal
from tdfunc.nn._distributions import TruncatedNormal as TruncatedNormal
from tdfunc.nn._draw import SupportsDraw as SupportsDraw
from tdfunc.nn._draw import draw as draw
from tdfunc.nn._ensemble import EnsembleModule as EnsembleModule
from tdfunc.nn._ensemble import functional_vmap as functional_vmap
from tdfunc.nn._extractors import (
    AddStateIndependentNormalScale as AddStateIndependentNormalScale,
)
from tdfunc.nn._extractors import NormalParamExtractor as NormalParamExtractor
from tdfunc.nn._interaction import InteractionType as InteractionType
from tdfunc.nn._interaction import composite_lp_aggregate as composite_lp_aggregate
from tdfunc.nn._interaction import interaction_type as interaction_type
from tdfunc.nn._interaction import (
    set_composite_lp_aggregate as set_composite_lp_aggregate,
)
from tdfunc.nn._interaction import set_interaction_type as set_interaction_type
from tdfunc.nn._module import TensorDictModule as TensorDictModule
from tdfunc.nn._module import TensorDictModuleBase as TensorDictModuleBase
from tdfunc.nn._module import WrapModule as WrapModule
from tdfunc.nn._module import as_tensordict_module as as_tensordict_module
from tdfunc.nn._params import TensorDictParams as TensorDictParams
from tdfunc.nn._probabilistic import (
    ProbabilisticTensorDictModule as ProbabilisticTensorDictModule,
)
from tdfunc.nn._probabilistic import (
    ProbabilisticTensorDictSequential as ProbabilisticTensorDictSequential,
)
from tdfunc.nn._sequential import TensorDictSequential as TensorDictSequential
from tdfunc.nn._skip import set_skip_existing as set_skip_existing
from tdfunc.nn._skip import skip_existing as skip_existing
from tdfunc.nn._typed import TensorClassModuleBase as TensorClassModuleBase

__all__ = [
    "AddStateIndependentNormalScale",
    "CompositeDistribution",
    "Delta",
    "EnsembleModule",
    "InteractionType",
    "MaskedCategorical",
    "NormalParamExtractor",
    "OneHotCategorical",
    "ProbabilisticTensorDictModule",
    "ProbabilisticTensorDictSequential",
    "SupportsDraw",
    "TanhNormal",
    "TensorClassModuleBase",
    "TensorDictModule",
    "TensorDictModuleBase",
    "TensorDictParams",
    "TensorDictSequential",
    "TruncatedNormal",
    "WrapModule",
    "as_tensordict_module",
    "composite_lp_aggregate",
    "dispatch",
    "draw",
    "functional_vmap",
    "interaction_type",
    "set_composite_lp_aggregate",
    "set_interaction_type",
    "set_skip_existing",
    "skip_existing",
    "to_module",
]
