"""Files and environment of runs: private, minimal, removed afterwards; a full disk loses no state that was written."""

import json
import shlex
from pathlib import Path

import pytest

from slipway_local.terraform.ledger import Fault
from slipway_terraform.domain.results import Changes, Command, Scope
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.terraform import installed
from tests.support.terraform_runs import Place, driver, soon

VARIABLES = {
    "CHECKPOINT_DISABLE",
    "HOME",
    "LANG",
    "PATH",
    "TF_CLI_CONFIG_FILE",
    "TF_DATA_DIR",
    "TF_FORK",
    "TF_INPUT",
    "TF_IN_AUTOMATION",
    "TMPDIR",
}


def wrapped(place: Place, before: str) -> Path:
    """Terraform behind a script that does something first, except for `version` and `get`."""
    tool = place.folder / "wrapped"
    real = shlex.quote(str(installed().terraform))
    tool.write_text(f'#!/bin/sh\ncase "$1" in version|get) ;; *)\n{before}\nesac\nexec {real} "$@"\n')
    tool.chmod(0o755)
    return tool


async def test_the_environment_is_minimal(
    place: Place, shared: SharedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TF_VAR_name", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "inherited")
    tool = wrapped(place, f"env -0 >{place.folder}/env")
    async with driver(place, shared, tool=tool, environment={"HTTPS_PROXY": "http://proxy"}) as runs:
        run = await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
    assert run.failure is None
    lines = (place.folder / "env").read_text().split("\0")
    given = dict(line.split("=", 1) for line in lines if line)
    shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert given.keys() - shell == VARIABLES | {"TF_REATTACH_PROVIDERS", "HTTPS_PROXY"}
    assert given["HTTPS_PROXY"] == "http://proxy"
    assert "inherited" not in given.values()
    assert (given["CHECKPOINT_DISABLE"], given["TF_IN_AUTOMATION"]) == ("1", "1")


async def test_files_are_private_and_short_lived(place: Place, shared: SharedScheduler) -> None:
    names = ". main.tf.json terraform.tfstate"
    tool = wrapped(place, f"stat -c '%n %a' {names} >{place.folder}/modes; umask >>{place.folder}/modes")
    async with driver(place, shared, tool=tool) as runs:
        first = await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        assert place.secrets_on_disk() == []
        await runs.run(Command.REFRESH, "w-1", place.job(), state=first.state, deadline=soon())
        modes = (place.folder / "modes").read_text().splitlines()
        assert modes == [". 700", "main.tf.json 600", "terraform.tfstate 600", "0077"]
        assert place.secrets_on_disk() == []
        files = runs.settings.folder / "files"
        assert [list((files / name).iterdir()) for name in ("workspaces", "tmp")] == [[], []]
    assert [path.name for path in runs.settings.folder.iterdir()] == ["lock"]


async def test_a_state_that_fits_no_file_is_returned(place: Place, shared: SharedScheduler) -> None:
    """The disk is full when the CLI writes its state: it prints it, and nothing that was created is lost."""
    tool = wrapped(place, "ulimit -f 1")  # 512 bytes, less than a state with one machine
    async with driver(place, shared, tool=tool) as runs:
        run = await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
    (machine,) = place.ledger.machines()
    assert run.failure is not None
    assert run.newest_state is not None
    (resource,) = json.loads(run.newest_state)["resources"]
    assert resource["instances"][0]["attributes"]["id"] == machine["id"]
    assert run.failure.scope is Scope.NOTHING
    async with driver(place, shared) as runs:
        destroyed = await runs.run(Command.DESTROY, "w-1", place.job(), state=run.newest_state, deadline=soon())
    assert destroyed.changes == Changes(0, 0, 1)
    assert place.ledger.machines() == []


async def test_a_state_that_is_lost_leaves_an_unknown_outcome(place: Place, shared: SharedScheduler) -> None:
    """The CLI is killed after it has created a machine: it may exist without being in any state."""
    watch = f'( while [ -z "$(ls {place.ledger.folder}/machines)" ]; do sleep 0.05; done; kill -9 $$ ) &'
    place.ledger.folder.joinpath("machines").mkdir(parents=True, exist_ok=True)
    place.ledger.inject(Fault(kind="hang", at="create", seconds=30.0, done=True))
    async with driver(place, shared, tool=wrapped(place, watch)) as runs:
        run = await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
    assert run.failure is not None
    assert (run.failure.scope, run.failure.code) == (Scope.OUTCOME_UNKNOWN, "Killed")
    assert run.failure.unresolved == ("module.worker.ledger_machine.one",)
    assert len(place.ledger.machines()) == 1


async def test_a_state_that_cannot_be_read_leaves_an_unknown_outcome(place: Place, shared: SharedScheduler) -> None:
    """As without free file descriptors. The CLI has succeeded, but nobody has the state with the machine."""
    tool = place.folder / "unreadable"
    real = shlex.quote(str(installed().terraform))
    broken = "rm terraform.tfstate && mkdir terraform.tfstate"
    tool.write_text(f'#!/bin/sh\n{real} "$@" || exit\ncase "$1" in apply) {broken} ;; esac\n')
    tool.chmod(0o755)
    async with driver(place, shared, tool=tool) as runs:
        run = await runs.run(Command.APPLY, "w-1", place.job(), state=b'{"version": 4, "serial": 0}', deadline=soon())
    assert run.failure is not None
    assert (run.failure.scope, run.failure.code) == (Scope.OUTCOME_UNKNOWN, "StateLost")
    assert len(place.ledger.machines()) == 1
