"""Invariants of a simulated history: those that hold after every step, and those of the whole history."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.lease import LeaseConfirmRequested, LeaseRenewRequested
from slipway_api.events.lifecycle import LEAVING, LIVE, SERVING, State, advance
from slipway_api.events.topics import LAUNCH_CONFIG_LIFECYCLE, LAUNCH_CONFIG_WEIGHT, LEASE_REQUEST, WORKER_LIFECYCLE
from slipway_api.events.worker import Scope, WorkerLaunchFailed, WorkerRequested
from slipway_provisioner.domain.workers import UNWANTED
from slipway_provisioner.store.columns import states
from slipway_simulator.facts import Call, InstanceCreated, Reply
from tests.simulation.commands import MAXIMA
from tests.simulation.databases import SERVICES
from tests.simulation.deployment import STEPS_SECONDS, Deployment
from tests.simulation.outside import as_received

MAX_CAPACITY: Final = 12
FREED: Final = 1
"""Stuck workers of a pool that may be replaced."""
LIMIT: Final = 8
# Revisions with their starts (batches) and live workers; `launching`: it may start, as far as its own state decides.
REVISIONS: Final = f"""
SELECT c.id, c.name, c.state, c.drain_from, n.current_id = c.id AS current, n.declared AND NOT n.paused AS wanted,
    (SELECT count(*) FROM launch_batch b WHERE b.launch_config_id = c.id) AS batches,
    count(w) FILTER (WHERE w.state IN ({states(SERVING)})) AS serving,
    count(w) FILTER (WHERE w.state IN ({states(LEAVING)})) AS leaving,
    count(w) FILTER (WHERE w.state IN ({states(LIVE)})) AS live
FROM launch_config c JOIN launch_config_name n ON n.name = c.name LEFT JOIN worker w ON w.launch_config_id = c.id
GROUP BY c.id, n.name"""
STUCK: Final = "SELECT EXISTS (SELECT FROM worker WHERE stuck_at IS NOT NULL)"
TOKENS: Final = "SELECT id, token FROM launch_batch"
# Leases that ended because no command extended them, and when.
OVERDUE_LEASES: Final = """
SELECT id, extended_at, CASE WHEN state = 'lost' THEN counted_until - interval '70 s' ELSE ended_at END AS ended_at
FROM leases WHERE state IN ('lost', 'expired') AND reason IN ('lost', 'expired')"""
LATE: Final = timedelta(seconds=STEPS_SECONDS + 1)


class Checker:
    """Checks the invariants that must hold after every step."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.held = 0
        self.freed = 0  # places, once a worker was stuck
        self.calls = len(deployment.cloud.facts)
        self.draining: dict[str, tuple[Any, int]] = {}  # revision → start of its drain, and its starts by then
        self.tokens: Counter[str] = Counter()

    async def check(self) -> None:
        provisioner, broker = self.deployment.databases["provisioner"], self.deployment.databases["lease-broker"]
        rows = await provisioner.fetch(REVISIONS)
        serving, leaving = (sum(row[name] for row in rows) for name in ("serving", "leaving"))
        assert serving <= MAX_CAPACITY, "1: serving workers exceed the maximum"
        self.freed = self.freed or (FREED if await provisioner.fetchval(STUCK) else 0)
        most = MAX_CAPACITY + self.freed
        assert serving + leaving <= most, "1: serving and stopping workers exceed maximum + minimum + freed places"
        await self._check_machines()
        held = await broker.fetchval("SELECT coalesce(sum(units), 0) FROM leases WHERE ended_at IS NULL")
        assert held <= max(LIMIT, self.held), "1: granted above the limit"
        self.held = held
        new = self.deployment.cloud.facts[self.calls :]
        calls = [fact for fact in new if isinstance(fact, Call) and fact.deployment == self.deployment.id]
        self.calls = len(self.deployment.cloud.facts)
        if calls:
            tokens = {(str(row["id"]), row["token"]) for row in await provisioner.fetch(TOKENS)}
            assert {(call.batch, call.token) for call in calls} <= tokens, "3: a call without an intent"
        self._check_revisions(rows, calls)

    async def _check_machines(self) -> None:
        """Count the machines of the cloud that work for us, however many rows there are."""
        working = {m.instance_id for m in self.deployment.cloud.machines.values() if m.worker_id and not m.refused}
        most = MAX_CAPACITY + self.freed
        if len(working) > most:
            provisioner = self.deployment.databases["provisioner"]
            given_up = await provisioner.fetch("SELECT instance_id FROM unreachable_machine")
            working -= {row["instance_id"] for row in given_up}
        assert len(working) <= most, "1: registered machines exceed the maximum"

    def _check_revisions(self, rows: Sequence[Mapping[str, Any]], calls: list[Call]) -> None:
        assert not calls or not self.deployment.launches_stopped, "8: a call during a launch stop"
        draining = {row["id"]: (row["drain_from"], row["batches"]) for row in rows if row["state"] != "active"}
        live: Counter[str] = Counter()
        for row in rows:
            live[row["name"]] += row["live"]
            assert row["state"] != "archived" or not row["live"], f"12: {row['id']} is archived and has live workers"
            if row["current"] and row["wanted"]:
                assert row["state"] == "active", f"12: {row['name']} stands for {row['id']}, which launches nothing"
        drained = {id_ for id_, known in self.draining.items() if known[0] == draining.get(id_, (None, 0))[0]}
        for id_ in drained:
            assert draining[id_] == self.draining[id_], f"12: {id_} started a launch while draining"
        for call in calls:
            self.tokens[call.token] += 1
            assert self.tokens[call.token] == 1 or call.config not in drained, f"12: {call.config} repeated a call"
        self.draining = draining
        for name, maximum in MAXIMA.items():
            assert live[name] <= maximum, f"1: {live[name]} workers of {name} exceed its maximum"


