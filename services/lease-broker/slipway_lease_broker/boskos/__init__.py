"""Slots over the API of Boskos, for clients that speak it: the same lease pools and leases as everywhere, under names.
Docs: docs/guides/boskos.md.
"""
