"""Bytes of files as tensors, against numpy reading the same files."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import resource
import signal
import socket
import threading
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tdfunc.errors import FileFormatError
from tdfunc.io import _map
from tdfunc.io._map import as_buffer, mapped_files, tensors_in, tensors_of, write_all
from tests.io import children

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

KIB, MIB, GIB = 2**10, 2**20, 2**30
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
]


@contextmanager
def opened(path: Path) -> Generator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def noise(size: int, seed: int = 0) -> bytes:
    """Return bytes that are true or false as bools, too."""
    return np.random.default_rng(seed).integers(0, 2, size, np.uint8).tobytes()


def descriptors() -> int:
    with os.scandir("/proc/self/fd") as entries:
        return len(list(entries))


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def load(path: Path, *places: Any) -> list[torch.Tensor]:
    with opened(path) as descriptor:
        return tensors_in(descriptor, places)


class TestTensorsIn:
    @pytest.mark.parametrize("size", [3, 70 * KIB], ids=["read", "mapped"])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_dtype_at_every_alignment(
        self, tmp_path: Path, dtype: torch.dtype, size: int
    ) -> None:
        nbytes = size * dtype.itemsize
        starts = [at * (nbytes + 5) for at in range(3)] + [4 * (nbytes + 64)]
        data = noise(starts[-1] + nbytes)
        (tmp_path / "x").write_bytes(data)
        loaded = load(tmp_path / "x", *[(at, dtype, (size,)) for at in starts])
        for at, x in zip(starts, loaded, strict=True):
            assert x.dtype == dtype
            assert x.shape == (size,)
            assert raw(x) == data[at : at + nbytes]
            assert x.data_ptr() % min(dtype.itemsize, 8) == 0

    def test_shapes_and_tensors_without_elements(self, tmp_path: Path) -> None:
        data = noise(24)
        (tmp_path / "x").write_bytes(data)
        shapes = [(), (1,), (2, 3), (0,), (2, 0, 3)]
        loaded = load(tmp_path / "x", *[(0, torch.float32, shape) for shape in shapes])
        assert [tuple(x.shape) for x in loaded] == shapes
        assert raw(loaded[2]) == data
        assert not load(tmp_path / "x")

    def test_tensors_without_elements_need_no_file_of_any_length(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "x").write_bytes(b"")
        (x,) = load(tmp_path / "x", (0, torch.float32, (0, 2)))
        assert x.shape == (0, 2)

    def test_order_gaps_and_groups_do_not_matter(self, tmp_path: Path) -> None:
        data = noise(4 * MIB)
        (tmp_path / "x").write_bytes(data)
        rng = np.random.default_rng(0)
        places = []
        for _ in range(300):
            size = int(rng.choice([1, 100, 4096, 65535, 65536, 300_000]))
            places.append((int(rng.integers(0, 4 * MIB - size + 1)), size))
        # One ends with the file.
        places.append((4 * MIB - 8, 8))
        loaded = load(tmp_path / "x", *[(at, torch.uint8, (n,)) for at, n in places])
        for (at, size), x in zip(places, loaded, strict=True):
            assert raw(x) == data[at : at + size]

    def test_writes_stay_in_memory_and_with_their_tensor(self, tmp_path: Path) -> None:
        data = noise(MIB)
        path = tmp_path / "x"
        path.write_bytes(data)
        path.chmod(0o400)
        places = [(0, torch.uint8, (10,)), (10, torch.uint8, (MIB - 20,))]
        small, large = load(path, *places)
        small.fill_(7)
        large.fill_(9)
        assert path.read_bytes() == data
        again = load(path, *places)
        assert raw(again[0]) == data[:10]
        assert raw(again[1]) == data[10 : MIB - 10]
        assert bytes(small.numpy()) == b"\7" * 10

    def test_a_child_keeps_its_writes(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(bytes(MIB))
        (x,) = load(tmp_path / "x", (0, torch.uint8, (MIB,)))
        children.run(lambda: x.fill_(1))
        assert not x.any()

    def test_maps_go_with_their_last_tensor(self, tmp_path: Path) -> None:
        gc.collect()
        before = len(mapped_files())
        (tmp_path / "x").write_bytes(noise(MIB))
        half = MIB // 2
        a, b = load(
            tmp_path / "x", (0, torch.uint8, (half,)), (half, torch.int32, (half // 4,))
        )
        assert len(mapped_files()) == before + 1
        (mine,) = [
            one for one in mapped_files() if one.path == os.fspath(tmp_path / "x")
        ]
        assert (mine.start, mine.size) == (0, MIB)
        assert mine.inode == (tmp_path / "x").stat().st_ino
        del a, mine
        row = b[5:7]
        del b
        assert row.sum() is not None
        assert len(mapped_files()) == before + 1
        del row
        assert len(mapped_files()) == before

    def test_a_replaced_file_leaves_the_map_as_it_was(self, tmp_path: Path) -> None:
        data = noise(MIB)
        (tmp_path / "x").write_bytes(data)
        (x,) = load(tmp_path / "x", (0, torch.uint8, (MIB,)))
        (tmp_path / "y").write_bytes(bytes(10))
        (tmp_path / "y").replace(tmp_path / "x")
        assert raw(x) == data

    def test_a_file_larger_than_memory_maps(self, tmp_path: Path) -> None:
        with (tmp_path / "x").open("wb") as file:
            file.truncate(64 * GIB)
            file.seek(64 * GIB - 1)
            file.write(b"\5")
        (x,) = load(tmp_path / "x", (0, torch.uint8, (64 * GIB,)))
        assert x[-1] == 5
        x[GIB] = 3
        assert x[GIB] == 3
        with (tmp_path / "x").open("rb") as file:
            file.seek(GIB)
            assert file.read(1) == b"\0"

    def test_small_tensors_share_buffers_of_a_mebibyte(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(noise(4 * MIB))
        places = [(at * 4096, torch.float32, (32, 32)) for at in range(1024)]
        loaded = load(tmp_path / "x", *places)
        starts = sorted(x.data_ptr() for x in loaded)
        # Neighbours are neighbours in memory, but for where a new buffer begins.
        breaks = sum(b - a != 4096 for a, b in pairwise(starts))
        assert breaks <= 4
        # Yet each is a tensor on its own.
        x = loaded[0]
        assert len(pickle.dumps(x)) < 8192
        assert copy.deepcopy(x).untyped_storage().nbytes() == 4096
        x.add_(1)
        assert loaded[1]._version == 0

    @pytest.mark.parametrize("size", [100, 100_000], ids=["read", "mapped"])
    def test_a_file_that_is_too_short_is_named(self, tmp_path: Path, size: int) -> None:
        (tmp_path / "x").write_bytes(bytes(size - 1))
        with pytest.raises(FileFormatError) as error:
            load(tmp_path / "x", (0, torch.uint8, (size,)))
        assert str(tmp_path / "x") in str(error.value)
        assert f"expected {size} bytes" in str(error.value)
        assert f"got {size - 1} bytes" in str(error.value)

    def test_a_file_that_is_cut_while_it_is_open_is_an_error(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "x").write_bytes(bytes(MIB))
        with opened(tmp_path / "x") as descriptor:
            os.truncate(tmp_path / "x", 10)
            with pytest.raises(FileFormatError, match="cut"):
                tensors_in(descriptor, [(0, torch.uint8, (MIB,))])

    def test_a_file_that_is_cut_while_it_is_read_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "x").write_bytes(bytes(100))
        read = os.preadv

        def cutting(*args: Any) -> int:
            os.truncate(tmp_path / "x", 50)
            return read(*args)

        monkeypatch.setattr(os, "preadv", cutting)
        with pytest.raises(FileFormatError, match="expected 100 bytes"):
            load(tmp_path / "x", (0, torch.uint8, (100,)))

    def test_without_maps_files_are_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = noise(3 * MIB)
        (tmp_path / "x").write_bytes(data)

        def refused(*_: Any) -> int:
            raise OSError(errno.ENODEV, "no maps here")

        monkeypatch.setattr(_map, "_map", refused)
        at = 64 * KIB
        a, b = load(
            tmp_path / "x", (0, torch.uint8, (at,)), (at, torch.float64, (300_000,))
        )
        assert raw(a) == data[:at]
        assert raw(b) == data[at : at + 2_400_000]

    def test_other_refusals_pass(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(bytes(MIB))
        descriptor = os.open(tmp_path / "x", os.O_WRONLY)
        try:
            with pytest.raises(PermissionError):
                tensors_in(descriptor, [(0, torch.uint8, (MIB,))])
        finally:
            os.close(descriptor)


class TestTensorsOf:
    def test_files_of_every_size(self, tmp_path: Path) -> None:
        sizes = [0, 1, 7, 4096, 65535, 65536, 65537, 200_000, 1] * 5
        for i, size in enumerate(sizes):
            (tmp_path / str(i)).write_bytes(noise(size, i))
        with opened(tmp_path) as directory:
            loaded = tensors_of(
                [
                    (directory, str(i), torch.uint8, (size,))
                    for i, size in enumerate(sizes)
                ]
            )
        for i, (size, x) in enumerate(zip(sizes, loaded, strict=True)):
            assert raw(x) == noise(size, i)
            x.zero_()
        assert (tmp_path / "3").read_bytes() == noise(4096, 3)

    def test_files_may_be_longer(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(noise(100))
        with opened(tmp_path) as directory:
            (x,) = tensors_of([(directory, "x", torch.int16, (2, 3))])
        assert raw(x) == noise(100)[:12]

    def test_3000_leaves_with_256_descriptors(self, tmp_path: Path) -> None:
        (tmp_path / "0").write_bytes(b"12345678")
        (tmp_path / "1").write_bytes(bytes(64 * KIB))

        def load_all() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            before = descriptors()
            kept: list[torch.Tensor] = []
            with opened(tmp_path) as directory:
                for i in range(3000):
                    shape = (8192 if i % 2 else 1,)
                    kept += tensors_of([(directory, str(i % 2), torch.int64, shape)])
            rows = [x[0] for x in kept]
            assert len(rows) == 3000
            assert descriptors() == before

        children.run(load_all)

    @pytest.mark.parametrize(
        ("make", "got"),
        [
            (lambda path: None, "No such file"),  # noqa: ARG005
            (lambda path: path.mkdir(), "directory"),
            (lambda path: path.symlink_to("/etc/passwd"), "symbolic links"),
            (os.mkfifo, "a pipe"),
            (lambda path: path.write_bytes(b"abc"), "3 bytes"),
        ],
        ids=["missing", "directory", "link", "pipe", "short"],
    )
    @pytest.mark.parametrize("size", [10, 100_000])
    def test_what_is_no_such_file_is_named(
        self, tmp_path: Path, make: Any, got: str, size: int
    ) -> None:
        make(tmp_path / "x")
        with opened(tmp_path) as directory:
            place = (directory, "x", torch.uint8, (size,))
            with pytest.raises(FileFormatError) as error:
                tensors_of([place])
        assert str(tmp_path / "x") in str(error.value)
        assert got in str(error.value)

    def test_a_socket_is_no_file(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as there, opened(tmp_path) as directory:
            there.bind(os.fspath(tmp_path / "x"))
            with pytest.raises(FileFormatError, match="regular file"):
                tensors_of([(directory, "x", torch.uint8, (4,))])


class TestAsBuffer:
    @pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_dtype_and_layout(self, dtype: torch.dtype) -> None:
        data = noise(24 * dtype.itemsize)
        base = torch.frombuffer(bytearray(data), dtype=dtype).reshape(4, 6)
        for x in [
            base,
            base.t(),
            base[1:, ::2],
            base[2, 3],
            base[2:3, 3:4],
            base[:, :0],
        ]:
            buffer = as_buffer(x)
            assert buffer.format == "B"
            assert buffer.ndim == 1
            assert buffer.nbytes == x.numel() * dtype.itemsize
            assert bytes(buffer) == raw(x) if x.numel() else not buffer.nbytes

    def test_dense_tensors_are_not_copied(self) -> None:
        x = torch.zeros(10, dtype=torch.bfloat16)
        y = torch.zeros(10)
        before = [as_buffer(x), as_buffer(y)]
        x.fill_(1)
        y.fill_(1)
        assert [bytes(one) for one in before] == [raw(x), raw(y)]

    def test_lazy_bits_are_carried_out(self) -> None:
        x = torch.tensor([1 + 2j, 3 - 4j])
        assert bytes(as_buffer(x.conj())) == raw(x.conj().resolve_conj())
        negative = x.conj().imag
        assert negative.is_neg()
        assert bytes(as_buffer(negative)) == raw(torch.tensor([-2.0, 4.0]))

    def test_expanded_and_oddly_strided_tensors(self) -> None:
        one = torch.ones(1).expand(3)
        assert bytes(as_buffer(one)) == raw(torch.ones(3))
        odd = torch.arange(6.0).as_strided((1,), (5,), 2)
        assert bytes(as_buffer(odd)) == raw(torch.tensor([2.0]))

    def test_a_graph_does_not_matter(self) -> None:
        x = torch.ones(3, requires_grad=True)
        assert bytes(as_buffer(x)) == raw(torch.ones(3))
        assert bytes(as_buffer(x * 2)) == raw(torch.full((3,), 2.0))


class TestWriteAll:
    def test_many_buffers_and_empty_ones(self, tmp_path: Path) -> None:
        parts = [noise(i % 7, i) for i in range(5000)]
        with (tmp_path / "x").open("wb") as file:
            write_all(file.fileno(), iter([memoryview(part) for part in parts]))
            write_all(file.fileno(), [])
        assert (tmp_path / "x").read_bytes() == b"".join(parts)

    def test_buffers_of_wider_elements(self, tmp_path: Path) -> None:
        x = torch.arange(10.0)
        floats: Any = x.numpy()
        with (tmp_path / "x").open("wb") as file:
            write_all(file.fileno(), [memoryview(floats), b"end"])
        assert (tmp_path / "x").read_bytes() == raw(x) + b"end"

    def test_short_writes_and_signals(self) -> None:
        """A pipe takes 64 KiB at a time, and signals come while it is full."""
        data = [noise(200_000, i) for i in range(5)]
        out, into = os.pipe()
        got = bytearray()

        def drain() -> None:
            while chunk := os.read(out, 10_000):
                got.extend(chunk)

        old = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        reader = threading.Thread(target=drain)
        reader.start()
        try:
            write_all(into, data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
            os.close(into)
            reader.join()
            os.close(out)
        assert bytes(got) == b"".join(data)

    def test_buffers_are_asked_for_when_it_is_their_turn(self, tmp_path: Path) -> None:
        with (tmp_path / "x").open("wb") as file:
            sizes = []

            def copies() -> Iterator[bytes]:
                for _ in range(10):
                    yield bytes(5 * MIB)
                    sizes.append(file.seek(0, os.SEEK_END))

            write_all(file.fileno(), copies())
        assert sizes[-1] >= 40 * MIB

    def test_a_full_file_system_is_an_error(self, tmp_path: Path) -> None:
        def write() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            with (
                (tmp_path / "x").open("wb") as file,
                pytest.raises(OSError, match="too large"),
            ):
                write_all(file.fileno(), [bytes(600), bytes(600)])

        children.run(write)
