"""Trees on their way to other processes, which are real here."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import os
import pickle
import resource
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import tdfunc
from tdfunc import TensorDict, lazy_stack, unbatched
from tdfunc.errors import FileFormatError, MissingFileError, OperandError
from tdfunc.io import _processes
from tdfunc.io._map import as_buffer, mapped_files, tensors_in, write_all
from tests.cases import OBJECT, Case, cases, check, leaves_of
from tests.io import children

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIB, MIB = 2**10, 2**20
ROWS, WIDTH = 100, 4096
ROW_BYTES = WIDTH * 4


def written(path: Path, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Write tensors to a file and return them mapped from there."""
    with path.open("wb") as file:
        write_all(file.fileno(), [as_buffer(x) for x in tensors])
    with path.open("rb") as file:
        at, places = 0, []
        for x in tensors:
            places.append((at, x.dtype, tuple(x.shape)))
            at += x.nbytes
        return tensors_in(file.fileno(), places)


def ramp() -> torch.Tensor:
    return torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH)


@pytest.fixture
def td(tmp_path: Path) -> TensorDict:
    """A mapped tree: two large leaves and a small one, in one file."""
    x = ramp()
    a, b, i = written(tmp_path / "x", x, x.int(), torch.arange(ROWS))
    return TensorDict({"a": a, "n": {"b": b}, "i": i}, ROWS)


def sent(td: Any) -> bytes:
    """Return what goes to another process."""
    return bytes(ForkingPickler.dumps(td))


def by_reference(td: Any) -> bytes:
    return pickle.dumps(tdfunc.by_reference(td))


WAYS = [sent, by_reference]
ways = pytest.mark.parametrize("dump", WAYS)


def is_mapped(x: torch.Tensor, path: Path) -> bool:
    return any(
        one.path == os.fspath(path)
        and one.address <= x.data_ptr() < one.address + one.size
        for one in mapped_files()
    )


class TestPlainPickles:
    """Bytes of the view, never the whole base."""

    @pytest.mark.parametrize("protocol", range(2, 6))
    def test_a_row_of_a_mapped_tree_is_a_row(
        self, td: TensorDict, protocol: int
    ) -> None:
        data = pickle.dumps(td[3], protocol)
        assert len(data) < 3 * ROW_BYTES
        back = pickle.loads(data)
        assert back.equal(td[3])
        assert len(pickle.dumps(td, protocol)) > ROWS * ROW_BYTES

    def test_torch_save_writes_a_row(self, td: TensorDict) -> None:
        file = io.BytesIO()
        torch.save({"td": td[3]}, file)
        assert len(file.getvalue()) < 3 * ROW_BYTES
        file.seek(0)
        assert torch.load(file, weights_only=True)["td"].equal(td[3])
        file = io.BytesIO()
        torch.save(td, file)
        file.seek(0)
        assert torch.load(file, weights_only=True).equal(td)

    def test_deepcopy_copies_a_row(self, td: TensorDict) -> None:
        back = copy.deepcopy(td[3])
        assert back.equal(td[3])
        assert back["a"].untyped_storage().nbytes() == ROW_BYTES
        assert back["a"].data_ptr() != td["a"][3].data_ptr()
        whole = copy.deepcopy(td)
        assert whole.equal(td)
        assert not any(x.data_ptr() == y.data_ptr() for x, y in pairs(whole, td))

    def test_unbatched_tensors_are_their_elements(self, td: TensorDict) -> None:
        tree = TensorDict({"u": unbatched(td["a"][0, :3])})
        assert len(pickle.dumps(tree)) < KIB
        file = io.BytesIO()
        torch.save(tree, file)
        assert len(file.getvalue()) < 4 * KIB
        assert copy.deepcopy(tree)["u"].untyped_storage().nbytes() == 12

    def test_leaves_of_one_storage_copy_it_once(self) -> None:
        base = torch.arange(10.0)
        tree = TensorDict({"a": base[:5], "b": base[5:], "c": base[3:7]})
        back = copy.deepcopy(tree)
        assert back.equal(tree)
        back["c"].zero_()
        assert back["a"].tolist() == [0, 1, 2, 0, 0]
        assert back["b"].tolist() == [0, 0, 7, 8, 9]

    def test_many_jagged_leaves_keep_their_parts_apart(self) -> None:
        x = torch.nested.nested_tensor(
            [torch.ones(2), torch.ones(3)], layout=torch.jagged
        )
        tree = TensorDict({str(i): x * i for i in range(30)}, 2)
        for td in [tree, tree.consolidate(), tree.share()]:
            for back in [td, pickle.loads(pickle.dumps(td)), pickle.loads(sent(td))]:
                firsts = [int(back[str(i)].values()[0]) for i in range(30)]
                assert firsts == list(range(30))

    def test_jagged_rows_stay_together(self) -> None:
        a = torch.nested.nested_tensor(
            [torch.ones(2), torch.ones(3)], layout=torch.jagged
        )
        tree = TensorDict({"a": a, "b": a * 2}, 2)
        for data in [pickle.dumps(tree), sent(tree), by_reference(tree)]:
            back = pickle.loads(data)
            assert (back["a"] + back["b"]).values().tolist() == [3] * 5
        file = io.BytesIO()
        torch.save(tree.consolidate(), file)
        file.seek(0)
        back = torch.load(file, weights_only=True)
        assert (back["a"] + back["b"]).values().tolist() == [3] * 5


