"""Secrets of a new deployment as files: `python -m slipway_client.cli.secret_files FOLDER --database-url URL`.

Creates missing files and changes no existing ones, so it may run before every start. Files are readable for their owner
and group only; nothing but file names is printed.
"""

import argparse
import base64
import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from slipway_client.cli import tokens
from slipway_common.base.ids import hash_secret
from slipway_common.declaration.strict_yaml import Invalid

MODE: Final = 0o640
OPERATOR: Final = "operator"
SCRAPER: Final = "prometheus"


def create(folder: Path, database_url: str) -> list[str]:
    """Create the missing files and return their names: database_password, database_url, registration_keys,
    operator_token, metrics_token of Prometheus, and tokens.yaml, which holds hashes only. `database_url` has user, host
    and database; the password is added.

    Raises ValueError for a URL to which no password can be added, OSError if the folder cannot be written.
    """
    parts = urlsplit(database_url)
    if not parts.username or not parts.hostname or parts.password:
        raise ValueError(f"{database_url}: write postgresql://user@host:port/database, without a password")
    made = [_absent(folder / "database_password", lambda: secrets.token_hex(24))]
    password = (folder / "database_password").read_text().strip()
    where = parts.netloc.rpartition("@")[2]
    with_password = urlunsplit(parts._replace(netloc=f"{parts.username}:{password}@{where}"))
    made.append(_absent(folder / "database_url", lambda: with_password))
    made.append(_absent(folder / "registration_keys", lambda: base64.b64encode(secrets.token_bytes(32)).decode()))
    made += _operator(folder / "operator_token", folder / "tokens.yaml")
    made += _scraper(folder / "metrics_token", folder / "tokens.yaml")
    return [name for name in made if name]


def _operator(token: Path, known: Path) -> list[str]:
    """Create the operator's token and its hash together: one without the other is useless and is created again."""
    if token.exists() and known.exists():
        return []
    secret, line = tokens.create(OPERATOR, ["admin"], None)
    token.unlink(missing_ok=True)
    known.unlink(missing_ok=True)
    return [_absent(known, lambda: line), _absent(token, lambda: secret)]


def _scraper(token: Path, known: Path) -> list[str]:
    """Create the token of Prometheus, which reads metrics alone, unless its hash is known."""
    if token.exists() and hash_secret(token.read_text().strip()) in known.read_text():
        return []
    with contextlib.suppress(Invalid):  # the file has none
        tokens.revoke(SCRAPER, known)
    secret, _ = tokens.create(SCRAPER, ["read:metrics"], known)
    token.unlink(missing_ok=True)
    return [_absent(token, lambda: secret)]


def _absent(path: Path, value: Callable[[], str]) -> str:
    """Create a missing file atomically; returns its name, or an empty string if it exists."""
    if path.exists():
        return ""
    unfinished = path.with_name(f".{path.name}")
    unfinished.touch(0o600)
    unfinished.chmod(MODE)
    unfinished.write_text(value() + "\n")
    unfinished.rename(path)
    return path.name


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="slipway_client.cli.secret_files", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--database-url", required=True, help="postgresql://user@host:port/database")
    arguments = parser.parse_args()
    try:
        made = create(arguments.folder, arguments.database_url)
    except (OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    print(f"{arguments.folder}: created {', '.join(made)}" if made else f"{arguments.folder}: all files exist")


if __name__ == "__main__":
    main()
