"""Errors by what the caller should do."""


class Transient(Exception):
    """Infrastructure failed, not the event: try again, never dead-letter."""


class Conflict(Exception):
    """Somebody else decided first: read again and decide again."""


class BadEvent(Exception):
    """The record can never be applied; the reason is for people."""
