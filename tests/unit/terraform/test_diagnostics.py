"""Classification of failed runs, from the lines that the CLI prints."""

import json
from typing import Any

import pytest

from slipway_terraform.domain.diagnostics import failure_of
from slipway_terraform.domain.output import Output
from slipway_terraform.domain.results import Changes, Failure, Scope

CODES = {
    "InsufficientInstanceCapacity": Scope.CAPACITY,
    "VcpuLimitExceeded": Scope.QUOTA,
    "InvalidAMIID.NotFound": Scope.IMAGE,
    "AuthFailure": Scope.CREDENTIAL,
    "RequestLimitExceeded": Scope.LIMITER,
    "Unsupported": Scope.CAPACITY,
}
AWS = "error launching: {}: some text\n\tstatus code: 400, request id: 1-2"


def diagnostic(summary: str, detail: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": "diagnostic", "diagnostic": {"severity": "error", "summary": summary, "detail": detail, **fields}}


def hook(kind: str, address: str = "module.worker.a.b") -> dict[str, Any]:
    return {"type": kind, "hook": {"resource": {"addr": address}}}


def output(*lines: dict[str, Any] | str, secrets: tuple[str, ...] = ()) -> Output:
    fed = Output(secrets)
    for line in lines:
        fed.feed(line.encode() if isinstance(line, str) else json.dumps(line).encode())
    return fed


def failed(*lines: dict[str, Any] | str, code: int = 1, interrupted: str = "", changes_cloud: bool = True) -> Failure:
    return failure_of(output(*lines), code, interrupted=interrupted, codes=CODES, changes_cloud=changes_cloud)


BEGUN = hook("apply_start")
ERRORED = hook("apply_errored")
IN_ROOT: dict[str, Any] = {"range": {"filename": "main.tf.json"}}
CASES: list[tuple[str, Failure, Scope, str]] = [
    (
        "aws capacity",
        failed(BEGUN, ERRORED, diagnostic(AWS.format("InsufficientInstanceCapacity"))),
        Scope.CAPACITY,
        "InsufficientInstanceCapacity",
    ),
    (
        "aws quota",
        failed(BEGUN, ERRORED, diagnostic(AWS.format("VcpuLimitExceeded"))),
        Scope.QUOTA,
        "VcpuLimitExceeded",
    ),
    (
        "aws image",
        failed(BEGUN, ERRORED, diagnostic(AWS.format("InvalidAMIID.NotFound"))),
        Scope.IMAGE,
        "InvalidAMIID.NotFound",
    ),
    (
        "aws credential",
        failed(diagnostic("error configuring", "AuthFailure: no", **IN_ROOT)),
        Scope.CREDENTIAL,
        "AuthFailure",
    ),
    (
        "aws throttle",
        failed(BEGUN, ERRORED, diagnostic(AWS.format("RequestLimitExceeded"))),
        Scope.LIMITER,
        "RequestLimitExceeded",
    ),
    (
        "unknown code",
        failed(BEGUN, ERRORED, diagnostic(AWS.format("NewThing.Odd"))),
        Scope.UNCLASSIFIED,
        "NewThing.Odd",
    ),
    (
        "unknown code in a plan",
        failed(diagnostic(AWS.format("NewThing.Odd"), **IN_ROOT)),
        Scope.UNCLASSIFIED,
        "NewThing.Odd",
    ),
    ("unknown text", failed(BEGUN, ERRORED, diagnostic("it broke")), Scope.UNCLASSIFIED, "it broke"),
    ("429", failed(BEGUN, ERRORED, diagnostic("server said", "status code: 429")), Scope.LIMITER, "TooManyRequests"),
    ("quota in words", failed(BEGUN, ERRORED, diagnostic("Quota for cores exceeded")), Scope.QUOTA, "QuotaExceeded"),
    (
        "no credentials",
        failed(diagnostic("No valid credential sources found", **IN_ROOT)),
        Scope.CREDENTIAL,
        "Credentials",
    ),
    (
        "configuration",
        failed(diagnostic("Unsupported argument", "An argument named x", **IN_ROOT)),
        Scope.CONFIG,
        "InvalidConfiguration",
    ),
    (
        "second of two is known",
        failed(BEGUN, ERRORED, diagnostic("a"), diagnostic(AWS.format("VcpuLimitExceeded"))),
        Scope.QUOTA,
        "VcpuLimitExceeded",
    ),
    (
        "plugin dies while it creates",
        failed(BEGUN, ERRORED, diagnostic("Plugin did not respond")),
        Scope.OUTCOME_UNKNOWN,
        "PluginLost",
    ),
    ("plugin dies while it is configured", failed(diagnostic("Plugin did not respond")), Scope.NOTHING, "PluginLost"),
    (
        "plugin dies in a plan",
        failed(diagnostic("Plugin did not respond"), changes_cloud=False),
        Scope.NOTHING,
        "PluginLost",
    ),
    ("plugin was gone", failed(diagnostic("Reattachment process not found")), Scope.NOTHING, "PluginGone"),
    ("no end of a creation", failed(BEGUN, code=-9), Scope.OUTCOME_UNKNOWN, "Killed"),
    ("interrupted creation", failed(BEGUN, code=-9, interrupted="late"), Scope.OUTCOME_UNKNOWN, "Interrupted"),
    ("interrupted before", failed(code=-9, interrupted="late"), Scope.NOTHING, "Interrupted"),
    (
        "interrupted after its end",
        failed(BEGUN, hook("apply_complete"), interrupted="late"),
        Scope.NOTHING,
        "Interrupted",
    ),
    (
        "killed after its end, before the state",
        failed(BEGUN, hook("apply_complete"), code=-9),
        Scope.OUTCOME_UNKNOWN,
        "Killed",
    ),
    ("killed plan", failed(code=-9, changes_cloud=False), Scope.NOTHING, "Interrupted"),
    (
        "disk full",
        failed(BEGUN, diagnostic("Failed to write", "no space left on device"), ERRORED),
        Scope.NOTHING,
        "DiskFull",
    ),
    (
        "provider not installed",
        failed(diagnostic("Could not load plugin", **IN_ROOT)),
        Scope.CONFIG,
        "ProviderNotInstalled",
    ),
    (
        "a code of one word",
        failed(BEGUN, ERRORED, diagnostic(AWS.format("Unsupported"))),
        Scope.CAPACITY,
        "Unsupported",
    ),
    (
        "a word of Terraform that is also a code",
        failed(diagnostic("Unsupported argument", 'An argument named "instance_typ" is not expected', **IN_ROOT)),
        Scope.CONFIG,
        "InvalidConfiguration",
    ),
    ("text alone", failed("Error: Cannot import non-existent remote object"), Scope.UNCLASSIFIED, "Unknown"),
]


@pytest.mark.parametrize(("failure", "scope", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_failures(failure: Failure, scope: Scope, code: str) -> None:
    assert (failure.scope, failure.code) == (scope, code)
    assert failure.message


def test_unresolved_resources_are_named() -> None:
    lines = (hook("apply_start", "a"), hook("apply_start", "b"), hook("apply_complete", "a"), hook("apply_start", "c"))
    assert failed(*lines, code=-9).unresolved == ("b", "c")
    errored = (*lines, hook("apply_errored", "b"), hook("apply_complete", "c"))
    assert failed(*errored, diagnostic("Plugin did not respond")).unresolved == ("b",)
    assert failed(*errored, diagnostic("no room")).unresolved == ()


def test_a_code_inside_a_word_is_none() -> None:
    assert failed(BEGUN, ERRORED, diagnostic("x", "MyAuthFailureHandler: odd")).scope is Scope.UNCLASSIFIED


def test_only_what_may_succeed_unchanged_is_retryable() -> None:
    assert {scope for scope in Scope if Failure(scope=scope, code="", message="").retryable} == {
        Scope.CAPACITY,
        Scope.LIMITER,
        Scope.NOTHING,
    }


def test_a_plugin_that_was_lost_is_not_trusted() -> None:
    assert [name for name, failure, *_ in CASES if failure.distrusts_plugin] == [
        "plugin dies while it creates",
        "plugin dies while it is configured",
        "plugin dies in a plan",
        "plugin was gone",
        "no end of a creation",
        "interrupted creation",
        "killed after its end, before the state",
    ]


def test_secrets_are_in_no_text() -> None:
    fed = output(
        "panic: hunter2",
        diagnostic("bad hunter2", "hunter2", snippet={"code": "hunter2"}, range={"filename": "main.tf.json"}),
        secrets=("hunter2",),
    )
    failure = failure_of(fed, 1, interrupted="", codes={}, changes_cloud=True)
    assert "hunter2" not in repr((failure, fed.text, fed.diagnostics))
    assert "…" in failure.message


def test_changes_and_noise() -> None:
    fed = output(
        "not json",
        "[1]",
        {"type": "change_summary", "changes": {"add": 1, "change": 2, "remove": 3, "operation": "plan"}},
        {"type": "diagnostic", "diagnostic": None},
        {"type": "apply_start", "hook": {}},
        {"@message": "Emergency state dump", "state": {"version": 4}, "type": "log"},
    )
    assert fed.changes == Changes(1, 2, 3)
    assert not fed.changes.exists
    assert not fed.changes.is_up_to_date
    assert fed.diagnostics == []
    assert fed.emergency_state == b'{"version":4}'


def test_output_is_bounded() -> None:
    fed = output(*(["noise"] * 200), *([diagnostic("x" * 10_000, "y" * 10_000)] * 200))
    assert len(fed.text) == len(fed.diagnostics) == 50
    assert len(fed.diagnostics[0].summary) == 400
    assert len(fed.diagnostics[0].detail) == 2_000
