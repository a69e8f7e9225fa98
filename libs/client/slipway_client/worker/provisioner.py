"""HTTP client for the worker endpoints of the provisioner."""

from datetime import timedelta
from pathlib import Path

import msgspec

from slipway_client.transport.exchange import Answer, NoAnswer, get, post
from slipway_client.worker.core import Call, Poll, Register, Reply, Report, SendReport
from slipway_client.worker.imds import Identity
from slipway_client.worker.log import log
from slipway_client.worker.state import stored_token
from slipway_client.worker.user_data import REGISTER_PATH, UserData
from slipway_common.base.clock import monotonic_seconds, utc_now


class Refusal(Exception):
    """The provisioner refused the call permanently. The text is for people."""


class UnknownWorker(Exception):
    """The provisioner does not know this worker or its token. The text is for people."""


class Registered(msgspec.Struct, frozen=True):
    """Answer to a registration."""

    worker_id: str
    pool_id: str
    token: str
    task_slots: int = 1

    def __repr__(self) -> str:
        return f"Registered(worker_id={self.worker_id!r})"


class Provisioner:
    """The provisioner of one worker. `known` is empty until it is registered. `state`: directory that keeps the
    worker's token where the machine proves its identity; None: it is kept in memory only."""

    def __init__(self, user_data: UserData, identity: Identity, state: Path | None = None) -> None:
        self._user_data = user_data
        self._identity = identity
        self._state = state
        self._token = ""
        self.known = Registered("", "", "")
        # Wall-clock times that may be said again, by their monotonic times, as they were first written.
        self._dates: dict[float, str] = {}

    async def perform(self, call: Call) -> Reply:
        """Perform the call. Raises NoAnswer, Refusal and UnknownWorker."""
        if isinstance(call, Register):
            await self._register()
            return Reply(task_slots=self.known.task_slots)
        try:
            answer = await self._ask(call)
        except NoAnswer as error:
            if error.problem == "unknown-worker":
                raise UnknownWorker("the provisioner does not know this worker") from error
            raise
        if isinstance(call, SendReport):
            if call.report.what == "error" and answer.status == 409:
                return Reply(True, "terminated by the provisioner")  # errors are accepted from running workers only
            if call.report.what == "stopped" and answer.status == 410:
                return Reply(True, "stopped")  # a retry: the first answer was lost
        if answer.problem == "foreign-token":
            raise UnknownWorker(f"the provisioner does not know this worker: {answer.text}")
        if not answer.ok:
            raise Refusal(f"the provisioner refused this worker: {answer.text}")
        if isinstance(call, SendReport):
            self._forget(call.report)
        body = answer.body
        return Reply(bool(body.get("terminate")), str(body.get("reason") or ""), body.get("has_task") is not False)

    async def _ask(self, call: SendReport | Poll) -> Answer:
        match call:
            case SendReport(report):
                return await self._post(report.what, self._body(report))
            case Poll(heartbeat=True):
                return await self._post("heartbeat", {})
            case Poll():
                return await get(self._url("should-terminate"), token=self.known.token)

    async def _register(self) -> None:
        body: dict[str, object] = {
            "batch_id": self._user_data.batch_id,
            "secret": self._user_data.secret,
            "instance_id": self._identity.instance_id,
        }
        if self._identity.proof is not None:
            if not self._token:
                self._token = stored_token(self._state, self._identity.instance_id, self._user_data.batch_id)
            body |= {"token": self._token, "identity": msgspec.structs.asdict(self._identity.proof)}
        answer = await post(self._user_data.provisioner_url + REGISTER_PATH, body)
        if not answer.ok:
            raise Refusal(f"the provisioner refused the registration: {answer.text}")
        try:
            self.known = msgspec.convert(answer.body, Registered)
        except msgspec.ValidationError as error:
            raise NoAnswer(f"answered something other than a registration: {error}") from error
        log(f"registered as {self.known.worker_id} of pool {self.known.pool_id}")

    def _body(self, report: Report) -> dict[str, object]:
        if report.what == "error":
            return {"kind": report.kind, "detail": report.detail}
        at: dict[str, object] = {"at": self._date(report.at)}
        match report.what:
            case "claimed":
                return {**at, "task_id": report.task_id, "source": report.source}
            case "idle" if report.claimed_at is not None:
                claim = {"task_id": report.task_id, "source": report.source}
                return at | claim | {"claimed_at": self._date(report.claimed_at)}
            case "notice":
                ends_at = None if report.ends_at is None else report.ends_at.isoformat()
                return {**at, "kind": report.kind, "ends_at": ends_at, "zone_id": self._identity.zone_id}
            case _:
                return at

    def _date(self, at: float) -> str:
        """Wall-clock time. A retry says the same, and so does the end of a claim, which is known by the time."""
        if at not in self._dates:
            self._dates[at] = (utc_now() - timedelta(seconds=monotonic_seconds() - at)).isoformat()
        return self._dates[at]

    def _forget(self, report: Report) -> None:
        """Drop the times of an acknowledged report: that of a claim once its end is."""
        ended = [] if report.what == "claimed" else [report.at, report.claimed_at]
        self._dates = {at: text for at, text in self._dates.items() if at not in ended}

    async def _post(self, what: str, body: dict[str, object]) -> Answer:
        return await post(self._url(what), body, token=self.known.token)

    def _url(self, what: str) -> str:
        return f"{self._user_data.provisioner_url}/workers/{self.known.worker_id}/{what}"
