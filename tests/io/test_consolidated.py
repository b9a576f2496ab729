"""The consolidated file: trees there and back, the peer both ways, broken files."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tdfunc import (
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    lazy_stack,
    unbatched,
)
from tdfunc.errors import (
    FileFormatError,
    MissingFileError,
    PickleRefusedError,
    TargetExistsError,
)
from tdfunc.io import _consolidated
from tdfunc.io._options import ReadOptions
from tests.cases import CASES, OBJECT, ROW_CASES, bytes_of, cases, leaves_of, ramp, walk
from tests.io import one_file
from tests.io.one_file import alike, even_stack, jagged, plain_of, ragged_stack

if TYPE_CHECKING:
    from pathlib import Path as FilePath

    from tests.cases import Case

save = partial(one_file.save, _consolidated)
load = partial(one_file.load, _consolidated)
round_trip = partial(one_file.round_trip, _consolidated)

LENGTH = 8


class Thing(TensorClass):
    x: torch.Tensor
    s: str


@pytest.fixture
def path(tmp_path: FilePath) -> FilePath:
    return tmp_path / "tree.tdc"


def has_object(case: Case) -> bool:
    """Return whether a case has a value that only pickle writes, as another object."""
    return "OBJECT" in repr(case.entries) or any(
        value is OBJECT or (hasattr(value, "flat") and OBJECT in value.flat())
        for _, value in walk(case.entries)
        if not isinstance(value, torch.Tensor)
    )


TREES = [case for case in CASES + ROW_CASES if not has_object(case)]


def trailer_of(path: FilePath) -> dict[str, Any]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[-LENGTH:], "little")
    return json.loads(raw[-LENGTH - length : -LENGTH])


def write_file(path: FilePath, node: Any, data: bytes = bytes(64)) -> None:
    """Write what the peer would write of a node."""
    raw = node if isinstance(node, bytes) else json.dumps(node).encode()
    path.write_bytes(data + raw + len(raw).to_bytes(LENGTH, "little"))


def node_of(leaves: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return a node as the peer writes it."""
    metadata = {"device": None, "names": [], "batch_size": [], "is_locked": False}
    plain = {"cls": "TensorDict", "non_tensors": {}, "leaves": leaves or {}}
    return {**plain, "cls_metadata": metadata, **more}


