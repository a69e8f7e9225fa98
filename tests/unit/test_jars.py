"""The lock of the broker's jars, and what is built once for all runs."""

import threading
import time
from pathlib import Path

import pytest

from slipway_local.cache import build_once
from slipway_local.jars import LOCK, Jar, WrongJar, check, kafka_version, locked_jars


def test_all_kafka_jars_have_one_version() -> None:
    """A broker with one older jar among its own starts, and dies of a missing method."""
    kafka_jars = [jar for jar in locked_jars() if jar.group == "org.apache.kafka"]
    assert {jar.version for jar in kafka_jars} == {"4.3.1"}
    assert {"kafka_2.13", "kafka-clients", "kafka-server"} <= {jar.artifact for jar in kafka_jars}


def test_a_mixture_is_refused() -> None:
    """The version is asked from the lock, so a bad lock cannot even be installed."""
    jars = [Jar("org.apache.kafka", "kafka_2.13", "4.3.1", ""), Jar("org.apache.kafka", "kafka-clients", "3.9.1", "")]
    with pytest.raises(WrongJar, match=r"3\.9\.1.*4\.3\.1"):
        kafka_version(jars)


def test_every_jar_has_a_checksum_and_a_name_of_its_own() -> None:
    """All jars lie in one folder, and none is installed unchecked."""
    jars = locked_jars()
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in jars)
    assert len({jar.file_name for jar in jars}) == len(jars) >= 40


def test_the_lock_names_no_address() -> None:
    """Where jars come from is the user's configuration, not ours."""
    text = LOCK.read_text() + LOCK.with_name("jgo.toml").read_text()
    assert "//" not in text
    assert "repositor" not in text


def test_a_wrong_jar_is_refused(tmp_path: Path) -> None:
    """The checksum decides, whatever the server sent."""
    jar = tmp_path / "some.jar"
    jar.write_bytes(b"something else")
    with pytest.raises(WrongJar, match=r"some\.jar"):
        check(jar, "0" * 64)


def test_built_once_by_many_at_a_time(tmp_path: Path) -> None:
    """The others wait for the first and find it whole."""
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


def test_what_a_killed_builder_left_is_thrown_away(tmp_path: Path) -> None:
    """A half-built folder never gets the final name."""

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        build_once(tmp_path / "thing", fail)
    assert not (tmp_path / "thing").exists()
    assert list(build_once(tmp_path / "thing", lambda folder: (folder / "whole").touch()).iterdir()) == [
        tmp_path / "thing" / "whole"
    ]
