"""Boot of a machine from its user data, as the software of an image would do it. Pure.

JSON is given to the agent of the image. A script or cloud-config starts the agent itself.
Paths that cloud-config writes are moved into the machine's own folder.
"""

import base64
import binascii
import posixpath
import re
import shlex
from typing import Any, Final

import msgspec
import yaml

AGENT: Final = ("slipway-worker", "run", "--user-data", "-")
CLOUD_CONFIG: Final = "#cloud-config"


class UnusableUserData(ValueError):
    """User data with which no machine can boot."""


class Boot(msgspec.Struct, frozen=True):
    """A command, its standard input, and files by their paths in the machine's folder, with permissions.

    `agent_is_service`: the image runs the agent as its only service and powers off after it; otherwise the machine
    stays on until a script powers it off."""

    argv: tuple[str, ...]
    standard_input: bytes = b""
    files: tuple[tuple[str, bytes, int], ...] = ()
    agent_is_service: bool = False


def decoded(user_data: str) -> bytes:
    """User data of a launch call. Raises UnusableUserData."""
    try:
        return base64.b64decode(user_data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnusableUserData(f"Invalid BASE64 encoding of user data: {error}") from error


def plan(user_data: bytes, folder: str) -> Boot | None:
    """The boot of a machine whose root folder is `folder`; None without user data. Raises UnusableUserData."""
    text = user_data.lstrip()
    if not text:
        return None
    if text.startswith(CLOUD_CONFIG.encode()):
        return _cloud_config(user_data, folder)
    if text.startswith(b"#!"):
        script = posixpath.join(folder, "user-data")
        return Boot((script,), files=((script, text, 0o700),))
    return Boot(AGENT, user_data, agent_is_service=True)


def broken(user_data: bytes, instance_id: str, image: str) -> Boot:
    """The boot of a machine whose image cannot start its agent. Like others it prints its user data; it stays on."""
    lines = (
        f"Booting {instance_id} from {image}",
        "cloud-init: user data:",
        user_data.decode(errors="replace"),
        "slipway-worker: error while loading shared libraries: libssl.so.3: cannot open shared object file",
        f"systemd: slipway-worker.service failed on {instance_id}",
    )
    return Boot(("/bin/sh", "-c", "cat; exec sleep 86400"), "\n".join([*lines, ""]).encode())


def _cloud_config(user_data: bytes, folder: str) -> Boot:
    try:
        config = yaml.safe_load(user_data)
    except yaml.YAMLError as error:
        raise UnusableUserData(f"cloud-config is not YAML: {error}") from error
    if not isinstance(config, dict):
        raise UnusableUserData("cloud-config is no mapping")
    files, moved = [], {}
    for entry in config.get("write_files") or []:
        path = str(entry["path"])
        moved[path] = posixpath.join(folder, path.lstrip("/"))
        files.append((moved[path], _content(entry), int(str(entry.get("permissions", "0644")), 8)))
    commands = [_command(command) for command in [*(config.get("bootcmd") or []), *(config.get("runcmd") or [])]]
    script = "\n".join(["#!/bin/sh", *commands, ""])
    if moved:
        longest_first = sorted(map(re.escape, moved), key=len, reverse=True)
        script = re.sub("|".join(longest_first), lambda match: moved[match[0]], script)
    start = posixpath.join(folder, "runcmd")
    return Boot((start,), files=(*files, (start, script.encode(), 0o700)))


def _command(command: Any) -> str:
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command)


def _content(entry: dict[str, Any]) -> bytes:
    content = str(entry.get("content", ""))
    if str(entry.get("encoding", "")) in {"b64", "base64"}:
        return base64.b64decode(content)
    return content.encode()
