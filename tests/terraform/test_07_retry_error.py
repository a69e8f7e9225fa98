"""Check 7: text and predicate of the retry error of upjet's scheduler."""

from slipway_terraform.domain.compatibility import budget_exceeded, is_retry_error
from slipway_terraform.domain.errors import QueueTimeout


def test_text_and_predicate() -> None:
    error = budget_exceeded(invocations=111, ttl=100)
    assert str(error) == "native provider reuse budget has been exceeded: invocationCount: 111, ttl: 100"
    assert is_retry_error(error)
    assert error.retryable
    assert not is_retry_error(QueueTimeout("late"))
    assert not is_retry_error(ValueError("native provider reuse budget has been exceeded"))
