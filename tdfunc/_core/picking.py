"""Which entries a mapping is about: by key, by path, or by a pattern.

A key or path names a leaf, or a node and with it all leaves in it. One with a star that
names no entry is a pattern: its keys are separated by ``/``, ``*`` stands for any part
of a key and ``**`` for any number of keys, so ``"enc/**"`` is all that is in ``enc``,
and ``"**/bias"`` every leaf or node ``bias``. What comes later in the mapping wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tdfunc._core.keys import as_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdfunc.typing import Path

__all__ = ["named", "picked"]


def named(rule: Mapping[Any, Any]) -> dict[Path, Any]:
    """Return what a mapping, nested or not, says by path; the last that it says last.

    Unrolled without recursion, in the order in which it is written.
    """
    found: dict[Path, Any] = {}
    pending: list[tuple[Path, Any]] = [((), rule)]
    while pending:
        path, value = pending.pop()
        if not isinstance(value, Mapping):
            found.pop(path, None)
            found[path] = value
            continue
        below = [
            (as_path(key) if isinstance(key, (str, tuple)) else (str(key),), inner)
            for key, inner in value.items()
        ]
        pending += [((*path, *parts), inner) for parts, inner in reversed(below)]
    return found


def picked(paths: Sequence[Path], names: Sequence[Path]) -> tuple[list[int], list[int]]:
    """Return for every path which name is the last for it, and the names for none.

    Args:
        paths: those of the leaves.
        names: paths and patterns.

    Returns:
        The place among `names` for each path, -1 where there is none; and the places of
        the names that are about no path.
    """
    places = {name: at for at, name in enumerate(names)}
    # Only as many looks at a path as there are lengths, however many names.
    lengths = sorted({len(name) for name in names})
    found: list[int] = []
    used: set[int] = set()
    for path in paths:
        starts = [path[:n] for n in lengths if n <= len(path)]
        at = [places[start] for start in starts if start in places]
        used.update(at)
        found.append(max(at, default=-1))
    for at, name in enumerate(names):
        if at in used or not any(["*" in key for key in name]):
            continue
        pattern = _as_pattern(name)
        for i, path in enumerate(paths):
            if _is_start(pattern, path):
                used.add(at)
                found[i] = max(found[i], at)
    return found, [at for at in range(len(names)) if at not in used]


def _as_pattern(name: Path) -> list[str]:
    parts: list[str] = []
    for key in name:
        parts += key.split("/") if "*" in key else [key]
    return parts


def _is_start(pattern: Sequence[str], path: Path) -> bool:
    """Return whether a pattern fits a path, or that of a node above it."""
    end = len(pattern)
    # The places in the pattern at which a match of the first keys may stand.
    at = _behind_stars(pattern, {0})
    for key in path:
        at = {
            i if pattern[i] == "**" else i + 1
            for i in at
            if i < end and (pattern[i] == "**" or _fits(pattern[i], key))
        }
        at = _behind_stars(pattern, at)
        if end in at:
            return True
        if not at:
            return False
    return False


def _behind_stars(pattern: Sequence[str], at: set[int]) -> set[int]:
    """Return the places, and those behind each ``**`` that stands for no key."""
    reached = set(at)
    for i in sorted(at):
        while i < len(pattern) and pattern[i] == "**":
            i += 1  # noqa: PLW2901 - one place after the other
            reached.add(i)
    return reached


def _fits(part: str, key: str) -> bool:
    """Return whether a key is as a part of a pattern says."""
    first, *rest = part.split("*")
    if not rest:
        return part == key
    *middle, last = rest
    if len(key) < len(first) + len(last):
        return False
    if not (key.startswith(first) and key.endswith(last)):
        return False
    at, end = len(first), len(key) - len(last)
    for piece in middle:
        at = key.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
