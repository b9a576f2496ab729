"""Proof that a call changed nothing that it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch

from tdfunc._core.batch import settle
from tdfunc._core.node import Node
from tdfunc._core.rows import Table
from tdfunc._core.statics import same_value
from tdfunc._ops.members import Members
from tdfunc.testing._assert import fail_if

__all__ = ["assert_pure"]

P = ParamSpec("P")
T = TypeVar("T")


def assert_pure(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return ``fn(*args, **kwargs)`` after asserting that it changed no argument.

    Looks at every tensor, array, tree, module and static value that the arguments
    hold, in mappings and sequences as deep as you like. A tensor must keep its bytes,
    its version counter (so that a write of equal values is seen too), its shape,
    strides and memory, and its gradient; a tree and a mapping must hold the same
    objects under the same keys.

    Args:
        fn: the function; it is called once.
        args: its arguments. Tensors inside a running transform of `torch.func` have
            no bytes to look at: assert outside.
        kwargs: its keyword arguments.

    Returns:
        What `fn` returned. It may share memory with the arguments.

    Raises:
        AssertionError: an argument was changed; all changes are listed.
        Exception: what `fn` raises, after asserting that it changed nothing before.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> td = TensorDict({"x": torch.zeros(3)}, 3)
        >>> assert_pure(lambda td: td + 1, td)["x"].tolist()
        [1.0, 1.0, 1.0]
        >>> assert_pure(lambda td: td["x"].add_(1), td)
        Traceback (most recent call last):
        AssertionError: the function changed its arguments:
        - args[0]['x']: version 0 became 1
        - args[0]['x']: bytes changed
    """
    watched = [*_watch(("args", args)), *_watch(("kwargs", kwargs))]
    try:
        result = fn(*args, **kwargs)
    except Exception:
        fail_if("the function changed its arguments", _changes(watched))
        raise
    fail_if("the function changed its arguments", _changes(watched))
    return result


class _Watch(NamedTuple):
    """One object as it was, with what says how it changed since."""

    where: str
    changes: Callable[[], list[str]]


def _changes(watched: list[_Watch]) -> list[str]:
    return [
        f"{watch.where}: {change}" for watch in watched for change in watch.changes()
    ]


def _watch(root: tuple[str, Any]) -> Iterator[_Watch]:
    """Yield a watch for everything that can change in an object."""
    seen: dict[int, Any] = {}  # keeps the objects, so that no id is given again
    pending = [root]
    while pending:
        where, value = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        inside: list[tuple[str, Any]] = []
        if isinstance(value, torch.Tensor):
            yield _Watch(where, _tensor_changes(value))
        elif isinstance(value, Node):
            yield _Watch(where, _tree_changes(value))
            schema = value._schema
            inside = [
                (f"[{', '.join(map(repr, path))}]", part)
                for paths, parts in (
                    (schema.paths(), value._leaves),
                    (schema.static_paths(), value._statics.values),
                )
                for path, part in zip(paths, parts, strict=True)
            ]
        elif isinstance(value, Members):
            trees = value.trees
            yield _Watch(where, _sequence_changes(trees))
            inside = [(f".tensordicts[{i}]", tree) for i, tree in enumerate(trees)]
        elif isinstance(value, torch.nn.Module):
            inside = [(".__dict__", vars(value))]
        elif isinstance(value, Mapping):
            yield _Watch(where, _mapping_changes(value))
            inside = [(f"[{key!r}]", part) for key, part in value.items()]
        elif isinstance(value, Table):
            inside = [(f" value {i}", part) for i, part in enumerate(value.values)]
        elif isinstance(value, (list, tuple)):
            yield _Watch(where, _sequence_changes(value))
            inside = [(f"[{i}]", part) for i, part in enumerate(value)]
        else:
            yield _Watch(where, _object_changes(value))
        pending += [(where + step, part) for step, part in reversed(inside)]


