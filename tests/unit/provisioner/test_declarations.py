"""Comparison of declared entries with stored rows, their owners, and ids of revisions."""

import hashlib
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.base.revisions import hash_of, name_of
from slipway_common.declaration.changes import ForeignOwner, OwnedByAnother
from slipway_common.declaration.strict_yaml import Invalid
from slipway_provisioner.apply.reading import DeclaredReader, spec_digest
from slipway_provisioner.domain import ownership, revisions
from slipway_provisioner.domain.comparison import Comparison, Snapshot, StoredName, StoredPool, Writes
from slipway_provisioner.domain.declaration import (
    Calls,
    DeclarationRefused,
    Grants,
    Index,
    Known,
    Owners,
    Request,
    Times,
)
from slipway_provisioner.domain.revisions import StoredRevision
from tests.support.cloud import Cloud

TIMES: Final = Times(call_timeout_seconds=5, accepted_timeout_seconds=2400, clock_skew_seconds=5)
NOTHING: Final = Index(accounts={}, pools={}, regions={})
EMPTY: Final = Snapshot(accounts={}, pools={}, names={}, revisions={})
REQUEST: Final = Request(by="ann")
DIGESTS: Final = st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)

ACTIVE: Final[dict[str, Any]] = {
    "state": "active",
    "replaced_by": "",
    "proven": False,
    "drain_terminate": False,
    "drain_until": None,
}


def pool(*names: str, **changes: Any) -> dict[str, Any]:
    usual = {"account": "a", "zone": "z", "instance_type": "m5.large", "image": "i-1"}
    configs = [usual | {"name": name} | changes.pop(name, {}) for name in names]
    return {"id": "linux", "max_capacity": 10, "launch_configs": configs} | changes


def reader(index: Index = NOTHING) -> DeclaredReader:
    accepting = Cloud()
    accepting.accepts_calls = True
    found = DeclaredReader(index, providers={"simulated": Cloud(), "accepting": accepting}, times=TIMES)
    found.document("a.yaml", ["worker_pools"])
    return found


def compared(body: dict[str, Any], seen: Snapshot = EMPTY, request: Request = REQUEST) -> Writes:
    reading = reader()
    reading.entry("worker_pools", msgspec.json.encode(body))
    found = Comparison(request, seen, datetime(2026, 1, 1, tzinfo=UTC), {})
    found.pool(reading.finished().pools["linux"].rows({"a": "here"}, mode="enforce"), ())
    return found.writes


def stored(writes: Writes) -> Snapshot:
    """Rows as they are after the writes of new objects."""
    rows = {row.id: StoredPool(**msgspec.structs.asdict(row), deleted=False, revision=1) for row in writes.new_pools}
    names = {
        row.name: StoredName(**msgspec.structs.asdict(row), paused=False, declared=True) for row in writes.new_names
    }
    found: dict[str, list[StoredRevision]] = {}
    for row in writes.new_revisions:
        values = msgspec.structs.asdict(row)
        found.setdefault(row.name, []).append(StoredRevision(**values, **ACTIVE))
    return Snapshot(accounts={}, pools=rows, names=names, revisions=found)


def results(writes: Writes) -> dict[str, str]:
    return {change.id: change.result for change in writes.changes}


@given(st.lists(DIGESTS, unique=True, max_size=8))
def test_ids_of_revisions(digests: list[str]) -> None:
    """Two bodies of one name never have one id, and a body keeps its id."""
    known: dict[str, str] = {}
    for digest in digests:
        known[revisions.revision_id("linux", digest, known)] = digest
    assert sorted(known.values()) == sorted(digests)
    for id_, digest in known.items():
        assert revisions.revision_id("linux", digest, known) == id_
        assert (name_of(id_), hash_of(id_)) == ("linux", digest[: len(id_) - len("linux@")])


