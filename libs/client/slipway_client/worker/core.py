"""What a worker says to its provisioner, and when. Pure: `now` (monotonic seconds) and chance are arguments.

What the provisioner has to hear is *owed* and told in order, each fact until it was heard, while tasks go on. Every
answer may tell the worker to leave. Who performs these acts is conversation.py's matter; what is done about tasks is
tasks.py's (`run`) and agent.py's (`wrap`).
"""

from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from slipway_client.worker.settings import Settings

# Between repetitions while nobody answers: long enough to leave a restarting service alone.
FIRST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 10.0


class Owed(msgspec.Struct, frozen=True):
    """A fact that the provisioner has not heard yet; `at` is when it became true."""

    what: Literal["claimed", "idle", "error", "stopped"]
    at: float
    task_id: str = ""
    source: str = ""
    kind: str = ""
    detail: str = ""


class Silence(msgspec.Struct, frozen=True):
    """How long somebody has not answered, and when to try again. Empty: the last call was answered."""

    since: float | None = None
    failures: int = 0
    retry_at: float = 0.0


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker as its provisioner knows it, or will once it has heard what it is owed.

    `leaving`: why it takes no more tasks. `refused`: why nothing more is said, and `gave_up` whether that is our own
    word, of a provisioner that was silent, and not the provisioner's. `stopped`: the last fact was heard.
    `asking`: somebody waits for a fresh answer whether to leave.
    """

    settings: Settings
    registered: bool = False
    task_id: str = ""
    owed: tuple[Owed, ...] = ()
    leaving: str = ""
    refused: str = ""
    gave_up: bool = False
    stopped: bool = False
    asking: bool = False
    asked_at: float = 0.0
    silence: Silence = Silence()

    @property
    def disowned(self) -> bool:
        """The provisioner said that it is not, or not any more, its worker: its task is nobody's."""
        return bool(self.refused) and not self.gave_up


class Register(msgspec.Struct, frozen=True):
    """Report in with the batch secret."""


class Tell(msgspec.Struct, frozen=True):
    """Tell the oldest fact that is owed."""

    owed: Owed


class Ask(msgspec.Struct, frozen=True):
    """Ask whether to leave: by a heartbeat while a task runs, by only asking between tasks."""

    heartbeat: bool


class GiveUp(msgspec.Struct, frozen=True):
    """Nobody has answered for too long."""


class Wait(msgspec.Struct, frozen=True):
    """Nothing before `until` (None: nothing at all), unless something happens."""

    until: float | None


Call = Register | Tell | Ask


def next_call(worker: Worker, now: float) -> Call | GiveUp | Wait:
    """The one thing to say to the provisioner now."""
    if worker.refused or worker.stopped or (worker.leaving and not worker.registered):
        return Wait(None)
    give_up_at = None if worker.silence.since is None else worker.silence.since + worker.settings.give_up_seconds
    if give_up_at is not None and give_up_at <= now:
        return GiveUp()
    if worker.silence.retry_at > now:
        return Wait(worker.silence.retry_at if give_up_at is None else min(worker.silence.retry_at, give_up_at))
    if not worker.registered:
        return Register()
    if worker.owed:
        return Tell(worker.owed[0])
    heartbeat = worker.settings.heartbeat_seconds
    due = worker.asked_at + (heartbeat if worker.task_id else min(heartbeat, worker.settings.poll_seconds))
    return Ask(heartbeat=bool(worker.task_id)) if worker.asking or due <= now else Wait(due)


def heard(worker: Worker, call: Call, now: float, *, terminate: bool = False, reason: str = "") -> Worker:
    """The provisioner has answered; it may have told the worker to leave."""
    after = replace(worker, asked_at=now, silence=Silence())
    match call:
        case Register():
            after = replace(after, registered=True)
        case Tell(owed):
            after = replace(after, owed=after.owed[1:], stopped=owed.what == "stopped")
        case Ask():
            after = replace(after, asking=False)
    return leave(after, reason or "told to leave") if terminate else after


def unheard(worker: Worker, now: float, chance: float) -> Worker:
    """Nobody has answered. `chance` in [0, 1) spreads the repetitions of many workers."""
    return replace(worker, silence=longer(worker.silence, now, chance))


def longer(silence: Silence, now: float, chance: float) -> Silence:
    """After one more failure."""
    pause_seconds = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(silence.failures, 10))
    since = now if silence.since is None else silence.since
    return Silence(since, silence.failures + 1, now + pause_seconds * (0.5 + chance / 2))


def wondering(worker: Worker) -> Worker:
    """Somebody wants to know now whether to leave."""
    return replace(worker, asking=worker.registered and not (worker.refused or worker.stopped))


def refused(worker: Worker, why: str) -> Worker:
    """The provisioner does not know this worker, or not any more: there is nobody to tell."""
    return replace(worker, refused=worker.refused or why, owed=(), asking=False)


def gave_up(worker: Worker, why: str) -> Worker:
    """The provisioner was silent for too long: it is told nothing more."""
    return worker if worker.refused else replace(refused(worker, why), gave_up=True)


def pressed(worker: Worker, now: float) -> Worker:
    """There is little time left to be heard: the next attempt is now."""
    return replace(worker, silence=replace(worker.silence, retry_at=min(worker.silence.retry_at, now)))


def leave(worker: Worker, why: str) -> Worker:
    """It takes no more tasks. The first reason stands."""
    return replace(worker, leaving=worker.leaving or why)


def took(worker: Worker, task_id: str, source: str, at: float) -> Worker:
    """A task begins; said again of the same task it is the same one. Another that runs has ended unsaid."""
    if worker.task_id == task_id:
        return worker
    before = done(worker, at)
    return _owing(replace(before, task_id=task_id), Owed("claimed", at, task_id=task_id, source=source))


def done(worker: Worker, at: float) -> Worker:
    """The task has ended; nothing if none ran."""
    return _owing(replace(worker, task_id=""), Owed("idle", at)) if worker.task_id else worker


def failed(worker: Worker, kind: str, detail: str, at: float) -> Worker:
    """Something went wrong that somebody should look at."""
    return _owing(worker, Owed("error", at, kind=kind, detail=detail))


def ending(worker: Worker, at: float) -> Worker:
    """It ends itself, and with it its task, if any: the last fact."""
    if not worker.registered or any(owed.what == "stopped" for owed in worker.owed):
        return worker
    return _owing(replace(worker, task_id=""), Owed("stopped", at))


def _owing(worker: Worker, owed: Owed) -> Worker:
    """After a refusal, and after the last fact, there is nobody to tell."""
    over = worker.refused or worker.stopped or any(earlier.what == "stopped" for earlier in worker.owed)
    return worker if over else replace(worker, owed=(*worker.owed, owed))
