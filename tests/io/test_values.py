"""Values that are no tensors, to JSON and back."""

from __future__ import annotations

import enum
import json
import math
import pickle
from base64 import b64encode
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

from tdfunc.errors import FileFormatError, FormatLimitError, PickleRefusedError
from tdfunc.io._values import (
    dtype_name,
    dtype_of,
    dumps,
    from_json,
    is_plain,
    loads,
    to_json,
)

NEW_YEAR = datetime(2020, 1, 1, 12, 30, 15, 999, tzinfo=UTC)

VALUES = {
    "none": None,
    "true": True,
    "int": 1,
    "large int": 2**80,
    "float": 0.1,
    "negative zero": -0.0,
    "infinity": -math.inf,
    "text": "text",
    "accents": "e\u0301 \u00e9",
    "half a character": "\ud800",
    "two halves": "\ud83d\ude00",
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"x"),
    "list": [1, [2.5, "x"]],
    "tuple": (1, (2,), []),
    "dict": {"a": {"b": [1]}},
    "dict of ints": {1: "a", (2, 3): None},
    "dict with the tag": {"$": 1},
    "dict like a tagged value": {"$": "tuple", "v": [1]},
    "ordered": OrderedDict(b=1, a=2),
    "set": {3, 1, 2},
    "empty set": set(),
    "frozenset": frozenset({"a"}),
    "slice": slice(1, None, 2),
    "range": range(1, 10, 3),
    "ellipsis": ...,
    "complex": complex(1.5, -0.0),
    "datetime": NEW_YEAR,
    "naive datetime": NEW_YEAR.replace(tzinfo=None),
    "date": date(2020, 2, 29),
    "time": time(1, 2, 3, 4),
    "timedelta": timedelta(-1, 5, 7),
    "timezone": timezone(timedelta(hours=-3, minutes=-30)),
    "decimal": Decimal("1.10"),
    "fraction": Fraction(-1, 3),
    "uuid": UUID(int=5),
    "path": Path("/a/b"),
    "pure path": PurePosixPath("a/b"),
    "windows path": PureWindowsPath("C:/a"),
    "size": torch.Size([2, 3]),
    "dtype": torch.bfloat16,
    "device": torch.device("cuda:1"),
    "np.float32": np.float32(0.1),
    "np.int64": np.int64(3),
    "np.str_": np.str_("x"),
    "np.datetime64": np.datetime64("2020-01-01"),
    "array": np.arange(6.0).reshape(2, 3),
    "array of text": np.array(["a", "bcd"]),
    "array of times": np.array(["2020-01-01"], dtype="M8[D]"),
    "0-d array": np.array(5, dtype=np.int8),
    "big endian": np.arange(3, dtype=">i4"),
}


def through_json(value, *, allow_pickle=False):
    data = to_json(value, ("a",), allow_pickle=allow_pickle)
    raw = dumps(data)
    json.loads(raw, parse_constant=pytest.fail)  # as a strict parser reads it

    return from_json(loads(raw, "f"), allow_pickle=allow_pickle, name="f")


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_value_and_type_come_back(value):
    back = through_json(value)

    assert type(back) is type(value)
    assert repr(value) == repr(back)
    if not isinstance(value, np.ndarray):
        assert value == back


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 2),
        torch.tensor([1 + 2j]).conj(),
        torch.arange(4.0)[::2][:1],
    ],
    ids=["transposed", "0-d", "empty", "conj", "one element of many"],
)
def test_tensor_comes_back(value):
    back = through_json([value])[0]

    assert (value.dtype, value.shape) == (back.dtype, back.shape)
    assert torch.equal(value.resolve_conj(), back)


def test_nan_comes_back():
    assert math.isnan(through_json(math.nan))
    assert math.isnan(through_json(complex(1, math.nan)).imag)
    assert through_json(Decimal("NaN")).is_nan()


def test_integer_too_long_for_text_comes_back():
    assert 1 << 20_000 == through_json(1 << 20_000)
    assert -(10**4000) == through_json(-(10**4000))


def test_plain_values_are_plain_json():
    value = {"a": [1, 2.5, None, True, "x"]}

    assert value == to_json(value, (), allow_pickle=False)
    assert b'{"a":[1,2.5,null,true,"x"]}' == dumps(value)


def test_set_is_the_same_file_every_time():
    a = to_json({"x", "y", "z"}, (), allow_pickle=False)

    assert {"$": "set", "v": ["x", "y", "z"]} == a


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    x: int
    y: int


