"""The one object that writes: a directory that is filled bit by bit.

While a tree is built, its directory has the files of the tensors in full size, with
holes where nothing was written, and a directory ``%tdfunc-builder`` instead of the
root's ``meta.json``. In it are ``about.json``, which says what is built, and the log of
every writer, a line of JSON for each flush:

======  ========================================================================
at      when, in nanoseconds since 1970: events of all logs go by it
done    spans of rows that are written, ``[first, behind the last]`` by position
open    spans that were done, and are being written again
values  ``[path, spans, values]`` of entries that have a value for every row
======  ========================================================================

A line that was not written to its end is no event. ``meta.json`` of the root comes
last of all, by a rename.
"""

from __future__ import annotations

import os
import stat
import time
import weakref
from collections import OrderedDict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from math import prod
from pathlib import Path as FilePath
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch

from tdfunc._core.batch import as_size
from tdfunc._core.build import Draft
from tdfunc._core.leaf import check_own
from tdfunc._core.node import Node, make
from tdfunc._core.schema import ROWS
from tdfunc._ops.index import as_plan
from tdfunc.errors import (
    FileFormatError,
    FormatLimitError,
    InvalidLeafError,
    MissingFileError,
    OptionError,
    StructureError,
    TargetExistsError,
    show_path,
)
from tdfunc.io._atomic import named_after, new_directory, remove_tree, sync_tree
from tdfunc.io._files import as_file, reopened
from tdfunc.io._fitting import fitted, kind_of
from tdfunc.io._folder import BUILDING, META, MOST_META, Where
from tdfunc.io._folder_write import files_of
from tdfunc.io._layout import Array, Level, Rows, Static, iter_levels, levels_of
from tdfunc.io._map import as_buffer
from tdfunc.io._spans import (
    Spans,
    as_ranges,
    joined,
    minus,
    overlap,
    rising,
    span,
    spans_at,
)
from tdfunc.io._system import BELOW, DIRECTORY, NEW, NO_LINK, READ, lock, unlock
from tdfunc.io._values import dumps, from_json, loads, to_json
from tdfunc.io._walk import Walk

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from tdfunc.io._layout import Entry
    from tdfunc.typing import FileName, Index, Path, Size

__all__ = ["Builder", "memmap_like"]

_ABOUT = "about.json"
_LOG = ".log"
_VERSION = 1
# Files that are open at a time; a tree may have more than there are descriptors.
_MOST_OPEN = 64
# Ranges that an error shows.
_SHOWN = 5


