"""vmap is a loop over rows, and its body sees the batch without the mapped dim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import torch
from hypothesis import assume, given

import tdfunc
from property_tests import model as m
from tdfunc import TensorDict
from tdfunc.testing import assert_equal, assert_pure, assert_valid, tensordicts

if TYPE_CHECKING:
    from collections.abc import Callable

# Square batches, with features as long as the batch, are where shapes mislead.
SIZES = st.lists(st.sampled_from([2, 3]), min_size=1, max_size=3).map(torch.Size)
SQUARES = st.sampled_from([(2, 2), (3, 3), (2, 2, 2)]).map(torch.Size)


def first_leaf(td: TensorDict) -> torch.Tensor:
    return td[td.keys(True, True)[0]]


BODIES: dict[str, Callable[[TensorDict], TensorDict]] = {
    "identity": lambda t: t,
    "add": lambda t: t + t,
    "compare": lambda t: t == t,  # noqa: PLR0124
    "set": lambda t: t.set("new", first_leaf(t).clone()),
    "set nested": lambda t: t.set(("new", "nested"), {"x": first_leaf(t)}),
    "drop": lambda t: t.set("zz", first_leaf(t)).select("zz"),
    "new dim": lambda t: t.unsqueeze(0),
    "new last dim": lambda t: t.unsqueeze(-1),
    "stack": lambda t: tdfunc.stack([t, t]),
    "rows": lambda t: t[..., None],
    "apply": lambda t: t.apply(lambda x: x.unsqueeze(-1)),
    "flatten": lambda t: t.reshape(-1),
    "static": lambda t: t.set("text", "value"),
}
bodies = st.sampled_from(m.named(BODIES))


def trees(size: Any = SIZES, **flags: Any) -> st.SearchStrategy[TensorDict]:
    return tensordicts(size, min_leaves=1, max_leaves=3, **flags)


def seeing(body: Any, size: Any) -> Callable[[TensorDict], TensorDict]:
    """Return the body that first asserts what batch size it sees."""

    def call(t: TensorDict) -> TensorDict:
        assert torch.Size(size) == t.batch_size
        assert_valid(t)
        return body(t)

    return call


def without(size: torch.Size, dim: int) -> tuple[int, ...]:
    return (*size[:dim], *size[dim + 1 :])


@given(trees(SIZES | SQUARES), bodies, st.data())
def test_vmap_is_a_loop_over_rows(
    td: TensorDict, body: Any, data: st.DataObject
) -> None:
    dim = data.draw(st.integers(0, td.batch_dims - 1), label="in_dims")
    rows = [body(row) for row in td.unbind(dim)]
    out = data.draw(st.integers(0, rows[0].batch_dims), label="out_dims")
    mapped = torch.vmap(seeing(body, without(td.batch_size, dim)), dim, out)

    found = assert_pure(mapped, td)

    assert_valid(found)
    assert_equal(tdfunc.stack(rows, out), found, key_order=True)


@given(trees(SIZES, names=True))
def test_body_sees_the_names_of_its_dims(td: TensorDict) -> None:
    """Mapping the first dim takes its name away and brings it back."""
    given_names = td.names or (None,) * td.batch_dims

    def call(t: TensorDict) -> TensorDict:
        assert list(given_names[1:]) == list(t.names or given_names[1:])
        return t

    found = torch.vmap(call)(td)

    assert td.names == found.names


@given(trees(SIZES), bodies, st.integers(1, 3))
def test_chunks_make_no_difference(td: TensorDict, body: Any, chunk: int) -> None:
    whole = torch.vmap(body)(td)

    assert_equal(whole, torch.vmap(body, chunk_size=chunk)(td), key_order=True)


@given(trees(SIZES.filter(lambda s: len(s) > 1) | SQUARES), bodies, st.data())
def test_nested_vmap_is_two_loops(
    td: TensorDict, body: Any, data: st.DataObject
) -> None:
    outer = data.draw(st.integers(0, td.batch_dims - 1), label="outer")
    inner = data.draw(st.integers(0, td.batch_dims - 2), label="inner")
    left = without(torch.Size(without(td.batch_size, outer)), inner)
    rows = [
        tdfunc.stack([body(cell) for cell in row.unbind(inner)])
        for row in td.unbind(outer)
    ]

    found = torch.vmap(torch.vmap(seeing(body, left), inner), outer)(td)

    assert_valid(found)
    assert_equal(tdfunc.stack(rows), found, key_order=True)


@given(trees(SQUARES), trees(SQUARES), st.data())
def test_several_trees_are_mapped_together(
    one: TensorDict, two: TensorDict, data: st.DataObject
) -> None:
    """Each over its own dim, or not at all."""
    i = data.draw(st.integers(0, one.batch_dims - 1))
    fitting = [k for k, n in enumerate(two.batch_size) if n == one.batch_size[i]]
    j = data.draw(st.sampled_from([None, *fitting]))
    both = lambda a, b: TensorDict({"a": first_leaf(a), "b": first_leaf(b)})  # noqa: E731
    rows = one.unbind(i)
    others = [two] * len(rows) if j is None else two.unbind(j)

    found = torch.vmap(both, in_dims=(i, j))(one, two)

    expected = [both(a, b) for a, b in zip(rows, others, strict=True)]
    assert_valid(found)
    assert_equal(tdfunc.stack(expected).with_batch_size(found.batch_size), found)


@given(trees(SIZES | SQUARES), st.data())
def test_dims_by_leaf_are_a_loop(td: TensorDict, data: st.DataObject) -> None:
    """`tdfunc.in_dims` says which batch dim each leaf is mapped over, if any."""
    model, size = m.read(td), td.batch_size
    dim = data.draw(st.integers(0, len(size) - 1), label="dim")
    others = [None, *[i for i, n in enumerate(size) if n == size[dim]]]
    paths = [path for path, *_ in m.leaves(model)]
    overrides = data.draw(
        st.dictionaries(st.sampled_from(paths), st.sampled_from(others)),
        label="overrides",
    )
    dims = {path: overrides.get(path, dim) for path in paths}
    assume(any(d is not None for d in dims.values()))

    def call(t: TensorDict) -> TensorDict:
        assert_valid(t)
        return t + t

    tree = assert_pure(tdfunc.in_dims, td, dim, overrides)
    found = assert_pure(torch.vmap(call, (tree,)), td)

    assert_valid(found)
    for path, x, _ in m.leaves(model):
        d = dims[path]
        rows = [x if d is None else x.select(d, i) for i in range(size[dim])]
        assert m.same_tensor(torch.stack([row + row for row in rows]), found[path])


@given(trees(SIZES), st.data())
def test_dims_count_batch_dims(td: TensorDict, data: st.DataObject) -> None:
    """Negative dims and dim names address batch dims, whatever features follow."""
    dims = td.batch_dims
    dim = data.draw(st.integers(0, dims - 1))
    named = td.with_names([f"dim {i}" for i in range(dims)])

    for tree in (
        tdfunc.in_dims(td, dim),
        tdfunc.in_dims(td, dim - dims),
        tdfunc.in_dims(named, f"dim {dim}"),
    ):
        assert all(tree[path] == dim for path in td.keys(True, True))
        assert td.keys(True) == tree.keys(True)
    nothing = tdfunc.in_dims(td, None)
    assert all(nothing[path] is None for path in td.keys(True, True))
