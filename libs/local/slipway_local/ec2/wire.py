"""EC2's query protocol: a form in, XML out. Pure.

The stand-in interprets only what it decides itself; everything else goes to moto as it came.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import msgspec

NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"
JSON_SERVICES: Final = ("servicequotas",)
"""Services with JSON instead of EC2's form and XML, by their names in signatures."""
STS_NAMESPACE: Final = "https://sts.amazonaws.com/doc/2011-06-15/"
_CREDENTIAL: Final = re.compile(r"Credential=([^/,\s]+)/[^/,\s]+/([^/,\s]+)/([^/,\s]+)/aws4_request")
# HTTP status of codes whose status is not 400, as EC2 answers them.
STATUS: Final = {
    "AuthFailure": 401,
    "UnauthorizedOperation": 403,
    "ExpiredToken": 403,
    "AccessDenied": 403,
    "DryRunOperation": 412,
    "InsufficientInstanceCapacity": 500,
    "InsufficientHostCapacity": 500,
    "InternalError": 500,
    "InternalFailure": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
}


class Refused(Exception):
    """An error answer."""

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status or STATUS.get(code, 400)


class Request(msgspec.Struct, frozen=True):
    """One request: its parameters, and what its signature names. The signature itself is not checked."""

    action: str
    parameters: dict[str, str]
    access_key: str
    region: str
    service: str

    def numbered(self, name: str) -> list[str]:
        """Values of a list: name.1, name.2 and so on."""
        return numbered(self.parameters, name)

    def filters(self) -> dict[str, list[str]]:
        """Filters by name, with the values that each allows."""
        named: dict[str, list[str]] = {}
        for key, value in self.parameters.items():
            if match := re.fullmatch(r"Filter\.(\d+)\.Name", key):
                named[value] = numbered(self.parameters, f"Filter.{match[1]}.Value")
        return named

    def tags(self, resource: str) -> dict[str, str]:
        """Tags that the launch call gives to resources of this type."""
        found: dict[str, str] = {}
        for key, value in self.parameters.items():
            match = re.fullmatch(r"TagSpecification\.(\d+)\.ResourceType", key)
            if match and value == resource:
                found |= pairs(self.parameters, f"TagSpecification.{match[1]}.Tag")
        return found


def read(body: bytes, authorization: str, target: str = "") -> Request:
    """Read a request. That of a service with JSON has its action in the header `target`. Raises Refused if it is not
    signed or names no action."""
    match = _CREDENTIAL.search(authorization)
    if match is None:
        raise Refused("MissingAuthenticationToken", "Request is missing Authentication Token", 403)
    if target:
        parameters = {name: str(value) for name, value in json.loads(body or b"{}").items()}
        action = target.rpartition(".")[2]
        return Request(action, parameters, access_key=match[1], region=match[2], service=match[3])
    parameters = dict(parse_qsl(body.decode(), keep_blank_values=True))
    action = parameters.get("Action", "")
    if not action:
        raise Refused("MissingAction", "The request is missing an action or a required parameter.")
    return Request(action, parameters, access_key=match[1], region=match[2], service=match[3])


def numbered(parameters: Mapping[str, str], name: str) -> list[str]:
    """Values of a list parameter in the order of their numbers."""
    found = [(match[1], value) for key, value in parameters.items() if (match := _number(name).fullmatch(key))]
    return [value for _, value in sorted(found, key=lambda item: int(item[0]))]


def pairs(parameters: Mapping[str, str], name: str) -> dict[str, str]:
    """Tags in a list parameter."""
    keys = {key: value for key, value in parameters.items() if key.startswith(f"{name}.") and key.endswith(".Key")}
    return {value: parameters.get(key.removesuffix("Key") + "Value", "") for key, value in keys.items()}


def _number(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name) + r"\.(\d+)")


def error(refused: Refused, service: str, request_id: str) -> str:
    """Body of an error answer."""
    if service in JSON_SERVICES:
        return json.dumps({"__type": refused.code, "message": refused.message})
    text = f"<Code>{escape(refused.code)}</Code><Message>{escape(refused.message)}</Message>"
    if service == "ec2":
        inner = f"<Errors><Error>{text}</Error></Errors><RequestID>{request_id}</RequestID>"
        return f'<?xml version="1.0" encoding="UTF-8"?>\n<Response>{inner}</Response>'
    inner = f"<Error><Type>Sender</Type>{text}</Error><RequestId>{request_id}</RequestId>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<ErrorResponse>{inner}</ErrorResponse>'


def answer(action: str, inner: str, request_id: str) -> str:
    """Body of an EC2 answer."""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{action}Response xmlns="{NAMESPACE}">'
        f"<requestId>{request_id}</requestId>{inner}</{action}Response>"
    )


def parse(text: str | bytes) -> ElementTree.Element:
    """An answer without its namespaces. Entities are not a concern: the answers are those of our own moto."""
    root = ElementTree.fromstring(text)  # noqa: S314
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def refusal(root: ElementTree.Element, status: int) -> Refused:
    """Error in an answer of moto."""
    found = root.find(".//Error")
    code = found.findtext("Code", "") if found is not None else ""
    message = found.findtext("Message", "") if found is not None else ""
    return Refused(code or "InternalError", message, status)


def items(root: ElementTree.Element, path: str) -> Iterable[ElementTree.Element]:
    return root.findall(f"{path}/item")


def tag_set(tags: Mapping[str, str]) -> str:
    inner = "".join(f"<item><key>{escape(k)}</key><value>{escape(v)}</value></item>" for k, v in tags.items())
    return f"<tagSet>{inner}</tagSet>"
