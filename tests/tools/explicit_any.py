"""Uses of `Any` in the packages of the client, as a line in `make check`; what comes from a service has a type.

Prints the number in each module. Exits with 1 if there are more than ANY_MAX in all.
"""

import ast
import sys
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).parents[2] / "libs/client"
ANY_MAX: Final = 40


def uses(source: str) -> int:
    """Number of names `Any` in a module, also in annotations that are text."""
    trees = [ast.parse(source)]
    for node in ast.walk(trees[0]):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            trees.append(ast.parse(annotation.value))
    names = (node for tree in trees for node in ast.walk(tree))
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in names)


def main() -> int:
    found = {path.relative_to(CLIENT): uses(path.read_text()) for path in sorted(CLIENT.rglob("*.py"))}
    total = sum(found.values())
    listed = ", ".join(f"{path.relative_to('slipway_client')} {number}" for path, number in found.items() if number)
    print(f"explicit Any in libs/client: {total}, at most {ANY_MAX}: {listed}")
    return 1 if total > ANY_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
