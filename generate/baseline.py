"""`make baseline`: writes the first migration of each service, made from its tables, functions and first rows.

With `check`, as in `make check`, it writes nothing, prints a line per file that is not in step, and exits with 1 if
there is any.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slipway_common.database.tables import script
from slipway_lease_broker.store import tables as lease_broker
from slipway_provisioner.store import tables as provisioner
from slipway_weight_calculator.store import tables as weight_calculator

ROOT: Final = Path(__file__).parents[1]
HEADER: Final = "-- Generated from store/tables.py by `make baseline`; do not edit.\n"
SCHEMAS: Final = {
    "lease-broker": lease_broker.metadata,
    "provisioner": provisioner.metadata,
    "weight-calculator": weight_calculator.metadata,
}


def files() -> Iterator[tuple[str, str]]:
    """Path from the root and text of each baseline."""
    for service, metadata in SCHEMAS.items():
        package = f"slipway_{service.replace('-', '_')}"
        yield f"services/{service}/{package}/migrations/versions/0001_baseline.sql", HEADER + script(metadata)


def main(arguments: list[str]) -> int:
    stale = [(path, text) for path, text in files() if _read(ROOT / path) != text]
    if arguments == ["check"]:
        for path, _ in stale:
            print(f"{path}: not in step with store/tables.py; run `make baseline`", file=sys.stderr)
        return 1 if stale else 0
    for path, text in stale:
        (ROOT / path).write_text(text, encoding="utf-8")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
