"""Results of benchmarks that are committed: files of bench/results/, written only with KEEP=1."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

FOLDER: Final = Path(__file__).parent / "results"
NAME: Final = "bench/results"


def folder_to_write(environment: Mapping[str, str], *files: str, folder: Path = FOLDER) -> Path | None:
    """`folder` if KEEP=1, else None; prints which of `files` are written or not."""
    names = ", ".join(f"{NAME}/{file}" for file in files)
    if environment.get("KEEP") != "1":
        print(f"not kept: KEEP=1 writes {names}", flush=True)
        return None
    print(f"kept in {names}", flush=True)
    folder.mkdir(exist_ok=True)
    return folder


def write_json(environment: Mapping[str, str], file: str, results: Any) -> None:
    """Write one run as indented JSON if KEEP=1."""
    if (folder := folder_to_write(environment, file, folder=FOLDER)) is not None:
        (folder / file).write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
