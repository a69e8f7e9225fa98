"""`POST /signals` and `GET /signals`: permissions, CloudEvents modes, and refusals without effect."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import pytest
from prometheus_client import REGISTRY

from slipway_api.events.signal import SignalRaised
from slipway_api.events.signal_kinds import KINDS
from slipway_api.events.topics import DECODERS, LAUNCH_CONFIG_SIGNAL
from slipway_common.base.ids import hash_secret
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_weight_calculator.main import build
from slipway_weight_calculator.settings import Settings
from tests.support.weight_calculator import Calculator, after, calculator_on, declared, ok

ZONES = ("zone-a", "zone-b", "zone-c")
BODY: dict[str, Any] = {
    "target_kind": "zone",
    "target_id": "zone-b",
    "kind": "degraded",
    "reason": "status page",
    "ttl_seconds": 600,
    "observed_at": after(0).isoformat(),
}
OTHER_WORKER = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"
BINARY = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/page", "ce-type": SignalRaised.type}


@pytest.fixture
async def calculator(postgres: EmbeddedPostgres) -> AsyncIterator[Calculator]:
    """Three declared zones of one pool, at START."""
    async with calculator_on(postgres) as calculator:
        await calculator.consume(*map(declared, ZONES))
        yield calculator


@contextlib.asynccontextmanager
async def caller(
    calculator: Calculator,
    folder: Path,
    scopes: Sequence[str] = ("signal:write:*", "read"),
    *,
    secret: str = "secret",
    rules: str = "",
    name: str = "status-page",
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the real routes, with a token of this name."""
    (folder / "tokens.yaml").write_bytes(
        msgspec.json.encode([{"name": name, "sha256": hash_secret("secret"), "scopes": scopes}])
    )
    (folder / "sources.yaml").write_text(rules or "{}")
    settings: dict[str, Any] = {"tokens_file": folder / "tokens.yaml", "signal_sources_file": folder / "sources.yaml"}
    service = build(Settings(database_url="", kafka="", **settings))
    service.runtime.database = calculator.database
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    transport = httpx2.ASGITransport(app=service.app(), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://calculator", headers=headers) as client:
        yield client


async def raised(calculator: Calculator) -> list[SignalRaised]:
    """Signals in the outbox."""
    rows = await calculator.database.fetch(
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
        ({}, BODY),
        (BINARY, BODY),
        ({"content-type": "application/cloudevents+json; charset=utf-8"}, structured(BODY)),
        ({}, BODY | {"source": "status-page"}),
    ],
    ids=["plain", "binary", "structured", "own-name"],
)
async def test_a_signal_is_published_to_the_topic(
    calculator: Calculator, tmp_path: Path, headers: Mapping[str, str], body: dict[str, Any]
) -> None:
    """The source is the token's name. The signal counts once it is consumed from the topic."""
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
        await calculator.consume(event)
        (item,) = (await client.get("/signals")).json()["items"]
    assert item == {
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


async def test_a_signal_without_a_time_is_observed_now(calculator: Calculator, tmp_path: Path) -> None:
    await calculator.set_clock(77)
    body = {name: value for name, value in BODY.items() if name != "observed_at"}
    async with caller(calculator, tmp_path) as client:
        assert (await client.post("/signals", json=body)).status_code == 202
    (event,) = await raised(calculator)
    assert event.observed_at == after(77)


async def test_a_signal_on_a_worker(calculator: Calculator, tmp_path: Path) -> None:
    """It reaches the config of a booting worker; for other workers it is passed on to the provisioner."""
    booting = ok(config_id="zone-c")
    await calculator.consume(booting)
    async with caller(calculator, tmp_path) as client:
        for worker_id, configs in ((booting.worker_id, ["zone-c"]), (OTHER_WORKER, [])):
            body = BODY | {"target_kind": "worker", "target_id": worker_id, "kind": "spot_interruption"}
            answer = await client.post("/signals", json=body)
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
async def test_a_token_may_raise_what_its_scopes_allow(
    calculator: Calculator, tmp_path: Path, scopes: list[str], secret: str, status: int, slug: str
) -> None:
    async with caller(calculator, tmp_path, scopes, secret=secret) as client:
        answer = await client.post("/signals", json=BODY)
    assert answer.status_code == status
    assert answer.json().get("type", "").removeprefix("urn:slipway:problem:") == slug
    assert len(await raised(calculator)) == (status == 202)


@pytest.mark.parametrize(
    ("scopes", "target_kind", "target_id", "status"),
    [
        (["signal:write:owner:team-a"], "zone", "zone-a", 202),
        (["signal:write:owner:team-*"], "config", "mixed-a", 202),
        (["signal:write:owner:team-a"], "zone", "mixed", 403),
        (["signal:write:owner:team-a", "signal:write:owner:team-b"], "zone", "mixed", 202),
        (["signal:write:owner:team-a"], "account", "sim-a", 403),
        (["signal:write:owner:team-a"], "image", "linux-1", 403),
        (["signal:write:owner:team-a"], "zone", "zone-c", 403),
        (["signal:write:owner:*"], "zone", "zone-c", 202),
        (["signal:write:owner:team-a"], "zone", "nowhere", 403),
        (["signal:write:owner:zone-a"], "zone", "zone-a", 403),
        (["signal:write:owner:team-a"], "owner", "team-b", 403),
        (["signal:write:owner:team-a", "signal:write:zone:mixed"], "zone", "mixed", 202),
    ],
)
async def test_a_token_for_an_owner_raises_what_reaches_that_owner_alone(
    calculator: Calculator, tmp_path: Path, scopes: list[str], target_kind: str, target_id: str, status: int
) -> None:
    """Zone mixed has launch configs of two owners, zone-c one of nobody. A signal that reaches nothing is for tokens
    without such a limit."""
    await calculator.consume(
        declared("zone-a", revision=2, owner="team-a"),
        declared("mixed-a", zone="mixed", owner="team-a"),
        declared("mixed-b", zone="mixed", owner="team-b"),
    )
    async with caller(calculator, tmp_path, scopes) as client:
        answer = await client.post("/signals", json=BODY | {"target_kind": target_kind, "target_id": target_id})
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["type"] == "urn:slipway:problem:scope-missing"
    assert len(await raised(calculator)) == (status == 202)


async def test_a_worker_belongs_to_the_owner_of_its_launch_config_while_it_boots(
    calculator: Calculator, tmp_path: Path
) -> None:
    """Of other workers the weight-calculator knows no owner; an adopted launch config has another one at once."""
    booting = ok(config_id="zone-c")
    await calculator.consume(booting)
    body = BODY | {"target_kind": "worker", "kind": "spot_interruption"}
    found = []
    async with caller(calculator, tmp_path, ["signal:write:owner:team-a"]) as client:
        for revision, owner in enumerate(("team-a", "team-b"), start=2):
            await calculator.consume(declared("zone-c", revision=revision, owner=owner))
            for worker_id in (booting.worker_id, OTHER_WORKER):
                found.append((await client.post("/signals", json=body | {"target_id": worker_id})).status_code)
    assert found == [202, 403, 403, 403]


AGAINST_RULES: Final[list[tuple[dict[str, Any], str, str]]] = [
    # changes, reason, detail
    ({"kind": "up"}, "kind", f"unknown kind 'up'; known: {', '.join(KINDS)}"),
    ({"target_kind": "planet"}, "target", "unknown target kind 'planet'; known: worker, config"),
    ({"target_id": "zone-z"}, "unreached", "no launch config belongs to zone 'zone-z'"),
    ({"ttl_seconds": 0}, "ttl", "must be above 0"),
    ({"ttl_seconds": 1e9}, "ttl", "at most 86400"),
    ({"observed_at": after(-601).isoformat()}, "expired", "it expired 1 s ago"),
    ({"observed_at": after(61).isoformat()}, "future", "in the future"),
    ({"value": 2}, "value", "2 is not between 0 and 1"),
    ({"kind": "pause_request"}, "target", "a pause_request needs target kind config, not zone"),
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
    ({"kind": "down", "target_kind": "worker"}, "unreached", "is not booting"),
    (
        {"kind": "spot_interruption", "target_kind": "worker", "target_id": "i-0001"},
        "target",
        "'i-0001' is not a worker id",
    ),
    ({"kind": "capacity_hint"}, "value", "a capacity_hint needs a value"),
    (
        {"kind": "down", "target_kind": "pool", "target_id": "linux"},
        "share",
        "would trip 3 of 3 active launch configs",
    ),
    ({"kind": "down"}, "source", "may not raise down for target kind 'zone'"),
    ({"source": "pager"}, "source", "the body names 'pager', but the token belongs to 'status-page'"),
]


async def test_a_signal_against_the_rules_is_refused(calculator: Calculator, tmp_path: Path) -> None:
    """The answer has the category and text of the reason; nothing is stored or published."""
    for changes, reason, detail in AGAINST_RULES:
        before = counted(reason)
        rules = "unnamed: {kinds: [degraded]}" if (changes, reason) == ({"kind": "down"}, "source") else ""
        async with caller(calculator, tmp_path, rules=rules) as client:
            answer = await client.post("/signals", json=BODY | changes)
            problem = answer.json()
            assert (answer.status_code, problem["type"]) == (422, "urn:slipway:problem:signal-refused"), changes
            assert problem["detail"].startswith(f"{reason}: "), changes
            assert detail in problem["detail"]
            assert (await client.get("/signals")).json() == {"items": [], "refused": []}
        assert counted(reason) == before + ("source" not in changes), changes
    assert await raised(calculator) == []


MALFORMED: Final[list[tuple[dict[str, str], str, int, str]]] = [
    # headers, body, status, detail
    ({}, "{", 400, "truncated"),
    ({}, "[]", 422, "body: must be object, not array"),
    ({}, json.dumps(BODY | {"target": "x"}), 422, "body/target: unknown field; did you mean target_id?"),
    ({}, json.dumps(BODY | {"reason": ""}), 422, "body/reason: must be a text of at least 1 characters"),
    ({}, json.dumps(BODY | {"reason": "x" * 501}), 422, "body/reason: must be a text of at most 500 characters"),
    ({}, json.dumps(BODY | {"observed_at": "2030-01-01T00:00:00"}), 422, "body/observed_at: must be a timestamp"),
    ({}, json.dumps(BODY | {"ttl_seconds": "600"}), 422, "body/ttl_seconds: must be float, not str"),
    (BINARY | {"ce-type": "io.odd.v1"}, json.dumps(BODY), 422, "'io.odd.v1' is not the type of a signal"),
    (BINARY | {"ce-specversion": "0.3"}, json.dumps(BODY), 422, "specversion (1.0), id, source and type"),
    ({"content-type": "application/cloudevents+json"}, json.dumps(BODY), 422, "body/specversion: is required"),
    ({"content-type": "application/cloudevents+json"}, json.dumps(structured(BODY, id="")), 422, "specversion"),
    (
        {"content-type": "application/cloudevents+json"},
        json.dumps(structured(BODY | {"reason": ""})),
        422,
        "body/data/reason: must be a text of at least 1 characters",
    ),
]


async def test_a_malformed_signal_is_refused(calculator: Calculator, tmp_path: Path) -> None:
    async with caller(calculator, tmp_path) as client:
        for headers, body, status, detail in MALFORMED:
            answer = await client.post("/signals", content=body, headers=headers)
            assert answer.status_code == status, (headers, body)
            assert answer.headers["content-type"] == "application/problem+json"
            assert detail in answer.json()["detail"], (headers, body)
    assert await raised(calculator) == []


async def test_text_that_cannot_be_stored(calculator: Calculator, tmp_path: Path) -> None:
    """Such requests are refused without an internal error."""
    async with caller(calculator, tmp_path) as client:
        for body in (BODY | {"reason": "a\0b"}, BODY | {"target_id": "a\0b"}, BODY | {"reason": "\ud800"}):
            assert (await client.post("/signals", content=json.dumps(body))).status_code in (400, 422)
    assert await raised(calculator) == []


async def test_a_trip_beyond_its_share_is_refused(calculator: Calculator, tmp_path: Path) -> None:
    """Earlier signals of the source count towards its share once they are consumed."""
    down = BODY | {"kind": "down"}
    async with caller(calculator, tmp_path) as client:
        assert (await client.post("/signals", json=down)).status_code == 202
        (event,) = await raised(calculator)
        await calculator.consume(event)
        answer = await client.post("/signals", json=down | {"target_id": "zone-a"})
        assert (answer.status_code, answer.json()["detail"].split(":")[0]) == (422, "share")
        await calculator.set_clock(600)
        observed_at = (after(0) + timedelta(seconds=600)).isoformat()
        later = await client.post("/signals", json=down | {"target_id": "zone-a", "observed_at": observed_at})
        assert later.status_code == 202


async def test_a_launch_config_by_name_or_by_revision(calculator: Calculator, tmp_path: Path) -> None:
    """A name stands for all its revisions; names may contain slashes."""
    ids = ["gecko-t/t-linux@1", "gecko-t/t-linux@2"]
    await calculator.consume(*map(declared, ids))
    async with caller(calculator, tmp_path, ["signal:write:config:gecko-t/*", "read"]) as client:
        for target, reached in (("gecko-t/t-linux", ids), (ids[1], ids[1:])):
            answer = await client.post("/signals", json=BODY | {"target_kind": "config", "target_id": target})
            assert (answer.status_code, answer.json()["configs"]) == (202, reached)
        for event in await raised(calculator):
            await calculator.consume(event)
        listed = {item["target_id"]: item["configs"] for item in (await client.get("/signals")).json()["items"]}
    assert listed == {"gecko-t/t-linux": ids, ids[1]: ids[1:]}
