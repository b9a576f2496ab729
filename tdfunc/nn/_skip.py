"""The switch that lets modules skip work whose results are there already.

It is one `threading.local`, which Dynamo can trace and guards: new threads start with
the default, and an explicit ``skip_existing=`` argument of a call beats it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any

from tdfunc._core.keys import as_path
from tdfunc._core.node import Node
from tdfunc.errors import OptionError

if TYPE_CHECKING:
    from tdfunc.typing import Path

__all__ = ["as_mode", "set_skip_existing", "skip_existing"]


class _Local(threading.local):
    # In the dict of each thread from the start: Dynamo guards whether it is there, and
    # a block in compiled code puts it there.
    def __init__(self) -> None:
        self.mode: bool | tuple[Path, ...] = False


_LOCAL = _Local()


class set_skip_existing(ContextDecorator):  # noqa: N801 - the peer's name
    """Let modules skip their work when their outputs are in the tree already.

    A module all of whose `out_keys` are in the tree returns it unchanged, unless it
    reads one of them. A sequence is asked first, then each of its modules. Usable as a
    ``with`` block and as a decorator of any function, also inside compiled functions;
    threads that are started inside do not see it.

    Args:
        mode: True for all modules, False for none, or the keys: only modules whose
            `out_keys` are all among them are skipped.

    Raises:
        OptionError: the mode is something else.

    Examples:
        >>> import torch
        >>> from tdfunc import TensorDict
        >>> from tdfunc.nn import TensorDictModule, set_skip_existing
        >>> double = TensorDictModule(lambda x: 2 * x, ["x"], ["y"])
        >>> td = TensorDict({"x": 1.0, "y": 5.0})
        >>> with set_skip_existing():
        ...     double(None, td)["y"]
        tensor(5.)
        >>> double(None, td)["y"]
        tensor(2.)
    """

    def __init__(self, mode: bool | Iterable[str | Path] = True) -> None:  # noqa: FBT001, FBT002 - the peer's signature
        self.mode = as_mode(mode)
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before.append(_LOCAL.mode)
        _LOCAL.mode = self.mode

    def __exit__(self, *_: object) -> None:
        _LOCAL.mode = self._before.pop()

    def _recreate_cm(self) -> set_skip_existing:
        # A decorated function may run in several threads at once.
        return set_skip_existing(self.mode)


def skip_existing() -> bool | tuple[Path, ...]:
    """Return what `set_skip_existing` has set: True, False, or the paths.

    Examples:
        >>> from tdfunc.nn import set_skip_existing, skip_existing
        >>> with set_skip_existing(["y"]):
        ...     skip_existing()
        (('y',),)
        >>> skip_existing()
        False
    """
    return _LOCAL.mode


def as_mode(mode: Any) -> bool | tuple[Path, ...]:
    """Return a mode of skipping, checked.

    Raises:
        OptionError: it is neither a bool nor a collection of keys.
    """
    if isinstance(mode, bool):
        return mode
    if isinstance(mode, (str, Node)) or not isinstance(mode, Iterable):
        raise OptionError(
            "this does not say what may be skipped",
            expected="True, False, or a list of keys",
            got=repr(mode),
            fix=f"[{mode!r}]" if isinstance(mode, str) else None,
        )
    return tuple([as_path(key) for key in mode])
