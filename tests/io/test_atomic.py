"""New files and directories: whole or not there, whatever ends the process."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tdfunc.errors import MissingFileError, TargetExistsError
from tdfunc.io import _atomic
from tdfunc.io._atomic import new_directory, new_file, remove_tree
from tests.io import children

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = 20


@pytest.fixture(params=["system", "portable"])
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the calls of Linux, and without."""
    if request.param == "portable":
        monkeypatch.setattr(_atomic, "_RENAME", None)


both = pytest.mark.usefixtures("_system")


def put(descriptor: int, name: str, data: bytes) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o666, dir_fd=descriptor)
    os.write(file, data)
    os.close(file)


def save_file(path: Path, data: bytes, **options: Any) -> None:
    options = {"overwrite": False, "durable": False} | options
    with new_file(path, **options) as descriptor:
        os.write(descriptor, data)


def save_directory(path: Path, data: bytes, **options: Any) -> None:
    options = {"overwrite": False, "durable": False} | options
    with new_directory(path, **options) as descriptor:
        os.mkdir("n", dir_fd=descriptor)
        for i in range(FILES):
            put(descriptor, f"n/{i}", data)
        put(descriptor, "meta.json", data)


def content(path: Path) -> dict[str, bytes]:
    return {
        os.fspath(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }


def saved(path: Path, data: bytes) -> bool:
    wanted = {f"n/{i}": data for i in range(FILES)} | {"meta.json": data}
    return content(path) == wanted


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


def fail(save: Callable[..., Any], path: Path, **options: Any) -> None:
    options = {"overwrite": True, "durable": False} | options
    with pytest.raises(ZeroDivisionError), save(path, **options):
        _ = 1 // 0


def meanwhile(path: Path, work: Callable[[], object]) -> None:
    with new_directory(path, overwrite=True, durable=False):
        work()


def put_thesis(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_bytes(b"")


@both
class TestNewFile:
    @pytest.mark.parametrize("durable", [False, True])
    def test_a_file_is_made_and_replaced(
        self, tmp_path: Path, *, durable: bool
    ) -> None:
        save_file(tmp_path / "x", b"1", durable=durable)
        assert content(tmp_path) == {"x": b"1"}
        save_file(tmp_path / "x", b"2", overwrite=True, durable=durable)
        assert content(tmp_path) == {"x": b"2"}

    def test_nothing_is_there_before_the_end(self, tmp_path: Path) -> None:
        with new_file(tmp_path / "x", overwrite=False, durable=False):
            assert not (tmp_path / "x").exists()
        assert names(tmp_path) == ["x"]

    def test_an_error_leaves_the_old_file(self, tmp_path: Path) -> None:
        fail(new_file, tmp_path / "x")
        assert names(tmp_path) == []
        save_file(tmp_path / "x", b"1")
        fail(new_file, tmp_path / "x")
        assert content(tmp_path) == {"x": b"1"}

    def test_a_file_that_is_there_is_refused_before_any_work(
        self, tmp_path: Path
    ) -> None:
        save_file(tmp_path / "x", b"1")
        with pytest.raises(TargetExistsError) as error:
            save_file(tmp_path / "x", b"2")
        assert str(tmp_path / "x") in str(error.value)
        assert "overwrite=True" in str(error.value)
        assert content(tmp_path) == {"x": b"1"}

    def test_a_file_that_comes_meanwhile_is_not_replaced(self, tmp_path: Path) -> None:
        with (
            pytest.raises(TargetExistsError),
            new_file(tmp_path / "x", overwrite=False, durable=False),
        ):
            (tmp_path / "x").write_bytes(b"theirs")
        assert content(tmp_path) == {"x": b"theirs"}

    def test_of_many_threads_one_wins(self, tmp_path: Path) -> None:
        won: list[int] = []

        def save(i: int) -> None:
            try:
                save_file(tmp_path / "x", b"%d" % i)
            except TargetExistsError:
                return
            won.append(i)

        threads = [threading.Thread(target=save, args=(i,)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert content(tmp_path) == {"x": b"%d" % won[0]}

    def test_permissions_are_those_of_the_old_file(self, tmp_path: Path) -> None:
        old = os.umask(0o027)
        try:
            save_file(tmp_path / "x", b"1")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640
        (tmp_path / "x").chmod(0o604)
        save_file(tmp_path / "x", b"2", overwrite=True)
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o604

    def test_a_read_only_file_is_replaced_and_stays_read_only(
        self, tmp_path: Path
    ) -> None:
        save_file(tmp_path / "x", b"1")
        (tmp_path / "x").chmod(0o400)
        save_file(tmp_path / "x", b"2", overwrite=True)
        assert (tmp_path / "x").read_bytes() == b"2"
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o400

    def test_what_a_link_points_to_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        save_file(tmp_path / "d" / "x", b"1")
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("d/x")
        save_file(tmp_path / "a", b"2", overwrite=True)
        assert (tmp_path / "a").is_symlink()
        assert (tmp_path / "d" / "x").read_bytes() == b"2"
        (tmp_path / "new").symlink_to("d/y")
        save_file(tmp_path / "new", b"3")
        assert (tmp_path / "d" / "y").read_bytes() == b"3"
        assert names(tmp_path / "d") == ["x", "y"]

    def test_a_circle_of_links_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("a")
        with pytest.raises(TargetExistsError):
            save_file(tmp_path / "a", b"1")
        save_file(tmp_path / "a", b"1", overwrite=True)
        assert content(tmp_path) == {"a": b"1"}

    def test_a_directory_is_not_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "x").mkdir()
        with pytest.raises(TargetExistsError, match="is a directory"):
            save_file(tmp_path / "x", b"1", overwrite=True)
        with pytest.raises(TargetExistsError, match="is a directory"):
            save_file(tmp_path / "x" / ".." / "x" / ".", b"1", overwrite=True)

    def test_a_missing_directory_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match="mkdir") as error:
            save_file(tmp_path / "no" / "x", b"1")
        assert str(tmp_path / "no") in str(error.value)
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(MissingFileError):
            save_file(tmp_path / "file" / "x", b"1")

    def test_names_of_every_kind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ["a" * 255, "\u00e9", "a b", "-", ".x"]:
            save_file(type(tmp_path)(name), b"1")
            assert names(tmp_path) == [name]
            (tmp_path / name).unlink()

    def test_what_is_open_of_the_old_file_stays(self, tmp_path: Path) -> None:
        save_file(tmp_path / "x", b"old")
        with (tmp_path / "x").open("rb") as file:
            save_file(tmp_path / "x", b"new", overwrite=True)
            assert file.read() == b"old"


def test_without_hard_links_a_name_is_still_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(_atomic, "_RENAME", None)
    monkeypatch.setattr(os, "link", refused)
    save_file(tmp_path / "x", b"1")
    with (
        pytest.raises(TargetExistsError),
        new_file(tmp_path / "y", overwrite=False, durable=False),
    ):
        (tmp_path / "y").write_bytes(b"theirs")
    assert content(tmp_path) == {"x": b"1", "y": b"theirs"}


@both
class TestNewDirectory:
    @pytest.mark.parametrize("durable", [False, True])
    def test_a_directory_is_made_and_replaced(
        self, tmp_path: Path, *, durable: bool
    ) -> None:
        save_directory(tmp_path / "x", b"1", durable=durable)
        assert saved(tmp_path / "x", b"1")
        put_old = tmp_path / "x" / "n" / "old"
        put_old.write_bytes(b"")
        save_directory(tmp_path / "x", b"2", overwrite=True, durable=durable)
        assert saved(tmp_path / "x", b"2")
        assert names(tmp_path) == ["x"]

    def test_an_error_leaves_the_old_directory(self, tmp_path: Path) -> None:
        fail(new_directory, tmp_path / "x")
        assert names(tmp_path) == []
        save_directory(tmp_path / "x", b"1")
        fail(new_directory, tmp_path / "x")
        assert saved(tmp_path / "x", b"1")
        assert names(tmp_path) == ["x"]

    def test_an_empty_directory_is_filled(self, tmp_path: Path) -> None:
        (tmp_path / "x").mkdir(mode=0o700)
        save_directory(tmp_path / "x", b"1")
        assert saved(tmp_path / "x", b"1")
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o700

    def test_a_saved_tree_wants_overwrite(self, tmp_path: Path) -> None:
        save_directory(tmp_path / "x", b"1")
        with pytest.raises(TargetExistsError, match="overwrite=True"):
            save_directory(tmp_path / "x", b"2")
        assert saved(tmp_path / "x", b"1")

    def test_other_content_is_never_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "thesis.tex").write_bytes(b"")
        with pytest.raises(TargetExistsError, match=r"meta\.json"):
            save_directory(tmp_path / "x", b"1", overwrite=True)
        (tmp_path / "y").write_bytes(b"1")
        with pytest.raises(TargetExistsError, match="is a file"):
            save_directory(tmp_path / "y", b"1", overwrite=True)
        assert content(tmp_path) == {"x/thesis.tex": b"", "y": b"1"}

    def test_content_that_comes_meanwhile_is_not_replaced(self, tmp_path: Path) -> None:
        with pytest.raises(TargetExistsError, match=r"meta\.json"):
            meanwhile(tmp_path / "x", lambda: put_thesis(tmp_path / "x"))
        with pytest.raises(TargetExistsError, match="is a file"):
            meanwhile(tmp_path / "y", lambda: (tmp_path / "y").write_bytes(b"1"))
        assert content(tmp_path) == {"x/thesis.tex": b"", "y": b"1"}

    def test_a_tree_that_comes_meanwhile_is_replaced_if_asked(
        self, tmp_path: Path
    ) -> None:
        with new_directory(tmp_path / "x", overwrite=True, durable=False) as made:
            save_directory(tmp_path / "x", b"theirs")
            put(made, "meta.json", b"mine")
        assert content(tmp_path) == {"x/meta.json": b"mine"}

    def test_what_a_link_points_to_is_replaced(self, tmp_path: Path) -> None:
        save_directory(tmp_path / "x", b"1")
        (tmp_path / "l").symlink_to("x")
        save_directory(tmp_path / "l", b"2", overwrite=True)
        assert (tmp_path / "l").is_symlink()
        assert saved(tmp_path / "x", b"2")

    def test_links_in_the_old_directory_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "thesis.tex").write_bytes(b"")
        save_directory(tmp_path / "x", b"1")
        (tmp_path / "x" / "n" / "link").symlink_to(tmp_path / "other")
        (tmp_path / "x" / "file").symlink_to(tmp_path / "other" / "thesis.tex")
        save_directory(tmp_path / "x", b"2", overwrite=True, durable=True)
        assert saved(tmp_path / "x", b"2")
        assert names(tmp_path / "other") == ["thesis.tex"]

    def test_without_atomic_files_are_written_into_it(self, tmp_path: Path) -> None:
        with new_directory(
            tmp_path / "x", overwrite=False, durable=False, atomic=False
        ) as made:
            put(made, "meta.json", b"1")
            assert content(tmp_path) == {"x/meta.json": b"1"}
        options = {"durable": True, "atomic": False}
        with new_directory(tmp_path / "x", overwrite=True, **options) as made:
            put(made, "more", b"2")
        with pytest.raises(TargetExistsError):
            save_directory(tmp_path / "x", b"1", atomic=False)
        assert content(tmp_path) == {"x/meta.json": b"1", "x/more": b"2"}

    def test_a_missing_directory_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match="mkdir"):
            save_directory(tmp_path / "no" / "x", b"1")

    def test_many_writers_do_not_hinder_each_other(self, tmp_path: Path) -> None:
        """The old content of one looks like what a killed one has left."""
        path = tmp_path / "x"
        save_directory(path, b"0")
        failed: list[Exception] = []

        def save(i: int) -> None:
            try:
                for _ in range(5):
                    with suppress(FileNotFoundError):
                        os.utime(path, (1e9, 1e9))
                    save_directory(path, b"%d" % i, overwrite=True)
            except OSError as error:
                failed.append(error)

        threads = [threading.Thread(target=save, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        check_one_save(path, 0)
        assert names(tmp_path) == ["x"]

    def test_readers_see_one_or_the_other(self, tmp_path: Path) -> None:
        """What is read through one open directory is of one save, or gone."""
        path = tmp_path / "x"
        save_directory(path, b"0")
        seen: set[bytes] = set()
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                try:
                    top = os.open(path, os.O_RDONLY)
                except FileNotFoundError:  # between two renames, without exchange
                    continue
                found = set()
                for i in range(FILES):
                    try:
                        file = os.open(f"n/{i}", os.O_RDONLY, dir_fd=top)
                    except FileNotFoundError:
                        continue
                    found.add(os.read(file, 10))
                    os.close(file)
                os.close(top)
                assert len(found) <= 1
                seen.update(found)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for i in range(20):
                save_directory(path, b"%d" % i, overwrite=True)
        finally:
            done.set()
            reader.join()
        assert len(seen) > 1


def test_the_system_syncs_before_it_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file, every directory, the rename, and the directory of the name."""
    done: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        at = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        done.append(os.path.relpath(at, tmp_path).replace(mark, "NEW"))
        sync(descriptor)

    mark = ""
    monkeypatch.setattr(os, "fsync", noted)
    with new_directory(tmp_path / "x", overwrite=False, durable=True) as made:
        (mark,) = names(tmp_path)
        os.mkdir("n", dir_fd=made)
        put(made, "n/a", b"1")
        put(made, "meta.json", b"1")
    assert done == ["NEW/n/a", "NEW/n", "NEW/meta.json", "NEW", "."]
    done.clear()
    with new_file(tmp_path / "y", overwrite=False, durable=True):
        mark = min(names(tmp_path))
    assert done == ["NEW", "."]


class TestRemoveTree:
    def test_trees_deeper_than_there_are_descriptors(self, tmp_path: Path) -> None:
        (tmp_path / "x").mkdir()
        here = os.open(tmp_path / "x", os.O_RDONLY)
        for _ in range(100):
            put(here, "file", b"")
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)

        def remove() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            parent = os.open(tmp_path, os.O_RDONLY)
            _atomic.sync_tree(parent)
            remove_tree(parent, "x")
            remove_tree(parent, "x")

        children.run(remove)
        assert names(tmp_path) == []

    def test_files_and_links_go_themselves(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "l").symlink_to("d")
        (tmp_path / "f").write_bytes(b"")
        parent = os.open(tmp_path, os.O_RDONLY)
        remove_tree(parent, "l")
        remove_tree(parent, "f")
        assert names(tmp_path) == ["d"]
        remove_tree(parent, "d")
        os.close(parent)
        assert names(tmp_path) == []


class TestKilled:
    """A process that is killed at any moment leaves the old or the new data."""

    @both
    def test_directories(self, tmp_path: Path) -> None:
        self.loop(tmp_path, save_directory, rounds=20)

    @both
    def test_files(self, tmp_path: Path) -> None:
        self.loop(tmp_path, save_whole_file, rounds=20)

    @pytest.mark.slow
    @both
    @pytest.mark.parametrize("durable", [False, True])
    def test_directories_long(self, tmp_path: Path, *, durable: bool) -> None:
        self.loop(tmp_path, save_directory, rounds=1000, durable=durable)

    @pytest.mark.slow
    @both
    @pytest.mark.parametrize("durable", [False, True])
    def test_files_long(self, tmp_path: Path, *, durable: bool) -> None:
        self.loop(tmp_path, save_whole_file, rounds=1000, durable=durable)

    def loop(
        self, tmp_path: Path, save: Callable[..., None], rounds: int, **options: Any
    ) -> None:
        rng = random.Random(0)  # noqa: S311 - no secret
        path = tmp_path / "x"
        save(path, b"0")
        newest = 0
        for _ in range(rounds):
            first = newest

            def forever(first: int = first) -> None:
                _atomic._MOMENT = 0.0
                for i in range(first + 1, first + 10**6):
                    save(path, b"%d" % i, overwrite=True, **options)

            pid = children.start(forever)
            time.sleep(rng.uniform(0.0, 0.03))
            os.kill(pid, signal.SIGKILL)
            assert children.end(pid) == -signal.SIGKILL
            newest = check_one_save(path, newest)
        left = names(tmp_path)
        # Each child removed what the one before had left.
        assert len(left) <= 3, left


def save_whole_file(path: Path, data: bytes, **options: Any) -> None:
    save_file(path, b",".join([data] * 50_000), **options)


def check_one_save(path: Path, newest: int) -> int:
    """Check that all files are of one save, not older than `newest`; return it."""
    if not path.exists():
        # Only without exchange: killed between two renames. Both are there.
        assert _atomic._RENAME is None
        (kept,) = path.parent.glob(".tdtmp-old-*")
        kept.rename(path)
    if path.is_dir():
        data = (path / "meta.json").read_bytes()
        assert saved(path, data)
    else:
        data = path.read_bytes().split(b",")[0]
        assert path.read_bytes() == b",".join([data] * 50_000)
    assert int(data) >= newest
    return int(data)


class TestLeftBehind:
    @pytest.mark.parametrize("save", [save_file, save_directory])
    def test_the_next_save_removes_it(
        self, tmp_path: Path, save: Callable[..., None]
    ) -> None:
        self.kill(tmp_path)
        (left,) = names(tmp_path)
        os.utime(tmp_path / left, (1e9, 1e9))
        save(tmp_path / "x", b"1")
        assert names(tmp_path) == ["x"]

    def test_a_child_that_was_forked_meanwhile_holds_nothing_up(
        self, tmp_path: Path
    ) -> None:
        with new_directory(tmp_path / "x", overwrite=True, durable=False) as made:
            put(made, "meta.json", b"1")
            pid = children.start(lambda: time.sleep(100))
        try:
            began = time.monotonic()
            save_directory(tmp_path / "x", b"2", overwrite=True)
            assert time.monotonic() - began < _atomic._PATIENCE / 2
            assert names(tmp_path) == ["x"]
        finally:
            os.kill(pid, signal.SIGKILL)
            children.end(pid)

    def test_what_is_young_or_of_other_targets_stays(self, tmp_path: Path) -> None:
        self.kill(tmp_path)
        (left,) = names(tmp_path)
        save_file(tmp_path / "x", b"1")
        assert names(tmp_path) == [left, "x"]
        os.utime(tmp_path / left, (1e9, 1e9))
        save_file(tmp_path / "y", b"1")
        assert names(tmp_path) == [left, "x", "y"]

    def test_what_is_in_use_stays(self, tmp_path: Path) -> None:
        with new_directory(tmp_path / "x", overwrite=True, durable=False) as made:
            put(made, "meta.json", b"first")
            (left,) = names(tmp_path)
            os.utime(tmp_path / left, (1e9, 1e9))
            save_directory(tmp_path / "x", b"second")
        assert content(tmp_path) == {"x/meta.json": b"first"}

    def test_a_planted_link_is_not_followed(self, tmp_path: Path) -> None:
        with new_file(tmp_path / "x", overwrite=False, durable=False):
            (mark,) = names(tmp_path)
        (tmp_path / "theirs").write_bytes(b"theirs")
        os.utime(tmp_path / "theirs", (1e9, 1e9))
        (tmp_path / mark).symlink_to("theirs")
        save_file(tmp_path / "x", b"1", overwrite=True)
        assert (tmp_path / "theirs").read_bytes() == b"theirs"
        assert (tmp_path / "x").read_bytes() == b"1"

    def test_an_unfinished_file_that_was_moved_is_not_taken(
        self, tmp_path: Path
    ) -> None:
        def move() -> None:
            (mark,) = names(tmp_path)
            (tmp_path / mark).rename(tmp_path / "moved")
            put_thesis(tmp_path / mark)

        with pytest.raises(OSError, match="moved or replaced by somebody else"):
            meanwhile(tmp_path / "x", move)
        (mark, _) = names(tmp_path)
        assert content(tmp_path) == {f"{mark}/thesis.tex": b""}

    def kill(self, tmp_path: Path) -> None:
        def die() -> None:
            with new_directory(tmp_path / "x", overwrite=True, durable=False) as made:
                put(made, "file", b"1")
                os.kill(os.getpid(), signal.SIGKILL)

        assert children.end(children.start(die)) == -signal.SIGKILL


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_the_error_of_the_system(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            save_file(tmp_path / "x", b"1")
        with pytest.raises(PermissionError):
            save_directory(tmp_path / "x", b"1")
    finally:
        tmp_path.chmod(0o700)


@both
def test_threads_replace_one_directory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_directory(path, b"0", overwrite=True)

    def replace(_: int) -> None:
        for _ in range(50):
            save_directory(path, b"1", overwrite=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(replace, range(4)))
    assert names(tmp_path) == ["x"]


def test_a_directory_that_is_replaced_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    save_directory(path, b"0", overwrite=True)
    look = _atomic._is_empty

    def replaced(directory: int) -> bool:
        monkeypatch.setattr(_atomic, "_is_empty", look)
        path.rename(tmp_path / "old")
        (tmp_path / "old" / "meta.json").unlink()
        (tmp_path / "old" / "left").touch()
        save_directory(path, b"1", overwrite=True)
        return look(directory)

    monkeypatch.setattr(_atomic, "_is_empty", replaced)
    save_directory(path, b"2", overwrite=True)

    assert b"2" in content(path).values()
