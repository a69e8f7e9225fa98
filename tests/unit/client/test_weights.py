"""`slipway weights` and `slipway signal`, against services that answer from a table."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from slipway_client import moments
from slipway_client.cli import app
from slipway_client.commands import weights
from slipway_client.options import now
from tests.answers import ANSWERS, ID, Services, environment, served

EXAMPLE = Path(__file__).parents[3] / "contracts/examples/io.slipway.weight.changed.v1.json"
RECORD: dict[str, Any] = json.loads(EXAMPLE.read_text())["data"] | {
    "closed_since": "2026-08-01T14:03:07.123456Z",
    "signals": ["degraded 0.5 by page (slow)", "down by page (dark)"],
}
SIGNAL = {
    "source": "page",
    "kind": "degraded",
    "target_kind": "zone",
    "target_id": "b",
    "value": 0.5,
    "reason": "slow",
    "since": "2026-08-01T14:03:07Z",
    "until": "2026-08-01T14:33:07Z",
    "configs": ["zone-b", "win-b"],
}
REFUSED = {
    "at": "2026-08-01T14:03:07Z",
    "source": "page",
    "kind": "up",
    "target_kind": "zone",
    "target_id": "b",
    "why": "kind: unknown kind 'up'",
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Services, str]]:
    with served() as server:
        yield server


@pytest.fixture
def services(server: tuple[Services, str], monkeypatch: pytest.MonkeyPatch) -> Services:
    server[0].told.clear()
    monkeypatch.setitem(ANSWERS, "weights", {"items": [RECORD]})
    monkeypatch.setitem(ANSWERS, "signals", {"items": [SIGNAL], "refused": [REFUSED]})
    return server[0]


@pytest.fixture
def url(server: tuple[Services, str]) -> str:
    return server[1]


def slipway(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environment(url), catch_exceptions=False)


def test_weights_in_a_row_each(services: Services, url: str) -> None:
    """With the windows of the three stages, each under its name, and the reason in words."""
    heading, row = slipway("weights", "ls", url=url).stdout.splitlines()
    assert heading.split() == [
        "id",
        "pool",
        "state",
        "weight",
        "health",
        "launch",
        "window",
        "boot",
        "window",
        "claim",
        "window",
        "permit",
        "reason",
    ]
    assert row.split()[:3] == [RECORD["launch_config_id"], RECORD["pool_id"], RECORD["state"]]
    for stage in ("launch", "boot"):
        windows = f"{stage} window"
        end = heading.index(windows) + len(windows)
        assert row[:end].split()[-1] == str(RECORD["stages"][stage]["window"])
    assert row.endswith(RECORD["reason"])
    assert json.loads(slipway("weights", "ls", "-o", "json", url=url).stdout) == [RECORD]


def test_no_weights_of_a_pool_that_nobody_knows(services: Services, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as everywhere; one that is known may have none yet."""
    monkeypatch.setitem(ANSWERS, "weights", {"items": []})
    unknown = slipway("weights", "ls", "--pool", "nope", url=url)
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "No such thing: pools/nope" in unknown.stderr
    assert slipway("weights", "ls", "--pool", "linux", url=url).stdout == "no weights yet\n"


def test_one_weight_with_its_stages_and_what_it_shares(services: Services, url: str) -> None:
    config_id = RECORD["launch_config_id"]
    shown = slipway("weights", "show", config_id, url=url)
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["launch", "config", "id", config_id] in lines
    since = moments.clock(moments.at(RECORD["closed_since"]), now())
    assert ["closed", "since", *since.split()] in lines
    assert any(line == ["signals", *", ".join(RECORD["signals"]).split()] for line in lines)
    assert set(RECORD["stages"]) <= {line[0] for line in lines if line}
    assert all(shared["key"] in shown.stdout for shared in RECORD["shared"])
    assert json.loads(slipway("weights", "show", config_id, "-o", "json", url=url).stdout) == RECORD
    unknown = slipway("weights", "show", "zone-z", url=url)
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "nothing is published of 'zone-z'; `slipway weights ls`" in unknown.stderr


@pytest.mark.parametrize(("ready", "shown"), [(True, "6"), (False, "-")])
def test_a_permit_is_shown_while_it_may_launch(
    services: Services, url: str, monkeypatch: pytest.MonkeyPatch, ready: bool, shown: str
) -> None:
    """In the list and in one weight alike."""
    monkeypatch.setitem(ANSWERS, "weights", {"items": [RECORD | {"probe_permit": 6, "probe_ready": ready}]})
    heading, row = slipway("weights", "ls", url=url).stdout.splitlines()
    end = heading.index("permit") + len("permit")
    assert row[: max(end, row.find(" ", end))].split()[-1] == shown
    told = slipway("weights", "show", RECORD["launch_config_id"], url=url).stdout
    assert ["probe", "permit", shown] in [line.split() for line in told.splitlines()]


