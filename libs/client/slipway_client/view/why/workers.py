"""Explanation of a worker, from the decision that requested it to its end."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import UNSET

from slipway_api.events.lifecycle import IN_FLIGHT, REGISTERED, WAITING, State
from slipway_api.http.lease_pools import LeasePool
from slipway_api.http.provisioner.decisions import Decision
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.workers import ConsoleOutput, TimelineEntry, WorkerDetails
from slipway_client.view import moments
from slipway_client.view.phrases import count, drain, queue
from slipway_client.view.why.explanation import NAMED, NOTHING, Cause, Explanation, explained, printed
from slipway_client.view.why.shared import raise_limit, shares
from slipway_common.base.text import listed


def of_worker(
    worker: WorkerDetails,
    decision: Decision | None,
    lease_pool: LeasePool | None,
    *,
    config: LaunchConfig | None = None,
    consoles: Sequence[ConsoleOutput] = (),
    now: datetime,
) -> Explanation:
    """Explain a worker: its state, then its decision, admission, call, boot, tasks and end.

    `decision` is None if it could not be read; `lease_pool` is that of the worker's account, `config` its launch
    config's revision, None when unknown. `consoles` are what machines of its image have printed that never registered.
    """
    details = [
        f"Pool {worker.pool_id}, launch config {worker.launch_config_id}, account {worker.account_id}.",
        *_decided(worker, decision, now),
        *_admission(worker, now),
        *_call(worker, now),
        *_boot(worker, now),
        *_tasks(worker, now),
        *_end(worker, now),
        *printed(consoles),
    ]
    # A newer provisioner may know a state that this command does not.
    cause, effect = STATES.get(worker.state, _ended)(worker, lease_pool)
    if config is not None and config.state == "draining" and worker.state in (State.STARTING, State.RUNNING):
        effect += f"; it leaves then, since {config.id} drains: {drain(config, now)}"
    if worker.drain_until and worker.state == State.RUNNING:
        until = moments.clock(worker.drain_until, now)
        effect += f"; it has reached its maximum age, and leaves after its task, at {until} at the latest"
    elif worker.leave_after_task and worker.state == State.RUNNING:
        effect += "; it leaves then, since its pool has more workers than wanted, unless it is wanted again"
    return explained("worker", worker.id, [cause], effect, details)


Meaning = tuple[Cause, str]
"""Cause of a worker's state, and its effect."""


def _requested(worker: WorkerDetails, lease_pool: LeasePool | None) -> Meaning:
    text = f"requested, waits for admission to {_queue(lease_pool)}"
    if worker.lease:
        text = f"requested, admitted by lease pool {worker.lease.lease_pool_id}, waits for its launch call"
    remedy = raise_limit(lease_pool) if lease_pool and not worker.lease else NOTHING
    return Cause(text=text, since=worker.requested_at, remedy=remedy), "no instance yet"


def _launching(worker: WorkerDetails, _: LeasePool | None) -> Meaning:
    since = (worker.batch and worker.batch.started_at) or worker.requested_at
    if worker.workspace and (problem := worker.workspace.problem):
        remedy = "remove the cause; the run is repeated by itself, or at once by `slipway worker unlock`"
        text = f"launching, the last run of its workspace failed: {problem.rstrip('.')}"
        return Cause(text=text, since=since, remedy=remedy), "no known instance yet"
    return Cause(text="launching, waits for the provider's answer", since=since), "no known instance yet"


def _starting(worker: WorkerDetails, _: LeasePool | None) -> Meaning:
    text = "starting, its instance has not registered yet"
    return Cause(text=text, since=worker.launched_at, remedy=_terminate(worker)), "no task can be claimed on it yet"


def _running(worker: WorkerDetails, _: LeasePool | None) -> Meaning:
    if worker.idle_since:
        since: datetime | None = worker.idle_since
        text, effect = "running, idle", "it can claim a task"
    else:
        running = _running_claims(worker)
        since = running[-1].at if running else worker.registered_at
        several = len(running) > 1
        text = f"running {len(running)} tasks" if several else "running a task"
        effect = "its tasks go on" if several else "its task goes on"
    return Cause(text=text, since=since, remedy=_terminate(worker)), effect


def _stopping(worker: WorkerDetails, _: LeasePool | None) -> Meaning:
    text = f"draining: {worker.reason or 'no reason given'}"
    cause = Cause(text=text, since=worker.stopping_at, remedy=f"{NOTHING}: it is terminated")
    return cause, "it claims no new task, and is billed until the provider reports its instance gone"


def _ended(worker: WorkerDetails, _: LeasePool | None) -> Meaning:
    text = f"{worker.state}: {worker.reason or 'no reason given'}"
    return Cause(text=text, since=worker.ended_at), "it claims no more tasks"


STATES: Final[Mapping[str, Callable[[WorkerDetails, LeasePool | None], Meaning]]] = {
    State.REQUESTED: _requested,
    State.LAUNCHING: _launching,
    State.STARTING: _starting,
    State.RUNNING: _running,
    State.STOPPING: _stopping,
    State.STOPPED: _ended,
}


def _queue(lease_pool: LeasePool | None) -> str:
    return f"lease pool {lease_pool.id}: {queue(lease_pool)}" if lease_pool else "its account"


