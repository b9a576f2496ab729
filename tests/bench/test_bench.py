"""Every row of the benchmark as a pytest-benchmark case.

By default each runs once, as a plain test that its sides agree;
``pytest tests/bench --benchmark-enable`` measures. ``python -m tests.bench`` prints
the table of ratios, which needs the sides interleaved.
"""

import pytest

from tests.bench.cases import CASES, Case
from tests.bench.compare import check_same
from tests.bench.measure import Ratio, interleaved, ratio
from tests.bench.table import Row, as_line, as_markdown, cells
from tests.bench.trees import peer_installed

SIDES = ("floor", "tdfunc", "peer")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(case: Case, side: str, benchmark):
    benchmark.group = case.name
    if side == "peer" and not peer_installed():
        pytest.skip("tensordict is not installed")
    sides = case.sides(peer=side == "peer")
    call = getattr(sides, side)
    if call is None:
        pytest.skip("the peer can not do this")
    check_same(benchmark(call), sides.floor())


def test_names_of_cases_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


def test_check_same_sees_a_difference():
    case = CASES[0]
    sides = case.sides(peer=False)
    with pytest.raises(AssertionError):
        check_same(sides.tdfunc().set("k000", sides.floor()["k001"]), sides.floor())


def test_interleaved_times_every_side_in_every_round():
    times = interleaved({"a": int, "b": str}, rounds=2, seconds=1e-5)
    assert [len(each) for each in times.values()] == [2, 2]
    assert all(took > 0 for each in times.values() for took in each)


def test_ratio_is_the_median_of_the_ratios_of_rounds():
    assert ratio([2, 6, 20], [1, 2, 5]).median == 3


def test_table_marks_a_missed_target():
    over, under = Ratio(2.0, 1.9, 2.1), Ratio(1.0, 1.0, 1.0)
    rows = [
        Row("a", 2e-6, over, 1.5, None, None),
        Row("b", 3e-3, under, 1.5, over, under),
    ]
    assert ("a", "2 us", "2.00!", "1.5", "", "") == cells(rows[0])
    assert ("b", "3 ms", "1.00", "1.5", "2.00", "1.00") == cells(rows[1])
    assert as_markdown(rows).splitlines()[2] == "| a | 2 us | 2.00! | 1.5 |  |  |"
    assert as_line(cells(rows[0]), 4).startswith("a              2 us")
