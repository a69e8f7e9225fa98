"""Parts of a history: records of clients, conclusions from answers, the guarded resource."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.histories.actor import answered
from tests.histories.history import EVER, Call
from tests.histories.journal import Journal, calls
from tests.histories.proxy import Resource
from tests.histories.run import Judged, arguments, summarise

ASKED = Call(client="c", does="acquire", pool="p", invoked=1.0, request_id="r", units=2)
SHOWN = {"lease_id": "l", "fencing_token": 7, "units": 2, "ttl_seconds_left": 5.0, "hold_seconds_left": 3.0}
GONE = {"type": "urn:slipway:problem:lease-ended", "reason": "lost"}
STALE = {"type": "urn:slipway:problem:stale-token"}


def test_a_call_is_recorded_before_it_is_answered() -> None:
    """Of a killed client the unanswered call is left, and nothing of a truncated line."""
    lines: list[bytes] = []
    journal = Journal(lines.append)
    first = journal.note(ASKED)
    journal.note(replace(ASKED, request_id="s"))
    assert [call.answer for call in calls(lines)] == ["unknown", "unknown"]
    journal.note(replace(ASKED, returned=2.0, answer="waiting"), first)
    assert [(call.request_id, call.answer) for call in calls(lines)] == [("r", "waiting"), ("s", "unknown")]
    assert [call.answer for call in calls([*lines[:-1], lines[-1][:-9]])] == ["unknown", "unknown"]


#        status, body                                        answer      reason
ANSWERS = [
    (200, SHOWN, "ok", ""),
    (202, {"state": "waiting"}, "waiting", ""),
    (410, GONE, "refused", "lost"),
    (409, STALE, "refused", "stale-token"),
    (503, {}, "unknown", "status 503"),
]


@pytest.mark.parametrize(("status", "body", "answer", "reason"), ANSWERS)
def test_conclusions_from_an_answer(status: int, body: dict[str, Any], answer: str, reason: str) -> None:
    done = answered(replace(ASKED, returned=2.0), status, body)
    assert (done.answer, done.reason) == (answer, reason)
    assert (done.returned == EVER) is (answer == "unknown")


def test_a_lease_is_sure_until_its_ttl_or_its_hold_ends() -> None:
    done = answered(ASKED, 200, SHOWN)
    assert done.lease is not None
    assert (done.lease.fencing_token, done.lease.seconds_left) == (7, 3.0)


def test_a_resource_takes_no_token_below_the_highest() -> None:
    resource = Resource()
    tried = [("p", 1), ("p", 3), ("p", 2), ("p", 3), ("q", 1)]
    assert [resource.take(pool, "l", token) for pool, token in tried] == [True, True, False, True, True]
    assert [write.accepted for write in resource.writes] == [True, True, False, True, True]


def test_arguments() -> None:
    assert arguments({}) == (20, 1)
    assert arguments({"FULL": "1", "SEED": "7"}) == (200, 7)
    assert arguments({"N": "5"}) == (5, 1)
    with pytest.raises(ValueError, match="N=0: a whole number, 1 or more"):
        arguments({"N": "0"})


def test_a_run_without_events_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Although none of its histories has a violation."""
    quiet = [Judged("h", [], {"acquire ok": 1}) for _ in range(5)]
    assert summarise(quiet, {}, "") == 1
    output = capsys.readouterr().out
    assert "PROBLEM no renew ok" in output
    assert output.splitlines()[-1] == "5 histories: 0 violations, 0 duplicate grants"
    assert summarise(quiet, {}, "some-mutant") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 of 5 caught"