async def judge(deployment: Deployment) -> None:
    """Check the whole history: the cloud's facts, every record of the log, and the rows."""
    await judge_losses(deployment)
    await _judge_workers(deployment)
    await _judge_revisions(deployment)
    await _judge_leases(deployment)
    for record in deployment.log.all(LAUNCH_CONFIG_WEIGHT.name):
        event = as_received(record).event
        assert event is None or event.weight > 0, "5: a config with a weight of 0"


async def judge_losses(deployment: Deployment) -> None:
    """No service has missed or dead-lettered a record."""
    for name in SERVICES:
        losses = "SELECT (SELECT count(*) FROM dead_letter) + (SELECT count(*) FROM gap)"
        assert await deployment.databases[name].fetchval(losses) == 0, f"9: {name} lost or dead-lettered a record"


async def _judge_leases(deployment: Deployment) -> None:
    """No lease has ended by time while a command of its holder had been in the log for long, unread."""
    appended: dict[str, dict[str, datetime]] = defaultdict(dict)  # per lease, the first time of each command
    for record, at in deployment.log.history(LEASE_REQUEST.name):
        received = as_received(record)
        if isinstance(received.event, LeaseConfirmRequested | LeaseRenewRequested):
            appended[received.event.lease_id].setdefault(received.id, at)
    for row in await deployment.databases["lease-broker"].fetch(OVERDUE_LEASES):
        waiting = [at for at in appended[row["id"]].values() if row["extended_at"] < at < row["ended_at"] - LATE]
        assert not waiting, f"1: lease {row['id']} ended at {row['ended_at']}, but its holder wrote at {waiting[0]}"


