"""Safetensors: trees there and back, other readers and writers, broken files."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tdfunc import NonTensorData, TensorDict, lazy_stack, unbatched
from tdfunc.errors import (
    FileFormatError,
    FormatLimitError,
    MissingFileError,
    PickleRefusedError,
    TargetExistsError,
)
from tdfunc.io import _safetensors
from tests.cases import CASES, OBJECT, ROW_CASES, bytes_of, cases, leaves_of, ramp, walk
from tests.io import one_file
from tests.io.one_file import alike, even_stack, jagged, plain_of, ragged_stack

if TYPE_CHECKING:
    from pathlib import Path as FilePath

    from tests.cases import Case

save = partial(one_file.save, _safetensors)
load = partial(one_file.load, _safetensors)
round_trip = partial(one_file.round_trip, _safetensors)


@pytest.fixture
def path(tmp_path: FilePath) -> FilePath:
    return tmp_path / "tree.safetensors"


def is_held(case: Case) -> bool:
    """Return whether a case can be written without pickle."""
    values = [v for _, v in walk(case.entries) if not isinstance(v, torch.Tensor)]
    return not any(
        value is OBJECT or (hasattr(value, "flat") and OBJECT in value.flat())
        for value in values
    )


TREES = [case for case in CASES + ROW_CASES if is_held(case)]


def header_of(path: FilePath) -> dict[str, Any]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length])


def write_file(path: FilePath, header: Any, data: bytes = b"") -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


class TestRoundTrip:
    @cases(table=TREES)
    def test_every_tree_comes_back(self, case: Case, path: FilePath):
        got = round_trip(case.tree, path)

        for at, leaf in leaves_of(got).items():
            if at in case.leaves:
                assert bytes_of(leaf) == bytes_of(case.leaves[at])
        assert list(got.keys()) == list(case.entries)

    @cases(table=TREES)
    def test_every_tree_opens_with_the_package(self, case: Case, path: FilePath):
        save(case.tree, path)
        found = list(load_file(path).values())

        for leaf in case.leaves.values():
            assert any(alike(one, leaf) for one in found)

    def test_names_are_joined_keys(self, path: FilePath):
        save(TensorDict({"a": ramp(2), "n": {"b": {"c": ramp(3)}}}), path)

        assert load_file(path).keys() == {"a", "n.b.c"}

    def test_names_that_clash_are_told_apart(self, path: FilePath):
        tree = {
            "a.b": ramp(2),
            "a": {"b": ramp(2) + 1, "b~2": ramp(2) + 2},
            "a.b~2": ramp(2) + 3,
            "__metadata__": ramp(2) + 4,
            "tdfunc": ramp(2) + 5,
            "\ud800": ramp(2) + 6,
        }
        got = round_trip(TensorDict(tree), path)

        assert list(got.keys()) == list(tree)
        found = load_file(path)
        assert sorted(x[0].item() for x in found.values()) == list(range(7))

    def test_views_are_written_as_what_they_show(self, path: FilePath):
        """B74."""
        whole = ramp(2, 3)
        tree = {
            "A": whole,
            "row": whole[:1],
            "t": whole.t(),
            "one": torch.ones(1).expand(3),
            "same": whole,
        }
        got = round_trip(TensorDict(tree), path)

        assert got["A"] is got["same"]
        count = sum(leaf.numel() for leaf in tree.values()) - whole.numel()
        header = int.from_bytes(path.read_bytes()[:8], "little")
        assert path.stat().st_size == 8 + header + 4 * count

    def test_values_keep_their_types(self, path: FilePath):
        value = {"v": 1, "n": None, "s": "x", "f": 1.0, "t": True}
        tree = {"static": NonTensorData(value), "x": ramp(2), "__metadata__": ramp(2)}
        td = TensorDict(tree, 2, names=["t"])
        got = round_trip(td, path)

        assert got.names == ("t",)
        types = {key: type(item) for key, item in got["static"].items()}
        assert types == {"v": int, "n": type(None), "s": str, "f": float, "t": bool}

    @pytest.mark.parametrize(
        "tree",
        [
            ragged_stack(),
            even_stack(0),
            even_stack(1),
            lazy_stack([even_stack(0)] * 2),
            lazy_stack([even_stack(0)[0]] * 2),
        ],
        ids=["ragged", "even", "even, second dim", "of stacks", "of one twice"],
    )
    def test_lazy_stacks(self, tree: Any, path: FilePath):
        round_trip(tree, path)
        round_trip(TensorDict({"n": {"lazy": tree}, "x": ramp(2)}), path)

    def test_a_member_of_a_stack_that_is_elsewhere_too(self, path: FilePath):
        trees = [TensorDict({"x": ramp(3) + i}) for i in range(3)]
        td = TensorDict({"lazy": lazy_stack(trees), "x": trees[1]["x"]})
        got = round_trip(td, path)

        assert got["lazy"].tensordicts[1]["x"] is got["x"]

    def test_jagged_tensors(self, path: FilePath):
        for lengths in (False, True):
            tensor = jagged(lengths=lengths)
            save(TensorDict({"j": tensor, "x": ramp(3)}, 3), path, overwrite=True)

            assert alike(load(path)["j"], tensor)
            assert len(load_file(path)) == 3 + lengths

    def test_deep_trees(self, path: FilePath):
        td = TensorDict({"x": ramp(2)}, 2)
        for _ in range(500):
            td = TensorDict({"k": td}, 2)
        save(td, path)

        assert load(path)[("k",) * 500 + ("x",)].tolist() == [0, 1]
        assert alike(next(iter(load_file(path).values())), ramp(2))

    def test_some_entries_of_a_file(self, path: FilePath):
        td = TensorDict({"a": ramp(3), "lazy": even_stack(0)}, 3)
        save(td, path)
        got = load(path, keys=[("lazy", "x")])

        assert list(got.keys()) == ["lazy"]
        assert got["lazy"][2]["x"][0, 0] == 2

    def test_what_is_loaded_is_private(self, path: FilePath):
        save(TensorDict({"small": ramp(2), "big": ramp(100_000)}), path)
        before = path.read_bytes()
        got = load(path)
        got["small"].add_(1)
        got["big"].add_(1)

        assert path.read_bytes() == before

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


class TestLimits:
    def test_dtypes_are_refused_by_name_all_at_once(self, path: FilePath):
        tree = {
            "c": ramp(2).to(torch.complex128),
            "n": {"h": ramp(2).view(torch.complex32), "fine": ramp(2)},
            "f4": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        }
        with pytest.raises(FormatLimitError) as caught:
            save(TensorDict(tree), path)

        text = str(caught.value)
        for part in (
            "td['c']: torch.complex128",
            "td['n', 'h']: torch.complex32",
            "td['f4']: torch.float4_e2m1fn_x2",
        ):
            assert part in text
        assert not path.exists()

    def test_every_other_dtype_opens_with_the_package(self, path: FilePath):
        tree = {
            str(dtype): torch.arange(64, dtype=torch.uint8).view(dtype)
            for dtype in _safetensors._DTYPES.values()
            if dtype != torch.bool
        }
        save(TensorDict(tree), path)
        got, found = load(path), load_file(path)

        for key, leaf in tree.items():
            assert got[key].dtype == found[key].dtype == leaf.dtype
            assert bytes_of(got[key]) == bytes_of(found[key]) == bytes_of(leaf)

    def test_pickle_only_if_asked_on_both_sides(self, path: FilePath):
        with pytest.raises(PickleRefusedError, match=r"td\['o'\]"):
            save(TensorDict({"o": OBJECT}), path)
        assert not path.exists()
        save(TensorDict({"o": OBJECT}), path, allow_pickle=True)
        with pytest.raises(PickleRefusedError, match=r"tree\.safetensors"):
            load(path)

    def test_a_file_is_replaced_only_if_asked(self, path: FilePath):
        save(TensorDict({"a": ramp(2)}), path)
        with pytest.raises(TargetExistsError):
            save(TensorDict({"a": ramp(3)}), path)

    def test_a_header_that_is_too_long(
        self, path: FilePath, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(_safetensors, "_MOST_HEADER", 1000)
        td = TensorDict({"text": "x" * 1000})
        with pytest.raises(FormatLimitError, match="header"):
            save(td, path)
        assert not path.exists()

    def test_it_is_told_from_other_files(self, tmp_path: FilePath, path: FilePath):
        save(TensorDict({}), path)
        assert _safetensors.recognises(path)
        for raw in (b"", b"x" * 7, bytes(100), (2).to_bytes(8, "little") + b"xx"):
            other = tmp_path / "other"
            other.write_bytes(raw)
            assert not _safetensors.recognises(other)
        assert not _safetensors.recognises(tmp_path)
        assert not _safetensors.recognises(tmp_path / "none")


class TestForeignFiles:
    def test_names_are_keys(self, path: FilePath):
        tensors = {"a.b": ramp(2), "a.c.d": ramp(3, 2), "e": ramp(0)}
        save_file(tensors, path, metadata={"format": "pt"})
        got = load(path)

        assert _safetensors.recognises(path)
        assert got.batch_size == ()
        assert alike(got.to_dict(), tensors)

    @pytest.mark.parametrize("member", ["tdfunc", "tensordict"])
    @pytest.mark.parametrize("text", ["", "0.15.3", "made with it", "[]", "yes"])
    def test_notes_of_versions_are_no_records(
        self, path: FilePath, member: str, text: str
    ):
        save_file({"a.b": ramp(3)}, path, metadata={member: text, "format": "pt"})

        assert load(path, separator=".")["a", "b"].equal(ramp(3))

    def test_names_split_at_a_separator_are_paths(self, path: FilePath):
        tensors = {"a.b": ramp(2), "a.c.d": ramp(3, 2), "e": ramp(0), "f..g": ramp(1)}
        save_file(tensors, path)
        got = load(path, separator=".")

        expected = {
            "a": {"b": ramp(2), "c": {"d": ramp(3, 2)}},
            "e": ramp(0),
            "f..g": ramp(1),
        }
        assert alike(got.to_dict(), expected)

    @pytest.mark.parametrize("names", [("a", "a.b"), ("a.b", "a"), ("a.b.c", "a.b")])
    def test_a_name_that_is_tensor_and_node(
        self, names: tuple[str, ...], path: FilePath
    ):
        save_file({name: ramp(2) for name in names}, path)
        with pytest.raises(FileFormatError, match="separator=None"):
            load(path, separator=".")
        assert set(load(path).keys()) == set(names)

    def test_every_dtype_of_the_package(self, path: FilePath):
        tensors = {
            name: torch.arange(64, dtype=torch.uint8).view(dtype)
            for name, dtype in _safetensors._DTYPES.items()
            if name != "BOOL"
        }
        tensors["BOOL"] = torch.tensor([True, False])
        save_file(tensors, path)

        assert alike(load(path).to_dict(), tensors)

    @pytest.mark.parametrize("name", ["F4", "F6_E2M3", "F6_E3M2", "F128", 3])
    def test_other_dtypes_are_named(self, name: Any, path: FilePath):
        said = {"dtype": name, "shape": [8], "data_offsets": [0, 4]}
        write_file(path, {"a": said}, bytes(4))
        with pytest.raises(FileFormatError, match=str(name)):
            load(path)


class TestPeer:
    @pytest.fixture
    def peer(self) -> Any:
        return pytest.importorskip("tensordict")

    @cases(table=TREES)
    def test_it_reads_every_tree_of_ours(self, peer: Any, case: Case, path: FilePath):
        save(case.tree, path)
        got = peer.from_safetensors(path)

        assert got.batch_size == case.batch
        assert tuple(got.names) == (case.names or (None,) * len(case.batch))
        assert got.keys() <= {*case.entries}
        for at, leaf in case.leaves.items():
            assert alike(got.get(at), leaf)

    def test_it_reads_stacks_that_are_alike(self, peer: Any, path: FilePath):
        for dim in (0, 1):
            save(TensorDict({"n": even_stack(dim)}), path, overwrite=True)
            stack = peer.from_safetensors(path)["n"]

            assert type(stack) is peer.LazyStackedTensorDict
            assert stack.stack_dim == dim
            assert alike(plain_of(peer, stack)[2]["x"], ramp(2, 3) + 2)

    def test_it_reads_unbatched_tensors(self, peer: Any, path: FilePath):
        save(TensorDict({"g": unbatched(ramp(7)), "x": ramp(2)}, 2), path)
        got = peer.from_safetensors(path)

        assert alike(got["x"], ramp(2))
        assert type(got._get_str("g", None)) is peer.UnbatchedTensor

    def test_what_it_can_not_hold_lies_beside_the_rest(self, peer: Any, path: FilePath):
        tree = {
            "x": ramp(3),
            "j": jagged(),
            "rows": ["a", "b", "a"],
            "tuple": NonTensorData((1,)),
            "\ud83d\ude00": ramp(3) + 1,
        }
        save(TensorDict(tree, 3), path)
        got = peer.from_safetensors(path)

        assert alike(got["x"], ramp(3))
        assert set(got.keys()) == {"x", "tdfunc"}
        assert len(got["tdfunc"].keys()) == 3

    def test_we_read_all_that_it_writes(self, peer: Any, path: FilePath):
        class Thing:
            x: torch.Tensor
            s: str

        cls = peer.tensorclass(Thing)
        inner = peer.TensorDict({"b": ramp(2, 1)}, [2, 1])
        members = [
            peer.TensorDict({"q": ramp(2) + i, "d": {"e": ramp(2, 2)}}, [2])
            for i in range(3)
        ]
        for member in members:
            member["d"].batch_size = [2]
        td = peer.TensorDict(
            {
                "a": ramp(2, 3, dtype=torch.int16),
                "n": inner,
                "s": "text",
                "v": peer.NonTensorData({"v": 1, "n": None}, [2]),
                "tc": cls(x=ramp(2), s="field", batch_size=[2]),
                "lz": peer.lazy_stack(members, 1),
                "bf": ramp(2).bfloat16(),
                "f8": ramp(2).to(torch.float8_e4m3fn),
                "c": ramp(2).to(torch.complex64),
                "z": torch.zeros(2, 0),
                "u": peer.UnbatchedTensor(ramp(7)),
                "empty": peer.TensorDict({}, [2]),
            },
            [2],
            names=["t"],
        )
        peer.to_safetensors(td, path)
        got = load(path)

        assert got.batch_size == (2,)
        assert got.names == ("t",)
        for key in ("a", "bf", "f8", "c", "z", ("n", "b"), ("tc", "x")):
            assert alike(got[key], td[key])
        assert got["n"].batch_size == (2, 1)
        assert (got["s"], got["tc", "s"]) == ("text", "field")
        assert got["v"] == {"v": 1, "n": None}
        assert got["lz"].batch_size == (2, 3)
        assert got["lz"].stack_dim == 1
        assert alike(got["lz"].tensordicts[2]["q"], ramp(2) + 2)
        assert got["lz"].tensordicts[2]["d"].batch_size == (2,)
        assert alike(got["u"], ramp(7))
        assert got[0]["u"].shape == (7,)
        assert got["empty"].batch_size == (2,)

    @pytest.mark.parametrize("dim", [0, 1])
    def test_a_stack_at_the_root(self, peer: Any, dim: int, path: FilePath):
        members = [peer.TensorDict({"q": ramp(2) + i}, [2]) for i in range(3)]
        peer.to_safetensors(peer.lazy_stack(members, dim), path)
        got = load(path)

        assert got.stack_dim == dim
        assert alike(got.tensordicts[1]["q"], ramp(2) + 1)


A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

BAD_HEADERS: dict[str, Any] = {
    "no object": [1],
    "a tensor that is no object": {"a": 1},
    "a tensor without dtype": {"a": {"shape": [2], "data_offsets": [0, 8]}},
    "three offsets": {"a": A | {"data_offsets": [0, 8, 8]}},
    "offsets that are text": {"a": A | {"data_offsets": "08"}},
    "offsets that are no integers": {"a": A | {"data_offsets": [0.0, 8.0]}},
    "offsets that are true": {"a": A | {"data_offsets": [False, 8]}},
    "a negative start": {"a": A | {"data_offsets": [-8, 0]}},
    "a gap": {"a": A | {"shape": [1], "data_offsets": [4, 8]}},
    "an end before the file": {"a": A | {"shape": [1], "data_offsets": [0, 4]}},
    "an end after the file": {"a": A | {"shape": [4], "data_offsets": [0, 16]}},
    "two that overlap": {"a": A, "b": A},
    "a shape that is not as long": {"a": A | {"shape": [3]}},
    "a negative size": {"a": A | {"shape": [-2]}},
    "two negative sizes": {"a": A | {"shape": [-2, -1]}},
    "a size that is true": {"a": A | {"shape": [True, 2]}},
    "a size that is no integer": {"a": A | {"shape": [2.0]}},
    "a shape that is text": {"a": A, "b": A | {"shape": "[2]"}},
    "a shape that overflows": {"a": A | {"shape": [2**62, 4, 0]}},
    "metadata that is no object": {"__metadata__": [1], "a": A},
    "metadata that is no text": {"__metadata__": {"x": 1}, "a": A},
    "an empty name": {"": A},
    "a key twice": b'{"a": %b, "a": %b}' % ((json.dumps(A).encode(),) * 2),
    "no JSON": b"xx",
    "JSON that is cut": b'{"a": ',
    "JSON nested deeply": b'{"a":' * 10_000,
    "no UTF-8": b'{"\xff": 1}',
}


def of_peer(root: Any, version: Any = 1) -> dict[str, Any]:
    text = json.dumps({"version": version, "root": root})
    return {"__metadata__": {"tensordict": text}, "a": A}


def level_of(keys: Any, size: Any = (), **more: Any) -> dict[str, Any]:
    return {"batch_size": size, "names": None, "keys": keys, **more}


BAD_TREES: dict[str, Any] = {
    "another version": of_peer(level_of({"a": {"tensor": "a"}}), 2),
    "a root that is no object": of_peer(1),
    "a root without keys": of_peer({"batch_size": []}),
    "an entry that is no object": of_peer(level_of({"a": 1})),
    "an entry of no kind": of_peer(level_of({"a": {"evil": 1}})),
    "a tensor that is not there": of_peer(level_of({"a": {"tensor": "b"}})),
    "a tensor that is a list": of_peer(level_of({"a": {"tensor": ["a"]}})),
    "a tensor that is left over": of_peer(level_of({})),
    "a batch size that is not the tensor's": of_peer(
        level_of({"a": {"tensor": "a"}}, [3])
    ),
    "a batch size that is no list": of_peer(level_of({"a": {"tensor": "a"}}, "2")),
    "names that do not fit": of_peer(
        level_of({"a": {"tensor": "a"}}, [2], names=["x", "y"])
    ),
    "a stack along a dim that is not": of_peer(
        level_of({"a": {"tensor": "a"}}, [2], stack_dim=1)
    ),
    "a stack whose tensor is shorter": of_peer(
        level_of({"a": {"tensor": "a"}}, [3], stack_dim=0)
    ),
    "a stack with endless members": of_peer(
        level_of({"a": {"tensor": "a"}}, [2**40], stack_dim=0)
    ),
    "a stack in a stack": of_peer(
        level_of(
            {"n": {"td": level_of({"a": {"tensor": "a"}}, [2, 1], stack_dim=1)}},
            [2],
            stack_dim=0,
        )
    ),
    "a record without checksum": {"__metadata__": {"tdfunc": "{}"}, "a": A},
    "a checksum without record": {"__metadata__": {"tdfunc_crc32": "0"}, "a": A},
}


def of_ours(**more: Any) -> dict[str, Any]:
    """Return a header with a record of one tensor, and what is changed in it."""
    root = {"batch_size": [], "keys": ["a"], "entries": [0]}
    data = {"version": 1, "tensors": ["a"], "spare": [], "levels": [root]} | more
    text = json.dumps(data)
    check = _safetensors._checksum(text.encode())
    return {"__metadata__": {"tdfunc": text, "tdfunc_crc32": check}, "a": A}


def of_level(**more: Any) -> dict[str, Any]:
    return of_ours(levels=[{"batch_size": [], "keys": ["a"], "entries": [0]} | more])


BAD_RECORDS: dict[str, Any] = {
    "another version": of_ours(version=2),
    "a version that is true": of_ours(version=True),
    "no tensors": of_ours(tensors=None),
    "another tensor": of_ours(tensors=["b"]),
    "a tensor that is a number": of_ours(tensors=[0]),
    "a tensor that is left over": of_ours(tensors=[]),
    "a member of a tensor without that dim": of_ours(tensors=[["a", 1, 0]]),
    "a member after the last": of_ours(tensors=[["a", 0, 2]]),
    "no levels": of_ours(levels=[]),
    "levels that are no list": of_ours(levels={}),
    "a level that is no object": of_ours(levels=[1]),
    "an array that is not there": of_level(entries=[1]),
    "an array by a negative number": of_level(entries=[-1]),
    "an array that is true": of_level(entries=[True]),
    "an array that is nowhere": of_level(keys=[], entries=[]),
    "more keys than entries": of_level(keys=["a", "b"]),
    "a key twice": of_level(keys=["a", "a"], entries=[0, 0]),
    "a key that is no text": of_level(keys=[1]),
    "an empty key": of_level(keys=[""]),
    "an entry of no kind": of_level(entries=[{"evil": 1}]),
    "an entry of two kinds": of_level(entries=[{"static": 1, "level": 1}]),
    "a level in itself": of_level(entries=[{"level": 0}]),
    "a level that is not there": of_level(entries=[{"level": 1}]),
    "a level in no other": of_ours(
        levels=[{"batch_size": [], "keys": ["a"], "entries": [0]}] * 2
    ),
    "a batch size that is not the array's": of_level(batch_size=[3]),
    "a batch size that is no list": of_level(batch_size=2),
    "a record that is no text": of_level(record=1),
    "a stack of no members": of_level(batch_size=[2], stack_dim=0),
    "rows that are not as many": of_level(
        keys=["a", "r"], entries=[0, {"rows": [[2], ["x"], None]}]
    ),
    "rows with values that are not there": of_level(
        keys=["a", "r"], entries=[0, {"rows": [[2], ["x"], [0, 1]]}]
    ),
    "rows with negative codes": of_level(
        keys=["a", "r"], entries=[0, {"rows": [[2], ["x"], [0, -1]]}]
    ),
    "a jagged tensor of floats": of_level(entries=[{"jagged": [0, 0, None, 1]}]),
    "a jagged tensor with two parts": of_level(entries=[{"jagged": [0, 0]}]),
    "a value with an unknown tag": of_level(
        keys=["a", "s"], entries=[0, {"static": {"$": "evil", "v": 1}}]
    ),
}


class TestBroken:
    @pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
    def test_headers(self, header: Any, path: FilePath):
        write_file(path, header, bytes(8))
        with pytest.raises(FileFormatError, match=r"tree\.safetensors"):
            load(path)

    @pytest.mark.parametrize("header", BAD_TREES.values(), ids=BAD_TREES)
    def test_trees_of_the_peer(self, header: Any, path: FilePath):
        write_file(path, header, bytes(8))
        with pytest.raises(FileFormatError, match=r"tree\.safetensors"):
            load(path)

    @pytest.mark.parametrize("header", BAD_RECORDS.values(), ids=BAD_RECORDS)
    def test_records(self, header: Any, path: FilePath):
        write_file(path, header, bytes(8))
        with pytest.raises(FileFormatError, match=r"tree\.safetensors"):
            load(path)

    def test_the_record_that_these_are_made_of_is_fine(self, path: FilePath):
        write_file(path, of_ours(), bytes(8))
        assert load(path)["a"].tolist() == [0, 0]

    @pytest.mark.parametrize("length", [10, 10**6, 2**63, 2**64 - 1])
    def test_lengths(self, length: int, path: FilePath):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(FileFormatError, match=r"tree\.safetensors"):
            load(path)

    def test_what_is_no_file(self, tmp_path: FilePath):
        with pytest.raises(FileFormatError, match="no file"):
            load(tmp_path)
        with pytest.raises(MissingFileError, match="nothing"):
            load(tmp_path / "nothing")

    def test_cut_anywhere(self, path: FilePath):
        td = TensorDict({"a": ramp(3), "n": {"s": "text", "b": ramp(3, 5)}}, 3)
        save(td, path)
        whole = path.read_bytes()
        for size in range(0, len(whole), 3):
            path.write_bytes(whole[:size])
            with pytest.raises(FileFormatError, match=r"tree\.safetensors"):
                load(path)

    def test_flipped_bits_are_found_or_harmless(self, path: FilePath):
        td = TensorDict({"a": ramp(3), "n": {"s": "text", "b": ramp(3, 5)}}, 3)
        save(td, path)
        length = int.from_bytes(path.read_bytes()[:8], "little")
        places = range(0, 8 + length, 3)
        found = one_file.damages(_safetensors, path, places, td.to_dict())

        assert len(found) > 100
        assert all("tree.safetensors" in text for text in found)

    def test_the_metadata_of_the_package_is_what_it_says(self, path: FilePath):
        save(TensorDict({"a": ramp(3)}), path)
        with safe_open(path, "pt") as file:
            assert file.metadata()["format"] == "pt"
            assert json.loads(file.metadata()["tdfunc"])["version"] == 1
