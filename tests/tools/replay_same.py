"""`make replay-same`: compares a replay of this version with that of an earlier version.

`tests/data/outage.expected.jsonl` holds every record and alert that the earlier version published in a replay of
`tests/data/outage.jsonl`, and the digest of its final state. `tests/data/outage.words.toml` maps the words that have
changed since. Everything else must be equal: numbers, times, ids, codes, fields, and their order. Only a field that the
earlier version did not have may be there with its default, since contracts are additive.

The earlier version had no revisions: the id of a launch config was its name, and keys and probes were texts. Since the
jitter of a probe is a hash of the id, the log is replayed with names as ids, and the digest is that of the state with
keys and probes as such texts.
"""

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_client.cli.recorded import Recording
from slipway_common.events.alert import Alert, AlertRaised
from slipway_common.events.weight import WeightChanged
from slipway_weight_calculator.domain import alerts
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.record import record, worth_publishing
from slipway_weight_calculator.domain.replay import Recorded, Replay
from slipway_weight_calculator.domain.rows import CONFIG, STAGES, Row
from slipway_weight_calculator.domain.world import World

DATA: Final = Path(__file__).parents[1] / "data"
LOG: Final = DATA / "outage.jsonl"
EXPECTED: Final = DATA / "outage.expected.jsonl"
WORDS: Final = DATA / "outage.words.toml"
SHOWN_MAX: Final = 5
PLACEHOLDER: Final = re.compile(r"\{([a-z_.]+)\}")


class WrongMap(ValueError):
    """The map of words could hide a difference; the text names the entry."""


class Template:
    """A sentence with placeholders, in its old and its new wording.

    A placeholder stands for one text of its type and must occur once on both sides, so that a sentence can be
    rearranged but no fact in it can change. `{data.FIELD}`, only on the new side, is a field of the same record.
    """

    def __init__(self, old: str, new: str, types: Mapping[str, str]) -> None:
        self.new = new
        names = PLACEHOLDER.findall(old)
        if sorted(names) != sorted(n for n in PLACEHOLDER.findall(new) if not n.startswith("data.")):
            raise WrongMap(f"{old!r} → {new!r}: the placeholders differ")
        if len(names) != len(set(names)):
            raise WrongMap(f"{old!r}: a placeholder occurs twice")
        if unknown := [name for name in names if name not in types]:
            raise WrongMap(f"{old!r}: no type for {unknown[0]}")
        parts = PLACEHOLDER.split(old)
        pattern = "".join(f"(?P<{p}>{types[p]})" if n % 2 else re.escape(p) for n, p in enumerate(parts))
        self._old = re.compile(pattern)

    def translated(self, text: str, data: Mapping[str, Any]) -> str | None:
        """The new wording; None if the text is not this sentence."""
        found = self._old.fullmatch(text)
        if found is None:
            return None
        facts = found.groupdict() | {f"data.{name}": str(value) for name, value in data.items()}
        return PLACEHOLDER.sub(lambda match: facts[match[1]], self.new)