def test_ids_with_the_same_digits() -> None:
    """The later revision gets more digits of its hash."""
    first, second = "abcdef" + "0" * 58, "abcdef" + "1" * 58
    assert revisions.revision_id("a", first, {}) == "a@abcdef"
    assert revisions.revision_id("a", second, {"a@abcdef": first}) == "a@abcdef1"
    assert revisions.revision_id("a", first, {"a@abcdef": first}) == "a@abcdef"


def test_what_is_stored_alike_changes_nothing() -> None:
    """A comparison with the rows that a first one has written is empty."""
    body = pool("one", "two", two={"base_weight": 2.0, "profile": "spot"})
    first = compared(body)
    assert results(first) == {"linux": "created", "one": "created", "two": "created"}
    again = compared(body, stored(first))
    assert again.empty
    assert (again.new_revisions, again.current, again.drains, again.health) == ([], [], [], [])


def test_the_body_makes_a_revision_and_the_rest_does_not() -> None:
    """Weights, maxima and the profile are of the name; the image and the settings are of the revision."""
    seen = stored(compared(pool("one")))
    of_name: list[dict[str, Any]] = [
        {"base_weight": 2.0},
        {"price_factor": 2.0},
        {"max_capacity": 3},
        {"profile": "spot"},
    ]
    for changes in of_name:
        changed = compared(pool("one", one=changes), seen)
        assert (results(changed), changed.new_revisions) == ({"one": "updated"}, []), changes
    of_body: list[dict[str, Any]] = [{"image": "i-2"}, {"zone": "y"}, {"settings": {"disk_gb": 40}}]
    for changes in of_body:
        changed = compared(pool("one", one=changes), seen)
        assert (results(changed), len(changed.new_revisions)) == ({"one": "updated"}, 1), changes


def test_differences_of_settings() -> None:
    """Only the keys that differ are shown, without their values."""
    before = {"disk_gb": 40, "key": {"a": "k", "b": "l"}, "old": "x"}
    seen = stored(compared(pool("one", one={"settings": before})))
    changed = {"settings": {"disk_gb": 80, "key": {"b": "l", "a": "k"}, "new": {"password": "y"}}}
    (change,) = compared(pool("one", one=changed), seen).changes
    assert change.detail.endswith(", settings.disk_gb: changed, settings.new: added, settings.old: removed")


TEXTS: Final = st.text(alphabet="xyz", max_size=3)
SETTINGS: Final = st.dictionaries(
    st.sampled_from(["a", "b"]), st.one_of(TEXTS, st.dictionaries(st.sampled_from(["c"]), TEXTS))
)


@given(st.lists(SETTINGS, min_size=2, max_size=2, unique_by=lambda some: msgspec.json.encode(some, order="sorted")))
def test_digests_of_two_contents_differ(settings: list[dict[str, Any]]) -> None:
    """A confirmation of one content confirms no other one, although neither is shown."""
    seen = stored(compared(pool("one", one={"settings": {"disk_gb": 40}})))
    first, second = (compared(pool("one", one={"settings": some}), seen) for some in settings)
    assert first.digest != second.digest
    assert first.audit[0].after != second.audit[0].after


def test_owners() -> None:
    """An object of another owner is refused, unless it is adopted, nobody's, or given up in the same request."""
    with pytest.raises(OwnedByAnother, match=r"worker pool p belongs to b\.yaml and is also declared by a\.yaml"):
        ownership.check("worker pool", "p", "b.yaml", "a.yaml", REQUEST, ())
    for owner, request, released in (
        ("", REQUEST, ()),
        ("a.yaml", REQUEST, ()),
        ("b.yaml", Request(by="ann", adopt=True), ()),
        ("b.yaml", REQUEST, ("b.yaml",)),
    ):
        ownership.check("worker pool", "p", owner, "a.yaml", request, released)


def test_removed_entries() -> None:
    """An owner removes its own, prune removes that of all; a section that nobody declares is left alone."""
    rows = {"a1": Known("a", "1"), "a2": Known("a", "1"), "b1": Known("b", "1"), "n": Known("", "1")}
    mine = Owners(documents=frozenset({"a"}), entries={"a1": "a"})
    assert list(ownership.removed(mine, rows, REQUEST)) == ["a2"]
    assert list(ownership.removed(mine, rows, Request(by="ann", prune=True))) == ["a2", "b1", "n"]
    absent = Owners(documents=frozenset(), entries={})
    assert list(ownership.removed(absent, rows, Request(by="ann", prune=True))) == []


