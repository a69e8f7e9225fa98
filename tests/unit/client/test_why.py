"""Explanations: cause first, then since when, effect, remedy and details."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_client.view.why.configs import of_config, of_image
from slipway_client.view.why.leases import of_lease, of_lease_pool
from slipway_client.view.why.pools import of_pool
from slipway_client.view.why.workers import STATES, of_worker
from slipway_common.events.lifecycle import State

NOW = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


DECISION: dict[str, Any] = {
    "id": "d-1",
    "at": ago(100),
    "last_at": ago(100),
    "times": 1,
    "launched": 3,
    "reason": "5 needed, room for 3",
    "details": {
        "tasks": 12,
        "wanted": 12,
        "serving": 7,
        "leaving": 0,
        "needed": 5,
        "launched": 3,
        "reason": "",
        "sources": {"queue": {"pending": 9, "claimed": 3, "gone": 0, "stale": False}},
        "configs": {
            "zone-a": {"weight": 0.5, "room": 0, "launched": 0, "reason": "the boot window is full"},
            "zone-b": {"weight": 0.25, "room": 9, "limited_by": "boot", "launched": 2},
            "zone-c": {"weight": 0.05, "room": 4, "limited_by": "boot", "launched": 1, "probe": 4},
        },
    },
}
LEASE_POOL = {
    "id": "sim-a",
    "limit": 45,
    "held": 45,
    "waiting": 7,
    "oldest_wait_seconds": 5.0,
    "eta_seconds": 8.2,
    "granted_per_minute": 30,
}
WORKER: dict[str, Any] = {
    "id": "w-1",
    "pool_id": "linux",
    "launch_config_id": "zone-b",
    "account_id": "sim-a",
    "state": "requested",
    "decision_id": "d-1",
    "requested_at": ago(100),
    "reason": "",
    "probe_permit": None,
    "lease": None,
    "batch": None,
    "timeline": [],
}
LEASE = {"lease_pool_id": "sim-a", "fencing_token": 41}
BATCH = {"id": "b-1", "units": 2, "state": "known", "outcome": "", "repeats": 0, "started_at": ago(90)}
CALLED = WORKER | {"lease": LEASE, "batch": BATCH}
LAUNCHED = CALLED | {"launched_at": ago(88), "instance_id": "i-7"}
RUNNING = LAUNCHED | {"state": "running", "registered_at": ago(58)}


def claim(at: float, task: str, ended: float | None = None) -> list[dict[str, Any]]:
    events = [{"at": ago(at), "what": "claimed", "detail": f"task {task} of queue"}]
    return events + ([{"at": ago(ended), "what": "finished", "detail": f"task {task} of queue"}] if ended else [])


QUEUE = "45 of 45 units held (full), 7 units waiting, the oldest request for 5 s; ETA of a new request 8.2 s"
RAISE = (
    "none needed while units are released; `slipway lease ls --pool sim-a` lists the holders, and "
    "`slipway lease set sim-a --limit N --reason …` raises the limit"
)
RECOVERS = "Remedy: none needed: Slipway probes by itself and launches again after the first success"
TERMINATE = "Remedy: none needed; `slipway worker terminate w-1 --reason …` gives up on it."
PLACE = "Pool linux, launch config zone-b, account sim-a."
SHARES = [
    "→ zone-b got 2: weight 0.25, room for 9.",
    "  zone-c got 1 as a probe: weight 0.05, room for 4.",
    "  zone-a got nothing: the boot window is full (weight 0.5, room for 0).",
]
DECIDED = [
    PLACE,
    "Requested at 14:28:20: 5 needed, room for 3; 12 tasks wanted 12 workers, 7 serving (decision d-1).",
    *SHARES,
]
ADMITTED = "Admitted by lease pool sim-a (fencing token 41): 10 s from the request to the call."
CALL = "Provider called at 14:28:30, with 1 other worker: launched 2 s later, instance i-7."
BOOTED = "Registered at 14:29:02, after a boot of 30 s."

WORKERS: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "waits",
        WORKER,
        [
            f"requested, waits for admission to lease pool sim-a: {QUEUE}.",
            "Since 14:28:20, 1 min 40 s ago.",
            "Effect: no instance yet.",
            f"Remedy: {RAISE}.",
        ],
        [],
    ),
    (
        "put back",
        WORKER | {"reason": "lease lost"},
        [
            f"requested, waits for admission to lease pool sim-a: {QUEUE}.",
            "Since 14:28:20, 1 min 40 s ago.",
            "Effect: no instance yet.",
            f"Remedy: {RAISE}.",
        ],
        ["Returned to the queue: lease lost."],
    ),
    (
        "admitted",
        WORKER | {"lease": LEASE},
        [
            "requested, admitted by lease pool sim-a, waits for its launch call.",
            "Since 14:28:20, 1 min 40 s ago.",
            "Effect: no instance yet.",
            "Remedy: none needed.",
        ],
        [],
    ),
    (
        "calling",
        CALLED | {"state": "launching"},
        [
            "launching, waits for the provider's answer.",
            "Since 14:28:30, 1 min 30 s ago.",
            "Effect: no known instance yet.",
            "Remedy: none needed.",
        ],
        [ADMITTED, "Provider called at 14:28:30, with 1 other worker: no answer for 1 min 30 s."],
    ),
    (
        "run failed",
        CALLED | {"state": "launching", "workspace": {"problem": "cannot run /t: missing; set the path of terraform."}},
        [
            "launching, the last run of its workspace failed: cannot run /t: missing; set the path of terraform.",
            "Since 14:28:30, 1 min 30 s ago.",
            "Effect: no known instance yet.",
            "Remedy: remove the cause; the run is repeated by itself, or at once by `slipway worker unlock`.",
        ],
        [ADMITTED, "Provider called at 14:28:30, with 1 other worker: no answer for 1 min 30 s."],
    ),
    (
        "accepted",
        CALLED
        | {
            "state": "launching",
            "batch": CALLED["batch"] | {"handle": "apply-7", "poll_at": ago(-5), "call_deadline": ago(-3600)},
        },
        [
            "launching, waits for the provider's answer.",
            "Since 14:28:30, 1 min 30 s ago.",
            "Effect: no known instance yet.",
            "Remedy: none needed.",
        ],
        [
            ADMITTED,
            "Provider called at 14:28:30, with 1 other worker: accepted as apply-7; next poll at 14:30:05, "
            "deadline at 15:30:00.",
        ],
    ),
    (
        "refused",
        CALLED | {"state": "stopped", "failed_at": ago(89), "ended_at": ago(89), "reason": "QuotaExceeded"},
        [
            "stopped: QuotaExceeded.",
            "Since 14:28:31, 1 min 29 s ago.",
            "Effect: it claims no more tasks.",
            "Remedy: none needed.",
        ],
        [
            ADMITTED,
            "Provider called at 14:28:30, with 1 other worker: refused: QuotaExceeded.",
            "Ended at 14:28:31, 11 s after its request.",
        ],
    ),
    (
        "boots",
        LAUNCHED | {"state": "starting"},
        [
            "starting, its instance has not registered yet.",
            "Since 14:28:32, 1 min 28 s ago.",
            "Effect: no task can be claimed on it yet.",
            TERMINATE,
        ],
        [ADMITTED, CALL, "Booting for 1 min 28 s."],
    ),
    (
        "never registered",
        LAUNCHED | {"state": "stopping", "stopping_at": ago(3), "reason": "did not register in time"},
        [
            "draining: did not register in time.",
            "Since 14:29:57, 3 s ago.",
            "Effect: it claims no new task, and is billed until the provider reports its instance gone.",
            "Remedy: none needed: it is terminated.",
        ],
        [ADMITTED, CALL, "It never registered.", "Drain requested at 14:29:57."],
    ),
    (
        "idle",
        RUNNING | {"idle_since": ago(58)},
        ["running, idle.", "Since 14:29:02, 58 s ago.", "Effect: it can claim a task.", TERMINATE],
        [ADMITTED, CALL, BOOTED, "It has claimed no task.", "Idle for 58 s."],
    ),
    (
        "works",
        RUNNING | {"timeline": claim(50, "t-1", 40) + claim(30, "t-2")},
        ["running a task.", "Since 14:29:30, 30 s ago.", "Effect: its task goes on.", TERMINATE],
        [
            ADMITTED,
            CALL,
            BOOTED,
            "Claimed 2 tasks, the first 8 s after it registered; current: task t-2 of queue.",
        ],
    ),
    (
        "works on what is left of two tasks",
        RUNNING | {"timeline": claim(50, "long") + claim(40, "short", 30), "leave_after_task": True},
        [
            "running a task.",
            "Since 14:29:10, 50 s ago.",
            "Effect: its task goes on; it leaves then, since its pool has more workers than wanted, unless it is wanted "
            "again.",
            TERMINATE,
        ],
        [
            ADMITTED,
            CALL,
            BOOTED,
            "Claimed 2 tasks, the first 8 s after it registered; current: task long of queue.",
        ],
    ),
    (
        "works on two tasks, one of them for the second time",
        RUNNING | {"timeline": claim(55, "t-1", 54) + claim(50, "t-1") + claim(40, "t-2")},
        ["running 2 tasks.", "Since 14:29:20, 40 s ago.", "Effect: its tasks go on.", TERMINATE],
        [
            ADMITTED,
            CALL,
            BOOTED,
            "Claimed 3 tasks, the first 3 s after it registered; current: task t-1 of queue, task t-2 of queue.",
        ],
    ),
    (
        "ended",
        RUNNING
        | {
            "state": "stopped",
            "timeline": claim(50, "t-1", 40),
            "stopping_at": ago(20),
            "ended_at": ago(10),
            "reason": "more workers than wanted",
        },
        [
            "stopped: more workers than wanted.",
            "Since 14:29:50, 10 s ago.",
            "Effect: it claims no more tasks.",
            "Remedy: none needed.",
        ],
        [
            ADMITTED,
            CALL,
            BOOTED,
            "Claimed 1 task, the first 8 s after it registered; last: task t-1 of queue.",
            "Drain requested at 14:29:40.",
            "Ended at 14:29:50, 1 min 30 s after its request.",
        ],
    ),
    (
        "quicker than its answer",
        CALLED | {"state": "running", "instance_id": "i-7", "registered_at": ago(58), "timeline": claim(50, "t-1")},
        ["running a task.", "Since 14:29:10, 50 s ago.", "Effect: its task goes on.", TERMINATE],
        [
            ADMITTED,
            "Provider called at 14:28:30, with 1 other worker: registered before the answer, instance i-7.",
            "Claimed 1 task, the first 8 s after it registered; current: task t-1 of queue.",
        ],
    ),
]


@pytest.mark.parametrize(("worker", "state", "rest"), [case[1:] for case in WORKERS], ids=[case[0] for case in WORKERS])
def test_worker(worker: dict[str, Any], state: list[str], rest: list[str]) -> None:
    """State, then decision, the configs that got nothing, admission, call, boot, tasks, end."""
    lines = of_worker(worker, DECISION, LEASE_POOL, now=NOW).sentences(NOW)
    assert lines == [f"Worker w-1: {state[0]}", *state[1:], *DECIDED, *rest]


def test_every_state_is_explained() -> None:
    assert set(STATES) == set(State)


def test_worker_that_is_a_probe_of_a_decision_that_is_gone() -> None:
    explained = of_worker(WORKER | {"probe_permit": 4}, None, None, now=NOW)
    assert explained.cause == "requested, waits for admission to its account"
    assert list(explained.details) == [
        PLACE,
        "Requested at 14:28:20; the decision is no longer kept.",
        "It is probe 4 of a tripped launch config.",
    ]


POOL: dict[str, Any] = {
    "id": "linux",
    "mode": "enforce",
    "min_capacity": 0,
    "max_capacity": 60,
    "scaling_ratio": "1",
    "paused": False,
    "frozen": False,
    "pending": 9,
    "claimed": 3,
    "serving": 10,
    "running": 6,
    "leaving": 1,
    "wanted": 12,
    "needed": 2,
    "backlog_seconds": 130.0,
}


def config(id_: str, **fields: Any) -> dict[str, Any]:
    stages = {name: {"in_flight": 0, "unfolded": 0, "window": 8} for name in ("launch", "boot", "claim")}
    return {
        "id": id_,
        "pool_id": "linux",
        "account_id": "sim-a",
        "lease_pool_id": "sim-a",
        "image_revision": "linux-1",
        "state": "active",
        "health_state": "healthy",
        "reason": f"{id_} healthy",
        "next_probe_at": None,
        "stages": stages,
        "weight": 0.9,
    } | fields


def tripped(id_: str, **fields: Any) -> dict[str, Any]:
    return (
        config(
            id_,
            health_state="tripped",
            tripped_stage="launch",
            tripped_since=ago(100),
            next_probe_at=ago(-12),
            reason=f"{id_} tripped: 2 capacity errors",
            weight=0.02,
        )
        | fields
    )


def stage(name: str, in_flight: int, unfolded: int) -> dict[str, Any]:
    stages: dict[str, Any] = config("")["stages"]
    return stages | {name: {"in_flight": in_flight, "unfolded": unfolded, "window": 8}}


SOURCE: dict[str, Any] = {
    "pool_id": "linux",
    "source": "queue",
    "state": "fresh",
    "pending": 9,
    "claimed": 3,
    "observed_at": ago(10),
    "received_at": ago(10),
    "valid_until": ago(-290),
    "protected_until": ago(-3890),
    "reported_by": "/monitors/queue",
}
CALM = DECISION | {
    "reason": "nothing is needed",
    "times": 4,
    "details": DECISION["details"] | {"needed": 0, "launched": 0},
}
SERVES = (
    "9 tasks pending (without a break for 2 min), 3 claimed; 10 of 12 wanted workers serving (6 registered, 1 leaving)"
)
LAST = "Last decision at 14:28:20 (4 times): nothing is needed."
LAUNCH_STOP = {"scope": "all", "scope_id": "", "reason": "bad image", "by": "me", "until": None, "at": ago(9)}
FREE = LEASE_POOL | {"held": 3, "waiting": 0}

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
