"""HTTP API of declarations: shapes, entity tags, problems, and ids with slashes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2
import msgspec
import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.provisioner import Provisioner, administrator, declared, provisioner_on, revision_id
from tests.support.readers import HEADERS

ID: Final = "gecko-t/t-linux-large"
PATH: Final = f"/pools/{quote(ID, safe='')}"
LINES: Final = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres) as provisioner:
        await provisioner.declare({"version": 1, "accounts": declared()["accounts"]})
        yield provisioner


@pytest.fixture
async def client(provisioner: Provisioner, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with administrator(provisioner, tmp_path) as client:
        yield client


def pool(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = declared("zone-a", id=ID)["worker_pools"][0] | changes
    return found


def lines(*values: Any) -> bytes:
    return b"\n".join(msgspec.json.encode(value) for value in values)


def kind(answer: httpx2.Response) -> str:
    text: str = answer.json()["type"]
    return text.removeprefix("urn:slipway:problem:")


async def test_put_and_get_a_pool(client: httpx2.AsyncClient) -> None:
    """The answer has the changes and the new entity tag, under which the pool is stored; defaults are written out."""
    answer = await client.put(PATH, json=pool())
    assert answer.status_code == 200
    assert answer.json() == {
        "items": [
            {"kind": "worker pool", "id": ID, "result": "created", "detail": ""},
            {"kind": "launch config", "id": "zone-a", "result": "created", "detail": ""},
        ],
        "more": 0,
        "unchanged": 0,
        "digest": answer.json()["digest"],
        "dangers": [],
        "costs": [],
        "unpriced": [],
        "applied": True,
    }
    shown = await client.get(PATH)
    assert shown.headers["ETag"] == answer.headers["ETag"]
    assert shown.json().items() >= {"id": ID, "max_capacity": 100, "owner": ""}.items()
    spec = shown.json()["declared"]
    assert spec.items() >= {"id": ID, "mode": None, "deadlines": {}, "scaling_ratio": "1"}.items()
    assert spec["launch_configs"][0]["name"] == "zone-a"
    again = await client.put(PATH, json=spec, headers={"If-Match": shown.headers["ETag"]})
    assert (again.json()["items"], again.json()["unchanged"]) == ([], 1)
    assert again.headers["ETag"] == shown.headers["ETag"]


async def test_entity_tags(client: httpx2.AsyncClient) -> None:
    """A pool that has changed since it was read is not overwritten; * stands for any pool, and none-match for none."""
    assert (await client.put(PATH, json=pool(), headers={"If-Match": "*"})).status_code == 412
    assert (await client.put(PATH, json=pool(), headers={"If-None-Match": "*"})).status_code == 200
    again = await client.put(PATH, json=pool(max_capacity=7), headers={"If-None-Match": "*"})
    assert (again.status_code, kind(again)) == (412, "precondition-failed")
    assert again.json()["detail"] == f"worker pool {ID} exists already; read it again, nothing was changed"
    tag = (await client.get(PATH)).headers["ETag"]
    first = await client.put(PATH, json=pool(max_capacity=7), headers={"If-Match": tag})
    assert first.status_code == 200
    stale = await client.put(PATH, json=pool(max_capacity=8), headers={"If-Match": tag})
    assert (stale.status_code, kind(stale)) == (412, "precondition-failed")
    assert "has changed since it was read" in stale.json()["detail"]
    weak = await client.put(PATH, json=pool(max_capacity=8), headers={"If-Match": f"W/{first.headers['ETag']}"})
    assert weak.status_code == 200
    assert (await client.get(PATH)).json()["max_capacity"] == 8


async def test_the_tag_of_a_declaration_is_none_of_the_answer(client: httpx2.AsyncClient) -> None:
    """A pool that was frozen since is another answer, with the declaration of before."""
    await client.put(PATH, json=pool())
    tag = (await client.get(PATH)).headers["ETag"]
    assert (await client.post(f"{PATH}/freeze", json={"reason": "bad image"})).status_code == 200
    after = await client.get(PATH, headers={"If-None-Match": tag})
    assert (after.status_code, after.headers["ETag"], after.json()["frozen"]) == (200, tag, True)


async def test_put_pool_problems(client: httpx2.AsyncClient, provisioner: Provisioner) -> None:
    """Another id, a field that is not known, a danger, another owner: each is refused and named."""
    wrong = await client.put("/pools/other", json=pool())
    assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (422, "id")
    unknown = await client.put(PATH, json=pool(maximum=3))
    assert unknown.json()["errors"][0]["reason"].startswith("unknown field; known: id, min_capacity")
    assert (unknown.json()["errors"][0]["path"], unknown.json()["errors"][0].get("document")) == ("maximum", None)
    misnamed = lines({"version": 1, "metadata": {"owner": "a b"}, "sections": ["accounts"]})
    for refused in (
        await client.put("/declaration", content=misnamed, headers=LINES),
        await client.put("/declaration", json=declared() | {"metadata": {"owner": "a b"}}),
    ):
        assert refused.json()["errors"][0]["path"] == "metadata.owner"
        assert refused.json()["errors"][0]["reason"].startswith('"a b" is not a valid name: use 1 to 200 visible')
    assert (await client.put(PATH, content=b"{")).status_code == 400
    assert (await client.put(PATH, json=[])).status_code == 422
    assert (await client.put(f"{PATH}?owner=a.yaml", json=pool())).status_code == 200
    grown = await client.put(PATH, json=pool(max_capacity=500))
    assert (grown.status_code, kind(grown)) == (409, "confirmation-required")
    assert grown.json()["dangers"] == [f"worker pool {ID}: the maximum grows from 100 to 500"]
    confirmed = await client.put(f"{PATH}?confirm={grown.json()['digest']}", json=pool(max_capacity=500))
    assert confirmed.status_code == 200
    assert (await client.get(PATH)).json()["owner"] == "a.yaml"
    taken = await client.put(f"{PATH}?owner=b.yaml", json=pool(max_capacity=500))
    assert (taken.status_code, kind(taken)) == (409, "owned-by-another")
    assert taken.json().items() >= {"id": ID, "owner": "a.yaml", "declared_by": "b.yaml"}.items()
    assert (await client.put(f"{PATH}?owner=b.yaml&adopt=true", json=pool(max_capacity=500))).status_code == 200
    for query in ("replace=maybe", "drain_seconds=0", "drain_seconds=soon"):
        assert (await client.put(f"{PATH}?{query}", json=pool())).status_code == 422
    async with provisioner.client(token="") as nobody:
        assert (await nobody.put(PATH, json=pool())).status_code == 401
        assert (await nobody.put("/declaration", json=declared())).status_code == 401
        assert (await nobody.post(f"{PATH}/rollback", json={"reason": "r"})).status_code == 401


async def test_put_pool_replaces_as_asked(client: httpx2.AsyncClient, provisioner: Provisioner) -> None:
    """With the strategy and the drain time of the request; a dry run changes nothing."""
    await client.put(PATH, json=pool())
    changed = pool()
    changed["launch_configs"][0]["image"] = "linux-2"
    listed = await client.put(f"{PATH}?dry_run=true", json=changed)
    assert (listed.json()["applied"], listed.json()["items"][0]["result"]) == (False, "updated")
    states = "SELECT state, replaced_by, drain_until - drain_from AS seconds FROM launch_config WHERE id = $1"
    assert tuple(await provisioner.database.fetchrow(states, revision_id())) == ("active", "", None)
    await client.put(f"{PATH}?replace=now&drain_seconds=90", json=changed)
    row = await provisioner.database.fetchrow(states, revision_id())
    assert (row["state"], row["replaced_by"], row["seconds"].total_seconds()) == ("draining", "now", 90)


async def test_export(client: httpx2.AsyncClient) -> None:
    """Everything that is declared with its owner, or that of one owner or section; removed entries are left out."""
    await client.put(f"{PATH}?owner=a.yaml", json=pool())
    spec = (await client.get(PATH)).json()["declared"]
    exported = (await client.get("/declaration")).json()
    assert [(entry["owner"], entry["spec"]["id"]) for entry in exported["accounts"]] == [("test", "sim-a")]
    assert exported["worker_pools"] == [{"owner": "a.yaml", "spec": spec}]
    assert (await client.get("/declaration?owner=test")).json()["worker_pools"] == []
    assert list((await client.get("/declaration?section=accounts")).json()) == ["accounts"]
    body = lines(
        {"version": 1, "metadata": {"owner": "test"}, "sections": ["accounts"]},
        *({"account": entry["spec"]} for entry in exported["accounts"]),
        {"version": 1, "metadata": {"owner": "a.yaml"}, "sections": ["worker_pools"]},
        *({"worker_pool": entry["spec"]} for entry in exported["worker_pools"]),
    )
    applied = (await client.put("/declaration", content=body, headers=LINES)).json()
    assert (applied["items"], applied["unchanged"], applied["applied"]) == ([], 2, True)
    removed = lines({"version": 1, "metadata": {"owner": "a.yaml"}, "sections": ["worker_pools"]})
    listed = await client.put("/declaration?dry_run=true", content=removed, headers=LINES)
    query = f"?confirm={listed.json()['digest']}"
    assert (await client.put(f"/declaration{query}", content=removed, headers=LINES)).status_code == 200
    assert (await client.get("/declaration")).json()["worker_pools"] == []
    assert (await client.get(PATH)).status_code == 404


async def test_history(client: httpx2.AsyncClient) -> None:
    """Entries have these fields, the spec only if it is asked for; an unknown pool is a problem."""
    await client.put(PATH, json=pool())
    await client.put(PATH, json=pool(max_capacity=50))
    newest, oldest = (await client.get(f"{PATH}/history")).json()["items"]
    assert newest == {
        "revision": 2,
        "at": "2026-01-01T12:00:00Z",
        "by": "admin",
        "action": "put",
        "reason": "",
        "to_revision": None,
        "owner": "",
        "revisions": {"zone-a": {"revision": revision_id().partition("@")[2], "image": "linux-1"}},
        "spec_digest": (await client.get(PATH)).headers["ETag"].strip('"'),
        "changes": [
            {"kind": "worker pool", "id": ID, "result": "updated", "detail": "max_capacity: 100 → 50"},
        ],
    }
    assert oldest["revision"] == 1
    (one,) = (await client.get(f"{PATH}/history?limit=1&full=true")).json()["items"]
    assert one["spec"]["max_capacity"] == 50
    unknown = await client.get("/pools/none/history")
    assert (unknown.status_code, kind(unknown)) == (404, "unknown-pool")


async def test_rollback(client: httpx2.AsyncClient) -> None:
    """To a revision by its number; its answer has this number and the entity tag."""
    first = await client.put(PATH, json=pool())
    await client.put(PATH, json=pool(max_capacity=50))
    await client.put(PATH, json=pool(max_capacity=40))
    body = {"reason": "r", "to_revision": 1, "whole": True}
    listed = await client.post(f"{PATH}/rollback", json=body | {"dry_run": True})
    assert listed.json()["dangers"] == [f"worker pool {ID}: the maximum grows from 40 to 100"]
    refused = await client.post(f"{PATH}/rollback", json=body)
    assert (refused.status_code, kind(refused)) == (409, "confirmation-required")
    answer = await client.post(f"{PATH}/rollback", json=body | {"confirm": refused.json()["digest"]})
    assert (answer.json()["to_revision"], answer.headers["ETag"]) == (1, first.headers["ETag"])
    assert (await client.post(f"{PATH}/rollback", json={})).status_code == 422
    nothing = await client.post("/pools/none/rollback", json=body)
    assert (nothing.status_code, kind(nothing)) == (409, "nothing-to-roll-back")


async def test_an_id_that_is_not_encoded_is_not_found(client: httpx2.AsyncClient) -> None:
    """The problem has the remedy."""
    answer = await client.get(f"/pools/{ID}")
    assert (answer.status_code, kind(answer)) == (404, "not-found")
    assert "write %2F for /" in answer.json()["detail"]


async def test_preview_of_a_rollback(client: httpx2.AsyncClient) -> None:
    """Readers may see what a rollback would change, or why it would be refused. Nothing is changed."""
    assert (await client.get(f"{PATH}/rollback")).status_code == 404
    await client.put(PATH, json=pool())
    first = (await client.get(f"{PATH}/rollback")).json()
    assert first.pop("refused") == (
        f"worker pool {ID} has had no other revision of its launch configs; "
        f"`slipway pool set-image {ID} IMAGE --reason …` launches another image"
    )
    assert first == {"to_revision": None, "items": [], "dangers": []}
    other = pool(max_capacity=40)
    other["launch_configs"][0]["image"] = "linux-2"
    await client.put(PATH, json=other)
    client.headers |= HEADERS
    old, new = (revision_id(image=image).partition("@")[2] for image in ("linux-1", "linux-2"))
    change = f"revision: {new} → {old}, image_revision: linux-2 → linux-1"
    assert (await client.get(f"{PATH}/rollback")).json() == {
        "to_revision": 1,
        "items": [{"kind": "launch config", "id": "zone-a", "result": "reactivated", "detail": change}],
        "dangers": [],
        "refused": "",
    }
    assert (await client.get(PATH)).json()["max_capacity"] == 40


async def test_large_bodies(client: httpx2.AsyncClient) -> None:
    """A declaration may be large; a line and other bodies have limits."""
    assert (await client.put(PATH, content=b"x" * 1_000_001)).status_code == 413
    many = b"\n" * 2_000_000
    answer = await client.put("/declaration?dry_run=true", content=many, headers=LINES)
    assert answer.status_code == 200
    huge = await client.put("/declaration", content=b"[" + b" " * 20_000_001, headers=LINES)
    assert (huge.status_code, kind(huge)) == (413, "body-too-large")


async def test_a_rollback_returns_to_what_was_really_different(client: httpx2.AsyncClient) -> None:
    """Another order of the launch configs is another declaration, but nothing to return from."""
    two = declared("zone-a", "zone-b", id=ID)["worker_pools"][0]
    await client.put(PATH, json=two | {"max_capacity": 50})
    await client.put(PATH, json=two | {"max_capacity": 60})
    reordered = two | {"max_capacity": 60, "launch_configs": two["launch_configs"][::-1]}
    assert (await client.put(PATH, json=reordered)).json()["items"] == []
    answer = await client.post(f"{PATH}/rollback", json={"reason": "drill", "whole": True})
    assert (answer.status_code, answer.json()["to_revision"]) == (200, 1)
    assert [item["detail"] for item in answer.json()["items"]] == ["max_capacity: 60 → 50"]


async def test_audit_since_a_time_that_utc_lacks(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/audit", params={"since": "9999-12-31T23:59:59-23:59"})
    assert (answer.status_code, kind(answer)) == (422, "invalid-request")
