"""Functions of elements, of several trees and along a dim are torch's on leaves."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given

import tdfunc
from property_tests import model as m
from tdfunc import TensorDict
from tdfunc._ops import unary
from tdfunc.testing import assert_pure, assert_valid, batch_sizes, tensordicts, tensors


def floats(size: torch.Size) -> st.SearchStrategy[torch.Tensor]:
    return tensors(size, dtypes=[torch.float32, torch.float64])


trees = tensordicts(batch_sizes(min_dims=1), leaves=floats)
NAMES = sorted({*unary.__all__} - {"bitwise_not", "imag", "softplus"})


@given(trees, st.sampled_from(NAMES))
def test_functions_of_every_element_act_on_leaves(td: TensorDict, name: str) -> None:
    found = assert_pure(getattr(tdfunc, name), td)

    assert_valid(found)
    m.assert_is(m.mapped(m.read(td), getattr(torch, name), lambda size: size), found)


@given(trees)
def test_clamp_is_the_lesser_of_the_greater(td: TensorDict) -> None:
    assert td.clamp(-1, 1).equal(td.maximum(-1).minimum(1), equal_nan=True)


@given(trees, st.data())
def test_topk_of_all_is_the_sorted_tree(td: TensorDict, data: st.DataObject) -> None:
    dim = data.draw(st.integers(-td.batch_dims, td.batch_dims - 1))

    found: Any = td.topk(td.batch_size[dim], dim)

    assert found.values.equal(td.sort(dim, descending=True).values, equal_nan=True)


@given(trees, st.data())
def test_a_maximum_is_the_last_running_maximum(
    td: TensorDict, data: st.DataObject
) -> None:
    dim = data.draw(st.integers(0, td.batch_dims - 1))
    if td.batch_size[dim]:
        last = td.cummax(dim).values[(slice(None),) * dim + (-1,)]
        assert td.amax(dim).equal(last, equal_nan=True)
