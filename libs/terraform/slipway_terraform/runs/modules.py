"""Modules on disk: the user's files are read, checked and copied, so that a later change affects no run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from slipway_terraform.domain.errors import DigestMismatch, ModuleInvalid, ModuleMissing
from slipway_terraform.domain.module import digest, is_configuration

FILES_MAX: Final = 1_000
BYTES_MAX: Final = 20 * 2**20
LEFT_OUT: Final = frozenset({".git", ".terraform"})


def read_module(folder: Path) -> dict[str, bytes]:
    """Files of a module by relative path. Raises ModuleMissing, and ModuleInvalid for one that is too large."""
    if not folder.is_dir():
        raise ModuleMissing(f"there is no module at {folder}: it is not a folder; check the path")
    files: dict[str, bytes] = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if LEFT_OUT & set(relative.parts) or not path.is_file():
            continue
        size += path.stat().st_size
        if len(files) == FILES_MAX or size > BYTES_MAX:
            raise ModuleInvalid(
                f"{folder} has more than {FILES_MAX} files or {BYTES_MAX >> 20} MiB; name the folder of a module"
            )
        files[relative.as_posix()] = path.read_bytes()
    if not any(is_configuration(path) for path in files if "/" not in path):
        raise ModuleMissing(f"there is no module at {folder}: it has no .tf or .tf.json file; check the path")
    return files


def module_digest(folder: Path) -> str:
    """SHA-256 of the module in a folder, in hex. Raises ModuleMissing, ModuleInvalid."""
    return digest(read_module(folder))


def checked_module(folder: Path, expected: str) -> dict[str, bytes]:
    """Files of the module with this digest. Raises ModuleMissing, ModuleInvalid, DigestMismatch."""
    files = read_module(folder)
    if (found := digest(files)) != expected:
        raise DigestMismatch(
            f"module {folder}: SHA-256 is {found}, expected {expected}; "
            "restore the module, or give the new digest if its change is wanted"
        )
    return files


def copy_module(folder: Path, expected: str, target: Path) -> None:
    """Copy the module with this digest to `target`. Raises the errors of `checked_module`."""
    for path, content in checked_module(folder, expected).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def configuration(folders: Mapping[str, Path]) -> dict[str, str]:
    """Texts of the configuration files in these folders, by name of folder and file. Raises ModuleInvalid."""
    texts = {}
    for name, folder in folders.items():
        for file in sorted(folder.iterdir()):
            if file.is_file() and is_configuration(file.name):
                try:
                    texts[f"{name}/{file.name}"] = file.read_text(encoding="utf-8-sig")
                except UnicodeDecodeError as error:
                    raise ModuleInvalid(f"{name}/{file.name} is not UTF-8; save it as UTF-8") from error
    return texts
