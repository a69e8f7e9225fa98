"""Tables of the results: an overview and a table per scenario, in Markdown aligned as plain text."""

from collections.abc import Iterable, Sequence
from typing import Final

from bench.policies.claims import Summaries, text
from bench.policies.families import FRONTIER, IMAGES, ROLL_OUT, family_of
from bench.policies.published import RECOMMENDED
from bench.policies.results import Summary
from bench.policies.scenario import Scenario

COLUMNS: Final = {
    "failed": "failed",
    "failed_meanwhile": "meanwhile",
    "ratio": "failed/ok",
    "detect_minutes": "detect min",
    "recover_minutes": "recover min",
    "share_left": "share left",
    "on_bad_image": "on bad image",
    "wait_mean": "wait s",
    "wait_p95": "wait p95 s",
    "wait_new": "wait new s",
    "peak": "peak/min",
    "surge": "surge",
    "regret": "regret",
    "unfairness": "unfairness",
    "jain": "Jain",
}
LEGEND: Final = (
    "Means and 95 % confidence intervals. `meanwhile`: failures between the first fault's begin and the last one's "
    "end. `detect`: until the faulty configs got below a quarter of their fair share of tries within a minute; "
    "`recover`: until they got 80 % of it again. `share left`: of all tries, while the first fault lasted. `on bad "
    "image`: machines launched with an image that was bad, which never registered. `wait s`: of all tasks, those that "
    "still wait at the end with their wait so far; `wait p95`: of served ones. `wait new`: of the tasks that arrive in "
    "the first 15 minutes of the newest image. `peak`: most failures in a minute. `surge`: tries at the first fault's "
    "configs in the minute after it. `regret`: workers that registered under the oracle and not here. `unfairness`: "
    "largest less smallest share of an hour. `published rec.`: the published figure of `recommended`."
)


VARIANTS: Final = {
    "no-windows": "first windows at their maxima",
    "before": "the rules of an earlier commit",
    "new-window-8": "a first window of 8 for an image",
    "doubtful": "images expected to be bad as often as fine, and a bad one to register 30 % of its boots",
    "beta-alone": "no image expected to be bad",
    "ended-boots": "no start slow or late",
}
"""Policies that are Slipway with one difference."""


def variants(policies: Iterable[str]) -> list[str]:
    """A paragraph about the variants of Slipway among the policies; nothing if there are none."""
    named = [f"`{policy}`: {VARIANTS[policy]}" for policy in policies if policy in VARIANTS]
    return ["", f"Variants of `slipway`: {'; '.join(named)}."] if named else []


def overview(scenarios: Sequence[Scenario], policies: Sequence[str], found: Summaries) -> list[str]:
    """One line per scenario, with its headline metric."""
    rows = [["scenario", "figure", *policies, "published rec."]]
    for scenario in scenarios:
        metric = headline(scenario)
        published = getattr(RECOMMENDED.get(scenario.name), metric, None)
        cells = [text(found.get((scenario.name, policy), {}).get(metric)) for policy in policies]
        rows.append([scenario.name, COLUMNS[metric], *cells, "" if published is None else f"{published:g}"])
    return markdown(rows)


def headline(scenario: Scenario) -> str:
    """Metric by which policies differ most in a scenario."""
    if scenario.availability == "trace":
        return "ratio"
    if scenario.name == "healthy":
        return "unfairness"
    if family_of(scenario.name) == IMAGES or scenario.name.startswith(f"{FRONTIER}-good-"):
        return "wait_new"
    return "on_bad_image" if scenario.name.startswith(("always-bad", f"{ROLL_OUT}-")) else "failed"


def detail(scenario: Scenario, policies: Sequence[str], found: Summaries) -> list[str]:
    """One line per policy, with the columns that have values."""
    sums = {policy: found[scenario.name, policy] for policy in policies}
    columns = [name for name in COLUMNS if any(_has_value(summary, name) for summary in sums.values())]
    rows = [["policy", *(COLUMNS[name] for name in columns)]]
    rows += [[policy, *(text(summary[name]) for name in columns)] for policy, summary in sums.items()]
    return markdown(rows)


def _has_value(summary: Summary, name: str) -> bool:
    value = summary[name]
    return value is not None and (name != "on_bad_image" or value.mean > 0)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose first row is its head."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    rule = "|-" + "-|-".join("-" * width for width in widths) + "-|"
    return [lines[0], rule, *lines[1:]]


def _line(row: Iterable[str], widths: Sequence[int]) -> str:
    cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
    return "| " + " | ".join(cells) + " |"
