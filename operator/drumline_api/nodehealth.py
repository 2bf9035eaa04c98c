"""What is known against nodes of a GpuPool, and what their owner says of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from drumline_api.assignment import ObjectName
from drumline_api.base import DISTINCT, ApiModel, Timestamp, keyed_by


class CheckedNode(ApiModel):
    """What a check of the platform found on a node."""

    node: ObjectName
    """Its name."""
    at: Timestamp
    """When it was checked."""
    failed: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """What is slow or wrong, in a few words. Absent: it passed, and nothing older counts."""


class NodeHealthSpec(ApiModel):
    """What follows from what is known against nodes; see docs/node-health.md."""

    quarantine_percent: Annotated[int, Field(ge=0, le=20)] = 20
    """Most nodes that are quarantined, in percent of the pool, rounded down: none of a pool of
    fewer than five nodes. 0: none; suspect nodes are still taken last. Default: 20."""
    trusted_nodes: Annotated[
        list[ObjectName] | None, Field(max_length=64, json_schema_extra=DISTINCT)
    ] = None
    """Nodes that are never quarantined, whatever is known against them. Absent: none."""
    checked: Annotated[
        list[CheckedNode] | None, Field(max_length=64, json_schema_extra=keyed_by("node"))
    ] = None
    """What checks found: whoever may change the pool is believed, so one that failed is enough for
    a quarantine. Absent: none were made."""


class NodeEvidenceStatus(ApiModel):
    """Something that speaks against a node."""

    kind: Literal["Slow", "DeviceFailed", "CheckFailed"]
    """Slow: ranks of a job computed more slowly there than on its other nodes. DeviceFailed: a GPU
    failed there under a job. CheckFailed: a check of the platform found it slow or wrong."""
    by: Annotated[str, Field(max_length=63)] = ""
    """Namespace whose jobs say so: all of them are one witness. Absent: a check."""
    at: Timestamp
    """The hour in which it was seen last; it counts half as much twelve hours later."""
    detail: Annotated[str, Field(max_length=128)] = ""
    """Figures, in a few words."""


class NodeHealthStatus(ApiModel):
    """What is known against a node."""

    node: ObjectName
    """Its name."""
    quarantined_at: Timestamp | None = None
    """Since when it takes no new pods. Absent: it takes them, after other nodes that are equal
    otherwise."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """The evidence in words."""
    evidence: Annotated[list[NodeEvidenceStatus], Field(max_length=8)]
    """What speaks against it, the newest of each kind and witness."""
