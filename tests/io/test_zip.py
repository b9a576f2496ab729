"""The reader of zip files: what it refuses, and that it refuses it in time."""

from __future__ import annotations

import bz2
import lzma
import os
import resource
import stat
import struct
import tracemalloc
import zipfile
import zlib
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from tdfunc.errors import FileFormatError
from tdfunc.io import _zip
from tests.io.archives import load, meta_of, outline, zipped

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

MIB = 1 << 20


def index_of(path: Path) -> dict[str, _zip.Member]:
    with path.open("rb") as file:
        return _zip.index(file.fileno(), str(path))


def contents_of(path: Path) -> dict[str, bytes]:
    with path.open("rb") as file:
        found = _zip.index(file.fileno(), str(path))
        return {
            name: b"".join(_zip.pieces(file.fileno(), member, str(path)))
            for name, member in found.items()
        }


class Parts:
    """An archive of one member, by its fields, to be made wrong."""

    def __init__(self, data: bytes = b"{}", name: bytes = b"meta.json") -> None:
        self.data = data
        self.name = name
        self.local: dict[str, Any] = {}
        self.central: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.extra = self.central_extra = b""

    def both(self, **fields: Any) -> Parts:
        self.local.update(fields)
        self.central.update(fields)
        return self

    def write(self, path: Path) -> Path:
        common = {
            "flags": 0,
            "method": 0,
            "crc": zlib.crc32(self.data),
            "packed": len(self.data),
            "size": len(self.data),
        }
        head: dict[str, Any] = {**common, **self.local}
        local = struct.pack(
            "<4s5H3I2H",
            *(head.get("sign", b"PK\3\4"), 20, head["flags"], head["method"], 0, 33),
            *(head["crc"], head["packed"], head["size"]),
            *(len(self.name), len(self.extra)),
        )
        local += head.get("name", self.name) + self.extra + self.data
        head = {"made": 3 << 8, "mode": 0, "disk": 0, "offset": 0}
        head |= {**common, **self.central}
        name = head.get("name", self.name)
        central = struct.pack(
            "<4s6H3I5H2I",
            *(head.get("sign", b"PK\1\2"), head["made"], 20, head["flags"]),
            *(head["method"], 0, 33, head["crc"], head["packed"], head["size"]),
            *(len(name), len(self.central_extra), 0, head["disk"], 0),
            *(head["mode"], head["offset"]),
        )
        central += name + self.central_extra
        end = {"disk": 0, "first": 0, "here": 1, "count": 1}
        end |= {"length": len(central), "start": len(local), "comment": 0, **self.end}
        last = struct.pack("<4s4H2IH", b"PK\5\6", *list(end.values())[:7])
        path.write_bytes(local + central + last)
        return path


def test_the_parts_are_right(tmp_path: Path) -> None:
    path = Parts().write(tmp_path / "x.tdz")

    assert contents_of(path) == {"meta.json": b"{}"}
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None


