"""Random numbers as functions of keys: no state, no global generator.

A key is an int64 tensor [2] made of a seed; the same key always gives the same numbers.
`split` and `fold_in` make new keys of one. Keys stack, are saved and mapped over like
any tensor: a draw inside `vmap` is, bit for bit, the loop over its keys.
"""

from tdfunc.random._keys import fold_in as fold_in
from tdfunc.random._keys import key as key
from tdfunc.random._keys import split as split
from tdfunc.random._samples import bernoulli as bernoulli
from tdfunc.random._samples import categorical as categorical
from tdfunc.random._samples import exponential as exponential
from tdfunc.random._samples import gumbel as gumbel
from tdfunc.random._samples import normal as normal
from tdfunc.random._samples import randint as randint
from tdfunc.random._samples import truncated_normal as truncated_normal
from tdfunc.random._samples import uniform as uniform
from tdfunc.random._selections import choice as choice
from tdfunc.random._selections import permutation as permutation
from tdfunc.random._trees import normal_like as normal_like
from tdfunc.random._trees import uniform_like as uniform_like

__all__ = [
    "bernoulli",
    "categorical",
    "choice",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "normal",
    "normal_like",
    "permutation",
    "randint",
    "split",
    "truncated_normal",
    "uniform",
    "uniform_like",
]
