"""What is saved to one file is what is loaded, and no file breaks more than itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from tdfunc import TensorDict
from tdfunc.errors import FileFormatError, PickleRefusedError
from tdfunc.io import _consolidated, _safetensors
from tdfunc.testing import assert_equal, assert_valid, tensordicts
from tests.cases import ramp
from tests.io.one_file import alike, load, round_trip, save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

FORMATS = pytest.mark.parametrize("module", [_consolidated, _safetensors])


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "tree"


@FORMATS
@given(td=tensordicts(rows=True, unbatched=True, lazy=True))
def test_saving_and_loading_is_the_identity(module: ModuleType, td: Any, path: Path):
    try:
        got = round_trip(module, td, path)
    except PickleRefusedError:
        got = round_trip(module, td, path, allow_pickle=True)
    assert got.names == td.names


@FORMATS
@given(td=tensordicts(statics=False, min_leaves=1), data=st.data())
def test_loading_some_entries_is_selecting_them(
    module: ModuleType, td: TensorDict, data: st.DataObject, path: Path
):
    keys = [k if isinstance(k, tuple) else (k,) for k in td.keys(include_nested=True)]
    chosen = data.draw(st.lists(st.sampled_from(keys), min_size=1))
    save(module, td, path, overwrite=True)

    assert_equal(load(module, path, chosen), td.select(*chosen))


@given(td=tensordicts(rows=True, unbatched=True, lazy=True))
def test_the_peer_loads_every_file(td: Any, path: Path):
    peer = pytest.importorskip("tensordict")
    readers = {
        _consolidated: peer.TensorDict.from_consolidated,
        _safetensors: peer.from_safetensors,
    }
    for module, read in readers.items():
        save(module, td, path, overwrite=True, allow_pickle=True)
        got = read(path)

        assert got.batch_size == td.batch_size
        if isinstance(td, TensorDict):
            kinds = (TensorDict, torch.Tensor)
            for key, leaf in td.items(include_nested=True, leaves_only=True):
                if isinstance(leaf, kinds) and key in got.keys(include_nested=True):
                    assert alike(got.get(key), leaf)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.sampled_from([2**31, 2**62, 2**63, 2**64, -(2**63), 1.5, "", "a", "F32"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("ab$v"), inner, max_size=2)
    ),
    max_leaves=4,
)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in JSON with the key or place of each of its parts."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places_in(value[key])


def changed(data: st.DataObject, tree: Any) -> None:
    """Put another value anywhere into JSON, or take one away."""
    holder, key = data.draw(st.sampled_from(list(places_in(tree))))
    if data.draw(st.booleans()):
        holder[key] = data.draw(VALUES)
    else:
        del holder[key]


def loads_or_says_why(module: ModuleType, path: Path) -> bool:
    """Return whether a file holds a tree, or an error says that this file does not."""
    try:
        got = load(module, path)
    except (FileFormatError, PickleRefusedError) as error:
        return str(path) in str(error)
    assert_valid(got)
    return True


TREES = tensordicts(rows=True, unbatched=True, lazy=True, min_leaves=1, max_leaves=3)


@given(td=TREES, data=st.data(), part=st.sampled_from(["ours", "peer", "header"]))
def test_any_change_of_a_header(td: Any, data: st.DataObject, part: str, path: Path):
    save(_safetensors, td, path, overwrite=True, allow_pickle=True)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    metadata = header["__metadata__"]
    if part == "header":
        changed(data, header)
    elif part == "peer":
        tree = json.loads(metadata["tensordict"])
        changed(data, tree)
        header["__metadata__"] = {"tensordict": json.dumps(tree)}
    else:
        tree = json.loads(metadata["tdfunc"])
        changed(data, tree)
        metadata["tdfunc"] = json.dumps(tree)
        text = metadata["tdfunc"].encode()
        metadata["tdfunc_crc32"] = _safetensors._checksum(text)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    assert loads_or_says_why(_safetensors, path)


@given(td=TREES, data=st.data())
def test_any_change_of_a_trailer(td: Any, data: st.DataObject, path: Path):
    save(_consolidated, td, path, overwrite=True, allow_pickle=True)
    raw = path.read_bytes()
    length = int.from_bytes(raw[-8:], "little")
    node = json.loads(raw[-8 - length : -8])
    if data.draw(st.booleans()):
        del node["size"]  # now a file of the peer
    changed(data, node)
    text = json.dumps(node).encode()
    path.write_bytes(raw[: -8 - length] + text + len(text).to_bytes(8, "little"))
    assert loads_or_says_why(_consolidated, path)


@FORMATS
@given(raw=st.binary(max_size=200))
def test_any_bytes(module: ModuleType, raw: bytes, path: Path):
    path.write_bytes(raw)
    module.recognises(path)
    assert loads_or_says_why(module, path)


def test_the_file_of_a_tree_is_the_same_each_time(path: Path):
    td = TensorDict({"b": ramp(2), "a": {"s": "text", "c": ramp(2, 3)}}, 2)
    for module in (_consolidated, _safetensors):
        save(module, td, path, overwrite=True)
        first = path.read_bytes()
        save(module, td.clone(), path, overwrite=True)
        assert path.read_bytes() == first
