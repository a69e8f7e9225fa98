"""What a person should look at: raised and resolved as a state is left behind and another begins. Pure.

An alert is open from the commit in which its condition begins to the one in which it has ended, under one key; the open
ones are part of the state, so each is told once and taken back once, whatever restarts in between. One cause, one page:
a credential, a quota or an image that fails is a page, and what it closes names it and is none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from slipway_common.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.redaction import redacted
from slipway_common.scopes import credential_key
from slipway_weight_calculator.domain import signals
from slipway_weight_calculator.domain.gates import CODE_LENGTH_MAX, OPEN, Failure, Gate
from slipway_weight_calculator.domain.record import failures
from slipway_weight_calculator.domain.rows import STAGES, Config, Row
from slipway_weight_calculator.domain.world import Draft

PAGE, NOTICE = "page", "notice"
CONFIG: Final = "config-closed"
POOL: Final = "pool-closed"
IMAGE: Final = "image-tripped"
QUOTA: Final = "quota-exhausted"
CREDENTIAL: Final = "credential-failing"
UNCLASSIFIED: Final = "unclassified-error"
RECOVERED: Final = "recovered"
TIMED: Final = frozenset({RECOVERED, UNCLASSIFIED})
SHARED: Final = {"image": IMAGE, "quota": QUOTA, "credential": CREDENTIAL}
UNCLASSIFIED_SECONDS: Final = 3600.0  # one alert an hour for a code that comes and goes
NAMED_MAX: Final = 5  # of pools and causes
NO_GATES: Final = tuple((name, OPEN) for name in STAGES)

PROBES: Final = (
    "probes with one start at a time, further and further apart, and launches again by itself after the first success"
)
Told = Mapping[str, AlertRaised]
"""Open alerts by their key."""


def changes(draft: Draft, told: Told, now: float) -> list[Alert]:
    """What a draft that is about to be committed at `now` raises and resolves, given what is `told` already.

    A condition that becomes worse is raised again under its key, as a page. Apply the result with `after`.
    """
    return list(_Look(draft, told, now).changes())


def after(told: Told, changed: Iterable[Alert]) -> dict[str, AlertRaised]:
    """The alerts that are open once the changes are told."""
    opened = dict(told)
    for alert in changed:
        if isinstance(alert, AlertRaised):
            opened[alert.dedup_key] = alert
        else:
            opened.pop(alert.dedup_key, None)
    return opened


def due(told: Told, draft: Draft, now: float) -> float | None:
    """When an open alert ends by time alone, if nothing else happens: there should be a commit then.

    One that has outlived its time at `now` waits for an event, and each commit looks at it.
    """
    ends = (_until(draft, alert) for alert in told.values() if alert.kind in TIMED)
    return min((end for end in ends if end > now), default=None)


class _Look:
    """One look at a draft. `raised` are those that it has found so far."""

    def __init__(self, draft: Draft, told: Told, now: float) -> None:
        self.draft = draft
        self.told = told
        self.now = now
        self.raised: dict[str, AlertRaised] = {}

    def changes(self) -> Iterator[Alert]:
        draft, world = self.draft, self.draft.world
        rows = sorted(key for key, row in draft.rows.items() if _moved(world.rows.get(key), row))
        turned = [key for key in rows if bool(_closed(world.rows.get(key))) != bool(_closed(draft.row(key)))]
        configs = {key for key in rows if "/" not in key} | set(draft.configs)
        touched = {key for key in turned if "/" not in key} | set(draft.configs)
        for key in draft.signals:
            for signal in (world.signals.get(key), draft.signals[key]):
                touched |= set(signal.configs) if signal is not None else set()
        for key in turned:
            if "/" in key:
                touched |= draft.members(key)
        both = [c for id_ in touched for c in (world.configs.get(id_), draft.config(id_)) if c is not None]
        pools = {config.declared.pool_id for config in both}
        # Its last config may have gone, or its first have come, while it is closed.
        shared = {key for key in rows if "/" in key}
        shared |= {key for config in both if config.id in draft.configs for key in config.keys[1:]}
        # What is shared comes first: what it closes names it.
        for key in sorted(shared):
            yield from self.settle(SHARED[_kind(key)], key, self.shared(key))
        for config_id in sorted(configs | touched):
            yield from self.settle(CONFIG, config_id, self.config(config_id))
        for pool_id in sorted(pools):
            yield from self.settle(POOL, pool_id, self.pool(pool_id))
        for key in rows:
            yield from self.recovered(key)
            yield from self.unclassified(key)
        yield from self.over()

    def settle(self, kind: str, subject: str, wanted: AlertRaised | None) -> Iterator[Alert]:
        """Raise what is wanted, again if it is worse than what is told; resolve what is wanted no more."""
        before = self.told.get(dedup_key(kind, subject))
        if wanted is not None:
            self.raised[wanted.dedup_key] = wanted
            if before is None or _worse(before, wanted):
                pools = {config.declared.pool_id for config in self.concerned(subject)}
                yield msgspec.structs.replace(wanted, effect=self.effect(sorted(pools)))
        elif before is not None:
            ended = "is open again" if self.concerned(subject) else "is not in use any more"
            yield _resolved(before, f"{_subject(subject)} {ended}")

    def concerned(self, subject: str) -> list[Config]:
        """Active configs of what an alert is about: a config, a pool or something shared."""
        config = self.draft.config(subject)
        if config is not None:
            return [config] if config.active else []
        return self.members(subject if "/" in subject else f"pool/{subject}")

    def members(self, key: str) -> list[Config]:
        """Active configs of a pool or of something shared, by id."""
        found = (self.draft.config(config_id) for config_id in sorted(self.draft.members(key)))
        return [config for config in found if config is not None and config.active]

    # Conditions

    def shared(self, key: str) -> AlertRaised | None:
        """An image, a quota or a credential whose gate is closed. Of a pool that it freezes the provisioner tells."""
        closed, kind, members = _closed(self.draft.row(key)), SHARED[_kind(key)], self.members(key)
        if not closed or not members:
            return None
        stage, gate = max(closed, key=lambda found: found[1].unconfirmed)
        worker = next((failure.worker_id for failure in reversed(gate.run) if failure.worker_id), "")
        look = f"slipway why {worker}" if worker else f"slipway lc show {members[0].id}"
        doing = {
            IMAGE: f"launches nothing of it but probes, whatever the config; {PROBES}",
            QUOTA: f"launches elsewhere; {PROBES}",
            CREDENTIAL: f"launches through other accounts, and pauses nothing that somebody has to resume; {PROBES}",
        }[kind]
        return AlertRaised(
            dedup_key=dedup_key(kind, key),
            subject_id=_name(key),
            kind=kind,
            summary=f"{_summary(kind, key)}: {_cause(gate)}",
            doing=doing,
            command=look,
            since=_time(gate.closed_at),
            cause=f"{stage}: {_cause(gate)}",
            severity=PAGE,
            evidence=_evidence(gate.run),
        )

    def config(self, config_id: str) -> AlertRaised | None:
        """A config that its own gates or a signal close, unless an image that is told already says why."""
        config = self.draft.config(config_id)
        if config is None or not config.active:
            return None
        own = [(stage, gate) for key, stage, gate in self.draft.closing(config) if key == config_id]
        down = signals.is_down(self.draft.said(config_id))
        if dedup_key(CONFIG, config_id) not in self.told and self.paged(config.shared["image"]):
            own = [(stage, gate) for stage, gate in own if stage == "launch"]
        if not own and down is None:
            return None
        if own:
            stage, gate = own[0]
            cause, since, evidence = f"{stage}: {_cause(gate)}", gate.closed_at, _evidence(gate.run)
            what, doing = "nothing but probes", f"launches from the pool's other configs; {PROBES}"
        else:
            assert down is not None
            cause, since, evidence = f"{down.source} says that it is down: {down.reason}", down.since, ()
            what = "nothing"
            doing = f"launches from the pool's other configs until {down.source} takes it back or its time is up"
        return AlertRaised(
            dedup_key=dedup_key(CONFIG, config_id),
            subject_id=config_id,
            kind=CONFIG,
            summary=f"{config_id} launches {what}: {cause}",
            doing=doing,
            command=f"slipway lc show {config_id}",
            since=_time(since),
            cause=cause,
            severity=NOTICE,
            evidence=evidence,
        )

    def pool(self, pool_id: str) -> AlertRaised | None:
        """A pool of which every active config is closed; no page of its own where pages say why."""
        causes: dict[str, None] = {}
        since, explained, members = 0.0, True, self.members(f"pool/{pool_id}")
        for config in members:
            closing, down = self.draft.closing(config), signals.is_down(self.draft.said(config.id))
            if not closing and down is None:
                return None
            since = max(since, min([gate.closed_at for _, _, gate in closing] + ([down.since] if down else [])))
            paged = [key for key in config.keys[1:] if self.paged(key)]
            explained = explained and bool(paged)
            causes |= dict.fromkeys(paged or [config.id])
        if not members:
            return None
        more = f" and {len(causes) - NAMED_MAX} more" if len(causes) > NAMED_MAX else ""
        cause = ", ".join(_subject(key) for key in list(causes)[:NAMED_MAX]) + more
        return AlertRaised(
            dedup_key=dedup_key(POOL, pool_id),
            subject_id=pool_id,
            kind=POOL,
            summary=f"nothing of {pool_id} is open, by {cause}",
            doing="goes on with probes, one for the whole pool every 30 s where launches fail",
            command=f"slipway why {pool_id}",
            since=_time(since),
            cause=cause,
            severity=NOTICE if explained else PAGE,
        )

    def recovered(self, key: str) -> Iterator[Alert]:
        """A success has opened a gate. It ends once it has stayed open for long enough, or closes again."""
        before, row = self.draft.world.rows.get(key), self.draft.row(key)
        told = self.told.get(dedup_key(RECOVERED, key))
        if told is not None:
            if _closed(row):
                yield _resolved(told, f"{_subject(key)} has closed again")
            return
        if before is None or row is None or _closed(row):
            return
        for name in STAGES:
            then, stage = getattr(before, name), getattr(row, name)
            if then.gate.closed and stage.succeeded > then.succeeded:
                members = self.concerned(key)
                if not members:
                    return
                seconds = max(0.0, stage.gate.opened_at - then.gate.closed_at)
                yield AlertRaised(
                    dedup_key=dedup_key(RECOVERED, key),
                    subject_id=_name(key),
                    kind=RECOVERED,
                    summary=f"{_subject(key)} launches again, after {_spelled(seconds)}",
                    effect=self.effect(sorted({config.declared.pool_id for config in members})),
                    doing="lets more and more under way with each success, and tries what closed together with it",
                    command=f"slipway lc show {members[0].id}",
                    since=_time(stage.gate.opened_at),
                    cause=f"{name}: a start has succeeded; before, {_cause(then.gate)}",
                    severity=NOTICE,
                )
                return

    def unclassified(self, key: str) -> Iterator[Alert]:
        """A definite refusal whose code no table knows; once per account and code."""
        config, row = self.draft.config(key), self.draft.row(key)
        if config is None or row is None:
            return
        for failure in _failures(row):
            code = redacted(failure.code, CODE_LENGTH_MAX) or "no code"
            named = dedup_key(UNCLASSIFIED, f"{config.declared.account_id}/{code}")
            if failure.classified or named in self.told or named in self.raised:
                continue
            said = f", and said: {redacted(failure.sample)}" if failure.sample else ""
            self.raised[named] = alert = AlertRaised(
                dedup_key=named,
                subject_id=config.declared.account_id,
                kind=UNCLASSIFIED,
                summary=f"{config.declared.account_id} refused with {code}, a code that no table knows",
                effect=f"nobody knows whether more than {config.id} fails by it",
                doing=f"charges {config.id}, which closes after 5 of them in a row",
                command=f"slipway why {failure.worker_id}",
                since=_time(failure.at),
                cause=f"{code} in answer to a launch from {config.id}{said}; `errors` in the account's settings can say"
                " what it means",
                severity=NOTICE,
                evidence=_evidence([failure]),
            )
            yield alert

    def over(self) -> Iterator[Alert]:
        """What ends by time alone."""
        for alert in self.told.values():
            if alert.kind not in TIMED or _until(self.draft, alert) > self.now:
                continue
            if alert.kind == RECOVERED:
                if not _closed(self.draft.row(_key_of(alert))):  # else it has been taken back already
                    yield _resolved(alert, f"{_subject(_key_of(alert))} has stayed open")
            elif not self.still_comes(alert):
                yield _resolved(alert, f"no more of it from {alert.subject_id}")

    def still_comes(self, alert: AlertRaised) -> bool:
        """Whether some config's newest failures still hold the code."""
        code = _key_of(alert).removeprefix(f"{alert.subject_id}/")
        return any(
            not failure.classified and (redacted(failure.code, CODE_LENGTH_MAX) or "no code") == code
            for config in self.members(credential_key(alert.subject_id))
            if (row := self.draft.row(config.id)) is not None
            for failure in _failures(row)
        )

    # Words

    def effect(self, pools: Sequence[str]) -> str:
        """What is left for tasks that wait, as far as it is known here."""
        parts = []
        for pool_id in pools[:NAMED_MAX]:
            members = self.members(f"pool/{pool_id}")
            left = sum(not self.draft.closing(c) and signals.is_down(self.draft.said(c.id)) is None for c in members)
            what = f"{left} of {len(members)} launch configs" if left else "probes alone"
            parts.append(f"those of {pool_id} get workers from {what}")
        more = f" and {len(pools) - NAMED_MAX} pools more" if len(pools) > NAMED_MAX else ""
        return f"of the tasks that wait, {', '.join(parts)}{more}" if parts else ""

    def paged(self, key: str) -> bool:
        """Whether the closure of something shared is told as a page."""
        named = dedup_key(SHARED[_kind(key)], key)
        return bool(_closed(self.draft.row(key))) and (named in self.told or named in self.raised)


