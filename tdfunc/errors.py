"""The errors that tdfunc raises.

Every error says what was tried, where, what was expected, what came, and the
call that works. Each class inherits the builtin that a caller would catch, so
``except KeyError`` keeps working, and `TdfuncError` catches all of them.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tdfunc.typing import Path

__all__ = [
    "BatchSizeError",
    "FieldError",
    "FileFormatError",
    "FormatLimitError",
    "ImmutableError",
    "InvalidKeyError",
    "InvalidLeafError",
    "MissingFileError",
    "MissingKeyError",
    "NotFiniteError",
    "OperandError",
    "OptionError",
    "PathThroughLeafError",
    "PickleRefusedError",
    "PureNameError",
    "ShapeError",
    "StructureError",
    "TargetExistsError",
    "TdfuncError",
    "TreeIndexError",
]


class TdfuncError(Exception):
    """Base of every error of this library.

    Args:
        what: what was tried and why it can not be done, one sentence.
        path: where in the tree, as a tuple of keys; None when it is not one entry.
        expected: what would have been right.
        got: what came instead.
        fix: the call that works.

    Examples:
        >>> print(TdfuncError("leaf too short", path=("a",), fix="batch_size=[]"))
        leaf too short - at td['a'] - to fix: batch_size=[]
    """

    def __init__(
        self,
        what: str,
        *,
        path: Path | None = None,
        expected: object = None,
        got: object = None,
        fix: str | None = None,
    ) -> None:
        # Nothing but fields: Dynamo traces this, so that an error raised in compiled
        # code is the error, and the text is made when somebody reads it.
        self.what = what
        self.path = path
        self.expected = expected
        self.got = got
        self.fix = fix

    def __str__(self) -> str:
        parts = [self.what]
        if self.path is not None:
            parts.append(f"at {show_path(self.path)}")
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.got is not None:
            parts.append(f"got {self.got}")
        if self.fix is not None:
            parts.append(f"to fix: {self.fix}")
        return " - ".join(parts)

    def __repr__(self) -> str:
        # An OSError has no arguments where its `__init__` was not called.
        return f"{type(self).__name__}({self.what!r})"

    def __reduce__(self) -> tuple[object, ...]:
        fields = (self.what, self.path, str_or_none(self.expected))
        return _rebuild, (type(self), *fields, str_or_none(self.got), self.fix)


def _rebuild(
    cls: type[TdfuncError],
    what: str,
    path: Path | None,
    expected: object,
    got: object,
    fix: str | None,
) -> TdfuncError:
    return cls(what, path=path, expected=expected, got=got, fix=fix)


class MissingKeyError(TdfuncError, KeyError):
    """An entry that was asked for is not there."""


class InvalidKeyError(TdfuncError, TypeError, ValueError):
    """A key is not a non-empty string, or a path is not a tuple of keys."""


class PathThroughLeafError(TdfuncError, KeyError, ValueError):
    """A path goes on below an entry that is a tensor or a static value."""


class InvalidLeafError(TdfuncError, TypeError):
    """A value can not be an entry of a tree, or a function returned no tensor."""


class BatchSizeError(TdfuncError, ValueError):
    """A leaf does not start with the batch size of its node."""


class ShapeError(TdfuncError, ValueError):
    """A shape, a dim or a number of dims does not fit the batch size."""


class TreeIndexError(TdfuncError, IndexError):
    """An index does not fit the batch dims of the tree."""


class StructureError(TdfuncError, KeyError, ValueError):
    """Trees that must have the same entries do not; all differences are listed."""


class NotFiniteError(TdfuncError, ValueError, ArithmeticError):
    """An element is NaN or infinite; all leaves that have one are listed."""


class OperandError(TdfuncError, TypeError, ValueError):
    """An operand can not be combined with the tree."""


class OptionError(TdfuncError, ValueError, TypeError):
    """Options that exclude each other, or a value that an option does not take."""


class ImmutableError(TdfuncError, TypeError):
    """An attempt to change a node in place."""


class PureNameError(TdfuncError, AttributeError):
    """A name of the mutable API; the message gives the pure spelling."""


class FieldError(TdfuncError, AttributeError, KeyError, TypeError):
    """A field that the class of a record does not declare, or that is not there."""


class FileFormatError(TdfuncError, ValueError):
    """A file is broken, or does not hold what it should; the message names it."""


class FormatLimitError(TdfuncError, ValueError, TypeError):
    """A file format can not hold an entry; nothing was written."""


class PickleRefusedError(TdfuncError, ValueError, TypeError):
    """A value needs pickle, which was not allowed; none of it was read or written."""


class MissingFileError(TdfuncError, FileNotFoundError):
    """A file that should be there is not."""


class TargetExistsError(TdfuncError, FileExistsError):
    """Something is already where a tree is to be saved."""


def show_path(path: Path) -> str:
    """Return `path` as the Python expression that reads it.

    Examples:
        >>> show_path(("a", "b"))
        "td['a', 'b']"
    """
    return f"td[{', '.join(map(repr, path))}]" if path else "td"


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Return the known names most like `name`, for an error message.

    Examples:
        >>> nearest("obz", ["obs", "act"])
        "one of 'obs' and 1 more"
        >>> nearest("x", [])
        'nothing: the node is empty'
    """
    names = list(known)
    if not names:
        return "nothing: the node is empty"
    close = get_close_matches(name, names, limit) or names[:limit]
    shown = ", ".join(map(repr, close))
    more = len(names) - len(close)
    return f"one of {shown}" + (f" and {more} more" if more else "")


def str_or_none(value: object) -> str | None:
    """Return ``str(value)``, or None for None: errors must pickle."""
    return None if value is None else str(value)
