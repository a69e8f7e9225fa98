"""Instances in EC2's XML. moto's own description is kept, except for what the stand-in decides: state, reason, tags,
and the zone's id. Pure."""

from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from slipway_local.ec2 import wire
from slipway_local.ec2.cloud import STATE_CODES, Instance
from slipway_local.ec2.listing import Page

OWN = ("instanceState", "stateReason", "reason", "tagSet")


def described(item: ElementTree.Element, zone_id: str) -> str:
    """moto's description of an instance without the parts of OWN; the text ends before the closing tag."""
    for name in OWN:
        for element in item.findall(name):
            item.remove(element)
    if (placement := item.find("placement")) is not None:
        ElementTree.SubElement(placement, "availabilityZoneId").text = zone_id
    return ElementTree.tostring(item, encoding="unicode").removesuffix("</item>")


def item(description: str, instance: Instance, now: float) -> str:
    """One instance of a list or of a launch's reply."""
    state = instance.state(now)
    parts = [description, _state("instanceState", state), wire.tag_set(instance.tags)]
    if instance.reason:
        code, message = escape(instance.reason), escape(f"{instance.reason}: {instance.reason.partition('.')[2]}")
        parts.append(
            f"<reason>{message}</reason><stateReason><code>{code}</code><message>{message}</message></stateReason>"
        )
    return "".join([*parts, "</item>"])


def launched(instances: Sequence[tuple[str, Instance]], now: float) -> str:
    """Reservation of a launch, with descriptions."""
    first = instances[0][1].created
    items = "".join(item(description, instance, now) for description, instance in instances)
    return _reservation(first.reservation, first.account, items)


def listed(page: Page, descriptions: dict[str, str], now: float) -> str:
    """One page of instances, in their reservations."""
    reservations = []
    for reservation, group in groupby(page.instances, lambda instance: instance.created.reservation):
        members = list(group)
        items = "".join(item(descriptions[instance.id], instance, now) for instance in members)
        reservations.append(f"<item>{_reservation(reservation, members[0].created.account, items)}</item>")
    more = f"<nextToken>{page.next_token}</nextToken>" if page.next_token else ""
    return f"<reservationSet>{''.join(reservations)}</reservationSet>{more}"


def terminated(before: Sequence[tuple[Instance, str]], now: float) -> str:
    """Reply to a terminate call, from the instances and their states before it."""
    items = "".join(
        f"<item><instanceId>{instance.id}</instanceId>{_state('currentState', instance.state(now))}"
        f"{_state('previousState', previous)}</item>"
        for instance, previous in before
    )
    return f"<instancesSet>{items}</instancesSet>"


def nothing_left(action: str, account: str) -> str:
    """Answer to a call that asks for what machines leave behind, or for the caller, where moto has no machines; empty
    for other calls."""
    match action:
        case "DescribeVolumes":
            return wire.answer(action, "<volumeSet/>", "nothing-left")
        case "DescribeNetworkInterfaces":
            return wire.answer(action, "<networkInterfaceSet/>", "nothing-left")
        case "GetCallerIdentity":
            inner = f"<GetCallerIdentityResult><Account>{account}</Account></GetCallerIdentityResult>"
            return f'<GetCallerIdentityResponse xmlns="{wire.STS_NAMESPACE}">{inner}</GetCallerIdentityResponse>'
        case _:
            return ""


def _reservation(reservation: str, account: str, items: str) -> str:
    return (
        f"<reservationId>{reservation}</reservationId><ownerId>{account}</ownerId><groupSet/>"
        f"<instancesSet>{items}</instancesSet>"
    )


def _state(name: str, state: str) -> str:
    return f"<{name}><code>{STATE_CODES[state]}</code><name>{state}</name></{name}>"
