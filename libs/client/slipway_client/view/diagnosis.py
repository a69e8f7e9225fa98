"""Checks of a deployment, graded, with a remedy for each problem. Pure: grades facts that were gathered before."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_api.http.provisioner.accounts import Account
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import LaunchStop, Pool
from slipway_api.http.provisioner.recovery import Deployment
from slipway_api.http.service import LeaderStatus, ListedAlert, ServiceStatus
from slipway_client.view import moments, phrases
from slipway_client.view.why.accounts import lower_limit, tripped_by_credential
from slipway_common.base.revisions import name_of
from slipway_common.base.text import listed

OK, NOTE, WARN, FAIL = "ok", "note", "warn", "fail"
SKEW_SECONDS: Final = 5.0  # leases and worker deadlines tolerate as much
UNAVAILABLE_SECONDS: Final = 30.0  # the provisioner, too, treats a service as unavailable after this time
OUTBOX_SECONDS: Final = 10.0  # a relay sends within milliseconds
LAG_EVENTS: Final = 1000
CONFIG_TRIPPED, POOL_TRIPPED, THROTTLED = "config-tripped", "pool-tripped", "account-throttled"  # kinds of alerts
NAMED: Final = 3  # similar objects named in one finding
DATABASE_REMEDY: Final = (
    "check that PostgreSQL runs and that the service can reach it; then read the log of the service; if its schema is "
    "missing, run its migrations"
)


class ServiceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A service's answer to GET /status with the local times before and after it; `error` if there was none."""

    url: str
    status: ServiceStatus | None = None
    error: str = ""
    asked_at: datetime
    answered_at: datetime


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """All facts that are checked. None: not available, for a reason that another finding reports.

    `differences` are those of the topics from the registry; `heartbeats` the newest of each service; `alerts` the open
    ones.
    """

    own_version: str
    services: Mapping[str, ServiceAnswer]
    kafka: str
    kafka_error: str = ""
    differences: Sequence[str] | None = None
    heartbeats: Mapping[str, datetime] | None = None
    alerts: Sequence[ListedAlert] | None = None
    deployment: Deployment | None = None
    launch_stops: Sequence[LaunchStop] | None = None
    accounts: Sequence[Account] | None = None
    pools: Sequence[Pool] | None = None
    configs: Sequence[LaunchConfig] | None = None
    now: datetime


class Finding(msgspec.Struct, frozen=True):
    """One line of the result. `grade`: ok; note, Slipway handles it alone; warn, a person should look; fail, something
    does not work. `remedy` is empty where nothing has to be done."""

    grade: str
    check: str
    detail: str
    remedy: str = ""


def diagnose(seen: Gathered) -> Iterator[Finding]:
    """Every check in a fixed order; each has one ok finding, or one for each problem."""
    statuses = {name: answer.status for name, answer in seen.services.items() if answer.status is not None}
    for name, answer in seen.services.items():
        yield from _service(name, answer, seen.now)
    if seen.deployment is not None:
        yield Finding(OK, "deployment", f"{seen.deployment.id}, the tag of all its machines")
    if statuses:
        yield from _versions(statuses, seen.own_version)
    yield from _clocks(seen.services)
    yield from _kafka(seen)
    yield from _unencrypted(seen, statuses)
    if statuses:
        # In an outage of Kafka no service learns of new events.
        known = OK, "lag", f"at most {LAG_EVENTS} events behind on every topic"
        yield from _or(_lag(statuses), *((NOTE, "lag", "unknown: Kafka did not answer") if seen.kafka_error else known))
        yield from _or(_stopped(statuses), OK, "positions", "no partition is stopped")
        yield from _or(_dead(statuses), OK, "dead letters", "none")
        yield from _or(_outbox(statuses), OK, "outbox", "events are published at once")
    if seen.heartbeats is not None:
        yield from _or(_heartbeats(seen), OK, "heartbeats", _ages(seen))
    if seen.alerts is not None:
        others = "other " if any(map(phrases.is_tripped, seen.configs or ())) else ""
        yield from _or(_alerts(seen), OK, "alerts", f"no {others}alert is open")
    if seen.launch_stops is not None:
        none = "none, and no pool or launch config is paused or frozen"
        yield from _or(_launch_stops(seen), OK, "launch stops", none)
    if seen.configs is not None:
        yield from _or(_tripped(seen), OK, "health", "no launch config is tripped")
        yield from _or(_accounts(seen), OK, "accounts", "each answers and has a launch config that may launch")
        yield from _or(_drains(seen), OK, "drains", "none is over its deadline")


def healthy(found: Iterable[Finding]) -> bool:
    """True if no finding needs a person."""
    return all(finding.grade in (OK, NOTE) for finding in found)


