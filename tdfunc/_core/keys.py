"""Keys and paths: one key is a non-empty string, a path a tuple of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdfunc.errors import InvalidKeyError

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["as_path", "check_key", "is_key", "short"]


def is_key(value: object) -> bool:
    """Return whether `value` addresses an entry: a string or a tuple of them."""
    if isinstance(value, str):
        return True
    if not isinstance(value, tuple) or not value:
        return False
    return all(is_key(part) for part in value)


def check_key(key: object, parent: Path = ()) -> str:
    """Return `key` as a plain `str`, raise `InvalidKeyError` if it is no name."""
    if not isinstance(key, str):
        raise InvalidKeyError(
            f"key {key!r} is not a string",
            path=parent or None,
            expected="a non-empty string",
            got=type(key).__name__,
            fix=f"td.set({key!r}, value), or a nested mapping"
            if is_key(key)
            else f"use {str(key)!r}",
        )
    if not key:
        raise InvalidKeyError(
            "the empty string is no key",
            path=parent or None,
            expected="a non-empty string",
            got="''",
            fix="give the entry a name",
        )
    # A subclass may compare and print as it likes.
    return key if type(key) is str else str.__str__(key)


def as_path(key: object) -> Path:
    """Return a key or a (possibly nested) tuple of keys as a path.

    Raises:
        InvalidKeyError: `key` is something else, or a part of it is.
    """
    if isinstance(key, str):
        return (check_key(key),)
    if not isinstance(key, tuple) or not key:
        raise InvalidKeyError(
            f"{key!r} names no entry",
            expected="a non-empty string or a non-empty tuple of them",
            got=type(key).__name__ if key != () else "an empty tuple",
        )
    path: list[str] = []
    for part in key:
        if isinstance(part, tuple):
            path.extend(as_path(part))
        else:
            path.append(check_key(part))
    return tuple(path)


def short(path: Path) -> str | Path:
    """Return a path of one key as that key: the form in which users read it."""
    return path[0] if len(path) == 1 else path
