"""`tdfunc.vmap` against `torch.vmap`, and against what it adds for trees."""

# Functions that are transformed have the arguments that the transform wants, and a
# transform is applied inside what is compiled, not before it:
# ruff: noqa: ARG001, ARG004, ARG005, PLW0108

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import ShapeError
from tests.cases import bytes_of, ramp
from tests.func.transforms import (
    STRUCTURES,
    assert_same,
    compiled,
    energy,
    floats,
    levels,
    outcome,
    tensors_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Size = torch.Size


@pytest.fixture(autouse=True)
def _levels_are_left() -> Iterator[None]:
    yield
    assert levels() == 0


def double(value: Any) -> Any:
    """Return a pytree with all numbers doubled; a tree in one operation."""
    return pytree.tree_map(
        lambda v: v * 2,
        value,
        is_leaf=lambda v: isinstance(v, (TensorDict, torch.Tensor)),
    )


# Equality with torch


@pytest.mark.parametrize("name", STRUCTURES)
def test_values_are_those_of_torch(name: str) -> None:
    value = STRUCTURES[name]()
    both = lambda v: (energy(v), {"v": double(v)})  # noqa: E731
    functions: list[Any] = [lambda v: v, double, energy, both]
    for fn in functions:
        assert_same(tdfunc.vmap(fn)(value), torch.vmap(fn)(value))


@pytest.mark.parametrize("name", STRUCTURES)
def test_chunks_are_the_whole(name: str) -> None:
    value = STRUCTURES[name]()
    for size in (1, 2, 3, 7):
        for fn in (double, energy):
            whole = tdfunc.vmap(fn)(value)
            assert_same(tdfunc.vmap(fn, chunk_size=size)(value), whole)


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_compiled_map_is_the_eager_one(name: str) -> None:
    value = STRUCTURES[name]()
    assert_same(compiled(lambda v: tdfunc.vmap(double)(v))(value), double(value))


@pytest.mark.parametrize("name", STRUCTURES)
def test_inputs_are_only_read(name: str) -> None:
    tensors = tensors_of(value := STRUCTURES[name]())
    before = [(x._version, bytes_of(x)) for x in tensors]
    tdfunc.vmap(double)(value)
    assert [(x._version, bytes_of(x)) for x in tensors] == before


NESTED: dict[str, Callable[[Any, Any], Any]] = {
    "map of map": lambda v, w: v(w(lambda x: x.cumsum(0) * 2)),
    "over other dims": lambda v, w: v(w(lambda x: x.cumsum(0), 1, 1), 1, 1),
    "map of grad": lambda v, w: v(v(torch.func.grad(lambda x: x.sin().sum()))),
    "gradient inside": lambda v, w: v(tdfunc.grad(lambda x: (w(torch.sin)(x)).sum())),
    "jacobian inside": lambda v, w: v(torch.func.jacfwd(w(torch.sin))),
    "map inside torch's grad": lambda v, w: torch.func.grad(
        lambda x: v(w(lambda r: r.sin().sum()))(x).sum()
    ),
    "map inside torch's jacobian": lambda v, w: torch.func.jacrev(
        lambda x: v(lambda r: w(lambda e: e * e.sum())(r))(x).sum(-1)
    ),
    "closing over a mapped value": lambda v, w: v(
        lambda x: w(lambda r: r * x.sum())(x)
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_nesting_with_itself_and_with_torchs(name: str) -> None:
    x = floats(2, 3, 3, 2)
    make = NESTED[name]
    expected = make(torch.vmap, torch.vmap)(x)
    for pair in (
        (tdfunc.vmap, tdfunc.vmap),
        (tdfunc.vmap, torch.vmap),
        (torch.vmap, tdfunc.vmap),
    ):
        assert_same(make(*pair)(x), expected)


DIMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "default": (0, (floats(3, 4), floats(3))),
    "another": (1, (floats(4, 3), floats(2, 3, 5))),
    "negative": (-1, (floats(4, 3), floats(3), floats(2, 2, 3))),
    "one for each": ((1, 0), (floats(2, 3), floats(3))),
    "None": ((None, 0), (floats(2), floats(3))),
    "None for an object": ((None, 0), ("text", floats(3))),
    "a tuple inside": (((0, None), 1), ((floats(3), floats(2)), floats(2, 3))),
    "a dict prefix": (({"a": 0, "b": None},), ({"a": floats(3), "b": floats(2)},)),
    "a dict prefix of dicts": (
        ({"a": 1, "b": None},),
        ({"a": {"c": floats(2, 3), "d": [floats(1, 3)]}, "b": {"e": 3}},),
    ),
    "dims of size 1": (-2, (floats(1, 1), floats(3, 1, 2))),
}


@pytest.mark.parametrize("name", DIMS)
def test_in_dims_are_those_of_torch(name: str) -> None:
    in_dims, args = DIMS[name]
    seen: list[Any] = []

    def fn(*args: Any) -> torch.Tensor:
        shapes = pytree.tree_map(lambda v: getattr(v, "shape", v), args)
        seen.append(shapes)
        return sum((x.sum() for x in tensors_of(args)), torch.zeros(()))

    expected = torch.vmap(fn, in_dims)(*args)
    assert_same(tdfunc.vmap(fn, in_dims)(*args), expected)
    assert seen[0] == seen[1]


OUT_DIMS: dict[str, tuple[Any, Callable[[torch.Tensor], Any]]] = {
    "last": (-1, lambda x: (x, x.sum())),
    "second": (1, lambda x: [x, x * 2]),
    "of one in a tuple": ((1,), lambda x: x),
    "one for each": ((1, 0), lambda x: (x, x)),
    "a dict": ({"a": 1, "b": 0}, lambda x: {"a": x, "b": x}),
    "a prefix": ((0, 1), lambda x: (x, {"p": x, "q": [x]})),
    "None": ((0, None), lambda x: (x, torch.arange(3))),
    "None for an object": ((0, None), lambda x: (x, "text")),
    "not mapped": (0, lambda x: (x, torch.arange(6.0).view(2, 3))),
    "a bool": (True, lambda x: x),
}


@pytest.mark.parametrize("name", OUT_DIMS)
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_out_dims_are_those_of_torch(name: str, chunk_size: int | None) -> None:
    out_dims, fn = OUT_DIMS[name]
    x = floats(4, 5)
    expected = torch.vmap(fn, out_dims=out_dims)(x)
    assert_same(tdfunc.vmap(fn, out_dims=out_dims, chunk_size=chunk_size)(x), expected)


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_random_draws_are_those_of_torch(
    randomness: str, chunk_size: int | None
) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.randn(3) + torch.rand_like(x)

    x = floats(5, 3)
    drawn = []
    for vmap in (torch.vmap, tdfunc.vmap):
        torch.manual_seed(3)
        drawn.append(vmap(fn, randomness=randomness, chunk_size=chunk_size)(x))
        drawn.append(torch.rand(2))
    assert_same(drawn[:2], drawn[2:])


def test_keyword_arguments_pass_whole() -> None:
    td = TensorDict({"x": ramp(3, 2)}, 3)
    out = tdfunc.vmap(lambda t, w, *, s: t["x"] * w.sum() + s, (0, None))(
        td, ramp(4), s=torch.ones(2)
    )
    assert_same(out, ramp(3, 2) * 6 + 1)


def test_the_function_keeps_its_name_and_loses_marks_of_the_compiler() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        """Add."""
        return x + 1

    mapped = tdfunc.vmap(torch.compile(fn, backend="eager"))
    assert mapped.__name__ == "fn"
    assert mapped.__doc__ == "Add."
    assert not hasattr(mapped, "_torchdynamo_orig_callable")
    again = torch.compile(mapped, backend="eager")
    assert_same(again(ramp(3)), ramp(3) + 1)


# Errors


def one(x: torch.Tensor) -> torch.Tensor:
    return x


def branch(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


class Nameless:
    """A function without a name."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def __repr__(self) -> str:
        return "Nameless()"


WRONG: dict[str, Callable[[Any], Any]] = {
    "nothing to map": lambda v: v(one)(),
    "no tensors": lambda v: v(one)(3),
    "a number": lambda v: v(one)(floats(3), 3),
    "a text, by its own dim": lambda v: v(one, (0, 0))(floats(3), "a"),
    "all None": lambda v: v(one, (None,))(floats(3)),
    "too few in_dims": lambda v: v(one, (0,))(floats(3), floats(3)),
    "a list": lambda v: v(one, [0])(floats(3)),
    "no dim": lambda v: v(one, "x")(floats(3)),
    "a float": lambda v: v(one, (1.0,))(floats(3)),
    "another structure": lambda v: v(one, ((0, 0),))([floats(3), floats(3)]),
    "too large": lambda v: v(one, 1)(floats(3)),
    "too small": lambda v: v(one, -2)(floats(3)),
    "no dims at all": lambda v: v(one)(torch.tensor(1.0)),
    "sizes differ": lambda v: v(one, (0, 1))(floats(3), floats(3, 2)),
    "an object without name": lambda v: v(Nameless(), 4)(floats(3)),
    "a partial": lambda v: v(functools.partial(scaled, factor=2), 4)(floats(3)),
    "returns a number": lambda v: v(lambda x: 3)(floats(3)),
    "returns None": lambda v: v(lambda x: (x, None))(floats(3)),
    "out_dims is text": lambda v: v(one, 0, "a")(floats(3)),
    "out_dims too many": lambda v: v(one, 0, (0, 0))(floats(3)),
    "out_dims of another structure": lambda v: v(lambda x: (x, x), 0, {"a": 0})(
        floats(3)
    ),
    "out_dims None of what is mapped": lambda v: v(one, 0, None)(floats(3)),
    "out_dims too large": lambda v: v(one, 0, 2)(floats(3)),
    "out_dims too small": lambda v: v(one, 0, -3)(floats(3, 2)),
    "branch": lambda v: v(branch)(floats(3)),
    "item": lambda v: v(lambda x: x.item())(floats(3)),
    "random": lambda v: v(lambda x: x + torch.randn(()))(floats(3)),
    "no such randomness": lambda v: v(one, randomness="yes")(floats(3)),
    "chunks of none": lambda v: v(one, chunk_size=0)(floats(3)),
    "raised inside": lambda v: v(lambda x: x / (1 // 0))(floats(3)),
    "in place": lambda v: v(lambda x: torch.zeros(2).add_(x))(floats(3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_torch(name: str) -> None:
    wrong = WRONG[name]
    assert outcome(lambda: wrong(tdfunc.vmap)) == outcome(lambda: wrong(torch.vmap))
    assert levels() == 0
    assert_same(tdfunc.vmap(one)(ramp(3)), ramp(3))


@pytest.mark.parametrize(
    "name",
    [
        *("returns a number", "returns None", "raised inside"),
        *("out_dims of another structure", "out_dims None of what is mapped"),
    ],
)
def test_errors_in_chunks_are_those_of_the_whole(name: str) -> None:
    wrong = WRONG[name]
    chunked = functools.partial(tdfunc.vmap, chunk_size=2)
    assert outcome(lambda: wrong(chunked)) == outcome(lambda: wrong(torch.vmap))


def test_an_error_below_leaves_the_levels_of_all() -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("inside")

    nested = tdfunc.vmap(tdfunc.vmap(tdfunc.grad(fail)))
    with pytest.raises(KeyError, match="inside"):
        nested(floats(2, 3))
    assert levels() == 0
    out = tdfunc.vmap(tdfunc.vmap(tdfunc.grad(torch.sin)))(floats(2, 3))
    assert_same(out, floats(2, 3).cos())


def test_a_tree_has_no_other_dims_than_its_batch() -> None:
    td = TensorDict({"x": floats(3, 2)}, 3)
    for bad in (1, -2, "rows"):
        with pytest.raises(ShapeError, match=rf"{bad!r} is no batch dim.*-1 to 0"):
            tdfunc.vmap(lambda t: t, bad)(td)
    with pytest.raises(ShapeError, match="None, as the tree has no batch dims"):
        tdfunc.vmap(lambda t: t)(TensorDict({"x": floats(3)}))
    with pytest.raises(ShapeError, match=r"can not go to 1.*-1 to 0.*batch size \[\]"):
        tdfunc.vmap(lambda t: t, out_dims=1)(td)
    for bad in ((({"x": 0},), td), ((1.5,), td), (((0, 0),), td)):
        with pytest.raises(ValueError, match="in_dim"):
            tdfunc.vmap(lambda t: t, bad[0])(td)
    other = tdfunc.in_dims(TensorDict({"z": floats(3)}, 3))
    with pytest.raises(ValueError, match="in_dims"):
        tdfunc.vmap(lambda t: t, (other,))(td)
    with pytest.raises(ValueError, match="out_dims is not compatible"):
        tdfunc.vmap(lambda t: t, out_dims=other)(td)
    with pytest.raises(ValueError, match="out_dims is not compatible"):
        tdfunc.vmap(lambda t: t, out_dims={"x": 0})(td)


def test_trees_of_different_length_are_refused_with_both_sizes() -> None:
    one, two = TensorDict({"x": floats(3)}, 3), TensorDict({"x": floats(4)}, 4)
    with pytest.raises(ValueError, match=r"same size.*\[3, 4\]"):
        tdfunc.vmap(lambda a, b: a)(one, two)


# Trees


def seen(td: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Return the tree inside of a map, and the result."""
    inside: list[Any] = []

    def fn(t: Any) -> Any:
        inside.append((t.batch_size, t.names))
        return t

    out = tdfunc.vmap(fn, **kwargs)(td)
    return inside[0], out


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_batch_sizes_are_exact_wherever_the_dim_comes_from_and_goes(
    chunk_size: int | None,
) -> None:
    td = TensorDict({"x": floats(3, 3, 3, 3), "n": {"y": floats(3, 3, 3)}}, (3, 3, 3))
    for dim in range(-3, 3):
        for out in range(-3, 3):
            inside, result = seen(td, in_dims=dim, out_dims=out, chunk_size=chunk_size)
            assert inside == (Size((3, 3)), None)
            assert result.batch_size == Size((3, 3, 3))
            for path in ("x", ("n", "y")):
                expected = td[path].movedim(dim % 3, out % 3)
                assert_same(result[path], expected)


def test_a_dim_behind_the_leaves_batch_is_torchs_way_only() -> None:
    # The same ints mean another dim to torch: it counts the dims of each leaf.
    td = TensorDict({"x": ramp(2, 3, 3)}, (2, 3))
    ours = tdfunc.vmap(lambda t: t["x"], -1)(td)
    assert_same(ours, ramp(2, 3, 3).movedim(1, 0))
    assert_same(torch.vmap(lambda t: t["x"], -1)(td), ramp(2, 3, 3).movedim(2, 0))


def test_names_follow_their_dims() -> None:
    td = TensorDict({"x": floats(2, 3, 4)}, (2, 3), names=["time", "env"])
    assert seen(td)[0] == (Size((3,)), ("env",))
    inside, out = seen(td, in_dims="env")
    assert inside == (Size((2,)), ("time",))
    assert out.names == ("env", "time")
    assert out.batch_size == (3, 2)
    assert seen(td, in_dims="env", out_dims=1)[1].names == ("time", "env")
    assert seen(td, in_dims=1)[1].names == (None, "time")
    assert tdfunc.vmap(lambda t: t.sum(0), "time")(td).names == ("time",)


def test_a_name_maps_each_tree_over_its_own_dim() -> None:
    one = TensorDict({"x": ramp(2, 3)}, (2, 3), names=["time", "env"])
    two = TensorDict({"x": ramp(3)}, 3, names=["env"])
    out = tdfunc.vmap(lambda a, b: a["x"] * b["x"], "env", 1)(one, two)
    assert_same(out, ramp(2, 3) * ramp(3))


def test_dims_of_single_leaves_leave_what_all_have() -> None:
    td = TensorDict({"x": ramp(3, 2), "table": ramp(3, 2)}, 3)
    dims = tdfunc.in_dims(td, 0, {"table": None})
    sizes: list[Any] = []

    def fn(t: TensorDict) -> Any:
        sizes.append((t.batch_size, t["table"].shape))
        return t["table"] @ t["x"]

    assert_same(tdfunc.vmap(fn, (dims,))(td), ramp(3, 2) @ ramp(3, 2).T)
    assert sizes == [(Size(()), Size((3, 2)))]
    alike = tdfunc.in_dims(TensorDict({"x": ramp(3, 3)}, (3, 3)), 1)
    square = TensorDict({"x": ramp(3, 3)}, (3, 3))
    out = tdfunc.vmap(lambda t: t, (alike,), alike)(square)
    assert out.batch_size == (3, 3)
    assert_same(out["x"], ramp(3, 3))


def test_results_of_single_leaves_go_where_their_dims_say() -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3, 2)}, 3)
    places = TensorDict({"x": ramp(1), "y": ramp(1)}, 1)
    places = pytree.tree_unflatten([0, 1], pytree.tree_structure(places))
    for size in (None, 2):
        out = tdfunc.vmap(lambda t: t * 2, out_dims=places, chunk_size=size)(td)
        assert_same(out["x"], ramp(3, 2) * 2)
        assert_same(out["y"], ramp(3, 2).T * 2)
    wrong = pytree.tree_unflatten([0, 5], pytree.tree_structure(td))
    with pytest.raises(IndexError, match=r"range of \[-2, 1\], but got 5"):
        tdfunc.vmap(lambda t: t, out_dims=wrong)(td)


