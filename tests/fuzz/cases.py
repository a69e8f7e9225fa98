"""Requests made from an OpenAPI document: valid ones, and ones with one thing wrong. Pure: chance is an argument.

Bodies and parameters follow their schemas. Fields that name something, such as a lease and its fencing token, mostly
get the values of one thing that exists, so that requests reach it.
"""

import base64
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import quote

Schema = Mapping[str, Any]
Headers = list[tuple[str, bytes]]
Known = Mapping[str, Sequence[Mapping[str, Any]]]
"""Things that exist, by kind: values by the name of a field or parameter."""
WORKER_TOKEN: Final = "worker token"

CJK: Final = [chr(code) for code in range(0x4E00, 0x9FA5)]
WORDS: Final = (
    "a",
    "zone-b",
    "m5.large",
    "free",
    "1/3",
    "linux-2",
    "x" * 60,
    "é" * 30,
    "none",
    "simulated",
    "all",
    "pool",
)
# Written into the JSON text as they are, since no JSON value of Python becomes them.
RAW: Final = {
    "deep": "[" * 3000 + "]" * 3000,
    "deep mapping": '{"a":' * 3000 + "1" + "}" * 3000,
    "nan": "NaN",
    "infinity": "-Infinity",
    "overflow": "1e999",
    "digits": "9" * 5000,
    "minus zero": "-0",
    "surrogate": '"\\ud800"',
    "bad escape": '"\\x"',
    "nothing": "",
}
MARK: Final = "@raw@"
NOTHING: Final[Mapping[str, Any]] = {}


class Operation(NamedTuple):
    """One operation of a document."""

    method: str
    path: str
    body: Mapping[str, Schema]  # by content type
    parameters: Sequence[Mapping[str, Any]]
    responses: Mapping[str, Any]
    of_worker: bool = False  # its caller is a worker


class Case(NamedTuple):
    """One request, and what is wrong with it (empty: nothing)."""

    operation: Operation
    method: str
    path: str
    headers: Headers
    body: bytes
    wrong: str

    def __str__(self) -> str:
        headers = ", ".join(f"{name}: {value[:80]!r}" for name, value in self.headers if name != "authorization")
        text = self.body if len(self.body) <= 600 else self.body[:500] + b"..." + self.body[-50:]
        return f"{self.method} {self.path[:300]} [{headers}] {text!r} ({self.wrong or 'valid'})"


