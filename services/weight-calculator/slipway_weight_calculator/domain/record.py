"""Published records of launch configs: their content, their reason texts, and when a new one is published. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from slipway_api.events.scopes import NEW_SHARED_WINDOWS, Key
from slipway_api.events.weight import (
    BOUNDLESS,
    HEALTHY,
    PROBING,
    TRIPPED,
    SharedWindow,
    StageHealth,
    WeightChanged,
)
from slipway_api.limits import NOTE
from slipway_common.base.text import listed
from slipway_weight_calculator.domain import probes, signals
from slipway_weight_calculator.domain.blame import PRICED
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.evidence import Stage, masses
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import CONFIG, STAGES, Config, new_row
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.trips import Failure, Trip
from slipway_weight_calculator.domain.weights import availability, chances, weight

HEALTHY_PROBABILITY: Final = 0.9  # stages below this are named in the reason
SIGNALS_MAX: Final = 20  # named in a record; all of them count
GROWN: Final = 1.1  # a window that grew by less is not published
SHARED_STAGES: Final = (
    ("image", ("launch", "boot", "claim")),
    ("quota", ("launch",)),
    ("credential", ("launch",)),
    ("capacity", ("launch",)),
    ("subnet", ("launch",)),
)


def record(known: Draft, config: Config, now: float, offsets: Mapping[str, int] | None = None) -> WeightChanged:
    """The complete published state of a config at `now`."""
    policy, row = known.policy(config), known.row(config.key) or new_row(known.policy(config))
    live = [signal for signal in known.signals_on(config.id) if signal.until > now and signal.kind != "recovered"]
    likely = chances(known, config, now)
    health = math.prod(likely.values()) * signals.health_factor(live)
    cap = signals.launch_cap(live)
    stages = {name: _stage(getattr(row, name), likely[name], now, policy) for name in STAGES}
    if cap is not None and cap < stages["launch"].window:
        stages["launch"] = msgspec.structs.replace(stages["launch"], window=int(cap))
    active, down = known.trips_on(config), signals.down_signal(live)
    key, stage, trip = active[0] if active else (config.key, None, None)
    due = [trip.next_probe_at for _, _, trip in active]
    may_probe = bool(active) and down is None
    ready = may_probe and probes.is_ready(known, config, active)
    running = may_probe and not ready and row.ready and row.spent
    probe = f"probe {row.permit} may launch" if ready else f"probe {row.permit} is running" if running else ""
    shares = shared(known, config, now)
    notes = _notes(stages, shares, live)
    by = Key("signal", "") if down is not None else Key("", "") if key == config.key else key
    return WeightChanged(
        launch_config_id=config.id,
        name=config.declared.name,
        pool_id=config.declared.pool_id,
        config_revision=config.declared.revision,
        weight=weight(config.declared.base_weight, config.declared.price_factor, health, policy),
        health=health,
        stages=stages,
        state=HEALTHY if not active and down is None else PROBING if probe else TRIPPED,
        tripped_stage=stage,
        tripped_by=by.kind,
        tripped_by_id=by.id,
        tripped_since=_time(down.since if down else min((t.tripped_at for _, _, t in active), default=0.0)),
        probe_permit=row.permit if row.permit_at else None,
        probe_ready=ready,
        next_probe_at=_time(max(due)) if due and all(due) and down is None else None,
        reason=NOTE.cut(f"{config.id} {_reason(key, trip, probe, down, notes)}"),
        profile=config.declared.profile,
        shared=tuple(shares),
        signals=tuple(NOTE.cut(_signal_text(signal)) for signal in live[:SIGNALS_MAX]),
        offsets=dict(offsets or {}),
    )


def shared(known: Draft, config: Config, now: float) -> list[SharedWindow]:
    """Windows and health of the keys that the config shares with others, without those that have no row."""
    found = []
    for role, names in SHARED_STAGES:
        key = config.shared.get(role)
        row = known.row(key) if key is not None else None
        if key is None or row is None:
            continue
        likely = availability(known, config, now) if key.kind == PRICED else 1.0
        for name in names:
            stage: Stage = getattr(row, name)
            trip = stage.trip
            window = max(1, int(stage.window)) if (key.kind, name) in NEW_SHARED_WINDOWS else BOUNDLESS
            found.append(
                SharedWindow(
                    kind=key.kind,
                    id=key.id,
                    stage=name,
                    version=row.version,
                    window=window,
                    state=TRIPPED if trip.tripped else HEALTHY,
                    unconfirmed=trip.unconfirmed,
                    reason=NOTE.cut(_cause(trip)) if trip.tripped else "",
                    probability=likely,
                )
            )
    return found


def worth_publishing(last: WeightChanged | None, new: WeightChanged, policy: Policy) -> bool:
    """True if the weight moved beyond the threshold, or if a value changed that consumers rely on.

    These are the health state, the permit, the folded failures, and a window that shrank or grew much.
    """
    if last is None or _steps(last) != _steps(new):
        return True
    if abs(new.weight - last.weight) > policy.publish_threshold * last.weight:
        return True
    return any(now < then or now > then * GROWN for then, now in zip(_windows(last), _windows(new), strict=True))


def _steps(record: WeightChanged) -> WeightChanged:
    """The record without the values that change continuously."""
    stages = {
        name: msgspec.structs.replace(
            stage, probability=0.0, successes=0.0, failures=0.0, succeeded=0, failed=0, window=0
        )
        for name, stage in record.stages.items()
    }
    shared_ = tuple(msgspec.structs.replace(window, version=0, window=0, probability=1.0) for window in record.shared)
    return msgspec.structs.replace(record, weight=0.0, health=0.0, stages=stages, shared=shared_, reason="", offsets={})


def _windows(record: WeightChanged) -> list[int]:
    return [*(stage.window for stage in record.stages.values()), *(window.window for window in record.shared)]


def _stage(stage: Stage, probability: float, now: float, policy: Policy) -> StageHealth:
    successes, failures, _ = masses(stage, now, policy)
    return StageHealth(
        probability=probability,
        successes=successes,
        failures=failures,
        window=max(1, int(stage.window)),
        failures_folded=stage.folded,
        late=stage.late,
        succeeded=stage.succeeded,
        failed=stage.failed,
    )


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _reason(
    key: Key,
    trip: Trip | None,
    probe: str,
    down: Signal | None,
    notes: str,
) -> str:
    """Health state and its cause, as text. Without times: consumers render `next_probe_at` themselves."""
    if down is not None:
        return f"{TRIPPED}: {_signal_text(down)}"
    if trip is not None:
        cause = f"{key}: {_cause(trip)}" if key.kind != CONFIG else _cause(trip)
        return f"{TRIPPED}: {cause}; {probe}" if probe else f"{TRIPPED}: {cause}"
    return f"{HEALTHY}: {notes}" if notes else HEALTHY


def _notes(stages: dict[str, StageHealth], shares: Sequence[SharedWindow], live: Sequence[Signal]) -> str:
    """Reasons for a lower weight, as text."""
    weak = [
        f"{name} {stage.probability:.0%}" for name, stage in stages.items() if stage.probability < HEALTHY_PROBABILITY
    ]
    weak += [f"{share.kind} {share.id} {share.probability:.0%}" for share in shares if _is_weak(share)]
    return listed([*weak, *(_signal_text(signal) for signal in live)])


def _is_weak(share: SharedWindow) -> bool:
    return share.probability < HEALTHY_PROBABILITY


def _signal_text(signal: Signal) -> str:
    value = f" {signal.value:g}" if signal.kind != "down" else ""
    return f"{signal.kind}{value} from {signal.source} ({signal.reason})"


def _cause(trip: Trip) -> str:
    """The failures that caused a trip and the probes that have failed since."""
    cause = failure_text(trip.run)
    if trip.failed_probes:
        probes = f"{trip.failed_probes} failed {_plural('probe', trip.failed_probes)}"
        cause += f"; {probes} ({trip.probe_code})" if trip.probe_code else f"; {probes}"
    return cause


def failure_text(run: Sequence[Failure]) -> str:
    """The failures of a run as text: their number and codes by scope."""
    texts = []
    for scope, count in Counter(failure.scope for failure in run).items():
        codes = listed(sorted({failure.code for failure in run if failure.scope is scope and failure.code}))
        text = f"{count} {scope.value} {_plural('error', count)}"
        texts.append(f"{text} ({codes})" if codes else text)
    return ", ".join(texts) or "no start has succeeded"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
