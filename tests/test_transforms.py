"""Trees inside torch's own transforms: values against loops, batch sizes by hand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import (
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import MissingKeyError, ShapeError
from tests.cases import CASES, Case, Wider, cases, check, ramp, same

if TYPE_CHECKING:
    from collections.abc import Callable

Size = torch.Size


def batched(case: Case) -> bool:
    return bool(case.batch) and bool(case.leaves)


def floating(case: Case) -> bool:
    return bool(case.leaves) and all(
        x.is_floating_point() and bool(x.isfinite().all()) for x in case.leaves.values()
    )


def affine(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.bool else x * 2 + 1


def looped(fn: Any, x: torch.Tensor, dim: int, out_dim: int = 0) -> torch.Tensor:
    """Return what vmap promises, by a Python loop."""
    return torch.stack([fn(row) for row in x.unbind(dim)], out_dim)


class Seen:
    """A function of a tree that notes the batch size it was called with."""

    def __init__(self, fn: Callable[[TensorDict], Any]) -> None:
        self.fn = fn
        self.sizes: list[torch.Size] = []
        self.names: list[Any] = []

    def __call__(self, td: TensorDict) -> Any:
        self.sizes.append(td.batch_size)
        self.names.append(td.names)
        return self.fn(td)


double = partial(TensorDict.apply, fn=affine)

MAPPED_DIMS = [
    pytest.param(case, dim, id=f"{case.name}, dim {dim}")
    for case in CASES
    if batched(case)
    for dim in range(len(case.batch))
    if case.batch[dim]  # torch.stack of no rows has no meaning in the loop
]


@pytest.mark.parametrize(("case", "dim"), MAPPED_DIMS)
def test_vmap_over_a_batch_dim_is_a_loop_and_the_body_sees_one_dim_less(
    case: Case, dim: int
) -> None:
    body = Seen(double)
    out = vmap(body, in_dims=dim, out_dims=dim)(case.tree)

    rest = case.batch[:dim] + case.batch[dim + 1 :]
    assert body.sizes == [Size(rest)]
    expected = case.mapped(lambda x: looped(affine, x, dim, dim))
    check(out, case.batch, expected, case.statics)


@pytest.mark.parametrize(("case", "dim"), MAPPED_DIMS)
def test_vmap_moves_the_mapped_dim_to_any_batch_position(case: Case, dim: int) -> None:
    rest = case.batch[:dim] + case.batch[dim + 1 :]
    for out_dim in range(len(case.batch)):
        out = vmap(double, in_dims=dim, out_dims=out_dim)(case.tree)
        batch = (*rest[:out_dim], case.batch[dim], *rest[out_dim:])
        expected = case.mapped(lambda x, o=out_dim: looped(affine, x, dim, o))
        check(out, batch, expected, case.statics)


@cases(lambda case: batched(case) and 0 not in case.batch)
def test_vmap_once_for_each_batch_dim_leaves_the_body_without_batch(case: Case) -> None:
    body = Seen(double)
    fn: Any = body
    for _ in case.batch:
        fn = vmap(fn)
    out = fn(case.tree)

    assert body.sizes == [Size(())]
    check(out, case.batch, case.mapped(affine), case.statics)


def test_vmap_of_no_rows_gives_no_rows() -> None:
    td = TensorDict({"x": torch.zeros(0, 3), "s": "text"}, 0)
    check(vmap(double)(td), (0,), {("x",): torch.zeros(0, 3)}, {("s",): "text"})


def test_the_body_of_vmap_over_the_third_of_four_dims_sees_the_other_three() -> None:
    td = TensorDict({"x": torch.zeros(1, 2, 3, 4)}, (1, 2, 3, 4))
    body = Seen(lambda t: t)
    vmap(body, in_dims=2)(td)
    assert body.sizes == [Size((1, 2, 4))]


def test_out_dims_1_of_a_batched_result_puts_the_mapped_dim_second() -> None:
    td = TensorDict({"x": ramp(3, 5, 2)}, (3, 5))
    out = vmap(lambda t: t, out_dims=1)(td)
    check(out, (5, 3), {("x",): ramp(3, 5, 2).transpose(0, 1)})


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 10, 11])
def test_vmap_in_chunks_is_vmap(chunk: int) -> None:
    td = TensorDict({"a": ramp(10), "b": torch.ones(10), "s": "text"}, (10,))

    total = vmap(lambda t: t["a"] + t["b"], chunk_size=chunk)(td)
    assert total.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]

    out = vmap(double, chunk_size=chunk)(td)
    doubled = {("a",): ramp(10) * 2 + 1, ("b",): torch.full((10,), 3.0)}
    check(out, (10,), doubled, {("s",): "text"})


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("out_dim", [0, 1])
def test_a_square_batch_with_features_of_the_same_size_keeps_its_dims_apart(
    dim: int, out_dim: int
) -> None:
    # Comparing shapes cannot tell the dims of (3, 3) + (3,) apart; ranks can.
    x, y = ramp(3, 3, 3), ramp(3, 3)
    td = TensorDict({"x": x, "y": y}, (3, 3))
    body = Seen(lambda t: t)
    out = vmap(body, in_dims=dim, out_dims=out_dim)(td)

    assert body.sizes == [Size((3,))]
    moved = {
        ("x",): x.movedim(dim, out_dim),
        ("y",): y.movedim(dim, out_dim),
    }
    check(out, (3, 3), moved)


def test_nested_vmap_of_two_trees_is_a_table() -> None:
    a = TensorDict({"x": ramp(3, 2)}, 3)
    b = TensorDict({"x": ramp(4, 2) + 10}, 4)
    inner = vmap(lambda s, t: s + t, in_dims=(None, 0))
    out = vmap(inner, in_dims=(0, None))(a, b)
    check(out, (3, 4), {("x",): ramp(3, 1, 2) + (ramp(1, 4, 2) + 10)})


def test_the_mapped_tree_and_a_closed_over_tree_combine() -> None:
    td = TensorDict({"x": ramp(3, 2)}, 3)
    other = TensorDict({"x": torch.tensor([10.0, 20.0])})
    out = vmap(lambda t: t * other)(td)
    check(out, (3,), {("x",): ramp(3, 2) * torch.tensor([10.0, 20.0])})


def test_a_body_may_index_stack_reduce_and_set_what_vmap_gives_it() -> None:
    td = TensorDict({"x": ramp(4, 3, 2), "n": {"y": ramp(4, 3)}}, (4, 3))

    def body(t: TensorDict) -> TensorDict:
        assert t.batch_size == Size((3,))
        row = t[0]
        pair = tdfunc.stack([row, t[-1]])
        assert pair.batch_size == Size((2,))
        return pair.set("total", t["n", "y"].sum().expand(2)).unsqueeze(0)

    out = vmap(body)(td)
    ends = [0, 2]
    expected = {
        ("x",): ramp(4, 3, 2)[:, ends].unsqueeze(1),
        ("n", "y"): ramp(4, 3)[:, ends].unsqueeze(1),
        ("total",): ramp(4, 3).sum(1)[:, None, None].expand(4, 1, 2),
    }
    check(out, (4, 1, 2), expected)


def test_a_static_goes_through_vmap_unread_and_can_be_used() -> None:
    td = TensorDict({"x": ramp(3), "tag": "a", "k": NonTensorData(2)}, (3,))
    out = vmap(lambda t: t.set("y", t["x"] * t["k"]))(td)
    assert out["y"].tolist() == [0, 2, 4]
    assert (out["tag"], out["k"], out.batch_size) == ("a", 2, Size((3,)))


def test_a_leaf_that_the_body_did_not_map_comes_back_for_every_row() -> None:
    lookup = torch.tensor([7.0, 8.0])
    td = TensorDict({"x": ramp(3)}, (3,))
    out = vmap(lambda t: t.set("same", lookup))(td)
    check(out, (3,), {("x",): ramp(3), ("same",): lookup.expand(3, 2)})


def test_names_lose_and_gain_the_first_dim() -> None:
    td = TensorDict({"x": ramp(2, 3, 4)}, (2, 3), names=("t", "env"))
    body = Seen(lambda t: t)
    out = vmap(body)(td)
    assert body.names == [("env",)]
    assert out.names == ("t", "env")


def test_vmap_of_a_tree_without_leaves_alone_has_nothing_to_map() -> None:
    with pytest.raises(ValueError, match="at least one Tensor"):
        vmap(lambda t: t)(TensorDict({}, 3))


def test_a_tree_without_leaves_beside_a_mapped_tensor_keeps_its_batch() -> None:
    # Nothing in it could carry the mapped dim.
    td = TensorDict({"s": "text"}, 3)
    out, x = vmap(lambda t, x: (t, x + 1))(td, torch.zeros(3))
    assert (out.batch_size, out["s"], x.tolist()) == (Size((3,)), "text", [1, 1, 1])


# in_dims for each leaf


def test_in_dims_maps_some_leaves_and_gives_others_whole() -> None:
    td = TensorDict({"x": ramp(3, 2), "n": {"w": ramp(3, 2) + 6}}, 3)
    dims = tdfunc.in_dims(td, 0, {("n", "w"): None})
    out = vmap(lambda t: t["x"] + t["n", "w"].sum(0), (dims,))(td)
    assert same(out, ramp(3, 2) + (ramp(3, 2) + 6).sum(0))


def test_in_dims_of_a_node_stands_for_its_leaves() -> None:
    td = TensorDict({"x": ramp(3), "n": {"a": ramp(3), "b": ramp(3)}}, 3)
    dims = tdfunc.in_dims(td, 0, {"n": None})
    seen: list[Any] = []
    vmap(lambda t: seen.append([v.shape for v in t.values(True, True)]) or t, (dims,))(
        td
    )
    assert seen == [[Size(()), Size((3,)), Size((3,))]]


def test_in_dims_counts_negative_dims_from_the_last_batch_dim() -> None:
    x, y = ramp(2, 3, 5), ramp(2, 3)
    td = TensorDict({"x": x, "y": y}, (2, 3))
    dims = tdfunc.in_dims(td, -1)
    assert (dims["x"], dims["y"]) == (1, 1)
    body = Seen(lambda t: t)
    out = vmap(body, (dims,))(td)
    assert body.sizes == [Size((2,))]
    check(out, (3, 2), {("x",): x.transpose(0, 1), ("y",): y.t()})


def test_in_dims_takes_dim_names() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3), names=("time", "env"))
    assert tdfunc.in_dims(td, "env")["x"] == 1
    assert tdfunc.in_dims(td, None, {"x": "time"})["x"] == 0


def test_in_dims_of_a_wider_node_reach_its_own_batch_dims() -> None:
    td = TensorDict({"a": TensorDict({"o": ramp(2, 3, 4)}, (2, 3)), "r": ramp(2)}, 2)
    dims = tdfunc.in_dims(td, None, {"a": 1})
    assert (dims["a", "o"], dims["r"]) == (1, None)
    out = vmap(lambda t: t["a", "o"].sum() + t["r"].sum(), (dims,))(td)
    assert same(out, ramp(2, 3, 4).sum((0, 2)) + ramp(2).sum())


@pytest.mark.parametrize("dim", [2, -3, "no", 1.5, True])
def test_in_dims_refuses_what_is_no_batch_dim(dim: Any) -> None:
    td = TensorDict({"x": ramp(2, 3, 5)}, (2, 3))
    with pytest.raises(ShapeError, match="no batch dim - expected -2 to 1"):
        tdfunc.in_dims(td, dim)


def test_in_dims_refuses_an_override_of_a_missing_entry() -> None:
    td = TensorDict({"obs": ramp(2)}, 2)
    with pytest.raises(MissingKeyError, match=r"td\['obz'\].*'obs'"):
        tdfunc.in_dims(td, 0, {"obz": None})


def test_other_in_dims_for_some_leaves_leave_the_true_common_prefix() -> None:
    # x is mapped over its first dim and keeps (3, 2); y is not mapped and keeps
    # (2, 3): the ranks still allow two batch dims, the sizes none.
    td = TensorDict({"x": ramp(2, 3, 2), "y": ramp(2, 3)}, (2, 3))
    body = Seen(lambda t: t["x"])
    vmap(body, (tdfunc.in_dims(td, 0, {"y": None}),))(td)
    assert body.sizes == [Size(())]

    square = TensorDict({"x": ramp(3, 3, 2), "y": ramp(3, 3)}, (3, 3))
    body = Seen(lambda t: t["x"])
    vmap(body, (tdfunc.in_dims(square, 0, {"y": None}),))(square)
    assert body.sizes == [Size((3,))]


def test_a_negative_in_dim_of_torch_counts_the_dims_of_each_leaf() -> None:
    # So it takes the feature dim of x and the batch dim of y, if they are of one
    # size; what is left is counted by ranks and cut to the sizes that are shared.
    td = TensorDict({"x": ramp(3, 3), "y": ramp(3)}, 3)
    body = Seen(lambda t: t["x"] + t["y"])
    out = vmap(body, in_dims=-1)(td)
    assert body.sizes == [Size(())]
    assert same(out, ramp(3, 3).t() + ramp(3)[:, None])


def test_a_negative_in_dim_of_equal_ranks_takes_the_feature_dim() -> None:
    td = TensorDict({"x": ramp(3, 4), "y": ramp(3, 4)}, 3)
    body = Seen(lambda t: t)
    out = vmap(body, in_dims=-1)(td)
    # One dim each is left for rank 1: no batch dim.
    assert body.sizes == [Size(())]
    check(out, (4,), {("x",): ramp(3, 4).t(), ("y",): ramp(3, 4).t()})


def test_out_dims_behind_the_batch_leave_a_true_prefix() -> None:
    x, y = ramp(3, 4, 2), ramp(3, 4)
    td = TensorDict({"x": x, "y": y}, (3, 4))
    out = vmap(lambda t: t, out_dims=-1)(td)
    check(out, (4,), {("x",): x.movedim(0, -1), ("y",): y.t()})


# Nested nodes with surplus batch dims

SURPLUS = Case(
    "agents",
    {"agents": Wider({"obs": ramp(2, 3, 4), "r": ramp(2, 3)}, (2, 3)), "done": ramp(2)},
    (2,),
)


def test_a_wider_node_keeps_its_surplus_inside_and_outside_vmap() -> None:
    inside: list[torch.Size] = []
    out = vmap(lambda t: inside.append(t["agents"].batch_size) or t)(SURPLUS.tree)
    assert inside == [Size((3,))]
    assert out["agents"].batch_size == Size((2, 3))


def test_a_wider_node_can_be_mapped_over_its_surplus_in_the_body() -> None:
    def body(t: TensorDict) -> TensorDict:
        agents = vmap(lambda a: a.set("best", a["obs"].amax()))(t["agents"])
        assert agents.batch_size == Size((3,))
        return t.set("agents", agents)

    out = vmap(body)(SURPLUS.tree)
    assert out.batch_size == Size((2,))
    assert out["agents"].batch_size == Size((2, 3))
    assert same(out["agents", "best"], ramp(2, 3, 4).amax(-1))


def test_a_wider_node_loses_its_surplus_when_its_leaves_do() -> None:
    out = pytree.tree_map(lambda x: x.reshape(2, -1).sum(-1), SURPLUS.tree)
    assert out.batch_size == Size(())
    assert out["agents"].batch_size == Size(())


# tree_map


@cases(lambda case: batched(case) and 0 not in case.batch)
def test_tree_map_of_the_first_row_loses_the_first_batch_dim(case: Case) -> None:
    out = pytree.tree_map(lambda x: x[0], case.tree)
    check(out, case.batch[1:], case.mapped(lambda x: x[0]), case.statics)


@cases(lambda case: batched(case) and floating(case) and 0 not in case.batch)
def test_tree_map_of_a_mean_over_rows_loses_the_first_batch_dim(case: Case) -> None:
    out = pytree.tree_map(lambda x: x.mean(0), case.tree)
    check(out, case.batch[1:], case.mapped(lambda x: x.mean(0)), case.statics)


@cases(lambda case: bool(case.leaves))
def test_tree_map_of_stack_gains_a_first_batch_dim(case: Case) -> None:
    out = pytree.tree_map(lambda *x: torch.stack(x), case.tree, case.tree)
    check(out, (2, *case.batch), case.mapped(lambda x: torch.stack([x, x])))


@cases(lambda case: bool(case.leaves))
def test_tree_map_of_a_new_last_dim_keeps_a_true_prefix(case: Case) -> None:
    out = pytree.tree_map(lambda x: x.unsqueeze(-1), case.tree)
    leaves = case.mapped(lambda x: x.unsqueeze(-1))
    # One dim more everywhere is read as one batch dim more, as far as sizes agree.
    most = len(case.batch) + 1
    shapes = [tuple(x.shape[:most]) for x in leaves.values()]
    while any(shape[:most] != shapes[0][:most] for shape in shapes):
        most -= 1
    assert most >= len(case.batch)
    check(out, shapes[0][:most], leaves)


def test_with_batch_size_restores_what_the_rank_rule_cannot_know() -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3, 2)}, 3)
    out = pytree.tree_map(lambda x: x.unsqueeze(-1), td)
    assert out.batch_size == Size((3, 2))
    assert out.with_batch_size(3).batch_size == Size((3,))


@cases(floating)
def test_a_tree_of_norms_matches_the_tree_that_it_was_mapped_from(case: Case) -> None:
    td = case.tree
    norms = pytree.tree_map(lambda x: x.norm(), td)
    out = pytree.tree_map(lambda x, norm: x / (norm + 1), td, norms)
    check(out, case.batch, case.mapped(lambda x: x / (x.norm() + 1)))
    back = pytree.tree_map(lambda norm, x: x * norm, norms, td)
    # `check` also asserts that the batch, whatever it is, is a prefix of all leaves.
    check(back, back.batch_size, case.mapped(lambda x: x * x.norm()))
    assert norms.batch_size == Size(())


def test_reading_a_tree_changes_no_later_result() -> None:
    td = TensorDict({"x": torch.ones(2, 3, 2)}, (2, 3))
    sizes: list[torch.Size] = []
    for read in (lambda _: None, repr, lambda t: t.batch_size):
        norms = pytree.tree_map(lambda x: x.norm(), td)
        read(norms)
        out = pytree.tree_map(lambda norm, x: x * norm, norms, td)
        sizes.append(out.batch_size)
    assert sizes[1:] == sizes[:-1]


# Derivatives


def energy(td: TensorDict) -> torch.Tensor:
    """Return a scalar whose gradient is ``3 x**2 + path-dependent weight``."""
    total = torch.zeros(())
    for i, x in enumerate(td.values(include_nested=True, leaves_only=True, sort=True)):
        total = total + (x**3).sum() + (i + 1) * x.sum()
    return total


def energy_gradient(case: Case) -> dict[Any, torch.Tensor]:
    return {
        path: 3 * x.detach() ** 2 + (i + 1)
        for i, (path, x) in enumerate(case.leaves.items())
    }


@cases(floating)
def test_grad_is_the_gradient_of_every_leaf(case: Case) -> None:
    out = grad(energy)(case.tree)
    check(out, case.batch, energy_gradient(case), case.statics, exact=False)


@cases(floating)
def test_grad_and_value_give_aux_through(case: Case) -> None:
    td = case.tree

    def loss(t: TensorDict) -> tuple[torch.Tensor, TensorDict]:
        assert t.batch_size == Size(case.batch)
        return energy(t), t * 2

    out, (value, aux) = grad_and_value(loss, has_aux=True)(td)
    check(out, case.batch, energy_gradient(case), case.statics, exact=False)
    leaves = enumerate(case.leaves.values())
    total = sum((x**3).sum().item() + (i + 1) * x.sum().item() for i, x in leaves)
    assert value.item() == pytest.approx(total, rel=1e-5)
    check(aux, case.batch, case.mapped(lambda x: x * 2), case.statics)


@cases(floating)
def test_vjp_pulls_a_tree_of_cotangents_back(case: Case) -> None:
    td = case.tree
    out, pull, *_ = vjp(lambda t: t * t, td)
    check(out, case.batch, case.mapped(lambda x: x * x))
    (back,) = pull(td * 3)
    check(back, case.batch, case.mapped(lambda x: 2 * x * (3 * x)), exact=False)


@cases(floating)
def test_jvp_pushes_a_tree_of_tangents_forward(case: Case) -> None:
    # Forward mode writes tangents: it wants leaves that share no elements.
    td = case.tree.detach().contiguous()
    out, tangent, *_ = jvp(lambda t: t * t, (td,), (td + 1,))
    check(out, case.batch, case.mapped(lambda x: x * x))
    check(tangent, case.batch, case.mapped(lambda x: 2 * x * (x + 1)), exact=False)


def test_grad_with_argnums_gives_one_tree_for_each() -> None:
    a = TensorDict({"w": torch.tensor([1.0, 2.0])})
    b = TensorDict({"v": torch.tensor([3.0, 4.0])})
    left, right = grad(lambda s, t: (s["w"] * t["v"]).sum(), argnums=(0, 1))(a, b)
    assert left["w"].tolist() == [3, 4]
    assert right["v"].tolist() == [1, 2]


def test_second_derivatives_nest() -> None:
    td = TensorDict({"x": torch.tensor(2.0)})
    third = grad(lambda t: grad(lambda s: s["x"] ** 4)(t)["x"])
    assert float(third(td)["x"]) == 48  # 12 x**2


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_a_jacobian_of_a_tensor_has_the_tree_of_inputs(jacobian: Any) -> None:
    w, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])
    td = TensorDict({"w": w, "n": {"b": b}})
    out = jacobian(lambda t: torch.outer(t["w"], t["n", "b"]))(td)

    # d(w_i b_j)/dw_k = [i == k] b_j; shape of the output, then of the input.
    dw = torch.einsum("ik,j->ijk", torch.eye(2), b)
    db = torch.einsum("i,jk->ijk", w, torch.eye(3))
    assert same(out["w"], dw)
    assert same(out["n", "b"], db)
    # Both are (2, 3, .): the prefix of the output's shape is shared.
    assert out.batch_size == Size((2, 3))


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_a_jacobian_of_a_tree_is_a_tree_of_trees(jacobian: Any) -> None:
    w, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])
    td = TensorDict({"w": w, "n": {"b": b}, "s": "text"})
    out = jacobian(lambda t: t * t)(td)

    assert set(out.keys(True, True)) == {
        ("w", "w"),
        ("w", "n", "b"),
        ("n", "b", "w"),
        ("n", "b", "n", "b"),
    }
    assert same(out["w", "w"], torch.diag(2 * w))
    assert same(out["n", "b", "n", "b"], torch.diag(2 * b))
    assert same(out["w", "n", "b"], torch.zeros(2, 3))
    assert same(out["n", "b", "w"], torch.zeros(3, 2))
    assert isinstance(out["w"], TensorDict)
    assert out.batch_size == Size(())
    # The statics of the output stay, and each row has those of the input.
    assert out["s"] == out["w", "s"] == out["n", "b", "s"] == "text"


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_a_jacobian_of_a_batched_tree_has_a_true_prefix(jacobian: Any) -> None:
    x = ramp(3, 2)
    td = TensorDict({"x": x}, 3)
    out = jacobian(lambda t: t * t)(td)
    expected = torch.diag(2 * x.reshape(-1)).reshape(3, 2, 3, 2)
    assert same(out["x", "x"], expected)
    for node in (out, out["x"]):
        size = node.batch_size
        assert expected.shape[: len(size)] == size


def test_a_hessian_has_a_block_for_every_pair_of_leaves() -> None:
    w, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])
    td = TensorDict({"w": w, "n": {"b": b}})
    out = hessian(lambda t: (t["w"] ** 3).sum() * t["n", "b"].sum())(td)

    # f = sum(w^3) sum(b)
    assert same(out["w", "w"], torch.diag(6 * w) * b.sum())
    cross = (3 * w**2)[:, None].expand(2, 3)
    torch.testing.assert_close(out["w", "n", "b"], cross)
    torch.testing.assert_close(out["n", "b", "w"], cross.t())
    assert same(out["n", "b", "n", "b"], torch.zeros(3, 3))


def test_a_hessian_of_a_batched_tree_holds_the_right_numbers() -> None:
    x = ramp(2, 2) + 1
    td = TensorDict({"x": x}, 2)
    out = hessian(lambda t: (t["x"] ** 3).sum())(td)
    expected = torch.diag(6 * x.reshape(-1)).reshape(2, 2, 2, 2)
    torch.testing.assert_close(out["x", "x"], expected)


def test_vmap_of_grad_gives_a_gradient_for_each_row() -> None:
    x, w = ramp(5, 3) / 7, torch.tensor([0.1, -0.2, 0.3])
    params = TensorDict({"w": w, "n": {"b": torch.tensor(0.5)}, "s": "text"})
    batch = TensorDict({"x": x, "y": ramp(5)}, 5)

    def loss(p: TensorDict, row: TensorDict) -> torch.Tensor:
        assert p.batch_size == row.batch_size == Size(())
        return (row["x"] @ p["w"] + p["n", "b"] - row["y"]) ** 2

    out = vmap(grad(loss), in_dims=(None, 0))(params, batch)
    error = x @ w + 0.5 - ramp(5)
    expected = {("w",): 2 * error[:, None] * x, ("n", "b"): 2 * error}
    check(out, (5,), expected, {("s",): "text"}, exact=False)


def test_vmap_of_grad_over_members_and_rows() -> None:
    w = ramp(2, 3) / 5
    members = TensorDict({"w": w}, 2)
    rows = TensorDict({"x": ramp(4, 3)}, 4)
    per_row = vmap(grad(lambda p, r: (p["w"] * r["x"]).sum() ** 2), in_dims=(None, 0))
    out = vmap(per_row, in_dims=(0, None))(members, rows)
    x = ramp(4, 3)
    expected = torch.stack([2 * (x @ m)[:, None] * x for m in w])
    check(out, (2, 4), {("w",): expected}, exact=False)


def test_jacrev_inside_vmap_keeps_each_rows_tree() -> None:
    x = ramp(4, 2)
    td = TensorDict({"x": x}, 4)
    out = vmap(jacrev(lambda t: t * t))(td)
    assert out.batch_size == Size((4,))
    assert same(out["x", "x"], torch.diag_embed(2 * x))


def test_grad_works_inside_no_grad_and_inference_mode() -> None:
    td = TensorDict({"w": torch.tensor([3.0])})
    square = grad(lambda p: (p["w"] ** 2).sum())
    with torch.no_grad():
        assert square(td)["w"].tolist() == [6]
    with torch.inference_mode():
        assert square(td)["w"].tolist() == [6]


def test_no_grad_inside_the_loss_cuts_its_part() -> None:
    def loss(p: TensorDict) -> torch.Tensor:
        with torch.no_grad():
            target = p["w"] * 2
        return (p["w"] * target).sum()

    assert grad(loss)(TensorDict({"w": torch.tensor([3.0])}))["w"].tolist() == [6]


def test_a_straight_through_estimate_by_detach_has_the_right_two_derivatives() -> None:
    td = TensorDict({"x": torch.tensor(0.5)})

    def estimate(t: TensorDict) -> torch.Tensor:
        smooth = t.apply(torch.tanh)
        hard = t.apply(torch.round)
        return (smooth + (hard - smooth).detach())["x"]

    first = grad(estimate)
    second = grad(lambda t: first(t)["x"])
    # 1 - tanh(.5)^2 and -2 tanh(.5)(1 - tanh(.5)^2)
    assert float(first(td)["x"]) == pytest.approx(0.786448, abs=1e-6)
    assert float(second(td)["x"]) == pytest.approx(-0.726862, abs=1e-6)


def test_statics_do_not_disturb_grad_and_integers_stay_out_by_partition() -> None:
    params = TensorDict(
        {"w": torch.ones(2), "step": torch.tensor(3), "name": "net", "opt": None}
    )
    diff, rest = tdfunc.partition(params, "inexact")

    def loss(d: TensorDict) -> torch.Tensor:
        p = tdfunc.combine(d, rest)
        return (p["w"] ** 2).sum() * p["step"]

    out, value = grad_and_value(loss)(diff)
    assert out["w"].tolist() == [6, 6]
    assert float(value) == 6
    assert out.keys() == ("w",)
    assert tdfunc.combine(out, rest)["name"] == "net"

    only = params.drop("step")
    gradient = grad(lambda p: (p["w"] ** 2).sum())(only)
    assert gradient["w"].tolist() == [2, 2]
    assert (gradient["name"], gradient["opt"]) == ("net", None)


def test_a_value_dependent_branch_is_a_where_in_the_body() -> None:
    td = TensorDict(
        {"x": torch.tensor([1.0, 2.0]), "flag": torch.tensor([True, False])}, 2
    )
    out = vmap(lambda t: torch.where(t["flag"], t["x"], -t["x"]))(td)
    assert out.tolist() == [1, -2]


def test_an_ensemble_takes_one_step_of_gradient_descent() -> None:
    members = TensorDict({"w": torch.tensor([1.0, 2.0, 3.0])}, 3)
    gradient = vmap(grad(lambda p: p["w"] ** 2))
    stepped = members - 0.1 * gradient(members)
    torch.testing.assert_close(stepped["w"], torch.tensor([0.8, 1.6, 2.4]))
    assert stepped.batch_size == Size((3,))

    alone = members[1]
    alone = alone - 0.1 * grad(lambda p: p["w"] ** 2)(alone)
    assert float(alone["w"]) == float(stepped["w"][1])


def test_cross_entropy_over_a_mapped_tree_equals_the_loop() -> None:
    logits = ramp(4, 3) / 5
    target = torch.tensor([0, 2, 1, 1])
    td = TensorDict({"logits": logits, "target": target}, 4)
    out = vmap(lambda t: F.cross_entropy(t["logits"], t["target"]))(td)
    rows = zip(logits, target, strict=True)
    expected = torch.stack([F.cross_entropy(x, y) for x, y in rows])
    torch.testing.assert_close(out, expected)


def test_vmap_with_different_randomness_draws_for_each_row() -> None:
    td = TensorDict({"x": torch.zeros(4, 3)}, 4)
    noisy = vmap(lambda t: t.apply(lambda x: x + torch.rand(3)), randomness="different")
    out = noisy(td)
    assert out.batch_size == Size((4,))
    assert len({tuple(row) for row in out["x"].tolist()}) == 4


@cases(lambda case: batched(case) and 0 not in case.batch)
def test_transforms_change_nothing_in_their_inputs(case: Case) -> None:
    td = case.tree
    before = [(x._version, x.clone()) for x in td.values(True, True)]
    vmap(double)(td)
    if floating(case):
        grad(energy)(td)
    for x, (version, copy) in zip(td.values(True, True), before, strict=True):
        assert x._version == version
        assert same(x, copy)


# Other tools of torch that take functions of pytrees


def test_make_fx_traces_a_function_of_trees() -> None:
    td = TensorDict({"x": ramp(3, 2), "n": {"y": ramp(3)}, "s": "text"}, 3)
    graph = make_fx(lambda t: (t * 2)[0])(td)
    out = graph(td + 1)
    expected = {("x",): (ramp(3, 2)[0] + 1) * 2, ("n", "y"): (ramp(3)[0] + 1) * 2}
    check(out, (), expected, {("s",): "text"})


# torch's own, from the graph that linearize makes.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr:UserWarning")
def test_functionalize_linearize_and_aux_outputs_keep_trees() -> None:
    td = TensorDict({"x": ramp(3, 2) + 1}, 3)
    squared, twice = (ramp(3, 2) + 1) ** 2, 2 * (ramp(3, 2) + 1)

    check(functionalize(lambda t: t * t)(td), (3,), {("x",): squared})
    out, push = linearize(lambda t: t * t, td)
    check(out, (3,), {("x",): squared})
    check(push(td), (3,), {("x",): twice * (ramp(3, 2) + 1)})

    jacobian, aux = jacrev(lambda t: (t["x"].sum(), t * 2), has_aux=True)(td)
    check(jacobian, (3,), {("x",): torch.ones(3, 2)})
    check(aux, (3,), {("x",): twice})
    with_aux: Any = jvp(lambda t: (t * t, t * 2), (td,), (td,), has_aux=True)
    _, tangent, aux = with_aux
    check(tangent, (3,), {("x",): 2 * squared})
    check(aux, (3,), {("x",): twice})


def test_checkpoint_recomputes_a_function_of_trees() -> None:
    x = (ramp(3, 2) + 1).requires_grad_()
    td = TensorDict({"x": x, "s": "text"}, 3)
    calls: list[str] = []

    def loss(t: TensorDict) -> torch.Tensor:
        calls.append(t["s"])
        return (t * t).sum(reduce=True)

    out: Any = checkpoint(loss, td, use_reentrant=False)
    out.backward()
    assert calls == ["text", "text"]
    assert x.grad is not None
    assert same(x.grad, 2 * (ramp(3, 2) + 1))


def test_modes_of_torch_see_trees_as_their_leaves() -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3)}, 3)

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Count() as mode:
        td * 2
    assert mode.seen == ["aten.mul.Tensor", "aten.mul.Tensor"]

    with FakeTensorMode() as fake:
        shapes = (td.apply(fake.from_tensor) * 2 + 1)[0]
    assert shapes.batch_size == Size(())
    assert shapes["x"].shape == (2,)

    with torch.inference_mode():
        assert float((td + td).sum(reduce=True)) == 2 * (15 + 3)
