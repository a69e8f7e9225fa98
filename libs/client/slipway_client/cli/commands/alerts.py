"""`slipway alert`: open and resolved alerts of all services."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Final

import typer

from slipway_api.http.service import ListedAlert
from slipway_client.cli import options
from slipway_client.cli.options import AsOutput, Limit, Reason, api_of, clock, noun, now, until_text
from slipway_client.cli.tables import Field, Output, as_json, show
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api, Decoded, Parameter
from slipway_common.base.revisions import name_of
from slipway_common.base.sanitize import printable

app = noun("List, show and silence alerts")

Alert = Decoded[ListedAlert]
OPEN, RESOLVED = "open", "resolved"
CONSOLE: Final = "never-registered"
"""Kind of the alerts that hold the console output of a machine of their image."""
LABELS: Final = {  # in the order in which they are shown
    "summary": "summary",
    "effect": "effect",
    "doing": "Slipway",
    "command": "remedy",
    "cause": "cause",
}
WhichAlert = Annotated[str, typer.Argument(metavar="ALERT", help="Subject, KIND/SUBJECT or key of the alert")]
Everything = Annotated[bool, typer.Option("--all", help="Open and resolved alerts [default: open ones]")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="With --all: resolved since, such as 12h [default: any]")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="With --all: raised before [default: any]")]


FIELDS: Final[tuple[Field[ListedAlert], ...]] = (
    "severity",
    "kind",
    ("subject", lambda alert: alert.subject_id),
    ("since", lambda alert: clock(alert.since)),
    "summary",
)
SILENCED: Final[Field[ListedAlert]] = (
    "silenced",
    lambda alert: "" if _silence(alert) is None else until_text(alert.silenced_until),
)


@app.command("ls")
def list_alerts(
    context: typer.Context,
    all_: Everything = False,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    output: AsOutput = Output.TABLE,
) -> None:
    """List open alerts, pages first, then newest first

    Asks every service, and says which did not answer. With --all resolved ones, kept for 90 days, come last.

    \b
    Examples:
      slipway alert ls
      slipway alert ls --all --since 12h -o json
    """
    api, closed_since, raised_until = api_of(context), _moment("--since", since), _moment("--until", until)
    found, errors = _read(api, open=True, until=raised_until)
    if all_:
        resolved, others = _read(api, open=False, since=closed_since, until=raised_until, limit=limit + 1)
        found, errors = found + resolved, "\n".join(dict.fromkeys(filter(None, (errors, others))))
    fields = ("state", *FIELDS) if all_ else FIELDS
    if any(_silence(row.value) is not None for row in found[:limit]):
        fields = (*fields[:-1], SILENCED, fields[-1])
    nothing = "no alerts" if all_ else "no open alerts"
    show(found, fields, output, nothing=nothing, limit=limit, errors=errors)


def _moment(option: str, text: str | None) -> str | None:
    """Time of an option: a duration ago, or a time of day or date."""
    try:
        return options.ago(option, text)
    except typer.BadParameter:
        at = options.until(None, text)
        return None if at is None else at.isoformat()


@app.command("show")
def show_alert(context: typer.Context, alert: WhichAlert, output: AsOutput = Output.TABLE) -> None:
    """Show one alert: effect, action of Slipway, remedy, evidence

    Open alerts are searched first, then resolved ones. The alert on an image is shown with the console output of a
    machine of it that never registered, if there is one.

    \b
    Examples:
      slipway alert show linux-zone-b
      slipway alert show config-tripped/linux-zone-b -o json
    """
    alerts, errors = _read(api_of(context))
    found = _named(alerts, alert, errors)
    console = console_of(found, alerts)
    if output is Output.JSON:
        as_json(found.sent | {"console": console})
        return
    row = found.value
    about = f"{row.kind} {row.subject_id}"
    shown = {"alert": about, "severity": row.severity, "state": _state(row), "since": clock(row.since)}
    if row.closed_at:
        shown["resolved"] = f"{clock(row.closed_at)} {row.resolution}".strip()
    if (silence := _silence(row)) is not None:
        shown["silenced"] = f"{until_text(row.silenced_until)} by {row.silenced_by}: {silence}"
    shown |= {label: text for name, label in LABELS.items() if (text := getattr(row, name))}
    lines = [*shown.items(), ("key", row.dedup_key)]
    for label, texts in (("evidence", row.evidence), ("console", console)):
        lines += zip_longest([label][: len(texts)], texts, fillvalue="")
    for label, text in lines:
        print(printable(f"{label:<8}  {text}"))


@app.command("silence")
def silence_alert(
    context: typer.Context,
    alert: WhichAlert,
    for_: Annotated[str, typer.Option("--for", metavar="DURATION", help="Duration, such as 30m or 1d12h")],
    reason: Reason,
) -> None:
    """Silence an open alert for a time

    It stays open and is listed, but no one has to be notified of it until then.

    \b
    Example:
      slipway alert silence config-tripped/linux-zone-b --for 2h --reason "the cloud works on it"
    """
    alerts, errors = _read(api_of(context), open=True)
    found = _named(alerts, alert, errors)
    row = found.value
    ends = options.until(for_, None)
    api_of(context).post(
        object, found.service, "/alerts/silence", {"dedup_key": row.dedup_key, "until": ends, "reason": reason}
    )
    print(printable(f"alert {row.kind} {row.subject_id} silenced {until_text(ends)}"))


def _silence(alert: ListedAlert) -> str | None:
    """Reason of a silence that lasts; None without one."""
    until = alert.silenced_until
    return alert.silence_reason if until is not None and until > now() else None


def _state(alert: ListedAlert) -> str:
    return RESOLVED if alert.closed_at else OPEN


def console_of(alert: Alert, alerts: Sequence[Alert]) -> Sequence[str]:
    """Console output of a machine of the alert's image, which another alert may hold."""
    image = alert.value.subject_id if alert.value.subject_kind == "image" else None
    own = [
        other.value
        for other in alerts
        if other.value.kind == CONSOLE and f"/{image}".endswith(f"/{other.value.subject_id}")
    ]
    return (own[0] if own else alert.value).console


