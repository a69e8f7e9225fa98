"""Identities of credentials: the account that each belongs to, looked up before its first use and once an hour.

A credential is identified by a digest, so that a replaced one is looked up before the next run.
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
IDENTITY_TTL_SECONDS: Final = 3600.0
"""Time until an identity is looked up again, since the role or profile behind a credential may change unnoticed."""
FOREIGN_TTL_SECONDS: Final = 60.0
"""The same for an identity that is not the declared one. It is shorter, since runs are refused meanwhile."""


class _Identity(msgspec.Struct, frozen=True):
    value: str
    expires_at: float


class Identities:
    """Identities of the credentials that this replica uses. `on_foreign` is called with an account whose credential
    belongs to another one, and with the kind of that finding, "identity"."""

    def __init__(self, on_foreign: Callable[[Account, str], Awaitable[None]]) -> None:
        self._on_foreign = on_foreign
        self._found: dict[str, asyncio.Task[_Identity]] = {}

    async def of(self, account: Account, environment: Mapping[str, str], look_up: Callable[[], Awaitable[str]]) -> str:
        """Identity of an account's credential with these variables, looked up unless it is fresh; empty if the look-up
        module outputs none. Raises what `look_up` raises."""
        self._found = {key: task for key, task in self._found.items() if not task.done() or _is_fresh(task)}
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
            return _Identity(value, monotonic_seconds() + IDENTITY_TTL_SECONDS)
        try:
            await self._on_foreign(account, "identity")
        except Exception as error:  # the hourly check of the account finds it too
            LOG.warning(
                "requesting the check of an account with a foreign credential failed",
                account=account.id,
                error=repr(error),
            )
        return _Identity(value, monotonic_seconds() + FOREIGN_TTL_SECONDS)


def is_foreign(account: Account, identity: str) -> bool:
    """True if an identity is known, and not the one that the account declares."""
    return identity not in ("", account.identity)


def _digest(account: Account, environment: Mapping[str, str]) -> str:
    """Digest of a credential and of the settings with which its identity is looked up. It includes inode, time and size
    of each file that a variable names, as GOOGLE_APPLICATION_CREDENTIALS does."""
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


def _is_fresh(task: asyncio.Task[_Identity]) -> bool:
    if task.cancelled() or task.exception() is not None:
        return False
    return monotonic_seconds() < task.result().expires_at
