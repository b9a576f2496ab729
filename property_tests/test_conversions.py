"""Conversions undo each other: `from_x(to_x(tree))` is the tree."""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.testing import assert_equal, assert_valid, tensordicts, tensors


class Pair(NamedTuple):
    a: Any
    b: Any


REAL = [torch.float32, torch.int64, torch.bool, torch.complex64]
NODES = {"surplus": False, "statics": False, "min_leaves": 1, "names": False}

LEAVES = st.one_of(
    tensors(()), st.none(), st.text(max_size=2), st.integers(), st.booleans()
)
PYTREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=12),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Pair, inner, inner),
        st.dictionaries(
            st.one_of(st.integers(0, 3), st.sampled_from(["0", "1", "", "_", "0_"])),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=15,
)


def same(a: Any, b: Any) -> bool:
    """Return whether two pytrees are the same to types, order and identity."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b


@given(PYTREES)
def test_to_pytree_undoes_from_pytree(pytree: Any) -> None:
    assume(isinstance(pytree, (list, tuple, dict)))

    td, treedef = tdfunc.from_pytree(pytree)

    assert_valid(td)
    assert same(tdfunc.to_pytree(td, treedef), pytree)
    assert tdfunc.from_pytree(pytree)[1] == treedef


@given(tensordicts(dtypes=REAL, **NODES))
def test_from_numpy_undoes_to_numpy(td: TensorDict) -> None:
    back = tdfunc.from_numpy(td.to_numpy(), batch_size=td.batch_size)

    assert_equal(back, td, key_order=True)


@given(tensordicts(dtypes=REAL, **NODES))
def test_from_struct_array_undoes_to_struct_array(td: TensorDict) -> None:
    back = tdfunc.from_struct_array(td.to_struct_array())

    assert_equal(back, td, key_order=True)


@given(tensordicts(**NODES))
def test_from_dlpack_undoes_to_dlpack(td: TensorDict) -> None:
    back = tdfunc.from_dlpack(td.to_dlpack(), batch_size=td.batch_size)

    assert_equal(back, td, key_order=True)


@given(tensordicts(), st.integers(1, 3))
def test_from_list_is_stack(td: TensorDict, count: int) -> None:
    assert_equal(tdfunc.from_list([td] * count), tdfunc.stack([td] * count), names=True)


@given(tensordicts(statics=st.sampled_from(["text", None, NonTensorData([1, "x"])])))
def test_interop_goes_there_and_back(td: TensorDict) -> None:
    pytest.importorskip("tensordict")
    from tdfunc import interop

    back = interop.from_tensordict(interop.to_tensordict(td))

    assert_equal(back, td, key_order=True, names=True)


@given(tensordicts(statics=False))
def test_from_schema_has_the_shapes_of_the_tree(td: TensorDict) -> None:
    nb = td.batch_dims
    leaves = {key: td[key] for key in td.keys(include_nested=True, leaves_only=True)}
    shapes = {key: (x.shape[nb:], x.dtype) for key, x in leaves.items()}

    out = tdfunc.from_schema(shapes, batch_size=td.batch_size)

    for key, x in leaves.items():
        assert (out[key].shape, out[key].dtype) == (x.shape, x.dtype)
        assert not out[key].any()
