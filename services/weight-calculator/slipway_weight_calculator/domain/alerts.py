"""Alerts: raised and resolved as conditions begin and end. Pure.

An alert is open, under one key, from the commit in which its condition begins to the commit in which it has ended. Open
alerts are part of the state, so each is raised once and resolved once, whatever restarts in between. Each cause has one
page: a failing credential, quota or image is a page; alerts of configs and pools that it trips name it and are notices.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

from slipway_api.events.alert import Alert, AlertIdentity, AlertRaised, AlertResolved, alert_key
from slipway_api.events.fitting import fitted
from slipway_api.events.scopes import Key, config_key, credential_key
from slipway_api.percent import decoded
from slipway_common.base.redaction import redacted
from slipway_common.base.text import LISTED_MAX, duration_text, listed
from slipway_weight_calculator.domain import signals
from slipway_weight_calculator.domain.draft import ActiveTrip, Draft
from slipway_weight_calculator.domain.record import failure_text
from slipway_weight_calculator.domain.rows import STAGES, Config, Row, pool_key
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.trips import CODE_LENGTH_MAX, HEALTHY, Failure, Trip

SERVICE: Final = "weight-calculator"
PAGE, NOTICE = "page", "notice"
CONFIG: Final = "config-tripped"
POOL: Final = "pool-tripped"
IMAGE: Final = "image-tripped"
QUOTA: Final = "quota-exhausted"
CREDENTIAL: Final = "credential-failing"
CAPACITY: Final = "capacity-unavailable"
UNCLASSIFIED: Final = "unclassified-error"
RECOVERED: Final = "recovered"
TIMED: Final = frozenset({RECOVERED, UNCLASSIFIED})
SHARED: Final = {"image": IMAGE, "quota": QUOTA, "credential": CREDENTIAL, "capacity": CAPACITY}
PAGED: Final = frozenset({IMAGE, QUOTA, CREDENTIAL})
"""Alerts of shared keys that a person has to end. A shortage of capacity ends by itself."""
UNCLASSIFIED_SECONDS: Final = 3600.0  # one alert an hour for a code that comes and goes
NO_TRIPS: Final = tuple((name, HEALTHY) for name in STAGES)

PROBES: Final = "probes with one start at a time at growing intervals, and resumes launches after the first success"
OpenAlerts = Mapping[str, AlertRaised]
"""Open alerts by their key."""


def changes(draft: Draft, open_alerts: OpenAlerts, now: float) -> list[Alert]:
    """Alerts that a draft about to be committed at `now` raises and resolves, given those that are open.

    A condition that becomes worse is raised again under its key, as a page. Notes are cut to their limit, since open
    alerts are stored too. Apply the result with `after`.
    """
    return [fitted(alert) for alert in _Changes(draft, open_alerts, now).changes()]


def after(open_alerts: OpenAlerts, changed: Iterable[Alert]) -> dict[str, AlertRaised]:
    """The alerts that are open after the changes."""
    found = dict(open_alerts)
    for alert in changed:
        if isinstance(alert, AlertRaised):
            found[alert.dedup_key] = alert
        else:
            found.pop(alert.dedup_key, None)
    return found


def due(open_alerts: OpenAlerts, draft: Draft, now: float) -> float | None:
    """The next time after `now` at which an open alert ends by time alone; a commit should happen then.

    An alert that should have ended by `now` is checked again in each commit.
    """
    ends = (_until(draft, alert) for alert in open_alerts.values() if alert.kind in TIMED)
    return min((end for end in ends if end > now), default=None)


class _Changes:
    """Computation of the alert changes of a draft. `raised` are those found so far."""

    def __init__(self, draft: Draft, open_alerts: OpenAlerts, now: float) -> None:
        self.draft = draft
        self.open_alerts = open_alerts
        self.now = now
        self.raised: dict[str, AlertRaised] = {}
        self._tripped_by: dict[str, tuple[list[ActiveTrip], Signal | None]] = {}
        self._effects: dict[str, str] = {}

    def changes(self) -> Iterator[Alert]:
        draft, world = self.draft, self.draft.world
        changed = sorted(key for key, row in draft.rows.items() if _changed(world.rows.get(key), row))
        turned = [key for key in changed if bool(_tripped(world.rows.get(key))) != bool(_tripped(draft.row(key)))]
        configs = {key.id for key in changed if key.kind not in SHARED}
        touched = {*draft.configs, *draft.signalled()}
        for key in turned:
            touched |= draft.affected(key)
        both = [c for id_ in touched for c in (world.configs.get(id_), draft.config(id_)) if c is not None]
        pools = {config.declared.pool_id for config in both}
        # A shared key may lose its last config or gain its first one while it is tripped.
        shared = {key for key in changed if key.kind in SHARED}
        shared |= {key for config in both if config.id in draft.configs for key in config.keys[1:]}
        # Shared keys come first: alerts of the configs that they trip name them.
        for key in sorted(shared):
            yield from self.update(SHARED[key.kind], key, self.shared(key))
        for config_id in sorted(configs | touched):
            yield from self.update(CONFIG, config_key(config_id), self.config(config_id))
        for pool_id in sorted(pools):
            yield from self.update(POOL, pool_key(pool_id), self.pool(pool_id))
        for key in changed:
            yield from self.recovered(key)
            yield from self.unclassified(key)
        yield from self.expired()

    def update(self, kind: str, subject: Key, wanted: AlertRaised | None) -> Iterator[Alert]:
        """Raise the wanted alert, again if it is worse than the open one; resolve an open one that is not wanted."""
        before = self.open_alerts.get(dedup_key(kind, subject))
        if wanted is not None:
            self.raised[wanted.dedup_key] = wanted
            if before is None or _worse(before, wanted):
                pools = {config.declared.pool_id for config in self.configs_of(subject)}
                yield msgspec.structs.replace(wanted, effect=self.effect(sorted(pools)))
        elif before is not None:
            ended = "recovered" if self.configs_of(subject) else "is no longer in use"
            yield _resolved(before, f"{_subject(subject)} {ended}")

    def tripped_by(self, config: Config) -> tuple[list[ActiveTrip], Signal | None]:
        """Active trips of a config and the down signal on it: read once for the alerts on it, its pool, its keys."""
        if config.id not in self._tripped_by:
            down = signals.down_signal(self.draft.signals_on(config.id))
            self._tripped_by[config.id] = self.draft.trips_on(config), down
        return self._tripped_by[config.id]

    def configs_of(self, subject: Key) -> list[Config]:
        """Active configs of the subject of an alert, by id: a config's own, or those of a pool or of a shared key."""
        found = (self.draft.config(config_id) for config_id in sorted(self.draft.affected(subject)))
        return [config for config in found if config is not None and config.active]

    # Conditions

    def shared(self, key: Key) -> AlertRaised | None:
        """Alert of a tripped key that configs share; the provisioner raises those of pools frozen by an image."""
        tripped, kind, members = _tripped(self.draft.row(key)), SHARED[key.kind], self.configs_of(key)
        if not tripped or not members:
            return None
        stage, trip = max(tripped, key=lambda found: found[1].unconfirmed)
        account = members[0].declared.account_id
        command = {
            IMAGE: f"slipway why {shlex.quote(f'image/{key.id}')}",
            QUOTA: f"slipway account check {account}",
            CREDENTIAL: f"slipway account check {account}",
            CAPACITY: f"slipway lc show {members[0].id}",
        }[kind]
        doing = {
            IMAGE: f"launches only probes of this image, in every config; {PROBES}",
            QUOTA: f"launches elsewhere; {PROBES}",
            CREDENTIAL: f"launches through other accounts, and pauses nothing that has to be resumed by hand; {PROBES}",
            CAPACITY: f"launches from other capacity; {PROBES}",
        }[kind]
        return AlertRaised(
            **_identity(kind, key),
            summary=f"{_summary(kind, key)}: {_cause(trip)}",
            doing=doing,
            command=command,
            since=_time(trip.tripped_at),
            cause=f"{stage}: {_cause(trip)}",
            severity=PAGE if kind in PAGED else NOTICE,
            evidence=_evidence(trip.run),
        )

    def config(self, config_id: str) -> AlertRaised | None:
        """Alert of a config tripped by its own failures or a signal, unless an open page of its image explains it."""
        config = self.draft.config(config_id)
        if config is None or not config.active:
            return None
        active, down = self.tripped_by(config)
        own = [(stage, trip) for key, stage, trip in active if key == config.key]
        if own and dedup_key(CONFIG, config.key) not in self.open_alerts and self.is_paged(config.shared["image"]):
            own = [(stage, trip) for stage, trip in own if stage == "launch"]
        if not own and down is None:
            return None
        if own:
            stage, trip = own[0]
            cause, since, evidence = f"{stage}: {_cause(trip)}", trip.tripped_at, _evidence(trip.run)
            summary, doing = f"tripped at {cause}", f"launches from the pool's other configs; {PROBES}"
        else:
            assert down is not None
            cause, since, evidence = f"down signal from {down.source}: {down.reason}", down.since, ()
            summary = f"tripped: {cause}"
            doing = f"launches from the pool's other configs until {down.source} clears the signal or it expires"
        return AlertRaised(
            **_identity(CONFIG, config.key),
            summary=f"{config_id} {summary}",
            doing=doing,
            command=f"slipway lc show {config_id}",
            since=_time(since),
            cause=cause,
            severity=NOTICE,
            evidence=evidence,
        )

    def pool(self, pool_id: str) -> AlertRaised | None:
        """Alert of a pool of which every active config is tripped; a notice if open pages explain all of them."""
        causes: dict[Key, None] = {}
        since, explained, members = 0.0, True, self.configs_of(pool_key(pool_id))
        for config in members:
            active, down = self.tripped_by(config)
            if not active and down is None:
                return None
            since = max(since, min([trip.tripped_at for _, _, trip in active] + ([down.since] if down else [])))
            paged = [key for key in config.keys[1:] if self.is_paged(key)]
            explained = explained and bool(paged)
            lacking = [key for key, _, _ in active if SHARED.get(key.kind) == CAPACITY]
            causes |= dict.fromkeys(paged or lacking or [config.key])
        if not members:
            return None
        cause = listed([_subject(key) for key in causes])
        return AlertRaised(
            **_identity(POOL, pool_key(pool_id)),
            summary=f"every launch config of {pool_id} is tripped: {cause}",
            doing="continues with probes, one every 30 s for the whole pool where launches fail",
            command=f"slipway why {pool_id}",
            since=_time(since),
            cause=cause,
            severity=NOTICE if explained else PAGE,
        )

    def recovered(self, key: Key) -> Iterator[Alert]:
        """Notice of a recovery. It ends once the row has stayed healthy for long enough, or trips again."""
        before, row = self.draft.world.rows.get(key), self.draft.row(key)
        notice = self.open_alerts.get(dedup_key(RECOVERED, key))
        if notice is not None:
            if _tripped(row):
                yield _resolved(notice, f"{_subject(key)} tripped again")
            return
        if before is None or row is None or _tripped(row):
            return
        for name in STAGES:
            then, stage = getattr(before, name), getattr(row, name)
            if then.trip.tripped and stage.succeeded > then.succeeded:
                members = self.configs_of(key)
                if not members:
                    return
                seconds = max(0.0, stage.trip.recovered_at - then.trip.tripped_at)
                yield AlertRaised(
                    **_identity(RECOVERED, key),
                    summary=f"{_subject(key)} recovered after {duration_text(seconds)}",
                    effect=self.effect(sorted({config.declared.pool_id for config in members})),
                    doing="allows more starts with each success, and probes configs that tripped at the same time",
                    command=f"slipway lc show {members[0].id}",
                    since=_time(stage.trip.recovered_at),
                    cause=f"{name}: a start succeeded after {_cause(then.trip)}",
                    severity=NOTICE,
                )
                return

    def unclassified(self, key: Key) -> Iterator[Alert]:
        """Notice of a definite refusal with an unknown error code; once per account and code."""
        config = self.draft.config(key.id) if key.kind not in SHARED else None
        row = self.draft.row(key)
        if config is None or row is None:
            return
        for failure in _failures(row):
            if failure.classified:
                continue
            code = redacted(failure.code, CODE_LENGTH_MAX) or "no code"
            account = Key("account", config.declared.account_id)
            named = dedup_key(UNCLASSIFIED, account, code)
            if named in self.open_alerts or named in self.raised:
                continue
            sample = f", with the message: {redacted(failure.sample)}" if failure.sample else ""
            self.raised[named] = alert = AlertRaised(
                **_identity(UNCLASSIFIED, account, code),
                summary=f"{account} refused a launch with {code}, an unknown error code",
                effect=f"unknown: it may affect more than {config.id}",
                doing=f"charges {config.id}, which trips after 5 of them in a row",
                command=f"slipway lc show {config.id}  # then classify the code in `errors` of the account",
                since=_time(failure.at),
                cause=f"{code} in response to a launch from {config.id}{sample}",
                severity=NOTICE,
                evidence=_evidence([failure]),
            )
            yield alert

    def expired(self) -> Iterator[Alert]:
        """Resolve the alerts that end by time alone."""
        for alert in self.open_alerts.values():
            if alert.kind not in TIMED or _until(self.draft, alert) > self.now:
                continue
            if alert.kind == RECOVERED:
                if not _tripped(self.draft.row(_key_of(alert))):  # otherwise it is resolved already
                    yield _resolved(alert, f"{_subject(_key_of(alert))} has stayed healthy")
            elif not self.still_occurs(alert):
                yield _resolved(alert, f"no more errors with this code from {alert.subject_id}")

    def still_occurs(self, alert: AlertRaised) -> bool:
        """True if the newest failures of a config still include the code."""
        *_, code = decoded(alert.dedup_key)
        return any(
            not failure.classified and (redacted(failure.code, CODE_LENGTH_MAX) or "no code") == code
            for config in self.configs_of(credential_key(alert.subject_id))
            if (row := self.draft.row(config.key)) is not None
            for failure in _failures(row)
        )

    # Texts

    def effect(self, pools: Sequence[str]) -> str:
        """Effect on pending tasks, as far as the weight-calculator knows."""
        parts = [self.effect_on(pool_id) for pool_id in pools[:LISTED_MAX]]
        more = f"; and {len(pools) - LISTED_MAX} more pools" if len(pools) > LISTED_MAX else ""
        return "; ".join(parts) + more

    def effect_on(self, pool_id: str) -> str:
        """Effect on the pending tasks of a pool."""
        if pool_id not in self._effects:
            members = self.configs_of(pool_key(pool_id))
            names = {config.name for config in members}
            left = {config.name for config in members if self.tripped_by(config) == ([], None)}
            sources = f"{len(left)} of {len(names)} launch configs" if left else "probes only"
            self._effects[pool_id] = f"pending tasks of {pool_id} get workers from {sources}"
        return self._effects[pool_id]

    def is_paged(self, key: Key) -> bool:
        """True if an open page covers the trip of a shared key."""
        kind = SHARED[key.kind]
        if kind not in PAGED or not _tripped(self.draft.row(key)):
            return False
        named = dedup_key(kind, key)
        return named in self.open_alerts or named in self.raised


