"""Doors by which an outsider, a token or a machine has reached more than it may. Each is a short script that answers
with the request, the answer and whether the door is closed."""

import asyncio
import base64
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg

from slipway_common.base.clock import monotonic_seconds, utc_now
from tests.attack.target import ANSWER_SECONDS, TEAM, Answer, Reply, Target, can_read, hash_of, is_open
from tests.drills.harness import fetch

HALF_SECONDS_MAX: Final = 15.0
UNREAD_SECONDS_MAX: Final = 120.0
UNREAD: Final = 16
"""Requests with large answers: more than the system sends ahead."""
PIPELINED: Final = 5_000
HEADER_BYTES: Final = 2_000_000
NO_ANSWER: Final = f"no answer within {ANSWER_SECONDS:g} s"
HALVES: Final = 300
MADE_UP: Final = 30
STRANGERS: Final = 150
TOKENS: Final = 700
REPORTS: Final = 60
COUNTED: Final = """
SELECT count(*) AS open FROM provisioner.claim c
WHERE worker_id = $1::uuid AND ended_at IS NULL AND coalesce((to_jsonb(c) ->> 'counted')::boolean, true)"""
REASON: Final = {"reason": "attack"}
POOL: Final = {
    "id": "builds",
    "max_capacity": 1,
    "launch_configs": [
        {
            "name": "builds-acc",
            "account": "acc",
            "zone": "zone-acc",
            "instance_type": "m5",
            "image": "evil",
            "settings": {"tasks_per_worker": 1},
        }
    ],
}
KEY: Final = base64.b64encode(bytes(range(32))).decode()
READ: Final = ("environ", "maps", "fd", "cwd", "root")
SECRET: Final = "s3cret-of-the-database"  # searched for in /proc


class Door(NamedTuple):
    """A door. `beside`: its script takes long, and runs beside the others."""

    script: Callable[[Target], Awaitable[Answer]]
    beside: bool = False


def refused(request: str, reply: Reply) -> Answer:
    """The door is closed if the request was refused."""
    return Answer(request, str(reply), reply.refused)


# What a declaration may state ----------------------------------------------------------------------------------------


async def declare(account: Mapping[str, Any], target: Target) -> Answer:
    """Declare an account by a token that may declare."""
    stated = {"id": "stolen", "identity": "stolen", "lease_pool": "acc", "region": "sim-1", "credential": "none"}
    body = {"version": 1, "metadata": {"owner": TEAM}, "accounts": [stated | dict(account)], "worker_pools": []}
    reply = await target.send("PUT", "/declaration?dry_run=true", body, token=target.tokens["declarer"])
    return refused(f"PUT /declaration {json.dumps(account)}", reply)


STATED: Final[Mapping[str, Mapping[str, Any]]] = {
    "declared-command": {"provider": "process", "settings": {"command": ["cat", "/proc/self/environ"]}},
    "declared-folder": {"provider": "process", "settings": {"log_folder": "/etc"}},
    "declared-url": {"provider": "simulated", "settings": {"url": "http://evil.example"}},
    "declared-endpoint": {
        "provider": "aws",
        "region": "us-east-1",
        "identity": "123456789012",
        "settings": {"sts_endpoint_url": "http://evil.example"},
    },
    "declared-token-file": {
        "provider": "aws",
        "region": "us-east-1",
        "identity": "123456789012",
        "credential": {
            "web_identity": {"token_file": "/proc/self/environ", "role": "arn:aws:iam::123456789012:role/x"}
        },
    },
    "declared-secret-file": {
        "provider": "aws",
        "region": "us-east-1",
        "identity": "123456789012",
        "credential": {"file": "/etc/shadow"},
    },
}


# What a child sees ---------------------------------------------------------------------------------------------------


async def read_parent(target: Target) -> Answer:
    """Read the folder of a service in /proc as another process of its user, as a command of a provider would be."""
    environment = {
        "SLIPWAY_DATABASE_URL": f"postgresql://nobody:{SECRET}@127.0.0.1:1/none",
        "SLIPWAY_REGISTRATION_KEY": KEY,
        "SLIPWAY_REGISTRATION_KEYS": KEY,
    }
    request = f"read {', '.join(READ)} of /proc/PID as a child of the service's user"
    async with target.process(environment, as_nobody=True) as (child, port, log):
        while child.alive and not await is_open(port):
            await asyncio.sleep(0.05)
        if child.pid is None:
            return Answer(request, f"the service ended: {log.read_text()[-200:]}", closed=False)
        found = {path: await asyncio.to_thread(can_read, path, child.pid) for path in READ}
    shown = [path + " with the secret" * (SECRET in content) for path, content in found.items() if content]
    return Answer(request, f"read {', '.join(shown)}" if shown else "nothing", not shown)


