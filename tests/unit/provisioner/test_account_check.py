"""Findings of checks: those that raise and resolve alerts, and how the answers of AWS are judged."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_provisioner.domain.account_check import (
    FINDINGS_MAX,
    ORDER,
    CheckState,
    Finding,
    alerts,
    compared,
    identity,
    unusable,
)
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import findings
from slipway_provisioner.providers.aws.findings import Denial, Expiry, Quota
from slipway_provisioner.providers.aws.quotas import CODES, quota_family

OK, WARNING, PROBLEM, UNKNOWN = CheckState.OK, CheckState.WARNING, CheckState.PROBLEM, CheckState.UNKNOWN
NOW = datetime(2026, 8, 1, 12, 0, 0, tzinfo=UTC)
ACCOUNT = Account(
    id="ci/aws",
    deployment="d",
    provider="aws",
    region="us-east-1",
    identity="123456789012",
    lease_pool_id="ci",
    settings={},
)


def finding(kind: str, subject: str, state: CheckState) -> Finding:
    return Finding(kind=kind, subject=subject, state=state, message=state.value)


#         before, found, raised, resolved, problems afterwards
STANDINGS = [
    ([], [("quota", "a", PROBLEM)], ["a"], [], ["a"]),
    ([("quota", "a", PROBLEM)], [("quota", "a", PROBLEM)], [], [], ["a"]),
    ([("quota", "a", PROBLEM)], [("quota", "a", OK)], [], ["a"], []),
    ([("quota", "a", PROBLEM)], [("quota", "a", WARNING)], [], ["a"], []),
    ([("quota", "a", PROBLEM)], [], [], ["a"], []),
    ([("quota", "a", WARNING)], [("quota", "a", PROBLEM)], ["a"], [], ["a"]),
    ([("quota", "a", PROBLEM)], [("quota", "a", UNKNOWN)], [], [], ["a"]),
    ([("quota", "a", PROBLEM)], [("quota", "", UNKNOWN)], [], [], ["a"]),
    ([("quota", "a", PROBLEM)], [("quota", "b", UNKNOWN)], [], ["a"], []),
    ([("quota", "a", PROBLEM)], [("image", "", UNKNOWN)], [], ["a"], []),
    ([("quota", "a", UNKNOWN)], [("quota", "a", UNKNOWN)], [], [], []),
    ([("quota", "a", PROBLEM)], [("quota", "b", PROBLEM), ("quota", "a", OK)], ["b"], ["a"], ["b"]),
]


@pytest.mark.parametrize(("before", "found", "raised", "resolved", "problems"), STANDINGS)
def test_what_a_check_raises_and_resolves(
    before: list[Any], found: list[Any], raised: list[str], resolved: list[str], problems: list[str]
) -> None:
    """A problem is raised once, and resolved by a check that found it gone, never by one that could not look."""
    after = compared([finding(*each) for each in before], [finding(*each) for each in found])
    assert [each.subject for each in after.raised] == raised
    assert [each.subject for each in after.resolved] == resolved
    assert [each.subject for each in after.findings if each.is_problem] == problems
    assert after.findings == sorted(after.findings, key=lambda each: (ORDER.index(each.state), each.key))


FINDINGS = st.lists(
    st.builds(
        finding, st.sampled_from(["quota", "image"]), st.sampled_from(["", "a", "b"]), st.sampled_from(CheckState)
    ),
    unique_by=lambda each: each.key,
)


@given(FINDINGS, FINDINGS, FINDINGS)
def test_open_alerts_are_the_problems(first: list[Finding], second: list[Finding], third: list[Finding]) -> None:
    """After any checks: no problem is raised twice without a resolution between, and none is left open."""
    is_open: set[tuple[str, str]] = set()
    known: list[Finding] = []
    for found in (first, second, third):
        after = compared(known, found)
        raised, resolved = {each.key for each in after.raised}, {each.key for each in after.resolved}
        assert not raised & is_open
        assert resolved <= is_open
        is_open = (is_open | raised) - resolved
        known = list(after.findings)
        assert is_open == {each.key for each in known if each.is_problem}


def test_problems_come_first_and_stay_when_there_are_too_many() -> None:
    found = [finding("image", f"{number}", OK) for number in range(FINDINGS_MAX)] + [finding("quota", "a", PROBLEM)]
    after = compared([], found)
    assert len(after.findings) == FINDINGS_MAX
    assert after.findings[0].key == ("quota", "a")


def test_texts_of_providers_can_be_stored() -> None:
    """PostgreSQL stores no NUL, and an alert is no novel."""
    quoted = Finding(kind="image", subject="a\0" * 300, state=PROBLEM, message="b\0" * 9000, remedy="c\0")
    (stored,) = compared([], [quoted]).findings
    assert "\0" not in f"{stored.subject}{stored.message}{stored.remedy}"
    assert (len(stored.subject), len(stored.message), stored.remedy) == (200, 4000, "c�")


def test_an_alert_for_each_problem() -> None:
    """Its key and command survive slashes, and its remedy is its cause."""
    quota = msgspec.structs.replace(finding("quota", "std", PROBLEM), remedy="raise it")
    after = compared([quota], [identity("1", "2", about="arn:aws:iam::2:user/x")])
    about: Any = {"kind": "account-check", "subject_kind": "account", "subject_id": "ci/aws"}
    assert alerts("ci/aws", after) == [
        AlertRaised(
            **about,
            dedup_key="provisioner/account-check/ci%2Faws/identity/",
            severity="page",
            summary="account ci/aws, identity: the credential belongs to 2 (arn:aws:iam::2:user/x), not to 1",
            effect="launches in the account fail, or will soon",
            doing="checks the account again every hour; launches are tried meanwhile",
            cause="correct the credential of the account in slipway.yaml, or its identity",
            command="slipway account check ci/aws",
        ),
        AlertResolved(
            **about,
            dedup_key="provisioner/account-check/ci%2Faws/quota/std",
            severity="notice",
            summary="account ci/aws, quota std: no longer a problem",
            command="slipway account check ci/aws",
        ),
    ]
    (raised, _) = alerts("a b;c", after)
    assert raised.command == "slipway account check 'a b;c'"


def test_the_identity_of_a_credential() -> None:
    same = Finding(kind="identity", state=OK, message="1")
    assert identity("1", "1") == same
    assert identity("1", "1", about="arn:x") == msgspec.structs.replace(same, message="1 (arn:x)")


def test_unusable_settings_are_a_problem_of_their_launch_config() -> None:
    found = unusable("zone-a", "no image")
    assert (found.key, found.state) == (("launch-config", "zone-a"), PROBLEM)
    assert (found.message, bool(found.remedy)) == ("its settings are unusable: no image", True)


@pytest.mark.parametrize(
    ("seconds", "state"),
    [(0, OK), (0.9, OK), (-29, OK), (31, WARNING), (-32, WARNING), (239, WARNING), (-242, PROBLEM), (241, PROBLEM)],
)
def test_the_clock(seconds: float, state: CheckState) -> None:
    """AWS tells whole seconds, at some time between the call and its answer."""
    told = (NOW + timedelta(seconds=seconds)).replace(microsecond=0)
    found = findings.clock(told, before=NOW, after=NOW + timedelta(milliseconds=200))
    assert found.state is state, found
    assert ("behind" in found.message) is (state is not OK and seconds > 0)
    assert findings.clock(None, before=NOW, after=NOW).state is UNKNOWN


@pytest.mark.parametrize("call_seconds", [0.0, 59.0])
def test_a_slow_call_is_no_difference_of_clocks(call_seconds: float) -> None:
    after = NOW + timedelta(seconds=call_seconds)
    assert findings.clock(after.replace(microsecond=0), before=NOW, after=after).state is OK


@pytest.mark.parametrize(
    ("expiry", "state"),
    [
        (Expiry(temporary=False), OK),
        (Expiry(temporary=True), WARNING),
        (Expiry(temporary=True, at=NOW + timedelta(hours=5)), WARNING),
        (Expiry(temporary=True, at=NOW + timedelta(minutes=59)), PROBLEM),
        (Expiry(temporary=True, at=NOW - timedelta(hours=1)), PROBLEM),
        (Expiry(temporary=True, renewed=True, at=NOW + timedelta(minutes=59)), OK),
        (Expiry(temporary=True, renewed=True, at=NOW + timedelta(seconds=899)), OK),
        (Expiry(temporary=True, renewed=True, at=NOW + timedelta(minutes=13)), PROBLEM),
    ],
)
def test_the_end_of_a_credential(expiry: Expiry, state: CheckState) -> None:
    """One that is renewed is a problem only if that should have happened by now."""
    found = findings.credential(expiry, now=NOW)
    assert found.state is state
    assert bool(found.remedy) is (state is not OK)


DECODED = {"explicitDeny": True, "context": {"action": "iam:PassRole", "resource": "arn:aws:iam::1:role/machine"}}
PLAIN = (
    "User: arn:aws:sts::1:assumed-role/slipway/s is not authorized to perform: ec2:CreateTags on resource: "
    "arn:aws:ec2:us-east-1:1:instance/* because no identity-based policy allows the ec2:CreateTags action"
)


@pytest.mark.parametrize(
    ("message", "decoded", "expected"),
    [
        ("no", json.dumps(DECODED), Denial("iam:PassRole", "arn:aws:iam::1:role/machine", explicit=True)),
        (PLAIN, "", Denial("ec2:CreateTags", "arn:aws:ec2:us-east-1:1:instance/*")),
        ("You are not authorized to perform this operation.", "", Denial("ec2:RunInstances")),
        ("no", "not JSON", Denial("ec2:RunInstances")),
        ("no", "[]", Denial("ec2:RunInstances")),
        ("no", '{"context": {"action": "x y; rm", "resource": "r"}}', Denial("ec2:RunInstances")),
        ("no", '{"context": {"action": "ec2:CreateTags", "resource": "a\\u001b[2J"}}', Denial("ec2:CreateTags")),
    ],
)
def test_what_a_policy_denies(message: str, decoded: str, expected: Denial) -> None:
    """Of the decoded message or the plain one; nothing else of it is shown."""
    assert findings.denial(message, decoded, action="ec2:RunInstances") == expected


def test_a_denial_names_its_launch_configs_and_remedy() -> None:
    found = findings.denied(Denial("iam:PassRole", "arn:1"), ["a", "b", "c", "d"])
    assert (found.key, found.state) == (("permission", "iam:PassRole"), PROBLEM)
    assert found.message == "denied on arn:1; needed by launch config a, b, c and 1 more"
    assert "allow iam:PassRole" in found.remedy
    explicit = findings.denied(Denial("iam:PassRole", explicit=True), optional=True)
    assert explicit.state is WARNING
    assert "denies iam:PassRole" in explicit.remedy


QUOTAS = [(64, 0, OK), (64, 51, OK), (64, 52, WARNING), (64, 62, WARNING), (64, 63, PROBLEM), (0, 0, PROBLEM)]


@pytest.mark.parametrize(("limit", "used", "state"), QUOTAS)
def test_a_quota(limit: float, used: int, state: CheckState) -> None:
    """A problem once not even the smallest type fits."""
    about = Quota(family="standard-spot", limit=limit, used=used, needed={"m5.xlarge": 4, "m5.large": 2})
    found = findings.quota(about, ACCOUNT)
    assert (found.key, found.state) == (("quota", "standard-spot"), state)
    assert ("L-34B43A08" in found.remedy) is (state is not OK)


TYPES = "m5.large g5.xlarge p4d.24xlarge inf2.xlarge trn1.2xlarge x2gd.large f1.2xlarge dl1.24xlarge"


@pytest.mark.parametrize("instance_type", TYPES.split())
def test_families_have_codes(instance_type: str) -> None:
    """Of on-demand and spot instances; each code is that of one quota."""
    codes = {CODES[quota_family(instance_type, lifecycle)] for lifecycle in ("on-demand", "spot")}
    assert len(codes) == 2
    assert len(set(CODES.values())) == len(CODES)


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (None, PROBLEM),
        ({"AvailableIpAddressCount": 0}, PROBLEM),
        ({"AvailableIpAddressCount": 9}, WARNING),
        ({"AvailableIpAddressCount": 10}, OK),
        ({"AvailableIpAddressCount": 99, "State": "pending"}, PROBLEM),
        ({"AvailableIpAddressCount": 99, "AvailabilityZoneId": "use1-az1", "AvailabilityZone": "us-east-1b"}, PROBLEM),
    ],
)
def test_a_subnet(row: dict[str, Any] | None, state: CheckState) -> None:
    zone = {"AvailabilityZone": "us-east-1a", "AvailabilityZoneId": "use1-az4"}
    whole = None if row is None else {"SubnetId": "subnet-1", **zone, **row}
    found = findings.subnet("subnet-1", whole, {"linux/a": "use1-az4"}, ACCOUNT)
    assert found.state is state, found
    assert bool(found.remedy) is (state is not OK)


@pytest.mark.parametrize(
    ("row", "state", "words"),
    [
        (None, PROBLEM, "does not exist in us-east-1, or is not shared"),
        ({"State": "pending"}, PROBLEM, "is pending"),
        ({"State": "available"}, OK, "available"),
    ],
)
def test_an_image(row: dict[str, Any] | None, state: CheckState, words: str) -> None:
    found = findings.image("ami-1", row, ["linux/a"], ACCOUNT)
    assert (found.state, bool(found.remedy)) == (state, state is not OK)
    assert words in found.message
