"""Trees 2,000 deep and 20,000 keys wide: nothing recurses, nothing is quadratic."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import time
from typing import Any

import optree
import pytest
import torch
from torch.utils import _cxx_pytree as cxx_pytree
from torch.utils import _pytree as pytree

import tdfunc
from tdfunc import TensorDict

DEPTH = 2000
WIDTH = 20_000


def deep_mapping(value: float = 1.0) -> dict[str, Any]:
    level: dict[str, Any] = {"leaf": torch.full((2,), value)}
    for i in range(DEPTH):
        level = {"down": level, "s": f"level {i}"} if i % 100 == 0 else {"down": level}
    return level


def wide_mapping(value: float = 1.0) -> dict[str, Any]:
    return {f"k{i}": torch.full((2,), value) for i in range(WIDTH)}


BOTTOM = (*("down",) * DEPTH, "leaf")


@pytest.fixture(scope="module")
def deep() -> TensorDict:
    return TensorDict(deep_mapping(), 2)


@pytest.fixture(scope="module")
def wide() -> TensorDict:
    return TensorDict(wide_mapping(), 2)


@pytest.fixture(params=["deep", "wide"])
def big(request: pytest.FixtureRequest) -> Any:
    """Return a tree and the path of one of its leaves, as a deep key or a wide one."""
    path = BOTTOM if request.param == "deep" else (f"k{WIDTH - 1}",)
    return request.getfixturevalue(request.param), path


def test_it_is_built_and_read(big: Any) -> None:
    td, path = big
    assert td.batch_size == torch.Size((2,))
    assert td[path].tolist() == [1, 1]
    assert path in td
    assert len(td.keys(True, True)) == (1 if len(path) > 1 else WIDTH)


def test_it_prints_short_and_in_full(big: Any) -> None:
    td, _ = big
    assert len(repr(td)) < 4000
    assert td.to_tree_string().count("\n") >= DEPTH
    assert "TensorDict" in td._repr_html_()
    assert "Schema(" in repr(td._schema)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_it_pickles(big: Any, protocol: int) -> None:
    td, path = big
    again = pickle.loads(pickle.dumps(td, protocol))
    assert again._schema is td._schema
    assert again[path].tolist() == [1, 1]


def test_it_copies(big: Any) -> None:
    td, path = big
    assert copy.copy(td) is td
    assert copy.deepcopy(td)[path].tolist() == [1, 1]
    assert td.clone()[path].tolist() == [1, 1]


def test_its_structure_compares_and_hashes(big: Any) -> None:
    td, path = big
    other = td.set(path, torch.zeros(2, 3))
    assert hash(td._schema) == hash((td * 1)._schema)
    assert td._schema != other._schema
    assert td._schema.matches(other._schema)
    assert td.equal(td * 1)
    assert not td.equal(other)
    rebuilt = pickle.loads(pickle.dumps(other._schema))
    assert rebuilt is other._schema


def test_its_pytrees_flatten_map_and_dump(big: Any) -> None:
    td, path = big
    maps: list[Any] = [pytree.tree_map, cxx_pytree.tree_map, optree.tree_map]
    for tree_map in maps:
        out = tree_map(lambda x: x + 1, td)
        assert out[path].tolist() == [2, 2]
        assert out.batch_size == torch.Size((2,))
    spec = pytree.tree_structure(td)
    assert spec == pytree.tree_structure(td * 2)
    assert hash(spec) == hash(pytree.tree_structure(td * 2))
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    rows = pytree.tree_flatten_with_path(td)[0]
    assert pytree.key_get(td, rows[-1][0]) is rows[-1][1]


def test_arithmetic_and_shapes(big: Any) -> None:
    td, path = big
    assert (td + td * 2)[path].tolist() == [3, 3]
    assert (td - td[0])[path].tolist() == [0, 0]
    assert td[1].batch_size == torch.Size(())
    assert td[None][path].shape == (1, 2)
    assert td.reshape(2, 1).unsqueeze(0).permute(2, 1, 0)[path].shape == (1, 2, 1)
    assert tdfunc.stack([td, td])[path].shape == (2, 2)
    assert tdfunc.cat([td, td])[path].shape == (4,)
    assert len(td.unbind()) == 2
    assert td.sum(0)[path].item() == 2


def test_vmap_and_grad(big: Any) -> None:
    td, path = big
    out = torch.vmap(lambda t: t * 2)(td)
    assert out[path].tolist() == [2, 2]
    assert out.batch_size == torch.Size((2,))
    gradient = torch.func.grad(lambda t: (t[path] ** 2).sum())(td)
    assert gradient[path].tolist() == [2, 2]


def test_entries_change(big: Any) -> None:
    td, path = big
    assert td.set(path, torch.zeros(2))[path].tolist() == [0, 0]
    assert (*path[:-1], "new") in td.set((*path[:-1], "new"), torch.zeros(2))
    assert path not in td.drop(path)
    assert path not in td.exclude(path)
    assert td.select(path).keys(True, True)[-1] == (path if len(path) > 1 else path[0])
    assert td.update(td * 2)[path].tolist() == [2, 2]
    assert td.replace(td * 3)[path].tolist() == [3, 3]
    assert td.with_batch_size([])[path].tolist() == [1, 1]


def test_it_becomes_a_dict_and_comes_back(big: Any) -> None:
    td, path = big
    again = TensorDict(td.to_dict(), 2)
    assert again._schema is td._schema
    assert tdfunc.from_dict(td.to_dict(), auto_batch_size=True)[path].tolist() == [1, 1]


def test_every_level_of_a_deep_tree_can_be_walked(deep: TensorDict) -> None:
    node: Any = deep
    for _ in range(DEPTH):
        node = node["down"]
        assert node.batch_size == torch.Size((2,))
    assert node.keys() == ("leaf",)


def test_deep_trees_that_do_not_match_say_where(deep: TensorDict) -> None:
    other = deep.drop(BOTTOM)
    with pytest.raises(ValueError, match=r"'leaf'\] is missing"):
        deep + other


def test_a_new_path_may_be_as_deep() -> None:
    td = TensorDict({"x": torch.zeros(2)}, 2).set(BOTTOM, torch.ones(2))
    assert td[BOTTOM].tolist() == [1, 1]


# In an interpreter of its own: a stack overflow in C kills the process.
DEALLOC = f"""
import gc, pickle, sys, threading
sys.path.insert(0, {str(__file__)!r}.rsplit("/", 3)[0])
from tests.core.test_size import *

