"""Types of texts in HTTP bodies, paths and queries, with the limits that events have."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from slipway_api.limits import NAME, NOTE, REASON, Limit


def within(limit: Limit) -> Callable[[str], str]:
    """Validator of a text."""

    def validated(text: str) -> str:
        if wrong := limit.problem(text):
            raise ValueError(wrong)
        return text

    return validated


def shown(limit: Limit, characters_min: int = 0) -> Any:
    """Limit of a field as its JSON Schema shows it; `within` checks it."""
    return Field(min_length=characters_min, max_length=limit.characters, json_schema_extra={"x-max-bytes": limit.bytes})


Name = Annotated[str, shown(NAME, 1), AfterValidator(within(NAME))]
Reason = Annotated[str, shown(REASON, 1), AfterValidator(within(REASON))]
Note = Annotated[str, shown(NOTE), AfterValidator(within(NOTE))]
NameOrEmpty = Annotated[str, shown(NAME), AfterValidator(within(NAME))]
ReasonOrEmpty = Annotated[str, shown(REASON), AfterValidator(within(REASON))]
