"""Cache folder of the user, whose entries are built exactly once, even by concurrent processes."""

import asyncio
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import platformdirs

T = TypeVar("T")


def cache_folder() -> Path:
    """The user's cache folder for Slipway; SLIPWAY_CACHE names another."""
    override = os.environ.get("SLIPWAY_CACHE")
    return Path(override).expanduser() if override else platformdirs.user_cache_path("slipway")


async def to_the_end(work: Callable[[], T]) -> T:
    """Run blocking work in a thread. A cancelled caller still waits for it, so that it writes nothing after cleanup."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.wait([task])


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return `target`, built by `build(folder)` if it does not exist yet; blocks while another process builds it.

    The folder is built beside its final name and renamed, so `target` is always complete. An unfinished folder of a
    killed process is deleted by the next one.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.lock")):
        if not target.is_dir():
            unfinished = target.with_name(f"{target.name}.unfinished")
            if unfinished.exists():
                shutil.rmtree(unfinished)
            unfinished.mkdir()
            build(unfinished)
            unfinished.rename(target)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclusive lock among processes and threads; the kernel releases it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
