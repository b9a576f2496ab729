"""Any sequence of saves, loads, appends, conversions, writes and deaths, on one folder.

The model knows what each file holds as plain bytes of each leaf, and nothing of files.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, cast

import hypothesis.strategies as st
import torch
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import tdfunc
from tdfunc import TensorDict
from tdfunc.errors import FileFormatError, TargetExistsError
from tdfunc.io import _atomic
from tdfunc.io._files import detect
from tdfunc.testing import assert_valid
from tests.io import children

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Leaf = tuple[torch.dtype, tuple[int, ...], bytes]

# What each kind of tree has in a row, by path: dtype and shape, or a value.
KINDS: dict[str, dict[tuple[str, ...], Any]] = {
    "flat": {("x",): (torch.int64, (2,)), ("y",): (torch.bool, ())},
    "nested": {
        ("a/b",): (torch.bfloat16, (3,)),
        ("..", "x"): (torch.uint8, ()),
        ("..", "s"): "text",
        ("n", "m", "none"): (torch.float32, (0, 2)),
    },
    # The first is mapped, from two rows on.
    "large": {("big",): (torch.float64, (5000,)), ("c",): (torch.complex64, ())},
    "text": {("t",): str, ("n", "x"): (torch.int16, (2, 2))},
}
FORMATS: list[Any] = ["memmap", "archive", "consolidated", "safetensors"]
PLACES = ["one", "two.tdz", "three"]

# Every call by which a file or a directory changes.
CHANGES = ["mkdir", "link", "ftruncate", "write", "writev", "pwrite", "rename"]
CHANGES += ["replace", "unlink", "rmdir", "fchmod"]
MAKES = ["mkdir", "ftruncate", "write", "writev", "pwrite"]


@dataclass(frozen=True)
class Content:
    """What a file holds.

    Attributes:
        format: of the file.
        kind: which of the kinds of trees.
        rows: how many.
        leaves: the bytes of each leaf.
        values: the values of each row, where there are some.
    """

    format: str
    kind: str
    rows: int
    leaves: dict[tuple[str, ...], bytes]
    values: dict[tuple[str, ...], list[str]]

    def plain(self) -> dict[tuple[str, ...], Any]:
        """Return what a tree of this has at its paths."""
        found: dict[tuple[str, ...], Any] = dict(self.values)
        for path, what in KINDS[self.kind].items():
            if isinstance(what, tuple):
                dtype, shape = cast("tuple[torch.dtype, tuple[int, ...]]", what)
                found[path] = (dtype, (self.rows, *shape), self.leaves[path])
            elif what is not str:
                found[path] = what
        return found

    def tree(self) -> TensorDict:
        """Return a tree of this."""
        if not self.rows:  # an empty list is no values of rows, but a tensor
            return content(self.format, self.kind, 1, 0).tree()[:0]
        td = TensorDict({}, self.rows)
        for path, found in self.plain().items():
            td = td.set(path, tensor(*found) if isinstance(found, tuple) else found)
        return td

    def followed_by(self, more: Content) -> Content:
        """Return this with the rows of another one behind its own."""
        return replace(
            self,
            rows=self.rows + more.rows,
            leaves={key: raw + more.leaves[key] for key, raw in self.leaves.items()},
            values={key: one + more.values[key] for key, one in self.values.items()},
        )


def tensor(dtype: torch.dtype, shape: tuple[int, ...], raw: bytes) -> torch.Tensor:
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).view(shape)


def content(format: str, kind: str, rows: int, fill: int) -> Content:
    leaves: dict[tuple[str, ...], bytes] = {}
    values: dict[tuple[str, ...], list[str]] = {}
    for at, (path, what) in enumerate(KINDS[kind].items()):
        if isinstance(what, tuple):
            dtype, shape = cast("tuple[torch.dtype, tuple[int, ...]]", what)
            count = rows * torch.Size(shape).numel()
            # A bool is 0 or 1, whatever it is read by.
            number = (fill + at) % 2 if dtype == torch.bool else fill + at
            leaves[path] = bytes([number]) * (count * dtype.itemsize)
        elif what is str:
            values[path] = [f"{fill} {row}" for row in range(rows)]
    return Content(format, kind, rows, leaves, values)


def plain_of(td: Any) -> dict[tuple[str, ...], Any]:
    """Return what a tree has at its paths, tensors as bytes."""
    found: dict[tuple[str, ...], Any] = {}
    for key in td.keys(True):
        value, path = td[key], key if isinstance(key, tuple) else (key,)
        if isinstance(value, TensorDict):
            continue
        if isinstance(value, torch.Tensor):
            raw = value.clone().contiguous().view(-1)
            data = raw.view(torch.uint8).numpy().tobytes() if len(raw) else b""
            found[path] = (value.dtype, tuple(value.shape), data)
        else:
            found[path] = value if isinstance(value, str) else list(value)
    return found


class Sudden(BaseException):
    """Stands for the end of the process."""


@contextmanager
def failing(names: list[str], at: int, fail: Callable[[], None]) -> Generator[None]:
    """Let the call with this number that changes a file fail, and all behind it."""
    left = at

    def wrapped(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                fail()
            return real(*arguments, **options)

        return call

    def opened(*arguments: Any, **options: Any) -> Any:
        is_new = (arguments[1] if len(arguments) > 1 else 0) & os.O_CREAT
        return (making if is_new else real_open)(*arguments, **options)

    real_open, making = os.open, wrapped(os.open)
    real = {name: getattr(os, name) for name in names}
    real_rename = _atomic._RENAME
    try:
        for name in names:
            setattr(os, name, wrapped(real[name]))
        os.open = opened
        if "rename" in names and real_rename is not None:
            _atomic._RENAME = wrapped(real_rename)
        yield
    finally:
        os.open = real_open
        _atomic._RENAME = real_rename
        for name in names:
            setattr(os, name, real[name])


def dies() -> None:
    raise Sudden


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


places = st.sampled_from(PLACES)
contents = st.builds(
    content,
    st.sampled_from(FORMATS),
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 3),
    st.integers(0, 200),
)


class Files(RuleBasedStateMachine):
    """One folder, a few names in it, and some trees that were loaded from there."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(mkdtemp(prefix="tdfunc-machine-"))
        self.moment, _atomic._MOMENT = _atomic._MOMENT, 0.0
        self.files: dict[str, Content] = {}
        # Trees that were loaded, and what they hold.
        self.held: list[tuple[Any, dict[tuple[str, ...], Any]]] = []

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            _atomic._MOMENT = self.moment
            shutil.rmtree(self.folder)

    def load(self, name: str, **options: Any) -> Any:
        out = tdfunc.load(self.folder / name, **options)
        assert_valid(out)
        return out

    def check(self, name: str) -> None:
        out = self.load(name)
        assert plain_of(out) == self.files[name].plain()
        assert tuple(out.batch_size) == (self.files[name].rows,)

    # What is done, and what then holds

    @rule(name=places, new=contents, overwrite=st.booleans(), atomic=st.booleans())
    def save(self, name: str, new: Content, *, overwrite: bool, atomic: bool) -> None:
        options = {} if new.format != "memmap" or atomic else {"atomic": False}
        if self.may_replace(name, new.format, overwrite=overwrite):
            self.write(name, new, overwrite=overwrite, **options)
            self.files[name] = new
        else:
            try:
                self.write(name, new, overwrite=overwrite, **options)
            except TargetExistsError as error:
                assert str(self.folder / name) in str(error)  # noqa: PT017
            else:
                raise AssertionError("something was replaced")
        if name in self.files:
            self.check(name)

    def may_replace(self, name: str, format: str, *, overwrite: bool) -> bool:
        old = self.files.get(name)
        is_directory = old is not None and old.format == "memmap"
        return old is None or (overwrite and is_directory == (format == "memmap"))

    def write(self, name: str, new: Content, **options: Any) -> None:
        tdfunc.save(
            new.tree(),
            self.folder / name,
            format=new.format,  # pyright: ignore[reportArgumentType]
            **options,
        )

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def load_whole(self, data: st.DataObject) -> None:
        name = self.one_of(data)
        self.check(name)
        out = self.load(name)
        self.held = [*self.held, (out, plain_of(out))][-4:]

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def load_a_part(self, data: st.DataObject) -> None:
        name = self.one_of(data)
        plain = self.files[name].plain()
        path = data.draw(st.sampled_from(sorted(plain)))
        assert plain_of(self.load(name, keys=[path])) == {path: plain[path]}
        if len(path) > 1:
            below = {key[1:]: v for key, v in plain.items() if key[0] == path[0]}
            assert plain_of(self.load(name, subpath=path[0])) == below
        bare = self.load(name, device="meta")
        for key, found in plain.items():
            if isinstance(found, tuple):
                assert (bare[key].dtype, tuple(bare[key].shape)) == found[:2]
        assert name in tdfunc.io.show(self.folder / name)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def write_into_what_was_loaded(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        td, _ = self.held[at]
        for leaf in td.values(True, leaves_only=True):
            if isinstance(leaf, torch.Tensor) and leaf.numel():
                leaf.view(torch.uint8)[..., :1] ^= 1
        self.held[at] = (td, plain_of(td))
        for name in self.files:
            self.check(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), name=places, format=st.sampled_from(FORMATS))
    def save_what_was_loaded(self, data: st.DataObject, name: str, format: str) -> None:
        """Onto the very files that it is mapped from, too."""
        td, plain = data.draw(st.sampled_from(self.held))
        if not self.may_replace(name, format, overwrite=True):
            return
        kind = next(k for k, what in KINDS.items() if what.keys() == plain.keys())
        tdfunc.save(td, self.folder / name, format=format, overwrite=True)  # pyright: ignore[reportArgumentType]
        leaves = {key: v[2] for key, v in plain.items() if isinstance(v, tuple)}
        values = {key: v for key, v in plain.items() if isinstance(v, list)}
        rows = td.batch_size[0]
        self.files[name] = Content(format, kind, rows, leaves, values)
        self.check(name)

    @precondition(lambda self: self.files)
    @rule(data=st.data(), rows=st.integers(0, 3), fill=st.integers(0, 200))
    def append(self, data: st.DataObject, rows: int, fill: int) -> None:
        name = self.one_of(data)
        old = self.files[name]
        more = content("memmap", old.kind, rows, fill)
        try:
            tdfunc.append_memmap(self.folder / name, more.tree())
        except FileFormatError:
            assert old.format != "memmap"
        else:
            self.files[name] = old.followed_by(more)
        self.check(name)

    @precondition(lambda self: self.files)
    @rule(data=st.data(), to=places, overwrite=st.booleans())
    def convert(self, data: st.DataObject, to: str, *, overwrite: bool) -> None:
        """Pack a directory, or unpack an archive."""
        name = self.one_of(data)
        old = self.files[name]
        if old.format not in {"memmap", "archive"} or to == name:
            return
        packs = old.format == "memmap"
        function = tdfunc.pack_memmap if packs else tdfunc.unpack_memmap
        made = "archive" if packs else "memmap"
        may = self.may_replace(to, made, overwrite=overwrite)
        try:
            function(self.folder / name, self.folder / to, overwrite=overwrite)
        except TargetExistsError:
            assert not may
        else:
            assert may
            self.files[to] = replace(old, format=made)
        if to in self.files:
            self.check(to)

    # What goes wrong

    def job(self, data: st.DataObject) -> tuple[str, Content, Callable[[], object]]:
        """Draw something that changes a file: its name, what it then has, and it."""
        jobs = ["save", *(["append", "convert"] if self.files else [])]
        what = data.draw(st.sampled_from(jobs))
        if what == "append":
            name = self.one_of(data)
            old = self.files[name]
            if old.format == "memmap":
                more = content("memmap", old.kind, 2, data.draw(st.integers(0, 200)))
                return (
                    name,
                    old.followed_by(more),
                    lambda: tdfunc.append_memmap(self.folder / name, more.tree()),
                )
        if what == "convert":
            name, to = self.one_of(data), data.draw(places)
            old = self.files[name]
            packs = old.format == "memmap"
            made = "archive" if packs else "memmap"
            fits = packs or old.format == "archive"
            if fits and to != name and self.may_replace(to, made, overwrite=True):
                function = tdfunc.pack_memmap if packs else tdfunc.unpack_memmap
                return (
                    to,
                    replace(old, format=made),
                    lambda: function(
                        self.folder / name, self.folder / to, overwrite=True
                    ),
                )
        name = data.draw(places)
        is_like = [f for f in FORMATS if self.may_replace(name, f, overwrite=True)]
        new = replace(data.draw(contents), format=data.draw(st.sampled_from(is_like)))
        return name, new, lambda: self.write(name, new, overwrite=True)

    @rule(
        data=st.data(),
        at=st.integers(0, 40),
        how=st.sampled_from([dies, dies, is_killed]),
    )
    def is_ended_in_between(
        self, data: st.DataObject, at: int, how: Callable[[], None]
    ) -> None:
        """The old data or the new: in this process by an exception, else by kill -9."""
        name, new, work = self.job(data)

        def ended() -> None:
            with failing(CHANGES, at, how):
                work()

        whole = True
        if how is is_killed:
            status = children.end(children.start(ended))
            assert status in {0, -signal.SIGKILL}
            whole = status == 0
        else:
            try:
                ended()
            except Sudden:
                whole = False
        old = self.files.get(name)
        if whole or self.is_there(name, new):
            self.files[name] = new
        elif old is not None:
            self.check(name)
        else:
            assert not (self.folder / name).exists()

    def is_there(self, name: str, new: Content) -> bool:
        path = self.folder / name
        if not path.exists() or detect(path) != new.format:
            return False
        return plain_of(self.load(name)) == new.plain()

    @rule(data=st.data(), at=st.integers(0, 25))
    def finds_the_disk_full(self, data: st.DataObject, at: int) -> None:
        """The old data, nothing beside it, and the error says which file it was."""
        name, new, work = self.job(data)
        before = self.names()
        try:
            with failing(MAKES, at, is_full):
                work()
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
            assert error.filename == str(self.folder / name)  # noqa: PT017
            assert self.names() <= before
        else:
            self.files[name] = new
        if name in self.files:
            self.check(name)
        else:
            assert not (self.folder / name).exists()

    # What always holds

    @invariant()
    def loaded_trees_keep_what_they_hold(self) -> None:
        for td, plain in getattr(self, "held", []):
            assert plain_of(td) == plain

    @invariant()
    def nothing_else_is_there(self) -> None:
        if hasattr(self, "folder"):
            trees = {name for name in self.names() if not name.startswith(".tdtmp-")}
            assert trees == {*self.files}

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def one_of(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.files)))


TestFiles = Files.TestCase
