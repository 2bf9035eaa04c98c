"""A slice of a real Prometheus as a file: OpenMetrics, compressed, a sample every four seconds."""

from __future__ import annotations

import gzip
import math
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.monitoring.evidence import Window
from tests.monitoring.prometheus import Prometheus, Series
from tests.operator_process import ROOT
from tests.unit.monitoring.exported import metrics_of
from tools.cluster.promtool import ensure_promtool
from tools.monitoring import generate

FILE: Final = Path("tests/unit/monitoring/recorded.om.gz")
EVERY_SECONDS: Final = 4.0


def asked_metrics() -> set[str]:
    """The metrics that any panel or alert names."""
    alerts = [alert.expression for group in generate.GROUPS for alert in group.alerts]
    panels = [query.expression for board in generate.BOARDS for _, query in board.queries()]
    return {name for expression in (*alerts, *panels) for name in metrics_of(expression)}


def write(prometheus: Prometheus, window: Window, *, work: Path) -> int:
    """Write the slice; returns its size in bytes.

    Args:
        prometheus: that has seen it all.
        window: the time.
        work: a folder for the text that is not compressed.
    """
    seconds = math.ceil(window.end - window.start)
    lines: list[str] = []
    for name in sorted(asked_metrics()):
        series = prometheus.samples(name, seconds=seconds, at=window.end)
        if series:
            lines += [f"# TYPE {name} unknown", *_lines(name, series)]
    text = "\n".join([*lines, "# EOF", ""])
    (work / "recorded.om").write_text(text)
    body = gzip.compress(text.encode(), mtime=0)
    (ROOT / FILE).write_bytes(body)
    return len(body)


def restore(folder: Path) -> Window:
    """Make `folder/data` a database of the slice; returns the time that it covers."""
    promtool = ensure_promtool()
    assert promtool is not None
    text = gzip.decompress((ROOT / FILE).read_bytes()).decode()
    (folder / "recorded.om").write_text(text)
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", "recorded.om", "data"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    times = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"]
    return Window(start=min(times), end=max(times))


def _lines(name: str, series: Iterable[Series]) -> Iterable[str]:
    """Samples of each series, thinned, in the order of their times."""
    for each in series:
        labels = _written({key: value for key, value in each.labels.items() if key != "__name__"})
        for at, value in _thinned(each.values):
            yield f"{name}{labels} {value!r} {at:.3f}"


def _thinned(values: Iterable[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    kept: dict[int, tuple[float, float]] = defaultdict()
    for at, value in values:
        kept.setdefault(int(at // EVERY_SECONDS), (at, value))
    return kept.values()


def _written(labels: Mapping[str, str]) -> str:
    pairs = (
        f'{key}="{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for key, value in labels.items()
    )
    return "{" + ",".join(pairs) + "}" if labels else ""
