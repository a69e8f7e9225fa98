"""Clients of ours that are answered 429: each asks again, once the time has passed that the answer names."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from fastapi import FastAPI, Request, Response

from slipway_api.http.lease_broker import AcquireGang, GangMember, Lease
from slipway_api.http.pages import Items
from slipway_client.cli.watching import fetcher
from slipway_client.leases.admission import Admission, FailOpen
from slipway_client.leases.broker import Broker
from slipway_client.leases.gang import GangRequest
from slipway_client.leases.host import Host
from slipway_client.leases.session import Session
from slipway_client.leases.state import State
from slipway_client.leases.terms import Wanted
from slipway_client.transport.exchange import NoAnswer
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api
from slipway_client.worker.core import Register
from slipway_client.worker.imds import Identity
from slipway_client.worker.provisioner import Provisioner
from slipway_client.worker.user_data import REGISTER_PATH, UserData
from slipway_common.base.clock import monotonic_seconds
from slipway_common.web import problem
from slipway_common.web.limits import Counted, too_many
from tests.support import lease_answers
from tests.support.recorded import serving

SECONDS: Final = 1.0
"""Time that the services ask for."""


class Busy:
    """A service that refuses the first requests of each kind, and records bodies."""

    def __init__(self, refused: int = 1) -> None:
        self.refused = refused
        self.received: list[tuple[str, bytes]] = []
        self.app = FastAPI()

        @self.app.api_route("/{path:path}", methods=["GET", "POST", "PUT"])
        async def answer(path: str, request: Request) -> Any:
            self.received.append((path, await request.body()))
            if len([1 for asked, _ in self.received if asked == path]) <= self.refused:
                return problem.answer(too_many(Counted.TOKEN, SECONDS))
            if path == "lease-gangs":
                return {"request_id": "r", "leases": [lease_answers.lease()[1]]}
            return lease_answers.lease()[1] if path.startswith("lease-pools/aws-ci/leases") else {"items": [path]}

        @self.app.delete("/{path:path}")
        async def deleted(path: str) -> Response:
            return Response(status_code=204)


@pytest.fixture
def served() -> Iterator[tuple[Busy, str]]:
    busy = Busy()
    with serving(busy.app) as url:
        yield busy, url


def test_the_command_asks_again(served: tuple[Busy, str]) -> None:
    """With its whole body, and only after the time that it was asked to wait."""
    busy, url = served
    api, began = Api({"provisioner": url}), time.monotonic()
    assert api.get(Items[str], "provisioner", "/pools").items == ["pools"]
    assert time.monotonic() - began >= SECONDS
    lines = api.put(Items[str], "provisioner", "/declaration", lambda: iter([b"a\n", b"b\n"]))
    assert lines.items == ["declaration"]
    assert busy.received[2:] == [("declaration", b"a\nb\n")] * 2


def test_the_command_does_not_wait_for_ever(served: tuple[Busy, str]) -> None:
    busy, url = served
    with pytest.raises(Failed, match="Too many requests of this token") as failed:
        Api({"provisioner": url}, timeout_seconds=SECONDS / 2).get(object, "provisioner", "/pools")
    assert (failed.value.slug, len(busy.received)) == ("too-many-requests", 1)


async def test_the_screen_asks_again(served: tuple[Busy, str]) -> None:
    async with fetcher({"provisioner": served[1]}, {}) as fetch:
        assert json.loads(await fetch("provisioner", "/pools")) == {"items": ["pools"]}


@pytest.mark.parametrize("kind", ["lease", "gang"])
async def test_a_busy_broker_is_waited_for(served: tuple[Busy, str], tmp_path: Path, kind: str) -> None:
    """A caller that would start without a lease at the first outage does not: the broker is available."""
    url = served[1]
    admission = Admission(begun_at=monotonic_seconds(), max_wait_seconds=60.0, fail_open=FailOpen.OPTIMISTIC)
    lines: list[str] = []
    host = Host(Broker(url), State(tmp_path, url, lines.append), Random(1), lines.append)
    if kind == "lease":
        granted: Any = await Session(host, Wanted(lease_pool_id="aws-ci", request_id="r"), admission).acquire()
    else:
        gang = AcquireGang(request_id="r", members=[GangMember(pool="aws-ci")])
        (granted,) = await GangRequest(host, gang, admission).acquire()  # type: ignore[misc]
    assert isinstance(granted, Lease)
    assert any("Too many requests of this token: nothing was changed" in line for line in lines)


async def test_an_agent_hears_that_its_provisioner_is_busy(served: tuple[Busy, str]) -> None:
    data = UserData(register_url=served[1] + REGISTER_PATH, batch_id="b", secret="s")
    with pytest.raises(NoAnswer) as error:
        await Provisioner(data, Identity(instance_id="i")).perform(Register())
    assert (error.value.is_limited, error.value.retry_after_seconds) == (True, SECONDS)
