"""Compiled and exported functions of trees: no graph breaks, few compiles, same values.

What is expected is what the same function gives in eager mode; other tests hold
that against torch.
"""

# A transform is applied inside what is compiled, not before it:
# ruff: noqa: PLW0108

from __future__ import annotations

import functools
import io
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import NonTensorData, TensorDict, unbatched
from tdfunc.testing import assert_equal
from tests.cases import leaves_of, ramp, same, statics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Size = torch.Size
# torch's stubs know tensors only.
torch_stack: Any = torch.stack
torch_cat: Any = torch.cat

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
    return TensorDict(
        {
            "b": ramp(2, 3, 4) + 1,
            "a": ramp(2, 3) + 1,
            "n": {"c": ramp(2, 3, 1) + 1, "s": "text"},
            "none": None,
        },
        (2, 3),
    )


def wider() -> TensorDict:
    inner = TensorDict({"o": ramp(2, 3, 4), "r": ramp(2, 3)}, (2, 3))
    return TensorDict({"agents": inner, "done": ramp(2)}, 2)


def alike(got: Any, expected: Any) -> None:
    """Assert that two results are equal down to batch sizes, names and key order."""
    assert type(got) is type(expected)
    if isinstance(expected, TensorDict):
        assert got.batch_size == expected.batch_size
        assert got.keys(True) == expected.keys(True)
        assert got.names == expected.names
        assert statics_of(got) == statics_of(expected)
        found = leaves_of(got)
        for path, x in leaves_of(expected).items():
            torch.testing.assert_close(found[path], x)
        for key in expected.keys(True):
            if isinstance(expected[key], TensorDict):
                assert got[key].batch_size == expected[key].batch_size
    elif isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for x, y in zip(got, expected, strict=True):
            alike(x, y)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        alike(list(got.values()), list(expected.values()))
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected)
    else:
        assert got == expected


MASK = torch.tensor([[True, False, True], [False, False, True]])
ROWS = torch.tensor([1, 0, 1])
LEFT = ramp(2)[:, None]