def work(kinds):
    for width in kinds:
        td = TensorDict(wide_mapping() if width else deep_mapping(), 2)
        data = pickle.dumps(td)
        out = pytree.tree_map(lambda x: x + 1, td) + td
        plain = td.to_dict()
        del td, out, plain
        gc.collect()
        again = pickle.loads(data)
        assert again.batch_size == torch.Size((2,))
        del again
        gc.collect()

work([True, False])
# Threads have small stacks.
thread = threading.Thread(target=work, args=([False],))
thread.start()
thread.join()
print("done")
"""


def test_freeing_it_does_not_overflow_the_stack() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEALLOC], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


@pytest.mark.parametrize("merge", [TensorDict.update, TensorDict.replace])
def test_merging_deep_trees_is_not_cubic_in_the_depth(
    deep: TensorDict, merge: Any
) -> None:
    # A structure that nothing has been asked of yet.
    new = (*BOTTOM[:-1], f"only to {merge.__name__}")
    fresh = deep.set(new, torch.zeros(2))
    other = fresh * 2
    # Of this process: the clock on the wall counts what else the machine does.
    start = time.process_time()
    merge(fresh, other)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "use",
    [
        lambda td: TensorDict(dict(td.items()), 2),
        lambda td: td.set("k1", torch.zeros(2, 3)),
        lambda td: td.drop("k1"),
        lambda td: td.select("k1", "k2"),
        lambda td: td.update({"k1": torch.zeros(2)}),
        lambda td: td + td,
        lambda td: pickle.loads(pickle.dumps(td)),
        lambda td: pytree.tree_map(lambda x: x, td).batch_size,
        lambda td: td.keys(True, True, sort=True),
        repr,
    ],
    ids=[
        *("construct", "set", "drop", "select", "update", "add", "pickle", "tree_map"),
        *("keys", "repr"),
    ],
)
def test_work_on_20000_keys_is_linear(wide: TensorDict, use: Any) -> None:
    # Linear work takes well under a second; quadratic work would take minutes.
    start = time.process_time()
    use(wide)
    assert time.process_time() - start < 20
