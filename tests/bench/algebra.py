"""Rows of the algebra: one operation of each family, on a hundred leaves.

The floor is a loop over a flat tuple with torch's function, or its multi-tensor form
where there is one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import tdfunc
from tests.bench.row import Sides, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.row import Case
    from tests.bench.trees import Data

Leaves = tuple[torch.Tensor, ...]

TARGET = 1.7  # of the algebra
MASK = torch.tensor([True, False, True])
INDEX = torch.tensor([2, 0])
WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


def spelled(
    floor: Callable[[Leaves], Any],
    ours: Callable[[Any], Any],
    peer: Callable[[Any], Any] | None = None,
) -> Callable[[Data], Sides]:
    """Return a row of calls with the flat tuple, with our tree and with the peer's."""

    def build(d: Data) -> Sides:
        flat, td, theirs = d.flat, d.td, d.peer
        return Sides(
            lambda: floor(flat),
            lambda: ours(td),
            None if peer is None else partial(peer, theirs),
        )

    return build


def same(
    floor: Callable[[Leaves], Any], call: Callable[[Any], Any]
) -> Callable[[Data], Sides]:
    """Return a row where the peer is called as our tree is."""
    return spelled(floor, call, call)


def each(fn: Callable[[torch.Tensor], Any]) -> Callable[[Leaves], Any]:
    """Return the loop of a function over a flat tuple."""
    return lambda flat: tuple([fn(x) for x in flat])


def pairs(fn: Callable[[torch.Tensor], Any]) -> Callable[[Leaves], Any]:
    """Return the loop of a function that gives pairs, as a pair of tuples."""
    return lambda flat: tuple(zip(*[fn(x) for x in flat], strict=True))


