"""Directories of the package tensordict, both ways, with the package itself."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import NonTensorData, NonTensorStack, TensorDict, unbatched
from tdfunc.errors import FileFormatError, PickleRefusedError
from tdfunc.io._layout import iter_arrays, levels_of
from tdfunc.testing import assert_equal
from tests.cases import CASES, OBJECT, ROW_CASES, Case, bytes_of, cases, ramp
from tests.io.directories import load, outline, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

peer: Any = pytest.importorskip("tensordict")

# It warns that a later version will not unpickle.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:tensordict"),
    pytest.mark.filterwarnings("ignore:The legacy lazy mode"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


PLAIN = "<class 'tensordict._td.TensorDict'>"


class _Cell(peer.TensorClass):
    x: torch.Tensor
    label: str
    other: Any = None


def of_peer(path: Path, **options: Any) -> Any:
    """Load with the package; files stay as they are."""
    return peer.load_memmap(path, mode="r", **{"allow_pickle": False, **options})


def tree_at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree.get(key)
    return tree


def same_bits(got: Any, expected: torch.Tensor) -> bool:
    alike = got.dtype == expected.dtype and got.shape == expected.shape
    return alike and bytes_of(got.as_subclass(torch.Tensor)) == bytes_of(expected)


def writable(case: Case) -> bool:
    return OBJECT not in case.statics.values() and case.name != "rows of any values"


class TestWeWrite:
    @cases(writable, CASES + ROW_CASES)
    def test_every_case(self, tmp_path: Path, case: Case) -> None:
        """All leaves, batch sizes, names and plain statics are there."""
        save(case.tree, tmp_path / "d")

        got = of_peer(tmp_path / "d")

        for path, expected in case.leaves.items():
            assert same_bits(tree_at(got, path), expected), path
        for path, batch in case.batches.items():
            assert tuple(tree_at(got, path).batch_size) == batch
        if case.names:
            assert tuple(got.names) == case.names
        for path, value in case.statics.items():
            if isinstance(value, (str, type(None))):
                assert tree_at(got, path[:-1])[path[-1]] == value

    @pytest.mark.parametrize(
        "value",
        [1, 1.5, True, -0.0, 2**80, math.inf, "日本", [1, [2]], {"a": {"b": None}}],
        ids=repr,
    )
    def test_plain_values(self, tmp_path: Path, value: Any) -> None:
        save(TensorDict({"v": NonTensorData(value)}), tmp_path / "d")

        got = of_peer(tmp_path / "d")["v"]

        assert got == value
        assert type(got) is type(value)

    def test_not_a_number(self, tmp_path: Path) -> None:
        save(TensorDict({"v": NonTensorData(math.nan)}), tmp_path / "d")

        assert math.isnan(of_peer(tmp_path / "d")["v"])
        assert math.isnan(load(tmp_path / "d")["v"])

    def test_values_of_other_types(self, tmp_path: Path) -> None:
        """The peer sees a list for a tuple; we see the tuple."""
        td = TensorDict(
            {
                "t": NonTensorData((1, (2, "x"))),
                "n": NonTensorData(np.float64(1.5)),
                "b": b"not for the peer",
                "x": ramp(2),
            },
        )
        save(td, tmp_path / "d")

        got = of_peer(tmp_path / "d")

        assert set(got.keys()) == {"t", "n", "x"}
        assert got["t"] == [1, [2, "x"]]
        assert got["n"] == 1.5
        assert_equal(load(tmp_path / "d"), td)

    def test_pickled_values(self, tmp_path: Path) -> None:
        """Only if asked for, and then the peer unpickles them as well."""
        values = {"s": NonTensorData(_Plain(3)), "r": NonTensorStack(_Plain(1), "a")}
        td = TensorDict({**values, "x": ramp(2)}, 2)
        with pytest.raises(PickleRefusedError, match=r"'s'.*'r'|'r'.*'s'") as refused:
            save(td, tmp_path / "d")
        assert "allow_pickle=True" in str(refused.value)
        assert not list(tmp_path.iterdir())
        save(td, tmp_path / "d", allow_pickle=True)

        got = of_peer(tmp_path / "d", allow_pickle=True)

        assert got["s"] == _Plain(3)
        assert got["r"] == [_Plain(1), "a"]
        back = load(tmp_path / "d", allow_pickle=True)
        assert back["s"] == _Plain(3)
        assert back["r"] == [_Plain(1), "a"]
        with pytest.raises(PickleRefusedError, match=r"d/(s/other|r/pickle)"):
            load(tmp_path / "d")

    def test_rows(self, tmp_path: Path) -> None:
        """Rows that are lists of one length keep what are rows, for us."""
        td = TensorDict(
            {
                "text": ["a", "b"],
                "lists": NonTensorStack([1, 2], [3, 4]),
                "tuples": NonTensorStack((1,), (2,)),
                "bytes": NonTensorStack(b"a", b"b"),
            },
            2,
        )
        save(td, tmp_path / "d")

        got = of_peer(tmp_path / "d")

        assert set(got.keys()) == {"text", "lists", "tuples"}
        assert got["text"] == ["a", "b"]
        assert got["lists"] == [[1, 2], [3, 4]]
        assert got["tuples"] == [[1], [2]]
        back = load(tmp_path / "d")
        assert_equal(back, td)
        assert back[0]["lists"] == [1, 2]
        assert back[1]["tuples"] == (2,)

    @pytest.mark.parametrize("batch", [(0,), (2, 0), (0, 2)], ids=str)
    def test_no_rows(self, tmp_path: Path, batch: tuple[int, ...]) -> None:
        rows = np.empty(batch, dtype=object)
        td = TensorDict({"s": rows, "x": torch.ones(*batch, 2)}, batch)
        save(td, tmp_path / "d")

        got = of_peer(tmp_path / "d")

        assert tuple(got.batch_size) == batch
        assert got["x"].shape == (*batch, 2)
        assert_equal(load(tmp_path / "d"), td)

    def test_hidden_entries(self, tmp_path: Path) -> None:
        """What the peer loses or chokes on is there for us, the rest for both."""
        jagged = torch.nested.nested_tensor_from_jagged(
            torch.arange(5.0), torch.tensor([0, 2, 5])
        )
        entries: dict[str, Any] = {
            "shape": ramp(2),
            "a": ramp(2, 3),
            "device": {"x": ramp(2) + 1},
            "_type": "text",
            "_tdfunc": ramp(2) + 2,
            "_class": ramp(2) + 3,
            "_format_version": ramp(2) + 4,
            "_names": ramp(2) + 5,
            "meta.json": {"x": ramp(2) + 6},
            "x": ramp(2) + 7,
            "x.memmap": {"y": ramp(2) + 8},
            "n" * 248: ramp(2) + 9,
            "k" * 249: ramp(2) + 10,
            "é" * 200: {"y": ramp(2) + 11},
            "\ud800": ramp(2) + 12,
            "f8": torch.ones(2).to(torch.float8_e4m3fn),
            "global": unbatched(ramp(7)),
            "jagged": jagged,
            "z": ramp(2, 0),
            "rest": {"b": ramp(2, 1)},
        }
        td = TensorDict(entries, 2)
        save(td, tmp_path / "d")

        got = of_peer(tmp_path / "d")

        seen = {"a", "_class", "_format_version", "_names", "x", "z", "rest"}
        # Two names, one for the file and one for the directory: the first has it.
        assert set(got.keys()) == seen | {"n" * 248}
        for key in set(got.keys()) - {"rest"}:
            assert same_bits(got[key], entries[key]), key
        assert same_bits(got["rest", "b"], entries["rest"]["b"])
        back = load(tmp_path / "d")
        # Two jagged tensors have two symbols for their lengths.
        assert_equal(back.exclude("jagged"), td.exclude("jagged"))
        assert list(back.keys()) == list(entries)
        assert back["jagged"].is_nested
        assert [x.tolist() for x in back["jagged"].unbind()] == [[0, 1], [2, 3, 4]]

    def test_names_beside_a_key(self, tmp_path: Path) -> None:
        td = TensorDict({"_names": ramp(2), "x": ramp(2)}, 2, names=["time"])
        save(td, tmp_path / "d")

        got = of_peer(tmp_path / "d")

        assert got.names == ["time"]
        assert set(got.keys()) == {"x"}
        assert_equal(load(tmp_path / "d"), td)

    def test_lazy_stacks(self, tmp_path: Path) -> None:
        parts = [
            TensorDict({"x": ramp(2, 3), "s": "one"}, 2, names=["t"]),
            TensorDict({"x": ramp(2, 4), "y": ramp(2)}, 2, names=["t"]),
        ]
        stack = tdfunc.lazy_stack(parts, 1, name="env")
        td = TensorDict({"n": stack, "z": ramp(2)}, 2)
        save(td, tmp_path / "d")
        save(stack, tmp_path / "s")

        got = of_peer(tmp_path / "d")["n"]
        whole = of_peer(tmp_path / "s")

        # Nodes in a tree without names have none beside those of the members.
        assert got.names == ["t", None]
        assert whole.names == ["t", "env"]
        for one in (got, whole):
            assert type(one).__name__ == "LazyStackedTensorDict"
            assert one.stack_dim == 1
            assert tuple(one.batch_size) == (2, 2)
            for member, part in zip(one.tensordicts, parts, strict=True):
                assert same_bits(member["x"], part["x"])
        assert_equal(load(tmp_path / "d"), td)
        assert_equal(load(tmp_path / "s"), stack)

    def test_empty_lazy_stacks(self, tmp_path: Path) -> None:
        """The peer has none: it does not see them, nor stacks that hold one."""
        stack = tdfunc.lazy_stack([TensorDict({"x": ramp(3)}, 3)], 1)
        none = stack[:, :0]
        over = tdfunc.lazy_stack([none, none])
        td = TensorDict({"none": none, "z": ramp(3), "n": {"o": over}}, ())
        save(td, tmp_path / "d")

        got = of_peer(tmp_path / "d")

        assert set(got.keys()) == {"z", "n"}
        assert not list(got["n"].keys())
        back = load(tmp_path / "d")
        assert_equal(back, td)
        assert tuple(back["none"].batch_size) == (3, 0)
        save(none, tmp_path / "root")
        assert_equal(load(tmp_path / "root"), none)

    def test_records(self, tmp_path: Path) -> None:
        """The peer sees a plain node; we know which record it was."""

        @tdfunc.tensorclass
        class Record:
            x: torch.Tensor
            s: str

        record = Record(x=ramp(2), s="t", batch_size=2)  # pyright: ignore[reportCallIssue]
        td = TensorDict({"r": record}, 2)
        save(td, tmp_path / "d")

        assert same_bits(of_peer(tmp_path / "d")["r", "x"], ramp(2))
        note = outline(tmp_path / "d").entries["r"].record
        assert note == f"{Record.__module__}:{Record.__qualname__}"
        back = load(tmp_path / "d")
        assert type(back["r"]) is TensorDict
        assert back["r"]["s"] == "t"

    @pytest.mark.parametrize("linked", [True, False], ids=["linked", "copied"])
    def test_ties(self, tmp_path: Path, *, linked: bool) -> None:
        x, big = ramp(3, 2), torch.zeros(1 << 16)
        offsets = torch.tensor([0, 1, 3])
        of = torch.nested.nested_tensor_from_jagged
        td = TensorDict(
            {
                "a": x,
                "n": {"a": x, "b": big, "shape": x},
                "b": big,
                "v": of(ramp(3), offsets),
                "w": of(ramp(3) + 1, offsets),
            },
        )
        save(td, tmp_path / "d")
        path = tmp_path / "d"
        if not linked:
            path = tmp_path / "e"
            shutil.copytree(tmp_path / "d", path)

        got = of_peer(path)

        assert same_bits(got["a"], x)
        assert same_bits(got["n", "b"], big)
        back = load(path)
        assert_equal(back.exclude("v", "w"), td.exclude("v", "w"))
        assert back["a"] is back["n", "a"] is back["n", "shape"]
        assert back["b"] is back["n", "b"]
        assert back["v"].offsets() is back["w"].offsets()
        assert back["v"].shape == back["w"].shape
        if not linked:
            (path / "n" / "a.memmap").write_bytes(bytes_of(x + 1))
            back = load(path)
            assert same_bits(back["a"], x)
            assert same_bits(back["n", "a"], x + 1)


class _Plain:
    """A value that only pickle knows."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Plain) and other.n == self.n

    def __hash__(self) -> int:
        return self.n


