"""Seeded commands of an operator over the provisioner's HTTP API, each of which may die at a commit.

Launch stops, pauses by name, roll-outs of images, rollbacks, maximum ages, and the removal and new declaration of a
launch config.
After a death the operator reads again what is in force, as a person would.
"""

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, Final

import httpx2

from slipway_common.declaration.parsing import parse

POOL: Final = "linux"
OWNER: Final = "operator"
TOKEN: Final = "secret-of-the-operator"
ZONES: Final = ("zone-a", "zone-b", "zone-c")
FIRST_ACCOUNT: Final = "sim-a"
SECOND_ACCOUNT: Final = "sim-b"
ACCOUNTS: Final = {"zone-a": FIRST_ACCOUNT, "zone-b": SECOND_ACCOUNT, "zone-c": FIRST_ACCOUNT}
MAXIMA: Final = {"zone-b": 5}
"""Maximum workers of some launch configs, over all their revisions."""
IMAGES: Final = ("linux-1", "linux-2", "linux-3")
MISSING_IMAGE: Final = "linux-9"
STRATEGIES: Final = ("natural", "natural", "rolling", "now")
AGES: Final[tuple[dict[str, float], ...]] = (
    {"maximum_age_seconds": 301.0},  # just longer than a boot may take
    {"maximum_age_seconds": 900.0},
    {"credential_seconds": 301.0},
    {"credential_seconds": 360.0},
    {},
)
DRAIN_SECONDS: Final = (30.0, 120.0, 600.0)
REFUSED: Final = frozenset({404, 409, 422})


