"""Lists in pages: each item once and in order, while items are added, changed and deleted."""

from collections.abc import AsyncIterator, Callable
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import pytest

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Database
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.lease_broker_http import World, world_on
from tests.support.provisioner import Provisioner, declared, provisioner_on

ITEMS: Final = 900
PAGE: Final = 100
START: Final = "'2026-01-01'::timestamptz"
AUDIT: Final = f"""
INSERT INTO audit (at, by, origin, action, reason, kind, subject_id, result)
SELECT {START}, 'b', '', 'set', '', 'k', id, 'updated' FROM unnest($1::text[]) AS g (id)"""
ALERT: Final = """
INSERT INTO alert (dedup_key, kind, subject_kind, subject_id, severity, body)
SELECT id, 'starved', 'pool', id, 'page', '{"kind": "starved", "subject_kind": "pool", "subject_id": "' || id || '",
    "severity": "page", "summary": "s", "dedup_key": "' || id || '"}' FROM unnest($1::text[]) AS g (id)"""


class Listed(NamedTuple):
    """A list: its path, how rows of given ids are added and changed, the table and column of the ids, and their
    order."""

    path: str
    add: str
    change: str
    table: str
    id: str
    descending: bool = True
    shown: Callable[[Any], str] = lambda row: str(row["id"])


PROVISIONER: Final = {
    "workers": Listed(
        "/workers?pool=linux",
        f"""
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, requested_at,
    ended_at, traceparent)
SELECT id::uuid, 'linux', 'c', 'a', 'i', 'stopped', id::uuid, {START}, {START}, '' FROM unnest($1::text[]) AS g (id)""",
        "UPDATE worker SET task_slots = task_slots + 1 WHERE id::text = ANY ($1)",
        "worker",
        "id::text",
    ),
    "decisions": Listed(
        "/pools/linux/decisions",
        # Many of one time, as of one transaction.
        f"""
INSERT INTO decision (id, pool_id, launched, reason, details, at, last_at)
SELECT id::uuid, 'linux', 0, 'r', '{{"reason": "r"}}', {START} + n / 100 * interval '1 s', {START}
FROM unnest($1::text[]) WITH ORDINALITY AS g (id, n)""",
        "UPDATE decision SET last_at = last_at + interval '1 s' WHERE id::text = ANY ($1)",
        "decision",
        "id::text",
    ),
    "errors": Listed(
        "/errors?code=k",
        f"""
INSERT INTO worker_error (at, worker_id, pool_id, launch_config_id, image_revision, code)
SELECT {START}, id::uuid, 'p', 'c', 'i', 'k' FROM unnest($1::text[]) AS g (id)""",
        "UPDATE worker_error SET sample = 'changed' WHERE worker_id::text = ANY ($1)",
        "worker_error",
        "worker_id::text",
        shown=lambda row: str(row["worker_id"]),
    ),
    "error totals": Listed(
        "/errors/totals?config=c",
        f"""
INSERT INTO worker_error_hour (launch_config_id, code, hour, pool_id, number)
SELECT 'c', id, {START}, 'p', 1 FROM unnest($1::text[]) AS g (id)""",
        "UPDATE worker_error_hour SET number = number + 1 WHERE code = ANY ($1)",
        "worker_error_hour",
        "code",
        shown=lambda row: str(row["code"]),
    ),
    "console outputs": Listed(
        "/console-outputs",
        # Many of one time, as of machines of one batch.
        f"""
INSERT INTO console_output (image_revision, account_id, pool_id, launch_config_id, batch_id, worker_id, instance_id,
    reason, requested_at, due_at)
SELECT id, 'a', 'p', 'c', id::uuid, id::uuid, 'i', 'r', {START} + n / 100 * interval '1 s', NULL
FROM unnest($1::text[]) WITH ORDINALITY AS g (id, n)""",
        "UPDATE console_output SET settled_at = now() WHERE image_revision = ANY ($1)",
        "console_output",
        "image_revision",
        shown=lambda row: str(row["image_revision"]),
    ),
    "demand": Listed(
        "/demand?pool=linux",
        f"""
INSERT INTO demand (pool_id, source, pending, claimed, observed_at, received_at, valid_for_seconds, traceparent)
SELECT 'linux', id, 1, 0, {START}, {START}, 1e9, '' FROM unnest($1::text[]) AS g (id)""",
        "UPDATE demand SET pending = pending + 1 WHERE source = ANY ($1)",
        "demand",
        "source",
        descending=False,
        shown=lambda row: str(row["source"]),
    ),
    "audit": Listed("/audit?kind=pool", AUDIT.replace("'k'", "'pool'"), "SELECT $1::text[]", "audit", "subject_id"),
    "alerts": Listed(
        "/alerts?open=true",
        ALERT,
        "UPDATE alert SET revision = revision + 1, severity = 'notice' WHERE dedup_key = ANY ($1)",
        "alert",
        "dedup_key",
        shown=lambda row: str(row["dedup_key"]),
    ),
}
PROVISIONER["audit"] = PROVISIONER["audit"]._replace(shown=lambda row: str(row["subject_id"]))
LEASES: Final = Listed(
    "/leases?pool=sim-a",
    f"""
INSERT INTO leases (id, lease_pool_id, request_id, fencing_token, granted_units, units, state, granted_at, expires_at,
    hold_until, owner, extended_at)
SELECT id, 'sim-a', id, n + (SELECT coalesce(max(fencing_token), 0) FROM leases), 1, 1, 'confirmed', {START}, {START},
    {START}, 'o', {START} FROM unnest($1::text[]) WITH ORDINALITY AS g (id, n)""",
    "UPDATE leases SET expires_at = expires_at + interval '1 s' WHERE id = ANY ($1)",
    "leases",
    "id",
    descending=False,
)


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres) as provisioner:
        yield provisioner


