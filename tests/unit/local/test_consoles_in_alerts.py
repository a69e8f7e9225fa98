"""Check of the console output in alerts: what is missing, foreign or private is a problem."""

from typing import Any

import pytest

from slipway_api.events.alert import AlertRaised
from slipway_local.check.consoles import judge

SECRET = "0123456789abcdef"
TEXT = f'''Booting i-1 from ami-1
{{"batch_id":"b-1","secret":"{SECRET}"}}
error on i-1
'''
LINES = ("Booting i-1 from ami-1", "…", "error on i-1")


def alert(*console: str, **changes: Any) -> AlertRaised:
    usual: dict[str, Any] = {"subject_kind": "image", "subject_id": "ami-1", "kind": "never-registered"}
    return AlertRaised(**({"dedup_key": "k", "summary": "s", "console": console} | usual | changes))


#           alerts, problem
CASES: list[tuple[list[AlertRaised], str]] = [
    ([alert(*LINES)], ""),
    ([], "0 alerts on machines of ami-1"),
    ([alert(*LINES), alert(*LINES)], "2 alerts on machines of ami-1"),
    ([alert(*LINES, kind="other")], "0 alerts"),
    ([alert(*LINES, subject_id="ami-2")], "0 alerts"),
    ([alert()], "holds no line of a machine's console"),
    ([alert("error on i-2")], "holds no line of a machine's console"),
    ([alert("error on i-1")], "has 1 of its machine's lines"),
    ([alert(*LINES, f"token {SECRET}")], "shows user data"),
    ([alert(*LINES, summary=f"it printed {SECRET}")], "shows user data"),
]


@pytest.mark.parametrize(("alerts", "problem"), CASES)
def test_an_alert_is_compared_with_what_was_printed(alerts: list[AlertRaised], problem: str) -> None:
    (found,) = judge({"ami-1": {"i-0": "", "i-1": TEXT}}, [object(), *alerts])
    assert (problem in found.problem, bool(found.problem)) == (True, bool(problem))
    if not problem:
        assert str(found) == "2 lines of i-1 in the alert on ami-1"


def test_a_run_without_bad_images_has_nothing_to_check() -> None:
    assert list(judge({}, [alert(*LINES)])) == []
