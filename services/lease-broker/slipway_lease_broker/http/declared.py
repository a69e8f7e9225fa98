"""Bodies of declarations of lease pools, decoded beside the event loop: they may be large."""

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from pydantic import ValidationError

from slipway_common.declaration.fields import NAME_PATTERN
from slipway_common.declaration.models import LeasePool
from slipway_common.web.problem import Problem
from slipway_lease_broker.domain.declaration import Declaration, Declared

BODY_BYTES_MAX: Final = 128_000_000
ERRORS_MAX: Final = 100
DOCUMENTED: Final = {
    "required": True,
    "description": "Lease pools by owner, each as in slipway.yaml.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["documents"],
                "properties": {
                    "documents": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["owner", "lease_pools"],
                            "properties": {
                                "owner": {"type": "string"},
                                "lease_pools": {"type": "array", "items": {"type": "object"}},
                            },
                        },
                    }
                },
            }
        }
    },
}


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """The lease pools of one owner, complete."""

    owner: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
    lease_pools: list[msgspec.Raw]


class Documents(msgspec.Struct, forbid_unknown_fields=True):
    documents: list[Document]


async def read(body: bytes, *, prune: bool, adopt: bool) -> Declaration:
    """Declaration of a body. Raises Problem 422."""
    return await asyncio.to_thread(_declaration, body, prune, adopt)


def _declaration(body: bytes, prune: bool, adopt: bool) -> Declaration:
    try:
        documents = msgspec.json.decode(body, type=Documents).documents
    except msgspec.MsgspecError as error:
        raise invalid([{"where": "body", "reason": str(error)}]) from error
    found: dict[str, Declared] = {}
    errors: list[dict[str, str]] = []
    for place, document in enumerate(documents):
        for number, raw in enumerate(document.lease_pools):
            where = ("body", "documents", place, "lease_pools", number)
            try:
                pool = terms(LeasePool.model_validate_json(bytes(raw)), document.owner)
            except ValidationError as error:
                errors += _errors(where, error)
                continue
            if (other := found.setdefault(pool.id, pool)) is not pool:
                owners = " and ".join(dict.fromkeys((other.owner, pool.owner)))
                title, detail = "Lease pool declared twice", f"lease pool {pool.id} is declared twice, by {owners}"
                raise Problem(422, "duplicate-id", title, detail, ids=[pool.id])
    if errors:
        raise invalid(errors)
    given = frozenset(document.owner for document in documents)
    return Declaration(owners=given, pools=list(found.values()), prune=prune, adopt=adopt)


def _errors(where: tuple[str | int, ...], error: ValidationError) -> Iterator[dict[str, str]]:
    for problem in error.errors():
        yield {"where": "/".join(map(str, (*where, *problem["loc"]))), "reason": problem["msg"]}


def invalid(errors: list[dict[str, str]]) -> Problem:
    first = f"{errors[0]['where']}: {errors[0]['reason']}"
    return Problem(422, "invalid-request", "The request is not valid", first, errors=errors[:ERRORS_MAX])


def terms(pool: LeasePool, owner: str = "") -> Declared:
    """The terms of a declared pool: those of its policy are one document, and the others have columns of their own."""
    fields: dict[str, Any] = pool.model_dump(mode="json")
    return msgspec.convert(fields | {"limit_units": pool.limit, "policy": fields, "owner": owner}, Declared)
