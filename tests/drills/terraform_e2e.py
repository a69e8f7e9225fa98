"""Workers made by a Terraform module in two regions of AWS: each in its region, destroyed in the end, nothing left.

The real Terraform and its real provider for AWS run against moto, by which the drill is judged. `KILL=provisioner`
kills the provisioner while it applies. By default 20 security groups, four runs at a time; `FULL=1`: 100 instances,
twenty at a time.
"""

import base64
import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx2
import psutil

from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse
from slipway_local.demo.deployment import Deployment
from slipway_local.ec2.moto import HOST, Moto, Scope
from slipway_local.servers.ports import free_ports
from slipway_local.terraform.packages import AWS, TERRAFORM, missing
from slipway_terraform.runs.modules import module_digest
from tests.drills.harness import Harness, NotReached, Verdict, fetch
from tests.support.folders import temporary_folder

REGIONS: Final = ("eu-west-1", "us-east-1")
ACCESS_KEY: Final = "AKIAEXAMPLE"
SECRET: Final = "the-secret-key-of-the-drill"
IDENTITY: Final = "123456789012"  # of moto
PREFIX: Final = "DRILL"
POOL: Final = "modules"
MODULE_HEAD: Final = """
terraform {
  required_providers {
    aws = { source = "hashicorp/aws" }
  }
}
"""
WORKER: Final = """
variable "worker" {
  type = object({ id = string, tags = map(string), image = string })
}
"""
MODULES: Final = {
    "group": WORKER
    + """
resource "aws_security_group" "worker" {
  name = var.worker.id
  tags = merge(var.worker.tags, { address = "aws_security_group.worker" })
}
output "instance_id" { value = aws_security_group.worker.id }
""",
    "instance": WORKER
    + """
resource "aws_instance" "worker" {
  ami           = var.worker.image
  instance_type = "t3.micro"
  tags          = merge(var.worker.tags, { address = "aws_instance.worker" })
}
output "instance_id" { value = aws_instance.worker.id }
output "address" { value = aws_instance.worker.private_ip }
""",
    "look-up": """
variable "tags" { type = map(string) }
data "aws_caller_identity" "own" {}
data "aws_resourcegroupstaggingapi_resources" "found" {
  dynamic "tag_filter" {
    for_each = var.tags
    content {
      key    = tag_filter.key
      values = [tag_filter.value]
    }
  }
}
output "identity" { value = data.aws_caller_identity.own.account_id }
output "resources" {
  value = [for found in data.aws_resourcegroupstaggingapi_resources.found.resource_tag_mapping_list : {
    workspace = lookup(found.tags, "slipway-workspace", "")
    address   = lookup(found.tags, "address", "")
    id        = split("/", found.resource_arn)[1]
    tags      = found.tags
  }]
}
""",
}
ROWS: Final = "SELECT phase, account_id, instance_id FROM provisioner.workspace"
LIVE: Final = "SELECT id::text FROM provisioner.worker WHERE state NOT IN ('stopping', 'stopped')"
PROBLEMS: Final = "SELECT DISTINCT problem FROM provisioner.workspace WHERE problem <> ''"
PATIENCE_SECONDS: Final = 600.0  # real; half a minute on an idle machine
# Times of what depends on runs, which take real time whatever the speed.
REAL_SECONDS: Final = {"call_timeout_seconds": 30.0, "accepted_timeout_seconds": 1200.0, "boot_timeout_seconds": 600.0}
HOUR_SECONDS: Final = 3600.0


class Size:
    """Size of a run: its workers, the module that makes them, and how many runs there are at a time."""

    def __init__(self, *, full: bool) -> None:
        self.workers, self.module, self.runs_max = (100, "instance", 20) if full else (20, "group", 4)


