"""`slipway why`: what an id names, and the facts that are read for it."""

import json
from collections.abc import Iterator
from typing import Final

import pytest
from typer.testing import CliRunner, Result

from slipway_client.cli.main import app
from slipway_client.view import moments
from slipway_common.base.clock import utc_now
from tests.support.recorded import (
    ANSWERS,
    AT,
    CONFIG,
    CONFIG_ID,
    DECISION,
    ID,
    LEASE_POOL,
    NOWHERE,
    POOL,
    RECORDED,
    REFUSALS,
    TWIN,
    environment,
    served,
)
from tests.support.recording import LEASE


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as (_, url):
        yield url


def slipway(*arguments: str, url: str = NOWHERE, broker: str = "") -> Result:
    variables = environment(url) | ({"SLIPWAY_LEASE_BROKER_URL": broker} if broker else {})
    return CliRunner().invoke(app, arguments, env=variables, catch_exceptions=False)


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ("linux", "Pool linux: workers wait for lease pool sim-a: 40 of 45 units held"),
        ("zone-a", f"Launch config {CONFIG_ID}: workers wait for lease pool sim-a: 40 of 45 units held"),
        (CONFIG_ID, f"Launch config {CONFIG_ID}: workers wait for lease pool sim-a: 40 of 45 units held"),
        ("linux-1", "Image linux-1: healthy, no stage of it is tripped."),
        ("image/linux-1", "Image linux-1: healthy, no stage of it is tripped."),
        ("sim-a", "Lease pool sim-a: paced: 40 of 45 units held, 2 units waiting"),
        (ID, f"Worker {ID}: running a task."),
        ("3f9a12cd", f"Worker {ID}: running a task."),
    ],
)
def test_an_id_is_found_by_asking_the_services(url: str, given: str, first: str) -> None:
    answer = slipway("why", given, url=url)
    assert answer.exit_code == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0].startswith(first)
    assert [line.partition(":")[0] for line in lines if line.startswith(("Effect", "Remedy"))] == ["Effect", "Remedy"]


def test_shares_of_the_last_decision_are_listed(url: str) -> None:
    assert "  zone-b@8b1d00 got nothing: the boot window is full (weight 0.4, room for 0)." in (
        slipway("why", "linux", url=url).stdout.splitlines()
    )


def test_a_lease(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = RECORDED[f"leases/{LEASE}"] | {"id": TWIN, "state": "released", "reason": "", "ended_at": AT}
    monkeypatch.setitem(ANSWERS, f"leases/{TWIN}", lease)
    monkeypatch.setitem(ANSWERS, f"leases/{TWIN}/history", {"items": []})
    assert slipway("why", TWIN, url=url).stdout.startswith(f"Lease {TWIN}: released.\n")


def test_json_has_the_sentences_and_the_facts(url: str) -> None:
    answer = json.loads(slipway("why", "linux", "-o", "json", url=url).stdout)
    assert set(answer) == {"kind", "id", "cause", "since", "effect", "remedy", "sentences"}
    assert (answer["kind"], answer["id"]) == ("pool", "linux")
    assert moments.at(answer["since"]) < utc_now()
    assert answer["sentences"][0] == f"Pool linux: {answer['cause']}."
    assert answer["sentences"][2] == f"Effect: {answer['effect']}."


def test_an_ambiguous_id_is_refused_with_its_kinds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "pools", {"items": [POOL, POOL | {"id": "sim-a"}]})
    monkeypatch.setitem(ANSWERS, "launch-configs", {"items": [CONFIG | {"image_revision": "sim-a"}]})
    answer = slipway("why", "sim-a", url=url)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr.splitlines() == [
        "'sim-a' names a pool and an image and a lease pool.",
        "Name the one that you mean with --kind pool or --kind image or --kind lease-pool.",
    ]
    assert slipway("why", "sim-a", "--kind", "lease-pool", url=url).stdout.startswith("Lease pool sim-a: ")


def test_an_unknown_id_is_refused_with_the_lists(url: str) -> None:
    answer = slipway("why", "linux", "--kind", "lease", url=url)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr.startswith("There is no lease 'linux'.\n`slipway pool ls`, ")


def test_without_the_lease_broker_everything_else_is_explained(url: str) -> None:
    assert slipway("why", "linux", url=url, broker=NOWHERE).exit_code == 0
    unknown = slipway("why", "sim-b", url=url, broker=NOWHERE)
    assert unknown.exit_code == 1
    first, _, *problems = unknown.stderr.splitlines()
    assert first == "There is nothing named 'sim-b' in what could be searched."
    assert len(problems) == 1


UNREAD: Final = [
    ("linux", "launch-stops", "launch stops"),
    ("linux", "demand", "its sources of demand"),
    ("linux", "accounts", "its accounts"),
    ("linux", "pools/linux/decisions", "the last decision of pool linux"),
    ("zone-a", "launch-stops", "launch stops"),
    ("linux", "pools/linux/rollback", "what a rollback changes"),
    ("linux-1", "console-outputs", "console output"),
    (ID, f"decisions/{DECISION}", "its decision"),
    (ID, "console-outputs", "console output"),
    (LEASE, f"leases/{LEASE}/history", "its history"),
]


@pytest.mark.parametrize(("subject", "place", "what"), UNREAD)
def test_all_is_explained_but_for_what_cannot_be_read(
    url: str, monkeypatch: pytest.MonkeyPatch, subject: str, place: str, what: str
) -> None:
    """The thing itself is enough for an explanation, which says what it lacks."""
    booting = {"registered_at": None, "state": "starting", "launched_at": AT}
    monkeypatch.setitem(ANSWERS, f"workers/{ID}", ANSWERS[f"workers/{ID}"] | booting)
    if "rollback" in place:
        tripped = {"health_state": "tripped", "tripped_stage": "boot", "tripped_by": "image", "reason": "3 lost"}
        monkeypatch.setitem(ANSWERS, "launch-configs", {"items": [CONFIG | tripped]})
    before = slipway("why", subject, url=url)
    assert (before.exit_code, "Could not read" in before.stdout) == (0, False), before.output
    monkeypatch.setitem(REFUSALS, place.partition("/")[0], "unavailable")
    monkeypatch.delitem(ANSWERS, place)
    answer = slipway("why", subject, "-o", "json", url=url)
    assert answer.exit_code == 0, answer.output
    *sentences, last = json.loads(answer.stdout)["sentences"]
    assert last == f"Could not read {what}: No such thing: {place}."
    assert sentences[0] == before.stdout.splitlines()[0]


def test_the_queue_is_that_of_the_account_s_lease_pool(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not have the name of the account."""
    config = CONFIG | {"lease_pool_id": "starts", "stages": {"launch": {"in_flight": 3, "unfolded": 0, "window": 64}}}
    monkeypatch.setitem(ANSWERS, "launch-configs", {"items": [config]})
    monkeypatch.setitem(ANSWERS, "lease-pools", {"items": [LEASE_POOL, LEASE_POOL | {"id": "starts"}]})
    answer = slipway("why", "linux", url=url).stdout
    assert answer.startswith("Pool linux: workers wait for lease pool starts: 40 of 45 units held, 2 units waiting")
    assert "sim-a" not in answer
