"""Services that answer the `slipway` command with recordings of real ones and record its requests, as one server with a
path for each service; for tests of the command's requests, output and exit codes.

Tests give fields of a recorded answer other values, and no field that it does not have.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeVar

import msgspec
import uvicorn
from fastapi import FastAPI, Header, Query

from slipway_api.events.weight import WeightChanged
from slipway_api.http.lease_broker import Lease, LeaseDecision
from slipway_api.http.lease_pools import LeasePool
from slipway_api.http.provisioner.accounts import Account, AccountDetails, AccountFinding
from slipway_api.http.provisioner.decisions import Decision
from slipway_api.http.provisioner.declaration import RollbackPreview
from slipway_api.http.provisioner.demand import DemandSource
from slipway_api.http.provisioner.launch_configs import LaunchConfig, LaunchConfigDetails
from slipway_api.http.provisioner.pools import LaunchStop, Pool
from slipway_api.http.provisioner.recovery import Deployment
from slipway_api.http.provisioner.workers import WorkerDetails
from slipway_api.http.provisioner.workspaces import UnlockedWorkspace
from slipway_api.http.service import AuditEntry, ListedAlert, ServiceStatus
from slipway_common.base.clock import utc_now
from slipway_common.web import problem
from slipway_common.web.problem import Problem
from tests.support.known_parameters import KnownParameters
from tests.support.recording import AT, CONFIG_ID, DECISION, FILE, ID, LEASE, TWIN
from tests.support.serving import Server

__all__ = ["AT", "CONFIG_ID", "DECISION", "ID", "TWIN"]
NOWHERE = "http://127.0.0.1:1"
SERVICES = ("provisioner", "weight-calculator", "lease-broker")
T = TypeVar("T")

RECORDED: Final[dict[str, Any]] = json.loads(FILE.read_text())
OF_TYPE: Final[dict[type, Any]] = {
    Pool: RECORDED["pools"]["items"][0],
    LaunchConfig: RECORDED["launch-configs"]["items"][0],
    LaunchConfigDetails: RECORDED[f"launch-configs/{CONFIG_ID}"],
    WorkerDetails: RECORDED[f"workers/{ID}"],
    Decision: RECORDED[f"decisions/{DECISION}"],
    DemandSource: RECORDED["demand"]["items"][0],
    Account: RECORDED["accounts"]["items"][0],
    AccountDetails: RECORDED["accounts/sim-a"],
    LaunchStop: RECORDED["launch-stops"]["items"][0],
    RollbackPreview: RECORDED["pools/linux/rollback"],
    Deployment: RECORDED["deployment"],
    ServiceStatus: RECORDED["status"],
    AuditEntry: RECORDED["audit"]["items"][0],
    LeasePool: RECORDED["lease-pools"]["items"][0],
    Lease: RECORDED[f"leases/{LEASE}"],
    LeaseDecision: RECORDED[f"leases/{LEASE}/history"]["items"][0],
    WeightChanged: RECORDED["weights"]["items"][0],
}


def row(type_: type[T], *given: dict[str, Any], **fields: Any) -> T:
    """An answer with these fields; the others are as recorded, also in the objects in it."""
    recorded = OF_TYPE[type_]
    answer = dict(recorded)
    for changes in (*given, fields):
        answer |= {name: _filled(recorded.get(name), value) for name, value in changes.items()}
    return msgspec.convert(answer, type_)


def rows(type_: type[T], given: Any) -> list[T]:
    return [row(type_, one) for one in given]


def changed(recorded: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A recorded answer with other values."""
    assert fields.keys() <= recorded.keys(), fields.keys() - recorded.keys()
    return recorded | fields


def _filled(recorded: Any, given: Any) -> Any:
    """An object with the fields that are not given as recorded."""
    both = isinstance(recorded, dict) and isinstance(given, dict) and given.keys() < recorded.keys()
    return recorded | given if both else given


def worker(id_: str, **fields: Any) -> dict[str, Any]:
    return changed(
        RECORDED["workers"]["items"][0],
        **{"id": id_, "state": "running", "registered_at": AT, "instance_id": "i-7"} | fields,
    )