async def _judge_workers(deployment: Deployment) -> None:
    provisioner = deployment.databases["provisioner"]
    by_topic: dict[str, State] = {}
    seen: set[tuple[int, int]] = set()
    refusals: list[WorkerLaunchFailed] = []
    decisions = {str(row["id"]): row["launched"] for row in await provisioner.fetch("SELECT * FROM decision")}
    for record in deployment.log.all(WORKER_LIFECYCLE.name):
        received = as_received(record)
        if (record.partition, received.sequence_number or 0) in seen:
            continue
        seen.add((record.partition, received.sequence_number or 0))
        event, word = received.event, received.type.split(".")[-2]
        if isinstance(event, WorkerRequested):
            assert event.worker_id not in by_topic, "4: an intent started twice"
            assert decisions.get(event.decision_id, 0) > 0, "11: an intent without a decision"
            by_topic[event.worker_id] = State.REQUESTED
            continue
        before = by_topic[event.worker_id]
        if before is State.REQUESTED and word not in ("delayed", "stopped"):
            before = advance(before, "calling")  # this transition has no event
        by_topic[event.worker_id] = advance(before, word)
        if isinstance(event, WorkerLaunchFailed):
            refusals.append(event)
    rows = {str(row["id"]): row["state"] for row in await provisioner.fetch("SELECT id, state FROM worker")}
    unwanted = await provisioner.fetch("SELECT id::text FROM worker WHERE reason = $1", UNWANTED)
    interrupted = {row["id"] for row in unwanted} & deployment.cloud.interrupted_workers - deployment.machines.forgers
    assert not interrupted, f"13: stopped as more than wanted in the middle of a task: {interrupted}"
    assert by_topic == rows, "4: events and rows differ"
    _judge_refusals(deployment, refusals)

    bound = Counter(row["instance_id"] for row in await provisioner.fetch("SELECT instance_id FROM worker"))
    bound.pop(None, None)
    assert set(bound.values()) <= {1}, "4: two intents with one instance"
    assert set(bound) <= {f.instance_id for f in deployment.cloud.facts if isinstance(f, InstanceCreated)}


def _judge_refusals(deployment: Deployment, refusals: list[WorkerLaunchFailed]) -> None:
    codes: dict[str, set[str]] = defaultdict(set)
    batch_of: dict[str, str] = {}
    for fact in deployment.cloud.facts:
        if isinstance(fact, Call):
            batch_of[fact.call_id] = fact.batch
        elif isinstance(fact, Reply):
            codes[batch_of[fact.call_id]].add(fact.code)
    for refusal in refusals:
        if refusal.outcome.scope is Scope.NOTHING:
            continue  # its worker was asked to stop, and the call had no effect
        assert refusal.outcome.scope not in (Scope.LIMITER, Scope.UNKNOWN), "7: a throttle counted against a config"
        code = "OK" if refusal.outcome.code == "PartialCapacity" else refusal.outcome.code
        assert code in codes[refusal.batch_id], f"7: {code}, a failure that the cloud never returned"


async def _judge_revisions(deployment: Deployment) -> None:
    """A revision has one body for ever, by the cloud's facts, and one of each name is current, by events as by rows."""
    provisioner = deployment.databases["provisioner"]
    newest: dict[str, tuple[int, LaunchConfigState]] = {}
    images: dict[str, set[str]] = defaultdict(set)
    created: dict[str, datetime] = {}
    for record in deployment.log.all(LAUNCH_CONFIG_LIFECYCLE.name):
        received = as_received(record)
        if isinstance(event := received.event, LaunchConfigState):
            images[event.launch_config_id].add(event.image_revision)
            created[event.launch_config_id] = min(received.time, created.get(event.launch_config_id, received.time))
            if (received.revision or 0) > newest.get(event.launch_config_id, (-1, event))[0]:
                newest[event.launch_config_id] = received.revision or 0, event
    for fact in deployment.cloud.facts:
        if isinstance(fact, InstanceCreated):
            assert images.get(fact.config) == {fact.image}, f"12: {fact.config} has launched another image"
    for record in deployment.log.all(WORKER_LIFECYCLE.name):
        received = as_received(record)
        if isinstance(received.event, WorkerRequested):
            created_at = created.get(received.event.launch_config_id)
            assert created_at is not None, "12: a worker was requested of an unknown revision"
            assert created_at <= received.time, "12: a worker was requested before its revision existed"
    current = (
        "SELECT c.id FROM launch_config_name n JOIN launch_config c ON c.id = n.current_id AND c.state <> 'archived'"
    )
    by_rows = {row["id"] for row in await provisioner.fetch(current)}
    by_topic = {id_ for id_, (_, event) in newest.items() if event.current}
    assert by_topic == by_rows, "12: events and rows differ about the revisions that are current"
