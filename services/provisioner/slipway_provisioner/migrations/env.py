"""Entry point of Alembic; see slipway_common.database.migrate."""

from slipway_common.database.migrate import run_environment

run_environment()
