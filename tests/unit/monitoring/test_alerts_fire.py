"""Prometheus' own checker evaluates the alerts of the chart on samples that fire them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.monitoring.alert_cases import CASES, AlertCase, Samples
from tests.unit.monitoring.exported import metrics_of
from tools.monitoring import generate

ROOT = Path(__file__).parents[3]
RULES = ROOT / "helm/drumline/files/monitoring/alerts.yaml"
ALERTS = {alert.name: alert for group in generate.GROUPS for alert in group.alerts}


def promtool_test(
    samples: Samples, *, name: str, at_minutes: int, expected: list[Any]
) -> dict[str, Any]:
    """One test as promtool reads it."""
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in samples.items()],
        "alert_rule_test": [
            {"eval_time": f"{at_minutes}m", "alertname": name, "exp_alerts": expected}
        ],
    }


def filled(template: str, case: AlertCase) -> str:
    """Return a template of Prometheus with the labels and the figure of a case."""
    labelled = re.sub(r"{{ \$labels\.(\w+) }}", lambda label: case.labels[label[1]], template)
    return re.sub(r"{{ \$value.*? ?}}", case.value, labelled)


@pytest.mark.parametrize("name", CASES)
def test_a_summary_names_every_label_and_the_figure(name: str) -> None:
    case, summary = CASES[name], ALERTS[name].summary
    named = set(re.findall(r"\$labels\.(\w+)", summary))
    # a job's namespace and name suffice to find its queue
    optional = {"queue"} if "training_job" in case.labels else set[str]()
    assert named | optional >= case.labels.keys()
    assert ("$value" in summary) == bool(case.value)


@pytest.mark.extended(keep=3)
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_with_its_figures_and_is_silent_nearby(
    name: str, promtool: Path, tmp_path: Path
) -> None:
    case, alert = CASES[name], ALERTS[name]
    annotations = {
        "summary": filled(alert.summary, case),
        "command": filled(alert.command, case),
        "runbook": f"{generate.RUNBOOKS}#{name.lower()}",
    }
    fires = {
        "exp_labels": {"severity": alert.severity, **case.labels},
        "exp_annotations": annotations,
    }
    tests = [
        promtool_test(case.fires, name=name, at_minutes=case.at_minutes, expected=[fires]),
        promtool_test(case.silent, name=name, at_minutes=case.at_minutes, expected=[]),
    ]
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump(
            {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests},
            sort_keys=False,
        )
    )
    done = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried() -> None:
    assert CASES.keys() == ALERTS.keys()
    for name, case in CASES.items():
        asked = metrics_of(ALERTS[name].expression)
        assert {re.split("{", series)[0] for series in case.fires} <= asked


def test_the_rules_are_well_formed(promtool: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout
