"""Loops, branches, recomputation: against Python's own, eager and compiled."""

# Functions of a carry and a row have both arguments, and a loop is made inside what
# is compiled, not before it:
# ruff: noqa: ARG005, PLW0108

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.exc import Unsupported

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import OperandError, OptionError, ShapeError, StructureError
from tests.cases import ramp
from tests.func.transforms import (
    STRUCTURES,
    assert_same,
    compiled,
    energy,
    floats,
    levels,
    outcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = torch.func
HOW = pytest.mark.parametrize("how", ["eager", "compiled"])


@pytest.fixture(autouse=True)
def _levels_are_left() -> Iterator[None]:
    yield
    assert levels() == 0


def run(how: str, fn: Callable[..., Any], *args: Any) -> Any:
    return (compiled(fn) if how == "compiled" else fn)(*args)


def rows() -> TensorDict:
    return TensorDict(
        {"r": floats(4), "n": {"k": floats(4, 2)}, "q": list("abca"), "s": "t"},
        4,
        names=["time"],
    )


def step(total: torch.Tensor, row: Any) -> tuple[torch.Tensor, Any]:
    total = total * 0.5 + row["r"]
    return total, {"row": row, "total": [total * 2]}


# scan


@HOW
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_is_a_loop_over_rows(how: str, *, reverse: bool) -> None:
    td = rows()
    carry: Any = torch.zeros((), dtype=torch.float64)
    total, ys = run(
        how, lambda c, t: tdfunc.scan(step, c, t, reverse=reverse), carry, td
    )

    order = range(4)[::-1] if reverse else range(4)
    expected: list[Any] = [None] * 4
    for i in order:
        carry, y = step(carry, {"r": td["r"][i]})
        expected[i] = y["total"][0]
    assert_same(total, carry)
    assert_same(ys["total"][0], torch.stack(expected))
    assert ys["row"].batch_size == (4,)
    assert ys["row"]["s"] == "t"
    assert ys["row"][3]["q"] == "a"
    assert_same(ys["row"]["n", "k"], td["n", "k"])


@HOW
def test_scan_carries_trees(how: str) -> None:
    start = TensorDict({"sum": torch.zeros(2, dtype=torch.float64), "s": "t"}, 2)

    def add(c: TensorDict, row: TensorDict) -> Any:
        new = c.set("sum", c["sum"] + row["n", "k"])
        return new, new

    last, all_ = run(how, lambda c, t: tdfunc.scan(add, c, t), start, rows())
    assert last.batch_size == (2,)
    assert last["s"] == "t"
    assert all_.batch_size == (4, 2)
    expected = floats(4, 2).cumsum(0)
    assert_same(all_["sum"], expected, exact=False)
    assert_same(last["sum"], expected[-1], exact=False)


@HOW
def test_scan_without_rows_counts(how: str) -> None:
    def double(c: torch.Tensor, nothing: None) -> Any:
        assert nothing is None
        return c * 2, None

    out = run(how, lambda x: tdfunc.scan(double, x, length=5), torch.ones(2))
    assert_same(out, (torch.full((2,), 32.0), None))


@HOW
def test_scan_of_no_rows_keeps_the_carry_and_knows_the_structure(how: str) -> None:
    td = rows()[:0]
    start = torch.ones((), dtype=torch.float64)
    carry, ys = run(how, lambda c, t: tdfunc.scan(step, c, t), start, td)
    assert_same(carry, start)
    assert ys["row"].batch_size == (0,)
    assert ys["row"]["n", "k"].shape == (0, 2)
    assert_same(ys["total"][0], torch.zeros(0, dtype=torch.float64))
    assert tdfunc.scan(lambda c, x: (c, None), start, length=0) == (start, None)


def test_scan_is_differentiated_and_mapped_as_the_loop() -> None:
    td = rows().select("r", "n")

    def last(t: Any) -> torch.Tensor:
        return tdfunc.scan(step, torch.ones((), dtype=torch.float64), t)[0] ** 2

    def by_hand(r: torch.Tensor) -> torch.Tensor:
        total = torch.ones((), dtype=torch.float64)
        for row in r:
            total = total * 0.5 + row
        return total**2

    assert_same(tdfunc.grad(last)(td)["r"], T.grad(by_hand)(td["r"]))
    many = tdfunc.stack([td, td * 2])
    assert_same(tdfunc.vmap(last)(many), torch.vmap(by_hand)(many["r"]))
    jac = tdfunc.jacfwd(last)(td)["r"]
    assert_same(jac, T.jacfwd(by_hand)(td["r"]))


@pytest.mark.parametrize("name", STRUCTURES)
def test_scan_gives_back_all_rows_of_any_structure(name: str) -> None:
    value = STRUCTURES[name]()
    carry, ys = tdfunc.scan(lambda c, x: (c + 1, x), torch.zeros(()), value)
    assert carry == 3
    assert_same(ys, value)
    if isinstance(value, TensorDict):
        assert ys.batch_size == value.batch_size


def test_scan_errors() -> None:
    td, zero = rows(), torch.zeros(())
    scan = tdfunc.scan
    with pytest.raises(OperandError, match=r"nothing to scan over.*length=None"):
        scan(step, zero)
    with pytest.raises(OperandError, match=r"rows differ.*4 rows.*\[4, 3\]"):
        scan(step, zero, (td, floats(3)))
    with pytest.raises(OperandError, match=r"rows differ.*3 rows"):
        scan(step, zero, td, length=3)
    for wrong in (torch.tensor(1.0), TensorDict({"x": floats(3)}), {"x": 3}):
        with pytest.raises(OperandError, match="no rows in this"):
            scan(step, zero, wrong)
    with pytest.raises(StructureError, match=r"pair \(carry, y\).*got Tensor"):
        scan(lambda c, x: c, zero, td)
    with pytest.raises(StructureError, match="carry changed its structure"):
        scan(lambda c, x: ((c, c), None), zero, td)
    with pytest.raises(StructureError, match=r"carry changed a shape.*\[\].*\[2\]"):
        scan(lambda c, x: (c + x["n", "k"], None), zero.double(), td)
    with pytest.raises(StructureError, match=r"float32.*float64"):
        scan(lambda c, x: (c.double(), None), zero, td)
    with pytest.raises(StructureError, match="another structure than before"):
        scan(lambda c, x: (c + 1, {str(int(c)): c}), zero, td)
    with pytest.raises(StructureError, match="another structure than before"):
        scan(lambda c, x: (c + 1, c if c < 2 else None), zero, td)


def refused(error: type[Exception], text: str, fn: Any, *args: Any) -> None:
    """Assert that a function raises, in eager code and while it is compiled."""
    with pytest.raises(error, match=text):
        fn(*args)
    with pytest.raises(Unsupported) as raised:
        compiled(fn)(*args)
    assert error.__name__ in str(raised.value)


@HOW
def test_scan_of_rows_without_tensors_counts_them(how: str) -> None:
    def steps(rows: Any, length: int | None = None) -> Any:
        return tdfunc.scan(lambda c, x: (c + 1, x), torch.zeros(()), rows, length)

    total, ys = run(how, steps, TensorDict({}, 3))
    assert total == 3
    assert ys.batch_size == (3,)
    assert run(how, steps, {}, 3) == (3, {})
    assert run(how, steps, TensorDict({"s": "t"}, 3), 3)[0] == 3


@HOW
def test_scan_takes_and_returns_what_is_no_tensor(how: str) -> None:
    def steps(x: torch.Tensor) -> Any:
        def one(c: Any, x: torch.Tensor) -> Any:
            return (c[0] + x, *c[1:]), {"x": x, "s": None, "n": 3}

        return tdfunc.scan(one, (torch.zeros(()), 0.5, None), x)

    for count in (2, 0):
        last, ys = run(how, steps, torch.ones(count))
        assert_same(last, (torch.tensor(float(count)), 0.5, None))
        assert_same(
            ys, {"x": torch.ones(count), "s": None, "n": torch.full((count,), 3)}
        )


def test_scan_counts_in_python_only_where_it_is_python() -> None:
    def steps(x: torch.Tensor) -> Any:
        return tdfunc.scan(lambda c, x: ((c[0] + x, c[1] + 1), c[1]), (x[0], 0), x)

    last, ys = steps(torch.ones(2))
    assert last == (3, 2)
    assert ys.tolist() == [0, 1]
    with pytest.raises(Unsupported, match="OperandError"):
        compiled(steps)(torch.ones(2))
    with pytest.raises(OperandError, match=r"can not be stacked.*'a'"):
        tdfunc.scan(lambda c, x: (c, "a"), torch.zeros(()), torch.ones(2))
    rows = iter([None, 1])
    with pytest.raises(StructureError, match="None for all rows, or for none"):
        tdfunc.scan(lambda c, x: (c, [next(rows)]), torch.zeros(()), torch.ones(2))


@pytest.mark.parametrize("length", [-1, 2.0, "2"])
def test_scan_refuses_what_is_no_length(length: Any) -> None:
    def steps(x: torch.Tensor) -> Any:
        return tdfunc.scan(lambda c, x: (c, c), x, None, length)

    refused(OptionError, "length is no number of rows", steps, torch.ones(2))


def test_scan_errors_say_where() -> None:
    zero, ones = torch.zeros(()), torch.ones
    keep = lambda c, x: (c, None)  # noqa: E731
    with pytest.raises(OperandError, match=r"differ at \['b'\]\[0\] .*\[2, 3\]"):
        tdfunc.scan(keep, zero, {"a": ones(2), "b": [ones(3)]})
    with pytest.raises(OperandError, match=r"differ at \['b'\] .*\[2, 2, 3\]"):
        tdfunc.scan(keep, zero, {"a": ones(2), "b": ones(3)}, 2)
    td = TensorDict({"w": ones(2), "n": {"k": ones(2)}})
    wide = {("n", "k"): lambda x: x.double()}
    with pytest.raises(StructureError, match=r"dtype at \['p'\]\[\('n', 'k'\)\]"):
        tdfunc.scan(
            lambda c, x: ({"p": c["p"].update_with(wide)}, None), {"p": td}, ones(2)
        )


@pytest.mark.parametrize("name", ["grad", "map", "map of grad", "jvp"])
def test_scan_compiles_under_transforms(name: str) -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        start = torch.ones(2, dtype=torch.float64)
        return tdfunc.scan(lambda c, x: (c * x, None), start, x)[0].sum()

    fn: Any = {
        "grad": lambda x: tdfunc.grad(last)(x[0]),
        "map": tdfunc.vmap(last),
        "map of grad": tdfunc.vmap(tdfunc.grad(last)),
        "jvp": lambda x: tdfunc.jvp(last, (x[0],), (x[1],)),
    }[name]
    x = floats(2, 3, 2)
    assert_same(compiled(fn)(x), fn(x), exact=False)


@pytest.mark.slow
def test_loops_of_one_carry_compile_to_kernels() -> None:
    torch._dynamo.reset()
    add = lambda c, x: (c + x, None)  # noqa: E731
    total = torch.compile(
        lambda x: tdfunc.scan(add, torch.zeros(2), x)[0], fullgraph=True
    )
    assert total(torch.ones(3, 2)).tolist() == [3.0, 3.0]


# while_loop


@HOW
def test_while_loop_is_a_loop(how: str) -> None:
    td = TensorDict({"i": torch.tensor(0), "x": floats(2), "s": "t"})

    def body(t: TensorDict) -> TensorDict:
        return t.set("i", t["i"] + 1).set("x", t["x"] * 2)

    out = run(how, lambda t: tdfunc.while_loop(lambda t: t["i"] < 3, body, t), td)
    assert out["i"] == 3
    assert out["s"] == "t"
    assert_same(out["x"], floats(2) * 8)
    pair = (torch.tensor(0), {"x": torch.ones(2)})
    out = run(
        how,
        lambda c: tdfunc.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, {"x": c[1]["x"] + c[0]}), c
        ),
        pair,
    )
    assert_same(out, (torch.tensor(2), {"x": torch.full((2,), 2.0)}))


