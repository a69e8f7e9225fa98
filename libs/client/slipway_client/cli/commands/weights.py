"""`slipway weights` commands: weights of launch configs, and replay of recorded events under another policy."""

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from slipway_client.cli.invalid_file import InvalidFile
from slipway_client.cli.options import AsOutput, ConfigId, OfPool, noun, now
from slipway_client.cli.tables import Field, Output, as_json, pairs, show
from slipway_client.transport.http import Api, Failed, path
from slipway_client.view import moments

if TYPE_CHECKING:
    from slipway_client.cli.recorded import Event
    from slipway_client.transport.clock_skew import Times

app = noun("Show weights and replay policies")

# Entry point by which the weight-calculator's package offers its core: this command imports no service.
CORES: Final = "slipway.replay"
FOLDED: Final = ("slipway.launch-config.lifecycle.v1", "slipway.launch-config.signal.v1", "slipway.worker.lifecycle.v1")
STAGES_NAMED: Final = ("launch", "boot", "claim")


class Skipped(NamedTuple):
    """Numbers of unreadable records and of clamped timestamps of a log."""

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
    ("shared", lambda row: f"{row['kind']} {row['id']}"),
    "stage",
    "state",
    ("window", lambda row: _window(row)),
    ("available", lambda row: f"{row['probability']:.0%}" if row["kind"] == "capacity" else None),
    "unconfirmed",
    "reason",
)

Policy = Annotated[
    str, typer.Option(metavar="NAME|FILE", help="Policy to compare: a profile or a file of coefficients")
]
From = Annotated[str, typer.Option("--from", metavar="FILE|TOPIC", help="File of recorded events, or a topic on Kafka")]
Speed = Annotated[
    float, typer.Option(metavar="FACTOR", min=1.0, max=1000.0, help="Speed of the recorded demo (its SPEED)")
]


@app.command("ls")
def list_weights(context: typer.Context, pool: OfPool = None, output: AsOutput = Output.TABLE) -> None:
    """List the weights of launch configs

    Weight, health and windows, the limits on launches in flight per stage, as last published, with the reason.

    \b
    Example:
      slipway weights ls --pool linux
    """
    api = context.obj
    rows = api.get("weight-calculator", "/weights", pool=pool)["items"]
    if pool is not None and not rows:
        api.get("provisioner", path("pools", pool))  # an unknown pool is an error, not an empty list
    show(rows, ROWS, output, nothing="no weights yet")


@app.command("show")
def show_weight(context: typer.Context, config: ConfigId, output: AsOutput = Output.TABLE) -> None:
    """Show the published weight of a launch config

    That of its current revision, or of the given one. A window limits the starts in flight of a stage; `late` ones take
    longer than the boots before them, and count as failures until they end. A shared window is that of all launch
    configs with this image, quota, credential or capacity; `unconfirmed` counts failed and late starts since its last
    success. `available` is the factor by which a capacity lowers the weights of its launch configs.

    \b
    Examples:
      slipway weights show linux-zone-b
      slipway weights show linux-zone-b@3f2c9a
    """
    api = context.obj
    id_ = config if "@" in config else api.get("provisioner", path("launch-configs", config))["id"]
    items = api.get("weight-calculator", "/weights", config=id_)["items"]
    row: dict[str, Any] | None = next((row for row in items if row["launch_config_id"] == id_), None)
    if row is None:
        raise Failed(f"no weight of launch config {id_}; `slipway weights ls` lists all")
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
    """Number of the probe that may launch now; None if none may."""
    permit: int | None = row["probe_permit"] if row["probe_ready"] else None
    return permit


