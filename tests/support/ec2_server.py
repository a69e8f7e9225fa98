"""A small HTTP server in the place of AWS: it answers each call as a test says, and keeps what it received."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import msgspec

EC2: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"
STS: Final = "https://sts.amazonaws.com/doc/2011-06-15/"
EXPIRES: Final = "2999-01-01T00:00:00Z"


class Received(msgspec.Struct, frozen=True):
    """One call: its parameters, the body as it was sent, and the headers by their lower-case names."""

    parameters: Mapping[str, str]
    body: bytes
    headers: Mapping[str, str]

    @property
    def action(self) -> str:
        """Of EC2 and STS a parameter, of services with JSON a header."""
        return self.parameters.get("Action") or self.headers["x-amz-target"].rpartition(".")[2]

    def listed(self, prefix: str) -> list[str]:
        """Values of a list, such as InstanceId.1, InstanceId.2."""
        return [value for name, value in self.parameters.items() if name.startswith(f"{prefix}.")]


class Reply(msgspec.Struct, frozen=True):
    """Answer to a call. Without a body the connection is closed before an answer, after the call has been read, or
    stays open for as long as the client waits (`silent`). Of a body that is cut, only as many bytes are sent."""

    body: str | None
    status: int = 200
    headers: Mapping[str, str] = {}
    cut: int | None = None
    silent: bool = False


SILENT: Final = Reply(None, silent=True)
LOST: Final = Reply(None)
Answer = Callable[[Received], Reply]


def error(code: str, message: str = "no", status: int = 400, *, sts: bool = False, **headers: str) -> Reply:
    """Error of EC2, or of STS."""
    inner = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
    if sts:
        xml = f'<ErrorResponse xmlns="{STS}"><Error><Type>Sender</Type>{inner}</Error></ErrorResponse>'
    else:
        xml = f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>r-1</RequestID></Response>"
    return Reply(xml, status, {name.replace("_", "-"): value for name, value in headers.items()})


def html(status: int) -> Reply:
    """Page of a proxy or a load balancer."""
    return Reply(f"<html><body><h1>{status}</h1></body></html>", status, {"content-type": "text/html"})


def reply(action: str, inner: str) -> Reply:
    """Successful answer of EC2."""
    return Reply(f'<{action}Response xmlns="{EC2}">{inner}</{action}Response>')


def instance(
    instance_id: str,
    state: str = "running",
    *,
    tags: Mapping[str, str] | None = None,
    reason: str = "",
    message: str = "so it is",
    spot: bool = False,
) -> str:
    """An instance in a list of instances. `reason` and `message` are its StateReason."""
    rows = "".join(
        f"<item><key>{escape(key)}</key><value>{escape(value)}</value></item>" for key, value in (tags or {}).items()
    )
    why = f"<stateReason><code>{reason}</code><message>{escape(message)}</message></stateReason>" if reason else ""
    lifecycle = "<instanceLifecycle>spot</instanceLifecycle>" if spot else ""
    return (
        f"<item><instanceId>{instance_id}</instanceId><instanceState><code>0</code><name>{state}</name></instanceState>"
        f"<launchTime>2026-01-02T03:04:05.000Z</launchTime><tagSet>{rows}</tagSet>{why}{lifecycle}</item>"
    )


def launched(*instance_ids: str, spot: bool = False) -> Reply:
    """Answer of RunInstances."""
    rows = "".join(instance(id_, "pending", spot=spot) for id_ in instance_ids)
    return reply("RunInstances", f"<reservationId>r-1</reservationId><instancesSet>{rows}</instancesSet>")


def described(*rows: str, more: str = "") -> Reply:
    """Page of DescribeInstances."""
    inner = "".join(f"<item><reservationId>r</reservationId><instancesSet>{row}</instancesSet></item>" for row in rows)
    next_token = f"<nextToken>{more}</nextToken>" if more else ""
    return reply("DescribeInstances", f"<reservationSet>{inner}</reservationSet>{next_token}")


def checked(**instances: str) -> Reply:
    """Answer of DescribeInstanceStatus: running instances with the states of their system and instance checks, such as
    ok/initializing. An underscore in an id stands for a hyphen."""
    rows = ""
    for id_, states in instances.items():
        system, own = states.split("/")
        rows += f"<item><instanceId>{id_.replace('_', '-')}</instanceId>"
        rows += f"<systemStatus><status>{system}</status></systemStatus>"
        rows += f"<instanceStatus><status>{own}</status></instanceStatus></item>"
    return reply("DescribeInstanceStatus", f"<instanceStatusSet>{rows}</instanceStatusSet>")


def zones(**ids: str) -> Reply:
    rows = "".join(
        f"<item><zoneName>{name.replace('_', '-')}</zoneName><zoneId>{id_}</zoneId></item>" for name, id_ in ids.items()
    )
    return reply("DescribeAvailabilityZones", f"<availabilityZoneInfo>{rows}</availabilityZoneInfo>")


def caller(account: str) -> Reply:
    """Answer of GetCallerIdentity."""
    inner = f"<GetCallerIdentityResult><Account>{account}</Account></GetCallerIdentityResult>"
    return Reply(f'<GetCallerIdentityResponse xmlns="{STS}">{inner}</GetCallerIdentityResponse>')


def assumed(action: str, key: str, *, expires: str = EXPIRES) -> Reply:
    """Answer of AssumeRole or AssumeRoleWithWebIdentity, with credentials whose key id is `key`."""
    credentials = (
        f"<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>secret-of-{key}</SecretAccessKey>"
        f"<SessionToken>token-of-{key}</SessionToken><Expiration>{expires}</Expiration></Credentials>"
    )
    return Reply(f'<{action}Response xmlns="{STS}"><{action}Result>{credentials}</{action}Result></{action}Response>')


class Ec2Server:
    """Server whose `answer` a test sets. `received` are the calls in order."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answer: Answer = lambda call: error("Unprepared", f"{call.action} has no answer here")
        self.url = ""

    def answers(self, *replies: Reply, **actions: Reply | Sequence[Reply]) -> None:
        """Answer calls in order with `replies`, the last one for ever; or those of each of `actions` with its own."""
        queues = {name: [given] if isinstance(given, Reply) else list(given) for name, given in actions.items()}

        def answer(call: Received) -> Reply:
            queue = queues.get(call.action, rest)
            return queue.pop(0) if len(queue) > 1 else queue[0]

        rest = list(replies) or [error("Unprepared")]
        self.answer = answer

    def actions(self) -> list[str]:
        return [call.action for call in self.received]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which the client keeps."""
        try:
            while request := await self._read(reader):
                self.received.append(request)
                reply = self.answer(request)
                if reply.silent:
                    await reader.read()
                if reply.body is None:
                    return
                body = reply.body.encode()
                headers = {"content-type": "text/xml", "content-length": str(len(body)), **reply.headers}
                lines = [f"HTTP/1.1 {reply.status} Answer", *(f"{name}: {value}" for name, value in headers.items())]
                writer.write("\r\n".join([*lines, "", ""]).encode() + body[: reply.cut])
                await writer.drain()
                if reply.cut is not None:
                    return
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Received | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        fields = (line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
        headers = {name.lower(): value for name, value in fields}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Received(dict(parse_qsl(body.decode(), keep_blank_values=True)), body, headers)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Ec2Server]:
    """A server on a free port of this host."""
    ec2 = Ec2Server()
    async with await asyncio.start_server(ec2.serve, "127.0.0.1", 0, limit=1_000_000) as server:
        ec2.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield ec2
        server.close()
