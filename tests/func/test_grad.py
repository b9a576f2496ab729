"""`tdfunc.grad` and `grad_and_value` against torch's, and what they add for trees."""

# Functions that are transformed have the arguments that the transform wants, and a
# transform is applied inside what is compiled, not before it:
# ruff: noqa: ARG004, ARG005, PLW0108

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo.compiled_autograd
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import MissingKeyError, OptionError
from tests.cases import bytes_of, ramp
from tests.func.transforms import (
    STRUCTURES,
    assert_same,
    compiled,
    differentiable,
    energy,
    floats,
    levels,
    outcome,
    tensors_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = torch.func


@pytest.fixture(autouse=True)
def _levels_are_left() -> Iterator[None]:
    yield
    assert levels() == 0


# Equality with torch


@pytest.mark.parametrize("name", STRUCTURES)
def test_values_are_those_of_torch(name: str) -> None:
    value = STRUCTURES[name]()
    diff = differentiable(value)
    assert_same(tdfunc.grad(energy)(value), T.grad(energy)(diff))
    got, at = tdfunc.grad_and_value(energy)(value)
    expected, value_there = T.grad_and_value(energy)(diff)
    assert_same((got, at), (expected, value_there))


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_gradient_has_the_structure_of_what_it_is_of(name: str) -> None:
    value = STRUCTURES[name]()
    grads = tdfunc.grad(energy)(value)
    trees = pytree.tree_leaves(value, is_leaf=lambda v: isinstance(v, TensorDict))
    found = pytree.tree_leaves(grads, is_leaf=lambda v: isinstance(v, TensorDict))
    for tree, grad in zip(trees, found, strict=True):
        if isinstance(tree, TensorDict):
            assert grad.batch_size == tree.batch_size
            assert grad.names == tree.names
            kept = [k for k in tree.keys() if k != "r"]  # noqa: SIM118
            assert list(grad.keys()) == kept
            assert grad.get("s", "text") == "text"


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_compiled_gradient_is_the_eager_one(name: str) -> None:
    value = STRUCTURES[name]()
    fn = compiled(lambda v: tdfunc.grad(energy)(v))
    assert_same(fn(value), tdfunc.grad(energy)(value), exact=False)
    both = compiled(
        lambda v: tdfunc.grad_and_value(lambda v: (energy(v), v), has_aux=True)(v)
    )
    grads, (at, aux) = both(value)
    assert_same(grads, tdfunc.grad(energy)(value), exact=False)
    assert_same((at, aux), (energy(value), value), exact=False)


@pytest.mark.parametrize("name", STRUCTURES)
def test_inputs_are_only_read(name: str) -> None:
    tensors = tensors_of(value := STRUCTURES[name]())
    before = [(x._version, x.requires_grad, bytes_of(x)) for x in tensors]
    tdfunc.grad(energy)(value)
    assert [(x._version, x.requires_grad, bytes_of(x)) for x in tensors] == before


def cubes(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum() * x.cos().sum()


NESTED: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda g, h: g(cubes),
    "grad of grad": lambda g, h: g(lambda x: h(cubes)(x).sum()),
    "grad of grad of grad": lambda g, h: g(
        lambda x: h(lambda x: g(cubes)(x).sum())(x).sum()
    ),
    "map of grad": lambda g, h: torch.vmap(g(lambda r: r.sin().sum())),
    "grad of map": lambda g, h: g(lambda x: torch.vmap(torch.sin)(x).sum()),
    "map of grad of grad": lambda g, h: torch.vmap(
        g(lambda r: h(lambda r: (r**3).sum())(r).sum())
    ),
    "grad of map of grad": lambda g, h: g(
        lambda x: torch.vmap(h(lambda r: (r**3).sum()))(x).sum()
    ),
    "jvp": lambda g, h: lambda x: T.jvp(g(cubes), (x,), (x.cos(),)),
    "vjp": lambda g, h: lambda x: T.vjp(g(cubes), x)[1](x.cos()),
    "jacfwd": lambda g, h: T.jacfwd(g(cubes)),
    "jacrev": lambda g, h: T.jacrev(g(cubes)),
    "jacfwd of jacrev": lambda g, h: T.jacfwd(T.jacrev(g(cubes))),
    "jvp of grad of grad": lambda g, h: (
        lambda x: T.jvp(g(lambda x: h(cubes)(x).sum()), (x,), (x,))
    ),
    "grad of a jvp": lambda g, h: g(
        lambda x: T.jvp(lambda x: x.sin(), (x,), (x.cos(),))[1].sum()
    ),
    "of what an outer one differentiates": lambda g, h: g(
        lambda x: h(lambda y: (x * y**2).sum())(x.cos()).sum()
    ),
    "which an outer one does not need": lambda g, h: g(
        lambda x: x.sum() + h(lambda y: (y**2).sum())(torch.ones(2)).sum()
    ),
    "functionalized": lambda g, h: T.functionalize(g(cubes)),
    "linearized": lambda g, h: lambda x: T.linearize(g(cubes), x)[1](x),
}


@pytest.mark.parametrize("name", NESTED)
def test_nesting_with_itself_and_with_torchs(name: str) -> None:
    make = NESTED[name]
    expected = make(T.grad, T.grad)(floats(3, 2))
    for pair in (
        (tdfunc.grad, tdfunc.grad),
        (tdfunc.grad, T.grad),
        (T.grad, tdfunc.grad),
    ):
        assert_same(make(*pair)(floats(3, 2)), expected)


def test_derivatives_of_trees_nest() -> None:
    td = TensorDict({"x": floats(3), "n": {"y": floats(2)}, "k": 3, "s": "t"})
    tensors = {"x": td["x"], "n": {"y": td["n", "y"]}}

    def loss(t: Any) -> torch.Tensor:
        return (t["x"] ** 4).sum() * t["n"]["y"].cos().prod()

    def twice(g: Any) -> Any:
        return g(lambda t: energy(g(loss)(t)))

    assert_same(tdfunc.grad(loss)(td), T.grad(loss)(tensors))
    assert_same(twice(tdfunc.grad)(td), twice(T.grad)(tensors))

    def thrice(g: Any) -> Any:
        return g(lambda t: energy(twice(g)(t)))

    assert_same(thrice(tdfunc.grad)(td), thrice(T.grad)(tensors))


def pair(a: Any, b: Any, c: Any = 2.0) -> torch.Tensor:
    return (a * b).sum() * c


@pytest.mark.parametrize("argnums", [0, 1, -1, (0,), (1, 0), (0, -1), True])
def test_argnums_are_those_of_torch(argnums: Any) -> None:
    args = (floats(3), floats(3).cos())
    for options in ({}, {"c": torch.tensor(3.0)}):
        assert_same(
            tdfunc.grad_and_value(pair, argnums)(*args, **options),
            T.grad_and_value(pair, argnums)(*args, **options),
        )


def test_more_results_pass_through() -> None:
    td = TensorDict({"x": floats(3), "s": "text", "k": torch.arange(3)}, 3)

    def fn(t: TensorDict) -> Any:
        return (t["x"] ** 2).sum(), {"t": t, "twice": [t["x"] * 2]}

    grads, aux = tdfunc.grad(fn, has_aux=True)(td)
    assert_same(grads["x"], 2 * floats(3))
    assert aux["t"].batch_size == (3,)
    assert aux["t"]["s"] == "text"
    assert_same(aux["t"]["k"], torch.arange(3))
    assert_same(aux["twice"], [floats(3) * 2])
    grads, (value, _) = tdfunc.grad_and_value(fn, has_aux=True)(td)
    assert_same(value, (floats(3) ** 2).sum())
    assert not aux["t"]["x"].requires_grad


# What is differentiated from outside


class Outside:
    """A gradient, and someone around who differentiates it, or not."""

    def __init__(self, g: Any) -> None:
        self.g = g
        self.x = floats(3).requires_grad_()
        self.c = (floats(3) + 2).requires_grad_()

    def of_the_argument(self) -> Any:
        grad = self.g(lambda x: (x**3).sum())(self.x)
        return grad, torch.autograd.grad(grad.sum(), self.x)

    def of_a_tree(self) -> Any:
        td = TensorDict({"x": self.x}, 3)
        grad = self.g(lambda t: (t["x"] ** 3 * t["x"].cos()).sum())(td)["x"]
        return grad, torch.autograd.grad(grad.sum(), self.x)

    def of_another_argument(self) -> Any:
        grad = self.g(lambda x, c: (x**3 * c).sum())(floats(3), self.c)
        return grad, torch.autograd.grad(grad.sum(), self.c)

    def of_a_keyword(self) -> Any:
        grad = self.g(lambda x, c=None: (x**3 * c).sum())(floats(3), c=self.c)
        return grad, torch.autograd.grad(grad.sum(), self.c)

    def of_the_closure(self) -> Any:
        grad = self.g(lambda x: (x**3 * self.c).sum())(floats(3))
        return grad, torch.autograd.grad(grad.sum(), self.c)

    def of_a_module(self) -> Any:
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2).double()
        grad = self.g(lambda x: net(x).pow(2).sum())(floats(3))
        return grad, torch.autograd.grad(grad.sum(), list(net.parameters()))

    def of_the_value(self) -> Any:
        _, value = self.both(lambda x: (x**3 * self.c).sum())(floats(3))
        return torch.autograd.grad(value, self.c)

    def of_what_is_returned_beside(self) -> Any:
        both = self.both(lambda x: (x.sum(), self.c * x), has_aux=True)
        return torch.autograd.grad(both(floats(3))[1][1].sum(), self.c)

    def twice(self) -> Any:
        grad = self.g(lambda x: (x**4 * self.c**2).sum())(self.x)
        (one,) = torch.autograd.grad(grad.sum(), self.x, create_graph=True)
        return torch.autograd.grad(one.sum(), [self.c, self.x])

    def kept(self) -> Any:
        grad = self.g(lambda x: (x**3 * self.c).sum())(floats(3))
        once = torch.autograd.grad(grad.sum(), self.c, retain_graph=True)
        return once, torch.autograd.grad(grad.sum(), self.c)

    def through_vmap(self) -> Any:
        grads = torch.vmap(self.g(lambda x: (x**3 * self.c).sum()))(floats(2, 3))
        return grads, torch.autograd.grad(grads.sum(), self.c)

    def through_vmap_of_the_argument(self) -> Any:
        x = floats(2, 3).requires_grad_()
        grads = tdfunc.vmap(self.g(lambda x: (x**3).sum()))(x)
        return grads, torch.autograd.grad(grads.sum(), x)

    def forward(self) -> Any:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(floats(3), floats(3).cos())
            grad = self.g(lambda x: (x**3).sum())(dual)
            return tuple(forward_ad.unpack_dual(grad))

    def forward_of_the_closure(self) -> Any:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(floats(3), floats(3).cos())
            grad = self.g(lambda x: (x**3 * dual).sum())(floats(3))
            return tuple(forward_ad.unpack_dual(grad))

    def independent(self) -> Any:
        return self.g(lambda x: self.c.sum().detach())(floats(3))

    def independent_but_followed(self) -> Any:
        grad = self.g(lambda x: self.c.sum())(floats(3))
        return grad, grad.requires_grad

    def partly_independent(self) -> Any:
        args = (floats(3), floats(2))
        return self.g(lambda x, y: (x**2).sum(), (0, 1))(*args)

    def without_graph(self) -> Any:
        with torch.no_grad():
            grad = self.g(lambda x: (x**3 * self.c).sum())(self.x)
        return grad, grad.requires_grad

    def without_graph_inside(self) -> Any:
        def fn(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                cut = x**2
            return (x * cut).sum()

        grad = self.g(fn)(self.x)
        return grad, grad.requires_grad

    def nothing_outside(self) -> Any:
        grad, value = self.both(lambda x: (x**3).sum())(floats(3))
        return grad, value, grad.requires_grad, grad.grad_fn is None

    def in_place(self) -> Any:
        def fn(x: torch.Tensor) -> torch.Tensor:
            return x.clone().mul_(x).add_(self.c).sum()

        grad = self.g(fn)(self.x)
        return grad, torch.autograd.grad(grad.sum(), self.x)

    def gradient_inside(self) -> Any:
        def fn(x: torch.Tensor) -> torch.Tensor:
            y = x**3
            (inner,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return (inner * y).sum()

        grad = self.g(fn)(self.x)
        return grad, torch.autograd.grad(grad.sum(), self.x)

    def hooked(self) -> Any:
        def fn(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            y.register_hook(lambda g: g * 10)
            return (y**2).sum()

        return self.g(fn)(floats(3))

    def complex(self) -> Any:
        z = torch.complex(floats(3), floats(3).cos())
        return self.g(lambda z: (z * z.conj()).real.sum())(z)

    def both(self, fn: Any, **options: Any) -> Any:
        functions = {tdfunc.grad: tdfunc.grad_and_value, T.grad: T.grad_and_value}
        return functions[self.g](fn, **options)


OUTSIDE = [k for k in vars(Outside) if not k.startswith("_") and k != "both"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_who_is_outside_gets_what_torch_gives(name: str) -> None:
    got = getattr(Outside(tdfunc.grad), name)()
    assert_same(got, getattr(Outside(T.grad), name)())


def test_compiled_autograd_outside_is_let_alone() -> None:
    x = floats(3).requires_grad_()

    def fn(g: Any) -> Any:
        with torch._dynamo.compiled_autograd._enable(
            torch.compile(backend="eager", fullgraph=True)
        ):
            grad = g(lambda x: (x**3).sum())(x)
        return grad, torch.autograd.grad(grad.sum(), x)

    assert_same(fn(tdfunc.grad), fn(T.grad))


def test_no_graph_is_kept_for_nobody() -> None:
    graphs: list[Any] = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            graphs.append(torch.is_grad_enabled())
            return grad * 2

    def fn(x: torch.Tensor) -> torch.Tensor:
        return Noted.apply(x).sum()

    x = floats(3)
    tdfunc.grad(fn)(x)
    tdfunc.grad(fn)(x.requires_grad_())
    T.grad(fn)(x.detach())
    assert graphs == [False, True, True]


def test_what_only_a_hook_brings_in_is_a_constant() -> None:
    # The one known difference: it could be seen only by building the graph.
    c = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        y.register_hook(lambda g: g * c)
        return y.sum()

    ours, theirs = tdfunc.grad(fn)(floats(2)), T.grad(fn)(floats(2))
    assert torch.equal(ours, theirs)
    assert theirs.requires_grad
    assert not ours.requires_grad


def test_what_was_saved_is_freed() -> None:
    saved: list[Any] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        saved.append(weakref.ref(y))
        return (y * y).sum()

    tdfunc.grad(fn)(floats(3))
    gc.collect()
    assert saved[0]() is None


# Errors


def square(x: torch.Tensor) -> torch.Tensor:
    return (x**2).sum()


WRONG: dict[str, Callable[[Any], Any]] = {
    "no scalar": lambda g: g(lambda x: x)(floats(3)),
    "one element": lambda g: g(lambda x: x[:1])(floats(3)),
    "a number": lambda g: g(lambda x: 3)(floats(3)),
    "a tuple": lambda g: g(lambda x: (x.sum(), x))(floats(3)),
    "None": lambda g: g(lambda x: None)(floats(3)),
    "no pair": lambda g: g(square, has_aux=True)(floats(3)),
    "a list of two": lambda g: g(lambda x: [x.sum(), x], has_aux=True)(floats(3)),
    "aux is no tensor": lambda g: g(lambda x: (x.sum(), 3), has_aux=True)(floats(3)),
    "aux is None": lambda g: g(lambda x: (x.sum(), None), has_aux=True)(floats(3)),
    "integers": lambda g: g(square)(torch.arange(3)),
    "integers in a dict": lambda g: g(square)({"x": torch.arange(3)}),
    "text": lambda g: g(square)("a"),
    "a number in a tuple": lambda g: g(square)((floats(3), 3)),
    "nothing": lambda g: g(square)(),
    "no such argument": lambda g: g(square, 2)(floats(3)),
    "no such argument, negative": lambda g: g(square, -2)(floats(3)),
    "no such arguments": lambda g: g(square, (0, 1))(floats(3)),
    "one twice": lambda g: g(pair, (0, 0))(floats(3), floats(3)),
    "one twice, negative": lambda g: g(pair, (0, -2))(floats(3), floats(3)),
    "none chosen": lambda g: g(square, ())(floats(3)),
    "argnums is text": lambda g: g(square, "0")(floats(3)),
    "argnums is a list": lambda g: g(square, [0])(floats(3)),
    "argnums of text": lambda g: g(square, ("0",))(floats(3)),
    "a complex result": lambda g: g(lambda x: x.sum())(
        torch.ones(2, dtype=torch.complex64)
    ),
    "raised inside": lambda g: g(lambda x: {}["key"])(floats(3)),
    "unknown keyword": lambda g: g(square)(floats(3), power=2),
    "in place": lambda g: g(lambda x: x.exp_().sum())(floats(3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_torch(name: str) -> None:
    wrong = WRONG[name]
    for ours, theirs in (
        (tdfunc.grad, T.grad),
        (tdfunc.grad_and_value, T.grad_and_value),
    ):
        assert outcome(lambda: wrong(ours)) == outcome(lambda: wrong(theirs))  # noqa: B023
        assert levels() == 0
        assert torch.is_grad_enabled()
    assert_same(tdfunc.grad(square)(floats(3)), 2 * floats(3))


def test_an_error_leaves_the_mode_of_gradients_and_hooks_as_they_were() -> None:
    with torch.no_grad():
        for _ in range(3):
            with pytest.raises(KeyError):
                tdfunc.grad(lambda x: tdfunc.grad(lambda y: {}[0])(x))(floats(3))
            assert not torch.is_grad_enabled()
            assert levels() == 0
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        x = floats(3).requires_grad_()
        (x**2).sum().backward()
    assert_same(x.grad, 2 * floats(3))


def test_saved_tensor_hooks_are_refused_as_by_torch() -> None:
    def inside(g: Any) -> Any:
        def fn(x: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.save_on_cpu():
                return (x**2).sum()

        return g(fn)(floats(3))

    def around(g: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return g(square)(floats(3))

    for call in (inside, around):
        got = outcome(lambda: call(tdfunc.grad))  # noqa: B023
        assert got == outcome(lambda: call(T.grad))  # noqa: B023
        assert "saved tensor hooks" in got[1]
        assert levels() == 0
        with torch.autograd.graph.save_on_cpu():  # refused within transforms only
            torch.ones(2, requires_grad=True).exp()


# Parts of trees


def net() -> TensorDict:
    layer = {"w": floats(3, 2), "b": floats(2)}
    return TensorDict({"one": layer, "two": layer, "step": 3, "name": "net"})


def norm(t: Any) -> torch.Tensor:
    return sum((x.pow(3).sum() for x in tensors_of(t)), torch.zeros(()))


WRT: dict[str, tuple[Any, list[tuple[str, ...]]]] = {
    "a key": ("one", [("one", "b"), ("one", "w")]),
    "a path": (("one", "w"), [("one", "w")]),
    "paths": ([("one", "w"), "two"], [("one", "w"), ("two", "b"), ("two", "w")]),
    "a set": ({("one", "w"), ("two", "w")}, [("one", "w"), ("two", "w")]),
    "a predicate": (lambda p, x: p[-1] == "b", [("one", "b"), ("two", "b")]),
    "a predicate of leaves": (lambda p, x: x.dim() == 2, [("one", "w"), ("two", "w")]),
    "a mapping": ({"one": True, ("one", "b"): False}, [("one", "w")]),
    "a dtype": (torch.float64, [(o, k) for o in ("one", "two") for k in "bw"]),
}


@pytest.mark.parametrize("name", WRT)
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_wrt_differentiates_just_some_leaves(name: str, how: str) -> None:
    wrt, paths = WRT[name]
    td = net()

    def fn(td: TensorDict) -> TensorDict:
        return tdfunc.grad(norm, wrt=wrt)(td)

    grads = (compiled(fn) if how == "compiled" else fn)(td)
    assert sorted(grads.keys(True, True)) == paths
    assert "name" not in grads
    for path in paths:
        assert_same(grads[path], 3 * td[path] ** 2, exact=False)


def test_wrt_errors() -> None:
    td = net()
    with pytest.raises(MissingKeyError, match=r"td\['three'\]"):
        tdfunc.grad(norm, wrt="three")(td)
    for wrt in ("step", ["step"], {"step": True}):
        with pytest.raises(OptionError, match=r"td\['step'\].*float.*int64"):
            tdfunc.grad(norm, wrt=wrt)(td)
    with pytest.raises(OptionError, match=r"nothing that has a gradient.*'one', 'b'"):
        tdfunc.grad(norm, wrt=lambda p, x: False)(td)
    with pytest.raises(OptionError, match=r"expected argnums=0.*argnums=1"):
        tdfunc.grad(norm, 1, wrt="one")
    with pytest.raises(OptionError, match=r"a tree as first argument.*dict"):
        tdfunc.grad(norm, wrt="one")({"one": floats(2)})
    text = TensorDict({"x": floats(2), "r": ["a", "b"]}, 2)
    with pytest.raises(OptionError, match=r"td\['r'\]"):
        tdfunc.grad(norm, wrt="r")(text)
    assert levels() == 0


def test_trees_without_anything_to_differentiate_give_empty_ones() -> None:
    for td in (TensorDict({}), TensorDict({"k": torch.arange(3), "s": "t"}, 3)):
        grads = tdfunc.grad(lambda t: torch.ones(()))(td)
        assert grads.keys(leaves_only=True) == ()
        assert grads.batch_size == td.batch_size


def test_members_of_a_lazy_stack_have_gradients() -> None:
    one, two = TensorDict({"x": floats(2)}, 2), TensorDict({"x": floats(2, 3)}, 2)
    lazy = tdfunc.lazy_stack([one, two])
    grads = tdfunc.grad(energy)(lazy)
    assert_same(
        [m["x"] for m in grads.unbind(0)],
        T.grad(energy)([floats(2), floats(2, 3)]),
    )


# Surroundings


class Cube(torch.autograd.Function):
    """A function of the user's own, with a gradient no one else would find."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 100 * x**2 * grad


def test_autograd_functions_are_asked_at_every_level() -> None:
    td = TensorDict({"x": floats(3)})

    def loss(t: TensorDict) -> torch.Tensor:
        return Cube.apply(t["x"]).sum()

    assert_same(tdfunc.grad(loss)(td)["x"], 100 * floats(3) ** 2)
    twice = tdfunc.grad(lambda t: tdfunc.grad(loss)(t)["x"].sum())
    assert_same(twice(td)["x"], 200 * floats(3))


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
        return (x @ w + torch.zeros(4)).pow(2).sum()

    with mode():
        got, expected = tdfunc.grad(fn)(x), T.grad(fn)(x)
        tree = tdfunc.grad(lambda t: fn(t["x"]))(TensorDict({"x": x}, 3))
    assert got.dtype == expected.dtype
    assert got.requires_grad == expected.requires_grad
    assert got.is_inference() == expected.is_inference()
    assert_same(got, expected)
    assert_same(tree["x"], expected)


def test_modules_are_differentiated_by_functional_call() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())
    params = tdfunc.from_module(module)
    x = ramp(5, 2)

    def loss(p: TensorDict) -> torch.Tensor:
        return tdfunc.func.functional_call(module, p, x).pow(2).sum()

    grads = tdfunc.grad(loss)(params)
    module(x).pow(2).sum().backward()
    assert_same(grads["0", "weight"], module[0].weight.grad)
    assert_same(grads["0", "bias"], module[0].bias.grad)


def test_threads_differentiate_at_once() -> None:
    td = TensorDict({"x": floats(4, 3), "n": {"y": floats(4)}, "k": 2}, [])

    def work(i: int) -> Any:
        grads: Any = None
        for _ in range(20):
            grads = tdfunc.grad(lambda t: energy(t) * (i + 1))(td)
        return grads["x"]

    with ThreadPoolExecutor(8) as pool:
        for i, out in enumerate(pool.map(work, range(8))):
            expected = T.grad(lambda t: energy(t) * (i + 1))(td.drop("k"))["x"]  # noqa: B023
            assert_same(out, expected)


def test_the_error_of_a_missing_entry_names_a_call_that_helps() -> None:
    td = TensorDict({"w": torch.ones(2)}, 2)
    for call in (
        lambda: tdfunc.grad(lambda t: t["w"].sum(), wrt="zz")(td),
        lambda: tdfunc.partition(td, {"zz": True}),
        lambda: tdfunc.in_dims(td, 0, {"zz": None}),
    ):
        with pytest.raises(MissingKeyError, match=r"to fix: td.keys\(leaves_only=True"):
            call()
