"""Laws of tdfunc's own transforms: loops over rows, derivatives, differences."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import assume, given
from torch.utils import _pytree as pytree

import tdfunc
from property_tests import model as m
from property_tests.test_grad import (
    SMALL,
    assert_gradient,
    differences,
    losses,
    params,
)
from property_tests.test_vmap import SIZES, SQUARES, bodies, seeing, trees, without
from tdfunc import TensorDict
from tdfunc.testing import assert_equal, assert_pure, assert_valid, tensordicts

CLOSE: Any = {"rtol": 1e-9, "atol": 1e-12}
ROWS = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(torch.Size)


def as_dict(td: TensorDict) -> dict[str, Any]:
    """Return the nested dict of the tensors of a tree, in the order of its leaves."""
    leaves = td.keys(leaves_only=True)
    return {
        key: as_dict(td[key]) if isinstance(td[key], TensorDict) else td[key]
        for key in sorted(td.keys())
        if key in leaves or isinstance(td[key], TensorDict)
    }


def tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def product(value: Any) -> torch.Tensor:
    """Return a scalar of any pytree in which all tensors meet."""
    total = torch.ones((), dtype=torch.float64)
    for x in tensors(value):
        total = total * (2 + torch.sin(x).sum())
    return total


def outputs(value: Any) -> dict[str, torch.Tensor]:
    """Return two tensors that depend on all of a pytree."""
    total = product(value)
    first = tensors(value)[0]
    return {"a": first * total, "b": total**2}


# vmap


@given(trees(SIZES | SQUARES, names=True), bodies, st.data())
def test_vmap_is_a_loop_over_rows(
    td: TensorDict, body: Any, data: st.DataObject
) -> None:
    """For any dim in, any batch position out, counted from either end."""
    dims = td.batch_dims
    dim = data.draw(st.integers(-dims, dims - 1), label="in_dims")
    rows = [body(row) for row in td.unbind(dim % dims)]
    count = rows[0].batch_dims + 1
    out = data.draw(st.integers(-count, count - 1), label="out_dims")
    chunk = data.draw(st.none() | st.integers(1, 4), label="chunk_size")
    inner = seeing(body, without(td.batch_size, dim % dims))

    found = assert_pure(tdfunc.vmap(inner, dim, out, chunk_size=chunk), td)

    assert_valid(found)
    expected = tdfunc.stack(rows, out % count)
    assert expected.batch_size == found.batch_size
    assert_equal(expected, found.with_names(expected.names), key_order=True)


@given(trees(SIZES.filter(lambda s: len(s) > 1) | SQUARES), bodies, st.data())
def test_nested_vmap_is_two_loops(
    td: TensorDict, body: Any, data: st.DataObject
) -> None:
    """Also where one of them is torch's."""
    outer = data.draw(st.integers(0, td.batch_dims - 1), label="outer")
    inner = data.draw(st.integers(0, td.batch_dims - 2), label="inner")
    one, two = data.draw(
        st.sampled_from(
            [
                (tdfunc.vmap, tdfunc.vmap),
                (tdfunc.vmap, torch.vmap),
                (torch.vmap, tdfunc.vmap),
            ]
        )
    )
    rows = [
        tdfunc.stack([body(cell) for cell in row.unbind(inner)])
        for row in td.unbind(outer)
    ]

    found = one(two(body, inner), outer)(td)

    assert_valid(found)
    assert_equal(tdfunc.stack(rows), found, key_order=True)


@given(trees(SIZES, names=True))
def test_mapping_over_a_name_and_putting_it_back_changes_nothing(
    td: TensorDict,
) -> None:
    for dim, name in enumerate(td.names or ()):
        if name is not None:
            found = tdfunc.vmap(lambda t: t, name, dim)(td)
            assert_equal(td, found, key_order=True)
            assert td.names == found.names


@given(trees(SIZES | SQUARES), st.data())
def test_dims_by_leaf_go_out_where_they_came_in(
    td: TensorDict, data: st.DataObject
) -> None:
    size = td.batch_size
    dim = data.draw(st.integers(0, len(size) - 1), label="dim")
    others = [i for i, n in enumerate(size) if n == size[dim]]
    paths = [path for path, *_ in m.leaves(m.read(td))]
    overrides = data.draw(
        st.dictionaries(st.sampled_from(paths), st.sampled_from(others))
    )
    dims = tdfunc.in_dims(td, dim, overrides)

    found = tdfunc.vmap(lambda t: t, (dims,), dims)(td)

    assert_valid(found)
    for path in paths:
        assert m.same_tensor(td[path], found[path])


