"""Ages of workers: when each has reached its maximum age, and which of those leave now. Pure.

A worker drains at an age that is drawn once, from 90 to 100 % of the maximum, so that those launched together do not
leave together. It serves until it leaves: idle it is stopped, busy it leaves after its task, or once its drain time has
passed. Nothing is launched for it before; then the usual need replaces it, within the maximum of its pool.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from math import inf
from typing import Any, Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised, alert_identity
from slipway_common.declaration.deadlines import DRAIN_SECONDS_MIN

DRAWN_SHARE_MIN: Final = 0.9
"""Least share of the maximum age at which a worker drains."""
REASON: Final = "has reached its maximum age"
OVERDUE: Final = "its drain time after the maximum age has passed"


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """Registered worker with a maximum age, or with credentials that end, and its declared deadlines. `leaving`: it was
    asked to stop, and finishes a task.

    `age_seconds` is its uptime since its launch, without downtime of this service; `clock_seconds` has all time since,
    as the end of a credential does. `has_task`: it has one, or may have. `draining`: it leaves after its task.
    `drain_left_seconds`: what its task has left of a drain time that an obstacle has interrupted.
    """

    worker_id: str
    has_task: bool
    draining: bool
    leaving: bool = False
    age_seconds: float
    clock_seconds: float
    maximum_age_seconds: float | None = None
    credential_seconds: float | None = None
    drain_seconds: float | None = None
    drain_left_seconds: float | None = None

    @property
    def drains_in(self) -> float:
        """Seconds until it has reached its own age; negative afterwards."""
        if self.maximum_age_seconds is None:
            return self.forced_in
        drawn = drawn_share(self.worker_id) * self.maximum_age_seconds
        return min(drawn - self.age_seconds, self.forced_in)

    @property
    def late_in(self) -> float:
        """Seconds until it has reached the maximum age itself, or has to leave; negative afterwards."""
        if self.maximum_age_seconds is None:
            return self.forced_in
        return min(self.maximum_age_seconds - self.age_seconds, self.forced_in)

    @property
    def forced_in(self) -> float:
        """Seconds until it has to leave whatever replaces it, so that it drains before its credentials end."""
        if self.credential_seconds is None:
            return inf
        drain = min(self.drain_seconds or DRAIN_SECONDS_MIN, self.credential_seconds / 2)
        return self.credential_seconds - drain - self.clock_seconds


def drawn_share(worker_id: str) -> float:
    """Share of the maximum age at which a worker drains: from 0.9 to 1, drawn by a hash of its id."""
    drawn = int.from_bytes(sha256(worker_id.encode()).digest()[:8], "big") / 2**64
    return DRAWN_SHARE_MIN + (1 - DRAWN_SHARE_MIN) * drawn


class Ageing(msgspec.Struct, frozen=True, kw_only=True):
    """Steps for workers of full age, by their ids. `stop`: idle ones that leave. `drain`: those that begin to drain,
    and leave after their task. `keep`: those that drain no longer, since nothing could replace them; their tasks have
    the rest of their drain time once something could. `forget`: those whose maximum age was raised, which have a whole
    one when they reach it. `irreplaceable`: number of those at the maximum age that stay, since a `cause` keeps any
    other from starting."""

    stop: Sequence[str] = ()
    drain: Sequence[str] = ()
    keep: Sequence[str] = ()
    forget: Sequence[str] = ()
    irreplaceable: int = 0
    cause: str = ""


def decide(lives: Iterable[Life], *, unwanted: int, room: int, obstacle: str) -> Ageing:
    """Decide which workers of full age leave.

    Of those that are `unwanted`, which nothing replaces, any may leave. Others leave only if a replacement could start,
    so without an `obstacle`, and up to a `room` at a time, which counts those that drain already. But at the maximum
    age itself none waits for room, and before the end of its credentials none for anything. Those that leave already
    get a drain time, too. One whose maximum age was raised meanwhile drains no longer.
    """
    lives = list(lives)
    stop: list[str] = []
    drain: list[str] = []
    keep: list[str] = []
    had_drained = (life for life in lives if life.draining or life.drain_left_seconds is not None)
    forget = [life.worker_id for life in had_drained if life.drains_in > 0]
    irreplaceable = 0
    aged = sorted((life for life in lives if life.drains_in <= 0), key=lambda life: (life.forced_in, life.late_in))
    room -= sum(life.draining and not life.leaving for life in aged)
    for life in aged:
        leaves = life.forced_in <= 0 or life.leaving
        if not leaves and unwanted > 0:
            leaves, unwanted = True, unwanted - 1
        elif not leaves and not obstacle and (life.draining or life.late_in <= 0 or room > 0):
            leaves, room = True, room - (not life.draining)
        if not leaves:
            keep += [life.worker_id] if life.draining else []
            irreplaceable += bool(obstacle) and life.late_in <= 0
        elif not life.has_task:
            stop.append(life.worker_id)
        elif not life.draining:
            drain.append(life.worker_id)
    return Ageing(stop=stop, drain=drain, keep=keep, forget=forget, irreplaceable=irreplaceable, cause=obstacle)


def drain_until(life: Life, now: datetime, default_seconds: float) -> datetime:
    """End of the drain of a worker that begins now: after its drain time, or what its task has left of it, and not
    after the end of its credentials. Obstacles that come and go give a task that hangs no new one each time."""
    seconds = life.drain_seconds or default_seconds
    seconds = min(seconds, seconds if life.drain_left_seconds is None else life.drain_left_seconds)
    left = inf if life.credential_seconds is None else max(0.0, life.credential_seconds - life.clock_seconds)
    return now + timedelta(seconds=min(seconds, left))


def moments(lives: Iterable[Life]) -> list[float]:
    """Seconds until time alone may change the decision, of each worker."""
    times = (each for life in lives for each in (life.drains_in, life.late_in, life.forced_in))
    return [seconds for seconds in times if 0 < seconds < inf]


def alert(kind: type[Alert], pool_id: str, steps: Ageing) -> Alert:
    """Alert on workers at their maximum age that nothing could replace, or its resolution."""
    raised = kind is AlertRaised
    workers = "1 worker is" if steps.irreplaceable == 1 else f"{steps.irreplaceable} workers are"
    more: dict[str, Any] = {"cause": steps.cause} if raised else {}
    return kind(
        **alert_identity("provisioner", "maximum-age", "pool", pool_id),
        summary=f"{workers} past the maximum age of pool {pool_id}, and nothing could replace them"
        if raised
        else f"no worker of pool {pool_id} is past its maximum age without a replacement",
        effect="they serve on, and are older than declared" if raised else "",
        doing="drains them as soon as a replacement could start" if raised else "",
        command=f"slipway why {pool_id}",
        severity="notice",
        **more,
    )
