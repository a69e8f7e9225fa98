"""Settings from SLIPWAY_* variables, or from files named by SLIPWAY_<NAME>_FILE.

Files keep secrets out of environments, which appear in process listings and crash reports. A variable takes
precedence over its file.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX: Final = "SLIPWAY_"
CLIENT_SETTINGS: Final = frozenset({"TOKEN", "TOKEN_FILE"})
"""Settings of the client whose names resemble those of services."""
SIMILARITY_MIN: Final = 0.87
"""Similarity from which a name counts as misspelt. Names of different settings are less alike."""
ALLOWED: Final = "SLIPWAY_SECRETS_IN_ENVIRONMENT"
"""Variable by which a demo or a test permits secrets in its environment."""
_read_files: dict[str, tuple[tuple[int, int, int], str]] = {}
SettingsType = TypeVar("SettingsType", bound="EnvironmentSettings")


class Secret(NamedTuple):
    """Mark of a setting that is a secret, or `holds` one: it comes from a file."""

    holds: Callable[[str], bool] = bool


def has_password(url: str) -> bool:
    """True if a URL has a password in it."""
    where = urlsplit(url)
    return bool(where.password or parse_qs(where.query).get("password"))


class UnreadableFile(ValueError):
    """A variable names a file that cannot be read; the message names both and the remedy."""


class EnvironmentSettings(BaseSettings):
    """Base class of the settings of every process. Unknown variables are ignored, since programs share environments;
    misspelt ones are named at start."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    secrets_in_environment: bool = False
    """True: secrets may be variables. For demos and tests: an environment is shown by process listings, crash reports
    and container platforms, and cannot be replaced while the process runs."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, NamedFiles(settings_cls)


class NamedFiles(PydanticBaseSettingsSource):
    """Settings source that reads the files named by SLIPWAY_<NAME>_FILE, for variables that are not set."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = variable_of(field_name)
        if variable in os.environ or not (path := os.environ.get(f"{variable}_FILE")):
            return None, field_name, False
        return read_value(f"{variable}_FILE", Path(path)), field_name, False

    def __call__(self) -> dict[str, Any]:
        values = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in values.items() if value is not None}


def current_value(field_name: str, at_start: str) -> str:
    """Value of a setting as its file has it now. That of the start if a variable has it, or the file cannot be read."""
    variable = variable_of(field_name)
    path = os.environ.get(f"{variable}_FILE")
    if variable in os.environ or not path:
        return at_start
    try:
        stat = os.stat(path)
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if path not in _read_files or _read_files[path][0] != stamp:
            _read_files[path] = stamp, read_value(f"{variable}_FILE", Path(path))
    except (OSError, UnreadableFile):
        return _read_files[path][1] if path in _read_files else at_start
    return _read_files[path][1]


def variable_of(field_name: str) -> str:
    """Environment variable of a setting."""
    return PREFIX + field_name.upper()


def misspelt(names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Misspelt variables, each with the setting of a similar name, or of the same words in another order."""
    known = {variable_of(name) for name in names}
    known |= {f"{variable}_FILE" for variable in known}
    short = {variable.removeprefix(PREFIX) for variable in known}
    by_words = {tuple(sorted(variable.split("_"))): variable for variable in sorted(known)}
    found = {}
    for variable in sorted(environment.keys() - known - {variable_of(name) for name in CLIENT_SETTINGS}):
        if variable.startswith(PREFIX):
            names_like = get_close_matches(variable.removeprefix(PREFIX), sorted(short), 1, SIMILARITY_MIN)
            like = PREFIX + names_like[0] if names_like else ""
            if right := by_words.get(tuple(sorted(variable.split("_"))), like):
                found[variable] = right
    return found


def read_value(variable: str, path: Path) -> str:
    """Read the value in a file, stripped of whitespace; raises UnreadableFile, which never contains the value."""
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UnreadableFile(
            f"{variable}={path}: {reason}; make the file readable, or set {variable.removesuffix('_FILE')}"
        ) from None
    if not value:
        raise UnreadableFile(f"{variable}={path}: the file is empty; write the value into it")
    return value


def from_environment(kind: type[SettingsType]) -> SettingsType:
    """Read the settings; on errors, print one line each and exit with code 2. Warns of misspelt variables."""
    for variable, right in misspelt(kind.model_fields, os.environ).items():
        text = f"warning: {variable} is not a setting of this program and is ignored; did you mean {right}?"
        print(text, file=sys.stderr)  # noqa: T201 # logging is not configured yet
    try:
        settings = kind()
        if settings.secrets_in_environment or not (lines := secrets_in(kind.model_fields, os.environ)):
            return settings
    except UnreadableFile as error:
        lines = [str(error)]
    except ValidationError as error:  # its message would contain the values
        lines = [_message(problem["loc"], problem["type"], problem["msg"]) for problem in error.errors()]
    print(*lines, sep="\n", file=sys.stderr)  # noqa: T201 # logging is not configured yet
    sys.exit(2)


def secrets_in(fields: Mapping[str, FieldInfo], environment: Mapping[str, str]) -> list[str]:
    """A line for each secret in an environment, with the remedy."""
    found = []
    for name, field in fields.items():
        value = environment.get(variable := variable_of(name), "")
        if any(isinstance(mark, Secret) and mark.holds(value) for mark in field.metadata):
            found.append(
                f"{variable} holds a secret, which an environment shows to others; write it into a file that only this "
                f"user can read, set {variable}_FILE to its path, and unset {variable}"
            )
    return found


def _message(where: tuple[int | str, ...], kind: str, message: str) -> str:
    variable = variable_of(str(where[0])) if where else PREFIX + "…"
    return f"{variable} is not set; set it, or {variable}_FILE" if kind == "missing" else f"{variable}: {message}"