# name: a function of `tree()`
OPERATIONS: dict[str, Callable[[TensorDict], Any]] = {
    # Entries
    "read": lambda t: t["b"] + t["n", "c"],
    "read chained": lambda t: t["n"]["c"] * 2,
    "get": lambda t: (t.get("zzz"), t.get("a") * 2, t.get("zzz", 3)),
    "contains": lambda t: t["a"] + int("a" in t) + int(("n", "zzz") in t),
    "keys": lambda t: (t["a"] + len(t.keys(True)), t.keys(True, True, sort=True)),
    "values": lambda t: sum(v.sum() for v in t.values(True, True)),
    "items": lambda t: {str(k): v * 2 for k, v in t.items(True, True)},
    "static": lambda t: t["a"] + len(t["n", "s"]),
    "set": lambda t: t.set("a", t["a"] * 2),
    "set a new key": lambda t: t.set("new", t["b"] * 2),
    "set a path": lambda t: t.set(("n", "c"), t["a"]),
    "set a new path": lambda t: t.set(("m", "deep", "er"), t["a"]),
    "set a mapping": lambda t: t.set("m", {"x": t["a"], "t": "static"}),
    "set a static": lambda t: t.set("b", "now text"),
    "set a number": lambda t: TensorDict({"x": t["a"].sum()}).set("y", 3),
    "update": lambda t: t.update({"n": {"d": t["a"]}, "a": t["a"] + 1}),
    "update with a tree": lambda t: t.update(t * 2, extra=t["a"]),
    "replace": lambda t: t.replace(a=t["a"] + 1),
    "replace nested": lambda t: t.replace({"n": {"c": t["a"]}}),
    "drop": lambda t: t.drop("a", ("n", "c")) * 2,
    "select": lambda t: t.select("a", ("n", "c")) * 2,
    "exclude": lambda t: t.exclude("b", "zzz") * 2,
    "with_batch_size": lambda t: (t * 2).with_batch_size([2]),
    "with_names": lambda t: (t * 2).with_names(["time", None]),
    "with_statics": lambda t: (t * 2).with_statics(t.set(("n", "s"), "other")),
    # Building
    "construct": lambda t: TensorDict({"x": t["a"], "y": t["b"]}, (2, 3)),
    "construct nested": lambda t: TensorDict(
        {"m": {"x": t["a"], "n": t["n"]}, "s": "s", "k": None}, (2, 3)
    ),
    "construct by keywords": lambda t: TensorDict(x=t["a"] * 2),
    "construct from a tree": lambda t: TensorDict(t * 2),
    "construct named": lambda t: TensorDict(
        {"x": t["a"] * 2}, (2, 3), names=("i", "j")
    ),
    "from_dict": lambda t: tdfunc.from_dict(
        {"x": t["a"] * 2, "n": {"y": t["b"]}}, auto_batch_size=True
    ),
    "to_dict": lambda t: (t * 2).to_dict(),
    # Sizes
    "sizes": lambda t: t["a"] + t.numel() + len(t) + t.ndim + t.shape[1] + t.size(0),
    "device and dtype": lambda t: t["a"].to(t.device, t.dtype) * 2,
    # Leaves
    "apply": lambda t: t.apply(lambda x: x * 2 + 1),
    "apply over two": lambda t: t.apply(torch.maximum, t * 2 - 5),
    "apply to another batch": lambda t: t.apply(lambda x: x.sum(0), batch_size=[3]),
    "apply to other ranks": lambda t: t.apply(lambda x: x.reshape(2, 3, -1)),
    "named_apply": lambda t: t.named_apply(
        lambda name, x: x * len(name), nested_keys=True
    ),
    "to dtype": lambda t: t.to(torch.float64),
    "to floating_only": lambda t: t.set("i", t["a"].long()).to(
        torch.float64, floating_only=True
    ),
    "detach": lambda t: (t * 2).detach(),
    "clone": lambda t: t.clone() * 2,
    "contiguous": lambda t: t.permute(1, 0).contiguous(),
    # Index
    "index int": lambda t: t[0] * 2,
    "index negative int": lambda t: t[-1] * 2,
    "index slice": lambda t: t[:, 1:] * 2,
    "index None": lambda t: t[None, ..., None] * 2,
    "index list": lambda t: t[[1, 0]] * 2,
    "index tensor": lambda t: t[ROWS] * 2,
    "index two tensors": lambda t: t[ROWS, ROWS] * 2,
    "index int and slice": lambda t: t[1, ::2] * 2,
    "iterate": lambda t: [row * 2 for row in t],
    # Shape
    "reshape": lambda t: t.reshape(6) * 2,
    "reshape with a hole": lambda t: t.reshape(-1, 2) * 2,
    "unsqueeze": lambda t: t.unsqueeze(-1) * 2,
    "squeeze": lambda t: t.unsqueeze(0).squeeze() * 2,
    "squeeze one": lambda t: t.unsqueeze(1).squeeze(1) * 2,
    "permute": lambda t: t.permute(1, 0) * 2,
    "transpose": lambda t: t.transpose(0, 1) * 2,
    "expand": lambda t: t.expand(5, 2, 3) * 2,
    "unbind": lambda t: [x * 2 for x in t.unbind(1)],
    # Join
    "stack": lambda t: tdfunc.stack([t, t * 2], 1),
    "cat": lambda t: tdfunc.cat([t, t * 2], 1),
    "torch.stack": lambda t: torch_stack([t, t * 2]),
    "torch.cat": lambda t: torch_cat([t, t * 2], dim=-1),
    # Arithmetic
    **{
        f"{name} a number": functools.partial(lambda t, op: op(t, 2), op=op)
        for name, op in {
            "add": operator.add,
            "sub": operator.sub,
            "mul": operator.mul,
            "truediv": operator.truediv,
            "floordiv": operator.floordiv,
            "mod": operator.mod,
            "pow": operator.pow,
            "lt": operator.lt,
            "le": operator.le,
            "gt": operator.gt,
            "ge": operator.ge,
            "eq": operator.eq,
            "ne": operator.ne,
        }.items()
    },
    "reflected": lambda t: (1 + t, 1 - t, 2 * t, 1 / t, 7 // t, 7 % t, 2**t),
    "neg and abs": lambda t: abs(-t),
    "add a tree": lambda t: t + t * 2,
    "add a tree of another batch": lambda t: t + t[0] * 2,
    "mul a tensor": lambda t: t * LEFT,
    "tensor minus tree": lambda t: LEFT - t,
    "equal trees": lambda t: t == t * 1,
    # Reductions
    "sum": lambda t: t.sum(),
    "sum over a dim": lambda t: t.sum(0),
    "sum over dims, kept": lambda t: t.sum((0, 1), keepdim=True),
    "sum over features": lambda t: t.sum("feature"),
    "sum to one tensor": lambda t: t.sum(reduce=True),
    "mean": lambda t: t.mean(),
    "mean over a dim": lambda t: t.mean(-1),
    "mean to one tensor": lambda t: t.mean(reduce=True),
    # Pytrees
    "tree_map": lambda t: pytree.tree_map(lambda x: x * 2, t),
    "tree_map of two": lambda t: pytree.tree_map(torch.add, t, t * 3),
    "tree_map of the first row": lambda t: pytree.tree_map(lambda x: x[0], t),
    "tree_map of a new dim": lambda t: pytree.tree_map(lambda x: x[None], t),
    "tree_flatten and unflatten": lambda t: pytree.tree_unflatten(
        [x * 2 for x in pytree.tree_leaves(t)], pytree.tree_structure(t)
    ),
    # Transforms
    "vmap": lambda t: vmap(lambda s: s * 2)(t),
    "vmap over dim 1": lambda t: vmap(lambda s: s * 2, 1, 1)(t),
    "vmap with out_dims 1": lambda t: vmap(lambda s: s * 2, out_dims=1)(t),
    "nested vmap": lambda t: vmap(vmap(lambda s: s["a"] + s["b"].sum()))(t),
    "nested vmap of trees": lambda t: vmap(vmap(lambda s: s * 2))(t),
    "vmap with chunks": lambda t: vmap(lambda s: s * 2, chunk_size=1)(t),
    "vmap that sets": lambda t: vmap(lambda s: s.set("new", s["a"] + 1))(t),
    "vmap of two": lambda t: vmap(torch.add, (0, None))(t["a"], ROWS.float()),
    "grad": lambda t: grad(lambda s: (s * s).sum(reduce=True))(t),
    "grad_and_value with aux": lambda t: grad_and_value(
        lambda s: ((s * s).sum(reduce=True), s * 2), has_aux=True
    )(t),
    "vmap of grad": lambda t: vmap(grad(lambda s: (s**3).sum(reduce=True)))(t),
    "vjp": lambda t: vjp(lambda s: s * s, t)[1](t),
    "jvp": lambda t: jvp(lambda s: s * s, (t,), (t,)),
    "jacrev": lambda t: jacrev(lambda s: s["a"] * s["n", "c"].sum())(t),
    "jacrev of a tree": lambda t: jacrev(lambda s: s * s)(t.select("a", "n")),
    "jacfwd": lambda t: jacfwd(lambda s: s["a"] * 2)(t.select("a", "n")),
    "jacfwd of a tree": lambda t: jacfwd(lambda s: s * s)(t.select("a", "n")),
    "hessian": lambda t: hessian(lambda s: (s["a"] ** 3).sum())(t.select("a", "n")),
    # Parameters
    "partition and combine": lambda t: tdfunc.combine(
        *(part * 2 for part in tdfunc.partition(t, lambda p, _: p[-1] == "a"))
    ),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_compiles_without_a_break_to_the_eager_result(name: str, backend: str) -> None:
    fn = OPERATIONS[name]
    expected = fn(tree())
    got = torch.compile(fn, fullgraph=True, backend=backend)(tree())
    alike(got, expected)


WIDER: dict[str, Callable[[TensorDict], Any]] = {
    "read": lambda t: t["agents"] * 2,
    "mul": lambda t: t * 2,
    "index": lambda t: t[1] * 2,
    "set inside": lambda t: t.set(("agents", "new"), t["agents", "r"] * 2),
    "reshape": lambda t: t.reshape(2, 1) * 2,
    "stack": lambda t: tdfunc.stack([t, t * 2]),
    "apply": lambda t: t.apply(lambda x: x * 2),
    "tree_map": lambda t: pytree.tree_map(lambda x: x * 2, t),
    "vmap": lambda t: vmap(lambda s: s * 2)(t),
    "with_batch_size": lambda t: (t * 2).with_batch_size([]),
    "sum": lambda t: t.sum(0),
}


@pytest.mark.parametrize("name", WIDER)
def test_compiles_with_a_nested_node_of_more_batch_dims(name: str) -> None:
    fn = WIDER[name]
    expected = fn(wider())
    alike(torch.compile(fn, fullgraph=True, backend="aot_eager")(wider()), expected)


def test_compiles_a_mask_index_where_torch_does() -> None:
    # The number of rows is in the data: Dynamo traces that only with its own switch.
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fn = torch.compile(lambda t: t[MASK] * 2, fullgraph=True, backend="aot_eager")
        alike(fn(tree()), tree()[MASK] * 2)


@pytest.mark.parametrize(
    "fn",
    [
        vmap(lambda t: t * 2),
        vmap(vmap(lambda t: t * 2)),
        grad(lambda t: (t * t).sum(reduce=True)),
        vmap(grad(lambda t: (t**3).sum(reduce=True))),
        jacrev(lambda t: t["a"] * t["n", "c"].sum()),
    ],
    ids=["vmap", "vmap of vmap", "grad", "vmap of grad", "jacrev"],
)
def test_a_transformed_function_compiles_as_a_whole(fn: Any) -> None:
    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")
    alike(compiled(tree()), fn(tree()))


def test_a_compiled_function_returns_its_input_unchanged() -> None:
    td = tree()
    out = torch.compile(lambda t: t, fullgraph=True, backend="eager")(td)
    alike(out, td)
    assert out["n", "s"] is td["n", "s"]


def test_a_compiled_function_takes_trees_in_containers() -> None:
    def fn(batch: dict[str, Any]) -> Any:
        return [batch["td"] * 2, {"other": batch["more"][0] + batch["td"]}]

    batch = {"td": tree(), "more": [tree() * 3]}
    out = torch.compile(fn, fullgraph=True, backend="aot_eager")(batch)
    alike(out[0], tree() * 2)
    alike(out[1]["other"], tree() * 4)


def test_backward_through_a_compiled_function_reaches_the_leaves() -> None:
    w = ramp(3).requires_grad_()
    params = TensorDict({"w": w, "n": {"b": torch.ones(3)}})
    fn = torch.compile(
        lambda p: (p["w"] ** 2 * p["n", "b"]).sum(), fullgraph=True, backend="aot_eager"
    )
    fn(params).backward()
    assert w.grad is not None
    assert w.grad.tolist() == [0, 2, 4]


def test_inductor_gives_the_eager_result() -> None:
    def fn(t: TensorDict) -> TensorDict:
        return vmap(lambda s: s * 2 + 1)(t).sum(0)

    alike(torch.compile(fn, fullgraph=True)(tree()), fn(tree()))


# How often it compiles


def counted(fn: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    counter = CompileCounterWithBackend("eager")
    return torch.compile(fn, fullgraph=True, backend=counter), counter


@pytest.mark.parametrize(
    "fn",
    [
        lambda t: vmap(lambda s: s * 2)(t),
        lambda t: pytree.tree_map(lambda x: x * 2, t),
        lambda t: t * 2,
        lambda t: t.set("x", t["x"] + 1),
        lambda t: vmap(grad(lambda s: (s["x"] ** 2).sum()))(t),
    ],
    ids=["vmap", "tree_map", "mul", "set", "vmap of grad"],
)
def test_twenty_texts_compile_once(fn: Callable[[TensorDict], TensorDict]) -> None:
    compiled, counter = counted(fn)
    for i in range(20):
        td = TensorDict({"x": ramp(3, 2), "text": f"episode {i}"}, 3)
        out = compiled(td)
        alike(out, fn(td))
        assert out["text"] == f"episode {i}"
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda t: t * 2,
        lambda t: t + t,
        lambda t: t.set("x", t["x"] + 1),
        lambda t: t[1:],
        lambda t: t[torch.tensor([2, 0])],
        lambda t: t.flip(0).reshape(1, 3),
        lambda t: tdfunc.stack([t, t]),
        lambda t: tdfunc.cat([t, t.flip(0)]),
        lambda t: pytree.tree_map(lambda x: x.flip(0), t),
        lambda t: vmap(lambda s: s * 2)(t),
        lambda t: vmap(lambda s: s * 2, in_dims=(tdfunc.in_dims(t, 0),))(t),
        lambda t: t.set("x", vmap(grad(lambda x: (x**2).sum()))(t["x"])),
        lambda t: t.sum("feature"),
        lambda t: t.at[0].add(1),
        lambda t: t.at[:2].set(t[1:]),
        lambda t: tdfunc.where(t["x"][:, 0] > 1, t, t.flip(0)),
        lambda t: t.drop("g").update(t.select("s", "g")),
        lambda t: tdfunc.combine(*tdfunc.partition(t, "floating")),
    ],
    ids=[
        *(
            "times",
            "plus",
            "set",
            "slice",
            "index",
            "shape",
            "stack",
            "cat",
            "tree_map",
        ),
        *("vmap", "vmap by in_dims", "vmap of grad", "features", "at.add", "at.set"),
        *("where", "update", "combine"),
    ],
)
def test_twenty_rows_of_texts_compile_once(
    fn: Callable[[TensorDict], TensorDict],
) -> None:
    compiled, counter = counted(fn)
    for i in range(20):
        texts = [f"episode {i}", f"of {i % 7}", "both"]
        inner = TensorDict({"r": [texts[:2], texts[1:], texts[:2]]}, [3, 2])
        td = TensorDict(
            {"x": ramp(3, 2), "s": texts, "n": inner, "g": unbatched(ramp(i))}, 3
        )
        out, expected = compiled(td), fn(td)
        alike(out, expected)
        assert_equal(out, expected)
    assert counter.frame_count == 1


def test_rows_can_not_be_read_in_a_compiled_function() -> None:
    td = TensorDict({"x": ramp(2), "s": ["a", "b"]}, 2)
    compiled = torch.compile(lambda t: t["s"], fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="can not be read here"):
        compiled(td)


def test_rows_are_exported_and_come_back() -> None:
    class Double(torch.nn.Module):
        def forward(self, t: TensorDict) -> TensorDict:
            return t * 2

    td = TensorDict({"x": ramp(3, 2), "s": ["a", None, "a"]}, 3)
    exported = torch.export.export(Double(), (td,))
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    out = torch.export.load(buffer).module()(td)
    assert_equal(out, td * 2)


def test_twenty_objects_and_arrays_compile_once() -> None:
    compiled, counter = counted(lambda t: t * 2)
    for i in range(20):
        marks = {"o": object(), "array": NonTensorData(np.arange(i))}
        td = TensorDict({"x": ramp(3), **marks}, 3)
        assert compiled(td)["o"] is marks["o"]
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda t: t * 2,
        lambda t: vmap(lambda s: s * 2)(t),
        lambda t: pytree.tree_map(lambda x: x * 2, t),
        lambda t: t.sum(0),
        lambda t: tdfunc.stack([t, t]),
        lambda t: tdfunc.cat([t, t]),
        lambda t: t.unsqueeze(0),
        lambda t: t.reshape(-1, 1),
        lambda t: t[1:],
        lambda t: t.apply(torch.sin),
        lambda t: TensorDict({"y": t["x"] * 2}, t.batch_size),
        lambda t: t.set("z", t["x"] + 1),
        lambda t: vmap(grad(lambda s: (s * s).sum(reduce=True)))(t),
    ],
    ids=[
        *("mul", "vmap", "tree_map", "sum", "stack", "cat", "unsqueeze", "reshape"),
        *("slice", "apply", "construct", "set", "vmap of grad"),
    ],
)
def test_changing_batch_sizes_compile_twice(fn: Callable[..., TensorDict]) -> None:
    # Once for the first size, once for any size.
    compiled, counter = counted(fn)
    for rows in (5, 7, 9, 11, 6, 30):
        td = TensorDict({"x": ramp(rows, 2), "n": {"y": ramp(rows)}}, rows)
        alike(compiled(td), fn(td))
    assert counter.frame_count == 2


