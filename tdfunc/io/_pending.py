"""Saves in threads, to one path one after the other."""

from __future__ import annotations

import os
from concurrent.futures import Future, wait
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["PENDING"]


class _Pending:
    """Saves in threads; to one path one after the other."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a process does that was forked: it has none of the threads."""
        self.lock = Lock()
        # The last one of each path, and whether it or one that it waits for writes
        # into a directory that others look into.
        self.last: dict[str, tuple[Future[None], bool]] = {}

    def start(
        self, path: Path, run: Callable[[Callable[[], None]], None], *, in_place: bool
    ) -> Future[None]:
        """Start one, and return when it only has to be written.

        Args:
            path: where it goes.
            run: does it; calls what it is given when all is checked.
            in_place: it writes into a directory that others look into.

        Raises:
            Exception: what was found before the first byte was written.
        """
        future = Future[None]()
        future.set_running_or_notify_cancel()
        checked = Event()
        place = os.path.realpath(path)
        with self.lock:
            before, behind = self.last.get(place, (None, False))
            in_place = in_place or behind
            self.last[place] = future, in_place

        def ready() -> None:
            checked.set()
            if before is not None:
                wait([before])

        def work() -> None:
            try:
                if before is not None and in_place:
                    # Half of a tree is nothing to be checked.
                    wait([before])
                run(ready)
            except BaseException as error:  # noqa: BLE001 - handed to who waits for it
                self._end(place, future, error)
            else:
                self._end(place, future, None)
            finally:
                checked.set()

        # No daemon: the interpreter waits for it.
        thread = Thread(target=work, name=f"tdfunc saves {place}", daemon=False)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more, or it is the end
            self._end(place, future, error)
            raise
        checked.wait()
        if future.done():
            future.result()
        return future

    def _end(
        self, place: str, future: Future[None], error: BaseException | None
    ) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        with self.lock:
            if self.last.get(place, (None,))[0] is future:
                del self.last[place]


PENDING = _Pending()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PENDING.forget)
