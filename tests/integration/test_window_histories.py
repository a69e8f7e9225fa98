"""Random histories of starts and weight records: no window is exceeded, whatever their order."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from slipway_api.events.lease import LeaseGranted, LeaseRequested
from slipway_api.events.lifecycle import State
from slipway_api.events.scopes import Key
from slipway_api.events.weight import StageHealth
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerEvent, WorkerRequested
from slipway_common.base.revisions import name_of
from slipway_provisioner.domain.workers import Worker, claimed, stopping
from slipway_provisioner.providers.port import Refused
from slipway_provisioner.store import pools, workers
from tests.support.provisioner import Provisioner, administrator, after, report
from tests.support.window_histories import BOOT_FAILED, IMAGE, NO_CAPACITY, QUOTA, end, record, shared, two_pools


class Truth:
    """Levels derived from published events and folded failures, independent of the planner's counts."""

    def __init__(self) -> None:
        self.under_way: dict[str, tuple[str, str]] = {}  # worker → config, stage
        self.failed: Counter[tuple[str, str]] = Counter()
        self.folded: Counter[tuple[str, str]] = Counter()
        self.probes: set[str] = set()

    def apply(self, event: WorkerEvent) -> None:
        worker, config = event.worker_id, name_of(event.launch_config_id)
        outcome: Outcome | None = getattr(event, "outcome", None)
        known = self.under_way.get(worker)
        if outcome is not None and outcome.result is Result.FAILED:
            self.failed[config, outcome.stage.value] += 1
            self.under_way.pop(worker, None)
        elif isinstance(event, WorkerRequested):
            self.under_way[worker] = config, "launch"
        elif outcome is not None and outcome.result is Result.OK:
            order = ["launch", "boot", "claim", ""]
            after_ = order[order.index(outcome.stage.value) + 1]
            # A worker that registered before the reply keeps its stage.
            if after_ and known is not None and order.index(after_) > order.index(known[1]):
                self.under_way[worker] = config, after_
            elif not after_:
                self.under_way.pop(worker, None)
        elif type(event).__name__ in {"WorkerStopping", "WorkerStopped", "WorkerLost"}:
            self.under_way.pop(worker, None)

    def level(self, configs: Sequence[str], stage: str) -> int:
        order = ["launch", "boot", "claim"]
        reached = order[: order.index(stage) + 1]
        arriving = sum(config in configs and at in reached for config, at in self.under_way.values())
        return arriving + sum(max(0, self.failed[c, stage] - self.folded[c, stage]) for c in configs)


CONFIGS: Final = {"zone-a": "linux", "zone-b": "other", "zone-c": "other"}
OF_IMAGE: Final = ["zone-a", "zone-b"]
WINDOWS: Final = {"launch": 4, "boot": 5, "claim": 6}
TOGETHER: Final = {(IMAGE, "boot"): 7, (IMAGE, "claim"): 9, (QUOTA, "launch"): 6}
ROUNDS: Final = 28
# How soon the levels come near the windows depends on the interleaving of the planners, so a history may be longer.
ROUNDS_MAX: Final = 400
FAILURES: Final = 20


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_window_is_exceeded(provisioner: Provisioner, tmp_path: Path, seed: int) -> None:
    """Two pools with one image, three concurrent planners, calls that fail, machines that never register or claim, and
    late records: starts in flight plus unfolded failures never exceed a window. A history goes on until they have come
    near each window."""
    chance, truth, highest = random.Random(seed), Truth(), Counter[tuple[Key, str]]()
    await provisioner.declare(two_pools())
    shares = tuple(shared(key, stage, 1, size) for (key, stage), size in TOGETHER.items())
    requests: list[LeaseRequested] = []

    async def fold(revision: int) -> None:
        """A weight record of what was known some time ago."""
        for place, count in truth.failed.items():
            truth.folded[place] = chance.randint(truth.folded[place], count)
        await provisioner.weights(
            *(
                record(
                    name,
                    pool_id=pool_id,
                    shared=shares,
                    stages={
                        stage: StageHealth(
                            probability=0.9,
                            successes=0,
                            failures=0,
                            window=size,
                            failures_folded=truth.folded[name, stage],
                        )
                        for stage, size in WINDOWS.items()
                    },
                )
                for name, pool_id in CONFIGS.items()
            ),
            revision=revision,
        )

    async def listen() -> None:
        for event in await provisioner.events():
            if isinstance(event, WorkerEvent):
                truth.apply(event)
            elif isinstance(event, LeaseRequested):
                requests.append(event)
        for name in CONFIGS:
            for stage, size in WINDOWS.items():
                assert truth.level([name], stage) <= size, (name, stage)
        for (key, stage), size in TOGETHER.items():
            highest[key, stage] = max(highest[key, stage], truth.level(OF_IMAGE, stage))
            assert truth.level(OF_IMAGE, stage) <= size, (key, stage)

    async def some(state: State) -> list[Worker]:
        return [w for w in await provisioner.workers() if w.state is state and chance.random() < 0.4]

    async def machines() -> None:
        for worker in await some(State.STARTING):
            if chance.random() < 0.4:
                await end(provisioner, [worker], BOOT_FAILED)
            else:
                await provisioner.register(worker.instance_id or "", worker.batch_id)
        async with provisioner.database.acquire() as db, db.transaction():
            now = await pools.now(db)
            running = await workers.lock(db, sorted(worker.id for worker in await some(State.RUNNING)))
            fates = [
                claimed(w, "t", "q", now) if chance.random() < 0.7 else stopping(w, "test", now, CLAIM_FAILED)
                for w in running
                if w.first_claimed_at is None
            ]
            await workers.save(db, fates)

    async def plans() -> None:
        for _ in range(3):
            await provisioner.plan_step()

    def severe() -> bool:
        near = all(highest[share] >= size - 2 for share, size in TOGETHER.items())
        return near and sum(truth.failed.values()) >= FAILURES

    await fold(1)
    async with administrator(provisioner, tmp_path) as client:
        for round_ in range(2, ROUNDS_MAX):
            if round_ >= 2 + ROUNDS and severe():
                break
            await provisioner.set_clock(float(round_))
            reports = [report(chance.randint(0, 40), at=round_, pool_id=pool) for pool in ("linux", "other")]
            await provisioner.demand(*reports)
            await asyncio.gather(plans(), plans(), plans(), machines())
            await listen()
            asked, requests[:] = requests[:], []
            grants: list[LeaseGranted] = [provisioner.granted(r, expires_at=after(9e5)) for r in asked]
            await provisioner.leases(*grants)
            provisioner.cloud.script.extend(Refused(NO_CAPACITY, "no") if chance.random() < 0.2 else 1 for _ in grants)
            await asyncio.gather(provisioner.launch(), plans(), plans())
            await listen()
            for worker in await some(State.STARTING):
                if chance.random() < 0.2:
                    await client.post(f"/workers/{worker.id}/terminate", json={"reason": "drill"})
            await provisioner.sweep_now()
            await asyncio.gather(plans(), plans(), machines())
            await listen()
            if chance.random() < 0.5:
                await fold(round_)
            await listen()
    assert severe(), (highest, truth.failed)


CLAIM_FAILED: Final = Outcome(Stage.CLAIM, Result.FAILED, Scope.IMAGE, "linux-1", "never_claimed")
