"""Public traces of GPU clusters, each in the format it is published in.

They say when a job was submitted, how many GPUs it had and how long it ran; jobs that asked for no
GPU or never ran are left out, as is what they say of their own scheduler. Column names are those
of the data sets' own documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from drumline.simulator.input.formats import acme, alibaba, helios, philly
from drumline.simulator.input.trace import TraceJob, read


class Format(StrEnum):
    """How a trace is written."""

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
    Format.HELIOS: helios.read,
    Format.ALIBABA_2020: alibaba.read_2020,
    Format.ALIBABA_2023: alibaba.read_2023,
    Format.ACME: acme.read,
}


def read_as(kind: Format, lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """The jobs of a trace in one of the formats.

    Raises:
        BadFile: at the first row that is not usable.
    """
    return READERS[kind](lines, file=file)
