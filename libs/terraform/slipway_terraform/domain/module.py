"""Checks of a user's module: its digest, the providers it needs, and if a process may be shared for it. Pure.

A provider process has one configuration. A module that configures a provider itself, or asks for one under a second
name, makes Terraform configure the same process twice, and each configuration overwrites the last: resources are then
created in the wrong region or account, and reported as created.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from slipway_terraform.domain import hcl
from slipway_terraform.domain.errors import ModuleInvalid

NATIVE: Final = (".tf", ".tofu")
JSON: Final = (".tf.json", ".tofu.json")


class Needs(msgspec.Struct, frozen=True):
    """Providers of a module and its nested modules.

    `sources` are the declared source addresses as they are written, by local name; `unsafe` are the reasons not to
    share, each with its file and line.
    """

    sources: Mapping[str, str]
    unsafe: tuple[str, ...]


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 of a module's files, in hex, by relative path: `sha256sum` lines of all files, sorted by path."""
    lines = (f"{hashlib.sha256(files[path]).hexdigest()}  {path}\n" for path in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def is_configuration(path: str) -> bool:
    """True if Terraform or OpenTofu reads this file of a module."""
    return path.endswith((*NATIVE, *JSON))


def needs(files: Mapping[str, str]) -> Needs:
    """Providers that these configuration files need, by path. Raises ModuleInvalid for a file that is unreadable."""
    sources: dict[str, str] = {}
    unsafe: list[str] = []
    for path in sorted(files):
        try:
            found = list(_json(files[path]) if path.endswith(JSON) else _native(files[path]))
        except (hcl.Unreadable, ValueError) as error:
            raise ModuleInvalid(f"{path} is unreadable: {error}; run `terraform validate` in the module") from error
        for place, name, source in found:
            if source:
                sources[name] = source
            elif place.startswith("alias"):
                unsafe.append(f"{path}{place.removeprefix('alias')}: a second configuration of {name} is asked for")
            else:
                unsafe.append(f"{path}{place}: provider {name} is configured")
    return Needs(sources, tuple(unsafe))


# Findings are (place, provider, source): place is ":LINE" or "", preceded by "alias" for configuration_aliases.
Finding = tuple[str, str, str]


def _native(text: str) -> Iterator[Finding]:
    for block in hcl.read(text).blocks:
        if block.kind == "provider":
            yield f":{block.line}", "".join(block.labels), ""
        if block.kind == "terraform":
            for required in block.blocks:
                if required.kind == "required_providers":
                    yield from _required(required)


def _required(block: hcl.Block) -> Iterator[Finding]:
    for name, tokens in block.attributes.items():
        for token, sign, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if token.text == "source" and sign.text in "=:" and value.kind == "string":
                yield "", name, value.text
        for token in tokens:
            if token.text == "configuration_aliases":
                yield f"alias:{token.line}", name, ""


def _json(text: str) -> Iterator[Finding]:
    for document in _listed(json.loads(text, object_pairs_hook=_object)):
        for providers in _listed(document.get("provider")):
            for name in providers:
                yield "", name, ""
        for terraform in _listed(document.get("terraform")):
            for required in _listed(terraform.get("required_providers")):
                for name, given in required.items():
                    for value in given if isinstance(given, list) else [given]:
                        if isinstance(value, dict) and (source := value.get("source")):
                            yield "", name, str(source)
                        if isinstance(value, dict) and "configuration_aliases" in value:
                            yield "alias", name, ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which Terraform reads a name that stands there twice as two blocks: a list of both."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        both = [found[name], value] if name in found else [value]
        parts = [part for each in both for part in (each if isinstance(each, list) else [each])]
        found[name] = parts if name in found else value
    return found


def _listed(value: Any) -> Iterable[dict[str, Any]]:
    """A block of JSON syntax is one object or a list of them."""
    for each in value if isinstance(value, list) else [value]:
        if each is None:
            continue
        if not isinstance(each, dict):
            raise ValueError(f"expected an object, found {type(each).__name__}")
        yield each
