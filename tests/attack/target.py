"""What is attacked: running services with a pool, a worker and tokens, and the ways in which an outsider reaches them.

Works with the services of earlier commits, too, so it imports no more of the tree than its drills.
"""

import asyncio
import contextlib
import hashlib
import secrets
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import httpx2
import msgspec

from slipway_common.base import ids
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.child import Child
from slipway_local.servers.ports import free_ports
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, add_tasks, fetch

ANSWER_SECONDS: Final = 3.0
"""Time in which an answer is due that depends on nothing but the request, on a busy computer."""
SHOWN: Final = 110
TLS: Final = ssl.create_default_context()
"""Made once: hundreds at a time would keep this process from noticing what the services do."""
NOBODY: Final = 65534
TEAM: Final = "team-a"
# The service as a user that is no root, whose other processes see what the kernel lets them see.
AS_NOBODY: Final = """
import ctypes, os
import uvicorn.lifespan.on, uvicorn.loops.auto, uvicorn.protocols.http.auto, uvicorn.protocols.websockets.auto
import slipway_provisioner.providers.aws.client  # nobody may not read what it would import later
from slipway_provisioner.main import Settings, build, from_environment
service = build(from_environment(Settings))
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # dumpable, as a process that has always been of this user
service.run()
"""


class Answer(NamedTuple):
    """A request, its answer, and the verdict: True if the door is closed. A script that failed has tried nothing."""

    request: str
    answer: str
    closed: bool
    tried: bool = True


class Reply(NamedTuple):
    """Answer of a service; status 0 if there was none."""

    status: int
    text: str

    def __str__(self) -> str:
        return f"{self.status} {self.text}"[:SHOWN] if self.status else self.text

    @property
    def refused(self) -> bool:
        return 400 <= self.status < 500


def scopes_with_owners() -> frozenset[str]:
    """Scopes of this tree that may carry an owner, without it."""
    try:
        from slipway_common.base.token_scopes import OWNED, SCOPES
    except ImportError:
        return frozenset()
    return frozenset({*OWNED, *(scope.removesuffix(":OWNER") for scope in SCOPES if scope.endswith(":OWNER"))})


