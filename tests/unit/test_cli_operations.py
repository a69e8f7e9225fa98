"""`slipway dlq` and `slipway topics`: requests to the named service, and output."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from slipway_client.cli.main import app
from slipway_common.web import problem
from slipway_common.web.problem import Problem
from tests.support.recorded import DEAD_LETTER, NOWHERE, STOPPED_PARTITION, TOPIC, serving


@pytest.fixture(scope="module")
def asked() -> list[tuple[str, Any]]:
    return []


@pytest.fixture(scope="module")
def url(asked: list[tuple[str, Any]]) -> Iterator[str]:
    """A service with one dead letter and one stopped partition."""
    service = FastAPI()
    problem.install(service)

    @service.get("/dead-letters")
    async def dead() -> dict[str, Any]:
        return {"items": [DEAD_LETTER]}

    @service.get("/dead-letters/{topic}/{partition}/{offset}")
    async def show(topic: str, partition: int, offset: int) -> dict[str, Any]:
        place = {"topic": topic, "partition": partition, "offset": offset, "undecoded": False}
        return DEAD_LETTER | place | {"key": None, "value": b"\xff\n".hex(), "headers": [["ce_id", b"1".hex()]]}

    @service.post("/dead-letters/{how}")
    async def settle(how: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append((how, body))
        if body["offset"] != 7:
            raise Problem(404, "not-dead", "There is no such dead letter", f"{TOPIC}/3/{body['offset']}")
        return {"applied": 2, "remaining": 0, "reason": ""}

    @service.get("/positions/stopped")
    async def stopped() -> dict[str, Any]:
        return {"items": [STOPPED_PARTITION]}

    @service.post("/positions/adopt")
    async def adopt(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(("adopt", body))
        return {"topic": body["topic"], "partition": body["partition"], "next_offset": 41}

    @service.post("/positions/adopt-all")
    async def adopt_all(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(("adopt-all", body))
        place = {name: STOPPED_PARTITION[name] for name in ("topic", "partition")}
        return {"items": [] if body["at"] == "end" else [place | {"next_offset": 0}]}

    with serving(service) as url:
        yield url


def slipway(url: str, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["--lease-broker", url, "--token", "t", *arguments])


def test_dead_letters_are_listed_settled_and_missed(url: str, asked: list[tuple[str, Any]]) -> None:
    listed = slipway(url, "dlq", "ls", "lease-broker")
    assert (listed.exit_code, "no lease pool" in listed.stdout) == (0, True)
    replayed = slipway(url, "dlq", "replay", "lease-broker", TOPIC, "3", "7")
    assert (replayed.exit_code, replayed.stdout) == (0, "2 records applied, 0 remaining\n")
    assert asked[-1] == ("replay", {"topic": TOPIC, "partition": 3, "offset": 7})
    missed = slipway(url, "dlq", "drop", "lease-broker", TOPIC, "3", "8")
    assert (missed.exit_code, "no such dead letter" in missed.stderr) == (1, True)


def test_a_dead_letter_is_shown(url: str) -> None:
    """As lines for people, or its value as it is."""
    shown = slipway(url, "dlq", "show", "lease-broker", TOPIC, "3", "7")
    assert (shown.exit_code, shown.stdout.splitlines()[0][: len(TOPIC) + 14]) == (0, f"{TOPIC}/3 at offset 7")
    assert "header   ce_id: 1\n" in shown.stdout
    raw = slipway(url, "dlq", "show", "lease-broker", TOPIC, "3", "7", "--raw")
    assert (raw.exit_code, raw.stdout_bytes) == (0, b"\xff\n")


def test_a_stopped_partition_is_listed_and_adopted(url: str, asked: list[tuple[str, Any]]) -> None:
    listed = slipway(url, "topics", "stopped", "lease-broker")
    assert (listed.exit_code, "another cluster" in listed.stdout) == (0, True)
    adopted = slipway(url, "topics", "adopt", "lease-broker", TOPIC, "3", "--at", "begin")
    assert (adopted.exit_code, adopted.stdout) == (0, f"{TOPIC}/3 resumed at offset 41\n")
    assert asked[-1] == ("adopt", {"topic": TOPIC, "partition": 3, "at": "begin"})


@pytest.mark.parametrize(("at", "printed"), [("begin", "resumed at offset 0\n"), ("end", "no partition is stopped\n")])
def test_all_stopped_partitions_are_adopted(url: str, asked: list[tuple[str, Any]], at: str, printed: str) -> None:
    """In one request, so that the right to do so is needed although nothing is stopped."""
    adopted = slipway(url, "topics", "adopt", "lease-broker", "--all", "--at", at)
    assert (adopted.exit_code, adopted.stdout.endswith(printed)) == (0, True)
    assert asked[-1] == ("adopt-all", {"at": at})


@pytest.mark.parametrize("command", [("topics", "stopped"), ("dlq", "ls")])
def test_services_that_answer_are_shown_although_others_do_not(url: str, command: tuple[str, ...]) -> None:
    """The command fails nevertheless, and names them."""
    others = ["--provisioner", NOWHERE, "--weight-calculator", NOWHERE]
    shown = CliRunner().invoke(app, ["--lease-broker", url, *others, *command])
    assert (shown.exit_code, TOPIC in shown.stdout) == (1, True)
    assert [name in shown.stderr for name in ("the provisioner at", "the weight-calculator at")] == [True, True]
    assert "the lease-broker at" not in shown.stderr


@pytest.mark.parametrize("command", [("topics", "stopped"), ("dlq", "ls")])
def test_no_list_is_shown_if_no_service_answers(command: tuple[str, ...]) -> None:
    places = ["--provisioner", NOWHERE, "--weight-calculator", NOWHERE, "--lease-broker", NOWHERE]
    shown = CliRunner().invoke(app, [*places, *command])
    assert (shown.exit_code, shown.stdout) == (1, "")


def test_only_services_that_consume_are_taken(url: str) -> None:
    assert slipway(url, "dlq", "ls", "simulator").exit_code == 2
