"""The shared table of awkward trees, and how tests look at one without tdfunc.

A `Case` holds plain nested dicts. What a test expects is computed from those dicts
with torch and Python; only `Case.tree` goes through the code under test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tdfunc import NonTensorData, NonTensorStack, TensorDict, unbatched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Path = tuple[str, ...]

# One object for the whole run: statics are kept by reference.
OBJECT = object()


@dataclass(frozen=True)
class Wider:
    """A nested node with more batch dims than its parent."""

    entries: Mapping[str, Any]
    batch: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One tree as plain data: entries, batch size, dim names."""

    name: str
    entries: Mapping[str, Any]
    batch: tuple[int, ...] = ()
    names: tuple[str | None, ...] | None = None

    @property
    def tree(self) -> TensorDict:
        return TensorDict(_built(self.entries), self.batch, names=self.names)

    @property
    def leaves(self) -> dict[Path, torch.Tensor]:
        """Every tensor by path, in the order of the pytree: sorted paths."""
        found = {p: v for p, v in walk(self.entries) if isinstance(v, torch.Tensor)}
        return dict(sorted(found.items()))

    @property
    def statics(self) -> dict[Path, Any]:
        """Every static value by path, as it is read: without its wrapper."""
        kinds = (torch.Tensor, Mapping, Wider)
        return {
            p: v.data if isinstance(v, NonTensorData) else v
            for p, v in walk(self.entries)
            if not isinstance(v, kinds)
        }

    @property
    def batches(self) -> dict[Path, tuple[int, ...]]:
        """The batch size of every node by path, the root's at ``()``."""
        found: dict[Path, tuple[int, ...]] = {(): self.batch}
        for path, value in walk(self.entries):
            if isinstance(value, Wider):
                found[path] = value.batch
            elif isinstance(value, Mapping):
                found[path] = found[path[:-1]]
        return found

    def mapped(self, fn: Callable[[torch.Tensor], Any]) -> dict[Path, Any]:
        """Return ``fn(leaf)`` by path, computed in a Python loop."""
        return {path: fn(leaf) for path, leaf in self.leaves.items()}

    def rank(self, path: Path) -> int:
        """Return the number of feature dims that the root's batch leaves a leaf."""
        return self.leaves[path].dim() - len(self.batch)


