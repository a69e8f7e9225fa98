"""Scopes of access tokens: those that services require, and whether one allows any of them. Pure."""

import re
from typing import Final

SCOPE: Final = re.compile(r"[a-z][a-z-]*(\*|:(\*|[a-z][a-z-]*(\*|:[!-~]+)?))?")
# All scopes that services require; capitals stand for what a request names.
SCOPES: Final = (
    "read",
    "read:metrics",
    "read:settings",
    "declaration:write[:OWNER]",
    "demand:write:POOL",
    "signal:write:KIND:ID",
    "signal:write:owner:OWNER",
    "pools:write[:OWNER]",
    "launch-configs:write[:OWNER]",
    "workers:terminate[:OWNER]",
    "workers:state[:OWNER]",
    "state-keys:write",
    "accounts:write[:OWNER]",
    "leases:write:POOL",
    "throttles:write:POOL",
    "lease-pools:write[:OWNER]",
    "launching:stop",
    "alerts:write",
    "tokens:write",
    "restores:write",
    "dead-letters:write",
    "positions:write",
    "admin",
)
OWNED: Final = tuple(scope.partition("[")[0] for scope in SCOPES if scope.endswith("[:OWNER]"))
"""Scopes that may be limited to the things of an owner."""
PLAIN: Final = tuple(scope.partition("[")[0] for scope in SCOPES)
TARGETED: Final = ("demand:write:", "signal:write:", "leases:write:", "throttles:write:", *(f"{one}:" for one in OWNED))


def scope_problem(scope: str) -> str:
    """Problem with a scope and its remedy, without the scope itself; empty if it allows something."""
    if scope.strip() == "*":
        return "allows nothing by itself; write admin for everything"
    if SCOPE.fullmatch(scope) and _allows_something(scope):
        return ""
    return f"allows nothing; scopes are {', '.join(SCOPES)}"


def _allows_something(scope: str) -> bool:
    """True if the scope covers anything that a service requires: a typo would create a useless token."""
    if scope.endswith("*") and any(known.startswith(scope[:-1]) for known in PLAIN):
        return True
    return scope in PLAIN or any(scope.startswith(target) and scope != target for target in TARGETED)
