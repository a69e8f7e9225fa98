"""The commands for people, against services that answer from a table: what they ask, say, complete and exit with."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from slipway_client import options
from slipway_client.cli import app
from slipway_client.commands import doctor
from slipway_client.diagnosis import Finding
from slipway_client.http import ADVICE
from slipway_common.clock import monotonic_seconds, utc_now
from tests.answers import (
    ANSWERS,
    CONFIG,
    DECISION,
    ID,
    LEASE_POOL,
    NOWHERE,
    POOL,
    TWIN,
    WHY,
    Services,
    environment,
    served,
    worker,
)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Services, str]]:
    with served() as server:
        yield server


@pytest.fixture
def services(server: tuple[Services, str]) -> Services:
    server[0].told.clear()
    server[0].dead_letters = 0
    return server[0]


@pytest.fixture
def url(server: tuple[Services, str]) -> str:
    return server[1]


def slipway(*arguments: str, url: str = NOWHERE) -> Result:
    return CliRunner().invoke(app, arguments, env=environment(url), catch_exceptions=False)


HOLDS = [
    (("lc", "pause", "zone-a"), "launch-configs/zone-a/pause", {}),
    (("pool", "pause", "linux"), "pools/linux/pause", {}),
    (("stop-launching",), "stop-launching", {"scope": "all", "scope_id": ""}),
    (("stop-launching", "--account", "sim-a"), "stop-launching", {"scope": "account", "scope_id": "sim-a"}),
    (("stop-launching", "--pool", "linux"), "stop-launching", {"scope": "pool", "scope_id": "linux"}),
]


@pytest.mark.parametrize(("command", "path", "target"), HOLDS, ids=[" ".join(hold[0]) for hold in HOLDS])
def test_what_is_held_ends_when_it_was_told_to(
    services: Services, url: str, command: tuple[str, ...], path: str, target: dict[str, str]
) -> None:
    """--for and --until become one time with a zone; without either nothing ends by itself."""
    before = utc_now()
    for_ = slipway(*command, "--reason", "why", "--for", "30m", url=url)
    until = slipway(*command, "--reason", "why", "--until", "2030-01-02T03:04Z", url=url)
    ever = slipway(*command, "--reason", "why", url=url)
    assert [answer.exit_code for answer in (for_, until, ever)] == [0, 0, 0]
    ends = [body.pop("until") for _, body in services.told]
    assert services.told == [(path, {"reason": "why"} | target)] * 3
    assert timedelta() <= datetime.fromisoformat(ends[0]) - before - timedelta(minutes=30) < timedelta(minutes=1)
    assert datetime.fromisoformat(ends[1]) == datetime.fromisoformat("2030-01-02T03:04+00:00")
    assert ends[2] is None
    assert ", until " in for_.stdout
    assert "until somebody ends it" in ever.stdout


@pytest.mark.parametrize(
    "wrong", [("--for", "5m", "--until", "17:30"), ("--for", "soon"), ("--until", "noon"), ("--for", "9999999999d")]
)
def test_wrong_ends_hold_nothing(services: Services, url: str, wrong: tuple[str, ...]) -> None:
    answer = slipway("lc", "pause", "zone-a", "--reason", "why", *wrong, url=url)
    assert (answer.exit_code, answer.stdout, services.told) == (2, "", [])


def test_a_freeze_has_no_end(services: Services, url: str) -> None:
    assert "until somebody unfreezes it" in slipway("pool", "freeze", "linux", "--reason", "why", url=url).stdout
    assert services.told == [("pools/linux/freeze", {"reason": "why"})]
    assert slipway("pool", "freeze", "linux", "--reason", "why", "--for", "5m", url=url).exit_code == 2


def test_a_hold_needs_a_reason(services: Services, url: str) -> None:
    assert slipway("pool", "pause", "linux", url=url).exit_code == 2
    assert slipway("stop-launching", "--account", "a", "--pool", "b", "--reason", "r", url=url).exit_code == 2
    assert services.told == []


def test_what_is_held_goes_on(services: Services, url: str) -> None:
    assert slipway("lc", "resume", "zone-a", "--reason", "done", url=url).stdout == "zone-a is active\n"
    assert slipway("pool", "resume", "linux", "--reason", "done", url=url).stdout == "linux goes on\n"
    assert slipway("pool", "unfreeze", "linux", "--reason", "done", url=url).stdout == "linux goes on\n"
    assert slipway("start-launching", url=url).stdout == "launching goes on everywhere\n"
    assert slipway("start-launching", "--pool", "linux", url=url).stdout == "launching was not stopped in pool linux\n"
    assert [path for path, _ in services.told] == [
        "launch-configs/zone-a/resume",
        "pools/linux/resume",
        "pools/linux/unfreeze",
        "start-launching",
        "start-launching",
    ]


@pytest.mark.parametrize("given", [ID, "3f9a12cd"])
def test_worker_is_named_by_its_id_or_the_end_of_it(services: Services, url: str, given: str) -> None:
    shown = slipway("worker", "show", given, url=url)
    assert (shown.exit_code, shown.stdout.splitlines()[0].split()) == (0, ["id", ID])
    ended = slipway("worker", "terminate", given, "--reason", "hung", url=url)
    assert (ended.exit_code, ended.stdout) == (0, f"{ID} is stopping\n")
    assert services.told == [(f"workers/{ID}/terminate", {"reason": "hung"})]


def test_the_end_of_two_ids_ends_nobody(services: Services, url: str) -> None:
    both = slipway("worker", "terminate", "f9a12cd", "--reason", "hung", url=url)
    none = slipway("worker", "terminate", "abcdef00", "--reason", "hung", url=url)
    assert (both.exit_code, none.exit_code, services.told) == (1, 1, [])
    assert f"f9a12cd is the end of 2 workers: {ID}, {TWIN}" in both.stderr
    assert "none of the newest 1000 workers ends in abcdef00" in none.stderr


UNKNOWN = [
    (["pool", "show", "solaris"], "No such thing: pools/solaris"),
    (["lc", "show", "zone-x"], "No such thing: launch-configs/zone-x"),
    (["worker", "show", TWIN], f"No such thing: workers/{TWIN}"),
    (["decision", "show", "a/b?"], "No such thing: decisions/a/b?\n`slipway pool show POOL` lists a pool's last ones"),
    (["why", "solaris"], "There is no pool and no worker 'solaris'.\n`slipway pool ls` and `slipway worker ls` list"),
]


@pytest.mark.parametrize(("command", "words"), UNKNOWN, ids=[" ".join(command) for command, _ in UNKNOWN])
def test_what_is_unknown_is_said_in_words(url: str, command: list[str], words: str) -> None:
    answer = slipway(*command, url=url)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr.startswith(words)


def test_texts_of_others_do_not_command_the_terminal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a refusal nor in sentences."""
    refused = slipway("pool", "show", "a\x1b[2J\rb", url=url)
    assert (refused.exit_code, refused.stderr) == (1, "No such thing: pools/a�[2J�b\n")
    monkeypatch.setitem(ANSWERS, f"workers/{ID}", worker(ID, account_id="a\x1b[2J\r\nb"))
    told = slipway("why", ID, url=url).stdout
    assert "zone-a (account a�[2J��b)." in told
    assert all(line.isprintable() for line in told.split("\n"))


