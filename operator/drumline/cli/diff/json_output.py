"""Two jobs beside each other for programs. The field names are an interface: they stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from drumline.cli.diff.differences import Difference


class JobDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What `drumline diff` shows of two jobs.

    Attributes:
        kind: what this is.
        left: `namespace/name` of the first job.
        right: that of the second.
        rows: fields of the specs that differ, then every line of the outcomes.
    """

    # No default: it would be an optional field of the schema.
    kind: Literal["JobDifference"]
    left: str
    right: str
    rows: Sequence[Difference]


def as_json(names: Sequence[str], rows: Sequence[Difference]) -> str:
    """One JSON object, ending with a newline."""
    document = JobDifference(kind="JobDifference", left=names[0], right=names[1], rows=rows)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
