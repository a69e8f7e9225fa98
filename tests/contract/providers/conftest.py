"""Providers of the contract suite: every installed one, and one that accepts its calls.

A new provider NAME adds the fixtures `NAME_setup` and `NAME_shared_setup`.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import httpx2
import pytest
from msgspec.structs import replace

from slipway_api.percent import encoded
from slipway_common.base.process import identities
from slipway_common.base.process.identities import INSTANCE_TAG
from slipway_local.ec2.facts import Call as Ec2Call
from slipway_local.ec2.facts import InstanceCreated as Ec2Created
from slipway_local.ec2.facts import Launch
from slipway_local.ec2.facts import Reply as Ec2Reply
from slipway_local.ec2.server import ENDPOINTS, EmbeddedEc2
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.installed import GROUP
from slipway_provisioner.providers.port import CreateRequest, Refused
from slipway_provisioner.providers.process import Processes
from slipway_provisioner.providers.simulated import Simulated
from slipway_provisioner.providers.terraform.adapter import Terraform
from slipway_simulator.facts import Call, InstanceCreated, Reply
from slipway_simulator.ledger import read
from slipway_simulator.main import served
from slipway_simulator.settings import Settings as SimulatorSettings
from tests.support.accepting import Accepting, Site
from tests.support.ec2 import KEY, cleared
from tests.support.harness import PATIENCE_SECONDS, until, until_waiting
from tests.support.linux import IS_LINUX, REASON
from tests.support.provider_contract import Setup, clear
from tests.support.providers import ACCOUNT, CONFIG, DEPLOYMENT, account, provider_settings, request
from tests.support.provisioner import provisioner_on
from tests.support.serving import serving
from tests.support.terraform_provider import (
    account_settings,
    launch_settings,
    real_clock,
    settings_on,
    startable,
    tagged,
    working,
)
from tests.support.terraform_runs import new_place

PROVIDERS: Final = sorted({*entry_points(group=GROUP).names, "accepting"})


@pytest.fixture(params=PROVIDERS)
def setup(request: pytest.FixtureRequest) -> Setup:
    """Each provider in turn, set up by the fixture `NAME_setup`."""
    chosen: Setup = request.getfixturevalue(f"{request.param}_setup")
    return chosen


@pytest.fixture(scope="module", params=PROVIDERS)
def shared_setup(request: pytest.FixtureRequest) -> Setup:
    """Each provider in turn, set up once by the fixture `NAME_shared_setup` for all tests that launch nothing."""
    chosen: Setup = request.getfixturevalue(f"{request.param}_shared_setup")
    return chosen


@pytest.fixture
async def local() -> AsyncIterator[Processes]:
    """Provider of processes, whose processes are killed afterwards."""
    async with processes_killed() as provider:
        yield provider


@pytest.fixture
async def process_setup(local: Processes, tmp_path: Path) -> AsyncIterator[Setup]:
    async with on_this_host(local, tmp_path) as setup:
        yield setup


@pytest.fixture(scope="module")
async def process_shared_setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    async with processes_killed() as provider, on_this_host(provider, tmp_path_factory.mktemp("process")) as setup:
        yield setup


@pytest.fixture
async def simulated_setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with on_the_simulator(tmp_path) as setup:
        yield setup


@pytest.fixture(scope="module")
async def simulated_shared_setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    async with on_the_simulator(tmp_path_factory.mktemp("simulated")) as setup:
        yield setup


@pytest.fixture
def accepting_setup() -> Setup:
    return at_a_site()


@pytest.fixture(scope="module")
def accepting_shared_setup() -> Setup:
    return at_a_site()


@pytest.fixture
async def aws_setup(ec2_server: EmbeddedEc2) -> AsyncIterator[Setup]:
    async with on_ec2(ec2_server) as setup:
        yield setup


@pytest.fixture(scope="module")
async def aws_shared_setup(ec2_server: EmbeddedEc2) -> AsyncIterator[Setup]:
    async with on_ec2(ec2_server) as setup:
        yield setup


@pytest.fixture
async def terraform_setup(postgres: EmbeddedPostgres) -> AsyncIterator[Setup]:
    async with on_a_ledger(postgres) as setup:
        yield setup


@pytest.fixture(scope="module")
async def terraform_shared_setup(postgres: EmbeddedPostgres) -> AsyncIterator[Setup]:
    async with on_a_ledger(postgres) as setup:
        yield setup


@contextlib.asynccontextmanager
async def processes_killed() -> AsyncIterator[Processes]:
    """Provider of processes, whose processes are killed afterwards."""
    if not IS_LINUX:
        pytest.skip(REASON)
    provider = Processes(provider_settings())
    yield provider
    await clear()
    await provider.close()


@contextlib.asynccontextmanager
async def on_this_host(local: Processes, folder: Path) -> AsyncIterator[Setup]:
    here = account(environment={"SEEN": str(folder)})
    logging = account(environment={"SEEN": str(folder)}, log_folder=str(folder))
    others: list[Processes] = []

    async def cancelled(asked: CreateRequest) -> set[str]:
        """Cancel the call while it starts its second process, which waits until somebody reads the log."""

        def leaders() -> set[str]:
            tag = encoded(DEPLOYMENT, ACCOUNT, asked.batch_id) + "/"
            return {process.identity for process in identities.tagged(INSTANCE_TAG, tag) if process.leads}

        log = folder / f"{asked.batch_id}-2.log"
        os.mkfifo(log)
        call = asyncio.create_task(local.create(logging, asked))
        await until(lambda: any(folder.glob("[0-9]*[0-9]")), "the first process has become its command")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        reading = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        with contextlib.suppress(Refused):  # calls are made one after another, so that the cancelled one has ended
            await local.create(here, request())
        os.close(reading)
        return leaders()

    def restarted() -> Processes:
        others.append(Processes(provider_settings()))
        return others[-1]

    yield Setup(
        provider=local,
        account=here,
        cancelled=cancelled,
        restarted=restarted,
        bad_settings={"processes_max": 0},
    )
    for other in others:
        await other.close()


@contextlib.asynccontextmanager
async def on_the_simulator(folder: Path) -> AsyncIterator[Setup]:
    port, closed = free_ports(2)
    settings = SimulatorSettings(port=port, ledger=folder / "ledger.jsonl", kafka="")
    url = f"http://127.0.0.1:{settings.port}"
    others: list[Simulated] = []

    def at(address: str) -> Account:
        own = {"url": address, "honours_tokens": True}
        return replace(account(), provider="simulated", identity=ACCOUNT, settings=own)

    here = at(url)
    async with (
        serving(served(settings)),
        httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS) as client,
    ):
        provider = Simulated(provider_settings())

        async def load(**latency: float) -> None:
            accounts = {ACCOUNT: {"capacity": {"zone-a": 3}, **latency}, "*": {}}
            assert (await client.post("/scenario", json={"speed": 1000, "accounts": accounts})).status_code == 200

        async def cancelled(asked: CreateRequest) -> set[str]:
            """Cancel the call before the simulator replies. It takes effect like a call whose client has died."""

            def recorded(kind: type[Call | Reply]) -> bool:
                return any(isinstance(fact, kind) for fact in read(settings.ledger))

            await load(latency_seconds=300, latency_sigma=0)
            call = asyncio.create_task(provider.create(here, asked))
            await until(lambda: recorded(Call), "the simulator has the call")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: recorded(Reply), "the call has taken effect")
            created = (fact for fact in read(settings.ledger) if isinstance(fact, InstanceCreated))
            return {fact.instance_id for fact in created if fact.batch == asked.batch_id}

        def restarted() -> Simulated:
            others.append(Simulated(provider_settings()))
            return others[-1]

        await load()
        yield Setup(
            provider=provider,
            account=here,
            cancelled=cancelled,
            restarted=restarted,
            bad_settings={"url": "nowhere"},
            unreachable=at(f"http://127.0.0.1:{closed}"),
        )
        for other in (provider, *others):
            await other.close()


def at_a_site() -> Setup:
    site = Site()
    provider = Accepting(provider_settings(), site)
    here = replace(account(), provider="accepting", identity=site.identity, settings={})

    async def cancelled(asked: CreateRequest) -> set[str]:
        """Cancel the call before the site's reply; the site completes it."""
        site.held = asyncio.Event()
        call = asyncio.create_task(provider.create(here, asked))
        await until(lambda: asked.token in site.jobs, "the site has the call")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        site.held = None
        return {*site.end(site.jobs[asked.token])}

    return Setup(
        provider=provider,
        account=here,
        cancelled=cancelled,
        restarted=lambda: Accepting(provider_settings(), site),
        bad_settings={"colour": "green"},
        unreachable=replace(here, settings={"down": True}),
    )


