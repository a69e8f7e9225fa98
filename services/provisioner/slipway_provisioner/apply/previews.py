"""Previews of launches by their providers, such as a plan of Terraform, while a declaration is only compared."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from slipway_api.http.provisioner.declaration import PreviewProblem
from slipway_provisioner.domain.declaration import NewLaunch
from slipway_provisioner.providers.port import OutcomeUnknown, Provider

SECONDS: Final = 20.0
"""Time for all previews of a declaration."""
LAUNCHES_MAX: Final = 8
"""Launches that are previewed, the first ones."""


async def preview(launches: Sequence[NewLaunch], providers: Mapping[str, Provider]) -> list[PreviewProblem]:
    """Preview launches at the same time; returns those with a problem. Ends within `SECONDS`."""
    found = await asyncio.gather(*(_previewed(launch, providers) for launch in launches[:LAUNCHES_MAX]))
    return [
        PreviewProblem(config=launch.config["id"], problem=problem)
        for launch, problem in zip(launches, found, strict=False)
        if problem
    ]


async def _previewed(launch: NewLaunch, providers: Mapping[str, Provider]) -> str:
    provider = providers.get(launch.account.provider)
    if provider is None:
        return ""
    try:
        async with asyncio.timeout(SECONDS):
            return await provider.preview(launch.account, launch.config)
    except TimeoutError:
        return f"not planned: it took longer than {SECONDS:g} s"
    except OutcomeUnknown as error:
        return f"not planned: {error}"
