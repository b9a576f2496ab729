"""The strategies draw what they promise, and the assertions can fail."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from torch.utils._pytree import tree_map

from property_tests import model as m
from tdfunc import NonTensorData, Schema, TensorDict
from tdfunc._core.node import make
from tdfunc._core.schema import STATIC
from tdfunc._core.statics import NO_STATICS
from tdfunc.errors import OptionError
from tdfunc.testing import (
    assert_equal,
    assert_pure,
    assert_valid,
    batch_sizes,
    indices,
    keys,
    schemas,
    tensordicts,
    tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ONCE = settings(max_examples=5000, derandomize=True, database=None)


def nodes(td: TensorDict) -> list[m.Model]:
    return [v for _, v, _ in m.walk(m.read(td)) if isinstance(v, m.Model)]


def leaves(td: TensorDict) -> list[torch.Tensor]:
    return [x for _, x, _ in m.leaves(m.read(td))]


def statics(td: TensorDict) -> list[NonTensorData]:
    return [v for _, v, _ in m.walk(m.read(td)) if isinstance(v, NonTensorData)]


# What is drawn


@given(tensordicts())
def test_any_drawn_tree_is_valid(td: TensorDict) -> None:
    assert_valid(td)


@given(batch_sizes(), st.data())
def test_any_drawn_index_is_legal_in_torch(
    size: torch.Size, data: st.DataObject
) -> None:
    """Without a warning, too: warnings are errors in this project's tests."""
    index = data.draw(indices(size))

    torch.empty(size)[index]


@given(keys())
def test_any_drawn_key_is_a_non_empty_string(key: str) -> None:
    assert isinstance(key, str)
    assert key


@given(
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
    st.data(),
)
def test_batch_sizes_keep_their_bounds(
    least: int, more: int, low: int, range_: int, data: st.DataObject
) -> None:
    size = data.draw(
        batch_sizes(
            min_dims=least, max_dims=least + more, min_size=low, max_size=low + range_
        )
    )

    assert isinstance(size, torch.Size)
    assert least <= len(size) <= least + more
    assert all(low <= n <= low + range_ for n in size)


@given(
    size=batch_sizes(),
    dtype=st.sampled_from(m.DTYPES[:11]),
    contiguous=st.booleans(),
    data=st.data(),
)
def test_tensors_keep_their_flags(
    size: torch.Size, dtype: torch.dtype, data: st.DataObject, *, contiguous: bool
) -> None:
    x = data.draw(
        tensors(size, dtypes=[dtype], feature_dims=(1, 2), contiguous=contiguous)
    )

    assert x.dtype == dtype
    assert x.shape[: len(size)] == size
    assert 1 <= x.dim() - len(size) <= 2
    assert x.is_contiguous() if contiguous else x.storage_offset() or not x.numel()


@given(tensors([2], dtypes=[torch.int64], elements=st.integers(7, 9)))
def test_tensors_take_their_elements_from_a_strategy(x: torch.Tensor) -> None:
    assert all(7 <= n <= 9 for n in x.flatten().tolist())


@given(
    tensordicts(
        [2, 3],
        dtypes=[torch.int32],
        key=keys(odd=False),
        nested=False,
        shared=False,
        statics=False,
        names=False,
        min_leaves=2,
        max_leaves=4,
    )
)
def test_tree_with_all_flags_fixed(td: TensorDict) -> None:
    assert torch.Size([2, 3]) == td.batch_size
    assert td.names is None
    assert {1} >= {*map(len, td.keys())}
    assert not nodes(td)
    assert not statics(td)
    assert 2 <= len({id(x) for x in leaves(td)}) == len(leaves(td)) <= 4
    assert all(x.dtype == torch.int32 for x in leaves(td))


@given(tensordicts(surplus=False))
def test_tree_without_surplus_has_one_batch_size(td: TensorDict) -> None:
    assert all(node.size == td.batch_size for node in nodes(td))


@given(tensordicts([2, 2], names=["a", None], statics=st.just("only"), min_leaves=1))
def test_names_and_statics_are_those_given(td: TensorDict) -> None:
    assert ("a", None) == td.names
    assert all(value == NonTensorData("only") for value in statics(td))


