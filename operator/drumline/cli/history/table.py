"""Jobs that have ended as columns for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.cli.columns import columns
from drumline.cli.formatting import clock, duration
from drumline.cli.overview.tables import step
from drumline.overview.rows import JobRow

_HEADS: Final = (
    *("ENDED", "JOB", "QUEUE", "USER", "PHASE", "RAN", "GPU-HOURS", "RESTARTS", "STEP", "LOSS"),
    "DETAIL",
)
_NOTHING: Final = "-"


def table(rows: Sequence[JobRow]) -> str:
    """A line a job."""
    if not rows:
        return "no jobs have ended in this period\n"
    cells = [
        (
            _NOTHING if row.finished_at is None else clock(row.finished_at),
            f"{row.namespace}/{row.name}",
            row.queue,
            row.user or _NOTHING,
            row.phase,
            _ran(row),
            f"{(row.gpu_seconds or 0) / 3600:.1f}",
            str(row.restarts or 0),
            step(row),
            row.loss or _NOTHING,
            row.reason,
        )
        for row in rows
    ]
    return "".join(f"{line}\n" for line in columns([_HEADS, *cells], left=(0, 1, 2, 3, 4, 10)))


def _ran(row: JobRow) -> str:
    """From its first start to its end."""
    if row.started_at is None or row.finished_at is None:
        return _NOTHING
    ran = row.finished_at - row.started_at
    return duration(ran) if ran >= 1.0 else "< 1 s"  # statuses have whole seconds
