"""Seeds of a simulation run, from the arguments of `make simulate`."""

from collections.abc import Mapping, Sequence


def seeds(environment: Mapping[str, str], selected: Sequence[int]) -> list[int]:
    """Seeds to run: SEED=n that one, SEEDS=N the first N from 1, otherwise the selected ones. Raises ValueError."""
    for name in ("SEED", "SEEDS"):
        if (text := environment.get(name, "")) and not (text.isdecimal() and int(text)):
            raise ValueError(f"{name}={text}: expected a positive integer")
    if seed := environment.get("SEED"):
        return [int(seed)]
    return [*range(1, int(environment["SEEDS"]) + 1)] if environment.get("SEEDS") else list(selected)
