"""Say how trees that should have the same entries differ: all differences at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdfunc._core.schema import Schema, is_lazy, kind_name
from tdfunc.errors import StructureError, show_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc._core.node import Node
    from tdfunc.typing import Path

__all__ = ["check_same_entries", "differences"]

# What to do about the same entries in trees of other classes.
_SAME_CLASS = "td.to_tensordict() of each, or Record.from_tensordict(td)"


def differences(expected: Schema, got: Schema) -> list[str]:
    """Return one line for every entry that only one has, or that differs in kind."""
    left, right = _kinds(expected), _kinds(got)
    # What is in a lazy stack is kept by its members: only its kind is told.
    stacks = {path for schema in (expected, got) for _, path, _ in schema.lazies()}
    mine = [path for path in left if path[:-1] not in stacks]
    others = [path for path in right if path[:-1] not in stacks]
    lines = [f"{show_path(path)} is missing" for path in mine if _is_first(path, right)]
    lines += [f"{show_path(path)} is extra" for path in others if _is_first(path, left)]
    lines += [
        f"{show_path(path)} is {right[path]}, not {kind}"
        for path, kind in left.items()
        if path in right and right[path] != kind
    ]
    return lines


def check_same_entries(
    nodes: Sequence[Node],
    what: str = "the trees do not have the same entries",
    *,
    fix: str | None = None,
) -> None:
    """Raise unless all nodes have the entries of the first.

    Raises:
        StructureError: listing every missing, extra and different entry of every
            node.
    """
    first = nodes[0]._schema
    lines: list[str] = []
    apart = False  # whether one has a lazy stack where the other is dense
    for i, node in enumerate(nodes[1:], start=1):
        if not first.matches(node._schema):
            found = differences(first, node._schema)
            if type(nodes[0]) is not type(node):
                found.append(f"it is a {type(node).__name__}")
            apart = apart or _is_apart(first, node._schema)
            lines.append(f"argument {i}: {', '.join(found)}")
    if apart:
        fix = (
            "td.to_lazystack(dim) makes a dense tree a lazy stack, stack.densify() a "
            "stack of members that are alike a dense tree"
        )
    if lines:
        plain = first.of_class(nodes[0]._plain)
        if all([plain.matches(x._schema.of_class(x._plain)) for x in nodes]):
            fix = _SAME_CLASS
        raise StructureError(
            what,
            expected=f"the entries of argument 0, a {type(nodes[0]).__name__}",
            got="; ".join(lines),
            fix=fix,
        )


def _is_apart(one: Schema, two: Schema) -> bool:
    if not (one.lazy or two.lazy):
        return False
    if is_lazy(one) is not is_lazy(two):
        return True
    places = {path for _, path, _ in one.lazies()}
    others = {path for _, path, _ in two.lazies()}
    for path in places ^ others:
        found = (one.find(path), two.find(path))
        if all([x is not None and isinstance(x.kid, Schema) for x in found]):
            return True
    return False


def _kinds(schema: Schema) -> dict[Path, str]:
    kinds: dict[Path, str] = {}
    closed: dict[Path, bool] = {(): is_lazy(schema)}
    for path, kid, *_ in schema.walk():
        if closed[path[:-1]]:
            continue
        kinds[path] = _kind(kid)
        if isinstance(kid, Schema):
            closed[path] = is_lazy(kid)
    return kinds


def _kind(kid: Any) -> str:
    if isinstance(kid, Schema):
        return f"a {kid.cls.__name__}"
    return kind_name(kid)


def _is_first(path: Path, theirs: dict[Path, str]) -> bool:
    """Return whether `path` is the topmost entry that `theirs` lacks."""
    return path not in theirs and (len(path) == 1 or path[:-1] in theirs)
