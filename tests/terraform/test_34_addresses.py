"""Check 34: Terraform and OpenTofu resolve the same source of a module to other addresses; one value makes the key."""

import json
import os
from pathlib import Path

import pytest
from msgspec import structs

from slipway_terraform.domain.errors import ModuleInvalid, SpecInvalid
from slipway_terraform.domain.module import Needs
from slipway_terraform.domain.results import Changes, Command, Plugins
from slipway_terraform.domain.root import root_module
from slipway_terraform.domain.sources import local_name, qualified
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.domain.tools import Kind, Tool
from slipway_terraform.runs.preparing import undeclared
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.terraform_runs import MACHINE, Place, driver, soon

TERRAFORM = Tool("/terraform", Kind.TERRAFORM, (1, 0, 3))
TOFU = Tool("/tofu", Kind.TOFU, (1, 12, 6))


@pytest.mark.parametrize(
    ("source", "terraform", "tofu"),
    [
        ("hashicorp/aws", "registry.terraform.io/hashicorp/aws", "registry.opentofu.org/hashicorp/aws"),
        ("aws", "registry.terraform.io/hashicorp/aws", "registry.opentofu.org/hashicorp/aws"),
        ("example.com/a/b", "example.com/a/b", "example.com/a/b"),
    ],
)
def test_sources_resolve_by_tool(source: str, terraform: str, tofu: str) -> None:
    assert qualified(source, Kind.TERRAFORM) == terraform
    assert qualified(source, Kind.TOFU) == tofu


@pytest.mark.parametrize("source", ["", "a//b", "a/b/c/d", "/b"])
def test_other_texts_are_no_sources(source: str) -> None:
    with pytest.raises(SpecInvalid, match="HOST"):
        qualified(source, Kind.TERRAFORM)


def test_a_short_source_of_a_module_must_be_that_of_the_tool() -> None:
    """Otherwise the tool would look for a provider of another registry, which is not leased."""
    needs = Needs({"aws": "hashicorp/aws"}, ())
    spec = ProviderSpec(
        source="registry.terraform.io/hashicorp/aws", version="3", binary="", digest="", configuration={}
    )
    undeclared(needs, [spec], TERRAFORM)
    with pytest.raises(ModuleInvalid, match=r"needs provider aws \(registry\.opentofu\.org/hashicorp/aws\)"):
        undeclared(needs, [spec], TOFU)


def test_a_source_of_a_job_has_a_host() -> None:
    for source in ("hashicorp/aws", "aws"):
        with pytest.raises(SpecInvalid, match="not fully qualified"):
            local_name(source)


async def test_root_module_and_key_have_one_source(place: Place, shared: SharedScheduler) -> None:
    """The CLI finds the leased process of a provider without a registry, since both addresses are equal."""
    spec = place.spec()
    root = json.loads(root_module([spec], {}))
    async with await shared.acquire([spec], owner="w-1", deadline=soon()) as lease:
        keys = list(json.loads(lease.env["TF_REATTACH_PROVIDERS"]))
        assert keys == [root["terraform"][0]["required_providers"][0]["ledger"]["source"]]
    short = place.module(MACHINE.replace("registry.terraform.io/slipway/ledger", "slipway/ledger"))
    async with driver(place, shared) as runs:
        run = await runs.run(Command.APPLY, "w-1", place.job(short), state=None, deadline=soon())
        assert run.failure is None


@pytest.fixture
def tofu() -> Path:
    """An OpenTofu, of which no package index has a binary (decision 0052 says how to build it)."""
    if not (path := os.environ.get("TOFU")):
        pytest.skip("NO OPENTOFU: TOFU=/path/of/tofu names one")
    return Path(path)


@pytest.mark.parametrize(
    ("host", "written"), [("registry.terraform.io", "registry.terraform.io/"), ("registry.opentofu.org", "")]
)
async def test_opentofu_runs(place: Place, shared: SharedScheduler, tofu: Path, host: str, written: str) -> None:
    """On a leased process, by a source with a host, and by one that OpenTofu completes with its own."""
    module = place.module(MACHINE.replace("registry.terraform.io/", written))
    spec = structs.replace(place.spec(), source=f"{host}/slipway/ledger")
    async with driver(place, shared, tool=tofu) as runs:
        job = place.job(module, providers=(spec,))
        applied = await runs.run(Command.APPLY, "w-1", job, state=None, deadline=soon())
        assert (applied.failure, applied.plugins, applied.changes) == (None, Plugins.LEASED, Changes(1, 0, 0))
        assert applied.outputs["id"] == place.ledger.machines()[0]["id"]
        planned = await runs.run(Command.PLAN, "w-1", job, state=applied.state, deadline=soon())
        assert planned.changes == Changes(0, 0, 0)
        refreshed = await runs.run(Command.REFRESH, "w-1", job, state=applied.state, deadline=soon())
        assert refreshed.failure is None
        destroyed = await runs.run(Command.DESTROY, "w-1", job, state=refreshed.state, deadline=soon())
        assert destroyed.changes == Changes(0, 0, 1)
    assert place.ledger.machines() == []


async def test_opentofu_finds_no_process_of_terraforms_registry(
    place: Place, shared: SharedScheduler, tofu: Path
) -> None:
    """The module's short source is another provider there, so that the run is refused before it begins."""
    short = place.module(MACHINE.replace("registry.terraform.io/slipway/ledger", "slipway/ledger"))
    async with driver(place, shared, tool=tofu) as runs:
        with pytest.raises(ModuleInvalid, match=r"registry\.opentofu\.org/slipway/ledger"):
            await runs.run(Command.APPLY, "w-1", place.job(short), state=None, deadline=soon())
    assert place.ledger.calls() == []
