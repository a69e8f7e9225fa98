"""Machines of a demo with PROVIDER=aws: those of the stand-in for EC2, by its ledger, and what is left in moto.

The stand-in records what happened to calls and machines; moto is asked what still exists with the deployment's tag.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import httpx2
import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse
from slipway_local.check import consoles
from slipway_local.check.evidence import Evidence
from slipway_local.demo import agents
from slipway_local.demo.agents import AgentProcess
from slipway_local.demo.deployment import Deployment
from slipway_local.ec2 import facts as ec2
from slipway_local.ec2.server import ENDPOINTS, EmbeddedEc2
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import fact_file, facts
from slipway_simulator.notation import Fault

# Keys of the two accounts; moto accepts any. The second account is reached by a role.
CREDENTIALS: Final = {"DEMO_AWS_ACCESS_KEY_ID": "AKIADEMO", "DEMO_AWS_SECRET_ACCESS_KEY": "demo"}
ACCOUNT_TAG: Final = "slipway-account"
DEPLOYMENT_TAG: Final = "slipway-deployment"
LEAVE_SECONDS: Final = 180.0  # generous: a busy machine boots slowly
SCENARIO: Final = {
    "latency_seconds": 2,
    "visibility_seconds": 5,
    "pending_seconds": 5,
    "boot_seconds_median": 5,
    "stop_seconds": 5,
}
POLL_SECONDS: Final = 0.2
BAD_IMAGE: Final = "bad-image"
BAD_IMAGE_SECONDS: Final = {"boot_timeout_seconds": 300.0}
"""Product times of a run with a bad image, in which the boots of its machines have to time out."""
CODES: Final = frozenset(get_args(facts.Code))


class Ec2Machines:
    """Observes the machines of one deployment."""

    def __init__(self, deployment: Deployment, *, seed: int, faults: Sequence[Fault], **more: Any) -> None:
        """`more` replaces fields of the scenario."""
        self.deployment = deployment
        self.server = EmbeddedEc2(deployment.folder)
        self.corrected_seconds = 0.0
        self._certificates: list[str] = []
        deployment.providers["aws"] = {
            "entries": {"default": dict.fromkeys(ENDPOINTS, self.server.url)},
            "credentials": {"demo": {"environment": "DEMO_AWS"}},
        }
        self.left: dict[str, int] | None = None  # live resources at the end; None until counted
        run = {"seed": seed, "speed": deployment.speed, "faults": msgspec.to_builtins(tuple(faults))}
        self._scenario = SCENARIO | run | more

    def declared(self, declaration: Declaration) -> Declaration:
        body = declaration.model_dump(mode="json")
        queue_url = f"{self.deployment.url('simulator')}/queue"
        for account in body["accounts"]:
            if account["provider"] == "aws":
                account["settings"] |= {"queue_url": queue_url, "identity_certificates": self._certificates}
        return parse(body)

    async def start(self, supervisor: Supervisor) -> None:
        await supervisor.start(self.server)
        self._certificates = (await self.call("GET", "/identity-certificates"))["certificates"]

    async def play(self) -> None:
        await self.call("POST", "/scenario", self._scenario)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Use an operators' route of the stand-in. Raises httpx2.HTTPError."""
        response = await self.deployment.http.request(method, self.server.url + path, json=body)
        response.raise_for_status()
        return response.json() if response.content else None

    async def leave(self) -> None:
        deadline = monotonic_seconds() + LEAVE_SECONDS
        while monotonic_seconds() < deadline:
            if not await self._busy():
                break
            await asyncio.sleep(POLL_SECONDS)

    async def _busy(self) -> bool:
        try:
            queue, pools, cloud = await asyncio.gather(
                self.deployment.call("GET", "simulator", "/state"),
                self.deployment.call("GET", "provisioner", "/pools"),
                self.call("GET", "/state"),
            )
        except httpx2.HTTPError:
            return True
        tasks = sum(pool["pending"] + pool["claimed"] for pool in queue["pools"].values())
        live = sum(cloud["instances"].get(state, 0) for state in ("pending", "running", "shutting-down", "stopped"))
        return bool(tasks or live or any(pool["serving"] for pool in pools["items"]))

    async def count(self) -> None:
        truth = await self.call("GET", f"/truth?tag={DEPLOYMENT_TAG}")
        self.left = left(truth["values"], self.deployment.id)

    def merged(self, found: Evidence) -> Evidence:
        written = self.written()
        evidence, self.corrected_seconds = agents.merged(found, lives(written), list(calls(written)))
        return evidence

    def problems(self, found: Evidence) -> list[str]:
        kinds = [f"{kind} left: {number}" for kind, number in (self.left or {}).items() if number]
        return agents.contradictions(found, lives(self.written())) + kinds

    def summary(self, found: Evidence) -> str:
        numbers = ", ".join(f"{count} {what}" for what, count in counted(found, self.written()).items())
        text = f"machines: {numbers}; times corrected by {self.corrected_seconds:.1f} s"
        return "; ".join([text, *(f"console: {each.problem or each}" for each in self.consoles(found))])

    def consoles(self, found: Evidence) -> list[consoles.Found]:
        """The console output in the alerts on bad images."""
        printed: dict[str, dict[str, str]] = {}
        for fact in self.written():
            if isinstance(fact, ec2.InstanceCreated) and fact.breaks:
                printed.setdefault(fact.image, {})[fact.instance_id] = self.server.console(fact.instance_id)
        return list(consoles.judge(printed, [record.event for record in found.published]))

    def left_over(self) -> str:
        if self.left is None:
            return ""
        return ", ".join(f"{kind} left {number}" for kind, number in self.left.items())

    def written(self) -> list[ec2.Fact]:
        """The stand-in's ledger."""
        return list(fact_file.read(self.server.ledger, ec2.DECODER))


