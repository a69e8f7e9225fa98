"""Entry point of Alembic; see slipway_common.migrate."""

from slipway_common.migrate import run_environment

run_environment()
