"""Operations on the shape of the batch: inverses, and torch's own on each leaf."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import assume, given

from property_tests import model as m
from tdfunc.testing import (
    assert_equal,
    assert_pure,
    assert_valid,
    batch_sizes,
    tensordicts,
)

if TYPE_CHECKING:
    import torch

    from tdfunc import TensorDict


@st.composite
def factored(draw: st.DrawFn, size: torch.Size) -> list[int]:
    """Draw a shape with as many rows as `size`: dims merged, split, and 1 between."""
    rows = prod(size)
    if not rows:
        shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
        shape[draw(st.integers(0, len(shape) - 1))] = 0
        return shape
    shape: list[int] = []
    while rows > 1:
        divisors = [n for n in range(2, rows + 1) if rows % n == 0]
        shape.append(draw(st.sampled_from(divisors)))
        rows //= shape[-1]
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return shape


def reshaped(td: TensorDict, fn: Any, new: list[int] | torch.Size) -> m.Model:
    """Return the model of a tree whose root batch dims were replaced by others."""
    dims = td.batch_dims
    return m.mapped(m.read(td), fn, lambda size: (*new, *size[dims:]))


def shuffled(draw: Any, dims: int) -> list[int]:
    """Draw an order of dims, some of them counted from behind."""
    order = draw(st.permutations(range(dims)))
    signs = draw(st.lists(st.booleans(), min_size=dims, max_size=dims))
    return [i - dims if sign else i for i, sign in zip(order, signs, strict=True)]


@given(tensordicts(), st.data())
def test_reshape_reshapes_each_leaf(td: TensorDict, data: st.DataObject) -> None:
    dims = td.batch_dims
    shape = data.draw(factored(td.batch_size))
    given_shape = list(shape)
    rest = prod([n for n in shape if n])
    if 0 not in shape and rest and shape and data.draw(st.booleans(), label="-1"):
        given_shape[data.draw(st.integers(0, len(shape) - 1), label="where")] = -1
    expected = reshaped(td, lambda x: x.reshape((*shape, *x.shape[dims:])), shape)

    found = assert_pure(td.reshape, given_shape)

    assert_valid(found)
    m.assert_is(expected, found)
    assert_equal(found, td.reshape(*given_shape))


@given(tensordicts(), st.data())
def test_reshape_undoes_reshape(td: TensorDict, data: st.DataObject) -> None:
    shape = data.draw(factored(td.batch_size))

    again = td.reshape(shape).reshape(td.batch_size)

    assert_equal(td, again, key_order=True)


@given(tensordicts(batch_sizes(min_dims=1)), st.data())
def test_unflatten_undoes_flatten(td: TensorDict, data: st.DataObject) -> None:
    dims = td.batch_dims
    first = data.draw(st.integers(0, dims - 1))
    last = data.draw(st.integers(first, dims - 1))
    sizes = td.batch_size[first : last + 1]
    new = [*td.batch_size[:first], prod(sizes), *td.batch_size[last + 1 :]]

    found = assert_pure(td.flatten, first, last - dims)

    assert_valid(found)
    m.assert_is(reshaped(td, lambda x: x.flatten(first, last), new), found)
    again = assert_pure(found.unflatten, first, sizes)
    assert_valid(again)
    assert_equal(td, again, key_order=True)
    assert_equal(td.contiguous().view(new), found)


@given(tensordicts(batch_sizes(min_dims=1)), st.data())
def test_moving_a_dim_back_is_identity(td: TensorDict, data: st.DataObject) -> None:
    dims = td.batch_dims
    count = data.draw(st.integers(1, dims))
    source = data.draw(st.permutations(range(dims)))[:count]
    places = data.draw(st.permutations(range(dims)))[:count]

    found = assert_pure(td.movedim, source, places)

    assert_valid(found)
    again = found.movedim(places, source)
    assert_equal(td, again, key_order=True, names=True)


@given(tensordicts())
def test_atleast_adds_dims_of_size_1_only(td: TensorDict) -> None:
    for least, found in enumerate(
        (td.atleast_1d(), td.atleast_2d(), td.atleast_3d()), start=1
    ):
        assert_valid(found)
        assert found.batch_dims == max(least, td.batch_dims)
        assert_equal(td, found.reshape(td.batch_size), key_order=True)


@given(tensordicts(), st.data())
def test_permute_permutes_each_leaf(td: TensorDict, data: st.DataObject) -> None:
    dims = td.batch_dims
    order = shuffled(data.draw, dims)
    plain = [i % dims for i in order]
    new = [td.batch_size[i] for i in plain]
    expected = reshaped(td, lambda x: x.permute((*plain, *range(dims, x.dim()))), new)

    found = assert_pure(td.permute, order)

    assert_valid(found)
    m.assert_is(expected, found)
    names = td.names or (None,) * dims
    assert [names[i] for i in plain] == list(found.names or [None] * dims)


@given(tensordicts(), st.data())
def test_permute_by_the_inverse_is_identity(
    td: TensorDict, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(td.batch_dims)))
    inverse = [order.index(i) for i in range(td.batch_dims)]

    again = td.permute(*order).permute(*inverse) if order else td.permute()

    assert_equal(td, again, key_order=True, names=True)


@given(tensordicts(), st.data())
def test_permutations_compose(td: TensorDict, data: st.DataObject) -> None:
    one = data.draw(st.permutations(range(td.batch_dims)))
    two = data.draw(st.permutations(range(td.batch_dims)))

    both = td.permute([one[i] for i in two])

    assert_equal(both, td.permute(one).permute(two), names=True)


@given(tensordicts(batch_sizes(min_dims=1)), st.data())
def test_transpose_exchanges_two_dims_and_undoes_itself(
    td: TensorDict, data: st.DataObject
) -> None:
    dims = td.batch_dims
    i, j = (data.draw(st.integers(-dims, dims - 1)) for _ in range(2))
    order = list(range(dims))
    order[i], order[j] = order[j], order[i]

    found = assert_pure(td.transpose, i, j)

    assert_valid(found)
    assert_equal(td.permute(order), found, names=True)
    assert_equal(td, found.transpose(i, j), key_order=True, names=True)
    at = (i % dims, j % dims)
    new = [td.batch_size[k] for k in order]
    m.assert_is(reshaped(td, lambda x: x.transpose(*at), new), found)


@given(tensordicts(), st.data())
def test_squeeze_undoes_unsqueeze(td: TensorDict, data: st.DataObject) -> None:
    dims = td.batch_dims
    dim = data.draw(st.integers(-dims - 1, dims))
    at = dim % (dims + 1)
    new = [*td.batch_size[:at], 1, *td.batch_size[at:]]
    expected = reshaped(td, lambda x: x.unsqueeze(at), new)

    found = assert_pure(td.unsqueeze, dim)

    assert_valid(found)
    m.assert_is(expected, found)
    assert_equal(td, found.squeeze(dim), key_order=True, names=True)


@given(tensordicts(), st.data())
def test_squeeze_drops_dims_of_size_1_only(td: TensorDict, data: st.DataObject) -> None:
    dims = td.batch_dims
    dim = data.draw(st.none() | st.integers(-dims, dims - 1) if dims else st.none())
    gone = range(dims) if dim is None else [dim % dims]
    kept = [i for i in range(dims) if i not in gone or td.batch_size[i] != 1]
    new = [td.batch_size[i] for i in kept]
    expected = reshaped(td, lambda x: x.reshape((*new, *x.shape[dims:])), new)

    found = assert_pure(td.squeeze, dim)

    assert_valid(found)
    m.assert_is(expected, found)
    names = td.names or (None,) * dims
    assert [names[i] for i in kept] == list(found.names or [None] * len(kept))


@given(tensordicts(), st.data())
def test_expand_repeats_rows(td: TensorDict, data: st.DataObject) -> None:
    """New dims stand in front, dims of size 1 repeat, and -1 keeps a dim."""
    size = td.batch_size
    front = data.draw(st.lists(st.integers(0, 3), max_size=2))
    back = [data.draw(st.integers(0, 3)) if n == 1 else n for n in size]
    keep = [data.draw(st.booleans(), label="-1") for _ in back]
    back = [n if k else b for n, b, k in zip(size, back, keep, strict=True)]
    asked = [-1 if k else n for n, k in zip(back, keep, strict=True)]
    new = [*front, *back]
    dims = len(size)
    expected = reshaped(td, lambda x: x.expand((*new, *x.shape[dims:])), new)

    found = assert_pure(td.expand, [*front, *asked])

    assert_valid(found)
    m.assert_is(expected, found)


@given(tensordicts(), st.lists(st.integers(1, 3), max_size=2))
def test_any_row_of_an_expanded_tree_is_the_tree(
    td: TensorDict, front: list[int]
) -> None:
    found = td.expand(*front, *td.batch_size) if front or td.batch_dims else td

    assert_equal(td, found[(0,) * len(front)], key_order=True, names=True)


@given(tensordicts(), st.data())
def test_other_batch_size_reads_the_same_leaves(
    td: TensorDict, data: st.DataObject
) -> None:
    """Any common prefix is a batch size, and going back gives the tree."""
    leaves = [x for _, x, _ in m.leaves(m.read(td))]
    longest = min([x.dim() for x in leaves], default=td.batch_dims)
    shared = [
        n for n in range(longest + 1) if len({tuple(x.shape[:n]) for x in leaves}) <= 1
    ]
    dims = data.draw(st.sampled_from(shared))
    size = leaves[0].shape[:dims] if leaves else td.batch_size[:dims]

    found = assert_pure(td.with_batch_size, size)

    assert_valid(found)
    assert size == found.batch_size
    assert td.keys(True) == found.keys(True)
    for path, x, _ in m.leaves(m.read(td)):
        assert found[path] is x
    # Nested nodes keep what batch dims they have where the parent leaves them.
    for path, node, _ in m.walk(m.settled(m.read(td))):
        if (
            isinstance(node, m.Model)
            and node.has_leaves()
            and node.size != td.batch_size
        ):
            most = max(len(node.size), dims)
            assert most == found[path].batch_dims
    again = found.with_batch_size(td.batch_size)
    assert_valid(again)
    assert td.batch_size == again.batch_size


@given(tensordicts(batch_sizes(min_dims=1, min_size=1)), st.data())
def test_size_length_and_count_agree(td: TensorDict, data: st.DataObject) -> None:
    size = td.batch_size
    dim = data.draw(st.integers(-len(size), len(size) - 1))

    assert size == td.shape == td.size()
    assert len(size) == td.ndim == td.dim() == td.batch_dims
    assert size[dim] == td.size(dim)
    assert size[0] == len(td)
    assert list(accumulate(size, lambda x, y: x * y))[-1] == td.numel()
    assume(size[0] > 0)
    assert size[1:] == td[0].batch_size
