"""Measure the cases and show them as a table."""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from tests.bench.compare import check_same
from tests.bench.measure import Ratio, interleaved, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.bench.cases import Case

IMPORT_NAME = "import"
IMPORT_TARGET = 1.07
IMPORT_ROUNDS = 7


class Row(NamedTuple):
    """What was measured for one case; the peer's columns are None without it."""

    name: str
    floor_seconds: float
    tdfunc: Ratio  # over the floor
    target: float | None
    peer: Ratio | None  # over the floor
    tdfunc_over_peer: Ratio | None

    @property
    def missed(self) -> bool:
        """Whether ours is above the target."""
        return self.target is not None and self.tdfunc.median > self.target


def measure(case: Case, rounds: int, *, peer: bool) -> Row:
    """Check that all sides of a case agree, and time them.

    Raises:
        AssertionError: a side gives other values than the floor.
    """
    sides = case.sides(peer=peer)
    calls = {name: call for name, call in sides._asdict().items() if call is not None}
    expected = sides.floor()
    for name, call in calls.items():
        try:
            check_same(call(), expected)
        except AssertionError as error:
            error.add_note(f"in {case.name!r}: {name} against the floor")
            raise
    return _row(case.name, case.target, interleaved(calls, rounds))


def measure_import(*, peer: bool) -> Row:
    """Time whole processes that do nothing but import, wall clock.

    With bytecode of everything, as a package has that was installed: compiling
    sources is four fifths of what importing ours takes without.
    """
    modules = {"floor": "torch", "tdfunc": "tdfunc"}
    if peer:
        modules["peer"] = "tensordict"
    times: dict[str, list[float]] = {name: [] for name in modules}
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with TemporaryDirectory() as bytecode:
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        for turn in range(IMPORT_ROUNDS + 1):
            for name, module in modules.items():
                command = [sys.executable, "-c", f"import {module}"]
                start = perf_counter()
                subprocess.run(command, check=True, env=environment)
                if turn:  # the first round writes bytecode and fills the file cache
                    times[name].append(perf_counter() - start)
    return _row(IMPORT_NAME, IMPORT_TARGET, times)


def _row(name: str, target: float | None, times: dict[str, list[float]]) -> Row:
    floor, ours, theirs = times["floor"], times["tdfunc"], times.get("peer")
    return Row(
        name,
        median(floor),
        ratio(ours, floor),
        target,
        None if theirs is None else ratio(theirs, floor),
        None if theirs is None else ratio(ours, theirs),
    )


HEADER = ("operation", "floor", "tdfunc", "target", "peer", "tdfunc / peer")


def cells(row: Row) -> tuple[str, ...]:
    """Return one row as the text of its cells; a missed target is marked with `!`."""
    return (
        row.name,
        _duration(row.floor_seconds),
        f"{row.tdfunc.median:.2f}{'!' if row.missed else ''}",
        "" if row.target is None else f"{row.target:g}",
        "" if row.peer is None else f"{row.peer.median:.2f}",
        "" if row.tdfunc_over_peer is None else f"{row.tdfunc_over_peer.median:.2f}",
    )


def as_line(texts: Sequence[str], width: int) -> str:
    """Return cells in columns; the first has `width` characters."""
    name, *numbers = texts
    return name.ljust(width) + "".join([number.rjust(15) for number in numbers])


def as_markdown(rows: Iterable[Row]) -> str:
    """Return the whole table in Markdown."""
    lines = [HEADER, ("---", *["---:"] * (len(HEADER) - 1)), *map(cells, rows)]
    return "".join([f"| {' | '.join(line)} |\n" for line in lines])


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
