"""Programs of Terraform for tests. A test that asks for them is skipped, with what to do, where there are none."""

from pathlib import Path

import msgspec
import pytest

from slipway_local.terraform import packages


class Installed(msgspec.Struct, frozen=True):
    """Installed programs. `mirror` has the provider for AWS, `python` runs providers written with `tf`."""

    terraform: Path = packages.TERRAFORM.path
    aws: Path = packages.AWS.path
    mirror: Path = packages.MIRROR
    python: Path = packages.PYTHON


def installed() -> Installed:
    """The installed programs; skips the test where there are none."""
    if reason := packages.missing():
        pytest.skip(reason)
    return Installed()
