"""Terraform provider `ledger`: its machines are files of a folder, and faults can be injected into its calls.

It runs with the interpreter of `.venv-terraform`, as a copy of this file (`ledger.write_executable`), and imports only
`tf` and the standard library. It speaks protocol 6, and requires TLS unless it is started with `--dev`.

The folder (`folder` of its configuration) outlives every process and is what checks compare with:

- `machines/ID.json`: one machine, as long as it exists
- `calls.jsonl`: every call that had an effect, and every configuration, in order
- `faults.json`: faults, read at every call, as a list of `Fault`s of `ledger.py`
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tf import iface, runner, schema, types

SOURCE = "registry.terraform.io/slipway/ledger"
PAGE_BYTES = 4096
leaked: list[bytearray] = []
recording = threading.Lock()
"""Held from an effect until it is recorded, and by a crash: Terraform makes several machines at a time."""


def start_agent(agent: dict[str, Any], machine: dict[str, Any]) -> str:
    """Start the agent of a machine in a session of its own; returns its identity, by which it registers: process id,
    start time and boot. It outlives this process."""
    tags = machine["tags"]
    parts = [tags[f"slipway-{name}"] for name in ("deployment", "account", "batch")]
    parts += ["1", tags["slipway-launch-config"], tags["slipway-incarnation"]]
    tag = "/".join(quote(part, safe="@") for part in parts)
    process = subprocess.Popen(
        agent["command"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**agent["environment"], "SLIPWAY_INSTANCE_TAG": tag},
        cwd="/",
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write((machine["user_data"] or "").encode())
    process.stdin.close()
    started = start_time(process.pid)
    threading.Thread(target=process.wait, daemon=True).start()  # no zombie
    return f"{process.pid}-{started}-{boot()}"


def end_agent(identity: str) -> None:
    """Kill the session of an agent, if it still runs."""
    pid, started, of_boot = identity.split("-", 2)
    try:
        if of_boot == boot() and start_time(int(pid)) == started:
            os.killpg(int(pid), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return


def start_time(pid: int) -> str:
    """Field 22 of its status. Raises FileNotFoundError."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def boot() -> str:
    """Beginning of the id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]


class Folder:
    """The folder. One append is one write, so that lines of several processes never mix."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        (self.folder / "machines").mkdir(parents=True, exist_ok=True)

    def record(self, call: str, **fields: Any) -> None:
        line = json.dumps({"call": call, "pid": os.getpid(), **fields}) + "\n"
        file = os.open(self.folder / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def machine(self, id_: str) -> Path:
        return self.folder / "machines" / f"{id_}.json"

    def write(self, machine: dict[str, Any]) -> None:
        path = self.machine(machine["id"])
        new = path.with_suffix(".new")
        new.write_text(json.dumps(machine))
        new.chmod(0o600)
        new.rename(path)

    def is_first(self, number: int) -> bool:
        """True for the first of all processes and calls that plays this fault."""
        played = self.folder / "played"
        played.mkdir(exist_ok=True)
        try:
            os.close(os.open(played / str(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def faults(self) -> list[dict[str, Any]]:
        try:
            return list(json.loads((self.folder / "faults.json").read_text()))
        except FileNotFoundError:
            return []


class LedgerProvider(iface.Provider):
    """One configuration; the last one wins, as in every provider."""

    def __init__(self) -> None:
        self.ledger: Folder | None = None
        self.region = ""
        self.secret = ""
        self.agent: dict[str, Any] | None = None
        self.calls: dict[str, int] = {}

    def get_model_prefix(self) -> str:
        return "ledger_"

    def full_name(self) -> str:
        return SOURCE

    def get_provider_schema(self, diags: Any) -> Any:
        return schema.Schema(
            attributes=[
                schema.Attribute("folder", types.String(), required=True),
                schema.Attribute("region", types.String(), optional=True),
                schema.Attribute("secret", types.String(), optional=True, sensitive=True),
                schema.Attribute("agent", types.String(), optional=True),
            ]
        )

    def validate_config(self, diags: Any, config: dict[str, Any]) -> None:
        pass

    def configure_provider(self, diags: Any, config: dict[str, Any]) -> None:
        self.ledger = Folder(config["folder"])
        self.region, self.secret = config["region"] or "", config["secret"] or ""
        self.agent = json.loads(config["agent"]) if config["agent"] else None
        self.ledger.record("configure", region=self.region)
        self.inject("configure", diags)

    def get_data_sources(self) -> list[Any]:
        return [LedgerMachines]

    def get_resources(self) -> list[Any]:
        return [LedgerMachine]

    def inject(self, at: str, diags: Any, *, done: bool = False) -> bool:
        """Play the faults of this call; True if it must fail. `done`: the call has had its effect."""
        assert self.ledger is not None
        if not done:
            self.calls[at] = self.calls.get(at, 0) + 1
        failed = False
        for number, fault in enumerate(self.ledger.faults()):
            if fault["at"] != at or fault["done"] != done or fault["region"] not in (None, self.region):
                continue
            if fault["token"] not in (None, os.environ.get("LEDGER_TOKEN")):
                continue
            if fault["call"] in (None, self.calls[at]) and (not fault["once"] or self.ledger.is_first(number)):
                failed |= self.play(fault, diags)
        return failed

    def play(self, fault: dict[str, Any], diags: Any) -> bool:
        match fault["kind"]:
            case "leak":
                leak = bytearray(fault["bytes"])
                leak[::PAGE_BYTES] = b"x" * len(leak[::PAGE_BYTES])  # touched, so that it is resident
                leaked.append(leak)
            case "hang":
                time.sleep(fault["seconds"])
            case "crash":
                recording.acquire()
                os._exit(13)
            case "stderr":
                sys.stderr.write(("noise " * 20 + "\n") * (fault["bytes"] // 121))
            case "secret":
                sys.stderr.write(f"configured with secret={self.secret}, token {self.secret}\n")
            case "error":
                diags.add_error(fault["text"].format(secret=self.secret), fault["detail"].format(secret=self.secret))
                return True
        return False


class LedgerMachine(iface.Resource):
    """`ledger_machine`: a machine that exists as long as its file does."""

    def __init__(self, provider: LedgerProvider) -> None:
        self.provider = provider

    @classmethod
    def get_name(cls) -> str:
        return "machine"

    @classmethod
    def get_schema(cls) -> Any:
        return schema.Schema(
            version=1,
            attributes=[
                schema.Attribute("id", types.String(), computed=True),
                schema.Attribute("name", types.String(), required=True),
                schema.Attribute("image", types.String(), optional=True, requires_replace=True),
                schema.Attribute("tags", types.Map(types.String()), optional=True),
                schema.Attribute("user_data", types.String(), optional=True, sensitive=True, requires_replace=True),
                schema.Attribute("region", types.String(), computed=True),
                schema.Attribute("address", types.String(), computed=True),
            ],
        )

    @property
    def ledger(self) -> Folder:
        assert self.provider.ledger is not None
        return self.provider.ledger

    def create(self, ctx: Any, planned: dict[str, Any]) -> dict[str, Any] | None:
        if self.provider.inject("create", ctx.diagnostics):
            return None
        agent = self.provider.agent
        id_ = f"m-{os.urandom(6).hex()}" if agent is None else start_agent(agent, planned)
        machine = {**planned, "id": id_, "region": self.provider.region, "address": f"{id_}.ledger.invalid"}
        with recording:
            self.ledger.write(machine)
            self.ledger.record("create", id=id_, name=planned["name"], region=machine["region"], tags=planned["tags"])
        self.provider.inject("create", ctx.diagnostics, done=True)
        return machine

    def read(self, ctx: Any, current: dict[str, Any]) -> dict[str, Any] | None:
        if self.provider.inject("read", ctx.diagnostics):
            return current
        try:
            return dict(json.loads(self.ledger.machine(current["id"]).read_text()))
        except FileNotFoundError:
            return None

    def update(self, ctx: Any, current: dict[str, Any], planned: dict[str, Any]) -> dict[str, Any]:
        if self.provider.inject("update", ctx.diagnostics):
            return current
        with recording:
            self.ledger.write(planned)
            self.ledger.record("update", id=planned["id"], region=self.provider.region)
        return planned

    def delete(self, ctx: Any, current: dict[str, Any]) -> None:
        if self.provider.inject("destroy", ctx.diagnostics):
            return
        if self.provider.agent is not None:
            end_agent(current["id"])
        with recording:
            self.ledger.machine(current["id"]).unlink(missing_ok=True)
            self.ledger.record("destroy", id=current["id"], region=self.provider.region)
        self.provider.inject("destroy", ctx.diagnostics, done=True)

    def import_(self, ctx: Any, id: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self.ledger.machine(id).read_text()))
        except FileNotFoundError:
            ctx.diagnostics.add_error("no such machine", f"{id} is not in the ledger")
            return None


class LedgerMachines(iface.DataSource):
    """`ledger_machines`: machines with these tags, as JSON, and the identity of the caller."""

    def __init__(self, provider: LedgerProvider) -> None:
        self.provider = provider

    @classmethod
    def get_name(cls) -> str:
        return "machines"

    @classmethod
    def get_schema(cls) -> Any:
        return schema.Schema(
            version=1,
            attributes=[
                schema.Attribute("tags", types.Map(types.String()), optional=True),
                schema.Attribute("json", types.String(), computed=True),
                schema.Attribute("identity", types.String(), computed=True),
            ],
        )

    def read(self, ctx: Any, config: dict[str, Any]) -> dict[str, Any] | None:
        if self.provider.inject("list", ctx.diagnostics):
            return None
        assert self.provider.ledger is not None
        wanted, found = (config["tags"] or {}).items(), []
        for path in sorted((self.provider.ledger.folder / "machines").glob("*.json")):
            machine = json.loads(path.read_text())
            if wanted <= (machine["tags"] or {}).items():
                found.append({"id": machine["id"], "name": machine["name"], "tags": machine["tags"]})
        folder = self.provider.ledger.folder
        # As a role that a credential assumes is of another account from one call to the next.
        assumed = folder / "identity"
        own = assumed.read_text() if assumed.exists() else folder.name
        identity = os.environ.get("LEDGER_IDENTITY", own)
        return {"tags": config["tags"], "json": json.dumps(found), "identity": identity}


class Interceptor(runner._ShutdownInterceptor):
    """Lets calls end that are in progress when the CLI is interrupted, as providers for clouds do."""

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        if details.method.endswith("/StopProvider"):
            return continuation(details)
        return super().intercept_service(continuation, details)


if __name__ == "__main__":
    runner._ShutdownInterceptor = Interceptor
    runner.run_provider(LedgerProvider(), sys.argv)
