"""The port that sources of demand implement, and the settings that all of them have.

A source is a class under an entry point `slipway.sources`: its name there is the `kind` in the file of sources. It is
constructed with its settings and makes no call before its first `read`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from slipway_common.declaration.fields import Id, Name, Seconds
from slipway_monitor.domain.counts import Counting, Counts, Reporting, Unreadable

SHORTEST_INTERVAL_SECONDS = 0.1
Behind = Annotated[float, Field(strict=True, ge=0, le=3_600)]


class SourceSettings(BaseModel):
    """Settings of every source. Kinds add theirs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    countings: ClassVar[frozenset[Counting]] = frozenset(Counting)
    """Countings that the kind offers."""

    name: Name
    """Source of the demand reports."""
    kind: str
    counts: Counting
    claims: Literal["wrap", "hooks"] | None = None
    """How workers report their tasks: by `slipway-worker wrap`, or by an agent or hooks of their own."""
    pool: Id | None = None
    pools: Mapping[str, Id] | None = Field(default=None, min_length=1)
    """Pools of the labels of the queue."""
    interval_seconds: Seconds = 10.0
    timeout_seconds: Seconds = 10.0
    valid_for_seconds: Seconds = 300.0
    behind_seconds: Behind = 0.0
    """Age that what the queue shows may have, such as a page that is made at intervals or a scraped metric. A task that
    began within it would count as waiting and as running."""

    @field_validator("interval_seconds")
    @classmethod
    def _is_an_interval(cls, value: float) -> float:
        if value < SHORTEST_INTERVAL_SECONDS:
            raise ValueError(f"is below {SHORTEST_INTERVAL_SECONDS:g} s")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.pool is None) == (self.pools is None):
            raise ValueError("give either pool, or pools for the labels of the queue")
        if self.counts not in self.countings:
            offered = " or ".join(sorted(self.countings))
            raise ValueError(f"counts: a queue of kind {self.kind} counts {offered}, not {self.counts}")
        if self.counts is Counting.WAITING and self.claims is None:
            raise ValueError(
                "counts: waiting needs claims: wrap or claims: hooks, since tasks that run count only if workers "
                "report them"
            )
        if self.valid_for_seconds < 2 * self.interval_seconds + self.behind_seconds:
            raise ValueError(
                "valid_for_seconds must be at least twice interval_seconds, and behind_seconds more, or a source with "
                "one lost report is stale"
            )
        return self

    @property
    def is_both(self) -> bool:
        return self.counts is Counting.BOTH

    @property
    def reporting(self) -> Reporting:
        return Reporting(
            source=self.name,
            counting=self.counts,
            pools=self.pools or {"": self.pool or ""},
            valid_for_seconds=self.valid_for_seconds,
        )


class QuerySettings(SourceSettings):
    """Settings of sources that are asked by a query, and with `counts: both` by a second one for the tasks that run."""

    tasks: str
    running: str | None = None

    @model_validator(mode="after")
    def _has_queries(self) -> Self:
        if (self.running is not None) is not self.is_both:
            raise ValueError("running, a query for the tasks that run, belongs to counts: both, which needs it")
        return self


class Source(Protocol):
    """One queue. `read` raises Unreadable rather than guess: no report is not zero. It is never called again before it
    has ended, and ends in time by being cancelled, so that it may not block: all sources share an event loop."""

    Settings: ClassVar[type[SourceSettings]]

    def __init__(self, settings: "SourceSettings") -> None: ...

    async def read(self) -> Sequence[Counts]: ...

    async def close(self) -> None: ...


def secret(path: Path | None) -> str:
    """The secret in a file, read anew each time, since it may be rotated; empty without a file. Raises Unreadable."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}: {getattr(error, 'strerror', None) or 'is no text'}") from None
