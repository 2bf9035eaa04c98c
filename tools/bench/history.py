"""`drumline history` over ten thousand jobs that have ended, beside reading the same files plainly.

`make bench WHAT=history`; each figure is the median of three processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

from drumline_addons.archive.documents import archivable_job, document
from drumline_addons.archive.layout import EndedPath
from tools.bench.report import Row, publish

JOBS: Final = 10_000
DAYS: Final = 28
RUNS: Final = 3
LAST: Final = date(2026, 11, 28)
_READ_PLAINLY: Final = """
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.json"):
    json.loads(path.read_bytes())
"""


def main() -> None:
    """Write an archive, measure, publish."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.process_time()
        for number in range(JOBS):
            _write(folder, number)
        written = (time.process_time() - begun) / JOBS * 1e6
        url = folder.as_uri()
        plain = _seconds([sys.executable, "-c", _READ_PLAINLY, str(folder)])
        history = [sys.executable, "-m", "drumline", "history", "--archive", url]
        whole = _seconds(history)
        day = _seconds([*history, "--since", LAST.isoformat()])
        report = _seconds([*history, "job-77"])
    publish(
        "history",
        [
            Row(name=f"a plain program reads {JOBS} documents", value=plain, unit="s"),
            Row(name="drumline history lists them", value=whole, unit="s"),
            Row(name="those of one day", value=day, unit="s", goal="1", met=day <= 1.0),
            Row(name="the report of one job", value=report, unit="s", goal="1", met=report <= 1.0),
            Row(name="processor time of a document that is written", value=written, unit="us"),
        ],
    )


def _write(folder: Path, number: int) -> None:
    """The document of a job with five incidents and ten events."""
    ended = LAST - timedelta(days=number % DAYS)
    name, uid = f"job-{number}", f"00000000-0000-4000-8000-{number:012}"
    kept = archivable_job(json.dumps(_job(name, uid=uid, ended=ended)).encode())
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "research"},
        "reason": "Recovered",
        "note": "y" * 200,
    }
    body = document(kept.unpacked(), events=[event] * 10, archived_at=0.0, deleted_at=None)
    path = folder / str(EndedPath(day=ended, namespace="research", name=name, uid=uid))
    path.parent.mkdir(parents=True)
    path.write_bytes(body)


def _job(name: str, *, uid: str, ended: date) -> dict[str, Any]:
    def at(hour: int) -> str:
        moment = datetime(ended.year, ended.month, ended.day, hour, tzinfo=UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    incident = {
        "generation": 1,
        "attempt": 0,
        "faultClass": "Infrastructure",
        "cause": "node lost: " + "x" * 60,
        "faultAt": at(1),
    }
    return {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": name,
            "namespace": "research",
            "uid": uid,
            "creationTimestamp": at(0),
        },
        "spec": {"queue": "nlp", "user": "ada", "nodes": 2, "gpusPerNode": 8},
        "status": {
            "phase": "Succeeded",
            "reason": "Completed",
            "startedAt": at(1),
            "finishedAt": at(2),
            "incidents": [incident] * 5,
            "gpuSeconds": {"until": at(2), "productive": 57_600},
        },
    }


def _seconds(command: list[str]) -> float:
    def once() -> float:
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - begun

    return median(_times(once))


def _times(run: Callable[[], float]) -> list[float]:
    return [run() for _ in range(RUNS)]


if __name__ == "__main__":
    main()
