"""Stand-ins for the services, and runs of `slipway` against them."""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from typer.testing import CliRunner, Result

from slipway_client.cli.main import app
from slipway_common.web import problem
from slipway_common.web.access import creating_text
from slipway_common.web.problem import Problem
from tests.support.recorded import CONFIG, LEASE_POOL, POOL, changed

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples/slipway.yaml")
NOWHERE = "http://127.0.0.1:1"


class Services:
    """Provisioner and lease-broker in one: stores what was put, and lists two of every kind."""

    def __init__(self) -> None:
        self.app = FastAPI()
        problem.install(self.app)
        self.reset()
        self._route()

    def reset(self) -> None:
        self.puts: list[str] = []
        self.asked: list[str] = []
        self.kept: dict[str, Any] = {}
        self.demand: dict[str, Any] = {}
        self.stores = True
        self.accounts: list[dict[str, Any]] = []
        self.lease_pool = changed(LEASE_POOL, id="theirs", owner="other", pacing=None)
        self.queries: list[dict[str, str]] = []
        self.refused = ""
        self.dangers: dict[str, list[str]] = {}
        self.more = 0
        self.replaced: dict[str, Any] | None = None  # revision that replaces another when a declaration is applied

    def _route(self) -> None:
        @self.app.put("/lease-pools")
        async def put_lease_pools(request: Request) -> dict[str, Any]:
            body = await request.json()
            pools = [pool["id"] for document in body["documents"] for pool in document["lease_pools"]]
            return self._put("lease-pools", body, request, [{"kind": "lease pool", "id": id_} for id_ in pools])

        @self.app.put("/declaration")
        async def put_declaration(request: Request) -> dict[str, Any]:
            assert request.headers["content-type"] == "application/x-ndjson"
            body = [json.loads(line) for line in (await request.body()).splitlines()]
            pools = [line["worker_pool"]["id"] for line in body if "worker_pool" in line]
            return self._put("declaration", body, request, [{"kind": "worker pool", "id": id_} for id_ in pools])

        @self.app.put("/pools/{pool_id}/demand")
        async def put_demand(pool_id: str, request: Request) -> dict[str, Any]:
            if pool_id != "linux":
                raise Problem(404, "unknown-pool", "No such pool", f"no pool {pool_id!r} is declared")
            self.demand = await request.json()
            return {"stored": self.stores}

        @self.app.delete("/pools/{pool_id}/demand/{source:path}")
        async def delete_source(pool_id: str, source: str, request: Request) -> dict[str, Any]:
            self.queries.append({"source": source, **request.query_params})
            if pool_id != "linux":
                raise Problem(404, "unknown-source", "No such source of demand", f"pool {pool_id} has no {source!r}")
            return {"pool_id": pool_id, "source": source, "pending": 5, "claimed": 1, "was_fresh": source == "live"}

        @self.app.get("/{kind:path}")
        async def get(kind: str, request: Request) -> dict[str, Any]:
            self.asked.append(kind)
            self.queries.append(dict(request.query_params))
            if kind == "leases":
                raise Problem(503, "unavailable", "Temporarily unavailable", "a database cannot be reached")
            if kind == "launch-configs" and self.replaced is not None:
                after = [self.replaced, CONFIG | {"current": False, "replaced_by": "rolling"}]
                return {"items": after if "declaration" in self.puts else [CONFIG]}
            if kind == "launch-configs":
                lines = self.kept.get("declaration", [])
                return {"items": [CONFIG for line in lines if "worker_pool" in line]}
            if kind == "declaration":
                return {"accounts": [{"owner": "other", "spec": {"id": "sim-z"}}], "worker_pools": []}
            if kind == "accounts":
                return {"items": self.accounts}
            if kind == "providers":
                return {
                    "items": [{"id": "aws", "launches_per_second": 2.0}, {"id": "process", "launches_per_second": None}]
                }
            if kind == "lease-pools":
                return {"items": [self.lease_pool]}
            if kind == "workers":
                return {"items": []}
            return {
                "items": [
                    POOL | {"serving": 7, "wanted": None},
                    POOL | {"id": "windows", "mode": "observe", "serving": 112, "wanted": 3, "paused": True},
                ]
            }

    def _put(self, kind: str, body: Any, request: Request, objects: list[dict[str, Any]]) -> dict[str, Any]:
        if request.headers.get("authorization") != "Bearer good":
            needed = f"{kind}:write"
            detail = f"nobody needs {needed}; {creating_text([needed])}"
            raise Problem(403, "scope-missing", "The token lacks a scope", detail, needed=needed)
        given = dict(request.query_params)
        self.queries.append(given)
        changes = [row | {"result": "created", "detail": ""} for row in objects] if self.kept.get(kind) != body else []
        if kind == "declaration" and self.replaced is not None:
            changes.append({"kind": "launch config", "id": CONFIG["name"], "result": "updated", "detail": "image: …"})
        digest, dangers = f"digest of {kind}", self.dangers.get(kind, [])
        if "dry_run" not in given:
            if kind == self.refused:
                raise Problem(409, "declaration-refused", "The declaration cannot be followed", "not now")
            if dangers and given.get("confirm") != digest:
                raise Problem(409, "confirmation-required", "Confirmation needed", digest=digest, dangers=dangers)
            self.puts.append(kind)
            self.kept[kind] = body
        rest: dict[str, Any] = {"costs": [], "unpriced": []} if kind == "declaration" else {}
        return rest | {
            "items": changes if kind == "declaration" else [change | {"fields": {}} for change in changes],
            "more": self.more,
            "unchanged": 0,
            "digest": digest,
            "dangers": dangers,
            "applied": "dry_run" not in given,
        }

    @property
    def pools(self) -> list[dict[str, Any]]:
        """Lease pools that were put."""
        return [pool for document in self.kept["lease-pools"]["documents"] for pool in document["lease_pools"]]


def slipway(*arguments: str, url: str = NOWHERE, token: str = "good") -> Result:
    where = {"SLIPWAY_PROVISIONER_URL": url, "SLIPWAY_LEASE_BROKER_URL": url, "SLIPWAY_TOKEN": token}
    return CliRunner().invoke(app, arguments, env=where, catch_exceptions=False)