# Each turn looks up the alerts of all that its trips affect: encoding their keys took half of its time.
@lru_cache(maxsize=32_768)
def dedup_key(kind: str, subject: Key, *more: str) -> str:
    return alert_key(SERVICE, kind, *decoded(subject.text), *more)


def _identity(kind: str, subject: Key, *more: str) -> AlertIdentity:
    return {
        "dedup_key": dedup_key(kind, subject, *more),
        "kind": kind,
        "subject_kind": subject.kind,
        "subject_id": subject.id,
    }


def _changed(before: Row | None, row: Row | None) -> bool:
    """True if a trip of the row has changed."""
    if before is None or row is None:
        return any(trip is not then for (_, trip), (_, then) in zip(_stages(row), _stages(before), strict=True))
    return (
        row.launch.trip is not before.launch.trip
        or row.boot.trip is not before.boot.trip
        or row.claim.trip is not before.claim.trip
    )


def _stages(row: Row | None) -> tuple[tuple[str, Trip], ...]:
    if row is None:
        return NO_TRIPS
    return ("launch", row.launch.trip), ("boot", row.boot.trip), ("claim", row.claim.trip)


def _tripped(row: Row | None) -> list[tuple[str, Trip]]:
    return [(name, trip) for name, trip in _stages(row) if trip.tripped_at > 0]


