"""Directories that grow: the old tree or the new one, at every moment."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tdfunc
from tdfunc import NonTensorData, NonTensorStack, TensorDict, append_memmap, load
from tdfunc.errors import (
    BatchSizeError,
    FileFormatError,
    FormatLimitError,
    InvalidLeafError,
    MissingFileError,
    OptionError,
    PickleRefusedError,
    StructureError,
)
from tdfunc.io import _append, _atomic
from tdfunc.testing import assert_equal
from tests.io import children
from tests.io.test_builder import data, hashes, plain

if TYPE_CHECKING:
    from pathlib import Path


def held(td: Any) -> Any:
    """Return the values of a tree, which stay whatever becomes of its files."""
    return td.clone()


class Opaque:
    """A value that has no form but a pickle."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.number == other.number

    def __hash__(self) -> int:
        return self.number


class Sudden(BaseException):
    """Stands for the end of the process."""


class TestAppend:
    def test_it_is_a_cat(self, tmp_path: Path) -> None:
        td = data()
        td.save(tmp_path / "d")
        append_memmap(tmp_path / "d", td[:2])
        append_memmap(tmp_path / "d", td[3:4], durable=True)
        whole = tdfunc.cat([td, td[:2], td[3:4]])
        assert_equal(load(tmp_path / "d"), whole)
        whole.save(tmp_path / "saved")
        saved, grown = hashes(tmp_path / "saved"), hashes(tmp_path / "d")
        assert {k.replace("/saved/", "/d/"): v for k, v in saved.items()} == grown
        assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "saved"]

    def test_several_batch_dims_and_nodes_with_more(self, tmp_path: Path) -> None:
        node = TensorDict({"z": torch.rand(4, 2, 3, 5)}, [4, 2, 3])
        rows = NonTensorStack(*[NonTensorStack(f"{i}a", f"{i}b") for i in range(4)])
        td = TensorDict({"n": node, "t": rows, "x": torch.rand(4, 2)}, [4, 2])
        td[:1].save(tmp_path / "d")
        append_memmap(tmp_path / "d", td[1:])
        assert_equal(load(tmp_path / "d"), td)

    def test_the_old_rows_are_not_written(self, tmp_path: Path) -> None:
        plain(50_000).save(tmp_path / "d")
        before = (tmp_path / "d" / "x.memmap").stat()
        append_memmap(tmp_path / "d", plain(3))
        after = (tmp_path / "d" / "x.memmap").stat()
        assert after.st_ino == before.st_ino
        assert after.st_size == before.st_size + 3 * 8
        assert after.st_nlink == 1

    def test_readers_keep_what_they_have(self, tmp_path: Path) -> None:
        old = plain(50_000).memmap(tmp_path / "d")
        append_memmap(tmp_path / "d", plain(50_000))
        assert old.batch_size == (50_000,)
        assert_equal(old, plain(50_000))
        old["x"].zero_()
        assert_equal(load(tmp_path / "d")[50_000:], plain(50_000))
        assert_equal(load(tmp_path / "d")[:50_000], plain(50_000))

    def test_no_rows_and_first_rows(self, tmp_path: Path) -> None:
        td = data()
        td[:0].save(tmp_path / "d")
        append_memmap(tmp_path / "d", td[:0])
        append_memmap(tmp_path / "d", td)
        append_memmap(tmp_path / "d", td[:0])
        assert_equal(load(tmp_path / "d"), td)

    def test_the_rows_may_be_the_tree_itself(self, tmp_path: Path) -> None:
        td = plain(20_000).memmap(tmp_path / "d")
        append_memmap(tmp_path / "d", td)
        append_memmap(tmp_path / "d", load(tmp_path / "d"))
        assert_equal(load(tmp_path / "d"), tdfunc.cat([plain(20_000)] * 4))

    def test_one_tensor_at_two_places(self, tmp_path: Path) -> None:
        tied = torch.arange(4)
        td = TensorDict({"a": tied, "b": tied, "c": torch.arange(4)}, 4)
        td.save(tmp_path / "d")
        more = torch.arange(2)
        append_memmap(tmp_path / "d", TensorDict(dict.fromkeys("abc", more), 2))
        found = load(tmp_path / "d")
        assert found["a"] is found["b"]
        assert found["a"].tolist() == [0, 1, 2, 3, 0, 1]
        rows = TensorDict({k: torch.tensor([i]) for i, k in enumerate("abc")}, 1)
        append_memmap(tmp_path / "d", rows)
        found = load(tmp_path / "d")
        assert [found[k].tolist()[4:] for k in "abc"] == [[0, 1, i] for i in range(3)]
        assert [found[k].tolist()[:4] for k in "abc"] == [[0, 1, 2, 3]] * 3

    def test_links_and_modes(self, tmp_path: Path) -> None:
        plain(3).save(tmp_path / "d")
        (tmp_path / "d").chmod(0o750)
        (tmp_path / "link").symlink_to("d")
        append_memmap(tmp_path / "link", plain(2))
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "d").stat().st_mode & 0o777 == 0o750
        assert load(tmp_path / "d").batch_size == (5,)

    def test_a_finished_builder(self, tmp_path: Path) -> None:
        with tdfunc.memmap_like(data(), tmp_path / "d") as builder:
            builder.write(..., data())
            builder.finish()
        append_memmap(tmp_path / "d", data())
        assert_equal(load(tmp_path / "d"), tdfunc.cat([data(), data()]))

    def test_pickled_values(self, tmp_path: Path) -> None:
        td = TensorDict({"x": torch.zeros(2), "s": NonTensorData(Opaque(1))}, 2)
        td.save(tmp_path / "d", allow_pickle=True)
        with pytest.raises(PickleRefusedError):
            append_memmap(tmp_path / "d", td)
        append_memmap(tmp_path / "d", td, allow_pickle=True)
        assert load(tmp_path / "d", allow_pickle=True).batch_size == (4,)

    def test_without_hard_links(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*_: object, **__: object) -> None:
            raise OSError(1, "Operation not permitted")

        data().save(tmp_path / "d")
        monkeypatch.setattr(os, "link", refused)
        monkeypatch.setattr(_append, "_COPIED", 16)
        append_memmap(tmp_path / "d", data())
        assert_equal(load(tmp_path / "d"), tdfunc.cat([data(), data()]))


