"""Source `http`: any JSON over HTTP, and JMESPath expressions for the counts in it."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import jmespath
from pydantic import AfterValidator

from slipway_monitor.domain.counts import Counts, Unreadable, labelled
from slipway_monitor.sources.port import QuerySettings
from slipway_monitor.sources.web import Web, WebSettings

OF_EXPRESSIONS: Final = (jmespath.exceptions.UnknownFunctionError, jmespath.exceptions.ArityError)
"""Errors whose texts quote nothing of an answer."""


def _compiled(expression: str) -> str:
    try:
        jmespath.compile(expression)
    except jmespath.exceptions.JMESPathError as error:
        raise ValueError(f"is no JMESPath expression: {str(error).splitlines()[0]}") from None
    return expression


Expression = Annotated[str, AfterValidator(_compiled)]


class JsonSettings(QuerySettings):
    """Settings of sources that find their counts in JSON. With `pools` each query gives an object of labels."""

    tasks: Expression = "@"
    running: Expression | None = None


def counted(settings: JsonSettings, body: Any) -> list[Counts]:
    """Counts in a JSON value. Raises Unreadable."""
    try:
        tasks = jmespath.search(settings.tasks, body)
        running = jmespath.search(settings.running, body) if settings.running else None
    except jmespath.exceptions.JMESPathError as error:
        reason = str(error).splitlines()[0] if isinstance(error, OF_EXPRESSIONS) else type(error).__name__
        raise Unreadable(f"the expression fails on this answer: {reason}") from None
    return labelled(tasks, running, labels=settings.pools, is_both=settings.is_both)


class HttpSettings(WebSettings, JsonSettings):
    """Settings of a queue that is counted over HTTP."""


class HttpSource:
    """A queue that is counted over HTTP."""

    Settings = HttpSettings

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._web = Web(settings)

    async def read(self) -> Sequence[Counts]:
        return counted(self._settings, await self._web.get())

    async def close(self) -> None:
        await self._web.close()
