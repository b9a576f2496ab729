"""The batch size is a true common prefix of the leaves, whatever made the leaves."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import optree
import pytest
import torch
from hypothesis import assume, given
from torch.utils._pytree import tree_map

from property_tests import model as m
from tdfunc.testing import assert_valid, batch_sizes, tensordicts, tensors

if TYPE_CHECKING:
    from tdfunc import TensorDict

SHAPES = st.lists(st.integers(0, 3), max_size=5)

each_map = pytest.mark.parametrize(
    "tree_map", [tree_map, optree.tree_map], ids=["torch", "optree"]
)


def shared(shapes: list[tuple[int, ...]], most: int) -> tuple[int, ...]:
    """Return the longest common prefix, of at most so many dims."""
    prefix = shapes[0][: max(0, most)]
    for shape in shapes:
        while shape[: len(prefix)] != prefix:
            prefix = prefix[:-1]
    return prefix


def ruled(old: m.Model, new: dict[m.Path, tuple[int, ...]]) -> dict[m.Path, Any]:
    """Return the batch size of every node by the rank rule, worked out from shapes.

    For each leaf its dims behind the batch dims that its tree or node had are counted;
    what is in front of them at each leaf, and is shared by all, are the batch dims.
    """

    def least(node: m.Model, prefix: m.Path) -> tuple[list[tuple[int, ...]], int]:
        below = {path: x for path, x, _ in m.leaves(node)}
        shapes = [new[(*prefix, *path)] for path in below]
        counts = [
            len(shape) - (x.dim() - len(node.size))
            for shape, x in zip(shapes, below.values(), strict=True)
        ]
        return shapes, min(counts)

    out: dict[m.Path, Any] = {}
    nodes: list[tuple[m.Path, m.Model]] = [((), old)]
    nodes += [(path, v) for path, v, _ in m.walk(old) if isinstance(v, m.Model)]
    for path, node in nodes:
        above = out[path[:-1]] if path else ()
        if node.has_leaves():
            shapes, most = least(node, path)
            # Never fewer than the parent has, which is shared by these leaves, too.
            out[path] = shared(shapes, max(most, len(above)))
        else:
            out[path] = above
    return out


def assert_ruled(td: TensorDict, found: TensorDict) -> None:
    """Assert that `found`, mapped from `td`, is valid and has the ruled batch sizes."""
    assert_valid(found)
    new = {path: tuple(found[path].shape) for path, *_ in m.leaves(m.read(td))}
    for path, size in ruled(m.read(td), new).items():
        node = found[path] if path else found
        assert torch.Size(size) == node.batch_size, path


@each_map
@given(td=tensordicts(min_leaves=1, shared=False), data=st.data())
def test_leaves_of_any_shape_get_a_true_prefix(
    tree_map: Any, td: TensorDict, data: st.DataObject
) -> None:
    found = tree_map(lambda _: data.draw(tensors(data.draw(SHAPES))), td)

    assert_ruled(td, found)


@each_map
@given(
    td=tensordicts(batch_sizes(min_dims=1, min_size=1), min_leaves=1), data=st.data()
)
def test_dims_changed_in_front_give_the_intended_size(
    tree_map: Any, td: TensorDict, data: st.DataObject
) -> None:
    """Whatever the shapes look like: square, or with features as long as the batch."""
    more = data.draw(st.lists(st.integers(0, 3), max_size=2))
    row = data.draw(st.integers(0, td.batch_size[0] - 1))

    lost = tree_map(lambda x: x[row], td)
    gained = tree_map(lambda x: x.expand((*more, *x.shape)), td)
    stacked = tree_map(lambda *xs: torch.stack(xs), td, td, td)

    for found, size in (
        (lost, td.batch_size[1:]),
        (gained, (*more, *td.batch_size)),
        (stacked, (3, *td.batch_size)),
    ):
        assert_valid(found)
        assert torch.Size(size) == found.batch_size
        for path, node, _ in m.walk(m.read(td)):
            if isinstance(node, m.Model):
                rest = node.size[td.batch_dims :]
                assert torch.Size((*size, *rest)) == found[path].batch_size


@each_map
@given(td=tensordicts(min_leaves=1), data=st.data())
def test_size_is_the_same_whenever_it_is_asked(
    tree_map: Any, td: TensorDict, data: st.DataObject
) -> None:
    """Mapping twice at once, or reading the batch size between, is no difference."""
    fn = data.draw(
        st.sampled_from(
            [
                lambda x: x.unsqueeze(0),
                lambda x: x.unsqueeze(-1),
                lambda x: x.sum(),
                lambda x: x[None, None],
                lambda x: x.mT if x.dim() > 1 else x,
                lambda x: x.flatten(),
            ]
        )
    )
    at_once = tree_map(fn, tree_map(fn, td))
    between = tree_map(fn, td)
    between.batch_size
    between = tree_map(fn, between)

    assert_valid(at_once)
    assert at_once.batch_size == between.batch_size
    assert_ruled(td, tree_map(fn, td))


@given(
    tensordicts(
        st.lists(st.sampled_from([2, 3]), max_size=2).map(torch.Size),
        leaves=lambda size: tensors(size, feature_dims=(0, 2)).filter(
            torch.Tensor.numel
        ),
        min_leaves=1,
        max_leaves=3,
        shared=False,
    ),
    st.data(),
)
def test_any_in_and_out_dims_by_leaf_give_valid_trees(
    td: TensorDict, data: st.DataObject
) -> None:
    """Dims of features, counted from either end, mixed with None."""
    leaves = {path: x for path, x, _ in m.leaves(m.read(td))}
    sizes = sorted({n for x in leaves.values() for n in x.shape})
    assume(sizes)
    size = data.draw(st.sampled_from(sizes), label="mapped size")
    ins: dict[m.Path, Any] = {}
    outs: dict[m.Path, int] = {}
    for path, x in leaves.items():
        dims = [d for d in range(-x.dim(), x.dim()) if x.shape[d] == size]
        ins[path] = data.draw(st.sampled_from([None, *dims]), label=f"in {path}")
        outs[path] = 0
        if ins[path] is not None:
            # Elsewhere than in front torch 2.13 gives garbage for what is not mapped.
            out = st.integers(-x.dim(), x.dim() - 1)
            outs[path] = data.draw(out, label=f"out {path}")
    assume(any(d is not None for d in ins.values()))
    in_tree = _with(td, ins)
    out_tree = _with(td, outs)
    seen: list[TensorDict] = []

    def body(t: TensorDict) -> TensorDict:
        assert_ruled(td, t)
        seen.append(t)
        return t

    found = torch.vmap(body, (in_tree,), out_tree)(td)

    assert seen
    assert_valid(found)
    for path, x in leaves.items():
        d = ins[path]
        rows = [x if d is None else x.select(d, i) for i in range(size)]
        assert m.same_tensor(torch.stack(rows, outs[path]), found[path])


def _with(td: TensorDict, values: dict[m.Path, Any]) -> Any:
    """Return the tree with other objects as leaves."""
    order = iter(sorted(values))
    return tree_map(lambda _: values[next(order)], td)


SMALL = st.lists(st.sampled_from([1, 2]), max_size=2).map(torch.Size)


def floats(size: torch.Size) -> st.SearchStrategy[torch.Tensor]:
    return tensors(size, dtypes=[torch.float64], feature_dims=(0, 1), special=False)


@pytest.mark.parametrize(
    "transform",
    [torch.func.jacrev, torch.func.jacfwd, torch.func.hessian],
    ids=lambda f: f.__name__,
)
@given(td=tensordicts(SMALL, leaves=floats, min_leaves=1, max_leaves=2))
def test_jacobians_of_batched_trees_are_valid(transform: Any, td: TensorDict) -> None:
    """Tree to tree, tree to scalar; what nodes nest in nodes is a tree all the same."""
    to_tree = transform(lambda t: t * t)(td)
    to_scalar = transform(lambda t: (t * t).sum(reduce=True))(td)

    assert_valid(to_tree)
    assert_valid(to_scalar)
    leaves = [(path, tuple(x.shape)) for path, x, _ in m.leaves(m.read(td))]
    times = 2 if transform is torch.func.hessian else 1
    for found, count in ((to_scalar, times), (to_tree, times + 1)):
        for rows in product(leaves, repeat=count):
            path = sum([path for path, _ in rows], ())
            shape = sum([shape for _, shape in rows], ())
            assert shape == found[path].shape
