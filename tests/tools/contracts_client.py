"""Calls of every GET of running services by clients that openapi-python-client has made of contracts/openapi.

Runs in an environment of its own, without our packages. Arguments: a folder with a package of each service, and a JSON
file with the id of the deployment, its token, and the URL and the GETs of each service. Prints what does not decode, or
has fields that its document lacks, and what proves little, and last `N of N decode, 0 extra fields`; exits with 1 for
any other numbers.
"""

import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

# Parameter of a path → the lists that have a value of it, by path, and the field of their items.
SOURCES: Final = {
    "pool_id": [("/pools", "id")],
    "pool": [("/lease-pools", "id")],
    "config": [("/launch-configs", "id")],
    "worker_id": [("/workers", "id")],
    "account_id": [("/accounts", "id")],
    "instance_id": [("/accounts/{account}/instances", "id")],
    "decision_id": [("/pools/{pool_id}/decisions", "id")],
    "provider": [("/providers", "id")],
    "lease_pool_id": [("/leases", "lease_pool_id")],
    "lease_id": [("/leases", "lease_id")],
    "request_id": [("/leases", "request_id")],
}
# Values where a list is empty, which services refuse with a Problem, and required parameters of queries.
OTHERS: Final[dict[str, Any]] = {
    "topic": "none",
    "partition": 0,
    "offset": 0,
    "request_id": "none",
    "lease_id": "none",
    "decision_id": "none",
    "worker_id": "none",
    "code": "InsufficientCapacity",
    "account": "sim-a",
    "instance_id": "none",
}


class Operation:
    """A GET of a generated client."""

    def __init__(self, module: Any, client: Any, required: list[str], path: str) -> None:
        self.module = module
        self.client = client
        self.required = required
        self.path = path

    @classmethod
    def of(cls, module: Any, client: Any) -> "Operation | None":
        """The GET of a generated module; None if it is another method."""
        parameters = inspect.signature(module.sync_detailed).parameters
        if "body" in parameters:
            return None
        required = [
            name
            for name, parameter in parameters.items()
            if parameter.default is inspect.Parameter.empty and name != "client"
        ]
        request = module._get_kwargs(**{name: "{" + name + "}" for name in required})
        path = request["url"].replace("%7B", "{").replace("%7D", "}")
        return cls(module, client, required, path) if request["method"] == "get" else None

    def call(self, values: dict[str, Any]) -> tuple[int, Any, Any]:
        """Status, parsed model and JSON of an answer."""
        answer = self.module.sync_detailed(client=self.client, **{name: values[name] for name in self.required})
        try:
            body = json.loads(answer.content or b"null")
        except ValueError:
            body = answer.content.decode()
        return int(answer.status_code), answer.parsed, body


def operations(package: str, client: Any) -> Iterator[Operation]:
    """Every GET of a generated package."""
    root = importlib.import_module(f"{package}.api")
    for found in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        if not found.ispkg:
            operation = Operation.of(importlib.import_module(found.name), client)
            if operation is not None:
                yield operation


def arguments(found: Mapping[str, Operation], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of parameters: the given ones, and those of the first items of the lists, else OTHERS."""
    values = {**OTHERS, **given}
    for name, lists in SOURCES.items():
        for path, field in lists:
            if path in found and all(part in values for part in found[path].required):
                body = found[path].call(values)[2]
                if items := next((part for part in body.values() if isinstance(part, list)), []):
                    values[name] = items[0][field]
    return values


def extra(model: Any, path: str = "") -> Iterator[str]:
    """Fields of a model that its document lacks. A model of nothing but further fields is a mapping."""
    if isinstance(model, list):
        for part in model:
            yield from extra(part, f"{path}[]")
    elif hasattr(model, "additional_properties"):
        names = [field.name for field in model.__attrs_attrs__ if field.name != "additional_properties"]
        for name in names:
            yield from extra(getattr(model, name), f"{path}/{name}")
        for name, part in model.additional_properties.items():
            if names:
                yield f"{path}/{name}"
            yield from extra(part, f"{path}/{name}")


def plain(model: Any) -> Any:
    """JSON of a model."""
    if isinstance(model, list):
        return [plain(part) for part in model]
    return model.to_dict() if hasattr(model, "to_dict") else model


def differences(sent: Any, read: Any, path: str = "") -> Iterator[str]:
    """Paths at which JSON data differ. Texts of the same time do not, since clients write times in their own way."""
    if isinstance(sent, dict) and isinstance(read, dict):
        for name in sorted({*sent, *read}):
            if name in sent and name in read:
                yield from differences(sent[name], read[name], f"{path}/{name}")
            else:
                yield f"{path}/{name}"
    elif isinstance(sent, list) and isinstance(read, list) and len(sent) == len(read):
        for before, after in zip(sent, read, strict=True):
            yield from differences(before, after, f"{path}[]")
    elif sent != read and time_of(sent) != time_of(read):
        yield path


def time_of(value: Any) -> Any:
    """The time that a text states; any other value as it is."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value


def main() -> int:
    folder, system = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    sys.path.insert(0, str(folder))
    texts, refused, decoded, calls, further = 0, 0, 0, 0, 0
    for package, service in system["services"].items():
        client = importlib.import_module(package).AuthenticatedClient(base_url=service["url"], token=system["token"])
        found = {operation.path: operation for operation in operations(package, client)}
        values = arguments(found, {"deployment": system["deployment"]})
        for path in sorted({*service["gets"]} - {*found}):
            calls += 1
            print(f"{package} {path}: the client has no such GET")
        for path, operation in sorted(found.items()):
            try:
                status, model, body = operation.call(values)
                differ = sorted(set(differences(body, plain(model))))
            except Exception as error:  # whatever the generated client raises
                calls += 1
                print(f"{package} {path}: {type(error).__name__}: {error}")
                continue
            if status < 400 and not isinstance(body, dict | list):
                texts += 1
                print(f"{package} {path}: {status}: text, of no type")
                continue
            if isinstance(body, dict) and body.get("items") == []:
                print(f"{package} {path}: {status}: an empty list")
            calls += 1
            refused += status >= 400
            surplus = sorted(set(extra(model)))
            further += len(surplus)
            if status >= 400:
                print(f"{package} {path}: {status}: {body}")
            if surplus:
                print(f"{package} {path}: {status}: extra {', '.join(surplus)}")
            if differ:
                print(f"{package} {path}: {status}: not what was sent: {', '.join(differ)}")
            decoded += not differ and status < 500
    print(f"{calls} GETs with JSON, {refused} of them refused with a problem; {texts} answer text")
    print(f"{decoded} of {calls} decode, {further} extra fields")
    return 0 if decoded == calls and not further else 1


if __name__ == "__main__":
    sys.exit(main())