class TestPeer:
    def test_it_loads_what_was_appended(self, tmp_path: Path) -> None:
        peer = pytest.importorskip("tensordict")
        td = data()
        td.save(tmp_path / "d")
        append_memmap(tmp_path / "d", td[:2])
        found = peer.TensorDict.load_memmap(tmp_path / "d")
        assert found.batch_size == (8,)
        assert torch.equal(found["a"], torch.cat([td["a"], td["a"][:2]]))
        assert torch.equal(found["deep", "b"][6:], td["deep", "b"][:2])
        assert found["text"] == [f"row {i}" for i in (*range(6), 0, 1)]

    def test_to_what_it_saved(self, tmp_path: Path) -> None:
        peer = pytest.importorskip("tensordict")
        nodes = {"x": torch.arange(3), "n": peer.TensorDict(y=torch.ones(3, 2))}
        peer.TensorDict(nodes, [3], names=["t"]).memmap(tmp_path / "d")
        td = load(tmp_path / "d")
        append_memmap(tmp_path / "d", held(td))
        append_memmap(tmp_path / "d", held(td).with_names([None]))
        assert load(tmp_path / "d")["x"].tolist() == [0, 1, 2] * 3
        found = peer.TensorDict.load_memmap(tmp_path / "d")
        assert found["n", "y"].shape == (9, 2)


