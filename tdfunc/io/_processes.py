"""Trees on their way to other processes.

`pickle` sends the bytes of every leaf. Between the processes of one machine there are
better ways, and `multiprocessing` (worker processes of a `DataLoader`, queues, pools,
`spawn`) takes them by itself:

* a leaf of a mapped file that this process has not written to travels as a reference
  to the file, and is mapped there again: both processes share the pages;
* a leaf in shared memory (`tdfunc.share`) stays in it, with one descriptor a tree;
* out of a worker of a `DataLoader`, large trees go through memory that is mapped
  where they arrive, and leave no descriptor open;
* everything else travels as bytes.

What is sent stays what it was: no tensor of the sender is moved into shared memory,
as torch does it for plain tensors.
"""

from __future__ import annotations

import mmap
import os
import sys
from bisect import bisect_right
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch.utils.data import get_worker_info

from tdfunc._core.node import Node
from tdfunc._core.pickling import (
    PackedLeaves,
    as_bytes,
    distinct,
    is_plain,
    unpack_leaves,
    wrapped,
)
from tdfunc._ops.members import Members
from tdfunc.errors import FileFormatError, MissingFileError, OperandError
from tdfunc.io._map import (
    MAPPED,
    MappedFile,
    as_buffer,
    mapped_files,
    tensors_in,
    write_all,
)
from tdfunc.io._system import FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ByReference", "by_reference"]

# From this size on, what a worker of a DataLoader sends is worth a descriptor.
_BLOCK = 1024 * 1024
_ALIGNMENT = 64
_COMPARED = 1024 * 1024


# Of an entry of /proc/self/pagemap: the page is in memory, or swapped out; and it is
# one of a file, not a copy that was made when it was written to.
_PRESENT = np.uint64(0b11 << 62)
_OF_FILE = np.uint64(1 << 61)


class FileMark(NamedTuple):
    """What says that a file is still the one that was mapped."""

    path: str
    inode: int
    size: int
    mtime_ns: int


# Of one leaf: the file's place among the files, the offset, dtype, how many elements
# from the first to the last, shape, strides, and whether it requires a gradient.
_Part: TypeAlias = """tuple[
    int, int, torch.dtype, int, tuple[int, ...], tuple[int, ...], Literal[0, 1]
]"""


class ByReference:
    """Stands for a tree while it is pickled: it unpickles as the tree.

    Attributes:
        tree: the tree.
    """

    __slots__ = ("tree",)

    def __init__(self, tree: Node) -> None:
        self.tree = tree

    def __repr__(self) -> str:
        return f"ByReference({self.tree!r})"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        rebuild, (schema, packed, *rest) = cast(
            "Any", self.tree.__reduce_ex__(protocol)
        )
        leaves = tuple([_referring(leaf) for leaf in packed.leaves])
        return rebuild, (schema, _Referenced(leaves, packed.protocol), *rest)


class _ReferredMembers:
    """The same for the members of a lazy stack."""

    __slots__ = ("members",)

    def __init__(self, members: Members) -> None:
        self.members = members

    def __reduce__(self) -> tuple[Any, ...]:
        build, (trees, *rest) = cast("Any", self.members.__reduce__())
        return build, (tuple([ByReference(tree) for tree in trees]), *rest)


def _referring(leaf: Any) -> Any:
    return _ReferredMembers(leaf) if isinstance(leaf, Members) else leaf


