"""A metadata service as an EC2 instance has it: IMDSv2 alone, with notices that a test gives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

INSTANCE_ID: Final = "i-0123456789abcdef0"
INTERRUPTION: Final = "spot/instance-action"
REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found"}


class FakeImds:
    """Items by their path, below meta-data if not absolute, and the calls in order: `PUT` of a token, or the path.
    While `off` every request is `refused` with 403, while `distrusting` every token."""

    def __init__(self) -> None:
        self.items = {
            "instance-id": INSTANCE_ID,
            "placement/availability-zone": "eu-west-1b",
            "placement/availability-zone-id": "euw1-az2",
        }
        self.calls: list[str] = []
        self.off = False
        self.refused = 0
        self.distrusting = False
        self.url = ""
        self._tokens: list[str] = []
        self._valid_from = 0
        self._given = asyncio.Event()
        self._given.set()

    def hold(self) -> None:
        """Answer requests for notices once one is given: an agent would ask for the next time after seconds."""
        self._given.clear()

    def attest(self) -> None:
        """Give an identity document with signatures."""
        own = "/latest/dynamic/instance-identity/"
        self.items[f"{own}document"] = f'{{"instanceId": "{INSTANCE_ID}"}}\n'
        self.items |= {f"{own}signature": "c2ln", f"{own}rsa2048": "cGtjczc="}

    def interrupt(self, time: str) -> None:
        """Give an interruption notice for a time, such as 2026-08-01T15:00:00Z."""
        self.items[INTERRUPTION] = f'{{"action": "terminate", "time": "{time}"}}'
        self._given.set()

    def recommend_rebalance(self) -> None:
        """Give a rebalance recommendation."""
        self.items["events/recommendations/rebalance"] = '{"noticeTime": "2026-08-01T14:00:00Z"}'
        self._given.set()

    def revoke(self) -> None:
        """Refuse the tokens that were given so far."""
        self._valid_from = len(self._tokens)

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        if self.off:
            self.refused += 1
            return 403, ""
        if path == "/latest/api/token":
            self.calls.append(method)
            seconds = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
            if method != "PUT" or not seconds.isdecimal() or not 1 <= int(seconds) <= 21_600:
                return 400, ""
            self._tokens.append(f"token-{len(self._tokens)}==")
            return 200, self._tokens[-1]
        name = path.removeprefix("/latest/meta-data/")
        self.calls.append(name)
        valid = [] if self.distrusting else self._tokens[self._valid_from :]
        if headers.get("x-aws-ec2-metadata-token") not in valid:
            return 401, ""
        return (200, self.items[name]) if name in self.items else (404, "")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if path.endswith(INTERRUPTION):
            await self._given.wait()
        status, content = self.answer(method, path, headers)
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        writer.write((head + content).encode(errors="surrogateescape"))
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def fake_imds() -> AsyncIterator[FakeImds]:
    fake = FakeImds()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    fake.url = f"http://127.0.0.1:{port}"
    async with server:
        yield fake
