"""Check of an EC2 account by the real command, while the stand-in for EC2 lacks one thing after another.

Each case sets faults of the stand-in, runs `slipway account check aws-1`, and clears them. CASE plays only some, FAULTS
its own one. Judged by the command's exit code and findings, the alerts in their topic, and the stand-in's ledger, in
which nothing may be launched or terminated.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from slipway_api.events.alert import AlertRaised, AlertResolved, alert_key
from slipway_common.base.ids import new_secret
from slipway_common.base.process.groups import output
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse
from slipway_local.demo.deployment import Deployment
from slipway_local.demo.ec2_machines import Ec2Machines
from slipway_local.demo.try_image import SLIPWAY
from slipway_local.ec2 import facts as ec2
from slipway_local.ec2.faults import NOTATION
from slipway_simulator.notation import BadFault, Fault
from tests.drills.ec2_storm import DECLARATION
from tests.drills.harness import Harness, Verdict, fetch, gathered

ACCOUNT: Final = "aws-1"
NUMBER: Final = "210987654321"  # the account of the role in the example
IMAGE: Final = "ami-12345678"
PROFILE: Final = "slipway-machine"
PROBLEM: Final = 3
ALERT: Final = "account-check"
DENIED: Final = "ec2:CreateTags"
"""Denied from the start, so that the provisioner's own check finds it."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Faults, and the finding that they cause: its kind and the begin of its subject, and words of its message and
    remedy. `new_session`: the session in use is refused before, since the fault is one of new sessions."""

    faults: str
    kind: str
    subject: str = ""
    message: str
    remedy: str
    new_session: bool = False


CASES: Final[Mapping[str, Case | None]] = {
    "well": None,
    "identity": Case(
        faults="identity:999999999999",
        kind="identity",
        message="belongs to 999999999999",
        remedy="correct the credential",
    ),
    "permission": Case(
        faults="deny:PassRole",
        kind="permission",
        subject="iam:PassRole",
        message=f"role/{PROFILE}",
        remedy="allow iam:PassRole in the policy",
    ),
    "expiring": Case(
        faults="session:300",
        kind="credential",
        message="in 5 minutes",
        remedy="maximum session duration of the role",
        new_session=True,
    ),
    "quota": Case(
        faults=f"quota:{NUMBER}",
        kind="quota",
        subject="standard",
        message="no room for one m5.large",
        remedy="request-service-quota-increase --service-code ec2 --quota-code L-",
    ),
    "subnet": Case(faults="subnet:us-east-1a", kind="subnet", message="no free address", remedy="use a larger subnet"),
    "image": Case(
        faults=f"unshared-image:{IMAGE}",
        kind="image",
        subject=IMAGE,
        message=f"not shared with AWS account {NUMBER}",
        remedy="modify-image-attribute",
    ),
    "clock": Case(faults="clock:-250", kind="clock", message="ahead of AWS", remedy="NTP"),
    "recovered": None,
}


class Result(msgspec.Struct, frozen=True):
    """Exit code of the command and its output, which is JSON."""

    exit_code: int
    findings: Sequence[Mapping[str, str]]
    text: str

    def problems(self) -> list[Mapping[str, str]]:
        return [finding for finding in self.findings if finding["state"] == "problem"]

    def line(self) -> str:
        said = "; ".join(
            f"{_about(finding)}: {finding['message']} → {finding['remedy']}" for finding in self.problems()
        )
        return f"exit {self.exit_code}{f': {said}' if said else ''}"


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    given = [name for name in (os.environ.get("CASE") or "").split(",") if name]
    names = [name for name in CASES if name in given or not given]
    if unknown := set(given) - set(CASES):
        return Verdict("", [f"ONLY={','.join(given)}: unknown {', '.join(sorted(unknown))}; cases: {', '.join(CASES)}"])
    try:
        own = NOTATION.parse(os.environ.get("FAULTS") or "")
    except BadFault as error:
        return Verdict("", [f"FAULTS: {error}"])
    secret = new_secret()
    keys = {"DEMO_AWS_ACCESS_KEY_ID": "AKIADEMO", "DEMO_AWS_SECRET_ACCESS_KEY": secret}
    deployment = harness.new_deployment(environment={"provisioner": keys})
    machines = Ec2Machines(deployment, seed=harness.seed, faults=NOTATION.parse(f"deny:{DENIED.partition(':')[2]}"))
    await deployment.start(machines.start(harness.supervisor))
    await machines.play()
    await harness.play(deployment, _declared(deployment, machines))

    async def was_found() -> bool:
        row = await deployment.call("GET", "provisioner", f"/accounts/{ACCOUNT}")
        return any(finding["subject"] == DENIED and finding["state"] == "problem" for finding in row["findings"])

    async def all_published() -> bool:
        return bool((await fetch(deployment, "SELECT count(*) FROM provisioner.outbox"))[0][0] == 0)

    await harness.until(was_found, f"the provisioner has found by itself that {DENIED} is denied")
    await machines.call("DELETE", "/faults/deny")
    await deployment.call("POST", "provisioner", f"/accounts/{ACCOUNT}/check", {})
    results: dict[str, Result] = {}
    problems: list[str] = []
    if own:
        results["FAULTS"] = await _checked(deployment, machines, own)
        harness.log(f"FAULTS: {results['FAULTS'].line()}")
    for name in names if not own else ():
        case = CASES[name]
        faults = NOTATION.parse(case.faults) if case else ()
        if case and case.new_session:
            await machines.call("POST", "/faults", {"name": "expired-credential"})
            await deployment.call("POST", "provisioner", f"/accounts/{ACCOUNT}/check", {})
            await machines.call("DELETE", "/faults/expired-credential")
        results[name] = await _checked(deployment, machines, faults)
        harness.log(f"{name}: {results[name].line()}")
        problems += [f"{name}: {text}" for text in _judged(case, results[name])]
    if list(results)[-1:] != ["recovered"]:
        await _checked(deployment, machines, ())
    await harness.until(all_published, "all alerts are published")
    found = await gathered(deployment)
    events = [each.event for each in found.published if isinstance(each.event, AlertRaised | AlertResolved)]
    problems += _wrong_exits(results) + _wrong_alerts([each for each in events if each.kind == ALERT], results)
    launched = [fact for fact in machines.written() if isinstance(fact, ec2.InstanceCreated | ec2.ShuttingDown)]
    if launched:
        problems.append(f"machines launched or ended by checks: {len(launched)}")
    if any(secret in result.text for result in results.values()):
        problems.append("a secret in the output of the command")
    named = sum(result.exit_code == PROBLEM for result in results.values())
    well = sum(result.exit_code == 0 for result in results.values())
    raised = sum(isinstance(event, AlertRaised) and event.kind == ALERT for event in events)
    figures = (
        f"{named} cases with exit code {PROBLEM}, each named with its remedy, {well} well with exit code 0; "
        f"{raised} alerts raised and resolved, {len(launched)} machines launched or ended"
    )
    return Verdict(figures, problems)


def _declared(deployment: Deployment, machines: Ec2Machines) -> Declaration:
    """The account of the example that is reached by a role, and a pool without tasks in it."""
    body = machines.declared(deployment.declaration(DECLARATION)).model_dump(mode="json")
    account = next(account for account in body["accounts"] if "role" in account["credential"])
    pool = body["worker_pools"][0]
    template = pool["launch_configs"][0]
    settings = template["settings"] | {"instance_profile": PROFILE}
    body["accounts"] = [account | {"id": ACCOUNT}]
    body["worker_pools"] = [
        pool
        | {
            "launch_configs": [
                template | {"name": name, "account": ACCOUNT, "settings": settings | {"lifecycle": lifecycle}}
                for name, lifecycle in (("m5-a", "on-demand"), ("m5-a-spot", "spot"))
            ]
        }
    ]
    return parse(body)


async def _checked(deployment: Deployment, machines: Ec2Machines, faults: Sequence[Fault]) -> Result:
    """Result of the command, as JSON and as a table, while the stand-in has these faults."""
    for fault in faults:
        await machines.call("POST", "/faults", msgspec.to_builtins(fault))
    code, text = await _slipway(deployment, "account", "check", ACCOUNT, "-o", "json")
    for fault in faults:
        await machines.call("DELETE", f"/faults/{fault.name}")
    try:
        findings = msgspec.json.decode(text)["findings"]
    except msgspec.DecodeError:
        findings = []
    return Result(code, findings, text)


async def _slipway(deployment: Deployment, *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command, in a process of its own."""
    own = {"SLIPWAY_PROVISIONER_URL": deployment.url("provisioner"), "SLIPWAY_TOKEN": deployment.token}
    return await output((*SLIPWAY, *arguments), os.environ | own)