def _or(found: Iterable[Finding], *otherwise: str) -> list[Finding]:
    return list(found) or [Finding(*otherwise)]


def _service(name: str, answer: ServiceAnswer, now: datetime) -> Iterable[Finding]:
    variable = f"SLIPWAY_{name.upper().replace('-', '_')}_URL"
    status = answer.status
    if status is None:
        yield Finding(FAIL, name, answer.error, f"start it, or set its address with --{name} or {variable}")
        return
    if status.service != name:
        yield Finding(FAIL, name, f"{answer.url} is the {status.service}", f"correct --{name} or {variable}")
        return
    if status.ready:
        detail = f"{status.version}, ready, schema {status.schema_revision or '?'}, at {answer.url}"
        yield Finding(OK, name, detail + _leadership(status.leadership, now))
        return
    for reason in status.reasons or ["it gives no reason"]:
        remedy = DATABASE_REMEDY if "the database is unavailable" in reason else "read its log"
        yield Finding(FAIL, name, f"not ready: {reason}", remedy)


def _leadership(leadership: LeaderStatus | None, now: datetime) -> str:
    """The leader of a service of which one replica works and the others are standbys."""
    if leadership is None:
        return ""
    if leadership.since is None:
        return "; standby, no leader has been elected yet"
    since = f", epoch {leadership.epoch}, since {moments.clock(leadership.since, now)}"
    if leadership.role == "leader":
        return f"; leader{since}"
    return f"; standby, instance {leadership.instance} is the leader{since}"


def _versions(statuses: Mapping[str, ServiceStatus], own: str) -> Iterable[Finding]:
    versions = {name: status.version for name, status in statuses.items()} | {"this command": own}
    if len(set(versions.values())) > 1:
        detail = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding(WARN, "versions", f"differ: {detail}", "finish the upgrade, or update this command")
    else:
        yield Finding(OK, "versions", f"all {own}")


def _clocks(services: Mapping[str, ServiceAnswer]) -> Iterable[Finding]:
    """The clocks of each service and of its database, compared with this machine's; ahead is positive."""
    off: dict[str, float] = {}
    for name, answer in services.items():
        if answer.status is not None:
            for clock, at in ((name, answer.status.now), (f"{name}'s database", answer.status.database_now)):
                if at is not None:
                    off[clock] = _ahead_seconds(at, answer)
    wrong = {clock: seconds for clock, seconds in off.items() if abs(seconds) > SKEW_SECONDS}
    for clock, seconds in wrong.items():
        way = "ahead of" if seconds > 0 else "behind"
        detail = f"{clock} is {moments.spelled(seconds)} {way} this machine"
        yield Finding(WARN, "clocks", detail, "synchronise both clocks with NTP: deadlines depend on them")
    if off and not wrong:
        yield Finding(OK, "clocks", f"services, databases and this machine agree within {SKEW_SECONDS:g} s")


def _ahead_seconds(at: datetime, answer: ServiceAnswer) -> float:
    """Seconds ahead of this machine; 0 for a time between question and answer."""
    before = min(0.0, (at - answer.asked_at).total_seconds())
    return before or max(0.0, (at - answer.answered_at).total_seconds())


def _unencrypted(seen: Gathered, statuses: Mapping[str, ServiceStatus]) -> Iterable[Finding]:
    """Connections that anybody on their networks can read: as of a demo, whose PostgreSQL has no TLS and trusts every
    user of its host."""
    plain = [f"PostgreSQL of {name}" for name, status in statuses.items() if status.database_tls is False]
    plain += [f"HTTP of {name}" for name in statuses if plain and seen.services[name].url.startswith("http://")]
    if plain:
        detail = f"none for {listed(plain, NAMED)}: for demos and tests alone"
        remedy = "docs/guides/secure.md says how; behind a proxy on the same host, HTTP may stay as it is"
        yield Finding(NOTE, "encryption", detail, remedy)


def _kafka(seen: Gathered) -> Iterable[Finding]:
    if seen.kafka_error:
        yield Finding(FAIL, "kafka", seen.kafka_error, "start it, or set its address with --kafka or KAFKA")
        return
    yield Finding(OK, "kafka", f"answers at {seen.kafka}")
    differences = seen.differences or []
    if missing := [line.partition(":")[0] for line in differences if line.endswith(": missing")]:
        remedy = "check --topic-prefix; `python -m slipway_common.messaging.topic_admin` creates what is missing"
        yield Finding(FAIL, "topics", f"missing: {listed(missing, NAMED)}", remedy)
    if others := [line for line in differences if not line.endswith(": missing")]:
        remedy = "kafka-configs.sh changes configs; a number of partitions must never change, see --partitions"
        yield Finding(WARN, "topics", f"differ from the registry: {listed(others, NAMED, '; ')}", remedy)
    if not differences:
        yield Finding(OK, "topics", "as in the registry")


