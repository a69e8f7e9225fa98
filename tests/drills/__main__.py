"""Drills of recovery on the whole system (`make drill`): ONLY=name,name, SEED, SPEED; one line each, its figures last.

Each runs the services, PostgreSQL and Kafka as processes of their own, and is judged by the simulator's ledger, the
topics and the rows, never by a counter of the services.
"""

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import asyncpg
import httpx2
import msgspec
from aiokafka.errors import KafkaError

from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.child import StartFailed
from slipway_local.servers.supervisor import Supervisor, run
from tests.drills import (
    bad_partition,
    broker_cut_off,
    dead_account,
    ec2_check,
    ec2_limits,
    ec2_spot,
    ec2_storm,
    image_keys,
    lost_grant,
    lowered_maximum,
    maximum_age,
    outage,
    poison,
    renamed_monitor,
    restore,
    stop,
    stuck_terminations,
    terraform_e2e,
    terraform_idle,
    two_deployments,
)
from tests.drills.harness import Harness, NotReached, Verdict


class Drill(msgspec.Struct, frozen=True):
    """A drill, its usual speed, and the mutant with which it has to fail. `asked`: it is only played by its name."""

    play: Callable[[Harness], Awaitable[Verdict]]
    speed: float
    mutant: str
    asked: bool = False


class Arguments(msgspec.Struct, frozen=True):
    """Arguments of a run. `speed` 0: that of each drill."""

    names: tuple[str, ...]
    seed: int
    speed: float


DRILLS: Final[Mapping[str, Drill]] = {
    "outage": Drill(outage.play, 100.0, "deadlines-by-the-clock"),
    "restore": Drill(restore.play_restore, 40.0, "numbers-used-again"),
    "failover": Drill(restore.play_failover, 40.0, "numbers-used-again"),
    "lost-grant": Drill(lost_grant.play, 40.0, "repetition-not-answered"),
    "two-deployments": Drill(two_deployments.play, 20.0, "one-id-for-all-deployments"),
    "stop": Drill(stop.play, 20.0, "repeat-is-no-start"),
    "dead-account": Drill(dead_account.play, 12.0, "unreachable-calls-not-given-up"),
    "broker-cut-off": Drill(broker_cut_off.play, 25.0, "cut-off-unnoticed"),
    "bad-partition": Drill(bad_partition.play, 40.0, "rounds-wait-for-every-partition"),
    "renamed-monitor": Drill(renamed_monitor.play, 150.0, "stale-sources-for-ever"),
    "image-keys": Drill(image_keys.play, 60.0, "image-forgotten-under-a-new-key"),
    "maximum-age": Drill(maximum_age.play, 300.0, "ages-ignored"),
    "poison": Drill(poison.play, 40.0, "client-decodes-by-itself"),
    "stuck-terminations": Drill(stuck_terminations.play, 120.0, "stuck-workers-all-replaced"),
    "lowered-maximum": Drill(lowered_maximum.play, 40.0, "surplus-waits-for-idleness"),
    "ec2-check": Drill(ec2_check.play, 20.0, "ec2-denial-unread", asked=True),
    "ec2-limits": Drill(ec2_limits.play, 240.0, "known-launches-uncounted", asked=True),
    "ec2-spot": Drill(ec2_spot.play, 20.0, "notice-raises-no-signal", asked=True),
    "terraform-idle": Drill(terraform_idle.play, 1.0, "contact-is-unresponsive", asked=True),
    "terraform-e2e": Drill(terraform_e2e.play, 10.0, "found-not-imported", asked=True),
    "ec2-storm": Drill(ec2_storm.play, 20.0, "not-looked-up", asked=True),
}
ERRORS: Final = (StartFailed, NotReached, httpx2.HTTPError, KafkaError, OSError, asyncpg.PostgresError)


def parse_arguments(environment: Mapping[str, str], drills: Sequence[str] = tuple(DRILLS)) -> Arguments:
    """Read the arguments from the environment, for these drills; raises ValueError with the cause and the accepted
    values."""
    names = tuple(name for name in (environment.get("ONLY") or "").split(",") if name)
    if unknown := set(names) - set(drills):
        raise ValueError(
            f"ONLY={','.join(names)}: unknown {', '.join(sorted(unknown))}; drills are {', '.join(drills)}"
        )
    try:
        seed, speed = int(environment.get("SEED") or 1), float(environment.get("SPEED") or 0)
    except ValueError as error:
        given = f"SEED={environment.get('SEED', '')} SPEED={environment.get('SPEED', '')}"
        raise ValueError(f"{given}: SEED has to be an integer, and SPEED a number such as 40") from error
    if speed < 0:
        raise ValueError(f"SPEED={speed:g}: expected a positive number, or none for that of each drill")
    return Arguments(
        names or tuple(name for name in drills if name not in DRILLS or not DRILLS[name].asked), seed, speed
    )


async def drill(name: str, arguments: Arguments) -> bool:
    """Play one drill and print its line; True if its claim holds."""
    chosen, talks = DRILLS[name], len(arguments.names) < len(DRILLS)
    return await judge(name, chosen.play, seed=arguments.seed, speed=arguments.speed or chosen.speed, talks=talks)


async def judge(
    name: str, play: Callable[[Harness], Awaitable[Verdict]], *, seed: int, speed: float, talks: bool = True
) -> bool:
    """Play on a new deployment and print the verdict on a line; True if there are no problems. `talks`: lines of the
    harness are printed, too."""
    began = monotonic_seconds()
    try:
        async with (
            Supervisor() as supervisor,
            Harness(
                supervisor, seed=seed, speed=speed, log=lambda text: print(text, flush=True) if talks else None
            ) as harness,
        ):
            verdict = await play(harness)
    except ERRORS as error:
        verdict = Verdict("", (str(error) or repr(error),))
    for problem in verdict.problems:
        print(f"  PROBLEM {problem}", flush=True)
    mark = "BROKEN" if verdict.problems else "ok"
    print(f"{name} {mark}: {verdict.figures} ({monotonic_seconds() - began:.0f} s, SEED={seed})", flush=True)
    return not verdict.problems


async def drills(arguments: Arguments) -> int:
    """Play the drills one after another; return the exit code."""
    held = [await drill(name, arguments) for name in arguments.names]
    return 0 if all(held) else 1


def main() -> int:
    try:
        arguments = parse_arguments(os.environ)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs every attempt until the broker has started
    return run(lambda _: drills(arguments))


if __name__ == "__main__":
    sys.exit(main())