def test_while_loop_may_not_run_at_all_and_has_derivatives() -> None:
    x = floats(2)
    assert tdfunc.while_loop(lambda c: False, lambda c: 1 / 0, x) is x

    def thrice(x: torch.Tensor) -> torch.Tensor:
        start = (torch.tensor(0), x)
        body = lambda c: (c[0] + 1, c[1] * c[1])  # noqa: E731
        return tdfunc.while_loop(lambda c: c[0] < 2, body, start)[1].sum()

    expected = T.grad(lambda x: (x**2 * x**2).sum())(x)
    assert_same(tdfunc.grad(thrice)(x), expected, exact=False)


def test_compiled_while_loop_checks_the_carry() -> None:
    def swapped(x: torch.Tensor) -> Any:
        return tdfunc.while_loop(
            lambda t: t["n"] < 3,
            lambda t: {"n": t["n"] + 1, "x": t["x"] ** 2},
            {"x": x, "n": torch.tensor(0.0)},
        )

    def lost(x: torch.Tensor) -> Any:
        return tdfunc.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1,), (x, x))

    def wider(x: torch.Tensor) -> Any:
        return tdfunc.while_loop(lambda c: c < 3, lambda c: c.double() + 1, x)

    x = torch.tensor(1.5)
    refused(StructureError, "carry changed its structure", swapped, x)
    refused(StructureError, "carry changed its structure", lost, x)
    refused(StructureError, "float32.*float64", wider, x)

    def counted(x: torch.Tensor) -> Any:
        return tdfunc.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1], None), (x, 2, None)
        )

    assert_same(counted(x), (torch.tensor(3.5), 2, None))
    assert_same(compiled(counted)(x), counted(x))


