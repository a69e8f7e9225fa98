"""Speed and last screen of the demo."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.pool import DemandReported
from slipway_common.declaration.strict_yaml import write
from slipway_common.messaging.envelope import Envelope
from slipway_local.check import path_check
from slipway_local.check.evidence import Evidence, Published
from slipway_local.demo import closing, machine, program
from slipway_local.demo.deployment import Deployment
from slipway_local.demo.machine import ROUNDS_PER_SPEED, SPEED_MIN, bounded_speed
from slipway_local.demo.redis_queue import RedisQueue
from slipway_local.servers.supervisor import Supervisor
from slipway_monitor.source_file import read
from slipway_simulator import facts
from tests.unit.local.test_check import call, created, good

COLUMNS = 80
AT: Final = datetime(2030, 1, 1, tzinfo=UTC)
QUIET = 96_000.0  # rounds per second of two idle cores


def test_a_quiet_machine_plays_at_the_usual_speed_and_a_busy_one_slower() -> None:
    assert bounded_speed(20.0, QUIET) == 20.0
    assert bounded_speed(60.0, QUIET) == 32.0
    assert bounded_speed(20.0, QUIET / 3) == 10.0, "two of six processes on two cores"
    assert bounded_speed(0.5, 0.0) == 0.5, "a speed is never raised"


@given(st.floats(min_value=0.1, max_value=1000.0), st.floats(min_value=0.0, max_value=1e7))
def test_a_speed_fits_the_machine_or_is_the_least(speed: float, rounds: float) -> None:
    found = bounded_speed(speed, rounds)
    assert found <= speed
    assert found <= SPEED_MIN or found * ROUNDS_PER_SPEED <= rounds


async def test_rounds_are_counted_on_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SECONDS", 0.05)
    assert await machine.rounds_per_second() > 0


def test_queues_and_agents_of_the_users_own() -> None:
    usual = {"PROVIDER": "process", "DURATION": "0", "AGENT": "slipway-worker wrap -- 'my agent' -w 1"}
    given = program.parse_arguments(usual)
    assert given.agent == ("slipway-worker", "wrap", "--", "my agent", "-w", "1")
    assert program.scenario(given)["pools"] == {}
    for other in ({"DURATION": "45s"}, {"PROVIDER": "aws"}):
        with pytest.raises(ValueError, match="add PROVIDER=process DURATION=0"):
            program.parse_arguments(usual | other)
    assert program.scenario(program.parse_arguments({}))["reports"]
    assert not program.scenario(program.parse_arguments({"QUEUE": "redis"}))["reports"]
    with pytest.raises(ValueError, match="QUEUE=kafka: expected redis"):
        program.parse_arguments({"QUEUE": "kafka"})


def report_of(source: str) -> Published:
    event = DemandReported(pool_id="linux", source="simulator", pending=1, claimed=None, observed_at=AT)
    envelope = Envelope(id="e", type=event.type, source=source, time=AT)
    return Published("pool.demand", 0, 0, envelope, event)


@pytest.mark.parametrize("speed", [0.5, 1, 2, 20, 1000])
def test_the_list_is_a_valid_source_at_every_speed(speed: float, tmp_path: Path) -> None:
    queue = RedisQueue(Deployment(Supervisor(), tmp_path, speed=speed, seconds={}), "linux")
    (entry,) = read(write({"sources": [queue.source()]}))
    assert entry.settings.name == "simulator"


def test_demand_is_reported_by_the_monitor_alone(tmp_path: Path) -> None:
    queue = RedisQueue(Deployment(Supervisor(), tmp_path, speed=1, seconds={}), "linux")
    assert queue.problems(good()) == ["slipway-monitor has reported nothing"]
    own, other = report_of("/slipway-monitor"), report_of("/simulator/queue")
    found: Evidence = msgspec.structs.replace(good(), published=[own, own])
    assert (queue.problems(found), queue.summary(found)) == (
        [],
        "queue: a list in Redis, reported 2 times by slipway-monitor",
    )
    both = msgspec.structs.replace(good(), published=[own, other])
    assert queue.problems(both) == ["1 reports of another than slipway-monitor"]


def reply(call_id: str, code: Any) -> facts.Fact:
    return facts.Reply(at=2, call_id=call_id, account="a", code=code)


def test_the_last_screen_says_what_was_shown_and_what_to_try() -> None:
    more = [call(2, "9"), reply("9", "InsufficientCapacity"), created(3, "i-9", "9")]
    found: Evidence = msgspec.structs.replace(good(), ledger=[*good().ledger, *more])
    report = path_check.judge(good())
    lines = "\n".join(
        closing.screen(found, report, pool="linux", played="an hour", faults=["zone-b"], figures=["machines: 3"])
    ).splitlines()
    assert lines[0] == "Shown: an hour, 0 of 0 tasks done"
    assert lines[1].startswith("  launched: ")
    assert lines[2] == "  faults: zone-b; calls that the cloud refused: 1 with InsufficientCapacity"
    assert lines[3:5] == ["  machines: 3", report.line()]
    assert [line.partition("#")[0].strip().removeprefix("Try: ") for line in lines[5:]] == [
        "make demo DURATION=0",
        ". .slipway/env; .venv/bin/slipway top",
        ". .slipway/env; .venv/bin/slipway why linux",
    ]
    rows = sum(-(-len(line) // COLUMNS) for line in lines)
    assert rows + 2 <= 12, "with the lines on the wait before it, and on the logs after it"


def test_a_broken_path_names_its_problems() -> None:
    report = path_check.judge(msgspec.structs.replace(good(), dead_records=2))
    lines = list(closing.screen(good(), report, pool="linux", played="an hour", faults=[], figures=[]))
    assert "  PROBLEM dead letters: 2" in lines
    assert any(line.startswith("path BROKEN") for line in lines)