class TestThePeerWrites:
    def test_a_tree(self, tmp_path: Path) -> None:
        entries = {
            "a": ramp(2, 3),
            "bf": ramp(2, dtype=torch.bfloat16),
            "c": ramp(2, dtype=torch.complex128) * 1j,
            "u": ramp(2, dtype=torch.uint64),
            "z": ramp(2, 0, 4),
            "a/b": ramp(2),
            "..": ramp(2) + 1,
            ".": {"%": ramp(2)},
            "日本 x": ramp(2),
            "t": ramp(3, 2).t(),
            "n": {"m": {"x": ramp(2)}, "e": {}},
        }
        td = peer.TensorDict(entries, [2], names=["t"])
        td["text"] = "hello"
        td["v"] = peer.NonTensorData({"a": [1, 2.5, None]}, batch_size=[2])
        td["r"] = peer.NonTensorStack("a", "b")
        td.memmap(tmp_path / "d")

        got = load(tmp_path / "d")

        expected = TensorDict(
            {
                **entries,
                "text": "hello",
                "v": NonTensorData({"a": [1, 2.5, None]}),
                "r": ["a", "b"],
            },
            2,
            names=["t"],
        )
        assert_equal(got, expected)
        assert got["z"].shape == (2, 0, 4)

    def test_orjson_and_the_least_that_there_can_be(self, tmp_path: Path) -> None:
        """Fields may be missing, and text may not be escaped."""
        meta = {
            "_type": PLAIN,
            "device": "cuda:0",
            "é": {"dtype": "torch.int16", "shape": [2]},
        }
        text = json.dumps(meta, ensure_ascii=False, separators=(",", ":"))
        (tmp_path / "meta.json").write_text(text)
        (tmp_path / "é.memmap").write_bytes(b"\1\0\2\0trailing")

        got = load(tmp_path)

        assert got["é"].tolist() == [1, 2]
        assert got.device == torch.device("cpu")
        assert got.batch_size == ()

    def test_raw_names_of_old_versions(self, tmp_path: Path) -> None:
        td = peer.TensorDict({"a b": ramp(2), "c d": {"x": ramp(2)}}, [2])
        td.memmap(tmp_path / "d", robust_key=False)
        assert (tmp_path / "d" / "a b.memmap").exists()

        got = load(tmp_path / "d")

        assert_equal(got, TensorDict({"a b": ramp(2), "c d": {"x": ramp(2)}}, 2))

    def test_raw_names_never_lead_out(self, tmp_path: Path) -> None:
        meta = {
            "_type": PLAIN,
            "../x": {"dtype": "torch.int16", "shape": [2]},
        }
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "meta.json").write_text(json.dumps(meta))
        (tmp_path / "x.memmap").write_bytes(b"1234")

        with pytest.raises(FileFormatError, match=r"%2E|\.\.%2Fx\.memmap"):
            load(tmp_path / "d")

    def test_tensorclasses(self, tmp_path: Path) -> None:
        cell = _Cell(x=ramp(2), label="l", batch_size=[2])
        cell.memmap(tmp_path / "c")
        peer.TensorDict({"c": cell}, [2]).memmap(tmp_path / "d")
        stacked = peer.lazy_stack([cell, cell.clone()])
        stacked.memmap(tmp_path / "s")

        got = load(tmp_path / "c")

        assert_equal(got, TensorDict({"x": ramp(2), "label": "l"}, 2))
        assert outline(tmp_path / "c").record.endswith(":_Cell")
        assert_equal(load(tmp_path / "d"), TensorDict({"c": got}, 2))
        assert_equal(load(tmp_path / "s"), tdfunc.lazy_stack([got, got]))

    def test_lazy_stacks(self, tmp_path: Path) -> None:
        parts = [
            peer.TensorDict({"x": ramp(2, 3), "s": "one"}, [2], names=["t"]),
            peer.TensorDict({"x": ramp(2, 4), "y": ramp(2)}, [2], names=["t"]),
        ]
        stack = peer.LazyStackedTensorDict(*parts, stack_dim=1, stack_dim_name="e")
        stack.memmap(tmp_path / "d")
        peer.TensorDict({"n": stack}, [2]).memmap(tmp_path / "n")

        got = load(tmp_path / "d")

        assert got.names == ("t", "e")
        assert_equal(load(tmp_path / "n")["n"], got, names=False)
        assert got.stack_dim == 1
        assert tuple(got.batch_size) == (2, 2)
        assert got.tensordicts[0]["s"] == "one"
        assert same_bits(got.tensordicts[1]["x"], ramp(2, 4))

    def test_stacks_of_values(self, tmp_path: Path) -> None:
        """Lists in rows are values, by the batch size of the node."""
        td = peer.TensorDict({}, [2])
        td["lists"] = peer.NonTensorStack([1, 2], [3, 4])
        td["ragged"] = peer.NonTensorStack([1], [3, 4])
        td.memmap(tmp_path / "d")
        whole = peer.TensorDict({"s": peer.NonTensorStack("a", "b")}, [])
        whole.memmap(tmp_path / "w")

        got = load(tmp_path / "d")

        assert got["lists"] == [[1, 2], [3, 4]]
        assert got[1]["lists"] == [3, 4]
        assert got[1]["ragged"] == [3, 4]
        # A node without batch dims has no rows.
        assert load(tmp_path / "w")["s"] == ["a", "b"]

    def test_pickles(self, tmp_path: Path) -> None:
        td = peer.TensorDict({}, [2])
        td["s"] = peer.NonTensorData(_Plain(1), batch_size=[2])
        td["r"] = peer.NonTensorStack(_Plain(1), _Plain(2))
        td.memmap(tmp_path / "d")

        with pytest.raises(PickleRefusedError, match="allow_pickle=True"):
            load(tmp_path / "d")
        got = load(tmp_path / "d", allow_pickle=True)

        assert got["s"] == _Plain(1)
        assert got["r"] == [_Plain(1), _Plain(2)]

    def test_containers_that_it_notes(self, tmp_path: Path) -> None:
        """A class among four needs no pickle, if the note fits to the pickle."""
        td = peer.TensorDict({}, [])
        td["s"] = peer.NonTensorData(dict)
        td.memmap(tmp_path / "d")

        assert load(tmp_path / "d")["s"] is dict
        (tmp_path / "d" / "s" / "other.pickle").write_bytes(pickle.dumps({"data": 1}))
        with pytest.raises(PickleRefusedError):
            load(tmp_path / "d")

    def test_nested_tensors(self, tmp_path: Path) -> None:
        rows = [ramp(2, 3), ramp(1, 3) + 10, ramp(0, 3)]
        td = peer.TensorDict({"n": torch.nested.nested_tensor(rows)}, [3])
        td.memmap(tmp_path / "d")
        odd = torch.nested.nested_tensor([ramp(2, 3), ramp(2, 2)])
        peer.TensorDict({"n": odd}, [2]).memmap(tmp_path / "odd")

        got = load(tmp_path / "d")["n"]

        assert got.is_nested
        assert [x.tolist() for x in got.unbind()] == [x.tolist() for x in rows]
        with pytest.raises(FileFormatError, match=r"nested tensor.*td\['n'\]"):
            load(tmp_path / "odd")

    @pytest.mark.parametrize(
        "view",
        [
            lambda td: td._get_sub_tensordict(slice(1, 2)),
            lambda td: peer.TensorDict({"n": td._get_sub_tensordict(0)}, []),
        ],
        ids=["root", "nested"],
    )
    def test_views(self, tmp_path: Path, view: Callable[[Any], Any]) -> None:
        td = peer.TensorDict({"x": ramp(3)}, [3])
        view(td).memmap(tmp_path / "d")

        with pytest.raises(FileFormatError, match=r"view of another tree"):
            load(tmp_path / "d")

    def test_legacy_views(self, tmp_path: Path) -> None:
        td = peer.TensorDict({"x": ramp(3, 2)}, [3, 2])
        with peer.set_lazy_legacy(True):
            td.transpose(0, 1).memmap(tmp_path / "d")

        with pytest.raises(FileFormatError, match=r"view of another tree"):
            load(tmp_path / "d")

    def test_over_one_of_ours(self, tmp_path: Path) -> None:
        """What only we know of is not believed against what is there."""
        save(TensorDict({"s": NonTensorData((1, 2)), "x": ramp(2)}, 2), tmp_path / "d")
        td = peer.TensorDict({"s": "new", "x": ramp(2) + 1}, [2])
        td.memmap(tmp_path / "d")

        got = load(tmp_path / "d")

        assert_equal(got, TensorDict({"s": "new", "x": ramp(2) + 1}, 2))

    def test_one_value_over_ours(self, tmp_path: Path) -> None:
        save(TensorDict({"s": NonTensorData((1, 2))}), tmp_path / "d")
        peer.NonTensorData([3]).memmap(tmp_path / "d" / "s")

        assert load(tmp_path / "d")["s"] == [3]

    def test_rows_appended_to_ours(self, tmp_path: Path) -> None:
        save(TensorDict({"x": ramp(2, 3), "s": "t"}, 2), tmp_path / "d")
        rows = peer.TensorDict({"x": ramp(1, 3) + 9, "s": "t"}, [1])
        peer.append_memmap(tmp_path / "d", rows)

        got = load(tmp_path / "d")

        expected = torch.cat([ramp(2, 3), ramp(1, 3) + 9])
        assert_equal(got, TensorDict({"x": expected, "s": "t"}, 3))


def test_one_array_is_written_once() -> None:
    x = ramp(2)
    level = levels_of(TensorDict({"a": x, "n": {"b": x}}))

    assert len(list(iter_arrays(level))) == 1