class TestNames:
    @pytest.mark.parametrize("method", [0, 8])
    @pytest.mark.parametrize(
        "name",
        [
            *("../x.memmap", "..", ".", "a/../../x", "a/..", "./a", "a/./b", "a/."),
            *("/abs.memmap", "/", "//a", "a//b", "a/b//", "", "a\\b", "..\\a"),
            *("C:a", "c:/a", "nul\0byte", "\u00e9/../x", "..\u00e9/../x", "a/../"),
        ],
    )
    def test_odd_names(self, tmp_path: Path, name: str, method: int) -> None:
        path = zipped(tmp_path / "x.tdz", {"meta.json": b"{}", name: b""}, method)

        with pytest.raises(FileFormatError, match=r"x\.tdz.*plain path") as caught:
            index_of(path)
        assert repr(name) in str(caught.value)

    @pytest.mark.parametrize(
        "name",
        ["a..b", "..a", "a.", ".a", "ab:c", "\n", "a\nb", "%2E%2E/a", "a b/\u00e9"],
    )
    def test_names_that_are_only_unusual(self, tmp_path: Path, name: str) -> None:
        path = zipped(tmp_path / "x.tdz", {name: b"1", "n/": b"", "n/a": b"2"})

        assert contents_of(path) == {name: b"1", "n/a": b"2"}

    def test_twice(self, tmp_path: Path) -> None:
        data = {"a.memmap": (b"1", 1, 0), "b.memmap": (b"2", 1, 0)}
        raw = squeezed(tmp_path / "x.tdz", data).read_bytes()
        (tmp_path / "x.tdz").write_bytes(raw.replace(b"b.memmap", b"a.memmap"))

        with pytest.raises(FileFormatError, match=r"x\.tdz: 'a\.memmap': .*twice"):
            index_of(tmp_path / "x.tdz")

    def test_of_old_programs(self, tmp_path: Path) -> None:
        """Without a flag: UTF-8 from Unix, else the old code page, or a field."""
        raw = "\u00e9".encode()
        for made, name in ((3 << 8, "\u00e9"), (0, raw.decode("cp437"))):
            path = Parts(name=raw).both(made=made).write(tmp_path / "x.tdz")
            assert list(index_of(path)) == [name]
        path = Parts(name=b"\x82").write(tmp_path / "x.tdz")
        assert list(index_of(path)) == ["\u00e9"]

        parts = Parts(name=b"\x82").both(made=0)
        told = b"\1" + zlib.crc32(b"\x82").to_bytes(4, "little") + b"\xe6\x97\xa5"
        parts.central_extra = struct.pack("<2H", 0x7075, len(told)) + told
        assert list(index_of(parts.write(tmp_path / "x.tdz"))) == ["\u65e5"]
        for wrong in (told[:5] + b"\xff", b"\1abcd\xc3\xa9", b""):
            parts.central_extra = struct.pack("<2H", 0x7075, len(wrong)) + wrong
            assert list(index_of(parts.write(tmp_path / "x.tdz"))) == ["\u00e9"]

    def test_no_text(self, tmp_path: Path) -> None:
        path = Parts(name=b"\xff").both(flags=0x800).write(tmp_path / "x.tdz")

        with pytest.raises(FileFormatError, match="no UTF-8"):
            index_of(path)


