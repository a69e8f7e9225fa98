"""Boots in progress, judged by the boots of their image: a slow one counts in windows, a late one also as failed. Pure.

How long an image takes to boot is known from its own boots only; what is late for one is normal for another. Until one
boot of an image is known, its boots end by registering or by the registration timeout; until `late_samples` are, none
is late. A config may have slower machines than the others of its image, so the boots that it has seen itself count too:
those of busier configs displace them among the newest of the image.

An image that goes bad shows it before any of its starts is slow: a start is overdue when it takes longer than usual and
no start of the image that was launched later has registered.
"""

from collections.abc import Collection
from heapq import heappush
from typing import Any, Final

from msgspec.structs import replace

from slipway_api.events import worker
from slipway_api.events.scopes import Key
from slipway_api.events.worker import Outcome, Scope
from slipway_weight_calculator.domain import evidence, health, probes, trips, windows
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import Boot, Config, Row
from slipway_weight_calculator.domain.trips import Failure, Trip

LATE_CODE: Final = "boot_timeout"
"""The code of a registration deadline: to people both are boots that took too long."""
OVERDUE_MAX: Final = 64  # as many leave the minimum window to any image
LATE: Final = Outcome(worker.Stage.BOOT, worker.Result.FAILED, Scope.IMAGE, "", LATE_CODE)


def begin(draft: Draft, config: Config, event: worker.WorkerLaunched, at: float) -> None:
    """Await the registration of a launched worker, a probe for as long as its boot may take."""
    image, permit, policy = config.shared["image"], event.probe_permit, draft.world.policies[config.profile]
    row, own = draft.row(image), draft.row(config.key)
    judged_at, overdue_at = _judged_at(row, own, at, policy), _overdue_at(row, own, at, policy)
    boot = Boot(
        config.id, image, at, judged_at, event.instance_id, permit, console=event.console, overdue_at=overdue_at
    )
    draft.boots[event.worker_id] = boot
    if judged_at:
        heappush(draft.world.timers, (judged_at, "boot", event.worker_id))
    if overdue_at:
        heappush(draft.world.timers, (overdue_at, "overdue", event.worker_id))
    _await_probe(draft, config, boot)


def judge_others(draft: Draft, config: Config) -> None:
    """Schedule the judgement of boots in progress once a registration has made enough boots of their image known."""
    key, policy = config.shared["image"], draft.world.policies[config.profile]
    row = draft.row(key)
    if row is None or len(row.boots) not in (1, policy.late_samples):
        return
    for worker_id in sorted({*draft.world.boots, *draft.boots}):
        boot = draft.boot(worker_id)
        if boot is not None and boot.image == key and not (boot.registered or boot.late):
            _judge_later(draft, worker_id, boot)


def judge_overdue(draft: Draft, worker_id: str, when: float, now: float) -> None:
    """Count a start as overdue in the window of its image, unless a later one has registered."""
    boot = draft.boot(worker_id)
    config = draft.config(boot.config_id) if boot is not None else None
    if boot is None or config is None or boot.overdue_at != when:
        return
    row = draft.row(boot.image)
    if row is None or boot.at <= row.newest_at:
        return
    draft.boots[worker_id] = replace(boot, overdue_at=0.0)
    if len(row.overdue) < OVERDUE_MAX:
        health.set_overdue(draft, boot.image, (*row.overdue, boot.at), draft.policy(config))


