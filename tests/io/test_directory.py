"""Directories: what is written is what is read, and nothing else happens."""

from __future__ import annotations

import copy
import json
import os
import resource
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdfunc
from tdfunc import NonTensorData, NonTensorStack, TensorDict
from tdfunc.errors import (
    FileFormatError,
    FormatLimitError,
    MissingFileError,
    PickleRefusedError,
    TargetExistsError,
    TdfuncError,
)
from tdfunc.io import _directory
from tdfunc.io._atomic import remove_tree
from tdfunc.io._layout import iter_arrays, tree_of
from tdfunc.io._options import ReadOptions
from tdfunc.testing import assert_equal
from tests.cases import CASES, OBJECT, ROW_CASES, Case, cases, fingerprint, ramp
from tests.io.directories import load, outline, save

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

PLAIN = "<class 'tensordict._td.TensorDict'>"


def writable(case: Case) -> bool:
    return OBJECT not in case.statics.values() and case.name != "rows of any values"


def meta_of(path: Path) -> Any:
    return json.loads((path / "meta.json").read_bytes())


def put_meta(path: Path, meta: Any) -> None:
    (path / "meta.json").write_text(json.dumps(meta))


def put(path: Path, **entries: Any) -> None:
    """Write the directory of a foreign tree by hand; tensors are int16 of any shape."""
    path.mkdir()
    meta: dict[str, Any] = {"_type": PLAIN, "shape": []}
    for key, shape in entries.items():
        meta[key] = {"dtype": "torch.int16", "shape": shape}
    put_meta(path, meta)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class TestRoundTrip:
    @cases(writable, CASES + ROW_CASES)
    def test_every_case(self, tmp_path: Path, case: Case) -> None:
        td = case.tree
        before = fingerprint(case.leaves.values())

        save(td, tmp_path / "d")

        back = load(tmp_path / "d")
        assert_equal(back, td)
        assert list(back.keys(include_nested=True)) == list(
            td.keys(include_nested=True)
        )
        assert fingerprint(case.leaves.values()) == before

    @cases(lambda case: not writable(case), CASES + ROW_CASES)
    def test_values_without_a_form(self, tmp_path: Path, case: Case) -> None:
        with pytest.raises(PickleRefusedError, match="pickle"):
            save(case.tree, tmp_path / "d")

        assert not list(tmp_path.iterdir())

    def test_writes_stay_in_memory(self, tmp_path: Path) -> None:
        td = TensorDict({"small": torch.zeros(4), "big": torch.zeros(1 << 16)})
        save(td, tmp_path / "d")

        back = load(tmp_path / "d")
        back["small"].add_(1)
        back["big"].add_(1)

        assert_equal(load(tmp_path / "d"), td)

    def test_onto_the_files_that_it_maps(self, tmp_path: Path) -> None:
        td = TensorDict({"x": torch.arange(1 << 16), "y": ramp(3)})
        save(td, tmp_path / "d")
        mapped = load(tmp_path / "d")

        for atomic in (True, False):
            save(mapped.apply(lambda x: x + 1), tmp_path / "d", overwrite=True)
            save(mapped, tmp_path / "d", overwrite=True, atomic=atomic)

            assert_equal(mapped, td)
            assert_equal(load(tmp_path / "d"), td)

    def test_a_part_onto_the_whole(self, tmp_path: Path) -> None:
        td = TensorDict({"x": torch.arange(1 << 16)}, 1 << 16)
        save(td, tmp_path / "d")

        save(load(tmp_path / "d")[2:], tmp_path / "d", overwrite=True)

        assert_equal(load(tmp_path / "d"), td[2:])

    def test_dtypes(self, tmp_path: Path) -> None:
        dtypes = {
            str(d): d
            for d in vars(torch).values()
            if isinstance(d, torch.dtype) and d.itemsize and "torch.q" not in str(d)
        }
        raw = torch.arange(64, dtype=torch.uint8) % 2
        leaves: dict[str, torch.Tensor] = {}
        for name, dtype in dtypes.items():
            try:
                leaves[name] = raw.view(dtype)
            except (RuntimeError, TypeError):
                continue
        save(TensorDict(leaves), tmp_path / "d")

        back = load(tmp_path / "d")

        assert len(leaves) > 20
        for name, leaf in leaves.items():
            assert back[name].dtype == leaf.dtype
            assert torch.equal(back[name].view(torch.uint8), raw)

    def test_views(self, tmp_path: Path) -> None:
        c = ramp(2, 3, dtype=torch.complex64) * 1j
        td = TensorDict({"conj": c.conj(), "imag": c.conj().imag, "t": ramp(3, 4).t()})
        save(td, tmp_path / "d")

        assert_equal(load(tmp_path / "d"), td)

    def test_meta_comes_last(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A directory without its meta.json is not finished, nor those above."""
        written: list[str] = []
        write = _directory._write

        def noted(directory: int, name: str, buffers: Any) -> None:
            above = Path(f"/proc/self/fd/{directory}").readlink()
            written.append(str(above / name))
            write(directory, name, buffers)

        monkeypatch.setattr(_directory, "_write", noted)
        td = TensorDict(
            {"a": ramp(2), "n": {"b": ramp(2), "m": {"c": ramp(1)}, "s": "t"}, "s": "t"}
        )
        save(td, tmp_path / "d", atomic=False)

        names = [name.removeprefix(f"{tmp_path}/d/") for name in written]
        assert names[-1] == "meta.json"
        for at, name in enumerate(names):
            if name.endswith("meta.json"):
                below = name.removesuffix("meta.json")
                assert not [x for x in names[at + 1 :] if x.startswith(below)]

    def test_progress(self, tmp_path: Path) -> None:
        heard: list[int] = []
        td = TensorDict({"a": ramp(4), "b": torch.zeros(1 << 15), "z": ramp(0)})

        save(td, tmp_path / "d", progress=heard.append)
        assert sorted(heard) == [16, 1 << 17]
        load(tmp_path / "d", progress=heard.append)
        assert sorted(heard) == [16, 16, 1 << 17, 1 << 17]


class TestNames:
    KEYS = (
        *("a/b", "../x", "..", ".", "...", "/abs", "meta.json", "x.bin", "A", "a"),
        *("e\u0301", "\u00e9", "k" * 300, "\u65e5" * 100, "con", "x\0y", "%", "%2F"),
        *("%tdfunc-0", "%tdfunc-0.memmap", "a b", "tab\t", "back\\slash", "\ud800"),
        *("shape", "device", "_type", "_tdfunc", "_names", "_class", "type", "dtype"),
        *("_tensordict", "_source", "0", "other.pickle", "meta.json.memmap", "*?<>|"),
    )

    @pytest.mark.parametrize("nested", [False, True], ids=["leaves", "nodes"])
    def test_keys(self, tmp_path: Path, *, nested: bool) -> None:
        """All come back, and nothing appears outside of the directory."""
        entries: dict[str, Any] = {
            key: {"x": ramp(2) + at} if nested else ramp(2) + at
            for at, key in enumerate(self.KEYS)
        }
        td = TensorDict({**entries, "both": {"a/b": ramp(2), "a": {"b": ramp(2)}}}, 2)
        save(td, tmp_path / "d")

        assert_equal(load(tmp_path / "d"), td)
        assert [x.name for x in tmp_path.iterdir()] == ["d"]

    def test_clashes(self, tmp_path: Path) -> None:
        td = TensorDict(
            {
                "x.memmap": {"y": ramp(1)},
                "x": ramp(2),
                "n": ramp(3),
                "n.memmap": "text",
                "z": ramp(0),
                "z.memmap": {"y": ramp(4)},
            }
        )
        save(td, tmp_path / "d")

        assert_equal(load(tmp_path / "d"), td)

    def test_names_that_a_file_system_takes_for_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error, and nothing is lost: there is no directory."""
        opened = os.open

        def folding(name: Any, flags: int, *args: Any, **options: Any) -> int:
            lower = name.lower() if isinstance(name, str) else name
            return opened(
                lower if flags & os.O_CREAT else name, flags, *args, **options
            )

        td = TensorDict({"A": ramp(2), "a": ramp(2)})
        with monkeypatch.context() as patched:
            patched.setattr(_directory.os, "open", folding)
            with pytest.raises(FormatLimitError, match=r"'A' for 'a'"):
                save(td, tmp_path / "d")

        assert not list(tmp_path.iterdir())


class TestLimits:
    def test_depth(self, quick: Path) -> None:
        td = TensorDict({"x": ramp(1), "y": "text"})
        for _ in range(2000):
            td = TensorDict({"n": td, "leaf": ramp(1)})
        before = open_files()
        with limited(before + 40):
            save(td, quick / "d")
            level = outline(quick / "d")
            back = load(quick / "d")

        assert open_files() == before
        assert sum(1 for _ in iter_arrays(level)) == 2001
        assert back._schema == td._schema
        assert all(map(torch.equal, back._leaves, td._leaves))

    def test_descriptors(self, quick: Path) -> None:
        leaves = {f"k{i}": torch.full((3,), float(i)) for i in range(10_000)}
        big = {f"b{i}": torch.zeros(1 << 15) for i in range(300)}
        td = TensorDict({"n": leaves, "b": big})
        before = open_files()
        with limited(256):
            save(td, quick / "d")
            back = load(quick / "d")

            assert open_files() == before
        assert_equal(back, td)

    def test_pickles_that_fail(self, tmp_path: Path) -> None:
        td = TensorDict({"f": NonTensorData(lambda: 0), "n": {"g": TestLimits.loop()}})

        with pytest.raises(FormatLimitError, match=r"td\['f'\].*pickled") as error:
            save(td, tmp_path / "d", allow_pickle=True)

        assert "'n', 'g'" in str(error.value)
        assert not list(tmp_path.iterdir())

    @staticmethod
    def loop() -> NonTensorData:
        value: list[Any] = []
        value.append(value)
        return NonTensorData(value)


@pytest.fixture
def quick(tmp_path: Path) -> Generator[Path]:
    """Return a directory in memory, where there is one: for thousands of files."""
    memory = Path("/dev/shm")  # noqa: S108
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else tmp_path))
    yield path
    parent = os.open(path.parent, os.O_RDONLY)
    remove_tree(parent, path.name)
    os.close(parent)