class TestRoundTrip:
    @cases(table=TREES)
    def test_every_tree_comes_back(self, case: Case, path: FilePath):
        got = round_trip(case.tree, path)

        for at, leaf in leaves_of(got).items():
            if at in case.leaves:
                assert bytes_of(leaf) == bytes_of(case.leaves[at])
        assert list(got.keys()) == list(case.entries)

    def test_one_tensor_at_two_places_is_one_in_the_file(self, path: FilePath):
        leaf = ramp(3, 1000)
        got = round_trip(TensorDict({"a": leaf, "n": {"b": leaf}}, 3), path)

        assert got["a"] is got["n", "b"]
        assert path.stat().st_size < leaf.nbytes + 2000

    @pytest.mark.parametrize(
        "tree",
        [ragged_stack(), even_stack(0), even_stack(1), lazy_stack([even_stack(0)] * 2)],
        ids=["ragged", "even", "even, second dim", "of stacks"],
    )
    def test_lazy_stacks(self, tree: Any, path: FilePath):
        round_trip(tree, path)
        round_trip(TensorDict({"n": {"lazy": tree}}), path)

    def test_jagged_tensors(self, path: FilePath):
        for tensor in (jagged(), jagged(lengths=True)):
            td = TensorDict({"j": tensor, "k": tensor.clone(), "x": ramp(3)}, 3)
            save(td, path, overwrite=True)
            got = load(path)

            assert alike(got["j"], tensor)
            # Tensors that share offsets do so again.
            assert got["j"].shape == got["k"].shape

    def test_records_become_plain_nodes_with_a_note(self, path: FilePath):
        thing = Thing(x=ramp(2, 3), s="text", batch_size=[2])
        save(TensorDict({"t": thing}, 2), path)
        got = load(path)["t"]

        assert type(got) is TensorDict
        assert got["s"] == "text"
        assert alike(got["x"], ramp(2, 3))
        with _consolidated.open_source(path, ReadOptions()) as source:
            note = source.outline().entries["t"].record  # type: ignore[union-attr]
        assert note == f"{Thing.__module__}:Thing"

    def test_deep_trees(self, path: FilePath):
        td = TensorDict({"x": ramp(2)}, 2)
        for _ in range(500):
            td = TensorDict({"k": td}, 2)
        save(td, path)
        got = load(path)

        assert got[("k",) * 500 + ("x",)].tolist() == [0, 1]

    @pytest.mark.parametrize(
        "key",
        ["\ud83d\ude00", "\ud800", "a\0b", "k" * 200, "<NJT_VALUES>x", "$", "size"],
    )
    def test_any_key(self, key: str, path: FilePath):
        got = round_trip(TensorDict({key: ramp(2), "n": {key: {key: "v"}}}, 2), path)

        assert list(got.keys()) == [key, "n"]

    def test_every_dtype_of_torch_with_whole_bytes(self, path: FilePath):
        tree = {
            str(dtype): torch.arange(64, dtype=torch.uint8).view(dtype)
            for dtype in vars(torch).values()
            if isinstance(dtype, torch.dtype)
            and not str(dtype).startswith(("torch.q", "torch.bits", "torch.int1"))
            and dtype != torch.bool
        }
        save(TensorDict(tree), path)
        got = load(path)

        assert {k: v.dtype for k, v in got.items()} == {
            k: v.dtype for k, v in tree.items()
        }
        for key, leaf in tree.items():
            assert bytes_of(got[key]) == bytes_of(leaf)

    def test_some_entries_of_a_file(self, path: FilePath):
        save(TensorDict({"a": ramp(2), "n": {"b": ramp(2) + 1, "c": ramp(2)}}, 2), path)
        got = load(path, keys=[("n", "b")])

        assert list(got.keys()) == ["n"]
        assert got["n", "b"].tolist() == [1, 2]

    def test_what_is_loaded_is_private(self, path: FilePath):
        save(TensorDict({"small": ramp(2), "big": ramp(100_000)}), path)
        before = path.read_bytes()
        got = load(path)
        got["small"].add_(1)
        got["big"].add_(1)

        assert path.read_bytes() == before
        assert load(path)["big"][:2].tolist() == [0, 1]

    def test_saving_onto_the_file_that_is_mapped(self, path: FilePath):
        save(TensorDict({"big": ramp(100_000)}), path)
        old = load(path)
        save(old + 1, path, overwrite=True)

        assert old["big"][:2].tolist() == [0, 1]
        assert load(path)["big"][:2].tolist() == [1, 2]

    def test_progress_counts_the_bytes_of_arrays(self, path: FilePath):
        td = TensorDict({"a": ramp(7), "b": ramp(0), "n": {"c": ramp(100_000)}})
        written: list[int] = []
        read: list[int] = []
        save(td, path, progress=written.append)
        load(path, progress=read.append)

        assert sum(written) == sum(read) == 4 * 100_007


class TestLayout:
    def test_leaves_begin_at_multiples_of_64(self, path: FilePath):
        leaves = {"a": ramp(3, dtype=torch.uint8), "z": ramp(2).to(torch.complex128)}
        save(TensorDict(leaves), path)
        said = trailer_of(path)["leaves"]

        assert said == {
            "a": ["torch.uint8", [3], 0, 3, 0],
            "z": ["torch.complex128", [2], 64, 96, 0],
        }
        assert path.read_bytes()[:3] == bytes([0, 1, 2])
        assert path.read_bytes()[64:96] == bytes_of(leaves["z"])

    def test_nothing_is_written_of_a_tree_that_can_not_be(self, path: FilePath):
        with pytest.raises(PickleRefusedError, match=r"td\['n', 'o'\]"):
            save(TensorDict({"n": {"o": OBJECT}}), path)
        assert not path.exists()

    def test_a_file_is_replaced_only_if_asked(self, path: FilePath):
        save(TensorDict({"a": ramp(2)}), path)
        with pytest.raises(TargetExistsError):
            save(TensorDict({"a": ramp(3)}), path)
        assert load(path)["a"].tolist() == [0, 1]

    def test_pickles_are_read_only_if_asked(self, path: FilePath):
        save(TensorDict({"o": OBJECT}), path, allow_pickle=True)
        with pytest.raises(PickleRefusedError, match=r"tree\.tdc"):
            load(path)
        assert type(load(path, allow_pickle=True)["o"]) is object

    def test_it_is_told_from_other_files(self, tmp_path: FilePath, path: FilePath):
        save(TensorDict({}), path)
        assert _consolidated.recognises(path)
        for raw in (b"", b"x" * 7, bytes(100), b"{}" + (2).to_bytes(8, "little")):
            other = tmp_path / "other"
            other.write_bytes(raw)
            assert not _consolidated.recognises(other)
        assert not _consolidated.recognises(tmp_path)
        assert not _consolidated.recognises(tmp_path / "none")


