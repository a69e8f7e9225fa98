"""Commands against stub services: requests, output, completion and exit codes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from slipway_api.http.provisioner.workers import WorkerWorkspace
from slipway_client.cli import options
from slipway_client.cli.commands import demand, doctor, workers
from slipway_client.cli.main import app
from slipway_client.transport.http import ADVICE
from slipway_client.view import moments
from slipway_client.view.diagnosis import Finding
from slipway_common.base.clock import monotonic_seconds, utc_now
from tests.support.recorded import (
    ACCOUNT,
    ANSWERS,
    AT,
    CONFIG,
    CONFIG_ID,
    DEAD_LETTER,
    DECISION,
    ID,
    LISTED_ALERT,
    NOWHERE,
    SOURCE,
    TWIN,
    WHY,
    Services,
    environment,
    served,
)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Services, str]]:
    with served() as server:
        yield server


@pytest.fixture
def services(server: tuple[Services, str]) -> Services:
    server[0].received.clear()
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
def test_a_pause_ends_at_the_given_time(
    services: Services, url: str, command: tuple[str, ...], path: str, target: dict[str, str]
) -> None:
    """--for and --until become an end time with a zone; without either there is no end."""
    before = utc_now()
    for_ = slipway(*command, "--reason", "why", "--for", "30m", url=url)
    until = slipway(*command, "--reason", "why", "--until", "2030-01-02T03:04Z", url=url)
    ever = slipway(*command, "--reason", "why", url=url)
    assert [answer.exit_code for answer in (for_, until, ever)] == [0, 0, 0]
    ends = [body.pop("until") for _, body in services.received]
    assert services.received == [(path, {"reason": "why"} | target)] * 3
    assert timedelta() <= datetime.fromisoformat(ends[0]) - before - timedelta(minutes=30) < timedelta(minutes=1)
    assert datetime.fromisoformat(ends[1]) == datetime.fromisoformat("2030-01-02T03:04+00:00")
    assert ends[2] is None
    assert " until " in for_.stdout
    assert "indefinitely" in ever.stdout


@pytest.mark.parametrize(
    "wrong", [("--for", "5m", "--until", "17:30"), ("--for", "soon"), ("--until", "noon"), ("--for", "9999999999d")]
)
def test_an_invalid_end_changes_nothing(services: Services, url: str, wrong: tuple[str, ...]) -> None:
    answer = slipway("lc", "pause", "zone-a", "--reason", "why", *wrong, url=url)
    assert (answer.exit_code, answer.stdout, services.received) == (2, "", [])


def test_a_freeze_has_no_end(services: Services, url: str) -> None:
    assert (
        "`slipway pool unfreeze linux` resumes it"
        in slipway("pool", "freeze", "linux", "--reason", "why", url=url).stdout
    )
    assert services.received == [("pools/linux/freeze", {"reason": "why"})]
    assert slipway("pool", "freeze", "linux", "--reason", "why", "--for", "5m", url=url).exit_code == 2


def test_a_pause_needs_a_reason(services: Services, url: str) -> None:
    assert slipway("pool", "pause", "linux", url=url).exit_code == 2
    assert slipway("stop-launching", "--account", "a", "--pool", "b", "--reason", "r", url=url).exit_code == 2
    assert services.received == []


def test_pauses_are_lifted(services: Services, url: str) -> None:
    assert slipway("lc", "resume", "zone-a", "--reason", "done", url=url).stdout == "launch config zone-a resumed\n"
    assert slipway("pool", "resume", "linux", "--reason", "done", url=url).stdout == "pool linux resumed\n"
    assert slipway("pool", "unfreeze", "linux", "--reason", "done", url=url).stdout == "pool linux unfrozen\n"
    assert slipway("start-launching", "--reason", "r", url=url).stdout == "launches resumed everywhere\n"
    assert (
        slipway("start-launching", "--pool", "linux", "--reason", "r", url=url).stdout
        == "launches were not stopped in pool linux\n"
    )
    assert [path for path, _ in services.received] == [
        "launch-configs/zone-a/resume",
        "pools/linux/resume",
        "pools/linux/unfreeze",
        "start-launching",
        "start-launching",
    ]


ACCOUNT_COMMANDS = [
    ("retire", "account sim-a is retired; 2 machines may still run there: `slipway account show sim-a`\n"),
    ("reinstate", "account sim-a is reinstated; it launches again once it answers\n"),
    ("confirm-unresponsive", "11 unresponsive workers of account sim-a asked to stop\n"),
]


@pytest.mark.parametrize(("command", "printed"), ACCOUNT_COMMANDS)
def test_commands_on_an_account(services: Services, url: str, command: str, printed: str) -> None:
    assert slipway("account", command, "ci/a", url=url).exit_code == 2
    assert services.received == []
    assert slipway("account", command, "ci/a", "--reason", "closed", url=url).stdout == printed
    assert services.received == [(f"accounts/ci/a/{command}", {"reason": "closed"})]


def test_an_account_that_is_retired_twice(url: str) -> None:
    again = slipway("account", "retire", "ci/a", "--reason", "again", url=url).stdout
    assert again.startswith("account sim-a is retired already, and nothing was changed; 2 machines")


def test_an_account_with_what_may_still_run(url: str) -> None:
    shown = slipway("account", "show", "sim-a", url=url).stdout.splitlines()
    assert shown[0].split() == ["id", "sim-a"]
    assert shown[-2].split()[:5] == [ID, "linux", CONFIG_ID, "unknown", TWIN]
    assert AT not in shown[-2]
    assert shown[-1].endswith("tag slipway-batch=BATCH")


WELL: Final = {"kind": "identity", "subject": "", "state": "ok", "message": "1 (arn:aws:iam::1:user/a)", "remedy": ""}
BAD: Final = {
    "kind": "permission",
    "subject": "iam:PassRole",
    "state": "problem",
    "message": "denied\x1b[2J on arn:aws:iam::1:role/m",
    "remedy": "allow iam:PassRole in the policy",
}
OLD: Final = {"kind": "credential", "subject": "", "state": "warning", "message": "temporary", "remedy": "use a role"}
# findings, exit code, last line
CHECKS = [
    ([WELL], 0, "account sim-a: 0 problems"),
    ([OLD, WELL], 0, "account sim-a: 0 problems, 1 warning"),
    ([BAD, OLD, WELL], 3, "account sim-a: 1 problem, 1 warning"),
]


@pytest.mark.parametrize(("findings", "exit_code", "last"), CHECKS)
def test_a_check_of_an_account(
    services: Services,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    findings: list[dict[str, str]],
    exit_code: int,
    last: str,
) -> None:
    """A table of all findings, a line for each remedy, and exit code 3 for a problem alone."""
    states = [finding["state"] for finding in findings]
    numbers = {"problems": states.count("problem"), "warnings": states.count("warning")}
    monkeypatch.setitem(ANSWERS, "accounts/sim-a", ACCOUNT | numbers | {"findings": findings, "machines": []})
    checked = slipway("account", "check", "sim-a", url=url)
    assert services.received == [("accounts/sim-a/check", {})]
    assert checked.exit_code == exit_code
    lines = checked.stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : len(findings) + 1]] == states
    remedies = [f"{f['kind']} {f['subject']}".strip() + f": {f['remedy']}" for f in findings if f["remedy"]]
    assert lines[len(findings) + 1 :] == [*([""] if remedies else []), *remedies, "", last]
    assert "\x1b" not in checked.stdout
    read = slipway("account", "check", "sim-a", "-o", "json", url=url)
    assert (read.exit_code, json.loads(read.stdout)["findings"]) == (exit_code, findings)
    shown = slipway("account", "show", "sim-a", url=url)
    assert all(remedy in shown.stdout for remedy in remedies)


def test_an_account_that_was_never_checked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new = ACCOUNT | {"checked_at": None}
    monkeypatch.setitem(ANSWERS, "accounts", {"items": [new]})
    monkeypatch.setitem(ANSWERS, "accounts/sim-a", new | {"findings": [], "machines": []})
    row = slipway("account", "ls", url=url).stdout.splitlines()[1].split()
    assert row[4:8] == ["reachable", "-", "-", "9"]
    assert "not checked yet" in slipway("account", "show", "sim-a", url=url).stdout


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"retired": True, "unreachable": True}, "retired"),
        ({"unreachable": True, "mass_unresponsive": True}, "unreachable"),
        ({"mass_unresponsive": True}, "unresponsive workers"),
        ({"removed": True}, "removed"),
    ],
)
def test_states_of_an_account(url: str, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], state: str) -> None:
    monkeypatch.setitem(ANSWERS, "accounts", {"items": [ACCOUNT | fields]})
    assert f"  {state}  " in slipway("account", "ls", url=url).stdout


@pytest.mark.parametrize("given", [ID, "3f9a12cd"])
def test_worker_is_named_by_its_id_or_the_end_of_it(services: Services, url: str, given: str) -> None:
    shown = slipway("worker", "show", given, url=url)
    assert (shown.exit_code, shown.stdout.splitlines()[0].split()) == (0, ["id", ID])
    ended = slipway("worker", "terminate", given, "--reason", "hung", url=url)
    assert (ended.exit_code, ended.stdout) == (0, f"worker {ID} is stopping\n")
    assert services.received == [(f"workers/{ID}/terminate", {"reason": "hung"})]


@pytest.mark.parametrize(("state", "is_shown"), [("launching", True), ("running", False)])
def test_an_accepted_call_is_shown_until_it_is_resolved(
    url: str, monkeypatch: pytest.MonkeyPatch, state: str, is_shown: bool
) -> None:
    row = ANSWERS[f"workers/{ID}"]
    batch = row["batch"] | {"handle": "apply-7", "poll_at": AT, "call_deadline": AT}
    monkeypatch.setitem(ANSWERS, f"workers/{ID}", row | {"state": state, "batch": batch})
    shown = slipway("worker", "show", ID, url=url).stdout
    named = [line.rpartition("  ")[0].strip() for line in shown.splitlines()]
    assert [name in named for name in ("accepted call", "next poll at", "call deadline")] == [is_shown] * 3
    assert ("apply-7" in shown) is is_shown


def test_the_workspace_of_a_worker_is_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what is empty."""
    workspace = WorkerWorkspace(
        id=TWIN,
        phase="destroying",
        run=None,
        locked_until=None,
        next_run_at=None,
        failed_runs=3,
        problem="no",
        saved_at=datetime.fromisoformat(AT),
        refreshed_at=None,
        resources=["aws_instance.worker", "aws_eip.worker"],
        rejected_states=0,
        state_problem="",
    )
    shown = {"workspace": msgspec.to_builtins(workspace)}
    monkeypatch.setitem(ANSWERS, f"workers/{ID}", ANSWERS[f"workers/{ID}"] | shown)
    lines = slipway("worker", "show", ID, url=url).stdout.splitlines()
    named = dict(line.split("  ", 1) for line in lines if line.startswith("workspace"))
    assert {name: value.strip() for name, value in named.items()} == {
        "workspace": TWIN,
        "workspace phase": "destroying",
        "workspace failed runs": "3",
        "workspace problem": "no",
        "workspace saved at": named["workspace saved at"].strip(),
        "workspace resources": "aws_instance.worker, aws_eip.worker",
    }
    shown["workspace"]["resources"] = None
    lines = slipway("worker", "show", ID, url=url).stdout.splitlines()
    (hidden,) = [line for line in lines if line.startswith("workspace resources")]
    assert hidden.endswith("hidden without the scope workers:state")


