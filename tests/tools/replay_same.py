"""`make replay-same`: compares a replay of this version with that of an earlier version.

`tests/data/outage.expected.jsonl` holds every record and alert that the earlier version published in a replay of
`tests/data/outage.jsonl`, and the digest of its final state. `tests/data/outage.words.toml` maps the words that have
changed since. Everything else must be equal: numbers, times, ids, codes, fields, and their order.
"""

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
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.record import record, worth_publishing
from slipway_weight_calculator.domain.replay import Recorded, Replay

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
    """The map of changed words. `unused` holds the entries that no line has needed yet."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        types = given.get("types", {})
        self.fields: dict[str, str] = given.get("fields", {})
        self.values: list[dict[str, str]] = given.get("values", [])
        self.sentences = {
            field: [Template(old, new, types) for old, new in pairs.items()]
            for field, pairs in given.get("sentences", {}).items()
        }
        self.unused: set[Any] = {*self.fields, *range(len(self.values))}
        self.unused |= {template for templates in self.sentences.values() for template in templates}
        self.size = len(self.unused)

    def line(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A line of the expected file in today's words."""
        return {name: self._data(value, value) if name == "data" else value for name, value in given.items()}

    def _data(self, given: Any, data: Mapping[str, Any]) -> Any:
        if not isinstance(given, dict):
            return given
        return {self._field(name): self._value(name, value, given, data) for name, value in given.items()}

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
        replay.add(Recorded(id=event.id, source=event.source, subject=event.subject, time=at, event=event.event))
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
    yield {"digest": replay.digest()}


def _line(at: float, event: Any) -> dict[str, Any]:
    return {"at": at, "type": event.type, "data": msgspec.to_builtins(event)}


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
    count, found, digest = 0, 0, ""
    for number, (old, new) in enumerate(zip_longest(expected, lines(LOG)), 1):
        count += new is not None and "data" in new
        digest = (new or {}).get("digest", digest)
        for difference in differences(words.line(old) if old is not None else None, new):
            found += 1
            if found <= SHOWN_MAX:
                print(f"line {number}: {difference}")
    if found:
        print(f"{found:,} differences; {count:,} records replayed")
        return 1
    if words.unused:
        print(f"{WORDS.name}: {len(words.unused)} entries are not used: {', '.join(sorted(map(_name, words.unused)))}")
        return 1
    print(f"{count:,} records equal but for {words.size} words; digest {digest}")
    return 0


def _name(entry: Any) -> str:
    return repr(entry.new) if isinstance(entry, Template) else f"value {entry}" if isinstance(entry, int) else entry


if __name__ == "__main__":
    sys.exit(main())
