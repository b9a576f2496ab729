"""New trees by shape: torch's creation functions on every leaf, schemas, keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import (
    BatchSizeError,
    InvalidKeyError,
    InvalidLeafError,
    OperandError,
    OptionError,
)
from tests.cases import Case, cases, check, fingerprint, leaves_of, ramp, same

FILLED = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
}
RANDOM = {"rand_like": torch.rand_like, "randn_like": torch.randn_like}

# torch's own functions, which type checkers think take tensors only.
through_torch: Any = torch


@pytest.mark.parametrize("name", FILLED)
@cases()
def test_filled_trees_are_torchs_leaf_by_leaf(case: Case, name: str) -> None:
    td = case.tree
    before = fingerprint(case.leaves.values())
    for out in (getattr(td, name)(), getattr(torch, name)(td)):
        check(out, case.batch, case.mapped(FILLED[name]), case.statics)
        assert out.names == case.names
        assert out._schema is td._schema
    out = getattr(torch, name)(td, dtype=torch.float64, device="meta")
    for leaf in out.values(True, True):
        assert (leaf.dtype, leaf.device.type) == (torch.float64, "meta")
    assert fingerprint(case.leaves.values()) == before
    assert getattr(tdfunc, name) is getattr(TensorDict, name)


@cases()
def test_full_and_empty(case: Case) -> None:
    td = case.tree
    expected = case.mapped(lambda x: through_torch.full_like(x, 1))
    for out in (
        td.full_like(1),
        through_torch.full_like(td, 1),
        through_torch.full_like(td, fill_value=1),
    ):
        check(out, case.batch, expected, case.statics)
    for out in (td.empty_like(), through_torch.empty_like(td)):
        assert out.batch_size == case.batch
        found = leaves_of(out)
        for path, x in case.leaves.items():
            assert (found[path].shape, found[path].dtype) == (x.shape, x.dtype)
            assert found[path] is not x


@pytest.mark.parametrize("name", RANDOM)
@cases()
def test_random_trees_draw_leaf_by_leaf_from_the_generator(
    case: Case, name: str
) -> None:
    td = case.tree
    for call in (getattr(tdfunc, name), getattr(torch, name)):
        a, b = [torch.Generator().manual_seed(3) for _ in range(2)]
        out = call(td, generator=a, dtype=torch.float64)
        expected = case.mapped(
            lambda x, b=b: RANDOM[name](x, generator=b, dtype=torch.float64)
        )
        check(out, case.batch, expected, case.statics)
    torch.manual_seed(5)
    first = getattr(td, name)(dtype=torch.float32)
    torch.manual_seed(5)
    assert first.equal(getattr(td, name)(dtype=torch.float32))


def test_integers_are_not_drawn_and_the_leaf_is_named() -> None:
    with pytest.raises(RuntimeError) as caught:
        TensorDict({"n": {"i": 1}}).rand_like()
    assert caught.value.__notes__ == ["tdfunc: at td['n', 'i']"]


def test_creation_maps_and_compiles() -> None:
    td = TensorDict({"a": ramp(3, 2), "n": {"b": ramp(3)}}, 3)

    def fn(td: TensorDict) -> TensorDict:
        return (
            td.zeros_like()
            + through_torch.ones_like(td)
            + td.full_like(2)
            + td.empty_like()
        )

    def safe(td: TensorDict) -> TensorDict:
        return (
            td.zeros_like()
            + through_torch.ones_like(td)
            + through_torch.full_like(td, 2)
        )

    assert fn(td).batch_size == (3,)
    for changed in (
        torch.vmap(safe)(td),
        torch.compile(safe, fullgraph=True, backend="eager")(td),
    ):
        assert changed.equal(td * 0 + 3)
    drawn = torch.vmap(lambda t: t.rand_like(), randomness="different")(td)
    assert drawn.batch_size == (3,)
    assert drawn["a"].unique().numel() == 6
    compiled = torch.compile(lambda t: t.randn_like(), fullgraph=True, backend="eager")
    assert compiled(td).batch_size == (3,)
    grads = torch.func.grad(lambda t: (t * t.ones_like())["a"].sum())(td)
    assert grads.equal(
        TensorDict({"a": torch.ones(3, 2), "n": {"b": td["n", "b"] * 0}}, 3)
    )


def test_options_that_torch_has_and_trees_do_not_are_refused() -> None:
    with pytest.raises(OperandError, match="requires_grad"):
        through_torch.zeros_like(TensorDict({"a": ramp(2)}), requires_grad=True)


def test_from_schema_makes_zeros() -> None:
    shapes: Any = {
        "b": ([3], torch.int64),
        ("n", "x"): (2, torch.float64),
        "n": {"y": ((), torch.bool), ("m", "z"): (torch.Size([0, 2]), torch.float32)},
    }
    td = tdfunc.from_schema(shapes, batch_size=(4, 2), names=["t", None])
    check(
        td,
        (4, 2),
        {
            ("b",): torch.zeros(4, 2, 3, dtype=torch.int64),
            ("n", "x"): torch.zeros(4, 2, 2, dtype=torch.float64),
            ("n", "y"): torch.zeros(4, 2, dtype=torch.bool),
            ("n", "m", "z"): torch.zeros(4, 2, 0, 2),
        },
        {},
    )
    assert td.names == ("t", None)
    assert TensorDict.from_schema({}, batch_size=3).batch_size == (3,)
    meta = tdfunc.from_schema({"x": ([1], torch.float32)}, device="meta")
    assert meta.device == torch.device("meta")


@pytest.mark.parametrize(
    "value", [[3], torch.float32, ([3], "f4"), ([3], torch.float32, 1), None], ids=repr
)
def test_from_schema_of_what_is_no_pair_is_refused(value: Any) -> None:
    with pytest.raises(InvalidLeafError) as caught:
        tdfunc.from_schema({"n": {"x": value}})
    text = str(caught.value)
    assert "at td['n', 'x'] - expected a pair of a shape and a dtype" in text
    assert f"got {value!r}" in text


def test_from_schema_refuses_shapes_keys_and_others() -> None:
    pair = ([2], torch.float32)
    with pytest.raises(OptionError, match=r"td\['x'\] has a negative dim"):
        tdfunc.from_schema({"x": ([-1], torch.float32)})
    with pytest.raises(InvalidLeafError, match="a tree is made of a mapping"):
        tdfunc.from_schema([pair])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidKeyError, match=r"comes twice - at td\['a'\]"):
        tdfunc.from_schema({"a": pair, ("a",): pair})
    for twice in ({"a": pair, ("a", "b"): pair}, {("a", "b"): pair, "a": pair}):
        with pytest.raises(InvalidKeyError, match=r"comes twice.* - at td\['a'\]"):
            tdfunc.from_schema(twice)
    with pytest.raises(InvalidKeyError, match="1"):
        tdfunc.from_schema({1: pair})


def test_fromkeys_shares_the_value() -> None:
    x = ramp(3, 2)
    td = tdfunc.fromkeys(["b", ("n", "x"), ("n", "y"), "a"], x, batch_size=3)
    assert td.keys(True, True) == ("b", ("n", "x"), ("n", "y"), "a")
    assert all(leaf is x for leaf in td.values(True, True))
    zeros = TensorDict.fromkeys(["a", "b"])
    assert zeros["a"] is zeros["b"]
    assert zeros["a"].dtype == torch.int64
    assert tdfunc.fromkeys(["a"], "text")["a"] == "text"
    assert tdfunc.fromkeys(["a"], {"x": 1})["a", "x"] == 1
    assert tdfunc.fromkeys(["a"], td, batch_size=3)["a"].equal(td)
    assert tdfunc.fromkeys([], batch_size=2).batch_size == (2,)
    with pytest.raises(BatchSizeError):
        tdfunc.fromkeys(["a"], x, batch_size=4)
    with pytest.raises(InvalidKeyError, match="a key comes twice"):
        tdfunc.fromkeys(["a", "a"])


NEW = {
    "new_zeros": ((), 0),
    "new_ones": ((), 1),
    "new_full": ((3,), 3),
    "new_empty": ((), None),
}


@pytest.mark.parametrize("name", NEW)
@cases()
def test_new_trees_have_the_entries_and_another_batch_size(
    case: Case, name: str
) -> None:
    args, number = NEW[name]
    tensors = list(case.leaves.values())
    before = fingerprint(tensors)
    dims = len(case.batch)
    for size in ((), (4,), (2, 3)):
        out = getattr(case.tree, name)(size, *args)
        if number is None:
            out = out.full_like(3)

        def expected(x: torch.Tensor, new: Any = size) -> torch.Tensor:
            shape = (*new, *x.shape[dims:])
            return torch.full(shape, 3 if number is None else number, dtype=x.dtype)

        check(out, size, case.mapped(expected), case.statics)
        assert out.names is None
        for path, batch in case.batches.items():
            assert (out[path] if path else out).batch_size == (*size, *batch[dims:])
    assert fingerprint(tensors) == before


def test_new_trees_take_options_and_go_through_transforms() -> None:
    td = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}}, 2)
    assert td.new_zeros(4, 2).batch_size == (4, 2)
    assert td.new_ones(4, dtype=torch.int64).dtype == torch.int64
    assert td.new_empty([4], device="meta").is_meta
    with pytest.raises(OptionError):
        td.new_zeros("four")  # pyright: ignore[reportArgumentType]

    def use(t: TensorDict) -> TensorDict:
        return t.new_full([2], 7.0)

    expected = {("x",): torch.full((2, 3), 7.0), ("n", "y"): torch.full((2,), 7.0)}
    check(torch.compile(use, fullgraph=True, backend="eager")(td), (2,), expected)
    out = torch.vmap(use)(td)
    check(out, (2, 2), {k: torch.stack([x, x]) for k, x in expected.items()})


def test_the_peer_makes_the_same_new_trees() -> None:
    peer = pytest.importorskip("tensordict")
    theirs = peer.TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}}, 2).new_ones(4)
    ours = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}}, 2).new_ones(4)
    for path in (("x",), ("n", "y")):
        assert same(ours[path], theirs[path])
    assert ours.batch_size == theirs.batch_size
