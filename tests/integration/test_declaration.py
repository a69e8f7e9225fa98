"""A declaration as the command sends it: whole, or not at all."""

from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_common.base.ids import hash_secret
from slipway_common.events.launch_config import LaunchConfigCreated, LaunchConfigUpdated
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.provisioner import declared, provisioner_on

ALL: Final = """
SELECT (SELECT jsonb_agg(p ORDER BY id) FROM worker_pool p), (SELECT jsonb_agg(c ORDER BY id) FROM launch_config c),
    (SELECT jsonb_agg(a ORDER BY id) FROM account a), (SELECT count(*) FROM outbox),
    (SELECT count(*) FROM dirty_pool)"""


def refusable() -> dict[str, Any]:
    """Begins with changes that can be made, and ends with one that cannot."""
    body = declared("zone-a", "zone-b", max_capacity=7, settings={"honours_tokens": True})
    body["worker_pools"][0]["launch_configs"][0]["zone"] = "elsewhere"
    return body


async def test_a_refused_declaration_changes_nothing(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Not even what stood before the offending line; a dry run refuses it as well."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_bytes(
        msgspec.json.encode([{"name": "ci", "sha256": hash_secret("s"), "scopes": ["declaration:write"]}])
    )
    async with provisioner_on(postgres) as provisioner:
        provisioner.app.state.tokens.path = tokens
        async with provisioner.client(token="s") as client:
            assert (await client.put("/declaration", json=declared())).status_code == 200
            before = tuple(await provisioner.database.fetchrow(ALL))
            for query in ("", "?dry_run=true"):
                answer = await client.put(f"/declaration{query}", json=refusable())
                assert answer.status_code == 409
                assert answer.json()["type"] == "urn:slipway:problem:declaration-refused"
                assert "zone cannot change under the same id" in answer.json()["detail"]
                assert tuple(await provisioner.database.fetchrow(ALL)) == before


async def test_health_settings_of_each_config_are_published(postgres: EmbeddedPostgres) -> None:
    """The config's own profile or else its pool's, and the other settings in force, at once when either is changed. A
    change of the pool is listed once per apply."""
    body = declared("zone-a", "zone-b", "zone-c", on_bad_image="freeze", freeze_after=7)
    pool = body["worker_pools"][0]
    pool["launch_configs"][1]["profile"] = "bare-metal"
    async with provisioner_on(postgres) as provisioner:
        await provisioner.declare(body)
        events = {event.launch_config_id: event for event in await provisioner.published(LaunchConfigCreated)}
        assert {name: event.profile for name, event in events.items()} == {
            "zone-a": "on-demand",
            "zone-b": "bare-metal",
            "zone-c": "on-demand",
        }
        assert {(e.on_bad_image, e.freeze_after, e.boot_evidence) for e in events.values()} == {
            ("freeze", 7, "register")
        }
        pool["profile"] = "spot"
        changes = await provisioner.declare(body)
        assert [(change.id, change.detail) for change in changes] == [("linux", "profile: on-demand → spot")]
        updated = await provisioner.published(LaunchConfigUpdated)
        assert [(e.launch_config_id, e.profile, e.revision) for e in updated] == [
            ("zone-a", "spot", 2),
            ("zone-c", "spot", 2),
        ]
        pool["evidence"] = {"boot": "provider_running", "claim": "none"}
        pool["launch_configs"][2]["base_weight"] = 2.0
        changes = await provisioner.declare(body)
        assert [(change.id, change.detail) for change in changes] == [
            ("linux", "boot_evidence: register → provider_running, claim_evidence: hook → none"),
            ("zone-c", "base_weight: 1.0 → 2.0"),
        ]
        assert {
            (e.launch_config_id, e.boot_evidence, e.claim_evidence)
            for e in await provisioner.published(LaunchConfigUpdated)
        } == {(name, "provider_running", "none") for name in ("zone-a", "zone-b", "zone-c")}
        assert await provisioner.declare(body) == []
