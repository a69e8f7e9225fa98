"""The folder of the provider `ledger`, as checks and the demo see it: machines, calls, faults."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from slipway_local.terraform.packages import PYTHON

SOURCE: Final = "registry.terraform.io/slipway/ledger"
VERSION: Final = "1.0.0"

At = Literal["configure", "create", "read", "update", "destroy", "list"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of every call `at`, or only of the n-th `call` in a process, of calls in a region, of processes with a
    `token` as their credential, or of one call (`once`).

    `kind`: `hang` for `seconds`, `crash` (exit 13), `error` with `text` and `detail`, in which {secret} is replaced by
    the configured one, `leak` of resident `bytes`, `stderr` of `bytes`, `secret` on stderr. `done`: after the effect of
    a create or destroy, before its reply.
    """

    kind: Literal["hang", "crash", "error", "leak", "stderr", "secret"]
    at: At
    call: int | None = None
    region: str | None = None
    token: str | None = None
    seconds: float = 3600.0
    bytes: int = 0
    text: str = ""
    detail: str = ""
    done: bool = False
    once: bool = False


class LedgerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, or a call that had an effect, in the process `pid`."""

    call: str
    pid: int
    region: str
    id: str = ""
    name: str = ""
    tags: dict[str, str] | None = None


class Ledger:
    """Machines, calls and faults in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def machines(self) -> list[dict[str, Any]]:
        """Attributes of the machines that exist now."""
        found = []
        for path in sorted((self.folder / "machines").glob("*.json")):
            try:
                found.append(json.loads(path.read_bytes()))
            except FileNotFoundError:  # destroyed meanwhile
                continue
        return found

    def remove(self, id_: str) -> None:
        """Remove a machine behind Terraform's back."""
        (self.folder / "machines" / f"{id_}.json").unlink()

    def calls(self, call: str = "") -> list[LedgerCall]:
        """Calls in order, all or those of one name."""
        try:
            lines = (self.folder / "calls.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return []
        found = [msgspec.json.decode(line, type=LedgerCall) for line in lines]
        return [each for each in found if call in ("", each.call)]

    def inject(self, *faults: Fault) -> None:
        """Replace all faults by these, from the next call on."""
        shutil.rmtree(self.folder / "played", ignore_errors=True)
        new = self.folder / "faults.new"
        new.write_bytes(msgspec.json.encode(faults))
        new.rename(self.folder / "faults.json")


def write_executable(path: Path, python: Path = PYTHON, lines: Sequence[str] = ()) -> str:
    """Write the provider as a program that runs by itself; returns its SHA-256, hexadecimal.

    `lines` of Python run before it.
    """
    source = Path(__file__).with_name("provider.py").read_text()
    text = "\n".join([f"#!{python} -Iu", *lines, source])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return hashlib.sha256(text.encode()).hexdigest()


def write_mirror(folder: Path) -> tuple[Path, str]:
    """Write the provider into a filesystem mirror in `folder`; returns its path and SHA-256."""
    path = folder / SOURCE / VERSION / "linux_amd64" / f"terraform-provider-ledger_v{VERSION}"
    return path, write_executable(path)
