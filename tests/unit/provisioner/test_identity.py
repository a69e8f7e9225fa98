"""Identity of a machine: whose document it is, and for how long it enrols the machine."""

from datetime import UTC, datetime

import pytest

from slipway_provisioner.domain.identity import (
    EARLY_SECONDS_MAX,
    Age,
    Attested,
    IdentityRefused,
    Reason,
    check_age,
    check_instance,
)

LIMIT = "its document enrols it for 900 s (its registration deadline and identity_grace_seconds)"


def test_a_machine_registers_for_itself() -> None:
    attested = Attested("i-1", datetime(2030, 1, 1, tzinfo=UTC))
    check_instance(attested, "i-1")
    with pytest.raises(IdentityRefused) as refused:
        check_instance(attested, "i-2")
    assert refused.value.reason is Reason.OTHER_INSTANCE
    assert str(refused.value) == "the document is that of i-1, not of i-2; a machine registers for itself"


#    uptime seconds, seconds ahead, why it is refused
AGES: list[tuple[float, float, Reason | None, str]] = [
    (0.0, 0.0, None, ""),
    (900.0, EARLY_SECONDS_MAX, None, ""),
    (900.6, 0.0, Reason.OLD, f"the instance was started 901 s ago; {LIMIT}"),
    (
        0.0,
        EARLY_SECONDS_MAX + 1,
        Reason.EARLY,
        "the instance was started 121 s after now by the database clock; correct the clock of the database server",
    ),
]


@pytest.mark.parametrize(("uptime", "ahead", "reason", "text"), AGES)
def test_a_document_enrols_for_a_while(uptime: float, ahead: float, reason: Reason | None, text: str) -> None:
    """Until it is too old, and unless it is of the future by more than clocks differ."""
    age = Age(uptime_seconds=uptime, ahead_seconds=ahead)
    if reason is None:
        check_age(age, age_seconds_max=900.0)
        return
    with pytest.raises(IdentityRefused) as refused:
        check_age(age, age_seconds_max=900.0)
    assert (refused.value.reason, str(refused.value)) == (reason, text)
