"""Alerts and dashboard name metrics, labels and pages that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tokenloom_router.metrics import Metrics
from tokenloom_server.http_metrics import HttpMetrics

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/tokenloom.rules.yaml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/grafana/tokenloom.json").read_text())
METRIC = re.compile(r"\btgi_\w+")
LABELS = re.compile(r"(tgi_\w+)\{([^}]*)\}")
SCRAPED = {"job", "instance"}


def expressions() -> Iterator[str]:
    for group in RULES["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


@pytest.fixture(scope="module")
def exposition() -> str:
    metrics = Metrics()
    HttpMetrics(metrics.registry).responses.labels("GET", "/", 200)
    return metrics.render().decode()


def test_every_metric_of_an_expression_is_exposed(exposition: str) -> None:
    exposed = {re.split(r"[{ ]", line)[0] for line in exposition.splitlines() if line[0] != "#"}
    named = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(named) > 20
    assert named <= exposed


def test_every_label_value_of_an_expression_is_exposed(exposition: str) -> None:
    matchers = [
        (name, matcher)
        for expression in expressions()
        for name, text in LABELS.findall(expression)
        for matcher in re.findall(r'(\w+)(=~?)"([^"]*)"', text)
        if matcher[0] not in SCRAPED
    ]
    assert matchers
    for name, (label, operator, value) in matchers:
        for option in value.split("|") if operator == "=~" else [value]:
            sample = rf'^{name}\{{[^}}]*{label}="{re.escape(option)}"'
            assert re.search(sample, exposition, re.MULTILINE), (name, label, option)


def test_every_alert_has_its_section_in_the_runbook() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    alerts = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
    assert [rule["alert"] for rule in alerts] == headings
    for rule in alerts:
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
