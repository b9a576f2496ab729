"""Products with Jacobians and Jacobians against torch's, and their batch sizes."""

# A transform is applied inside what is compiled, not before it:
# ruff: noqa: ARG005

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tests.cases import bytes_of
from tests.func.transforms import (
    STRUCTURES,
    assert_same,
    compiled,
    differentiable,
    energy,
    floats,
    levels,
    outcome,
    plain,
    tensors_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = torch.func
Size = torch.Size


@pytest.fixture(autouse=True)
def _levels_are_left() -> Iterator[None]:
    yield
    assert levels() == 0


def mixing(value: Any) -> Any:
    """Return a tree, a tensor and a dict that depend on all of a pytree."""
    total = energy(value)
    x = tensors_of(value)[0]
    return {
        "tree": TensorDict({"a": x * total, "s": "t"}, x.shape[:1]),
        "rest": (total, [x.sin()]),
    }


def mixing_tensors(value: Any) -> Any:
    """Return the same without a tree."""
    total = energy(value)
    x = tensors_of(value)[0]
    return {"tree": {"a": x * total}, "rest": (total, [x.sin()])}


def cotangent(value: Any) -> Any:
    out = mixing_tensors(value)
    return {
        "tree": {"a": out["tree"]["a"].cos()},
        "rest": (out["rest"][0] * 3, [out["rest"][1][0] + 1]),
    }


def with_tree(out: Any) -> Any:
    leaf = out["tree"]["a"]
    tree = TensorDict({"a": leaf, "s": "t"}, leaf.shape[:1])
    return {"tree": tree, "rest": out["rest"]}


TRANSFORMS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "vjp": lambda m, fn, v, out: m.vjp(fn, v)[0],
    "vjp, pulled": lambda m, fn, v, out: m.vjp(fn, v)[1](out),
    "jvp": lambda m, fn, v, out: m.jvp(fn, (v,), (v,)),
    "jvp, strict": lambda m, fn, v, out: m.jvp(fn, (v,), (v,), strict=True),
    "linearize": lambda m, fn, v, out: m.linearize(fn, v)[0],
    "linearize, pushed": lambda m, fn, v, out: m.linearize(fn, v)[1](v),
    "jacrev": lambda m, fn, v, out: m.jacrev(fn)(v),
    "jacrev in chunks": lambda m, fn, v, out: m.jacrev(fn, chunk_size=2)(v),
    "jacfwd": lambda m, fn, v, out: m.jacfwd(fn)(v),
    "hessian": lambda m, fn, v, out: m.hessian(energy)(v),
}
COMPILED = [name for name in TRANSFORMS if "linearize" not in name]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_values_are_those_of_torch(name: str, structure: str) -> None:
    value = STRUCTURES[structure]()
    tensors = plain(differentiable(value))
    out = cotangent(value)
    transform = TRANSFORMS[name]
    got = transform(tdfunc, mixing, value, with_tree(out))
    if structure == "tree of rows" and "jvp" in name:
        got = got[0], differentiable(got[1])
    expected = transform(T, mixing_tensors, tensors, out)
    assert_same(got, expected, exact="hessian" not in name and "chunks" not in name)


@pytest.mark.parametrize("structure", ["dict", "tree of statics"])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_they_are_the_eager_ones(name: str, structure: str) -> None:
    value = STRUCTURES[structure]()
    out = with_tree(cotangent(value))
    transform = TRANSFORMS[name]

    fn = compiled(lambda v, out: transform(tdfunc, mixing, v, out))
    expected = transform(tdfunc, mixing, value, out)
    assert_same(fn(value, out), expected, exact=False)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_inputs_are_only_read(name: str) -> None:
    value = STRUCTURES["nested tree"]()
    out = with_tree(cotangent(value))
    tensors = [*tensors_of(value), *tensors_of(out)]
    before = [(x._version, x.requires_grad, bytes_of(x)) for x in tensors]
    TRANSFORMS[name](tdfunc, mixing, value, out)
    assert [(x._version, x.requires_grad, bytes_of(x)) for x in tensors] == before