PICKLED = {
    "enum": Color.RED,
    "named tuple": Pair(1, 2),
    "time in a zone": NEW_YEAR.replace(tzinfo=ZoneInfo("Europe/Paris")),
    "folded time": NEW_YEAR.replace(fold=1),
    "array of objects": np.array([None, {}]),
}


@pytest.mark.parametrize("value", PICKLED.values(), ids=PICKLED.keys())
def test_other_values_need_pickle_on_both_sides(value):
    with pytest.raises(PickleRefusedError, match=r"td\['a'\].*allow_pickle=True"):
        through_json([value])
    data = to_json(value, ("a",), allow_pickle=True)
    with pytest.raises(PickleRefusedError, match=r"f: a value was pickled"):
        from_json(data, allow_pickle=False, name="f")

    back = through_json([value], allow_pickle=True)[0]

    assert type(back) is type(value)
    assert repr(value) == repr(back)


def test_value_that_nothing_can_write():
    with pytest.raises(FormatLimitError, match=r"td\['a'\].*function"):
        through_json(lambda: 0, allow_pickle=True)


def test_value_that_contains_itself():
    loop = []
    loop.append({"a": (loop,)})

    with pytest.raises(FormatLimitError, match="contains itself"):
        through_json(loop)
    assert not is_plain(loop)


BROKEN = {
    "no parts": {"$": "tuple"},
    "one member too many": {"$": "tuple", "v": [], "w": 1},
    "unknown": {"$": "os.system", "v": "ls"},
    "unhashable": {"$": ["tuple"], "v": []},
    "no list": {"$": "tuple", "v": {"a": 1}},
    "no pairs": {"$": "dict", "v": [[1]]},
    "no base64": {"$": "bytes", "v": "!"},
    "objects": {"$": "array", "v": ["O", [1], "AAAAAAAAAAA="]},
    "short array": {"$": "array", "v": ["<f8", [2], "AAAAAAAAAAA="]},
    "short tensor": {"$": "tensor", "v": ["torch.float64", [2], "AAAAAAAAAAA="]},
    "huge tensor": {"$": "tensor", "v": ["torch.float64", [2**62], "AAAAAAAAAAA="]},
    "unknown dtype": {"$": "dtype", "v": "torch.os"},
    "zero step": {"$": "range", "v": [1, 2, 0]},
    "no date": {"$": "date", "v": "2020-02-30"},
    "no pickle": {"$": "pickle", "v": "AAAA"},
    "unhashable part": {"$": "set", "v": [[]]},
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_broken_values_name_the_file(data):
    with pytest.raises(FileFormatError, match="some file: a "):
        from_json([data], allow_pickle=True, name="some file")


def test_pickle_that_was_planted_does_not_run(tmp_path):
    class Planted:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    raw = b64encode(pickle.dumps(Planted())).decode()
    with pytest.raises(PickleRefusedError):
        from_json({"a": {"$": "pickle", "v": raw}}, allow_pickle=False, name="f")

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', "a key twice - got 'a'"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "can't decode"),
        (b'{"a":', "Expecting value"),
        (b"1" * 5000, "4300 digits"),
        (b"", "Expecting value"),
    ],
    ids=["twice", "deep", "no utf-8", "cut", "long number", "empty"],
)
def test_broken_json_names_the_file(raw, reason):
    with pytest.raises(FileFormatError, match=f"some file: .*{reason}"):
        loads(raw, "some file")


def test_json_of_the_peer_may_have_nan_and_unicode():
    data = loads('{"é": NaN, "b": -Infinity}'.encode(), "f")

    assert math.isnan(data["\u00e9"])
    assert -math.inf == data["b"]


@pytest.mark.parametrize(
    "value",
    [None, 1, 1.5, math.nan, "\u00e9", [1, ["x"]], {"a": {"b": None}}, {"$": 1}],
)
def test_plain(value):
    assert is_plain(value)


@pytest.mark.parametrize(
    "value",
    [(1,), [(1,)], {1: 2}, {"a": {1}}, "\ud800", {"\ud800": 1}, b"x", np.int64(1)],
    ids=ascii,
)
def test_not_plain(value):
    assert not is_plain(value)


def test_dtypes_by_name():
    names = ["torch.float32", "torch.float8_e4m3fn", "torch.complex32", "torch.uint16"]

    assert names == [dtype_name(dtype_of(name, "f")) for name in names]
    for name in ["torch.os", "float32", "torch.qint8", 1, None, ["torch.bool"]]:
        with pytest.raises(FileFormatError, match="some file: an entry has no dtype"):
            dtype_of(name, "some file")
