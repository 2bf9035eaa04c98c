"""Alerts ask for metrics that exist, by labels they have, and each has its runbook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drumline.controller.scheduler.loop import MISSING_PRIORITY_CLASS
from drumline.overview.jobs import CANNOT_START
from drumline.telemetry.metrics import Metrics
from drumline_api.conditions import DisruptionKind
from drumline_scheduler.decisions import BlockReason
from drumline_scheduler.disruption.model import Confidence
from tests.unit.monitoring.exported import KNOWN, labels_of, metrics_of
from tools.monitoring import generate
from tools.monitoring.job_alerts import NEVER
from tools.monitoring.model import Alert

ROOT = Path(__file__).parents[3]
ALERTS = [alert for group in generate.GROUPS for alert in group.alerts]


def test_the_files_are_what_the_alerts_and_boards_say() -> None:
    for name, text in generate.generated().items():
        assert (ROOT / name).read_text() == text, "make generate"


def test_every_alert_has_a_name_of_its_own_and_there_are_enough() -> None:
    names = [alert.name for alert in ALERTS]
    assert len(set(names)) == len(names) >= 22


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_asks_for_metrics_that_exist_by_labels_they_have(alert: Alert) -> None:
    named = metrics_of(alert.expression)
    assert named
    assert named <= KNOWN.keys()
    selected, grouped = labels_of(alert.expression)
    assert selected | grouped <= set.union(*(KNOWN[name] for name in named))
    shown = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.command))
    assert shown <= grouped


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_is_a_sentence_and_has_a_runbook(alert: Alert) -> None:
    assert f"\n### {alert.name}\n" in (ROOT / generate.RUNBOOKS).read_text()
    assert alert.summary.endswith(".")


def test_the_runbook_has_no_alert_that_is_gone() -> None:
    text = (ROOT / generate.RUNBOOKS).read_text()
    headed = set(re.findall(r"^### (Drumline\w+)$", text, re.MULTILINE))
    assert headed == {alert.name for alert in ALERTS}


def test_values_of_labels_exist() -> None:
    """A reason, kind or confidence that was renamed would silence an alert."""
    assert set(NEVER) - {MISSING_PRIORITY_CLASS} <= set(BlockReason)
    expressions = " ".join(alert.expression for alert in ALERTS)
    kinds = {
        kind
        for pattern in re.findall(r'kind=~?"([A-Z]\w+(?:\|\w+)*)"', expressions)
        for kind in pattern.split("|")
    }
    assert kinds
    assert kinds <= set(DisruptionKind)
    confidences = {confidence.name.lower() for confidence in Confidence}
    assert set(re.findall(r'confidence="(\w+)"', expressions)) <= confidences
    assert set(re.findall(r'pending_jobs\{reason="(\w+)"', expressions)) <= set(BlockReason)


PASSING = {"ClaimInUse", "NamespaceTerminating", "NodesUnavailable", "PriceTooHigh"}
"""Reasons that end without a change of the job, its queue or its pool."""
ELSEWHERE = {"QueueHeld", "SchedulerError"}
"""Meant by the owner of the queue, or with an alert of its own."""


def test_a_reason_that_only_a_change_ends_is_alerted() -> None:
    assert set(NEVER) >= CANNOT_START - PASSING - ELSEWHERE


BEGUN_LATER = {
    "drumline_node_requests_total",  # once a pool with an autoscaler is seen
    "drumline_notifier_messages_dropped_total",  # with each channel
    "drumline_gangs_placed_total",  # the alert takes none as 0
}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_counter_whose_increase_is_alerted_begins_at_0(alert: Alert) -> None:
    """An increase needs a sample before the first fault, and faults can come all at once."""
    counters = set(re.findall(r"increase\((drumline_\w+_total)", alert.expression))
    counters -= set(re.findall(r"\((\w+) unless \1 offset", alert.expression))
    begun = set(re.findall(r"^(\w+)(?:{.*})? 0\.0$", Metrics().render().decode(), re.MULTILINE))
    assert counters <= begun | BEGUN_LATER
