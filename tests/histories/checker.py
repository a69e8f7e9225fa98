"""Checker of a lease-broker as an n-semaphore with fencing, from what clients observe. Pure: a history in, violations
out.

Only proven violations count. A call took effect at some instant between its invocation and its return; one without an
answer may never have taken effect. So a lease is *surely held* from the return of its grant until its release is
invoked, or until its holder's deadline: the invocation of an acknowledged call plus the seconds that its answer
promised, less the skew. An acknowledged renewal also proves that the lease was alive until the renewal was invoked.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tests.histories.history import EVER, Call, History

BY_TIME: Final = ("expired", "lost", "hold")  # end reasons that need a passed deadline
ENDS: Final = (*BY_TIME, "released", "replaced", "no-progress")
ALL_UNITS: Final = 1 << 31  # more than any lease has


class Kind(StrEnum):
    OVER_LIMIT = "over the limit"
    DUPLICATE_GRANT = "duplicate grant"
    DUPLICATE_TOKEN = "duplicate token"
    TWO_OWNERS = "two owners"
    TOKEN_ORDER = "token order"
    STALE_WRITE = "stale write accepted"
    HOLDER_FENCED = "holder's write refused"
    STALE_TOKEN = "stale token accepted"
    GRANTED_CANCELLED = "granted after its cancel"
    REVIVED = "renewed after its end"
    RENEWED_TAKEN = "renewed although its units were granted"
    ENDED_EARLY = "ended before its deadline"
    GRANTED_DRAINED = "granted while drained"
    NEVER_FREE = "never free again"


class Violation(msgspec.Struct, frozen=True):
    kind: Kind
    at: float
    pool: str
    what: str


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One lease as its grants and renewals prove it. It was granted between `requested_at` and `known_at`. `promises`
    are (invocation, deadline) of acknowledged calls; `given_up` are (instant, units left) of its holder's releases."""

    pool: str
    lease_id: str
    request_id: str
    owner: str
    fencing_token: int
    units: int
    requested_at: float
    known_at: float
    promises: Sequence[tuple[float, float]]
    given_up: Sequence[tuple[float, int]] = ()

    def deadline(self, at: float) -> float:
        """Deadline on which the holder may rely, by the calls invoked until then."""
        return max((until for invoked, until in self.promises if invoked <= at), default=-EVER)

    @property
    def until(self) -> float:
        """End of the time for which a unit is surely held."""
        lived = max(max(invoked, until) for invoked, until in self.promises)
        return min([lived, *(at for at, left in self.given_up if left <= 0)])

    def units_at(self, at: float) -> int:
        """Units surely held."""
        if not self.known_at <= at < self.until:
            return 0
        return min([self.units, *(left for since, left in self.given_up if since <= at)])


def check(history: History) -> list[Violation]:
    """Every violation that the history proves, in order of time."""
    holdings = held(history)
    found = [
        *capacity(history, holdings),
        *grants(history, holdings),
        *tokens(holdings),
        *writes(history, holdings),
        *commands(history, holdings),
        *cancels(history),
        *ends(history, holdings),
        *drains(history, holdings),
        *conservation(history),
    ]
    return sorted(found, key=lambda violation: violation.at)


def held(history: History) -> list[Holding]:
    """One holding for every lease in the answer of an acquire, in order of their known grants."""
    requested: dict[tuple[str, str], float] = {}
    granted: dict[str, list[Call]] = defaultdict(list)
    promised: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for call in history.calls:
        if call.does == "acquire":
            key = call.pool, call.request_id
            requested[key] = min(requested.get(key, EVER), call.invoked)
        if call.answer != "ok" or call.lease is None:
            continue
        if call.does == "acquire":
            granted[call.lease.lease_id].append(call)
        if call.does != "release":
            until = call.invoked + call.lease.seconds_left - history.skew_seconds
            promised[call.lease.lease_id].append((call.invoked, until))
    holdings = []
    for lease_id, calls in granted.items():
        first = min(calls, key=lambda call: call.returned)
        assert first.lease is not None
        holdings.append(
            Holding(
                pool=first.pool,
                lease_id=lease_id,
                request_id=first.request_id,
                owner=first.owner,
                fencing_token=first.lease.fencing_token,
                units=first.lease.units,
                requested_at=requested[first.pool, first.request_id],
                known_at=first.returned,
                promises=tuple(promised[lease_id]),
                given_up=tuple(given_up(history, first)),
            )
        )
    return sorted(holdings, key=lambda holding: holding.known_at)