def _failures(row: Row) -> Iterator[Failure]:
    for _, trip in _stages(row):
        yield from trip.run


def _worse(before: AlertRaised, now: AlertRaised) -> bool:
    return (before.severity, now.severity) == (NOTICE, PAGE)


def _resolved(alert: AlertRaised, summary: str) -> AlertResolved:
    return AlertResolved(
        **alert.identity,
        summary=summary,
        since=alert.since,
        cause=alert.cause,
        severity=alert.severity,
    )


def _until(draft: Draft, alert: AlertRaised) -> float:
    """Time at which an alert ends that no event resolves."""
    since = alert.since.timestamp() if alert.since else 0.0
    if alert.kind == UNCLASSIFIED:
        return since + UNCLASSIFIED_SECONDS
    key = _key_of(alert)
    config = next((c for m in sorted(draft.affected(key)) if (c := draft.config(m))), None)
    return since + (draft.policy(config).relapse_seconds if config is not None else 0.0)


def _key_of(alert: AlertRaised) -> Key:
    return Key(alert.subject_kind, alert.subject_id)


def _subject(key: Key) -> str:
    """The subject of an alert for people: the id of a config or a pool; other ids are ambiguous without their kind."""
    return str(key) if key.kind in SHARED else key.id


def _summary(kind: str, key: Key) -> str:
    return {
        IMAGE: f"{key} fails to start",
        QUOTA: f"{key} is exhausted",
        CREDENTIAL: f"account {key.id} rejects its credential",
        CAPACITY: f"{key} is unavailable",
    }[kind]


def _cause(trip: Trip) -> str:
    cleaned = [msgspec.structs.replace(failure, code=redacted(failure.code, CODE_LENGTH_MAX)) for failure in trip.run]
    return failure_text(cleaned)


def _evidence(run: Iterable[Failure]) -> tuple[str, ...]:
    """A line per worker: its instance and the location of its console log."""
    lines = {}
    for failure in run:
        parts = [f"worker {failure.worker_id}"]
        parts += [f"instance {failure.instance_id}"] if failure.instance_id else []
        parts += [f"console {failure.console}"] if failure.console else []
        lines[failure.worker_id] = ", ".join(parts)
    return tuple(lines.values())


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