class Operator:
    """An operator of one deployment. `made` counts the commands that were accepted, by kind."""

    def __init__(self, http: httpx2.AsyncClient, chance: Random) -> None:
        self.http = http
        self.chance = chance
        self.made: Counter[str] = Counter()

    async def declare(self, body: dict[str, Any]) -> None:
        """Declare accounts and pools, as `slipway apply` would. There is nothing to test if they are refused."""
        assert await self._change("PUT", "/declaration", body, {}), "the declaration was refused"

    async def command(self) -> None:
        """Give one random command. A refusal is an answer too: nothing has changed."""
        await self.chance.choice(
            (
                self._roll_out,
                self._roll_out,
                self._roll_out,
                self._roll_back,
                self._toggle_config,
                self._toggle_pause,
                self._limit_age,
            )
        )()

    async def calm_down(self) -> None:
        """Resume what is paused, and declare all launch configs with an image that works."""
        for config in ZONES:
            await self._send("POST", f"/launch-configs/{config}/resume", {"reason": "drill over"}, {})
        spec, etag = await self._spec()
        self.made["declaration again"] += len(spec["launch_configs"]) < len(ZONES)
        spec["launch_configs"] = [launch_config(zone, IMAGES[0]) for zone in ZONES]
        spec["deadlines"] = {}
        assert await self._change("PUT", f"/pools/{POOL}", spec, {}, etag), "the last declaration was refused"

    async def _roll_out(self) -> None:
        """Change the image of one or all launch configs."""
        spec, etag = await self._spec()
        image = self.chance.choice((*IMAGES, MISSING_IMAGE))
        chosen = [self.chance.randrange(len(spec["launch_configs"]))] if self.chance.random() < 0.4 else None
        for place, config in enumerate(spec["launch_configs"]):
            if chosen is None or place in chosen:
                config["image"] = image
        strategy = self.chance.choice(STRATEGIES)
        if await self._change("PUT", f"/pools/{POOL}", spec, self._how() | {"replace": strategy}, etag):
            self.made[f"roll-out {strategy}"] += 1

    async def _roll_back(self) -> None:
        body = {"reason": "drill", "force": self.chance.random() < 0.5} | self._how()
        if await self._change("POST", f"/pools/{POOL}/rollback", body, {}):
            self.made["rollback"] += 1

    async def _toggle_config(self) -> None:
        """Remove a launch config from the declaration, or declare it again."""
        spec, etag = await self._spec()
        others = [config for config in spec["launch_configs"] if config["name"] != ZONES[2]]
        is_removal = len(others) < len(spec["launch_configs"])
        spec["launch_configs"] = others if is_removal else [*others, launch_config(ZONES[2], IMAGES[0])]
        if await self._change("PUT", f"/pools/{POOL}", spec, self._how(), etag):
            self.made["removal" if is_removal else "declaration again"] += 1

    async def _toggle_pause(self) -> None:
        """Pause a launch config by its name, or resume it if it is paused."""
        path = f"/launch-configs/{self.chance.choice(ZONES)}"
        if (await self._send("POST", f"{path}/resume", {"reason": "drill over"}, {})).is_error:
            paused = await self._send("POST", f"{path}/pause", {"reason": "drill"}, {})
            self.made["pause"] += not paused.is_error

    async def _limit_age(self) -> None:
        """Change how old workers may become, also those that are older."""
        spec, etag = await self._spec()
        spec["deadlines"] = self.chance.choice(AGES) | {"drain_seconds": self.chance.choice(DRAIN_SECONDS)}
        if await self._change("PUT", f"/pools/{POOL}", spec, self._how(), etag):
            self.made["maximum age"] += 1

    def _how(self) -> dict[str, Any]:
        """Time limit of drains, and whether workers that are left then are terminated."""
        return {"drain_seconds": self.chance.choice(DRAIN_SECONDS), "terminate": self.chance.random() < 0.4}

    async def _spec(self) -> tuple[dict[str, Any], str]:
        """The pool as declared, and its entity tag."""
        answer = await self._send("GET", f"/pools/{POOL}", None, {})
        return answer.json()["declared"], answer.headers["etag"]

    async def _change(
        self, method: str, path: str, body: dict[str, Any], query: dict[str, Any], etag: str = ""
    ) -> bool:
        """Make a change, and confirm it if it is dangerous; False if it was refused."""
        answer = await self._send(method, path, body, query, etag)
        if answer.status_code == 409 and answer.json().get("digest"):
            confirmed = {"confirm": answer.json()["digest"]}
            in_body = method == "POST"
            answer = await self._send(
                method, path, body | (confirmed if in_body else {}), query | ({} if in_body else confirmed), etag
            )
        return not answer.is_error

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None, query: dict[str, Any], etag: str = ""
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {TOKEN}"} | ({"If-Match": etag} if etag else {})
        answer = await self.http.request(method, path, params=query, headers=headers, json=body)
        assert not answer.is_error or answer.status_code in REFUSED, f"{method} {path}: {answer.text}"
        return answer


def launch_config(zone: str, image: str) -> dict[str, Any]:
    maximum = {"max_capacity": MAXIMA[zone]} if zone in MAXIMA else {}
    place = {"account": ACCOUNTS[zone], "zone": zone}
    return {"name": zone, "instance_type": "m5.large", "image": image} | place | maximum


def declared(
    *, max_capacity: int, honours_tokens: bool, deadlines: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Declaration of a pool with a launch config per zone, in two accounts; their lease pool is declared elsewhere."""
    accounts = [
        {
            "id": account,
            "provider": "simulated",
            "region": "r",
            "credential": "none",
            "identity": account,
            "lease_pool": "sim-a",
            "settings": {"url": "http://cloud", "honours_tokens": honours_tokens},
        }
        for account in (FIRST_ACCOUNT, SECOND_ACCOUNT)
    ]
    pool = {
        "id": POOL,
        "max_capacity": max_capacity,
        "deadlines": dict(deadlines or {}),
        "launch_configs": [launch_config(zone, IMAGES[0]) for zone in ZONES],
    }
    body = {"version": 1, "metadata": {"owner": OWNER}, "accounts": accounts, "worker_pools": [pool]}
    return parse(body).model_dump(mode="json")
