"""The provider `ledger`: its folder shows what exists and under which configuration, and its faults take effect."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway_local.terraform.ledger import SOURCE, Fault, Ledger, write_executable
from tests.support.terraform import installed

SECRET = "hunter2-of-ledger"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def reattach(tmp_path: Path) -> Iterator[str]:
    """TF_REATTACH_PROVIDERS of a running plugin."""
    installed()
    write_executable(tmp_path / "plugin")
    with (tmp_path / "stderr").open("wb") as stderr:
        plugin = subprocess.Popen([tmp_path / "plugin", "--dev"], stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert plugin.stdout is not None
    with plugin:
        yield next(found[0] for line in plugin.stdout if (found := re.search(r"\{.*\}", line)))
        plugin.send_signal(signal.SIGKILL)


def terraform(folder: Path, reattach: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"TF_REATTACH_PROVIDERS": reattach, "CHECKPOINT_DISABLE": "1", "HOME": str(folder)}
    argv = (str(installed().terraform), *arguments, "-auto-approve", "-input=false", "-no-color")
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def root(folder: Path, ledger: Ledger, region: str) -> Path:
    folder.mkdir(exist_ok=True)
    document = {
        "terraform": {"required_providers": {"ledger": {"source": SOURCE}}},
        "provider": {"ledger": {"folder": str(ledger.folder), "region": region, "secret": SECRET}},
        "resource": {"ledger_machine": {"one": {"name": f"of {region}", "tags": {"worker": "w-1"}}}},
    }
    (folder / "main.tf.json").write_text(json.dumps(document))
    return folder


def test_machines_are_recorded_outside_the_plugin(tmp_path: Path, ledger: Ledger, reattach: str) -> None:
    folder = root(tmp_path / "root", ledger, "east")
    assert terraform(folder, reattach, "apply").returncode == 0
    (machine,) = ledger.machines()
    assert (machine["name"], machine["region"], machine["tags"]) == ("of east", "east", {"worker": "w-1"})
    ledger.remove(machine["id"])
    assert terraform(folder, reattach, "apply").returncode == 0
    assert len(ledger.machines()) == 1
    assert terraform(folder, reattach, "destroy").returncode == 0
    assert ledger.machines() == []
    assert [call.call for call in ledger.calls() if call.call != "configure"] == ["create", "create", "destroy"]
    assert {call.region for call in ledger.calls("configure")} == {"east"}


def test_an_error_has_its_texts(tmp_path: Path, ledger: Ledger, reattach: str) -> None:
    ledger.inject(Fault(kind="error", at="create", text="NoRoom", detail="none left for {secret}"))
    failed = terraform(root(tmp_path / "root", ledger, "east"), reattach, "apply")
    assert failed.returncode == 1
    assert "NoRoom" in failed.stderr
    assert SECRET in failed.stderr
    assert ledger.machines() == []


def test_a_crash_after_the_effect_leaves_a_machine(tmp_path: Path, ledger: Ledger, reattach: str) -> None:
    ledger.inject(Fault(kind="secret", at="configure"), Fault(kind="crash", at="create", call=1, done=True))
    folder = root(tmp_path / "root", ledger, "east")
    failed = terraform(folder, reattach, "apply")
    assert failed.returncode == 1
    assert "Plugin did not respond" in failed.stderr
    assert len(ledger.machines()) == 1
    state = json.loads((folder / "terraform.tfstate").read_text()) if (folder / "terraform.tfstate").exists() else {}
    assert not state.get("resources")
    assert SECRET in (tmp_path / "stderr").read_text()


def test_faults_are_of_a_region(tmp_path: Path, ledger: Ledger, reattach: str) -> None:
    ledger.inject(Fault(kind="error", at="create", region="west", text="not here"))
    assert terraform(root(tmp_path / "east", ledger, "east"), reattach, "apply").returncode == 0
    assert "not here" in terraform(root(tmp_path / "west", ledger, "west"), reattach, "apply").stderr


def test_a_leak_stays_in_memory(tmp_path: Path, ledger: Ledger, reattach: str) -> None:
    pid = json.loads(reattach)[SOURCE]["Pid"]
    assert os.getpid() != pid

    def resident() -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    ledger.inject(Fault(kind="leak", at="create", bytes=64 * 2**20))
    assert terraform(root(tmp_path / "root", ledger, "east"), reattach, "apply").returncode == 0
    assert resident() - before > 60 * 2**20
