"""Settings and credentials of workers made by Terraform modules: what is wrong, and what to do."""

from pathlib import Path
from typing import Any, Final

import pytest

from slipway_provisioner.providers.terraform.credentials import NoCredential, environment_of
from slipway_provisioner.providers.terraform.settings import account_problem, credential_problem, launch_problem

DIGEST: Final = "0" * 64
PLUGIN: Final = {"source": "registry.terraform.io/a/b", "version": "1.0.0", "binary": "/opt/b", "digest": DIGEST}
ACCOUNT: Final[dict[str, Any]] = {
    "tool": "/usr/bin/tofu",
    "plugins": [PLUGIN],
    "modules_folder": "/modules",
    "lookup": {"module": "look-up", "digest": DIGEST},
}
LAUNCH: Final[dict[str, Any]] = {
    "module": "worker",
    "digest": DIGEST,
    "provider": {"source": PLUGIN["source"], "version": "1.0.0"},
    "tasks_per_worker": 4,
}
SECRET: Final = "hunter2-of-the-file"


def test_settings_without_a_problem() -> None:
    """A launch config may have settings for its agent, too."""
    assert account_problem(ACCOUNT) == launch_problem(ACCOUNT, LAUNCH) == ""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tool": "tofu"}, "tool is 'tofu'; write an absolute path"),
        ({"modules_folder": "modules"}, "modules_folder is 'modules'"),
        ({"plugins": []}, "plugins is empty"),
        ({"plugins": [PLUGIN | {"source": "a/b"}]}, "not fully qualified"),
        ({"plugins": [PLUGIN | {"digest": "abc"}]}, "not a SHA-256"),
        ({"plugins": [PLUGIN | {"binary": "b"}]}, "binary of registry.terraform.io/a/b"),
        ({"lookup": {"module": "../look-up", "digest": DIGEST}}, "lookup: module is '../look-up'"),
        ({"errors": {"Full": "everything"}}, "errors: Full has scope 'everything'"),
        ({"workspaces_max": 0}, "workspaces_max is 0"),
        ({"visibility_seconds": -1}, "visibility_seconds is -1"),
        ({"colour": "red"}, "the settings are tool, plugins"),
    ],
)
def test_bad_settings_of_an_account(changes: dict[str, Any], text: str) -> None:
    assert text in account_problem(ACCOUNT | changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"module": "/etc"}, "module is '/etc'"),
        ({"digest": ""}, "not a SHA-256"),
        ({"provider": {"source": PLUGIN["source"], "version": "2.0.0"}}, "not among the plugins of the account"),
        ({"variables": {"worker": 1}}, "variable worker is set by Slipway"),
        ({"apply_seconds": 0}, "apply_seconds is 0"),
        (
            {"variabels": {}},
            "unknown setting variabels; write variables, or a name that is less similar if it is for the agent",
        ),
        ({"provider": "aws"}, "write source and version into provider"),
        ({"outputs": {"adress": "address"}}, "into provider, instance_id or address into outputs"),
        (
            {"apply_seconds": "10m"},
            "outputs; the settings are module, digest, provider, variables, outputs, apply_seconds",
        ),
    ],
)
def test_bad_settings_of_a_launch_config(changes: dict[str, Any], text: str) -> None:
    assert text in launch_problem(ACCOUNT, LAUNCH | changes)


def test_credentials_are_environments_and_files() -> None:
    """Roles are assumed by the provider itself."""
    assert (
        credential_problem({}) == credential_problem({"file": "/f"}) == credential_problem({"environment": "CI"}) == ""
    )
    assert "role is not for this provider" in credential_problem({"role": "arn:aws:iam::1:role/x"})


def test_a_credential_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables with the prefix, without it; no other one reaches a plugin."""
    monkeypatch.setenv("CI_A_HCLOUD_TOKEN", SECRET)
    monkeypatch.setenv("CI_AB_HCLOUD_TOKEN", "other")
    assert environment_of({"environment": "CI_A"}) == {"HCLOUD_TOKEN": SECRET}
    with pytest.raises(NoCredential, match="CI_B_"):
        environment_of({"environment": "CI_B"})


@pytest.mark.parametrize("text", [f"# token\nTOKEN={SECRET}\n\n", f'{{"TOKEN": "{SECRET}"}}'], ids=["lines", "json"])
def test_a_credential_of_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credential"
    file.write_text(text)
    assert environment_of({"file": str(file)}) == {"TOKEN": SECRET}


@pytest.mark.parametrize("text", [SECRET, "", f'{{"TOKEN": ["{SECRET}"]}}', f'{{"{SECRET}'])
def test_a_bad_file_is_named_without_its_content(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credential"
    file.write_text(text)
    with pytest.raises(NoCredential) as refused:
        environment_of({"file": str(file)})
    assert str(file) in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