def test_while_loop_errors() -> None:
    with pytest.raises(StructureError, match="carry changed"):
        tdfunc.while_loop(lambda c: True, lambda c: (c, c), floats(2))
    with pytest.raises(OperandError, match=r"not the same for all mapped.*tdfunc.scan"):
        tdfunc.vmap(lambda x: tdfunc.while_loop(lambda c: c < 5, lambda c: c * 2, x))(
            ramp(3) + 1
        )
    assert levels() == 0
    shared = tdfunc.vmap(
        lambda x: tdfunc.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * 2), (torch.tensor(0), x)
        )[1]
    )
    assert_same(shared(ramp(3)), ramp(3) * 4)


# cond


@HOW
@pytest.mark.parametrize("flag", [True, False])
def test_cond_takes_one_branch(how: str, *, flag: bool) -> None:
    td = rows()

    def fn(flag: Any, td: TensorDict) -> Any:
        return tdfunc.cond(
            flag,
            lambda t, x: (t * 2, {"x": x}),
            lambda t, x: (t + 1, {"x": x * 3}),
            (td, torch.ones(2)),
        )

    out, rest = run(how, fn, torch.tensor(flag), td)
    assert out.batch_size == (4,)
    assert out.names == ("time",)
    assert out["s"] == "t"
    assert out[1]["q"] == "b"
    assert_same(out["r"], td["r"] * 2 if flag else td["r"] + 1)
    assert_same(rest["x"], torch.ones(2) if flag else torch.full((2,), 3.0))


