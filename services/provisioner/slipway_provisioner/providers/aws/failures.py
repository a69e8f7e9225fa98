"""Failed calls to AWS, in one form: errors of the API, of the SDK and of its credentials.

Texts of the SDK may contain whole replies, headers and addresses; they are redacted before anybody sees them.
"""

from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from slipway_common.base.redaction import redacted
from slipway_provisioner.providers.aws.calls import CREDENTIAL_OPERATIONS
from slipway_provisioner.providers.aws.errors import TABLE

NO_CODE: Final = "UnknownError"
SDK_FAILED: Final = "HTTPClientError"
RETRY_AFTER: Final = "x-amz-retry-after"  # milliseconds


class CallFailed(Exception):
    """A call that failed. `unsent`: it failed before anything was sent, while its credentials were obtained. `date`:
    the time at which AWS answered it, by its own clock."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        http_status: int = 0,
        unsent: bool = False,
        retry_after_seconds: float | None = None,
        date: datetime | None = None,
    ) -> None:
        super().__init__(f"{code}: {redacted(message)}")
        self.code = code
        self.message = message
        self.http_status = http_status
        self.unsent = unsent
        self.retry_after_seconds = retry_after_seconds
        self.date = date


def call_failed(error: BaseException) -> CallFailed:
    """Failure of a call, from an exception of the SDK."""
    if isinstance(error, CallFailed):
        return error
    response = getattr(error, "response", None)
    if isinstance(response, Mapping) and "Error" in response:
        return _answered(response, str(getattr(error, "operation_name", "")))
    return CallFailed(_code(error), str(error) or repr(error))


def credential_failed(error: BaseException) -> CallFailed:
    """Failure to obtain credentials, after which nothing was sent to EC2."""
    failed = call_failed(error)
    code = failed.code if failed.code != SDK_FAILED else "CredentialRetrievalError"
    return CallFailed(code, failed.message, http_status=failed.http_status, unsent=True, date=failed.date)


def _answered(response: Mapping[str, Any], operation: str) -> CallFailed:
    about = response.get("ResponseMetadata", {})
    return CallFailed(
        str(response["Error"].get("Code") or NO_CODE),
        str(response["Error"].get("Message") or ""),
        http_status=int(about.get("HTTPStatusCode") or 0),
        unsent=operation in CREDENTIAL_OPERATIONS,
        retry_after_seconds=_retry_after(about.get("HTTPHeaders", {})),
        date=answered_at(response),
    )


def answered_at(response: Mapping[str, Any]) -> datetime | None:
    """Time of an answer by the clock of AWS, in whole seconds; None if it tells none."""
    told = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return parsedate_to_datetime(told)
    except ValueError:
        return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    given = headers.get(RETRY_AFTER, "")
    return int(given) / 1000 if given.isascii() and given.isdigit() else None


def _code(error: BaseException) -> str:
    """Name of the class of an exception that the table lists, or of one that it is derived from. Of any other it is
    unknown if the call was sent."""
    names = [kind.__name__ for kind in type(error).__mro__]
    found = next((name for name in names if name in TABLE), SDK_FAILED)
    # The SDK also says so of a connection that broke after the call was sent.
    cause = type(getattr(error, "kwargs", {}).get("error")).__name__
    if found == "EndpointConnectionError" and not cause.startswith("ClientConnector"):
        return "ConnectionClosedError"
    return found
