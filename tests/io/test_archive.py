"""Archives: what is written is what is read, here, in the peer and in zip programs."""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
import subprocess
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tdfunc import TensorDict
from tdfunc.errors import (
    FileFormatError,
    FormatLimitError,
    MissingFileError,
    OptionError,
    PickleRefusedError,
    TargetExistsError,
    TdfuncError,
)
from tdfunc.io import _archive, _zip
from tdfunc.io._layout import iter_arrays
from tdfunc.io._options import ReadOptions
from tdfunc.testing import assert_equal
from tests.cases import CASES, OBJECT, ROW_CASES, Case, cases, fingerprint, ramp
from tests.io import directories
from tests.io.archives import load, meta_of, outline, save, zipped

COMPRESSIONS = ("deflate", "bzip2", "lzma")


def writable(case: Case) -> bool:
    return OBJECT not in case.statics.values() and case.name != "rows of any values"


def some_tree() -> TensorDict:
    nested = {"b": ramp(2, 3, dtype=torch.int16), "text": "hello", "e": torch.ones(2)}
    entries = {"a": ramp(2, dtype=torch.uint8), "n": nested, "\u00e9 /x": ramp(2, 70)}
    return TensorDict(entries, [2], names=["time"])


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class TestRoundTrip:
    @cases(writable, CASES + ROW_CASES)
    def test_every_case(self, tmp_path: Path, case: Case) -> None:
        td = case.tree
        before = fingerprint(case.leaves.values())

        save(td, tmp_path / "x.tdz")

        back = load(tmp_path / "x.tdz", verify=True)
        assert_equal(back, td)
        assert list(back.keys(include_nested=True)) == list(
            td.keys(include_nested=True)
        )
        assert fingerprint(case.leaves.values()) == before

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    @cases(writable, CASES)
    def test_every_case_compressed(
        self, tmp_path: Path, case: Case, compression: str
    ) -> None:
        save(case.tree, tmp_path / "x.tdz", compression=compression)

        assert_equal(load(tmp_path / "x.tdz"), case.tree)

    @cases(lambda case: not writable(case), CASES + ROW_CASES)
    def test_values_without_a_form(self, tmp_path: Path, case: Case) -> None:
        with pytest.raises(PickleRefusedError, match="pickle"):
            save(case.tree, tmp_path / "x.tdz")

        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("compression", [None, *COMPRESSIONS])
    def test_large_leaves(self, tmp_path: Path, compression: str | None) -> None:
        """Longer than what is read, checked and compressed at a time."""
        noise = torch.randint(256, (1_200_000,), dtype=torch.uint8)
        td = TensorDict({"a": torch.zeros(700_001), "b": noise, "c": ramp(3)})
        heard: list[int] = []

        save(td, tmp_path / "x.tdz", compression=compression, progress=heard.append)

        read: list[int] = []
        back = load(tmp_path / "x.tdz", verify=True, progress=read.append)
        assert_equal(back, td)
        assert sum(heard) == sum(read) == td.bytes()

    def test_writes_stay_in_memory(self, tmp_path: Path) -> None:
        td = TensorDict({"small": torch.zeros(4), "big": torch.zeros(1 << 16)})
        save(td, tmp_path / "x.tdz")
        before = (tmp_path / "x.tdz").read_bytes()

        back = load(tmp_path / "x.tdz")
        back["small"].add_(1)
        back["big"].add_(1)

        assert before == (tmp_path / "x.tdz").read_bytes()

    def test_onto_the_file_that_it_maps(self, tmp_path: Path) -> None:
        td = TensorDict({"x": torch.arange(1 << 16), "y": ramp(3)})
        save(td, tmp_path / "x.tdz")
        mapped = load(tmp_path / "x.tdz")

        save(mapped.apply(lambda x: x + 1), tmp_path / "x.tdz", overwrite=True)

        assert_equal(mapped, td)
        assert_equal(load(tmp_path / "x.tdz"), td.apply(lambda x: x + 1))

    def test_ties(self, tmp_path: Path) -> None:
        for x in (ramp(3), torch.arange(400_000)):
            save(
                TensorDict({"a": x, "n": {"b": x}}), tmp_path / "x.tdz", overwrite=True
            )

            back = load(tmp_path / "x.tdz")
            assert back["a"] is back["n", "b"]

    def test_ties_that_are_none_any_more(self, tmp_path: Path) -> None:
        """The peer writes into stored arrays, and leaves the checksums for later."""
        path = tmp_path / "x.tdz"
        x = ramp(3, dtype=torch.uint8)
        save(TensorDict({"a": x, "b": x}), path)
        with zipfile.ZipFile(path) as file:
            size = file.getinfo("b.memmap").header_offset
        raw = bytearray(path.read_bytes())
        at = raw.index(bytes([0, 1, 2]), size)
        raw[at] = 9
        path.write_bytes(raw)

        back = load(path)

        assert back["a"].tolist() == [0, 1, 2]
        assert back["b"].tolist() == [9, 1, 2]

        # Another program, which does count anew.
        with zipfile.ZipFile(path) as file:
            files = {n: file.read(n) for n in file.namelist() if n != "b.memmap"}
        zipped(path, {**files, "b.memmap": bytes([9, 1, 2])})
        assert load(path)["b"].tolist() == [9, 1, 2]

    def test_equal_trees_make_equal_archives(self, tmp_path: Path) -> None:
        save(some_tree(), tmp_path / "a.tdz")
        save(some_tree(), tmp_path / "b.tdz")

        assert (tmp_path / "a.tdz").read_bytes() == (tmp_path / "b.tdz").read_bytes()

    def test_deep_trees(self, tmp_path: Path) -> None:
        td: Any = TensorDict({"x": ramp(3)})
        for _ in range(1000):
            td = TensorDict({"k": td})
        save(td, tmp_path / "x.tdz")

        assert_equal(load(tmp_path / "x.tdz"), td)

    def test_pickles(self, tmp_path: Path) -> None:
        td = TensorDict({"a": ramp(2), "s": OBJECT})
        save(td, tmp_path / "x.tdz", allow_pickle=True)

        assert type(load(tmp_path / "x.tdz", allow_pickle=True)["s"]) is object
        with pytest.raises(PickleRefusedError):
            load(tmp_path / "x.tdz")

    def test_nothing_stays_open(self, tmp_path: Path) -> None:
        save(some_tree(), tmp_path / "x.tdz")
        (tmp_path / "bad.tdz").write_bytes(b"PK\3\4")
        before = open_files()

        load(tmp_path / "x.tdz")
        for name in ("bad.tdz", "no.tdz", "."):
            with pytest.raises(TdfuncError):
                load(tmp_path / name)
        source = _archive.open_source(tmp_path / "x.tdz", ReadOptions())
        source.close()
        source.close()

        assert open_files() == before


