"""The checker of `make histories` on made-up histories: each planted fault is found, and allowed behaviour is not
reported."""

from collections.abc import Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tests.histories.checker import Kind, check, held
from tests.histories.history import EVER, Call, Ended, History, Lease, Write

Record = Call | Ended | Write
TTL: Final = 10.0


def acquire(at: float, request: str, units: int = 1, *, until: float | None = None, **more: Any) -> Call:
    """An acquire; without `until` no answer came."""
    return Call(
        client=request,
        owner=request,
        does="acquire",
        pool="p",
        invoked=at,
        returned=EVER if until is None else until,
        request_id=request,
        units=units,
        **more,
    )


def got(
    at: float,
    request: str,
    token: int,
    units: int = 1,
    *,
    after: float = 0.1,
    lease: str = "",
    left: float = TTL,
    of: int = 0,
    **more: Any,
) -> Call:
    """An acquire of `of` units, by default the granted ones, answered with a lease."""
    given = Lease(lease_id=lease or f"l{token}", fencing_token=token, units=units, seconds_left=left)
    return acquire(at, request, of or units, until=at + after, answer="ok", lease=given, **more)


def command(
    does: Any,
    at: float,
    of: Call,
    answer: Any = "ok",
    reason: str = "",
    *,
    after: float = 0.1,
    units: int = 0,
    left: float = TTL,
    **more: Any,
) -> Call:
    """A confirm, renew or release by the holder of a lease."""
    assert of.lease is not None
    remaining = of.lease.units - (units or of.lease.units) if does == "release" else of.lease.units
    lease = Lease(lease_id=of.lease.lease_id, fencing_token=of.lease.fencing_token, units=remaining, seconds_left=left)
    fields: dict[str, Any] = {
        "client": of.client,
        "owner": of.owner,
        "pool": of.pool,
        "does": does,
        "invoked": at,
        "returned": at + after,
        "lease_id": lease.lease_id,
        "fencing_token": lease.fencing_token,
        "answer": answer,
        "reason": reason,
        "units": (units or of.lease.units) if does == "release" else 0,
        "lease": lease if answer == "ok" else None,
    }
    return Call(**(fields | more))


def done(does: Any, at: float, request: str = "", *, after: float = 0.1, answer: Any = "ok", units: int = 0) -> Call:
    """A cancel of a request, or an operator's command for the pool."""
    return Call(
        client="c", does=does, pool="p", invoked=at, returned=at + after, answer=answer, request_id=request, units=units
    )


def wrote(at: float, of: Call, accepted: bool = True) -> Write:
    assert of.lease is not None
    return Write(
        at=at, pool=of.pool, lease_id=of.lease.lease_id, fencing_token=of.lease.fencing_token, accepted=accepted
    )


def history(*records: Record, limit: int = 1, skew: float = 0.0, quiet_at: float = EVER) -> History:
    return History(
        limits={"p": limit},
        skew_seconds=skew,
        quiet_at=quiet_at,
        calls=[each for each in records if isinstance(each, Call)],
        ended=[each for each in records if isinstance(each, Ended)],
        writes=[each for each in records if isinstance(each, Write)],
    )


def kinds(*records: Record, **options: Any) -> list[Kind]:
    return [violation.kind for violation in check(history(*records, **options))]


A, B = got(0, "a", 1), got(5, "b", 2)
LATE_B: Final = got(20, "b", 2)  # after the deadline of A