@contextlib.asynccontextmanager
async def on_ec2(ec2_server: EmbeddedEc2) -> AsyncIterator[Setup]:
    """EC2, in a zone with room for three instances."""
    (closed,) = free_ports(1)
    zone, made = "us-east-1a", list[Ec2]()

    def at(address: str) -> Account:
        own = dict.fromkeys(ENDPOINTS, address)
        credential = {"environment": "TEST_AWS"}
        identity = "123456789012"  # of moto
        return replace(
            account(), provider="aws", region="us-east-1", identity=identity, credential=credential, settings=own
        )

    def restarted() -> Ec2:
        made.append(Ec2(provider_settings()))
        return made[-1]

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TEST_AWS_ACCESS_KEY_ID", KEY)
        environment.setenv("TEST_AWS_SECRET_ACCESS_KEY", "secret")
        async with cleared(ec2_server) as ec2:
            here = at(ec2.url)
            await ec2.play(capacity={zone: 3})
            provider = restarted()
            await provider.open()
            await provider.health(here)  # learns the ids of the zones

            async def cancelled(asked: CreateRequest) -> set[str]:
                """Cancel the call while the stand-in works on it, which completes it."""
                await ec2.play(capacity={zone: 3}, latency_seconds=2)
                calls = len(ec2.facts(Ec2Call))
                call = asyncio.create_task(provider.create(here, asked))
                await until(lambda: len(ec2.facts(Ec2Call)) > calls, "the stand-in has the call")
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await call
                await until(lambda: any(reply.instance_ids for reply in replies(asked)), "the call has taken effect")
                await ec2.play(capacity={zone: 3})
                return {fact.instance_id for fact in ec2.facts(Ec2Created) if fact.batch == asked.batch_id}

            def replies(asked: CreateRequest) -> list[Ec2Reply]:
                ids = {launch.call_id for launch in ec2.facts(Launch) if launch.batch == asked.batch_id}
                return [reply for reply in ec2.facts(Ec2Reply) if reply.call_id in ids]

            yield Setup(
                provider=provider,
                account=here,
                cancelled=cancelled,
                restarted=restarted,
                bad_settings={"endpoint_url": "nowhere"},
                unreachable=at(f"http://127.0.0.1:{closed}"),
                unknown_id="i-0123456789abcdef0",
                config={"zone": zone, "image": "ami-1"},
            )
            for each in made:
                await each.close()