class TestPeerReadsOurs:
    @pytest.fixture
    def peer(self) -> Any:
        return pytest.importorskip("tensordict")

    @cases(table=TREES)
    def test_every_tree(self, peer: Any, case: Case, path: FilePath):
        save(case.tree, path)
        got = peer.TensorDict.from_consolidated(path)

        assert got.batch_size == case.batch
        assert tuple(got.names) == (case.names or (None,) * len(case.batch))
        for at, leaf in case.leaves.items():
            assert alike(got.get(at), leaf)
        for at, value in case.statics.items():
            if type(value) in {str, type(None)} or at[-1] == "tags":
                assert plain_of(peer, got._get_tuple(at, None)) == value

    def test_lazy_stacks_rows_and_jagged_tensors(self, peer: Any, path: FilePath):
        rows = TensorDict({"rows": [["a", "b"], ["b", ""]]}, (2, 2))
        save(TensorDict({"n": rows, "e": even_stack(1)}, 2), path)
        got = plain_of(peer, peer.TensorDict.from_consolidated(path))
        assert got["n"] == {"rows": [["a", "b"], ["b", ""]]}
        assert alike(got["e"][2]["x"], ramp(2, 3) + 2)

        save(ragged_stack(), path, overwrite=True)
        got = plain_of(peer, peer.TensorDict.from_consolidated(path))
        assert alike(got[1], {"x": ramp(2, 5), "z": ramp(2), "s": "other"})

        for tensor in (jagged(), jagged(lengths=True)):
            save(TensorDict({"j": tensor}, 3), path, overwrite=True)
            got = peer.TensorDict.from_consolidated(path)
            assert alike(got["j"], tensor)

    def test_names_of_stacks(self, peer: Any, path: FilePath):
        tree = lazy_stack([TensorDict({"x": ramp(2, 3)}, 2) for _ in range(3)], 1)
        round_trip(tree.with_names(["a", "b"]), path)

        assert peer.TensorDict.from_consolidated(path).names == ["a", "b"]

    def test_what_it_can_not_hold_is_hidden_and_not_lost(
        self, peer: Any, path: FilePath
    ):
        tree = {
            "x": ramp(2),
            "f8": ramp(2).to(torch.float8_e5m2),
            "g": unbatched(ramp(7)),
            "tuple": NonTensorData((1, 2)),
            "keys": NonTensorData({1: "a"}),
            "<NJT>": ramp(2),
            "<NJT_VALUES>v": ramp(2),
            "size": {"a": ramp(2)},
            "cls": {"a": ramp(2)},
            "leaves": {"a": ramp(2)},
            "non_tensors": {"a": ramp(2)},
            "cls_metadata": {"a": ramp(2)},
            "rows": NonTensorStack((1,), (2,)),
            "\ud83d\ude00": ramp(2),
        }
        got = round_trip(TensorDict(tree, 2), path)
        assert list(got.keys()) == list(tree)

        seen = peer.TensorDict.from_consolidated(path)
        assert alike(plain_of(peer, seen), {"x": ramp(2)})

    def test_leaves_by_the_names_of_its_fields(self, peer: Any, path: FilePath):
        tree = {key: ramp(2) for key in ("cls", "leaves", "size", "a.b", "é")}
        save(TensorDict({**tree, "n": tree, "m": {"size": "text"}}, 2), path)
        got = plain_of(peer, peer.TensorDict.from_consolidated(path))

        assert alike(got, {**tree, "n": tree, "m": {"size": "text"}})


