"""Settings of launch configs: which names are misspelt, and which are for the agent."""

import pytest

from slipway_client.worker.settings import Settings
from slipway_provisioner.providers.aws.settings import LaunchSettings
from slipway_provisioner.providers.launch_settings import OF_WORKER, misspelt_setting
from slipway_provisioner.providers.terraform.settings import TerraformLaunch


def test_the_settings_of_the_worker_are_known() -> None:
    assert set(Settings.__struct_fields__) == OF_WORKER


@pytest.mark.parametrize("provider", [TerraformLaunch, LaunchSettings])
def test_a_setting_of_the_worker_is_never_misspelt(provider: type[TerraformLaunch | LaunchSettings]) -> None:
    """poll_seconds resembles apply_seconds."""
    assert misspelt_setting(OF_WORKER, provider.__struct_fields__) == ""


def test_a_misspelt_setting_is_named() -> None:
    """Other unknown names are for the agent."""
    known = TerraformLaunch.__struct_fields__
    assert misspelt_setting(["command", "aply_seconds"], known) == (
        "unknown setting aply_seconds; write apply_seconds, or a name that is less similar if it is for the agent"
    )
    assert misspelt_setting(["command", "queue"], known) == ""
