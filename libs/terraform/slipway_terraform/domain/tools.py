"""Command-line tools that run modules: Terraform or OpenTofu. Pure."""

import re
from enum import StrEnum
from typing import Final

import msgspec

from slipway_terraform.domain.errors import ToolUnsupported

# The first release whose `apply` and `destroy` have -json, and the oldest that this package is tested with.
VERSION_MIN: Final = (1, 0, 3)
_LINE: Final = re.compile(r"^(Terraform|OpenTofu) v(\d+)\.(\d+)\.(\d+)", re.MULTILINE)


class Kind(StrEnum):
    TERRAFORM, TOFU = "terraform", "tofu"


class Tool(msgspec.Struct, frozen=True):
    """An installed tool: its path, kind and version."""

    path: str
    kind: Kind
    version: tuple[int, int, int]


def tool_of(path: str, output: str) -> Tool:
    """Tool whose `version` command printed this. Raises ToolUnsupported."""
    found = _LINE.search(output)
    if found is None:
        printed = output.strip().splitlines()[:1] or ["nothing"]
        raise ToolUnsupported(
            f"{path} is neither Terraform nor OpenTofu: `version` printed {printed[0][:80]!r}; "
            "set the path of terraform or tofu"
        )
    kind = Kind.TERRAFORM if found[1] == "Terraform" else Kind.TOFU
    version = (int(found[2]), int(found[3]), int(found[4]))
    if version < VERSION_MIN:
        raise ToolUnsupported(
            f"{path} is {found[1]} {'.'.join(found.groups()[1:])}; install {'.'.join(map(str, VERSION_MIN))} or later"
        )
    return Tool(path, kind, version)