def walk(entries: Mapping[str, Any], prefix: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every entry of nested dicts, parents first, in the order written."""
    for key, value in entries.items():
        path = (*prefix, key)
        yield path, value
        if isinstance(value, Wider):
            yield from walk(value.entries, path)
        elif isinstance(value, Mapping):
            yield from walk(value, path)


def _built(entries: Mapping[str, Any]) -> dict[str, Any]:
    built: dict[str, Any] = {}
    for key, value in entries.items():
        if isinstance(value, Wider):
            built[key] = TensorDict(_built(value.entries), value.batch)
        elif isinstance(value, Mapping):
            built[key] = _built(value)
        else:
            built[key] = value
    return built


def ramp(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return 0, 1, 2 ... in a shape: no two elements are equal, no two rows alike."""
    return torch.arange(math.prod(shape)).reshape(shape).to(dtype)


def _chain(depth: int, leaf: torch.Tensor) -> dict[str, Any]:
    level: dict[str, Any] = {"leaf": leaf}
    for i in range(depth):
        level = {f"k{i}": level, "side": leaf + i}
    return level


_SHARED = ramp(3, 2)
_COMPUTED = ramp(2, 3).requires_grad_() * 2

CASES: tuple[Case, ...] = (
    Case("empty", {}),
    Case("empty with batch (2, 3)", {}, (2, 3)),
    Case("only empty nodes", {"n": {"m": {}}, "e": {}}, (2,)),
    Case("only statics", {"s": "text", "n": {"none": None}}, (3,)),
    Case("0-d leaves", {"a": torch.tensor(1.5), "b": torch.tensor(-2.0)}),
    Case("no batch", {"a": ramp(2, 3), "b": ramp(4) + 1}),
    Case("flat", {"hidden": ramp(5, 4), "pos": ramp(5, 3) - 7}, (5,)),
    Case("rows without features", {"r": ramp(4), "d": ramp(4) - 2}, (4,)),
    Case("nested", {"n": {"a": ramp(3, 2), "b": ramp(3)}, "x": ramp(3, 4)}, (3,)),
    Case("empty nested node", {"x": ramp(3), "n": {}, "z": {"y": {}}}, (3,)),
    Case("deep", _chain(12, ramp(2, 3)), (2,)),
    Case(
        "surplus batch dims",
        {
            "agents": Wider({"obs": ramp(2, 3, 4), "r": ramp(2, 3)}, (2, 3)),
            "done": ramp(2),
        },
        (2,),
    ),
    Case(
        "surplus inside surplus",
        {
            "a": Wider(
                {
                    "b": Wider({"x": ramp(2, 3, 4, 5)}, (2, 3, 4)),
                    "c": {"y": ramp(2, 3, 7)},
                },
                (2, 3),
            ),
            "z": ramp(2, 2),
        },
        (2,),
    ),
    Case("one leaf twice", {"a": _SHARED, "n": {"b": _SHARED}}, (3,)),
    Case(
        "statics at several levels",
        {
            "text": "obs",
            "x": ramp(2, 2),
            "n": {
                "none": None,
                "y": ramp(2),
                "m": {"obj": OBJECT, "tags": NonTensorData(["a", "b"])},
            },
        },
        (2,),
    ),
    Case("no rows", {"x": ramp(0, 3), "n": {"y": ramp(0)}}, (0,)),
    Case("no rows of four", {"x": ramp(4, 0, 2)}, (4, 0)),
    Case("no features", {"x": ramp(2, 0), "y": ramp(2, 3)}, (2,)),
    Case(
        "mixed dtypes",
        {
            "bf16": ramp(2, 3, dtype=torch.bfloat16),
            "c64": ramp(2, dtype=torch.complex64) * (1 - 2j),
            "bool": torch.tensor([[True, False], [False, False]]),
            "i64": ramp(2, 2, dtype=torch.int64) - 1,
            "u8": ramp(2, dtype=torch.uint8),
            "f64": ramp(2, 1, dtype=torch.float64) / 3,
            "f16": ramp(2, dtype=torch.float16),
        },
        (2,),
    ),
    Case("square", {"a": ramp(3, 3, 3), "b": ramp(3, 3), "c": ramp(3, 3, 1)}, (3, 3)),
    Case("dims of size 1", {"a": ramp(1, 3, 1, 1), "b": ramp(1, 3, 1)}, (1, 3, 1)),
    Case(
        "unsorted and unicode keys",
        {
            "b": ramp(2),
            "a": ramp(2) + 2,
            "é": ramp(2) + 4,
            "e\u0301": ramp(2) + 6,
            "日本": {"z": ramp(2) + 8, "A": ramp(2) + 10},
            "with space": ramp(2) + 12,
            "10": ramp(2) + 14,
            "9": ramp(2) + 16,
            "keys": ramp(2) + 18,
        },
        (2,),
    ),
    Case(
        "dotted keys", {"a.b": ramp(2), "a": {"b": ramp(2) + 5, "b.c": ramp(2)}}, (2,)
    ),
    Case(
        "names", {"x": ramp(2, 3, 4), "n": {"y": ramp(2, 3)}}, (2, 3), ("time", "env")
    ),
    Case("some names", {"x": ramp(2, 3, 2)}, (2, 3), (None, "env")),
    Case(
        "not contiguous",
        {
            "t": ramp(4, 3).t(),
            "strided": ramp(3, 8)[:, ::2],
            "expanded": ramp(3, 1).expand(3, 5),
            "row": ramp(1).expand(3),
            "offset": ramp(20)[5:8],
        },
        (3,),
    ),
    Case(
        "requires grad",
        {
            "w": ramp(2, 3).requires_grad_(),
            "n": {"computed": _COMPUTED, "b": ramp(2)},
        },
        (2,),
    ),
    Case(
        "not finite",
        {"x": torch.tensor([[math.nan, math.inf], [-math.inf, -0.0]]), "y": ramp(2)},
        (2,),
    ),
)


TABLE = ramp(7)

# Trees with one value per row and unbatched tensors, apart, since a test of all leaves
# would find no tensors there. What is expected of rows are plain lists.
ROW_CASES: tuple[Case, ...] = (
    Case("rows", {"s": ["a", "b", "a"], "x": ramp(3, 2)}, (3,)),
    Case("only rows", {"s": ["a", None]}, (2,)),
    Case(
        "rows of any values",
        {
            "s": NonTensorStack(1, True, 1.0, None, "1", b"1", [1], {"k": 1}, OBJECT),
            "x": ramp(9),
        },
        (9,),
    ),
    Case(
        "rows of two dims",
        {"s": [["a", "b", ""], ["日本", "a", "é"]], "x": ramp(2, 3)},
        (2, 3),
        ("time", None),
    ),
    Case(
        "rows at several levels",
        {
            "n": {"s": ["p", "q"], "t": "one", "g": unbatched(TABLE)},
            "w": Wider({"r": [["a", "b"], ["b", "c"]], "y": ramp(2, 2)}, (2, 2)),
            "a": [None, None],
            "x": ramp(2, 3),
        },
        (2,),
    ),
    Case("rows of no rows", {"s": NonTensorStack(), "x": ramp(0, 2)}, (0,)),
    Case("unbatched", {"g": unbatched(TABLE), "x": ramp(2)}, (2,)),
    Case("only unbatched", {"n": {"g": unbatched(TABLE)}}, (2,)),
    Case("unbatched without batch", {"g": unbatched(TABLE), "s": "text"}),
)


def rows_in(entries: Mapping[str, Any]) -> dict[Path, Any]:
    """Return what every entry of rows reads, by path."""
    return {
        path: value.tolist() if isinstance(value, NonTensorStack) else value
        for path, value in walk(entries)
        if isinstance(value, (list, NonTensorStack))
    }


def cases(
    where: Callable[[Case], bool] | None = None, table: Iterable[Case] = CASES
) -> pytest.MarkDecorator:
    """Parametrize a test over the cases that `where` takes."""
    chosen = [case for case in table if where is None or where(case)]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


def shown(value: object) -> str:
    """Return the repr of a value without its address, for the id of a test.

    pytest-xdist's workers collect each for itself, and must find the same ids.
    """
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether dtype, shape and every element are equal; NaN equals NaN."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    got, expected = got.detach(), expected.detach()
    if got.is_floating_point() or got.is_complex():
        return bool(((got == expected) | (got.isnan() & expected.isnan())).all())
    return torch.equal(got, expected)


def leaves_of(td: TensorDict) -> dict[Path, Any]:
    """Return every leaf of a tree by path, as tuples, in sorted order."""
    rows = td.items(include_nested=True, leaves_only=True)
    return dict(sorted((k if isinstance(k, tuple) else (k,), v) for k, v in rows))


def statics_of(td: TensorDict) -> dict[Path, Any]:
    """Return every static value of a tree by path."""
    kinds = (torch.Tensor, TensorDict)
    return {
        (key if isinstance(key, tuple) else (key,)): value
        for key, value in td.items(include_nested=True)
        if not isinstance(value, kinds)
    }


def check(
    td: TensorDict,
    batch: Iterable[int],
    leaves: Mapping[Path, torch.Tensor],
    statics: Mapping[Path, Any] | None = None,
    *,
    exact: bool = True,
) -> None:
    """Assert batch size, paths, and every leaf; and that the batch is a true prefix.

    `exact` False allows rounding, for results that torch computes in another order.
    """
    assert isinstance(td, TensorDict)
    assert td.batch_size == torch.Size(batch)
    found = leaves_of(td)
    assert list(found) == sorted(leaves)
    for path, expected in leaves.items():
        got = found[path]
        assert got.shape[: len(td.batch_size)] == td.batch_size, path
        if exact:
            assert same(got, expected), (path, got, expected)
        else:
            torch.testing.assert_close(got, expected, equal_nan=True)
    if statics is not None:
        kept = statics_of(td)
        assert list(kept) == list(statics) or kept.keys() == statics.keys()
        for path, value in statics.items():
            assert kept[path] is value, path


def fingerprint(tensors: Iterable[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Return what an operation must not change in the tensors that it is given."""
    return [
        (
            id(x),
            x.data_ptr(),
            x._version,
            tuple(x.shape),
            x.stride(),
            x.requires_grad,
            bytes_of(x),
        )
        for x in tensors
    ]


def bytes_of(x: torch.Tensor) -> bytes:
    """Return the elements of a tensor as bytes, so that NaN and -0.0 count too."""
    # One element counts as contiguous whatever its stride; this makes it so.
    flat = x.detach().resolve_conj().reshape(-1)
    flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes()
