"""The interned structure: one object for equal structures, weak, bounded, flat."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import Schema, TensorDict
from tdfunc._core import schema as schema_module
from tdfunc.errors import ImmutableError, InvalidKeyError
from tests.cases import Case, cases, ramp

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def schema_of(td: TensorDict) -> Schema:
    return td._schema


@cases()
def test_equal_structures_are_one_object(case: Case) -> None:
    assert schema_of(case.tree) is schema_of(case.tree)


def test_sizes_dtypes_and_names_are_no_part_of_the_structure() -> None:
    td = TensorDict({"x": ramp(3, 2), "n": {"y": ramp(3)}}, 3)
    schema = schema_of(td)
    assert schema_of(td[0]) is schema
    assert schema_of(td[None, :, None]) is schema
    assert schema_of(tdfunc.stack([td, td])) is schema
    assert schema_of(td.to(torch.float64)) is schema
    assert schema_of(td.with_names(["t"])) is schema
    assert schema_of(TensorDict({"x": ramp(9, 8), "n": {"y": ramp(9)}}, 9)) is schema
    inside: list[Schema] = []
    torch.vmap(lambda t: inside.append(schema_of(t)) or t)(td)
    assert inside == [schema]


def test_keys_kinds_order_and_ranks_make_another_structure() -> None:
    td = TensorDict({"x": ramp(3, 2), "y": ramp(3)}, 3)
    others = [
        td.drop("y"),
        td.set("z", ramp(3)),
        td.set("y", "static"),
        td.set("y", {"z": ramp(3)}),
        td.set("y", ramp(3, 1)),
        TensorDict({"y": ramp(3), "x": ramp(3, 2)}, 3),
        td.with_batch_size([]),
        td.set("y", {}),
    ]
    schemas = [schema_of(t) for t in (td, *others)]
    for i, one in enumerate(schemas):
        for j, two in enumerate(schemas):
            assert (one == two) is (i == j)
            assert (one is two) is (i == j)


def test_a_structure_equals_no_other_thing() -> None:
    schema = schema_of(TensorDict({"x": 1}))
    assert schema != "x"
    assert schema is not None
    assert schema != None  # noqa: E711 - `==` is under test


@cases()
def test_a_structure_pickles_copies_and_hashes(case: Case) -> None:
    schema = schema_of(case.tree)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(schema, protocol)) is schema
    assert copy.copy(schema) is schema
    assert copy.deepcopy(schema) is schema
    assert hash(schema) == hash(schema_of(case.tree))


@cases()
def test_entries_list_the_structure_flat(case: Case) -> None:
    schema = schema_of(case.tree)
    rows = schema.entries()
    paths: list[tuple[str, ...]] = []
    here: list[str] = []
    for depth, key, *_ in rows:
        here = [*here[: depth - 1], key]
        paths.append(tuple(here))
    keys = case.tree.keys(True)
    assert paths == [k if isinstance(k, tuple) else (k,) for k in keys]


def test_entries_of_a_small_tree_by_hand() -> None:
    inner = TensorDict({"o": ramp(2, 3, 4)}, (2, 3))
    td = TensorDict({"x": ramp(2, 5, 6), "a": inner, "s": "text", "e": {}}, 2)
    assert schema_of(td).entries() == (
        (1, "x", 2, None),
        (1, "a", 1, TensorDict),
        (2, "o", 1, None),
        (1, "s", -1, None),
        (1, "e", 0, TensorDict),
    )


@cases(lambda case: bool(case.leaves))
def test_ranks_count_the_dims_behind_the_batch(case: Case) -> None:
    schema = schema_of(case.tree)
    assert schema.paths() == tuple(case.leaves)
    assert schema.ranks() == tuple(case.rank(path) for path in case.leaves)
    assert schema.dotted() == tuple(".".join(path) for path in case.leaves)
    assert schema.static_paths() == tuple(sorted(case.statics))


def test_repr_names_every_entry_with_its_kind() -> None:
    td = TensorDict({"x": ramp(2, 5), "n": {"y": ramp(2)}, "s": "text"}, 2)
    assert repr(schema_of(td)) == "Schema(x: 1, n: node, n.y: 0, s: static)"


def test_trees_match_whatever_the_order_of_their_keys() -> None:
    one = schema_of(TensorDict({"a": 1, "n": {"b": 2, "c": 3}}))
    two = schema_of(TensorDict({"n": {"c": 3, "b": 2}, "a": 1}))
    assert one != two
    assert one.matches(two)
    assert one.canon() is two.canon()
    assert not one.matches(schema_of(TensorDict({"a": 1})))


# Memory


def table_size() -> int:
    gc.collect()
    return len(schema_module._INTERNED.references)


def test_structures_that_nobody_uses_go_away() -> None:
    before = table_size()
    for i in range(2000):
        TensorDict({f"key {i}": 1, f"other {i}": {"x": 2}})

    # A bounded number of recent ones may stay.
    assert table_size() - before < 500


def test_a_structure_lives_as_long_as_a_tree_that_has_it() -> None:
    td = TensorDict({"only this test": 1})
    gc.collect()
    assert schema_of(TensorDict({"only this test": 2})) is schema_of(td)


def test_what_a_structure_remembers_is_bounded() -> None:
    td = TensorDict({"x": ramp(3), "n": {"y": ramp(3)}}, 3)
    for i in range(500):
        td.set(f"new {i}", ramp(3))
        td.select("x", f"zzz {i}", strict=False)
        td.get(f"missing {i}")
        assert f"missing {i}" not in td
        td.exclude(f"zzz {i}", ("n", f"zzz {i}"))
        td.set("x", ramp(3, *[1] * (i % 7)))
        pytree.tree_map(lambda x, i=i: x.reshape(*x.shape, *[1] * (i % 11)), td)
    schema = schema_of(td)
    memory = [
        getattr(schema, name) for name in Schema.__slots__ if name != "__weakref__"
    ]
    for value in memory:
        if isinstance(value, dict):
            assert len(value) <= 64


def test_a_structure_holds_no_tensor() -> None:
    td = TensorDict({"x": ramp(3), "n": {"y": ramp(3)}}, 3)
    leaf = weakref.ref(td["x"])
    other = td.set("x", ramp(3)).drop("n").set("n", td["n"])
    assert schema_of(other) is schema_of(td)
    del td
    gc.collect()
    assert leaf() is None


# Threads and processes


def test_threads_that_build_the_same_structures_get_the_same_object() -> None:
    barrier = threading.Barrier(8)

    def build(_: int) -> list[Schema]:
        barrier.wait()
        return [
            schema_of(TensorDict({f"k{i}": ramp(2), "n": {f"m{i}": {}}}, 2))
            for i in range(200)
        ]

    with ThreadPoolExecutor(8) as pool:
        columns = list(pool.map(build, range(8)))
    for row in zip(*columns, strict=True):
        assert all(schema is row[0] for schema in row)


def test_threads_that_settle_one_tree_see_the_same_batch_size() -> None:
    td = TensorDict({"x": ramp(3, 2), "n": {"y": ramp(3)}}, 3)
    for _ in range(50):
        out = pytree.tree_map(lambda x: x[None], td)
        with ThreadPoolExecutor(8) as pool:
            sizes = list(pool.map(lambda t: (t.batch_size, schema_of(t)), [out] * 8))
        assert {size for size, _ in sizes} == {torch.Size((1, 3))}


def _child(connection: Connection, td: TensorDict) -> None:
    fresh = TensorDict({"made in the child": 1, "n": {"m": 2}})
    again = TensorDict({"x": ramp(3), "n": {"y": ramp(3)}}, 3)
    connection.send(
        (
            fresh.keys(),
            schema_of(again) is schema_of(td),
            schema_of(fresh) is schema_of(fresh * 2),
        )
    )
    connection.close()


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork here"
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_while_a_thread_holds_the_table_leaves_it_usable() -> None:
    td = TensorDict({"x": ramp(3), "n": {"y": ramp(3)}}, 3)
    context = multiprocessing.get_context("fork")
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with schema_module._INTERNED.lock:
            held.set()
            free.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    ours, theirs = context.Pipe()
    process: Any = context.Process(target=_child, args=(theirs, td))
    process.start()
    try:
        assert ours.poll(60), "the child hangs on the lock that it inherited"
        keys, known, interned = ours.recv()
    finally:
        free.set()
        holder.join()
        process.join(60)
        if process.is_alive():
            process.kill()
    assert process.exitcode == 0
    assert keys == ("made in the child", "n")
    assert known
    assert interned


def test_a_schema_can_not_be_changed_and_refuses_keys_that_come_twice() -> None:
    schema = TensorDict({"x": torch.zeros(2)})._schema
    with pytest.raises(ImmutableError, match="keys"):
        schema.keys = ()
    with pytest.raises(InvalidKeyError, match="twice"):
        Schema(TensorDict, ("a", "a"), (1, 2))