def test_cond_computes_only_what_it_takes_where_it_can_know() -> None:
    calls: list[str] = []

    def say(word: str) -> torch.Tensor:
        calls.append(word)
        return torch.ones(())

    yes, no = partial(say, "yes"), partial(say, "no")
    tdfunc.cond(True, yes, no)
    tdfunc.cond(torch.tensor([0]), yes, no)
    assert calls == ["yes", "no"]
    tdfunc.vmap(lambda x: tdfunc.cond(x > 1, yes, no))(ramp(3))
    assert calls == ["yes", "no", "yes", "no"]


def test_cond_of_mapped_rows_chooses_row_by_row() -> None:
    td = rows().drop("q")
    out = tdfunc.vmap(
        lambda t: tdfunc.cond(t["r"] > 0, lambda t: t * 10, lambda t: t, (t,))
    )(td)
    expected = torch.where(td["r"] > 0, td["r"] * 10, td["r"])
    assert_same(out["r"], expected)
    mask = (td["r"] > 0)[:, None]
    assert_same(out["n", "k"], torch.where(mask, td["n", "k"] * 10, td["n", "k"]))
    one, two = (lambda t: t), (lambda t: (t,))
    with pytest.raises(StructureError, match="branches return different structures"):
        tdfunc.vmap(lambda t: tdfunc.cond(t["r"] > 0, one, two, (t,)))(td)
    assert levels() == 0


def test_cond_is_differentiated() -> None:
    for flag in (True, False):
        grads = tdfunc.grad(
            lambda x, f=flag: tdfunc.cond(
                torch.tensor(f), lambda x: x.sin().sum(), lambda x: x.sum(), (x,)
            )
        )(floats(3))
        assert_same(grads, floats(3).cos() if flag else torch.ones(3).double())


def _cond(one: Any, two: Any, test: Any = lambda x: x > 0) -> Any:
    return lambda x: tdfunc.cond(test(x), one, two, (x,))


@pytest.mark.parametrize(
    "test", [lambda x: x - 1, lambda x: (x - 1)[None]], ids=["number", "one element"]
)
def test_cond_takes_a_number_as_if_does(test: Any) -> None:
    fn = _cond(torch.exp, torch.neg, test)
    x = torch.tensor([1.0, 2.0])
    expected = torch.stack([-x[0], x[1].exp()])
    assert_same(tdfunc.vmap(fn)(x), expected)
    assert_same(torch.stack([fn(x[0]), fn(x[1])]), expected)
    again = compiled(fn)
    assert_same(torch.stack([again(x[0]), again(x[1])]), expected)


def test_cond_refuses_branches_that_do_not_fit() -> None:
    x = torch.tensor([1.0, -1.0])
    for wrong in (lambda x: x.expand(3), lambda x: x.double()):
        fn = _cond(wrong, lambda x: x)
        with pytest.raises(StructureError, match="different shapes or dtypes"):
            tdfunc.vmap(fn)(x)
        with pytest.raises(Unsupported, match="StructureError"):
            compiled(fn)(x[0])
    named = _cond(lambda x: {"a": x.double()}, lambda x: {"a": x})
    with pytest.raises(StructureError, match=r"dtypes at \['a'\].*float64.*float32"):
        tdfunc.vmap(named)(x)
    with pytest.raises(StructureError, match=r"no tensors.*expected 'a'.*got 'b'"):
        tdfunc.vmap(_cond(lambda x: "a", lambda x: "b"))(x)
    fn = lambda x: tdfunc.cond(x > 0, torch.exp, torch.neg, (x,))  # noqa: E731
    refused(OperandError, r"no single value.*\[2\]", fn, x)
    assert levels() == 0


