"""Values that are no tensors, as JSON that gives back the same value and type.

What JSON has is written as it is. Everything else is an object with two members, the
name of its type under ``"$"`` and what it is made of under ``"v"``; a mapping with
keys that are not text, or with the key ``"$"``, is one too. The types are those of
`_KINDS`, and no class is found by a name in a file. Other values are pickled, if that is
allowed on both sides.
"""

from __future__ import annotations

import json
import math
import pickle
from base64 import b64decode, b64encode
from collections import OrderedDict
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path as FilePath
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import torch

from tdfunc.errors import FileFormatError, FormatLimitError, PickleRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc.typing import Path

__all__ = [
    "dtype_name",
    "dtype_of",
    "dumps",
    "from_json",
    "is_plain",
    "loads",
    "to_json",
]

_TAG, _PARTS = "$", "v"

_MOST_DEPTH = 100  # of values in values; Python's own parser has an end too

# Python turns no longer text than this into an integer, unless its base is a power of 2.
_LONG_INTEGER = 1 << 4096

# What NumPy can rebuild from the bytes and a short name: numbers, text, times.
_ARRAY_KINDS = "biufcSUmM"

_DTYPES = {
    str(dtype): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in files, the one that torch prints."""
    return str(dtype)


def dtype_of(name: Any, file: str) -> torch.dtype:
    """Return the dtype of a name in a file.

    Raises:
        FileFormatError: there is no such dtype.
    """
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise FileFormatError(
            f"{file}: an entry has no dtype that is known",
            expected="the name of a dtype, as 'torch.float32'",
            got=_shown(name),
        )
    return dtype


def dumps(value: Any) -> bytes:
    """Return JSON in ASCII; NaN and infinities as Python writes them."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def loads(raw: bytes | str, name: str) -> Any:
    """Return what JSON says.

    Args:
        raw: the JSON, bytes in UTF-8. NaN and infinities may be in it as Python and
            the peer write them.
        name: the file, for errors.

    Raises:
        FileFormatError: this is no JSON, an object has a key twice, or it is nested
            more deeply than can be read.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise FileFormatError(
                f"{name}: an object has a key twice", got=_shown(twice[0])
            )
        return found

    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique)
    except FileFormatError:
        raise
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise FileFormatError(f"{name}: this is no valid JSON", got=reason) from error


def is_plain(value: Any) -> bool:
    """Return whether plain JSON gives back the same value and types."""
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        here, depth = pending.pop()
        kind = type(here)
        if kind is str:
            if not _is_text(here):
                return False
        elif kind is int:
            if not -_LONG_INTEGER < here < _LONG_INTEGER:
                return False
        elif kind is list or kind is dict:
            if depth == _MOST_DEPTH:
                return False
            if kind is dict:
                if any([type(key) is not str or not _is_text(key) for key in here]):
                    return False
                here = here.values()
            pending += [(part, depth + 1) for part in here]
        elif here is not None and kind is not bool and kind is not float:
            return False
    return True


def to_json(value: Any, path: Path, *, allow_pickle: bool) -> Any:
    """Return a value in the form described above.

    Args:
        value: the value.
        path: where it is in the tree, for errors.
        allow_pickle: pickle what has no other form.

    Raises:
        PickleRefusedError: it has no other form, and pickle is not allowed.
        FormatLimitError: it can not be pickled either, or is nested too deeply.
    """
    return _encoded(value, path, 0, allow_pickle=allow_pickle)


def from_json(data: Any, *, allow_pickle: bool, name: str) -> Any:
    """Return the value of which `to_json` made `data`.

    Args:
        data: what JSON gave.
        allow_pickle: unpickle what was pickled. Pickle runs what it is told to: only
            for files that you trust.
        name: the file, for errors.

    Raises:
        PickleRefusedError: it was pickled, and that is not allowed.
        FileFormatError: `data` is not in this form.
    """
    try:
        return _decoded(data, allow_pickle=allow_pickle, name=name)
    except (FileFormatError, PickleRefusedError):
        raise
    except Exception as error:
        # The parts of a tagged value are whatever somebody wrote there, and what is
        # built of them raises what it likes.
        raise FileFormatError(
            f"{name}: a value is not what its tag says", got=_shown(data)
        ) from error


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_text(value: str) -> bool:
    """Return whether JSON gives back the same text: it joins halves of characters."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _tagged(kind: str, parts: Any) -> dict[str, Any]:
    return {_TAG: kind, _PARTS: parts}


def _encoded(value: Any, path: Path, depth: int, *, allow_pickle: bool) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_text(value) else _tagged("str", _text_bytes(value))
    if kind is int:
        small = -_LONG_INTEGER < value < _LONG_INTEGER
        return value if small else _tagged("int", hex(value))
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if depth > _MOST_DEPTH:
        raise FormatLimitError(
            "a value is nested too deeply for a file, or contains itself",
            path=path,
            expected=f"at most {_MOST_DEPTH} values in each other",
        )

    def inner(part: Any) -> Any:
        return _encoded(part, path, depth + 1, allow_pickle=allow_pickle)

    if kind is list:
        return [inner(part) for part in value]
    if kind is dict:
        if all([type(key) is str and _is_text(key) for key in value]) and (
            _TAG not in value
        ):
            return {key: inner(part) for key, part in value.items()}
        return _tagged("dict", [[inner(k), inner(v)] for k, v in value.items()])
    if kind in _CONTAINERS:
        parts = [inner(part) for part in value]
        if kind in (set, frozenset):  # the same file every time
            parts.sort(key=json.dumps)
        return _tagged(_CONTAINERS[kind], parts)
    if kind is OrderedDict:
        return _tagged("OrderedDict", [[inner(k), inner(v)] for k, v in value.items()])
    if kind is slice:
        parts = [inner(p) for p in (value.start, value.stop, value.step)]
        return _tagged("slice", parts)
    exact = _exactly(value, kind)
    return _pickled(value, path, allow_pickle=allow_pickle) if exact is None else exact


def _exactly(value: Any, kind: type[Any]) -> Any:
    """Return a value of one of the other types as JSON, None if it is of none."""
    if isinstance(value, torch.Tensor):
        return _tensor_parts(value) if kind is torch.Tensor else None
    if isinstance(value, np.ndarray):
        exact = kind is np.ndarray and value.dtype.kind in _ARRAY_KINDS
        return _tagged("array", _array_parts(value)) if exact else None
    if isinstance(value, np.generic):
        exact = value.dtype.kind in _ARRAY_KINDS and kind is value.dtype.type
        return _tagged("scalar", _array_parts(np.asarray(value))) if exact else None
    for name, (cls, parts_of, made) in _KINDS.items():
        if kind is not cls:
            continue
        parts = parts_of(value)
        # Some values of a type are more than these parts: a time has a fold, and the
        # zone of its place.
        return _tagged(name, parts) if _is_same(made(parts), value) else None
    return None


def _is_same(made: Any, value: Any) -> bool:
    return repr(made) == repr(value)


def _text_bytes(value: str) -> str:
    return value.encode("utf-8", "surrogatepass").hex()


def _base64(raw: Any) -> str:
    return b64encode(raw).decode("ascii")


def _array_parts(array: np.ndarray[Any, Any]) -> list[Any]:
    return [array.dtype.str, list(array.shape), _base64(array.tobytes())]


def _array(parts: Any) -> np.ndarray[Any, Any]:
    name, shape, raw = parts
    dtype = np.dtype(str(name))
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(name)
    return np.frombuffer(b64decode(raw), dtype).reshape(shape).copy()


def _tensor_parts(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    if tensor.device.type == "meta":
        return None
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw: Any = flat.reshape(-1).view(torch.uint8).numpy() if flat.numel() else b""
    return _tagged("tensor", [dtype_name(flat.dtype), list(flat.shape), _base64(raw)])


def _tensor(parts: Any, name: str) -> torch.Tensor:
    kind, shape, raw = parts
    dtype = dtype_of(kind, name)
    data = bytearray(b64decode(raw))
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _pickled(value: Any, path: Path, *, allow_pickle: bool) -> Any:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not allow_pickle:
        raise PickleRefusedError(
            "this value has no form in a file but a pickle",
            path=path,
            expected="numbers, text, bytes, times, arrays, and containers of these",
            got=kind,
            fix="td.drop(path), or allow_pickle=True here and in load",
        )
    try:
        return _tagged("pickle", _base64(pickle.dumps(value, protocol=4)))
    except Exception as error:
        # `__reduce__` of a class raises what it likes.
        raise FormatLimitError(
            "this value can not be pickled", path=path, got=f"{kind}: {error}"
        ) from error


def _decoded(data: Any, *, allow_pickle: bool, name: str) -> Any:
    def inner(part: Any) -> Any:
        return _decoded(part, allow_pickle=allow_pickle, name=name)

    if isinstance(data, list):
        return [inner(part) for part in data]
    if not isinstance(data, dict):
        return data
    if _TAG not in data:
        return {key: inner(part) for key, part in data.items()}
    if data.keys() != {_TAG, _PARTS}:
        raise FileFormatError(f"{name}: a tagged value has no parts", got=_shown(data))
    kind, parts = data[_TAG], data[_PARTS]
    if kind == "pickle":
        if not allow_pickle:
            raise PickleRefusedError(
                f"{name}: a value was pickled",
                expected="no pickle, which runs what it is told to",
                fix="load(path, allow_pickle=True), if you trust the file",
            )
        return pickle.loads(b64decode(parts))  # noqa: S301 - asked for by the caller
    if kind in _MADE_OF_PARTS:
        return _MADE_OF_PARTS[kind]([inner(part) for part in parts])
    if kind in ("dict", "OrderedDict"):
        pairs = [(inner(key), inner(part)) for key, part in parts]
        return dict(pairs) if kind == "dict" else OrderedDict(pairs)
    if kind == "slice":
        start, stop, step = parts
        return slice(inner(start), inner(stop), inner(step))
    if kind == "tensor":
        return _tensor(parts, name)
    if kind == "array":
        return _array(parts)
    if kind == "scalar":
        return _array(parts)[()]
    if kind in _TEXTS:
        return _TEXTS[kind](parts)
    if kind in _KINDS:
        return _KINDS[kind][2](parts)
    raise FileFormatError(
        f"{name}: a value is of no kind that is known", got=_shown(kind)
    )


def _ints(value: Any) -> list[int]:
    return [int(part) for part in value]


def _dtype(name: Any) -> torch.dtype:
    return _DTYPES[name]


_CONTAINERS: dict[type[Any], str] = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
}

_MADE_OF_PARTS: dict[Any, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}

# What is text or a number in Python too, and JSON has not all of it.
_TEXTS: dict[Any, Callable[[Any], Any]] = {
    "str": lambda parts: bytes.fromhex(parts).decode("utf-8", "surrogatepass"),
    "int": lambda parts: int(parts, 16),
    "float": float,
}

# The type, its parts as JSON, and a value of parts.
_KINDS: dict[Any, tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "complex": (
        complex,
        lambda value: [repr(value.real), repr(value.imag)],
        lambda parts: complex(float(parts[0]), float(parts[1])),
    ),
    "bytes": (bytes, _base64, b64decode),
    "bytearray": (bytearray, _base64, lambda parts: bytearray(b64decode(parts))),
    "range": (
        range,
        lambda value: [value.start, value.stop, value.step],
        lambda parts: range(*_ints(parts)),
    ),
    "Ellipsis": (type(...), lambda _: None, lambda _: ...),
    "Size": (torch.Size, list, lambda parts: torch.Size(_ints(parts))),
    "dtype": (torch.dtype, dtype_name, _dtype),
    "device": (torch.device, str, torch.device),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "timedelta": (
        timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*_ints(parts)),
    ),
    "timezone": (
        timezone,
        lambda value: value.utcoffset(None).total_seconds(),
        lambda parts: timezone(timedelta(seconds=parts)),
    ),
    "Decimal": (Decimal, str, Decimal),
    "Fraction": (Fraction, str, Fraction),
    "UUID": (UUID, str, UUID),
    "Path": (type(FilePath()), str, FilePath),
    "PurePath": (type(PurePath()), str, PurePath),
    "PurePosixPath": (PurePosixPath, str, PurePosixPath),
    "PureWindowsPath": (PureWindowsPath, str, PureWindowsPath),
}
