"""What is wrong with a deployment, and what to do about it. Pure: judges what was gathered, asks nobody."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_client import moments

OK, WARN, FAIL = "ok", "warn", "FAIL"
SKEW_SECONDS: Final = 5.0  # leases and worker deadlines tolerate as much
SILENT_SECONDS: Final = 30.0  # when the provisioner, too, takes a service for silent
OUTBOX_SECONDS: Final = 10.0  # a relay sends within milliseconds
LAG_EVENTS: Final = 1000
NAMED: Final = 3  # of many alike


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a service said of itself at /status, and between which times of this machine; `error` when it did not."""

    url: str
    status: Mapping[str, Any] | None = None
    error: str = ""
    asked_at: datetime
    answered_at: datetime


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """All that doctor looks at. None: could not be asked for, which another finding tells.

    `differences` are those of the topics from the registry; `heartbeats` the newest of each service; `alerts` those
    raised and not resolved.
    """

    own_version: str
    services: Mapping[str, Answer]
    kafka: str
    kafka_error: str = ""
    differences: Sequence[str] | None = None
    heartbeats: Mapping[str, datetime] | None = None
    alerts: Sequence[Mapping[str, Any]] | None = None
    brakes: Sequence[Mapping[str, Any]] | None = None
    pools: Sequence[Mapping[str, Any]] | None = None
    configs: Sequence[Mapping[str, Any]] | None = None
    now: datetime


class Finding(msgspec.Struct, frozen=True):
    """One line: how it is, what, the detail, and what to do when it is not ok."""

    level: str
    what: str
    detail: str
    do: str = ""


def diagnose(seen: Gathered) -> list[Finding]:
    """Every check in a fixed order; each leaves one ok finding, or one per problem."""
    told = {name: answer.status for name, answer in seen.services.items() if answer.status is not None}
    found: list[Finding] = []
    for name, answer in seen.services.items():
        found.extend(_service(name, answer))
    if told:
        found.extend(_versions(told, seen.own_version))
    found.extend(_clocks(seen.services))
    found.extend(_kafka(seen))
    if told:
        found.extend(_or(_lag(told), OK, "lag", "every partition is read to its end, or nearly"))
        found.extend(_or(_stopped(told), OK, "positions", "no partition is stopped"))
        found.extend(_or(_dead(told), OK, "dead letters", "none"))
        found.extend(_or(_outbox(told), OK, "outbox", "events are sent at once"))
    if seen.heartbeats is not None:
        found.extend(_or(_silent(seen), OK, "heartbeats", "every service was heard just now"))
    if seen.alerts is not None:
        found.extend(_or(_alerts(seen.alerts), OK, "alerts", "none is open"))
    if seen.brakes is not None:
        found.extend(_or(_brakes(seen), OK, "brakes", "none is in force"))
    if seen.configs is not None:
        found.extend(_or(_accounts(seen.configs), OK, "accounts", "each has a config that may launch"))
    return found


def healthy(found: Iterable[Finding]) -> bool:
    return all(finding.level == OK for finding in found)


def _or(found: Iterable[Finding], *otherwise: str) -> list[Finding]:
    return list(found) or [Finding(*otherwise)]


def _service(name: str, answer: Answer) -> Iterable[Finding]:
    variable = f"SLIPWAY_{name.upper().replace('-', '_')}_URL"
    status = answer.status
    if status is None:
        yield Finding(FAIL, name, answer.error, f"start it, or say where it is: --{name} or {variable}")
        return
    if status.get("service", name) != name:
        yield Finding(FAIL, name, f"at {answer.url} is the {status['service']}", f"correct --{name} or {variable}")
        return
    if status["ready"]:
        detail = f"{status['version']}, ready, schema {status.get('schema_revision') or '?'}, at {answer.url}"
        yield Finding(OK, name, detail + _standing(status.get("standing")))
        return
    for reason in status["reasons"]:
        yield Finding(FAIL, name, f"is not ready: {reason}", "see its log; if it lacks its schema, migrate")


def _standing(standing: Mapping[str, Any] | None) -> str:
    """Of a service of which one replica works and the others stand by."""
    if standing is None:
        return ""
    since = f", epoch {standing['epoch']}, since {standing['since']}"
    if standing["role"] == "active":
        return f"; active{since}"
    return f"; stands by, instance {standing['instance']} is active{since}"


def _versions(told: Mapping[str, Mapping[str, Any]], own: str) -> Iterable[Finding]:
    versions = {name: status["version"] for name, status in told.items()} | {"this command": own}
    if len(set(versions.values())) > 1:
        detail = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding(WARN, "versions", f"differ: {detail}", "finish the upgrade, or install this command anew")
    else:
        yield Finding(OK, "versions", f"all {own}")


def _clocks(services: Mapping[str, Answer]) -> Iterable[Finding]:
    """Of each service and of its database, against this machine: ahead is positive."""
    off: dict[str, float] = {}
    seen = False
    for name, answer in services.items():
        for whose, field in ((name, "now"), (f"{name}'s database", "database_now")):
            if answer.status is not None and answer.status.get(field):
                seen = True
                off[whose] = _ahead_seconds(moments.at(answer.status[field]), answer)
    wrong = {whose: seconds for whose, seconds in off.items() if abs(seconds) > SKEW_SECONDS}
    for whose, seconds in wrong.items():
        way = "ahead of" if seconds > 0 else "behind"
        detail = f"{whose} is {moments.spelled(seconds)} {way} this machine"
        yield Finding(WARN, "clocks", detail, "synchronise the clocks of both (NTP): deadlines are taken from them")
    if seen and not wrong:
        yield Finding(OK, "clocks", f"services, database and this machine agree within {SKEW_SECONDS:g} s")


