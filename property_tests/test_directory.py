"""Laws of directories: what was saved is loaded, and the peer reads its part."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from tdfunc.testing import (
    assert_equal,
    assert_pure,
    assert_valid,
    batch_sizes,
    keys,
    tensordicts,
)
from tests.cases import same
from tests.io.directories import load, save

# What file names, the peer's fields or our own files could be taken for.
ODD = (
    *("shape", "device", "_type", "_tdfunc", "_names", "_class", "meta.json"),
    *("a.memmap", "%tdfunc-0", "%2F", "..", ".", "a/b", "../a", "A", "\x00", "\ud800"),
    *("0", "1", "_tensordict", "type", "dtype", "k" * 249, "\u65e5" * 84),
)
KEYS = st.one_of(keys(), st.sampled_from(ODD))
TREES = tensordicts(key=KEYS, rows=True, unbatched=True, lazy=True)


@given(td=TREES)
def test_load_gives_what_was_saved(td: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        assert_pure(lambda tree: save(tree, Path(name, "d")), td)
        back = load(Path(name, "d"))

        assert [path.name for path in Path(name).iterdir()] == ["d"]
    assert_equal(back, td)
    assert_valid(back)
    assert list(back.keys(include_nested=True)) == list(td.keys(include_nested=True))
    # One tensor at two places is one tensor again.
    assert len({id(x) for x in back._leaves}) == len({id(x) for x in td._leaves})


# The peer loads stacks of no values, but can not save them.
SAVED = tensordicts(
    batch_sizes(min_size=1), key=KEYS, rows=True, unbatched=True, surplus=False
)


@given(td=SAVED)
def test_the_peer_reads_its_part_and_writes_it(td: Any) -> None:
    peer: Any = pytest.importorskip("tensordict")
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name, "d"), Path(name, "e")
        save(td, first)
        seen = peer.load_memmap(first, mode="r", allow_pickle=False)
        seen.memmap(second, copy_existing=True)
        back = load(second)

    assert tuple(seen.batch_size) == td.batch_size == back.batch_size
    for path, leaf in _tensors(td):
        if set(path) & set(ODD) or leaf.dtype not in _KNOWN:
            continue
        for tree in (seen, back):
            got = tree
            for key in path:
                got = got.get(key)
            assert same(got.as_subclass(torch.Tensor), leaf)


_KNOWN = {
    *(torch.float32, torch.int64, torch.float64, torch.bool, torch.int32, torch.uint8),
    *(torch.float16, torch.bfloat16, torch.complex64),
}


def _tensors(td: Any) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """Return the tensors that the batch indexes, by path."""
    schema = td._schema
    paths = [path for path, kid in _kids(schema) if kid >= 0]
    return [(path, td[path]) for path in paths]


def _kids(schema: Any, prefix: tuple[str, ...] = ()) -> list[Any]:
    found: list[Any] = []
    for key in schema.keys:
        kid = schema.index[key][0]
        if isinstance(kid, int):
            found.append(((*prefix, key), kid))
        else:
            found += _kids(kid, (*prefix, key))
    return found
