"""Minimal HTTP client of the lease-broker with one persistent connection."""

import asyncio
from typing import Any, Self

import msgspec


class HttpClient:
    """Async context manager of one connection to `port`, authenticated by `secret`."""

    def __init__(self, port: int, secret: str) -> None:
        self.port = port
        self.head = f"Host: bench\r\nAuthorization: Bearer {secret}\r\nContent-Type: application/json\r\n"

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def call(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Send a request; return status and decoded body."""
        payload = msgspec.json.encode(body)
        request_head = f"{method} {path} HTTP/1.1\r\n{self.head}Content-Length: {len(payload)}\r\n\r\n"
        self.writer.write(request_head.encode() + payload)
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return status, msgspec.json.decode(await self.reader.readexactly(length))

    async def acquire(self, pool: str, request_id: str, wait_seconds: float = 0.0) -> dict[str, Any]:
        """Acquire a lease of one unit. Raises RuntimeError if it is not granted within `wait_seconds`."""
        body = {"request_id": request_id, "wait_seconds": wait_seconds}
        status, answer = await self.call("POST", f"/lease-pools/{pool}/leases", body)
        if status != 200:
            raise RuntimeError(f"lease not granted: {status} {answer}")
        lease: dict[str, Any] = answer
        return lease

    async def release(self, lease: dict[str, Any]) -> None:
        body = {"fencing_token": lease["fencing_token"]}
        status, answer = await self.call("POST", f"/leases/{lease['lease_id']}/release", body)
        if status != 200:
            raise RuntimeError(f"lease not released: {status} {answer}")
