"""Bad input to runs: what is wrong, what to do, and nothing run, created or left."""

import json
import resource
from typing import Any

import pytest

from slipway_local.terraform.ledger import SOURCE
from slipway_terraform.domain.errors import (
    DigestMismatch,
    DiskFull,
    InitFailed,
    ModuleInvalid,
    ModuleMissing,
    OperationInProgress,
    QueueTimeout,
    SharingUnsafe,
    SpecInvalid,
    TerraformError,
    ToolMissing,
    ToolUnsupported,
)
from slipway_terraform.domain.results import Command, Plugins
from slipway_terraform.runs.driver import Driver, Job, WhenUnsafe
from slipway_terraform.runs.modules import module_digest
from slipway_terraform.scheduler.noop import NoOpScheduler
from tests.support.terraform_runs import MACHINE, Place, driver, soon

PROVIDER = MACHINE + '\nprovider "ledger" {\n  folder = "/nowhere"\n}\n'


async def refused(place: Place, job: Job, error: type[TerraformError], **settings: Any) -> str:
    """Message of the refusal of this job. Nothing was run for it, and nothing is left of it."""
    async with driver(place, **settings) as runs:
        with pytest.raises(error) as raised:
            await runs.run(Command.APPLY, "w-1", job, state=None, deadline=soon())
        left = [
            path
            for name in ("workspaces", "prepared", "tmp")
            for path in (runs.settings.folder / "files" / name).iterdir()
        ]
        assert [path for path in left if path.parent.name != "prepared"] == []
    assert place.ledger.calls() == []
    assert place.secrets_on_disk() == []
    return str(raised.value)


async def test_a_module_that_is_not_there(place: Place) -> None:
    job = place.job()
    empty = place.folder / "empty"
    empty.mkdir()
    for folder, reason in ((place.folder / "none", "it is not a folder"), (empty, "it has no .tf or .tf.json file")):
        missing = Job(module=folder, module_digest="", providers=job.providers)
        message = await refused(place, missing, ModuleMissing)
        assert message == f"there is no module at {folder}: {reason}; check the path"


async def test_a_module_with_another_digest(place: Place) -> None:
    job = place.job()
    (place.module() / "more.tf").write_text("locals {}\n")
    message = await refused(place, job, DigestMismatch)
    assert message.startswith(f"module {job.module}: SHA-256 is ")
    assert f"expected {job.module_digest}; restore the module, or give the new digest" in message


async def test_a_provider_block_in_the_module(place: Place) -> None:
    message = await refused(place, place.job(place.module(PROVIDER)), SharingUnsafe)
    assert "worker/main.tf:15: provider ledger is configured" in message
    assert "remove it from the module. Users of the library may set when_unsafe to own-plugins" in message


async def test_a_provider_block_in_a_nested_module(place: Place) -> None:
    module = place.module(MACHINE + '\nmodule "inner" {\n  source = "./inner"\n}\n')
    (module / "inner").mkdir()
    required = {"terraform": {"required_providers": {"ledger": {"source": SOURCE}}}}
    configured = {"provider": {"ledger": {"folder": str(place.ledger.folder)}}}
    (module / "inner" / "p.tf.json").write_text(json.dumps(required | configured))
    assert "worker.inner/p.tf.json: provider ledger is configured" in await refused(
        place, place.job(module), SharingUnsafe
    )


async def test_own_plugins_for_a_module_with_a_provider_block(place: Place) -> None:
    """The fallback says so, and the module's own configuration holds."""
    module = place.module(PROVIDER.replace("/nowhere", str(place.ledger.folder)))
    async with driver(place) as runs:
        job = place.job(module, when_unsafe=WhenUnsafe.OWN_PLUGINS)
        run = await runs.run(Command.APPLY, "w-1", job, state=None, deadline=soon())
    assert run.failure is None
    assert (run.plugins, run.unshared) == (Plugins.OWN, "worker/main.tf:15: provider ledger is configured")
    assert [machine["region"] for machine in place.ledger.machines()] == [""]


async def test_own_plugins_without_a_mirror(place: Place) -> None:
    job = place.job(place.module(PROVIDER), when_unsafe=WhenUnsafe.OWN_PLUGINS)
    assert "there is no mirror to install plugins from; set `mirror`" in await refused(
        place, job, SharingUnsafe, mirror=None
    )


async def test_a_folder_of_runs_that_cannot_be_made(place: Place) -> None:
    file = place.folder / "file"
    file.touch()
    with pytest.raises(SpecInvalid, match="file cannot be used as the folder of runs: File exists; set a folder"):
        async with driver(place, folder=file):
            pass


async def test_a_module_that_needs_no_provider(place: Place) -> None:
    module = place.module('variable "name" {}\noutput "id" {\n  value = var.name\n}\n')
    job = Job(module=module, module_digest=module_digest(module), variables={"name": "one"})
    async with driver(place) as runs:
        run = await runs.run(Command.APPLY, "w-1", job, state=None, deadline=soon())
    assert (run.failure, run.outputs) == (None, {"id": "one"})


async def test_a_provider_with_another_digest(place: Place) -> None:
    job = place.job()
    place.plugin.write_text(place.plugin.read_text() + "\n")
    message = await refused(place, job, DigestMismatch)
    assert f"expected SHA-256 {place.digest}" in message


async def test_a_provider_that_is_not_in_the_mirror(place: Place) -> None:
    place.plugin.unlink()
    message = await refused(place, place.job(), InitFailed)
    assert "slipway/ledger" in message
    assert message.endswith("; correct the module, or add the provider to the mirror")


