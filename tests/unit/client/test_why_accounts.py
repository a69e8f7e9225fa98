"""`slipway why` of a pool or a launch config whose account has problems that stop launches."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest

from slipway_client.view.why.explanation import Explanation
from tests.support.recorded import ACCOUNT as ANSWERED
from tests.support.recorded import ANSWERS, served
from tests.support.why import CALM, NOW, POOL, SOURCE, config, of_config, of_pool, tripped
from tests.unit.client.test_commands import slipway

ALLOW: Final = "allow ec2:RunInstances in the policy of the caller"
DENIED: Final = {
    "kind": "permission",
    "subject": "ec2:RunInstances",
    "state": "problem",
    "message": "denied; needed by launch config zone-a",
    "remedy": ALLOW,
}
ACCOUNT: Final[dict[str, Any]] = {"id": "sim-a", "problems": 1, "findings": [DENIED]}
REFUSED: Final = tripped(
    "zone-a", tripped_by="credential", tripped_by_id="sim-a", reason="zone-a tripped: UnauthorizedOperation"
)


@pytest.fixture
def url() -> Iterator[str]:
    with served() as (_, url):
        yield url


def pool(configs: list[dict[str, Any]], accounts: list[dict[str, Any]]) -> Explanation:
    return of_pool(POOL, [CALM], configs, [], [], sources=[SOURCE], calculator="", accounts=accounts, now=NOW)


def test_a_missing_permission_is_the_cause_of_a_pool() -> None:
    """With the remedy of its alert; the trip is its consequence."""
    found = pool([REFUSED], [ACCOUNT])
    assert (found.cause, found.since, found.remedy) == (
        "account sim-a, permission ec2:RunInstances: denied; needed by launch config zone-a",
        NOW - timedelta(seconds=100),
        ALLOW,
    )
    assert found.details[0].startswith("Also: its only active launch config is tripped: zone-a (UnauthorizedOperation")


def test_a_missing_permission_is_the_cause_of_a_launch_config() -> None:
    found = of_config(REFUSED, POOL, [], [], accounts=[ACCOUNT], now=NOW)
    assert (found.cause, found.remedy) == (
        "account sim-a, permission ec2:RunInstances: denied; needed by launch config zone-a",
        ALLOW,
    )


def test_a_missing_permission_is_named_before_a_launch_has_failed() -> None:
    """The hourly check has found it, and nothing was launched since."""
    found = pool([config("zone-a")], [ACCOUNT])
    assert (found.cause.partition(":")[0], found.since, found.remedy) == ("account sim-a, permission ec2", None, ALLOW)
    own = of_config(config("zone-a"), POOL, [], [], accounts=[ACCOUNT], now=NOW)
    assert own.effect.startswith("launches by its weight fail, or will soon (")


def test_a_refused_credential_asks_for_a_check() -> None:
    """The last check was before the refusal. Probes correct neither a credential nor a policy."""
    for found in (pool([REFUSED], []), of_config(REFUSED, POOL, [], [], now=NOW)):
        assert found.remedy.startswith(
            "run `slipway account check sim-a`, and correct the credential or the missing permission that it names; "
            "Slipway probes by itself and launches again after the first success"
        )


def test_other_problems_of_accounts_are_left_out() -> None:
    """One of a subnet need not concern this pool, a warning stops no launch, and other accounts are not its own."""
    others = [
        DENIED | {"kind": "subnet", "subject": "subnet-1"},
        DENIED | {"state": "warning"},
        DENIED | {"state": "unknown"},
    ]
    accounts = [ACCOUNT | {"findings": others}, ACCOUNT | {"id": "sim-b"}]
    assert pool([config("zone-a")], accounts).cause == "healthy, nothing limits its launches"
    draining = config("zone-b", state="draining", account_id="sim-b")
    assert pool([config("zone-a"), draining], accounts).cause == "healthy, nothing limits its launches"


THROTTLED: Final = ANSWERED | {"throttled": True, "throttled_since": "2026-01-01T12:00:00Z", "throttled_calls": 37}
LEASE_POOL: Final = {"id": "sim-a", "limit": 45, "limit_in_force": 45, "held": 3, "waiting": 0}


@pytest.mark.parametrize(
    ("change", "limiter"),
    [
        pytest.param({}, "lease pool sim-a grants at most 45 units", id="full"),
        pytest.param(
            {"limit_in_force": 40}, "lease pool sim-a has lowered its limit from 45 to 40 units", id="lowered"
        ),
        pytest.param(
            {"blocked_until": (NOW + timedelta(seconds=3)).isoformat()},
            "lease pool sim-a grants at most 45 units, and grants none for another 3 s, by its Retry-After",
            id="blocked",
        ),
    ],
)
def test_throttled_calls_are_a_cause_with_what_the_limiter_does(change: dict[str, Any], limiter: str) -> None:
    """Nothing fails and no launch config is tripped: launches only take longer."""
    account = THROTTLED | {"findings": []}
    sources: Any = {"sources": [SOURCE], "calculator": "", "accounts": [account], "now": NOW}
    found = of_pool(POOL, [CALM], [config("zone-a")], [], [LEASE_POOL | change], **sources)
    assert found.cause == f"account sim-a throttles calls, 37 so far: each is made again; {limiter}"
    assert found.remedy == "none needed; `slipway lease report sim-a --since 1h` shows if a lower limit would help"
    assert found.since is not None


def test_the_command_reads_throttled_accounts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "accounts", {"items": [THROTTLED]})
    monkeypatch.setitem(ANSWERS, "accounts/sim-a", THROTTLED | {"findings": [], "machines": []})
    assert "account sim-a throttles calls, 37 so far" in slipway("why", "linux", url=url).stdout
    assert "throttled" in slipway("account", "ls", url=url).stdout


def test_the_command_reads_the_findings(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those of accounts with problems."""
    assert "Remedy: none needed" in slipway("why", "linux", url=url).stdout
    bad = ANSWERED | {"problems": 1}
    monkeypatch.setitem(ANSWERS, "accounts", {"items": [bad]})
    monkeypatch.setitem(ANSWERS, "accounts/sim-a", bad | {"findings": [DENIED], "machines": []})
    for subject in ("linux", "zone-a"):
        printed = slipway("why", subject, url=url).stdout
        assert "account sim-a, permission ec2:RunInstances: denied" in printed
        assert f"Remedy: {ALLOW}." in printed
