"""A provider whose calls, replies and machines a test decides."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

from slipway_api.events.worker import Outcome
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState, Protected
from slipway_provisioner.providers.port import Accepted, CreateRequest, OutcomeUnknown, Provider, TerminationRefused

START: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


class ReplyLost(Exception):
    """Script entry: the call takes effect, but its reply is lost."""


class Cloud(Provider):
    """Scripted provider: each create call takes the next entry, or succeeds if there is none.

    An entry is an exception to raise, `ReplyLost`, or the number of instances to create instead of the requested one.
    Calls wait for `hold`, if it is set, between their effect and their reply. While it `accepts_calls`, they are
    accepted without an effect, and each poll takes the next entry of `polls`, with which the provider still works on
    the call if there is none.
    """

    real = False

    def __init__(self) -> None:
        self.calls: list[CreateRequest] = []
        self.script: deque[Exception | type[ReplyLost] | int] = deque()
        self.live: dict[str, Instance] = {}
        self.terminated: list[str] = []
        self.hidden: set[str] = set()
        self.failing: set[str] = set()  # instances whose termination fails
        self.protected: dict[str, Protected] = {}  # instances whose termination is refused
        self.refused: list[str] = []  # of these, one entry per attempt
        self.by_token: dict[str, list[str]] = {}
        self.honours = False
        self.checks_first = True
        self.visibility: float | None = None
        self.parameters: dict[str, Any] = {}
        self.accepts_calls = False
        self.polled: list[tuple[str, CreateRequest]] = []
        self.polls: deque[Exception | int] = deque()
        self.endings: dict[str, Outcome] = {}
        self.most: int | None = None  # instances of one call
        self.printed: dict[str, str | Exception] = {}  # console output by instance
        self.consoles_read: list[str] = []
        self.cleaned = 0
        self.healthy = True
        self.page_size = 0  # 0: one page
        self.fails_after_pages: int | None = None
        self.reported_identity = "sim-a"
        self.created_at = START
        self.boots_slowly = False
        self.hold: asyncio.Event | None = None
        self._numbers = count(1)

    def problem(self, account_settings: Mapping[str, Any], region: str) -> str:
        return ""

    def credential_problem(self, credential: Mapping[str, Any]) -> str:
        return ""

    def honours_tokens(self, account: Account) -> bool:
        return self.honours

    def checks_tokens_first(self, account: Account) -> bool:
        return self.checks_first

    def visibility_seconds(self, account: Account) -> float | None:
        return self.visibility

    def units_max(self, account: Account) -> int | None:
        return self.most

    def call(self, account: Account, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(self.parameters)

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        return f"/var/log/{batch_id}/{instance_id}"

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str] | Accepted:
        self.calls.append(request)
        entry = self.script.popleft() if self.script else request.count
        if isinstance(entry, Exception):
            raise entry
        if self.honours and request.token in self.by_token:
            return self.by_token[request.token]
        if self.accepts_calls:
            if entry is ReplyLost:
                raise OutcomeUnknown("no reply")
            return Accepted(f"working on {request.token}")
        ids = self.make(request, entry if isinstance(entry, int) else request.count)
        if self.hold is not None:
            await self.hold.wait()
        if entry is ReplyLost:
            raise OutcomeUnknown("no reply")
        return ids

    def make(self, request: CreateRequest, number: int) -> list[str]:
        """Create instances of a call."""
        ids = [f"i-{next(self._numbers):04d}" for _ in range(number)]
        self.by_token[request.token] = ids
        for id_ in ids:
            self.live[id_] = Instance(
                id=id_,
                batch_id=request.batch_id,
                launch_config_id=request.config["id"],
                created_at=self.created_at,
                state=InstanceState.PENDING if self.boots_slowly else InstanceState.RUNNING,
            )
        return ids

    async def poll(self, account: Account, request: CreateRequest, handle: str) -> Sequence[str] | None:
        self.polled.append((handle, request))
        entry = self.polls.popleft() if self.polls else None
        if isinstance(entry, Exception):
            raise entry
        return None if entry is None else self.make(request, entry)

    async def pages(self, account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        found = [i for i in self.live.values() if batch_id in (None, i.batch_id) and i.id not in self.hidden]
        size = self.page_size or len(found) or 1
        for number, at in enumerate(range(0, len(found), size)):
            if number == self.fails_after_pages:
                raise OutcomeUnknown("the page token has expired")
            yield found[at : at + size]

    async def ending(self, account: Account, config: Mapping[str, Any], instance_id: str) -> Outcome | None:
        return self.endings.get(instance_id)

    async def console_output(self, account: Account, batch_id: str, instance_id: str) -> str:
        self.consoles_read.append(instance_id)
        printed = self.printed.get(instance_id, "")
        if isinstance(printed, Exception):
            raise printed
        return printed

    async def clean_up(self, account: Account) -> None:
        self.cleaned += 1

    async def health(self, account: Account) -> None:
        if not self.healthy:
            raise OutcomeUnknown("no reply")

    async def exists(self, account: Account, instance_id: str, *, launched_at: datetime | None) -> bool:
        return instance_id in self.live

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        for instance_id in [id_ for id_ in instance_ids if id_ not in self.failing | self.protected.keys()]:
            self.terminated.append(instance_id)
            self.live.pop(instance_id, None)
        if refused := {id_: self.protected[id_] for id_ in instance_ids if id_ in self.protected}:
            self.refused += refused
            raise TerminationRefused(refused)
        if self.failing & set(instance_ids):
            raise OutcomeUnknown("the provider is unavailable")

    async def identity(self, account: Account) -> str:
        return self.reported_identity
