"""`slipway weights`: where the weight-calculator sends launches, and what another policy would have done."""

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from slipway_client import moments
from slipway_client.commands.declared import InvalidFile
from slipway_client.http import Api, Failed, path
from slipway_client.options import AsOutput, ConfigId, OfPool, noun, now
from slipway_client.tables import Field, Output, as_json, pairs, show

if TYPE_CHECKING:
    from slipway_client.believed import Times
    from slipway_client.recorded import Event

app = noun("Weights.")

# Where the weight-calculator's package offers its core to whoever replays: the command imports no service.
CORES: Final = "slipway.replay"
FOLDED: Final = ("slipway.launch-config.lifecycle.v1", "slipway.launch-config.signal.v1", "slipway.worker.lifecycle.v1")
STAGES_NAMED: Final = ("launch", "boot", "claim")


class Left(NamedTuple):
    """Of a log: records that could not be read, and events whose times could not be believed."""

    unreadable: int
    clamped: int


def _stage_window(stage: str, row: Mapping[str, Any]) -> int | None:
    window: int | None = row["stages"].get(stage, {}).get("window")
    return window


ROWS: Final[tuple[Field, ...]] = (
    ("id", lambda row: row["launch_config_id"]),
    ("pool", lambda row: row["pool_id"]),
    "state",
    "weight",
    "health",
    *((f"{stage} window", partial(_stage_window, stage)) for stage in STAGES_NAMED),
    ("permit", lambda row: _permit(row)),
    "reason",
)
STAGES: Final[tuple[Field, ...]] = ("stage", "probability", "window", "late", "failures_folded", "succeeded", "failed")
SHARED: Final[tuple[Field, ...]] = (
    "key",
    "stage",
    "state",
    ("window", lambda row: _window(row)),
    "unconfirmed",
    "reason",
)

Policy = Annotated[
    str, typer.Option(metavar="NAME|FILE", help="default, on-demand, spot, bare-metal, or a file of coefficients.")
]
From = Annotated[
    str, typer.Option("--from", metavar="FILE|TOPIC", help="Recorded events, or slipway.worker.lifecycle.v1 on Kafka.")
]


Speed = Annotated[
    float, typer.Option(min=1.0, max=1000.0, help="How much faster than life it was recorded: a demo's SPEED.")
]


@app.command("ls")
def list_weights(context: typer.Context, pool: OfPool = None, output: AsOutput = Output.TABLE) -> None:
    """List what is published of each launch config: weight, windows (starts that may be in each stage), and why.

    \b
    Example:
      slipway weights ls --pool linux
    """
    api = context.obj
    rows = api.get("weight-calculator", "/weights", pool=pool)["items"]
    if pool is not None and not rows:
        api.get("provisioner", path("pools", pool))  # an unknown pool is told, not shown as an empty one
    show(rows, ROWS, output, nothing="no weights yet")


@app.command("show")
def show_weight(context: typer.Context, config: ConfigId, output: AsOutput = Output.TABLE) -> None:
    """Show all that is published of one launch config.

    \b
    Example:
      slipway weights show linux-zone-b
    """
    items = context.obj.get("weight-calculator", "/weights", config=config)["items"]
    row: dict[str, Any] | None = next((row for row in items if row["launch_config_id"] == config), None)
    if row is None:
        raise Failed(f"nothing is published of {config!r}; `slipway weights ls` lists all that is")
    if output is Output.JSON:
        as_json(row)
        return
    nested = ("stages", "shared", "offsets")
    pairs({name: value for name, value in row.items() if name not in nested} | {"probe_permit": _permit(row)}, now())
    print()
    show([{"stage": name} | stage for name, stage in row["stages"].items()], STAGES, output, nothing="no stages")
    if row["shared"]:
        print()
        show(row["shared"], SHARED, output, nothing="")


def _permit(row: Mapping[str, Any]) -> int | None:
    """The number of the probe that may launch now; None while none may."""
    permit: int | None = row["probe_permit"] if row["probe_ready"] else None
    return permit


def _window(row: Mapping[str, Any]) -> int | None:
    """None for what is only open or closed."""
    from slipway_common.events.weight import BOUNDLESS

    window: int = row["window"]
    return window if window < BOUNDLESS else None