def test_an_ambiguous_id_terminates_no_worker(services: Services, url: str) -> None:
    both = slipway("worker", "terminate", "f9a12cd", "--reason", "hung", url=url)
    none = slipway("worker", "terminate", "abcdef00", "--reason", "hung", url=url)
    assert (both.exit_code, none.exit_code, services.received) == (1, 1, [])
    assert f"f9a12cd matches 2 workers: {ID}, {TWIN}" in both.stderr
    assert "no worker abcdef00 among the newest 1000" in none.stderr


UNKNOWN = [
    (["pool", "show", "solaris"], "no worker pool solaris; there is linux\n"),
    (["lc", "show", "zone-x"], "no launch config zone-x; there is zone-a\n"),
    (["worker", "show", TWIN], f"No such thing: workers/{TWIN}"),
    (
        ["decision", "show", "a/b?"],
        "No such thing: decisions/a/b?\n`slipway pool show POOL` lists the latest decisions of a pool",
    ),
    (["why", "solaris"], "There is nothing named 'solaris'.\n`slipway pool ls`, `slipway lc ls`, `slipway worker ls`"),
]


@pytest.mark.parametrize(("command", "words"), UNKNOWN, ids=[" ".join(command) for command, _ in UNKNOWN])
def test_an_unknown_id_is_refused_with_those_that_exist(url: str, command: list[str], words: str) -> None:
    answer = slipway(*command, url=url)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr.startswith(words)