def test_numbers_in_the_tree_are_tensors_and_compile_once() -> None:
    compiled, counter = counted(lambda s: s.set("step", s["step"] + 1) * s["lr"])
    state = TensorDict({"step": 0, "lr": 1.0, "w": ramp(2)})
    for i in range(20):
        out = compiled(state.set("step", i).set("lr", 1.0 / (i + 1)))
        assert out["step"].item() == pytest.approx(1.0)
    assert counter.frame_count == 1


def test_another_key_order_is_another_structure_but_the_same_result() -> None:
    compiled, counter = counted(lambda t: t * 2)
    for order in ("ab", "ba", "ab", "ba"):
        td = TensorDict({key: ramp(2) for key in order}, 2)
        assert compiled(td).keys() == tuple(order)
    assert counter.frame_count <= 2


def test_equal_structures_compile_once_however_they_were_made() -> None:
    compiled, counter = counted(lambda t: t * 2)
    td = TensorDict({"x": ramp(3, 2), "n": {"y": ramp(3)}}, 3)
    for like in (
        td,
        td * 1,
        td.set("x", ramp(3, 2)),
        tdfunc.stack([td[0], td[1], td[2]]),
        td.drop("n").set(("n", "y"), ramp(3)),
        td.select("n", "x").clone(),
    ):
        compiled(like)
    assert counter.frame_count == 1


