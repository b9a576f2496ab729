"""Modules as pure functions of parameters and a tree."""

from tdfunc.nn._draw import SupportsDraw as SupportsDraw
from tdfunc.nn._draw import draw as draw
from tdfunc.nn._interaction import InteractionType as InteractionType
from tdfunc.nn._interaction import composite_lp_aggregate as composite_lp_aggregate
from tdfunc.nn._interaction import interaction_type as interaction_type
from tdfunc.nn._interaction import (
    set_composite_lp_aggregate as set_composite_lp_aggregate,
)
from tdfunc.nn._interaction import set_interaction_type as set_interaction_type

__all__ = [
    "InteractionType",
    "SupportsDraw",
    "composite_lp_aggregate",
    "draw",
    "interaction_type",
    "set_composite_lp_aggregate",
    "set_interaction_type",
]
