"""Profiles of hypothesis: ``pytest --hypothesis-profile=dev|ci|soak``, default dev.

- dev: few examples, other ones at each run, failures replayed from the database;
- ci: the same examples at each run, so that a pull request fails for its own faults;
- soak: for hours; finds what the other two do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

# Time depends on what else the machine does, and says nothing about a law.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("dev", max_examples=30, stateful_step_count=20, **UNTIMED)
settings.register_profile(
    "ci",
    max_examples=40,
    stateful_step_count=25,
    derandomize=True,
    database=None,
    print_blob=True,
    **UNTIMED,
)
settings.register_profile(
    "soak", max_examples=5000, stateful_step_count=60, print_blob=True, **UNTIMED
)


def pytest_configure(config: pytest.Config) -> None:
    # As in tests/conftest.py: leaves have a few elements, threads would only wait.
    torch.set_num_threads(1)
    settings.load_profile(config.getoption("--hypothesis-profile") or "dev")