def left(values: Mapping[str, Mapping[str, int]], deployment: str) -> dict[str, int]:
    """Resources of a deployment, and those without its tag, which a deletion by tag would not find."""
    return {
        kind: sum(values.get(value, {}).get(kind, 0) for value in (deployment, ""))
        for kind in ("instances", "volumes", "interfaces")
    }


def counted(found: Evidence, written: Sequence[ec2.Fact]) -> dict[str, int]:
    """Machines that booted, that claimed a task, and that left by themselves after it."""
    booted = {fact.instance_id for fact in written if isinstance(fact, ec2.Started)}
    claimed = {fact.instance_id for fact in found.ledger if isinstance(fact, facts.TaskClaimed)} & booted
    ended = {fact.instance_id for fact in written if isinstance(fact, ec2.ShuttingDown) and fact.by == "self"}
    return {"booted": len(booted), "claimed": len(claimed), "drained": len(ended & claimed)}


def lives(written: Sequence[ec2.Fact]) -> list[AgentProcess]:
    """Each instance from its creation until it shuts down."""
    ended_at = {fact.instance_id: fact.at for fact in written if isinstance(fact, ec2.ShuttingDown)}
    return [
        AgentProcess(
            instance_id=fact.instance_id,
            account_id=fact.tags.get(ACCOUNT_TAG, ""),
            batch_id=fact.batch,
            config_id=fact.config,
            began_at=fact.at,
            ended_at=ended_at.get(fact.instance_id),
        )
        for fact in written
        if isinstance(fact, ec2.InstanceCreated)
    ]


def calls(written: Sequence[ec2.Fact]) -> Iterator[facts.Fact]:
    """Launch calls and their replies in the terms of the simulator's ledger."""
    received_at = {fact.call_id: fact.at for fact in written if isinstance(fact, ec2.Call)}
    launches = {fact.call_id: fact for fact in written if isinstance(fact, ec2.Launch)}
    for launch in launches.values():
        yield facts.Call(
            at=received_at[launch.call_id],
            call_id=launch.call_id,
            account=launch.tags.get(ACCOUNT_TAG, ""),
            token=launch.token,
            deployment=launch.deployment,
            batch=launch.batch,
            config=launch.config,
            count=launch.count,
            zone=launch.zone,
            instance_type=launch.instance_type,
            image=launch.image,
            request=launch.request,
        )
    for fact in written:
        if isinstance(fact, ec2.Reply) and fact.call_id in launches:
            yield facts.Reply(
                at=fact.at,
                call_id=fact.call_id,
                account=launches[fact.call_id].tags.get(ACCOUNT_TAG, ""),
                code=fact.code if fact.code in CODES else "InvalidRequest",  # type: ignore[arg-type]
                message=fact.message,
                instance_ids=fact.instance_ids,
                lost=fact.lost,
                repeated=fact.repeated,
            )
