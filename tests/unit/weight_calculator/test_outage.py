"""A zone that is out for ten minutes, an image that never works: how soon is it avoided, what does it cost, how soon is
it used again.

The production core on a virtual clock; around it a toy that launches by the records, which it sees late.
"""

import heapq
import math
from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.events.weight import WeightChanged
from slipway_common.events.worker import Scope, Stage, WorkerEvent
from tests.worlds import T0, Story, claimed, config, fails, launched, refused, registered, requested, stopped, stopping

OUT_FROM, OUT_UNTIL, END = 240.0, 840.0, 1740.0
LAUNCH_EVERY_SECONDS = 2.5
ZONES = ("zone-a", "zone-b", "zone-c")


class Toy:
    """Things that happen at their time, in seconds; records are seen `lag_seconds` after what changed them."""

    def __init__(self, *configs: LaunchConfigState, lag_seconds: float) -> None:
        self.story = Story(*configs)
        self.configs = {c.launch_config_id: c for c in configs}
        self.lag_seconds = lag_seconds
        self.rows = dict(self.story.world.rows)
        self.seen = {id_: self.story.record(id_, 0) for id_ in self.configs}
        self.spent = dict.fromkeys(self.configs, 0)
        self.launches: list[tuple[float, str]] = []
        self.agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = count()

    def run(self, end: float) -> None:
        self.later(0, self.tick)
        while self.agenda and self.agenda[0][0] < end:
            at, _, act = heapq.heappop(self.agenda)
            act(at)

    def later(self, at: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self.agenda, (at, next(self.order), act))

    def tick(self, at: float) -> None:
        self.later(at + 1, self.tick)
        due = self.story.world.due()
        if due is not None and due <= T0 + at:
            self.story.advance(at)
            self.publish(at)
        elif at % 30 == 0:
            self.publish(at, everything=True)  # what time has done to the weights

    def publish(self, at: float, *, everything: bool = False) -> None:
        """Records of configs of which something has changed, or of all."""
        rows, self.rows = self.rows, dict(self.story.world.rows)
        new = {
            id_: self.story.record(id_, at)
            for id_ in self.configs
            if everything or any(rows.get(key) is not self.rows.get(key) for key in self.story.world.configs[id_].keys)
        }
        self.later(at + self.lag_seconds, lambda _: self.seen.update(new))

    def tell(self, at: float, *events: WorkerEvent) -> None:
        def act(at: float) -> None:
            self.story.fold(at, *events)
            self.publish(at)

        self.later(at, act)

    def permit(self) -> tuple[str, int] | None:
        """A probe that may be launched; it is spent with that."""
        for id_, seen in self.seen.items():
            if seen.probe_ready and seen.probe_permit and seen.probe_permit > self.spent[id_]:
                self.spent[id_] = seen.probe_permit
                return id_, seen.probe_permit
        return None


class Zones(Toy):
    """Three equal zones, of which zone-b is out for ten minutes; a launch every 2.5 s."""

    def __init__(self, seed: int, lag_seconds: float) -> None:
        # The jitter of probes hangs on the id.
        super().__init__(*(config(f"{zone}-{seed}", zone=zone) for zone in ZONES), lag_seconds=lag_seconds)
        self.rng = Random(seed)
        self.later(0, self.launch)
        self.run(END)

    def launch(self, at: float) -> None:
        self.later(at + LAUNCH_EVERY_SECONDS, self.launch)
        config_id, permit = self.permit() or (self.choose(), None)
        c, worker_id, called = self.configs[config_id], f"w-{len(self.launches)}", at + self.lag_seconds
        self.launches.append((at, c.zone))
        self.tell(at, requested(c, worker_id, permit))
        if c.zone == "zone-b" and OUT_FROM <= called < OUT_UNTIL:
            return self.tell(called, refused(c, Scope.CAPACITY, worker_id, permit))
        boot = 90 * math.exp(self.rng.gauss(0, 0.35))
        self.tell(called, launched(c, worker_id, permit))
        self.tell(called + boot, registered(c, worker_id, permit, seconds=boot))
        return self.tell(called + boot + 5, claimed(c, worker_id, permit))

    def choose(self) -> str:
        opened = [id_ for id_, seen in self.seen.items() if seen.state == "open"]
        return self.rng.choices(opened, [self.seen[id_].weight for id_ in opened])[0]

    def share(self, since: float, until: float) -> float:
        zones = [zone for at, zone in self.launches if since <= at < until]
        return zones.count("zone-b") / len(zones)

    def recovered_after_seconds(self) -> float:
        """From the zone's return until the end of the first two minutes in which it got a fifth of the launches."""
        ends = range(int(OUT_UNTIL) + 120, int(END) + 1, 5)
        return next((end - OUT_UNTIL for end in ends if self.share(end - 120, end) >= 0.2), math.inf)


