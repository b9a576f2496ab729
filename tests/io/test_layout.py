"""Trees to levels and back, without files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tdfunc import LazyStackedTensorDict, TensorClass, TensorDict, lazy_stack, unbatched
from tdfunc.errors import (
    BatchSizeError,
    InvalidLeafError,
    MissingKeyError,
    PathThroughLeafError,
)
from tdfunc.io._layout import (
    Array,
    Jagged,
    Level,
    Rows,
    Static,
    iter_arrays,
    level_at,
    levels_of,
    narrowed,
    tree_of,
)
from tests.cases import CASES, ROW_CASES, Case, cases, check, fingerprint, ramp


def ragged():
    members = [
        TensorDict({"x": ramp(2, n), "only": "a" * n}, batch_size=2) for n in (1, 3)
    ]
    return lazy_stack(members, 1, name="env")


@cases(table=CASES)
def test_tree_of_levels_is_the_tree(case: Case):
    td = case.tree
    before = fingerprint(case.leaves.values())
    back = tree_of(levels_of(td))

    check(back, case.batch, case.leaves, case.statics)
    assert td.names == back.names
    assert list(td.keys(True, True)) == list(back.keys(True, True))
    assert before == fingerprint(case.leaves.values())


@cases(table=ROW_CASES)
def test_rows_come_back(case: Case):
    td = case.tree
    back = tree_of(levels_of(td))

    assert td.equal(back, equal_nan=True)
    assert list(td.keys()) == list(back.keys())


def test_levels_share_the_tensors():
    x = ramp(3)
    found = levels_of(TensorDict({"n": {"x": x}}))

    assert [x] == [array.tensor for _, array in iter_arrays(found)]


def test_gradients_are_not_kept():
    x = ramp(3).requires_grad_()

    assert not tree_of(levels_of(TensorDict({"x": x})))["x"].requires_grad


def test_one_tensor_at_two_places_is_one_array():
    x = ramp(3)
    td = TensorDict({"a": x, "n": {"b": x}, "c": x.clone()})
    found = levels_of(td)
    back = tree_of(found)

    assert 2 == len(list(iter_arrays(found)))
    assert back["a"] is back["n", "b"]


def test_tensor_with_and_without_batch_is_two_arrays():
    x = ramp(3)
    found = levels_of(TensorDict({"a": x, "b": unbatched(x)}, batch_size=3))

    assert [False, True] == [a.unbatched for _, a in iter_arrays(found)]


@pytest.mark.parametrize("size", [(), (2,)], ids=["no batch", "batch"])
def test_lazy_stack_comes_back(size):
    stack = ragged()
    td = stack if not size else TensorDict({"n": stack}, batch_size=size)
    back = tree_of(levels_of(td))

    assert type(td) is type(back)
    assert back.equal(td)
    inner = back if not size else back["n"]
    assert isinstance(inner, LazyStackedTensorDict)
    assert 1 == inner.stack_dim
    assert ["a", "aaa"] == [tree["only"] for tree in inner.tensordicts]
    assert stack.names == (None, "env") == (back.names if not size else (None, "env"))


def test_empty_lazy_stack_keeps_its_batch_size():
    stack = ragged()[:, :0]
    back = tree_of(levels_of(stack))

    assert (2, 0) == tuple(stack.batch_size) == tuple(back.batch_size)
    assert isinstance(back, LazyStackedTensorDict)


def test_jagged_tensors_keep_their_parts_apart():
    """Their values are other objects at every call, so that ids come again."""
    x = torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged, requires_grad=True
    )
    td = TensorDict({str(i): x * i for i in range(30)}, 2)
    entries: dict[str, Any] = {**levels_of(td).entries}
    assert all(entry.values.tensor[0] == int(key) for key, entry in entries.items())
    assert len({id(entry.offsets) for entry in entries.values()}) == 1


def test_jagged_comes_back():
    parts = [ramp(2), ramp(3)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    entry = levels_of(TensorDict({"x": x}, batch_size=2)).entries["x"]
    back = tree_of(levels_of(TensorDict({"x": x}, batch_size=2)))["x"]

    assert isinstance(entry, Jagged)
    assert (5,) == entry.values.shape
    for part, got in zip(parts, back.unbind(), strict=True):
        assert torch.equal(part, got)


class Point(TensorClass):
    x: torch.Tensor
    label: str = ""


def test_record_becomes_a_plain_node_with_a_note():
    found = levels_of(Point(x=ramp(2), label="a", batch_size=2))
    back = tree_of(found)

    assert f"{__name__}:Point" == found.record
    assert type(back) is TensorDict
    assert "a" == back["label"]


def _inside_vmap():
    return torch.vmap(lambda x: levels_of(TensorDict({"x": x})))(ramp(2))


REFUSED = {
    "meta": lambda: TensorDict({"x": torch.ones(2, device="meta")}),
    "sparse": lambda: TensorDict({"x": torch.eye(2).to_sparse()}),
    "quantized": lambda: TensorDict(
        {"x": torch.quantize_per_tensor(ramp(2), 1.0, 0, torch.qint8)}
    ),
    "placeholder": lambda: pytree.tree_map(lambda _: None, TensorDict({"x": ramp(2)})),
}


@pytest.mark.filterwarnings("ignore:.*quantiz:UserWarning", "ignore:.*quantiz")
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_leaf_without_elements_is_refused(make):
    td = make()

    with pytest.raises(InvalidLeafError, match=r"td\['x'\].*a dense tensor"):
        levels_of(td)


def test_tensor_of_a_transform_is_refused():
    with pytest.raises(InvalidLeafError, match=r"td\['x'\].*inside a transform"):
        _inside_vmap()


def test_entries_are_checked_against_the_batch_size():
    short = Array(torch.float32, (2,), ramp(2))
    for entry in (short, Rows((2,), ["a", "b"]), Level((2,), None, {"x": short})):
        with pytest.raises(BatchSizeError, match=r"td\['n', 'a'"):
            tree_of(Level((3,), None, {"n": Level((3,), None, {"a": entry})}))


def test_thousands_of_levels():
    level = Level((), None, {"x": Static(1)})
    for _ in range(2000):
        level = Level((), None, {"n": level})
    back = tree_of(level)

    assert 1 == back[("n",) * 2000 + ("x",)]
    assert ("n",) * 2000 == next(
        path for path, here in _levels_with(levels_of(back), "x")
    )


def _levels_with(level, key):
    here, path = level, ()
    while key not in here.entries:
        here, path = here.entries["n"], (*path, "n")
    yield path, here


TREE = TensorDict(
    {"b": ramp(2), "n": {"a": ramp(2, 3), "s": "text", "m": {"z": ramp(2)}}},
    batch_size=2,
)


def test_level_at_a_path():
    found = level_at(levels_of(TREE), ("n", "m"))

    assert TREE["n", "m"].equal(tree_of(found))
    for path, error, text in [
        (("n", "q"), MissingKeyError, r"td\['n', 'q'\].*'a'"),
        (("b",), PathThroughLeafError, r"td\['b'\]"),
        (("n", "s", "t"), PathThroughLeafError, r"td\['n', 's'\]"),
    ]:
        with pytest.raises(error, match=text):
            level_at(levels_of(TREE), path)
    with pytest.raises(PathThroughLeafError, match="lazy stack"):
        level_at(levels_of(ragged()), ("x",))


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        ([], []),
        ([("b",)], ["b"]),
        ([("n", "m", "z"), ("b",)], ["b", ("n", "m", "z")]),
        ([("n",)], [("n", "a"), ("n", "s"), ("n", "m", "z")]),
        ([("n",), ("n", "a")], [("n", "a"), ("n", "s"), ("n", "m", "z")]),
        ([("n", "a"), ("n", "a")], [("n", "a")]),
    ],
    ids=["nothing", "one", "two", "node", "node and inside", "twice"],
)
def test_narrowed(paths, kept):
    back = tree_of(narrowed(levels_of(TREE), paths))

    assert TREE.select(*kept).equal(back)
    assert (2,) == tuple(back.batch_size)


def test_narrowed_lists_what_is_missing():
    with pytest.raises(MissingKeyError, match=r"nor 1 more.*td\['n', 'q'\]"):
        narrowed(levels_of(TREE), [("n", "q"), ("b",), ("r",)])
    with pytest.raises(PathThroughLeafError, match=r"td\['b', 'c'\]"):
        narrowed(levels_of(TREE), [("b", "c")])


def test_narrowed_goes_into_members():
    stack = TensorDict({"n": ragged(), "b": ramp(2)}, batch_size=2)
    back = tree_of(narrowed(levels_of(stack), [("n", "x")]))

    assert ["n"] == list(back.keys())
    assert [("x",)] * 2 == [tree.keys() for tree in back["n"].tensordicts]


def test_narrowed_leaves_the_level_alone():
    found = levels_of(TREE)
    kept = replace(found)
    narrowed(found, [("n", "m", "z")])

    assert TREE.equal(tree_of(kept))
