"""One value per row, and tensors that the batch does not index, in every operation.

What is expected is computed with NumPy arrays of objects, or with Python lists.
"""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np
import optree
import pytest
import torch
from torch.utils import _pytree

import tdfunc
from tdfunc import NonTensorData, NonTensorStack, TensorDict, unbatched
from tdfunc.errors import (
    BatchSizeError,
    InvalidLeafError,
    OperandError,
    OptionError,
    StructureError,
)
from tdfunc.testing import assert_equal, assert_pure, assert_valid
from tests.cases import ROW_CASES, cases, ramp, rows_in, same

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cases import Case as TreeCase

T = torch.tensor
# Their stubs know nothing of nodes of users.
pytree: Any = _pytree
os_trees: Any = optree
WORDS = ("a", "b", "", None, "日本", b"x", 2, 2.0, True, math.nan)
OBJECT = object()
TABLE = ramp(7)


def texts(*shape: int) -> np.ndarray[Any, Any]:
    """Return words in a shape, in an order of no period of it."""
    count = math.prod(shape)
    out = np.empty(count, dtype=object)
    for i in range(count):
        out[i] = WORDS[(i * i + i // 3) % len(WORDS)]
    return out.reshape(shape)


@dataclass(frozen=True)
class Case:
    """A batch size, and the rows of the root and of a node with one more dim."""

    size: tuple[int, ...]

    @property
    def outer(self) -> np.ndarray[Any, Any]:
        return texts(*self.size)

    @property
    def inner(self) -> np.ndarray[Any, Any]:
        return texts(*self.size, 2)

    @property
    def tree(self) -> TensorDict:
        inner = TensorDict({"r": self.inner, "y": ramp(*self.size, 2)}, (*self.size, 2))
        outer = self.outer
        return TensorDict(
            {
                "x": ramp(*self.size, 3),
                "s": outer if outer.ndim else outer.item(),
                "n": inner,
                "m": {"t": "one", "g": unbatched(TABLE)},
            },
            self.size,
        )


def alike(got: Any, expected: np.ndarray[Any, Any]) -> bool:
    """Return whether nested lists hold the very objects of an array."""
    flat = got
    for _ in expected.shape[1:]:
        flat = [value for row in flat for value in row]
    if not expected.ndim:
        flat = [got]
    wanted = expected.reshape(-1).tolist()
    return len(flat) == len(wanted) and all(
        type(x) is type(y) and (x is y or x == y)
        for x, y in zip(flat, wanted, strict=True)
    )


def as_array(rows: Any) -> np.ndarray[Any, Any]:
    """Return what NumPy's index gave as an array: of one place, it gives the object."""
    if isinstance(rows, np.ndarray):
        return rows
    out = np.empty((), dtype=object)
    out[()] = rows
    return out


def check(
    td: TensorDict,
    outer: np.ndarray[Any, Any],
    inner: np.ndarray[Any, Any],
    size: tuple[int, ...] | None = None,
) -> None:
    outer = as_array(outer)
    assert_valid(td)
    assert td.batch_size == (outer.shape if size is None else size)
    assert alike(td["s"], outer), (td["s"], outer)
    assert alike(td["n", "r"], inner), (td["n", "r"], inner)
    assert td["m", "t"] == "one"
    assert td["m", "g"] is TABLE


# name: the batch size, the operation, and what it does to an array
MOVES: dict[str, tuple[tuple[int, ...], Callable[..., Any], Callable[..., Any]]] = {
    "int": ((4,), lambda t: t[2], lambda a: a[2]),
    "slice": ((4, 3), lambda t: t[1:, ::2], lambda a: a[1:, ::2]),
    "no rows": ((4,), lambda t: t[:0], lambda a: a[:0]),
    "None": ((4,), lambda t: t[None], lambda a: a[None]),
    "list": ((4,), lambda t: t[[3, 0, 3]], lambda a: a[[3, 0, 3]]),
    "mask": (
        (4,),
        lambda t: t[T([True, False, True, True])],
        lambda a: a[[True, False, True, True]],
    ),
    "tensor": ((4, 3), lambda t: t[:, T([2, 0])], lambda a: a[:, [2, 0]]),
    "reshape": (
        (4, 3),
        lambda t: t.reshape(2, 6),
        lambda a: a.reshape(2, 6, *a.shape[2:]),
    ),
    "view": ((6,), lambda t: t.view(2, 3), lambda a: a.reshape(2, 3, *a.shape[1:])),
    "flatten": ((4, 3), lambda t: t.flatten(), lambda a: a.reshape(12, *a.shape[2:])),
    "unflatten": (
        (6,),
        lambda t: t.unflatten(0, [3, 2]),
        lambda a: a.reshape(3, 2, *a.shape[1:]),
    ),
    "permute": ((4, 3), lambda t: t.permute(1, 0), lambda a: a.swapaxes(0, 1)),
    "transpose": ((4, 3), lambda t: t.transpose(0, 1), lambda a: a.swapaxes(0, 1)),
    "movedim": ((4, 3), lambda t: t.movedim(0, 1), lambda a: np.moveaxis(a, 0, 1)),
    "unsqueeze": ((4,), lambda t: t.unsqueeze(1), lambda a: a[:, None]),
    "squeeze": ((1, 4), lambda t: t.squeeze(0), lambda a: a[0]),
    "expand": (
        (1, 4),
        lambda t: t.expand(3, 4),
        lambda a: np.broadcast_to(a, (3, *a.shape[1:])),
    ),
    "atleast_3d": ((4,), TensorDict.atleast_3d, lambda a: a[None, :, None]),
    "narrow": ((4,), lambda t: t.narrow(0, 1, 2), lambda a: a[1:3]),
    "unbind": ((4,), lambda t: t.unbind()[3], lambda a: a[3]),
    "split": ((5,), lambda t: t.split(2)[1], lambda a: a[2:4]),
    "chunk": ((5,), lambda t: t.chunk(2)[1], lambda a: a[3:]),
    "tensor_split": ((5,), lambda t: t.tensor_split(2)[0], lambda a: a[:3]),
    "repeat": ((3,), lambda t: t.repeat(2), lambda a: np.concatenate([a, a])),
    "tile": ((3,), lambda t: t.tile(2, 1), lambda a: np.stack([a, a])),
    "repeat_interleave": (
        (3,),
        lambda t: t.repeat_interleave(2, 0),
        lambda a: np.repeat(a, 2, 0),
    ),
    "repeat_interleave by tensor": (
        (3,),
        lambda t: t.repeat_interleave(T([2, 0, 1]), 0),
        lambda a: np.repeat(a, [2, 0, 1], 0),
    ),
    "roll": ((4,), lambda t: t.roll(1, 0), lambda a: np.roll(a, 1, 0)),
    "flip": ((4, 3), lambda t: t.flip(1), lambda a: a[:, ::-1]),
    "rot90": ((4, 3), TensorDict.rot90, np.rot90),
    "gather": (
        (2, 3),
        lambda t: t.gather(1, T([[2, 0], [1, 1]])),
        lambda a: np.stack([a[0][[2, 0]], a[1][[1, 1]]]),
    ),
    "index_select": (
        (4,),
        lambda t: t.index_select(0, T([3, 1])),
        lambda a: a[[3, 1]],
    ),
    "take": (
        (2, 3),
        lambda t: t.take(T([[5, -6]])),
        lambda a: a.reshape(6, *a.shape[2:])[[[5, 0]]],
    ),
    "masked_select": (
        (3,),
        lambda t: t.masked_select(T([True, False, True])),
        lambda a: a[[True, False, True]],
    ),
    "stack": ((3,), lambda t: tdfunc.stack([t, t], 1), lambda a: np.stack([a, a], 1)),
    "cat": (
        (3,),
        lambda t: tdfunc.cat([t, t[1:]]),
        lambda a: np.concatenate([a, a[1:]]),
    ),
    "torch.stack": ((3,), lambda t: torch.stack([t, t]), lambda a: np.stack([a, a])),
    "clone": ((3,), lambda t: t.clone().set(("m", "g"), unbatched(TABLE)), lambda a: a),
    "pickle": (
        (3,),
        lambda t: pickle.loads(pickle.dumps(t)).set(("m", "g"), unbatched(TABLE)),
        lambda a: a,
    ),
    "deepcopy": (
        (3,),
        lambda t: copy.deepcopy(t).set(("m", "g"), unbatched(TABLE)),
        lambda a: a,
    ),
    "tree_map": (
        (3,),
        lambda t: pytree.tree_map(lambda x: x[[2, 0]], t),
        lambda a: a[[2, 0]],
    ),
    "optree map": (
        (3,),
        lambda t: os_trees.tree_map(lambda x: x.flip(0), t),
        lambda a: a[::-1],
    ),
    "update": ((3,), lambda t: t.flip(0).update(t), lambda a: a),
    "rename": (
        (3,),
        lambda t: t.rename_keys({"s": "k", "n": "o"}).rename_keys({"k": "s", "o": "n"}),
        lambda a: a,
    ),
    "flatten_keys": (
        (3,),
        lambda t: TensorDict(t.select("x", "s", "n").to_tensordict(), 3).update(t),
        lambda a: a,
    ),
    "vmap": (
        (3,),
        lambda t: torch.vmap(lambda row: row, (tdfunc.in_dims(t),))(t),
        lambda a: a,
    ),
    "vmap of a flip": (
        (2, 3),
        lambda t: torch.vmap(lambda row: row.flip(0), (tdfunc.in_dims(t, 0),))(t),
        lambda a: a[:, ::-1],
    ),
    "vmap over dim 1": (
        (2, 3),
        lambda t: torch.vmap(lambda row: row[[1, 0]], (tdfunc.in_dims(t, 1),))(t),
        lambda a: a.swapaxes(0, 1)[:, [1, 0]],
    ),
    "nested vmap": (
        (2, 3),
        lambda t: torch.vmap(torch.vmap(TensorDict.exp))(t.exclude("m")).update(
            t.select("m")
        ),
        lambda a: a,
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_rows_move_as_an_array_of_objects(name: str) -> None:
    size, move, oracle = MOVES[name]
    case = Case(size)
    out = assert_pure(move, case.tree)
    check(out, oracle(case.outer), oracle(case.inner))


@pytest.mark.parametrize("name", [n for n in MOVES if "vmap" not in n])
def test_rows_with_dims_behind_the_batch_move_too(name: str) -> None:
    size, move, oracle = MOVES[name]
    td = Case((*size, 2)).tree.with_batch_size(size)
    out = move(td)
    expected = oracle(texts(*size, 2))
    assert_valid(out)
    assert alike(out["s"], expected)
    assert out.batch_size == expected.shape[:-1]


# What computes: rows stay as they are.
VALUES: dict[str, Callable[[TensorDict], Any]] = {
    "times": lambda t: t * 2,
    "plus itself": lambda t: t + t,
    "plus rows": lambda t: t + torch.ones(3),
    "less than a number": lambda t: t < 2,
    "equals a number": lambda t: t == 2,
    "cast": lambda t: t.to(torch.float64),
    "cast floats": lambda t: t.to(torch.float16, floating_only=True),
    "exp": lambda t: t.exp(),
    "clamp": lambda t: t.clamp(0, 1),
    "clamp by a tree": lambda t: t.clamp(t - 1, t + 1),
    "lerp": lambda t: t.lerp(t * 2, 0.5),
    "addcmul": lambda t: t.addcmul(t, t),
    "nan_to_num": lambda t: t.nan_to_num(),
    "cumsum": lambda t: t.cumsum(0),
    "cumprod": lambda t: t.cumprod(0),
    "cummax": lambda t: t.cummax(0).indices,
    "softmax": lambda t: t.softmax(0),
    "masked_fill": lambda t: t.masked_fill(T([True, False, True]), 7),
    "masked_fill by a tree": lambda t: t.masked_fill(t == t.clone(), 7),
    "where of a number": lambda t: t.where(t > 1, 0),
    "where of a tensor": lambda t: tdfunc.where(T([True, False, True]), ramp(3), t),
    "apply": lambda t: t.apply(lambda x: x * 2),
    "apply over two": lambda t: t.apply(torch.maximum, t),
    "named_apply": lambda t: t.named_apply(lambda _, x: x * 2),
    "zeros_like": lambda t: t.zeros_like(),
    "full_like": lambda t: t.full_like(3, dtype=torch.int64),
    "randn_like": lambda t: t.randn_like(),
    "sum of features": lambda t: t.sum("feature"),
    "max of features": lambda t: t.max("feature").values,
    "sum over no dims": lambda t: t.sum(()),
    "median of features": lambda t: t.median("feature").indices,
    "norm of features": lambda t: t.norm(dim="feature", keepdim=True),
    "ravel": lambda t: tdfunc.ravel(t)[1](tdfunc.ravel(t)[0] * 2),
    "combine": lambda t: tdfunc.combine(*tdfunc.partition(t, "floating")),
    "partition by a function": lambda t: tdfunc.partition(t, lambda *_: False)[1],
    "at.set of a number": lambda t: t.at[0].set(7),
    "at.add of a number": lambda t: t.at[0].add(7),
    "at.add of a tree": lambda t: t.at[:2].add(t[1:]),
    "at.mul of rows": lambda t: t.at[:].mul(torch.ones(3)),
    "at.apply": lambda t: t.at[0].apply(torch.exp),
    "detach": lambda t: t.detach(),
    "with_names": lambda t: t.with_names(["row"]),
    "set": lambda t: t.set("x", torch.zeros(3)),
    "auto": lambda t: t.auto_batch_size(1),
    "filter_empty": lambda t: t.filter_empty(),
    "select all": lambda t: t.select(*t.keys()),
    "grad": lambda t: (
        torch.func.grad(lambda x: (t.set("x", x) * 2)["x"].sum())(t["x"]).sum() + t
    ),
    "jacrev": lambda t: t.set(
        "x", torch.func.jacrev(lambda x: t.set("x", x)["x"] ** 2)(t["x"])
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_operations_on_values_leave_rows_as_they_are(name: str) -> None:
    case = Case((3,))
    td = case.tree
    out = assert_pure(VALUES[name], td)
    assert_valid(out)
    assert out.batch_size == (3,)
    assert alike(out["s"], case.outer)
    assert alike(out["n", "r"], case.inner)
    assert out["m", "t"] == "one"
    assert same(out["m", "g"].float(), TABLE)
    # The tensors are what they are without the rows.
    if name not in {"randn_like", "masked_fill by a tree", "where of a number"}:
        bare = VALUES[name](td.exclude("s", ("n", "r")))
        for key in ("x", ("n", "y")):
            if key in bare:
                assert same(out[key], bare[key])


# What has no meaning for text.
REFUSED: dict[str, Callable[[TensorDict], Any]] = {
    **{
        name: lambda t, name=name: getattr(t, name)(0)
        for name in (
            *("sum", "mean", "prod", "var", "std", "amax", "amin", "max", "min"),
            *("median", "argmax", "argmin", "logsumexp", "nansum", "nanmean"),
            *("all", "any", "sort", "argsort"),
        )
    },
    "norm": lambda t: t.norm(dim=0),
    "quantile": lambda t: t.quantile(0.5, 0),
    "topk": lambda t: t.topk(1, 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_reducing_rows_is_refused_by_name(name: str) -> None:
    td = Case((3,)).tree
    with pytest.raises(OperandError) as caught:
        REFUSED[name](td)
    text = str(caught.value)
    assert f"{name} is not defined for one value per row" in text
    assert "at td['n', 'r']" in text
    assert f"td.filter_non_tensor().{name}(...)" in text
    REFUSED[name](td.filter_non_tensor())
    if name not in {"sort", "argsort", "topk", "norm", "quantile"}:
        whole: Any = getattr(td, name)
        if name in {"all", "any"}:
            assert same(whole(), getattr(td.filter_non_tensor(), name)())
        else:
            with pytest.raises(OperandError, match=r"one value per row"):
                whole()


def test_folding_all_leaves_leaves_rows_out() -> None:
    td = Case((3,)).tree
    bare = td.filter_non_tensor()
    for name in ("sum", "mean", "prod", "var", "std", "amax", "norm", "nanmean"):
        assert same(getattr(td, name)(reduce=True), getattr(bare, name)(reduce=True))
    assert same(td.sum(dim="feature", reduce=True), bare.sum("feature", reduce=True))


def test_pack_names_what_it_can_not_take() -> None:
    td = Case((3,)).tree
    with pytest.raises(OperandError, match=r"td\['m', 'g'\].*td\['n', 'r'\]"):
        td.pack()
    assert td.filter_non_tensor().exclude("m").pack()[0].shape == (3, 5)


def test_quantiles_repeat_rows_for_every_level() -> None:
    case = Case((3,))
    out = case.tree.quantile([0.2, 0.5], "feature")
    check(out, np.stack([case.outer] * 2), np.stack([case.inner] * 2))


# New cells


def test_padding_puts_none_where_there_was_no_row() -> None:
    case = Case((2,))
    out = assert_pure(lambda t: t.pad((1, 2)), case.tree)
    assert_valid(out)
    assert alike(out["s"], np.array([None, *case.outer, None, None], dtype=object))
    none = [None, None]
    assert out["n", "r"] == [none, *case.inner.tolist(), none, none]
    assert out["x"][0].tolist() == [0, 0, 0]
    cut = case.tree.pad((-1, 0))
    assert cut._statics is case.tree._statics or cut["s"] == case.outer[1:].tolist()


def test_rows_that_are_not_there_are_none() -> None:
    case = Case((3,))
    out = case.tree.at[T([2, 9])].get(fill_value=0)
    assert_valid(out)
    assert alike(out["s"], np.array([case.outer[2], None], dtype=object))
    empty = case.tree[:0].at[[0]].get(fill_value=0)
    assert empty["s"] == [None]
    assert alike(case.tree.at[1:].get()["s"], case.outer[1:])


# Exchange


@pytest.mark.parametrize(
    "index", [0, slice(1, None), [2, 0], T([True, False, True])], ids=str
)
def test_writing_a_tree_writes_its_rows(index: Any) -> None:
    case = Case((3,))
    td, other = case.tree, case.tree.flip(0).set("s", ["new", "a", "z"])
    out = assert_pure(lambda a, b: a.at[index].set(b[index]), td, other)
    assert_valid(out)
    for key, old in (("s", case.outer), (("n", "r"), case.inner)):
        expected = old.copy()
        place = index.numpy() if isinstance(index, torch.Tensor) else index
        new = np.empty(expected.shape, dtype=object)
        new[...] = np.array(other[key], dtype=object)
        expected[place] = new[place]
        assert alike(out[key], expected)


def test_writing_texts_by_a_mapping() -> None:
    td = TensorDict({"s": ["a", "b", "c"], "x": ramp(3)}, 3)
    assert td.at[1].set({"s": "new"})["s"] == ["a", "new", "c"]
    assert td.at[1:].set({"s": ["u", "a"]})["s"] == ["a", "u", "a"]
    assert td.at[1:].set({"s": "all", "x": 0})["s"] == ["a", "all", "all"]
    assert td.at[0].set({"s": None})["s"] == [None, "b", "c"]
    assert td.at[0].set({"s": 1})["s"] == [1, "b", "c"]
    assert td.at[:2].set({"s": [1, 2]})["s"] == [1, 2, "c"]
    assert td.at[0].set({"s": NonTensorData({"k": 1})})["s"] == [{"k": 1}, "b", "c"]
    assert td.at[:2].set({"s": NonTensorStack([], [1])})["s"] == [[], [1], "c"]
    assert td.at[T([True, False, True])].set({"s": ["m", "n"]})["s"] == ["m", "b", "n"]
    assert td["s"] == ["a", "b", "c"]
    out = td.at[1].set({"s": "new"})
    assert out["x"] is td["x"]


def test_writing_rows_of_a_static_makes_it_one_value_per_row() -> None:
    td = TensorDict({"s": "x", "n": {"t": None}}, 3)
    assert td.at[0].set({"s": "q"})["s"] == ["q", "x", "x"]
    assert td.at[1:].set({("n", "t"): ["u", "v"]})["n", "t"] == [None, "u", "v"]
    # INVENTORY 4.16: a tree with another value does the same, one with the same none.
    assert td.at[0].set(TensorDict({"s": "q", "n": {"t": None}}))["s"] == [
        "q",
        "x",
        "x",
    ]
    assert td.at[0].set(td[0])["s"] == "x"
    wide = TensorDict({"n": TensorDict({"s": "x", "y": ramp(2, 3)}, [2, 3])}, 2)
    out = wide.at[1].set({"n": {"s": "q"}})
    assert out["n", "s"] == [["x"] * 3, ["q"] * 3]
    assert out["n"].batch_size == (2, 3)
    assert wide.at[1].set({"n": wide["n"][0].set("s", "q")})["n", "s"] == out["n", "s"]


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ({"s": ["a", "b"]}, ["td['s']", "shape [3]", "[2]"]),
        ({"s": torch.ones(3)}, ["td['s']", "can not be written", "Tensor"]),
        ({"s": {"k": 1}}, ["td['s']", "mapping", "NonTensorData"]),
        ({"g": torch.ones(7)}, ["td['g']", "unbatched tensor has no rows"]),
        (TensorDict({"x": ramp(3), "s": "a"}, 3), ["td['g'] is missing"]),
    ],
    ids=repr,
)
def test_texts_that_do_not_fit_are_refused(value: Any, parts: list[str]) -> None:
    td = TensorDict({"s": ["a", "b", "c"], "x": ramp(3), "g": unbatched(TABLE)}, 3)
    with pytest.raises((OperandError, StructureError)) as caught:
        td.at[:].set(value)
    for part in parts:
        assert part in str(caught.value)


def test_rows_named_for_a_computation_are_refused() -> None:
    td = TensorDict({"s": ["a", "b"], "t": "x", "x": ramp(2)}, 2)
    for key in ("s", "t"):
        for name in ("add", "mul", "div", "pow", "min", "max"):
            with pytest.raises(
                OperandError, match=rf"td\['{key}'\].*expected a tensor"
            ):
                getattr(td.at[0], name)({key: 1})


def test_where_chooses_rows() -> None:
    case = Case((3,))
    td = case.tree
    other = td.flip(0).set(("m", "t"), "two").set("s", ["p", "q", "r"])
    flags = [True, False, True]
    out = assert_pure(tdfunc.where, T(flags), td, other)
    assert_valid(out)
    assert out["s"] == [case.outer[0], "q", case.outer[2]]
    assert out["m", "t"] == ["one", "two", "one"]
    expected = [
        a if f else b
        for f, a, b in zip(flags, case.inner, case.inner[::-1], strict=True)
    ]
    assert alike(out["n", "r"], np.stack(expected))
    assert same(out["x"], torch.where(T(flags)[:, None], td["x"], other["x"]))


def test_where_by_a_tree_chooses_rows_by_what_it_says_of_them() -> None:
    td = TensorDict({"s": ["a", "b", "c"], "x": ramp(3), "t": "l"}, 3)
    other = TensorDict({"s": ["a", "z", "c"], "x": ramp(3) + 5, "t": "r"}, 3)
    out = tdfunc.where(td == other, td, other)
    assert (out["s"], out["t"]) == (["a", "z", "c"], "l")
    assert out["x"].tolist() == [5, 6, 7]
    out = tdfunc.where(td > 1, td, other)
    assert out["s"] == ["a", "b", "c"]
    assert out["x"].tolist() == [5, 6, 2]
    wide = tdfunc.where(T([[True], [False]]), td, other)
    assert wide["s"] == [["a", "b", "c"], ["a", "z", "c"]]


def test_rows_are_repeated_where_a_computation_broadcasts() -> None:
    narrow = TensorDict({"n": {"r": ["a", "b"], "y": ramp(2)}, "s": ["p", "q"]}, 2)
    inner = TensorDict({"r": [["u"] * 3] * 2, "y": ramp(2, 3)}, [2, 3])
    wide = TensorDict({"n": inner, "s": ["z", "z"]}, 2)
    out = narrow + wide
    assert_valid(out)
    assert out["n", "r"] == [["a"] * 3, ["b"] * 3]
    assert out["s"] == ["p", "q"]
    assert out["n"].batch_size == (2, 3)
    assert (wide + narrow)["n", "r"] == [["u"] * 3] * 2
    more = narrow * torch.ones(4, 1)
    assert_valid(more)
    assert (more.batch_size, more["s"]) == ((4, 2), [["p", "q"]] * 4)
    assert more["n", "r"] == [["a", "b"]] * 4
    # A node of nothing but rows keeps its dims.
    only = TensorDict({"r": [["a", "b"], ["c", "d"]]}, [2, 2])
    td = TensorDict({"n": only, "x": ramp(2, 3)}, 2)
    for out in (td.sum("feature"), td.sum("feature", keepdim=True), td * td):
        assert_valid(out)
        assert out["n", "r"] == [["a", "b"], ["c", "d"]]
        assert out["n"].batch_size == (2, 2)
    out = td * torch.ones(3, 2)
    assert_valid(out)
    assert out["n", "r"] == [[["a", "b"], ["c", "d"]]] * 3


# Comparing


def test_equality_of_rows_is_a_boolean_for_each() -> None:
    a = TensorDict({"s": ["a", "b", None], "x": ramp(3)}, 3)
    b = TensorDict({"s": ["b", "b", None], "x": ramp(3)}, 3)
    assert (a == b)["s"].tolist() == [False, True, True]
    assert (a != b)["s"].tolist() == [True, False, False]
    assert a.isclose(b + 1e-9)["s"].tolist() == [False, True, True]
    assert (a == b)["x"].all()
    assert not (a == b).all()
    assert (a == a.clone()).all()
    assert not a.allclose(b)
    assert a.allclose(b.set("s", ["a", "b", None]))
    assert (a[None] == b.unsqueeze(1))["s"].shape == (3, 3)
    # Values of other types are other values.
    one = TensorDict({"s": NonTensorStack(1, 1.0, True, math.nan, -0.0)}, 5)
    two = TensorDict({"s": NonTensorStack(1, 1, 1, math.nan, 0.0)}, 5)
    assert (one == two)["s"].tolist() == [True, False, False, True, False]
    with pytest.raises(StructureError, match=r"td\['s'\] is a static value"):
        a == a.set("s", "a")  # noqa: B015
    assert (a == "a") is False


def test_equal_compares_rows_by_value_whatever_their_tables() -> None:
    a = TensorDict({"s": ["a", "b", "a"], "n": {"t": ["x", "y", "z"]}}, 3)
    b = a.flip(0).flip(0).at[0].set({"s": "other"}).at[0].set({"s": "a"})
    assert a._statics != b._statics
    assert a.equal(b)
    assert b.equal(a)
    assert a[[2, 1, 0]].equal(
        TensorDict({"s": ["a", "b", "a"], "n": {"t": ["z", "y", "x"]}}, 3)
    )
    assert not a.equal(a.set("s", ["a", "b", "c"]))
    assert not a.equal(a.set("s", NonTensorData(["a", "b", "a"])))
    assert not TensorDict(s="a").equal(TensorDict(s="b"))


# Joining


def test_joining_brings_tables_together() -> None:
    rows = [TensorDict({"s": f"text {i % 7}", "i": T(i)}) for i in range(40)]
    out = tdfunc.stack(rows)
    assert out["s"] == [f"text {i % 7}" for i in range(40)]
    assert [row["s"] for row in out] == out["s"]
    again = tdfunc.cat([out[20:], out[:20].set("s", ["new"] * 20)])
    assert again["s"] == [f"text {i % 7}" for i in range(20, 40)] + ["new"] * 20
    mixed = tdfunc.stack([out[:2], out[:2].set("s", "whole")])
    assert mixed["s"] == [["text 0", "text 1"], ["whole", "whole"]]
    assert tdfunc.from_list([{"a": "x", "b": 1}, {"a": "y", "b": 2}])["a"] == ["x", "y"]


def test_a_dict_as_one_value_stays_one() -> None:
    one: dict[str, Any] = {}
    two: dict[str, Any] = {}
    a, b = [TensorDict({"d": NonTensorData(value)}) for value in (one, two)]
    out = tdfunc.stack([a, b.set("d", NonTensorData({"k": 1}))])
    assert out["d"] == [{}, {"k": 1}]
    assert out["d"][0] is one
    both = tdfunc.stack([TensorDict({"d": NonTensorStack(v)}, 1) for v in (one, two)])
    assert both["d"] == [[{}], [{}]]
    assert both["d"][0][0] is one
    assert both["d"][1][0] is two
    assert out.keys(True) == ("d",)


# Made of lists


def test_lists_of_texts_tell_the_batch_size_when_it_is_inferred() -> None:
    td = tdfunc.from_dict({"q": ["a", "b", "c", "d"]}, batch_dims=1)
    assert (td.batch_size, td.keys(), td[1]["q"]) == ((4,), ("q",), "b")
    with pytest.raises(BatchSizeError) as caught:
        tdfunc.from_dict({"q": ["a", "b"], "x": torch.zeros(4)}, batch_dims=1)
    assert "[2]" in str(caught.value)
    assert "[4]" in str(caught.value)
    assert TensorDict({"s": "abc"}, 3)["s"] == "abc"
    assert same(tdfunc.from_dict({"q": [1, 2, 3]})["q"], T([1, 2, 3]))


def test_lists_make_rows_as_deep_as_the_batch() -> None:
    nested = [["a", "b"], ["c", "d"], ["e", "f"]]
    assert TensorDict({"s": nested}, [3, 2])["s"] == nested
    assert TensorDict({"s": ["a", "b"]}, [2, 3])["s"] == [["a"] * 3, ["b"] * 3]
    assert TensorDict({"s": np.array(nested)}, [3, 2])["s"] == nested
    with pytest.raises(InvalidLeafError, match="NonTensorData"):
        TensorDict({"s": ["a", "b"]})
    with pytest.raises(BatchSizeError, match=r"td\['s'\]"):
        TensorDict({"s": ["a", "b"]}, 3)
    assert tdfunc.fromkeys(["a", "b"], ["x", "y"], batch_size=2)["b"] == ["x", "y"]


def test_values_are_the_very_objects() -> None:
    path, text = FilePath("x"), "some text"
    td = TensorDict({"o": [OBJECT, path, text], "s": text}, 3)
    assert td["o"][0] is OBJECT
    assert td[1]["o"] is path
    assert td[None][0][2]["o"] is text
    assert td[0]["s"] is text


# Reading


def test_codes_that_were_computed_with_raise_when_read() -> None:
    td = Case((3,)).tree.exclude("m")
    for spoil in (
        lambda x: x + 1,
        lambda x: x * 2,
        lambda x: x.float(),
        lambda x: -x,
        torch.zeros_like,
    ):
        out = pytree.tree_map(spoil, td)
        with pytest.raises(OperandError, match=r"codes of these texts.*at td\['s'\]"):
            out["s"]
    other = TensorDict({"s": ["p", "q", "r"], "x": td["x"], "n": td["n"]}, 3)
    leaves, _ = pytree.tree_flatten(td)
    _, spec = pytree.tree_flatten(other)
    with pytest.raises(OperandError, match="of another tree"):
        pytree.tree_unflatten(leaves, spec)["s"]


def test_rows_can_not_be_read_inside_transforms() -> None:
    td = TensorDict({"s": ["a", "b"], "x": ramp(2)}, 2)
    with pytest.raises(OperandError, match="can not be read here"):
        torch.vmap(lambda t: t["s"])(td)
    with pytest.raises(OperandError, match="can not be read here"):
        torch.vmap(lambda t: t.to_dict())(td)
    out = torch.vmap(lambda t: t.at[()].set({"x": t["x"] * 2}))(td)
    assert out["s"] == ["a", "b"]
    written = torch.vmap(lambda t, i: t.at[i].set({"s": "new"}))(
        td[None].expand(2, 2), T([0, 1])
    )
    assert written["s"] == [["new", "b"], ["a", "new"]]


# Structure


def test_keys_and_filters() -> None:
    td = Case((3,)).tree
    assert td.keys(leaves_only=True) == ("x",)
    assert td.keys(True, True) == ("x", ("n", "y"))
    assert td.filter_non_tensor().keys(True) == ("x", "n", ("n", "y"), "m", ("m", "g"))
    assert not TensorDict({"s": ["a"]}, 1).is_empty()
    left, right = tdfunc.partition(td, "integer")
    assert left.keys(True) == ()
    assert right.keys(True) == td.keys(True)
    assert tdfunc.partition(td, {"s": True, "x": True})[0].keys(True) == ("x",)
    flat = td.flatten_keys()
    assert alike(flat["n.r"], Case((3,)).inner)
    assert alike(flat.unflatten_keys()["n", "r"], Case((3,)).inner)
    one, rest = td.split_keys(["s"])
    assert_equal(tdfunc.merge(rest, one), td)
    assert td.drop("s", ("n", "r")).keys(True, True) == td.keys(True, True)


def test_update_takes_rows_as_they_are_and_checks_them() -> None:
    rows = NonTensorStack([1, 2], {"k": 1})
    td = TensorDict({"x": ramp(2)}, 2).update(TensorDict({"l": rows}, 2))
    assert td["l"] == [[1, 2], {"k": 1}]
    with pytest.raises(BatchSizeError, match=r"td\['l'\]"):
        TensorDict({"x": ramp(3)}, 3).update(td.select("l"))
    taken = torch.vmap(lambda a, b: a.update(b))(td.drop("l"), td.select("l"))
    assert taken["l"] == [[1, 2], {"k": 1}]


# Conversions


def test_arrays_go_there_and_back() -> None:
    case = Case((3,))
    td = case.tree.exclude("m")
    arrays = td.to_numpy()
    assert arrays["s"].dtype == object
    assert arrays["s"].tolist() == case.outer.tolist()
    flat = TensorDict({"s": case.outer, "x": ramp(3)}, 3)
    assert_equal(tdfunc.from_numpy(flat.to_numpy(), batch_size=3), flat)
    struct = flat.to_struct_array()
    assert struct.dtype == [("s", object), ("x", "f4")]
    assert_equal(tdfunc.from_struct_array(struct), flat)
    assert case.tree.to_numpy()["m"]["g"].tolist() == TABLE.tolist()
    with pytest.raises(OperandError, match=r"td\['m', 'g'\]"):
        case.tree.exclude(("m", "t")).to_struct_array()
    assert alike(td.to_dict()["s"], case.outer)
    pair = TensorDict({"s": ["a", "b"]}, 2)
    assert_equal(tdfunc.from_dict(pair.to_dict(), batch_size=2), pair)
    assert pair.to_namedtuple().s == ["a", "b"]
    assert tdfunc.to_pytree(*tdfunc.from_pytree({"k": [pair]}))["k"][0] is not None


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("size", [(3,), (), (0,), (0, 2)], ids=str)
def test_states_hold_rows_and_unbatched_tensors(
    size: tuple[int, ...], *, flatten: bool
) -> None:
    td = Case(size).tree
    buffer = io.BytesIO()
    torch.save(td.state_dict(flatten=flatten), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    like = td.zeros_like().set(("m", "g"), unbatched(torch.zeros(7)))
    back = like.load_state_dict(state)
    assert_equal(back, td)
    if not size:
        return  # one value for every row of none is a static
    with pytest.raises(
        StructureError, match=r"td\['s'\] is missing.*td\['s'\] is extra"
    ):
        td.set("s", "static").load_state_dict(state)
    with pytest.raises(StructureError, match=r"td\['m', 'g'\] is missing"):
        td.set(("m", "g"), "static").load_state_dict(state)
    loose = td.set("s", "static").load_state_dict(state, strict=False)
    assert loose["s"] == "static"
    old = {
        **state,
        "_tdfunc": {k: v for k, v in state["_tdfunc"].items() if k != "rows"},
    }
    with pytest.raises(StructureError, match=r"td\['s'\] is missing"):
        td.load_state_dict(old)


def test_trees_with_rows_are_saved_and_loaded_without_pickle() -> None:
    td = TensorDict({"s": ["a", None, 2.5], "x": ramp(3), "g": unbatched(TABLE)}, 3)
    buffer = io.BytesIO()
    torch.save(td, buffer)
    buffer.seek(0)
    assert_equal(torch.load(buffer, weights_only=True), td)


def test_structures_with_rows_are_written_as_json() -> None:
    td = TensorDict({"s": ["a", None, "a"], "n": {"t": "one"}, "x": ramp(3)}, 3)
    leaves, spec = pytree.tree_flatten(td)
    text = pytree.treespec_dumps(spec)
    json.loads(text)
    assert_equal(pytree.tree_unflatten(leaves, pytree.treespec_loads(text)), td)
    for key, value in (("o", [OBJECT] * 3), ("g", unbatched(TABLE))):
        with pytest.raises(OptionError, match=rf"td\['{key}'\]"):
            pytree.treespec_dumps(pytree.tree_structure(td.set(key, value)))


# Unbatched tensors


def test_unbatched_tensors_go_along_whole() -> None:
    td = TensorDict({"x": ramp(3), "g": unbatched(TABLE)}, 3)
    for out in (td[0], td[None], td * 2, td.expand(2, 3), tdfunc.cat([td, td])):
        assert out["g"] is TABLE
    assert td.to(torch.float64)["g"].dtype == torch.float64
    assert td.clone()["g"].data_ptr() != TABLE.data_ptr()
    assert same(td.clone()["g"], TABLE)
    got = torch.vmap(lambda t: t["x"] * t["g"].sum())(td)
    assert same(got, td["x"] * TABLE.sum())
    grads = torch.func.grad(lambda t: (t["x"] * t["g"].sum()).sum())(td)
    assert grads["g"] is TABLE
    assert same(grads["x"], TABLE.sum().expand(3))
    with pytest.raises(InvalidLeafError, match="only tensors"):
        unbatched("text")  # pyright: ignore[reportArgumentType]


def test_a_module_is_called_with_the_tensors_only() -> None:
    module = torch.nn.Linear(2, 2)
    params = tdfunc.from_module(module)
    noted = [params.set("note", text) for text in ("one", "other")]
    rows = tdfunc.stack(noted)
    assert rows["note"] == ["one", "other"]
    call: Any = tdfunc.func.functional_call
    expected = module(ramp(3, 2))
    assert same(call(module, rows[0], ramp(3, 2)), expected)
    both = torch.vmap(lambda p: call(module, p, ramp(3, 2)))(rows)
    torch.testing.assert_close(both, torch.stack([expected] * 2))


# The table of awkward trees with rows


@cases(table=ROW_CASES)
def test_awkward_trees_read_what_was_put_in(case: TreeCase) -> None:
    td = case.tree
    assert_valid(td)
    for path, rows in rows_in(case.entries).items():
        assert td[path] == rows
    for path, x in case.leaves.items():
        assert td[path] is x
    assert td.names == case.names


# name: an operation that returns the tree itself, whatever the tree
ROUND_TRIPS: dict[str, Callable[[TensorDict], TensorDict]] = {
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "pickle by protocol 2": lambda t: pickle.loads(pickle.dumps(t, 2)),
    "deepcopy": copy.deepcopy,
    "clone": TensorDict.clone,
    "pytree": lambda t: pytree.tree_unflatten(*pytree.tree_flatten(t)),
    "optree": lambda t: os_trees.tree_unflatten(*os_trees.tree_flatten(t)[::-1]),
    "state": lambda t: t.load_state_dict(t.state_dict()),
    "nested state": lambda t: t.load_state_dict(t.state_dict(flatten=False)),
    "batch size": lambda t: t.with_batch_size([]).with_batch_size(t.batch_size),
    "index": lambda t: t[...],
    "None": lambda t: t[None][0],
    "reshape": lambda t: t.unsqueeze(0).flatten().reshape(t.batch_size),
    "expand": lambda t: t.expand(2, *t.batch_size)[1],
    "stack": lambda t: tdfunc.stack([t, t])[0],
    "times one": lambda t: t * 1,
    "ravel": lambda t: tdfunc.ravel(t)[1](tdfunc.ravel(t)[0]),
    "partition": lambda t: tdfunc.combine(*tdfunc.partition(t, "floating")[::-1]),
    "update": lambda t: TensorDict({}, t.batch_size).update(t),
    "update itself": lambda t: t.update(t.clone()),
    "construct": TensorDict,
    "at.set": lambda t: t.at[...].set(t.clone()),
    "where": lambda t: tdfunc.where(torch.ones(t.batch_size) > 0, t, t.clone()),
    "roll": lambda t: t.roll(1).roll(-1),
    "pad": lambda t: t.pad([1, 1])[1:-1] if t.batch_dims else t,
    "flatten_keys": lambda t: t.rename_keys({k: ("z", k) for k in t.keys()})["z"],  # noqa: SIM118
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
@cases(table=ROW_CASES)
def test_awkward_trees_survive_every_route(case: TreeCase, name: str) -> None:
    td = case.tree
    if name == "ravel" and not any(x.is_floating_point() for x in case.leaves.values()):
        return
    out = assert_pure(ROUND_TRIPS[name], td)
    assert_valid(out)
    # A plain object does not equal its copy.
    copied = name in {"deepcopy", "pickle", "pickle by protocol 2"}
    if not (copied and case.name == "rows of any values"):
        assert_equal(out, td)
        assert out.equal(td)


def test_rows_of_equal_lists_and_dicts_are_equal() -> None:
    def make(*values: Any) -> TensorDict:
        return TensorDict({"t": NonTensorStack(*values)}, len(values))

    def rows() -> TensorDict:
        return make([1], {"a": [2.0], "b": "x"}, np.ones(2), [math.nan], "s", (0.0,))

    td, again = rows(), rows()
    assert td.equal(again)
    assert td.equal(pickle.loads(pickle.dumps(td)))
    assert (td == again)["t"].all()
    assert not (td != again)["t"].any()
    assert td.isclose(again)["t"].all()
    assert td["t"][0] is not again["t"][0]
    other = make([1], {"b": "x", "a": [2.0]}, np.zeros(2), [1.0], "s", (-0.0,))
    assert (td == other)["t"].tolist() == [True, True, False, False, True, True]
    # Of one table too.
    twice = make([1], [2], [1])
    assert (twice == twice.flip(0))["t"].all()
    assert (twice == twice[torch.tensor([1, 1, 1])])["t"].tolist() == [0, 1, 0]
    many = [[i, "x"] for i in range(5000)]
    assert make(*many).equal(make(*[list(value) for value in many]))
    assert not make(*many).equal(make(*reversed(many)))


def test_unbatched_tensors_that_differ_are_not_dropped() -> None:
    td = TensorDict({"a": ramp(3), "n": {"t": ["p", "q", "r"]}}, 3)
    a = td.set(("n", "u"), unbatched(torch.ones(2)))
    b = td.set(("n", "u"), unbatched(torch.zeros(2)))
    mask = T([True, False, True])
    cases: list[Callable[[], Any]] = [
        lambda: a.where(mask, b),
        lambda: a.where(a == b, b),
        lambda: a.drop(("n", "t")).where(mask, b.drop(("n", "t"))),
        lambda: a.at[0].set(b[0]),
        lambda: a.at[0].set({"n": b["n"][0]}),
        lambda: tdfunc.stack([a, b]),
    ]
    for case in cases:
        with pytest.raises(StructureError, match="other unbatched tensors") as caught:
            case()
        assert "'n', 'u'" in str(caught.value)
    again = td.set(("n", "u"), unbatched(torch.ones(2)))
    assert a.where(mask, again)["n", "u"].tolist() == [1, 1]
    assert a.at[0].set(again[0]).equal(a)
    assert a.where(mask, b.with_statics(a))["n", "u"].tolist() == [1, 1]
    assert (a.with_statics(b) + a)["n", "u"].tolist() == [0, 0]


def test_functions_of_unbatched_tensors_keep_them_unbatched() -> None:
    for size in (3, 5):
        td = TensorDict({"a": ramp(3), "u": unbatched(ramp(size))}, 3)
        new = td.update_with({"u": lambda x: x + 1})
        assert new[0]["u"].tolist() == (ramp(size) + 1).tolist()
        text = td.update_with({"u": lambda _: "x"})
        assert text["u"] == "x"
        both = tdfunc.merge(td.select("u"), td, on_conflict=torch.add)
        assert both[0]["u"].tolist() == (ramp(size) * 2).tolist()


def test_what_does_not_fit_names_what_would() -> None:
    with pytest.raises(BatchSizeError) as caught:
        TensorDict({"t": ["a", "b"]}, 3)
    assert "NonTensorData(value)" in str(caught.value)
    assert "batch_size=[2] makes rows of it" in str(caught.value)
    assert TensorDict({"t": ["a", "b"]}, [2])["t"] == ["a", "b"]
    td = TensorDict({"a": ramp(3), "n": {"u": unbatched(ramp(2))}}, 3)
    tries: list[Callable[[Any], Any]] = [
        lambda v: td.replace(n={"u": v}),
        lambda v: td.update({"n": {"u": v}}),
        lambda v: td.set(("n", "u"), v),
    ]
    for write in tries:
        with pytest.raises(BatchSizeError) as caught:
            write(ramp(2))
        text = str(caught.value)
        assert "td['n', 'u']" in text
        assert "td.set(('n', 'u'), unbatched(value))" in text
        assert write(unbatched(ramp(2)))[0]["n", "u"].shape == (2,)


def test_tables_hold_what_their_rows_use_when_trees_travel() -> None:
    count = 20000
    names = [f"value number {i}" for i in range(count)]
    td = TensorDict(
        {"t": names, "l": NonTensorStack(*[[i] for i in range(count)])}, count
    )
    few = td[torch.tensor([[7, 5], [7, 3]])]
    for protocol in (2, 5):
        data = pickle.dumps(few, protocol)
        assert len(data) < 2000
        back = pickle.loads(data)
        assert back["t"] == few["t"]
        assert back.equal(few)
        assert len(pickle.dumps(td[:0], protocol)) < 2000
    saved = io.BytesIO()
    torch.save(few, saved)
    assert saved.tell() < 10000
    copied = copy.deepcopy(few)
    assert copied["l"] == few["l"]
    assert copied["l"][0][0] is not few["l"][0][0]
    assert len(copied._statics.values[1].values) == 3
    # Everything of a table in use is sent as it is, shared by all that have it.
    assert pickle.loads(pickle.dumps([td, td.clone()]))[1].equal(td)
    wrong = pytree.tree_map(lambda x: x + 1, few)
    for tree in (pickle.loads(pickle.dumps(wrong)), copy.deepcopy(wrong)):
        with pytest.raises(OperandError, match="not those that were stored"):
            tree["t"]


def test_joins_do_not_carry_large_tables_along() -> None:
    td = TensorDict({"t": [f"value {i}" for i in range(5000)]}, 5000)
    other = TensorDict({"t": ["new"]}, 1)
    joined: Any = tdfunc.cat([td[:1], other])
    assert joined["t"] == ["value 0", "new"]
    assert len(joined._statics.values[0].values) == 2
    assert (td[:2] == TensorDict({"t": ["value 0", "x"]}, 2))["t"].tolist() == [1, 0]
    assert td[3].where(T(False), TensorDict({"t": "z"}))["t"] == "z"
    three = td[:3]
    for i in range(300):
        three = three.at[i % 3].set({"t": f"n{i}"})
    assert three["t"] == ["n297", "n298", "n299"]
    assert len(three._statics.values[0].values) < 100


def test_unbatched_tensors_of_a_transform_that_is_over_are_named() -> None:
    def mapped(x: Any) -> Any:
        td = TensorDict({"n": {"u": unbatched(x * 2)}})
        assert td["n", "u"].shape == (2,)
        return td

    td: Any = torch.vmap(mapped)(torch.ones(3, 2))
    for read in (lambda: td["n", "u"], lambda: td["n"]["u"], td.to_dict):
        with pytest.raises(OperandError, match="transform that is over") as caught:
            read()
        assert "'u'" in str(caught.value)
    outer = ramp(2)
    kept: Any = torch.vmap(lambda x: TensorDict({"u": unbatched(outer), "x": x}))(
        ramp(3)
    )
    assert kept["u"] is outer

    def both(x: Any) -> Any:
        return torch.vmap(lambda y: TensorDict({"u": unbatched(x), "y": y}))(ramp(2))[
            "u"
        ]

    assert torch.vmap(both)(ramp(3)).tolist() == ramp(3).tolist()


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "stack": lambda a, b: torch.stack([a, b]),
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: a.where(T([True, False, True]), b),
    "where by a tree": lambda a, b: a.where(a == b, b),
    "at": lambda a, b: a.at[0].set(b[1]),
    "at many": lambda a, b: a.at[T([0, 2])].set(b[1:]),
    "at text": lambda a, _: a.at[0].set({"t": "new"}),
    "at get": lambda a, _: a.at[T([0, 7])].get(fill_value=0),
    "equals": lambda a, b: a == b,
    "pad": lambda a, _: a.pad([1, 1]),
    "set": lambda a, _: a.set("t", ["k", "l", "k"]),
    "lazy": lambda a, b: tdfunc.lazy_stack([a, b]).densify(),
}


@pytest.mark.parametrize("name", JOINS)
def test_what_makes_and_joins_texts_compiles(name: str) -> None:
    fn = JOINS[name]
    compiled = torch.compile(fn, fullgraph=True, backend="eager")
    a = TensorDict({"a": ramp(3), "t": ["p", "q", "r"], "s": "one"}, 3)
    b = TensorDict({"a": ramp(3), "t": ["r", "q", "x"], "s": "two"}, 3)
    for left, right in ((a, b), (b, a), (b, b), (a, a.set("t", ["y", "p", ""]))):
        # Tables are constants: what is compiled for some must not serve others.
        got, expected = compiled(left, right), fn(left, right)
        assert_valid(got)
        assert got.equal(expected)
        assert got.to_dict().keys() == expected.to_dict().keys()
        if name != "equals":
            assert got["t"] == expected["t"]


def test_joining_texts_compiles_with_aot_autograd() -> None:
    fn: Any = torch.compile(
        lambda a, b: tdfunc.stack([a, b]), fullgraph=True, backend="aot_eager"
    )
    td = TensorDict({"a": ramp(3), "t": ["p", "q", "r"]}, 3)
    other = td.set("t", ["r", "x", "y"])
    assert fn(td, other).equal(tdfunc.stack([td, other]))
