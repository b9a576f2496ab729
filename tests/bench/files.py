"""``python -m tests.bench.files [DIR]``: what saving and loading cost, by format.

Wall-clock milliseconds, medians over rounds in which every format takes its turn, and
how many times longer than raw bytes in one file it took. *load* is until the tree is
there, *touch* until every page of it was looked at too. The file cache is warm. DIR
says on which file system; it is left as it was.

The rows for ``python -m tests.bench`` are here as well.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

import torch
from safetensors.torch import load_file, save_file

import tdfunc
from tests.bench.row import Case, Sides, on
from tests.bench.trees import peer_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.bench.trees import Data

_MOST_BUFFERS = 1024  # of one writev
_PAGE = 4096
_LARGE = 1 << 20


class Way(NamedTuple):
    """One way to keep a tree: how it is written, and how its leaves are got back."""

    name: str
    save: Callable[[Path], Any]
    load: Callable[[Path], Sequence[torch.Tensor]]


def touch(leaves: Sequence[torch.Tensor]) -> Any:
    """Look at every page of all leaves."""
    if leaves[0].nbytes >= _LARGE:
        step = _PAGE // leaves[0].itemsize
        return [leaf.view(-1)[::step].sum() for leaf in leaves]
    return torch._foreach_norm([*leaves], float("inf"))


def leaves_of(td: Any) -> list[torch.Tensor]:
    """Return the leaves of a tree of ours or of the peer."""
    if isinstance(td, tdfunc.TensorDict):
        return [*td._leaves]
    return [*td.values(True, True)]


# By hand


def buffers_of(leaves: Sequence[torch.Tensor]) -> list[memoryview]:
    arrays: list[Any] = [leaf.numpy() for leaf in leaves]
    return [memoryview(array).cast("B") for array in arrays]


def write_raw(path: Path, leaves: Sequence[torch.Tensor]) -> None:
    """Write leaves one after the other to a new file, with as few calls as it takes."""
    buffers = buffers_of(leaves)
    path.unlink(missing_ok=True)
    with path.open("xb", buffering=0) as file:
        for at in range(0, len(buffers), _MOST_BUFFERS):
            batch = buffers[at : at + _MOST_BUFFERS]
            if os.writev(file.fileno(), batch) < sum([len(b) for b in batch]):
                raise OSError("a short write")


def write_each(path: Path, leaves: Sequence[torch.Tensor]) -> None:
    """Write every leaf to a file of its own in a new directory."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for at, buffer in enumerate(buffers_of(leaves)):
        with (path / str(at)).open("xb", buffering=0) as file:
            file.write(buffer)


def read_raw(path: Path) -> torch.Tensor:
    """Return the bytes of a file in memory."""
    storage = torch.empty(path.stat().st_size, dtype=torch.uint8)
    memory: Any = storage.numpy()
    with path.open("rb", buffering=0) as file:
        file.readinto(memory)
    return storage.view(torch.float32)


