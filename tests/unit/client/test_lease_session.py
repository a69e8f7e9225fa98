"""An unleased start whose broker comes back just as it ends."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from fastapi import Request, Response

from slipway_client.leases.admission import Admission, FailOpen
from slipway_client.leases.admitting import Unleased
from slipway_client.leases.broker import Broker
from slipway_client.leases.host import Host
from slipway_client.leases.session import Session
from slipway_client.leases.state import State
from slipway_client.leases.terms import Wanted
from slipway_common.base.clock import monotonic_seconds
from tests.support import lease_answers
from tests.support.harness import until
from tests.support.lease_answers import ACQUIRE, RELEASE, RENEW, UNLEASED, LeaseBroker, problem
from tests.support.recorded import serving

UNAVAILABLE = problem(503, "unavailable")
CHARGED = (200, {"charged": 1, "items": [lease_answers.lease()[1]]})
SECONDS = 60.0


class SlowBroker(LeaseBroker):
    """Stub broker that answers a report once `answers_reports` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers_reports = threading.Event()

        @self.app.middleware("http")
        async def answer_late(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
            response = await answer(request)
            if f"{request.method} {request.url.path}" == UNLEASED:
                await asyncio.to_thread(self.answers_reports.wait, SECONDS)
            return response


@pytest.fixture
def server() -> Iterator[tuple[SlowBroker, str]]:
    broker = SlowBroker()
    broker.reset()
    broker.answers |= {ACQUIRE: [UNAVAILABLE], UNLEASED: [CHARGED]}
    with serving(broker.app) as url:
        try:
            yield broker, url
        finally:
            broker.answers_reports.set()


@pytest.fixture
def broker(server: tuple[SlowBroker, str]) -> SlowBroker:
    return server[0]


@pytest.fixture
def state(server: tuple[SlowBroker, str], tmp_path: Path) -> State:
    return State(tmp_path, server[1], print)


@pytest.fixture
def session(server: tuple[SlowBroker, str], state: State) -> Session:
    wanted = Wanted(lease_pool_id="aws-ci", request_id="r-1")
    admission = Admission(
        begun_at=monotonic_seconds(), max_wait_seconds=SECONDS, fail_open=FailOpen.OPTIMISTIC, unavailable_seconds=0.0
    )
    return Session(Host(Broker(server[1]), state, Random(1), print), wanted, admission)


def released(broker: SlowBroker) -> list[str]:
    """Results of the releases."""
    return [body.get("result", "done") for body in broker.bodies(RELEASE)]


async def test_ends_after_it_was_charged(broker: SlowBroker, session: Session, state: State) -> None:
    """Under the id of its request, which is neither repeated nor cancelled."""
    broker.answers_reports.set()
    assert isinstance(await session.acquire(), Unleased)
    await until(lambda: state.spooled() == [], "its start is charged")
    await session.release("done")
    await session.withdraw()
    assert released(broker) == ["done"]
    assert [body["starts"][0]["request_id"] for body in broker.bodies(UNLEASED)] == ["r-1"]
    assert {asked for asked, _ in broker.received} == {ACQUIRE, UNLEASED, RELEASE}


async def test_ends_while_it_is_being_reported(broker: SlowBroker, session: Session) -> None:
    """The report in the background and the one at the end are both answered; one of them releases the lease."""
    assert isinstance(await session.acquire(), Unleased)
    await until(lambda: broker.count(UNLEASED) == 1, "it is reported")
    releasing = asyncio.create_task(session.release("done"))
    await until(lambda: broker.count(UNLEASED) == 2, "it is reported at its end")
    broker.answers_reports.set()
    await releasing
    assert released(broker) == ["done"]


async def test_is_reported_at_its_end(broker: SlowBroker, session: Session, state: State) -> None:
    broker.answers_reports.set()
    broker.answers[UNLEASED] = [UNAVAILABLE, CHARGED]
    assert isinstance(await session.acquire(), Unleased)
    await until(lambda: broker.count(UNLEASED) == 1, "the first report is not answered")
    await session.release("done")
    assert (released(broker), state.spooled()) == (["done"], [])


async def test_a_lease_granted_without_an_answer_is_held(broker: SlowBroker, session: Session) -> None:
    """The broker may have granted the request that it did not answer: the report then returns that lease, which lives
    only as long as it is renewed."""
    broker.answers_reports.set()
    granted = lease_answers.lease(ttl_seconds=0.3, hold_seconds=600.0)
    broker.answers |= {UNLEASED: [(200, {"charged": 1, "items": [granted[1]]})], RENEW: [granted]}
    assert isinstance(await session.acquire(), Unleased)
    holding = asyncio.create_task(session.hold())
    await until(lambda: broker.count(RENEW) > 1, "it is renewed")
    holding.cancel()
    await session.release("done")
    assert released(broker) == ["done"]