class TestWeReadThePeers:
    @pytest.fixture
    def peer(self) -> Any:
        return pytest.importorskip("tensordict")

    def test_all_that_it_writes(self, peer: Any, path: FilePath):
        td = peer.TensorDict(
            {
                "a": ramp(2, 3, dtype=torch.int16),
                "n": peer.TensorDict(
                    {"b": ramp(2, 1), "s": "hi", "bf": ramp(2, 3).bfloat16()},
                    [2],
                    names=["k"],
                ),
                "c": ramp(2).to(torch.complex64),
                "z": torch.zeros(2, 0, 3),
                "u": ramp(2, dtype=torch.uint8),
                "stack": peer.NonTensorStack("p", "q"),
                "value": peer.NonTensorData({"v": 1, "n": None, "l": [1.5]}, [2]),
                "empty": peer.TensorDict({}, [2]),
            },
            [2],
            names=["k"],
        )
        td.consolidate(filename=path)
        got = load(path)

        assert got.batch_size == (2,)
        assert got.names == ("k",)
        assert got["stack"] == ["p", "q"]
        assert got["n", "s"] == "hi"
        assert got["value"] == {"v": 1, "n": None, "l": [1.5]}
        assert got["empty"].batch_size == (2,)
        for key in ("a", "c", "z", "u", ("n", "b"), ("n", "bf")):
            assert alike(got[key], td[key])

    def test_jagged_tensors(self, peer: Any, path: FilePath):
        for tensor in (jagged(), jagged(lengths=True)):
            td = peer.TensorDict({"j": tensor, "x": ramp(3)}, [3])
            path.unlink(missing_ok=True)
            td.consolidate(filename=path)

            assert alike(load(path)["j"], tensor)

    def test_lazy_stacks(self, peer: Any, path: FilePath):
        one = peer.TensorDict({"x": ramp(2, 3), "s": "a"}, [2], names=["t"])
        other = peer.TensorDict({"x": ramp(2, 4), "y": ramp(2)}, [2], names=["t"])
        stack = peer.lazy_stack([one, other], 1)
        peer.TensorDict({"n": stack}, []).consolidate(filename=path)
        got = load(path)["n"]

        assert got.batch_size == (2, 2)
        assert got.stack_dim == 1
        assert alike(got.tensordicts[1]["x"], ramp(2, 4))
        assert got.tensordicts[0]["s"] == "a"

    def test_stacks_of_values_of_two_dims(self, peer: Any, path: FilePath):
        values = peer.NonTensorStack(
            peer.NonTensorStack("a", "b", "c"), peer.NonTensorStack("d", "e", "f")
        )
        peer.TensorDict({"s": values}, [2, 3]).consolidate(filename=path)

        assert load(path)["s"] == [["a", "b", "c"], ["d", "e", "f"]]

    def test_records_become_plain_nodes(self, peer: Any, path: FilePath):
        class Thing:
            x: torch.Tensor
            s: str

        cls = peer.tensorclass(Thing)
        thing = cls(x=ramp(2, 3), s="text", batch_size=[2])
        peer.TensorDict({"t": thing}, [2]).consolidate(filename=path)
        got = load(path)

        assert type(got["t"]) is TensorDict
        assert got["t", "s"] == "text"
        assert alike(got["t", "x"], ramp(2, 3))
        with _consolidated.open_source(path, ReadOptions()) as source:
            note = source.outline().entries["t"].record  # type: ignore[union-attr]
        assert note is not None
        assert note.endswith(":Thing")

    def test_files_padded_with_spaces(self, path: FilePath):
        raw = json.dumps(node_of({"a": ["torch.int8", [3], 0, 8, 5]})).encode()
        write_file(path, raw + b" " * 50)

        assert load(path)["a"].tolist() == [0, 0, 0]


LEAF = ["torch.float32", [2], 8, 16, 0]