class TestHeaders:
    @pytest.mark.parametrize(
        ("where", "fields", "why"),
        [
            ("both", {"flags": 1}, "encrypted"),
            ("both", {"flags": 0x40}, "encrypted"),
            ("both", {"flags": 0x2000}, "encrypted"),
            ("both", {"flags": 8}, "sizes stand behind"),
            ("both", {"flags": 0x20}, "flags are not known"),
            ("both", {"method": 9}, "compression is not known - got 9"),
            ("both", {"method": 1}, "compression is not known"),
            ("both", {"packed": 1}, "two sizes"),
            ("both", {"size": 1}, "two sizes"),
            ("both", {"size": 99, "packed": 99}, "reaches"),
            ("central", {"disk": 1}, "another file"),
            ("central", {"mode": stat.S_IFLNK << 16}, "a link"),
            ("central", {"mode": stat.S_IFIFO << 16}, "special"),
            ("central", {"mode": stat.S_IFDIR << 16}, "special"),
            ("local", {"name": b"meta.jsom"}, "another name"),
            ("local", {"size": 3}, "do not agree"),
            ("local", {"packed": 3}, "do not agree"),
            ("local", {"crc": 3}, "do not agree"),
            ("local", {"method": 8}, "do not agree"),
            ("local", {"flags": 0x800}, "do not agree"),
            ("local", {"sign": b"PK\3\5"}, "not where it should be"),
            ("local", {"size": 0xFFFFFFFF}, "64-bit sizes"),
            ("central", {"offset": 1}, "not where it should be"),
            ("central", {"offset": 0xFFFFFFF0}, "ends too early"),
            ("central", {"offset": 0xFFFFFFFF}, "64-bit sizes"),
            ("central", {"size": 0xFFFFFFFF}, "64-bit sizes"),
            ("central", {"sign": b"PK\1\3"}, "list of members is broken"),
            ("end", {"disk": 1}, "several files"),
            ("end", {"first": 1}, "several files"),
            ("end", {"here": 0}, "several files"),
            ("end", {"here": 2, "count": 2}, "not where it should be"),
            ("end", {"here": 0, "count": 0}, "behind its list"),
            ("end", {"length": 50}, "not where it should be"),
            ("end", {"start": 40}, "not where it should be"),
            ("end", {"comment": 1}, "cut off"),
        ],
    )
    def test_what_is_refused(
        self, tmp_path: Path, where: str, fields: dict[str, Any], why: str
    ) -> None:
        parts = Parts()
        for header in ("local", "central") if where == "both" else (where,):
            getattr(parts, header).update(fields)
        path = parts.write(tmp_path / "x.tdz")

        with pytest.raises(FileFormatError, match=r"x\.tdz.*" + why):
            index_of(path)

    def test_special_files_of_other_systems(self, tmp_path: Path) -> None:
        parts = Parts()
        parts.central.update(made=0, mode=stat.S_IFLNK << 16)

        assert list(index_of(parts.write(tmp_path / "x.tdz"))) == ["meta.json"]

    def test_directories_have_no_bytes(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "x.tdz", {"n/": b"1"})

        with pytest.raises(FileFormatError, match="a directory has bytes"):
            index_of(path)

    def test_far_away(self, tmp_path: Path) -> None:
        parts = Parts()
        parts.central.update(offset=0xFFFFFFFF)
        parts.central_extra = struct.pack("<2HQ", 1, 8, (1 << 64) - 1)

        with pytest.raises(FileFormatError, match="not where it should be"):
            index_of(parts.write(tmp_path / "x.tdz"))

    def test_fields_that_are_cut_off(self, tmp_path: Path) -> None:
        for extra in (b"\1", b"\1\0\x08\0", b"\1\0\x08\0" + bytes(7)):
            parts = Parts()
            parts.central.update(size=0xFFFFFFFF)
            parts.central_extra = extra
            with pytest.raises(FileFormatError, match="64-bit sizes"):
                index_of(parts.write(tmp_path / "x.tdz"))

    def test_members_on_top_of_each_other(self, tmp_path: Path) -> None:
        """One payload under many names would be a bomb of stored bytes."""
        path = zipped(tmp_path / "x.tdz", {"meta.json": b"x" * 100, "a": b"y" * 100})
        raw = bytearray(path.read_bytes())
        second = raw.rindex(b"PK\1\2")
        inner = raw.index(b"PK\3\4", 4)
        # The header of the second one lies in the bytes of the first.
        raw[39 + 20 : 39 + 20 + 131] = raw[inner : inner + 131]
        raw[second + 42 : second + 46] = struct.pack("<I", 39 + 20)
        path.write_bytes(raw)

        with pytest.raises(FileFormatError, match=r"'meta\.json': it reaches"):
            index_of(path)

    def test_end_records_of_64_bits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "x.tdz"
        with monkeypatch.context() as small:
            small.setattr(_zip, "_MANY", 1)
            with path.open("wb") as file, _zip.Writer(file.fileno()) as out:
                out.store(b"meta.json", b"{}", align=False)
        whole = path.read_bytes()
        record, locator = whole.index(b"PK\6\6"), whole.index(b"PK\6\7")
        assert contents_of(path) == {"meta.json": b"{}"}

        # Where, what, and whether that can be wrong at all.
        fields = [(record + at, 1) for at in (0, 4, 16, 20, 24, 32, 40, 48)]
        fields += [(locator + at, 2) for at in (4, 8, 16)]
        fields += [(locator + 20 + at, 3) for at in (4, 6, 8, 10, 12, 16)]
        for at, add in fields:
            raw = bytearray(whole)
            raw[at] = (raw[at] + add) % 256
            path.write_bytes(raw)
            with pytest.raises(FileFormatError, match=r"x\.tdz"):
                index_of(path)

    def test_padding_that_goes_on(self, tmp_path: Path) -> None:
        """A gap behind a member, and a header that does not end where it says."""
        path = tmp_path / "x.tdz"
        with path.open("wb") as file, _zip.Writer(file.fileno()) as out:
            out.store(b"a.memmap", b"abc", align=True)
        raw = bytearray(path.read_bytes())
        assert struct.unpack_from("<H", raw, 28) == (26,)
        raw[28] -= 8
        path.write_bytes(raw)

        with pytest.raises(FileFormatError, match=r"'a\.memmap': its header is broken"):
            index_of(path)

    def test_a_gap_is_no_error(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "x.tdz", {"meta.json": b"{}"})
        raw = path.read_bytes()
        start = raw.index(b"PK\1\2")
        end = bytearray(raw[start:])
        end[-6:-2] = struct.pack("<I", start + 7)
        path.write_bytes(raw[:start] + bytes(7) + end)

        assert contents_of(path) == {"meta.json": b"{}"}