async def test_a_module_that_needs_another_provider(place: Place) -> None:
    other = MACHINE.replace("registry.terraform.io/slipway/ledger", "example.com/other/ledger")
    message = await refused(place, place.job(place.module(other)), ModuleInvalid)
    assert "the module needs provider ledger (example.com/other/ledger)" in message
    assert "add it to the job" in message


async def test_a_module_that_calls_one_that_is_not_there(place: Place) -> None:
    module = place.module(MACHINE + '\nmodule "inner" {\n  source = "./inner"\n}\n')
    message = await refused(place, place.job(module), InitFailed)
    assert message.startswith(f"get of {module} failed: Error: ")
    assert message.count("Unable to evaluate directory symlink: lstat module/inner") == 1
    assert message.endswith("; correct the module, and put the modules that it calls where it names them")


async def test_a_module_that_calls_one_on_a_server_that_does_not_answer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its installation gives up its slot, which other runs need."""
    tool, began = place.folder / "silent", place.folder / "began"
    silent = f"[ -e {began} ] || {{ touch {began}; sleep 20; exit 1; }}"
    tool.write_text(f'#!/bin/sh\ncase "$1" in get) {silent} ;; esac\nexec {place.settings().tool} "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setattr("slipway_terraform.runs.driver.INSTALL_SECONDS", 0.5)
    message = await refused(place, place.job(), InitFailed, tool=tool, max_runs=1)
    assert f"get of {place.job().module} failed: not finished within 0.5 s; correct the module" in message


async def test_a_module_that_is_no_hcl(place: Place) -> None:
    message = await refused(place, place.job(place.module('locals {\n  a = "b\n}\n')), TerraformError)
    assert "main.tf" in message


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "cannot run TOOL: No such file or directory; set the path of terraform or tofu"),
        ("", "cannot run TOOL: Exec format error; set the path of terraform or tofu"),
        (
            "#!/bin/sh\necho git version 2.40\n",
            "TOOL is neither Terraform nor OpenTofu: `version` printed 'git version",
        ),
        ("#!/bin/sh\nexit 1\n", "TOOL is neither Terraform nor OpenTofu: `version` printed 'nothing'"),
        ("#!/bin/sh\necho Terraform v0.11.0\n", "TOOL is Terraform 0.11.0; install 1.0.3 or later"),
    ],
)
async def test_a_tool_that_is_missing_or_of_another_kind(place: Place, script: str | None, reason: str) -> None:
    tool = place.folder / "tool"
    if script is not None:
        tool.write_text(script)
        tool.chmod(0o755)
    with pytest.raises((ToolMissing, ToolUnsupported)) as raised:
        async with driver(place, tool=tool):
            pass
    assert str(raised.value).startswith(reason.replace("TOOL", str(tool)))
    async with driver(place):  # the folder is free again
        pass


async def test_a_tool_that_may_not_be_executed(place: Place) -> None:
    tool = place.folder / "tool"
    tool.write_text("#!/bin/sh\n")
    with pytest.raises(ToolMissing, match="Permission denied"):
        async with driver(place, tool=tool):
            pass


async def test_a_folder_that_is_in_use(place: Place) -> None:
    async with driver(place):
        with pytest.raises(OperationInProgress, match="use another folder"):
            async with driver(place):
                pass


async def test_a_folder_whose_sockets_would_have_too_long_a_path(place: Place) -> None:
    folder = place.folder / ("x" * 60)
    message = await refused(place, place.job(), SpecInvalid, folder=folder)
    assert message == f"paths of sockets in {folder} would be too long; choose a folder of at most 54 bytes"


async def test_a_disk_without_room_for_the_module(place: Place) -> None:
    job = place.job(variables={"name": "w" * 2_000})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with Driver(place.settings(), NoOpScheduler()) as runs:
        await runs.run(Command.PLAN, "w-1", place.job(), state=None, deadline=soon())
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
        try:
            with pytest.raises(DiskFull, match="no space on the disk for the workspace w-2: File too large; free some"):
                await runs.run(Command.APPLY, "w-2", job, state=None, deadline=soon())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list((runs.settings.folder / "files" / "workspaces").iterdir()) == []
        assert (await runs.run(Command.APPLY, "w-2", job, state=None, deadline=soon())).failure is None


async def test_no_slot_before_the_deadline(place: Place) -> None:
    async with driver(place, max_runs=1) as runs:
        async with runs._slots:
            with pytest.raises(QueueTimeout, match="no run could begin before the deadline"):
                await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon(0.1))
        assert (await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())).failure is None


async def test_a_deadline_that_has_passed(place: Place) -> None:
    """Even if the run would not have to wait: the module is installed, and its plugin is idle."""
    async with driver(place) as runs:
        assert (await runs.run(Command.PLAN, "w-1", place.job(), state=None, deadline=soon())).failure is None
        with pytest.raises(QueueTimeout, match="no run could begin before the deadline"):
            await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon(-1.0))
    assert place.ledger.machines() == []


async def test_content_that_is_not_a_state(place: Place) -> None:
    async with driver(place) as runs:
        run = await runs.run(Command.APPLY, "w-1", place.job(), state=b"{", deadline=soon())
    assert run.failure is not None
    assert (run.state, run.outputs) == (b"{", {})
    assert place.ledger.machines() == []


async def test_what_a_killed_driver_left_behind_is_removed(place: Place) -> None:
    left = place.folder / "runs" / "files" / "workspaces" / "w-9"
    left.mkdir(parents=True)
    (left / "main.tf.json").write_text("secret")
    async with driver(place):
        assert list((place.folder / "runs" / "files" / "workspaces").iterdir()) == []
    assert [path.name for path in (place.folder / "runs").iterdir()] == ["lock"]
