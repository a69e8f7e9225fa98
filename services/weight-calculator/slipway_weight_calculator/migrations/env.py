"""Alembic environment."""

from slipway_common.migrate import run_environment

run_environment()
