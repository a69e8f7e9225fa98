"""Answers of real services on real rows, recorded for tests of clients by `make recordings`.

`tests/contract/test_recordings.py` compares the recorded fields with those that the services answer now.
"""

import functools
import json
import re
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from slipway_api.events.signal import SignalRaised
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.providers.port import Refused
from tests.support import harness
from tests.support.deployment import Deployment
from tests.support.provisioner import revision_id
from tests.support.weight_calculator import START

FILE: Final = Path(__file__).parents[1] / "recordings/answers.json"
ID: Final = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"
TWIN: Final = "01981c6e-8f7a-7d53-9c55-2b7f4f9a12cd"
DECISION: Final = "01981c6e-8f7a-7d53-9c55-2b7f3f9a0000"
LEASE: Final = "01981c6e-8f7a-7d53-9c55-2b7f3f9a1eaf"
CONFIG_ID: Final = "zone-a@3f2c9a"
AT: Final = "2026-08-01T14:03:07Z"

PATHS: Final = (
    "pools",
    "pools/linux",
    "pools/linux/decisions",
    "pools/linux/rollback",
    "launch-configs",
    f"launch-configs/{CONFIG_ID}",
    "workers",
    f"workers/{ID}",
    f"decisions/{DECISION}",
    "state-keys",
    "accounts",
    "accounts/sim-a",
    "launch-limits",
    "launch-stops",
    "deployment",
    "recovery",
    "demand",
    "console-outputs",
    "errors",
    "alerts",
    "audit",
    "status",
    "weights",
    "signals",
    "lease-pools",
    "leases",
    f"leases/{LEASE}",
    f"leases/{LEASE}/history",
)
POSTS: Final[dict[str, dict[str, Any]]] = {
    "signals": {
        "target_kind": "zone",
        "target_id": "zone-b",
        "kind": "degraded",
        "reason": "r",
        "observed_at": f"{START:%Y-%m-%dT%H:%M:%SZ}",
    },
    "pools/linux/pause": {"reason": "r", "until": "2027-08-01T14:03:07Z"},
    "pools/linux/resume": {"reason": "r"},
    "pools/linux/freeze": {"reason": "r"},
    "pools/linux/unfreeze": {"reason": "r"},
    "launch-configs/zone-a/pause": {"reason": "r"},
    "launch-configs/zone-a/resume": {"reason": "r"},
    "stop-launching": {"scope": "pool", "scope_id": "linux", "reason": "r"},
    "start-launching": {"scope": "pool", "scope_id": "linux", "reason": "r"},
    "accounts/sim-a/check": {},
    "accounts/sim-a/confirm-unresponsive": {"reason": "r"},
    f"workers/{ID}/terminate": {"reason": "r"},
}
_LIMIT: Final = """
INSERT INTO launch_limit (scope, scope_id, launches_per_hour, spend_per_day, lifetime_seconds)
VALUES ('account', 'sim-a', 20, 60, 7200)"""
_DOCUMENT: Final = """
INSERT INTO workspace_document (workspace_id, kind, key_id, encrypted) VALUES (gen_random_uuid(), 'state', 'key', '')"""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def record(deployment: Deployment) -> dict[str, Any]:
    """Answers by path, with the ids and times that tests know. A pool has two launch configs, of which one is paused,
    a worker that boots and launches that were refused."""
    provisioner, calculator = deployment.provisioner, deployment.calculator
    await deployment.apply("zone-a", "zone-b")
    await calculator.publish()
    signal: dict[str, Any] = {"source": "page", "target_kind": "zone", "target_id": "zone-b", "reason": "slow"}
    degraded = SignalRaised(kind="degraded", value=0.5, observed_at=START, **signal)
    await calculator.consume(degraded, msgspec.structs.replace(degraded, kind="up"))
    await deployment.slipway("lc", "pause", "zone-b", "--reason", "maintenance")
    worker = (await deployment.starting(1))[0]
    await provisioner.database.execute(_LIMIT)
    await provisioner.database.execute(_DOCUMENT)
    capacity = "sim-a/sim-1/zone-a/m5.large/on-demand"
    refused = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, capacity, "InsufficientCapacity")
    provisioner.cloud.script.append(Refused(refused, "no"))
    await deployment.starting(2)
    held = ("lease", "acquire", "--pool", "sim-a", "--max-wait", "0")
    lease = (await deployment.slipway(*held)).partition(":")[0]
    await deployment.slipway("stop-launching", "--account", "sim-a", "--reason", "bad image")

    headers = {"Authorization": f"Bearer {deployment.environment['SLIPWAY_TOKEN']}"}
    async with httpx2.AsyncClient(timeout=harness.PATIENCE_SECONDS, headers=headers) as client:

        async def answer(method: str, path: str, body: dict[str, Any] | None = None) -> str:
            """The answer of the service that has the path."""
            refusals = []
            for name in ("PROVISIONER", "WEIGHT_CALCULATOR", "LEASE_BROKER"):
                url = f"{deployment.environment[f'SLIPWAY_{name}_URL']}/{path}"
                answer = await client.request(method, url, json=body)
                if answer.is_success:
                    return answer.text
                refusals.append(answer.text)
            raise AssertionError((path, refusals))

        def real(path: str) -> str:
            return functools.reduce(lambda text, name: text.replace(name, names[name]), names, path)

        shown = json.loads(await answer("GET", f"workers/{worker}"))
        names = {ID: worker, DECISION: shown["decision_id"], CONFIG_ID: revision_id(), LEASE: lease}
        recorded = {path: await answer("GET", real(path)) for path in PATHS}
        recorded |= {f"POST {path}": await answer("POST", real(path), body) for path, body in POSTS.items()}
        return {path: json.loads(_anonymous(text, names)) for path, text in recorded.items()}


def _anonymous(text: str, names: dict[str, str]) -> str:
    """An answer with known ids and times, so that a recording of the same rows is the same."""
    known = {actual: name for name, actual in names.items()}
    text = functools.reduce(lambda text, actual: text.replace(actual, known[actual]), known, text)
    text = _UUID.sub(lambda found: found[0] if found[0] in names else TWIN, text)
    return _TIME.sub(AT, text)
