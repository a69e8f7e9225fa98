"""Replacing every secret of the deployment once, as the guide describes, while machines boot."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from tests.secured.deployment import DATABASE_USERS, PASSWORDS, Deployment, new_key
from tests.secured.servers import MODULES

END_SESSIONS: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename LIKE 'slipway_%'"
USERS: Final = (*MODULES, "operators")
Change = Callable[[Deployment], Awaitable[None]]


async def registration_keys(deployment: Deployment) -> None:
    """The new one first: it derives, and both verify."""
    deployment.write_keys("registration_keys", f"{new_key()}\n{deployment.keys['registration_keys']}")


async def old_registration_key(deployment: Deployment) -> None:
    """Machines that were launched with it have registered."""
    deployment.replaced["registration_keys"] = deployment.keys["registration_keys"].split()[1]
    deployment.write_keys("registration_keys", deployment.keys["registration_keys"].split()[0])


async def state_keys(deployment: Deployment) -> None:
    deployment.write_keys("state_keys", f"{new_key()}\n{deployment.keys['state_keys']}")
    await deployment.call("POST", "provisioner", "/state-keys/rotate", {})


async def token(deployment: Deployment) -> None:
    """A new one, then the old one is revoked in each service, by its own API."""
    deployment.replaced["token"] = deployment.token
    await asyncio.to_thread(deployment.create_token, "operator-2")
    for name in MODULES:
        await deployment.call("POST", name, "/tokens/operator/revoke", {"reason": "rotation"})


def kafka_password(user: str) -> Change:
    async def change(deployment: Deployment) -> None:
        deployment.replaced[user] = deployment.kafka.password_file(user).read_text()
        password = secrets.token_hex(16)
        deployment.capture.search({password})
        await asyncio.to_thread(deployment.kafka.change_password, user, password)

    return change


async def kafka_administrator_password(deployment: Deployment) -> None:
    deployment.replaced["admin"] = deployment.kafka.password_file("admin").read_text()
    password = secrets.token_hex(16)
    deployment.capture.search({password})
    await asyncio.to_thread(deployment.kafka.change_own_password, password)


def database_password(name: str) -> Change:
    async def change(deployment: Deployment) -> None:
        deployment.replaced[DATABASE_USERS[name]] = deployment.database_passwords[name]
        password = secrets.token_hex(16)
        deployment.capture.search({password})
        async with deployment.postgres.administered() as administrator:
            await administrator.execute(f"ALTER ROLE {DATABASE_USERS[name]} PASSWORD '{password}'")
            deployment.write_database_password(name, password)
            await administrator.execute(END_SESSIONS)  # or it would be used hours later

    return change


async def administrator_password(deployment: Deployment) -> None:
    await deployment.postgres.change_password(secrets.token_hex(16))


async def database_certificate(deployment: Deployment) -> None:
    deployment.issue_database_certificate()
    async with deployment.postgres.administered() as administrator:
        await administrator.execute(END_SESSIONS)


async def database_server_certificate(deployment: Deployment) -> None:
    deployment.postgres.install_certificate()
    async with deployment.postgres.administered() as administrator:
        await administrator.execute("SELECT pg_reload_conf()")
        await administrator.execute(END_SESSIONS)


async def broker_certificate(deployment: Deployment) -> None:
    await asyncio.to_thread(deployment.kafka.renew_certificate)


async def service_certificate(deployment: Deployment) -> None:
    deployment.authority.issue("service", hosts=("localhost",))


async def operator_certificate(deployment: Deployment) -> None:
    deployment.authority.issue("operator")


async def machine_certificate(deployment: Deployment) -> None:
    deployment.machines.renew_certificate()


ROTATIONS: Final[dict[str, Change]] = {
    "registration keys": registration_keys,
    "removed registration key": old_registration_key,
    "state keys": state_keys,
    "token": token,
    **{f"password of {user} at Kafka": kafka_password(user) for user in USERS},
    "password of Kafka's administrator": kafka_administrator_password,
    **{f"password of {name} at PostgreSQL": database_password(name) for name in PASSWORDS},
    "password of PostgreSQL's administrator": administrator_password,
    "certificate of lease-broker at PostgreSQL": database_certificate,
    "certificate of PostgreSQL": database_server_certificate,
    "certificate of the broker": broker_certificate,
    "certificate of the services": service_certificate,
    "certificate of the operator": operator_certificate,
    "certificate of machines": machine_certificate,
}


async def rotate(deployment: Deployment) -> int:
    """Replace each secret while machines boot. Returns how many were booting meanwhile."""
    booting = 0
    for name, change in ROTATIONS.items():
        keys = deployment.keys["registration_keys"]
        count = await deployment.machines.wave(keys, partial(change, deployment))
        print(f"  replaced {name} while {count} machines booted", flush=True)
        booting += count
    return booting
