"""Messages of the daemon's Unix socket: JSON-RPC 2.0, one message per line; docs/guides/terraform-daemon.md describes
them for clients.

A connection holds at most one lease, which ends with it. Its requests are served concurrently; a reply has the id of
its request.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

MESSAGE_BYTES_MAX: Final = 1 << 20
"""Bound on a line. A provider's configuration takes a few kilobytes."""
TEXT_CHARACTERS_MAX: Final = 200
WAIT_SECONDS_MAX: Final = 86_400.0

# Codes of JSON-RPC 2.0, and one of ours for everything that happened while a request was served.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
FAILED: Final = -32000

Parameters = TypeVar("Parameters")
RequestId: TypeAlias = int | str


class Refused(Exception):
    """A request that was refused and has changed nothing. `name` is stable, for programs; `retryable`: the same request
    may succeed later."""

    def __init__(self, name: str, text: str, *, code: int = FAILED, retryable: bool = False) -> None:
        super().__init__(text)
        self.name = name
        self.code = code
        self.retryable = retryable


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request. Notifications, which have no id, and batches are refused."""

    jsonrpc: str
    id: RequestId
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class WantedProvider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider to lease a process of. The daemon's settings name its executable; a `digest` that is given must be the
    one that they pin."""

    source: str
    version: str
    digest: str = ""
    configuration: dict[str, Any] = {}
    environment: dict[str, str] = {}
    tenant: str = ""


class Acquire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of v1.acquire: wait at most `wait_seconds` for a process of every provider, all or none."""

    providers: list[WantedProvider]
    owner: str
    wait_seconds: float


class Taint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of v1.taint: have the processes of the lease replaced."""

    reason: str


class EndInvocation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of v1.end_invocation. With `failed` the reply is the error OutcomeUnknown if a plugin has exited."""

    failed: bool = False


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of v1.begin_invocation, v1.release and v1.ls, and results that are empty."""


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """Result of v1.acquire: environment of every CLI of the lease; empty if the CLI starts its own plugins."""

    env: Mapping[str, str]


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin process. `handle` is the beginning of a keyed hash, which tells nothing of the configuration. `pid` is
    null until its handshake, `reason` until it is replaced."""

    handle: str
    source: str
    version: str
    tenant: str
    pid: int | None
    state: str
    reason: str | None
    in_use: int
    invocations: int
    age_seconds: float
    memory_bytes: int


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of v1.ls."""

    processes: list[ProcessRow]


class ErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The `data` of an error. `reason` tells why a provider is incompatible."""

    name: str
    retryable: bool
    reason: str = ""


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why a request failed."""

    code: int
    message: str
    data: ErrorDetails


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reply to a request: `result` or `error`. `id` is null if the request could not be read."""

    jsonrpc: str
    id: RequestId | None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorObject | msgspec.UnsetType = msgspec.UNSET


def read_request(line: bytes) -> Request:
    """Decode a request. Raises Refused, which shows no value of it: configurations hold secrets."""
    try:
        request = msgspec.json.decode(line, type=Request)
    except msgspec.ValidationError as error:
        raise Refused("InvalidRequest", f"not a request: {_reason(error)}", code=INVALID_REQUEST) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = "not JSON; send one JSON-RPC 2.0 request per line"
        raise Refused("ParseError", text, code=PARSE_ERROR) from None
    if request.jsonrpc != "2.0":
        raise Refused("InvalidRequest", 'jsonrpc must be "2.0"', code=INVALID_REQUEST)
    return request


def read_parameters(request: Request, type_: type[Parameters]) -> Parameters:
    """Decode the parameters of a request. Raises Refused."""
    try:
        return msgspec.json.decode(request.params, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"params of {request.method}: {_reason(error)}"
        raise Refused("InvalidParams", text, code=INVALID_PARAMS) from None


def write_result(id_: RequestId, result: msgspec.Struct) -> bytes:
    """Encode a reply with a result as a line."""
    return _line(Reply(jsonrpc="2.0", id=id_, result=msgspec.Raw(msgspec.json.encode(result))))


def write_error(id_: RequestId | None, text: str, details: ErrorDetails, code: int = FAILED) -> bytes:
    """Encode a reply with an error as a line."""
    return _line(Reply(jsonrpc="2.0", id=id_, error=ErrorObject(code=code, message=text, data=details)))


def write_refused(id_: RequestId | None, refused: Refused) -> bytes:
    """Encode a refusal as a line."""
    return write_error(id_, str(refused), ErrorDetails(name=refused.name, retryable=refused.retryable), refused.code)


def write_request(id_: RequestId, method: str, parameters: msgspec.Struct) -> bytes:
    """Encode a request as a line."""
    return _line(Request(jsonrpc="2.0", id=id_, method=method, params=msgspec.Raw(msgspec.json.encode(parameters))))


def _line(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


# Beginnings of msgspec's texts that name types and fields only; others quote the text that was sent.
_PLAIN: Final = ("Expected ", "Object missing required field ")


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, msgspec.ValidationError) and text.startswith(_PLAIN):
        return text
    if isinstance(error, msgspec.ValidationError) and text.startswith("Object contains unknown field"):
        return f"unknown field{_place(text)}"
    return f"invalid value{_place(text)}"


def _place(text: str) -> str:
    _, found, place = text.rpartition(" - at ")
    return f" at {place}" if found else ""
