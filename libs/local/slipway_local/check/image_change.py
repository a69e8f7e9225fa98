"""Check of a run with a roll-out, a bad image and a rollback. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.pool import PoolRolledBack
from slipway_local.check import roll_out
from slipway_local.check.evidence import Evidence
from slipway_local.check.roll_out import TaskCounts
from slipway_simulator import facts

BAD_MACHINES_MAX: Final = 25
"""Machines that a bad image may cost in one roll-out."""


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """Images and times (epoch seconds) of a run: `replaced_at` old by new, `bad_at` new by bad, `rolled_back_at`."""

    old: str
    new: str
    bad: str
    replaced_at: float
    bad_at: float
    rolled_back_at: float


class ImageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a run. `names` maps each launch config to its revisions, `machines` each image to those created.

    `before` and `meanwhile` are the tasks of the time before and while the bad image was current, `done_by_fallback`
    those of the latter that machines of the replaced revisions did.
    """

    names: Mapping[str, Sequence[str]]
    machines: Mapping[str, int]
    before: TaskCounts
    meanwhile: TaskCounts
    done_by_fallback: int
    lost: int
    interrupted: int
    problems: Sequence[str]


def judge(evidence: Evidence, commands: Commands) -> ImageReport:
    """Compare a run with what a roll-out, a bad image and a rollback should do."""
    known, machines = roll_out.revisions(evidence), roll_out.machines(evidence)
    of_image = {
        image: [id_ for id_, event in known.items() if event.image_revision == image]
        for image in (commands.old, commands.new, commands.bad)
    }
    names: dict[str, list[str]] = defaultdict(list)
    for id_, event in known.items():
        names[event.name].append(id_)
    lost, interrupted = roll_out.lost_tasks(evidence)
    report = ImageReport(
        names=names,
        machines={image: sum(len(machines.get(id_, ())) for id_ in ids) for image, ids in of_image.items()},
        before=roll_out.tasks(evidence, commands.replaced_at, commands.bad_at),
        meanwhile=roll_out.tasks(evidence, commands.bad_at, commands.rolled_back_at),
        done_by_fallback=_done_by_fallback(evidence, commands),
        lost=lost,
        interrupted=interrupted,
        problems=(),
    )
    found = [
        *_problems_of_revisions(evidence, commands, known, of_image, names),
        *_problems_of_figures(report, commands),
    ]
    return msgspec.structs.replace(report, problems=found)


def _done_by_fallback(evidence: Evidence, commands: Commands) -> int:
    """Number of tasks that machines with the new image did while the bad one was current."""
    good = {
        fact.instance_id
        for fact in evidence.ledger
        if isinstance(fact, facts.InstanceCreated) and fact.image == commands.new
    }
    return sum(
        isinstance(fact, facts.TaskEnded)
        and fact.result == "done"
        and fact.instance_id in good
        and commands.bad_at <= fact.at <= commands.rolled_back_at
        for fact in evidence.ledger
    )


def _problems_of_revisions(
    evidence: Evidence,
    commands: Commands,
    known: Mapping[str, LaunchConfigState],
    of_image: Mapping[str, Sequence[str]],
    names: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    if not names or any(len(ids) != len(of_image) for ids in names.values()):
        yield f"a launch config does not have one revision per image: {dict(names)}"
    drained = {drain.config_id for drain in roll_out.drains(evidence)}
    replaced = [*of_image[commands.old], *of_image[commands.bad]]
    if left := [id_ for id_ in replaced if id_ not in drained]:
        yield f"revisions without an event that they drain: {left}"
    if left := [id_ for id_ in replaced if known[id_].state != "archived"]:
        yield f"revisions whose workers have not all left: {left}"
    if any(known[id_].state != "active" or not known[id_].current for id_ in of_image[commands.new]):
        yield "the rollback did not make the earlier revisions current"
    if not any(isinstance(published.event, PoolRolledBack) for published in evidence.published):
        yield "no pool was rolled back, by the topic"
    if not any(
        isinstance(fact, facts.InstanceCreated) and fact.image == commands.new and fact.at > commands.rolled_back_at
        for fact in evidence.ledger
    ):
        yield "nothing was launched after the rollback"


def _problems_of_figures(report: ImageReport, commands: Commands) -> Iterator[str]:
    if not all(report.machines.values()):
        yield f"an image was never launched: {dict(report.machines)}"
    if report.machines[commands.bad] > BAD_MACHINES_MAX:
        yield f"{report.machines[commands.bad]} machines with the bad image; at most {BAD_MACHINES_MAX} allowed"
    if not report.done_by_fallback:
        yield "no task was done by the revision before while the bad image was current"
    if 2 * report.meanwhile.done < report.meanwhile.arrived:
        yield f"{report.meanwhile.done} of {report.meanwhile.arrived} tasks were done under the bad image"
    # Each bad machine may hold up one task.
    allowed = report.before.waiting_max + BAD_MACHINES_MAX
    if report.meanwhile.waiting_max > allowed:
        yield f"{report.meanwhile.waiting_max} tasks waited under the bad image; at most {allowed} allowed"
    if report.lost:
        yield f"tasks that were never done: {report.lost}"
    if report.interrupted:
        yield f"tasks that were interrupted: {report.interrupted}"
