"""Alembic environment of the lease-broker."""

from slipway_common.database.migrate import run_environment

run_environment()
