"""Broken files, killed processes, full disks: one law for all formats.

What a format alone can get wrong is in its own file; here every format meets the same.
"""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tdfunc
from tdfunc import NonTensorData, TensorDict
from tdfunc.errors import FileFormatError, PickleRefusedError, TargetExistsError
from tdfunc.io import _atomic
from tdfunc.testing import assert_equal, assert_valid
from tests.cases import ramp
from tests.io import children
from tests.io.archives import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

FORMATS: dict[str, Any] = {
    "memmap": "saved",
    "archive": "saved.tdz",
    "consolidated": "saved.cons",
    "safetensors": "saved.safetensors",
}
ONE_FILE = [name for name in FORMATS if name != "memmap"]

every_format = pytest.mark.parametrize("format", FORMATS)


def tree() -> TensorDict:
    """Return a tree with one of each kind of file and of description."""
    rows = ["a", "b", "c"]
    members = [TensorDict({"m": ramp(3) + i, "t": "text"}, 3) for i in range(2)]
    entries = {
        "x": ramp(3, 2),
        "n": {"y": ramp(3), "r": rows, "odd": NonTensorData((1, 2))},
        "l": tdfunc.lazy_stack(members, 1),
        "big": torch.arange(3 * 7000.0).view(3, 7000),
    }
    return TensorDict(entries, 3, names=["time"])


def saved(td: Any, folder: Path, format: str, **options: Any) -> Path:
    path = folder / FORMATS[format]
    tdfunc.save(td, path, format=format, **options)  # pyright: ignore[reportArgumentType]
    return path


