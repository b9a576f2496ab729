"""Logic, bits, closeness, bounds and functions of three trees, against torch."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc._ops import logic
from tdfunc.errors import OperandError, OptionError, StructureError
from tests.cases import Case, cases, check, fingerprint, leaves_of, ramp, same

# torch's own, of vmap over isclose.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

Size = torch.Size

OF_TENSORS = {
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmod": torch.fmod,
    "atan2": torch.atan2,
    "isclose": torch.isclose,
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
}
BITS = {
    "bitwise_and": (torch.bitwise_and, operator.and_),
    "bitwise_or": (torch.bitwise_or, operator.or_),
    "bitwise_xor": (torch.bitwise_xor, operator.xor),
}
TERNARY = {"lerp": torch.lerp, "addcmul": torch.addcmul, "addcdiv": torch.addcdiv}

each_binary = pytest.mark.parametrize("name", OF_TENSORS)
each_ternary = pytest.mark.parametrize("name", TERNARY)


def floating(case: Case) -> bool:
    return all(x.is_floating_point() for x in case.leaves.values())


def aligned(tensor: torch.Tensor, x: torch.Tensor, dims: int) -> torch.Tensor:
    return tensor.reshape((*tensor.shape, *(1,) * (x.dim() - dims)))


def tree() -> TensorDict:
    return TensorDict({"x": ramp(3, 2) + 1, "n": {"y": ramp(3) + 2}}, 3)


@each_binary
@cases(floating)
def test_each_kind_of_operand_is_torchs(case: Case, name: str) -> None:
    fn = OF_TENSORS[name]
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td, dims = case.tree, len(case.batch)
    other = td.apply(lambda x: x * 2 - 1)
    got = getattr(td, name)(other)
    check(got, case.batch, case.mapped(lambda x: fn(x, x * 2 - 1)), case.statics)
    assert got.names == case.names
    check(
        getattr(tdfunc, name)(td, 1.5),
        case.batch,
        case.mapped(lambda x: fn(x, torch.tensor(1.5, dtype=x.dtype))),
        case.statics,
    )
    weights = ramp(*case.batch) + 2
    pairs = {p: aligned(weights, x, dims) for p, x in case.leaves.items()}
    expected = {p: fn(x, pairs[p]) for p, x in case.leaves.items()}
    check(getattr(td, name)(weights), case.batch, expected, case.statics)
    assert fingerprint(tensors) == before


@each_binary
@cases(lambda case: floating(case) and bool(case.batch) and case.batch[0] > 0)
def test_a_tree_and_its_row_broadcast(case: Case, name: str) -> None:
    fn = OF_TENSORS[name]
    out = getattr(case.tree, name)(case.tree[0])
    check(out, case.batch, case.mapped(lambda x: fn(x, x[0])))


@each_binary
def test_numbers_promote_as_numbers_do(name: str) -> None:
    fn = OF_TENSORS[name]
    dtypes = [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64]
    for dtype in dtypes:
        for shape in ((), (2,)):
            x = torch.ones(shape, dtype=dtype)
            td = TensorDict({"x": x, "y": x})
            for number in (2, 2.5):
                kind = torch.result_type(x, number)
                value = torch.tensor(number, dtype=kind)
                left = x.to(kind) if name == "isclose" else x
                got = getattr(td, name)(number)["y"]
                assert same(got, fn(left, value)), (dtype, number)


@each_binary
def test_torchs_function_takes_trees_on_both_sides(name: str) -> None:
    td, fn = tree(), OF_TENSORS[name]
    tensor = torch.tensor([1.0, 3.0, 2.0])
    through: Any = fn
    check(
        through(td, tensor),
        (3,),
        {("x",): fn(td["x"], tensor[:, None]), ("n", "y"): fn(td["n", "y"], tensor)},
    )
    if not name.startswith("clamp"):
        check(
            through(tensor, td),
            (3,),
            {
                ("x",): fn(tensor[:, None], td["x"]),
                ("n", "y"): fn(tensor, td["n", "y"]),
            },
        )
    check(through(td, td)["n"], (3,), {("y",): fn(td["n", "y"], td["n", "y"])})


@pytest.mark.parametrize("name", BITS)
def test_bits_and_their_operators(name: str) -> None:
    fn, op = BITS[name]
    i, b = torch.tensor([[1, 6], [12, 7]]), torch.tensor([True, False])
    td = TensorDict({"i": i, "n": {"b": b}}, 2)
    check(op(td, td), (2,), {("i",): fn(i, i), ("n", "b"): fn(b, b)})
    check(op(td, True), (2,), {("i",): fn(i, True), ("n", "b"): fn(b, True)})
    check(op(5, td), (2,), {("i",): fn(i, 5), ("n", "b"): fn(b, 5)})
    rows = torch.tensor([3, 4])
    expected = {("i",): fn(i, rows[:, None]), ("n", "b"): fn(b, rows)}
    check(op(td, rows), (2,), expected)
    check(op(rows, td), (2,), expected)
    check(op(rows.numpy(), td), (2,), expected)
    through: Any = fn
    check(through(td, rows), (2,), expected)
    check(getattr(td, name)(rows), (2,), expected)
    with pytest.raises((RuntimeError, TypeError)) as caught:
        op(TensorDict({"n": {"f": ramp(2)}}, 2), 1)
    assert any("td['n', 'f']" in note for note in caught.value.__notes__)


def test_comparisons_combine_as_masks() -> None:
    td = TensorDict({"x": ramp(4)}, 4)
    assert ((td > 0) & (td < 3))["x"].tolist() == [False, True, True, False]
    assert (~((td > 0) ^ (td < 3)))["x"].tolist() == [False, True, True, False]
    mask = td > 1
    mask |= td == 0
    assert mask["x"].tolist() == [True, False, True, True]


@each_binary
def test_trees_that_do_not_fit_are_refused(name: str) -> None:
    td = tree()
    with pytest.raises(StructureError, match=r"td\['z'\] is extra"):
        getattr(td, name)(td.set("z", torch.ones(3)))
    with pytest.raises(OperandError, match="does not fit the batch size"):
        getattr(td, name)(torch.ones(2))
    with pytest.raises(OperandError, match="a number, a tensor, or a tree"):
        getattr(td, name)("text")


@pytest.mark.parametrize(
    "options", [{}, {"rtol": 0.5}, {"atol": 1.0}, {"equal_nan": True}]
)
def test_closeness_is_torchs(options: dict[str, Any]) -> None:
    x = torch.tensor([1.0, 2.0, float("nan"), float("inf")])
    y = torch.tensor([1.0, 2.5, float("nan"), float("inf")])
    a, b = TensorDict({"x": x}, 4), TensorDict({"x": y}, 4)
    expected = torch.isclose(x, y, **options)
    assert same(a.isclose(b, **options)["x"], expected)
    found = a.allclose(b, **options)
    assert found.shape == ()
    assert found.dtype == torch.bool
    assert bool(found) is torch.allclose(x, y, **options)
    through: Any = torch.allclose
    assert bool(through(a, b, **options)) is torch.allclose(x, y, **options)
    assert bool(through(x, b, **options)) is torch.allclose(x, y, **options)


def test_allclose_of_trees_without_leaves_is_true_and_traces() -> None:
    assert TensorDict({}).allclose(TensorDict({}))
    td = tree()
    out = torch.vmap(lambda t: t.allclose(t + 1e-9))(td)
    assert out.tolist() == [True] * 3


def test_numbers_of_all_kinds_promote_as_torch_says() -> None:
    kinds = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16]
    kinds += [torch.float32, torch.float64, torch.complex64, torch.complex128]
    for kind in kinds:
        x = torch.ones(2, dtype=kind)
        for number in (True, 1, 1.0, 1j):
            wanted = torch.result_type(x, number)
            if kind == torch.float16 and number == 1j:
                continue  # torch has no isclose of complex halves
            assert TensorDict({"x": x}, 2).isclose(number)["x"].dtype == torch.bool
            assert logic._dtype_with(number, x) == wanted, (kind, number)


# Bounds


@cases(floating)
def test_clamp_takes_bounds_of_all_kinds(case: Case) -> None:
    td, dims = case.tree, len(case.batch)
    low, high = td.apply(lambda x: x - 1), td.apply(lambda x: x * 0 + 2)
    rows = ramp(*case.batch)
    pairs = {p: aligned(rows, x, dims) for p, x in case.leaves.items()}
    check(
        td.clamp(-1, 2), case.batch, case.mapped(lambda x: x.clamp(-1, 2)), case.statics
    )
    check(td.clamp(min=0.5), case.batch, case.mapped(lambda x: x.clamp(min=0.5)))
    check(td.clamp(max=0.5), case.batch, case.mapped(lambda x: x.clamp(max=0.5)))
    check(
        td.clamp(low, high),
        case.batch,
        case.mapped(lambda x: x.clamp(x - 1, x * 0 + 2)),
    )
    check(
        td.clamp(1, rows),
        case.batch,
        {
            p: x.clamp(torch.ones_like(x), pairs[p].expand_as(x).to(x.dtype))
            for p, x in case.leaves.items()
        },
        exact=False,
    )


def test_clamp_promotes_and_orders_as_torch() -> None:
    i = torch.tensor([-3, 0, 3])
    td = TensorDict({"i": i}, 3)
    assert same(td.clamp(-0.5, 2)["i"], i.clamp(-0.5, 2))
    assert same(td.clamp(2, -2)["i"], i.clamp(2, -2))
    nan = float("nan")
    x = torch.tensor([nan, 1.0])
    floats = TensorDict({"x": x}, 2)
    assert same(floats.clamp(0, 2)["x"], x.clamp(0, 2))
    through: Any = torch.clamp
    assert same(through(td, min=0)["i"], i.clamp(min=0))
    assert same(through(td, max=torch.tensor([1, 1, 1]))["i"], i.clamp(max=1))


def test_clamp_without_bounds_says_the_call_that_works() -> None:
    with pytest.raises(OptionError) as caught:
        tree().clamp()
    text = str(caught.value)
    assert "there is nothing to clamp to" in text
    assert "expected min, max, or both" in text
    assert "td.clamp(min=0)" in text


def test_gradients_at_ties_are_torchs() -> None:
    x = torch.tensor([0.0, 1.0])
    for name in ("maximum", "minimum", "clamp_min", "clamp_max"):
        fn = OF_TENSORS[name]
        zero = torch.tensor(0.0)
        expected: Any = torch.func.grad(lambda x, f=fn, z=zero: f(x, z).sum())(x)
        for use in (0, 0.0, zero, TensorDict({"x": torch.zeros(2)}, 2)):
            leaf: Any = x.clone().requires_grad_()
            getattr(TensorDict({"x": leaf}, 2), name)(use)["x"].sum().backward()
            if name.startswith(("max", "min")):
                assert same(leaf.grad, expected), (name, use)
            grad = torch.func.grad(
                lambda t, n=name, u=use: getattr(t, n)(u).sum(reduce=True)
            )(TensorDict({"x": x}, 2))
            assert same(grad["x"], leaf.grad), (name, use)


# Three operands


@each_ternary
@cases(floating)
def test_three_trees_pair_leaves(case: Case, name: str) -> None:
    fn = TERNARY[name]
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    td = case.tree
    one, two = td.apply(lambda x: x + 1), td.apply(lambda x: x * 0.25 + 2)
    out = getattr(td, name)(one, two)
    expected = case.mapped(lambda x: fn(x, x + 1, x * 0.25 + 2))
    check(out, case.batch, expected, case.statics)
    assert out.names == case.names
    assert fingerprint(tensors) == before


@each_ternary
@cases(lambda case: floating(case) and bool(case.batch) and case.batch[0] > 0)
def test_rows_tensors_and_numbers_mix(case: Case, name: str) -> None:
    fn = TERNARY[name]
    td, dims = case.tree, len(case.batch)
    row = td[0]
    weights = ramp(*case.batch) + 2
    pairs = {p: aligned(weights, x, dims) for p, x in case.leaves.items()}
    if all(x.dtype == torch.float32 for x in case.leaves.values()):
        out = getattr(td, name)(row, weights)
        expected = {p: fn(x, x[0], pairs[p]) for p, x in case.leaves.items()}
        check(out, case.batch, expected, case.statics)
        out = getattr(row, name)(weights, td)
        expected = {p: fn(x[0], pairs[p], x) for p, x in case.leaves.items()}
        check(out, case.batch, expected)
    out = getattr(td, name)(td, 0.5)
    half: Any = 0.5 if name == "lerp" else torch.tensor(0.5)
    expected = case.mapped(
        lambda x: fn(x, x, half if name == "lerp" else half.to(x.dtype))
    )
    check(out, case.batch, expected)
    out = getattr(td, name)(2, td)
    check(out, case.batch, case.mapped(lambda x: fn(x, torch.full_like(x, 2), x)))


@each_ternary
def test_torchs_functions_of_three_take_trees(name: str) -> None:
    td, fn = tree(), TERNARY[name]
    through: Any = fn
    x = td["x"]
    assert same(through(td, td, td)["x"], fn(x, x, x))
    named = (
        {"end": td, "weight": td} if name == "lerp" else {"tensor1": td, "tensor2": td}
    )
    assert same(through(td, **named)["x"], fn(x, x, x))
    assert same(
        getattr(td, name)(np.ones(3, np.float32), td)["x"], fn(x, torch.ones(3, 1), x)
    )
    if name != "lerp":
        assert same(through(td, td, td, value=0.5)["x"], fn(x, x, x, value=0.5))
        assert same(
            getattr(td, name)(td, 2, value=3)["x"], fn(x, x, torch.tensor(2.0), value=3)
        )


def test_a_tensor_with_more_dims_widens_all() -> None:
    td = tree()
    ends = ramp(4, 3)
    out = td.lerp(ends, td)
    x, y = td["x"], td["n", "y"]
    check(
        out,
        (4, 3),
        {
            ("x",): torch.lerp(x.expand(4, 3, 2), ends[..., None], x),
            ("n", "y"): torch.lerp(y.expand(4, 3), ends, y),
        },
    )


def test_surplus_of_wider_nodes_pairs_with_surplus() -> None:
    wide = TensorDict({"a": TensorDict({"o": ramp(2, 3, 4)}, (2, 3)), "r": ramp(2)}, 2)
    flat = TensorDict({"a": {"o": ramp(2, 4) + 1}, "r": ramp(2) + 1}, 2)
    out = flat.addcmul(wide, flat)
    assert out["a"].batch_size == Size((2, 3))
    o = (ramp(2, 4) + 1)[:, None]
    assert same(out["a", "o"], torch.addcmul(o, ramp(2, 3, 4), o))


@each_ternary
def test_three_operands_that_do_not_fit_are_refused(name: str) -> None:
    td = tree()
    use = getattr(td, name)
    with pytest.raises(StructureError, match=r"td\['n'\] is missing"):
        use(td.drop("n"), td)
    with pytest.raises(OperandError, match="the tensor does not fit the batch size"):
        use(td, torch.ones(2))
    with pytest.raises(OperandError, match="the batch sizes do not broadcast"):
        use(td, td[:2])
    with pytest.raises(OperandError, match="got list"):
        use([1.0], td)
    wrong = td.set("x", torch.ones(3, 5))
    with pytest.raises(OperandError) as caught:
        use(td, wrong)
    assert "the leaves do not broadcast" in str(caught.value)
    assert "td['x']" in str(caught.value)


@pytest.mark.parametrize("name", [*OF_TENSORS, *TERNARY])
def test_transforms(name: str) -> None:
    td = tree()
    ternary = name in TERNARY
    fn = TERNARY[name] if ternary else OF_TENSORS[name]
    args = (td, td) if ternary else (td,)

    def ours(t: Any, *rest: Any) -> Any:
        return getattr(t, name)(*rest)

    expected = {
        p: fn(x, *(x,) * len(args))
        for p, x in ((("x",), td["x"]), (("n", "y"), td["n", "y"]))
    }
    check(torch.vmap(ours)(td, *args), (3,), expected)
    number = torch.vmap(lambda t: ours(t, *(td[0],) * len(args)))(td)
    assert number.batch_size == Size((3,))
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    check(compiled(td, *args), (3,), expected)
    check(
        compiled(td, *args[1:], 2.0) if not ternary else compiled(td, td, 2.0),
        (3,),
        leaves(ours(td, 2.0) if not ternary else ours(td, td, 2.0)),
    )
    if name.startswith(("logical", "isclose")):
        return
    grad = torch.func.grad(lambda t: ours(t, *args).sum(reduce=True))(td)
    plain = torch.func.grad(lambda x: fn(x, *(td["x"],) * len(args)).sum())(td["x"])
    assert same(grad["x"], plain)


def leaves(td: TensorDict) -> dict[Any, torch.Tensor]:
    return {("x",): td["x"], ("n", "y"): td["n", "y"]}


# alpha


@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
def test_alpha_scales_the_other_operand(name: str) -> None:
    td = tree()
    fn = getattr(torch, name)
    x = td["x"]
    for alpha in (2, 0.5, -1):
        assert same(getattr(td, name)(td, alpha=alpha)["x"], fn(x, x, alpha=alpha))
        assert same(getattr(td, name)(3, alpha=alpha)["x"], fn(x, 3, alpha=alpha))
        rows = ramp(3)
        got = getattr(td, name)(rows, alpha=alpha)["x"]
        assert same(got, fn(x, rows[:, None], alpha=alpha))
        through: Any = fn
        assert same(through(td, td, alpha=alpha)["x"], fn(x, x, alpha=alpha))
        assert same(through(td, other=rows, alpha=alpha)["x"], got)
        if name != "rsub":
            got = through(rows, td, alpha=alpha)["x"]
            assert same(got, fn(rows[:, None], x, alpha=alpha))
    ints = TensorDict({"n": {"i": torch.tensor([1, 2])}}, 2)
    with pytest.raises(RuntimeError) as caught:
        getattr(ints, name)(ints, alpha=0.5)
    assert any("td['n', 'i']" in note for note in caught.value.__notes__)
    compiled = torch.compile(
        lambda t: getattr(t, name)(t, alpha=2), fullgraph=True, backend="eager"
    )
    assert same(compiled(td)["x"], fn(x, x, alpha=2))


def test_the_peer_agrees() -> None:
    peer = pytest.importorskip("tensordict")
    x, y = torch.rand(3, 2), torch.rand(3)
    ours = TensorDict({"x": x, "n": {"y": y}}, 3)
    theirs = peer.TensorDict({"x": x, "n": {"y": y}}, 3)
    for name, args in {
        "maximum": (1,),
        "minimum": (1,),
        "clamp_min": (1,),
        "clamp_max": (1,),
        "addcmul": (1, 1),
        "addcdiv": (1, 1),
        "lerp": (1, 0.25),
        "clamp": (0.25, 0.5),
    }.items():
        mine = [ours * 2 - 0.5 if a == 1 else a for a in args]
        other = [theirs * 2 - 0.5 if a == 1 else a for a in args]
        a, b = getattr(ours, name)(*mine), getattr(theirs, name)(*other)
        check(a, (3,), {("x",): b["x"], ("n", "y"): b["n", "y"]})


SHIFTS = {
    "bitwise_left_shift": (torch.bitwise_left_shift, operator.lshift),
    "bitwise_right_shift": (torch.bitwise_right_shift, operator.rshift),
}


@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_and_their_operators(name: str) -> None:
    fn, op = SHIFTS[name]
    i, u = torch.tensor([[1, 6], [12, 7]]), torch.tensor([3, 9], dtype=torch.uint8)
    td = TensorDict({"i": i, "n": {"u": u}}, 2)
    check(op(td, 2), (2,), {("i",): fn(i, 2), ("n", "u"): fn(u, 2)})
    check(op(td, td % 3), (2,), {("i",): fn(i, i % 3), ("n", "u"): fn(u, u % 3)})
    both = {("i",): fn(64, i), ("n", "u"): fn(64, u)}
    check(op(64, td), (2,), both)
    check(getattr(torch, name)(64, td), (2,), both)
    rows = torch.tensor([1, 3])
    expected = {("i",): fn(i, rows[:, None]), ("n", "u"): fn(u, rows)}
    check(op(td, rows), (2,), expected)
    check(op(td, rows.numpy()), (2,), expected)
    check(getattr(td, name)(rows), (2,), expected)
    through: Any = fn
    check(through(td, rows), (2,), expected)
    turned = {("i",): fn(rows[:, None], i), ("n", "u"): fn(rows, u)}
    check(op(rows, td), (2,), turned)
    twice = {k: fn(x, 2) for k, x in leaves_of(td).items()}
    check(torch.vmap(lambda t: op(t, 2))(td), (2,), twice)
    compiled = torch.compile(lambda t: op(t, 2), fullgraph=True, backend="eager")
    check(compiled(td), (2,), twice)
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        op(TensorDict({"n": {"f": ramp(2)}}, 2), 1)
    assert any("td['n', 'f']" in note for note in caught.value.__notes__)