def map_raw(path: Path) -> torch.Tensor:
    """Return the bytes of a file, mapped privately."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE)
    return torch.frombuffer(mapped, dtype=torch.float32)


def map_each(path: Path, count: int) -> list[torch.Tensor]:
    return [map_raw(path / str(at)) for at in range(count)]


# By libraries


def saved(td: Any, format: Any) -> Callable[[Path], None]:
    return lambda path: td.save(path, format=format, overwrite=True)


def ways(td: tdfunc.TensorDict, *, peer: bool) -> list[Way]:
    """Return all ways to keep a tree, the raw one first."""
    leaves = leaves_of(td)
    flat = {str(at): leaf for at, leaf in enumerate(leaves)}
    made = [
        Way(
            "raw, one file",
            lambda path: write_raw(path, leaves),
            lambda path: [map_raw(path)],
        ),
        Way(
            "raw, a file a leaf",
            lambda path: write_each(path, leaves),
            lambda path: map_each(path, len(leaves)),
        ),
        *[
            Way(
                f"tdfunc {format}",
                saved(td, format),
                lambda path: leaves_of(tdfunc.load(path)),
            )
            for format in ("memmap", "archive", "consolidated", "safetensors")
        ],
        Way(
            "safetensors",
            lambda path: save_file(flat, path),
            lambda path: [*load_file(path).values()],
        ),
        Way(
            "torch.save",
            lambda path: torch.save(flat, path),
            lambda path: [*torch.load(path).values()],
        ),
        Way(
            "torch.save, mmap=True",
            lambda path: torch.save(flat, path),
            lambda path: [*torch.load(path, mmap=True).values()],
        ),
    ]
    return made + (peer_ways(td) if peer else [])


def peer_ways(td: tdfunc.TensorDict) -> list[Way]:
    package = import_module("tensordict")
    theirs = tdfunc.interop.to_tensordict(td)

    def consolidate(path: Path) -> None:
        path.unlink(missing_ok=True)
        theirs.clone(recurse=False).consolidate(filename=path)

    def memmap(path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        theirs.memmap(path)

    def archive(path: Path) -> None:
        theirs.save(path, archive=True)

    def mapped(path: Path) -> list[torch.Tensor]:
        return leaves_of(package.TensorDict.load_memmap(path))

    return [
        Way("tensordict memmap", memmap, mapped),
        Way("tensordict archive", archive, mapped),
        Way(
            "tensordict consolidated",
            consolidate,
            lambda path: leaves_of(package.TensorDict.from_consolidated(path)),
        ),
    ]


# The table


def small_tree() -> tdfunc.TensorDict:
    """Return 2000 leaves of 4 KiB in nodes three deep."""
    generator = torch.Generator().manual_seed(0)
    return tdfunc.TensorDict(
        {
            f"a{i}": {
                f"b{j}": {
                    f"c{k}": torch.rand(1024, generator=generator) for k in range(20)
                }
                for j in range(10)
            }
            for i in range(10)
        }
    )


def large_tree(megabytes: int = 64) -> tdfunc.TensorDict:
    """Return 4 leaves of 64 MiB."""
    generator = torch.Generator().manual_seed(0)
    count = megabytes << 18
    made = {f"k{i}": torch.rand(count, generator=generator) for i in range(4)}
    return tdfunc.TensorDict(made)


TREES = {"2000 x 4 KiB": small_tree, "4 x 64 MiB": large_tree}
STEPS = ("save", "load", "touch")

Times = dict[str, dict[str, list[float]]]


def measured(td: Any, folder: Path, rounds: int, *, peer: bool) -> Times:
    """Return the seconds that each step of each way took, in every round."""
    chosen = ways(td, peer=peer)
    times: Times = {way.name: {step: [] for step in STEPS} for way in chosen}
    for turn in range(rounds + 1):  # the first one warms up
        for way in chosen[turn % len(chosen) :] + chosen[: turn % len(chosen)]:
            path = folder / way.name
            gc.collect()
            start = perf_counter()
            way.save(path)
            done = perf_counter()
            leaves = way.load(path)
            there = perf_counter()
            del leaves
            gc.collect()
            again = perf_counter()
            touch(way.load(path))
            seen = perf_counter()
            if turn:
                took = (done - start, there - done, seen - again)
                for step, seconds in zip(STEPS, took, strict=True):
                    times[way.name][step].append(seconds)
    return times


def table(times: Times) -> str:
    """Return the medians in Markdown, with ratios to the first way."""
    first = next(iter(times.values()))
    lines = [["format", *STEPS], ["---", *["---:"] * len(STEPS)]]
    for name, steps in times.items():
        cells = [
            f"{median(steps[step]) * 1e3:.3g} (x{_ratio(steps[step], first[step])})"
            for step in STEPS
        ]
        lines.append([name, *cells])
    return "".join([f"| {' | '.join(line)} |\n" for line in lines])


def _ratio(times: list[float], base: list[float]) -> str:
    return f"{median([a / b for a, b in zip(times, base, strict=True)]):.3g}"


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.bench.files", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    options = parser.parse_args()
    torch.set_num_threads(1)
    peer = options.peer and peer_installed()
    for name, make in TREES.items():
        folder = Path(mkdtemp(dir=options.folder))
        try:
            times = measured(make(), folder, options.rounds, peer=peer)
        finally:
            shutil.rmtree(folder)
        sys.stdout.write(f"\n{name}, ms in {folder.parent}:\n\n{table(times)}")
        sys.stdout.flush()


# Rows of `python -m tests.bench`


def _sides(*, peer: bool) -> tuple[Path, dict[str, Way]]:
    """Return by hand, ours and the peer's, each of which has saved a tree."""
    folder = Path(mkdtemp())
    every = {way.name: way for way in ways(small_tree(), peer=peer)}
    names = {
        "floor": "raw, one file",
        "tdfunc": "tdfunc consolidated",
        "peer": "tensordict consolidated",
    }
    chosen = {side: every[name] for side, name in names.items() if name in every}
    for side, way in chosen.items():
        way.save(folder / side)
    return folder, chosen


def _kept(folder: Path, calls: dict[str, Callable[[], Any]]) -> Sides:
    """Return the sides; the folder goes when they do."""
    finalize(calls["floor"], shutil.rmtree, folder, ignore_errors=True)
    return Sides(calls["floor"], calls["tdfunc"], calls.get("peer"))


def save_rows(d: Data) -> Sides:
    folder, held = _sides(peer=d.peer is not None)

    def call(side: str) -> Callable[[], Any]:
        way, path = held[side], folder / side
        return lambda: way.save(path) and None

    return _kept(folder, {side: call(side) for side in held})


def load_rows(d: Data) -> Sides:
    folder, held = _sides(peer=d.peer is not None)

    def call(side: str) -> Callable[[], Any]:
        way, path = held[side], folder / side
        if side == "floor":
            return lambda: read_raw(path).abs().amax()
        return lambda: torch.stack([*touch(way.load(path))]).amax()

    return _kept(folder, {side: call(side) for side in held})


_TREE = ("plain tensors",)

# Directories, and large tensors, are in the table only: they would make the tests slow.
FILES: tuple[Case, ...] = (
    *on(_TREE, "save 2000 x 4 KiB, one file", save_rows, 3),
    *on(_TREE, "load and touch 2000 x 4 KiB, one file", load_rows, 8),
)

if __name__ == "__main__":
    main()
