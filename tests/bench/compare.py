"""Whether two sides of a case gave the same values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch


def check_same(got: Any, expected: Any) -> None:
    """Raise `AssertionError` unless both hold equal tensors and strings, in order."""
    ours, theirs = atoms(got), atoms(expected)
    assert len(ours) == len(theirs), f"{len(ours)} values instead of {len(theirs)}"
    for mine, yours in zip(ours, theirs, strict=True):
        if isinstance(yours, torch.Tensor):
            torch.testing.assert_close(mine, yours)
        else:
            assert mine == yours


def atoms(value: Any) -> list[Any]:
    """Return what trees, mappings (by sorted key) and sequences hold at their ends."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    elif dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return [atom for key in sorted(value) for atom in atoms(value[key])]
    if isinstance(value, (list, tuple)):
        return [atom for item in value for atom in atoms(item)]
    return [value]
