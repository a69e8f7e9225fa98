"""The last line of a benchmark: its claims, or those of them that are false."""

from collections.abc import Mapping


def report(claims: Mapping[str, bool]) -> int:
    """Print the claims that are false, or all if none is; return the exit code."""
    false = [name for name, holds in claims.items() if not holds]
    print(f"FALSE: {'; '.join(false)}" if false else f"all hold: {'; '.join(claims)}")
    return 1 if false else 0