def test_doctor_s_findings_do_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._tell([Finding("warn", "alerts", "a\x1b[2J\r\nb", "c\x9bd")])
    assert capsys.readouterr().out.split("\n") == ["warn  alerts  a�[2J��b", " " * 14 + "do: c�d", ""]


def test_a_token_is_asked_for_where_nobody_sees_it() -> None:
    """`ps` shows what stands on a command line: that comes last."""
    advice = ADVICE["no-token"]
    assert advice.index("SLIPWAY_TOKEN_FILE") < advice.index(" SLIPWAY_TOKEN ") < advice.index("--token")


TABLES = [
    (["pool", "ls"], ["linux", "enforce", "0–60", "9", "2", "min", "3", "12", "10", "2"]),
    (["lc", "ls"], ["zone-a", "active", "open", "0.5", "3", "4", "50", "6", "sim-a"]),
    (
        ["lease", "pools"],
        [
            "sim-a",
            "shadow",
            "45",
            "pinned",
            "40",
            "2",
            "3",
            "s",
            "30",
            "4",
            "s",
            "lease",
            f"{ID}:",
            "8",
            "units",
            "free",
        ],
    ),
]


@pytest.mark.parametrize(("command", "row"), TABLES, ids=[" ".join(command) for command, _ in TABLES])
def test_tables_are_for_people_and_json_has_everything(url: str, command: list[str], row: list[str]) -> None:
    _, line = slipway(*command, url=url).stdout.splitlines()
    assert line.split() == row
    assert (
        json.loads(slipway(*command, "-o", "json", url=url).stdout)
        == {"pool ls": [POOL], "lc ls": [CONFIG], "lease pools": [LEASE_POOL]}[" ".join(command)]
    )


def test_shown_whole(url: str) -> None:
    """A pool with its decisions, a config with windows and failures, a decision with those who lost."""
    pool = slipway("pool", "show", "linux", url=url).stdout
    assert "oldest wait    2 min" in pool
    assert f"{DECISION}         2  2 needed" in pool
    config = slipway("lc", "show", "zone-a", url=url).stdout
    assert "settings.disk gb  40" in config
    (boot,) = (line.split() for line in config.splitlines() if line.startswith("boot"))
    assert boot == ["boot", "1", "2", "9", "0.75"]
    assert f"{ID}  InsufficientCapacity" in config
    decision = slipway("decision", "show", DECISION, url=url).stdout
    (lost,) = (line.split() for line in decision.splitlines() if line.startswith("zone-b"))
    assert lost == ["zone-b", "0.4", "0", "-", "0", "the", "boot", "window", "is", "full"]
    assert json.loads(slipway("pool", "show", "linux", "-o", "json", url=url).stdout)["decisions"] == [WHY]


