"""Periodic work, one loop per module."""
