"""Reductions are torch's own on each leaf, over batch dims or feature dims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from property_tests import model as m
from tdfunc.testing import assert_pure, assert_valid, batch_sizes, tensordicts, tensors

if TYPE_CHECKING:
    from tdfunc import TensorDict

each_reduction = pytest.mark.parametrize(
    "fn", [torch.sum, torch.mean, torch.any, torch.all], ids=lambda fn: fn.__name__
)
each_sum = pytest.mark.parametrize(
    "fn", [torch.sum, torch.mean], ids=lambda fn: fn.__name__
)


def numbers(size: torch.Size) -> st.SearchStrategy[torch.Tensor]:
    return tensors(size, dtypes=[torch.float32, torch.float64, torch.complex64])


def over(fn: Any, x: torch.Tensor, dims: list[int], *, keepdim: bool) -> torch.Tensor:
    """Return a leaf reduced over dims; over no dim it stays (torch takes [] as all)."""
    if dims:
        return fn(x, dims, keepdim=keepdim)
    return x.bool() if fn in {torch.any, torch.all} else x.clone()


@each_reduction
@given(
    td=tensordicts(batch_sizes(min_dims=1), leaves=numbers),
    keepdim=st.booleans(),
    data=st.data(),
)
def test_batch_dims_reduce_each_leaf(
    fn: Any, td: TensorDict, data: st.DataObject, *, keepdim: bool
) -> None:
    n = td.batch_dims
    dims = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    given_dims = [i - n if data.draw(st.booleans()) else i for i in dims]
    one = len(dims) == 1 and data.draw(st.booleans())
    kept = [i for i in range(n) if i not in dims]
    left = [1 if i in dims else k for i, k in enumerate(td.batch_size)]
    left = left if keepdim else [td.batch_size[i] for i in kept]
    expected = m.mapped(
        m.read(td),
        lambda x: over(fn, x, dims, keepdim=keepdim),
        lambda size: (*left, *size[n:]),
    )

    dim = given_dims[0] if one else given_dims
    found = assert_pure(getattr(td, fn.__name__), dim, keepdim)

    assert_valid(found)
    m.assert_is(expected, found)
    if td.names and not keepdim:
        names = [td.names[i] for i in kept]
        assert names == list(found.names or [None] * len(kept))


@each_reduction
@given(td=tensordicts(leaves=numbers), keepdim=st.booleans())
def test_feature_dims_reduce_each_leaf(
    fn: Any, td: TensorDict, *, keepdim: bool
) -> None:
    """The features of a leaf are what follows the batch dims of its own node."""
    found = assert_pure(getattr(td, fn.__name__), "feature", keepdim)

    assert_valid(found)
    assert td.batch_size == found.batch_size
    for path, x, node in m.leaves(m.read(td)):
        dims = list(range(len(node.size), x.dim()))
        assert m.same_tensor(over(fn, x, dims, keepdim=keepdim), found[path])
        if isinstance(node, m.Model):
            assert node.size == (found[path[:-1]] if path[:-1] else found).batch_size


@each_sum
@given(td=tensordicts(leaves=numbers))
def test_no_dim_reduces_each_leaf_to_a_scalar(fn: Any, td: TensorDict) -> None:
    expected = m.mapped(m.read(td), fn, lambda _: ())

    found = assert_pure(getattr(td, fn.__name__))

    assert_valid(found)
    m.assert_is(expected, found)


@pytest.mark.parametrize("fn", [any, all], ids=["any", "all"])
@given(td=tensordicts(dtypes=[torch.bool, torch.float32, torch.int64]))
def test_any_and_all_fold_all_elements(fn: Any, td: TensorDict) -> None:
    """Those of an empty tree as those of an empty list."""
    values = [v for _, x, _ in m.leaves(m.read(td)) for v in x.flatten().tolist()]

    found = assert_pure(getattr(td, fn.__name__))

    assert m.same_tensor(torch.tensor(fn(values)), found)


@given(tensordicts(leaves=lambda s: tensors(s, dtypes=[torch.int64]), min_leaves=1))
def test_folded_sum_is_the_sum_of_all_elements(td: TensorDict) -> None:
    """Exact, on integers."""
    leaves = [x for _, x, _ in m.leaves(m.read(td))]
    total = 0
    for x in leaves:
        for value in x.flatten().tolist():
            total += value
    wrapped = (total + 2**63) % 2**64 - 2**63

    assert wrapped == assert_pure(td.sum, reduce=True).item()


@given(
    tensordicts(
        leaves=lambda s: tensors(s, dtypes=[torch.float64], special=False), min_leaves=1
    )
)
def test_folded_mean_is_the_mean_of_all_elements(td: TensorDict) -> None:
    values = [v for _, x, _ in m.leaves(m.read(td)) for v in x.flatten().tolist()]

    found = assert_pure(td.mean, reduce=True).item()

    if values:
        assert pytest.approx(sum(values) / len(values)) == found
    else:
        assert found != found  # noqa: PLR0124 - NaN, as torch.mean of nothing


@given(
    tensordicts(
        leaves=lambda s: tensors(s, dtypes=[torch.float64], special=False),
        surplus=False,
        min_leaves=1,
    )
)
def test_feature_sums_fold_to_one_tensor_of_the_batch_shape(td: TensorDict) -> None:
    """What one writes as the loss of each row."""
    dims = td.batch_dims
    expected = torch.zeros(td.batch_size, dtype=torch.float64)
    for _, x, _ in m.leaves(m.read(td)):
        rest = x.shape[dims:].numel()
        expected = expected + x.reshape((*td.batch_size, rest)).sum(-1)

    found = assert_pure(td.sum, "feature", reduce=True)

    assert expected.shape == found.shape
    assert torch.allclose(expected, found)
