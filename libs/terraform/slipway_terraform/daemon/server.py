"""The daemon: a scheduler for clients of a Unix socket."""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from slipway_terraform.daemon import protocol
from slipway_terraform.daemon.endpoint import listening, peer_uid
from slipway_terraform.daemon.protocol import Refused
from slipway_terraform.daemon.session import Session
from slipway_terraform.daemon.settings import Settings
from slipway_terraform.domain.port import ProviderScheduler
from slipway_terraform.scheduler.process import ProcessStatus

LOG: Final = structlog.get_logger(__name__)
ROOT: Final = 0


class Daemon:
    """Serves until `stop`, then drains: no new leases, and those that are held may end in `drain_seconds`."""

    def __init__(
        self, scheduler: ProviderScheduler, processes: Callable[[], Sequence[ProcessStatus]], settings: Settings
    ) -> None:
        self._scheduler = scheduler
        self._processes = processes
        self._settings = settings
        self._uids = {ROOT, os.geteuid()}
        self._sessions: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event, stop_now: asyncio.Event) -> None:
        """Serve until `stop` is set. `stop_now` ends a drain. Raises EndpointUnavailable."""
        with listening(self._settings.socket) as listener:
            server = await asyncio.start_unix_server(self._serve, sock=listener, limit=protocol.MESSAGE_BYTES_MAX)
            LOG.info("terraform_daemon_serves", socket=str(self._settings.socket), scheduler=self._settings.scheduler)
            await stop.wait()
            server.close()
            self._settings.socket.unlink(missing_ok=True)
            await self._drain(stop_now)
        LOG.info("terraform_daemon_stopped")

    async def _drain(self, stop_now: asyncio.Event) -> None:
        LOG.info("terraform_daemon_drains", connections=len(self._sessions), seconds=self._settings.drain_seconds)
        closing = asyncio.create_task(self._scheduler.aclose(self._settings.drain_seconds))
        hurry = asyncio.create_task(stop_now.wait())
        await asyncio.wait((closing, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        for session in self._sessions:
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        await closing

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        try:
            if (refusal := self._refusal(writer)) is None:
                await Session(self._scheduler, self._processes, self._settings, reader, writer).serve()
            else:
                writer.write(refusal)
        finally:
            self._sessions.discard(task)
            writer.close()

    def _refusal(self, writer: asyncio.StreamWriter) -> bytes | None:
        """Reply to a connection that is not served; None for the others."""
        if (uid := peer_uid(writer.get_extra_info("socket"))) not in self._uids:
            LOG.warning("terraform_connection_refused", uid=uid)
            text = f"user {uid} may not use this daemon; run as its user"
            return protocol.write_refused(None, Refused("PermissionDenied", text))
        if len(self._sessions) > self._settings.connections_max:
            text = f"{self._settings.connections_max} connections are open; close one, or raise connections_max"
            return protocol.write_refused(None, Refused("TooManyConnections", text, retryable=True))
        return None