def _terminate(worker: WorkerDetails) -> str:
    return f"{NOTHING}; `slipway worker terminate {worker.id} --reason …` gives up on it"


def _decided(worker: WorkerDetails, decision: Decision | None, now: datetime) -> Iterator[str]:
    requested = f"Requested at {moments.clock(worker.requested_at, now)}"
    if decision is None:
        yield f"{requested} (decision {worker.decision_id})."
    elif (details := decision.details).tasks is UNSET:
        yield f"{requested}; {decision.reason} (decision {decision.id})."
    else:
        yield (
            f"{requested}: {decision.reason}; {count(details.tasks or 0, 'task')} wanted "
            f"{count(details.wanted or 0, 'worker')}, {details.serving} serving (decision {decision.id})."
        )
        yield from shares(details, chosen=worker.launch_config_id)
    if worker.probe_permit is not None:
        yield f"It is probe {worker.probe_permit} of a tripped launch config."


def _admission(worker: WorkerDetails, now: datetime) -> Iterator[str]:
    lease, batch = worker.lease, worker.batch
    requested_at = worker.requested_at
    if batch and batch.started_at:
        waited = moments.spelled((batch.started_at - requested_at).total_seconds())
        by = f" by lease pool {lease.lease_pool_id} (fencing token {lease.fencing_token})" if lease else ""
        yield f"Admitted{by}: {waited} from the request to the call."
    elif worker.state in WAITING and worker.reason:
        yield f"Returned to the queue: {worker.reason}."


def _call(worker: WorkerDetails, now: datetime) -> Iterator[str]:
    batch = worker.batch
    if not batch or not batch.started_at:
        return
    began = batch.started_at
    others = batch.units - 1
    together = f", with {count(others, 'other worker')}" if others else ""
    call = f"Provider called at {moments.clock(began, now)}{together}"
    again = batch.repeats
    repeats = f" after {count(again, 'repetition')} of a call without an answer" if again else ""
    if worker.launched_at:
        took = moments.spelled((worker.launched_at - began).total_seconds())
        yield f"{call}: launched {took} later{repeats}, instance {worker.instance_id}."
    elif worker.registered_at:
        yield f"{call}: registered before the answer, instance {worker.instance_id}."
    elif worker.state in IN_FLIGHT["launch"] and batch.handle and batch.call_deadline:
        deadline = moments.clock(batch.call_deadline, now)
        polled = f"next poll at {moments.clock(batch.poll_at, now)}, " if batch.poll_at else ""
        yield f"{call}: accepted as {batch.handle}; {polled}deadline at {deadline}."
    elif worker.state in IN_FLIGHT["launch"]:
        yield f"{call}: no answer for {moments.spelled((now - began).total_seconds())}{repeats}."
    elif worker.failed_at:
        yield f"{call}: refused{repeats}: {worker.reason or batch.outcome or 'no reason given'}."
    else:
        yield f"{call}: outcome {batch.outcome or 'unknown'}{repeats}."


def _boot(worker: WorkerDetails, now: datetime) -> Iterator[str]:
    launched = worker.launched_at
    if worker.registered_at:
        took = (worker.registered_at - launched).total_seconds() if launched else 0.0
        if took > 0:  # otherwise it registered before the provider's answer, as the sentence about the call states
            yield f"Registered at {moments.clock(worker.registered_at, now)}, after a boot of {moments.spelled(took)}."
    elif worker.state in IN_FLIGHT["boot"] and launched:
        yield f"Booting for {moments.spelled((now - launched).total_seconds())}."
    elif launched:
        yield "It never registered."


def _tasks(worker: WorkerDetails, now: datetime) -> Iterator[str]:
    if not worker.registered_at:
        return
    claims = [event for event in worker.timeline if event.what == "claimed"]
    if not claims:
        yield "It has claimed no task."
    else:
        first = (claims[0].at - worker.registered_at).total_seconds()
        running = [event.detail for event in _running_claims(worker)]
        newest = f"current: {listed(running, NAMED)}" if running else f"last: {claims[-1].detail}"
        yield (
            f"Claimed {count(len(claims), 'task')}, the first {moments.spelled(first)} after it registered; {newest}."
        )
    if worker.state in REGISTERED and worker.idle_since:
        idle = (now - worker.idle_since).total_seconds()
        yield f"Idle for {moments.spelled(idle)}."


def _running_claims(worker: WorkerDetails) -> list[TimelineEntry]:
    """Claims of a worker that have not ended, oldest first. A task may have been claimed before."""
    finished = Counter(event.detail for event in worker.timeline if event.what == "finished")
    running = []
    for event in worker.timeline:
        if event.what == "claimed":
            if finished[event.detail]:
                finished[event.detail] -= 1
            else:
                running.append(event)
    return running


def _end(worker: WorkerDetails, now: datetime) -> Iterator[str]:
    if worker.stopping_at:
        yield f"Drain requested at {moments.clock(worker.stopping_at, now)}."
    if worker.ended_at:
        lived = (worker.ended_at - worker.requested_at).total_seconds()
        yield f"Ended at {moments.clock(worker.ended_at, now)}, {moments.spelled(lived)} after its request."
