"""Directories that are filled bit by bit, by one and by several processes."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdfunc
from tdfunc import NonTensorStack, TensorDict, load, memmap_like
from tdfunc.errors import (
    BatchSizeError,
    FileFormatError,
    FormatLimitError,
    InvalidLeafError,
    MissingFileError,
    OptionError,
    PickleRefusedError,
    StructureError,
    TargetExistsError,
    TreeIndexError,
)
from tdfunc.io import Builder
from tdfunc.io._folder import BUILDING
from tdfunc.io._spans import joined, minus, overlap
from tdfunc.testing import assert_equal
from tests.io import children


def data(count: int = 6) -> Any:
    return TensorDict(
        {
            "a": torch.arange(2 * count).view(count, 2),
            "text": NonTensorStack(*[f"row {i}" for i in range(count)]),
            "name": "all",
            "deep": {
                "b": torch.arange(count, dtype=torch.bfloat16),
                "empty": torch.zeros(count, 0),
            },
            "shape": torch.arange(3 * count).view(count, 3) % 2 == 0,
            "scale": tdfunc.unbatched(torch.tensor([0.5, 2.0])),
        },
        [count],
        names=["time"],
    )


def plain(count: int) -> Any:
    return TensorDict(
        {"x": torch.arange(count), "y": {"z": torch.ones(count, 3)}}, count
    )


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def hashes(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def spawn(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(words)


class TestRoundTrip:
    def test_what_was_written_is_what_is_loaded(self, tmp_path: Path) -> None:
        td = data()
        with memmap_like(td, tmp_path / "d") as builder:
            assert isinstance(builder, Builder)
            assert builder.batch_size == (6,)
            builder.write(slice(0, 3), td[:3])
            builder.write(5, td[5])
            builder.write([4, 3], td[[4, 3]])
            made = builder.finish()
        assert_equal(made, td)
        assert made.names == ("time",)
        assert_equal(load(tmp_path / "d"), td)
        assert sorted(p.name for p in (tmp_path / "d").iterdir()) == [
            *["%tdfunc-0.memmap", "%tdfunc-1.memmap", "a.memmap", "deep"],
            *["meta.json", "name", "text"],
        ]

    def test_the_same_files_as_of_a_save(self, tmp_path: Path) -> None:
        td = data()
        td.save(tmp_path / "saved")
        builder = memmap_like(td, tmp_path / "built")
        builder.write(..., td)
        builder.finish()
        saved, built = hashes(tmp_path / "saved"), hashes(tmp_path / "built")
        assert {k.replace("saved", "built"): v for k, v in saved.items()} == built

    def test_a_tree_without_data_says_what_it_is_like(self, tmp_path: Path) -> None:
        td = data().exclude("scale")
        builder = memmap_like(td.to("meta"), tmp_path / "d")
        builder.write(slice(None), td)
        assert_equal(builder.finish(), td)

    @pytest.mark.parametrize("count", [0, 1, 4])
    def test_one_structure_and_a_batch_size(self, tmp_path: Path, count: int) -> None:
        one = TensorDict({"x": torch.zeros(3), "n": {"y": 1.0}, "t": "text"})
        builder = memmap_like(one, tmp_path / "d", batch_size=[count, 2])
        rows = one.expand(count, 2)
        builder.write(slice(None), rows)
        assert_equal(builder.finish(), rows)

    def test_batch_size_in_place_of_that_of_a_batch(self, tmp_path: Path) -> None:
        batch = data(3)
        builder = memmap_like(batch, tmp_path / "d", batch_size=[6])
        builder.write(range(3), batch)
        builder.write(range(3, 6), batch)
        assert_equal(builder.finish(), tdfunc.cat([batch, batch]))

    def test_one_tensor_at_two_places_is_two_in_the_file(self, tmp_path: Path) -> None:
        zero = torch.zeros(2)
        builder = memmap_like(TensorDict({"a": zero, "b": zero}, 2), tmp_path / "d")
        td = TensorDict({"a": torch.ones(2), "b": torch.zeros(2)}, 2)
        builder.write(..., td)
        assert_equal(builder.finish(), td)

    def test_records_come_back_as_records(self, tmp_path: Path) -> None:
        class Step(tdfunc.TensorClass):
            obs: torch.Tensor
            act: torch.Tensor

        steps = Step(obs=torch.ones(4, 3), act=torch.zeros(4), batch_size=[4])
        builder = memmap_like(steps, tmp_path / "d")
        builder.write(slice(2), steps[:2])
        builder.write(slice(2, 4), steps[2:].to_tensordict())
        made = builder.finish()
        assert type(made) is Step
        assert torch.equal(made.obs, steps.obs)

    def test_tensors_of_any_strides(self, tmp_path: Path) -> None:
        td = TensorDict({"x": torch.arange(12).view(3, 4).t()}, 4)
        conjugate = torch.randn(4, dtype=torch.complex64).conj()
        td = td.set("c", conjugate).set("e", torch.ones(1).expand(4))
        builder = memmap_like(td, tmp_path / "d")
        builder.write([0, 2], td[[0, 2]])
        builder.write(slice(1, 4, 2), td[1:4:2])
        assert_equal(builder.finish(), td)

    def test_what_was_loaded_never_writes_to_the_file(self, tmp_path: Path) -> None:
        builder = memmap_like(plain(20_000), tmp_path / "d")
        builder.write(..., plain(20_000))
        td = builder.finish()
        before = hashes(tmp_path / "d")
        td["x"].zero_()
        assert hashes(tmp_path / "d") == before

    def test_more_files_than_descriptors(self, tmp_path: Path) -> None:
        td = TensorDict({f"k{i}": {"x": torch.full((2,), i)} for i in range(150)}, 2)

        def build() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110))
            builder = memmap_like(td, tmp_path / "d")
            builder.write(0, td[0])
            builder.write(1, td[1])
            assert_equal(builder.finish(), td)

        children.run(build)

    def test_no_descriptor_is_left(self, tmp_path: Path) -> None:
        before = open_files()
        builder = memmap_like(plain(3), tmp_path / "a")
        builder.write(..., plain(3))
        kept = builder.finish()
        with memmap_like(plain(3), tmp_path / "b"):
            pass
        with pytest.raises(StructureError):
            memmap_like(plain(4), tmp_path / "b", resume=True)
        (tmp_path / "b" / BUILDING / "x.log").write_text("[]\n")
        with pytest.raises(FileFormatError):
            memmap_like(plain(3), tmp_path / "b", resume=True)
        dropped = memmap_like(plain(3), tmp_path / "c")
        dropped.write(..., plain(3))
        del dropped
        gc.collect()
        assert open_files() == before
        assert kept.batch_size == (3,)

    def test_a_deep_tree(self, tmp_path: Path) -> None:
        td = plain(2)
        for _ in range(300):
            td = TensorDict({"n": td}, 2)
        builder = memmap_like(td, tmp_path / "d")
        builder.write([1, 0], td[[1, 0]])
        assert_equal(builder.finish(), td)

    @pytest.mark.parametrize("count", [1, 3])
    def test_every_dtype(self, tmp_path: Path, count: int) -> None:
        names = ["float8_e4m3fn", "float4_e2m1fn_x2", "complex32", "uint64", "bool"]
        raw = torch.arange(count * 16, dtype=torch.uint8).view(count, 16) % 2
        td = TensorDict({n: raw.view(getattr(torch, n)) for n in names}, count)
        builder = memmap_like(td, tmp_path / "d")
        for row in range(count):
            builder.write(row, td[row])
        made = builder.finish()
        for name in names:
            assert torch.equal(made[name].view(torch.uint8), raw)


class TestPeer:
    def test_it_loads_what_was_built(self, tmp_path: Path) -> None:
        peer = pytest.importorskip("tensordict")
        td = data()
        builder = memmap_like(td, tmp_path / "d")
        builder.write(..., td)
        builder.finish()
        found = peer.TensorDict.load_memmap(tmp_path / "d")
        assert found.batch_size == (6,)
        assert torch.equal(found["a"], td["a"])
        assert torch.equal(found["deep", "b"], td["deep", "b"])
        assert found["text"] == [f"row {i}" for i in range(6)]
        assert found["name"] == "all"


class TestIndex:
    SIZE = (4, 3, 2)
    INDICES = (
        *[0, -1, slice(None), slice(1, 3), slice(0, 4, 3), slice(3, None), ..., ()],
        *[slice(9, 12), [2, 0], range(1, 3), range(3, -1, -2), [-1, 1], []],
        *[torch.tensor([3, 1]), torch.tensor(2), np.array([0, 3]), (1, 2), (1, 2, 0)],
        *[(slice(None), 1), (slice(0, 3), slice(1, 3)), (..., 1), (1, ..., 0)],
        *[(slice(None), [2, 0]), ([0, 3], slice(0, 2)), (slice(1, 2), [0], slice(1))],
        *[torch.tensor([True, False, False, True]), (1, slice(None), slice(1, 2))],
        (slice(None), torch.tensor([True, False, True])),
    )

    @pytest.mark.parametrize("index", INDICES, ids=repr)
    def test_rows_are_those_of_torch(self, tmp_path: Path, index: Any) -> None:
        whole = torch.arange(24 * 2).view(*self.SIZE, 2)
        written = torch.zeros(self.SIZE, dtype=torch.bool)
        places = list(index) if isinstance(index, range) else index
        written[places] = True
        tree = TensorDict({"x": whole}, list(self.SIZE))
        builder = memmap_like(tree, tmp_path / "d")
        builder.write(index, tree[places])
        rows = written.flatten(1).all(1)
        assert [i for r in builder.done() for i in r] == rows.nonzero()[:, 0].tolist()
        assert [i for r in builder.missing() for i in r] == (~rows).nonzero()[
            :, 0
        ].tolist()
        found = builder.finish(partial=True)["x"]
        assert torch.equal(found, whole * written[..., None])

    @pytest.mark.parametrize(
        "index",
        [
            *[4, -5, [0, 4], torch.tensor([-5]), range(2, 9), (0, 3), (0, 0, 0, 0)],
            *[None, (None, 1), True, slice(None, None, -1), 1.5, "x"],
            *[torch.zeros(2, 2, dtype=torch.long), torch.ones(4, 3, dtype=torch.bool)],
            *[([0], [1]), ([0], 1), torch.ones(5, dtype=torch.bool)],
        ],
        ids=repr,
    )
    def test_bad_indices(self, tmp_path: Path, index: Any) -> None:
        builder = memmap_like(
            TensorDict({"x": torch.zeros(4, 3)}, [4, 3]), tmp_path / "d"
        )
        with pytest.raises(TreeIndexError):
            builder.write(index, TensorDict({"x": torch.zeros(4)}, 4))
        assert builder.done() == []

    def test_the_last_of_rows_that_are_there_twice_stays(self, tmp_path: Path) -> None:
        td = TensorDict({"x": torch.arange(3), "t": NonTensorStack(*"abc")}, 3)
        builder = memmap_like(td, tmp_path / "d")
        builder.write([0, 1, 0], td)
        made = builder.finish(partial=True)
        assert made["x"].tolist() == [2, 1, 0]
        assert list(made["t"]) == ["c", "b", None]

    def test_values_of_rows_are_written_in_any_order(self, tmp_path: Path) -> None:
        rows = NonTensorStack(*[NonTensorStack(f"{i}a", f"{i}b") for i in range(3)])
        td = TensorDict({"t": rows}, [3, 2])
        builder = memmap_like(td, tmp_path / "d")
        builder.write((slice(None), 1), td[:, 1])
        builder.flush()
        builder.write(([2, 0], slice(1)), td[[2, 0], :1])
        builder.write((1, 0), td[1, 0])
        assert_equal(builder.finish(), td)


class TestChecks:
    def test_all_differences_are_listed(self, tmp_path: Path) -> None:
        td = data()
        builder = memmap_like(td, tmp_path / "d")
        wrong = td.exclude("a").set("new", torch.zeros(6)).set("name", "other")
        wrong = wrong.set(("deep", "b"), torch.zeros(6))
        wrong = wrong.set("scale", tdfunc.unbatched(torch.zeros(2)))
        wrong = wrong.set("shape", torch.zeros(6, 4, dtype=torch.bool))
        wrong = wrong.set("text", torch.zeros(6))
        before = hashes(tmp_path)
        with pytest.raises(StructureError) as caught:
            builder.write(slice(0, 2), wrong[:2])
        text = str(caught.value)
        for part in (
            "td['a'] is missing",
            "td['new'] is extra",
            "td['name'] is 'other', not 'all'",
            "td['deep', 'b'] is float32 [2], not bfloat16 [2]",
            "td['scale'] is unbatched float32 [2] of other values",
            "td['shape'] is bool [2, 4], not bool [2, 3]",
            "td['text'] is float32 [2], not values of rows [2]",
        ):
            assert part in text, text
        assert hashes(tmp_path) == before
        assert builder.done() == []

    @pytest.mark.parametrize("index", [slice(0, 2), [1, 3], 0])
    def test_other_batch_sizes(self, tmp_path: Path, index: Any) -> None:
        builder = memmap_like(plain(6), tmp_path / "d")
        with pytest.raises(BatchSizeError, match="expected batch_size="):
            builder.write(index, plain(3))

    def test_other_batch_sizes_of_nodes(self, tmp_path: Path) -> None:
        node = TensorDict({"z": torch.zeros(2, 3)}, [2, 3])
        builder = memmap_like(TensorDict({"y": node}, 2), tmp_path / "d")
        other = TensorDict({"y": TensorDict({"z": torch.zeros(2, 3)}, [2])}, 2)
        with pytest.raises(StructureError, match=r"batch_size=\[2\], not \[2, 3\]"):
            builder.write(..., other)

    def test_nodes_in_place_of_values(self, tmp_path: Path) -> None:
        builder = memmap_like(plain(2), tmp_path / "d")
        with pytest.raises(StructureError, match=r"td\['x'\] is a node, not int64"):
            builder.write(..., plain(2).set("x", plain(2)))
        with pytest.raises(StructureError, match=r"td\['y'\] is .* not a node"):
            builder.write(..., plain(2).set("y", "text"))
        lazy = tdfunc.lazy_stack([plain(2), plain(2)])
        with pytest.raises(StructureError, match=r"td\['y'\] is a lazy stack"):
            builder.write(..., plain(2).set("y", lazy))
        with pytest.raises(StructureError, match="densify"):
            builder.write(..., tdfunc.lazy_stack([plain(2)[0], plain(2)[1]]))

    def test_what_is_no_tree(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidLeafError):
            memmap_like(torch.zeros(2), tmp_path / "d")  # pyright: ignore[reportArgumentType]
        builder = memmap_like(plain(2), tmp_path / "d")
        with pytest.raises(InvalidLeafError):
            builder.write(0, {"x": 1})  # pyright: ignore[reportArgumentType]
        sparse = TensorDict({"x": torch.zeros(2, 2).to_sparse()}, 2)
        with pytest.raises(InvalidLeafError, match="dense"):
            memmap_like(sparse, tmp_path / "e")
        with pytest.raises(InvalidLeafError, match="meta"):
            builder.write(..., plain(2).to("meta"))

    def test_lazy_stacks_and_jagged_tensors_are_refused(self, tmp_path: Path) -> None:
        rows = [torch.zeros(1), torch.zeros(3)]
        jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
        lazy = tdfunc.lazy_stack([TensorDict(), TensorDict(x=1)])
        td = TensorDict({"n": {"j": jagged}}, 2)
        with pytest.raises(FormatLimitError, match=r"td\['n', 'j'\] is a jagged"):
            memmap_like(td, tmp_path / "d")
        with pytest.raises(FormatLimitError, match=r"td\['l'\] is a lazy stack"):
            memmap_like(TensorDict({"l": lazy}, 2), tmp_path / "d")
        with pytest.raises(FormatLimitError, match="td is a lazy stack"):
            memmap_like(lazy, tmp_path / "d")
        assert not list(tmp_path.iterdir())

    def test_values_without_a_form(self, tmp_path: Path) -> None:
        with pytest.raises(PickleRefusedError, match="'s'"):
            memmap_like(TensorDict({"s": object()}, 2), tmp_path / "d")
        td = TensorDict({"t": NonTensorStack("a", "b")}, 2)
        builder = memmap_like(td, tmp_path / "d")
        with pytest.raises(PickleRefusedError, match="'t'"):
            builder.write(..., TensorDict({"t": NonTensorStack("a", object())}, 2))

    def test_too_many_values(self, tmp_path: Path) -> None:
        td = TensorDict({"t": NonTensorStack("a", "b")}, 2)
        with pytest.raises(FormatLimitError, match="too many values"):
            memmap_like(td, tmp_path / "d", batch_size=[10**9])

    def test_batch_sizes_without_rows(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match="batch_size="):
            memmap_like(TensorDict(x=torch.zeros(2)), tmp_path / "d")

    def test_where_it_can_not_be(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError):
            memmap_like(plain(2), tmp_path / "none" / "d")
        (tmp_path / "file").write_text("x")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "notes").write_text("x")
        for name in ("file", "full"):
            for options in ({}, {"resume": True}, {"overwrite": True}):
                with pytest.raises(TargetExistsError):
                    memmap_like(plain(2), tmp_path / name, **options)
        with pytest.raises(OptionError, match="both"):
            memmap_like(plain(2), tmp_path / "d", overwrite=True, resume=True)
        assert (tmp_path / "full" / "notes").read_text() == "x"

    def test_a_builder_is_not_pickled(self, tmp_path: Path) -> None:
        builder = memmap_like(plain(2), tmp_path / "d")
        with pytest.raises(OptionError, match="resume=True"):
            pickle.dumps(builder)
        assert repr(builder).startswith("Builder(")


class TestStates:
    def test_it_is_no_tree_before_it_is_finished(self, tmp_path: Path) -> None:
        builder = memmap_like(plain(2), tmp_path / "d")
        for function in (load, tdfunc.load_memmap):
            with pytest.raises(FileFormatError, match="still being built"):
                function(tmp_path / "d")
        with pytest.raises(FileFormatError, match="still being built"):
            tdfunc.append_memmap(tmp_path / "d", plain(2))
        with pytest.raises(TargetExistsError):
            plain(2).save(tmp_path / "d", overwrite=True)
        builder.write(..., plain(2))
        builder.finish()
        assert_equal(load(tmp_path / "d"), plain(2))

    def test_missing_rows(self, tmp_path: Path) -> None:
        builder = memmap_like(plain(20), tmp_path / "d")
        builder.write(slice(3, 10), plain(7))
        builder.write(12, plain(20)[12])
        with pytest.raises(OptionError, match="no rows 0-2, 10-11, 13-19"):
            builder.finish()
        for i in range(3):
            builder.write(i, plain(20)[i])
        assert builder.missing() == [range(10, 12), range(13, 20)]
        td = builder.finish(partial=True)
        assert td["y", "z"][12].tolist() == [1.0] * 3
        assert td["y", "z"][10].tolist() == [0.0] * 3

    def test_rows_of_several_dims(self, tmp_path: Path) -> None:
        td = TensorDict({"x": torch.arange(6)}, 6).reshape(3, 2)
        builder = memmap_like(td, tmp_path / "d")
        builder.write((slice(None), 0), td[:, 0])
        builder.write((1, 1), td[1, 1])
        assert builder.done() == [range(1, 2)]
        assert builder.missing() == [range(1), range(2, 3)]

    @pytest.mark.parametrize("call", ["write", "flush", "done", "missing", "finish"])
    def test_closed(self, tmp_path: Path, call: str) -> None:
        builder = memmap_like(plain(2), tmp_path / "d")
        builder.close()
        builder.close()
        arguments = (0, plain(2)[0]) if call == "write" else ()
        with pytest.raises(OptionError, match="closed"):
            getattr(builder, call)(*arguments)

    def test_finished_by_another(self, tmp_path: Path) -> None:
        one = memmap_like(plain(2), tmp_path / "d")
        two = memmap_like(plain(2), tmp_path / "d", resume=True)
        two.write(..., plain(2))
        two.finish()
        with pytest.raises(OptionError, match="another builder"):
            one.write(0, plain(2)[0])
        one.close()
        with pytest.raises(TargetExistsError, match="finished"):
            memmap_like(plain(2), tmp_path / "d", resume=True)

    def test_closing_flushes_also_after_an_error(self, tmp_path: Path) -> None:
        with (
            pytest.raises(RuntimeError),
            memmap_like(data(), tmp_path / "d") as builder,
        ):
            self.half(builder)
        builder = memmap_like(data(), tmp_path / "d", resume=True)
        assert builder.done() == [range(2)]

    def half(self, builder: Builder) -> None:
        builder.write(range(2), data()[:2])
        raise RuntimeError

    def test_resumed_for_another_tree(self, tmp_path: Path) -> None:
        memmap_like(data(), tmp_path / "d").close()
        other = data().exclude("a").set("new", torch.zeros(6)).set("name", "b")
        with pytest.raises(StructureError) as caught:
            memmap_like(other, tmp_path / "d", resume=True)
        for part in ("td['a'] is missing", "td['new'] is extra", "td['name'] is one"):
            assert part in str(caught.value)
        with pytest.raises(StructureError, match=r"\[7\]"):
            memmap_like(data(), tmp_path / "d", resume=True, batch_size=[7])

    def test_begun_anew(self, tmp_path: Path) -> None:
        first = memmap_like(plain(2), tmp_path / "d")
        first.write(..., plain(2))
        with pytest.raises(TargetExistsError, match="being built"):
            memmap_like(plain(3), tmp_path / "d")
        second = memmap_like(plain(3), tmp_path / "d", overwrite=True)
        assert second.done() == []
        with pytest.raises(OptionError):
            first.flush()
        second.write(..., plain(3))
        second.finish()
        with pytest.raises(TargetExistsError):
            memmap_like(plain(3), tmp_path / "d")

    def test_in_place_of_a_saved_tree(self, tmp_path: Path) -> None:
        old = plain(20_000).memmap(tmp_path / "d")
        with pytest.raises(TargetExistsError):
            memmap_like(plain(2), tmp_path / "d")
        builder = memmap_like(old, tmp_path / "d", overwrite=True)
        builder.write(..., old)
        assert_equal(builder.finish(), plain(20_000))
        assert_equal(old, plain(20_000))

    def test_a_row_that_is_written_again_is_open_till_it_is_noted(
        self, tmp_path: Path
    ) -> None:
        builder = memmap_like(plain(6), tmp_path / "d")
        builder.write(..., plain(6))
        builder.flush()
        builder.write(slice(2, 4), plain(6)[:2])
        other = memmap_like(plain(6), tmp_path / "d", resume=True)
        assert other.missing() == [range(2, 4)]
        assert builder.missing() == []
        builder.flush()
        assert other.missing() == []
        assert builder.finish()["x"].tolist() == [0, 1, 0, 1, 4, 5]

    def test_a_write_that_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        builder = memmap_like(plain(6), tmp_path / "d")
        builder.write(slice(4), plain(4))

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(OSError, match="No space"):
                builder.write(slice(2, 5), plain(3))
        assert builder.missing() == [range(2, 6)]

    def test_a_file_that_may_not_grow(self, tmp_path: Path) -> None:
        def build() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            with pytest.raises(OSError, match="too large"):
                memmap_like(plain(2000), tmp_path / "d")

        children.run(build)
        assert not list(tmp_path.iterdir())

    def test_a_log_whose_last_line_is_torn(self, tmp_path: Path) -> None:
        builder = memmap_like(plain(6), tmp_path / "d")
        builder.write(slice(2), plain(2))
        builder.flush()
        (log,) = (tmp_path / "d" / BUILDING).glob("*.log")
        with log.open("ab") as file:
            file.write(b'{"at": 1, "done": [[0, 6')
        other = memmap_like(plain(6), tmp_path / "d", resume=True)
        assert other.done() == [range(2)]
        builder.write(2, plain(6)[2])
        builder.flush()
        assert other.done() == [range(3)]

    @pytest.mark.parametrize(
        "line",
        [
            *["[]", "7", "{", '{"at": "x"}', '{"at": 1, "done": [[2, 1]]}'],
            *['{"at": 1, "done": [[0, 1.5]]}', '{"at": 1, "done": [3]}'],
            *[
                '{"at": 1, "done": 3}',
                '{"at": 1, "values": [3]}',
                '{"at": 1, "open": 1}',
            ],
            *[
                '{"at": 1, "done": [[true, 2]]}',
                '{"at": true}',
                '{"at": 1, "values": 1}',
            ],
        ],
    )
    def test_a_broken_log(self, tmp_path: Path, line: str) -> None:
        memmap_like(plain(6), tmp_path / "d").close()
        (tmp_path / "d" / BUILDING / "x.log").write_text(line + "\n")
        with pytest.raises(FileFormatError, match=r"x\.log"):
            memmap_like(plain(6), tmp_path / "d", resume=True)

    @pytest.mark.parametrize(
        "values",
        [[["t"], [[0, 1]], 5], [["no"], [[0, 1]], [1]], [["t"], [[3, 4]], [1]]],
    )
    def test_a_log_with_values_of_no_rows(self, tmp_path: Path, values: Any) -> None:
        td = TensorDict({"t": NonTensorStack(*"abc")}, 3)
        builder = memmap_like(td, tmp_path / "d")
        builder.write(..., td)
        line = json.dumps({"at": 1, "values": [values]})
        (tmp_path / "d" / BUILDING / "x.log").write_text(line + "\n")
        with pytest.raises(FileFormatError, match="log"):
            builder.finish()

    @pytest.mark.parametrize("about", ["[]", "[2, {}]", "[true, {}]", "{", "[1, []]"])
    def test_of_a_later_version(self, tmp_path: Path, about: str) -> None:
        memmap_like(plain(6), tmp_path / "d").close()
        (tmp_path / "d" / BUILDING / "about.json").write_text(about)
        with pytest.raises(FileFormatError, match=r"about\.json"):
            memmap_like(plain(6), tmp_path / "d", resume=True)

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        builder = memmap_like(plain(6), tmp_path / "d")
        (tmp_path / "outside").write_bytes(b"safe" * 20)
        (tmp_path / "d" / "x.memmap").unlink()
        (tmp_path / "d" / "x.memmap").symlink_to(tmp_path / "outside")
        with pytest.raises(OSError, match="symbolic"):
            builder.write(0, plain(6)[0])
        assert (tmp_path / "outside").read_bytes() == b"safe" * 20


class TestDurable:
    def test_all_of_it_is_synced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        real = os.fsync

        def fsync(file: int) -> None:
            synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)
        builder = memmap_like(plain(2), tmp_path / "d", durable=True)
        synced.clear()
        builder.write(..., plain(2))
        assert not synced
        builder.flush()
        root = str(tmp_path / "d")
        assert synced[:2] == [f"{root}/x.memmap", f"{root}/y/z.memmap"]
        assert synced[2].endswith(".log")
        synced.clear()
        builder.finish()
        assert {root, f"{root}/y", f"{root}/y/meta.json"} <= set(synced)
        assert f"{root}/{BUILDING}/meta.json" in synced


class TestSize:
    def test_larger_than_memory(self, tmp_path: Path) -> None:
        one = TensorDict({"image": torch.zeros(1 << 20, dtype=torch.uint8)})
        count = 64 << 10  # 64 GiB
        before = time.perf_counter()
        builder = memmap_like(one, tmp_path / "d", batch_size=[count])
        rows = [0, 12345, count - 1]
        for i, row in enumerate(rows):
            builder.write(row, TensorDict(image=torch.full((1 << 20,), i + 1).byte()))
        assert builder.missing() == [
            range(1, 12345),
            range(12346, count - 1),
        ]
        td = builder.finish(partial=True)
        assert time.perf_counter() - before < 10
        file = (tmp_path / "d" / "image.memmap").stat()
        assert file.st_size == 64 << 30
        assert file.st_blocks * 512 < 8 << 20
        assert td["image"].shape == (count, 1 << 20)
        assert [int(td["image"][row].max()) for row in rows] == [1, 2, 3]
        assert int(td["image"][1].max()) == 0

    def test_many_rows_one_by_one(self, tmp_path: Path) -> None:
        td = plain(3000)
        builder = memmap_like(td, tmp_path / "d")
        order = list(range(3000))
        random.Random(0).shuffle(order)  # noqa: S311 - no secret
        for row in order:
            builder.write(row, td[row])
        assert_equal(builder.finish(), td)


class TestTogether:
    def test_threads_share_one(self, tmp_path: Path) -> None:
        td = data(200)
        builder = memmap_like(td, tmp_path / "d")

        def work(first: int) -> None:
            for row in range(first, 200, 4):
                builder.write(row, td[row])
                if row % 10 == 0:
                    builder.flush()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert_equal(builder.finish(), td)

    def test_two_processes_write_half_each(self, tmp_path: Path) -> None:
        """B92."""
        code = """
            import sys, torch, tdfunc
            path, first = sys.argv[1], int(sys.argv[2])
            rows = torch.arange(100)
            text = tdfunc.NonTensorStack(*[str(i) for i in range(100)])
            td = tdfunc.TensorDict({"x": rows, "t": text}, 100)
            with tdfunc.memmap_like(td, path, resume=True) as builder:
                for row in range(first, first + 50):
                    builder.write(row, td[row])
                    builder.flush()
        """
        workers = [spawn(code, tmp_path / "d", first) for first in (0, 50)]
        assert [worker.wait() for worker in workers] == [0, 0]
        text = NonTensorStack(*[str(i) for i in range(100)])
        td = TensorDict({"x": torch.arange(100), "t": text}, 100)
        builder = memmap_like(td, tmp_path / "d", resume=True)
        assert builder.missing() == []
        assert_equal(builder.finish(), td)

    def test_a_child_has_its_own_log(self, tmp_path: Path) -> None:
        builder = memmap_like(plain(6), tmp_path / "d")
        builder.write(slice(2), plain(6)[:2])

        def child() -> None:
            builder.write(slice(2, 4), plain(6)[2:4])
            builder.flush()

        children.run(child)
        children.run(builder.close)
        other = memmap_like(plain(6), tmp_path / "d", resume=True)
        assert other.done() == [range(2, 4)]
        builder.write(slice(4, 6), plain(6)[4:])
        assert builder.missing() == []
        assert_equal(builder.finish(), plain(6))

    def test_a_writer_that_is_killed(self, tmp_path: Path) -> None:
        """B92: what was noted at the last flush is there."""
        self.killed(tmp_path, 5)

    @pytest.mark.slow
    def test_writers_that_are_killed(self, tmp_path: Path) -> None:
        self.killed(tmp_path, 150)

    def killed(self, tmp_path: Path, times: int) -> None:
        count = 2000
        text = NonTensorStack(*[f"row {i}" for i in range(count)])
        td = TensorDict({"x": torch.arange(count), "t": text}, count)
        td = td.set("y", torch.arange(count)[:, None].expand(count, 500).clone())
        rng = random.Random(times)  # noqa: S311 - no secret
        noted = 0

        def work() -> None:
            builder = memmap_like(td, tmp_path / "d", resume=True)
            for rows in builder.missing():
                for row in rows:
                    builder.write(row, td[row])
                    if row % 7 == 0:
                        builder.flush()
            builder.finish()

        for _ in range(times):
            pid = children.start(work)
            time.sleep(rng.uniform(0, 0.1))
            os.kill(pid, signal.SIGKILL)
            if children.end(pid) == 0 or (tmp_path / "d" / "meta.json").exists():
                assert_equal(load(tmp_path / "d"), td)
                td.save(tmp_path / "d", overwrite=True)
                memmap_like(td, tmp_path / "d", overwrite=True).close()
                noted = 0
                continue
            with memmap_like(td, tmp_path / "d", resume=True) as builder:
                done = [row for rows in builder.done() for row in rows]
            assert len(done) >= noted
            noted = len(done)
            raw = np.fromfile(tmp_path / "d" / "y.memmap", np.int64).reshape(count, 500)
            assert (raw[done] == np.array(done)[:, None]).all()
        if not (tmp_path / "d" / "meta.json").exists():
            children.run(work)
        assert_equal(load(tmp_path / "d"), td)


class TestSpans:
    @pytest.mark.parametrize("seed", range(20))
    def test_against_sets(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - no secret

        def some() -> list[list[int]]:
            starts = [rng.randrange(30) for _ in range(rng.randrange(6))]
            return [[start, start + rng.randrange(1, 8)] for start in starts]

        def as_set(spans: Any) -> set[int]:
            return {row for start, stop in spans for row in range(start, stop)}

        one, two = some(), some()
        spans = [np.array(x, dtype=np.int64).reshape(-1, 2) for x in (one, two)]
        together = joined(spans)
        assert as_set(together.tolist()) == as_set(one) | as_set(two)
        assert all(a[1] < b[0] for a, b in pairwise(together.tolist()))
        assert as_set(minus(*spans).tolist()) == as_set(one) - as_set(two)
        meets = bool(as_set(one) & as_set(two))
        assert overlap(joined(spans[:1]), spans[1]) is meets
