"""Explanations of launch configs, roll-outs, images, lease pools and leases."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.why import (
    CALM,
    DECISION,
    FREE,
    LAUNCH_STOP,
    LEASE_POOL,
    NOW,
    POOL,
    QUEUE,
    RAISE,
    RECOVERS,
    RUNNING,
    SOURCE,
    WORKER,
    ago,
    claim,
    config,
    of_config,
    of_image,
    of_lease,
    of_lease_pool,
    of_pool,
    of_worker,
    stage,
    tripped,
)


def test_tripped_config() -> None:
    failures = [{"worker_id": "w-9", "at": ago(5), "reason": "InsufficientCapacity"}]
    row = tripped("zone-b", starting=0, running=3, recent_failures=failures)
    assert of_config(row, POOL, [], [FREE], now=NOW).sentences(NOW) == [
        "Launch config zone-b: tripped at launch: 2 capacity errors; next probe in 12 s.",
        "Since 14:28:20, 1 min 40 s ago.",
        "Effect: launches nothing but probes (weight 0.02, 0 starting, 3 running).",
        f"{RECOVERS}.",
        "Newest failure:",
        "  14:29:55  InsufficientCapacity (worker w-9).",
        "Lease pool sim-a of account sim-a: 3 of 45 units held, no request waits.",
    ]


CONFIGS: list[tuple[str, dict[str, Any], dict[str, Any], list[dict[str, Any]], str, str]] = [
    ("healthy", {}, {}, [], "healthy, nothing limits its launches", "launches by its weight"),
    (
        "paused",
        {"state": "paused", "state_by": "me", "state_reason": "rack", "paused_until": ago(-60)},
        {},
        [],
        "paused by me until 14:31:00: rack",
        "launches nothing",
    ),
    (
        "by its image",
        {"health_state": "probing", "tripped_by": "image", "tripped_by_id": "linux-1", "tripped_stage": "boot"}
        | {"reason": "zone-b tripped: image linux-1: 5 boot errors; probe 3 may launch"},
        {},
        [],
        "probing at boot, by image linux-1: 5 boot errors; probe 3 may launch",
        "launches nothing but probes",
    ),
    (
        "its pool is paused",
        {},
        {"paused": True, "paused_by": "me", "paused_reason": "drill"},
        [],
        "pool linux paused by me: drill",
        "launches nothing",
    ),
    (
        "launch stop",
        {},
        {},
        [LAUNCH_STOP | {"scope": "account", "scope_id": "sim-a"}],
        "launching is stopped in account sim-a by me: bad image",
        "launches nothing",
    ),
    (
        "window, with starts of earlier stages",
        {"stages": stage("launch", 5, 0) | {"boot": {"in_flight": 2, "unfolded": 1, "window": 8}}},
        {},
        [],
        "boot window of 8 is full (2 in flight, 5 in earlier stages, 1 failure not yet weighed)",
        "launches by its weight",
    ),
    ("weak", {"reason": "zone-b healthy: boot 80%"}, {}, [], "healthy, with less weight: boot 80%", "by its weight"),
]


@pytest.mark.parametrize(
    ("fields", "pool", "launch_stops", "cause", "effect"),
    [case[1:] for case in CONFIGS],
    ids=[case[0] for case in CONFIGS],
)
def test_config(
    fields: dict[str, Any], pool: dict[str, Any], launch_stops: list[dict[str, Any]], cause: str, effect: str
) -> None:
    explained = of_config(config("zone-b", **fields), POOL | pool, launch_stops, [FREE], now=NOW)
    assert explained.cause == cause
    assert effect in explained.effect


def test_a_full_window_of_an_image_is_named() -> None:
    """It is shared, so that the rows of a launch config do not show it; the newest decision does. A maximum is none."""
    note = {"weight": 0.5, "room": 0, "limited_by": "boot window of image aws/ami-1", "launched": 0}
    cause = "boot window of image aws/ami-1 is full"

    def causes(note: dict[str, Any]) -> tuple[str, str]:
        decided = [DECISION | {"details": DECISION["details"] | {"configs": {"zone-b": note}}}]
        row = config("zone-b")
        own = of_config(row, POOL, [], [FREE], decisions=decided, now=NOW)
        pool = of_pool(POOL, decided, [row], [], [FREE], sources=[SOURCE], calculator="", now=NOW)
        return own.cause, pool.cause

    healthy = "healthy, nothing limits its launches"
    assert causes(note) == (cause, f"zone-b: {cause}")
    assert causes(note | {"room": 1}) == (healthy, healthy)
    assert causes(note | {"limited_by": "maximum of launch config zone-b"})[0] == healthy


NEW = {"proven": False, "succeeded_starts": 2, "needed_starts": 5}
FALLBACK = {"current": False, "replaced_by": "natural"}
DRAIN = {
    "state": "draining",
    "current": False,
    "state_reason": "replaced by a@2",
    "drain_from": ago(100),
    "drain_until": ago(-3600),
    "live": 3,
}
BACK = "`slipway pool rollback linux --reason …` returns to entry 4 of `slipway pool history linux`"
OTHER_IMAGE = "`slipway pool set-image linux IMAGE` takes another image"


def rollback(*names: str, refused: str = "") -> dict[str, Any]:
    """Preview of a rollback that changes these launch configs."""
    items = [{"kind": "launch config", "id": name, "result": "reactivated", "detail": ""} for name in names]
    return {"to_revision": 4, "items": items, "dangers": [], "refused": refused}


def test_a_new_revision_that_is_not_proven() -> None:
    old = config("a@1", **FALLBACK)
    explained = of_config(config("a@2", **NEW), POOL, [], [FREE], siblings=[old], now=NOW)
    assert explained.sentences(NOW)[:4] == [
        "Launch config a@2: new, 2 of 5 starts succeeded; its fallback is a@1.",
        "Effect: launches by its weight (weight 0.9, 0 starting, 0 running).",
        "Remedy: none needed; `slipway pool rollback linux --reason …` returns to what was declared before.",
        "a@1 is fallback: launches what the new revision does not.",
    ]
    bad = of_config(tripped("a@2", **NEW), POOL, [], [FREE], siblings=[old], rollback=rollback("a"), now=NOW)
    assert bad.cause.startswith("tripped at launch: 2 capacity errors")
    assert f"Also: new, 2 of 5 starts succeeded; its fallback is a@1. Remedy: {BACK}." in bad.details


def test_a_fallback() -> None:
    new = config("a@2", **NEW)
    explained = of_config(config("a@1", **FALLBACK), POOL, [], [FREE], siblings=[new], now=NOW)
    assert explained.cause == "replaced by a@2; fallback: launches what the new revision does not"
    assert explained.effect.startswith("launches what the new revision does not (")
    assert explained.remedy == "none needed; it drains when a@2 is proven"
    assert "a@2 is the current revision, active: 2 of 5 starts succeeded." in explained.details
    rolling = config("a@1", current=False, replaced_by="rolling")
    assert of_config(rolling, POOL, [], [FREE], siblings=[new], now=NOW).effect.startswith("launches by its weight")


@pytest.mark.parametrize(
    ("fields", "cause", "remedy"),
    [
        ({}, "3 workers left, until 15:30:00", "none needed: its workers leave after their tasks"),
        (
            {"drain_until": ago(60)},
            "3 workers left, 1 min over the deadline",
            "`slipway worker ls --pool linux` lists its workers; `slipway worker terminate` ends one",
        ),
        (
            {"drain_until": ago(60), "drain_terminate": True},
            "3 workers left, 1 min over the deadline, being terminated",
            "none needed: its workers are terminated",
        ),
    ],
    ids=["in time", "over its deadline", "terminated"],
)
def test_a_draining_revision(fields: dict[str, Any], cause: str, remedy: str) -> None:
    """It launches nothing, also while it is healthy."""
    explained = of_config(config("a@1", **DRAIN | fields), POOL, [], [FREE], now=NOW)
    assert explained.cause == f"draining (replaced by a@2): {cause}"
    assert (explained.since, explained.remedy) == (NOW - timedelta(seconds=100), remedy)
    assert explained.effect.startswith("launches nothing (")


def test_a_pause_is_resumed_by_name() -> None:
    paused = config("a@1", state="paused", state_by="me", state_reason="rack")
    assert of_config(paused, POOL, [], [FREE], now=NOW).remedy == "`slipway lc resume a --reason …`"


def explained_pool(*configs: dict[str, Any], back: dict[str, Any] | None = None, **pool: Any) -> list[str]:
    return of_pool(
        POOL | pool, [CALM], configs, [], [], sources=[SOURCE], calculator="", rollback=back, now=NOW
    ).sentences(NOW)


def by_image(id_: str, **fields: Any) -> dict[str, Any]:
    """A launch config whose image has tripped."""
    reason = f"{id_} tripped: image linux-bad: 5 boots failed"
    image = {"image_revision": "linux-bad", "tripped_by": "image", "tripped_by_id": "linux-bad"}
    return tripped(id_, **image, reason=reason, **fields)


def test_a_pool_that_rolls_out() -> None:
    lines = explained_pool(config("a@2", **NEW), config("a@1", **FALLBACK))
    assert lines[0] == "Pool linux: healthy, nothing limits its launches."
    assert "Also: 1 new revision not proven: a@2 (2 of 5 starts succeeded, fallback 1)." in lines
    lines = explained_pool(config("a@2"), config("a@1", **DRAIN))
    assert "Also: 1 revision draining: a@1 (3 workers left, until 15:30:00)." in lines


def test_a_pool_whose_new_revision_is_bad() -> None:
    """Its launches go to the fallback, and the way back is named."""
    lines = explained_pool(tripped("a@2", **NEW), config("a@1", **FALLBACK), back=rollback("a"))
    assert lines[0].startswith("Pool linux: 1 of 2 active revisions tripped: a@2 (")
    assert "launches go to a@1." in lines[2]
    assert f"Also: 1 new revision not proven: a@2 (2 of 5 starts succeeded, fallback 1). Remedy: {BACK}." in lines


def test_a_pool_whose_image_is_bad() -> None:
    """The image is the cause, and a rollback the remedy; the maximum is far away."""
    bad = [by_image(f"{name}@2", **NEW) for name in "abc"]
    lines = explained_pool(*bad, back=rollback("a", "b", "c"), serving=1, max_capacity=100, pending=500)
    assert lines[0] == "Pool linux: image linux-bad fails in 3 of 3 launch configs."
    assert lines[1] == "Since 14:28:20, 1 min 40 s ago."
    assert lines[3] == f"Remedy: {BACK}."
    assert lines[4].startswith("Also: 3 of 3 active launch configs tripped: a@2 (image linux-bad: 5 boots failed")
    assert not [line for line in lines if "max_capacity" in line]


def test_a_bad_image_beside_its_fallbacks() -> None:
    """The remedy is named once."""
    lines = explained_pool(by_image("a@2", **NEW), config("a@1", **FALLBACK), config("b@1"), back=rollback("a"))
    assert lines[0] == "Pool linux: image linux-bad fails in 1 of 2 launch configs."
    assert [line for line in lines if "pool rollback" in line] == [f"Remedy: {BACK}."]


@pytest.mark.parametrize(
    ("back", "remedy"),
    [
        (
            rollback(refused="a@1 is tripped: 3 boots failed; roll back with force if it is meant"),
            f"{OTHER_IMAGE}; a rollback would be refused: a@1 is tripped: 3 boots failed; roll back with force if it is meant",
        ),
        (
            rollback("b"),
            f"{OTHER_IMAGE}; so does `slipway pool rollback linux --to NUMBER --reason …`, by `slipway pool history linux`",
        ),
    ],
    ids=["its target is tripped", "the last change was another one"],
)
def test_a_rollback_that_does_not_help_is_not_the_remedy(back: dict[str, Any], remedy: str) -> None:
    bad = by_image("a@2")
    assert f"Remedy: {remedy}." in explained_pool(bad, back=back)
    assert of_config(bad, POOL, [], [], rollback=back, now=NOW).remedy == remedy
    window = {"kind": "image", "id": "linux-bad", "stage": "boot", "window": 1, "state": "tripped", "reason": ""}
    explained = of_image("linux-bad", [bad | {"shared": [window]}], back, now=NOW)
    assert explained.remedy == f"{remedy}; Slipway goes on to probe this one"


def test_a_drain_over_its_deadline_has_a_remedy() -> None:
    lines = explained_pool(config("a@2"), config("a@1", **DRAIN | {"drain_until": ago(60)}))
    assert any("over the deadline). Remedy: `slipway worker ls --pool linux`" in line for line in lines)


def test_an_image_of_draining_revisions_only() -> None:
    explained = of_image("linux-1", [config("a@1", **DRAIN)], now=NOW)
    assert explained.effect.startswith("nothing is launched from it; 1 launch config of pool linux uses it: a@1")
    assert "a@1 is draining: 3 workers left, until 15:30:00." in explained.details


MACHINE = {"instance_id": "i-1", "account_id": "aws-1", "reason": "did not register in time"}
#           console output, sentences
CONSOLES = [
    (
        {"lines": ["Booting", "failed"], "settled_at": "2026-01-01T00:00:00Z", "problem": ""},
        ["Console of instance i-1 of aws-1, which did not register in time:", "  Booting", "  failed"],
    ),
    (
        {"lines": [], "settled_at": "2026-01-01T00:00:00Z", "problem": "it had none after 5 attempts"},
        ["Console of instance i-1 of aws-1: it had none after 5 attempts."],
    ),
    (
        {"lines": [], "settled_at": None, "problem": ""},
        ["Console of instance i-1 of aws-1: not posted by its provider yet; it is asked for again."],
    ),
]


@pytest.mark.parametrize(("console", "sentences"), CONSOLES)
def test_the_console_of_a_machine_that_never_registered(console: dict[str, Any], sentences: list[str]) -> None:
    of_the_image = of_image("linux-1", [config("a@1")], consoles=[MACHINE | console], now=NOW)
    assert list(of_the_image.details)[-len(sentences) :] == sentences
    of_one = of_worker(WORKER, None, None, consoles=[MACHINE | console], now=NOW)
    assert list(of_one.details)[-len(sentences) :] == sentences


def test_a_worker_of_a_draining_revision_is_told_to_leave() -> None:
    worker = RUNNING | {"launch_config_id": "a@1", "timeline": claim(30, "t-2")}
    explained = of_worker(worker, DECISION, LEASE_POOL, config=config("a@1", **DRAIN), now=NOW)
    assert explained.effect == ("its task goes on; it leaves then, since a@1 drains: 3 workers left, until 15:30:00")
    assert of_worker(worker, DECISION, LEASE_POOL, config=config("a@1"), now=NOW).effect == "its task goes on"


def test_image() -> None:
    window = {"kind": "image", "id": "linux-1", "stage": "boot", "window": 1, "state": "tripped", "unconfirmed": 5}
    users = [
        tripped("zone-b", tripped_by="image", tripped_by_id="linux-1", shared=[window | {"reason": "5 boot errors"}]),
        config("zone-a"),
    ]
    assert of_image("linux-1", users, rollback("zone-a", "zone-b"), now=NOW).sentences(NOW) == [
        "Image linux-1: tripped at boot: 5 boot errors.",
        "Since 14:28:20, 1 min 40 s ago.",
        "Effect: launches of it are probes only; 2 launch configs of pool linux use it: zone-b, zone-a.",
        f"Remedy: {BACK}; Slipway goes on to probe this one.",
        "Window of boot: 1, 5 unconfirmed starts.",
    ]
    assert of_image("linux-1", users[1:], now=NOW).sentences(NOW) == [
        "Image linux-1: healthy, no stage of it is tripped.",
        "Effect: launches of it follow the weights; 1 launch config of pool linux uses it: zone-a.",
        "Remedy: none needed.",
    ]


@pytest.mark.parametrize(
    ("fields", "cause", "remedy"),
    [
        ({}, f"limit reached: {QUEUE}", RAISE),
        ({"held": 3, "waiting": 0}, "grants at once: 3 of 45 units held, no request waits", "none needed"),
        ({"drained_reason": "moves"}, "drained: moves", "`slipway lease undrain sim-a --reason …`"),
        (
            {"held": 3, "waiting": 1},
            "paced: 3 of 45 units held, 1 unit waiting, the oldest request for 5 s; ETA of a new request 8.2 s",
            "none needed: grants follow the pacing of their operation; "
            "`slipway lease set sim-a --pacing … --operation …` changes it",
        ),
        (
            {"blocked_until": ago(-20)},
            "backs off for another 20 s after a failed start",
            "none needed: it ends by itself",
        ),
        (
            {"held": 0, "waiting": 0, "pinned_reason": "r"},
            "its limit is pinned: r",
            "`slipway lease unpin sim-a --reason …`",
        ),
    ],
    ids=["full", "free", "drained", "paced", "backoff", "pinned"],
)
def test_lease_pool(fields: dict[str, Any], cause: str, remedy: str) -> None:
    explained = of_lease_pool(LEASE_POOL | fields, [config("zone-a")], now=NOW)
    assert (explained.cause, explained.remedy) == (cause, remedy)
    assert explained.details[-1] == "It admits launches to account sim-a."


def test_lease() -> None:
    lease = {
        "id": "l-1",
        "state": "confirmed",
        "owner": "ci",
        "units": 1,
        "tenant": "linux",
        "lease_pool_id": "sim-a",
        "granted_at": ago(9),
        "ended_at": None,
        "ttl_seconds_left": 22,
        "hold_seconds_left": 1100,
        "fencing_token": 7,
        "request_id": "r-1",
        "reason": "",
    }
    history = [{"at": ago(9), "kind": "granted", "reason": "1 unit granted to request r-1"}]
    assert of_lease(lease, history, now=NOW).sentences(NOW) == [
        "Lease l-1: in use by ci.",
        "Since 14:29:51, 9 s ago.",
        "Effect: 1 unit of lease pool sim-a held for tenant linux (TTL 22 s left, hold 18 min 20 s left).",
        "Remedy: none needed; `slipway lease release` gives it back early.",
        "Fencing token 7, request r-1.",
        "History:",
        "  14:29:51  granted: 1 unit granted to request r-1.",
    ]
    lost = lease | {"state": "lost", "ended_at": ago(2), "units": 2, "reason": "not renewed within 30 s"}
    assert of_lease(lost, [], now=NOW).sentences(NOW)[:4] == [
        "Lease l-1: lost: its holder did not renew it in time (not renewed within 30 s).",
        "Since 14:29:58, 2 s ago.",
        "Effect: its 2 units are free again in lease pool sim-a.",
        "Remedy: acquire a new lease.",
    ]