def test_untrusted_text_is_sanitized(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals and explanations contain no control characters."""
    refused = slipway("pool", "show", "a\x1b[2J\rb", url=url)
    assert (refused.exit_code, refused.stderr) == (1, "no worker pool a�[2J�b; there is linux\n")
    monkeypatch.setitem(ANSWERS, f"workers/{ID}", ANSWERS[f"workers/{ID}"] | {"account_id": "a\x1b[2J\r\nb"})
    received = slipway("why", ID, url=url).stdout
    assert "account a�[2J��b." in received
    assert all(line.isprintable() for line in received.split("\n"))


def test_findings_of_doctor_are_sanitized(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._print([Finding("warn", "alerts", "a\x1b[2J\r\nb", "c\x9bd")])
    assert capsys.readouterr().out.split("\n") == ["warn  alerts  a�[2J��b", " " * 14 + "remedy: c�d", ""]


def test_advice_prefers_ways_to_pass_a_token_that_ps_does_not_show() -> None:
    """`ps` shows command lines: the option comes last."""
    advice = ADVICE["no-token"]
    assert advice.index("SLIPWAY_TOKEN_FILE") < advice.index(" SLIPWAY_TOKEN ") < advice.index("--token")


#   command, stub answer, cells of its first row
TABLES = [
    ("pool ls", "pools", "linux enforce 0–60 9 2 min 3 12 10 2"),
    ("lc ls", "launch-configs", "zone-a 3f2c9a active healthy 0.5 3 4 53 50 6 sim-a"),
    ("account ls", "accounts", "sim-a simulated sim-1 sim-a reachable 0 2026-08-01 14:03 9 1 0 0"),
    ("account limits", "launch-limits", "account sim-a 17 + 3 waiting of 20 0 12.5 of 60 47.5 launches"),
    ("worker ls", "workers", f"{ID} linux {CONFIG_ID} running 2 min i-7"),
    ("lease pools", "lease-pools", f"sim-a shadow 45 pinned 45 40 2 3 s 30 4 s lease {ID}: 8 units free"),
]


def test_sources_of_demand(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the age of the last report, and times in the reader's zone."""
    monkeypatch.setattr(demand, "now", lambda: moments.at(AT) + timedelta(minutes=2))
    heading, row = slipway("demand", "ls", "linux", url=url).stdout.splitlines()
    assert " ".join(heading.split()) == "pool source state pending claimed age valid until dropped at reported by"
    assert " ".join(row.split()) == "linux queue stale 9 3 2 min 14:03:07 14:03:07 /monitors/queue"
    assert json.loads(slipway("demand", "ls", "-o", "json", url=url).stdout) == [SOURCE]


@pytest.mark.parametrize(("command", "path", "row"), TABLES, ids=[command for command, _, _ in TABLES])
def test_tables_are_for_people_and_json_has_everything(
    url: str, monkeypatch: pytest.MonkeyPatch, command: str, path: str, row: str
) -> None:
    monkeypatch.setattr(workers, "now", lambda: moments.at(AT) + timedelta(minutes=2))
    items = ANSWERS[path]["items"]
    _, *lines = slipway(*command.split(), url=url).stdout.splitlines()
    assert (lines[0].split(), len(lines)) == (row.split(), len(items))
    assert json.loads(slipway(*command.split(), "-o", "json", url=url).stdout) == items


UNRECORDED: Final[Mapping[str, Mapping[str, object]]] = {
    "dead-letters": DEAD_LETTER,
    "errors": {
        "id": 1,
        "at": AT,
        "worker_id": ID,
        "pool_id": "linux",
        "launch_config_id": CONFIG_ID,
        "image_revision": "linux-1",
        "code": "disk-full",
        "sample": "no space left on device",
    },
}
"""Items of lists that are empty in the recordings."""


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("worker ls", "workers"),
        ("lease ls --all", "leases"),
        ("lease ls --all -o name", "leases"),
        ("demand ls", "demand"),
        ("dlq ls provisioner", "dead-letters"),
        (f"error ls --worker {ID}", "errors"),
    ],
)
def test_a_list_has_at_most_as_many_rows_as_its_limit(
    url: str, monkeypatch: pytest.MonkeyPatch, command: str, path: str
) -> None:
    """A note says that there are more, and none does where there are not."""
    first = UNRECORDED.get(path) or ANSWERS[path]["items"][0]
    monkeypatch.setitem(ANSWERS, path, {"items": [first] * 3, "next": None})
    headings = 0 if "name" in command else 1
    cut, whole = (slipway(*command.split(), "--limit", limit, url=url) for limit in ("2", "3"))
    assert (len(cut.stdout.splitlines()), cut.stderr) == (
        headings + 2,
        "only the first 2 are listed; --limit 20 lists more\n",
    )
    assert (len(whole.stdout.splitlines()), whole.stderr) == (headings + 3, "")