def wave(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sin() * x.cos().sum()


NESTED: dict[str, Callable[[Any, Any], Any]] = {
    "jacfwd of jacrev": lambda m, n: m.jacfwd(n.jacrev(wave)),
    "jacrev of jacfwd": lambda m, n: m.jacrev(n.jacfwd(wave)),
    "jacrev of jacrev": lambda m, n: m.jacrev(n.jacrev(wave)),
    "jacfwd of jacfwd": lambda m, n: m.jacfwd(n.jacfwd(wave)),
    "hessian of a sum": lambda m, n: m.hessian(lambda x: n.vmap(wave)(x).sum()),
    "jacobian of grad": lambda m, n: m.jacfwd(n.grad(lambda x: wave(x).sum())),
    "map of jacobian": lambda m, n: m.vmap(n.jacrev(wave)),
    "jacobian of map": lambda m, n: m.jacfwd(n.vmap(wave)),
    "map of hessian": lambda m, n: m.vmap(n.hessian(lambda x: wave(x).sum())),
    "grad of jvp": lambda m, n: m.grad(
        lambda x: n.jvp(wave, (x,), (x.cos(),))[1].sum()
    ),
    "jvp of vjp": lambda m, n: (
        lambda x: m.jvp(lambda y: n.vjp(wave, y)[1](y.cos())[0], (x,), (x,))
    ),
    "vjp of jvp": lambda m, n: (
        lambda x: m.vjp(lambda y: n.jvp(wave, (y,), (y.cos(),))[1], x)[1](x)
    ),
    "map of products": lambda m, n: m.vmap(lambda r: n.vjp(wave, r)[1](r)),
    "pulled rows": lambda m, n: (
        lambda x: m.vmap(n.vjp(wave, x)[1])(torch.stack([x, x]))
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_nesting_with_itself_and_with_torchs(name: str) -> None:
    make = NESTED[name]
    expected = make(T, T)(floats(3, 2))
    for pair in ((tdfunc, tdfunc), (tdfunc, T), (T, tdfunc)):
        assert_same(make(*pair)(floats(3, 2)), expected)


def product(a: Any, b: Any) -> torch.Tensor:
    return a * b


@pytest.mark.parametrize("argnums", [0, 1, (0,), (1, 0)])
def test_argnums_are_those_of_torch(argnums: Any) -> None:
    args = (floats(3), floats(2, 3))
    for name in ("jacrev", "jacfwd", "hessian"):
        ours, theirs = getattr(tdfunc, name), getattr(T, name)
        got, expected = (
            transform(product, argnums)(*args) for transform in (ours, theirs)
        )
        assert_same(got, expected)


def test_negative_argnums_count_from_the_last() -> None:
    # torch's own jacfwd says that the result does not depend on such an argument.
    args = (floats(3), floats(2, 3))
    for name in ("jacrev", "jacfwd", "hessian"):
        transform = getattr(tdfunc, name)
        assert_same(transform(product, -1)(*args), transform(product, 1)(*args))
        two = transform(product, (-1, 0))(*args)
        assert_same(two, transform(product, (1, 0))(*args))


def test_more_results_pass_through() -> None:
    td = TensorDict({"x": floats(3), "s": "text", "k": torch.arange(3)}, 3)

    def fn(t: TensorDict) -> Any:
        return t["x"] ** 2, {"all": t, "n": [t["k"] + 1]}

    tangent = td.select("x")
    for aux in (
        tdfunc.vjp(fn, td, has_aux=True)[2],
        tdfunc.jvp(fn, (td,), (tangent,), has_aux=True)[2],
        tdfunc.jacrev(fn, has_aux=True)(td)[1],
        tdfunc.jacfwd(fn, has_aux=True)(td)[1],
    ):
        assert aux["all"]["s"] == "text"
        assert aux["all"].batch_size == (3,)
        assert_same(aux["all"]["k"], torch.arange(3))
        assert_same(aux["n"], [torch.arange(3) + 1])


# Errors


def cube(x: torch.Tensor) -> torch.Tensor:
    return x**3


WRONG: dict[str, Callable[[Any], Any]] = {
    "vjp to a number": lambda m: m.vjp(lambda x: 3, floats(3)),
    "vjp to nothing": lambda m: m.vjp(lambda x: (), floats(3)),
    "vjp to None": lambda m: m.vjp(lambda x: None, floats(3)),
    "vjp to integers": lambda m: m.vjp(lambda x: x.long(), floats(3)),
    "vjp of integers": lambda m: m.vjp(cube, torch.arange(3)),
    "vjp of text": lambda m: m.vjp(cube, "a"),
    "vjp without a pair": lambda m: m.vjp(cube, floats(3), has_aux=True),
    "vjp with a number beside": lambda m: m.vjp(
        lambda x: (x, 3), floats(3), has_aux=True
    ),
    "cotangents of another structure": lambda m: m.vjp(cube, floats(3))[1](
        (floats(3),)
    ),
    "cotangents with other keys": lambda m: m.vjp(lambda x: {"a": x}, floats(3))[1](
        {"b": floats(3)}
    ),
    "cotangents of another shape": lambda m: m.vjp(cube, floats(3))[1](floats(2)),
    "jvp of a tensor": lambda m: m.jvp(cube, floats(3), floats(3)),
    "jvp of nothing": lambda m: m.jvp(lambda: floats(3), (), ()),
    "jvp of a number": lambda m: m.jvp(cube, (3,), (floats(3),)),
    "jvp along a number": lambda m: m.jvp(cube, (floats(3),), (3,)),
    "jvp along a tensor": lambda m: m.jvp(cube, (floats(3),), floats(3)),
    "jvp along a list": lambda m: m.jvp(cube, (floats(3),), [floats(3)]),
    "jvp along too many": lambda m: m.jvp(cube, (floats(3),), (floats(3), floats(3))),
    "jvp along another structure": lambda m: m.jvp(
        cube, (floats(3),), ({"a": floats(3)},)
    ),
    "jvp along another shape": lambda m: m.jvp(cube, (floats(3),), (floats(2),)),
    "jvp to a number": lambda m: m.jvp(lambda x: 3, (floats(3),), (floats(3),)),
    "jvp, strict": lambda m: m.jvp(
        lambda x: floats(2), (floats(3),), (floats(3),), strict=True
    ),
    "jvp without a pair": lambda m: m.jvp(
        cube, (floats(3),), (floats(3),), has_aux=True
    ),
    "linearize, along another structure": lambda m: m.linearize(cube, floats(3))[1](
        (floats(3),)
    ),
    "linearize, along another shape": lambda m: m.linearize(cube, floats(3))[1](
        floats(2)
    ),
    "linearize, along another dtype": lambda m: m.linearize(cube, floats(3))[1](
        floats(3).float()
    ),
    "jacrev of no such argument": lambda m: m.jacrev(cube, 1)(floats(3)),
    "jacrev of none": lambda m: m.jacrev(cube, ())(floats(3)),
    "jacrev of one twice": lambda m: m.jacrev(product, (0, 0))(floats(3), floats(3)),
    "jacrev of text": lambda m: m.jacrev(cube, "0")(floats(3)),
    "jacrev to a number": lambda m: m.jacrev(lambda x: 3)(floats(3)),
    "jacrev without a pair": lambda m: m.jacrev(cube, has_aux=True)(floats(3)),
    "jacrev of integers": lambda m: m.jacrev(cube)(torch.arange(3)),
    "jacrev in no chunks": lambda m: m.jacrev(cube, chunk_size=0)(floats(3)),
    "jacfwd of no such argument": lambda m: m.jacfwd(cube, -2)(floats(3)),
    "jacfwd to a number": lambda m: m.jacfwd(lambda x: 3)(floats(3)),
    "jacfwd without a pair": lambda m: m.jacfwd(cube, has_aux=True)(floats(3)),
    "jacfwd of random": lambda m: m.jacfwd(lambda x: x * torch.randn(3))(floats(3)),
    "hessian of no such argument": lambda m: m.hessian(cube, 3)(floats(3)),
    "raised inside": lambda m: m.hessian(lambda x: {}["key"])(floats(3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_torch(name: str) -> None:
    wrong = WRONG[name]
    assert outcome(lambda: wrong(tdfunc)) == outcome(lambda: wrong(T))
    assert levels() == 0
    assert_same(tdfunc.jacrev(cube)(floats(2)), torch.diag(3 * floats(2) ** 2))


def test_structures_that_do_not_fit_trees_are_refused() -> None:
    td = TensorDict({"x": floats(3), "k": torch.arange(3)}, 3)
    _, back = tdfunc.vjp(lambda t: t, td)
    for wrong in (td.rename_key("x", "z"), floats(3), {"x": floats(3)}, (td,)):
        with pytest.raises(RuntimeError, match="structure of cotangents"):
            back(wrong)
        with pytest.raises(RuntimeError, match="same python structure"):
            tdfunc.jvp(lambda t: t, (td,), (wrong,))
    assert_same(back(td)[0]["x"], floats(3))


# Batch sizes


def test_jacobians_of_batched_trees_keep_their_batch() -> None:
    # On square shapes the rank rule alone would find other batch sizes.
    td = TensorDict({"x": floats(3, 3), "n": {"y": floats(3)}, "s": "t"}, 3)
    for jacobian in (tdfunc.jacrev, tdfunc.jacfwd):
        jac = jacobian(lambda t: t * t)(td)
        assert jac.batch_size == (3,)
        assert jac["s"] == "t"
        assert jac["x"].batch_size == (3, 3, 3)
        assert jac["n", "y"].batch_size == (3, 3)
        assert jac["x", "n", "y"].shape == (3, 3, 3)
        assert jac["x", "x"].shape == (3, 3, 3, 3)
        of_tensor = jacobian(lambda t: t["x"].sum(0))(td)
        assert of_tensor.batch_size == (3, 3)
        to_tree = jacobian(lambda x: TensorDict({"o": x * 2}, 3))(floats(3))
        assert to_tree.batch_size == (3,)
        assert to_tree["o"].shape == (3, 3)
    second = tdfunc.hessian(energy)(td)
    assert second.batch_size == (3,)
    assert second["x"].batch_size == (3, 3, 3)
    assert second["n", "y", "x"].shape == (3, 3, 3)


def test_leaves_that_have_no_derivative_are_absent() -> None:
    td = TensorDict(
        {"x": floats(3), "k": torch.arange(3), "r": ["a", "b", "a"], "s": "t"}, 3
    )
    out, back = tdfunc.vjp(lambda t: t.set("x", t["x"] * t["k"]), td)
    assert out["k"].dtype == torch.int64
    assert out[1]["r"] == "b"
    for given in (td, td.select("x"), td.select("x", "s")):
        grads = back(given)[0]
        assert grads.keys(leaves_only=True) == ("x",)
        assert_same(grads["x"], floats(3) * torch.arange(3))
    for given in (td, td.select("x")):
        out, pushed = tdfunc.jvp(lambda t: t.apply(torch.neg), (td,), (given,))
        assert pushed.keys(leaves_only=True) == ("x",)
        assert out["k"].tolist() == [0, -1, -2]
    jac = tdfunc.jacrev(lambda t: t)(td)
    assert jac.keys(leaves_only=True) == ()
    assert jac["x"].keys(leaves_only=True) == ("x",)


def test_an_output_that_depends_on_nothing_has_zeros() -> None:
    td = TensorDict({"x": floats(3), "y": floats(2)})
    out = tdfunc.jacrev(lambda t: TensorDict({"a": t["x"] * 2, "b": floats(2)}))(td)
    assert_same(out["b", "x"], torch.zeros(2, 3, dtype=torch.float64))
    assert_same(out["a", "y"], torch.zeros(3, 2, dtype=torch.float64))
    _, pushed = tdfunc.jvp(lambda t: floats(2), (td,), (td,))
    assert_same(pushed, torch.zeros(2, dtype=torch.float64))


def test_products_of_lazy_stacks_are_products_of_their_members() -> None:
    one, two = TensorDict({"x": floats(2)}, 2), TensorDict({"x": floats(2, 3)}, 2)
    lazy = tdfunc.lazy_stack([one, two])
    (grads,) = tdfunc.vjp(energy, lazy)[1](torch.tensor(2.0, dtype=torch.float64))
    expected = T.grad(lambda v: 2 * energy(v))([floats(2), floats(2, 3)])
    assert_same([m["x"] for m in grads.unbind(0)], expected)


# Surroundings


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
    x, w = floats(2, dtype=torch.float32), floats(2, 4, dtype=torch.float32)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x @ w + torch.zeros(4)).sin()

    for name in ("jacrev", "jacfwd"):
        with mode():
            got, expected = getattr(tdfunc, name)(fn)(x), getattr(T, name)(fn)(x)
            tree = getattr(tdfunc, name)(lambda t: fn(t["x"]))(TensorDict({"x": x}))
        assert got.dtype == expected.dtype
        assert got.is_inference() == expected.is_inference()
        assert_same(got, expected)
        assert_same(tree["x"], expected)


def test_autograd_outside_goes_through() -> None:
    def outside(m: Any) -> Any:
        c = floats(3).requires_grad_()
        jac = m.jacrev(lambda x: x**3 * c)(floats(3))
        out, back = m.vjp(lambda x: (x**3 * c).sum(), floats(3))
        (pulled,) = back(torch.ones((), dtype=torch.float64))
        total = jac.sum() + out + pulled.sum()
        return jac, pulled, torch.autograd.grad(total, c)

    assert_same(outside(tdfunc), outside(T))


def test_what_vjp_returns_can_be_called_again() -> None:
    td = TensorDict({"x": floats(3)}, 3)
    out, back = tdfunc.vjp(lambda t: t**3, td)
    first, second = back(out), back(out)
    assert_same(first, second)
    assert_same(back(out, retain_graph=False, create_graph=False), first)


def test_threads_differentiate_at_once() -> None:
    td = TensorDict({"x": floats(3), "n": {"y": floats(2)}})

    def work(i: int) -> Any:
        out: Any = None
        for _ in range(5):
            out = tdfunc.jacrev(lambda t: t["x"] * energy(t) * i)(td)
            # jvp of torch counts its nesting for the whole process: one thread only.
        return out

    with ThreadPoolExecutor(8) as pool:
        for i, out in enumerate(pool.map(work, range(8))):
            expected = T.jacrev(lambda t, i=i: t["x"] * energy(t) * i)(plain(td))
            assert_same(out, expected)