# What an owner may touch ---------------------------------------------------------------------------------------------


async def as_team(scope: str, method: str, path: str, body: Any, target: Target) -> Answer:
    """Write to what another owner has declared."""
    token = target.tokens[f"{TEAM}-{scope.replace(':', '-')}"]
    reply = await target.send(method, path.format(worker=target.worker_id), body, token=token)
    return refused(f"{method} {path} as {TEAM}", reply)


async def signal_as_team(target_kind: str, target_id: str, target: Target) -> Answer:
    """Raise a signal on launch configs of another owner."""
    body = {"target_kind": target_kind, "target_id": target_id, "kind": "degraded", "ttl_seconds": 1.0} | REASON
    token = target.tokens[f"{TEAM}-signal-write-owner"]
    reply = await target.send("POST", "/signals", body, token=token, service="weight-calculator")
    return Answer(f"POST /signals on {target_kind} {target_id} as {TEAM}", str(reply), reply.status == 403)


async def declare_as_other(query: str, owner: str, target: Target) -> Answer:
    """Declare the pool of another owner: in the name of that owner, or adopting it."""
    body = {"version": 1, "metadata": {"owner": owner}, "accounts": [], "worker_pools": [POOL]}
    token = target.tokens[f"{TEAM}-declaration-write"]
    reply = await target.send("PUT", f"/declaration?dry_run=true{query}", body, token=token)
    request = f"PUT /declaration?dry_run=true{query} owner {owner} as {TEAM}"
    return Answer(request, str(reply), reply.status == 403)


OWNED: Final[Mapping[str, Callable[[Target], Awaitable[Answer]]]] = {
    "other-owner-declares": partial(declare_as_other, "", "slipway.yaml"),
    "other-owner-adopts": partial(declare_as_other, "&adopt=true", TEAM),
    "other-owner-rolls-back": partial(
        as_team,
        "declaration:write",
        "POST",
        "/pools/builds/rollback",
        REASON | {"dry_run": True, "to_revision": 1},
    ),
    "other-owner-sets-image": partial(
        as_team, "declaration:write", "PUT", "/pools/builds?dry_run=true&action=set-image", POOL
    ),
    "other-owner-freezes": partial(as_team, "pools:write", "POST", "/pools/builds/freeze", REASON),
    "other-owner-pauses": partial(as_team, "pools:write", "POST", "/pools/builds/pause", REASON),
    "other-owner-pauses-config": partial(
        as_team, "launch-configs:write", "POST", "/launch-configs/builds-acc/pause", REASON
    ),
    "other-owner-signals-config": partial(signal_as_team, "config", "builds-acc"),
    "other-owner-signals-pool": partial(signal_as_team, "pool", "builds"),
    "other-owner-signals-account": partial(signal_as_team, "account", "acc"),
    "other-owner-retires": partial(as_team, "accounts:write", "POST", "/accounts/acc/reinstate", REASON),
}


async def terminate(target: Target) -> Answer:
    return await as_team("workers:terminate", "POST", "/workers/{worker}/terminate", REASON, target)


# Secrets that are none -----------------------------------------------------------------------------------------------


async def registration_key(value: str, target: Target) -> Answer:
    environment = {"SLIPWAY_REGISTRATION_KEY": value, "SLIPWAY_REGISTRATION_KEYS": value}
    return refused(f"start with the registration key {value!r}", await target.starts(environment))


async def commands_as_service(target: Target) -> Answer:
    """A provider whose commands would read what the service reads, without a word of the operator about it."""
    environment = {
        "SLIPWAY_REGISTRATION_KEYS": KEY,
        "SLIPWAY_PROVIDERS": "process",
        "SLIPWAY_COMMANDS_AS_SERVICE": "no",
    }
    return refused("start with SLIPWAY_PROVIDERS=process alone", await target.starts(environment))