def _ahead_seconds(at: datetime, answer: Answer) -> float:
    """0 for a time that may have been read while the answer was under way."""
    before = min(0.0, (at - answer.asked_at).total_seconds())
    return before or max(0.0, (at - answer.answered_at).total_seconds())


def _kafka(seen: Gathered) -> Iterable[Finding]:
    if seen.kafka_error:
        yield Finding(FAIL, "kafka", seen.kafka_error, "start it, or say where it is: --kafka or KAFKA")
        return
    yield Finding(OK, "kafka", f"answers at {seen.kafka}")
    differences = seen.differences or []
    if missing := [line.partition(":")[0] for line in differences if line.endswith(": missing")]:
        yield Finding(
            FAIL,
            "topics",
            f"missing: {_some(missing)}",
            "check --topic-prefix; `python -m slipway_common.topic_admin` creates what is missing",
        )
    if others := [line for line in differences if not line.endswith(": missing")]:
        yield Finding(
            WARN,
            "topics",
            f"not as the registry wants them: {_some(others, '; ')}",
            "kafka-configs.sh changes configs; the count of partitions may never change: see --partitions",
        )
    if not differences:
        yield Finding(OK, "topics", "as the registry wants them")


def _some(names: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return between.join(names[:NAMED]) + more


def _lag(told: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
    for name, status in told.items():
        behind: dict[str, int] = defaultdict(int)
        for partition in status["partitions"]:
            behind[partition["topic"]] += partition["lag"] or 0
        for topic, events in behind.items():
            if events > LAG_EVENTS:
                do = "if it does not fall: look at the service's log, or start another replica"
                yield Finding(WARN, "lag", f"{name} is {events} events behind on {topic}", do)


def _stopped(told: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
    for name, status in told.items():
        for stopped in status["stopped_partitions"]:
            where = f"{stopped['topic']} {stopped['partition']}"
            do = f"slipway topics adopt {name} {where} --at begin  # or end: what is skipped is lost"
            yield Finding(FAIL, "positions", f"{name} has stopped on {where}: {stopped['why']}", do)


def _dead(told: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
    for name, status in told.items():
        if count := status.get("dead_letters"):
            do = f"slipway dlq ls {name}; then slipway dlq replay or drop"
            yield Finding(FAIL, "dead letters", f"{name} could not apply {count}", do)


def _outbox(told: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
    for name, status in told.items():
        age = status.get("outbox_oldest_seconds") or 0.0
        if age > OUTBOX_SECONDS:
            detail = f"{name}'s oldest event has waited {moments.spelled(age)} to be sent"
            yield Finding(FAIL, "outbox", detail, "look at Kafka, and for `relay` in the service's log")


def _silent(seen: Gathered) -> Iterable[Finding]:
    for name in seen.services:
        heard = (seen.heartbeats or {}).get(name)
        if heard is None:
            yield Finding(WARN, "heartbeats", f"{name} was never heard on this topic prefix", "start it")
        elif (age := (seen.now - heard).total_seconds()) > SILENT_SECONDS:
            detail = f"{name} was last heard {moments.spelled(age)} ago: the others take it for silent"
            yield Finding(FAIL, "heartbeats", detail, "look at its log, and at its way to Kafka")


def _alerts(alerts: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """A notice tells what Slipway handles by itself: nothing is wrong with the deployment."""
    for alert in sorted(alerts, key=lambda alert: alert.get("severity") == "notice"):
        level, before = (OK, "notice: ") if alert.get("severity") == "notice" else (WARN, "")
        effect = f"; {alert['effect']}" if alert.get("effect") else ""
        yield Finding(level, "alerts", f"{before}{alert['summary'] or alert['kind']}{effect}", alert.get("command", ""))


def _brakes(seen: Gathered) -> Iterable[Finding]:
    for brake in seen.brakes or ():
        scope, id_ = brake["scope"], brake["scope_id"]
        where, option = ("everywhere", "") if scope == "all" else (f"in {scope} {id_}", f" --{scope} {id_}")
        yield Finding(
            WARN, "brakes", f"launching is stopped {where} {_by(brake, seen.now)}", f"slipway start-launching{option}"
        )
    for pool in seen.pools or ():
        if pool.get("paused"):
            told = {"reason": pool.get("paused_reason"), "by": pool.get("paused_by"), "until": pool.get("paused_until")}
            detail = f"pool {pool['id']} is paused {_by(told, seen.now)}"
            yield Finding(WARN, "brakes", detail, f"slipway pool resume {pool['id']} --reason …")
        if pool.get("frozen"):
            told = {"reason": pool.get("frozen_reason"), "by": pool.get("frozen_by")}
            detail = f"pool {pool['id']} is frozen {_by(told, seen.now)}"
            yield Finding(WARN, "brakes", detail, f"slipway pool unfreeze {pool['id']} --reason …")


def _by(held: Mapping[str, Any], now: datetime) -> str:
    until = f"until {moments.clock(moments.at(held['until']), now)} " if held.get("until") else ""
    return f"{until}by {held.get('by') or '?'}: {held.get('reason') or 'no reason given'}"


def _accounts(configs: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """An account is in trouble when every config that may launch there is closed."""
    of_account: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for config in configs:
        if config["state"] == "active":
            of_account[config["account_id"]].append(config)
    for account, active in sorted(of_account.items()):
        if all(config["circuit"] == "closed" for config in active):
            ids = _some([config["id"] for config in active])
            detail = f"{account} may only probe: {ids} closed; {active[0].get('reason') or 'no reason given'}"
            yield Finding(WARN, "accounts", detail, f"slipway lc show {active[0]['id']}")
