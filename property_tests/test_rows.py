"""Rows of values move as a NumPy array of objects does, whatever moves them.

Beside each entry of rows lies a tensor of the numbers of its rows: what the text must
be after any moving operation is what the array has at the numbers that torch moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.utils import _pytree

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import OperandError
from tdfunc.testing import (
    assert_equal,
    assert_pure,
    assert_valid,
    batch_sizes,
    indices,
    tensordicts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# torch's stubs know nothing of nodes of users.
pytree: Any = _pytree
WORDS: tuple[Any, ...] = ("a", "b", "", None, "a\x00", b"a", 1, 1.0, True, (1,), "日本")


@st.composite
def texts(draw: st.DrawFn, *, min_dims: int = 0) -> tuple[TensorDict, Any]:
    """Draw a tree with the numbers of its rows, and the array that is its text."""
    size = draw(batch_sizes(min_dims=min_dims))
    count = size.numel()
    rows = draw(st.lists(st.sampled_from(WORDS), min_size=count, max_size=count))
    array = np.empty(count, dtype=object)
    for at, value in enumerate(rows):
        array[at] = value
    whole = array.reshape(tuple(size))
    numbers = torch.arange(count).reshape(size)
    text = whole if size else NonTensorData(array[0])
    return TensorDict({"s": text, "n": {"t": text}, "i": numbers}, size), array


def assert_aligned(td: TensorDict, array: Any) -> None:
    """Assert that every text is that of the number beside it."""
    assert_valid(td)
    numbers = td["i"]
    for key in ("s", ("n", "t")):
        found = td[key]
        if td._schema.find(key if isinstance(key, tuple) else (key,)).kid == -1:  # pyright: ignore[reportOptionalMemberAccess]
            assert found is array[0] or found == array[0]
            continue
        for _ in range(numbers.dim() - 1):
            found = [value for row in found for value in row]
        wanted = [array[at] for at in numbers.reshape(-1).tolist()]
        got = found if numbers.dim() else [found]
        assert got == wanted
        assert [type(x) for x in got] == [type(x) for x in wanted]


def moved(draw: st.DrawFn, td: TensorDict) -> TensorDict:
    """Draw an operation that moves rows, and return what it makes of the tree."""
    size = td.batch_size
    dims: list[Callable[[int], Any]] = [
        td.flip,
        lambda d: td.roll(1, d),
        td.unsqueeze,
        lambda d: td.movedim(d, 0),
        lambda d: td.repeat_interleave(2, d),
        lambda d: tdfunc.stack([td, td], d),
        lambda d: tdfunc.cat([td, td.flip(d)], d),
        lambda d: tdfunc.cat(td.split(1, d), d),
        lambda d: tdfunc.stack(td.unbind(d), d) if size[d] else td,
        lambda d: tdfunc.where(torch.ones(size, dtype=torch.bool), td, td.flip(d)),
        lambda d: td.at[:].set(td.flip(d)),
        lambda d: pytree.tree_map(lambda x: x.flip(d), td),
    ]
    whole: list[Callable[[], Any]] = [
        lambda: td[draw(indices(size))],
        lambda: td.reshape(-1) if size.numel() else td,
        lambda: td.expand(2, *size),
        lambda: td.tile(2),
        lambda: td.load_state_dict(td.state_dict()),
        lambda: td.clone() * 1,
        lambda: torch.vmap(lambda t: t)(td) if size and size.numel() else td,
    ]
    if size and draw(st.booleans()):
        return draw(st.sampled_from(dims))(draw(st.integers(0, len(size) - 1)))
    return draw(st.sampled_from(whole))()


@given(texts(), st.data())
def test_texts_stay_beside_their_numbers(
    case: tuple[TensorDict, Any], data: st.DataObject
) -> None:
    td, array = case
    draw: Any = data.draw
    for _ in range(draw(st.integers(1, 3))):
        td = assert_pure(lambda t: moved(draw, t), td)
        if td.numel() > 200:
            break
    assert_aligned(td, array)


@given(texts(min_dims=1), st.data())
def test_written_texts_are_those_of_an_array(
    case: tuple[TensorDict, Any], data: st.DataObject
) -> None:
    td, array = case
    places = st.integers(0, max(len(td) - 1, 0))
    rows = data.draw(st.lists(places, unique=True, max_size=len(td)))
    word = data.draw(st.sampled_from([w for w in WORDS if not isinstance(w, tuple)]))
    expected = array.reshape(tuple(td.batch_size)).copy()
    expected[rows] = word
    out = td.at[rows].set({"s": word})
    assert_equal(out, td.set("s", expected))


@given(texts(min_dims=1), texts(min_dims=1))
def test_equality_is_that_of_the_values(
    one: tuple[TensorDict, Any], two: tuple[TensorDict, Any]
) -> None:
    a, b = one[0].reshape(-1), two[0].reshape(-1)
    count = min(len(a), len(b))
    a, b = a[:count], b[:count]
    same = [type(x) is type(y) and x == y for x, y in zip(a["s"], b["s"], strict=True)]
    assert (a == b)["s"].tolist() == same
    assert (a != b)["s"].tolist() == [not flag for flag in same]
    assert a.select("s").equal(b.select("s")) is all(same)


@given(texts(min_dims=1), st.sampled_from([-1, 1, 2, 7]))
def test_computed_codes_are_never_read(case: tuple[TensorDict, Any], by: int) -> None:
    td, _ = case
    if not td.numel():
        return
    spoilt = pytree.tree_map(lambda x: x + by, td)
    with pytest.raises(OperandError, match="not those that were stored"):
        spoilt["s"]


@given(tensordicts(rows=True, unbatched=True))
def test_drawn_trees_with_rows_are_valid_and_whole(td: TensorDict) -> None:
    assert_valid(td)
    assert td.equal(td.clone(), equal_nan=True)
    assert_equal(td.load_state_dict(td.state_dict(), cast="source"), td)
    bare = td.filter_non_tensor()
    assert bare.keys(True, True) == td.keys(True, True)
    left, right = tdfunc.partition(td, "integer")
    assert_equal(tdfunc.combine(right, left), td)


def codes_and_values(td: TensorDict) -> list[tuple[Any, Any]]:
    """Return the path of every entry of rows, and its values as an array."""
    arrays = td.to_numpy()
    found: list[tuple[Any, Any]] = []
    pending: list[tuple[tuple[str, ...], Any]] = [((), arrays)]
    while pending:
        above, level = pending.pop()
        for key, value in level.items():
            path = (*above, key)
            if path in td and isinstance(td[path], TensorDict):
                pending.append((path, value))
            elif isinstance(value, np.ndarray) and value.dtype == object:
                found.append((path, value))
    return found


@given(
    tensordicts(batch_sizes(min_dims=1), statics=False, rows=True, max_leaves=1),
    st.data(),
)
def test_any_rows_are_indexed_as_an_array_is(
    td: TensorDict, data: st.DataObject
) -> None:
    td = td.exclude(*td.keys(True, True))
    dims = td.batch_dims
    index = data.draw(indices(td.batch_size))
    out = td[index]
    assert_valid(out)
    for path, array in codes_and_values(td):
        numbers = torch.arange(array.size).reshape(array.shape)
        rest = array.shape[dims:]
        # Every place behind the batch on its own: the index can not reach it.
        flat = numbers.reshape((*array.shape[:dims], int(np.prod(rest, dtype=int))))
        if not flat.shape[-1]:
            continue
        moved = torch.stack([row[index] for row in flat.unbind(-1)], -1)
        wanted = [array.reshape(-1)[at] for at in moved.reshape(-1).tolist()]
        got: Any = out[path]
        for _ in range(moved.dim() - 2 + len(rest)):
            got = [value for row in got for value in row]
        got = got if moved.dim() - 1 + len(rest) else [got]
        assert len(got) == len(wanted)
        assert all(x is y or x == y for x, y in zip(got, wanted, strict=True))