def given_up(history: History, grant: Call) -> Iterator[tuple[float, int]]:
    """(instant, units left) of a lease if all releases of its holder took effect. Releases of others, or under other
    tokens, must have no effect."""
    assert grant.lease is not None
    steps = []
    for call in history.calls:
        rightly = call.owner == grant.owner and call.fencing_token == grant.lease.fencing_token
        if call.does == "release" and call.lease_id == grant.lease.lease_id and rightly:
            steps.append((call.invoked, call.units))
        cancelled = call.does == "cancel" and (call.pool, call.request_id) == (grant.pool, grant.request_id)
        if cancelled or (call.does == "acquire" and call.replaces == grant.lease.lease_id):
            steps.append((call.invoked, ALL_UNITS))
    left = grant.lease.units
    for at, units in sorted(steps):
        left -= units
        yield at, left


def capacity(history: History, holdings: Sequence[Holding]) -> Iterator[Violation]:
    """Never more units surely held than the limit when the last of them was granted, which is the one with the highest
    token. Lowering a limit revokes nothing, so that older leases may exceed it."""
    for newest in holdings:
        pool, at, total = newest.pool, newest.known_at, 0
        together = [holding for holding in holdings if holding.pool == pool and holding.units_at(at)]
        for last in sorted(together, key=lambda holding: holding.fencing_token):
            total += last.units_at(at)
            if total <= (most := highest_limit(history, pool, last.requested_at, last.known_at)):
                continue
            names = ", ".join(f"{holding.lease_id} ({holding.units_at(at)})" for holding in together)
            kind = Kind.RENEWED_TAKEN if any(holding.deadline(at) <= at for holding in together) else Kind.OVER_LIMIT
            yield Violation(kind, at, pool, f"{total} units held at a limit of {most}: {names}")
            break


def highest_limit(history: History, pool: str, begin: float, end: float) -> int:
    """The highest limit that may have been in force at any instant of an interval."""
    changes = [call for call in history.calls if call.does == "limit" and call.pool == pool]
    steps = [(-EVER, -EVER, history.limits[pool])]
    steps += [(c.invoked, c.returned if c.answer == "ok" else EVER, c.units) for c in changes if c.answer != "refused"]
    possible = []
    for since, _, limit in steps:
        # Until a later change has surely taken effect.
        over = min((surely for later, surely, _ in steps if later > since), default=EVER)
        if since <= end and begin <= over:
            possible.append(limit)
    return max(possible)


