"""Exchanges with callers: a lease command with its caller, and its answer or refusal. Values only."""

from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from slipway_lease_broker.domain.commands import LeaseCommand
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Request
from slipway_lease_broker.domain.refusals import Refusal
from slipway_lease_broker.domain.sender import Sender


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One lease command with its sender. With `confirm` the answer that carries a grant confirms it. With `remaining` a
    release returns all but that many units."""

    command: LeaseCommand
    sender: Sender
    answered: bool = True  # False: no caller waits for the outcome; a refused command is only counted
    confirm: bool = False
    woken: Any = None  # future of a waiting caller: the lease, or None if it must submit again
    remaining: int | None = None
    traceparent: str = ""


class Answer(msgspec.Struct, kw_only=True):
    """The result of a submission as of `now` (database clock)."""

    pool: LeasePool
    now: datetime
    lease: Lease | None = None
    request: Request | None = None
    released_units: int = 0
    cancelled_units: int = 0

    @property
    def waits(self) -> bool:
        return self.lease is None and self.request is not None and self.request.waiting_units > 0


Outcome: TypeAlias = Answer | Refusal
Exchange: TypeAlias = tuple[Submission, Outcome]
