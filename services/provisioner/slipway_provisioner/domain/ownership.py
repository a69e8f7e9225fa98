"""Ownership of declared objects: who may declare them, and what an apply removes. Pure."""

from collections.abc import Collection, Iterable, Mapping

from slipway_provisioner.domain.declaration import Declared, Known, OwnedByAnother, Request


def check(kind: str, id_: str, owner: str, declared_by: str, request: Request, released: Collection[str]) -> None:
    """Raise OwnedByAnother if an object that exists may not be declared by this owner.

    An object without an owner is anybody's, and one that its owner leaves out in the same request goes over.
    """
    if owner not in ("", declared_by) and not request.adopt and owner not in released:
        raise OwnedByAnother(kind, id_, owner, declared_by)


def released(declared: Declared, section: str) -> set[str]:
    """Owners whose documents are given with this section: what they leave out they give up."""
    return {document.owner for document in declared.documents if section in document.sections}


def removed(declared: Declared, section: str, stored: Mapping[str, Known], request: Request) -> Iterable[str]:
    """Ids that the declaration removes: those of its owners that it leaves out, or with prune those of anybody.

    A section that no document has is left alone.
    """
    owners, kept = released(declared, section), declared.owners(section)
    for id_, known in stored.items():
        if known.digest and id_ not in kept and owners and (request.prune or known.owner in owners):
            yield id_
