"""Layers of the test suite: what each runs, how long it may take, and the changes that ask for it.

Every file of tests is in exactly one layer, and every target of the Makefile in one or in EXEMPT; tests keep it so.
"""

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

PYTEST: Final = (sys.executable, "-m", "pytest", "-q")
MAKE: Final = ("make", "--no-print-directory")


class Layer(NamedTuple):
    """A layer: its command, and its budget in seconds on two processors beside another layer.

    `many`: it starts many processes; at most one such layer runs at a time. `alone`: it measures, so that nothing runs
    beside it. `fast`: it belongs to the inner loop. `paths` are the tests that it runs by pytest, but for `without`.
    """

    command: Sequence[str]
    budget_seconds: float
    many: bool = False
    alone: bool = False
    fast: bool = False
    paths: Sequence[str] = ()
    without: Sequence[str] = ()


def by_pytest(
    budget_seconds: float,
    *paths: str,
    without: Sequence[str] = (),
    named: str = "",
    many: bool = False,
    fast: bool = False,
) -> Layer:
    """Layer of tests; `named` selects them by an expression of names."""
    left_out = tuple(f"--ignore={path}" for path in without)
    selected = ("-k", named) if named else ()
    command = (*PYTEST, *paths, *left_out, *selected)
    return Layer(command, budget_seconds, many=many, fast=fast, paths=paths, without=without)


def target(budget_seconds: float, *arguments: str, alone: bool = False) -> Layer:
    """Layer of a target of the Makefile, with its arguments."""
    return Layer((*MAKE, *arguments), budget_seconds, many=True, alone=alone)


# Tests of tools, servers and benchmarks: what they test is used by tests alone.
TOOLS: Final = (
    "tests/unit/bench",
    "tests/unit/histories",
    "tests/unit/local",
    *(f"tests/unit/test_{name}.py" for name in ("batches", "compose", "jars", "layers", "observability", "readme")),
    *(f"tests/unit/test_{name}.py" for name in ("picture", "structure", "terraform_packages", "tools", "mutation")),
)
CLIENT: Final = ("tests/unit/client", "tests/unit/worker")
CALCULATOR: Final = "tests/unit/weight_calculator"
STORIES: Final = "tests/unit/weight_calculator/test_outage.py"  # hours of a fleet, without a database
OUTSIDE: Final = (
    "tests/contract/aws",
    "tests/contract/ec2",
    "tests/contract/examples",
    "tests/contract/test_alert_sinks.py",
    "tests/contract/test_metrics.py",
)
SOURCES: Final = ("tests/contract/sources",)
# What no invariant between services needs: compatibility with programs of others, screens, first errors, and generated
# requests, of which `make fuzz` sends many more.
AT_LENGTH: Final = (
    "tests/contract/boskos",
    "tests/contract/test_first_errors.py",
    "tests/contract/test_fuzz.py",
    "tests/contract/test_worker_wrap.py",
    "tests/unit/client/test_screen.py",
    "tests/unit/client/test_top.py",
    "tests/unit/worker/test_presets.py",
)
WORKSPACES: Final = tuple(
    f"tests/interleaving/test_{name}.py" for name in ("workspaces", "workspace_documents", "workspace_listings")
)
# What keeps the invariants between services: consumption, the relay, leaders, take-overs, outages.
WHOLE: Final = tuple(
    f"tests/integration/test_{name}.py"
    for name in (
        "consume",
        "bad_records",
        "relay",
        "leader_loop",
        "takeover",
        "incarnation",
        "outages",
        "lost_grants",
        "service",
        "provisioner",
        "machines",
        "decisions",
        "provisioner_http",
        "unleased",
        "weight_calculator",
        "calculator_signals",
        "lease_broker",
        "lease_broker_http",
        "lease_downtimes",
        "lease_policies",
    )
)
PATHS: Final = ("tests/e2e/test_path.py", "tests/e2e/test_lease_run.py")
OF_TERRAFORM: Final = "terraform"

# In the order in which they are begun, so that both lanes end together, in the inner loop as well.
CORE: Final = {
    "e2e": by_pytest(85, *PATHS, many=True),
    "integration": by_pytest(170, *WHOLE),
    "contract": by_pytest(150, "tests/contract", without=(*OUTSIDE, *SOURCES, *AT_LENGTH), named=f"not {OF_TERRAFORM}"),
    "client": by_pytest(100, *CLIENT, without=AT_LENGTH),
    "unit": by_pytest(60, "tests/unit", without=(*TOOLS, *CLIENT, CALCULATOR), fast=True),
    "calculator": by_pytest(25, CALCULATOR, without=(STORIES,), fast=True),
    "interleaving": by_pytest(60, "tests/interleaving", without=WORKSPACES),
    "simulation": by_pytest(85, "tests/simulation", STORIES),
    "check": Layer((*MAKE, "check"), 60, fast=True),
}
"""Layers of `make test`."""

