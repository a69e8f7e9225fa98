"""YAML files that settings name, read when a service starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from slipway_common.declaration.strict_yaml import Invalid, read

Made = TypeVar("Made")


def read_file(path: Path, make: Callable[[Any], Made]) -> Made:
    """Make an object of the value in a YAML file; raises ValueError with the location of the error. `make` raises
    ValueError, also as pydantic does, or Invalid."""
    try:
        document = read(path.read_text(encoding="utf-8"))
        if document.problems:
            raise Invalid(document.problems)
        return make(document.value)
    except Invalid as error:
        first = error.problems[0]
        where = f"{path}:{first.line}" if first.line else str(path)
        raise ValueError(f"{where}: {': '.join(part for part in (first.path, first.reason) if part)}") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a readable file") from error
    except ValidationError as error:  # before ValueError, of which it is one
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{path}: {where}: {problem['msg']}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
