"""What a declaration writes over stored accounts, pools and revisions, and the dangers among its changes."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from msgspec.structs import asdict, replace

from slipway_common.base.audited import AuditedChange, AuditedKind
from slipway_common.declaration.changes import OwnedByAnother
from slipway_provisioner.domain import guard
from slipway_provisioner.domain.comparison import (
    Comparison,
    DeclaredConfig,
    DeclaredPool,
    Fallback,
    Health,
    NameRow,
    PoolRow,
    Snapshot,
    StoredName,
    StoredPool,
    Writes,
)
from slipway_provisioner.domain.declaration import DeclarationRefused, Request
from slipway_provisioner.domain.revisions import HEALTH_SETTINGS, PROVIDER_KEYS, StoredRevision
from slipway_provisioner.domain.roll_out import Drain

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
REQUEST: Final = Request(by="ann", reason="ticket 7")
POOL: Final = PoolRow(
    id="linux",
    min_capacity=0,
    max_capacity=10,
    scaling_ratio="1",
    mode="enforce",
    profile="usual",
    boot_evidence="registration",
    claim_evidence="claim",
    on_bad_image="freeze",
    freeze_after=3,
    limits={},
    owner="a.yaml",
    spec={"id": "linux"},
    spec_digest="1",
)
HEALTH: Final = {name: getattr(POOL, name) for name in HEALTH_SETTINGS}


def config(name: str = "one", image: str = "1", **changes: Any) -> DeclaredConfig:
    """A launch config; the digest of its body is that of its image."""
    usual: dict[str, Any] = HEALTH | {
        "name": name,
        "digest": image * 64,
        "pool_id": "linux",
        "account_id": "a",
        "region": "r",
        "zone": "z",
        "instance_type": "m5.large",
        "image_revision": f"ami-{image}",
        "settings": {"disk_gb": 40},
        "user_data": "",
        "base_weight": 1.0,
        "price_factor": 1.0,
        "max_capacity": None,
        "deadlines": {"boot": 60.0},
        "task_slots": 1,
        "own_profile": False,
    }
    return DeclaredConfig(**(usual | changes))


def compared(
    configs: Sequence[DeclaredConfig],
    seen: Snapshot | None = None,
    *,
    row: PoolRow = POOL,
    request: Request = REQUEST,
    workers: Mapping[str, int] = {},
) -> Writes:
    found = Comparison(request, seen or Snapshot(accounts={}, pools={}, names={}, revisions={}), NOW, workers)
    found.pool(DeclaredPool(row=row, configs=tuple(configs)), ())
    return found.writes


def stored(*configs: DeclaredConfig, deleted: bool = False, paused: Sequence[str] = (), **state: Any) -> Snapshot:
    """The rows of a pool with these launch configs, each with one revision."""
    writes = compared(configs)
    usual: dict[str, Any] = {"state": "active", "replaced_by": "", "proven": True, "drain_terminate": False}
    rows = [StoredRevision(**asdict(row), **({"drain_until": None} | usual | state)) for row in writes.new_revisions]
    return Snapshot(
        accounts={},
        pools={"linux": StoredPool(**asdict(POOL), deleted=deleted, revision=1)},
        names={
            row.name: StoredName(**asdict(row), paused=row.name in paused, declared=not deleted)
            for row in writes.new_names
        },
        revisions={name: [row for row in rows if row.name == name] for name in {row.name for row in rows}},
    )


def removed(seen: Snapshot, workers: Mapping[str, int] = {}) -> Writes:
    found = Comparison(REQUEST, seen, NOW, workers)
    found.remove_pool("linux")
    return found.writes


def drain(id_: str, reason: str, **changes: Any) -> Drain:
    usual: dict[str, Any] = {"replaced_by": "natural", "drain_seconds": None, "drain_terminate": False}
    return Drain(id=id_, state_reason=f"{reason}: ticket 7", state_by="ann", **(usual | changes))


def dangers(writes: Writes) -> list[str]:
    return [str(danger) for danger in writes.dangers]


# Pools


def test_a_removed_pool_drains_its_launch_configs() -> None:
    """Its history ends with what was removed. An archived revision has nothing to drain."""
    seen = stored(config("one"), config("two"))
    seen.revisions["two"][:] = [replace(seen.revisions["two"][0], state="archived")]  # type: ignore[index]
    writes = removed(seen, {"one@111111": 2})
    assert (writes.removed_pools, writes.removed_names) == (["linux"], ["one", "two"])
    assert writes.drains == [drain("one@111111", "the launch config is no longer declared")]
    assert [(made.kind, made.id, made.result) for made in writes.changes] == [
        ("worker pool", "linux", "archived"),
        ("launch config", "one", "archived"),
        ("launch config", "two", "archived"),
    ]
    assert dangers(writes) == ["worker pool linux is removed: 2 workers drain"]
    (history,) = writes.history
    assert (history.pool_id, history.owner, history.revisions, history.spec, history.spec_digest) == (
        "linux",
        "a.yaml",
        {},
        {},
        "",
    )
    assert [made["id"] for made in history.changes] == ["linux", "one", "two"]
    shown = {name: value for name, value in asdict(POOL).items() if name not in ("id", "spec", "spec_digest")}
    assert writes.audit[0] == AuditedChange(
        kind=AuditedKind.POOL, subject_id="linux", result="archived", before=shown, after=None
    )


def test_a_pool_without_launch_configs_is_removed() -> None:
    writes = removed(stored())
    assert (writes.removed_pools, writes.removed_names, writes.drains) == (["linux"], [], [])
    assert dangers(writes) == ["worker pool linux is removed"]


@pytest.mark.parametrize(
    ("kept", "paused", "workers", "expected"),
    [
        (["one", "two", "three"], [], {}, []),
        (["one", "two"], [], {}, ["worker pool linux: archives 1 of 3 active launch configs"]),
        (["one"], [], {"two@111111": 1}, ["worker pool linux: archives 2 of 3 active launch configs: 1 worker drains"]),
        (["one"], ["two", "three"], {}, []),
        ([], [], {}, ["worker pool linux: no launch config stays active"]),
        (["new"], [], {}, ["worker pool linux: archives 3 of 3 active launch configs"]),
    ],
)
def test_launch_configs_that_are_left_out(
    kept: list[str], paused: list[str], workers: dict[str, int], expected: list[str]
) -> None:
    """They are archived, and drain. Archiving most of those that launch is a danger."""
    seen = stored(config("one"), config("two"), config("three"), paused=paused)
    writes = compared([config(name) for name in kept], seen, workers=workers)
    gone = [name for name in ("one", "two", "three") if name not in kept]
    assert writes.removed_names == gone
    assert [each.id for each in writes.drains] == [f"{name}@111111" for name in gone]
    assert dangers(writes) == expected
    archived = {made.subject_id: made.before or {} for made in writes.audit if made.result == "archived"}
    assert {id_: before.get("paused", False) for id_, before in archived.items()} == {
        id_: id_ in paused for id_ in gone
    }
    assert all(before["image_revision"] == "ami-1" for before in archived.values())


def test_a_launch_config_that_is_left_out_now_ends_those_that_drain_too() -> None:
    """A reason is not needed. By another strategy they keep what they have of their drain."""
    request = replace(END_OTHERS, reason="")
    for strategy, drains in ((REQUEST, []), (request, [OLD]), (replace(request, strategy="natural"), [])):
        writes = compared([config("two")], stored(config(), config("two"), state="draining"), request=strategy)
        assert [(each.id, each.state_reason) for each in writes.drains] == [
            (id_, "the launch config is no longer declared") for id_ in drains
        ]


def test_kept_revisions_have_the_health_settings_of_their_name() -> None:
    """Not archived ones, unless they are declared again."""
    health: dict[str, Any] = HEALTH | {"profile": "spot"}
    for state, ids in (("active", [OLD, NEW]), ("archived", [OLD])):
        seen = stored(config())
        seen.revisions["one"].append(stored(config(image="2"), state=state).revisions["one"][0])  # type: ignore[attr-defined]
        writes = compared([config(profile="spot", own_profile=True)], seen)
        assert writes.health == [Health(id=id_, **health) for id_ in ids]


def test_pools_of_one_declaration() -> None:
    """The history of each has its own changes, and the audit all fields of what is new."""
    found = Comparison(REQUEST, Snapshot(accounts={}, pools={}, names={}, revisions={}), NOW, {})
    for id_ in ("linux", "windows"):
        configs = (config(f"of-{id_}", pool_id=id_),)
        found.pool(DeclaredPool(row=replace(POOL, id=id_), configs=configs), ())
    assert [(each.pool_id, each.owner, each.spec, each.spec_digest) for each in found.writes.history] == [
        (id_, "a.yaml", {"id": "linux"}, "1") for id_ in ("linux", "windows")
    ]
    assert [[made["id"] for made in each.changes] for each in found.writes.history] == [
        ["linux", "of-linux"],
        ["windows", "of-windows"],
    ]
    of_config = found.writes.audit[1].after
    assert of_config is not None
    assert of_config.items() >= HEALTH.items()


def test_a_pool_of_another_owner() -> None:
    with pytest.raises(OwnedByAnother, match=r"worker pool linux belongs to a\.yaml and is also declared by b\.yaml"):
        compared([config()], stored(config()), row=replace(POOL, owner="b.yaml"))


def test_a_pool_without_launch_configs_changes() -> None:
    (made,) = compared([], stored(), row=replace(POOL, max_capacity=11)).changes
    assert (made.result, made.detail) == ("updated", "max_capacity: 10 → 11")


def test_a_pool_that_is_declared_again() -> None:
    """Its revisions launch again; nothing is noted as replaced, since it had nothing to lose."""
    writes = compared([config("one")], stored(config("one"), deleted=True, state="archived"))
    assert [(made.id, made.result) for made in writes.changes] == [("linux", "reactivated"), ("one", "reactivated")]
    assert (writes.new_revisions, writes.current, writes.renewed) == ([], ["one@111111"], {"one@111111"})
    assert (writes.replacements, writes.used_accounts, [row.id for row in writes.pools]) == ([], {"a"}, ["linux"])


def test_a_pool_whose_spec_alone_differs_is_written_without_a_change() -> None:
    writes = compared([config("one")], stored(config("one")), row=replace(POOL, spec_digest="2"))
    assert (writes.changes, writes.history, [row.spec_digest for row in writes.pools]) == ([], [], ["2"])


def test_a_health_setting_of_the_pool_is_that_of_its_revisions() -> None:
    """It is listed with the pool alone, but for a profile that a launch config has of its own. Archived revisions keep
    theirs."""
    changed: dict[str, Any] = {"profile": "spot", "freeze_after": 5}
    row = replace(POOL, **changed)
    configs = [config("one", **changed), config("two", **(changed | {"profile": "own", "own_profile": True}))]
    writes = compared(configs, stored(config("one"), config("two")), row=row)
    assert {made.id: made.detail for made in writes.changes} == {
        "linux": "profile: usual → spot, freeze_after: 3 → 5",
        "two": "profile: usual → own",
    }
    health: dict[str, Any] = HEALTH | changed
    assert writes.health == [
        Health(id="one@111111", **health),
        Health(id="two@111111", **(health | {"profile": "own"})),
    ]
    assert (
        compared(configs, stored(config("one"), config("two"), state="archived"), row=row).health[0].id == "one@111111"
    )


# Launch configs

OLD: Final = "one@111111"
NEW: Final = "one@222222"


@pytest.mark.parametrize(
    ("request_", "proven", "fallback", "drains"),
    [
        (REQUEST, True, Fallback(id=OLD, replaced_by="natural", drain_seconds=None, drain_terminate=False), []),
        (
            replace(REQUEST, drain_seconds=9.0),
            True,
            Fallback(id=OLD, replaced_by="natural", drain_seconds=9.0, drain_terminate=False),
            [],
        ),
        (
            replace(REQUEST, strategy="now", drain_seconds=9.0),
            True,
            None,
            [drain(OLD, f"replaced by {NEW}", replaced_by="now", drain_seconds=9.0)],
        ),
        (
            replace(REQUEST, strategy="now", terminate=True),
            True,
            None,
            [drain(OLD, f"replaced by {NEW}", replaced_by="now", drain_terminate=True)],
        ),
        (replace(REQUEST, strategy="rollback"), True, None, [drain(OLD, f"replaced by {NEW}", replaced_by="rollback")]),
    ],
)
def test_a_new_body_replaces_the_current_revision(
    request_: Request, proven: bool, fallback: Fallback | None, drains: list[Drain]
) -> None:
    """Which becomes the fallback until the new one is proven, or drains, by the strategy."""
    writes = compared([config(image="2")], stored(config(), proven=proven), request=request_)
    assert [row.id for row in writes.new_revisions] == [NEW]
    assert (writes.fallbacks, writes.drains) == ([fallback] if fallback is not None else [], drains)
    assert writes.used_accounts == {"a"}
    (made,) = writes.replacements
    assert made.replaced is not None
    assert (made.target.id, made.replaced.id) == (NEW, OLD)
    assert (made.fallback is not None) == (fallback is not None)
    (change,) = writes.changes
    assert change.detail == "revision: 111111 → 222222, image_revision: ami-1 → ami-2"
    (history,) = writes.history
    assert history.revisions == {"one": {"revision": "222222", "image": "ami-2"}}
    assert history.changes == [{"kind": "launch config", "id": "one", "result": "updated", "detail": change.detail}]


@pytest.mark.parametrize(("proven", "fallback"), [(True, NEW), (False, OLD)])
def test_the_fallback_is_a_proven_revision_or_the_current_one(proven: bool, fallback: str) -> None:
    seen, other = stored(config(), proven=False), stored(config(image="2"), proven=proven)
    seen.revisions["one"].insert(0, other.revisions["one"][0])  # type: ignore[attr-defined]
    writes = compared([config(image="3")], seen)
    assert [each.id for each in writes.fallbacks] == [fallback]
    assert [made.detail for made in writes.changes] == ["revision: 111111 → 333333, image_revision: ami-1 → ami-3"]


def test_a_revision_that_is_current_again_keeps_the_keys_of_its_provider() -> None:
    keys = {name: f"its {name}" for name in PROVIDER_KEYS}
    seen, other = stored(config()), stored(config(image="2"))
    seen.revisions["one"].append(replace(other.revisions["one"][0], **keys))  # type: ignore[attr-defined]
    (made,) = compared([config(image="2")], seen).replacements
    assert {name: getattr(made.target, name) for name in PROVIDER_KEYS} == keys


def test_user_data_are_audited_by_their_digest() -> None:
    """It may hold secrets. Without any it is the default."""
    texts = ("", "secret one", "secret two")
    audited = [compared([config(user_data=text)]).audit[1].after or {} for text in texts]
    shown = [each["user_data"] for each in audited]
    assert shown[0] == "default"
    assert len({*shown}) == len(texts)
    assert not any("secret" in each for each in shown)


def test_an_earlier_body_is_current_again() -> None:
    """A withdrawn one is a danger: perhaps its secret has leaked."""
    withdrawn = NOW - timedelta(hours=1)
    seen, other = stored(config()), stored(config(image="2"), withdrawn_at=withdrawn, state_by="ben")
    seen.revisions["one"].append(other.revisions["one"][0])  # type: ignore[attr-defined]
    writes = compared([config(image="2")], seen)
    assert (writes.current, writes.new_revisions, writes.renewed) == ([NEW], [], set())
    assert [(made.id, made.result) for made in writes.changes] == [("one", "reactivated")]
    assert dangers(writes) == [f"{NEW} was withdrawn: replaced with `now` by ben at 2029-12-31 23:00 UTC"]


def test_all_others_end_at_once() -> None:
    """Also those that drain already, unless they end as soon: what they run may have the same leaked secret."""
    request = replace(REQUEST, strategy="now", terminate=True, drain_seconds=60.0)
    in_time, late = NOW + timedelta(seconds=60), NOW + timedelta(seconds=61)
    ending: dict[str, Any] = {"state": "draining", "replaced_by": "now", "drain_terminate": True}
    for state, ended in (
        ({"state": "active"}, True),
        ({"state": "draining"}, True),
        ({"state": "archived"}, False),
        (ending | {"drain_until": in_time}, False),
        (ending | {"drain_until": late}, True),
        (ending | {"drain_until": late, "drain_terminate": False}, True),
    ):
        seen, other = stored(config()), stored(config(image="2"), **state)
        seen.revisions["one"].append(other.revisions["one"][0])  # type: ignore[attr-defined]
        writes = compared([config()], seen, request=request)
        assert [each.id for each in writes.drains] == ([NEW] if ended else []), state
        assert [made.detail for made in writes.changes] == ([f"drains at once: {NEW}, within 60 s"] if ended else [])


def test_a_name_belongs_to_one_pool() -> None:
    """Of those that are stored, and of those of the same request."""
    seen = stored(config())
    windows = DeclaredPool(row=replace(POOL, id="windows"), configs=(config(pool_id="windows"),))
    words = "launch config one of worker pool windows: the name belongs to worker pool linux; use another name"
    with pytest.raises(DeclarationRefused, match=words):
        Comparison(REQUEST, seen, NOW, {}).pool(windows, ())
    both = Comparison(REQUEST, Snapshot(accounts={}, pools={}, names={}, revisions={}), NOW, {})
    both.pool(DeclaredPool(row=POOL, configs=(config(),)), ())
    with pytest.raises(DeclarationRefused, match=words):
        both.pool(windows, ())


@pytest.mark.parametrize(
    ("before", "after", "serving", "expected"),
    [
        (None, None, 9, []),
        (None, 4, 0, []),
        (None, 4, 9, ["launch config one: the maximum falls from 10 to 4: 5 of 9 workers will leave once idle"]),
        (None, 4, 3, ["launch config one: the maximum falls from 10 to 4: 3 workers stay"]),
        (4, 9, 0, ["launch config one: the maximum grows from 4 to 9"]),
        (4, None, 0, ["launch config one: the maximum grows from 4 to 10"]),
        (5, None, 0, []),
    ],
)
def test_a_maximum_of_a_launch_config(before: int | None, after: int | None, serving: int, expected: list[str]) -> None:
    """Without its own it has that of its pool."""
    seen = stored(config(max_capacity=before))
    assert dangers(compared([config(max_capacity=after)], seen, workers={OLD: serving})) == expected


def test_a_new_launch_config_has_a_row_of_its_name() -> None:
    own: dict[str, Any] = {"base_weight": 2.0, "price_factor": 3.0, "max_capacity": 4, "task_slots": 5}
    row = NameRow(name="one", pool_id="linux", current_id=OLD, deadlines={"boot": 60.0}, **own)
    assert compared([config(**own)]).new_names == [row]


END_OTHERS: Final = replace(REQUEST, strategy="now", terminate=True)
#    changes of the launch config, owner, is its pool declared again?, request, is its row written?
WRITTEN: list[tuple[dict[str, Any], str, bool, Request, bool]] = [
    ({}, "a.yaml", False, REQUEST, False),
    ({}, "a.yaml", False, END_OTHERS, True),
    ({}, "a.yaml", True, REQUEST, True),
    ({}, "b.yaml", False, replace(REQUEST, adopt=True), True),
    ({"base_weight": 2.0}, "a.yaml", False, REQUEST, True),
]


@pytest.mark.parametrize(("changes", "owner", "again", "request_", "written"), WRITTEN)
def test_the_row_of_a_name_is_written_with_what_concerns_it(
    changes: dict[str, Any], owner: str, again: bool, request_: Request, written: bool
) -> None:
    """Beside its fields, and its return, these are its owner, and revisions that end: another one is active here."""
    seen = stored(config(), deleted=again)
    seen.revisions["one"].append(stored(config(image="2")).revisions["one"][0])  # type: ignore[attr-defined]
    writes = compared([config(**changes)], seen, row=replace(POOL, owner=owner), request=request_)
    assert writes.names == (compared([config(**changes)]).new_names if written else [])
    if request_ is END_OTHERS:
        assert writes.drains == [drain(NEW, f"replaced by {OLD}", replaced_by="now", drain_terminate=True)]
        assert [made.detail for made in writes.changes] == [f"drains at once: {NEW}"]


def test_a_launch_config_that_comes_back_has_lost_no_maximum() -> None:
    assert dangers(compared([config(max_capacity=9)], stored(config(max_capacity=4), deleted=True))) == []


#    deadlines before and after, as they are shown
DEADLINES: list[tuple[dict[str, float], dict[str, float], str]] = [
    ({"boot": 60.0}, {"boot": 90.0}, "deadlines.boot: 60.0 → 90.0"),
    ({"boot": 60.0}, {"boot": 60.0, "claim": 5.0}, "deadlines.claim: none → 5.0"),
    ({"boot": 60.0, "claim": 5.0}, {"boot": 61.0}, "deadlines.boot: 60.0 → 61.0, deadlines.claim: 5.0 → none"),
]


@pytest.mark.parametrize(("before", "after", "detail"), DEADLINES)
def test_deadlines_that_differ_are_shown(before: dict[str, float], after: dict[str, float], detail: str) -> None:
    (change,) = compared([config(deadlines=after)], stored(config(deadlines=before))).changes
    assert change.detail == detail


@pytest.mark.parametrize(
    ("changes", "serving", "expected"),
    [
        ({"max_capacity": 20}, 0, []),
        ({"max_capacity": 21}, 0, ["worker pool linux: the maximum grows from 10 to 21"]),
        ({"max_capacity": 4}, 0, []),
        ({"max_capacity": 4}, 1, ["worker pool linux: the maximum falls from 10 to 4: 1 worker stays"]),
        ({"mode": "observe"}, 0, []),
        (
            {"mode": "observe"},
            1200,
            [
                "worker pool linux: the mode becomes observe: nothing is launched, and 1,200 workers will not be "
                "replaced"
            ],
        ),
        ({"mode": "observe", "min_capacity": 9}, 0, []),
        (
            {"min_capacity": 9},
            0,
            ["worker pool linux: the minimum grows from 0 to 9: machines launch without demand"],
        ),
    ],
)
def test_limits_of_a_pool(changes: dict[str, Any], serving: int, expected: list[str]) -> None:
    row, seen = replace(POOL, **changes), stored(config())
    assert dangers(compared([config()], seen, row=row, workers={OLD: serving})) == expected


@pytest.mark.parametrize(
    ("tripped", "fallback", "expected"),
    [
        ({}, None, []),
        ({NEW: "3 boot failures"}, None, [f"{NEW} is tripped: 3 boot failures"]),
        ({NEW: ""}, None, [f"{NEW} is tripped: {NEW}"]),
        ({NEW: "3 boot failures"}, OLD, []),
        ({NEW: "3 boot failures", OLD: "x"}, OLD, [f"{NEW} is tripped: 3 boot failures"]),
        ({"image/ami-2": "bad"}, None, [f"{NEW} is tripped: bad"]),
        ({"credential/a": "expired"}, None, []),  # that of the replaced revision, too
    ],
)
def test_a_tripped_revision_without_a_healthy_fallback(
    tripped: dict[str, str], fallback: str | None, expected: list[str]
) -> None:
    """What the replaced revision shares is no danger of the change."""
    (made,) = compared([config(image="2")], stored(config())).replacements
    made = replace(made, fallback=made.replaced if fallback is not None else None)
    assert [str(danger) for danger in guard.of_replacement(made, tripped)] == expected
    assert {NEW, "image/ami-2"} <= {*made.tripping()}
    assert (OLD in made.tripping()) == (fallback is not None)


def test_a_new_launch_config_whose_credential_is_tripped() -> None:
    """It replaces nothing, which would share the credential."""
    (made,) = compared([config(), config("two")], stored(config())).replacements
    assert made.replaced is None
    tripped = {"credential/a": "expired"}
    assert [str(danger) for danger in guard.of_replacement(made, tripped)] == ["two@111111 is tripped: expired"]


def test_terms_of_replacements_are_confirmed_with_the_changes() -> None:
    """The digest covers them, and what is declared."""
    seen = stored(config())
    digests = {
        compared([config(image="2")], seen, request=request).digest
        for request in (REQUEST, replace(REQUEST, strategy="now"), replace(REQUEST, drain_seconds=9.0))
    }
    digests.add(compared([config(image="2")], seen, row=replace(POOL, spec_digest="2")).digest)
    assert len(digests) == 4
