"""Recordings of answers (`make recordings`) against what the services answer now."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.deployment import deployment_on
from tests.support.recorded import ANSWERS, POSTED, RECORDED
from tests.support.recording import record

FREE: Final = frozenset({"settings", "offsets", "operations", "tenants"})  # mappings whose names users choose
BY_NAME: Final = frozenset({"stages", "sources", "configs"})  # mappings with an entry of the same fields per name
KINDS: Final = {bool: "boolean", int: "number", float: "number", str: "text"}


def differences(recorded: Any, real: Any, at: str) -> Iterator[str]:
    """Fields that only one of two answers has, and those of another kind. Null and empty lists agree with anything."""
    if recorded in (None, [], {}) or real in (None, [], {}):
        return
    if isinstance(recorded, dict) and isinstance(real, dict) and at.rpartition(".")[2] in BY_NAME:
        recorded, real = list(recorded.values()), list(real.values())
    if isinstance(recorded, list) and isinstance(real, list):
        recorded, real = merged(recorded), merged(real)
    if isinstance(recorded, dict) and isinstance(real, dict):
        yield from (f"{at}.{name}" for name in sorted(recorded.keys() ^ real.keys()))
        for name in sorted((recorded.keys() & real.keys()) - FREE):
            yield from differences(recorded[name], real[name], f"{at}.{name}")
    elif KINDS.get(type(recorded), type(recorded)) != KINDS.get(type(real), type(real)):
        yield f"{at}: {recorded!r} and {real!r}"


def merged(items: list[Any]) -> Any:
    """One item with the fields of all."""
    if not isinstance(items[0], dict):
        return items[0]
    return {name: value for item in items for name, value in item.items()}


async def test_recordings_have_the_fields_of_what_services_answer(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """No more, no fewer, and values of the same kinds; `make recordings` records them again."""
    async with deployment_on(postgres, tmp_path) as deployment:
        answered = await record(deployment)
    assert answered.keys() == RECORDED.keys()
    for path, answer in answered.items():
        assert list(differences(RECORDED[path], answer, path)) == []


def test_tests_give_recorded_answers_no_other_fields() -> None:
    for path, answer in (ANSWERS | {f"POST {path}": answer for path, answer in POSTED.items()}).items():
        if path in RECORDED:
            assert list(differences(answer, RECORDED[path], path)) == []