class TestChecks:
    def test_all_differences_are_listed(self, tmp_path: Path) -> None:
        td = data()
        td.save(tmp_path / "d")
        before = hashes(tmp_path)
        wrong = td.exclude("a").set("new", torch.zeros(6)).set("name", "other")
        wrong = wrong.set(("deep", "b"), torch.zeros(6))
        wrong = wrong.set("scale", tdfunc.unbatched(torch.zeros(2)))
        with pytest.raises(StructureError) as caught:
            append_memmap(tmp_path / "d", wrong)
        for part in ("td['a'] is missing", "td['new'] is extra", "'other', not 'all'"):
            assert part in str(caught.value)
        assert "td['deep', 'b'] is float32 [6], not bfloat16 [6]" in str(caught.value)
        assert "of other values" in str(caught.value)
        assert hashes(tmp_path) == before

    def test_other_shapes_and_names(self, tmp_path: Path) -> None:
        td = TensorDict({"x": torch.zeros(3, 2)}, [3, 2], names=["a", "b"])
        td.save(tmp_path / "d")
        with pytest.raises(BatchSizeError):
            append_memmap(tmp_path / "d", td[:, :1])
        with pytest.raises(BatchSizeError, match=r"td\[None\]"):
            append_memmap(tmp_path / "d", td[0])
        with pytest.raises(StructureError, match="dim names"):
            append_memmap(tmp_path / "d", td.with_names(["a", "c"]))
        append_memmap(tmp_path / "d", td.with_names([None, None]))
        assert load(tmp_path / "d").names == ("a", "b")

    def test_what_does_not_grow(self, tmp_path: Path) -> None:
        rows = [torch.zeros(1), torch.zeros(3)]
        jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
        lazy = tdfunc.lazy_stack([TensorDict(), TensorDict(x=1)])
        for value, what in ((jagged, "jagged tensor"), (lazy, "lazy stack")):
            td = TensorDict({"n": {"v": value}}, 2)
            td.save(tmp_path / "d", overwrite=True)
            with pytest.raises(FormatLimitError, match=rf"td\['n', 'v'\] of .* {what}"):
                append_memmap(tmp_path / "d", td)
        plain(2).save(tmp_path / "p")
        with pytest.raises(FormatLimitError, match="td of the rows is a lazy stack"):
            append_memmap(tmp_path / "p", tdfunc.lazy_stack([plain(2)[0]] * 2))

    def test_what_is_no_directory_of_a_tree(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError):
            append_memmap(tmp_path / "d", plain(2))
        plain(2).save(tmp_path / "d.tdz")
        with pytest.raises(FileFormatError, match="unpack_memmap"):
            append_memmap(tmp_path / "d.tdz", plain(2))
        (tmp_path / "e").mkdir()
        with pytest.raises(FileFormatError, match=r"meta\.json"):
            append_memmap(tmp_path / "e", plain(2))
        TensorDict(x=torch.zeros(2)).save(tmp_path / "s")
        with pytest.raises(OptionError, match="batch dims"):
            append_memmap(tmp_path / "s", TensorDict({"x": torch.zeros(1, 2)}, 1))
        with pytest.raises(InvalidLeafError):
            append_memmap(tmp_path / "s", {"x": 1})  # pyright: ignore[reportArgumentType]
        with pytest.raises(OptionError):
            append_memmap("", plain(2))


