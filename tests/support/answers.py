"""Services that answer the `slipway` command from a table and record its requests, as one server with a path for each
service; for tests of the command's requests, output and exit codes."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from slipway_common.base.clock import utc_now
from slipway_common.web import problem
from slipway_common.web.problem import Problem

NOWHERE = "http://127.0.0.1:1"
SERVICES = ("provisioner", "weight-calculator", "lease-broker")
ID = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"
TWIN = "01981c6e-8f7a-7d53-9c55-2b7f4f9a12cd"
DECISION = "01981c6e-8f7a-7d53-9c55-2b7f3f9a0000"
AT = "2026-08-01T14:03:07Z"


def worker(id_: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "pool_id": "linux",
        "launch_config_id": "zone-a",
        "account_id": "sim-a",
        "state": "running",
        "instance_id": "i-7",
        "requested_at": AT,
        "reason": "",
        "decision_id": DECISION,
        "probe_permit": None,
        "registered_at": AT,
        "launched_at": AT,
        "batch": None,
        "lease": None,
        "timeline": [{"at": AT, "what": "requested", "detail": "on zone-a"}],
    } | fields


STAGES = {name: {"in_flight": 1, "unfolded": 2, "window": 9} for name in ("launch", "boot", "claim")}
CONFIG = {
    "id": "zone-a",
    "pool_id": "linux",
    "account_id": "sim-a",
    "lease_pool_id": "sim-a",
    "image_revision": "linux-1",
    "zone": "a",
    "state": "active",
    "health_state": "healthy",
    "weight": 0.5,
    "starting": 3,
    "running": 4,
    "ok": 50,
    "failed": 6,
    "reason": "zone-a healthy",
    "stages": STAGES,
}
POOL = {
    "id": "linux",
    "mode": "enforce",
    "min_capacity": 0,
    "max_capacity": 60,
    "scaling_ratio": "1",
    "pending": 9,
    "claimed": 3,
    "wanted": 12,
    "serving": 10,
    "running": 6,
    "leaving": 0,
    "needed": 2,
    "backlog_seconds": 130.0,
}
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
        "needed": 2,
        "sources": {"queue": {"pending": 9, "claimed": 3, "gone": 0, "stale": False}},
        "configs": {
            "zone-a": {"weight": 0.5, "room": 8, "launched": 2},
            "zone-b": {"weight": 0.4, "room": 0, "launched": 0, "reason": "the boot window is full"},
        },
    },
}
LEASE_POOL = {
    "id": "sim-a",
    "limit": 45,
    "held": 40,
    "waiting": 2,
    "oldest_wait_seconds": 3.0,
    "granted_per_minute": 30,
    "eta_seconds": 4.0,
    "reason": f"first\nlease {ID}: 8 units free",
    "mode": "shadow",
    "pinned_reason": "ratchet",
    "drained_reason": None,
}
ANSWERS: dict[str, Any] = {
    "pools": {"items": [POOL]},
    "pools/linux": POOL,
    "pools/linux/decisions": {"items": [WHY]},
    "launch-configs": {"items": [CONFIG]},
    "launch-configs/zone-a": CONFIG
    | {
        "settings": {"disk_gb": 40},
        "record": {"stages": {"boot": {"probability": 0.75}}},
        "recent_failures": [{"worker_id": ID, "at": AT, "reason": "InsufficientCapacity"}],
    },
    "workers": {"items": [worker(ID), worker(TWIN, state="stopped")]},
    f"workers/{ID}": worker(ID),
    f"decisions/{DECISION}": WHY,
    "launch-stops": {"items": []},
    "lease-pools": {"items": [LEASE_POOL]},
}
REFUSALS = {
    "workers": "unknown-worker",
    "pools": "unknown-pool",
    "launch-configs": "unknown-config",
    "decisions": "unknown-decision",
    "leases": "unknown-lease",
}


class Services:
    """All services in one server."""

    def __init__(self) -> None:
        self.app = FastAPI()
        problem.install(self.app)
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.dead_letters = 0

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

        @self.app.get("/{service}/{path:path}")
        async def get(path: str) -> Any:
            if path not in ANSWERS:
                raise Problem(404, REFUSALS[path.partition("/")[0]], "No such thing", path)
            return ANSWERS[path]

        @self.app.post("/{service}/{path:path}")
        async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            self.received.append((path, body))
            return {"id": ID, "state": "stopping", "was_stopped": body.get("scope") != "pool", "configs": ["zone-a"]}


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
