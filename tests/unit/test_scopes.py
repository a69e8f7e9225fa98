"""Windows of new configs and keys, which the calculator publishes and the provisioner assumes."""

from typing import Final

import pytest

from slipway_api.events.scopes import NEW_SHARED_WINDOWS, NEW_WINDOWS
from slipway_provisioner.store.pools import shared_window_size, stages
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.rows import STAGES, new_row, new_shared_row

UNRECORDED: Final = {"record": None, "unfolded": None, "claim_evidence": "hook", "launch": 0, "boot": 0, "claim": 0}


@pytest.mark.parametrize("profile", PROFILES)
def test_both_services_begin_with_the_same_windows(profile: str) -> None:
    """In every profile, for configs and for shared keys."""
    assert NEW_WINDOWS == {"launch": 4, "boot": 48, "claim": 64}
    assert NEW_SHARED_WINDOWS == {
        ("image", "boot"): 18,
        ("image", "claim"): 64,
        ("quota", "launch"): 64,
        ("capacity", "launch"): 64,
    }
    row, shared = new_row(PROFILES[profile]), new_shared_row(PROFILES[profile], 0)
    assert {stage: getattr(row, stage).window for stage in STAGES} == NEW_WINDOWS
    assert {share: getattr(shared, share[1]).window for share in NEW_SHARED_WINDOWS} == NEW_SHARED_WINDOWS
    assert {name: stage.window for name, stage in stages(UNRECORDED).items()} == NEW_WINDOWS
    assert {share: shared_window_size(*share, None) for share in NEW_SHARED_WINDOWS} == NEW_SHARED_WINDOWS


def test_a_share_has_its_published_window_or_none() -> None:
    """The window of new keys counts only before the first record, and most kinds of keys have no window at all."""
    assert shared_window_size("image", "boot", 3) == 3
    assert shared_window_size("image", "launch", None) is None
    assert shared_window_size("credential", "launch", 1_000_000) is None
