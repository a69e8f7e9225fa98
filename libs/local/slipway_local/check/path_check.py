"""Check of one run's evidence: no doubled instance, no lost event, no exceeded limit. Pure.

No counter of the services is used: instances are counted in the simulator's ledger and events in the topics, and the
rows have to agree with both.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from slipway_api.events import worker as events
from slipway_api.events.lifecycle import ENDED, IN_FLIGHT, LIVE, SERVING
from slipway_api.events.topics import TOPICS
from slipway_local.check.evidence import Evidence, Published
from slipway_local.check.roll_out import launched_while_draining
from slipway_simulator import facts

# A shorter excess is the delay between an effect and its line in the ledger, which another process writes.
OVER_CAP_TOLERATED_SECONDS: Final = 0.05
COMPACTED: Final = frozenset(topic.name for topic in TOPICS if topic.compacted)
RETAINED: Final = frozenset(topic.name for topic in TOPICS if not topic.compacted)
WITH_INSTANCE: Final = LIVE - IN_FLIGHT["launch"]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one run and its problems; `problems` is empty when the path is ok."""

    requested: int
    launched: int
    registered: int
    failed: int
    cancelled: int
    in_flight: int
    doubled: int
    unmatched: int
    over_cap_seconds: float
    gaps: int
    lost: int
    dead: int
    looked_up: int
    peaks: dict[str, tuple[int, int]]  # account or pool → (most at once, allowed)
    problems: Sequence[str]

    def line(self) -> str:
        """Closing line of a run."""
        verdict = "path ok" if not self.problems else "path BROKEN"
        return (
            f"{verdict}: requested={self.requested} launched={self.launched} registered={self.registered} "
            f"failed={self.failed} cancelled={self.cancelled} in_flight={self.in_flight} doubled={self.doubled} "
            f"unmatched={self.unmatched} over_cap={self.over_cap_seconds:.3g} gaps={self.gaps} lost={self.lost} "
            f"dead={self.dead}"
        )


def judge(evidence: Evidence) -> Report:
    """Compare ledger, topics and rows."""
    published = [p for p in evidence.published if p.event is not None]
    outcomes = _outcomes(published)
    waiting = {w["id"] for w in evidence.rows.workers if w["state"] in IN_FLIGHT["launch"]}
    counts = Counter(outcomes.values())
    recent = {
        p.event.worker_id
        for p in published
        if isinstance(p.event, events.WorkerRequested)
        and p.envelope is not None
        and p.envelope.time.timestamp() >= evidence.settled_before
    }
    unresolved = [w for w, outcome in outcomes.items() if outcome == "open" and w not in waiting and w not in recent]
    doubled, unmatched = _instances(evidence)
    gaps, lost = _gaps(evidence), _lost(evidence)
    disagreeing = _disagreeing(evidence, outcomes)
    over, peaks = _over_cap(evidence)
    late = launched_while_draining(evidence)
    dead = max(evidence.rows.dead, evidence.dead_records)
    claimed = {p.event.instance_id for p in published if isinstance(p.event, events.WorkerLaunched)}
    unknown = claimed - {f.instance_id for f in evidence.ledger if isinstance(f, facts.InstanceCreated)}
    problems = [
        text
        for is_so, text in (
            (doubled, f"live instances beyond one per requested worker: {doubled}"),
            (unmatched, f"orphan and missing instances (without a row, row without instance): {unmatched}"),
            (over > OVER_CAP_TOLERATED_SECONDS, f"{over:.3f} s above a limit"),
            (gaps, f"gaps in the sequence numbers of a source: {gaps}"),
            (lost, f"gaps in revisions, or create calls without an outcome: {lost}"),
            (dead, f"dead letters: {dead}"),
            (evidence.rows.gaps, f"consumers recorded gaps: {list(evidence.rows.gaps)[:3]}"),
            (unresolved, f"requested workers without an outcome that are not in flight: {len(unresolved)}"),
            (not outcomes, "no worker was requested"),
            (not counts["launched"], "no worker was launched"),
            (late, f"launches of draining revisions: {len(late)}, for example {late[:2]}"),
            (unknown, f"launched instances that are missing in the ledger: {len(unknown)}"),
            (disagreeing, f"topic and rows disagree on {len(disagreeing)} workers, for example {disagreeing[:2]}"),
        )
        if is_so
    ]
    return Report(
        requested=len(outcomes),
        launched=counts["launched"],
        registered=len({p.event.worker_id for p in published if isinstance(p.event, events.WorkerRegistered)}),
        failed=counts["failed"],
        cancelled=counts["cancelled"],
        in_flight=counts["open"],
        doubled=doubled,
        unmatched=unmatched,
        over_cap_seconds=over if over > OVER_CAP_TOLERATED_SECONDS else 0.0,
        gaps=gaps,
        lost=lost,
        dead=dead,
        looked_up=len(
            {p.event.batch_id for p in published if isinstance(p.event, events.WorkerLaunched) and p.event.looked_up}
        ),
        peaks=peaks,
        problems=problems,
    )


