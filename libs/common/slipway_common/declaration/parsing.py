"""Parsing of slipway.yaml: a declaration is valid as a whole or refused with every problem found."""

import json
from collections.abc import Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from slipway_common.declaration.fields import ID_PATTERN, NAME_PATTERN, PROVIDER_PATTERN
from slipway_common.declaration.identity import Known, inconsistencies
from slipway_common.declaration.models import ALTERNATIVES, Declaration
from slipway_common.declaration.strict_yaml import Document, DocumentProblem, Invalid, Path, path_text, read

PATTERN_MEANS: Final = {
    ID_PATTERN: "is not a valid id: use letters, digits and inner . _ - in parts separated by /",
    PROVIDER_PATTERN: "is not the name of a provider: use lower-case letters, digits and inner hyphens",
    NAME_PATTERN: "is not a valid name: use 1 to 200 visible ASCII characters without spaces",
}


def load(text: str, known: Known | None = None) -> Declaration:
    """Load a declaration from YAML; raises Invalid with all problems found, each with its line.

    `known`: what other declarations have declared, to which this one may refer.
    """
    document = read(text)
    try:
        declared = _validated(document, known)
    except Invalid as error:
        found = {problem.path for problem in document.problems}
        problems = [problem for problem in error.problems if problem.path not in found]
        raise Invalid(sorted(document.problems + problems, key=lambda problem: problem.line or 0)) from error
    if document.problems:
        raise Invalid(document.problems)
    return declared


def parse(body: object, known: Known | None = None) -> Declaration:
    """Parse a declaration from a decoded JSON body; raises Invalid without lines."""
    return _validated(Document(body, {}, []), known)


def json_schema() -> dict[str, Any]:
    """JSON Schema of slipway.yaml, for editors. Constraints across entries, such as references, are not included."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:slipway:schema:slipway.yaml",
        **Declaration.model_json_schema(),
        "title": "slipway.yaml",
    }


def _validated(document: Document, known: Known | None) -> Declaration:
    try:
        declared = Declaration.model_validate(document.value)
    except ValidationError as error:
        raise Invalid(list(_problems(error, document))) from error
    problems = inconsistencies(declared, known)
    if found := [DocumentProblem(path_text(path), reason, document.line(path)) for path, reason in problems]:
        raise Invalid(found)
    return declared


def _problems(error: ValidationError, document: Document) -> Iterator[DocumentProblem]:
    errors = error.errors(include_url=False)
    for found in errors:
        where = _outside_settings(found["loc"])
        # Pydantic also reports a list as too short if its entries are invalid; those are reported themselves.
        if found["type"] != "too_short" or not any(other["loc"][:-1][: len(where)] == where for other in errors):
            yield DocumentProblem(path_text(where), _reason(found), document.line(where))


def _reason(found: Any) -> str:
    context, shown = found.get("ctx", {}), _shown(found["input"])
    match found["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"unknown field; known: {', '.join(_fields(found['loc'][:-1]))}"
        case "string_too_long":
            return f"{shown} has {len(found['input'])} characters; at most {context['max_length']} are possible"
        case "too_short":
            return f"must have at least {context['min_length']} entry"
        case "tuple_type":
            return f"must be a list, not {shown}"
        case "model_type" | "model_attributes_type":
            return f"must be a mapping with fields, not {shown}"
        case "string_pattern_mismatch":
            return f"{shown} {PATTERN_MEANS[context['pattern']]}"
        case "value_error":
            return f"{shown} {context['error']}" if not isinstance(found["input"], dict) else str(context["error"])
        case _:
            return f"{shown}: {found['msg'].replace('Input should', 'must')}"


def _outside_settings(path: Path) -> Path:
    """Path without anything inside settings, which may be deeply nested, and without the tags of alternatives."""
    path = tuple(part for part in path if part not in ALTERNATIVES)
    return path[: path.index("settings") + 1] if "settings" in path else path


def _shown(value: object) -> str:
    """Short text of a value; mappings and lists are only named."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"


def _fields(path: Path) -> list[str]:
    """Field names allowed at `path`."""
    model: type[BaseModel] = Declaration
    for part in path:  # list indexes and mapping keys do not change the model
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Model contained in an annotation: directly, in a list, in a mapping or in a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner)) is not None), None)
