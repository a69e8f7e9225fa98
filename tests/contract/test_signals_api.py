"""`POST /signals` and `GET /signals`: who may say what, in which modes, and that a refused request changes nothing."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from prometheus_client import REGISTRY

from slipway_common.events.signal import SignalRaised
from slipway_common.ids import hash_secret
from slipway_common.topics import DECODERS, LAUNCH_CONFIG_SIGNAL
from slipway_local.postgres import EmbeddedPostgres
from slipway_weight_calculator.main import build
from slipway_weight_calculator.settings import Settings
from tests.weight_calculator import Calculator, after, calculator_on, declared, ok

ZONES = ("zone-a", "zone-b", "zone-c")
SAID: dict[str, Any] = {
    "target_kind": "zone",
    "target_id": "zone-b",
    "kind": "degraded",
    "reason": "status page",
    "ttl_seconds": 600,
    "observed_at": after(0).isoformat(),
}
SOMEBODY = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"
BINARY = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/page", "ce-type": SignalRaised.type}


@pytest.fixture
async def calculator(postgres: EmbeddedPostgres) -> AsyncIterator[Calculator]:
    """Three declared zones of one pool, at the start of time."""
    async with calculator_on(postgres.url()) as calculator:
        await calculator.tell(*map(declared, ZONES))
        yield calculator


@contextlib.asynccontextmanager
async def caller(
    calculator: Calculator,
    folder: Path,
    scopes: Sequence[str] = ("signal:write:*",),
    *,
    secret: str = "secret",
    rules: str = "",
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the real routes, with a token named "status-page"."""
    (folder / "tokens.yaml").write_bytes(
        msgspec.json.encode([{"name": "status-page", "sha256": hash_secret("secret"), "scopes": scopes}])
    )
    (folder / "sources.yaml").write_text(rules or "{}")
    settings: dict[str, Any] = {"tokens_file": folder / "tokens.yaml", "signal_sources_file": folder / "sources.yaml"}
    service = build(Settings(database_url="", kafka="", **settings))
    service.runtime.pool = calculator.pool
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    transport = httpx2.ASGITransport(app=service.app(), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://calculator", headers=headers) as client:
        yield client


async def raised(calculator: Calculator) -> list[SignalRaised]:
    """Signals that wait to be published."""
    rows = await calculator.pool.fetch(
        "SELECT type, value FROM outbox WHERE topic = $1 ORDER BY id", LAUNCH_CONFIG_SIGNAL.name
    )
    return [DECODERS[row["type"]].decode(row["value"]) for row in rows]


def counted(reason: str) -> float:
    return REGISTRY.get_sample_value("slipway_signals_refused_total", {"reason": reason}) or 0.0


def structured(data: Any, **attributes: Any) -> dict[str, Any]:
    usual = {"specversion": "1.0", "id": "7", "source": "/page", "type": SignalRaised.type, "data": data}
    return usual | attributes


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, SAID),
        (BINARY, SAID),
        ({"content-type": "application/cloudevents+json; charset=utf-8"}, structured(SAID)),
        ({}, SAID | {"source": "status-page"}),
    ],
    ids=["plain", "binary", "structured", "own-name"],
)
async def test_a_signal_takes_the_way_of_all_signals(
    calculator: Calculator, tmp_path: Path, headers: Mapping[str, str], body: dict[str, Any]
) -> None:
    """The source is the token's name. It is on its way to the topic, and nothing counts before it is heard there."""
    async with caller(calculator, tmp_path) as client:
        answer = await client.post("/signals", content=json.dumps(body), headers=dict(headers))
        assert (answer.status_code, answer.json()) == (202, {"source": "status-page", "configs": ["zone-b"]})
        (event,) = await raised(calculator)
        assert event == SignalRaised(
            source="status-page",
            target_kind="zone",
            target_id="zone-b",
            kind="degraded",
            reason="status page",
            observed_at=after(0),
            ttl_seconds=600.0,
        )
        assert (await client.get("/signals")).json() == {"items": [], "refused": []}
        await calculator.tell(event)
        (told,) = (await client.get("/signals")).json()["items"]
    assert told == {
        "source": "status-page",
        "kind": "degraded",
        "target_kind": "zone",
        "target_id": "zone-b",
        "value": 0.5,
        "reason": "status page",
        "since": "2030-01-01T00:00:00Z",
        "until": "2030-01-01T00:10:00Z",
        "configs": ["zone-b"],
    }