class Cloud:
    """moto, and the resources in it with Slipway's tags, as (region, account in its tags)."""

    def __init__(self, port: int, log: Path) -> None:
        self.url = f"http://{HOST}:{port}"
        self.moto = Moto(port, log, {})

    async def found(self) -> list[tuple[str, str]]:
        """Live groups and instances that a module has made."""
        found = []
        for region in REGIONS:
            scope = Scope(ACCESS_KEY, region)
            groups = await self.moto.call(scope, "DescribeSecurityGroups", {})
            instances = await self.moto.call(scope, "DescribeInstances", {})
            live = [i for i in instances.iter("item") if i.findtext("instanceState/name") in ("pending", "running")]
            for item in (*groups.findall("securityGroupInfo/item"), *live):
                tags = {tag.findtext("key"): tag.findtext("value") for tag in item.findall("tagSet/item")}
                if (account := tags.get("slipway-account")) is not None:
                    found.append((region, account))
        return found


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    if reason := missing():
        return Verdict("", [reason])
    if (kill := os.environ.get("KILL") or "") not in ("", "provisioner"):
        return Verdict("", [f"KILL={kill}: expected provisioner, or nothing"])
    size = Size(full=bool(os.environ.get("FULL")))
    with temporary_folder("tf-") as folder:
        for name, text in MODULES.items():
            (folder / "modules" / name).mkdir(parents=True)
            (folder / "modules" / name / "main.tf").write_text(MODULE_HEAD + text)
        return await _play(harness, folder, size, kill=kill)


async def _play(harness: Harness, folder: Path, size: Size, *, kill: str) -> Verdict:
    (port,) = free_ports(1)
    cloud = Cloud(port, folder / "moto.log")
    environment = {
        "SLIPWAY_STATE_KEYS": base64.b64encode(secrets.token_bytes(32)).decode(),
        "SLIPWAY_TERRAFORM_FOLDER": str(folder / "runs"),
        "SLIPWAY_TERRAFORM_RUNS_MAX": str(size.runs_max),
        "SLIPWAY_TERRAFORM_SHARES_PLUGINS": "true",
        "TMPDIR": str(folder),
        f"{PREFIX}_AWS_ACCESS_KEY_ID": ACCESS_KEY,
        f"{PREFIX}_AWS_SECRET_ACCESS_KEY": SECRET,
    }
    deployment = harness.new_deployment(
        seconds={name: seconds * harness.speed for name, seconds in REAL_SECONDS.items()},
        environment={"provisioner": environment},
    )
    deployment.providers["terraform"] = _permitted(folder, cloud)
    try:
        await deployment.start(cloud.moto.start())
        await harness.play(deployment, _declared(folder, size, size.workers))
        if kill:
            await _kill_in_the_middle(harness, deployment, cloud, size)

        async def all_ready() -> bool:
            return Counter(row["phase"] for row in await fetch(deployment, ROWS))["ready"] >= size.workers

        await harness.until(all_ready, f"{size.workers} workspaces are ready", within_seconds=PATIENCE_SECONDS)
        found, made = await cloud.found(), await fetch(deployment, ROWS)
        await _leave(deployment, _declared(folder, size, 0))

        async def all_gone() -> bool:
            return {row["phase"] for row in await fetch(deployment, ROWS)} == {"gone"}

        await harness.until(all_gone, "all workspaces are gone", within_seconds=PATIENCE_SECONDS)
        left = await cloud.found()
        await harness.supervisor.stop()
    except NotReached as error:
        problems = [row["problem"] for row in await fetch(deployment, PROBLEMS)]
        return Verdict("", [str(error), *problems])
    finally:
        await harness.supervisor.stop()  # before moto: runs would wait for its answers
        await cloud.moto.stop()
    return _verdict(folder, size, found, [row for row in made if row["phase"] == "ready"], left)


async def _kill_in_the_middle(harness: Harness, deployment: Deployment, cloud: Cloud, size: Size) -> None:
    """Kill the provisioner while some resources exist and others are being made, and start it again."""

    async def some() -> bool:
        return len(await cloud.found()) >= size.workers // 4

    await harness.until(some, "some resources exist", within_seconds=PATIENCE_SECONDS)
    await deployment.replace("provisioner", {})
    harness.log("provisioner killed, and started again")


async def _leave(deployment: Deployment, declared: Declaration) -> None:
    """Take the minimum back and terminate all workers."""
    try:
        await deployment.apply(declared)
    except httpx2.HTTPStatusError as question:
        await deployment.apply(declared, confirm=question.response.json()["digest"])
    for row in await fetch(deployment, LIVE):
        await deployment.call("POST", "provisioner", f"/workers/{row['id']}/terminate", {"reason": "drill"})


