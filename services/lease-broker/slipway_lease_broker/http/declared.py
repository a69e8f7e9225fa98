"""Bodies of declarations of lease pools, decoded beside the event loop: they may be large."""

import asyncio
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from slipway_common.declaration.identity import Identities, Place
from slipway_common.declaration.models import LeasePool
from slipway_common.declaration.parsing import PROBLEMS_MAX, parse_entry, parse_owner
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid, path_text
from slipway_common.web import openapi
from slipway_lease_broker.domain.declaration import Declaration, Declared

BODY_BYTES_MAX: Final = 128_000_000
SECTION: Final = "lease_pools"


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """The lease pools of one owner, complete."""

    owner: str
    lease_pools: list[msgspec.Raw]


class Documents(msgspec.Struct, forbid_unknown_fields=True):
    documents: list[Document]


class LeasePoolsOfOwner(BaseModel):
    """The lease pools of one owner, complete."""

    owner: str
    lease_pools: list[LeasePool]


class LeasePoolsByOwner(BaseModel):
    """Lease pools by owner, each as in slipway.yaml."""

    documents: list[LeasePoolsOfOwner]


DOCUMENTED: Final = openapi.body("Lease pools by owner.", json=openapi.model_schema(LeasePoolsByOwner))


async def read(body: bytes, *, prune: bool, adopt: bool, permitted: tuple[str, ...] | None) -> Declaration:
    """Declaration of a body by a caller of these owners. Raises Invalid, or msgspec.DecodeError for a body that is not
    JSON."""
    return msgspec.structs.replace(await asyncio.to_thread(_declaration, body, prune, adopt), permitted=permitted)


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