BAD_LEAVES: dict[str, Any] = {
    "a negative start": ["torch.float32", [2], -8, 0, 0],
    "a start after the end": ["torch.float32", [2], 64, 72, 0],
    "a stop after the end": ["torch.float32", [16], 8, 72, 0],
    "a start within an element": ["torch.float32", [2], 2, 10, 0],
    "a stop before the start": ["torch.float32", [2], 16, 8, 0],
    "too few bytes": ["torch.float32", [2], 8, 12, 0],
    "too much padding": ["torch.float32", [2], 8, 16, 9],
    "negative padding": ["torch.float32", [2], 8, 12, -4],
    "a negative size": ["torch.float32", [-2], 8, 16, 0],
    "sizes whose product is negative twice": ["torch.float32", [-2, -1], 8, 16, 0],
    "a size that is true": ["torch.float32", [True, 2], 8, 16, 0],
    "a size that is no integer": ["torch.float32", [2.0], 8, 16, 0],
    "a start that is no integer": ["torch.float32", [2], 8.0, 16, 0],
    "a product that overflows": ["torch.float32", [2**32, 2**32], 0, 0, 0],
    "a product that overflows to nothing": ["torch.int8", [2**62, 4, 0], 0, 0, 0],
    "an unknown dtype": ["torch.os", [2], 8, 16, 0],
    "a quantized dtype": ["torch.qint8", [2], 8, 10, 0],
    "a dtype that is no text": [None, [2], 8, 16, 0],
    "no shape": ["torch.float32", None, 8, 16, 0],
    "too few members": ["torch.float32", [2], 8],
    "no list": {"a": 1},
    "text": "torch.float32",
}

BAD_NODES: dict[str, Any] = {
    "no object": [1, 2],
    "null": None,
    "no fields": {},
    "a class that is no text": node_of(cls=1),
    "an unknown class": node_of(cls="Evil"),
    "leaves that are no object": node_of(leaves=None) | {"leaves": [1]},
    "a member that is no node": node_of(n=1),
    "a member without fields": node_of(n={"a": 1}),
    "a name that is a leaf and a node": node_of({"a": LEAF}, a=node_of()),
    "a leaf and a value": node_of({"a": LEAF}, non_tensors={"a": [1, [], None]}),
    "a value without batch size": node_of(non_tensors={"a": 1}),
    "leaves that share bytes": node_of(
        {"a": LEAF, "b": ["torch.float32", [2], 12, 20, 0]}
    ),
    "a batch size that no leaf has": node_of(
        {"a": LEAF},
        cls_metadata={"names": [None], "batch_size": [3]},
    ),
    "a batch size that is no list": node_of(cls_metadata={"batch_size": 2}),
    "names that are not as many": node_of(
        cls_metadata={"names": ["a", "b"], "batch_size": [2]}
    ),
    "names twice": node_of(cls_metadata={"names": ["a", "a"], "batch_size": [2, 2]}),
    "an empty key": node_of({"": LEAF}),
    "a node with another batch size": node_of(
        cls_metadata={"names": [], "batch_size": [2]}, n=node_of()
    ),
    "a stack that misses a member": node_of(
        cls="LazyStackedTensorDict", cls_metadata={"stack_dim": 0}, **{"1": node_of()}
    ),
    "a stack along a dim that is not": node_of(
        cls="LazyStackedTensorDict", cls_metadata={"stack_dim": 1}, **{"0": node_of()}
    ),
    "a stack of a leaf": node_of(
        {"0": LEAF}, cls="LazyStackedTensorDict", cls_metadata={"stack_dim": 0}
    ),
    "a stack of values only": node_of(
        cls="NonTensorStack", cls_metadata={"stack_dim": 0}
    ),
    "values of too many rows": node_of(
        s=node_of(
            cls="NonTensorStack",
            cls_metadata={"stack_dim": 0},
            non_tensors={"0": ["x", [2**40], None]},
        )
    ),
    "values and a node": node_of(
        s=node_of(
            cls="NonTensorStack", cls_metadata={"stack_dim": 0}, **{"0": node_of()}
        )
    ),
    "offsets without values": node_of({"<NJT_OFFSETS>a": LEAF}),
    "values without offsets": node_of({"<NJT_VALUES>a": LEAF}),
    "offsets that are no integers": node_of(
        {"<NJT_VALUES>a": LEAF, "<NJT_OFFSETS>a": ["torch.float32", [2], 16, 24, 0, 1]}
    ),
    "a part of a jagged tensor that is not known": node_of({"<NJT_EVIL>a": LEAF}),
    "a record that is not there": node_of(size={"tdfunc": [1, 10**9, 10, 0]}),
    "a record that is no list": node_of(size={"tdfunc": "x"}),
    "a record that is nothing": node_of(size={"other": 1}),
    "a record of a later version": node_of(size={"tdfunc": [2, 0, 10, 0]}),
}

