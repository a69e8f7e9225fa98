"""Files generated from the table of metrics: alert rules and a dashboard.

Promtool accepts and tests the rules; the queries of the dashboard parse and use existing metrics.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from generate import observability
from slipway_client.cli.main import app
from slipway_common.observability import metrics
from slipway_common.observability.metrics import METRICS, AlertRule, Metric, alerts
from tests.support.tools import run

PROMETHEUS = Path(__file__).parents[2] / "infra" / "prometheus"
# A histogram is three series; `up` is Prometheus' own.
SERIES = {"up"} | {
    name
    for metric in METRICS
    for name in (
        [f"{metric.name}_{end}" for end in ("bucket", "sum", "count")] if metric.kind == "histogram" else [metric.name]
    )
}
BOUNDED = {
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
    "tenant",  # the 50 tenants of a lease pool with the highest usage
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Generated files beside the tests of the rules."""
    for name, text in observability.files().items():
        if name.startswith("infra/prometheus/"):
            (tmp_path / Path(name).name).write_text(text)
    (tmp_path / "rules_test.yml").write_text((PROMETHEUS / "rules_test.yml").read_text())
    return tmp_path


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


def test_configuration_is_valid(folder: Path) -> None:
    assert "is valid prometheus config" in run("promtool", "check", "config", folder / "prometheus.yml")
    assert f"SUCCESS: {len(list(alerts()))} rules found" in run("promtool", "check", "rules", folder / "rules.yml")


def test_alerts_fire_when_they_should(folder: Path) -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", folder / "rules_test.yml")


def test_alerts_of_terraform_fire_when_they_should() -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", PROMETHEUS / "terraform_rules_test.yml")


def test_every_alert_is_tested_both_ways() -> None:
    tested: dict[str, set[bool]] = {}
    for group in yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]:
        for case in group["alert_rule_test"]:
            tested.setdefault(case["alertname"], set()).add(bool(case.get("exp_alerts")))
    assert tested == {alert.name: {True, False} for alert in alerts()}


@pytest.mark.parametrize("alert", list(alerts()), ids=lambda alert: alert.name)
def test_alerts_name_a_remedy(alert: AlertRule) -> None:
    """Texts use only labels that the expression keeps, and the command exists."""
    words = (alert.summary, alert.effect, alert.doing, alert.command)
    assert all(words)
    labels = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", alert.expr))))
    assert {label for text in words for label in re.findall(r"\$labels\.(\w+)", text)} <= labels
    program, *arguments = alert.command.split()
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
    for expr in [*queries(), *(alert.expr for alert in alerts())]:
        names = set(re.findall(r"\b(?:slipway_\w+|up)\b", expr))
        assert names, expr
        assert names <= SERIES, expr
        for name, matchers in re.findall(r"\b(slipway_\w+)\{([^}]*)\}", expr):
            assert set(re.findall(r"(\w+)(?:=|!|~)", matchers)) <= labels[name], expr


def test_every_query_of_the_dashboard_parses(folder: Path) -> None:
    rules = [
        {"record": f"query:number_{number}", "expr": expr.replace("$pool", ".*").replace("$__rate_interval", "5m")}
        for number, expr in enumerate(queries())
    ]
    path = folder / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in run("promtool", "check", "rules", path)


def test_dashboard_shows_every_row_in_place() -> None:
    """Panels do not overlap, fit Grafana's 24 columns, and show every row of the table once."""
    panels = observability.dashboard()["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == list(metrics.ROWS)
    graphs = sorted(panel["title"] for panel in panels if panel["type"] != "row")
    assert graphs == sorted(metric.panel.title for metric in METRICS if metric.panel is not None)
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
    dashboard = json.loads(observability.files()["infra/grafana/dashboards/slipway.json"])
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
