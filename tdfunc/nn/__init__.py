"""Modules as pure functions of parameters and a tree, and their distributions."""

from tdfunc.nn._composite import CompositeDistribution as CompositeDistribution
from tdfunc.nn._distributions import Delta as Delta
from tdfunc.nn._distributions import MaskedCategorical as MaskedCategorical
from tdfunc.nn._distributions import OneHotCategorical as OneHotCategorical
from tdfunc.nn._distributions import TanhNormal as TanhNormal
from tdfunc.nn._distributions import TruncatedNormal as TruncatedNormal
from tdfunc.nn._draw import SupportsDraw as SupportsDraw
from tdfunc.nn._draw import draw as draw
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
from tdfunc.nn._module import TensorDictModuleBase as TensorDictModuleBase
from tdfunc.nn._probabilistic import (
    ProbabilisticTensorDictModule as ProbabilisticTensorDictModule,
)
from tdfunc.nn._probabilistic import (
    ProbabilisticTensorDictSequential as ProbabilisticTensorDictSequential,
)
from tdfunc.nn._sequential import TensorDictSequential as TensorDictSequential

__all__ = [
    "AddStateIndependentNormalScale",
    "CompositeDistribution",
    "Delta",
    "InteractionType",
    "MaskedCategorical",
    "NormalParamExtractor",
    "OneHotCategorical",
    "ProbabilisticTensorDictModule",
    "ProbabilisticTensorDictSequential",
    "SupportsDraw",
    "TanhNormal",
    "TensorDictModuleBase",
    "TensorDictSequential",
    "TruncatedNormal",
    "composite_lp_aggregate",
    "draw",
    "interaction_type",
    "set_composite_lp_aggregate",
    "set_interaction_type",
]
