"""Credentials of an account: environment variables of its provider plugin, which is where every provider reads them.

They are in no file that Slipway writes. References are read for each run, so that a renewed credential is used by the
next one, in a plugin process of its own.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec


class NoCredential(Exception):
    """A credential cannot be read; the message names the reference and contains nothing of it."""


def environment_of(reference: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a reference: those of this process whose name begins with PREFIX_, without it, or the names and
    values of a file, a JSON object or lines NAME=value. Raises NoCredential."""
    if "environment" in reference:
        prefix = f"{reference['environment']}_"
        found = {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}
        if not found:
            raise NoCredential(f"no variable {prefix}… is set for the provisioner; set what the provider needs")
        return found
    if "file" in reference:
        return _read(Path(reference["file"]))
    return {}


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise NoCredential(f"{path}: {reason}; make it readable for the provisioner") from None
    if text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text, type=dict[str, str])
        except msgspec.DecodeError:
            raise NoCredential(f"{path} is not a JSON object of strings; write names and values") from None
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines or not all("=" in line for line in lines):
        raise NoCredential(f"{path} has a line without NAME=value; write one variable per line")
    return dict(line.split("=", 1) for line in lines)
