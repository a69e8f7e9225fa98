"""`slipway weights` and `slipway signal` against stub services."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from slipway_api.events import signal_kinds
from slipway_client.cli.commands import signals
from slipway_client.cli.main import app
from slipway_client.cli.options import now
from slipway_client.view import moments
from tests.support.recorded import ANSWERS, CONFIG_ID, ID, SIGNAL, WEIGHT, Services, environment, served

RECORD: dict[str, Any] = WEIGHT | {
    "tripped_since": "2026-08-01T14:03:07.123456Z",
    "signals": ["degraded 0.5 by page (slow)", "down by page (dark)"],
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Services, str]]:
    with served() as server:
        yield server


@pytest.fixture
def services(server: tuple[Services, str], monkeypatch: pytest.MonkeyPatch) -> Services:
    server[0].received.clear()
    monkeypatch.setitem(ANSWERS, "weights", {"items": [RECORD]})
    return server[0]


@pytest.fixture
def url(server: tuple[Services, str]) -> str:
    return server[1]


def slipway(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environment(url), catch_exceptions=False)


def test_weights_in_a_row_each(services: Services, url: str) -> None:
    """The windows of the three stages, each under its name, and the reason."""
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


def test_weights_of_an_unknown_pool(services: Services, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown pool is refused; a known one may have no weights yet."""
    monkeypatch.setitem(ANSWERS, "weights", {"items": []})
    unknown = slipway("weights", "ls", "--pool", "nope", url=url)
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "no worker pool nope; there is linux" in unknown.stderr
    assert slipway("weights", "ls", "--pool", "linux", url=url).stdout == "no weights yet\n"


def test_one_weight_with_its_stages_and_shared_windows(services: Services, url: str) -> None:
    config_id = RECORD["launch_config_id"]
    shown = slipway("weights", "show", config_id, url=url)
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["launch", "config", "id", config_id] in lines
    since = moments.clock(moments.at(RECORD["tripped_since"]), now())
    assert ["tripped", "since", *since.split()] in lines
    assert any(line == ["signals", *", ".join(RECORD["signals"]).split()] for line in lines)
    assert set(RECORD["stages"]) <= {line[0] for line in lines if line}
    assert all(shared["id"] in shown.stdout for shared in RECORD["shared"])
    assert json.loads(slipway("weights", "show", config_id, "-o", "json", url=url).stdout) == RECORD
    unknown = slipway("weights", "show", "zone-z@3f2c9a", url=url)
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "no weight of launch config zone-z@3f2c9a; `slipway weights ls`" in unknown.stderr


def test_a_name_stands_for_its_current_revision(services: Services, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [RECORD | {"launch_config_id": id_} for id_ in ("zone-a@8b1d00", CONFIG_ID)]
    monkeypatch.setitem(ANSWERS, "weights", {"items": records})
    shown = json.loads(slipway("weights", "show", "zone-a", "-o", "json", url=url).stdout)
    assert shown["launch_config_id"] == CONFIG_ID


@pytest.mark.parametrize(("ready", "shown"), [(True, "6"), (False, "-")])
def test_a_permit_is_shown_while_it_may_launch(
    services: Services, url: str, monkeypatch: pytest.MonkeyPatch, ready: bool, shown: str
) -> None:
    """The list and a single weight show the same."""
    monkeypatch.setitem(ANSWERS, "weights", {"items": [RECORD | {"probe_permit": 6, "probe_ready": ready}]})
    heading, row = slipway("weights", "ls", url=url).stdout.splitlines()
    end = heading.index("permit") + len("permit")
    assert row[: max(end, row.find(" ", end))].split()[-1] == shown
    received = slipway("weights", "show", RECORD["launch_config_id"], url=url).stdout
    assert ["probe", "permit", shown] in [line.split() for line in received.splitlines()]


def test_a_signal_is_raised_by_a_command(services: Services, url: str) -> None:
    raised = slipway(
        "signal", "raise", "zone", "b", "degraded", "--reason", "slow", "--for", "1h", "--value", "0.4", url=url
    )
    assert (raised.exit_code, raised.stdout.partition(" until")[0]) == (
        0,
        "degraded of zone b accepted: counts for zone-a",
    )
    ((path, body),) = services.received
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
        (
            "zone b",
            "recovered",
            "accepted: earlier signals of its source are withdrawn; probed at once if tripped: zone-a",
        ),
        ("config zone-a", "resume_request", "accepted: the pause of its source ends"),
        ("config zone-a", "pause_request", "accepted: pauses launches until "),
        (f"worker {ID}", "spot_interruption", "accepted: the worker drains and leaves after its current task"),
    ],
)
def test_the_effect_of_a_signal_is_printed(services: Services, url: str, target: str, kind: str, words: str) -> None:
    raised = slipway("signal", "raise", *target.split(), kind, "--reason", "slow", url=url)
    assert raised.stdout.startswith(f"{kind} of {target} {words}")
    assert ("until" in raised.stdout) == words.endswith("until ")


