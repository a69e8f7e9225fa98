"""Simulator of launches on a virtual clock.

Random numbers come from one stream per purpose, derived from the seed, so that all policies face the same arrivals and
outages. Each tick (10 s or less): outcomes due by now; arrivals; tries from the backlog, each accepted or refused at
once and known 2 s later. The task of a refused try then returns to the backlog. An accepted try boots the newest image
of its config, or of the revision that the policy names; a failed boot is known at the registration time-out, and its
task returns to the backlog. Machines take the task that has waited longest.
"""

from collections import deque
from heapq import heappop, heappush
from math import exp, log
from random import Random
from typing import Final

import msgspec

from bench.policies.conditions import Conditions, arrivals, either
from bench.policies.policy import Policy
from bench.policies.scenario import ANSWER_SECONDS, TRIES_MAX

BOOT_SIGMA: Final = 0.35
LIFE_SECONDS_MEAN: Final = 1800.0

REFUSED, REGISTERED, UNREGISTERED, ENDED = range(4)


class Run(msgspec.Struct, kw_only=True):
    """Record of one run. Lists are per config, then per tick; `failing` is per tick at which a failure was known.

    Tries are accepted or refused; of the accepted, some never register: `accepted` = registered + unregistered +
    booting. `arrived` = registered + waiting, where waiting tasks are in the backlog or have a start in progress.
    `coming` are the tasks that arrive per tick; they are served in this order, so `waits` has it too.
    """

    conditions: Conditions
    seed: int
    accepted: list[list[int]]
    refused: list[list[int]]
    failing: list[int]
    coming: list[int]
    waits: list[float]
    arrived: int = 0
    registered: int = 0
    unregistered: int = 0
    booting: int = 0
    waiting: int = 0
    waiting_seconds: float = 0.0
    on_bad_image: int = 0
    seconds: float = 0.0  # wall time, filled in by the caller


def simulate(conditions: Conditions, policy: Policy, seed: int) -> Run:
    """Run one policy under given conditions."""
    scenario, ticks, configs = conditions.scenario, conditions.scenario.ticks, conditions.configs
    tick_seconds = scenario.tick_seconds
    luck, boots, lives, flaws = (Random(f"{purpose}/{seed}") for purpose in ("luck", "boots", "lives", "flaws"))
    revisions, timeout = conditions.revisions, scenario.registration_timeout_seconds
    log_medians = [log(revision.boot_seconds) for revision in revisions]
    changes = deque(range(configs, len(revisions)))
    newest = list(range(configs))
    coming = arrivals(conditions, seed)
    refusal, unregistered, background = conditions.refusal, conditions.unregistered, scenario.background
    caps = [conditions.caps.get(config) for config in range(configs)]
    held = [0] * configs
    run = Run(
        conditions=conditions,
        seed=seed,
        accepted=[[0] * ticks for _ in range(configs)],
        refused=[[0] * ticks for _ in range(configs)],
        failing=[0] * ticks,
        coming=coming,
        waits=[],
    )
    accepted, refused, failing = run.accepted, run.refused, run.failing
    queue: deque[list[float]] = deque()  # arrival and how many of it still wait, oldest first
    due: list[tuple[float, int, int, int, float]] = []
    answers: list[tuple[int, int, str]] = []
    backlog = under_way = workers = 0
    last_tick = ticks - 1

    def pass_outcomes(until: float) -> None:
        nonlocal backlog, under_way
        while due and due[0][0] <= until:
            at, kind, chosen, worker, boot_seconds = heappop(due)
            if kind == REGISTERED:
                under_way -= 1
                run.registered += 1
                oldest = queue[0]
                run.waits.append(at - oldest[0])
                if oldest[1] == 1:
                    queue.popleft()
                else:
                    oldest[1] -= 1
                policy.registered(at, chosen, worker, boot_seconds)
                heappush(due, (at + lives.expovariate(1 / LIFE_SECONDS_MEAN), ENDED, chosen, worker, 0.0))
            elif kind == ENDED:
                held[revisions[chosen].config] -= 1
                policy.ended(at, chosen, worker)
            else:
                held[revisions[chosen].config] -= 1
                under_way -= 1
                backlog += 1
                run.unregistered += 1
                failing[min(last_tick, int(at / tick_seconds))] += 1
                policy.unregistered(at, chosen, worker)

    for tick in range(ticks):
        now = tick * tick_seconds
        pass_outcomes(now)
        while changes and revisions[changes[0]].since <= tick:
            changed = changes.popleft()
            newest[revisions[changed].config] = changed
        if coming[tick]:
            backlog += coming[tick]
            run.arrived += coming[tick]
            queue.append([now, coming[tick]])
        for chosen in policy.choose(now, min(backlog, TRIES_MAX)) if backlog else ():
            config = revisions[chosen].config
            launched = chosen if policy.names_revisions else newest[config]
            revision = revisions[launched]
            workers += 1
            backlog -= 1
            under_way += 1
            chance = luck.random()
            refuses = refusal[config][tick]
            cap = caps[config]
            if chance < refuses or (cap is not None and cap[0] <= tick < cap[1] and held[config] >= cap[2]):
                scope = conditions.scopes[config]
            elif chance < refuses + (1 - refuses) * background:
                scope = scenario.background_scope
            else:
                accepted[config][tick] += 1
                held[config] += 1
                boot_seconds = exp(log_medians[launched] + BOOT_SIGMA * boots.gauss(0.0, 1.0))
                bad = fails = revision.unregistered
                if (faults := unregistered[config]) is not None:
                    bad = either(bad, faults[tick])
                    fails = either(fails, faults[min(last_tick, int((now + boot_seconds) / tick_seconds))])
                if fails and flaws.random() < fails:
                    run.on_bad_image += bad > 0
                    heappush(due, (now + timeout, UNREGISTERED, chosen, workers, 0.0))
                else:
                    heappush(due, (now + boot_seconds, REGISTERED, chosen, workers, boot_seconds))
                answers.append((chosen, workers, ""))
                continue
            refused[config][tick] += 1
            failing[tick] += 1
            answers.append((chosen, workers, scope))
        run.waiting_seconds += (backlog + under_way) * tick_seconds
        if answers:
            known = now + ANSWER_SECONDS
            pass_outcomes(known)
            for chosen, worker, scope in answers:
                if scope:
                    backlog += 1
                    under_way -= 1
                    policy.refused(known, chosen, worker, scope)
                else:
                    policy.accepted(known, chosen, worker)
            answers.clear()
    run.waiting = backlog + under_way
    run.booting = sum(kind != ENDED for _, kind, *_ in due)
    return run
