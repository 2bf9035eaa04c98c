"""Read public traces of GPU clusters, each in its published format.

The readers use the submission time, the number of GPUs and the duration of each job. Jobs that
requested no GPU or never ran are skipped, and so are the decisions of the original scheduler.
Column names are those of the data sets' documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from drumline_simulator.input.formats import alibaba, philly, slurm
from drumline_simulator.input.trace import TraceJob, read


class Format(StrEnum):
    """The format of a trace."""

    DRUMLINE = "drumline"
    PHILLY = "philly"
    """Microsoft, 2017: `cluster_job_log`, JSON."""
    HELIOS = "helios"
    """SenseTime, 2020: `cluster_log.csv`."""
    ALIBABA_2020 = "alibaba2020"
    """PAI: `pai_task_table.csv`, or a join of it with `pai_job_table.csv` for the users."""
    ALIBABA_2023 = "alibaba2023"
    """`openb_pod_list_*.csv`."""
    ACME = "acme"
    """Shanghai AI Laboratory, 2023: `trace_seren.csv`, `trace_kalos.csv`."""


Reader = Callable[..., Iterator[TraceJob]]

READERS: dict[Format, Reader] = {
    Format.DRUMLINE: read,
    Format.PHILLY: philly.read,
    Format.HELIOS: slurm.read_helios,
    Format.ALIBABA_2020: alibaba.read_2020,
    Format.ALIBABA_2023: alibaba.read_2023,
    Format.ACME: slurm.read_acme,
}


def read_as(kind: Format, lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """Return the jobs of a trace in one of the formats.

    Args:
        kind: format of the trace.
        lines: lines of the file.
        file: name of the file, for errors.

    Raises:
        InvalidFileError: a row is invalid. The error names the first one.
    """
    return READERS[kind](lines, file=file)
