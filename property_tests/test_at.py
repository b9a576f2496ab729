"""Writing rows, read back: what is written is there, and nothing else changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import torch
from hypothesis import assume, given

import tdfunc
from property_tests import model as m
from tdfunc.testing import (
    assert_equal,
    assert_pure,
    assert_valid,
    indices,
    tensordicts,
)

if TYPE_CHECKING:
    from tdfunc import TensorDict


@st.composite
def indexed(draw: st.DrawFn, **flags: bool) -> tuple[TensorDict, Any]:
    td = draw(tensordicts(max_leaves=3, dtypes=[torch.float64, torch.int64]))
    return td, draw(indices(td.batch_size, **flags))


@given(indexed())
def test_writing_back_what_was_read_is_the_identity(case: tuple[Any, Any]) -> None:
    td, index = case
    out = assert_pure(lambda td: td.at[index].set(td[index]), td)

    assert_valid(out)
    assert_equal(out, td)
    assert_equal(td.at[index].get(), td[index])
    assert_equal(td.at[index].get(fill_value=1), td[index])


@given(indexed())
def test_a_number_is_read_back_and_the_other_rows_stay(case: tuple[Any, Any]) -> None:
    td, index = case
    out = assert_pure(lambda td: td.at[index].set(3), td)

    assert_valid(out)
    assert_equal(out[index], td[index].apply(lambda x: torch.full_like(x, 3)))
    mask = torch.zeros(td.batch_size, dtype=torch.bool)
    mask[index] = True
    for path, x, _ in m.leaves(m.read(td)):
        wide = mask.reshape((*mask.shape, *(1,) * (x.dim() - mask.dim())))
        assert m.same_tensor(out[path], torch.where(wide, 3, x).to(x.dtype))


@given(indexed())
def test_adding_counts_how_often_a_row_is_indexed(case: tuple[Any, Any]) -> None:
    td, index = case
    zeros = td.apply(torch.zeros_like)
    out = assert_pure(lambda td: td.at[index].add(1), zeros)

    rows = torch.arange(td.numel()).reshape(td.batch_size)
    picked = rows[index].reshape(-1)
    times = torch.bincount(picked, minlength=td.numel()).reshape(td.batch_size)
    if not td.numel():
        times = torch.zeros(td.batch_size, dtype=torch.long)
    assert_equal(out, zeros + times)


@given(indexed(masks=False), st.sampled_from(["set", "add", "max"]))
def test_transforms_write_what_eager_code_writes(
    case: tuple[Any, Any], name: str
) -> None:
    """In each row of vmap, which has no rule for masks."""
    td, index = case
    assume(td.keys(True, True))
    twice = tdfunc.stack([td, td * 2])

    out = torch.vmap(lambda t: getattr(t.at[index], name)(3))(twice)

    for i in range(2):
        assert_equal(out[i], getattr(twice[i].at[index], name)(3))
