"""Explanations of worker pools: what keeps one from launching, its remedy, and its sources."""

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
    SHARES,
    SOURCE,
    ago,
    config,
    of_config,
    of_pool,
    stage,
    tripped,
)

SERVES = (
    "9 tasks pending (without a break for 2 min), 3 claimed; 10 of 12 wanted workers serving (6 registered, 1 leaving)"
)
LAST = "Last decision at 14:28:20 (4 times): nothing is needed."
POOLS: list[tuple[str, dict[str, Any], list[dict[str, Any]], list[dict[str, Any]], str, list[str]]] = [
    (
        "nothing binds",
        {},
        [],
        [config("zone-a")],
        "",
        ["healthy, nothing limits its launches.", f"Effect: {SERVES}.", "Remedy: none needed.", LAST],
    ),
    (
        "maximum",
        {"max_capacity": 10},
        [],
        [],
        "",
        [
            "max_capacity 10 is reached: its tasks need 12 workers.",
            f"Effect: {SERVES}.",
            "Remedy: `slipway pool set linux --max N` raises it; so does the declaration.",
            LAST,
        ],
    ),
    (
        "ratio",
        {"max_capacity": 4, "scaling_ratio": "1/3"},
        [],
        [],
        "",
        ["healthy, nothing limits its launches.", f"Effect: {SERVES}.", "Remedy: none needed.", LAST],
    ),
    (
        "paused",
        {"paused": True, "paused_reason": "test", "paused_by": "me", "paused_until": ago(-60)},
        [],
        [],
        "",
        [
            "paused by me until 14:31:00: test.",
            f"Effect: {SERVES}; nothing is launched.",
            "Remedy: `slipway pool resume linux --reason …`.",
            LAST,
        ],
    ),
    (
        "frozen",
        {"frozen": True, "frozen_reason": "3 failed starts", "frozen_by": "provisioner"},
        [],
        [],
        "",
        [
            "frozen by provisioner: 3 failed starts.",
            f"Effect: {SERVES}; nothing is launched.",
            "Remedy: repair the cause, then `slipway pool unfreeze linux --reason …`.",
            LAST,
        ],
    ),
    (
        "observe",
        {"mode": "observe"},
        [],
        [],
        "",
        [
            "in mode observe: Slipway decides and records, and launches nothing.",
            f"Effect: {SERVES}; nothing is launched.",
            "Remedy: `slipway pool promote linux`; so does a mode in the declaration.",
            LAST,
        ],
    ),
    (
        "launch stop",
        {},
        [LAUNCH_STOP],
        [],
        "",
        [
            "launching is stopped everywhere by me: bad image.",
            "Since 14:29:51, 9 s ago.",
            f"Effect: {SERVES}; nothing is launched.",
            "Remedy: `slipway start-launching --reason …`.",
            LAST,
        ],
    ),
    (
        "launch stop of its account, not of another",
        {},
        [
            LAUNCH_STOP | {"scope": "account", "scope_id": "sim-a"},
            LAUNCH_STOP | {"scope": "account", "scope_id": "other"},
            LAUNCH_STOP | {"scope": "pool", "scope_id": "windows"},
        ],
        [config("zone-a")],
        "",
        [
            "launching is stopped in account sim-a by me: bad image.",
            "Since 14:29:51, 9 s ago.",
            f"Effect: {SERVES}; nothing is launched.",
            "Remedy: `slipway start-launching --account sim-a --reason …`.",
            LAST,
        ],
    ),
    (
        "launch stop of one of two accounts",
        {},
        [LAUNCH_STOP | {"scope": "account", "scope_id": "sim-a"}],
        [config("zone-a"), config("zone-b", account_id="sim-b")],
        "",
        [
            "launching is stopped in account sim-a by me: bad image.",
            "Since 14:29:51, 9 s ago.",
            f"Effect: {SERVES}; launches go to zone-b.",
            "Remedy: `slipway start-launching --account sim-a --reason …`.",
            LAST,
        ],
    ),
    (
        "some configs tripped",
        {},
        [],
        [config("zone-a"), tripped("zone-b"), config("zone-c")],
        "",
        [
            "1 of 3 active launch configs tripped: zone-b (2 capacity errors; next probe in 12 s).",
            "Since 14:28:20, 1 min 40 s ago.",
            f"Effect: {SERVES}; launches go to zone-a and zone-c.",
            f"{RECOVERS}; `slipway lc show zone-b` lists the failures.",
            LAST,
        ],
    ),
    (
        "all configs tripped",
        {},
        [],
        [tripped("zone-a", tripped_since=ago(40)), tripped("zone-b", health_state="probing", next_probe_at=None)],
        "",
        [
            "2 of 2 active launch configs tripped: zone-a (2 capacity errors; next probe in 12 s), zone-b (2 capacity errors).",
            "Since 14:28:20, 1 min 40 s ago.",
            f"Effect: {SERVES}; only probes are launched.",
            f"{RECOVERS}; `slipway lc show zone-a` lists the failures.",
            LAST,
        ],
    ),
    (
        "window, and a paused config",
        {},
        [],
        [
            config("zone-a", stages=stage("boot", 5, 3)),
            config("zone-b", state="paused", state_reason="maintenance", state_by="me"),
        ],
        "",
        [
            "zone-b is paused by me: maintenance.",
            f"Effect: {SERVES}.",
            "Remedy: `slipway lc resume zone-b --reason …`.",
            "Also: zone-a: boot window of 8 is full (5 in flight, 3 failures not yet weighed).",
            LAST,
        ],
    ),
    (
        "lease queue",
        {},
        [],
        [config("zone-a", stages=stage("launch", 6, 0))],
        "",
        [
            f"workers wait for lease pool sim-a: {QUEUE}.",
            "Since 14:29:55, 5 s ago.",
            f"Effect: {SERVES}.",
            f"Remedy: {RAISE}.",
            LAST,
            "6 workers wait for admission or for the provider's answer.",
        ],
    ),
    (
        "calculator",
        {},
        [],
        [],
        "the weight-calculator is not ready (starting)",
        [
            "the weight-calculator is not ready (starting): windows shrink to 4, and weights drift to the declared ones.",
            f"Effect: {SERVES}.",
            "Remedy: `slipway doctor` shows what is wrong.",
            LAST,
        ],
    ),
]


