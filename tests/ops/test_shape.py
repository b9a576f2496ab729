"""Shapes of the batch: each operation against torch on every leaf, features apart."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import OperandError, ShapeError
from tests.cases import Case, cases, check, fingerprint, ramp, same

Size = torch.Size


def shapes_of(rows: int) -> list[tuple[int, ...]]:
    return [(rows,), (rows, 1), (1, rows), (1, rows, 1)]


@cases()
def test_reshape_is_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    rows = torch.Size(case.batch).numel()
    for shape in [*shapes_of(rows), case.batch, (*case.batch, 1)]:
        expected = case.mapped(lambda x, s=shape: x.reshape((*s, *x.shape[dims:])))
        for out in (td.reshape(*shape), td.reshape(shape), td.reshape(list(shape))):
            check(out, shape, expected, case.statics)
    assert td.reshape(case.batch) is td


def test_reshape_fills_one_hole() -> None:
    td = TensorDict({"x": ramp(2, 6, 4)}, (2, 6), names=["a", "b"])
    for shape, full in (((-1,), (12,)), ((3, -1), (3, 4)), ((-1, 2, 2), (3, 2, 2))):
        out = td.reshape(*shape)
        check(out, full, {("x",): ramp(*full, 4)})
        assert out.names is None
    assert td.reshape(2, -1) is td


@pytest.mark.parametrize("shape", [(5,), (-1, 5), (-1, -1), (2, -2), (0,), ()], ids=str)
def test_reshape_to_another_number_of_rows_says_both(shape: Any) -> None:
    td = TensorDict({"x": ramp(2, 6)}, (2, 6))
    for leaves in (td, td.select()):
        with pytest.raises(ShapeError) as caught:
            leaves.reshape(*shape)
        text = str(caught.value)
        assert "batch_size=[2, 6] can not be reshaped" in text
        assert "expected a shape of 12 rows, with at most one -1" in text
        assert f"got {list(shape)}" in text


def test_reshape_of_no_rows_takes_no_hole() -> None:
    # torch refuses it too: the hole could be anything.
    td = TensorDict({"x": torch.zeros(0, 3)}, 0)
    with pytest.raises(ShapeError):
        td.reshape(-1, 0)
    check(td.reshape(-1, 2), (0, 2), {("x",): torch.zeros(0, 2, 3)})
    check(td.reshape(5, 0), (5, 0), {("x",): torch.zeros(5, 0, 3)})


@cases()
def test_unsqueeze_is_torchs_at_every_place(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for dim in range(-dims - 1, dims + 1):
        at = dim + dims + 1 if dim < 0 else dim
        batch = (*case.batch[:at], 1, *case.batch[at:])
        out = td.unsqueeze(dim)
        check(out, batch, case.mapped(lambda x, at=at: x.unsqueeze(at)), case.statics)


@cases()
def test_squeeze_drops_dims_of_size_1_of_the_batch_only(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    ones = [i for i, n in enumerate(case.batch) if n == 1]
    kept = [n for n in case.batch if n != 1]
    check(td.squeeze(), kept, case.mapped(lambda x: x.squeeze(ones)), case.statics)
    for dim in range(-dims, dims):
        batch = list(torch.empty(case.batch).squeeze(dim).shape)
        at = dim % dims
        check(td.squeeze(dim), batch, case.mapped(lambda x, at=at: x.squeeze(at)))


@cases(lambda case: bool(case.batch))
def test_permute_is_torchs_for_every_order(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for order in itertools.permutations(range(dims)):
        batch = [case.batch[i] for i in order]

        def moved(x: torch.Tensor, order: Any = order) -> torch.Tensor:
            return x.permute(*order, *range(dims, x.dim()))

        for out in (
            td.permute(*order),
            td.permute(order),
            td.permute([i - dims for i in order]),
        ):
            check(out, batch, case.mapped(moved), case.statics)


@cases(lambda case: bool(case.batch))
def test_transpose_is_torchs_for_every_pair(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for i, j in itertools.product(range(-dims, dims), repeat=2):
        batch = torch.empty(case.batch).transpose(i, j).shape
        expected = case.mapped(lambda x, i=i, j=j: x.transpose(i % dims, j % dims))
        check(td.transpose(i, j), batch, expected, case.statics)


@cases()
def test_expand_is_torchs_in_front_and_of_ones(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    grown = tuple(4 if n == 1 else n for n in case.batch)
    for shape in (
        case.batch,
        (3, *case.batch),
        (2, 1, *case.batch),
        grown,
        (2, *grown),
    ):
        expected = case.mapped(lambda x, s=shape: x.expand((*s, *x.shape[dims:])))
        for out in (td.expand(*shape), td.expand(shape)):
            check(out, shape, expected, case.statics)
    kept = (5, *(-1 for _ in case.batch))
    assert td.expand(kept).batch_size == Size((5, *case.batch))


@pytest.mark.parametrize(
    "shape", [(3,), (2, 4), (4, 2), (-1, 2, 3), (2, 3, 1), (-2, 3)], ids=str
)
def test_expand_to_what_does_not_fit_says_both(shape: Any) -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3))
    for tree in (td, td.select()):
        with pytest.raises(ShapeError) as caught:
            tree.expand(shape)
        text = str(caught.value)
        assert "batch_size=[2, 3] does not expand to this" in text
        assert f"got {list(shape)}" in text


@cases(lambda case: bool(case.batch))
def test_unbind_and_iteration_give_the_rows(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for dim in range(-dims, dims):
        at = dim % dims
        rows = td.unbind(dim)
        assert isinstance(rows, tuple)
        assert len(rows) == case.batch[at]
        batch = case.batch[:at] + case.batch[at + 1 :]
        for i, row in enumerate(rows):
            expected = case.mapped(lambda x, at=at, i=i: x.select(at, i))
            check(row, batch, expected, case.statics)
    assert [row.batch_size for row in td] == [row.batch_size for row in td.unbind()]
    assert len(list(td)) == len(td)


def test_iterating_without_batch_dims_points_to_the_entries() -> None:
    with pytest.raises(OperandError) as caught:
        iter(TensorDict({"x": ramp(2)}))
    assert isinstance(caught.value, TypeError)
    text = str(caught.value)
    assert "without batch dims can not be iterated over" in text
    assert "got batch_size=[]" in text
    assert "td.items()" in text


def test_every_shape_operation_keeps_the_surplus_of_wider_nodes() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4, 5), "m": {"r": ramp(2, 3, 4)}}, (2, 3, 4))
    td = TensorDict({"a": inner, "x": ramp(2, 3)}, (2, 3))
    for out, batch in (
        (td.reshape(6), (6, 4)),
        (td.unsqueeze(-1), (2, 3, 1, 4)),
        (td.unsqueeze(-1).squeeze(), (2, 3, 4)),
        (td.permute(1, 0), (3, 2, 4)),
        (td.transpose(0, 1), (3, 2, 4)),
        (td.expand(7, 2, 3), (7, 2, 3, 4)),
        (td.unbind(1)[0], (2, 4)),
    ):
        assert out["a"].batch_size == out["a", "m"].batch_size == Size(batch)
        assert out["a", "o"].shape == (*batch, 5)


def test_names_stay_with_their_dims_and_new_and_merged_ones_have_none() -> None:
    td = TensorDict({"x": ramp(2, 1, 3)}, (2, 1, 3), names=("t", "one", "env"))
    assert td.permute(2, 0, 1).names == ("env", "t", "one")
    assert td.permute("env", "t", "one").names == ("env", "t", "one")
    assert td.transpose("t", "env").names == ("env", "one", "t")
    assert td.unsqueeze(1).names == ("t", None, "one", "env")
    assert td.unsqueeze(-1).names == ("t", "one", "env", None)
    assert td.squeeze().names == ("t", "env")
    assert td.squeeze("one").names == ("t", "env")
    assert td.squeeze("t").names == ("t", "one", "env")
    assert td.expand(5, 2, 4, 3).names == (None, "t", "one", "env")
    assert td.unbind("one")[0].names == ("t", "env")
    assert td.reshape(6).names is None
    assert next(iter(td)).names == ("one", "env")


def test_operations_give_views_where_torch_does() -> None:
    x = ramp(2, 1, 3)
    td = TensorDict({"x": x}, (2, 1, 3))
    for out in (
        *(td.reshape(6), td.unsqueeze(0), td.squeeze(), td.permute(2, 1, 0)),
        *(td.transpose(0, 2), td.expand(2, 4, 3), td.unbind(0)[1]),
    ):
        storage = out["x"].untyped_storage()
        assert storage.data_ptr() == x.untyped_storage().data_ptr()


# dims that are not there


@pytest.mark.parametrize("dim", [2, -3, 9])
def test_a_dim_behind_the_batch_says_the_range(dim: int) -> None:
    td = TensorDict({"x": ramp(2, 3, 4)}, (2, 3))
    for use in (
        td.squeeze,
        td.unbind,
        lambda d: td.transpose(0, d),
        lambda d: td.permute(0, d),
        td.sum,
        lambda d: td.cat([td], d),
    ):
        with pytest.raises(ShapeError) as caught:
            use(dim)
        assert isinstance(caught.value, ValueError)
        text = str(caught.value)
        assert f"dim {dim} is no batch dim" in text
        assert "expected -2 to 1 for batch_size=[2, 3]" in text
        assert f"got {dim}" in text
        assert "td.apply(fn, batch_size=...)" in text


def test_a_new_dim_may_stand_one_further() -> None:
    td = TensorDict({"x": ramp(2, 3, 4)}, (2, 3))
    for dim in (3, -4):
        for use in (td.unsqueeze, lambda d: tdfunc.stack([td, td], d)):
            with pytest.raises(ShapeError, match=f"dim {dim} .*expected -3 to 2"):
                use(dim)


def test_a_tree_without_batch_dims_has_no_dim() -> None:
    td = TensorDict({"x": ramp(2)})
    for use in (td.squeeze, td.unbind, td.sum, lambda d: td.cat([td], d)):
        with pytest.raises(
            ShapeError, match=r"a tree with batch dims, not batch_size=\[\]"
        ):
            use(0)


@pytest.mark.parametrize("dim", [1.0, None, True, [0]], ids=repr)
def test_a_dim_of_another_kind_is_named(dim: Any) -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3))
    for use in (td.unbind, td.unsqueeze, lambda d: td.transpose(d, 0)):
        with pytest.raises(ShapeError, match="a dim is a number or a name") as caught:
            use(dim)
        assert f"got {type(dim).__name__}" in str(caught.value)


def test_a_name_that_no_dim_has_lists_the_names() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3), names=["t", "env"])
    with pytest.raises(
        ShapeError, match=r"no batch dim is named 'time'.*\('t', 'env'\)"
    ):
        td.unbind("time")


@pytest.mark.parametrize("dims", [(0,), (0, 0), (0, 1, 1), ()], ids=str)
def test_permute_takes_every_dim_once(dims: Any) -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3))
    with pytest.raises(
        ShapeError, match="permute takes every batch dim once"
    ) as caught:
        td.permute(dims)
    assert "expected an order of [0, 1]" in str(caught.value)
    assert f"got {list(dims)}" in str(caught.value)


@cases()
def test_shape_operations_change_nothing_in_their_tree(case: Case) -> None:
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td, dims = case.tree, range(len(case.batch))
    td.reshape(1, torch.Size(case.batch).numel()), td.unsqueeze(0), td.squeeze()
    td.permute(*reversed(dims)), td.expand(3, *case.batch)
    if dims:
        td.unbind(), td.transpose(0, -1)
    assert fingerprint(tensors) == before


def test_shape_operations_are_differentiable() -> None:
    x = ramp(2, 3, 4)
    td = TensorDict({"x": x}, (2, 3))
    weight = ramp(3, 2, 4) + 1

    def loss(t: TensorDict) -> torch.Tensor:
        moved = t.reshape(6).reshape(2, 3).permute(1, 0).unsqueeze(0).squeeze()
        return (moved["x"] * weight).sum()

    gradient = torch.func.grad(loss)(td)
    check(gradient, (2, 3), {("x",): weight.transpose(0, 1)})
    assert same(gradient["x"], weight.transpose(0, 1))


def test_reshape_takes_symbolic_sizes() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def halves(x: torch.Tensor) -> torch.Tensor:
        td = TensorDict({"x": x, "y": x[:, 0]}, [x.shape[0]])
        return td.reshape(2, -1)["x"]

    graph = make_fx(halves, tracing_mode="symbolic")(torch.zeros(6, 3))
    assert graph(torch.ones(8, 3)).shape == (2, 4, 3)
