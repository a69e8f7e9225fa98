"""Dead letters: listing, replay and dropping."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import yaml

from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import LAUNCH_CONFIG_SIGNAL, WORKER_LIFECYCLE, Topic
from slipway_api.http.service import Replayed
from slipway_common.base.clock import utc_now
from slipway_common.base.errors import Transient
from slipway_common.base.ids import hash_secret, new_id
from slipway_common.database.postgres import Connection, Database
from slipway_common.messaging import consume, dead_letters
from slipway_common.messaging.consume import Consumer
from slipway_common.messaging.dead_letters import NotDead
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Received, Record, Undecoded
from slipway_common.service import Service, ServiceSettings
from tests.support.harness import SERVICE, Place, record_words, report

TOPIC = WORKER_LIFECYCLE.name


class Handler:
    """Handler that refuses the words in `refused` and raises infrastructure errors for those in `troubled`.

    `counted` are the words counted by its callback after the commit."""

    def __init__(self) -> None:
        self.refused = {"bad"}
        self.troubled: set[str] = set()
        self.counted: list[str] = []

    async def __call__(self, tx: Connection, events: Sequence[Received]) -> Callable[[], None]:
        await record_words(tx, events)
        for received in events:
            if received.event.kind in self.refused:
                raise ValueError(f"{received.event.kind} is refused")
            if received.event.kind in self.troubled:
                raise Transient("the database is away")
        return lambda: self.counted.extend(received.event.kind for received in events)


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def database(place: Place, handler: Handler) -> Database:
    """Database with dead letters: a of w1 is dead, b and c are parked; w2 has a single one, w3 none."""
    async with place.database.acquire() as db:
        owned, _ = await consume.claim(db, TOPIC, 0, "cluster")
        words = [("w1", "bad"), ("w1", "b"), ("w2", "bad"), ("w3", "d"), ("w1", "c")]
        records = [record(offset, *word) for offset, word in enumerate(words)]
        await consume.apply(db, consumer(handler), owned, records)
    return place.database


def consumer(handler: Handler, topic: Topic = WORKER_LIFECYCLE) -> Consumer:
    return Consumer(SERVICE, topic, handler)


def record(offset: int, subject: str, word: str) -> Record:
    event = report(subject, word)
    envelope = Envelope(
        id=new_id(), type=event.type, source="/s", subject=subject, time=utc_now(), sequence_number=offset + 1
    )
    return Record(TOPIC, 0, offset, subject.encode(), msgspec.json.encode(event), encode(envelope), 1_000)


async def remaining(database: Database) -> list[tuple[int, str, str]]:
    async with database.acquire() as db:
        return [(d.offset, d.subject, d.state) for d in await dead_letters.fetch(db)]


async def test_replay(place: Place, database: Database, handler: Handler) -> None:
    """Replay applies the dead record and those parked behind it in order; others are not affected."""
    assert await remaining(database) == [(0, "w1", "dead"), (1, "w1", "parked"), (2, "w2", "dead"), (4, "w1", "parked")]
    handler.refused = set()
    async with database.acquire() as db:
        assert await dead_letters.replay(db, consumer(handler), 0, 4, "ops") == Replayed(3, 0)
        with pytest.raises(NotDead):
            await dead_letters.replay(db, consumer(handler), 0, 0, "ops")
    assert await place.words("w1") == ["bad", "b", "c"]
    assert handler.counted == ["d", "bad", "b", "c"]
    assert await remaining(database) == [(2, "w2", "dead")]


async def test_replay_fails_again(place: Place, database: Database, handler: Handler) -> None:
    """Replay stops at the first failure: that record is dead, later ones stay parked."""
    handler.refused = {"b"}
    async with database.acquire() as db:
        outcome = await dead_letters.replay(db, consumer(handler), 0, 0, "ops")
    assert outcome == Replayed(1, 2, "ValueError: b is refused")
    assert await place.words("w1") == ["bad"]
    assert handler.counted == ["d", "bad"]
    assert await remaining(database) == [(1, "w1", "dead"), (2, "w2", "dead"), (4, "w1", "parked")]


async def test_replay_meets_an_outage(place: Place, database: Database, handler: Handler) -> None:
    """An infrastructure error changes nothing."""
    before = await remaining(database)
    handler.refused, handler.troubled = set(), {"c"}
    async with database.acquire() as db:
        with pytest.raises(Transient):
            await dead_letters.replay(db, consumer(handler), 0, 0, "ops")
    assert (await remaining(database), await place.words("w1"), handler.counted) == (before, [], ["d"])


async def test_drop(place: Place, database: Database, handler: Handler) -> None:
    """Records parked behind a dropped one are applied; dropping one in the middle only deletes it."""
    async with database.acquire() as db:
        outcome = await dead_letters.drop(db, consumer(handler), 0, 1, "ops")
        assert outcome == Replayed(0, 2, "ValueError: bad is refused")
        assert await dead_letters.drop(db, consumer(handler), 0, 0, "ops") == Replayed(1, 0)
    assert await place.words("w1") == ["c"]
    assert await remaining(database) == [(2, "w2", "dead")]


async def test_input_of_monitors_stands_alone(place: Place, handler: Handler) -> None:
    """Without ordering, each dead letter is replayed on its own."""
    signals = consumer(handler, LAUNCH_CONFIG_SIGNAL)
    event = SignalRaised(source="s", target_kind="config", target_id="c", kind="bad", reason="r", observed_at=utc_now())
    async with place.database.acquire() as db:
        owned, _ = await consume.claim(db, LAUNCH_CONFIG_SIGNAL.name, 0, "cluster")
        records = [
            Record(
                LAUNCH_CONFIG_SIGNAL.name,
                0,
                offset,
                b"c",
                msgspec.json.encode(event),
                encode(Envelope(id=new_id(), type=event.type, source="/s", subject="c", time=utc_now())),
                1_000,
            )
            for offset in range(2)
        ]
        await consume.apply(db, signals, owned, records)
        handler.refused = set()
        assert await dead_letters.replay(db, signals, 0, 1, "ops") == Replayed(1, 0)
    assert await remaining(place.database) == [(0, "c", "dead")]


async def test_undecoded_batch(place: Place, database: Database, handler: Handler) -> None:
    """It can be shown and dropped; a replay changes nothing and says so. It blocks no subject."""
    raw = Undecoded(b"\xff\0batch", "record batch of offsets 5…6 cannot be decoded: wrong checksum")
    async with database.acquire() as db:
        owned, _ = await consume.claim(db, TOPIC, 0, "cluster")
        batch = Record(TOPIC, 0, 6, None, raw, (), 1_000)
        await consume.apply(db, consumer(handler), owned, [batch, record(7, "w4", "e")])
        said = Replayed(0, 1, f"{raw.reason}; it can only be shown and dropped")
        for _ in range(2):
            assert await dead_letters.replay(db, consumer(handler), 0, 6, "ops") == said
        shown = await dead_letters.find(db, TOPIC, 0, 6)
        assert (shown.undecoded, shown.value, shown.reason) == (True, raw.hex(), raw.reason)
        assert await dead_letters.drop(db, consumer(handler), 0, 6, "ops") == Replayed(0, 0)
        with pytest.raises(NotDead):
            await dead_letters.find(db, TOPIC, 0, 6)
    assert await place.words("w4") == ["e"]


async def test_http(place: Place, database: Database, handler: Handler, tmp_path: Path) -> None:
    """Listing, showing, replaying and dropping need a token with the scope."""
    tokens = tmp_path / "tokens.yaml"
    names = {"mender": ["dead-letters:write", "read:settings"], "stranger": ["demand:write:linux"]}
    tokens.write_text(
        yaml.safe_dump([{"name": n, "sha256": hash_secret(n), "scopes": scopes} for n, scopes in names.items()])
    )
    settings = ServiceSettings(database_url=place.url, kafka="nowhere:1", tokens_file=tokens)
    probe = Service(SERVICE, settings, consumes={WORKER_LIFECYCLE: handler})
    transport = httpx2.ASGITransport(app=probe.app())
    headers = {"Authorization": "Bearer mender"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://probe", headers=headers) as http:

        async def post(path: str, token: str = "mender", **letter: Any) -> tuple[int, Any]:
            body = {"topic": TOPIC, "partition": 0, "offset": 0} | letter
            answer = await http.post(path, json=body, headers={"Authorization": f"Bearer {token}"})
            return answer.status_code, answer.json()

        assert (await http.get("/dead-letters")).status_code == 503
        probe.runtime.database = database
        items = (await http.get("/dead-letters", params={"topic": TOPIC})).json()["items"]
        assert [(item["offset"], item["state"]) for item in items][:2] == [(0, "dead"), (1, "parked")]
        assert items[0]["reason"] == "ValueError: bad is refused"
        assert (await http.get("/dead-letters", params={"topic": "other"})).json() == {"items": [], "next": None}

        place_of = f"/dead-letters/{TOPIC}/0/"
        stranger = {"Authorization": "Bearer stranger"}
        assert (await http.get(f"{place_of}0", headers=stranger)).status_code == 403
        assert (await http.get(f"{place_of}3")).json()["type"] == "urn:slipway:problem:not-dead"
        shown = (await http.get(f"{place_of}0")).json()
        assert bytes.fromhex(shown["value"]) == msgspec.json.encode(report("w1", "bad"))
        assert (bytes.fromhex(shown["key"]), shown["undecoded"]) == (b"w1", False)
        assert ["ce_type", report("w1", "bad").type.encode().hex()] in shown["headers"]

        assert (await post("/dead-letters/replay", "nobody"))[0] == 401
        assert (await post("/dead-letters/drop", "stranger"))[0] == 403
        assert (await post("/dead-letters/drop", offset="x"))[0] == 422
        status, refusal = await post("/dead-letters/replay", offset=3)
        assert (status, refusal["type"]) == (404, "urn:slipway:problem:not-dead")
        assert (await post("/dead-letters/replay", topic="other"))[0] == 404
        assert len(await remaining(database)) == 4

        assert await post("/dead-letters/drop") == (200, {"applied": 2, "remaining": 0, "reason": ""})
        handler.refused = set()
        assert await post("/dead-letters/replay", offset=2) == (200, {"applied": 1, "remaining": 0, "reason": ""})
        assert await remaining(database) == []
