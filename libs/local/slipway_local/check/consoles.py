"""Check of the console output in alerts, against what the machines of bad images have really printed. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_api.events.alert import AlertRaised

KIND: Final = "never-registered"
LINES_MIN: Final = 2
NAMES: Final = ("secret", "batch_id", "register_url")
"""Members of the default user data."""


class Found(msgspec.Struct, frozen=True):
    """Result for one image: the machine and the number of its lines in the alert, or a problem."""

    image: str
    instance_id: str = ""
    lines: int = 0
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.lines} lines of {self.instance_id} in the alert on {self.image}"


def judge(printed: Mapping[str, Mapping[str, str]], events: Sequence[Any]) -> Iterator[Found]:
    """Compare each bad image's alert with the consoles of its machines: image → instance → text that it printed."""
    for image, consoles in sorted(printed.items()):
        alerts = [e for e in events if isinstance(e, AlertRaised) and (e.kind, e.subject_id) == (KIND, image)]
        yield _judged(image, consoles, alerts)


def _judged(image: str, consoles: Mapping[str, str], alerts: Sequence[AlertRaised]) -> Found:
    if len(alerts) != 1:
        return Found(image, problem=f"{len(alerts)} alerts on machines of {image} that never registered; 1 expected")
    (alert,) = alerts
    whole = "\n".join([*alert.console, alert.summary])
    for instance_id, text in consoles.items():
        own = {line.strip() for line in text.splitlines()}
        lines = [line for line in alert.console if line in own]
        if not any(instance_id in line for line in lines):
            continue  # another machine of the image
        if leaked := [part for part in _private(text) if part in whole]:
            return Found(image, instance_id, problem=f"the alert on {image} shows user data: {len(leaked)} parts")
        if len(lines) < LINES_MIN:
            return Found(image, instance_id, problem=f"the alert on {image} has {len(lines)} of its machine's lines")
        return Found(image, instance_id, len(lines))
    return Found(image, problem=f"the alert on {image} holds no line of a machine's console")


def _private(text: str) -> Collection[str]:
    """Values of the user data that a machine has printed as JSON."""
    found = set()
    for line in text.splitlines():
        try:
            user_data = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(user_data, dict):
            found |= {str(user_data[name]) for name in NAMES if user_data.get(name)}
    return found
