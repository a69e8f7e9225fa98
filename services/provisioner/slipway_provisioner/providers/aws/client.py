"""Clients of the AWS SDK: one session, and one long-lived client per service for all accounts with the same region and
network settings, since each takes more than a megabyte. Each call is signed with the credentials of its account.

The SDK sends each call once: its own retries would send a refusal for lack of capacity five times, and drain the token
buckets of the account. Long replies are parsed in steps, and of an instance only what is read.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, cast
from xml.etree.ElementTree import Element, ParseError, XMLParser

import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentialResolver, AioCredentials, create_credential_resolver
from aiobotocore.parsers import PROTOCOL_PARSERS, AioResponseParserFactory
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import NoCredentialsError
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError

from slipway_common.base.clock import monotonic_seconds
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import credentials
from slipway_provisioner.providers.aws.calls import Call
from slipway_provisioner.providers.aws.credentials import Credentials, CredentialSource
from slipway_provisioner.providers.aws.errors import EXPIRED, classify
from slipway_provisioner.providers.aws.failures import CallFailed, call_failed
from slipway_provisioner.providers.aws.findings import Expiry
from slipway_provisioner.providers.aws.replies import MEMBERS
from slipway_provisioner.providers.aws.settings import Ec2Settings, account_settings

PARSED_AT_ONCE_BYTES: Final = 32_768  # about ten instances, two milliseconds
READ_AT_ONCE_BYTES: Final = 16_384  # a fifth of a millisecond
WORK_SECONDS, REST_SECONDS = 0.001, 0.001
"""Parsing of a long reply rests for as long as it works, in turns of the smallest time that the event loop can wait:
without a rest each statement of a launch would wait for a step."""
LISTS_DEEP: Final = 2
"""Depth of the lists that are parsed item by item: instances are lists in a list of reservations."""
SDK_PARSER: Final[Any] = PROTOCOL_PARSERS["ec2"]  # its stubs lack the methods that parse a part of a reply
CONNECT_SECONDS: Final = 5.0
CONNECTIONS_MAX: Final = 512  # of all accounts that share a client, so that one that hangs delays no other
LOGGERS: Final = ("botocore", "aiobotocore", "aiohttp")
SERVICES: Final = ("ec2", "sts", "service-quotas")

OF_MACHINE: Final = frozenset({"container-role", "iam-role"})
"""Where the SDK finds credentials of this machine. Its variables, files and commands are the operator's to name: a
declaration that names no credential would use whatever this process has been given for something else."""
NOT_OF_CLIENTS: Final = frozenset({"tags", "errors", "queue_url", "visibility_seconds"})
"""Settings of an account on which its clients do not depend."""

_signing: ContextVar[Credentials] = ContextVar("_signing")


class Signing(AioCredentials):
    """Credentials of the account that makes the call."""

    def __init__(self) -> None:
        super().__init__("", "")

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:  # type: ignore[override]
        return await _signing.get().get_frozen_credentials()


class Session(AioSession):
    """Session of the SDK whose clients sign each call with the credentials of its account."""

    async def get_credentials(self) -> Any:  # type: ignore[override]
        return Signing()


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


class Turn:
    """Turns of work and rest in the event loop."""

    def __init__(self) -> None:
        self._rested_at = 0.0

    async def end(self) -> None:
        """End a step of work: let other tasks run, and rest if the turn is over."""
        now = monotonic_seconds()
        if now - self._rested_at < WORK_SECONDS:
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(REST_SECONDS)
            self._rested_at = monotonic_seconds()


class Stepped(SDK_PARSER):  # type: ignore[misc]
    """Parser of replies of EC2 that parses a long one in steps of a fraction of a millisecond, between which the event
    loop runs. A thread would take longer to hand over the interpreter's lock, at each of the statements of a launch.

    The result is that of the SDK's parser. Replies wait for each other (`parsing`), so that a turn of the event loop
    has one step, however many accounts are listed.
    """

    def __init__(self, parsing: asyncio.Lock) -> None:
        super().__init__()
        self._parsing = parsing
        self._turn = Turn()

    def _do_parse(self, response: Mapping[str, Any], shape: Any) -> Any:
        if shape is None or len(response["body"]) <= PARSED_AT_ONCE_BYTES:
            return super()._do_parse(response, shape)
        return self._in_steps(response["body"], shape)

    async def _in_steps(self, body: bytes, shape: Any) -> Any:
        async with self._parsing:
            root = await self._root(body)
            parsed = await self._structure(shape, root, LISTS_DEEP)
            self._inject_response_metadata(root, parsed)
            return parsed

    async def _structure(self, shape: Any, node: Element, lists_deep: int) -> Any:
        """Structure whose lists are parsed item by item, down to a depth."""
        nodes = self._build_name_to_xml_node(node)
        found = {}
        for name, member in shape.members.items():
            inner = nodes.get(self._member_key_name(member, name))
            if member.type_name == "list" and isinstance(inner, Element):
                found[name] = member.member, inner
                node.remove(inner)
        parsed = self._parse_shape(shape, node)
        for name, (item_shape, items) in found.items():
            parsed[name] = [await self._item(item_shape, item, lists_deep - 1) for item in items]
        return parsed

    async def _item(self, shape: Any, node: Element, lists_deep: int) -> Any:
        if lists_deep and shape.type_name == "structure":
            return await self._structure(shape, node, lists_deep)
        await self._turn.end()
        return self._parse_shape(shape, node)

    async def _root(self, body: bytes) -> Element:
        """Elements of a long reply, read in steps. Raises ResponseParserError."""
        parser = XMLParser(encoding="utf-8")  # noqa: S314 # a reply of AWS, for which the SDK has the same parser
        try:
            for start in range(0, len(body), READ_AT_ONCE_BYTES):
                parser.feed(body[start : start + READ_AT_ONCE_BYTES])
                await self._turn.end()
            return parser.close()
        except ParseError as error:
            raise ResponseParserError(f"invalid XML received: {error}") from None


class Parsers(AioResponseParserFactory):
    """Parsers of replies. Those of EC2 parse one long reply at a time, for all clients."""

    def __init__(self) -> None:
        super().__init__()
        self._parsing = asyncio.Lock()

    def create_parser(self, protocol_name: str) -> Any:
        return Stepped(self._parsing) if protocol_name == "ec2" else super().create_parser(protocol_name)


class Connection:
    """Clients with one configuration, and the ids of the accounts that use them."""

    def __init__(self) -> None:
        self.accounts: set[str] = set()
        self.clients: dict[str, Any] = {}
        self.calls = 0
        self.closed = False
        self._stack = contextlib.AsyncExitStack()

    async def add(self, service: str, client: Any) -> None:
        self.clients[service] = await self._stack.enter_async_context(client)

    async def close(self) -> None:
        self.closed = True
        await self._stack.aclose()


class Access(msgspec.Struct, frozen=True):
    """Access of one account: its credentials and the clients that it shares. `made_from`: all that they depend on."""

    made_from: str
    credentials: Credentials
    connection: Connection


class Clients:
    """Clients of all accounts. They are made at the first call of an account, unless another one shares them. When its
    declaration has changed it gets others; those that no account uses are closed once their last call has ended."""

    def __init__(self, timeout: Callable[[Account], float]) -> None:
        """`timeout` gives the timeout of a call in an account, in seconds."""
        self._timeout = timeout
        self._session: Any = Session()
        self._session.register_component("data_loader", DESCRIPTIONS)
        self._session.register_component("response_parser_factory", Parsers())
        self._connections: dict[str, Connection] = {}  # by their configuration
        self._access: dict[str, Access] = {}  # by account
        self._making = asyncio.Lock()
        self._of_machine: CredentialSource | None = None
        for name in LOGGERS:  # their debug logs contain headers and bodies, with credentials and user data
            logging.getLogger(name).setLevel(logging.WARNING)

    async def open(self) -> None:
        """Load the descriptions of the services, of which the first client would take a tenth of a second."""
        for service in SERVICES:
            await asyncio.to_thread(self._session.warm_up_loader_caches, service)

    async def close(self) -> None:
        connections, self._connections, self._access = list(self._connections.values()), {}, {}
        for connection in connections:
            await connection.close()

    async def call(self, account: Account, call: Call, **parameters: Any) -> dict[str, Any]:
        """Send one call, once. Raises CallFailed."""
        async with self.connected(account) as access:
            signing = _signing.set(access.credentials)
            try:
                method = getattr(access.connection.clients[call.service], call.method)
                return cast(dict[str, Any], await method(**parameters))
            except Exception as error:
                failed = call_failed(error)
                if classify(failed.code).advice is EXPIRED.advice:
                    access.credentials.forget()
                raise failed from None  # the SDK's text may contain the whole reply
            finally:
                _signing.reset(signing)

    async def expiry(self, account: Account) -> Expiry:
        """End of the credentials of an account. Raises CallFailed if there are none."""
        async with self.connected(account) as access:
            return await access.credentials.expiry()

    @contextlib.asynccontextmanager
    async def connected(self, account: Account) -> AsyncIterator[Access]:
        """Access of an account, whose clients stay open for a call."""
        seconds = self._timeout(account)
        made_from = _text(account.region, account.credential, account.settings, account.deployment, seconds)
        async with self._making:
            access = self._access.get(account.id)
            if access is None or access.made_from != made_from:
                made = await self._made(account, made_from)
                made.connection.accounts.add(account.id)
                self._access[account.id] = made
                if access is not None and access.connection is not made.connection:
                    access.connection.accounts.discard(account.id)
                    await self._close_unused(access.connection)
                access = made
            connection = access.connection
            connection.calls += 1
        try:
            yield access
        finally:
            connection.calls -= 1
            await self._close_unused(connection)

    async def _made(self, account: Account, made_from: str) -> Access:
        settings = account_settings(account.settings)
        seconds = self._timeout(account)
        urls = (settings.endpoint_url, settings.sts_endpoint_url, settings.quotas_endpoint_url)
        url_of = dict(zip(SERVICES, urls, strict=True))

        def client(service: str, *, config: AioConfig | None = None, **keys: Any) -> Any:
            own = _config(settings, seconds)
            return self._session.create_client(
                service,
                region_name=account.region,
                endpoint_url=url_of[service] or None,
                verify=settings.ca_bundle or None,
                config=own if config is None else own.merge(config),
                **keys,
            )

        signed = credentials.of(account.credential, session_name=account.deployment, default=self._own, client=client)
        network = {name: value for name, value in account.settings.items() if name not in NOT_OF_CLIENTS}
        key = _text(account.region, network, seconds)
        if key not in self._connections:
            self._connections[key] = await self._connection(account, client)
        return Access(made_from, signed, self._connections[key])

    async def _connection(self, account: Account, client: Callable[[str], Any]) -> Connection:
        connection = Connection()
        try:
            for service in SERVICES:
                await connection.add(service, client(service))
        except BaseException as error:
            await connection.close()
            if isinstance(error, Exception):
                raise CallFailed("ParamValidationError", f"account {account.id}: {error}") from None
            raise
        return connection

    async def _close_unused(self, connection: Connection) -> None:
        if not connection.accounts and not connection.calls:
            self._connections = {key: kept for key, kept in self._connections.items() if kept is not connection}
            await connection.close()

    async def _own(self) -> CredentialSource:
        """Credentials of the role of this machine or container, which the SDK renews."""
        if self._of_machine is None:
            known = create_credential_resolver(self._session).providers
            resolver = AioCredentialResolver([each for each in known if each.METHOD in OF_MACHINE])
            self._of_machine = cast(CredentialSource | None, await resolver.load_credentials())
        if self._of_machine is None:
            raise NoCredentialsError
        return self._of_machine


def _text(*parts: Any) -> str:
    """Values as one text, which differs if one of them does."""
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