def test_a_tree_from_a_transform_compiles_with_the_others() -> None:
    compiled, counter = counted(lambda t: t * 2)
    td = TensorDict({"x": ramp(3, 2), "n": {"y": ramp(3)}}, 3)
    compiled(td)
    compiled(pytree.tree_map(lambda x: x, td))
    compiled(vmap(lambda t: t)(td))
    assert counter.frame_count == 1


def test_a_compiled_training_step_compiles_once_for_many_calls() -> None:
    def step(params: TensorDict, batch: TensorDict) -> TensorDict:
        def loss(p: TensorDict, row: TensorDict) -> torch.Tensor:
            return ((row["x"] * p["w"]).sum() + p["b"] - row["y"]) ** 2

        per_row = vmap(grad(loss), (None, 0))(params, batch)
        return params - 0.1 * per_row.mean(0)

    members = TensorDict({"w": ramp(3, 2) / 5, "b": ramp(3)}, 3)
    ensemble = vmap(step, (0, None))
    compiled, counter = counted(ensemble)
    for i in range(5):
        batch = TensorDict({"x": ramp(4, 2) + i, "y": ramp(4)}, 4)
        alike(compiled(members, batch), ensemble(members, batch))
    assert counter.frame_count == 1


def test_vmap_of_a_compiled_function_equals_eager() -> None:
    fn = torch.compile(lambda t: t * 2 + 1, backend="eager")
    td = tree()
    alike(vmap(fn)(td), td * 2 + 1)


