"""HTTP API of the provider, of the queue and for operators."""

from slipway_common.web import paths  # noqa: F401 # registers the type `id` of path parameters before any route
