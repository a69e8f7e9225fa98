"""Cost of 500 ready workers made by Terraform modules, against none in the same provisioner.

Their rows are stored as runs leave them, with states, since 500 applies would take minutes. Judged by the CPU time of
the provisioner and all its children in the process table, and by the processes of Terraform and of its plugins there.
"""

import asyncio
import base64
import os
from collections.abc import Sequence
from typing import Final

import msgspec
import psutil

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import new_id
from slipway_common.database import postgres
from slipway_common.declaration.parsing import parse
from slipway_local.demo.deployment import Deployment
from slipway_local.terraform.packages import missing
from slipway_provisioner.domain.workspaces import Kind, Phase, version_of
from slipway_provisioner.providers.terraform.adapter import Terraform
from slipway_provisioner.store import workspaces
from tests.drills.harness import Harness, Verdict, fetch
from tests.support.terraform_provider import account_settings, launch_settings
from tests.support.terraform_runs import Place, new_place
from tests.support.workspaces import ring, row, state

WORKERS: Final = 500
SHARE_MAX: Final = 0.02
"""Share of a core that the workers may cost."""
SECONDS: Final = 10.0
SAMPLE_SECONDS: Final = 0.1
ACCOUNT: Final = "idle"
WORKER: Final = """
INSERT INTO provisioner.worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, batch_id,
    instance_id, requested_at, launched_at, registered_at, idle_since, last_seen_at, traceparent)
SELECT b.id, 'idle', $3, 'idle', 'image-1', 'running', b.id, b.id, b.instance, now(), now(), now(), now(), now(), ''
FROM unnest($1::uuid[], $2::text[]) AS b (id, instance)"""
BATCH: Final = """
INSERT INTO provisioner.launch_batch (id, launch_config_id, account_id, lease_id, token, body, units, state, outcome,
    call_deadline, known_at)
SELECT b, $2, 'idle', 'none', b::text, '{}', 1, 'known', 'launched', now(), now() FROM unnest($1::uuid[]) AS b"""
CONFIG: Final = "SELECT id FROM provisioner.launch_config"
PASSES: Final = "SELECT passes FROM provisioner.account WHERE id = 'idle'"


class Usage(msgspec.Struct, frozen=True):
    """Share of a core that the provisioner used, and the most processes of Terraform and its plugins at a time."""

    share: float
    runs: int


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    if reason := missing():
        return Verdict("", [reason])
    key = base64.b64encode(os.urandom(32)).decode()
    with new_place() as place:
        environment = {"SLIPWAY_STATE_KEYS": key, "SLIPWAY_TERRAFORM_FOLDER": str(place.folder / "runs")}
        seconds = {"reap_seconds": 5.0}
        deployment = harness.new_deployment(seconds=seconds, environment={"provisioner": environment})
        settings = account_settings(place)
        entry = {name: settings[name] for name in Terraform.operator_settings}
        deployment.providers["terraform"] = {"entries": {"default": entry}}
        await deployment.start()
        await harness.play(deployment, parse(_declared(place)))
        await _passes(harness, deployment, 2)  # the first one looks up the identity of the account
        before = await _measured(deployment)
        await _store(deployment, place, key)
        await _passes(harness, deployment, 2)
        after = await _measured(deployment)
        running = await fetch(deployment, "SELECT count(*)::int AS n FROM provisioner.worker WHERE state = 'running'")
        ready = await fetch(deployment, "SELECT count(*)::int AS n FROM provisioner.workspace WHERE phase = 'ready'")
        await harness.supervisor.stop()
    cost = after.share - before.share
    figures = (
        f"{ready[0]['n']} ready workers: {cost:.2%} of a core (provisioner {after.share:.2%} with them, "
        f"{before.share:.2%} without), {after.runs} CLI processes"
    )
    problems: Sequence[str] = [
        text
        for is_so, text in (
            (cost > SHARE_MAX, f"they cost more than {SHARE_MAX:.0%} of a core"),
            (after.runs, f"{after.runs} processes of Terraform or plugins ran"),
            (ready[0]["n"] != WORKERS or running[0]["n"] != WORKERS, "not all of them are ready and run"),
        )
        if is_so
    ]
    return Verdict(figures, problems)


