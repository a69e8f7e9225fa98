"""Alembic environment of the lease-broker."""

from slipway_common.migrate import run_environment

run_environment()