class Words:
    """The map of changed words. `unused` holds the entries that no line has needed yet.

    `splits` are fields whose text has become several fields, by pattern: its groups are the new fields, which joined by
    slashes must give the text again. `added` are fields before another one, by the old fields that they follow from.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        types = given.get("types", {})
        self.fields: dict[str, str] = given.get("fields", {})
        self.values: list[dict[str, str]] = given.get("values", [])
        self.sentences = {
            field: [Template(old, new, types) for old, new in pairs.items()]
            for field, pairs in given.get("sentences", {}).items()
        }
        self.splits = {field: re.compile(pattern) for field, pattern in given.get("splits", {}).items()}
        self.added: dict[str, dict[str, Any]] = {entry["before"]: entry for entry in given.get("added", [])}
        self.unused: set[Any] = {*self.fields, *self.splits, *range(len(self.values))}
        self.unused |= {f"{entry['field']}: {each['old']}" for entry in self.added.values() for each in entry["by"]}
        self.unused |= {template for templates in self.sentences.values() for template in templates}
        self.size = len(self.unused)

    def line(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A line of the expected file in today's words."""
        return {name: self._data(value, value) if name == "data" else value for name, value in given.items()}

    def _data(self, given: Any, data: Mapping[str, Any]) -> Any:
        if not isinstance(given, dict):
            return given
        found: dict[str, Any] = {}
        for name, value in given.items():
            if name in self.added:
                found |= self._added(self.added[name], given)
            if name in self.splits:
                found |= self._split(name, value)
            else:
                found[self._field(name)] = self._value(name, value, given, data)
        return found

    def _split(self, name: str, text: str) -> dict[str, str]:
        self.unused.discard(name)
        found = self.splits[name].fullmatch(text)
        parts = {} if found is None else {field: part or "" for field, part in found.groupdict().items()}
        if "/".join(filter(None, parts.values())) != text:
            raise WrongMap(f"{name}: {text!r} is split into {parts}")
        return parts

    def _added(self, entry: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
        for each in entry["by"]:
            if entry["of"] in given and (found := re.fullmatch(each["old"], given[entry["of"]])):
                self.unused.discard(f"{entry['field']}: {each['old']}")
                return {entry["field"]: found.expand(each["new"])}
        return {}

    def _field(self, name: str) -> str:
        self.unused.discard(name)
        return self.fields.get(name, name)

    def _value(self, field: str, value: Any, beside: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [self._value(field, each, beside, data) for each in value]
        if isinstance(value, dict):
            return self._data(value, data)
        if not isinstance(value, str):
            return value
        for n, entry in enumerate(self.values):
            if entry["field"] == field and entry["old"] == value:
                other, _, pattern = entry.get("if", "").partition(" ~ ")
                if not other or re.search(pattern, str(beside.get(other, ""))):
                    self.unused.discard(n)
                    return entry["new"]
        for template in self.sentences.get(field, ()):
            if (new := template.translated(value, data)) is not None:
                self.unused.discard(template)
                return new
        return value


class Alerting(Replay):
    """A replay that also collects the alerts of each commit in `raised`, as (time, alert)."""

    def __init__(self) -> None:
        super().__init__(PROFILES)
        self.open: dict[str, AlertRaised] = {}
        self.raised: list[tuple[float, Alert]] = []

    def observe(self, draft: Draft, now: float) -> None:
        super().observe(draft, now)
        changed = alerts.changes(draft, self.open, now)
        self.open = alerts.after(self.open, changed)
        self.raised += [(now, alert) for alert in changed]


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """Every record and alert that a replay of the log publishes, in order, and the digest of its final state."""
    replay, published = Alerting(), dict[str, WeightChanged]()
    for event in Recording(file):
        at = event.time.timestamp()
        fact = _of_name(event.event)
        replay.add(Recorded(id=event.id, source=event.source, subject=event.subject, time=at, event=fact))
        for at, alert in replay.raised:
            yield _line(at, alert)
        replay.raised.clear()
        draft = Draft(replay.world)
        for config_id in sorted(replay.world.configs):
            config = replay.world.configs[config_id]
            new = record(draft, config, replay.now)
            if worth_publishing(published.get(config_id), new, draft.policy(config)):
                published[config_id] = new
                yield _line(replay.now, new)
    yield {"digest": digest(replay.world)}


def _of_name(event: Any) -> Any:
    """An event with the name of its launch config as id."""
    if not hasattr(event, "launch_config_id"):
        return event
    return msgspec.structs.replace(event, launch_config_id=event.launch_config_id.partition("@")[0])


def digest(world: World) -> str:
    """Hash of the state as the earlier version had it."""
    found = hashlib.blake2b(digest_size=16)
    rows = {key.id if key.kind == CONFIG else key.text: _row(row) for key, row in world.rows.items()}
    boots = {id_: _with(boot, image=boot.image.text) for id_, boot in world.boots.items()}
    state: tuple[Mapping[str, Any], ...] = (rows, boots, world.signals)
    for values in state:
        for key in sorted(values):
            found.update(msgspec.json.encode((key, values[key])) + b"\n")
    return found.hexdigest()


def _row(row: Row) -> list[Any]:
    stages: dict[str, Any] = {}
    for name in STAGES:
        stage: Stage = getattr(row, name)
        probe = "" if stage.trip.probe is None else str(stage.trip.probe)
        stages[name] = _with(stage, trip=_with(stage.trip, probe=probe))
    return _with(row, **stages)


def _with(value: Any, **changes: Any) -> list[Any]:
    """The fields of a value as an array, some of them changed."""
    return [changes.get(name, getattr(value, name)) for name in value.__struct_fields__]


def _line(at: float, event: Any) -> dict[str, Any]:
    return {"at": at, "type": event.type, "data": event}


def without_additions(value: Any, expected: Any) -> Any:
    """A value as builtins, without fields that have their defaults and that the expected value does not have."""
    if isinstance(value, msgspec.Struct):
        value = {
            field.encode_name: getattr(value, field.name)
            for field in msgspec.structs.fields(value)
            if not isinstance(expected, dict)
            or field.encode_name in expected
            or getattr(value, field.name) != _default(field)
        }
    if isinstance(value, dict):
        beside = expected if isinstance(expected, dict) else {}
        return {name: without_additions(inner, beside.get(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        others = expected if isinstance(expected, list) else ()
        return [without_additions(inner, other) for inner, other in zip_longest(value, others)][: len(value)]
    return msgspec.to_builtins(value)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def differences(expected: Any, got: Any, path: str = "") -> Iterator[str]:
    """The places where two values differ, with both sides; also where only the order of fields does."""
    if isinstance(expected, dict) and isinstance(got, dict):
        if list(expected) != list(got):
            yield f"{path or 'line'}: fields {', '.join(expected)}; now {', '.join(got)}"
        for name in filter(got.__contains__, expected):
            yield from differences(expected[name], got[name], f"{path}.{name}" if path else name)
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for n, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from differences(one, other, f"{path}[{n}]")
    elif json.dumps(expected) != json.dumps(got):
        yield f"{path or 'line'}:\n  expected {json.dumps(expected, ensure_ascii=False)}" + (
            f"\n  now      {json.dumps(got, ensure_ascii=False)}"
        )


def main() -> int:
    words = Words(tomllib.loads(WORDS.read_text(encoding="utf-8")))
    expected = (json.loads(line) for line in EXPECTED.read_text(encoding="utf-8").splitlines())
    count, found, state = 0, 0, ""
    for number, (old, new) in enumerate(zip_longest(expected, lines(LOG)), 1):
        count += new is not None and "data" in new
        state = (new or {}).get("digest", state)
        wanted = words.line(old) if old is not None else None
        for difference in differences(wanted, without_additions(new, wanted)):
            found += 1
            if found <= SHOWN_MAX:
                print(f"line {number}: {difference}")
    if found:
        print(f"{found:,} differences; {count:,} records replayed")
        return 1
    if words.unused:
        print(f"{WORDS.name}: {len(words.unused)} entries are not used: {', '.join(sorted(map(_name, words.unused)))}")
        return 1
    print(f"{count:,} records equal but for {words.size} words; digest {state}")
    return 0


def _name(entry: Any) -> str:
    return repr(entry.new) if isinstance(entry, Template) else f"value {entry}" if isinstance(entry, int) else entry


if __name__ == "__main__":
    sys.exit(main())