def _judged(case: Case | None, result: Result) -> list[str]:
    """Contradictions to what a case expects: that it is well, or its one problem with the remedy."""
    if case is None:
        return [] if result.exit_code == 0 and result.findings else [f"expected to be well: {result.text[:500]}"]
    matching = [
        finding
        for finding in result.problems()
        if finding["kind"] == case.kind
        and finding["subject"].startswith(case.subject)
        and case.message in finding["message"]
        and case.remedy in finding["remedy"]
    ]
    others = [_about(finding) for finding in result.problems() if finding not in matching]
    problems = [f"other problems: {', '.join(others)}"] if others else []
    if result.exit_code != PROBLEM or not matching:
        wanted = f"{case.kind} {case.subject} … {case.message} … {case.remedy}"
        problems.append(f"expected exit code {PROBLEM} and {wanted}, not {result.line()} {result.text[-300:]}")
    return problems


def _wrong_exits(results: Mapping[str, Result]) -> list[str]:
    """Results whose exit code does not tell whether there is a problem, or whose problems have no remedy."""
    return [
        f"{name}: exit code {result.exit_code} with {len(result.problems())} problems"
        for name, result in results.items()
        if result.exit_code != (PROBLEM if result.problems() else 0)
        or not all(finding["remedy"] for finding in result.problems())
    ]


def _wrong_alerts(events: Sequence[AlertRaised | AlertResolved], results: Mapping[str, Result]) -> list[str]:
    """Problems without an alert, alerts that were raised twice, and those that are still open."""
    problems: list[str] = []
    is_open: dict[str, bool] = {}
    for event in events:
        if isinstance(event, AlertRaised) is is_open.get(event.dedup_key, False):
            problems.append(f"alert raised or resolved twice: {event.dedup_key}")
        is_open[event.dedup_key] = isinstance(event, AlertRaised)
    expected = {alert_key("provisioner", ALERT, ACCOUNT, "permission", DENIED)}
    for result in results.values():
        found = result.problems()
        expected |= {alert_key("provisioner", ALERT, ACCOUNT, each["kind"], each["subject"]) for each in found}
    missing, still_open = expected - is_open.keys(), [key for key, opened in is_open.items() if opened]
    problems += [f"no alert: {', '.join(sorted(missing))}"] if missing else []
    return problems + ([f"alerts still open: {', '.join(still_open)}"] if still_open else [])


def _about(finding: Mapping[str, str]) -> str:
    return f"{finding['kind']} {finding['subject']}".strip()