def test_cond_returns_what_is_no_tensor() -> None:
    one, two = (lambda x: (x * 2, None, 3, 1)), (lambda x: (x, None, 3, 2))
    seen: list[Any] = []

    def fn(x: torch.Tensor) -> Any:
        out, *rest, number = _cond(one, two)(x)
        seen.append(rest)
        return out, number

    expected = (torch.tensor([2.0, -1.0]), torch.tensor([1, 2]))
    assert_same(tdfunc.vmap(fn)(torch.tensor([1.0, -1.0])), expected)
    assert seen == [[None, 3]]
    out = compiled(_cond(one, two))(torch.tensor(1.0))
    assert out == (2, None, 3, 1)
    given = compiled(
        lambda x: tdfunc.cond(x > 0, lambda t: t[0], lambda t: -t[0], ((x, None),))
    )
    assert given(torch.tensor(-1.0)) == 1
    assert compiled(_cond(lambda x: None, lambda x: None))(torch.tensor(1.0)) is None


# associative_scan


@HOW
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_associative_scan_of_sums_is_cumsum(
    how: str, dim: int, *, reverse: bool
) -> None:
    td = TensorDict({"x": floats(3, 4, 2), "n": {"y": floats(3, 4)}, "s": "t"}, (3, 4))
    out = run(
        how,
        lambda t: tdfunc.associative_scan(lambda a, b: a + b, t, dim, reverse=reverse),
        td,
    )
    assert out.batch_size == (3, 4)
    assert out["s"] == "t"
    for path in ("x", ("n", "y")):
        x = td[path]
        at = dim % 2
        expected = x.flip(at).cumsum(at).flip(at) if reverse else x.cumsum(at)
        assert_same(out[path], expected, exact=False)


def test_associative_scan_of_one_row_and_of_pytrees() -> None:
    one = rows()[:1]
    assert_same(tdfunc.associative_scan(lambda a, b: a * b, one), one)
    pair = {"a": floats(3), "b": [floats(3, 2)]}

    def compose(f: Any, g: Any) -> Any:
        return {"a": f["a"] * g["a"], "b": [f["b"][0] * g["a"] + g["b"][0]]}

    out = tdfunc.associative_scan(compose, pair)
    a, b = floats(3), floats(3, 2)
    second = b[0] * a[1] + b[1]
    assert_same(out["b"][0], torch.stack([b[0], second, second * a[2] + b[2]]))


@HOW
@pytest.mark.parametrize("dim", [0, 1, "t", "b"])
def test_associative_scan_keeps_names_and_takes_them(how: str, dim: Any) -> None:
    td = TensorDict({"a": floats(3, 2), "s": "q"}, [3, 2], names=["t", "b"])
    out = run(how, lambda t: tdfunc.associative_scan(lambda a, b: a + b, t, dim), td)
    assert out.names == ("t", "b")
    assert out["s"] == "q"
    expected = td["a"].cumsum(dim if isinstance(dim, int) else "tb".index(dim))
    assert_same(out["a"], expected, exact=False)


@HOW
def test_associative_scan_without_tensors(how: str) -> None:
    td = TensorDict({"s": "t"}, 3, names=["n"])
    out = run(how, lambda t: tdfunc.associative_scan(lambda a, b: a, t), td)
    assert out.batch_size == (3,)
    assert out["s"] == "t"


def test_associative_scan_refuses_other_rows() -> None:
    td = rows().drop("q")
    for wrong in (lambda a, b: b.double(), lambda a, b: b.set("r", b["r"][None])):
        fn = lambda t, f=wrong: tdfunc.associative_scan(f, t)  # noqa: E731
        refused(StructureError, "row changed a shape or dtype", fn, td.float())
    add = lambda a, b: a  # noqa: E731
    with pytest.raises(ShapeError, match="'q' is no batch dim"):
        tdfunc.associative_scan(add, td, "q")
    with pytest.raises(ShapeError, match=r"'time' is no dim of all.*Tensor"):
        tdfunc.associative_scan(add, (td, floats(4)), "time")
    other = TensorDict({"x": floats(2, 4)}, [2, 4], names=[None, "time"])
    with pytest.raises(OptionError, match=r"'time' is not the same dim.*\[0, 1\]"):
        tdfunc.associative_scan(add, (td, other), "time")


def test_associative_scan_errors() -> None:
    td = rows()
    add = lambda a, b: a + b  # noqa: E731
    for wrong in (1, -2):
        with pytest.raises(ShapeError, match=f"{wrong} is no dim.*-1 to 0"):
            tdfunc.associative_scan(add, td, wrong)
    with pytest.raises(OptionError, match="negative dim"):
        tdfunc.associative_scan(add, (floats(3, 2), floats(3)), -1)
    with pytest.raises(OperandError, match=r"rows differ.*\[4, 3\]"):
        tdfunc.associative_scan(add, (floats(4), floats(3)))
    with pytest.raises(OperandError, match="nothing to scan over"):
        tdfunc.associative_scan(add, {}, -1)
    with pytest.raises(OperandError, match="no rows in this"):
        tdfunc.associative_scan(add, torch.tensor(1.0))
    with pytest.raises(StructureError, match="the row changed its structure"):
        tdfunc.associative_scan(lambda a, b: a.drop("r"), td)