def memmap_like(
    like: Node,
    path: FileName,
    *,
    batch_size: Size | None = None,
    overwrite: bool = False,
    resume: bool = False,
    durable: bool = False,
) -> Builder:
    """Make a directory for a tree that is written bit by bit; return what writes it.

    All files have their full size at once, and take no room before something is
    written to them: a tree may be larger than memory, and larger than what is free, in
    which case a write fails at the end of the disk. Nothing asks how much is free.

    The directory is no saved tree before `Builder.finish`: `load` refuses it. Several
    processes and threads may write to it at once, each with a builder of its own, or
    threads with one.

    Args:
        like: what the tree is like: keys, dtypes and shapes behind the batch, record
            classes, static values and unbatched tensors. Its tensors are not read, and
            may be on the device "meta". Lazy stacks and jagged tensors are refused.
        path: the directory.
        batch_size: that of the whole tree, instead of `like`'s.
        overwrite: begin anew; a tree that was saved there is replaced now, with one
            rename.
        resume: go on with what is there, which was made for the same tree; make it if
            there is nothing.
        durable: have all that was flushed on the disk, so that it survives a loss of
            power.

    Raises:
        TargetExistsError: something is there, and neither `overwrite` nor `resume`; or
            it is finished.
        StructureError: what is there was made for another tree; all differences are
            listed.
        FormatLimitError: files can not hold an entry.
        PickleRefusedError: a static value has no form but a pickle.
        InvalidLeafError: `like` is no tree, or a leaf has no elements.
        OptionError: both `overwrite` and `resume`, or a batch size without dims.
        MissingFileError: there is no directory to make it in.
        OSError: the system refuses.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> from tempfile import TemporaryDirectory
        >>> one = tdfunc.TensorDict(x=torch.zeros(3), label=torch.tensor(0))
        >>> with TemporaryDirectory() as folder:
        ...     with tdfunc.memmap_like(one, f"{folder}/d", batch_size=[4]) as builder:
        ...         builder.write(0, one)
        ...         builder.write(slice(1, 4), one.expand(3))
        ...         td = builder.finish()
        >>> td
        TensorDict(batch_size=[4], fields={label: i64[], x: f32[3]})
    """
    if overwrite and resume:
        raise OptionError(
            "a builder begins anew or goes on",
            expected="one of overwrite=True and resume=True",
            got="both",
        )
    file = as_file(path)
    plan = _Plan(like, batch_size)
    with named_after(file):
        if resume:
            with suppress(MissingFileError):
                return _resumed(plan, file, durable=durable)
            # Another process may do the same at this moment.
            with suppress(TargetExistsError):
                _create(plan, file, overwrite=False, durable=durable)
        else:
            _create(plan, file, overwrite=overwrite, durable=durable)
        return _resumed(plan, file, durable=durable)