class Target:
    """A running deployment, its tokens by name, and one of its workers, whose token is `worker_token`."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.rng: Random = harness.rng
        self.folder: Path
        self.deployment: Deployment
        self.tokens: dict[str, str] = {}
        self.entries: list[dict[str, Any]] = []
        self.worker_id = self.other_id = ""
        self.worker_token = ids.new_worker_token()
        self.children: list[Child] = []

    async def start(self) -> None:
        """Start services with a pool of some busy workers."""
        self.deployment = self.harness.new_deployment(
            environment={"provisioner": {"SLIPWAY_ALLOWED_HOSTS": "127.0.0.1,localhost"}}
        )
        self.folder = self.deployment.folder
        await self.deployment.start()
        url = self.deployment.url("simulator")
        account = Account(**({"url": url} if "url" in Account.__struct_fields__ else {}))  # type: ignore[arg-type]
        declared = declaration(self.harness.speed, {"acc": account}, {"builds": Pool(accounts=["acc"])})
        await self.harness.play(self.deployment, declared, boot_seconds_median=1)
        await add_tasks(self.deployment, "builds", 2, 100_000.0)

        async def runs() -> bool:
            rows = await fetch(self.deployment, "SELECT id::text FROM provisioner.worker WHERE state = 'running'")
            self.worker_id, self.other_id = [row["id"] for row in rows][:2] if len(rows) >= 2 else ("", "")
            return len(rows) >= 2

        await self.harness.until(runs, "two workers run")
        self.add_token("reader", ["read"])
        self.add_token("declarer", ["declaration:write"])
        self.add_token("monitor", ["demand:write:builds"])
        with_owners = scopes_with_owners()
        for scope in (
            "declaration:write",
            "pools:write",
            "launch-configs:write",
            "accounts:write",
            "workers:terminate",
            "signal:write:owner",
        ):
            unlimited = scope.replace(":owner", ":*")
            held = f"{scope}:{TEAM}" if scope in with_owners else unlimited
            self.add_token(f"{TEAM}-{scope.replace(':', '-')}", [held])
        self.write_tokens()
        await fetch(
            self.deployment,
            "UPDATE provisioner.worker SET token_sha256 = $2, token_used = true WHERE id = $1::uuid",
            self.worker_id,
            hash_of(self.worker_token),
        )

    async def stop(self) -> None:
        for child in self.children:
            await child.kill()

    def add_token(self, name: str, scopes: Sequence[str], **more: Any) -> str:
        """Draw a token, which `write_tokens` writes."""
        secret = self.tokens[name] = secrets.token_urlsafe(32)
        self.entries.append({"name": name, "sha256": hash_of(secret), "scopes": list(scopes)} | more)
        return secret

    def write_tokens(self, *more: str) -> None:
        """Write the tokens file; `more` are further entries as text."""
        first = {"name": "local", "sha256": hash_of(self.deployment.token), "scopes": ["admin"]}
        lines = [f"- {msgspec.json.encode(entry).decode()}" for entry in (first, *self.entries)]
        path = self.deployment.tokens_file
        new = path.with_suffix(".new")
        new.write_text("\n".join([*lines, *more, ""]))
        new.replace(path)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        service: str = "provisioner",
        headers: Mapping[str, str] | None = None,
        seconds: float = 10.0,
    ) -> Reply:
        """Send a request as an outsider would; `token` is a secret."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        content = {} if body is None else {"content": msgspec.json.encode(body)}
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            async with httpx2.AsyncClient(timeout=seconds, trust_env=False, verify=TLS) as client:
                answer = await client.request(method, self.deployment.url(service) + path, headers=sent, **content)  # type: ignore[arg-type]
        except httpx2.HTTPError as error:
            return Reply(0, f"no answer: {type(error).__name__}")
        return Reply(answer.status_code, said(answer.text))

    async def send_part(self, text: bytes, *, service: str = "provisioner", seconds: float = ANSWER_SECONDS) -> Reply:
        """Send the beginning of a request, and wait for an answer to it."""
        port = self.deployment.ports[service]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(text)
            async with asyncio.timeout(seconds):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                body = await reader.read(2000)
            return Reply(int(head.split(" ", 2)[1]), said(body.decode(errors="replace")))
        except TimeoutError:
            return Reply(0, f"no answer within {seconds:g} s")
        except (OSError, asyncio.IncompleteReadError):
            return Reply(0, "connection closed")
        finally:
            writer.close()

    @contextlib.asynccontextmanager
    async def process(
        self, environment: Mapping[str, str], *, as_nobody: bool = False
    ) -> AsyncIterator[tuple[Child, int, Path]]:
        """A provisioner of its own that reaches no database, with its port and its log."""
        (port,) = free_ports(1)
        log = self.folder / f"attacked-{port}.log"
        env = {
            name: value
            for name, value in self.deployment.environment_of("provisioner").items()
            if not name.startswith(("SLIPWAY_REGISTRATION", "SLIPWAY_TOKENS"))
        }
        env |= {"SLIPWAY_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "SLIPWAY_PORT": str(port)}
        argv = ["-c", AS_NOBODY] if as_nobody else ["-m", "slipway_provisioner.main"]
        child = Child(f"attacked-{port}", [sys.executable, *argv], env=env | dict(environment), log=log, cwd=Path.cwd())
        self.children.append(child)
        child.start()
        try:
            yield child, port, log
        finally:
            await child.kill()

    async def starts(self, environment: Mapping[str, str]) -> Reply:
        """Whether a provisioner starts with this environment: 200, or its last line as a refusal."""
        async with self.process(environment) as (child, port, log):
            while child.alive and not await is_open(port):
                await asyncio.sleep(0.05)
            if child.alive:
                return Reply(200, "it serves")
            return Reply(400, f"exit {child.exit_code}: {(log.read_text().splitlines() or [''])[-1]}")


async def is_open(port: int) -> bool:
    """True if something listens."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def said(text: str) -> str:
    """Title and detail of a problem, or the beginning of another answer."""
    try:
        problem = msgspec.json.decode(text)
    except msgspec.DecodeError:
        problem = None
    if isinstance(problem, dict) and "title" in problem:
        text = f"{problem['title']}: {problem.get('detail', '')}"
    return " ".join(text.split())[:SHOWN]


def can_read(path: str, pid: int) -> str:
    """What a process of nobody reads of another one's folder in /proc: a text that is empty if nothing."""
    where = f"/proc/{pid}/{path}"
    command = {"fd": "ls", "cwd": "readlink", "root": "readlink"}.get(path, "cat")
    done = subprocess.run(
        [command, where], capture_output=True, check=False, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/"
    )
    return done.stdout.decode(errors="replace")
