"""Acceptance tests of the requirements of the lease-broker."""