def test_an_index_has_two_sections() -> None:
    index = Index(accounts={"a": Known("x", "1")}, pools={"p": Known("y", "2")}, regions={})
    assert [index.of(section) for section in ("accounts", "worker_pools")] == [index.accounts, index.pools]


def test_a_caller_changes_what_its_owners_have() -> None:
    """Neither takes another owner's object over nor removes it, whatever the request says."""
    bound = Request(by="ann", adopt=True, prune=True, owners=("a*",))
    ownership.check("worker pool", "p", "a.yaml", "a.yaml", bound, ())
    with pytest.raises(ForeignOwner) as refused:
        ownership.check("worker pool", "p", "b.yaml", "a.yaml", bound, ("b.yaml",))
    assert str(refused.value) == str(ForeignOwner("b.yaml", "worker pool p"))
    mine = Owners(documents=frozenset({"a"}), entries={})
    assert list(ownership.removed(mine, {"a1": Known("a", "1")}, bound)) == ["a1"]
    with pytest.raises(ForeignOwner) as refused:
        list(ownership.removed(mine, {"b1": Known("b", "1")}, bound))
    assert str(refused.value) == str(ForeignOwner("b", "b1"))


GRANTS: Final = Grants(id="l", reserve_seconds=20.0, hold_seconds=2400.0)
FITS: Final = (
    "hold_seconds 2400 must be at least 3600, the accepted_timeout_seconds of account a, or an accepted call of "
    "account a could outlive its lease; write hold_seconds: 3600, or a shorter accepted_timeout_seconds of the account"
)
#    reserve seconds of the pool, timeouts of an account's calls, the problem
PROBLEMS: Final[list[tuple[float, float | None, float | None, str]]] = [
    (15.5, None, None, ""),
    (15.5, 5.0, 2400.0, ""),
    (
        15.0,
        4.0,
        None,
        "reserve_seconds 15 must be above 15, which is call_timeout_seconds 5 of the provisioner + 2 × "
        "clock_skew_seconds 5 of the provisioner, or no call could start before a grant ends; write "
        "reserve_seconds: 37.5",
    ),
    (
        15.5,
        6.0,
        None,
        "reserve_seconds 15.5 must be above 16, which is request_timeout_seconds 6 of account a + 2 × "
        "clock_skew_seconds 5 of the provisioner, or no call could start before a grant ends; write "
        "reserve_seconds: 40",
    ),
    (15.5, None, 3600.0, FITS),
]


@pytest.mark.parametrize(("reserve", "request_timeout", "accepted_timeout", "problem"), PROBLEMS)
def test_times_of_grants_and_calls(
    reserve: float, request_timeout: float | None, accepted_timeout: float | None, problem: str
) -> None:
    calls = Calls(
        id="a",
        provider="accepting",
        lease_pool_id="l",
        request_timeout_seconds=request_timeout,
        accepted_timeout_seconds=accepted_timeout,
    )
    grants = msgspec.structs.replace(GRANTS, reserve_seconds=reserve)
    assert TIMES.problem(grants, [calls], {"accepting"}) == (f"lease pool l: {problem}" if problem else "")
    if problem == FITS:
        assert TIMES.problem(grants, [calls], ()) == "", "its provider accepts no calls"


def test_reading_skips_what_is_stored_alike() -> None:
    """Neither the order of fields nor written defaults matter; another owner's entry is compared."""
    body = pool("one")
    first = reader()
    first.entry("worker_pools", msgspec.json.encode(body))
    spec = first.finished().pools["linux"].spec
    digest = hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()
    assert spec_digest(dict(reversed(spec.items()))) == digest
    for owner, skipped in (("a.yaml", True), ("b.yaml", False)):
        for given_body in (body, spec, dict(reversed(spec.items()))):
            again = reader(Index(accounts={}, pools={"linux": Known(owner, digest)}, regions={}))
            again.entry("worker_pools", msgspec.json.encode(given_body))
            assert (again.finished().pools == {}) is skipped