@given(schemas(nested=False, statics=False, max_rank=1, min_leaves=1))
def test_schema_with_flags_fixed(schema: Schema) -> None:
    assert schema.n == len(schema.keys) >= 1
    assert set(schema.kids) <= {0, 1}


@given(schemas(surplus=False))
def test_schema_without_surplus(schema: Schema) -> None:
    assert not schema.extra


@given(indices([2, 3], advanced=False))
def test_basic_index_is_basic(index: Any) -> None:
    items = index if isinstance(index, tuple) else (index,)

    assert all(
        item is None or isinstance(item, (int, slice, type(...))) for item in items
    )
    assert not any(isinstance(item, bool) for item in items)


@given(indices([2, 3], masks=False, new_dims=False, ellipsis=False, arrays=False))
def test_index_without_its_parts(index: Any) -> None:
    items = index if isinstance(index, tuple) else (index,)

    assert not any(item is None or item is Ellipsis for item in items)
    assert not any(isinstance(item, (bool, np.ndarray, np.generic)) for item in items)
    assert not any(_is_mask(item) for item in items)


def _is_mask(item: Any) -> bool:
    if isinstance(item, slice) or item is None or item is Ellipsis:
        return False
    array = np.asarray(item)
    return array.size > 0 and array.dtype == bool


# Awkward things, each of which some library got wrong, must be reachable.
AWKWARD_TREES: dict[str, Callable[[TensorDict], Any]] = {
    "empty": lambda td: not td.keys(),
    "a scalar": lambda td: any(x.dim() == 0 for x in leaves(td)),
    "a batch of nothing": lambda td: 0 in td.batch_size and leaves(td),
    "a square batch with features as long": lambda td: (
        td.batch_dims > 1
        and any(
            x.dim() > td.batch_dims and {*x.shape} in ({2}, {3}) for x in leaves(td)
        )
    ),
    "an empty node": lambda td: any(not node.entries for node in nodes(td)),
    "a node of statics": lambda td: any(
        node.entries
        and all(isinstance(v, NonTensorData) for v in node.entries.values())
        for node in nodes(td)
    ),
    "three levels": lambda td: any(len(path) > 2 for path in td.keys(True) if path),
    "surplus in surplus": lambda td: any(
        len(inner.size) > len(node.size) > td.batch_dims
        for node in nodes(td)
        for inner in node.entries.values()
        if isinstance(inner, m.Model)
    ),
    "a shared leaf": lambda td: len({id(x) for x in leaves(td)}) < len(leaves(td)),
    "keys out of order": lambda td: [*td.keys()] != sorted(td.keys()),
    "a dotted key": lambda td: "." in "".join(td.keys()),
    "mixed dtypes": lambda td: len({x.dtype for x in leaves(td)}) > 2,
    "a view": lambda td: any(not x.is_contiguous() for x in leaves(td)),
    "NaN": lambda td: any(bool(x.isnan().any()) for x in leaves(td)),
    "a number as static": lambda td: any(isinstance(v.data, int) for v in statics(td)),
    "names with a gap": lambda td: td.names and None in td.names,
}


