"""Replies of EC2, read without trust in their completeness. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from slipway_provisioner.domain.cloud import Instance, InstanceState
from slipway_provisioner.providers.aws.body import BATCH, LAUNCH_CONFIG

STATES: Final = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPING,
    "shutting-down": InstanceState.STOPPING,
    "terminated": InstanceState.TERMINATED,
}
MEMBERS: Final = ("InstanceId", "InstanceLifecycle", "InstanceType", "LaunchTime", "State", "StateReason", "Tags")
"""Members of an instance that are read, here and elsewhere. No other is parsed."""
LIVE: Final = tuple(name for name, state in STATES.items() if state is not InstanceState.TERMINATED)


def instances(reply: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Instances of a reply of DescribeInstances."""
    for reservation in reply.get("Reservations", ()):
        yield from reservation.get("Instances", ())


def state(instance: Mapping[str, Any]) -> InstanceState:
    """State of an instance. One that is unknown to us is not terminated."""
    return STATES.get(instance.get("State", {}).get("Name", ""), InstanceState.PENDING)


def listed(reply: Mapping[str, Any]) -> Sequence[Instance]:
    """Live instances of a page. EC2 shows terminated ones for an hour."""
    return [
        _instance(found)
        for found in instances(reply)
        if found.get("InstanceId") and state(found) is not InstanceState.TERMINATED
    ]


def ids(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(instance["InstanceId"]) for instance in found if instance.get("InstanceId")]


def state_reason(instance: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of the reason for the state of an instance."""
    reason = instance.get("StateReason") or {}
    return str(reason.get("Code") or ""), str(reason.get("Message") or "")


def _instance(found: Mapping[str, Any]) -> Instance:
    tags = {tag.get("Key"): tag.get("Value") or "" for tag in found.get("Tags", ())}
    launched = found.get("LaunchTime")
    return Instance(
        id=str(found["InstanceId"]),
        batch_id=tags.get(BATCH, ""),
        launch_config_id=tags.get(LAUNCH_CONFIG, ""),
        created_at=launched if isinstance(launched, datetime) else datetime.fromtimestamp(0, UTC),
        state=state(found),
    )
