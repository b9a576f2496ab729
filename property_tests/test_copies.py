"""Pickles and copies are the tree that they came from."""

from __future__ import annotations

import copy
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from property_tests import model as m
from tdfunc import Schema, TensorDict
from tdfunc.testing import assert_equal, assert_valid, schemas, tensordicts, tensors

pytestmark = pytest.mark.filterwarnings(m.COMPLEX_HALF)

PROTOCOLS = st.integers(2, pickle.HIGHEST_PROTOCOL)


def any_dtype(size: torch.Size) -> st.SearchStrategy[torch.Tensor]:
    return tensors(size, dtypes=m.DTYPES)


trees = tensordicts(leaves=any_dtype)


def assert_copy(td: TensorDict, again: TensorDict) -> None:
    assert_valid(again)
    assert_equal(td, again, key_order=True, names=True)
    m.assert_is(m.read(td), again)


def pointers(td: TensorDict) -> list[int]:
    return [x.data_ptr() for _, x, _ in m.leaves(m.read(td)) if x.numel()]


def same_leaves(td: TensorDict) -> list[list[bool]]:
    """Return which leaves are the same object as which others."""
    leaves = [x for _, x, _ in m.leaves(m.read(td))]
    return [[x is y for y in leaves] for x in leaves]


@given(trees, PROTOCOLS)
def test_unpickled_tree_is_the_tree(td: TensorDict, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(td, protocol))

    assert_copy(td, again)
    assert again._schema is td._schema  # interned
    assert not {*pointers(td)} & {*pointers(again)}


@given(tensordicts(leaves=any_dtype, statics=st.text(max_size=3)))
def test_out_of_band_buffers_carry_the_bytes(td: TensorDict) -> None:
    """They are views: the bytes of a leaf are not copied, and not in the stream."""
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(td, 5, buffer_callback=buffers.append)

    again = pickle.loads(stream, buffers=buffers)
    copied = pickle.loads(stream, buffers=[bytes(b.raw()) for b in buffers])

    assert_copy(td, again)
    assert_copy(td, copied)
    sizes = [x.numel() * x.itemsize for _, x, _ in m.leaves(m.read(td))]
    assert sum(b.raw().nbytes for b in buffers) <= sum(sizes)


@given(trees)
def test_tree_from_read_only_buffers_can_be_written(td: TensorDict) -> None:
    """And writing does not reach the bytes that it came from."""
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(td, 5, buffer_callback=buffers.append)
    raw = [bytes(b.raw()) for b in buffers]
    kept = [bytes(bytearray(b)) for b in raw]

    again = pickle.loads(stream, buffers=raw)
    for _, x, _ in m.leaves(m.read(again)):
        x.zero_()

    assert kept == raw


@given(tensordicts(max_leaves=3), PROTOCOLS)
def test_pickle_of_a_row_has_the_bytes_of_the_row(
    td: TensorDict, protocol: int
) -> None:
    """Not those of the storage that it is a view of."""
    many = td.expand(300, *td.batch_size).clone()

    row, whole = (len(pickle.dumps(t, protocol)) for t in (many[0], many))

    per_row = sum(x.numel() * x.itemsize for _, x, _ in m.leaves(m.read(td)))
    if protocol == pickle.HIGHEST_PROTOCOL:
        assert row <= whole - 250 * per_row


@given(trees)
def test_deepcopy_shares_no_memory(td: TensorDict) -> None:
    again = copy.deepcopy(td)

    assert_copy(td, again)
    assert not {*pointers(td)} & {*pointers(again)}
    assert same_leaves(td) == same_leaves(again)


@given(trees)
def test_copy_is_the_tree_itself(td: TensorDict) -> None:
    assert copy.copy(td) is td


@given(trees, PROTOCOLS)
def test_shared_leaves_stay_shared(td: TensorDict, protocol: int) -> None:
    """One tensor at two places is one tensor at two places afterwards."""
    again = pickle.loads(pickle.dumps(td, protocol))

    assert same_leaves(td) == same_leaves(again)


@given(tensordicts(max_leaves=2), PROTOCOLS)
def test_trees_inside_other_objects_pickle(td: TensorDict, protocol: int) -> None:
    holder = {"a": [td, td], "b": (td,)}

    again = pickle.loads(pickle.dumps(holder, protocol))

    assert again["a"][0] is again["a"][1] is again["b"][0]
    assert_copy(td, again["a"][0])


@given(tensordicts(leaves=lambda s: tensors(s, dtypes=[torch.float64])), PROTOCOLS)
def test_requires_grad_survives(td: TensorDict, protocol: int) -> None:
    marked = td.apply(lambda x: x.detach().clone().requires_grad_())

    for again in (pickle.loads(pickle.dumps(marked, protocol)), copy.deepcopy(marked)):
        assert_copy(marked, again)
        for path in marked.keys(True, True):
            assert again[path].requires_grad
            assert again[path].is_leaf


@given(schemas(), st.sampled_from([2, 3, 4, 5]))
def test_schema_is_one_object_wherever_it_comes_from(
    schema: Schema, protocol: int
) -> None:
    again: Any = pickle.loads(pickle.dumps(schema, protocol))

    assert again is schema
    assert copy.copy(schema) is schema
    assert copy.deepcopy(schema) is schema
    assert Schema(schema.cls, schema.keys, schema.kids, schema.surplus) is schema


@given(schemas(), schemas())
def test_schemas_are_equal_when_they_print_the_same_entries(
    one: Schema, two: Schema
) -> None:
    """Equality is identity for interned schemas, and means equal entries."""
    same = one.entries() == two.entries()

    assert same == (one == two) == (one is two)
    assert not same or hash(one) == hash(two)


@given(trees)
def test_consolidated_tree_is_the_tree_in_one_storage(td: TensorDict) -> None:
    for again in (td.consolidate(), td.share()):
        assert_copy(td, again)
        assert again._schema is td._schema
        storages = {
            x.untyped_storage().data_ptr()
            for _, x, _ in m.leaves(m.read(again))
            if x.numel()
        }
        assert len(storages) <= 1
        assert not {*pointers(td)} & {*pointers(again)}
        assert same_leaves(again) == same_leaves(td)


@given(trees)
def test_tree_sent_to_a_process_is_the_tree(td: TensorDict) -> None:
    again = pickle.loads(ForkingPickler.dumps(td))

    assert_copy(td, again)
    assert again._schema is td._schema
    assert not {*pointers(td)} & {*pointers(again)}
    assert same_leaves(again) == same_leaves(td)