QUEUES: Final = ("celery", "rq", "rabbitmq", "prometheus", "http", "exec", "sql", "kafka_lag", "sqs", "keda")
LONG: Final = {
    "tools": by_pytest(120, *TOOLS),
    "outside": by_pytest(250, *OUTSIDE),
    "at-length": by_pytest(100, *AT_LENGTH),
    "sources": by_pytest(300, *SOURCES, many=True),
    "services": by_pytest(400, "tests/integration", without=WHOLE),
    "systems": by_pytest(300, "tests/e2e", without=PATHS, many=True),
    "terraform": by_pytest(300, "tests/terraform", *WORKSPACES, many=True),
    "terraform-contract": by_pytest(
        120, "tests/contract", without=(*OUTSIDE, *SOURCES, *AT_LENGTH), named=OF_TERRAFORM, many=True
    ),
    "requirements": target(120, "requirements"),
    "histories": target(120, "histories", "N=20"),
    "readme": target(120, "readme"),
    "compose-check": target(90, "compose-check"),
    "mutants": Layer((*MAKE, "mutants"), 3600),
    "structure": target(30, "structure"),
    "demo": target(120, "demo", "DURATION=45s"),
    "demo-redis": target(120, "demo", "QUEUE=redis", "DURATION=45s"),
    "try-image": target(90, "try-image"),
    "screen-shot": target(60, "screen-shot"),
    "alert-sinks": target(60, "alert-sinks"),
    "try-secured": target(420, "try-secured"),
    "try-proxies": target(120, "try-proxies"),
    "attack": target(90, "attack"),
    "flood": target(60, "flood", alone=True),
    "attach": target(120, "attach"),
    **{f"attach-{queue}": target(120, "attach", f"QUEUE={queue}") for queue in QUEUES},
    "changes": target(150, "e2e"),
    "windows": target(90, "e2e-windows"),
    "drill": target(900, "drill"),
    "rehearse": target(300, "rehearse"),
    "ec2-check": target(60, "ec2-check"),
    "ec2-limits": target(90, "ec2-limits"),
    "ec2-spot": target(60, "ec2-spot"),
    "ec2-storm": target(90, "ec2-storm"),
    "ec2-codes": target(60, "ec2-codes"),
    "lease-harm": target(900, "lease-harm"),
    "leases-model": target(30, "leases-model"),
    "square-wave": target(30, "square-wave"),
    "fairness": target(30, "fairness"),
    "fuzz": target(60, "fuzz"),
    "contracts-check": target(120, "contracts-check"),
    "outages": Layer(("env", "SEEDS=6", *PYTEST, "tests/simulation", "-k", "outages or older_database"), 150),
    "simulate": target(150, "simulate", "SEEDS=24"),
    "simulate-weights": target(90, "simulate", "ONLY=weights", "SEEDS=100"),
    "growth": target(120, "growth"),
    "policies": target(90, "policies"),
    "terraform-checks": target(240, "terraform-checks"),
    "terraform-state": target(240, "terraform-state"),
    "terraform-e2e": target(120, "terraform-e2e"),
    "terraform-idle": target(60, "terraform-idle"),
    "terraform-daemon": target(300, "terraform-daemon"),
    "terraform-faults": target(600, "terraform-faults"),
    "terraform-runs": target(60, "terraform-runs", "N=20"),
    "terraform-fair": target(90, "terraform-fair"),
    "bench-events": target(90, "bench-events", alone=True),
    "bench-weights": target(120, "bench-weights", alone=True),
    "bench-leases": target(120, "bench-leases", alone=True),
    "bench-http": target(90, "bench-http", alone=True),
    "bench-commands": target(60, "bench-commands", alone=True),
    "bench-apply": target(120, "bench-apply", alone=True),
    # At a rate that two processors carry (0086).
    "bench-decision": target(120, "bench-decision", "RATE=10", "SECONDS=10", alone=True),
    "bench-fair": target(120, "bench-fair", "POOLS=1000", "WINDOW=16", alone=True),
    "bench-start": target(240, "bench-start", alone=True),
    "bench-monitor": target(120, "bench-monitor", alone=True),
    "bench-lives": target(150, "bench-lives"),
    "bench-loops": target(150, "bench-loops", alone=True),
    "bench-ec2": target(120, "bench-ec2", "CELL=10", "ROUNDS=1", alone=True),
    "ec2-scale": target(120, "ec2-scale", alone=True),
    "soak-terraform": target(120, "soak-terraform", alone=True),
}
"""Layers that `make test-all` runs in addition."""

EXEMPT: Final = {
    "help": "prints",
    "setup": "a prerequisite of all others",
    "tools": "a prerequisite of all others",
    "test": "runs the core layers",
    "test-all": "runs all layers",
    "test-for": "runs layers by the files that changed",
    "check": "a core layer",
    "lock": "resolves packages anew, so that it changes files",
    "lock-jars": "resolves packages anew, so that it changes files",
    "generated": "writes files, which the core layers compare",
    "baseline": "writes files, which the core layers compare",
    "recordings": "writes files, which the core layers compare",
    "bench-before": "needs a commit to compare with",
    "mutation": "takes hours, and finds what tests lack, not what is broken: not in CI",
    "audit": "asks an index, whose answer changes while nothing here does",
    "clean": "removes the environment",
}
"""Targets of the Makefile that are no layer, with the reason."""