def _lag(statuses: Mapping[str, ServiceStatus]) -> Iterable[Finding]:
    for name, status in statuses.items():
        behind: dict[str, int] = defaultdict(int)
        for partition in status.partitions:
            behind[partition.topic] += partition.lag or 0
        for topic, events in behind.items():
            if events > LAG_EVENTS:
                do = "if the lag does not fall, read the service's log or start another replica"
                yield Finding(WARN, "lag", f"{name} is {phrases.count(events, 'event')} behind on {topic}", do)


def _stopped(statuses: Mapping[str, ServiceStatus]) -> Iterable[Finding]:
    for name, status in statuses.items():
        for partition in status.stopped_partitions:
            where = f"{partition.topic} {partition.partition}"
            remedy = f"slipway topics adopt {name} {where} --at begin  # or end: skipped events are lost"
            yield Finding(FAIL, "positions", f"{name} has stopped on {where}: {partition.reason}", remedy)


def _dead(statuses: Mapping[str, ServiceStatus]) -> Iterable[Finding]:
    for name, status in statuses.items():
        if dead := status.dead_letters:
            remedy = f"slipway dlq ls {name}; then slipway dlq replay or drop"
            yield Finding(FAIL, "dead letters", f"{name} has {phrases.count(dead, 'dead letter')}", remedy)


def _outbox(statuses: Mapping[str, ServiceStatus]) -> Iterable[Finding]:
    for name, status in statuses.items():
        age = status.outbox_oldest_seconds or 0.0
        if age > OUTBOX_SECONDS:
            detail = f"{name}'s oldest event has waited {moments.spelled(age)} to be published"
            yield Finding(FAIL, "outbox", detail, "check Kafka, and the lines of `relay` in the service's log")


def _heartbeats(seen: Gathered) -> Iterable[Finding]:
    for name in seen.services:
        at = (seen.heartbeats or {}).get(name)
        if at is None:
            detail = f"no heartbeat of the {name} on this topic prefix"
            yield Finding(WARN, "heartbeats", detail, "start it, or check --topic-prefix")
        elif (age := (seen.now - at).total_seconds()) > UNAVAILABLE_SECONDS:
            detail = f"{name} heartbeat {moments.spelled(age)} ago: the others treat it as unavailable"
            yield Finding(FAIL, "heartbeats", detail, "read its log, and check its connection to Kafka")


def _ages(seen: Gathered) -> str:
    ages = {name: max(0.0, (seen.now - at).total_seconds()) for name, at in (seen.heartbeats or {}).items()}
    return ", ".join(f"{name} {moments.about(ages[name])} ago" for name in seen.services if name in ages)


def _alerts(seen: Gathered) -> Iterable[Finding]:
    """Pages are warnings, unless silenced; notices report what Slipway handles alone, but for a tripped pool. Those on
    tripped configs and throttled accounts repeat findings about health and accounts."""
    known = {(CONFIG_TRIPPED, config.id) for config in seen.configs or () if phrases.is_tripped(config)}
    known |= {(THROTTLED, account.id) for account in seen.accounts or () if account.throttled}
    alerts = sorted(seen.alerts or (), key=lambda row: (row.severity == "notice", row.since))
    for alert in alerts:
        if (alert.kind, alert.subject_id) in known:
            continue
        is_note = alert.severity == "notice" and alert.kind != POOL_TRIPPED
        until = alert.silenced_until
        is_note = is_note or (until is not None and until > seen.now)
        effect = f"; {alert.effect}" if alert.effect else ""
        detail = f"{alert.summary or alert.kind}{effect}"
        yield Finding(NOTE if is_note else WARN, "alerts", detail, alert.command)


def _launch_stops(seen: Gathered) -> Iterable[Finding]:
    for stop in seen.launch_stops or ():
        yield Finding(WARN, "launch stops", phrases.launch_stop(stop, seen.now), phrases.start_launching(stop))
    for pool in seen.pools or ():
        if pool.paused:
            remedy = f"slipway pool resume {pool.id} --reason …"
            yield Finding(WARN, "launch stops", f"pool {pool.id} is {phrases.paused(pool, seen.now)}", remedy)
        if pool.frozen:
            remedy = f"slipway pool unfreeze {pool.id} --reason …"
            yield Finding(WARN, "launch stops", f"pool {pool.id} is {phrases.frozen(pool, seen.now)}", remedy)
    paused_configs = {name_of(row.id): row for row in seen.configs or () if row.state == "paused"}
    for name, config in paused_configs.items():
        until = config.paused_until
        detail = phrases.stopped("paused", config.state_by, until, config.state_reason, seen.now)
        yield Finding(NOTE, "launch stops", f"launch config {name} is {detail}", f"slipway lc resume {name} --reason …")


