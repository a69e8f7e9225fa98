"""Declarations of one pool, and what is read of their effects."""

from typing import Any, Final

from tests.support.provisioner import Provisioner, declared

ALL: Final = """
SELECT (SELECT jsonb_agg(p ORDER BY id) FROM worker_pool p), (SELECT jsonb_agg(c ORDER BY id) FROM launch_config c),
    (SELECT jsonb_agg(n ORDER BY name) FROM launch_config_name n), (SELECT jsonb_agg(a ORDER BY id) FROM account a),
    (SELECT count(*) FROM outbox), (SELECT count(*) FROM dirty_pool), (SELECT count(*) FROM audit),
    (SELECT count(*) FROM pool_revision)"""


async def everything(provisioner: Provisioner) -> tuple[Any, ...]:
    return tuple(await provisioner.database.fetchrow(ALL))


def with_image(image: str, *configs: str, **changes: Any) -> dict[str, Any]:
    """The usual declaration with this image in every launch config."""
    body = declared(*configs, **changes)
    for config in body["worker_pools"][0]["launch_configs"]:
        config["image"] = image
    return body


async def states(provisioner: Provisioner) -> dict[str, str]:
    """State of every revision; of an active one that is not current, the strategy by which it is replaced."""
    rows = await provisioner.database.fetch(
        "SELECT c.id, CASE WHEN c.state = 'active' AND n.current_id <> c.id THEN c.replaced_by ELSE c.state END "
        "AS state FROM launch_config c JOIN launch_config_name n USING (name)"
    )
    return {row["id"]: row["state"] for row in rows}