@app.command("replay")
def replay(
    context: typer.Context,
    from_: From,
    policy: Policy = "default",
    pool: OfPool = None,
    speed: Speed = 1.0,
    output: AsOutput = Output.TABLE,
) -> None:
    """Fold recorded events again, under another policy, and tell what would have differed. Changes nothing.

    The digest is of all that is known in the end: the same for the same events and policy. A start is avoided if the
    policy would not have let it begin; what would have been launched elsewhere instead is not guessed, and what a start
    that is avoided would have told is not known, so that windows may stay small behind it.

    An outage is five failures in a row of one stage of one config; it began with the first of them, and lasted to the
    next success. It was detected when the config closed, and had recovered once that was open again after its end.

    A file of events holds what `slipway events tail --beginning --no-follow -o json` prints. A policy file (YAML, TOML
    or JSON) sets coefficients, such as `trip_capacity: 3`, over those of each config's profile; of one that is called
    like a policy say `./spot`.

    \b
    Examples:
      slipway weights replay --from tests/data/outage.jsonl
      slipway weights replay --from tests/data/outage.jsonl --policy spot
      slipway weights replay --from slipway.worker.lifecycle.v1 --policy mine.yaml --pool linux
    """
    core = _core()
    wanted = {"default": core.at_speed(core.policies("default"), speed)}
    wanted[policy] = core.at_speed(_policies(core, policy), speed)
    comparison = core.Comparison(wanted)
    left = _fold(core, comparison, context.obj, from_)
    told = _told(comparison, left, pool)
    if pool is not None and not told["policies"]["default"]["configs"]:
        raise Failed(f"nothing was recorded of a pool {pool!r}: leave --pool out to see all")
    if output is Output.JSON:
        as_json(told)
        return
    _summary(told)
    print()
    names = list(wanted)
    show(_configs(told, names), _config_fields(names), output, nothing=_nothing(names))
    print()
    show(told["outages"], _outage_fields(names), output, nothing="no outage")
    if told["outages"]:
        print("\ndetected: closed, after its first failure; recovered: open again, after its end")


def _core() -> Any:
    from importlib.metadata import entry_points

    found = next(iter(entry_points(group=CORES)), None)
    if found is None:
        raise Failed("replaying needs the core of the services: install slipway-weight-calculator beside this command")
    return found.load()


def _policies(core: Any, given: str) -> Any:
    """A named policy, or that of a file: of what is both, the name, unless it contains "/". Raises InvalidFile or
    typer.BadParameter before anything is read."""
    from slipway_common.strict_yaml import Invalid, Problem

    file = Path(given)
    try:
        return core.policies(given)
    except core.Unusable as error:
        if not file.is_file():
            raise typer.BadParameter(f"--policy: {error}") from error
    try:
        return core.policies(_mapping(file))
    except core.Unusable as error:
        raise InvalidFile(file, [Problem("", str(error))]) from error
    except Invalid as error:
        raise InvalidFile(file, error.problems) from error


def _mapping(file: Path) -> dict[str, Any]:
    """What a policy file sets. Raises Invalid."""
    import tomllib

    from slipway_common.strict_yaml import Invalid, Problem, read

    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".toml":
            return tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid([Problem("", f"cannot be read: {getattr(error, 'strerror', None) or error}")]) from error
    except tomllib.TOMLDecodeError as error:
        raise Invalid([Problem("", f"is not TOML: {error}")]) from error
    document = read(text)
    if document.problems:
        raise Invalid(document.problems)
    if not isinstance(document.value, dict):
        raise Invalid([Problem("", "is no mapping of coefficients to values, such as trip_capacity: 3")])
    return document.value


def _fold(core: Any, comparison: Any, api: Api, from_: str) -> Left:
    """All events of a file or of the topics; returns what was not taken as it stands. Raises InvalidFile, Failed or
    typer.BadParameter."""
    from slipway_client.recorded import Recording
    from slipway_common.strict_yaml import Invalid

    times = _times()
    file = Path(from_)
    if file.exists() and not file.is_dir():
        recording = Recording(file)
        try:
            for event in recording:
                _add(core, comparison, times.add(event))
        except Invalid as error:
            raise InvalidFile(file, error.problems) from error
        _add(core, comparison, times.rest())
        return Left(recording.unreadable, times.clamped)
    known = {name for topic in FOLDED for name in (topic, topic.removeprefix("slipway.").removesuffix(".v1"))}
    if from_ not in known:
        raise typer.BadParameter(f"--from: there is no file {from_}, and no topic to replay; there is {FOLDED[-1]}")

    import asyncio

    async def fold() -> int:
        unreadable = 0
        async for event in _published(api):
            if event is None:
                unreadable += 1
            else:
                _add(core, comparison, times.add(event))
        return unreadable

    unreadable = asyncio.run(fold())
    _add(core, comparison, times.rest())
    return Left(unreadable, times.clamped)


def _times() -> "Times[Event]":
    from slipway_client.believed import Times

    return Times(lambda event: (event.time, event.stored_at))


