"""Token that an agent keeps: for its owner alone, of this instance, and never trusted if others could have read it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway_client.worker import state
from slipway_client.worker.state import DIRECTORY, FILE, OF_ROOT, SYSTEMD, stored_token
from slipway_common.base.ids import WORKER_TOKEN

OWN = ("i-0123456789abcdef0", "batch-1")


def test_a_restarted_agent_has_its_token(tmp_path: Path) -> None:
    """In a file that its owner alone may read, in a directory that nobody else may enter."""
    where = tmp_path / "state" / "worker"
    first = stored_token(where, *OWN)
    assert first.startswith(WORKER_TOKEN)
    assert len(first) == len(WORKER_TOKEN) + 43
    assert stored_token(where, *OWN) == first
    assert [oct(path.stat().st_mode & 0o777) for path in (where, where / FILE)] == ["0o700", "0o600"]
    assert [path.name for path in where.iterdir()] == [FILE]


@pytest.mark.parametrize("other", [("i-0ffffffffffffffff", "batch-1"), ("i-0123456789abcdef0", "batch-2")])
def test_an_image_with_the_file_of_another_instance(tmp_path: Path, other: tuple[str, str]) -> None:
    """A token belongs to one instance of one batch; a machine made from an image of it has a new one."""
    before = stored_token(tmp_path, *other)
    own = stored_token(tmp_path, *OWN)
    assert own != before
    assert stored_token(tmp_path, *OWN) == own


def link(path: Path) -> None:
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.chmod(0o640), "accessible to others"),
        (lambda path: path.chmod(0o604), "accessible to others"),
        (lambda path: path.parent.chmod(0o777), "writable by others"),
        (lambda path: path.write_text("{"), "cannot be read"),
        (lambda path: path.write_text('{"token": 1}'), "cannot be read"),
        (link, "symbolic"),
    ],
)
def test_an_unusable_file_is_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None], words: str
) -> None:
    """And said to be so. Where its machine has enrolled, the provisioner refuses the new token."""
    where = tmp_path / "state"
    before = stored_token(where, *OWN)
    spoil(where / FILE)
    after = stored_token(where, *OWN)
    assert after != before
    printed = capfd.readouterr().err
    assert f"ignoring the stored token: {where}" in printed
    assert words in printed
    assert before not in printed
    assert after not in printed


def test_the_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored_token(tmp_path, *OWN)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(state.Unusable, match="belongs to another user"):
        state._read(tmp_path)
    assert stored_token(tmp_path, *OWN) != before


def test_a_directory_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The agent works, until it is restarted."""
    (tmp_path / "file").touch()
    for where in (tmp_path / "file", None):
        assert stored_token(where, *OWN).startswith(WORKER_TOKEN)
        assert "a restarted worker cannot register" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("environment", "user", "expected"),
    [
        ({DIRECTORY: "/a", SYSTEMD: "/b"}, 0, Path("/a")),
        ({SYSTEMD: "/b:/c"}, 1000, Path("/b")),
        ({}, 0, OF_ROOT),
        ({}, 1000, None),
    ],
)
def test_the_directory(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], user: int, expected: Path | None
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert state.directory(environment) == expected