def by_reference(td: Node) -> ByReference:
    """Return what pickles a tree of mapped files as references to these files.

    `pickle`, `torch.save` and what builds on them write the path of a file instead of
    its bytes, for every leaf of 64 KiB or more that is a view of a mapped file. It
    unpickles as the tree, its leaves mapped again, wherever the path leads to the file
    as it was. A leaf that this process has written to travels as its bytes, and so
    does one whose file is not at its path any more.

    Between processes, `multiprocessing` does this without being asked.

    Args:
        td: the tree.

    Returns:
        An object to be pickled. ``torch.load`` wants ``weights_only=False`` for it: a
        reference opens the file that it names, so load none from strangers.

    Raises:
        OperandError: it is no tree.
        MissingFileError: when it is loaded: the file is not there.
        FileFormatError: when it is loaded: the file is another one, or was changed
            since: its inode, size or time of modification differs.

    Examples:
        >>> import pickle, tdfunc, torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.ones(3)}, 3)
        >>> pickle.loads(pickle.dumps(tdfunc.by_reference(td)))["x"]
        tensor([1., 1., 1.])
    """
    if not isinstance(td, Node):
        raise OperandError(
            "only trees are pickled by reference", expected="a tree", got=repr(td)
        )
    return ByReference(td)


class _Referenced:
    """Stands for the leaves of a tree that is pickled by reference."""

    __slots__ = ("leaves", "protocol")

    def __init__(self, leaves: tuple[Any, ...], protocol: int) -> None:
        self.leaves = leaves
        self.protocol = protocol

    def __reduce__(self) -> tuple[Any, ...]:
        found, order = distinct(self.leaves)
        files, parts, rest = _referred(found)
        left = PackedLeaves(tuple(rest), self.protocol)
        return rebuild_referenced, (files, parts, left, order)


def _referred(
    found: Sequence[Any],
) -> tuple[list[FileMark], list[_Part | None], list[Any]]:
    """Return files, for each leaf where it is in one or None, and the other leaves."""
    files: list[FileMark] = []
    parts: list[_Part | None] = []
    rest: list[Any] = []
    maps: _Maps | None = None
    try:
        for leaf in found:
            part = None
            if is_plain(leaf) and leaf.nbytes >= MAPPED and _lies_plainly(leaf):
                maps = maps or _Maps(files)
                part = maps.part(leaf)
            parts.append(part)
            if part is None:
                rest.append(leaf)
    finally:
        if maps is not None:
            maps.close()
    return files, parts, rest


def _lies_plainly(leaf: torch.Tensor) -> bool:
    """Return whether what is in memory are the elements themselves."""
    return not leaf.is_conj() and not leaf.is_neg()


class _Maps:
    """The files that are mapped at one moment, to find leaves in them."""

    def __init__(self, files: list[FileMark]) -> None:
        self.maps = mapped_files()
        self.starts = [one.address for one in self.maps]
        self.files = files
        self.numbers: dict[int, int | None] = {}
        self.pages: int | None = None
        with suppress(OSError):  # not on this system
            self.pages = os.open("/proc/self/pagemap", FILE)

    def close(self) -> None:
        """Close what is open."""
        if self.pages is not None:
            os.close(self.pages)

    def part(self, leaf: torch.Tensor) -> _Part | None:
        """Return where a leaf is in a file that is at its path and was not written."""
        begin = leaf.data_ptr()
        at = bisect_right(self.starts, begin) - 1
        if at < 0:
            return None
        one = self.maps[at]
        strides = leaf.stride()
        reach = sum(
            [(n - 1) * step for n, step in zip(leaf.shape, strides, strict=True)]
        )
        count = reach + 1
        size = count * leaf.itemsize
        if begin + size > one.address + one.size:
            return None
        if at not in self.numbers:
            self.numbers[at] = self._number(one)
        number = self.numbers[at]
        if number is None or self._is_written(one, begin, size):
            return None
        offset = begin - one.address + one.start
        if offset + size > self.files[number].size:
            return None
        grad: Literal[0, 1] = 1 if leaf.requires_grad else 0
        return number, offset, leaf.dtype, count, tuple(leaf.shape), strides, grad

    def _is_written(self, one: MappedFile, begin: int, size: int) -> bool:
        """Return whether this process may have written to bytes of a mapped file.

        The system knows which pages it has copied, whoever wrote to them.
        """
        first = begin // mmap.PAGESIZE
        end = (begin + size - 1) // mmap.PAGESIZE + 1
        for at in range(first, end, _COMPARED):
            count = min(_COMPARED, end - at)
            raw = b""
            if self.pages is not None:
                raw = os.pread(self.pages, count * 8, at * 8)
            if len(raw) != count * 8:
                return _differs(one, begin, size)
            entries = np.frombuffer(raw, np.uint64)
            if (((entries & _PRESENT) != 0) & ((entries & _OF_FILE) == 0)).any():
                return True
        return False

    def _number(self, one: MappedFile) -> int | None:
        try:
            status = Path(one.path or "").stat()
        except OSError:
            return None
        if (status.st_dev, status.st_ino) != (one.device, one.inode):
            return None
        mark = FileMark(
            one.path or "", status.st_ino, status.st_size, status.st_mtime_ns
        )
        self.files.append(mark)
        return len(self.files) - 1