@contextmanager
def little_memory(most: int) -> Generator[None]:
    """Check that neither Python nor the process takes more meanwhile."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < most + 8 * MIB


@cache
def bomb(method: int, size: int) -> bytes:
    """Return compressed zeros."""
    whole, rest = divmod(size, MIB)
    if method == 8:
        engine: Any = zlib.compressobj(9, wbits=-15)
        head = b""
    elif method == 12:
        engine, head = bz2.BZ2Compressor(), b""
    else:
        chain = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16}
        engine = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[chain])
        head = b"\t\4\5\0\x5d" + (1 << 31).to_bytes(4, "little")
    parts = [engine.compress(bytes(MIB)) for _ in range(whole)]
    return b"".join([head, *parts, engine.compress(bytes(rest)), engine.flush()])


def squeezed(
    path: Path, files: dict[str, tuple[bytes, int, int]], flags: int = 0, crc: int = 0
) -> Path:
    """Write files as they are compressed already, with sizes that may be lies."""
    with path.open("wb") as file:
        heads = b""
        for name, (data, size, method) in files.items():
            check = crc if method else zlib.crc32(data)
            fields = (20, flags, method, 0, 33, check, len(data), size, len(name))
            offset = file.tell()
            file.write(b"PK\3\4" + struct.pack("<5H3I2H", *fields, 0))
            file.write(name.encode() + data)
            heads += b"PK\1\2" + struct.pack("<6H3IH", 3 << 8, *fields)
            heads += struct.pack("<4H2I", 0, 0, 0, 0, 0, offset) + name.encode()
        start = file.tell()
        count = len(files)
        end = (0, 0, count, count, len(heads), start, 0)
        file.write(heads + b"PK\5\6" + struct.pack("<4H2IH", *end))
    return path


class TestBombs:
    SIZE = 64 * MIB

    @pytest.mark.parametrize("method", [8, 12, 14])
    def test_an_array_that_is_declared_small(self, tmp_path: Path, method: int) -> None:
        meta = meta_of(a=[8])
        data = bomb(method, self.SIZE)
        files = {
            "meta.json": (meta, len(meta), 0),
            "a.memmap": (data, self.SIZE, method),
        }
        path = squeezed(tmp_path / "x.tdz", files)

        with (
            little_memory(4 * MIB),
            pytest.raises(FileFormatError, match=r"x\.tdz: 'a\.memmap': not the size"),
        ):
            self.read(path)

    @pytest.mark.parametrize("method", [8, 12, 14])
    def test_an_array_that_goes_on(self, tmp_path: Path, method: int) -> None:
        """The header says what the description says; the bytes do not."""
        meta = meta_of(a=[2 * MIB])
        data = bomb(method, self.SIZE)
        files = {
            "meta.json": (meta, len(meta), 0),
            "a.memmap": (data, 2 * MIB, method),
        }
        path = squeezed(tmp_path / "x.tdz", files)

        # bzip2 alone holds a few megabytes.
        with (
            little_memory(16 * MIB),
            pytest.raises(
                FileFormatError,
                match=r"'a\.memmap': it inflates to more than the 2097152",
            ),
        ):
            self.read(path)

    @pytest.mark.parametrize("method", [8, 12, 14])
    def test_an_array_that_is_not_there(self, tmp_path: Path, method: int) -> None:
        """Memory that is never written is never taken."""
        meta = meta_of(a=[1 << 31])
        data = bomb(method, 4 * MIB)
        files = {
            "meta.json": (meta, len(meta), 0),
            "a.memmap": (data, 1 << 31, method),
        }
        path = squeezed(tmp_path / "x.tdz", files)

        with (
            little_memory(24 * MIB),
            pytest.raises(
                FileFormatError,
                match=r"'a\.memmap': (so few bytes|.*(end too early|of memory))",
            ),
        ):
            self.read(path)

    @pytest.mark.parametrize("name", ["meta.json", "s/other.pickle"])
    def test_text(self, tmp_path: Path, name: str) -> None:
        data = bomb(8, self.SIZE)
        files = {"meta.json": (b"{}", 2, 0), name: (data, self.SIZE, 8)}
        path = squeezed(tmp_path / "x.tdz", files)

        with (
            little_memory(4 * MIB),
            pytest.raises(
                FileFormatError,
                match=r"x\.tdz: what describes the tree inflates to too",
            ),
        ):
            self.read(path)

    def test_text_in_many_parts(self, tmp_path: Path) -> None:
        data = bomb(8, MIB)
        files = {f"{i}/meta.json": (data, MIB, 8) for i in range(40)}
        path = squeezed(tmp_path / "x.tdz", {"meta.json": (b"{}", 2, 0), **files})

        with pytest.raises(FileFormatError, match="inflates to too much"):
            outline(path)

    @pytest.mark.parametrize("method", [8, 12, 14])
    def test_text_that_goes_on(self, tmp_path: Path, method: int) -> None:
        data = bomb(method, self.SIZE)
        path = squeezed(tmp_path / "x.tdz", {"meta.json": (data, 1000, method)})

        with (
            little_memory(16 * MIB),
            pytest.raises(
                FileFormatError,
                match=r"'meta\.json': it inflates to more than the 1000",
            ),
        ):
            self.read(path)

    def test_text_that_compresses_well(self, tmp_path: Path) -> None:
        """A description of ten thousand leaves is no bomb."""
        meta = meta_of(**{f"leaf{i}": [0] for i in range(10_000)})
        path = zipped(tmp_path / "x.tdz", {"meta.json": meta}, 8)

        assert len(load(path).keys()) == 10_000

    def read(self, path: Path) -> None:
        load(path)


class TestStreams:
    @pytest.mark.parametrize("method", [8, 12, 14])
    @pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB])
    def test_what_is_written_is_read(
        self, tmp_path: Path, size: int, method: int
    ) -> None:
        """At and beside the bounds of a piece."""
        data = bytes(size)
        path = zipped(tmp_path / "x.tdz", {"a": data}, method)
        assert contents_of(path) == {"a": data}

        with path.open("wb") as file, _zip.Writer(file.fileno()) as out:
            out.stream(b"a", [data] if data else [], size, method)
        assert contents_of(path) == {"a": data}
        with zipfile.ZipFile(path) as file:
            assert file.read("a") == data

    @pytest.mark.parametrize("method", [8, 12, 14])
    def test_broken(self, tmp_path: Path, method: int) -> None:
        data = bomb(method, 1000)
        cases = {
            "end too early|broken": data[: len(data) // 2],
            "behind its compressed": data + b"more",
            "broken|too few|so few": bytes(len(data)),
            "end too early|broken|so few": b"",
        }
        for why, raw in cases.items():
            path = squeezed(tmp_path / "x.tdz", {"a": (raw, 1000, method)}, flags=2)
            with pytest.raises(FileFormatError, match=rf"x\.tdz: 'a': .*({why})"):
                contents_of(path)

    def test_a_stream_that_does_not_say_its_end(self, tmp_path: Path) -> None:
        """LZMA may do that, where no flag promises an end mark."""
        noise = os.urandom(5000)
        chain = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16}
        engine = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[chain])
        head = b"\t\4\5\0\x5d" + (1 << 16).to_bytes(4, "little")
        data = head + engine.compress(noise) + engine.flush()
        path = tmp_path / "x.tdz"

        for flags, taken in ((0, True), (2, False)):
            squeezed(path, {"a": (data[:-1], 5000, 14)}, flags, zlib.crc32(noise))
            if taken:
                assert contents_of(path) == {"a": noise}
            else:
                with pytest.raises(FileFormatError, match="end too early"):
                    contents_of(path)

    def test_a_file_that_changes(self, tmp_path: Path) -> None:
        with (
            (tmp_path / "x").open("wb") as file,
            pytest.raises(FileFormatError, match="a: the file changes"),
            _zip.Writer(file.fileno()) as out,
        ):
            out.stream(b"a", [b"12"], 3, 0)

    def test_holes(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        expected = b"1" * 100 + bytes(3 * MIB) + b"2"
        for method in (0, 8):
            with path.open("wb") as file, _zip.Writer(file.fileno()) as out:
                pieces = [b"1" * 100, 3 * MIB, b"2"]
                out.stream(b"a", pieces, len(expected), method)

            assert contents_of(path) == {"a": expected}
            with zipfile.ZipFile(path) as file:
                assert file.testzip() is None

    def test_many_long_files(self, tmp_path: Path) -> None:
        """More than wait for their checksums at once."""
        files = {f"{i}.memmap": bytes([i]) * (MIB + i) for i in range(7)}
        path = tmp_path / "x"
        with path.open("wb") as file, _zip.Writer(file.fileno()) as out:
            for name, data in files.items():
                out.store(name.encode(), data, align=True)

        assert contents_of(path) == files


def test_a_system_that_reads_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zipped(tmp_path / "x.tdz", {"a": b"1" * 1000, "b": b"2"}, 8)
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda d, n, at: read(d, min(n, 40), at))

    assert contents_of(path) == {"a": b"1" * 1000, "b": b"2"}
