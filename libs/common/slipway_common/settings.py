"""Settings from SLIPWAY_* variables. A value may lie in a file instead, which SLIPWAY_<NAME>_FILE names: so secrets
stay out of environments, which every process listing and crash report shows. A variable wins over its file."""

import os
import sys
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX: Final = "SLIPWAY_"
SettingsType = TypeVar("SettingsType", bound="EnvironmentSettings")


class UnreadableFile(ValueError):
    """A variable names a file that gives no value; says which, where, and what to do."""


class EnvironmentSettings(BaseSettings):
    """What every process of Slipway takes its settings from. Unknown variables are left to others."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

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
    """Values of those settings whose variable is not set, from the files that are named for them."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = variable_of(field_name)
        if variable in os.environ or not (path := os.environ.get(f"{variable}_FILE")):
            return None, field_name, False
        return read_value(f"{variable}_FILE", Path(path)), field_name, False

    def __call__(self) -> dict[str, Any]:
        values = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in values.items() if value is not None}


def variable_of(field_name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + field_name.upper()


def read_value(variable: str, path: Path) -> str:
    """The one value in a file, without the line end around it; raises UnreadableFile, which never shows the value."""
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UnreadableFile(f"{variable}={path}: {reason}; make that file readable, or set the value itself") from None
    if not value:
        raise UnreadableFile(f"{variable}={path}: the file is empty; it has to hold the value")
    return value


def from_environment(kind: type[SettingsType]) -> SettingsType:
    """The settings, or an end of the process with exit code 2 and a line for each thing that is wrong."""
    try:
        return kind()
    except UnreadableFile as error:
        lines = [str(error)]
    except ValidationError as error:  # its own text would show the values
        lines = [_told(problem["loc"], problem["type"], problem["msg"]) for problem in error.errors()]
    print(*lines, sep="\n", file=sys.stderr)  # noqa: T201 # before there is a log
    sys.exit(2)


def _told(where: tuple[int | str, ...], kind: str, message: str) -> str:
    variable = variable_of(str(where[0])) if where else PREFIX + "…"
    return f"{variable} is not set; set it, or {variable}_FILE" if kind == "missing" else f"{variable}: {message}"
