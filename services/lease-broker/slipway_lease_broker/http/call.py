"""An authenticated HTTP request of the lease-broker's API. Value only."""

import msgspec

from slipway_common.database.postgres import Database
from slipway_common.web import access
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.admission import Admissions
from slipway_lease_broker.domain.ledger import Lease
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.http.group_commit import GroupCommit
from slipway_lease_broker.http.known_leases import KnownLeases


class BoundLease(msgspec.Struct, frozen=True):
    """The lease that the token of a call is bound to, with the holder that the token was made for."""

    lease: Lease
    holder: str


class Call(msgspec.Struct, frozen=True):
    """An authenticated request with the objects that its route works on. `bound`: its token reaches this lease only."""

    caller: access.Caller
    database: Database
    admissions: Admissions
    group_commit: GroupCommit
    known_leases: KnownLeases
    runtime: Runtime
    bound: BoundLease | None = None

    @property
    def name(self) -> str:
        """Name of the token: the owner of the leases acquired with it."""
        return self.caller.name

    @property
    def admin(self) -> bool:
        """True if the caller may act on leases of others."""
        return self.caller.may("admin")

    def sender(self, holder: str = "", *, join: bool = False, adapter: bool = False) -> Sender:
        """The sender of this caller's commands, with the name that its process gave itself. An `adapter` reports what
        the provider itself answered."""
        if self.bound is not None:
            holder, join = self.bound.holder, False
        return Sender(
            name=self.name,
            admin=self.admin,
            adapter=adapter,
            holder=holder,
            join=join,
            waiting_max=self.admissions.terms.waiting_requests_max,
        )

    def tenant(self, wanted: str | None) -> str:
        """The tenant of a request: see Caller.tenant. A token that is bound to a lease has that of the lease."""
        if self.bound is not None and wanted in (None, self.bound.lease.tenant):
            return self.bound.lease.tenant
        return self.caller.tenant(wanted)

    def is_adapter(self, lease_pool_id: str) -> bool:
        """True if the caller's reports of throttling are the provider's own word."""
        return self.caller.may(f"throttles:write:{lease_pool_id}")

    def may_write(self, lease_pool_id: str) -> None:
        """Raise a Problem 403 unless the caller may hold leases of this pool."""
        self.caller.permit(lease_pool_id=lease_pool_id)
