"""Source `prometheus`: PromQL queries. A query without a series is no report: its exporter may be away."""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import model_validator

from slipway_monitor.domain.counts import Counts, Unreadable, labelled
from slipway_monitor.sources.port import Behind, QuerySettings
from slipway_monitor.sources.web import Web, WebSettings

PATH = "/api/v1/query"


class PrometheusSettings(WebSettings, QuerySettings):
    """Settings of queries. With `pools` the values of `label` name the labels."""

    behind_seconds: Behind = 60.0
    """As in every source; Prometheus scrapes every 60 s unless it is configured otherwise."""
    label: str | None = None

    @model_validator(mode="after")
    def _has_label(self) -> Self:
        if (self.label is not None) is not (self.pools is not None):
            raise ValueError("pools needs label, the label of the series that names them, and pool has none")
        return self


class PrometheusSource:
    """Queries of a Prometheus, or of anything with its HTTP API."""

    Settings = PrometheusSettings

    def __init__(self, settings: PrometheusSettings) -> None:
        self._settings = settings
        self._web = Web(settings)

    async def read(self) -> Sequence[Counts]:
        settings = self._settings
        tasks = await self._query(settings.tasks)
        running = await self._query(settings.running) if settings.running else None
        return labelled(tasks, running, labels=settings.pools, is_both=settings.is_both)

    async def _query(self, query: str) -> Any:
        """The value of a query, or the values by label. Raises Unreadable."""
        body = await self._web.get(PATH, {"query": query})
        try:
            if body["status"] != "success":
                raise Unreadable("the query fails; try it in the web interface")
            kind, result = body["data"]["resultType"], body["data"]["result"]
            series = [({}, result)] if kind == "scalar" else [(each["metric"], each["value"]) for each in result]
            values = [(dict(labels), float(value)) for labels, (_, value) in series]
        except (KeyError, TypeError, ValueError):
            raise Unreadable("the answer is not that of a Prometheus; a query must give an instant vector") from None
        if not values:
            raise Unreadable("the query has no series")
        if self._settings.label is None:
            if len(values) > 1:
                raise Unreadable(f"the query has {len(values)} series; aggregate them, for example with sum()")
            return values[0][1]
        by_label = {labels.get(self._settings.label): value for labels, value in values}
        if None in by_label or len(by_label) < len(values):
            raise Unreadable(f"the query needs one series for each {self._settings.label}; aggregate with sum by ()")
        return by_label

    async def close(self) -> None:
        await self._web.close()
