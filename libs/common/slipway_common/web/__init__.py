"""HTTP of the services."""

from slipway_common.web import paths  # noqa: F401 # registers the type `id` of path parameters before any route