def operations(document: Mapping[str, Any]) -> list[Operation]:
    return [
        Operation(
            method.upper(),
            path,
            {kind: content["schema"] for kind, content in operation.get("requestBody", {}).get("content", {}).items()},
            operation.get("parameters", ()),
            operation["responses"],
            {"workerToken": []} in operation.get("security", ()),
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


class Cases:
    """Requests of one service. `known` grows while they are sent; `start` is the time of its clock; fields of `fixed`
    have these values unless they are the broken ones; paths that are `skipped` get no requests."""

    def __init__(
        self,
        document: Mapping[str, Any],
        rng: Random,
        known: Known,
        *,
        authorization: str,
        start: datetime,
        fixed: Mapping[str, Any] = NOTHING,
        skipped: Collection[str] = (),
    ) -> None:
        self._schemas: Mapping[str, Schema] = document["components"]["schemas"]
        self._operations = [one for one in operations(document) if one.path not in skipped]
        self._rng, self._known, self._start = rng, known, start
        self._authorization, self._fixed = authorization, fixed
        self._named: dict[str, Any] = {}  # values that the present request mostly has

    def __len__(self) -> int:
        return len(self._operations)

    def take(self, number: int) -> Iterator[Case]:
        """So many requests, of each operation in turn. A part of them is valid."""
        for place in range(number):
            yield self._case(self._operations[place % len(self._operations)])

    def _case(self, operation: Operation) -> Case:
        rng = self._rng
        self._named = {
            name: value for things in self._known.values() if things for name, value in rng.choice(things).items()
        }
        with_headers = rng.random() < 0.4  # such as the attributes of an event, which are of no use alone
        given = {
            (where["in"], where["name"]): self._value(where["schema"], where["name"])
            for where in operation.parameters
            if where["in"] == "path"
            or where.get("required")
            or (with_headers if where["in"] == "header" else rng.random() < 0.4)
        }
        kinds = list(operation.body)
        kind = rng.choice(kinds) if kinds else ""
        body = self._value(operation.body[kind], "") if kind else None
        headers: Headers = [("authorization", self._authorization_for(operation).encode())]
        wrong = ""
        if rng.random() < 0.6:
            spots = ["parameter"] * bool(given) + ["body", "body", "text"] * bool(kind) + ["header", "token"]
            match rng.choice(spots):
                case "parameter":
                    place = rng.choice(list(given))
                    given[place], wrong = self._hostile(), f"parameter {place[1]}"
                case "body":
                    body, wrong = self._damaged(body)
                case "text":
                    return self._with_text(operation, given, headers, kind, body)
                case "header":
                    headers.append(rng.choice(ODD_HEADERS))
                    wrong = f"header {headers[-1][0]}"
                case _:
                    headers[:], wrong = [("authorization", rng.choice(TOKENS))], "token"
        text = encoded(body, escaped=rng.random() < 0.5) if kind else b""
        if kind == LINES:
            text = self._lines(body)
        return self._request(operation, given, [*headers, ("content-type", kind.encode())], text, wrong)

    def _with_text(
        self, operation: Operation, given: Mapping[tuple[str, str], Any], headers: Headers, kind: str, body: Any
    ) -> Case:
        """A body whose text is damaged, or that has another content type."""
        text = encoded(body)
        name, damaged = self._rng.choice(
            [
                ("truncated", text[: len(text) // 2]),
                ("empty", b""),
                ("bytes that are no text", text.replace(b"a", b"\xff", 1) + b"\xfe"),
                ("byte order mark", b"\xef\xbb\xbf" + text),
                ("twice", text + text),
                ("list", b"[" + text + b"]"),
                ("NUL", text + b"\0"),
                ("other content type", text),
                ("other content type", text),
            ]
        )
        if name == "other content type":
            kind = self._rng.choice(OTHER_TYPES)
        return self._request(operation, given, [*headers, ("content-type", kind.encode())], damaged, f"body {name}")

    def _request(
        self, operation: Operation, given: Mapping[tuple[str, str], Any], headers: Headers, text: bytes, wrong: str
    ) -> Case:
        path = operation.path
        query = []
        headers = list(headers)
        for (where, name), value in given.items():
            if where == "path":
                path = path.replace(f"{{{name}}}", quoted(value) or "%20")
            elif where == "header":
                headers.append((name.lower(), plain(value).encode("latin-1", "replace")))
            else:
                values = value if isinstance(value, list) else [value]
                query += [f"{quoted(name)}={quoted(one)}" for one in values]
        if query:
            path += "?" + "&".join(query)
        headers.append(("content-length", str(len(text)).encode()))
        return Case(operation, operation.method, path, headers, text, wrong)

    def _authorization_for(self, operation: Operation) -> str:
        token = self._named.get(WORKER_TOKEN) if operation.of_worker else None
        return f"Bearer {token}" if token else self._authorization

    def _lines(self, body: Any) -> bytes:
        """Lines of a declaration."""
        lines = [self._value(schema, "") for schema in self._rng.choices(LINE_SCHEMAS, k=self._rng.randrange(4))]
        return b"\n".join(map(encoded, [FIRST_LINE, *lines])) if lines else encoded(body)

    # Values

    def _value(self, schema: Schema, name: str, depth: int = 0) -> Any:
        """A valid value."""
        rng = self._rng
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rpartition("/")[2]], name, depth)
        if name in self._fixed:
            return self._fixed[name]
        if name in self._named and rng.random() < 0.85:
            return self._named[name]
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self._value(rng.choice(schema[several]), name, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        match schema.get("type"):
            case "string":
                return self._text(schema)
            case "integer":
                return int(self._number(schema, 1))
            case "number":
                return rng.choice([self._number(schema, 0.5), int(self._number(schema, 1))])
            case "boolean":
                return rng.random() < 0.5
            case "array" if "prefixItems" in schema:
                return [self._value(part, name, depth + 1) for part in schema["prefixItems"]]
            case "array":
                least = schema.get("minItems", 0)
                size = max(least, 0 if depth > 4 else rng.randrange(3))
                return [self._value(schema.get("items", {}), name, depth + 1) for _ in range(size)]
            case "null":
                return None
            case "object":
                return self._object(schema, depth)
        return rng.choice(["a", 1, None, {"a": [1, "é"]}])

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        rng, required = self._rng, schema.get("required", ())
        made = {
            name: self._value(inner, name, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or rng.random() < (0.4 if depth < 4 else 0.1)
        }
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and depth < 4 and rng.random() < 0.5:
            made["a"] = self._value(more, "", depth + 1)
        return made

    def _number(self, schema: Schema, step: float) -> float:
        low: float = schema.get("minimum", schema.get("exclusiveMinimum", 0) + step * ("exclusiveMinimum" in schema))
        high: float = schema.get(
            "maximum", schema.get("exclusiveMaximum", 1000) - step * ("exclusiveMaximum" in schema)
        )
        high = min(high, 2**53)  # above it the document's numbers are not exact
        return self._rng.choice([low, high, min(high, low + step), min(high, low + 7)])

    def _text(self, schema: Schema) -> str:
        rng = self._rng
        if schema.get("format") == "date-time":
            seconds = rng.choice([-3600, -1, 0, 0.5, 30, 3600])
            return (self._start + timedelta(seconds=seconds)).isoformat()
        least: int = schema.get("minLength", 0)
        most: int = schema.get("maxLength", 40)
        if pattern := schema.get("pattern"):
            fitting = [word for word in (*WORDS, UUID) if re.search(pattern, word)]
            return rng.choice(fitting) if fitting else "a"
        words = [word for word in WORDS if least <= len(word) <= most]
        return rng.choice([*words, "".join(rng.choices(CJK, k=most)), "é" * least])

    def _hostile(self) -> Any:
        """A value that is wrong in most places."""
        rng = self._rng
        return rng.choice(
            [
                "",
                "a\0b",
                "\0",
                "".join(rng.choices(CJK, k=201)),
                "".join(rng.choices(CJK, k=500)),
                "\N{CRAB}" * 200,
                base64.b64encode(rng.randbytes(6000)).decode(),
                "..",
                "a/../b",
                "%00",
                "%zz",
                "'; DROP TABLE worker; --",
                "\u202eabc\r\nX: y",
                -1,
                0,
                2**31,
                2**63,
                -(2**63) - 1,
                10**400,
                1e308,
                -1e-300,
                True,
                None,
                [],
                {},
                {"a": {"b": None}},
                "0001-01-01T00:00:00Z",
                "0001-01-01T00:00:00+23:59",
                "9999-12-31T23:59:59-23:59",
                "2026-01-01T12:00:00",
                "yesterday",
                *(f"{MARK}{name}" for name in RAW),
            ]
        )

    def _damaged(self, value: Any) -> tuple[Any, str]:
        """The value with one part replaced, missing or added; and which."""
        rng = self._rng
        places = list(_places(value))
        place = rng.choice(places) if places else ()
        if not place:
            return self._hostile(), "body"
        kind = rng.choice(["replaced", "replaced", "replaced", "missing", "added"])
        made = _replaced(value, place, self._hostile() if kind == "replaced" else _GONE, kind == "added")
        return made, f"{'/'.join(map(str, place))} {kind}"


LINES: Final = "application/x-ndjson"
FIRST_LINE: Final = {"version": 1, "metadata": {"owner": "fuzz"}, "sections": ["accounts", "worker_pools"]}
LINE_SCHEMAS: Final[list[Schema]] = [
    {"type": "object", "properties": {name: {"$ref": f"#/components/schemas/{model}"}}, "required": [name]}
    for name, model in (("account", "Account"), ("worker_pool", "WorkerPool"), ("lease_pool", "LeasePool"))
]
UUID: Final = "019b8d5f-0002-7000-8000-000000000001"
OTHER_TYPES: Final = (
    "",
    "text/plain",
    "application/xml",
    LINES,
    "application/cloudevents+json",
    "application/json; charset=utf-16",
    "multipart/form-data",
    "application/x-www-form-urlencoded",
    "\x80/\xff",
)
TOKENS: Final = (b"Bearer", b"Bearer unknown", b"Basic YTpi", b"Bearer \xff\xfe", b"", b"Bearer " + b"x" * 5000)
ODD_HEADERS: Final[Headers] = [
    ("if-match", b'"0"'),
    ("if-match", b'W/"\xff'),
    ("if-none-match", b"*"),
    ("content-length", b"-1"),
    ("content-length", b"99999999999"),
    ("traceparent", b"00-" + b"z" * 5000),
    ("traceparent", b"00-\xff\0-1-01"),
    ("slipway-sent-at", b"yesterday"),
    ("slipway-sent-at", b"9999-12-31T23:59:59+00:00"),
    ("date", b"Thu, 01 Jan 1970 00:00:00"),
    ("date", b"\xff"),
    ("idempotency-key", b"x" * 5000),
    ("ce-specversion", b"1.0"),
    ("ce-specversion", b"\xff"),
    ("ce-type", b"io.slipway.signal.raised.v1"),
    ("expect", b"100-continue"),
    ("accept", b"application/xml"),
    ("range", b"bytes=0-1"),
    ("host", b"\xff"),
    ("x-forwarded-for", b"\0"),
]
_GONE: Final = object()


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all parts of a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield (*at, key)
        yield from _places(inner, (*at, key))


def _replaced(value: Any, place: tuple[Any, ...], new: Any, added: bool) -> Any:
    made: Any = dict(value) if isinstance(value, dict) else list(value)
    key = place[0]
    if len(place) > 1:
        made[key] = _replaced(value[key], place[1:], new, added)
    elif added:
        made.update({"unheard \ud800 of": 1}) if isinstance(made, dict) else made.append(made[key])
    elif new is _GONE:
        del made[key]
    else:
        made[key] = new
    return made


def encoded(value: Any, *, escaped: bool = True) -> bytes:
    """JSON text of a value, with the parts that are marked as raw."""
    text = json.dumps(value, ensure_ascii=escaped)
    for name, raw in RAW.items():
        text = text.replace(f'"{MARK}{name}"', raw)
    return text.encode("utf-8", "surrogatepass")


def plain(value: Any) -> str:
    """A value as the text of a parameter."""
    return value if isinstance(value, str) else json.dumps(value)


def quoted(value: Any) -> str:
    text = plain(value)
    return quote(RAW.get(text.removeprefix(MARK), text) if text.startswith(MARK) else text, "", errors="surrogatepass")
