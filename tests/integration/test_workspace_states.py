"""Terraform states of workers over HTTP: exported, unlocked, and encrypted with another key."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from slipway_common.base.ids import new_id
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply import workspaces as apply
from slipway_provisioner.domain.workspaces import Kind, Phase, Version, Workspace
from slipway_provisioner.store import workspaces
from tests.support.provisioner import Provisioner, administrator, provisioner_on
from tests.support.workspaces import NEW, OLD, SECRET, ring, state, stored

KEYS: Final = ring(OLD)


@contextlib.asynccontextmanager
async def running(
    server: EmbeddedPostgres, folder: Path, *keys: str, scopes: tuple[str, ...] = ("admin",)
) -> AsyncIterator[tuple[Provisioner, httpx2.AsyncClient]]:
    async with (
        provisioner_on(server, state_keys="\n".join(keys)) as provisioner,
        administrator(provisioner, folder, scopes) as client,
    ):
        yield provisioner, client


async def worker_with(provisioner: Provisioner, saved: bytes | None = None, **changes: Any) -> tuple[str, Workspace]:
    """A worker whose launch is accepted, and its workspace, with a saved state."""
    provisioner.cloud.accepts_calls = True
    await provisioner.admitted()
    await provisioner.launch()
    worker = await provisioner.worker()
    async with provisioner.database.acquire() as db:
        workspace = await stored(db, KEYS, batch_id=worker.batch_id, **changes)
        if saved is not None:
            async with db.transaction():
                await apply.save(db, workspace, saved, Version(workspace.id, 0), KEYS)
    return worker.id, workspace


async def audited(client: httpx2.AsyncClient, worker_id: str) -> list[tuple[str, str]]:
    rows = (await client.get("/audit", params={"kind": "worker", "subject": worker_id})).json()["items"]
    return [(row["action"], row["reason"]) for row in rows]


async def test_an_exported_state_is_the_saved_one(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Byte for byte, by its worker, before and after the instance is known; each export is audited."""
    async with running(postgres, tmp_path, OLD) as (provisioner, client):
        id_ = new_id()
        saved = state(1, id_, machine="i-1")
        worker_id, _ = await worker_with(provisioner, saved, id=id_)
        answer = await client.post(f"/workers/{worker_id}/state", json={"reason": "moved"})
        assert answer.json() == {"state": saved.decode(), "rejected": 0}
        await provisioner.database.execute("UPDATE worker SET instance_id = 'i-1', state = 'starting'")
        await provisioner.database.execute("UPDATE workspace SET instance_id = 'i-1', phase = 'ready'")
        assert (await client.post(f"/workers/{worker_id}/state", json={})).json()["state"] == saved.decode()
        assert await audited(client, worker_id) == [("state-exported", ""), ("state-exported", "moved")]
        row = await provisioner.database.fetchrow("SELECT encrypted FROM workspace_document WHERE kind = 'state'")
        assert SECRET.encode() not in row["encrypted"]


