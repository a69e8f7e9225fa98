"""Jars of Apache Kafka: resolved and locked by jgo, downloaded once from a Maven repository, each checked against its
sha256.

`python -m slipway_local.servers.jars` downloads them. The embedded broker does this when they are missing, in a process
of its own, which may be killed at any time.
"""

import hashlib
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from http.client import HTTPException
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

from slipway_local.servers.cache import build_once, cache_folder
from slipway_local.servers.child import Child, StartFailed

BROKER_FILES: Final = Path(__file__).with_name("broker")
LOCK: Final = BROKER_FILES / "jgo.lock.toml"
CENTRAL: Final = "https://repo.maven.apache.org/maven2"
"""Public address of Maven Central, as in Maven's own super POM; SLIPWAY_MAVEN_REPOSITORY names another repository."""
FETCHERS: Final = 8
ATTEMPTS: Final = 3
TIMEOUT_SECONDS: Final = 30.0


class Jar(NamedTuple):
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


class WrongJar(Exception):
    """A jar differs from the locked one."""


def locked_jars() -> list[Jar]:
    """Every jar in the lock, in its order."""
    entries = tomllib.loads(LOCK.read_text())["dependencies"]
    return [Jar(entry["groupId"], entry["artifactId"], entry["version"], entry["sha256"]) for entry in entries]


def kafka_version(jars: Sequence[Jar]) -> str:
    """Version of Kafka's own jars. Raises WrongJar if they differ: a broker with mixed versions fails at run time."""
    versions = {jar.version for jar in jars if jar.group == "org.apache.kafka"}
    if len(versions) != 1:
        raise WrongJar(f"the lock mixes versions of Apache Kafka: {sorted(versions)}")
    return versions.pop()


def repository() -> str:
    """Address of the Maven repository: SLIPWAY_MAVEN_REPOSITORY, such as a mirror, or Maven Central. Raises ValueError
    unless it is one of HTTP."""
    address = os.environ.get("SLIPWAY_MAVEN_REPOSITORY") or CENTRAL
    if not address.startswith(("https://", "http://")):
        raise ValueError(f"SLIPWAY_MAVEN_REPOSITORY is {address!r}; write an address that begins with https://")
    return address.rstrip("/")


def jars_folder() -> Path:
    """Folder of the jars of this lock; it may not exist yet."""
    lock_hash = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    return cache_folder() / f"kafka-{kafka_version(locked_jars())}-{lock_hash}"


def classpath(folder: Path) -> str:
    """Class path in a fixed order: a class archive is valid only for the class path it was built with."""
    return os.pathsep.join(str(folder / jar.file_name) for jar in locked_jars())


async def ensure_jars() -> Path:
    """Return the folder with all jars; downloads them on first use."""
    folder = jars_folder()
    if not folder.is_dir():
        fetcher = Child("download of Apache Kafka", [sys.executable, "-m", "slipway_local.servers.jars"])
        fetcher.start()
        try:
            if await fetcher.wait() != 0:
                raise StartFailed("Apache Kafka could not be downloaded; see above")
        finally:
            await fetcher.kill()
    return folder


def fetch_jars(report: Callable[[str], None]) -> Path:
    """Download and check the jars unless they are there, reporting progress; blocks."""
    return build_once(jars_folder(), lambda folder: _fetch_into(folder, report))


def check(path: Path, sha256: str) -> None:
    """Raises WrongJar unless the file has this sha256."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise WrongJar(f"{path.name} has sha256 {actual}, but {sha256} is locked")


def _fetch_into(folder: Path, report: Callable[[str], None]) -> None:
    jars, address = locked_jars(), repository()
    title = f"Apache Kafka {kafka_version(jars)}"
    report(f"Downloading {title} ({len(jars)} jars, about 45 MB, once)")
    done_bytes = 0
    with ThreadPoolExecutor(FETCHERS) as pool:
        try:
            begun = [pool.submit(_fetch, address, jar, folder) for jar in jars]
            for number, fetched in enumerate(as_completed(begun), start=1):
                done_bytes += fetched.result()
                if number == len(jars):
                    report(f"Downloaded {title} ({done_bytes / 1e6:.0f} MB)")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(address: str, jar: Jar, folder: Path) -> int:
    """Download one jar into `folder` and check it; returns its size in bytes. Proxies are those of the environment."""
    path = folder / jar.file_name
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urlopen(f"{address}/{jar.path}", timeout=TIMEOUT_SECONDS) as answer, path.open("wb") as file:  # noqa: S310 # HTTP
                shutil.copyfileobj(answer, file)
            check(path, jar.sha256)
        except (OSError, HTTPException, WrongJar):
            if attempt == ATTEMPTS:
                raise
        else:
            break
    return path.stat().st_size


if __name__ == "__main__":
    try:
        fetch_jars(lambda line: print(line, flush=True))
    except Exception as error:
        sys.exit(f"Apache Kafka could not be downloaded: {error}")
