"""The reference model of a tree: a plain dict for each node, and its batch size.

Everything here is written the obvious way, on dicts and tensors, and knows nothing of
schemas, flat leaves or ranks. The laws compare what the library does with this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tdfunc import NonTensorData, TensorDict
from tdfunc._core.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Path: TypeAlias = tuple[str, ...]

# Every dtype that torch 2.13 can fill with numbers and compare.
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.bool),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.complex64, torch.complex128, torch.complex32),
    *(torch.float8_e5m2, torch.float8_e4m3fn),
    *(torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.float8_e8m0fnu),
)
# torch says so once for each process that makes a complex32 tensor.
COMPLEX_HALF = "ignore:ComplexHalf support is experimental:UserWarning"


class Named:
    """A function that prints as its name, so that failing examples read well."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name = name
        self.fn = fn

    def __call__(self, *args: Any) -> Any:
        return self.fn(*args)

    def __repr__(self) -> str:
        return self.name


def named(table: dict[str, Callable[..., Any]]) -> list[Named]:
    return [Named(name, fn) for name, fn in table.items()]


@dataclass
class Model:
    """One node: tensors, models of nested nodes, and statics wrapped."""

    size: torch.Size
    entries: dict[str, Any]

    def has_leaves(self) -> bool:
        return any(True for _ in leaves(self))


# Between models and trees


def read(td: Node) -> Model:
    """Return the model of a tree, read level by level through its public interface."""
    entries: dict[str, Any] = {}
    tensors = td.keys(leaves_only=True)
    for key, value in td.items():
        if isinstance(value, Node):
            entries[key] = read(value)
        elif key in tensors:
            entries[key] = value
        else:
            entries[key] = NonTensorData(value)
    return Model(td.batch_size, entries)


def build(model: Model) -> TensorDict:
    """Return the tree of a model."""
    entries = {
        key: build(value) if isinstance(value, Model) else value
        for key, value in model.entries.items()
    }
    return TensorDict(entries, model.size)


def walk(model: Model, prefix: Path = ()) -> Iterator[tuple[Path, Any, Model]]:
    """Yield path, value and node of every entry, parents before children."""
    for key, value in model.entries.items():
        yield (*prefix, key), value, model
        if isinstance(value, Model):
            yield from walk(value, (*prefix, key))


def leaves(model: Model) -> Iterator[tuple[Path, torch.Tensor, Model]]:
    """Yield path, tensor and node of every tensor."""
    for path, value, node in walk(model):
        if isinstance(value, torch.Tensor):
            yield path, value, node


def sizes(model: Model, path: Path) -> list[torch.Size]:
    """Return the batch sizes of the nodes on the way to an entry, the root's first."""
    out = [model.size]
    for key in path[:-1]:
        model = model.entries[key]
        out.append(model.size)
    return out


def mapped(
    model: Model,
    fn: Callable[[torch.Tensor], torch.Tensor],
    resize: Callable[[torch.Size], Any] = lambda size: size,
) -> Model:
    """Return the model with a function applied to each tensor and each batch size."""
    entries: dict[str, Any] = {}
    for key, value in model.entries.items():
        if isinstance(value, Model):
            entries[key] = mapped(value, fn, resize)
        elif isinstance(value, torch.Tensor):
            entries[key] = fn(value)
        else:
            entries[key] = value
    return settled(Model(torch.Size(resize(model.size)), entries))


def settled(model: Model) -> Model:
    """Return the model in which nodes without tensors have the size of their parent."""
    entries = {
        key: settled(value if value.has_leaves() else Model(model.size, value.entries))
        if isinstance(value, Model)
        else value
        for key, value in model.entries.items()
    }
    return Model(model.size, entries)


def differences(model: Model, td: Node, path: Path = ()) -> Iterator[str]:
    """Yield how a tree differs from the model; the order of keys counts."""
    if model.size != td.batch_size:
        yield f"{path}: batch size {td.batch_size}, not {model.size}"
    if tuple(model.entries) != td.keys():
        yield f"{path}: keys {td.keys()}, not {tuple(model.entries)}"
        return
    for key, value in model.entries.items():
        here, got = (*path, key), td[key]
        if isinstance(value, Model):
            if isinstance(got, Node):
                yield from differences(value, got, here)
            else:
                yield f"{here}: {got!r}, not a node"
        elif isinstance(value, NonTensorData):
            if NonTensorData(got) != value:
                yield f"{here}: {got!r}, not {value!r}"
        elif not same_tensor(value, got):
            yield f"{here}: {got!r}, not {value!r}"