async def test_a_state_that_was_not_saved_is_exported(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """One of a foreign lineage is stored beside the state of the workspace."""
    async with running(postgres, tmp_path, OLD) as (provisioner, client):
        worker_id, workspace = await worker_with(provisioner)
        foreign = state(9, "of-another-workspace", machine="i-9")
        async with provisioner.database.acquire() as db, db.transaction():
            reason = await apply.save(db, workspace, foreign, Version(workspace.id, 0), KEYS)
        assert "lineage" in reason
        kept = await client.post(f"/workers/{worker_id}/state", json={})
        assert (kept.json()["rejected"], "i-9" in kept.text) == (1, False)
        beside = await client.post(f"/workers/{worker_id}/state", json={"rejected": True})
        assert beside.json() == {"state": foreign.decode(), "rejected": 1}


async def test_a_worker_is_shown_with_its_workspace(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Its run, the last problem, and the addresses of its resources; nothing secret of its state."""
    async with running(postgres, tmp_path, OLD, scopes=("read", "workers:state")) as (provisioner, client):
        id_ = new_id()
        worker_id, _ = await worker_with(provisioner, state(1, id_, machine="i-1"), id=id_)
        failed = "UPDATE workspace SET phase = 'destroying', failed_runs = 3, problem = 'Forbidden: no', holder = 'one'"
        await provisioner.database.execute(failed)
        answer = await client.get(f"/workers/{worker_id}")
        shown = answer.json()["workspace"]
        assert [shown[name] for name in ("id", "phase", "run", "failed_runs", "problem", "resources")] == [
            *(id_, "destroying", "destroy", 3, "Forbidden: no", ["thing.machine"]),
        ]
        assert shown["saved_at"] is not None
        assert SECRET not in answer.text
        await provisioner.database.execute("UPDATE workspace_document SET key_id = 'lost'")
        lost = (await client.get(f"/workers/{worker_id}")).json()["workspace"]
        assert (lost["phase"], lost["resources"], "lost" in lost["state_problem"]) == ("destroying", [], True)


async def test_a_state_is_decrypted_only_for_those_who_may_read_it(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Others see the workspace without its resources, and without problems of its state."""
    async with running(postgres, tmp_path, OLD, scopes=("read",)) as (provisioner, client):
        id_ = new_id()
        worker_id, _ = await worker_with(provisioner, state(1, id_, machine="i-1"), id=id_)
        await provisioner.database.execute("UPDATE workspace_document SET key_id = 'lost'")
        shown = (await client.get(f"/workers/{worker_id}")).json()["workspace"]
        assert (shown["phase"], shown["resources"], shown["state_problem"]) == ("queued", None, "")


async def test_an_export_needs_its_scope(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    async with running(postgres, tmp_path, OLD, scopes=("read", "workers:terminate")) as (provisioner, client):
        worker_id, _ = await worker_with(provisioner)
        for action in ("state", "unlock"):
            assert (await client.post(f"/workers/{worker_id}/{action}", json={})).status_code == 403
        assert (await client.post("/state-keys/rotate")).status_code == 403
        assert await audited(client, worker_id) == []


async def test_a_worker_without_a_workspace(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    async with running(postgres, tmp_path, OLD) as (provisioner, client):
        worker = (await provisioner.starting())[0]
        none = await client.post(f"/workers/{worker.id}/state", json={})
        unknown = await client.post(f"/workers/{new_id()}/unlock", json={})
        assert [(each.status_code, each.json()["type"].rpartition(":")[2]) for each in (none, unknown)] == [
            (409, "no-workspace"),
            (404, "unknown-worker"),
        ]


@pytest.mark.parametrize(
    ("phase", "holder", "after"),
    [("queued", "run", "unknown"), ("queued", "", "queued"), ("destroying", "run", "destroying"), ("gone", "", "gone")],
)
async def test_unlocking_a_workspace(
    postgres: EmbeddedPostgres, tmp_path: Path, phase: str, holder: str, after: str
) -> None:
    """An apply that was running has an unknown outcome. Its run is fenced off."""
    async with running(postgres, tmp_path, OLD) as (provisioner, client):
        worker_id, _ = await worker_with(provisioner)
        await provisioner.database.execute("UPDATE workspace SET phase = $1, holder = $2, fence = 3", phase, holder)
        answer = (await client.post(f"/workers/{worker_id}/unlock", json={"reason": "host gone"})).json()
        fence = 3 if phase == "gone" else 4
        assert (answer["phase"], answer["holder"], answer["fence"]) == (after, "", fence)
        assert answer["was_locked"] is bool(holder)
        assert await audited(client, worker_id) == [("unlocked", "host gone")]


async def rotated(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    """Answers to the requests of a rotation."""
    answers: list[dict[str, Any]] = [{"after": None}]
    while len(answers) == 1 or answers[-1]["after"] is not None:
        done = await client.post("/state-keys/rotate", json={"after": answers[-1]["after"]})
        assert done.status_code == 200, done.text
        answers.append(done.json())
    return answers[1:]


async def test_keys_are_rotated_in_chunks(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both keys are valid meanwhile, and the old one is not needed afterwards."""
    monkeypatch.setattr(apply, "REENCRYPTED_AT_ONCE", 2)
    async with running(postgres, tmp_path, NEW, OLD) as (provisioner, client):
        async with provisioner.database.acquire() as db:
            made = [await stored(db, KEYS) for _ in range(5)]
        answers = await rotated(client)
        assert [answer["left"] for answer in answers] == [3, 1, 0]
        audit = (await client.get("/audit", params={"subject": "state-keys"})).json()["items"]
        assert [(row["action"], row["after"]["encrypted"]) for row in audit] == [("rotated", n) for n in (1, 2, 2)]
        listed = (await client.get("/state-keys")).json()["items"]
        assert [(key["documents"], key["encrypts"], key["available"]) for key in listed] == [
            (5, True, True),
            (0, False, True),
        ]
        async with provisioner.database.acquire() as db:
            for workspace in made:
                assert await workspaces.document(db, workspace.id, Kind.STATE, ring(NEW)) is not None


async def test_documents_that_cannot_be_decrypted_hold_up_no_rotation(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do a whole chunk of them. They are named with their workers, and stay as they are."""
    monkeypatch.setattr(apply, "REENCRYPTED_AT_ONCE", 2)
    async with running(postgres, tmp_path, NEW, OLD) as (provisioner, client):
        worker_id, first = await worker_with(provisioner)
        async with provisioner.database.acquire() as db:
            made = [first, *[await stored(db, KEYS) for _ in range(5)]]
        broken, intact = made[:3], made[3:]
        change = "UPDATE workspace_document SET encrypted = 'changed' WHERE workspace_id = ANY($1::uuid[])"
        await provisioner.database.execute(change, [workspace.id for workspace in broken])
        answers = await rotated(client)
        named = {place["workspace_id"]: place["worker_id"] for answer in answers for place in answer["not_authentic"]}
        assert named == {workspace.id: worker_id if workspace is first else None for workspace in broken}
        assert [answers[-1][field] for field in ("left", "unavailable")] == [3, 0]
        async with provisioner.database.acquire() as db:
            for workspace in intact:
                assert await workspaces.document(db, workspace.id, Kind.STATE, ring(NEW)) is not None
            unchanged = "SELECT count(*) FROM workspace_document WHERE encrypted = 'changed' AND key_id = $1"
            assert await db.fetchval(unchanged, KEYS.current_id) == len(broken)


async def test_a_lost_key_loses_nothing(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """A state whose key is missing is neither shown nor replaced, the key is named, and it opens once it is back."""
    async with running(postgres, tmp_path, NEW) as (provisioner, client):
        worker_id, workspace = await worker_with(provisioner)
        before = await provisioner.database.fetchrow("SELECT * FROM workspace_document")
        refused = await client.post(f"/workers/{worker_id}/state", json={})
        assert (refused.status_code, KEYS.current_id in refused.json()["detail"]) == (409, True)
        (answer,) = await rotated(client)
        assert answer == {"encrypted": 0, "not_authentic": [], "after": None, "left": 0, "unavailable": 1}
        assert await provisioner.database.fetchrow("SELECT * FROM workspace_document") == before
        assert await audited(client, worker_id) == []
        async with provisioner.database.acquire() as db:
            assert await workspaces.document(db, workspace.id, Kind.STATE, ring(NEW, OLD)) is not None


async def test_a_state_that_was_moved_to_another_row_is_refused(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    async with running(postgres, tmp_path, OLD) as (provisioner, client):
        worker_id, workspace = await worker_with(provisioner)
        async with provisioner.database.acquire() as db:
            other = await stored(db, KEYS, phase=Phase.READY)
        await provisioner.database.execute(
            "UPDATE workspace_document d SET encrypted = o.encrypted FROM workspace_document o "
            "WHERE d.workspace_id = $1 AND o.workspace_id = $2",
            workspace.id,
            other.id,
        )
        refused = await client.post(f"/workers/{worker_id}/state", json={})
        assert refused.status_code == 500, "another state was shown"
        assert refused.json()["type"].endswith(":state-not-authentic")