def test_resolved_alerts_are_listed_after_all_open_ones(
    services: Services, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open one, however old, is within the limit before any resolved one."""
    old = LISTED_ALERT | {"kind": "old", "raised_at": "2026-07-01T00:00:00Z"}
    resolved = [LISTED_ALERT | {"kind": f"resolved-{number}", "closed_at": AT} for number in range(3)]
    monkeypatch.setattr(services, "alerts", [*resolved, old])
    listed = slipway("alert", "ls", "--all", "--limit", "2", url=url)
    assert [line.split()[1] for line in listed.stdout.splitlines()[1:]] == ["old", "resolved-0"]
    assert listed.stderr == "only the first 2 are listed; --limit 20 lists more\n"
    assert len(slipway("alert", "ls", "--limit", "2", url=url).stdout.splitlines()) == 2


def test_limits_of_an_account_that_has_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says how to add some; an unknown account is no account without limits."""
    monkeypatch.setitem(ANSWERS, "launch-limits", {"items": []})
    none = slipway("account", "limits", "sim-a", url=url)
    assert none.stdout == "no limits are declared for account sim-a: add `limits` to the declaration, and apply it\n"
    unknown = slipway("account", "limits", "sim-x", url=url)
    assert (unknown.exit_code, unknown.stdout) == (1, "")


def test_workers_of_a_revision_add_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are stopping have a column where there are any. A pause does not hide the part in a roll-out."""
    draining = {"state": "draining", "current": False, "starting": 0, "running": 4, "stopping": 8, "live": 12}
    fallback = {"state": "paused", "current": False, "replaced_by": "natural"}
    rows = [
        CONFIG | {"id": f"zone-{name}@1", "name": f"zone-{name}"} | row
        for name, row in (("a", draining), ("b", fallback))
    ]
    monkeypatch.setitem(ANSWERS, "launch-configs", {"items": rows})
    heading, first, second = slipway("lc", "ls", url=url).stdout.splitlines()
    cells = dict(zip(heading.split()[5:], first.split()[4:], strict=False))
    shown = [cells[name] for name in ("starting", "running", "stopping", "launched", "booted")]
    assert shown == ["0", "4", "8", "53", "50"]
    assert first.endswith("12 workers left")
    assert "  fallback, paused  " in second


def test_details_are_shown(url: str) -> None:
    """A pool with its decisions, a config with windows and failures, a decision with its refused configs."""
    pool = slipway("pool", "show", "linux", url=url).stdout
    assert "backlog for     2 min" in pool
    assert f"{DECISION}         2  2 needed" in pool
    config = slipway("lc", "show", "zone-a", url=url).stdout
    assert any(line.split() == ["settings.disk", "gb", "40"] for line in config.splitlines())
    (boot,) = (line.split() for line in config.splitlines() if line.startswith("boot "))
    assert boot == ["boot", "1", "2", "9", "0.95"]
    assert f"{ID}  InsufficientCapacity" in config
    decision = slipway("decision", "show", DECISION, url=url).stdout
    (lost,) = (line.split() for line in decision.splitlines() if line.startswith("zone-b"))
    assert lost == ["zone-b@8b1d00", "0.4", "0", "boot", "window", "0", "the", "boot", "window", "is", "full"]
    assert json.loads(slipway("pool", "show", "linux", "-o", "json", url=url).stdout)["decisions"] == [WHY]


def test_doctor_ends_in_time_when_nothing_answers() -> None:
    """Three addresses and a Kafka broker that refuse connections: each is reported with a remedy."""
    began = monotonic_seconds()
    answer = slipway("doctor", url=NOWHERE)
    assert (answer.exit_code, monotonic_seconds() - began < 30) == (3, True)
    received = answer.stdout.splitlines()
    assert [line.split()[:2] for line in received[::2]] == [
        ["fail", "provisioner"],
        ["fail", "weight-calculator"],
        ["fail", "lease-broker"],
        ["fail", "kafka"],
    ]
    assert all(line.strip().startswith("remedy: start it, or set its address with --") for line in received[1::2])


@pytest.mark.parametrize(
    "wrong", [("--topic", "worker.birth"), ("--since", "soon"), ("--since", "5m", "--beginning"), ("-n", "-1")]
)
def test_events_tail_refuses_invalid_options(wrong: tuple[str, ...]) -> None:
    answer = slipway("events", "tail", *wrong)
    assert (answer.exit_code, answer.stdout) == (2, "")


def test_events_tail_without_kafka_prints_a_remedy() -> None:
    answer = slipway("events", "tail")
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr.startswith("Kafka at 127.0.0.1:1 is unavailable: no server answers there\nCheck ")
    assert "its address in --kafka or KAFKA" in answer.stderr


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, (*path, name))


EVERY = list(commands(get_command(app)))


@pytest.mark.parametrize("path", EVERY, ids=[" ".join(path) or "slipway" for path in EVERY])
def test_help_has_an_example(path: tuple[str, ...]) -> None:
    answer = slipway(*path, "--help")
    assert answer.exit_code == 0
    assert len(answer.stdout.splitlines()) > 3
    is_group = any(longer[: len(path)] == path for longer in EVERY if len(longer) > len(path))
    if not is_group or not path:
        assert " ".join(["slipway", *path]) in answer.stdout.split("Example", 1)[1]


def complete(words: str, url: str) -> list[str]:
    """Completions that bash gets for the last of `words`."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1), "_SLIPWAY_COMPLETE": "complete_bash"}
    command = [sys.executable, "-c", "from slipway_client.cli.main import app; app(prog_name='slipway')"]
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
        ("slipway lc show z", ["zone-a", CONFIG_ID]),
        ("slipway why ", ["linux", "zone-a", CONFIG_ID, "sim-a", ID, TWIN]),
        ("slipway worker ls --state sta", ["starting"]),
        ("slipway demand rm linux ", ["queue"]),
        ("slipway lease ls --pool ", ["sim-a"]),
        ("slipway events tail --topic al", ["alert"]),
    ],
)
def test_completion_offers_existing_ids(url: str, words: str, offered: list[str]) -> None:
    assert complete(words, url) == offered


