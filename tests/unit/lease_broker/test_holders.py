"""Holders of one lease: refusal, join, take-over and release, as laws over sequences of calls."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain import holders
from slipway_lease_broker.domain.holders import HOLDERS_MAX, Left, active, claim, is_in_use, left, with_token, without
from slipway_lease_broker.domain.ledger import Holding, Lease, LeasePool, State
from slipway_lease_broker.domain.sender import Sender

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL = LeasePool(id="p", limit_units=1, hold_seconds=1200, ttl_seconds=300, reserve_seconds=30)
LEASE = Lease(
    id="l",
    lease_pool_id="p",
    request_id="r",
    fencing_token=1,
    granted_units=1,
    units=1,
    state=State.CONFIRMED,
    granted_at=NOW,
    expires_at=NOW,
    hold_until=NOW,
    extended_at=NOW,
    holders={"a": Holding(since=NOW)},
)
NAMES = st.sampled_from(["a", "b", "c"])
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), NAMES, st.booleans()),
        st.tuples(st.just("renew"), NAMES, st.none()),
        st.tuples(st.just("release"), NAMES, st.none()),
        st.tuples(st.just("pass"), st.floats(0, 400), st.none()),
    ),
    max_size=30,
)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@given(CALLS)
def test_a_lease_is_held_by_those_who_were_told_so(calls: list[tuple[str, Any, Any]]) -> None:
    """A process that got the lease holds it until its release or another's take-over after its own silence; the newest
    token is held by one process, but for those that joined it. Its units return with the last of them."""
    lease, now, tokens, ended = LEASE, NOW, {"a": 1}, False
    for kind, who, join in calls:
        if ended:
            break
        if kind == "pass":
            now += timedelta(seconds=who)
        elif kind == "ask":
            sender, before = Sender(holder=who, join=join), lease
            silent = now - lease.extended_at > timedelta(seconds=225)
            if is_in_use(lease, POOL, sender, now):
                assert who not in active(lease)
                assert not silent
                assert not join
                continue
            lease = claim(lease, sender, now, new_token=lease.fencing_token + 1)
            assert who in active(lease)
            if lease.fencing_token != before.fencing_token:
                assert silent
                assert active(lease) == [who]
            elif who not in active(before):
                assert join
                assert set(active(lease)) == {*active(before), who}
            tokens[who] = lease.fencing_token
        elif tokens.get(who) == lease.fencing_token:
            if kind == "renew":
                lease = msgspec.structs.replace(lease, extended_at=now)
                continue
            names, effect = active(lease), left(lease, Sender(holder=who))
            assert (effect is Left.AGAIN) == (who not in names and len(lease.holders) > 1)
            if effect is Left.OTHERS:
                lease = without(lease, who)
                assert active(lease) == [name for name in names if name != who]
            elif effect is Left.LAST:
                assert names == [who]
                ended = True
        assert ended or active(lease)


@pytest.mark.parametrize(
    ("held", "sender", "expected"),
    [
        ({}, Sender(), Left.LAST),
        ({}, Sender(holder="b"), Left.LAST),
        ({"a": False}, Sender(), Left.LAST),
        ({"a": False}, Sender(holder="b"), Left.LAST),  # it has the fencing token
        ({"a": False, "b": False}, Sender(holder="a"), Left.OTHERS),
        ({"a": True, "b": False}, Sender(holder="a"), Left.AGAIN),
        ({"a": True, "b": False}, Sender(holder="b"), Left.LAST),
        ({"a": False, "b": False}, Sender(), Left.UNNAMED),
        ({"a": True, "b": False}, Sender(), Left.UNNAMED),
        ({"a": False, "b": False}, Sender(holder="c"), Left.UNNAMED),
        ({"": False, "b": False}, Sender(), Left.OTHERS),
        ({"": True, "b": False}, Sender(), Left.AGAIN),
        ({"a": False, "b": False}, Sender(admin=True), Left.LAST),
        ({"a": False, "b": False}, Sender(admin=True, holder="c"), Left.UNNAMED),
    ],
)
def test_the_last_release_counts(held: dict[str, bool], sender: Sender, expected: Left) -> None:
    lease = msgspec.structs.replace(LEASE, holders={name: Holding(since=NOW, left=gone) for name, gone in held.items()})
    assert left(lease, sender) is expected


def test_the_number_of_holders_is_bounded() -> None:
    lease = LEASE
    for number in range(1, HOLDERS_MAX):
        lease = claim(lease, Sender(holder=f"h{number}", join=True), NOW, new_token=2)
    assert len(lease.holders) == HOLDERS_MAX
    assert is_in_use(lease, POOL, Sender(holder="one more", join=True), NOW)
    assert not is_in_use(lease, POOL, Sender(holder="h7", join=True), NOW)
    for number in range(1, 3 * HOLDERS_MAX):  # one after the other, as the steps of a long job
        lease = without(lease, f"h{number}")
        following = Sender(holder=f"h{number + HOLDERS_MAX - 1}", join=True)
        assert not is_in_use(lease, POOL, following, NOW)
        lease = claim(lease, following, NOW, new_token=2)
        assert len(lease.holders) == len(active(lease)) == HOLDERS_MAX
    assert "a" in active(lease)


def test_a_holder_without_a_name_gets_one() -> None:
    """It keeps its token; who joins it is another holder."""
    unnamed = with_token(msgspec.structs.replace(LEASE, holders={}), "", "hash")
    assert claim(unnamed, Sender(holder="b"), at(9), new_token=2).holders == {
        "b": Holding(since=NOW, token_sha256="hash")
    }
    without_names = msgspec.structs.replace(LEASE, holders={})
    joined = claim(without_names, Sender(holder="b", join=True), at(9), new_token=2)
    assert joined.holders == {"": Holding(since=NOW), "b": Holding(since=at(9))}
    named = claim(joined, Sender(holder="c"), at(30), new_token=2)
    assert named.holders == {"c": Holding(since=NOW), "b": Holding(since=at(9))}
    assert (named.fencing_token, named.extended_at) == (1, NOW)


#   holders that have left, holders, number of those that left first which are forgotten when another joins
FORGOTTEN: Final = [(1, 1, 0), (2, HOLDERS_MAX - 2, 1), (1, HOLDERS_MAX - 2, 0), (3, HOLDERS_MAX - 1, 3)]


@pytest.mark.parametrize(("gone", "holding", "forgotten"), FORGOTTEN)
def test_holders_that_have_left_are_remembered_while_there_is_room(gone: int, holding: int, forgotten: int) -> None:
    """So that one that releases again is known."""
    holders_ = {f"h{number}": Holding(since=NOW, left=number < gone) for number in range(gone + holding)}
    joined = claim(msgspec.structs.replace(LEASE, holders=holders_), Sender(holder="new", join=True), NOW, new_token=2)
    assert [*joined.holders] == [*holders_, "new"][forgotten:]


@pytest.mark.parametrize(
    ("names", "name", "expected"),
    [
        ([], None, ""),
        ([], "a", ""),
        (["a"], None, "a"),
        (["a"], "a", "a"),
        (["a"], "b", None),
        (["a", "b"], None, None),
        (["a", "b"], "b", "b"),
        (["", "b"], "c", ""),
    ],
)
def test_the_holder_that_a_token_is_for(names: list[str], name: str | None, expected: str | None) -> None:
    """Of several the one that is named; one without a name may be any process."""
    lease = msgspec.structs.replace(LEASE, holders={each: Holding(since=NOW) for each in names})
    assert holders.token_holder(lease, name) == expected


@pytest.mark.parametrize(("ended", "seconds", "expected"), [(None, 10**7, "a"), (60, 86_460, "a"), (60, 86_461, None)])
def test_a_token_ends_a_day_after_its_lease(ended: float | None, seconds: float, expected: str | None) -> None:
    """A late release comes after the end of the hold."""
    lease = with_token(LEASE, "a", "hash")
    lease = msgspec.structs.replace(lease, ended_at=None if ended is None else at(ended))
    assert holders.holder_of(lease, "hash", at(seconds)) == expected
    assert holders.holder_of(lease, "another", at(seconds)) is None
