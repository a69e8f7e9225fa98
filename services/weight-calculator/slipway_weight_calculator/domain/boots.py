"""Boots in progress, judged by the boots of their image: a slow one counts in windows, a late one also as failed. Pure.

How long an image takes to boot is known from its own boots only; what is late for one is normal for another. Until
`late_samples` boots of an image are known, its boots end by registering or by the registration timeout. A config may
have slower machines than the others of its image, so the boots that it has seen itself count too: those of busier
configs displace them among the newest of the image.
"""

from collections.abc import Collection
from heapq import heappush
from typing import Final

from msgspec.structs import replace

from slipway_common.events import worker
from slipway_common.events.scopes import Key
from slipway_common.events.worker import Outcome, Scope
from slipway_weight_calculator.domain import evidence, health, probes, trips, windows
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import Boot, Config, Row
from slipway_weight_calculator.domain.trips import Failure

LATE_CODE: Final = "late"
LATE: Final = Outcome(worker.Stage.BOOT, worker.Result.FAILED, Scope.IMAGE, "", LATE_CODE)


def begin(draft: Draft, config: Config, event: worker.WorkerLaunched, at: float) -> None:
    """Await the registration of a launched worker, a probe for as long as its boot may take."""
    image, permit = config.shared["image"], event.probe_permit
    slowest = _slowest_seconds(draft, config, image)
    judged_at = at + draft.world.policies[config.profile].slow_factor * slowest if slowest else 0.0
    boot = Boot(config.id, image, at, judged_at, event.instance_id, permit, console=event.console)
    draft.boots[event.worker_id] = boot
    if judged_at:
        heappush(draft.world.timers, (judged_at, "boot", event.worker_id))
    if permit is not None:
        _await_probe(draft, config, permit, at, slowest)


def learn(draft: Draft, config: Config, seconds: float) -> None:
    """Record the duration of a boot of an image. Once enough are known, its boots in progress are judged too."""
    image, policy = config.shared["image"], draft.world.policies[config.profile]
    for key in (config.key, image):
        row = draft.row(key)
        if row is not None:
            boots = (*row.boots[1 - policy.boot_samples :], seconds)
            slowest = _slowest_of(row, boots)
            draft.rows[key] = replace(row, version=row.version + 1, boots=boots, slowest_seconds=slowest)
    row = draft.row(image)
    if row is not None and len(row.boots) == policy.late_samples:
        for worker_id in sorted({*draft.world.boots, *draft.boots}):
            boot = draft.boot(worker_id)
            if boot is not None and boot.image == image and not (boot.registered or boot.late):
                _judge_later(draft, worker_id, boot)


def judge(draft: Draft, worker_id: str, when: float, now: float) -> None:
    """Count a boot as slow, and later as late, unless slower boots of its image have become known meanwhile."""
    boot = draft.boot(worker_id)
    config = draft.config(boot.config_id) if boot is not None else None
    if boot is None or config is None or boot.judged_at != when:
        return
    policy, slowest = draft.policy(config), _slowest_seconds(draft, config, boot.image)
    factor = policy.late_factor if boot.slow else policy.slow_factor
    if not slowest or boot.at + factor * slowest > now:
        _judge_later(draft, worker_id, boot)
    elif not boot.slow:
        for key in (boot.image, config.key):
            _count_slow(draft, key, 1, policy)
        _judge_later(draft, worker_id, replace(boot, slow=True))
    else:
        _begin_late(draft, config, worker_id, boot, now)


