"""Functions run in forked children: limits, signals and deaths stay there."""

from __future__ import annotations

import os
import traceback
import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def start(function: Callable[[], object]) -> int:
    """Run a function in a forked child; return its process id."""
    with warnings.catch_warnings():
        # Python says that threads do not live on in a child. None is needed there.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        torch.set_num_threads(1)
        function()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the child ends here
        traceback.print_exc()
    finally:
        os._exit(status)


def end(pid: int) -> int:
    """Wait for a child; return how it ended: its status, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(function: Callable[[], object]) -> None:
    """Run a function in a forked child and check that it returned."""
    assert end(start(function)) == 0
