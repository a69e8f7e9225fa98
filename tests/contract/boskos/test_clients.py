"""A day of the Boskos clients on the wire: boskosctl of two jobs and an operator, a reaper, a janitor. The calls are
those of sigs.k8s.io/boskos v0.0.0-20250908171729-5e4ab7284e90, with the answers that they need to go on."""

import json
from typing import Any, Final

from tests.contract.boskos.slot_broker import SlotBroker

FIRST: Final = "POST /acquire?dest=busy&owner=job-1&request_id=3640326584042911175&state=free&type=car"
SECOND: Final = "POST /acquire?dest=busy&owner=job-2&request_id=8762575164526710989&state=free&type=car"
BEAT: Final = "POST /update?name=car-1&owner=job-1&state=busy"
CLEAN: Final = "POST /acquire?dest=cleaning&owner=Janitor&state=dirty&type=car"


def slot(number: int, state: str, owner: str, at: str, **userdata: str) -> dict[str, Any]:
    return {
        "type": "car",
        "name": f"car-{number}",
        "state": state,
        "owner": owner,
        "lastupdate": at,
        "userdata": userdata,
    }


# Seconds since the first call, the call and its body, status and JSON of the answer.
DAY: Final = [
    (0, FIRST, None, 200, slot(1, "busy", "job-1", "2026-01-01T12:00:00Z")),
    (
        0,
        "POST /acquire?dest=leased&owner=ann&state=free&type=car",
        None,
        200,
        slot(2, "leased", "ann", "2026-01-01T12:00:00Z"),
    ),
    (1, SECOND, None, 404, None),
    (4, SECOND, None, 404, None),
    (30, BEAT, b'{"project":"p-1"}\n', 200, None),
    (
        30,
        "GET /metric?type=car",
        None,
        200,
        {"type": "car", "current": {"busy": 1, "leased": 1}, "owner": {"ann": 1, "job-1": 1}},
    ),
    (31, "POST /release?dest=free&name=car-2&owner=ann", None, 200, None),
    (31, SECOND, None, 200, slot(2, "busy", "job-2", "2026-01-01T12:00:31Z")),
    (60, "POST /update?name=car-2&owner=job-2&state=busy", b"{}\n", 200, None),
    (60, "POST /reset?dest=dirty&expire=20s&state=busy&type=car", None, 200, {"car-1": "job-1"}),
    (60, "POST /reset?dest=dirty&expire=20s&state=cleaning&type=car", None, 200, {}),
    (60, "POST /reset?dest=dirty&expire=20s&state=leased&type=car", None, 200, {}),
    (60, "POST /reset?dest=dirty&expire=30m0s&state=busy&type=lorry", None, 200, {}),
    *[(seconds, BEAT, b"{}\n", 401, None) for seconds in (61, 62, 66, 75)],
    (75, CLEAN, None, 200, slot(1, "cleaning", "Janitor", "2026-01-01T12:01:15Z", project="p-1")),
    (75, CLEAN, None, 404, None),
    (76, "POST /update?name=car-1&owner=Janitor&state=cleaning", None, 200, None),
    (77, "POST /release?dest=free&name=car-1&owner=Janitor", None, 200, None),
    (78, "POST /release?dest=free&name=car-2&owner=job-2", None, 200, None),
    (78, "GET /metric?type=car", None, 200, {"type": "car", "current": {"free": 2}, "owner": {"": 2}}),
]


async def test_a_day_of_the_clients(slot_broker: SlotBroker) -> None:
    """Every answer is the expected one."""
    for seconds, line, body, status, answer in DAY:
        await slot_broker.broker.set_clock(seconds)
        result = await slot_broker.call(line, body)
        assert (result.status_code, line) == (status, line), result.text
        if status == 200:
            assert (json.loads(result.content) if result.content else None) == answer, line