def grants(history: History, holdings: Sequence[Holding]) -> Iterator[Violation]:
    """A request is granted once, to one owner, under a token of its own."""
    by_request: dict[tuple[str, str], list[Holding]] = defaultdict(list)
    by_token: dict[tuple[str, int], list[Holding]] = defaultdict(list)
    requested = {(c.pool, c.request_id): c.units for c in history.calls if c.does == "acquire"}
    for holding in holdings:
        by_request[holding.pool, holding.request_id].append(holding)
        by_token[holding.pool, holding.fencing_token].append(holding)
    for (pool, request_id), leases in by_request.items():
        if (total := sum(lease.units for lease in leases)) > requested[pool, request_id]:
            names = ", ".join(lease.lease_id for lease in leases)
            what = f"request {request_id} for {requested[pool, request_id]} units was granted {total}: {names}"
            yield Violation(Kind.DUPLICATE_GRANT, leases[-1].known_at, pool, what)
    for (pool, token), leases in by_token.items():
        if len(leases) > 1:
            what = f"token {token} was given to {', '.join(lease.lease_id for lease in leases)}"
            yield Violation(Kind.DUPLICATE_TOKEN, leases[-1].known_at, pool, what)
    first = {holding.lease_id: holding for holding in holdings}
    for call in history.calls:
        if call.does != "acquire" or call.answer != "ok" or call.lease is None:
            continue
        granted = first[call.lease.lease_id]
        whose = call.pool, call.request_id, call.owner
        if whose != (granted.pool, granted.request_id, granted.owner):
            what = f"{granted.lease_id} of request {granted.request_id} was given to request {call.request_id} too"
            yield Violation(Kind.TWO_OWNERS, call.returned, call.pool, what)
        elif call.lease.fencing_token != granted.fencing_token:
            tokens = f"{granted.fencing_token} and {call.lease.fencing_token}"
            yield Violation(Kind.TOKEN_ORDER, call.returned, call.pool, f"{granted.lease_id} had tokens {tokens}")


def tokens(holdings: Sequence[Holding]) -> Iterator[Violation]:
    """Of two grants of which one was surely first, the second has the higher token."""
    for later in holdings:
        for earlier in holdings:
            if earlier.pool != later.pool or earlier.known_at >= later.requested_at:
                continue
            if earlier.fencing_token > later.fencing_token:
                what = (
                    f"{later.lease_id} got token {later.fencing_token} after {earlier.lease_id} "
                    f"had {earlier.fencing_token}"
                )
                yield Violation(Kind.TOKEN_ORDER, later.known_at, later.pool, what)
                break


def writes(history: History, holdings: Sequence[Holding]) -> Iterator[Violation]:
    """Once a newer token has written, an older one writes no more; where only one lease can be held, its holder can
    always write."""
    highest: dict[str, int] = {}
    alone = {pool for pool, limit in history.limits.items() if limit == 1} - {
        call.pool for call in history.calls if call.does == "limit"
    }
    by_id = {holding.lease_id: holding for holding in holdings}
    for write in sorted(history.writes, key=lambda write: write.at):
        newest = highest.get(write.pool, 0)
        if write.accepted and write.fencing_token < newest:
            what = f"token {write.fencing_token} of {write.lease_id} wrote after {newest}"
            yield Violation(Kind.STALE_WRITE, write.at, write.pool, what)
        if write.accepted:
            highest[write.pool] = max(newest, write.fencing_token)
            continue
        holding = by_id.get(write.lease_id)
        if holding is not None and write.pool in alone and holding.units_at(write.at):
            what = f"{write.lease_id} surely held with token {write.fencing_token}, and {newest} had written"
            yield Violation(Kind.HOLDER_FENCED, write.at, write.pool, what)


def commands(history: History, holdings: Sequence[Holding]) -> Iterator[Violation]:
    """Commands about a lease take effect only from its owner and under its token."""
    by_id = {holding.lease_id: holding for holding in holdings}
    for call in history.calls:
        holding = by_id.get(call.lease_id)
        if call.does not in ("confirm", "renew", "release") or call.answer != "ok" or holding is None:
            continue
        if call.fencing_token != holding.fencing_token:
            what = f"{call.does} of {call.lease_id} under token {call.fencing_token}, not {holding.fencing_token}"
            yield Violation(Kind.STALE_TOKEN, call.returned, call.pool, what)
        if call.owner != holding.owner:
            what = f"{call.does} of {call.lease_id} of {holding.owner} by {call.owner}"
            yield Violation(Kind.TWO_OWNERS, call.returned, call.pool, what)