BAD_JSON: dict[str, bytes] = {
    "none": b"xxxx",
    "cut": b'{"cls": "TensorDict"',
    "two values": b"{} {}",
    "a key twice": b'{"a": 1, "a": 2}',
    "nested deeply": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "no UTF-8": b'{"a": "\xff"}',
}


class TestBroken:
    @pytest.mark.parametrize("leaf", BAD_LEAVES.values(), ids=BAD_LEAVES)
    def test_leaves(self, leaf: Any, path: FilePath):
        write_file(path, node_of({"a": leaf}))
        with pytest.raises(FileFormatError, match=r"tree\.tdc"):
            load(path)

    @pytest.mark.parametrize("node", BAD_NODES.values(), ids=BAD_NODES)
    def test_nodes(self, node: Any, path: FilePath):
        write_file(path, node)
        with pytest.raises(FileFormatError, match=r"tree\.tdc"):
            load(path)

    @pytest.mark.parametrize("raw", BAD_JSON.values(), ids=BAD_JSON)
    def test_json(self, raw: bytes, path: FilePath):
        write_file(path, raw)
        with pytest.raises(FileFormatError, match=r"tree\.tdc"):
            load(path)

    @pytest.mark.parametrize("length", [0, 1, -1, 10**6, 2**63 - 1, -(2**63)])
    def test_lengths(self, length: int, path: FilePath):
        path.write_bytes(bytes(100) + length.to_bytes(8, "little", signed=True))
        with pytest.raises(FileFormatError, match=r"tree\.tdc"):
            load(path)

    @pytest.mark.parametrize("size", [0, 1, 7, 8])
    def test_files_that_are_too_short(self, size: int, path: FilePath):
        path.write_bytes(bytes(size))
        with pytest.raises(FileFormatError, match=r"tree\.tdc"):
            load(path)

    def test_what_is_no_file(self, tmp_path: FilePath):
        with pytest.raises(FileFormatError, match="no file"):
            load(tmp_path)
        with pytest.raises(MissingFileError, match="nothing"):
            load(tmp_path / "nothing")

    def test_leaves_at_one_place_are_one_tensor(self, path: FilePath):
        write_file(path, node_of({"a": LEAF, "b": LEAF}))
        got = load(path)

        assert got["a"] is got["b"]

    @pytest.mark.parametrize("offsets", [[0, 9], [-1, 2], [2, 0], [0, 2**62]], ids=str)
    def test_offsets_that_leave_the_values(self, offsets: list[int], path: FilePath):
        values = ["torch.float32", [2], 0, 8, 0]
        held = ["torch.int64", [2], 8, 24, 0, 1]
        data = bytes(8) + bytes_of(torch.tensor(offsets))
        write_file(
            path, node_of({"<NJT_VALUES>a": values, "<NJT_OFFSETS>a": held}), data
        )
        with pytest.raises(FileFormatError, match="offsets"):
            load(path)

    def test_cut_anywhere(self, path: FilePath):
        td = TensorDict({"a": ramp(3), "n": {"s": "text", "b": ramp(3, 5)}}, 3)
        save(td, path)
        whole = path.read_bytes()
        for size in range(0, len(whole), 3):
            path.write_bytes(whole[:size])
            with pytest.raises(FileFormatError, match=r"tree\.tdc"):
                load(path)

    def test_flipped_bits_are_found_or_harmless(self, path: FilePath):
        td = TensorDict({"a": ramp(3), "n": {"s": "text", "b": ramp(3, 5)}}, 3)
        save(td, path)
        # Behind the tensors.
        places = range(128, path.stat().st_size, 2)
        found = one_file.damages(_consolidated, path, places, td.to_dict())

        assert len(found) > 100
        assert all("tree.tdc" in text for text in found)

    def test_a_file_that_is_cut_while_it_is_open(self, path: FilePath):
        save(TensorDict({"a": ramp(1000)}), path)
        source = _consolidated.open_source(path, ReadOptions())
        path.write_bytes(path.read_bytes()[:100])
        with source, pytest.raises(FileFormatError):
            source.outline()