# checkpoint


def layer(t: TensorDict, w: torch.Tensor) -> TensorDict:
    return (t * w).apply(torch.sin).set("s", "text")


def loss_of(fn: Any) -> Any:
    return lambda t, w: energy(fn(t, w))


DIFFERENTIATED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "grad": lambda f, t, w: tdfunc.grad(f, (0, 1))(t, w),
    "torch's grad": lambda f, t, w: T.grad(f, (0, 1))(t, w),
    "grad of grad": lambda f, t, w: tdfunc.grad(
        lambda t, w: tdfunc.grad(f, 1)(t, w).sin()
    )(t, w),
    "map of grad": lambda f, t, w: tdfunc.vmap(tdfunc.grad(f), (0, None))(
        tdfunc.stack([t, t * 2]), w
    ),
    "hessian": lambda f, t, w: tdfunc.hessian(f)(t, w),
    "jvp": lambda f, t, w: tdfunc.jvp(f, (t, w), (t, w)),
    "jacrev of jacrev": lambda f, t, w: tdfunc.jacrev(tdfunc.jacrev(f))(t, w),
    "jacfwd": lambda f, t, w: tdfunc.jacfwd(f)(t, w),
    "autograd": lambda f, t, w: torch.autograd.grad(
        f(t, v := w.clone().requires_grad_()), v
    ),
    "map": lambda f, t, w: torch.vmap(f, (0, None))(tdfunc.stack([t, t * 2]), w),
    "no_grad": lambda f, t, w: _under_no_grad(f, t, w),
}


def _under_no_grad(f: Any, t: Any, w: Any) -> Any:
    with torch.no_grad():
        return f(t, w), tdfunc.grad(f)(t, w)


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_checkpoint_changes_no_value(name: str) -> None:
    td = TensorDict({"x": floats(3), "n": {"y": floats(2)}})
    w = torch.tensor(1.5, dtype=torch.float64)
    transform = DIFFERENTIATED[name]
    got = transform(loss_of(tdfunc.checkpoint(layer)), td, w)
    assert_same(got, transform(loss_of(layer), td, w), exact=False)


@pytest.mark.parametrize("name", ["grad", "hessian", "jvp", "map"])
def test_checkpoint_compiles(name: str) -> None:
    td = TensorDict({"x": floats(3), "n": {"y": floats(2)}})
    w = torch.tensor(1.5, dtype=torch.float64)
    transform = DIFFERENTIATED[name]
    fn = compiled(lambda t, w: transform(loss_of(tdfunc.checkpoint(layer)), t, w))
    assert_same(fn(td, w), transform(loss_of(layer), td, w), exact=False)
    alone = compiled(lambda t, w: tdfunc.checkpoint(layer)(t, w))
    assert_same(alone(td, w), layer(td, w), exact=False)


def test_checkpoint_computes_again() -> None:
    calls: list[int] = []

    def counted(t: TensorDict) -> TensorDict:
        calls.append(1)
        return t.apply(torch.sin)

    td = TensorDict({"x": floats(3), "k": torch.arange(2), "s": "t"})
    td = td.set("k", td["k"].double())
    again = tdfunc.checkpoint(counted)
    assert again.__name__ == "counted"
    grads = tdfunc.grad(lambda t: energy(again(t)))(td)
    assert len(calls) == 2
    assert_same(grads, tdfunc.grad(lambda t: energy(t.apply(torch.sin)))(td))


def test_checkpoint_takes_and_returns_what_has_no_gradient() -> None:
    td = TensorDict({"x": floats(3), "k": torch.arange(3), "r": list("aba")}, 3)
    fn = tdfunc.checkpoint(lambda t, *, p: (t.set("x", t["x"] ** p), t["k"] + 1))

    def loss(t: TensorDict) -> Any:
        out, k = fn(t, p=2)
        return (out["x"] * k).sum(), (out, k)

    grads, (out, k) = tdfunc.grad(loss, has_aux=True)(td)
    assert out[1]["r"] == "b"
    assert_same(k, torch.arange(3) + 1)
    assert_same(grads["x"], 2 * floats(3) * (torch.arange(3) + 1))


class Scaled(torch.nn.Module):
    def __init__(self, w: torch.Tensor) -> None:
        super().__init__()
        self.w = w

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


def _inner(w: torch.Tensor) -> Any:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * w

    return lambda x: inner(x)


def _default(x: torch.Tensor, w: Any = None) -> torch.Tensor:
    return x * w