def cancels(history: History) -> Iterator[Violation]:
    """A request whose cancel was acknowledged was waiting then, and is never granted."""
    cancelled = {(c.pool, c.request_id) for c in history.calls if c.does == "cancel" and c.answer == "ok"}
    seen: set[tuple[str, str]] = set()
    for call in history.calls:
        key = call.pool, call.request_id
        if call.does == "acquire" and call.answer == "ok" and call.lease is not None and key in cancelled - seen:
            seen.add(key)
            what = f"request {call.request_id} was cancelled, and granted as {call.lease.lease_id}"
            yield Violation(Kind.GRANTED_CANCELLED, call.returned, call.pool, what)


def ends(history: History, holdings: Sequence[Holding]) -> Iterator[Violation]:
    """An ended lease stays ended, and time ends no lease before its deadline."""
    over: dict[str, tuple[float, str]] = {}
    seen = [(each.at, each.lease_id, each.reason) for each in history.ended]
    seen += [(c.returned, c.lease_id, reason) for c in history.calls if (reason := ended_by(c))]
    for at, lease_id, reason in sorted(seen):
        over.setdefault(lease_id, (at, reason))
    for holding in holdings:
        if holding.lease_id not in over:
            continue
        at, reason = over[holding.lease_id]
        deadline = min([holding.deadline(at), *(since for since, _ in holding.given_up)])
        if reason in BY_TIME and at < deadline:
            what = f"{holding.lease_id}ended as {reason} {deadline - at:.3f} s before its deadline"
            yield Violation(Kind.ENDED_EARLY, at, holding.pool, what)
    for call in history.calls:
        if call.does not in ("confirm", "renew") or call.answer != "ok" or call.lease_id not in over:
            continue
        at, reason = over[call.lease_id]
        if call.invoked > at:
            what = f"{call.lease_id} was {reason}, and a {call.does} {call.invoked - at:.3f} s later was acknowledged"
            yield Violation(Kind.REVIVED, call.returned, call.pool, what)


def ended_by(call: Call) -> str:
    """The end reason of the lease, if the answer to a call proves that it has ended."""
    if call.does in ("confirm", "renew", "release") and call.answer == "refused" and call.reason in ENDS:
        return call.reason
    whole = call.does == "release" and call.answer == "ok" and call.lease is not None and call.lease.units == 0
    return "released" if whole else ""


def drains(history: History, holdings: Sequence[Holding]) -> Iterator[Violation]:
    """No request first made while a pool is surely drained is granted until it may be undrained."""
    for pool, begin, end in drained(history):
        for holding in holdings:
            if holding.pool == pool and begin < holding.requested_at and holding.known_at < end:
                what = f"{holding.lease_id}was requested and granted while the pool was drained"
                yield Violation(Kind.GRANTED_DRAINED, holding.known_at, pool, what)


def drained(history: History) -> Iterator[tuple[str, float, float]]:
    """Pool and interval of each drain, as far as it is certain."""
    changes = [call for call in history.calls if call.does in ("drain", "undrain")]
    for drain in changes:
        if drain.does == "drain" and drain.answer == "ok":
            lifted = [c.invoked for c in changes if c.does == "undrain" and c.pool == drain.pool]
            yield drain.pool, drain.returned, min((at for at in lifted if at > drain.invoked), default=EVER)


def conservation(history: History) -> Iterator[Violation]:
    """When all faults and clients have stopped, everything can be granted again."""
    requested: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in history.calls:
        if call.does == "acquire" and call.invoked >= history.quiet_at:
            requested[call.pool, call.request_id].append(call)
    for (pool, request_id), calls in requested.items():
        if not any(call.answer == "ok" for call in calls):
            last = calls[-1]
            what = f"request {request_id} for {last.units} units was answered {last.answer} {last.reason}".rstrip()
            yield Violation(Kind.NEVER_FREE, last.invoked, pool, what)


def counts(violations: Sequence[Violation]) -> Mapping[Kind, int]:
    """Number of calls of each kind."""
    found: dict[Kind, int] = defaultdict(int)
    for violation in violations:
        found[violation.kind] += 1
    return found
