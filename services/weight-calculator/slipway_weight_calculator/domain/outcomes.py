"""Handlers of worker events and of timers, which apply them by health.py, boots.py and probes.py. Pure."""

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from slipway_api.events import worker
from slipway_api.events.scopes import Key
from slipway_api.events.worker import Outcome, Result, Scope, WorkerEvent
from slipway_weight_calculator.domain import blame, boots, health, health_signals, probes, signals
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.rows import UNDECLARED, Boot, Config
from slipway_weight_calculator.domain.trips import CODE_LENGTH_MAX, Failure

OK, FAILED = Result.OK, Result.FAILED
LAUNCH, BOOT = worker.Stage.LAUNCH, worker.Stage.BOOT


def _requested(draft: Draft, config: Config, event: worker.WorkerRequested, at: float) -> None:
    if event.probe_permit is not None:
        probes.spend(draft, config, event.probe_permit, at)


def _delayed(draft: Draft, config: Config, event: worker.WorkerDelayed, at: float) -> None:
    if event.probe_permit is not None:
        probes.extend(draft, config, event.probe_permit, at)


def _launched(draft: Draft, config: Config, event: worker.WorkerLaunched, at: float) -> None:
    worker_id, outcome, known = event.worker_id, event.outcome, draft.boots
    if outcome.stage is LAUNCH and outcome.result is OK:
        health.succeed(draft, config, "launch", at)
    if (known[worker_id] if worker_id in known else draft.world.boots.get(worker_id)) is not None:
        known[worker_id] = None  # it registered before the reply
    elif not event.leaving:
        boots.begin(draft, config, event, at)
    if event.probe_permit is not None:
        probes.settle(draft, config, event.probe_permit, at, outcome)


def _launch_failed(draft: Draft, config: Config, event: worker.WorkerLaunchFailed, at: float) -> None:
    _fail(draft, config, event, event.outcome, at)


def _registered(draft: Draft, config: Config, event: worker.WorkerRegistered, at: float) -> None:
    outcome, boot = event.outcome, draft.boot(event.worker_id)
    registered = outcome.stage is BOOT and outcome.result is OK
    if boot is not None:
        boots.end(draft, config, event.worker_id, boot, at, registered=registered)
    elif registered:
        # The reply to the launch call arrives later.
        draft.boots[event.worker_id] = Boot(config.id, config.shared["image"], at, registered=True)
    if not registered:
        _fail(draft, config, event, outcome, at)  # terminated before it registered
        return
    health.succeed(draft, config, "boot", at, event.boot_seconds, boot.at if boot is not None else 0.0)
    boots.judge_others(draft, config)
    if boot is not None and boot.late and boot.permit is not None:
        # A probe that counted as failed because it was late has succeeded.
        for key, name, _ in draft.trips_on(config):
            if name == "boot" and key in (boot.image, config.key):
                health.recover(draft, config, key, name, at)
    if event.probe_permit is not None:
        probes.extend(draft, config, event.probe_permit, at)
        probes.settle(draft, config, event.probe_permit, at, outcome)


def _claimed(draft: Draft, config: Config, event: worker.WorkerClaimed, at: float) -> None:
    if event.outcome is not None and event.outcome.result is OK:
        health.succeed(draft, config, "claim", at)
        if event.probe_permit is not None:
            probes.settle(draft, config, event.probe_permit, at, event.outcome)


def _noticed(draft: Draft, config: Config, event: worker.WorkerNoticed, at: float) -> None:
    """Signal a notice on the capacity of the machine. No rules for sources apply, since Slipway is none; without
    effect if a newer one was folded before, or if nothing launches from that capacity any more."""
    signal = signals.of_notice(event, at)
    if signal is not None:
        health_signals.apply(draft, signal, at)


def _ended(draft: Draft, config: Config, event: worker.WorkerStopping | worker.WorkerLost, at: float) -> None:
    """Handle the end of a worker; its outcome is None if Slipway ended it."""
    boot, outcome = draft.boot(event.worker_id), event.outcome
    if boot is not None and outcome is not None and outcome.stage is BOOT:
        charged, failure = _charged_keys(draft, config, outcome), _failure(event, outcome, at)
        boots.end(draft, config, event.worker_id, boot, at, failure=failure, charged=charged)
        _fail(draft, config, event, outcome, at, already_charged=(boot.image, config.key) if boot.late else ())
    else:
        if boot is not None:
            boots.end(draft, config, event.worker_id, boot, at)
        if outcome is not None or event.probe_permit is not None:
            _fail(draft, config, event, outcome, at)


