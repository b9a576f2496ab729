"""What holds for all tests, in every process."""

from __future__ import annotations

import torch


def pytest_configure() -> None:
    """Give torch one thread: leaves have a few elements, threads would only wait.

    With as many workers as cores, they would wait for each other too.
    """
    torch.set_num_threads(1)
