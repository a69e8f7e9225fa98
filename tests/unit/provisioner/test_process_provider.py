"""Settings, checks and listings of the provider of processes, without a process."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.base.clock import utc_now
from slipway_common.base.process import identities
from slipway_common.base.process.identities import INSTANCE_TAG
from slipway_provisioner.domain.account_check import CheckState
from slipway_provisioner.providers.port import CONSOLE_BYTES_MAX, Refused
from slipway_provisioner.providers.process import AccountSettings, Processes, instances
from tests.support.linux import needs_linux
from tests.support.providers import ACCOUNT, account, provider_settings, request


@pytest.fixture
async def local() -> AsyncIterator[Processes]:
    provider = Processes(provider_settings())
    yield provider
    await provider.close()


PROBLEMS = [
    ({}, ""),
    ({"command": ["a", "b"], "processes_max": 4, "queue_url": "http://q", "log_folder": "/l", "environment": {}}, ""),
    ({"comand": ["a"]}, "comand"),
    ({"command": "slipway-worker run"}, "command"),
    ({"command": []}, "command is empty"),
    ({"processes_max": 0}, "1 or more"),
    ({"processes_max": "many"}, "processes_max"),
    ({"queue_url": "127.0.0.1:7304"}, "http://"),
    ({"log_folder": "logs"}, "absolute"),
    ({"work_folder": "work"}, "absolute"),
    ({"environment": {"A": 1}}, "environment"),
    ({"environment": {"A=B": "1"}}, "A=B"),
    ({"environment": {"": "1"}}, "a variable without a name"),
    ({"environment": {INSTANCE_TAG: "mine"}}, INSTANCE_TAG),
]


@needs_linux
@pytest.mark.parametrize(("settings", "words"), PROBLEMS)
async def test_unusable_settings(local: Processes, settings: dict[str, Any], words: str) -> None:
    problem = local.problem(settings, "here")
    assert words in problem
    assert bool(problem) == bool(words)


async def test_a_system_without_proc(local: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "supported", lambda: False)
    assert "Linux" in local.problem({}, "here")


async def test_a_launch_config_states_no_environment(local: Processes) -> None:
    """With PATH or LD_PRELOAD it could run any command."""
    assert local.config_problem({}, {"tasks_per_worker": 1}) == ""
    assert "a setting of the operator" in local.config_problem({}, {"environment": {"PATH": "/tmp"}})


async def test_another_hosts_account_launches_nothing_here(local: Processes) -> None:
    """A declaration for another host, or with the name from the example, starts no agent here."""
    elsewhere = msgspec.structs.replace(account(), identity="elsewhere")
    with pytest.raises(Refused, match="elsewhere") as refused:
        await local.create(elsewhere, request())
    assert refused.value.outcome == Outcome(Stage.LAUNCH, Result.FAILED, Scope.CREDENTIAL, ACCOUNT, "WrongHost")
    assert await local.identity(elsewhere) == account().identity


@needs_linux
async def test_a_check_names_what_cannot_be_used(local: Processes, tmp_path: Path) -> None:
    """Folders of logs are made when they are needed, in one that exists."""
    (tmp_path / "file").touch(0o755)
    given: dict[str, Any] = {"command": ["no-such-agent"], "work_folder": str(tmp_path / "none"), "processes_max": 2}
    bad = await local.check(account(**given, log_folder=str(tmp_path / "file" / "logs")), [])
    assert {(found.subject, found.remedy) for found in bad if found.state is CheckState.PROBLEM} == {
        ("command", "install it on this host, or set one that can be run"),
        ("work_folder", "create it for the provisioner's user, or set another"),
        ("log_folder", "let the provisioner's user write there, or set another"),
    }
    assert [found.message for found in bad if found.kind == "quota"] == ["0 of 2 processes are running"]
    folders: dict[str, Any] = {"work_folder": str(tmp_path), "log_folder": str(tmp_path / "more" / "logs")}
    good = await local.check(account(**folders, command=["sh"], processes_max=None), [])
    assert [found.subject for found in good if found.kind == "setting"] == ["command", "work_folder", "log_folder"]
    assert {found.state for found in good} == {CheckState.OK}


async def test_console_output_is_the_end_of_the_first_log_that_is_a_file(local: Processes, tmp_path: Path) -> None:
    """A link in the place of a log may name a file that only the provisioner may read."""
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", tmp_path / "b-1.log")
    (tmp_path / "b-2.log").write_bytes(b"begin" + b"x" * (CONSOLE_BYTES_MAX - 4) + b"end\xff")
    (tmp_path / "b-3.log").write_text("later")
    here = account(log_folder=str(tmp_path))
    end = (CONSOLE_BYTES_MAX - 4) * "x" + "end\N{REPLACEMENT CHARACTER}"
    assert await local.console_output(here, "b", "1-1") == end
    assert await local.console_output(here, "*", "1-1") == ""
    assert await local.console_output(account(), "b", "1-1") == ""


def test_the_instance_of_a_tag_is_its_leader() -> None:
    """The session leader represents its tag, otherwise the oldest process that is left."""

    def process(pid: int, session: int, tag: str) -> identities.Process:
        return identities.Process(
            pid=pid, identity=str(pid), session=session, start_ticks=pid, started_at=utc_now(), tag=tag
        )

    found = [process(1, 9, "a"), process(2, 2, "a"), process(3, 3, "a"), process(4, 9, "b"), process(5, 9, "b")]
    assert [chosen.pid for chosen in instances(found)] == [2, 4]
    assert instances([]) == []
    assert AccountSettings().command == ("slipway-worker", "run")
