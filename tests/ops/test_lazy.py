"""Lazy stacks: made, read, indexed, written, made dense, and through transforms."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from typing import Any

import optree
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import LazyStackedTensorDict, TensorDict, lazy_stack
from tdfunc.errors import (
    BatchSizeError,
    InvalidLeafError,
    MissingKeyError,
    OperandError,
    OptionError,
    ShapeError,
    StructureError,
)
from tdfunc.testing import assert_equal, assert_pure, assert_valid


def unlike(*size: int, count: int = 2) -> list[TensorDict]:
    """Return trees with other keys and other feature shapes."""
    return [
        TensorDict(
            {
                "x": torch.full((*size, i + 1), float(i)),
                "n": {"u": torch.full(size, float(i)), f"only{i}": torch.ones(size)},
                f"own{i}": torch.ones(size),
                "s": "text",
            },
            size,
        )
        for i in range(count)
    ]


def stack_of(size: tuple[int, ...], dim: int) -> LazyStackedTensorDict:
    rest = [n for i, n in enumerate(size) if i != dim]
    return lazy_stack(unlike(*rest, count=size[dim]), dim)


# Making


def test_members_are_kept_by_identity() -> None:
    a, b = unlike(3)
    for dim in (0, 1, -1):
        stack = lazy_stack([a, b], dim)
        assert stack.tensordicts == (a, b)
        assert stack.unbind(stack.stack_dim)[1] is b
    assert lazy_stack([a, b])[0] is a
    assert lazy_stack([a, b])[-1] is b
    assert lazy_stack([a, b], 1)[:, 1] is b
    assert next(iter(lazy_stack([a, b]))) is a
    assert lazy_stack([a, b])[torch.tensor(1)] is b


def test_the_class_takes_members_as_arguments() -> None:
    a, b = unlike(3)
    stack = LazyStackedTensorDict(a, b, stack_dim=1, stack_dim_name="who")
    assert stack.batch_size == (3, 2)
    assert stack.names == (None, "who")
    assert stack.stack_dim == 1
    assert_valid(stack)
    with pytest.raises(OperandError):
        LazyStackedTensorDict()
    with pytest.raises(TypeError, match="final"):
        type("Sub", (LazyStackedTensorDict,), {})


def test_batch_sizes_that_differ_read_as_minus_one() -> None:
    a, b = TensorDict({"x": torch.ones(2)}, 2), TensorDict({"x": torch.ones(3)}, 3)
    stack = lazy_stack([a, b])
    assert stack.batch_size == (2, -1)
    assert (stack * 2)[1]["x"].tolist() == [2.0] * 3
    with pytest.raises(ShapeError, match="batch sizes"):
        stack.set("y", torch.ones(2, 3))
    assert stack.update(lazy_stack([a * 2, b * 2]))[0]["x"].tolist() == [2.0, 2.0]
    assert stack.densify(padding_value=0)["x"].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_trees_that_do_not_stack_say_why() -> None:
    a, b = unlike(3)
    with pytest.raises(OperandError, match="nothing to join"):
        lazy_stack([])
    with pytest.raises(OperandError, match="argument 1 is no tree"):
        lazy_stack([a, 3])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match="1 batch dims"):
        lazy_stack([a, b.unsqueeze(0)])
    with pytest.raises(ShapeError, match="expected \\[3\\]"):
        lazy_stack([a, a[:2]], strict_shape=True)
    with pytest.raises(ShapeError, match="no batch dim"):
        lazy_stack([a, b], 2)


def test_names() -> None:
    a, b = [t.with_names(["time"]) for t in unlike(3)]
    stack = lazy_stack([a, b], 0, name="who")
    assert stack.names == ("who", "time")
    assert stack.sum("time").names == ("who",)
    assert stack.permute(1, 0).names == ("time", "who")
    assert stack.cumsum("time").names == ("who", "time")


def test_maybe_dense_stack() -> None:
    a, b = unlike(3)
    assert type(tdfunc.maybe_dense_stack([a, a])) is TensorDict
    assert type(tdfunc.maybe_dense_stack([a, b])) is LazyStackedTensorDict
    with pytest.raises(ShapeError):
        tdfunc.maybe_dense_stack([a, b.unsqueeze(0)])


def test_from_list_keeps_rows_apart() -> None:
    rows = [{"x": torch.ones(2)}, {"x": torch.ones(3), "y": 1}]
    with pytest.raises(StructureError):
        tdfunc.from_list(rows)
    for lazy in (True, None):
        stack = tdfunc.from_list(rows, lazy=lazy)
        assert stack.batch_size == (2,)
        assert [len(x) for x in stack.get("x", as_list=True)] == [2, 3]
    assert type(tdfunc.from_list(rows[:1] * 2, lazy=None)) is TensorDict
    assert type(tdfunc.from_list(rows[:1] * 2, lazy=True)) is LazyStackedTensorDict
    stack = tdfunc.from_list([{"x": torch.ones(2)}] * 3, batch_size=[3, 2], lazy=True)
    assert stack.batch_size == (3, 2)
    assert stack[0].batch_size == (2,)


# Reading


@pytest.mark.parametrize("dim", [0, 1])
def test_only_shared_entries_are_visible(dim: int) -> None:
    a, b = unlike(3)
    stack = lazy_stack([a, b], dim)
    assert stack.keys() == ("x", "n", "s")
    assert stack.keys(True) == ("x", "n", ("n", "u"), "s")
    assert stack.keys(True, True, sort=True) == (("n", "u"), "x")
    assert "own0" not in stack
    assert stack.get("own0") is None
    assert stack.get("own0", 7) == 7
    with pytest.raises(MissingKeyError, match="own0") as caught:
        stack["own0"]
    assert "members [1] of 2 lack it" in str(caught.value)
    torch.testing.assert_close(
        stack["n", "u"], torch.stack([a["n", "u"], b["n", "u"]], dim)
    )
    assert stack["s"] == "text"
    assert type(stack["n"]) is LazyStackedTensorDict
    assert stack["n"].stack_dim == dim


def test_nested_stacks_list_what_they_share() -> None:
    td = TensorDict({"l": lazy_stack(unlike(3)), "w": torch.ones(2, 3)}, [2, 3])
    keys = ("l", ("l", "x"), ("l", "n"), ("l", "n", "u"), ("l", "s"), "w")
    assert td.keys(True) == keys
    assert td.keys(True, True) == (("l", "x"), ("l", "n", "u"), "w")
    assert ("l", "members") not in td
    assert td.get(("l", "members")) is None
    with pytest.raises(MissingKeyError):
        td["l", "members"]
    for text in (repr(td), td.to_tree_string(), td._repr_html_()):
        assert "members" not in text
        assert "2 trees stacked along dim 0" in text


def test_a_key_may_be_named_as_the_internal_one() -> None:
    stack = lazy_stack([TensorDict(members=torch.tensor(float(i))) for i in range(2)])
    td = TensorDict({"l": stack}, 2)
    assert td["l", "members"].tolist() == [0.0, 1.0]
    assert td.set(("l", "members"), torch.ones(2))["l", "members"].tolist() == [1, 1]
    assert td.drop(("l", "members"))["l"].keys() == ()


def test_ways_to_read_a_ragged_entry() -> None:
    stack = lazy_stack(unlike(2))
    with pytest.raises(ShapeError, match="as_list=True") as caught:
        stack["x"]
    assert "td['x']" in str(caught.value)
    assert [list(x.shape) for x in stack.get("x", as_list=True)] == [[2, 1], [2, 2]]
    x, mask = stack.get(
        "x", as_padded_tensor=True, padding_value=-1.0, return_mask=True
    )
    assert x.tolist() == [[[0, -1], [0, -1]], [[1, 1], [1, 1]]]
    assert mask.tolist() == [[[True, False]] * 2, [[True, True]] * 2]
    assert stack.get_item_shape("x") == (2, 2, -1)
    flat = lazy_stack([TensorDict(x=torch.ones(n)) for n in (1, 2)])
    nested = flat.get("x", as_nested_tensor=True)
    assert nested.is_nested
    assert [len(t) for t in nested.unbind()] == [1, 2]
    with pytest.raises(OptionError, match="go together"):
        stack.get("x", as_list=True, as_padded_tensor=True)
    with pytest.raises(OptionError):
        stack.get("x", return_mask=True)
    with pytest.raises(OptionError, match="first dim"):
        lazy_stack(unlike(2), 1).get("x", as_nested_tensor=True)
    with pytest.raises(InvalidLeafError, match="padded"):
        stack.get("s", as_padded_tensor=True)


def test_repr_names_size_and_shared_shapes() -> None:
    assert repr(lazy_stack(unlike(2), 1)) == (
        "LazyStackedTensorDict(batch_size=[2, 2], stack_dim=1, "
        "shared={n: [2, 2], s: ..., x: [2, 2, -1]})"
    )


# Entries


def test_setting_reaches_every_member() -> None:
    stack = lazy_stack(unlike(3))
    new = stack.set(("n", "z"), torch.arange(6).reshape(2, 3))
    assert new[1]["n", "z"].tolist() == [3, 4, 5]
    assert new[1]["x"] is stack[1]["x"]
    assert stack.set("t", "word")["t"] == "word"
    td = TensorDict({"l": stack}, 2)
    new = td.set(("l", "n", "z"), torch.arange(6).reshape(2, 3))
    assert new["l"][1]["n", "z"].tolist() == [3, 4, 5]
    assert "own1" in new["l"][1]
    with pytest.raises(BatchSizeError):
        td.set(("l", "z"), torch.ones(3))
    with pytest.raises(BatchSizeError):
        stack.set("z", torch.ones(3))


def test_entries_that_only_some_have() -> None:
    stack = lazy_stack(unlike(3))
    td = TensorDict({"l": stack}, 2)
    assert "own0" not in td.drop(("l", "own0"))["l"][0]
    assert td.select(("l", "own1"))["l"][1].keys() == ("own1",)
    assert td.select(("l", "own1"))["l"][0].keys() == ()
    assert td.rename_key(("l", "own1"), ("l", "new"))["l"][1].keys()[2] == "new"
    with pytest.raises(MissingKeyError, match="zzz"):
        td.drop(("l", "zzz"))
    with pytest.raises(MissingKeyError, match="zzz"):
        td.select(("l", "zzz"))
    with pytest.raises(MissingKeyError, match="zzz"):
        stack.rename_key("zzz", "new")
    with pytest.raises(OperandError, match="same stack"):
        td.rename_key(("l", "x"), "x")


def test_update_gives_each_member_its_own() -> None:
    a, b = unlike(3)
    stack = lazy_stack([a, b])
    new = stack.update(lazy_stack([a * 2, b * 3]))
    assert_equal(new[0], a * 2)
    assert_equal(new[1], b * 3)
    td = TensorDict({"l": stack}, 2).update({"l": {"z": torch.ones(2, 3)}})
    assert td["l"][0].keys() == (*a.keys(), "z")


# Arithmetic


def test_arithmetic_acts_on_members() -> None:
    a, b = unlike(3)
    stack = lazy_stack([a, b])
    assert_equal((stack + 1)[1], b + 1)
    rows = torch.arange(6.0).reshape(2, 3)
    assert_equal((stack * rows)[1], b * rows[1])
    assert_equal((stack * rows[:, :1])[1], b * rows[1, :1])
    assert_equal((stack + stack)[0], a + a)
    assert_equal(stack.exp()[1], b.exp())
    assert_equal(stack.lerp(stack * 2, 0.5)[1], b.lerp(b * 2, 0.5))
    assert bool((stack == stack.clone()).all())
    assert stack.equal(lazy_stack([a, b]))
    assert not stack.equal(lazy_stack([a, b + 1]))
    assert not stack.equal(lazy_stack([a, b], 1).permute(1, 0)[:1])
    assert bool((stack + 1).sum(reduce=True) > 0)


def test_kind_of_the_result_is_that_of_the_left() -> None:
    a = unlike(3)[0]
    lazy, dense = lazy_stack([a, a]), tdfunc.stack([a, a])
    assert type(lazy + dense) is LazyStackedTensorDict
    assert type(dense + lazy) is TensorDict
    nested = TensorDict({"n": lazy}, 2)
    assert type((nested + TensorDict({"n": dense}, 2))["n"]) is LazyStackedTensorDict
    with pytest.raises(ShapeError):
        dense[:1].squeeze(0).unsqueeze(0) + lazy_stack([a, a[:2]])


def test_stacks_that_do_not_pair_up() -> None:
    a, b = unlike(3)
    with pytest.raises(OperandError, match="broadcast"):
        lazy_stack([a, b]) + lazy_stack([a, b, a])
    with pytest.raises(ShapeError, match="pair up"):
        lazy_stack([a[:2], b[:2]]) + lazy_stack([a[:2], b[:2]], 1)
    with pytest.raises(StructureError):
        lazy_stack([a, b]) + lazy_stack([b, a])


def test_refusals_name_densify() -> None:
    stack = lazy_stack(unlike(3))
    td = TensorDict({"deep": {"l": stack}}, 2)
    for call in (
        lambda t: t.sum(),
        lambda t: t.sum(0),
        lambda t: t.cumsum(0),
        lambda t: t.pack(),
        lambda t: t.state_dict(),
        lambda t: t.reshape(-1) if t.batch_dims > 1 else t.sum(0),
        lambda t: t.softmax(0),
    ):
        for tree in (stack, td):
            with pytest.raises(OperandError, match="densify"):
                call(tree)
    with pytest.raises(OperandError, match="td\\['deep', 'l'\\]"):
        td.pack()


# Index


INDICES: list[Any] = [
    0, -1, slice(1, None), slice(None, None, 2), None, ..., [0, 1], [1, 1, 0], True,
    torch.tensor([1, 0]), torch.tensor(1), torch.tensor([True, False]),
    (0, 1), (slice(None), 1), (1, slice(None), 0), (..., 0), (None, 0), (0, None, 1),
    (slice(None), [0, 2]), ([0, 1], slice(None), 1), (1, [0, 2]), (1, [0, 2], [0, 1]),
    (slice(None), [0, 2], slice(None)),
    (slice(None), torch.tensor([True, False, True])),
    (slice(0, 1), ..., None, 1), (slice(None), [0, 1], [1, 0]), (0, slice(None), [1]),
    ([0, 1], slice(None), slice(None)), (slice(1, 2), 0, [1, 1]),
]  # fmt: skip


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_index_law(index: Any, dim: int) -> None:
    size = (2, 3, 2)
    rest = [n for i, n in enumerate(size) if i != dim]
    trees = [TensorDict({"x": torch.rand(*rest, 2)}, rest) for _ in range(size[dim])]
    dense = tdfunc.stack(trees, dim)[index]
    try:
        got = lazy_stack(trees, dim)[index]
    except OperandError as error:
        assert "densify" in str(error)  # noqa: PT017
        assert dim
        return
    assert_valid(got)
    assert got.batch_size == dense.batch_size
    assert_equal(got.densify(), dense)


def test_shorter_stacks_keep_their_members() -> None:
    trees = unlike(3, count=4)
    stack = lazy_stack(trees)
    assert stack[1:3].tensordicts == tuple(trees[1:3])
    assert stack[[3, 0]].tensordicts == (trees[3], trees[0])
    assert stack.flip(0).tensordicts == tuple(trees[::-1])
    assert stack.roll(1, 0).tensordicts[0] is trees[3]
    assert stack[0:0].batch_size == (0, 3)
    assert stack[0:0].keys() == ()
    with pytest.raises(StructureError, match="no entries"):
        stack[0:0].densify()


# Members


def test_more_members() -> None:
    a, b = unlike(3)
    stack = lazy_stack([a], name="who")
    assert stack.append(b).tensordicts == (a, b)
    assert stack.extend([b, a]).tensordicts == (a, b, a)
    assert stack.insert(0, b).tensordicts == (b, a)
    assert stack.append(b).names == ("who", None)
    assert stack.tensordicts == (a,)
    with pytest.raises(ShapeError):
        stack.append(b.unsqueeze(0))


def test_densify() -> None:
    a = unlike(3)[0]
    td = TensorDict({"l": lazy_stack([a, a]), "m": {"k": lazy_stack([a, a * 2])}}, 2)
    dense = td.densify()
    assert type(dense["l"]) is TensorDict
    assert_equal(dense["m", "k"], tdfunc.stack([a, a * 2]))
    assert dense.densify() is dense
    with pytest.raises(StructureError, match="own1"):
        lazy_stack(unlike(3)).densify()
    with pytest.raises(ShapeError, match="padding_value"):
        lazy_stack([t.select("x") for t in unlike(3)]).densify()
    with pytest.raises(ShapeError, match="numbers of dims"):
        lazy_stack(
            [TensorDict(x=torch.ones(2)), TensorDict(x=torch.ones(2, 2))]
        ).densify(padding_value=0)


def test_to_lazystack_and_back() -> None:
    td = TensorDict({"x": torch.rand(2, 3), "s": "a"}, [2, 3])
    for dim in (0, 1):
        assert_equal(td.to_lazystack(dim).densify(), td)
    assert td.to_lazystack(1).stack_dim == 1


def test_stacks_of_stacks() -> None:
    inner = [lazy_stack(unlike(2)), lazy_stack(unlike(2))]
    outer: Any = torch.stack(inner)
    assert outer.batch_size == (2, 2, 2)
    assert outer[1].tensordicts == inner[1].tensordicts
    assert (outer * 2)[1, 1]["x"].tolist() == [[2.0, 2.0]] * 2
    joined: Any = tdfunc.cat(inner)
    assert joined.tensordicts == inner[0].tensordicts + inner[1].tensordicts
    flat, spec = pytree.tree_flatten(outer)
    assert_equal(pytree.tree_unflatten(flat, spec), outer)


# Pytrees and transforms


@pytest.mark.parametrize("dim", [0, 1])
def test_pytree_laws(dim: int) -> None:
    stack = stack_of((2, 3), dim)
    td = TensorDict({"l": stack, "w": torch.ones(2, 3)}, [2, 3])
    for tree in (stack, td):
        ways: Any = (
            (pytree.tree_flatten, pytree.tree_unflatten),
            (optree.tree_flatten, lambda x, spec: optree.tree_unflatten(spec, x)),
        )
        for flatten, unflatten in ways:
            leaves, spec = flatten(tree)
            back = unflatten(leaves, spec)
            assert all(x is y for x, y in zip(leaves, flatten(back)[0], strict=True))
            assert back.batch_size == tree.batch_size
            assert_valid(back)
            assert_equal(back, tree)
            assert flatten(tree * 2)[1] == spec
            assert hash(flatten(tree * 2)[1]) == hash(spec)
        shapes = pytree.tree_map(lambda x: tuple(x.shape), tree)
        held = shapes if tree is stack else shapes["l"]
        assert held._leaves[0].where == (dim, ((3, 2)[dim],))
        names = [
            pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(tree)[0]
        ]
        assert any("[1]" in name and "x" in name for name in names)
    other = lazy_stack([t.drop("x") for t in stack.tensordicts], dim)
    assert pytree.tree_structure(other) != pytree.tree_structure(stack)


def test_treespec_round_trip() -> None:
    stack = lazy_stack([t.drop("s") for t in unlike(3)], 1)
    leaves, spec = pytree.tree_flatten(stack)
    again = pytree.treespec_loads(pytree.treespec_dumps(spec))
    assert again == spec
    assert_equal(pytree.tree_unflatten(leaves, again), stack)


SIZES = [(2, 3), (3, 3), (1, 3), (3, 1), (1, 1), (2, 1, 3), (1, 2, 1), (1, 1, 3)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_vmap_over_every_dim(size: tuple[int, ...]) -> None:
    for dim, mapped in itertools.product(range(len(size)), repeat=2):
        stack = stack_of(size, dim)
        td = TensorDict({"l": stack, "w": torch.ones(size)}, size)
        rest = tuple(n for i, n in enumerate(size) if i != mapped)
        seen: list[Any] = []

        def inside(tree: Any, seen: list[Any] = seen) -> Any:
            held = tree["l"] if "w" in tree._schema.keys else tree
            seen.append((held.batch_size, held.stack_dim, held["n", "u"].shape))
            return tree * 2

        for tree in (stack, td):
            if mapped == dim:
                # torch itself refuses if others have another size there.
                with pytest.raises(
                    (OperandError, ValueError), match=r"stack dim|same size"
                ):
                    torch.vmap(inside, in_dims=mapped)(tree)
                continue
            out = torch.vmap(inside, in_dims=mapped)(tree)
            to = dim - (mapped < dim)
            assert seen.pop() == (rest, to, rest)
            held = out if tree is stack else out["l"]
            assert held.batch_size == (size[mapped], *rest)
            assert held.stack_dim == to + 1
            back = held.movedim(0, mapped)
            assert_equal(back, stack * 2)
            if 1 not in size:
                out = torch.vmap(inside, in_dims=mapped, out_dims=mapped)(tree)
                assert_equal(out, tree * 2)


def test_vmap_nested_and_partial() -> None:
    stack = stack_of((2, 3, 4), 1)
    out = torch.vmap(torch.vmap(lambda t: t * 2, in_dims=1), in_dims=0)(stack)
    assert out.batch_size == (2, 4, 3)
    assert out.stack_dim == 2
    assert_equal(out, (stack * 2).permute(0, 2, 1))
    out = torch.vmap(lambda t, w: t * w, in_dims=(None, 0))(stack, torch.ones(5))
    assert out.batch_size == (5, 2, 3, 4)
    assert out.stack_dim == 2


def test_in_dims_of_a_tree_with_a_stack() -> None:
    stack = stack_of((2, 3), 0)
    td = TensorDict({"l": stack, "w": torch.ones(2, 3)}, [2, 3])
    dims = tdfunc.in_dims(td, 1, {"w": None})
    out = torch.vmap(lambda t: t["l", "n", "u"] + t["w"].sum(), (dims,))(td)
    assert out.shape == (3, 2)
    dims = tdfunc.in_dims(stack, 1)
    assert torch.vmap(lambda t: t["n", "u"], (dims,))(stack).shape == (3, 2)


def test_grad_reaches_every_member() -> None:
    stack = lazy_stack([t.drop("s") for t in unlike(3)])

    def loss(tree: Any) -> torch.Tensor:
        return (tree**2).sum(reduce=True)

    for grad in (torch.func.grad(loss)(stack), torch.func.grad(loss)(stack)):
        assert_equal(grad, stack * 2)
    jac = torch.func.jacrev(lambda t: (t * 2).sum("feature")["x"].sum(0))(stack)
    assert jac.tensordicts[1]["x"].shape[-1] == 2
    td = TensorDict({"l": stack, "w": torch.ones(2)}, 2)
    assert_equal(torch.func.grad(loss)(td), td * 2)


def test_autograd_through_writing_and_indexing() -> None:
    a, b = [t.drop("s") for t in unlike(3)]
    w = torch.ones(3, requires_grad=True)
    stack = lazy_stack([a.set("w", w), b.set("w", w * 2)])
    assert stack.requires_grad
    stack.at[0].mul(3)["w"].sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [5.0] * 3
    assert not stack.detach().requires_grad


def test_compile_fullgraph() -> None:
    a, b = [t.drop("s") for t in unlike(3)]
    stack = lazy_stack([a, b])

    def read(tree: Any) -> Any:
        return (tree * 2)["n", "u"] + 1

    def build(x: Any, y: Any) -> Any:
        tree = lazy_stack([x, y])
        return (tree + 1)[0]["x"], tree[1]["x"], tree["n", "u"]

    for fn, args in ((read, (stack,)), (build, (a, b))):
        compiled = torch.compile(fn, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(*args), fn(*args))


COMPILED: list[Any] = [
    lambda t: (t * 2, t[0], t[:, 1:], t.unsqueeze(0)),
    lambda t: (t.sum(1), t.sum(reduce=True), t.cumsum(1)),
    lambda t: t.set("z", torch.ones(2, 3)).select("x", "z"),
    lambda t: t.at[0].set(1),
    lambda t: torch.vmap(lambda q: q * 2, in_dims=1, out_dims=1)(+t),
    lambda t: torch.vmap(lambda q: q.sum(reduce=True), in_dims=1)(+t),
    lambda t: lazy_stack([t[0], t[1], t[0]]),
    lambda t: pytree.tree_map(torch.neg, t),
]


@pytest.mark.parametrize("place", range(len(COMPILED)))
def test_operations_compile(place: int) -> None:
    call = COMPILED[place]
    stack = lazy_stack([t.drop("s") for t in unlike(3)])
    torch._dynamo.reset()
    got = torch.compile(call, fullgraph=True, backend="eager")(stack)
    expected = call(stack)
    if not isinstance(expected, tuple):
        got, expected = (got,), (expected,)
    for x, y in zip(got, expected, strict=True):
        if isinstance(y, torch.Tensor):
            torch.testing.assert_close(x, y)
        else:
            assert_valid(x)
            assert_equal(x, y)


class _Doubling(torch.nn.Module):
    def forward(self, tree: Any) -> torch.Tensor:
        return (tree * 2)[1]["x"]


def test_export() -> None:
    stack = lazy_stack([t.drop("s") for t in unlike(3)])
    program = torch.export.export(_Doubling(), (stack,))
    torch.testing.assert_close(program.module()(stack), stack[1]["x"] * 2)


def test_other_things_than_tensors_are_read_back_by_key() -> None:
    stack = lazy_stack([t.drop("s") for t in unlike(3)])
    ranks = pytree.tree_map(lambda x: x.dim(), stack)
    assert ranks["n", "u"] == (2, 2)
    assert ranks.get("x", as_list=True) == [3, 3]
    assert ranks.tensordicts[1]["own1"] == 2
    assert ranks.batch_size == ()
    td = pytree.tree_map(lambda _: None, TensorDict({"l": stack}, 2))
    assert td["l", "x"] == (None, None)
    gone = pytree.tree_map(lambda x: x[0], stack)
    assert "gone" in repr(gone)
    with pytest.raises(OperandError, match="stack dim"):
        gone["x"]


def test_compiled_once_for_other_texts() -> None:
    torch._dynamo.reset()
    count: Any = CompileCounter()
    fn = torch.compile(lambda t: (t * 2)["n", "u"], fullgraph=True, backend=count)
    for text in ("a", "b", "c"):
        fn(lazy_stack([t.set("s", text) for t in unlike(3)]))
    assert count.frame_count == 1


def test_copies() -> None:
    stack = lazy_stack(unlike(3), 1, name="who")
    td = TensorDict({"l": stack}, 3)
    for tree in (stack, td):
        assert copy.copy(tree) is tree
        for again in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
            assert_equal(again, tree)
            assert_valid(again)
            assert again.names == tree.names
        file = io.BytesIO()
        torch.save(tree, file)
        file.seek(0)
        assert_equal(torch.load(file, weights_only=True), tree)
    clone = stack.clone()
    assert_equal(clone, stack)
    assert clone[:, 0]["x"].data_ptr() != stack[:, 0]["x"].data_ptr()


def _doubled(tree: Any) -> Any:
    return tree * 2


def test_goes_to_another_process() -> None:
    context = torch.multiprocessing.get_context("spawn")
    stack = lazy_stack(unlike(3))
    with context.Pool(1) as pool:
        assert_equal(pool.apply(_doubled, (stack,)), stack * 2)


def test_nothing_is_changed() -> None:
    stack = lazy_stack(unlike(3))
    td = TensorDict({"l": stack}, 2)
    for tree in (stack, td):
        assert_pure(lambda t: t * 2, tree)
        assert_pure(lambda t: t.at[0].set(1), tree)
        assert_pure(
            lambda t: t.set(("n", "z") if t is stack else "z", torch.ones(2, 3)), tree
        )
        assert_pure(lambda t: t[0], tree)
        assert_pure(lambda t: pytree.tree_map(torch.clone, t), tree)


def test_a_thousand_members_cost_what_they_are() -> None:
    one = TensorDict(x=torch.ones(2))
    stack = lazy_stack([one] * 1000)
    assert stack.batch_size == (1000,)
    assert stack[999] is one
    assert (stack * 2)[7]["x"].tolist() == [2.0, 2.0]