async def _passes(harness: Harness, deployment: Deployment, number: int) -> None:
    """Wait for passes of the instance reaper over the account."""
    first = (await fetch(deployment, PASSES))[0]["passes"]

    async def passed() -> bool:
        return bool((await fetch(deployment, PASSES))[0]["passes"] >= first + number)

    await harness.until(passed, f"{number} passes over the account", within_seconds=120.0)


async def _measured(deployment: Deployment) -> Usage:
    """Use of the provisioner in some seconds, with its children that have ended meanwhile."""
    (provisioner,) = [
        process
        for process in psutil.process_iter(["name", "cmdline", "environ"])  # leaves out those that end meanwhile
        if process.info["name"].startswith("python")
        and "slipway_provisioner.main" in (process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get("SLIPWAY_PORT") == str(deployment.ports["provisioner"])
    ]
    began, runs, before = monotonic_seconds(), 0, _cpu_seconds(provisioner)
    while monotonic_seconds() < began + SECONDS:
        await asyncio.sleep(SAMPLE_SECONDS)
        runs = max(runs, sum(map(_is_run, provisioner.children(True))))
    return Usage((_cpu_seconds(provisioner) - before) / (monotonic_seconds() - began), runs)


def _is_run(child: psutil.Process) -> bool:
    """True for a process of Terraform or of a plugin. The guard of the provisioner's children is neither."""
    try:
        return "guard.py" not in " ".join(child.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False


def _cpu_seconds(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:4])


async def _store(deployment: Deployment, place: Place, key: str) -> None:
    """Store workers and their workspaces as they are once they run, so that a refresh of them would run Terraform."""
    keys = ring(key)
    inputs = msgspec.json.encode({"config": {"settings": launch_settings(place)}})
    ids = [new_id() for _ in range(WORKERS)]
    instances = [f"m-{number:04d}" for number in range(WORKERS)]
    config_id = (await fetch(deployment, CONFIG))[0]["id"]
    session = await postgres.session(deployment.database_url, "provisioner")  # triggers count in its schema
    try:
        await session.execute(BATCH, ids, config_id)
        await session.execute(WORKER, ids, instances, config_id)
        async with session.transaction():
            for batch_id, instance in zip(ids, instances, strict=True):
                made = row(deployment=deployment.id, account_id=ACCOUNT, batch_id=batch_id, launch_config_id=config_id)
                await workspaces.insert(session, [made])
                content = state(1, made.id, worker=instance)
                await workspaces.put(session, made.id, Kind.STATE, content, keys, version=version_of(content))
                await workspaces.put(session, made.id, Kind.INPUTS, inputs, keys)
                await session.execute(
                    "UPDATE workspace SET phase = $2, instance_id = $3 WHERE id = $1", made.id, Phase.READY, instance
                )
        await session.execute("UPDATE worker SET last_seen_at = now()")  # a heartbeat
    finally:
        await session.close()


def _declared(place: Place) -> dict[str, object]:
    config = {"name": "idle", "account": ACCOUNT, "zone": "a", "instance_type": "small", "image": "image-1"}
    return {
        "version": 1,
        "lease_pools": [
            {
                "id": "idle",
                "limit": WORKERS,
                "hold_seconds": 3600,
                "ttl_seconds": 300,
                "reserve_seconds": 180,
                "pacing": "off",
            }
        ],
        "accounts": [
            {
                "id": ACCOUNT,
                "provider": "terraform",
                "region": "east",
                "identity": "ledger",
                "credential": "none",
                "lease_pool": "idle",
                "settings": {n: v for n, v in account_settings(place).items() if n not in Terraform.operator_settings},
            }
        ],
        "worker_pools": [
            {
                "id": "idle",
                "mode": "enforce",
                "min_capacity": 0,
                "max_capacity": WORKERS,
                "launch_configs": [config | {"settings": launch_settings(place)}],
            }
        ],
    }
