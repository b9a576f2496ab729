"""Laws of lazy stacks: alike members make what the dense tree makes."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import optree
import pytest
import torch
from hypothesis import assume, given
from torch.utils import _pytree as torch_pytree

import tdfunc
from tdfunc.errors import OperandError
from tdfunc.testing import (
    assert_equal,
    assert_valid,
    batch_sizes,
    indices,
    tensordicts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

REAL = [torch.float32, torch.float64, torch.int64]


@st.composite
def pairs(draw: st.DrawFn, dims: int = 1) -> tuple[Any, Any, int]:
    """Draw a dense tree, the lazy stack of its rows along a dim, and that dim."""
    sizes = batch_sizes(min_dims=dims, min_size=1)
    dense = draw(tensordicts(sizes, dtypes=REAL, max_leaves=3))
    dim = draw(st.integers(0, dense.batch_dims - 1))
    return dense, dense.to_lazystack(dim), dim


@given(pair=pairs())
def test_rows_and_back(pair: Any) -> None:
    dense, lazy, dim = pair
    assert_valid(lazy)
    assert lazy.batch_size == dense.batch_size
    assert lazy.stack_dim == dim
    assert_equal(lazy.densify(), dense)
    assert set(lazy.keys(True)) == set(dense.keys(True))
    again = tdfunc.lazy_stack(lazy.tensordicts, dim)
    assert again.tensordicts == lazy.tensordicts
    for kept, row in zip(again.unbind(dim), lazy.tensordicts, strict=True):
        assert kept is row


@given(pair=pairs(), data=st.data())
def test_index_law(pair: Any, data: st.DataObject) -> None:
    dense, lazy, _ = pair
    index = data.draw(indices(dense.batch_size))
    expected = dense[index]
    try:
        got = lazy[index]
    except OperandError as error:
        assert "densify" in str(error)  # noqa: PT017
        return
    assert got.batch_size == expected.batch_size
    assert_valid(got)
    if type(got).is_lazy and not got.tensordicts:
        return
    assert_equal(got.densify(), expected)


@given(pair=pairs(), data=st.data())
def test_written_rows(pair: Any, data: st.DataObject) -> None:
    dense, lazy, _ = pair
    index = data.draw(indices(dense.batch_size))
    try:
        got = lazy.at[index].set(1)
    except OperandError as error:
        assert "densify" in str(error)  # noqa: PT017
        return
    assert_equal(got.densify(), dense.at[index].set(1))


OPERATIONS: dict[str, Callable[[Any, int], Any]] = {
    "add": lambda td, _: td + td,
    "mul": lambda td, _: td * 2,
    "eq": lambda td, _: td == td * 1,
    "rows": lambda td, _: td + torch.ones(td.batch_size),
    "clamp": lambda td, _: td.clamp(-1, 1),
    "where": lambda td, _: td.where(td > 0, 0),
    "to": lambda td, _: td.to(torch.float64),
    "zeros_like": lambda td, _: td.zeros_like(),
    "sum": lambda td, dim: td.sum(dim),
    "amax": lambda td, dim: td.amax(dim, keepdim=True),
    "sum feature": lambda td, _: td.sum("feature"),
    "cumsum": lambda td, dim: td.cumsum(dim),
    "sort": lambda td, dim: td.sort(dim).values,
    "unsqueeze": lambda td, dim: td.unsqueeze(dim),
    "permute": lambda td, _: td.permute(*reversed(range(td.batch_dims))),
    "expand": lambda td, _: td.expand(2, *td.batch_size),
    "reshape": lambda td, _: td.reshape(1, *td.batch_size, 1),
    "flatten": lambda td, _: td.flatten(),
    "flip": lambda td, dim: td.flip(dim),
    "roll": lambda td, dim: td.roll(1, dim),
    "tile": lambda td, _: td.tile(2),
    "pad": lambda td, _: td.pad((1, 1)),
    "repeat_interleave": lambda td, dim: td.repeat_interleave(2, dim),
    "split": lambda td, dim: td.split(1, dim)[-1],
    "stack": lambda td, _: tdfunc.stack([td, td]),
    "cat": lambda td, dim: tdfunc.cat([td, td], dim),
    "set": lambda td, _: td.set("new", torch.ones(td.batch_size)),
    "select": lambda td, _: td.select(*td.keys(True)[:2]),
    "exclude": lambda td, _: td.exclude(*td.keys(True)[:2]),
    "flatten_keys": lambda td, _: td.flatten_keys("/"),
    "apply": lambda td, _: td.apply(lambda x: x * 3),
}


@pytest.mark.parametrize("name", OPERATIONS)
@given(pair=pairs(), data=st.data())
def test_operations_are_those_of_the_dense_tree(
    name: str, pair: Any, data: st.DataObject
) -> None:
    dense, lazy, _ = pair
    dim = data.draw(st.integers(0, dense.batch_dims - 1))
    call = OPERATIONS[name]
    try:
        expected = call(dense, dim)
    except Exception:  # noqa: BLE001 - torch's, for a dtype
        assume(False)
        return
    try:
        got = call(lazy, dim)
    except OperandError as error:
        assert "densify" in str(error)  # noqa: PT017
        return
    assert_valid(got)
    assert got.batch_size == expected.batch_size
    assert_equal(got.densify(), expected, rtol=1e-5)


@given(pair=pairs(dims=2), data=st.data())
def test_vmap_over_any_other_dim(pair: Any, data: st.DataObject) -> None:
    dense, lazy, dim = pair
    mapped = data.draw(st.integers(0, dense.batch_dims - 1))
    assume(mapped != dim and dense._schema.n)
    got = torch.vmap(lambda t: t * 2, in_dims=mapped)(lazy)
    assert_equal(got.densify(), (dense * 2).movedim(mapped, 0))


@given(td=tensordicts(batch_sizes(min_dims=1), lazy=True))
def test_pytree_laws(td: Any) -> None:
    leaves, spec = torch_pytree.tree_flatten(td)
    back = torch_pytree.tree_unflatten(leaves, spec)
    assert_equal(back, td)
    assert_valid(back)
    others = torch_pytree.tree_leaves(back)
    assert all(x is y for x, y in zip(leaves, others, strict=True))
    leaves, spec = optree.tree_flatten(td)
    again: Any = optree.tree_unflatten(spec, leaves)
    assert_equal(again, td)
    if leaves:
        grown = torch_pytree.tree_map(lambda x: x[None], td)
        assert grown.batch_size == (1, *td.batch_size)


@given(td=tensordicts(batch_sizes(min_dims=1), lazy=True))
def test_copies_and_texts(td: Any) -> None:
    assert_valid(td)
    assert_equal(pickle.loads(pickle.dumps(td)), td)
    for text in (repr(td), td.to_tree_string(), td._repr_html_()):
        assert "members" not in text
    assert_equal(td.clone(), td)