def _differs(one: MappedFile, begin: int, size: int) -> bool:
    """Compare with the file, where the system does not say what was written."""
    start = begin - one.address
    memory: Any = np.asarray(one)
    try:
        descriptor = os.open(one.path or "", FILE)
    except OSError:
        return True
    try:
        for at in range(start, start + size, _COMPARED):
            count = min(_COMPARED, start + size - at)
            if (
                os.pread(descriptor, count, one.start + at)
                != memory[at : at + count].tobytes()
            ):
                return True
    finally:
        os.close(descriptor)
    return False


def rebuild_referenced(
    files: list[FileMark],
    parts: list[_Part | None],
    rest: Sequence[Any],
    order: tuple[int, ...],
) -> tuple[Any, ...]:
    """Return leaves of which some are in files, which are mapped.

    Raises:
        MissingFileError: a file is not there.
        FileFormatError: a file is not what it was.
    """
    found: list[Any] = [None] * len(parts)
    left = iter(rest)
    of_file: list[list[tuple[int, _Part]]] = [[] for _ in files]
    for at, part in enumerate(parts):
        if part is None:
            found[at] = next(left)
        else:
            of_file[part[0]].append((at, part))
    for mark, mine in zip(files, of_file, strict=True):
        descriptor = _opened(FileMark(*mark))
        try:
            flats = tensors_in(
                descriptor, [(part[1], part[2], (part[3],)) for _, part in mine]
            )
        finally:
            os.close(descriptor)
        for (at, part), flat in zip(mine, flats, strict=True):
            leaf = flat.as_strided(part[4], part[5])
            found[at] = leaf.requires_grad_() if part[6] else leaf
    return unpack_leaves(tuple(found), order)


def _opened(mark: FileMark) -> int:
    try:
        descriptor = os.open(mark.path, FILE)
    except FileNotFoundError as error:
        raise MissingFileError(
            f"a pickled tree refers to {mark.path!r}, which is not there",
            fix="pickle the tree itself, not tdfunc.by_reference(td)",
        ) from error
    status = os.fstat(descriptor)
    now = FileMark(mark.path, status.st_ino, status.st_size, status.st_mtime_ns)
    if now == mark:
        return descriptor
    os.close(descriptor)
    raise FileFormatError(
        f"a pickled tree refers to {mark.path!r}, which has changed since",
        expected=_shown(mark),
        got=_shown(now),
        fix="pickle the tree itself, not tdfunc.by_reference(td)",
    )


def _shown(mark: FileMark) -> str:
    return f"inode {mark.inode}, {mark.size} bytes, modified at {mark.mtime_ns} ns"