def test_a_schema_made_in_a_compiled_function_is_the_interned_one_outside() -> None:
    fn = torch.compile(
        lambda t: TensorDict({"p": t["a"] * 2, "q": t["b"]}, (2, 3)),
        fullgraph=True,
        backend="eager",
    )
    out = fn(tree())
    eager = TensorDict({"p": ramp(2, 3), "q": ramp(2, 3, 4)}, (2, 3))
    assert out._schema is eager._schema
    alike(out + eager, eager + out)


def test_errors_in_a_compiled_function_are_those_of_eager() -> None:
    td = tree()
    fn = torch.compile(lambda t: t["zzz"] * 2, backend="eager")
    with pytest.raises(KeyError, match="td\\['zzz'\\]"):
        fn(td)


# torch's loops take no registered node of any class as carry, and tell so; the leaves
# go through, and the structure is a constant of the body.


def test_the_leaves_of_a_tree_are_a_loop_carry_of_while_loop() -> None:
    def fn(td: TensorDict) -> TensorDict:
        leaves, spec = pytree.tree_flatten(td)

        def going(*carry: torch.Tensor) -> torch.Tensor:
            return pytree.tree_unflatten(carry, spec)["i"] < 3

        def body(*carry: torch.Tensor) -> tuple[torch.Tensor, ...]:
            t = pytree.tree_unflatten(carry, spec)
            return tuple(
                pytree.tree_leaves(t.set("i", t["i"] + 1).set("x", t["x"] * 2))
            )

        out = while_loop(going, body, tuple(leaves))
        return pytree.tree_unflatten(out, spec)

    td = TensorDict({"i": torch.tensor(0), "x": ramp(2) + 1, "s": "text"})
    out = torch.compile(fn, fullgraph=True, backend="eager")(td)
    assert out["i"].item() == 3
    assert out["x"].tolist() == [8, 16]
    assert out["s"] == "text"


