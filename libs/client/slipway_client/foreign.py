"""Text of others, as a terminal may show it. Imports nothing: everything that prints for people needs it."""


def printable(text: str) -> str:
    """Text of others without what a terminal would obey: escapes, line ends, marks of direction."""
    return "".join(character if character.isprintable() else "�" for character in text)
