"""One day of a deployment at a hundredth of its volume, written by the services' own handlers, loops and routes.

The services are those of the simulation: on one database, with a clock that is set, connected by a log in memory. What
each day makes anew has a name with MARK.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from bench.growth.callers import Callers
from bench.growth.copies import MARK
from bench.growth.modules import Modules
from bench.growth.outsiders import Outsiders
from slipway_common.base.ids import new_id
from slipway_common.database import tokens
from slipway_provisioner.loops import consoles
from slipway_provisioner.providers.port import CreateRequest
from slipway_simulator.facts import Call
from slipway_simulator.scenario import Image, Scenario
from tests.simulation import outages
from tests.simulation.commands import FIRST_ACCOUNT, IMAGES, POOL, SECOND_ACCOUNT, TOKEN, ZONES, launch_config
from tests.simulation.deployment import STEPS_SECONDS, Deployment
from tests.simulation.history import arrivals, settle
from tests.simulation.history import scenario as scenario_without_faults

WORKERS: Final = 60
"""Workers of the day, each with a task."""
ROUND_SECONDS: Final = 20.0
ARRIVE_SECONDS: Final = 900.0
TEAM: Final = f"team-{MARK}"
IMAGE: Final = f"linux-{MARK}"
BAD_IMAGE: Final = f"bad-{MARK}"
HEADERS: Final = {"Authorization": f"Bearer {TOKEN}"}
REASON: Final = {"reason": "drill"}
BOOTING: Final = "SELECT instance_id FROM worker WHERE state = 'starting' AND image_revision = $1 ORDER BY id LIMIT 1"
ROUNDS: Final = 13
ROUNDS_MAX: Final = 40
"""Rounds after which what the day waits for would never happen."""


def scenario(seed: int) -> Scenario:
    """The cloud of the day."""
    plain = scenario_without_faults(seed, "")
    return msgspec.structs.replace(plain, images={**plain.images, BAD_IMAGE: Image(bad="not_found")})


class Day:
    """A day of a deployment and of everyone around it."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.outsiders = Outsiders(deployment)
        self.callers = Callers(deployment)
        self.modules = Modules(deployment)

    async def begin(self) -> None:
        """Run some rounds without work, so that what is updated every day exists."""
        await self.callers.declare()
        await self.callers.share_a_slot()
        self.outsiders.numbered()
        for _ in range(3):
            await self._round()

    async def write(self) -> None:
        """Write the day: workers, and between them what people, monitors and clouds do."""
        deployment = self.deployment
        deployment.tasks_at = [deployment.elapsed + at for at in arrivals(deployment.chance, WORKERS, ARRIVE_SECONDS)]
        due: Mapping[int, Callable[[], Awaitable[None]]] = {
            0: self._roll_out,
            1: self._add_a_team,
            2: self.outsiders.write,
            3: self._pause_and_freeze,
            4: self._call_services,
            5: self._lose_a_boot,
            6: self._roll_out_a_bad_image,
            7: self._break_machines,
            8: self._remove_the_team,
            9: self._lose_an_account,
            11: self._end_roll_outs,
        }
        await self.modules.write()  # while nothing is paused yet
        for number in range(ROUNDS):
            if number in due:
                await due[number]()
            await self._round()
        await self._without_passes()
        await settle(deployment, WORKERS)

    async def _round(self) -> None:
        await self.deployment.round()
        await self.deployment.pass_time(ROUND_SECONDS)

    # People

    async def _roll_out(self, image: str = IMAGE, strategy: str = "rolling") -> None:
        operator = self.deployment.operator
        spec, etag = await operator._spec()
        spec["launch_configs"] = [launch_config(zone, image) for zone in ZONES]
        how = {"replace": strategy, "drain_seconds": 30.0}
        assert await operator._change("PUT", f"/pools/{POOL}", spec, how, etag)

    async def _roll_out_a_bad_image(self) -> None:
        """Roll out an image that does not exist, and roll back once an alert says so."""
        await self._roll_out(BAD_IMAGE, "now")  # beside the former one it would fail only now and then
        await self._until(self._has("open_alert", "weight-calculator"), "an alert on the bad image")
        body = REASON | {"force": True, "drain_seconds": 30.0}
        assert await self.deployment.operator._change("POST", f"/pools/{POOL}/rollback", body, {})

    async def _end_roll_outs(self) -> None:
        """Declare the image of the day before at once, so that all revisions of this day are archived at its end."""
        await self._roll_out(IMAGES[0], "now")

    async def _add_a_team(self) -> None:
        """Declare a pool, in which nothing may be launched for a while."""
        deployment = self.deployment
        team = dict(deployment.body["worker_pools"][0]) | {"id": TEAM, "max_capacity": 1}
        team["launch_configs"] = [launch_config(ZONES[0], IMAGES[0]) | {"name": f"{TEAM}-a"}]
        spec, _ = await deployment.operator._spec()
        await deployment.operator.declare(deployment.body | {"worker_pools": [spec, team]})
        until = deployment.now("provisioner") + timedelta(minutes=5)
        stop = {"scope": "pool", "scope_id": TEAM, "until": until.isoformat()}
        await self._post("/stop-launching", REASON | stop)

    async def _remove_the_team(self) -> None:
        spec, _ = await self.deployment.operator._spec()
        await self.deployment.operator.declare(self.deployment.body | {"worker_pools": [spec]})

    async def _pause_and_freeze(self) -> None:
        for path in (f"/pools/{POOL}/pause", f"/pools/{POOL}/resume", f"/pools/{POOL}/freeze"):
            await self._post(path, REASON)
        await self._round()
        await self._post(f"/pools/{POOL}/unfreeze", REASON)

    async def _call_services(self) -> None:
        await self.callers.change_terms()
        await self.callers.hold_a_gang()
        await self.callers.share_a_slot()
        await self.callers.raise_signal()
        for service, database in self.deployment.databases.items():  # as each does once a minute
            async with database.acquire() as db:
                await tokens.record_uses(db, {"operator": self.deployment.now(service)})

    # Clouds

    async def _lose_and_find_instances(self) -> None:
        """End an instance that has a worker, and start one that nobody knows, which ends by itself."""
        cloud = self.deployment.cloud
        lost = next(name for name, machine in cloud.machines.items() if machine.worker_id)
        cloud.terminate_now(lost, "fault")
        batch_id = new_id()
        call = Call(
            at=cloud.now(),
            call_id=f"call-{len(cloud.facts)}",
            account=FIRST_ACCOUNT,
            token=batch_id,
            deployment=self.deployment.id,
            batch=batch_id,
            config=ZONES[0],
            count=1,
            zone=ZONES[0],
            instance_type="m5.large",
            image=IMAGES[0],
            request=batch_id,
        )
        told = msgspec.json.encode({"batch_id": batch_id, "secret": ""}).decode()
        request = CreateRequest(batch_id=batch_id, incarnation="", token=batch_id, count=1, config={}, user_data=told)
        (stranger,) = cloud.effect(call, request).instance_ids
        await self._until(self._has("orphan_instance"), "an orphan instance")
        cloud.terminate_now(stranger, "self")

    async def _break_machines(self) -> None:
        await self._report_an_error()
        await self._lose_and_find_instances()

    async def _report_an_error(self) -> None:
        """Report an error as the agent of a machine, which may have to start after the rollback."""
        await self._until(self._is_registered, "a registered machine")
        machine = next(machine for machine in self.deployment.cloud.machines.values() if machine.worker_id)
        headers = {"Authorization": f"Bearer {machine.token}"}
        body = {"kind": "DiskFull", "detail": "no space left on device"}
        answer = await self.deployment.http.post(f"/workers/{machine.worker_id}/error", json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    async def _lose_a_boot(self) -> None:
        """End an instance that boots; its console is read."""
        await self._until(self._ends_a_boot, "a machine that boots")
        await self._until(self._has("console_output"), "a machine that never registered")
        provisioner, providers = self.deployment.databases["provisioner"], {"simulated": self.deployment.cloud}
        await consoles.fetch_next(provisioner, settings=self.deployment.settings, providers=providers)

    async def _ends_a_boot(self) -> bool:
        """End an instance of the day's image that has not registered; False if there is none."""
        instance_id = await self.deployment.databases["provisioner"].fetchval(BOOTING, IMAGE)
        if instance_id is not None:
            self.deployment.cloud.terminate_now(instance_id, "fault")
        return instance_id is not None

    async def _lose_an_account(self) -> None:
        """Let an account stop answering, with a machine in it that hangs, until a person retires it; then it answers
        again."""
        deployment = self.deployment
        others = [zone for zone in ZONES if launch_config(zone, "")["account"] != SECOND_ACCOUNT]
        for config in others:  # so that it alone launches
            await self._post(f"/launch-configs/{config}/pause", REASON)
        await self._until(self._hangs, "a worker in the account")
        deployment.cloud.dead = {SECOND_ACCOUNT}
        await self._until(lambda: outages.command(deployment, "retire"), "an unreachable account")
        await self._until(self._has("unreachable_machine"), "an unreachable machine")
        deployment.cloud.dead = set()
        await outages.command(deployment, "reinstate")
        for config in others:
            await self._post(f"/launch-configs/{config}/resume", REASON)

    async def _hangs(self) -> bool:
        """Stop the agent of a machine in the second account, and terminate its worker; False if there is none."""
        cloud = self.deployment.cloud
        for name, machine in cloud.machines.items():
            if (
                machine.worker_id
                and not machine.refused
                and cloud.world.cloud.instances[name].account == SECOND_ACCOUNT
            ):
                machine.refused = True
                await self._post(f"/workers/{machine.worker_id}/terminate", REASON)
                return True
        return False

    def _has(self, table: str, service: str = "provisioner") -> Callable[[], Awaitable[bool]]:
        """True once a table has rows."""
        return lambda: self.deployment.databases[service].fetchval(f"SELECT count(*) > 0 FROM {table}")

    async def _is_registered(self) -> bool:
        """True if a machine has registered."""
        return any(machine.worker_id for machine in self.deployment.cloud.machines.values())

    async def _until(self, happens: Callable[[], Awaitable[bool]], what: str) -> None:
        for _ in range(ROUNDS_MAX):
            await self._round()
            if await happens():
                return
        raise AssertionError(f"the day has not had {what}")

    async def _without_passes(self) -> None:
        """Let time pass in which the provisioner makes no pass over its workers, as in an outage."""
        await self.deployment.pass_time(2 * STEPS_SECONDS)

    async def _post(self, path: str, body: Mapping[str, Any]) -> None:
        answer = await self.deployment.http.post(path, json=body, headers=HEADERS)
        assert answer.status_code == 200, f"{path}: {answer.text}"
