"""Field types of slipway.yaml: ids, names, numbers, exact ratios and amounts, provider settings, each with bounds."""

import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Annotated, Any, Final

import msgspec
from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from slipway_common.declaration import user_data

MISMATCH: Final = "pattern"
"""Type of the validation error of a text that does not match its pattern."""


class Pattern(msgspec.Struct, frozen=True):
    """Regular expression that a text has to match as a whole, and the end of the message about one that does not."""

    expression: str
    mismatch: str

    def matches(self, text: str) -> bool:
        return re.fullmatch(self.expression, text) is not None

    def check(self, text: str) -> str:
        """The text; raises PydanticCustomError if it does not match."""
        if not self.matches(text):
            raise PydanticCustomError(MISMATCH, "{mismatch}", {"mismatch": self.mismatch})
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": self.expression}


# Segments separated by slashes; none is "." or "..", which programs that handle URLs would resolve.
_SEGMENT: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_])?"
ID_PATTERN: Final = Pattern(
    rf"^{_SEGMENT}(/{_SEGMENT})*$",
    "is not a valid id: use letters, digits and inner . _ - in parts separated by /",
)
ID_CHARACTERS_MAX: Final = 128
PROVIDER_PATTERN: Final = Pattern(
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
    "is not the name of a provider: use lower-case letters, digits and inner hyphens",
)
NAME_PATTERN: Final = Pattern(
    r"^[!-~]{1,200}$",
    "is not a valid name: use 1 to 200 visible ASCII characters without spaces",
)
# A signal names a zone alone or as region/zone; three of these fit into a key with an account.
PLACE_PATTERN: Final = Pattern(
    r"^[!-.0-~]{1,100}$",
    "is not valid: use 1 to 100 visible ASCII characters without spaces and slashes",
)
# Bounded digits: "1e999999999" would take minutes to compute.
RATIO_PATTERN: Final = r"^[0-9]{1,9}(\.[0-9]{1,9}|/[0-9]{1,9})?$"
MONEY_PATTERN: Final = r"^[0-9]{1,9}(\.[0-9]{1,9})?$"
SETTINGS_BYTES_MAX: Final = 16_384
SETTINGS_DEPTH_MAX: Final = 32
"""Depth of nested settings, which all programs that read them as JSON can handle."""


def _ratio(given: object) -> Fraction:
    # The shortest text of a float is what was written: 0.07 stays seven hundredths.
    text = str(given) if isinstance(given, str | int | float | Fraction) and not isinstance(given, bool) else ""
    if not re.fullmatch(RATIO_PATTERN, text) or re.search(r"/0+$", text):
        raise ValueError('is not an exact ratio: write "1", "0.25" or "1/3"')
    return Fraction(text)


def _money(given: object) -> Decimal:
    # The shortest text of a float is what was written, as of a ratio.
    text = str(given) if isinstance(given, str | int | float | Decimal) and not isinstance(given, bool) else ""
    if not re.fullmatch(MONEY_PATTERN, text):
        raise ValueError('is not an exact amount: write "250" or "0.0832", without a currency')
    return Decimal(text)


def _plain(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if _depth(settings) > SETTINGS_DEPTH_MAX:
        raise ValueError(f"is nested deeper than {SETTINGS_DEPTH_MAX}")
    for value in _leaves(settings):
        if isinstance(value, float) and not isfinite(value):
            raise ValueError("contains a number that is not finite")
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise ValueError("contains a number of more than 64 bits")
        if isinstance(value, str) and ("\x00" in value or not _is_utf8(value)):
            raise ValueError("contains text that cannot be stored")
    if (size := len(msgspec.json.encode(settings))) > SETTINGS_BYTES_MAX:
        raise ValueError(f"has {size:,} bytes as JSON; the maximum is {SETTINGS_BYTES_MAX:,}")
    return settings


def _template(given: str) -> str:
    if reason := user_data.problem(given):
        raise ValueError(reason)
    return given


Id = Annotated[str, Field(max_length=ID_CHARACTERS_MAX), ID_PATTERN]
Provider = Annotated[str, PROVIDER_PATTERN]
Name = Annotated[str, NAME_PATTERN]
Place = Annotated[str, PLACE_PATTERN]
Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
AtLeastOne = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1_000_000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=31_536_000, allow_inf_nan=False)]
Ratio = Annotated[
    Fraction,
    PlainValidator(_ratio),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": RATIO_PATTERN}, {"type": "number", "minimum": 0}]}),
]
Money = Annotated[
    Decimal,
    PlainValidator(_money),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": MONEY_PATTERN}, {"type": "number", "minimum": 0}]}),
]
Settings = Annotated[dict[Name, JsonValue], AfterValidator(_plain)]
UserData = Annotated[str, Field(min_length=1), AfterValidator(_template)]


def _leaves(value: JsonValue) -> Iterator[JsonValue]:
    """All scalar values in `value`, including keys."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _depth(value: JsonValue) -> int:
    """Number of mappings and lists around the innermost value."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