async def bad_entry(entry: str, target: Target) -> Answer:
    """A bad entry of the tokens file locks nobody else out, and gives nothing."""
    target.write_tokens(entry.format(hash=hash_of("bad")))
    try:
        good = await target.send("GET", "/pools", token=target.tokens["reader"])
        bad = await target.send("GET", "/pools", token="bad")
    finally:
        target.write_tokens()
    others = f"others {good.status}, itself {bad}"
    return Answer(f"tokens file with {entry}", others, good.status == 200 and bad.status in (401, 403, 429))


BAD_ENTRIES: Final = {
    "token-without-name": "- {{name: , sha256: {hash}, scopes: [read]}}",
    "token-hash-not-hexadecimal": "- {{name: bad, sha256: zzzz, scopes: [read]}}",
    "token-unknown-scope": "- {{name: bad, sha256: {hash}, scopes: [read, everything:write]}}",
    "token-star": "- {{name: bad, sha256: {hash}, scopes: ['*']}}",
    "token-unknown-field": "- {{name: bad, sha256: {hash}, scopes: [read], no: 1}}",
}


async def bad_entry_alerts(target: Target) -> Answer:
    """An alert says so."""
    target.write_tokens("- {name: bad, sha256: zzzz, scopes: [read]}")
    try:
        deadline = monotonic_seconds() + 2 * ANSWER_SECONDS
        while monotonic_seconds() < deadline:
            reply = await target.deployment.call("GET", "provisioner", "/alerts")
            kinds = [alert.get("kind") for alert in reply["items"]]
            if "tokens-refused" in kinds:
                return Answer("a bad entry, then GET /alerts", "tokens-refused is open", closed=True)
            await asyncio.sleep(0.2)
        return Answer("a bad entry, then GET /alerts", f"alerts: {kinds}", closed=False)
    finally:
        target.write_tokens()


async def expired_token(target: Target) -> Answer:
    entry = "- {{name: old, sha256: {hash}, scopes: [read], expires_at: '2020-01-01T00:00:00Z'}}"
    return await bad_entry(entry, target)


# What an outsider costs ----------------------------------------------------------------------------------------------


def write_routes() -> list[tuple[str, str, str]]:
    """Service, method and path of each route with a body that needs a token."""
    found = []
    for service in ("provisioner", "lease-broker", "weight-calculator"):
        document = json.loads(Path("contracts/openapi", f"{service}.json").read_text())
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if "requestBody" in operation and operation.get("security"):
                    found.append((service, method.upper(), path))
    return found


async def body_before_token(target: Target) -> Answer:
    """Send headers without a token to every route with a body, and no body: it is not waited for."""
    routes = write_routes()
    request = b"%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"

    async def one(service: str, method: str, path: str) -> str:
        sent = path.replace("{", "").replace("}", "")
        reply = await target.send_part(request % (method.encode(), sent.encode()), service=service)
        return "" if reply.status in (401, 403, 404, 429) else f"{method} {path}: {reply}"

    waited = list(filter(None, await asyncio.gather(*(one(*route) for route in routes))))
    text = f"{len(waited)} of {len(routes)} wait for the body: {waited[0]}" if waited else f"{len(routes)} refused"
    return Answer("headers without a token to each route with a body, and one byte of it", text, not waited)


async def large_body(target: Target) -> Answer:
    head = b"POST /stop-launching HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50000000\r\n\r\n{"
    return refused("POST /stop-launching of 50 MB", await target.send_part(head))


HEADER: Final = (
    b"POST /stop-launching HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\r\nContent-Length: 90\r\n\r\n"
)


async def half_requests(target: Target) -> Answer:
    """Send requests that end somewhere in their header and wait; people are answered meanwhile."""
    port, began = target.deployment.ports["provisioner"], monotonic_seconds()
    opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(HALVES)))
    for _, writer in opened:
        writer.write(HEADER[: target.rng.randrange(len(HEADER) - 4)])

    ends = [asyncio.create_task(reader.read()) for reader, _ in opened]
    _, late = await asyncio.wait(ends, timeout=HALF_SECONDS_MAX - (monotonic_seconds() - began))
    if late:  # this process may be late to notice
        _, late = await asyncio.wait(late, timeout=ANSWER_SECONDS / 10)
    for end in late:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    for _, writer in opened:
        writer.close()
    text = f"{HALVES - len(late)} closed within {HALF_SECONDS_MAX:g} s"
    return Answer(f"{HALVES} connections with a part of a header", text, not late)