def _to_process(packed: PackedLeaves) -> tuple[Any, ...]:
    """Return how leaves travel to another process of this machine."""
    found, order = distinct(packed.leaves)
    files, parts, rest = _referred(found)
    bases: dict[int, torch.Tensor] = {}
    crossing: list[_Crossing] = []

    def wrap(leaf: torch.Tensor) -> Any:
        if _lies_plainly(leaf) and leaf.untyped_storage().is_shared():
            return _InShared(leaf, bases)
        one = _Crossing(leaf, packed.protocol)
        crossing.append(one)
        return one

    left = wrapped(rest, wrap)
    if get_worker_info() is not None and _HAS_MEMORY_FILES:
        leaves = [one.leaf for one in crossing]
        if sum([leaf.nbytes for leaf in leaves]) >= _BLOCK:
            block = _Block(leaves)
            for at, one in enumerate(crossing):
                one.place = block, at
    return rebuild_referenced, (files, parts, left, order)


class _Crossing:
    """Stands for a leaf that travels as bytes, or as its place in a block."""

    __slots__ = ("leaf", "place", "protocol")

    def __init__(self, leaf: torch.Tensor, protocol: int) -> None:
        self.leaf = leaf
        self.protocol = protocol
        self.place: tuple[_Block, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.place is None:
            return as_bytes(self.leaf, self.protocol).__reduce__()
        return getitem, self.place


class _InShared:
    """Stands for a leaf in shared memory; its storage is sent once."""

    __slots__ = ("bases", "leaf")

    def __init__(self, leaf: torch.Tensor, bases: dict[int, torch.Tensor]) -> None:
        self.leaf = leaf
        self.bases = bases

    def __reduce__(self) -> tuple[Any, ...]:
        leaf = self.leaf
        storage = leaf.untyped_storage()
        base = self.bases.get(storage.data_ptr())
        if base is None:
            base = torch.empty(0, dtype=torch.uint8).set_(storage)
            self.bases[storage.data_ptr()] = base
        where = leaf.storage_offset(), tuple(leaf.shape), leaf.stride()
        return rebuild_shared, (base, leaf.dtype, *where, leaf.requires_grad)


def rebuild_shared(
    base: torch.Tensor,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    grad: bool,  # noqa: FBT001 - pickle gives arguments by position
) -> torch.Tensor:
    """Return a leaf in shared memory that is there already."""
    leaf = torch.empty(0, dtype=dtype)
    leaf.set_(base.untyped_storage(), offset, shape, strides)
    return leaf.requires_grad_() if grad else leaf


_HAS_MEMORY_FILES = sys.platform.startswith("linux") and hasattr(os, "memfd_create")


class _Block:
    """Leaves that cross in one piece of memory, which is mapped where they arrive.

    Only out of workers of a `DataLoader`: the sender has to live until they are taken,
    and these wait for that.
    """

    __slots__ = ("leaves",)

    def __init__(self, leaves: list[torch.Tensor]) -> None:
        self.leaves = leaves

    def __reduce__(self) -> tuple[Any, ...]:
        places: list[Any] = []
        at = 0
        for leaf in self.leaves:
            places.append((at, leaf.dtype, tuple(leaf.shape), leaf.requires_grad))
            at += -(-leaf.nbytes // _ALIGNMENT) * _ALIGNMENT
        descriptor = os.memfd_create("tdfunc")
        try:
            write_all(descriptor, self._buffers())
            # It keeps one of its own until the other side has it.
            return rebuild_block, (reduction.DupFd(descriptor), places)
        finally:
            os.close(descriptor)

    def _buffers(self) -> Iterator[memoryview | bytes]:
        for leaf in self.leaves:
            yield as_buffer(leaf)
            yield bytes(-leaf.nbytes % _ALIGNMENT)


def rebuild_block(
    sent: Any, places: list[tuple[int, torch.dtype, tuple[int, ...], bool]]
) -> list[torch.Tensor]:
    """Return leaves that crossed in one piece of memory."""
    descriptor = sent.detach()
    try:
        leaves = tensors_in(descriptor, [place[:3] for place in places])
    finally:
        os.close(descriptor)
    return [
        leaf.requires_grad_() if place[3] else leaf
        for leaf, place in zip(leaves, places, strict=True)
    ]


ForkingPickler.register(PackedLeaves, _to_process)
