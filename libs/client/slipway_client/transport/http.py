"""HTTP client for the services. Refusals become messages that name the object, the problem and the remedy."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from urllib.parse import quote, unquote

import msgspec

from slipway_api.problems import Problem
from slipway_client.transport.decoding import UNREADABLE
from slipway_client.transport.failed import KAFKA, Failed, InvalidDeclaration
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.sanitize import printable
from slipway_common.base.text import listed

if TYPE_CHECKING:
    from slipway_client.transport.connections import Connections, Response  # imports what only requests need

PAGE_ITEMS: Final = 1_000
NO_BODY: Final = msgspec.UNSET
DEMO: Final = "; a demo writes its own to .slipway/env"
ADVICE: Final = {
    "no-token": "set SLIPWAY_TOKEN_FILE or SLIPWAY_TOKEN (`ps` shows a --token)",
    "unknown-token": "check SLIPWAY_TOKEN_FILE or SLIPWAY_TOKEN, and the services' tokens file",
    "starting": "`slipway doctor` shows what it is waiting for",
    "wrong-config-state": "`slipway lc ls` lists launch configs and their states",
    "unknown-decision": "`slipway pool show POOL` lists the latest decisions of a pool",
    "unknown-target": "`slipway pool ls` and `slipway lc ls` list pools and accounts",
    "not-stopped": "`slipway topics stopped` lists the stopped partitions of every service",
    "owned-by-another": "--adopt takes it over; `metadata.owner` keeps the owner of a file that was renamed",
    "rollback-tripped": "`slipway why` explains the trip; --force rolls back to it nevertheless",
}
# Refusals of an ID in a path → its kind, and the service and collection that list the existing ones.
LISTED: Final = {
    "unknown-pool": ("worker pool", "provisioner", "/pools"),
    "unknown-config": ("launch config", "provisioner", "/launch-configs"),
    "unknown-lease-pool": ("lease pool", "lease-broker", "/lease-pools"),
}
LISTED_IDS_MAX: Final = 10
T = TypeVar("T")
Parameter = str | int | float | bool | Sequence[str] | None
"""Query parameter; None is left out."""


def token_of(environment: Mapping[str, str]) -> str:
    """Access token of SLIPWAY_TOKEN, or in the file that SLIPWAY_TOKEN_FILE names; empty without either. Raises Failed
    for an unreadable file, and for a text that is no token."""
    file = environment.get("SLIPWAY_TOKEN_FILE")
    return _token(environment.get("SLIPWAY_TOKEN", ""), Path(file) if file else None)


def _token(given: str, file: Path | None) -> str:
    token = given
    if not given and file is not None:
        from slipway_common.base.settings import UnreadableFile, read_value  # slow to import, as it validates settings

        try:
            token = read_value("SLIPWAY_TOKEN_FILE", file)
        except UnreadableFile as error:
            raise Failed(str(error)) from error
    if not (token.isascii() and token.isprintable()):
        source = "SLIPWAY_TOKEN" if given else f"SLIPWAY_TOKEN_FILE={file}"
        raise Failed(f"{source} is not a token: it has line breaks, or characters that are not ASCII")
    return token


class Decoded(msgspec.Struct, Generic[T], dict=True):
    """An object from a service: its `value` as this version knows it, and the whole of it as it was sent, with the
    fields that only a newer version has. In a list of several services each has its `service`. By its entity `tag`
    just this version of it is replaced."""

    value: T
    raw: bytes | msgspec.Raw
    service: str = ""
    tag: str = ""

    @cached_property
    def sent(self) -> dict[str, object]:
        fields = msgspec.json.decode(self.raw, type=dict[str, object])
        return {"service": self.service, **fields} if self.service else fields


class _Listed(msgspec.Struct):
    """A list, or a page of one, whose items are decoded one by one."""

    items: list[msgspec.Raw]
    next: str | None = None


class _Named(msgspec.Struct):
    """An item of a list that has a name for people."""

    id: str
    name: str = ""


class Api(msgspec.Struct, dict=True):
    """Services of one deployment for one caller, known by a token or by the file that holds it. `topic_prefix` is the
    prefix of all topic names."""

    urls: Mapping[str, str]
    given_token: str = ""
    token_file: Path | None = None
    kafka: str = KAFKA
    topic_prefix: str = ""
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        self.urls = {service: url.rstrip("/") for service, url in self.urls.items()}

    def __repr__(self) -> str:
        return f"Api(urls={self.urls!r})"

    def within(self, timeout_seconds: float) -> "Api":
        """The same services and token with another timeout per call."""
        return msgspec.structs.replace(self, timeout_seconds=timeout_seconds)

    @cached_property
    def token(self) -> str:
        """Access token, read when it is first needed; empty without one. Raises Failed for an unreadable file, and for
        a text that is no token."""
        return _token(self.given_token, self.token_file)

    @property
    def headers(self) -> dict[str, str]:
        """Header that authorizes a request; none without a token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @cached_property
    def _connections(self) -> "dict[str, Connections]":
        """By service."""
        from slipway_client.transport.connections import Connections

        return {name: Connections(url, self.headers, self.timeout_seconds) for name, url in self.urls.items()}

    def get(self, type_: type[T], service: str, path: str, **parameters: Parameter) -> T:
        return self.read(type_, service, path, "GET", NO_BODY, **parameters).value

    def read(
        self, type_: type[T], service: str, path: str, method: str = "GET", body: object = NO_BODY, **given: Parameter
    ) -> Decoded[T]:
        """The answer to a request, also as it was sent. A callable `body` returns the parts of lines of JSON, for each
        attempt."""
        answer = self._answer(method, service, path, given, body)
        return Decoded(_decoded(answer, type_), answer.content, tag=answer.headers.get("etag", ""))

    def items(
        self, type_: type[T], service: str, path: str, *, limit: int | None = None, **parameters: Parameter
    ) -> list[T]:
        """Items of a list, at most `limit` of them, from as many pages as that takes. A list that is always answered
        whole, such as that of pools, has no limit."""
        return [row.value for row in self.rows(type_, service, path, limit=limit, **parameters)]

    def rows(
        self, type_: type[T], service: str, path: str, *, limit: int | None = None, **parameters: Parameter
    ) -> list[Decoded[T]]:
        """The same, each also as it was sent."""
        found: list[Decoded[T]] = []
        cursor = None
        while limit is None or len(found) < limit:
            most = PAGE_ITEMS if limit is None else min(PAGE_ITEMS, limit - len(found))
            wanted = None if limit is None and cursor is None else most  # only a list with a next page has a limit
            answer = self._answer("GET", service, path, {**parameters, "limit": wanted, "cursor": cursor}, NO_BODY)
            page = _decoded(answer, _Listed)
            found += [Decoded(_decoded(answer, type_, item), item) for item in page.items]
            cursor = page.next
            if cursor is None:
                break
        return found

    def list_all(
        self, type_: type[T], path: str, service: str | None = None, *, limit: int | None = None, **given: Parameter
    ) -> tuple[list[Decoded[T]], str]:
        """Items of a list that every service has, of all of them or of one, at most `limit` of each. The text says
        which ones did not answer. Raises Failed if none did."""
        rows: list[Decoded[T]] = []
        errors: list[str] = []
        asked = [service] if service else list(self.urls)
        for name in asked:
            try:
                found = self.rows(type_, name, path, limit=limit, **given)
            except Failed as error:
                errors.append(str(error))
            else:
                rows += [msgspec.structs.replace(row, service=name) for row in found]
        text = "\n".join(dict.fromkeys(errors))  # one that all have only once
        if len(errors) == len(asked):
            raise Failed(text)
        return rows, text

    def put(self, type_: type[T], service: str, path: str, body: object, **parameters: Parameter) -> T:
        return self.read(type_, service, path, "PUT", body, **parameters).value

    def put_tagged(self, type_: type[T], service: str, path: str, body: object, tag: str, **parameters: Parameter) -> T:
        """Replace the version of an object that has this entity tag; refused with 412 if there is another by now."""
        return _decoded(self._answer("PUT", service, path, parameters, body, tag), type_)

    def post(self, type_: type[T], service: str, path: str, body: object) -> T:
        return self.read(type_, service, path, "POST", body).value

    def delete(self, type_: type[T], service: str, path: str, **parameters: Parameter) -> T:
        return self.read(type_, service, path, "DELETE", NO_BODY, **parameters).value

    def name_existing(self, refused: Failed) -> None:
        """Name the existing IDs in the message for an unknown one; other refusals stay as they are."""
        kind, service, collection = LISTED.get(refused.slug, ("", "", ""))
        if not kind or not refused.path.startswith(f"{collection}/"):
            return
        id_ = unquote(refused.path.removeprefix(f"{collection}/").partition("/")[0])
        try:
            rows = self.items(_Named, service, collection)
        except Failed:
            return
        existing = list(dict.fromkeys(row.name or row.id for row in rows))  # one for all revisions
        there = f"there {'is' if len(existing) == 1 else 'are'} {listed(existing, LISTED_IDS_MAX)}"
        refused.args = (printable(f"no {kind} {id_}; {there if existing else 'none is declared'}"),)

    def _answer(
        self, method: str, service: str, path: str, given: Mapping[str, Parameter], body: object, tag: str = ""
    ) -> "Response":
        """The answer to a request, which is repeated if it was one too many."""
        connections = self._connections[service]
        until = monotonic_seconds() + self.timeout_seconds
        headers = {"If-Match": tag} if tag else {}
        if body is not NO_BODY:
            headers["Content-Type"] = "application/x-ndjson" if callable(body) else "application/json"
        content = b"" if body is NO_BODY or callable(body) else msgspec.json.encode(body)
        try:
            while True:
                answer = connections.request(method, path, given, body() if callable(body) else content, headers)
                pause = pause_seconds(answer.status, answer.headers)
                if pause is None or monotonic_seconds() + pause > until:
                    break
                time.sleep(pause)
        except (OSError, ValueError) as error:
            option, url = f"--{service} or SLIPWAY_{service.upper().replace('-', '_')}_URL", self.urls[service]
            if not url.startswith(("http://", "https://")):
                raise Failed(f"{option}: {url!r} has no scheme; write http://{url}") from error
            reason = f"the {service} at {self.urls[service]} is unavailable: {error}"
            raise Failed(f"{reason}\nCheck that it is running, and its address in {option}{DEMO}.") from error
        if answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return answer
        refused = _refusal(f"the {service} at {self.urls[service]}", method, path, answer)
        self.name_existing(refused)
        raise refused


