"""stack and cat: torch's on every leaf; what differs is listed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import OperandError, ShapeError, StructureError
from tests.cases import Case, cases, check, fingerprint, ramp, same

Size = torch.Size
STACKS = {
    "tdfunc.stack": tdfunc.stack,
    "torch.stack": torch.stack,
    "TensorDict.stack": TensorDict.stack,
}
CATS = {
    "tdfunc.cat": tdfunc.cat,
    "torch.cat": torch.cat,
    "torch.concat": torch.concat,
    "torch.concatenate": torch.concatenate,
    "TensorDict.cat": TensorDict.cat,
}


def other_values(case: Case) -> TensorDict:
    return case.tree.apply(lambda x: x if x.dtype == torch.bool else x + 1)


def plus(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.bool else x + 1


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
@cases()
def test_stack_is_torchs_on_every_leaf_and_dim(case: Case, stack: Any) -> None:
    dims = len(case.batch)
    trees = [case.tree, other_values(case), case.tree]
    for dim in range(-dims - 1, dims + 1):
        at = dim % (dims + 1)
        out = stack(trees, dim)
        batch = (*case.batch[:at], 3, *case.batch[at:])
        expected = case.mapped(lambda x, at=at: torch.stack([x, plus(x), x], at))
        check(out, batch, expected, case.statics)


@pytest.mark.parametrize("cat", CATS.values(), ids=CATS)
@cases(lambda case: bool(case.batch))
def test_cat_is_torchs_on_every_leaf_and_dim(case: Case, cat: Any) -> None:
    dims = len(case.batch)
    trees = [case.tree, other_values(case)]
    for dim in range(-dims, dims):
        at = dim % dims
        out = cat(trees, dim)
        batch = (*case.batch[:at], 2 * case.batch[at], *case.batch[at + 1 :])
        expected = case.mapped(lambda x, at=at: torch.cat([x, plus(x)], at))
        check(out, batch, expected, case.statics)


def test_cat_joins_other_lengths() -> None:
    a = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}}, 2)
    b = TensorDict({"x": ramp(5, 3), "n": {"y": ramp(5)}}, 5)
    empty = TensorDict({"x": ramp(0, 3), "n": {"y": ramp(0)}}, 0)
    out = tdfunc.cat([a, empty, b])
    expected = {
        ("x",): torch.cat([ramp(2, 3), ramp(5, 3)]),
        ("n", "y"): torch.cat([ramp(2), ramp(5)]),
    }
    check(out, (7,), expected)


@cases(lambda case: bool(case.batch) and 0 not in case.batch)
def test_stack_of_unbind_and_cat_of_rows_are_the_tree(case: Case) -> None:
    td = case.tree
    for dim in range(len(case.batch)):
        rows = td.unbind(dim)
        check(tdfunc.stack(rows, dim), case.batch, case.leaves, case.statics)
        whole = tdfunc.cat([row.unsqueeze(dim) for row in rows], dim)
        check(whole, case.batch, case.leaves, case.statics)


def test_key_order_does_not_matter_and_is_that_of_the_first() -> None:
    a = TensorDict(
        {"x": ramp(2), "y": ramp(2) + 2, "n": {"p": ramp(2), "q": ramp(2)}}, 2
    )
    b = TensorDict(
        {"n": {"q": ramp(2), "p": ramp(2)}, "y": ramp(2) + 3, "x": ramp(2)}, 2
    )
    for out in (tdfunc.stack([a, b]), tdfunc.cat([a, b])):
        assert out.keys() == ("x", "y", "n")
    assert same(tdfunc.stack([a, b])["y"], torch.stack([ramp(2) + 2, ramp(2) + 3]))


def test_any_iterable_of_trees_is_taken() -> None:
    td = TensorDict({"x": ramp(2)}, 2)
    assert tdfunc.stack(td for _ in range(3)).batch_size == Size((3, 2))
    assert tdfunc.cat(iter([td, td])).batch_size == Size((4,))
    assert tdfunc.stack({1: td}.values()).batch_size == Size((1, 2))


def test_names_on_which_all_agree_stay() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3), names=("t", "env"))
    other = td.with_names(["time", "env"])
    bare = td.with_names(None)
    assert tdfunc.stack([td, td]).names == (None, "t", "env")
    assert tdfunc.stack([td, td], 1).names == ("t", None, "env")
    assert tdfunc.stack([td, other]).names == (None, None, "env")
    assert tdfunc.stack([td, bare]).names is None
    assert tdfunc.stack([bare, td]).names is None
    assert tdfunc.cat([td, td]).names == ("t", "env")
    assert tdfunc.cat([td, other], "env").names == (None, "env")
    assert tdfunc.cat([td, td], "env").batch_size == Size((2, 6))


def test_dtypes_promote_as_in_torch() -> None:
    a = TensorDict({"x": torch.tensor([1, 2])}, 2)
    b = TensorDict({"x": torch.tensor([0.5, 1.5])}, 2)
    for join, torch_join in ((tdfunc.stack, torch.stack), (tdfunc.cat, torch.cat)):
        assert same(join([a, b])["x"], torch_join([a["x"], b["x"]]))


def test_wider_nodes_keep_their_surplus_and_must_agree_on_it() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4)}, (2, 3))
    td = TensorDict({"a": inner, "r": ramp(2)}, 2)
    assert tdfunc.stack([td, td])["a"].batch_size == Size((2, 2, 3))
    assert tdfunc.cat([td, td])["a"].batch_size == Size((4, 3))
    narrow = TensorDict({"a": {"o": ramp(2, 3, 4)}, "r": ramp(2)}, 2)
    with pytest.raises(ShapeError, match="nested nodes with other batch sizes"):
        tdfunc.stack([td, narrow])


def test_results_are_copies() -> None:
    td = TensorDict({"x": ramp(2)}, 2)
    for out in (tdfunc.stack([td]), tdfunc.cat([td])):
        assert out["x"].data_ptr() != td["x"].data_ptr()


@cases()
def test_joining_changes_nothing_in_its_trees(case: Case) -> None:
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td = case.tree
    tdfunc.stack([td, td])
    if case.batch:
        tdfunc.cat([td, td])
    assert fingerprint(tensors) == before


def test_joining_is_differentiable_and_maps() -> None:
    td = TensorDict({"x": ramp(2, 3)}, 2)
    weight = ramp(2, 2, 3)
    gradient = torch.func.grad(
        lambda t: (tdfunc.stack([t, t * 2])["x"] * weight).sum()
    )(td)
    assert same(gradient["x"], weight[0] + 2 * weight[1])
    stack: Any = torch.stack
    out = torch.vmap(lambda t: stack([t, t * 2]))(td)
    check(out, (2, 2), {("x",): torch.stack([ramp(2, 3), ramp(2, 3) * 2], 1)})


# Errors


@pytest.mark.parametrize("join", [tdfunc.stack, tdfunc.cat])
def test_every_difference_of_every_tree_is_listed(join: Any) -> None:
    first = TensorDict({"a": ramp(2), "n": {"b": ramp(2), "c": ramp(2)}, "s": "t"}, 2)
    trees = [
        first,
        first.drop("a").set("z", ramp(2)),
        first,
        first.set("s", ramp(2)).drop(("n", "b")).set(("n", "d"), {"e": ramp(2)}),
        first.set("n", ramp(2)),
    ]
    with pytest.raises(StructureError) as caught:
        join(trees)
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, ValueError)
    text = str(caught.value)
    assert "the trees do not have the same entries" in text
    assert "argument 1: td['a'] is missing, td['z'] is extra" in text
    assert "argument 2" not in text
    assert "td['n', 'b'] is missing" in text
    assert "td['n', 'd'] is extra" in text
    # What is inside an extra node goes without saying.
    assert "'e'" not in text
    assert "td['s'] is a tensor, not a static value" in text
    assert "argument 4: td['n'] is a tensor, not a TensorDict" in text or (
        "td['n'] is a tensor, not a TensorDict" in text
    )
    assert "select the entries that they share" in text


@pytest.mark.parametrize("join", [tdfunc.stack, tdfunc.cat])
def test_leaves_of_other_shapes_are_listed(join: Any) -> None:
    a = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2, 4)}, "z": ramp(2)}, 2)
    for b in (
        a.set("x", ramp(2, 5)).set(("n", "y"), ramp(2, 6)),
        a.set("x", ramp(2)).set(("n", "y"), ramp(2, 6)),
    ):
        with pytest.raises(ShapeError) as caught:
            join([a, a, b])
        text = str(caught.value)
        assert "tree 2 has leaves of other shapes" in text
        assert f"td['x'] {list(b['x'].shape)} instead of [2, 3]" in text
        assert "td['n', 'y'] [2, 6] instead of [2, 4]" in text
        assert "td['z']" not in text


def test_stack_of_other_batch_sizes_points_to_cat() -> None:
    a, b = TensorDict({"x": ramp(2, 3)}, 2), TensorDict({"x": ramp(4, 3)}, 4)
    with pytest.raises(ShapeError) as caught:
        tdfunc.stack([a, b])
    text = str(caught.value)
    assert "tree 1 has another batch size" in text
    assert "expected [2]" in text
    assert "got [4]" in text
    assert "tdfunc.cat" in text


def test_cat_of_batch_sizes_that_differ_elsewhere_says_where() -> None:
    a, b = TensorDict({"x": ramp(2, 3)}, (2, 3)), TensorDict({"x": ramp(2, 4)}, (2, 4))
    assert tdfunc.cat([a, b], 1).batch_size == Size((2, 7))
    with pytest.raises(ShapeError, match="tree 1 has another batch size") as caught:
        tdfunc.cat([a, b], 0)
    assert "expected [2, 3], except at dim 0" in str(caught.value)
    with pytest.raises(ShapeError, match="another batch size"):
        tdfunc.cat([a, a.with_batch_size([2])], 0)


@pytest.mark.parametrize("join", [tdfunc.stack, tdfunc.cat])
def test_nothing_one_tree_and_other_things_are_refused(join: Any) -> None:
    td = TensorDict({"x": ramp(2)}, 2)
    with pytest.raises(OperandError, match="nothing to join"):
        join([])
    with pytest.raises(
        OperandError, match=r"a list or tuple of trees.*pass \[td, ...\]"
    ):
        join(td)
    with pytest.raises(OperandError, match=r"argument 1 is no tree.*got Tensor"):
        join([td, ramp(2)])
    with pytest.raises(OperandError, match=r"argument 0 is no tree.*got dict"):
        join([{"x": ramp(2)}])


@pytest.mark.parametrize("join", [torch.stack, torch.cat])
def test_torch_refuses_a_list_that_begins_with_a_tensor(join: Any) -> None:
    td = TensorDict({"x": ramp(2)}, 2)
    with pytest.raises(OperandError, match="argument 0 is no tree"):
        join([ramp(2), td])


@pytest.mark.parametrize("join", [tdfunc.stack, tdfunc.cat])
def test_what_torch_refuses_for_another_reason_names_the_leaf(join: Any) -> None:
    a = TensorDict({"x": ramp(2), "n": {"y": ramp(2)}}, 2)
    b = a.set(("n", "y"), ramp(2).to_sparse())
    with pytest.raises(RuntimeError) as caught:
        join([a, b])
    assert any("td['n', 'y']" in note for note in caught.value.__notes__)