def test_a_surplus_dim_of_a_node_is_mapped_with_its_parent() -> None:
    td = STRUCTURES["surplus"]()
    sizes: list[Any] = []

    def fn(t: TensorDict) -> TensorDict:
        sizes.append((t.batch_size, t["a"].batch_size))
        return t * 2

    out = tdfunc.vmap(fn)(td)
    assert sizes == [(Size(()), Size((2,)))]
    assert out["a"].batch_size == (3, 2)
    assert out.batch_size == (3,)


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_trees_without_leaves_tell_their_size(how: str) -> None:
    td = TensorDict({"n": {}, "s": "text"}, (4, 3))

    def fn(td: TensorDict) -> Any:
        return tdfunc.vmap(lambda t: (t, torch.ones(2)), 1)(td)

    out, ones = (compiled(fn) if how == "compiled" else fn)(td)
    assert out.batch_size == (3, 4)
    assert out["s"] == "text"
    assert_same(ones, torch.ones(3, 2))


def test_no_rows_give_no_rows() -> None:
    td = TensorDict({"x": torch.zeros(0, 2), "n": {"y": torch.zeros(0, 1)}}, 0)
    for size in (None, 2):
        out = tdfunc.vmap(lambda t: t * 2, chunk_size=size)(td)
        assert out.batch_size == (0,)
        assert_same(out, td)
    assert_same(tdfunc.vmap(torch.sin)(td["x"]), torch.vmap(torch.sin)(td["x"]))


