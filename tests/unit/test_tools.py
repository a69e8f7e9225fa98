"""`make tools` installs missing tools without a prompt, or prints how to install them."""

import subprocess
from pathlib import Path

import pytest

from tests.support import tools

PROGRAMS = ("kcat", "promtool", "prometheus-alertmanager", "redis-server", "rabbitmq-server")  # and tmux
PACKAGES = "kcat prometheus prometheus-alertmanager redis-server rabbitmq-server"
SCRIPT = Path(__file__).parents[2] / "infra" / "tools.sh"
LOG = 'echo "$(basename "$0") $*" >> "$LOG"'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of stand-in programs, the only ones on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    put(folder, "basename", 'echo "${1##*/}"')
    return folder


def put(folder: Path, name: str, script: str = "") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("PATH", str(folder))
    return subprocess.run([SCRIPT], capture_output=True, text=True, check=False)


def test_nothing_is_done_if_all_are_installed(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROGRAMS, "tmux"):
        put(machine, name)
    done = run(machine, monkeypatch)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_prints_packages_without_apt(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(machine, "tmux")
    done = run(machine, monkeypatch)
    assert done.returncode == 2
    assert f"missing: {PACKAGES}, and there is no apt-get" in done.stderr


def test_prints_packages_without_permission(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in (("id", "echo 1000"), ("sudo", "exit 1"), ("apt-get", LOG)):
        put(machine, name, script)
    done = run(machine, monkeypatch)
    assert done.returncode == 2
    assert "only root may install it" in done.stderr
    assert not (machine.parent / "log").exists()


def test_installs_missing_packages_only(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The services start neither now nor at boot; an outdated package list is updated."""
    policy = machine.parent / "policy-rc.d"
    monkeypatch.setenv("POLICY", str(policy))
    put(machine, "tmux")
    created = " ".join(f": > {machine}/{name};" for name in PROGRAMS)
    appears = f"if [ -e {machine}/fresh ]; then {created} chmod 755 {machine}/*; fi"
    scripts = {
        "id": "echo 1000",
        "systemctl": "",
        "chmod": '/bin/chmod "$@"',
        # Stand-in for root: acts only inside the folder and logs other commands.
        "sudo": f"""{LOG}
case "$*" in
  *"apt-get update"*) : > {machine}/fresh ;;
  *"apt-get install"*) test -e {machine}/fresh || exit 100; {appears} ;;
  *tee*) /bin/cat >/dev/null ;;
esac""",
    }
    for name, script in (scripts | {"apt-get": "exit 99"}).items():
        put(machine, name, script)
    done = run(machine, monkeypatch)
    assert done.returncode == 0, done.stderr
    log = (machine.parent / "log").read_text()
    assert log.count(f"apt-get install --quiet --yes --no-install-recommends {PACKAGES}\n") == 2
    assert log.index(f"tee {policy}") < log.index("apt-get install")
    for service in PACKAGES.split()[1:]:
        assert f"systemctl --quiet disable {service}\n" in log
    assert log.splitlines()[-1] == f"sudo -n env rm -f {policy}"


def test_a_test_without_its_tool_fails(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine))
    with pytest.raises(pytest.fail.Exception, match="kcat is not installed; run `make tools`"):
        tools.needed("kcat")
