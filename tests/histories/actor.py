"""A client of the lease-broker over HTTP: it calls any replica, records its calls and their answers, and goes by a
clock of its own. Its decisions are made elsewhere."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from slipway_common.base.clock import monotonic_seconds
from tests.histories.history import EVER, Call, Does, Lease
from tests.histories.journal import Journal

ANSWER_SECONDS: Final = 2.0  # beyond the requested wait, by default
LOST_ANSWERS: Final = (OSError, TimeoutError, EOFError, ValueError)


class Own(msgspec.Struct, frozen=True):
    """A client's clock, which jumps: (instant, seconds) by the machine's monotonic clock."""

    jumps: Sequence[tuple[float, float]] = ()

    def now(self) -> float:
        true = monotonic_seconds()
        return true + sum(by for at, by in self.jumps if at <= true)


class Actor:
    """A client. `ports` are replicas, one of which is chosen at random for each call; `resource` is the port of the
    guarded resource."""

    def __init__(
        self,
        name: str,
        *,
        owner: str,
        secret: str,
        ports: Sequence[int],
        journal: Journal,
        rng: Random,
        resource: int = 0,
        clock: Own | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.name = name
        self.owner = owner
        self.ports = ports
        self.journal = journal
        self.rng = rng
        self.clock = clock or Own()
        self.tokens: dict[str, list[int]] = {}  # pool → its granted leases
        self._secret = secret
        self._resource = resource
        self._answer_seconds = answer_seconds

    async def acquire(
        self,
        pool: str,
        request_id: str,
        units: int = 1,
        *,
        wait_seconds: float = 0.0,
        replaces: Lease | None = None,
        port: int | None = None,
    ) -> Call:
        """Acquire once; without an answer repeat the request under the same id."""
        body: dict[str, Any] = {
            "request_id": request_id,
            "units": units,
            "wait_seconds": wait_seconds,
            "tenant": self.owner,
        }
        if replaces is not None:
            body["replaces"] = {"lease_id": replaces.lease_id, "fencing_token": replaces.fencing_token}
        call = self._call("acquire", pool, request_id=request_id, units=units)
        if replaces is not None:
            call = replace(call, replaces=replaces.lease_id)
        path = f"/lease-pools/{pool}/leases"
        done = await self._made(call, "POST", path, body, wait_seconds=wait_seconds, port=port)
        if done.lease is not None:
            self.tokens.setdefault(pool, []).append(done.lease.fencing_token)
        return done

    async def send(
        self, does: Does, pool: str, lease: Lease, *, units: int = 0, token: int | None = None, port: int | None = None
    ) -> Call:
        """Confirm, renew or release; by default all units, and under the lease's own token."""
        token = lease.fencing_token if token is None else token
        body: dict[str, Any] = {"fencing_token": token}
        if does == "release":
            units = units or lease.units
            body["units"] = units
        call = self._call(does, pool, lease_id=lease.lease_id, fencing_token=token, units=units)
        return await self._made(call, "POST", f"/leases/{lease.lease_id}/{does}", body, port=port)

    async def cancel(self, pool: str, request_id: str) -> Call:
        call = self._call("cancel", pool, request_id=request_id)
        return await self._made(call, "DELETE", f"/lease-pools/{pool}/requests/{request_id}")

    async def limit(self, pool: str, units: int) -> Call:
        body = {"limit": units, "reason": "as the history wants it"}
        return await self._made(self._call("limit", pool, units=units), "PATCH", f"/lease-pools/{pool}", body)

    async def drain(self, pool: str, does: Does = "drain") -> Call:
        body = {"reason": "as the history wants it"}
        return await self._made(self._call(does, pool), "POST", f"/lease-pools/{pool}/{does}", body)

    async def write(self, pool: str, lease: Lease) -> bool:
        """Write to the resource guarded by the pool; False when that was refused or failed."""
        try:
            async with asyncio.timeout(self._answer_seconds):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._resource)
                try:
                    writer.write(f"{pool} {lease.lease_id} {lease.fencing_token}\n".encode())
                    return await reader.readline() == b"accepted\n"
                finally:
                    writer.close()
        except LOST_ANSWERS:
            return False

    def _call(self, does: Does, pool: str, **fields: Any) -> Call:
        return Call(
            client=self.name,
            owner=self.owner,
            does=does,
            pool=pool,
            invoked=monotonic_seconds(),
            returned=EVER,
            **fields,
        )

    async def _made(
        self,
        call: Call,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        wait_seconds: float = 0.0,
        port: int | None = None,
    ) -> Call:
        number = self.journal.note(call)
        try:
            async with asyncio.timeout(self._answer_seconds + wait_seconds):
                status, body = await request(port or self.rng.choice(self.ports), method, path, body, self._secret)
        except LOST_ANSWERS as error:
            done = replace(call, reason=type(error).__name__)
            self.journal.note(done, number)
            return done
        done = answered(replace(call, returned=monotonic_seconds()), status, body)
        self.journal.note(done, number)
        return done


def answered(call: Call, status: int, body: Mapping[str, Any]) -> Call:
    """The call with the content of its answer. After a server error the effect is unknown: it may have been
    committed."""
    if status >= 500:
        return replace(call, returned=EVER, reason=f"status {status}")
    if status >= 400:
        slug = str(body.get("type", "")).rpartition(":")[2]
        return replace(call, answer="refused", reason=str(body.get("reason") or slug) if status == 410 else slug)
    if status == 202:
        return replace(call, answer="waiting")
    if call.does == "cancel":  # units granted already are released, and nothing is cancelled
        return replace(call, answer="ok" if body["cancelled_units"] else "refused")
    if call.does == "release":
        left = Lease(
            lease_id=call.lease_id, fencing_token=call.fencing_token, units=body["remaining"], seconds_left=0.0
        )
        return replace(call, answer="ok", lease=left)
    return replace(call, answer="ok", lease=shown(body) if "fencing_token" in body else None)


def shown(body: Mapping[str, Any]) -> Lease:
    return Lease(
        lease_id=body["lease_id"],
        fencing_token=body["fencing_token"],
        units=body["units"],
        seconds_left=min(body["ttl_seconds_left"], body["hold_seconds_left"]),
    )


async def request(port: int, method: str, path: str, body: Any, secret: str) -> tuple[int, dict[str, Any]]:
    """One request on its own connection; status and decoded body. Raises one of LOST_ANSWERS when no answer came."""
    status, answer = await exchange(port, method, path, body, secret)
    return status, msgspec.json.decode(answer, type=dict[str, Any])


async def scraped(port: int, secret: str) -> str:
    """Prometheus metrics of a service."""
    _, answer = await exchange(port, "GET", "/metrics", None, secret)
    return answer.decode()


async def exchange(port: int, method: str, path: str, body: Any, secret: str) -> tuple[int, bytes]:
    """One request on its own connection."""
    payload = b"" if body is None else msgspec.json.encode(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {secret}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        status_line, _, answer = (await reader.read(-1)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not answer:
        raise EOFError("the connection was cut")
    return int(status_line.split(maxsplit=2)[1]), answer
