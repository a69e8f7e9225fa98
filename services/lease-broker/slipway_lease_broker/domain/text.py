"""Numbers with their nouns, for reasons and messages. Pure."""


def quantity(number: int, noun: str) -> str:
    """`number` and `noun` in the singular or the plural: "1 unit", "2 units"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
