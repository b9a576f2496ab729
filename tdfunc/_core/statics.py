"""Values that are not tensors, in one immutable box passed on by reference.

The box is what keeps text and objects off the hot paths: a transform or a
compiled function carries it along without looking inside, so that twenty
different strings are one compilation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias, final

import numpy as np
import torch

from tdfunc._core._torch import is_tracing
from tdfunc._core.pickling import own_elements

__all__ = ["NO_STATICS", "NonTensorData", "Statics", "gather_statics", "same_value"]


@final
class NonTensorData:
    """Marks a value as one static entry, whatever its type.

    Needed where the plain value means something else: a list, a dict or a number
    that is not to become rows, a nested node or a tensor. Reading the entry gives
    the value itself, not this wrapper.

    Args:
        data: the value; kept by reference.

    Examples:
        >>> from tdfunc import TensorDict
        >>> TensorDict({"tags": NonTensorData(["a", "b"])})["tags"]
        ['a', 'b']
    """

    __slots__ = ("data",)

    def __init__(self, data: object) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"NonTensorData({self.data!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonTensorData) and same_value(self.data, other.data)

    def __hash__(self) -> int:
        # Equal values may be unhashable (lists, arrays), so all share one hash.
        return hash(NonTensorData)


# Boxes that hold their values, and for each value its box and its place there.
Pointer: TypeAlias = "tuple[tuple[Statics, ...], tuple[tuple[int, int], ...]]"


@final
class Statics:
    """An immutable tuple of values, compared safely and hashed without looking.

    Two boxes are equal when they are the same object or hold the same values
    (see `same_value`); the hash is one constant, since values may be unhashable.

    A box made while Dynamo traces only says where its values are to be found, since a
    value that is read is guarded, and another string would compile again. It collects
    them at its first use.

    Attributes:
        count: how many values there are.
    """

    __slots__ = ("_pointer", "_values", "count")

    def __init__(
        self, values: tuple[Any, ...] | None, pointer: Pointer | None = None
    ) -> None:
        self._values = values
        self._pointer = pointer
        self.count = len(values or ()) if pointer is None else len(pointer[1])

    @property
    def values(self) -> tuple[Any, ...]:
        """The values."""
        pointer = self._pointer
        if pointer is not None:
            sources, places = pointer
            boxes = [source.values for source in sources]
            # Values before pointer: a thread that finds no pointer finds values. The
            # sources go, and what they hold beside these values with them.
            self._values = tuple([boxes[box][at] for box, at in places])
            self._pointer = None
        return self._values or ()

    def part(self, start: int, stop: int) -> Statics:
        """Return the box of ``values[start:stop]``, sharing the values."""
        return gather_statics([(self, at) for at in range(start, stop)])

    def spliced(self, start: int, stop: int, new: Statics) -> Statics:
        """Return the box with ``values[start:stop]`` replaced by those of `new`."""
        if start == stop and not new.count:
            return self
        before = [(self, at) for at in range(start)]
        after = [(self, at) for at in range(stop, self.count)]
        return gather_statics(before + [(new, at) for at in range(new.count)] + after)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Statics):
            return NotImplemented
        return self.count == other.count and all(
            map(same_value, self.values, other.values)
        )

    def __hash__(self) -> int:
        return hash(Statics)

    def __repr__(self) -> str:
        return f"Statics({self.values!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # An unbatched tensor is its elements, not the storage that they are in.
        return rebuild_statics, (tuple([own_elements(x) for x in self.values]),)


NO_STATICS = Statics(())


def gather_statics(places: list[tuple[Statics, int]]) -> Statics:
    """Return the box of the values at these places of other boxes."""
    if not places:
        return NO_STATICS
    if not is_tracing():
        return Statics(tuple([box.values[at] for box, at in places]))
    sources: list[Statics] = []
    found: list[tuple[int, int]] = []
    for box, place in places:
        origin, at = box, place
        # A box that only points is looked through, so that pointers do not pile up
        # when a compiled function is fed what it returned.
        pointer = box._pointer
        if pointer is not None:
            source, at = pointer[1][place]
            origin = pointer[0][source]
        number = next((i for i, old in enumerate(sources) if old is origin), -1)
        if number < 0:
            number = len(sources)
            sources.append(origin)
        found.append((number, at))
    return Statics(None, (tuple(sources), tuple(found)))


def rebuild_statics(values: tuple[Any, ...]) -> Statics:
    """Return the box of `values`; the empty box is always the same object."""
    return Statics(values) if values else NO_STATICS


def same_value(a: object, b: object) -> bool:
    """Return whether two static values are the same, without ever raising.

    The types must be equal (``1``, ``True`` and ``1.0`` differ), NaN equals itself,
    arrays and tensors are compared by dtype, shape and content.

    Examples:
        >>> same_value(float("nan"), float("nan")), same_value(1, True)
        (True, False)
    """
    pending: list[tuple[Any, Any]] = [(a, b)]
    seen: set[tuple[int, int]] = set()
    while pending:
        x, y = pending.pop()
        if x is y:
            continue
        if type(x) is not type(y):
            return False
        if (id(x), id(y)) in seen:
            continue
        if isinstance(x, (list, tuple)):
            seen.add((id(x), id(y)))
            if len(x) != len(y):
                return False
            pending.extend(zip(x, y, strict=True))
        elif isinstance(x, Mapping):
            seen.add((id(x), id(y)))
            if list(x) != list(y) and set(x) != set(y):
                return False
            pending.extend((x[k], y[k]) for k in x)
        elif not _same_atom(x, y):
            return False
    return True


def _same_atom(x: Any, y: Any) -> bool:
    if isinstance(x, float) and math.isnan(x) and math.isnan(y):
        return True
    try:
        if isinstance(x, torch.Tensor):
            return x.dtype == y.dtype and x.shape == y.shape and _all_close(x, y)
        if isinstance(x, np.ndarray):
            return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=_has_nan(x))
        return bool(x == y)
    except Exception:  # noqa: BLE001 - a user's __eq__ may raise anything: not the same
        return False


def _all_close(x: torch.Tensor, y: torch.Tensor) -> bool:
    same = x == y
    if x.is_floating_point() or x.is_complex():
        same = same | (x.isnan() & y.isnan())
    return bool(same.all())


def _has_nan(x: np.ndarray[Any, Any]) -> bool:
    return x.dtype.kind in "fc"