# Functions that hold a tensor, and multiply with it.
HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "closure": lambda w: lambda x: x * w,
    "partial": lambda w: partial(torch.mul, w),
    "inner closure": _inner,
    "default": lambda w: partial(_default, w=w),
    "module": Scaled,
    "bound method": lambda w: Scaled(w).forward,
    "tree": lambda w: lambda x: (TensorDict({"w": w}) * x)["w"],
    "returned": lambda w: lambda x: (w, w * x)[1],
    "inner map": lambda w: lambda x: torch.vmap(lambda r: r * w)(x.expand(1))[0],
    "inner checkpoint": lambda w: tdfunc.checkpoint(lambda x: x * w),
    "both": lambda w: lambda x: tdfunc.checkpoint(lambda y: y * w)(x) * w / w,
}
HELD_UNDER: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "grad": lambda f, w: tdfunc.grad(f)(w),
    "torch's grad": lambda f, w: T.grad(f)(w),
    "hessian": lambda f, w: tdfunc.hessian(f)(w),
    "grad of grad": lambda f, w: tdfunc.grad(tdfunc.grad(f))(w),
    "jvp": lambda f, w: tdfunc.jvp(f, (w,), (w + 1,)),
    "map of grad": lambda f, w: tdfunc.vmap(tdfunc.grad(f))(w * ramp(3)),
    "grad of map": lambda f, w: tdfunc.grad(
        lambda w: tdfunc.vmap(f)(w * ramp(3)).sum()
    )(w),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_checkpoint_differentiates_what_the_function_holds(holder: str) -> None:
    hold, x = HOLDERS[holder], torch.tensor(3.0, dtype=torch.float64)
    w = torch.tensor(2.0, dtype=torch.float64)
    for transform in HELD_UNDER.values():
        got = transform(lambda w: tdfunc.checkpoint(hold(w))(x) ** 3, w)
        expected = transform(lambda w: hold(w)(x) ** 3, w)
        assert_same(got, expected, exact=False)
    v = w.clone().requires_grad_()
    total = torch.vmap(tdfunc.checkpoint(hold(v)))(ramp(3)).sum()
    assert torch.autograd.grad(total, v)[0] == ramp(3).sum()


def test_checkpoint_of_an_argument_that_is_held_too() -> None:
    w = torch.tensor(2.0)
    assert tdfunc.grad(lambda w: tdfunc.checkpoint(lambda x: x * w)(w))(w) == 4
    both = tdfunc.checkpoint(lambda x, w: tdfunc.checkpoint(torch.mul)(x, w) * w)
    assert tdfunc.grad(both, (0, 1))(torch.tensor(3.0), w) == (4, 12)
    constant = floats(3)
    fn = tdfunc.checkpoint(lambda t: t * constant)
    grads = tdfunc.grad(lambda t: fn(t)["x"].sum())(TensorDict({"x": floats(3)}, 3))
    assert_same(grads["x"], constant)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tdfunc.checkpoint(self.l)(x)


def test_checkpoint_of_a_module_under_functional_call() -> None:
    net, x = Net(), torch.tensor([1.0, 2.0])
    loss = lambda p: tdfunc.func.functional_call(net, p, x).sum()  # noqa: E731
    grads = tdfunc.grad(loss)(tdfunc.from_module(net))
    assert grads["l", "weight"].tolist() == [[1.0, 2.0]]
    assert grads["l", "bias"].tolist() == [1.0]
    # torch's puts the parameters back before they are needed again.
    old = lambda p: T.functional_call(net, p, x).sum()  # noqa: E731
    with pytest.raises(OperandError, match=r"no longer holds.*tdfunc.func.functional"):
        T.grad(old)(dict(net.named_parameters()))
    assert levels() == 0


def test_checkpoint_refuses_to_lose_a_gradient_in_a_transform_inside() -> None:
    def wrong(w: torch.Tensor) -> torch.Tensor:
        return tdfunc.checkpoint(lambda x: x * T.grad(lambda v: v**3)(w))(w)

    with pytest.raises(
        OperandError, match=r"a transform inside it.*checkpoint\(fn\)\("
    ):
        tdfunc.grad(wrong)(torch.tensor(1.0))
    with pytest.raises(OperandError, match="a transform inside it"):
        tdfunc.jvp(wrong, (torch.tensor(1.0),), (torch.tensor(1.0),))
    assert levels() == 0
    right = lambda x, w: x * T.grad(lambda v: v**3)(w)  # noqa: E731
    again = tdfunc.checkpoint(right)
    for transform in (tdfunc.grad, tdfunc.hessian, tdfunc.jacfwd):
        given = (floats(2)[0], floats(2)[1])
        assert_same(transform(again, (0, 1))(*given), transform(right, (0, 1))(*given))
    twice = lambda x: torch.vmap(torch.sin)(torch.vmap(torch.exp)(x)).sum()  # noqa: E731
    for transform in (tdfunc.grad, tdfunc.hessian, tdfunc.jacfwd):
        got = transform(tdfunc.checkpoint(twice))(floats(2))
        assert_same(got, transform(twice)(floats(2)))