def test_completion_reads_with_the_token_of_the_shell(
    services: Services, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every list needs a token."""
    file = tmp_path / "token"
    file.write_text("of-a-file\n")
    monkeypatch.setenv("SLIPWAY_TOKEN_FILE", str(file))
    assert complete("slipway pool show ", url) == ["linux"]
    assert services.authorization == "Bearer of-a-file"
    monkeypatch.setenv("SLIPWAY_TOKEN", "of-a-variable")
    assert complete("slipway pool show ", url) == ["linux"]
    assert services.authorization == "Bearer of-a-variable"
    monkeypatch.delenv("SLIPWAY_TOKEN")
    file.unlink()
    assert complete("slipway pool show ", url) == []


def test_completion_is_empty_when_services_are_unavailable() -> None:
    assert complete("slipway pool show ", NOWHERE) == []
    assert options.COMPLETION_SECONDS <= 1


def test_completion_is_installed_by_the_shell_s_own_way() -> None:
    # The shell is found among the parents, so that it has to stay one.
    script = "from slipway_client.cli.main import app; app(prog_name='slipway')"
    shown = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" --show-completion; exit $?', sys.executable, script],
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
    """`slipway` starts fast: HTTP, tables, Kafka and file checks are imported by the commands that need them."""
    code = "import slipway_client.cli.main, sys; print(*sys.modules)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    heavy = {
        "httpx2",
        "rich",
        "aiokafka",
        "pydantic",
        "yaml",
        "fastapi",
        "msgspec",
        "slipway_common.declaration.models",
    }
    assert heavy & set(made.stdout.split()) == set()
