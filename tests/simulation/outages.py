"""Outages of a simulated deployment: lost lease events, PostgreSQL away for a quarter of an hour, an account that does
not answer, machines that cannot be terminated."""

from math import inf
from random import Random
from typing import Final

import httpx2

from tests.simulation.commands import SECOND_ACCOUNT, TOKEN
from tests.simulation.databases import SERVICES
from tests.simulation.deployment import Deployment

EVERY: Final = 3  # seeds
DARK_SECONDS: Final = 900.0
DEAD_SECONDS: Final = (200.0, 900.0)
UNDYING_SECONDS: Final = (600.0, 2000.0)  # from the beginning; a history settles meanwhile
RETIRES_EVERY_SECONDS: Final = 20.0  # it is refused while the account answers
LOST: Final = 0.1  # share of lease events
TICK_SECONDS: Final = 10.0
HEADERS: Final = {"Authorization": f"Bearer {TOKEN}"}
ACCOUNT: Final = f"/accounts/{SECOND_ACCOUNT}"
REASON: Final = {"reason": "drill"}


class Outages:
    """Outages of one history, chosen by its seed. `found`: those that have happened."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        chance = Random(f"{seed}/outages")
        self.deployment = deployment
        self.found: set[str] = set()
        deployment.lost_leases = LOST
        self.dark_at = chance.uniform(60, 500) if seed % EVERY == 1 else None
        begin = chance.uniform(60, 400)
        dead = seed % EVERY == 2
        self.dead_between = (begin, begin + chance.uniform(*DEAD_SECONDS)) if dead else (0.0, 0.0)
        self.retires_at = 0.0 if chance.random() < 0.5 else inf
        if seed % EVERY != 2:  # the dead account may be retired, and its machines are left
            deployment.cloud.undying_until = deployment.cloud.now() + chance.uniform(*UNDYING_SECONDS)

    async def act(self) -> None:
        """Begin and end what is due."""
        deployment = self.deployment
        if self.dark_at is not None and deployment.elapsed >= self.dark_at:
            self.dark_at = None
            await darkness(deployment, DARK_SECONDS)
            self.found.add("darkness")
        begin, end = self.dead_between
        deployment.cloud.dead = {SECOND_ACCOUNT} if begin <= deployment.elapsed < end else set()
        if deployment.cloud.dead and deployment.elapsed >= self.retires_at:
            self.retires_at = deployment.elapsed + RETIRES_EVERY_SECONDS
            if await command(deployment, "retire"):
                self.retires_at = inf
                self.found.add("retired")
        if deployment.cloud.unanswered:
            self.found.add("dead account")
        if deployment.lost:
            self.found.add("lost lease event")

    async def end(self) -> None:
        """Let everything answer again."""
        self.deployment.lost_leases = 0.0
        self.deployment.cloud.dead = set()
        await command(self.deployment, "reinstate")


async def darkness(deployment: Deployment, seconds: float) -> None:
    """Let time pass without PostgreSQL: no service acts or answers, and machines go on with their tasks."""
    for service in SERVICES:
        await deployment.kill(service)
    deployment.network.is_down = True
    end = deployment.elapsed + seconds
    while deployment.elapsed < end:
        await deployment.pass_time(TICK_SECONDS)
        await deployment.machines.act()
    deployment.network.is_down = False


async def command(deployment: Deployment, verb: str) -> bool:
    """Retire or reinstate the second account; False if that is refused."""
    answer: httpx2.Response = await deployment.http.post(f"{ACCOUNT}/{verb}", json=REASON, headers=HEADERS)
    assert answer.status_code in (200, 409), answer.text
    return answer.status_code == 200
