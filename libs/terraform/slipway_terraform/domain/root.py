"""The generated root module: one literal configuration per provider around the user's module. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slipway_terraform.domain.errors import SpecInvalid
from slipway_terraform.domain.sources import local_name
from slipway_terraform.domain.specs import ProviderSpec

FILE: Final = "main.tf.json"
MODULE: Final = "worker"
"""Name of the user's module, and of the one output, which holds all outputs of the module."""
FOLDER: Final = "module"
"""Folder of the user's module, relative to the root module."""
META_ARGUMENTS: Final = frozenset({"source", "version", "providers", "count", "for_each", "depends_on", "lifecycle"})
"""Arguments of a module block that are not variables."""
PROVIDER_META_ARGUMENTS: Final = frozenset({"alias", "version", "for_each"})
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*")
_TEMPLATE: Final = re.compile(r"([$%])\{")


def root_module(
    specs: Sequence[ProviderSpec], variables: Mapping[str, Any], required_outputs: Sequence[str] = ()
) -> bytes:
    """Text of main.tf.json. Raises SpecInvalid for names that would change what the root module means."""
    if reserved := sorted(META_ARGUMENTS & set(variables)):
        raise SpecInvalid(f"variables of a module cannot be named {', '.join(reserved)}; rename them in the module")
    required: dict[str, Any] = {}
    providers: dict[str, Any] = {}
    for spec in specs:
        name = local_name(spec.source)
        if name in required:
            raise SpecInvalid(
                f"two providers are named {name}: {required[name]['source']} and {spec.source}; use one of them"
            )
        if reserved := sorted(PROVIDER_META_ARGUMENTS & set(spec.configuration)):
            raise SpecInvalid(f"the configuration of {spec.source} contains {', '.join(reserved)}; remove it")
        required[name] = {"source": spec.source, "version": f"= {spec.version}"}
        providers[name] = [literal(spec.configuration)]
    if invalid := [name for name in required_outputs if not _NAME.fullmatch(name)]:
        raise SpecInvalid(f"no output can be named {', '.join(invalid)}; write the names of the module's outputs")
    document: dict[str, Any] = {
        # Terraform refuses empty ones, and a module of terraform_data alone needs no provider.
        **({"terraform": [{"required_providers": [required]}], "provider": providers} if specs else {}),
        "module": {MODULE: [{"source": f"./{FOLDER}", **literal(variables)}]},
        # All outputs at once, so that the module need not be parsed; sensitive, since some may be.
        "output": {MODULE: [{"value": f"${{module.{MODULE}}}", "sensitive": True}]},
    }
    if required_outputs:
        # Without one of them a plan fails, before anything is created.
        document["locals"] = [{"required": [f"${{module.{MODULE}.{name}}}" for name in required_outputs]}]
    return json.dumps(document, indent=1, ensure_ascii=False).encode()


def literal(value: Any) -> Any:
    """The value with its texts and keys escaped: JSON syntax evaluates both as templates, `${…}` and `%{…}`."""
    if isinstance(value, str):
        return _TEMPLATE.sub(r"\1\1{", value)
    if isinstance(value, Mapping):
        return {literal(str(key)): literal(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [literal(each) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise SpecInvalid(
        f"a {type(value).__name__} cannot be a variable or a setting; use strings, numbers, lists, objects"
    )
