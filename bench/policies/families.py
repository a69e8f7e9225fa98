"""Families: scenarios that differ by boot time, demand and kind of change, and are judged by the same claim.

The arguments BOOTS, RATE and BURST replace the boot times, the steady demand and the size of the burst.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from bench.policies.scenario import TICKS_SECONDS, Fault, ImageChange, Push, Scenario, checked

CONFIGS: Final = (0, 1, 2, 3)
CHANGE_MINUTE: Final = 60.0
WAIT_HOURS: Final = 1.0  # after a change to a good image: until the tasks of its first 15 minutes have been served
AFTER_HOURS: Final = 2.0  # of a bad image, to the end of the run
IMAGES: Final = "new-image"
ROLL_OUT: Final = "bad-roll-out"
THIRD, MOSTLY = "third-bad", "mostly-bad"
FRONTIER: Final = "frontier"
DEMO: Final = "demo"
PARTLY_BAD_BOOTS: Final = (90.0,)
RULES: Final[Mapping[str, Mapping[str, float]]] = {
    "new-window-8": {"new_boot_window": 8.0},
    "doubtful": {"bad_prior": 0.5, "bad_success": 0.3},
    "beta-alone": {"bad_prior": 1e-6},
    "ended-boots": {"slow_factor": 1e6},
}
"""Other rules for windows, by changed coefficients: a smaller first window; an image that is bad as often as fine,
and boots now and then if it is bad; only fine images; no evidence from boots in progress."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Median boot times in seconds (none: those of the family), steady launches per minute, and tasks of a burst."""

    boots: Sequence[float] = ()
    rate: float = 24.0
    burst: int = 100


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Scenarios by sizes, with the policies that they compare and their own boot times. `in_full`: FULL=1
    includes them."""

    policies: Sequence[str]
    made: Callable[[Sizes], list[Scenario]]
    boots: Sequence[float] = (20.0, 90.0, 480.0)
    in_full: bool = True

    def scenarios(self, sizes: Sizes) -> list[Scenario]:
        return self.made(sizes if sizes.boots else msgspec.structs.replace(sizes, boots=self.boots))


def _new_images(sizes: Sizes) -> list[Scenario]:
    """A good image that is new at the start of the run, or replaces another; with steady demand, with a burst of tasks
    on top, and with that burst alone."""
    found = []
    for boot in sizes.boots:
        for kind, minute, changes in (
            ("cold", 0.0, ()),
            ("roll-out", CHANGE_MINUTE, (ImageChange(minute=CHANGE_MINUTE, configs=CONFIGS),)),
        ):
            push = Push(minute=minute, tasks=sizes.burst)
            for more, pushes, rate in (("", (), sizes.rate), ("-burst", (push,), sizes.rate), ("-alone", (push,), 0.0)):
                if kind == "roll-out" and not rate:
                    continue
                found.append(
                    _scenario(
                        f"{IMAGES}-{kind}-{boot:g}s{more}",
                        f"a new image, {kind}, boots of {boot:g} s, "
                        + (f"{rate:g} launches a minute" if rate else "no demand")
                        + (f", a burst of {sizes.burst}" if pushes else ""),
                        sizes,
                        boot_seconds=boot,
                        hours=minute / 60 + WAIT_HOURS,
                        launches_per_minute=rate,
                        pushes=pushes,
                        image_changes=changes,
                    )
                )
    return found


def _bad_roll_outs(sizes: Sizes) -> list[Scenario]:
    """An image that never registers replaces a healthy one after an hour."""
    change = ImageChange(minute=CHANGE_MINUTE, configs=CONFIGS, unregistered=1.0)
    return [
        _scenario(
            f"{ROLL_OUT}-{boot:g}s" + (f"-{replicas}r" if replicas > 1 else ""),
            f"after 1 h an image that never registers, boots of {boot:g} s"
            + (f", {replicas} replicas" if replicas > 1 else ""),
            sizes,
            boot_seconds=boot,
            hours=CHANGE_MINUTE / 60 + AFTER_HOURS,
            image_changes=(change,),
            replicas=replicas,
        )
        for boot in sizes.boots
        for replicas in (1, 3)
    ]


def _partly_bad(name: str, probability: float) -> Callable[[Sizes], list[Scenario]]:
    """An image of whose boots a part never registers."""
    return lambda sizes: [_bad(f"{name}-{boot:g}s", probability, boot, sizes) for boot in sizes.boots]


def _bad(name: str, probability: float, boot: float, sizes: Sizes) -> Scenario:
    return _scenario(
        name,
        f"{probability:.0%} of an image's boots never register, boots of {boot:g} s",
        sizes,
        boot_seconds=boot,
        hours=AFTER_HOURS,
        faults=(Fault(kind="unregistered", configs=CONFIGS, probability=probability, scope="image"),),
    )


def _frontier(sizes: Sizes) -> list[Scenario]:
    """New images from the start of the run: good ones, and ones of whose boots 30 to 100 % never register."""
    good = [scenario for scenario in _new_images(sizes) if not scenario.image_changes]
    renamed = [
        msgspec.structs.replace(one, name=one.name.replace(f"{IMAGES}-cold", f"{FRONTIER}-good")) for one in good
    ]
    return renamed + [
        _bad(f"{FRONTIER}-{percent}-{boot:g}s", percent / 100, boot, sizes)
        for boot in sizes.boots
        for percent in (30, 45, 60, 80, 90, 100)
    ]


def _demo(sizes: Sizes) -> list[Scenario]:
    """An hour as in `make demo`: three zones of one image, a burst of tasks and smaller ones later, and a quarter of an
    hour in which one zone has no capacity."""
    pushes = [Push(minute=0.0, tasks=sizes.burst)]
    pushes += [Push(minute=minute, tasks=sizes.burst // 4) for minute in range(5, 60, 5)]
    return [
        _scenario(
            f"{DEMO}-{boot:g}s",
            f"an hour with bursts, one of 3 zones out for 15 min, boots of {boot:g} s",
            sizes,
            boot_seconds=boot,
            hours=1.0,
            configs=3,
            pushes=tuple(pushes),
            faults=(Fault(kind="refused", configs=(1,), begin_minute=15, end_minute=30),),
        )
        for boot in sizes.boots
    ]


def _scenario(name: str, about: str, sizes: Sizes, boot_seconds: float, **fields: object) -> Scenario:
    """Scenario of a family. Ticks are at most a tenth of a boot where they may be: the provisioner plans on each event,
    and a longer tick would add to the wait."""
    tick = next((tick for tick in TICKS_SECONDS if tick <= boot_seconds / 10), TICKS_SECONDS[-1])
    given = {"launches_per_minute": sizes.rate, "configs": len(CONFIGS), "background": 0.0, "image": "shared"} | fields
    return checked(Scenario(name=name, about=about, boot_seconds=boot_seconds, tick_seconds=tick, **given))  # type: ignore[arg-type]


FAMILIES: Final = {
    IMAGES: Family(policies=("no-windows", "slipway"), made=_new_images),
    ROLL_OUT: Family(policies=("slipway",), made=_bad_roll_outs),
    THIRD: Family(policies=("before", "slipway"), made=_partly_bad(THIRD, 0.3), boots=PARTLY_BAD_BOOTS),
    MOSTLY: Family(policies=("before", "slipway"), made=_partly_bad(MOSTLY, 0.8), boots=PARTLY_BAD_BOOTS),
    FRONTIER: Family(policies=("before", *RULES, "slipway", "no-windows"), made=_frontier, in_full=False),
    DEMO: Family(policies=("rfc191", "slipway"), made=_demo, boots=(90.0,), in_full=False),
}
"""Families by name. The rules of `before` trip every image whose boots take more than five minutes, and launch next to
nothing of it; so partly bad images are compared with them at boots of 90 s."""


def family_of(name: str) -> str:
    """Family of the scenario `name`; empty if it has none."""
    return next((family for family in FAMILIES if name.startswith(f"{family}-")), "")
