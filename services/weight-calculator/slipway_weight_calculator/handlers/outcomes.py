"""Handling of worker events, which change the health of launch configs as of the event times."""

from typing import Final, TypeVar

import msgspec

from slipway_api.events.worker import Outcome, Result, Stage
from slipway_common.messaging.records import Received, Record
from slipway_weight_calculator.domain import world
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.rows import STAGES
from slipway_weight_calculator.handlers import names

# Events are published within seconds; a time further away from the record's comes from a wrong clock.
CLOCK_SECONDS_MAX: Final = 120.0
Part = TypeVar("Part")


def fold(draft: Draft, received: Received, now: float, partition: str) -> bool:
    """Fold an event; returns True if its time had to be clamped. Raises BadEvent for names that cannot be keys.

    `now` is the turn's time: an event time in the future would make all later events look late. In a replay `now` is
    far behind the events, so event times are checked against the time of their record.
    """
    event = received.event
    if event is None:
        return False
    config_id = event.launch_config_id
    if event.worker_id != received.subject or config_id not in draft.world.configs:
        names.check(event.worker_id, config_id, event.pool_id, event.account_id, event.image_revision)
    at = event_at = received.time.timestamp()
    early = at - received.stored_ms / 1000
    if not -CLOCK_SECONDS_MAX <= early <= CLOCK_SECONDS_MAX:
        at = event_at - early + (CLOCK_SECONDS_MAX if early > 0 else -CLOCK_SECONDS_MAX)
    world.fold(draft, event, at if at < now else now, partition, received.offset + 1)
    return at != event_at or at > now + CLOCK_SECONDS_MAX


class _Failed(msgspec.Struct):
    """The parts of an event that identify a failure."""

    launch_config_id: str
    outcome: Outcome


class _Probe(msgspec.Struct):
    """The parts of an event that identify a probe."""

    launch_config_id: str
    probe_permit: int


def failure_in(value: bytes | None) -> tuple[str, str] | None:
    """Config and stage of the failure in a record; the rest of the record may be unreadable."""
    found = _readable(value, _Failed)
    if found is None or found.outcome.result is not Result.FAILED or found.outcome.stage.value not in STAGES:
        return None
    return found.launch_config_id, found.outcome.stage.value


def _readable(value: bytes | None, kind: type[Part]) -> Part | None:
    try:
        return msgspec.json.decode(value or b"", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def count_dead(draft: Draft, record: Record, now: float) -> None:
    """Count the failure in a dead record as folded, so that it frees its place in a window, and end its probe.

    Nothing else in it has an effect.
    """
    if (failed := failure_in(record.value)) is not None:
        world.count_folded(draft, *failed)
    if (probe := _readable(record.value, _Probe)) is not None:
        world.abandon_probe(draft, probe.launch_config_id, probe.probe_permit, now)


def uncount_settled(draft: Draft, received: Received) -> None:
    """Take back the count of a dead record that has been folded now."""
    outcome: Outcome | None = getattr(received.event, "outcome", None)
    if outcome is not None and outcome.result is Result.FAILED and outcome.stage is not Stage.UNKNOWN:
        world.count_folded(draft, received.event.launch_config_id, outcome.stage.value, -1)
