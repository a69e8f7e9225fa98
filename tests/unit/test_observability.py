"""Alert rules and a dashboard: promtool accepts and tests the rules, and all queries parse and use metrics that the
code has."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from generate.observability import TEXTS, alerts
from slipway_client.cli.main import app
from slipway_common.observability import metrics
from slipway_common.observability.metrics import METRICS, Metric
from tests.support.tools import run

INFRA = Path(__file__).parents[2] / "infra"
PROMETHEUS = INFRA / "prometheus"
DASHBOARD: Any = json.loads((INFRA / "grafana" / "dashboards" / "slipway.json").read_text())
# A histogram is three series; `up` is Prometheus' own.
SERIES = {"up"} | {
    name
    for metric in METRICS
    for name in (
        [f"{metric.name}_{end}" for end in ("bucket", "sum", "count")] if metric.kind == "histogram" else [metric.name]
    )
}
BOUNDED = {
    "bucket",
    "type",
    "pool",
    "launch_config",
    "account",
    "lease_pool",
    "topic",
    "stage",
    "state",
    "phase",
    "result",
    "scope",
    "kind",
    "to",
    "reason",
    "loop",
    "service",
    "cause",
    "table",
    "source",  # the sources in the file of a monitor
    "tenant",  # the 50 tenants of a lease pool with the highest usage
}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metrics_are_named_and_bounded(metric: Metric) -> None:
    assert re.fullmatch(r"slipway_[a-z_]+[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert not metric.help.endswith(".")
    assert set(metric.labels) <= BOUNDED
    assert not metric.whole or metric.kind == "gauge"


def test_each_metric_has_one_row() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_instruments_are_made_from_rows_alone() -> None:
    with pytest.raises(LookupError, match="has no gauge slipway_nothing; add its row"):
        metrics.gauge("slipway_nothing")
    with pytest.raises(LookupError, match="has no gauge slipway_consumed_total"):
        metrics.gauge("slipway_consumed_total")


def test_configuration_is_valid() -> None:
    assert "is valid prometheus config" in run(
        "promtool", "check", "config", "--syntax-only", PROMETHEUS / "prometheus.yml"
    )
    assert f"SUCCESS: {len(alerts())} rules found" in run("promtool", "check", "rules", PROMETHEUS / "rules.yml")


def test_alerts_fire_when_they_should() -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", PROMETHEUS / "rules_test.yml")


def test_alerts_of_terraform_fire_when_they_should() -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", PROMETHEUS / "terraform_rules_test.yml")


def test_every_alert_is_tested_both_ways() -> None:
    tested: dict[str, set[bool]] = {}
    for group in yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]:
        for case in group["alert_rule_test"]:
            tested.setdefault(case["alertname"], set()).add(bool(case.get("exp_alerts")))
    assert tested == {alert["alert"]: {True, False} for alert in alerts()}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alerts_name_a_remedy(alert: Any) -> None:
    """Texts use only labels that the expression keeps, and the command exists."""
    words = [alert["annotations"][name] for name in TEXTS]
    assert all(words)
    assert alert["labels"]["severity"] in {"critical", "warning"}
    labels = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", alert["expr"]))))
    assert {label for text in words for label in re.findall(r"\$labels\.(\w+)", text)} <= labels
    program, *arguments = alert["annotations"]["command"].split()
    if program == "slipway":
        command: Any = get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= options


def test_expressions_use_existing_metrics() -> None:
    """All metrics are rows of the table, and all labels belong to the metric or the target."""
    labels = {
        name: {*metric.labels, "le", "job", "instance"}
        for metric in METRICS
        for name in SERIES
        if name.startswith(metric.name)
    }
    for expr in [*queries(), *(alert["expr"] for alert in alerts())]:
        names = set(re.findall(r"\b(?:slipway_\w+|up)\b", expr))
        assert names, expr
        assert names <= SERIES, expr
        for name, matchers in re.findall(r"\b(slipway_\w+)\{([^}]*)\}", expr):
            assert set(re.findall(r"(\w+)(?:=|!|~)", matchers)) <= labels[name], expr


def test_every_query_of_the_dashboard_parses(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:number_{number}", "expr": expr.replace("$pool", ".*").replace("$__rate_interval", "5m")}
        for number, expr in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in run("promtool", "check", "rules", path)


def test_panels_of_the_dashboard_are_in_place() -> None:
    """They do not overlap, fit Grafana's 24 columns, and have ids and titles of their own."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def queries() -> list[str]:
    """Queries of the dashboard, as Grafana sends them."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