def _tripped(seen: Gathered) -> Iterable[Finding]:
    """A pool of which every active config is tripped fails while tasks are pending; else a tripped config is a note."""
    pending = {pool.id: pool.pending or 0 for pool in seen.pools or ()}
    for pool_id, active in sorted(_by(seen.configs or (), lambda config: config.pool_id).items()):
        bad = [config for config in active if phrases.is_tripped(config)]
        if bad and len(bad) == len(active):
            tasks = pending.get(pool_id, 0)
            detail = f"pool {pool_id} launches only probes: {_every(bad)} tripped"
            detail += f"; {phrases.count(tasks, 'task')} pending" if tasks else ""
            yield Finding(FAIL if tasks else WARN, "health", detail, f"slipway why {pool_id}")
        for config in bad:
            remedy = f"slipway why {config.id}"
            remedy = remedy if tripped_by_credential(config) else f"none needed; `{remedy}` explains it"
            yield Finding(NOTE, "health", f"{config.id} tripped: {phrases.tripped(config, seen.now)}", remedy)


def _accounts(seen: Gathered) -> Iterable[Finding]:
    """An account is in trouble when it does not answer, when many of its workers are unresponsive, or when every config
    that may launch there is tripped. One that throttles calls only delays launches."""
    for row in seen.accounts or ():
        yield from _out_of_reach(row, seen.now)
        if row.throttled and row.throttled_since:
            since = moments.clock(row.throttled_since, seen.now)
            detail = (
                f"{row.id} throttles calls, {row.throttled_calls} since {since}: each is made again, and lease "
                f"pool {row.lease_pool_id} grants none before the provider's Retry-After has passed"
            )
            yield Finding(NOTE, "accounts", detail, lower_limit(row))
    for account, active in sorted(_by(seen.configs or (), lambda config: config.account_id).items()):
        if all(map(phrases.is_tripped, active)):
            detail = f"{account} launches only probes: {_every(active)} tripped"
            yield Finding(WARN, "accounts", detail, f"slipway why {active[0].id}")


def _out_of_reach(account: Account, now: datetime) -> Iterable[Finding]:
    id_ = account.id
    problem = account.problem  # the first one of the last check
    if account.retired:
        if account.may_still_run:
            detail = f"{id_} is retired; {phrases.count(account.may_still_run, 'machine')} may still run there"
            yield Finding(NOTE, "accounts", detail, f"slipway account show {id_}")
    elif account.unreachable:
        began = account.unanswered_since
        since = f" since {moments.clock(began, now)}" if began else ""
        calls, leaving = phrases.count(account.unknown_calls, "unknown call"), phrases.count(account.leaving, "worker")
        open_ = f"{calls}, {leaving} to terminate"
        never = f"if it will never answer again: slipway account retire {id_} --reason …"
        remedy = f"`slipway account check {id_}` says why; {never}"
        detail = f"{id_} has not answered{since}: {open_}"
        detail += f"; {problem}" if problem else ""
        yield Finding(FAIL, "accounts", detail, remedy)
    elif account.problems and account.checked_at:
        checked = moments.clock(account.checked_at, now)
        detail = f"{id_} had {phrases.count(account.problems, 'problem')} when it was checked at {checked}"
        detail += f": {problem}" if problem else ""
        yield Finding(WARN, "accounts", detail, f"slipway account check {id_}")
    if account.mass_unresponsive:
        remedy = f"once they are known to be dead: slipway account confirm-unresponsive {id_} --reason …"
        yield Finding(FAIL, "accounts", f"so many workers of {id_} are unresponsive that none is stopped", remedy)


def _drains(seen: Gathered) -> Iterable[Finding]:
    """A drain over its deadline needs a person, unless Slipway terminates the workers that are left."""
    for config in seen.configs or ():
        if not phrases.is_overdue(config, seen.now):
            continue
        detail = f"{config.id} drains: {phrases.drain(config, seen.now)}"
        if config.drain_terminate:
            yield Finding(NOTE, "drains", detail, "none needed; `slipway worker ls` shows them leave")
        else:
            remedy = f"slipway worker ls --pool {config.pool_id}; then slipway worker terminate ID --reason …"
            yield Finding(WARN, "drains", detail, remedy)


def _by(configs: Iterable[LaunchConfig], of: Callable[[LaunchConfig], str]) -> dict[str, list[LaunchConfig]]:
    """Active configs by `of`."""
    found: dict[str, list[LaunchConfig]] = defaultdict(list)
    for config in configs:
        if config.state == "active":
            found[of(config)].append(config)
    return found


def _every(configs: Sequence[LaunchConfig]) -> str:
    ids = listed([config.id for config in configs], NAMED)
    return f"{ids} is" if len(configs) == 1 else f"{ids} are"
