"""Lock of the broker's jars, and builds shared by all runs."""

import hashlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from slipway_local.servers import jars
from slipway_local.servers.cache import build_once
from slipway_local.servers.jars import (
    ATTEMPTS,
    CENTRAL,
    LOCK,
    Jar,
    WrongJar,
    check,
    fetch_jars,
    kafka_version,
    locked_jars,
    repository,
)

CONTENT = b"classes"
JAR = Jar("org.apache.kafka", "kafka-server", "4.3.1", hashlib.sha256(CONTENT).hexdigest())


class Repository(SimpleHTTPRequestHandler):
    """Files of a folder; the first answers to each path are cut off, as many as `cut_off`."""

    asked: ClassVar[list[str]] = []
    cut_off = 0

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.asked.count(self.path) <= self.cut_off:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(CONTENT[:3])
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of a Maven repository that has the only jar of the lock; the cache is empty."""
    file = tmp_path / "maven" / JAR.path
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    monkeypatch.setattr(jars, "locked_jars", lambda: [JAR])
    monkeypatch.setattr(Repository, "asked", [])
    monkeypatch.setattr(Repository, "cut_off", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Repository, directory=str(tmp_path / "maven"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("SLIPWAY_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("SLIPWAY_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield file
        server.shutdown()


def test_jars_come_from_the_repository_of_the_setting(mirror: Path) -> None:
    """An answer that is cut off is asked for again."""
    Repository.cut_off = 1
    folder = fetch_jars(lambda line: None)
    assert [(file.name, file.read_bytes()) for file in folder.iterdir()] == [(JAR.file_name, CONTENT)]
    assert Repository.asked == [f"/{JAR.path}"] * 2


def test_a_jar_with_another_checksum_is_not_installed(mirror: Path) -> None:
    mirror.write_bytes(b"other classes")
    with pytest.raises(WrongJar, match=JAR.file_name):
        fetch_jars(lambda line: None)
    assert len(Repository.asked) == ATTEMPTS
    assert not jars.jars_folder().exists()


def test_the_setting_is_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIPWAY_MAVEN_REPOSITORY", raising=False)
    assert repository() == CENTRAL
    monkeypatch.setenv("SLIPWAY_MAVEN_REPOSITORY", "/srv/maven")
    with pytest.raises(ValueError, match="SLIPWAY_MAVEN_REPOSITORY is '/srv/maven'; write an address"):
        repository()


def test_all_kafka_jars_have_one_version() -> None:
    """A broker with one older jar starts and fails later with a missing method."""
    kafka_jars = [jar for jar in locked_jars() if jar.group == "org.apache.kafka"]
    assert {jar.version for jar in kafka_jars} == {"4.3.1"}
    assert {"kafka_2.13", "kafka-clients", "kafka-server"} <= {jar.artifact for jar in kafka_jars}


def test_mixed_versions_are_rejected() -> None:
    """The version is read from the lock, so that a bad lock cannot be installed."""
    mixed = [Jar("org.apache.kafka", "kafka_2.13", "4.3.1", ""), Jar("org.apache.kafka", "kafka-clients", "3.9.1", "")]
    with pytest.raises(WrongJar, match=r"3\.9\.1.*4\.3\.1"):
        kafka_version(mixed)


def test_every_jar_has_a_checksum_and_a_name_of_its_own() -> None:
    """All jars are in one folder, and each is verified."""
    locked = locked_jars()
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in locked)
    assert len({jar.file_name for jar in locked}) == len(locked) >= 40


def test_the_lock_names_no_address() -> None:
    """A setting names the repository of jars."""
    text = LOCK.read_text() + LOCK.with_name("jgo.toml").read_text()
    assert "//" not in text
    assert "repositor" not in text


def test_a_wrong_jar_is_rejected(tmp_path: Path) -> None:
    """A jar with another checksum is not installed."""
    jar = tmp_path / "some.jar"
    jar.write_bytes(b"something else")
    with pytest.raises(WrongJar, match=r"some\.jar"):
        check(jar, "0" * 64)


def test_built_once_by_many_at_a_time(tmp_path: Path) -> None:
    """Concurrent builders wait for the first and use its result."""
    built: list[Path] = []
    found: list[str] = []

    def build(folder: Path) -> None:
        built.append(folder)
        time.sleep(0.05)
        (folder / "whole").write_text("yes")

    def use() -> None:
        found.append((build_once(tmp_path / "thing", build) / "whole").read_text())

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(built), found) == (1, ["yes"] * 8)


def test_the_remains_of_a_killed_builder_are_removed(tmp_path: Path) -> None:
    """An incomplete folder never gets the final name."""

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        build_once(tmp_path / "thing", fail)
    assert not (tmp_path / "thing").exists()
    assert list(build_once(tmp_path / "thing", lambda folder: (folder / "whole").touch()).iterdir()) == [
        tmp_path / "thing" / "whole"
    ]