def test_what_is_the_same_for_all_rows_comes_back_expanded() -> None:
    td = TensorDict({"x": ramp(3)}, 3)
    table = torch.arange(4)
    out, plain = tdfunc.vmap(lambda t: (t.set("table", table), table))(td)
    assert_same(out["table"], table.expand(3, 4))
    assert out.batch_size == (3,)
    assert plain.data_ptr() == table.data_ptr()
    # torch expands in front, wherever the dim is to go, and fails.
    behind = tdfunc.vmap(lambda t: (t, torch.ones(2, 4)), out_dims=(0, 1))(td)[1]
    assert_same(behind, torch.ones(2, 3, 4))
    kept = tdfunc.vmap(lambda t: TensorDict({"table": table}), out_dims=None)(td)
    assert kept.batch_size == ()
    with pytest.raises(ValueError, match="can not return a BatchedTensor"):
        tdfunc.vmap(lambda t: t, out_dims=None)(td)


def test_an_outer_rows_value_can_pass_an_inner_map_whole() -> None:
    # torch refuses this: it does not ask on which level a tensor is mapped.
    def outer(x: torch.Tensor) -> Any:
        return tdfunc.vmap(lambda y: (x * 2, y + x), out_dims=(None, 0))(ramp(2))

    whole, added = tdfunc.vmap(outer)(ramp(3))
    assert_same(whole, ramp(3) * 2)
    assert_same(added, ramp(3)[:, None] + ramp(2))


