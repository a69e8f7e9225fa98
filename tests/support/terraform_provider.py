"""Accounts of the provider `terraform`, whose workers are machines of the provider `ledger`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_local.terraform.ledger import SOURCE, VERSION, Ledger
from slipway_provisioner.apply.workspace_runs import WorkspaceRuns
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.port import ProviderSettings, TerraformSettings
from slipway_provisioner.providers.terraform.adapter import Terraform
from slipway_terraform.runs.modules import module_digest
from tests.support.terraform_runs import SECRET, Place
from tests.support.workspaces import OLD, ring

MACHINE: Final = """
terraform {
  required_providers {
    ledger = { source = "registry.terraform.io/slipway/ledger" }
  }
}
variable "worker" {
  type = object({ id = string, tags = map(string), user_data = string, image = string })
}
variable "more" {
  type    = number
  default = 0
}
resource "ledger_machine" "worker" {
  name      = var.worker.id
  image     = var.worker.image
  tags      = merge(var.worker.tags, { address = "ledger_machine.worker" })
  user_data = var.worker.user_data
}
resource "ledger_machine" "more" {
  count = var.more
  name  = "${var.worker.id}-${count.index}"
  tags  = merge(var.worker.tags, { address = "ledger_machine.more[${count.index}]" })
}
output "instance_id" { value = ledger_machine.worker.id }
output "address" { value = ledger_machine.worker.address }
"""
LOOK_UP: Final = """
terraform {
  required_providers {
    ledger = { source = "registry.terraform.io/slipway/ledger" }
  }
}
variable "tags" { type = map(string) }
data "ledger_machines" "found" { tags = var.tags }
output "identity" { value = data.ledger_machines.found.identity }
output "resources" {
  value = [for found in jsondecode(data.ledger_machines.found.json) : {
    workspace = lookup(found.tags, "slipway-workspace", "")
    address   = lookup(found.tags, "address", "")
    id        = found.id
    tags      = found.tags
  }]
}
"""


CLOCK: Final = """
CREATE OR REPLACE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT {}'"""
ACCOUNT: Final = """
INSERT INTO account (id, provider, region, identity, lease_pool_id, settings)
VALUES ($1, 'terraform', $2, $3, 'l', $4)"""
POOL: Final = """
INSERT INTO worker_pool (id, min_capacity, max_capacity, scaling_ratio, mode, profile, boot_evidence, claim_evidence,
    on_bad_image, freeze_after) VALUES ('linux', 0, 9, '1', 'enforce', 'on-demand', 'register', 'hook', 'freeze', 9)"""
NAME: Final = """
INSERT INTO launch_config_name (name, pool_id, current_id, base_weight, price_factor) VALUES ($1, 'linux', $1, 1, 1)"""
CONFIG: Final = """
INSERT INTO launch_config (id, name, digest, pool_id, account_id, region, zone, instance_type, image_revision, settings,
    profile, boot_evidence, claim_evidence, on_bad_image, freeze_after, state)
VALUES ($1, $1, '', 'linux', $2, 'r', 'zone-a', 'm5.large', 'linux-1', '{}', 'on-demand', 'register', 'hook', 'freeze',
    9, 'active')"""


def account_settings(place: Place, **changes: Any) -> dict[str, Any]:
    """Settings of an account whose machines are in the ledger of a place."""
    place.module(MACHINE, "worker")
    look_up = place.module(LOOK_UP, "look-up")
    plugin = {
        "source": SOURCE,
        "version": VERSION,
        "binary": str(place.plugin),
        "digest": place.digest,
        "mode": "debug",
        "arguments": ["--dev"],
    }
    usual = {
        "tool": str(place.settings().tool),
        "plugins": [plugin],
        "modules_folder": str(place.folder / "modules"),
        "lookup": {"module": "look-up", "digest": module_digest(look_up)},
        "configuration": {"folder": str(place.ledger.folder), "region": "east", "secret": SECRET},
        "visibility_seconds": 0.1,
    }
    return usual | changes


def launch_settings(place: Place, **changes: Any) -> dict[str, Any]:
    """Settings of a launch config whose module makes one machine."""
    module = place.module(MACHINE, "worker")
    usual = {
        "module": "worker",
        "digest": module_digest(module),
        "provider": {"source": SOURCE, "version": VERSION},
        "outputs": {"address": "address"},
    }
    return usual | changes


def settings_on(
    database: Database, folder: Path, *, keys: Sequence[str] = (OLD,), **terraform: Any
) -> ProviderSettings:
    """Settings of a provider whose workspaces are in this database and whose runs are in this folder."""
    usual: dict[str, Any] = {"folder": str(folder), "sweep_share": 0.0, "shares": True}
    return ProviderSettings(
        timeout_seconds=60,
        workspaces=WorkspaceRuns(lambda: database, ring(*keys), clock=_fast_clock),
        terraform=TerraformSettings(**usual | terraform),
    )


def _fast_clock() -> float:
    """Clock that runs a hundred times as fast, so that lapsed locks are soon taken over."""
    return 100 * monotonic_seconds()


@contextlib.asynccontextmanager
async def working(provider: Terraform) -> AsyncIterator[Terraform]:
    """Provider whose queue is worked on."""

    async def work() -> None:
        while True:
            if not await provider.work():
                await asyncio.sleep(0.02)

    await provider.open()
    task = asyncio.create_task(work())
    try:
        yield provider
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await provider.close()


def tagged(ledger: Ledger, tags: Mapping[str, str]) -> list[str]:
    """Ids of the machines with these tags, from the ledger itself."""
    return [machine["id"] for machine in ledger.machines() if tags.items() <= (machine["tags"] or {}).items()]


@contextlib.asynccontextmanager
async def real_clock(database: Database) -> AsyncIterator[None]:
    """Let the database's clock run, which tests set otherwise."""
    await database.execute(CLOCK.format("clock_timestamp()"))
    try:
        yield
    finally:
        await database.execute(CLOCK.format("at FROM test_clock"))


async def startable(database: Database, account: Account, config_id: str) -> None:
    """Store an account and a launch config in it from which launches may start."""
    await database.execute(ACCOUNT, account.id, account.region, account.identity, dict(account.settings))
    await database.execute(POOL)
    await database.execute(NAME, config_id)
    await database.execute(CONFIG, config_id, account.id)