class Builder:
    """Writes a directory bit by bit; a context manager.

    `memmap_like` makes it. It is the only object of the library that changes: `write`
    writes rows, `flush` notes that they are there, `missing` says which are not, and
    `finish` makes a saved tree of the directory. What was not finished is kept when it
    is closed, or when its process dies: ``memmap_like(..., resume=True)`` goes on.
    Threads may share one. Other processes have their own.

    Attributes:
        path: the directory.
        batch_size: the batch size of the whole tree.

    Examples:
        >>> import torch
        >>> import tdfunc
        >>> from tempfile import TemporaryDirectory
        >>> td = tdfunc.TensorDict({"x": torch.arange(6)}, 6)
        >>> with TemporaryDirectory() as folder:
        ...     builder = tdfunc.memmap_like(td, f"{folder}/d")
        ...     builder.write([0, 1, 4], td[[0, 1, 4]])
        ...     builder.close()  # or the process was killed after a flush
        ...     builder = tdfunc.memmap_like(td, f"{folder}/d", resume=True)
        ...     missing = builder.missing()
        ...     for rows in missing:
        ...         builder.write(rows, td[list(rows)])
        ...     builder.finish().equal(td), missing
        (True, [range(2, 4), range(5, 6)])
    """

    def __init__(self, plan: _Plan, path: FilePath, root: int, durable: bool) -> None:  # noqa: FBT001
        self.path = path
        self.batch_size = torch.Size(plan.level.batch_size)
        self._plan = plan
        self._durable = durable
        self._lock = Lock()
        self._stack = ExitStack()
        # At the latest when nobody has it any more; what was not flushed is lost then.
        weakref.finalize(self, self._stack.close).atexit = False
        self._stack.callback(os.close, root)
        self._root = root
        self._walk = self._stack.enter_context(Walk(root, str(path)))
        self._files = _Files(self._walk)
        self._stack.callback(self._files.close)
        self._record = os.open(BUILDING, BELOW, dir_fd=root)
        self._stack.callback(os.close, self._record)
        self._closed = False
        # Spans that are in a log, and what this writer wrote since the last flush.
        self._flushed = _done(_read_logs(self._record, str(path)))
        self._fresh: list[Spans] = []
        self._values: list[list[Any]] = []
        self._begin_log()

    def _begin_log(self) -> None:
        self._pid = os.getpid()
        self._log = os.open(f"{token_hex(16)}{_LOG}", NEW, 0o666, dir_fd=self._record)
        self._log_size = 0
        self._last = 0
        self._stack.callback(os.close, self._log)

    def write(self, index: Index, td: Node) -> None:
        """Write some rows.

        All is checked before the first byte is written. If the writing itself fails,
        because the disk is full, the rows do not count as written, whatever they were.

        Args:
            index: which rows: an int, a slice, a range, a list or tensor of ints, a
                mask, or a tuple of ints and slices for several batch dims, with at most
                one of the others and then no ints. Of rows that are there twice the
                last stays.
            td: the rows, with the batch size that ``whole[index]`` has, and all
                entries: dtypes and shapes are not converted, static values and
                unbatched tensors are those of `memmap_like`'s tree.

        Raises:
            TreeIndexError: the index is of another kind, or out of range.
            BatchSizeError: `td` has another batch size than the rows.
            StructureError: entries are missing, extra, or of other dtypes, shapes or
                values; all of them are listed.
            InvalidLeafError: `td` is no tree, or a leaf has no elements.
            PickleRefusedError: a value of a row has no form but a pickle.
            OptionError: the builder is closed, or the tree is finished.
            OSError: the system refuses.
        """
        self._check_open()
        size, runs = self._plan.rows_at(index)
        part = levels_of(_as_tree(td))
        fit = fitted(
            self._plan.level,
            part,
            size,
            fix="td.with_batch_size([...]), or another index",
        )
        spans = runs.tolist()
        values = [
            [list(path), spans, to_json(rows.values, path, allow_pickle=False)]
            for path, _, rows in fit.rows
        ]
        if not len(runs):
            return
        with named_after(self.path), self._lock:
            self._check_open()
            self._check_unfinished()
            if overlap(self._flushed, runs):
                # As long as these are written again they are neither old nor new.
                self._note({"open": spans})
                self._flushed = minus(self._flushed, runs)
            try:
                for _, whole, rows in fit.arrays:
                    self._write(whole, rows, spans)
            except BaseException:
                self._fresh = [minus(joined(self._fresh), runs)]
                raise
            self._fresh.append(runs)
            self._values += values

    def _write(self, whole: Array, rows: Array, spans: list[list[int]]) -> None:
        where = self._plan.places.get(id(whole))
        if where is None or rows.tensor is None:  # there are no elements
            return
        buffer = as_buffer(rows.tensor)
        unit = whole.nbytes // prod(self.batch_size)
        file = self._files.opened(where)
        at = 0
        for start, stop in spans:
            reach = at + (stop - start) * unit
            _write_at(file, buffer[at:reach], start * unit)
            at = reach

    def flush(self) -> None:
        """Note all that was written so far as done.

        What was noted is there when the process is killed; with ``durable=True`` also
        after a loss of power.

        Raises:
            OptionError: the builder is closed, or the tree is finished.
            OSError: the system refuses.
        """
        with named_after(self.path), self._lock:
            self._check_open()
            self._check_unfinished()
            self._flush()

    def _flush(self) -> None:
        if not self._fresh:
            return
        if self._durable:
            self._files.sync()
        done = joined(self._fresh)
        self._note({"done": done.tolist(), "values": self._values})
        self._flushed = joined([self._flushed, done])
        self._fresh, self._values = [], []

    def _note(self, event: dict[str, Any]) -> None:
        """Write a line of the log, whole or not at all."""
        # In order also when the clock is set back.
        self._last = max(time.time_ns(), self._last + 1)
        raw = dumps({"at": self._last, **event}) + b"\n"
        os.ftruncate(self._log, self._log_size)
        _write_at(self._log, memoryview(raw), self._log_size)
        if self._durable:
            os.fsync(self._log)
        self._log_size += len(raw)

    def done(self) -> list[range]:
        """Return the rows of the first batch dim of which all is written.

        By this builder, and by others as of their last flush.

        Raises:
            OptionError: the builder is closed, or the tree is finished.
            FileFormatError: a log is broken.
        """
        rows = span(0, self.batch_size[0])
        return as_ranges(minus(rows, self._missing()))

    def missing(self) -> list[range]:
        """Return the rows of the first batch dim of which something is not written.

        By this builder, and by others as of their last flush.

        Raises:
            OptionError: the builder is closed, or the tree is finished.
            FileFormatError: a log is broken.
        """
        return as_ranges(self._missing())

    def _missing(self) -> Spans:
        with named_after(self.path), self._lock:
            self._check_open()
            self._check_unfinished()
            events = _read_logs(self._record, str(self.path))
            return self._holes(joined([_done(events), *self._fresh]))

    def _holes(self, done: Spans) -> Spans:
        """Return the rows of the first dim that are not wholly within spans."""
        count = prod(self.batch_size)
        holes = minus(span(0, count), done)
        if not len(holes):
            return holes
        each = count // self.batch_size[0]
        first, last = holes[:, 0] // each, -(-holes[:, 1] // each)
        return joined([np.stack([first, last], axis=1)])

    def finish(self, *, partial: bool = False) -> Any:
        """Make a saved tree of the directory, and return it, mapped as `load` does.

        The builder is closed then. Others of the same directory can write no more.

        Args:
            partial: finish although rows are missing: elements of these are zero, and
                values None.

        Raises:
            OptionError: rows are missing, or the builder is closed, or the tree is
                finished.
            FormatLimitError: the values of rows are too many for a file.
            FileFormatError: a log is broken.
            OSError: the system refuses.
        """
        with named_after(self.path), self._lock, _locked(self._record):
            self._check_open()
            self._check_unfinished()
            self._flush()
            events = _read_logs(self._record, str(self.path))
            holes = self._holes(_done(events))
            if len(holes) and not partial:
                found = as_ranges(holes)
                shown = ", ".join(
                    [f"{one.start}-{one.stop - 1}" for one in found[:_SHOWN]]
                )
                more = len(found) - _SHOWN
                raise OptionError(
                    f"{self.path}: rows are missing",
                    expected=f"all {self.batch_size[0]} rows, flushed by whoever wrote "
                    "them",
                    got="no rows " + shown + (f" and {more} more" if more > 0 else ""),
                    fix="write builder.missing(), or builder.finish(partial=True)",
                )
            self._commit(_put_values(self._plan, events, str(self.path)))
        self.close()
        return reopened(self._plan.like, self.path, "memmap")

    def _commit(self, level: Level) -> None:
        """Write all that describes the tree, that of the root last."""
        found = files_of(level, allow_pickle=False)
        files = [(where, data) for where, data in found if isinstance(data, bytes)]
        last = files.pop()[1]
        for where, data in files:
            _put(self._walk.enter(where[:-1], make=True), where[-1], data)
        _put(self._record, META, last)
        if self._durable:
            sync_tree(self._root)
        os.rename(META, META, src_dir_fd=self._record, dst_dir_fd=self._root)
        if self._durable:
            os.fsync(self._root)
        remove_tree(self._root, BUILDING)

    def close(self) -> None:
        """Flush, and close the files; without effect on a closed builder.

        What is not finished can be resumed.

        Raises:
            OSError: the system refuses to flush.
        """
        with named_after(self.path), self._lock:
            if self._closed:
                return
            try:
                if not self._is_finished():
                    self._after_fork()
                    self._flush()
            finally:
                self._close()

    def _close(self) -> None:
        self._closed = True
        self._stack.close()

    def _check_open(self) -> None:
        if self._closed:
            raise OptionError(
                "this builder is closed",
                fix="memmap_like(like, path, resume=True) goes on",
            )

    def _is_finished(self) -> bool:
        return os.fstat(self._log).st_nlink == 0

    def _check_unfinished(self) -> None:
        if self._is_finished():
            raise OptionError(
                f"{self.path}: another builder has finished this tree, or begun anew",
                fix="load(path)",
            )
        self._after_fork()

    def _after_fork(self) -> None:
        """Leave to the parent what was written before a fork, and its log."""
        if self._pid != os.getpid():
            self._fresh, self._values = [], []
            self._begin_log()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise OptionError(
            "a builder does not travel to another process",
            fix="memmap_like(like, path, resume=True) there",
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return (
            f"Builder({str(self.path)!r}, batch_size={list(self.batch_size)}, {state})"
        )


# What is built


class _Plan:
    """What a builder builds.

    Attributes:
        like: a tree of the same classes.
        level: the whole tree: tensors without memory, None for the values of rows.
        files: its tensors and where they are, in the order in which they are made.
        places: where a tensor of `level` is, by its identity.
        about: every entry in a few words, to be compared with what is there.
    """

    def __init__(self, like: Node, batch_size: Size | None) -> None:
        like = _as_tree(like)
        dims = len(like.batch_size)
        size = like.batch_size if batch_size is None else as_size(batch_size)
        if not size:
            raise OptionError(
                "a builder writes rows, and this tree has none",
                expected="one batch dim or more",
                fix="batch_size=[1000]",
            )
        self.like = like
        self.level = _whole(levels_of(_hollow(like)), dims, tuple(size))
        found = files_of(self.level, allow_pickle=False)
        self.files = [(where, data) for where, data in found if isinstance(data, Array)]
        self.places = {id(data): where for where, data in self.files}
        self.about = _about(self.level)
        part = Draft().close(Node._plain)
        schema: Any = part.kid
        self._empty = make(schema, part.leaves, part.statics, size, None)

    def rows_at(self, index: Any) -> tuple[tuple[int, ...], Spans]:
        """Return the batch size at an index, and the rows there, one after the other.

        Raises:
            TreeIndexError: rows can not be addressed so.
        """
        size = self._empty.batch_size
        if type(index) is int and -size[0] <= index < size[0]:  # the hot path
            at, each = index % size[0], prod(size[1:])
            return tuple(size[1:]), span(at * each, at * each + each)
        if isinstance(index, range):
            index = rising(index, size[0])
        return spans_at(as_plan(self._empty, index), size, index)


def _as_tree(td: Any) -> Any:
    check_own(td, ())
    if not isinstance(td, Node):
        raise InvalidLeafError(
            "only trees are written",
            expected="a tree",
            got=type(td).__name__,
            fix="TensorDict(mapping)",
        )
    return td


def _hollow(like: Any) -> Any:
    """Return a tree of the same shapes that has no memory, and no tensor twice.

    Raises:
        FormatLimitError: there are lazy stacks or jagged tensors in it.
    """
    schema, leaves, values = like._schema, list(like._leaves), like._statics.values
    refused = [f"{show_path(path)} is a lazy stack" for _, path, _ in schema.lazies()]
    for path, kid, lo, slo, _ in schema.walk() if not refused else ():
        if not isinstance(kid, int) or not (kid >= 0 or kid <= ROWS):
            continue
        leaf = leaves[lo]
        if isinstance(leaf, torch.Tensor) and leaf.is_nested:
            refused.append(f"{show_path(path)} is a jagged tensor")
            continue
        dense = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        if not dense or leaf.is_quantized:
            continue  # no file has it, as is found soon
        # Every dtype has this, and torch warns of none.
        raw = torch.empty(leaf.dtype.itemsize, dtype=torch.uint8)
        one = raw.view(leaf.dtype).reshape(())
        if kid <= ROWS:
            one = torch.tensor((*values[slo].codes, 0)[0])
        leaves[lo] = one.expand(leaf.shape)
    if refused:
        raise FormatLimitError(
            "a file of full size can be made of dense tensors only",
            got="; ".join(refused),
            fix="densify() of a lazy stack, to_padded_tensor() of a jagged one",
        )
    return make(schema, tuple(leaves), like._statics, like.batch_size, like.names)


def _whole(level: Level, dims: int, size: tuple[int, ...]) -> Level:
    """Return a level with another batch size in place of the first dims."""
    made: dict[int, Level] = {}
    for path, here in reversed(list(iter_levels(level))):
        names = here.names
        if names is not None and dims != len(size):
            names = (*[None] * len(size), *names[dims:])
            names = names if any(names) else None
        entries: dict[str, Entry] = {}
        for key, entry in here.entries.items():
            if isinstance(entry, Level):
                entries[key] = made.pop(id(entry))
            elif isinstance(entry, Array) and not entry.unbatched:
                entries[key] = Array(entry.dtype, (*size, *entry.shape[dims:]))
            elif isinstance(entry, Rows):
                shape = (*size, *entry.shape[dims:])
                _check_count((*path, key), shape)
                entries[key] = Rows(shape, [None] * prod(shape))
            else:
                entries[key] = entry
        batch_size = (*size, *here.batch_size[dims:])
        made[id(here)] = replace(
            here, batch_size=batch_size, names=names, entries=entries
        )
    return made[id(level)]


def _check_count(path: Path, shape: tuple[int, ...]) -> None:
    most = MOST_META // len(b"null, ")
    if prod(shape) > most:
        raise FormatLimitError(
            "these are too many values for one file of JSON",
            path=path,
            expected=f"at most {most} values, or numbers in a tensor",
            got=f"{prod(shape)} values",
        )


def _about(level: Level) -> dict[str, str]:
    """Return every entry in a few words."""
    about: dict[str, str] = {}
    for path, here in iter_levels(level):
        names = "" if here.names is None else f" {list(here.names)}"
        about[show_path(path)] = f"a node {list(here.batch_size)}{names}"
        for key, entry in here.entries.items():
            if isinstance(entry, Level):
                continue
            text = kind_of(entry)
            if isinstance(entry, Static):
                raw = dumps(to_json(entry.value, (*path, key), allow_pickle=False))
                text += f" {_digest(raw)}"
            elif isinstance(entry, Array) and entry.tensor is not None:
                text += f" {_digest(as_buffer(entry.tensor))}"
            about[show_path((*path, key))] = text
    return about


def _digest(raw: bytes | memoryview) -> str:
    return blake2b(raw, digest_size=8).hexdigest()


def _put_values(plan: _Plan, events: list[dict[str, Any]], name: str) -> Level:
    """Return the level of a plan with the values that writers logged."""
    found: dict[Path, Rows] = {}
    made: dict[int, Level] = {}
    for path, here in reversed(list(iter_levels(plan.level))):
        entries = dict(here.entries)
        for key, entry in here.entries.items():
            if isinstance(entry, Level):
                entries[key] = made.pop(id(entry))
            elif isinstance(entry, Rows):
                rows = replace(entry, values=list(entry.values))
                entries[key] = found[(*path, key)] = rows
        made[id(here)] = replace(here, entries=entries)
    count = prod(plan.level.batch_size)
    for event in events:
        for path, spans, data in event.get("values", ()):
            values = from_json(data, allow_pickle=False, name=name)
            rows = found.get(tuple(path))
            total = sum([stop - start for start, stop in spans])
            each = len(rows.values) // count if rows is not None else 0
            last = max([stop for _, stop in spans], default=0)
            listed = isinstance(values, list) and last <= count
            if not listed or rows is None or len(values) != total * each:
                raise FileFormatError(f"{name}: a log has values of no rows")
            at = 0
            for start, stop in spans:
                reach = at + (stop - start) * each
                rows.values[start * each : stop * each] = values[at:reach]
                at = reach
    return made[id(plan.level)]


# Making and opening the directory


def _create(plan: _Plan, file: FilePath, *, overwrite: bool, durable: bool) -> None:
    """Make the directory, whole or not at all."""
    _clear_unfinished(file, overwrite=overwrite)
    with (
        new_directory(file, overwrite=overwrite, durable=durable) as root,
        Walk(root, str(file)) as walk,
    ):
        for where, array in plan.files:
            above = walk.enter(where[:-1], make=True)
            try:
                made = os.open(where[-1], NEW, 0o666, dir_fd=above)
            except FileExistsError as error:
                raise FormatLimitError(
                    f"{file}: there is a file of this name already",
                    expected="keys that this file system tells apart",
                    got="/".join(where),
                ) from error
            try:
                if array.tensor is not None:
                    _write_at(made, as_buffer(array.tensor), 0)
                os.ftruncate(made, array.nbytes)
            finally:
                os.close(made)
        os.mkdir(BUILDING, dir_fd=root)
        record = os.open(BUILDING, DIRECTORY, dir_fd=root)
        try:
            _put(record, _ABOUT, dumps([_VERSION, plan.about]))
        finally:
            os.close(record)


def _clear_unfinished(file: FilePath, *, overwrite: bool) -> None:
    """Remove what was not finished, if it may be; what was finished is kept."""
    try:
        names = {entry.name for entry in file.iterdir()}
    except OSError:
        return
    if META in names or BUILDING not in names:
        return
    if not overwrite:
        raise TargetExistsError(
            f"a tree is being built at {str(file)!r}",
            fix="resume=True goes on with it, overwrite=True begins anew",
        )
    target = FilePath(os.path.realpath(file))
    parent = os.open(target.parent, DIRECTORY)
    try:
        remove_tree(parent, target.name)
    finally:
        os.close(parent)


def _resumed(plan: _Plan, file: FilePath, *, durable: bool) -> Builder:
    """Open a directory that is being built.

    Raises:
        MissingFileError: there is none, or an empty one.
        TargetExistsError: it is finished, or something else.
    """
    try:
        root = os.open(file, DIRECTORY)
    except FileNotFoundError as error:
        raise MissingFileError(f"{file}: nothing is being built here") from error
    except NotADirectoryError as error:
        raise TargetExistsError(f"{str(file)!r} is no directory") from error
    with ExitStack() as stack:
        stack.callback(os.close, root)
        names = _names(root)
        if not names:
            raise MissingFileError(f"{file}: nothing is being built here")
        if META in names:
            raise TargetExistsError(
                f"the tree at {str(file)!r} is finished",
                fix="load(path); or overwrite=True, which begins anew",
            )
        if BUILDING not in names:
            raise TargetExistsError(
                f"the directory {str(file)!r} holds other files, and nothing is being "
                "built there",
                fix="another path, or remove the files first",
            )
        _check_about(plan, root, str(file))
        stack.pop_all()
    return Builder(plan, file, root, durable)


def _check_about(plan: _Plan, root: int, name: str) -> None:
    record = os.open(BUILDING, BELOW, dir_fd=root)
    try:
        raw = _content(record, _ABOUT)
    finally:
        os.close(record)
    match loads(raw, f"{name}/{BUILDING}/{_ABOUT}"):
        case [int() as version, dict() as about] if str(version) == str(_VERSION):
            pass
        case _:
            raise FileFormatError(
                f"{name}/{BUILDING}/{_ABOUT}: this is of no version that is known"
            )
    known: dict[str, Any] = about
    lines = [f"{path} is missing" for path in known if path not in plan.about]
    lines += [f"{path} is extra" for path in plan.about if path not in known]
    lines += [
        f"{path} is {text}, not {known[path]}"
        for path, text in plan.about.items()
        if path in known and known[path] != text
    ]
    if lines:
        raise StructureError(
            f"{name} is being built for another tree",
            expected="the same tree and batch size as at first",
            got="; ".join(lines),
            fix="overwrite=True begins anew",
        )


# Logs


def _read_logs(record: int, name: str) -> list[dict[str, Any]]:
    """Return the events of all logs, in order.

    Raises:
        FileFormatError: a line of one is none.
    """
    events: list[dict[str, Any]] = []
    for file in sorted(_names(record)):
        if not file.endswith(_LOG):
            continue
        shown = f"{name}/{BUILDING}/{file}"
        # What is behind the last end of a line was not written to its end.
        for line in _content(record, file).split(b"\n")[:-1]:
            event = loads(line, shown)
            if not _is_event(event):
                raise FileFormatError(f"{shown}: this is no log of a builder")
            events.append(event)
    return sorted(events, key=lambda event: event["at"])


def _is_event(event: Any) -> bool:
    match event:
        case {"at": int() as at} if at is not True:
            done, again = event.get("done", []), event.get("open", [])
            values = event.get("values", [])
        case _:
            return False
    if not (_are_spans(done) and _are_spans(again) and isinstance(values, list)):
        return False
    found = cast("list[Any]", values)
    return all(
        [
            isinstance(one, list)
            and len(cast("list[Any]", one)) == len(("path", "spans", "values"))
            and isinstance(one[0], list)
            and all([isinstance(key, str) for key in cast("list[Any]", one[0])])
            and _are_spans(one[1])
            for one in found
        ]
    )


def _are_spans(data: Any) -> bool:
    if not isinstance(data, list):
        return False
    for one in cast("list[Any]", data):
        match one:
            case [int() as start, int() as stop] if 0 <= start < stop < 1 << 63:
                if isinstance(start, bool) or isinstance(stop, bool):
                    return False
            case _:
                return False
    return True


def _done(events: list[dict[str, Any]]) -> Spans:
    """Return the rows that are written as of the last event."""
    done = span(0, 0)
    gathered = [done]
    for event in events:
        if "open" in event:
            done = minus(joined(gathered), np.array(event["open"], dtype=np.int64))
            gathered = [done]
        elif event.get("done"):
            gathered.append(np.array(event["done"], dtype=np.int64))
    return joined(gathered)


# Files


class _Files:
    """Open files of tensors, the last that were used."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._open: OrderedDict[Where, int] = OrderedDict()
        self._dirty: set[Where] = set()

    def opened(self, where: Where) -> int:
        """Return a file to write to; the next call may close it."""
        file = self._open.get(where)
        if file is None:
            above = self._walk.enter(where[:-1])
            file = os.open(where[-1], os.O_WRONLY | NO_LINK, dir_fd=above)
            self._open[where] = file
            if len(self._open) > _MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(where)
        self._dirty.add(where)
        return file

    def sync(self) -> None:
        """Have on the disk all that was written."""
        for where in sorted(self._dirty):
            os.fsync(self.opened(where))
        self._dirty.clear()

    def close(self) -> None:
        """Close all."""
        while self._open:
            os.close(self._open.popitem()[1])


def _write_at(file: int, data: memoryview, at: int) -> None:
    while len(data):
        done = os.pwrite(file, data, at)
        data, at = data[done:], at + done


def _put(directory: int, name: str, data: bytes) -> None:
    """Write a small file, over what a killed process left of it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK
    file = os.open(name, flags, 0o666, dir_fd=directory)
    try:
        _write_at(file, memoryview(data), 0)
    finally:
        os.close(file)


def _names(directory: int) -> set[str]:
    return set(os.listdir(directory))


def _content(directory: int, name: str) -> bytes:
    file = os.open(name, READ, dir_fd=directory)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FileFormatError(f"{name}: this is no regular file")
        return opened.read()


@contextmanager
def _locked(descriptor: int) -> Generator[None]:
    """Keep others of the same out, where the file system has locks."""
    with suppress(OSError):
        lock(descriptor, wait=True)
    try:
        yield
    finally:
        with suppress(OSError):
            unlock(descriptor)
