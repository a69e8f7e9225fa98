"""Two sessions on launch batches: replies, registrations, look-ups and repeats."""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerDelayed, WorkerLaunched
from slipway_common.base.ids import hash_secret, new_worker_token
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import launches
from slipway_provisioner.domain.identity import Attested
from slipway_provisioner.domain.workers import Worker, launch_failed
from slipway_provisioner.providers.port import OutcomeUnknown
from slipway_provisioner.store import accounts, batches, outcomes, workers
from slipway_provisioner.store.batches import Batch, Overdue
from tests.support.cloud import START
from tests.support.interleaving import FORBID, SHARED
from tests.support.provisioner import Provisioner, after, awaited, in_transaction, revision_id, stopped_at
from tests.support.starts import Forbid
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
BATCH: Final = (
    "store.batches.LOCK",
    "store.batches.KNOWN",
    "store.functions.LOCK_CALLS",
    "store.workers.BATCH",
    "store.workers.BY_INSTANCE",
    "store.workers.UPDATE",
    "store.workers.UPDATE_ONE",
)


async def in_flight(provisioner: Provisioner, pending: int) -> tuple[Batch, list[Worker]]:
    """A call without a reply so far."""
    (grant,) = await provisioner.admitted(pending)
    async with provisioner.database.acquire() as db:
        ((batch, _),) = await provisioner.launcher._start(db, [grant.lease_id])
    return batch, await provisioner.workers()


@locking(*BATCH)
async def test_a_reply_that_waited_for_a_registration(provisioner: Provisioner) -> None:
    """The machine keeps its worker, and the reply binds the others."""
    batch, _ = await in_flight(provisioner, 2)
    async with stopped_at(provisioner, "outbox", provisioner.register("i-b", batch.id)) as registering:
        reply = provisioner.start(provisioner.launcher.record(provisioner.database, batch, ["i-a", "i-b"]))
        await provisioner.until_waiting(registering, reply)
    await asyncio.gather(registering, reply)
    assert [(w.instance_id, w.state) for w in await provisioner.workers()] == [("i-b", "running"), ("i-a", "starting")]
    assert len(await provisioner.published(WorkerLaunched)) == 2


@locking(*BATCH)
async def test_a_registration_that_waited_for_the_reply(provisioner: Provisioner) -> None:
    """It finds the worker that its instance was bound to."""
    batch, _ = await in_flight(provisioner, 2)
    record = provisioner.launcher.record(provisioner.database, batch, ["i-a", "i-b"])
    async with stopped_at(provisioner, "outbox", record) as reply:
        registering = provisioner.start(provisioner.register("i-b", batch.id))
        await provisioner.until_waiting(reply, registering)
    await reply
    assert (await registering).status_code == 200
    assert [(w.instance_id, w.state) for w in await provisioner.workers()] == [("i-a", "starting"), ("i-b", "running")]


@locking("store.batches.LOCK", "store.workers.BATCH")
async def test_two_registrations_of_a_batch_take_two_intents(provisioner: Provisioner) -> None:
    """A third one, an orphan instance, is refused."""
    batch, _ = await in_flight(provisioner, 2)
    answers = await asyncio.gather(*(provisioner.register(f"i-{name}", batch.id) for name in "abc"))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 409]
    assert len({answer.json()["worker_id"] for answer in answers if answer.status_code == 200}) == 2


