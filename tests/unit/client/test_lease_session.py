"""A start without a lease whose broker comes back just as it ends."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from fastapi import Request, Response

from slipway_client.leases.asking import Asking, FailOpen
from slipway_client.leases.broker import Broker
from slipway_client.leases.session import Session, Unleased
from slipway_client.leases.state import State
from slipway_client.leases.terms import Wanted
from slipway_common.clock import monotonic_seconds
from tests import lease_answers
from tests.answers import serving
from tests.harness import until
from tests.lease_answers import ACQUIRE, RELEASE, UNLEASED, LeaseBroker, problem

CANCEL = "DELETE /lease-pools/aws-ci/requests/r-1"
UNAVAILABLE = problem(503, "unavailable")
CHARGED = (200, {"items": [lease_answers.lease()[1]]})
SECONDS = 60.0


class SlowBroker(LeaseBroker):
    """Its answer to who waits no more comes after the release, and to who tells of a start once `tells` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.tells, self.given_back = threading.Event(), threading.Event()
        late = {UNLEASED: self.tells, CANCEL: self.given_back}

        @self.app.middleware("http")
        async def answer_late(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
            response, asked = await answer(request), f"{request.method} {request.url.path}"
            if asked == RELEASE:
                self.given_back.set()
            if asked in late:
                await asyncio.to_thread(late[asked].wait, SECONDS)
            return response


@pytest.fixture
def server() -> Iterator[tuple[SlowBroker, str]]:
    broker = SlowBroker()
    broker.reset()
    broker.answers |= {ACQUIRE: [UNAVAILABLE], UNLEASED: [CHARGED], CANCEL: [(200, {})]}
    with serving(broker.app) as url:
        try:
            yield broker, url
        finally:
            broker.tells.set()
            broker.given_back.set()


@pytest.fixture
def broker(server: tuple[SlowBroker, str]) -> SlowBroker:
    return server[0]


@pytest.fixture
def state(server: tuple[SlowBroker, str], tmp_path: Path) -> State:
    return State(tmp_path, server[1], print)


@pytest.fixture
def session(server: tuple[SlowBroker, str], state: State) -> Session:
    wanted = Wanted(lease_pool_id="aws-ci", request_id="r-1")
    patience = Asking(
        begun_at=monotonic_seconds(), max_wait_seconds=SECONDS, fail_open=FailOpen.OPTIMISTIC, silent_seconds=0.0
    )
    return Session(Broker(server[1]), wanted, patience, state, Random(1), print)


def given_back(broker: SlowBroker) -> list[str]:
    """How each release said that it went."""
    return [body["result"] for body in broker.bodies(RELEASE)]


async def test_ends_while_its_request_is_cancelled(broker: SlowBroker, session: Session, state: State) -> None:
    broker.tells.set()
    assert isinstance(await session.acquire(), Unleased)
    await until(lambda: broker.count(CANCEL), "its start is charged")
    await session.release("done")
    assert (given_back(broker), state.spooled()) == (["done"], [])
    assert broker.count(CANCEL) == 1


async def test_ends_while_it_is_told_of(broker: SlowBroker, session: Session) -> None:
    """Both who told of it beside and who tells of it at its end are answered; one gives it back."""
    assert isinstance(await session.acquire(), Unleased)
    await until(lambda: broker.count(UNLEASED) == 1, "it is told of")
    releasing = asyncio.create_task(session.release("done"))
    await until(lambda: broker.count(UNLEASED) == 2, "it is told of at its end")
    broker.tells.set()
    await releasing
    assert given_back(broker) == ["done"]
    assert broker.count(CANCEL) == 1


async def test_is_told_of_at_its_end(broker: SlowBroker, session: Session, state: State) -> None:
    """Nobody waits for the end of the request before the units are given back."""
    broker.tells.set()
    broker.answers[UNLEASED] = [UNAVAILABLE, CHARGED]
    assert isinstance(await session.acquire(), Unleased)
    await until(lambda: broker.count(UNLEASED) == 1, "it is told of in vain")
    await session.release("done")
    assert (given_back(broker), state.spooled()) == (["done"], [])
    assert broker.count(CANCEL) == 1
