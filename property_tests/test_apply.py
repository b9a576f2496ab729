"""apply is a loop over the leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from property_tests import model as m
from tdfunc.errors import BatchSizeError
from tdfunc.testing import assert_pure, assert_valid, batch_sizes, tensordicts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc import TensorDict

# Functions of one leaf that keep all batch dims, those of nested nodes included.
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda x: x,
    "copy": torch.clone,
    "cast": lambda x: x.to(torch.complex64),
    "compare": lambda x: x == x,  # noqa: PLR0124
    "new feature dim": lambda x: x.unsqueeze(-1),
    "stack features": lambda x: torch.stack([x, x], -1),
}
functions = st.sampled_from(m.named(FUNCTIONS))


def assert_leaves(expected: dict[m.Path, torch.Tensor], td: TensorDict) -> None:
    assert expected.keys() == {path for path, *_ in m.leaves(m.read(td))}
    for path, x in expected.items():
        assert m.same_tensor(x, td[path])


@given(tensordicts(), functions)
def test_apply_is_a_loop(td: TensorDict, fn: Any) -> None:
    found = assert_pure(td.apply, fn)

    assert_valid(found)
    m.assert_is(m.mapped(m.read(td), fn), found)
    assert td.names == found.names


@given(tensordicts(min_leaves=1), st.data())
def test_apply_pairs_other_trees_by_path(td: TensorDict, data: st.DataObject) -> None:
    model = m.read(td)
    entries = dict(data.draw(st.permutations(list(model.entries.items()))))
    other = m.build(m.Model(model.size, entries)).apply(lambda x: x.to(torch.complex64))

    found = assert_pure(
        td.apply, lambda x, y, z: torch.stack([x + y, z], -1), other, other
    )

    assert_valid(found)
    assert td.keys(True) == found.keys(True)
    for path, x, _ in m.leaves(model):
        y = x.to(torch.complex64)
        assert m.same_tensor(torch.stack([x + y, y], -1), found[path])


@given(tensordicts(batch_sizes(min_dims=1, min_size=1)))
def test_apply_with_another_batch_size(td: TensorDict) -> None:
    """A function may take batch dims away when the new size is given."""
    expected = {path: x[0] for path, x, _ in m.leaves(m.read(td))}

    found = assert_pure(td.apply, lambda x: x[0], batch_size=td.batch_size[1:])

    assert_valid(found)
    assert td.batch_size[1:] == found.batch_size
    assert_leaves(expected, found)


@given(tensordicts(batch_sizes(min_dims=1, min_size=2), min_leaves=1))
def test_apply_refuses_to_lose_the_batch_size(td: TensorDict) -> None:
    with pytest.raises(BatchSizeError):
        td.apply(lambda x: x.sum())


@given(tensordicts())
def test_apply_may_flatten_all_that_follows_the_batch(td: TensorDict) -> None:
    """Nested nodes keep of their own batch dims what is still shared."""
    dims = td.batch_dims

    def flat(x: torch.Tensor) -> torch.Tensor:
        return x.reshape((*x.shape[:dims], x.shape[dims:].numel()))

    found = assert_pure(td.apply, flat)

    assert_valid(found)
    assert td.batch_size == found.batch_size
    assert_leaves({path: flat(x) for path, x, _ in m.leaves(m.read(td))}, found)


@given(td=tensordicts(), nested=st.booleans())
def test_named_apply_gives_the_name(td: TensorDict, *, nested: bool) -> None:
    seen: list[Any] = []

    def note(name: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append((name, x))
        return x.clone()

    found = assert_pure(td.named_apply, note, nested_keys=nested)

    m.assert_is(m.read(td), found)
    named = {
        m.short(path) if nested else path[-1]: x for path, x, _ in m.leaves(m.read(td))
    }
    if nested:
        assert len(named) == len(seen)
        assert all(named[name] is x for name, x in seen)
    else:
        assert set(named) == {name for name, _ in seen}


@given(tensordicts(min_leaves=2, shared=False), st.data())
def test_error_in_a_function_names_the_leaf(
    td: TensorDict, data: st.DataObject
) -> None:
    """The error is the function's own; a note says where."""
    rows = list(m.leaves(m.read(td)))
    path, bad, _ = data.draw(st.sampled_from(rows))

    def fails(x: torch.Tensor) -> torch.Tensor:
        if x is bad:
            raise ZeroDivisionError("mine")
        return x

    with pytest.raises(ZeroDivisionError) as caught:
        td.apply(fails)

    (note,) = caught.value.__notes__
    assert all(repr(key) in note for key in path)
