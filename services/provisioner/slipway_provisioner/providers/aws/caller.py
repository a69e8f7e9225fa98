"""Paced calls to EC2 and STS: tokens are taken before each, and a throttle empties the bucket."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from slipway_api.events.worker import Scope
from slipway_api.percent import encoded
from slipway_common.base.clock import monotonic_seconds
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import body, errors
from slipway_provisioner.providers.aws.calls import Bucket, Call
from slipway_provisioner.providers.aws.errors import Case
from slipway_provisioner.providers.aws.failures import CallFailed
from slipway_provisioner.providers.aws.findings import Expiry
from slipway_provisioner.providers.aws.settings import account_settings
from slipway_provisioner.providers.pacing import Share, paced
from slipway_provisioner.providers.port import OutcomeUnknown, ProviderSettings

if TYPE_CHECKING:
    from slipway_provisioner.providers.aws.client import Clients

MISSING: Final = (
    "provider aws is not installed here; install slipway-provisioner[aws], or an image built with EXTRAS=aws"
)
PACKAGES: Final = ("aiobotocore", "asn1crypto", "cryptography")
PAGE: Final = 200
"""Rows of a page, whose reply is parsed in a tenth of a second."""


def is_installed() -> bool:
    """True if the SDK and what checks identity documents are installed, an extra of this package."""
    return all(find_spec(package) is not None for package in PACKAGES)


class Caller:
    """Calls of all accounts. Without the SDK none is made."""

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings
        self._clients: Clients | None = None

    async def open(self) -> None:
        if is_installed():
            from slipway_provisioner.providers.aws.client import Clients

            self._clients = Clients(self.settings.timeout)
            await self._clients.open()

    async def close(self) -> None:
        if self._clients is not None:
            await self._clients.close()

    async def missing_seconds(self, account: Account, call: Call, units: int, *, within_seconds: float) -> float:
        """Take the tokens of a call and wait for them; the seconds that are missing if the wait would be too long."""
        return await paced(self.settings.pacing, _shares(account, call, units), within_seconds=within_seconds)

    async def send(self, account: Account, call: Call, **parameters: Any) -> dict[str, Any]:
        """Reply to a call for which there are tokens. Raises CallFailed; OutcomeUnknown without the SDK."""
        if self._clients is None:
            raise OutcomeUnknown(MISSING)
        try:
            return await self._clients.call(account, call, **parameters)
        except CallFailed as failed:
            if case_of(account, failed).scope is Scope.LIMITER:
                await self.settings.pacing.empty(_shares(account, call, 0)[:1])
            raise

    async def call(self, account: Account, call: Call, *, units: int = 1, **parameters: Any) -> dict[str, Any]:
        """Reply to a call. Raises CallFailed; OutcomeUnknown if the bucket has too few tokens."""
        if await self.missing_seconds(account, call, units, within_seconds=self.settings.timeout(account)):
            message = f"{call.operation}: the token bucket of account {account.id} is empty; not sent"
            raise OutcomeUnknown(message, throttled=True)
        return await self.send(account, call, **parameters)

    async def spare(self, account: Account, call: Call, *, within_seconds: float, **parameters: Any) -> dict[str, Any]:
        """Reply to a call that may wait: it is sent once launches and listings leave half of the bucket of calls
        unused. Raises CallFailed; OutcomeUnknown, throttled, if that is not so for `within_seconds`."""
        shares = [replace(share, spared=share.size / 2) for share in _shares(account, call, 0)[:1]]
        deadline = monotonic_seconds() + within_seconds
        while shares and (wait := await self.settings.pacing.take(shares, within_seconds=0.0)):
            if monotonic_seconds() + wait > deadline:
                message = f"{call.operation}: launches and listings need the API of account {account.id}; not sent"
                raise OutcomeUnknown(message, throttled=True)
            await asyncio.sleep(wait)
        return await self.send(account, call, **parameters)

    async def expiry(self, account: Account) -> Expiry:
        """End of the credentials of an account. Raises CallFailed; OutcomeUnknown without the SDK."""
        if self._clients is None:
            raise OutcomeUnknown(MISSING)
        return await self._clients.expiry(account)

    async def pages(
        self, account: Account, call: Call, filters: Sequence[Mapping[str, Any]]
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Replies of a listing. Pages may be short or empty before the last one. Raises OutcomeUnknown."""
        token: str | None = None
        while True:
            more: dict[str, Any] = {"NextToken": token} if token else {}
            try:
                reply = await self.call(account, call, Filters=filters, MaxResults=PAGE, **more)
            except CallFailed as failed:
                raise unknown(account, f"{call.operation} of {account.id}", failed) from None
            yield reply
            if not (token := reply.get("NextToken")):
                return


def case_of(account: Account, failed: CallFailed) -> Case:
    """Meaning of a failed call in an account."""
    if failed.unsent:
        return errors.classify_credential(failed.code, failed.message, http_status=failed.http_status)
    extra = account_settings(account.settings).errors
    return errors.classify(failed.code, failed.message, http_status=failed.http_status, extra=extra)


def unknown(account: Account, about: str, failed: CallFailed) -> OutcomeUnknown:
    """OutcomeUnknown of a failed call, which proves nothing."""
    return OutcomeUnknown(f"{about}: {failed}", throttled=case_of(account, failed).scope is Scope.LIMITER)


def filters(account: Account, **more: Sequence[str]) -> list[dict[str, Any]]:
    """Filters for what Slipway has made in an account. An underscore in a name stands for a hyphen."""
    own = {f"tag:{body.DEPLOYMENT}": [account.deployment], f"tag:{body.ACCOUNT}": [account.id]}
    own |= {name.replace("_", "-"): list(values) for name, values in more.items()}
    return [{"Name": name, "Values": values} for name, values in own.items()]


def _shares(account: Account, call: Call, units: int) -> list[Share]:
    """Tokens that a call takes, of its calls first. AWS counts per account of its own and region."""
    taken: tuple[tuple[Bucket | None, int], ...] = ((call.calls, 1), (call.units, units))
    return [
        Share(
            bucket=encoded("aws", account.identity, account.region, bucket.name),
            units=tokens,
            size=bucket.size,
            refill_per_second=bucket.refill_per_second,
        )
        for bucket, tokens in taken
        if bucket is not None
    ]