def _written(
    write: Callable[[torch.Tensor], Any],
) -> Callable[[Leaves], Any]:
    """Return the loop that writes into a copy of every tensor."""

    def one(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        write(out)
        return out

    return each(one)


def _assign(index: Any) -> Callable[[torch.Tensor], Any]:
    def write(out: torch.Tensor) -> None:
        out[index] = 0

    return write


def _increase(index: Any) -> Callable[[torch.Tensor], Any]:
    def write(out: torch.Tensor) -> None:
        out[index] += 1

    return write


def _rows_set(d: Data) -> Sides:
    flat, td = d.flat, d.td
    flat_rows, rows = tuple([x[:2] for x in flat]), td[:2]

    def floor() -> Any:
        out = [x.clone() for x in flat]
        for x, row in zip(out, flat_rows, strict=True):
            x[INDEX] = row
        return out

    return Sides(floor, lambda: td.at[INDEX].set(rows), None)


def _rows_added(d: Data) -> Sides:
    flat, td = d.flat, d.td
    flat_rows, rows = tuple([x[:2] for x in flat]), td[:2]

    def floor() -> Any:
        pairs = zip(flat, flat_rows, strict=True)
        return tuple([x.index_add(0, INDEX, row) for x, row in pairs])

    return Sides(floor, lambda: td.at[INDEX].add(rows), None)


def _renamed(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    names = {"k001": "k002", "k002": "k001"}

    def floor() -> Any:
        return {names.get(key, key): leaf for key, leaf in nested.items()}

    return Sides(floor, lambda: td.rename_keys(names), lambda: peer.rename_keys(names))


def _joined(node: dict[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    out: dict[str, torch.Tensor] = {}
    for key, value in node.items():
        if isinstance(value, dict):
            out |= _joined(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def _taken_apart(flat: dict[str, torch.Tensor]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        node = out
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return out


def _flatten_keys(d: Data) -> Sides:
    nested, td, peer = d.nested, d.td, d.peer
    return Sides(
        lambda: _joined(nested),
        lambda: td.flatten_keys(),  # noqa: PLW0108 - as the peer is called
        lambda: peer.flatten_keys(),  # noqa: PLW0108 - there may be no peer
    )


def _unflatten_keys(d: Data) -> Sides:
    flat, td = _joined(d.nested), d.td.flatten_keys()
    peer = None if d.peer is None else d.peer.flatten_keys()
    return Sides(
        lambda: _taken_apart(flat),
        td.unflatten_keys,
        None if peer is None else lambda: peer.unflatten_keys("."),
    )


def _state_dict(d: Data) -> Sides:
    nested, td = d.nested, d.td

    def floor() -> Any:
        return {key: leaf.detach() for key, leaf in _joined(nested).items()}

    def ours() -> Any:
        return {key: value for key, value in td.state_dict().items() if key in names}

    names = _joined(nested)
    return Sides(floor, ours, None)


def _pack(flat: Leaves) -> torch.Tensor:
    return torch.cat([x.flatten(1) for x in flat], -1)


def _unpack(d: Data) -> Sides:
    shapes = [x.shape for x in d.flat]
    widths = [shape[1:].numel() for shape in shapes]
    packed, layout = d.td.pack()

    def floor() -> Any:
        pieces = zip(packed.split(widths, -1), shapes, strict=True)
        return tuple([piece.reshape(shape) for piece, shape in pieces])

    return Sides(floor, lambda: layout.unpack(packed), None)


def _unravel(d: Data) -> Sides:
    shapes = [x.shape for x in d.flat]
    widths = [shape.numel() for shape in shapes]
    raveled, unravel = tdfunc.ravel(d.td)

    def floor() -> Any:
        pieces = zip(raveled.split(widths), shapes, strict=True)
        return tuple([piece.view(shape) for piece, shape in pieces])

    return Sides(floor, lambda: unravel(raveled), None)


def _total_norm(flat: Leaves) -> torch.Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(flat)))


# name: the row
_ON_NESTED: dict[str, Callable[[Data], Sides]] = {
    # Math
    "exp": same(torch._foreach_exp, lambda td: td.exp()),
    "isnan": same(each(torch.isnan), lambda td: td.isnan()),
    "td > 0.5": same(each(lambda x: x > 0.5), lambda td: td > 0.5),
    "td * weights": same(
        each(lambda x: x * WEIGHTS.unsqueeze(-1)), lambda td: td * WEIGHTS
    ),
    "maximum": same(
        lambda flat: torch._foreach_maximum(flat, flat), lambda td: td.maximum(td)
    ),
    "clamp": same(
        each(lambda x: torch.clamp(x, 0.2, 0.8)), lambda td: td.clamp(0.2, 0.8)
    ),
    "lerp": spelled(
        lambda flat: torch._foreach_lerp(flat, flat, 0.5), lambda td: td.lerp(td, 0.5)
    ),
    "equal": spelled(
        lambda flat: all([torch.equal(x, x) for x in flat]),
        lambda td: td.equal(td),
    ),
    # Reductions
    "sum": same(each(torch.sum), lambda td: td.sum()),
    "sum(0)": same(each(lambda x: x.sum(0)), lambda td: td.sum(0)),
    "sum(reduce=True)": same(
        lambda flat: torch.stack([x.sum() for x in flat]).sum(),
        lambda td: td.sum(reduce=True),
    ),
    "mean(0)": same(each(lambda x: x.mean(0)), lambda td: td.mean(0)),
    'mean("feature")': spelled(
        each(lambda x: x.mean(-1)), lambda td: td.mean("feature")
    ),
    "max(0)": spelled(pairs(lambda x: x.max(0)), lambda td: td.max(0)),
    "norm(reduce=True)": spelled(_total_norm, lambda td: td.norm(reduce=True)),
    "std(0)": same(each(lambda x: x.std(0)), lambda td: td.std(0)),
    "logsumexp(0)": same(each(lambda x: x.logsumexp(0)), lambda td: td.logsumexp(0)),
    "(td >= 0).all()": spelled(
        lambda flat: torch.stack([(x >= 0).all() for x in flat]).all(),
        lambda td: (td >= 0).all(),
    ),
    # Along a dim
    "softmax(0)": same(each(lambda x: x.softmax(0)), lambda td: td.softmax(0)),
    "cumsum(0)": spelled(each(lambda x: x.cumsum(0)), lambda td: td.cumsum(0)),
    "sort(0)": spelled(pairs(lambda x: x.sort(0)), lambda td: td.sort(0)),
    # Pieces
    "chunk": same(
        lambda flat: tuple(zip(*[x.chunk(2) for x in flat], strict=True)),
        lambda td: td.chunk(2),
    ),
    "index_select": spelled(
        each(lambda x: x.index_select(0, INDEX)), lambda td: td.index_select(0, INDEX)
    ),
    "masked_select": spelled(
        each(lambda x: x[MASK]), lambda td: td.masked_select(MASK)
    ),
    "masked_fill": same(
        each(lambda x: x.masked_fill(MASK.unsqueeze(-1), 0)),
        lambda td: td.masked_fill(MASK, 0),
    ),
    "flip": same(each(lambda x: x.flip(0)), lambda td: td.flip(0)),
    "roll": same(each(lambda x: x.roll(1, 0)), lambda td: td.roll(1, 0)),
    "pad": spelled(
        each(lambda x: torch.constant_pad_nd(x, [0, 0, 1, 2])),
        lambda td: td.pad([1, 2]),
    ),
    # Rows
    "at[0].set(0)": spelled(_written(_assign(0)), lambda td: td.at[0].set(0)),
    "at[1:3].add(1)": spelled(
        _written(_increase(slice(1, 3))), lambda td: td.at[1:3].add(1)
    ),
    "at[index].set(rows)": _rows_set,
    "at[index].add(rows)": _rows_added,
    "at[mask].set(0)": spelled(_written(_assign(MASK)), lambda td: td.at[MASK].set(0)),
    "at[mask].mul(2)": spelled(
        _written(lambda out: out.__setitem__(MASK, out[MASK] * 2)),
        lambda td: td.at[MASK].mul(2),
    ),
    # Keys, and one tensor of all leaves
    "flatten_keys": _flatten_keys,
    "unflatten_keys": _unflatten_keys,
    "state_dict": _state_dict,
    "pack": spelled(_pack, lambda td: td.pack()[0]),
    "unpack": _unpack,
    "ravel": spelled(
        lambda flat: torch.cat([x.reshape(-1) for x in flat]),
        lambda td: tdfunc.ravel(td)[0],
    ),
    "unravel": _unravel,
}

ROWS: tuple[Case, ...] = (
    *on(("flat32",), "rename_keys", _renamed, TARGET),
    *[
        case
        for name, build in _ON_NESTED.items()
        for case in on(("nest100",), name, build, TARGET)
    ],
)
