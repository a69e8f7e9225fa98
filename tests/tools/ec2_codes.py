"""`make ec2-codes`: every error code of EC2, through the SDK's client and the provisioner, to weights and alerts.

A small server answers the calls of a provisioner on a real database with each code; the events that follow are folded
by the health model of the weight-calculator. What came of it is compared with tests/data/ec2_codes.tsv and
ec2_state_reasons.tsv, which were written from the documentation. Prints a line per code, and exits with 1 if any
differs.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.alert import AlertRaised
from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.lease import LeaseReleaseRequested, LeaseRequested
from slipway_api.events.worker import Outcome, WorkerEvent, WorkerLaunchFailed, WorkerLost
from slipway_local.ec2.server import ENDPOINTS
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import calls
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.aws.caller import case_of
from slipway_provisioner.providers.aws.errors import Case
from slipway_provisioner.providers.aws.failures import CallFailed
from slipway_provisioner.providers.port import ProviderSettings
from slipway_provisioner.store import accounts
from slipway_weight_calculator.domain import alerts
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.world import World, advance, commit, declare, fold
from tests.support import ec2_server
from tests.support.ec2_codes import Code, StateReason, codes, state_reasons
from tests.support.ec2_server import Ec2Server, Reply, serving
from tests.support.folders import temporary_folder
from tests.support.provisioner import PROVIDERS, Provisioner, declared, provisioner_on, report

FAILURES: Final = 8
"""Equal failures in a row, more than trip any row."""
START: Final = 1_900_000_000.0
# The next code begins like the first one: nothing launches, waits or has failed.
AGAIN: Final = """
DELETE FROM worker; DELETE FROM launch_batch; DELETE FROM lease; DELETE FROM lease_request;
DELETE FROM launch_config_outcomes; DELETE FROM demand; DELETE FROM decision; DELETE FROM dirty_pool;
UPDATE worker_pool SET attempted_at = NULL"""
ACCOUNT: Final = (
    "UPDATE account SET settings = $1, credential = $2, request_timeout_seconds = $3, unanswered_since = NULL"
)
SUBNET: Final = "subnet-0abc"
# Calls whose codes say nothing about a launch.
OTHERS: Final = {"wait": calls.LIST, "restart": calls.LIST, "instance": calls.TERMINATE, "nothing": calls.RUN}
# Alerts that name a cause, before those of what it stops.
CAUSES: Final = ("unclassified-error", "credential-failing", "quota-exhausted", "image-tripped", "capacity-unavailable")


class Seen(msgspec.Struct, frozen=True):
    """Consequences of an error, in the words of the expected ones."""

    code: str
    scope: str
    resource: str
    advice: str
    launched: str
    lease: str
    window: str
    alert: str

    def __str__(self) -> str:
        scope = f"{self.scope} ({self.resource})" if self.resource else self.scope
        retry = f"{self.advice}, launched {self.launched}"
        return f"{self.code:48} {scope:28} {retry:32} {self.lease:24} {self.window:14} {self.alert}"


def expected(row: Code) -> Seen:
    return msgspec.convert(row, Seen, from_attributes=True)


class Play:
    """One provider and one server for all codes, and a provisioner that launches for each of them anew."""

    def __init__(self, provider: Ec2, server: Ec2Server, postgres: EmbeddedPostgres, silent_port: int) -> None:
        self.provider = provider
        self.server = server
        self.postgres = postgres
        self.silent_port = silent_port

    async def codes(self, rows: Sequence[Code]) -> AsyncIterator[tuple[Code, Seen]]:
        async with provisioner_on(self.postgres, self.provider, call_timeout_seconds=60.0) as provisioner:
            created = await self._declared(provisioner)
            for row in rows:
                yield row, await self._code(provisioner, created, row)

    async def _code(self, provisioner: Provisioner, created: Sequence[LaunchConfigCreated], row: Code) -> Seen:
        """Launch with a cloud that answers every call with a code."""
        answer = _reply(row)
        self.server.answers(answer, DescribeInstances=answer if row.advice in OTHERS else ec2_server.described())
        await provisioner.database.execute(AGAIN)
        async with provisioner.database.acquire() as db:
            await db.execute(ACCOUNT, *self._account(row.code))
            account = await accounts.get(db, "sim-a")
        case = await self._case(account, row)
        if row.advice in OTHERS:
            return _seen(row.code, case, "none", _Folded(created))
        lease, failures = await _launched(provisioner)
        return _seen(row.code, case, lease, _Folded(created, failures), failures)

    async def state_reason(self, row: StateReason) -> tuple[str, str, str, str]:
        """Launch, and let the instance die while it boots; returns stage, scope, window and alert."""
        gone = ec2_server.instance("i-1", "terminated", reason=row.code, message=row.message)

        def answer(call: ec2_server.Received) -> Reply:
            by_id = any(name.startswith("InstanceId.") for name in call.parameters)
            return {
                "RunInstances": ec2_server.launched("i-1"),
                "GetCallerIdentity": ec2_server.caller("sim-a"),
                "DescribeAvailabilityZones": ec2_server.zones(us_east_1a="use1-az4"),
                "DescribeInstances": ec2_server.described(gone) if by_id else ec2_server.described(),
            }.get(call.action, ec2_server.reply(call.action, ""))

        self.server.answer = answer
        async with provisioner_on(self.postgres, self.provider, call_timeout_seconds=60.0) as provisioner:
            created = await self._declared(provisioner)
            await _launched(provisioner)
            await provisioner.set_clock(600)
            await provisioner.reap()
            ends = await provisioner.published(WorkerLost)
            folded = _Folded(created, ends)
            (outcome,) = [event.outcome for event in ends if event.outcome is not None]
            return outcome.stage.value, _scope(outcome), folded.window, folded.alert

    async def _declared(self, provisioner: Provisioner) -> Sequence[LaunchConfigCreated]:
        """Declare an account and a pool with one launch config; returns the event of the latter."""
        body = declared()
        settings, _, seconds = self._account("")
        body["accounts"][0] |= {"settings": settings, "region": "us-east-1", "request_timeout_seconds": seconds}
        pool = body["worker_pools"][0] | {"mode": "enforce"}  # a new pool of a real provider launches nothing
        body["worker_pools"] = [pool]
        for config in pool["launch_configs"]:
            config |= {"zone": "use1-az4", "settings": {"subnet_id": SUBNET}}
        await provisioner.declare(body)
        # The operator's credential, which a declaration only names, as the provider gets it.
        await provisioner.database.execute(ACCOUNT, *self._account(""))
        await provisioner.trust()
        return await provisioner.published(LaunchConfigCreated)

    def _account(self, code: str) -> tuple[dict[str, Any], dict[str, Any], float]:
        """Settings, credential and timeout of an account in which the SDK fails with a code of its own."""
        url = {
            "EndpointConnectionError": "http://127.0.0.1:1",
            "ConnectTimeoutError": f"http://127.0.0.1:{self.silent_port}",
        }.get(code, self.server.url)
        credential = {
            "NoCredentialsError": {"environment": "SLIPWAY_NOT_SET"},
            "CredentialRetrievalError": {"file": "/nonexistent"},
        }.get(code, {"environment": "CI_AWS"})
        settings = dict.fromkeys(ENDPOINTS, url)
        seconds = 0.5 if code in ("ConnectTimeoutError", "ReadTimeoutError") else 60.0
        return settings, credential, seconds

    async def _case(self, account: Account, row: Code) -> Case:
        """Meaning of the code as the client reads it."""
        call = OTHERS.get(row.advice, calls.RUN)
        parameters: dict[str, Any] = {"InstanceIds": ["i-1"]} if call is calls.TERMINATE else {}
        parameters |= {"MinCount": 1, "MaxCount": 1, "ImageId": "ami-1"} if call is calls.RUN else {}
        try:
            await self.provider.caller.send(account, call, **parameters)
        except CallFailed as failed:
            if failed.code != row.code:
                raise AssertionError(f"the client reads {row.code} as {failed.code}") from None
            return case_of(account, failed)
        raise AssertionError(f"{row.code}: the call succeeded")


class _Folded:
    """Weight-calculator after failures like the last one in a row: kinds of the rows that they moved, and the alert."""

    def __init__(self, created: Sequence[LaunchConfigCreated], failures: Sequence[WorkerEvent] = ()) -> None:
        world, open_alerts = World(), dict[str, AlertRaised]()
        for number in range(FAILURES + 1 if failures else 1):
            draft = Draft(world)
            now = START + number
            advance(draft, now)
            for config in created if number == 0 else ():
                declare(draft, config, now)
            for failure in failures if number else ():
                fold(draft, msgspec.structs.replace(failure, worker_id=f"{failure.worker_id}-{number}"), now)
            open_alerts = alerts.after(open_alerts, alerts.changes(draft, open_alerts, now))
            commit(draft)
        moved = {key.kind for key, row in world.rows.items() if any(stage.trip.run for stage in _stages(row))}
        kinds = {alert.kind for alert in open_alerts.values()}
        self.window = " ".join(sorted(moved)) or "none"
        self.alert = next((kind for kind in (*CAUSES, *sorted(kinds)) if kind in kinds), "none")


def _stages(row: Any) -> Iterable[Any]:
    return row.launch, row.boot, row.claim


async def _launched(provisioner: Provisioner) -> tuple[str, list[WorkerLaunchFailed]]:
    """Make one call for one worker; returns the end of its lease, and its failure."""
    await provisioner.demand(report(1))
    await provisioner.plan()
    requests = await provisioner.published(LeaseRequested)
    await provisioner.leases(*[provisioner.granted(request) for request in requests])
    await provisioner.launch()
    events = await provisioner.events()
    released = [event for event in events if isinstance(event, LeaseReleaseRequested)]
    lease = "kept" if not released else f"released {released[0].result}"
    return lease, [event for event in events if isinstance(event, WorkerLaunchFailed)]


def _seen(code: str, case: Case, lease: str, folded: _Folded, failures: Sequence[WorkerLaunchFailed] = ()) -> Seen:
    """Consequences. The scope is that of the event, if there is one."""
    scope = _scope(failures[0].outcome) if failures else case.scope.value if case.scope else "unclassified"
    return Seen(
        code, scope, case.resource, case.advice.name.lower(), case.launched.value, lease, folded.window, folded.alert
    )


def _scope(outcome: Outcome) -> str:
    return outcome.scope.value if outcome.classified else "unclassified"


def _reply(row: Code) -> Reply:
    """Answer with a code, or what makes the SDK raise it."""
    if row.http == "sdk":
        return {
            "ReadTimeoutError": ec2_server.SILENT,
            "ResponseParserError": Reply("<RunInstancesResponse>"),
        }.get(row.code, ec2_server.LOST)
    if row.message == "html":
        return ec2_server.html(row.http_status)
    return ec2_server.error(row.code, row.message, row.http_status)


@contextlib.contextmanager
def unanswering() -> Any:
    """Port that accepts no connection and refuses none: its queue is full."""
    with socket.socket() as listening, contextlib.ExitStack() as stack:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield port


@contextlib.asynccontextmanager
async def playing(postgres: EmbeddedPostgres) -> AsyncIterator[Play]:
    """All that the codes need; a provider without pauses, since its calls are no load."""
    provider = Ec2(ProviderSettings(timeout_seconds=60, pacing=_Unpaced()))
    with pytest.MonkeyPatch.context() as patch, unanswering() as port:
        patch.setenv("CI_AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        patch.setenv("CI_AWS_SECRET_ACCESS_KEY", "secret")
        patch.setitem(PROVIDERS, "simulated", provider)
        try:
            await provider.open()
            async with serving() as server:
                yield Play(provider, server, postgres, port)
        finally:
            await provider.close()


@contextlib.asynccontextmanager
async def own_postgres() -> AsyncIterator[EmbeddedPostgres]:
    with temporary_folder("slipway-ec2-codes-") as folder:
        server = EmbeddedPostgres(folder / "postgres", {"fsync": "off"})
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


class _Unpaced:
    """Buckets that are always full."""

    async def take(self, shares: Sequence[Any], *, within_seconds: float) -> float:
        return 0.0

    async def empty(self, shares: Sequence[Any]) -> None:
        return


async def main() -> int:
    """Play every code; returns the number of those that differ."""
    right = 0
    print(f"{'code':48} {'scope':28} {'retry':32} {'lease':24} {'window':14} alert")
    rows = codes()
    async with own_postgres() as postgres, playing(postgres) as play:
        async for row, seen in play.codes(rows):
            right += seen == expected(row)
            print(seen if seen == expected(row) else f"{seen}\n  expected:\n{expected(row)}", flush=True)
        for reason in (reasons := state_reasons()):
            found = await play.state_reason(reason)
            wanted = (reason.stage, reason.scope, reason.window, reason.alert)
            right += found == wanted
            told = f"{reason.code:48} {found[1]:28} {'stage ' + found[0]:32} {'ended':24} {found[2]:14} {found[3]}"
            print(told if found == wanted else f"{told}\n  expected: {' '.join(wanted)}", flush=True)
    total = len(rows) + len(reasons)
    print(f"{right} of {total}")
    return total - right


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main()) else 0)
