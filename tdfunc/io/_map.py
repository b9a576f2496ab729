"""Bytes of files as tensors: mapped privately, or read where they are few.

A map costs a page fault for every page that is touched, a read costs a copy: leaves
of 64 KiB and more are mapped, smaller ones are read, neighbours in one call.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import sys
import weakref
from math import prod
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from tdfunc.errors import FileFormatError
from tdfunc.io._system import READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "MAPPED",
    "MappedFile",
    "as_buffer",
    "mapped_files",
    "tensors_in",
    "tensors_of",
    "write_all",
]

# Leaves from this size on are mapped.
MAPPED = 64 * 1024
# As much is read at once, into one buffer; a tensor that is kept keeps no more alive.
_BUFFER = 1024 * 1024
# Bytes between two leaves that are read along rather than skipped with another call.
_GAP = 4096
# Where memory for vector instructions starts; files of ours are laid out so.
_ALIGNMENT = 64
# No element needs more than that: complex128 is two numbers of 8 bytes.
_WIDEST = 8

# What Python casts to bytes itself, at a tenth of the cost.
_NATIVE = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float32, torch.float64}
)

_NORESERVE = 0x4000 if sys.platform.startswith("linux") else 0
_IOV_MAX = 1024

_NOWHERE = sys.maxsize

# Offset, size, position among the places asked for, elements, dtype and shape.
_Found: TypeAlias = "tuple[int, int, int, int, torch.dtype, tuple[int, ...]]"
_TensorPlace: TypeAlias = "tuple[int, torch.dtype, tuple[int, ...]]"
_FilePlace: TypeAlias = "tuple[int, str, torch.dtype, tuple[int, ...]]"


class MappedFile:
    """Part of a file in the memory of this process, as long as the object lives.

    Writes stay in the process: the system copies a page at the first write to it.

    Attributes:
        address: where it lies.
        size: how many bytes.
        start: the offset in the file of the first of them.
        path: the file when it was mapped; None if the system can not tell.
        device: the file system of the file,
        inode: and the number of the file there.
    """

    __slots__ = (
        "__array_interface__",
        "__weakref__",
        "address",
        "device",
        "inode",
        "path",
        "size",
        "start",
    )

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        status = os.fstat(descriptor)
        self.address = _map(descriptor, start, size)
        key = next(_NUMBERS)
        # At exit the system unmaps; other threads may still read then.
        weakref.finalize(self, _unmap, key, self.address, size).atexit = False
        self.start, self.size = start, size
        self.path = _path_of(descriptor)
        self.device, self.inode = status.st_dev, status.st_ino
        # numpy makes an array of it that keeps the object alive.
        self.__array_interface__: dict[str, Any] = {
            "data": (self.address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
        _MAPS[key] = weakref.ref(self)


# What is mapped now, so that a tensor can be traced back to its file. Only single
# steps are made on it, so that it needs no lock, which a fork might find taken.
_MAPS: dict[int, weakref.ref[MappedFile]] = {}
_NUMBERS = itertools.count()


def mapped_files() -> list[MappedFile]:
    """Return the files that are mapped now, by address."""
    found = [ref() for ref in list(_MAPS.values())]
    alive = [one for one in found if one is not None]
    return sorted(alive, key=lambda one: one.address)


def tensors_in(descriptor: int, places: Sequence[_TensorPlace]) -> list[torch.Tensor]:
    """Return the tensors at byte offsets of an open file, as private memory.

    A tensor of 64 KiB or more is mapped copy-on-write (one map for each file), smaller
    ones are read; those that lie near each other share a storage of at most 1 MiB. The
    descriptor can be closed afterwards. Offsets need not be aligned: tensors that do
    not start where an element may are copied.

    A file that is written in place after this shows new bytes in pages that were not
    touched yet, and one that is cut shorter kills who touches them: nothing of
    tdfunc does that to a file.

    Args:
        descriptor: the open file.
        places: offset in bytes, dtype and shape of each tensor. They may overlap.

    Raises:
        FileFormatError: the file ends before a tensor does.
        OSError: the system refuses.
    """
    end, start, stop = 0, _NOWHERE, 0
    out: list[Any] = [None] * len(places)
    mapped: list[_Found] = []
    read: list[_Found] = []
    for i, (offset, dtype, shape) in enumerate(places):
        count = prod(shape)
        size = count * dtype.itemsize
        reach = offset + size
        end = max(end, reach)
        if size == 0:
            out[i] = torch.empty(shape, dtype=dtype)
        elif size < MAPPED:
            read.append((offset, size, i, count, dtype, shape))
        else:
            mapped.append((offset, size, i, count, dtype, shape))
            start, stop = min(start, offset), max(stop, reach)
    length = os.fstat(descriptor).st_size
    if end > length:
        raise _too_short(descriptor, end, length)
    if mapped:
        start -= start % mmap.ALLOCATIONGRANULARITY
        memory = _mapped(descriptor, start, stop - start)
        if memory is None:
            read += mapped
        else:
            _put(memory, start, mapped, out)
    read.sort()
    for near, first, reach in _neighbours(read):
        memory = _memory(reach - first)
        _read_into(descriptor, memory, first)
        _put(memory, first, near, out)
    return out


def tensors_of(files: Iterable[_FilePlace]) -> list[torch.Tensor]:
    """Return the tensors that files hold from their first byte on, as `tensors_in`.

    Each file is opened, mapped or read, and closed; small ones share buffers. Links are
    not followed.

    Args:
        files: descriptor of the directory, name in it, dtype and shape of each; each
            is asked for when it is its turn.

    Raises:
        FileFormatError: a file is not there, is no regular file, or too short.
        OSError: the system refuses.
    """
    out: list[torch.Tensor] = []
    left, used = memoryview(b""), 0
    frombuffer, opened, close, read = torch.frombuffer, os.open, os.close, os.readv
    for directory, name, dtype, shape in files:
        count = prod(shape)
        size = count * dtype.itemsize
        if size == 0:
            out.append(torch.empty(shape, dtype=dtype))
            continue
        try:
            descriptor = opened(name, READ, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
                raise _no_file(directory, name, error) from error
            raise
        try:
            if size >= MAPPED:
                out += tensors_in(descriptor, [(0, dtype, shape)])
                continue
            if used + size > len(left):
                left, used = _memory(_BUFFER), 0
            got = read(descriptor, [left[used : used + size]])
            if got == 0:
                raise _too_short(descriptor, size, 0)
            if got != size:
                # Some file systems give less than they have.
                _read_into(descriptor, left[used : used + size], 0)
        except IsADirectoryError as error:
            raise _no_file(directory, name, error) from error
        finally:
            close(descriptor)
        flat = frombuffer(left, dtype=dtype, count=count, offset=used)
        out.append(flat if len(shape) == 1 else flat.view(shape))
        used += -(-size // _ALIGNMENT) * _ALIGNMENT
    return out


def as_buffer(tensor: torch.Tensor) -> memoryview:
    """Return the elements of a dense tensor as bytes in C order.

    Without a copy where it lies like that on the CPU. Conjugates and negatives are
    carried out, tensors of other devices are copied here.
    """
    if tensor.numel() == 0:
        return memoryview(b"")
    if tensor.dtype in _NATIVE and tensor.is_contiguous():
        try:
            plain: Any = tensor.numpy()
        except (RuntimeError, TypeError):  # it has to be detached, resolved or moved
            pass
        else:
            return memoryview(plain).cast("B")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = flat.reshape(-1)
    if flat.numel() == 1:
        # One element counts as contiguous whatever its stride.
        flat = flat.as_strided((1,), (1,))
    raw: Any = flat.view(torch.uint8).numpy()
    return memoryview(raw)


def write_all(descriptor: int, buffers: Iterable[memoryview | bytes]) -> None:
    """Write buffers one after the other, with as few calls as it takes.

    Args:
        descriptor: where to, from its position on.
        buffers: what; each is asked for when it is its turn, and forgotten when it is
            written, so that a generator of copies needs little memory.

    Raises:
        OSError: the system refuses; what was written then is not defined.
    """
    batch: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
        if view.itemsize != 1:
            view = view.cast("B")
        if view.nbytes == 0:
            continue
        batch.append(view)
        size += view.nbytes
        if len(batch) == _IOV_MAX or size >= _BATCH:
            _write_batch(descriptor, batch)
            batch, size = [], 0
    _write_batch(descriptor, batch)


# As much is gathered before it is written. More saves nothing and keeps copies longer.
_BATCH = 8 * 1024 * 1024


def _write_batch(descriptor: int, batch: list[memoryview]) -> None:
    while batch:
        # Python repeats the call itself when a signal comes.
        written = os.writev(descriptor, batch)
        if written == sum([view.nbytes for view in batch]):
            return
        done = 0
        while done < len(batch) and written >= batch[done].nbytes:
            written -= batch[done].nbytes
            done += 1
        batch = batch[done:]
        if written:
            batch[0] = batch[0][written:]


def _libc_functions() -> tuple[Callable[..., int], Callable[..., int]]:
    """Return libc's own map and unmap.

    Python's keeps a descriptor for each map and can not leave memory unreserved:
    a file larger than memory would not map privately.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    number, size = ctypes.c_int, ctypes.c_size_t
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_long)
    libc.munmap.restype = number
    libc.munmap.argtypes = (ctypes.c_void_p, size)
    return libc.mmap, libc.munmap