def end(
    draft: Draft,
    config: Config,
    worker_id: str,
    boot: Boot,
    at: float,
    *,
    registered: bool = False,
    failure: Failure | None = None,
    charged: Collection[Key] = (),
) -> None:
    """End a boot. A late one stays a failure of the `charged` keys; elsewhere nothing is left of its lateness.

    A row that tripped by late boots alone recovers only when one of them has `registered`.
    """
    draft.boots[worker_id] = None
    policy = draft.policy(config)
    for key in (boot.image, config.key) if boot.slow else ():
        _count_slow(draft, key, -1, policy)
        row = draft.row(key)
        if row is None or not boot.late:
            continue
        stage, late = row.boot, max(0, row.boot.late - 1)
        if failure is not None and key in charged:
            good, bad = windows.counted(stage.good, stage.bad, policy, failed=True)
            window = health.boot_window((good, bad), stage.slow, policy)
            trip = trips.confirmed(stage.trip, failure)
            draft.set_trip(key, "boot", trip, late=late, good=good, bad=bad, window=window)
            continue
        mass = evidence.remaining(max(0.0, stage.at - boot.late_at), policy)
        trip = trips.withdrawn(stage.trip, worker_id)
        if registered and trips.unfounded(trip, late, policy.trip_boot):
            trip = trips.recovered(trip, at)
        draft.set_trip(
            key,
            "boot",
            trip,
            failures=max(0.0, stage.failures - mass),
            place_failures=max(0.0, stage.place_failures - mass),
            failed=max(0, stage.failed - 1),
            late=late,
        )


def _slowest_seconds(draft: Draft, config: Config, image: Key) -> float:
    """Duration that boots of a config and image are compared with; 0 while too few of the image are known."""
    policy, row, own = draft.policy(config), draft.row(image), draft.row(config.key)
    if row is None or len(row.boots) < policy.late_samples:
        return 0.0
    return max(row.slowest_seconds, own.slowest_seconds if own is not None else 0.0, policy.slowest_min_seconds)


def _slowest_of(row: Row, boots: tuple[float, ...]) -> float:
    """The slowest boot. Unchanged if the added and the dropped one are faster."""
    slowest, added = row.slowest_seconds, boots[-1]
    if slowest > added and (len(boots) > len(row.boots) or slowest > row.boots[0]):
        return slowest
    return max(boots)


def _judge_later(draft: Draft, worker_id: str, boot: Boot) -> None:
    """Schedule the next judgement of a boot by what is known of its image now."""
    config = draft.config(boot.config_id)
    if config is None:
        return
    slowest = _slowest_seconds(draft, config, boot.image)
    policy = draft.policy(config)
    factor = policy.late_factor if boot.slow else policy.slow_factor
    judged_at = boot.at + factor * slowest if slowest else 0.0
    draft.boots[worker_id] = replace(boot, judged_at=judged_at)
    if judged_at:
        heappush(draft.world.timers, (judged_at, "boot", worker_id))
    if boot.permit is not None:
        _await_probe(draft, config, boot.permit, boot.at, slowest)


def _await_probe(draft: Draft, config: Config, permit: int, at: float, slowest: float) -> None:
    """Allow a probe the time until its boot would be late, before it may count as lost."""
    policy = draft.policy(config)
    probes.extend(draft, config, permit, at + (policy.late_factor * slowest if slowest else policy.boot_seconds))


def _begin_late(draft: Draft, config: Config, worker_id: str, boot: Boot, now: float) -> None:
    """Count a boot that takes too long as failed until it ends."""
    draft.boots[worker_id] = replace(boot, late_at=now, judged_at=0.0)
    failure = Failure(
        now, Scope.IMAGE, LATE_CODE, True, worker_id, late=True, instance_id=boot.instance_id, console=boot.console
    )
    charged = (boot.image, config.key)
    for key in charged:
        health.charge(draft, config, key, "boot", failure, place=True)
        row = draft.row(key)
        if row is not None:
            draft.set_stage(key, "boot", replace(row.boot, late=row.boot.late + 1))
    if boot.permit is not None:
        probes.settle(draft, config, boot.permit, now, LATE, charged, ended=True)


def _count_slow(draft: Draft, key: Key, by: int, policy: Policy) -> None:
    """Count one more slow boot of a row, or one less."""
    row = draft.row(key)
    if row is not None:
        stage, slow = row.boot, max(0, row.boot.slow + by)
        window = health.boot_window((stage.good, stage.bad), slow, policy)
        draft.set_stage(key, "boot", replace(stage, slow=slow, window=window))