def _stopped(draft: Draft, config: Config, event: worker.WorkerStopped, at: float) -> None:
    boot = draft.boot(event.worker_id)
    if boot is not None:
        boots.end(draft, config, event.worker_id, boot, at)
    if event.probe_permit is not None:
        probes.settle(draft, config, event.probe_permit, at, None, ended=True)


def _fail(
    draft: Draft,
    config: Config,
    event: WorkerEvent,
    outcome: Outcome | None,
    at: float,
    *,
    already_charged: Collection[Key] = (),
) -> None:
    """Record a failed outcome or an end without one. Every failure counts as folded, whatever its scope."""
    charged: tuple[Key, ...] = ()
    if outcome is not None and outcome.result is FAILED and outcome.stage is not worker.Stage.UNKNOWN:
        name, charged = outcome.stage.value, _charged_keys(draft, config, outcome)
        failure = _failure(event, outcome, at)
        for key in charged:
            if key not in already_charged:
                stage = blame.charged_stage(key, name)
                health.charge(draft, config, key, stage, failure, place=outcome.scope in blame.PLACE)
        if outcome.scope is Scope.CAPACITY and charged:
            health.note_shortage(draft, config, at)
        health.count_folded(draft, config.id, name)
    if event.probe_permit is not None:
        probes.settle(draft, config, event.probe_permit, at, outcome, charged, ended=True)


def _charged_keys(draft: Draft, config: Config, outcome: Outcome) -> tuple[Key, ...]:
    """Keys that a failed outcome is charged to; none for a stage that is not evaluated. An image is named as it was
    declared, and has the key that its provider gives it now."""
    if outcome.stage.value not in config.stages:
        return ()
    if outcome.scope is Scope.IMAGE and outcome.scope_key == config.declared.image_revision:
        outcome = msgspec.structs.replace(outcome, scope_key="")
    return blame.charged(outcome, config.key, config.shared, draft.members)


def _failure(event: WorkerEvent, outcome: Outcome, at: float) -> Failure:
    return Failure(
        at,
        outcome.scope,
        outcome.code[:CODE_LENGTH_MAX],
        outcome.classified,
        event.worker_id,
        instance_id=getattr(event, "instance_id", ""),
        console=getattr(event, "console", ""),
        sample=outcome.sample,
    )


# Timers


def _forget_undeclared(draft: Draft, own: Key, when: float, now: float) -> None:
    """Forget a config that was never declared."""
    config = draft.config(own.id)
    if config is None or config.declared.state != UNDECLARED:
        return
    if config.archived_at + probes.UNDECLARED_KEPT_SECONDS == when:
        forget(draft, config, now)


def forget(draft: Draft, config: Config, now: float) -> None:
    """Delete a config with its row, its boots and its probe; others may then probe the keys that they shared."""
    for worker_id in [*draft.world.boots, *draft.boots]:
        boot = draft.boot(worker_id)
        if boot is not None and boot.config_id == config.id:
            boots.end(draft, config, worker_id, boot, now)
    row = draft.row(config.key)
    if row is not None:
        probes.abandon(draft, config.id, row.permit, now)
    draft.remove_config(config, config.groups)
    draft.configs[config.id] = draft.rows[config.key] = None


EVENT_HANDLERS: Final[dict[type[Any], Callable[[Draft, Config, Any, float], None]]] = {
    worker.WorkerRequested: _requested,
    worker.WorkerDelayed: _delayed,
    worker.WorkerLaunched: _launched,
    worker.WorkerLaunchFailed: _launch_failed,
    worker.WorkerRegistered: _registered,
    worker.WorkerClaimed: _claimed,
    worker.WorkerNoticed: _noticed,
    worker.WorkerStopping: _ended,
    worker.WorkerStopped: _stopped,
    worker.WorkerLost: _ended,
}
TIMER_HANDLERS: Final[dict[str, Callable[[Draft, Any, float, float], None]]] = {
    "probe": probes.probe_due,
    "pool": probes.pool_probe_due,
    "permit": probes.permit_unspent,
    "lost": probes.permit_lost,
    "boot": boots.judge,
    "overdue": boots.judge_overdue,
    "signal": health_signals.expire,
    "forget": _forget_undeclared,
}
