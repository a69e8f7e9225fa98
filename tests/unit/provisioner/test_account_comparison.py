"""What a declaration writes over stored accounts, and the danger of moving one."""

from typing import Final

import pytest
from msgspec.structs import asdict, replace

from slipway_api.http.declaration import Change
from slipway_common.base.audited import AuditedChange, AuditedKind
from slipway_common.declaration.changes import OwnedByAnother
from slipway_provisioner.domain import comparison
from slipway_provisioner.domain.comparison import AccountRow, Comparison, Snapshot, StoredAccount, Writes
from slipway_provisioner.domain.declaration import Request
from tests.unit.provisioner.test_comparison import NOW, REQUEST, dangers

ACCOUNT: Final = AccountRow(
    id="a",
    provider="simulated",
    region="r",
    identity="i",
    lease_pool_id="l",
    credential={},
    request_timeout_seconds=None,
    accepted_timeout_seconds=None,
    limits={},
    settings={"entry": "c", "key": "k"},
    owner="a.yaml",
    spec={"id": "a", "region": "r"},
    spec_digest="1",
)
MOVED: Final = replace(ACCOUNT, region="s", spec={"id": "a", "region": "s"})
MOVES: Final = (
    "its 2 workers would be looked up there, count as gone and never be terminated; stop them first, or declare a new "
    "account"
)


def account_writes(
    wanted: AccountRow, before: AccountRow | None, *, gone: bool = False, machines: int = 0, request: Request = REQUEST
) -> Writes:
    rows = {} if before is None else {"a": StoredAccount(**asdict(before), removed=gone)}
    seen = Snapshot(accounts=rows, pools={}, names={}, revisions={})
    found = Comparison(request, seen, NOW, {}, {"a": machines})
    found.account(wanted, ())
    return found.writes


#         before, removed, wanted, machines → result, detail, dangers
ACCOUNTS: list[tuple[AccountRow | None, bool, AccountRow, int, str, str, list[str]]] = [
    (None, False, ACCOUNT, 0, "created", "", []),
    (ACCOUNT, False, ACCOUNT, 0, "", "", []),
    (ACCOUNT, False, MOVED, 0, "updated", "region: r → s", []),
    (ACCOUNT, False, MOVED, 2, "updated", "region: r → s", [f"account a moves (region: r → s): {MOVES}"]),
    (ACCOUNT, True, ACCOUNT, 0, "reactivated", "region: none → r, owner: none → a.yaml", []),
    (replace(ACCOUNT, owner=""), False, ACCOUNT, 0, "updated", "owner: none → a.yaml", []),
    (
        ACCOUNT,
        False,
        replace(ACCOUNT, settings={"entry": "d", "key": "k"}),
        2,
        "",
        "",
        [f"account a moves (settings.entry): {MOVES}"],
    ),
    (ACCOUNT, False, replace(ACCOUNT, settings={"entry": "c", "key": "l"}), 2, "", "", []),
    (
        ACCOUNT,
        False,
        replace(ACCOUNT, provider="other", identity="j"),
        2,
        "",
        "",
        [f"account a moves (provider: simulated → other, identity: i → j): {MOVES}"],
    ),
]


@pytest.mark.parametrize(("before", "gone", "wanted", "machines", "result", "detail", "expected"), ACCOUNTS)
def test_accounts(
    before: AccountRow | None,
    gone: bool,
    wanted: AccountRow,
    machines: int,
    result: str,
    detail: str,
    expected: list[str],
) -> None:
    """Written always, since a secret may have changed; a change is what people see. One that moves loses machines."""
    writes = account_writes(wanted, before, gone=gone, machines=machines)
    assert [(made.kind, made.id, made.result, made.detail) for made in writes.changes] == (
        [("account", "a", result, detail)] if result else []
    )
    assert (writes.new_accounts, writes.accounts) == (([wanted], []) if before is None else ([], [wanted]))
    assert dangers(writes) == expected
    known = StoredAccount(**asdict(before), removed=gone) if before is not None else None
    moves = wanted is MOVED or wanted.settings["entry"] == "d" or wanted.identity == "j"
    assert comparison.moves(known, wanted) == (before is not None and moves)


def test_each_account_that_moves_is_a_danger() -> None:
    """Of those that have machines, as far as they are counted."""
    rows = {id_: StoredAccount(**asdict(replace(ACCOUNT, id=id_)), removed=False) for id_ in "abc"}
    seen = Snapshot(accounts=rows, pools={}, names={}, revisions={})
    found = Comparison(REQUEST, seen, NOW, {}, {"a": 1, "b": 2})
    for id_ in "abc":
        found.account(replace(MOVED, id=id_), ())
    assert [str(danger).partition(" (")[0] for danger in found.writes.dangers] == ["account a moves", "account b moves"]


def test_an_account_of_another_owner() -> None:
    theirs = replace(ACCOUNT, owner="b.yaml")
    with pytest.raises(OwnedByAnother, match=r"account a belongs to b\.yaml"):
        account_writes(ACCOUNT, theirs)
    (made,) = account_writes(ACCOUNT, theirs, request=replace(REQUEST, adopt=True)).changes
    assert (made.result, made.detail) == ("updated", "owner: b.yaml → a.yaml")
    assert account_writes(ACCOUNT, theirs, gone=True).changes[0].result == "reactivated"


def test_a_removed_account_is_audited_with_what_it_was() -> None:
    seen = Snapshot(accounts={"a": StoredAccount(**asdict(ACCOUNT), removed=False)}, pools={}, names={}, revisions={})
    found = Comparison(REQUEST, seen, NOW, {})
    found.remove_account("a")
    assert found.writes.removed_accounts == ["a"]
    assert found.writes.changes == [Change(kind="account", id="a", result="archived", detail="")]
    before = {"region": "r", "owner": "a.yaml"}
    assert found.writes.audit == [
        AuditedChange(kind=AuditedKind.ACCOUNT, subject_id="a", result="archived", before=before, after=None)
    ]
