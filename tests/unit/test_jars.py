"""Lock of the broker's jars, and builds shared by all runs."""

import threading
import time
from pathlib import Path

import pytest

from slipway_local.servers.cache import build_once
from slipway_local.servers.jars import LOCK, Jar, WrongJar, check, kafka_version, locked_jars


def test_all_kafka_jars_have_one_version() -> None:
    """A broker with one older jar starts and fails later with a missing method."""
    kafka_jars = [jar for jar in locked_jars() if jar.group == "org.apache.kafka"]
    assert {jar.version for jar in kafka_jars} == {"4.3.1"}
    assert {"kafka_2.13", "kafka-clients", "kafka-server"} <= {jar.artifact for jar in kafka_jars}


def test_mixed_versions_are_rejected() -> None:
    """The version is read from the lock, so that a bad lock cannot be installed."""
    jars = [Jar("org.apache.kafka", "kafka_2.13", "4.3.1", ""), Jar("org.apache.kafka", "kafka-clients", "3.9.1", "")]
    with pytest.raises(WrongJar, match=r"3\.9\.1.*4\.3\.1"):
        kafka_version(jars)


def test_every_jar_has_a_checksum_and_a_name_of_its_own() -> None:
    """All jars are in one folder, and each is verified."""
    jars = locked_jars()
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in jars)
    assert len({jar.file_name for jar in jars}) == len(jars) >= 40


def test_the_lock_names_no_address() -> None:
    """The repository of jars is configured by the user."""
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