def test_statics_rows_and_unbatched_tensors_pass_through() -> None:
    table = floats(5)
    td = TensorDict(
        {"x": ramp(3), "s": "text", "r": ["a", "b", "a"], "w": tdfunc.unbatched(table)},
        3,
    )
    out = tdfunc.vmap(lambda t: t.set("y", t["x"] * t["w"].sum()))(td)
    assert out["s"] == "text"
    assert out[1]["r"] == "b"
    assert_same(out["w"], table)
    assert_same(out["y"], ramp(3).double() * table.sum())


def test_a_lazy_stack_is_mapped_over_all_dims_but_its_own() -> None:
    one = TensorDict({"x": ramp(2, 2), "s": "t"}, 2)
    two = TensorDict({"x": ramp(2, 3), "y": ramp(2)}, 2)
    lazy = tdfunc.lazy_stack([one, two])
    for dim, out in ((1, 1), (-1, 1), (1, 0)):
        mapped = tdfunc.vmap(lambda t: t * 2, dim, out)(lazy)
        assert mapped.batch_size == (2, 2)
        members = mapped.unbind(out ^ 1)
        assert_same(members[0]["x"], ramp(2, 2) * 2)
        assert_same(members[1]["x"], ramp(2, 3) * 2)
        assert members[0]["s"] == "t"
    with pytest.raises(TypeError, match=r"stack dim.*densify\(\)"):
        tdfunc.vmap(lambda t: t * 2)(lazy)