def path(*parts: str) -> str:
    """URL path of these parts; an ID may contain any character."""
    return "".join("/" + quote(part, safe="") for part in parts)


def pause_seconds(status: int, headers: Mapping[str, str]) -> float | None:
    """Pause before a request is repeated that was one too many, and has changed nothing; None for another answer."""
    if status != HTTPStatus.TOO_MANY_REQUESTS:
        return None
    from random import Random  # imports slowly

    from slipway_client.transport.backoff import asked_pause_seconds, retry_after_seconds

    asked_seconds = retry_after_seconds(headers.get("retry-after", ""))
    return asked_pause_seconds(max(1.0, asked_seconds), Random().random())  # noqa: S311 (spreads repetitions)


def _decoded(answer: "Response", type_: type[T], part: bytes | msgspec.Raw | None = None) -> T:
    """An answer, or a part of it, as a type. Raises Failed."""
    try:
        return msgspec.json.decode(part or answer.content or b"null", type=type_)
    except msgspec.ValidationError as error:
        url = printable(answer.url)
        raise Failed(f"the answer of {url} is not that of a Slipway service of this version: {error}") from error
    except UNREADABLE as error:
        raise Failed(f"{answer.url} did not answer with JSON: is it a Slipway service?") from error


def _refusal(service: str, method: str, path: str, answer: "Response") -> Failed:
    """Text of a problem+json body; any other body is not shown, since it may be an HTML page."""
    try:
        problem = msgspec.json.decode(answer.content, type=Problem)
    except UNREADABLE:
        status = f"{answer.status} {printable(answer.reason)}".strip()
        text = f"{service} answered {status} to {method} {path}: is it a Slipway service?"
        return Failed(text, status=answer.status, path=path)
    slug = problem.code
    is_invalid = slug == "invalid-declaration"
    errors = problem.errors or []
    repeated = bool(errors) and slug in ("invalid-declaration", "invalid-request")  # the detail is the first error
    lines = [": ".join(filter(None, (problem.title, "" if repeated else problem.detail)))]
    lines += ["  " + ": ".join(filter(None, (part.document, part.where, part.path, part.reason))) for part in errors]
    if slug in ADVICE:
        lines.append(ADVICE[slug])
    kind = InvalidDeclaration if is_invalid else Failed
    return kind("\n".join(map(printable, lines)), slug, answer.status, path=path, problem=problem)
