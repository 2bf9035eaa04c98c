"""Every panel and every alert has data in what a real Prometheus recorded of Drumline at work.

`python -m tests.monitoring --record` makes the recording; what cannot have data there is listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitoring import evidence, recording
from tests.monitoring.absent import METRICS, PANELS
from tests.monitoring.evidence import Question, Window
from tests.monitoring.faults import EXPECTED
from tests.monitoring.prometheus import Prometheus, running
from tests.unit.monitoring.exported import metrics_of
from tools.cluster.promtool import ensure_prometheus
from tools.monitoring import generate

JOB = {"namespace": "team", "job": "train"}
HURRY = 60
"""The recording is of minutes: an hour's window is one of a minute, as when it was made."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Window]]:
    if ensure_prometheus() is None:
        pytest.skip("Prometheus is not installed, and this is no Debian to take it from")
    folder: Path = tmp_path_factory.mktemp("recorded")
    window = recording.restore(folder)
    with running(folder, config={}) as prometheus:
        yield prometheus, window


def empty(questions: Iterator[Question], recorded: tuple[Prometheus, Window]) -> set[str]:
    prometheus, window = recorded
    return set(evidence.unanswered(prometheus, questions, window=window))


def test_every_panel_has_data_or_a_reason(recorded: tuple[Prometheus, Window]) -> None:
    assert empty(evidence.panel_questions(**JOB), recorded) == PANELS.keys()


def test_every_metric_that_an_alert_asks_for_was_recorded_or_has_a_reason(
    recorded: tuple[Prometheus, Window],
) -> None:
    prometheus, window = recorded
    asked = {
        name
        for group in generate.GROUPS
        for alert in group.alerts
        for name in metrics_of(alert.expression)
    }
    missing = evidence.metrics_without_samples(prometheus, asked, window=window)
    assert missing == METRICS.keys() & asked


def test_alerts_that_faults_fired_fire_on_the_recording(
    recorded: tuple[Prometheus, Window],
) -> None:
    without = empty(evidence.alert_questions(hurry=HURRY), recorded)
    assert {f"alert {name}" for name in EXPECTED} & without == set()
