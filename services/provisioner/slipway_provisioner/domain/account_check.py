"""Findings of a check of a provider account, and the alerts that they raise and resolve. Pure."""

import shlex
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity
from slipway_api.limits import NAME, NOTE

ALERT: Final = "account-check"
FINDINGS_MAX: Final = 1000
"""Findings of one check that are stored. Problems come first."""


PAGES: Final = frozenset({"identity", "credential"})
"""Kinds of findings that stop all launches in an account, once for all that depends on it."""


class CheckState(StrEnum):
    """State of what was checked. A warning stops no launch; `unknown` was not checked, or not to the end."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one part of a check: its kind (identity, credential, clock, permission, quota, subnet, image,
    setting or launch-config), the subject of that kind, empty if there is one an account, and for people a message and
    a remedy. An `unknown` finding without a subject stands for all subjects of its kind."""

    kind: str
    state: CheckState
    message: str
    subject: str = ""
    remedy: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.subject

    @property
    def is_problem(self) -> bool:
        return self.state is CheckState.PROBLEM


class CheckOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of an account after a check, and those whose alerts the check raises and resolves."""

    findings: Sequence[Finding]
    raised: Sequence[Finding]
    resolved: Sequence[Finding]


ORDER: Final = (CheckState.PROBLEM, CheckState.WARNING, CheckState.UNKNOWN, CheckState.OK)


def identity(declared: str, found: str, *, about: str = "") -> Finding:
    """Finding on the account that a credential belongs to. `about` describes the caller."""
    caller = f" ({about})" if about else ""
    if found == declared:
        return Finding(kind="identity", state=CheckState.OK, message=f"{found}{caller}")
    return Finding(
        kind="identity",
        state=CheckState.PROBLEM,
        message=f"the credential belongs to {found}{caller}, not to {declared}",
        remedy="correct the credential of the account in slipway.yaml, or its identity",
    )


def unusable(name: str, problem: str) -> Finding:
    """Finding on a launch config whose settings its provider cannot use."""
    return Finding(
        kind="launch-config",
        subject=name,
        state=CheckState.PROBLEM,
        message=f"its settings are unusable: {problem}",
        remedy="correct the launch config in slipway.yaml",
    )


def compared(before: Iterable[Finding], found: Iterable[Finding]) -> CheckOutcome:
    """Findings after a check. What a check could not find out neither raises nor resolves anything: a problem from
    before stays, in place of the unknown."""
    found = [_storable(finding) for finding in found]
    known = {finding.key: finding for finding in before if finding.is_problem}
    unknown = {finding.key for finding in found if finding.state is CheckState.UNKNOWN}
    kept = {key: finding for key, finding in known.items() if key in unknown or (key[0], "") in unknown}
    replaced = {key for key in kept if key[1]}
    now = [*kept.values(), *(finding for finding in found if finding.key not in replaced)]
    now.sort(key=lambda finding: (ORDER.index(finding.state), finding.kind, finding.subject))
    problems = {finding.key: finding for finding in now if finding.is_problem}
    return CheckOutcome(
        findings=now[:FINDINGS_MAX],
        raised=[finding for key, finding in problems.items() if key not in known],
        resolved=[finding for key, finding in known.items() if key not in problems],
    )


def _storable(finding: Finding) -> Finding:
    """The finding with texts that can be stored, since providers may quote anything."""
    return msgspec.structs.replace(
        finding,
        subject=NAME.cut(finding.subject),
        message=NOTE.cut(finding.message),
        remedy=NOTE.cut(finding.remedy),
    )


def alerts(account_id: str, after: CheckOutcome) -> list[Alert]:
    """Alerts of a check, one for each problem."""
    raised: list[Alert] = [_alert(AlertRaised, account_id, finding) for finding in after.raised]
    return raised + [_alert(AlertResolved, account_id, finding) for finding in after.resolved]


def _alert(kind: type[AlertRaised] | type[AlertResolved], account_id: str, finding: Finding) -> Alert:
    about = f"{finding.kind} {finding.subject}" if finding.subject else finding.kind
    is_raised = kind is AlertRaised
    return kind(
        **alert_identity("provisioner", ALERT, "account", account_id, *finding.key),
        severity="page" if finding.kind in PAGES else "notice",
        summary=NOTE.cut(f"account {account_id}, {about}: {finding.message if is_raised else 'no longer a problem'}"),
        effect="launches in the account fail, or will soon" if is_raised else "",
        doing="checks the account again every hour; launches are tried meanwhile" if is_raised else "",
        cause=NOTE.cut(finding.remedy) if is_raised else "",
        command=f"slipway account check {shlex.quote(account_id)}",
    )
