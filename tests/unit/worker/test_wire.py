"""Messages of the agent, which has no types of slipway_api, against these types."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from fastapi import FastAPI, Request, Response

from slipway_api.http.provisioner import agents
from slipway_client.transport.exchange import NoAnswer
from slipway_client.worker.core import Poll, Register, Reply, Report, SendReport
from slipway_client.worker.imds import Identity, Proof
from slipway_client.worker.provisioner import Provisioner
from slipway_client.worker.user_data import REGISTER_PATH, UserData
from slipway_common.web.answers import Answer
from tests.support.recorded import serving

BATCH: Final = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"
WORKER: Final = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12ce"
TOKEN: Final = "slipway-worker-" + "t" * 43
REGISTERED: Final = agents.RegisteredWorker(worker_id=WORKER, token=TOKEN, pool_id="linux", task_slots=2)
AT: Final = datetime(2026, 1, 5, tzinfo=UTC)
LEAVE: Final[dict[str, Any]] = {"terminate": True, "reason": "more workers than wanted"}
# Last part of the path of a report → the type of its body, and an answer.
TYPES: Final[dict[str, tuple[Any, Any]]] = {
    "register": (agents.Registration, REGISTERED),
    "claimed": (agents.ClaimReport, agents.ClaimAnswer(**LEAVE, counted=True)),
    "idle": (agents.EndReport, agents.EndAnswer(**LEAVE, ended=1)),
    "heartbeat": (None, agents.HeartbeatAnswer(**LEAVE, has_task=False)),
    "error": (agents.ErrorReport, agents.ReportAnswer(**LEAVE)),
    "notice": (agents.NoticeReport, agents.ReportAnswer(**LEAVE)),
    "stopped": (agents.StopReport, agents.ReportAnswer(**LEAVE)),
    "should-terminate": (
        None,
        agents.Standing(**LEAVE, config="a", revision="1", current="1", state="draining", deadline=AT),
    ),
}
REPORTS: Final = [
    Report("claimed", 1.0, task_id="t", source="q"),
    Report("idle", 2.0),
    Report("idle", 3.0, task_id="t", source="q", claimed_at=1.0),
    Report("error", 4.0, kind="disk-full", detail="no space left"),
    Report("notice", 5.0, kind="rebalance"),
    Report("notice", 6.0, kind="interruption", ends_at=AT),
    Report("stopped", 7.0),
]


@pytest.fixture(scope="module")
def received() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """URL of a service that answers agents by the types, and the bodies that it has received."""
    app, bodies = FastAPI(), list[tuple[str, bytes]]()

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def answer(path: str, request: Request) -> Response:
        what = path.rpartition("/")[2]
        bodies.append((what, await request.body()))
        return Answer(TYPES[what][1])

    with serving(app) as url:
        yield url, bodies


async def test_an_agent_sends_and_reads_what_the_types_say(
    received: tuple[str, list[tuple[str, bytes]]], tmp_path: Path
) -> None:
    """Each body has fields of its type alone, and each answer is read with its reason to leave."""
    url, bodies = received
    data = UserData(register_url=url + REGISTER_PATH, batch_id=BATCH, secret="s")
    identity = Identity(instance_id="i-7", zone_id="use1-az6", proof=Proof("{}", "c2ln", "cGtjczc="))
    provisioner = Provisioner(data, identity, tmp_path)
    assert await provisioner.perform(Register()) == Reply(task_slots=2)
    assert (provisioner.known.worker_id, provisioner.known.pool_id) == (WORKER, "linux")
    leave = Reply(**LEAVE)
    for report in REPORTS:
        assert await provisioner.perform(SendReport(report)) == leave
    assert await provisioner.perform(Poll(heartbeat=False)) == leave
    assert await provisioner.perform(Poll(heartbeat=True)) == Reply(**LEAVE, has_task=False)
    assert {what for what, _ in bodies} == TYPES.keys()
    for what, body in bodies:
        if (type_ := TYPES[what][0]) is not None:
            msgspec.json.decode(body, type=type_)
            assert unknown(json.loads(body), type_) == set(), what


NO_TEXT: Final = {
    "another encoding": b'{"error": "verweigert f\xfcr alle"}',
    "deep": b'{"a":' * 3_000 + b"1" + b"}" * 3_000,
}
"""Answers that are no JSON of ours, as from a proxy."""


@pytest.mark.parametrize("body", NO_TEXT.values(), ids=NO_TEXT)
@pytest.mark.parametrize(("status", "problem"), [(200, "something other than JSON"), (502, "answered 502")])
async def test_an_answer_that_cannot_be_read_is_none(status: int, problem: str, body: bytes) -> None:
    """The agent asks again, and its task goes on: any other error would end both."""
    app = FastAPI()
    app.post("/{path:path}")(lambda: Response(body, status, media_type="application/json"))
    with serving(app) as url:
        provisioner = Provisioner(
            UserData(register_url=url + REGISTER_PATH, batch_id=BATCH, secret="s"), Identity(instance_id="i-7")
        )
        with pytest.raises(NoAnswer, match=problem):
            await provisioner.perform(Register())


def unknown(body: dict[str, Any], type_: Any) -> set[str]:
    """Fields of a body that its type lacks, which a report may have, but not one of our own agent."""
    known = msgspec.structs.fields(type_)
    inner = [field.type for field in known if field.name == "identity" and body.get("identity")]
    of_identity = unknown(body["identity"], agents.MachineIdentity) if inner else set()
    return body.keys() - {field.encode_name for field in known} | of_identity