@pytest.mark.parametrize("name", ["grad", "map", "torch's map", "grad of map", "jvp"])
def test_checkpoint_draws_again_what_it_drew(name: str) -> None:
    def drop(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.expand(50), 0.5).sum()

    both = tdfunc.grad_and_value(again := tdfunc.checkpoint(drop))
    one = torch.tensor(1.0)
    torch.manual_seed(0)
    if name == "grad":
        grad, value = both(one)
    elif name == "map":
        grad, value = tdfunc.vmap(both, randomness="different")(torch.ones(3))
    elif name == "torch's map":
        grad, value = torch.vmap(both, randomness="same")(torch.ones(3))
    elif name == "jvp":
        grad, value = tdfunc.jvp(again, (one,), (one,))
    else:
        many = tdfunc.vmap(again, randomness="different")
        grad, value = tdfunc.grad_and_value(lambda x: many(x.expand(3)).sum())(one)
    assert_same(grad, value)
    after = torch.rand(1)
    torch.manual_seed(0)
    if name == "grad":
        drop(one)
        assert_same(torch.rand(1), after)


def test_checkpoint_computes_again_under_the_same_autocast() -> None:
    seen: list[torch.dtype] = []

    def square(x: torch.Tensor) -> torch.Tensor:
        seen.append((x @ x).dtype)
        return x @ x

    with torch.autocast("cpu", torch.bfloat16):
        out, back = tdfunc.vjp(tdfunc.checkpoint(square), torch.ones(2, 2))
    back(torch.ones_like(out))
    assert seen == [torch.bfloat16] * 2


def test_checkpoint_returns_what_is_no_tensor() -> None:
    fn = tdfunc.checkpoint(lambda x: (x * x, None, 3, {"i": x.long(), "s": "t"}))

    def loss(x: torch.Tensor) -> Any:
        out, *rest = fn(x)
        assert rest == [None, 3, {"i": 2, "s": "t"}]
        return out

    assert tdfunc.grad(loss)(torch.tensor(2.0)) == 4
    nothing = tdfunc.checkpoint(lambda x: None)
    assert tdfunc.grad(lambda x: (nothing(x), x)[1])(torch.tensor(2.0)) == 1


def test_checkpoint_passes_errors_on() -> None:
    fn = tdfunc.checkpoint(lambda x: {}["key"])
    for call in (fn, tdfunc.grad(fn), tdfunc.vmap(fn)):
        assert outcome(lambda: call(floats(2))) == (KeyError, "'key'")  # noqa: B023


# stop_gradient


def test_stop_gradient_is_a_constant_at_every_level() -> None:
    td = TensorDict({"x": torch.tensor(0.5)})

    def through(t: TensorDict) -> torch.Tensor:
        x = t["x"]
        return x.tanh() + tdfunc.stop_gradient(x.round() - x.tanh())

    first = tdfunc.grad(through)
    assert first(td)["x"].item() == pytest.approx(0.786448, abs=1e-6)
    second = tdfunc.grad(lambda t: first(t)["x"])
    assert second(td)["x"].item() == pytest.approx(-0.726862, abs=1e-6)
    zero = tdfunc.grad(lambda t: tdfunc.stop_gradient(t)["x"] ** 2)
    assert zero(td)["x"] == 0
    assert tdfunc.grad(lambda t: zero(t)["x"])(td)["x"] == 0


@HOW
def test_stop_gradient_takes_any_pytree(how: str) -> None:
    x = floats(3).requires_grad_()
    td = TensorDict({"x": x, "k": torch.arange(3), "s": "t"}, 3)
    out = run(how, tdfunc.stop_gradient, {"a": td, "b": (x, 3, None)})
    assert not out["a"]["x"].requires_grad
    assert not out["b"][0].requires_grad
    assert out["b"][1:] == (3, None)
    assert out["a"]["s"] == "t"
    assert out["a"].batch_size == (3,)
    assert_same(out["a"]["k"], torch.arange(3))
    if how == "eager":
        assert out["b"][0].data_ptr() == x.data_ptr()


def test_import_costs_nothing_of_torch() -> None:
    # What compiled loops and checkpoint need, torch has imported itself.
    code = """
import sys, torch
before = {*sys.modules}
import tdfunc
assert not [m for m in {*sys.modules} - before if m.split(".")[0] == "torch"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_loop_at_once() -> None:
    td = rows().select("r", "n")

    def work(i: int) -> Any:
        out: Any = None
        loss = lambda t: tdfunc.scan(step, floats(1)[0] * i, t)[0]  # noqa: E731
        for _ in range(5):
            out = tdfunc.grad(loss)(td)
        return out

    with ThreadPoolExecutor(8) as pool:
        for out in pool.map(work, range(8)):
            expected = torch.tensor([0.125, 0.25, 0.5, 1.0], dtype=torch.float64)
            assert_same(out["r"], expected)