@pytest.mark.parametrize(
    ("pool", "launch_stops", "configs", "calculator", "lines"),
    [case[1:] for case in POOLS],
    ids=[case[0] for case in POOLS],
)
def test_pool(
    pool: dict[str, Any],
    launch_stops: list[dict[str, Any]],
    configs: list[dict[str, Any]],
    calculator: str,
    lines: list[str],
) -> None:
    """The cause first; nothing that does not apply."""
    explained = of_pool(
        POOL | pool, [CALM], configs, launch_stops, [LEASE_POOL], sources=[SOURCE], calculator=calculator, now=NOW
    )
    assert explained.sentences(NOW) == [f"Pool linux: {lines[0]}", *lines[1:]]


def test_the_maximum_comes_before_a_trip_where_it_is_reached() -> None:
    """A pool of healthy configs would be no larger."""
    full = POOL | {"serving": 100, "max_capacity": 100, "pending": 117, "claimed": 0}
    explained = of_pool(
        full, [CALM], [config("zone-a"), tripped("zone-b")], [], [], sources=[SOURCE], calculator="", now=NOW
    )
    assert explained.cause == "max_capacity 100 is reached: its tasks need 117 workers"
    assert any("1 of 2 active launch configs tripped" in line for line in explained.details)


def test_an_unavailable_lease_broker_is_the_cause() -> None:
    broker = "the lease-broker at http://127.0.0.1:1 is unavailable"
    configs = [config("zone-a"), tripped("zone-b")]
    explained = of_pool(POOL, [CALM], configs, [], [], sources=[SOURCE], calculator="", broker=broker, now=NOW)
    assert explained.cause == f"{broker}: launches wait for its leases"