PLANTED: Final[dict[str, tuple[Sequence[Record], dict[str, Any], list[Kind]]]] = {
    "two hold one unit": ([A, B], {}, [Kind.OVER_LIMIT]),
    "five units at a limit of four": ([got(0, "a", 1, 3), got(1, "b", 2, 2)], {"limit": 4}, [Kind.OVER_LIMIT]),
    "a limit that had been lowered": ([A, done("limit", 1, units=1), B], {"limit": 2}, [Kind.OVER_LIMIT]),
    "one request, two leases": ([A, got(1, "a", 2, lease="other")], {"limit": 2}, [Kind.DUPLICATE_GRANT]),
    "partial grants of more than was requested": (
        [got(0, "a", 1, 2, of=3), got(0, "a", 2, 2, of=3, after=1)],
        {"limit": 9},
        [Kind.DUPLICATE_GRANT],
    ),
    "two leases, one token": ([A, got(5, "b", 1, lease="other")], {"limit": 2}, [Kind.DUPLICATE_TOKEN]),
    "a token below an older one": ([got(0, "a", 7), got(5, "b", 6)], {"limit": 2}, [Kind.TOKEN_ORDER]),
    "a lease whose token changes": ([A, got(5, "a", 2, lease="l1")], {}, [Kind.TOKEN_ORDER]),
    "a write of a former holder": ([A, LATE_B, wrote(21, LATE_B), wrote(22, A)], {}, [Kind.STALE_WRITE]),
    "a holder whose write is refused": (
        [A, got(1, "b", 2, left=0), wrote(2, got(1, "b", 2)), wrote(3, A, accepted=False)],
        {},
        [Kind.HOLDER_FENCED],
    ),
    "one lease, two owners": ([A, got(5, "b", 1, lease="l1")], {"limit": 9}, [Kind.TWO_OWNERS]),
    "a stranger's renewal": ([A, command("renew", 1, A, owner="b")], {}, [Kind.TWO_OWNERS]),
    "a renewal under a former token": ([A, command("renew", 1, A, fencing_token=0)], {}, [Kind.STALE_TOKEN]),
    "a release under a former token": (
        [A, command("release", 1, A, fencing_token=0), got(2, "b", 2)],
        {},
        [Kind.STALE_TOKEN, Kind.OVER_LIMIT],
    ),
    "a grant after its cancel": (
        [acquire(0, "a", until=0.1, answer="waiting"), done("cancel", 1, "a"), got(2, "a", 1)],
        {},
        [Kind.GRANTED_CANCELLED],
    ),
    "a renewal after the loss was published": (
        [A, Ended(at=11, pool="p", lease_id="l1", reason="lost"), command("renew", 12, A)],
        {},
        [Kind.REVIVED],
    ),
    "a renewal after it was refused": (
        [A, command("renew", 11, A, "refused", "expired"), command("renew", 12, A)],
        {},
        [Kind.REVIVED],
    ),
    "a renewal after its release": ([A, command("release", 1, A), command("renew", 2, A)], {}, [Kind.REVIVED]),
    "a renewal after another's grant": ([A, LATE_B, command("renew", 21, A)], {}, [Kind.RENEWED_TAKEN]),
    "an end before the deadline": (
        [A, command("renew", 9, A), command("renew", 12, A, "refused", "lost")],
        {},
        [Kind.ENDED_EARLY],
    ),
    "a grant while drained": ([done("drain", 0), B], {}, [Kind.GRANTED_DRAINED]),
    "units that stay away": (
        [A, command("release", 1, A), acquire(60, "z", until=61, answer="waiting")],
        {"quiet_at": 50},
        [Kind.NEVER_FREE],
    ),
    "no answer although all is quiet": ([acquire(60, "z")], {"quiet_at": 50}, [Kind.NEVER_FREE]),
}