def dedup_key(kind: str, subject: str) -> str:
    return f"weight-calculator/{kind}/{subject}"


def _moved(before: Row | None, row: Row | None) -> bool:
    """Whether a gate of a row is another one than before."""
    return any(gate is not then for (_, gate), (_, then) in zip(_gates(row), _gates(before), strict=True))


def _gates(row: Row | None) -> tuple[tuple[str, Gate], ...]:
    if row is None:
        return NO_GATES
    return ("launch", row.launch.gate), ("boot", row.boot.gate), ("claim", row.claim.gate)


def _closed(row: Row | None) -> list[tuple[str, Gate]]:
    return [(name, gate) for name, gate in _gates(row) if gate.closed_at > 0]


def _failures(row: Row) -> Iterator[Failure]:
    for _, gate in _gates(row):
        yield from gate.run


def _worse(before: AlertRaised, now: AlertRaised) -> bool:
    return (before.severity, now.severity) == (NOTICE, PAGE)


def _resolved(alert: AlertRaised, summary: str) -> AlertResolved:
    return AlertResolved(
        dedup_key=alert.dedup_key,
        subject_id=alert.subject_id,
        kind=alert.kind,
        summary=summary,
        since=alert.since,
        cause=alert.cause,
        severity=alert.severity,
    )


