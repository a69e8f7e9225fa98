"""`make tools` installs what is missing, and without asking; where it cannot, it says what to do."""

import subprocess
from pathlib import Path

import pytest

from tests import tools

SCRIPT = Path(__file__).parents[2] / "infra" / "tools.sh"
TOLD = 'echo "$(basename "$0") $*" >> "$TOLD"'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose programs are those that a test puts there. Nothing of it reaches this one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    put(folder, "basename", 'echo "${1##*/}"')
    return folder


def put(folder: Path, name: str, script: str = "") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("PATH", str(folder))
    return subprocess.run([SCRIPT], capture_output=True, text=True, check=False)


def test_nothing_is_done_where_all_are_there(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kcat", "tmux", "promtool"):
        put(machine, name)
    done = run(machine, monkeypatch)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_says_what_to_install_where_there_is_no_apt(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(machine, "tmux")
    done = run(machine, monkeypatch)
    assert done.returncode == 2
    assert "missing: kcat prometheus, and there is no apt-get" in done.stderr


def test_says_what_to_install_where_we_may_not(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in (("id", "echo 1000"), ("sudo", "exit 1"), ("apt-get", TOLD)):
        put(machine, name, script)
    done = run(machine, monkeypatch)
    assert done.returncode == 2
    assert "only root may install it" in done.stderr
    assert not (machine.parent / "told").exists()


def test_installs_what_is_missing_and_no_more(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus' service starts neither now nor at the next boot; a list of packages that is too old is renewed."""
    policy = machine.parent / "policy-rc.d"
    monkeypatch.setenv("POLICY", str(policy))
    put(machine, "tmux")
    appears = f"if [ -e {machine}/fresh ]; then : > {machine}/kcat; : > {machine}/promtool; chmod 755 {machine}/*; fi"
    scripts = {
        "id": "echo 1000",
        "systemctl": "",
        "chmod": '/bin/chmod "$@"',
        # Stands for root: acts only inside the folder, and tells the rest.
        "sudo": f"""{TOLD}
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
    told = (machine.parent / "told").read_text()
    assert told.count("apt-get install --quiet --yes --no-install-recommends kcat prometheus\n") == 2
    assert told.index(f"tee {policy}") < told.index("apt-get install")
    assert "systemctl --quiet disable prometheus" in told
    assert told.splitlines()[-1] == f"sudo -n env rm -f {policy}"


def test_a_test_without_its_tool_fails(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine))
    with pytest.raises(pytest.fail.Exception, match="kcat is not installed: `make tools`"):
        tools.needed("kcat")
