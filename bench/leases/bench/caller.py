"""One connection to a lease-broker that is kept open: as little of a client as can be."""

import asyncio
from typing import Any, Self

import msgspec


class Caller:
    def __init__(self, port: int, secret: str) -> None:
        self.port = port
        self.head = f"Host: bench\r\nAuthorization: Bearer {secret}\r\nContent-Type: application/json\r\n"

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def call(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and decoded answer."""
        payload = msgspec.json.encode(body)
        head = f"{method} {path} HTTP/1.1\r\n{self.head}Content-Length: {len(payload)}\r\n\r\n"
        self.writer.write(head.encode() + payload)
        told = await self.reader.readuntil(b"\r\n\r\n")
        status = int(told[9:12])
        length = next(int(line[15:]) for line in told.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return status, msgspec.json.decode(await self.reader.readexactly(length))

    async def acquire(self, pool: str, request_id: str, wait_seconds: float = 0.0) -> dict[str, Any]:
        """The lease. Raises RuntimeError when it has to wait for longer."""
        body = {"request_id": request_id, "wait_seconds": wait_seconds}
        status, said = await self.call("POST", f"/lease-pools/{pool}/leases", body)
        if status != 200:
            raise RuntimeError(f"not granted: {status} {said}")
        lease: dict[str, Any] = said
        return lease

    async def release(self, lease: dict[str, Any]) -> None:
        body = {"fencing_token": lease["fencing_token"]}
        status, said = await self.call("POST", f"/leases/{lease['lease_id']}/release", body)
        if status != 200:
            raise RuntimeError(f"not released: {status} {said}")