@contextmanager
def limited(count: int) -> Generator[None]:
    """Let the process have no more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TestTargets:
    def test_what_is_there(self, tmp_path: Path) -> None:
        save(TensorDict({"x": ramp(2)}), tmp_path / "d")
        with pytest.raises(TargetExistsError):
            save(TensorDict({"y": ramp(2)}), tmp_path / "d")

        save(TensorDict({"y": ramp(2)}), tmp_path / "d", overwrite=True)

        assert sorted(x.name for x in (tmp_path / "d").iterdir()) == [
            "meta.json",
            "y.memmap",
        ]

    @pytest.mark.parametrize("atomic", [True, False])
    def test_nothing_stale(self, tmp_path: Path, *, atomic: bool) -> None:
        """Fewer members over more are fewer members."""
        parts = [TensorDict({"x": ramp(2)}), TensorDict({"x": ramp(3)})]
        save(tdfunc.lazy_stack([*parts, *parts]), tmp_path / "d")
        stack = tdfunc.lazy_stack(parts)

        save(stack, tmp_path / "d", overwrite=True, atomic=atomic)

        assert_equal(load(tmp_path / "d"), stack)
        assert sorted(x.name for x in (tmp_path / "d").iterdir()) == [
            "0",
            "1",
            "meta.json",
        ]

    @pytest.mark.parametrize("atomic", [True, False])
    def test_planted_links_are_not_followed(
        self, tmp_path: Path, *, atomic: bool
    ) -> None:
        save(TensorDict({"x": ramp(2)}), tmp_path / "d")
        (tmp_path / "out").mkdir()
        (tmp_path / "secret").write_bytes(b"secret")
        for name, to in (("a.memmap", "secret"), ("x.memmap", "secret"), ("n", "out")):
            (tmp_path / "d" / name).unlink(missing_ok=True)
            (tmp_path / "d" / name).symlink_to(tmp_path / to)

        td = TensorDict({"a": ramp(2), "n": {"y": ramp(2)}})
        save(td, tmp_path / "d", overwrite=True, atomic=atomic)

        assert (tmp_path / "secret").read_bytes() == b"secret"
        assert not list((tmp_path / "out").iterdir())
        assert_equal(load(tmp_path / "d"), td)

    def test_links_planted_while_it_writes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "out").mkdir()
        mkdir = os.mkdir

        def planting(name: Any, *args: Any, dir_fd: int | None = None) -> None:
            if name == "n":
                os.symlink(tmp_path / "out", name, dir_fd=dir_fd)
            mkdir(name, *args, dir_fd=dir_fd)

        (tmp_path / "d").mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(_directory.os, "mkdir", planting)
            with pytest.raises(FileFormatError, match="symbolic links"):
                save(TensorDict({"n": {"y": ramp(2)}}), tmp_path / "d", atomic=False)

        assert not list((tmp_path / "out").iterdir())

    def test_a_read_only_directory(self, tmp_path: Path) -> None:
        td = TensorDict({"x": ramp(2), "big": torch.zeros(1 << 16)})
        save(td, tmp_path / "d")
        for path in (tmp_path / "d").iterdir():
            path.chmod(0o444)
        (tmp_path / "d").chmod(0o555)

        back = load(tmp_path / "d")
        back["x"].add_(1)

        (tmp_path / "d").chmod(0o755)
        assert back["x"].tolist() == [1, 2]


def test_recognises(tmp_path: Path) -> None:
    save(TensorDict({"x": ramp(2)}), tmp_path / "d")
    (tmp_path / "file").write_text("{}")
    (tmp_path / "odd" / "meta.json").mkdir(parents=True)

    assert _directory.recognises(tmp_path / "d")
    for name in ("no", "file", "odd", "d/x.memmap", "file/meta.json", "n\0"):
        assert not _directory.recognises(tmp_path / name)


class TestBroken:
    """Whatever is there, the error names the file, and nothing outside is read."""

    def test_no_directory(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match="there"):
            load(tmp_path / "no")
        (tmp_path / "file").write_text("x")
        with pytest.raises(FileFormatError, match="no directory"):
            load(tmp_path / "file")
        with pytest.raises(FileFormatError, match=r"meta\.json"):
            load(tmp_path)

    @pytest.mark.parametrize("size", [0, 1, 7, 23])
    @pytest.mark.parametrize("big", [False, True])
    def test_a_short_file(self, tmp_path: Path, size: int, *, big: bool) -> None:
        td = TensorDict({"n": {"x": torch.zeros(1 << 16) if big else ramp(6)}})
        save(td, tmp_path / "d")
        os.truncate(tmp_path / "d" / "n" / "x.memmap", size)

        with pytest.raises(FileFormatError, match=r"d/n/x\.memmap.*too short") as error:
            outline(tmp_path / "d")

        assert f"got {size} bytes" in str(error.value)
        assert (tmp_path / "d" / "n" / "x.memmap").stat().st_size == size

    def test_a_longer_file(self, tmp_path: Path) -> None:
        """Builders and the peer leave more than is used."""
        td = TensorDict({"x": ramp(6)})
        save(td, tmp_path / "d")
        os.truncate(tmp_path / "d" / "x.memmap", 1000)

        assert_equal(load(tmp_path / "d"), td)

    @pytest.mark.parametrize("name", ["x.memmap", "n/meta.json", "n/y.memmap", "s"])
    def test_a_missing_file(self, tmp_path: Path, name: str) -> None:
        save(TensorDict({"x": ramp(2), "n": {"y": ramp(2)}, "s": "t"}), tmp_path / "d")
        path = tmp_path / "d" / name
        if path.is_dir():
            (path / "meta.json").unlink()
        else:
            path.unlink()

        with pytest.raises(FileFormatError, match="no such file") as error:
            load(tmp_path / "d")

        assert f"d/{name}" in str(error.value)
        assert "at td[" in str(error.value)

    def test_a_file_that_goes_while_it_is_read(self, tmp_path: Path) -> None:
        save(TensorDict({"x": ramp(2)}), tmp_path / "d")
        with _directory.open_source(tmp_path / "d", ReadOptions()) as source:
            level = source.outline()
            (tmp_path / "d" / "x.memmap").unlink()
            with pytest.raises(FileFormatError, match=r"x\.memmap"):
                source.read([array for _, array in iter_arrays(level)])

    def test_another_directory_in_its_place(self, tmp_path: Path) -> None:
        """What was opened is read to the end, if it is still somewhere."""
        td = TensorDict({"x": ramp(2), "n": {"y": ramp(2)}})
        save(td, tmp_path / "d")
        with _directory.open_source(tmp_path / "d", ReadOptions()) as source:
            (tmp_path / "d").rename(tmp_path / "old")
            save(td.apply(lambda x: x + 1), tmp_path / "d")
            level = source.outline()
            (tmp_path / "old").rename(tmp_path / "older")
            source.read([array for _, array in iter_arrays(level)])

        assert_equal(tree_of(level), td)

    def test_a_directory_that_is_written_again_and_again(self, tmp_path: Path) -> None:
        """One of the trees that were there, whole, or an error; never a mix."""
        trees = [
            TensorDict({"n": {f"k{i}": torch.full((3,), n) for i in range(20)}, "s": n})
            for n in range(2)
        ]
        save(trees[0], tmp_path / "d")
        done = threading.Event()

        def writes() -> None:
            for at in range(1, 60):
                save(trees[at % 2], tmp_path / "d", overwrite=True)
            done.set()

        writer = threading.Thread(target=writes)
        writer.start()
        loaded = 0
        while not done.is_set() or not loaded:
            try:
                back = load(tmp_path / "d")
            except FileFormatError as error:
                assert str(tmp_path / "d")[:20] in str(error)  # noqa: PT017
            else:
                loaded += 1
                assert_equal(back, trees[int(back["s"])])
        writer.join()

    @pytest.mark.parametrize("what", ["leaf", "node", "meta"])
    @pytest.mark.parametrize("inside", [True, False])
    def test_links(self, tmp_path: Path, what: str, *, inside: bool) -> None:
        save(TensorDict({"x": ramp(2), "n": {"y": ramp(2)}}), tmp_path / "d")
        name = {"leaf": "x.memmap", "node": "n", "meta": "n/meta.json"}[what]
        path = tmp_path / "d" / name
        to = (tmp_path / "d" if inside else tmp_path) / "moved"
        path.rename(to)
        path.symlink_to(to)

        with pytest.raises(FileFormatError, match="symbolic links") as error:
            load(tmp_path / "d")

        assert f"d/{name}" in str(error.value)

    def test_the_root_may_be_a_link(self, tmp_path: Path) -> None:
        td = TensorDict({"x": ramp(2)})
        save(td, tmp_path / "d")
        (tmp_path / "link").symlink_to("d")

        assert_equal(load(tmp_path / "link"), td)
        assert _directory.recognises(tmp_path / "link")

    @pytest.mark.parametrize("name", ["x.memmap", "meta.json", "n/meta.json"])
    def test_pipes(self, tmp_path: Path, name: str) -> None:
        save(TensorDict({"x": ramp(2), "n": {}}), tmp_path / "d")
        (tmp_path / "d" / name).unlink()
        os.mkfifo(tmp_path / "d" / name)

        with pytest.raises(FileFormatError, match="no regular file"):
            load(tmp_path / "d")

    @pytest.mark.parametrize("name", ["x.memmap", "meta.json"])
    def test_directories_for_files(self, tmp_path: Path, name: str) -> None:
        save(TensorDict({"x": ramp(2)}), tmp_path / "d")
        (tmp_path / "d" / name).unlink()
        (tmp_path / "d" / name).mkdir()

        with pytest.raises(FileFormatError, match="no regular file"):
            load(tmp_path / "d")

    def test_keys_that_lead_out(self, tmp_path: Path) -> None:
        (tmp_path / "x.memmap").write_bytes(b"1234")
        for key in ("../x", str(tmp_path / "x"), "..\\x", "C:x"):
            put(tmp_path / "d", **{key: [2]})
            with pytest.raises(FileFormatError, match="no such file"):
                load(tmp_path / "d")
            (tmp_path / "d" / "meta.json").unlink()
            (tmp_path / "d").rmdir()

    def test_lost_characters(self, tmp_path: Path) -> None:
        put(tmp_path / "d", **{"\ud800": [2]})
        with pytest.raises(FileFormatError, match="no such file"):
            load(tmp_path / "d")
        put(tmp_path / "e", **{"": [2]})
        with pytest.raises(FileFormatError, match="without a key"):
            load(tmp_path / "e")

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"[]",
            b"null",
            b'{"shape": []}',
            b'{"_type": 1}',
            b'{"_type": "x", "_type": "x"}',
            b'{"_type": "\xff"}',
            b'{"_type": ' + b"[" * 100_000,
            b'{"_type": "<class \'mine.Unknown\'>"}',
            b'{"_type": "<class \'tensordict._td.TensorDict\'>", "_format_version": 2}',
            b'{"_type": "<class \'tensordict._td.TensorDict\'>", "_tdfunc": [2, {}]}',
            b'{"_type": "<class \'tensordict._td.TensorDict\'>", "_tdfunc": 3}',
            b'{"_type": "<class \'tensordict.tensorclass.NonTensorData\'>", "data": 1}',
        ],
        ids=lambda raw: repr(raw[-60:]),
    )
    def test_no_meta(self, tmp_path: Path, raw: bytes) -> None:
        (tmp_path / "meta.json").write_bytes(raw)

        with pytest.raises(FileFormatError) as error:
            load(tmp_path)

        assert str(tmp_path) in str(error.value)

    @pytest.mark.parametrize(
        "shape",
        [
            *(None, 1, "1", {}, [-1], [True], [1.0], ["1"], [None], [[1]]),
            *([1 << 62, 4], [0, 1 << 62, 4], [1] * 65, [10**30], [1 << 40]),
        ],
        ids=repr,
    )
    def test_shapes(self, tmp_path: Path, shape: Any) -> None:
        """Sizes are checked before memory is asked for, or the file is touched."""
        put(tmp_path / "d", x=shape)
        (tmp_path / "d" / "x.memmap").write_bytes(b"12345678")
        with pytest.raises(FileFormatError, match=f"{tmp_path}/d"):
            load(tmp_path / "d")

        put(tmp_path / "batch")
        put_meta(tmp_path / "batch", {"_type": PLAIN, "shape": shape})
        if shape not in ([1 << 40], {}):
            with pytest.raises(FileFormatError, match=f"{tmp_path}/batch"):
                load(tmp_path / "batch")
        assert (tmp_path / "d" / "x.memmap").stat().st_size == 8

    def test_a_batch_size_that_does_not_fit(self, tmp_path: Path) -> None:
        put(tmp_path / "d", x=[2])
        (tmp_path / "d" / "x.memmap").write_bytes(b"1234")
        put_meta(tmp_path / "d", {**meta_of(tmp_path / "d"), "shape": [3]})

        with pytest.raises(TdfuncError, match=r"td\['x'\]"):
            load(tmp_path / "d")

    @pytest.mark.parametrize(
        "dtype", ["float32", "torch.Tensor", "torch.os", 1, [], {}]
    )
    def test_dtypes(self, tmp_path: Path, dtype: Any) -> None:
        put(tmp_path / "d", x=[2])
        put_meta(tmp_path / "d", {"_type": PLAIN, "x": {"dtype": dtype, "shape": [2]}})

        with pytest.raises(FileFormatError, match="no dtype that is known"):
            load(tmp_path / "d")

    def test_a_billion_members(self, tmp_path: Path) -> None:
        save(tdfunc.lazy_stack([TensorDict({"x": ramp(2)})] * 2), tmp_path / "d")
        meta = meta_of(tmp_path / "d")
        meta["_tdfunc"][1]["count"] = 10**12
        put_meta(tmp_path / "d", meta)

        with pytest.raises(FileFormatError, match=r"d/2/meta\.json"):
            load(tmp_path / "d")

    def test_rows_that_are_too_few(self, tmp_path: Path) -> None:
        td = TensorDict({"r": ["a", "b"], "t": NonTensorStack((1,), (2,))}, 2)
        save(td, tmp_path / "d")
        for key, member in (("r", "data"), ("t", "values")):
            meta = meta_of(tmp_path / "d" / key)
            where = meta if member in meta and key == "r" else meta["_tdfunc"][1]
            whole = where[member]
            where[member] = whole[:1]
            put_meta(tmp_path / "d" / key, meta)
            with pytest.raises(FileFormatError, match="one value for every row"):
                load(tmp_path / "d")
            where[member] = whole
            put_meta(tmp_path / "d" / key, meta)

    @pytest.mark.parametrize(
        "offsets", [[0, 2, 6], [0, -1, 5], [3, 2, 5], [1 << 40, 1, 2]], ids=repr
    )
    def test_offsets_that_lead_out(self, tmp_path: Path, offsets: list[int]) -> None:
        of = torch.nested.nested_tensor_from_jagged
        td = TensorDict({"j": of(torch.arange(5.0), torch.tensor([0, 2, 5]))})
        save(td, tmp_path / "d")
        raw = torch.tensor(offsets).numpy().tobytes()
        (tmp_path / "d" / "%tdfunc-0-offsets.memmap").write_bytes(raw)

        with pytest.raises(TdfuncError, match=r"td\['j'\]"):
            load(tmp_path / "d")

    def test_a_json_that_is_too_large(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("_folder_write", "_folder_meta"):
            monkeypatch.setattr(f"tdfunc.io.{module}.MOST_META", 500)
        with pytest.raises(FormatLimitError, match="over 500"):
            save(TensorDict({"s": "x" * 500}), tmp_path / "d")
        put(tmp_path / "d")
        put_meta(tmp_path / "d", {**meta_of(tmp_path / "d"), "more": "x" * 500})
        with pytest.raises(FileFormatError, match=r"meta\.json.*too large"):
            load(tmp_path / "d")

    def test_a_cycle_of_directories(self, tmp_path: Path) -> None:
        """A link to the directory above ends at once."""
        put(tmp_path / "d")
        put_meta(tmp_path / "d", {"_type": PLAIN, "n": {"type": "TensorDict"}})
        (tmp_path / "d" / "n").symlink_to(".")

        with pytest.raises(FileFormatError, match="symbolic links"):
            load(tmp_path / "d")


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, part in inner:
        yield from _paths(part, (*path, key))


FEW = settings(max_examples=60, deadline=None)


class TestFuzz:
    """Any value anywhere in any meta.json: a tree, or an error that says so."""

    ODD = st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from(
            [-1, 0, 1, 3, 1 << 31, 1 << 63, 10**30, 1.5, float("nan"), "", "x", "../x"]
        ),
        st.sampled_from(
            ["torch.int64", "torch.bool", "pickle.pkl", "TensorDict", PLAIN]
        ),
        st.sampled_from(
            [[], {}, [0], [[]], [1, {}], {"x": 1}, {"type": 1}, {"$": "x"}]
        ),
        st.sampled_from([{"$": "pickle", "v": "gASVAA=="}, {"$": "int", "v": "zz"}]),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("fuzz") / "d"
        x = ramp(2, 2)
        of = torch.nested.nested_tensor_from_jagged
        members = [TensorDict({"x": ramp(2)}, 2), TensorDict({"y": ramp(2)}, 2)]
        td = TensorDict(
            {
                "x": x,
                "n": {"x": x, "shape": x, "t": NonTensorData((1, 2))},
                "r": NonTensorStack((1,), (2,)),
                "text": ["a", "b"],
                "s": "text",
                "b": b"bytes",
                "j": of(torch.arange(5.0), torch.tensor([0, 2, 5])),
                "l": tdfunc.lazy_stack(members, 1),
            },
            2,
            names=["t"],
        )
        save(td, path)
        return path

    @FEW
    @given(st.data())
    def test_meta(self, saved: Path, data: st.DataObject) -> None:
        files = sorted(saved.rglob("meta.json"))
        file = data.draw(st.sampled_from(files))
        raw = file.read_bytes()
        meta = copy.deepcopy(json.loads(raw))
        path = data.draw(st.sampled_from(list(_paths(meta))[1:]))
        here = meta
        for key in path[:-1]:
            here = here[key]
        if data.draw(st.booleans()):
            del here[path[-1]]
        else:
            here[path[-1]] = data.draw(self.ODD)
        try:
            file.write_text(json.dumps(meta))
            with suppress(TdfuncError):
                load(saved)
        finally:
            file.write_bytes(raw)

    @FEW
    @given(st.data())
    def test_bytes(self, saved: Path, data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(sorted(saved.rglob("meta.json"))))
        raw = file.read_bytes()
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            changed = raw[:at]
        else:
            bit = 1 << data.draw(st.integers(0, 7))
            changed = raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :]
        try:
            file.write_bytes(changed)
            with suppress(TdfuncError):
                load(saved)
        finally:
            file.write_bytes(raw)


def test_copies_of_one_tensor_leave_no_descriptor_when_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ramp(3)
    TensorDict({"a": x, "b": x}).save(tmp_path / "x")
    one = tmp_path / "x" / "b.memmap"
    raw = one.read_bytes()
    one.unlink()
    one.write_bytes(raw)  # a copy, and no hard link
    found = _directory.Files.found

    def gone(self: Any, place: Any) -> int:
        if place.name == "b.memmap":
            raise self.gone(place)
        return found(self, place)

    monkeypatch.setattr(_directory.Files, "found", gone)
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(FileFormatError, match="is gone"):
        load(tmp_path / "x")

    assert len([*Path("/proc/self/fd").iterdir()]) == before