_LIBC = _libc_functions() if os.name == "posix" else ()
_FAILED = ctypes.c_void_p(-1).value


def _map(descriptor: int, start: int, size: int) -> int:
    access = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE | _NORESERVE
    address = _LIBC[0](None, size, access, flags, descriptor, start)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), _path_of(descriptor))
    return address


def _unmap(key: int, address: int, size: int) -> None:
    _MAPS.pop(key, None)
    _LIBC[1](address, size)


def _mapped(descriptor: int, start: int, size: int) -> memoryview | None:
    """Return part of a file as memory, None if its file system has no maps."""
    try:
        bytes_of: Any = np.asarray(MappedFile(descriptor, start, size))
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EOPNOTSUPP):
            return None
        raise
    return memoryview(bytes_of)


def _neighbours(
    found: list[_Found],
) -> Iterator[tuple[list[_Found], int, int]]:
    """Yield what is read in one call, and from where to where; given by offset."""
    group: list[_Found] = []
    start = end = 0
    for one in found:
        offset, size = one[0], one[1]
        reach = max(offset + size, end)
        if group and (offset > end + _GAP or reach - start > _BUFFER):
            yield group, start, end
            group, reach = [], offset + size
        if not group:
            # Elements are aligned in memory as they are in the file.
            start = offset - offset % _ALIGNMENT
        group.append(one)
        end = reach
    if group:
        yield group, start, end