def _tensor_changes(x: torch.Tensor) -> Callable[[], list[str]]:
    version, layout, data = _version(x), _layout(x), _bits(x)
    grad = x.grad if x.is_leaf else None
    grad_data = None if grad is None else _bits(grad)

    def changes() -> list[str]:
        out: list[str] = []
        if _version(x) != version:
            out.append(f"version {version} became {_version(x)}")
        now = _layout(x)
        out += [
            f"{name} {old} became {now[name]}"
            for name, old in layout.items()
            if now[name] != old
        ]
        if not _same_bits(data, _bits(x)):
            out.append("bytes changed")
        if x.is_leaf and (
            x.grad is not grad
            or (grad is not None and not _same_bits(grad_data, _bits(grad)))
        ):
            out.append("its gradient changed")
        return out

    return changes


def _version(x: torch.Tensor) -> int | None:
    # Tensors made in inference mode count no versions.
    return None if x.is_inference() else x._version


def _layout(x: torch.Tensor) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "shape": list(x.shape),
        "dtype": x.dtype,
        "device": x.device,
        "requires_grad": x.requires_grad,
    }
    if x.layout is torch.strided:
        layout |= {
            "strides": x.stride(),
            "offset": x.storage_offset(),
            "memory": x.data_ptr(),
        }
    return layout


def _bits(x: torch.Tensor) -> torch.Tensor | None:
    """Return the bytes of the elements, so that NaN equals itself and 0 not -0."""
    if x.device.type == "meta":
        return None
    x = x.detach()
    if x.layout is not torch.strided:
        x = x.to_dense()
    x = x.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return x.reshape(-1).view(torch.uint8)


def _same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _tree_changes(td: Node) -> Callable[[], list[str]]:
    # A tree that a pytree function made learns its batch size when it is asked for,
    # so what it must say is worked out beside it.
    schema, size = td._schema, td._batch_size
    if size is None:
        schema, size = settle(schema, td._leaves)
    leaves, statics, names = td._leaves, td._statics, td._names

    def changes() -> list[str]:
        out: list[str] = []
        if td.batch_size != size:
            out.append(f"batch size {list(size)} became {list(td.batch_size)}")
        if td._schema != schema:
            out.append(f"{schema} became {td._schema}")
        if len(td._leaves) != len(leaves) or not all(map(_is, td._leaves, leaves)):
            out.append("its leaves are other objects")
        if td._statics is not statics:
            out.append("its statics are other objects")
        if td._names != names:
            out.append(f"names {names} became {td._names}")
        return out

    return changes


def _is(a: object, b: object) -> bool:
    return a is b


def _mapping_changes(mapping: Mapping[Any, Any]) -> Callable[[], list[str]]:
    items = list(mapping.items())

    def changes() -> list[str]:
        now = list(mapping.items())
        if [key for key, _ in now] != [key for key, _ in items]:
            return [f"keys {[k for k, _ in items]} became {[k for k, _ in now]}"]
        rows = zip(items, now, strict=True)
        moved = [key for (key, old), (_, new) in rows if old is not new]
        return [f"other objects at {moved}"] if moved else []

    return changes


def _sequence_changes(sequence: list[Any] | tuple[Any, ...]) -> Callable[[], list[str]]:
    items = tuple(sequence)

    def changes() -> list[str]:
        same = len(items) == len(sequence) and all(map(_is, items, sequence))
        return [] if same else ["other objects in it"]

    return changes


def _object_changes(value: object) -> Callable[[], list[str]]:
    """Watch an array or any other object by a copy, if a copy equals it."""
    try:
        copied = deepcopy(value)
    except Exception:  # noqa: BLE001 - a user's object may refuse to be copied
        return list
    if not same_value(value, copied):
        return list
    if isinstance(value, np.ndarray):
        return lambda: [] if same_value(value, copied) else ["elements changed"]
    return lambda: [] if same_value(value, copied) else [f"became {value!r}"]
