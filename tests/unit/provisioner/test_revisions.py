"""Revisions of launch configs: their ids, the keys that they share, and when the workers of one end by themselves."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from slipway_provisioner.domain.revisions import StoredRevision, in_force, revision_id, shared_keys

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)


def stored(**changes: Any) -> StoredRevision:
    usual: dict[str, Any] = {
        "id": "zone-a@3f2c9a",
        "name": "zone-a",
        "digest": "3f2c9a",
        "pool_id": "linux",
        "account_id": "ci",
        "region": "eu-west-1",
        "zone": "eu-west-1a",
        "instance_type": "m5.large",
        "image_revision": "ami-1",
        "settings": {},
        "user_data": "",
        "profile": "on-demand",
        "boot_evidence": "registration",
        "claim_evidence": "hook",
        "on_bad_image": "freeze",
        "freeze_after": 5,
        "state": "draining",
        "replaced_by": "now",
        "proven": False,
        "drain_terminate": True,
        "drain_until": NOW,
    }
    return StoredRevision(**usual | changes)


#            changes, deadline, ends by it
ENDS: Final = [
    ({}, None, True),
    ({}, NOW, True),
    ({}, NOW + timedelta(seconds=1), True),
    ({}, NOW - timedelta(seconds=1), False),  # it may stay longer than that
    ({"drain_until": None}, NOW, True),
    ({"replaced_by": "natural"}, NOW, False),
    ({"drain_terminate": False}, NOW, False),
    ({"state": "active"}, NOW, False),
    ({"state": "active", "drain_terminate": False}, None, False),
    ({"state": "archived", "drain_terminate": False, "replaced_by": "natural"}, NOW - timedelta(seconds=1), True),
]


@pytest.mark.parametrize(("changes", "deadline", "ends"), ENDS)
def test_workers_of_a_replaced_revision_end_by_themselves(
    changes: dict[str, Any], deadline: datetime | None, ends: bool
) -> None:
    """After a replacement by `now` whose drain is no longer than another one would be."""
    assert stored(**changes).ends_by(deadline) is ends


def test_keys_of_what_a_revision_shares() -> None:
    """Those that its provider gives, and usual ones otherwise; a subnet only where it names one."""
    assert shared_keys(stored()) == [
        "image/ami-1",
        "quota/ci/eu-west-1/m5",
        "credential/ci",
        "capacity/ci/eu-west-1/eu-west-1a/m5.large/on-demand",
    ]
    named = stored(capacity="use1-az1/m5", quota_family="standard", subnet="subnet-1", image="aws/ami-1")
    assert shared_keys(named) == [
        "image/aws%2Fami-1",
        "quota/ci/eu-west-1/standard",
        "credential/ci",
        "capacity/use1-az1/m5",
        "quota/ci/eu-west-1/subnet/subnet-1",
    ]
    spot = shared_keys(stored(settings={"lifecycle": "spot"}))
    assert spot[3] == "capacity/ci/eu-west-1/eu-west-1a/m5.large/spot"


def test_an_id_is_as_long_as_it_must_be() -> None:
    """The same body has the id that it had; another one whose hash begins alike gets more digits."""
    assert revision_id("a", "3f2c9a77", {}) == "a@3f2c9a"
    assert revision_id("a", "3f2c9a77", {"a@3f2c9a": "3f2c9a77"}) == "a@3f2c9a"
    assert revision_id("a", "3f2c9a77", {"a@3f2c9a": "3f2c9a00"}) == "a@3f2c9a7"


def test_revisions_in_force_by_name() -> None:
    assert in_force([stored()]) == {"zone-a": {"revision": "3f2c9a", "image": "ami-1"}}