class TestCrashes:
    def test_stopped_at_every_call(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every call that changes a file is the last one once."""
        td = data(3)
        calls = ["open", "mkdir", "link", "ftruncate", "writev", "rename", "unlink"]
        at, ended = 0, False
        while not ended:
            shutil.rmtree(tmp_path)
            tmp_path.mkdir()
            td.save(tmp_path / "d")
            left = [at]

            def wrapped(real: Any, left: list[int] = left) -> Any:
                def call(*arguments: Any, **options: Any) -> Any:
                    left[0] -= 1
                    if left[0] < 0:
                        raise Sudden
                    return real(*arguments, **options)

                return call

            with monkeypatch.context() as patch:
                for name in calls:
                    patch.setattr(os, name, wrapped(getattr(os, name)))
                try:
                    append_memmap(tmp_path / "d", td)
                    ended = True
                except Sudden:
                    pass
            count = load(tmp_path / "d").batch_size[0]
            assert count in (3, 6)
            assert_equal(load(tmp_path / "d"), tdfunc.cat([td] * (count // 3)))
            append_memmap(tmp_path / "d", td)
            assert_equal(load(tmp_path / "d"), tdfunc.cat([td] * (count // 3 + 1)))
            at += 1
        assert at > 20

    @pytest.mark.parametrize("times", [10, pytest.param(300, marks=pytest.mark.slow)])
    def test_killed(self, tmp_path: Path, times: int) -> None:
        td = plain(3000)
        td.save(tmp_path / "d")
        rng = random.Random(times)  # noqa: S311 - no secret
        count = 1

        def work() -> None:
            while True:
                append_memmap(tmp_path / "d", td)

        for _ in range(times):
            pid = children.start(work)
            time.sleep(rng.uniform(0, 0.03))
            os.kill(pid, signal.SIGKILL)
            children.end(pid)
            found = load(tmp_path / "d")
            now, rest = divmod(found.batch_size[0], 3000)
            assert not rest
            assert now >= count
            count = now
            for i in range(count):
                assert_equal(found[3000 * i : 3000 * (i + 1)], td)
            if count > 20:
                td.save(tmp_path / "d", overwrite=True)
                count = 1
        append_memmap(tmp_path / "d", td)
        assert load(tmp_path / "d").batch_size[0] == 3000 * (count + 1)

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        plain(1000).save(tmp_path / "d")
        before = hashes(tmp_path)
        real = os.writev

        def full(file: int, buffers: Any) -> int:
            if os.fstat(file).st_size == 8000:  # of the first of the files
                return real(file, buffers)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "writev", full)
        with pytest.raises(OSError, match="No space"):
            append_memmap(tmp_path / "d", plain(1000))
        assert hashes(tmp_path) == before

    def test_what_was_left_behind_is_written_over(self, tmp_path: Path) -> None:
        plain(3).save(tmp_path / "d")
        with (tmp_path / "d" / "x.memmap").open("ab") as file:
            file.write(b"left" * 100)
        assert_equal(load(tmp_path / "d"), plain(3))
        append_memmap(tmp_path / "d", plain(2))
        assert_equal(load(tmp_path / "d"), tdfunc.cat([plain(3), plain(2)]))
        assert (tmp_path / "d" / "x.memmap").stat().st_size == 5 * 8

    def test_a_copy_by_hard_links_grows_apart(self, tmp_path: Path) -> None:
        plain(3).save(tmp_path / "d")
        shutil.copytree(tmp_path / "d", tmp_path / "e", copy_function=os.link)
        append_memmap(tmp_path / "d", plain(2))
        assert_equal(load(tmp_path / "e"), plain(3))
        append_memmap(tmp_path / "e", plain(4))
        append_memmap(tmp_path / "d", plain(1))
        assert_equal(load(tmp_path / "d"), tdfunc.cat([plain(3), plain(2), plain(1)]))
        assert_equal(load(tmp_path / "e"), tdfunc.cat([plain(3), plain(4)]))

    def test_replaced_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain(3).save(tmp_path / "d")
        real = _append.files_of

        def replaced(*arguments: Any, **options: Any) -> Any:
            plain(9).save(tmp_path / "d", overwrite=True)
            return real(*arguments, **options)

        monkeypatch.setattr(_append, "files_of", replaced)
        # The save waits for the append, but not for ever.
        monkeypatch.setattr(_atomic, "_PATIENCE", 0.1)
        with pytest.raises(FileFormatError, match="replaced by somebody else"):
            append_memmap(tmp_path / "d", plain(2))
        assert_equal(load(tmp_path / "d"), plain(9))


class TestTogether:
    def test_appends_wait_for_each_other(self, tmp_path: Path) -> None:
        TensorDict({"x": torch.zeros(1)}, 1).save(tmp_path / "d")

        def work(number: float) -> None:
            for _ in range(20):
                append_memmap(
                    tmp_path / "d", TensorDict({"x": torch.full((3,), number)}, 3)
                )

        workers = [children.start(lambda i=i: work(float(i))) for i in (1, 2, 3)]
        assert [children.end(worker) for worker in workers] == [0, 0, 0]
        found = load(tmp_path / "d")["x"][1:].view(-1, 3)
        assert (found == found[:, :1]).all()
        assert sorted(found[:, 0].tolist()) == [1.0] * 20 + [2.0] * 20 + [3.0] * 20

    def test_loads_while_it_grows(self, tmp_path: Path) -> None:
        td = TensorDict({"x": torch.arange(4), "n": {"m": {"y": torch.arange(4)}}}, 4)
        td.save(tmp_path / "d")

        def work() -> None:
            for _ in range(60):
                append_memmap(tmp_path / "d", td)

        worker = children.start(work)
        count = 0
        while count < 61 * 4:
            found = load(tmp_path / "d")
            assert found.batch_size[0] >= count
            count = found.batch_size[0]
            expected = torch.arange(4).repeat(count // 4)
            assert torch.equal(found["x"], expected)
            assert torch.equal(found["n", "m", "y"], expected)
        assert children.end(worker) == 0

    def test_a_reader_in_another_process(self, tmp_path: Path) -> None:
        """B92: it sees the length as of its load."""
        plain(50_000).save(tmp_path / "d")
        code = """
            import sys, tdfunc
            td = tdfunc.load(sys.argv[1])
            print(len(td), flush=True)
            input()
            print(len(td), int(td['x'].sum()), len(tdfunc.load(sys.argv[1])))
        """
        reader = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "d")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdout is not None
        assert reader.stdout.readline() == "50000\n"
        append_memmap(tmp_path / "d", plain(50_000))
        out, _ = reader.communicate("\n")
        assert out == f"50000 {sum(range(50_000))} 100000\n"
        assert reader.returncode == 0
        assert json.loads((tmp_path / "d" / "meta.json").read_text())["shape"] == [
            100_000
        ]
