"""Exceptions, distinguished by the reaction expected of the caller."""


class Transient(Exception):
    """Infrastructure failed, not the event: retry, never dead-letter."""


class Conflict(Exception):
    """A concurrent decision came first: read again and decide again."""


class BadEvent(Exception):
    """The record can never be applied; the message is for people."""
