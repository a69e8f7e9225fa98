"""Handles: two specifications share a process only if all that it could tell apart is equal."""

from typing import Any, Final

import msgspec
import pytest

from slipway_terraform.domain.handle import handle_of
from slipway_terraform.domain.specs import ProviderSpec

SPEC: Final = ProviderSpec(
    source="registry.terraform.io/hashicorp/aws",
    version="6.0.0",
    binary="/plugins/aws",
    digest="0" * 64,
    configuration={"region": "eu-west-1", "profile": "ci"},
)
OTHERS: Final[list[dict[str, Any]]] = [
    {"configuration": {"region": "us-east-1", "profile": "ci"}},
    {"version": "6.0.1"},
    {"digest": "1" * 64},
    {"environment": {"AWS_PROFILE": "other"}},
    {"tenant": "other"},
]


@pytest.mark.parametrize("changes", OTHERS, ids=lambda changes: next(iter(changes)))
def test_what_differs_shares_no_process(changes: dict[str, Any]) -> None:
    assert handle_of(msgspec.structs.replace(SPEC, **changes), key=b"k") != handle_of(SPEC, key=b"k")


def test_equal_specifications_share_one() -> None:
    """In any order of keys, and wherever the binary lies; another scheduler has handles of its own."""
    again = msgspec.structs.replace(SPEC, binary="/other/aws", configuration={"profile": "ci", "region": "eu-west-1"})
    assert handle_of(again, key=b"k") == handle_of(SPEC, key=b"k") != handle_of(SPEC, key=b"other")