async def _published(api: Api) -> AsyncIterator["Event | None"]:
    """What the topics hold, to the end seen at the beginning; None for what cannot be read here."""
    import msgspec

    from slipway_client.log import Log
    from slipway_client.recorded import Event
    from slipway_common.topics import EVENT_OF

    async with Log(api.kafka, api.topic_prefix) as log:
        await log.open(FOLDED, last=None, since=None)
        async for entry in log.past():
            envelope = entry.envelope
            if envelope is None or entry.unreadable or envelope.type not in EVENT_OF:
                yield None
                continue
            event = None if entry.data is None else msgspec.convert(entry.data, EVENT_OF[envelope.type])
            yield Event(
                topic=entry.topic,
                id=envelope.id,
                source=envelope.source,
                subject=envelope.subject or entry.key,
                time=envelope.time,
                event=event,
                stored_at=entry.stored_at,
            )


def _add(core: Any, comparison: Any, events: Iterable[tuple["Event", float]]) -> None:
    for event, at in events:
        if event.topic in FOLDED:
            comparison.add(
                core.Recorded(id=event.id, source=event.source, subject=event.subject, time=at, event=event.event)
            )


def _told(comparison: Any, left: Left, pool: str | None) -> dict[str, Any]:
    """The comparison as plain values, of one pool or of all."""
    import msgspec

    replays: Mapping[str, Any] = comparison.replays
    return {
        "events": comparison.events,
        "repeated": comparison.duplicates,
        "unreadable": left.unreadable,
        "clamped": left.clamped,
        "disordered": comparison.disordered,
        "began": _time(comparison.began),
        "ended": _time(comparison.ended),
        "policies": {
            name: {
                "digest": replay.digest(),
                "signals_refused": replay.refused,
                "configs": {
                    config_id: msgspec.to_builtins(tally)
                    for config_id, tally in sorted(replay.tallies.items())
                    if pool in (None, replay.pool_of(config_id))
                },
            }
            for name, replay in replays.items()
        },
        "outages": [
            {
                "config": outage.config_id,
                "stage": outage.stage,
                "began": _time(outage.began),
                "ended": _time(outage.ended),
                "failures": outage.failures,
                "detected_seconds": {name: replay.detected(outage) for name, replay in replays.items()},
                "recovered_seconds": {name: replay.recovered(outage) for name, replay in replays.items()},
            }
            for outage in comparison.outages
            if pool in (None, outage.pool_id)
        ],
    }


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


def _summary(told: Mapping[str, Any]) -> None:
    lasted = 0.0
    if told["began"]:
        lasted = (moments.at(told["ended"]) - moments.at(told["began"])).total_seconds()
    unreadable = f", {told['unreadable']:,} left out that cannot be read" if told["unreadable"] else ""
    print(f"{told['events']:,} events of {moments.spelled(lasted)}, and {told['repeated']:,} repeats{unreadable}")
    if told["clamped"]:
        print(f"{told['clamped']:,} by clocks that are wrong: taken as of the nearest time that can be right")
    if told["disordered"]:
        print(
            f"{told['disordered']:,} stand over 2 min behind what happened after them: all was folded in the order of "
            "the log, so what follows may be wrong; sort it by time"
        )
    width = max(map(len, told["policies"]))
    for name, policy in told["policies"].items():
        refused = policy["signals_refused"]
        signals = f", {refused} signal{'' if refused == 1 else 's'} refused" if refused else ""
        print(f"{name:<{width}}  digest {policy['digest']}{signals}")


def _configs(told: Mapping[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """A row per config: all of them under one policy, those that differ under two."""
    first, *others = names
    by_policy: dict[str, Any] = {name: told["policies"][name]["configs"] for name in names}
    return [
        {"config": config_id, "tallies": {name: by_policy[name][config_id] for name in names}}
        for config_id, tally in by_policy[first].items()
        if not others or any(by_policy[name][config_id] != tally for name in others)
    ]


def _nothing(names: list[str]) -> str:
    return "no config would have been treated differently" if len(names) > 1 else "no start was asked for"


def _config_fields(names: list[str]) -> list[Field]:
    def column(what: str) -> Field:
        return what.replace("_", " "), lambda row: _change([row["tallies"][name][what] for name in names])

    return ["config", *map(column, ("allowed", "failed", "probes", "avoided", "avoided_failed"))]


def _outage_fields(names: list[str]) -> list[Field]:
    def column(what: str) -> Field:
        return what, lambda row: _change([_spelled(row[f"{what}_seconds"][name]) for name in names])

    def lasted(row: Mapping[str, Any]) -> Any:
        if row["ended"] is None:
            return None
        return moments.spelled((moments.at(row["ended"]) - moments.at(row["began"])).total_seconds())

    return [
        "config",
        "stage",
        ("began", lambda row: moments.clock(moments.at(row["began"]), now())),
        ("lasted", lasted),
        "failures",
        column("detected"),
        column("recovered"),
    ]


def _change(values: list[Any]) -> Any:
    """One value, or the first and the last where they differ."""
    return values[0] if values[0] == values[-1] else f"{values[0]} → {values[-1]}"


def _spelled(seconds: float | None) -> str:
    return "-" if seconds is None else f"after {moments.spelled(seconds)}"