SOUND: Final[dict[str, tuple[Sequence[Record], dict[str, Any]]]] = {
    "one after the other": (
        [A, command("release", 1, A), B, wrote(2, A), wrote(5.5, B), wrote(6, A, accepted=False)],
        {},
    ),
    "beside each other": ([got(0, "a", 1, 2), got(1, "b", 2, 2)], {"limit": 4}),
    "a grant as a release begins": ([A, command("release", 4.9, A, after=3), B], {}),
    "a release without an answer": ([A, command("release", 1, A, "unknown", after=EVER), B], {}),
    "after the deadline": ([A, LATE_B, wrote(21, A), wrote(22, LATE_B)], {}),
    "within the skew of the deadline": ([A, got(9.9, "b", 2, after=0.05)], {"skew": 0.1}),
    "a renewal without an answer promises nothing": ([A, command("renew", 9, A, "unknown", after=EVER), LATE_B], {}),
    "a part given back": (
        [got(0, "a", 1, 3), command("release", 1, got(0, "a", 1, 3), units=2), got(2, "b", 2, 2)],
        {"limit": 3},
    ),
    "a grant requested again": ([acquire(0, "a"), got(1, "a", 1), got(2, "a", 1), command("renew", 3, A)], {}),
    "a request in parts": ([got(0, "a", 1, 1, of=3), got(0, "a", 2, 2, of=3, after=2)], {"limit": 3}),
    "a limit lowered below what is held": (
        [got(0, "a", 1, 3), done("limit", 1, units=1), command("release", 2, got(0, "a", 1, 3)), got(3, "b", 2)],
        {"limit": 3},
    ),
    "a limit that is being lowered": ([A, done("limit", 4.9, units=1, after=9), B], {"limit": 2}),
    "a limit that was perhaps raised": ([A, done("limit", 1, units=2, answer="unknown", after=EVER), B], {}),
    "a limit whose lowering was refused": ([A, done("limit", 1, units=1, answer="refused"), B], {"limit": 2}),
    "at once, in any order of tokens": ([got(0, "a", 2, after=3), got(1, "b", 1)], {"limit": 2}),
    "a cancel that came too late": ([A, done("cancel", 1, "a", answer="refused"), B], {}),
    "a cancelled request that stays cancelled": (
        [
            acquire(0, "a", until=1, answer="waiting"),
            done("cancel", 1, "a"),
            acquire(2, "a", until=3, answer="refused"),
        ],
        {},
    ),
    "a renewal while its loss is published": (
        [A, Ended(at=21, pool="p", lease_id="l1", reason="lost"), command("renew", 9, A, after=20, left=0)],
        {},
    ),
    "an end after the deadline": ([A, command("renew", 10.1, A, "refused", "lost")], {}),
    "an end that its holder requested": (
        [A, command("release", 1, A, "unknown", after=EVER), command("renew", 2, A, "refused", "released")],
        {},
    ),
    "a refused stranger": (
        [A, command("renew", 1, A, "refused", "wrong-owner", owner="b"), command("renew", 2, A)],
        {},
    ),
    "a refused token": ([A, command("release", 1, A, "refused", "stale-token", fencing_token=9), LATE_B], {}),
    "requested before a drain": ([done("drain", 5.02), B], {}),
    "requested again while drained": ([A, done("drain", 2), got(3, "a", 1), command("renew", 4, A)], {}),
    "granted after a drain": ([done("drain", 0), done("undrain", 4), B], {}),
    "replaced": ([A, got(1, "b", 2, replaces="l1"), command("renew", 2, A, "refused", "replaced")], {}),
    "everything granted again": (
        [A, command("release", 1, A), acquire(60, "z", until=61, answer="waiting"), got(62, "z", 2, 4)],
        {"limit": 4, "quiet_at": 50},
    ),
}


@pytest.mark.parametrize(("records", "options", "found"), PLANTED.values(), ids=list(PLANTED))
def test_planted(records: Sequence[Record], options: dict[str, Any], found: list[Kind]) -> None:
    """Each fault is found, and nothing else is."""
    assert kinds(*records, **options) == found


def test_every_kind_is_planted() -> None:
    assert {kind for _, _, found in PLANTED.values() for kind in found} == set(Kind)


@pytest.mark.parametrize(("records", "options"), SOUND.values(), ids=list(SOUND))
def test_sound(records: Sequence[Record], options: dict[str, Any]) -> None:
    """The behaviour of a sound broker is no violation."""
    assert check(history(*records, **options)) == []


def test_surely_held_time() -> None:
    """From the answer until the promise of the newest acknowledged call ends; renewals count from when they were sent,
    and units until their release was sent."""
    lease = got(0, "a", 1, 3, after=1)
    (holding,) = held(
        history(lease, command("renew", 8, lease, after=1), command("release", 9, lease, units=1), skew=0.5)
    )
    assert [holding.units_at(at) for at in (0.9, 1, 8.9, 9, 17.4, 17.5)] == [0, 3, 3, 2, 2, 0]


SOUND_RUN: Final = [
    acquire(0, "a"),
    A,
    command("renew", 1, A),
    wrote(1.5, A),
    command("release", 2, A),
    B,
    wrote(5.2, B),
]


def test_only_differences_of_time_count() -> None:
    assert kinds(*(moved(each, 1e6) for each in SOUND_RUN)) == []
    assert kinds(*(moved(each, 1e6) for each in [A, B])) == [Kind.OVER_LIMIT]


def moved(each: Any, by: float) -> Any:
    times = ("invoked", "returned") if isinstance(each, Call) else ("at",)
    return replace(each, **{name: getattr(each, name) + by for name in times})