def test_a_signal_names_a_worker_that_there_is(services: Services, url: str) -> None:
    """The worker is found by its last digits; for an unknown one nothing is sent."""
    raised = slipway("signal", "raise", "worker", ID[-8:], "spot_interruption", "--reason", "r", url=url)
    assert (raised.exit_code, services.received.pop()[1]["target_id"]) == (0, ID)
    unknown = slipway("signal", "raise", "worker", "i-0001", "spot_interruption", "--reason", "r", url=url)
    assert (unknown.exit_code, unknown.stdout, services.received) == (1, "", [])
    assert "No such thing: workers/i-0001" in unknown.stderr


def test_an_invalid_signal_is_not_sent(services: Services, url: str) -> None:
    for wrong in (("--for", "soon", "--reason", "r"), ()):
        assert slipway("signal", "raise", "zone", "b", "degraded", *wrong, url=url).exit_code == 2
    assert services.received == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("planet b down", "'planet' is not one of config, zone"),
        ("zone b up", f"'up' is not one of {', '.join(signal_kinds.KINDS)}"),
        ("zone b degraded --value nan", "nan is not between 0 and 1"),
        ("zone b degraded --value inf", "inf is not between 0 and 1"),
        ("zone b degraded --value 1.01", "1.01 is not between 0 and 1"),
        ("zone b capacity_hint --value inf", "inf is not a number of starts"),
        ("zone b capacity_hint", "required for a capacity_hint"),
        ("zone b down --value 0.5", "not accepted for a down of a zone"),
        (f"worker {ID} spot_interruption --value 0.5", "not accepted for a spot_interruption of a worker"),
        ("zone b recovered --for 30s", "a recovered takes effect once"),
        ("zone b down --for 900d", "900d is more than 24h"),
    ],
)
def test_a_signal_that_cannot_be_is_wrong_usage(services: Services, url: str, words: str, why: str) -> None:
    """Nothing is sent."""
    refused = slipway("signal", "raise", *words.split(), "--reason", "r", url=url)
    assert (refused.exit_code, refused.stdout, services.received) == (2, "", [])
    assert why in " ".join(refused.stderr.replace("│", " ").split())


def test_every_target_of_the_rules_is_accepted() -> None:
    assert sorted(signals.TARGETS) == sorted(signal_kinds.TARGETS)


def test_a_stopped_worker_is_not_interrupted(services: Services, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, f"workers/{ID}", ANSWERS[f"workers/{ID}"] | {"state": "stopped"})
    refused = slipway("signal", "raise", "worker", ID, "spot_interruption", "--reason", "r", url=url)
    assert (refused.exit_code, refused.stdout, services.received) == (1, "", [])
    assert f"worker {ID} is stopped: it has no instance to interrupt" in refused.stderr


def test_a_recovered_signal_has_no_value_and_no_end(
    services: Services, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "signals", {"items": [SIGNAL | {"kind": "recovered", "value": 1.0}], "refused": []})
    assert slipway("signal", "ls", url=url).stdout.splitlines()[1].split()[4:6] == ["-", "-"]


def test_signals_that_count_and_those_that_were_refused(
    services: Services, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = slipway("signal", "ls", url=url).stdout.splitlines()
    assert listed[1].split()[:5] == ["page", "degraded", "zone", "b", "0.5"]
    assert listed[3] == "refused:"
    assert listed[5].endswith("kind: unknown kind 'up'")
    monkeypatch.setitem(ANSWERS, "signals", {"items": [], "refused": []})
    assert slipway("signal", "ls", url=url).stdout == "no signals\n"
