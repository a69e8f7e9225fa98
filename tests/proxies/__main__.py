"""`make try-proxies`: nginx and Caddy of Debian in front of a service, with the files of infra/proxies.

Prints a line a claim. Exits with 3 if all held that could be tried, but a proxy is not installed.
"""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import hash_secret
from slipway_common.base.tls import client_context
from slipway_common.database import migrate
from slipway_local.servers.child import Child
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.authority import Authority
from tests.support.folders import temporary_folder

ROOT: Final = Path(__file__).parents[2]
NOT_RUN: Final = 3
START_SECONDS: Final = 60.0
POLL_SECONDS: Final = 60.0  # the longest, and as long as nginx waits by default
CLIENT, FORGED, OTHER = "127.0.0.2", "203.0.113.9", "127.0.0.3"
SECRET: Final = "secret"
NGINX: Final = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-errors.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


class Proxy(NamedTuple):
    """A proxy under test: the port that it listens on, of a service on `behind`."""

    name: str
    port: int
    behind: int
    authority: Authority

    async def ask(
        self, method: str, path: str, body: Any = None, *, direct: bool = False, by: str = CLIENT, **headers: str
    ) -> httpx2.Response:
        """A request from an address of loopback, through the proxy or past it."""
        url = f"http://127.0.0.1:{self.behind}" if direct else f"https://localhost:{self.port}"
        transport = httpx2.AsyncHTTPTransport(
            verify=client_context(ca_file=self.authority.ca_file), local_address=by, trust_env=False
        )
        sent = {"Authorization": f"Bearer {SECRET}", **headers}
        async with httpx2.AsyncClient(transport=transport, timeout=POLL_SECONDS + 30) as http:
            return await http.request(method, url + path, headers=sent, **({} if body is None else {"json": body}))

    async def origin(self, limit: int, **how: Any) -> str:
        """Address that the audit has for a change of the limit."""
        reason = f"{self.name} {limit}"
        answer = await self.ask("PATCH", f"/lease-pools/{self.name}", {"limit": limit, "reason": reason}, **how)
        answer.raise_for_status()
        rows = (await self.ask("GET", "/audit?limit=100")).json()["items"]
        return next(str(row["origin"]) for row in rows if row["reason"] == reason)


async def address(proxy: Proxy) -> tuple[str, bool]:
    found = await proxy.origin(2)
    return f"the audit names {found} for a client at {CLIENT}", found == CLIENT


async def forged(proxy: Proxy) -> tuple[str, bool]:
    found = await proxy.origin(3, **{"X-Forwarded-For": FORGED})
    return f"the audit names {found} for a client at {CLIENT} that claims to be {FORGED}", found == CLIENT


async def past_it(proxy: Proxy) -> tuple[str, bool]:
    found = await proxy.origin(4, direct=True, by=OTHER, **{"X-Forwarded-For": FORGED})
    return f"the audit names {found} for a claim of {OTHER}, which is no trusted proxy", found == OTHER


async def encoded(proxy: Proxy) -> tuple[str, bool]:
    answer = await proxy.ask("GET", "/lease-pools/gecko%2Ft%20linux")
    detail = str(answer.json().get("detail") or answer.json().get("title"))
    return f"a path with %2F is {answer.status_code} {detail}", "gecko/t linux" in answer.text


async def other_host(proxy: Proxy) -> tuple[str, bool]:
    answer = await proxy.ask("GET", "/lease-pools", Host="evil.example")
    is_refused = answer.status_code == 421 or not answer.content
    return f"Host evil.example is {answer.status_code} and {len(answer.content)} bytes", is_refused


async def without_tls(proxy: Proxy) -> tuple[str, bool]:
    try:
        async with httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"http://localhost:{proxy.port}/lease-pools")
    except httpx2.TransportError as error:
        return f"plain HTTP: {error!r}", True
    return f"plain HTTP is {answer.status_code}", answer.status_code == 400


async def long_poll(proxy: Proxy) -> tuple[str, bool]:
    began, path = monotonic_seconds(), "/lease-pools/full/leases"
    await proxy.ask("POST", path, {"request_id": "first"})
    answer = await proxy.ask("POST", path, {"request_id": proxy.name, "wait_seconds": POLL_SECONDS})
    waited = monotonic_seconds() - began
    return f"a poll of {waited:.0f} s is {answer.status_code}", answer.status_code == 202 and waited >= POLL_SECONDS


