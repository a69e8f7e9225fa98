"""Apache Kafka's jars: resolved and locked by jgo, fetched once, each checked against its sha256. Starts nothing.

`python -m slipway_local.jars` fetches them; the broker does so by itself when they are missing, in a process of its
own that can be killed at any moment.
"""

import hashlib
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, NamedTuple

from slipway_local.cache import build_once, cache_folder
from slipway_local.child import Child, StartFailed

BROKER_FILES: Final = Path(__file__).with_name("broker")
LOCK: Final = BROKER_FILES / "jgo.lock.toml"
FETCHERS: Final = 8
ATTEMPTS: Final = 3


class Jar(NamedTuple):
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


class WrongJar(Exception):
    """A jar is not the one that was locked."""


def locked_jars() -> list[Jar]:
    """Every jar in the lock, in its order."""
    entries = tomllib.loads(LOCK.read_text())["dependencies"]
    return [Jar(entry["groupId"], entry["artifactId"], entry["version"], entry["sha256"]) for entry in entries]


def kafka_version(jars: Sequence[Jar]) -> str:
    """The one version of all of Kafka's own jars: the broker dies of a mixture, and late."""
    versions = {jar.version for jar in jars if jar.group == "org.apache.kafka"}
    if len(versions) != 1:
        raise WrongJar(f"the lock mixes versions of Apache Kafka: {sorted(versions)}")
    return versions.pop()


def jars_folder() -> Path:
    """Where the jars of this lock are, or will be."""
    lock_hash = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    return cache_folder() / f"kafka-{kafka_version(locked_jars())}-{lock_hash}"


def classpath(folder: Path) -> str:
    """The jars in a fixed order: a class archive is only good for the class path it was made with."""
    return os.pathsep.join(str(folder / jar.file_name) for jar in locked_jars())


async def ensure_jars() -> Path:
    """The folder with all jars, fetched if this is the first time."""
    folder = jars_folder()
    if not folder.is_dir():
        fetcher = Child("fetching Apache Kafka", [sys.executable, "-m", "slipway_local.jars"])
        fetcher.start()
        try:
            if await fetcher.wait() != 0:
                raise StartFailed("Apache Kafka could not be fetched; see above")
        finally:
            await fetcher.kill()
    return folder


def fetch_jars(tell: Callable[[str], None]) -> Path:
    """Fetch and check what is missing, telling the progress; blocks."""
    return build_once(jars_folder(), lambda folder: _fetch_into(folder, tell))


def check(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise WrongJar(f"{path.name} has sha256 {actual}, locked is {sha256}")


def _fetch_into(folder: Path, tell: Callable[[str], None]) -> None:
    jars = locked_jars()
    title = f"Apache Kafka {kafka_version(jars)}"
    tell(f"{title}: fetching {len(jars)} jars, once")
    done_bytes = 0
    with ThreadPoolExecutor(FETCHERS) as pool:
        try:
            for number, fetched in enumerate(as_completed(pool.submit(_fetch, jar, folder) for jar in jars), start=1):
                done_bytes += fetched.result()
                if number % 6 == 0 or number == len(jars):
                    tell(f"{title}: {number} of {len(jars)} jars, {done_bytes / 1e6:.0f} MB")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    shutil.rmtree(folder / "repository")


def _fetch(jar: Jar, folder: Path) -> int:
    """Fetch one jar through jgo, check it, move it into `folder`; returns its size in bytes.

    jgo takes whatever lies in its local repository for whole and right, so it gets one of its own and our checksum
    decides. Which servers it asks is its own affair and the user's (their jgo configuration).
    """
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext, PythonResolver

    repository = folder / "repository" / jar.file_name
    for attempt in range(1, ATTEMPTS + 1):
        context = MavenContext(
            resolver=PythonResolver(),
            repo_cache=repository,
            remote_repos={"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories},
            timeout=30,
        )
        try:
            path = context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
            check(path, jar.sha256)
        except (OSError, RuntimeError, WrongJar):  # every error of requests is an OSError
            if attempt == ATTEMPTS:
                raise
            shutil.rmtree(repository, ignore_errors=True)
        else:
            return path.rename(folder / jar.file_name).stat().st_size
    raise AssertionError("unreachable")


if __name__ == "__main__":
    try:
        fetch_jars(lambda line: print(line, flush=True))
    except Exception as error:
        sys.exit(f"Apache Kafka could not be fetched: {error}")
