"""The series that Drumline exports, with their labels: what queries may name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from drumline.telemetry.archiver_metrics import ArchiverMetrics
from drumline.telemetry.metrics import Metrics
from drumline.telemetry.notifier_metrics import NotifierMetrics
from drumline_agent.api import prometheus as agent_metrics

SCRAPED = {"namespace", "pod", "instance", "job"}
"""Labels that a scrape adds to the operator's metrics."""
OF_JOBS = {*SCRAPED, "training_job", "queue"}
"""And to those of the ranks: the chart's scrape configuration and PodMonitor."""
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
_LABELLED = r"drumline_trainer_(\w+)\{\{((?:[^{}]|\{[^}]*\})*)\}\}"
"""In the agent's f-strings: `drumline_trainer_rank_up{{rank="{rank}"}}`."""
DCGM = (
    *("GPU_UTIL", "GPU_TEMP", "POWER_USAGE", "XID_ERRORS", "ROW_REMAP_FAILURE"),
    *("FB_USED", "FB_FREE", "NVLINK_BANDWIDTH_TOTAL", "UNCORRECTABLE_REMAPPED_ROWS"),
)
"""Of dcgm-exporter's default counters (etc/default-counters.csv), after DCGM_FI_DEV_."""


def exported() -> Iterator[tuple[str, set[str]]]:
    """Every metric with its labels."""
    for registry in (Metrics().registry, NotifierMetrics().registry, ArchiverMetrics().registry):
        yield from _of_registry(registry)
    source = Path(agent_metrics.__file__).read_text()
    for name in re.findall(r'_gauge\(\s*"(\w+)"', source):
        yield f"drumline_trainer_{name}", OF_JOBS
    for name, labels in re.findall(_LABELLED, source):
        yield f"drumline_trainer_{name}", OF_JOBS | set(re.findall(r'(\w+)="', labels))
    for name in (*(f"DEV_{name}" for name in DCGM), "PROF_PIPE_TENSOR_ACTIVE"):
        yield f"DCGM_FI_{name}", {*SCRAPED, "Hostname", "gpu", "device", "modelName"}


def _of_registry(registry: CollectorRegistry) -> Iterator[tuple[str, set[str]]]:
    for collector in registry._collector_to_names:
        for family in collector.collect():
            names = set(getattr(collector, "_labelnames", getattr(family, "_labelnames", ())))
            for suffix in SUFFIXES.get(family.type, ()):
                extra = {"le"} if suffix == "_bucket" else set[str]()
                yield f"{family.name}{suffix}", SCRAPED | names | extra


KNOWN = dict(exported())


def metrics_of(expression: str) -> set[str]:
    """The metrics that a query names."""
    return set(re.findall(r"\b(?:drumline|process|DCGM)_\w+", expression))


def labels_of(expression: str) -> tuple[set[str], set[str]]:
    """The labels that a query selects by, and those that it groups or joins by."""
    selected = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", expression))
    grouped = {
        label.strip()
        for clause in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expression)
        for label in clause.split(",")
        if label.strip()
    }
    return selected, grouped
