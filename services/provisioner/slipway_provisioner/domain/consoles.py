"""Console output of machines that never registered: what is kept of it, and the alert that holds it. Pure.

The console is the machine's own text, which may repeat its user data and the secret in them. So both are removed before
anything is cut, and whatever looks like a secret after that.
"""

import base64
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from slipway_api.events.alert import AlertIdentity, AlertRaised, AlertResolved, alert_identity
from slipway_api.events.scopes import image_key
from slipway_api.limits import LINE, NOTE
from slipway_common.base.redaction import GONE, redacted

KIND: Final = "never-registered"
ATTEMPTS_MAX: Final = 5
"""Attempts to fetch one, since EC2 posts it minutes after a change of the machine's state."""
LINES_MAX: Final = 40
BYTES_MAX: Final = 4096
SHORTEST_ECHO: Final = 12
"""Characters of user data that a line must repeat to be removed; shorter ones occur by chance."""
SHORTEST_PIECE: Final = 8
"""Characters of a secret by which a part of it is recognised: a text is cut at both ends, and what logs to a console
begins each line with words of its own."""
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_UNPRINTABLE: Final = re.compile(r"[^\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)


class ConsoleOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The machine whose console output stands for its image revision. `attempts` have been made to fetch it."""

    image_revision: str
    account_id: str
    pool_id: str
    launch_config_id: str
    batch_id: str
    worker_id: str
    instance_id: str
    reason: str
    attempts: int = 0


def delay_seconds(attempts: int, retry_seconds: float) -> float:
    """Time until the next attempt, which doubles with each."""
    return float(retry_seconds * 2 ** (attempts - 1))


def kept(text: str, *, secret: str, user_data: Sequence[str]) -> tuple[str, ...]:
    """The last lines of a console output, without user data and secrets, as text for people: at most 40 lines of 200
    characters, and 4 kB in all. `user_data` are the parts between which the secret goes."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = _PRIVATE_KEY.sub(GONE, _without(_UNPRINTABLE.sub("", text), secret))
    lines: list[str] = []
    size = 0
    repeated = _Echo(GONE.join(user_data), secret)
    for line in reversed(text.split("\n")):
        shown = GONE if line in repeated else redacted(line, LINE.characters)
        if not shown or (shown == GONE and lines[-1:] == [GONE]):
            continue
        size += len(shown.encode()) + 1
        if len(lines) == LINES_MAX or size > BYTES_MAX:
            break
        lines.append(shown)
    lines.reverse()
    return tuple(lines) if any(line != GONE for line in lines) else ()


class _Echo:
    """Lines that repeat user data, in whole or in part, however they are wrapped, once secrets are removed; and those
    with a piece of the secret that was left, since something was printed between its parts."""

    def __init__(self, user_data: str, secret: str) -> None:
        starts = [(form, range(len(form) - SHORTEST_PIECE + 1)) for form in _forms(secret)]
        self._pieces = {form[at : at + SHORTEST_PIECE] for form, places in starts for at in places}
        self._whole = "".join(user_data.split())
        self._lines = [line for each in user_data.split("\n") if len(line := "".join(each.split())) >= SHORTEST_ECHO]

    def __contains__(self, line: str) -> bool:
        found = "".join(line.split())
        if any(found[at : at + SHORTEST_PIECE] in self._pieces for at in range(len(found))):
            return True
        if len(found) < SHORTEST_ECHO:
            return False
        return found in self._whole or any(each in found for each in self._lines)


def _without(text: str, secret: str) -> str:
    """The text without the secret, however a console has wrapped it."""
    for form in _forms(secret):
        text = re.sub(r"\s*".join(map(re.escape, form)), GONE, text)
    return text


def _forms(secret: str) -> Iterator[str]:
    """The secret as it is, and as it looks inside of text in Base64, where it begins at one of three places."""
    yield secret
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + secret.encode()).decode().rstrip("=")
        # The characters at both ends depend on what is beside the secret.
        yield encoded[(0, 2, 3)[offset] : -1]


def raised(console: ConsoleOutput, lines: Sequence[str], problem: str) -> AlertRaised:
    """Alert on an image whose machine never registered, with what it printed, or why that is not known."""
    image = image_key(console.image_revision)
    last = f"; it printed last: {lines[-1]}" if lines else f"; {problem}"
    return AlertRaised(
        **_identity(console.image_revision),
        summary=NOTE.cut(f"a machine of {image} never registered: {console.reason}{last}"),
        effect="a machine that does not register takes no task, and costs money until it is terminated",
        doing="fetches the console output of one machine of an image, and stores it here and for `slipway why`",
        command=f"slipway why {shlex.quote(f'image/{console.image_revision}')}",
        cause=console.reason,
        severity="notice",
        evidence=(
            f"worker {console.worker_id}, instance {console.instance_id} of {console.account_id}, "
            f"launch config {console.launch_config_id}",
        ),
        console=tuple(lines),
    )


def resolved(image_revision: str) -> AlertResolved:
    return AlertResolved(
        **_identity(image_revision), summary=f"{image_key(image_revision)} has registered since, or is no longer in use"
    )


def none_found(attempts: int, error: str) -> str:
    """Reason why there is no console output."""
    times = f"{attempts} attempts" if attempts > 1 else "1 attempt"
    return f"its console output could not be read in {times}: {error}" if error else f"it had none after {times}"


def _identity(image_revision: str) -> AlertIdentity:
    return alert_identity("provisioner", KIND, "image", image_revision)
