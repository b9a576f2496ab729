"""Values that are no tensors, as JSON that gives back the same value and type.

What JSON has is written as it is. Everything else is an object with two members, the
name of its type under ``"$"`` and what it is made of under ``"v"``; a mapping with
keys that are not text, or with the key ``"$"``, is one too. The types are those of
`_FORMS`, and no class is found by a name in a file. Other values are pickled, if that
is allowed on both sides.
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
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
import torch

from tdfunc.errors import FileFormatError, FormatLimitError, PickleRefusedError
from tdfunc.io._map import as_buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdfunc.typing import Path

__all__ = [
    "PEER_DTYPES",
    "PICKLED",
    "dtype_name",
    "dtype_of",
    "dumps",
    "from_json",
    "is_plain",
    "is_text",
    "loads",
    "to_json",
    "unpickle",
]

_TAG, _PARTS = "$", "v"

_PICKLE = "pickle"

_MOST_SHOWN = 80  # characters of a value in an error

_MOST_DEPTH = 100  # of values in values; Python's own parser has an end too

# Python makes an integer of no longer text than this, unless in a base of 2, 4, 8 ...
_LONG_INTEGER = 1 << 4096

# What NumPy can rebuild from the bytes and a short name: numbers, text, times.
_ARRAY_KINDS = "biufcSUmM"

_DTYPES = {
    str(dtype): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")
}


PEER_DTYPES: Final = frozenset(
    {
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16),
        *(torch.float16, torch.float32, torch.float64),
        *(torch.complex32, torch.complex64, torch.complex128),
    }
)
"""The dtypes that the peer finds by their names."""


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
    except FileFormatError:  # a ValueError too
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
        if kind is list or kind is dict:
            if depth == _MOST_DEPTH:
                return False
            keys = list(here) if kind is dict else []
            parts = [here[key] for key in keys] if kind is dict else here
            if not all([type(key) is str and is_text(key) for key in keys]):
                return False
            pending += [(part, depth + 1) for part in parts]
        elif not (_is_atom(here) or kind is float):
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


def from_json(data: Any, *, allow_pickle: bool | None, name: str) -> Any:
    """Return the value of which `to_json` made `data`.

    Args:
        data: what JSON gave.
        allow_pickle: unpickle what was pickled. Pickle runs what it is told to: only
            for files that you trust. None has `PICKLED` in its place.
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


class _Pickled:
    """Stands for a value that was pickled, where files are only looked at."""

    def __repr__(self) -> str:
        return "<pickled>"


PICKLED: Final = _Pickled()


