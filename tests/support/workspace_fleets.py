"""Workers made by modules of Terraform."""

from slipway_provisioner.domain.workspaces import Phase
from tests.support.terraform_fleet import Fleet


async def one_machine(fleet: Fleet) -> str:
    """The only machine, which was created once, and which the state of its ready workspace has."""
    row = await fleet.until_phase(Phase.READY)
    assert fleet.machines == [row.instance_id]
    assert fleet.creations == 1
    stored = await fleet.state()
    assert stored is not None
    assert str(row.instance_id) in stored.content.decode()
    return str(row.instance_id)