def _until(draft: Draft, alert: AlertRaised) -> float:
    """When an alert that nothing takes back ends."""
    since = alert.since.timestamp() if alert.since else 0.0
    if alert.kind == UNCLASSIFIED:
        return since + UNCLASSIFIED_SECONDS
    key = _key_of(alert)
    config = draft.config(key) or next((c for m in sorted(draft.members(key)) if (c := draft.config(m))), None)
    return since + (draft.policy(config).relapse_seconds if config is not None else 0.0)


def _key_of(alert: AlertRaised) -> str:
    return alert.dedup_key.split("/", 2)[2]


def _kind(key: str) -> str:
    return key.partition("/")[0]


def _name(key: str) -> str:
    """What a shared key names, for people: the account of a credential, the revision of an image."""
    return key.partition("/")[2] or key


def _subject(key: str) -> str:
    return key.replace("/", " ", 1)


def _summary(kind: str, key: str) -> str:
    return {
        IMAGE: f"image {_name(key)} does not start",
        QUOTA: f"quota {_name(key)} is used up",
        CREDENTIAL: f"account {_name(key)} refuses its credential",
    }[kind]


def _cause(gate: Gate) -> str:
    cleaned = [msgspec.structs.replace(failure, code=redacted(failure.code, CODE_LENGTH_MAX)) for failure in gate.run]
    return ", ".join(failures(cleaned)) or "no start has succeeded"


def _evidence(run: Iterable[Failure]) -> tuple[str, ...]:
    """A line per worker: its instance, and where its machine's own words can be read."""
    lines = {}
    for failure in run:
        parts = [f"worker {failure.worker_id}"]
        parts += [f"instance {failure.instance_id}"] if failure.instance_id else []
        parts += [f"console {failure.console}"] if failure.console else []
        lines[failure.worker_id] = ", ".join(parts)
    return tuple(lines.values())


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _spelled(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
