"""Arithmetic and comparisons: by operand, against torch on every leaf."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import OperandError, StructureError
from tests.cases import Case, cases, check, fingerprint, ramp, same, shown

Size = torch.Size

ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
METHODS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floor_divide",
    "%": "remainder",
    "**": "pow",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
}
ALL = {**ARITHMETIC, **COMPARISONS}


def numeric(case: Case) -> bool:
    kinds = (torch.bool, torch.complex64)
    return not any(x.dtype in kinds for x in case.leaves.values())


def left_aligned(tensor: torch.Tensor, x: torch.Tensor, dims: int) -> torch.Tensor:
    """Return a tensor with a 1 behind it for every feature dim of a leaf."""
    return tensor.reshape((*tensor.shape, *(1,) * (x.dim() - dims)))


@pytest.mark.parametrize("symbol", ALL)
@cases(numeric)
def test_a_number_meets_every_element(case: Case, symbol: str) -> None:
    op = ALL[symbol]
    td = case.tree
    for number in (2, -1.5, True):
        if number is True and symbol == "-":
            continue  # torch refuses to subtract a bool, and so do we
        check(
            op(td, number),
            case.batch,
            case.mapped(lambda x, n=number: op(x, n)),
            case.statics,
        )
        method = getattr(td, METHODS[symbol])
        check(method(number), case.batch, case.mapped(lambda x, n=number: op(x, n)))


@pytest.mark.parametrize("symbol", ALL)
@cases(numeric)
def test_a_number_on_the_left_is_torchs(case: Case, symbol: str) -> None:
    op = ALL[symbol]
    for number in (2, 0.5):
        expected = case.mapped(lambda x, n=number: op(n, x))
        check(op(number, case.tree), case.batch, expected, case.statics)


@pytest.mark.parametrize("symbol", ALL)
@cases(numeric)
def test_a_tree_of_the_same_structure_pairs_leaves(case: Case, symbol: str) -> None:
    op = ALL[symbol]
    td = case.tree
    other = td.apply(lambda x: x + 1)
    expected = case.mapped(lambda x: op(x, x + 1))
    check(op(td, other), case.batch, expected, case.statics)
    check(op(other, td), case.batch, case.mapped(lambda x: op(x + 1, x)), case.statics)


@pytest.mark.parametrize("symbol", ALL)
@cases(lambda case: numeric(case) and 0 not in case.batch)
def test_a_tensor_aligns_with_the_batch_dims(case: Case, symbol: str) -> None:
    op = ALL[symbol]
    td, dims = case.tree, len(case.batch)
    weights = ramp(*case.batch) + 2
    for tensor in (weights, torch.tensor(3.0)):
        pairs = {p: left_aligned(tensor, x, dims) for p, x in case.leaves.items()}
        if tensor.dim() == 0:
            pairs = dict.fromkeys(case.leaves, tensor)
        expected = {p: op(x, pairs[p]) for p, x in case.leaves.items()}
        check(op(td, tensor), case.batch, expected, case.statics)
        reflected = {p: op(pairs[p], x) for p, x in case.leaves.items()}
        check(op(tensor, td), case.batch, reflected, case.statics)


def test_rows_are_scaled_by_a_tensor_of_the_batch_shape() -> None:
    td = TensorDict({"x": torch.ones(2, 3), "y": torch.ones(2)}, 2)
    out = td * torch.tensor([2.0, 3.0])
    assert out["x"].tolist() == [[2, 2, 2], [3, 3, 3]]
    assert out["y"].tolist() == [2, 3]


def test_a_tensor_broadcasts_with_the_batch_as_with_one_tensor_of_that_shape() -> None:
    x, y = ramp(2, 3, 4), ramp(2, 3)
    td = TensorDict({"x": x, "y": y}, (2, 3), names=("t", "env"))
    cases_: dict[tuple[int, ...], tuple[int, ...]] = {
        (3,): (2, 3),
        (1,): (2, 3),
        (2, 1): (2, 3),
        (1, 3): (2, 3),
        (5, 2, 3): (5, 2, 3),
        (5, 1, 1): (5, 2, 3),
        (): (2, 3),
    }
    for shape, batch in cases_.items():
        tensor = ramp(*shape) + 1
        for out, sign in ((td + tensor, 1), (tensor + td, 1), (tensor - td, -1)):
            expected = {
                ("x",): (tensor[..., None] if shape else tensor) + sign * x,
                ("y",): tensor + sign * y,
            }
            check(out, batch, expected)
            assert out.names == (td.names if len(batch) == 2 else None)


@pytest.mark.parametrize("symbol", ALL)
@pytest.mark.parametrize("shape", [(3,), (2, 2), (3, 2)], ids=str)
def test_a_tensor_that_does_not_fit_says_both_shapes(symbol: str, shape: Any) -> None:
    td = TensorDict({"x": ramp(2, 3)}, 2)
    op = ALL[symbol]
    if shape[-1] == 2:
        td = td.with_batch_size([2, 3])
    for use in (lambda: op(td, ramp(*shape)), lambda: op(ramp(*shape), td)):
        with pytest.raises(OperandError) as caught:
            use()
        assert isinstance(caught.value, ValueError)
        text = str(caught.value)
        assert "the tensor does not fit the batch size" in text
        assert f"expected a shape that broadcasts with {list(td.batch_size)}" in text
        assert f"got shape {list(shape)}" in text
        assert "td.apply(fn) reaches feature dims" in text


def test_feature_dims_are_never_met_by_a_tensor() -> None:
    td = TensorDict({"x": torch.ones(2, 3)}, 2)
    with pytest.raises(OperandError, match="does not fit the batch size"):
        td * torch.ones(3)
    with pytest.raises(OperandError):
        td * torch.ones(2, 3)


def test_a_tree_without_batch_is_one_scalar_to_a_tensor() -> None:
    td = TensorDict({"x": ramp(3), "y": torch.tensor(2.0)})
    out = td * torch.tensor([1.0, 10.0])
    assert out.batch_size == Size((2,))
    assert out["x"].tolist() == [[0, 1, 2], [0, 10, 20]]
    assert out["y"].tolist() == [2, 20]


def test_arrays_are_tensors() -> None:
    td = TensorDict({"x": torch.ones(2, 3)}, 2)
    weights = np.array([2.0, 3.0], dtype=np.float32)
    for out in (td * weights, weights * td):
        assert out["x"].tolist() == [[2, 2, 2], [3, 3, 3]]
    for out in (td * np.float32(2), np.float32(2) * td):
        assert same(out["x"], torch.full((2, 3), 2.0))
    assert td.eq(np.ones(2))["x"].all()


# Trees with trees


def test_key_order_does_not_matter_and_is_that_of_the_left() -> None:
    a = TensorDict({"x": ramp(2), "n": {"p": ramp(2) + 1, "q": ramp(2) + 2}}, 2)
    b = TensorDict({"n": {"q": ramp(2) + 20, "p": ramp(2) + 10}, "x": ramp(2) + 30}, 2)
    for one, two in ((a, b), (b, a)):
        out = one - two
        assert out.keys(True) == one.keys(True)
        for path in (("x",), ("n", "p"), ("n", "q")):
            assert same(out[path], one[path] - two[path])


def test_batch_dims_broadcast_with_batch_dims_and_features_with_features() -> None:
    # (2, 3 | 4) with (3 |) : batch (2, 3), features (4) with ().
    a = TensorDict({"x": ramp(2, 3, 4), "y": ramp(2, 3)}, (2, 3))
    b = TensorDict({"x": ramp(3) + 1, "y": ramp(3, 5) + 1}, (3,))
    expected = {
        ("x",): ramp(2, 3, 4) + (ramp(3) + 1)[:, None],
        ("y",): ramp(2, 3)[..., None] + (ramp(3, 5) + 1),
    }
    check(a + b, (2, 3), expected)
    check(b + a, (2, 3), expected)


def test_a_row_broadcasts_over_its_batch_whatever_the_features() -> None:
    x, y = ramp(4, 2, 3), ramp(4)
    td = TensorDict({"x": x, "n": {"y": y}}, 4)
    check(td - td[1], (4,), {("x",): x - x[1], ("n", "y"): y - y[1]})
    check(td[1] - td, (4,), {("x",): x[1] - x, ("n", "y"): y[1] - y})
    table = td.unsqueeze(1) - td
    check(
        table,
        (4, 4),
        {("x",): x[:, None] - x[None], ("n", "y"): y[:, None] - y[None]},
    )


@pytest.mark.parametrize("symbol", ALL)
@cases(lambda case: numeric(case) and bool(case.batch) and case.batch[0] > 0)
def test_a_tree_and_its_row_pair_as_torch_broadcasts(case: Case, symbol: str) -> None:
    op = ALL[symbol]
    td = case.tree
    check(op(td, td[0]), case.batch, case.mapped(lambda x: op(x, x[0])))
    check(op(td[0], td), case.batch, case.mapped(lambda x: op(x[0], x)))


def test_surplus_of_wider_nodes_broadcasts_with_surplus() -> None:
    wide = TensorDict({"a": TensorDict({"o": ramp(2, 3, 4)}, (2, 3)), "r": ramp(2)}, 2)
    flat = TensorDict({"a": {"o": ramp(2, 4)}, "r": ramp(2)}, 2)
    for out in (wide + flat, flat + wide):
        assert out["a"].batch_size == Size((2, 3))
        assert same(out["a", "o"], ramp(2, 3, 4) + ramp(2, 1, 4))
        assert same(out["r"], ramp(2) * 2)
    row = wide + wide[0]
    assert row["a"].batch_size == Size((2, 3))
    assert same(row["a", "o"], ramp(2, 3, 4) + ramp(2, 3, 4)[0])


def test_a_tree_inside_vmap_meets_one_outside() -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3)}, 3)
    outside = TensorDict({"x": torch.tensor([10.0, 20.0]), "y": torch.tensor(5.0)})
    out = torch.vmap(lambda t: outside * t + outside)(td)
    x = torch.tensor([10.0, 20.0])
    check(out, (3,), {("x",): x * ramp(3, 2) + x, ("y",): 5 * ramp(3) + 5})


def test_dtypes_promote_as_in_torch() -> None:
    dtypes = [torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64]
    numbers: list[Any] = [2, 2.5, True, torch.tensor(2), torch.tensor(2.5).double()]
    for left in dtypes:
        a = torch.ones(2, 3, dtype=left)
        td = TensorDict({"x": a, "y": a}, 2)
        for symbol in ("+", "*", "/", "//", "**", "<"):
            op = ALL[symbol]
            for number in numbers:
                assert same(op(td, number)["x"], op(a, number)), (left, symbol, number)
            for right in dtypes:
                b = torch.full((2, 3), 3, dtype=right)
                other = TensorDict({"x": b, "y": b}, 2)
                assert same(op(td, other)["y"], op(a, b)), (left, symbol, right)


def test_mixed_leaves_each_promote_on_their_own() -> None:
    td = TensorDict({"i": torch.tensor([1, 2]), "f": torch.tensor([0.5, 1.5])}, 2)
    out = td * 1.5
    assert same(out["i"], torch.tensor([1.5, 3.0]))
    assert same(out["f"], torch.tensor([0.75, 2.25]))
    assert same((td / 2)["i"], torch.tensor([0.5, 1.0]))
    assert same((td + td)["i"], torch.tensor([2, 4]))


# Errors between trees


@pytest.mark.parametrize("symbol", ALL)
def test_all_missing_extra_and_other_entries_are_listed(symbol: str) -> None:
    a = TensorDict({"x": ramp(2), "y": ramp(2), "n": {"p": ramp(2), "q": ramp(2)}}, 2)
    b = TensorDict({"x": ramp(2), "z": ramp(2), "n": {"p": "text", "r": ramp(2)}}, 2)
    with pytest.raises(StructureError) as caught:
        ALL[symbol](a, b)
    text = str(caught.value)
    assert "the trees do not have the same entries" in text
    for part in (
        "td['y'] is missing",
        "td['n', 'q'] is missing",
        "td['z'] is extra",
        "td['n', 'r'] is extra",
        "td['n', 'p'] is a static value, not a tensor",
    ):
        assert part in text
    assert "td['x']" not in text


def test_batch_sizes_that_do_not_broadcast_say_both() -> None:
    a, b = TensorDict({"x": ramp(2, 3)}, (2, 3)), TensorDict({"x": ramp(4)}, 4)
    with pytest.raises(OperandError) as caught:
        a + b
    text = str(caught.value)
    assert "the batch sizes do not broadcast" in text
    assert "expected a batch size that broadcasts with [2, 3]" in text
    assert "got [4]" in text


def test_features_that_do_not_broadcast_name_the_leaf() -> None:
    a = TensorDict({"n": {"x": ramp(2, 3)}, "y": ramp(2)}, 2)
    b = TensorDict({"n": {"x": ramp(2, 4)}, "y": ramp(2)}, 2)
    with pytest.raises(OperandError) as caught:
        a * b
    text = str(caught.value)
    assert "the leaves do not broadcast" in text
    assert "at td['n', 'x']" in text
    assert "got shape [2, 4]" in text
    # One leaf alone takes another way to the kernel.
    with pytest.raises(OperandError, match=r"td\['x'\]"):
        a["n"] + b["n"]


@pytest.mark.parametrize("other", ["text", None, [1], {"x": 1}, object()], ids=shown)
def test_other_operands_are_refused(other: Any) -> None:
    td = TensorDict({"x": ramp(2)}, 2)
    for symbol, op in ARITHMETIC.items():
        for use in (op, getattr(TensorDict, METHODS[symbol])):
            with pytest.raises(OperandError) as caught:
                use(td, other)
            text = str(caught.value)
            assert "a tree can not be combined with this" in text
            assert "expected a number, a tensor, or a tree" in text
            assert f"got {type(other).__name__}" in text


@pytest.mark.parametrize(
    "other", ["text", None, [1], {"x": 1}, object(), ()], ids=shown
)
def test_equality_with_other_things_is_that_of_python(other: Any) -> None:
    td = TensorDict({"x": ramp(2)}, 2)
    assert (td == other) is False
    assert (td != other) is True
    assert (other == td) is False
    assert TensorDict.__eq__(td, other) is NotImplemented
    with pytest.raises(TypeError):
        td < other  # noqa: B015 - must raise


def test_an_error_of_torch_names_the_leaf_in_a_note() -> None:
    td = TensorDict({"a": ramp(2), "n": {"flag": torch.tensor([True, False])}}, 2)
    for use in (lambda: -td, lambda: td - td.clone(), lambda: td.apply(torch.neg)):
        with pytest.raises(RuntimeError) as caught:
            use()
        assert any("td['n', 'flag']" in note for note in caught.value.__notes__)


# Unary


@cases(numeric)
def test_neg_and_abs_are_torchs(case: Case) -> None:
    td = case.tree
    check(-td, case.batch, case.mapped(torch.neg), case.statics)
    check(td.neg(), case.batch, case.mapped(torch.neg))
    check(abs(td), case.batch, case.mapped(torch.abs), case.statics)
    check(td.abs(), case.batch, case.mapped(torch.abs))


def test_abs_of_complex_and_bool() -> None:
    td = TensorDict({"c": torch.tensor([3 + 4j]), "i": torch.tensor([-2])}, 1)
    out = td.abs()
    assert out["c"].item() == 5
    assert out["i"].item() == 2


def test_special_floats_are_torchs() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 5.0, -5.0])
    td = TensorDict({"x": x, "y": x}, 7)
    for op in ALL.values():
        for number in (0.0, float("nan"), float("inf"), -3.0):
            assert same(op(td, number)["y"], op(x, number))
    assert same((td % 3)["x"], x % 3)
    assert same((td // 2)["x"], x // 2)


# Purity, transforms


@pytest.mark.parametrize("symbol", ALL)
@cases(numeric)
def test_operands_are_left_as_they_are(case: Case, symbol: str) -> None:
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td = case.tree
    ALL[symbol](td, td), ALL[symbol](td, 2)
    assert fingerprint(tensors) == before


def test_names_come_from_the_left_and_go_when_the_batch_changes() -> None:
    td = TensorDict({"x": ramp(2, 3)}, (2, 3), names=("t", "env"))
    bare = td.with_names(None)
    assert (td + 1).names == (td + bare).names == (-td).names == ("t", "env")
    assert (1 + td).names == ("t", "env")
    assert (bare + td).names is None
    assert (td + ramp(5, 2, 3)).names is None
    assert td.eq(td).names == ("t", "env")


def test_arithmetic_is_differentiable_in_both_operands() -> None:
    a = TensorDict({"x": torch.tensor([1.0, 2.0])}, 2)
    b = TensorDict({"x": torch.tensor([3.0, 4.0])}, 2)
    w = torch.tensor([5.0, 6.0])

    def loss(s: TensorDict, t: TensorDict, v: torch.Tensor) -> torch.Tensor:
        return ((s * t - s / t) * v)["x"].sum()

    da, db, dw = torch.func.grad(loss, argnums=(0, 1, 2))(a, b, w)
    x, y = a["x"], b["x"]
    torch.testing.assert_close(da["x"], (y - 1 / y) * w)
    torch.testing.assert_close(db["x"], (x + x / y**2) * w)
    torch.testing.assert_close(dw, x * y - x / y)


@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "%", "**"])
def test_a_scalar_tensor_that_requires_grad_gets_its_gradient(symbol: str) -> None:
    op = ALL[symbol]
    x = torch.tensor([1.0, 2.0])
    for swap in (False, True):
        gradients: list[torch.Tensor] = []
        for y in (TensorDict({"x": x, "y": x}, 2), x):
            w = torch.tensor(3.0, requires_grad=True)
            out = op(w, y) if swap else op(y, w)
            (out if y is x else out["x"] + out["y"]).sum().backward()
            assert w.grad is not None
            gradients.append(w.grad)
        torch.testing.assert_close(gradients[0], 2 * gradients[1])


def test_leaves_that_require_grad_keep_their_graph() -> None:
    x = ramp(3).requires_grad_()
    td = TensorDict({"x": x, "y": ramp(3)}, 3)
    (td * 2 + td)["x"].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3, 3]


def test_modes_of_torch_see_the_operations_of_a_loop() -> None:
    seen: list[str] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    td = TensorDict({"x": ramp(2), "y": ramp(2)}, 2)
    with Watch():
        td * 2
    assert seen.count("mul") == 2
    assert not any("foreach" in name for name in seen)


# equal


@cases(lambda case: case.name != "not finite")
def test_a_tree_equals_one_built_alike(case: Case) -> None:
    assert case.tree.equal(case.tree)
    assert case.tree.equal(case.tree.clone())
    assert case.tree.equal(case.tree.with_names(None))


def test_equal_sees_every_kind_of_difference() -> None:
    td = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}, "s": "a"}, 2)
    others: list[Any] = [
        td.set("x", ramp(2, 3) + 1),
        td.set("x", ramp(2, 3).double()),
        td.set("x", ramp(2, 3, 1)),
        td.set("s", "b"),
        td.drop("s"),
        td.set("more", ramp(2)),
        td.with_batch_size([]),
        td.set("n", {"y": "static"}),
        td.set("n", ramp(2)),
        td.to_dict(),
        "x",
        None,
        ramp(2, 3),
    ]
    for other in others:
        assert not td.equal(other)


def test_equal_ignores_key_order_names_and_strides() -> None:
    a = TensorDict({"x": ramp(2, 3), "y": ramp(2)}, 2)
    transposed = ramp(2, 3).t().contiguous().t()
    b = TensorDict({"y": ramp(2), "x": transposed}, 2, names=["t"])
    assert a.equal(b)
    assert b.equal(a)


def test_equal_sees_the_surplus_of_wider_nodes() -> None:
    wide = TensorDict({"a": TensorDict({"o": ramp(2, 3)}, (2, 3))}, 2)
    assert not wide.equal(TensorDict({"a": {"o": ramp(2, 3)}}, 2))


def test_nan_equals_nan_only_when_told() -> None:
    td = TensorDict({"x": torch.tensor([float("nan"), 1.0])}, 2)
    assert not td.equal(td.clone())
    assert td.equal(td.clone(), equal_nan=True)
    z = TensorDict({"z": torch.tensor([complex("nan")])})
    assert z.equal(z.clone(), equal_nan=True)
    assert not td.equal(td.apply(torch.nan_to_num), equal_nan=True)


def test_equal_of_trees_of_other_objects() -> None:
    td = TensorDict({"x": ramp(2)}, 2)
    tree_map = pytree.tree_map
    assert tree_map(str, td).equal(tree_map(str, td))
    assert not tree_map(str, td).equal(td)
    assert not tree_map(str, td).equal(tree_map(repr, td + 1))


def test_elementwise_equality_ignores_statics_and_equal_does_not() -> None:
    a = TensorDict({"x": ramp(2), "s": NonTensorData(1)}, 2)
    b = a.set("s", NonTensorData(2))
    assert bool(a.eq(b)["x"].all())
    assert not a.equal(b)
