"""Sources from elsewhere that are wrong: at import, in their settings, as they read and are closed.

They report nothing, end nothing else, and what they say is not shown, since it may be a secret."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipway_api.events.pool import DemandReported
from slipway_common.declaration.strict_yaml import Invalid, write
from slipway_monitor.domain.counts import Counts
from slipway_monitor.leadership import Alone
from slipway_monitor.loops import report
from slipway_monitor.loops.report import Reporter
from slipway_monitor.loops.watch import watched
from slipway_monitor.main import main
from slipway_monitor.source_file import Entry, read
from tests.contract.sources.worlds import SECRET, installed

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution with a source of the kind `made-NAME`, whose module has the text."""

    def install(name: str, text: str) -> None:
        monkeypatch.syspath_prepend(str(installed(tmp_path / name, name, f"made-{name}", text)))

    return install


def file_of(kind: str, **settings: Any) -> str:
    usual = {"name": "q", "kind": kind, "counts": "waiting", "claims": "hooks", "pool": "linux"}
    return write({"sources": [usual | settings]})


def refusal(kind: str) -> str:
    with pytest.raises(Invalid) as refused:
        read(file_of(kind))
    assert SECRET not in str(refused.value)
    return str(refused.value)


FAILING_SETTINGS = f"""
from slipway_monitor.sources.port import SourceSettings
from pydantic import field_validator

class Settings(SourceSettings):
    @field_validator("name")
    @classmethod
    def _fails(cls, value):
        raise KeyError("{SECRET}")

class Source:
    Settings = Settings
"""
#           a module, and a part of the problem of its kind
MODULES = [
    (f"raise ZeroDivisionError('{SECRET}')", "ZeroDivisionError in the module of its source"),
    (f"import sys; sys.exit('{SECRET}')", "SystemExit in the module of its source"),
    ("import none_such", "needs none_such, which is not installed: install none_such"),
    ("Source = 3", "no class with Settings of sources"),
    ("class Source: Settings = dict", "no class with Settings of sources"),
    (FAILING_SETTINGS, "KeyError in the settings of its kind, which is a mistake of it: source_5.py"),
]


@pytest.mark.parametrize(("place", "module", "part"), [(n, *row) for n, row in enumerate(MODULES)])
def test_a_module_that_cannot_be_used(place: int, module: str, part: str, install: Install) -> None:
    install(f"source_{place}", module)
    assert part in refusal(f"made-source_{place}")


def test_a_kind_of_two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them would be used is nobody's choice."""
    for name in ("one", "other"):
        monkeypatch.syspath_prepend(str(installed(tmp_path / name, name, "doubled", "")))
    assert "kind doubled is in several packages: one, other; uninstall all but one" in refusal("doubled")


def giving(answer: Any) -> type:
    """A class of sources whose reads give an answer, or raise it."""

    class Elsewhere:
        def __init__(self, _: Any) -> None:
            if answer is KeyError:
                raise KeyError("constructor")

        async def read(self) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        async def close(self) -> None:
            raise RuntimeError("a close that fails")

    return Elsewhere


ANYTHING: Any = Counts  # whose fields are not checked when it is made
WRONG = [
    *(None, 3, [3], ZeroDivisionError(), KeyError, SystemExit(3), asyncio.CancelledError()),
    *([ANYTHING(tasks, 1)] for tasks in (None, "3", True, -1, 1.5, 10**400)),
    *([Counts(1, running)] for running in (None, -1)),
    [Counts(1, 1), Counts(2, 1)],
]


def reporter_of(kind: type) -> Reporter:
    """Reporter of a source that counts both: a missing number of running tasks is an error, never zero."""

    async def publish(_: DemandReported) -> None:
        raise AssertionError("nothing is reported")

    (entry,) = read(file_of("exec", command=["true"], counts="both", tasks="a", running="b"))
    return Reporter(Entry(entry.settings, kind), Alone(), publish, Random(1))


@pytest.mark.parametrize("answer", WRONG)
async def test_an_answer_that_is_no_counts(answer: Any) -> None:
    reporter = reporter_of(giving(answer))
    assert await reporter.report() == 0.0
    await reporter.close()


async def test_a_source_that_is_never_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replica, or the end of the monitor, does not wait for it."""
    monkeypatch.setattr(report, "CLOSE_SECONDS", 0.05)

    class Open(giving(3)):  # type: ignore[misc]
        async def close(self) -> None:
            await asyncio.Event().wait()

    reporter = reporter_of(Open)
    await reporter.report()
    async with asyncio.timeout(5):
        await reporter.close()


async def test_a_source_that_blocks_the_event_loop() -> None:
    """Its name is logged while it does, since nothing else is reported."""
    freed = threading.Event()

    def told(_: Any, __: str, event: Any) -> Any:
        if "blocks" in event["event"]:
            freed.set()
        return event

    async def block() -> bool:
        return freed.wait(30)

    with capture_logs(processors=[told]) as logs, watched(0.05):
        assert await asyncio.create_task(block(), name="slow-queue")
    assert logs[0]["source"] == "slow-queue"


CHECKED = f"""
from slipway_monitor.sources.port import SourceSettings

class Source:
    Settings = SourceSettings

    def __init__(self, settings):
        pass

    async def read(self):
        raise KeyError("{SECRET}")

    async def close(self):
        raise KeyError("{SECRET}")
"""


def test_check_names_the_place_of_a_mistake(
    install: Install, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    install("checked", CHECKED)
    file = tmp_path / "sources.yaml"
    file.write_text(file_of("made-checked"))
    assert main(["check", str(file)]) == 1
    printed = capfd.readouterr()
    assert "q: no report: KeyError in its source, which is a mistake of it: checked.py:11" in printed.out
    assert SECRET not in printed.out + printed.err


def test_check_prints_in_the_order_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the order of the answers, and however many there are."""
    usual = {"kind": "exec", "counts": "waiting_and_running", "pool": "linux"}
    names = [f"q{number}" for number in range(60)]
    commands = [["sh", "-c", "sleep 0.2; echo 1"], *([["echo", "1"]] * 59)]
    file = tmp_path / "sources.yaml"
    sources = [usual | {"name": name, "command": command} for name, command in zip(names, commands, strict=True)]
    file.write_text(json.dumps({"sources": sources}))
    assert main(["check", str(file)]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == names
