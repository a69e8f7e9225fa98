"""A world to be explained: a pool, its decision, a worker, its lease."""

from datetime import UTC, datetime, timedelta
from typing import Any

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
SHARES = [
    "→ zone-b got 2: weight 0.25, room for 9.",
    "  zone-c got 1 as a probe: weight 0.05, room for 4.",
    "  zone-a got nothing: the boot window is full (weight 0.5, room for 0).",
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
LAUNCH_STOP = {"scope": "all", "scope_id": "", "reason": "bad image", "by": "me", "until": None, "at": ago(9)}
FREE = LEASE_POOL | {"held": 3, "waiting": 0}