def judge(draft: Draft, worker_id: str, when: float, now: float) -> None:
    """Count a boot as slow, and later as late, unless slower boots of its image have become known meanwhile."""
    boot = draft.boot(worker_id)
    config = draft.config(boot.config_id) if boot is not None else None
    if boot is None or config is None or boot.judged_at != when:
        return
    policy, row, own = draft.policy(config), draft.row(boot.image), draft.row(config.key)
    judged_at = _judged_at(row, own, boot.at, policy, slow=boot.slow is not None)
    if not judged_at or judged_at > now:
        if boot.slow is not None and now < _judged_at(row, own, boot.at, policy):
            boot = _not_slow(draft, config, boot, policy)
        _judge_later(draft, worker_id, boot)
    elif boot.slow is None:
        outages = [_begin_slow(draft, key, policy) for key in (boot.image, config.key)]
        _judge_later(draft, worker_id, replace(boot, slow=(outages[0], outages[1])))
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

    The caller charges the failure of one that was not late. A row that tripped by late boots alone recovers only when
    one of them has `registered`.
    """
    draft.boots[worker_id] = None
    policy, image = draft.policy(config), draft.row(boot.image)
    if image is not None and boot.at in image.overdue:
        place = image.overdue.index(boot.at)
        health.set_overdue(draft, boot.image, image.overdue[:place] + image.overdue[place + 1 :], policy)
    for key, outages in zip((boot.image, config.key), boot.slow or (), strict=False):
        row = draft.row(key)
        if row is None:
            continue
        stage, trip, changes = row.boot, row.boot.trip, dict[str, Any]()
        boots = windows.ended(stage.boots, outages)
        if boot.late and failure is not None and key in charged:
            if boots.aside is None and outages == boots.outages:
                boots = windows.counted(boots, policy, failed=True)
            trip = trips.confirmed(trip, failure)
        elif boot.late:
            trip, changes = _withdrawn(stage, worker_id, boot, policy)
            if registered and trips.unfounded(trip, stage.late - 1, policy.trip_boot):
                boots = windows.untripped(boots)
                trip = trips.recovered(trip, at)
        late = max(0, stage.late - boot.late)
        draft.set_trip(key, "boot", trip, late=late, boots=boots, window=windows.size(boots, policy), **changes)


def _withdrawn(stage: Stage, worker_id: str, boot: Boot, policy: Policy) -> tuple[Trip, dict[str, Any]]:
    """Trip without the provisional failure of a late boot, and the evidence without its mass."""
    mass = evidence.remaining(max(0.0, stage.at - boot.late_at), policy)
    changes = {
        "failures": max(0.0, stage.failures - mass),
        "place_failures": max(0.0, stage.place_failures - mass),
        "failed": max(0, stage.failed - 1),
    }
    return trips.withdrawn(stage.trip, worker_id), changes


def _judged_at(row: Row | None, own: Row | None, at: float, policy: Policy, *, slow: bool = False) -> float:
    """Time from which on a boot is slow, or late if it is slow already; 0 while too few boots of its image are known.

    The first boots that become known are the fastest of those in progress, so until there are enough a boot becomes
    slow by the factor of lateness, and none is late.
    """
    known = len(row.boots) if row is not None else 0
    enough = known >= policy.late_samples
    if row is None or not known or (slow and not enough):
        return 0.0
    slowest = max(row.slowest_seconds, own.slowest_seconds if own is not None else 0.0, policy.slowest_min_seconds)
    return at + (policy.slow_factor if enough and not slow else policy.late_factor) * slowest


def _overdue_at(row: Row | None, own: Row | None, at: float, policy: Policy) -> float:
    """Time from which on a start is overdue unless a later one has registered; 0 until the image is well known.

    While a new image has its first boots, those known are the fastest, and the usual duration is longer than theirs.
    """
    if row is None or len(row.boots) < policy.boot_samples:
        return 0.0
    usual = max(row.usual_seconds, own.usual_seconds if own is not None else 0.0)
    return at + max(policy.overdue_factor * usual, policy.slowest_min_seconds)


def _begin_slow(draft: Draft, key: Key, policy: Policy) -> int:
    """Count one more slow boot of a row; returns the number of its outages so far."""
    row = draft.row(key)
    if row is None:
        return 0
    boots = windows.slowed(row.boot.boots)
    draft.set_stage(key, "boot", replace(row.boot, boots=boots, window=windows.size(boots, policy)))
    return boots.outages


def _not_slow(draft: Draft, config: Config, boot: Boot, policy: Policy) -> Boot:
    """Stop counting a boot as slow, since slower ones have become known."""
    for key, outages in zip((boot.image, config.key), boot.slow or (), strict=False):
        row = draft.row(key)
        if row is not None:
            boots = windows.ended(row.boot.boots, outages)
            draft.set_stage(key, "boot", replace(row.boot, boots=boots, window=windows.size(boots, policy)))
    return replace(boot, slow=None)


def _judge_later(draft: Draft, worker_id: str, boot: Boot) -> None:
    """Schedule the next judgement of a boot by what is known of its image now."""
    config = draft.config(boot.config_id)
    if config is None:
        return
    policy, row, own = draft.policy(config), draft.row(boot.image), draft.row(config.key)
    judged_at = _judged_at(row, own, boot.at, policy, slow=boot.slow is not None)
    draft.boots[worker_id] = replace(boot, judged_at=judged_at)
    if judged_at:
        heappush(draft.world.timers, (judged_at, "boot", worker_id))
    _await_probe(draft, config, boot)


def _await_probe(draft: Draft, config: Config, boot: Boot) -> None:
    """Allow the boot of a probe the time until it would be late, before the probe may count as lost."""
    if boot.permit is None:
        return
    policy = draft.policy(config)
    late_at = _judged_at(draft.row(boot.image), draft.row(config.key), boot.at, policy, slow=True)
    probes.extend(draft, config, boot.permit, late_at or boot.at + policy.boot_seconds)


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
