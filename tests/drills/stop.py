"""Calls of unknown outcome across a stop: a launch stop, a pause, an archived launch config, and the end of the lease.

For each there are two accounts whose provider honours tokens by its own account. In one the requests never arrive; in
the other they take effect, but the replies are lost and the tokens are ignored. The stop is answered while all calls
are open: a repetition of one of them would create machines after the stop.
"""

from typing import Any

import httpx2

from slipway_common.base.clock import utc_now
from slipway_local.demo.deployment import Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.line import Line
from tests.drills.stage import Stage, Verdict, add_tasks, fetch, played

KINDS = ("stop", "pause", "archive", "lease")
LOST, IGNORED = "lost", "ignored"
NAMES = [f"{kind}-{mode}" for kind in KINDS for mode in (LOST, IGNORED)]
SPARE = "spare"
TASKS = 2
# The calls stay open until every stop is answered, also on a busy machine.
SECONDS = {"call_timeout_seconds": 150.0, "unreachable_after_seconds": 1200.0}
OPEN = "SELECT id::text, account_id, lease_id FROM provisioner.launch_batch WHERE state = 'calling'"
ENDED = "SELECT count(*)::int AS n FROM provisioner.lease WHERE state <> 'ended' AND id = ANY($1)"


async def play(stage: Stage) -> Verdict:
    """Play the drill."""
    deployment = stage.new_deployment(seconds=SECONDS)
    await deployment.start()
    direct = deployment.url("simulator")
    lines = {name: Line(deployment.ports["simulator"]) for name in NAMES if name.endswith(LOST)}
    urls = {name: f"http://127.0.0.1:{await line.start()}" for name, line in lines.items()}
    accounts = {name: Account(url=urls.get(name, direct), honours_tokens=True) for name in (*NAMES, SPARE)}
    pools = {name: Pool(accounts=[name]) for name in NAMES}
    faults = [{"name": "lost-reply", "arg": "1"}, {"name": "ignore-token"}]
    await stage.play(deployment, declaration(stage.speed, accounts, pools), faults=faults)
    for line in lines.values():
        line.silence()
    for name in stage.rng.sample(NAMES, len(NAMES)):
        await add_tasks(deployment, name, TASKS, 600.0)

    async def all_open() -> bool:
        replied = {f.account for f in played(deployment) if isinstance(f, facts.Reply) and f.lost}
        swallowed = {name for name, line in lines.items() if line.swallowed}
        found = {row["account_id"] for row in await fetch(deployment, OPEN)}
        return found | {SPARE} >= set(NAMES) and replied | swallowed >= set(NAMES)

    await stage.until(all_open, f"calls of {len(NAMES)} accounts are open")
    leases = [row["lease_id"] for row in await fetch(deployment, OPEN) if row["account_id"].startswith("lease-")]
    stopped_at: dict[str, float] = {}
    for name in stage.rng.sample(NAMES, len(NAMES)):
        await stop(stage, deployment, name, accounts, pools)
        stopped_at[name] = utc_now().timestamp()

    async def leases_ended() -> bool:
        return not (await fetch(deployment, ENDED, leases))[0]["n"]

    await stage.until(leases_ended, "the provisioner knows that its leases have ended")
    stopped_at |= {name: utc_now().timestamp() for name in NAMES if name.startswith("lease-")}
    still = [row for row in await fetch(deployment, OPEN) if row["account_id"] in NAMES]
    await deployment.call("DELETE", "simulator", "/faults/lost-reply")
    for line in lines.values():
        line.restore()

    async def all_known() -> bool:
        return not {row["id"] for row in await fetch(deployment, OPEN)} & {row["id"] for row in still}

    await stage.until(all_known, "the outcome of every call is known")
    await stage.product_seconds(60)
    return judge(played(deployment), stopped_at, {row["id"]: row["account_id"] for row in still})


async def stop(
    stage: Stage, deployment: Deployment, name: str, accounts: dict[str, Account], pools: dict[str, Pool]
) -> None:
    """Stop launches in one account in the way that its name says."""
    reason: dict[str, Any] = {"reason": "drill"}
    kind = name.partition("-")[0]
    if kind == "stop":
        await deployment.call("POST", "provisioner", "/stop-launching", reason | {"scope": "account", "scope_id": name})
    elif kind == "pause":
        await deployment.call("POST", "provisioner", f"/launch-configs/{name}-{name}/pause", reason)
    elif kind == "archive":
        pools[name] = Pool(accounts=[SPARE])
        changed = declaration(stage.speed, accounts, pools)
        try:
            await deployment.apply(changed)
        except httpx2.HTTPStatusError as question:
            await deployment.apply(changed, confirm=question.response.json()["digest"])
    else:
        for row in await fetch(deployment, f"{OPEN} AND account_id = $1", name):
            lease = await deployment.call("GET", "lease-broker", f"/leases/{row['lease_id']}")
            body = {"fencing_token": lease["fencing_token"], "result": "drill"}
            await deployment.call("POST", "lease-broker", f"/leases/{row['lease_id']}/release", body)
    stage.say(f"{kind} of {name} is answered")


def judge(ledger: list[facts.Fact], stopped_at: dict[str, float], still: dict[str, str]) -> Verdict:
    """Count machines by calls made after the stop of their account. `still`: calls open at all stops, by batch.

    After the end of a lease another one may be granted, so that only calls that were open then count."""
    late = [
        call
        for call in ledger
        if isinstance(call, facts.Call)
        and call.account in stopped_at
        and call.at > stopped_at[call.account]
        and (call.batch in still or not call.account.startswith("lease-"))
    ]
    ids = {call.call_id for call in late}
    created = sum(isinstance(fact, facts.InstanceCreated) and fact.call_id in ids for fact in ledger)
    problems = [f"{call.account}: a call for {call.count} after its stop" for call in late]
    if missed := sorted(set(NAMES) - set(still.values())):
        problems.append(f"no call was open at the stop of {', '.join(missed)}: the drill proves nothing")
    return Verdict(f"{len(still)} calls open at {len(stopped_at)} stops, created after the stop {created}", problems)
