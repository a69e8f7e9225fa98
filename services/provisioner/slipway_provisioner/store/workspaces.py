"""Terraform workspaces: rows, their fenced lock, and their encrypted documents.

A document changes under the lock of its workspace's row, except for a change of its key.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_common.base.ids import random_bytes
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, seconds
from slipway_provisioner.domain.encryption import NONCE_BYTES, Encrypted, KeyRing, NotAuthentic
from slipway_provisioner.domain.workspaces import Kind, Phase, Version, Workspace
from slipway_provisioner.store.tables import worker, workspace, workspace_document

C: Final = workspace.c
FIELDS: Final = C[Workspace.__struct_fields__]
D: Final = workspace_document.c
_ID: Final = C.id == sa.bindparam("workspace_id", type_=C.id.type)
_OF: Final = D.workspace_id == sa.bindparam("workspace_id", type_=D.workspace_id.type)
_KIND: Final = D.kind == sa.bindparam("kind")
_NUMBER: Final = D.number == sa.bindparam("number", type_=D.number.type)
_DOCUMENT: Final = D["kind", "number", "lineage", "serial", "key_id", "encrypted"]

GET: Final = Statement(sa.select(*FIELDS).where(_ID))
LOCK: Final = Statement(sa.select(*FIELDS).where(_ID).with_for_update())
# A worker whose instance is not bound yet is found by its batch, which has one intent.
OF_WORKER: Final = Statement(
    sa.select(*FIELDS)
    .where(
        sa.or_(
            sa.and_(
                C.account_id == sa.bindparam("account_id"),
                C.instance_id == sa.bindparam("instance_id", type_=C.instance_id.type),
            ),
            sa.and_(
                sa.bindparam("instance_id", type_=C.instance_id.type).is_(None),
                C.batch_id == sa.bindparam("batch_id", type_=C.batch_id.type),
            ),
        )
    )
    .order_by(C.ordinal, C.created_at.desc())
    .limit(1)
)
INSERT: Final = Statement(
    sa.insert(workspace).values(
        {
            field.name: sa.bindparam(field.name)
            for field in C[
                "id",
                "deployment",
                "incarnation",
                "account_id",
                "batch_id",
                "ordinal",
                "launch_config_id",
                "phase",
                "effects_seconds",
                "due_at",
            ]
        }
    )
)
UNLOCK: Final = Statement(
    sa.update(workspace)
    .where(_ID)
    .values(
        phase=sa.bindparam("next"),
        holder="",
        fence=C.fence + 1,
        locked_until=None,
        effects_until=sa.func.slipway_clock() + seconds("effects"),
        due_at=sa.func.slipway_clock(),
    )
)
DOCUMENT: Final = Statement(sa.select(*_DOCUMENT).where(_OF, _KIND).order_by(D.number.desc()).limit(1))
PUT: Final = Statement(
    postgresql.insert(workspace_document)
    .values({field.name: sa.bindparam(field.name) for field in (D.workspace_id, *_DOCUMENT, D.reason)})
    .on_conflict_do_update(
        index_elements=[D.workspace_id, D.kind, D.number],
        set_={
            "lineage": sa.bindparam("lineage"),
            "serial": sa.bindparam("serial", type_=D.serial.type),
            "key_id": sa.bindparam("key_id"),
            "encrypted": sa.bindparam("encrypted", type_=D.encrypted.type),
            "reason": sa.bindparam("reason"),
            "saved_at": sa.func.slipway_clock(),
        },
    )
)
SAVED: Final = Statement(sa.select(D.saved_at).where(_OF, D.kind == Kind.STATE))
VERSION: Final = Statement(sa.select(D.lineage, D.serial).where(_OF, D.kind == Kind.STATE))
DROP: Final = Statement(sa.delete(workspace_document).where(_OF, _KIND))
COUNT: Final = Statement(sa.select(sa.func.count()).where(_OF, _KIND))
_PLACE: Final = D["workspace_id", "kind", "number"]
# A state that is being saved is encrypted with the current key: it needs no other. Chunks go on after the last place,
# so that a document that cannot be decrypted holds up none of the others.
_ENCRYPTED_WITHOUT: Final = sa.and_(
    D.key_id != sa.bindparam("key_id"),
    D.key_id == sa.any_(sa.bindparam("ids", type_=sa.ARRAY(sa.Text))),
    sa.tuple_(*_PLACE) > sa.tuple_(*(sa.bindparam(f"after_{c.name}", type_=c.type) for c in _PLACE)),
)
_MOST: Final = sa.bindparam("most", type_=sa.Integer)
SIZES: Final = Statement(
    sa.select(sa.func.octet_length(D.encrypted).label("size")).where(_ENCRYPTED_WITHOUT).order_by(*_PLACE).limit(_MOST)
)
TAKE_ENCRYPTED_WITHOUT: Final = Statement(
    sa.select(D.workspace_id, *_DOCUMENT)
    .where(_ENCRYPTED_WITHOUT)
    .order_by(*_PLACE)
    .limit(_MOST)
    .with_for_update(skip_locked=True)
)
REENCRYPT: Final = Statement(
    sa.update(workspace_document)
    .where(_OF, _KIND, _NUMBER)
    .values(key_id=sa.bindparam("new_id"), encrypted=sa.bindparam("data", type_=D.encrypted.type))
)
# The batch of a worker whose instance is not bound yet has one worker.
WORKERS_OF: Final = Statement(
    sa.select(C.id, worker.c.id.label("worker_id"))
    .join_from(
        workspace,
        worker,
        sa.and_(
            worker.c.account_id == C.account_id,
            sa.or_(
                worker.c.instance_id == C.instance_id,
                sa.and_(C.instance_id.is_(None), worker.c.batch_id == C.batch_id),
            ),
        ),
    )
    .where(C.id == sa.any_(array("ids", C.id)))
)
ENCRYPTED_WITH: Final = Statement(sa.select(D.key_id, sa.func.count().label("documents")).group_by(D.key_id))


class Decrypted(msgspec.Struct, frozen=True):
    """A decrypted document. `number` tells rejected states apart."""

    content: bytes
    version: Version
    number: int = 0


class Place(msgspec.Struct, frozen=True):
    """Primary key of a document."""

    workspace_id: str
    kind: str
    number: int


FIRST: Final = Place("00000000-0000-0000-0000-000000000000", "", 0)
"""Place before all documents."""


class Reencrypted(msgspec.Struct, frozen=True):
    """A chunk of a rotation: the number of documents that were encrypted, the places of those that are not authentic,
    and the place after which the next chunk begins; None if there is none."""

    encrypted: int
    not_authentic: list[Place]
    after: Place | None


def identity(workspace_id: str, kind: str, number: int, version: Version) -> str:
    """Identity that is authenticated with a document."""
    return f"{workspace_id}/{kind}/{number}/{version.lineage}/{version.serial}"


async def insert(tx: Connection, rows: Sequence[Workspace]) -> None:
    """Store new workspaces."""
    for row in rows:
        await tx.execute(INSERT.text, *INSERT.arguments(**{name: getattr(row, name) for name in INSERT.names}))


async def get(db: Connection, workspace_id: str) -> Workspace | None:
    row = await db.fetchrow(GET.text, *GET.arguments(workspace_id=workspace_id))
    return None if row is None else from_row(row)


async def lock(tx: Connection, workspace_id: str) -> Workspace | None:
    """Lock the row of a workspace."""
    row = await tx.fetchrow(LOCK.text, *LOCK.arguments(workspace_id=workspace_id))
    return None if row is None else from_row(row)


async def of_worker(
    db: Connection, *, account_id: str, batch_id: str | None, instance_id: str | None
) -> Workspace | None:
    """Workspace of a worker, by its instance, or before that is known by its batch; None if it has none."""
    arguments = OF_WORKER.arguments(account_id=account_id, batch_id=batch_id, instance_id=instance_id)
    row = await db.fetchrow(OF_WORKER.text, *arguments)
    return None if row is None else from_row(row)


async def unlock(tx: Connection, workspace_id: str, phase: Phase, *, effects_seconds: float) -> None:
    """Take the lock from whatever run holds it, and make the next run due. The row is locked."""
    arguments = UNLOCK.arguments(workspace_id=workspace_id, next=phase, effects=effects_seconds)
    await tx.execute(UNLOCK.text, *arguments)


async def document(db: Connection, workspace_id: str, kind: Kind, keys: KeyRing) -> Decrypted | None:
    """The newest document of a kind, decrypted; None if there is none. Raises KeyMissing, NotAuthentic."""
    row = await db.fetchrow(DOCUMENT.text, *DOCUMENT.arguments(workspace_id=workspace_id, kind=kind))
    if row is None:
        return None
    version = Version(row["lineage"], row["serial"])
    document = keys.decrypt(
        Encrypted(row["key_id"], row["encrypted"]), identity(workspace_id, kind, row["number"], version)
    )
    return Decrypted(document, version, row["number"])


async def version(db: Connection, workspace_id: str) -> Version | None:
    """Version of the stored state; None if there is none."""
    row = await db.fetchrow(VERSION.text, *VERSION.arguments(workspace_id=workspace_id))
    return None if row is None else Version(row["lineage"], row["serial"])


async def saved_at(db: Connection, workspace_id: str) -> datetime | None:
    """Time at which a run last saved the state; None if there is none."""
    at: datetime | None = await db.fetchval(SAVED.text, *SAVED.arguments(workspace_id=workspace_id))
    return at


async def put(
    tx: Connection,
    workspace_id: str,
    kind: Kind,
    content: bytes,
    keys: KeyRing,
    *,
    version: Version = Version("", 0),
    number: int = 0,
    reason: str = "",
) -> None:
    """Encrypt and store a document in place of the one with its number. The row of the workspace is locked. Raises
    KeyMissing."""
    encrypted = keys.encrypt(content, identity(workspace_id, kind, number, version), random_bytes(NONCE_BYTES))
    arguments = PUT.arguments(
        workspace_id=workspace_id,
        kind=kind,
        number=number,
        lineage=version.lineage,
        serial=version.serial,
        key_id=encrypted.key_id,
        encrypted=encrypted.data,
        reason=reason,
    )
    await tx.execute(PUT.text, *arguments)


async def drop(tx: Connection, workspace_id: str, kind: Kind) -> None:
    """Delete the documents of a kind. The row of the workspace is locked."""
    await tx.execute(DROP.text, *DROP.arguments(workspace_id=workspace_id, kind=kind))


async def count(db: Connection, workspace_id: str, kind: Kind) -> int:
    """Number of documents of a kind."""
    number: int = await db.fetchval(COUNT.text, *COUNT.arguments(workspace_id=workspace_id, kind=kind))
    return number


async def reencrypt(tx: Connection, keys: KeyRing, after: Place, *, most: int, bytes_max: int) -> Reencrypted:
    """Encrypt with the current key the next documents after a place that other keys can decrypt: up to `most`, and
    `bytes_max` in total, but at least one. Those that are not authentic stay as they are. Raises KeyMissing if there is
    no key."""
    values = {
        "key_id": keys.current_id,
        "ids": [*keys.ids],
        "after_workspace_id": after.workspace_id,
        "after_kind": after.kind,
        "after_number": after.number,
    }
    sizes = [row["size"] for row in await tx.fetch(SIZES.text, *SIZES.arguments(**values, most=most))]
    number = max(1, sum(size <= bytes_max for size in accumulate(sizes)))
    rows = await tx.fetch(TAKE_ENCRYPTED_WITHOUT.text, *TAKE_ENCRYPTED_WITHOUT.arguments(**values, most=number))
    not_authentic: list[Place] = []
    for row in rows:
        place = Place(str(row["workspace_id"]), row["kind"], row["number"])
        about = identity(place.workspace_id, place.kind, place.number, Version(row["lineage"], row["serial"]))
        try:
            document = keys.decrypt(Encrypted(row["key_id"], row["encrypted"]), about)
        except NotAuthentic:
            not_authentic.append(place)
            continue
        encrypted = keys.encrypt(document, about, random_bytes(NONCE_BYTES))
        arguments = REENCRYPT.arguments(**msgspec.structs.asdict(place), new_id=encrypted.key_id, data=encrypted.data)
        await tx.execute(REENCRYPT.text, *arguments)
    is_last = len(rows) < number or number == len(sizes) < most
    last = None if is_last else Place(str(rows[-1]["workspace_id"]), rows[-1]["kind"], rows[-1]["number"])
    return Reencrypted(len(rows) - len(not_authentic), not_authentic, last)


async def workers_of(db: Connection, workspace_ids: Sequence[str]) -> dict[str, str]:
    """Ids of workers by the ids of their workspaces, of those whose workers are not deleted yet."""
    rows = await db.fetch(WORKERS_OF.text, *WORKERS_OF.arguments(ids=[*workspace_ids]))
    return {str(row["id"]): str(row["worker_id"]) for row in rows}


async def encrypted_with(db: Connection) -> dict[str, int]:
    """Number of documents by the id of their key."""
    return {row["key_id"]: row["documents"] for row in await db.fetch(ENCRYPTED_WITH.text)}


def from_row(row: Any) -> Workspace:
    values: dict[str, Any] = dict(row)
    ids = {name: str(values[name]) for name in ("id", "batch_id")}
    return Workspace(**values | ids | {"phase": Phase(values["phase"])})
