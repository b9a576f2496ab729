"""What the tests of formats share: round trips, and how to read a peer's.

What a file should hold is taken from the plain dicts of a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdfunc import TensorDict, lazy_stack
from tdfunc.errors import FileFormatError
from tdfunc.io._layout import iter_arrays, levels_of, narrowed, tree_of
from tdfunc.io._options import ReadOptions, WriteOptions
from tdfunc.testing import assert_equal, assert_valid
from tests.cases import ramp

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path as FilePath
    from types import ModuleType


def save(module: ModuleType, td: Any, path: FilePath, **options: Any) -> None:
    module.write(levels_of(td), path, WriteOptions(**options))


def outline(module: ModuleType, path: FilePath, **options: Any) -> Any:
    with module.open_source(path, ReadOptions(**options)) as source:
        return source.outline()


def load(
    module: ModuleType,
    path: FilePath,
    keys: Iterable[tuple[str, ...]] | None = None,
    **options: Any,
) -> Any:
    with module.open_source(path, ReadOptions(**options)) as source:
        level = source.outline()
        if keys is not None:
            level = narrowed(level, keys)
        source.read([array for _, array in iter_arrays(level)])
        return tree_of(level)


def round_trip(module: ModuleType, td: Any, path: FilePath, **options: Any) -> Any:
    """Return a tree written and read; it is the same tree, in the same order."""
    save(module, td, path, overwrite=True, **options)
    assert module.recognises(path)
    got = load(module, path, **options)
    assert_valid(got)
    assert_equal(got, td)
    return got


def damages(
    module: ModuleType, path: FilePath, places: Iterable[int], expected: Any
) -> list[str]:
    """Flip one bit at each place of a file, and return the errors that this gives.

    Where there is none, the tree is as it was.
    """
    whole = path.read_bytes()
    found: list[str] = []
    for place in places:
        raw = bytearray(whole)
        raw[place] ^= 1 << place % 8
        path.write_bytes(raw)
        try:
            got = load(module, path)
        except FileFormatError as error:
            found.append(str(error))
        else:
            assert alike(got.to_dict(), expected)
    return found


def plain_of(peer: Any, td: Any) -> Any:
    """Return a container of the peer as dicts, lists, tensors and values."""
    if isinstance(td, peer.NonTensorStack):
        return td.tolist()
    if isinstance(td, peer.NonTensorData):
        return td.data
    if isinstance(td, peer.LazyStackedTensorDict):
        return [plain_of(peer, member) for member in td.tensordicts]
    if peer.is_tensorclass(td):
        td = td._tensordict
    if isinstance(td, peer.TensorDict):
        return {key: plain_of(peer, td._tensordict[key]) for key in td.keys()}  # noqa: SIM118 - no mapping
    return td


def alike(got: Any, expected: Any) -> bool:
    """Return whether plain containers are the same, tensors by dtype, shape, bytes."""
    if isinstance(expected, dict):
        return got.keys() == expected.keys() and all(
            alike(got[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(got) == len(expected) and all(map(alike, got, expected))
    if isinstance(expected, torch.Tensor):
        if expected.is_nested:
            pairs = zip(got.unbind(), expected.unbind(), strict=True)
            return all(alike(one, other) for one, other in pairs)
        same = got.dtype == expected.dtype and got.shape == expected.shape
        return same and _bytes_of(got) == _bytes_of(expected)
    return type(got) is type(expected) and got == expected


def _bytes_of(tensor: torch.Tensor) -> bytes:
    # One element counts as contiguous whatever its stride; a clone has none.
    plain = tensor.detach().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def jagged(*, lengths: bool = False) -> torch.Tensor:
    """Return a jagged tensor of three rows; with holes between them if asked."""
    parts = [ramp(2, 3), ramp(0, 3), ramp(4, 3) + 9]
    if not lengths:
        return torch.nested.nested_tensor(parts, layout=torch.jagged)
    held = torch.tensor([1, 0, 3])
    offsets = torch.tensor([0, 2, 2, 6])
    return torch.nested.nested_tensor_from_jagged(torch.cat(parts), offsets, held)


def ragged_stack() -> Any:
    """Return a lazy stack of members that differ in keys and shapes."""
    one = TensorDict({"x": ramp(2, 3), "n": {"y": ramp(2)}, "s": "one"}, 2)
    other = TensorDict({"x": ramp(2, 5), "z": ramp(2), "s": "other"}, 2)
    return lazy_stack([one, other], 1)


def even_stack(dim: int) -> Any:
    """Return a lazy stack of three members that are alike."""
    trees = [
        TensorDict({"x": ramp(2, 3) + i, "n": {"y": ramp(2) - i}, "s": "t"}, 2)
        for i in range(3)
    ]
    return lazy_stack(trees, dim)
