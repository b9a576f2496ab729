"""CASES.md, area compile: what users of other libraries tripped over, one by one."""

# A transform is applied inside what is compiled, not before it:
# ruff: noqa: PLW0108

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend
from torch.compiler import nested_compile_region
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import TensorDict
from tests.cases import ramp
from tests.func.transforms import assert_same, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    # torch's own, at its first use of each.
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning:torch"),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tree() -> TensorDict:
    return TensorDict({"x": ramp(3, 2), "n": {"y": ramp(3) + 1}, "s": "text"}, 3)


def looped(td: TensorDict) -> Any:
    """Return a carry of a `while_loop`, and one of a `scan`."""
    count = TensorDict({"i": torch.tensor(0), "x": td["x"]})
    more = lambda c: c["i"] < 3  # noqa: E731
    once = lambda c: c.set("i", c["i"] + 1).set("x", c["x"] * 2)  # noqa: E731
    rows = td.drop("s")
    step = lambda c, row: (c + row, c * 2)  # noqa: E731
    start = TensorDict({"x": torch.zeros(2), "n": {"y": torch.zeros(())}})
    return tdfunc.while_loop(more, once, count), tdfunc.scan(step, start, rows)


OPERATIONS: dict[str, Callable[[TensorDict], Any]] = {
    "set": lambda t: t.set("z", t["x"] * 2),
    "replace": lambda t: t.replace(x=t["x"] + 1),
    "select": lambda t: t.select("n"),
    "merge": lambda t: t.merge(TensorDict({"new": t["x"] * 2}, 3)),
    "tree_map": lambda t: pytree.tree_map(lambda x: x * 2, t),
    "construct": lambda t: TensorDict({"a": t["x"] * 2, "b": t["n"]}, 3),
    "int": lambda t: t[1],
    "slice": lambda t: t[1:] * 2,
    "mask": lambda t: t[torch.tensor([True, True, True])] * 2,
    "stack": lambda t: tdfunc.stack([t, t * 2]),
    "at.set": lambda t: t.at[1].set(0),
    "nested get": lambda t: t["n", "y"] + t["n"]["y"],
    "loops": looped,
    "vmap": lambda t: tdfunc.vmap(lambda r: r * 2)(t),
    "grad": lambda t: tdfunc.grad(lambda t: (t * t).sum(reduce=True))(t),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_b109_operations_compile_whole_and_equal_eager(name: str, backend: str) -> None:
    operation = OPERATIONS[name]
    fn = torch.compile(operation, fullgraph=True, backend=backend)
    td = tree()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert_same(fn(td), operation(td), exact=False)


def test_b110_construction_under_compile_is_the_eager_one() -> None:
    # Numbers, arrays and statics take their eager forms; checks are the same too.
    def make(x: torch.Tensor) -> TensorDict:
        return TensorDict({"x": x + 1, "c": torch.zeros(3), "k": 3, "lab": "a"})

    out = torch.compile(make, fullgraph=True, backend="eager")(ramp(2))
    assert_same(out, make(ramp(2)))
    assert out["lab"] == "a"
    assert out["k"].dtype == torch.int64


def test_b112_a_region_compiled_once_takes_and_returns_trees() -> None:
    # torch's regions take no value of a class of ours but tensors: the leaves go in,
    # and the structure is a constant inside.
    td = TensorDict({"a": torch.ones(2)})
    spec = pytree.tree_structure(td)

    @nested_compile_region
    def region(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inside = pytree.tree_unflatten(leaves, spec)
        return tuple(pytree.tree_leaves(TensorDict({"a": inside["a"] * 2})))

    def fn(td: TensorDict) -> TensorDict:
        leaves: Any = region(*pytree.tree_leaves(td))
        return pytree.tree_unflatten(leaves, spec) + 1

    assert fn(td)["a"].tolist() == [3.0, 3.0]
    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")
    assert compiled(td)["a"].tolist() == [3.0, 3.0]
    whole: Any = nested_compile_region(lambda td: td * 2)
    assert whole(td)["a"].tolist() == [2.0, 2.0]
    with pytest.raises(Exception, match="invoke_subgraph"):
        torch.compile(lambda td: whole(td), fullgraph=True, backend="eager")(td)

    class Module(torch.nn.Module):
        def forward(self, td: TensorDict) -> TensorDict:
            return td * 2

    out = torch.export.export(Module(), (td,)).module()(td)
    assert isinstance(out, TensorDict)
    assert out["a"].tolist() == [2.0, 2.0]


def test_b113_a_changing_step_and_rate_compile_at_most_twice() -> None:
    counter = CompileCounterWithBackend("eager")

    @torch.compile(fullgraph=True, backend=counter)
    def train(state: TensorDict) -> TensorDict:
        grads = tdfunc.grad(lambda p: (p["w"] ** 2).sum())(state.select("w"))
        w = state["w"] - state["lr"] * grads["w"]
        return state.set("w", w).set("step", state["step"] + 1)

    state = TensorDict({"w": torch.ones(2), "lr": 0.1, "step": 0})
    assert state["lr"].shape == ()
    for i in range(20):
        state = train(state.set("lr", 0.1 / (i + 1)))
    assert state["step"] == 20
    assert counter.frame_count <= 2


def test_b115_compile_and_transforms_compose_in_both_orders() -> None:
    counter = CompileCounterWithBackend("eager")
    members = TensorDict({"w": ramp(3, 2) + 1, "s": "text"}, 3)

    def loss(p: TensorDict) -> torch.Tensor:
        return (p["w"] ** 3).sum()

    def gradients(p: TensorDict) -> TensorDict:
        return tdfunc.vmap(tdfunc.grad(loss))(p)

    fn = torch.compile(gradients, fullgraph=True, backend=counter)
    for i in range(5):
        td = members * (i + 1)
        out = fn(td)
        assert_same(out, gradients(td))
        assert out["s"] == "text"
        assert out.batch_size == (3,)
    assert counter.frame_count == 1

    inside = torch.compile(lambda t: t * 2, backend="eager")
    assert_same(tdfunc.vmap(inside)(members), members * 2)
    whole = torch.compile(tdfunc.vmap(lambda t: t * 2), fullgraph=True, backend="eager")
    assert_same(plain(whole(members)), plain(members * 2))
