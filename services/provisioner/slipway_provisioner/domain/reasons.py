"""Reason of a decision: a code for programs, and a text for people. Pure."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from slipway_provisioner.domain.ageing import Ageing
from slipway_provisioner.domain.limits import Reached
from slipway_provisioner.domain.pool import Fleet


class Code(StrEnum):
    """Code of a reason, as stored with a decision."""

    BLOCKED = "blocked"  # the pool launches nothing at all
    LIMITED = "limited"  # by a safety limit
    LAUNCHED = "launched"
    NO_CONFIG = "no-config"  # needed, and no launch config may launch
    NO_ROOM = "no-room"  # wanted, and leaving workers take the places
    SURPLUS = "surplus"  # more workers than wanted, some of which leave
    DRAINING = "draining"  # idle workers of draining revisions leave
    AGED = "aged"  # workers at their maximum age leave
    NOT_WANTED = "not-wanted"


class DecisionReason(msgspec.Struct, frozen=True):
    """Why a decision is as it is."""

    code: Code
    text: str


def blocked(text: str) -> DecisionReason:
    """Reason of a pool that may launch nothing."""
    return DecisionReason(Code.BLOCKED, text)


def launching(needed: int, launched: int, reached: Sequence[Reached]) -> DecisionReason:
    """Reason of a pool that needs workers, and has room for them."""
    if reached:
        limits = "; ".join(each.text for each in reached)
        return DecisionReason(Code.LIMITED, f"{needed} needed, {launched} launched: {limits}")
    if launched:
        text = f"{needed} needed" if launched == needed else f"{needed} needed, room for {launched}"
        return DecisionReason(Code.LAUNCHED, text)
    return DecisionReason(Code.NO_CONFIG, f"{needed} needed, but no config may launch now")


def no_room(missing: int, fleet: Fleet) -> DecisionReason:
    """Reason of a pool that wants workers, and has no room for them until others have left."""
    stuck = f", {fleet.stuck} of them stuck" if fleet.stuck else ""
    return DecisionReason(Code.NO_ROOM, f"{missing} wanted, but no room: {fleet.leaving} leaving{stuck}")


def scaling_down(*, cancelled: int, stopping: int, marked: int, drained: int, aged: Ageing) -> DecisionReason:
    """Reason of a pool that needs no more workers."""
    if cancelled or stopping or marked:
        numbers = {"cancelled": cancelled, "stopping": stopping, "to leave after their tasks": marked}
        parts = [f"{number} {what}" for what, number in numbers.items() if number]
        return DecisionReason(Code.SURPLUS, f"{', '.join(parts)}: more workers than wanted")
    if drained:
        return DecisionReason(Code.DRAINING, f"{drained} stopping: idle workers of draining revisions")
    if aged.stop or aged.drain:
        text = f"{len(aged.stop)} stopping, {len(aged.drain)} leave after their task: at their maximum age"
        return DecisionReason(Code.AGED, text)
    return DecisionReason(Code.NOT_WANTED, "nothing is needed")
