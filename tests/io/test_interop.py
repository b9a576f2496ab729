"""Every feature in every format, from tdfunc to the real tensordict and back.

What one format alone has, or the peer can not hold, is in the file of that format.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tdfunc
from tdfunc import TensorClass
from tdfunc.testing import assert_equal
from tests.cases import ramp
from tests.io.one_file import alike, plain_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

peer: Any = pytest.importorskip("tensordict")


class Thing(TensorClass):
    x: torch.Tensor
    s: str


class _Thing:
    x: torch.Tensor
    s: str


PeerThing = peer.tensorclass(_Thing)


def thing(lib: Any) -> Any:
    return (Thing if lib is tdfunc else PeerThing)(x=ramp(2, 3), s="t", batch_size=[2])


def stack(lib: Any, dim: int, *, even: bool = True) -> Any:
    def member(at: int) -> Any:
        more = {} if even or at else {"y": ramp(2)}
        nested = lib.TensorDict({"e": ramp(2) + at}, [2])
        shape = (2, 3) if even else (2, 3 + at)
        return lib.TensorDict({"x": ramp(*shape) + at, "n": nested, **more}, [2])

    return lib.lazy_stack([member(at) for at in range(3)], dim)


# How both libraries make a tree with one feature, and what it has then.
FEATURES: dict[str, Callable[[Any], Any]] = {
    "flat": lambda lib: lib.TensorDict({"a": ramp(2, 3), "b": ramp(2)}, [2]),
    "no batch": lambda lib: lib.TensorDict({"a": ramp(2, 3)}, []),
    "nested": lambda lib: lib.TensorDict(
        {"n": lib.TensorDict({"m": lib.TensorDict({"a": ramp(2)}, [2])}, [2])}, [2]
    ),
    "nested with more batch dims": lambda lib: lib.TensorDict(
        {"n": lib.TensorDict({"a": ramp(2, 3, 4)}, [2, 3]), "x": ramp(2)}, [2]
    ),
    "record": lambda lib: lib.TensorDict({"r": thing(lib), "x": ramp(2)}, [2]),
    "lazy stack": lambda lib: lib.TensorDict({"l": stack(lib, 1)}, [2]),
    "lazy stack at the root": lambda lib: stack(lib, 0),
    "ragged lazy stack": lambda lib: lib.TensorDict(
        {"l": stack(lib, 1, even=False)}, [2]
    ),
    "text": lambda lib: lib.TensorDict({"t": "h\u00e9llo\n", "x": ramp(2)}, [2]),
    "text of rows": lambda lib: lib.TensorDict(
        {"t": lib.NonTensorStack("a", "\u00e9"), "x": ramp(2)}, [2]
    ),
    "value": lambda lib: lib.TensorDict(
        {"v": lib.NonTensorData({"k": [1, 2.5, None, True]}), "x": ramp(2)}, [2]
    ),
    "names": lambda lib: lib.TensorDict(
        {"x": ramp(2, 3, 4)}, [2, 3], names=["time", "env"]
    ),
    "some names": lambda lib: lib.TensorDict(
        {"x": ramp(2, 3, 4)}, [2, 3], names=[None, "env"]
    ),
    "bfloat16": lambda lib: lib.TensorDict({"x": ramp(2, 3).bfloat16()}, [2]),
    "float16": lambda lib: lib.TensorDict({"x": ramp(2, 3).half()}, [2]),
    "bool": lambda lib: lib.TensorDict({"x": ramp(2, 3) > 2}, [2]),
    "int64": lambda lib: lib.TensorDict({"x": torch.tensor([2**62, -1])}, [2]),
    "complex64": lambda lib: lib.TensorDict({"x": ramp(2).to(torch.complex64)}, [2]),
    "complex128": lambda lib: lib.TensorDict({"x": ramp(2).to(torch.complex128)}, [2]),
    "no elements": lambda lib: lib.TensorDict(
        {"z": torch.zeros(2, 0, 3), "x": ramp(2)}, [2]
    ),
    "no rows": lambda lib: lib.TensorDict({"z": torch.zeros(0, 3)}, [0]),
    "empty nodes": lambda lib: lib.TensorDict(
        {"e": lib.TensorDict({}, [2]), "x": ramp(2)}, [2]
    ),
    "nothing": lambda lib: lib.TensorDict({}, [2]),
    "0-d": lambda lib: lib.TensorDict({"a": torch.tensor(1.5), "b": ramp(1)}, []),
    "strided": lambda lib: lib.TensorDict({"t": ramp(3, 2).t(), "x": ramp(2)}, [2]),
    "expanded": lambda lib: lib.TensorDict({"x": torch.ones(1).expand(2, 3)}, [2]),
    "keys": lambda lib: lib.TensorDict({"a.b": ramp(2), "a/b": ramp(2) + 1}, [2]),
}
FORMATS: dict[str, Any] = {
    "memmap": "saved",
    "archive": "saved.tdz",
    "consolidated": "saved.cons",
    "safetensors": "saved.safetensors",
}

# What safetensors has not, and what the peer refuses to save there: ours hide it.
REFUSED = {("safetensors", "complex128")}
HIDDEN = {("safetensors", "text of rows"), ("safetensors", "ragged lazy stack")}
every = pytest.mark.parametrize(
    ("format", "feature"), [(a, b) for a in FORMATS for b in FEATURES]
)


def read(path: Path, format: str) -> Any:
    if format == "consolidated":
        return peer.TensorDict.from_consolidated(path)
    return (peer.from_safetensors if format == "safetensors" else peer.load_memmap)(
        path
    )


def write(td: Any, path: Path, format: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if format == "consolidated":
            td.consolidate(filename=path)
        elif format == "safetensors":
            peer.to_safetensors(td, path)
        elif format == "archive":
            td.save(path)
        else:
            td.memmap(path, copy_existing=True)


def as_loaded(feature: str) -> Any:
    """Return a tree as it is loaded without `cls`: records are plain nodes."""
    td = FEATURES[feature](tdfunc)
    return td.set("r", td["r"].to_tensordict()) if feature == "record" else td


@every
def test_it_loads_what_we_save(format: Any, feature: str, tmp_path: Path) -> None:
    path = tmp_path / FORMATS[format]
    ours, theirs = FEATURES[feature](tdfunc), FEATURES[feature](peer)
    if (format, feature) in REFUSED:
        with pytest.raises(tdfunc.errors.FormatLimitError, match="complex128"):
            ours.save(path, format=format)
        assert [] == [*tmp_path.iterdir()]
        return
    ours.save(path, format=format)

    got = read(path, format)

    assert_equal(tdfunc.load(path), as_loaded(feature), names=True)
    if (format, feature) in HIDDEN:
        return
    assert got.batch_size == theirs.batch_size
    assert list(got.names) == list(theirs.names)
    assert alike(plain_of(peer, got), plain_of(peer, theirs))


@every
def test_we_load_what_it_saves(format: Any, feature: str, tmp_path: Path) -> None:
    path, theirs = tmp_path / FORMATS[format], FEATURES[feature](peer)
    if (format, feature) in REFUSED | HIDDEN:
        with pytest.raises((TypeError, KeyError)):
            write(theirs, path, format)
        return
    write(theirs, path, format)

    assert_equal(tdfunc.load(path), as_loaded(feature), names=True)
    if feature == "record":
        back = tdfunc.load(path, cls={"r": Thing})
        assert type(back["r"]) is Thing
        assert_equal(back, FEATURES[feature](tdfunc))
