"""Shapes of the batch: each operation against torch on every leaf, features apart."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import OperandError, ShapeError, TreeIndexError
from tests.cases import Case, cases, check, fingerprint, leaves_of, ramp, same

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


@cases(lambda case: case.name != "not contiguous")
def test_view_is_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    rows = torch.Size(case.batch).numel()
    for shape in [*shapes_of(rows), (*case.batch, 1)]:
        expected = case.mapped(lambda x, s=shape: x.view((*s, *x.shape[dims:])))
        for out in (td.view(*shape), td.view(shape), td.view(list(shape))):
            check(out, shape, expected, case.statics)
    assert td.view(case.batch) is td


def test_view_copies_nothing_or_says_where_it_would() -> None:
    x = ramp(2, 6, 4)
    td = TensorDict({"x": x, "n": {"y": ramp(6, 2).t()}}, (2, 6), names=["a", "b"])
    out = td.select("x").view(-1, 3)
    check(out, (4, 3), {("x",): x.view(4, 3, 4)})
    assert out["x"].data_ptr() == x.data_ptr()
    assert out.names is None
    with pytest.raises(ShapeError) as caught:
        td.view(12)
    text = str(caught.value)
    assert "the leaf has no view of this shape" in text
    assert "at td['n', 'y']" in text
    assert "expected strides that fit batch_size=[12]" in text
    assert "got strides [1, 2] for shape [2, 6]" in text
    assert "td.reshape(12)" in text
    with pytest.raises(ShapeError, match="expected a shape of 12 rows"):
        td.view(5)


@cases(lambda case: bool(case.batch))
def test_flatten_is_torchs_for_every_range(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for first, last in itertools.product(range(-dims, dims), repeat=2):
        i, j = first % dims, last % dims
        if i > j:
            with pytest.raises(ShapeError, match="comes before the first"):
                td.flatten(first, last)
            continue
        batch = torch.empty(case.batch).flatten(i, j).shape
        expected = case.mapped(lambda x, i=i, j=j: x.flatten(i, j))
        check(td.flatten(first, last), batch, expected, case.statics)
    rows = torch.Size(case.batch).numel()
    check(td.flatten(), (rows,), case.mapped(lambda x: x.flatten(0, dims - 1)))


@cases(lambda case: not case.batch)
def test_flatten_of_no_dims_makes_one_row(case: Case) -> None:
    td = case.tree
    for out in (td.flatten(), td.flatten(-1, 0)):
        check(out, (1,), case.mapped(lambda x: x[None]), case.statics)
    with pytest.raises(ShapeError, match="dim 1 is no batch dim"):
        td.flatten(0, 1)


@cases(lambda case: bool(case.batch))
def test_unflatten_is_torchs_and_undoes_flatten(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for dim in range(-dims, dims):
        at, rows = dim % dims, case.batch[dim]
        for sizes in ((rows,), (1, rows), (rows, 1, 1), (1, -1)):
            batch = torch.empty(case.batch).unflatten(at, sizes).shape
            expected = case.mapped(lambda x, a=at, s=sizes: x.unflatten(a, s))
            check(td.unflatten(dim, sizes), batch, expected, case.statics)
    again = td.flatten().unflatten(0, case.batch)
    check(again, case.batch, case.leaves, case.statics)


@pytest.mark.parametrize("sizes", [(), (4,), (-1, 4), (-1, -1), (2, -3), (0, -1)])
def test_unflatten_into_another_size_says_both(sizes: Any) -> None:
    for td in (TensorDict({"x": ramp(2, 6)}, (2, 6)), TensorDict({}, (2, 6))):
        with pytest.raises(ShapeError) as caught:
            td.unflatten(1, sizes)
        text = str(caught.value)
        assert "batch dim 1 can not be parted like this" in text
        assert "expected sizes with the product 6, with at most one -1" in text
        assert f"got {list(sizes)}" in text


@cases()
def test_atleast_is_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    dummy = torch.empty(case.batch)
    for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
        batch = getattr(torch, name)(dummy).shape
        expected = case.mapped(lambda x, b=batch: x.reshape((*b, *x.shape[dims:])))
        check(getattr(td, name)(), batch, expected, case.statics)


@cases(lambda case: bool(case.batch))
def test_movedim_is_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for source, place in itertools.product(range(-dims, dims), repeat=2):
        i, j = source % dims, place % dims
        batch = torch.empty(case.batch).movedim(i, j).shape
        expected = case.mapped(lambda x, i=i, j=j: x.movedim(i, j))
        for out in (td.movedim(source, place), td.moveaxis([source], [place])):
            check(out, batch, expected, case.statics)
    for count in range(dims + 1):
        for places in itertools.permutations(range(dims), count):
            source = list(range(count))
            expected = case.mapped(lambda x, s=source, p=places: x.movedim(s, p))
            batch = torch.empty(case.batch).movedim(source, places).shape
            check(td.movedim(source, places), batch, expected, case.statics)


def test_movedim_wants_a_place_for_every_dim() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3))
    with pytest.raises(ShapeError, match=r"a place for every dim - expected 2 places"):
        td.movedim((0, 1), 0)
    for dims in (((0, -2), (0, 1)), ((0, 1), (1, 1))):
        with pytest.raises(ShapeError, match="movedim takes a dim once"):
            td.movedim(*dims)


@cases(lambda case: bool(case.batch))
def test_narrow_is_torchs_on_the_batch_dims(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    for dim in range(-dims, dims):
        at, rows = dim % dims, case.batch[dim]
        for start in range(-rows, rows + 1):
            for length in range(rows - start % (rows or 1) + 1):
                first = start + rows if start < 0 else start
                if first + length > rows:
                    continue
                batch = torch.empty(case.batch).narrow(at, first, length).shape
                expected = case.mapped(
                    lambda x, a=at, s=first, n=length: x.narrow(a, s, n)
                )
                check(td.narrow(dim, start, length), batch, expected, case.statics)


@pytest.mark.parametrize("rows", [(0, 4), (-4, 1), (2, 2), (4, 0), (1, -1)], ids=str)
def test_narrow_to_rows_that_are_not_there_says_how_many_are(rows: Any) -> None:
    for td in (TensorDict({"x": ramp(2, 3)}, (2, 3)), TensorDict({}, (2, 3))):
        with pytest.raises(TreeIndexError) as caught:
            td.narrow(1, *rows)
        text = str(caught.value)
        assert "batch dim 1 has no such rows" in text
        assert "expected rows of the 3 for batch_size=[2, 3]" in text
        assert f"got {rows[1]} rows from {rows[0]} on" in text


def test_expand_as_takes_trees_and_tensors() -> None:
    td = TensorDict({"x": ramp(1, 3, 2)}, (1, 3), names=["a", "b"])
    for other in (TensorDict({}, (4, 2, 3)), torch.empty(4, 2, 3)):
        out = td.expand_as(other)
        check(out, (4, 2, 3), {("x",): ramp(1, 3, 2).expand(4, 2, 3, 2)})
        assert out.names == (None, "a", "b")
    wrong: Any = (4, 2, 3)
    with pytest.raises(OperandError, match="no shape to expand to") as caught:
        td.expand_as(wrong)
    assert "got tuple" in str(caught.value)
    with pytest.raises(ShapeError, match="does not expand to this"):
        td.expand_as(torch.empty(2, 2))


def test_other_names_are_the_same_functions() -> None:
    assert TensorDict.swapaxes is TensorDict.swapdims is tdfunc.transpose
    assert TensorDict.moveaxis is tdfunc.movedim
    assert TensorDict.broadcast_to is tdfunc.expand


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
        (td.view(6), (6, 4)),
        (td.flatten(), (6, 4)),
        (td.unflatten(1, (3, 1)), (2, 3, 1, 4)),
        (td.movedim(0, 1), (3, 2, 4)),
        (td.narrow(1, 1, 2), (2, 2, 4)),
        (td.atleast_3d(), (2, 3, 1, 4)),
        (td.expand_as(torch.empty(7, 2, 3)), (7, 2, 3, 4)),
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
    assert td.view(6).names is None
    assert td.flatten().names is None
    assert td.flatten(0, 1).names == (None, "env")
    assert td.flatten("one", "env").names == ("t", None)
    assert td.unflatten("env", (1, 3)).names == ("t", "one", None, "env")
    assert td.movedim("env", 0).names == ("env", "t", "one")
    assert td.narrow("env", 0, 2).names == ("t", "one", "env")
    assert td[0, 0].atleast_3d().names == (None, "env", None)
    assert next(iter(td)).names == ("one", "env")


def test_operations_give_views_where_torch_does() -> None:
    x = ramp(2, 1, 3)
    td = TensorDict({"x": x}, (2, 1, 3))
    for out in (
        *(td.reshape(6), td.unsqueeze(0), td.squeeze(), td.permute(2, 1, 0)),
        *(td.transpose(0, 2), td.expand(2, 4, 3), td.unbind(0)[1]),
        *(td.view(6), td.flatten(), td.unflatten(2, (3, 1)), td.movedim(0, 2)),
        *(td.narrow(2, 1, 2), td.select("x").atleast_3d()),
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


MORE: dict[str, Any] = {
    "view": lambda t: t.view(3, 2),
    "flatten": lambda t: t.flatten(),
    "unflatten": lambda t: t.unflatten(1, (3, 1)),
    "movedim": lambda t: t.movedim(0, 1),
    "narrow": lambda t: t.narrow(1, 1, 2),
    "atleast_3d": lambda t: t.atleast_3d(),
    "expand_as": lambda t: t.expand_as(torch.empty(4, 2, 3)),
}


def wide() -> TensorDict:
    inner = TensorDict({"o": ramp(2, 3, 2, 5) + 1}, (2, 3, 2))
    return TensorDict({"x": ramp(2, 3, 4) + 2, "w": inner, "s": "text"}, (2, 3))


@pytest.mark.parametrize("name", MORE)
def test_more_shapes_inside_transforms(name: str) -> None:
    use, one = MORE[name], wide()
    tensors = list(leaves_of(one).values())
    before = fingerprint(tensors)
    stacked = tdfunc.stack([one, one + 1])
    expected = tdfunc.stack([use(one), use(one + 1)])
    mapped = torch.vmap(use)(stacked)
    check(mapped, expected.batch_size, leaves_of(expected), {("s",): "text"})

    gradient = torch.func.grad(lambda t: (use(t) ** 2).sum(reduce=True))(one)
    count = 4 if name == "expand_as" else 1
    whole = one * 2 * count
    if name == "narrow":
        whole = tdfunc.cat([whole.narrow(1, 0, 1) * 0, whole.narrow(1, 1, 2)], 1)
    check(gradient, (2, 3), leaves_of(whole))

    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(use, fullgraph=True, backend="eager", dynamic=dynamic)(
            one
        )
        check(compiled, use(one).batch_size, leaves_of(use(one)))
    torch._dynamo.reset()
    assert fingerprint(tensors) == before


TORCH: dict[str, tuple[Any, Any]] = {
    "flatten": (lambda t: torch.flatten(t, 0, 1), lambda t: t.flatten()),
    "flatten by keyword": (
        lambda t: torch.flatten(t, start_dim=0, end_dim=1),
        lambda t: t.flatten(),
    ),
    "unflatten": (
        lambda t: torch.unflatten(t, 1, (3, 1)),
        lambda t: t.unflatten(1, (3, 1)),
    ),
    "movedim": (lambda t: torch.movedim(t, 0, 1), lambda t: t.movedim(0, 1)),
    "moveaxis": (lambda t: torch.moveaxis(t, 0, 1), lambda t: t.movedim(0, 1)),
    "swapaxes": (lambda t: torch.swapaxes(t, 0, 1), lambda t: t.transpose(0, 1)),
    "swapdims": (lambda t: torch.swapdims(t, 0, 1), lambda t: t.transpose(0, 1)),
    "narrow": (lambda t: torch.narrow(t, 1, 0, 2), lambda t: t.narrow(1, 0, 2)),
    "broadcast_to": (
        lambda t: torch.broadcast_to(t, (4, 2, 3)),
        lambda t: t.expand(4, 2, 3),
    ),
    "broadcast_to by keyword": (
        lambda t: torch.broadcast_to(t, size=(4, 2, 3)),
        lambda t: t.expand(4, 2, 3),
    ),
    "atleast_1d": (torch.atleast_1d, lambda t: t),
    "atleast_2d": (torch.atleast_2d, lambda t: t),
    "atleast_3d": (torch.atleast_3d, lambda t: t.atleast_3d()),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_functions_of_shape_are_the_methods(name: str) -> None:
    function, method = TORCH[name]
    assert function(wide()).equal(method(wide()))


@pytest.mark.parametrize("name", [n for n in MORE if n != "atleast_3d"])
def test_the_peer_agrees_on_shapes(name: str) -> None:
    # Its atleast_3d puts both dims in front, which torch does not.
    peer: Any = pytest.importorskip("tensordict").TensorDict
    td = wide().exclude("s")
    theirs = peer({"x": td["x"], "w": peer({"o": td["w", "o"]}, [2, 3, 2])}, [2, 3])
    ours, other = MORE[name](td), MORE[name](theirs)
    assert ours.batch_size == other.batch_size
    for path, x in leaves_of(ours).items():
        assert same(x, other[path]), path


DTYPES = [torch.uint8, torch.int16, torch.int32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@cases(lambda case: all(x.dtype == torch.float32 for x in case.leaves.values()))
def test_view_with_a_dtype_reads_the_bytes_anew(case: Case, dtype: torch.dtype) -> None:
    own = {path: len(case.batches[path[:-1]]) for path in case.leaves}
    flat = [p for p, x in case.leaves.items() if x.dim() == own[p]]
    try:
        expected = case.mapped(lambda x: x.view(dtype))
    except RuntimeError:
        expected = None
    td = case.tree
    if dtype.itemsize != 4 and flat:
        with pytest.raises((ShapeError, RuntimeError)):
            td.view(dtype)
    elif expected is None:
        with pytest.raises(RuntimeError):
            td.view(dtype)
    else:
        out = td.view(dtype)
        check(out, case.batch, expected, case.statics)
        assert out.names == case.names
        assert leaves_of(out.view(torch.float32)).keys() == case.leaves.keys()


def test_view_with_a_dtype_names_what_it_can_not_read() -> None:
    x = ramp(2, 3)
    td = TensorDict({"x": x, "n": {"y": ramp(2)}}, 2)
    assert td.view(torch.int32)["x"].data_ptr() == x.data_ptr()
    with pytest.raises(ShapeError, match=r"td\['n', 'y'\].*fix.*unsqueeze"):
        td.view(torch.int64)
    with pytest.raises(RuntimeError) as caught:
        td.select("x").view(torch.float64)
    assert any("td['x']" in note for note in caught.value.__notes__)

    def use(t: TensorDict) -> TensorDict:
        return t.view(torch.int32)

    compiled = torch.compile(use, fullgraph=True, backend="eager")
    assert same(compiled(td)["x"], x.view(torch.int32))