def _window(row: Mapping[str, Any]) -> int | None:
    """Size of a window; None if it has no bound."""
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
    """Replay recorded events under another policy

    Shows what the policy would have done differently, and changes nothing. A launch is avoided if the policy would not
    have allowed it; launches that would have gone elsewhere instead are not estimated, and the outcome of an avoided
    launch is unknown, so windows may stay smaller after it. The digest covers the final state: it is the same for the
    same events and policy.

    An outage is five failures in a row of one stage of one config, from the first of them to the next success. It is
    detected when the config trips, and recovered when the config is healthy again after its end.

    Profiles: default, on-demand, spot, bare-metal. A policy file (YAML, TOML or JSON) sets coefficients, such as
    `trip_capacity: 3`, over those of each config's profile; write `./spot` for a file named like a profile. A file of
    events holds the output of `slipway events tail --beginning --no-follow -o json`.

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
    skipped = _fold(core, comparison, context.obj, from_)
    result = _result(comparison, skipped, pool)
    if pool is not None and not result["policies"]["default"]["configs"]:
        raise Failed(f"no recorded events of pool {pool}; omit --pool to see all")
    if output is Output.JSON:
        as_json(result)
        return
    _summary(result)
    print()
    names = list(wanted)
    show(_configs(result, names), _config_fields(names), output, nothing=_nothing(names))
    print()
    show(result["outages"], _outage_fields(names), output, nothing="no outages")
    if result["outages"]:
        print("\ndetected: time from the first failure until tripped; recovered: time from the end until healthy")


def _core() -> Any:
    from importlib.metadata import entry_points

    found = next(iter(entry_points(group=CORES)), None)
    if found is None:
        raise Failed("replay needs the package slipway-weight-calculator; install it in the same environment")
    return found.load()


def _policies(core: Any, given: str) -> Any:
    """Policy by name or from a file; a name takes precedence unless it contains "/". Raises InvalidFile or
    typer.BadParameter before any event is read."""
    from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid

    file = Path(given)
    try:
        return core.policies(given)
    except core.InvalidPolicy as error:
        if not file.is_file():
            raise typer.BadParameter(f"--policy: {error}") from error
    try:
        return core.policies(_mapping(file))
    except core.InvalidPolicy as error:
        raise InvalidFile(file, [DocumentProblem("", str(error))]) from error
    except Invalid as error:
        raise InvalidFile(file, error.problems) from error


def _mapping(file: Path) -> dict[str, Any]:
    """Coefficients of a policy file. Raises Invalid."""
    import tomllib

    from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid, read

    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".toml":
            return tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid([DocumentProblem("", f"cannot be read: {getattr(error, 'strerror', None) or error}")]) from error
    except tomllib.TOMLDecodeError as error:
        raise Invalid([DocumentProblem("", f"is not TOML: {error}")]) from error
    document = read(text)
    if document.problems:
        raise Invalid(document.problems)
    if not isinstance(document.value, dict):
        raise Invalid([DocumentProblem("", "is not a mapping of coefficients to values, such as trip_capacity: 3")])
    return document.value


def _fold(core: Any, comparison: Any, api: Api, from_: str) -> Skipped:
    """Replay all events of a file or of the topics; returns numbers of skipped records and clamped timestamps. Raises
    InvalidFile, Failed or typer.BadParameter."""
    from slipway_client.cli.recorded import Recording
    from slipway_common.declaration.strict_yaml import Invalid

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
        return Skipped(recording.unreadable, times.clamped)
    known = {name for topic in FOLDED for name in (topic, topic.removeprefix("slipway.").removesuffix(".v1"))}
    if from_ not in known:
        raise typer.BadParameter(f"--from: {from_} is neither a file nor a topic that can be replayed ({FOLDED[-1]})")

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
    return Skipped(unreadable, times.clamped)


def _times() -> "Times[Event]":
    from slipway_client.transport.clock_skew import Times

    return Times(lambda event: (event.time, event.stored_at))


async def _published(api: Api) -> AsyncIterator["Event | None"]:
    """Events of the topics up to their end at the start of the replay; None for unreadable ones."""
    import msgspec

    from slipway_client.cli.recorded import Event
    from slipway_client.transport.log import Log
    from slipway_common.events.topics import EVENT_OF

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


def _result(comparison: Any, skipped: Skipped, pool: str | None) -> dict[str, Any]:
    """Comparison as plain values, of one pool or of all."""
    import msgspec

    replays: Mapping[str, Any] = comparison.replays
    return {
        "events": comparison.events,
        "repeated": comparison.duplicates,
        "unreadable": skipped.unreadable,
        "clamped": skipped.clamped,
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


def _summary(result: Mapping[str, Any]) -> None:
    lasted = 0.0
    if result["began"]:
        lasted = (moments.at(result["ended"]) - moments.at(result["began"])).total_seconds()
    unreadable = f", {_count(result['unreadable'], 'unreadable record')} skipped" if result["unreadable"] else ""
    duplicates = _count(result["repeated"], "duplicate")
    print(f"{_count(result['events'], 'event')} of {moments.spelled(lasted)}, {duplicates}{unreadable}")
    if result["clamped"]:
        print(f"{_count(result['clamped'], 'timestamp')} clamped because of clock skew")
    if result["disordered"]:
        print(
            f"{_count(result['disordered'], 'event')} more than 2 min out of order: events were replayed in the order "
            "of the log, so the result may be wrong; sort the file by time"
        )
    width = max(map(len, result["policies"]))
    for name, policy in result["policies"].items():
        refused = policy["signals_refused"]
        signals = f", {_count(refused, 'signal')} refused" if refused else ""
        print(f"{name:<{width}}  digest {policy['digest']}{signals}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _configs(result: Mapping[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """One row per config: all of them under one policy, those that differ under two."""
    first, *others = names
    by_policy: dict[str, Any] = {name: result["policies"][name]["configs"] for name in names}
    return [
        {"config": config_id, "tallies": {name: by_policy[name][config_id] for name in names}}
        for config_id, tally in by_policy[first].items()
        if not others or any(by_policy[name][config_id] != tally for name in others)
    ]


def _nothing(names: list[str]) -> str:
    return "no differences between the policies" if len(names) > 1 else "no launches"


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
    """One value, or `first → last` if they differ."""
    return values[0] if values[0] == values[-1] else f"{values[0]} → {values[-1]}"


def _spelled(seconds: float | None) -> str:
    return "-" if seconds is None else f"after {moments.spelled(seconds)}"
