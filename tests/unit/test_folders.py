"""Temporary folders of tests: in memory only where there is room for them."""

from pathlib import Path

import pytest

from tests.support import folders
from tests.support.folders import room_bytes, temporary_folder

MEBIBYTE = 2**20


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in memory, in a container without a limit."""
    monkeypatch.setattr(folders, "MEMORY", tmp_path)
    monkeypatch.setattr(folders, "CONTAINER", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    return tmp_path


def test_the_limit_of_the_container_counts(container: Path) -> None:
    assert room_bytes() > 3 * MEBIBYTE
    (container / "memory.max").write_text(f"{5 * MEBIBYTE}\n")
    (container / "memory.current").write_text(f"{2 * MEBIBYTE}\n")
    assert room_bytes() == 3 * MEBIBYTE


def test_folder_in_memory_if_there_is_room(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for most, is_in_memory in ((0, True), (room_bytes() + 2**60, False)):
        monkeypatch.setattr(folders, "ROOM_BYTES", most)
        with temporary_folder() as folder:
            assert (folder.parent == container) == is_in_memory
            (folder / "file").touch()
        assert not folder.exists()


def test_machine_without_a_folder_in_memory(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MEMORY", container / "missing")
    assert room_bytes() == 0