# grad


@given(params(), losses)
def test_grad_is_torchs_and_finite_differences(td: TensorDict, loss: Any) -> None:
    """Bit for bit torch's, of the same operations."""
    found = assert_pure(tdfunc.grad(loss), td)
    again, value = tdfunc.grad_and_value(loss)(td)

    assert_valid(found)
    assert td.batch_size == found.batch_size
    assert_equal(torch.func.grad(loss)(td), found, key_order=True)
    assert_equal(found, again, key_order=True)
    assert m.same_tensor(loss(td), value)
    assert_gradient(differences(loss, td), found)


@given(params(), losses, st.data())
def test_wrt_is_a_part_of_the_whole_gradient(
    td: TensorDict, loss: Any, data: st.DataObject
) -> None:
    paths = [path for path, *_ in m.leaves(m.read(td))]
    chosen = data.draw(st.sets(st.sampled_from(paths), min_size=1), label="wrt")

    whole, part = tdfunc.grad(loss)(td), tdfunc.grad(loss, wrt=chosen)(td)

    assert chosen == {path for path, *_ in m.leaves(m.read(part))}
    assert td.batch_size == part.batch_size
    for path in chosen:
        assert m.same_tensor(whole[path], part[path])


@given(tensordicts(SMALL, max_leaves=4))
def test_any_tree_has_a_gradient(td: TensorDict) -> None:
    """With the leaves that can have one, whatever the others are."""
    exact = {
        path
        for path, x, _ in m.leaves(m.read(td))
        if x.is_floating_point() or x.is_complex()
    }
    one = torch.ones((), dtype=torch.float64)

    found = tdfunc.grad(lambda t: one)(td)  # noqa: ARG005

    assert exact == {path for path, *_ in m.leaves(m.read(found))}
    assert td.batch_size == found.batch_size


@given(params(ROWS), losses, st.sampled_from([None, 1, 2]))
def test_vmap_of_grad_is_a_loop(td: TensorDict, loss: Any, chunk: int | None) -> None:
    found = assert_pure(tdfunc.vmap(tdfunc.grad(loss), chunk_size=chunk), td)

    rows = [tdfunc.grad(loss)(row) for row in td.unbind(0)]
    assert_valid(found)
    assert_equal(tdfunc.stack(rows), found, key_order=True, **CLOSE)


# Jacobians


@given(params())
def test_jacobians_are_torchs_of_dicts_leaf_by_leaf(td: TensorDict) -> None:
    entries = as_dict(td)
    assume(all(x.numel() for x in tensors(entries)))
    for name in ("jacrev", "jacfwd"):
        expected = getattr(torch.func, name)(outputs)(entries)

        found = assert_pure(getattr(tdfunc, name)(outputs), td)

        for key, tree in found.items():
            assert_valid(tree)
            assert_same_leaves(expected[key], tree)
            front = outputs(entries)[key].shape
            assert torch.Size((*front, *td.batch_size)) == tree.batch_size


def assert_same_leaves(expected: Any, found: TensorDict) -> None:
    rows = tensors(expected), tensors(as_dict(found))
    for x, y in zip(*rows, strict=True):
        assert torch.allclose(x, y, **CLOSE)


@given(params(st.just(torch.Size())), losses)
def test_hessian_is_the_jacobian_of_the_gradient(td: TensorDict, loss: Any) -> None:
    assume(all(x.numel() for _, x, _ in m.leaves(m.read(td))))

    found = tdfunc.hessian(loss)(td)

    again = tdfunc.jacrev(tdfunc.grad(loss))(td)
    assert td.batch_size == found.batch_size
    assert_same_leaves(as_dict(again), found)