def test_reading_refuses() -> None:
    """An account that no provider takes, a lease pool whose grants no call can use, an entry outside a document."""
    account = {"id": "a", "region": "r", "credential": "none", "identity": "i", "lease_pool": "l"}
    with pytest.raises(DeclarationRefused, match="unknown provider fog; use one of accepting, simulated"):
        reader().entry("accounts", msgspec.json.encode(account | {"provider": "fog"}))
    lease_pool = {"id": "l", "limit": 1, "reserve_seconds": 15}
    with pytest.raises(DeclarationRefused, match="reserve_seconds 15 must be above 15"):
        read(lease_pool)
    with pytest.raises(Invalid, match="no document has begun"):
        DeclaredReader(NOTHING, providers={}, times=TIMES).entry("accounts", b"{}")
    with pytest.raises(Invalid) as refused:
        read_invalid(reader(), 1000)
    assert len(refused.value.problems) < 200


def read(lease_pool: dict[str, Any], *accounts: dict[str, Any], index: Index = NOTHING) -> None:
    reading = reader(index)
    for account in accounts:
        reading.entry("accounts", msgspec.json.encode(account))
    reading.entry("lease_pools", msgspec.json.encode(lease_pool))
    reading.finished()


def test_grants_must_outlast_the_calls_of_their_accounts() -> None:
    """By the longest timeout of the accounts that are declared along, or stored."""
    account: dict[str, Any] = {"id": "a", "provider": "simulated", "region": "r", "credential": "none"}
    account |= {"identity": "i", "lease_pool": "l"}
    usual = {"id": "l", "limit": 1}
    stored = Calls(
        id="a", provider="simulated", lease_pool_id="l", request_timeout_seconds=200.0, accepted_timeout_seconds=None
    )
    index = Index(accounts={}, pools={}, regions={}, calls=[stored])
    words = "reserve_seconds 180 must be above 210, which is request_timeout_seconds 200 of account a"
    with pytest.raises(DeclarationRefused, match=words):
        read(usual, account | {"request_timeout_seconds": 200.0})
    with pytest.raises(DeclarationRefused, match=words):
        read(usual, index=index)
    read(usual, account | {"request_timeout_seconds": 100.0}, index=index)
    read(usual, account | {"lease_pool": "other", "request_timeout_seconds": 200.0})


def test_leases_must_outlast_accepted_calls() -> None:
    """By the timeout in force: that of the account, declared along or stored, or of the service. Where the provider
    accepts no calls, there is none."""
    account: dict[str, Any] = {"id": "a", "provider": "accepting", "region": "r", "credential": "none"}
    account |= {"identity": "i", "lease_pool": "l"}
    usual = {"id": "l", "limit": 1}
    stored = Calls(
        id="a", provider="accepting", lease_pool_id="l", request_timeout_seconds=None, accepted_timeout_seconds=None
    )
    index = Index(accounts={}, pools={}, regions={}, calls=[stored])
    of_service = "hold_seconds 1200 must be at least 2400, the accepted_timeout_seconds of the provisioner"
    with pytest.raises(DeclarationRefused, match=of_service):
        read(usual, account)
    with pytest.raises(DeclarationRefused, match=of_service):
        read(usual, index=index)
    with pytest.raises(DeclarationRefused, match="at least 3600, the accepted_timeout_seconds of account a"):
        read(usual, account | {"accepted_timeout_seconds": 3600.0})
    read(usual | {"hold_seconds": 3600.0}, account | {"accepted_timeout_seconds": 3600.0})
    read(usual, account | {"accepted_timeout_seconds": 1200.0}, index=index)
    read(usual, account | {"provider": "simulated"})


def read_invalid(reading: DeclaredReader, count: int) -> None:
    for _ in range(count):
        reading.entry("worker_pools", b"{}")
