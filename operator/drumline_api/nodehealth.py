"""Define the evidence against nodes of a GpuPool, and the settings that react to it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from drumline_api.assignment import ObjectName
from drumline_api.base import DISTINCT, ApiModel, Timestamp, keyed_by


class CheckedNode(ApiModel):
    """Result of a platform check of a node."""

    node: ObjectName
    """Name of the node."""
    at: Timestamp
    """Time of the check."""
    failed: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Short description of the failure. Unset: the check passed, and older evidence is
    discarded."""


class NodeHealthSpec(ApiModel):
    """Reactions to evidence against nodes. See docs/node-health.md."""

    quarantine_percent: Annotated[int, Field(ge=0, le=20)] = 20
    """Maximum share of quarantined nodes, in percent of the pool, rounded down. Pools with fewer
    than five nodes have no quarantine. 0: no quarantine, but suspect nodes are still used last.
    Default: 20."""
    trusted_nodes: Annotated[
        list[ObjectName] | None, Field(max_length=64, json_schema_extra=DISTINCT)
    ] = None
    """Nodes that are never quarantined, whatever the evidence. Unset: none."""
    checked: Annotated[
        list[CheckedNode] | None, Field(max_length=64, json_schema_extra=keyed_by("node"))
    ] = None
    """Results of platform checks. One failed check is sufficient for a quarantine, because only
    users who may change the pool can write it. Unset: no checks."""


class NodeEvidenceStatus(ApiModel):
    """Evidence against a node."""

    kind: Literal["Slow", "DeviceFailed", "CheckFailed"]
    """Slow: ranks of a job computed more slowly on this node than on its other nodes. DeviceFailed:
    a GPU failed under a job. CheckFailed: a platform check found the node slow or faulty."""
    by: Annotated[str, Field(max_length=63)] = ""
    """Namespace whose jobs are the source. All its jobs count as one witness. Unset: a platform
    check."""
    at: Timestamp
    """Hour in which it was last seen. Its weight halves every twelve hours."""
    detail: Annotated[str, Field(max_length=128)] = ""
    """Short description with figures."""


class NodeHealthStatus(ApiModel):
    """Evidence against a node, and its quarantine."""

    node: ObjectName
    """Name of the node."""
    quarantined_at: Timestamp | None = None
    """Start of the quarantine, in which the node takes no new pods. Unset: no quarantine. The node
    is used after other nodes that are otherwise equal."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """Summary of the evidence."""
    evidence: Annotated[list[NodeEvidenceStatus], Field(max_length=8)]
    """Evidence against the node. Only the newest of each kind and witness is kept."""
