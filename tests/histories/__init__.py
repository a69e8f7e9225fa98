"""Histories of a real lease-broker under faults, and the pure checker that judges them."""