def test_a_drained_lease_pool_is_the_cause_of_the_windows_that_it_fills() -> None:
    """Its remedy is a command; a window that is full of launches that wait does not grow."""
    stages = {name: {"in_flight": 8, "unfolded": 0, "window": 8} for name in ("launch", "boot", "claim")}
    drained = LEASE_POOL | {"drained_reason": "moves", "waiting": 8}
    found = of_pool(
        POOL, [CALM], [config("zone-a", stages=stages)], [], [drained], sources=[SOURCE], calculator="", now=NOW
    )
    assert found.cause.startswith("workers wait for lease pool sim-a, which is drained (moves): ")
    assert found.remedy == "`slipway lease undrain sim-a --reason …`"


def test_the_lease_pool_of_an_account_may_have_any_name() -> None:
    """An account declares its lease pool; lease pools of other accounts are left out."""
    configs = [config("zone-a", lease_pool_id="starts", stages=stage("launch", 6, 0))]
    lease_pools = [LEASE_POOL, LEASE_POOL | {"id": "starts"}]
    assert of_pool(POOL, [CALM], configs, [], lease_pools, sources=[SOURCE], calculator="", now=NOW).cause == (
        f"workers wait for lease pool starts: {QUEUE}"
    )
    free = [LEASE_POOL, FREE | {"id": "starts"}]
    assert list(of_pool(POOL, [CALM], configs, [], free, sources=[SOURCE], calculator="", now=NOW).details)[-2:] == [
        "6 workers wait for admission or for the provider's answer.",
        "  Lease pool starts: 3 of 45 units held, no request waits.",
    ]


def test_pool_that_needs_more_lists_the_shares() -> None:
    details = of_pool(POOL, [DECISION], [], [], [], sources=[SOURCE], calculator="", now=NOW).details
    assert list(details) == ["Last decision at 14:28:20: 5 needed, room for 3.", *(f" {row[1:]}" for row in SHARES)]


def test_pool_at_a_safety_limit() -> None:
    """The limit is the cause, and the remedy shows what is left of it."""
    text = "account a has reached its limit of 20 launches per hour: 20; next launch at 14:45:10"
    limited = DECISION | {"details": DECISION["details"] | {"limits": [{"kind": "launches", "text": text}]}}
    found = of_pool(POOL, [limited], [config("zone-a")], [], [], sources=[SOURCE], calculator="", now=NOW)
    assert found.cause == text
    assert found.remedy == "`slipway account limits` shows what is left; the declaration raises it"


def test_a_limit_of_spend_without_a_price() -> None:
    """Nothing is left to raise: the price is missing. In a canary it comes first, since a promotion does not help."""
    text = "the price of m5.large (aws, us-east-1, spot) is unknown, and account a limits its spend"
    limited = DECISION | {"details": DECISION["details"] | {"limits": [{"kind": "price", "text": text}]}}
    canary = POOL | {"mode": "canary"}
    found = of_pool(canary, [limited], [config("zone-a")], [], [], sources=[SOURCE], calculator="", now=NOW)
    assert found.cause == text
    remedy = "list the price in prices_file of the provisioner and restart it, or declare limits.default_price"
    assert found.remedy == remedy
    assert found.details[0].startswith("Also: in mode canary: Slipway launches one worker at a time. Remedy: ")
    observing = of_pool(
        POOL | {"mode": "observe"}, [limited], [config("zone-a")], [], [], sources=[SOURCE], calculator="", now=NOW
    )
    assert observing.cause.startswith("in mode observe")


