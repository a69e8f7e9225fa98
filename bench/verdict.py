"""The last line of a benchmark: which of its claims are false."""

from collections.abc import Mapping


def verdict(claims: Mapping[str, bool]) -> int:
    """Print it, by the claims' words; returns the exit code."""
    false = [name for name, holds in claims.items() if not holds]
    print(f"FALSE: {'; '.join(false)}" if false else f"all hold: {'; '.join(claims)}")
    return 1 if false else 0