async def test_a_signal_without_a_time_is_of_now(calculator: Calculator, tmp_path: Path) -> None:
    await calculator.set_clock(77)
    said = {name: value for name, value in SAID.items() if name != "observed_at"}
    async with caller(calculator, tmp_path) as client:
        assert (await client.post("/signals", json=said)).status_code == 202
    (event,) = await raised(calculator)
    assert event.observed_at == after(77)


async def test_a_word_on_a_worker(calculator: Calculator, tmp_path: Path) -> None:
    """Reaches its config while it boots; of another one it is passed on to whom it may concern."""
    booting = ok(config_id="zone-c")
    await calculator.tell(booting)
    async with caller(calculator, tmp_path) as client:
        for worker_id, configs in ((booting.worker_id, ["zone-c"]), (SOMEBODY, [])):
            said = SAID | {"target_kind": "worker", "target_id": worker_id, "kind": "spot_interruption"}
            answer = await client.post("/signals", json=said)
            assert (answer.status_code, answer.json()["configs"]) == (202, configs)
    assert len(await raised(calculator)) == 2


@pytest.mark.parametrize(
    ("scopes", "secret", "status", "slug"),
    [
        (["signal:write:zone:zone-b"], "secret", 202, ""),
        (["signal:write:zone:zone-*"], "secret", 202, ""),
        (["admin"], "secret", 202, ""),
        (["signal:write:zone:zone-a"], "secret", 403, "scope-missing"),
        (["signal:write:config:*"], "secret", 403, "scope-missing"),
        (["demand:write:*"], "secret", 403, "scope-missing"),
        (["admin"], "other", 401, "unknown-token"),
        (["admin"], "", 401, "no-token"),
    ],
)
async def test_a_token_says_what_its_scopes_name(
    calculator: Calculator, tmp_path: Path, scopes: list[str], secret: str, status: int, slug: str
) -> None:
    async with caller(calculator, tmp_path, scopes, secret=secret) as client:
        answer = await client.post("/signals", json=SAID)
    assert answer.status_code == status
    assert answer.json().get("type", "").removeprefix("urn:slipway:problem:") == slug
    assert len(await raised(calculator)) == (status == 202)


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"kind": "up"}, "kind", "unknown kind 'up'; known: degraded, down, recovered"),
        ({"target_kind": "planet"}, "target", "unknown target kind 'planet'; known: worker, config"),
        ({"target_id": "zone-z"}, "unreached", "no launch config is of zone 'zone-z'"),
        ({"ttl_seconds": 0}, "ttl", "is not above 0"),
        ({"ttl_seconds": 1e9}, "ttl", "at most 86400"),
        ({"observed_at": after(-601).isoformat()}, "expired", "its time was over 1 s ago"),
        ({"observed_at": after(61).isoformat()}, "future", "in the future"),
        ({"value": 2}, "value", "2 is not between 0 and 1"),
        ({"kind": "pause_request"}, "target", "a pause_request is of a config; of a zone it has no effect"),
        (
            {"kind": "pause_request", "target_kind": "config", "target_id": "nope"},
            "unreached",
            "there is no launch config 'nope'",
        ),
        (
            {"kind": "resume_request", "target_kind": "config", "target_id": "nope"},
            "unreached",
            "there is no launch config 'nope'",
        ),
        ({"kind": "down", "target_kind": "worker"}, "unreached", "does not boot"),
        (
            {"kind": "spot_interruption", "target_kind": "worker", "target_id": "i-0001"},
            "target",
            "'i-0001' is no worker's id",
        ),
        ({"kind": "capacity_hint"}, "value", "a capacity_hint needs one"),
        ({"kind": "down", "target_kind": "pool", "target_id": "linux"}, "share", "would close 3 of 3 active configs"),
        ({"kind": "down"}, "source", "may not say down of a zone"),
        ({"source": "pager"}, "source", "the data names 'pager', and the token is of 'status-page'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_no_rule_allows_is_refused(
    calculator: Calculator, tmp_path: Path, changes: dict[str, Any], reason: str, detail: str
) -> None:
    """With the reason in words and as a word to count; nothing is stored, nothing is published."""
    before, said = counted(reason), SAID | changes
    rules = "unnamed: {kinds: [degraded]}" if (changes, reason) == ({"kind": "down"}, "source") else ""
    async with caller(calculator, tmp_path, rules=rules) as client:
        answer = await client.post("/signals", json=said)
        told = answer.json()
        assert (answer.status_code, told["type"]) == (422, "urn:slipway:problem:signal-refused")
        assert told["detail"].startswith(f"{reason}: ")
        assert detail in told["detail"]
        assert (await client.get("/signals")).json() == {"items": [], "refused": []}
    assert await raised(calculator) == []
    assert counted(reason) == before + ("source" not in changes)