# Surroundings


class Cube(torch.autograd.Function):
    """A function of the user's own, with a rule made by torch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


def test_autograd_functions_are_mapped() -> None:
    td = TensorDict({"x": floats(3, 2)}, 3)
    out = tdfunc.vmap(lambda t: t.apply(Cube.apply))(td)
    assert_same(out["x"], floats(3, 2) ** 3)
    grads = tdfunc.vmap(tdfunc.grad(lambda t: t.apply(Cube.apply).sum(reduce=True)))(td)
    assert_same(grads["x"], 3 * floats(3, 2) ** 2)


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("cpu"),
    ],
    ids=["no_grad", "inference_mode", "autocast", "a device (function mode)"],
)
def test_modes_act_as_under_torch(mode: Any) -> None:
    x, w = floats(3, 2, dtype=torch.float32), floats(2, 4, dtype=torch.float32)
    w.requires_grad_()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x @ w + torch.zeros(4)

    with mode():
        got, expected = tdfunc.vmap(fn)(x), torch.vmap(fn)(x)
    assert got.dtype == expected.dtype
    assert got.requires_grad == expected.requires_grad
    assert got.is_inference() == expected.is_inference()
    assert_same(got, expected)


def test_autograd_outside_goes_through() -> None:
    x = floats(3, 2).requires_grad_()
    td = TensorDict({"x": x}, 3)
    out = tdfunc.vmap(lambda t: (t * t).sum(reduce=True))(td)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert_same(grad, 2 * floats(3, 2))


def test_modules_are_mapped_by_functional_call() -> None:
    nets = [torch.nn.Linear(2, 3) for _ in range(4)]
    params = tdfunc.from_modules(*nets)
    x = ramp(5, 2)

    def fn(p: TensorDict) -> torch.Tensor:
        return tdfunc.func.functional_call(nets[0], p, x)

    expected = torch.stack([net(x) for net in nets])
    assert_same(tdfunc.vmap(fn)(params), expected, exact=False)


def test_threads_map_at_once() -> None:
    td = TensorDict({"x": floats(4, 3), "n": {"y": floats(4)}}, 4)

    def work(i: int) -> Any:
        out: Any = None
        for _ in range(20):
            out = tdfunc.vmap(
                tdfunc.grad(lambda t: (t * t * (i + 1)).sum(reduce=True))
            )(td)
        return out["x"]

    with ThreadPoolExecutor(8) as pool:
        for i, out in enumerate(pool.map(work, range(8))):
            assert_same(out, floats(4, 3) * 2 * (i + 1), exact=False)


COMPILED: dict[str, Callable[[TensorDict], Any]] = {
    "by name": lambda t: tdfunc.vmap(lambda r: r * 2, "time", 1)(t),
    "negative": lambda t: tdfunc.vmap(lambda r: r.sum(0), -1)(t),
    "in chunks": lambda t: tdfunc.vmap(lambda r: r * 2, chunk_size=2)(t),
    "dims by leaf": lambda t: tdfunc.vmap(
        lambda r: r["x"].sum() + r["n", "y"], (tdfunc.in_dims(t, 1, {"n": 0}),)
    )(t),
    "not mapped": lambda t: tdfunc.vmap(lambda r: (r, torch.ones(2)), 0, (1, None))(t),
    "expanded": lambda t: tdfunc.vmap(lambda r: (torch.ones(2), r), 0, 1)(t),
    "nested": lambda t: tdfunc.vmap(tdfunc.vmap(lambda r: r * 2))(t),
    "nested in torch's": lambda t: torch.vmap(tdfunc.vmap(lambda r: r * 2))(t),
    "around torch's": lambda t: tdfunc.vmap(torch.vmap(lambda r: r * 2))(t),
    "of grad": lambda t: tdfunc.vmap(tdfunc.grad(energy))(t),
    "in grad": lambda t: tdfunc.grad(lambda t: tdfunc.vmap(energy)(t).sum())(t),
    "of jacrev": lambda t: tdfunc.vmap(tdfunc.jacrev(energy))(t),
    "random": lambda t: tdfunc.vmap(
        lambda r: r * 0 + torch.rand(()).numel(), randomness="different"
    )(t),
}


@pytest.mark.parametrize("name", COMPILED)
def test_every_kind_of_map_compiles(name: str) -> None:
    fn = COMPILED[name]
    td = TensorDict(
        {"x": floats(3, 3, 2), "n": {"y": floats(3, 3)}, "s": "t"},
        (3, 3),
        names=["time", "env"],
    )
    got, expected = compiled(fn)(td), fn(td)
    assert_same(got, expected, exact=False)
    if isinstance(expected, TensorDict):
        assert got.batch_size == expected.batch_size
        assert got.names == expected.names
        assert got["s"] == "t" or "nested" in name


def test_errors_of_compiled_maps_name_what_is_wrong() -> None:
    td = TensorDict({"x": floats(3, 2)}, 3)
    for wrong, word in (
        (lambda t: tdfunc.vmap(lambda r: r, out_dims=None)(t), "BatchedTensor"),
        (lambda t: tdfunc.vmap(lambda r: 3)(t), "must only return Tensors"),
        (lambda t: tdfunc.vmap(lambda r: r, 2)(t), "no batch dim"),
    ):
        with pytest.raises(Exception, match=word):
            compiled(wrong)(td)
    assert levels() == 0


# Exported gradients give no values in torch 2.13, torch's own included.
@pytest.mark.parametrize("strict", [True, False])
def test_maps_are_exported(*, strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, td: TensorDict) -> TensorDict:
            return tdfunc.vmap(double)(td)

    td = TensorDict({"x": floats(3, 2), "y": floats(3)}, 3)
    program = torch.export.export(Model(), (td,), strict=strict)
    out = program.module()(td * 2)
    assert out.batch_size == (3,)
    assert_same(out, td * 4)


def test_traced_graphs_are_those_of_torch() -> None:
    x = floats(3, 2)
    graphs = [
        make_fx(vmap(grad(lambda r: r.sin().sum())))(x)
        for vmap, grad in ((tdfunc.vmap, tdfunc.grad), (torch.vmap, torch.func.grad))
    ]
    assert_same(graphs[0](x * 2), graphs[1](x * 2))
