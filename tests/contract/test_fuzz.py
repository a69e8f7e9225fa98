"""A short run of `make fuzz`, and its own judgement."""

from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.fuzz.cases import Case, Cases, Operation, encoded, operations
from tests.fuzz.judge import Answer, Rows, mistakes
from tests.fuzz.run import document, fuzz
from tests.fuzz.worlds import WORLDS
from tests.support.provisioner import START, Provisioner, provisioner_on

ROUNDS: Final = 2
REFUSED: Final[dict[str, Any]] = {"4XX": {"content": {"application/problem+json": {}}}}
OPERATION: Final = Operation("GET", "/", {}, (), {"200": {"content": {"application/json": {}}}} | REFUSED)
CASE: Final = Case(OPERATION, "GET", "/", [], b"", "")
JSON, PROBLEM = {"content-type": "application/json"}, {"content-type": "application/problem+json; charset=utf-8"}


@pytest.mark.parametrize("service", WORLDS)
async def test_no_request_is_answered_with_an_error_of_the_server(
    service: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Every operation twice, valid or broken. Answers are as documented, and refusals change no row."""
    number = ROUNDS * len(operations(document(service)))
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
    wrong = mistakes(CASE, Answer(status, headers, body))
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
            for case in Cases(document(service), Random(seed), {}, token="t", start=START).take(200)
        ]
        for seed in (1, 1, 2)
    ]
    assert made[0] == made[1] != made[2]
    named = {(case.operation.method, case.operation.path) for case in made[0]}
    assert named == {(one.method, one.path) for service in WORLDS for one in operations(document(service))}
    wrong = [case.wrong for case in made[0]]
    assert wrong.count("") > len(wrong) // 4
    assert {"token", "body", "header", "parameter"} <= {one.partition(" ")[0] for one in wrong}


def test_bodies_are_written_as_they_are_meant() -> None:
    assert encoded({"a": "@raw@nan", "b": "\0é"}, escaped=False) == '{"a": NaN, "b": "\\u0000é"}'.encode()
    assert encoded(["\ud800"], escaped=False) == b'["\xed\xa0\x80"]'