@cache
def drawn(strategy: Callable[[], st.SearchStrategy[Any]], count: int) -> list[Any]:
    """Return so many draws, the same at each run."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(strategy())
    def draw(value: Any) -> None:
        found.append(value)

    draw()
    return found


@pytest.mark.parametrize("name", AWKWARD_TREES)
def test_awkward_tree_is_reached(name: str) -> None:
    assert any(map(AWKWARD_TREES[name], drawn(tensordicts, 500)))


def has(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda i: any(map(kind, i if isinstance(i, tuple) else (i,)))


def rows_of(item: Any) -> tuple[int, ...] | None:
    """Return the shape of an index of rows, None for anything else."""
    if not isinstance(item, (list, range, np.ndarray, torch.Tensor)) or _is_mask(item):
        return None
    return tuple(np.asarray(item).shape)


AWKWARD_INDICES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda i: isinstance(i, tuple) and not i,
    "a list alone": lambda i: isinstance(i, list) and len(i) > 1,
    "a mask alone": lambda i: isinstance(i, torch.Tensor) and i.dtype == torch.bool,
    "a nested list": has(
        lambda x: isinstance(x, list) and bool(x) and isinstance(x[0], list)
    ),
    "a tuple in a tuple": has(lambda x: isinstance(x, tuple) and len(x) > 1),
    "a mask of two dims": has(
        lambda x: isinstance(x, torch.Tensor) and x.dtype == torch.bool and x.dim() == 2
    ),
    "an array": has(lambda x: isinstance(x, np.ndarray)),
    "a NumPy int": has(lambda x: isinstance(x, np.integer)),
    "a range": has(lambda x: isinstance(x, range) and len(x) == 1),
    "True": has(lambda x: x is True),
    "False": has(lambda x: x is False),
    "a tensor without dims": has(
        lambda x: (
            isinstance(x, torch.Tensor) and x.dim() == 0 and x.dtype == torch.int64
        )
    ),
    "no rows": has(lambda x: isinstance(x, torch.Tensor) and x.shape == (0,)),
    "a step": has(lambda x: isinstance(x, slice) and x.step == 2),
    "advanced items apart": lambda i: (
        isinstance(i, tuple)
        and re.search("r[^r]+r", "".join(["r" if rows_of(x) else "-" for x in i]))
    ),
    "None behind an Ellipsis": lambda i: (
        isinstance(i, tuple) and len(i) > 1 and i[-2] is Ellipsis and i[-1] is None
    ),
    "rows that broadcast": lambda i: (
        isinstance(i, tuple) and len({rows_of(x) for x in i} - {None, ()}) > 1
    ),
}


def awkward_shape() -> st.SearchStrategy[Any]:
    return indices([3, 2, 2])


@pytest.mark.parametrize("name", AWKWARD_INDICES)
def test_awkward_index_is_reached(name: str) -> None:
    assert any(map(AWKWARD_INDICES[name], drawn(awkward_shape, 1500)))


def test_failing_tree_shrinks_to_what_matters() -> None:
    """The least tree with a leaf, with two batch dims, and so on."""

    def least(condition: Callable[[TensorDict], Any]) -> str:
        return repr(find(tensordicts(), condition, settings=ONCE))

    assert "TensorDict(batch_size=[], fields={})" == least(lambda _: True)
    assert "TensorDict(batch_size=[], fields={a: f32[]})" == least(leaves)
    assert "TensorDict(batch_size=[1, 1], fields={})" == least(
        lambda td: td.batch_dims == 2
    )
    assert "TensorDict(batch_size=[0], fields={})" == least(
        lambda td: 0 in td.batch_size
    )
    assert "TensorDict(batch_size=[], fields={a: {a: f32[]}})" == least(
        lambda td: any(node.has_leaves() for node in nodes(td))
    )


@pytest.mark.parametrize(
    "make_strategy",
    [
        lambda: tensors(cast("Any", "ab")),
        lambda: tensordicts([-1]),
        lambda: indices(cast("Any", [None])),
        lambda: tensors(dtypes=[]),
        lambda: tensordicts(dtypes=[torch.bool], leaves=tensors),
    ],
    ids=["shape_prefix", "batch_size", "index", "dtypes", "dtypes twice"],
)
def test_bad_flags_raise_before_anything_is_drawn(
    make_strategy: Callable[[], Any],
) -> None:
    with pytest.raises(OptionError):
        make_strategy()


def test_assertions_work_without_hypothesis() -> None:
    """And a strategy says what to install."""
    script = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import torch, tdfunc, tdfunc.testing as t\n"
        "td = tdfunc.TensorDict({'x': torch.zeros(3)}, 3)\n"
        "t.assert_valid(td); t.assert_equal(td, td.clone()); t.assert_pure(abs, td)\n"
        "t.tensordicts()"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "ImportError: strategies need hypothesis" in done.stderr
    assert "pip install 'tdfunc[testing]'" in done.stderr


# assert_pure


class Holder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.notes: list[str] = []


def holder() -> Holder:
    return Holder()


def sample() -> TensorDict:
    return TensorDict(
        {"x": torch.zeros(2), "n": {"y": torch.ones(2, 3)}, "s": NonTensorData([1])}, 2
    )


IMPURE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], str]] = {
    "a write": (sample, lambda td: td["x"].add_(1), "args[0]['x']: bytes changed"),
    "a write of the same": (
        sample,
        lambda td: td["n", "y"].fill_(1),
        "args[0]['n', 'y']: version 0 became 1",
    ),
    "a write that no version counts": (
        sample,
        lambda td: td["x"].data.fill_(5),
        "args[0]['x']: bytes changed",
    ),
    "a write through NumPy": (
        sample,
        lambda td: td["x"].numpy().fill(5),
        "args[0]['x']: bytes changed",
    ),
    "another sign of zero": (
        sample,
        lambda td: td["x"].data.fill_(-0.0),
        "args[0]['x']: bytes changed",
    ),
    "a write into a view": (sample, lambda td: td[0]["x"].add_(1), "args[0]['x']"),
    "requires_grad": (
        sample,
        lambda td: td["x"].requires_grad_(),
        "args[0]['x']: requires_grad False became True",
    ),
    "a gradient": (
        lambda: torch.zeros(2, requires_grad=True),
        lambda x: x.sum().backward(),
        "args[0]: its gradient changed",
    ),
    "a shape": (
        lambda: torch.zeros(4),
        lambda x: x.resize_(2, 2),
        "args[0]: shape [4] became [2, 2]",
    ),
    "memory": (
        lambda: torch.zeros(4),
        lambda x: setattr(x, "data", torch.zeros(4)),
        "args[0]: memory",
    ),
    "a static": (sample, lambda td: td["s"].append(2), "args[0]['s']"),
    "a key of a mapping": (
        lambda: {"a": 1},
        lambda mapping: mapping.update(b=2),
        "args[0]: keys ['a'] became ['a', 'b']",
    ),
    "a value of a mapping": (
        lambda: {"a": 1},
        lambda mapping: mapping.update(a=2),
        "args[0]: other objects at ['a']",
    ),
    "a list": (lambda: [1], lambda items: items.append(2), "args[0]: other objects"),
    "an array in a list": (
        lambda: [np.zeros(2)],
        lambda items: items[0].fill(1),
        "args[0][0]: elements changed",
    ),
    "a set": (set, lambda items: items.add(1), "args[0]: became {1}"),
    "a buffer": (holder, lambda module: module.count.add_(1), "['count']"),
    "a flag of a module": (
        holder,
        torch.nn.Module.eval,
        "other objects at ['training']",
    ),
    "an attribute of a module": (holder, lambda h: h.notes.append(""), "['notes']"),
    "the leaves of a tree": (
        sample,
        lambda td: setattr(td, "_leaves", td.clone()._leaves),
        "args[0]: its leaves are other objects",
    ),
    "the batch size of a tree": (
        sample,
        lambda td: setattr(td, "_batch_size", torch.Size([])),
        "args[0]: batch size [2] became []",
    ),
}


@pytest.mark.parametrize("name", IMPURE)
def test_impure_function_is_caught(name: str) -> None:
    build, function, place = IMPURE[name]

    with pytest.raises(AssertionError) as caught:
        assert_pure(function, build())

    assert str(caught.value).startswith("the function changed its arguments:\n- ")
    assert place in str(caught.value)


def test_impure_function_is_caught_in_keywords_and_when_it_raises() -> None:
    def fails(*, td: TensorDict) -> None:
        td["x"].add_(1)
        raise ValueError

    with pytest.raises(AssertionError, match=r"kwargs\['td'\]\['x'\]: bytes changed"):
        assert_pure(fails, td=sample())


def test_pure_function_may_raise() -> None:
    with pytest.raises(KeyError):
        assert_pure(lambda td: td["zzz"], sample())


def test_reading_is_pure() -> None:
    """Even of a tree that learns its batch size when asked."""
    td = tree_map(lambda x: x[0], sample())

    size = assert_pure(lambda td: td.batch_size, td)

    assert torch.Size([]) == size


def test_what_can_not_be_copied_is_left_alone() -> None:
    class Odd:
        def __deepcopy__(self, memo: object) -> None:
            raise RuntimeError

    assert_pure(lambda *_: None, Odd(), object(), sys.stdout)


def test_odd_tensors_can_be_watched() -> None:
    sparse = torch.eye(2).to_sparse()
    meta = torch.empty(2, device="meta")
    with torch.inference_mode():
        inference = torch.zeros(2)

    assert_pure(
        lambda *_: None,
        sparse,
        meta,
        inference,
        torch.zeros(2).to(torch.cfloat).conj(),
    )
    with pytest.raises(AssertionError, match="bytes changed"):
        assert_pure(lambda x: x.mul_(2), sparse)


# assert_equal


def other(**changes: Any) -> TensorDict:
    return sample().update(changes)


UNEQUAL: dict[str, tuple[TensorDict, list[str]]] = {
    "values": (
        other(x=torch.tensor([0.0, 2.0])),
        ["td['x']: 1 of 2 values differ, first 0.0 and 2.0 at [1]"],
    ),
    "dtype": (
        other(x=torch.zeros(2).int()),
        ["td['x']: dtype torch.float32 and torch.int32"],
    ),
    "shape": (other(x=torch.zeros(2, 1)), ["td['x']: shape [2] and [2, 1]"]),
    "static": (other(s="a"), ["td['s']: a static [1] and a static 'a'"]),
    "static of the same type": (other(s=NonTensorData([2])), ["td['s']: [1] and [2]"]),
    "kind": (other(n="a"), ["td['n']: a TensorDict and a static 'a'"]),
    "batch size": (
        sample().with_batch_size([]),
        ["td: batch size [2] and []", "td['n']: batch size [2] and []"],
    ),
    "many": (
        sample().drop("s").update(x=torch.ones(2), new="v"),
        [
            "td['s']: only in the first",
            "td['new']: only in the second",
            "td['x']: 2 of 2 values differ, first 0.0 and 1.0 at [0]",
        ],
    ),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_differences_are_listed(name: str) -> None:
    changed, lines = UNEQUAL[name]

    with pytest.raises(AssertionError) as caught:
        assert_equal(sample(), changed)

    assert "\n- ".join(["the trees differ:", *lines]) == str(caught.value)


def test_nested_batch_size_is_compared() -> None:
    a, b = (
        TensorDict({"n": TensorDict({"y": torch.ones(2, 3)}, k)}, 2)
        for k in (2, [2, 3])
    )

    with pytest.raises(
        AssertionError, match=r"td\['n'\]: batch size \[2\] and \[2, 3\]"
    ):
        assert_equal(a, b)


def test_order_and_names_are_compared_on_request() -> None:
    a = TensorDict({"x": torch.zeros(2), "y": torch.zeros(2)}, 2, names=["time"])
    b = TensorDict({"y": torch.zeros(2), "x": torch.zeros(2)}, 2)

    assert_equal(a, b)
    with pytest.raises(AssertionError, match="keys in the order"):
        assert_equal(a, b, key_order=True)
    with pytest.raises(AssertionError, match="names"):
        assert_equal(a, b, names=True)


def test_nan_and_tolerance() -> None:
    a, b = (
        TensorDict({"x": torch.tensor([float("nan"), v])}) for v in (1.0, 1.0 + 1e-5)
    )

    assert_equal(a, a)
    assert_equal(a, b, rtol=1e-3)
    assert_equal(a, b, atol=1e-3)
    options: list[dict[str, Any]] = [
        {},
        {"equal_nan": False, "atol": 1.0},
        {"atol": 1e-7},
    ]
    for kwargs in options:
        with pytest.raises(AssertionError, match="1 of 2 values differ"):
            assert_equal(a, b, **kwargs)


@given(tensordicts(max_leaves=3), tensordicts(max_leaves=3))
def test_equal_trees_are_those_with_equal_models(a: TensorDict, b: TensorDict) -> None:
    def same(one: m.Model, two: m.Model) -> bool:
        return (
            one.size == two.size
            and one.entries.keys() == two.entries.keys()
            and all(alike(one.entries[k], two.entries[k]) for k in one.entries)
        )

    def alike(x: Any, y: Any) -> bool:
        if isinstance(x, m.Model) and isinstance(y, m.Model):
            return same(x, y)
        if isinstance(x, torch.Tensor):
            return m.same_tensor(x, y)
        return x == y

    try:
        assert_equal(a, b)
    except AssertionError:
        assert not same(m.read(a), m.read(b))
    else:
        assert same(m.read(a), m.read(b))
    assert_equal(a, a.clone())


# assert_valid


def corrupted(td: TensorDict, **parts: Any) -> TensorDict:
    """Return a tree made past all checks."""
    kept = {
        "schema": td._schema,
        "leaves": td._leaves,
        "statics": td._statics,
        "batch_size": td._batch_size,
        "names": td._names,
    }
    return make(*(kept | parts).values())


PLAIN = TensorDict({"x": torch.zeros(2, 3)}, 2)
INVALID: dict[str, tuple[Any, str]] = {
    "no tree": ({"x": 1}, "it is a dict, not a tree"),
    "a batch size that is no prefix": (
        corrupted(PLAIN, batch_size=torch.Size([3])),
        "td['x']: shape [2, 3] does not start with the batch size [3]",
    ),
    "another number of dims": (
        corrupted(PLAIN, batch_size=torch.Size([2, 3])),
        "td['x']: 2 dims, but 2 batch dims and feature rank 1",
    ),
    "no tensor": (
        corrupted(PLAIN, leaves=(None,)),
        "td['x']: a NoneType, not a tensor",
    ),
    "too few leaves": (
        corrupted(PLAIN, leaves=()),
        "0 leaves and 0 statics with a schema of 1 and 0",
    ),
    "too few statics": (
        corrupted(TensorDict({"s": "v"}), statics=NO_STATICS),
        "0 leaves and 0 statics with a schema of 0 and 1",
    ),
    "a nested leaf": (
        corrupted(
            TensorDict(
                {
                    "n": TensorDict(
                        {"a": torch.zeros(2, 3), "b": torch.zeros(2, 3)}, [2, 3]
                    )
                },
                2,
            ),
            leaves=(torch.zeros(2, 3), torch.zeros(2, 4)),
        ),
        "td['n', 'b']: shape [2, 4] does not start with the batch size [2, 3]",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_tree_is_caught(name: str) -> None:
    tree, line = INVALID[name]

    with pytest.raises(AssertionError) as caught:
        assert_valid(tree)

    assert f"the tree is not valid:\n- {line}" == str(caught.value)


@pytest.mark.parametrize(
    ("key", "entry", "line"),
    [
        ("b", (0, 0, 0, 0), "td: the schema places 'b' at [0, 0], not at [1, 0]"),
        ("a", (1, 0, 0, 0), "td: the schema contradicts itself at 'a'"),
        ("s", (STATIC, 2, 0, 2), "td: the schema contradicts itself at 's'"),
    ],
    ids=["place", "rank", "surplus"],
)
def test_schema_that_contradicts_itself_is_caught(
    key: str, entry: tuple[Any, ...], line: str
) -> None:
    td = TensorDict({"a": torch.zeros(2), "b": torch.zeros(2), "s": "v"}, 2)
    # Made by hand, for no operation makes one, and the interned one must stay good.
    seeded = object.__new__(Schema)
    for slot in Schema.__slots__:
        if slot != "__weakref__":
            object.__setattr__(seeded, slot, getattr(td._schema, slot))
    object.__setattr__(seeded, "index", {**td._schema.index, key: entry})

    with pytest.raises(AssertionError) as caught:
        assert_valid(corrupted(td, schema=seeded))

    assert line in str(caught.value)


def test_deep_and_wide_trees_are_no_problem() -> None:
    entries: dict[str, Any] = {"x": torch.zeros(1)}
    for _ in range(300):
        entries = {"n": entries}
    td = TensorDict({**entries, **{str(i): torch.zeros(1) for i in range(300)}}, 1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_valid(td)
        assert_equal(td, assert_pure(TensorDict.clone, td))
