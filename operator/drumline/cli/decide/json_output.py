"""The decisions for programs. Their field names are an interface: they stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from drumline.cli.decide.cluster import ClusterInput
from drumline.cli.decide.job_decisions import JobDecision


class DecidedCycle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What `drumline decide` decided.

    Attributes:
        as_of: when the newest of the files was written (seconds since the epoch).
        verdicts: a row for each job that the cycle concerns.
        unreadable: objects that could not be read, by file, line and field.
        remarks: waiting jobs that no cycle considers, with the reason; what is not known here.
    """

    as_of: float
    verdicts: Sequence[JobDecision]
    unreadable: tuple[str, ...]
    remarks: tuple[str, ...]


def as_json(cluster_input: ClusterInput, decisions: Sequence[JobDecision]) -> str:
    """One JSON object, ending with a newline."""
    document = DecidedCycle(
        as_of=cluster_input.as_of,
        verdicts=decisions,
        unreadable=cluster_input.unreadable,
        remarks=cluster_input.remarks,
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
