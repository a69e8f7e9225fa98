"""`make lease-harm`: commands under leases on a real broker behind a network of 0 to 80 ms, while it is well, slow,
frozen, killed, and refuses or delays them. A lease paces work and never harms it.

ONLY=phase,phase plays some phases, N is the number of commands of each, SEED seeds the latency and the instants of
starts. The judgement rests on what the commands recorded themselves and on the broker's rows.
"""

import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.supervisor import Supervisor, run
from tests.lease_harm.judge import Expected, Figures, judge
from tests.lease_harm.world import World
from tests.support.folders import temporary_folder

COMMANDS: Final = 20
ALWAYS: Final = ("--fail-open", "always")
REVOKED: Final = "ben"
SPREAD_SECONDS: Final = 30.0  # admission.SPREAD_SECONDS


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Phase: the fault while its commands run, their options, and what is expected of them."""

    fault: Callable[[World, str], AbstractAsyncContextManager[object]]
    options: tuple[str, ...] = ALWAYS
    declared: bool = True
    owner: str = "ann"
    expected: Expected


def well(world: World, pool: str) -> AbstractAsyncContextManager[object]:
    return nullcontext()


@asynccontextmanager
async def slow(world: World, pool: str) -> AsyncIterator[None]:
    world.wire.slow_seconds = 8.0
    yield
    world.wire.slow_seconds = 0.0


@asynccontextmanager
async def frozen(world: World, pool: str) -> AsyncIterator[None]:
    world.supervisor.pause(world.broker)
    yield
    world.supervisor.resume(world.broker)


@asynccontextmanager
async def killed(world: World, pool: str) -> AsyncIterator[None]:
    await world.supervisor.kill(world.broker)
    yield
    await world.supervisor.restart(world.broker)


@asynccontextmanager
async def drained(world: World, pool: str) -> AsyncIterator[None]:
    await world.call("POST", f"/lease-pools/{pool}/drain", {"reason": "make lease-harm"})
    yield


@asynccontextmanager
async def full(world: World, pool: str) -> AsyncIterator[None]:
    """All units are held by somebody else."""
    wanted = {"request_id": "all", "units": 50}
    lease = await world.call("POST", f"/lease-pools/{pool}/leases", wanted, "cid")
    yield
    released = {"fencing_token": lease["fencing_token"]}
    await world.call("POST", f"/leases/{lease['lease_id']}/release", released, "cid")


@asynccontextmanager
async def revoked(world: World, pool: str) -> AsyncIterator[None]:
    world.revoke(REVOKED)
    yield


# Spans are those of `admission.span` for these waits. In an outage a slot of the last pace may come first, but not
# before 10 s (`--unavailable-after`), which is half of the wait.
WAIT_SECONDS: Final = 20
OUTAGE: Final = Expected(span=(WAIT_SECONDS / 2, WAIT_SECONDS), unleased_by="unavailable", unheard=True)
WAIT: Final = (*ALWAYS, "--max-wait", f"{WAIT_SECONDS}s")
SHORT_SECONDS: Final = 5
PHASES: Final[Mapping[str, Phase]] = {
    "well": Phase(fault=well, options=(), expected=Expected(leased=True)),
    "slow": Phase(fault=slow, options=(*ALWAYS, "--max-wait", "2m"), expected=Expected(leased=True)),
    "frozen": Phase(fault=frozen, options=WAIT, expected=OUTAGE),
    "killed": Phase(fault=killed, options=WAIT, expected=OUTAGE),
    "drained": Phase(
        fault=drained,
        options=(*ALWAYS, "--max-wait", f"{SHORT_SECONDS}s"),
        expected=Expected(span=(SHORT_SECONDS, SHORT_SECONDS + SPREAD_SECONDS), unleased_by="max_wait"),
    ),
    "full": Phase(
        fault=full,
        options=WAIT,
        expected=Expected(span=(WAIT_SECONDS / 2, WAIT_SECONDS), unleased_by="max_wait"),
    ),
    "undeclared": Phase(fault=well, declared=False, expected=Expected(span=(0.0, SPREAD_SECONDS), charged=False)),
    "revoked": Phase(fault=revoked, owner=REVOKED, expected=Expected(span=(0.0, SPREAD_SECONDS), charged=False)),
}
OWN_TERMS: Final = {"full": {"hold_seconds": 300.0, "ttl_seconds": 300.0}}


async def play(world: World, name: str, count: int) -> Figures:
    """Play one phase in a pool of its own."""
    phase = PHASES[name]
    secret = world.secrets[phase.owner]
    async with phase.fault(world, name):
        runs = await world.run_all(name, name, count, phase.options, secret)
    if phase.expected.charged:
        await world.next_process("well", world.secrets["ann"])
    held = await world.held(name)
    return judge(runs, phase.expected, await world.rows(runs), world.wire.renewals, held)


async def harm(supervisor: Supervisor, names: tuple[str, ...], seed: int, count: int) -> int:
    with temporary_folder() as folder:
        world = World(supervisor, folder, seed)
        try:
            await world.open({name: OWN_TERMS.get(name, {}) for name, one in PHASES.items() if one.declared})
            print(f"started; SEED={seed} N={count}", flush=True)
            figures = []
            for name in names:
                began = monotonic_seconds()
                figures.append(found := await play(world, name, count))
                for problem in found.problems:
                    print(f"  PROBLEM {problem}", flush=True)
                mark = "BROKEN" if found.problems else "ok"
                print(f"{name} {mark}: {found.text} ({monotonic_seconds() - began:.0f} s)", flush=True)
        finally:
            world.close()
    runs, ran, killed = (sum(getattr(one, part) for one in figures) for part in ("runs", "ran", "killed"))
    wrong = sum(len(one.problems) for one in figures)
    codes = f"{wrong} problems" if wrong else "exit codes theirs"
    print(f"commands run {ran} of {runs}, killed {killed}, {codes}")
    return 1 if wrong else 0


def parse_arguments(environment: Mapping[str, str]) -> tuple[tuple[str, ...], int, int]:
    """Phases, seed and number of commands; raises ValueError with the cause and the accepted values."""
    names = tuple(name for name in (environment.get("ONLY") or "").split(",") if name)
    if unknown := set(names) - set(PHASES):
        raise ValueError(
            f"ONLY={','.join(names)}: unknown {', '.join(sorted(unknown))}; phases are {', '.join(PHASES)}"
        )
    given = {name: environment.get(name) or "" for name in ("SEED", "N")}
    if not all(value.isdecimal() for value in given.values() if value):
        raise ValueError(f"SEED={given['SEED']} N={given['N']}: both have to be whole numbers")
    return names or tuple(PHASES), int(given["SEED"] or 1), int(given["N"] or COMMANDS)


def main() -> int:
    try:
        arguments = parse_arguments(os.environ)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs every attempt until the broker has started
    return run(lambda supervisor: harm(supervisor, *arguments))


if __name__ == "__main__":
    sys.exit(main())
