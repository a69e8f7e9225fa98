"""Rules of admission: each may make a request wait, with a reason. Pure.

A rule sees a request and the conditions of its pool, and returns a verdict, or None if it lets the request start. The
first verdict of RULES counts, wherever a request is evaluated: in a decision (admit.py), in the status of a waiting
request, on arrival over HTTP or Boskos, and in the other pools of its gang. To add a rule, write its function and list
it in RULES; its setting is a field of LeasePool (slipway_common/declaration/models.py) and of Policy (terms.py).

No rule applies to an operation of weight 0, or to one past its maximum wait; in shadow and advisory pools the rules
compute which requests would have waited. Units in use and pacing change with each grant: admit.py compares them after
all rules.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum, StrEnum
from typing import Final, TypeAlias

import msgspec

from slipway_lease_broker.domain import spread
from slipway_lease_broker.domain.ledger import Group, LeasePool, Request, Tenant
from slipway_lease_broker.domain.limits import Limit
from slipway_lease_broker.domain.terms import Mode
from slipway_lease_broker.domain.text import quantity


class Blocks(Enum):
    """The requests that are blocked by one that may not start."""

    NOTHING = "nothing"  # it can never be granted: more units than will ever be free
    QUEUE = "queue"  # its own tenant, group or operation, which may not start by itself
    LATER = "later"  # all later requests, apart from units reserved for their own operation
    OPERATION = "operation"  # its own operation, whose starts are paced
    ALL = "all"  # everything that counts against the limit
    UNITS = "units"  # its own units only: they are reserved until its gang can start in all pools


class Cause(StrEnum):
    """Code of the reason why a request waits, for programs. Readers keep codes that they do not know."""

    FULL = "full"  # also behind requests ahead of it
    PACED = "paced"
    DRAINED = "drained"  # or archived
    LIMIT_ZERO = "limit-zero"
    TOO_MANY_UNITS = "too-many-units"
    SPREAD = "spread"  # over the time of its group
    BACKOFF = "backoff"  # of its tenant, which failed or is held back by its own reports
    BLOCKED = "blocked"  # by the provider's Retry-After
    RESTORED = "restored"
    GANG = "gang"


class Verdict(msgspec.Struct, frozen=True):
    """Number of units of a request that may start now; if none, the reason and its code, the requests that this blocks,
    and the time at which it may change by itself. With `units_max` neither time nor released units will change it: that
    many units are the most that a request like it may start with."""

    units: int = 0
    reason: str = ""
    cause: Cause = Cause.FULL
    blocks: Blocks = Blocks.NOTHING
    until: datetime | None = None
    units_max: int | None = None


class Conditions(msgspec.Struct, frozen=True):
    """Facts about a pool that the rules compare a request with. `groups` changes with each grant."""

    pool: LeasePool
    limit: Limit
    now: datetime
    tenants: Mapping[str, Tenant] = {}
    groups: Mapping[str, Group] = {}


Rule: TypeAlias = Callable[[Conditions, Request], Verdict | None]


def units_of_limit(given: Conditions, request: Request) -> Verdict | None:
    """More units than the limit allows with nothing held."""
    limit, weight = given.limit, given.pool.policy.operation(request.operation).weight
    reserved = reserved_for_others(given.pool, request.operation)
    most = max(0, limit.units - reserved)
    if request.waiting_units * weight <= most or not (request.starts_whole or weight > most):
        return None
    units = quantity(request.waiting_units, "unit") + (f" of weight {weight}" if weight > 1 else "")
    others = f" with {reserved} reserved for other operations" if reserved else ""
    reason = f"requests {units}, more than the limit of {limit.units} allows{others}: {limit.reason}"
    blocks = Blocks.QUEUE if weight > most else Blocks.NOTHING  # those behind it have the same operation
    if not limit.units:
        return Verdict(0, f"the limit is 0: {limit.reason}", Cause.LIMIT_ZERO, blocks, units_max=0)
    return Verdict(0, reason, Cause.TOO_MANY_UNITS, blocks, units_max=most // weight)


def start_of_member(given: Conditions, request: Request) -> Verdict | None:
    if request.since <= given.now:
        return None
    return Verdict(0, "its group starts it later", Cause.SPREAD, Blocks.QUEUE, request.since)


def spread_of_group(given: Conditions, request: Request) -> Verdict | None:
    group = given.groups.get(request.group_name)
    if group is None:
        return None
    step = spread.step(group.size, group.spread_seconds)
    until = spread.free_at(request.since, group.last_start_at, step)
    if until <= given.now:
        return None
    return Verdict(0, "another member of its group has just started", Cause.SPREAD, Blocks.QUEUE, until)


def backoff_of_tenant(given: Conditions, request: Request) -> Verdict | None:
    tenant = given.tenants.get(request.tenant)
    if tenant is None or tenant.backoff_until is None or tenant.backoff_until <= given.now:
        return None
    reason = f"tenant {request.tenant} backs off after {quantity(tenant.failures, 'failure')}"
    return Verdict(0, reason, Cause.BACKOFF, Blocks.QUEUE, tenant.backoff_until)


def reports_of_tenant(given: Conditions, request: Request) -> Verdict | None:
    tenant = given.tenants.get(request.tenant)
    if tenant is None or tenant.held_back_until is None or tenant.held_back_until <= given.now:
        return None
    reason = f"tenant {request.tenant} waits alone: it {tenant.held_back_reason}"
    return Verdict(0, reason, Cause.BACKOFF, Blocks.QUEUE, tenant.held_back_until)


def pause_of_provider(given: Conditions, request: Request) -> Verdict | None:
    until = given.pool.blocked_until
    if until is None or until <= given.now:
        return None
    return Verdict(0, "the provider asked for a pause (Retry-After)", Cause.BLOCKED, Blocks.ALL, until)


def restore_of_database(given: Conditions, request: Request) -> Verdict | None:
    if not given.pool.incomplete(given.now):
        return None
    reason = "the database was restored; leases that it lacks have to end first"
    return Verdict(0, reason, Cause.RESTORED, Blocks.ALL, given.pool.incomplete_until)


RULES: Final[tuple[Rule, ...]] = (
    units_of_limit,  # first: a request that can never start must not appear to wait for a time
    restore_of_database,
    start_of_member,
    spread_of_group,
    backoff_of_tenant,
    reports_of_tenant,
    pause_of_provider,
)


def first_verdict(given: Conditions, request: Request) -> Verdict | None:
    """Verdict of the first rule that makes a request wait; None if no rule does."""
    for rule in RULES:
        if (verdict := rule(given, request)) is not None:
            return verdict
    return None


def never_starts(pool: LeasePool, limit: Limit, request: Request) -> Verdict | None:
    """Verdict on a request that neither time nor released units can start under a limit; None if they can.

    Of several it is the one with the smallest maximum, since a request for so many units can start.
    """
    if pool.stopped and limit.units == 0:
        return stopped(limit)
    terms = pool.policy.operation(request.operation)
    if pool.policy.mode is not Mode.ENFORCE or terms.weight == 0 or terms.max_wait_seconds is not None:
        return None  # it starts at once, or at the end of its maximum wait
    given = Conditions(pool, limit, request.requested_at)  # any time: such a verdict does not depend on it
    verdicts = [verdict for rule in RULES if (verdict := rule(given, request)) is not None]
    return min((one for one in verdicts if one.units_max is not None), key=lambda one: one.units_max or 0, default=None)


def stopped(limit: Limit) -> Verdict:
    """Verdict on every request of a pool that an operator drained or archived."""
    return Verdict(0, limit.reason, Cause.DRAINED, Blocks.QUEUE, units_max=0)


def reserved_for_others(pool: LeasePool, operation: str) -> int:
    operations = pool.policy.operations.items()
    return sum(terms.reserved_units for other, terms in operations if other != operation)
