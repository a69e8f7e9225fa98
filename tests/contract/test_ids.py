"""Ids of any kind, which may contain slashes: no two meet in a key, a subject, a URL, a tag, a column or a metric, and
one of another system's form passes every door."""

import importlib
import pkgutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import slipway_lease_broker.http
import slipway_provisioner.http
import slipway_simulator.http
import slipway_weight_calculator.http
from slipway_api.events.alert import AlertRaised, alert_key
from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.lease import LeaseGranted, LeaseLimitChanged, LeaseRequested
from slipway_api.events.scopes import Key, capacity_key, credential_key, image_key, quota_key
from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import LEASE_LIFECYCLE, TOPICS, Topic
from slipway_api.events.weight import SharedWindow
from slipway_api.limits import KEY, NAME, NOTE
from slipway_api.percent import decoded, encoded
from slipway_client.transport.http import path
from slipway_common.base.clock import utc_now
from slipway_common.base.errors import BadEvent
from slipway_common.base.ids import new_id
from slipway_common.declaration.parsing import parse
from slipway_common.declaration.strict_yaml import Invalid
from slipway_common.messaging import consume, outbox
from slipway_common.messaging.consume import Consumer
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Record
from slipway_common.web.paths import IdConvertor
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.handlers.leases import record_leases
from slipway_provisioner.providers.process import tag_prefix
from slipway_provisioner.providers.simulated import Simulated
from slipway_simulator.facts import Call
from slipway_simulator.ledger import read
from slipway_simulator.main import served
from slipway_simulator.settings import Settings as SimulatorSettings
from tests.contract.test_signals_api import caller
from tests.support.harness import PATIENCE_SECONDS
from tests.support.lease_broker import terms
from tests.support.lease_broker_http import world_on
from tests.support.providers import provider_settings
from tests.support.provisioner import Provisioner, administrator, declared, provisioner_on, report, weight
from tests.support.serving import serving
from tests.support.weight_calculator import calculator_on

ID: Final = "gecko-t/t-linux-large"  # as Taskcluster names its pools
LONGEST: Final = "/".join("a" * 64)  # has the most characters to encode

# Names as they are declared, and texts from outside that may contain anything.
SPECIAL: Final = st.text('a/%2F@.:é\n"\\', max_size=6)
TEXTS: Final = SPECIAL | st.text(max_size=8)


