"""The file of sources: problems with their lines, and no value that may be a secret."""

from typing import Any

import pytest

from slipway_common.declaration.strict_yaml import Invalid, write
from slipway_monitor.source_file import read

USUAL: dict[str, Any] = {
    "name": "builds",
    "kind": "redis",
    "counts": "waiting",
    "claims": "wrap",
    "pool": "linux",
    "url": "redis://:hunter2@127.0.0.1",
    "list": "builds",
}


def refused(*sources: dict[str, Any]) -> str:
    with pytest.raises(Invalid) as error:
        read(write({"sources": list(sources)}))
    assert all(problem.line for problem in error.value.problems)
    assert "hunter2" not in str(error.value)
    return str(error.value)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in USUAL.items() if key != name}


def test_a_usual_file() -> None:
    (entry,) = read(write({"sources": [USUAL]}))
    assert (entry.settings.name, entry.settings.reporting.pools) == ("builds", {"": "linux"})


#           a source, and a part of its problem
PROBLEMS = [
    (without("claims"), "counts: waiting needs claims"),
    (without("pool"), "give either pool, or pools"),
    (USUAL | {"pools": {"a": "linux"}}, "give either pool, or pools"),
    (without("name"), "name: is missing"),
    (USUAL | {"kind": "kafka"}, "unknown kind 'kafka'; installed: exec"),
    (USUAL | {"counts": "both"}, "a list has only the tasks that wait"),
    (USUAL | {"bogus": 1}, "bogus: unknown field; known: behind_seconds"),
    (USUAL | {"valid_for_seconds": 15.0}, "at least twice interval_seconds"),
    (USUAL | {"valid_for_seconds": 25.0, "behind_seconds": 10.0}, "behind_seconds more"),
    (USUAL | {"interval_seconds": 0.01}, "below 0.1 s"),
    (USUAL | {"stream": "s", "group": "g"}, "one of list, stream and celery"),
    (USUAL | {"interval_seconds": True}, "interval_seconds"),
]


@pytest.mark.parametrize(("source", "part"), PROBLEMS)
def test_problems(source: dict[str, Any], part: str) -> None:
    assert part in refused(source)


def test_what_counts_twice() -> None:
    """Two sources of one name replace each other's reports, and equal labels count the same tasks twice."""
    other = USUAL | {"name": "other"}
    assert "is the name of two sources" in refused(USUAL, USUAL)
    labels = without("pool") | {"pools": {"a": "linux"}}
    assert "would count twice" in refused(labels, labels | {"name": "other"})
    assert len(read(write({"sources": [USUAL, other]}))) == 2


WITHOUT_SOURCES = ["sources: []", "sources: 1", "{}", "other: 1", "sources: [1]", "sources: [{kind: 1}]"]


@pytest.mark.parametrize("text", WITHOUT_SOURCES)
def test_files_without_sources(text: str) -> None:
    with pytest.raises(Invalid):
        read(text)


KINDS: dict[str, dict[str, Any]] = {
    "prometheus": {"url": "http://queue", "tasks": "jobs"},
    "rabbitmq": {"url": "http://queue"},
    "http": {"url": "http://queue"},
}


@pytest.mark.parametrize(("kind", "seconds"), [("prometheus", 60.0), ("rabbitmq", 10.0), ("http", 0.0)])
def test_ages_of_what_servers_show(kind: str, seconds: float) -> None:
    """Those of their default settings, since a younger one than the real age buys machines too many."""
    usual = {"name": "builds", "kind": kind, "counts": "waiting", "claims": "hooks", "pool": "linux"}
    (entry,) = read(write({"sources": [usual | KINDS[kind]]}))
    assert entry.settings.behind_seconds == seconds
