"""Tables of Terraform workspaces."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from slipway_common.database.tables import TIME, now, uuid
from slipway_provisioner.domain.workspaces import Kind, Phase
from slipway_provisioner.store.columns import ZERO, empty_text, literals, required

PHASES: Final = f"phase IN ({literals(Phase)})"
KINDS: Final = f"kind IN ({literals(Kind)})"


def workspace_tables(metadata: MetaData) -> tuple[Table, Table, Table]:
    """Add the tables of workspaces: their rows, their encrypted documents, and the listings of accounts."""
    # One row per worker that a module makes, from its accepted call until its resources are destroyed. `holder` is the
    # run that holds the lock until `locked_until`; each lock has a higher `fence`. It is due for its next run at
    # `due_at`, never without one. Index scans for due ones and for accounts skip those that are gone.
    workspace = Table(
        "workspace",
        metadata,
        uuid("id", primary_key=True),
        required("deployment", Text),
        required("incarnation", Text),
        required("account_id", Text),
        uuid("batch_id", nullable=False),
        required("ordinal", Integer),
        required("launch_config_id", Text),
        required("phase", Text, CheckConstraint(PHASES)),
        empty_text("holder"),
        required("fence", BigInteger, server_default=ZERO),
        Column("locked_until", TIME),
        required("effects_seconds", Float),
        Column("effects_until", TIME),
        Column("due_at", TIME),
        required("failed_runs", Integer, server_default=ZERO),
        required("interruptions", Integer, server_default=ZERO),
        Column("instance_id", Text),
        empty_text("address"),
        Column("outcome", JSONB),
        empty_text("problem"),
        now("created_at"),
        Column("refreshed_at", TIME),
        Column("ended_at", TIME),
        UniqueConstraint("batch_id", "ordinal"),
    )
    c = workspace.c
    Index("workspace_due", c.due_at, postgresql_where=c.due_at.is_not(None))
    Index("workspace_account", c.account_id, postgresql_where=c.phase != Phase.GONE)
    Index(
        "workspace_instance",
        c.account_id,
        c.instance_id,
        unique=True,
        postgresql_where=(c.phase != Phase.GONE) & c.instance_id.is_not(None),
    )
    Index("workspace_ended", c.ended_at, postgresql_where=c.phase == Phase.GONE)
    # Encrypted: a state contains the secrets of its resources. `number` tells rejected states apart.
    document = Table(
        "workspace_document",
        metadata,
        uuid("workspace_id"),
        Column("kind", Text, CheckConstraint(KINDS)),
        required("number", BigInteger, server_default=ZERO),
        empty_text("lineage"),
        required("serial", BigInteger, server_default=ZERO),
        required("key_id", Text),
        required("encrypted", LargeBinary),
        empty_text("reason"),
        now("saved_at"),
        PrimaryKeyConstraint("workspace_id", "kind", "number"),
    )
    Index("workspace_document_key", document.c.key_id)
    # One row per account, listed again at `due_at`, or then by another replica. `found` are the resources without a
    # live row as of `listed_at`, when the newest complete listing began; NULL: none since the account or a restore.
    listing = Table(
        "workspace_listing",
        metadata,
        Column("account_id", Text, primary_key=True),
        now("due_at"),
        required("fence", BigInteger, server_default=ZERO),
        Column("listed_at", TIME),
        required("found", JSONB, server_default=text("'[]'")),
        empty_text("problem"),
    )
    return workspace, document, listing