def _named(alerts: Sequence[Alert], name: str, errors: str) -> Alert:
    """The alert of that name; open ones hide resolved ones, and others that of the console output. Raises Failed, with
    the `errors` of services that did not answer."""
    found = [alert for alert in alerts if name in _names(alert.value)]
    found = [alert for alert in found if _state(alert.value) == OPEN] or found
    if len(found) > 1 and len(others := [alert for alert in found if alert.value.kind != CONSOLE]) == 1:
        found = others  # whose console output is that of the other
    if not found:
        advice = "`slipway alert ls` lists the open ones, `--all` the resolved ones, too."
        raise Failed("\n".join(filter(None, (f"There is no alert {name!r}.", advice, errors))))
    if len(found) > 1:
        names = [f"{alert.value.kind}/{alert.value.subject_id}" for alert in found]
        if len({*names}) < len(names):  # an account has one alert per problem
            names = [alert.value.dedup_key for alert in found]
        raise Failed(f"{name!r} names {len(found)} alerts: {', '.join(names)}.\nGive one of these names.")
    return found[0]


def _names(alert: ListedAlert) -> set[str]:
    """Names by which an alert is known; that of a launch config names the alerts of its revisions."""
    subject = alert.subject_id
    subjects = {subject, name_of(subject)} if alert.subject_kind == "config" else {subject}
    return {alert.dedup_key, *subjects, *(f"{alert.kind}/{one}" for one in subjects)}


def _read(api: Api, *, limit: int | None = None, **given: Parameter) -> tuple[list[Alert], str]:
    """Alerts of all services that answer, pages first, then the newest first, the newest `limit` of each service; and
    the errors of the others. `given` are parameters of the list."""
    alerts, errors = api.list_all(ListedAlert, "/alerts", None, limit=limit, **given)
    for alert in alerts:
        alert.sent["state"] = _state(alert.value)
    newest = sorted(alerts, key=lambda alert: alert.value.raised_at, reverse=True)
    return sorted(newest, key=lambda alert: (_state(alert.value) != OPEN, alert.value.severity == "notice")), errors
