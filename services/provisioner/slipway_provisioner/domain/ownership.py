"""Ownership of declared objects: who may declare them, and what an apply removes. Pure."""

from collections.abc import Collection, Iterable, Mapping

from slipway_common.declaration.changes import ForeignOwner, OwnedByAnother
from slipway_provisioner.domain.declaration import Known, Owners, Request


def check(kind: str, id_: str, owner: str, declared_by: str, request: Request, released: Collection[str]) -> None:
    """Raise OwnedByAnother if an object that exists may not be declared by this owner, ForeignOwner if the caller may
    not change what its present owner declared.

    An object without an owner is anybody's, and one that its owner leaves out in the same request, by one of the
    `released` documents, goes over.
    """
    if not request.may_change(owner):
        raise ForeignOwner(owner, f"{kind} {id_}")
    if owner not in ("", declared_by) and not request.adopt and owner not in released:
        raise OwnedByAnother(kind, id_, owner, declared_by)


def removed(owners: Owners, stored: Mapping[str, Known], request: Request) -> Iterable[str]:
    """Ids of a section that a request removes: what its owners leave out, or with prune what anybody has.

    A section that no document has is left alone. Raises ForeignOwner.
    """
    for id_, known in stored.items():
        theirs = known.owner in owners.documents or (request.prune and bool(owners.documents))
        if theirs and id_ not in owners.entries:
            if not request.may_change(known.owner):
                raise ForeignOwner(known.owner, id_)
            yield id_
