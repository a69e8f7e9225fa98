"""`slipway alert`: open and resolved alerts, from the topic slipway.alert.v1."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from slipway_client.cli.options import AsOutput, noun, now
from slipway_client.cli.tables import Field, Output, as_json, show
from slipway_client.transport.http import Api, Failed
from slipway_client.view import moments
from slipway_common.base.revisions import name_of
from slipway_common.base.sanitize import printable

if TYPE_CHECKING:
    from slipway_client.transport.log import Entry

app = noun("List and show alerts")

Alert = dict[str, Any]
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


def _since(alert: Mapping[str, Any]) -> str:
    return moments.clock(moments.at(alert["since"] or alert["raised_at"]), now())


FIELDS: Final[tuple[Field, ...]] = (
    "severity",
    "kind",
    ("subject", lambda alert: alert["subject_id"]),
    ("since", _since),
    "summary",
)
STATE: Final[Field] = ("state", lambda alert: alert["state"])


@app.command("ls")
def list_alerts(context: typer.Context, all_: Everything = False, output: AsOutput = Output.TABLE) -> None:
    """List open alerts, pages first, then newest first

    \b
    Examples:
      slipway alert ls
      slipway alert ls --all -o json
    """
    rows = [alert for alert in _read(context.obj) if all_ or alert["state"] == OPEN]
    show(rows, (STATE, *FIELDS) if all_ else FIELDS, output, nothing="no alerts" if all_ else "no open alerts")


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
    alerts = _read(context.obj)
    row = with_console(_named(alerts, alert), alerts)
    if output is Output.JSON:
        as_json(row)
        return
    lines = [("alert", f"{row['kind']} {row['subject_id']}"), ("severity", row["severity"]), ("state", row["state"])]
    lines.append(("since", _since(row)))
    if row["resolved_at"]:
        lines.append(("resolved", moments.clock(moments.at(row["resolved_at"]), now())))
    lines += [(label, row[name]) for name, label in LABELS.items() if row.get(name)]
    lines.append(("key", row["dedup_key"]))
    width = max(len(label) for label, _ in lines)
    for label, value in lines:
        print(printable(f"{label:<{width}}  {value}"))
    for label in ("evidence", "console"):
        for number, line in enumerate(row.get(label) or ()):
            print(printable(f"{'' if number else label:<{width}}  {line}"))


def with_console(alert: Alert, alerts: list[Alert]) -> Alert:
    """The alert with the console output that another alert on its image holds."""
    image = alert["subject_id"] if alert["subject_kind"] == "image" else None
    own = [other for other in alerts if other["kind"] == CONSOLE and other["subject_id"] == image]
    return {**alert, "console": own[0].get("console") or ()} if own else alert


def _named(alerts: list[Alert], name: str) -> Alert:
    """The alert of that name; open ones hide resolved ones, and others that of the console output. Raises Failed."""
    found = [alert for alert in alerts if name in _names(alert)]
    found = [alert for alert in found if alert["state"] == OPEN] or found
    if len(found) > 1 and len(others := [alert for alert in found if alert["kind"] != CONSOLE]) == 1:
        found = others  # with_console adds it
    if not found:
        raise Failed(
            f"There is no alert {name!r}.\n`slipway alert ls` lists the open ones, `--all` the resolved ones, too."
        )
    if len(found) > 1:
        names = [f"{alert['kind']}/{alert['subject_id']}" for alert in found]
        if len({*names}) < len(names):  # an account has one alert per problem
            names = [alert["dedup_key"] for alert in found]
        raise Failed(f"{name!r} names {len(found)} alerts: {', '.join(names)}.\nGive one of these names.")
    return found[0]


def _names(alert: Alert) -> set[str]:
    """Names by which an alert is known; that of a launch config names the alerts of its revisions."""
    subject = alert["subject_id"]
    subjects = {subject, name_of(subject)} if alert["subject_kind"] == "config" else {subject}
    return {alert["dedup_key"], *subjects, *(f"{alert['kind']}/{one}" for one in subjects)}


def _read(api: Api) -> list[Alert]:
    """All alerts that the topic holds: pages first, then the newest first."""
    import asyncio

    alerts = asyncio.run(_from_topic(api))
    newest = sorted(alerts, key=lambda alert: str(alert["raised_at"]), reverse=True)
    return sorted(newest, key=lambda alert: (alert["state"] != OPEN, alert["severity"] == "notice"))


async def _from_topic(api: Api) -> list[Alert]:
    from slipway_client.transport.log import Log
    from slipway_common.events.topics import ALERT

    alerts: dict[str, Alert] = {}
    async with Log(api.kafka, api.topic_prefix) as log:
        await log.open([ALERT.name], last=None, since=None)
        async for entry in log.past():
            record(alerts, entry)
    return list(alerts.values())


def record(alerts: dict[str, Alert], entry: "Entry") -> None:
    """Apply one record to the newest alert of each key; unreadable ones and those of other types are skipped."""
    from slipway_common.events.alert import AlertRaised, AlertResolved

    if entry.envelope is None or entry.unreadable or entry.data is None:
        return
    data: Alert = entry.data
    at = entry.time.isoformat()
    match entry.envelope.type:
        case AlertRaised.type:
            missing = {"severity": "page", "since": None}  # what an event leaves out at its default
            alerts[data["dedup_key"]] = missing | data | {"state": OPEN, "raised_at": at, "resolved_at": None}
        case AlertResolved.type if data["dedup_key"] in alerts:
            alerts[data["dedup_key"]] |= {"state": RESOLVED, "resolved_at": at}
