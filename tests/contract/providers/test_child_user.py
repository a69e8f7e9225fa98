"""A command or module that runs as SLIPWAY_CHILD_USER can read nothing of the service that started it."""

import os
import pwd
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from slipway_common.base.process.users import CAPABILITIES, ChildUser, UnusableUser
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.port import ProviderSettings
from slipway_provisioner.providers.process import Processes
from slipway_terraform.runs.files import LOCK_FILE, RunFolder, read_written
from tests.support.harness import until
from tests.support.linux import needs_linux
from tests.support.provider_contract import clear
from tests.support.providers import account, request

pytestmark = [needs_linux, pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")]

USER: Final = "daemon"
LOOK: Final = """
cd /proc/$PPID
ls fd >/dev/null 2>&1 && echo fd
for link in cwd root; do readlink $link >/dev/null && echo $link; done
for file in environ maps; do head -c1 $file >/dev/null 2>&1 && echo $file; done
(exec 4<mem) 2>/dev/null && echo mem
head -c1 "$SECRETS/keys" >/dev/null 2>&1 && echo secrets
ls "$SOCKET"/.s.PGSQL.* >/dev/null 2>&1 && echo socket
(exec 4<>/proc/$PPID/fd/0) 2>/dev/null && echo descriptor
kill -0 $PPID 2>/dev/null && echo signal
echo "user $(id -u) $(id -G)"
printf 'descriptors '; ls -x -w 200 /proc/$$/fd
echo "rights $(grep -E '^(CapPrm|CapEff|CapAmb|NoNewPrivs)' /proc/$$/status | tr -d '\\t' | tr '\\n' ' ')"
echo "names" $(env | cut -d= -f1 | sort)
echo done
exec sleep 600
"""
EVERYTHING: Final = {"fd", "cwd", "root", "environ", "maps", "mem", "secrets", "socket", "signal"}
NAMED: Final = {"PATH", "HOME", "LANG", "TMPDIR", "SECRETS", "SOCKET", "SLIPWAY_INSTANCE_TAG"}
BY_THE_SHELL: Final = {"PWD", "OLDPWD", "SHLVL", "_"}


@pytest.fixture
async def as_other() -> AsyncIterator[Processes]:
    provider = Processes(ProviderSettings(timeout_seconds=60, child_user=ChildUser.named(USER)))
    yield provider
    await clear()
    await provider.close()


@pytest.fixture
def place(tmp_path: Path, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> Account:
    """An account whose command looks at its parent, which has a secret in a file, in its environment, and a file open
    that a child could inherit."""
    (tmp_path / "keys").touch(mode=0o600)
    (tmp_path / "keys").write_text("the-key")
    monkeypatch.setenv("SLIPWAY_DATABASE_URL", "postgresql://the-password@db")
    os.set_inheritable(os.open(tmp_path / "keys", os.O_RDONLY), True)
    socket_folder = postgres.url().partition("host=")[2].partition("&")[0]
    return account(
        command=["sh", "-c", LOOK],
        environment={"SECRETS": str(tmp_path), "SOCKET": socket_folder},
        log_folder=str(tmp_path / "logs"),
    )


async def seen(provider: Processes, place: Account) -> dict[str, list[str]]:
    """Printed lines of the command: the rest of each by its first word."""
    asked = request()
    await provider.create(place, asked)
    log = Path(place.settings["log_folder"]) / f"{asked.batch_id}-1.log"
    await until(lambda: "done\n" in log.read_text(), "the command has looked")
    return {line.split()[0]: line.split()[1:] for line in log.read_text().splitlines()}


async def test_a_command_reads_nothing_of_the_service(as_other: Processes, place: Account) -> None:
    """Neither environment, memory, descriptors and folders, nor its secrets' files and its database's socket."""
    found = await seen(as_other, place)
    user = pwd.getpwnam(USER)
    assert not EVERYTHING & found.keys()
    assert found["user"] == [str(user.pw_uid), *map(str, os.getgrouplist(USER, user.pw_gid))]
    assert found["descriptors"] == ["0", "1", "2"]
    assert set(found["names"]) <= NAMED | BY_THE_SHELL
    assert found["rights"] == [f"Cap{kind}:{0:016x}" for kind in ("Prm", "Eff", "Amb")] + ["NoNewPrivs:1"]


async def test_a_command_of_the_services_user_reads_it_all(local: Processes, place: Account) -> None:
    """With SLIPWAY_COMMANDS_AS_SERVICE it reads what the service can, as the guide says; no descriptor or variable is
    inherited even then."""
    found = await seen(local, place)
    assert found.keys() >= EVERYTHING
    assert found["descriptors"] == ["0", "1", "2"]
    assert set(found["names"]) <= NAMED | BY_THE_SHELL


async def test_processes_of_another_user_are_found_and_ended(as_other: Processes, place: Account) -> None:
    (created,) = await as_other.create(place, request())
    assert [instance.id for instance in await as_other.instances(place)] == [created]
    await as_other.terminate(place, [created])
    assert await as_other.instances(place) == []


@pytest.mark.parametrize(("name", "words"), [("no-such-user", "useradd"), ("root", "is root")])
def test_a_user_that_would_be_no_other_is_refused(name: str, words: str) -> None:
    with pytest.raises(UnusableUser, match=words):
        ChildUser.named(name)


def test_a_link_of_a_module_names_no_file_of_the_service(tmp_path: Path) -> None:
    """A state is read by the service; what a module puts in its place is refused, unless it is a file of its own."""
    user = ChildUser.named(USER)
    secret, state = tmp_path / "secret", tmp_path / "terraform.tfstate"
    secret.write_text("the-key")
    state.write_text("{}")
    user.own(state)
    assert read_written(state, user) == b"{}"
    state.unlink()
    for put in (state.symlink_to, state.hardlink_to, lambda _: os.mkfifo(state)):
        put(secret)
        with pytest.raises(OSError, match=r"no file of the process's user|Too many levels"):
            read_written(state, user)
        state.unlink()


def test_a_link_of_a_module_is_no_lock_file(tmp_path: Path) -> None:
    """The installed parts of a module belong to the user of its commands, and the service copies them."""
    user, secret, prepared = ChildUser.named(USER), tmp_path / "secret", tmp_path / "prepared"
    secret.write_text("the-key")
    (prepared / ".terraform").mkdir(parents=True)
    lock = prepared / LOCK_FILE
    folder = RunFolder(tmp_path / "runs", user)
    folder.open(None)
    try:
        lock.write_text("locked")
        user.own(lock)
        with folder.workspace("first", prepared, {}, None) as run:
            assert (run / LOCK_FILE).read_text() == "locked"
        lock.unlink()
        lock.symlink_to(secret)
        with pytest.raises(OSError, match="Too many levels"), folder.workspace("second", prepared, {}, None):
            pass
    finally:
        folder.close()


async def test_a_link_of_a_command_is_no_log(as_other: Processes, tmp_path: Path) -> None:
    """The folder of logs may be one in which the user of the commands writes."""
    (tmp_path / "secret").write_text("the-key")
    log = tmp_path / "batch-0.log"
    log.symlink_to(tmp_path / "secret")
    place = account(log_folder=str(tmp_path))
    assert await as_other.console_output(place, "batch", "any") == ""
    log.unlink()
    log.write_text("printed")
    assert await as_other.console_output(place, "batch", "any") == "printed"
    ChildUser.named(USER).own(log)
    assert await as_other.console_output(place, "batch", "any") == ""


def test_a_folder_is_given_away_after_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose folder it is could put a link in the place of what comes later, and be given the file that it names."""
    given: list[str] = []
    chown = os.chown

    def record(path: Any, *arguments: Any, **options: Any) -> None:
        given.append(Path(path).name)
        chown(path, *arguments, **options)

    monkeypatch.setattr(os, "chown", record)
    (tmp_path / "run" / "module").mkdir(parents=True)
    (tmp_path / "run" / "module" / "main.tf").touch()
    (tmp_path / "run" / "link").symlink_to("/etc")
    ChildUser.named(USER).own(tmp_path / "run")
    assert sorted(given) == ["link", "main.tf", "module", "run"]
    assert given.index("main.tf") < given.index("module") < given.index("run") == 3


def test_without_the_right_to_become_it_a_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service names what it lacks."""
    monkeypatch.setitem(CAPABILITIES, "UNKNOWN", 63)
    with pytest.raises(UnusableUser, match="start it as root, in a container with the capabilities UNKNOWN"):
        ChildUser.named(USER)
