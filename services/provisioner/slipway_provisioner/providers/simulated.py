"""Provider of simulated instances, over the simulator's HTTP API."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

import httpx2

from slipway_api.events.scopes import image_of_provider
from slipway_api.events.worker import Scope
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState, Protected
from slipway_provisioner.providers.port import (
    CONSOLE_BYTES_MAX,
    CreateRequest,
    OutcomeUnknown,
    Provider,
    ProviderSettings,
    Refused,
    TerminationRefused,
    each,
)

# Error code → scope of the failure. `errors` in the account's settings extends the table.
ERRORS: Final = {
    "InsufficientCapacity": Scope.CAPACITY,
    "QuotaExceeded": Scope.QUOTA,
    "RequestLimitExceeded": Scope.LIMITER,
    "ImageNotFound": Scope.IMAGE,
    "InvalidRequest": Scope.CONFIG,
    "AuthFailure": Scope.CREDENTIAL,
}
NOT_PERMITTED: Final = "OperationNotPermitted"
"""Code of a termination that is refused until a person has done something."""
INCONCLUSIVE: Final = frozenset({"InternalError"})  # the call may have taken effect


class Simulated(Provider):
    """Provider of simulated instances."""

    real = False
    runs_commands = False
    operator_settings = frozenset({"url"})

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings

    @cached_property
    def client(self) -> httpx2.AsyncClient:
        """Made for the first call, since it reads the certificates of the system."""
        limits = httpx2.Limits(max_connections=200, max_keepalive_connections=50)
        return httpx2.AsyncClient(timeout=self.settings.timeout_seconds, limits=limits)

    async def close(self) -> None:
        if "client" in vars(self):
            await self.client.aclose()

    def problem(self, account_settings: Mapping[str, Any], region: str) -> str:
        url = account_settings.get("url")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            address = "the simulator's address, such as http://127.0.0.1:7304"
            return f"url is {url!r}; the operator writes {address}, into an entry"
        if not isinstance(account_settings.get("image_namespace", ""), str):
            return "image_namespace is no text; write the name that the keys of its images begin with"
        if not isinstance(account_settings.get("errors", {}), Mapping):
            return "errors is not a mapping; write error code and scope, for example errors: {NoCoffee: capacity}"
        return ""

    def image_key(self, account: Account, config: Mapping[str, Any]) -> str:
        """Id in the `image_namespace` of the account's settings, by default that of all simulated accounts."""
        return image_of_provider(str(account.settings.get("image_namespace", account.provider)), config["image"])

    def honours_tokens(self, account: Account) -> bool:
        return bool(account.settings.get("honours_tokens", False))

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        return f"{_url(account)}{_instance_path(instance_id)}/console"

    async def console_output(self, account: Account, batch_id: str, instance_id: str) -> str:
        response = await self._call("GET", account, f"{_instance_path(instance_id)}/console")
        if response.status_code == 404:
            return ""
        _check(response, f"console output of {instance_id}")
        return response.text[-CONSOLE_BYTES_MAX:]

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str]:
        config = request.config
        body = {
            "token": request.token,
            "tags": {
                "slipway-deployment": account.deployment,
                "slipway-incarnation": request.incarnation,
                "slipway-batch": request.batch_id,
                "slipway-launch-config": config["id"],
            },
            "count": request.count,
            "zone": config["zone"],
            "instance_type": config["instance_type"],
            "image": config["image"],
            "user_data": request.user_data,
        }
        response = await self._call("POST", account, "/instances", json=body)
        if response.status_code == 200:
            return [str(row["id"]) for row in _listed(response)]
        error = _json(response)
        code = str(error.get("code", f"HTTP {response.status_code}"))
        if code in INCONCLUSIVE or (response.status_code >= 500 and code not in ERRORS):
            raise OutcomeUnknown(f"{code}: {error.get('message', '')}")
        message = str(error.get("message", ""))
        errors = ERRORS | account.settings.get("errors", {})
        scope = Scope(errors[code]) if code in errors else None
        outcome = self.failure(account, config, code, scope, message)
        raise Refused(outcome, message, retry_after_seconds=error.get("retry_after_seconds"))

    async def pages(self, account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        query = {"deployment": account.deployment} | ({"batch": batch_id} if batch_id else {})
        response = await self._call("GET", account, "/instances", params=query)
        _check(response, f"listing {account.id}")
        yield [
            Instance(
                id=row["id"],
                batch_id=row["batch"],
                launch_config_id=row["config"],
                created_at=datetime.fromtimestamp(row["created_at"], UTC),
                state=InstanceState(row["state"]),
            )
            for row in _listed(response)
        ]

    async def exists(self, account: Account, instance_id: str, *, launched_at: datetime | None) -> bool:
        response = await self._call("GET", account, _instance_path(instance_id))
        if response.status_code == 404:
            return False
        _check(response, f"instance {instance_id}")
        return bool(_json(response).get("state") != "terminated")

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        await each(instance_ids, lambda instance_id: self._terminate(account, instance_id))

    async def _terminate(self, account: Account, instance_id: str) -> None:
        response = await self._call("DELETE", account, _instance_path(instance_id))
        error = _json(response) if response.status_code == 409 else {}
        if error.get("code") == NOT_PERMITTED:
            remedy = f"curl -X DELETE {account.settings.get('url', '')}/faults/no-termination"
            raise TerminationRefused({instance_id: Protected(f"{NOT_PERMITTED}: {error.get('message')}", remedy)})
        if response.status_code not in {204, 404}:
            raise OutcomeUnknown(f"terminate {instance_id}: HTTP {response.status_code}")

    async def identity(self, account: Account) -> str:
        response = await self._call("GET", account, "/identity")
        _check(response, f"identity of {account.id}")
        return str(_json(response).get("account", ""))

    async def _call(self, method: str, account: Account, path: str, **content: Any) -> httpx2.Response:
        try:
            timeout = self.settings.timeout(account)
            return await self.client.request(method, _url(account) + path, timeout=timeout, **content)
        except httpx2.HTTPError as error:
            raise OutcomeUnknown(f"{method} {path}: {error!r}") from error


def _url(account: Account) -> str:
    return f"{account.settings.get('url', '')}/accounts/{quote(account.id, safe='')}"


def _instance_path(instance_id: str) -> str:
    return f"/instances/{quote(instance_id, safe='')}"


def _check(response: httpx2.Response, what: str) -> None:
    """Raise OutcomeUnknown unless a call that reads has succeeded."""
    if response.status_code != 200:
        raise OutcomeUnknown(f"{what}: HTTP {response.status_code}")


def _json(response: httpx2.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError as error:
        raise OutcomeUnknown(f"HTTP {response.status_code} without JSON") from error
    return value if isinstance(value, dict) else {}


def _listed(response: httpx2.Response) -> list[dict[str, Any]]:
    rows = _json(response).get("instances")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.get("id") for row in rows):
        raise OutcomeUnknown("the reply contains no list of instances")
    return rows