def pairs(a: TensorDict, b: TensorDict) -> Iterator[tuple[Any, Any]]:
    for path in a.keys(include_nested=True, leaves_only=True):
        yield a[path], b[path]


class TestByReference:
    @ways
    def test_large_leaves_are_mapped_again(
        self, td: TensorDict, tmp_path: Path, dump: Any
    ) -> None:
        data = dump(td)
        assert len(data) < 3 * KIB
        back = pickle.loads(data)
        assert back.equal(td)
        assert is_mapped(back["a"], tmp_path / "x")
        assert is_mapped(back["n", "b"], tmp_path / "x")
        assert back["a"].data_ptr() != td["a"].data_ptr()
        back["a"].zero_()
        assert td["a"].equal(ramp())
        assert pickle.loads(data).equal(td)

    @ways
    def test_one_map_for_each_file(
        self, td: TensorDict, tmp_path: Path, dump: Any
    ) -> None:
        (other,) = written(tmp_path / "y", ramp())
        data = dump(td.set("c", other))
        gc.collect()
        before = len(mapped_files())
        back = pickle.loads(data)
        assert len(mapped_files()) == before + 2
        assert back["c"].equal(ramp())

    @ways
    def test_views_of_every_kind(self, td: TensorDict, dump: Any) -> None:
        views = [
            td[10:90],
            td[::2],
            td[torch.arange(ROWS) % 2 == 0],
            td[:, None].expand(ROWS, 3),
            td.apply(lambda x: x.t() if x.dim() == 2 else x, batch_size=[]),
            td.apply(lambda x: x.double()),
        ]
        for view in views:
            back = pickle.loads(dump(view))
            assert back.equal(view)
            assert back.batch_size == view.batch_size

    @ways
    def test_ties_and_gradients(self, td: TensorDict, dump: Any) -> None:
        a = td["a"].detach().requires_grad_()
        tree = TensorDict({"x": a, "n": {"y": a}, "z": td["a"]})
        back = pickle.loads(dump(tree))
        assert len(dump(tree)) < 3 * KIB
        assert back["x"] is back["n", "y"]
        assert back["x"].requires_grad
        assert back["x"].is_leaf
        assert not back["z"].requires_grad

    @ways
    def test_members_of_lazy_stacks(
        self, td: TensorDict, tmp_path: Path, dump: Any
    ) -> None:
        members = [TensorDict({"x": td["a"][:n]}) for n in (50, 60)]
        lazy = lazy_stack(members)
        tree = TensorDict({"n": lazy, "a": td["a"]})
        data = dump(tree)
        assert len(data) < 5 * KIB
        back = pickle.loads(data)
        for mine, theirs in zip(members, back["n"].unbind(0), strict=True):
            assert theirs.equal(mine)
            assert is_mapped(theirs["x"], tmp_path / "x")
        assert len(dump(lazy)) < 4 * KIB

    @pytest.mark.parametrize("how", ["torch", "numpy", "slice"])
    @ways
    def test_what_was_written_to_travels_as_bytes(
        self, td: TensorDict, tmp_path: Path, dump: Any, how: str
    ) -> None:
        if how == "torch":
            td["a"].add_(1)
        elif how == "numpy":
            td["a"].numpy()[50, 7] = -1
        else:
            td[30]["a"].zero_()
        data = dump(td)
        assert ROWS * ROW_BYTES < len(data) < 1.1 * ROWS * ROW_BYTES
        back = pickle.loads(data)
        assert back.equal(td)
        assert not back["a"].equal(ramp())
        assert is_mapped(back["n", "b"], tmp_path / "x")

    def test_what_another_leaf_of_the_page_wrote_does_not_get_lost(
        self, td: TensorDict
    ) -> None:
        """A page is copied for both of its leaves; each has its own bytes."""
        td["n", "b"][0, 0] = 9
        assert pickle.loads(by_reference(td)).equal(td)

    def test_writes_of_the_parent_are_seen_in_a_child(self, td: TensorDict) -> None:
        td["a"].add_(1)
        children.run(lambda: self.check(td))

    def check(self, td: TensorDict) -> None:
        assert len(sent(td)) > ROWS * ROW_BYTES
        assert pickle.loads(sent(td))["a"].equal(ramp() + 1)
        assert len(sent(td.drop("a"))) < 3 * KIB

    def test_without_page_flags_bytes_are_compared(
        self, td: TensorDict, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened = os.open

        def refused(path: Any, *args: Any, **options: Any) -> int:
            if path == "/proc/self/pagemap":
                raise PermissionError(path)
            return opened(path, *args, **options)

        monkeypatch.setattr(os, "open", refused)
        assert len(by_reference(td)) < 3 * KIB
        # Written, and as it was: the bytes are the same.
        td["a"].add_(0)
        assert len(by_reference(td)) < 3 * KIB
        td["a"][-1, -1] = 5
        data = by_reference(td)
        assert len(data) > ROWS * ROW_BYTES
        assert pickle.loads(data).equal(td)

    @ways
    def test_small_leaves_and_plain_trees_travel_as_bytes(
        self, td: TensorDict, dump: Any
    ) -> None:
        data = dump(td[0])
        assert 2 * ROW_BYTES < len(data) < 3 * ROW_BYTES
        assert pickle.loads(data).equal(td[0])
        plain = td.clone()
        assert len(dump(plain)) > 2 * ROWS * ROW_BYTES
        assert pickle.loads(dump(plain)).equal(plain)

    @ways
    def test_a_file_that_is_not_at_its_path_any_more_travels_as_bytes(
        self, td: TensorDict, tmp_path: Path, dump: Any
    ) -> None:
        (tmp_path / "y").write_bytes(bytes(10))
        (tmp_path / "y").replace(tmp_path / "x")
        replaced = dump(td)
        assert pickle.loads(replaced).equal(td)
        (tmp_path / "x").unlink()
        removed = dump(td)
        assert pickle.loads(removed).equal(td)
        assert min(len(replaced), len(removed)) > 2 * ROWS * ROW_BYTES

    @pytest.mark.parametrize("change", ["replaced", "written", "cut"])
    @ways
    def test_a_changed_file_is_refused(
        self, td: TensorDict, tmp_path: Path, dump: Any, change: str
    ) -> None:
        path = tmp_path / "x"
        data = dump(td)
        if change == "replaced":
            (tmp_path / "y").write_bytes(path.read_bytes())
            (tmp_path / "y").replace(path)
        elif change == "written":
            with path.open("r+b") as file:
                file.write(b"1")
        else:
            os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(FileFormatError, match="has changed since") as error:
            pickle.loads(data)
        assert str(path) in str(error.value)
        assert "inode" in str(error.value)
        assert "by_reference" in str(error.value)

    @ways
    def test_a_missing_file_is_named(
        self, td: TensorDict, tmp_path: Path, dump: Any
    ) -> None:
        data = dump(td)
        (tmp_path / "x").unlink()
        with pytest.raises(MissingFileError) as error:
            pickle.loads(data)
        assert str(tmp_path / "x") in str(error.value)

    def test_torch_save_takes_it_and_safe_loading_refuses_it(
        self, td: TensorDict
    ) -> None:
        file = io.BytesIO()
        torch.save({"td": tdfunc.by_reference(td)}, file)
        assert len(file.getvalue()) < 8 * KIB
        file.seek(0)
        assert torch.load(file, weights_only=False)["td"].equal(td)
        file.seek(0)
        with pytest.raises(pickle.UnpicklingError, match="rebuild_referenced"):
            torch.load(file, weights_only=True)

    def test_only_trees_are_taken(self) -> None:
        with pytest.raises(OperandError, match="a tree"):
            tdfunc.by_reference(torch.zeros(2))  # pyright: ignore[reportArgumentType]

    def test_it_shows_its_tree(self, td: TensorDict) -> None:
        assert repr(tdfunc.by_reference(td)).startswith("ByReference(TensorDict(")
        assert tdfunc.by_reference(td).tree is td

    @cases(lambda case: OBJECT not in case.statics.values())
    def test_every_tree_arrives(self, case: Case) -> None:
        for dump in WAYS:
            if dump is sent and case.name == "requires grad":
                continue  # torch sends no graphs
            back = pickle.loads(dump(case.tree))
            check(back, case.batch, case.leaves)
            assert back._schema is case.tree._schema
            for path, x in leaves_of(back).items():
                assert x.requires_grad == case.leaves[path].requires_grad

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.bool])
    @ways
    def test_dtypes(self, tmp_path: Path, dump: Any, dtype: torch.dtype) -> None:
        (x,) = written(tmp_path / "x", torch.ones(MIB).to(dtype))
        back = pickle.loads(dump(TensorDict({"x": x})))
        assert back["x"].dtype == dtype
        assert as_buffer(back["x"]) == as_buffer(x)

    @ways
    def test_conjugates(self, tmp_path: Path, dump: Any) -> None:
        (z,) = written(tmp_path / "x", torch.full((MIB,), 1 + 2j))
        tree = TensorDict({"z": z.conj(), "i": z.conj().imag})
        back = pickle.loads(dump(tree))
        assert back.equal(tree)

    def test_the_sender_keeps_its_memory(self) -> None:
        """Torch moves what it sends into shared memory, in place."""
        tree = TensorDict({"x": torch.zeros(MIB), "u": torch.zeros(3)})
        before = tree["x"].data_ptr()
        back = pickle.loads(sent(tree))
        assert not tree["x"].is_shared()
        assert tree["x"].data_ptr() == before
        back["x"].add_(1)
        assert not tree["x"].any()


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    """One process that was started afresh."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


def private_bytes(path: str) -> int:
    """Return how much of the maps of a file is of this process alone."""
    total, mine = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as lines:  # noqa: PTH123
        for line in lines:
            head = line.split()
            if "-" in head[0] and ":" not in head[0]:
                mine = line.rstrip().endswith(path)
            elif mine and head[0] == "Anonymous:":
                total += int(head[1]) * KIB
    return total


def look(td: TensorDict) -> tuple[float, list[str | None], int]:
    total = float(td["a"].sum(dtype=torch.float64))
    paths = [one.path for one in mapped_files()]
    return total, paths, private_bytes(paths[0] or "?")


def write_one(td: TensorDict) -> int:
    td["x"].add_(1)
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


class TestSpawn:
    def test_a_mapped_tree_shares_its_pages(
        self, pool: Any, td: TensorDict, tmp_path: Path
    ) -> None:
        total, paths, private = pool.apply(look, (td,))
        assert total == float(ramp().sum(dtype=torch.float64))
        assert paths == [os.fspath(tmp_path / "x")]
        assert private == 0

    def test_shared_memory_is_the_same_memory(self, pool: Any) -> None:
        tree = tdfunc.share(TensorDict({"x": torch.zeros(10), "y": torch.ones(3)}))
        pool.apply(write_one, (tree,))
        pool.apply(write_one, (tree,))
        assert tree["x"].tolist() == [2] * 10
        assert tree["y"].tolist() == [1] * 3

    def test_a_worker_of_a_loader_over_a_mapped_tree(self, td: TensorDict) -> None:
        loader = DataLoader(
            td,  # pyright: ignore[reportArgumentType]
            batch_size=32,
            collate_fn=identity,
            num_workers=1,
            multiprocessing_context="spawn",
        )
        assert_batches(loader, td)


def test_a_mapped_tree_is_indexed_twice(td: TensorDict) -> None:
    pairs = td.reshape(50, 2)
    plain = td.clone().reshape(50, 2)
    got = pairs[[3]][range(1), [1]]
    assert got.equal(plain[[3]][range(1), [1]])
    assert (got.exclude("n") + 1).equal(plain.exclude("n")[3, 1][None] + 1)


class TestFork:
    def test_shared_memory_is_the_same_memory(self) -> None:
        tree = tdfunc.share(TensorDict({"x": torch.zeros(10)}))
        children.run(lambda: tree["x"].add_(1))
        assert tree["x"].tolist() == [1] * 10

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_loader_over_a_mapped_tree(self, td: TensorDict, workers: int) -> None:
        loader = DataLoader(
            td,  # pyright: ignore[reportArgumentType]
            batch_size=32,
            collate_fn=identity,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        assert_batches(loader, td)
        assert_batches(loader, td)

    def test_batches_of_every_size_arrive_and_leave_no_descriptors(self) -> None:
        loader = DataLoader(
            Made(), batch_size=None, num_workers=2, multiprocessing_context="fork"
        )
        for _ in range(2):
            kept = list(loader)
            for i, tree in enumerate(kept):
                made = Made()[i]
                assert tree.equal(made)
                assert tree["w"].requires_grad
            # Large ones are mapped, and their descriptors are closed.
            assert sum(one.size > MIB for one in mapped_files()) >= 2
            assert not descriptors_of_memory()

    def test_400_trees_of_20_leaves_with_256_descriptors(self) -> None:
        def receive() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            loader = DataLoader(
                Many(), batch_size=None, num_workers=2, multiprocessing_context="fork"
            )
            kept = list(loader)
            assert len(kept) == 400
            assert all(int(tree["0"][0]) == i for i, tree in enumerate(kept))
            assert descriptors() < 50

        children.run(receive)


def descriptors() -> int:
    with os.scandir("/proc/self/fd") as entries:
        return len(list(entries))


def descriptors_of_memory() -> list[str]:
    """Return what descriptors of pieces of memory are open."""
    found: list[str] = []
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # that of the directory itself
                found.append(os.readlink(entry.path))  # noqa: PTH115
    return [at for at in found if at.startswith("/memfd:tdfunc")]


def identity(rows: Any) -> Any:
    return rows


def assert_batches(loader: Any, td: TensorDict) -> None:
    batches = list(loader)
    assert [len(batch) for batch in batches] == [32, 32, 32, 4]
    rows = [row for batch in batches for row in batch]
    assert all(row.equal(td[i]) for i, row in enumerate(rows))


class Made(Dataset[TensorDict]):
    """Trees of 0 to 4 MiB."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> TensorDict:
        x = torch.full((i // 2 * MIB // 4 + 3,), float(i))
        w = torch.full((3,), float(i), requires_grad=True)
        return TensorDict({"x": x, "n": {"y": x[:5].bool()}, "w": w, "e": x[:0]})


class Many(Dataset[TensorDict]):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, i: int) -> TensorDict:
        return TensorDict({str(at): torch.full((10,), i) for at in range(20)}, 10)


def test_blocks_are_for_workers_of_loaders_only() -> None:
    """Others may end before their trees are taken."""
    assert _processes._BLOCK == MIB
    tree = TensorDict({"x": torch.zeros(MIB)})
    assert len(sent(tree)) > 4 * MIB