def _put(memory: memoryview, start: int, found: list[_Found], out: list[Any]) -> None:
    """Put tensors at their places of `out`, views of the bytes of a file.

    What lies where no element may is copied.
    """
    frombuffer = torch.frombuffer
    for offset, size, i, count, dtype, shape in found:
        at = offset - start
        if at % _WIDEST and at % dtype.itemsize:
            raw = frombuffer(memory, dtype=torch.uint8, count=size, offset=at)
            out[i] = raw.clone().view(dtype).view(shape)
            continue
        flat = frombuffer(memory, dtype=dtype, count=count, offset=at)
        out[i] = flat if len(shape) == 1 else flat.view(shape)


def _memory(size: int) -> memoryview:
    # torch aligns better than bytearray, and does not write zeros first.
    raw: Any = torch.empty(size, dtype=torch.uint8).numpy()
    return memoryview(raw)


def _read_into(descriptor: int, memory: memoryview, start: int) -> None:
    done = 0
    while done < len(memory):
        got = os.preadv(descriptor, [memory[done:]], start + done)
        if got == 0:
            raise _too_short(descriptor, start + len(memory), start + done)
        done += got


def _path_of(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - twice as fast
    except OSError:
        return None


def _too_short(descriptor: int, wanted: int, length: int) -> FileFormatError:
    path = _path_of(descriptor)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        return FileFormatError(
            f"{path!r} holds no tensors",
            expected="a regular file",
            got="a directory, a pipe or a device",
        )
    return FileFormatError(
        f"the file {path!r} ends before its tensors do: it was cut",
        expected=f"{wanted} bytes",
        got=f"{length} bytes",
    )


def _no_file(directory: int, name: str, error: OSError) -> FileFormatError:
    path = f"{_path_of(directory) or '.'}/{name}"
    return FileFormatError(
        f"the file {path!r} of a tensor can not be read",
        expected="a regular file",
        got=error.strerror,
    )
