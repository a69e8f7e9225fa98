"""`make try-secured`: a deployment as on a network. Machines go their whole path in it while each secret is replaced
once, everything else is refused, and no secret can be read from its wires.

Prints each replaced secret and each refusal with its reason, and at the end what they come to.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.secured.capture import Capture
from tests.secured.deployment import Deployment
from tests.secured.refusals import Refused, http_cases, kafka_cases, postgres_cases
from tests.secured.rotation import rotate


async def refused(cases: list[tuple[str, Callable[[], Awaitable[Any]]]]) -> tuple[int, int]:
    """Number of cases that were refused, and of all; prints each with its reason."""
    count = 0
    for title, attempt in cases:
        try:
            async with asyncio.timeout(60):
                answer = await attempt()
        except Refused as reason:
            count += 1
            print(f"  refused  {title}: {reason}", flush=True)
        except Exception as error:
            print(f"  FAILED   {title}: {error!r}", flush=True)
        else:
            print(f"  ACCEPTED {title}: {answer!r}", flush=True)
    return count, len(cases)


async def attempt(folder: Path) -> bool:
    capture = Capture()
    try:
        deployment = Deployment(folder, capture)
        try:
            await deployment.start()
            print(await deployment.doctor(), flush=True)
            await deployment.machines.wave(deployment.keys["registration_keys"])
            booting = await rotate(deployment)
            await deployment.until_ready()
            await deployment.doctor()
            facts = await deployment.machines.facts(deployment.kafka.access(user="operators"))
            print(f"{'path ok' if facts.whole else 'PATH BROKEN'}: of the machines {facts}", flush=True)
            is_refused = facts.refusals or facts.refused
            who = f"{facts.refused} machines" if is_refused else "no machine"
            print(f"rotation refused {who}: registrations refused {facts.refusals}, of {booting} machines that booted")
            cases = [*kafka_cases(deployment), *http_cases(deployment), *await postgres_cases(deployment)]
            count, total = await refused(cases)
        finally:
            await deployment.stop()
    finally:
        capture.end()
    print(f"refused {count} of {total}")
    print(f"loopback: {capture.packets:,} packets, {len(capture.found)} of {len(capture.texts)} secrets in clear")
    is_silent = capture.packets > 0 and not capture.found
    return facts.whole and not is_refused and count == total >= 30 and is_silent


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="slipway-secured-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        sys.exit(0 if asyncio.run(attempt(Path(folder))) else 1)


if __name__ == "__main__":
    main()