async def half_bodies(target: Target) -> Answer:
    """Send requests that end in their body, by a token that may send them."""
    head = (
        b"PUT /pools/builds/demand HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\nAuthorization: Bearer "
        + target.tokens["monitor"].encode()
        + b"\r\n\r\n{"
    )
    began = monotonic_seconds()
    reply = await target.send_part(head, seconds=HALF_SECONDS_MAX)
    seconds = monotonic_seconds() - began
    is_over = reply.status == 408 or reply.text == "connection closed"
    return Answer("PUT /pools/builds/demand with one byte of its body", f"{reply} after {seconds:.0f} s", is_over)


async def half_answers(target: Target) -> Answer:
    """Send a few requests as a reader, and read none of the large answers."""
    head = f"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {target.tokens['reader']}\r\n\r\n"
    loop, port = asyncio.get_running_loop(), target.deployment.ports["provisioner"]
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, UNREAD * head.encode())
        began, is_over = monotonic_seconds(), False
        while not is_over and monotonic_seconds() < began + UNREAD_SECONDS_MAX:
            await asyncio.sleep(0.5)
            try:
                connection.send(b"\r\n")
            except OSError:
                is_over = True
    text = f"{'ended' if is_over else 'open'} after {monotonic_seconds() - began:.0f} s"
    return Answer(f"{UNREAD} requests of /openapi.json, of which no answer is read", text, is_over)


