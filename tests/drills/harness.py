"""Harness of a drill: deployments with tasks on it, what people and faults do to them, and the evidence by which it is
judged: the simulator's ledger, the topics and the rows."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

import asyncpg
import msgspec

from slipway_api.events.alert import Alert
from slipway_common.base.clock import monotonic_seconds
from slipway_common.declaration.models import Declaration
from slipway_local.check import evidence
from slipway_local.check.evidence import Evidence
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import facts, ledger
from tests.support.folders import temporary_folder

STEP_SECONDS: Final = 40.0  # real; a few on an idle machine


class NotReached(Exception):
    """A step of a drill did not have its effect in time."""


class Verdict(msgspec.Struct, frozen=True):
    """Figures of a drill, and what contradicts its claim, or makes it prove nothing."""

    figures: str
    problems: Sequence[str] = ()


class Harness:
    """One drill: its chance, its speed, and its deployments, which are removed at the end."""

    def __init__(self, supervisor: Supervisor, *, seed: int, speed: float, log: Callable[[str], None]) -> None:
        self.supervisor = supervisor
        self.seed = seed
        self.speed = speed
        self.rng = Random(seed)
        self._log = log
        self._began = monotonic_seconds()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "Harness":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.supervisor.stop()
        await self._stack.aclose()

    def log(self, text: str) -> None:
        self._log(f"{monotonic_seconds() - self._began:6.1f} s  {text}")

    def new_deployment(
        self,
        *,
        seconds: dict[str, float] | None = None,
        environment: Mapping[str, Mapping[str, str]] | None = None,
        supervisor: Supervisor | None = None,
        **options: Any,
    ) -> Deployment:
        """A deployment that is not started yet. `seconds` replaces product times, `environment` adds variables;
        `options` as those of Deployment."""
        deployment = Deployment(
            supervisor or self.supervisor,
            self._stack.enter_context(temporary_folder()),
            speed=self.speed,
            seconds=seconds or {},
            environment=environment,
            **options,
        )
        self._stack.push_async_callback(deployment.remove)
        return deployment

    async def play(self, deployment: Deployment, declared: Declaration, **scenario: Any) -> None:
        """Declare accounts and pools, and load a scenario without demand of its own."""
        await deployment.apply(declared)
        loaded = {"seed": self.seed, "speed": self.speed, "accounts": {"*": {}}, "visibility_seconds": 5} | scenario
        await deployment.call("POST", "simulator", "/scenario", loaded)
        self.log(f"started; SEED={self.seed} SPEED={self.speed:g}")

    async def until(
        self, holds: Callable[[], Awaitable[bool]], what: str, *, within_seconds: float = STEP_SECONDS
    ) -> None:
        """Wait until a condition holds. Raises NotReached."""
        deadline = monotonic_seconds() + within_seconds
        while not await holds():
            if monotonic_seconds() > deadline:
                raise NotReached(f"not within {within_seconds:g} s: {what}")
            await asyncio.sleep(0.1)
        self.log(what)

    async def product_seconds(self, seconds: float) -> None:
        """Let product time pass."""
        await asyncio.sleep(seconds / self.speed)


async def add_tasks(deployment: Deployment, pool_id: str, count: int, seconds: float) -> None:
    """Add tasks of one length in product seconds."""
    body = {"pool_id": pool_id, "count": count, "duration_seconds": seconds}
    await deployment.call("POST", "simulator", "/tasks", body)


async def gathered(deployment: Deployment, settle_seconds: float = 0.0) -> Evidence:
    """Ledger, topics and rows of a deployment, which keeps running meanwhile."""
    return await evidence.gather(
        ledger_path=deployment.ledger,
        kafka=deployment.kafka,
        prefix=deployment.prefix,
        database_url=deployment.database_url,
        settle_seconds=settle_seconds,
    )


async def published_alerts(deployment: Deployment, wanted: Callable[[Alert], bool]) -> list[tuple[float, Alert]]:
    """Alerts and their ends as published, with their times."""
    return [
        (record.envelope.time.timestamp(), record.event)
        for record in (await gathered(deployment)).published
        if isinstance(record.event, Alert) and wanted(record.event) and record.envelope is not None
    ]


async def fetch(deployment: Deployment, statement: str, *arguments: Any) -> list[Any]:
    """Rows of a statement on the deployment's database."""
    db = await asyncpg.connect(deployment.database_url, timeout=10)
    try:
        return list(await db.fetch(statement, *arguments))
    finally:
        await db.close()


def played(deployment: Deployment) -> list[facts.Fact]:
    """All facts of the simulator's ledger so far."""
    return list(ledger.read(deployment.ledger))


def done(deployment: Deployment, pool_id: str) -> int:
    """Number of tasks that were done in a pool, by the ledger."""
    return sum(
        isinstance(fact, facts.TaskEnded) and fact.pool_id == pool_id and fact.result == "done"
        for fact in played(deployment)
    )


async def are_done(deployment: Deployment, pool_id: str, count: int) -> bool:
    return done(deployment, pool_id) >= count