@pytest.fixture
async def world(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[World]:
    async with world_on(postgres, tmp_path) as world:
        yield world


async def walk(client: httpx2.AsyncClient, database: Database, listed: Listed) -> None:
    """Read the list to its end, with other sessions between the pages."""
    ids = sorted(new_id() for _ in range(ITEMS))
    await database.execute(listed.add, ids)
    in_order = ids[::-1] if listed.descending else ids
    seen: list[str] = []
    gone: set[str] = set()
    url, cursor, pages = listed.path, None, 0
    while True:
        answer = await client.get(url, params={"limit": PAGE} | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        page = answer.json()
        seen += [listed.shown(row) for row in page["items"]]
        pages += 1
        if (cursor := page["next"]) is None:
            break
        # The last one of this page too: a cursor names a place, not a row.
        pruned = [seen[-1], in_order[-pages]]
        gone |= {*pruned}
        await database.execute(f"DELETE FROM {listed.table} WHERE {listed.id} = ANY ($1)", pruned)
        await database.execute(listed.change, in_order[::7])
        await database.execute(listed.add, [new_id() for _ in range(5)])
    ours = [id_ for id_ in seen if id_ in {*ids}]
    assert len({*seen}) == len(seen)
    assert ours == [id_ for id_ in in_order if id_ in {*ours}]
    assert {*ids} - {*ours} <= gone


@pytest.mark.parametrize("name", PROVISIONER)
async def test_each_item_is_listed_once_and_in_order(provisioner: Provisioner, name: str) -> None:
    await provisioner.declare(declared())
    async with provisioner.client() as client:
        await walk(client, provisioner.database, PROVISIONER[name])


async def test_each_lease_is_listed_once_and_in_order(world: World) -> None:
    async with world.replica.client("reader") as client:
        await walk(client, world.replica.pool, LEASES)


PATHS: Final = (
    "/workers",
    "/pools/linux/decisions",
    "/demand",
    "/errors",
    "/errors/totals",
    "/dead-letters",
    "/console-outputs",
)
NO_CURSORS: Final = ("x", "bm9uZQ", "W10", "WyIwMDAwIl0", "WzFd", "eyJhIjoxfQ", "é", "%00", "a" * 1_999)


async def test_what_is_no_cursor_is_refused(provisioner: Provisioner) -> None:
    await provisioner.declare(declared())
    async with provisioner.client() as client:
        for path, cursor in product(PATHS, NO_CURSORS):
            answer = await client.get(path, params={"cursor": cursor})
            if (path, cursor) != ("/errors", "WzFd"):  # of a list of numbered rows
                assert answer.status_code == 422, (path, cursor)
                assert "cursor: not one of this list" in answer.json()["detail"], (path, cursor)


async def test_limits(provisioner: Provisioner) -> None:
    async with provisioner.client() as client:
        for limit in (0, 1_001):
            assert (await client.get("/workers", params={"limit": limit})).status_code == 422


async def test_the_same_answer_is_not_sent_again(provisioner: Provisioner) -> None:
    """HEAD has the headers of GET; 304 for a tag that the caller has, until the list changes."""
    await provisioner.declare(declared())
    async with provisioner.client() as client:
        first = await client.get("/pools")
        tag = first.headers["etag"]
        head = await client.head("/pools")
        assert (head.status_code, head.headers["etag"], head.content) == (200, tag, b"")
        known = await client.get("/pools", headers={"If-None-Match": f'"other", {tag}'})
        assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag)
        await provisioner.declare(declared(max_capacity=7))
        changed = await client.get("/pools", headers={"If-None-Match": tag})
        assert changed.status_code == 200
        assert changed.headers["etag"] != tag
        assert (await client.post("/pools", headers={"If-None-Match": "*"})).status_code == 405


async def test_large_answers_are_compressed(provisioner: Provisioner) -> None:
    await provisioner.declare(declared())
    await provisioner.database.execute(PROVISIONER["workers"].add, [new_id() for _ in range(100)])
    async with provisioner.client() as client:
        large = await client.get("/workers", headers={"Accept-Encoding": "gzip"})
        small = await client.get("/workers?limit=1", headers={"Accept-Encoding": "gzip"})
    assert (large.headers["content-encoding"], len(large.json()["items"])) == ("gzip", 100)
    assert "content-encoding" not in small.headers