@pytest.mark.parametrize(
    ("headers", "body", "status", "detail"),
    [
        ({}, "{", 400, "truncated"),
        ({}, "[]", 422, "Expected `object`, got `array`"),
        ({}, json.dumps(SAID | {"target": "x"}), 422, "unknown field `target`"),
        ({}, json.dumps(SAID | {"reason": ""}), 422, "length >= 1"),
        ({}, json.dumps(SAID | {"reason": "x" * 501}), 422, "length <= 500"),
        ({}, json.dumps(SAID | {"observed_at": "2030-01-01T00:00:00"}), 422, "timezone"),
        ({}, json.dumps(SAID | {"ttl_seconds": "600"}), 422, "Expected `float`, got `str`"),
        (BINARY | {"ce-type": "io.odd.v1"}, json.dumps(SAID), 422, "'io.odd.v1' is no signal"),
        (BINARY | {"ce-specversion": "0.3"}, json.dumps(SAID), 422, "specversion (1.0), id, source and type"),
        ({"content-type": "application/cloudevents+json"}, json.dumps(SAID), 422, "missing required field"),
        ({"content-type": "application/cloudevents+json"}, json.dumps(structured(SAID, id="")), 422, "specversion"),
    ],
)
async def test_what_is_no_signal_is_refused(
    calculator: Calculator, tmp_path: Path, headers: dict[str, str], body: str, status: int, detail: str
) -> None:
    async with caller(calculator, tmp_path) as client:
        answer = await client.post("/signals", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert detail in answer.json()["detail"]
    assert await raised(calculator) == []


async def test_texts_that_no_column_takes(calculator: Calculator, tmp_path: Path) -> None:
    """Are refused, not failed on."""
    async with caller(calculator, tmp_path) as client:
        for said in (SAID | {"reason": "a\0b"}, SAID | {"target_id": "a\0b"}, SAID | {"reason": "\ud800"}):
            assert (await client.post("/signals", content=json.dumps(said))).status_code in (202, 400, 422)
    assert all("\0" not in event.target_id for event in await raised(calculator))


async def test_one_more_closure_than_its_share_is_refused(calculator: Calculator, tmp_path: Path) -> None:
    """By what the source has said before, once that is heard."""
    down = SAID | {"kind": "down"}
    async with caller(calculator, tmp_path) as client:
        assert (await client.post("/signals", json=down)).status_code == 202
        (event,) = await raised(calculator)
        await calculator.tell(event)
        answer = await client.post("/signals", json=down | {"target_id": "zone-a"})
        assert (answer.status_code, answer.json()["detail"].split(":")[0]) == (422, "share")
        await calculator.set_clock(600)
        observed_at = (after(0) + timedelta(seconds=600)).isoformat()
        later = await client.post("/signals", json=down | {"target_id": "zone-a", "observed_at": observed_at})
        assert later.status_code == 202