def test_a_lease_pool_that_is_not_declared() -> None:
    """Its launches wait for ever, so neither the pool nor the launch config is healthy."""
    for_others = [LEASE_POOL | {"id": "sim-z"}]
    pool = of_pool(POOL, [CALM], [config("zone-a")], [], for_others, sources=[SOURCE], calculator="", now=NOW)
    own = of_config(config("zone-a"), POOL, [], for_others, now=NOW)
    for found in (pool, own):
        assert found.cause == "lease pool sim-a of account sim-a is not declared: launches wait for its leases for ever"
        assert found.remedy == "declare lease pool sim-a, or correct lease_pool of account sim-a, and apply it"
    assert own.effect.startswith("launches nothing (")


#    stuck, cause, remedy
LEAVING = [
    (0, "max_capacity 40 is reached: 3 leaving workers count until terminated", "none needed"),
    (
        2,
        "max_capacity 40 is reached: 3 leaving workers count until terminated, 2 of them stuck",
        "`slipway worker ls --pool linux --state stopping` lists them; the alert termination-refused has the command "
        "that frees one",
    ),
]


@pytest.mark.parametrize(("stuck", "cause", "remedy"), LEAVING)
def test_workers_that_leave_and_hold_their_places(stuck: int, cause: str, remedy: str) -> None:
    """A pool that wants workers and has no room for them is not healthy."""
    details = DECISION["details"] | {"code": "no-room", "needed": 0, "stuck": stuck}
    pool = POOL | {"leaving": 3, "max_capacity": 40}
    found = of_pool(
        pool, [CALM | {"details": details}], [config("zone-a")], [], [], sources=[SOURCE], calculator="", now=NOW
    )
    assert (found.cause, found.remedy) == (cause, remedy)


def test_an_account_that_refuses_terminations_is_a_cause() -> None:
    """Its own alert has the command."""
    text = "account sim-a refuses to terminate its instances"
    zones = {"zone-a": {"weight": 1, "room": 3, "launched": 0, "reason": text}}
    refusing = DECISION | {"details": DECISION["details"] | {"configs": zones}}
    found = of_pool(POOL, [refusing], [config("zone-a")], [], [], sources=[SOURCE], calculator="", now=NOW)
    assert (found.cause, found.remedy) == (text, "the alert termination-refused has the command that frees one")


def test_an_account_that_does_not_answer_is_a_cause() -> None:
    """A pool is not called healthy while its launches have nowhere to go."""
    zones = {"zone-a": {"weight": 1, "room": 3, "launched": 0, "reason": "account sim-a does not answer"}}
    unanswered = DECISION | {"details": DECISION["details"] | {"configs": zones}}
    found = of_pool(POOL, [unanswered], [config("zone-a")], [], [], sources=[SOURCE], calculator="", now=NOW)
    assert found.cause == "account sim-a does not answer"
    assert found.remedy == "`slipway account check sim-a` says why"


def test_pool_without_a_decision() -> None:
    pool = POOL | {"wanted": None, "needed": None, "pending": 0, "claimed": 0, "leaving": 0, "backlog_seconds": None}
    assert of_pool(pool, [], [], [], [], sources=[], calculator="", now=NOW).sentences(NOW) == [
        "Pool linux: no source has reported demand.",
        "Effect: 0 tasks pending, 0 claimed; 10 serving (6 registered).",
        "Remedy: report it on the demand topic, or with `slipway demand set linux --pending N --claimed N`.",
        "No decision has been made yet.",
    ]


def test_a_stale_source_is_named() -> None:
    stale = SOURCE | {"source": "old queue", "state": "stale", "valid_until": ago(60), "protected_until": ago(-3540)}
    explained = of_pool(POOL, [CALM], [], [], [], sources=[SOURCE, stale], calculator="", now=NOW)
    assert explained.cause == (
        "source old queue is stale: its 9 pending and 3 claimed tasks launch no workers, and protect idle ones until "
        "15:29:00"
    )
    assert explained.since == NOW - timedelta(seconds=60)
    assert explained.remedy == (
        "restart its monitor; if it is gone or was renamed, `slipway demand rm linux 'old queue'`"
    )