def test_why_asks_for_what_it_tells(url: str) -> None:
    of_pool = slipway("why", "linux", url=url).stdout.splitlines()
    assert of_pool[0].startswith("Pool linux wants 12 workers")
    assert "  zone-b got nothing: the boot window is full (weight 0.4, room for 0)." in of_pool
    for given in (ID, "3f9a12cd"):
        of_worker = slipway("why", given, url=url).stdout.splitlines()
        assert of_worker[0] == f"Worker {ID} of pool linux is running on zone-a (account sim-a)."
        assert "  zone-b got nothing: the boot window is full (weight 0.4, room for 0)." in of_worker


def test_doctor_ends_in_time_when_nothing_answers() -> None:
    """Three addresses that refuse and a broker that is none; each is named with what to do."""
    began = monotonic_seconds()
    answer = slipway("doctor", url=NOWHERE)
    assert (answer.exit_code, monotonic_seconds() - began < 30) == (3, True)
    told = answer.stdout.splitlines()
    assert [line.split()[:2] for line in told[::2]] == [
        ["FAIL", "provisioner"],
        ["FAIL", "weight-calculator"],
        ["FAIL", "lease-broker"],
        ["FAIL", "kafka"],
    ]
    assert all(line.strip().startswith("do: start it, or say where it is: --") for line in told[1::2])


@pytest.mark.parametrize(
    "wrong", [("--topic", "worker.birth"), ("--since", "soon"), ("--since", "5m", "--beginning"), ("-n", "-1")]
)
def test_events_tail_refuses_what_it_cannot_mean(wrong: tuple[str, ...]) -> None:
    answer = slipway("events", "tail", *wrong)
    assert (answer.exit_code, answer.stdout) == (2, "")


def test_events_tail_without_kafka_says_what_to_do() -> None:
    answer = slipway("events", "tail")
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr.startswith("Kafka at 127.0.0.1:1 does not answer: ")
    assert "--kafka or KAFKA says where it is" in answer.stderr


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, (*path, name))


EVERY = list(commands(get_command(app)))


@pytest.mark.parametrize("path", EVERY, ids=[" ".join(path) or "slipway" for path in EVERY])
def test_help_says_what_a_command_is_for_with_an_example(path: tuple[str, ...]) -> None:
    answer = slipway(*path, "--help")
    assert answer.exit_code == 0
    assert len(answer.stdout.splitlines()) > 3
    is_group = any(longer[: len(path)] == path for longer in EVERY if len(longer) > len(path))
    if not is_group or not path:
        assert " ".join(["slipway", *path]) in answer.stdout.split("Example", 1)[1]


def complete(words: str, url: str) -> list[str]:
    """What bash is offered for the last of `words`, as it asks for it."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1), "_SLIPWAY_COMPLETE": "complete_bash"}
    command = [sys.executable, "-c", "from slipway_client.cli import app; app(prog_name='slipway')"]
    made = subprocess.run(
        command, env=dict(os.environ) | environment(url) | asked, capture_output=True, text=True, timeout=60, check=True
    )
    assert made.stderr == ""
    return made.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("slipway pool show ", ["linux"]),
        ("slipway lc pause z", ["zone-a"]),
        ("slipway lc pause x", []),
        ("slipway why ", ["linux", ID, TWIN]),
        ("slipway worker ls --state sta", ["starting"]),
        ("slipway lease ls --pool ", ["sim-a"]),
        ("slipway events tail --topic al", ["alert"]),
    ],
)
def test_completion_offers_what_there_is(url: str, words: str, offered: list[str]) -> None:
    assert complete(words, url) == offered


def test_completion_is_silent_when_nobody_answers() -> None:
    assert complete("slipway pool show ", NOWHERE) == []
    assert options.COMPLETION_SECONDS <= 1


def test_completion_is_installed_by_the_shell_s_own_way() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "from slipway_client.cli import app; app(prog_name='slipway')", "--show-completion"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=dict(os.environ) | {"SHELL": "/bin/bash"},
    )
    assert "complete" in shown.stdout
    assert "_SLIPWAY_COMPLETE" in shown.stdout


def test_version() -> None:
    assert slipway("--version").stdout == "slipway 0.1.0\n"


def test_starting_imports_nothing_that_only_some_commands_need() -> None:
    """`slipway` answers at once: what asks, draws, reads Kafka or checks a file is imported by what needs it."""
    code = "import slipway_client.cli, sys; print(*sys.modules)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    heavy = {"httpx2", "rich", "aiokafka", "pydantic", "yaml", "fastapi", "msgspec", "slipway_common.declaration"}
    assert heavy & set(made.stdout.split()) == set()