def _outcomes(published: Iterable[Published]) -> dict[str, str]:
    """Outcome of each requested worker's launch, by the topic alone: open, launched, failed or cancelled."""
    outcomes: dict[str, str] = {}
    for record in published:
        event = record.event
        if isinstance(event, events.WorkerRequested):
            outcomes.setdefault(event.worker_id, "open")
        elif isinstance(event, events.WorkerLaunched | events.WorkerRegistered):
            outcomes[event.worker_id] = "launched"
        elif isinstance(event, events.WorkerLaunchFailed):
            outcomes[event.worker_id] = "failed"
        elif isinstance(event, events.WorkerStopped) and event.cancelled:
            outcomes[event.worker_id] = "cancelled"
        elif isinstance(event, events.WorkerLost) and outcomes.get(event.worker_id) != "launched":
            outcomes[event.worker_id] = "failed"
    return outcomes


def _instances(evidence: Evidence) -> tuple[int, int]:
    """Numbers of doubled and of unmatched instances. Only instances and ends older than `settled_before` count.

    Doubled: live, without a row, of a known batch. Unmatched: live, without a row, of an unknown batch; or a row whose
    instance is gone."""
    ended = {f.instance_id: f.at for f in evidence.ledger if isinstance(f, facts.Terminated)}
    settled = evidence.settled_before
    live = {
        f.instance_id: f.batch
        for f in evidence.ledger
        if isinstance(f, facts.InstanceCreated) and f.instance_id not in ended and f.at < settled
    }
    bound = {w["instance_id"] for w in evidence.rows.workers if w["state"] in WITH_INSTANCE}
    batches = {batch["id"] for batch in evidence.rows.batches}
    orphans = Counter(batch in batches for instance, batch in live.items() if instance not in bound)
    missing = sum(ended.get(instance, settled) < settled for instance in bound)
    return orphans[True], orphans[False] + missing


def _gaps(evidence: Evidence) -> int:
    """Sequence numbers missing in a partition, from 1 to the last one that its relay had acknowledged.

    Repeats are allowed, because a resent record keeps its number. Compacted topics have gaps by design."""
    numbers: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for record in evidence.published:
        if record.envelope is not None and record.envelope.sequence_number is not None:
            numbers[record.envelope.sequence_source, record.topic, record.partition].add(
                record.envelope.sequence_number
            )
    gaps = 0
    for key in numbers.keys() | evidence.rows.sent.keys():
        if key[1] in RETAINED:
            seen = numbers.get(key, set())
            gaps += max([*seen, evidence.rows.sent.get(key, 0)]) - len(seen)
    return gaps


def _disagreeing(evidence: Evidence, outcomes: dict[str, str]) -> list[str]:
    """Settled workers whose row contradicts the topic. Rows were read first, so the topic may be ahead."""
    alive = SERVING & WITH_INSTANCE
    return [
        f"{w['id']}: {w['state']}, by the topic {outcomes.get(w['id'], 'never requested')}"
        for w in evidence.rows.workers
        if w["requested_at"] < evidence.settled_before
        and (
            w["id"] not in outcomes
            or (w["state"] in alive and outcomes[w["id"]] != "launched")
            or (w["state"] in ENDED and outcomes[w["id"]] == "open")
        )
    ]