def files_at(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def content(path: Path) -> dict[str, bytes]:
    """Return everything at a path, names and bytes, links as where they lead."""
    every = [path, *sorted(path.rglob("*"))]
    return {str(one): one.read_bytes() if one.is_file() else b"" for one in every}


def sizes_of(length: int) -> list[int]:
    """Return sizes to cut to: both ends, every field near them, and steps between."""
    near = {*range(min(length, 70)), *range(max(0, length - 70), length)}
    return sorted({*near, *range(0, length, max(1, length // 50))})


# Broken files


@every_format
def test_a_file_that_is_cut_is_an_error_that_names_it(
    format: str, tmp_path: Path
) -> None:
    """Each file of a directory, at each kind of place."""
    path = saved(tree(), tmp_path, format)
    for file in files_at(path):
        whole = file.read_bytes()
        for size in sizes_of(len(whole)):
            os.truncate(file, size)
            with pytest.raises(FileFormatError) as error:
                tdfunc.load(path)
            assert str(file) in str(error.value)
            assert file.stat().st_size == size
            file.write_bytes(whole)

    assert_equal(tdfunc.load(path), tree(), key_order=True, names=True)


@every_format
def test_a_bit_that_flips_is_found_or_another_value(
    format: str, tmp_path: Path
) -> None:
    """In each file and at each kind of place; the load leaves the file alone."""
    path = saved(tree(), tmp_path, format)
    rng = random.Random(0)  # noqa: S311 - no secret
    outcomes = {"found": 0, "harmless": 0}
    for file in files_at(path):
        whole = file.read_bytes()
        for at in sizes_of(len(whole)):
            bad = bytearray(whole)
            bad[at] ^= 1 << rng.randrange(8)
            file.write_bytes(bad)
            try:
                out = tdfunc.load(path)
            except (FileFormatError, PickleRefusedError) as error:
                assert path.name in str(error)  # noqa: PT017 - one of many places
                outcomes["found"] += 1
            else:
                assert_valid(out)
                outcomes["harmless"] += 1
            assert file.read_bytes() == bad
        file.write_bytes(whole)

    assert min(outcomes.values()) > 5
    assert_equal(tdfunc.load(path), tree(), key_order=True, names=True)


def test_every_file_of_a_directory_is_missed(tmp_path: Path) -> None:
    path = saved(tree(), tmp_path, "memmap")
    for file in files_at(path):
        whole = file.read_bytes()
        file.unlink()
        with pytest.raises(FileFormatError) as error:
            tdfunc.load(path)
        assert str(file) in str(error.value)
        file.write_bytes(whole)


def test_every_member_of_an_archive_is_missed(tmp_path: Path) -> None:
    path = saved(tree(), tmp_path, "archive")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for left_out in members:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                if name != left_out:
                    archive.writestr(name, data)
        with pytest.raises(FileFormatError) as error:
            tdfunc.load(path)
        assert str(path) in str(error.value)
        assert left_out in str(error.value)


def described(folder: Path, format: str, raw: bytes) -> Path:
    """Write a file of which all that describes the tree are these bytes."""
    path = folder / FORMATS[format]
    if format == "memmap":
        path.mkdir()
        (path / "meta.json").write_bytes(raw)
        (path / "x.memmap").write_bytes(bytes(8))
    elif format == "archive":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("meta.json", raw)
            archive.writestr("x.memmap", bytes(8))
    elif format == "safetensors":
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(8))
    else:
        path.write_bytes(bytes(8) + raw + struct.pack("<q", len(raw)))
    return path


LEAVES = {
    "memmap": '{"_type":"%s","shape":[],"x":{"dtype":"torch.float32","shape":[%s]}}',
    "consolidated": '{"cls":"TensorDict","leaves":{"x":["torch.float32",[%s],0,8,0]},'
    '"non_tensors":{},"cls_metadata":{"batch_size":[],"names":null,"device":null,'
    '"is_locked":true}}',
    "safetensors": '{"x":{"dtype":"F32","shape":[%s],"data_offsets":[0,8]}}',
}
LEAVES["memmap"] = LEAVES["memmap"] % (PLAIN, "%s")
LEAVES["archive"] = LEAVES["memmap"]


@every_format
def test_descriptions_that_are_no_json(format: str, tmp_path: Path) -> None:
    """Each of these is refused, and none takes the time or the stack that it asks."""
    fine = LEAVES[format]
    good = tdfunc.load(described(tmp_path, format, (fine % 2).encode()))
    assert good["x"].tolist() == [0, 0]
    bad = {
        "NaN": fine % "NaN",
        "Infinity": fine % "Infinity",
        "1e400": fine % "1e400",
        "long": fine % ("9" * 100_000),
        "float": fine % "2.0",
        "bool": fine % "true",
        "more": fine % 3,
        "overflow": fine % f"{1 << 62},4",
        "zero": fine % f"0,{1 << 63}",
        "twice": "{" + (fine % 2)[1:-1] + "," + (fine % 2)[1:],
        "deep": '{"a":' * 100_000,
        "deep list": fine % ("[" * 100_000),
        "deep and closed": fine % ("[" * 50_000 + "]" * 50_000),
        "list": "[1]",
        "null": "null",
        "behind": (fine % 2) + "{}",
        "latin": "\xe9",
    }
    start = time.monotonic()
    for name, text in bad.items():
        (tmp_path / name).mkdir()
        raw = text.encode("latin-1")
        path = described(tmp_path / name, format, raw)
        with pytest.raises(FileFormatError) as error:
            tdfunc.load(path)
        assert str(path) in str(error.value), name
        assert len(str(error.value)) < 2000, name
    assert time.monotonic() - start < 5


@every_format
def test_sizes_and_dtypes_that_are_wrong(format: str, tmp_path: Path) -> None:
    """Of what the file does not hold, or torch does not know."""
    fine = LEAVES[format] % 2
    known = "F32" if format == "safetensors" else "torch.float32"
    dtypes = ["F64" if known == "F32" else "torch.float64", "torch.os", "os", "", "F33"]
    bad = [fine.replace(f'"{known}"', json.dumps(name)) for name in dtypes]
    bad += [fine.replace(f'"{known}"', raw) for raw in ("7", "null", "[]", "{}")]
    bad += [LEAVES[format] % raw for raw in ("3", "-2", "2,2", "1099511627776", "null")]
    for at, text in enumerate(bad):
        assert text != fine
        (tmp_path / str(at)).mkdir()
        path = described(tmp_path / str(at), format, text.encode())
        before = content(path)
        with pytest.raises(FileFormatError) as error:
            tdfunc.load(path)
        assert str(path) in str(error.value), text
        assert content(path) == before


class Trap:
    """What makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@every_format
def test_nothing_is_unpickled_that_nobody_asked_for(
    format: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    td = TensorDict({"x": ramp(2), "n": {"trap": NonTensorData(Trap(ran))}}, [])
    path = saved(td, tmp_path, format, allow_pickle=True)
    before = content(tmp_path)

    ways: list[Any] = [{}, {"device": "meta"}, {"keys": ["n"]}, {"subpath": "n"}]
    for options in ways:
        with pytest.raises(PickleRefusedError) as error:
            tdfunc.load(path, **options)
        assert path.name in str(error.value) or "'n'" in str(error.value)
    assert "trap" in tdfunc.io.show(path)
    with suppress(PickleRefusedError):
        tdfunc.load(path, keys=["x"])

    assert content(tmp_path) == before
    tdfunc.load(path, allow_pickle=True)
    assert ran.is_dir()


@pytest.mark.parametrize("format", ONE_FILE)
def test_one_file_may_be_behind_a_link_and_no_pipe(format: str, tmp_path: Path) -> None:
    path = saved(tree(), tmp_path, format)
    (tmp_path / "link").symlink_to(path.name)
    assert_equal(tdfunc.load(tmp_path / "link"), tree())
    path.unlink()
    with pytest.raises(FileNotFoundError, match="link"):
        tdfunc.load(tmp_path / "link")
    os.mkfifo(path)
    with pytest.raises(FileFormatError, match=path.name):
        tdfunc.load(path, format=format)  # pyright: ignore[reportArgumentType]


# Keys


NAMES = ["a/b", "../x", "..", ".", "/etc", "meta.json", "x.bin", "con", "nul\0", "%2F"]
NAMES += ["A", "a", "e\u0301", "\u00e9", "k" * 200, "k" * 300, "\u00e9" * 200]
NAMES += ["\U0001f600" * 200, "\u202e", "\n", " ", "~", "-rf", "*"]


@every_format
def test_keys_are_no_paths(format: str, tmp_path: Path) -> None:
    """B70: slashes, dots, cases, forms of a character, 300 of them."""
    flat: dict[str, Any] = {key: torch.full((2,), i) for i, key in enumerate(NAMES)}
    td = TensorDict({**flat, "n": flat, "p": {"a": {"b": ramp(2)}, "a/b": ramp(2)}}, 2)
    (tmp_path / "in").mkdir()
    (tmp_path / "x").write_bytes(b"theirs")
    in_place: dict[str, Any] = {"overwrite": True, "atomic": False}

    for options in ({}, in_place if format == "memmap" else {"overwrite": True}):
        path = saved(td, tmp_path / "in", format, **options)

        assert_equal(tdfunc.load(path), td, key_order=True)
        assert [*(tmp_path / "in").iterdir()] == [path]
        assert sorted(tmp_path.iterdir()) == [tmp_path / "in", tmp_path / "x"]
        assert (tmp_path / "x").read_bytes() == b"theirs"


# Killed, and written meanwhile


SHAPES = [(3,), (20_000,), (5, 5), (1,)]


def numbered(number: int) -> TensorDict:
    """Return a tree all leaves and values of which say the same number."""
    entries = {f"x{i}": torch.full(shape, number) for i, shape in enumerate(SHAPES)}
    entries |= {"n": {**entries, "s": f"text {number}"}, "v": number}
    # Not always the same leaves: what is left of another tree would show.
    entries |= {f"more{i}": torch.full((2,), number) for i in range(number % 3)}
    return TensorDict(entries, [])


def check_numbered(path: Path, least: int) -> int:
    """Check that a file holds one of these trees, not older than one; return which."""
    out = tdfunc.load(path)
    number = int(out["v"])
    assert number >= least
    assert_equal(out, numbered(number))
    return number


@every_format
@pytest.mark.parametrize("rounds", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_killed_save_leaves_the_old_tree_or_the_new(
    format: str, tmp_path: Path, rounds: int
) -> None:
    """At any moment, again and again; and what it left is no tree, and goes."""
    rng = random.Random(rounds)  # noqa: S311 - no secret
    path = saved(numbered(0), tmp_path, format)
    newest = 0
    for _ in range(rounds):
        first = newest + 1

        def forever(first: int = first) -> None:
            _atomic._MOMENT = 0.0
            for number in range(first, first + 10**6):
                saved(numbered(number), tmp_path, format, overwrite=True)

        pid = children.start(forever)
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        assert children.end(pid) == -signal.SIGKILL
        newest = check_numbered(path, newest)
        left = [one for one in tmp_path.iterdir() if one != path]
        # A killed process removed what the one before had left.
        assert len(left) <= 2, left
        assert all(one.name.startswith(".tdtmp-") for one in left)
    assert newest > 0
    for one in tmp_path.iterdir():
        os.utime(one, (1e9, 1e9))
    saved(numbered(0), tmp_path, format, overwrite=True)
    assert [*tmp_path.iterdir()] == [path]


@every_format
def test_a_killed_first_save_leaves_a_tree_or_nothing(
    format: str, tmp_path: Path
) -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    path = tmp_path / FORMATS[format]
    outcomes: set[bool] = set()
    for number in range(25):

        def once(number: int = number) -> None:
            time.sleep(0.002)
            saved(numbered(number), tmp_path, format)
            time.sleep(1)

        pid = children.start(once)
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGKILL)
        children.end(pid)
        outcomes.add(path.exists())
        if path.exists():
            assert check_numbered(path, 0) == number
        for one in tmp_path.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    assert outcomes == {True, False}


@every_format
def test_a_tree_that_another_process_writes_meanwhile(
    format: str, tmp_path: Path
) -> None:
    """Each load is one of the trees that were there, whole; none fails."""
    path = saved(numbered(0), tmp_path, format)

    def forever() -> None:
        for number in range(1, 10**6):
            saved(numbered(number), tmp_path, format, overwrite=True)

    pid = children.start(forever)
    try:
        newest, loads, end = 0, 0, time.monotonic() + 0.7
        while time.monotonic() < end or not newest:
            newest = check_numbered(path, newest)
            assert tdfunc.load(path, keys=["v"])["v"] >= newest
            assert "x1" in tdfunc.io.show(path)
            loads += 1
    finally:
        os.kill(pid, signal.SIGKILL)
        children.end(pid)
    assert loads > 2


# Full disks, and no right to write


@contextmanager
def at_most(size: int) -> Generator[None]:
    """Let no file grow beyond a size, as a quota does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# Python ignores SIGXFSZ, so that a write beyond the limit is an error.
@every_format
@pytest.mark.parametrize("size", [0, 1, 63, 100, 5000, 80_000])
def test_a_quota_leaves_the_old_tree(format: str, tmp_path: Path, size: int) -> None:
    path = saved(tree(), tmp_path, format)
    before = content(tmp_path)
    other = TensorDict({"a": ramp(30), "n": {"b": torch.zeros(40_000)}})

    for options in ({}, {"durable": True}):
        with at_most(size), pytest.raises(OSError, match="too large") as error:
            saved(other, tmp_path, format, overwrite=True, **options)
        assert error.value.errno == errno.EFBIG
        assert error.value.filename == str(path)
        assert content(tmp_path) == before

    (tmp_path / "new").mkdir()
    with at_most(size), pytest.raises(OSError, match=str(tmp_path / "new")):
        saved(other, tmp_path / "new", format)
    assert [*(tmp_path / "new").iterdir()] == []
    saved(other, tmp_path, format, overwrite=True)
    assert_equal(tdfunc.load(path), other)


def test_a_quota_on_a_save_in_the_background(tmp_path: Path) -> None:
    path = tmp_path / "x"
    td = TensorDict({"a": torch.zeros(10_000)})
    td.save(path)
    with at_most(1000):
        future = td.save_async(path, overwrite=True)
        with pytest.raises(OSError, match="too large") as error:
            future.result()
    assert error.value.filename == str(path)
    assert_equal(tdfunc.load(path), td)


def test_a_quota_on_what_grows(tmp_path: Path) -> None:
    """Packing, unpacking, appending, building: named, and the old data stays."""
    td = TensorDict({"a": torch.zeros(4000), "b": ramp(4000)}, 4000)
    td.save(tmp_path / "d")
    td.save(tmp_path / "a.tdz")
    builder = tdfunc.memmap_like(td, tmp_path / "building")
    before = content(tmp_path)

    def raises(path: Path) -> Any:
        return pytest.raises(OSError, match=f"too large: '{path}'")

    with at_most(10_000):
        with raises(tmp_path / "p.tdz"):
            tdfunc.pack_memmap(tmp_path / "d", tmp_path / "p.tdz")
        with raises(tmp_path / "u"):
            tdfunc.unpack_memmap(tmp_path / "a.tdz", tmp_path / "u")
        with raises(tmp_path / "d"):
            tdfunc.append_memmap(tmp_path / "d", td)
        with raises(tmp_path / "building"):
            builder.write(slice(0, 4000), td)
        with raises(tmp_path / "b2"):
            tdfunc.memmap_like(td, tmp_path / "b2")
    assert builder.missing() == [range(4000)]
    builder.write(slice(0, 2000), td[:2000])
    with at_most(10), raises(tmp_path / "building"):
        builder.flush()
    builder.write(slice(2000, 4000), td[2000:])
    assert_equal(builder.finish(), td)
    shutil.rmtree(tmp_path / "building")

    after = content(tmp_path)
    assert after == {name: raw for name, raw in before.items() if name in after}
    assert_equal(tdfunc.load(tmp_path / "d"), td)


FULL = """
import errno, os, subprocess, sys, torch, tdfunc
from pathlib import Path
where = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", where], check=True)
old = tdfunc.TensorDict({"a": torch.arange(30_000.0), "n": {"s": "text"}})
big = tdfunc.TensorDict({"a": torch.zeros(100), "b": {"c": torch.ones(300_000)}})
nearly = tdfunc.TensorDict({f"k{i}": torch.ones(30_000) for i in range(8)})
print("mounted")
for format, name in zip(sys.argv[2::2], sys.argv[3::2]):
    path = where / name
    old.save(path, format=format)
    for td in (big, nearly):
        for durable in (False, True):
            try:
                td.save(path, format=format, overwrite=True, durable=durable)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                assert error.filename == str(path), error
            else:
                raise AssertionError(format)
            assert os.listdir(where) == [name], os.listdir(where)
            assert tdfunc.load(path).equal(old)
    # With room again, it works.
    tdfunc.TensorDict(x=torch.ones(4)).save(path, format=format, overwrite=True)
    assert tdfunc.load(path)["x"].sum() == 4
    subprocess.run(["rm", "-r", path], check=True)
"""


def mounts() -> list[str] | None:
    """Return the command that runs others where they may mount; None without one."""
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        line = [*command, "mount", "-t", "tmpfs", "none", "/mnt"]
        with suppress(OSError):
            if not subprocess.run(line, capture_output=True, check=False).returncode:
                return command
    return None


def test_a_full_file_system_leaves_the_old_tree(tmp_path: Path) -> None:
    command = mounts()
    if command is None:
        pytest.skip("nothing can be mounted here")
    (tmp_path / "fs").mkdir()
    pairs = [argument for pair in FORMATS.items() for argument in pair]
    line = [*command, sys.executable, "-c", FULL, str(tmp_path / "fs"), *pairs]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "mounted\n"


def as_nobody(function: Callable[[Path], object]) -> None:
    """Run a function on a new directory, as one who may not write everywhere."""
    with TemporaryDirectory() as folder:
        path = Path(folder)

        def work() -> None:
            if os.geteuid() == 0:
                os.chown(path, 65534, 65534)
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            function(path)

        children.run(work)


@every_format
def test_files_and_directories_that_are_read_only(format: str) -> None:
    """They load, and are written to in memory; saving says where it may not."""
    big = torch.zeros(2, 20_000)
    td = TensorDict({"x": ramp(2), "big": big, "n": {"y": ramp(2)}}, 2)

    def work(folder: Path) -> None:
        path = saved(td, folder, format)
        every = [folder, path, *path.rglob("*")]
        for one in every:
            one.chmod(0o555 if one.is_dir() else 0o444)
        before = content(folder)

        out = tdfunc.load(path)
        out["big"].add_(1)
        out["n", "y"].add_(1)
        assert_equal(tdfunc.load(path), td)
        assert "big" in tdfunc.io.show(path)
        for options in ({"overwrite": True}, {"overwrite": True, "durable": True}):
            with pytest.raises(PermissionError) as error:
                saved(td, folder, format, **options)
            assert str(path) in str(error.value)
        with pytest.raises(TargetExistsError):
            saved(td, folder, format)
        with pytest.raises(PermissionError) as error:
            td.save(folder / "other", format=format)  # pyright: ignore[reportArgumentType]
        assert str(folder / "other") in str(error.value)
        if path.is_dir():
            with pytest.raises(PermissionError) as error:
                tdfunc.append_memmap(path, td)
            assert str(path) in str(error.value)
        assert content(folder) == before

        # The permission to write in the directory is what counts, and they stay.
        folder.chmod(0o755)
        modes = [one.stat().st_mode for one in every[1:2]]
        if format != "memmap":
            saved(td + 1, folder, format, overwrite=True)
            assert_equal(tdfunc.load(path), td + 1)
            assert [one.stat().st_mode for one in every[1:2]] == modes
        for one in reversed(every):
            if one.is_dir():
                one.chmod(0o755)

    as_nobody(work)


@every_format
def test_files_that_may_not_be_read(format: str) -> None:
    td = TensorDict({"x": ramp(2), "n": {"y": ramp(2)}})

    def work(folder: Path) -> None:
        path = saved(td, folder, format)
        for file in files_at(path):
            file.chmod(0)
            with pytest.raises(PermissionError) as error:
                tdfunc.load(path)
            assert str(path) in str(error.value)
            file.chmod(0o644)
        assert_equal(tdfunc.load(path), td)

    as_nobody(work)


@every_format
def test_a_disk_that_can_not_be_read_is_named(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tree(), tmp_path, format)

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("preadv", "readv"):
        monkeypatch.setattr(os, name, broken)
    with pytest.raises(OSError, match="Input/output") as error:
        tdfunc.load(path)
    assert str(path) in str(error.value)
    again = pickle.load(io.BytesIO(pickle.dumps(error.value)))
    assert again.filename == error.value.filename
    assert json.dumps(str(again))
