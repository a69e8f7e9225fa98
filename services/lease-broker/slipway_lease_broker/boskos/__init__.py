"""Boskos-compatible API for slots, backed by the same lease pools and leases as the other APIs.
Docs: docs/guides/boskos.md.
"""