def test_scan_steps_through_the_rows_of_a_tree() -> None:
    def fn(td: TensorDict) -> Any:
        return scan(lambda c, row: (c + row["x"], c * 2), torch.zeros(2), td)

    td = TensorDict({"x": ramp(4, 2)}, 4)
    total, doubled = torch.compile(fn, fullgraph=True, backend="eager")(td)
    assert total.tolist() == [12, 16]
    assert doubled.tolist() == [[0, 0], [0, 2], [4, 8], [12, 18]]


# torch.export


class Model(torch.nn.Module):
    """Takes and returns a tree."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)

    def forward(self, td: TensorDict) -> TensorDict:
        hidden = self.linear(td["n", "x"])
        return td.set("out", hidden).set("twice", td["y"] * 2)


def test_export_of_a_module_of_trees_has_a_dynamic_batch_after_load() -> None:
    model = Model()
    td = TensorDict({"y": ramp(4), "n": {"x": ramp(4, 2)}, "s": "text"}, 4)
    shapes = tdfunc.dynamic_shapes(td, {0: torch.export.Dim("B", min=2)})
    program = torch.export.export(model, (td,), dynamic_shapes=(shapes,))

    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()

    for rows in (4, 9, 2):
        other = TensorDict(
            {"y": ramp(rows), "n": {"x": ramp(rows, 2)}, "s": "text"}, rows
        )
        out = loaded(other)
        assert out.batch_size == Size((rows,))
        alike(out, model(other))


def test_export_takes_two_dynamic_batch_dims_and_trees_in_containers() -> None:
    class Twice(torch.nn.Module):
        def forward(self, batch: dict[str, TensorDict]) -> list[TensorDict]:
            return [batch["a"] * 2, batch["b"] + 1]

    a = TensorDict({"x": ramp(3, 4, 2)}, (3, 4))
    b = TensorDict({"y": ramp(3)}, 3)
    first, second = torch.export.Dim("first", min=2), torch.export.Dim("second", min=2)
    shapes = {
        "a": tdfunc.dynamic_shapes(a, {0: first, -1: second}),
        "b": tdfunc.dynamic_shapes(b, {0: first}),
    }
    args = ({"a": a, "b": b},)
    program = torch.export.export(Twice(), args, dynamic_shapes=(shapes,)).module()

    x, y = ramp(5, 6, 2), ramp(5)
    left, right = program(
        {"a": TensorDict({"x": x}, (5, 6)), "b": TensorDict({"y": y}, 5)}
    )
    assert left.batch_size == Size((5, 6))
    assert same(left["x"], x * 2)
    assert same(right["y"], y + 1)


def test_export_save_names_a_static_that_is_no_json() -> None:
    td = TensorDict({"y": ramp(4), "n": {"x": ramp(4, 2), "o": object()}}, 4)
    program = torch.export.export(Model(), (td,))
    with pytest.raises(Exception, match=r"td\['n', 'o'\]"):
        torch.export.save(program, io.BytesIO())


STATIC_OPERATIONS: dict[str, Callable[[TensorDict], Any]] = {
    "update a node": lambda td: td.update({"n": {"q": td["x"]}}),
    "drop one": lambda td: td.drop("s") * 2,
    "select a node": lambda td: td.select("n") * 2,
    "read a node": lambda td: td["n"] * 2,
    "set another": lambda td: td.set("lab", "new").set("z", td["x"] + 1),
    "split and join": lambda td: tdfunc.combine(*tdfunc.partition(td * 2, "inexact")),
    "jacobian": lambda td: torch.func.jacrev(
        lambda p: TensorDict({"o": p["x"].sum(0), "k": "kk"})
    )(td),
    "exclude one": lambda td: (td + 1).exclude(("n", "u")),
}


def with_texts(number: int) -> TensorDict:
    node = {"y": torch.ones(3), "u": f"inner {number}"}
    return TensorDict({"x": torch.ones(3, 4), "n": node, "s": f"outer {number}"}, 3)


@pytest.mark.parametrize("name", STATIC_OPERATIONS)
def test_operations_that_move_statics_do_not_compile_for_each_text(name: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    operation = STATIC_OPERATIONS[name]
    compiled = torch.compile(operation, fullgraph=True, backend=counter)
    for number in range(12):
        td = with_texts(number)
        expected, got = operation(td), compiled(td)
        assert got.equal(expected)
    assert counter.frame_count == 1


def test_what_a_compiled_function_returned_can_be_fed_to_it_for_ever() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")

    @torch.compile(fullgraph=True, backend=counter)
    def step(td: TensorDict) -> TensorDict:
        return td.update({"n": {"y": td["n", "y"] + 1}}).drop("s").set("s", "again")

    td = with_texts(7)
    for _ in range(20):
        td = step(td)
    assert td["n", "y"].tolist() == [21.0] * 3
    assert td["n", "u"] == "inner 7"
    assert td["s"] == "again"
    assert counter.frame_count <= 2


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "lt", "ge"]
)
@pytest.mark.parametrize("left", [True, False], ids=["tree first", "tensor first"])
def test_operators_with_a_tensor_compile(name: str, *, left: bool) -> None:
    torch._dynamo.reset()
    function = getattr(operator, name)
    td = TensorDict({"x": ramp(3, 2) + 1}, 3)
    rows = torch.tensor([1.0, 2.0, 3.0])

    def run(td: TensorDict, rows: torch.Tensor) -> TensorDict:
        return function(td, rows) if left else function(rows, td)

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    plain = (td["x"], rows[:, None])
    expected = function(*plain) if left else function(*reversed(plain))
    assert compiled(td, rows)["x"].equal(expected)
