"""Machines of a run on the stand-in for EC2, as the demo and the drills play them."""

from pathlib import Path

from slipway_local.demo.deployment import Deployment
from slipway_local.demo.ec2_machines import Ec2Machines
from slipway_local.ec2.faults import NOTATION
from slipway_local.ec2.server import EmbeddedEc2
from slipway_local.servers.supervisor import Supervisor
from tests.support.ec2 import cleared


async def test_the_scenario_begins_with_the_run(ec2_server: EmbeddedEc2, tmp_path: Path) -> None:
    """Windows of faults count from there, however long the deployment took to start."""
    deployment = Deployment(Supervisor(), tmp_path, speed=20.0, seconds={})
    machines = Ec2Machines(deployment, seed=3, faults=NOTATION.parse("throttle:10s-30s"), latency_seconds=7)
    machines.server = ec2_server
    async with cleared(ec2_server) as ec2:
        started = await ec2.get("/state")
        await machines.play()
        playing = await ec2.get("/state")
    await deployment.remove()
    assert playing["started_at"] >= started["at"]
    assert playing["speed"] == 20.0
    assert [(fault["name"], fault["from_seconds"], fault["until_seconds"]) for fault in playing["faults"]] == [
        ("throttle", 10.0, 30.0)
    ]
