"""Error table of EC2: each documented code, unlisted ones, codes of the account's settings, state reasons."""

import pytest

from slipway_api.events.worker import Scope, Stage
from slipway_provisioner.providers.aws import errors
from slipway_provisioner.providers.aws.errors import Advice, Launched, classify, classify_end
from tests.support.ec2_codes import Code, StateReason, codes, state_reasons


@pytest.mark.parametrize("row", codes(), ids=str)
def test_every_documented_code(row: Code) -> None:
    case = classify(row.code, row.message, http_status=row.http_status)
    scope = case.scope.value if case.scope is not None else "unclassified"
    assert (scope, case.resource, case.launched.value) == (row.scope, row.resource, row.launched)
    assert case.advice is Advice[row.advice.upper()]
    assert case.stage is Stage.LAUNCH


def test_the_table_has_no_other_codes_than_those_of_the_sdk() -> None:
    """The expected codes are all of the table: a row without an expectation would be a guess."""
    listed = {row.code for row in codes() if row.advice != "unknown"}
    assert len(listed) >= 110
    assert listed <= errors.TABLE.keys()
    assert errors.TABLE.keys() - listed == {
        "HTTPClientError",
        "IncompleteReadError",
        "ParamValidationError",
        "PartialCredentialsError",
        "ProxyConnectionError",
        "SSLError",
        "TokenRetrievalError",
    }
    assert errors.STATE_REASONS.keys() <= {row.code for row in state_reasons()}


def test_capacity_at_http_500_is_refused() -> None:
    """Not every reply of 500 leaves the outcome open."""
    assert not classify("InsufficientInstanceCapacity", http_status=500).is_unknown
    assert classify("InternalError", http_status=500).is_unknown


@pytest.mark.parametrize("status", [500, 502, 503])
def test_an_unlisted_code_of_a_failed_server_is_unknown(status: int) -> None:
    case = classify("Gremlins", "no idea", http_status=status)
    assert (case.is_unknown, case.launched) == (True, Launched.MAYBE)


@pytest.mark.parametrize("status", [0, 400, 403, 412])
def test_an_unlisted_code_is_unclassified(status: int) -> None:
    case = classify("Gremlins", "no idea", http_status=status)
    assert (case.scope, case.launched, case.is_unknown) == (None, Launched.NO, False)


def test_codes_match_exactly() -> None:
    """A code that only begins like a listed one is another code."""
    for code in ("InvalidAMIID.Expired", "insufficientinstancecapacity", "AuthFailure.Other", ""):
        assert classify(code).scope is None


def test_words_of_a_message_match_in_any_case() -> None:
    message = "NOT AUTHORIZED FOR IMAGES: [ami-1]"
    assert classify("AuthFailure", message).scope is Scope.IMAGE


def test_an_account_adds_codes() -> None:
    extra = {"Gremlins": "capacity", "Blocked": "config"}
    assert classify("Gremlins", http_status=503, extra=extra).scope is Scope.CAPACITY
    assert classify("Blocked", extra=extra).scope is Scope.CONFIG
    assert classify("InvalidAMIID.NotFound", extra=extra).scope is Scope.IMAGE
    assert errors.problem(extra) == ""


def test_an_account_adds_only_scopes_of_refusals() -> None:
    """After some codes a launch may have happened; counted as refused, they would launch twice."""
    assert "write one of config, capacity, quota" in errors.problem({"Gremlins": "nothing"})
    assert "may have happened" in errors.problem({"InternalError": "capacity"})
    assert "may have happened" in errors.problem({"IdempotentParameterMismatch": "config"})


@pytest.mark.parametrize("row", state_reasons(), ids=str)
def test_every_state_reason(row: StateReason) -> None:
    case = classify_end(row.code, row.message)
    scope = case.scope.value if case.scope is not None else "unclassified"
    assert (case.stage.value, scope, case.resource) == (row.stage, row.scope, row.resource)
    assert case.launched is Launched.YES


def test_an_internal_error_that_names_itself_is_unclassified() -> None:
    assert classify_end("Server.InternalError", "Server.InternalError: see Server.Other").scope is None
