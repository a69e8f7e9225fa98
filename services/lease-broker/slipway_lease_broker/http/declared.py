"""Bodies of declarations of lease pools, decoded beside the event loop: they may be large."""

import asyncio
from typing import Any, Final

import msgspec

from slipway_common.declaration.identity import Identities, Place
from slipway_common.declaration.models import LeasePool
from slipway_common.declaration.parsing import PROBLEMS_MAX, parse_entry, parse_owner
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid, path_text
from slipway_lease_broker.domain.declaration import Declaration, Declared

BODY_BYTES_MAX: Final = 128_000_000
SECTION: Final = "lease_pools"
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

    owner: str
    lease_pools: list[msgspec.Raw]


class Documents(msgspec.Struct, forbid_unknown_fields=True):
    documents: list[Document]


async def read(body: bytes, *, prune: bool, adopt: bool) -> Declaration:
    """Declaration of a body. Raises Invalid, or msgspec.DecodeError for a body that is not JSON."""
    return await asyncio.to_thread(_declaration, body, prune, adopt)


def _declaration(body: bytes, prune: bool, adopt: bool) -> Declaration:
    try:
        documents = msgspec.json.decode(body, type=Documents).documents
    except msgspec.ValidationError as error:
        raise Invalid([DocumentProblem("", str(error))]) from error
    identities = Identities()
    found: list[Declared] = []
    refused: list[DocumentProblem] = []
    for place, document in enumerate(documents):
        owner = parse_owner({"owner": document.owner}, ("documents", place))
        for number, raw in enumerate(document.lease_pools):
            try:
                pool = parse_entry(SECTION, number, msgspec.json.decode(raw))
            except Invalid as error:
                refused += [msgspec.structs.replace(problem, document=owner) for problem in error.problems]
            else:
                assert isinstance(pool, LeasePool)
                repeated = identities.claim(SECTION, pool.id, Place(owner, (SECTION, number, "id")))
                refused += [DocumentProblem(path_text(path), reason, document=owner) for path, reason in repeated]
                found.append(terms(pool, owner))
            if len(refused) >= PROBLEMS_MAX:
                raise Invalid(refused)
    if refused:
        raise Invalid(refused)
    given = frozenset(document.owner for document in documents)
    return Declaration(owners=given, pools=found, prune=prune, adopt=adopt)


def terms(pool: LeasePool, owner: str = "") -> Declared:
    """The terms of a declared pool: those of its policy are one document, and the others have columns of their own."""
    fields: dict[str, Any] = pool.model_dump(mode="json")
    return msgspec.convert(fields | {"limit_units": pool.limit, "policy": fields, "owner": owner}, Declared)
