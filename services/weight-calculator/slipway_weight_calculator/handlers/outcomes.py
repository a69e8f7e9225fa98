"""What happens to workers becomes the health of their launch configs, at the time of the fact."""

from typing import Final, TypeVar

import msgspec

from slipway_common.errors import BadEvent
from slipway_common.events.worker import Outcome, Result, Stage
from slipway_common.records import Received, Record
from slipway_weight_calculator.domain.rows import STAGES
from slipway_weight_calculator.domain.world import Draft
from slipway_weight_calculator.handlers import names

# A fact is told within seconds: a time that is further from when it was written is of a clock that is wrong.
CLOCK_SECONDS_MAX: Final = 120.0
Told = TypeVar("Told")


def fold(draft: Draft, received: Received, now: float, place: str) -> bool:
    """Fold an event; returns whether its time had to be clamped. Raises BadEvent for what can be no key.

    `now` is the turn's time: a time in the future would make everything after it look late. At replay it is far behind
    the facts, so it is the record's own time that says whether theirs can be right.
    """
    event = received.event
    if event is None:
        return False
    config_id = event.launch_config_id
    if event.worker_id != received.subject or config_id not in draft.world.configs:
        names.check(event.worker_id, config_id, event.pool_id, event.account_id, event.image_revision)
        if "/" in config_id:
            raise BadEvent(f"{config_id!r} is no id of a launch config")
    at = told_at = received.time.timestamp()
    early = at - received.stored_ms / 1000
    if not -CLOCK_SECONDS_MAX <= early <= CLOCK_SECONDS_MAX:
        at = told_at - early + (CLOCK_SECONDS_MAX if early > 0 else -CLOCK_SECONDS_MAX)
    draft.fold(event, at if at < now else now, place, received.offset + 1)
    return at != told_at or at > now + CLOCK_SECONDS_MAX


class _Failed(msgspec.Struct):
    """As little as says whose failure an event tells of."""

    launch_config_id: str
    outcome: Outcome


class _Probe(msgspec.Struct):
    """As little as says whose probe an event tells of."""

    launch_config_id: str
    probe_permit: int


def failure_in(value: bytes | None) -> tuple[str, str] | None:
    """Config and stage of the failure that a record tells of, though it may be unreadable otherwise."""
    told = _readable(value, _Failed)
    if told is None or told.outcome.result is not Result.FAILED or told.outcome.stage.value not in STAGES:
        return None
    return told.launch_config_id, told.outcome.stage.value


def _readable(value: bytes | None, kind: type[Told]) -> Told | None:
    try:
        return msgspec.json.decode(value or b"", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def count_dead(draft: Draft, record: Record, now: float) -> None:
    """A dead record counts as folded, where it says whose failure it tells of: nobody waits for it to free a place in a
    window. A probe that it tells of has no answer: nobody waits for that one either. Nothing else of it counts."""
    if (failed := failure_in(record.value)) is not None:
        draft.count_folded(*failed)
    if (probe := _readable(record.value, _Probe)) is not None:
        draft.give_up(probe.launch_config_id, probe.probe_permit, now)


def uncount_settled(draft: Draft, received: Received) -> None:
    """A dead record that has been folded after all was counted before."""
    outcome: Outcome | None = getattr(received.event, "outcome", None)
    if outcome is not None and outcome.result is Result.FAILED and outcome.stage is not Stage.UNKNOWN:
        draft.count_folded(received.event.launch_config_id, outcome.stage.value, -1)
