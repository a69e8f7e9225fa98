"""Workspaces of the benchmarks of Terraform: a security group each, in a region of moto."""

from pathlib import Path
from typing import Final

from slipway_terraform.runs.driver import Job
from slipway_terraform.runs.modules import module_digest
from tests.support.terraform_aws import GROUP, spec_at

REGIONS: Final = (
    "us-east-1",
    "eu-west-1",
    "us-west-2",
    "eu-central-1",
    "ap-southeast-2",
    "sa-east-1",
    "ca-central-1",
)


def write_module(folder: Path) -> Path:
    """Write the module into a new folder."""
    folder.mkdir(parents=True)
    (folder / "main.tf").write_text(GROUP)
    return folder


def name_of(region: str, number: int) -> str:
    """Name of a workspace and its group, which begins with its region."""
    return f"{region}-{number}"


def job(module: Path, port: int, region: str, name: str) -> Job:
    """Runs of a workspace in a region of moto at `port`."""
    providers = (spec_at(port, region),)
    return Job(module=module, module_digest=module_digest(module), variables={"name": name}, providers=providers)
