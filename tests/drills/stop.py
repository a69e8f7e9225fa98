"""Calls of unknown outcome across a stop: a launch stop, a pause, an archived launch config, and the end of the lease.

For each there are two accounts whose provider honours tokens by its own account. In one the requests never arrive; in
the other they take effect, but the replies are lost and the tokens are ignored. The stop is answered while all calls
are open: a repetition of one of them would create machines after the stop. Leases end by themselves at the end of their
hold; until then nothing can be looked up in their accounts, so that their calls stay open.
"""

from collections.abc import Sequence
from typing import Any

import httpx2

from slipway_common.base.clock import utc_now
from slipway_local.demo.deployment import Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, Verdict, add_tasks, fetch, played
from tests.drills.proxy import Proxy

COMMANDS, LEASE = ("stop", "pause", "archive"), "lease"
LOST, IGNORED = "lost", "ignored"
STOPPED = [f"{kind}-{mode}" for kind in COMMANDS for mode in (LOST, IGNORED)]
EXPIRING = [f"{LEASE}-{mode}" for mode in (LOST, IGNORED)]
NAMES = [*STOPPED, *EXPIRING]
SPARE = "spare"
TASKS = 2
# The calls stay open until every stop is answered, also on a busy machine. A lease outlives the call that it is for.
SECONDS = {"call_timeout_seconds": 200.0, "unreachable_after_seconds": 1200.0}
HOLD_SECONDS = 300.0
OPEN = "SELECT id::text, account_id, lease_id FROM provisioner.launch_batch WHERE state = 'calling'"
ALIVE = "SELECT count(*)::int AS n FROM provisioner.lease WHERE state <> 'ended' AND id = ANY($1)"


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment(seconds=SECONDS)
    proxies = {name: Proxy(deployment.ports["simulator"]) for name in NAMES if name.endswith(LOST) or name in EXPIRING}
    entries = deployment.providers["simulated"]["entries"]
    entries |= {name: {"url": f"http://127.0.0.1:{await proxy.start()}"} for name, proxy in proxies.items()}
    await deployment.start()
    accounts = {
        name: Account(
            entry=name if name in proxies else "default",
            honours_tokens=True,
            reserve_seconds=HOLD_SECONDS,
            hold_seconds=HOLD_SECONDS if name in EXPIRING else 10 * HOLD_SECONDS,
        )
        for name in (*NAMES, SPARE)
    }
    pools = {name: Pool(accounts=[name]) for name in NAMES}
    faults = [{"name": "lost-reply", "arg": "1"}, {"name": "ignore-token"}]
    await harness.play(deployment, declaration(harness.speed, accounts, pools), faults=faults)
    for name, proxy in proxies.items():
        if name.endswith(LOST):
            proxy.silence()
    for name in harness.rng.sample(NAMES, len(NAMES)):
        await add_tasks(deployment, name, TASKS, 600.0)

    async def all_open() -> bool:
        replied = {f.account for f in played(deployment) if isinstance(f, facts.Reply) and f.lost}
        swallowed = {name for name, proxy in proxies.items() if proxy.swallowed}
        found = {row["account_id"] for row in await fetch(deployment, OPEN)}
        return found | {SPARE} >= set(NAMES) and replied | swallowed >= set(NAMES)

    await harness.until(all_open, f"calls of {len(NAMES)} accounts are open")
    for proxy in proxies.values():
        proxy.silence()
    stopped_at: dict[str, float] = {}
    still: dict[str, str] = {}

    async def record(names: Sequence[str]) -> None:
        found = [row for row in await fetch(deployment, OPEN) if row["account_id"] in names]
        still.update({row["id"]: row["account_id"] for row in found})
        stopped_at.update(dict.fromkeys(names, utc_now().timestamp()))

    leases = [row["lease_id"] for row in await fetch(deployment, OPEN) if row["account_id"] in EXPIRING]
    for name in harness.rng.sample(STOPPED, len(STOPPED)):
        await stop(harness, deployment, name, accounts, pools)
        await record([name])

    async def leases_ended() -> bool:
        return not (await fetch(deployment, ALIVE, leases))[0]["n"]

    await harness.until(leases_ended, f"the leases of {' and '.join(EXPIRING)} have ended")
    await record(EXPIRING)
    await deployment.call("DELETE", "simulator", "/faults/lost-reply")
    for proxy in proxies.values():
        proxy.restore()

    async def all_known() -> bool:
        return not {row["id"] for row in await fetch(deployment, OPEN)} & set(still)

    await harness.until(all_known, "the outcome of every call is known")
    await harness.product_seconds(60)
    return judge(played(deployment), stopped_at, still)


async def stop(
    harness: Harness, deployment: Deployment, name: str, accounts: dict[str, Account], pools: dict[str, Pool]
) -> None:
    """Stop launches in one account in the way that its name says."""
    reason: dict[str, Any] = {"reason": "drill"}
    kind = name.partition("-")[0]
    if kind == "stop":
        await deployment.call("POST", "provisioner", "/stop-launching", reason | {"scope": "account", "scope_id": name})
    elif kind == "pause":
        await deployment.call("POST", "provisioner", f"/launch-configs/{name}-{name}/pause", reason)
    else:
        pools[name] = Pool(accounts=[SPARE])
        changed = declaration(harness.speed, accounts, pools)
        try:
            await deployment.apply(changed)
        except httpx2.HTTPStatusError as question:
            await deployment.apply(changed, confirm=question.response.json()["digest"])
    harness.log(f"{kind} of {name} is answered")


def judge(ledger: list[facts.Fact], stopped_at: dict[str, float], still: dict[str, str]) -> Verdict:
    """Count machines by calls made after the stop of their account. `still`: account by batch of calls open then.

    After the end of a lease another one may be granted, so that only calls that were open then count."""
    late = [
        call
        for call in ledger
        if isinstance(call, facts.Call)
        and call.account in stopped_at
        and call.at > stopped_at[call.account]
        and (call.batch in still or call.account not in EXPIRING)
    ]
    ids = {call.call_id for call in late}
    created = sum(isinstance(fact, facts.InstanceCreated) and fact.call_id in ids for fact in ledger)
    problems = [f"{call.account}: a call for {call.count} after its stop" for call in late]
    if missed := sorted(set(NAMES) - set(still.values())):
        problems.append(f"no call was open at the stop of {', '.join(missed)}: the drill proves nothing")
    return Verdict(f"{len(still)} calls open at {len(stopped_at)} stops, created after the stop {created}", problems)
