"""Prometheus' own checker evaluates the alerts of the chart on samples that fire them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline.monitoring import generate
from tests.unit.monitoring.alert_cases import CASES, Samples
from tests.unit.monitoring.exported import metrics_of

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


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_with_its_sentence_and_is_silent_nearby(
    name: str, promtool: Path, tmp_path: Path
) -> None:
    case, alert = CASES[name], ALERTS[name]
    command = re.sub(r"{{ \$labels\.(\w+) }}", lambda label: case.labels[label[1]], alert.command)
    annotations = {
        "summary": case.summary,
        "command": command,
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
