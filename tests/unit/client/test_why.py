"""Why: the sentences that facts become."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_client.why import of_pool, of_worker

NOW = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


DECISION: dict[str, Any] = {
    "id": "d-1",
    "at": ago(100),
    "last_at": ago(100),
    "times": 1,
    "launched": 3,
    "because": "5 needed, room for 3",
    "why": {
        "tasks": 12,
        "wanted": 12,
        "serving": 7,
        "leaving": 0,
        "needed": 5,
        "launched": 3,
        "because": "",
        "sources": {"queue": {"pending": 9, "claimed": 3, "gone": 0, "stale": False}},
        "configs": {
            "zone-a": {"weight": 0.5, "room": 0, "launched": 0, "lost": "the boot window is full"},
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


DECIDED = [
    "It was asked for at 14:28:20: 5 needed, room for 3, since 12 tasks wanted 12 and 7 served (decision d-1).",
    "→ zone-b got 2: weight 0.25, room for 9.",
    "  zone-c got 1 as a probe: weight 0.05, room for 4.",
    "  zone-a got nothing: the boot window is full (weight 0.5, room for 0).",
]
ADMITTED = "It was admitted by lease pool sim-a (fencing token 41): 10 s from its request to the call."
SAID_YES = "The provider was called at 14:28:30, together with 1 other and said yes 2 s later: instance i-7."
BOOTED = "It booted in 30 s: registered at 14:29:02."

WORKERS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "waits",
        WORKER,
        [
            "It has waited 1 min 40 s for admission to its account.",
            "  Lease pool sim-a: 45 of 45 held (full), 7 wait, the oldest for 5 s; one asked for now waits about 8.2 s.",
        ],
    ),
    (
        "put back",
        WORKER | {"reason": "lease lost"},
        [
            "It has waited 1 min 40 s for admission to its account.",
            "  It was put back: lease lost.",
            "  Lease pool sim-a: 45 of 45 held (full), 7 wait, the oldest for 5 s; one asked for now waits about 8.2 s.",
        ],
    ),
    (
        "admitted",
        WORKER | {"lease": LEASE},
        ["It was admitted by lease pool sim-a and waits for its call, 1 min 40 s by now."],
    ),
    (
        "calling",
        CALLED | {"state": "launching"},
        [ADMITTED, "The provider was called at 14:28:30, together with 1 other; no answer for 1 min 30 s."],
    ),
    (
        "refused",
        CALLED | {"state": "stopped", "failed_at": ago(89), "ended_at": ago(89), "reason": "QuotaExceeded"},
        [
            ADMITTED,
            "The provider was called at 14:28:30, together with 1 other and refused: QuotaExceeded.",
            "It ended at 14:28:31, 11 s after it was asked for: QuotaExceeded.",
        ],
    ),
    ("boots", LAUNCHED | {"state": "starting"}, [ADMITTED, SAID_YES, "It has been booting for 1 min 28 s."]),
    (
        "no sign",
        LAUNCHED | {"state": "stopping", "stopping_at": ago(3), "reason": "did not register in time"},
        [
            ADMITTED,
            SAID_YES,
            "It never registered.",
            "It was told to leave at 14:29:57: did not register in time.",
            "Its instance may still be there: it counts as billed until the provider says that it is gone.",
        ],
    ),
    (
        "idle",
        RUNNING | {"idle_since": ago(58)},
        [ADMITTED, SAID_YES, BOOTED, "It has never had a task.", "It has been idle for 58 s."],
    ),
    (
        "works",
        RUNNING | {"timeline": claim(50, "t-1", 40) + claim(30, "t-2")},
        [ADMITTED, SAID_YES, BOOTED, "It took 2 tasks, the first 8 s after it registered; now task t-2 of queue."],
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
            ADMITTED,
            SAID_YES,
            BOOTED,
            "It took 1 task, the first 8 s after it registered; the last was task t-1 of queue.",
            "It was told to leave at 14:29:40: more workers than wanted.",
            "It ended at 14:29:50, 1 min 30 s after it was asked for.",
        ],
    ),
    (
        "quicker than its answer",
        CALLED | {"state": "running", "instance_id": "i-7", "registered_at": ago(58), "timeline": claim(50, "t-1")},
        [
            ADMITTED,
            "The provider was called at 14:28:30, together with 1 other; the machine registered before its answer: "
            "instance i-7.",
            "It took 1 task, the first 8 s after it registered; now task t-1 of queue.",
        ],
    ),
]


@pytest.mark.parametrize(("worker", "rest"), [case[1:] for case in WORKERS], ids=[case[0] for case in WORKERS])
def test_worker(worker: dict[str, Any], rest: list[str]) -> None:
    """Who decided and who lost, admission, call, boot, tasks, end."""
    told = of_worker(worker, DECISION, [LEASE_POOL], now=NOW)
    first = f"Worker w-1 of pool linux is {worker['state']} on zone-b (account sim-a)."
    assert told == [first, *DECIDED, *rest]


def test_worker_that_is_a_probe_of_a_forgotten_decision() -> None:
    told = of_worker(WORKER | {"probe_permit": 4}, None, [], now=NOW)
    assert told[1:] == [
        "It was asked for at 14:28:20; the decision is forgotten.",
        "It is probe 4 of a closed config: one worker that tries whether it works again.",
        "It has waited 1 min 40 s for admission to its account.",
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
    "oldest_wait_seconds": 130.0,
}


def config(id_: str, **fields: Any) -> dict[str, Any]:
    stages = {name: {"in_flight": 0, "unfolded": 0, "window": 8} for name in ("launch", "boot", "claim")}
    return {
        "id": id_,
        "account_id": "sim-a",
        "state": "active",
        "circuit": "open",
        "reason": f"{id_}: open",
        "probe_ready": False,
        "next_probe_at": None,
        "stages": stages,
    } | fields


def stage(name: str, in_flight: int, unfolded: int) -> dict[str, Any]:
    stages: dict[str, Any] = config("")["stages"]
    return stages | {name: {"in_flight": in_flight, "unfolded": unfolded, "window": 8}}


CALM = DECISION | {"because": "nothing is needed", "times": 4, "why": DECISION["why"] | {"needed": 0, "launched": 0}}
BALANCE = [
    "Pool linux wants 12 workers (between 0 and 60) for 9 tasks pending and 3 running, some for 2 min.",
    "It has 10 (6 of them registered) and 1 leaving.",
]
LAST = "Last decision, at 14:28:20, 4 times alike: nothing is needed."
BRAKE = {"scope": "all", "scope_id": "", "reason": "bad image", "by": "me", "until": None, "at": ago(9)}

POOLS: list[tuple[str, dict[str, Any], list[dict[str, Any]], list[dict[str, Any]], str, list[str]]] = [
    ("nothing binds", {}, [], [config("zone-a")], "", [LAST]),
    ("maximum", {"pending": 90}, [], [], "", [LAST, "Its maximum of 60 binds: the tasks alone would want 93."]),
    ("ratio", {"pending": 117, "scaling_ratio": "1/3"}, [], [], "", [LAST]),
    (
        "paused",
        {"paused": True, "paused_reason": "test", "paused_by": "me", "paused_until": ago(-60)},
        [],
        [],
        "",
        ["It is paused until 14:31:00 by me: test. `slipway pool resume linux` ends that.", LAST],
    ),
    (
        "frozen",
        {"frozen": True, "frozen_reason": "3 starts came to nothing", "frozen_by": "provisioner"},
        [],
        [],
        "",
        ["It is frozen by provisioner: 3 starts came to nothing. `slipway pool unfreeze linux` ends that.", LAST],
    ),
    (
        "observe",
        {"mode": "observe"},
        [],
        [],
        "",
        ["Its mode is observe: it decides and records, and launches nothing.", LAST],
    ),
    (
        "brake",
        {},
        [BRAKE],
        [],
        "",
        ["Launching is stopped everywhere by me: bad image. `slipway start-launching` ends that.", LAST],
    ),
    (
        "brake of its account, not of another",
        {},
        [
            BRAKE | {"scope": "account", "scope_id": "sim-a"},
            BRAKE | {"scope": "account", "scope_id": "other"},
            BRAKE | {"scope": "pool", "scope_id": "windows"},
        ],
        [config("zone-a")],
        "",
        [
            "Launching is stopped in account sim-a by me: bad image. `slipway start-launching --account sim-a` ends that.",
            LAST,
        ],
    ),
    (
        "circuit",
        {},
        [],
        [config("zone-a", circuit="closed", reason="a: closed, 2 capacity errors", next_probe_at=ago(-12))],
        "",
        [LAST, "zone-a is closed: 2 capacity errors; next probe in 12 s."],
    ),
    (
        "window",
        {},
        [],
        [config("zone-a", stages=stage("boot", 5, 3))],
        "",
        [LAST, "zone-a is held by its boot window of 8: 5 under way and 3 failures not yet weighed."],
    ),
    (
        "lc paused",
        {},
        [],
        [config("zone-a", state="paused", state_reason="maintenance", state_by="me")],
        "",
        [LAST, "zone-a is paused by me: maintenance."],
    ),
    (
        "lease queue",
        {},
        [],
        [config("zone-a", stages=stage("launch", 6, 0))],
        "",
        [
            LAST,
            "6 workers wait for admission or for the provider's answer.",
            "  Lease pool sim-a: 45 of 45 held (full), 7 wait, the oldest for 5 s; one asked for now waits about 8.2 s.",
        ],
    ),
    (
        "calculator",
        {},
        [],
        [],
        "The weight-calculator is not ready (starting)",
        [
            LAST,
            "The weight-calculator is not ready (starting): without it windows shrink to 4, and weights drift to the "
            "declared ones.",
        ],
    ),
]


@pytest.mark.parametrize(
    ("pool", "brakes", "configs", "calculator", "rest"), [case[1:] for case in POOLS], ids=[case[0] for case in POOLS]
)
def test_pool(
    pool: dict[str, Any], brakes: list[dict[str, Any]], configs: list[dict[str, Any]], calculator: str, rest: list[str]
) -> None:
    """What binds, and nothing else."""
    told = of_pool(POOL | pool, [CALM], configs, brakes, [LEASE_POOL], calculator=calculator, now=NOW)
    assert told[2:] == rest
    assert pool or told[:2] == BALANCE


def test_pool_that_needs_more_says_who_got_what() -> None:
    told = of_pool(POOL, [DECISION], [], [], [], calculator="", now=NOW)
    assert told == [
        *BALANCE,
        "Last decision, at 14:28:20: 5 needed, room for 3.",
        "  zone-b got 2: weight 0.25, room for 9.",
        "  zone-c got 1 as a probe: weight 0.05, room for 4.",
        "  zone-a got nothing: the boot window is full (weight 0.5, room for 0).",
    ]


def test_pool_of_which_nothing_is_known_yet() -> None:
    pool = POOL | {"wanted": None, "needed": None, "pending": 0, "claimed": 0, "oldest_wait_seconds": None}
    assert of_pool(pool, [], [], [], [], calculator="", now=NOW) == [
        "Pool linux has not decided yet (between 0 and 60) for 0 tasks pending and 0 running.",
        BALANCE[1],
        "Nobody has reported any demand.",
    ]


def test_silent_source_is_named() -> None:
    silent = DECISION["why"] | {"needed": 0, "sources": {"queue": {"pending": 9, "claimed": 3, "stale": True}}}
    told = of_pool(POOL, [CALM | {"why": silent}], [], [], [], calculator="", now=NOW)
    assert told[2] == "Source queue is silent: its 9 pending ask for nothing, and still protect workers."
