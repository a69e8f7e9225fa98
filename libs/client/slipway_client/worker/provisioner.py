"""The provisioner's side of a worker's life, over HTTP. Keeps the worker's token, and shows it to nobody."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

import msgspec

from slipway_client.worker import core
from slipway_client.worker.core import Ask, Call, GiveUp, Owed, Register, Tell, Wait, Worker, next_call
from slipway_client.worker.http import Answer, NoAnswer, get, post
from slipway_client.worker.log import say
from slipway_client.worker.user_data import REGISTER_PATH, UserData
from slipway_common.clock import monotonic_seconds, utc_now


class Refusal(Exception):
    """The provisioner said no, for good. The text is for people."""


class Registered(msgspec.Struct, frozen=True):
    """What registration gave."""

    worker_id: str
    pool_id: str
    token: str

    def __repr__(self) -> str:
        return f"Registered(worker_id={self.worker_id!r})"


class Provisioner:
    """One worker's provisioner. Until it is registered `worker_id` and `pool_id` are empty."""

    def __init__(self, user_data: UserData, instance_id: str) -> None:
        self._user_data = user_data
        self._instance_id = instance_id
        self._known = Registered("", "", "")
        # When an owed fact was true by the wall clock: the same each time it is told, or it would be another fact.
        self._dated: tuple[Owed, datetime] | None = None

    @property
    def worker_id(self) -> str:
        return self._known.worker_id

    @property
    def pool_id(self) -> str:
        return self._known.pool_id

    async def perform(self, call: Call) -> tuple[bool, str]:
        """Whether to leave, and why. Raises NoAnswer and Refusal."""
        match call:
            case Register():
                await self._register()
                return False, ""
            case Tell(owed):
                answer = await self._post(owed.what, self._body(owed))
                if owed.what == "error" and answer.status == 409:
                    return True, "told to leave"  # an error matters of a running worker only
                if owed.what == "stopped" and answer.status == 410:
                    return True, "ended by itself"  # it was heard before, and the answer lost
            case Ask(heartbeat=True):
                answer = await self._post("heartbeat", {})
            case Ask():
                answer = await get(self._url("should-terminate"), token=self._known.token)
        if not answer.ok:
            raise Refusal(f"the provisioner refused this worker: {answer.words}")
        return bool(answer.body.get("terminate")), str(answer.body.get("reason") or "")

    async def _register(self) -> None:
        body = {
            "batch_id": self._user_data.batch_id,
            "secret": self._user_data.secret,
            "instance_id": self._instance_id,
        }
        answer = await post(self._user_data.provisioner_url + REGISTER_PATH, body)
        if not answer.ok:
            raise Refusal(f"the provisioner refused the registration: {answer.words}")
        try:
            self._known = msgspec.convert(answer.body, Registered)
        except msgspec.ValidationError as error:
            raise NoAnswer(f"answered something other than a registration: {error}") from error
        say(f"registered as {self.worker_id} of pool {self.pool_id}")

    def _body(self, owed: Owed) -> dict[str, Any]:
        if owed.what == "error":
            return {"kind": owed.kind, "detail": owed.detail}
        if self._dated is None or self._dated[0] is not owed:
            self._dated = owed, utc_now() - timedelta(seconds=monotonic_seconds() - owed.at)
        at = {"at": self._dated[1].isoformat()}
        return {**at, "task_id": owed.task_id, "source": owed.source} if owed.what == "claimed" else at

    async def _post(self, what: str, body: dict[str, Any]) -> Answer:
        return await post(self._url(what), body, token=self._known.token)

    def _url(self, what: str) -> str:
        return f"{self._user_data.provisioner_url}/workers/{self.worker_id}/{what}"


async def converse(
    provisioner: Provisioner,
    worker: Callable[[], Worker],
    talked: Callable[[Worker], None],
    rest: Callable[[float | None], Awaitable[None]],
    rng: Random,
) -> None:
    """Say what core.py decides, one call after another, until there is nothing more to say."""
    while True:
        match next_call(worker(), monotonic_seconds()):
            case Wait(None) if worker().refused or worker().stopped:
                return
            case Wait(until):
                await rest(until)
            case GiveUp():
                silent = f"the provisioner has not answered for {worker().settings.give_up_seconds:g} s"
                say(f"giving up: {silent}")
                talked(core.gave_up(worker(), silent))
            case call:
                await _perform(provisioner, call, worker, talked, rng)


async def _perform(
    provisioner: Provisioner, call: Call, worker: Callable[[], Worker], talked: Callable[[Worker], None], rng: Random
) -> None:
    try:
        terminate, reason = await provisioner.perform(call)
    except NoAnswer as error:
        if worker().silence.since is None:
            say(f"the provisioner does not answer ({error}); will go on trying")
        talked(core.unheard(worker(), monotonic_seconds(), rng.random()))
    except Refusal as error:
        say(str(error))
        talked(core.refused(worker(), str(error)))
    else:
        if terminate and not worker().leaving:
            say(f"told to leave: {reason or 'no reason given'}")
        talked(core.heard(worker(), call, monotonic_seconds(), terminate=terminate, reason=reason))