class TestZip:
    """What other programs see."""

    @pytest.mark.parametrize("compression", [None, *COMPRESSIONS])
    def test_python(self, tmp_path: Path, compression: str | None) -> None:
        save(some_tree(), tmp_path / "x.tdz", compression=compression)
        directories.save(some_tree(), tmp_path / "d")

        with zipfile.ZipFile(tmp_path / "x.tdz") as file:
            assert file.testzip() is None
            for name in file.namelist():
                assert file.read(name) == (tmp_path / "d" / name).read_bytes()
            assert len(file.namelist()) == sum(
                p.is_file() for p in (tmp_path / "d").rglob("*")
            )

    def test_order_and_alignment(self, tmp_path: Path) -> None:
        td = TensorDict(
            {
                "z": ramp(3, dtype=torch.uint8),
                "b": {"y": ramp(1), "a": ramp(2)},
                "c": ramp(100),
                "a": {"s": "text", "n": {"x": ramp(1)}},
            }
        )
        save(td, tmp_path / "x.tdz")

        with zipfile.ZipFile(tmp_path / "x.tdz") as file:
            names = file.namelist()
            infos = file.infolist()
        assert names == [
            *("meta.json", "c.memmap", "z.memmap"),
            *("a/meta.json", "a/n/meta.json", "a/n/x.memmap", "a/s/meta.json"),
            *("b/meta.json", "b/a.memmap", "b/y.memmap"),
        ]
        raw = (tmp_path / "x.tdz").read_bytes()
        for info in infos:
            at = info.header_offset
            name, extra = struct.unpack_from("<2H", raw, at + 26)
            start = at + 30 + name + extra
            if info.filename.endswith(".memmap"):
                assert start % 64 == 0
            assert info.compress_type == zipfile.ZIP_STORED

    @pytest.mark.skipif(not shutil.which("unzip"), reason="no unzip here")
    @pytest.mark.parametrize("compression", [None, "deflate", "bzip2"])
    def test_unzip(self, tmp_path: Path, compression: str | None) -> None:
        path = tmp_path / "x.tdz"
        save(some_tree(), path, compression=compression)

        found = subprocess.run(["unzip", "-tq", path], capture_output=True, check=False)  # noqa: S607

        assert found.returncode == 0, found.stdout

    def test_headers_of_64_bits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As if 4 GiB and 65,535 members were much less."""
        path = tmp_path / "x.tdz"
        td = TensorDict({f"k{i}": ramp(40 + 40 * i) for i in range(8)})
        with monkeypatch.context() as small:
            small.setattr(_zip, "_WIDE", 1000)
            small.setattr(_zip, "_MANY", 5)
            save(td, path)

        assert path.read_bytes().count(b"PK\6\6") == 1
        with zipfile.ZipFile(path) as file:
            assert file.testzip() is None
        assert_equal(load(path, verify=True), td)

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_compressed_headers_of_64_bits(
        self, tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "x.tdz"
        noise = torch.randint(256, (70_000,), dtype=torch.uint8)
        td = TensorDict({"a": noise, "b": ramp(40), "c": torch.zeros(1000)})
        with monkeypatch.context() as small:
            small.setattr(_zip, "_WIDE", 1000)
            save(td, path, compression=compression)

        with zipfile.ZipFile(path) as file:
            assert file.testzip() is None
        assert_equal(load(path), td)

    def test_behind_4_gib(self, tmp_path: Path) -> None:
        """The hole costs nothing; only where the bytes are is behind it."""
        path = tmp_path / "x.tdz"
        with path.open("wb") as file, _zip.Writer(file.fileno()) as out:
            size = (4 << 30) + 5
            out.stream(b"big.bin", iter([size]), size, _zip.STORED)
            out.store(b"meta.json", meta_of(a=[3]), align=False)
            out.store(b"a.memmap", b"abc", align=True)

        with zipfile.ZipFile(path) as file:
            assert file.getinfo("big.bin").file_size == size
            assert file.read("a.memmap") == b"abc"
        assert load(path)["a"].tolist() == [97, 98, 99]
        assert path.stat().st_blocks * 512 < 1 << 20


class TestForeign:
    @pytest.mark.skipif(not shutil.which("zip"), reason="no zip here")
    @pytest.mark.parametrize("level", ["-0", "-9"])
    def test_info_zip(self, tmp_path: Path, level: str) -> None:
        directories.save(some_tree(), tmp_path / "d")
        command = ["zip", "-q", level, "-r", tmp_path / "x.tdz", "."]
        subprocess.run(command, cwd=tmp_path / "d", check=True)

        assert _archive.recognises(tmp_path / "x.tdz")
        assert_equal(load(tmp_path / "x.tdz", verify=True), some_tree())

    @pytest.mark.parametrize("method", [0, 8, 12, 14])
    def test_zipfile(self, tmp_path: Path, method: int) -> None:
        """Their arrays begin anywhere."""
        directories.save(some_tree(), tmp_path / "d")
        files = {
            str(p.relative_to(tmp_path / "d")): p.read_bytes()
            for p in sorted((tmp_path / "d").rglob("*"), reverse=True)
            if p.is_file()
        }
        zipped(tmp_path / "x.tdz", files, method)

        assert _archive.recognises(tmp_path / "x.tdz")
        back = load(tmp_path / "x.tdz")
        assert_equal(back, some_tree())
        for leaf in back.values(include_nested=True, leaves_only=True):
            if isinstance(leaf, torch.Tensor):
                assert leaf.data_ptr() % leaf.element_size() == 0

    def test_a_comment_at_the_end(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "x.tdz", {"meta.json": meta_of()})
        with zipfile.ZipFile(path, "a") as file:
            file.comment = b"made by hand"

        assert_equal(load(path), TensorDict())

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"PK",
            b"PK\3\4" + bytes(100),
            b"PK\5\6" + bytes(18),
            b"PK\5\6" + b"\xff" * 18,
            b"x" * 70_000,
        ],
    )
    def test_recognises_no_other_bytes(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "x").write_bytes(data)

        assert not _archive.recognises(tmp_path / "x")

    def test_recognises_what_was_cut_off(self, tmp_path: Path) -> None:
        """Its error then says so."""
        save(some_tree(), tmp_path / "x.tdz")
        whole = (tmp_path / "x.tdz").read_bytes()
        (tmp_path / "x.tdz").write_bytes(whole[:100])

        assert _archive.recognises(tmp_path / "x.tdz")
        with pytest.raises(FileFormatError, match="cut off"):
            load(tmp_path / "x.tdz")

    def test_recognises_nothing_else(self, tmp_path: Path) -> None:
        torch.save({"meta.json": torch.ones(2)}, tmp_path / "x.pt")
        zipped(tmp_path / "x.zip", {"n/meta.json": b"{}"})
        os.mkfifo(tmp_path / "pipe")

        for name in (".", "x.pt", "x.zip", "pipe", "none", "x.pt/below"):
            assert not _archive.recognises(tmp_path / name)


class TestPeer:
    def test_it_reads_ours(self, tmp_path: Path) -> None:
        tensordict = pytest.importorskip("tensordict")
        td = some_tree()
        for compression in (None, *COMPRESSIONS):
            path = tmp_path / f"{compression}.tdz"
            save(td, path, compression=compression)

            back = tensordict.load_memmap(path)

            assert back.batch_size == td.batch_size
            assert back.names == ["time"]
            assert back["n", "text"] == "hello"
            for key in ("a", ("n", "b"), ("n", "e"), "\u00e9 /x"):
                assert torch.equal(back[key], td[key])

    def test_it_unpacks_ours(self, tmp_path: Path) -> None:
        tensordict = pytest.importorskip("tensordict")
        save(some_tree(), tmp_path / "x.tdz")

        tensordict.unpack_memmap(tmp_path / "x.tdz", tmp_path / "d")

        assert_equal(directories.load(tmp_path / "d"), some_tree())

    @pytest.mark.parametrize("compression", [None, *COMPRESSIONS])
    def test_we_read_its(self, tmp_path: Path, compression: str | None) -> None:
        tensordict = pytest.importorskip("tensordict")
        td = some_tree()
        entries = {"a": td["a"], "n": {"b": td["n", "b"]}, "t": torch.zeros(0, 3)}
        theirs = tensordict.TensorDict(
            {**entries, "t": torch.zeros(2, 0), "s": "text"}, [2], names=["time"]
        )
        theirs.memmap(tmp_path / "d")
        more = {} if compression is None else {"compression": compression}
        tensordict.pack_memmap(tmp_path / "d", tmp_path / "x.tdz", **more)

        back = load(tmp_path / "x.tdz", verify=True)

        assert back.batch_size == (2,)
        assert back.names == ("time",)
        assert back["s"] == "text"
        assert torch.equal(back["a"], td["a"])
        assert torch.equal(back["n", "b"], td["n", "b"])
        assert back["t"].shape == (2, 0)

    def test_lazy_stacks(self, tmp_path: Path) -> None:
        tensordict = pytest.importorskip("tensordict")
        members = [tensordict.TensorDict({"x": torch.ones(i + 1)}) for i in range(3)]
        theirs = tensordict.lazy_stack(members)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.save(tmp_path / "x.tdz")

        back = load(tmp_path / "x.tdz")

        assert [len(td["x"]) for td in back.unbind(0)] == [1, 2, 3]


class TestOptions:
    def test_compression(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match=r"'deflate'.*'zstd'"):
            save(some_tree(), tmp_path / "x.tdz", compression="zstd")

        assert not list(tmp_path.iterdir())

    def test_overwrite(self, tmp_path: Path) -> None:
        save(some_tree(), tmp_path / "x.tdz")
        with pytest.raises(TargetExistsError):
            save(TensorDict(), tmp_path / "x.tdz")
        assert_equal(load(tmp_path / "x.tdz"), some_tree())

        save(TensorDict(), tmp_path / "x.tdz", overwrite=True, durable=True)

        assert_equal(load(tmp_path / "x.tdz"), TensorDict())

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match=r"no\.tdz"):
            load(tmp_path / "no.tdz")
        with pytest.raises(FileFormatError, match="no regular file"):
            load(tmp_path)

    def test_names_beyond_the_format(self, tmp_path: Path) -> None:
        td: Any = TensorDict({"x": ramp(1)})
        for _ in range(300):
            td = TensorDict({"k" * 240: td})

        with pytest.raises(FormatLimitError, match=r"kkk\.\.\.' is longer than 65535"):
            save(td, tmp_path / "x.tdz")

        assert not list(tmp_path.iterdir())


class TestBroken:
    def test_cut_off_anywhere(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tdz"
        save(some_tree(), path)
        whole = path.read_bytes()
        short = tmp_path / "short.tdz"

        with zipfile.ZipFile(path) as file:
            starts = [info.header_offset for info in file.infolist()]
            starts += [file.start_dir, len(whole) - 22, len(whole)]
        edges = {at + by for at in starts for by in (-1, 0, 1, 29, 45)}
        for size in sorted({*edges, *range(0, len(whole), 13)}):
            if not 0 <= size < len(whole):
                continue
            short.write_bytes(whole[:size])
            with pytest.raises(FileFormatError, match=r"short\.tdz"):
                load(short)

    def test_bytes_before_and_behind(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tdz"
        save(some_tree(), path)
        whole = path.read_bytes()

        for data in (b"x" + whole, whole + b"x"):
            path.write_bytes(data)
            with pytest.raises(FileFormatError, match=r"x\.tdz"):
                load(path)

    @pytest.mark.parametrize("compression", [None, "deflate", "lzma"])
    def test_one_flipped_bit(self, tmp_path: Path, compression: str | None) -> None:
        """With checksums of arrays, every byte is checked."""
        td = TensorDict({"a": ramp(21), "n": {"b": ramp(2), "s": "x"}, "c": ramp(16)})
        path = tmp_path / "x.tdz"
        save(td, path, compression=compression)
        whole = path.read_bytes()
        draw = random.Random(0)  # noqa: S311
        wrong: list[int] = []

        for at in range(0, len(whole), 3 if compression else 1):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << draw.randrange(8)
            path.write_bytes(flipped)
            try:
                assert_equal(load(path, verify=True), td)
            except TdfuncError as error:
                assert str(path) in str(error)  # noqa: PT017
            except AssertionError:
                wrong.append(at)

        assert wrong == []

    def test_checksums_on_request(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tdz"
        td = TensorDict({"a": ramp(2), "big": torch.zeros(2_000_000)})
        save(td, path)
        whole = bytearray(path.read_bytes())
        whole[6_000_000] ^= 1
        path.write_bytes(whole)

        assert load(path)["big"].count_nonzero() == 1
        with pytest.raises(FileFormatError, match=r"x\.tdz: 'big.memmap': .*CRC-32"):
            load(path, verify=True)

    def test_missing_array(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "x.tdz", {"meta.json": meta_of(a=[3])})

        with pytest.raises(FileFormatError, match=r"a\.memmap"):
            load(path)

    @pytest.mark.parametrize("method", [0, 8])
    @pytest.mark.parametrize("size", [2, 4, 4_000_000])
    def test_wrong_sizes(self, tmp_path: Path, size: int, method: int) -> None:
        files = {"meta.json": meta_of(a=[3]), "a.memmap": bytes(size)}
        path = zipped(tmp_path / "x.tdz", files, method)

        with pytest.raises(FileFormatError, match=r"'a\.memmap'.*3 bytes.*got \d+"):
            outline(path)

    def test_no_tree(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "x.tdz", {"readme": b"hello"})

        with pytest.raises(FileFormatError, match=r"meta\.json"):
            load(path)


def test_reading_in_parts(tmp_path: Path) -> None:
    """Only what is asked for is read, each time anew."""
    save(some_tree(), tmp_path / "x.tdz")
    with _archive.open_source(tmp_path / "x.tdz", ReadOptions()) as source:
        level = source.outline()
        arrays = [array for _, array in iter_arrays(level)]
        source.read(arrays[:1])
        assert [a.tensor is None for a in arrays] == [False, True, True, True]
        source.read(arrays[2:])
        assert arrays[1].tensor is None
        read = arrays[0].tensor
        source.read(arrays)
        assert read is arrays[0].tensor
        assert arrays[1].tensor is not None


def test_small_files_only(tmp_path: Path) -> None:
    save(some_tree(), tmp_path / "x.tdz")
    with (tmp_path / "x.tdz").open("rb") as file:
        members = _archive.Members(file.fileno(), "x.tdz")

        assert members.content(("n", "none.json"), 100) is None
        with pytest.raises(FileFormatError, match=r"x\.tdz: 'meta\.json': .*too large"):
            members.content(("meta.json",), 100)


def test_more_than_there_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(TensorDict({"a": ramp(3)}), tmp_path / "x.tdz", compression="deflate")

    def full(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(MemoryError, match=r"x\.tdz: 'a\.memmap': not enough memory"):
        load(tmp_path / "x.tdz")


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked what a file is, the answer is then that it is nothing known."""
    (tmp_path / "x.tdz").touch()

    def failing(*_: Any) -> bytes:
        raise OSError(5, "no")

    monkeypatch.setattr(os, "pread", failing)

    assert not _archive.recognises(tmp_path / "x.tdz")


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_a_disk_that_is_full(tmp_path: Path, compression: str | None) -> None:
    """As a quota on the size of a file says it."""
    path = tmp_path / "x.tdz"
    save(some_tree(), path)
    noise = torch.randint(256, (3 << 20,), dtype=torch.uint8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            save(
                TensorDict({"a": noise}),
                path,
                compression=compression,
                overwrite=True,
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert [file.name for file in tmp_path.iterdir()] == ["x.tdz"]
    assert_equal(load(path), some_tree())
