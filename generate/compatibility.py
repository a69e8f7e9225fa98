"""Compatibility of schemas in both directions: old readers of new records, and new readers of old ones. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


def breaking(old: Mapping[str, Schema], new: Mapping[str, Schema]) -> list[str]:
    """Changes from `old` to `new` (event type → schema) that are not additive; empty if all are."""
    found = []
    for type_, before in sorted(old.items()):
        after = new.get(type_)
        if after is None:
            found.append(f"{type_}: event type removed")
            continue
        if before.get("x-topic") != after.get("x-topic"):
            found.append(f"{type_}: moved from topic {before.get('x-topic')} to {after.get('x-topic')}")
        found += [f"{type_}{where}: {what}" for where, what in _compare(before, after, before, after, "")]
    return found


def _compare(old: Schema, new: Schema, old_root: Schema, new_root: Schema, where: str) -> Iterator[tuple[str, str]]:
    old, new = _resolved(old, old_root), _resolved(new, new_root)
    if (before := _kinds(old, old_root)) != (after := _kinds(new, new_root)):
        yield where, f"type changed from {_words(before)} to {_words(after)}"
        return
    for value in old.get("enum", []):
        if value not in new.get("enum", [value]):
            yield where, f"value {value!r} removed"
    if "enum" in new and "enum" not in old:
        yield where, f"now only {_words({str(value) for value in new['enum']})}"
    required_before, required_after = set(old.get("required", [])), set(new.get("required", []))
    for name in sorted(required_after - required_before):
        yield f"{where}.{name}", "now required; older records lack it"
    for name, property_ in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{where}.{name}", "property removed"
            continue
        if name in required_before - required_after:
            yield f"{where}.{name}", "no longer required; older readers need it"
        yield from _compare(property_, new["properties"][name], old_root, new_root, f"{where}.{name}")
    for part, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(old.get(part), dict) and isinstance(new.get(part), dict):
            yield from _compare(old[part], new[part], old_root, new_root, where + mark)
    # Alternatives of equal types, for example a nullable reference, are compared one by one.
    for before_one in old.get("anyOf", []):
        for after_one in new.get("anyOf", []):
            if _kinds(before_one, old_root) == _kinds(after_one, new_root):
                yield from _compare(before_one, after_one, old_root, new_root, where)


def _resolved(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema


def _kinds(schema: Schema, root: Schema) -> frozenset[str]:
    """JSON types that a schema accepts."""
    schema = _resolved(schema, root)
    if "anyOf" in schema:
        return frozenset().union(*(_kinds(part, root) for part in schema["anyOf"]))
    if "enum" in schema and "type" not in schema:
        names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
        return frozenset(names[type(value)] for value in schema["enum"])
    kinds = schema.get("type", "anything")
    return frozenset([kinds] if isinstance(kinds, str) else kinds)


def _words(values: frozenset[str] | set[str]) -> str:
    return " or ".join(sorted(values))