STAGES = {name: {"in_flight": 1, "unfolded": 2, "window": 9} for name in ("launch", "boot", "claim")}
SHARED = {
    "kind": "image",
    "id": "linux-1",
    "stage": "boot",
    "window": 39,
    "state": "healthy",
    "unconfirmed": 0,
    "reason": "",
}
OF_CONFIG: Final[dict[str, Any]] = {
    "max_capacity": 20,
    "live": 7,
    "base_weight": 2.0,
    "proven": True,
    "succeeded_starts": 50,
    "weight": 0.5,
    "health": 1.0,
    "starting": 3,
    "running": 4,
    "launched": 53,
    "booted": 50,
    "failed": 6,
    "stages": STAGES,
    "shared": [SHARED],
    "zone": "a",
}
CONFIG = changed(RECORDED["launch-configs"]["items"][0], **OF_CONFIG)
CONFIG_DETAILS = changed(
    RECORDED[f"launch-configs/{CONFIG_ID}"],
    **OF_CONFIG,
    settings={"disk_gb": 40},
    recent_failures=[{"worker_id": ID, "at": AT, "reason": "InsufficientCapacity"}],
)
WEIGHT = RECORDED["weights"]["items"][0]
OF_POOL: Final[dict[str, Any]] = {
    "max_capacity": 60,
    "pending": 9,
    "claimed": 3,
    "backlog_seconds": 130.0,
    "wanted": 12,
    "serving": 10,
    "running": 6,
    "needed": 2,
}
POOL = changed(RECORDED["pools"]["items"][0], **OF_POOL)
SOURCE = changed(
    RECORDED["demand"]["items"][0], source="queue", pending=9, claimed=3, state="stale", reported_by="/monitors/queue"
)
_DETAILS: Final[dict[str, Any]] = RECORDED[f"decisions/{DECISION}"]["details"]
_NOTES: Final[list[dict[str, Any]]] = [
    {"weight": 0.5, "room": 8, "launched": 2},
    {"weight": 0.4, "room": 0, "reason": "the boot window is full"},
]
WHY = changed(
    RECORDED[f"decisions/{DECISION}"],
    launched=2,
    reason="2 needed",
    details=changed(
        _DETAILS,
        needed=2,
        tasks=12,
        wanted=12,
        configs={
            id_: changed(recorded, **note)
            for id_, recorded, note in zip(
                (CONFIG_ID, "zone-b@8b1d00"), _DETAILS["configs"].values(), _NOTES, strict=True
            )
        },
    ),
)
LEASE_POOL = changed(
    RECORDED["lease-pools"]["items"][0],
    limit=45,
    mode="shadow",
    reason=f"first\nlease {ID}: 8 units free",
    limit_in_force=45,
    limit_reason="pinned: ratchet",
    pinned_reason="ratchet",
    held=40,
    waiting=2,
    requests=2,
    oldest_wait_seconds=3.0,
    granted_per_minute=30,
    eta_seconds=4.0,
)
SIGNAL = changed(
    RECORDED["signals"]["items"][0],
    target_id="b",
    configs=["zone-b@8b1d00", "win-b@3f2c9a"],
    until="2026-08-01T14:33:07Z",
)
REFUSED_SIGNAL = changed(RECORDED["signals"]["refused"][0], reason="kind: unknown kind 'up'")
TOPIC: Final = "slipway.lease.request.v1"
DEAD_LETTER: Final[dict[str, Any]] = {
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
LISTED_ALERT: Final[dict[str, Any]] = dict.fromkeys(ListedAlert.__struct_fields__, "") | {
    "id": 1,
    "since": AT,
    "raised_at": AT,
    "closed_at": None,
    "silenced_until": None,
    "evidence": [],
    "console": [],
}
STOPPED_PARTITION: Final[dict[str, Any]] = {"topic": TOPIC, "partition": 3, "reason": "another cluster"}
ACCOUNT = changed(RECORDED["accounts"]["items"][0], checked_at=AT, serving=9, leaving=1)
FINDING = msgspec.to_builtins(AccountFinding(kind="identity", subject="", state="ok", message="sim-a", remedy=""))
LIMIT = changed(
    RECORDED["launch-limits"]["items"][0],
    launches=17,
    launches_left=0,
    spend="12.5",
    spend_left="47.5",
    waiting=3,
    reached="launches",
)
MACHINE: Final[dict[str, Any]] = {
    "worker_id": ID,
    "account_id": "sim-a",
    "pool_id": "linux",
    "launch_config_id": CONFIG_ID,
    "batch_id": TWIN,
    "instance_id": None,
    "since": AT,
}
RECOVERY: Final[dict[str, Any]] = RECORDED["recovery"]
STATE_KEY = changed(
    RECORDED["state-keys"]["items"][0], id="5d49e155344b6124", documents=3, available=True, encrypts=True
)
ANSWERS: dict[str, Any] = RECORDED | {
    "pools": {"items": [POOL]},
    "pools/linux": changed(RECORDED["pools/linux"], **OF_POOL),
    "pools/linux/decisions": {"items": [WHY], "next": None},
    "pools/linux/rollback": changed(RECORDED["pools/linux/rollback"], to_revision=4, refused=""),
    "launch-configs": {"items": [CONFIG]},
    "launch-configs/zone-a": CONFIG_DETAILS,
    f"launch-configs/{CONFIG_ID}": CONFIG_DETAILS,
    "workers": {"items": [worker(ID), worker(TWIN, state="stopped")], "next": None},
    f"workers/{ID}": changed(RECORDED[f"workers/{ID}"], state="running", registered_at=AT),
    f"decisions/{DECISION}": WHY,
    "state-keys": {"items": [STATE_KEY]},
    "accounts": {"items": [ACCOUNT]},
    "launch-limits": {"items": [LIMIT]},
    "accounts/sim-a": changed(
        RECORDED["accounts/sim-a"], checked_at=AT, serving=9, leaving=1, findings=[FINDING], machines=[MACHINE]
    ),
    "launch-stops": {"items": []},
    "demand": {"items": [SOURCE], "next": None},
    "lease-pools": {"items": [LEASE_POOL]},
    "signals": {"items": [SIGNAL], "refused": [REFUSED_SIGNAL]},
}
_UNLOCKED: Final = UnlockedWorkspace(
    id=ID,
    deployment="d",
    incarnation="i",
    account_id="sim-a",
    batch_id=TWIN,
    ordinal=0,
    launch_config_id=CONFIG_ID,
    phase="unknown",
    effects_seconds=0.0,
    holder="",
    fence=1,
    locked_until=None,
    effects_until=None,
    due_at=None,
    failed_runs=0,
    interruptions=0,
    instance_id=None,
    address="",
    outcome=None,
    problem="",
    created_at=None,
    refreshed_at=None,
    ended_at=None,
    was_locked=True,
)
POSTED: Final[dict[str, Any]] = {
    path.removeprefix("POST "): answer for path, answer in RECORDED.items() if path.startswith("POST ")
} | {
    "signals": {"source": "page", "configs": [CONFIG_ID]},
    f"workers/{ID}/state": {"state": "the state", "rejected": 1},
    "accounts/sim-a/confirm-unresponsive": {"id": "sim-a", "stopped": 11},
    "accounts/sim-a/retire": ACCOUNT | {"may_still_run": 2, "was_retired": False},
    "accounts/sim-a/reinstate": ACCOUNT,
    f"workers/{ID}/unlock": msgspec.to_builtins(_UNLOCKED),
    f"workers/{ID}/terminate": worker(ID, state="stopping"),
    "state-keys/rotate": {"encrypted": 0, "not_authentic": [], "after": None, "left": 0, "unavailable": 0},
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
        self.alerts: list[dict[str, Any]] = []  # of the provisioner
        self.authorization: str | None = None  # of the last GET

        @self.app.get("/{service}/status")
        async def status(service: str) -> dict[str, Any]:
            return changed(
                RECORDED["status"],
                service=service,
                ready=True,
                reasons=[],
                database_tls=True,
                now=utc_now(),
                database_now=utc_now(),
                dead_letters=self.dead_letters if service == "lease-broker" else 0,
            )

        @self.app.get("/{service}/alerts")
        async def alerts(service: str, open_: Annotated[bool | None, Query(alias="open")] = None) -> dict[str, Any]:
            kept = [alert for alert in self.alerts if open_ in (None, alert["closed_at"] is None)]
            return {"items": kept if service == "provisioner" else [], "next": None}

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
                return ANSWERS["accounts/sim-a"]  # type: ignore[no-any-return]
            answer = POSTED.get(path)
            if answer is None:
                verb = path.rpartition("/")[2]
                answer = next(POSTED[known] for known in POSTED if known.endswith(f"/{verb}"))
            if "was_retired" in answer:
                return changed(answer, was_retired=body["reason"] == "again")
            return changed(answer, was_stopped=body["scope"] != "pool") if "was_stopped" in answer else answer


@contextlib.contextmanager
def served() -> Iterator[tuple[Services, str]]:
    """The services with their URLs."""
    services = Services()
    with serving(services.app) as url:
        yield services, url


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The URL of an application that is served from a thread of its own."""
    config = uvicorn.Config(KnownParameters(app), port=0, log_level="warning")
    server = Server(config)
    socket = config.bind_socket()
    socket.listen()  # requests wait until the thread has started
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.end()
        thread.join()
        socket.close()


def environment(url: str, *, kafka: str = "127.0.0.1:1", prefix: str = "") -> dict[str, str]:
    """Environment variables with the URLs of the services; by default there is no Kafka."""
    urls = {f"SLIPWAY_{name.upper().replace('-', '_')}_URL": f"{url}/{name}" for name in SERVICES}
    return urls | {"KAFKA": kafka, "TOPIC_PREFIX": prefix}
