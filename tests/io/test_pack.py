"""Packing and unpacking: bytes for bytes, nothing outside, nothing half."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import (
    FileFormatError,
    FormatLimitError,
    MissingFileError,
    OptionError,
    TargetExistsError,
)
from tdfunc.io import _pack
from tdfunc.io._atomic import remove_tree
from tdfunc.testing import assert_equal
from tests.cases import CASES, OBJECT, ROW_CASES, Case, cases, ramp
from tests.io import archives, directories
from tests.io.archives import meta_of, zipped

COMPRESSIONS = (None, "deflate", "bzip2", "lzma")
MIB = 1 << 20


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def some_tree() -> TensorDict:
    return TensorDict(
        {"a": ramp(2), "n": {"b": ramp(3), "s": "text"}, "\u00e9": ramp(4)}
    )


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class TestBothWays:
    @cases(lambda case: OBJECT not in case.statics.values(), CASES + ROW_CASES)
    def test_every_case(self, tmp_path: Path, case: Case) -> None:
        td = case.tree
        directories.save(td, tmp_path / "d", allow_pickle=True)
        archives.save(td, tmp_path / "x.tdz", allow_pickle=True)

        tdfunc.pack_memmap(tmp_path / "d", tmp_path / "y.tdz")
        tdfunc.unpack_memmap(tmp_path / "x.tdz", tmp_path / "e")

        expected = (tmp_path / "x.tdz").read_bytes()
        assert expected == (tmp_path / "y.tdz").read_bytes()
        assert files_of(tmp_path / "d") == files_of(tmp_path / "e")

    def test_members_of_lazy_stacks(self, tmp_path: Path) -> None:
        """Their descriptions are looked for before they are read."""
        td = tdfunc.lazy_stack([TensorDict({"a": ramp(2)}), TensorDict({"b": "text"})])
        directories.save(td, tmp_path / "d")

        tdfunc.pack_memmap(tmp_path / "d", tmp_path / "x.tdz")

        assert_equal(archives.load(tmp_path / "x.tdz"), td)

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_compression(self, tmp_path: Path, compression: Any) -> None:
        noise = torch.randint(256, (MIB + 100,), dtype=torch.uint8)
        td = TensorDict({"a": noise, "z": torch.zeros(700_000), "n": {"b": ramp(3)}})
        directories.save(td, tmp_path / "d")
        path = tmp_path / "x.tdz"

        tdfunc.pack_memmap(tmp_path / "d", path, compression=compression)
        tdfunc.unpack_memmap(path, tmp_path / "e")

        assert_equal(archives.load(path, verify=True), td)
        assert files_of(tmp_path / "d") == files_of(tmp_path / "e")
        with zipfile.ZipFile(path) as file:
            assert file.testzip() is None
            assert file.getinfo("n/meta.json").compress_type == zipfile.ZIP_STORED
        assert compression is None or path.stat().st_size < 2 * MIB

    def test_holes_stay_holes(self, tmp_path: Path) -> None:
        directories.save(TensorDict({"a": torch.ones(2)}), tmp_path / "d")
        with (tmp_path / "d" / "b.memmap").open("wb") as file:
            file.seek(40 * MIB)
            file.write(b"middle")
            file.truncate(90 * MIB + 5)

        tdfunc.pack_memmap(tmp_path / "d", tmp_path / "x.tdz")
        tdfunc.unpack_memmap(tmp_path / "x.tdz", tmp_path / "e")

        for name in ("x.tdz", "e/b.memmap"):
            assert (tmp_path / name).stat().st_blocks * 512 < 4 * MIB
        assert files_of(tmp_path / "d") == files_of(tmp_path / "e")

    def test_any_files(self, tmp_path: Path) -> None:
        """A directory may hold more than we know, empty files, odd names."""
        directories.save(some_tree(), tmp_path / "d")
        (tmp_path / "d" / "note %.txt").write_bytes(b"hello")
        (tmp_path / "d" / "empty.memmap").touch()
        (tmp_path / "d" / "more").mkdir()
        (tmp_path / "d" / "more" / "a.b").write_bytes(bytes(2 * MIB))
        (tmp_path / "d" / ".tdtmp-left").write_bytes(b"of a process that was killed")

        tdfunc.pack_memmap(tmp_path / "d", tmp_path / "x.tdz", compression="deflate")

        (tmp_path / "d" / ".tdtmp-left").unlink()
        archive = tmp_path / "x.tdz"
        with zipfile.ZipFile(archive) as file:
            assert {n: file.read(n) for n in file.namelist()} == files_of(
                tmp_path / "d"
            )

    @pytest.mark.parametrize("compression", [None, "deflate"])
    def test_bytes_behind_tensors(self, tmp_path: Path, compression: Any) -> None:
        """Appends that were killed leave them, copies made of links, and the peer."""
        nested = {"y": ramp(6, 2), "t": tdfunc.unbatched(ramp(3))}
        r = torch.ones(6, dtype=torch.bfloat16)
        td = TensorDict({"x": ramp(6), "n": nested, "r": r}, 6)
        td.save(tmp_path / "d")
        td.save(tmp_path / "plain.tdz", compression=compression)
        for name in ("x.memmap", "n/y.memmap", "r.memmap"):
            with (tmp_path / "d" / name).open("ab") as file:
                file.write(b"behind" * 200_000)

        tdfunc.pack_memmap(tmp_path / "d", tmp_path / "x.tdz", compression=compression)

        assert_equal(tdfunc.load(tmp_path / "x.tdz"), td)
        expected = (tmp_path / "plain.tdz").read_bytes()
        assert expected == (tmp_path / "x.tdz").read_bytes()
        tdfunc.unpack_memmap(tmp_path / "x.tdz", tmp_path / "u")
        assert_equal(tdfunc.load(tmp_path / "u"), td)

    def test_deep_trees(self, tmp_path: Path) -> None:
        """Paths that are longer than the system takes."""
        td: Any = TensorDict({"x": ramp(3)})
        for _ in range(100):
            td = TensorDict({"key" * 20: td})
        archives.save(td, tmp_path / "x.tdz")
        before = open_files()

        tdfunc.unpack_memmap(tmp_path / "x.tdz", tmp_path / "d")
        tdfunc.pack_memmap(tmp_path / "d", tmp_path / "y.tdz")

        expected = (tmp_path / "x.tdz").read_bytes()
        assert expected == (tmp_path / "y.tdz").read_bytes()
        assert open_files() == before
        parent = os.open(tmp_path, os.O_RDONLY)
        remove_tree(parent, "d")
        os.close(parent)

    def test_options(self, tmp_path: Path) -> None:
        archives.save(some_tree(), tmp_path / "x.tdz")
        archives.save(TensorDict(), tmp_path / "y.tdz")
        tdfunc.unpack_memmap(str(tmp_path / "x.tdz"), str(tmp_path / "d"))

        with pytest.raises(TargetExistsError):
            tdfunc.unpack_memmap(tmp_path / "y.tdz", tmp_path / "d")
        with pytest.raises(TargetExistsError):
            tdfunc.pack_memmap(tmp_path / "d", tmp_path / "y.tdz")
        with pytest.raises(OptionError, match="'zip'"):
            tdfunc.pack_memmap(
                tmp_path / "d",
                tmp_path / "z.tdz",
                compression="zip",  # pyright: ignore[reportArgumentType]
            )
        assert_equal(directories.load(tmp_path / "d"), some_tree())

        options: Any = {"overwrite": True, "durable": True}
        tdfunc.pack_memmap(tmp_path / "d", tmp_path / "y.tdz", **options)
        tdfunc.unpack_memmap(tmp_path / "y.tdz", tmp_path / "d", **options)
        assert_equal(directories.load(tmp_path / "d"), some_tree())


class TestPeer:
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_directories_and_archives(self, tmp_path: Path, compression: Any) -> None:
        tensordict = pytest.importorskip("tensordict")
        theirs = tensordict.TensorDict({"a": ramp(2), "n": {"b": ramp(2, 3)}}, [2])
        theirs.memmap(tmp_path / "d")

        tdfunc.pack_memmap(tmp_path / "d", tmp_path / "x.tdz", compression=compression)
        tensordict.unpack_memmap(tmp_path / "x.tdz", tmp_path / "e")
        back = tensordict.load_memmap(tmp_path / "x.tdz")

        assert files_of(tmp_path / "d") == files_of(tmp_path / "e")
        assert torch.equal(back["n", "b"], theirs["n", "b"])

        more = {} if compression is None else {"compression": compression}
        tensordict.pack_memmap(tmp_path / "d", tmp_path / "y.tdz", **more)
        tdfunc.unpack_memmap(tmp_path / "y.tdz", tmp_path / "f")

        assert files_of(tmp_path / "d") == files_of(tmp_path / "f")


class TestRefusedToPack:
    def refused(self, tmp_path: Path, match: str) -> None:
        with pytest.raises(FileFormatError, match=match):
            tdfunc.pack_memmap(tmp_path / "d", tmp_path / "x.tdz")

        assert not (tmp_path / "x.tdz").exists()

    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        directories.save(some_tree(), tmp_path / "d")
        (tmp_path / "secret").write_bytes(b"secret")
        return tmp_path / "d"

    def test_links(self, tmp_path: Path, saved: Path) -> None:
        (saved / "l.memmap").symlink_to("../secret")
        self.refused(tmp_path, r"d/l\.memmap: .*regular file")

    def test_links_to_directories(self, tmp_path: Path, saved: Path) -> None:
        (saved / "l").symlink_to(tmp_path)
        self.refused(tmp_path, "d/l: .*regular file")

    def test_pipes(self, tmp_path: Path, saved: Path) -> None:
        os.mkfifo(saved / "n" / "p.memmap")
        self.refused(tmp_path, r"d/n/p\.memmap")

    def test_names_that_other_systems_take_for_paths(
        self, tmp_path: Path, saved: Path
    ) -> None:
        (saved / "..\\x").touch()
        self.refused(tmp_path, r"\.\.\\x: this can not")

    def test_names_that_are_no_text(self, tmp_path: Path, saved: Path) -> None:
        (Path(os.fsdecode(bytes(saved) + b"/\xff"))).touch()

        with pytest.raises(FormatLimitError, match="no Unicode"):
            tdfunc.pack_memmap(saved, tmp_path / "x.tdz")

    def test_no_tree(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        self.refused(tmp_path, r"d/meta\.json.*no saved tree")

    def test_no_directory(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for name in ("no", "file", "file/below"):
            with pytest.raises(MissingFileError, match=name):
                tdfunc.pack_memmap(tmp_path / name, tmp_path / "x.tdz")


class TestRefusedToUnpack:
    def refused(self, tmp_path: Path, match: str) -> None:
        before = sorted(tmp_path.rglob("*"))
        files = open_files()

        with pytest.raises(FileFormatError, match=match):
            tdfunc.unpack_memmap(tmp_path / "x.tdz", tmp_path / "d")

        assert sorted(tmp_path.rglob("*")) == before
        assert open_files() == files

    @pytest.mark.parametrize(
        "name", ["../x", "/abs", "n/../../x", "a\\b", "C:x", "./x", "a//b", "\0"]
    )
    def test_names(self, tmp_path: Path, name: str) -> None:
        zipped(tmp_path / "x.tdz", {"meta.json": b"{}", name: b"1"})
        self.refused(tmp_path, r"x\.tdz: .*plain path")

    def test_links(self, tmp_path: Path) -> None:
        files = {"meta.json": b"{}", "l": b"/etc/passwd"}
        zipped(tmp_path / "x.tdz", files, mode=0o120777)
        self.refused(tmp_path, "a link")

    def test_files_that_are_directories(self, tmp_path: Path) -> None:
        zipped(tmp_path / "x.tdz", {"meta.json": b"{}", "a": b"", "a/b/c": b""})
        self.refused(tmp_path, r"x\.tdz: 'a': both")

    def test_long_names(self, tmp_path: Path) -> None:
        zipped(tmp_path / "x.tdz", {"meta.json": b"{}", "\u00e9" * 128: b""})
        self.refused(tmp_path, "longer than a name may be")

    def test_no_tree(self, tmp_path: Path) -> None:
        zipped(tmp_path / "x.tdz", {"a/meta.json": b"{}"})
        self.refused(tmp_path, r"there is no 'meta\.json'")

    @pytest.mark.parametrize("method", [8, 12, 14])
    def test_arrays_that_nothing_tells_of(self, tmp_path: Path, method: int) -> None:
        files = {"meta.json": meta_of(a=[3]), "a.memmap": b"123"}
        zipped(tmp_path / "x.tdz", {**files, "b.memmap": bytes(MIB)}, method)
        self.refused(tmp_path, r"'b\.memmap': nothing tells")

        zipped(tmp_path / "x.tdz", {**files, "a.memmap": bytes(MIB)}, method)
        self.refused(tmp_path, r"'a\.memmap': not the size")

    def test_arrays_beside_pickles(self, tmp_path: Path) -> None:
        """Nothing is unpickled; what deflate can do must do for other methods."""
        td = TensorDict({"a": torch.zeros(MIB), "s": OBJECT})
        archive = tmp_path / "x.tdz"
        for compression in ("deflate", "bzip2"):
            archives.save(
                td, archive, compression=compression, allow_pickle=True, overwrite=True
            )
            if compression == "deflate":
                tdfunc.unpack_memmap(archive, tmp_path / "e")
                assert (tmp_path / "e" / "a.memmap").read_bytes() == bytes(4 * MIB)

        self.refused(tmp_path, r"'a\.memmap': nothing tells")

    def test_damaged_bytes(self, tmp_path: Path) -> None:
        """Even where a loading would not look."""
        archives.save(TensorDict({"a": torch.ones(500_000)}), tmp_path / "x.tdz")
        raw = bytearray((tmp_path / "x.tdz").read_bytes())
        raw[1_900_000] ^= 1
        (tmp_path / "x.tdz").write_bytes(raw)
        self.refused(tmp_path, r"'a\.memmap': .*CRC-32")

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match=r"x\.tdz"):
            tdfunc.unpack_memmap(tmp_path / "x.tdz", tmp_path / "d")
        with pytest.raises(FileFormatError, match="no regular file"):
            tdfunc.unpack_memmap(tmp_path, tmp_path / "d")


def test_a_file_that_shrinks_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories.save(
        TensorDict({"a": torch.ones(2 * MIB), "b": ramp(3)}), tmp_path / "d"
    )
    read = os.pread

    for name in ("a.memmap", "b.memmap"):

        def less(descriptor: int, size: int, at: int, name: str = name) -> bytes:
            if str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith(name):
                return b""
            return read(descriptor, size, at)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", less)
            with pytest.raises(FileFormatError, match=f"{name}.* changes while it is"):
                tdfunc.pack_memmap(tmp_path / "d", tmp_path / "x.tdz")
        assert not (tmp_path / "x.tdz").exists()


def test_a_file_that_goes_away_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories.save(TensorDict({"a": ramp(3)}), tmp_path / "d")
    more = [("meta.json",), ("gone.memmap",)]
    monkeypatch.setattr(_pack, "_files_below", lambda *_: more)

    with pytest.raises(FileFormatError, match=r"gone\.memmap: changes while"):
        tdfunc.pack_memmap(tmp_path / "d", tmp_path / "x.tdz")


def test_file_systems_without_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    td = TensorDict({"a": torch.ones(MIB)})
    directories.save(td, tmp_path / "d")
    for number in (errno.EINVAL, errno.EIO):

        def failing(*_: Any, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "lseek", failing)
            if number == errno.EIO:
                with pytest.raises(OSError, match="Input/output"):
                    tdfunc.pack_memmap(tmp_path / "d", tmp_path / "y.tdz")
            else:
                tdfunc.pack_memmap(tmp_path / "d", tmp_path / "x.tdz")

    assert_equal(archives.load(tmp_path / "x.tdz"), td)
    assert not (tmp_path / "y.tdz").exists()
