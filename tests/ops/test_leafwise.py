"""apply and named_apply: a loop over the leaves, checked where it matters."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tdfunc import TensorDict
from tdfunc.errors import (
    BatchSizeError,
    InvalidLeafError,
    OperandError,
    OptionError,
    StructureError,
)
from tests.cases import Case, cases, check, fingerprint, ramp, same

Size = torch.Size


@cases()
def test_apply_is_a_loop_over_the_leaves(case: Case) -> None:
    td = case.tree
    out = td.apply(lambda x: x == x.clone())
    check(out, case.batch, case.mapped(lambda x: x == x.clone()), case.statics)
    assert out.keys(True) == td.keys(True)
    assert out.names == case.names
    for path, batch in case.batches.items():
        assert (out[path] if path else out).batch_size == Size(batch)


@cases()
def test_apply_calls_in_sorted_order_with_the_very_tensors(case: Case) -> None:
    seen: list[torch.Tensor] = []
    case.tree.apply(lambda x: seen.append(x) or x)
    assert [id(x) for x in seen] == [id(x) for x in case.leaves.values()]


@cases()
def test_apply_pairs_other_trees_by_path(case: Case) -> None:
    td = case.tree
    first = td.apply(lambda x: torch.ones_like(x, dtype=torch.float32))
    second = td.apply(lambda x: torch.full_like(x, 2, dtype=torch.float32))
    out = td.apply(lambda x, y, z: (y - z) * torch.ones(x.shape), first, second)
    check(out, case.batch, case.mapped(lambda x: -torch.ones(x.shape)), case.statics)


def test_apply_pairs_by_path_and_not_by_order() -> None:
    a = TensorDict({"x": ramp(2), "n": {"p": ramp(2) + 1, "q": ramp(2) + 2}}, 2)
    b = TensorDict({"n": {"q": ramp(2) + 20, "p": ramp(2) + 10}, "x": ramp(2) + 30}, 2)
    out = a.apply(torch.sub, b)
    assert out["n", "p"].tolist() == [-9, -9]
    assert out["n", "q"].tolist() == [-18, -18]
    assert out.keys(True) == a.keys(True)


@cases(lambda case: bool(case.leaves))
def test_apply_keeps_the_batch_when_feature_ranks_change(case: Case) -> None:
    td = case.tree
    out = td.apply(lambda x: x.unsqueeze(-1))
    check(out, case.batch, case.mapped(lambda x: x.unsqueeze(-1)), case.statics)
    back = out.apply(lambda x: x.squeeze(-1))
    check(back, case.batch, case.leaves, case.statics)
    assert back._schema is td._schema


@cases(lambda case: bool(case.batch) and bool(case.leaves))
def test_apply_with_a_batch_size_gives_that_batch(case: Case) -> None:
    td = case.tree
    rest = case.batch[1:]
    out = td.apply(lambda x: x.sum(0), batch_size=rest)
    check(out, rest, case.mapped(lambda x: x.sum(0)), case.statics)
    assert out.names is None
    more = td.apply(lambda x: x[None], batch_size=(1, *case.batch))
    check(more, (1, *case.batch), case.mapped(lambda x: x[None]), case.statics)
    none = td.apply(lambda x: x, batch_size=[])
    check(none, (), case.leaves, case.statics)


def test_apply_keeps_names_while_the_number_of_batch_dims_stays() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3), names=("t", "env"))
    assert td.apply(torch.sin).names == ("t", "env")
    assert td.apply(lambda x: x[:1], batch_size=[1, 3]).names == ("t", "env")
    assert td.apply(lambda x: x[0], batch_size=[3]).names is None


def test_apply_keeps_as_much_surplus_as_the_results_have() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4), "p": ramp(2, 3)}, (2, 3))
    td = TensorDict({"a": inner, "r": ramp(2)}, 2)
    assert td.apply(torch.sin)["a"].batch_size == Size((2, 3))
    summed = td.apply(lambda x: x.reshape(2, -1).sum(-1))
    assert summed["a"].batch_size == Size((2,))
    other = td.apply(lambda x: x.flatten(1) if x.dim() == 3 else x)
    assert other["a"].batch_size == Size((2,))


def test_apply_of_a_tree_without_leaves_calls_nothing() -> None:
    def broken() -> torch.Tensor:
        raise AssertionError

    td = TensorDict({"s": "text", "n": {}}, 3)
    out = td.apply(lambda _: broken())
    assert (out.batch_size, out["s"]) == (Size((3,)), "text")


# named_apply


@cases()
def test_named_apply_gives_the_last_key_or_the_whole_path(case: Case) -> None:
    last: list[Any] = []
    whole: list[Any] = []
    out = case.tree.named_apply(lambda name, x: last.append(name) or x)
    case.tree.named_apply(lambda name, x: whole.append(name) or x, nested_keys=True)
    check(out, case.batch, case.leaves, case.statics)
    assert last == [path[-1] for path in case.leaves]
    assert whole == [path if path[1:] else path[0] for path in case.leaves]


def test_named_apply_takes_other_trees_and_a_batch_size() -> None:
    td = TensorDict({"a": ramp(2, 3), "n": {"bc": ramp(2, 3)}}, 2)
    out = td.named_apply(
        lambda name, x, y: (x + y).sum(0) * len(name), td, batch_size=[]
    )
    total = ramp(2, 3).sum(0) * 2
    check(out, (), {("a",): total, ("n", "bc"): total * 2})


# Errors


def both(td: TensorDict, fn: Any, *others: Any, **options: Any) -> list[Any]:
    return [
        lambda: td.apply(fn, *others, **options),
        lambda: td.named_apply(lambda _, *x: fn(*x), *others, **options),
    ]


def test_a_result_that_loses_the_batch_says_where_and_how() -> None:
    td = TensorDict({"a": ramp(3, 2), "n": {"b": ramp(3, 4)}}, 3)
    for use in both(td, lambda x: x.sum(0) if x.shape[-1] == 4 else x):
        with pytest.raises(BatchSizeError) as caught:
            use()
        text = str(caught.value)
        assert "the function changed the batch size" in text
        assert "at td['n', 'b']" in text
        assert "expected a shape that starts with [3]" in text
        assert "got shape [4]" in text
        assert "pass batch_size=" in text


def test_a_result_that_does_not_fit_the_given_batch_size_says_both() -> None:
    td = TensorDict({"a": ramp(3, 2)}, 3)
    for use in both(td, lambda x: x, batch_size=[2]):
        with pytest.raises(BatchSizeError) as caught:
            use()
        text = str(caught.value)
        assert "at td['a']" in text
        assert "expected a shape that starts with [2]" in text
        assert "got shape [3, 2]" in text
    for use in both(td, lambda x: x, batch_size="no"):
        with pytest.raises(OptionError, match="batch_size is not a size"):
            use()


@pytest.mark.parametrize("result", [None, 1, "text", [1]], ids=repr)
def test_a_result_that_is_no_tensor_names_the_leaf(result: Any) -> None:
    td = TensorDict({"a": ramp(3), "n": {"b": ramp(3, 4)}}, 3)
    for use in both(td, lambda x: result if x.dim() == 2 else x):
        with pytest.raises(InvalidLeafError) as caught:
            use()
        assert isinstance(caught.value, TypeError)
        text = str(caught.value)
        assert "the function returned no tensor" in text
        assert "at td['n', 'b']" in text
        assert f"got {type(result).__name__}" in text
        assert "td.select(...)" in text
        assert "tree_map" in text


def test_trees_of_other_entries_are_refused_with_all_differences() -> None:
    td = TensorDict({"a": ramp(3), "b": ramp(3)}, 3)
    other = TensorDict({"a": ramp(3), "c": ramp(3)}, 3)
    for use in both(td, torch.add, td, other):
        with pytest.raises(StructureError) as caught:
            use()
        text = str(caught.value)
        assert "argument 2: td['b'] is missing, td['c'] is extra" in text


@pytest.mark.parametrize("other", [1, ramp(3), {"a": ramp(3)}, None], ids=repr)
def test_other_operands_are_refused(other: Any) -> None:
    td = TensorDict({"a": ramp(3)}, 3)
    for use in both(td, torch.add, other):
        with pytest.raises(
            OperandError, match="only trees can be applied over"
        ) as caught:
            use()
        assert f"got {type(other).__name__}" in str(caught.value)


def test_an_error_of_the_function_has_the_path_in_a_note() -> None:
    td = TensorDict({"a": ramp(3), "n": {"b": ramp(3, 4), "c": ramp(3)}}, 3)

    def fn(x: torch.Tensor, *_: Any) -> torch.Tensor:
        if x.dim() == 2:
            raise KeyError("mine")
        return x

    for use in (*both(td, fn), *both(td, fn, td)):
        with pytest.raises(KeyError, match="mine") as caught:
            use()
        assert caught.value.__notes__ == ["tdfunc: at td['n', 'b']"]


def test_an_in_place_function_is_the_users_own_act_and_shows_in_the_version() -> None:
    # apply does not copy; `clone` first. The version counter of torch tells.
    x = ramp(3)
    td = TensorDict({"x": x}, 3)
    td.clone().apply(lambda y: y.add_(1))
    assert x._version == 0
    assert same(x, ramp(3))


@cases()
def test_apply_changes_nothing_in_its_trees(case: Case) -> None:
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td = case.tree
    td.apply(lambda x: x == x.clone()).named_apply(lambda _, x: ~x)
    td.apply(lambda x, y: x == y, td)
    assert fingerprint(tensors) == before


def test_apply_differentiates_and_maps() -> None:
    td = TensorDict({"x": ramp(3, 2), "n": {"y": ramp(3)}}, 3)
    gradient = torch.func.grad(lambda t: t.apply(torch.square).sum(reduce=True))(td)
    check(gradient, (3,), {("x",): 2 * ramp(3, 2), ("n", "y"): 2 * ramp(3)})
    out = torch.vmap(lambda t: t.apply(lambda x: x.sum().expand(2), batch_size=[2]))(td)
    rows = {("x",): ramp(3, 2).sum(1)[:, None].expand(3, 2)}
    check(out, (3, 2), {**rows, ("n", "y"): ramp(3)[:, None].expand(3, 2)})


def test_the_message_of_a_missing_entry_reads_as_python() -> None:
    td = TensorDict({"a.b": ramp(3, 2), "it's": ramp(3)}, 3)
    with pytest.raises(BatchSizeError, match=re.escape("td['a.b']")):
        td.apply(lambda x: x.sum(0) if x.dim() == 2 else x)


def test_a_function_that_raises_stop_iteration_does_not_cut_the_tree_short() -> None:
    td = TensorDict({"a": ramp(3), "n": {"b": ramp(3, 4)}}, 3)

    def fn(x: torch.Tensor, *_: Any) -> torch.Tensor:
        if x.dim() == 2:
            raise StopIteration
        return x

    for use in (*both(td, fn), *both(td, fn, td)):
        with pytest.raises(RuntimeError, match=re.escape("td['n', 'b']")):
            use()
