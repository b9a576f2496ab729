"""A test has one id in every process, so that workers can share the tests.

Addresses differ between processes: `tests.cases.shown` leaves them out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.cases import shown

if TYPE_CHECKING:
    import pytest

ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")


def test_no_id_holds_an_address(request: pytest.FixtureRequest) -> None:
    found = [x.nodeid for x in request.session.items if ADDRESS.search(x.nodeid)]
    assert not found


def test_a_value_is_shown_without_its_address() -> None:
    value = [object(), len, "at 0"]
    assert ADDRESS.search(repr(value))
    assert "[<object object>, <built-in function len>, 'at 0']" == shown(value)
