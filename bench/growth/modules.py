"""Workers of a day that a module made: a workspace that is applied and destroyed, and a listing of its account."""

from typing import Any, Final

import msgspec

from bench.growth.copies import MARK
from slipway_common.base.ids import new_id
from slipway_provisioner.apply.workspace_runs import WorkspaceRuns
from slipway_provisioner.domain.workspace_runs import Next
from slipway_provisioner.domain.workspaces import Phase, empty_state
from slipway_provisioner.providers.workspaces import Room, RunClaim
from slipway_provisioner.store import accounts, configs
from tests.simulation.commands import FIRST_ACCOUNT, POOL, ZONES
from tests.simulation.deployment import Deployment
from tests.support.workspaces import OLD, ring

ROOM: Final = Room(workspaces_max=None, queue_max=10)
INSTANCE: Final = "i-900001"  # of no machine of the simulated cloud
EFFECTS_SECONDS: Final = 60.0


class Modules:
    """Rows that runs of Terraform would store in a day. None is run, and the cloud has no such machine."""

    def __init__(self, deployment: Deployment) -> None:
        self.database = deployment.databases["provisioner"]
        self.runs = WorkspaceRuns(lambda: self.database, ring(OLD))

    async def write(self) -> None:
        """Apply a workspace, whose state is then saved, and destroy it; list the account."""
        async with self.database.acquire() as db:
            account = await accounts.get(db, FIRST_ACCOUNT)
            config = await configs.current(db, POOL, ZONES[0])
        inputs: dict[str, Any] = {
            "config": {"id": config["id"]},
            "incarnation": "",
            "effects_seconds": EFFECTS_SECONDS,
        }
        await self.runs.add(account, new_id(), [inputs], ROOM)
        await self._run(Next(phase=Phase.READY, instance_id=INSTANCE))
        await self.runs.destroy(account, [INSTANCE])
        await self._run(Next(phase=Phase.GONE))
        await self.runs.listings.orphans(account, visibility_seconds=0.0)
        listing = await self.runs.listings.claim(all_=True)
        assert listing is not None
        await self.runs.listings.finish(listing, [], visibility_seconds=0.0)

    async def _run(self, after: Next) -> None:
        """Claim the workspace for its next run, and save a newer state at its end."""
        (claim,) = await self.runs.claim(f"run-{MARK}", 1)
        assert not claim.problem, claim.problem
        rejected = await self.runs.finish(claim, _newer(claim), after)
        assert not rejected, rejected


def _newer(claim: RunClaim) -> bytes:
    state = msgspec.json.decode(empty_state(claim.version.lineage))
    return msgspec.json.encode(state | {"serial": claim.version.serial + 1})
