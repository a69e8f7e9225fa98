"""User data of machines: the template of their pool, rendered once per launch batch, without the batch's secret. Pure.

What is committed with a batch are the parts between which the secret goes, which is derived and never stored. So a
repeat of the call has the same bytes, also after a restart with another URL.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_api.limits import NAME
from slipway_common.base.redaction import masked, names_secret
from slipway_common.declaration.user_data import BYTES_MAX, DEFAULT, URL_CHARACTERS_MAX, URL_PATTERN, pieces
from slipway_provisioner.domain.cloud import Account

MASK: Final = "***"
SECRET_CHARACTERS: Final = 64
BATCH_ID_CHARACTERS: Final = 36
SOURCE_LONGEST: Final = "\U0001f40b" * (NAME.bytes // 4)
"""Name of a source that is longest as JSON in ASCII."""


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the placeholders of one launch batch, without its secret."""

    register_url: str
    batch_id: str
    queue_url: str
    settings: Mapping[str, Any]
    pool: str
    launch_config: str
    account: str
    region: str
    zone: str
    instance_type: str
    image: str
    source: str = ""
    ca: str = ""


def values_of(
    revision: Mapping[str, Any], account: Account, *, register_url: str, batch_id: str, source: str, ca: str = ""
) -> Values:
    """Values of a batch of a revision, in an account. `source`: the only source of demand of its pool, or empty. `ca`:
    authorities that the machine trusts in addition, in PEM, or empty."""
    return Values(
        register_url=register_url,
        batch_id=batch_id,
        queue_url=account.settings.get("queue_url") or "",
        settings=revision["settings"],
        pool=revision["pool_id"],
        launch_config=revision["name"],
        account=account.id,
        region=revision["region"],
        zone=revision["zone"],
        instance_type=revision["instance_type"],
        image=revision["image_revision"],
        source=source,
        ca=ca,
    )


def render(template: str, values: Values) -> tuple[str, ...]:
    """Parts of the rendered template between which the secret goes. An empty template is the default one."""
    return _rendered(pieces(template or DEFAULT), values)


def preview(template: str, values: Values) -> str:
    """User data for people: with masks for the secret, and for values of settings and assignments in the template whose
    names suggest a secret."""
    shown = msgspec.structs.replace(values, settings=_masked(values.settings))
    return complete(_rendered(((masked(text), name) for text, name in pieces(template or DEFAULT)), shown), MASK)


def _rendered(of: Iterable[tuple[str, str]], values: Values) -> tuple[str, ...]:
    parts = [""]
    for text, name in of:
        parts[-1] += text
        first, *rest = _value(name, values)
        parts[-1] += first
        parts += rest
    return tuple(parts)


def _masked(value: Any) -> Any:
    """Settings with masks for the values of names that call them secret."""
    if isinstance(value, Mapping):
        return {name: MASK if names_secret(name) else _masked(inner) for name, inner in value.items()}
    return [_masked(inner) for inner in value] if isinstance(value, list | tuple) else value


def complete(parts: Sequence[str], secret: str) -> str:
    """User data with the secret of the batch."""
    return secret.join(parts)


def longest_bytes(template: str, values: Values) -> int:
    """Size of the user data with the longest values of what may change between two batches: their ids and secrets, the
    URL of this service, that of the queue, and the source of demand."""
    longest = "x" * URL_CHARACTERS_MAX
    batch_id, secret = "x" * BATCH_ID_CHARACTERS, "x" * SECRET_CHARACTERS
    changed = msgspec.structs.replace(
        values, register_url=longest, queue_url=longest, batch_id=batch_id, source=SOURCE_LONGEST
    )
    return len(complete(render(template, changed), secret).encode())


def size_problem(template: str, values: Values) -> str:
    """Problem with the size of the user data; empty if they always fit."""
    size = longest_bytes(template, values)
    if size <= BYTES_MAX:
        return ""
    return (
        f"its user data may have {size:,} bytes, of at most {BYTES_MAX:,}; shorten the pool's user_data or the launch "
        "config's settings"
    )


def queue_url_problem(account_settings: Mapping[str, Any]) -> str:
    """Problem with the queue URL of an account, which providers share; empty if it has none or can be used."""
    url = account_settings.get("queue_url") or ""
    if not url or (isinstance(url, str) and re.fullmatch(URL_PATTERN, url)):
        return ""
    return f"queue_url is {url!r}; write where agents claim tasks, such as http://127.0.0.1:7304/queue"


def _value(name: str, values: Values) -> tuple[str, ...]:
    """Parts of a placeholder's value between which the secret goes."""
    match name:
        case "":
            return ("",)
        case "batch_secret":
            return ("", "")
        case "settings":
            return (_one_line(values.settings),)
        case "user_data":
            head = {name: getattr(values, name) for name in ("batch_id", "queue_url", "register_url")}
            head |= {name: value for name in ("source", "ca") if (value := getattr(values, name))}
            return f'{_one_line(head)[:-1]},"secret":"', f'","settings":{_one_line(values.settings)}}}'
        case _:
            return (str(getattr(values, name)),)


def _one_line(value: Mapping[str, Any]) -> str:
    """JSON as one line of ASCII without single quotes, so that YAML and shells take it between single quotes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).replace("'", "\\u0027")
