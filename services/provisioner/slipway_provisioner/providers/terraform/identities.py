"""Accounts that credentials belong to: each is looked up before it is first used, and again once an hour.

A credential is known by its digest, so that one which has replaced another is looked up before the next run.
"""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.cloud import Account

LOG = logger(__name__)
IDENTITY_SECONDS: Final = 3600.0
"""Time for which an identity is kept, since what a credential refers to elsewhere may change unnoticed."""
FOREIGN_SECONDS: Final = 60.0
"""The same for an identity that is not the declared one: each run is refused until it is corrected."""


class _Identity(msgspec.Struct, frozen=True):
    value: str
    kept_until: float


class Identities:
    """Identities of the credentials that this replica uses. `on_foreign` is called with each account whose credential
    was found to belong to another one, and "identity"."""

    def __init__(self, on_foreign: Callable[[Account, str], Awaitable[None]]) -> None:
        self._on_foreign = on_foreign
        self._found: dict[str, asyncio.Task[_Identity]] = {}

    async def of(self, account: Account, environment: Mapping[str, str], look_up: Callable[[], Awaitable[str]]) -> str:
        """Identity of a credential with these variables, from the newest look-up; empty if the look-up module outputs
        none. Raises what `look_up` raises."""
        self._found = {key: task for key, task in self._found.items() if not task.done() or _is_kept(task)}
        key = _digest(account, environment)
        if (task := self._found.get(key)) is None:
            task = self._found[key] = asyncio.create_task(self._look_up(account, look_up))
        return (await asyncio.shield(task)).value

    def close(self) -> None:
        """Cancel all look-ups."""
        for task in self._found.values():
            task.cancel()

    async def _look_up(self, account: Account, look_up: Callable[[], Awaitable[str]]) -> _Identity:
        value = await look_up()
        if not is_foreign(account, value):
            return _Identity(value, monotonic_seconds() + IDENTITY_SECONDS)
        try:
            await self._on_foreign(account, "identity")
        except Exception as error:  # the regular check of the account finds it as well
            LOG.warning("a foreign credential was not reported", account=account.id, error=repr(error))
        return _Identity(value, monotonic_seconds() + FOREIGN_SECONDS)


def is_foreign(account: Account, identity: str) -> bool:
    """True if an identity is not the declared one of an account; one that is not known says nothing."""
    return identity not in ("", account.identity)


def _digest(account: Account, environment: Mapping[str, str]) -> str:
    """Digest of a credential, and of the settings with which its identity is looked up. Files that variables name, as
    GOOGLE_APPLICATION_CREDENTIALS does, are part of it by their times and sizes."""
    files = [(path, found.st_ino, found.st_mtime_ns, found.st_size) for path, found in _files(environment)]
    text = repr((account.id, account.settings, account.credential, sorted(environment.items()), files))
    return hashlib.sha256(text.encode()).hexdigest()


def _files(environment: Mapping[str, str]) -> list[tuple[str, os.stat_result]]:
    found = []
    for value in sorted(environment.values()):
        if value.startswith("/"):
            with contextlib.suppress(OSError, ValueError):
                found.append((value, Path(value).stat()))
    return found


def _is_kept(task: asyncio.Task[_Identity]) -> bool:
    if task.cancelled() or task.exception() is not None:
        return False
    return monotonic_seconds() < task.result().kept_until