@given(params())
def test_products_are_directional_derivatives(td: TensorDict) -> None:
    assume(all(x.numel() for _, x, _ in m.leaves(m.read(td))))
    direction = td.apply(lambda x: torch.cos(3 * x))

    _, pushed = tdfunc.jvp(outputs, (td,), (direction,))
    out, back = tdfunc.vjp(outputs, td)
    weights = pytree.tree_map(torch.cos, out)
    (pulled,) = back(weights)

    one = sum(
        (p * w).sum() for p, w in zip(tensors(pushed), tensors(weights), strict=True)
    )
    two = (pulled * direction).sum(reduce=True)
    assert torch.isclose(torch.as_tensor(one), two, **CLOSE)


# Loops


@given(params(ROWS), st.booleans(), st.booleans())
def test_scan_is_a_loop(td: TensorDict, reverse: bool, derive: bool) -> None:  # noqa: FBT001
    """And so are its derivatives."""

    def step(carry: torch.Tensor, row: TensorDict) -> Any:
        carry = torch.sin(carry + product(as_dict(row)))
        return carry, {"row": row, "carry": carry}

    def looped(t: TensorDict) -> Any:
        carry = torch.zeros((), dtype=torch.float64)
        rows = list(t.unbind(0))
        ys = []
        for row in reversed(rows) if reverse else rows:
            carry, y = step(carry, row)
            ys.append(y["carry"])
        return carry, torch.stack(ys[::-1] if reverse else ys)

    zero = torch.zeros((), dtype=torch.float64)
    carry, ys = assert_pure(lambda t: tdfunc.scan(step, zero, t, reverse=reverse), td)
    expected, all_ = looped(td)

    assert m.same_tensor(expected, carry)
    assert m.same_tensor(all_, ys["carry"])
    assert_equal(td, ys["row"], key_order=True)
    if derive:
        scanned = tdfunc.grad(lambda t: tdfunc.scan(step, zero, t, reverse=reverse)[0])
        assert_equal(tdfunc.grad(lambda t: looped(t)[0])(td), scanned(td), **CLOSE)


@given(params(ROWS), st.booleans(), st.data())
def test_associative_scan_of_sums_is_cumsum(
    td: TensorDict,
    reverse: bool,  # noqa: FBT001
    data: st.DataObject,
) -> None:
    dim = data.draw(st.integers(-td.batch_dims, td.batch_dims - 1))

    found = assert_pure(
        lambda t: tdfunc.associative_scan(lambda a, b: a + b, t, dim, reverse=reverse),
        td,
    )

    assert_valid(found)
    assert td.batch_size == found.batch_size
    at = dim % td.batch_dims
    for path, x, _ in m.leaves(m.read(td)):
        expected = x.flip(at).cumsum(at).flip(at) if reverse else x.cumsum(at)
        assert torch.allclose(expected, found[path], **CLOSE)


@given(params(ROWS), losses)
def test_checkpoint_changes_nothing(td: TensorDict, loss: Any) -> None:
    again = tdfunc.checkpoint(loss)

    assert m.same_tensor(loss(td), assert_pure(again, td))
    transforms = [tdfunc.grad, torch.func.grad]
    if all(x.numel() for _, x, _ in m.leaves(m.read(td))):
        transforms.append(tdfunc.jacfwd)  # of nothing it fails, as torch's
    for transform in transforms:
        plain, kept = transform(loss)(td), transform(again)(td)
        assert_equal(plain, kept, **CLOSE)
    mapped = tdfunc.vmap(tdfunc.grad(again))(td)
    assert_equal(tdfunc.vmap(tdfunc.grad(loss))(td), mapped, **CLOSE)


@given(params(ROWS), losses)
def test_stop_gradient_is_a_constant_of_equal_value(td: TensorDict, loss: Any) -> None:
    assert_equal(td, assert_pure(tdfunc.stop_gradient, td), key_order=True)
    grads = tdfunc.grad(lambda t: loss(tdfunc.stop_gradient(t)))(td)
    for path, x, _ in m.leaves(m.read(td)):
        assert m.same_tensor(torch.zeros_like(x), grads[path])


@given(trees(ROWS))
def test_cond_of_mapped_rows_is_cond_of_each(td: TensorDict) -> None:
    flags = torch.arange(td.batch_size[0]) % 2 == 0
    body = lambda t, f: tdfunc.cond(f, lambda t: t, lambda t: t[None][0], (t,))  # noqa: E731

    assert_equal(td, tdfunc.vmap(body)(td, flags), key_order=True)
