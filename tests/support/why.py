"""A world to be explained: a pool, its decision, a worker, its lease; fields that a test does not give are as recorded,
or as of something that nothing has happened to."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from slipway_api.http.lease_broker import Lease, LeaseDecision
from slipway_api.http.lease_pools import LeasePool
from slipway_api.http.provisioner.accounts import AccountDetails
from slipway_api.http.provisioner.decisions import Decision
from slipway_api.http.provisioner.declaration import RollbackPreview
from slipway_api.http.provisioner.demand import DemandSource
from slipway_api.http.provisioner.launch_configs import LaunchConfigDetails
from slipway_api.http.provisioner.pools import LaunchStop, Pool
from slipway_api.http.provisioner.workers import ConsoleOutput, WorkerDetails, WorkerWorkspace
from slipway_client.view.why import configs as why_configs
from slipway_client.view.why import leases as why_leases
from slipway_client.view.why import pools as why_pools
from slipway_client.view.why import workers as why_workers
from slipway_client.view.why.explanation import Explanation, Facts
from tests.support.recorded import row, rows

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


Row = dict[str, Any]
Rows = Iterable[Row]
_UNTOUCHED: Final[Row] = {
    "proven": True,
    "tripped_stage": None,
    "tripped_by": None,
    "tripped_by_id": None,
    "tripped_since": None,
    "starting": 0,
    "running": 0,
    "live": 0,
    "shared": [],
    "recent_failures": [],
    "recent_errors": [],
}
_SHARED: Final[Row] = {"unconfirmed": 0, "reason": "", "window": None, "stage": "boot"}
_REQUESTED: Final[Row] = dict.fromkeys(
    ("launched_at", "registered_at", "instance_id", "lease", "batch", "workspace", "stopping_at", "ended_at")
)
_AT_ITS_LIMIT: Final[Row] = {"reason": "", "limit_in_force": None}
_WORKSPACE: Final[Row] = dict.fromkeys(WorkerWorkspace.__struct_fields__) | {
    "id": "w-1",
    "phase": "launching",
    "failed_runs": 1,
    "rejected_states": 0,
    "state_problem": "",
}
_NOTE: Final[Row] = {"weight": 1.0, "room": 0, "limited_by": "", "launched": 0}
_CONSOLE: Final[Row] = {
    "image_revision": "linux-1",
    "pool_id": "linux",
    "launch_config_id": "zone-a",
    "batch_id": "b-1",
    "worker_id": "w-1",
    "attempts": 1,
    "requested_at": ago(60),
    "settled_at": None,
    "resolved_at": None,
    "lines": [],
    "problem": "",
}


def of(config: Row) -> LaunchConfigDetails:
    shared = [_SHARED | one for one in config.get("shared") or ()]
    return row(LaunchConfigDetails, _UNTOUCHED, config, shared=shared)


def _decisions(given: Rows) -> list[Decision]:
    return [_decision(one) for one in given]


def _decision(given: Row) -> Decision:
    details = {"reason": ""} | given["details"]
    if "configs" in details:
        details["configs"] = {id_: _NOTE | note for id_, note in details["configs"].items()}
    return msgspec.convert({"pool_id": "linux", "times": 1} | given | {"details": details}, Decision)


def of_pool(
    pool: Row,
    decisions: Rows,
    configs: Rows,
    launch_stops: Rows,
    lease_pools: Rows,
    *,
    sources: Rows,
    calculator: str,
    broker: str = "",
    rollback: Row | None = None,
    accounts: Rows = (),
    now: datetime,
) -> Explanation:
    facts = Facts(
        now=now,
        configs=list(map(of, configs)),
        launch_stops=rows(LaunchStop, launch_stops),
        lease_pools=_pools(lease_pools),
        accounts=rows(AccountDetails, accounts),
        decisions=_decisions(decisions),
        rollback=_rollback(rollback),
    )
    return why_pools.of_pool(
        row(Pool, pool), facts, sources=rows(DemandSource, sources), calculator=calculator, broker=broker
    )


def of_config(
    config: Row,
    pool: Row,
    launch_stops: Rows,
    lease_pools: Rows,
    *,
    siblings: Rows = (),
    rollback: Row | None = None,
    accounts: Rows = (),
    decisions: Rows = (),
    now: datetime,
) -> Explanation:
    facts = Facts(
        now=now,
        configs=[of(config)],
        launch_stops=rows(LaunchStop, launch_stops),
        lease_pools=_pools(lease_pools),
        accounts=rows(AccountDetails, accounts),
        decisions=_decisions(decisions),
        rollback=_rollback(rollback),
    )
    return why_configs.of_config(of(config), row(Pool, pool), facts, siblings=list(map(of, siblings)))


def of_image(
    revision: str,
    configs: Rows,
    rollback: Row | None = None,
    *,
    newest: Sequence[Rows] = (),
    consoles: Rows = (),
    now: datetime,
) -> Explanation:
    decisions = [decision for decided in newest for decision in _decisions(decided)]
    facts = Facts(now=now, configs=list(map(of, configs)), decisions=decisions, rollback=_rollback(rollback))
    return why_configs.of_image(revision, facts, consoles=_consoles(consoles))


def of_worker(
    worker: Row,
    decision: Row | None,
    lease_pool: Row | None,
    *,
    config: Row | None = None,
    consoles: Rows = (),
    now: datetime,
) -> Explanation:
    workspace = worker.get("workspace")
    return why_workers.of_worker(
        row(WorkerDetails, _REQUESTED, worker | {"workspace": workspace and _WORKSPACE | workspace}),
        None if decision is None else _decision(decision),
        None if lease_pool is None else _pools([lease_pool])[0],
        config=None if config is None else of(config),
        consoles=_consoles(consoles),
        now=now,
    )


def of_lease_pool(pool: Row, configs: Rows, *, now: datetime) -> Explanation:
    return why_leases.of_lease_pool(_pools([pool])[0], list(map(of, configs)), now=now)


def of_lease(lease: Row, history: Rows, *, now: datetime) -> Explanation:
    return why_leases.of_lease(row(Lease, {"reason": ""}, lease), rows(LeaseDecision, history), now=now)


def _rollback(given: Row | None) -> RollbackPreview | None:
    return None if given is None else row(RollbackPreview, given)


def _pools(given: Rows) -> list[LeasePool]:
    return [row(LeasePool, _AT_ITS_LIMIT, one) for one in given]


def _consoles(given: Rows) -> list[ConsoleOutput]:
    return [msgspec.convert(_CONSOLE | one, ConsoleOutput) for one in given]