@locking("store.batches.LOCK", "store.workers.BY_INSTANCE")
async def test_one_machine_that_registers_twice_at_once(provisioner: Provisioner) -> None:
    """It is one worker, and the later token counts."""
    batch, _ = await in_flight(provisioner, 2)
    answers = await asyncio.gather(*(provisioner.register("i-a", batch.id) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert len({answer.json()["worker_id"] for answer in answers}) == 1
    assert await provisioner.states() == {"running": 1, "launching": 1}


@locking("store.batches.LOCK", "store.workers.BY_INSTANCE")
async def test_copies_of_a_document_that_register_at_once(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One enrols the machine, and has its token; all that wait for it are refused."""
    (worker,) = await provisioner.starting()
    own = worker.instance_id or ""
    monkeypatch.setattr(provisioner.cloud, "attested", lambda *_: Attested(own, START))
    tokens = [new_worker_token() for _ in range(3)]
    first, *others = (provisioner.register(own, worker.batch_id, token=token) for token in tokens)
    async with stopped_at(provisioner, "outbox", first) as enrolling:
        copies = [provisioner.start(other) for other in others]
        await provisioner.until_waiting(enrolling, copies[0])  # the last one waits for its turn, without a connection
    answers = await asyncio.gather(enrolling, *copies)
    assert [answer.status_code for answer in answers] == [200, 409, 409]
    assert [answer.json()["type"].rpartition(":")[2] for answer in answers[1:]] == ["identity-used"] * 2
    assert (await provisioner.worker()).token_sha256 == hash_secret(tokens[0])


@locking("store.workers.LOCK", "store.workers.BY_INSTANCE", "store.leases.RELEASE")
@pytest.mark.parametrize("first", ["seen", "registered"])
async def test_a_boot_that_is_seen_and_registered_at_once(provisioner: Provisioner, first: str) -> None:
    """It is one boot in either order: the machine gets its token, and the unit is released once."""
    await provisioner.starting()
    await provisioner.database.execute("UPDATE launch_config SET boot_evidence = 'provider_running'")
    worker = await provisioner.worker()
    await provisioner.events()
    steps: dict[str, Awaitable[Any]] = {
        "seen": provisioner.reap(),
        "registered": provisioner.register(worker.instance_id or "", worker.batch_id),
    }
    async with stopped_at(provisioner, "outbox", steps.pop(first)) as one:
        other = provisioner.start(awaited(*steps.values()))
        await provisioner.until_waiting(other)
    await asyncio.gather(one, other)
    events = await provisioner.events()
    assert Counter(type(event).__name__ for event in events) == {"WorkerRegistered": 1, "LeaseReleaseRequested": 1}
    assert (await provisioner.worker()).token_sha256 is not None


@locking("store.batches.LOCK", "store.batches.KNOWN")
async def test_a_late_reply_and_a_look_up_record_one_outcome(provisioner: Provisioner) -> None:
    """The first one counts, and the other changes nothing."""
    batch, _ = await in_flight(provisioner, 2)
    launcher = provisioner.launcher
    async with stopped_at(
        provisioner, "outbox", launcher.put_back(provisioner.database, batch, "looked up")
    ) as look_up:
        reply = provisioner.start(launcher.record(provisioner.database, batch, ["i-a", "i-b"]))
        await provisioner.until_waiting(look_up, reply)
    await asyncio.gather(look_up, reply)
    assert await provisioner.states() == {"requested": 2}
    events = await provisioner.events()
    assert sum(isinstance(event, WorkerDelayed) for event in events) == 2
    assert not any(isinstance(event, WorkerLaunched) for event in events)


@locking(*SHARED)
@pytest.mark.parametrize("forbid", FORBID.values(), ids=FORBID)
async def test_a_repeat_that_waited_for_a_command_obeys_it(provisioner: Provisioner, forbid: Forbid) -> None:
    """A repeat is a start: it waits for a command that was first, and then the call is looked up."""
    provisioner.cloud.honours = True
    provisioner.cloud.script.append(OutcomeUnknown("no reply"))
    await provisioner.admitted()
    await provisioner.launch()
    await provisioner.set_clock(16)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await forbid(db)
            repeat = provisioner.start(provisioner.resolve())
            await provisioner.until_waiting(repeat)
        await repeat
    assert len(provisioner.cloud.calls) == 1


@locking("store.batches.LOCK", "store.workers.BATCH", "store.leases.LOCK")
async def test_a_repeat_beside_a_late_reply(provisioner: Provisioner) -> None:
    """The call whose reply came first is not repeated."""
    launcher, database = provisioner.launcher, provisioner.database
    batch, _ = await in_flight(provisioner, 1)
    async with stopped_at(provisioner, "worker", launcher.record(database, batch, ["i-a"])) as reply:
        repeat = provisioner.start(
            in_transaction(provisioner, lambda db: launches.may_repeat(db, batch, launcher.terms))
        )
        await provisioner.until_waiting(reply, repeat)
    await reply
    assert await repeat is False


@locking("store.batches.OVERDUE")
async def test_two_replicas_resolve_different_batches(provisioner: Provisioner) -> None:
    """A batch that was taken is left to its replica until the deadline of the attempt."""
    await in_flight(provisioner, 1)
    await provisioner.set_clock(16)

    async def take(db: Connection) -> list[Overdue]:
        return await batches.take_overdue(db, wait_seconds=10)

    async with provisioner.database.acquire() as db, db.transaction():
        assert len(await take(db)) == 1
        assert await in_transaction(provisioner, take) == []
    assert await in_transaction(provisioner, take) == []
    await provisioner.set_clock(32)
    assert len(await in_transaction(provisioner, take)) == 1


@locking("store.batches.POLLABLE", "store.batches.ACCEPTED")
async def test_two_replicas_poll_different_batches(provisioner: Provisioner) -> None:
    """An accepted batch that was taken is left to its replica until its timeout."""
    batch = await accepted_call(provisioner)

    async def take(db: Connection) -> list[Batch]:
        return await batches.take_pollable(db, poll_seconds=5)

    assert await in_transaction(provisioner, take) == []
    await provisioner.set_clock(6)
    async with provisioner.database.acquire() as db, db.transaction():
        assert [taken.id for taken in await take(db)] == [batch.id]
        assert await in_transaction(provisioner, take) == []
    assert await in_transaction(provisioner, take) == []
    await provisioner.set_clock(12)
    assert len(await in_transaction(provisioner, take)) == 1


@locking("store.batches.LOCK", "store.batches.ACCEPTED")
@pytest.mark.parametrize("first", ["accepted", "put back"])
async def test_an_acceptance_beside_a_look_up(provisioner: Provisioner, first: str) -> None:
    """An acceptance changes no recorded outcome, and the other way round the outcome counts for what was accepted."""
    batch, _ = await in_flight(provisioner, 1)
    account = await in_transaction(provisioner, lambda db: accounts.get(db, batch.account_id))
    launcher = provisioner.launcher

    async def accept(db: Connection) -> None:
        await launches.accept(db, batch, account, "handle", launcher.terms)

    async def put_back(db: Connection) -> None:
        await launches.put_back(db, batch, "looked up")

    one, other = (accept, put_back) if first == "accepted" else (put_back, accept)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await one(db)
            waiting = provisioner.start(in_transaction(provisioner, other))
            await provisioner.until_waiting(waiting)
        await waiting
    stored = await in_transaction(provisioner, lambda db: batches.get(db, batch.id))
    assert stored is not None
    assert (stored.state, stored.handle) == ("known", "handle" if first == "accepted" else "")
    assert await provisioner.states() == {"requested": 1}


@locking("store.batches.KNOWN", "store.batches.POLLED")
async def test_a_poll_beside_an_outcome(provisioner: Provisioner) -> None:
    """A poll that ends after the outcome was recorded does not ask for another one."""
    batch = await accepted_call(provisioner)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await launches.put_back(db, batch, "looked up")
            before = await batches.get(db, batch.id)
            polled = provisioner.start(
                in_transaction(provisioner, lambda tx: batches.polled(tx, batch.id, poll_seconds=99))
            )
            await provisioner.until_waiting(polled)
        await polled
    assert await in_transaction(provisioner, lambda db: batches.get(db, batch.id)) == before


@locking("store.batches.REPEATED", "store.batches.NOT_REPEATABLE")
async def test_a_repeat_beside_one_that_proved_nothing(provisioner: Provisioner) -> None:
    """The later repeat may take effect, so that the time of its call counts, and it may be repeated."""
    batch, _ = await in_flight(provisioner, 1)
    await provisioner.set_clock(16)
    (first,) = await in_transaction(provisioner, lambda db: batches.take_overdue(db, wait_seconds=10))
    await provisioner.set_clock(32)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            (second,) = await batches.take_overdue(db, wait_seconds=10)
            await batches.repeated(db, batch.id)
            late = provisioner.start(in_transaction(provisioner, lambda tx: batches.not_repeatable(tx, first.batch)))
            await provisioner.until_waiting(late)
        await late
    stored = await in_transaction(provisioner, lambda db: batches.get(db, batch.id))
    assert stored is not None
    assert (stored.repeats, stored.called_at) == (2, after(32))
    await in_transaction(provisioner, lambda tx: batches.not_repeatable(tx, second.batch))
    stored = await in_transaction(provisioner, lambda db: batches.get(db, batch.id))
    assert stored is not None
    assert (stored.repeatable, stored.called_at) == (False, START)


async def accepted_call(provisioner: Provisioner) -> Batch:
    """An accepted call, polled for the first time after 5 s."""
    provisioner.cloud.accepts_calls = True
    await provisioner.admitted()
    await provisioner.launch()
    (row,) = await provisioner.database.fetch("SELECT id::text FROM launch_batch")
    async with provisioner.database.acquire() as db:
        batch = await batches.get(db, row["id"])
    assert batch is not None
    return batch


@locking("store.workers.COUNT_OUTCOMES", "store.outcomes.REPAIR")
async def test_failures_add_up(provisioner: Provisioner) -> None:
    """Failures of concurrent calls are all counted, in any order of configs; a repair lowers no counter."""
    outcome = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "", "InsufficientCapacity")
    await provisioner.admitted(8, "zone-a", "zone-b")
    async with provisioner.database.acquire() as db:
        for lease_id in ("lease-1", "lease-2"):
            assert await provisioner.launcher._start(db, [lease_id])
    everybody = await provisioner.workers()
    by_config = sorted(everybody, key=lambda worker: worker.launch_config_id)

    async def fail(some: list[Worker]) -> None:
        async with provisioner.database.acquire() as db, db.transaction():
            await workers.save(db, [launch_failed(worker, outcome, after(0)) for worker in some])

    halves = by_config[::2], by_config[::-2]
    await asyncio.gather(*(fail(half) for half in halves), provisioner.database.fetch(outcomes.REPAIR, "linux"))
    await provisioner.database.execute("UPDATE launch_batch SET state = 'known'")
    failed = Counter(worker.launch_config_id for worker in everybody)
    assert await failures(provisioner) == failed
    await provisioner.database.execute(
        "UPDATE launch_config_outcomes SET failures = 1 WHERE launch_config_id = $1 AND stage = 'launch'", revision_id()
    )
    await asyncio.gather(*(provisioner.database.fetch(outcomes.REPAIR, "linux") for _ in range(3)))
    assert await failures(provisioner) == failed


async def failures(provisioner: Provisioner) -> dict[str, int]:
    counted = "SELECT launch_config_id, failures FROM launch_config_outcomes WHERE stage = 'launch' AND failures > 0"
    return dict(await provisioner.database.fetch(counted))
