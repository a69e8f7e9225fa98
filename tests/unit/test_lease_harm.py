"""Judgement of `make lease-harm`, and its arguments."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.lease_harm.__main__ import PHASES, parse_arguments
from tests.lease_harm.judge import Expected, Row, Run, judge

FULL = Expected(span=(10.0, 20.0), unleased_by="unavailable")
OUTAGE = replace(FULL, unheard=True)
LEASED = Expected(leased=True)


def run(number: int, *, after: float = 0.0, lease_id: str = "") -> Run:
    return Run(
        request_id=f"r-{number}",
        begun_at=100.0,
        exit_code=3,
        own_code=3,
        printed="ok\n",
        status={"started": True, "leased": bool(lease_id), "cause": None, "exit_code": 3},
        started_at=100.0 + after,
        ended_at=111.0 + after,
        lease_id=lease_id,
    )


def row(number: int, unleased_by: str | None = "unavailable", *, confirmed: bool = True) -> Row:
    return Row(request_id=f"r-{number}", unleased_by=unleased_by, confirmed=confirmed)


UNLEASED = [run(number, after=10.0 + number) for number in range(10)]
ROWS = [row(number) for number in range(10)]
HELD = [run(number, lease_id=f"l-{number}") for number in range(20)]
HELD_ROWS = [row(number, None) for number in range(20)]


def test_what_is_as_claimed() -> None:
    """A grant that nobody confirmed does not count, and one that nobody heard of counts as the start."""
    figures = judge(UNLEASED, OUTAGE, [*ROWS[1:], row(0, None), row(1, None, confirmed=False)], {}, held=0)
    assert (figures.problems, figures.killed) == ((), 0)
    assert figures.text == "ran 10 of 10, killed 0, leased 0, without one after 10.0 to 19.0 s"
    assert judge(HELD, LEASED, HELD_ROWS, {"l-1": 2}, held=0).problems == ()
    refused = Expected(span=(0.0, 30.0), charged=False)
    assert judge([run(number, after=3.0 * number) for number in range(10)], refused, [], {}, held=0).problems == ()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"started_at": None, "ended_at": None, "exit_code": 125}, "r-0 did not run: exit code 125"),
        ({"ended_at": None, "exit_code": 143}, "r-0 did not run to its end: exit code 143"),
        ({"exit_code": 75}, "r-0 exits with 75, its command with 3"),
        ({"status": {"started": True, "leased": True, "exit_code": 3}}, "r-0: status file"),
        ({"started_at": 105.0}, "a start after 5.0 s, not within 10 to 20 s"),
        ({"started_at": 123.5}, "a start after 23.5 s"),
        ({"lease_id": "l-0"}, "r-0 got lease l-0"),
    ],
)
def test_what_a_command_contradicts(changed: dict[str, Any], problem: str) -> None:
    found = judge([replace(UNLEASED[0], **changed), *UNLEASED[1:]], OUTAGE, ROWS, {}, held=0)
    assert any(one.startswith(problem) for one in found.problems), found.problems


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (ROWS[1:], "r-0 is counted by 0 leases, expected 1"),
        ([*ROWS, row(0)], "r-0 is counted by 2 leases, expected 1"),
        ([*ROWS[1:], row(0, "max_wait")], "r-0 is counted as max_wait"),
    ],
)
def test_what_the_rows_contradict(rows: list[Row], problem: str) -> None:
    assert judge(UNLEASED, OUTAGE, rows, {}, held=0).problems == (problem,)


def test_a_grant_that_nobody_heard_of_is_no_report() -> None:
    """Where the broker could be reached."""
    found = judge(UNLEASED, FULL, [row(0, None), *ROWS[1:]], {}, held=0)
    assert found.problems == ("r-0 is counted as None",)


def test_what_all_contradict() -> None:
    wave = [run(number, after=10.0 + number / 4) for number in range(10)]
    assert judge(wave, OUTAGE, ROWS, {}, held=0).problems == ("10 of 10 starts in a third of 10 to 20 s",)
    assert judge(UNLEASED, OUTAGE, ROWS, {}, held=3).problems == ("3 units held at the end",)
    renewed = judge(HELD, LEASED, HELD_ROWS, {"l-1": 3}, held=0)
    assert renewed.problems == ("lease l-1 was renewed 3 times",)
    some = [*HELD[2:], run(0, after=1.0), run(1, after=2.0)]
    rows = [*HELD_ROWS[2:], row(0, ""), row(1, "")]
    assert judge(some, LEASED, rows, {}, held=0).problems == ("18 of 20 leased",)


def test_arguments() -> None:
    assert parse_arguments({}) == (tuple(PHASES), 1, 20)
    assert parse_arguments({"ONLY": "full,well", "SEED": "7", "N": "3"}) == (("full", "well"), 7, 3)
    with pytest.raises(ValueError, match=r"ONLY=fulll: unknown fulll; phases are well, slow"):
        parse_arguments({"ONLY": "fulll"})
    with pytest.raises(ValueError, match="both have to be whole numbers"):
        parse_arguments({"SEED": "x"})