def assert_is(model: Model, td: Node) -> None:
    """Assert that a tree is what the model says."""
    found = list(differences(model, td))

    assert not found, "\n".join(found)


def same_tensor(x: torch.Tensor, y: Any) -> bool:
    """Return whether `y` is a tensor with the dtype, shape and values of `x`."""
    if not isinstance(y, torch.Tensor) or (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    return bool(((x == y) | ((x != x) & (y != y))).all())  # noqa: PLR0124 - NaN


def short(path: Path) -> str | Path:
    """Return a path of one key as people read it."""
    return path[0] if len(path) == 1 else path


# Entries


class Refused(Exception):  # noqa: N818 - a result, not a fault
    """The library must raise: `kind` is the builtin that its error also is."""

    def __init__(self, kind: type[Exception]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


def get(model: Model, path: Path) -> Any:
    """Return the entry at a path.

    Raises:
        Refused: there is none.
    """
    value: Any = model
    for key in path:
        if not isinstance(value, Model) or key not in value.entries:
            raise Refused(KeyError)
        value = value.entries[key]
    return value


def has(model: Model, path: Path) -> bool:
    try:
        get(model, path)
    except Refused:
        return False
    return True


def fitted(value: Any, size: torch.Size) -> Any:
    """Return what a value becomes as an entry of a node with this batch size."""
    if isinstance(value, Model):
        fits = value.size[: len(size)] == size
        if not fits and value.has_leaves():
            # Its leaves may still start with the batch size of the parent.
            value = Model(size, value.entries)
        own = value.size if fits and value.has_leaves() else size
        return Model(own, {k: fitted(v, own) for k, v in value.entries.items()})
    if isinstance(value, dict):
        return Model(size, {k: fitted(v, size) for k, v in value.items()})
    if isinstance(value, torch.Tensor):
        if value.shape[: len(size)] != size:
            raise Refused(ValueError)
        return value
    return value if isinstance(value, NonTensorData) else NonTensorData(value)


def set_entry(model: Model, path: Path, value: Any) -> Model:
    """Return the model with a value at a path, nodes on the way made as needed."""
    key, rest = path[0], path[1:]
    if rest:
        below = model.entries.get(key, Model(model.size, {}))
        if not isinstance(below, Model):
            raise Refused(KeyError)
        new: Any = set_entry(below, rest, value)
    else:
        new = fitted(value, model.size)
    return settled(Model(model.size, {**model.entries, key: new}))


def update(model: Model, other: Model | dict[str, Any]) -> Model:
    """Return the model with the entries of another set, nested nodes merged."""
    entries = dict(model.entries)
    items = other.entries if isinstance(other, Model) else other
    for key, value in items.items():
        old = entries.get(key)
        if isinstance(old, Model) and isinstance(value, (Model, dict)):
            entries[key] = update(old, value)
        else:
            entries[key] = fitted(value, model.size)
    return settled(Model(model.size, entries))


def known(model: Model, other: Model | dict[str, Any]) -> bool:
    """Return whether the model has all entries of another."""
    items = other.entries if isinstance(other, Model) else other
    for key, value in items.items():
        if key not in model.entries:
            return False
        old = model.entries[key]
        nested = isinstance(old, Model) and isinstance(value, (Model, dict))
        if nested and not known(old, value):
            return False
    return True


def exclude(model: Model, paths: set[Path], prefix: Path = ()) -> Model:
    """Return the model without the entries at some paths."""
    entries: dict[str, Any] = {}
    for key, value in model.entries.items():
        path = (*prefix, key)
        if path not in paths:
            nested = isinstance(value, Model)
            entries[key] = exclude(value, paths, path) if nested else value
    return settled(Model(model.size, entries))


def select(model: Model, paths: set[Path], prefix: Path = ()) -> Model:
    """Return the model with only the entries at some paths, and the nodes above."""
    entries: dict[str, Any] = {}
    for key, value in model.entries.items():
        path = (*prefix, key)
        if path in paths:
            entries[key] = value
        elif isinstance(value, Model) and any(p[: len(path)] == path for p in paths):
            entries[key] = select(value, paths, path)
    return settled(Model(model.size, entries))
