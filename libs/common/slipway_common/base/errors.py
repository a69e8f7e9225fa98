"""Exceptions, distinguished by the reaction expected of the caller."""


class Transient(Exception):
    """Infrastructure failed, not the event: retry, never dead-letter."""


class BadEvent(Exception):
    """The record can never be applied; the message is for people."""
