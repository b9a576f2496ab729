"""Trees of draws: a stream for each path, whatever else is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tdfunc import TensorDict, lazy_stack, random
from tdfunc.errors import OperandError, OptionError
from tests.cases import Case, cases, check, fingerprint, leaves_of
from tests.random import oracle

KEY = random.key(11)
LIKE = {"normal_like": random.normal, "uniform_like": random.uniform}
FLOATING = cases(lambda c: all(x.is_floating_point() for x in c.leaves.values()))


@pytest.mark.parametrize("name", LIKE)
@FLOATING
def test_every_leaf_has_its_own_stream(case: Case, name: str) -> None:
    td = case.tree
    before = fingerprint(case.leaves.values())

    out = getattr(random, name)(KEY, td)

    # Each leaf is drawn from one key, that of its path alone: of a tree without any
    # other entry.
    expected = {}
    for path, leaf in case.leaves.items():
        alone: Any = leaf.detach()
        for key in reversed(path):
            alone = {key: alone}
        single = getattr(random, name)(KEY, TensorDict(alone, ()))
        expected[path] = single[path]
        assert expected[path].shape == leaf.shape
    check(out, case.batch, expected, case.statics)
    assert out.names == case.names
    assert out._schema is td._schema
    assert before == fingerprint(case.leaves.values())
    assert not any(leaf.requires_grad for leaf in leaves_of(out).values())


def test_the_key_of_a_path_is_a_hash_of_it() -> None:
    """What is written to be stable is computed here a second time."""
    import hashlib

    text = b"".join(len(k).to_bytes(8, "little") + k for k in (b"n", b"w"))
    digest = hashlib.blake2b(text, digest_size=8).digest()
    key = oracle.child(KEY.tolist(), int.from_bytes(digest, "little"), 3)

    found = random.normal_like(KEY, TensorDict({"n": {"w": torch.zeros(3)}}))

    assert torch.equal(random.normal(torch.tensor(key), 3), found["n", "w"])


def test_entries_do_not_depend_on_others_nor_on_order() -> None:
    a, b, c = torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 1)
    td = TensorDict({"a": a, "n": {"b": b, "c": c}}, 2)
    turned = TensorDict({"n": {"c": c, "b": b}, "more": a, "a": a}, 2)
    flat = TensorDict({"a": a}, ())
    one, two = random.normal_like(KEY, td), random.normal_like(KEY, turned)

    for path in ("a", ("n", "b"), ("n", "c")):
        assert torch.equal(one[path], two[path])
    assert torch.equal(one["a"], random.normal_like(KEY, flat)["a"])
    assert not torch.equal(two["a"], two["more"])
    assert list(two.keys()) == ["n", "more", "a"]


def test_paths_that_read_alike_have_other_streams() -> None:
    x = torch.zeros(8)
    trees = [{"a": {"b": x}}, {"a.b": x}, {"ab": x}, {"b": {"a": x}}, {"a": {"b.": x}}]

    drawn = [
        next(iter(leaves_of(random.normal_like(KEY, TensorDict(t))).values()))
        for t in trees
    ]

    assert 5 == len(torch.stack(drawn).unique(dim=0))


def test_dtypes_and_devices() -> None:
    td = TensorDict(
        {
            "f16": torch.zeros(3, dtype=torch.float16),
            "f64": torch.zeros(3, dtype=torch.float64),
            "c64": torch.zeros(3, dtype=torch.complex64),
        }
    )
    out = random.normal_like(KEY, td)

    assert [x.dtype for x in td.values()] == [x.dtype for x in out.values()]
    ints = TensorDict({"i": torch.zeros(3, dtype=torch.int64), "f": torch.zeros(3)})
    cast = random.normal_like(KEY, ints, dtype=torch.float64, device="meta")
    assert {(torch.float64, "meta")} == {
        (x.dtype, x.device.type) for x in cast.values()
    }
    meta = TensorDict({"x": torch.zeros(3, device="meta")})
    assert "meta" == random.uniform_like(KEY, meta)["x"].device.type
    assert "cpu" == random.uniform_like(KEY, meta, device="cpu")["x"].device.type


@pytest.mark.parametrize(
    ("name", "leaf"),
    [
        ("normal_like", torch.zeros(2, dtype=torch.int64)),
        ("normal_like", torch.zeros(2, dtype=torch.bool)),
        ("uniform_like", torch.zeros(2, dtype=torch.int32)),
        ("uniform_like", torch.zeros(2, dtype=torch.complex64)),
    ],
    ids=str,
)
def test_leaf_that_can_not_be_drawn_is_named(name: str, leaf: torch.Tensor) -> None:
    td = TensorDict({"a": torch.zeros(2), "n": {"i": leaf}})

    with pytest.raises(OptionError) as caught:
        getattr(random, name)(KEY, td)

    text = str(caught.value)
    for part in ("td['n', 'i']", str(leaf.dtype), "a floating dtype", "dtype=torch."):
        assert part in text


def test_rows_of_values_are_kept() -> None:
    td = TensorDict({"x": torch.zeros(2, 3), "t": ["a", "b"]}, 2)

    out = random.normal_like(KEY, td)

    assert ["a", "b"] == out["t"]
    assert torch.equal(out["x"], random.normal_like(KEY, td.drop("t"))["x"])


def test_members_of_lazy_stacks_have_their_own_streams() -> None:
    one = TensorDict({"a": torch.zeros(3), "b": torch.zeros(1)})
    two = TensorDict({"a": torch.zeros(3)})
    three = TensorDict({"a": torch.zeros(2)})
    stack = lazy_stack([one, two, three])
    td = TensorDict(
        {"x": torch.zeros(3, 2), "s": stack, "z": lazy_stack([two, two, one])}, 3
    )

    out = random.normal_like(KEY, td)
    less = random.normal_like(KEY, td.drop("z"))

    members = [*out["s"].unbind(0), *out["z"].unbind(0)]
    assert [(3,), (3,), (2,), (3,), (3,), (3,)] == [m["a"].shape for m in members]
    heads = torch.stack([m["a"][:2] for m in members])
    assert 6 == len(heads.unique(dim=0))
    assert torch.equal(out["x"], less["x"])
    for member, other in zip(out["s"].unbind(0), less["s"].unbind(0), strict=True):
        assert torch.equal(member["a"], other["a"])
    alone = random.normal_like(KEY, stack).unbind(0)
    assert 3 == len({tuple(m["a"][:2].tolist()) for m in alone})


def test_deep_trees() -> None:
    tree: Any = torch.zeros(2)
    for i in range(1500):
        tree = {f"k{i}": tree}
    td = TensorDict(tree)

    out = random.normal_like(KEY, td)

    assert bool(next(iter(out._leaves)).any())


@pytest.mark.parametrize("name", ["normal_like", "uniform_like"])
@pytest.mark.parametrize("value", [{"a": torch.ones(2)}, torch.ones(2), None])
def test_only_trees_are_taken(name: str, value: Any) -> None:
    with pytest.raises(OperandError, match=f"{name} takes a tree") as raised:
        getattr(random, name)(random.key(0), value)

    assert type(value).__name__ in str(raised.value)
