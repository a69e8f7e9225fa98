"""Keys of images that change while one of them is tripped: its provider begins to name images in another namespace.

What was known of the image has to go along. If a pool or the calculator forgot it, the windows of a new image would
allow a wave of boots; what may boot are the probes, one at a time, each under a permit. The image is mended at the end,
and its next probe recovers it.
"""

from collections.abc import Sequence
from typing import Any, Final

from slipway_common.base.clock import utc_now
from slipway_common.declaration.models import Declaration
from slipway_local.demo.deployment import Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, Verdict, add_tasks, are_done, fetch, played

POOLS: Final = ("one", "two")
IMAGE: Final = "image"
TASKS: Final = 12
OLD, NEW = "before", "after"
SECONDS: Final = {"boot_timeout_seconds": 120.0, "sweep_seconds": 60.0}
WATCHED_SECONDS: Final = 600.0
REQUESTED: Final = """
SELECT count(*)::int AS workers, count(probe_permit)::int AS probes FROM provisioner.worker
WHERE launched_at > to_timestamp($1)"""
KEYS: Final = "SELECT DISTINCT image_key FROM provisioner.launch_config WHERE state <> 'archived'"


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment(seconds=SECONDS)
    await deployment.start()
    accounts = {name: Account(hold_seconds=3000.0) for name in POOLS}
    pools = {name: Pool(accounts=[name], image=IMAGE) for name in POOLS}
    declared = declaration(harness.speed, accounts, pools)
    bad = [{"name": "bad-image", "arg": IMAGE}]
    await harness.play(deployment, in_namespace(declared, OLD), faults=bad)
    for name in POOLS:
        await add_tasks(deployment, name, TASKS, 60.0)

    async def is_tripped() -> bool:
        return await tripped(deployment) == {f"{OLD}/{IMAGE}"}

    await harness.until(is_tripped, f"{OLD}/{IMAGE} is tripped")
    await harness.until(lambda: none_boots(deployment), "its failed boots have ended")
    changed_at = utc_now().timestamp()
    await deployment.apply(in_namespace(declared, NEW))

    async def renamed() -> bool:
        return {row["image_key"] for row in await fetch(deployment, KEYS)} == {f"image/{NEW}%2F{IMAGE}"}

    await harness.until(renamed, f"its key is {NEW}/{IMAGE}")
    seen: set[str] = set()
    until = utc_now().timestamp() + WATCHED_SECONDS / harness.speed
    while utc_now().timestamp() < until:
        seen |= await tripped(deployment) or {"healthy"}
        await harness.product_seconds(15)
    (after,) = await fetch(deployment, REQUESTED, changed_at)
    ledger = played(deployment)
    await deployment.call("DELETE", "simulator", "/faults/bad-image")

    async def recovered() -> bool:
        return all([await are_done(deployment, name, TASKS) for name in POOLS])

    await harness.until(recovered, "the image is mended, and every task is done")
    return judge(ledger, changed_at, seen, after["workers"], after["probes"])


def in_namespace(declared: Declaration, namespace: str) -> Declaration:
    """The declaration with the images of all accounts in a namespace."""
    body = declared.model_dump(mode="json")
    for account in body["accounts"]:
        account["settings"]["image_namespace"] = namespace
    return Declaration.model_validate(body)


async def tripped(deployment: Deployment) -> set[str]:
    """Images that trip a launch config, by their keys as people see them."""
    rows: list[dict[str, Any]] = (await deployment.call("GET", "provisioner", "/launch-configs"))["items"]
    shared = [share for row in rows for share in row["shared"]]
    return {share["id"] for share in shared if share["kind"] == "image" and share["state"] != "healthy"}


async def none_boots(deployment: Deployment) -> bool:
    (row,) = await fetch(
        deployment,
        "SELECT count(*)::int AS n FROM provisioner.worker WHERE state IN ('launching', 'starting', 'stopping')",
    )
    return bool(row["n"] == 0)


def judge(ledger: Sequence[facts.Fact], changed_at: float, seen: set[str], workers: int, probes: int) -> Verdict:
    """Count the boots after the change by the ledger. `seen` are the images that were tripped since, by their keys."""
    boots = sum(isinstance(fact, facts.InstanceCreated) and fact.at > changed_at for fact in ledger)
    extra = max(boots - probes, workers - probes)
    problems = [f"{extra} boots after the change that are no probes"] if extra else []
    if seen != {f"{NEW}/{IMAGE}"}:
        problems.append(f"tripped after the change: {', '.join(sorted(seen))}; expected {NEW}/{IMAGE} all the time")
    return Verdict(f"{boots} boots after the change, {probes} of them probes, extra {extra}", problems)
