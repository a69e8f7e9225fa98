"""A declaration as the command sends it: whole, or not at all."""

from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_common.ids import hash_secret
from slipway_local.postgres import EmbeddedPostgres
from tests.provisioner import declared, provisioner_on

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
    """Not even what stood before the offending line; asked for as a dry run, it is refused as well."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_bytes(
        msgspec.json.encode([{"name": "ci", "sha256": hash_secret("s"), "scopes": ["declaration:write"]}])
    )
    async with provisioner_on(postgres) as provisioner:
        provisioner.app.state.tokens.path = tokens
        async with provisioner.client(token="s") as client:
            assert (await client.put("/declaration", json=declared())).status_code == 200
            before = tuple(await provisioner.pool.fetchrow(ALL))
            for query in ("", "?dry_run=true"):
                answer = await client.put(f"/declaration{query}", json=refusable())
                assert answer.status_code == 409
                assert answer.json()["type"] == "urn:slipway:problem:declaration-refused"
                assert "zone cannot change under the same id" in answer.json()["detail"]
                assert tuple(await provisioner.pool.fetchrow(ALL)) == before