@pytest.mark.parametrize("lag_seconds", [2.0, 12.0])
def test_outage_is_avoided_within_two_minutes_and_over_within_fifteen(lag_seconds: float) -> None:
    """For every seed: a third before, at most a fortieth from minute 2 on, a fifth again in time."""
    toys = [Zones(seed, lag_seconds) for seed in range(4)]
    assert 0.25 < sum(toy.share(60, OUT_FROM) for toy in toys) / len(toys) < 0.42
    assert max(toy.share(OUT_FROM + 120, OUT_UNTIL) for toy in toys) <= 0.025
    assert max(toy.recovered_after_seconds() for toy in toys) <= 900
    # It stays: the rest of the time zone-b keeps well above that fifth.
    assert sum(toy.share(END - 120, END) for toy in toys) / len(toys) > 0.25


def test_same_seed_same_story() -> None:
    assert Zones(7, 2.0).launches == Zones(7, 2.0).launches


class BadImage(Toy):
    """Configs whose machines run and never register; as many launches as windows let through. A window is a level: what
    is under way, and failures that no seen record has folded; that of the image counts over all configs."""

    def __init__(self, *configs: LaunchConfigState, timeout_seconds: float, lag_seconds: float = 1.0) -> None:
        super().__init__(*configs, lag_seconds=lag_seconds)
        self.timeout_seconds = timeout_seconds
        self.under_way = {id_: {"launch": 0, "boot": 0} for id_ in self.configs}
        self.failed = dict.fromkeys(self.configs, 0)
        self.later(0, self.launch)
        self.run(7200)

    def launch(self, at: float) -> None:
        self.later(at + 1, self.launch)
        while (probe := self.permit()) is not None:
            self.start(at, *probe)
        for id_, seen in self.seen.items():
            while seen.state == "open" and self.room(id_, seen) > 0:
                self.start(at, id_)

    def room(self, id_: str, seen: WeightChanged) -> int:
        boots = {c: sum(self.under_way[c].values()) + self.failed[c] for c in self.configs}
        boots = {c: level - self.seen[c].stages["boot"].failures_folded for c, level in boots.items()}
        image = next((s.window for s in seen.shared if s.key.startswith("image/") and s.stage == "boot"), 8)
        return min(
            seen.stages["launch"].window - self.under_way[id_]["launch"],
            seen.stages["boot"].window - boots[id_],
            image - sum(boots.values()),
        )

    def start(self, at: float, id_: str, permit: int | None = None) -> None:
        c, worker_id = self.configs[id_], f"w-{len(self.launches)}"
        self.launches.append((at, id_))
        self.under_way[id_]["launch"] += 1
        self.tell(at, requested(c, worker_id, permit))

        def reply(_: float) -> None:
            self.under_way[id_]["launch"] -= 1
            self.under_way[id_]["boot"] += 1

        def give_up(_: float) -> None:
            self.under_way[id_]["boot"] -= 1
            self.failed[id_] += 1

        self.later(at + 2, reply)
        self.tell(at + 2, launched(c, worker_id, permit))
        end = at + 2 + self.timeout_seconds
        self.later(end, give_up)
        outcome = fails(Scope.IMAGE, Stage.BOOT, key=c.image_revision)
        self.tell(end, stopping(c, outcome, worker_id, permit), stopped(c, worker_id, permit))


@pytest.mark.parametrize(("timeout_seconds", "most"), [(60.0, 30), (900.0, 25), (4 * 86_400.0, 25)])
@pytest.mark.parametrize("accounts", [1, 9])
def test_a_bad_image_costs_25_machines_in_two_hours(timeout_seconds: float, most: int, accounts: int) -> None:
    """Whatever the time-out of a registration; in one config, and in an image shared by nine of nine accounts. The
    sooner a probe has failed, the more of them there are."""
    configs = [config(f"c{n}", pool=f"p{n}", account=f"sim-{n}") for n in range(accounts)]
    toy = BadImage(*configs, timeout_seconds=timeout_seconds)
    assert 8 <= len(toy.launches) <= most
    assert toy.launches[-1][0] > 6000, "it goes on probing"


def test_a_bad_image_costs_25_machines_with_records_a_minute_late() -> None:
    configs = [config(f"c{n}", pool=f"p{n}", account=f"sim-{n}") for n in range(9)]
    assert len(BadImage(*configs, timeout_seconds=900.0, lag_seconds=60.0).launches) <= 25
