"""Terraform workspaces in the database of a test, their states and keys."""

import base64
from typing import Any, Final

import msgspec

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_provisioner.domain.encryption import KEY_BYTES, KeyRing
from slipway_provisioner.domain.workspaces import Kind, Phase, Workspace, empty_state, version_of
from slipway_provisioner.store import workspaces

OLD: Final = base64.b64encode(bytes(range(KEY_BYTES))).decode()
NEW: Final = base64.b64encode(bytes(KEY_BYTES)).decode()
SECRET: Final = "the-password-of-a-resource"


def ring(*keys: str) -> KeyRing:
    return KeyRing("\n".join(keys))


def state(serial: int, lineage: str, **resources: str) -> bytes:
    """Terraform state with an output of a secret, and one resource for each keyword."""
    document = msgspec.json.decode(empty_state(lineage))
    listed = [{"mode": "managed", "type": "thing", "name": name, "id": id_} for name, id_ in resources.items()]
    outputs = {"password": {"value": SECRET, "type": "string", "sensitive": True}}
    return msgspec.json.encode(document | {"serial": serial, "resources": listed, "outputs": outputs})


def row(**changes: Any) -> Workspace:
    """A workspace of its own batch that waits for its first apply."""
    usual: dict[str, Any] = {
        "id": new_id(),
        "deployment": "test",
        "incarnation": "in",
        "account_id": "sim-a",
        "batch_id": new_id(),
        "ordinal": 1,
        "launch_config_id": "zone-a@3f2c9a",
        "phase": Phase.QUEUED,
        "effects_seconds": 1890.0,
    }
    return Workspace(**usual | changes)


async def stored(db: Connection, keys: KeyRing, saved: bytes | None = None, **changes: Any) -> Workspace:
    """Store a workspace with its first state, or with one that was saved already."""
    new = row(**changes)
    first = saved or empty_state(new.id)
    async with db.transaction():
        await workspaces.insert(db, [new])
        await workspaces.put(db, new.id, Kind.STATE, first, keys, version=version_of(first))
    return new