CLAIMS: Final[tuple[Callable[[Proxy], Awaitable[tuple[str, bool]]], ...]] = (
    address,
    forged,
    past_it,
    encoded,
    other_host,
    without_tls,
    long_poll,
)


def nginx(folder: Path, site: str) -> list[str]:
    """Command of nginx with a file of ours."""
    (folder / "site.conf").write_text(site)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, site: str) -> list[str]:
    (folder / "Caddyfile").write_text(site)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


PROXIES: Final = {"nginx": (nginx, "nginx.conf"), "caddy": (caddy, "Caddyfile")}


def ours(text: str, port: int, behind: int, certificate: Path) -> str:
    """A file of infra/proxies with the places of this run."""
    for there, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("https://provisioner.example {", f"https://localhost:{port} {{\n\tbind 127.0.0.1"),
        ("provisioner.example", "localhost"),
        ("/etc/slipway/proxy.pem", str(certificate)),
        ("127.0.0.1:7301", f"127.0.0.1:{behind}"),
        ("admin off", "admin off\n\tauto_https disable_redirects"),
    ):
        text = text.replace(there, here)
    return text


async def try_one(name: str, folder: Path, behind: int, authority: Authority) -> bool:
    """Start a proxy and try each claim; True if all held."""
    command, file = PROXIES[name]
    (port,) = free_ports(1)
    folder.mkdir()
    certificate = authority.issue("proxy", hosts=("localhost",))
    site = ours((ROOT / "infra/proxies" / file).read_text(), port, behind, certificate)
    proxy = Proxy(name, port, behind, authority)
    env = os.environ | {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    child = Child(name, command(folder, site), log=folder / "log", env=env)
    child.start()

    async def answers() -> bool:
        try:
            return (await proxy.ask("GET", "/livez")).status_code == 200
        except httpx2.TransportError:
            return False

    held = True
    try:
        await child.ready(answers, START_SECONDS)
        for claim in CLAIMS:
            text, holds = await claim(proxy)
            held = held and holds
            print(f"  {'ok    ' if holds else 'FALSE '} {name}: {text}", flush=True)
    finally:
        await child.stop()
    return held


@contextlib.asynccontextmanager
async def service(folder: Path) -> AsyncIterator[int]:
    """A lease-broker on loopback that trusts a proxy on 127.0.0.1; its port."""
    (port,) = free_ports(1)
    postgres = EmbeddedPostgres(folder / "postgres")
    await postgres.start()
    await migrate.upgrade(postgres.url(), "lease-broker")
    tokens = folder / "tokens.yaml"
    tokens.write_bytes(msgspec.json.encode([{"name": "operator", "sha256": hash_secret(SECRET), "scopes": ["admin"]}]))
    settings = {
        "DATABASE_URL": postgres.url(),
        "KAFKA": "127.0.0.1:1",
        "PORT": str(port),
        "TOKENS_FILE": str(tokens),
        "TRUSTED_PROXIES": "127.0.0.1",
        "ALLOWED_HOSTS": "localhost,127.0.0.1",
    }
    env = os.environ | {f"SLIPWAY_{name}": value for name, value in settings.items()}
    child = Child(
        "lease-broker", [sys.executable, "-m", "slipway_lease_broker.main"], log=folder / "broker.log", env=env
    )
    child.start()
    times = {"hold_seconds": 600, "ttl_seconds": 300, "reserve_seconds": 100, "pacing": "off"}
    pools = [{"id": name, "limit": 1, **times} for name in (*PROXIES, "full")]
    body = {"documents": [{"owner": "proxies", "lease_pools": pools}]}

    async def declared() -> bool:
        try:
            async with httpx2.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {SECRET}"}) as http:
                return (await http.put(f"http://127.0.0.1:{port}/lease-pools", json=body)).status_code == 200
        except httpx2.TransportError:
            return False

    try:
        await child.ready(declared, START_SECONDS)
        yield port
    finally:
        await child.stop()
        await postgres.stop()


async def attempt(folder: Path) -> int:
    present = [name for name in PROXIES if shutil.which(name)]
    authority = Authority(folder)
    async with service(folder) as port:
        held = await asyncio.gather(*(try_one(name, folder / name, port, authority) for name in present))
    for name in PROXIES.keys() - set(present):
        print(f"not run: {name} is not installed; install Debian's package {name}")
    if not all(held):
        return 1
    return 0 if len(present) == len(PROXIES) else NOT_RUN


def main() -> None:
    with temporary_folder() as folder:
        sys.exit(asyncio.run(attempt(folder)))


if __name__ == "__main__":
    main()