def _lost(evidence: Evidence) -> int:
    """Number of subjects with missing or unordered revisions, and of create calls without an outcome."""
    revisions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for record in evidence.published:
        envelope = record.envelope
        if envelope is not None and envelope.revision is not None and record.topic not in COMPACTED:
            revisions[record.topic, envelope.subject].append(envelope.revision)
    lost = 0
    for seen in revisions.values():
        first_time = list(dict.fromkeys(seen))
        lost += first_time != list(range(1, len(first_time) + 1))
    known = {batch["id"] for batch in evidence.rows.batches if batch["state"] == "known"}
    settled = evidence.settled_before
    return lost + sum(isinstance(f, facts.Call) and f.at < settled and f.batch not in known for f in evidence.ledger)


def _over_cap(evidence: Evidence) -> tuple[float, dict[str, tuple[int, int]]]:
    """Seconds above an account's limit or a pool's maximum, and the peaks, from the ledger alone.

    A lease unit of an account is in use from the call until its instance registers or terminates; an instance counts
    towards its pool from creation to termination. While workers drain, minimum capacity may be refilled beside them.
    """
    steps: dict[str, list[tuple[float, int]]] = defaultdict(list)
    calls: dict[str, facts.Call] = {}
    account_of: dict[str, str] = {}
    pool_of: dict[str, str] = {}
    booting: set[str] = set()
    for fact in evidence.ledger:
        if isinstance(fact, facts.Call):
            calls[fact.call_id] = fact
            steps["account " + fact.account].append((fact.at, fact.count))
        elif isinstance(fact, facts.Reply):
            created = 0 if fact.repeated else len(fact.instance_ids)
            steps["account " + fact.account].append((fact.at, created - calls[fact.call_id].count))
        elif isinstance(fact, facts.InstanceCreated):
            account_of[fact.instance_id] = fact.account
            pool_of[fact.instance_id] = evidence.rows.pool_of.get(fact.config, "?")
            booting.add(fact.instance_id)
            steps["pool " + pool_of[fact.instance_id]].append((fact.at, 1))
        elif isinstance(fact, facts.Registered | facts.Terminated):
            if fact.instance_id in booting:
                booting.discard(fact.instance_id)
                steps["account " + account_of[fact.instance_id]].append((fact.at, -1))
            if isinstance(fact, facts.Terminated):
                steps["pool " + pool_of[fact.instance_id]].append((fact.at, -1))
    allowed = {"account " + account: limit for account, limit in evidence.rows.limits.items()}
    allowed |= {"pool " + pool: low + high for pool, (low, high) in evidence.rows.pools.items()}
    over = 0.0
    peaks = {f"serving {pool}": (n, evidence.rows.pools[pool][1]) for pool, n in _serving(evidence.published).items()}
    for name, cap in allowed.items():
        level, peak, since = 0, 0, 0.0
        for at, change in sorted(steps[name], key=lambda step: (step[0], step[1])):
            if level > cap:
                over += at - since
            level, since = level + change, at
            peak = max(peak, level)
        peaks[name] = (peak, cap)
    return over, peaks


def _serving(published: Iterable[Published]) -> dict[str, int]:
    """Peak number of serving workers of each pool, by the topic: from requested until stopping or ended."""
    leaving = (events.WorkerStopping, events.WorkerStopped, events.WorkerLaunchFailed, events.WorkerLost)
    gone: set[str] = set()
    level: Counter[str] = Counter()
    most: dict[str, int] = {}
    changes = [
        p for p in published if p.envelope is not None and isinstance(p.event, (events.WorkerRequested, *leaving))
    ]
    for record in sorted(changes, key=_time):
        event = record.event
        if isinstance(event, events.WorkerRequested):
            level[event.pool_id] += 1
            most[event.pool_id] = max(most.get(event.pool_id, 0), level[event.pool_id])
        elif event.worker_id not in gone:
            gone.add(event.worker_id)
            level[event.pool_id] -= 1
    return most


def _time(record: Published) -> float:
    return record.envelope.time.timestamp() if record.envelope is not None else 0.0
