"""HTTP client for a task queue: docs/guides/workers.md describes the protocol."""

from urllib.parse import quote

import msgspec

from slipway_client.transport.exchange import REQUEST_SECONDS, Answer, NoAnswer, post
from slipway_client.worker.tasks import Task


class Queue:
    """The queue of one worker."""

    def __init__(self, url: str, *, pool_id: str, worker_id: str, instance_id: str) -> None:
        self._is_named = bool(url)
        self._url = f"{url.removesuffix('/')}/{quote(pool_id, safe='')}"
        self._worker_id = worker_id
        self._instance_id = instance_id

    async def claim(self, wait_seconds: float) -> Task | None:
        """Claim a task; None if there was none within `wait_seconds`. Raises NoAnswer."""
        if not self._is_named:
            raise NoAnswer("user data name no queue_url; declare it in the account's settings")
        body = {"worker_id": self._worker_id, "instance_id": self._instance_id, "wait_seconds": wait_seconds}
        answer = await post(f"{self._url}/claim", body, seconds=wait_seconds + REQUEST_SECONDS)
        if answer.status == 204:
            return None
        try:
            return msgspec.convert(self._accepted(answer).body, Task)
        except msgspec.ValidationError as error:
            raise NoAnswer(f"answered something other than a task: {error}") from error

    async def renew(self, task: Task) -> bool:
        """Renew the claim; False if it is no longer this worker's. Raises NoAnswer."""
        return await self._mine(task, "renew", {"worker_id": self._worker_id})

    async def finish(self, task: Task, exit_code: int) -> bool:
        """Report the exit code; False if the claim was no longer this worker's. Raises NoAnswer."""
        return await self._mine(task, "finish", {"worker_id": self._worker_id, "exit_code": exit_code})

    async def _mine(self, task: Task, what: str, body: dict[str, str | int]) -> bool:
        answer = await post(f"{self._url}/tasks/{quote(task.task_id, safe='')}/{what}", dict(body))
        return answer.status != 409 and self._accepted(answer).ok

    @staticmethod
    def _accepted(answer: Answer) -> Answer:
        if not answer.ok:
            raise NoAnswer(f"answered {answer.text}")
        return answer