@contextlib.asynccontextmanager
async def on_a_ledger(postgres: EmbeddedPostgres) -> AsyncIterator[Setup]:
    """Machines of a ledger, in an account with room for three workspaces."""
    with new_place() as place:
        async with provisioner_on(postgres) as provisioner, real_clock(provisioner.database):
            database = provisioner.database
            own = account_settings(place, workspaces_max=3)
            here = replace(account(), provider="terraform", identity="ledger", settings=own)
            await startable(database, here, CONFIG)
            async with contextlib.AsyncExitStack() as stack:

                async def opened(name: str) -> Terraform:
                    settings = settings_on(database, place.folder / name)
                    return await stack.enter_async_context(working(Terraform(settings)))

                provider, other = await opened("runs"), Terraform(settings_on(database, place.folder / "other"))

                async def cancelled(asked: CreateRequest) -> set[str]:
                    """Cancel the call before it is committed."""
                    async with database.acquire() as db, db.transaction():
                        await db.execute("LOCK TABLE workspace IN EXCLUSIVE MODE")
                        call = asyncio.create_task(provider.create(here, asked))
                        await until_waiting(database, call)
                        call.cancel()
                        with pytest.raises(asyncio.CancelledError):
                            await call
                    return {*tagged(place.ledger, {"slipway-batch": asked.batch_id})}

                yield Setup(
                    provider=provider,
                    account=here,
                    cancelled=cancelled,
                    restarted=lambda: other,
                    bad_settings={"tool": "terraform"},
                    config={"settings": launch_settings(place)},
                )
                await other.close()
