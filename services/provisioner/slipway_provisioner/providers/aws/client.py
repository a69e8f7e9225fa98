"""Clients of the AWS SDK: one session, and one long-lived client per account and service.

The SDK sends each call once: its own retries would send a refusal for lack of capacity five times, and drain the token
buckets of the account. Long replies are parsed in a thread, and of an instance only what is read.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, cast

import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.parsers import PROTOCOL_PARSERS, AioResponseParserFactory
from aiobotocore.session import AioSession
from botocore.exceptions import NoCredentialsError
from botocore.loaders import Loader

from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import credentials
from slipway_provisioner.providers.aws.calls import Call
from slipway_provisioner.providers.aws.credentials import Credentials, CredentialSource
from slipway_provisioner.providers.aws.errors import EXPIRED, classify
from slipway_provisioner.providers.aws.failures import CallFailed, call_failed
from slipway_provisioner.providers.aws.replies import MEMBERS
from slipway_provisioner.providers.aws.settings import Ec2Settings, account_settings

PARSED_AT_ONCE_BYTES: Final = 32_768  # about ten instances, a few milliseconds
CONNECT_SECONDS: Final = 5.0
CONNECTIONS_MAX: Final = 64
LOGGERS: Final = ("botocore", "aiobotocore", "aiohttp")
SERVICES: Final = ("ec2", "sts")

_signing: ContextVar[Credentials | None] = ContextVar("_signing", default=None)


class Session(AioSession):
    """Session of the SDK whose clients sign with the credentials of their account."""

    async def get_credentials(self) -> Any:  # type: ignore[override]
        return _signing.get() or await super().get_credentials()


class Descriptions(Loader):
    """Descriptions of the services, in which an instance has the members that are read here and no others: replies are
    parsed by their description, and a whole instance takes three times as long."""

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        model = super().load_service_model(service_name, type_name, api_version)
        if (service_name, type_name) == ("ec2", "service-2"):
            instance = model["shapes"]["Instance"]
            instance["members"] = {name: instance["members"][name] for name in MEMBERS}
        return model


DESCRIPTIONS: Final = Descriptions()
"""Read once in a process, which takes half a second."""


class Parsers(AioResponseParserFactory):
    """Parsers of replies, which parse long ones in a thread."""

    def create_parser(self, protocol_name: str) -> Any:
        base = PROTOCOL_PARSERS[protocol_name]

        class Threaded(base):  # type: ignore[misc,valid-type]
            """Parser of one protocol."""

            def _do_parse(self, response: Mapping[str, Any], shape: Any) -> Any:
                if len(response["body"]) <= PARSED_AT_ONCE_BYTES:
                    return super()._do_parse(response, shape)
                return asyncio.to_thread(super()._do_parse, response, shape)

        return Threaded()


class Connection:
    """Clients of one account. `made_from` is all that they depend on."""

    def __init__(self, made_from: str, credentials: Credentials) -> None:
        self.made_from = made_from
        self.credentials = credentials
        self.clients: dict[str, Any] = {}
        self.calls = 0
        self.replaced = False
        self.closed = False
        self._stack = contextlib.AsyncExitStack()

    async def add(self, service: str, client: Any) -> None:
        self.clients[service] = await self._stack.enter_async_context(client)

    async def close(self) -> None:
        self.closed = True
        await self._stack.aclose()


class Clients:
    """Clients of all accounts. They are made before or at the first call of an account, and made anew when its
    declaration has changed; those before are closed once their last call has ended."""

    def __init__(self, timeout: Callable[[Account], float]) -> None:
        """`timeout` gives the timeout of a call in an account, in seconds."""
        self._timeout = timeout
        self._session: Any = Session()
        self._session.register_component("data_loader", DESCRIPTIONS)
        self._session.register_component("response_parser_factory", Parsers())
        self._connections: dict[str, Connection] = {}
        self._making = asyncio.Lock()
        for name in LOGGERS:  # their debug logs contain headers and bodies, with credentials and user data
            logging.getLogger(name).setLevel(logging.WARNING)

    async def open(self) -> None:
        """Load the descriptions of the services, of which the first client would take a tenth of a second."""
        for service in SERVICES:
            await asyncio.to_thread(self._session.warm_up_loader_caches, service)

    async def close(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.close()

    async def call(self, account: Account, call: Call, **parameters: Any) -> dict[str, Any]:
        """Send one call, once. Raises CallFailed."""
        async with self.connected(account) as connection:
            try:
                method = getattr(connection.clients[call.service], call.method)
                return cast(dict[str, Any], await method(**parameters))
            except Exception as error:
                failed = call_failed(error)
                if classify(failed.code).advice is EXPIRED.advice:
                    connection.credentials.forget()
                raise failed from None  # the SDK's text may contain the whole reply

    @contextlib.asynccontextmanager
    async def connected(self, account: Account) -> AsyncIterator[Connection]:
        """Clients of an account, which stay open for a call."""
        made_from = _made_from(account, self._timeout(account))
        async with self._making:
            connection = self._connections.get(account.id)
            if connection is None or connection.made_from != made_from:
                made = await self._made(account, made_from)
                self._connections[account.id] = made
                if connection is not None:
                    connection.replaced = True
                    await _close_unused(connection)
                connection = made
            connection.calls += 1
        try:
            yield connection
        finally:
            connection.calls -= 1
            await _close_unused(connection)

    async def _made(self, account: Account, made_from: str) -> Connection:
        settings = account_settings(account.settings)
        seconds = self._timeout(account)

        def client(service: str, *, config: AioConfig | None = None, **keys: Any) -> Any:
            own = _config(settings, seconds)
            return self._session.create_client(
                service,
                region_name=account.region,
                endpoint_url=(settings.sts_endpoint_url if service == "sts" else settings.endpoint_url) or None,
                verify=settings.ca_bundle or None,
                config=own if config is None else own.merge(config),
                **keys,
            )

        signed = credentials.of(account.credential, session_name=account.deployment, default=self._own, client=client)
        connection = Connection(made_from, signed)
        token = _signing.set(signed)
        try:
            for service in SERVICES:
                await connection.add(service, client(service))
        except BaseException as error:
            await connection.close()
            if isinstance(error, Exception):
                raise CallFailed("ParamValidationError", f"account {account.id}: {error}") from None
            raise
        finally:
            _signing.reset(token)
        return connection

    async def _own(self) -> CredentialSource:
        """Credentials of this machine, as the SDK finds them."""
        found = await AioSession.get_credentials(self._session)
        if found is None:
            raise NoCredentialsError
        return cast(CredentialSource, found)


async def _close_unused(connection: Connection) -> None:
    if connection.replaced and not connection.calls:
        await connection.close()


def _made_from(account: Account, timeout_seconds: float) -> str:
    """All that the clients of an account depend on."""
    parts = (account.region, account.credential, account.settings, account.deployment, timeout_seconds)
    return msgspec.json.encode(parts, order="deterministic").decode()


def _config(settings: Ec2Settings, seconds: float) -> AioConfig:
    """Configuration of one client. The SDK writes into the dictionary of the retries, so that each needs its own."""
    return AioConfig(
        retries={"total_max_attempts": 1},
        connect_timeout=min(CONNECT_SECONDS, seconds),
        read_timeout=seconds,
        max_pool_connections=CONNECTIONS_MAX,
        use_fips_endpoint=settings.fips,
        proxies={"http": settings.proxy, "https": settings.proxy} if settings.proxy else None,
        ignore_configured_endpoint_urls=True,
        user_agent_extra="slipway",
    )
