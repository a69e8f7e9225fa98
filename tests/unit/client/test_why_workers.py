"""Explanations of workers, in each of their states."""

from typing import Any

import pytest

from slipway_api.events.lifecycle import State
from slipway_client.view.why.workers import STATES
from tests.support.why import (
    CALLED,
    DECISION,
    LAUNCHED,
    LEASE,
    LEASE_POOL,
    NOW,
    QUEUE,
    RAISE,
    RUNNING,
    SHARES,
    WORKER,
    ago,
    claim,
    of_worker,
)

TERMINATE = "Remedy: none needed; `slipway worker terminate w-1 --reason …` gives up on it."
PLACE = "Pool linux, launch config zone-b, account sim-a."
DECIDED = [
    PLACE,
    "Requested at 14:28:20: 5 needed, room for 3; 12 tasks wanted 12 workers, 7 serving (decision d-1).",
    *SHARES,
]
ADMITTED = "Admitted by lease pool sim-a (fencing token 41): 10 s from the request to the call."
CALL = "Provider called at 14:28:30, with 1 other worker: launched 2 s later, instance i-7."
BOOTED = "Registered at 14:29:02, after a boot of 30 s."
WORKERS: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "waits",
        WORKER,
        [
            f"requested, waits for admission to lease pool sim-a: {QUEUE}.",
            "Since 14:28:20, 1 min 40 s ago.",
            "Effect: no instance yet.",
            f"Remedy: {RAISE}.",
        ],
        [],
    ),
    (
        "put back",
        WORKER | {"reason": "lease lost"},
        [
            f"requested, waits for admission to lease pool sim-a: {QUEUE}.",
            "Since 14:28:20, 1 min 40 s ago.",
            "Effect: no instance yet.",
            f"Remedy: {RAISE}.",
        ],
        ["Returned to the queue: lease lost."],
    ),
    (
        "admitted",
        WORKER | {"lease": LEASE},
        [
            "requested, admitted by lease pool sim-a, waits for its launch call.",
            "Since 14:28:20, 1 min 40 s ago.",
            "Effect: no instance yet.",
            "Remedy: none needed.",
        ],
        [],
    ),
    (
        "calling",
        CALLED | {"state": "launching"},
        [
            "launching, waits for the provider's answer.",
            "Since 14:28:30, 1 min 30 s ago.",
            "Effect: no known instance yet.",
            "Remedy: none needed.",
        ],
        [ADMITTED, "Provider called at 14:28:30, with 1 other worker: no answer for 1 min 30 s."],
    ),
    (
        "run failed",
        CALLED | {"state": "launching", "workspace": {"problem": "cannot run /t: missing; set the path of terraform."}},
        [
            "launching, the last run of its workspace failed: cannot run /t: missing; set the path of terraform.",
            "Since 14:28:30, 1 min 30 s ago.",
            "Effect: no known instance yet.",
            "Remedy: remove the cause; the run is repeated by itself, or at once by `slipway worker unlock`.",
        ],
        [ADMITTED, "Provider called at 14:28:30, with 1 other worker: no answer for 1 min 30 s."],
    ),
    (
        "accepted",
        CALLED
        | {
            "state": "launching",
            "batch": CALLED["batch"] | {"handle": "apply-7", "poll_at": ago(-5), "call_deadline": ago(-3600)},
        },
        [
            "launching, waits for the provider's answer.",
            "Since 14:28:30, 1 min 30 s ago.",
            "Effect: no known instance yet.",
            "Remedy: none needed.",
        ],
        [
            ADMITTED,
            "Provider called at 14:28:30, with 1 other worker: accepted as apply-7; next poll at 14:30:05, "
            "deadline at 15:30:00.",
        ],
    ),
    (
        "refused",
        CALLED | {"state": "stopped", "failed_at": ago(89), "ended_at": ago(89), "reason": "QuotaExceeded"},
        [
            "stopped: QuotaExceeded.",
            "Since 14:28:31, 1 min 29 s ago.",
            "Effect: it claims no more tasks.",
            "Remedy: none needed.",
        ],
        [
            ADMITTED,
            "Provider called at 14:28:30, with 1 other worker: refused: QuotaExceeded.",
            "Ended at 14:28:31, 11 s after its request.",
        ],
    ),
    (
        "boots",
        LAUNCHED | {"state": "starting"},
        [
            "starting, its instance has not registered yet.",
            "Since 14:28:32, 1 min 28 s ago.",
            "Effect: no task can be claimed on it yet.",
            TERMINATE,
        ],
        [ADMITTED, CALL, "Booting for 1 min 28 s."],
    ),
    (
        "never registered",
        LAUNCHED | {"state": "stopping", "stopping_at": ago(3), "reason": "did not register in time"},
        [
            "draining: did not register in time.",
            "Since 14:29:57, 3 s ago.",
            "Effect: it claims no new task, and is billed until the provider reports its instance gone.",
            "Remedy: none needed: it is terminated.",
        ],
        [ADMITTED, CALL, "It never registered.", "Drain requested at 14:29:57."],
    ),
    (
        "idle",
        RUNNING | {"idle_since": ago(58)},
        ["running, idle.", "Since 14:29:02, 58 s ago.", "Effect: it can claim a task.", TERMINATE],
        [ADMITTED, CALL, BOOTED, "It has claimed no task.", "Idle for 58 s."],
    ),
    (
        "works",
        RUNNING | {"timeline": claim(50, "t-1", 40) + claim(30, "t-2")},
        ["running a task.", "Since 14:29:30, 30 s ago.", "Effect: its task goes on.", TERMINATE],
        [
            ADMITTED,
            CALL,
            BOOTED,
            "Claimed 2 tasks, the first 8 s after it registered; current: task t-2 of queue.",
        ],
    ),
    (
        "works on what is left of two tasks",
        RUNNING | {"timeline": claim(50, "long") + claim(40, "short", 30), "leave_after_task": True},
        [
            "running a task.",
            "Since 14:29:10, 50 s ago.",
            "Effect: its task goes on; it leaves then, since its pool has more workers than wanted, unless it is wanted "
            "again.",
            TERMINATE,
        ],
        [
            ADMITTED,
            CALL,
            BOOTED,
            "Claimed 2 tasks, the first 8 s after it registered; current: task long of queue.",
        ],
    ),
    (
        "works on two tasks, one of them for the second time",
        RUNNING | {"timeline": claim(55, "t-1", 54) + claim(50, "t-1") + claim(40, "t-2")},
        ["running 2 tasks.", "Since 14:29:20, 40 s ago.", "Effect: its tasks go on.", TERMINATE],
        [
            ADMITTED,
            CALL,
            BOOTED,
            "Claimed 3 tasks, the first 3 s after it registered; current: task t-1 of queue, task t-2 of queue.",
        ],
    ),
    (
        "ended",
        RUNNING
        | {
            "state": "stopped",
            "timeline": claim(50, "t-1", 40),
            "stopping_at": ago(20),
            "ended_at": ago(10),
            "reason": "more workers than wanted",
        },
        [
            "stopped: more workers than wanted.",
            "Since 14:29:50, 10 s ago.",
            "Effect: it claims no more tasks.",
            "Remedy: none needed.",
        ],
        [
            ADMITTED,
            CALL,
            BOOTED,
            "Claimed 1 task, the first 8 s after it registered; last: task t-1 of queue.",
            "Drain requested at 14:29:40.",
            "Ended at 14:29:50, 1 min 30 s after its request.",
        ],
    ),
    (
        "quicker than its answer",
        CALLED | {"state": "running", "instance_id": "i-7", "registered_at": ago(58), "timeline": claim(50, "t-1")},
        ["running a task.", "Since 14:29:10, 50 s ago.", "Effect: its task goes on.", TERMINATE],
        [
            ADMITTED,
            "Provider called at 14:28:30, with 1 other worker: registered before the answer, instance i-7.",
            "Claimed 1 task, the first 8 s after it registered; current: task t-1 of queue.",
        ],
    ),
]


@pytest.mark.parametrize(("worker", "state", "rest"), [case[1:] for case in WORKERS], ids=[case[0] for case in WORKERS])
def test_worker(worker: dict[str, Any], state: list[str], rest: list[str]) -> None:
    """State, then decision, the configs that got nothing, admission, call, boot, tasks, end."""
    lines = of_worker(worker, DECISION, LEASE_POOL, now=NOW).sentences(NOW)
    assert lines == [f"Worker w-1: {state[0]}", *state[1:], *DECIDED, *rest]


def test_every_state_is_explained() -> None:
    assert set(STATES) == set(State)


def test_worker_that_is_a_probe_of_a_decision_that_is_gone() -> None:
    explained = of_worker(WORKER | {"probe_permit": 4}, None, None, now=NOW)
    assert explained.cause == "requested, waits for admission to its account"
    assert list(explained.details) == [
        PLACE,
        f"Requested at 14:28:20 (decision {WORKER['decision_id']}).",
        "It is probe 4 of a tripped launch config.",
    ]
