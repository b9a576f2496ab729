"""Lazy stacks whose members hold text, and what they say of themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import TensorDict, lazy_stack
from tdfunc.errors import (
    MissingKeyError,
    OperandError,
    ShapeError,
    StructureError,
    TreeIndexError,
)
from tdfunc.testing import assert_equal, assert_valid

FN: Any = torch  # its functions take trees, which its types do not say
MASK = torch.tensor([True, False, True])


def texts(*values: str, static: str = "same") -> TensorDict:
    n = len(values)
    return TensorDict({"a": torch.arange(float(n)), "t": [*values], "s": static}, n)


def pair() -> tuple[Any, Any]:
    one, two = texts("p", "q", "r"), texts("x", "q", "z", static="other")
    return lazy_stack([one, one]), lazy_stack([two, two])


# Choosing


def test_where_with_a_number_keeps_text() -> None:
    stack, _ = pair()
    for out in (
        stack.where(MASK, 0),
        FN.where(MASK, stack, 0),
        stack.masked_fill(~MASK, 0),
    ):
        assert_valid(out)
        assert_equal(out.densify(), stack.densify().where(MASK, 0))
        assert out["t"] == [["p", "q", "r"]] * 2
    other = tdfunc.where(MASK, 5, stack)
    assert other["t"] == stack["t"]
    assert other[0]["a"].tolist() == [5, 1, 5]


def test_where_of_two_stacks_chooses_text_and_statics() -> None:
    stack, other = pair()
    wanted = stack.densify().where(MASK, other.densify())
    for right in (other, other.densify()):
        out = stack.where(MASK, right)
        assert type(out) is type(stack)
        assert out["t"] == [["p", "q", "r"]] * 2
        assert out["s"] == [["same", "other", "same"]] * 2
        assert_equal(out.densify(), wanted)
    assert_equal(stack.densify().where(MASK, other), wanted)
    rows = torch.tensor([[True], [False]])
    assert stack.where(rows, other)["t"] == [["p", "q", "r"], ["x", "q", "z"]]


def test_where_under_a_tree_of_booleans() -> None:
    stack, other = pair()
    condition = stack == other
    out = stack.where(condition, other)
    assert out["t"] == [["x", "q", "z"]] * 2
    assert out["s"] == "same"
    filled = stack.masked_fill(stack > 0, 7)
    assert filled["t"] == stack["t"]
    assert filled[1]["a"].tolist() == [0, 7, 7]


@pytest.mark.parametrize("fn", ["where", "masked_fill"])
def test_in_a_stack_that_is_an_entry(fn: str) -> None:
    stack, _ = pair()
    td = TensorDict({"a": torch.ones(2), "g": stack, "t": ["k", "l"], "s": "S"}, 2)
    mask = torch.tensor([True, False])
    out = td.where(mask, 0) if fn == "where" else td.masked_fill(~mask, 0)
    assert_valid(out)
    assert out["g", "t"] == stack["t"]
    assert out["t"] == ["k", "l"]
    assert out["s"] == "S"
    assert out["a"].tolist() == [1, 0]
    assert out["g", "a"].tolist() == [[0, 1, 2], [0, 0, 0]]


def test_two_trees_with_stacks_as_entries() -> None:
    stack, other = pair()
    one = TensorDict({"g": stack, "t": ["k", "l"], "s": "A", "z": torch.ones(2)}, 2)
    two = TensorDict({"g": other, "t": ["m", "n"], "s": "B", "z": torch.ones(2)}, 2)
    out = one.where(torch.tensor([True, False]), two)
    assert_valid(out)
    assert out["t"] == ["k", "n"]
    assert out["s"] == ["A", "B"]
    assert out["g", "t"] == [["p", "q", "r"], ["x", "q", "z"]]
    assert out["g", "s"] == [["same"] * 3, ["other"] * 3]
    condition = one == two
    assert condition["g", "t"].tolist() == [[False, True, False]] * 2
    assert condition["t"].tolist() == [False, False]
    assert one.where(condition, two)["g", "t"] == [["x", "q", "z"]] * 2
    with pytest.raises(StructureError, match="is missing"):
        one.where(torch.tensor([True, False]), two.drop("g"))


# Comparing


def test_text_of_members_is_compared() -> None:
    stack, other = pair()
    dense, other_dense = stack.densify(), other.densify()
    for right in (other, other_dense):
        for name in ("eq", "ne", "isclose"):
            out = getattr(stack, name)(right)
            wanted = getattr(dense, name)(other_dense)
            assert type(out) is type(stack)
            assert_equal(out.densify(), wanted)
        assert not (stack == right).all()
        assert not stack.allclose(right)
    assert_equal(dense == other, dense == other_dense)
    assert_equal(dense.isclose(other), dense.isclose(other_dense))
    assert stack.eq(stack).all()
    assert stack.allclose(stack)
    assert (stack == 0)["t"] == stack["t"]


def test_closeness_beside_text() -> None:
    stack, _ = pair()
    near = stack + 1e-9
    td = TensorDict({"a": torch.ones(2), "t": ["k", "l"], "g": stack}, 2)
    close = td.isclose(td.set("g", near))
    assert close["t"].tolist() == [True, True]
    assert close["g", "t"].all()
    assert close["g", "a"].all()
    assert not td.set("t", ["k", "m"]).allclose(td)


# Dims that go


@pytest.mark.parametrize("dim", [0, 1])
def test_squeezing_the_stack_dim_gives_the_member(dim: int) -> None:
    one = texts("p", "q")
    stack = lazy_stack([one], dim)
    for out in (stack.squeeze(dim), stack.squeeze(), torch.squeeze(stack, dim)):
        assert out is one
    more = lazy_stack([one, one], dim)
    part = more[:1] if dim == 0 else more[:, :1]
    assert_equal(part.squeeze(dim), one)
    td = TensorDict({"g": stack, "a": torch.ones(stack.batch_size)}, stack.batch_size)
    out = td.squeeze(dim)
    assert_valid(out)
    assert out.batch_size == (2,)
    assert type(out["g"]) is TensorDict
    assert out["g", "t"] == ["p", "q"]
    both = lazy_stack([texts("p")], dim).squeeze()
    assert_equal(both, texts("p")[0])


def test_names_stay_where_the_stack_dim_is_indexed() -> None:
    one = texts("p", "q")
    stack = lazy_stack([one, one]).with_names(["s", "b"])
    rows = [stack[0], stack[0, ...], next(iter(stack)), stack.unbind()[1]]
    rows += [stack.at[0].get(), stack[:1].squeeze(0), stack[torch.tensor(1)]]
    for row in rows:
        assert row.names == ("b",)
        assert_equal(row, one)
    assert stack[:, 0].names == ("s",)
    assert stack[0, 0].names is None
    assert lazy_stack([one, one], name="s")[0] is one
    named = one.with_names(["b"])
    assert lazy_stack([named, named], name="s")[0] is named
    for longer in (stack.append(one), stack.extend([named]), stack.insert(0, one)):
        assert longer.names == ("s", "b")


# Reading


def test_stacks_of_stacks_are_read() -> None:
    stack, other = pair()
    both = FN.stack([stack, other])
    assert both["t"] == [[["p", "q", "r"]] * 2, [["x", "q", "z"]] * 2]
    assert both["s"] == [[["same"] * 3] * 2, [["other"] * 3] * 2]
    assert FN.stack([stack, stack], 2)["s"] == "same"
    assert both["t"] == both.densify()["t"]
    nested = lazy_stack([TensorDict({"g": s}) for s in (stack, other)])
    assert nested["g", "t"] == both["t"]
    fixed = lazy_stack([TensorDict({"u": tdfunc.unbatched(torch.ones(2))}, 3)] * 2)
    assert FN.stack([fixed, fixed])["u"].shape == (2,)


def test_ints_index_dims_whose_size_differs() -> None:
    a, b = texts("p", "q"), texts("x", "y", "z")
    stack = lazy_stack([a, b])
    assert stack[1, 2]["t"] == "z"
    assert stack[:, 1]["t"] == ["q", "y"]
    assert stack[:, -1]["t"] == ["q", "z"]
    assert lazy_stack([a, b], 1)[1]["t"] == ["q", "y"]
    for index in ((0, 2), (slice(None), 2)):
        with pytest.raises(TreeIndexError, match="index 2 is out of range"):
            stack[index]


# Derivatives


@pytest.mark.parametrize("size", [(), (1,), (4,), (2, 2)])
@pytest.mark.parametrize("place", [torch.func, tdfunc])
def test_jacobians_of_members_with_other_keys(place: Any, size: tuple[int]) -> None:
    a = TensorDict({"x": torch.rand(size)}, size)
    b = TensorDict({"x": torch.rand(size), "y": torch.rand((*size, 2))}, size)
    for dim in (0, -1):
        stack = lazy_stack([a, b], dim)
        for name in ("jacrev", "jacfwd"):
            out = getattr(place, name)(lambda t: t**2)(stack)
            assert out.stack_dim == stack.stack_dim
            assert out.batch_size[: stack.batch_dims] == stack.batch_size
            assert out.keys() == ("x",)
            own = out.tensordicts[1]["y"]
            wanted = torch.func.jacrev(torch.square)(b["y"])
            assert own.tensordicts[1].keys() == ("x", "y")
            torch.testing.assert_close(own.tensordicts[1]["y"], wanted)
            assert not own.tensordicts[0]["x"].any()
            assert "LazyStacked" in repr(out)
        hessian = place.hessian(lambda t: (t**2).sum(reduce=True))(stack)
        wanted = torch.func.hessian(lambda y: (y**2).sum())(b["y"])
        found = hessian.tensordicts[1]["y"].tensordicts[1]["y"]
        torch.testing.assert_close(found, wanted)


def test_vmap_refuses_the_stack_dim() -> None:
    a = TensorDict({"x": torch.ones(4, 2)}, 4)
    b = TensorDict({"x": torch.ones(4, 3), "y": torch.ones(4)}, 4)
    w = torch.ones(2)
    for dim in (0, 1):
        stack = lazy_stack([a, b], dim)
        td = TensorDict({"g": stack, "w": torch.ones(stack.batch_size)}, [])
        td = td.with_batch_size(stack.batch_size)
        for arg in (stack, td, {"k": [td]}):
            for dims in (dim, (dim,)):
                with pytest.raises(OperandError, match="can not be mapped"):
                    tdfunc.vmap(lambda t: t, dims)(arg)
        out = tdfunc.vmap(lambda t: t * 2, 1 - dim, 1 - dim)(stack)
        assert_equal(out, stack * 2)
        kept = tdfunc.vmap(lambda x, t: x * t[0].sum(reduce=True), (0, None))(w, stack)
        assert kept.shape == (2,)
    with pytest.raises(OperandError, match="can not be mapped - at td\\['g'\\]"):
        tdfunc.vmap(lambda t: t["w"])(TensorDict({"g": lazy_stack([a, b]), "w": w}, 2))


# What a stack says of itself


def test_the_full_form_counts_members() -> None:
    stack, _ = pair()
    text = stack.to_tree_string()
    assert f"leaves=4, bytes={stack.bytes()} B" in text
    assert "[1]  TensorDict  [3]  36 B  a, s, t" in text
    td = TensorDict({"g": stack, "w": torch.ones(2)}, 2)
    text = td.to_tree_string()
    assert f"leaves=5, bytes={td.bytes()} B" in text
    assert "[2, 3]  72 B  2 trees stacked along dim 0" in text
    assert "... 12 more" in lazy_stack([texts("p")] * 20).to_tree_string()
    assert "72 B" in td._repr_html_()
    gone = pytree.tree_map(lambda _: None, stack)
    assert gone.to_tree_string()


def test_shapes_of_unbatched_entries() -> None:
    one = TensorDict({"u": tdfunc.unbatched(torch.ones(2)), "x": torch.ones(4)}, 4)
    stack = lazy_stack([one])
    assert "{u: [2], x: [1, 4]}" in repr(stack)
    assert stack.get_item_shape("u") == stack["u"].shape == (2,)
    nested = lazy_stack([TensorDict({"g": stack}), TensorDict({"g": stack})])
    assert nested.get_item_shape(("g", "u")) == (2,)


def test_stacks_too_deep_are_refused() -> None:
    stack: Any = TensorDict({"x": torch.ones(())})
    for _ in range(64):
        stack = lazy_stack([stack])
    assert (stack * 2)["x"].dim() == 64
    for make in (lambda: lazy_stack([stack]), lambda: FN.stack([stack, stack])):
        with pytest.raises(OperandError, match="nested too deeply"):
            make()
    tree = TensorDict({"x": torch.ones(())})
    for _ in range(64):
        tree = TensorDict({"g": lazy_stack([tree])})
    with pytest.raises(OperandError, match="nested too deeply"):
        lazy_stack([tree])


# Errors


def test_joining_lazy_and_dense_names_both_ways() -> None:
    stack, _ = pair()
    dense = stack.densify()
    for one, two in ((stack, dense), (dense, stack)):
        for trees in (
            [one, two],
            [TensorDict({"g": one}, 2), TensorDict({"g": two}, 2)],
        ):
            for join in (tdfunc.cat, tdfunc.stack):
                with pytest.raises(StructureError, match="to_lazystack") as caught:
                    join(trees)
                assert "stack.densify()" in str(caught.value)
                assert "is extra" not in str(caught.value)
    assert tdfunc.cat([stack, dense.to_lazystack()])["t"] == stack["t"] * 2
    assert_equal(tdfunc.cat([stack.densify(), dense]), FN.cat([dense, dense]))
    with pytest.raises(StructureError) as caught:
        tdfunc.cat([dense, dense.drop("a")])
    assert "densify" not in str(caught.value)


def test_ragged_text_says_how_to_read_it() -> None:
    stack = lazy_stack([texts("a"), texts("b", "c")])
    with pytest.raises(ShapeError, match="other batch sizes") as caught:
        stack["t"]
    assert "got [[1], [2]]" in str(caught.value)
    assert "padded" not in str(caught.value)
    assert stack.get("t", as_list=True) == [["a"], ["b", "c"]]


def test_keys_that_some_members_lack_are_named() -> None:
    a = TensorDict({"obs": torch.ones(2, 3), "won": 1, "n": {"u": 1, "v": 1}})
    b = TensorDict({"obs": torch.ones(3, 3), "draws": 1, "n": {"u": 1}})
    games = lazy_stack([a, b])
    for key in ("won", ("n", "v")):
        with pytest.raises(MissingKeyError, match="not all members") as caught:
            games[key]
        text = str(caught.value)
        assert "members [1] of 2 lack it" in text
        assert "draws" not in text
        assert [t.get(key) for t in games.tensordicts] == [1, None]
    with pytest.raises(MissingKeyError, match="no member of"):
        games["zz"]
    with pytest.raises(MissingKeyError, match="the members share none"):
        games[:0]["obs"]
    assert "obs" not in games[:0]


def test_members_with_other_keys_are_selected_first() -> None:
    a = TensorDict({"obs": torch.ones(2, 3), "won": 1, "n": {"u": 1, "v": 1}})
    b = TensorDict({"obs": torch.ones(3, 3), "draws": 1, "n": {"u": 1}})
    td = lazy_stack([a, b])
    fix = r"td.select\(\*td.keys\(True, True\)\).densify\(\)"
    for call in (td.pack, lambda: td.mean(0)):
        with pytest.raises(OperandError, match=fix):
            call()
    dense = td.select(*td.keys(True, True)).densify(padding_value=0)
    assert dense["obs"].shape == (2, 3, 3)
    with pytest.raises(OperandError, match=r"fix: td.densify\(\) first"):
        lazy_stack([a, a]).mean(0)
