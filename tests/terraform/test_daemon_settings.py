"""Settings of the daemon."""

from pathlib import Path
from typing import Any, Final

import pytest

from slipway_provisioner.settings import Settings as Provisioner
from slipway_terraform.daemon.settings import SOCKET, Executable, InvalidSettings, SchedulerKind, Settings, load
from slipway_terraform.domain.policy import Policy

FILE: Final = f"""
socket = "/run/mine/daemon.sock"
scheduler = "shared"
metrics_port = 9105
metrics_tokens_file = "/etc/metrics_tokens"

[policy]
max_processes = 4

[[provider]]
source = "registry.example/hashicorp/aws"
version = "3.39.0"
binary = "/opt/aws"
digest = "{"a" * 64}"
client_environment = ["AWS_REGION"]
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "daemon.toml"
    file.write_text(text)
    return file


def test_variables_take_precedence_over_the_file(tmp_path: Path) -> None:
    """Settings and limits of the policy have variables; a variable may name the file."""
    file = written(tmp_path, FILE)
    environment = {
        "SLIPWAY_TERRAFORM_SETTINGS": str(file),
        "SLIPWAY_TERRAFORM_SCHEDULER": "workspace",
        "SLIPWAY_TERRAFORM_MAX_CONCURRENCY": "2",
        "SLIPWAY_TERRAFORM_DRAIN_SECONDS": "1.5",
    }
    aws = Executable(
        source="registry.example/hashicorp/aws",
        version="3.39.0",
        binary=Path("/opt/aws"),
        digest="a" * 64,
        client_environment=("AWS_REGION",),
    )
    assert load(None, environment) == Settings(
        socket=Path("/run/mine/daemon.sock"),
        scheduler=SchedulerKind.WORKSPACE,
        metrics_port=9105,
        metrics_tokens_file=Path("/etc/metrics_tokens"),
        drain_seconds=1.5,
        policy=Policy(max_processes=4, max_concurrency=2),
        provider=(aws,),
    )
    assert load(file, {}).scheduler is SchedulerKind.SHARED
    assert load(written(tmp_path, FILE.replace('socket = "/run/mine/daemon.sock"', "")), {}).socket == SOCKET


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'scheduler = "shared"',
            'scheduler = "mine"',
            "daemon.toml: Invalid enum value 'mine' .*; write noop, workspace, shared",
        ),
        ('scheduler = "shared"', 'schedular = "shared"', "the file cannot set schedular; the settings are .*scheduler"),
        (
            "max_processes = 4",
            "max_process = 4",
            r"\[policy\] cannot set max_process; the settings are .*max_processes",
        ),
        ("max_processes = 4", "max_processes = 0", "max_processes is 0; set it to at least 1"),
        ("metrics_port = 9105", "metrics_port = 9105 9106", "daemon.toml: not TOML: .*line 4"),
        ("metrics_port = 9105", "metrics_port = 91055", "metrics_port must be 0 to 65535"),
        ('metrics_tokens_file = "/etc/metrics_tokens"', "", "metrics_port needs metrics_tokens_file"),
        ('"/etc/metrics_tokens"', '"metrics_tokens"', "metrics_port needs metrics_tokens_file, the absolute path"),
        (
            "/run/mine/daemon.sock",
            "daemon.sock",
            "^settings: socket daemon.sock: expected an absolute path of at most 107 bytes",
        ),
        ("/run/mine/", f"/{'x' * 100}/", "of at most 107 bytes, found 113; set `socket` to another path"),
        ("registry.example/hashicorp/aws", "hashicorp/aws", "source must be HOST/NAMESPACE/TYPE"),
        ('"/opt/aws"', '"aws"', "binary aws must be an absolute path"),
        ("a" * 64, "A" * 64, "digest must be the executable's SHA-256 sum"),
        ("scheduler", "drain_seconds = -1\nscheduler", "drain_seconds must be"),
        (
            "scheduler",
            "idle_connection_seconds = 0\nscheduler",
            "idle_connection_seconds must be a time in seconds, above",
        ),
        ("scheduler", "requests_max = 0\nscheduler", "requests_max must be at least 1"),
        (FILE[FILE.index("[[provider]]") :], "", r"no provider is listed, .*; add a \[\[provider\]\]"),
        ("[[provider]]", FILE[FILE.index("[[provider]]") :] + "[[provider]]", "is listed twice"),
    ],
)
def test_mistakes_are_named_with_their_remedy(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in FILE
    with pytest.raises(InvalidSettings, match=expected):
        load(written(tmp_path, FILE.replace(old, new, 1)), {})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MAX_PROCESSES": "many"}, "MAX_PROCESSES: Expected `int`"),
        ({"METRICS_PORT": "x"}, "METRICS_PORT: Expected `int"),
        ({}, "no provider is listed"),
        ({"SETTINGS": "/nowhere.toml"}, "/nowhere.toml: No such file or directory; name a readable file"),
    ],
)
def test_wrong_variables_are_named(variables: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidSettings, match=expected):
        load(None, {f"SLIPWAY_TERRAFORM_{name}": value for name, value in variables.items()})


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("MAX_PROCESS", "MAX_PROCESSES"), ("SOKCET", "SOCKET"), ("DRAIN_SECOND", "DRAIN_SECONDS")],
)
def test_a_misspelt_variable_is_refused(tmp_path: Path, wrong: str, right: str) -> None:
    with pytest.raises(InvalidSettings, match=f"{wrong} is not a setting; rename it to {right}, or unset it"):
        load(written(tmp_path, FILE), {f"SLIPWAY_TERRAFORM_{wrong}": "4"})


def test_variables_of_a_provisioner_are_not_misspelt(tmp_path: Path) -> None:
    """Both may share an environment."""
    own = {name.upper(): "" for name in Provisioner.model_fields if name.startswith("terraform_")}
    assert len(own) >= 4
    assert load(written(tmp_path, FILE), {f"SLIPWAY_{name}": "x" for name in own}) == load(written(tmp_path, FILE), {})