def test_a_signal_is_raised_by_a_command(services: Services, url: str) -> None:
    raised = slipway(
        "signal", "raise", "zone", "b", "degraded", "--reason", "slow", "--for", "1h", "--value", "0.4", url=url
    )
    assert (raised.exit_code, raised.stdout.partition(", until")[0]) == (0, "degraded of zone b counts for zone-a")
    ((path, body),) = services.told
    assert datetime.fromisoformat(body.pop("observed_at")).tzinfo is not None
    assert (path, body) == (
        "signals",
        {
            "target_kind": "zone",
            "target_id": "b",
            "kind": "degraded",
            "reason": "slow",
            "ttl_seconds": 3600.0,
            "value": 0.4,
        },
    )


@pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        ("zone b", "recovered", "takes back what its source has said before, and zone-a is probed at once"),
        ("config zone-a", "resume_request", "is passed on: what its source has paused goes on"),
        ("config zone-a", "pause_request", "is passed on: nothing launches there, until "),
        (f"worker {ID}", "spot_interruption", "is passed on: the worker leaves after the task that it has"),
    ],
)
def test_what_happens_by_a_signal_is_said_for_its_kind(
    services: Services, url: str, target: str, kind: str, words: str
) -> None:
    raised = slipway("signal", "raise", *target.split(), kind, "--reason", "slow", url=url)
    assert raised.stdout.startswith(f"{kind} of {target} {words}")
    assert ("until" in raised.stdout) == words.endswith("until ")


def test_a_signal_names_a_worker_that_there_is(services: Services, url: str) -> None:
    """By its last digits as everywhere; of one that nobody knows nothing is sent."""
    raised = slipway("signal", "raise", "worker", ID[-8:], "spot_interruption", "--reason", "r", url=url)
    assert (raised.exit_code, services.told.pop()[1]["target_id"]) == (0, ID)
    unknown = slipway("signal", "raise", "worker", "i-0001", "spot_interruption", "--reason", "r", url=url)
    assert (unknown.exit_code, unknown.stdout, services.told) == (1, "", [])
    assert "No such thing: workers/i-0001" in unknown.stderr


def test_a_signal_that_is_wrongly_said_is_not_sent(services: Services, url: str) -> None:
    for wrong in (("--for", "soon", "--reason", "r"), ()):
        assert slipway("signal", "raise", "zone", "b", "degraded", *wrong, url=url).exit_code == 2
    assert services.told == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("planet b down", "there is no 'planet'; there is config, zone"),
        ("zone b up", "there is no 'up'; there is degraded, down"),
        ("zone b degraded --value nan", "nan is not between 0 and 1"),
        ("zone b degraded --value inf", "inf is not between 0 and 1"),
        ("zone b degraded --value 1.01", "1.01 is not between 0 and 1"),
        ("zone b capacity_hint --value inf", "inf is not a number of starts"),
        ("zone b capacity_hint", "a capacity_hint needs one"),
        ("zone b down --value 0.5", "a down of a zone takes none"),
        (f"worker {ID} spot_interruption --value 0.5", "a spot_interruption of a worker takes none"),
        ("zone b recovered --for 30s", "a recovered is done once it is heard"),
        ("zone b down --for 900d", "900d is more than 24h"),
    ],
)
def test_a_signal_that_cannot_be_is_wrong_usage(services: Services, url: str, words: str, why: str) -> None:
    """And nothing is sent."""
    refused = slipway("signal", "raise", *words.split(), "--reason", "r", url=url)
    assert (refused.exit_code, refused.stdout, services.told) == (2, "", [])
    assert why in " ".join(refused.stderr.replace("│", " ").split())


def test_nobody_is_interrupted_who_has_ended(services: Services, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, f"workers/{ID}", {"id": ID, "state": "stopped"})
    refused = slipway("signal", "raise", "worker", ID, "spot_interruption", "--reason", "r", url=url)
    assert (refused.exit_code, refused.stdout, services.told) == (1, "", [])
    assert f"worker {ID} is stopped: it has no machine" in refused.stderr


def test_what_takes_words_back_has_no_value_and_no_end(
    services: Services, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "signals", {"items": [SIGNAL | {"kind": "recovered", "value": 1.0}], "refused": []})
    assert slipway("signal", "ls", url=url).stdout.splitlines()[1].split()[4:6] == ["-", "-"]


def test_signals_that_count_and_those_that_were_refused(
    services: Services, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = slipway("signal", "ls", url=url).stdout.splitlines()
    assert listed[1].split()[:5] == ["page", "degraded", "zone", "b", "0.5"]
    assert listed[3] == "refused"
    assert listed[5].endswith("kind: unknown kind 'up'")
    monkeypatch.setitem(ANSWERS, "signals", {"items": [], "refused": []})
    assert slipway("signal", "ls", url=url).stdout == "no signals\n"


def test_replaying_without_the_core_says_what_to_install(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(weights, "CORES", "slipway.nothing")
    refused = slipway("weights", "replay", "--from", "log.jsonl", url=url)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "install slipway-weight-calculator" in refused.stderr
