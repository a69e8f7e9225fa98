"""Services that answer the `slipway` command from a table and record its requests, as one server with a path for each
service; for tests of the command's requests, output and exit codes.

Every answer has all fields of the real one: `tests/contract/test_commands.py` compares them.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import uvicorn
from fastapi import FastAPI, Header

from slipway_common.base.clock import utc_now
from slipway_common.declaration.models import LeasePool, WorkerPool
from slipway_common.web import problem
from slipway_common.web.problem import Problem

NOWHERE = "http://127.0.0.1:1"
SERVICES = ("provisioner", "weight-calculator", "lease-broker")
ID = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"
CONFIG_ID = "zone-a@3f2c9a"
TWIN = "01981c6e-8f7a-7d53-9c55-2b7f4f9a12cd"
DECISION = "01981c6e-8f7a-7d53-9c55-2b7f3f9a0000"
AT = "2026-08-01T14:03:07Z"


EXAMPLES: Final = Path(__file__).parents[2] / "contracts/examples"


def worker(id_: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "pool_id": "linux",
        "launch_config_id": CONFIG_ID,
        "account_id": "sim-a",
        "image_revision": "linux-1",
        "state": "running",
        "decision_id": DECISION,
        "probe_permit": None,
        "request_id": "r",
        "lease_id": "l",
        "batch_id": "b",
        "instance_id": "i-7",
        "requested_at": AT,
        "launched_at": AT,
        "registered_at": AT,
        "first_claimed_at": None,
        "idle_since": None,
        "last_seen_at": AT,
        "stopping_at": None,
        "leave_after_task": False,
        "drain_until": None,
        "termination_refusals": 0,
        "termination_refused_at": None,
        "stuck_at": None,
        "task_slots": 1,
        "ended_at": None,
        "failed_at": None,
        "notice": "",
        "reason": "",
    } | fields


WORKER_DETAILS: dict[str, Any] = {
    "workspace": None,
    "timeline": [{"at": AT, "what": "requested", "detail": f"on {CONFIG_ID}"}],
    "decision": {"id": DECISION, "at": AT, "reason": "2 needed", "launched": 2},
    "batch": {
        "id": "b",
        "launch_config_id": CONFIG_ID,
        "pool_id": "linux",
        "account_id": "sim-a",
        "lease_id": "l",
        "units": 1,
        "state": "done",
        "outcome": "launched",
        "repeats": 0,
        "started_at": AT,
        "timeout_seconds": 60.0,
        "visibility_seconds": 0.0,
        "repeatable": True,
        "call_deadline": AT,
        "called_at": AT,
        "called_seconds": 0.0,
        "handle": "",
        "poll_at": None,
        "price": None,
    },
    "lease": {
        "id": "l",
        "request_id": "r",
        "lease_pool_id": "sim-a",
        "launch_config_id": CONFIG_ID,
        "fencing_token": 7,
        "units": 1,
        "state": "confirmed",
        "expires_at": AT,
        "hold_until": AT,
        "renewed_at": AT,
    },
}
# The record that the weight-calculator publishes; the provisioner shows the last one of each config.
WEIGHT: dict[str, Any] = json.loads((EXAMPLES / "io.slipway.weight.changed.v1.json").read_text())["data"]
STAGES = {name: {"in_flight": 1, "unfolded": 2, "window": 9} for name in ("launch", "boot", "claim")}
CONFIG = {
    "id": CONFIG_ID,
    "name": "zone-a",
    "revision": "3f2c9a",
    "current": True,
    "replaced_by": "",
    "proven": True,
    "succeeded_starts": 50,
    "needed_starts": 5,
    "drain_from": None,
    "drain_until": None,
    "share": 1.0,
    "drain_terminate": False,
    "max_capacity": 20,
    "live": 7,
    "pool_id": "linux",
    "account_id": "sim-a",
    "lease_pool_id": "sim-a",
    "region": "sim-1",
    "zone": "a",
    "instance_type": "m5.large",
    "image_revision": "linux-1",
    "state": "active",
    "state_reason": "",
    "state_by": "",
    "paused_until": None,
    "base_weight": 2.0,
    "price_factor": 1.0,
    "task_slots": 1,
    "profile": "on-demand",
    "health_state": "healthy",
    "weight": 0.5,
    "health": 1.0,
    "tripped_stage": "",
    "tripped_by": "",
    "tripped_by_id": "",
    "tripped_since": None,
    "next_probe_at": None,
    "probe_ready": False,
    "starting": 3,
    "running": 4,
    "stopping": 0,
    "launched": 53,
    "booted": 50,
    "failed": 6,
    "reason": "zone-a@3f2c9a healthy",
    "stages": STAGES,
    "shared": [
        {
            "kind": "image",
            "id": "linux-1",
            "stage": "boot",
            "window": 39,
            "state": "healthy",
            "unconfirmed": 0,
            "reason": "",
        }
    ],
}
CONFIG_DETAILS = {
    "deadlines": {
        "registration_seconds": 900.0,
        "first_claim_seconds": 300.0,
        "idle_seconds": 120.0,
        "idle_despite_demand_seconds": 300.0,
        "unresponsive_seconds": 900.0,
        "maximum_age_seconds": 7200.0,
    },
    "settings": {"disk_gb": 40},
    "record": WEIGHT,
    "recent_failures": [{"worker_id": ID, "at": AT, "reason": "InsufficientCapacity"}],
    "recent_errors": [],
}
POOL = {
    "id": "linux",
    "min_capacity": 0,
    "max_capacity": 60,
    "scaling_ratio": "1",
    "mode": "enforce",
    "profile": None,
    "boot_evidence": "agent",
    "claim_evidence": "agent",
    "on_bad_image": "freeze",
    "freeze_after": 5,
    "paused": False,
    "paused_reason": "",
    "paused_by": "",
    "paused_until": None,
    "frozen": False,
    "frozen_reason": "",
    "frozen_by": "",
    "pending": 9,
    "claimed": 3,
    "stale_sources": 0,
    "backlog_seconds": 130.0,
    "wanted": 12,
    "serving": 10,
    "running": 6,
    "leaving": 0,
    "needed": 2,
    "throttled": [],
}
SOURCE = {
    "pool_id": "linux",
    "source": "queue",
    "pending": 9,
    "claimed": 3,
    "observed_at": AT,
    "received_at": AT,
    "reported_by": "/monitors/queue",
    "valid_until": AT,
    "protected_until": AT,
    "state": "stale",
}
LAUNCH_CONFIG = {
    "name": "zone-a",
    "account": "sim-a",
    "zone": "a",
    "instance_type": "m5.large",
    "image": "linux-1",
}
DECLARED = WorkerPool.model_validate({"id": "linux", "max_capacity": 60, "launch_configs": [LAUNCH_CONFIG]})
POOL_DETAILS = {"declared": DECLARED.model_dump(mode="json"), "owner": "slipway.yaml"}
WHY = {
    "id": DECISION,
    "pool_id": "linux",
    "at": AT,
    "last_at": AT,
    "times": 1,
    "launched": 2,
    "reason": "2 needed",
    "details": {
        "tasks": 12,
        "wanted": 12,
        "serving": 10,
        "leaving": 0,
        "stuck": 0,
        "missing": 2,
        "needed": 2,
        "launched": 2,
        "surplus": 0,
        "lasting_surplus": 0,
        "alerted": False,
        "code": "launched",
        "reason": "2 needed",
        "sources": {"queue": {"pending": 9, "claimed": 3, "gone": 0, "stale": False}},
        "configs": {
            CONFIG_ID: {"weight": 0.5, "room": 8, "limited_by": "", "launched": 2},
            "zone-b@8b1d00": {
                "weight": 0.4,
                "room": 0,
                "limited_by": "boot window",
                "launched": 0,
                "reason": "the boot window is full",
            },
        },
    },
}
LEASE_POOL: dict[str, Any] = LeasePool.model_validate({"id": "sim-a", "limit": 45, "mode": "shadow"}).model_dump() | {
    "owner": "slipway.yaml",
    "revision": 1,
    "archived": False,
    "reason": f"first\nlease {ID}: 8 units free",
    "limit_in_force": 45,
    "limit_reason": "pinned: ratchet",
    "pinned_reason": "ratchet",
    "drained_reason": None,
    "derived_units": None,
    "derived_until": None,
    "blocked_until": None,
    "held": 40,
    "waiting": 2,
    "requests": 2,
    "oldest_wait_seconds": 3.0,
    "granted_per_minute": 30,
    "eta_seconds": 4.0,
    "pacing_in_force": {"default": {"interval_seconds": 13.3, "burst": 1}, "operations": {}},
}
SIGNAL: dict[str, Any] = {
    "source": "page",
    "kind": "degraded",
    "target_kind": "zone",
    "target_id": "b",
    "value": 0.5,
    "reason": "slow",
    "configs": ["zone-b@8b1d00", "win-b@3f2c9a"],
    "since": AT,
    "until": "2026-08-01T14:33:07Z",
}
REFUSED_SIGNAL: dict[str, Any] = {
    "at": AT,
    "source": "page",
    "kind": "up",
    "target_kind": "zone",
    "target_id": "b",
    "reason": "kind: unknown kind 'up'",
}
TOPIC: Final = "slipway.lease.request.v1"
DEAD_LETTER: dict[str, Any] = {
    "topic": TOPIC,
    "partition": 3,
    "offset": 7,
    "subject": "l-1",
    "state": "dead",
    "reason": "no lease pool",
    "record_at": AT,
    "at": AT,
    "undecoded": False,
}
STOPPED_PARTITION: dict[str, Any] = {"topic": TOPIC, "partition": 3, "reason": "another cluster"}
ACCOUNT: dict[str, Any] = {
    "id": "sim-a",
    "owner": "slipway.yaml",
    "provider": "simulated",
    "region": "sim-1",
    "identity": "sim-a",
    "lease_pool_id": "sim-a",
    "removed": False,
    "unreachable": False,
    "retired": False,
    "unanswered_since": None,
    "throttled": False,
    "throttled_since": None,
    "throttled_calls": 0,
    "mass_unresponsive": False,
    "listing_problem": "",
    "passed_at": AT,
    "checked_at": AT,
    "problems": 0,
    "warnings": 0,
    "problem": "",
    "serving": 9,
    "leaving": 1,
    "unknown_calls": 0,
    "may_still_run": 0,
}
FINDING: Final[dict[str, Any]] = {
    "kind": "identity",
    "subject": "",
    "state": "ok",
    "message": "sim-a",
    "remedy": "",
}
LIMIT = {
    "scope": "account",
    "scope_id": "sim-a",
    "launches_per_hour": 20,
    "launches": 17,
    "launches_left": 0,
    "launches_free_at": None,
    "spend_per_day": "60",
    "spend": "12.5",
    "spend_left": "47.5",
    "spend_free_at": None,
    "unpriced": 0,
    "lifetime_seconds": 7200.0,
    "default_price": None,
    "waiting": 3,
    "reached": "launches",
}
MACHINE: dict[str, Any] = {
    "worker_id": ID,
    "account_id": "sim-a",
    "pool_id": "linux",
    "launch_config_id": CONFIG_ID,
    "batch_id": TWIN,
    "instance_id": None,
    "since": AT,
}
DEPLOYMENT: dict[str, Any] = {"id": "slipway-4be1c07d2a9f4e10", "incarnation": "8a1f"}
RECOVERY: dict[str, Any] = {
    "unconfirmed": "",
    "restored": "",
    "compared": True,
    "orphans": [],
    "missing": [],
    "open_calls": [],
    "lost_claims": [],
    "not_listed": [],
}
STATE_KEY: Final = {"id": "5d49e155344b6124", "documents": 3, "available": True, "encrypts": True}
ANSWERS: dict[str, Any] = {
    "pools": {"items": [POOL]},
    "pools/linux": POOL | POOL_DETAILS,
    "pools/linux/decisions": {"items": [WHY], "next": None},
    "pools/linux/rollback": {"to_revision": 4, "items": [], "dangers": [], "refused": ""},
    "launch-configs": {"items": [CONFIG]},
    "launch-configs/zone-a": CONFIG | CONFIG_DETAILS,
    f"launch-configs/{CONFIG_ID}": CONFIG | CONFIG_DETAILS,
    "workers": {"items": [worker(ID), worker(TWIN, state="stopped")], "next": None},
    f"workers/{ID}": worker(ID) | WORKER_DETAILS,
    f"decisions/{DECISION}": WHY,
    "state-keys": {"items": [STATE_KEY]},
    "accounts": {"items": [ACCOUNT]},
    "launch-limits": {"items": [LIMIT]},
    "accounts/sim-a": ACCOUNT | {"findings": [FINDING], "machines": [MACHINE]},
    "deployment": DEPLOYMENT,
    "recovery": RECOVERY,
    "launch-stops": {"items": []},
    "demand": {"items": [SOURCE], "next": None},
    "console-outputs": {"items": []},
    "lease-pools": {"items": [LEASE_POOL]},
    "weights": {"items": [WEIGHT]},
    "signals": {"items": [SIGNAL], "refused": [REFUSED_SIGNAL]},
}
REFUSALS = {
    "workers": "unknown-worker",
    "pools": "unknown-pool",
    "launch-configs": "unknown-config",
    "decisions": "unknown-decision",
    "leases": "unknown-lease",
    "accounts": "unknown-account",
}


class Services:
    """All services in one server."""

    def __init__(self) -> None:
        self.app = FastAPI()
        problem.install(self.app)
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.dead_letters = 0
        self.alerts: list[dict[str, Any]] = []  # open ones of the provisioner
        self.authorization: str | None = None  # of the last GET

        @self.app.get("/{service}/status")
        async def status(service: str) -> dict[str, Any]:
            return {
                "service": service,
                "version": "0.1.0",
                "ready": True,
                "reasons": [],
                "now": utc_now(),
                "database_now": utc_now(),
                "schema_revision": "0001",
                "partitions": [],
                "dead_letters": self.dead_letters if service == "lease-broker" else 0,
                "outbox_oldest_seconds": 0.0,
                "stopped_partitions": [],
                "leadership": None,
            }

        @self.app.get("/{service}/alerts")
        async def alerts(service: str) -> dict[str, Any]:
            return {"items": self.alerts if service == "provisioner" else []}

        @self.app.get("/{service}/{path:path}")
        async def get(path: str, authorization: Annotated[str | None, Header()] = None) -> Any:
            self.authorization = authorization
            if path not in ANSWERS:
                raise Problem(404, REFUSALS[path.partition("/")[0]], "No such thing", path)
            return ANSWERS[path]

        @self.app.post("/{service}/{path:path}")
        async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            self.received.append((path, body))
            if path.endswith("/check"):
                checked: dict[str, Any] = ANSWERS["accounts/sim-a"]
                return checked
            return {
                "id": ID,
                "state": "stopping",
                "was_stopped": body.get("scope") != "pool",
                "configs": [CONFIG_ID],
                "was_retired": body.get("reason") == "again",
                "may_still_run": 2,
                "stopped": 11,
                "phase": "unknown",
                "was_locked": True,
                "rejected": 1,
                "encrypted": 0,
                "not_authentic": [],
                "after": None,
                "left": 0,
                "unavailable": 0,
            }


@contextlib.contextmanager
def served() -> Iterator[tuple[Services, str]]:
    """The services with their URLs."""
    services = Services()
    with serving(services.app) as url:
        yield services, url


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The URL of an application that is served from a thread of its own."""
    config = uvicorn.Config(app, port=0, log_level="warning")
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    socket.listen()  # requests wait until the thread has started
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        socket.close()


def environment(url: str, *, kafka: str = "127.0.0.1:1", prefix: str = "") -> dict[str, str]:
    """Environment variables with the URLs of the services; by default there is no Kafka."""
    urls = {f"SLIPWAY_{name.upper().replace('-', '_')}_URL": f"{url}/{name}" for name in SERVICES}
    return urls | {"KAFKA": kafka, "TOPIC_PREFIX": prefix}
