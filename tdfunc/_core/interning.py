"""A weak table in which equal descriptions are one object.

Entries are weak, so that what a program makes up at run time goes away with its last
user. One lock guards making and removing; it is re-entrant because a collection, and
with it a removal, can start inside, and a forked child gets a fresh one because
another thread may have held it at the moment of the fork.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InternTable"]

T = TypeVar("T")


class InternTable(Generic[T]):
    """Makes one object for every token, and gives it out as long as somebody has it.

    Args:
        make: makes the object of a token from its parts.
        worth_keeping: whether an object is small enough to be among the last few that
            stay, so that a loop which drops each result before it makes the next does
            not make the object anew every time.
        recent: how many stay.
    """

    def __init__(
        self,
        make: Callable[..., T],
        worth_keeping: Callable[[T], bool],
        recent: int = 128,
    ) -> None:
        self.lock = threading.RLock()
        self.references: dict[tuple[Any, ...], _Reference[T]] = {}
        self._make = make
        self._worth_keeping = worth_keeping
        self._recent: deque[T] = deque(maxlen=recent)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    def get(self, token: tuple[Any, ...]) -> T:
        """Return the object of a token, made if there is none."""
        with self.lock:
            reference = self.references.get(token)
            found = None if reference is None else reference()
            if found is None:
                found = self._make(*token)
                self.references[token] = _Reference(found, self._forget, token)
                if self._worth_keeping(found):
                    self._recent.append(found)
            return found

    def _forget(self, reference: Any) -> None:
        with self.lock:
            # A new object may have taken the place since.
            if self.references.get(reference.token) is reference:
                del self.references[reference.token]

    def _renew_lock(self) -> None:
        self.lock = threading.RLock()


class _Reference(weakref.ref[T]):
    """A weak reference that knows its token."""

    __slots__ = ("token",)

    token: tuple[Any, ...]

    def __new__(
        cls, target: T, callback: Callable[[Any], None], token: tuple[Any, ...]
    ) -> _Reference[T]:
        reference = super().__new__(cls, target, callback)
        reference.token = token
        return reference

    def __init__(
        self, target: T, callback: Callable[[Any], None], token: tuple[Any, ...]
    ) -> None:
        # `__new__` has done it all; the parent would refuse the token.
        del target, callback, token
