"""Packing and raveling: the tree comes back, and columns do not depend on order."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import assume, given

import tdfunc
from property_tests import model as m
from tdfunc import TensorDict
from tdfunc.testing import assert_equal, assert_valid, tensordicts


@given(tensordicts(dtypes=[torch.float32], statics=False), st.data())
def test_pack_then_unpack_is_identity(td: TensorDict, data: st.DataObject) -> None:
    dim = data.draw(st.integers(-td.batch_dims - 1, td.batch_dims))

    flat, layout = td.pack(dim)
    out = layout.unpack(flat)

    assert_valid(out)
    assert_equal(out, td, key_order=True)
    assert flat.numel() == sum(x.numel() for _, x, _ in m.leaves(m.read(td)))


@given(tensordicts(dtypes=[torch.float32], statics=False))
def test_columns_do_not_depend_on_the_order_of_keys(td: TensorDict) -> None:
    model = m.read(td)
    turned = m.build(m.Model(model.size, dict(reversed(model.entries.items()))))

    flat, layout = td.pack()
    again, same = turned.pack()

    assert layout == same
    assert hash(layout) == hash(same)
    assert torch.equal(flat.nan_to_num(7), again.nan_to_num(7))


@given(tensordicts(dtypes=[torch.float32], statics=False), st.data())
def test_packing_commutes_with_rows(td: TensorDict, data: st.DataObject) -> None:
    assume(td.batch_dims and td.batch_size[0])
    row = data.draw(st.integers(0, td.batch_size[0] - 1))

    flat, layout = td.pack()

    assert_equal(layout.unpack(flat[row]), td[row])


@given(tensordicts())
def test_ravel_then_unravel_is_identity(td: TensorDict) -> None:
    flat, unravel = tdfunc.ravel(td)
    assume(all(x.dtype == flat.dtype for _, x, _ in m.leaves(m.read(td))))

    assert_equal(unravel(flat), td, key_order=True, names=True)