async def pipelined(target: Target) -> Answer:
    """Send many requests at once on one connection. Each takes kilobytes until it is answered."""
    port = target.deployment.ports["provisioner"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PIPELINED * b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    answered, is_over = 0, False
    try:
        async with asyncio.timeout(2 * ANSWER_SECONDS):
            while line := await reader.readline():
                answered += line.startswith(b"HTTP/1.1 200 ")
        is_over = True
    except TimeoutError:
        pass
    except ConnectionResetError:
        is_over = True
    finally:
        writer.transport.abort()
    text = f"{answered} answered, {'then closed' if is_over else 'still open'}"
    return Answer(f"{PIPELINED} requests at once on one connection", text, answered < PIPELINED and is_over)


async def large_header(target: Target) -> Answer:
    """Send a header without end."""
    head = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + HEADER_BYTES * b"a"
    reply = await target.send_part(head)
    return Answer(f"a header of {HEADER_BYTES:,} bytes that does not end", str(reply), reply.text != NO_ANSWER)


async def locked_row(target: Target) -> Answer:
    """Report by a token that is not the worker's, while the row of the worker is locked."""
    db = await asyncpg.connect(target.deployment.database_url, timeout=10)
    try:
        transaction = db.transaction()
        await transaction.start()
        await db.execute("SELECT FROM provisioner.worker WHERE id = $1::uuid FOR UPDATE", target.worker_id)
        reply = await target.send(
            "POST", f"/workers/{target.worker_id}/heartbeat", token="slipway-worker-other", seconds=ANSWER_SECONDS
        )
        await transaction.rollback()
    finally:
        await db.close()
    return refused("POST /workers/ID/heartbeat by another token while its row is locked", reply)


async def all_connections(target: Target) -> Answer:
    """Send many reports of one worker at once while its row is locked: people and other workers wait for none of
    them."""
    beat = f"/workers/{target.worker_id}/heartbeat"
    db = await asyncpg.connect(target.deployment.database_url, timeout=10)
    try:
        transaction = db.transaction()
        await transaction.start()
        await db.execute("SELECT FROM provisioner.worker WHERE id = $1::uuid FOR UPDATE", target.worker_id)
        reports = [asyncio.create_task(target.send("POST", beat, token=target.worker_token)) for _ in range(REPORTS)]
        await asyncio.sleep(ANSWER_SECONDS / 10)  # until they are sent
        began = monotonic_seconds()
        read = await target.send("GET", "/pools", token=target.tokens["reader"], seconds=ANSWER_SECONDS)
        seconds = monotonic_seconds() - began
        await transaction.rollback()
        await asyncio.gather(*reports)
    finally:
        await db.close()
    request = f"GET /pools beside {REPORTS} reports of one worker that wait for its row"
    return Answer(request, f"{read.status or read.text} after {seconds:.1f} s", read.status == 200)


async def stranger_hammers(target: Target) -> Answer:
    """Send many requests without a token at once; people are served from the same address. One after another they would
    stay within the limit on a busy computer."""
    replies = await asyncio.gather(*(target.send("GET", "/pools") for _ in range(STRANGERS)))
    read = await target.send("GET", "/pools", token=target.tokens["reader"])
    limited = sum(reply.status == 429 for reply in replies)
    text = f"{limited} limited; a reader {read.status}"
    return Answer(f"{STRANGERS} requests without a token", text, limited > 0 and read.status == 200)


async def made_up_tokens(target: Target) -> Answer:
    """Report by many made-up tokens while nothing can be read from the workers: those above a bound are refused without
    a look-up. Each would wait with a connection, until there is none for anybody else."""
    beat = f"POST /workers/{target.worker_id}/heartbeat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n"
    db = await asyncpg.connect(target.deployment.database_url, timeout=10)
    try:
        transaction = db.transaction()
        await transaction.start()
        await db.execute("LOCK TABLE provisioner.worker")
        tokens = [f"slipway-worker-{target.rng.getrandbits(256):064x}" for _ in range(TOKENS)]
        parts = [f"{beat}Authorization: Bearer {token}\r\n\r\n".encode() for token in tokens]
        replies = await asyncio.gather(*map(target.send_part, parts))
        await transaction.rollback()
    finally:
        await db.close()
    limited = sum(reply.status == 429 for reply in replies)
    request = f"{len(tokens)} heartbeats by made-up tokens while the workers are locked"
    return Answer(request, f"{limited} limited without a look-up", limited > 0)


async def worker_hammers(target: Target) -> Answer:
    """Send many heartbeats of a worker, one after another."""
    beat = f"/workers/{target.worker_id}/heartbeat"
    replies = await asyncio.gather(
        *(target.send("POST", beat, token=target.worker_token) for _ in range(2 * REPORTS + STRANGERS))
    )
    limited = sum(reply.status == 429 for reply in replies)
    others = {reply.status for reply in replies} - {429}
    return Answer(f"{len(replies)} heartbeats of a worker at once", f"{limited} limited, others {others}", limited > 0)


async def made_up_sources(target: Target) -> Answer:
    """Report demand by one token under many names."""
    taken = 0
    last = Reply(0, "")
    for number in range(MADE_UP):
        now = utc_now().isoformat()
        body = {"source": f"made-up-{number}", "pending": 0, "claimed": 0, "observed_at": now}
        last = await target.send("PUT", "/pools/builds/demand", body, token=target.tokens["monitor"])
        taken += last.status == 200
    return Answer(f"{MADE_UP} reports of demand, each of another source", f"{taken} taken; {last}", taken < MADE_UP)


async def remove_source(target: Target) -> Answer:
    """Remove the source of another monitor, whose tasks would lose their workers, by a token that has its own."""
    found = await target.deployment.call("GET", "provisioner", "/demand?pool=builds")
    path = f"/pools/builds/demand/{found['items'][0]['source']}"
    target.write_tokens(f"- {{name: one, sha256: {hash_of('one')}, scopes: ['demand:write:builds'], sources: [one]}}")
    try:
        reply = await target.send("DELETE", path, token="one")
    finally:
        target.write_tokens()
    known = reply.status != 401  # a tree whose tokens have no sources refuses the entry
    return Answer(f"DELETE {path} by a token of another source", str(reply), reply.status == 403, tried=known)


async def made_up_claims(target: Target) -> Answer:
    """Claim many tasks by one worker with one task slot: each ends the one before, and one counts at a time."""
    counted = 0
    for number in range(MADE_UP):
        body = {"task_id": f"made-up-{number}", "source": "", "at": utc_now().isoformat()}
        reply = await target.send("POST", f"/workers/{target.worker_id}/claimed", body, token=target.worker_token)
        if reply.status == 422:
            body["source"] = "made-up"
            reply = await target.send("POST", f"/workers/{target.worker_id}/claimed", body, token=target.worker_token)
        counted += '"counted":true' in reply.text.replace(" ", "")
    rows = await fetch(target.deployment, COUNTED, target.worker_id)
    shown = f"{counted} counted in turn, {rows[0]['open']} at the end; {reply}"
    return Answer(
        f"{MADE_UP} claims of one worker with one task slot", shown, reply.status == 200 and rows[0]["open"] <= 1
    )


async def unknown_host(target: Target) -> Answer:
    reply = await target.send("GET", "/pools", token=target.tokens["reader"], headers={"Host": "evil.example"})
    return refused("GET /pools with Host: evil.example", reply)


# What a token may reach ----------------------------------------------------------------------------------------------


async def reach(who: str, method: str, path: str, body: Any, target: Target, *, service: str = "provisioner") -> Answer:
    token = {"": None, "worker": target.worker_token}.get(who, target.tokens.get(who))
    reply = await target.send(method, path.format(other=target.other_id), body, token=token, service=service)
    return refused(f"{method} {path} by {who or 'nobody'}", reply)


STOP: Final = {"scope": "all", "reason": "attack"}
REPORT: Final = {"source": "x", "pending": 1, "claimed": 0, "observed_at": "2026-01-01T00:00:00Z"}
REACHED: Final[Mapping[str, Callable[[Target], Awaitable[Answer]]]] = {
    "no-token": partial(reach, "", "GET", "/pools", None),
    "scope-of-another-pool": partial(reach, "monitor", "PUT", "/pools/other/demand", REPORT),
    "reader-stops-launching": partial(reach, "reader", "POST", "/stop-launching", STOP),
    "reader-reads-settings": partial(reach, "reader", "GET", "/declaration", None),
    "worker-reads-pools": partial(reach, "worker", "GET", "/pools", None),
    "worker-reports-for-another": partial(reach, "worker", "POST", "/workers/{other}/heartbeat", None),
    "reader-takes-leases": partial(
        reach,
        "reader",
        "POST",
        "/lease-pools/acc/leases",
        {"request_id": "x", "units": 1},
        service="lease-broker",
    ),
}


async def nul_in_text(target: Target) -> Answer:
    body = STOP | {"reason": "a\0b"}
    reply = await target.send("POST", "/stop-launching", body, token=target.deployment.token)
    return refused("POST /stop-launching with a NUL in its reason", reply)


async def nul_in_path(target: Target) -> Answer:
    return refused("GET /pools/a%00b", await target.send("GET", "/pools/a%00b", token=target.deployment.token))


def _doors() -> dict[str, Door]:
    doors = {name: Door(partial(declare, account)) for name, account in STATED.items()}
    doors |= {"parent-in-proc": Door(read_parent, beside=True)}
    doors |= {"commands-as-service": Door(commands_as_service)}
    doors |= {name: Door(script) for name, script in OWNED.items()}
    doors |= {"other-owner-terminates": Door(terminate)}
    doors |= {"registration-key-empty": Door(partial(registration_key, ""))}
    doors |= {"registration-key-short": Door(partial(registration_key, "abc"))}
    doors |= {name: Door(partial(bad_entry, entry)) for name, entry in BAD_ENTRIES.items()}
    doors |= {"token-bad-entry-alerts": Door(bad_entry_alerts), "token-expired": Door(expired_token)}
    doors |= {"body-before-token": Door(body_before_token), "body-over-the-limit": Door(large_body)}
    doors |= {"half-headers": Door(half_requests, beside=True), "half-bodies": Door(half_bodies, beside=True)}
    doors |= {"half-answers": Door(half_answers, beside=True), "header-over-the-limit": Door(large_header)}
    doors |= {"requests-at-once": Door(pipelined)}
    doors |= {"locked-row": Door(locked_row), "all-connections": Door(all_connections)}
    doors |= {"stranger-hammers": Door(stranger_hammers), "worker-hammers": Door(worker_hammers)}
    doors |= {"made-up-tokens": Door(made_up_tokens)}
    doors |= {"made-up-sources": Door(made_up_sources), "other-source-removed": Door(remove_source)}
    doors |= {"made-up-claims": Door(made_up_claims), "unknown-host": Door(unknown_host)}
    doors |= {name: Door(script) for name, script in REACHED.items()}
    return doors | {"nul-in-text": Door(nul_in_text), "nul-in-path": Door(nul_in_path)}


DOORS: Final = _doors()
