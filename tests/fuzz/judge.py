"""Judgement of answers: no error of the server, what the document promises, and refusals that have changed nothing.

Nothing of a service is its rows; nothing of the simulator are the facts that only requests record.
"""

import json
from collections.abc import Mapping
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from slipway_common.database.postgres import Database
from slipway_simulator.facts import (
    DemandSet,
    Fact,
    FaultCleared,
    FaultSet,
    InstanceCreated,
    ScenarioLoaded,
    TaskClaimed,
    TaskEnded,
    TaskRenewed,
    TasksAdded,
    Terminated,
)
from slipway_simulator.ledger import read_on
from tests.fuzz.cases import Case

PROBLEM: Final = "application/problem+json"


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Changes(Protocol):
    """Detects changes of the state of a service."""

    async def changed(self) -> list[str]:
        """Parts that have changed since the last call."""


def mistakes(case: Case, answer: Answer, meaning: int) -> list[str]:
    """Find what is wrong with an answer: its status, whose meaning the API may define, its content type or problem."""
    found = []
    documented = case.operation.responses
    expected = documented.get(str(answer.status), documented.get(f"{answer.status // 100}XX"))
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if meaning >= 500:
        found.append(f"answered {answer.status}")
    if expected is None:
        found.append(f"status {answer.status} is not documented")
    elif kind not in expected.get("content", [""]):
        found.append(f"content type {kind!r} is not documented for {answer.status}")
    if kind == PROBLEM and (wrong := _wrong_problem(answer)):
        found.append(wrong)
    return found


def _wrong_problem(answer: Answer) -> str:
    body: Any = json.loads(answer.body)
    if body.get("status") != answer.status or not body.get("title") or not str(body.get("type", "")).startswith("urn:"):
        return f"the problem does not say what it is: {answer.body[:200]!r}"
    if answer.status == 422 and not body.get("detail"):
        return "the problem does not say what is wrong with the request"
    return ""


TABLES: Final = """
SELECT format('SELECT %L || count(*) || coalesce(sum(hashtextextended(t::text, 0)), 0) AS part FROM %I t', tablename,
    tablename)
FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1"""
NEWEST: Final = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"


class Rows(Changes):
    """All rows of a service, as a digest. It is computed only when a transaction could have changed one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = ""
        self._newest = ""
        self._digest: list[str] = []

    async def changed(self) -> list[str]:
        if (newest := await self._database.fetchval(NEWEST)) == self._newest:
            return []
        if not self._query:
            tables = [row[0] for row in await self._database.fetch(TABLES)]
            self._query = " UNION ALL ".join(tables) + " ORDER BY 1"
        before, self._newest = self._digest, newest
        self._digest = [row["part"] for row in await self._database.fetch(self._query)]
        return sorted(set(self._digest) - set(before))


BY_REQUESTS: Final = (
    ScenarioLoaded,
    TasksAdded,
    DemandSet,
    FaultSet,
    FaultCleared,
    InstanceCreated,
    TaskClaimed,
    TaskRenewed,
)


class Facts(Changes):
    """Facts in the ledger of a simulator that only requests record. Its machines and its tasks record others at any
    time, and every create call is recorded, refused or not."""

    def __init__(self, ledger: BinaryIO) -> None:
        self._ledger = ledger

    async def changed(self) -> list[str]:
        return sorted({type(fact).__name__ for fact in read_on(self._ledger) if _by_request(fact)})


def _by_request(fact: Fact) -> bool:
    match fact:
        case Terminated():
            return fact.by != "self"
        case TaskEnded():
            return fact.exit_code is not None
    return isinstance(fact, BY_REQUESTS)
