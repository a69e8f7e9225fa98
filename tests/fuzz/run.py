"""Fuzzing of one service: sends requests one after the other to its app, and judges each answer."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from tests.fuzz.cases import WORKER_TOKEN, Case, Cases
from tests.fuzz.judge import Answer, mistakes
from tests.fuzz.worlds import World

DOCUMENTS: Final = Path(__file__).parents[2] / "contracts/openapi"
VALUES_MAX: Final = 12
# Fields of answers that later requests name together, under the names that they have there.
HARVESTED: Final[list[dict[str, str]]] = [
    {"lease_id": "lease_id", "fencing_token": "fencing_token"},
    {"worker_id": "worker_id", "token": WORKER_TOKEN},
    {"digest": "confirm"},
    {"name": "name", "owner": "owner", "lastupdate": "lastupdate"},
    {"task_id": "task_id", "claim_seconds": "claim_seconds"},
]
# The state of a restored database is for a person to confirm; until then agents get a 503.
CONFIRM: Final = """
UPDATE incarnation SET requested = NULL;
DELETE FROM launch_stop WHERE scope = 'restore'"""
RESTORED: Final = "/restored"


class Report(msgspec.Struct):
    """Result of fuzzing a service: answers by class of status, refusals by 500, and what was wrong."""

    service: str
    answers: Counter[int] = msgspec.field(default_factory=Counter)
    refused_by_500: int = 0
    found: list[str] = msgspec.field(default_factory=list)

    @property
    def errors(self) -> int:
        return self.answers[5]

    def __str__(self) -> str:
        accepted, refused = self.answers[2], self.answers[4]
        line = f"{self.service}: {self.answers.total()} requests, {accepted} accepted, {refused} refused"
        return line + f", {self.refused_by_500} of them by 500, as its clients expect" * bool(self.refused_by_500)


def document(service: str) -> dict[str, Any]:
    """Committed OpenAPI document of a service."""
    loaded: dict[str, Any] = json.loads((DOCUMENTS / f"{service}.json").read_text())
    return loaded


async def fuzz(world: World, *, seed: int, number: int) -> Report:
    """Send so many requests to a service."""
    cases = Cases(
        document(world.service),
        Random(f"{seed} {world.service}"),
        world.known,
        authorization=world.authorization,
        start=world.start,
        fixed=world.fixed,
        skipped=world.skipped,
    )
    report = Report(world.service)
    await world.rows.changed()
    for case in cases.take(number):
        answer = await send(world.app, case)
        meaning = world.meaning(case, answer)
        report.answers[meaning // 100] += 1
        report.refused_by_500 += meaning // 100 == 4 and answer.status >= 500
        wrong = mistakes(case, answer, meaning)
        changed = await world.rows.changed()
        if meaning >= 400 and changed:
            wrong.append(f"the refused request has changed rows: {', '.join(changed)}")
        if wrong:
            report.found.append(f"{world.service}: {'; '.join(wrong)}\n  {case}\n  {answer.body[:300]!r}")
        if answer.status < 300:
            harvest(world.known, answer)
            if case.operation.path == RESTORED:
                await confirm(world)
                await world.rows.changed()
    return report


async def confirm(world: World) -> None:
    assert world.database is not None
    for statement in CONFIRM.split(";"):
        if world.service == "provisioner" or "launch_stop" not in statement:
            await world.database.execute(statement)


def harvest(known: dict[str, list[dict[str, Any]]], answer: Answer) -> None:
    """Keep what an answer names for later requests."""
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    for found in _objects(msgspec.json.decode(answer.body) if is_json else None):
        for names in HARVESTED:
            if all(found.get(name) for name in names):
                things = known.setdefault(next(iter(names)), [])
                things.append({field: found[name] for name, field in names.items()})
                del things[:-VALUES_MAX]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(inner)


async def send(app: Any, case: Case) -> Answer:
    """Send a request to an ASGI app, as a server would pass it on."""
    path, _, query = case.path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": case.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value) for name, value in case.headers],
        "client": ("127.0.0.1", 1),
        "server": ("fuzz", 80),
        "root_path": "",
        "state": {},
    }
    parts = [{"type": "http.request", "body": case.body, "more_body": False}]
    status, headers, body = 0, {}, b""

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await asyncio.Event().wait()  # the client stays connected
        raise AssertionError

    async def answer(message: dict[str, Any]) -> None:
        nonlocal status, headers, body
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            body += message.get("body", b"")

    try:
        await app(scope, receive, answer)
    except Exception as error:  # raised again after it was answered; without an answer the server gives a 500
        if not status:
            return Answer(500, {}, repr(error).encode())
    return Answer(status, headers, body)