def unpickle(raw: bytes, *, allow_pickle: bool | None, name: str) -> Any:
    """Return the value of a pickle in a file; the only place that reads one.

    Raises:
        PickleRefusedError: that is not allowed.
        FileFormatError: this is no pickle, or what it is of can not be made.
    """
    if allow_pickle is None:
        return PICKLED
    if not allow_pickle:
        raise PickleRefusedError(
            f"{name}: a value was pickled",
            expected="no pickle, which runs what it is told to",
            fix="load(path, allow_pickle=True), if you trust the file",
        )
    try:
        return pickle.loads(raw)  # noqa: S301 - asked for by the caller
    except Exception as error:
        # What a pickle runs raises what it likes.
        raise FileFormatError(
            f"{name}: a pickle can not be read", got=repr(error)
        ) from error


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def is_text(value: str) -> bool:
    """Return whether JSON gives back the same text: it joins halves of characters."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_atom(value: Any) -> bool:
    """Return whether a value is as it is in JSON, of all parsers."""
    kind = type(value)
    if kind is str:
        return is_text(value)
    if kind is int:
        return -_LONG_INTEGER < value < _LONG_INTEGER
    if kind is float:
        return math.isfinite(value)
    return value is None or kind is bool


def _encoded(value: Any, path: Path, depth: int, *, allow_pickle: bool) -> Any:
    if _is_atom(value):
        return value
    if depth > _MOST_DEPTH:
        raise FormatLimitError(
            "a value is nested too deeply for a file, or contains itself",
            path=path,
            expected=f"at most {_MOST_DEPTH} values in each other",
        )

    def inner(part: Any) -> Any:
        return _encoded(part, path, depth + 1, allow_pickle=allow_pickle)

    if type(value) is list:
        return [inner(part) for part in value]
    if type(value) is dict and _TAG not in value and all(map(_is_key, value)):
        return {key: inner(part) for key, part in value.items()}
    found = _form_of(value)
    if found is None:
        return _pickled(value, path, allow_pickle=allow_pickle)
    name, form = found
    return {_TAG: name, _PARTS: form.parts(value, inner)}


def _is_key(key: Any) -> bool:
    return type(key) is str and is_text(key)


def _form_of(value: Any) -> tuple[str, _Form] | None:
    """Return the form of a value and its name, None if it has none."""
    kind = type(value)
    if isinstance(value, np.generic) and type(value) is value.dtype.type:
        kind = np.generic
    name = _NAMES.get(kind)
    if name is None:
        return None
    form = _FORMS[name]
    return (name, form) if form.has(value) else None


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
        raw = pickle.dumps(value, protocol=4)
    except Exception as error:
        # `__reduce__` of a class raises what it likes.
        raise FormatLimitError(
            "this value can not be pickled", path=path, got=f"{kind}: {error}"
        ) from error
    return {_TAG: _PICKLE, _PARTS: _base64(raw)}


def _decoded(data: Any, *, allow_pickle: bool | None, name: str) -> Any:
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
    if data[_TAG] == _PICKLE:
        return unpickle(_bytes(data[_PARTS]), allow_pickle=allow_pickle, name=name)
    form = _FORMS.get(data[_TAG])
    if form is None:
        raise FileFormatError(
            f"{name}: a value is of no kind that is known", got=_shown(data[_TAG])
        )
    return form.made(data[_PARTS], inner)


_Inner: TypeAlias = "Callable[[Any], Any]"


class _Form(NamedTuple):
    """A type: its parts as JSON, a value of parts, and which values it holds."""

    cls: type[Any]
    parts: Callable[[Any, _Inner], Any]
    made: Callable[[Any, _Inner], Any]
    has: Callable[[Any], bool] = lambda _: True


def _of_parts(cls: type[Any]) -> _Form:
    """Return the form of a container that is made of a list of its parts."""
    return _Form(
        cls,
        lambda value, inner: [inner(part) for part in value],
        lambda parts, inner: cls([inner(part) for part in _listed(parts)]),
    )


def _of_set(cls: type[Any]) -> _Form:
    """Return the form of a set, which is the same file every time."""
    return _Form(
        cls,
        lambda value, inner: sorted([inner(part) for part in value], key=json.dumps),
        lambda parts, inner: cls([inner(part) for part in _listed(parts)]),
    )


def _of_pairs(cls: type[Any]) -> _Form:
    return _Form(
        cls,
        lambda value, inner: [[inner(k), inner(v)] for k, v in value.items()],
        lambda parts, inner: cls([(inner(k), inner(v)) for k, v in _listed(parts)]),
    )


def _of_text(
    cls: type[Any], parts: Callable[[Any], Any], made: Callable[[Any], Any]
) -> _Form:
    """Return the form of a type whose values are all that their parts say.

    Some are more: a time has a fold, and the zone of a place.
    """
    return _Form(
        cls,
        lambda value, _: parts(value),
        lambda text, _: made(text),
        lambda value: repr(made(parts(value))) == repr(value),
    )


def _base64(raw: Any) -> str:
    return b64encode(raw).decode("ascii")


def _bytes(text: Any) -> bytes:
    return b64decode(text, validate=True)


def _listed(parts: Any) -> list[Any]:
    if not isinstance(parts, list):
        raise TypeError(parts)
    return parts


def _ints(parts: Any) -> list[int]:
    return [int(part) for part in parts]


def _array_parts(array: Any, _: _Inner) -> list[Any]:
    return [array.dtype.str, list(array.shape), _base64(array.tobytes())]


def _array(parts: Any, _: _Inner) -> np.ndarray[Any, Any]:
    name, shape, raw = parts
    dtype = np.dtype(str(name))
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(name)
    return np.frombuffer(_bytes(raw), dtype).reshape(shape).copy()


def _is_array(value: Any) -> bool:
    return value.dtype.kind in _ARRAY_KINDS


def _is_dense(tensor: torch.Tensor) -> bool:
    dense = tensor.layout is torch.strided and not tensor.is_nested
    return dense and not tensor.is_quantized and tensor.device.type != "meta"


def _tensor_parts(tensor: torch.Tensor, _: _Inner) -> list[Any]:
    raw = _base64(as_buffer(tensor))
    return [dtype_name(tensor.dtype), list(tensor.shape), raw]


def _tensor(parts: Any, _: _Inner) -> torch.Tensor:
    name, shape, raw = parts
    data = bytearray(_bytes(raw))
    if not data:
        # Of a shape that has elements, this fails before memory is asked for.
        return torch.empty(0, dtype=_DTYPES[name]).reshape(shape)
    return torch.frombuffer(data, dtype=_DTYPES[name]).reshape(shape)


_FORMS: dict[Any, _Form] = {
    # What JSON has, but not all of it.
    "str": _of_text(
        str,
        lambda value: value.encode("utf-8", "surrogatepass").hex(),
        lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    ),
    "int": _Form(int, lambda value, _: hex(value), lambda text, _: int(text, 16)),
    "float": _of_text(float, repr, float),
    "dict": _of_pairs(dict),
    "OrderedDict": _of_pairs(OrderedDict),
    "tuple": _of_parts(tuple),
    "set": _of_set(set),
    "frozenset": _of_set(frozenset),
    "slice": _Form(
        slice,
        lambda value, inner: [inner(p) for p in (value.start, value.stop, value.step)],
        lambda parts, inner: slice(*[inner(parts[at]) for at in range(3)]),
    ),
    "range": _of_text(
        range,
        lambda value: [value.start, value.stop, value.step],
        lambda parts: range(*_ints(parts)),
    ),
    "Ellipsis": _of_text(type(...), lambda _: None, lambda _: ...),
    "complex": _of_text(
        complex,
        lambda value: [repr(value.real), repr(value.imag)],
        lambda parts: complex(*[float(part) for part in parts]),
    ),
    "bytes": _of_text(bytes, _base64, _bytes),
    "bytearray": _of_text(bytearray, _base64, lambda text: bytearray(_bytes(text))),
    "datetime": _of_text(datetime, datetime.isoformat, datetime.fromisoformat),
    "date": _of_text(date, date.isoformat, date.fromisoformat),
    "time": _of_text(time, time.isoformat, time.fromisoformat),
    "timedelta": _of_text(
        timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*_ints(parts)),
    ),
    "timezone": _of_text(
        timezone,
        lambda value: value.utcoffset(None).total_seconds(),
        lambda seconds: timezone(timedelta(seconds=seconds)),
    ),
    "Decimal": _of_text(Decimal, str, Decimal),
    "Fraction": _of_text(Fraction, str, Fraction),
    "UUID": _of_text(UUID, str, UUID),
    "Path": _of_text(type(FilePath()), str, FilePath),
    "PurePosixPath": _of_text(PurePosixPath, str, PurePosixPath),
    "PureWindowsPath": _of_text(PureWindowsPath, str, PureWindowsPath),
    "array": _Form(np.ndarray, _array_parts, _array, _is_array),
    "scalar": _Form(
        np.generic,
        _array_parts,
        lambda parts, inner: _array(parts, inner)[()],
        _is_array,
    ),
    "tensor": _Form(torch.Tensor, _tensor_parts, _tensor, _is_dense),
    "Size": _of_text(torch.Size, list, lambda parts: torch.Size(_ints(parts))),
    "dtype": _of_text(torch.dtype, dtype_name, lambda name: _DTYPES[name]),
    "device": _of_text(torch.device, str, torch.device),
}

_NAMES = {form.cls: name for name, form in _FORMS.items()}