def _permitted(folder: Path, cloud: Cloud) -> dict[str, object]:
    """Operator's settings of the provider: an entry for each region."""
    plugin = {"source": AWS.source, "version": AWS.version, "binary": str(AWS.path), "digest": AWS.digest}
    services = ("ec2", "iam", "sts", "resourcegroupstaggingapi")
    entries = {
        region: {
            "tool": str(TERRAFORM.path),
            "plugins": [plugin],
            "modules_folder": str(folder / "modules"),
            "configuration": {
                "region": region,
                "skip_credentials_validation": True,
                "skip_metadata_api_check": True,
                "skip_requesting_account_id": True,
                "endpoints": [dict.fromkeys(services, cloud.url)],
            },
        }
        for region in REGIONS
    }
    return {"entries": entries, "credentials": {"moto": {"environment": PREFIX}}}


def _declared(folder: Path, size: Size, workers: int) -> Declaration:
    digests = {name: module_digest(folder / "modules" / name) for name in MODULES}
    launch = {
        "module": size.module,
        "digest": digests[size.module],
        "provider": {"source": AWS.source, "version": AWS.version},
        "apply_seconds": PATIENCE_SECONDS,
    }
    return parse(
        {
            "version": 1,
            "lease_pools": [
                {
                    "id": region,
                    "limit": size.workers,
                    "hold_seconds": HOUR_SECONDS,
                    "ttl_seconds": 60,
                    "reserve_seconds": 90,
                    "pacing": "off",
                }
                for region in REGIONS
            ],
            "accounts": [
                {
                    "id": region,
                    "provider": "terraform",
                    "region": region,
                    "identity": IDENTITY,
                    "credential": {"name": "moto"},
                    "lease_pool": region,
                    "settings": {
                        "entry": region,
                        "lookup": {"module": "look-up", "digest": digests["look-up"]},
                        "visibility_seconds": 1.0,
                    },
                }
                for region in REGIONS
            ],
            "worker_pools": [
                {
                    "id": f"{POOL}-{region}",
                    "mode": "enforce",
                    "min_capacity": workers // len(REGIONS),
                    "max_capacity": size.workers // len(REGIONS),
                    "evidence": {"boot": "provider_running", "claim": "none"},
                    "launch_configs": [
                        {
                            "name": f"{POOL}-{region}",
                            "account": region,
                            "zone": f"{region}a",
                            "instance_type": "t3.micro",
                            "image": "ami-12345678",
                            "settings": launch,
                        }
                    ],
                }
                for region in REGIONS
            ],
        }
    )


def _verdict(
    folder: Path, size: Size, found: Sequence[tuple[str, str]], made: Sequence[Any], left: Sequence[tuple[str, str]]
) -> Verdict:
    wrong = sum(region != account for region, account in found)
    doubled, lost = max(0, len(found) - len(made)), max(0, len(made) - len(found))
    processes = _processes(folder)
    files = [path for path in folder.rglob("*") if path.is_file() or path.is_socket()]
    sockets = [path for path in files if path.is_socket()]
    holding = [path for path in files if not path.is_socket() and SECRET.encode() in path.read_bytes()]
    by_region = ", ".join(f"{count} in {region}" for region, count in sorted(Counter(r for r, _ in found).items()))
    figures = (
        f"{len(made)} workers, {by_region}, {wrong} in the wrong one, {lost} lost, {doubled} doubled; "
        f"{len(left)} left in moto, {len(processes)} processes, {len(sockets)} sockets, {len(holding)} secrets on disk"
    )
    problems = [
        text
        for is_so, text in (
            (len(made) != size.workers, f"{len(made)} workers instead of {size.workers}"),
            (wrong, f"{wrong} resources are in the wrong region"),
            (doubled, f"{doubled} resources belong to no worker"),
            (lost, f"{lost} workers have no resource"),
            (left, f"left in moto: {left}"),
            (processes, f"left running: {', '.join(processes)}"),
            (sockets, f"sockets: {', '.join(map(str, sockets))}"),
            (holding, f"files with the secret: {', '.join(map(str, holding))}"),
        )
        if is_so
    ]
    return Verdict(figures, problems)


def _processes(folder: Path) -> list[str]:
    """Processes that were started with this folder in their command or environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in text for text in (*process.cmdline(), *process.environ().values())):
                found.append(f"{process.name()} {process.pid}")
    return found
