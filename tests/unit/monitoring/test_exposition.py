"""promtool takes every /metrics: names, units, types and help are as Prometheus wants them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from drumline.telemetry.archiver_metrics import ArchiverMetrics
from drumline.telemetry.metrics import Metrics
from drumline.telemetry.notifier_metrics import NotifierMetrics
from drumline_agent.api import prometheus
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import FaultClass, Incident, Pause
from tests.unit.agent.settings_builder import agent_settings
from tests.unit.monitoring.exported import KNOWN


def with_samples(registry: CollectorRegistry) -> bytes:
    """Every metric with a sample: promtool says nothing of one without."""
    for collector in registry._collector_to_names:
        if names := getattr(collector, "_labelnames", ()):
            collector.labels(*("x" for _ in names))  # pyright: ignore[reportAttributeAccessIssue] - of labelled metrics
    return generate_latest(registry)


def recovered_agent() -> RankStatusStore:
    """An agent that has every metric: its ranks train, and have recovered once."""
    status = RankStatusStore(agent_settings())
    status.begin_attempt(generation=1, attempt=1, ranks=range(1))
    status.restarts[FaultClass.HANG] = 1
    incident = Incident(
        generation=1,
        attempt=1,
        fault_class=FaultClass.HANG,
        cause="rank 3 stood still",
        fault_at=0.0,
        detected_at=1.0,
        decided_at=2.0,
        replaced_at=3.0,
        joined_at=4.0,
        restored_at=5.0,
        first_step_at=6.0,
    )
    status.incidents = (incident,)
    status.pause = Pause(seconds=90.0, usual_seconds=2.0)
    status.record_heartbeat(
        Heartbeat(
            generation=1,
            attempt=1,
            rank=0,
            step=20,
            total_steps=100,
            phase=Phase.CHECKPOINT,
            loss=1.5,
            gradient_norm=0.75,
            tokens_per_second=1e6,
            step_seconds=0.25,
            predicted_step_seconds=0.2,
            mfu=0.5,
            step_parts={"forward": 0.125, "all_reduce/tp": 0.0625},
            memory_bytes={"weights": 400},
            checkpoint_step=20,
            checkpoint_seconds=3.0,
            snapshot_every_steps=5,
            snapshot_seconds=0.1,
            time_seconds=1.0,
        )
    )
    return status


PAGES = {
    "operator": lambda: with_samples(Metrics().registry),
    "notifier": lambda: with_samples(NotifierMetrics().registry),
    "archiver": lambda: with_samples(ArchiverMetrics().registry),
    "agent": lambda: prometheus.render(recovered_agent()),
}


def test_the_agent_that_is_checked_has_every_metric_of_the_ranks() -> None:
    text = PAGES["agent"]().decode()
    ranks = {name for name in KNOWN if name.startswith("drumline_trainer_")}
    assert {name for name in ranks if f"# TYPE {name} " not in text} == set()


@pytest.mark.parametrize("page", PAGES)
def test_promtool_has_nothing_to_say(page: str, promtool: Path) -> None:
    text = PAGES[page]()
    assert text.count(b"# TYPE") > 10
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
