"""The requests of `make fuzz`, and its own judgement."""

from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_simulator.facts import DemandSet, Reply, Terminated
from slipway_simulator.ledger import Ledger
from tests.fuzz.__main__ import REQUESTS, shares
from tests.fuzz.cases import Case, Cases, Operation, encoded, operations
from tests.fuzz.judge import Answer, Facts, Rows, mistakes
from tests.fuzz.run import DOCUMENTS, document, fuzz, send
from tests.fuzz.worlds import WORLDS, of_boskos
from tests.support.cloud import START
from tests.support.provisioner import Provisioner, provisioner_on

EVENTS: Final = "application/cloudevents+json"
REFUSED: Final[dict[str, Any]] = {"4XX": {"content": {"application/problem+json": {}}}}
OPERATION: Final = Operation("GET", "/", {}, (), {"200": {"content": {"application/json": {}}}} | REFUSED)
CASE: Final = Case(OPERATION, "GET", "/", [], b"", "")
IS_JSON: Final = [("content-type", b"application/json")]
JSON, PROBLEM = {"content-type": "application/json"}, {"content-type": "application/problem+json; charset=utf-8"}


@pytest.mark.parametrize("service", WORLDS)
async def test_no_request_is_answered_with_an_error_of_the_server(
    service: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Every operation many times, valid or broken. Answers are as documented, and refusals change nothing."""
    number = shares(REQUESTS)[service]
    async with WORLDS[service](postgres, tmp_path) as world:
        report = await fuzz(world, seed=1, number=number)
    assert report.found == []
    assert report.errors == 0
    assert report.answers.total() == number
    assert report.answers[2]
    assert report.answers[4]


@pytest.mark.parametrize(
    ("status", "headers", "body", "found"),
    [
        (200, JSON, b"{}", []),
        (404, PROBLEM, b'{"type": "urn:x", "title": "t", "status": 404}', []),
        (500, JSON, b"{}", ["answered 500", "status 500 is not documented"]),
        (201, JSON, b"{}", ["status 201 is not documented"]),
        (404, JSON, b"{}", ["content type 'application/json' is not documented for 404"]),
        (404, PROBLEM, b'{"type": "urn:x", "title": "t", "status": 409}', ["the problem does not say what it is"]),
        (422, PROBLEM, b'{"type": "urn:x", "title": "t", "status": 422}', ["the problem does not say what is wrong"]),
    ],
)
def test_answers_that_are_not_documented_are_found(
    status: int, headers: dict[str, str], body: bytes, found: list[str]
) -> None:
    wrong = mistakes(CASE, Answer(status, headers, body), status)
    assert len(wrong) == len(found)
    assert all(map(str.startswith, wrong, found))


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> Any:
    async with provisioner_on(postgres) as provisioner:
        yield provisioner


async def test_changed_rows_are_found(provisioner: Provisioner) -> None:
    """Those of committed transactions only, once each."""
    database = provisioner.database
    rows = Rows(database)
    assert await rows.changed()
    assert await rows.changed() == []
    async with database.acquire() as db:
        transaction = db.transaction()
        await transaction.start()
        await db.execute("INSERT INTO gap (topic, partition, kind, detail) VALUES ('t', 1, 'k', 'd')")
        await transaction.rollback()
        assert await rows.changed() == []
        await db.execute("INSERT INTO gap (topic, partition, kind, detail) VALUES ('t', 1, 'k', 'd')")
    (changed,) = await rows.changed()
    assert changed.startswith("gap")
    assert await rows.changed() == []


async def test_refusals_that_change_rows_are_found(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Here an app writes a row before each answer."""
    async with WORLDS["weight-calculator"](postgres, tmp_path) as world:

        async def writing(*given: Any) -> None:
            assert world.database is not None
            await world.database.execute("INSERT INTO gap (topic, partition, kind, detail) VALUES ('t', 1, 'k', 'd')")
            await world.app(*given)

        report = await fuzz(world._replace(app=writing), seed=1, number=20)
    assert report.answers[4]
    assert (
        len([line for line in report.found if "the refused request has changed rows: gap" in line]) == report.answers[4]
    )


def test_requests_depend_on_the_seed_alone() -> None:
    """They reach every operation, and are valid and broken in many ways."""
    made = [
        [
            case
            for service in WORLDS
            for case in Cases(document(service), Random(seed), {}, authorization="t", start=START).take(200)
        ]
        for seed in (1, 1, 2)
    ]
    assert made[0] == made[1] != made[2]
    named = {(case.operation.method, case.operation.path) for case in made[0]}
    assert named == {(one.method, one.path) for service in WORLDS for one in operations(document(service))}
    wrong = [case.wrong for case in made[0]]
    assert wrong.count("") > len(wrong) // 4
    assert {"token", "body", "header", "parameter"} <= {one.partition(" ")[0] for one in wrong}


def test_every_committed_document_has_its_world() -> None:
    assert {path.stem for path in DOCUMENTS.glob("*.json")} == set(WORLDS)


async def test_events_in_structured_mode(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Every operation that takes events gets valid and broken ones, and accepts some."""
    taking = {(service, one.path) for service in WORLDS for one in operations(document(service)) if EVENTS in one.body}
    assert taking == {("weight-calculator", "/signals")}
    async with WORLDS["weight-calculator"](postgres, tmp_path) as world:
        made = Cases(
            document(world.service), Random(1), world.known, authorization=world.authorization, start=world.start
        )
        events = [
            case
            for case in made.take(1_500)
            if ("content-type", EVENTS.encode()) in case.headers and case.path.startswith("/signals")
        ]
        answers = [await send(world.app, case) for case in events]
    accepted = [case.wrong for case, answer in zip(events, answers, strict=True) if answer.status == 202]
    refused = [case.wrong for case, answer in zip(events, answers, strict=True) if 400 <= answer.status < 500]
    assert "" in accepted
    assert len(set(refused)) >= 3
    assert len(accepted) + len(refused) == len(answers)


@pytest.mark.parametrize(
    ("path", "status", "body", "meaning"),
    [
        ("/acquire?type=a&request_id=r", 404, b"no a is free and not owned\n", 202),
        ("/acquire?type=a", 404, b"no a is free and not owned\n", 404),
        ("/acquire?type=a&request_id=r", 404, b'resource type "a" does not exist\n', 404),
        ("/lease/acquire?type=a", 500, b"not acquired within 0 s: others are ahead\n", 202),
        ("/lease/acquire?type=a", 500, b"9 of a can never be acquired: only 6 exist\n", 409),
        ("/lease/acquire?type=a", 500, b"internal error, see the lease-broker's log\n", 500),
        ("/lease/release", 500, b'resource "a" does not exist\nReleased: none\n', 409),
        ("/lease/release", 500, b'resource "a" does not exist\nReleased: b\n', 207),
        ("/lease/release", 500, b"internal error, see the lease-broker's log\n", 500),
        ("/release?name=a", 500, b"Released: none\n", 500),
    ],
)
def test_meaning_of_answers_of_boskos(path: str, status: int, body: bytes, meaning: int) -> None:
    assert of_boskos(CASE._replace(path=path), Answer(status, {}, body)) == meaning


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/tasks", b'{"pool_id": "\\ud800", "duration_seconds": 1}'),
        ("POST", "/tasks", b'{"pool_id": "linux", "duration_seconds": 1e999}'),
        ("POST", "/tasks", b'{"pool_id": "linux", "duration_seconds": 1, "at": [Infinity]}'),
        ("PUT", "/demand/linux", b'{"pending": 1' + b"0" * 400 + b"}"),
        ("POST", "/faults", b'{"name": "zone-b", "until_seconds": NaN}'),
    ],
)
async def test_values_that_no_ledger_can_record(
    method: str, path: str, body: bytes, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    async with WORLDS["simulator"](postgres, tmp_path) as world:
        await world.rows.changed()
        answer = await send(world.app, CASE._replace(method=method, path=path, body=body, headers=IS_JSON))
        assert answer.status == 422
        assert await world.rows.changed() == []


async def test_facts_of_requests_are_changes(tmp_path: Path) -> None:
    """Facts that a simulator records by itself, or of every call, are none. Each is read once, since the facts of a
    hundred thousand tasks, read again after each request, took minutes."""
    ledger = Ledger(tmp_path / "ledger")
    by_itself = Terminated(at=1.0, instance_id="i-1", account="a", by="self")
    with ledger.path.open("rb") as lines:
        facts = Facts(lines)
        ledger.append([Reply(at=1.0, call_id="call-1", account="a", code="QuotaExceeded"), by_itself])
        assert await facts.changed() == []
        ledger.append([by_itself, Terminated(at=1.0, instance_id="i-1", account="a", by="api")])
        ledger.append([DemandSet(at=1.0, pool_id="linux", pending=3)])
        assert await facts.changed() == ["DemandSet", "Terminated"]
        assert lines.tell() == ledger.size_bytes
        assert await facts.changed() == []
    ledger.close()


def test_bodies_are_written_as_they_are_meant() -> None:
    assert encoded({"a": "@raw@nan", "b": "\0é"}, escaped=False) == '{"a": NaN, "b": "\\u0000é"}'.encode()
    assert encoded(["\ud800"], escaped=False) == b'["\xed\xa0\x80"]'
