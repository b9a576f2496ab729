"""One value that is no tensor for every row: a code leaf and a table of values.

Text per row is stored as an int64 tensor of codes, which moves as any leaf does, and
a `Table` among the statics that says what the codes stand for. A code holds the place
of its value in the table and a checksum of that value::

    bit 62      always set, so that 0 is no code
    bits 32-61  checksum of the value
    bits 0-31   its place in the table

so that a code which was computed with instead of moved, or read by the table of
another tree, is found out when it is read. Joins let tables grow at the end: a code
that is right for a table is right for every longer one. Where values are left out
(`pruned`), the rows get other codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast, final
from zlib import crc32

import numpy as np
import torch

from tdfunc._core._torch import is_tracing, register_trace_constant
from tdfunc._core.statics import same_value
from tdfunc.errors import InvalidLeafError, OperandError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc.typing import Path

__all__ = [
    "NonTensorStack",
    "Table",
    "decode",
    "encode",
    "merged",
    "pruned",
    "recoded",
    "trimmed",
    "united",
]

_MARK: Final = 1 << 62
_CHECK: Final = (1 << 30) - 1
_PLACE: Final = (1 << 32) - 1
# A table is trimmed when it has more values than this, and than so many a row.
_SMALL: Final = 64
_SPARE: Final = 4

# Types whose equal values may share one place. Others are told apart by identity: a
# user's __eq__ may raise, and equal lists may change apart.
_DATES = frozenset({np.datetime64, np.timedelta64})
_ATOMS = _DATES | {str, bytes, int, float, bool, type(None), complex}


@final
class NonTensorStack:
    """Marks its arguments as one value for each row of the first batch dim.

    A list of texts needs no marking. This is for values that would mean something
    else: lists, dicts, numbers that are not to become a tensor. Arguments that are
    stacks themselves make more dims. Reading the entry gives (nested) lists.

    Args:
        values: one value for every row; kept by reference.

    Raises:
        InvalidLeafError: some arguments are stacks and some are not, or the stacks
            have different lengths.

    Examples:
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"tags": NonTensorStack(["a"], ["b", "c"])}, 2)
        >>> td["tags"], td[1]["tags"]
        ([['a'], ['b', 'c']], ['b', 'c'])
    """

    __slots__ = ("shape", "values")

    def __init__(self, *values: object) -> None:
        self.values = values
        self.shape: tuple[int, ...] = (len(values),)
        inner = {v.shape for v in values if isinstance(v, NonTensorStack)}
        if inner:
            whole = all([isinstance(v, NonTensorStack) for v in values])
            if len(inner) > 1 or not whole:
                raise InvalidLeafError(
                    "the parts of a stack are not alike",
                    expected="only stacks of one shape, or no stack",
                    got=", ".join([type(v).__name__ for v in values]),
                )
            self.shape = (len(values), *inner.pop())

    def tolist(self) -> list[Any]:
        """Return the values in nested lists, one level for every dim."""
        return [v.tolist() if isinstance(v, NonTensorStack) else v for v in self.values]

    def flat(self) -> list[Any]:
        """Return the values row by row."""
        level: list[Any] = list(self.values)
        for _ in self.shape[1:]:
            level = [value for stack in level for value in stack.values]
        return level

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"NonTensorStack({', '.join([repr(v) for v in self.values])})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonTensorStack) and same_value(
            self.values, other.values
        )

    def __hash__(self) -> int:
        return hash(NonTensorStack)


@final
class Table:
    """The distinct values that the codes of one entry stand for; never changes.

    Attributes:
        values: the values, in the order in which they came.
        codes: the code of each.
    """

    __slots__ = ("__weakref__", "_places", "codes", "values")

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self.codes = tuple([_code(at, value) for at, value in enumerate(values)])
        self._places: dict[Any, int] | None = None

    @property
    def places(self) -> dict[Any, int]:
        """The place of every value by what tells it from others."""
        places = self._places
        if places is None:
            places = {_token(value): at for at, value in enumerate(self.values)}
            self._places = places
        return places

    def place_of(self, value: Any) -> int:
        """Return the place of one of the values."""
        return self.places[_token(value)]

    # Under Dynamo a table is a constant, and these run for real.

    def joined(self, others: tuple[Table, ...]) -> Table:
        """Return the table of the values of all, which keeps the codes of this one."""
        # By what tells values from others: equal lists are two values.
        if all([table is self or table.places == self.places for table in others]):
            return self
        places = dict(self.places)
        values = list(self.values)
        for table in others:
            for token, at in table.places.items():
                if token not in places:
                    places[token] = len(values)
                    values.append(table.values[at])
        return self if len(values) == len(self.values) else Table(tuple(values))

    def code_of(self, value: Any) -> int:
        """Return the code of one of the values."""
        return self.codes[self.place_of(value)]

    def code_at(self, place: int) -> int:
        """Return the code of the value at a place."""
        return self.codes[place]

    def count(self) -> int:
        """Return how many values there are."""
        return len(self.codes)

    def all_codes(self) -> tuple[int, ...]:
        """Return the codes, and 0, which is none."""
        return (*self.codes, 0)

    def targets(self, new: Table) -> tuple[int, ...] | None:
        """Return the codes of the values in another table, and 0; None if the same."""
        places = self.places
        if new is self or all([new.places.get(k) == at for k, at in places.items()]):
            return None
        return (*[new.codes[new.place_of(value)] for value in self.values], 0)

    def united(self) -> tuple[int, ...] | None:
        """Return for every value, and 0, the code of the first that is the same."""
        firsts = _firsts(self.values)
        return None if firsts is None else (*[self.codes[at] for at in firsts], 0)

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        """Return source for this table, which is the table itself, and its names."""
        name = f"table{id(self)}"
        return name, {name: self}

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Table):
            return NotImplemented
        return self.codes == other.codes and same_value(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.codes)

    def __repr__(self) -> str:
        return f"Table({self.values!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return Table, (self.values,)

    def __copy__(self) -> Table:
        return self


def encode(values: Sequence[Any], shape: Sequence[int]) -> tuple[torch.Tensor, Table]:
    """Return the codes, of this shape, and the table of values given row by row."""
    places: dict[Any, int] = {}
    distinct: list[Any] = []
    rows: list[int] = []
    for value in values:
        token = _token(value)
        place = places.get(token)
        if place is None:
            place = places[token] = len(distinct)
            distinct.append(value)
        rows.append(place)
    table = Table(tuple(distinct))
    codes = torch.tensor([table.code_at(at) for at in rows], dtype=torch.int64)
    return codes.reshape(tuple(shape)), table


def decode(codes: Any, table: Table, path: Path) -> Any:
    """Return the value of a code without dims, or nested lists of values.

    Raises:
        OperandError: the codes can not be read here (inside `vmap` or a compiled
            function), or are not what was stored: something computed with them.
    """
    if is_tracing() or not isinstance(codes, torch.Tensor):
        raise _unreadable(path, "a compiled function" if is_tracing() else repr(codes))
    try:
        array = cast("np.ndarray[Any, Any]", codes.detach().cpu().numpy())
    except RuntimeError as error:
        raise _unreadable(path, "a transform") from error
    known = np.array(table.codes, dtype=np.int64)
    rows = array.reshape(-1)
    if rows.dtype != np.int64:
        rows = np.zeros(rows.shape, dtype=np.int64)  # no codes, whatever they are
    places = rows & _PLACE
    inside = places < len(known)
    right = np.zeros(rows.shape, dtype=bool)
    right[inside] = known[places[inside]] == rows[inside]
    if not right.all():
        raise OperandError(
            "the codes of these texts are not those that were stored",
            path=path,
            expected="codes that were only moved: indexed, stacked, reshaped",
            got=f"{int((~right).sum())} of {right.size} changed, or of another tree",
            fix="td.filter_non_tensor() leaves them out of a computation",
        )
    out: Any = [table.values[at] for at in places]
    for size in reversed(array.shape[1:]):
        count = len(out) // size if size else _product(array.shape[:-1])
        out = [out[i * size : (i + 1) * size] for i in range(count)]
    return out if array.ndim else out[0]


def merged(tables: Sequence[Table]) -> Table:
    """Return the table of the values of all, which keeps the codes of the first."""
    if len(tables) == 1:
        return tables[0]
    return tables[0].joined(tuple(tables[1:]))


def recoded(codes: torch.Tensor, old: Table, new: Table) -> torch.Tensor:
    """Return codes of one table as codes of another, which has all its values.

    A code that is none of the old table becomes 0, which no table knows.
    """
    targets = old.targets(new)
    return codes if targets is None else _replaced(codes, old, targets, 0)


def _replaced(
    codes: torch.Tensor, table: Table, targets: tuple[int, ...], other: Any
) -> torch.Tensor:
    """Return codes of a table replaced by others, and `other` for what is none."""
    # One row more, for what is out of range, also in an empty table.
    known = torch.tensor(table.all_codes(), device=codes.device)
    target = torch.tensor(targets, device=codes.device)
    # In one dim: while compiling, an index without dims is an int that is not known.
    at = (codes & _PLACE).clamp(max=table.count()).reshape(-1)
    own, new = [x.index_select(0, at).reshape(codes.shape) for x in (known, target)]
    return torch.where(own == codes, new, other)


def united(codes: torch.Tensor, table: Table) -> torch.Tensor:
    """Return codes in which values that are the same have one code, to compare them."""
    targets = table.united()
    return codes if targets is None else _replaced(codes, table, targets, codes)


def pruned(codes: Any, table: Table) -> tuple[Any, Table]:
    """Return codes and table without the values that no code stands for.

    Both as they are where all values are used, where a code is none of the table, and
    where codes can not be read (inside a transform or a compiled function).
    """
    plain = type(codes) is torch.Tensor and codes.dtype == torch.int64
    if is_tracing() or not plain:
        return codes, table
    try:
        array = cast("np.ndarray[Any, Any]", codes.detach().cpu().numpy())
    except RuntimeError:
        return codes, table
    used, inverse = np.unique(array & _PLACE, return_inverse=True)
    if len(used) == len(table.codes) or (used >= len(table.codes)).any():
        return codes, table
    known = np.array([table.codes[at] for at in used], dtype=np.int64)
    inverse = inverse.reshape(array.shape)
    if not (known[inverse] == array).all():
        return codes, table
    new = Table(tuple([table.values[at] for at in used]))
    wanted = np.array(new.codes, dtype=np.int64)[inverse]
    return torch.from_numpy(wanted.reshape(-1)).reshape(codes.shape).to(
        codes.device
    ), new


def trimmed(codes: torch.Tensor, table: Table) -> tuple[torch.Tensor, Table]:
    """Return codes and table `pruned` if the table is much larger than the rows.

    What extends a table takes as long as it is large.
    """
    if is_tracing() or len(table.codes) <= _SMALL:
        return codes, table
    if len(table.codes) <= _SPARE * codes.numel():
        return codes, table
    return pruned(codes, table)


def _firsts(values: tuple[Any, ...]) -> list[int] | None:
    """Return where the first value is that is the same as each, None if they differ.

    Atoms that are the same share their place anyhow.
    """
    if _ATOMS.issuperset(map(type, values)):
        return None
    firsts = list(range(len(values)))
    groups: dict[Any, list[int]] = {}
    for at, value in enumerate(values):
        if type(value) in _ATOMS:
            continue
        group = groups.setdefault(_outline(value, 3), [])
        for other in group:
            if same_value(values[other], value):
                firsts[at] = other
                break
        else:
            group.append(at)
    return firsts if any([at != to for at, to in enumerate(firsts)]) else None


def _outline(value: Any, depth: int) -> Any:
    """Return what values that are the same share, so that few have to be compared."""
    kind = type(value)
    if kind in (str, bytes, int):
        return kind, value
    if depth and isinstance(value, (list, tuple)):
        items: Any = value
        return kind, len(items), tuple([_outline(v, depth - 1) for v in items[:8]])
    if depth and kind is dict:
        # By `_outline` of values in no order: keys may come in another.
        return kind, frozenset([_outline(v, depth - 1) for v in value.values()])
    return kind


def _unreadable(path: Path, where: str) -> OperandError:
    return OperandError(
        "one value for every row can not be read here, only passed on",
        path=path,
        expected="plain codes",
        got=where,
        fix="read it outside of the transform, or pass its values as an argument",
    )


def _token(value: Any) -> Any:
    """Return what equal values share: of text and numbers type and content."""
    kind = type(value)
    if kind not in _ATOMS:
        return id(value)
    if kind in _DATES:
        return kind, value.dtype, repr(value)
    # As text, NaN equals itself and -0.0 is not 0.0.
    return kind, repr(value) if kind in (float, complex) else value


def _code(place: int, value: Any) -> int:
    kind = type(value)
    if kind is str:
        content = value.encode("utf-8", "surrogatepass")
    elif kind in _ATOMS:
        content = repr(value).encode()
    else:
        # The content of other objects may change, and has no form that lasts.
        content = b""
    name = f"{kind.__module__}.{kind.__qualname__}:".encode()
    return _MARK | (crc32(content, crc32(name)) & _CHECK) << 32 | place


def _product(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


register_trace_constant(
    Table,
    (
        "__eq__",
        "__hash__",
        "all_codes",
        "code_at",
        "code_of",
        "count",
        "joined",
        "place_of",
        "targets",
        "united",
    ),
)
