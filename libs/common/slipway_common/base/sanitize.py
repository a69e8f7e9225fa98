"""Sanitizing of untrusted text for a terminal. Imports nothing, since every command that prints needs it."""


def printable(text: str) -> str:
    """Replace characters that a terminal would interpret: escapes, line ends, bidirectional marks."""
    return "".join(character if character.isprintable() else "�" for character in text)
