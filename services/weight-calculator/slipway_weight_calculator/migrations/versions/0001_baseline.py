"""Baseline schema. Its SQL stands beside this file; `make baseline` generates it from `store/tables.py`."""

from pathlib import Path

from alembic import op

from slipway_common.database.migrate import execute

revision = "0001"
down_revision = None


def upgrade() -> None:
    execute(op, Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