@st.composite
def neighbours(draw: st.DrawFn, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two lists of so many texts, whose texts joined by slashes are often the same."""
    pieces = draw(st.lists(st.text("a%2F@", min_size=1, max_size=2), min_size=number, max_size=number + 2))
    places = st.lists(st.integers(1, len(pieces) - 1), min_size=number - 1, max_size=number - 1, unique=True)

    def divided() -> tuple[str, ...]:
        cuts = sorted(draw(places)) if number > 1 else []
        return tuple("/".join(pieces[start:end]) for start, end in pairwise([0, *cuts, len(pieces)]))

    return divided(), divided()


def pairs(number: int, texts: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[tuple[tuple[str, ...], ...]]:
    """Two lists of so many texts that may be anything, or are alike."""
    return neighbours(number) | st.tuples(*(st.tuples(*[texts] * number) for _ in range(2)))


# Keys, subjects, tags, URLs, columns and metrics


@given(pairs(3, TEXTS.map(lambda text: text.replace(".", ""))))
def test_quotas_differ(two: tuple[tuple[str, str, str], ...]) -> None:
    one, other = two
    assert (quota_key(*one).text == quota_key(*other).text) == (one == other)


@given(pairs(2))
def test_keys_of_two_resources_differ(two: tuple[tuple[str, str], ...]) -> None:
    """Of any two kinds, also of a quota and another resource."""
    one, other = (Key(*given) for given in two)
    assert (one.text == other.text) == (one == other) or "quota" in (one.kind, other.kind)
    quota = quota_key("a", one.id, "f")
    assert quota.text not in {credential_key(quota.id).text, image_key(quota.id).text, credential_key("a").text}


@given(pairs(3))
def test_parts_are_encoded_without_collisions(two: tuple[tuple[str, str, str], ...]) -> None:
    one, other = two
    assert decoded(encoded(*one)) == one
    assert (encoded(*one) == encoded(*other)) == (one == other)


@given(pairs(3))
def test_keys_of_alerts_differ(two: tuple[tuple[str, str, str], ...]) -> None:
    """On two subjects, of one part or several, whatever the service and the kind of the alert."""
    one, other = two
    assert (alert_key(*one) == alert_key(*other)) == (one == other)
    assert alert_key(*one) != alert_key(*one[:2])


def _fields(topic: Topic) -> Iterator[tuple[str, ...]]:
    """Fields of each event of a topic that hold an id."""
    for event in topic.events:
        yield tuple(name for name in event.__struct_fields__ if name.endswith("_id") or name in ID_FIELDS)


ID_FIELDS: Final = ("source", "service", "target_kind", "subject_kind", "dedup_key")


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
@given(data=st.data())
def test_keys_and_subjects_of_a_topic_differ(topic: Topic, data: st.DataObject) -> None:
    """Two events of a topic have one key, or one subject, exactly if the same ids are in it."""
    names = data.draw(st.sampled_from(sorted(set(_fields(topic)))))
    one, other = (dict(zip(names, ids, strict=True)) for ids in data.draw(pairs(len(names), SPECIAL.filter(bool))))
    for made in (topic.key, topic.subject):
        seen: set[str] = set()
        made(_Seen(one, seen))
        same = all(one[name] == other[name] for name in seen)
        assert (made(SimpleNamespace(**one)) == made(SimpleNamespace(**other))) == same


class _Seen:
    """Event that notes which of its fields are read."""

    def __init__(self, fields: dict[str, str], seen: set[str]) -> None:
        self._fields = fields
        self._seen = seen

    def __getattr__(self, name: str) -> str:
        if name not in self._fields:
            raise AttributeError(name)
        self._seen.add(name)
        return self._fields[name]


@given(SPECIAL.filter(bool), SPECIAL.filter(bool))
def test_subjects_of_two_kinds_of_leases_differ(one: str, other: str) -> None:
    """A lease, a request and a pool of the same id are three subjects."""
    lease_events = [
        LeaseGranted(
            lease_pool_id=other,
            lease_id=one,
            request_id=one,
            units=1,
            fencing_token=1,
            expires_at=utc_now(),
            hold_until=utc_now(),
            waited_seconds=0,
        ),
        LeaseRequested(lease_pool_id=other, request_id=one, units=1, tenant="t"),
        LeaseLimitChanged(lease_pool_id=one, limit=1, previous_limit=1, reason="r"),
    ]
    assert len({LEASE_LIFECYCLE.subject(event) for event in lease_events}) == 3


@given(pairs(2))
def test_tags_of_two_accounts_differ(two: tuple[tuple[str, str], ...]) -> None:
    """No account finds instances of another one by their tag, whatever the deployments are named."""
    one, other = two

    def prefix(name: str, id_: str) -> str:
        return tag_prefix(
            Account(
                id=id_,
                deployment=name,
                provider="process",
                region="r",
                identity="i",
                lease_pool_id="l",
                settings={},
            )
        )

    tag = prefix(*one) + encoded("batch", "1", "config@3f2c9a")
    assert tag.startswith(prefix(*other)) == (one == other)


@given(TEXTS.filter(bool), TEXTS.filter(bool))
def test_urls_of_two_ids_differ(one: str, other: str) -> None:
    """An id is one part of a path, and arrives as it was sent."""
    first, second = path("pools", one), path("pools", other)
    assert (first == second) == (one == other)
    assert urlsplit(f"http://service{first}").path == first
    assert IdConvertor().convert(first.removeprefix("/pools/")) == one
    assert "/" not in first.removeprefix("/pools/")


@given(TEXTS, TEXTS)
def test_metrics_of_two_ids_differ(one: str, other: str) -> None:
    """Ids are values of labels, which arrive as they are; no name of a metric holds an id."""
    registry = CollectorRegistry()
    counter = Counter("slipway_made", "Made.", ["pool"], registry=registry)
    for id_ in (one, other):
        counter.labels(id_).inc()
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    found = {sample.labels["pool"] for sample in family.samples if sample.name == "slipway_made_total"}
    assert found == {one, other}


async def test_columns_are_encoded_like_keys(provisioner: Provisioner) -> None:
    """The database encodes every character as the code does."""
    characters = [chr(code) for code in (*range(1, 0x250), 0x7FF, 0x800, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF)]
    texts = ["", *characters, *(f"a{c}/%2F{c}" for c in characters)]
    found = await provisioner.database.fetch(
        "SELECT percent_encoded(t) AS text FROM unnest($1::text[]) WITH ORDINALITY AS g (t, n) ORDER BY n", texts
    )
    assert [row["text"] for row in found] == [encoded(text) for text in texts]


# Doors


def routes() -> Iterator[APIRoute]:
    for package in (slipway_provisioner, slipway_weight_calculator, slipway_lease_broker, slipway_simulator):
        for module in pkgutil.iter_modules(package.http.__path__):
            router = getattr(importlib.import_module(f"{package.__name__}.http.{module.name}"), "router", None)
            if isinstance(router, APIRouter):
                yield from (route for route in router.routes if isinstance(route, APIRoute))


def test_every_route_takes_ids_with_slashes() -> None:
    found = [(route.path, name, kind) for route in routes() for name, kind in route.param_convertors.items()]
    assert len(found) > 40
    assert [(where, name) for where, name, kind in found if not isinstance(kind, IdConvertor)] == []


BAD: Final = {
    "..": "is not a valid id",
    "a/../b": "is not a valid id",
    ".": "is not a valid id",
    "a//b": "is not a valid id",
    "/a": "is not a valid id",
    "a/": "is not a valid id",
    "a%2Fb": "is not a valid id",
    "a\0b": "is not a valid id",
    "a b": "is not a valid id",
    "a@b": "is not a valid id",
    "a:b": "is not a valid id",
    "": "is not a valid id",
    "é": "is not a valid id",
    "a" * 200: "at most 128",
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("field", ["pool", "name", "account", "lease pool"])
def test_bad_ids_are_refused(bad: str, field: str) -> None:
    """The refusal names the place and says what an id consists of."""
    body = elsewhere("http://cloud")
    pool = body["worker_pools"][0]
    if field == "pool":
        pool["id"] = bad
    elif field == "name":
        pool["launch_configs"][0]["name"] = bad
    elif field == "account":
        body["accounts"][0]["id"] = pool["launch_configs"][0]["account"] = bad
    else:
        body["lease_pools"][0]["id"] = body["accounts"][0]["lease_pool"] = bad
    with pytest.raises(Invalid, match=BAD[bad]):
        parse(body)


def elsewhere(url: str, **launch_config: Any) -> dict[str, Any]:
    """Declaration in which pool, launch config, account and lease pool have the same id."""
    body = declared("zone-a", id=ID, settings={"url": url})
    body["accounts"][0] |= {"id": ID, "identity": ID, "lease_pool": ID}
    body["lease_pools"][0]["id"] = ID
    body["worker_pools"][0]["launch_configs"][0] |= {"name": ID, "account": ID} | launch_config
    return body


def test_the_longest_ids_can_be_published() -> None:
    """No consumer refuses a subject or key of what may be declared."""
    zone = instance_type = region = "~" * 100
    image = "/" * 200
    body = elsewhere("http://cloud", name=LONGEST[:127], zone=zone, instance_type=instance_type, image=image)
    body["accounts"][0]["region"] = region
    parse(body)
    about = [*decoded(quota_key(LONGEST, region, instance_type).text), "x"]
    of_capacity = decoded(capacity_key(LONGEST, region, zone, instance_type).text)
    subjects = [
        alert_key("weight-calculator", "quota-tripped", *about),
        alert_key("weight-calculator", "capacity-unavailable", *of_capacity),
        alert_key("a" * 40, "k" * 40, "image", image),
    ]
    assert not any(map(KEY.problem, subjects))


async def test_a_subject_that_is_too_long_is_not_published(provisioner: Provisioner) -> None:
    """It would be a dead letter of every consumer."""
    long = LeaseRequested(lease_pool_id="sim-a", request_id="/" * KEY.characters, units=1, tenant="t")
    async with provisioner.database.acquire() as db, db.transaction():
        with pytest.raises(BadEvent, match="the subject of"):
            await outbox.enqueue(db, [long])


async def test_notes_that_are_too_long_are_cut_as_they_are_published(provisioner: Provisioner) -> None:
    """The transaction of a service does not fail for a text of its own."""
    alert = AlertRaised(
        dedup_key="a/b/c", subject_kind="pool", subject_id="linux", kind="k", summary="x" * 10_000, evidence=("y",) * 99
    )
    async with provisioner.database.acquire() as db, db.transaction():
        await outbox.enqueue(db, [alert])
    value = await provisioner.database.fetchval("SELECT value FROM outbox ORDER BY id DESC LIMIT 1")
    published = msgspec.json.decode(value)
    assert published["summary"] == "x" * (NOTE.characters - 1) + "…"
    assert published["evidence"][-1] == "and 80 more"


async def test_a_pool_with_slashes(provisioner: Provisioner, tmp_path: Path) -> None:
    """Declaration, demand, pause, freeze, launch config and decisions over HTTP, beside a pool with a similar id."""
    await provisioner.declare(elsewhere("http://cloud"))
    pool, config = path("pools", ID), path("launch-configs", ID)
    async with administrator(provisioner, tmp_path) as client:

        async def call(method: str, at: str, body: Any = None) -> Any:
            answer = await client.request(method, at, json=body)
            assert answer.status_code == 200, (at, answer.text)
            return answer.json()

        assert (await call("GET", pool))["id"] == ID
        demand = {"pending": 2, "observed_at": report(0).observed_at.isoformat(), "source": "q/1"}
        assert await call("PUT", f"{pool}/demand", demand) == {"stored": True}
        await provisioner.plan()
        assert (await call("GET", f"{pool}/decisions"))["items"]
        for verb in ("pause", "resume", "freeze", "unfreeze"):
            assert (await call("POST", f"{pool}/{verb}", {"reason": "r"}))["id"] == ID, verb
        revision = (await call("GET", config))["id"]
        assert (await call("GET", path("launch-configs", revision)))["id"] == revision
        assert revision.startswith(f"{ID}@")
        for verb in ("pause", "resume"):
            await call("POST", f"{config}/{verb}", {"reason": "r"})
        assert (await call("GET", f"{pool}/history"))["items"]
        stop = {"scope": "account", "scope_id": ID, "reason": "r"}
        await call("POST", "/stop-launching", stop)
        await call("POST", "/start-launching", stop)
        for other in ("gecko-t", "gecko-t%2Ft", "gecko-t%252Ft-linux-large", "%2Fgecko-t%2Ft-linux-large", "%00", "%"):
            assert (await client.get(f"/pools/{other}")).status_code in (404, 422), other
        assert (await client.get(f"/pools/{ID}")).status_code == 404, "a slash as such divides the path"
    (row,) = await provisioner.database.fetch("SELECT * FROM launch_config")
    assert row["image_key"] == image_key("simulated/linux-1").text
    assert row["quota_key"] == quota_key(ID, "sim-1", "m5.large").text
    assert row["credential_key"] == credential_key(ID).text
    assert row["capacity_key"] == capacity_key(ID, "sim-1", row["zone"], "m5.large").text


async def test_a_scope_of_a_pool_with_slashes(provisioner: Provisioner, tmp_path: Path) -> None:
    await provisioner.declare(elsewhere("http://cloud"))
    demand = {"pending": 2, "observed_at": report(0).observed_at.isoformat(), "source": "q"}
    for scope, status in ((f"demand:write:{ID}", 200), ("demand:write:gecko-t/*", 200), ("demand:write:gecko-t", 403)):
        async with administrator(provisioner, tmp_path, [scope]) as client:
            assert (await client.put(path("pools", ID, "demand"), json=demand)).status_code == status, scope


async def test_demand_and_requests_over_kafka(provisioner: Provisioner) -> None:
    """The handlers of a report, and of a request of a monitor to pause one of two launch configs."""
    body = elsewhere("http://cloud")
    await provisioner.declare(body)
    await provisioner.demand(report(3, pool_id=ID))
    await provisioner.plan()
    (requested,) = await provisioner.published(LeaseRequested)
    assert (requested.lease_pool_id, requested.tenant) == (ID, ID)
    launch_configs = body["worker_pools"][0]["launch_configs"]
    launch_configs.append(launch_configs[0] | {"name": "other", "zone": "zone-b"})
    await provisioner.declare(body)
    pause = SignalRaised(
        source="m",
        target_kind="config",
        target_id=ID,
        kind="pause_request",
        reason="r",
        observed_at=report(0).observed_at,
    )
    await provisioner.signals(pause)
    assert await provisioner.database.fetchval("SELECT paused FROM launch_config_name WHERE name = $1", ID)


async def test_shares_of_ids_with_slashes(provisioner: Provisioner) -> None:
    """A weight record reaches its revision, and the window of a share is found by the key of the column."""
    await provisioner.declare(elsewhere("http://cloud"))
    id_ = await provisioner.database.fetchval("SELECT id FROM launch_config")
    quota = quota_key(ID, "sim-1", "m5.large")
    share = SharedWindow(kind="quota", id=quota.id, stage="launch", version=1, window=7)
    await provisioner.weights(weight(id_, pool_id=ID, shared=(share,)))
    row = await provisioner.database.fetchrow(
        "SELECT s.size FROM shared_window s JOIN launch_config c ON s.key = c.quota_key WHERE s.stage = 'launch'"
    )
    assert row["size"] == 7


async def test_a_launch_on_the_simulated_cloud(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """The ledger has the plain ids; the instance is listed by its account, and its worker registers and claims."""
    simulator = SimulatorSettings(port=free_ports(1)[0], ledger=tmp_path / "ledger.jsonl", kafka="")
    url = f"http://127.0.0.1:{simulator.port}"
    provider = Simulated(provider_settings())
    async with serving(served(simulator)), provisioner_on(postgres, provider) as provisioner:
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS) as cloud:
            scenario = {"speed": 1000, "accounts": {ID: {"capacity": {"zone-a": 3}}}}
            assert (await cloud.post("/scenario", json=scenario)).status_code == 200
            assert (await cloud.put(path("demand", ID), json={"pending": 1})).json()["pool_id"] == ID
        await provisioner.declare(elsewhere(url))
        await provisioner.trust()
        await provisioner.demand(report(1, pool_id=ID))
        await provisioner.plan()
        await provisioner.leases(*map(provisioner.granted, await provisioner.published(LeaseRequested)))
        await provisioner.launch()
        worker = await provisioner.worker()
        calls = [fact for fact in read(simulator.ledger) if isinstance(fact, Call)]
        deployment = await provisioner.database.fetchval("SELECT id FROM deployment")
        found = [(call.account, call.config, call.deployment) for call in calls]
        assert found == [(ID, worker.launch_config_id, deployment)]
        registered = await provisioner.register(worker.instance_id or "", worker.batch_id)
        assert (registered.status_code, registered.json()["pool_id"]) == (200, ID)
        claim = {"task_id": "t/1", "source": "q/1", "at": report(0).observed_at.isoformat()}
        async with provisioner.client(token=registered.json()["token"]) as machine:
            claimed = await machine.post(f"/workers/{worker.id}/claimed", json=claim)
            assert claimed.status_code == 200
            asked = (await machine.get(f"/workers/{worker.id}/should-terminate")).json()
        assert (asked["terminate"], asked["config"]) == (False, ID)
        assert f"{ID}@{asked['revision']}" == worker.launch_config_id
        account = Account(
            id=ID,
            deployment=deployment,
            provider="simulated",
            region="sim-1",
            identity=ID,
            lease_pool_id=ID,
            settings={"url": url},
        )
        assert await provider.identity(account) == ID
        assert [i.id for i in await provider.instances(account)] == [worker.instance_id]
        assert await provider.exists(account, worker.instance_id or "", launched_at=None)
        await provider.terminate(account, [worker.instance_id or ""])
        async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_SECONDS) as cloud:
            console = await cloud.get(provider.console(account, worker.batch_id or "", worker.instance_id or ""))
        assert console.status_code == 200
        await provider.close()


@pytest.mark.parametrize("kind", ["config", "pool", "account"])
async def test_a_signal_on_an_id_with_slashes(postgres: EmbeddedPostgres, tmp_path: Path, kind: str) -> None:
    """The signal reaches the revision, and counts once it is consumed; one on a part of the id reaches nothing."""
    config = LaunchConfigCreated(
        launch_config_id=f"{ID}@3f2c9a",
        name=ID,
        pool_id=ID,
        account_id=ID,
        region="r",
        zone="z",
        instance_type="t",
        image_revision="i/1",
        base_weight=1,
        price_factor=1,
        state="active",
        revision=1,
    )
    async with calculator_on(postgres) as calculator:
        await calculator.consume(config)
        body = {"target_kind": kind, "target_id": ID, "kind": "degraded", "reason": "r"}
        async with caller(calculator, tmp_path, [f"signal:write:{kind}:gecko-t/*", "read"]) as client:
            answer = await client.post("/signals", json=body)
            assert (answer.status_code, answer.json()["configs"]) == (202, [config.launch_config_id])
            assert (await client.post("/signals", json=body | {"target_id": "gecko-t"})).status_code == 403
            assert (await client.post("/signals", json=body | {"target_id": "gecko-t/t"})).status_code == 422
            weights = (await client.get("/weights")).json()["items"]
        assert [item["launch_config_id"] for item in weights] == [config.launch_config_id]


async def test_a_lease_of_a_pool_with_slashes(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Acquire, queue, cancel, renew and release over HTTP, also with a request id that has slashes."""
    pool = path("lease-pools", ID)
    async with world_on(postgres, tmp_path) as world:
        await world.broker.declare(terms(ID, limit=1))
        call = world.replica.call
        held = await call("POST", f"{pool}/leases", {"request_id": "task/1"})
        assert (held.status_code, held.json()["lease_pool_id"]) == (200, ID)
        assert (await call("POST", f"{pool}/leases", {"request_id": "task%2F1"})).status_code == 202
        waiting = path("lease-pools", ID, "requests", "task%2F1")
        assert (await call("GET", waiting)).json()["request_id"] == "task%2F1"
        assert (await call("DELETE", waiting)).status_code == 200
        lease = path("leases", held.json()["lease_id"])
        fencing = {"fencing_token": held.json()["fencing_token"]}
        assert (await call("POST", f"{lease}/renew", fencing)).status_code == 200
        assert (await call("POST", f"{lease}/release", fencing)).status_code == 200
        history = await call("GET", f"{pool}/history")
        assert {item["request_id"] for item in history.json()["items"]} >= {"task/1", "task%2F1"}
        assert (await call("GET", f"{pool}/report")).status_code == 200
        assert (await call("POST", "/lease-pools/gecko-t/leases", {"request_id": "r"})).status_code == 404
        before = await world.rows()
        for long in ("/" * (NAME.characters + 1), "\N{CRAB}" * (NAME.bytes // 4 + 1)):
            refused = await call("POST", f"{pool}/leases", {"request_id": long})
            assert (refused.status_code, "at most" in refused.text) == (422, True)
        assert await world.rows() == before


async def test_dead_letters_of_ids_with_slashes(provisioner: Provisioner, tmp_path: Path) -> None:
    """Events behind a dead one are parked for its id only, are listed with it, and are applied by a replay."""
    subjects = [ID, "gecko-t", ID]
    consumer = Consumer("provisioner", LEASE_LIFECYCLE, record_leases)
    async with provisioner.database.acquire() as db:
        owned, _ = await consume.claim(db, LEASE_LIFECYCLE.name, 0, "c")
        records = [_limit_changed(n, id_, broken=n == 0) for n, id_ in enumerate(subjects)]
        await consume.apply(db, consumer, owned, records)
    async with administrator(provisioner, tmp_path) as client:
        letters = (await client.get("/dead-letters")).json()["items"]
        found = [(letter["offset"], letter["subject"], letter["state"]) for letter in letters]
        about = encoded("lease-pool", ID)
        assert found == [(0, about, "dead"), (2, about, "parked")]
        place = {"topic": LEASE_LIFECYCLE.name, "partition": 0, "offset": 0}
        dropped = await client.post("/dead-letters/drop", json=place)
        assert (dropped.status_code, dropped.json()["applied"]) == (200, 1)
        assert (await client.get("/dead-letters")).json() == {"items": [], "next": None}


def _limit_changed(offset: int, lease_pool_id: str, *, broken: bool) -> Record:
    event = LeaseLimitChanged(lease_pool_id=lease_pool_id, limit=1, previous_limit=2, reason="r")
    envelope = Envelope(
        id=new_id(),
        type=event.type,
        source="/slipway/lease-broker",
        subject=LEASE_LIFECYCLE.subject(event),
        time=utc_now(),
        sequence_number=offset + 1,
        previous=offset,
        sequence_source="/slipway/lease-broker/1",
        revision=1,
    )
    value = b"{" if broken else msgspec.json.encode(event)
    key = LEASE_LIFECYCLE.key(event).encode()
    return Record(LEASE_LIFECYCLE.name, 0, offset, key, value, encode(envelope), 0)