LEASES: Final = ("at-length", "lease-harm", "leases-model", "square-wave", "fairness", "requirements", "histories")
PROVIDER: Final = ("services", "systems", "windows", "drill", "growth", "outages", "simulate")
ATTACH: Final = tuple(name for name in LONG if name.startswith("attach"))
AWS: Final = ("outside", "ec2-check", "ec2-limits", "ec2-spot", "ec2-storm", "ec2-codes")
TERRAFORM: Final = tuple(name for name in LONG if "terraform" in name)
AREAS: Final = (
    ("libs/terraform/*", TERRAFORM),
    ("libs/client/slipway_client/leases/*", ("lease-harm", "leases-model", "square-wave", "readme")),
    ("libs/client/*", ("at-length", "outside", "services", "readme", "screen-shot", "bench-commands")),
    ("libs/local/slipway_local/ec2/*", AWS),
    ("libs/local/slipway_local/terraform/*", TERRAFORM),
    ("libs/local/*", ("tools", "demo", "demo-redis", "try-image", "drill")),
    ("libs/api/*", ("services", "fuzz", "contracts-check")),
    (
        "libs/common/*",
        ("at-length", "services", "systems", "outside", "drill", "histories", "outages", "simulate", "fuzz"),
    ),
    ("services/lease-broker/*", (*LEASES, "services", "fuzz", "bench-leases")),
    (
        "services/weight-calculator/*",
        ("services", "windows", "outages", "simulate", "simulate-weights", "policies", "bench-weights"),
    ),
    ("services/monitor/*", ("sources", "demo-redis", *ATTACH, "services")),
    ("services/simulator/*", ("systems", "demo", "drill")),
    ("services/provisioner/slipway_provisioner/providers/aws/*", (*AWS, "bench-ec2", "ec2-scale")),
    ("services/provisioner/slipway_provisioner/providers/terraform/*", TERRAFORM),
    (
        "services/provisioner/*",
        (*PROVIDER, "outside", "try-image", "fuzz", "policies", "bench-apply", "bench-decision", "bench-loops"),
    ),
    ("bench/policies/*", ("policies", "tools")),
    ("bench/leases/*", ("bench-leases", "square-wave", "fairness", "leases-model", "tools")),
    ("bench/terraform/*", ("soak-terraform", "terraform-runs", "tools")),
    ("bench/growth/*", ("growth", "tools")),
    ("bench/ec2/*", ("bench-ec2", "tools")),
    ("bench/fleet/*", ("ec2-scale", "tools")),
    ("bench/decision/*", ("bench-decision", "bench-fair", "tools")),
    ("bench/monitor/*", ("bench-monitor", "tools")),
    ("bench/loops/*", ("bench-loops", "tools")),
    ("bench/*", ("bench-lives", "bench-start", "bench-events", "bench-weights", "bench-http", "bench-apply", "tools")),
    ("tests/terraform/*", ("terraform", "terraform-checks", "terraform-faults", "terraform-fair")),
    (
        "tests/drills/*",
        ("drill", "rehearse", "ec2-check", "ec2-limits", "ec2-spot", "ec2-storm", "terraform-e2e", "terraform-idle"),
    ),
    ("tests/contract/sources/*", ("sources",)),
    ("tests/attach/*", ATTACH),
    ("tests/contract/*", ("at-length", "outside", "terraform-contract")),
    ("tests/integration/*", ("services", "terraform-state")),
    ("tests/interleaving/*", ("terraform",)),
    ("tests/e2e/*", ("systems", "changes", "windows")),
    ("tests/histories/*", ("histories", "tools")),
    ("tests/secured/*", ("try-secured",)),
    ("tests/proxies/*", ("try-proxies",)),
    ("tests/lease_harm/*", ("lease-harm",)),
    ("tests/requirements/*", ("requirements",)),
    ("tests/simulation/*", ("outages", "simulate", "simulate-weights")),
    ("tests/fuzz/*", ("fuzz",)),
    ("tests/compose/*", ("compose-check",)),
    ("tests/data/*", ("ec2-codes",)),
    ("tests/tools/*", ("tools", "mutants", "structure")),
    ("tests/unit/*", ("at-length", "tools")),
    ("tests/mutants.toml", ("mutants",)),
    ("tests/survivors.toml", ("tools",)),
    ("tests/*", ("services", "systems", "mutants")),
    ("contracts/*", ("fuzz", "contracts-check")),
    ("generate/*", ("outside",)),
    ("docs/*", ("readme",)),
    ("infra/proxies/*", ("try-proxies",)),
    ("infra/*", ("compose-check", "outside")),
    ("examples/*", ("outside", "terraform-daemon", "readme")),
    ("*", ("readme", "compose-check", "structure")),
)
"""Pattern of paths and the long layers that a change there asks for; the first that matches decides."""


def asked_for(changed: Sequence[str]) -> list[str]:
    """Core layers, and the long ones that changed files ask for, in the order in which they are begun."""
    asked = {
        layer for path in changed for layer in next(layers for pattern, layers in AREAS if fnmatchcase(path, pattern))
    }
    return [*CORE, *(name for name in LONG if name in asked)]
